"""The transformer, encoder and decoder, as one Functional model from names and sizes."""

import keras

from keras_attention.checks import check_positive
from keras_attention.decoders.transformer import TransformerDecoder
from keras_attention.layers.token_embedding import TokenEmbedding
from keras_attention.models.configured import ConfiguredModel
from keras_attention.models.parts import (
    StackOptions,
    check_kwargs,
    tokenizers,
    vocabulary_size,
)
from keras_attention.models.searches import CompiledSearches
from keras_attention.models.translator import Translator

SIDES = ("source", "target")
TIED = (False, True, "all")


def transformer(source, target, **options):
    """Builds a `Transformer` model: ids `[B, S]` and `[B, T]` to logits `[B, T, V]`.

    Args:
        source, target: tokenizers, or sizes of vocabularies.
        **options: as of `Transformer`.

    Returns:
        The model, for `compile`, `fit`, `save` and `translate`; its inference counterpart, a
        `Translator`, is `model.inference`.

    Raises:
        ValueError: as `Transformer`.

    Example:

    >>> model = transformer(20, 30, layers=1, units=8, num_heads=2, position="rotary")
    >>> model.output_shape
    (None, None, 30)
    """
    return Transformer(source, target, **options)


@keras.saving.register_keras_serializable(package="keras_attention")
class Transformer(ConfiguredModel):
    """The transformer of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        memory = encoder(sqrt(D) E_source + positions)
        output_t = decoder(sqrt(D) E_target + positions, memory), seeing steps up to t
        logits_t = E output_t

    Three attentions: self-attention in the encoder, masked self-attention in the decoder, and the
    decoder's attention to the memory. It is a Functional model with inputs named "source" and
    "target".

    Args:
        source, target: tokenizers, kept in the saved model; or the number of ids of each side.
        layers: number of blocks of the encoder, and of the decoder.
        units: D, the size of embeddings and of all layers' outputs.
        num_heads: N, a divisor of D.
        feedforward_size: number of hidden units of the feed-forward networks; by default 4 D.
        position: "sinusoidal", "learned", "rotary", "alibi", "relative" or None.
        max_length: number of positions of position "learned", on each side.
        norm_first: whether sub-layers read normalised inputs (pre-norm) instead of their sums
            being normalised.
        normalization: "layer" or "rms".
        activation: "relu", "gelu", "swiglu", ..., see `FeedForward`.
        dropout: the fraction dropped of embeddings, of what sub-layers add, and of hidden units.
        attention_dropout: the fraction of attention weights dropped.
        tied_embeddings: True for logits from the target embedding; "all" for one embedding for
            the source too: then `target` has the first ids of `source`
            (`SubwordTokenizer.fit_pair`); False for none.
        decoder_layers: number of blocks of the decoder, if another.
        attention_options: dictionary of further arguments of the self-attentions'
            `MultiHeadAttention`, e.g. `{"num_key_value_heads": 2}`. Each block has its own of
            layers among them.
        **kwargs: `name` and `trainable` of `keras.Model`.

    Call arguments:
        inputs: `[source, target]`, or a dictionary of these names: integers `[B, S]` and `[B, T]`,
            0 is padding; the target begins with START (1): step t predicts token t + 1.

    Returns:
        Logits `[B, T, V]`, with the mask of the target.

    Masking:
        Id 0 is padding on both sides: it is not attended to.

    Raises:
        ValueError: for an unknown name, a number out of range, or options that do not go together.

    Example:

    >>> from keras_attention.losses import MaskedCrossEntropy
    >>> from keras_attention.text import CharacterTokenizer
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> model = Transformer(letters, letters, layers=1, units=8, num_heads=2)
    >>> model.compile("adam", MaskedCrossEntropy())
    >>> len(model.translate(["ab", "c"], beam_width=2))
    2
    """

    _objects = SIDES

    def __init__(
        self,
        source,
        target,
        layers=3,
        units=256,
        num_heads=4,
        feedforward_size=None,
        position="sinusoidal",
        max_length=None,
        norm_first=True,
        normalization="layer",
        activation="relu",
        dropout=0.1,
        attention_dropout=0.0,
        tied_embeddings=True,
        decoder_layers=None,
        attention_options=None,
        **kwargs,
    ):
        config = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        check_kwargs("Transformer", kwargs)
        check_positive("layers", layers)
        decoder_layers = check_positive(
            "decoder_layers", layers if decoder_layers is None else decoder_layers
        )
        source_size, target_size = (vocabulary_size(name, config[name]) for name in SIDES)
        _check_tied(tied_embeddings, source_size, target_size, tokenizers(source, target))
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
        source_ids, target_ids = (keras.Input((None,), dtype="int32", name=side) for side in SIDES)
        if tied_embeddings == "all":
            embed_source = embed_target = TokenEmbedding(
                source_size, units, target_size, name="embedding"
            )
        else:
            embed_source = TokenEmbedding(source_size, units, name="source_embedding")
            embed_target = TokenEmbedding(target_size, units, name="target_embedding")
        memory = stack.encode(embed_source(source_ids), layers)
        decode = TransformerDecoder(
            [stack.decoder_block(f"block_{i}", True) for i in range(1, decoder_layers + 1)],
            stack.embed_positions("positions"),
            dropout,
            name="decoder",
        )
        output = None if tied_embeddings else keras.layers.Dense(target_size, name="logits")

        def to_logits(hidden):
            return embed_target(hidden, reverse=True) if output is None else output(hidden)

        logits = to_logits(decode(embed_target(target_ids), memory))
        super().__init__([source_ids, target_ids], logits, **kwargs)
        self._arguments, self._searches = config, CompiledSearches(self)
        self.inference = Translator(
            keras.Model(source_ids, memory),
            decode,
            embed_target,
            to_logits,
            *tokenizers(source, target),
            self._searches,
            max_length,
        )

    def translate(self, texts, beam_width=1, **options):
        """Outputs for texts, see `Translator.translate`."""
        return self.inference.translate(texts, beam_width, **options)

    def search(self, source_ids, beam_width=1, **options):
        """Output ids for source ids `[B, S]`, see `Translator.search`."""
        return self.inference.search(source_ids, beam_width=beam_width, **options)


def _check_tied(tied, source_size, target_size, sides):
    if tied not in TIED:
        raise ValueError(f"`tied_embeddings` must be False, True or 'all'. Received: {tied!r}.")
    if tied == "all" and target_size > source_size:
        raise ValueError(
            "`tied_embeddings='all'` needs a target whose ids are the first of the source's "
            f"(`SubwordTokenizer.fit_pair`). Received {source_size} and {target_size} ids."
        )
    if tied == "all" and None not in sides:
        source, target = (side.tokens for side in sides)
        if source[:target_size] != target:
            raise ValueError(
                "`tied_embeddings='all'` needs a target whose tokens are the first of the source's "
                "(`SubwordTokenizer.fit_pair`). Received tokenizers with other tokens."
            )
