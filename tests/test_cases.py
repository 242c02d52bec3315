"""Inputs from public bug reports that break attention layers elsewhere, with the right answers.

"Identity" means one head, no bias, all projections the identity matrix: the layer must equal
softmax(q k^T / sqrt(d)) v. The right values come from float64.
"""

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import assert_allclose, assert_equal_without_weights, tensor, to_numpy
from keras import ops
from test_layers import LAYERS, MaskOf, both, close, gradients, plain, randomise

from keras_attention import (
    BahdanauAttention,
    LuongAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
)


def identity_multi_head(size, **arguments):
    """Multi-head attention with one head, no bias and identity projections."""
    layer = MultiHeadAttention(1, size, use_bias=False, **arguments)
    layer.build((None, None, size))
    eye = np.eye(size)
    layer.set_weights([*[eye[:, None]] * 3, eye[None], *layer.get_weights()[4:]])
    return layer


IDENTITIES = {
    "multi_head": identity_multi_head,
    "scaled_dot": lambda size, **arguments: ScaledDotProductAttention(**arguments),
    "luong": lambda size, **arguments: LuongAttention("scaled_dot", **arguments),
}


@pytest.fixture(params=IDENTITIES)
def identity(request):
    return IDENTITIES[request.param]


@pytest.fixture(params=LAYERS)
def kind(request):
    return LAYERS[request.param]


def without_heads(weights):
    """Weights `[B, T, S]` of a layer that has one head or none."""
    return weights[:, 0] if len(weights.shape) == 4 else weights


# C01: keras#20455, #20594


def embedding_of_c01():
    layer = keras.layers.Embedding(3, 2, mask_zero=True)
    layer.build(())
    layer.set_weights([np.array([[5.0, 5.0], [1.0, 0.0], [0.0, 1.0]])])
    layer.trainable = False
    return layer


C01_IDS, C01_QUERY = np.array([[1, 2, 0, 0]]), np.array([[[1.0, 0.0]]], "float32")
C01_ONCE, C01_THRICE = [[[0.669762, 0.330238]]], [[[0.521106, 0.478894]]]


def model_of_c01(identity):
    """Two layers on the same embedded tensor, a chain of three, and the tensor's mask."""
    layers = [identity(2) for _ in range(4)]
    query, ids = keras.Input((None, 2)), keras.Input((None,), dtype="int32")
    embedded = embedding_of_c01()(ids)
    first, second = layers[0](query, embedded), layers[1](query, embedded)
    chained = layers[3](layers[2](first, embedded), embedded)
    return keras.Model([query, ids], [first, second, chained, MaskOf()(embedded)])


def test_c01_eagerly(identity):
    embedded = embedding_of_c01()(C01_IDS)
    layers = [identity(2) for _ in range(3)]
    for layer in layers[:2]:
        assert_allclose(layer(C01_QUERY, embedded), C01_ONCE, atol=1e-6)
    chained = C01_QUERY
    for layer in layers:
        chained = layer(chained, embedded)
    assert_allclose(chained, C01_THRICE, atol=1e-6)
    np.testing.assert_array_equal(MaskOf()(embedded), [[1, 1, 0, 0]])


def test_c01_in_a_functional_model_and_predict(identity):
    model = model_of_c01(identity)
    for results in (model([C01_QUERY, C01_IDS]), model.predict([C01_QUERY, C01_IDS], verbose=0)):
        for actual, expected in zip(results, (C01_ONCE, C01_ONCE, C01_THRICE), strict=False):
            assert_allclose(actual, expected, atol=1e-6)
        np.testing.assert_array_equal(results[3], [[1, 1, 0, 0]])


def test_c01_in_fit():
    """The losses are the squares of the right answers, so fit saw the masks too."""
    whole = model_of_c01(identity_multi_head)
    model = keras.Model(whole.inputs, whole.outputs[:3])
    model.compile(keras.optimizers.SGD(0.1), ["mse"] * 3)
    history = model.fit([C01_QUERY, C01_IDS], [np.zeros((1, 1, 2))] * 3, verbose=0).history
    expected = sum(np.mean(np.square(x)) for x in (C01_ONCE, C01_ONCE, C01_THRICE))
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)


# C02: pytorch#41508

C02_QUERY = np.array([[[1.0, 0.0], [0.0, 1.0]]])
C02_VALUE = np.array([[[1.0, 2.0], [3.0, 5.0], [5.0, 9.0]]])
C02_MASK = np.array([[[1, 1, 0], [0, 0, 0]]], bool)


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
def test_c02(identity, policy):
    layer = identity(2, dtype=policy)
    context, weights = both(layer, C02_QUERY, C02_VALUE, attention_mask=C02_MASK)
    tolerance = {"mixed_float16": 4e-3, "mixed_bfloat16": 3e-2}.get(policy, 1e-6)
    assert_allclose(to_numpy(context)[0, 0], [2.608859, 4.413289], rtol=tolerance)
    assert np.all(to_numpy(context)[0, 1] == 0)
    assert np.all(to_numpy(without_heads(weights))[0, 1] == 0)
    alone = layer(C02_QUERY, C02_VALUE, attention_mask=C02_MASK)
    assert_equal_without_weights(context, alone)


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
def test_c02_with_dropout(identity, policy):
    layer = identity(2, dtype=policy, dropout=0.5, seed=1)
    arguments = {"attention_mask": C02_MASK, "training": True}
    context, weights = both(layer, C02_QUERY, C02_VALUE, **arguments)
    assert np.all(to_numpy(context)[0, 1] == 0)
    assert np.all(to_numpy(without_heads(weights))[0, 1] == 0)
    assert np.all(to_numpy(layer(C02_QUERY, C02_VALUE, **arguments))[0, 1] == 0)


# C03: pytorch#119131


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_c03(identity, policy):
    """Scores of 12800 and 12480, products of 102400: float16 ends at 65504."""
    value = np.repeat([[[40.0], [39.0], [-1.0]]], 64, axis=-1)
    context, weights = both(identity(64, dtype=policy), value[:, :1], value)
    np.testing.assert_array_equal(to_numpy(without_heads(weights)), [[[1.0, 0.0, 0.0]]])
    np.testing.assert_array_equal(to_numpy(context), np.full((1, 1, 64), 40.0))


def test_c03_without_scaling():
    value = np.repeat([[[40.0], [39.0], [-1.0]]], 64, axis=-1)
    context, weights = both(LuongAttention("dot", dtype="mixed_float16"), value[:, :1], value)
    np.testing.assert_array_equal(to_numpy(weights), [[[1.0, 0.0, 0.0]]])
    np.testing.assert_array_equal(to_numpy(context), np.full((1, 1, 64), 40.0))


# C04: keras-hub#783


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.parametrize("groups", [None, 1])
def test_c04(rng, heads, groups):
    """A mask of heads and a mask of samples, where batch and heads are equal in number."""
    layer = MultiHeadAttention(heads, 4, num_key_value_heads=groups)
    x = rng.normal(size=(2, 3, 8))
    mask = np.ones((2, heads, 3, 3), bool)
    mask[:, 1, :, 0] = False
    value_mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    _, weights = both(layer, x, x, attention_mask=mask, value_mask=value_mask)
    hidden = ~(mask & value_mask[:, None, None])
    weights = to_numpy(weights)
    assert np.all(weights[0, :, :, 2] == 0) and np.all(weights[1, :, :, 2] > 0)
    np.testing.assert_array_equal(weights == 0, hidden)
    assert_allclose(weights.sum(-1), 1, atol=1e-6)


# C05: tensorflow/text PR 894

C05 = np.array([[[1.0, 0.0]]]), np.array([[[1.0, 2.0], [3.0, 4.0]]])


def test_c05_floating_mask(identity):
    with pytest.raises(ValueError, match="must be boolean.*True = may attend.*`attention_bias`"):
        identity(2)(*C05, attention_mask=np.array([[[0.0, -1e9]]]))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_c05_bias(identity, policy):
    layer = identity(2, dtype=policy)
    context = layer(*C05, attention_bias=np.array([[[0.0, -1e9]]]))
    np.testing.assert_array_equal(to_numpy(context), [[[1.0, 2.0]]])


# C06: keras PR 15390


@pytest.mark.parametrize("asked", [True, False])
def test_c06(identity, asked):
    x, mask = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]), np.array([[1, 1, 0]], bool)
    layer = identity(2)
    context, weights = both(layer, x, x, query_mask=mask)
    assert_equal_without_weights(context, layer(x, x, query_mask=mask))
    assert np.all(to_numpy(context)[0, 2] == 0)
    weights = to_numpy(without_heads(weights))
    assert np.all(weights[0, 2] == 0) and np.all(weights[0, :2] > 0)
    output = context if asked else layer(x, x, query_mask=mask)
    np.testing.assert_array_equal(MaskOf()(output), [[1, 1, 0]])


# C07: keras#19303


def test_c07(rng):
    query, value = keras.Input((5, 8)), keras.Input((9, 8))
    _, weights = both(MultiHeadAttention(2, 3), query, value)
    assert weights.shape == (None, 2, 5, 9)
    output = keras.layers.Dense(1)(keras.layers.Flatten()(weights))
    model = keras.Model([query, value], output)
    arrays = [rng.normal(size=(3, 5, 8)), rng.normal(size=(3, 9, 8))]
    assert model.predict(arrays, verbose=0).shape == (3, 1)


def test_c07_other_layers(kind, rng):
    query, value = keras.Input((5, 8)), keras.Input((9, 8))
    layer = kind.make()
    _, weights = both(layer, query, value)
    assert weights.shape == (None, *kind.heads, 5, 9)
    model = keras.Model([query, value], keras.layers.Flatten()(weights))
    arrays = [rng.normal(size=(3, 5, 8)), rng.normal(size=(3, 9, 8))]
    assert model(arrays).shape == (3, np.prod((*kind.heads, 5, 9)))


# C08: keras#18152


class MeanOfReal(keras.layers.Layer):
    """Mean over the steps that the mask calls real; 0 where there is none.

    `GlobalAveragePooling1D` divides by the number of real steps, which is 0 here.
    """

    def call(self, inputs, mask=None):
        real = keras.ops.cast(mask, inputs.dtype)[..., None]
        count = keras.ops.maximum(keras.ops.sum(real, axis=1), 1.0)
        return keras.ops.sum(inputs * real, axis=1) / count


@pytest.mark.parametrize("pooling", [MeanOfReal, keras.layers.GlobalMaxPooling1D])
def test_c08(kind, pooling):
    """A sample that is all padding, through attention and pooling, in one step of fit."""
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(3, 4, mask_zero=True)
    attention = kind.make()
    pooled = pooling()(attention(embedding(ids)))
    model = keras.Model(ids, keras.layers.Dense(1)(pooled))
    randomise(attention)
    array = np.array([[0, 0, 0], [1, 2, 0]])
    np.testing.assert_array_equal(keras.Model(ids, pooled)(array)[0], np.zeros(pooled.shape[-1]))
    if pooling is not MeanOfReal:
        return
    model.compile("adam", "mse")
    history = model.fit(array, np.ones((2, 1)), verbose=0).history
    assert np.isfinite(history["loss"][0])
    assert all(np.all(np.isfinite(weight)) for weight in model.get_weights())
    assert np.all(np.isfinite(model(array)))


# C09: keras#23038


@pytest.mark.parametrize("way", ["plain", "dropout", "weights", "mask"])
def test_c09(kind, rng, way):
    """Later steps change nothing before them, not by a bit."""
    layer = kind.make(dropout=0.5 if way == "dropout" else 0.0, seed=3)
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    changed = np.concatenate([x[:, :3], rng.normal(size=(2, 2, 8))], 1).astype("float32")
    arguments = {"use_causal_mask": True, "return_attention_scores": way == "weights"}
    if way == "mask":
        arguments["attention_mask"] = np.ones((2, 5, 5), bool)
    layer(x)
    outputs = [layer(y, **arguments) for y in (x, changed)]
    outputs = [output[0] if way == "weights" else output for output in outputs]
    np.testing.assert_array_equal(outputs[0][:, :3], outputs[1][:, :3])
    assert np.any(outputs[0][:, 3:] != outputs[1][:, 3:])


@pytest.mark.parametrize("axes", [(2,), (1, 2)])
@pytest.mark.parametrize("asked", [True, False])
def test_c09_rank_4(rng, axes, asked):
    x = rng.normal(size=(2, 3, 5, 8)).astype("float32")
    changed = x.copy()
    if axes == (2,):
        changed[:, :, 3:] = rng.normal(size=(2, 3, 2, 8))
        before = np.s_[:, :, :3]
    else:  # row-major: all of row 0, then steps 0..2 of row 1
        changed[:, 1, 3:] = rng.normal(size=(2, 2, 8))
        changed[:, 2] = rng.normal(size=(2, 5, 8))
        before = np.s_[:, :2, :3]
    layer = MultiHeadAttention(2, 4, attention_axes=axes)
    options = {"use_causal_mask": True, "return_attention_scores": asked}
    outputs = [layer(y, **options) for y in (x, changed)]
    first, second = (output[0] if asked else output for output in outputs)
    np.testing.assert_array_equal(to_numpy(first)[before], to_numpy(second)[before])
    assert np.any(first[:, -1, -1] != second[:, -1, -1])


# C10: keras#17655


@pytest.mark.tensorflow_only("tf.function")
def test_c10(kind, rng):
    class Block(keras.layers.Layer):
        """Masks vanish at the boundary of a `tf.function`: they are passed explicitly."""

        def __init__(self):
            super().__init__()
            self.attention = kind.build_self(size=8)

        @tf.function
        def call(self, query, value, value_mask):
            return both(self.attention, query, value, value_mask=value_mask)

    block = Block()
    query, value = (rng.normal(size=(2, n, 8)).astype("float32") for n in (3, 5))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    expected = both(block.attention, query, value, value_mask=mask)
    close(block(query, value, value_mask=mask), expected)


# C11: tensorflow#11756


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_c11(kind, rng, policy):
    """A row without keys contributes 0 to every gradient, and no gradient is NaN."""
    layer = kind.build_self(rng, size=8, dtype=policy)
    x = rng.normal(size=(1, 3, 8)).astype("float32")
    mask = np.array([[[1, 1, 0], [0, 0, 0], [1, 1, 1]]], bool)
    variables = layer.trainable_variables

    def rows(query, value):
        return ops.take(layer(query, value, attention_mask=mask), [0, 2], axis=1)

    def two_rows(query, value):
        return layer(ops.take(query, [0, 2], axis=1), value, attention_mask=mask[:, [0, 2]])

    found = gradients(rows, x, x, variables=variables)
    assert all(np.all(np.isfinite(gradient)) for gradient in found)
    assert np.all(found[0][0, 1] == 0)
    close(found, gradients(two_rows, x, x, variables=variables), policy)
    whole = gradients(lambda *args: layer(*args, attention_mask=mask), x, x, variables=variables)
    assert all(np.all(np.isfinite(gradient)) for gradient in whole)
    assert np.all(whole[0][0, 1] == 0)


# C12: pytorch#42929


def test_c12(kind, rng):
    layer = kind.make(dropout=0.5, seed=1)
    query, value = rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 5, 8))
    _, weights = both(layer, query, value, training=True)
    assert_allclose(to_numpy(weights).sum(-1), 1, atol=1e-6)


# C13: keras-hub#352


@pytest.mark.parametrize(
    "make",
    [
        lambda **arguments: MultiHeadAttention(2, 4, value_dim=4, **arguments),
        lambda **arguments: BahdanauAttention(8, **arguments),
        lambda **arguments: LuongAttention("concat", **arguments),
    ],
    ids=["multi_head", "bahdanau", "concat"],
)
def test_c13(make):
    def kernels():
        layer = make(kernel_initializer=keras.initializers.GlorotUniform(seed=7))
        layer.build((1, 3, 8))
        return {w.path.split("/")[-2]: np.asarray(w) for w in layer.weights if w.name == "kernel"}

    first, second = kernels(), kernels()
    assert {"query", "key"} <= set(first)
    for name, kernel in first.items():
        np.testing.assert_array_equal(kernel, second[name])
        others = [other for key, other in first.items() if key != name]
        assert not any(np.allclose(kernel.ravel(), other.ravel()) for other in others)


# C15: keras#20324


@pytest.mark.parametrize("symbolic", [False, True])
def test_c15_multi_head(rng, symbolic):
    """In the model, the length of value is unknown and that of key is 4."""
    shapes = (2, 3, 5), (2, 4, 7), (2, 4, 6)
    query, value, key = arrays = [rng.normal(size=shape) for shape in shapes]
    layer = MultiHeadAttention(2, 4, value_dim=3)
    layer.build(*shapes)
    randomise(layer)
    if symbolic:
        inputs = [keras.Input((3, 5)), keras.Input((None, 7)), keras.Input((4, 6))]
        context, weights = both(layer, *inputs)
        assert (context.shape, weights.shape) == ((None, 3, 5), (None, 2, 3, 4))
        result = keras.Model(inputs, [context, weights])(arrays)
    else:
        result = both(layer, *arrays)
    close(result, LAYERS["multi_head"].reference(layer, query, key, value))


@pytest.mark.parametrize("symbolic", [False, True])
def test_c15_additive(rng, symbolic):
    query, value = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 7))
    layer = BahdanauAttention(6, use_bias=True)
    layer.build(query.shape, value.shape)
    randomise(layer)
    if symbolic:
        inputs = [keras.Input((3, 5)), keras.Input((None, 7))]
        result = keras.Model(inputs, both(layer, *inputs))([query, value])
    else:
        result = both(layer, query, value)
    close(result, LAYERS["bahdanau"].reference(layer, query, value, value))


# C16: tensorflow#41294


@pytest.mark.parametrize("causal", [False, True])
def test_c16(kind, rng, causal):
    """Masks as booleans, integers, lists and tuples give the same numbers."""
    layer = kind.build_self(rng, size=8)
    query, value = rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 4, 8))
    masks = {
        "query_mask": np.array([[1, 1, 0], [1, 1, 1]], bool),
        "value_mask": np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool),
        "attention_mask": rng.random((2, 3, 4)) < 0.7,
    }

    def tuples(x):
        return tuple(tuples(y) for y in x) if isinstance(x, list) else x

    forms = [
        lambda mask: mask,
        lambda mask: mask.astype("int32"),
        lambda mask: mask.tolist(),
        lambda mask: tuples(mask.astype(int).tolist()),
        lambda mask: tensor(mask.astype("uint8")),
    ]
    results = [
        both(
            layer,
            query,
            value,
            **{name: form(m) for name, m in masks.items()},
            use_causal_mask=causal,
        )
        for form in forms
    ]
    mask = ref.layer_mask(2, 3, 4, **masks, causal=causal)
    close(results[0], kind.reference(layer, query, value, value, mask))
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(actual, expected)


# C19: keras#16108


@pytest.mark.parametrize("by", ["value_mask", "attention_mask", "attention_bias"])
def test_c19(identity, by):
    query = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    value = np.array([[[1.0, 2.0], [3.0, 5.0], [np.nan, np.inf]]])
    mask = {
        "value_mask": np.array([[1, 1, 0]], bool),
        "attention_mask": np.array([[[1, 1, 0]] * 2], bool),
        "attention_bias": np.array([[[0.0, 0.0, -np.inf]] * 2]),
    }[by]
    context = identity(2)(query, value, **{by: mask})
    assert_allclose(context, [[[2.608859, 4.413289], [2.785916, 4.678875]]], rtol=1e-6)


# C20: keras#15515


def test_c20(kind, rng):
    """Self-attention within each of 3 sentences."""
    layer = kind.build_self(rng, size=8)
    x = rng.normal(size=(2, 3, 4, 8)).astype("float32")
    expected = np.stack([layer(x[:, i]) for i in range(3)], 1)
    close(keras.layers.TimeDistributed(layer)(x), expected)
    inputs = keras.Input((3, 4, 8))
    model = keras.Model(inputs, keras.layers.TimeDistributed(layer)(inputs))
    close(model.predict(x, verbose=0), expected)


def test_c20_in_a_model_of_one_sentence(kind, rng):
    """The sentence model has masks of its own, made inside of it."""
    layer = kind.build_self(rng, size=2)
    embedding = embedding_of_c01()
    inner = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layer])
    ids = np.array([[[1, 2, 0, 0], [2, 2, 1, 0], [1, 0, 0, 0]]] * 2)
    expected = []
    for sentence in range(3):
        real = ids[:, sentence] != 0
        expected.append(layer(plain(embedding(ids[:, sentence])), query_mask=real))
    outer = keras.layers.TimeDistributed(inner)
    close(outer(ids), np.stack(expected, 1))


# C21: pytorch#188765


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_c21(kind, rng, sizes, masked):
    batch, queries, keys = sizes
    layer = kind.build(rng)
    query, value, key = kind.arrays(rng, T=queries, S=keys)
    query, value, key = (x[:batch].astype("float32") for x in (query, value, key))
    masks = {}
    if masked:
        masks = {
            "query_mask": np.ones((batch, queries), bool),
            "value_mask": np.ones((batch, keys), bool),
            "attention_mask": np.ones((batch, queries, keys), bool),
            "use_causal_mask": True,
        }

    def compute(query, value, key):
        return both(layer, query, value, key, **masks)

    signature = [tf.TensorSpec((None, None, x.shape[-1])) for x in (query, value, key)]
    graph = tf.function(compute, input_signature=signature)
    for call in (compute, graph):
        context, weights = to_numpy(call(query, value, key))
        assert weights.shape == (batch, *kind.heads, queries, keys)
        assert context.shape == (batch, queries, 11 if kind.heads else 17)
        assert np.all(np.isfinite(context)) and np.all(np.isfinite(weights))
        if keys == 0:
            assert np.all(context == 0)
    by_inputs = gradients(lambda *args: layer(*args, **masks), query, value, key)
    assert [x.shape for x in by_inputs] == [x.shape for x in (query, value, key)]
    assert all(np.all(np.isfinite(gradient)) for gradient in by_inputs)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (1, 1, 1)], ids=str)
def test_c21_in_predict_of_a_model(sizes):
    batch, queries, keys = sizes
    layer = MultiHeadAttention(2, 4)
    inputs = keras.Input((None, 8)), keras.Input((None, 8))
    model = keras.Model(inputs, layer(*inputs))
    arrays = np.ones((batch, queries, 8), "float32"), np.ones((batch, keys, 8), "float32")
    assert model(arrays).shape == (batch, queries, 8)
