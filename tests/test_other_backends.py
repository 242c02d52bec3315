"""What is left out on JAX and PyTorch is said, once, in the documents too."""

import re
from pathlib import Path

import other_backends
import pytest
from other_backends import FILES, MODES_HERE, NO_BACKEND

TESTS = Path(__file__).parent
TABLE = re.findall(r"^\| ([^|]+) \|", (TESTS.parent / "docs/backends.md").read_text("utf-8"), re.M)


def test_files_and_reasons_are_real():
    assert list(FILES) == sorted(FILES)
    for name, reason in FILES.items():
        assert (TESTS / name).is_file(), name
        assert reason == NO_BACKEND or reason in TABLE, reason


def test_reasons_of_marks_are_rows_of_the_table():
    used = set()
    for file in TESTS.glob("test_*.py"):
        marks = re.findall(r"mark\.tensorflow_only(\(.*)", file.read_text("utf-8"))
        if file.name != Path(__file__).name:
            reasons = [re.fullmatch(r'\("([^"]+)"\).*', mark) for mark in marks]
            assert all(reasons), f"{file.name}: a mark without reason"
            used |= {match[1] for match in reasons}
    assert used and used <= set(TABLE)


class Item:
    def __init__(self, name, *marks, **params):
        self.path, self.marks = TESTS / name, list(marks)
        if params:
            self.callspec = type("", (), {"params": params})

    def add_marker(self, mark):
        self.marks.append(getattr(mark, "mark", mark))

    def iter_markers(self, name):
        return (mark for mark in self.marks if mark.name == name)


def test_what_happens_to_items(monkeypatch):
    """A marked test has to fail there; a mode or a file that does not apply is skipped."""
    mark = pytest.mark.tensorflow_only("tf.function").mark
    for backend, modes in MODES_HERE.items():
        monkeypatch.setattr(other_backends, "BACKEND", backend)
        items = [Item("test_masks.py"), Item("test_masks.py", mark), Item("test_tiles.py")]
        items += [Item("test_masks.py", mode=mode) for mode in modes]
        other_backends.mark_what_does_not_apply(items)
        added = [[x.name for x in item.marks if x is not mark] for item in items]
        if backend == "tensorflow":
            assert not any(added)
            continue
        skipped = [["skip"] if modes[mode] else [] for mode in modes]
        assert added == [[], ["xfail"], ["skip"], *skipped]
        (expected,) = items[1].iter_markers("xfail")
        assert expected.kwargs == {"reason": "tf.function", "strict": True}
