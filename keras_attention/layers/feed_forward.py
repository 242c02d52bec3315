"""The feed-forward network of a transformer block, plain or gated."""

import math

import keras
from keras import ops

from keras_attention.checks import check_fraction, check_positive


def gelu(x):
    """x Phi(x) of `[...]`, Phi the normal distribution function; `ops.gelu` rounds to float32."""
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


# Name: the function, and whether its output multiplies a second projection.
ACTIVATIONS = {
    "relu": (ops.relu, False),
    "gelu": (gelu, False),
    "silu": (ops.silu, False),
    "reglu": (ops.relu, True),
    "geglu": (gelu, True),
    "swiglu": (ops.silu, True),
}


@keras.saving.register_keras_serializable(package="keras_attention")
class FeedForward(keras.layers.Layer):
    """Position-wise feed-forward network.

        relu, gelu, silu:      f(x W_1 + b_1) W_2 + b_2
        reglu, geglu, swiglu:  (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2

    Section 3.3 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762); the gated ones are
    equations 5 and 6 of [Shazeer, 2020](https://arxiv.org/abs/2002.05202), where f is relu, gelu
    (exact, not approximated) or silu(x) = x sigmoid(x).

    Args:
        size: number of hidden units (of a gated network, of each of the two projections).
        activation: "relu", "gelu", "silu", "reglu", "geglu" or "swiglu".
        dropout: the fraction of hidden units dropped in training.
        use_bias: whether the projections have biases.
        seed: integer seed of the dropout.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: `[..., D]`.
        training: whether to apply dropout.

    Returns:
        `[..., D]`, with the mask of x.

    Raises:
        ValueError: for an unknown activation, a size that is not positive, or a dropout outside
            [0, 1).

    Example:

    >>> import numpy as np
    >>> FeedForward(32, "swiglu")(np.ones((2, 5, 8))).shape
    TensorShape([2, 5, 8])
    """

    def __init__(self, size, activation="relu", dropout=0.0, use_bias=True, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"`activation` must be one of {', '.join(map(repr, ACTIVATIONS))}. "
                f"Received: {activation!r}."
            )
        self.size = check_positive("size", size)
        self.activation = activation
        self.use_bias = use_bias
        self.seed = seed
        self._function, self._gated = ACTIVATIONS[activation]
        self._gate = self._dense(size, "gate") if self._gated else None
        self._inner = self._dense(size, "inner")
        rate = check_fraction("dropout", dropout)
        self._dropout = keras.layers.Dropout(rate, seed=seed, dtype=self.dtype_policy)

    def _dense(self, units, name):
        return keras.layers.Dense(units, use_bias=self.use_bias, dtype=self.dtype_policy, name=name)

    def build(self, x_shape):
        if self._gated:
            self._gate.build(x_shape)
        self._inner.build(x_shape)
        self._outer = self._dense(x_shape[-1], "outer")
        self._outer.build((*x_shape[:-1], self.size))
        self.built = True

    def call(self, x, training=None):
        hidden = self._inner(x)
        if self._gated:
            hidden = self._function(self._gate(x)) * hidden
        else:
            hidden = self._function(hidden)
        return self._outer(self._dropout(hidden, training=training))

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        own = {
            "size": self.size,
            "activation": self.activation,
            "dropout": self._dropout.rate,
            "use_bias": self.use_bias,
            "seed": self.seed,
        }
        return {**super().get_config(), **own}
