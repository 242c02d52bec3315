"""The connection around a sub-layer of a transformer: normalisation, dropout, residual sum."""

import keras

from keras_attention.checks import check_flag, check_fraction


@keras.saving.register_keras_serializable(package="keras_attention")
class RMSNormalization(keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization` that hands on the mask of its input, as layer norm does.

        x / sqrt(mean(x^2) + epsilon) * scale

    [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467), section 4.

    Args:
        **kwargs: as of Keras's layer.

    Call arguments:
        x: `[..., D]`.

    Returns:
        `[..., D]`.

    Masking:
        The output carries the mask of x.

    Raises:
        ValueError: as Keras's layer.

    Example:

    >>> import numpy as np
    >>> RMSNormalization()(np.array([[3.0, -4.0]], "float32")).numpy().round(2)
    array([[ 0.85, -1.13]], dtype=float32)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True


NORMALIZATIONS = {"layer": keras.layers.LayerNormalization, "rms": RMSNormalization}


def normalization_layer(normalization, epsilon=1e-5, **kwargs):
    """Makes the layer that normalises features `[..., D]`.

        "layer": (x - mean(x)) / sqrt(var(x) + epsilon) * gamma + beta
        "rms":   x / sqrt(mean(x^2) + epsilon) * gamma

    [Ba et al., 2016](https://arxiv.org/abs/1607.06450), section 3, and
    [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467), section 4.

    Args:
        normalization: "layer" or "rms".
        epsilon: what keeps the root from 0.
        **kwargs: arguments of `keras.layers.Layer`.

    Returns:
        A Keras layer.

    Raises:
        ValueError: for an unknown name.
    """
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"`normalization` must be one of {', '.join(map(repr, NORMALIZATIONS))}. "
            f"Received: {normalization!r}."
        )
    return NORMALIZATIONS[normalization](epsilon=epsilon, **kwargs)


@keras.saving.register_keras_serializable(package="keras_attention")
class Residual(keras.layers.Layer):
    """Residual connection around a sub-layer f, normalised behind it or before it.

        post-norm: norm(x + dropout(f(x)))
        pre-norm:  x + dropout(f(norm(x)))

    Post-norm is section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), pre-norm
    table 1 of [Xiong et al., 2020](https://arxiv.org/abs/2002.04745).

    Args:
        normalization: "layer" or "rms", see `normalization_layer`.
        norm_first: whether to normalise before the sub-layer (pre-norm).
        dropout: the fraction of the sub-layer's output dropped in training.
        epsilon: what keeps the root of the normalisation from 0.
        seed: integer seed of the dropout.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: `[..., D]`, what came in.
        y: `[..., D]`, what the sub-layer made of `enter(x)`.
        training: whether to apply dropout.

    Returns:
        `[..., D]`.

    Raises:
        ValueError: for an unknown normalisation, or a dropout outside [0, 1).

    Example:

    >>> import numpy as np
    >>> residual, double = Residual(norm_first=True), keras.layers.Rescaling(2.0)
    >>> x = np.array([[1.0, 3.0]], "float32")
    >>> residual(x, double(residual.enter(x))).numpy().round(2)
    array([[-1.,  5.]], dtype=float32)
    """

    def __init__(
        self,
        normalization="layer",
        norm_first=False,
        dropout=0.0,
        epsilon=1e-5,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.normalization = normalization
        self.norm_first = check_flag("norm_first", norm_first)
        self.epsilon = epsilon
        self.seed = seed
        self.norm = normalization_layer(
            normalization, epsilon, dtype=self.dtype_policy, name="norm"
        )
        rate = check_fraction("dropout", dropout)
        self.dropout = keras.layers.Dropout(rate, seed=seed, dtype=self.dtype_policy)

    def build(self, x_shape, y_shape=None):
        if not self.norm.built:
            self.norm.build(x_shape)
        self.built = True

    def enter(self, x):
        """What the sub-layer reads, of the shape of x, `[..., D]`."""
        return self.norm(x) if self.norm_first else x

    def call(self, x, y, training=None):
        total = x + self.dropout(y, training=training)
        return total if self.norm_first else self.norm(total)

    def compute_output_shape(self, x_shape, y_shape=None):
        return x_shape

    def get_config(self):
        own = {
            "normalization": self.normalization,
            "norm_first": self.norm_first,
            "dropout": self.dropout.rate,
            "epsilon": self.epsilon,
            "seed": self.seed,
        }
        return {**super().get_config(), **own}
