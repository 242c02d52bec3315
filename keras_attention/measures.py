"""Numbers that say how an alignment looks and how right it is; NumPy arrays in and out.

An alignment is attention weights: row t says where step t of the target looked in the source.
Each measure takes `[T, S]`, one sentence, or `[B, T, S]`, several. What the masks hide is left
out, and so is a row without any weight, as a decoder gives for a masked step. Where a measure
needs distributions, rows are divided by their sums.
"""

import keras
import numpy as np

from keras_attention.normalizers import upcast


def as_weights(weights, ranks=(2, 3)):
    """Attention weights as an array.

    Args:
        weights: an array, tensor or nested list, e.g. `[T, S]`.
        ranks: the numbers of axes that are allowed.

    Returns:
        The weights in float64.

    Raises:
        ValueError: if they have another number of axes, or are negative or not finite.
    """
    if not isinstance(weights, (np.ndarray, list, tuple)):
        try:
            weights = keras.ops.convert_to_numpy(upcast(weights))
        except (AttributeError, TypeError, ValueError):
            raise ValueError(
                f"`weights` must be an array of numbers. Received: {weights!r:.80}."
            ) from None
    try:
        weights = np.asarray(weights, "float64")
    except (TypeError, ValueError) as error:  # e.g. rows of different lengths
        raise ValueError(f"`weights` must be an array of numbers: {error}.") from None
    if weights.ndim not in ranks:
        raise ValueError(
            f"`weights` must have {' or '.join(map(str, ranks))} axes, targets and sources last. "
            f"Received shape {weights.shape}."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        kind = "negative" if np.isfinite(weights).all() else "NaN or infinite"
        raise ValueError(f"`weights` must be attention weights, from 0 to 1. Some are {kind}.")
    return weights


def alignment_entropy(weights, query_mask=None, value_mask=None, normalized=False):
    """How spread the attention is: the mean entropy of the steps, in nats.

        H = 1/T sum_t sum_s -a_ts log a_ts

    0 if each step looks at one token, log S if each looks at all alike. It is what the
    absentmindedness penalty of [Rikters and Fishel, 2017](https://arxiv.org/abs/1710.03743) is
    made of.

    Args:
        weights: `[T, S]` or `[B, T, S]`.
        query_mask: `[T]` or `[B, T]`, True = a real step.
        value_mask: `[S]` or `[B, S]`, True = a real source token.
        normalized: whether to divide by the largest entropy possible, log S for S real source
            tokens, so that sentences of different lengths compare. (With one token: 0.)

    Returns:
        A number, or `[B]` numbers; NaN where no step is real.

    Raises:
        ValueError: if weights are no attention weights or a mask does not fit.

    Example:

    >>> round(alignment_entropy([[1.0, 0.0], [0.5, 0.5]]), 4)  # half of log 2
    0.3466
    >>> alignment_entropy([[1.0, 0.0], [0.5, 0.5]], normalized=True)
    0.5
    """
    rows, steps, sources = real_weights(weights, query_mask, value_mask)
    rows = _distributions(rows)
    entropy = -(rows * np.log(np.where(rows > 0, rows, 1))).sum(-1)
    if normalized:
        count = sources.sum(-1, keepdims=True)
        entropy = entropy / np.log(np.maximum(count, 2))
    return _per_sentence(_mean(entropy, steps) + 0.0, weights)


def alignment_monotonicity(weights, query_mask=None, value_mask=None, tolerance=1e-3):
    """How often the attention moves on: the fraction of steps that do not look back.

        p_t = sum_s s a_ts,  monotonicity = mean over t > 1 of [p_t >= p_{t-1} - tolerance]

    p_t is the mean attended position, which the monotonicity loss of
    [Rios et al., 2021](https://arxiv.org/abs/2104.03945) keeps from going back. 1 for an
    alignment that never goes back, 0 for one that always does.

    Args:
        weights: `[T, S]` or `[B, T, S]`.
        query_mask: `[T]` or `[B, T]`, True = a real step.
        value_mask: `[S]` or `[B, S]`, True = a real source token.
        tolerance: a move back of at most this many source tokens counts as none.

    Returns:
        A number, or `[B]` numbers; NaN where fewer than two steps are real.

    Raises:
        ValueError: if weights are no attention weights or a mask does not fit.

    Example: two moves on, one back

    >>> round(alignment_monotonicity([[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]), 4)
    0.6667
    """
    rows, steps, _ = real_weights(weights, query_mask, value_mask)
    positions = _distributions(rows) @ np.arange(rows.shape[-1])
    fractions = np.full(len(rows), np.nan)
    for sentence, (path, real) in enumerate(zip(positions, steps, strict=True)):
        moves = np.diff(path[real])  # from each real step to the next
        if len(moves):
            fractions[sentence] = np.mean(moves >= -tolerance)
    return _per_sentence(fractions, weights)


def coverage_vector(weights, query_mask=None, value_mask=None):
    """How much attention each source token got in all.

        c_s = sum_t a_ts

    The coverage vector of equation 10 of [See et al., 2017](https://arxiv.org/abs/1704.04368),
    after the last step.

    Args:
        weights: `[T, S]` or `[B, T, S]`.
        query_mask: `[T]` or `[B, T]`, True = a real step.
        value_mask: `[S]` or `[B, S]`, True = a real source token.

    Returns:
        `[S]` or `[B, S]`; 0 for what the mask hides.

    Raises:
        ValueError: if weights are no attention weights or a mask does not fit.

    Example:

    >>> coverage_vector([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    array([1.5, 0.5, 0. ])
    """
    rows, _, _ = real_weights(weights, query_mask, value_mask)
    return _per_sentence(rows.sum(axis=-2), weights)


def alignment_coverage(weights, query_mask=None, value_mask=None):
    """How much of the source was attended to: the mean of its tokens' coverage, each at most 1.

        coverage = 1/S sum_s min(1, sum_t a_ts)

    1 if every source token got its share; what is missing from 1 was left out. The terms are
    those of the coverage penalty, equation 14 of
    [Wu et al., 2016](https://arxiv.org/abs/1609.08144), without its logarithm.

    Args:
        weights: `[T, S]` or `[B, T, S]`.
        query_mask: `[T]` or `[B, T]`, True = a real step.
        value_mask: `[S]` or `[B, S]`, True = a real source token.

    Returns:
        A number, or `[B]` numbers, in [0, 1]; NaN where no source token is real.

    Raises:
        ValueError: if weights are no attention weights or a mask does not fit.

    Example: the last token was overlooked

    >>> alignment_coverage([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    0.5
    """
    rows, _, sources = real_weights(weights, query_mask, value_mask)
    return _per_sentence(_mean(np.minimum(rows.sum(axis=-2), 1), sources), weights)


def real_weights(weights, query_mask, value_mask):
    """Weights without what is masked.

    Args:
        weights: `[T, S]` or `[B, T, S]`.
        query_mask: `[T]` or `[B, T]`, or None.
        value_mask: `[S]` or `[B, S]`, or None.

    Returns:
        Weights `[B, T, S]`, 0 where masked (B = 1 for one sentence); which steps `[B, T]` are
        real and have weight; which source tokens `[B, S]` are real.

    Raises:
        ValueError: if weights are no attention weights or a mask does not fit.
    """
    weights = as_weights(weights)
    *batch, steps, sources = weights.shape
    query_mask = _as_mask("query_mask", query_mask, (*batch, steps))
    value_mask = _as_mask("value_mask", value_mask, (*batch, sources))
    rows = weights * query_mask[..., :, None] * value_mask[..., None, :]
    if not batch:
        rows, value_mask = rows[None], value_mask[None]
    return rows, rows.sum(-1) > 0, value_mask


def _as_mask(name, mask, shape):
    if mask is None:
        return np.ones(shape, bool)
    mask = np.asarray(mask)
    if mask.shape != shape or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"`{name}` must be boolean, or 0 and 1, of shape {shape}. Received dtype "
            f"{mask.dtype}, shape {mask.shape}."
        )
    return mask.astype(bool)


def _distributions(rows):
    sums = rows.sum(-1, keepdims=True)
    return rows / np.where(sums > 0, sums, 1)


def _mean(values, real):
    """Mean over the real entries of the last axis; NaN where there are none."""
    count = real.sum(-1)
    return np.where(count, (values * real).sum(-1) / np.maximum(count, 1), np.nan)


def _per_sentence(values, weights):
    """`values` as they are for several sentences, without their first axis for one."""
    if np.ndim(weights) == 3:
        return values
    return float(values[0]) if values.ndim == 1 else values[0]
