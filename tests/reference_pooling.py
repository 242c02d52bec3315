"""Pooling over the real steps of a sequence, in float64 NumPy, one sample at a time."""

import numpy as np


def pooled(x, mask, mode):
    """x `[B, S, D]`, mask `[B, S]` -> `[B, D]`."""
    output = np.zeros((x.shape[0], x.shape[2]))
    for sample, (steps, real) in enumerate(zip(x, mask, strict=True)):
        steps = np.array([step for step, is_real in zip(steps, real, strict=True) if is_real])
        if len(steps):
            output[sample] = {
                "mean": lambda s: s.sum(axis=0) / len(s),
                "sum": lambda s: s.sum(axis=0),
                "max": lambda s: s.max(axis=0),
                "first": lambda s: s[0],
                "last": lambda s: s[-1],
            }[mode](steps)
    return output
