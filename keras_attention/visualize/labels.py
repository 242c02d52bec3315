"""Tokens as labels, and whether they fit the weights."""

import bisect
import itertools
import re
import unicodedata

from keras_attention.fonts import code_point
from keras_attention.measures import as_weights

LONGEST_LABEL = 24  # columns; what is longer is cut
MOST_LETTERS = 4 * LONGEST_LABEL  # as marks without a column are letters, too
UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, half letters, breaks of lines


def check_alignment(weights, source, target, ranks):
    """Weights as an array and tokens as visible text, if their numbers fit.

    Args:
        weights: `[T, S]` or `[N, T, S]`.
        source: list of S tokens.
        target: list of T tokens.
        ranks: the numbers of axes of the weights that are allowed.

    Returns:
        `(weights, source, target)`.

    Raises:
        ValueError: if they do not fit, or weights are negative or not finite.
    """
    weights = as_weights(weights, ranks)
    source, target = visible_tokens("source", source), visible_tokens("target", target)
    if weights.shape[-2:] != (len(target), len(source)) or not weights.size:
        raise ValueError(
            "`weights` must have a row for each target token and a column for each source token, "
            f"at least one of each. Received weights of shape {weights.shape}, target of "
            f"{len(target)} tokens, source of {len(source)} tokens."
        )
    return weights, source, target


def visible_tokens(name, tokens):
    """Tokens as text, of one axis of weights `[T, S]`.

    Args:
        name: what the error message calls them.
        tokens: list of str or bytes.

    Returns:
        List of str, in which spaces and control characters can be seen.

    Raises:
        ValueError: if they are one text.
    """
    if isinstance(tokens, (str, bytes)):
        raise ValueError(
            f"`{name}` must be a list of tokens, e.g. {name}.split() for words or list({name}) "
            f"for letters. Received: {tokens!r}."
        )
    return [_visible(token) for token in tokens]


def _visible(token):
    """A token as text in which spaces and control characters can be seen, and not too long."""
    text = token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else str(token)
    text = unicodedata.normalize("NFC", text)
    text = re.sub("^ +| +$", lambda spaces: "␣" * len(spaces[0]), text)
    text = "".join(code_point(x) if unicodedata.category(x) in UNSEEN else x for x in text)
    widths = list(itertools.accumulate(map(label_width, text), initial=0))
    if widths[-1] <= LONGEST_LABEL and len(text) <= MOST_LETTERS:
        return text
    return text[: min(bisect.bisect_left(widths, LONGEST_LABEL) - 1, MOST_LETTERS)] + "…"


def label_width(text):
    """Columns of a text on a terminal: letters of East Asia take two, combining marks none.

    (A label of one axis of weights `[T, S]`.)
    """
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )
