"""What all attention layers share: the call contract, masks, memory, dropout, shapes."""

import keras
from keras import ops

from keras_attention import checks, masks
from keras_attention.attend import weighted_sum
from keras_attention.layers import alignment as alignments
from keras_attention.layers.alignment import Prepared
from keras_attention.layers.carry_mask import carry_mask
from keras_attention.layers.inputs import LayerInputs
from keras_attention.layers.memory import LayerMemory
from keras_attention.layers.outputs import VaryingOutputs
from keras_attention.normalizers import get_normalizer, serialize_normalizer
from keras_attention.scores import scaled_dot_score


class AttentionLayer(LayerInputs, LayerMemory, VaryingOutputs, keras.layers.Layer):
    """Base of the attention layers; a subclass says how to project and how to score.

        weights = normalizer(mask(score(query, key) + attention_bias))
        context = weights value

    A subclass overrides `_build`, `_project_query`, `_project_key` and `_score` (scaled dot
    product), and, where the output is more than the weighted sum, `_project_value` and `_finish`.

    Args:
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        seed: integer seed of the dropout.
        normalizer: what turns scores into weights: "softmax", "sparsemax", "entmax15",
            `Softmax(temperature)`, `MonotonicAlignment()`, or a function `(scores, mask) ->
            weights` registered with Keras.
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
        alignment: what `initial_alignment` or the last call returned, to go on step by step;
            without it the call starts from the beginning.
        positions: `[T]` or `[B, T]` integers, where the queries stand (in self-attention the keys
            too): what causal masks and windows, and pieces that know positions, go by. By default
            keys count from 0, and the last query stands at the last key.
        key_positions: the same of the keys, `[S]` or `[B, S]`.
        cache: of a layer that keeps one, see `MultiHeadAttention`.
        return_attention_scores: whether to return the attention weights as well.
        training: whether to apply dropout.
        use_causal_mask: whether query t may attend only to keys s <= t + (S - T).
        mask: the implicit mask when `query` is the only tensor; the same as `query_mask`.

    Returns:
        The context `[B, T, Dv]`, or `(context[, weights][, alignment][, cache])`: weights
        `[B, T, S]` after the normaliser and before dropout if asked for, and the new alignment and
        cache if one was given.
        One step gives `[B, Dv]` and `[B, S]`. The context carries the query's mask, the weights
        carry none.

    Masking:
        A query that may attend to nothing gets weights 0, output 0 and no gradient. A value that
        nobody may attend to contributes nothing, even NaN.

    Raises:
        ValueError: if `dropout` lies outside [0, 1), a mask is floating, or a rank or size does
            not fit.

    Example: see `ScaledDotProductAttention`, the thinnest layer on this base.
    """

    _sliding_window = None
    # Whether `_attend` looks at a window of the memory for each query and applies the query mask
    # and the causal mask itself: no mask `[B, T, S]` is made then.
    _windowed = False

    def __init__(self, dropout=0.0, seed=None, normalizer="softmax", **kwargs):
        checks.check_fraction("dropout", dropout)
        # Keras would cast `attention_bias` to half precision, where -1e9 is -inf. The layer
        # casts query, key and value itself.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self._dropout = dropout
        self.seed = seed
        self._seed_generator = keras.random.SeedGenerator(seed=seed) if dropout else None
        self.normalizer = get_normalizer(normalizer)

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

    def _score_after(self, alignment, prepared):
        """The score function `(query, key) -> scores` of `Prepared` inputs after this alignment."""
        return self._score

    def _product(self, queries):
        """`DotProduct`, if that is what `_score_after` gives for queries `[..., T, D]`; or None."""

    _uses_places = False  # whether positions are needed where no mask needs them

    def _place(self, x, positions):
        """Projected queries or keys `[B, ..., T, D]` that know their positions."""
        return x

    def _with_own_bias(self, pairs, places):
        """`Pairs` with what the layer itself adds to the scores."""
        return pairs

    def _pair_mask(self, batch, places, rank):
        """A mask of the layer's own for each pair of query and key, or None."""

    def _carries(self):
        """Names of what is carried between steps, see `alignment.start`."""
        return tuple(getattr(self.normalizer, "carries", ()))

    def _finish(self, context, query, attending, key_size):
        """From the weighted sum of projected values to the output `[B, ..., T, D]`.

        `attending` is `Pairs.queries()`.
        """
        return context

    def _output_features(self, query_shape, value_shape):
        return (value_shape[-1],)

    # What the layers share.

    def build(self, query_shape, value_shape=None, key_shape=None):
        if value_shape is None:  # self-attention, of one step with a cache
            value_shape = (
                query_shape if len(query_shape) != 2 else (query_shape[0], 1, query_shape[1])
            )
        key_shape = value_shape if key_shape is None else key_shape
        shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
        self._check_ranks(*shapes.values())
        for name, shape in shapes.items():
            if shape[-1] is None:
                raise ValueError(f"The last axis of `{name}` must be known. Received: {shape}.")
        self._build(tuple(query_shape), tuple(value_shape), tuple(key_shape))
        if isinstance(self.normalizer, keras.layers.Layer) and not self.normalizer.built:
            self.normalizer.build((None, *self._heads_shape(), None, None))
        if self.weights:
            self._features = {name: shape[-1] for name, shape in shapes.items()}
        self.built = True

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
        alignment=None,
        positions=None,
        key_positions=None,
        cache=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        mask=None,
    ):
        query = checks.check_float(query, "query", self.compute_dtype)
        query_mask = masks.as_mask(mask if query_mask is None else query_mask, "query_mask")
        value_mask = masks.as_mask(value_mask, "value_mask")
        key_mask = masks.as_mask(key_mask, "key_mask")
        self._check_source(value, key, memory, cache, value_mask, key_mask, key_positions)
        if all(x is None for x in (value, key, memory, cache)):  # self-attention
            value, value_mask = query, query_mask if value_mask is None else value_mask
            key_positions = positions if key_positions is None else key_positions
        if cache is None and memory is None:
            value, key = self._value_and_key(value, key)
        self._check_inputs(query, value, key)
        steps, query_mask, row_mask = self._query_steps(query, query_mask)
        positions = self._query_positions(positions, query, steps)
        if cache is not None:
            source = self._append(cache, steps, row_mask, positions)
        else:
            source = self._source(
                value, key, value_mask, key_mask, memory, steps, positions, key_positions
            )

        attention_mask, bias = self._to_scores(
            attention_mask, attention_bias, query, steps, source.keys
        )
        attention_mask = self._with_pair_mask(attention_mask, steps, source.places)
        pairs = self._pairs(steps, row_mask, source, attention_mask, bias, use_causal_mask)
        attending = pairs.queries()
        steps = self._hide_steps(steps, row_mask, source, attending)
        queries = self._place(self._project_query(steps), source.places and source.places.queries)
        narrowed = (attention_mask, bias)  # what a memory or cache has not hidden itself
        if cache is None:
            narrowed += (query_mask, value_mask, key_mask, self._sliding_window)
        hidden_more = (cache is None and use_causal_mask) or any(x is not None for x in narrowed)
        keys, values = self._keys_and_values(source, queries, pairs, hidden_more)
        prepared = Prepared(
            queries,
            keys,
            values,
            self._with_own_bias(pairs, source.places).map(self._group_heads),
            row_mask,
            source.mask,
            self._dropout if training else 0.0,
            return_attention_scores,
            steps,
            use_causal_mask and self._windowed,
            source.places,
        )
        before = self._alignment_before(alignment, prepared)
        context, weights, after = self._attend(prepared, before, training)
        output = self._finish(context, steps, attending, ops.shape(source.keys)[-2])
        output = self._from_steps(output, query)
        if query_mask is not None:
            output = carry_mask(output, mask=query_mask)
        results = [output]
        if return_attention_scores:
            results.append(self._weights_from_steps(weights, query, value))
        after = None if alignment is None else after
        results += [x for x in (after, source.cache) if x is not None]
        return output if len(results) == 1 else tuple(results)

    def _attend(self, prepared, alignment, training):
        """Context `[B, ..., T, D]`, weights `[B, ..., T, S]` (None if not wanted), alignment."""
        if alignment:
            return alignments.attend_in_steps(
                lambda step, past: self._weighted_sum(step, past, True, training),
                prepared,
                alignment,
                self.non_trainable_variables,
            )
        wanted = prepared.return_attention_scores
        result = self._weighted_sum(prepared, alignment, wanted, training)
        return (*result, alignment) if wanted else (result, None, alignment)

    def _weighted_sum(self, prepared, alignment, return_attention_scores, training):
        return weighted_sum(
            prepared.queries,
            prepared.keys,
            prepared.values,
            self._score_after(alignment, prepared),
            prepared.pairs,
            self._normalizer_after(alignment, training),
            prepared.dropout,
            self._seed_generator,
            return_attention_scores,
            self._product(prepared.queries),
        )

    def _normalizer_after(self, alignment, training):
        """The normaliser of a step as a function of scores and mask."""
        if not getattr(self.normalizer, "carries", ()):
            return self.normalizer
        previous = alignment["previous"][:, None]
        return lambda scores, mask: self.normalizer(
            scores, mask=mask, previous=previous, training=training
        )

    def compute_output_spec(self, *args, **kwargs):
        # Infers from `call` itself, which also checks the arguments. (What `keras.layers.Layer`
        # derives from `compute_output_shape` does not know `return_attention_scores`.)
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        return (*query_shape[:-1], *self._output_features(query_shape, value_shape))

    def get_config(self):
        own = {
            "dropout": self._dropout,
            "seed": self.seed,
            "normalizer": serialize_normalizer(self.normalizer),
        }
        return {**super().get_config(), **own}
