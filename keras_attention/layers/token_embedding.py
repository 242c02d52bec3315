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
    both have about unit size. `quantize("int8")` keeps E in 8 bits, with a scale for each id, as
    Keras does with its own layers.

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
        if self.quantization_mode:
            self.quantized_build(inputs_shape, self.quantization_mode)
        else:
            self.embeddings = self.add_weight(
                name="embeddings",
                shape=(self.size, self.units),
                initializer=keras.initializers.RandomNormal(stddev=self.units**-0.5),
            )
        self.built = True

    def call(self, inputs, reverse=False):
        inputs = self._checked(inputs, reverse)
        table = ops.convert_to_tensor(self.embeddings)
        if reverse:
            table = ops.cast(ops.transpose(table[: self.output_size]), self.compute_dtype)
            return ops.matmul(ops.cast(inputs, self.compute_dtype), table)
        return self._scaled(ops.cast(ops.take(table, inputs, axis=0), self.compute_dtype))

    def _checked(self, inputs, reverse):
        inputs = ops.convert_to_tensor(inputs)
        if not reverse:
            check_integers("inputs", inputs)
            return ops.cast(inputs, "int32")
        if inputs.shape[-1] != self.units:
            raise ValueError(
                f"`inputs` must have {self.units} features to make logits of. Received shape "
                f"{tuple(inputs.shape)}."
            )
        return inputs

    def _scaled(self, rows):
        return rows * ops.convert_to_tensor(self.units**0.5, rows.dtype)

    # In 8 bits: E_y is near embeddings[y] / embeddings_scale[y].

    def quantize(self, mode=None, type_check=True, config=None):
        """Keeps E in 8 bits; see `keras.layers.Layer.quantize`.

        Args:
            mode: "int8".
            type_check: without effect.
            config: a `keras.quantizers.QuantizationConfig`; one without an `activation_quantizer`
                leaves the inputs `[..., D]` of logits as they are.

        Raises:
            NotImplementedError: for another mode (`Model.quantize` leaves the layer out then).
        """
        _check_mode(mode)
        quantizer = (config and config.weight_quantizer) or keras.quantizers.AbsMaxQuantizer(-1)
        table, scale = quantizer(self.embeddings, to_numpy=True)
        del self.embeddings
        self.quantized_build(None, mode, config)
        self.embeddings.assign(table)
        self.embeddings_scale.assign(scale[:, 0])
        self.dtype_policy = keras.dtype_policies.get(f"{mode}_from_{self.dtype_policy.name}")

    def quantized_build(self, input_shape, mode, config=None):
        _check_mode(mode)
        self._is_quantized = True
        absolute = keras.quantizers.AbsMaxQuantizer(-1)
        self.inputs_quantizer = absolute if config is None else config.activation_quantizer
        for name, shape, dtype in (
            ("embeddings", (self.size, self.units), "int8"),
            ("embeddings_scale", (self.size,), None),
        ):
            weight = self.add_weight(name=name, shape=shape, dtype=dtype, trainable=False)
            setattr(self, name, weight)

    def quantized_call(self, inputs, reverse=False):
        inputs = self._checked(inputs, reverse)
        table, scale = (ops.convert_to_tensor(x) for x in (self.embeddings, self.embeddings_scale))
        if not reverse:
            rows = ops.cast(ops.take(table, inputs, axis=0), self.compute_dtype)
            scale = ops.expand_dims(ops.take(scale, inputs, axis=0), -1)
            return self._scaled(rows / ops.cast(scale, rows.dtype))
        table, scale = ops.transpose(table[: self.output_size]), scale[: self.output_size]
        inputs = ops.cast(inputs, self.compute_dtype)
        if self.inputs_quantizer is None:
            logits = ops.matmul(inputs, ops.cast(table, self.compute_dtype))
        else:
            inputs, inputs_scale = self.inputs_quantizer(inputs)
            logits = ops.cast(ops.matmul(inputs, table), self.compute_dtype)
            scale = scale * ops.cast(inputs_scale, scale.dtype)
        return logits / ops.cast(scale, logits.dtype)

    def compute_mask(self, inputs, previous_mask=None):
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        return previous_mask if "float" in dtype else ops.not_equal(inputs, 0)

    def compute_output_spec(self, inputs, reverse=False):
        # By a trace of `call`, so that inputs that do not fit are refused here.
        return keras.Operation.compute_output_spec(self, inputs, reverse=reverse)

    def get_config(self):
        own = {"size": self.size, "units": self.units, "output_size": self.output_size}
        return {**super().get_config(), **own}


def _check_mode(mode):
    if mode != "int8":
        raise NotImplementedError(f"TokenEmbedding can be quantised to int8 only, not {mode!r}.")
