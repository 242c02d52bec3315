"""Draws the pictures of docs/equations.md from the arrays that the code of the page computes.

Runs the blocks of the page in their order; at a picture, draws the arrays named here as they are at
that place of the page.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))
KEYS, QUERIES = "memory step s", "decoder step t"
# Name of a picture: its panels, each a title, an expression, and the labels of both axes.
PANELS = {
    "bahdanau": [
        ("tanh(W s_t + U h_s), t = 2", "hidden[2].T", KEYS, "hidden unit"),
        ("e, scores", "e", KEYS, QUERIES),
        ("alpha, weights", "alpha", KEYS, QUERIES),
        ("c, contexts", "c", "feature", QUERIES),
    ],
    "luong": [(name, name, KEYS, QUERIES) for name in ("dot", "general", "concat", "location")],
    "local": [
        ("global", "softmax(dot)", KEYS, QUERIES),
        ("local-m", "local_m", KEYS, QUERIES),
        ("local-p", "local_p", KEYS, QUERIES),
    ],
    "scaled": [
        ("Q K^T / sqrt(d)", "scaled", KEYS, QUERIES),
        ("weights", "softmax(scaled)", KEYS, QUERIES),
        ("weights, causal", "softmax(masked)", "step s", QUERIES),
    ],
    "heads": [
        ("weights of head 1", "per_head[0]", KEYS, QUERIES),
        ("weights of head 2", "per_head[1]", KEYS, QUERIES),
        ("output", "np.array(output)", "feature", QUERIES),
    ],
    "positions": [("PE", "PE", "feature", "position")],
    "rate": [("learning rate", "rate", "step", "")],
}
PART = re.compile(r"```python\n(.*?)```|\]\(equations/(\w+)\.png\)", re.S)


def draw(panels, namespace, path):
    """One row of heat maps (lines for a vector): blue is positive, red negative, white zero."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    width = max(4, 2.4 * len(panels))
    figure = Figure(figsize=(width, 2.2), layout="constrained")
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(places, panels, strict=True):
        title, expression, across, down = panel
        array = np.asarray(eval(expression, namespace))
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(across, fontsize=8)
        axes.set_ylabel(down, fontsize=8)
        axes.tick_params(labelsize=7)
        if array.ndim == 1:
            axes.plot(array)
            continue
        most = abs(array).max()
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.imshow(array, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS / "equations")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    namespace = {}
    for code, picture in PART.findall((DOCS / "equations.md").read_text("utf-8")):
        if code:
            exec(code, namespace)
        else:
            draw(PANELS[picture], namespace, options.output / f"{picture}.png")
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
