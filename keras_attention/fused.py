"""The backend's own attention, on JAX and PyTorch, for what it can do.

It is faster there, and holds no scores where the device has a kernel for that. On TensorFlow Keras
has none; `keras_attention.blockwise` takes its place.
"""

import keras
from keras import ops


def fits(query, key, value, product, pairs, dropout):
    """Whether the backend's attention can do it.

    Args:
        query, key, value: `[B, N, T, D]`, `[B, N, S, D]`, `[B, N, S, Dv]`.
        product: `DotProduct`, or None where the score is something else.
        pairs: `Pairs`.
        dropout: the fraction of weights dropped.

    Returns:
        A boolean.
    """
    if keras.backend.backend() not in ("jax", "torch"):
        return False
    if product is None or product.soft_cap is not None or dropout:
        return False
    if pairs.bias is not None or pairs.slopes is not None:
        return False
    shapes = [tuple(x.shape) for x in (query, key, value)]
    known = all(len(shape) == 4 and None not in shape and 0 not in shape for shape in shapes)
    return known and len({shape[:2] for shape in shapes}) == 1 and shapes[0][3] == shapes[2][3]


def dot_attention(query, key, value, scale, pairs):
    """softmax(scale query key^T) value, by `keras.ops.dot_product_attention`.

    Args:
        query, key, value: `[B, N, T, D]`, `[B, N, S, D]`, `[B, N, S, D]`, for which `fits` is True.
        scale: a number.
        pairs: `Pairs`, without bias. Hidden keys and values are finite.

    Returns:
        `[B, N, T, D]`, 0 for queries that may attend to nothing.
    """
    square = query.shape[-2] == key.shape[-2]
    others = (pairs.rows, pairs.columns, pairs.mask, pairs.window)
    causal = pairs.causal and square and all(x is None for x in others)
    mask, attending = None, None
    if not causal:
        mask, attending = pairs.merged().mask, pairs.queries()
    if mask is not None:
        # A row of which all is masked would be NaN, or a mean; it is zeroed below.
        mask = mask if attending is None else ops.logical_or(mask, ops.logical_not(attending))
        while len(mask.shape) < 4:
            mask = ops.expand_dims(mask, 0)
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))
    context = ops.dot_product_attention(query, key, value, mask=mask, scale=scale, is_causal=causal)
    context = ops.swapaxes(context, 1, 2)
    if attending is None:
        return context
    return ops.where(attending, context, ops.zeros((), context.dtype))
