"""Functional models that return attention weights as well, without training again."""

import keras
import numpy as np
import pytest
import reference as ref
from backend import assert_equal_without_weights

from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.outputs import attention_model, attention_scores_model

B, T, S, D, N = 2, 3, 5, 4, 2


def inputs():
    return keras.Input((None, D), name="query"), keras.Input((None, D), name="memory")


def data(rng, steps=T, memory_steps=S):
    return [rng.normal(size=(B, n, D)).astype("float32") for n in (steps, memory_steps)]


def dot_weights(query, memory):
    return ref.masked_softmax(np.einsum("btd,bsd->bts", query, memory))


def test_outputs_are_those_of_the_model_and_weights_those_of_the_layer(rng):
    query, memory = inputs()
    context = LuongAttention("dot", name="cross")(query, memory)
    context = MultiHeadAttention(N, 3, name="self")(context)
    model = keras.Model([query, memory], keras.layers.Dense(7)(context))
    x = data(rng)
    expected = np.asarray(model(x))
    outputs, weights = attention_model(model, "cross")(x)
    assert_equal_without_weights(outputs, expected)
    np.testing.assert_allclose(weights, dot_weights(*x), rtol=1e-5, atol=1e-6)
    outputs, weights = attention_model(model, "self")(x)
    assert_equal_without_weights(outputs, expected)
    assert weights.shape == (B, N, T, T)
    assert np.array_equal(model(x), expected), "the model itself must stay as it was"


@pytest.mark.parametrize(
    "decoder",
    [
        lambda: BahdanauDecoder(keras.layers.GRUCell(D), BahdanauAttention(3), name="decoder"),
        lambda: LuongDecoder(keras.layers.LSTMCell(D), LuongAttention("general"), name="decoder"),
        lambda: LuongDecoder(keras.layers.GRUCell(D), MultiHeadAttention(2, 3), name="decoder"),
    ],
    ids=["bahdanau", "luong", "heads"],
)
def test_decoders_with_masks(rng, decoder):
    ids, memory_ids = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embed = keras.layers.Embedding(9, D, mask_zero=True)
    layer = decoder()
    model = keras.Model(
        [ids, memory_ids], keras.layers.Dense(9)(layer(embed(ids), embed(memory_ids)))
    )
    x = [np.array([[1, 2, 3], [4, 0, 0]]), np.array([[5, 6, 7, 8], [1, 2, 0, 0]])]
    outputs, weights = attention_model(model, "decoder").predict(x, verbose=0)
    np.testing.assert_allclose(outputs, model.predict(x, verbose=0), rtol=1e-6, atol=1e-6)
    _, direct = layer(embed(x[0]), embed(x[1]), return_attention_scores=True)
    np.testing.assert_allclose(weights, direct, rtol=1e-5, atol=1e-6)
    real = (x[0] != 0)[:, :, None] & (x[1] != 0)[:, None, :]
    assert (weights[~real] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), x[0] != 0, rtol=1e-5, atol=1e-6)


def test_it_follows_further_training(rng):
    query, memory = inputs()
    context = LuongAttention("general", name="cross")(query, memory)
    model = keras.Model([query, memory], keras.layers.Dense(1)(context))
    model.compile("sgd", "mse")
    with_weights = attention_model(model, "cross")
    x = data(rng)
    before = np.asarray(with_weights(x)[1])
    model.fit(x, np.ones((B, T, 1)), epochs=3, verbose=0)
    outputs, weights = with_weights(x)
    np.testing.assert_allclose(outputs, model(x), rtol=1e-6, atol=1e-6)
    assert np.abs(before - weights).max() > 1e-4
    assert len(with_weights.trainable_variables) == len(model.trainable_variables)
    fresh = attention_model(model, "cross")(x)
    assert np.array_equal(fresh[1], weights)


def test_outputs_that_are_several_or_a_dictionary(rng):
    query, memory = inputs()
    context = LuongAttention("dot", name="cross")(query, memory)
    one, two = keras.layers.Dense(1)(context), keras.layers.Dense(2)(context)
    x = data(rng)
    expected = dot_weights(*x)
    outputs, weights = attention_model(keras.Model([query, memory], [one, two]), "cross")(x)
    assert [o.shape for o in outputs] == [(B, T, 1), (B, T, 2)]
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)

    named = keras.Model({"query": query, "memory": memory}, {"one": one, "two": two})
    results = attention_model(named, "cross")({"query": x[0], "memory": x[1]})
    assert {name: y.shape for name, y in results.items()} == {
        "one": (B, T, 1),
        "two": (B, T, 2),
        "cross": (B, T, S),
    }
    np.testing.assert_allclose(results["cross"], expected, rtol=1e-5, atol=1e-6)
    scores = attention_scores_model(named)({"query": x[0], "memory": x[1]})
    np.testing.assert_allclose(scores["cross"], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="output of that name, 'cross'"):
        attention_model(keras.Model([query, memory], {"cross": one}), "cross")


def test_a_subclass_with_its_own_constructor_and_training_step(rng):
    class Translator(keras.Model):
        def __init__(self, size, tag):
            query, memory = inputs()
            context = LuongAttention("dot", name="cross")(query, memory)
            super().__init__(
                inputs={"query": query, "memory": memory}, outputs=keras.layers.Dense(size)(context)
            )
            self.tag = tag

        def train_step(self, data):
            raise AssertionError("must not be called")

    model = Translator(7, tag="x")
    # A loss that can not be serialised, and an optimizer that must not be copied.
    model.compile("adam", loss=lambda y, p: keras.ops.mean(p))
    query, memory = data(rng)
    x = {"query": query, "memory": memory}
    outputs, weights = attention_model(model, "cross").predict(x, verbose=0)
    np.testing.assert_allclose(outputs, model(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(weights, dot_weights(query, memory), rtol=1e-5, atol=1e-6)


def test_a_layer_called_twice_and_one_that_already_gives_weights(rng):
    query, memory = inputs()
    layer = LuongAttention("dot", name="shared")
    context, weights = layer(query, memory, return_attention_scores=True)
    model = keras.Model([query, memory], [layer(context, memory), weights])
    x = data(rng)
    first = dot_weights(*x)
    second = dot_weights(np.einsum("bts,bsd->btd", first, x[1]), x[1])
    for name, expected in (("shared", first), ("shared_1", second)):
        (outputs, given), seen = attention_model(model, name)(x)
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(given, first, rtol=1e-5, atol=1e-6)
        assert np.array_equal(outputs, model(x)[0])


def test_free_lengths_saving_and_loading(rng, tmp_path):
    query, memory = inputs()
    context = LuongAttention("general", name="cross")(query, memory)
    model = keras.Model([query, memory], keras.layers.Dense(1)(context))
    with_weights = attention_model(model, "cross")
    expected = with_weights(data(rng))
    for name, saved in (("both", with_weights), ("model", model)):
        saved.save(tmp_path / f"{name}.keras")
    loaded = keras.saving.load_model(tmp_path / "both.keras")
    rebuilt = attention_model(keras.saving.load_model(tmp_path / "model.keras"), "cross")
    x = data(np.random.default_rng(1), 7, 11)
    for other in (loaded, rebuilt):
        for actual, wanted in zip(other(x), with_weights(x), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-6)
    assert expected[1].shape == (B, T, S)


def test_optional_inputs_stay_optional(rng):
    query, memory = inputs()
    mask = keras.Input((None,), dtype="bool", name="mask", optional=True)

    class Masked(keras.layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            return x if mask is None else x * keras.ops.cast(mask, x.dtype)[..., None]

    context = LuongAttention("dot", name="cross")(Masked()(query, mask=mask), memory)
    model = keras.Model([query, memory, mask], context)
    x = data(rng)
    _, weights = attention_model(model, "cross")([*x, None])
    np.testing.assert_allclose(weights, dot_weights(*x), rtol=1e-5, atol=1e-6)


def test_errors():
    query, memory = inputs()
    context = LuongAttention("dot", name="cross")(query, memory)
    context = MultiHeadAttention(N, 3, name="self")(context)
    model = keras.Model([query, memory], keras.layers.Dense(1, name="out")(context))
    for name in ("out", "croß", None):
        with pytest.raises(ValueError, match=f"'cross', 'self'. Received: {name!r}"):
            attention_model(model, name)
    plain = keras.Model(query, keras.layers.Dense(1)(query))
    with pytest.raises(ValueError, match="has none"):
        attention_model(plain, "cross")
    with pytest.raises(ValueError, match="has no attention layer"):
        attention_scores_model(plain)
    for other in (keras.Sequential([keras.layers.Dense(1)]), keras.layers.Dense(1), None):
        with pytest.raises(ValueError, match="Functional"):
            attention_model(other, "cross")


def test_a_layer_inside_of_a_nested_model(rng):
    """It can not be reached, which does not hinder reaching the others."""
    query, _ = inputs()
    inner = keras.Model(query, LuongAttention(name="hidden")(query), name="inner")
    outer = keras.Input((None, D))
    model = keras.Model(outer, LuongAttention(name="seen")(inner(outer)))
    _, weights = attention_model(model, "seen")(data(rng)[0])
    assert weights.shape == (B, T, T)
    with pytest.raises(ValueError, match="'seen'. Received: 'hidden'. hidden: .*'inner'"):
        attention_model(model, "hidden")
