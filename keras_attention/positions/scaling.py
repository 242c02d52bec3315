"""Frequencies of rotary positions, also for contexts longer than those of the training."""

import inspect
import math
from numbers import Real

import numpy as np

from keras_attention.checks import check_positive


def rotary_frequencies(size, base=10_000.0, scaling=None):
    """The angle that each pair of features turns by from one position to the next.

        frequency_i = base^(-2i / size),  i = 0, ..., size / 2 - 1

    Section 3.2.2 of [Su et al., 2021](https://arxiv.org/abs/2104.09864).

    Args:
        size: the number of features that are rotated, even.
        base: positive number.
        scaling: None, or a dictionary for contexts longer than the training's:

            {"type": "linear", "factor": s} divides every frequency by s: position interpolation,
            [Chen et al., 2023](https://arxiv.org/abs/2306.15595).

            {"type": "ntk", "factor": s} takes the base `base * s^(size / (size - 2))`, so that the
            highest frequency stays and the lowest is divided by s ("NTK-aware", section 3.1 of
            [Peng et al., 2023](https://arxiv.org/abs/2309.00071)).

            {"type": "yarn", "factor": s, "original_length": L, "low": 1.0, "high": 32.0,
            "ramp": "rotations", "attention_factor": None}, sections 3.2 to 3.4 of Peng et al.:
            frequencies that turn fewer than `low` times over the L steps of the training are
            divided by s, those that turn more than `high` times stay, and between them the two
            are mixed, linearly in the number of turns. ("ramp": "index" mixes linearly in i
            between whole numbers, as the code does that was published with the paper.) Rotated
            features are multiplied by `attention_factor`, by default 0.1 ln(s) + 1: on both query
            and key, so that the scores are multiplied by its square, the 1 / t of the paper.

            {"type": "llama3", "factor": 8.0, "original_length": 8192, "low": 1.0, "high": 4.0}
            mixes as "yarn" does, in the number of turns, and leaves the scores alone
            ([Llama 3.1](https://arxiv.org/abs/2407.21783)).

    Returns:
        Frequencies, a float64 array `[size / 2]`, and the factor of the rotated features, 1 but
        for "yarn".

    Raises:
        ValueError: if `size` is odd, `base` not positive, or the scaling unknown or incomplete.

    Example:

    >>> rotary_frequencies(4)
    (array([1.  , 0.01]), 1.0)
    >>> rotary_frequencies(4, scaling={"type": "linear", "factor": 2})
    (array([0.5  , 0.005]), 1.0)
    """
    check_positive("size", size)
    if size % 2:
        raise ValueError(f"`size` must be even: features turn in pairs. Received: {size}.")
    base, scaling = check_base(base), check_scaling(scaling)
    if scaling is None:
        return _frequencies(size, base), 1.0
    arguments = {name: value for name, value in scaling.items() if name != "type"}
    return SCALINGS[scaling["type"]](size, base, **arguments)


def check_scaling(scaling):
    """A copy of `scaling`, if it is one that `rotary_frequencies` takes for `[..., T, H]`.

    Raises:
        ValueError: if the type is unknown, a number missing, unknown or not positive.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict) or scaling.get("type") not in SCALINGS:
        known = ", ".join(repr(name) for name in SCALINGS)
        raise ValueError(
            f'`scaling` must be None or a dictionary whose "type" is one of {known}. '
            f"Received: {scaling!r}."
        )
    signature = inspect.signature(SCALINGS[scaling["type"]]).parameters
    wanted = [name for name in signature if name not in ("size", "base")]
    needed = [name for name in wanted if signature[name].default is inspect.Parameter.empty]
    given = set(scaling) - {"type"}
    if not set(needed) <= given <= set(wanted):
        raise ValueError(
            f"`scaling` of type {scaling['type']!r} takes {', '.join(wanted)} and needs "
            f"{', '.join(needed) or 'none of them'}. Received: {scaling!r}."
        )
    for name in given - {"ramp"}:
        if not (name == "attention_factor" and scaling[name] is None):
            _check_number(f'scaling["{name}"]', scaling[name])
    if scaling.get("ramp", "index") not in ("rotations", "index"):
        raise ValueError(
            f'`scaling["ramp"]` must be "rotations" or "index". Received: {scaling["ramp"]!r}.'
        )
    if "low" in scaling or "high" in scaling:
        low, high = (scaling.get(name, signature[name].default) for name in ("low", "high"))
        if low >= high:
            raise ValueError(
                f'`scaling["low"]` must be less than `scaling["high"]`. Received: {low} and {high}.'
            )
    return dict(scaling)


def check_base(base):
    """`base` of the frequencies `[F]` as a float.

    Raises:
        ValueError: if it is not a positive number.
    """
    return _check_number("base", base)


def _check_number(name, number):
    good = isinstance(number, Real) and not isinstance(number, bool)
    if not good or not 0 < number < math.inf:
        raise ValueError(f"`{name}` must be a positive number. Received: {number!r}.")
    return float(number)


def _frequencies(size, base):
    return base ** (-2.0 * np.arange(size // 2) / size)


def _linear(size, base, factor):
    return _frequencies(size, base) / factor, 1.0


def _ntk(size, base, factor):
    if size == 2:  # one frequency, the highest
        return _frequencies(size, base), 1.0
    return _frequencies(size, base * factor ** (size / (size - 2))), 1.0


def _yarn(
    size,
    base,
    factor,
    original_length,
    low=1.0,
    high=32.0,
    ramp="rotations",
    attention_factor=None,
):
    frequencies = _frequencies(size, base)
    if ramp == "rotations":
        kept = _ramp(original_length * frequencies / (2 * np.pi), low, high)
    else:
        if base <= 1:
            raise ValueError(f'`base` must be above 1 for "ramp": "index". Received: {base}.')
        # The (fractional) i whose frequency turns so often over the original length.
        most, least = (
            size * math.log(original_length / (number * 2 * math.pi)) / (2 * math.log(base))
            for number in (high, low)
        )
        first, last = max(math.floor(most), 0), min(math.ceil(least), size - 1)
        kept = 1 - _ramp(np.arange(size // 2), first, max(last, first + 0.001))
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return _mix(frequencies, factor, kept), float(attention_factor)


def _llama3(size, base, factor=8.0, original_length=8192, low=1.0, high=4.0):
    frequencies = _frequencies(size, base)
    kept = _ramp(original_length * frequencies / (2 * np.pi), low, high)
    return _mix(frequencies, factor, kept), 1.0


def _ramp(x, low, high):
    """0 up to `low`, 1 from `high` on, a straight line between."""
    return np.clip((x - low) / (high - low), 0, 1)


def _mix(frequencies, factor, kept):
    return (1 - kept) * frequencies / factor + kept * frequencies


SCALINGS = {"linear": _linear, "ntk": _ntk, "yarn": _yarn, "llama3": _llama3}
