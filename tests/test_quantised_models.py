"""Models in 8 bits: quantised, saved, loaded, exported, with the numbers of the quantised model."""

import keras
import numpy as np
import pytest

from keras_attention import (
    CharacterTokenizer,
    causal_lm,
    export_litert,
    export_onnx,
    export_servable,
    load_servable,
    seq2seq,
    text_classifier,
    transformer,
)

LETTERS = CharacterTokenizer.fit(["abcdefgh xyz"])
MODELS = {
    "recurrent": lambda: seq2seq(LETTERS, LETTERS, units=16, attention="bahdanau"),
    "transformer": lambda: transformer(
        LETTERS, LETTERS, layers=1, units=16, num_heads=2, position="rotary"
    ),
    "language": lambda: causal_lm(LETTERS, layers=1, units=16, num_heads=2),
    "classifier": lambda: text_classifier(LETTERS, 3, layers=1, units=16, num_heads=2),
}
IDS = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")


def make(name):
    keras.utils.set_random_seed(4)
    return MODELS[name]()


def inputs_of(model):
    return [IDS, IDS] if len(model.inputs) == 2 else IDS


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded(name, tmp_path):
    model = make(name)
    exact = np.asarray(model(inputs_of(model)))
    model.quantize("int8")
    expected = np.asarray(model(inputs_of(model)))
    np.testing.assert_allclose(expected, exact, atol=0.2 * np.abs(exact).max())
    assert not np.array_equal(expected, exact)
    assert any(v.dtype == "int8" for v in model.variables)
    tables = [v for v in model.variables if v.path.endswith("embedding/embeddings")]
    assert tables and all(v.dtype == "int8" for v in tables)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.dtype for v in loaded.variables] == [v.dtype for v in model.variables]
    np.testing.assert_array_equal(loaded(inputs_of(model)), expected)
    again = type(model).from_config(loaded.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(inputs_of(model)), expected)


@pytest.mark.parametrize("name", ["recurrent", pytest.param("transformer", marks=pytest.mark.slow)])
def test_searches_that_were_compiled_before_are_made_anew(name):
    model = make(name)
    before = model.translate("abc", max_length=5, details=True)
    model.quantize("int8")
    after = model.translate("abc", max_length=5, details=True)
    assert after.score != before.score
    np.testing.assert_allclose(after.score, before.score, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recurrent", "transformer", "language"])
def test_exported(name, tmp_path):
    """(`export_servable` compares all endpoints with the quantised model.)"""
    model = make(name)
    model.quantize("int8")
    card = export_servable(model, tmp_path / "a", 2, 5)
    assert "int8" in str(card["config"]["quantized"]).lower()
    assert card["dtype"] == "int8_from_float32"
    ask = load_servable(tmp_path / "a")
    ask = ask.generate if name == "language" else ask.translate
    mine = model.generate if name == "language" else model.translate
    assert ask(["abc", "xyz"]) == mine(["abc", "xyz"], max_length=5)


def test_only_some_layers(tmp_path):
    model = make("recurrent")
    model.quantize("int8", filters=["logits"])
    expected = np.asarray(model(inputs_of(model)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.variables if v.dtype == "int8"] == ["logits/kernel"]
    np.testing.assert_array_equal(loaded(inputs_of(model)), expected)


def test_what_a_config_can_not_tell_is_not_saved(tmp_path):
    model = make("recurrent")
    model.quantize("int8", filters=lambda layer: layer.name == "logits")
    with pytest.raises(ValueError, match="was quantised with a function as filter"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")


@pytest.mark.parametrize("name", ["recurrent", "language"])
@pytest.mark.parametrize("export", [export_servable, export_onnx, export_litert])
def test_what_a_config_can_not_tell_is_not_exported(name, export, tmp_path, monkeypatch):
    """Said before anything is written."""
    model = make(name)
    model.quantize("int8", filters=lambda layer: layer.name == "logits")
    monkeypatch.setattr("tensorflow.saved_model.save", None)
    with pytest.raises(ValueError, match="a function as filter.*can neither be saved .*exported"):
        export(model, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_without_it_the_config_says_nothing():
    assert "quantized" not in make("recurrent").get_config()


@pytest.mark.slow
def test_litert_takes_the_exact_model(tmp_path):
    model = make("recurrent")
    model.quantize("int8")
    with pytest.raises(ValueError, match="Export the model as it was before, with `int8=True`"):
        export_litert(model, tmp_path / "a.tflite")
