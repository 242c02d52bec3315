"""masked_softmax against the reference, and the rule that every normaliser keeps."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from conftest import numerical_gradient, rounded, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_attention.normalizers import masked_softmax

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
    scores = tf.zeros((T, S), dtype)
    for mask in (None, MASK[0]):
        weights = masked_softmax(scores, mask)
        assert weights.dtype == ("float64" if dtype == "float64" else "float32")


EXTREMES = st.sampled_from([0.0, 1.0, -1.0, 88.0, -104.0, 1e4, -1e9, 1e30, -3.4028235e38])


@settings(max_examples=50, deadline=None)
@given(hnp.arrays("float32", (3, S), elements=EXTREMES), hnp.arrays(bool, (3, S)))
def test_rows_sum_to_one_or_zero(scores, mask):
    """However large the scores; the lowest finite number among them, which some use as a mask."""
    weights = to_numpy(masked_softmax(scores, mask))
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-6)
    np.testing.assert_allclose(weights, ref.masked_softmax(scores, mask), rtol=2e-6, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays("float32", (3, S), elements=st.floats(-9, 9, width=32)),
    st.floats(-100, 100, width=32),
)
def test_a_constant_added_to_a_row_changes_nothing(scores, constant):
    moved = masked_softmax(scores + np.float32(constant), MASK[0][:3])
    np.testing.assert_allclose(moved, masked_softmax(scores, MASK[0][:3]), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_masked_scores_may_be_anything(run, rng, bad):
    scores = rng.normal(size=(B, T, S)).astype("float32")
    spoiled = np.where(MASK, scores, np.float32(bad))
    assert np.array_equal(run(masked_softmax, spoiled, MASK), run(masked_softmax, scores, MASK))


def test_nan_that_is_not_masked_stays_visible():
    assert np.isnan(to_numpy(masked_softmax([[np.nan, 1.0]], [[True, True]]))).any()


def test_gradient(rng):
    scores, cotangent = rng.normal(size=(B, T, S)), rng.normal(size=(B, T, S))
    variable = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        total = tf.reduce_sum(masked_softmax(variable, MASK) * cotangent)
    gradient = to_numpy(tape.gradient(total, variable))
    expected = numerical_gradient(
        lambda x: tf.reduce_sum(masked_softmax(x, MASK) * cotangent), scores
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8)
    assert (gradient[~MASK] == 0).all()


def test_one_key_takes_all_the_weight(run):
    """Whatever its score; its gradient is 0, not missing."""

    def weights_and_gradient(scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            weights = masked_softmax(scores)
        return weights, tape.gradient(weights, scores)

    weights, gradient = run(weights_and_gradient, tf.constant([[3.0], [-1e9]]))
    assert weights.tolist() == [[1], [1]]
    assert gradient.tolist() == [[0], [0]]


def test_gradient_of_empty_rows_is_zero(run, dtype):
    """And finite everywhere, even where the masked scores are not."""

    def gradient(scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            total = tf.reduce_sum(masked_softmax(scores, MASK) ** 2)
        return tape.gradient(total, scores)

    scores = np.where(MASK, np.linspace(-1, 1, S), np.nan)
    result = run(gradient, tf.cast(scores, dtype))
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
