"""Monotonic attention against the recurrence and the sampling process of the paper."""

import keras
import numpy as np
import pytest
import reference_normalizers as ref
import tensorflow as tf
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import MODES as WAYS
from conftest import numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_attention.monotonic import monotonic_attention, monotonic_start, monotonic_weights

B, S = 3, 7
SOFT = ["parallel", "recursive"]


def rows(function, *arrays):
    """A reference for one row, for each row of arrays `[..., S]`."""
    out = np.zeros(np.shape(arrays[0]))
    for index in np.ndindex(*out.shape[:-1]):
        out[index] = function(*(np.asarray(array)[index] for array in arrays))
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, "float64")))


def some(rng, *shape):
    """Probabilities, and previous weights that sum to at most 1."""
    return rng.random(shape), rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]) * 0.9


def test_references_agree(rng):
    """The recurrence is what the process does on average."""
    for p, previous in zip(*some(rng, 4, 5), strict=True):
        expected = ref.monotonic(p, previous)
        assert_allclose(ref.monotonic_by_sampling(p, previous), expected, atol=1e-14)


@pytest.mark.parametrize("kind", SOFT)
def test_weights(kind, run, rng, dtype, assert_close):
    (p, exact), (previous, exact_previous) = (rounded(x, dtype) for x in some(rng, B, S))
    weights = run(lambda *x: monotonic_weights(*x, mode=kind), p, previous)
    assert_close(weights, rows(ref.monotonic, exact, exact_previous), dtype)
    assert dtype_of(weights) == ("float64" if dtype == "float64" else "float32")


@pytest.mark.parametrize("kind", [*SOFT, "hard"])
@pytest.mark.parametrize("shape", [(S,), (2, 3, S), (B, 1), (B, 0), (0, S), (2, 0, 3)], ids=str)
def test_shapes(kind, rng, shape, assert_close):
    p, previous = some(rng, *shape)
    if kind == "hard":
        previous = to_numpy(monotonic_start(p))
    expected = rows(ref.monotonic_hard if kind == "hard" else ref.monotonic, p, previous)
    assert_close(monotonic_weights(p, previous, kind), expected, "float64")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("kind", [*SOFT, "hard"])
def test_unknown_shapes(kind, rng, assert_close):
    """Weights and gradients are those of known shapes, in the graph and in XLA."""

    def weights_and_gradient(p, previous):
        with tf.GradientTape() as tape:
            tape.watch([p, previous])
            weights = monotonic_weights(p, previous, kind)
            total = ops.sum(weights**2)
        return weights, tape.gradient(total, [p, previous])

    spec = [tf.TensorSpec([None, None], "float64")] * 2
    for way in ("graph", "xla"):
        unknown = tf.function(weights_and_gradient, input_signature=spec, jit_compile=way == "xla")
        for shape in [(2, 1), (3, 33)]:
            p, previous = some(rng, *shape)
            weights, gradients = unknown(p, previous)
            expected, known = weights_and_gradient(tensor(p), tensor(previous))
            assert_close(weights, expected, "float64")
            if kind != "hard":
                for found, wanted in zip(gradients, known, strict=True):
                    assert_close(found, wanted, "float64")


PROBABILITIES = st.sampled_from([0.0, 1.0, 0.5, 1e-7, 1 - 6e-8, 0.999, 1e-30])


@settings(max_examples=40, deadline=None)
@given(hnp.arrays("float32", (2, S), elements=PROBABILITIES), st.integers(0, 99))
def test_parallel_equals_recursive(p, seed):
    previous = np.random.default_rng(seed).dirichlet(np.ones(S), size=2).astype("float32")
    parallel = to_numpy(monotonic_weights(p, previous, "parallel"))
    recursive = to_numpy(monotonic_weights(p, previous, "recursive"))
    assert_allclose(parallel, recursive, rtol=2e-6, atol=1e-7)
    assert (parallel >= 0).all()
    assert (parallel.sum(-1) <= 1 + 1e-6).all()


@pytest.mark.parametrize("kind", SOFT)
@pytest.mark.parametrize(("offset", "scale"), [(0, 6), (20, 5), (-12, 1), (-4, 1)])
def test_long_rows_in_float32(kind, rng, offset, scale):
    """Also where all p are near 1, or all near 0: no digit is lost, and gradients are finite."""
    scores = offset + scale * rng.normal(size=(8, 200))
    p, previous = (x.astype("float32") for x in (sigmoid(scores), some(rng, 8, 200)[1]))
    variables = [tensor(p), tensor(previous)]
    weights = monotonic_weights(*variables, mode=kind)
    gradients = differentiate(lambda *x: monotonic_weights(*x, mode=kind) ** 2, variables)
    expected = rows(ref.monotonic, p, previous)
    assert_allclose(weights, expected, rtol=5e-6, atol=1e-12)
    assert all(np.isfinite(gradient).all() for gradient in to_numpy(gradients))


@pytest.mark.parametrize("kind", SOFT)
def test_gradients(kind, rng):
    scores, cotangent = rng.normal(size=(2, B, S))
    _, previous = some(rng, B, S)
    mask = rng.random((B, S)) < 0.7

    def number(scores, previous):
        return ops.sum(monotonic_attention(scores, previous, mask, kind) * tensor(cotangent))

    gradients = differentiate(number, [scores, previous])

    expected = [
        numerical_gradient(lambda x: number(x, previous), scores),
        numerical_gradient(lambda x: number(scores, x), previous),
    ]
    for found, wanted in zip(gradients, expected, strict=True):
        assert_allclose(found, wanted, rtol=1e-7, atol=1e-8)
    assert (to_numpy(gradients[0])[~mask] == 0).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_hard_is_the_limit_of_large_scores(seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((B, S)) < 0.8

    def draw():
        scores = rng.normal(size=(B, S)) - 0.5
        return scores + 0.02 * np.sign(scores)  # none is 0, which stays 0 times any number

    scores = draw()
    previous = to_numpy(monotonic_start(scores, mask))
    for _ in range(4):
        hard = to_numpy(monotonic_attention(scores, previous, mask, "hard"))
        p = np.where(mask, sigmoid(scores), 0)
        assert np.array_equal(hard, rows(ref.monotonic_hard, p, previous))
        for kind in SOFT:
            soft = to_numpy(monotonic_attention(1e3 * scores, previous, mask, kind))
            assert_allclose(soft, hard, atol=1e-6)
        previous, scores = hard, draw()


def test_hard_never_moves_back_and_ends_in_nothing(run):
    scores = tensor([[1.0, -1.0, 1.0, -1.0]])
    place = tensor([[0.0, 1.0, 0.0, 0.0]])
    for expected in ([0, 0, 1, 0], [0, 0, 1, 0]):
        place = run(lambda s, a: monotonic_attention(s, a, mode="hard"), scores, place)
        assert place.tolist() == [expected]
    for _ in range(2):
        place = run(
            lambda s, a: monotonic_attention(s, a, mode="hard"),
            -scores * tensor([1.0, 1.0, 1.0, -1.0]),
            place,
        )
        assert place.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("kind", [*SOFT, "hard"])
def test_masked_entries(kind, run, rng):
    """They are passed over as if they were not there, whatever their scores."""
    scores = rng.normal(size=(B, S)).astype("float32")
    mask = np.array([[1, 1, 0, 1, 0, 1, 1], [0, 1, 1, 0, 1, 0, 0], [0] * 7], bool)
    bad = rng.choice(np.array([np.nan, np.inf, -np.inf], "float32"), size=scores.shape)
    previous = monotonic_start(scores, mask)

    def weights_and_gradient(scores):
        def weights(scores):
            return monotonic_attention(scores, previous, mask, kind)

        if kind == "hard":
            return weights(scores), ops.zeros_like(scores)
        return weights(scores), differentiate(lambda x: weights(x) ** 2, [scores])[0]

    weights, gradient = run(weights_and_gradient, np.where(mask, scores, bad))
    assert (weights[~mask] == 0).all()
    assert np.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
    for row, kept, found in zip(scores, mask, weights, strict=True):
        if kept.any():
            alone = monotonic_attention(row[kept], monotonic_start(row[kept]), mode=kind)
            assert_allclose(found[kept], alone, rtol=2e-6)


def test_start(run, dtype):
    mask = [[0, 1, 1], [1, 1, 0], [0, 0, 0]]
    start = run(lambda x: monotonic_start(x, mask), ops.zeros((3, 3), dtype))
    assert start.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert dtype_of(start) == ("float64" if dtype == "float64" else "float32")
    assert to_numpy(monotonic_start(np.ones((2, 3)))).tolist() == [[1, 0, 0]] * 2
    assert monotonic_start(np.ones((2, 0))).shape == (2, 0)


@pytest.mark.parametrize("way", list(WAYS))
def test_noise(way):
    """Seeded, and of the standard deviation that was asked for."""
    scores, previous = ops.zeros((4000, 2)), tensor([[1.0, 0.0]] * 4000)

    def draw(seed):
        call = WAYS[way](lambda: monotonic_attention(scores, previous, noise=3.0, seed=seed))
        return to_numpy(call())

    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))
    noise = np.log(draw(1)[:, 0]) - np.log1p(-draw(1)[:, 0])
    assert abs(noise.std() - 3) < 0.15 and abs(noise.mean()) < 0.15
    generator = keras.random.SeedGenerator(1)
    assert not np.array_equal(draw(generator), draw(generator))


def test_errors():
    p = np.full((B, S), 0.5)
    with pytest.raises(ValueError, match="`mode` must be one of parallel, recursive, hard.*'soft'"):
        monotonic_weights(p, p, "soft")
    for shape in [(B, S + 1), (S,), (1, B, S), (B, 1), (1, S)]:
        with pytest.raises(ValueError, match="`previous`|`probabilities`"):
            monotonic_weights(p, np.ones(shape))
    for noise in (-1.0, np.inf, np.nan, "1"):
        with pytest.raises(ValueError, match="`noise`"):
            monotonic_attention(p, p, noise=noise)
    with pytest.raises(ValueError, match="mask"):
        monotonic_attention(p, p, np.ones((B, S + 1), bool))
    with pytest.raises(ValueError, match="mask"):
        monotonic_start(p, np.ones((B, S)))
