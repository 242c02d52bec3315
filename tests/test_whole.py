"""Files and folders that appear whole or not at all: after errors, kills, by several processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_attention import whole as module
from keras_attention.whole import whole

MODULE = Path(module.__file__)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["file", "folder"])
def test_output_is_whole_or_absent(tmp_path, name):
    target = tmp_path / name
    with pytest.raises(KeyError), whole(target) as path:
        path.mkdir()
        raise KeyError
    assert names(tmp_path) == []
    for text in ("old", "new"):
        with whole(target) as path:
            if name == "folder":
                path.mkdir()
                path = path / "inside"
            path.write_text(text)
    with pytest.raises(KeyError), whole(target) as path:
        path.write_text("half")
        raise KeyError
    assert (target / "inside" if name == "folder" else target).read_text() == "new"
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["old", "a.old0", "[a]*?", ".unfinished-x", "\udcff"])
def test_any_name(tmp_path, name):
    for text in ("1", "2"):
        with whole(tmp_path / name) as file:
            file.write_text(text)
        with whole(tmp_path / f"{name}s") as folder:
            folder.mkdir()
            (folder / text).touch()
    assert (tmp_path / name).read_text() == "2" and names(tmp_path / f"{name}s") == ["2"]
    assert names(tmp_path) == sorted([name, f"{name}s"])


def test_a_link_and_permissions_stay(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    with whole(tmp_path / "link") as file:
        file.write_text("new")
    assert (tmp_path / "real").read_text() == "new" and (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_a_folder_is_not_replaced_by_a_file_nor_the_other_way_round(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(IsADirectoryError), whole(tmp_path / "folder") as file:
        file.touch()
    with pytest.raises(NotADirectoryError), whole(tmp_path / "file") as folder:
        folder.mkdir()
    assert names(tmp_path) == ["file", "folder"] and names(tmp_path / "folder") == ["mine"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_block_that_writes_nothing_takes_nothing_away(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError), whole(tmp_path / "folder"):
        pass
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("links", [True, False])
def test_without_overwrite_the_first_one_stays(tmp_path, monkeypatch, kind, links):
    """Also where it came while the second one was being written."""

    def write(path, text):
        if kind == "folder":
            path.mkdir()
            path = path / "inside"
        path.write_text(text)

    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError))
    target = tmp_path / "a"
    with pytest.raises(FileExistsError, match="a exists already"):
        with whole(target, overwrite=False) as second:
            with whole(target, overwrite=False) as first:
                write(first, "first")
            write(second, "second")
    assert (target / "inside" if kind == "folder" else target).read_text() == "first"
    assert names(tmp_path) == ["a"]


def test_a_folder_that_can_not_be_put_there_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    replace = os.replace

    def refuse(source, target):
        if Path(target) == tmp_path / "a" and (Path(source) / "new").exists():
            raise PermissionError("refused")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError, match="refused"), whole(tmp_path / "a") as folder:
        folder.mkdir()
        (folder / "new").touch()
    assert names(tmp_path) == ["a"] and names(tmp_path / "a") == ["old"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    """By the next one to the same target; not what a live process, or another target, has there."""
    program = (
        "import os, runpy, signal, sys\n"
        "with runpy.run_path(sys.argv[1])['whole'](sys.argv[2]) as file:\n"
        "    file.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for name in ("a", "b"):
        done = subprocess.run([sys.executable, "-c", program, MODULE, tmp_path / name])
        assert done.returncode == -signal.SIGKILL
    of_a = next(x for x in tmp_path.iterdir() if (x / "a").exists())
    assert len(list(tmp_path.iterdir())) == 2
    with whole(tmp_path / "a") as first:
        assert not of_a.exists()
        first.write_text("1")
        with whole(tmp_path / "a") as second:
            assert first.exists()
            second.write_text("2")
    (left,) = (x for x in tmp_path.iterdir() if x.name != "a")
    assert (left / "b").exists()
    (left / "b.old0").write_text("the only copy")
    with whole(tmp_path / "b") as file:
        assert left.exists()
        file.write_text("3")


# Writes a folder again and again; each of its files holds the number of the process and the turn.
WRITER = """
import runpy, sys
whole = runpy.run_path(sys.argv[1])["whole"]
for turn in range(60):
    with whole(sys.argv[2]) as folder:
        folder.mkdir()
        for name in "abcdefgh":
            (folder / name).write_text(f"{sys.argv[3]} {turn}")
"""


def test_two_processes_that_write_one_folder_do_not_mix(tmp_path):
    target = tmp_path / "folder"
    commands = [[sys.executable, "-c", WRITER, MODULE, target, str(n)] for n in (1, 2)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        try:
            handle = os.open(target, os.O_RDONLY)  # this folder, also once it was moved away
        except FileNotFoundError:
            continue
        try:
            found = {os.open(name, os.O_RDONLY, dir_fd=handle) for name in os.listdir(handle)}
        except FileNotFoundError:
            continue  # being deleted
        finally:
            os.close(handle)
        texts = {os.read(file, 99) for file in found}
        for file in found:
            os.close(file)
        assert len(texts) <= 1
        seen |= {text[:1] for text in texts}
    assert [writer.communicate()[1] for writer in writers] == [b"", b""]
    assert seen == {b"1", b"2"}
    assert len({(target / name).read_text() for name in "abcdefgh"}) == 1
    assert names(tmp_path) == ["folder"]
