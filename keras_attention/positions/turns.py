"""Angles of positions, exact however far the positions go."""

import numpy as np
from keras import ops

from keras_attention.checks import check_integers, check_when_run, known_size


def as_positions(positions, name="positions", ranks=(1, 2)):
    """Converts to an int32 tensor.

    Args:
        positions: integers `[T]` or `[B, T]`, a tensor, array or list.
        name: what error messages call it.
        ranks: the numbers of axes that are allowed.

    Returns:
        The tensor.

    Raises:
        ValueError: if they are no integers or have another number of axes.
    """
    positions = ops.convert_to_tensor(positions)
    check_integers(name, positions)
    if len(positions.shape) not in ranks:
        raise ValueError(
            f"`{name}` must have shape [T] or [B, T]. Received shape {tuple(positions.shape)}."
        )
    return ops.cast(positions, "int32")


def fit_steps(positions, x, name="positions"):
    """`positions`, if they have one entry a step; where that is not known before the graph runs,
    it is checked then.

    Args:
        positions: an int32 tensor `[T]`, `[B, T]` or `[1, T]`.
        x: a tensor `[B, ..., T, D]`.
        name: what error messages call them.

    Returns:
        The positions.

    Raises:
        ValueError: if a known size differs.
    """
    given = tuple(known_size(positions, axis) for axis in range(len(positions.shape)))
    shape = tuple(known_size(x, axis) for axis in range(len(x.shape)))
    wanted = shape[-2]
    batch = (given[0], shape[0]) if len(given) == 2 else (1, 1)
    known = None not in (given[-1], wanted)
    unlike = None not in batch and batch[0] not in (1, batch[1])
    if len(given) >= len(shape) or unlike or (known and given[-1] != wanted):
        raise ValueError(
            f"`{name}` must have shape [T] or [B, T], T = {wanted}, one a step of what has shape "
            f"{shape}. Received shape {given}."
        )
    if known:
        return positions
    return check_when_run(positions, (*ops.shape(positions)[:-1], ops.shape(x)[-2]))


def turns(positions, frequencies, dtype):
    """The angle of each position and frequency, in full turns, without the whole ones.

        turns = positions * frequencies / (2 pi)  mod 1

    In float32 the product itself would be wrong by up to 0.004 radians at position 100,000. So
    the whole turns are left out before anything is rounded: counted in units of 2^-32 turns,
    integers of 32 bits drop them by wrapping around. What the unit rounds away of the frequency
    is small, and is added afterwards.

    Args:
        positions: an int32 tensor `[...]`.
        frequencies: a float64 array `[F]`, radians a step.
        dtype: "float32" or "float64".

    Returns:
        `[..., F]`, in [-0.5, 0.5] up to rounding.
    """
    step = np.asarray(frequencies, "float64") / (2 * np.pi)
    units = np.round((step - np.round(step)) * 2.0**32)
    rest = (step - np.round(step)) - units / 2.0**32
    positions = positions[..., None]
    counted = positions * ops.convert_to_tensor(units.astype("int64").astype("int32"))
    unit = ops.convert_to_tensor(np.array(2.0**-32), dtype)
    rest = ops.convert_to_tensor(rest, dtype)
    return ops.cast(counted, dtype) * unit + ops.cast(positions, dtype) * rest
