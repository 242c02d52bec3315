"""Files of lines through an exported model by Ray Data, killed and taken up again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest

from keras_attention import CharacterTokenizer, export_servable, load_servable, seq2seq

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/distributed/translate_ray.py"
LETTERS = CharacterTokenizer.fit(["abcdefgh"])
TOO_LONG = "abcdefgh" * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    keras.utils.set_random_seed(1)
    path = tmp_path_factory.mktemp("models") / "1"
    export_servable(seq2seq(LETTERS, LETTERS, units=8), path, 2, 12, max_input_length=20)
    return path


def lines_of(count, shift):
    return ["abcdefgh"[n % 8] * (1 + (n + shift) % 9) for n in range(count)]


@pytest.fixture
def files(tmp_path):
    """Two files; the first one's line 8 is too long, and its line 12 is no UTF-8."""
    first, second = lines_of(30, 0), lines_of(17, 3)
    first[7] = TOO_LONG
    content = [line.encode() for line in first]
    content[11] = b"ab\xffcd"
    (tmp_path / "a.txt").write_bytes(b"\n".join(content))  # no line feed at the end
    (tmp_path / "b.txt").write_text("".join(f"{line}\n" for line in second))
    return tmp_path / "a.txt", tmp_path / "b.txt"


def command(model, files, output):
    options = ["--output", str(output), "--workers", "2", "--part-lines", "4"]
    return [sys.executable, str(SCRIPT), str(model), *map(str, files), *options]


def environment():
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}


def test_killed_in_the_middle_and_taken_up_again(model, files, tmp_path):
    output, parts = tmp_path / "out.txt", tmp_path / "out.txt.parts"
    process = subprocess.Popen(
        command(model, files, output), env=environment(), start_new_session=True
    )
    try:
        end = time.monotonic() + 300
        while len(done := sorted(parts.glob("[0-9]" * 6))) < 3:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not output.exists()
    time.sleep(5)  # what Ray started notices that its driver is gone
    done = sorted(parts.glob("[0-9]" * 6))
    assert 3 <= len(done) < 13, "killed too late to show anything"
    times = {path: path.stat().st_mtime_ns for path in done}
    for path in done[1:]:
        os.link(path, tmp_path / path.name)  # the folder goes away in the end
    again = subprocess.run(
        command(model, files, output), env=environment(), capture_output=True, text=True
    )
    print(again.stdout)
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"13 parts, {len(done)} of them done." in again.stdout
    for path in done[1:]:
        assert (tmp_path / path.name).stat().st_mtime_ns == times[path], "done again"
    texts = lines_of(30, 0) + lines_of(17, 3)
    expected = load_servable(model).translate(texts)
    expected[7] = expected[11] = ""
    assert output.read_text("utf-8").split("\n") == [*expected, ""]
    bad = (tmp_path / "out.txt.errors.tsv").read_text("utf-8").splitlines()
    assert [line.split("\t")[:2] for line in bad] == [[str(files[0]), "8"], [str(files[0]), "12"]]
    assert "too many tokens" in bad[0] and "UTF-8" in bad[1]
    assert not parts.exists()


def test_another_model_or_file_is_refused(model, files, tmp_path):
    output = tmp_path / "out.txt"
    parts = tmp_path / "out.txt.parts"
    parts.mkdir()
    (parts / "plan.json").write_text("{}")
    for message in ("holds parts of other files", "exists already"):
        done = subprocess.run(
            command(model, files, output), env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 2 and message in done.stderr
        output.touch()
