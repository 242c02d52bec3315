"""Score functions: query `[..., T, Dq]`, key `[..., S, Dk]` -> scores `[..., T, S]`.

Scores are what goes into the softmax. Half-precision inputs give float32 scores; products of
float16 are formed in float32, as they overflow easily. Integers are taken as floating numbers.
"""

import math
from numbers import Real
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention.blockwise.choice import choose
from keras_attention.checks import as_float
from keras_attention.normalizers import upcast
from keras_attention.products import batch_matmul, vector_product

# Numbers in the hidden layer of additive scores that are formed at once, at most: 128 MB of
# float32. Above, tiles are faster, although they form the hidden layer twice, and far smaller.
MOST_HIDDEN = 32 << 20


class DotProduct(NamedTuple):
    """What a score function is, where it is a dot product: cap tanh(scale q^T k / cap).

    Attributes:
        scale: a number.
        soft_cap: the cap, or None for scale q^T k.
    """

    scale: float
    soft_cap: Any = None


def dot_score(query, key):
    """Dot product, section 3.1 of [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        score(h_t, h_s) = h_t^T h_s

    Args:
        query: `[..., T, D]`.
        key: `[..., S, D]`.

    Returns:
        Scores `[..., T, S]`.

    Raises:
        ValueError: if the last axes of query and key differ.

    Example:

    >>> import numpy as np
    >>> dot_score(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])).numpy()
    array([[11., 17.]])
    """
    return _product(*_tensors(query, key))


def scaled_dot_score(query, key, scale=None):
    """Scaled dot product, section 3.2.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        score(q, k) = q^T k / sqrt(d_k)

    Args:
        query: `[..., T, D]`.
        key: `[..., S, D]`.
        scale: factor on the query, applied before the product; by default 1 / sqrt(D).

    Returns:
        Scores `[..., T, S]`.

    Raises:
        ValueError: if the last axes of query and key differ.

    Example:

    >>> import numpy as np
    >>> scaled_dot_score(np.array([[1.0, 0, 0, 0]]), np.array([[4.0, 0, 0, 0]])).numpy()
    array([[2.]])
    """
    query, key = _tensors(query, key)
    scale = float(key.shape[-1]) ** -0.5 if scale is None else scale
    # (`ops.cast` of a number would round it to float32 first.)
    return _product(query * ops.convert_to_tensor(scale, query.dtype), key)


def soft_cap(scores, cap):
    """Keeps scores between -cap and cap, smoothly.

        cap tanh(scores / cap)

    As in section 2 of [Gemma 2, 2024](https://arxiv.org/abs/2408.00118).

    Args:
        scores: `[..., T, S]`.
        cap: positive number.

    Returns:
        Scores `[..., T, S]`.

    Raises:
        ValueError: if `cap` is not a positive number.

    Example:

    >>> import numpy as np
    >>> soft_cap(np.array([[0.0, 1000.0]]), 50.0).numpy()
    array([[ 0., 50.]])
    """
    scores = as_float(scores)
    cap = ops.convert_to_tensor(check_cap(cap), scores.dtype)
    return cap * ops.tanh(scores / cap)


def check_cap(cap):
    """`cap`, a positive number for scores of any shape `[...]`; else a ValueError."""
    good = isinstance(cap, Real) and not isinstance(cap, bool) and 0 < cap < math.inf
    if not good:
        raise ValueError(f"`logit_soft_cap` must be a positive number. Received: {cap!r}.")
    return float(cap)


def general_score(query, key, kernel):
    """Bilinear score, section 3.1 of [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        score(h_t, h_s) = h_t^T W h_s

    Args:
        query: `[..., T, Dq]`.
        key: `[..., S, Dk]`.
        kernel: W, `[Dq, Dk]`.

    Returns:
        Scores `[..., T, S]`.

    Raises:
        ValueError: if the kernel does not fit query and key.

    Example:

    >>> import numpy as np
    >>> kernel = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> general_score(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), kernel).numpy()
    array([[10.]])
    """
    kernel, query, key = as_float(kernel), as_float(query), as_float(key)
    _check_kernel(kernel, (query.shape[-1], key.shape[-1]), "[Dq, Dk]")
    return dot_score(query, batch_matmul(key, ops.transpose(kernel)))


def additive_score(query, key, v, bias=None):
    """Additive score, appendix A.1.2 of [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473).

        score(q, k) = v^T tanh(q + k + bias)

    Query and key come projected (W s and U h in the paper), so that the keys of a memory are
    projected once, however many queries look at it.

    Args:
        query: projected queries, `[..., T, U]`.
        key: projected keys, `[..., S, U]`.
        v: `[U]`.
        bias: `[U]`, or None.

    Returns:
        Scores `[..., T, S]`.

    Raises:
        ValueError: if the last axes of query and key differ, or `v` or `bias` is not `[U]`.

    Example:

    >>> import numpy as np
    >>> additive_score(np.zeros((1, 2)), np.zeros((3, 2)), np.ones(2)).numpy()
    array([[0., 0., 0.]])
    """
    query, key = _tensors(query, key)
    v = as_float(v)
    _check_kernel(v, (key.shape[-1],), "[U]", name="v")
    if bias is not None:
        bias = as_float(bias)
        _check_kernel(bias, (key.shape[-1],), "[U]", name="bias")
        key = key + bias

    def at_once():
        hidden = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))
        return upcast(vector_product(hidden, v))

    def in_tiles(traced):
        from keras_attention.blockwise import additive  # needs TensorFlow

        scores = additive.traced_additive_scores if traced else additive.additive_scores
        return upcast(scores(query, key, v))

    if query.shape[-2] == 1 or query.shape[:-2] != key.shape[:-2]:
        return at_once()
    return choose(
        (*query.shape[:-1], *key.shape[-2:]),
        lambda: (*ops.shape(query)[:-1], *ops.shape(key)[-2:]),
        MOST_HIDDEN,
        in_tiles,
        at_once,
    )


def concat_score(query, key, kernel, v):
    """Concat score, section 3.1 of [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        score(h_t, h_s) = v^T tanh(W [h_t; h_s])

    Args:
        query: `[..., T, Dq]`.
        key: `[..., S, Dk]`.
        kernel: W, `[Dq + Dk, U]`; the first Dq rows act on the query.
        v: `[U]`.

    Returns:
        Scores `[..., T, S]`.

    Raises:
        ValueError: if the kernel or `v` does not fit.

    Example:

    >>> import numpy as np
    >>> concat_score(np.ones((1, 1)), -np.ones((2, 1)), np.ones((2, 1)), np.ones(1)).numpy()
    array([[0., 0.]])
    """
    kernel, query, key = as_float(kernel), as_float(query), as_float(key)
    query_size, units = query.shape[-1], kernel.shape[-1]
    _check_kernel(kernel, (query_size + key.shape[-1], units), "[Dq + Dk, U]")
    # W [h_t; h_s] = W_q h_t + W_s h_s: one product a query and a key, not one for each pair.
    return additive_score(
        batch_matmul(query, kernel[:query_size]), batch_matmul(key, kernel[query_size:]), v
    )


def location_score(query, key, kernel):
    """Location score, section 3.1 of [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        score(h_t, s) = (W h_t)_s

    It sees where a key stands, not what it is. W has rows for M memory steps: "for short
    sentences, we only use the top part" of W h_t, "and for long sentences, we ignore words near
    the end".

    Args:
        query: `[..., T, Dq]`.
        key: `[..., S, Dk]`; only S counts.
        kernel: W^T, `[Dq, M]`.

    Returns:
        Scores `[..., T, S]`; -inf for the steps from M on, which gives them weight 0. (Where a
        mask hides all steps before M, a layer masks those from M on as well.)

    Raises:
        ValueError: if the kernel does not fit the query.

    Example:

    >>> import numpy as np
    >>> kernel = np.array([[5.0, 6.0], [7.0, 8.0]])
    >>> location_score(np.array([[1.0, 0.0]]), np.zeros((3, 1)), kernel).numpy()
    array([[  5.,   6., -inf]])
    """
    kernel, query, key = as_float(kernel), as_float(query), as_float(key)
    rows = kernel.shape[-1]
    _check_kernel(kernel, (query.shape[-1], rows), "[Dq, M]")
    places = ops.arange(ops.shape(key)[-2], dtype="int32")
    scores = dot_score(query, location_keys(places, kernel)[(None,) * (len(query.shape) - 2)])
    return ops.where(places < rows, scores, ops.convert_to_tensor(float("-inf"), scores.dtype))


def location_keys(places, kernel):
    """Keys with which `dot_score` is the location score: the row of W for each memory step.

    Args:
        places: integers `[...]`, where the memory steps stand, from 0.
        kernel: W^T, `[Dq, M]`.

    Returns:
        Keys `[..., Dq]`. Steps from M on, which are to be masked, share a row.
    """
    return ops.take(ops.transpose(kernel), ops.clip(places, 0, kernel.shape[-1] - 1), axis=0)


def _tensors(query, key):
    query, key = as_float(query), as_float(key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "`query` and `key` must have the same number of features (last axis) for this score. "
            f"Received query shape {tuple(query.shape)}, key shape {tuple(key.shape)}."
        )
    return query, key


def _product(query, key):
    if keras.backend.standardize_dtype(query.dtype) == "float16":
        # float16 ends at 65504, which dot products pass: 64 products of 40 and 40 do.
        query, key = upcast(query), upcast(key)
    return upcast(batch_matmul(query, ops.swapaxes(key, -1, -2)))


def _check_kernel(kernel, expected, letters, name="kernel"):
    if tuple(kernel.shape) != expected:
        raise ValueError(
            f"`{name}` must have shape {letters} = {expected}. "
            f"Received shape {tuple(kernel.shape)}."
        )
