"""The example of nested lists: its expressions, and a run of it."""

import contextlib
import importlib
import io
import json
import random
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
listops, data = (importlib.import_module(name) for name in ("listops", "listops_data"))
DataError = data.DataError


def options_of(*arguments):
    return listops.parse_options([str(x) for x in arguments])


def value(text):
    return data.evaluate(data.parse(text))


# Expressions


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[ MAX 2 9 [ MIN 4 7 ] 0 ]", 9),
        ("[MIN 3 [MAX 1 2] 5]", 2),
        ("[ MED 9 1 4 ]", 4),
        ("[ MED 9 1 4 6 ]", 4),
        ("[ sum 8 7 [ SUM 9 9 ] ]", 3),
        ("[ MED [ MAX 1 2 ] [ MIN 8 9 ] 5 ]", 5),
    ],
)
def test_values_by_hand(text, expected):
    assert value(text) == expected


def test_drawn_expressions_are_as_deep_as_asked():
    def depth(expression):
        return 0 if isinstance(expression, int) else 1 + max(map(depth, expression[1:]))

    generator = random.Random(1)
    for wanted in (1, 2, 3, 4):
        for _ in range(50):
            found = data.example(generator, wanted)
            expression = data.parse(found.text)
            assert depth(expression) == wanted == found.depth
            assert data.written(expression) == found.text
            assert found.length == len(found.text.split()) <= data.LONGEST
            assert found.value == str(data.evaluate(expression)) in data.DIGITS


def test_the_same_seed_gives_the_same_examples_and_none_tested_is_learned():
    train, held_out = data.examples(3, 400, 2, 30, 3)
    assert (train, held_out) == data.examples(3, 400, 2, 30, 3)
    assert train != data.examples(4, 400, 2, 30, 3)[0]
    assert len(train) == 400 and {x.depth for x in train} == {1, 2}
    assert [sum(x.depth == n for x in held_out) for n in (2, 3)] == [30, 30]
    assert not {x.text for x in train} & {x.text for x in held_out}
    assert len({x.text for x in held_out}) == len(held_out)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"expected \[ at the start, got ''"),
        ("5", r"expected \[ at the start, got '5'"),
        ("[ AVG 1 2 ]", "expected one of MAX, MIN, MED, SUM, got 'AVG'"),
        ("[ MAX 1 x ]", "expected a digit, . or ., got 'x'"),
        ("[ MAX 1 2", r"expected a \] in each list"),
        ("[ MAX 1 [ MIN ] ]", "expected values in each list"),
        ("[ MAX 1 ] 2", r"expected nothing behind the last \], got '2'"),
    ],
)
def test_texts_that_are_no_expressions(text, message):
    with pytest.raises(DataError, match=message):
        data.parse(text)


def test_batches_have_like_lengths_and_the_right_values():
    train, _ = data.examples(1, 300, 2, 5, 2)
    tokenizer = listops.WordTokenizer.fit(x.text for x in train)
    values = {x.text: int(x.value) for x in train}
    for ids, classes in listops.make_batches(tokenizer, train, seed=1).take(8):
        ids = ids.numpy()
        texts = [x.decode() for x in tokenizer.decode(ids).numpy()]
        assert [values[text] for text in texts] == classes.numpy().tolist()
        lengths = (ids != 0).sum(axis=1)
        assert len(set(np.digitize(lengths, listops.BOUNDARIES))) == 1
        assert ids.shape[1] == lengths.max()


# A run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """What a run returned and printed, and its folder."""
    output = tmp_path_factory.mktemp("listops") / "made" / "here"
    arguments = ("--smoke", "--epochs", 1, "--examples", 256, "--layers", 1, "--output", output)
    with io.StringIO() as text:
        with contextlib.redirect_stdout(text):
            results = listops.run(options_of(*arguments))
        return results, text.getvalue(), output


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_a_run_leaves_what_it_says(smoke):
    results, text, output = smoke
    assert sorted(path.name for path in output.iterdir()) == sorted(listops.WRITTEN)
    assert (output / "attention.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((output / "results.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(results))
    assert list(results["accuracy"]["depth"]) == ["1", "2", "3"]
    for rows in results["accuracy"].values():
        assert sum(row["count"] for row in rows.values()) == results["expressions"]["test"]
        assert all(0 <= row["right"] <= 1 for row in rows.values())
    assert set(results["accuracy"]["operator"]) <= set(data.OPERATORS)
    assert "(deeper than any it learned)" in text and "Drawn: [ " in text
    assert f"{results['parameters']:,} parameters" in text
    assert len(results["history"]["loss"]) == 1


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_the_shares_are_those_of_the_saved_model(smoke):
    results, _, output = smoke
    model = keras.models.load_model(output / "model.keras", compile=False)
    held_out = data.examples(1, 256, 2, 20, 3)[1]
    for depth, row in results["accuracy"]["depth"].items():
        asked = [x for x in held_out if str(x.depth) == depth]
        right = [model.classify([x.text])[0] == x.value for x in asked]  # alone, without padding
        assert row == {"right": pytest.approx(np.mean(right), abs=0.06), "count": len(asked)}


@pytest.mark.slow  # (`.ci/run` runs the script as well.)
def test_expressions_are_computed_without_training(smoke, capsys):
    *_, output = smoke
    texts = ["[MAX 1 2]", "[ sum 8 7 [ MIN 4 2 ] ]"]
    assert listops.main(["--model", str(output), "--text", *texts]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["[ MAX 1 2 ]", "[ SUM 8 7 [ MIN 4 2 ] ]"]
    assert all(row[1] in data.DIGITS for row in rows)


@pytest.mark.slow
def test_lists_of_digits_are_learned(tmp_path):
    sizes = ("--depth", 1, "--examples", 8000, "--epochs", 6, "--units", 48, "--layers", 2)
    results = listops.run(options_of("--tests", 200, *sizes, "--output", tmp_path))
    right = results["accuracy"]["depth"]["1"]["right"]
    assert right > 0.6 > 2 * results["most_frequent"]


# Errors: one line, exit code 2, nothing written


def check_line(capsys, *messages):
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("listops.py: error: ")
    for message in messages:
        assert message in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--epochs", "0"], "expected an integer above 0"),
        (["--dropout", "1"], "expected a number from 0 to below 1"),
        (["--units", "36", "--heads", "4"], "--units must be an even number for each of --heads 4"),
        (["--position", "none"], "invalid choice"),
        (["--text", "[ MAX 1 2 ]"], "--text and --model go together"),
        (["--model", "folder"], "--text and --model go together"),
    ],
)
def test_bad_options_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        listops.main(arguments)
    check_line(capsys, message)


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        listops.main(["--help"])
    text = capsys.readouterr().out
    assert "examples:\n  listops.py " in text and "None" not in text


def test_what_can_not_be_done_is_one_line(tmp_path, capsys, monkeypatch):
    assert listops.main(["--model", str(tmp_path), "--text", "[ MAX 1 ]"]) == 2
    check_line(capsys, "holds no model.keras")
    assert listops.main(["--model", str(tmp_path), "--text", "[ MAX"]) == 2
    check_line(capsys, "'[ MAX': expected a ] in each list")
    (tmp_path / "model.keras").write_bytes(b"no model")
    assert listops.main(["--model", str(tmp_path), "--text", "[ MAX 1 ]"]) == 2
    check_line(capsys, "model.keras is no model of this script")
    (tmp_path / "thesis.tex").write_text("mine")
    assert listops.main(["--smoke", "--output", str(tmp_path)]) == 2
    check_line(capsys, "--output", "it holds thesis.tex")
    monkeypatch.setattr(listops.importlib.util, "find_spec", lambda name: None)
    assert listops.main(["--smoke", "--output", str(tmp_path / "new")]) == 2
    check_line(capsys, "matplotlib is needed")
    assert not (tmp_path / "new").exists()
