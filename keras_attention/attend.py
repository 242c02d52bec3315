"""`attend`: score -> mask -> normalise -> weighted sum, the one place where the four meet."""

import keras
from keras import ops

from keras_attention.checks import as_float, check_bias, check_broadcast
from keras_attention.masks import align_to_rank, as_mask, bias_mask, combine_masks
from keras_attention.normalizers import masked_softmax, upcast
from keras_attention.products import batch_matmul
from keras_attention.scores import scaled_dot_score


def attend(
    query,
    key,
    value,
    score=scaled_dot_score,
    mask=None,
    bias=None,
    normalizer=masked_softmax,
    dropout=0.0,
    seed=None,
    return_attention_scores=False,
):
    """Attention from its four pieces.

        weights = normalizer(score(query, key) + bias, mask)
        context = dropout(weights) value

    With the defaults this is equation 1 of
    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), softmax(Q K^T / sqrt(d_k)) V.

    Args:
        query: `[..., T, Dq]`.
        key: `[..., S, Dk]`, of the same rank.
        value: `[..., S, Dv]`, of the same rank.
        score: function `(query, key) -> scores [..., T, S]`, e.g. one of `keras_attention.scores`.
        mask: boolean, True = may attend: `[T, S]`, `[B, T, S]` or `[B, ..., T, S]`; axes of size
            1 broadcast, missing axes are inserted after the batch axis. None allows everything.
        bias: floating, added to the scores after they are in float32 or float64; shapes as for
            `mask`. An entry of -inf counts as masked.
        normalizer: function `(scores, mask) -> weights`.
        dropout: the fraction of weights dropped, in [0, 1); the rest is scaled up.
        seed: integer or `keras.random.SeedGenerator` for the dropout.
        return_attention_scores: whether to return the attention weights as well.

    Returns:
        The context `[..., T, Dv]`, or `(context, weights)` with weights `[..., T, S]` as they
        were before dropout. A query that may attend to nothing gets weights 0, context 0 and no
        gradient. A key and value that nobody may attend to contribute nothing, even NaN.

    Raises:
        ValueError: if ranks or sizes do not fit, the mask is floating, the bias is not, or
            `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> query, memory = np.ones((2, 3, 4)), np.ones((2, 5, 4))
    >>> context, weights = attend(query, memory, memory, return_attention_scores=True)
    >>> context.shape, weights.shape
    (TensorShape([2, 3, 4]), TensorShape([2, 3, 5]))
    """
    query, key, value = as_float(query), as_float(key), as_float(value)
    scores_shape = _check_inputs(query, key, value, dropout)
    mask, bias = _prepare_mask_and_bias(mask, bias, scores_shape)
    if mask is not None:
        query, key, value = _blank_unused(mask, query, key, value)
    scores = upcast(score(query, key))
    if bias is not None:
        scores = scores + ops.cast(bias, scores.dtype)
    weights = ops.cast(normalizer(scores, mask), value.dtype)
    kept = keras.random.dropout(weights, dropout, seed=seed) if dropout else weights
    context = batch_matmul(kept, value)
    return (context, weights) if return_attention_scores else context


def _check_inputs(query, key, value, dropout):
    """Checks ranks and sizes; returns the static shape of the scores."""
    ranks = {len(x.shape) for x in (query, key, value)}
    if len(ranks) != 1 or ranks.pop() < 2:
        raise ValueError(
            "`query`, `key` and `value` must have the same rank, at least 2: [..., T, Dq], "
            f"[..., S, Dk], [..., S, Dv]. Received shapes {tuple(query.shape)}, "
            f"{tuple(key.shape)}, {tuple(value.shape)}."
        )
    key_size, value_size = key.shape[-2], value.shape[-2]
    if None not in (key_size, value_size) and key_size != value_size:
        raise ValueError(
            "`key` and `value` must have the same number of steps S (axis -2). Received key "
            f"shape {tuple(key.shape)}, value shape {tuple(value.shape)}."
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"`dropout` must lie in [0, 1). Received: {dropout}.")
    for name, x in (("key", key), ("value", value)):
        check_broadcast(name, x.shape[:-2], query.shape[:-2], mutual=True)
    batch = tuple(k if q == 1 else q for q, k in zip(query.shape[:-2], key.shape[:-2], strict=True))
    return (*batch, query.shape[-2], value_size if key_size is None else key_size)


def _prepare_mask_and_bias(mask, bias, scores_shape):
    """Aligns both with the scores, and moves a bias of -inf into the mask."""
    rank = len(scores_shape)
    if mask is not None:
        mask = align_to_rank(as_mask(mask), rank)
        check_broadcast("mask", mask.shape, scores_shape)
    if bias is not None:
        bias = check_bias(ops.convert_to_tensor(bias))
        bias = align_to_rank(bias, rank, "attention_bias")
        check_broadcast("attention_bias", bias.shape, scores_shape)
        allowed = bias_mask(bias)
        bias = ops.where(allowed, bias, ops.zeros((), bias.dtype))
        mask = combine_masks(mask, allowed)
    return mask, bias


def _blank_unused(mask, query, key, value):
    """Zeroes what the mask hides from everybody.

    A weight of 0 does not stop NaN or Inf: 0 * NaN is NaN, in the weighted sum and in the
    gradients. Blanking the inputs does, and costs one pass over them.
    """
    seen = ops.any(mask, axis=-2)[..., None]
    seeing = ops.any(mask, axis=-1)[..., None]
    return _keep(seeing, query), _keep(seen, key), _keep(seen, value)


def _keep(used, x):
    """`x` where `used` holds for any of the rows that share `x`, 0 elsewhere."""
    shared = [
        axis for axis in range(-len(used.shape), -2) if x.shape[axis] == 1 and used.shape[axis] != 1
    ]
    if shared:
        used = ops.any(used, axis=shared, keepdims=True)
    return ops.where(used, x, ops.zeros((), x.dtype))
