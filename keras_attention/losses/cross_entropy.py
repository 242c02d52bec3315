"""Cross-entropy of token ids that are padded."""

from numbers import Real

import keras
from keras import ops

from keras_attention.checks import is_ragged
from keras_attention.losses.steps import StepLoss, not_padding


@keras.saving.register_keras_serializable(package="keras_attention")
class MaskedCrossEntropy(StepLoss):
    """Cross-entropy of token ids, averaged over the tokens that are not padding.

        loss_t = (1 - label_smoothing) * -log p_t(y_t) + label_smoothing * mean_v -log p_t(v)

    Label smoothing as in section 7 of [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567),
    uniform over the whole vocabulary.

    Args:
        label_smoothing: the share that is spread over the vocabulary, in [0, 1).
        pad_token: the id that is padding, or None if there is none. It may lie outside of the
            vocabulary, e.g. -1.
        from_logits: whether `y_pred` are logits. Probabilities are taken to be at least
            `keras.config.epsilon()`.
        reduction, name, dtype: as of `StepLoss`.

    Call arguments:
        y_true: token ids `[B, T]`. Ragged ones are padded behind with `pad_token`; without one
            they are refused. (Metrics of Keras take no ragged ids.)
        y_pred: logits or probabilities `[B, T, V]`.
        sample_weight: `[B]`, `[B, 1]` or `[B, T]`.

    Returns:
        A number; for reduction None the losses `[B, T]`, 0 at the padding. An id outside of
        [0, V) that is not padding is an error where the device can raise one (TensorFlow on a
        CPU), and gives NaN elsewhere (XLA, GPUs).

    Raises:
        ValueError: if shapes do not fit, or `label_smoothing` lies outside of [0, 1).

    Example: the third token is padding

    >>> import numpy as np
    >>> loss = MaskedCrossEntropy()(np.array([[2, 1, 0]]), np.zeros((1, 3, 4)))
    >>> print(f"{float(loss):.4f} = log 4")
    1.3863 = log 4
    """

    def __init__(
        self,
        label_smoothing=0.0,
        pad_token=0,
        from_logits=True,
        reduction="sum_over_batch_size",
        name="masked_cross_entropy",
        dtype=None,
    ):
        super().__init__(reduction, name, dtype)
        if not isinstance(label_smoothing, Real) or not 0 <= label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be a number in [0, 1). Received: {label_smoothing!r}."
            )
        self.label_smoothing = float(label_smoothing)
        self.pad_token = pad_token
        self.from_logits = from_logits

    def real_steps(self, y_true):
        return not_padding(y_true, self.pad_token)

    def _dense(self, y_true):
        if is_ragged(y_true) and self.pad_token is not None:
            return y_true.to_tensor(self.pad_token)
        if is_ragged(y_true):
            raise ValueError(
                "Ragged `y_true` needs a `pad_token` to be padded with. Received: pad_token=None."
            )
        return y_true

    def call(self, y_true, y_pred):
        ids, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, self._float)
        if not self.from_logits:
            logits = ops.log(ops.maximum(logits, keras.config.epsilon()))
        size = ops.shape(logits)[-1]
        if self.label_smoothing:
            losses = self._smoothed(ids, logits, size)
        elif keras.backend.backend() == "jax":  # where Keras multiplies by zeros, which keep NaN
            given = ops.take_along_axis(logits, ops.clip(ids, 0, size - 1)[..., None], axis=-1)
            losses = ops.logsumexp(logits, axis=-1) - given[..., 0]
        else:
            losses = ops.sparse_categorical_crossentropy(ids, logits, from_logits=True)
        in_vocabulary = ops.logical_and(ids >= 0, ids < size)
        return ops.where(in_vocabulary, losses, float("nan"))

    def _smoothed(self, ids, logits, size):
        # Against whole distributions, one operation in place of a sparse loss and a sum over the
        # vocabulary beside it. A distribution does not refuse ids that it does not hold, as looking
        # up does (where `take` would count negative ids from the end).
        ones = ops.take(ops.ones((size,), logits.dtype), ops.where(ids < 0, ids - size, ids))
        rest = self.label_smoothing / ops.cast(size, logits.dtype)
        given = ops.equal(ids[..., None], ops.arange(size))
        target = ops.where(given, 1 - self.label_smoothing + rest, rest)
        return ones * ops.categorical_crossentropy(target, logits, from_logits=True)

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "pad_token": self.pad_token,
            "from_logits": self.from_logits,
        }
