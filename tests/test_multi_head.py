"""MultiHeadAttention: against Keras's layer where that is right, heads, groups, windows, axes."""

import itertools

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, compiled, differentiate, tensor, to_numpy
from conftest import MODES, numerical_gradient, rounded
from keras import ops
from test_layers import (
    LAYER_TOLERANCES,
    LAYERS,
    MASKS,
    B,
    Dk,
    Dq,
    Dv,
    N,
    S,
    T,
    both,
    close,
    gradients,
    randomise,
    refused,
)

from keras_attention import MultiHeadAttention

SHAPES = (B, T, Dq), (B, S, Dv), (B, S, Dk)


def draw(rng, *shapes):
    return [rng.normal(size=shape).astype("float32") for shape in shapes or SHAPES]


def built(*arguments, shapes=SHAPES, **options):
    layer = MultiHeadAttention(*arguments, **options)
    layer.build(*shapes)
    return randomise(layer)


# Against keras.layers.MultiHeadAttention


def twins(*arguments, shapes=SHAPES, **options):
    """Our layer and Keras's, with the same weights."""
    layer = built(*arguments, shapes=shapes, **options)
    other = keras.layers.MultiHeadAttention(*arguments, **options)
    other.build(*shapes)
    assert [w.name for w in layer.weights] == [w.name for w in other.weights]
    assert [w.shape for w in layer.weights] == [w.shape for w in other.weights]
    other.set_weights(layer.get_weights())
    return layer, other


OPTIONS = {
    "plain": {},
    "value_dim": {"value_dim": 5},
    "no bias": {"use_bias": False},
    "gate": {"use_gate": True, "value_dim": 5},
    "output_shape": {"output_shape": 13},
    "output_shape of two": {"output_shape": (3, 2)},
    "window": {"sliding_window": 2},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_self_attention_equals_keras(rng, case):
    layer, other = twins(N, 4, shapes=[(B, T, Dq)] * 3, **OPTIONS[case])
    (x,) = draw(rng, (B, T, Dq))
    close(both(layer, x), both(other, x, x))
    close(both(layer, x, x, use_causal_mask=True), both(other, x, x, use_causal_mask=True))
    close(layer(x), other(x, x))


@pytest.mark.parametrize("case", [name for name in OPTIONS if name != "window"])
def test_cross_attention_equals_keras(rng, case):
    """Three sizes, a separate key, masks that leave no row empty."""
    layer, other = twins(N, 4, **OPTIONS[case])
    query, value, key = draw(rng)
    mask = np.array(MASKS["attention_mask"])
    mask[..., 0] = True
    heads = np.stack([mask, ~mask, mask], 1)
    heads[..., 1] = True
    for masks in (
        {},
        {"attention_mask": mask},
        {"attention_mask": heads},
        {"value_mask": MASKS["value_mask"], "key_mask": MASKS["key_mask"]},
        {"value_mask": MASKS["value_mask"], "attention_mask": mask},
    ):
        ours, theirs = (
            both(layer, query, value, key, **masks),
            both(other, query, value, key, **masks),
        )
        close(ours, theirs)


def test_gradients_equal_those_of_keras(rng):
    # (That of Keras fails on JAX where values have another size than keys.)
    layer, other = twins(N, 4, value_dim=4 if BACKEND == "jax" else 5, use_gate=True)
    tensors = draw(rng)
    close(
        gradients(layer, *tensors, variables=layer.trainable_variables),
        gradients(other, *tensors, variables=other.trainable_variables),
    )


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("axes", [(2,), (1,), (1, 2), (-2,)], ids=str)
def test_attention_axes_equal_keras(rng, axes, asked):
    """Inputs [B, 3, 5, D]: over one axis or both, with value of another length there."""
    lengths = {(2,): (3, 7), (-2,): (3, 7), (1,): (2, 5), (1, 2): (2, 7)}[axes]
    shapes = (B, 3, 5, Dq), (B, *lengths, Dv), (B, *lengths, Dk)
    layer, other = twins(N, 4, value_dim=6, attention_axes=axes, shapes=shapes)
    tensors = draw(rng, *shapes)
    if asked:
        close(both(layer, *tensors), both(other, *tensors))
    else:
        close(layer(*tensors), other(*tensors))


def test_attention_mask_over_two_axes_equals_keras(rng):
    shapes = (B, 3, 5, Dq), (B, 2, 7, Dv), (B, 2, 7, Dk)
    layer, other = twins(N, 4, shapes=shapes)
    tensors = draw(rng, *shapes)
    mask = rng.random((B, 3, 5, 2, 7)) < 0.6
    mask[..., 0, 0] = True
    ours, theirs = (
        both(layer, *tensors, attention_mask=mask),
        both(other, *tensors, attention_mask=mask),
    )
    close(ours, theirs)


def test_config_of_keras_makes_our_layer(rng):
    other = keras.layers.MultiHeadAttention(
        N,
        4,
        value_dim=5,
        dropout=0.25,
        use_bias=False,
        output_shape=7,
        sliding_window=3,
        kernel_initializer=keras.initializers.HeNormal(seed=1),
        kernel_regularizer="l2",
        use_gate=True,
        seed=4,
        name="mine",
        dtype="mixed_bfloat16",
    )
    config = other.get_config()
    layer = MultiHeadAttention.from_config(config)
    ours = layer.get_config()
    for name, value in config.items():
        if name == "output_shape":
            assert ours[name] in (value, (value,))
        elif name == "kernel_initializer":
            assert ours[name]["config"]["seed"] == 1
        else:
            assert ours[name] == value, name
    other.build(*SHAPES)
    layer.build(*SHAPES)
    layer.set_weights(other.get_weights())
    # A built layer of Keras fills in attention_axes: it must still be accepted.
    again = MultiHeadAttention.from_config(other.get_config())
    again.build(*SHAPES)
    assert [w.shape for w in again.weights] == [w.shape for w in layer.weights]


def test_names_of_the_weights():
    layer = built(N, 4, use_gate=True, name="attention")
    projections = "query", "key", "gate", "value", "attention_output"
    expected = [
        f"attention/{name}/{part}"
        for name, part in itertools.product(projections, ("kernel", "bias"))
    ]
    assert [w.path for w in layer.weights] == expected


# Grouped heads


@pytest.mark.parametrize("heads, groups", [(3, 1), (4, 2), (6, 3)])
@pytest.mark.parametrize("policy", ["float64", "mixed_float16"])
def test_grouped_heads(rng, heads, groups, policy):
    """With all masks, one of them of heads and one of samples; the reference groups by index."""
    layer = built(heads, 4, value_dim=5, num_key_value_heads=groups, dtype=policy)
    assert layer.weights[2].shape == (Dk, groups, 4) and layer.weights[4].shape == (Dv, groups, 5)
    tensors, arrays = zip(
        *(rounded(rng.normal(size=shape), layer.compute_dtype) for shape in SHAPES), strict=True
    )
    query, value, key = arrays
    mask_of_heads = rng.random((B, heads, T, S)) < 0.7
    mask_of_heads[0, :, 1] = False
    bias = rng.normal(size=(B, heads, T, S))
    options = {"value_mask": MASKS["value_mask"], "query_mask": MASKS["query_mask"]}
    options |= {"attention_mask": mask_of_heads, "attention_bias": bias, "use_causal_mask": True}
    mask = (
        mask_of_heads
        & ref.layer_mask(B, T, S, MASKS["query_mask"], MASKS["value_mask"], causal=True)[:, None]
    )
    expected = LAYERS["multi_head"].reference(layer, query, key, value, mask, bias)
    close(both(layer, *tensors, **options), expected, policy)
    expected = LAYERS["multi_head"].reference(layer, query, key, value)
    close(both(layer, *tensors), expected, policy)


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_grouped_heads_when_compiled(rng, mode):
    layer = built(4, 4, num_key_value_heads=2)
    tensors = draw(rng)
    mask = rng.random((B, 4, T, S)) < 0.7

    def compute(query, value, key):
        return both(layer, query, value, key, attention_mask=mask, use_causal_mask=True)

    if mode == "graph":
        signature = [tf.TensorSpec((None, None, x.shape[-1])) for x in tensors]
        function = tf.function(compute, input_signature=signature)
    else:
        function = MODES[mode](compute)
    close(function(*tensors), compute(*tensors))


def test_grouped_heads_equal_repeated_ones(rng):
    """Head n reads group n // (N / groups): full heads with repeated kernels give the same."""
    grouped, full = built(4, 4, num_key_value_heads=2), built(4, 4)
    for ours, theirs in zip(full.weights, grouped.weights, strict=True):
        theirs = np.asarray(theirs)
        if theirs.shape != ours.shape:
            theirs = np.repeat(theirs, 2, axis=-2)
        ours.assign(theirs)
    tensors, mask = draw(rng), rng.random((B, 4, T, S)) < 0.7
    for masks in ({}, {"attention_mask": mask}, {"value_mask": MASKS["value_mask"]}):
        close(both(grouped, *tensors, **masks), both(full, *tensors, **masks))


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_heads_with_memory_and_one_step(rng, groups):
    layer = built(4, 4, num_key_value_heads=groups)
    query, value, key = draw(rng)
    output, weights = both(layer, query, value, key, value_mask=MASKS["value_mask"])
    memory = layer.precompute(value, key, value_mask=MASKS["value_mask"])
    close(both(layer, query, memory=memory), (output, weights))
    one, one_weights = both(layer, query[:, 2], memory=memory)
    close((one, one_weights), (output[:, 2], weights[:, :, 2]))
    plain = layer.precompute(value, key)
    close(both(layer, query, memory=plain, value_mask=MASKS["value_mask"]), (output, weights))


def test_gradients_of_grouped_heads(rng):
    shapes = (1, 2, 3), (1, 3, 2)
    layer = built(4, 1, num_key_value_heads=2, shapes=shapes, dtype="float64")
    query, value = (rng.normal(size=shape) for shape in shapes)
    weights_of_sum = rng.normal(size=(1, 2, 3))
    loss = compiled(lambda query, value: ops.sum(layer(query, value) * tensor(weights_of_sum)))
    by_query, by_value = to_numpy(differentiate(loss, [query, value]))
    assert_allclose(
        by_query, numerical_gradient(lambda x: loss(x, value), query), rtol=1e-6, atol=1e-8
    )
    assert_allclose(
        by_value, numerical_gradient(lambda x: loss(query, x), value), rtol=1e-6, atol=1e-8
    )


# Masks of heads, windows


@pytest.mark.parametrize("dtype", ["float64", "mixed_float16"])
def test_masks_and_biases_of_heads(rng, dtype):
    layer = built(N, 4, dtype=dtype)
    tensors, arrays = zip(
        *(rounded(rng.normal(size=shape), layer.compute_dtype) for shape in SHAPES), strict=True
    )
    query, value, key = arrays
    mask, bias = rng.random((B, N, T, S)) < 0.7, rng.normal(size=(B, N, T, S))
    mask[0, :, 1], mask[1, 0, 2] = False, False  # a row without keys in all heads, and in one
    bias[1, 1, 3, 2] = -np.inf
    expected = LAYERS["multi_head"].reference(layer, query, key, value, mask, bias)
    actual = both(layer, *tensors, attention_mask=mask, attention_bias=bias)
    close(actual, expected, dtype)
    assert np.all(to_numpy(actual[0])[0, 1] == 0)
    bias_of_all = rng.normal(size=(B, T, S))
    expected = LAYERS["multi_head"].reference(
        layer, query, key, value, mask, bias_of_all[:, None] + np.zeros((1, N, 1, 1))
    )
    close(both(layer, *tensors, attention_mask=mask, attention_bias=bias_of_all), expected, dtype)


@pytest.mark.parametrize(
    "shape", [(B, 1, T, S), (1, N, T, S), (B, N, 1, S), (1, 1, 1, S), (1, T, S)]
)
def test_axes_of_size_1_broadcast(rng, shape):
    layer, tensors = built(N, 4), draw(rng)
    mask, bias = rng.random(shape) < 0.7, rng.normal(size=shape)
    whole = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
    full = (x.reshape(whole) + np.zeros((B, N, T, S), x.dtype) for x in (mask, bias))
    expected = both(
        layer, *tensors, **dict(zip(("attention_mask", "attention_bias"), full, strict=True))
    )
    close(both(layer, *tensors, attention_mask=mask, attention_bias=bias), expected)


def test_a_head_that_sees_nothing(rng):
    """It adds nothing; the output bias stays as long as another head sees something."""
    layer, (query, value, key) = built(N, 4), draw(rng)
    mask = np.ones((B, N, T, S), bool)
    mask[:, 1] = False
    output, weights = both(layer, query, value, key, attention_mask=mask)
    assert np.all(to_numpy(weights)[:, 1] == 0)
    expected = LAYERS["multi_head"].reference(layer, query, key, value, mask)
    close((output, weights), expected)
    assert np.all(np.abs(output) > 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, T, S])
def test_sliding_window(rng, queries, causal):
    """Bottom right, as the causal mask; with it, the last `window` keys."""
    layer = built(N, 4, sliding_window=3, dtype="float64")
    query, value, key = (x.astype("float64") for x in draw(rng))
    query = np.concatenate([query, query], 1)[:, :queries]
    mask = ref.combine_masks(
        (B, queries, S),
        ref.window_mask(queries, S, window=3),
        ref.causal_mask(queries, S) if causal else None,
        MASKS["value_mask"][:, None],
    )
    expected = LAYERS["multi_head"].reference(layer, query, key, value, mask)
    actual = both(layer, query, value, key, value_mask=MASKS["value_mask"], use_causal_mask=causal)
    close(actual, expected, "float64")


def test_window_wider_than_the_sequence_changes_nothing(rng):
    tensors = draw(rng)
    wide, none = built(N, 4, sliding_window=100), built(N, 4)
    close(both(wide, *tensors), both(none, *tensors))


# Attention over other axes


@pytest.mark.parametrize("axes", [(1,), (2,)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_one_axis_of_two_equals_a_call_for_each_slice(rng, axes, symbolic):
    """Causal, with masks of query and value, in a model of unknown lengths too."""
    x, options = rng.normal(size=(B, 3, 5, Dq)).astype("float32"), {"use_causal_mask": True}
    mask = rng.random((B, 3, 5)) < 0.8
    layer = built(N, 4, attention_axes=axes, shapes=[x.shape])
    slices = built(N, 4, shapes=[(B, T, Dq)])
    slices.set_weights(layer.get_weights())
    if symbolic:
        inputs, given = keras.Input((None, None, Dq)), keras.Input((None, None), dtype="bool")
        result = both(layer, inputs, query_mask=given, **options)
        output, weights = keras.Model([inputs, given], result)([x, mask])
    else:
        output, weights = both(layer, x, query_mask=mask, **options)
    other, output, weights = 3 - axes[0], to_numpy(output), to_numpy(weights)
    for i in range(x.shape[other]):
        one = np.take(x, i, other), np.take(mask, i, other)
        expected = both(slices, one[0], query_mask=one[1], **options)
        close((np.take(output, i, other), np.take(weights, i, 1)), expected)


@pytest.mark.parametrize("symbolic", [False, True])
def test_two_axes_are_one_in_row_major_order(rng, symbolic):
    """Causal, windowed and masked, equal to the same layer on the flattened axes."""
    x = rng.normal(size=(B, 3, 5, Dq)).astype("float32")
    real, mask = rng.random((B, 3, 5)) < 0.8, rng.random((B, 3, 5, 3, 5)) < 0.8
    layer = built(N, 4, sliding_window=6, shapes=[x.shape])
    flat = built(N, 4, sliding_window=6, shapes=[(B, T, Dq)])
    flat.set_weights(layer.get_weights())
    if symbolic:
        inputs = [
            keras.Input((None, None, Dq)),
            keras.Input((None, None), dtype="bool"),
            keras.Input((None,) * 4, dtype="bool"),
        ]
        result = both(
            layer, inputs[0], query_mask=inputs[1], attention_mask=inputs[2], use_causal_mask=True
        )
        output, weights = keras.Model(inputs, result)([x, real, mask])
    else:
        output, weights = both(layer, x, query_mask=real, attention_mask=mask, use_causal_mask=True)
    expected, expected_weights = both(
        flat,
        x.reshape(B, 15, Dq),
        query_mask=real.reshape(B, 15),
        attention_mask=mask.reshape(B, 15, 15),
        use_causal_mask=True,
    )
    close(output, np.reshape(expected, (B, 3, 5, Dq)))
    close(weights, np.reshape(expected_weights, (B, N, 3, 5, 3, 5)))


def test_masks_of_other_axes_and_heads(rng):
    """Over axis 2 of [B, 3, 5, D]: masks [B, T, S], [B, 3, T, S] and [B, 3, N, T, S]."""
    x = rng.normal(size=(B, 3, 5, Dq)).astype("float32")
    layer = built(N, 4, attention_axes=2, shapes=[x.shape])
    slices = built(N, 4, shapes=[(B, T, Dq)])
    slices.set_weights(layer.get_weights())
    for shape in ((B, 5, 5), (B, 3, 5, 5), (B, 3, N, 5, 5)):
        mask = rng.random(shape) < 0.7
        output, weights = both(layer, x, attention_mask=mask)
        for i in range(3):
            own = mask if len(shape) == 3 else mask[:, i]
            close((output[:, i], weights[:, i]), both(slices, x[:, i], attention_mask=own))


def test_memory_over_one_of_two_axes(rng):
    shapes = (B, 3, 5, Dq), (B, 3, 7, Dv), (B, 3, 7, Dk)
    layer = built(N, 4, attention_axes=2, shapes=shapes)
    query, value, key = draw(rng, *shapes)
    mask = rng.random((B, 3, 7)) < 0.8
    memory = layer.precompute(value, key, value_mask=mask)
    close(both(layer, query, memory=memory), both(layer, query, value, key, value_mask=mask))
    with pytest.raises(ValueError, match="`precompute`.*several axes"):
        built(N, 4, shapes=shapes).precompute(value, key)


def test_grouped_heads_over_two_axes(rng):
    x = rng.normal(size=(B, 3, 5, Dq)).astype("float32")
    layer = built(4, 4, num_key_value_heads=2, shapes=[x.shape])
    flat = built(4, 4, num_key_value_heads=2, shapes=[(B, T, Dq)])
    flat.set_weights(layer.get_weights())
    output, weights = both(layer, x, use_causal_mask=True)
    expected, expected_weights = both(flat, x.reshape(B, 15, Dq), use_causal_mask=True)
    close(output, np.reshape(expected, x.shape))
    close(weights, np.reshape(expected_weights, (B, 4, 3, 5, 3, 5)))


def test_symbolic_shapes_over_axes():
    query, value = keras.Input((3, 5, Dq)), keras.Input((3, 7, Dv))
    output, weights = both(MultiHeadAttention(N, 4, attention_axes=2), query, value)
    assert (output.shape, weights.shape) == ((None, 3, 5, Dq), (None, 3, N, 5, 7))
    layer = MultiHeadAttention(N, 4, output_shape=(2, 3))
    output, weights = both(layer, query, value)
    assert (output.shape, weights.shape) == ((None, 3, 5, 2, 3), (None, N, 3, 5, 3, 7))
    assert layer.compute_output_shape(query.shape, value.shape) == output.shape


# Other arguments


@pytest.mark.parametrize("output_shape", [13, (13,), (3, 2)])
def test_output_shape_with_empty_rows_and_one_step(rng, output_shape):
    layer, (query, value, key) = built(N, 4, output_shape=output_shape), draw(rng)
    sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
    mask = MASKS["query_mask"]
    output = to_numpy(layer(query, value, key, query_mask=mask))
    assert output.shape == (B, T, *sizes)
    assert np.all(output[~mask] == 0) and np.all(output[mask] != 0)
    one = layer(query[:, 1], value, key)
    close(one, layer(query, value, key)[:, 1])


def test_one_step_with_masks_of_heads(rng):
    layer, (query, value, key) = built(N, 4), draw(rng)
    mask = rng.random((B, N, S)) < 0.6
    expected = both(layer, query[:, :1], value, key, attention_mask=mask[:, :, None])
    found = both(layer, query[:, 0], value, key, attention_mask=mask)
    close(found, (expected[0][:, 0], expected[1][:, :, 0]))


def test_activity_regularizer_acts_on_the_projections(rng):
    layer, other = twins(N, 4, activity_regularizer=keras.regularizers.L2(0.25))
    tensors = draw(rng)
    layer(*tensors), other(*tensors)
    close(sum(layer.losses), sum(other.losses))
    assert float(sum(layer.losses)) > 0


def test_gate_of_a_hidden_query_is_harmless(rng):
    layer, (query, value, key) = built(N, 4, use_gate=True), draw(rng)
    mask = MASKS["query_mask"]
    variables = layer.trainable_variables

    def output(*tensors):
        return layer(*tensors, query_mask=mask)

    clean = gradients(output, query, value, key, variables=variables)
    query[~mask] = np.nan
    assert np.all(to_numpy(output(query, value, key))[~mask] == 0)
    close(gradients(output, query, value, key, variables=variables), clean)


def test_bias_of_queries_without_keys_is_0_in_mixed_precision(rng):
    """The output bias does not show where nothing is attended to, whatever the dtype."""
    for policy in LAYER_TOLERANCES:
        layer = built(N, 4, dtype=policy)
        output = layer(*draw(rng), value_mask=np.zeros((B, S), bool))
        assert np.all(to_numpy(output) == 0)


# Bad input


@pytest.mark.parametrize(
    "name", ["num_heads", "key_dim", "value_dim", "num_key_value_heads", "sliding_window"]
)
@pytest.mark.parametrize("size", [0, -1, 2.5, "4", True])
def test_sizes_must_be_positive_integers(name, size):
    arguments = {"num_heads": 2, "key_dim": 4, name: size}
    with pytest.raises(
        ValueError, match=f"`{name}` must be a positive integer. Received: {size!r}"
    ):
        MultiHeadAttention(**arguments)


@pytest.mark.parametrize("heads, groups", [(3, 2), (2, 4)])
def test_groups_must_divide_the_heads(heads, groups):
    with pytest.raises(ValueError) as error:
        MultiHeadAttention(heads, 4, num_key_value_heads=groups)
    words = "`num_key_value_heads` must divide `num_heads`", str(heads), f"Received: {groups}"
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("axes", [(0,), (3,), (-1,), (1, 1), (1, -3), (7,)])
def test_attention_axes_that_do_not_exist(axes):
    arguments = {"query": np.zeros((B, 3, 5, Dq), "float32")}
    layer = MultiHeadAttention(N, 4, attention_axes=axes)
    refused(layer, arguments, "`attention_axes`", "4 axes", str(axes))


@pytest.mark.parametrize("axes", [(), "ab", (1.5,)])
def test_attention_axes_must_be_integers(axes):
    with pytest.raises(ValueError, match="`attention_axes` must be"):
        MultiHeadAttention(N, 4, attention_axes=axes)


@pytest.mark.parametrize("output_shape", [0, (3, 0), -1, ()])
def test_output_shape_must_be_positive(output_shape):
    with pytest.raises(ValueError, match="`output_shape` must be"):
        MultiHeadAttention(N, 4, output_shape=output_shape)


def test_flash_attention_is_refused():
    with pytest.raises(ValueError, match="`flash_attention` must be None or False"):
        MultiHeadAttention(N, 4, flash_attention=True)


@pytest.mark.parametrize("shape", [(B, N + 1, T, S), (N, B, T, S), (B, N, T, 1)], ids=str)
def test_masks_of_heads_that_do_not_fit(shape):
    query, value, key = (np.zeros(s, "float32") for s in SHAPES)
    arguments = {"query": query, "value": value, "key": key}
    mask = np.ones(shape, bool)
    refused(built(N, 4), {**arguments, "attention_mask": mask}, "`attention_mask`", str(shape))
    bias = np.zeros(shape, "float32")
    refused(built(N, 4), {**arguments, "attention_bias": bias}, "`attention_bias`", str(shape))


@pytest.mark.parametrize(
    "shape", [(B, 5), (B, 1, 1, 1, 1, 5, 5), (B, 5, 1), (B, 5, 6), (B, 4, 5, 5)], ids=str
)
def test_masks_over_axes_that_do_not_fit(shape):
    arguments = {
        "query": np.zeros((B, 3, 5, Dq), "float32"),
        "attention_mask": np.ones(shape, bool),
    }
    layer = built(N, 4, attention_axes=2, shapes=[(B, 3, 5, Dq)])
    refused(layer, arguments, "mask", str(shape))


def test_inputs_of_different_ranks():
    arguments = {
        "query": np.zeros((B, 3, 5, Dq), "float32"),
        "value": np.zeros((B, 5, Dq), "float32"),
    }
    for layer in (MultiHeadAttention(N, 4), built(N, 4, shapes=[(B, 3, 5, Dq)])):
        refused(layer, arguments, "query", "value", str((B, 3, 5, Dq)), str((B, 5, Dq)))


def test_other_axes_that_differ():
    """Over axis 2, axis 1 of query and value must be equal."""
    arguments = {
        "query": np.zeros((B, 3, 5, Dq), "float32"),
        "value": np.zeros((B, 4, 5, Dq), "float32"),
    }
    layer = built(N, 4, attention_axes=2, shapes=[(B, 3, 5, Dq)])
    refused(layer, arguments, "value")


@pytest.mark.parametrize("masked", [False, True])
def test_no_keys_give_zeros_and_not_the_output_bias(rng, masked):
    layer = built(2, 3)
    randomise(layer, rng)
    query, value = ops.ones((B, T, Dq)), ops.ones((B, 0, Dv))
    key, mask = ops.ones((B, 0, Dk)), np.arange(T) < np.ones((B, 1)) if masked else None
    assert not np.any(layer(query, value, key, query_mask=mask))


@pytest.mark.parametrize("steps", [1, 3])
def test_quantised_projections(rng, steps):
    """Keras quantises the projections, which go on through its own layers then."""
    inputs = keras.Input((steps, 16))
    model = keras.Model(inputs, MultiHeadAttention(2, 8, num_key_value_heads=1)(inputs))
    x = rng.normal(size=(2, steps, 16)).astype("float32")
    expected = np.asarray(model(x))
    model.quantize("int8")
    found = np.asarray(model(x))
    assert not np.array_equal(found, expected)
    assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
