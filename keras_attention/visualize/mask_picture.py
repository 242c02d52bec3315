"""Masks as pictures: which pairs of query and key may attend, and which mask blocks the others.

They need matplotlib, which is loaded when one is drawn.
"""

from collections.abc import Mapping

import numpy as np

from keras_attention.fonts import drawable
from keras_attention.visualize.labels import visible_tokens
from keras_attention.visualize.picture import check_path, label_axes, load_matplotlib, new_figure
from keras_attention.whole import whole

OPEN, SEVERAL = "white", "0.25"
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")


def plot_mask(masks, query=None, key=None, sample=0, title=None, path=None, dpi=150):
    """Draws who may attend to what: white pairs may, the others have the colour of their mask.

    Dark pairs are blocked by more than one mask. Queries go downwards, keys to the right.

    Args:
        masks: what `explain_mask` returned; or a mask `[T, S]`, `[B, T, S]`, `[B, N, T, S]`, True
            = may attend; or a dictionary from names to masks that broadcast to each other.
        query: list of T labels; by default numbers.
        key: list of S labels; by default numbers.
        sample: which sample of the batch is drawn, each of its heads as a panel. Where all heads
            have the same mask there is one panel.
        title: text above the picture.
        path: file to write as well; its suffix says the format (.png, .svg, .pdf, ...). It is
            written whole or not at all.
        dpi: dots an inch of the file.

    Returns:
        The `matplotlib.figure.Figure`. It belongs to no window and needs no display.

    Raises:
        ImportError: if matplotlib is missing.
        ValueError: if masks are floating or do not fit each other, have no pair, or labels and
            sample do not fit them.

    Example:

    >>> from keras_attention import causal_mask, padding_mask
    >>> figure = plot_mask({"causal": causal_mask(3), "padding": padding_mask([2], 3)})
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['causal', 'padding', 'several']
    """
    panels = {name: _panels(name, mask, sample) for name, mask in _named(masks).items()}
    try:
        shape = np.broadcast_shapes(*(panel.shape for panel in panels.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {panel.shape}" for name, panel in panels.items())
        raise ValueError(f"`masks` must fit each other. Received [N, T, S]: {shapes}.") from None
    if 0 in shape:
        raise ValueError(f"`masks` must have a pair at least. Received shape {shape}.")
    _, queries, keys = shape
    query = _labels("query", query, queries)
    key = _labels("key", key, keys)
    figure_class = load_matplotlib()
    path = None if path is None else check_path(path)
    colours = _colours(panels, shape)
    (key, query, texts), families = drawable(key, query, [] if title is None else [title])
    figure, grid, cell = new_figure(figure_class, len(colours), key, query, title)
    for index, (axes, panel) in enumerate(zip(grid.flat, colours, strict=False)):
        _draw(axes, panel, len(panels))
        label_axes(axes, key, query, cell, families)
        if len(colours) > 1:
            axes.set_title(f"head {index}", fontsize="small")
    for axes in grid.flat[len(colours) :]:
        axes.remove()
    _legend(figure, list(panels), colours)
    if texts:
        figure.suptitle(texts[0], family=families, parse_math=False)
    if path is not None:
        with whole(path) as unfinished:
            figure.savefig(unfinished, format=path.suffix[1:].lower(), dpi=dpi)
    return figure


def _named(masks):
    """Masks by name, of what `plot_mask` takes."""
    parts = getattr(masks, "parts", None)  # of a `MaskExplanation`
    if parts is not None:
        if masks.mask is None:
            raise ValueError("`masks`: of this call it is not known which pairs are blocked.")
        return parts or {"mask": masks.mask}
    found = dict(masks) if isinstance(masks, Mapping) else {"mask": masks}
    found = {name: mask for name, mask in found.items() if mask is not None}
    if not found:
        raise ValueError("`masks` must hold a mask at least. Received none.")
    return found


def _panels(name, mask, sample):
    """One sample of a mask as booleans `[N, T, S]`."""
    mask = np.asarray(mask)
    if mask.dtype.kind not in "biu":
        raise ValueError(
            f"`masks`: {name!r} must be boolean, True = may attend. Received dtype {mask.dtype}."
        )
    if not 2 <= mask.ndim <= 4:
        raise ValueError(
            f"`masks`: {name!r} must have shape [T, S], [B, T, S] or [B, N, T, S]. "
            f"Received shape {mask.shape}."
        )
    if mask.ndim > 2:
        index = 0 if len(mask) == 1 else sample
        if not 0 <= index < len(mask):
            raise ValueError(
                f"`sample` must be from 0 to {len(mask) - 1}, as {name!r} has shape {mask.shape}. "
                f"Received: {sample!r}."
            )
        mask = mask[index]
    mask = mask[None] if mask.ndim == 2 else mask
    return mask != 0


def _labels(name, labels, size):
    labels = visible_tokens(name, range(size) if labels is None else labels)
    if len(labels) != size:
        raise ValueError(f"`{name}` must have {size} labels. Received: {len(labels)}.")
    return labels


def _colours(panels, shape):
    """For each head and pair 0 = may attend, i = blocked by the i-th mask alone, -1 = by several.

    Args:
        panels: masks by name.
        shape: `(N, T, S)`.

    Returns:
        Integers `[N, T, S]`, or `[1, T, S]` where all heads have the same.
    """
    blocked = np.stack([~np.broadcast_to(panel, shape) for panel in panels.values()])
    which = np.where(blocked.any(0), blocked.argmax(0) + 1, 0)
    which = np.where(blocked.sum(0) > 1, -1, which)
    return which[:1] if (which == which[:1]).all() else which


def _palette(count):
    return [SEVERAL, OPEN, *(COLOURS[i % len(COLOURS)] for i in range(count))]


def _draw(axes, panel, count):
    from matplotlib.colors import ListedColormap

    axes.imshow(
        panel + 1,
        cmap=ListedColormap(_palette(count)),
        vmin=0,
        vmax=count + 1,
        aspect="auto",
        interpolation="nearest",
    )
    steps, keys = panel.shape
    if max(steps, keys) <= 60:  # lines between the cells help while they can be told apart
        axes.set_xticks(np.arange(keys + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(steps + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="0.8", linewidth=0.5)
        axes.tick_params(which="minor", length=0)


def _legend(figure, names, colours):
    from matplotlib.patches import Patch

    palette = _palette(len(names))
    handles = [
        Patch(facecolor=palette[index + 1], edgecolor="0.8", label=name)
        for index, name in [*enumerate(names, start=1), (-1, "several")]
        if (colours == index).any()
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize="small")
