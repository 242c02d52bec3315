"""Sizes that are unknown until a graph runs must fit there too: nothing broadcasts in silence."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    MultiHeadAttention,
    ScaledDotProductAttention,
    attention_scores_model,
)

D = 4
LAYERS = {
    "bahdanau": lambda: BahdanauAttention(3),
    "luong": lambda: LuongAttention("general"),
    "scaled_dot": ScaledDotProductAttention,
    "multi_head": lambda: MultiHeadAttention(2, 3),
}
SEQUENCE = tf.TensorSpec([None, None, D])


@pytest.fixture(params=list(LAYERS))
def layer(request):
    layer = LAYERS[request.param]()
    layer.build((None, None, D), (None, None, D))
    return layer


def ones(*shape, dtype="float32"):
    return tf.ones(shape, dtype)


def test_batches_that_differ(layer):
    call = tf.function(lambda q, v: layer(q, v), input_signature=[SEQUENCE] * 2)
    assert call(ones(2, 3, D), ones(2, 5, D)).shape == (2, 3, D)
    for batches in ((1, 2), (2, 1)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(ones(batches[0], 3, D), ones(batches[1], 5, D))


def test_attention_mask_that_would_stretch_the_query(layer):
    mask = tf.TensorSpec([None, None, None], "bool")
    call = tf.function(
        lambda q, v, m: layer(q, v, attention_mask=m), input_signature=[SEQUENCE] * 2 + [mask]
    )
    assert call(ones(2, 1, D), ones(2, 3, D), ones(1, 1, 3, dtype="bool")).shape == (2, 1, D)
    for query, shape in (((1, 2), (4, 2, 3)), ((2, 1), (2, 5, 3)), ((2, 2), (2, 2, 1))):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(ones(*query, D), ones(query[0], 3, D), ones(*shape, dtype="bool"))


def test_memory_of_another_batch(layer):
    memory = layer.precompute(ones(1, 5, D))
    with pytest.raises(ValueError, match="`memory`"):
        layer(ones(2, D), memory=memory)


def test_nan_behind_a_query_mask_with_a_memory(layer):
    nan = np.full((1, 2, D), np.nan, "float32")
    hidden = layer(ones(1, 1, D), memory=layer.precompute(nan), query_mask=[[False]])
    np.testing.assert_array_equal(hidden, np.zeros((1, 1, D)))


@pytest.mark.parametrize("decoder_class", [BahdanauDecoder, LuongDecoder])
def test_decoders(decoder_class):
    decoder = decoder_class(keras.layers.GRUCell(3), BahdanauAttention(3))
    with pytest.raises(ValueError, match="must be built"):
        decoder.step(ones(2, D), [ones(2, 3)], ones(2, 5, D))
    call = tf.function(lambda x, m: decoder(x, m), input_signature=[SEQUENCE] * 2)
    assert call(ones(2, 3, D), ones(2, 5, D)).shape == (2, 3, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(ones(2, 3, D), ones(1, 5, D))
    with pytest.raises(ValueError, match="`initial_state`"):
        decoder(ones(2, 3, D), ones(2, 5, D), initial_state=ones(1, 3))
    with pytest.raises(ValueError, match="`inputs` must be floating"):
        decoder.step(ones(2, D, dtype="int32"), [ones(2, 3)], ones(2, 5, D))


def test_scores_of_a_layer_inside_of_a_nested_model():
    inner_input = keras.Input((3, D))
    inner = keras.Model(inner_input, LuongAttention(name="hidden")(inner_input), name="inner")
    outer = keras.Input((3, D))
    model = keras.Model(outer, LuongAttention(name="seen")(inner(outer)))
    with pytest.raises(ValueError, match="hidden.*'inner'"):
        attention_scores_model(model)
    with pytest.raises(ValueError, match="Functional"):
        attention_scores_model(keras.Sequential([keras.layers.Dense(3)]))
