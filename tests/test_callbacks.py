"""The callback that draws alignments after each epoch."""

import keras
import numpy as np
import pytest

from keras_attention import callbacks
from keras_attention.callbacks import AttentionCallback
from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.multi_head import MultiHeadAttention

SOURCE = [["ich", "bin", "hier"], ["나는", "간다"]]
TARGET = [["I", "am", "here", "."], ["I", "go"]]
IDS = {
    "source": np.array([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]),
    "target": np.array([[1, 2, 3, 4], [1, 5, 0, 0]]),
}
LABELS = np.zeros((2, 4, 1), "float32")

GRUCell = keras.layers.GRUCell
LAYERS = {
    "bahdanau": lambda **kw: BahdanauDecoder(GRUCell(4), BahdanauAttention(3), name="see", **kw),
    "luong": lambda **kw: LuongDecoder(GRUCell(4), LuongAttention("general"), name="see", **kw),
    "multi_head": lambda **kw: MultiHeadAttention(2, 3, name="see", **kw),
}


def build(layer):
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embed = keras.layers.Embedding(9, 4, mask_zero=True)
    output = keras.layers.Dense(1)(layer(embed(target), embed(source)))
    model = keras.Model({"source": source, "target": target}, output)
    model.compile("sgd", "mse", jit_compile=False)
    return model


def fit(model, callback, epochs=1, **kwargs):
    model.fit(IDS, LABELS, epochs=epochs, verbose=0, callbacks=[callback], **kwargs)


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, in place of the pictures: a list of (weights, source, target, options)."""
    calls = []
    monkeypatch.setattr(
        callbacks, "plot_alignment", lambda *args, **kwargs: calls.append((*args, kwargs))
    )
    return calls


def test_pictures_of_each_epoch(tmp_path):
    folder = tmp_path / "new" / "folder"
    fit(build(LAYERS["luong"]()), AttentionCallback(IDS, SOURCE, TARGET, folder=folder), epochs=2)
    names = [f"epoch_000{epoch}_sample_{sample}.png" for epoch in (1, 2) for sample in (0, 1)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("bahdanau", "float32"), ("luong", "float32"), ("multi_head", "mixed_bfloat16")],
)
def test_weights_are_those_of_the_model_without_padding(kind, dtype, tmp_path, drawn):
    layer = LAYERS[kind](dtype=dtype)
    model = build(layer)
    fit(model, AttentionCallback(IDS, SOURCE, TARGET, folder=tmp_path))
    embed = next(x for x in model.layers if isinstance(x, keras.layers.Embedding))
    _, expected = layer(embed(IDS["target"]), embed(IDS["source"]), return_attention_scores=True)
    for sample, (weights, source, target, _) in enumerate(drawn):
        assert (source, target) == (SOURCE[sample], TARGET[sample])
        wanted = np.asarray(expected, "float32")[sample, ..., : len(target), : len(source)]
        limit = 2**-8 if dtype == "mixed_bfloat16" else 1e-5
        np.testing.assert_allclose(weights, wanted, rtol=limit, atol=limit)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=limit)
    assert len(drawn) == 2


def test_every_second_epoch_and_training_that_goes_on(tmp_path, drawn):
    model = build(LAYERS["multi_head"]())
    callback = AttentionCallback(
        IDS, SOURCE, TARGET, "see", tmp_path, every=2, format=".SVG", dpi=9
    )
    fit(model, callback, epochs=3)
    fit(model, callback, epochs=6, initial_epoch=3)
    options = [call[-1] for call in drawn]
    assert [o["path"].name for o in options] == [
        f"epoch_000{epoch}_sample_{sample}.svg" for epoch in (2, 4, 6) for sample in (0, 1)
    ]
    assert {o["dpi"] for o in options} == {9}
    assert options[0]["title"] == "epoch 2"
    changes = [np.abs(drawn[i][0] - drawn[i + 2][0]).max() for i in range(4)]
    assert min(changes) > 0, "each epoch shows the weights of that epoch"


def test_several_layers(tmp_path, drawn):
    source, target = keras.Input((3, 4)), keras.Input((2, 4))
    x = LuongAttention("general", name="first")(target, source)
    x = MultiHeadAttention(2, 3, name="second>part")(x, source)
    model = keras.Model([source, target], x)
    model.compile("sgd", "mse", jit_compile=False)
    data = [np.ones((1, 3, 4), "float32"), np.ones((1, 2, 4), "float32")]
    tokens = [["a", "b", "c"]], [["d", "e"]]

    def names(layer_name):
        drawn.clear()
        callback = AttentionCallback(data, *tokens, layer_name, tmp_path)
        model.fit(data, np.ones((1, 2, 4)), verbose=0, callbacks=[callback])
        return [(call[0].ndim, call[-1]["path"].name) for call in drawn]

    first, second = "epoch_0001_sample_0_first.png", "epoch_0001_sample_0_second_part.png"
    assert names(None) == [(2, first), (3, second)]
    assert names(["second>part", "first"]) == [(3, second), (2, first)]
    assert names("second>part") == [(3, "epoch_0001_sample_0.png")]
    with pytest.raises(ValueError, match="'first', 'second>part'. Received: 'third'"):
        names(["first", "third"])


@pytest.mark.tensorflow_only("text in the graph")
def test_a_layer_with_one_query_and_a_model_that_takes_strings(tmp_path, drawn):
    text = keras.Input((), dtype="string")
    lookup = keras.layers.TextVectorization(output_sequence_length=4, vocabulary=["ich", "bin"])
    memory = keras.layers.Embedding(9, 4, mask_zero=True)(lookup(text))
    query = keras.layers.GlobalAveragePooling1D()(memory)
    model = keras.Model(text, LuongAttention("dot", name="pool")(query, memory))
    model.compile("sgd", "mse", jit_compile=False)
    strings = keras.ops.convert_to_tensor(np.array(["ich bin", "bin"]))
    callback = AttentionCallback(strings, [["ich", "bin"], ["bin"]], [["class"]] * 2)
    callback.folder = tmp_path
    model.fit(strings, np.ones((2, 4)), verbose=0, callbacks=[callback])
    assert [call[0].shape for call in drawn] == [(1, 2), (1, 1)]
    np.testing.assert_allclose(drawn[0][0].sum(), 1, rtol=1e-6)


def test_nan_is_reported_and_training_goes_on(tmp_path, drawn):
    layer = LAYERS["multi_head"]()
    model = build(layer)
    layer.query_dense.kernel.assign(np.full(layer.query_dense.kernel.shape, np.nan))
    with pytest.warns(UserWarning, match="Epoch 1: weights are NaN, not drawn"):
        fit(model, AttentionCallback(IDS, SOURCE, TARGET, folder=tmp_path))
    assert drawn == []


def test_errors_before_training(tmp_path):
    def callback(source=SOURCE, target=TARGET, inputs=IDS, **kwargs):
        return AttentionCallback(inputs, source, target, folder=tmp_path, **kwargs)

    with pytest.raises(ValueError, match=r"\[2\], 1 and 2 sentences"):
        callback(source=SOURCE[:1])
    with pytest.raises(ValueError, match=r"\[1, 2\], 2 and 2 sentences"):
        callback(inputs={**IDS, "source": IDS["source"][:1]})
    with pytest.raises(ValueError, match="`inputs` must be arrays"):
        callback(inputs=[[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="`every`"):
        callback(every=0)
    with pytest.raises(ValueError, match="`format`.*png.*'docx'"):
        callback(format="docx")


def test_errors_when_training_begins(tmp_path):
    model = build(LAYERS["multi_head"]())

    def begin(model=model, source=SOURCE, target=TARGET, **kwargs):
        callback = AttentionCallback(IDS, source, target, folder=tmp_path, **kwargs)
        callback.set_model(model)
        callback.on_train_begin()

    begin()
    with pytest.raises(ValueError, match="`layer_name` must be one of 'see'. Received: 'sea'"):
        begin(layer_name="sea")
    with pytest.raises(ValueError, match="has no attention layer"):
        begin(keras.Model(x := keras.Input((2,)), keras.layers.Dense(1)(x)))
    with pytest.raises(ValueError, match="Functional"):
        begin(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"'see' of weights \(2, 4, 5\), sentence 1.*6 tokens"):
        begin(source=[SOURCE[0], list("abcdef")])
    with pytest.raises(ValueError, match="sentence 0.*target of 0 tokens"):
        begin(target=[[], TARGET[1]])
    with pytest.raises(ValueError, match="`source` must be a list of tokens"):
        begin(source=["abc", "def"])
