"""The text that language_model.py learns: Python's own documentation, or a file; its two parts."""

import platform
from typing import NamedTuple

from translate_data import stable_hash

from keras_attention.text import DataError, read_lines

HELD_OUT = 0.1


class Parts(NamedTuple):
    """The text to learn, and the end of the whole text, which is held out."""

    train: str
    held_out: str


def documentation():
    """The help topics of this Python, in an order that depends on their names alone.

    A paragraph that stands in several topics is kept once, so that none is learned and tested.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "this Python lacks its documentation, pydoc_data.topics: give a text with --data FILE"
        ) from None
    paragraphs = {}  # a set that keeps the order
    for name in sorted(topics, key=stable_hash):
        paragraphs.update(dict.fromkeys(topics[name].strip().split("\n\n")))
    return "\n\n".join(paragraphs) + "\n"


def load_text(options):
    """Returns the name of the data, and its `Parts`."""
    if options.data is None:
        name = f"help topics of Python {platform.python_version()}"
        text = documentation()
    else:
        name, text = options.data.name, "\n".join(read_lines(options.data)) + "\n"
    text = text[: options.limit]
    place = len(text) - round(HELD_OUT * len(text))
    parts = Parts(text[:place], text[place:])
    for part, characters in parts._asdict().items():
        if len(characters) <= options.length:
            raise DataError(
                f"{name}: expected more than --length {options.length} characters to "
                f"{'learn' if part == 'train' else 'hold out'}, got {len(characters):,}"
            )
    return name, parts
