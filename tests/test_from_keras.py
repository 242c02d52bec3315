"""`attention_from_keras` against the layers of Keras, run beside it."""

import warnings

import keras
import numpy as np
import pytest
from backend import to_numpy

from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.migrate.from_keras import attention_from_keras

LIMIT = 1e-5
B, T, S, Dq, Dv, Dk = 2, 3, 5, 8, 6, 7

WITH_HEADS = {
    "plain": lambda: keras.layers.MultiHeadAttention(2, 3),
    "no bias": lambda: keras.layers.MultiHeadAttention(2, 3, use_bias=False),
    "sizes": lambda: keras.layers.MultiHeadAttention(2, 3, value_dim=5, output_shape=(4, 9)),
    "gate": lambda: keras.layers.MultiHeadAttention(2, 3, use_gate=True),
    "window": lambda: keras.layers.MultiHeadAttention(2, 3, sliding_window=2),
    "dropout": lambda: keras.layers.MultiHeadAttention(2, 3, dropout=0.5, seed=3),
    "groups": lambda: keras.layers.GroupQueryAttention(3, 4, 2),
    "one group": lambda: keras.layers.GroupQueryAttention(3, 4, 1, use_bias=False, use_gate=True),
}
WITHOUT = {
    "dot": lambda: keras.layers.Attention(),
    "scaled dot": lambda: keras.layers.Attention(use_scale=True, dropout=0.5, seed=3),
    "concat": lambda: keras.layers.Attention(score_mode="concat"),
    "scaled concat": lambda: keras.layers.Attention(use_scale=True, score_mode="concat"),
    "additive": lambda: keras.layers.AdditiveAttention(),
    "plain additive": lambda: keras.layers.AdditiveAttention(use_scale=False),
}


def draw(rng, layer):
    for weight in layer.weights:
        weight.assign(rng.normal(scale=0.6, size=weight.shape))


def close(actual, expected):
    for ours, theirs in zip(to_numpy(actual), to_numpy(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=LIMIT, atol=LIMIT)


def normal(rng, *sizes):
    return [rng.normal(size=size).astype("float32") for size in sizes]


def masks(rng):
    """Padding of the value, and a mask of pairs with something to attend to for each query."""
    value_mask = np.arange(S) < np.array([[S], [4]])
    attention_mask = (rng.random((B, S, S)) < 0.6) | np.eye(S, k=-1, dtype=bool)
    attention_mask[..., 0] = True
    return value_mask, attention_mask


@pytest.mark.parametrize("name", WITH_HEADS)
def test_layers_with_heads(name, rng):
    """Output and weights; the old layer stays as it is."""
    query, value, key = normal(rng, (B, S, Dq), (B, S, Dv), (B, S, Dk))
    theirs = WITH_HEADS[name]()
    theirs.build(query.shape, value.shape, key.shape)
    draw(rng, theirs)
    before, config = theirs.get_weights(), theirs.get_config()
    ours = attention_from_keras(theirs)
    assert isinstance(ours, MultiHeadAttention) and ours.name == theirs.name
    value_mask, attention_mask = masks(rng)
    for options in ({}, {"value_mask": value_mask, "attention_mask": attention_mask}):
        options["return_attention_scores"] = True
        close(ours(query, value, key, **options), theirs(query, value, key, **options))
    assert theirs.get_config() == config
    close(theirs.get_weights(), before)
    shared = set(config) & set(ours.get_config()) - {"attention_axes", "dtype"}
    assert {key: ours.get_config()[key] for key in shared} == {key: config[key] for key in shared}


@pytest.mark.parametrize("axes", [(1,), (2,), (-2,), (1, 2)])
def test_attention_axes(axes, rng):
    (x,) = normal(rng, (B, T, S, Dq))
    theirs = keras.layers.MultiHeadAttention(2, 3, attention_axes=axes)
    theirs(x, x)
    draw(rng, theirs)
    ours = attention_from_keras(theirs)
    weights = {"return_attention_scores": True}
    close(ours(x, x, **weights), theirs(x, x, **weights))
    again = attention_from_keras(keras.saving.serialize_keras_object(theirs), theirs.get_weights())
    close([again(x, x)], [theirs(x, x)])


@pytest.mark.parametrize("name", WITHOUT)
def test_layers_without_heads(name, rng):
    query, value, key = normal(rng, (B, T, Dq), (B, S, Dv), (B, S, Dq))
    theirs = WITHOUT[name]()
    theirs([query, value, key])
    draw(rng, theirs)
    ours = attention_from_keras(theirs)
    assert isinstance(ours, LuongAttention if name.endswith("dot") else BahdanauAttention)
    value_mask, _ = masks(rng)
    query_mask = np.array([[True, True, False]] * B)
    weights = {"return_attention_scores": True}
    close(ours(query, value, key, **weights), theirs([query, value, key], **weights))
    expected = theirs([query, value, key], mask=[query_mask, value_mask])
    close([ours(query, value, key, query_mask=query_mask, value_mask=value_mask)], [expected])
    square = [query, value[:, :T]]
    close(
        [ours(*square, query, use_causal_mask=True)],
        [theirs([*square, query], use_causal_mask=True)],
    )


@pytest.mark.parametrize("make", [*WITH_HEADS.values(), *WITHOUT.values()])
def test_config_and_weights_without_a_layer(make, rng):
    """As a list and by names; and with the config alone the layer is not built."""
    theirs, x = make(), normal(rng, (B, T, Dq))[0]
    has_heads = not isinstance(theirs, keras.layers.Attention)
    inputs = (x, x) if has_heads else ([x, x],)
    theirs(*inputs, return_attention_scores=True)  # makes the weights
    draw(rng, theirs)
    expected, _ = theirs(*inputs, return_attention_scores=True)
    config = keras.saving.serialize_keras_object(theirs)
    from_list = attention_from_keras(config, theirs.get_weights(), size=Dq)
    close([from_list(x, x)], [expected])
    named = {"/".join(w.path.split("/")[1:]): w.numpy() for w in theirs.weights}
    close([attention_from_keras(config, named, size=Dq)(x, x)], [expected])
    if has_heads:
        assert not attention_from_keras(config).built and not attention_from_keras(make()).built


def test_it_is_saved(rng, tmp_path):
    theirs, (x,) = keras.layers.AdditiveAttention(), normal(rng, (B, T, Dq))
    expected = theirs([x, x])
    inputs = keras.Input((None, Dq))
    model = keras.Model(inputs, attention_from_keras(theirs)(inputs, inputs))
    model.save(tmp_path / "model.keras")
    close([keras.models.load_model(tmp_path / "model.keras")(x)], [expected])


def test_dtype_policy_and_dropout_are_kept(rng):
    theirs = keras.layers.MultiHeadAttention(
        2, 3, dropout=0.9, seed=3, dtype="mixed_bfloat16", trainable=False
    )
    x = normal(rng, (B, T, Dq))[0]
    theirs(x, x)
    ours = attention_from_keras(theirs)
    assert ours.dtype_policy.name == "mixed_bfloat16" and not ours.trainable
    assert keras.backend.standardize_dtype(ours(x, x).dtype) == "bfloat16"
    assert np.any(to_numpy(ours(x, x, training=True)) != to_numpy(ours(x, x)))


# What does not fit


def test_weights_that_do_not_fit(rng):
    theirs, x = keras.layers.MultiHeadAttention(2, 3), normal(rng, (B, T, Dq))[0]
    theirs(x, x)
    config = keras.saving.serialize_keras_object(theirs)
    weights = {"/".join(w.path.split("/")[1:]): w.numpy() for w in theirs.weights}

    def refused(message, weights, layer=config, **options):
        with pytest.raises(ValueError, match=message):
            attention_from_keras(layer, weights, **options)

    kernel = weights.pop("value/kernel")
    refused(r"no 'value/kernel', an array of shape \(any, any, any\)", weights)
    weights["value/kernel"] = kernel[:, :1]
    refused(r"'value/kernel' .* \(8, 2, 3\). Received shape \(8, 1, 3\)", weights)
    weights |= {"value/kernel": kernel, "gate/kernel": kernel}
    refused(r"more than the layer takes: 'gate/kernel' \(8, 2, 3\)", weights)
    refused("must be 8 arrays: query/kernel, query/bias, key/kernel.* Received: 7", [kernel] * 7)
    scaled = keras.saving.serialize_keras_object(keras.layers.Attention(use_scale=True))
    refused("`size`, the features of queries", [1.0], scaled)
    additive = keras.saving.serialize_keras_object(keras.layers.AdditiveAttention())
    refused("must be built, or come with its `weights`", None, additive)
    refused(r"'scale' .* must have shape \(any\). Received shape \(\)", [1.0], additive)


def test_layers_without_a_counterpart():
    class Own(keras.layers.MultiHeadAttention):
        pass

    def refused(layer, message):
        with pytest.raises(ValueError, match=message):
            attention_from_keras(layer)

    flash = keras.layers.MultiHeadAttention(2, 3, flash_attention=True, name="fast")
    refused(flash, "'fast' was made with flash_attention=True.*flash_attention=None")
    refused(Own(2, 3), "a subclass of MultiHeadAttention, which may compute something else")
    refused(keras.layers.Dense(3), "must be one of keras.layers: MultiHeadAttention, .*Dense")
    refused(MultiHeadAttention(2, 3), "must be one of keras.layers")
    refused({"class_name": "Dense", "config": {}}, "must be one of .* Received: 'Dense'")
    layer, x = keras.layers.MultiHeadAttention(2, 3, name="small"), keras.Input((None, 8))
    model = keras.Model(x, layer(x, x))
    attention_from_keras(layer)
    with warnings.catch_warnings(action="ignore"):  # of the layers that can not be quantised
        model.quantize("int8")
    refused(layer, "'small' is quantised")
