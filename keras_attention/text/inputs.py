"""Texts as Python or TensorFlow gives them -> string tensor `[B]`, and back to Python.

Errors say which text they mean.
"""

NORMALIZATIONS = (None, "NFC", "NFD", "NFKC", "NFKD")


def check_normalization(normalization):
    """Raises a ValueError unless `normalization` is None or names a Unicode normal form."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"normalization must be one of {NORMALIZATIONS}. Got {normalization!r}")


def as_bytes(text, name, check_utf8=True):
    """UTF-8 bytes of a str, or of bytes that hold valid UTF-8."""
    if isinstance(text, bytes):
        if check_utf8:
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{name} must be UTF-8. Got the byte 0x{text[error.start]:02X} at position "
                    f"{error.start} of {text!r:.80}"
                ) from None
        return text
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a str. Got {text!r:.80} of type {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be Unicode text. Got a lone surrogate at position {error.start} of "
            f"{text!r:.80}"
        ) from None


def as_strings(texts, check_utf8=True, first=0):
    """A str, a list or array of str (or UTF-8 bytes), or a string tensor -> tensor `[B]`.

    Args:
        texts: the texts.
        check_utf8: whether Python bytes have to be valid UTF-8.
        first: index of the first text, for error messages.

    Returns:
        String tensor `[B]`.

    Raises:
        ValueError: if an item is no text, naming its index; or if a tensor is of another dtype or
            has more than one axis.
    """
    import tensorflow as tf

    if tf.is_tensor(texts):
        rank = texts.shape.rank
        if texts.dtype != tf.string or rank not in (None, 0, 1):
            raise ValueError(
                f"texts must be a string tensor [B]. Got {texts.dtype.name} of shape {texts.shape}"
            )
        return tf.reshape(texts, [-1])
    if hasattr(texts, "tolist"):  # NumPy, pandas
        texts = texts.tolist()
    if isinstance(texts, (str, bytes)):
        return tf.constant([as_bytes(texts, "texts", check_utf8)])
    if isinstance(texts, dict) or not hasattr(texts, "__iter__"):
        raise ValueError(
            "texts must be a str, a list of str or a string tensor. "
            f"Got {texts!r:.80} of type {type(texts).__name__}"
        )
    items = [as_bytes(text, f"texts[{i}]", check_utf8) for i, text in enumerate(texts, first)]
    return tf.constant(items, tf.string, shape=[len(items)])


def to_texts(strings):
    """A string tensor -> nested lists of str, e.g. `[B, N]` -> B lists of N.

    Args:
        strings: UTF-8, a tensor of one axis or more.

    Returns:
        The lists. (An array of NumPy's own strings would lose NUL characters at their end, and give
        each text the room of the longest.)
    """
    import numpy as np

    return np.vectorize(lambda text: text.decode("utf-8"), otypes=[object])(strings).tolist()
