"""What Keras and its tools do with our layers and models: LoRA, tuner, pictures, data, ragged."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import BACKEND

from keras_attention import (
    BahdanauAttention,
    CharacterTokenizer,
    GuidedAlignmentLoss,
    LuongAttention,
    MaskedCrossEntropy,
    MaskedPooling,
    MultiHeadAttention,
    ScaledDotProductAttention,
    TransformerEncoderBlock,
    causal_lm,
    enable_lora,
    export_servable,
    replace_attention,
    seq2seq,
    text_classifier,
    transformer,
)

LETTERS = CharacterTokenizer.fit(["abcdef"])
SIZES = {"layers": 1, "units": 8, "num_heads": 2}
RAGGED = tf.ragged.constant([[4, 5, 6, 2], [4, 2]], dtype="int32")
DENSE = RAGGED.to_tensor(0)
LAYERS = {
    "multi_head": (lambda: MultiHeadAttention(2, 4), 2),
    "bahdanau": (lambda: BahdanauAttention(4), 2),
    "luong": (lambda: LuongAttention("general"), 2),
    "scaled_dot": (ScaledDotProductAttention, 2),
    "encoder_block": (lambda: TransformerEncoderBlock(2, 16), 1),
    "pooling": (MaskedPooling, 1),
}
MODELS = {
    "seq2seq": lambda: seq2seq(LETTERS, LETTERS, units=8),
    "transformer": lambda: transformer(LETTERS, LETTERS, **SIZES),
    "causal_lm": lambda: causal_lm(LETTERS, **SIZES),
    "text_classifier": lambda: text_classifier(LETTERS, ["x", "y"], **SIZES),
}
TRANSLATORS = ("seq2seq", "transformer")


def inputs_of(name, ids):
    return [ids, ids] if name in TRANSLATORS else ids


# LoRA


@pytest.mark.slow
def test_lora_trains_nothing_else(tmp_path):
    model = transformer(LETTERS, LETTERS, **SIZES)
    before, search = np.asarray(model([DENSE, DENSE])), {"max_length": 4, "beam_width": 2}
    text = model.translate("abc", details=True, **search)
    assert len(enable_lora(model, rank=2)) == 12  # of self- and cross-attention
    np.testing.assert_allclose(model([DENSE, DENSE]), before, atol=1e-6)
    names = [weight.path for weight in model.trainable_weights]
    assert len(names) == 24 and all("lora" in name for name in names)
    weights = {weight.path: np.asarray(weight) for weight in model.weights}
    model.compile(keras.optimizers.Adam(0.1), MaskedCrossEntropy())
    model.fit([DENSE, DENSE], DENSE, epochs=2, verbose=0)
    changed = {w.path for w in model.weights if not np.array_equal(w, weights[w.path])}
    assert changed == set(names)
    # The search that was compiled before has learned too.
    assert model.translate("abc", details=True, **search).score != text.score
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded([DENSE, DENSE]), model([DENSE, DENSE]), atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_lora_learns_after_weights_were_loaded_and_layers_frozen(tmp_path, frozen):
    """Keras sets both factors to 0 in loading; and nothing is trained in a frozen layer."""
    model = causal_lm(LETTERS, dropout=0.0, **SIZES)
    model.trainable = not frozen
    assert len(enable_lora(model, 2)) == 4 and len(model.trainable_weights) == 8
    model.compile(keras.optimizers.Adam(0.05), MaskedCrossEntropy())
    model.fit(DENSE, DENSE, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    before = np.asarray(model(DENSE))
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(model(DENSE), before, atol=1e-5)
    losses = model.fit(DENSE, DENSE, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[1] < losses[0]


def test_lora_of_other_models_and_bad_input():
    model = seq2seq(9, 9, units=8, attention="bahdanau")
    assert [x.name for x in enable_lora(model, 2, lora_alpha=4)] == ["query", "key"]
    assert len(model.trainable_weights) == 4
    for bad, message in (
        ((model, 2), "`model` has such products already"),
        ((model, 0), "`rank` must be"),
        ((model, 2, 0), "`lora_alpha` must be a positive number"),
        ((model, 2, np.inf), "`lora_alpha` must be a positive number"),
        ((keras.Sequential([keras.layers.Dense(1)]), 2), "`model` must contain built attention"),
        ((3, 2), "`model` must contain built attention"),
    ):
        with pytest.raises(ValueError, match=message):
            enable_lora(*bad)
    x = keras.Input((3, 8))
    theirs = keras.layers.MultiHeadAttention(2, 4)(x, x)
    mixed = keras.Model(x, MultiHeadAttention(2, 4)(theirs, theirs))
    with pytest.raises(ValueError, match="`strict` must be"):
        replace_attention(mixed, strict="no")
    enable_lora(mixed, 2, np.float32(4))
    with pytest.raises(ValueError, match="`model` must be without products of `enable_lora`"):
        replace_attention(mixed)


# Ragged tensors


@pytest.mark.tensorflow_only("ragged tensors")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse_ragged_tensors_by_name(name, rng):
    make, count = LAYERS[name]
    x = tf.constant(rng.normal(size=(2, 5, 8)), "float32")
    ragged = tf.RaggedTensor.from_tensor(x, lengths=[3, 5])
    for place in range(count):
        values = [x] * count
        values[place] = ragged
        with pytest.raises(ValueError, match="must be a dense tensor.*a ragged one.*to_tensor"):
            make()(*values)
    layer = make()  # and what the error advises gives what the steps alone give
    mask = tf.sequence_mask(ragged.row_lengths())
    masked = {"mask": mask} if count == 1 else {"query_mask": mask, "value_mask": mask}
    found = np.asarray(layer(*[ragged.to_tensor()] * count, **masked))
    alone = np.asarray(layer(*[x[:1, :3]] * count))
    np.testing.assert_allclose(found[:1, :3] if found.ndim == 3 else found[:1], alone, atol=1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="ragged tensors")
@pytest.mark.parametrize("name", MODELS)
def test_models_take_ragged_ids(name):
    model = MODELS[name]()
    expected = model(inputs_of(name, DENSE))
    np.testing.assert_array_equal(model(inputs_of(name, RAGGED)), expected)
    labels = np.zeros(2) if name == "text_classifier" else DENSE
    loss = "sparse_categorical_crossentropy" if labels is not DENSE else MaskedCrossEntropy()
    model.compile("adam", loss)
    ragged = inputs_of(name, RAGGED)
    data = tf.data.Dataset.from_tensors((tuple(ragged) if name in TRANSLATORS else ragged, labels))
    history = model.fit(data, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.tensorflow_only("ragged tensors")
def test_losses_take_ragged_labels_or_refuse_them():
    model = seq2seq(LETTERS, LETTERS, units=8)
    logits = model([DENSE, DENSE])
    assert MaskedCrossEntropy()(RAGGED, logits) == MaskedCrossEntropy()(DENSE, logits)
    model.compile("sgd", MaskedCrossEntropy())
    data = tf.data.Dataset.from_tensors(((DENSE, DENSE), RAGGED))
    expected = float(MaskedCrossEntropy()(DENSE, logits))
    assert model.evaluate(data, verbose=0) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="Ragged `y_true` needs a `pad_token`"):
        MaskedCrossEntropy(pad_token=None)(RAGGED, logits)
    with pytest.raises(ValueError, match="`sample_weight` must be a dense tensor.*ragged"):
        MaskedCrossEntropy()(RAGGED, logits, sample_weight=tf.ones_like(RAGGED))
    with pytest.raises(ValueError, match="`y_true` must be a dense tensor.*to_tensor"):
        GuidedAlignmentLoss()(RAGGED, logits)


def test_tokenizers_and_searches_take_ragged_ids():
    model = seq2seq(LETTERS, LETTERS, units=8)
    assert LETTERS.decode(RAGGED).numpy().tolist() == LETTERS.decode(DENSE).numpy().tolist()
    found = model.search(RAGGED, max_length=4).ids
    np.testing.assert_array_equal(found, model.search(DENSE, max_length=4).ids)


# Data


class Batches(keras.utils.PyDataset):
    """Two batches of pairs."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (np.asarray(DENSE), np.asarray(DENSE)), np.asarray(DENSE)


@pytest.mark.slow
def test_the_same_from_arrays_a_dataset_and_a_py_dataset():
    ids = np.concatenate([DENSE, DENSE])
    from_tf = tf.data.Dataset.from_tensor_slices(((ids, ids), ids)).batch(2)
    losses = []
    for data in (Batches(), from_tf, ([ids, ids], ids)):
        keras.utils.set_random_seed(1)
        model = seq2seq(LETTERS, LETTERS, units=8, dropout=0.0)
        model.compile("sgd", MaskedCrossEntropy())
        x, *y = data if isinstance(data, tuple) else (data,)
        options = {"batch_size": 2} if y else {}
        losses.append(model.fit(x, *y, shuffle=False, verbose=0, **options).history["loss"])
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, rtol=1e-5)


# What is shown and served


@pytest.mark.parametrize("name", MODELS)
def test_a_summary_names_each_layer_on_lines_that_fit(name):
    model, shown = MODELS[name](), []
    model.summary(print_fn=shown.append, line_length=90)
    lines = "\n".join(map(str, shown)).splitlines()
    assert max(map(len, lines)) <= 92
    assert f"{model.count_params():,}" in "\n".join(lines)
    for layer in model.layers:
        assert any(layer.name[:20] in line for line in lines), layer.name


@pytest.mark.parametrize("name", MODELS)
def test_a_picture_of_the_model(name):
    pytest.importorskip("pydot", reason="keras.utils.model_to_dot needs pydot")
    dot = keras.utils.model_to_dot(MODELS[name](), show_shapes=True, show_layer_names=True)
    assert "embedding" in dot.to_string()


def test_tensorboard_takes_the_pictures_of_the_callback(tmp_path):
    """AttentionCallback writes PNG files; a summary takes them as images."""
    from keras_attention import AttentionCallback

    query, memory = keras.Input((2, 4)), keras.Input((3, 4))
    model = keras.Model([query, memory], LuongAttention("general")(query, memory))
    model.compile("sgd", "mse")
    data, folder = [np.ones((1, 2, 4)), np.ones((1, 3, 4))], tmp_path / "pictures"
    draw = AttentionCallback(data, [["a", "b", "c"]], [["x", "y"]], folder=folder, dpi=40)
    board = keras.callbacks.TensorBoard(tmp_path / "logs", histogram_freq=1)
    model.fit(data, np.ones((1, 2, 4)), verbose=0, callbacks=[draw, board])
    with tf.summary.create_file_writer(str(tmp_path / "logs" / "images")).as_default():
        for epoch, path in enumerate(sorted(folder.iterdir())):
            image = tf.io.decode_png(path.read_bytes(), channels=3)
            assert tf.summary.image("alignment", image[None], step=epoch)
    assert len(list((tmp_path / "logs").rglob("events.out.tfevents.*"))) >= 2


@pytest.mark.slow
def test_an_exported_model_as_a_layer(tmp_path):
    """TFSMLayer calls endpoints with what it is given as one argument."""
    model = seq2seq(LETTERS, LETTERS, units=8)
    export_servable(model, tmp_path / "servable", max_length=4)
    layer = keras.layers.TFSMLayer(tmp_path / "servable", call_endpoint="serve_tokens")
    found, expected = layer(DENSE), model.search(DENSE, max_length=4)
    np.testing.assert_array_equal(found["tokens"], expected.ids[:, : found["tokens"].shape[1]])
    np.testing.assert_allclose(found["score"], expected.scores, atol=1e-5)
    model.export(tmp_path / "plain", verbose=False)
    layer = keras.layers.TFSMLayer(tmp_path / "plain")
    np.testing.assert_allclose(layer([DENSE, DENSE]), model([DENSE, DENSE]), atol=1e-5)


@pytest.mark.slow
def test_a_tuner_searches_sizes(tmp_path):
    tuner_of = pytest.importorskip("keras_tuner", reason="pip install keras-tuner")

    def build(choices):
        units = choices.Choice("units", [8, 16])
        attention = choices.Choice("attention", ["dot", "bahdanau"])
        model = seq2seq(LETTERS, LETTERS, units=units, attention=attention)
        model.compile("adam", MaskedCrossEntropy())
        return model

    tuner = tuner_of.RandomSearch(build, "val_loss", max_trials=2, seed=1, directory=tmp_path)
    data = [DENSE, DENSE], DENSE
    tuner.search(*data, validation_data=data, epochs=1, verbose=0)
    best = tuner.get_best_models()[0]
    assert best.translate(["abc"], max_length=3)
