"""Models as ONNX and LiteRT files: run by their own runtimes, they give what the model gives."""

import sys

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_attention import (
    CharacterTokenizer,
    causal_lm,
    export_litert,
    export_onnx,
    seq2seq,
    transformer,
)
from keras_attention.blockwise.choice import all_at_once, choose
from keras_attention.export import other_formats

LENGTH = 6


def transformer_with(**options):
    return transformer(20, 30, layers=1, units=8, num_heads=2, **options)


def language_model(**options):
    return causal_lm(30, layers=1, units=8, num_heads=2, **options)


MODELS = {
    "lstm, dot": lambda: seq2seq(20, 30, units=8),
    "gru, bahdanau": lambda: seq2seq(20, 30, units=8, attention="bahdanau", cell="gru"),
    "no attention": lambda: seq2seq(20, 30, units=8, attention=None),
    "local, input feeding": lambda: seq2seq(
        20,
        30,
        units=8,
        attention="general",
        attention_options={"local": "predictive", "window": 2},
        input_feeding=True,
    ),
    "coverage": lambda: seq2seq(
        20, 30, units=8, attention="bahdanau", attention_options={"history": "coverage"}
    ),
    "transformer": transformer_with,
    "transformer, rotary": lambda: transformer_with(position="rotary"),
    "transformer, learned": lambda: transformer_with(position="learned", max_length=150),
    "transformer, relative": lambda: transformer_with(position="relative"),
    "language model": language_model,
    "language model, alibi": lambda: language_model(position="alibi"),
    "language model, window": lambda: language_model(attention_options={"sliding_window": 3}),
}
QUICK = ("lstm, dot", "transformer, rotary")


def some_or_slow(names):
    return [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in names]


def make(name):
    keras.utils.set_random_seed(1)
    return MODELS[name]()


IDS = np.array([[5, 6, 7, 2, 0], [9, 4, 8, 8, 2]], "int32")


def read_ids(model, batch):
    """Ids for a model, padded on the side where it wants that."""
    return np.ascontiguousarray(batch[:, ::-1] if hasattr(model, "generate") else batch)


@pytest.mark.parametrize("name", some_or_slow(MODELS))
def test_onnx_finds_the_same_tokens(name, tmp_path):
    """For a batch with padding and another length than `export_onnx` compares."""
    model = make(name)
    told = export_onnx(model, tmp_path / "model.onnx", max_length=LENGTH)
    assert told["bytes"] == (tmp_path / "model.onnx").stat().st_size
    assert told["largest_difference"] < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    ids = read_ids(model, IDS)
    found = dict(
        zip(told["outputs"], session.run(told["outputs"], {told["inputs"][0]: ids}), strict=True)
    )
    expected = model.search(ids, max_length=LENGTH)
    steps = int(np.max(expected.lengths)) + 1
    np.testing.assert_array_equal(found["tokens"], np.array(expected.ids)[:, :steps])
    np.testing.assert_allclose(found["score"], expected.scores, rtol=1e-4)
    assert [x.name for x in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["encode", "step", "forward"])
@pytest.mark.parametrize("name", MODELS)
def test_other_endpoints_in_onnx(name, endpoint, tmp_path):
    """(`export_onnx` compares them itself, and raises if they differ.)"""
    told = export_onnx(make(name), tmp_path / "model.onnx", endpoint, LENGTH)
    assert told["largest_difference"] < 1e-4


@pytest.mark.parametrize("name", some_or_slow(MODELS))
def test_litert_finds_the_same_tokens(name, tmp_path):
    model = make(name)
    told = export_litert(model, tmp_path / "model.tflite", max_length=LENGTH)
    assert told["largest_difference"] < 1e-4
    runner = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    for row in IDS[:, :4], IDS[1:]:
        ids = read_ids(model, row[:1])
        found = runner(**{told["inputs"][0]: ids})
        expected = model.search(ids, max_length=LENGTH)
        steps = int(np.max(expected.lengths)) + 1
        np.testing.assert_array_equal(found["tokens"], np.array(expected.ids)[:, :steps])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_logits_in_litert(name, tmp_path):
    told = export_litert(make(name), tmp_path / "model.tflite", "forward")
    assert told["largest_difference"] < 1e-4


@pytest.mark.slow
def test_litert_in_8_bits_is_smaller(tmp_path):
    keras.utils.set_random_seed(1)
    model = transformer(500, 500, layers=1, units=64, num_heads=2)
    whole = export_litert(model, tmp_path / "a.tflite", "forward")
    small = export_litert(model, tmp_path / "b.tflite", "forward", int8=True)
    assert small["bytes"] < 0.5 * whole["bytes"]
    assert 1e-6 < small["largest_difference"] < 0.5


@pytest.mark.parametrize("export", [export_onnx, export_litert])
def test_nothing_is_written_if_results_differ(export, tmp_path, monkeypatch):
    """As with a converter that changes results without telling: here other weights do."""
    examples = other_formats.example_inputs

    def after_a_change(model, *arguments):
        for variable in model.trainable_variables:
            variable.assign(variable + 0.5)
        yield from examples(model, *arguments)

    monkeypatch.setattr(other_formats, "example_inputs", after_a_change)
    with pytest.raises(RuntimeError, match="gives another .* Nothing was written"):
        export(make("no attention"), tmp_path / "model", max_length=LENGTH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", [export_onnx, export_litert])
def test_wrong_arguments(export, tmp_path):
    model = make("lstm, dot")
    with pytest.raises(ValueError, match="`endpoint` must be one of serve_tokens"):
        export(model, tmp_path / "a", "beam")
    (tmp_path / "b").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export(model, tmp_path / "b")
    with pytest.raises(ValueError, match="`Seq2Seq`, `Transformer` or `CausalLM`"):
        export(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "a")
    assert [x.name for x in tmp_path.iterdir()] == ["b"]


def test_a_package_that_is_missing(tmp_path, monkeypatch):
    for export, package in (
        (export_onnx, "tf2onnx"),
        (export_litert, "ai_edge_litert.interpreter"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=r"layers\[export\]"):
                export(make("lstm, dot"), tmp_path / "a")


def test_texts_have_no_part_in_it(tmp_path):
    """A model with tokenizers is exported for ids all the same."""
    letters = CharacterTokenizer.fit(["abc"])
    told = export_onnx(seq2seq(letters, letters, units=4), tmp_path / "a", "encode")
    assert told["inputs"] == ["source"]


def test_all_at_once():
    """Within it no branch is put into a graph, and nothing is computed in blocks."""

    def pick(x):
        sizes = lambda: (tf.shape(x)[0],)  # noqa: E731
        return choose(x.shape, sizes, 1, lambda traced: x + 1, lambda: x)

    spec = [tf.TensorSpec([None])]
    with all_at_once():
        function = tf.function(pick, input_signature=spec).get_concrete_function()
        assert pick(tf.zeros(5))[0] == 0
    assert not any("If" in op.type for op in function.graph.get_operations())
    assert pick(tf.zeros(5))[0] == 1
