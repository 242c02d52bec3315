"""The normalisers against the references, and the rule that each of them keeps."""

import keras
import numpy as np
import pytest
import reference as ref
import reference_normalizers
import tensorflow as tf
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_attention.normalizers import (
    Softmax,
    entmax15,
    get_normalizer,
    masked_softmax,
    serialize_normalizer,
    sparsemax,
)

B, N, T, S = 2, 3, 5, 7
MASK = np.array(
    [
        [[1, 1, 0, 1, 0, 1, 1], [0] * 7, [1] * 7, [0, 0, 0, 0, 0, 0, 1], [1, 0] * 3 + [0]],
        [[1] * 7, [0, 1, 1, 0, 0, 0, 0], [0] * 7, [1] * 7, [0] * 7],
    ],
    bool,
)


def test_softmax(run, rng, dtype, assert_close):
    scores, exact = rounded(4 * rng.normal(size=(B, T, S)), dtype)
    assert_close(run(masked_softmax, scores), ref.masked_softmax(exact), dtype)
    actual = run(masked_softmax, scores, MASK)
    assert_close(actual, ref.masked_softmax(exact, MASK), dtype)
    assert (actual[~MASK] == 0).all()


@pytest.mark.parametrize(
    "shape", [(T, S), (B, T, S), (B, N, T, S), (0, T, S), (B, 0, S), (B, T, 0)], ids=str
)
def test_shapes(rng, shape, assert_close):
    scores, mask = rng.normal(size=shape), rng.random(shape) < 0.5
    assert_close(masked_softmax(scores), ref.masked_softmax(scores), "float64")
    assert_close(masked_softmax(scores, mask), ref.masked_softmax(scores, mask), "float64")


@pytest.mark.parametrize(
    "shape", [(T, S), (1, S), (B, 1, S), (B, T, 1), (B, T, S), (1, N, T, S)], ids=str
)
def test_masks_of_lower_rank(rng, shape, assert_close):
    scores, mask = rng.normal(size=(B, N, T, S)), rng.random(shape) < 0.5
    whole = ref.combine_masks(scores.shape, mask)
    assert_close(masked_softmax(scores, mask), ref.masked_softmax(scores, whole), "float64")


def test_dtype_of_weights(dtype):
    scores = ops.zeros((T, S), dtype)
    for mask in (None, MASK[0]):
        weights = masked_softmax(scores, mask)
        assert dtype_of(weights) == ("float64" if dtype == "float64" else "float32")


EXTREMES = st.sampled_from([0.0, 1.0, -1.0, 88.0, -104.0, 1e4, -1e9, 1e30, -3.4028235e38])


@settings(max_examples=50, deadline=None)
@given(hnp.arrays("float32", (3, S), elements=EXTREMES), hnp.arrays(bool, (3, S)))
def test_rows_sum_to_one_or_zero(scores, mask):
    """However large the scores; the lowest finite number among them, which some use as a mask."""
    weights = to_numpy(masked_softmax(scores, mask))
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-6)
    assert_allclose(weights, ref.masked_softmax(scores, mask), rtol=2e-6, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays("float32", (3, S), elements=st.floats(-9, 9, width=32)),
    st.floats(-100, 100, width=32),
)
def test_a_constant_added_to_a_row_changes_nothing(scores, constant):
    moved = masked_softmax(scores + np.float32(constant), MASK[0][:3])
    assert_allclose(moved, masked_softmax(scores, MASK[0][:3]), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_masked_scores_may_be_anything(run, rng, bad):
    scores = rng.normal(size=(B, T, S)).astype("float32")
    spoiled = np.where(MASK, scores, np.float32(bad))
    assert np.array_equal(run(masked_softmax, spoiled, MASK), run(masked_softmax, scores, MASK))


def test_nan_that_is_not_masked_stays_visible():
    assert np.isnan(to_numpy(masked_softmax([[np.nan, 1.0]], [[True, True]]))).any()


def test_gradient(rng):
    scores, cotangent = rng.normal(size=(B, T, S)), rng.normal(size=(B, T, S))
    (gradient,) = to_numpy(
        differentiate(lambda x: masked_softmax(x, MASK) * tensor(cotangent), [scores])
    )
    expected = numerical_gradient(
        lambda x: ops.sum(masked_softmax(x, MASK) * tensor(cotangent)), scores
    )
    assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8)
    assert (gradient[~MASK] == 0).all()


def test_one_key_takes_all_the_weight(run):
    """Whatever its score; its gradient is 0, not missing."""

    def weights_and_gradient(scores):
        return masked_softmax(scores), differentiate(masked_softmax, [scores])[0]

    weights, gradient = run(weights_and_gradient, tensor([[3.0], [-1e9]]))
    assert weights.tolist() == [[1], [1]]
    assert gradient.tolist() == [[0], [0]]


def test_gradient_of_empty_rows_is_zero(run, dtype):
    """And finite everywhere, even where the masked scores are not."""

    def gradient(scores):
        return differentiate(lambda x: masked_softmax(x, MASK) ** 2, [scores])[0]

    scores = np.where(MASK, np.linspace(-1, 1, S), np.nan)
    result = run(gradient, ops.cast(scores, dtype))
    assert np.isfinite(result).all()
    assert (result[~MASK] == 0).all()
    assert (result[0, 0][MASK[0, 0]] != 0).any()


@pytest.mark.parametrize("convert", [lambda m: m.astype(int), np.ndarray.tolist])
def test_masks_may_be_integers_or_lists(rng, convert, assert_close):
    scores = rng.normal(size=(B, T, S))
    assert_close(masked_softmax(scores, convert(MASK)), ref.masked_softmax(scores, MASK), "float64")


def test_errors():
    scores = np.zeros((B, T, S), "float32")
    with pytest.raises(ValueError, match="attention_bias"):
        masked_softmax(scores, np.zeros((B, T, S), "float32"))
    for shape in [(B, T, S + 1), (B + 1, 1, S), (T + 1, S), (1, B, T, S), (S,)]:
        with pytest.raises(ValueError, match="mask"):
            masked_softmax(scores, np.ones(shape, bool))
    # A mask may not stretch the scores either.
    with pytest.raises(ValueError, match="mask"):
        masked_softmax(np.zeros((B, T, 1), "float32"), np.ones((B, T, S), bool))


# Temperature and the sparse normalisers

ALPHA = {sparsemax: 2.0, entmax15: 1.5}


@pytest.fixture(params=[*ALPHA, Softmax(0.5)], ids=["sparsemax", "entmax15", "softmax"])
def normalizer(request):
    return request.param


@pytest.fixture(params=list(ALPHA), ids=lambda function: function.__name__)
def sparse(request):
    return request.param


def expected_weights(normalizer, scores, mask=None):
    if normalizer in ALPHA:
        return reference_normalizers.entmax(scores, mask, ALPHA[normalizer])
    return ref.masked_softmax(np.asarray(scores, "float64") / normalizer.temperature, mask)


def gradient_of(normalizer, scores, cotangent, mask=None):
    def products(scores):
        weights = normalizer(scores, mask)
        return weights * ops.cast(cotangent, weights.dtype)

    return differentiate(products, [scores])[0]


def test_weights(normalizer, run, rng, dtype, assert_close):
    scores, exact = rounded(2 * rng.normal(size=(B, T, S)), dtype)
    weights, masked = run(lambda x: (normalizer(x), normalizer(x, MASK)), scores)
    assert_close(weights, expected_weights(normalizer, exact), dtype)
    assert_close(masked, expected_weights(normalizer, exact, MASK), dtype)
    assert dtype_of(weights) == dtype_of(masked) == ("float64" if dtype == "float64" else "float32")
    assert (masked[~MASK] == 0).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_long_rows(normalizer, rng, scale):
    """In float32 the error stays that of a few roundings, however many entries share the row."""
    scores = (scale * rng.normal(size=(4, 1500))).astype("float32")
    weights = to_numpy(normalizer(scores))
    assert_allclose(weights.sum(-1, dtype="float64"), 1, atol=2e-6)
    assert_allclose(weights, expected_weights(normalizer, scores), rtol=2e-5, atol=5e-7)


def test_sparse_weights_are_those_of_their_definition(rng):
    """Martins: no point of the simplex is nearer to the scores than sparsemax."""
    scores = rng.normal(size=(30, 4))
    weights = to_numpy(sparsemax(scores))
    distance = ((weights - scores) ** 2).sum(-1)
    for _ in range(50):
        other = rng.dirichlet(np.ones(4) * rng.choice([0.1, 1.0]), size=30)
        assert (((other - scores) ** 2).sum(-1) >= distance - 1e-12).all()


def test_sparse_weights_of_zero(sparse):
    """Exactly 0, and more of them the more pointed the normaliser is."""
    scores = np.array([[0.0, -0.9, -1.1, -1.9, -2.1]])
    zeros = to_numpy(sparse(scores))[0] == 0
    assert zeros.tolist() == ([False, False] if sparse is sparsemax else [False] * 3) + [True] * (
        3 if sparse is sparsemax else 2
    )


def test_gradients(normalizer, rng):
    scores, cotangent = rng.normal(size=(B, T, S)), rng.normal(size=(B, T, S))
    gradient = to_numpy(gradient_of(normalizer, scores, cotangent, MASK))
    expected = numerical_gradient(
        lambda x: ops.sum(normalizer(x, MASK) * tensor(cotangent)), scores
    )
    assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8)
    assert (gradient[~MASK] == 0).all()


def test_sparse_gradients_are_the_jacobians_of_the_papers(sparse, run, rng, dtype):
    scores, exact = rounded(2 * rng.normal(size=(B * T, S)), dtype)
    cotangent = rng.normal(size=(B * T, S))
    gradient = run(lambda x: gradient_of(sparse, x, cotangent), scores)
    for row, c, found in zip(expected_weights(sparse, exact), cotangent, gradient, strict=True):
        expected = reference_normalizers.entmax_jacobian(row, ALPHA[sparse]) @ c
        limit = {"float64": 1e-12, "float32": 5e-6, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
        assert_allclose(found, expected, rtol=limit, atol=limit)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays("float32", (3, S), elements=EXTREMES), hnp.arrays(bool, (3, S)))
def test_every_row_sums_to_one_or_zero(scores, mask):
    """And gradients are finite, and 0 where a score is masked."""
    scores = np.where(scores == 1e4, np.float32(-np.inf), scores)
    for normalizer in (sparsemax, entmax15, Softmax(0.1), Softmax(1e-30), Softmax(1e38)):
        weights = to_numpy(normalizer(scores, mask))
        assert (weights >= 0).all()
        assert (weights[~mask] == 0).all()
        assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-6)
        gradient = to_numpy(gradient_of(normalizer, scores, np.arange(3 * S).reshape(3, S), mask))
        assert np.isfinite(gradient).all()
        assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("shape", [(B, T, 1), (B, T, 0), (0, T, S), (B, N, T, S)], ids=str)
def test_every_shape(normalizer, rng, shape, assert_close):
    scores, mask = rng.normal(size=shape), rng.random(shape) < 0.5
    assert_close(normalizer(scores), expected_weights(normalizer, scores), "float64")
    assert_close(normalizer(scores, mask), expected_weights(normalizer, scores, mask), "float64")
    assert gradient_of(normalizer, scores, 1.0, mask).shape == shape


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_unknown_shapes(normalizer, rng, assert_close):
    """No key and one key too, in the graph and in XLA."""
    spec = [tf.TensorSpec([None, None], "float64"), tf.TensorSpec([None, None], "bool")]
    for jit in (False, True):
        function = tf.function(normalizer, input_signature=spec, jit_compile=jit)
        for shape in [(3, 1), (2, 0)] if jit else [(3, 5), (3, 1), (2, 0), (0, 4)]:
            scores, mask = rng.normal(size=shape), rng.random(shape) < 0.5
            expected = expected_weights(normalizer, scores, mask)
            assert_close(function(scores, mask), expected, "float64")


def test_what_is_masked_may_be_anything(normalizer, run, rng):
    scores, cotangent = rng.normal(size=(2, B, T, S)).astype("float32")
    bad = rng.choice(np.array([np.nan, np.inf, -np.inf], "float32"), size=scores.shape)
    weights, spoiled, gradient = run(
        lambda x, y: (
            normalizer(x, MASK),
            normalizer(y, MASK),
            gradient_of(normalizer, y, cotangent, MASK),
        ),
        scores,
        np.where(MASK, scores, bad),
    )
    assert np.array_equal(weights, spoiled)
    assert np.isfinite(gradient).all()


def test_nan_stays_visible(normalizer, run):
    scores = tensor([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    weights = run(normalizer, scores)
    assert np.isnan(weights[0]).all()
    assert np.isfinite(weights[1]).all()


def test_temperature(rng, assert_close):
    scores = rng.normal(size=(B, T, S))
    for temperature in (0.25, 1, 3.0, np.float32(2)):
        weights = masked_softmax(scores, MASK, temperature=temperature)
        assert_close(weights, ref.masked_softmax(scores / temperature, MASK), "float64")
    coldest = to_numpy(masked_softmax(scores.astype("float32"), temperature=1e-300))
    assert np.array_equal(coldest, scores == scores.max(-1, keepdims=True))
    huge = to_numpy(masked_softmax(np.array([[1e30, -1e30, 1e30]], "float32"), temperature=1e-30))
    assert huge.tolist() == [[0.5, 0, 0.5]]


@pytest.mark.parametrize("bad", [0, -1.0, np.inf, np.nan, "1", None, True])
def test_temperatures_that_are_none(bad):
    for make in (lambda: masked_softmax([[1.0]], temperature=bad), lambda: Softmax(bad)):
        with pytest.raises(ValueError, match="`temperature` must be a positive number"):
            make()


def test_errors_of_masks(normalizer):
    with pytest.raises(ValueError, match="attention_bias"):
        normalizer(np.zeros((B, S), "float32"), np.zeros((B, S), "float32"))
    with pytest.raises(ValueError, match="mask"):
        normalizer(np.zeros((B, S), "float32"), np.ones((B, S + 1), bool))


# Names


@keras.saving.register_keras_serializable(package="test_normalizers")
def even_weights(scores, mask=None):
    return masked_softmax(0 * scores, mask)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_names(name):
    function = get_normalizer(name)
    assert function is {"softmax": masked_softmax, **{f.__name__: f for f in ALPHA}}[name]
    assert get_normalizer(function) is function
    assert serialize_normalizer(name) == serialize_normalizer(function) == name


def test_other_normalizers_are_saved(rng):
    scores = rng.normal(size=(B, T, S))
    for own in (even_weights, Softmax(0.3)):
        config = serialize_normalizer(own)
        assert isinstance(config, dict)
        assert np.array_equal(get_normalizer(config)(scores, MASK), own(scores, MASK))
        assert serialize_normalizer(config) == config
    assert get_normalizer(serialize_normalizer(Softmax(0.3))).temperature == 0.3


@pytest.mark.parametrize("bad", ["softmaxx", None, 3, Softmax])
def test_unknown_normalizers(bad):
    with pytest.raises(ValueError, match="one of 'softmax', 'sparsemax', 'entmax15'.*Received"):
        get_normalizer(bad)
