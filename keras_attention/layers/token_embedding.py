"""Token embeddings that also make logits."""

import keras
from keras import ops

from keras_attention.checks import check_integers, check_positive


@keras.saving.register_keras_serializable(package="keras_attention")
class TokenEmbedding(keras.layers.Layer):
    """Embeddings scaled by sqrt(D), and logits from the same weights.

        embedding(y) = sqrt(D) E_y
        logits(h) = E h

    Section 3.4 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762): one matrix E for the
    embeddings of both sides and the logits. E starts with standard deviation 1 / sqrt(D), so that
    both have about unit size.

    Args:
        size: V, the number of ids.
        units: D.
        output_size: the number of ids that have a logit, the first of them; by default all. So
            tokens of the source alone cost nothing in the output.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: integers `[...]`; with `reverse` floating `[..., D]`.
        reverse: whether to make logits.

    Returns:
        Embeddings `[..., D]`, with a mask that is False where the id is 0; or logits
        `[..., output_size]`.

    Raises:
        ValueError: if a size is not a positive integer, `output_size` is above `size`, or inputs
            are no integers, or, reversed, not of D features.

    Example:

    >>> import numpy as np
    >>> embedding = TokenEmbedding(10, 4, output_size=7)
    >>> x = embedding(np.array([[3, 0]]))
    >>> x.shape, embedding(x, reverse=True).shape
    (TensorShape([1, 2, 4]), TensorShape([1, 2, 7]))
    """

    def __init__(self, size, units, output_size=None, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.size, self.units = check_positive("size", size), check_positive("units", units)
        self.output_size = check_positive(
            "output_size", size if output_size is None else output_size
        )
        if self.output_size > size:
            raise ValueError(
                f"`output_size` must be at most `size`, {size}. Received: {output_size}."
            )

    def build(self, inputs_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.size, self.units),
            initializer=keras.initializers.RandomNormal(stddev=self.units**-0.5),
        )
        self.built = True

    def call(self, inputs, reverse=False):
        table = ops.convert_to_tensor(self.embeddings)
        inputs = ops.convert_to_tensor(inputs)
        if reverse:
            if inputs.shape[-1] != self.units:
                raise ValueError(
                    f"`inputs` must have {self.units} features to make logits of. Received shape "
                    f"{tuple(inputs.shape)}."
                )
            table = ops.transpose(table[: self.output_size])
            return ops.matmul(
                ops.cast(inputs, self.compute_dtype), ops.cast(table, self.compute_dtype)
            )
        check_integers("inputs", inputs)
        rows = ops.cast(ops.take(table, ops.cast(inputs, "int32"), axis=0), self.compute_dtype)
        return rows * ops.convert_to_tensor(self.units**0.5, rows.dtype)

    def compute_mask(self, inputs, previous_mask=None):
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        return previous_mask if "float" in dtype else ops.not_equal(inputs, 0)

    def compute_output_spec(self, inputs, reverse=False):
        # By a trace of `call`, so that inputs that do not fit are refused here.
        return keras.Operation.compute_output_spec(self, inputs, reverse=reverse)

    def get_config(self):
        own = {"size": self.size, "units": self.units, "output_size": self.output_size}
        return {**super().get_config(), **own}
