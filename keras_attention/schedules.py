"""Learning rates that warm up: for transformers, which diverge or stall without it.

A schedule is called with the number of updates made before, as Keras optimizers do, so that the
n-th update has step n - 1. The equations count from 1, as the paper does.
"""

import math
from numbers import Real

import keras
from keras import ops

from keras_attention.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_attention")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

        rate_n = peak * min(n / warmup_steps, sqrt(warmup_steps / n))

    Equation 3, section 5.3, of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), where
    peak = 1 / sqrt(d_model * warmup_steps). Update number n = `warmup_steps` has the peak.

    Args:
        peak: the largest rate.
        warmup_steps: the number of updates to the peak.

    Call arguments:
        step: the number of updates made before, n - 1: a number or a tensor of any shape `[...]`.

    Returns:
        The rate in float32, of the shape of `step`.

    Raises:
        ValueError: if `peak` is not a positive number or `warmup_steps` no positive integer.

    Example:

    >>> rate = InverseSquareRoot(0.001, warmup_steps=4)
    >>> [f"{float(rate(n - 1)):.5f}" for n in (1, 2, 4, 16)]
    ['0.00025', '0.00050', '0.00100', '0.00050']
    """

    def __init__(self, peak, warmup_steps):
        super().__init__()
        self.peak = _check_peak(peak)
        self.warmup_steps = check_positive("warmup_steps", warmup_steps)

    def __call__(self, step):
        n = _count(step)
        decay = ops.sqrt(self.warmup_steps / n)
        return self.peak * ops.minimum(n / self.warmup_steps, decay)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="keras_attention")
class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then half a cosine down to a floor.

        rate_n = peak * n / warmup_steps                                      n <= warmup_steps
        rate_n = peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)  afterwards
        progress = (n - warmup_steps) / (steps - warmup_steps), at most 1

    The cosine is that of [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1608.03983),
    equation 5, without restarts. Update number `warmup_steps` has the peak; update number `steps`
    and those after it have `floor * peak`.

    Args:
        peak: the largest rate.
        warmup_steps: the number of updates to the peak.
        steps: the number of updates of the whole training, warm-up included: batches in an epoch
            times epochs.
        floor: the last rate, as a share of the peak, in [0, 1].

    Call arguments:
        step: the number of updates made before, n - 1: a number or a tensor of any shape `[...]`.

    Returns:
        The rate in float32, of the shape of `step`.

    Raises:
        ValueError: if `peak` is not a positive number, a number of steps no positive integer,
            `steps` not above `warmup_steps`, or `floor` outside of [0, 1].

    Example:

    >>> rate = WarmupCosine(0.001, warmup_steps=2, steps=10, floor=0.1)
    >>> [f"{float(rate(n - 1)):.5f}" for n in (1, 2, 6, 10, 11)]
    ['0.00050', '0.00100', '0.00055', '0.00010', '0.00010']
    """

    def __init__(self, peak, warmup_steps, steps, floor=0.05):
        super().__init__()
        self.peak = _check_peak(peak)
        self.warmup_steps = check_positive("warmup_steps", warmup_steps)
        self.steps = check_positive("steps", steps)
        if self.steps <= self.warmup_steps:
            raise ValueError(
                "`steps` counts the warm-up and must be above `warmup_steps`. "
                f"Received {self.steps:,} and {self.warmup_steps:,}."
            )
        if not _is_number(floor) or not 0 <= floor <= 1:
            raise ValueError(f"`floor` must be a number in [0, 1]. Received: {floor!r}.")
        self.floor = float(floor)

    def __call__(self, step):
        n = _count(step)
        progress = (n - self.warmup_steps) / (self.steps - self.warmup_steps)
        cosine = (1 + ops.cos(math.pi * ops.clip(progress, 0, 1))) / 2
        decay = self.floor + (1 - self.floor) * cosine
        return self.peak * ops.where(progress < 0, n / self.warmup_steps, decay)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "steps": self.steps,
            "floor": self.floor,
        }


def _count(step):
    """The number of the update that comes next, from 1."""
    return ops.cast(step, "float32") + 1


def _is_number(x):
    return isinstance(x, Real) and not isinstance(x, bool)


def _check_peak(peak):
    if not _is_number(peak) or not 0 < peak < math.inf:
        raise ValueError(f"`peak` must be a positive number. Received: {peak!r}.")
    return float(peak)
