"""Normalisers turn scores into attention weights: `(scores, mask) -> weights`.

All of them keep one rule: masked entries are exactly 0, and a row sums to 1, or to 0 where
nothing may be attended.
"""

import keras
import numpy as np
from keras import ops

from keras_attention.checks import as_float, check_broadcast
from keras_attention.masks import align_to_rank, as_mask


def upcast(x):
    """Casts half precision to float32; float32 and float64 stay as they are.

    Args:
        x: a floating tensor of any shape `[...]`.

    Returns:
        `x` in `result_type(x.dtype, "float32")`.
    """
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def masked_softmax(scores, mask=None):
    """Softmax over the last axis that sees only what the mask allows.

        weights[..., s] = exp(scores[..., s]) / sum over allowed s' of exp(scores[..., s'])

    Section 3.2.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), with the mask
    applied inside the softmax.

    Args:
        scores: `[..., T, S]`, floating.
        mask: boolean, broadcastable to the scores (`[T, S]`, `[B, T, S]`, ...), True = may
            attend; None allows everything.

    Returns:
        Attention weights `[..., T, S]`, in float32 for half-precision scores and in the scores'
        dtype otherwise. Masked entries are exactly 0 and take no gradient. A row of which every
        entry is masked is all 0.

    Raises:
        ValueError: if the mask is floating or does not broadcast to the scores.

    Example:

    >>> import numpy as np
    >>> masked_softmax(np.array([[0.0, 0.0, 9.0]]), [[True, True, False]]).numpy()
    array([[0.5, 0.5, 0. ]])
    """
    scores = upcast(as_float(scores))
    if mask is None:
        return _softmax(scores)
    mask = align_to_rank(as_mask(mask), len(scores.shape))
    check_broadcast("mask", mask.shape, scores.shape)
    # Unlike -inf, the lowest finite number keeps a row that is masked throughout finite, forward
    # and backward; such a row is zeroed afterwards. Scores end at half of it, so that no score
    # that counts is as low as the masked ones.
    dtype = keras.backend.standardize_dtype(scores.dtype)
    lowest = ops.convert_to_tensor(np.finfo(dtype).min, dtype)
    weights = _softmax(ops.where(mask, ops.maximum(scores, lowest / 2), lowest))
    return ops.where(mask, weights, ops.zeros((), weights.dtype))


def _softmax(scores):
    if scores.shape[-1] == 1:
        # One key takes all the weight, with gradient 0, unless it is NaN. (Keras warns about a
        # softmax over an axis of size 1.)
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)
