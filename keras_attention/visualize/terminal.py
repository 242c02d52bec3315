"""Alignments as text for a terminal."""

import numpy as np

from keras_attention.visualize.labels import check_alignment, label_width, visible_tokens

SHADES = "·░▒▓█"


def alignment_text(weights, source, target):
    """Attention weights as text for a terminal: the darker a cell, the more weight.

    Args:
        weights: `[T, S]`, an array, tensor or nested list.
        source: list of S tokens.
        target: list of T tokens.

    Returns:
        A string: a line of source tokens, and a line for each target token, with a cell
        "·", "░", "▒", "▓" or "█" for a weight near 0, 0.25, 0.5, 0.75 or 1.

    Raises:
        ValueError: as `plot_alignment`.

    Example:

    >>> print(alignment_text(
    ...     [[0.9, 0.1, 0.0], [0.0, 0.3, 0.7]], ["ich", "komme", "an"], ["I", "arrive"]))
           ich komme an
    I      ███ ····· ··
    arrive ··· ░░░░░ ▓▓
    """
    if np.shape(weights) == (0, len(source)) and len(target) == 0:  # an empty output
        return " ".join(visible_tokens("source", source))
    weights, source, target = check_alignment(weights, source, target, ranks=(2,))
    widths = [max(1, label_width(token)) for token in source]
    margin = max(map(label_width, target))
    lines = [" " * margin + " " + " ".join(source)]
    for token, row in zip(target, weights, strict=True):
        levels = np.rint(row.clip(0, 1) * (len(SHADES) - 1)).astype(int)
        cells = [SHADES[level] * width for level, width in zip(levels, widths, strict=True)]
        lines.append(token + " " * (margin - label_width(token)) + " " + " ".join(cells))
    return "\n".join(lines)
