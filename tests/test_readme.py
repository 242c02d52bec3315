"""The README's Python runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)


def test_each_python_block_runs(capsys):
    assert len(blocks()) >= 3
    for block in blocks():
        exec(compile(block, "README.md", "exec"), {})
    assert "(2, 1, 20) (2, 1) (2, 1, 20, 4)" in capsys.readouterr().out
