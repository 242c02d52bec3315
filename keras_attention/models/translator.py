"""A trained encoder and decoder in use: encode, step, search; text in and text out."""

import functools
import itertools
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attention.checks import check_flag, check_positive
from keras_attention.layers.no_attention import NoAttention
from keras_attention.models.inputs import as_ids, as_texts
from keras_attention.models.searches import (
    GROW_CACHE,
    choose_search,
    first_rows,
)
from keras_attention.search import beam_search
from keras_attention.text import END, PAD, START
from keras_attention.text.inputs import to_texts

BATCH_SIZE = 64
STRETCH = 16  # what the lengths of sources are multiples of where XLA compiles for each


class Translation(NamedTuple):
    """One output text and how it came about.

    Attributes:
        text: the text.
        score: its log-probability.
        source_tokens, target_tokens: the S tokens read and the T tokens written.
        attention_scores: `[T, S]` attention weights, for `plot_alignment`; None of a model
            without attention.
    """

    text: str
    score: float
    source_tokens: list
    target_tokens: list
    attention_scores: Any


class Translator:
    """The inference counterpart of a `Seq2Seq` or `Transformer`; it shares the model's layers.

        memory, state = encode(source_ids)
        logits, weights, state = step(tokens, state, memory)

    Args:
        encoder: Keras model from source ids `[B, S]` to `[memory [B, S, D], state, ...]`.
        decoder: a decoder of this package.
        embed: function from target ids `[B]` to `[B, E]`.
        to_logits: function from the decoder's outputs `[B, U]` to logits `[B, V]`.
        source, target: the tokenizers, or None where the model was made for ids only.
        searches: the `CompiledSearches` of the model.
        max_positions: the most steps that encoder and decoder can have, e.g. as they have learned
            positions; None where there is no limit.
    """

    def __init__(
        self, encoder, decoder, embed, to_logits, source, target, searches, max_positions=None
    ):
        self.encoder, self.decoder = encoder, decoder
        self.embed, self.to_logits = embed, to_logits
        self.source, self.target = source, target
        self.max_positions = max_positions
        self._attends = not isinstance(decoder.attention, NoAttention)
        self.searches = searches

    def encode(self, source_ids, max_length=None):
        """Reads the source: ids `[B, S]` -> `(memory, state)`, both for `step`.

        Args:
            source_ids: integers, 0 is padding.
            max_length: the most steps that follow, for a decoder that keeps what it has seen in a
                cache; None for a cache that grows.

        Returns:
            The projected memory, a tuple of tensors `[B, S, ...]`, and the decoder's state.
        """
        source_ids = as_ids("source_ids", source_ids, "[B, S]")
        # (A Keras model with one output returns it without the list.)
        memory, *state = keras.tree.flatten(self.encoder(source_ids, training=False))
        memory = self.decoder.precompute(memory, ops.not_equal(source_ids, PAD))
        return memory, self.decoder.start_state(memory, state or None, max_length)

    def step(self, tokens, state, memory, alignments=True, **origins):
        """One step: tokens `[B]` -> `(logits [B, V], weights [B, S], state)`.

        A model without attention, or without `alignments`, gives `(logits, state)`. With
        `origins` `[B, K, L]`, for a decoder that takes them, it is a step of K beams, `[B, K]` ->
        `[B, K, V]`, `[B, K, S]`.
        """
        attends = self._attends and alignments
        output, *weights_and_state = self.decoder.step(
            self.embed(tokens), state, memory, return_attention_scores=attends, **origins
        )
        return self.to_logits(output), *weights_and_state

    def search(
        self,
        source_ids,
        max_length=None,
        beam_width=1,
        grow_cache=False,
        alignments=True,
        **options,
    ):
        """Searches for an output to each source.

        Args:
            source_ids: integers `[B, S]`, 0 is padding.
            max_length: L, the most tokens of an output, the end included; by default about one
                and a half times S, or as many as the model has positions.
            beam_width: 1 for `greedy_search`, more for `beam_search`.
            grow_cache: whether a transformer's caches grow with the output, instead of having room
                for L tokens from the beginning: faster in TensorFlow, not possible with XLA or JAX.
            alignments: whether the result holds the attention weights, if the model attends.
            **options: further arguments of the search: of all `min_length`, `no_repeat_ngram` and
                `forbidden_tokens` (by default PAD and START; other ones take their place); of
                `beam_search` `length_penalty`, `coverage_penalty`, `num_results`; with one of
                `temperature`, `top_k`, `top_p` and `seed` the output is drawn by `sample`.

        Returns:
            A `SearchResult`; of `beam_search` a `BeamResult`.

        Raises:
            ValueError: if the source is no table of integers, an option is unknown, of a wrong
                value or of another search, or the model has too few positions.
        """
        source_ids = as_ids("source_ids", source_ids, "[B, S]")
        function = choose_search(check_positive("beam_width", beam_width), options)
        if source_ids.shape[0] == 0:  # Keras' cells can not add a bias to no rows
            row = ops.zeros((1, source_ids.shape[1]), source_ids.dtype)
            found = self.search(row, max_length, beam_width, grow_cache, alignments, **options)
            return first_rows(found, 0)
        rows = 1
        if function is beam_search:
            mask = ops.not_equal(source_ids, PAD)
            options = {**options, "beam_width": beam_width, "memory_mask": mask}
            if getattr(self.decoder, "keeps_beams", False):
                options["reorder_state"], rows = False, beam_width
        if max_length is None:
            max_length = self._at_most(default_length(source_ids.shape[1]))
        self._check_positions(source_ids.shape[1], check_positive("max_length", max_length))
        memory, state = self.encode(source_ids, None if grow_cache else max_length * rows)
        needed = alignments or options.get("coverage_penalty")
        found = function(
            self.step if needed else functools.partial(self.step, alignments=False),
            state,
            ops.full_like(source_ids[:, 0], START),
            END,
            max_length,
            memory=memory,
            **{"forbidden_tokens": (PAD, START), **options},
        )
        return found if alignments else found._replace(attention_scores=None)

    def translate(
        self, texts, beam_width=1, max_length=None, details=False, jit_compile=False, **options
    ):
        """Outputs for texts, in batches of texts of like lengths.

        Args:
            texts: a str, or a list, array or tensor of str.
            beam_width, max_length, **options: as of `search` (`grow_cache` is chosen here). Each
                set of them is compiled once.
            details: whether to return a `Translation` for each output, with the alignment.
            jit_compile: whether XLA compiles the search, for each shape of a batch anew (sources
                padded to multiples of 16 tokens, batches to powers of two). The first call with a
                shape takes many seconds, later ones of a transformer are faster. XLA
                draws other random numbers from a seed.

        Returns:
            A list of str (or `Translation`), one for each text, in their order; for one str, one.
            With `num_results` a list of lists, the best first. The output for a text without
            tokens is empty.

        Raises:
            ValueError: if the model has no tokenizers, an item is no text, or a text has more
                tokens than the model has positions; and as `search`.
        """
        if self.source is None or self.target is None:
            raise ValueError(
                "`translate` needs a model that was made with tokenizers for source and target, "
                "not with vocabulary sizes. `search` takes ids."
            )
        beam_width = check_positive("beam_width", beam_width)
        max_length = None if max_length is None else check_positive("max_length", max_length)
        check_flag("jit_compile", jit_compile)
        choose_search(beam_width, options)
        texts, single = as_texts("texts", texts)
        if not texts:
            return []
        ids = np.asarray(self.source.encode(texts, add_end=True))
        lengths = (ids != PAD).sum(axis=1)
        self._check_positions(int(lengths.max()), max_length)
        results = [None] * len(texts)
        for rows, default in _batches(lengths):
            batch = ids[rows, : lengths[rows].max()]
            longest = self._at_most(default) if max_length is None else max_length
            found = self._found(batch, longest, beam_width, details, jit_compile, options)
            for row, result in zip(rows, self._texts(batch, found, details), strict=True):
                results[row] = result
        several = "num_results" in options
        results = [x if several else x[0] for x in results]
        return results[0] if single else results

    def _at_most(self, length):
        return length if self.max_positions is None else min(length, self.max_positions)

    def _check_positions(self, source_length, max_length):
        """Raises if source or output `[B, L]` may have more steps than there are positions."""
        for name, steps in (("The source", source_length), ("`max_length`", max_length)):
            if None not in (steps, self.max_positions) and steps > self.max_positions:
                raise ValueError(
                    f"{name} must be at most {self.max_positions} tokens long, the number of "
                    f"positions that the model has. Received: {steps}."
                )

    def _found(self, source_ids, max_length, beam_width, alignments, jit_compile, options):
        """What the search finds, as a compiled function that is made once for its options."""
        ids = source_ids
        if jit_compile:
            width = self._at_most(STRETCH * -(-ids.shape[1] // STRETCH))
            ids = np.pad(ids, [(0, 0), (0, width - ids.shape[1])])

        def search(source_ids):
            grow = GROW_CACHE and not jit_compile
            return self.search(source_ids, max_length, beam_width, grow, alignments, **options)

        parts = [max_length, beam_width, alignments]
        return self.searches.find(search, ids, (None, None), parts, options, jit_compile)

    def _texts(self, source_ids, found, details):
        """For each source the list of its outputs, the best first."""
        ids, scores, lengths, weights = (
            None if x is None else np.array(keras.ops.convert_to_numpy(x))
            for x in (found.ids, found.scores, found.lengths, found.attention_scores)
        )
        if ids.ndim == 2:  # one output for each source
            ids, scores, lengths = ids[:, None], scores[:, None], lengths[:, None]
            weights = None if weights is None else weights[:, None]
        # A text of which nothing is left to read has an empty output.
        empty = (source_ids > END).sum(axis=1) == 0
        ids[empty], scores[empty], lengths[empty] = PAD, 0, 0
        texts = to_texts(self.target.decode(ids))
        if not details:
            return texts
        sources = to_texts(self.source.tokens_of(source_ids))
        targets = to_texts(self.target.tokens_of(ids))
        sizes = (source_ids != PAD).sum(axis=1)
        return [
            [
                Translation(
                    text,
                    float(scores[row, n]),
                    sources[row][: sizes[row]],
                    targets[row][n][: lengths[row, n]],
                    None if weights is None else weights[row, n, : lengths[row, n], : sizes[row]],
                )
                for n, text in enumerate(several)
            ]
            for row, several in enumerate(texts)
        ]


def _batches(lengths):
    """Rows of like lengths, and the most tokens of their outputs, which is the same for a batch.

    So no output is cut off earlier or later because of what else is translated.
    """
    rows = np.argsort(lengths, kind="stable")
    for limit, some in itertools.groupby(rows, key=lambda row: default_length(lengths[row])):
        some = np.array(list(some))
        for first in range(0, len(some), BATCH_SIZE):
            yield some[first : first + BATCH_SIZE], limit


def default_length(source_length):
    """The most tokens of an output to sources `[B, S]`; in steps, so that few graphs are made."""
    length = 100 if source_length is None else source_length
    return 32 * (1 + (3 * length // 2 + 10) // 32)
