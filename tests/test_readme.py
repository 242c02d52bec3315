"""The Python in the README and in the guides runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRINTED = {  # a line that each page prints
    "README.md": "(2, 1, 20) (2, 1) (2, 1, 20, 4)",
    "docs/attention.md": "True (2, 5)",
    "docs/backends.md": "read: Seq2Seq",
    "docs/distribution.md": "[0, 1] epochs trained by all",
    "docs/equations.md": "every layer gives what its equation says",
    "docs/gallery.md": "ein Hund schläft",
    "docs/internals.md": "(2, 3, 8) (2, 3, 8)",
    "docs/migration.md": "and not the new: True",
    "docs/moving_from_tfa.md": "the same logits: True",
    "docs/masks.md": "the mask of `query`, dropped by",
    "docs/serving.md": "'serve_tokens', 'serving_default', 'step'",
    "docs/transformer.md": "(None, None, 32)",
}
# Pages whose blocks build on each other.
ONE_PROGRAM = ("docs/backends.md", "docs/equations.md", "docs/moving_from_tfa.md")


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", PRINTED)
def test_each_python_block_runs(page, capsys):
    assert blocks(page)
    shared = {}
    for block in blocks(page):
        exec(compile(block, page, "exec"), shared if page in ONE_PROGRAM else {})
    assert PRINTED[page] in capsys.readouterr().out


def test_no_page_is_left_out():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    # Translations have the code of the original: tests/test_docs.py compares them.
    names = {str(path.relative_to(ROOT)) for path in pages if not path.stem.endswith(".ko")}
    assert {name for name in names if blocks(name)} == set(PRINTED)
