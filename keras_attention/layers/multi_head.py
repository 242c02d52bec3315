"""Multi-head attention: self, cross, causal, windowed, grouped heads, over one or more axes."""

import keras
from keras import ops

from keras_attention.checks import as_tuple, check_positive
from keras_attention.layers import axes, heads
from keras_attention.layers.base import AttentionLayer
from keras_attention.layers.projections import ProjectionSettings


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadAttention(AttentionLayer):
    """Multi-head attention, section 3.2.2 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W_O
        head_n = softmax((Q W_Q,n) (K W_K,n)^T / sqrt(key_dim)) (V W_V,n)

    Takes the constructor arguments of `keras.layers.MultiHeadAttention`, has the same weights in
    the same order (query, key, gate if any, value, attention_output), and gives the same
    numbers wherever that layer is right. `num_key_value_heads` groups heads as in
    [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245): query head n reads key and value
    head n // (N / num_key_value_heads); 1 is multi-query attention.

    Args:
        num_heads: N, the number of query heads.
        key_dim: size of each head's query and key.
        value_dim: size of each head's value; by default `key_dim`.
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        use_bias: whether the projections have biases.
        output_shape: features of the output, an integer or a tuple; by default the query's.
        attention_axes: the axes to attend over, for inputs `[B, ..., D]`; by default all but the
            first and the last. Several axes are taken as one, in row-major order, also for
            `use_causal_mask` and `sliding_window`.
        sliding_window: only keys less than this many steps away, on either side, are seen.
        flash_attention: None or False. The way of computing is chosen by the layer.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        activity_regularizer, kernel_constraint, bias_constraint: for all projections. A seeded
            initializer gets a seed of its own for each projection.
        use_gate: whether the heads are multiplied by sigmoid(Q W_G) before W_O.
        seed: integer seed of the dropout.
        num_key_value_heads: number of key and value heads, a divisor of `num_heads`; by default
            `num_heads`.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        query: `[B, T, Dq]`, `[B, Dq]` for one step, or `[B, ..., Dq]`.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, Dk]`; by default `value`.
        attention_mask, attention_bias: `[B, T, S]` or `[B, N, T, S]`; over several axes
            `[B, T axes, S axes]`, optionally with the other axes and N after B.
        query_mask, value_mask, key_mask, memory, return_attention_scores, use_causal_mask: see
            the base class, `AttentionLayer`. With more axes, masks have the shape of their
            tensor without the features.

    Returns:
        The output `[B, T, Dq]` (or `output_shape`), or `(output, weights)` with weights
        `[B, N, T, S]`; for one step `[B, Dq]` and `[B, N, S]`.

    Masking:
        Boolean, True = may attend. A query that may attend to nothing, in any head, gets output
        0 (not the output bias) and weights 0. The output carries the query's Keras mask; the
        masks of the inputs stay where they are.

    Raises:
        ValueError: if a size is not a positive integer, `num_key_value_heads` does not divide
            `num_heads`, `flash_attention` is True, `attention_axes` do not exist, a mask is
            floating or of a wrong shape, or `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> layer = MultiHeadAttention(num_heads=2, key_dim=4)
    >>> query, memory = np.ones((1, 5, 8)), np.ones((1, 7, 6))
    >>> output, weights = layer(query, memory, return_attention_scores=True)
    >>> output.shape, weights.shape
    (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 7]))
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        num_key_value_heads=None,
        **kwargs,
    ):
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        if self._carries():
            raise ValueError(
                "`normalizer` must not depend on earlier steps: what goes from step to step has "
                f"no heads. Received: {type(self.normalizer).__name__}."
            )
        self._num_heads = check_positive("num_heads", num_heads)
        self._key_dim = check_positive("key_dim", key_dim)
        self._value_dim = check_positive("value_dim", key_dim if value_dim is None else value_dim)
        self._num_key_value_heads = check_positive(
            "num_key_value_heads", num_heads if num_key_value_heads is None else num_key_value_heads
        )
        if num_heads % self._num_key_value_heads:
            raise ValueError(
                f"`num_key_value_heads` must divide `num_heads` = {num_heads}. "
                f"Received: {num_key_value_heads}."
            )
        if flash_attention:
            raise ValueError(
                "`flash_attention` must be None or False: this layer chooses its way of "
                "computing from the shapes. Received: flash_attention=True."
            )
        if sliding_window is not None:
            check_positive("sliding_window", sliding_window)
        self._sliding_window = sliding_window
        self._use_bias = use_bias
        self._use_gate = use_gate
        self._output_shape = as_tuple("output_shape", output_shape)
        self._attention_axes = as_tuple("attention_axes", attention_axes, positive=False)
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self._settings = ProjectionSettings(
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            kernel_constraint,
            bias_constraint,
        )

    # Sub-layers carry the names under which Keras's layer saves its own: its weight files load.

    def _build(self, query_shape, value_shape, key_shape):
        query_shape, value_shape, key_shape = (
            self._steps_shape(shape) for shape in (query_shape, value_shape, key_shape)
        )
        query_heads, kv_heads = self._num_heads, self._num_key_value_heads
        self.query_dense = self._to_heads(0, "query", query_shape, query_heads, self._key_dim)
        self.key_dense = self._to_heads(1, "key", key_shape, kv_heads, self._key_dim)
        if self._use_gate:
            self._gate_dense = self._to_heads(
                4, "gate", query_shape, query_heads, self._value_dim, activation="sigmoid"
            )
        self.value_dense = self._to_heads(2, "value", value_shape, kv_heads, self._value_dim)
        features = self._output_features(query_shape, value_shape)
        inner = "xyz"[: len(features)]
        batch = "abcdefgh"[: len(query_shape) - 1]
        self.output_dense = self._einsum_dense(
            3,
            "attention_output",
            f"{batch}nv,nv{inner}->{batch}{inner}",
            (*query_shape[1:-1], *features),
            inner,
        )
        self.output_dense.build((*query_shape[:-1], query_heads, self._value_dim))

    def _to_heads(self, index, name, shape, count, size, **kwargs):
        """A projection `[B, ..., D]` -> `[B, ..., count, size]`."""
        batch = "abcdefgh"[: len(shape) - 1]
        dense = self._einsum_dense(
            index,
            name,
            f"{batch}i,inv->{batch}nv",
            (*shape[1:-1], count, size),
            "nv",
            **kwargs,
        )
        dense.build(shape)
        return dense

    def _einsum_dense(self, index, name, equation, output_shape, bias_axes, **kwargs):
        return keras.layers.EinsumDense(
            equation,
            # Sizes of steps vary from call to call.
            output_shape=(*(None,) * (len(output_shape) - len(bias_axes)),)
            + tuple(output_shape[-len(bias_axes) :]),
            bias_axes=bias_axes if self._use_bias else None,
            activity_regularizer=self._activity_regularizer,
            name=name,
            dtype=self.dtype_policy,
            **self._settings.arguments(index),
            **kwargs,
        )

    def _check_ranks(self, query, value, key):
        given = [len(shape) for shape in (value, key, query) if shape is not None]
        if query is not None and len(query) == 2:  # one step over keys [B, S, D]
            given[-1] = 3
        if min(given) < 3 or len(set(given)) > 1:
            raise ValueError(
                "`query`, `value` and `key` must have the same number of axes, at least 3 (a "
                "query [B, D] is one step). Received shapes query "
                f"{query}, value {value}, key {key}."
            )
        rank = given[0]
        attended = self._axes(rank)
        for axis in range(1, rank - 1):
            shapes = {"query": query, "value": value, "key": key}
            sizes = {shape[axis] for shape in shapes.values() if shape is not None}
            if rank > 3 and axis not in attended and len(sizes - {None}) > 1:
                raise ValueError(
                    f"`query`, `value` and `key` must be equal on axis {axis}, which is not one "
                    f"of the attention axes {attended}. Received shapes query {query}, value "
                    f"{value}, key {key}."
                )

    def _project_query(self, query):
        return self._group_heads(ops.swapaxes(self.query_dense(query), -2, -3))

    def _project_key(self, key):
        return self._key_value_heads(self.key_dense(key))

    def _project_value(self, value):
        return self._key_value_heads(self.value_dense(value))

    def _key_value_heads(self, projected):
        projected = ops.swapaxes(projected, -2, -3)
        return ops.expand_dims(projected, -3) if self._grouped else projected

    def _finish(self, context, query, mask, key_size):
        context = ops.swapaxes(self._ungroup(context), -2, -3)
        if self._use_gate:
            context = context * self._gate_dense(query)
        output = self.output_dense(context)
        if mask is None:
            if isinstance(key_size, int) and key_size:
                return output
            mask = ops.ones((1, key_size), "bool")  # there may be no keys
        # Rows that may attend to nothing are 0, not the output bias.
        rows = ops.any(mask, axis=-1 if len(mask.shape) == 2 else (-1, -3))
        features = len(output.shape) - len(context.shape) + 2
        rows = ops.reshape(rows, (*ops.shape(rows), *(1,) * features))
        return ops.where(rows, output, ops.zeros((), output.dtype))

    # Grouped heads: `[..., N, T, S]` <-> `[..., N_kv, N / N_kv, T, S]`.

    @property
    def _grouped(self):
        return self._num_key_value_heads != self._num_heads

    def _group_heads(self, values):
        if values is None or not self._grouped or len(values.shape) == 2:
            return values
        return heads.split_groups(values, self._num_key_value_heads)

    def _ungroup(self, x):
        return heads.merge_groups(x) if self._grouped else x

    # Axes.

    def _axes(self, rank):
        """The attention axes of inputs of this rank, from 1 to rank - 2, ascending."""
        chosen = self._attention_axes or tuple(range(1, rank - 1))
        resolved = tuple(sorted(axis + rank if axis < 0 else axis for axis in chosen))
        if len(set(resolved)) < len(resolved) or not all(0 < a < rank - 1 for a in resolved):
            raise ValueError(
                f"`attention_axes` must be different axes between the first and the last of "
                f"inputs with {rank} axes. Received: {chosen}."
            )
        return resolved

    def _steps_shape(self, shape):
        if len(shape) == 2:
            return (shape[0], 1, shape[1])
        attended = self._axes(len(shape))
        return (*(shape[a] for a in range(len(shape) - 1) if a not in attended), None, shape[-1])

    def _to_steps(self, x):
        if len(x.shape) <= 3:
            return super()._to_steps(x)
        return axes.merge_steps(x, self._axes(len(x.shape)))

    def _from_steps(self, output, query):
        if len(query.shape) <= 3:
            return super()._from_steps(output, query)
        return axes.split_steps(output, query, self._axes(len(query.shape)))

    def _align(self, name, values, query):
        rank = len(query.shape)
        if rank <= 3:
            return super()._align(name, values, query)
        return axes.merge_mask(name, values, rank, self._axes(rank))

    def _weights_from_steps(self, weights, query, value):
        weights = self._ungroup(weights)
        if len(query.shape) <= 3:
            return super()._weights_from_steps(weights, query, value)
        return axes.split_weights(weights, query, value, self._axes(len(query.shape)))

    def precompute(self, value, key=None, value_mask=None):
        rank = len(ops.shape(value))
        if rank > 3 and len(self._axes(rank)) > 1:
            raise ValueError(
                "`precompute` keeps one axis of steps; attention over several axes takes `value` "
                f"itself. Received a value with {rank} axes and attention_axes "
                f"{self._axes(rank)}."
            )
        return super().precompute(value, key, value_mask)

    def _memory_mask_shape(self, shape):
        rank_of_heads = 4 if self._grouped else 3  # (N_kv, 1, S, H) or (N, S, H)
        return (*shape[: len(shape) - rank_of_heads], shape[-2])

    def _output_features(self, query_shape, value_shape):
        return self._output_shape or (query_shape[-1],)

    def get_config(self):
        regularizer = self._activity_regularizer
        own = {
            "num_heads": self._num_heads,
            "key_dim": self._key_dim,
            "value_dim": self._value_dim,
            "use_bias": self._use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self._attention_axes,
            "sliding_window": self._sliding_window,
            "flash_attention": None,
            "activity_regularizer": keras.regularizers.serialize(regularizer)
            if regularizer
            else None,
            "use_gate": self._use_gate,
            "num_key_value_heads": self._num_key_value_heads,
            **self._settings.config(),
        }
        return {**super().get_config(), **own}
