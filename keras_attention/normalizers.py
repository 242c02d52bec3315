"""Normalisers turn scores into attention weights: `(scores, mask) -> weights`.

All of them keep one rule: masked entries are exactly 0, and a row sums to 1, or to 0 where
nothing may be attended.
"""

import math
from numbers import Real

import keras
import numpy as np
from keras import ops

from keras_attention.checks import as_float, check_broadcast
from keras_attention.masks import align_to_rank, as_mask

_registered = keras.saving.register_keras_serializable(package="keras_attention")


def upcast(x):
    """Casts half precision to float32; float32 and float64 stay as they are.

    Args:
        x: a floating tensor of any shape `[...]`.

    Returns:
        `x` in `result_type(x.dtype, "float32")`.
    """
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


@_registered
def masked_softmax(scores, mask=None, temperature=1.0):
    """Softmax over the last axis that sees only what the mask allows.

        weights[..., s] = exp(scores[..., s] / temperature)
                          / sum over allowed s' of exp(scores[..., s'] / temperature)

    Section 3.2.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), with the mask
    applied inside the softmax.

    Args:
        scores: `[..., T, S]`, floating.
        mask: boolean, broadcastable to the scores (`[T, S]`, `[B, T, S]`, ...), True = may
            attend; None allows everything.
        temperature: positive number; below 1 the weights are more pointed, above 1 more even.

    Returns:
        Attention weights `[..., T, S]`, in float32 for half-precision scores and in the scores'
        dtype otherwise. Masked entries are exactly 0 and take no gradient. A row of which every
        entry is masked is all 0.

    Raises:
        ValueError: if the mask is floating or does not broadcast to the scores, or `temperature`
            is not a positive number.

    Example:

    >>> import numpy as np
    >>> masked_softmax(np.array([[0.0, 0.0, 9.0]]), [[True, True, False]]).numpy()
    array([[0.5, 0.5, 0. ]])
    """
    _check_temperature(temperature)
    scores, mask = _hide_masked(scores, mask)
    if temperature != 1:
        # With the largest taken off first, dividing by a small number cannot give +inf.
        scores = _below_largest(scores) / max(float(temperature), float(_limits(scores).tiny))
        scores, mask = _hide_masked(scores, mask)
    return _zero_masked(_softmax(scores), mask)


@_registered
def sparsemax(scores, mask=None):
    """The point of the simplex nearest to the scores; small scores get a weight of exactly 0.

        weights[..., s] = max(scores[..., s] - tau, 0),  tau such that the row sums to 1

    Algorithm 1 of [Martins and Astudillo, 2016](https://arxiv.org/abs/1602.02068): exact, by
    sorting; and so is the gradient.

    Args:
        scores: `[..., T, S]`, floating. -inf counts as the lowest finite number.
        mask: as of `masked_softmax`.

    Returns:
        Attention weights `[..., T, S]`; dtype, masked entries and errors as of `masked_softmax`.

    Example:

    >>> import numpy as np
    >>> sparsemax(np.array([[1.5, 1.0, -1.0]])).numpy()
    array([[0.75, 0.25, 0.  ]])
    """
    scores, mask = _hide_masked(scores, mask)
    z = _near_largest(scores)
    ordered, count = _ordered(z)
    tau = _threshold(ordered, (ops.cumsum(ordered, axis=-1) - 1) / count)
    return _zero_masked(ops.relu(z - _newton(z, tau, 1)), mask)


@_registered
def entmax15(scores, mask=None):
    """1.5-entmax, between softmax and sparsemax: smooth, with weights of exactly 0.

        weights[..., s] = max(scores[..., s] / 2 - tau, 0)^2,  tau such that the row sums to 1

    The case alpha = 1.5 of [Peters et al., 2019](https://arxiv.org/abs/1905.05702): exact, by
    sorting; and so is the gradient.

    Args:
        scores: `[..., T, S]`, floating. -inf counts as the lowest finite number.
        mask: as of `masked_softmax`.

    Returns:
        Attention weights `[..., T, S]`; dtype, masked entries and errors as of `masked_softmax`.

    Example:

    >>> import numpy as np
    >>> entmax15(np.array([[1.0, 1.0, -2.0]])).numpy()
    array([[0.5, 0.5, 0. ]])
    """
    scores, mask = _hide_masked(scores, mask)
    z = _near_largest(scores) / 2
    ordered, count = _ordered(z)
    mean = ops.cumsum(ordered, axis=-1) / count
    variance = ops.cumsum(ordered**2, axis=-1) / count - mean**2
    tau = _threshold(ordered, mean - ops.sqrt(ops.relu(1 / count - variance)))
    # The root of a difference loses digits on long rows; one step more returns them.
    tau = _newton(z, _newton(z, tau, 2), 2)
    return _zero_masked(ops.relu(z - tau) ** 2, mask)


@_registered
class Softmax:
    """`masked_softmax` with a temperature, as a normaliser that is saved with its layer.

        weights[..., s] = exp(scores[..., s] / temperature) / sum

    Args:
        temperature: positive number.

    Call arguments:
        scores, mask: as of `masked_softmax`.

    Returns:
        Attention weights `[..., T, S]`, as of `masked_softmax`.

    Raises:
        ValueError: if `temperature` is not a positive number.

    Example:

    >>> import numpy as np
    >>> Softmax(temperature=0.5)(np.array([[0.0, np.log(3.0)]])).numpy()
    array([[0.1, 0.9]])
    """

    def __init__(self, temperature=1.0):
        self.temperature = float(_check_temperature(temperature))

    def __call__(self, scores, mask=None):
        return masked_softmax(scores, mask, self.temperature)

    def get_config(self):
        return {"temperature": self.temperature}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


NORMALIZERS = {"softmax": masked_softmax, "sparsemax": sparsemax, "entmax15": entmax15}


def get_normalizer(identifier):
    """The normaliser that a layer is given by name, as a function, or from its config.

    Args:
        identifier: "softmax", "sparsemax" or "entmax15"; a function `(scores [..., T, S], mask)
            -> weights [..., T, S]`; or what `serialize_normalizer` made.

    Returns:
        The function.

    Raises:
        ValueError: if there is none of that name, or it is not a function.

    Example:

    >>> get_normalizer("sparsemax").__name__
    'sparsemax'
    """
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    normalizer = NORMALIZERS.get(identifier) if isinstance(identifier, str) else identifier
    if not callable(normalizer) or isinstance(normalizer, type):
        known = ", ".join(repr(name) for name in NORMALIZERS)
        raise ValueError(
            f"`normalizer` must be one of {known}, or a function (scores, mask) -> weights. "
            f"Received: {identifier!r}."
        )
    return normalizer


def serialize_normalizer(normalizer):
    """What stands for a normaliser in the config of a layer; `get_normalizer` reads it.

    Args:
        normalizer: what `get_normalizer` takes, for scores `[..., T, S]`. Functions and classes
            of your own are found again where they are registered with
            `keras.saving.register_keras_serializable`.

    Returns:
        The name of a normaliser of this module, or else its serialised form, a dictionary.

    Raises:
        ValueError: if `normalizer` is none.

    Example:

    >>> serialize_normalizer(entmax15), serialize_normalizer(Softmax(0.5))["config"]
    ('entmax15', {'temperature': 0.5})
    """
    normalizer = get_normalizer(normalizer)
    for name, function in NORMALIZERS.items():
        if normalizer is function:
            return name
    serialized = keras.saving.serialize_keras_object(normalizer)
    # A layer that holds one has the same config before and after it was built.
    serialized.pop("build_config", None)
    return serialized


def _hide_masked(scores, mask):
    """Scores that are low where the mask forbids, in float32 or float64; and the mask, aligned."""
    scores = upcast(as_float(scores))
    if mask is None:
        return scores, None
    mask = align_to_rank(as_mask(mask), len(scores.shape))
    check_broadcast("mask", mask.shape, scores.shape)
    # Unlike -inf, the lowest finite number keeps a row that is masked throughout finite, forward
    # and backward; such a row is zeroed afterwards. Scores end at half of it, so that no score
    # that counts is as low as the masked ones.
    lowest = ops.convert_to_tensor(_limits(scores).min, scores.dtype)
    return ops.where(mask, ops.maximum(scores, lowest / 2), lowest), mask


def _zero_masked(weights, mask):
    return weights if mask is None else ops.where(mask, weights, ops.zeros((), weights.dtype))


def _softmax(scores):
    if scores.shape[-1] == 1:
        # One key takes all the weight, with gradient 0, unless it is NaN. (Keras warns about a
        # softmax over an axis of size 1.)
        return ops.exp(scores - scores)
    if len(scores.shape) > 5:  # more axes than TensorFlow's softmax takes on CPUs
        first, second, *others = ops.shape(scores)
        return ops.reshape(
            _softmax(ops.reshape(scores, (first * second, *others))), ops.shape(scores)
        )
    return ops.softmax(scores, axis=-1)


def _below_largest(scores):
    """Scores from which the largest of the row is taken off, which changes no weight."""
    lowest = _limits(scores).min
    return scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True, initial=lowest))


def _near_largest(scores):
    """The same, cut off at -4: from 2 below the largest, a score gets no weight that is sparse."""
    return ops.maximum(_below_largest(ops.maximum(scores, _limits(scores).min)), -4)


def _ordered(z):
    """Rows in descending order, cut off from the gradient; and 1, 2, ..., S."""
    ordered = -ops.sort(-ops.stop_gradient(z), axis=-1)
    return ordered, ops.cumsum(ops.ones_like(ordered), axis=-1)


def _threshold(ordered, candidates):
    """The k-th candidate holds if the k largest have a weight; it grows up to the true one."""
    holds = ops.where(ordered > candidates, candidates, -1)
    return ops.max(holds, axis=-1, keepdims=True, initial=-1)


def _newton(z, tau, power):
    """A step towards the tau with sum_s max(z_s - tau, 0)^power = 1.

    At the solution it stays where it is, and, with the slope held fixed, its gradient is that of
    the solution (implicit function theorem). So gradients need not go through the sorting.
    """
    tau = ops.stop_gradient(tau)
    positive = ops.relu(z - tau)
    if power == 1:
        slope = ops.sum(ops.cast(positive != 0, z.dtype), axis=-1, keepdims=True)
    else:
        slope = 2 * ops.stop_gradient(ops.sum(positive, axis=-1, keepdims=True))
    error = ops.sum(positive**power, axis=-1, keepdims=True) - 1
    return tau + error / ops.maximum(slope, 1)  # at least 1, but for rows without entries


def _limits(x):
    return np.finfo(keras.backend.standardize_dtype(x.dtype))


def _check_temperature(temperature):
    good = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not good or not 0 < temperature < math.inf:
        raise ValueError(f"`temperature` must be a positive number. Received: {temperature!r}.")
    return temperature
