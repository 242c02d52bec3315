"""The mean of losses of single steps over the steps that are real, as an ordinary Keras loss."""

import keras
from keras import ops

from keras_attention.checks import check_broadcast, is_ragged


class StepLoss(keras.losses.Loss):
    """Base of the losses: a loss for each step `[B, T]`, reduced over the real steps.

    A subclass defines `call(y_true, y_pred) -> [B, T]`, which gets zeros for steps that are not
    real, and `real_steps(y_true) -> boolean [B, T]`. A mask that Keras attached to `y_pred` may
    hide further steps. Hidden steps count nothing and have no gradient, and may hold NaN.

    Args:
        reduction: as of `keras.losses.Loss`. "sum_over_batch_size" (or "mean") is the sum divided
            by the number of real steps of the batch, "mean_with_sample_weight" by the sum of
            their sample weights, "sum" the sum, None the losses `[B, T]`. Both means are 0 for a
            batch without real steps. Keras averages the means of the batches, or of the replicas
            of a distribution strategy, as it does for all losses: where these hold different
            numbers of real steps, that is not the mean over all steps. "sum" has no such limit.
        name: name of the loss.
        dtype: dtype of the result. The computation is in float32 at least, also under
            `mixed_float16`.

    Call arguments:
        y_true, y_pred: as of the subclass.
        sample_weight: `[B]`, `[B, 1]` or `[B, T]`: factors of the losses.
    """

    true_rank = 2  # of y_true

    def __init__(self, reduction="sum_over_batch_size", name=None, dtype=None):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self._float = keras.backend.result_type(self.dtype, "float32")

    def __call__(self, y_true, y_pred, sample_weight=None):
        mask = getattr(y_pred, "_keras_mask", None)
        y_true, y_pred = self._dense(ops.convert_to_tensor(y_true)), ops.convert_to_tensor(y_pred)
        self._check_shapes(tuple(y_true.shape), tuple(y_pred.shape))
        real = self.real_steps(y_true)
        if mask is not None:
            real = ops.logical_and(real, ops.cast(mask, "bool"))
        losses = self.call(_hide(y_true, real), _hide(y_pred, real))
        weights = self._weights(real, sample_weight)
        return _Reduction(self.reduction, self.name, self._float)(
            losses, _hide(losses, real), sample_weight=weights
        )

    def real_steps(self, y_true):
        raise NotImplementedError

    def get_config(self):
        return {**super().get_config(), "dtype": self.dtype}

    def _dense(self, y_true):
        return _check_dense("y_true", y_true)

    def _check_shapes(self, true_shape, pred_shape):
        """Raises unless targets `[B, T]` or `[B, T, S]` fit predictions `[B, T, S]`."""
        fits = (
            len(pred_shape) == 3
            and len(true_shape) == self.true_rank
            and all(
                None in sizes or sizes[0] == sizes[1]
                for sizes in zip(true_shape, pred_shape, strict=False)
            )
        )
        if not fits:
            without = " without its last axis" if self.true_rank == 2 else ""
            raise ValueError(
                "`y_pred` must have three axes, [B, T, features], and `y_true` the same shape"
                f"{without}. Received `y_true` {true_shape} and `y_pred` {pred_shape}."
            )

    def _weights(self, real, sample_weight):
        """What Keras is to multiply the losses by, so that its mean is that of the real steps."""
        weights = ops.cast(real, self._float)
        if self.reduction in ("sum_over_batch_size", "mean"):
            total = ops.sum(ops.ones_like(weights))
            weights = weights * ops.divide_no_nan(total, ops.sum(weights))
        if sample_weight is None:
            return weights
        sample_weight = _check_dense("sample_weight", ops.convert_to_tensor(sample_weight))
        sample_weight = ops.cast(sample_weight, self._float)
        while len(sample_weight.shape) < len(weights.shape):
            sample_weight = sample_weight[..., None]
        check_broadcast("sample_weight", sample_weight.shape, weights.shape)
        return weights * sample_weight


def _check_dense(name, x):
    if is_ragged(x):
        raise ValueError(
            f"`{name}` must be a dense tensor. Received a ragged one. Pass {name}.to_tensor()."
        )
    return x


class _Reduction(keras.losses.Loss):
    """Reduces losses `[B, T]` the way Keras does, also under a distribution strategy."""

    def __init__(self, reduction, name, dtype):
        super().__init__(name, reduction, dtype)

    def call(self, y_true, y_pred):
        return y_pred


def not_padding(ids, pad_token):
    """`[B, T]`: where ids `[B, T]` are not the padding token, which may be None."""
    ids = ops.cast(ids, "int32")
    return ops.ones_like(ids, "bool") if pad_token is None else ops.not_equal(ids, pad_token)


def _hide(x, real):
    """Zeroes the steps that are not real, of x `[B, T]` or `[B, T, features]`."""
    real = real if len(x.shape) == len(real.shape) else real[..., None]
    return ops.where(real, x, ops.zeros((), x.dtype))
