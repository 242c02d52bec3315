"""LuongAttention: its score modes; what all layers share is in test_layers."""

import keras
import numpy as np
import pytest
import reference as ref
import reference_local
from backend import tensor, to_numpy
from conftest import MODES, numerical_gradient, rounded
from keras import ops
from test_layers import (
    ALL_MASKED,
    LAYER_TOLERANCES,
    MASKS,
    B,
    Dk,
    Dq,
    Dv,
    S,
    T,
    U,
    both,
    close,
    gradients,
    randomise,
    refused,
)

from keras_attention import LuongAttention, ScaledDotProductAttention
from keras_attention.scores import location_score

KEY_SIZES = {"dot": Dq, "scaled_dot": Dq, "general": Dk, "concat": Dk}
ALL_MODES = pytest.mark.parametrize("score_mode", KEY_SIZES)


def built(score_mode, **arguments):
    if score_mode == "concat":
        arguments.setdefault("units", U)
    layer = LuongAttention(score_mode, **arguments)
    layer.build((B, T, Dq), (B, S, Dv), (B, S, KEY_SIZES[score_mode]))
    return randomise(layer)


def draw(rng, score_mode, dtype="float32"):
    """Query, value, key as tensors, and their exact values."""
    shapes = (B, T, Dq), (B, S, Dv), (B, S, KEY_SIZES[score_mode])
    return zip(*(rounded(rng.normal(size=shape), dtype) for shape in shapes), strict=True)


def expected(layer, query, value, key, mask=None):
    """Equation 8 with the layer's public sub-layers and weight."""

    def exact(weight):
        return rounded(weight, layer.compute_dtype)[1]

    weights = {}
    if layer.score_mode == "general":
        weights = {"kernel": exact(layer.key_projection.kernel).T}
    elif layer.score_mode == "concat":
        halves = exact(layer.query_projection.kernel), exact(layer.key_projection.kernel)
        weights = {"kernel": np.concatenate(halves), "v": exact(layer.v)}
    return ref.luong_attention(query, key, value, layer.score_mode, mask, **weights)


@ALL_MODES
@pytest.mark.parametrize("policy", LAYER_TOLERANCES)
def test_equals_the_equation(rng, score_mode, policy):
    layer = built(score_mode, dtype=policy)
    tensors, arrays = draw(rng, score_mode, layer.compute_dtype)
    if score_mode == "dot":  # scores of some units, not of tens: half precision rounds them
        tensors, arrays = zip(*(rounded(x / 2, layer.compute_dtype) for x in arrays), strict=True)
    close(both(layer, *tensors), expected(layer, *arrays), policy)
    actual = both(layer, *tensors, **MASKS, use_causal_mask=True)
    close(actual, expected(layer, *arrays, ALL_MASKED), policy)


@pytest.mark.parametrize("score_mode", ["dot", "concat"])
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_equals_the_equation_when_compiled(rng, score_mode, mode):
    layer = built(score_mode)
    tensors, arrays = draw(rng, score_mode)
    compute = MODES[mode](lambda *args: both(layer, *args, **MASKS, use_causal_mask=True))
    close(compute(*tensors), expected(layer, *arrays, ALL_MASKED))


@ALL_MODES
def test_memory_and_one_step(rng, score_mode):
    layer = built(score_mode)
    (query, value, key), _ = draw(rng, score_mode)
    context, weights = both(layer, query, value, key)
    memory = layer.precompute(value, key)
    for t in range(T):
        close(both(layer, query[:, t], memory=memory), (context[:, t], weights[:, t]))


@ALL_MODES
def test_poison_in_padding_reaches_no_gradient(rng, score_mode):
    layer = built(score_mode)
    (query, value, key), _ = draw(rng, score_mode)
    mask = MASKS["value_mask"]
    hidden = tensor(~mask)[..., None]
    variables = layer.trainable_variables

    def context(*args):
        return layer(*args, value_mask=mask)

    clean = gradients(context, query, value, key, variables=variables)
    value, key = (ops.where(hidden, np.nan, x) for x in (value, key))
    close(gradients(context, query, value, key, variables=variables), clean)


@pytest.mark.parametrize(
    "score_mode, scores",
    [("dot", [1.0, 4.0]), ("scaled_dot", [1 / 2**0.5, 4 / 2**0.5]), ("general", [2.0, 6.0])],
)
def test_scores_by_hand(score_mode, scores):
    """Query (1, 2), keys (1, 0) and (0, 2), W = [[0, 1], [1, 1]]: q^T W = (2, 3)."""
    layer = LuongAttention(score_mode)
    query = np.array([[1.0, 2.0]])
    value = np.array([[[1.0, 0.0], [0.0, 2.0]]])
    layer.build(query.shape, value.shape)
    if score_mode == "general":
        layer.set_weights([np.array([[0.0, 1.0], [1.0, 1.0]]).T])
    weights = np.exp(scores) / np.exp(scores).sum()
    close(both(layer, query, value), (weights[None] * [[1.0, 2.0]], weights[None]))


def test_concat_by_hand():
    """W = [1; -1], v = 2: scores 2 tanh(q - k)."""
    layer = LuongAttention("concat", units=1)
    layer.build((1, 1), (1, 2, 1))
    weights = {w.path.split("/", 1)[1]: w for w in layer.weights}
    weights["query/kernel"].assign([[1.0]])
    weights["key/kernel"].assign([[-1.0]])
    weights["v"].assign([2.0])
    scores = 2 * np.tanh([0.5, -1.0])
    alignment = np.exp(scores) / np.exp(scores).sum()
    _, found = both(layer, np.array([[1.0]]), np.array([[[0.5], [2.0]]]))
    close(found, alignment[None])


def test_scaled_dot_is_scaled_dot_product_attention(rng):
    (query, value, key), _ = draw(rng, "scaled_dot")
    close(
        both(LuongAttention("scaled_dot"), query, value, key),
        both(ScaledDotProductAttention(), query, value, key),
    )


@ALL_MODES
def test_weights_of_each_mode(score_mode):
    shapes = {
        "dot": [],
        "scaled_dot": [],
        "general": [("key/kernel", (Dk, Dq))],
        "concat": [("v", (U,)), ("query/kernel", (Dq, U)), ("key/kernel", (Dk, U))],
    }
    layer = built(score_mode, name="attention")
    found = [(w.path.removeprefix("attention/"), w.shape) for w in layer.weights]
    assert found == shapes[score_mode]


def test_units_of_concat_default_to_the_size_of_the_query():
    layer = LuongAttention("concat")
    layer.build((B, T, Dq), (B, S, Dv))
    assert layer.v.shape == (Dq,) and layer.get_config()["units"] is None


def test_default_is_dot():
    assert LuongAttention().score_mode == "dot"


@ALL_MODES
def test_config_of_each_mode(score_mode):
    layer = built(score_mode, kernel_initializer=keras.initializers.HeNormal(seed=2))
    config = layer.get_config()
    assert config["score_mode"] == score_mode
    again = LuongAttention.from_config(config)
    assert again.get_config() == config
    again.build((B, T, Dq), (B, S, Dv), (B, S, KEY_SIZES[score_mode]))
    again.set_weights(layer.get_weights())
    (query, value, key), _ = draw(np.random.default_rng(0), score_mode)
    close(both(again, query, value, key), both(layer, query, value, key))


# The location score

M = 4  # rows of W, fewer than memory steps


def located(max_memory=M, **arguments):
    layer = LuongAttention("location", max_memory=max_memory, **arguments)
    layer.build((B, T, Dq), (B, S, Dv), (B, S, Dk))
    return randomise(layer)


def expected_by_location(layer, query, value, mask=None, memory_mask=None):
    """A softmax over the words that W has rows for; all of them within reach of position 0."""
    W = rounded(layer.location_kernel, layer.compute_dtype)[1].T
    memory_mask = np.ones((B, S), bool) if memory_mask is None else memory_mask
    mask = np.ones((B, T, S), bool) if mask is None else mask
    scores = reference_local.location_scores(query, W, memory_mask)
    positions = np.zeros((B, T))
    return reference_local.local_attention(scores, value, positions, S, memory_mask, mask, False)


@pytest.mark.parametrize("max_memory", [1, M, S, S + 3])
@pytest.mark.parametrize("policy", LAYER_TOLERANCES)
def test_location_equals_the_equation(rng, max_memory, policy):
    layer = located(max_memory, dtype=policy)
    (query, value, key), (q, v, _) = draw(rng, "general", layer.compute_dtype)
    close(both(layer, query, value, key), expected_by_location(layer, q, v), policy)
    memory_mask = MASKS["value_mask"] & MASKS["key_mask"]
    right = expected_by_location(layer, q, v, ALL_MASKED, memory_mask)
    close(both(layer, query, value, key, **MASKS, use_causal_mask=True), right, policy)


def test_location_in_every_mode(rng, run):
    layer = located()
    (query, value, key), (q, v, _) = draw(rng, "general")
    value = ops.where(np.arange(S)[:, None] < M, value, np.nan)  # nobody attends to these
    found = run(lambda *x: both(layer, *x), query, value, key)
    close(found, expected_by_location(layer, q, v))


def test_location_by_hand():
    """W = [[1], [2]], query 3: scores 3 and 6; the third word has no row."""
    layer = LuongAttention("location", max_memory=2)
    layer.build((1, 1), (1, 3, 1))
    layer.set_weights([np.array([[1.0, 2.0]])])
    weights = np.append(np.exp([3.0, 6.0]) / np.exp([3.0, 6.0]).sum(), 0)
    value = np.array([[[1.0], [10.0], [np.nan]]])
    context = [[weights[0] + 10 * weights[1]]]
    close(both(layer, np.array([[3.0]]), value), (context, weights[None]))


def test_location_counts_from_the_first_real_step(rng):
    layer = located()
    (query, value, key), _ = draw(rng, "general")
    context, weights = both(layer, query, value, key)
    more = [(0, 0), (3, 0), (0, 0)]
    padded, keys = (np.pad(x, more, constant_values=np.nan) for x in (value, key))
    mask = np.pad(np.ones((B, S), bool), [(0, 0), (3, 0)])
    found = both(layer, query, padded, keys, value_mask=mask)
    close((found[0], found[1][..., 3:]), (context, weights))


def test_location_where_all_rows_are_of_masked_words(rng):
    """The caller hides the first M words: nothing is left, not even the words near the end."""
    (query, value, key), _ = draw(rng, "general")
    mask = np.broadcast_to(np.arange(S) >= M, (B, T, S))
    for result in both(located(), query, value, key, attention_mask=mask):
        np.testing.assert_array_equal(result, 0)


def test_location_score_is_what_the_layer_scores_with(rng, run):
    layer = located()
    (query, value, key), (q, _, _) = draw(rng, "general")
    kernel = layer.location_kernel.value
    scores = run(lambda query, value: location_score(query, value, kernel), query, value)
    right = reference_local.location_scores(q, to_numpy(kernel).T, np.ones((B, S), bool))
    close(scores, right)
    _, weights = both(layer, query, value, key)
    close(ops.softmax(scores), weights)


def test_location_score_of_a_kernel_that_does_not_fit():
    with pytest.raises(ValueError, match=r"`kernel` must have shape \[Dq, M\] = \(3, 5\)"):
        location_score(np.ones((2, 3)), np.ones((4, 6)), np.ones((2, 5)))


def test_location_gradients(rng):
    """Of W (only rows that are used), of the query and of the values; the keys have none."""
    layer = located(S + 2, dtype="float64")
    tensors, _ = draw(rng, "general", "float64")
    (kernel,) = layer.trainable_variables
    start = to_numpy(kernel)
    weights = np.random.default_rng(8).normal(size=(B, T, Dv))

    def loss(x):
        kernel.assign(x)
        return np.sum(layer(*tensors) * weights)

    found = gradients(layer, *tensors, variables=[kernel])
    kernel.assign(start)
    close(found[3], numerical_gradient(loss, start))
    assert not found[2].any() and not found[3][:, S:].any()


# The learned scale


@pytest.mark.parametrize("score_mode", ["dot", "general"])
def test_scale_multiplies_the_scores(rng, score_mode):
    layer = built(score_mode, scale=True, dtype="float64")
    (query, value, key), (q, v, k) = draw(rng, score_mode, "float64")
    layer.g.assign(0.3)
    close(both(layer, query, value, key), expected(layer, 0.3 * q, v, k), "float64")
    fixed = np.random.default_rng(8).normal(size=(B, T, Dv))

    def loss(g):
        layer.g.assign(g)
        return np.sum(layer(query, value, key) * fixed)

    (*_, found) = gradients(layer, query, value, key, variables=[layer.g])
    close(found, numerical_gradient(loss, np.array(0.3)))


def test_scale_starts_at_1(rng):
    layer = LuongAttention("dot", scale=True)
    (query, value, key), _ = draw(rng, "dot")
    close(both(layer, query, value, key), both(LuongAttention("dot"), query, value, key))
    assert [w.path.split("/")[-1] for w in layer.trainable_variables] == ["g"]


# Bad input


@pytest.mark.parametrize("score_mode", ["cosine", "Dot", None, 3])
def test_unknown_score_mode(score_mode):
    """The message names the modes that exist."""
    with pytest.raises(ValueError) as error:
        LuongAttention(score_mode)
    message = str(error.value)
    assert "`score_mode`" in message and repr(score_mode) in message
    assert all(name in message for name in KEY_SIZES)


@pytest.mark.parametrize("units", [0, -3, 2.5, "7", True])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(
        ValueError, match=f"`units` must be a positive integer. Received: {units!r}"
    ):
        LuongAttention("concat", units=units)


@pytest.mark.parametrize("score_mode", ["dot", "scaled_dot", "general"])
def test_units_belong_to_concat(score_mode):
    with pytest.raises(
        ValueError, match="`units` belongs to score_mode 'concat' and .*. Received units=3"
    ):
        LuongAttention(score_mode, units=3)


@pytest.mark.parametrize("score_mode", ["dot", "scaled_dot"])
def test_dot_modes_need_equal_sizes(score_mode):
    arguments = {
        "query": np.zeros((B, T, Dq), "float32"),
        "value": np.zeros((B, S, Dk), "float32"),
    }
    words = f"'{score_mode}'", "query", "key", str((B, T, Dq)), str((B, S, Dk)), "general"
    refused(LuongAttention(score_mode), arguments, *words)


@pytest.mark.parametrize("score_mode", ["scaled_dot", "concat", "location"])
def test_scale_belongs_to_dot_and_general(score_mode):
    more = {"max_memory": 3} if score_mode == "location" else {}
    with pytest.raises(ValueError, match="`scale` belongs to score_mode 'dot' or 'general'"):
        LuongAttention(score_mode, scale=True, **more)


def test_max_memory_and_location_go_together():
    with pytest.raises(ValueError, match="`max_memory`, a positive integer, is needed with"):
        LuongAttention("location")
    with pytest.raises(ValueError, match="`max_memory` belongs to score_mode 'location'"):
        LuongAttention("dot", max_memory=5)
    for number in (0, -2, 1.5, True):
        with pytest.raises(ValueError, match="`max_memory` must be a positive integer"):
            LuongAttention("location", max_memory=number)
