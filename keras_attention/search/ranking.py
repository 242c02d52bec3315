"""What a beam search sorts by: equation 14 of Wu et al. (2016)."""

import numpy as np
from keras import ops

# The smallest normal float32: its logarithm, -87.3, stands for that of 0.
TINY = float(np.finfo("float32").tiny)


def length_penalties(max_length, alpha):
    """lp for 0 to `max_length` tokens, `[L + 1]`.

        lp(Y) = (5 + |Y|)^alpha / (5 + 1)^alpha

    [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14. |Y| is the number of tokens
    that the score sums over, the end token included.

    Args:
        max_length: L.
        alpha: the weight, at least 0; at 0 all are 1.

    Returns:
        A float32 tensor.
    """
    counts = np.arange(max_length + 1, dtype="float64")
    return ops.convert_to_tensor((((5 + counts) / 6) ** alpha).astype("float32"))


def coverage_penalty(coverage, beta, memory_mask=None):
    """cp, at most 0; the lower, the more of the memory was not attended to.

        cp(X; Y) = beta sum_s log(min(sum_t a_ts, 1))

    [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14. So that it stays finite, a
    sum of 0 counts as the smallest normal float32, about 1.2e-38.

    Args:
        coverage: `[..., S]`, the attention weights summed over the steps.
        beta: the weight, at least 0.
        memory_mask: boolean, broadcastable to the coverage, True = real; padding counts nothing.

    Returns:
        `[...]`.
    """
    logarithms = ops.log(ops.clip(coverage, TINY, 1.0))
    if memory_mask is not None:
        logarithms = ops.where(memory_mask, logarithms, ops.zeros_like(logarithms))
    return beta * ops.sum(logarithms, axis=-1)
