"""What all attention layers share: the call contract, masks, memory, dropout, shapes."""

from numbers import Real

import keras
from keras import ops

from keras_attention import checks, masks
from keras_attention.attend import hide, weighted_sum
from keras_attention.layers.carry_mask import carry_mask
from keras_attention.layers.outputs import VaryingOutputs
from keras_attention.normalizers import masked_softmax
from keras_attention.scores import scaled_dot_score


class AttentionLayer(VaryingOutputs, keras.layers.Layer):
    """Base of the attention layers; a subclass says how to project and how to score.

        weights = softmax(mask(score(query, key) + attention_bias))
        context = weights value

    A subclass overrides `_build`, `_project_query`, `_project_key` and `_score` (scaled dot
    product), and, where the output is more than the weighted sum, `_project_value` and `_finish`.

    Args:
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        seed: integer seed of the dropout.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, trainable, ...).

    Call arguments:
        query: `[B, T, Dq]`, or `[B, Dq]` for one step.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, Dk]`; by default `value`.
        query_mask: `[B, T]`, True = a real query. Rows of masked queries get weights and output
            0. By default the Keras mask of `query`.
        value_mask, key_mask: `[B, S]`, True = may be attended; both are anded. By default the
            Keras masks of `value` and `key`. An explicit mask replaces the implicit one.
        attention_mask: `[B, T, S]` (with heads also `[B, N, T, S]`; for one step without the T
            axis), True = may attend; anded with the others. Axes of size 1 broadcast, except S.
        attention_bias: floating, shapes as for `attention_mask`; added to the scores in float32
            or float64. An entry of -inf counts as masked.
        memory: what `precompute` returned, instead of `value` and `key`.
        return_attention_scores: whether to return the attention weights as well.
        training: whether to apply dropout.
        use_causal_mask: whether query t may attend only to keys s <= t + (S - T).
        mask: the implicit mask when `query` is the only tensor; the same as `query_mask`.

    Returns:
        The context `[B, T, Dv]`, or `(context, weights)` with weights `[B, T, S]` after the
        softmax and before dropout. One step gives `[B, Dv]` and `[B, S]`. The context carries the
        query's mask, the weights carry none.

    Masking:
        A query that may attend to nothing gets weights 0, output 0 and no gradient. A value that
        nobody may attend to contributes nothing, even NaN.

    Raises:
        ValueError: if `dropout` lies outside [0, 1), a mask is floating, or a rank or size does
            not fit.

    Example: see `ScaledDotProductAttention`, the thinnest layer on this base.
    """

    _num_heads = None  # an integer where the scores have an axis of heads before `[T, S]`
    _sliding_window = None
    _features = None  # sizes of query, value and key that the weights fit

    def __init__(self, dropout=0.0, seed=None, **kwargs):
        if isinstance(dropout, bool) or not (isinstance(dropout, Real) and 0 <= dropout < 1):
            raise ValueError(f"`dropout` must lie in [0, 1). Received: {dropout!r}.")
        # Keras would cast `attention_bias` to half precision, where -1e9 is -inf. The layer
        # casts query, key and value itself.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self._dropout = dropout
        self.seed = seed
        self._seed_generator = keras.random.SeedGenerator(seed=seed) if dropout else None

    # What a subclass says.

    def _build(self, query_shape, value_shape, key_shape):
        """Makes and builds sub-layers and weights."""

    def _project_query(self, query):
        return query

    def _project_key(self, key):
        return key

    def _project_value(self, value):
        return value

    def _score(self, query, key):
        return scaled_dot_score(query, key)

    def _finish(self, context, query, mask, key_size):
        """From the weighted sum of projected values to the output `[B, ..., T, D]`."""
        return context

    def _output_features(self, query_shape, value_shape):
        return (value_shape[-1],)

    # Steps: one step `[B, D]` is a sequence of length 1. Layers with more axes override these.

    def _to_steps(self, x):
        return x[:, None] if len(x.shape) == 2 else x

    def _from_steps(self, output, query):
        return ops.squeeze(output, 1) if len(query.shape) == 2 else output

    def _weights_from_steps(self, weights, query, value):
        return ops.squeeze(weights, -2) if len(query.shape) == 2 else weights

    def _group_heads(self, values):
        """Gives a mask or bias that fits the scores the axes of grouped heads."""
        return values

    def _align(self, name, values, query):
        """An attention mask or bias of the caller with the axes of the scores."""
        checks.check_scores_rank(name, values, query.shape, self._num_heads is not None)
        return ops.expand_dims(values, -2) if len(query.shape) == 2 else values

    def _check_ranks(self, query, value, key):
        """Raises unless the numbers of axes fit; each argument is a shape, or None."""
        for name, shape, ranks in (
            ("query", query, (2, 3)),
            ("value", value, (3,)),
            ("key", key, (3,)),
        ):
            if shape is not None and len(shape) not in ranks:
                wanted = "[B, T, D] or [B, D]" if name == "query" else "[B, S, D]"
                raise ValueError(f"`{name}` must have shape {wanted}. Received shape {shape}.")

    def _memory_mask_shape(self, shape):
        """Shape of the mask that goes with projected values of this shape."""
        return tuple(shape[:-1])

    # What the layers share.

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
        self._check_ranks(*shapes.values())
        for name, shape in shapes.items():
            if shape[-1] is None:
                raise ValueError(f"The last axis of `{name}` must be known. Received: {shape}.")
        self._build(tuple(query_shape), tuple(value_shape), tuple(key_shape))
        if self.weights:
            self._features = {name: shape[-1] for name, shape in shapes.items()}
        self.built = True

    def precompute(self, value, key=None, value_mask=None):
        """Projects the memory once, for many calls `layer(query, memory=...)`.

        Args:
            value: `[B, S, Dv]`.
            key: `[B, S, Dk]`, by default `value`.
            value_mask: `[B, S]`, True = may be attended; by default the Keras mask of `value`.

        Returns:
            A tuple of tensors: projected keys, projected values and, if there is a mask, the
            mask. A plain value that can be repeated, gathered and carried through loops.

        Raises:
            ValueError: if the layer is not built yet, or the arguments are the symbolic tensors
                of a Functional model (there, call `layer(query, value)`).
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} must be built before `precompute`: call the layer once, "
                "or call its `build(query_shape, value_shape)`."
            )
        if any(isinstance(x, keras.KerasTensor) for x in (value, key, value_mask)):
            raise ValueError("`precompute` takes no symbolic tensors: call the layer on `value`.")
        if value_mask is None:
            value_mask = getattr(value, "_keras_mask", None)
        value, key = self._value_and_key(value, key)
        self._check_inputs(None, value, key)
        keys, values, mask = self._memory_steps(
            value, key, masks.as_mask(value_mask, "value_mask"), None
        )
        if mask is None:
            return self._project(keys, values, None)
        return *self._project(keys, values, mask[..., None, :]), mask

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        attention_bias=None,
        memory=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        mask=None,
    ):
        query = checks.check_float(query, "query", self.compute_dtype)
        query_mask = masks.as_mask(mask if query_mask is None else query_mask, "query_mask")
        value_mask = masks.as_mask(value_mask, "value_mask")
        key_mask = masks.as_mask(key_mask, "key_mask")
        if memory is None:
            if value is None:  # self-attention
                value, value_mask = query, query_mask if value_mask is None else value_mask
            value, key = self._value_and_key(value, key)
        elif value is not None or key is not None:
            raise ValueError("Pass either `memory` or `value` (and `key`), not both.")
        self._check_inputs(query, value, key)
        steps, query_mask, row_mask = self._query_steps(query, query_mask)
        if memory is None:
            keys, values, memory_mask = self._memory_steps(value, key, value_mask, key_mask)
        else:
            keys, values, memory_mask = self._mask_memory(memory, value_mask, key_mask)
            checks.check_sizes({"query": query.shape[:1], "memory": values.shape[:1]})

        attention_mask, bias = self._to_scores(attention_mask, attention_bias, query, steps, keys)
        sizes = (ops.shape(steps)[-2], ops.shape(keys)[-2])
        scores_mask = masks.layer_mask(
            sizes,
            query_mask=row_mask,
            value_mask=memory_mask,
            attention_mask=attention_mask,
            attention_bias=bias,
            use_causal_mask=use_causal_mask,
            window=self._sliding_window,
            heads=self._num_heads is not None,
        )
        hidden = steps if scores_mask is None else hide(steps, scores_mask, -1)
        steps = checks.fit_like(hidden, steps) if memory is None else hidden
        if memory is None:
            keys, values = self._project(keys, values, scores_mask)
        else:  # what the memory's own mask hides, `precompute` has zeroed
            others = (query_mask, value_mask, key_mask, attention_mask, bias, self._sliding_window)
            if use_causal_mask or any(x is not None for x in others):
                keys, values = (hide(x, self._group_heads(scores_mask), -2) for x in (keys, values))
        queries = self._project_query(steps)
        if memory is None:
            keys, values = (checks.fit_batch(x, queries) for x in (keys, values))
        result = weighted_sum(
            queries,
            keys,
            values,
            self._score,
            self._group_heads(scores_mask),
            self._group_heads(bias),
            masked_softmax,
            self._dropout if training else 0.0,
            self._seed_generator,
            return_attention_scores,
        )
        context, weights = result if return_attention_scores else (result, None)
        output = self._from_steps(self._finish(context, steps, scores_mask, sizes[1]), query)
        if query_mask is not None:
            output = carry_mask(output, mask=query_mask)
        if not return_attention_scores:
            return output
        return output, self._weights_from_steps(weights, query, value)

    def compute_output_spec(self, *args, **kwargs):
        # Infers from `call` itself, which also checks the arguments. (What `keras.layers.Layer`
        # derives from `compute_output_shape` does not know `return_attention_scores`.)
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        return (*query_shape[:-1], *self._output_features(query_shape, value_shape))

    def get_config(self):
        return {**super().get_config(), "dropout": self._dropout, "seed": self.seed}

    def _value_and_key(self, value, key):
        value = checks.check_float(value, "value", self.compute_dtype)
        key = value if key is None else checks.check_float(key, "key", self.compute_dtype)
        return value, key

    def _check_inputs(self, query, value, key):
        """Raises unless ranks, features and batch sizes fit; None for what is not given."""
        inputs = {"query": query, "value": value, "key": key}
        shapes = {name: None if x is None else tuple(x.shape) for name, x in inputs.items()}
        self._check_ranks(*shapes.values())
        checks.check_sizes(shapes, self._features)

    def _project(self, keys, values, mask):
        """Projected keys and values; what the mask hides from all queries is zeroed before."""
        same = keys is values
        if mask is not None:
            values = hide(values, mask, -2)
            keys = values if same else hide(keys, mask, -2)
        return self._project_key(keys), self._project_value(values)

    def _query_steps(self, query, mask):
        """The query as steps, its mask checked, and the mask of the steps."""
        mask = checks.fit_mask("query_mask", mask, query.shape[:-1], ops.shape(query)[:-1])
        return self._to_steps(query), mask, self._mask_to_steps(mask)

    def _memory_steps(self, value, key, value_mask, key_mask):
        """Keys, values and their mask `[B, ..., S]` (or None), not projected yet."""
        expected, sizes = value.shape[:-1], ops.shape(value)[:-1]
        mask = masks.combine_masks(
            checks.fit_mask("value_mask", value_mask, expected, sizes),
            checks.fit_mask("key_mask", key_mask, expected, sizes),
        )
        values = self._to_steps(value)
        keys = values if key is value else self._to_steps(key)
        return keys, values, self._mask_to_steps(mask)

    def _mask_memory(self, memory, value_mask, key_mask):
        """A precomputed memory with further masks anded to its own."""
        if not isinstance(memory, (tuple, list)) or len(memory) not in (2, 3):
            raise ValueError(
                "`memory` must be what `precompute` returned: a tuple of projected keys, projected "
                f"values and, with padding, a mask. Received: {type(memory).__name__}."
            )
        keys, values, *stored = memory
        expected = self._memory_mask_shape(values.shape)
        sizes = self._memory_mask_shape(ops.shape(values))
        mask = masks.combine_masks(
            checks.fit_mask("value_mask", value_mask, expected, sizes),
            checks.fit_mask("key_mask", key_mask, expected, sizes),
            *stored,
        )
        return keys, values, mask

    def _mask_to_steps(self, mask):
        return None if mask is None else self._to_steps(mask[..., None])[..., 0]

    def _to_scores(self, attention_mask, attention_bias, query, steps, keys):
        """The caller's mask and bias, checked and with the axes of the scores."""
        if attention_bias is not None:
            attention_bias = checks.check_bias(ops.convert_to_tensor(attention_bias))
        heads = () if self._num_heads is None else (self._num_heads,)
        shape = (*steps.shape[:-2], *heads, steps.shape[-2], keys.shape[-2])
        aligned = []
        for name, values in (
            ("attention_mask", masks.as_mask(attention_mask, "attention_mask")),
            ("attention_bias", attention_bias),
        ):
            if values is not None:
                values = self._align(name, values, query)
                values = checks.fit_to_scores(name, values, shape, ops.shape(keys)[-2])
                values = masks.align_to_rank(values, len(shape), name)
            aligned.append(values)
        return aligned
