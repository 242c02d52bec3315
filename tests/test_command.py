"""The command `keras-attention`, mostly in this process, on one exported model."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keras_attention import CharacterTokenizer, causal_lm, command, export_servable, seq2seq
from keras_attention.command import main
from keras_attention.export import bulk
from keras_attention.export.servable import load_servable

LETTERS = CharacterTokenizer.fit(["abcdefgh xyz", "한국어 문장"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with model.keras, and servable, which the command exported from it."""
    folder = tmp_path_factory.mktemp("command")
    keras.utils.set_random_seed(3)
    seq2seq(LETTERS, LETTERS, units=8).save(folder / "model.keras")
    (folder / "metrics.json").write_text('{"BLEU": 31.5}')
    arguments = f"export {folder}/model.keras {folder}/servable --max-length 6 --beam-width 3"
    arguments += f" --metrics {folder}/metrics.json --max-input-length 30"
    assert main([*arguments.split(), "--beam-option", "length_penalty=0.6"]) == 0
    return folder


@pytest.fixture(scope="module")
def servable(trained):
    return str(trained / "servable")


def test_export_writes_what_was_asked_for(trained, servable):
    card = load_servable(servable).card
    assert card["metrics"] == {"BLEU": 31.5}
    assert card["search"]["beam_options"] == {"length_penalty": 0.6, "num_results": 3}
    model = keras.saving.load_model(trained / "model.keras")
    assert load_servable(servable).translate(["abc"]) == model.translate(["abc"], max_length=6)


def test_export_in_other_formats(trained, tmp_path, capsys):
    for name, options in (("onnx", []), ("litert", ["--int8", "--endpoint", "forward"])):
        arguments = ["export", str(trained / "model.keras"), str(tmp_path / name), "--format", name]
        assert main([*arguments, "--max-length", "5", *options]) == 0
        assert "-> " in capsys.readouterr().out
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    "name, message",
    [("a.onnx", "is an ONNX file: open it in onnxr"), ("a.tflite", "is a LiteRT file: open it in")],
)
def test_files_of_other_formats_are_told_apart(tmp_path, capsys, name, message):
    (tmp_path / name).touch()
    for arguments in (["inspect"], ["run", "--text", "a"], ["plot", "--text", "a", "-o", "b.png"]):
        assert main([arguments[0], str(tmp_path / name), *arguments[1:]]) == 1
        shown = capsys.readouterr().err
        assert f"{name} {message}" in shown and shown.count("\n") == 1


def test_run_on_texts(servable, capsys):
    front, texts = load_servable(servable), ["abc", "", "한국"]
    assert main(["run", servable, "--text", *texts]) == 0
    assert capsys.readouterr().out.split("\n") == [*front.translate(texts), ""]
    assert main(["run", servable, "--beam", "--text", "abc"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(x["text"], x["score"]) for x in found] == front.translate_beam("abc")


def test_run_on_a_file(servable, tmp_path, capsys):
    lines = ["abc", "", "한국어", "x y z"] * 5
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", "utf-8")
    options = ["--input", str(tmp_path / "in.txt"), "--batch-size", "2"]
    assert main(["run", servable, *options, "--output", str(tmp_path / "out.txt")]) == 0
    expected = load_servable(servable).translate(lines)
    assert (tmp_path / "out.txt").read_text("utf-8").split("\n") == [*expected, ""]
    assert sorted(x.name for x in tmp_path.iterdir()) == ["in.txt", "out.txt"]
    capsys.readouterr()
    assert main(["run", servable, *options]) == 0  # to standard output
    assert capsys.readouterr().out.split("\n") == [*expected, ""]
    assert main(["run", servable, *options, "--output", str(tmp_path / "out.txt")]) == 1
    assert "out.txt exists already" in capsys.readouterr().err


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    """Whole lines that were written are kept; a line that was cut is made anew."""
    lines = [f"line {i}" for i in range(10)]
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(lines), "utf-8")
    (tmp_path / "model_card.json").write_text("{}")
    monkeypatch.setattr(bulk, "CHUNKS", 1)
    asked, stops = [], ["line 6"]

    def shout(texts, batch_size):
        asked.extend(texts)
        if stops and stops[0] in texts:
            stops.pop()
            raise KeyboardInterrupt
        return [text.upper() for text in texts]

    with pytest.raises(KeyboardInterrupt):
        bulk.answer_file(shout, tmp_path, source, target, batch_size=3)
    part = tmp_path / "out.txt.part"
    assert not target.exists() and part.read_text("utf-8").count("\n") == 6
    with open(part, "a") as file:
        file.write("LINE")
    progress = []
    done = bulk.answer_file(shout, tmp_path, source, target, 3, lambda *x: progress.append(x))
    assert (done, progress) == (6, [(9, 10), (10, 10)])
    assert target.read_text("utf-8") == "".join(f"LINE {i}\n" for i in range(10))
    assert asked.count("line 1") == 1
    assert not list(tmp_path.glob("*.part*"))


def test_a_line_that_is_refused_and_put_right(tmp_path):
    """What was done before it stays done."""
    lines = [f"line {i}" for i in range(9)]
    lines[7] = "bad"
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(lines), "utf-8")
    (tmp_path / "model_card.json").write_text("{}")
    asked = []

    def shout(texts, batch_size):
        if "bad" in texts:
            raise ValueError("too long")
        asked.extend(texts)
        return [text.upper() for text in texts]

    with pytest.raises(ValueError, match="in.txt, line 8: too long"):
        bulk.answer_file(shout, tmp_path, source, target)
    source.write_text("\n".join([*lines[:7], "good", *lines[8:]]), "utf-8")
    asked.clear()
    assert bulk.answer_file(shout, tmp_path, source, target) == 7
    assert asked == ["good", "line 8"]
    assert target.read_text("utf-8").splitlines()[6:] == ["LINE 6", "GOOD", "LINE 8"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_notes_that_are_damaged(tmp_path, content):
    (tmp_path / "in.txt").write_text("a\n")
    (tmp_path / "model_card.json").write_text("{}")
    (tmp_path / "out.txt.part").write_text("A\n")
    if content is not None:
        (tmp_path / "out.txt.part.json").write_text(content)
    with pytest.raises(ValueError, match="can not be gone on with"):
        bulk.answer_file(print, tmp_path, tmp_path / "in.txt", tmp_path / "out.txt")


@pytest.mark.parametrize("what", ["source", "model", "output"])
def test_what_is_done_must_be_of_the_same(tmp_path, what, monkeypatch):
    monkeypatch.setattr(bulk, "CHUNKS", 1)
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\n")
    (tmp_path / "model_card.json").write_text("{}")

    def fails(texts, batch_size):
        if "b" in texts:
            raise KeyboardInterrupt
        return texts

    def other(texts, batch_size):
        return texts

    with pytest.raises(KeyboardInterrupt):
        bulk.answer_file(fails, tmp_path, source, target, batch_size=1)
    changes = {"source": "in.txt", "model": "model_card.json"}
    if what in changes:
        (tmp_path / changes[what]).write_text("[]")
    with pytest.raises(ValueError, match=f"lines made with another {what}. Delete it"):
        bulk.answer_file(other if what == "output" else fails, tmp_path, source, target)


def test_a_line_end_in_an_answer_becomes_a_space():
    found = bulk.answer_lines(lambda texts, batch_size: ["a\nb\r\nc", ""], ["x", "y"], 2, str)
    assert found == ["a b c", ""]


def test_inspect(servable, capsys):
    assert main(["inspect", servable]) == 0
    shown = capsys.readouterr().out
    assert "Seq2Seq" in shown and "needs tensorflow\n" in shown
    assert "output  attention: float32 [?, ?, ?]" in shown
    assert "input   text: string [?]" in shown
    assert main(["inspect", servable, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "Seq2Seq"


def test_plot(servable, tmp_path, capsys):
    text = next(x for x in ("abc", "xyz", "bcd efg") if load_servable(servable).translate(x))
    assert main(["plot", servable, "--text", text, "-o", str(tmp_path / "a.svg")]) == 0
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")
    assert f"{text} -> " in capsys.readouterr().out
    assert main(["plot", servable, "--text", text, "-o", str(tmp_path / "a.html")]) == 0
    assert "showAttention" in (tmp_path / "a.html").read_text("utf-8")
    assert main(["plot", servable, "--text", text, "-o", str(tmp_path / "a.xyz")]) == 1
    assert "png" in (said := capsys.readouterr().err) and ".html" in said
    assert main(["plot", servable, "--text", "", "-o", str(tmp_path / "b.svg")]) == 1
    assert "is empty: nothing to draw" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("export {t}/no.keras {t}/x", "no such file: "),
        ("export {t}/model.keras {t}/servable", "exists already"),
        ("export {t}/model.keras {t}/x --option colour=red", "`colour` is no option"),
        ("export {t}/metrics.json {t}/x", "metrics.json can not be loaded as a Keras model"),
        ("run {t} --text a", "holds no SavedModel"),
        ("run {t}/servable --input {t}/no.txt", "no such file"),
        ("run {t}/servable --input {t}/model.keras", "line 1: expected UTF-8"),
        ("run {t}/servable --text a " + "b" * 40, "text 2: An input has too many tokens"),
        (
            "plot {t}/servable -o {t}/x.png --text " + "b" * 40,
            "error: An input has too many tokens",
        ),
        ("run {t}/servable --input {t}/metrics.json --output {t}/a/b", "does not exist"),
        ("export {t}/model.keras {t} --overwrite", "is nothing that an export wrote"),
        ("export {t}/model.keras {t}/x --metrics {t}/model.keras", "model.keras: "),
        ("inspect {t}", "holds no SavedModel"),
        ("inspect {t}/nothing", "nothing does not exist"),
        ("run {t}/model.keras --text a", "model.keras is a Keras model: export it first"),
        ("inspect {t}/metrics.json", "metrics.json is a file. A folder that `export_servable`"),
        ("plot {t}/servable --text a -o {t}/x.txt", "Received suffix 'txt'"),
    ],
)
def test_errors_are_one_line_and_status_1(trained, capsys, arguments, message):
    before = sorted(trained.iterdir())
    assert main(arguments.format(t=trained).split()) == 1
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1
    assert sorted(trained.iterdir()) == before


@pytest.mark.parametrize(
    "arguments", ["", "dance", "export a", "run", "export a b --beam-width x", "plot a --text b"]
)
def test_wrong_arguments_are_status_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("export a b --int8", "--int8 goes with --format litert"),
        ("export a b --int8 --format onnx", "--int8 goes with --format litert"),
        ("export a b --endpoint encode", "--endpoint goes with --format onnx or litert"),
        ("export a b --format onnx --beam-width 4", "--beam-width goes with --format savedmodel"),
        ("export a b --format litert --beam-width 5", "--beam-width goes with --format savedmodel"),
        ("export a b --format onnx --max-input-length 5", "--max-input-length goes with --format"),
        ("export a b --format onnx --beam-option x=1", "--beam-option goes with --format savedm"),
        ("export a b --format litert --metrics c", "--metrics goes with --format savedmodel"),
        ("run a --text b --input c", "--text and --input exclude each other"),
        ("run a --text b --output c", "--output goes with --input"),
    ],
)
def test_arguments_that_do_not_go_together_are_status_2(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


def test_as_a_process_with_standard_input(servable):
    done = subprocess.run(
        [sys.executable, "-m", "keras_attention", "run", servable],
        input="abc\n\n한국\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    expected = load_servable(servable).translate(["abc", "", "한국"])
    assert done.stdout.split("\n") == [*expected, ""]


# Arguments, cards and files of any content


few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BOM = b"\xef\xbb\xbf"
ODD = ["", "a", "한국 שלום", "👩\u200d👩", "\udcff", "a\nb", "a\0b", "a" * 5000]
ARGUMENTS = [*ODD, "--", "-", "x=[1", "1e999"]


loaded_once = functools.cache(load_servable)


def status(capsys, arguments):
    """The exit status, and the lines on standard error."""
    try:
        found = main(arguments)
    except SystemExit as stopped:
        found = stopped.code
    return found, capsys.readouterr().err.splitlines()


OPTIONS = ["--text", "--beam", "--batch-size", "--input", "--output", "-o", "--json", "--option"]
OPTIONS += [
    "--format",
    "onnx",
    "--max-length",
    "--beam-width",
    "--metrics",
    "--overwrite",
    "--int8",
]


@few
@given(
    st.sampled_from(["export", "run", "inspect", "plot"]),
    st.lists(st.sampled_from(ARGUMENTS + OPTIONS) | st.text(max_size=5), max_size=6),
)
@example("export", ["a", "b", "--option", "x=" + "[" * 100_000])
@example("export", ["a", "b", "--beam-width", "9" * 5000])
@example("run", ["\udcff\udcfe", "--text", "a"])
@example("inspect", ["a\0b"])
@example("inspect", ["a" * 5000])
def test_any_arguments(tmp_path, monkeypatch, capsys, name, arguments):
    monkeypatch.chdir(tmp_path)
    found, lines = status(capsys, [name, *arguments])
    if "-h" not in arguments:
        assert found in (1, 2) and len(lines) == 1, lines
        assert re.match(f"keras-attention( {name})?: error: ", lines[0])
    assert list(tmp_path.iterdir()) == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(ODD), inner),
    max_leaves=5,
)


@few
@given(st.data())
def test_cards_of_any_content(servable, tmp_path, capsys, data):
    """A damaged card is an error of one line for all that read it."""
    card = json.loads(Path(servable, "model_card.json").read_text("utf-8"))
    key = data.draw(st.sampled_from(sorted(card)))
    folder = tmp_path / "damaged"
    folder.mkdir(exist_ok=True)
    (folder / "saved_model.pb").touch()
    value = data.draw(VALUES)
    (folder / "model_card.json").write_text(json.dumps({**card, key: value}), "utf-8")
    for arguments in (["inspect", str(folder)], ["run", str(folder), "--text", "a"]):
        found, lines = status(capsys, arguments)
        assert (found == 0 and not lines) or (found == 1 and len(lines) == 1), lines


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe{\0", b"[" * 100_000, b'{"format": 1e999}', b"1"]
)
def test_cards_that_are_none(tmp_path, capsys, content):
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "model_card.json").write_bytes(content)
    found, lines = status(capsys, ["inspect", str(tmp_path)])
    assert found == 1 and len(lines) == 1 and "model_card.json" in lines[0]


BYTES = st.binary(max_size=30) | st.lists(
    st.sampled_from(
        [x.encode("utf-8", "replace") for x in ODD[:8]] + [b"\n", b"\r\n", b"\r", b"\xff"]
    ),
    max_size=6,
).map(b"".join)


@settings(few, max_examples=15)
@given(BYTES)
@example(b"\xef\xbb\xbfabc\r\nx\ry\0\n")
def test_lines_of_any_bytes(servable, tmp_path, capsys, monkeypatch, data):
    """A line of answer for each line, or the line that can not be asked is named."""
    loaded = loaded_once(servable)
    monkeypatch.setattr(command, "_load", lambda path: loaded)
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(data)
    found, lines = status(
        capsys, ["run", servable, "--input", str(source), "--output", str(target)]
    )
    ends = data.count(b"\n") + (not data.endswith(b"\n") and data.removeprefix(BOM) != b"")
    if found == 0:
        assert target.read_bytes().count(b"\n") == ends
    else:
        assert found == 1 and f"{source}, line " in lines[-1]
    for path in tmp_path.glob("out.txt*"):
        path.unlink()


def test_names_of_files_that_are_no_text(servable, tmp_path, capsys):
    source, target = tmp_path / "in.txt", os.fsdecode(os.fsencode(tmp_path) + b"/out\xff")
    source.write_text("abc\n")
    assert status(capsys, ["run", servable, "--input", str(source), "--output", target])[0] == 0
    assert os.path.getsize(target)


def test_a_damaged_saved_model_is_one_line(servable, tmp_path, capsys):
    for place in ("saved_model.pb", "variables/variables.index"):
        folder = tmp_path / place.partition("/")[0].partition(".")[0]
        shutil.copytree(servable, folder)
        content = bytearray((folder / place).read_bytes())
        for damaged in (content[: len(content) // 2], bytes(len(content)), b""):
            (folder / place).write_bytes(damaged)
            found, lines = status(capsys, ["run", str(folder), "--text", "a"])
            assert found == 1 and len(lines) == 1 and str(folder) in lines[0], lines


@pytest.mark.slow
def test_of_a_language_model(tmp_path, capsys):
    model = causal_lm(LETTERS, layers=1, units=8, num_heads=2)
    export_servable(model, tmp_path / "a", 2, 5)
    assert main(["run", str(tmp_path / "a"), "--text", "abc"]) == 0
    assert capsys.readouterr().out == model.generate("abc", max_length=5) + "\n"
    assert main(["plot", str(tmp_path / "a"), "--text", "abc", "-o", str(tmp_path / "a.png")]) == 1
    assert "gives no `target_tokens`" in capsys.readouterr().err
