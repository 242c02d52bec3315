"""A disk that is full while something is saved: the old file stays whole, and nothing is left.

A limit to the size of files stands for the full disk: what goes beyond it can not be written.
"""

import contextlib
import hashlib
import os
import resource
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention import (
    AverageCheckpoints,
    CharacterTokenizer,
    attention_page,
    export_litert,
    export_onnx,
    export_servable,
    plot_alignment,
    seq2seq,
)
from keras_attention.command import main
from keras_attention.export import bulk
from keras_attention.export.servable import read_card
from keras_attention.whole import whole

LETTERS = CharacterTokenizer.fit(["abcdefgh"])
WEIGHTS, TOKENS = np.eye(8), [f"token {i}" for i in range(8)]
ROOM = 4000  # bytes of a file; each file here is larger


@contextlib.contextmanager
def full_disk(room=ROOM):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder):
    """What is in a folder and below it: a hash of each file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).digest() for path in files}


def small_model():
    return seq2seq(LETTERS, LETTERS, units=16)


def write_file(path, _):
    with whole(path) as file:
        file.write_bytes(os.urandom(2 * ROOM))


def write_folder(path, _):
    with whole(path) as folder:
        folder.mkdir()
        (folder / "small").write_bytes(os.urandom(9))
        (folder / "large").write_bytes(os.urandom(2 * ROOM))


QUICK = {
    "file": write_file,
    "folder": write_folder,
    "picture.png": lambda path, _: plot_alignment(WEIGHTS, TOKENS, TOKENS, path=path),
    "picture.svg": lambda path, _: plot_alignment(WEIGHTS, TOKENS, TOKENS, path=path),
    "page.html": lambda path, _: attention_page(WEIGHTS, TOKENS, TOKENS, path=path),
    "model.keras": lambda path, model: model.save(path),
    "model.weights.h5": lambda path, model: model.save_weights(path),
}
SLOW = {
    "servable": lambda path, model: export_servable(model, path, max_length=3, overwrite=True),
    "model.onnx": lambda path, model: export_onnx(model, path, "encode", overwrite=True),
    "model.tflite": lambda path, model: export_litert(model, path, "forward", overwrite=True),
}
CASES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", CASES)
def test_the_old_one_stays(tmp_path, name):
    write, model = {**QUICK, **SLOW}[name], small_model()
    write(tmp_path / name, model)
    before = contents(tmp_path)
    model.set_weights([1 + x for x in model.get_weights()])
    with pytest.raises(Exception) as error, full_disk():  # noqa: B017  (of many classes)
        write(tmp_path / name, model)
    assert contents(tmp_path) == before, error
    assert [path.name for path in tmp_path.iterdir()] == [name]
    write(tmp_path / name, small_model())  # and once there is room again, it works
    assert contents(tmp_path) != before or name.startswith(("picture", "page"))


def test_average_checkpoints(tmp_path):
    """The epoch that could not be saved is no file, and those before it are whole."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2000)])
    model.compile("sgd", "mse")
    data = np.ones([1, 1]), np.ones([1, 2000])
    callback = AverageCheckpoints(2, tmp_path)
    model.fit(*data, epochs=1, verbose=0, callbacks=[callback])
    before = contents(tmp_path)
    with pytest.raises(OSError, match="bytes are needed for the weights"), full_disk():
        model.fit(*data, epochs=3, initial_epoch=1, verbose=0, callbacks=[callback])
    assert contents(tmp_path) == before
    model.fit(*data, epochs=2, initial_epoch=1, verbose=0, callbacks=[callback])
    assert len(before) == 1 and len(contents(tmp_path)) == 2


def test_answers_to_a_file(tmp_path):
    """What could be written stays; with room again the run goes on, and nothing is lost."""
    lines = [f"line {i}" for i in range(1000)]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    (tmp_path / "model_card.json").write_text("{}")
    target, asked = tmp_path / "out.txt", []

    def shout(texts, batch_size):
        asked.extend(texts)
        return [text.upper() for text in texts]

    def answer():
        return bulk.answer_file(shout, tmp_path, tmp_path / "in.txt", target, batch_size=10)

    with pytest.raises(OSError, match="out.txt.part"), full_disk():
        answer()
    assert not target.exists()
    done = answer()
    assert 0 < done < 500 and len(asked) < 1100
    assert target.read_text() == "".join(line.upper() + "\n" for line in lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.txt",
        "model_card.json",
        "out.txt",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a full device")
def test_the_command_says_that_its_output_is_full(tmp_path):
    """In one line and by its status, and not at the end of the interpreter."""
    (tmp_path / "saved_model.pb").touch()
    card = {"format": 1, "model": "M", "parameters": 1, "dtype": "float32", "written": "now"}
    card |= {"versions": {}, "requires": [], "tokenizers": {}, "endpoints": {}}
    (tmp_path / "model_card.json").write_text(str(card).replace("'", '"'))
    command = [sys.executable, "-m", "keras_attention", "inspect", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "keras-attention inspect: error: [Errno 28] No space left on device"
    )
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("output", ["servable", "model.onnx", "model.tflite"])
def test_the_command_export_says_so_in_one_line(tmp_path, capsys, output):
    small_model().save(tmp_path / "model.keras")
    kinds = {"servable": "savedmodel", "model.onnx": "onnx", "model.tflite": "litert"}
    arguments = ["export", str(tmp_path / "model.keras"), str(tmp_path / output)]
    arguments += ["--format", kinds[output], "--max-length", "3"]
    with full_disk():
        assert main(arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("keras-attention export: error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


EXPORTER = """
import sys
import keras
from keras_attention import export_servable
model = keras.saving.load_model(sys.argv[1])
for turn in range(3):
    export_servable(model, sys.argv[2], max_length=3, overwrite=True, command=sys.argv[1])
"""


@pytest.mark.slow
def test_two_processes_that_export_to_one_folder_do_not_mix(tmp_path):
    """What is there in the end is one model with its own card and weights."""
    import tensorflow as tf

    models = {}
    for units in (8, 24):
        model = seq2seq(LETTERS, LETTERS, units=units)
        model.save(tmp_path / f"{units}.keras")
        models[str(tmp_path / f"{units}.keras")] = model
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    target = tmp_path / "servable"
    writers = [
        subprocess.Popen([sys.executable, "-c", EXPORTER, name, target], env=environment)
        for name in models
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    card = read_card(target)
    model = models[card["command"]]
    assert card["parameters"] == model.count_params()
    loaded = tf.saved_model.load(str(target))
    ids = np.array([[4, 5, 6, 2]], "int32")
    found = loaded.signatures["forward"](source=ids, target=ids)["logits"]
    np.testing.assert_allclose(found, model([ids, ids]), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["24.keras", "8.keras", "servable"]
