"""Monotonic attention: an alignment that never moves back, after Raffel et al. 2017.

The weights of a step depend on those of the step before: `(scores, previous, mask) -> weights`.
Each step inspects the memory from where the last one stopped, entry by entry, and takes entry s
with the choosing probability p_s. In training the expected alignment is computed, which has a
gradient; at inference the alignment is hard.
"""

import math
from numbers import Real

import keras
from keras import ops

from keras_attention.checks import as_float, check_broadcast
from keras_attention.loops import scan_steps
from keras_attention.masks import align_to_rank, as_mask
from keras_attention.normalizers import upcast

MODES = ("parallel", "recursive", "hard")

# Rounds of the doubling below where S is unknown: enough for a memory of 2^20 entries.
MAX_ROUNDS = 20


def monotonic_weights(probabilities, previous, mode="parallel"):
    """Weights of one step, from the probabilities of choosing and the weights of the step before.

        q_s = (1 - p_(s-1)) q_(s-1) + previous_s        the chance that entry s is inspected
        weights_s = p_s q_s
                  = p_s sum over k <= s of previous_k prod over k <= l < s of (1 - p_l)

    Training in expectation, section 2.3 of
    [Raffel et al., 2017](https://arxiv.org/abs/1704.00784).

    Args:
        probabilities: `[..., S]`, floating, in [0, 1]: the p of this step.
        previous: `[..., S]`, floating: the weights of the step before, or `monotonic_start`; for
            "hard" one-hot or all 0.
        mode: "parallel" computes all entries at once, in about log2(S) operations on whole rows;
            "recursive" one after the other, by the recurrence; both give the same numbers and
            gradients. "hard" attends to the first entry, from the one attended before on, with
            p > 0.5, and to nothing, from then on, where there is none; it has no gradient.

    Returns:
        Weights `[..., S]`, in float32 for half precision. A row sums to at most 1: the rest is
        the chance of reaching the end without taking an entry.

    Raises:
        ValueError: if the shapes differ or `mode` is unknown.

    Example:

    >>> import numpy as np
    >>> monotonic_weights(np.array([[0.5, 0.5, 1.0]]), np.array([[1.0, 0.0, 0.0]])).numpy()
    array([[0.5 , 0.25, 0.25]])
    """
    if mode not in MODES:
        raise ValueError(f"`mode` must be one of {', '.join(MODES)}. Received: {mode!r}.")
    p, previous = upcast(as_float(probabilities)), as_float(previous)
    if len(p.shape) != len(previous.shape):
        raise ValueError(
            "`previous` must have the shape of the probabilities, "
            f"{tuple(p.shape)}. Received {tuple(previous.shape)}."
        )
    check_broadcast("previous", previous.shape, p.shape)
    check_broadcast("probabilities", p.shape, previous.shape)  # nor may these be stretched
    previous = ops.cast(previous, p.dtype)
    if p.shape[-1] == 0:
        return p
    return {"parallel": _parallel, "recursive": _recursive, "hard": _hard}[mode](p, previous)


def monotonic_attention(scores, previous, mask=None, mode="parallel", noise=0.0, seed=None):
    """Monotonic weights from scores: the choosing probability is their sigmoid.

        p_s = sigmoid(scores_s + noise * N(0, 1)),  weights = monotonic_weights(p, previous)

    [Raffel et al., 2017](https://arxiv.org/abs/1704.00784). With noise in training the scores
    learn to be large, so that the hard alignment at inference is close to the expected
    one.

    Args:
        scores: `[..., S]`, floating, those of one step: `[B, S]`, or `[B, N, S]` with heads. (The
            paper adds a learned offset that starts at a negative number such as -4.)
        previous: `[..., S]`, the weights of the step before.
        mask: boolean, broadcastable to the scores, True = may attend. Masked entries have p = 0:
            they are passed over, with weight 0 and no gradient.
        mode: as of `monotonic_weights`.
        noise: standard deviation of the noise, for training; 0 at inference.
        seed: integer or `keras.random.SeedGenerator` for the noise.

    Returns:
        Weights `[..., S]`, in float32 for half-precision scores. A row sums to at most 1.

    Raises:
        ValueError: if shapes do not fit, the mask is floating, `mode` is unknown, or `noise` is
            not a number of at least 0.

    Example: the second entry is passed over

    >>> import numpy as np
    >>> monotonic_attention(
    ...     np.array([[-99.0, 99.0, 99.0]]), np.array([[1.0, 0.0, 0.0]]), [[True, False, True]]
    ... ).numpy().round(6)
    array([[0., 0., 1.]])
    """
    if not isinstance(noise, Real) or not 0 <= noise < math.inf:
        raise ValueError(f"`noise` must be a number of at least 0. Received: {noise!r}.")
    scores = upcast(as_float(scores))
    if noise:
        drawn = keras.random.normal(ops.shape(scores), dtype=scores.dtype, seed=seed)
        scores = scores + noise * drawn
    if mask is None:
        return monotonic_weights(ops.sigmoid(scores), previous, mode)
    mask = _align(mask, scores)
    zero = ops.zeros((), scores.dtype)
    p = ops.where(mask, ops.sigmoid(ops.where(mask, scores, zero)), zero)
    return monotonic_weights(p, previous, mode)


def monotonic_start(like, mask=None):
    """The weights before the first step: all on the first entry that may be attended.

    Args:
        like: `[..., S]`, floating, e.g. the scores of the first step.
        mask: boolean, broadcastable to `like`, True = may attend; so that a memory padded on the
            left starts behind the padding.

    Returns:
        `[..., S]`, one-hot, in float32 for half precision; all 0 where nothing may be attended.

    Raises:
        ValueError: if the mask is floating or does not broadcast to `like`.

    Example:

    >>> import numpy as np
    >>> monotonic_start(np.zeros((2, 3)), [[True, True, True], [False, True, True]]).numpy()
    array([[1., 0., 0.],
           [0., 1., 0.]])
    """
    like = upcast(as_float(like))
    allowed = ops.ones_like(like, dtype="bool")
    if mask is not None:
        allowed = ops.logical_and(allowed, _align(mask, like))
    return ops.cast(_first(allowed), like.dtype)


def _parallel(p, previous):
    """The recurrence q_s = keep_s q_(s-1) + start_s by doubling.

    A pair (keep, start) of entry s stands for the entries s - d + 1 to s together; merged with
    the pair of entry s - d it stands for 2d of them. All terms are sums of products of numbers
    in [0, 1], so nothing cancels, overflows or is divided: the closed form with cumulative sums
    and products, which the paper gives as well, divides by products that vanish where p is near
    1, and in float32 its weights are then wrong by as much as their size.
    """
    positions = ops.arange(ops.shape(p)[-1], dtype="int32")

    def earlier(x, distance):
        """x of `distance` entries before, 0 where there is none."""
        return ops.where(
            positions >= distance, ops.roll(x, distance, axis=-1), ops.zeros((), x.dtype)
        )

    def merge(distance, keep, start):
        start = start + keep * earlier(start, distance)
        return 2 * distance, keep * earlier(keep, distance), start

    size, values = p.shape[-1], (1, earlier(1 - p, 1), previous)
    if size is not None:
        while values[0] < size:
            values = merge(*values)
    else:
        values = ops.while_loop(
            lambda distance, keep, start: distance < ops.shape(p)[-1],
            merge,
            (ops.convert_to_tensor(1, "int32"), *values[1:]),
            maximum_iterations=MAX_ROUNDS,
        )
    return p * values[2]


def _recursive(p, previous):
    """The recurrence of the docstring, one entry a step."""
    one_row = len(p.shape) == 1
    p, previous = (ops.moveaxis(x[None] if one_row else x, -1, 1) for x in (p, previous))

    def step(inputs, arriving):
        p_s, previous_s = inputs
        q_s = arriving + previous_s
        return [p_s * q_s], (1 - p_s) * q_s

    shape = (p.shape[0], *p.shape[2:])
    (weights,), _ = scan_steps(step, (p, previous), ops.zeros_like(p[:, 0]), [(shape, p.dtype)])
    weights = ops.moveaxis(weights, 1, -1)
    return weights[0] if one_row else weights


def _hard(p, previous):
    reached = ops.cumsum(previous, axis=-1) > 0.5
    return ops.cast(_first(ops.logical_and(reached, p > 0.5)), p.dtype)


def _first(flags):
    """Of each row of booleans, only the first that is True."""
    count = ops.cumsum(ops.cast(flags, "int32"), axis=-1)
    return ops.logical_and(flags, count == 1)


def _align(mask, scores):
    mask = align_to_rank(as_mask(mask), len(scores.shape))
    check_broadcast("mask", mask.shape, scores.shape)
    return mask
