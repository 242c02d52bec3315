"""From the states that an encoder ends in to the state that a decoder starts with."""

from collections.abc import Iterable

import keras
from keras import ops

from keras_attention.checks import as_tuple


@keras.saving.register_keras_serializable(package="keras_attention")
class Bridge(keras.layers.Layer):
    """Makes a decoder's initial state of whatever states an encoder ends in.

        state_i = activation(W_i [e_1; e_2; ...] + b_i)

    As s_0 = tanh(W_s h_1) in appendix A.2.2 of
    [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), for any number of states e_j of an
    encoder (two of an LSTM, twice as many of a bidirectional one) and of a decoder.

    Args:
        sizes: the sizes of the decoder's states, e.g. `[256, 256]` for an LSTM cell, one number
            for a GRU cell.
        activation: activation function; None for a linear map.
        use_bias: whether to add b_i.
        kernel_initializer: for the W_i.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        states: a tensor `[B, D]`, or a list (of lists) of such tensors.

    Returns:
        A list of tensors `[B, size]`.

    Masking:
        None: states have no steps. A recurrent encoder with masks ends in its last real step.

    Raises:
        ValueError: if `sizes` are no positive integers, or a state is not `[B, D]`.

    Example:

    >>> import numpy as np
    >>> forward, backward = np.ones((2, 3)), np.ones((2, 3))
    >>> [state.shape for state in Bridge([4, 5])([forward, backward])]
    [TensorShape([2, 4]), TensorShape([2, 5])]
    """

    def __init__(
        self,
        sizes,
        activation="tanh",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.sizes = as_tuple("sizes", sizes if isinstance(sizes, Iterable) else (sizes,))
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, states_shape):
        size = 0
        for shape in _shapes(states_shape):
            if len(shape) != 2 or shape[-1] is None:
                raise ValueError(f"`states` must have shape [B, D], D known. Received {shape}.")
            size += shape[-1]
        # All states in one product.
        self.dense = keras.layers.Dense(
            sum(self.sizes),
            activation=self.activation,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer,
            name="dense",
            dtype=self.dtype_policy,
        )
        self.dense.build((None, size))
        self.built = True

    def call(self, states):
        flat = [ops.cast(x, self.compute_dtype) for x in keras.tree.flatten(states)]
        merged = self.dense(ops.concatenate(flat, axis=-1) if len(flat) > 1 else flat[0])
        ends = [sum(self.sizes[:i]) for i in range(1, len(self.sizes))]
        return ops.split(merged, ends, axis=-1) if ends else [merged]

    def compute_output_shape(self, states_shape):
        batch = _shapes(states_shape)[0][0]
        return [(batch, size) for size in self.sizes]

    def get_config(self):
        own = {
            "sizes": list(self.sizes),
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
        return {**super().get_config(), **own}


def _shapes(structure):
    """The shapes in a nested list of shapes."""
    if not structure or not isinstance(structure[0], (tuple, list)):
        return [tuple(structure)]
    return [shape for part in structure for shape in _shapes(part)]
