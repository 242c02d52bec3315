"""The Python in the README and in the guides runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRINTED = {  # a line that each page prints
    "README.md": "(2, 1, 20) (2, 1) (2, 1, 20, 4)",
    "docs/attention.md": "True (2, 5)",
    "docs/masks.md": "the mask of `query`, dropped by",
    "docs/serving.md": "'serve_tokens', 'serving_default', 'step'",
    "docs/transformer.md": "(None, None, 32)",
}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", PRINTED)
def test_each_python_block_runs(page, capsys):
    assert blocks(page)
    for block in blocks(page):
        exec(compile(block, page, "exec"), {})
    assert PRINTED[page] in capsys.readouterr().out


def test_no_page_is_left_out():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    names = {str(path.relative_to(ROOT)) for path in pages}
    assert {name for name in names if blocks(name)} == set(PRINTED)
