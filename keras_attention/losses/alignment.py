"""Losses of attention weights: coverage, guided alignment, and a diagonal one."""

from numbers import Real

import keras
from keras import ops

from keras_attention.losses.steps import StepLoss, not_padding

_registered = keras.saving.register_keras_serializable(package="keras_attention")


@_registered
class CoverageLoss(StepLoss):
    """Penalty on attending again to what was attended to before.

        loss_t = sum_s min(weights_(t, s), c_(t, s)),  c_t = sum over t' < t of weights_t'

    Equations 10 and 12 of [See et al., 2017](https://arxiv.org/abs/1704.04368), for the attention
    weights as an output of the model; its factor is the `loss_weights` of `compile`.

    Args:
        pad_token: the value of `y_true` at steps that do not count, or None if all count.
        reduction, name, dtype: as of `StepLoss`.

    Call arguments:
        y_true: `[B, T]`, token ids of the target, or 0 and 1 as a mask of its steps.
        y_pred: attention weights `[B, T, S]`.
        sample_weight: `[B]`, `[B, 1]` or `[B, T]`.

    Returns:
        A number; for reduction None the losses `[B, T]`.

    Raises:
        ValueError: if shapes do not fit.

    Example: half of the second step goes where the first one went

    >>> import numpy as np
    >>> print(float(CoverageLoss()(np.array([[5, 7]]), np.array([[[1.0, 0.0], [0.5, 0.5]]]))))
    0.25
    """

    def __init__(
        self, pad_token=0, reduction="sum_over_batch_size", name="coverage_loss", dtype=None
    ):
        super().__init__(reduction, name, dtype)
        self.pad_token = pad_token

    def real_steps(self, y_true):
        return not_padding(y_true, self.pad_token)

    def call(self, y_true, y_pred):
        weights = ops.cast(y_pred, self._float)
        before = ops.pad(weights, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return ops.sum(ops.minimum(weights, ops.cumsum(before, axis=1)), axis=-1)

    def get_config(self):
        return {**super().get_config(), "pad_token": self.pad_token}


@_registered
class GuidedAlignmentLoss(StepLoss):
    """Distance of the attention weights from a given alignment.

        A_t = gold_t / sum_s gold_(t, s)
        cross_entropy: loss_t = -sum_s A_(t, s) log weights_(t, s)
        squared:       loss_t = 1/2 sum_s (A_(t, s) - weights_(t, s))^2

    [Chen et al., 2016](https://arxiv.org/abs/1607.01628). Steps without a link do not count.

    Args:
        kind: "cross_entropy" or "squared".
        reduction, name, dtype: as of `StepLoss`.

    Call arguments:
        y_true: gold alignment `[B, T, S]`: 0 and 1, counts, or probabilities.
        y_pred: attention weights `[B, T, S]`. In the logarithm a weight is at least 1e-30, or
            2^-14 in float16, where gradients would overflow.
        sample_weight: `[B]`, `[B, 1]` or `[B, T]`.

    Returns:
        A number; for reduction None the losses `[B, T]`.

    Raises:
        ValueError: if shapes do not fit or `kind` is unknown.

    Example: the second step has no link

    >>> import numpy as np
    >>> gold, weights = np.array([[[0, 1], [0, 0]]]), np.array([[[0.5, 0.5], [1.0, 0.0]]])
    >>> print(float(GuidedAlignmentLoss("squared")(gold, weights)))
    0.25
    """

    true_rank = 3

    def __init__(
        self,
        kind="cross_entropy",
        reduction="sum_over_batch_size",
        name="guided_alignment_loss",
        dtype=None,
    ):
        super().__init__(reduction, name, dtype)
        if kind not in ("cross_entropy", "squared"):
            raise ValueError(f'`kind` must be "cross_entropy" or "squared". Received: {kind!r}.')
        self.kind = kind

    def real_steps(self, y_true):
        return _linked_steps(y_true)

    def call(self, y_true, y_pred):
        gold = ops.cast(y_true, self._float)
        gold = ops.divide_no_nan(gold, ops.sum(gold, axis=-1, keepdims=True))
        weights = ops.cast(y_pred, self._float)
        if self.kind == "squared":
            return ops.sum(ops.square(gold - weights), axis=-1) / 2
        half = keras.backend.standardize_dtype(y_pred.dtype) == "float16"
        return -ops.sum(gold * ops.log(ops.maximum(weights, 2**-14 if half else 1e-30)), axis=-1)

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


@_registered
class DiagonalAlignmentLoss(StepLoss):
    """Pulls the attention weights to the diagonal, for tasks whose alignment is near it.

        loss_t = 1/S sum_s weights_(t, s) W_(t, s)
        W_(t, s) = 1 - exp(-(s / S - t / T)^2 / (2 width^2))

    The guided attention of [Tachibana et al., 2018](https://arxiv.org/abs/1710.08969); s and t
    count from 0, S and T are the real lengths of each sequence.

    Args:
        width: g of the paper: how far from the diagonal weights cost little, as a part of the
            length.
        reduction, name, dtype: as of `StepLoss`.

    Call arguments:
        y_true: `[B, T, S]`, the pairs of a real target step and a real source step: 1, others 0;
            e.g. `(target != 0)[:, :, None] * (source != 0)[:, None, :]`. Padding may lie on
            either side.
        y_pred: attention weights `[B, T, S]`.
        sample_weight: `[B]`, `[B, 1]` or `[B, T]`.

    Returns:
        A number; for reduction None the losses `[B, T]`.

    Raises:
        ValueError: if shapes do not fit or `width` is not a positive number.

    Example: weights on the diagonal cost nothing

    >>> import numpy as np
    >>> float(DiagonalAlignmentLoss()(np.ones((1, 3, 3)), np.eye(3)[None]))
    0.0
    """

    true_rank = 3

    def __init__(
        self,
        width=0.2,
        reduction="sum_over_batch_size",
        name="diagonal_alignment_loss",
        dtype=None,
    ):
        super().__init__(reduction, name, dtype)
        if not isinstance(width, Real) or not 0 < width < float("inf"):
            raise ValueError(f"`width` must be a positive number. Received: {width!r}.")
        self.width = float(width)

    def real_steps(self, y_true):
        return _linked_steps(y_true)

    def call(self, y_true, y_pred):
        pairs = ops.cast(y_true, "bool")
        rows, _ = self._places(ops.any(pairs, axis=2))
        columns, size = self._places(ops.any(pairs, axis=1))
        distance = (columns[:, None, :] - rows[:, :, None]) / self.width
        costs = -ops.expm1(-ops.square(distance) / 2)
        total = ops.sum(ops.where(pairs, costs * ops.cast(y_pred, self._float), 0), axis=-1)
        return ops.divide_no_nan(total, size)

    def _places(self, real):
        """Of each sequence the place of each real step, from 0 to below 1, and their number."""
        real = ops.cast(real, self._float)
        size = ops.sum(real, axis=-1, keepdims=True)
        return ops.divide_no_nan(ops.cumsum(real, axis=-1) - 1, size), size

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def _linked_steps(y_true):
    """`[B, T]`: the steps of `[B, T, S]` that have any entry."""
    return ops.any(ops.cast(y_true, "bool"), axis=-1)
