"""Positions added to embeddings: the sinusoidal encoding, and learned embeddings."""

import keras
import numpy as np
from keras import ops

from keras_attention.checks import check_float, check_positive, known_size
from keras_attention.positions.scaling import check_base
from keras_attention.positions.sinusoidal import sinusoidal_encoding
from keras_attention.positions.turns import as_positions, fit_steps


class PositionEmbedding(keras.layers.Layer):
    """Base: `x + encoding(positions)`; a subclass says what the encoding is.

    Args:
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        x: `[B, T, D]`, or `[B, D]` for one step.
        positions: integers `[T]` or `[B, T]`, by default 0, ..., T - 1; for one step `[B]`, or
            one number for all.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x, positions=None):
        x = check_float(x, "x", self.compute_dtype)
        if len(x.shape) not in (2, 3):
            raise ValueError(
                "`x` must have shape [B, T, D], or [B, D] for one step. Received shape "
                f"{tuple(x.shape)}."
            )
        if positions is None:
            if len(x.shape) == 2:
                raise ValueError("`positions` must be given for one step, x of shape [B, D].")
            return x + self._first(known_size(x, 1), ops.shape(x)[1], x.shape[-1])
        positions = as_positions(positions, ranks=(1, 2) if len(x.shape) == 3 else (0, 1))
        positions = fit_steps(positions, x) if len(x.shape) == 3 else _fit_batch(positions, x)
        return x + self._encode(positions, x.shape[-1])

    def compute_output_spec(self, x, positions=None):
        # By a trace of `call`, so that inputs that do not fit are refused here.
        return keras.Operation.compute_output_spec(self, x, positions=positions)

    def compute_output_shape(self, x_shape, positions_shape=None):
        return tuple(x_shape)

    def _first(self, steps, size, features):
        """The encoding `[T, D]` of 0, ..., T - 1; `steps` is T if known, `size` T or a tensor."""
        return self._encode(ops.arange(size, dtype="int32"), features)


def _fit_batch(positions, x):
    """`positions` `[B]` or `[]` of one step `x` `[B, D]`."""
    given = positions.shape[0] if len(positions.shape) else 1
    if None not in (given, x.shape[0]) and given not in (1, x.shape[0]):
        raise ValueError(
            "`positions` must have shape [B] for one step, x of shape "
            f"{tuple(x.shape)}. Received shape {tuple(positions.shape)}."
        )
    return positions


@keras.saving.register_keras_serializable(package="keras_attention")
class SinusoidalEmbedding(PositionEmbedding):
    """Adds the sinusoidal encoding of the positions.

        y_p = x_p + encoding(p),  encoding(p)[2i], [2i + 1] = sin, cos(p / base^(2i / D))

    Section 3.5 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762); see
    `sinusoidal_encoding`. Nothing is learned, and any position may come. (Section 3.4 there
    multiplies the embeddings by sqrt(D) before.)

    Args:
        base: positive number.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        x: `[B, T, D]`, or `[B, D]` for one step.
        positions: integers `[T]` or `[B, T]`, by default 0, ..., T - 1; for one step `[B]`, or
            one number for all.

    Returns:
        A tensor like `x`.

    Masking:
        The output carries the mask of `x`.

    Raises:
        ValueError: if `base` is not positive, positions are no integers or shapes do not fit.

    Example:

    >>> import numpy as np
    >>> SinusoidalEmbedding()(np.zeros((1, 2, 4), "float32")).numpy().round(2)
    array([[[0.  , 1.  , 0.  , 1.  ],
            [0.84, 0.54, 0.01, 1.  ]]], dtype=float32)
    """

    def __init__(self, base=10_000.0, **kwargs):
        super().__init__(**kwargs)
        self.base = check_base(base)

    def build(self, x_shape, positions_shape=None):
        self.built = True

    def _encode(self, positions, features):
        return sinusoidal_encoding(positions, features, self.base, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "base": self.base}


@keras.saving.register_keras_serializable(package="keras_attention")
class LearnedEmbedding(PositionEmbedding):
    """Adds a learned vector for each position.

        y_p = x_p + weight[p]

    Section 3.5 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), after
    [Gehring et al., 2017](https://arxiv.org/abs/1705.03122).

    Args:
        max_length: the number of positions, 0 to max_length - 1.
        initializer: of the weights `[max_length, D]`.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        x: `[B, T, D]`, or `[B, D]` for one step.
        positions: integers `[T]` or `[B, T]`, by default 0, ..., T - 1; for one step `[B]`, or
            one number for all.

    Returns:
        A tensor like `x`.

    Masking:
        The output carries the mask of `x`.

    Raises:
        ValueError: if `max_length` is not a positive integer, positions are no integers, shapes
            do not fit, or a position is out of range. In a TensorFlow graph, where positions are
            not known before it runs, an InvalidArgumentError then; where nothing can be raised,
            compiled by XLA or on other backends, the output of such a position is NaN.

    Example:

    >>> import numpy as np
    >>> LearnedEmbedding(max_length=10)(np.ones((1, 3, 4), "float32")).shape
    TensorShape([1, 3, 4])
    """

    def __init__(self, max_length, initializer="uniform", **kwargs):
        super().__init__(**kwargs)
        self.max_length = check_positive("max_length", max_length)
        self.initializer = keras.initializers.get(initializer)

    def build(self, x_shape, positions_shape=None):
        self.weight = self.add_weight(
            name="weight", shape=(self.max_length, x_shape[-1]), initializer=self.initializer
        )
        self.built = True

    def _first(self, steps, size, features):
        if steps is None:
            return super()._first(steps, size, features)
        if steps > self.max_length:
            raise ValueError(_out_of_range(steps - 1, self.max_length))
        return ops.convert_to_tensor(self.weight)[:steps]

    def _encode(self, positions, features):
        positions = _check_range(positions, self.max_length)
        inside = ops.clip(positions, 0, self.max_length - 1)
        # Reshaped, if to its own shape, the weight gets one gradient instead of one an entry of
        # `positions`: clipping by norm and Adam need the sum.
        weight = ops.reshape(self.weight, (self.max_length, features))
        encoding = ops.take(weight, inside, axis=0)
        nan = ops.convert_to_tensor(np.array(np.nan), encoding.dtype)
        return ops.where(ops.equal(inside, positions)[..., None], encoding, nan)

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }


def _out_of_range(position, max_length):
    return (
        f"`positions` must lie in 0 to {max_length - 1}: this layer has max_length = {max_length}. "
        f"Received position {position}"
        + (f", of a sequence of {position + 1} steps or more." if position > 0 else ".")
    )


def _check_range(positions, max_length):
    """`positions`, once they are known to be in range, where that can be known."""
    if keras.backend.backend() != "tensorflow":
        return positions
    import tensorflow as tf

    if tf.is_symbolic_tensor(positions):
        smallest, largest = tf.reduce_min(positions), tf.reduce_max(positions)
        message = f"`positions` must lie in 0 to {max_length - 1}: max_length = {max_length}."
        told = [message, "Received smallest, largest:", smallest, largest]
        inside = tf.logical_and(smallest >= 0, largest < max_length)
        empty = tf.equal(tf.size(positions), 0)
        with tf.control_dependencies([tf.debugging.Assert(inside | empty, told)]):
            return tf.identity(positions)
    array = positions.numpy()
    wrong = array[(array < 0) | (array >= max_length)]
    if wrong.size:
        raise ValueError(_out_of_range(wrong.flat[0], max_length))
    return positions
