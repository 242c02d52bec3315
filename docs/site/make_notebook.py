"""Makes examples/quickstart.ipynb of examples/quickstart.py.

The script is plain Python: `# %%` starts a cell of code, `# %% [markdown]` one of text. With
`--execute` the notebook is run (nbclient, ipykernel), and keeps what its cells print and draw; else
it has no outputs.
"""

import argparse
import json
import re
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CELL = re.compile(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", re.S | re.M)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells(script):
    """The cells of a script in the form of a notebook, without outputs."""
    found = []
    for number, (is_text, text) in enumerate(CELL.findall(script), start=1):
        cell = {"id": f"cell-{number}", "metadata": {}}
        if is_text:
            text = re.sub(r"^# ?", "", text, flags=re.M)
            cell |= {"cell_type": "markdown"}
        else:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        found.append({**cell, "source": text.strip().splitlines(keepends=True)})
    return found


def notebook(script):
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return {"cells": cells(script), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def execute(made, folder):
    """The same with what the cells print to the output and draw; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    done = nbformat.reads(json.dumps(made), as_version=4)
    nbformat.validate(done)
    NotebookClient(done, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in done.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
    return json.loads(nbformat.writes(done, version=4))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execute", action="store_true", help="run it and keep the outputs")
    parser.add_argument("--output", type=Path, default=EXAMPLES / "quickstart.ipynb")
    options = parser.parse_args(arguments)
    made = notebook((EXAMPLES / "quickstart.py").read_text("utf-8"))
    if options.execute:
        made = execute(made, EXAMPLES)
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    options.output.write_text(text, encoding="utf-8")
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
