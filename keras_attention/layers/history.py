"""Features of the weights of earlier steps, for scores that read them."""

import math
from numbers import Real

import keras
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.products import vector_product


@keras.saving.register_keras_serializable(package="keras_attention")
class Coverage(keras.layers.Layer):
    """How much attention each memory step has had so far.

        f_s = sum_{t' < t} weights_{t', s} / fertility_s

    Without fertility, equation 10 of [See et al., 2017](https://arxiv.org/abs/1704.04368). With
    it, the linguistic coverage of [Tu et al., 2016](https://arxiv.org/abs/1601.04811), equations 8
    and 9: fertility_s = N sigmoid(u^T value_s), the number of steps that s is expected to take part
    in, is learned.

    Args:
        max_fertility: N, a positive number (2 in the paper); None for no fertility.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        alignment: dictionary with "coverage" `[B, S]`, the sum of the weights so far.
        values: `[B, S, Dv]`, the memory.

    Returns:
        Features `[B, S, 1]`.

    Masking:
        None of its own: memory steps that are hidden have weights 0, and so coverage 0.

    Raises:
        ValueError: if `max_fertility` is not positive.

    Example:

    >>> import numpy as np
    >>> features = Coverage()({"coverage": np.array([[0.5, 1.5]])}, np.ones((1, 2, 3)))
    >>> features.numpy()[..., 0]
    array([[0.5, 1.5]], dtype=float32)
    """

    carries = ("coverage",)
    features = 1

    def __init__(self, max_fertility=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        positive = isinstance(max_fertility, Real) and 0 < max_fertility < math.inf
        if max_fertility is not None and not positive:
            raise ValueError(f"`max_fertility` must be positive. Received: {max_fertility!r}.")
        self.max_fertility = max_fertility

    def build(self, values_shape):
        if self.max_fertility is not None:
            self.u = self.add_weight(name="u", shape=(values_shape[-1],))
        self.built = True

    def compute_mask(self, alignment, previous_mask=None):
        return None  # features of the memory carry no mask

    def call(self, alignment, values):
        coverage = ops.cast(alignment["coverage"], self.compute_dtype)[..., None]
        if self.max_fertility is None:
            return coverage
        fertility = ops.sigmoid(vector_product(values, ops.cast(self.u, values.dtype)))
        return coverage / (self.max_fertility * fertility[..., None])

    def get_config(self):
        return {**super().get_config(), "max_fertility": self.max_fertility}


@keras.saving.register_keras_serializable(package="keras_attention")
class LocationFeatures(keras.layers.Layer):
    """What the neighbourhood of each memory step had as weights in the step before.

        f_t = F * weights_{t-1}

    Equation 8 of [Chorowski et al., 2015](https://arxiv.org/abs/1506.07503): F are learned
    one-dimensional filters, convolved with the weights of the step before; before the first step
    they are 0. With `cumulative` the filters run over the sum of all weights so far instead.

    Args:
        filters: the number k of filters (10 in the paper).
        kernel_size: r, their width in memory steps, an odd number (201 in the paper, for speech).
        cumulative: whether to convolve the sum of all weights so far.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        alignment: dictionary with "previous" `[B, S]` ("coverage" if cumulative).
        values: `[B, S, Dv]`, the memory; not used.

    Returns:
        Features `[B, S, filters]`.

    Masking:
        None of its own: memory steps that are hidden have weights 0, as those beyond the ends.

    Raises:
        ValueError: if `filters` or `kernel_size` is not a positive integer, or `kernel_size` even.

    Example:

    >>> import numpy as np
    >>> layer = LocationFeatures(filters=4, kernel_size=3)
    >>> layer({"previous": np.ones((2, 5))}, np.ones((2, 5, 3))).shape
    TensorShape([2, 5, 4])
    """

    def __init__(self, filters=10, kernel_size=31, cumulative=False, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.filters = check_positive("filters", filters)
        self.kernel_size = check_positive("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(
                "`kernel_size` must be odd, so that a step lies in the middle of its "
                f"neighbourhood. Received: {kernel_size}."
            )
        self.cumulative = cumulative
        self.features = self.filters
        self.carries = ("coverage",) if cumulative else ("previous",)

    def build(self, values_shape):
        self.convolution = keras.layers.Conv1D(
            self.filters,
            self.kernel_size,
            padding="same",
            use_bias=False,
            name="convolution",
            dtype=self.dtype_policy,
        )
        self.convolution.build((None, None, 1))
        self.built = True

    def compute_mask(self, alignment, previous_mask=None):
        return None  # features of the memory carry no mask

    def call(self, alignment, values):
        weights = alignment[self.carries[0]][..., None]
        if weights.shape[0]:
            return self.convolution(weights)
        # The batch may be empty; what TensorFlow makes of that has one filter only. So one more
        # row goes along.
        return self.convolution(ops.pad(weights, ((0, 1), (0, 0), (0, 0))))[:-1]

    def get_config(self):
        own = {
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "cumulative": self.cumulative,
        }
        return {**super().get_config(), **own}


HISTORIES = {"coverage": Coverage, "location": LocationFeatures}


def get_history(identifier, dtype=None):
    """A layer that makes features `[B, S, F]` of earlier weights, from a name or a config.

    Args:
        identifier: "coverage", "location", such a layer, its serialized form, or None.
        dtype: dtype policy of a layer made from its name.

    Returns:
        The layer, or None.

    Raises:
        ValueError: if it is anything else.
    """
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, str) and identifier in HISTORIES:
        return HISTORIES[identifier](dtype=dtype)
    is_layer = isinstance(identifier, keras.layers.Layer) and hasattr(identifier, "carries")
    if identifier is None or is_layer:
        return identifier
    raise ValueError(
        f"`history` must be one of {', '.join(map(repr, HISTORIES))}, a layer such as "
        f"Coverage(), or None. Received: {identifier!r}."
    )


def serialize_history(history):
    """What `get_history` makes a layer like `history` of: the same before and after building."""
    serialized = keras.saving.serialize_keras_object(history)
    return (
        None
        if serialized is None
        else {key: part for key, part in serialized.items() if key != "build_config"}
    )
