"""Matrix products over leading axes that broadcast."""

import string

from keras import ops


def batch_matmul(a, b):
    """`a b` for each of the leading axes, which broadcast.

    TensorFlow 2.21 on CPUs with oneDNN computes `tf.matmul` of `[B, 1, M, K]` and `[1, 1, K, N]`
    wrong, or crashes, and so it does with `[K, N]`. So a second factor that all leading axes share
    goes through `einsum` as a plain matrix.

    Args:
        a: `[..., M, K]`.
        b: `[..., K, N]`, of the same rank, or `[K, N]`.

    Returns:
        `[..., M, N]`.
    """
    shared = all(size == 1 for size in b.shape[:-2])
    if not shared or a.shape[:-2] == b.shape[:-2]:
        return ops.matmul(a, b)
    leading = string.ascii_lowercase[: len(a.shape) - 1]
    if len(b.shape) > 2:  # (`ops.squeeze` takes no axes at all for all axes of size 1.)
        b = ops.squeeze(b, tuple(range(len(b.shape) - 2)))
    return ops.einsum(f"{leading}y,yz->{leading}z", a, b)


def vector_product(a, v):
    """`a v` for a vector: `[..., U]` and `[U]` to `[...]`."""
    leading = string.ascii_lowercase[: len(a.shape) - 1]
    v = ops.cast(v, a.dtype)  # other than TensorFlow, Keras makes float32 of products of float64
    return ops.einsum(f"{leading}z,z->{leading}", a, v)
