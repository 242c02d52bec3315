"""`replace_attention`: whole models with Keras's layers and with ours, side by side."""

import json

import keras
import numpy as np
import pytest
from backend import to_numpy

import keras_attention
from keras_attention import replace_attention

LIMIT = 1e-5
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])  # 0 is padding
FULL = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def close(actual, expected, where=Ellipsis):
    ours, theirs = to_numpy(actual), to_numpy(expected)
    np.testing.assert_allclose(ours[where], theirs[where], rtol=LIMIT, atol=LIMIT)


def drawn(model):
    """The model with random weights in every layer."""
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(scale=0.5, size=w.shape) for w in model.get_weights()])
    return model


def embedded(mask_zero=True, name="tokens"):
    tokens = keras.Input((None,), dtype="int32", name=name)
    return tokens, keras.layers.Embedding(10, 8, mask_zero=mask_zero)(tokens)


def every_kind():
    """One attention of each kind, with an operation between them."""
    tokens, x = embedded()
    x = x + keras.layers.MultiHeadAttention(2, 4, name="heads")(x, x, use_causal_mask=True)
    x = keras.layers.GroupQueryAttention(4, 4, 2, name="groups")(query=x, value=x, key=x)
    x = keras.layers.Attention(use_scale=True, name="dot")([x, x])
    x = keras.layers.Attention(score_mode="concat", name="concat")([x, x, x])
    x = keras.layers.AdditiveAttention(name="additive")([x, x], use_causal_mask=True)
    return drawn(keras.Model(tokens, keras.layers.Dense(3, name="out")(x)))


def kinds(model):
    """Modules of the attention layers by name."""
    return {
        layer.name: type(layer).__module__.partition(".")[0]
        for layer in model.layers
        if "Attention" in type(layer).__name__
    }


def test_every_kind_of_attention(tmp_path):
    """The same numbers, also after saving; the old model stays as it is."""
    model = every_kind()
    weights, config = model.get_weights(), json.dumps(model.get_config(), default=str)
    nodes = [len(layer._inbound_nodes) for layer in model.operations]
    expected = model(FULL)
    new_model = replace_attention(model)
    assert set(kinds(model).values()) == {"keras"}
    assert set(kinds(new_model).values()) == {"keras_attention"} and len(kinds(new_model)) == 5
    assert [layer.name for layer in new_model.layers] == [layer.name for layer in model.layers]
    close(new_model(FULL), expected)
    new_model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    close(loaded(IDS), new_model(IDS))
    new_model.set_weights([0.5 * w for w in new_model.get_weights()])
    assert np.abs(to_numpy(new_model(FULL)) - to_numpy(expected)).max() > 1e-4
    close(model(FULL), expected)
    for old, kept in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(old, kept)
    assert json.dumps(model.get_config(), default=str) == config
    assert [len(layer._inbound_nodes) for layer in model.operations] == nodes


def at_real_steps(model, padding=0):
    ids = np.pad(IDS, [(0, 0), (0, padding)])
    return to_numpy(model(ids))[ids != 0]


def test_padding_that_keras_lost_is_respected():
    """Two attentions read one masked tensor: Keras's first one takes the mask away."""
    tokens, x = embedded()
    first = keras.layers.MultiHeadAttention(2, 4)(x, x)
    second = keras.layers.MultiHeadAttention(2, 4)(x, x)
    model = drawn(keras.Model(tokens, keras.layers.Add()([first, second])))
    new_model = replace_attention(model)
    close(new_model(FULL), model(FULL))
    assert np.abs(at_real_steps(model, 3) - at_real_steps(model)).max() > 0.01
    close(at_real_steps(new_model, 3), at_real_steps(new_model))
    # As if each had been alone.
    alone = [keras.Model(tokens, branch) for branch in (first, second)]
    expected = sum(at_real_steps(replace_attention(one)) for one in alone)
    close(at_real_steps(new_model), expected)
    close(at_real_steps(replace_attention(alone[0])), at_real_steps(alone[0]))


def test_rows_that_keras_got_wrong_are_zero():
    """An explicit query mask, and a query that may attend to nothing."""
    query, memory = keras.Input((3, 8)), keras.Input((5, 8))
    mask = keras.Input((3,), dtype="bool")
    pairs = keras.Input((3, 5), dtype="int32")
    layer = keras.layers.MultiHeadAttention(2, 4)
    output = layer(query, memory, query_mask=mask, attention_mask=pairs)
    model = drawn(keras.Model([query, memory, mask, pairs], output))
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(1, 3, 8)), rng.normal(size=(1, 5, 8))]
    inputs += [np.array([[True, True, False]]), np.ones((1, 3, 5), "int32")]
    inputs[3][0, 1] = 0
    old, new = to_numpy(model(inputs)), to_numpy(replace_attention(model)(inputs))
    close(new[0, 0], old[0, 0])
    assert not new[0, 1:].any() and old[0, 1].any() and old[0, 2].any()


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
@pytest.mark.parametrize("shape", [(3, 5), (1, 3, 5), (2, 1, 3, 5)])
def test_attention_masks(dtype, shape):
    """Of any dtype, and with fewer axes than the batch, as Keras takes them."""
    query, memory = keras.Input(batch_shape=(2, 3, 8)), keras.Input(batch_shape=(2, 5, 8))
    allowed = np.random.default_rng(3).random(shape) < 0.6
    allowed[..., 0] = True
    mask = keras.Input(batch_shape=shape, dtype=dtype)
    output, weights = keras.layers.MultiHeadAttention(2, 4)(
        query, memory, attention_mask=mask, return_attention_scores=True
    )
    model = drawn(keras.Model([query, memory, mask], [output, weights]))
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 5, 8)), allowed.astype(dtype)]
    for ours, theirs in zip(replace_attention(model)(inputs), model(inputs), strict=True):
        close(ours, theirs)


def test_masks_of_a_list():
    """Explicit masks of query and value, as `keras.layers.Attention` takes them."""
    query, memory = keras.Input((3, 8)), keras.Input((5, 8))
    masks = [keras.Input((3,), dtype="bool"), keras.Input((5,), dtype="bool")]
    output, weights = keras.layers.Attention(use_scale=True)(
        [query, memory], mask=masks, return_attention_scores=True
    )
    model = drawn(keras.Model([query, memory, *masks], [output, weights]))
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 5, 8))]
    inputs += [np.array([[1, 1, 0]] * 2, bool), np.array([[1] * 5, [1, 1, 1, 0, 0]], bool)]
    (ours, weights), (theirs, their_weights) = replace_attention(model)(inputs), model(inputs)
    close(ours, theirs)
    close(weights[:, :2], their_weights[:, :2])


def test_layers_that_are_shared_stay_so():
    tokens, other = (keras.Input((None,), dtype="int32", name=n) for n in ("first", "second"))
    embedding = keras.layers.Embedding(10, 8, name="shared_embedding")
    attention = keras.layers.MultiHeadAttention(2, 4, name="shared")
    x, y = embedding(tokens), embedding(other)
    outputs = {"a": attention(x, y), "b": attention(y, x), "c": attention(x, x)}
    model = drawn(keras.Model({"first": tokens, "second": other}, outputs))
    new_model = replace_attention(model)
    assert len(new_model.weights) == len(model.weights) == 9
    assert len(new_model.get_layer("shared")._inbound_nodes) == 3
    inputs = {"first": IDS, "second": FULL[:, :4]}
    ours, theirs = new_model(inputs), model(inputs)
    assert set(ours) == {"a", "b", "c"}
    for name in ours:
        close(ours[name], theirs[name])


def test_models_inside_of_models(tmp_path):
    """A nested model that is called twice, a Sequential in it, and a layer shared with outside."""
    attention = keras.layers.MultiHeadAttention(2, 4, name="shared")
    inner_input = keras.Input((None, 8))
    hidden = keras.Sequential([keras.layers.Dense(8), keras.layers.LayerNormalization()])(
        attention(inner_input, inner_input)
    )
    inner = keras.Model(inner_input, hidden, name="inner")
    tokens, x = embedded(mask_zero=False)
    once = drawn(keras.Model(tokens, inner(inner(x))))
    x = attention(inner(inner(x)), x)
    model = drawn(keras.Model(tokens, x))
    new_model = replace_attention(model)
    assert kinds(new_model.get_layer("inner")) == {"shared": "keras_attention"}
    assert new_model.get_layer("inner").get_layer("shared") is new_model.get_layer("shared")
    assert len(new_model.weights) == len(model.weights)
    close(new_model(IDS), model(IDS))
    # (A layer that is shared with the outside of a nested model can not be loaded by Keras.)
    replace_attention(once).save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras")(IDS), once(IDS))


def test_sequential_model():
    inner_input = keras.Input((None, 8))
    attended = keras.layers.Attention(name="dot")([inner_input, inner_input])
    inner = keras.Model(inner_input, attended, name="inner")
    layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(10, 8), inner]
    model = drawn(keras.Sequential([*layers, keras.layers.Dense(3)]))
    new_model = replace_attention(model)
    assert isinstance(new_model, keras.Sequential)
    assert kinds(new_model.get_layer("inner")) == {"dot": "keras_attention"}
    close(new_model(IDS), model(IDS))


def test_settings_of_the_model_are_kept():
    """Names, what is not to be trained, and how it was compiled."""
    model = every_kind()
    model.layers[1].trainable = False  # the embedding
    model.get_layer("heads").trainable = False
    model.compile(keras.optimizers.Adam(0.125), "mse")
    new_model = replace_attention(model)
    trainable = {weight.path.partition("/")[0] for weight in new_model.trainable_weights}
    assert trainable == {"groups", "dot", "concat", "additive", "out"}
    assert float(new_model.optimizer.learning_rate) == 0.125
    assert new_model.name == model.name and new_model.loss == "mse"


@pytest.mark.tensorflow_only("text in the graph")
def test_a_learned_vocabulary_is_copied():
    text = keras.Input((1,), dtype="string")
    vectorize = keras.layers.TextVectorization()
    vectorize.adapt(["a b c d"])
    x = keras.layers.Embedding(8, 8)(vectorize(text))
    model = drawn(keras.Model(text, keras.layers.MultiHeadAttention(2, 4)(x, x)))
    texts = keras.ops.convert_to_tensor([["b c"], ["d a"]])
    close(replace_attention(model)(texts), model(texts))


def test_functions_in_the_graph():
    """Lambdas without a config, operations, and layers that wrap others."""
    tokens, x = embedded(mask_zero=False)
    x = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True), name="read")(x)
    x = keras.layers.TimeDistributed(keras.layers.Dense(8))(x)
    x = keras_attention.FeedForward(8, name="made in build")(x)
    x = keras.layers.MultiHeadAttention(2, 4, name="heads")(x, x)
    x = keras.layers.Lambda(lambda x: 2.0 * x, output_shape=lambda shape: shape)(x)
    x = keras.ops.concatenate([x, keras.ops.tanh(x)], axis=-1)[:, :4]
    model = drawn(keras.Model(tokens, x))
    for name in ("read", "made in build"):
        model.get_layer(name).trainable = False  # with all that is inside
    new_model = replace_attention(model)
    assert len(new_model.trainable_weights) == len(model.trainable_weights) == 1 + 2 + 8
    close(new_model(FULL), model(FULL))
    weights = keras_attention.attention_scores_model(new_model)(FULL)["heads"]
    assert weights.shape == (2, 2, 5, 5)


# What can not be replaced


class Block(keras.layers.Layer):
    """A layer of one's own with an attention inside."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="hidden")

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x)


class Own(keras.layers.MultiHeadAttention):
    """A subclass of an attention layer."""


def test_what_can_not_be_replaced_is_named():
    tokens, x = embedded(mask_zero=False)
    x = Block(name="block")(x)
    x = Own(2, 4, name="own")(x, x)
    memory = keras.layers.Dense(8)(keras.Input((7, 8), name="memory"))
    x = keras.layers.MultiHeadAttention(2, 4, name="late")(x, memory, use_causal_mask=True)
    x = keras.layers.MultiHeadAttention(2, 4, name="fine")(x, x)
    memory_input = memory._keras_history.operation._inbound_nodes[0].input_tensors[0]
    model = drawn(keras.Model([tokens, memory_input], x))
    with pytest.raises(ValueError) as error:
        replace_attention(model)
    for part in (
        "'block': Block has 'hidden' inside",
        "'own': Own is a subclass",
        "'late': it is called with `use_causal_mask` on query and value of lengths None and 7",
        "With `strict=False` they are kept",
    ):
        assert part in str(error.value)
    assert "'fine'" not in str(error.value)
    with pytest.warns(UserWarning, match="kept layers .*'block'.*'own'.*'late'"):
        new_model = replace_attention(model, strict=False)
    assert kinds(new_model) == {"late": "keras", "fine": "keras_attention"}
    inputs = [IDS, np.random.default_rng(1).normal(size=(2, 7, 8))]
    close(new_model(inputs), model(inputs))


def test_a_layer_that_can_not_be_copied_is_named():
    class Closed(keras.layers.Dense):
        def get_config(self):
            raise NotImplementedError("no config")

    tokens, x = embedded()
    x = Closed(8, name="closed")(keras.layers.MultiHeadAttention(2, 4)(x, x))
    with pytest.raises(ValueError, match=r"not be copied, 'closed' \(Closed\).* no config"):
        replace_attention(keras.Model(tokens, x))


def test_a_window_over_two_lengths_is_refused():
    """Keras counts both from their starts; with one length it is replaced."""
    query, memory = keras.Input((3, 8)), keras.Input((5, 8))
    layer = keras.layers.MultiHeadAttention(2, 4, sliding_window=2)
    with pytest.raises(ValueError, match="`sliding_window` on query and value of lengths 3 and 5"):
        replace_attention(keras.Model([query, memory], layer(query, memory)))
    same = keras.Input((3, 8))
    model = drawn(keras.Model([query, same], layer(query, same, use_causal_mask=True)))
    inputs = np.random.default_rng(1).normal(size=(2, 2, 3, 8))
    close(replace_attention(model)([*inputs]), model([*inputs]))


def test_models_that_are_refused():
    class Subclass(keras.Model):
        pass

    with pytest.raises(ValueError, match="must be a Functional or a Sequential model"):
        replace_attention(Subclass())
    tokens, x = embedded()
    with pytest.raises(ValueError, match="no attention layer to replace"):
        replace_attention(keras.Model(tokens, x))
    x = keras_attention.MultiHeadAttention(2, 4)(x, x)
    with pytest.raises(ValueError, match="no attention layer to replace"):
        replace_attention(keras.Model(tokens, x))
