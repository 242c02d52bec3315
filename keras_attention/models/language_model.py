"""A causal language model: trained on the next token, continues prompts."""

import keras
import numpy as np
from keras import ops

from keras_attention.checks import check_flag, check_positive
from keras_attention.decoders.transformer import TransformerDecoder
from keras_attention.layers.token_embedding import TokenEmbedding
from keras_attention.models.configured import ConfiguredModel
from keras_attention.models.inputs import as_ids, as_texts
from keras_attention.models.parts import (
    StackOptions,
    check_kwargs,
    tokenizers,
    vocabulary_size,
)
from keras_attention.models.searches import (
    GROW_CACHE,
    CompiledSearches,
    choose_search,
)
from keras_attention.search import beam_search
from keras_attention.text import END, PAD, START
from keras_attention.text.inputs import to_texts

PROMPTS_AT_ONCE = 64
STRETCH = 32  # prompts are padded to a multiple, so that few graphs are made


def causal_lm(tokenizer, **options):
    """Builds a `CausalLM`: ids `[B, T]` to logits `[B, T, V]` of the next ids.

    Args:
        tokenizer: a tokenizer, or the number of ids.
        **options: as of `CausalLM`.

    Returns:
        The model, for `compile`, `fit`, `save` and `generate`.

    Raises:
        ValueError: as `CausalLM`.

    Example:

    >>> causal_lm(20, layers=1, units=8, num_heads=2, position="alibi").output_shape
    (None, None, 20)
    """
    return CausalLM(tokenizer, **options)


@keras.saving.register_keras_serializable(package="keras_attention")
class CausalLM(ConfiguredModel):
    """The decoder of a transformer by itself, as a language model.

        p(y_1 ... y_T) = prod_t p(y_t | y_<t),   logits_t = E decoder(sqrt(D) E y_<t + positions)

    As in [Radford et al., 2018](https://openai.com/research/language-unsupervised), section 3.1,
    with the parts of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762). A Functional model
    with the input "ids".

    Args:
        tokenizer: a tokenizer, kept in the saved model; or the number of ids.
        layers, units, num_heads, feedforward_size, position, max_length, norm_first,
        normalization, activation, dropout, attention_dropout, attention_options: as of
            `Transformer`.
        tied_embeddings: whether the logits use the embedding.
        **kwargs: `name` and `trainable` of `keras.Model`.

    Call arguments:
        inputs: integers `[B, T]`, 0 is padding.

    Returns:
        Logits `[B, T, V]`: those at t are about the token after t.

    Masking:
        Id 0 is not attended to.

    Raises:
        ValueError: for an unknown name, a number out of range, or options that do not go together.

    Example:

    >>> from keras_attention.text import CharacterTokenizer
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> model = CausalLM(letters, layers=1, units=8, num_heads=2)
    >>> [text[:2] for text in model.generate(["ab", "ca"], max_length=5)]
    ['ab', 'ca']
    """

    _objects = ("tokenizer",)

    def __init__(
        self,
        tokenizer,
        layers=4,
        units=128,
        num_heads=4,
        feedforward_size=None,
        position="rotary",
        max_length=None,
        norm_first=True,
        normalization="layer",
        activation="gelu",
        dropout=0.1,
        attention_dropout=0.0,
        tied_embeddings=True,
        attention_options=None,
        **kwargs,
    ):
        config = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        check_kwargs("CausalLM", kwargs)
        check_positive("layers", layers)
        check_flag("tied_embeddings", tied_embeddings)
        stack = StackOptions(
            units,
            num_heads,
            feedforward_size,
            position,
            max_length,
            norm_first,
            normalization,
            activation,
            dropout,
            attention_dropout,
            attention_options,
        )
        size = vocabulary_size("tokenizer", tokenizer)
        ids = keras.Input((None,), dtype="int32", name="ids")
        embed = TokenEmbedding(size, units, name="embedding")
        decoder = TransformerDecoder(
            [stack.decoder_block(f"block_{i}", False) for i in range(1, layers + 1)],
            stack.embed_positions("positions"),
            dropout,
            name="decoder",
        )
        output = None if tied_embeddings else keras.layers.Dense(size, name="logits")
        hidden = decoder(embed(ids))
        logits = embed(hidden, reverse=True) if output is None else output(hidden)
        super().__init__(ids, logits, **kwargs)
        self._arguments, self._searches = config, CompiledSearches(self)
        (self.tokenizer,) = tokenizers(tokenizer)
        self.embed, self.decoder, self._output = embed, decoder, output

    def start(self, ids, max_length=None):
        """Reads prompts: ids `[B, T]` -> `(tokens, state)`, both for `step`.

        Args:
            ids: integers, padded with 0 on the left, at least one real token in each row.
            max_length: the most steps that follow; None for a cache that grows.

        Returns:
            The last tokens `[B]`, and the state after the tokens before them.
        """
        ids = ops.convert_to_tensor(ids)
        steps = ids.shape[1]
        slots = None if max_length is None else ops.shape(ids)[1] - 1 + max_length
        state = self.decoder.start_state(max_length=slots, batch_size=ops.shape(ids)[0])
        if steps is None or steps > 1:
            before = ids[:, :-1]
            mask = ops.not_equal(before, PAD)
            _, state = self.decoder.step(self.embed(before), state, mask=mask)
        return ids[:, -1], state

    def step(self, tokens, state, **origins):
        """One step: tokens `[B]` -> `(logits [B, V], state)`; of K beams `[B, K]`, `[B, K, V]`.

        The latter with `origins` `[B, K, L]`, see `beam_search`.
        """
        hidden, state = self.decoder.step(self.embed(tokens), state, **origins)
        hidden = self.embed(hidden, reverse=True) if self._output is None else self._output(hidden)
        return hidden, state

    def search(self, ids, max_length, beam_width=1, grow_cache=False, **options):
        """Searches for what follows each prompt.

        Args:
            ids: integers `[B, T]`, padded with 0 on the left.
            max_length: L, the most tokens that follow.
            beam_width, grow_cache, **options: as of `Translator.search`.

        Returns:
            A `SearchResult` or `BeamResult` of what follows.

        Raises:
            ValueError: if the prompts are no table of integers; an option is unknown, of a wrong
                value or of another search; or if prompt and output have more steps than there are
                learned positions.
        """
        ids = as_ids("ids", ids, "[B, T]")
        function = choose_search(check_positive("beam_width", beam_width), options)
        check_positive("max_length", max_length)
        limit, steps = self._arguments["max_length"], ids.shape[1]
        if None not in (limit, steps) and steps - 1 + max_length > limit:
            raise ValueError(
                f"Prompts of {steps} tokens (padded) and `max_length` = {max_length} more need "
                f"{steps - 1 + max_length} positions. The model has {limit}."
            )
        rows = 1
        if function is beam_search:
            options = {**options, "beam_width": beam_width}
            if self.decoder.keeps_beams:
                options["reorder_state"], rows = False, beam_width
        tokens, state = self.start(ids, None if grow_cache else max_length * rows)
        return function(
            self.step,
            state,
            tokens,
            END,
            max_length,
            **{"forbidden_tokens": (PAD, START), **options},
        )

    def generate(self, prompts, max_length=100, beam_width=1, jit_compile=False, **options):
        """Continues prompts.

        Args:
            prompts: a str, or a list of str. An empty one begins with START.
            max_length: the most tokens that are added.
            jit_compile: whether XLA compiles the search, as in `Translator.translate`.
            beam_width, **options: as of `Translator.search`; with one of `temperature`, `top_k`,
                `top_p` and `seed` tokens are drawn. Each set of them is compiled once.

        Returns:
            A list of str, each prompt with what follows it; for one str, one. With `num_results`
            a list of lists, the best first.

        Raises:
            ValueError: if the model has no tokenizer, or an item is no text; and as `search`.
        """
        if self.tokenizer is None:
            raise ValueError(
                "`generate` needs a model that was made with a tokenizer. `search` takes ids."
            )
        prompts, single = as_texts("prompts", prompts)
        choose_search(check_positive("beam_width", beam_width), options)
        check_positive("max_length", max_length)
        check_flag("jit_compile", jit_compile)
        results = []
        for first in range(0, len(prompts), PROMPTS_AT_ONCE):
            ids = self._padded_left(prompts[first : first + PROMPTS_AT_ONCE])

            found = self._found(ids, max_length, beam_width, jit_compile, options)
            results += self._texts(
                ids, keras.ops.convert_to_numpy(found.ids), "num_results" in options
            )
        return results[0] if single else results

    def _found(self, ids, max_length, beam_width, jit_compile, options):
        """What the search finds, as a compiled function that is made once for its options."""

        def search(ids):
            grow = GROW_CACHE and not jit_compile
            return self.search(ids, max_length, beam_width, grow, **options)

        parts = [max_length, beam_width]
        shape = (None, ids.shape[1])
        return self._searches.find(search, ids, shape, parts, options, jit_compile)

    def _texts(self, ids, new, several):
        """For each prompt `[T]` the text with what follows, `[L]` or `[N, L]`, behind it."""
        if new.ndim == 3:
            ids = np.broadcast_to(ids[:, None], (*new.shape[:2], ids.shape[1]))
            ids, new = (ids, new) if several else (ids[:, 0], new[:, 0])
        return to_texts(self.tokenizer.decode(np.concatenate([ids, new], axis=-1)))

    def _padded_left(self, prompts):
        ids = np.asarray(self.tokenizer.encode(prompts))
        rows = [row[row != PAD] for row in ids]
        rows = [row if len(row) else [START] for row in rows]
        width, limit = max(map(len, rows)), self._arguments["max_length"]
        if limit is None:
            width = STRETCH * -(-width // STRETCH)
        padded = np.full((len(rows), width), PAD, "int32")
        for row, target in zip(rows, padded, strict=True):
            target[width - len(row) :] = row
        return padded
