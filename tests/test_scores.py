"""Score functions against the papers' equations, in every mode and precision."""

import math

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import SCORES, TOLERANCES, numerical_gradient, rounded
from keras import ops

from keras_attention.scores import (
    additive_score,
    concat_score,
    dot_score,
    general_score,
    scaled_dot_score,
    soft_cap,
)

B, N, T, S, Dq, Dk, U = 2, 3, 5, 7, 11, 13, 17


def draw(rng, score, batch=(B,), dtype="float64"):
    """Query, key and weights in `dtype`, and their exact values in float64."""
    q_size, k_size = score.sizes(Dq, Dk)
    arrays = {
        "query": rng.normal(size=(*batch, T, q_size)),
        "key": rng.normal(size=(*batch, S, k_size)),
        **score.weights(rng, q_size, k_size, U),
    }
    pairs = {name: rounded(array, dtype) for name, array in arrays.items()}
    return {n: p[0] for n, p in pairs.items()}, {n: p[1] for n, p in pairs.items()}


def test_equations(run, rng, dtype, assert_close):
    """All scores in one compiled function, which is much faster than one each."""
    drawn = [draw(rng, score, dtype=dtype) for score in SCORES.values()]
    functions = [
        (score.function, list(tensors))
        for score, (tensors, _) in zip(SCORES.values(), drawn, strict=True)
    ]

    def compute(*tensors):
        tensors = iter(tensors)
        return [function(**{n: next(tensors) for n in names}) for function, names in functions]

    actual = run(compute, *(tensor for tensors, _ in drawn for tensor in tensors.values()))
    for score, scores, (_, exact) in zip(SCORES.values(), actual, drawn, strict=True):
        expected = ref.pairwise(score.reference, **exact)
        # In half precision, an error of the largest product shows in the smallest sum.
        size = 1.0 if dtype in ("float64", "float32") else np.abs(expected).max()
        assert_close(scores / size, expected / size, dtype)


@pytest.mark.parametrize("batch", [(), (B,), (B, N), (0,), (B, 0)], ids=str)
def test_any_leading_axes(rng, score, batch, assert_close):
    tensors, exact = draw(rng, score, batch)
    actual = score.function(**tensors)
    assert_close(actual, ref.pairwise(score.reference, **exact), "float64")


def test_one_key_head_for_all_query_heads(rng, score, assert_close):
    """key [B, 1, S, Dk] with query [B, N, T, Dq], as multi-query attention has it."""
    tensors, exact = draw(rng, score, (B, N))
    tensors["key"] = tensors["key"][:, :1]
    exact["key"] = np.broadcast_to(exact["key"][:, :1], exact["key"].shape)
    assert_close(score.function(**tensors), ref.pairwise(score.reference, **exact), "float64")


@pytest.mark.parametrize("T, S", [(0, S), (T, 0), (0, 0), (1, 1)])
def test_empty_sequences(rng, score, T, S):
    q_size, k_size = score.sizes(Dq, Dk)
    query, key = np.zeros((B, T, q_size)), np.zeros((B, S, k_size))
    result = score.function(query, key, **score.weights(rng, q_size, k_size, U))
    assert result.shape == (B, T, S)


def test_dtype_of_scores(rng, score, dtype):
    """Float32 at least, and float64 stays."""
    tensors, _ = draw(rng, score, dtype=dtype)
    assert dtype_of(score.function(**tensors)) == ("float64" if dtype == "float64" else "float32")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_unknown_batch_and_lengths(rng, score, assert_close):
    q_size, k_size = score.sizes(Dq, Dk)
    weights = score.weights(rng, q_size, k_size, U)
    signature = [tf.TensorSpec([None, None, size], "float64") for size in (q_size, k_size)]
    graph = tf.function(score.bind(weights), input_signature=signature)
    for batch in ((2,), (3,)):
        tensors, exact = draw(rng, score, batch)
        actual = graph(tensors["query"], tensors["key"])
        exact.update(weights)
        assert_close(actual, ref.pairwise(score.reference, **exact), "float64")


def test_gradients(rng, score):
    """Of each argument, against central differences in float64."""
    q_size, k_size = score.sizes(3, 5)
    arguments = {
        "query": rng.normal(size=(2, q_size)),
        "key": rng.normal(size=(3, k_size)),
        **score.weights(rng, q_size, k_size, 2),
    }
    cotangent = rng.normal(size=(2, 3))

    def total(arguments):
        return ops.sum(score.function(**arguments) * tensor(cotangent))

    found = differentiate(
        lambda *tensors: total(dict(zip(arguments, tensors, strict=True))), arguments.values()
    )
    for name, gradient in zip(arguments, found, strict=True):
        expected = numerical_gradient(
            lambda moved, name=name: total({**arguments, name: moved}), arguments[name]
        )
        assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8, err_msg=name)


def test_scale(assert_close):
    query, key = np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]])
    assert_close(scaled_dot_score(query, key), [[13 / np.sqrt(2)]], "float64")
    assert_close(scaled_dot_score(query, key, scale=0.5), [[6.5]], "float64")
    assert_close(scaled_dot_score(query, key, scale=0), [[0.0]], "float64")


def test_the_first_rows_of_the_concat_kernel_act_on_the_query():
    """Swapping query and key changes the score."""
    kernel, v = np.array([[1.0], [0.0]]), np.array([1.0])
    one, zero = np.ones((1, 1)), np.zeros((1, 1))
    assert to_numpy(concat_score(one, zero, kernel, v)) == pytest.approx(np.tanh(1.0))
    assert to_numpy(concat_score(zero, one, kernel, v)) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_products_do_not_overflow_in_half_precision(run, dtype):
    """64 products of 40 times 40 are 102400; float16 ends at 65504."""
    query = ops.full([1, 1, 64], ops.cast(40, dtype))
    for function, expected in ((dot_score, 102400), (scaled_dot_score, 12800)):
        scores = run(function, query, query)
        assert scores == pytest.approx(expected, rel=TOLERANCES[dtype])


def test_lists_are_converted():
    assert to_numpy(dot_score([[1.0, 2.0]], [[3.0, 4.0]])).tolist() == [[11.0]]
    assert to_numpy(general_score([[1.0]], [[3.0, 4.0]], [[1.0, 2.0]])).tolist() == [[11.0]]
    assert to_numpy(additive_score([[0.0]], [[0.0]], [1.0], [0.0])).tolist() == [[0.0]]
    assert to_numpy(concat_score([[0.0]], [[0.0]], [[1.0], [1.0]], [1.0])).tolist() == [[0.0]]


@pytest.mark.parametrize("name", SCORES)
def test_integers_count_as_the_numbers_they_are(name):
    """[[1, 2]] is [[1.0, 2.0]]: never rounded or multiplied as integers."""
    score = SCORES[name]
    weights = score.weights(np.random.default_rng(0), 2, 2, 3)
    weights = {key: array.astype("float32") for key, array in weights.items()}
    query, key = [[1, 2]], [[3, 5], [0, -1]]
    actual = score.function(query, key, **weights)
    expected = ref.pairwise(score.reference, query, key, **weights)
    assert_allclose(to_numpy(actual), expected, rtol=1e-5)


# Soft cap


@pytest.mark.parametrize("cap", [0.5, 2, np.float32(50.0)])
def test_soft_cap(run, rng, dtype, cap, assert_close):
    """cap tanh(scores / cap), one score at a time."""
    scores, exact = rounded(20 * rng.normal(size=(2, 3, 5)), dtype)
    expected = np.zeros(exact.shape)
    for index in np.ndindex(*exact.shape):
        expected[index] = float(cap) * math.tanh(exact[index] / float(cap))
    actual = run(lambda scores: soft_cap(scores, cap), scores)
    assert_allclose(actual, expected, rtol=TOLERANCES[dtype], atol=1e-30)
    assert dtype_of(soft_cap(scores, cap)) == dtype


def test_soft_cap_of_small_and_of_endless_scores():
    """Small ones stay, the others end at the cap; the gradient is 1 - tanh^2, and finite."""
    scores = np.array([1e-4, -1e-4, 3.0, 1e30, np.inf, -np.inf], "float64")
    capped = to_numpy(soft_cap(scores, 3.0))
    assert_allclose(capped[:2], scores[:2], rtol=1e-8)
    np.testing.assert_array_equal(capped[3:], [3.0, 3.0, -3.0])
    expected = 1 - np.tanh(scores / 3.0) ** 2
    (gradient,) = differentiate(lambda scores: soft_cap(scores, 3.0), [scores])
    assert_allclose(gradient, expected, atol=1e-15)


@pytest.mark.parametrize("cap", [0, -2.0, np.inf, np.nan, True, "3", None])
def test_caps_that_are_none(cap):
    with pytest.raises(ValueError, match="`logit_soft_cap` must be a positive number"):
        soft_cap(ones(2, 3), cap)


# Errors


def ones(*shape):
    return np.ones(shape, "float32")


@pytest.mark.parametrize("function", [dot_score, scaled_dot_score])
def test_features_must_agree(function):
    with pytest.raises(ValueError, match=r"(?s)query.*key.*\(2, 5, 11\).*\(2, 7, 13\)"):
        function(ones(2, 5, 11), ones(2, 7, 13))


def test_weights_must_fit():
    query, key = ones(2, 5, 11), ones(2, 7, 13)
    with pytest.raises(ValueError, match=r"(?s)kernel.*\(11, 13\).*\(13, 11\)"):
        general_score(query, key, ones(13, 11))
    with pytest.raises(ValueError, match=r"(?s)kernel.*\(24, 17\).*\(11, 17\)"):
        concat_score(query, key, ones(11, 17), ones(17))
    with pytest.raises(ValueError, match=r"(?s)v`.*\(17,\).*\(19,\)"):
        concat_score(query, key, ones(24, 17), ones(19))
    with pytest.raises(ValueError, match=r"(?s)query.*key"):
        additive_score(query, key, ones(13))
    with pytest.raises(ValueError, match=r"(?s)v`.*\(13,\).*\(11,\)"):
        additive_score(ones(2, 5, 13), key, ones(11))
    with pytest.raises(ValueError, match=r"(?s)v`.*\(13,\).*\(13, 1\)"):
        additive_score(ones(2, 5, 13), key, ones(13, 1))
    with pytest.raises(ValueError, match=r"(?s)bias.*\(13,\).*\(1,\)"):
        additive_score(ones(2, 5, 13), key, ones(13), ones(1))
