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


def known_size(x, axis):
    """The size of an axis of `x` `[...]`, or None where it is not known.

    Where Keras makes a Functional model it traces with another size in place of one that is not
    known: a symbolic one on JAX, 83 and then 89 on PyTorch.
    """
    size = x.shape[axis]
    if keras.backend.backend() == "jax":
        return size if isinstance(size, int) else None
    if keras.backend.backend() == "torch" and size in (83, 89):
        return None
    return size


def check_when_run(x, sizes):
    """`x` `[...]`, if it has these sizes; where they are not known before, an error when a graph
    runs. (TensorFlow drops a reshape to the same number of axes as none where one size is unknown.)
    """
    return ops.reshape(ops.expand_dims(x, 0), sizes)  # x[None] has a gradient that copies


def fit_mask(name, mask, expected, sizes):
    """`mask`, if it has exactly the shape that is expected.

    Args:
        name: what error messages call it.
        mask: the mask, or None.
        expected: the static shape, with None for an axis of unknown size.
        sizes: the same with scalar tensors for the unknown sizes.

    Returns:
        The mask. Where sizes are unknown, it is checked when the graph runs: a mask of length 1
        must not broadcast there either.

    Raises:
        ValueError: if ranks or known sizes differ.
    """
    if mask is None:
        return None
    shape = tuple(mask.shape)
    fits = len(shape) == len(expected) and all(
        a is None or b is None or a == b for a, b in zip(shape, expected, strict=True)
    )
    if not fits:
        raise ValueError(f"`{name}` must have shape {tuple(expected)}. Received shape {shape}.")
    known = None not in shape and None not in expected
    return mask if known else check_when_run(mask, sizes)


def fit_to_scores(name, values, shape, key_size):
    """A layer's mask or bias, if it fits the layer's scores.

    Args:
        name: what error messages call it.
        values: the mask or bias, of the rank of the scores or lacking the axis of heads.
        shape: static shape of the scores, `[B, ..., (N,) T, S]`.
        key_size: S, a number or a scalar tensor.

    Returns:
        The values. Axes of size 1 may broadcast, except the last.

    Raises:
        ValueError: if a known size differs.
    """
    target = shape if len(values.shape) == len(shape) else (*shape[:-3], *shape[-2:])
    check_broadcast(name, values.shape, target)
    given, wanted = values.shape[-1], shape[-1]
    if None not in (given, wanted):
        if given != wanted:
            raise ValueError(
                f"`{name}` must have one entry a key on its last axis, S = {wanted}. "
                f"Received shape {tuple(values.shape)}."
            )
        return values
    return check_when_run(values, (*ops.shape(values)[:-1], key_size))


def fit_batch(x, queries):
    """Keys or values, if they have the batch size of the queries: where it is not known before
    the graph runs, it is checked then. They must not broadcast.

    Args:
        x: `[B, ...]`.
        queries: `[B, ..., T, D]`.

    Returns:
        `x`.
    """
    if None not in (x.shape[0], queries.shape[0]):
        return x
    return check_when_run(x, (ops.shape(queries)[0], *ops.shape(x)[1:]))


def fit_like(x, like):
    """`x`, if it has the shape of `like`: where that is not known before the graph runs, it is
    checked then. No mask must have stretched it.

    Args:
        x: `[B, ..., T, D]`.
        like: a tensor of the shape that is wanted.

    Returns:
        `x`.
    """
    return x if None not in like.shape[:-1] else check_when_run(x, ops.shape(like))


def check_scores_rank(name, values, query_shape, heads=False):
    """Raises unless a layer's mask or bias has as many axes as its scores, or as the query.

    Args:
        name: what error messages call it.
        values: a mask or bias: `[B, T, S]`, with heads also `[B, N, T, S]`; for a query
            `[B, D]` without the T axis.
        query_shape: shape of the layer's query, `[B, T, D]` or `[B, D]`.
        heads: whether the scores have a head axis.

    Raises:
        ValueError: if the rank is another.
    """
    one_step = len(query_shape) == 2
    if len(values.shape) + one_step not in ((3, 4) if heads else (3,)):
        expected = "[B, T, S] or [B, N, T, S]" if heads else "[B, T, S]"
        expected = expected.replace(" T,", "") if one_step else expected
        raise ValueError(
            f"`{name}` must have shape {expected} for a query of shape {tuple(query_shape)}. "
            f"Received shape {tuple(values.shape)}. A padding mask [B, S] is passed as "
            "`value_mask`; values [T, S] for the whole batch need a batch axis of size 1."
        )


def check_sizes(shapes, features=None):
    """Raises unless the sizes of a layer's inputs fit together and fit its weights.

    Args:
        shapes: static shapes `[B, ..., D]` by name, None for what is not given; "key" and "value"
            must have equal steps.
        features: the numbers of features that the weights fit, by name; None if there are none.

    Raises:
        ValueError: if features, batch sizes or numbers of steps differ.
    """
    given = {name: shape for name, shape in shapes.items() if shape is not None}
    first, first_shape = next(iter(given.items()))
    for name, shape in given.items():
        if features and shape[-1] != features[name]:
            raise ValueError(
                f"`{name}` must have {features[name]} features (last axis), as the layer was "
                f"built with. Received shape {shape}."
            )
        if None not in (shape[0], first_shape[0]) and shape[0] != first_shape[0]:
            raise ValueError(
                f"`{name}` must have the batch size of `{first}`, {first_shape[0]}. "
                f"Received shape {shape}."
            )
    steps = {given[name][1:-1] for name in ("key", "value") if name in given}
    if len(steps) == 2 and all(None not in sizes for sizes in steps):
        raise ValueError(
            "`key` and `value` must have the same number of steps. Received shapes "
            f"{shapes['key']} and {shapes['value']}."
        )


def check_sequences(shapes):
    """Raises unless all shapes are `[B, steps, D]` with D known.

    Args:
        shapes: static shapes by name.

    Raises:
        ValueError: if a rank is not 3 or the last axis unknown.
    """
    for name, shape in shapes.items():
        if len(shape) != 3 or shape[-1] is None:
            raise ValueError(
                f"`{name}` must have shape [B, steps, D], D known. Received shape {shape}."
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


def check_float(x, name, dtype):
    """A layer's input as a tensor of the layer's dtype.

    Args:
        x: a floating tensor or array of any shape `[...]`.
        name: what error messages call it.
        dtype: the layer's compute dtype.

    Returns:
        The tensor.

    Raises:
        ValueError: if `x` is not floating, or ragged.
    """
    x = ops.convert_to_tensor(x)
    if is_ragged(x):
        raise ValueError(
            f"`{name}` must be a dense tensor. Received a ragged one. Pass {name}.to_tensor(), "
            f"and tf.sequence_mask({name}.row_lengths()) as its mask."
        )
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)):
        raise ValueError(
            f"`{name}` must be floating. Received dtype "
            f"{keras.backend.standardize_dtype(x.dtype)}. (Token ids need an embedding first.)"
        )
    return ops.cast(x, dtype)


def is_ragged(x):
    """Whether a tensor, `[B, (T), ...]`, is ragged; also one of a `keras.Input(ragged=True)`."""
    return hasattr(x, "row_lengths") or bool(getattr(x, "ragged", False))


def check_integers(name, x):
    """Raises unless the dtype of the tensor `x`, of any shape `[...]`, is an integer type.

    Raises:
        ValueError: if it is floating or boolean.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    if not dtype.startswith(("int", "uint")):
        raise ValueError(f"`{name}` must be integers. Received dtype {dtype}.")


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


def check_flag(name, flag):
    """`flag`, if it is True or False, e.g. whether weights `[B, T, S]` are wanted.

    Raises:
        ValueError: if it is anything else.
    """
    if not isinstance(flag, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {flag!r}.")
    return flag


def check_fraction(name, number):
    """`number`, if it is a fraction that may be dropped, of a tensor of any shape `[...]`.

    Raises:
        ValueError: if it does not lie in [0, 1).
    """
    if isinstance(number, bool) or not (isinstance(number, numbers.Real) and 0 <= number < 1):
        raise ValueError(f"`{name}` must lie in [0, 1). Received: {number!r}.")
    return number


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
