"""One vector for a sequence, from its real steps only."""

import keras
from keras import ops

from keras_attention.checks import check_float, fit_mask
from keras_attention.masks import as_mask
from keras_attention.normalizers import upcast

MODES = ("mean", "max", "sum", "first", "last")


@keras.saving.register_keras_serializable(package="keras_attention")
class MaskedPooling(keras.layers.Layer):
    """Pools `[B, S, D]` over the steps that are real; a sample without any gives 0.

        mean   output = sum over real s of x_s / number of real s
        sum    output = sum over real s of x_s
        max    output = the largest x_s over real s, feature by feature
        first  output = x_s of the first real s
        last   output = x_s of the last real s

    A classifier puts it after its encoder; mean pooling of the real tokens is that of
    [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3, and "first" reads
    the token that stands for all, as [Devlin et al., 2019](https://arxiv.org/abs/1810.04805),
    section 3, do.

    Args:
        mode: "mean", "max", "sum", "first" or "last".
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        inputs: floating, `[B, S, D]`.
        mask: boolean or integers 0 and 1, `[B, S]`, True = a real step. By default the Keras mask
            of `inputs`; where there is none, every step is real.

    Returns:
        `[B, D]` in the layer's compute dtype. In half precision, sums are taken in float32.

    Masking:
        Padding contributes nothing and gets gradient 0, even where it holds NaN or infinity. A
        sample without real steps gives 0, and gradient 0. The output carries no mask.

    Raises:
        ValueError: if `mode` is unknown, the inputs are not floating or not of rank 3, or the mask
            is floating or of another shape than `[B, S]`.

    Example: the last step is padding, and the second sample is empty

    >>> import numpy as np
    >>> x = np.array([[[1.0], [2.0], [9.0]], [[9.0], [9.0], [9.0]]])
    >>> mask = np.array([[True, True, False], [False, False, False]])
    >>> MaskedPooling("mean")(x, mask=mask).numpy().tolist()
    [[1.5], [0.0]]
    """

    def __init__(self, mode="mean", **kwargs):
        if mode not in MODES:
            raise ValueError(
                f"`mode` must be one of {', '.join(map(repr, MODES))}. Received: {mode!r}."
            )
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mode = mode

    def call(self, inputs, mask=None):
        x = check_float(inputs, "inputs", self.compute_dtype)
        _check_rank(x.shape)
        if mask is None:
            real = ops.ones(ops.shape(x)[:2], dtype="bool")
        else:
            real = fit_mask("mask", as_mask(mask), x.shape[:2], ops.shape(x)[:2])
        if self.mode == "max":
            return _largest(x, real)
        if self.mode in ("first", "last"):
            return _total(x, _end_of(real, self.mode == "last"))
        total = _total(upcast(x), real)
        if self.mode == "mean":
            total = total / ops.maximum(_total(ops.ones_like(total[:, None]), real), 1)
        return ops.cast(total, self.compute_dtype)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        _check_rank(input_shape)
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}


def _check_rank(shape):
    if len(shape) != 3:
        raise ValueError(f"`inputs` must have shape [B, S, D]. Received shape {tuple(shape)}.")


def _total(x, real):
    """Sum over the real steps. (A product with the mask would let NaN through.)"""
    return ops.sum(ops.where(real[..., None], x, ops.zeros_like(x)), axis=1)


def _largest(x, real):
    if 0 in x.shape:  # of which PyTorch's maximum has another shape
        return ops.sum(x, axis=1)
    lowest = ops.full_like(x, float("-inf"))
    largest = ops.max(ops.where(real[..., None], x, lowest), axis=1, initial=float("-inf"))
    return ops.where(ops.any(real, axis=1)[:, None], largest, ops.zeros_like(largest))


def _end_of(real, last):
    """A mask of the first or the last real step alone."""
    counted = ops.cumsum(ops.cast(real, "int32"), axis=1)
    wanted = ops.max(counted, axis=1, keepdims=True, initial=0) if last else 1
    return ops.logical_and(real, ops.equal(counted, wanted))
