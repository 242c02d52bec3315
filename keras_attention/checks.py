"""Checks of shapes and dtypes, with errors that name the argument."""

import numbers

import keras
from keras import ops


def check_broadcast(name, shape, target, mutual=False):
    """Raises unless `shape` broadcasts to `target`, as far as both are known.

    Args:
        name: what error messages call it.
        shape: the shape to check, aligned with the end of `target`.
        target: the shape to fit.
        mutual: whether axes of size 1 in `target` may be stretched as well.

    Raises:
        ValueError: if an axis of `shape` is neither 1 nor that of `target`.
    """
    for size, wanted in zip(reversed(tuple(shape)), reversed(tuple(target)), strict=False):
        known = size is not None and wanted is not None
        if known and size != wanted and size != 1 and not (mutual and wanted == 1):
            raise ValueError(
                f"`{name}` does not fit: expected a shape that broadcasts to {tuple(target)}. "
                f"Received {tuple(shape)}."
            )


def check_mask_shape(name, mask, expected):
    """Raises unless `mask` has exactly the shape `expected`, as far as both are known.

    Args:
        name: what error messages call it.
        mask: the mask, or None.
        expected: a tuple with None for an axis that fits any size.

    Raises:
        ValueError: if ranks or sizes differ.
    """
    if mask is None:
        return
    shape = tuple(mask.shape)
    fits = len(shape) == len(expected) and all(
        a is None or b is None or a == b for a, b in zip(shape, expected, strict=True)
    )
    if not fits:
        raise ValueError(f"`{name}` must have shape {expected}. Received shape {shape}.")


def check_scores_shape(name, values, query_shape, key_size, heads=False):
    """Raises unless a layer's mask or bias fits its scores.

    Args:
        name: what error messages call it.
        values: a mask or bias: `[B, T, S]`, with heads also `[B, N, T, S]`; for a query
            `[B, D]` without the T axis.
        query_shape: shape of the layer's query, `[B, T, D]` or `[B, D]`.
        key_size: S, or None if unknown.
        heads: whether the scores have a head axis.

    Raises:
        ValueError: if the rank is another, or the last axis is not S.
    """
    one_step = len(query_shape) == 2
    shape = tuple(values.shape)
    if len(shape) + one_step not in ((3, 4) if heads else (3,)):
        expected = "[B, T, S] or [B, N, T, S]" if heads else "[B, T, S]"
        expected = expected.replace(" T,", "") if one_step else expected
        raise ValueError(
            f"`{name}` must have shape {expected} for a query of shape {tuple(query_shape)}. "
            f"Received shape {shape}. A padding mask [B, S] is passed as `value_mask`; values "
            "[T, S] for the whole batch need a batch axis of size 1."
        )
    if None not in (shape[-1], key_size) and shape[-1] != key_size:
        raise ValueError(
            f"`{name}` must have one entry a key on its last axis, S = {key_size}. "
            f"Received shape {shape}."
        )


def check_bias(bias):
    """Raises unless the dtype of `bias`, a tensor of any shape `[...]`, is floating.

    Returns:
        `bias`.

    Raises:
        ValueError: if it is boolean or integer.
    """
    dtype = keras.backend.standardize_dtype(bias.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise ValueError(
            "`attention_bias` must be floating: it is added to the scores. Received dtype "
            f"{dtype}. Booleans and integers 0 and 1 are passed as `attention_mask`."
        )
    return bias


def as_float(x):
    """Converts to a floating tensor; integers to `keras.config.floatx()`.

    Args:
        x: a tensor or array of any shape `[...]`.

    Returns:
        A floating tensor of the same shape.
    """
    x = ops.convert_to_tensor(x)
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)):
        return x
    return ops.cast(x, keras.config.floatx())


def check_positive(name, number):
    """`number`, if it is a positive integer.

    Args:
        name: what the error message calls it.
        number: a size, e.g. U of a projection to `[..., U]`.

    Returns:
        The number.

    Raises:
        ValueError: if it is anything else.
    """
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number <= 0:
        raise ValueError(f"`{name}` must be a positive integer. Received: {number!r}.")
    return int(number)


def as_tuple(name, values, positive=True):
    """An integer, a sequence of integers or None as a tuple or None.

    Args:
        name: what the error message calls it.
        values: e.g. the sizes of a shape `[B, ...]`.
        positive: whether the integers must be positive.

    Returns:
        A tuple of integers, or None for None.

    Raises:
        ValueError: if it is anything else.
    """
    if values is None:
        return None
    values = (values,) if isinstance(values, numbers.Integral) else tuple(values)
    integers = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in values)
    if not values or not integers or (positive and min(values) <= 0):
        kind = "positive integer" if positive else "integer"
        raise ValueError(f"`{name}` must be one {kind} or several. Received: {values}.")
    return tuple(int(n) for n in values)
