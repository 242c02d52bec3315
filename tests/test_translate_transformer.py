"""The example that translates with a transformer, as its users run it."""

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
example, data = (importlib.import_module(x) for x in ("translate_transformer", "translate_data"))
NEEDS_BLEU = "BLEU is computed by sacrebleu, of the extra `examples`"


def options_of(*arguments):
    return example.parse_options([str(x) for x in arguments])


def stop(*arguments, **options):
    raise AssertionError("the run went on")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """What a run returned and printed, and its folder; with words, which need no package."""
    pytest.importorskip("sacrebleu", reason=NEEDS_BLEU)
    output = tmp_path_factory.mktemp("translate") / "made" / "here"
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as text:
        patch.setattr(example, "default_tokenizer", lambda: "words")
        with contextlib.redirect_stdout(text):
            results = example.run(options_of("--smoke", "--beam-width", 2, "--output", output))
        return results, text.getvalue(), output


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_a_run_leaves_what_it_says(smoke):
    results, text, output = smoke
    assert sorted(path.name for path in output.iterdir()) == sorted(example.WRITTEN)
    for name in example.PICTURES:
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    written = json.loads((output / "results.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(results))
    assert f"{results['parameters']:,} parameters" in text and results["signature"] in text
    assert "Held-out sentences, greedy: BLEU" in text and "beam of 2: BLEU" in text
    assert results["options"]["tokenizer"] == "words" and sum(results["pairs"].values()) == 180
    assert len(results["history"]["loss"]) == results["options"]["epochs"] == 2
    assert all(0 <= results["bleu"][name] <= 100 for name in ("greedy", "beam"))
    lines = (output / "training.csv").read_text("utf-8").splitlines()
    assert len(lines) == 3 and lines[0].startswith("epoch,")


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_texts_are_translated_without_training(smoke, capsys):
    *_, output = smoke
    texts = ["EIN MANN sieht den Ball.", "", "völlig Unbekanntes"]
    assert example.main(["--model", str(output), "--beam-width", "1", "--text", *texts]) == 0
    lines = capsys.readouterr().out.split("\n")
    model = keras.models.load_model(output / "model.keras", compile=False)
    assert lines == [*model.translate([text.lower() for text in texts]), ""]


def fitted(options):
    """A model trained as the script trains it, and the history."""
    parts = data.load_parts(options)[1]
    options.output.mkdir(exist_ok=True, parents=True)
    keras.utils.set_random_seed(options.seed)
    model = example.build(options, *example.fit_tokenizers(parts.train, options.vocabulary))
    return model, example.train(model, parts, options)


class Kill(keras.callbacks.Callback):
    """Ends the training like a kill would, in the second epoch."""

    def __init__(self, minutes):
        super().__init__()

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_training_goes_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(example, "default_tokenizer", lambda: "words")
    common = ("--smoke", "--epochs", 3, "--average", 2)
    whole, history = fitted(options_of(*common, "--output", tmp_path / "whole"))
    again = (*common, "--output", tmp_path / "again", "--resume", tmp_path / "resume")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(example, "TimeLimit", Kill)
        fitted(options_of(*again, "--time-limit", 100))
    resumed, rest = fitted(options_of(*again))
    assert len(history["val_loss"]) == 3 and len(rest["val_loss"]) == 2
    np.testing.assert_allclose(rest["val_loss"], history["val_loss"][1:], rtol=1e-3)
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_every_position_trains(tmp_path, monkeypatch, position):
    monkeypatch.setattr(example, "default_tokenizer", lambda: "words")
    arguments = ("--smoke", "--epochs", 1, "--position", position, "--output", tmp_path)
    model, history = fitted(options_of(*arguments))
    assert np.isfinite(history["val_loss"]).all()
    assert len(model.translate(["ein hund.", "der ball."], beam_width=2)) == 2


@pytest.mark.slow
def test_subwords_of_both_sides_share_one_embedding(tmp_path):
    pytest.importorskip("sentencepiece", reason="subwords need the extra `text`")
    pytest.importorskip("tensorflow_text", reason="subwords need the extra `text`")
    model, _ = fitted(options_of("--smoke", "--epochs", 1, "--output", tmp_path))
    assert model.inference.source.size >= model.inference.target.size
    kinds = [x for x in model.layers if type(x).__name__ == "TokenEmbedding"]
    assert [x.name for x in kinds] == ["embedding"]


# Errors: one line, exit code 2, nothing written


def check_line(capsys, *messages):
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("translate_transformer.py: error: ")
    for message in messages:
        assert message in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--epochs", "0"], "expected an integer above 0"),
        (["--dropout", "1"], "expected a number from 0 to below 1"),
        (["--learning-rate", "0"], "expected a number above 0"),
        (["--position", "none"], "invalid choice"),
        (["--units", "32", "--heads", "5"], "--heads must divide --units, 32. Got 5"),
        (["--text", "ein Hund"], "--text and --model go together"),
        (["--model", "folder"], "--text and --model go together"),
        (["--data", "a", "--pairs", "b"], "not allowed with"),
    ],
)
def test_bad_options_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        example.main(arguments)
    check_line(capsys, message)


def test_help_tells_the_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        example.main(["--help"])
    text = capsys.readouterr().out
    assert f"(default: {example.DEFAULTS['units']})" in text and "None" not in text


def test_smoke_leaves_what_is_given():
    options = options_of("--smoke", "--layers", 2)
    assert (options.layers, options.units) == (2, example.SMOKE["units"])
    assert options_of().units == example.DEFAULTS["units"]


def test_a_folder_without_a_model(tmp_path, capsys):
    assert example.main(["--model", str(tmp_path), "--text", "a"]) == 2
    check_line(capsys, "holds no model.keras")
    (tmp_path / "model.keras").write_bytes(b"no model")
    assert example.main(["--model", str(tmp_path), "--text", "a"]) == 2
    check_line(capsys, "model.keras")


def test_the_output_must_not_mix_with_other_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(example, "missing_packages", lambda options: None)
    monkeypatch.setattr(example, "fit_tokenizers", stop)
    (tmp_path / "thesis.tex").write_text("mine")
    assert example.main(["--smoke", "--output", str(tmp_path)]) == 2
    check_line(capsys, "--output", "it holds thesis.tex")


def test_bad_data_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(example, "missing_packages", lambda options: None)
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\n", encoding="utf-8")
    output = tmp_path / "output"
    arguments = ["--pairs", str(tmp_path / "pairs.tsv"), "--output", str(output)]
    assert example.main(arguments) == 2
    check_line(capsys, "line 2: expected source, tab, target")
    assert not output.exists()


def test_a_missing_package_is_named_before_the_training(capsys, monkeypatch):
    translate = importlib.import_module("translate")
    monkeypatch.setattr(translate.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(example, "run", stop)
    assert example.main(["--smoke"]) == 2
    check_line(capsys, "pip install sacrebleu")


def test_too_large_a_vocabulary_is_one_line(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sentencepiece", reason="subwords need the extra `text`")
    pytest.importorskip("tensorflow_text", reason="subwords need the extra `text`")
    monkeypatch.setattr(example, "missing_packages", lambda options: None)
    monkeypatch.setattr(example, "build", stop)
    arguments = ["--smoke", "--vocabulary", "5000", "--output", str(tmp_path)]
    assert example.main(arguments) == 2
    check_line(capsys, "--vocabulary 5000: ", "at most")
