"""What all attention layers share: the call, masks, memory, dropout, configs, Keras around them."""

import copy
import functools
import inspect
import json
import pickle
from typing import NamedTuple

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import (
    assert_allclose,
    compiled_loss,
    differentiate,
    dtype_of,
    float_limit,
    needs_float64,
    tensor,
    to_numpy,
    variable_of,
)
from conftest import MODES, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention import (
    BahdanauAttention,
    LuongAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
)

B, N, T, S, Dq, Dk, Dv, U = 2, 3, 5, 7, 11, 13, 17, 19

# Largest difference allowed, absolute for values around 1 and relative beyond. Half precision
# rounds after each projection, each to 2^-11 (float16) or 2^-8 (bfloat16).
LAYER_TOLERANCES = {
    "float64": float_limit(1e-12),
    "float32": float_limit(1e-5),
    "mixed_float16": 1e-2,
    "mixed_bfloat16": 8e-2,
}


# The four layers, each with its equation


class Kind(NamedTuple):
    """A layer and its equation: `reference(layer, query, key, value, mask, bias)`."""

    make: object
    reference: object
    key_size: int = Dk
    heads: tuple = ()

    def arrays(self, rng, T=T, S=S):
        """Query, value and key."""
        shapes = (B, T, Dq), (B, S, Dv), (B, S, self.key_size)
        return [rng.normal(size=shape) for shape in shapes]

    def build(self, rng=None, **arguments):
        """The layer, built, with random values in all of its weights, biases too."""
        layer = self.make(**arguments)
        layer.build((B, T, Dq), (B, S, Dv), (B, S, self.key_size))
        return randomise(layer, rng)

    def build_self(self, rng=None, size=Dq, **arguments):
        """The same for self-attention."""
        layer = self.make(**arguments)
        layer.build((B, T, size))
        return randomise(layer, rng)


def randomise(layer, rng=None):
    rng = np.random.default_rng(5) if rng is None else rng
    for variable in layer.trainable_variables:
        variable.assign(0.4 * rng.normal(size=variable.shape))
    return layer


def exact_weights(layer):
    """The layer's weights as it computes with them, in float64."""
    return [rounded(w, layer.compute_dtype)[1] for w in layer.trainable_variables]


def bahdanau_reference(layer, query, key, value, mask=None, bias=None):
    query_kernel, query_bias, key_kernel, v = exact_weights_by_name(
        layer, "query/kernel", "query/bias", "key/kernel", "v"
    )
    query, key = ref.project(query, query_kernel, query_bias), ref.project(key, key_kernel)
    return ref.attend(query, key, value, ref.additive, mask, bias, v=v)


def general_reference(layer, query, key, value, mask=None, bias=None):
    (kernel,) = exact_weights(layer)  # of the key's projection W h_s, [Dk, Dq]
    return ref.attend(query, key, value, ref.general, mask, bias, kernel=kernel.T)


def scaled_dot_reference(layer, query, key, value, mask=None, bias=None):
    return ref.scaled_dot_product_attention(query, key, value, mask, bias)


def multi_head_reference(layer, query, key, value, mask=None, bias=None):
    weights = exact_weights(layer)
    names = "query", "key", "value", "output"
    kernels, biases = dict(zip(names, weights[::2], strict=True)), None
    biases = dict(zip(names, weights[1::2], strict=True))
    output, weights = ref.multi_head_attention(query, key, value, kernels, biases, mask, bias)
    allowed = np.ones(weights.shape, bool)
    if mask is not None:
        allowed = allowed & (mask if np.ndim(mask) == 4 else mask[:, None])
    if bias is not None:
        allowed = allowed & ((bias if np.ndim(bias) == 4 else bias[:, None]) != -np.inf)
    # What the layer promises beyond the paper: a row that sees nothing is 0, not the output bias.
    return output * allowed.any(axis=(1, 3))[..., None], weights


def exact_weights_by_name(layer, *names):
    paths = {w.path.removeprefix(f"{layer.path}/"): w for w in layer.trainable_variables}
    assert sorted(paths) == sorted(names)
    return [rounded(paths[name], layer.compute_dtype)[1] for name in names]


LAYERS = {
    "bahdanau": Kind(
        lambda **arguments: BahdanauAttention(U, use_bias=True, **arguments), bahdanau_reference
    ),
    "luong": Kind(lambda **arguments: LuongAttention("general", **arguments), general_reference),
    "scaled_dot": Kind(ScaledDotProductAttention, scaled_dot_reference, key_size=Dq),
    "multi_head": Kind(
        lambda **arguments: MultiHeadAttention(N, 4, value_dim=6, **arguments),
        multi_head_reference,
        heads=(N,),
    ),
}
WITH_WEIGHTS = [name for name in LAYERS if name != "scaled_dot"]


@pytest.fixture(params=LAYERS)
def kind(request):
    return LAYERS[request.param]


@pytest.fixture(params=WITH_WEIGHTS)
def kind_with_weights(request):
    return LAYERS[request.param]


def close(actual, expected, dtype="float32"):
    """Equal within the tolerance stated for the dtype policy, at any depth of tuples."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            close(a, e, dtype)
        return
    actual, expected, limit = to_numpy(actual), to_numpy(expected), LAYER_TOLERANCES[dtype]
    assert actual.shape == expected.shape
    assert_allclose(actual, expected, rtol=limit, atol=limit)


def both(layer, *args, **kwargs):
    """Context and weights."""
    return layer(*args, return_attention_scores=True, **kwargs)


def gradients(function, *tensors, variables=()):
    """Gradients of a fixed weighted sum of the result, by the tensors and then the variables."""

    def products(*tensors):
        result = ops.cast(function(*tensors), "float64")
        return result * tensor(np.random.default_rng(8).normal(size=result.shape))

    return to_numpy(differentiate(products, tensors, variables))


QUERY_MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)
VALUE_MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1, 1]], bool)
KEY_MASK = np.array([[1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]], bool)
ATTENTION_MASK = np.random.default_rng(3).random((B, T, S)) < 0.8
ATTENTION_MASK[1, 1] = False  # a query that may attend to nothing
MASKS = {
    "query_mask": QUERY_MASK,
    "value_mask": VALUE_MASK,
    "key_mask": KEY_MASK,
    "attention_mask": ATTENTION_MASK,
}
ALL_MASKED = ref.layer_mask(B, T, S, **MASKS, causal=True)


# Against the reference


def test_equals_the_reference_in_every_mode(kind, mode, rng):
    """All masks at once; hidden steps hold NaN and Inf; graphs do not know batch and lengths."""
    layer = kind.build(rng, dtype="float32")
    query, value, key = kind.arrays(rng)
    query[~QUERY_MASK] = np.nan
    value[~VALUE_MASK], key[~KEY_MASK] = np.inf, np.nan
    expected = kind.reference(layer, query, key, value, ALL_MASKED)

    def compute(query, value, key):
        return both(layer, query, value, key, **MASKS, use_causal_mask=True)

    tensors = [tensor(x, "float32") for x in (query, value, key)]
    if mode == "graph":
        signature = [tf.TensorSpec((None, None, x.shape[-1])) for x in tensors]
        compute = tf.function(compute, input_signature=signature)
    else:
        compute = MODES[mode](compute)
    close(compute(*tensors), expected)


@pytest.mark.parametrize("masks", [{}, *({name: mask} for name, mask in MASKS.items())], ids=list)
def test_each_mask_alone(kind, rng, masks):
    layer = kind.build(rng, dtype="float64")
    query, value, key = kind.arrays(rng)
    expected = kind.reference(layer, query, key, value, ref.layer_mask(B, T, S, **masks))
    close(both(layer, query, value, key, **masks), expected, "float64")


@pytest.mark.parametrize("policy", [p for p in LAYER_TOLERANCES if p != "float32"])
def test_dtype_policies(kind, rng, policy):
    layer = kind.build(rng, dtype=policy)
    tensors, arrays = zip(*(rounded(x, layer.compute_dtype) for x in kind.arrays(rng)), strict=True)
    query, value, key = arrays
    expected = kind.reference(layer, query, key, value, ALL_MASKED)
    actual = both(layer, *tensors, **MASKS, use_causal_mask=True)
    assert [dtype_of(x) for x in actual] == [layer.compute_dtype] * 2
    close(actual, expected, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", LAYER_TOLERANCES)
def test_dtype_policies_in_every_mode(kind, rng, policy, mode):
    layer = kind.build(rng, dtype=policy)
    tensors, arrays = zip(*(rounded(x, layer.compute_dtype) for x in kind.arrays(rng)), strict=True)
    query, value, key = arrays
    expected = kind.reference(layer, query, key, value, ALL_MASKED)
    compute = MODES[mode](lambda *args: both(layer, *args, **MASKS, use_causal_mask=True))
    close(compute(*tensors), expected, policy)


def test_inputs_of_another_dtype_are_cast_to_the_compute_dtype(kind, rng):
    layer = kind.build(rng, dtype="mixed_bfloat16")
    query, value, key = kind.arrays(rng)
    tensors = [tensor(x, "float64") for x in (query, value, key)]
    assert dtype_of(layer(*tensors)) == "bfloat16"
    close(layer(*tensors), kind.reference(layer, query, key, value)[0], "mixed_bfloat16")


def test_key_is_value_where_none_is_given(kind, rng):
    layer = kind.make()
    query, value = rng.normal(size=(B, T, Dq)), rng.normal(size=(B, S, Dq))
    close(both(layer, query, value), both(layer, query, value, value))


# One step


def test_one_step_equals_a_sequence_of_length_1(kind, rng):
    layer = kind.build(rng)
    query, value, key = kind.arrays(rng, T=1)
    masks = {"value_mask": VALUE_MASK, "query_mask": np.array([[True], [False]])}
    mask, bias = ATTENTION_MASK[:, :1], rng.normal(size=(B, 1, S))
    many = both(layer, query, value, key, **masks, attention_mask=mask, attention_bias=bias)
    masks["query_mask"] = masks["query_mask"][:, 0]
    one = both(
        layer,
        query[:, 0],
        value,
        key,
        **masks,
        attention_mask=mask[:, 0],
        attention_bias=bias[:, 0],
    )
    context, weights = many
    close(one, (context[:, 0], weights[..., 0, :]))
    assert one[1].shape == (B, *kind.heads, S)
    close(
        layer(query[:, 0], value, key, **masks),
        layer(query, value, key, value_mask=VALUE_MASK, query_mask=masks["query_mask"][:, None])[
            :, 0
        ],
    )


@pytest.mark.tensorflow_only("tf.while_loop")
def test_one_step_with_memory_in_a_compiled_loop(kind, rng):
    """Step by step inside of one XLA program, equal to the whole sequence."""
    layer = kind.build(rng)
    query, value, key = (tensor(x, "float32") for x in kind.arrays(rng))
    memory = layer.precompute(value, key, value_mask=VALUE_MASK)

    @tf.function(jit_compile=True)
    def steps(query, memory):
        loop = tf.TensorArray("float32", size=T)
        for t in ops.arange(T):
            loop = loop.write(t, layer(query[:, t], memory=memory))
        return ops.transpose(loop.stack(), (1, 0, 2))

    close(steps(query, memory), layer(query, value, key, value_mask=VALUE_MASK))


# Memory


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("separate", [False, True], ids=["key_is_value", "key"])
def test_memory_equals_value(kind, rng, masked, separate):
    layer = kind.make()
    query, value = rng.normal(size=(B, T, Dq)), rng.normal(size=(B, S, Dq))
    key = (rng.normal(size=(B, S, Dq)),) if separate else ()
    mask = {"value_mask": VALUE_MASK} if masked else {}
    expected = both(layer, query, value, *key, **mask)
    memory = layer.precompute(value, *key, **mask)
    assert isinstance(memory, tuple) and len(memory) == (3 if masked else 2)
    close(both(layer, query, memory=memory), expected)
    close(layer(query, memory=list(memory)), expected[0])


def test_masks_at_the_call_are_anded_to_those_of_the_memory(kind, rng):
    layer = kind.build(rng)
    query, value, key = kind.arrays(rng)
    memory = layer.precompute(value, key, value_mask=VALUE_MASK)
    others = {name: mask for name, mask in MASKS.items() if name != "value_mask"}
    expected = both(layer, query, value, key, **MASKS, use_causal_mask=True)
    close(both(layer, query, memory=memory, **others, use_causal_mask=True), expected)
    plain = layer.precompute(value, key)
    close(both(layer, query, memory=plain, **MASKS, use_causal_mask=True), expected)


def test_memory_takes_the_mask_that_its_value_carries(kind, rng):
    layer = kind.build_self(rng)
    value = embedding(Dq)(VALUE_IDS)
    query = rng.normal(size=(B, T, Dq))
    memory = layer.precompute(value)
    close(both(layer, query, memory=memory), both(layer, query, value))
    np.testing.assert_array_equal(memory[2], VALUE_IDS != 0)


def test_memory_carries_gradients(kind, rng):
    layer = kind.build(rng)
    query, value, key = (x.astype("float32") for x in kind.arrays(rng))

    def with_memory(query, value, key):
        return layer(query, memory=layer.precompute(value, key, value_mask=VALUE_MASK))

    def without(query, value, key):
        return layer(query, value, key, value_mask=VALUE_MASK)

    close(
        gradients(with_memory, query, value, key, variables=layer.trainable_variables),
        gradients(without, query, value, key, variables=layer.trainable_variables),
    )


def test_memory_can_be_gathered(kind, rng):
    """As beam search does it: nothing of the memory is kept on the layer."""
    layer = kind.build(rng)
    query, value, key = kind.arrays(rng)
    memory = layer.precompute(value, key, value_mask=VALUE_MASK)
    order = [1, 0, 1]
    gathered = tuple(keras.ops.take(x, order, axis=0) for x in memory)
    expected = layer(query[order], value[order], key[order], value_mask=VALUE_MASK[order])
    close(layer(query[order], memory=gathered), expected)


# Weights on demand


@pytest.mark.parametrize("masks", [{}, {**MASKS, "use_causal_mask": True}], ids=["plain", "masks"])
def test_context_is_the_same_whether_weights_are_asked_for(kind, rng, masks):
    layer = kind.build(rng)
    tensors = kind.arrays(rng)
    context, weights = both(layer, *tensors, **masks)
    np.testing.assert_array_equal(context, layer(*tensors, **masks))
    assert weights.shape == (B, *kind.heads, T, S)


def test_context_is_the_same_with_dropout(kind, rng):
    """Same seed, same dropout, whether weights are asked for or not."""
    tensors = kind.arrays(rng)
    context, _ = both(kind.build(dropout=0.5, seed=3), *tensors, training=True)
    np.testing.assert_array_equal(context, kind.build(dropout=0.5, seed=3)(*tensors, training=True))


# Implicit masks

QUERY_IDS = np.array([[1, 2, 3, 4, 0], [5, 6, 7, 0, 0]])
VALUE_IDS = np.array([[1, 2, 3, 4, 5, 0, 0], [5, 6, 7, 0, 4, 2, 1]])


@functools.cache
def embedding(size=Dq):
    layer = keras.layers.Embedding(8, size, mask_zero=True)
    layer.build(())
    layer.set_weights([np.random.default_rng(4).normal(size=(8, size))])
    layer.trainable = False
    return layer


def plain(x):
    """The values without their Keras mask."""
    return tensor(np.asarray(x))


class MaskOf(keras.layers.Layer):
    """The mask that a tensor carries, as integers; -1 where it carries none."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        if mask is None:
            return keras.ops.full_like(inputs[..., 0], -1, dtype="int32")
        return keras.ops.cast(mask, "int32")

    def compute_mask(self, inputs, mask=None):
        return None


def explicit_masks(layer, **options):
    """What the layer gives for QUERY_IDS and VALUE_IDS with explicit masks and bare tensors."""
    query, value = (plain(embedding()(ids)) for ids in (QUERY_IDS, VALUE_IDS))
    masks = {"query_mask": QUERY_IDS != 0, "value_mask": VALUE_IDS != 0}
    return both(layer, query, value, **masks, **options)


def model_of_ids(layer, **options):
    """A Functional model of ids of unknown batch and lengths, with implicit masks only."""
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    query, value = (embedding()(x) for x in ids)
    return keras.Model(ids, layer(query, value, **options))


def test_implicit_masks_eagerly(kind):
    layer = kind.build_self()
    query, value = embedding()(QUERY_IDS), embedding()(VALUE_IDS)
    close(both(layer, query, value), explicit_masks(layer))
    causal = {"use_causal_mask": True, "attention_mask": ATTENTION_MASK}
    close(both(layer, query, value, **causal), explicit_masks(layer, **causal))


def test_implicit_masks_in_a_functional_model(kind):
    layer = kind.build_self()
    model = model_of_ids(layer, return_attention_scores=True)
    expected = explicit_masks(layer)
    close(model([QUERY_IDS, VALUE_IDS]), expected)
    close(model.predict([QUERY_IDS, VALUE_IDS], verbose=0), expected)


def test_implicit_masks_in_fit(kind_with_weights):
    """One step of gradient descent, equal to one made by hand with explicit masks."""
    layer, target = kind_with_weights.build_self(), np.ones((B, Dq), "float32")
    twin = kind_with_weights.build_self()
    twin.set_weights(layer.get_weights())
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    context = layer(*(embedding()(x) for x in ids))
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(context))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit([QUERY_IDS, VALUE_IDS], target, verbose=0)

    rows = (QUERY_IDS != 0).astype("float32")[..., None]

    def loss():
        context, _ = explicit_masks(twin)
        pooled = ops.sum(context * tensor(rows), 1) / tensor(rows.sum(1))
        return ops.mean((pooled - tensor(target)) ** 2)

    steps = to_numpy(differentiate(loss, variables=twin.trainable_variables))
    for trained, before, step in zip(layer.get_weights(), twin.get_weights(), steps, strict=True):
        close(trained, before - 0.5 * step)
    assert any(np.any(np.abs(np.asarray(step)) > 1e-3) for step in steps)


def test_explicit_mask_replaces_the_implicit_one(kind):
    layer = kind.build_self()
    query, value = embedding()(QUERY_IDS), embedding()(VALUE_IDS)
    value_mask, query_mask = VALUE_IDS != 2, QUERY_IDS != 6
    expected = both(layer, plain(query), plain(value), value_mask=value_mask)
    rows = {"query_mask": np.ones_like(QUERY_MASK)}
    close(both(layer, query, value, value_mask=value_mask, **rows), expected)
    expected = both(layer, plain(query), plain(value), query_mask=query_mask)
    columns = {"value_mask": np.ones_like(VALUE_MASK)}
    close(both(layer, query, value, query_mask=query_mask, **columns), expected)


def test_explicit_mask_replaces_the_implicit_one_in_a_functional_model(kind):
    layer = kind.build_self()
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    given = keras.Input((None,), dtype="bool")
    query, value = (embedding()(x) for x in ids)
    model = keras.Model([*ids, given], both(layer, query, value, value_mask=given))
    value_mask = VALUE_IDS != 2
    expected = both(
        layer,
        plain(embedding()(QUERY_IDS)),
        plain(embedding()(VALUE_IDS)),
        query_mask=QUERY_IDS != 0,
        value_mask=value_mask,
    )
    close(model.predict([QUERY_IDS, VALUE_IDS, value_mask], verbose=0), expected)


def test_masks_of_the_inputs_stay_and_the_context_carries_the_querys(kind):
    layer = kind.build_self()
    query, value = embedding()(QUERY_IDS), embedding()(VALUE_IDS)
    context, weights = both(layer, query, value)
    np.testing.assert_array_equal(MaskOf()(query), QUERY_IDS != 0)
    np.testing.assert_array_equal(MaskOf()(value), VALUE_IDS != 0)
    np.testing.assert_array_equal(MaskOf()(context), QUERY_IDS != 0)
    assert np.all(MaskOf()(weights) == -1)


def test_masks_travel_in_a_functional_model(kind):
    layer = kind.build_self()
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    query, value = (embedding()(x) for x in ids)
    context, weights = both(layer, query, value)
    model = keras.Model(ids, [MaskOf()(x) for x in (query, value, context, weights)])
    found = model.predict([QUERY_IDS, VALUE_IDS], verbose=0)
    for actual, expected in zip(found, (QUERY_IDS, VALUE_IDS, QUERY_IDS), strict=False):
        np.testing.assert_array_equal(actual, expected != 0)
    assert np.all(found[3] == -1)


@pytest.mark.parametrize("symbolic", [False, True])
def test_context_carries_an_explicit_query_mask(kind, rng, symbolic):
    layer = kind.build(rng)
    query, value, key = kind.arrays(rng)
    if symbolic:
        inputs = [keras.Input(x.shape[1:]) for x in (query, value, key)]
        given = keras.Input((T,), dtype="bool")
        outputs = both(layer, *inputs, query_mask=given)
        model = keras.Model([*inputs, given], [MaskOf()(x) for x in outputs])
        context_mask, weights_mask = model([query, value, key, QUERY_MASK])
    else:
        outputs = both(layer, query, value, key, query_mask=QUERY_MASK)
        context_mask, weights_mask = (MaskOf()(x) for x in outputs)
    np.testing.assert_array_equal(context_mask, QUERY_MASK)
    assert np.all(weights_mask == -1)


def test_no_mask_in_no_mask_out(kind, rng):
    context = kind.build(rng)(*kind.arrays(rng))
    assert np.all(MaskOf()(context) == -1)


def test_self_attention_with_one_argument(kind):
    """The implicit mask hides the padding as query and as key."""
    layer, x = kind.build_self(), embedding()(QUERY_IDS)
    real = QUERY_IDS != 0
    expected = both(layer, plain(x), plain(x), query_mask=real, value_mask=real)
    context, weights = both(layer, x)
    close((context, weights), expected)
    assert np.all(np.moveaxis(to_numpy(weights), -1, 1)[~real] == 0)
    np.testing.assert_array_equal(MaskOf()(context), real)
    ids = keras.Input((None,), dtype="int32")
    outputs = both(layer, embedding()(ids))
    model = keras.Model(ids, [*outputs, MaskOf()(outputs[0])])
    *actual, mask = model.predict(QUERY_IDS, verbose=0)
    close(actual, expected)
    np.testing.assert_array_equal(mask, real)
    close(both(layer, plain(x), mask=real), expected)
    close(both(layer, plain(x), query_mask=real), expected)


def test_chained_layers_pass_the_mask_on(kind):
    """Three layers in a row, each of which reads the mask from the one before."""
    layers, real = [kind.build_self() for _ in range(3)], QUERY_IDS != 0
    chained = expected = embedding()(QUERY_IDS)
    expected = plain(expected)
    for layer in layers:
        chained = layer(chained)
        expected = plain(layer(expected, expected, query_mask=real, value_mask=real))
    close(chained, expected)
    close(keras.Sequential([embedding(), *layers])(QUERY_IDS), expected)


# Properties

SMALL = settings(max_examples=8, deadline=None)
ALL_LAYERS = pytest.mark.parametrize("name", LAYERS)


@functools.cache
def built(name):
    return LAYERS[name].build(dtype="float64")


def draw(data, name):
    return LAYERS[name].arrays(np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))))


def draw_mask(data):
    """A mask `[B, S]` that leaves every sample at least one key, the same number for each."""
    count = data.draw(st.integers(1, S))
    mask = np.zeros((B, S), bool)
    for row in mask:
        row[data.draw(st.permutations(range(S)))[:count]] = True
    return mask


@ALL_LAYERS
@SMALL
@given(data=st.data())
def test_masked_key_equals_deleted_key(name, data):
    query, value, key = draw(data, name)
    mask = draw_mask(data)
    context, weights = both(built(name), query, value, key, value_mask=mask)
    kept = [x[mask].reshape(B, -1, x.shape[-1]) for x in (value, key)]
    expected_context, expected_weights = both(built(name), query, *kept)
    close(context, expected_context, "float64")
    weights = np.moveaxis(to_numpy(weights), -1, 1)
    assert np.all(weights[~mask] == 0)
    kept_weights = np.moveaxis(weights[mask].reshape(B, -1, *weights.shape[2:]), 1, -1)
    close(kept_weights, expected_weights, "float64")


@ALL_LAYERS
@SMALL
@given(data=st.data(), more=st.integers(1, 4))
def test_more_padding_changes_nothing(name, data, more):
    query, value, key = draw(data, name)
    mask = draw_mask(data)
    context, weights = both(built(name), query, value, key, value_mask=mask)
    value, key = (np.pad(x, ((0, 0), (0, more), (0, 0)), constant_values=1e6) for x in (value, key))
    padded, padded_weights = both(
        built(name), query, value, key, value_mask=np.pad(mask, ((0, 0), (0, more)))
    )
    close(padded, context, "float64")
    close(padded_weights[..., :S], weights, "float64")
    assert np.all(padded_weights[..., S:] == 0)


@ALL_LAYERS
@SMALL
@given(data=st.data())
def test_permuted_keys_permute_the_weights(name, data):
    query, value, key = draw(data, name)
    mask, order = draw_mask(data), data.draw(st.permutations(range(S)))
    context, weights = both(built(name), query, value, key, value_mask=mask)
    permuted, permuted_weights = both(
        built(name), query, value[:, order], key[:, order], value_mask=mask[:, order]
    )
    close(permuted, context, "float64")
    close(permuted_weights, to_numpy(weights)[..., order], "float64")


@ALL_LAYERS
@SMALL
@given(data=st.data(), t=st.integers(0, T - 1))
def test_causality_is_exact(name, data, t):
    """Whatever comes after query t's last key changes not a bit of its output."""
    query, value, key = draw(data, name)
    last = t + S - T
    before = both(built(name), query, value, key, use_causal_mask=True)
    value[:, last + 1 :], key[:, last + 1 :], query[:, t + 1 :] = 1e3, -1e3, 7.0
    after = both(built(name), query, value, key, use_causal_mask=True)
    np.testing.assert_array_equal(before[0][:, : t + 1], after[0][:, : t + 1])
    np.testing.assert_array_equal(before[1][..., : t + 1, :], after[1][..., : t + 1, :])


@ALL_LAYERS
@SMALL
@given(data=st.data())
def test_rows_of_weights_sum_to_1_or_0(name, data):
    query, value, key = draw(data, name)
    mask = np.random.default_rng(data.draw(st.integers(0, 999))).random((B, T, S)) < 0.2
    _, weights = both(built(name), query, value, key, attention_mask=mask)
    sums = to_numpy(weights).sum(-1)
    expected = mask.any(-1).astype("float64")
    expected = expected[:, None] if LAYERS[name].heads else expected
    assert_allclose(sums, np.broadcast_to(expected, sums.shape), atol=1e-12)


# Causal masks of unequal lengths


@pytest.mark.parametrize("queries", [1, 3, S, S + 2])
def test_causal_mask_aligns_at_the_bottom_right(kind, rng, queries):
    layer = kind.build(rng, dtype="float64")
    query, value, key = kind.arrays(rng, T=queries)
    mask = ref.layer_mask(B, queries, S, causal=True)
    expected = kind.reference(layer, query, key, value, mask)
    close(both(layer, query, value, key, use_causal_mask=True), expected, "float64")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_causal_mask_in_a_graph_of_unknown_lengths(kind, rng):
    layer = kind.build(rng)
    query, value, key = (x.astype("float32") for x in kind.arrays(rng))
    signature = [tf.TensorSpec((None, None, x.shape[-1])) for x in (query, value, key)]

    @functools.partial(tf.function, input_signature=signature)
    def compute(*tensors):
        return both(layer, *tensors, use_causal_mask=True)

    for start in (0, 3):
        tensors = query[:, start:], value, key
        close(compute(*tensors), both(layer, *tensors, use_causal_mask=True))
    assert compute.experimental_get_tracing_count() == 1


# Queries that may attend to nothing: query 0 of sample 0

ROW = np.zeros((B, T), bool)
ROW[0, 0] = True
EMPTY_ROW = {
    "query_mask": lambda: {"query_mask": ~ROW},
    "attention_mask": lambda: {"attention_mask": np.broadcast_to(~ROW[..., None], (B, T, S))},
    "attention_bias": lambda: {
        "attention_bias": np.where(np.broadcast_to(ROW[..., None], (B, T, S)), -np.inf, 0.5)
    },
    "causal": lambda: {
        "use_causal_mask": True,
        "value_mask": np.array([[0] * (S - T + 1) + [1] * (T - 1), [1] * S], bool),
    },
}


@pytest.mark.parametrize(
    "way, policy", [*((way, "float32") for way in EMPTY_ROW), ("query_mask", "mixed_float16")]
)
def test_row_that_may_attend_to_nothing(kind, rng, way, policy):
    """Output 0 (whatever the output bias), weights 0, gradient 0; nothing is NaN."""
    layer, options = kind.build(rng, dtype=policy), EMPTY_ROW[way]()
    tensors = [x.astype("float32") for x in kind.arrays(rng)]
    context, weights = to_numpy(both(layer, *tensors, **options))
    assert np.all(context[ROW] == 0)
    assert np.all(np.moveaxis(weights, -2, 1)[ROW] == 0)
    assert np.all(np.abs(context[~ROW]).sum(-1) > 0)
    np.testing.assert_array_equal(context, to_numpy(layer(*tensors, **options)))
    by_query, *others = gradients(
        lambda *args: layer(*args, **options), *tensors, variables=layer.trainable_variables
    )
    assert np.all(by_query[ROW] == 0) and np.any(by_query[~ROW] != 0)
    assert all(np.all(np.isfinite(gradient)) for gradient in others)


@pytest.mark.parametrize("policy", LAYER_TOLERANCES)
def test_sample_without_keys(kind, rng, policy):
    """All of sample 1's keys are padding: it gives 0 and adds nothing to any gradient."""
    layer = kind.build(rng, dtype=policy)
    tensors = [x.astype("float32") for x in kind.arrays(rng)]
    mask = np.array([[True] * S, [False] * S])
    context, weights = to_numpy(both(layer, *tensors, value_mask=mask))
    assert np.all(context[1] == 0) and np.all(weights[1] == 0)
    context, weights = to_numpy(both(layer, *tensors, value_mask=mask, training=True))
    assert np.all(context[1] == 0) and np.all(weights[1] == 0)
    variables = layer.trainable_variables
    found = gradients(lambda *args: layer(*args, value_mask=mask), *tensors, variables=variables)
    alone = gradients(
        lambda *args: padded(layer(*(x[:1] for x in args))), *tensors, variables=variables
    )
    close(found, alone, policy if policy != "float64" else "float32")


def padded(context):
    """A context of sample 0, with a sample 1 of zeros."""
    return ops.concatenate([context, ops.zeros_like(context)], 0)


# NaN and Inf in what is hidden: query 1, key 2. With T = 5 and S = 3 the causal mask leaves
# queries 0 and 1 nothing to see.

FEW = 3
HIDDEN_KEY = np.array([[1, 1, 0]] * B, bool)
HIDDEN_QUERY = np.array([[1, 0, 1, 1, 1]] * B, bool)
KEY_HIDDEN_BY = {
    "value_mask": {"value_mask": HIDDEN_KEY},
    "key_mask": {"key_mask": HIDDEN_KEY},
    "attention_mask": {"attention_mask": HIDDEN_KEY[:, None] & np.ones((B, T, 1), bool)},
    "attention_bias": {"attention_bias": np.where(HIDDEN_KEY[:, None], [[0.5]] * T, -np.inf)},
}
QUERY_HIDDEN_BY = {
    "query_mask": {"query_mask": HIDDEN_QUERY},
    "attention_mask": {"attention_mask": HIDDEN_QUERY[..., None] & np.ones((B, 1, FEW), bool)},
    "attention_bias": {"attention_bias": np.where(HIDDEN_QUERY[..., None], [[0.5] * FEW], -np.inf)},
    "causal": {"use_causal_mask": True},
}


def outputs_and_gradients(layer, tensors, options):
    def context(*args):
        return layer(*args, **options)

    return (
        to_numpy(both(layer, *tensors, **options)),
        gradients(context, *tensors, variables=layer.trainable_variables),
    )


@pytest.mark.parametrize(
    "way, poison", [*((way, np.nan) for way in KEY_HIDDEN_BY), ("value_mask", np.inf)]
)
def test_poison_in_a_hidden_key_reaches_nothing(kind, rng, way, poison):
    layer, options = kind.build(rng), KEY_HIDDEN_BY[way]
    query, value, key = (x.astype("float32") for x in kind.arrays(rng, S=FEW))
    clean = outputs_and_gradients(layer, (query, value, key), options)
    value[~HIDDEN_KEY] = key[~HIDDEN_KEY] = poison
    found = outputs_and_gradients(layer, (query, value, key), options)
    close(found[0], clean[0])
    close(found[1], clean[1])
    assert np.all(found[1][1][~HIDDEN_KEY] == 0) and np.all(found[1][2][~HIDDEN_KEY] == 0)


@pytest.mark.parametrize(
    "way, poison", [*((way, np.nan) for way in QUERY_HIDDEN_BY), ("query_mask", np.inf)]
)
def test_poison_in_a_hidden_query_reaches_nothing(kind, rng, way, poison):
    layer, options = kind.build(rng), QUERY_HIDDEN_BY[way]
    query, value, key = (x.astype("float32") for x in kind.arrays(rng, S=FEW))
    clean = outputs_and_gradients(layer, (query, value, key), options)
    query[~HIDDEN_QUERY] = poison
    found = outputs_and_gradients(layer, (query, value, key), options)
    close(found[0], clean[0])
    close(found[1], clean[1])
    assert np.all(found[1][0][~HIDDEN_QUERY] == 0)


def test_poison_in_the_padding_of_self_attention_reaches_nothing(kind, rng):
    layer = kind.build_self(rng)
    x = rng.normal(size=(B, T, Dq)).astype("float32")
    options = {"query_mask": QUERY_MASK}
    clean = outputs_and_gradients(layer, (x,), options)
    x[~QUERY_MASK] = np.nan
    found = outputs_and_gradients(layer, (x,), options)
    close(found[0], clean[0])
    close(found[1], clean[1])


def test_poison_in_a_hidden_step_of_a_memory_reaches_nothing(kind, rng):
    """Hidden when the memory is made, or only when it is used."""
    layer = kind.build(rng)
    query, value, key = (x.astype("float32") for x in kind.arrays(rng, S=FEW))
    expected = both(layer, query, value, key, value_mask=HIDDEN_KEY)
    value[~HIDDEN_KEY] = key[~HIDDEN_KEY] = np.nan
    memory = layer.precompute(value, key, value_mask=HIDDEN_KEY)
    close(both(layer, query, memory=memory), expected)
    memory = layer.precompute(value, key)
    close(both(layer, query, memory=memory, value_mask=HIDDEN_KEY), expected)


# Bias


def test_attention_bias_is_added_to_the_scores(kind, rng):
    layer = kind.build(rng, dtype="float64")
    query, value, key = kind.arrays(rng)
    bias = rng.normal(size=(B, T, S))
    bias[0, 2, 3] = bias[1, 4] = -np.inf
    expected = kind.reference(layer, query, key, value, ALL_MASKED, bias)
    actual = both(layer, query, value, key, **MASKS, use_causal_mask=True, attention_bias=bias)
    close(actual, expected, "float64")


@pytest.mark.parametrize("low", [-1e9, -np.inf])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_large_bias_in_half_precision(kind, rng, policy, low):
    """-1e9 is -inf in float16; added in float32 it hides a key as a mask does."""
    layer = kind.build(rng, dtype=policy)
    tensors = kind.arrays(rng)
    bias = np.where(VALUE_MASK[:, None], np.zeros((B, T, 1)), low).astype("float32")
    expected = both(layer, *tensors, value_mask=VALUE_MASK)
    close(both(layer, *tensors, attention_bias=bias), expected, policy)
    if low == -np.inf:
        return
    inputs = [keras.Input(x.shape[1:]) for x in (*tensors, bias)]
    *symbolic, symbolic_bias = inputs
    model = keras.Model(inputs, both(layer, *symbolic, attention_bias=symbolic_bias))
    close(model([*tensors, bias]), expected, policy)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_gradient_of_a_learned_bias(kind, rng, policy):
    """Finite and 0 where it hides; equal to the numerical one elsewhere."""
    layer = kind.build(rng, dtype=policy)
    tensors = kind.arrays(rng)
    bias = rng.normal(size=(B, T, S)).astype("float32")
    hidden = np.zeros(bias.shape, bool)
    hidden[0, 1], hidden[1, 2, 3] = True, True
    for low in (-1e9, -np.inf):
        bias[hidden] = low
        (gradient,) = gradients(lambda bias: layer(*tensors, attention_bias=bias), bias)
        assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)
        if low == -np.inf:
            assert np.all(gradient[hidden] == 0)
    # Adding one number to a whole row changes nothing.
    assert_allclose(gradient.sum(-1), 0, atol=2e-5 if policy == "float32" else 5e-2)


# Gradients


def test_gradients_are_those_of_finite_differences(kind, rng):
    """In float64, by inputs, bias and weights, along random directions."""
    needs_float64("numerical gradients")
    layer = kind.build(rng, dtype="float64")
    tensors = [variable_of(x) for x in (*kind.arrays(rng), rng.normal(size=(B, T, S)))]
    weights_of_sum = rng.normal(size=(B, T, kind.reference(layer, *sample(kind, rng))[0].shape[-1]))

    def loss():
        *inputs, bias = (x.value for x in tensors)
        context = layer(*inputs, **MASKS, use_causal_mask=True, attention_bias=bias)
        return ops.sum(context * tensor(weights_of_sum))

    variables, step = [*tensors, *layer.trainable_variables], 1e-5
    found = to_numpy(differentiate(loss, variables=variables))
    compiled = compiled_loss(loss, variables)
    for changed, gradient in zip(variables, found, strict=True):
        for _ in range(3):
            direction = rng.normal(size=changed.shape)
            ends = []
            for sign in (1, -1):
                changed.assign_add(sign * step * direction)
                ends.append(float(compiled()))
                changed.assign_sub(sign * step * direction)
            expected = (ends[0] - ends[1]) / (2 * step)
            actual = np.sum(gradient * direction)
            assert actual == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert all(np.any(np.asarray(gradient) != 0) for gradient in found)


def sample(kind, rng):
    """Query, key, value of one step, for the reference."""
    query, value, key = kind.arrays(rng, T=1, S=1)
    return query, key, value


# Dropout


def test_dropout_acts_in_training_only(kind, rng):
    layer, tensors = kind.build(rng, dropout=0.5, seed=1), kind.arrays(rng)
    calm = layer(*tensors)
    np.testing.assert_array_equal(calm, layer(*tensors, training=False))
    without = kind.make()
    without.build((B, T, Dq), (B, S, Dv), (B, S, kind.key_size))
    without.set_weights(layer.get_weights()[: len(without.weights)])
    np.testing.assert_array_equal(calm, without(*tensors, training=True))
    first, second = layer(*tensors, training=True), layer(*tensors, training=True)
    assert np.any(np.abs(first - calm) > 1e-3) and np.any(np.abs(first - second) > 1e-3)


def test_dropout_is_repeatable_with_a_seed(kind, rng):
    tensors = kind.arrays(rng)
    runs = [
        [to_numpy(layer(*tensors, training=True)) for _ in range(2)]
        for layer in (kind.build(dropout=0.5, seed=seed) for seed in (7, 7, 8))
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.any(runs[0][0] != runs[2][0])


def test_weights_are_those_before_dropout(kind, rng):
    layer, tensors = kind.build(rng, dropout=0.5, seed=1), kind.arrays(rng)
    _, weights = both(layer, *tensors, value_mask=VALUE_MASK, training=True)
    close(weights, both(layer, *tensors, value_mask=VALUE_MASK)[1])
    close(to_numpy(weights).sum(-1), np.ones((B, *kind.heads, T)))


@pytest.mark.parametrize("name", ["bahdanau", "luong", "scaled_dot"])
def test_dropout_drops_and_scales_weights(name, rng):
    """Values that are unit vectors show the weights that were used."""
    rate, layer = 0.25, LAYERS[name].make(dropout=0.25, seed=1)
    query = rng.normal(size=(B, 40, S))
    value = np.broadcast_to(np.eye(S), (B, S, S))
    used, weights = both(layer, query, value, training=True)
    kept = to_numpy(used) > 0
    close(used, kept * to_numpy(weights) / (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 0.07  # 560 draws: 4 standard deviations


def test_dropout_in_fit(kind, rng):
    """The training flag reaches the layer in fit and not in predict."""
    layer = kind.build_self(rng, dropout=0.9, seed=1)
    x = rng.normal(size=(B, T, Dq)).astype("float32")
    inputs = keras.Input((None, Dq))
    model = keras.Model(inputs, layer(inputs))
    calm = model.predict(x, verbose=0)
    close(calm, layer(x))
    model.compile("sgd", "mse")
    loss = model.fit(x, calm, verbose=0).history["loss"][0]
    assert loss > 1e-3  # without dropout it would be 0


# Regularizers, constraints, initializers


def test_kernel_regularizer_adds_the_kernels(kind_with_weights, rng):
    layer = kind_with_weights.build(rng, kernel_regularizer=keras.regularizers.L2(0.5))
    kernels = [w for w in layer.trainable_variables if "bias" not in w.name]
    expected = [0.5 * np.sum(np.square(w)) for w in kernels]
    assert_allclose(sum(layer.losses), sum(expected), rtol=1e-5)


def test_kernel_constraint_and_regularizer_in_fit(kind_with_weights, rng):
    layer = kind_with_weights.build_self(
        rng, kernel_constraint="non_neg", kernel_regularizer=keras.regularizers.L1(0.01)
    )
    x = rng.normal(size=(B, T, Dq)).astype("float32")
    inputs = keras.Input((None, Dq))
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    penalty = float(sum(layer.losses))
    history = model.fit(x, model.predict(x, verbose=0), verbose=0)
    assert history.history["loss"][0] == pytest.approx(penalty, rel=1e-4)
    kernels = [w for w in layer.trainable_variables if "bias" not in w.name]
    assert all(np.all(np.asarray(w) >= 0) for w in kernels)


def test_seeded_initializers_differ_between_projections_and_repeat(kind_with_weights):
    def kernels():
        initializer = keras.initializers.RandomNormal(seed=7)
        layer = kind_with_weights.make(kernel_initializer=initializer)
        layer.build((B, T, Dq))
        return [np.asarray(w).ravel() for w in layer.weights if "bias" not in w.name]

    first, second = kernels(), kernels()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    for i, a in enumerate(first):
        for b in first[:i]:
            size = min(a.size, b.size)
            assert not np.allclose(a[:size], b[:size])


# Configs

BASE = {"name": "attention", "dtype": "mixed_float16", "trainable": False}
SETTINGS = {
    "kernel_initializer": keras.initializers.HeNormal(seed=4),
    "kernel_regularizer": keras.regularizers.L2(0.25),
    "kernel_constraint": keras.constraints.MaxNorm(2.0),
}
BIAS_SETTINGS = {
    "bias_initializer": keras.initializers.Constant(0.5),
    "bias_regularizer": keras.regularizers.L1(0.125),
    "bias_constraint": keras.constraints.NonNeg(),
}


@keras.saving.register_keras_serializable(package="tests")
def halved(scores, batch, head, query_index, key_index):
    return scores / 2


@keras.saving.register_keras_serializable(package="tests")
def even(batch, head, query_index, key_index):
    return keras.ops.equal((query_index + key_index) % 2, 0)


CONFIGS = [  # every argument at another value than the default
    (
        BahdanauAttention,
        {
            "units": 3,
            "use_bias": True,
            "normalize": True,
            "history": "coverage",
            "dropout": 0.25,
            "seed": 5,
            **SETTINGS,
            **BIAS_SETTINGS,
        },
    ),
    # No score mode takes all arguments.
    (
        LuongAttention,
        {
            "score_mode": "location",
            "units": 3,
            "local": "predictive",
            "window": 2,
            "max_memory": 4,
            "dropout": 0.25,
            "seed": 5,
            **SETTINGS,
        },
    ),
    (LuongAttention, {"score_mode": "general", "scale": True}),
    (ScaledDotProductAttention, {"dropout": 0.25, "seed": 5, "normalizer": "sparsemax"}),
    (
        MultiHeadAttention,
        {
            "num_heads": 4,
            "key_dim": 3,
            "value_dim": 2,
            "dropout": 0.25,
            "use_bias": False,
            "output_shape": (5,),
            "attention_axes": (1,),
            "sliding_window": 2,
            "flash_attention": False,
            **SETTINGS,
            **BIAS_SETTINGS,
            "activity_regularizer": keras.regularizers.L2(0.5),
            "use_gate": True,
            "seed": 5,
            "num_key_value_heads": 2,
            "position": "relative",
            "logit_soft_cap": 3.0,
            "query_key_norm": "rms",
            "score_modifier": halved,
            "mask_function": even,
        },
    ),
]


@pytest.mark.parametrize("layer_class, arguments", CONFIGS)
def test_config_is_complete_and_stable(layer_class, arguments):
    parameters = inspect.signature(layer_class.__init__).parameters
    own = {name: p for name, p in parameters.items() if name not in ("self", "kwargs")}
    # This test names every argument.
    assert set(own) == {name for kind, named in CONFIGS if kind is layer_class for name in named}
    layer = layer_class(**arguments, **BASE)
    config = layer.get_config()
    assert set(own) | set(BASE) <= set(config)
    for name in arguments:
        parameter = own[name]
        default = "none" if parameter.default is parameter.empty else parameter.default
        if name != "flash_attention":  # None and False mean the same
            assert config[name] != default, name
    json.dumps(config)  # what a .keras file holds
    again = layer_class.from_config(config)
    assert again.get_config() == config
    layer.build((B, T, Dq))
    layer(np.zeros((B, T, Dq)))
    assert layer.get_config() == config
    assert (layer.name, layer.dtype_policy.name, layer.trainable) == tuple(BASE.values())
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(restored) is layer_class and restored.get_config() == config
    assert restored.built  # from the shapes that the serialized layer was built with
    assert [w.shape for w in restored.weights] == [w.shape for w in layer.weights]


def test_config_with_defaults(kind):
    layer = kind.make()
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


# Shapes and building


@pytest.mark.parametrize("batch, queries, keys", [(None, None, None), (B, T, S), (None, T, None)])
def test_symbolic_shapes(kind, batch, queries, keys):
    query = keras.Input((queries, Dq), batch_size=batch)
    value = keras.Input((keys, Dv), batch_size=batch)
    key = keras.Input((keys, kind.key_size), batch_size=batch)
    layer = kind.make()
    context, weights = both(layer, query, value, key)
    size = Dq if kind.heads else Dv
    assert context.shape == (batch, queries, size)
    assert weights.shape == (batch, *kind.heads, queries, keys)
    shapes = query.shape, value.shape, key.shape
    assert layer(query, value, key).shape == context.shape
    assert layer.compute_output_shape(*shapes) == context.shape
    assert kind.make().compute_output_shape(*shapes) == context.shape  # before building, too
    spec = layer.compute_output_spec(query, value, key, return_attention_scores=True)
    assert [x.shape for x in spec] == [context.shape, weights.shape]
    one = keras.Input((Dq,), batch_size=batch)
    context, weights = both(layer, one, value, key)
    assert (context.shape, weights.shape) == ((batch, size), (batch, *kind.heads, keys))
    assert layer.compute_output_shape(one.shape, *shapes[1:]) == context.shape


def test_symbolic_dtypes(kind):
    query, value = keras.Input((T, Dq)), keras.Input((S, Dq))
    for output in both(kind.make(dtype="mixed_bfloat16"), query, value):
        assert dtype_of(output) == "bfloat16"


def test_build_makes_and_builds_everything(kind, rng):
    layer = kind.make()
    layer.build((B, T, Dq), (B, S, Dv), (B, S, kind.key_size))
    assert layer.built and all(part.built for part in layer._flatten_layers(recursive=True))
    before = [(w.path, w.shape) for w in layer.weights]
    layer(*kind.arrays(rng))
    assert [(w.path, w.shape) for w in layer.weights] == before
    with pytest.raises(ValueError, match="must be built"):
        kind.make().precompute(np.zeros((B, S, Dv)))


def test_build_without_a_key(kind):
    layer, other = kind.make(), kind.make()
    layer.build((B, T, Dq))
    other.build((None, None, Dq), (None, None, Dq), (None, None, Dq))
    assert [w.shape for w in layer.weights] == [w.shape for w in other.weights]


def test_one_layer_on_several_lengths_and_batches(kind, rng):
    layer = kind.make(dtype="float64")
    for queries, keys in ((T, S), (1, 2), (4, 1), (2, 9)):
        query, value, key = kind.arrays(rng, T=queries, S=keys)
        if not layer.built:
            layer(query, value, key)
            randomise(layer)
        close(both(layer, query, value, key), kind.reference(layer, query, key, value), "float64")
        close(layer(query[:1], value[:1], key[:1]), layer(query, value, key)[:1], "float64")


# Keras around the layer


def model_of(kind, **options):
    """A Functional model with implicit masks, context and weights."""
    layer = kind.build_self()
    return model_of_ids(layer, return_attention_scores=True, **options), layer


def test_clone_model(kind):
    model, layer = model_of(kind, use_causal_mask=True)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    expected = model([QUERY_IDS, VALUE_IDS])
    close(clone([QUERY_IDS, VALUE_IDS]), expected)
    twin = clone.get_layer(layer.name)
    assert twin is not layer and twin.get_config() == layer.get_config()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_of_a_layer(kind, rng, copied):
    layer, tensors = kind.build(rng), kind.arrays(rng)
    twin = copied(layer)
    close(both(twin, *tensors), both(layer, *tensors))
    for weight in twin.weights:
        weight.assign(weight + 1.0)
    if layer.weights:
        assert np.any(np.abs(twin(*tensors) - layer(*tensors)) > 1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_copy_of_a_layer_that_is_not_built(kind, rng, dropout):
    layer = copy.deepcopy(kind.make(dropout=dropout))
    assert not layer.built
    assert layer(*kind.arrays(rng), training=True).shape[:2] == (B, T)


@pytest.mark.slow
def test_fit_with_jit_compile(kind, rng):
    """The first loss is that of the layer called eagerly; the second is lower."""
    x = rng.normal(size=(B, T, Dq)).astype("float32")
    layer, dense = kind.build_self(), keras.layers.Dense(1, "tanh")
    inputs, mask = keras.Input((None, Dq)), keras.Input((None,), dtype="bool")
    context = layer(inputs, query_mask=mask, use_causal_mask=True)
    model = keras.Model([inputs, mask], dense(context))
    output = dense(layer(x, query_mask=QUERY_MASK, use_causal_mask=True))
    expected = np.square(to_numpy(output))[QUERY_MASK].mean()
    model.compile("sgd", "mse", jit_compile=True)
    target = np.zeros((B, T, 1))
    losses = model.fit([x, QUERY_MASK], target, epochs=2, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[1] < losses[0]


def test_fit_with_mixed_float16():
    layer = LAYERS["multi_head"].build_self(dtype="mixed_float16")
    inputs = keras.Input((None,), dtype="int32")
    context = layer(embedding()(inputs), use_causal_mask=True)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(context))
    model.compile("adam", "mse")
    history = model.fit(QUERY_IDS, np.ones((B, T, 1)), epochs=3, verbose=0).history["loss"]
    assert np.all(np.isfinite(history)) and history[-1] < history[0]


def test_summary(kind):
    lines = []
    model, layer = model_of(kind)
    model.summary(print_fn=lambda line, **_: lines.append(line))
    text = "\n".join(lines)
    assert f"{layer.count_params():,}" in text and type(layer).__name__[:8] in text


@pytest.mark.parametrize("name, trained", [*((name, False) for name in LAYERS), ("bahdanau", True)])
def test_weights_of_a_model_that_was_made_without_them(name, trained):
    """A second symbolic call of the same layer, which asks for the weights."""
    kind = LAYERS[name]
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    layer = kind.build_self()
    query, value = (embedding()(x) for x in ids)
    pooled = keras.layers.GlobalAveragePooling1D()(layer(query, value))
    model = keras.Model(ids, keras.layers.Dense(1)(pooled))
    before = model([QUERY_IDS, VALUE_IDS])
    if trained:
        model.compile("sgd", "mse")
        model.fit([QUERY_IDS, VALUE_IDS], np.ones((B, 1)), verbose=0)
        assert np.any(model([QUERY_IDS, VALUE_IDS]) != before)
    viewer = keras.Model(ids, layer(query, value, return_attention_scores=True))
    close(viewer([QUERY_IDS, VALUE_IDS]), explicit_masks(layer))
    both_models = keras.Model(ids, [model.output, *viewer.outputs])
    results = both_models.predict([QUERY_IDS, VALUE_IDS], verbose=0)
    close(results, [model([QUERY_IDS, VALUE_IDS]), *explicit_masks(layer)])


def test_inside_a_subclassed_model(kind, rng):
    """Made in the constructor, called with lists of Python numbers as masks."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = kind.make()

        def call(self, x):
            query, value = x
            return self.attention(query, value, value_mask=VALUE_MASK.astype(int).tolist())

    model = Model()
    query, value = rng.normal(size=(B, T, Dq)), rng.normal(size=(B, S, Dq))
    expected = model([query, value])
    close(model.predict([query, value], verbose=0), expected)
    close(expected, model.attention(query, value, value_mask=VALUE_MASK))


def test_causal_mask_function_equals_the_argument(kind, rng):
    layer, tensors = kind.build(rng), kind.arrays(rng)
    mask = causal_mask(T, S)[None]
    close(both(layer, *tensors, attention_mask=mask), both(layer, *tensors, use_causal_mask=True))


# Bad input


def symbolic(array):
    array = np.asarray(array)
    return keras.Input(array.shape[1:], batch_size=array.shape[0], dtype=array.dtype.name)


def refused(layer, arguments, *words):
    """The call raises a ValueError with these words, with tensors and with symbolic ones."""
    for convert in (tensor, symbolic):
        converted = {
            name: convert(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()
        }
        query = converted.pop("query")
        with pytest.raises(ValueError) as error:
            layer(query, **converted)
        message = str(error.value)
        for word in words:
            assert word in message, (convert, word, message)


def good(kind, one_step=False):
    query = np.zeros((B, Dq) if one_step else (B, T, Dq), "float32")
    value = np.zeros((B, S, Dv), "float32")
    return {"query": query, "value": value, "key": np.zeros((B, S, kind.key_size), "float32")}


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def ones(*shape):
    return np.ones(shape, bool)


BAD_TENSORS = {  # name: (changed arguments, words of the message)
    "query of rank 1": ({"query": zeros(B)}, ["query", f"({B},)"]),
    "query of rank 4": ({"query": zeros(B, 1, T, Dq)}, ["query", f"({B}, 1, {T}, {Dq})"]),
    "value of rank 2": ({"value": zeros(B, Dv)}, ["value", f"({B}, {Dv})"]),
    "key of rank 2": ({"key": zeros(B, Dk)}, ["key", f"({B}, {Dk})"]),
    "integer query": ({"query": zeros(B, T, Dq, dtype="int32")}, ["`query`", "int32", "floating"]),
    "integer value": ({"value": zeros(B, S, Dv, dtype="int32")}, ["`value`", "int32", "floating"]),
    "batch of query": ({"query": zeros(B + 1, T, Dq)}, ["query", f"({B + 1}, {T}, {Dq})"]),
    "batch of value": ({"value": zeros(B + 1, S, Dv)}, ["value", f"({B + 1}, {S}, {Dv})"]),
    "length of key": ({"value": zeros(B, S + 1, Dv)}, ["key", "value", str(S), str(S + 1)]),
}
BAD_MASKS = {  # name: (argument, value, what came)
    "query_mask too long": ("query_mask", ones(B, T + 1), (B, T + 1)),
    "query_mask of length 1": ("query_mask", ones(B, 1), (B, 1)),
    "query_mask of another batch": ("query_mask", ones(B + 1, T), (B + 1, T)),
    "query_mask of rank 1": ("query_mask", ones(B), (B,)),
    "value_mask too long": ("value_mask", ones(B, S + 1), (B, S + 1)),
    "value_mask of length 1": ("value_mask", ones(B, 1), (B, 1)),
    "value_mask of batch 1": ("value_mask", ones(1, S), (1, S)),
    "value_mask of rank 3": ("value_mask", ones(B, 1, S), (B, 1, S)),
    "key_mask of length 1": ("key_mask", ones(B, 1), (B, 1)),
    "key_mask too short": ("key_mask", ones(B, S - 1), (B, S - 1)),
    "attention_mask with too many keys": ("attention_mask", ones(B, T, S + 1), (B, T, S + 1)),
    "attention_mask with 1 key": ("attention_mask", ones(B, T, 1), (B, T, 1)),
    "attention_mask with too many queries": ("attention_mask", ones(B, T + 1, S), (B, T + 1, S)),
    "attention_mask of another batch": ("attention_mask", ones(B + 1, T, S), (B + 1, T, S)),
    "attention_mask of rank 2": ("attention_mask", ones(B, S), (B, S)),
    "attention_mask of rank 5": ("attention_mask", ones(B, 1, 1, T, S), (B, 1, 1, T, S)),
    "attention_bias with 1 key": ("attention_bias", zeros(B, T, 1), (B, T, 1)),
    "attention_bias of rank 2": ("attention_bias", zeros(B, S), (B, S)),
    "attention_bias with too many queries": ("attention_bias", zeros(B, T + 1, S), (B, T + 1, S)),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors(kind, case):
    changes, words = BAD_TENSORS[case]
    refused(kind.build(), {**good(kind), **changes}, *words)


def test_bad_tensors_of_a_layer_that_is_not_built(kind):
    for case in ("query of rank 1", "value of rank 2", "integer query"):
        changes, words = BAD_TENSORS[case]
        arguments = {**good(kind), **changes}
        with pytest.raises(ValueError) as error:
            kind.make()(arguments.pop("query"), **arguments)
        assert all(word in str(error.value) for word in words), (case, str(error.value))


@pytest.mark.parametrize("case", BAD_MASKS)
def test_bad_masks(kind, case):
    name, mask, came = BAD_MASKS[case]
    refused(kind.build(), {**good(kind), name: mask}, f"`{name}`", "Received", str(came))


@pytest.mark.parametrize("name", MASKS)
def test_floating_masks(kind, name):
    mask = MASKS[name].astype("float32")
    words = f"`{name}`", "attention_bias", "float32", "boolean", "True = may attend"
    refused(kind.build(), {**good(kind), name: mask}, *words)


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_bias_must_be_floating(kind, dtype):
    bias = ATTENTION_MASK.astype(dtype)
    words = "`attention_bias`", dtype, "attention_mask"
    refused(kind.build(), {**good(kind), "attention_bias": bias}, *words)


def test_one_step_with_a_mask_of_many(kind):
    mask = ones(B, T, S)
    refused(
        kind.build(),
        {**good(kind, one_step=True), "attention_mask": mask},
        "`attention_mask`",
        "Received",
        str((B, T, S)),
    )


@pytest.mark.parametrize("factor, more", [(1, 1), (2, 0)], ids=["one more", "twice"])
def test_feature_sizes_that_do_not_fit(kind, factor, more):
    """The message has the size that was expected and the shape that came."""
    size = factor * kind.key_size + more
    key = zeros(B, S, size)
    words = "key", f"({B}, {S}, {size})", str(kind.key_size)
    refused(kind.build(), {**good(kind), "key": key}, *words)
    size = factor * Dq + more
    query = zeros(B, T, size)
    refused(kind.build(), {**good(kind), "query": query}, "query", f"{size})", str(Dq))


def test_memory_and_value_exclude_each_other(kind):
    layer, arguments = kind.build(), good(kind)
    memory = layer.precompute(arguments["value"], arguments["key"])
    with pytest.raises(ValueError, match="either `memory` or `value`"):
        layer(arguments["query"], arguments["value"], memory=memory)
    with pytest.raises(ValueError, match="`memory` must be what `precompute` returned"):
        layer(arguments["query"], memory=memory[:1])
    with pytest.raises(ValueError, match="`value_mask` must have shape"):
        layer(arguments["query"], memory=memory, value_mask=ones(B, 1))


def test_precompute_refuses_bad_masks(kind):
    layer, arguments = kind.build(), good(kind)
    value, key = arguments["value"], arguments["key"]
    with pytest.raises(ValueError, match="`value_mask` must have shape"):
        layer.precompute(value, key, value_mask=ones(B, 1))
    with pytest.raises(ValueError, match="`value_mask` must be boolean"):
        layer.precompute(value, key, value_mask=zeros(B, S))
    with pytest.raises(ValueError, match="symbolic"):
        layer.precompute(symbolic(value), symbolic(key))


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, float("nan"), True])
def test_dropout_outside_of_0_to_1(kind, dropout):
    with pytest.raises(ValueError, match=r"`dropout` must lie in \[0, 1\). Received"):
        kind.make(dropout=dropout)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("name", ["value_mask", "attention_mask"])
def test_mask_of_length_1_in_a_graph_of_unknown_lengths(kind, name):
    """Not broadcast there either, though only the run knows the lengths."""
    layer, arguments = kind.build(), good(kind)
    mask = {"value_mask": ones(B, 1), "attention_mask": ones(B, T, 1)}[name]
    tensors = [arguments["query"], arguments["value"], arguments["key"], mask]
    signature = [
        tf.TensorSpec((None,) * (x.ndim - 1) + ((None,) if x is mask else x.shape[-1:]), x.dtype)
        for x in tensors
    ]

    @functools.partial(tf.function, input_signature=signature)
    def compute(query, value, key, mask):
        return layer(query, value, key, **{name: mask})

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        compute(*tensors)
