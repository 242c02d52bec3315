"""Alignments as pictures: which source tokens each target token attended to.

They need matplotlib, which is loaded when one is drawn.
"""

import math
from pathlib import Path

import numpy as np

from keras_attention.fonts import drawable
from keras_attention.visualize.labels import check_alignment, label_width
from keras_attention.whole import check_folder, whole

# Inches. Cells shrink with the number of tokens, until labels would no longer be readable; beyond
# that the picture grows; beyond the last size, only every second, third, ... token has a label.
LARGEST_CELL, SMALLEST_CELL, COMFORTABLE_SIDE, LARGEST_SIDE = 0.4, 0.08, 16, 24


def plot_alignment(
    weights, source, target, title=None, path=None, ax=None, cmap="gray", vmax=None, dpi=150
):
    """Draws attention weights as figure 3 of Bahdanau et al. does: source tokens on top, target
    tokens downwards, the lighter a cell the more weight.

    Labels are drawn with the installed fonts that have their letters, such as Hangul. Where none
    has, Hangul is written by its names ("han-gug"), other letters as "U+4E00".

    The alignment of [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), section 5.2.1.

    Args:
        weights: `[T, S]`, an array, tensor or nested list; `[N, T, S]` draws a panel a head.
        source: list of S tokens.
        target: list of T tokens.
        title: text above the picture.
        path: file to write as well; its suffix says the format (.png, .svg, .pdf, ...). It is
            written whole or not at all.
        ax: matplotlib axes to draw on, for weights `[T, S]`; by default those of a new figure.
        cmap: name of a matplotlib colour map.
        vmax: the weight drawn lightest; by default 1, or the largest weight if that is larger.
        dpi: dots an inch of the file.

    Returns:
        The `matplotlib.figure.Figure`. It belongs to no window and needs no display.

    Raises:
        ImportError: if matplotlib is missing.
        ValueError: if numbers of tokens do not fit the weights, weights are negative or not
            finite, or the suffix of `path` names no format.

    Example:

    >>> figure = plot_alignment(
    ...     [[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]], ["ich", "komme", "an"], ["I", "arrive"])
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['ich', 'komme', 'an']
    """
    weights, source, target = check_alignment(weights, source, target, ranks=(2, 3))
    panels = weights.reshape(-1, len(target), len(source))
    figure_class = load_matplotlib()
    path = None if path is None else check_path(path)
    (source, target, texts), families = drawable(source, target, [] if title is None else [title])
    if ax is None:
        figure, grid, cell = new_figure(figure_class, len(panels), source, target, title)
    elif len(panels) > 1:
        raise ValueError(f"`ax` takes one panel. Received weights of shape {weights.shape}.")
    else:
        box = ax.get_window_extent()
        cell = min(box.width / len(source), box.height / len(target)) / ax.figure.dpi
        figure, grid = ax.figure, np.array([[ax]])
    shown = {"vmin": 0, "vmax": max(1, weights.max()) if vmax is None else vmax, "cmap": cmap}
    for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        image = axes.imshow(panel, aspect="auto", interpolation="nearest", **shown)
        label_axes(axes, source, target, cell, families)
        if weights.ndim == 3:
            axes.set_title(f"head {index}", fontsize="small")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    _colour_bar(figure, image, list(grid.flat[: len(panels)]))
    if texts:
        write = figure.suptitle if ax is None else ax.set_title
        write(texts[0], family=families, parse_math=False)
    if path is not None:
        with whole(path) as unfinished:
            figure.savefig(unfinished, format=path.suffix[1:].lower(), dpi=dpi)
    return figure


def load_matplotlib():
    """The class `matplotlib.figure.Figure`, which draws without a display, at any `[T, S]`.

    Raises:
        ImportError: if matplotlib is missing, saying how to install it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib: pip install 'keras-attention-layers[examples]'. "
            f"(`alignment_text` needs none.) {error}"
        ) from error
    return Figure


# Drawing.


def new_figure(figure_class, panels, source, target, title):
    """A figure for pictures of cells `[T, S]`.

    Args:
        figure_class: what `load_matplotlib` gave.
        panels: the number of pictures.
        source: list of S labels above.
        target: list of T labels beside.
        title: text above all, or None.

    Returns:
        The figure, an array of its axes, and the size of a cell in inches.
    """
    columns = math.ceil(math.sqrt(panels * len(target) / len(source)))
    columns = min(max(columns, 1), panels)
    rows = math.ceil(panels / columns)
    longest = max(rows * len(target), columns * len(source))
    cell = min(LARGEST_CELL, max(COMFORTABLE_SIDE / longest, SMALLEST_CELL), LARGEST_SIDE / longest)
    em = _font_size(cell) / 72
    beside, above = (0.7 * em * max(map(label_width, tokens)) for tokens in (target, source))
    width = columns * (len(source) * cell + beside + 0.4) + 0.8
    height = rows * (len(target) * cell + max(above, 2 * em) + 0.5) + (0.4 if title else 0)
    # A title may be wider than the cells.
    width = max(width, 2.5, min(0.12 * label_width(title or ""), LARGEST_SIDE))
    figure = figure_class(figsize=(width, max(height, 2)), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False), cell


def _font_size(cell):
    return min(10, max(5, 0.7 * 72 * cell))


def label_axes(axes, source, target, cell, families):
    """Writes labels above and beside a picture of cells `[T, S]`.

    Args:
        axes: where the picture is.
        source: list of S labels.
        target: list of T labels.
        cell: size of a cell in inches; where labels would overlap, some are left out.
        families: names of the fonts.
    """
    em = _font_size(cell) / 72
    every = math.ceil(em / cell)
    upright = 0.7 * em * max(map(label_width, source)) < every * cell
    style = {"family": families, "fontsize": _font_size(cell), "parse_math": False}
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=2)
    axes.set_xticks(
        range(0, len(source), every), source[::every], rotation=0 if upright else 90, **style
    )
    axes.set_yticks(range(0, len(target), every), target[::every], **style)


def _colour_bar(figure, image, axes):
    """A bar as narrow beside a large picture as beside a small one."""
    width, height = figure.get_size_inches()
    figure.colorbar(image, ax=axes, fraction=0.3 / width, pad=0.1 / width, aspect=height / 0.2)


# Files.


def check_format(name, suffix):
    """Raises unless pictures can be written with this suffix, whatever their `[T, S]`.

    Args:
        name: what the error message calls it.
        suffix: e.g. "png" or ".png".

    Returns:
        The suffix without its dot, in lower case.

    Raises:
        ValueError: if it names no format.
    """
    formats = load_matplotlib()().canvas.get_supported_filetypes()
    suffix = str(suffix).removeprefix(".").lower()
    if suffix not in formats:
        raise ValueError(
            f"`{name}` must end in one of {', '.join(sorted(formats))}. Received suffix {suffix!r}."
        )
    return suffix


def check_path(path):
    """Raises unless a picture, e.g. of weights `[T, S]`, can be written to a path.

    Args:
        path: the path; its suffix names the format.

    Returns:
        It as a `Path`.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the suffix names no format.
    """
    path = Path(path)
    check_format("path", path.suffix)
    check_folder(path)
    return path
