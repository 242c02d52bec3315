"""attend: each score with each mask against the reference, properties, gradients, and reports."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import SCORES, TOLERANCES, numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops
from keras.random import SeedGenerator

from keras_attention.attend import attend
from keras_attention.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    segment_mask,
    window_mask,
)
from keras_attention.scores import dot_score, scaled_dot_score

B, N, T, S, Dq, Dk, Dv, U = 2, 3, 5, 7, 11, 13, 17, 19
ALL_SCORES = pytest.mark.parametrize("name", SCORES)

LENGTHS = [4, 7]
QUERY_SEGMENTS = [[0, 0, 1, 1, 2], [5, 5, 5, 5, 5]]
KEY_SEGMENTS = [[0, 0, 0, 1, 1, 1, 1], [5, 6, 6, 5, 5, 6, 5]]
RANDOM = np.random.default_rng(3).random((B, T, S)) < 0.6
RANDOM[0, 2] = False  # a query that may attend to nothing
ONE_MASK = {  # name: (a function that makes the mask with the package, the reference's)
    "none": (lambda: None, np.ones((T, S), bool)),
    "padding": (lambda: padding_mask(LENGTHS, S), ref.padding_mask(LENGTHS, S)),
    "causal": (lambda: causal_mask(T, S), ref.causal_mask(T, S)),
    "window": (lambda: window_mask(T, S, window=2), ref.window_mask(T, S, window=2)),
    "segment": (
        lambda: segment_mask(QUERY_SEGMENTS, KEY_SEGMENTS),
        ref.segment_mask(QUERY_SEGMENTS, KEY_SEGMENTS),
    ),
    "random": (lambda: RANDOM, RANDOM),
    "rows": (lambda: RANDOM[:, :, :1], RANDOM[:, :, :1]),
}
MASKS = {
    **ONE_MASK,
    "all": (
        lambda: combine_masks(*(make() for make, _ in ONE_MASK.values())),
        ref.combine_masks((B, T, S), *(mask for _, mask in ONE_MASK.values())),
    ),
}


def whole(mask, batch=(B,)):
    return ref.combine_masks((*batch, T, S), mask)


def draw(rng, score, batch=(B,), dtype="float64"):
    """Query, key, value, and the score's weights: tensors in `dtype`, and their exact values."""
    q_size, k_size = score.sizes(Dq, Dk)
    qkv = [
        rng.normal(size=(*batch, T, q_size)),
        rng.normal(size=(*batch, S, k_size)),
        rng.normal(size=(*batch, S, Dv)),
    ]
    weights = score.weights(rng, q_size, k_size, U)
    tensors, exact = zip(*(rounded(array, dtype) for array in qkv), strict=True)
    weights = {name: rounded(array, dtype)[1] for name, array in weights.items()}
    return tensors, exact, weights


def attended(score, weights, **options):
    """A function of query, key, value that returns context and weights."""
    dtype = options.pop("dtype", "float64")

    def compute(query, key, value):
        return attend(
            query, key, value, score.bind(weights, dtype), return_attention_scores=True, **options
        )

    return compute


# Against the reference


@pytest.mark.parametrize("kind", MASKS)
@ALL_SCORES
def test_each_score_with_each_mask(rng, name, kind, assert_close):
    score, (make, mask) = SCORES[name], MASKS[kind]
    tensors, exact, weights = draw(rng, score)
    actual = attended(score, weights, mask=make())(*tensors)
    expected = ref.attend(*exact, score.reference, whole(mask), **weights)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, "float64")


@ALL_SCORES
def test_modes(run, rng, name, assert_close):
    """All masks at once, made inside of the compiled function."""
    score, (make, mask) = SCORES[name], MASKS["all"]
    tensors, exact, weights = draw(rng, score, dtype="float32")

    def compute(*args):
        return attended(score, weights, mask=make(), dtype="float32")(*args)

    expected = ref.attend(*exact, score.reference, whole(mask), **weights)
    for a, e in zip(run(compute, *tensors), expected, strict=True):
        assert_close(a, e, "float32")


@pytest.mark.parametrize("name", ["scaled_dot", "additive_bias"])
def test_dtypes(run, rng, name, dtype, assert_close):
    score = SCORES[name]
    tensors, exact, weights = draw(rng, score, dtype=dtype)
    bias = rng.normal(size=(B, T, S))
    expected = ref.attend(*exact, score.reference, RANDOM, bias, **weights)
    compute = attended(score, weights, mask=RANDOM, bias=bias, dtype=dtype)
    for a, e in zip(run(compute, *tensors), expected, strict=True):
        assert_close(a, e, dtype)


def test_results_have_the_dtype_of_value(rng, dtype):
    tensors, _, _ = draw(rng, SCORES["dot"], dtype=dtype)
    context, weights = attend(*tensors, mask=RANDOM, return_attention_scores=True)
    assert dtype_of(context) == dtype_of(weights) == dtype


@pytest.mark.parametrize("batch", [(), (B, N)], ids=str)
@ALL_SCORES
def test_any_leading_axes(rng, name, batch, assert_close):
    score = SCORES[name]
    tensors, exact, weights = draw(rng, score, batch)
    mask = rng.random((*batch, T, S)) < 0.6
    actual = attended(score, weights, mask=mask)(*tensors)
    expected = ref.attend(*exact, score.reference, mask, **weights)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, "float64")


@pytest.mark.parametrize("heads", [2, 3])
def test_masks_of_samples_and_of_heads(run, rng, heads, assert_close):
    """Case C04: B = N = 2, where a mask [B, T, S] could pass for one of heads; and N = 3."""
    query, key, value = (rng.normal(size=(2, heads, 3, 5)) for _ in range(3))
    per_head = np.ones((1, heads, 3, 3), bool)
    per_head[0, 1, :, 0] = False
    padding = np.array([[[1, 1, 0]], [[1, 1, 1]]], bool)
    for mask in [
        (padding,),
        (padding, per_head),
        (np.repeat(padding, 3, 1), per_head),
        (rng.random((2, 3, 3)) < 0.5,),
        (rng.random((3, 3)) < 0.5, per_head),
    ]:
        full = ref.combine_masks((2, heads, 3, 3), *mask)

        def compute(*args, mask=mask):
            return attend(*args, mask=combine_masks(*mask), return_attention_scores=True)

        actual = run(compute, query, key, value)
        expected = ref.attend(query, key, value, mask=full)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, "float64")


def test_biases_of_samples_and_of_heads(rng, assert_close):
    """A bias is aligned like a mask."""
    query, key, value = (rng.normal(size=(2, 2, 3, 5)) for _ in range(3))
    for shape in [(3, 3), (1, 3), (2, 3, 3), (2, 1, 3), (1, 2, 3, 3), (2, 2, 3, 3)]:
        bias = rng.normal(size=shape)
        full = bias if len(shape) != 3 else bias[:, None]
        actual = attend(query, key, value, bias=bias, return_attention_scores=True)
        expected = ref.attend(query, key, value, scores_bias=np.broadcast_to(full, (2, 2, 3, 3)))
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, "float64")


def test_one_key_head_for_all_query_heads(rng, assert_close):
    """key, value [B, 1, S, D]: seen by any head is seen; NaN that no head sees is not."""
    (query, key, value), _, _ = draw(rng, SCORES["scaled_dot"], (B, N))
    key, value = to_numpy(key)[:, :1].copy(), to_numpy(value)[:, :1].copy()
    mask = rng.random((B, N, T, S)) < 0.5
    mask[:, :, :, 1] = False
    mask[:, 0, :, 2], mask[:, 1, :, 2] = False, True
    expected = ref.attend(query, np.repeat(key, N, 1), np.repeat(value, N, 1), mask=mask)
    key[:, :, 1], value[:, :, 1] = np.nan, np.inf
    actual = attend(query, key, value, mask=mask, return_attention_scores=True)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, "float64")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_unknown_batch_and_lengths(rng, assert_close):
    score = SCORES["general"]
    weights = score.weights(rng, Dq, Dk, U)

    def compute(query, key, value, lengths):
        mask = combine_masks(
            padding_mask(lengths, ops.shape(key)[1]),
            causal_mask(ops.shape(query)[1], ops.shape(key)[1]),
        )
        return attended(score, weights, mask=mask)(query, key, value)

    signature = [tf.TensorSpec([None, None, size], "float64") for size in (Dq, Dk, Dv)]
    graph = tf.function(compute, input_signature=[*signature, tf.TensorSpec([None], "int32")])
    for batch, T_, S_ in [(2, 5, 7), (3, 7, 5), (1, 1, 1)]:
        query, key, value = (
            rng.normal(size=(batch, steps, size)) for steps, size in ((T_, Dq), (S_, Dk), (S_, Dv))
        )
        lengths = np.arange(batch, dtype="int32") + S_ - 1
        mask = ref.combine_masks(
            (batch, T_, S_), ref.padding_mask(lengths, S_), ref.causal_mask(T_, S_)
        )
        expected = ref.attend(query, key, value, score.reference, mask, **weights)
        for a, e in zip(graph(query, key, value, lengths), expected, strict=True):
            assert_close(a, e, "float64")


def test_score_and_normalizer_are_free_functions(rng):
    """A new kind of attention is a new piece: here the nearest key, and hard attention."""

    def distance(query, key):
        return -ops.sum((query[..., :, None, :] - key[..., None, :, :]) ** 2, -1)

    def hardmax(scores, mask):
        scores = scores if mask is None else ops.where(mask, scores, np.finfo(dtype_of(scores)).min)
        return ops.one_hot(ops.argmax(scores, -1), ops.shape(scores)[-1], dtype=scores.dtype)

    query, key = [[1.0, 2.0]], [[1.0, 2.0], [1.0, 3.0], [9.0, 9.0]]
    value = [[3.0], [5.0], [7.0]]
    options = dict(score=distance, normalizer=hardmax)
    assert to_numpy(attend(query, key, value, **options)).tolist() == [[3.0]]
    masked = attend(query, key, value, mask=[[False, True, True]], **options)
    assert to_numpy(masked).tolist() == [[5.0]]


# Properties

FEATURES = {  # steps and features of hypothesis's examples: one shape each, so nothing recompiles
    "query": (B, 3, 5),
    "key": (B, 4, 5),
    "value": (B, 4, 2),
}
NUMBERS = st.floats(-4, 4, width=32)
QKV = st.tuples(*(hnp.arrays("float64", shape, elements=NUMBERS) for shape in FEATURES.values()))
SOME_MASK = hnp.arrays(bool, (B, 3, 4))
EXAMPLES = settings(max_examples=25, deadline=None)


def example_score(name):
    score = SCORES[name]
    return score.bind(score.weights(np.random.default_rng(5), 5, 5, 3))


def both(name, query, key, value, **options):
    result = attend(query, key, value, example_score(name), return_attention_scores=True, **options)
    return to_numpy(result)


def assert_same(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        assert_allclose(a, e, rtol=1e-12, atol=1e-12)


@ALL_SCORES
@EXAMPLES
@given(qkv=QKV, mask=SOME_MASK)
def test_rows_sum_to_one_or_zero(name, qkv, mask):
    context, weights = both(name, *qkv, mask=mask)
    assert (weights[~mask] == 0).all()
    assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-12)
    assert (context[~mask.any(-1)] == 0).all()


@ALL_SCORES
@EXAMPLES
@given(qkv=QKV, mask=SOME_MASK, hidden=st.integers(0, 3), garbage=st.sampled_from([0, 9e9, np.nan]))
def test_masked_key_equals_deleted_key(name, qkv, mask, hidden, garbage):
    query, key, value = (x.copy() for x in qkv)
    mask[:, :, hidden] = False
    key[:, hidden], value[:, hidden] = garbage, garbage
    context, weights = both(name, query, key, value, mask=mask)
    key, value = np.delete(key, hidden, 1), np.delete(value, hidden, 1)
    deleted = both(name, query, key, value, mask=np.delete(mask, hidden, 2))
    assert_same((context, np.delete(weights, hidden, 2)), deleted)


@ALL_SCORES
@EXAMPLES
@given(qkv=QKV, mask=SOME_MASK)
def test_more_padding_changes_nothing(name, qkv, mask):
    query, key, value = qkv
    expected = both(name, query, key, value, mask=mask)
    wide = ((0, 0), (0, 3), (0, 0))
    key, value = np.pad(key, wide, constant_values=7), np.pad(value, wide, constant_values=-7)
    context, weights = both(
        name,
        query,
        key,
        value,
        mask=combine_masks(
            padding_mask([4] * B, 7), np.pad(mask, ((0, 0), (0, 0), (0, 3)), constant_values=True)
        ),
    )
    assert (weights[:, :, 4:] == 0).all()
    assert_same((context, weights[:, :, :4]), expected)


@ALL_SCORES
@EXAMPLES
@given(qkv=QKV, mask=SOME_MASK, order=st.permutations(range(4)))
def test_permuted_keys_permute_the_weights(name, qkv, mask, order):
    query, key, value = qkv
    context, weights = both(name, query, key, value, mask=mask)
    permuted = both(name, query, key[:, order], value[:, order], mask=mask[:, :, order])
    assert_same(permuted, (context, weights[:, :, order]))


@ALL_SCORES
@EXAMPLES
@given(qkv=QKV, time=st.integers(0, 3), garbage=st.sampled_from([-3.0, 8.0, 1e3]))
def test_causality_is_exact(name, qkv, time, garbage):
    """What query t gets does not change at all with keys later than its own time."""
    query, key, value = (x.astype("float32") for x in qkv)
    query, key = query[:, [0, 1, 2, 0]], key  # T = S = 4
    score = SCORES[name]
    score = score.bind(score.weights(np.random.default_rng(5), 5, 5, 3), "float32")
    options = dict(score=score, mask=causal_mask(4), return_attention_scores=True)
    before = to_numpy(attend(query, key, value, **options))
    query, key, value = query.copy(), key.copy(), value.copy()
    for array in (query, key, value):
        array[:, time + 1 :] = garbage
    after = to_numpy(attend(query, key, value, **options))
    for a, b in zip(after, before, strict=True):
        assert np.abs(a - b)[:, : time + 1].max() == 0


@ALL_SCORES
@EXAMPLES
@given(qkv=QKV, mask=SOME_MASK, dropout=st.sampled_from([0.0, 0.5]))
def test_context_does_not_depend_on_asking_for_weights(name, qkv, mask, dropout):
    options = dict(score=example_score(name), mask=mask, dropout=dropout, seed=7)
    context, _ = attend(*qkv, return_attention_scores=True, **options)
    assert np.array_equal(context, attend(*qkv, **options))


# Gradients


@ALL_SCORES
def test_numerical_gradients(rng, name):
    """Through score, bias, softmax and sum, in float64, with a mask and an empty row."""
    score = SCORES[name]
    q_size, k_size = score.sizes(2, 3)
    arguments = {
        "query": rng.normal(size=(1, 2, q_size)),
        "key": rng.normal(size=(1, 3, k_size)),
        "value": rng.normal(size=(1, 3, 2)),
        "bias": rng.normal(size=(2, 3)),
    }
    weights = score.weights(rng, q_size, k_size, 2)
    mask, cotangent = [[[1, 0, 1], [0, 0, 0]]], rng.normal(size=(1, 2, 2))

    def total(arguments):
        arguments = {**weights, **arguments}

        def bound(query, key):
            return score.function(query, key, **{name: arguments[name] for name in weights})

        inputs = (arguments[name] for name in ("query", "key", "value"))
        bias = arguments["bias_of_scores"]
        return ops.sum(attend(*inputs, bound, mask, bias) * tensor(cotangent))

    arguments["bias_of_scores"] = arguments.pop("bias")
    arguments.update(weights)
    found = differentiate(
        lambda *tensors: total(dict(zip(arguments, tensors, strict=True))), arguments.values()
    )
    gradients = dict(zip(arguments, to_numpy(found), strict=True))
    for name, gradient in gradients.items():
        expected = numerical_gradient(
            lambda moved, name=name: total({**arguments, name: moved}), arguments[name]
        )
        assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8, err_msg=name)
    assert (gradients["query"][0, 1] == 0).all()
    assert (gradients["key"][0, 1] == 0).all() and (gradients["value"][0, 1] == 0).all()


def gradients_of(score, weights, mask, dtype, bias=None):
    """A function of query, key, value: their gradients and those of the score's weights."""

    def total(query, key, value, *variables):
        variables = dict(zip(weights, variables, strict=True))
        results = attend(
            query,
            key,
            value,
            lambda q, k: score.function(q, k, **variables),
            mask,
            bias,
            return_attention_scores=True,
        )
        return sum(ops.sum(ops.cast(x, "float32") ** 2) for x in results)

    variables = [ops.cast(array, dtype) for array in weights.values()]
    return lambda *inputs: differentiate(total, [*inputs, *variables])


@ALL_SCORES
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_gradients_where_nothing_may_be_attended(rng, name, bad):
    """0 for an empty row and for keys and values that nobody sees, whatever they hold."""
    score = SCORES[name]
    tensors, exact, weights = draw(rng, score, dtype="float32")
    mask = RANDOM.copy()
    mask[:, :, 3] = False
    query, key, value = (to_numpy(x).copy() for x in tensors)
    clean = gradients_of(score, weights, mask, "float32")(*map(tensor, (query, key, value)))
    query[0, 2], key[:, 3], value[:, 3] = bad, bad, bad
    spoiled = gradients_of(score, weights, mask, "float32")(*map(tensor, (query, key, value)))
    clean, spoiled = to_numpy(clean), to_numpy(spoiled)
    for c, s in zip(clean, spoiled, strict=True):
        assert np.isfinite(s).all()
        assert_allclose(s, c, rtol=1e-6, atol=1e-6)
    assert (to_numpy(spoiled[0])[0, 2] == 0).all()
    assert (to_numpy(spoiled[1])[:, 3] == 0).all() and (to_numpy(spoiled[2])[:, 3] == 0).all()
    assert all((to_numpy(g) != 0).any() for g in spoiled)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["scaled_dot", "additive_bias"])
def test_finite_gradients(run, rng, name, dtype):
    """Case C11 for attend: the same in every mode and precision, with NaN behind the mask."""
    score = SCORES[name]
    tensors, exact, weights = draw(rng, score)
    query, key, value = (to_numpy(x).copy() for x in tensors)
    key[0, 4:], value[0, 4:] = np.nan, -np.inf
    mask = combine_masks(padding_mask(LENGTHS, S), RANDOM)
    inputs = [ops.cast(x, dtype) for x in (query, key, value)]
    for gradient in run(gradients_of(score, weights, mask, dtype), *inputs):
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any()


@pytest.mark.parametrize(
    "mask", [np.zeros((1, 1, 2), bool), np.zeros((1, 3, 2), bool)], ids=["broadcast", "whole"]
)
def test_equal_masks_give_equal_gradients(mask):
    """A mask [B, 1, S] is no other mask than [B, T, S]: a hidden row's NaN stays hidden."""
    query = tensor([[[np.nan, 1.0]] * 3])
    key = ops.ones((1, 2, 2))
    weights = {"v": np.ones(2), "bias": np.ones(2)}
    for gradient in gradients_of(SCORES["additive_bias"], weights, mask, "float32")(
        query, key, key
    ):
        assert np.array_equal(gradient, np.zeros(gradient.shape))


# Dropout


def test_weights_come_from_before_dropout(rng, run):
    """Case C12: rows of the weights sum to 1, while the context had half of them dropped."""
    tensors, _, _ = draw(rng, SCORES["dot"], dtype="float32")
    identity = np.broadcast_to(np.eye(S, dtype="float32"), (B, S, S))
    query, key, _ = tensors

    def compute(query, key, value):
        return attend(query, key, value, dropout=0.5, seed=11, return_attention_scores=True)

    context, weights = run(compute, query, key, identity)
    assert_allclose(weights.sum(-1), np.ones((B, T)), rtol=1e-6)
    undropped = attend(query, key, identity, return_attention_scores=True)[1]
    assert_allclose(weights, undropped, rtol=1e-6)
    # With the identity as value the context shows the weights used: dropped, or doubled.
    dropped = context == 0
    assert 0 < dropped.sum() < dropped.size
    assert_allclose(context[~dropped], 2 * weights[~dropped], rtol=1e-6)


def test_seeded_dropout_is_repeatable(rng):
    tensors, _, _ = draw(rng, SCORES["dot"], dtype="float32")
    first = attend(*tensors, dropout=0.5, seed=11)
    assert np.array_equal(first, attend(*tensors, dropout=0.5, seed=11))
    assert not np.array_equal(first, attend(*tensors, dropout=0.5, seed=12))
    generator, again = SeedGenerator(11), SeedGenerator(11)
    drawn = [attend(*tensors, dropout=0.5, seed=generator) for _ in range(2)]
    assert not np.array_equal(*drawn)
    for context in drawn:
        assert np.array_equal(context, attend(*tensors, dropout=0.5, seed=again))
    assert np.array_equal(attend(*tensors, dropout=0.0, seed=11), attend(*tensors))


# Bias


def test_bias_is_added_after_the_upcast(run, dtype):
    """-1e9 is -inf in float16; added in float32 it hides a key without making NaN."""
    query, key = ops.zeros((3, 1, 2), dtype), ops.zeros((3, 3, 2), dtype)
    value = ops.cast([[[1.0], [2.0], [4.0]]] * 3, dtype)
    bias = np.array([[[0, -1e9, 0]], [[-1e9, -1e9, -1e9]], [[1e9, 0, 0]]], "float32")
    context = run(lambda *qkv: attend(*qkv, bias=bias), query, key, value)
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-3
    assert_allclose(context[:, 0, 0], [2.5, 7 / 3, 1], rtol=tolerance)


def test_bias_of_minus_infinity_is_a_mask(run, rng, dtype, assert_close):
    """Also where it forbids a whole row, and where the value that it hides is NaN."""
    tensors, exact, _ = draw(rng, SCORES["scaled_dot"], dtype=dtype)
    query, key, value = tensors
    bias = rng.normal(size=(B, T, S)).astype("float32")
    bias[~RANDOM] = -np.inf
    bias[:, :, 6] = -np.inf
    value = ops.concatenate([value[:, :6], ops.full((B, 1, Dv), ops.cast(np.nan, dtype))], 1)
    compute = attended(SCORES["scaled_dot"], {}, bias=bias)
    actual = run(compute, query, key, value)
    expected = ref.attend(*exact, scores_bias=bias)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, dtype)
    assert (actual[1][bias == -np.inf] == 0).all()
    assert (actual[0][0, 2] == 0).all() and (actual[1][0, 2] == 0).all()


def test_gradients_with_a_bias_of_minus_infinity(rng):
    tensors, _, _ = draw(rng, SCORES["scaled_dot"], dtype="float32")
    bias = np.where(RANDOM, 0.5, -np.inf).astype("float32")
    *gradients, of_bias = to_numpy(
        differentiate(lambda *x: attend(*x[:3], bias=x[3]) ** 2, [*tensors, bias])
    )
    assert all(np.isfinite(g).all() for g in gradients)
    assert (of_bias[~RANDOM] == 0).all() and (of_bias[RANDOM] != 0).any()


def test_the_lowest_number_as_a_bias_next_to_a_mask():
    """An additive mask of the lowest finite number, as other libraries make it, still sums to 1."""
    lowest = np.full((1, 3), np.finfo("float32").min, "float32")
    query, key = np.ones((1, 2), "float32"), np.zeros((3, 2), "float32")
    value = np.array([[2.0], [4.0], [9.0]], "float32")
    context, weights = attend(
        query, key, value, mask=[[1, 1, 0]], bias=lowest, return_attention_scores=True
    )
    assert_allclose(weights, [[0.5, 0.5, 0]])
    assert_allclose(context, [[3.0]])


# Reports from elsewhere; the numbers are those of the cases, or follow from them by hand

QUERY = np.array([[[1.0, 0.0], [0.0, 1.0]]])
MEMORY = np.array([[[1.0, 2.0], [3.0, 5.0], [5.0, 9.0]]])
CASE_TOLERANCE = {**TOLERANCES, "float64": 1e-6, "float32": 1e-6}  # the answers have 7 digits


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_query_that_may_attend_to_nothing(run, dtype, dropout):
    """Case C02."""
    options = dict(mask=[[[1, 1, 0], [0, 0, 0]]], dropout=dropout, seed=1)

    def compute(query, memory):
        asked = attend(query, memory, memory, return_attention_scores=True, **options)
        return *asked, attend(query, memory, memory, **options)

    context, weights, context_alone = run(compute, ops.cast(QUERY, dtype), ops.cast(MEMORY, dtype))
    assert np.array_equal(context, context_alone)
    assert np.isfinite(context).all()
    assert (context[0, 1] == 0).all() and (weights[0, 1] == 0).all()
    assert weights[0, 0].sum() == pytest.approx(1, rel=CASE_TOLERANCE[dtype])
    if dropout == 0:
        expected = [2.608859, 4.413289]
        assert_allclose(context[0, 0], expected, rtol=CASE_TOLERANCE[dtype])


@pytest.mark.parametrize("size", [40, 100])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_large_half_precision_numbers(run, half, size):
    """Case C03: d = 64 and q all 40 (and 100); keys of as much, of one less, and of -1.

    The products are 102400 and 640000, and 80000 when scaled; float16 ends at 65504.
    """
    query = ops.full((1, 1, 64), ops.cast(size, half))
    key = ops.cast(np.repeat([[[size], [size - 1], [-1]]], 64, -1), half)

    def compute(query, key):
        scores = (scaled_dot_score, dot_score)
        return [attend(query, key, key, s, return_attention_scores=True) for s in scores]

    for context, weights in run(compute, query, key):
        assert weights.tolist() == [[[1, 0, 0]]]
        assert (context == size).all()


def test_floating_mask_and_bias():
    """Case C05: refused as a mask, with the way out; right as a bias."""
    query, value = [[[1.0, 0.0]]], [[[1.0, 2.0], [3.0, 4.0]]]
    additive = np.array([[[0, -1e9]]], "float32")
    with pytest.raises(ValueError, match=r"(?s)boolean.*True = may attend.*attention_bias"):
        attend(query, value, value, mask=additive)
    assert to_numpy(attend(query, value, value, bias=additive)).tolist() == [[[1, 2]]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.astype("int32"),
        np.ndarray.tolist,
        lambda m: tuple(map(tuple, m.tolist())),
        tensor,
    ],
)
def test_forms_of_one_mask(rng, convert, causal):
    """Case C16."""
    tensors, _, _ = draw(rng, SCORES["dot"])
    causal = causal_mask(T, S) if causal else None
    expected = attend(*tensors, mask=combine_masks(RANDOM, causal))
    mask = combine_masks(convert(RANDOM), causal)
    assert np.array_equal(attend(*tensors, mask=mask), expected)
    if causal is None:
        assert np.array_equal(attend(*tensors, mask=convert(RANDOM)), expected)


def test_masked_values_may_be_anything(run, dtype):
    """Case C19: with the mask as [T, S], and broadcast from one row."""
    memory = MEMORY.copy()
    memory[0, 2] = np.nan, np.inf
    row = [True, True, False]

    def compute(query, memory):
        options = dict(return_attention_scores=True)
        return [attend(query, memory, memory, mask=m, **options) for m in ([row], [row, row])]

    for context, weights in run(compute, ops.cast(QUERY, dtype), ops.cast(memory, dtype)):
        expected = [[2.608859, 4.413289], [2.785916, 4.678875]]
        assert_allclose(context[0], expected, rtol=CASE_TOLERANCE[dtype])
        assert (weights[:, :, 2] == 0).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
def test_empty_and_single(run, sizes, masked):
    """Case C21: every score; without keys the context is 0."""
    batch, T_, S_ = sizes
    query, key = np.ones((batch, T_, 5), "float32"), np.ones((batch, S_, 5), "float32")
    value = np.ones((batch, S_, 2), "float32")
    mask = np.ones((batch, T_, S_), bool) if masked else None

    def compute(*qkv):
        results = []
        for score in SCORES.values():
            weights = score.weights(np.random.default_rng(0), 5, 5, 3)
            results.append(attended(score, weights, mask=mask, dtype="float32")(*qkv))
        return results

    for context, weights in run(compute, query, key, value):
        assert context.shape == (batch, T_, 2) and weights.shape == sizes
        assert_allclose(context, np.full((batch, T_, 2), 0 if S_ == 0 else 1), rtol=1e-6)
        assert_allclose(weights.sum(-1), np.full((batch, T_), S_ > 0), rtol=1e-6)


# Input of other kinds, and errors


def test_integers_count_as_the_numbers_they_are():
    """[[1, 0]] is [[1.0, 0.0]]: the weights are not rounded to integers."""
    context = to_numpy(attend([[1, 0]], [[1, 2], [3, 5]], [[1, 2], [3, 5]]))
    assert_allclose(context, [[2.608859, 4.413289]], rtol=1e-6)


def ones(*shape):
    return np.ones(shape, "float32")


GOOD = (ones(2, 5, 11), ones(2, 7, 11), ones(2, 7, 17))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_masks_are_refused(dtype):
    with pytest.raises(ValueError, match="attention_bias"):
        attend(*GOOD, mask=np.ones((2, 5, 7), dtype))


@pytest.mark.parametrize(
    "shape",
    [
        (2, 5, 6),
        (2, 5, 8),
        (2, 4, 7),
        (3, 1, 7),
        (3, 5, 7),
        (5, 6),
        (2, 7),
        (7, 5),
        (7,),
        (),
        (1, 2, 5, 7),
        (2, 3, 5, 7),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(shape):
    """Never broadcast to what was not said; [B, S] is not [T, S]."""
    with pytest.raises(ValueError, match=r"(?s)mask") as error:
        attend(*GOOD, mask=np.ones(shape, bool))
    assert str(shape) in str(error.value)
    with pytest.raises(ValueError, match=r"(?s)attention_bias") as error:
        attend(*GOOD, bias=ones(*shape))
    assert str(shape) in str(error.value)


def test_a_mask_does_not_stretch_what_it_masks():
    """One key does not become seven because the mask has seven columns; nor one sample three."""
    with pytest.raises(ValueError, match="mask"):
        attend(ones(2, 5, 11), ones(2, 1, 11), ones(2, 1, 17), mask=np.ones((2, 5, 7), bool))
    with pytest.raises(ValueError, match="mask"):
        attend(ones(1, 5, 11), ones(1, 7, 11), ones(1, 7, 17), mask=np.ones((3, 5, 7), bool))


@pytest.mark.parametrize("dtype", [bool, "int32"])
def test_a_bias_that_is_a_mask_is_refused(dtype):
    with pytest.raises(ValueError, match=r"(?s)attention_bias.*mask"):
        attend(*GOOD, bias=np.ones((2, 5, 7), dtype))


@pytest.mark.parametrize(
    "qkv, words",
    [
        ((ones(2, 5, 11), ones(2, 7, 13), ones(2, 7, 17)), r"(?s)query.*key.*11.*13"),
        ((ones(2, 5, 11), ones(2, 7, 11), ones(2, 6, 17)), r"(?s)key.*value.*7.*6"),
        ((ones(2, 5, 11), ones(3, 7, 11), ones(3, 7, 17)), r"(?s)key|value"),
        ((ones(2, 5, 11), ones(2, 7, 11), ones(3, 7, 17)), r"(?s)value"),
        ((ones(2, 11), ones(2, 7, 11), ones(2, 7, 17)), r"(?s)rank.*\(2, 11\)"),
        ((ones(2, 5, 11), ones(2, 7, 11), ones(7, 17)), r"(?s)rank.*\(7, 17\)"),
        ((ones(11), ones(11), ones(11)), r"(?s)rank.*\(11,\)"),
    ],
)
def test_inputs_that_do_not_fit_together(qkv, words):
    with pytest.raises(ValueError, match=words):
        attend(*qkv)


@pytest.mark.parametrize("dropout", [-0.1, 1, 1.0, 1.5, float("nan")])
def test_dropout_outside_of_its_range(dropout):
    with pytest.raises(ValueError, match="dropout"):
        attend(*GOOD, dropout=dropout)
