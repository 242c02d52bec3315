"""Texts and ids as models take them."""

import keras
import numpy as np
from keras import ops

from keras_attention.checks import is_ragged
from keras_attention.text import PAD


def as_texts(name, texts):
    """A list of texts, and whether it was one text alone.

    Args:
        name: what error messages call it.
        texts: a str, or a list, tuple, array or tensor of str.

    Returns:
        `(list, single)`.

    Raises:
        ValueError: if it is none of these. (What is in it, the tokenizer checks.)
    """
    if isinstance(texts, (str, bytes)):
        return [texts], True
    if hasattr(texts, "numpy"):
        texts = texts.numpy()
    if isinstance(texts, np.ndarray) and texts.ndim == 1:
        return texts.tolist(), False
    if not isinstance(texts, (list, tuple)):
        raise ValueError(f"`{name}` must be a str or a list of str. Received: {texts!r:.80}.")
    return list(texts), False


def as_ids(name, ids, axes):
    """Ids `[B, S]` as a tensor.

    Args:
        name: what error messages call it.
        ids: integers, a list of lists, an array or a tensor; a ragged one is padded behind.
        axes: what they call its shape.

    Returns:
        The tensor.

    Raises:
        ValueError: if they are no integers, or not of two axes, or have no step.
    """
    ids = ops.convert_to_tensor(as_dense(ids))
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if len(ids.shape) != 2 or not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"`{name}` must be integers {axes}. Received dtype {dtype}, shape {tuple(ids.shape)}."
        )
    if ids.shape[1] == 0:
        raise ValueError(f"`{name}` must have at least one step (0 is padding). Received none.")
    return ids


def as_dense(ids):
    """Ragged ids `[B, (S)]` padded behind, `[B, S]`; others as they are.

    Args:
        ids: a tensor, or anything else.

    Returns:
        The dense tensor. (Padding is what models take for a mask.)
    """
    return ids.to_tensor(PAD) if is_ragged(ids) and hasattr(ids, "to_tensor") else ids
