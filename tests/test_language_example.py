"""The language model example: its text, its training by the clock, and a run of it."""

import contextlib
import gzip
import importlib
import io
import json
import math
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
example, language_text, language_train, language_plain = (
    importlib.import_module(name)
    for name in ("language_model", "language_text", "language_train", "language_plain")
)
TEXT = "the quick brown fox jumps over the lazy dog. " * 40


def options_of(*arguments):
    return example.parse_options([str(x) for x in arguments])


def stop(*arguments, **options):
    raise AssertionError("the run went on")


# Text


def test_the_documentation_has_each_paragraph_once():
    text = language_text.documentation()
    paragraphs = text.strip().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 1000
    assert 'The "for" statement' in text and text == language_text.documentation()


def test_the_end_of_a_text_is_held_out(tmp_path):
    path = tmp_path / "text.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        file.write("a line\r\n" * 50 + "ß" * 50)
    name, parts = language_text.load_text(options_of("--data", path, "--length", 20))
    assert name == "text.gz"
    whole = "a line\n" * 50 + "ß" * 50 + "\n"
    assert parts.train + parts.held_out == whole and len(parts.held_out) == 40
    assert set(parts.held_out) == {"ß", "\n"}
    limited = language_text.load_text(options_of("--data", path, "--length", 9, "--limit", 100))[1]
    assert parts.train[:90] == limited.train and len(limited.held_out) == 10


# Training


def test_the_clock_sets_the_rate_and_stops(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(language_train.time, "monotonic", lambda: now[0])
    schedule = language_train.WarmupCosine(1.0, 100, 1000, floor=0.0)
    clock = language_train.Clock(schedule, seconds=10)
    optimizer = types.SimpleNamespace(learning_rate=None)
    clock.set_model(types.SimpleNamespace(optimizer=optimizer, stop_training=False))
    rates, stops = [], []
    for until in (5, 10):
        clock.until = until
        clock.model.stop_training = False
        clock.on_train_begin()
        while not clock.model.stop_training:
            clock.on_train_batch_begin(0)
            rates.append(optimizer.learning_rate)
            now[0] += 1
            clock.on_train_batch_end(0)
        stops.append(clock.trained)
        now[0] += 77  # another model's turn
    assert stops == [5, 10] and len(rates) == 10
    assert rates[1] == pytest.approx(1, abs=1e-3) == max(rates)
    assert rates == pytest.approx([float(schedule(100 * n)) for n in range(10)])


def test_the_model_of_plain_layers_has_the_same_shape():
    options = options_of("--smoke")
    size, units, length = 50, options.units, options.length
    plain = language_plain.plain_model(options, size)
    ours = example.build(options, size)
    # Positions, and weights and biases of logits, are all that it has more.
    more = length * units + units * size + size
    assert plain.count_params() - ours.count_params() == more
    ids = np.random.default_rng(0).integers(4, size, (2, length))
    changed = ids.copy()
    changed[:, 9:] = 4
    before, after = (np.asarray(plain(x, training=False)) for x in (ids, changed))
    np.testing.assert_allclose(before[:, :9], after[:, :9], atol=1e-5)  # it sees what was before
    assert np.abs(before[:, 9:] - after[:, 9:]).max() > 1e-3


def test_nats_and_bits_are_those_of_a_character():
    model = types.SimpleNamespace(evaluate=lambda batches, verbose: 0.5)
    found = language_train.test(model, None, "äöü" * 20, np.full(120, 9), options_of("--smoke"))
    assert found == {"nats": 1.0, "bits": pytest.approx(1 / math.log(2), abs=1e-4)}


# A run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """What a run with both models returned and printed, and its folder."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    arguments = ("--smoke", "--data", folder / "text.txt", "--plain", "--time-limit", 0.05)
    sizes = ("--layers", 1, "--units", 16, "--length", 16, "--characters", 20)
    output = folder / "made" / "here"
    with io.StringIO() as text:
        with contextlib.redirect_stdout(text):
            results = example.run(options_of(*arguments, *sizes, "--output", output))
        return results, text.getvalue(), output


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_a_run_leaves_what_it_says(smoke):
    results, text, output = smoke
    assert sorted(path.name for path in output.iterdir()) == sorted(example.WRITTEN)
    written = json.loads((output / "results.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(results))
    assert results["characters"] == {"train": 1621, "held_out": 180}
    for name in ("ours", "plain"):
        found = results[name]["held_out"]
        assert f"Held-out text, {name}: {found['nats']:.3f} nats, {found['bits']:.3f} bits" in text
        assert found["bits"] == pytest.approx(found["nats"] / math.log(2), abs=1e-3)
        assert results[name]["steps"] > 0 and results[name]["losses"]
    assert f"{results['ours']['parameters']:,} parameters" in text
    (generated,) = results["generated"]
    assert len(generated) <= 32 + 20 and generated in text


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_the_saved_model_has_the_loss_that_was_printed(smoke):
    results, _, output = smoke
    model = keras.models.load_model(output / "model.keras")
    assert model.count_params() == results["ours"]["parameters"]
    ids = np.asarray(model.tokenizer.encode([(TEXT + "\n")[-180:]]))[0]
    count = (len(ids) - 1) // 16
    rows = np.stack([ids[16 * n : 16 * n + 17] for n in range(count)])
    logits = np.asarray(model(rows[:, :-1], training=False), "float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logits, rows[:, 1:, None], axis=-1)
    assert -chosen.mean() == pytest.approx(results["ours"]["held_out"]["nats"], abs=1e-3)


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_texts_are_continued_without_training(smoke, capsys):
    results, _, output = smoke
    prompt = (TEXT + "\n")[-180:][:32]
    arguments = ["--model", str(output), "--characters", "20", "--prompt", prompt]
    assert example.main(arguments) == 0
    assert capsys.readouterr().out == f"---\n{results['generated'][0]}\n---\n"
    assert example.main([*arguments, "", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"---\n{prompt}")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--tokenizer", "bytes", "--position", "alibi")])
def test_a_text_that_repeats_itself_is_learned(tmp_path, arguments):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 5, encoding="utf-8")
    more = ("--epochs", 12, "--learning-rate", 1e-2, "--warmup", 20, "--temperature", 0)
    output = ("--output", tmp_path / "output", "--prompt", "the quick brown fox ")
    results = example.run(options_of("--smoke", "--data", path, *arguments, *more, *output))
    assert results["ours"]["held_out"]["bits"] < 0.5  # the start of each stretch is a guess
    assert results["generated"][0].startswith("the quick brown fox jumps over the lazy dog. the q")


# Errors: one line, exit code 2, nothing written


def check_line(capsys, *messages):
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("language_model.py: error: ")
    for message in messages:
        assert message in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--epochs", "0"], "expected an integer above 0"),
        (["--time-limit", "-1"], "expected a number above 0"),
        (["--temperature", "-1"], "expected a number of at least 0"),
        (["--units", "36", "--heads", "4"], "--units must be an even number for each of --heads 4"),
        (["--plain"], "--plain needs --time-limit"),
        (["--model", "folder"], "--model goes with --prompt"),
        (["--tokenizer", "words"], "invalid choice"),
    ],
)
def test_bad_options_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        example.main(arguments)
    check_line(capsys, message)


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        example.main(["--help"])
    text = capsys.readouterr().out
    assert "examples:\n  language_model.py " in text and "None" not in text


def test_bad_texts_are_one_line(tmp_path, capsys):
    path, output = tmp_path / "text.txt", tmp_path / "output"
    arguments = ["--data", str(path), "--output", str(output)]
    assert example.main(arguments) == 2
    check_line(capsys, "no such file", "text.txt")
    path.write_text("short", encoding="utf-8")
    assert example.main(arguments) == 2
    check_line(capsys, "text.txt: expected more than --length 128 characters to learn, got 5")
    path.write_bytes(b"gut\nschl\xe4cht\n")
    assert example.main(arguments) == 2
    check_line(capsys, "text.txt, line 2", "0xE4")
    assert not output.exists()


def test_a_python_without_its_documentation(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert example.main(["--smoke"]) == 2
    check_line(capsys, "pydoc_data.topics: give a text with --data FILE")


def test_the_output_must_not_mix_with_other_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(example, "build", stop)
    (tmp_path / "thesis.tex").write_text("mine")
    assert example.main(["--smoke", "--output", str(tmp_path)]) == 2
    check_line(capsys, "--output", "it holds thesis.tex")


def test_a_folder_without_a_model(tmp_path, capsys):
    assert example.main(["--model", str(tmp_path), "--prompt", "a"]) == 2
    check_line(capsys, "holds no model.keras")
    (tmp_path / "model.keras").write_bytes(b"no model")
    assert example.main(["--model", str(tmp_path), "--prompt", "a"]) == 2
    check_line(capsys, "model.keras is no model of this script")
