"""`attend`: score -> mask -> normalise -> weighted sum, the one place where the four meet."""

import keras
from keras import ops

from keras_attention import fused
from keras_attention.blockwise.choice import choose
from keras_attention.checks import as_float, check_bias, check_broadcast, check_fraction
from keras_attention.masks import align_to_rank, as_mask, bias_mask, combine_masks
from keras_attention.normalizers import masked_softmax, upcast
from keras_attention.pairs import Pairs
from keras_attention.products import batch_matmul
from keras_attention.scores import DotProduct, dot_score, scaled_dot_score

# Scores that are formed at once, at most: 16 MB of float32. Above, blocks are faster.
MOST_AT_ONCE = 4 << 20


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
    for name, piece in (("score", score), ("normalizer", normalizer)):
        if not callable(piece):
            raise ValueError(
                f"`{name}` must be a function, e.g. `keras_attention.dot_score` or "
                f"`keras_attention.masked_softmax`. Received: {piece!r}."
            )
    query, key, value = as_float(query), as_float(key), as_float(value)
    scores_shape = _check_inputs(query, key, value, dropout)
    pairs = _align(mask, bias, scores_shape)
    query, used = hide(query, pairs.queries()), pairs.keys()
    key, value = hide(key, used), hide(value, used)
    product = None
    if score in (dot_score, scaled_dot_score):
        product = DotProduct(1.0 if score is dot_score else float(key.shape[-1]) ** -0.5)
    return weighted_sum(
        query,
        key,
        value,
        score,
        pairs,
        normalizer,
        dropout,
        seed,
        return_attention_scores,
        product,
    )


def weighted_sum(
    query,
    key,
    value,
    score,
    pairs,
    normalizer,
    dropout,
    seed,
    return_attention_scores,
    product=None,
):
    """`attend` on inputs that fit together and hold no NaN where the masks hide them.

    Args: as of `attend`, and:
        pairs: `Pairs`, its masks and biases.
        product: `DotProduct` if that is what `score` is, so that large problems can be computed
            in blocks, see `keras_attention.blockwise`; or None.

    Returns:
        As `attend`: context `[..., T, Dv]`, or `(context, weights [..., T, S])`.
    """
    if pairs.bias is not None:
        zero = ops.zeros((), pairs.bias.dtype)
        pairs = pairs._replace(bias=ops.where(bias_mask(pairs.bias), pairs.bias, zero))

    def at_once():
        scores, merged = upcast(score(query, key)), pairs.merged()
        if merged.bias is not None:
            scores = scores + ops.cast(merged.bias, scores.dtype)
        weights = ops.cast(normalizer(scores, merged.mask), value.dtype)
        kept = keras.random.dropout(weights, dropout, seed=seed) if dropout else weights
        context = batch_matmul(kept, value)
        return (context, weights) if return_attention_scores else context

    plain = return_attention_scores or product is None or normalizer is not masked_softmax
    if not plain and fused.fits(query, key, value, product, pairs, dropout):
        return fused.dot_attention(query, key, value, product.scale, pairs)
    if plain or not _fits_blocks(query, key, value):
        return at_once()
    return choose(
        (*query.shape[:-1], key.shape[-2]),
        lambda: (*ops.shape(query)[:-1], ops.shape(key)[-2]),
        MOST_AT_ONCE,
        lambda traced: _in_blocks(query, key, value, product, pairs, dropout, seed, traced),
        at_once,
    )


def _fits_blocks(query, key, value):
    """Whether all have the same leading axes, but for heads that share keys; not for one step."""
    *lead, steps, _ = query.shape
    *key_lead, _, _ = key.shape
    if steps == 1 or tuple(key_lead) != tuple(value.shape[:-2]):
        return False
    fits = lead[:-1] == key_lead[:-1] and (lead[-1:] == key_lead[-1:] or key_lead[-1] == 1)
    return fits and (len(lead) < 2 or lead[0] == key_lead[0])


def _in_blocks(query, key, value, product, pairs, dropout, seed, traced):
    from keras_attention.blockwise import dot  # needs TensorFlow

    dtype = value.dtype
    if dtype == "float16":  # products of float16 overflow easily
        query, key, value = (ops.cast(x, "float32") for x in (query, key, value))
    seeds = _seeds(seed) if dropout else None
    compute = dot.traced_dot_attention if traced else dot.dot_attention
    pairs = pairs._replace(sizes=None)
    return ops.cast(compute(query, key, value, *product, pairs, dropout, seeds), dtype)


def _seeds(seed):
    """Two integers that say what is dropped."""
    if isinstance(seed, keras.random.SeedGenerator):
        seeds = seed.next()
    elif seed is None:
        seeds = keras.random.randint((2,), 0, 2**31 - 1)
    else:
        seeds = [seed, 0]
    return ops.cast(seeds, "int32")


def hide(x, used):
    """Zeroes the rows of `x` that take part in no pair.

    A weight of 0 does not stop NaN or Inf: 0 * NaN is NaN, in the weighted sum and in the
    gradients. Zeroing the inputs does, and costs one pass over them.

    Args:
        x: query `[..., T, D]`, or key or value `[..., S, D]`; the heads may be missing.
        used: what `Pairs.queries` or `Pairs.keys` gives: booleans `[..., T, 1]` or `[..., S, 1]`,
            or None.

    Returns:
        A tensor like `x`.
    """
    if used is None:
        return x
    if len(used.shape) > len(x.shape):
        used = ops.any(used, axis=-3)  # all heads share x
    shared = [
        axis for axis in range(-len(used.shape), -2) if x.shape[axis] == 1 and used.shape[axis] != 1
    ]
    if shared:
        used = ops.any(used, axis=shared, keepdims=True)
    return ops.where(used, x, ops.zeros((), x.dtype))


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
    check_fraction("dropout", dropout)
    for name, x in (("key", key), ("value", value)):
        check_broadcast(name, x.shape[:-2], query.shape[:-2], mutual=True)
    batch = tuple(k if q == 1 else q for q, k in zip(query.shape[:-2], key.shape[:-2], strict=True))
    return (*batch, query.shape[-2], value_size if key_size is None else key_size)


def _align(mask, bias, scores_shape):
    """`Pairs` with the axes of the scores; a bias of -inf joins the mask."""
    if mask is not None:
        mask = align_to_rank(as_mask(mask), len(scores_shape))
        check_broadcast("mask", mask.shape, scores_shape)
    if bias is not None:
        bias = check_bias(ops.convert_to_tensor(bias))
        bias = align_to_rank(bias, len(scores_shape), "attention_bias")
        check_broadcast("attention_bias", bias.shape, scores_shape)
        mask = combine_masks(mask, bias_mask(bias))
    return Pairs(mask=mask, bias=bias)
