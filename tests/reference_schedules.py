"""Learning rates of the n-th update, n = 1, 2, ..., in float64."""

import math


def paper(n, d_model, warmup_steps):
    """Equation 3 of Vaswani et al., 2017."""
    return d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


def warmup_cosine(n, peak, warmup_steps, steps, floor):
    if n <= warmup_steps:
        return peak * n / warmup_steps
    if n >= steps:
        return peak * floor
    # Equation 5 of Loshchilov and Hutter, 2017, between the largest and the smallest rate.
    angle = math.pi * (n - warmup_steps) / (steps - warmup_steps)
    return floor * peak + 0.5 * (peak - floor * peak) * (1 + math.cos(angle))
