"""Files tell nothing of the machine that wrote them, and run nothing on one that reads them."""

import ast
import socket
import sys
import tempfile
from pathlib import Path

import keras
import pytest

from keras_attention import (
    CharacterTokenizer,
    export_litert,
    export_onnx,
    export_servable,
    seq2seq,
)
from keras_attention.command import main

ROOT = Path(__file__).parents[1]


def traces():
    """What would tell where a file was made."""
    places = {ROOT, Path.cwd(), Path.home(), Path(sys.prefix), Path(tempfile.gettempdir())}
    names = {f"{place}/" for place in places if place != Path("/")}
    host = socket.gethostname()
    return names | ({host} if len(host) > 8 else set())  # (a short one may be part of anything)


def traces_in(path):
    files = [path] if path.is_file() else [x for x in path.rglob("*") if x.is_file()]
    assert files
    return [(x.name, y) for x in files for y in traces() if y.encode() in x.read_bytes()]


def test_the_search_finds_what_it_searches(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\0\1" + str(ROOT / "setup.py").encode() + b"\2")
    assert {name for name, _ in traces_in(path)} == {"file"}


@pytest.mark.slow
def test_what_is_written_names_no_place_of_this_machine(tmp_path):
    letters = CharacterTokenizer.fit(["abcdef"])
    model = seq2seq(letters, letters, units=8)
    model.save(tmp_path / "model.keras")
    export_servable(model, tmp_path / "servable", max_length=4)
    export_onnx(model, tmp_path / "model.onnx", "step")
    export_litert(model, tmp_path / "model.tflite", "forward")
    for name in ("model.keras", "servable", "model.onnx", "model.tflite"):
        assert traces_in(tmp_path / name) == []


def test_loading_runs_no_code_of_the_file(tmp_path, capsys):
    """A layer that holds Python code is refused, and its code is not run."""
    ran = tmp_path / "ran"
    place = str(ran)
    inputs = keras.Input((2,))
    trap = keras.layers.Lambda(lambda x: (open(place, "w").close(), x)[1], output_shape=(2,))
    model = keras.Model(inputs, trap(inputs))
    model.save(tmp_path / "trap.keras")
    ran.unlink(missing_ok=True)  # (building the model ran it)
    assert main(["export", str(tmp_path / "trap.keras"), str(tmp_path / "out")]) == 1
    assert "can not be loaded" in capsys.readouterr().err
    assert not ran.exists() and not (tmp_path / "out").exists()


def names_used(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


UNSAFE = {"pickle", "marshal", "shelve", "allow_pickle", "safe_mode"}
UNSAFE |= {"enable_unsafe_deserialization"}


@pytest.mark.parametrize("folder", ["keras_attention", "examples"])
def test_nothing_is_loaded_unsafely(folder):
    for bad in ("import pickle", "np.load(x, allow_pickle=True)", "load_model(x, safe_mode=False)"):
        assert UNSAFE & set(names_used(bad))
    for path in (ROOT / folder).rglob("*.py"):
        if "node_modules" not in path.parts:
            assert not UNSAFE & set(names_used(path.read_text("utf-8"))), path
