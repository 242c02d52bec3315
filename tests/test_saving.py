"""Models with each layer: .keras and weights files, SavedModels, copies; in new processes."""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from backend import BACKEND, to_numpy

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    MultiHeadAttention,
    ScaledDotProductAttention,
)

ROOT = Path(__file__).parents[1]
D, Dm, U = 5, 7, 6
SIZES = [(1, 1, 1), (3, 4, 6), (2, 9, 2), (0, 3, 5)]  # batch, query steps, memory steps

LAYERS = {
    "bahdanau": lambda: BahdanauAttention(U, use_bias=True, dropout=0.2, seed=3),
    "luong": lambda: LuongAttention("general", kernel_initializer="he_normal"),
    "luong_concat": lambda: LuongAttention("concat", units=U),
    "scaled_dot_product": lambda: ScaledDotProductAttention(dropout=0.1),
    "multi_head": lambda: MultiHeadAttention(4, 3, value_dim=2, num_key_value_heads=2),
    "bahdanau_decoder": lambda: BahdanauDecoder(
        keras.layers.GRUCell(U, dropout=0.2, recurrent_dropout=0.1), BahdanauAttention(U)
    ),
    "luong_decoder": lambda: LuongDecoder(
        [keras.layers.GRUCell(2), keras.layers.LSTMCell(U)], LuongAttention("general"), units=3
    ),
}
EACH = pytest.mark.parametrize("name", LAYERS)


def model_with(layer):
    """A Functional model with free batch and lengths, masks from embeddings, and weights."""
    size = Dm if isinstance(layer, ScaledDotProductAttention) else D
    ids = keras.Input((None,), dtype="int32", name="ids")
    source = keras.Input((None,), dtype="int32", name="source")
    query = keras.layers.Embedding(9, size, mask_zero=True)(ids)
    memory = keras.layers.Embedding(9, Dm, mask_zero=True)(source)
    outputs, weights = layer(query, memory, return_attention_scores=True)
    return keras.Model(
        {"ids": ids, "source": source}, {"outputs": outputs, "weights": weights}, name="model"
    )


def randomize(model, seed=5):
    """Other weights than those that an initializer would make again, biases included."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return model


def batch(size):
    """Ids with padding behind them; one memory is nothing but padding."""
    rng = np.random.default_rng(sum(size))
    values = {}
    for name, steps in (("ids", size[1]), ("source", size[2])):
        lengths = rng.integers(0 if name == "source" else 1, steps + 1, (size[0], 1))
        ids = np.where(np.arange(steps) < lengths, rng.integers(1, 9, (size[0], steps)), 0)
        values[name] = ids.astype("int32")
    return values


def c22_model():
    """Masked embedding, causal self-attention, attention with weights (models#8357)."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(9, 8, mask_zero=True)(ids)
    x = MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    context, weights = BahdanauAttention(U)(x, x, return_attention_scores=True)
    return keras.Model({"ids": ids}, {"outputs": context, "weights": weights}, name="c22")


C22_SIZES = [(1, 1), (3, 7), (2, 30), (0, 5), (1, 0)]


def c22_batch(size):
    ids = np.random.default_rng(7).integers(1, 9, size)
    if size == (3, 7):
        ids[0, 3:] = 0
        ids[1] = 0
    return {"ids": ids.astype("int32")}


class TwoAttentions(keras.layers.Layer):
    """Two attention layers of one name (seq2seq#129)."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = BahdanauAttention(U, name="attention")
        self.second = BahdanauAttention(U, name="attention")

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second.build(input_shape)

    def call(self, inputs):
        return self.second(self.first(inputs))


# Files, written once; read in two new processes, which start TensorFlow once each.

READ_KERAS_FILES = """
import sys, json, pathlib
import numpy as np, keras
import keras_attention
folder = pathlib.Path(sys.argv[1])
results = {}
for path in sorted(folder.glob("*.keras")):
    model = keras.models.load_model(path)
    for file in sorted(folder.glob(f"{path.stem}.*.inputs.npz")):
        for key, value in model(dict(np.load(file))).items():
            results[f"{file.name[:-len('.inputs.npz')]}.{key}"] = keras.ops.convert_to_numpy(value)
np.savez(folder / "keras.results.npz", **results)
"""

READ_SAVED_MODELS = """
import sys
sys.modules["keras"] = sys.modules["keras_attention"] = None
import pathlib
import numpy as np, tensorflow as tf
for name in ("keras", "keras_attention"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} could be imported")
folder = pathlib.Path(sys.argv[1])
results = {}
for path in sorted(folder.glob("*.saved_model")):
    model = tf.saved_model.load(str(path))
    serve = model.signatures["serving_default"]
    for file in sorted(folder.glob(f"{path.stem}.*.inputs.npz")):
        inputs = {k: tf.constant(v) for k, v in np.load(file).items()}
        for key, value in serve(**inputs).items():
            results[f"{file.name[:-len('.inputs.npz')]}.{key}"] = value.numpy()
np.savez(folder / "saved_model.results.npz", **results)
"""


def run_python(program, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Files:
    """Models in a folder, their inputs, and what they gave here."""

    def __init__(self, folder):
        self.folder, self.models, self.expected = folder, {}, {}

    def add(self, name, model, batches):
        self.models[name] = model
        model.save(self.folder / f"{name}.keras")
        if BACKEND == "tensorflow":
            model.export(self.folder / f"{name}.saved_model", verbose=False)
        for size, inputs in batches.items():
            case = f"{name}.{'x'.join(map(str, size))}"
            np.savez(self.folder / f"{case}.inputs.npz", **inputs)
            for key, value in model(inputs).items():
                self.expected[f"{case}.{key}"] = to_numpy(value)

    def read_by(self, program, results):
        run_python(program, self.folder)
        with np.load(self.folder / results) as read:
            return dict(read)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    files = Files(tmp_path_factory.mktemp("files"))
    for name, make in LAYERS.items():
        model = randomize(model_with(make()))
        # keras.layers.LSTMCell itself fails on a batch of known size 0.
        sizes = SIZES[:-1] if name == "luong_decoder" else SIZES
        files.add(name, model, {size: batch(size) for size in sizes})
    c22 = randomize(c22_model())
    files.add("c22", c22, {size: c22_batch(size) for size in C22_SIZES})
    return files


@pytest.fixture(scope="module")
def loaded(files):
    """What the .keras files gave in a process that imports keras_attention."""
    return files.read_by(READ_KERAS_FILES, "keras.results.npz")


@pytest.fixture(scope="module")
def served(files):
    """What the SavedModels gave where neither Keras nor keras_attention can be imported."""
    return files.read_by(READ_SAVED_MODELS, "saved_model.results.npz")


def check(results, expected, name, atol):
    cases = [case for case in expected if case.startswith(f"{name}.")]
    assert cases
    for case in cases:
        assert results[case].shape == expected[case].shape
        np.testing.assert_allclose(results[case], expected[case], atol=atol, err_msg=case)


@pytest.mark.parametrize("name", [*LAYERS, "c22"])
def test_keras_file_in_a_new_process(files, loaded, name):
    check(loaded, files.expected, name, atol=1e-6)


@pytest.mark.tensorflow_only("SavedModels and the command `keras-attention`")
@pytest.mark.parametrize("name", [*LAYERS, "c22"])
def test_saved_model_without_keras(files, served, name):
    """Also C22: at (1, 1), (3, 7), (2, 30), (0, 5) and (1, 0)."""
    check(served, files.expected, name, atol=1e-6)


def test_the_cases_above_have_padding_and_differ(files):
    for name in LAYERS:
        weights = files.expected[f"{name}.3x4x6.weights"]
        assert np.any(weights == 0) and np.any(weights > 0)
    outputs = [files.expected[f"{name}.3x4x6.outputs"] for name in LAYERS]
    assert all(np.abs(x).max() > 0.1 for x in outputs)


@EACH
def test_weights_file(files, name, tmp_path):
    """A model made by the same code takes the weights file, whole."""
    model, again = files.models[name], randomize(model_with(LAYERS[name]()), seed=6)
    inputs = batch(SIZES[1])
    before = np.asarray(again(inputs)["outputs"])
    assert np.abs(before - files.expected[f"{name}.3x4x6.outputs"]).max() > 1e-3
    model.save_weights(tmp_path / "model.weights.h5")
    again.load_weights(tmp_path / "model.weights.h5")
    for key, value in again(inputs).items():
        np.testing.assert_array_equal(value, files.expected[f"{name}.3x4x6.{key}"])


@EACH
def test_config_of_a_model_is_json_and_makes_it_again(files, name):
    model = files.models[name]
    again = keras.models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    for key, value in again(batch(SIZES[1])).items():
        np.testing.assert_array_equal(value, files.expected[f"{name}.3x4x6.{key}"])
    assert json.loads(again.to_json())["config"] == json.loads(model.to_json())["config"]


@EACH
@pytest.mark.parametrize("way", ["deepcopy", "clone_model", "pickle"])
def test_copies_of_a_model(files, name, way):
    model = files.models[name]
    if way == "clone_model":
        copied = keras.models.clone_model(model)
        copied.set_weights(model.get_weights())
    elif way == "deepcopy":
        copied = copy.deepcopy(model)
    else:  # Keras pickles models, as .keras files; not single layers
        copied = pickle.loads(pickle.dumps(model))
    for key, value in copied(batch(SIZES[1])).items():
        np.testing.assert_array_equal(value, files.expected[f"{name}.3x4x6.{key}"])
    randomize(copied, seed=8)
    outputs = model(batch(SIZES[1]))["outputs"]
    np.testing.assert_array_equal(outputs, files.expected[f"{name}.3x4x6.outputs"])


@EACH
def test_copies_of_a_layer(files, name):
    layer = next(x for x in files.models[name].layers if type(x) is type(LAYERS[name]()))
    size = Dm if name == "scaled_dot_product" else D
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=(2, 3, size)), rng.normal(size=(2, 4, Dm))]
    tensors = [x.astype("float32") for x in tensors]
    expected = layer(*tensors)
    np.testing.assert_array_equal(copy.deepcopy(layer)(*tensors), expected)
    again = type(layer).from_config(layer.get_config())
    again(*tensors)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*tensors), expected)
    unbuilt = copy.deepcopy(LAYERS[name]())
    assert not unbuilt.built and unbuilt(*tensors).shape == expected.shape


@pytest.mark.parametrize("name", ["bahdanau", "multi_head", "luong_decoder"])
def test_a_loaded_model_trains_and_saves_again(files, name, tmp_path):
    model = keras.models.load_model(files.folder / f"{name}.keras")
    model.compile("sgd", {"outputs": "mse"})
    inputs = batch(SIZES[1])
    shape = files.expected[f"{name}.3x4x6.outputs"].shape
    loss = model.train_on_batch(inputs, {"outputs": np.ones(shape, "float32")})
    assert np.all(np.isfinite(loss))
    model.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    for key, value in again(inputs).items():
        np.testing.assert_allclose(value, model(inputs)[key], atol=1e-6)


# Other programs' and other people's files


def test_c17_two_layers_of_one_name(tmp_path):
    """seq2seq#129: both get their own weights back."""

    def build():
        inputs = keras.Input((None, D))
        return keras.Model(inputs, TwoAttentions(name="two")(inputs))

    model = randomize(build())
    x = np.random.default_rng(1).normal(size=(2, 3, D)).astype("float32")
    expected = model(x)
    first, second = (
        layer.get_weights()
        for layer in (model.get_layer("two").first, model.get_layer("two").second)
    )
    assert all(np.any(a != b) for a, b in zip(first, second, strict=True))
    model.save(tmp_path / "two.keras")
    custom = {"TwoAttentions": TwoAttentions}
    loaded = keras.models.load_model(tmp_path / "two.keras", custom_objects=custom)
    np.testing.assert_array_equal(loaded(x), expected)
    model.save_weights(tmp_path / "two.weights.h5")
    again = build()
    again.load_weights(tmp_path / "two.weights.h5")
    np.testing.assert_array_equal(again(x), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 2, "key_dim": 3},
        {"num_heads": 3, "key_dim": 2, "value_dim": 4, "output_shape": 8},
        {"num_heads": 2, "key_dim": 3, "use_bias": False},
        {"num_heads": 2, "key_dim": 3, "use_gate": True},
    ],
    ids=["plain", "sizes", "no bias", "gate"],
)
def test_weights_of_keras_multi_head_attention(options, tmp_path):
    def build(layer_class):
        query, value = keras.Input((None, D)), keras.Input((None, Dm))
        x = keras.layers.Dense(D)(query)
        output = layer_class(**options, name="attention")(x, value)
        return keras.Model([query, value], keras.layers.Dense(2)(output))

    theirs, ours = build(keras.layers.MultiHeadAttention), build(MultiHeadAttention)
    randomize(theirs)
    rng = np.random.default_rng(2)
    x = [rng.normal(size=(2, 3, D)).astype("float32"), rng.normal(size=(2, 4, Dm))]
    expected = theirs(x)
    assert np.abs(ours(x) - expected).max() > 1e-3
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    ours.load_weights(tmp_path / "theirs.weights.h5")
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5, atol=1e-5)
    # And by lists of arrays, in both directions.
    ours = randomize(build(MultiHeadAttention), seed=9)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5, atol=1e-5)
    theirs.set_weights(randomize(ours, seed=10).get_weights())
    np.testing.assert_allclose(theirs(x), ours(x), rtol=1e-5, atol=1e-5)
