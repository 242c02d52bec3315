"""BahdanauAttention: its equation and weights; what all layers share is in test_layers."""

import keras
import numpy as np
import pytest
import reference as ref
from conftest import rounded
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
    randomise,
)

from keras_attention import BahdanauAttention


def built(**arguments):
    layer = BahdanauAttention(U, **arguments)
    layer.build((B, T, Dq), (B, S, Dv), (B, S, Dk))
    return randomise(layer)


def draw(rng, dtype="float32"):
    """Query, value, key as tensors, and their exact values."""
    shapes = (B, T, Dq), (B, S, Dv), (B, S, Dk)
    return zip(*(rounded(rng.normal(size=shape), dtype) for shape in shapes), strict=True)


def expected(layer, query, value, key, mask=None):
    """Appendix A.1.2 with the layer's public sub-layers and weight."""
    dtype = layer.compute_dtype
    query_kernel = rounded(layer.query_projection.kernel, dtype)[1]
    bias = rounded(layer.query_projection.bias, dtype)[1] if layer.use_bias else None
    key_kernel, v = (rounded(w, dtype)[1] for w in (layer.key_projection.kernel, layer.v))
    return ref.bahdanau_attention(query, key, value, query_kernel, key_kernel, v, bias, mask)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("policy", LAYER_TOLERANCES)
def test_equals_the_equation(rng, policy, use_bias):
    layer = built(dtype=policy, use_bias=use_bias)
    tensors, arrays = draw(rng, layer.compute_dtype)
    close(both(layer, *tensors), expected(layer, *arrays), policy)
    actual = both(layer, *tensors, **MASKS, use_causal_mask=True)
    close(actual, expected(layer, *arrays, ALL_MASKED), policy)


def test_one_step_by_hand():
    """W q = (1, -1), U k = (k, k), v = (1, 1): scores tanh(k + 1) + tanh(k - 1)."""
    layer = BahdanauAttention(2)
    layer.build((1, 1), (1, 3, 1))
    layer.query_projection.set_weights([np.array([[1.0, -1.0]])])
    layer.key_projection.set_weights([np.array([[1.0, 1.0]])])
    layer.v.assign([1.0, 1.0])
    query, value = np.array([[1.0]]), np.array([[[0.0], [1.0], [-1.0]]])
    scores = np.array([0.0, np.tanh(2), -np.tanh(2)])
    weights = np.exp(scores) / np.exp(scores).sum()
    close(both(layer, query, value), (np.array([[weights[1] - weights[2]]]), weights[None]))


def test_weights_and_their_names():
    layer = built(use_bias=True, name="attention")
    assert [(w.path, w.shape) for w in layer.weights] == [
        ("attention/v", (U,)),
        ("attention/query/kernel", (Dq, U)),
        ("attention/query/bias", (U,)),
        ("attention/key/kernel", (Dk, U)),
    ]
    assert len(built().weights) == 3
    assert isinstance(layer.query_projection, keras.layers.Dense)
    assert layer.query_projection.built and layer.key_projection.built


def test_the_context_is_made_of_values_that_are_not_projected(rng):
    layer = built()
    query, value, key = (rng.normal(size=shape) for shape in ((B, T, Dq), (B, S, Dv), (B, S, Dk)))
    context, weights = both(layer, query, value, key)
    close(context, np.einsum("bts,bsd->btd", weights, value))


def test_keys_are_projected_once_for_a_memory(rng):
    """The memory is (U h, h): a decoder's step multiplies by W only."""
    layer = built()
    value, key = rng.normal(size=(B, S, Dv)), rng.normal(size=(B, S, Dk))
    keys, values = layer.precompute(value, key)
    close(keys, key @ np.asarray(layer.key_projection.kernel))
    close(values, value)


def test_settings_of_bias(rng):
    layer = BahdanauAttention(
        U,
        use_bias=True,
        bias_initializer=keras.initializers.Constant(2.0),
        bias_regularizer=keras.regularizers.L2(0.5),
        bias_constraint=keras.constraints.MaxNorm(1.0),
    )
    layer.build((B, T, Dq))
    bias = layer.query_projection.bias
    close(bias, np.full(U, 2.0))
    assert float(sum(layer.losses)) == pytest.approx(0.5 * 4.0 * U)
    close(ops.norm(bias.constraint(bias)), 1.0)


@pytest.mark.parametrize("units", [0, -3, 2.5, "7", None, True])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(
        ValueError, match=f"`units` must be a positive integer. Received: {units!r}"
    ):
        BahdanauAttention(units)


def test_units_may_be_a_numpy_integer():
    layer = BahdanauAttention(np.int64(U))
    assert type(layer.get_config()["units"]) is int


def test_sizes_are_free():
    """No size of query, key, value and units depends on another."""
    context, weights = both(
        BahdanauAttention(1), np.ones((1, 2, 3)), np.ones((1, 4, 5)), np.ones((1, 4, 6))
    )
    assert (context.shape, weights.shape) == ((1, 2, 5), (1, 2, 4))
