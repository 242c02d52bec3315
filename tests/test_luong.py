"""LuongAttention: its score modes; what all layers share is in test_layers."""

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from conftest import MODES, rounded
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
    hidden = tf.constant(~mask)[..., None]
    variables = layer.trainable_variables

    def context(*args):
        return layer(*args, value_mask=mask)

    clean = gradients(context, query, value, key, variables=variables)
    value, key = (tf.where(hidden, np.nan, x) for x in (value, key))
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
