"""Encoder and attentional decoder as one Functional model, from names and sizes."""

import keras

from keras_attention.checks import check_flag, check_fraction, check_positive
from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.bridge import Bridge
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.decoders.scheduled_sampling import ScheduledSampling
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import SCORE_MODES, LuongAttention
from keras_attention.layers.no_attention import NoAttention
from keras_attention.models.configured import ConfiguredModel
from keras_attention.models.parts import check_kwargs, tokenizers, vocabulary_size
from keras_attention.models.searches import CompiledSearches
from keras_attention.models.translator import Translator

CELLS = {
    "gru": (keras.layers.GRU, keras.layers.GRUCell, 1),
    "lstm": (keras.layers.LSTM, keras.layers.LSTMCell, 2),
    "simple_rnn": (keras.layers.SimpleRNN, keras.layers.SimpleRNNCell, 1),
}
DECODERS = ("bahdanau", "luong")


def seq2seq(source, target, **options):
    """Builds a `Seq2Seq` model: ids `[B, S]` and `[B, T]` to logits `[B, T, V]`.

    Args:
        source, target: tokenizers, or sizes of vocabularies.
        **options: as of `Seq2Seq`.

    Returns:
        The model, for `compile`, `fit`, `save` and `translate`; its inference counterpart, a
        `Translator`, is `model.inference`.

    Raises:
        ValueError: as `Seq2Seq`.

    Example:

    >>> model = seq2seq(20, 30, units=8, attention="general", input_feeding=True)
    >>> model.output_shape
    (None, None, 30)
    """
    return Seq2Seq(source, target, **options)


@keras.saving.register_keras_serializable(package="keras_attention")
class Seq2Seq(ConfiguredModel):
    """A recurrent encoder, a bridge, and a recurrent decoder with attention.

        h_1 ... h_S = encoder(embedding(source))
        s_0 = tanh(W [last states] + b)
        output_t = decoder(embedding(y_{t-1}), s_{t-1}, h_1 ... h_S)
        logits_t = W_o dropout(output_t) + b_o

    As in [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A, or
    [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3, by choice. It is a Functional
    model with inputs named "source" and "target".

    Args:
        source, target: tokenizers (`CharacterTokenizer`, `WordTokenizer`, ...), kept in the saved
            model; or the number of ids of each side.
        cell: "lstm", "gru" or "simple_rnn".
        units: size of the decoder's state and of the memory, which the two directions of a
            bidirectional encoder share.
        embedding: size of the embeddings; by default `units`.
        encoder_layers, decoder_layers: numbers of layers.
        bidirectional: whether the encoder reads in both directions.
        attention: "bahdanau", a score mode of `LuongAttention` ("dot", "scaled_dot", "general",
            "concat", "location"), or None for no attention.
        attention_options: dictionary of further arguments of the attention layer, e.g.
            `{"local": "predictive", "window": 10}`, `{"history": "coverage"}`,
            `{"normalizer": "sparsemax"}`.
        decoder: "bahdanau" (attends before the cell) or "luong" (after it); by default
            "bahdanau" for attention "bahdanau" and None, else "luong".
        input_feeding: whether the output of a step goes into the next; needs decoder "luong".
        dropout: the fraction dropped of embeddings, between layers, of the memory and of outputs.
        tied_embeddings: whether the logits use the target embedding.
        scheduled_sampling: the probability of replacing a target token in training by the
            model's own, a number or a schedule; see `ScheduledSampling`.
        **kwargs: `name` and `trainable` of `keras.Model`.

    Call arguments:
        inputs: `[source, target]`, or a dictionary of these names: integers `[B, S]` and `[B, T]`,
            0 is padding; the target begins with START (1): step t predicts token t + 1.

    Returns:
        Logits `[B, T, V]`, with the mask of the target.

    Masking:
        Id 0 is padding on both sides: it is not attended to, and does not move the states.

    A copy that translates is made by `Seq2Seq.from_config(model.get_config())` and `set_weights`;
    `keras.models.clone_model` makes a plain Functional model.

    Raises:
        ValueError: for an unknown name, a number out of range, or options that do not go together.

    Example:

    >>> from keras_attention.losses import MaskedCrossEntropy
    >>> from keras_attention.text import CharacterTokenizer
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> model = Seq2Seq(letters, letters, units=8, cell="gru", attention="dot")
    >>> model.compile("adam", MaskedCrossEntropy())
    >>> len(model.translate(["ab", "c"], beam_width=2))
    2
    """

    _objects = ("source", "target", "scheduled_sampling")

    def __init__(
        self,
        source,
        target,
        cell="lstm",
        units=256,
        embedding=None,
        encoder_layers=1,
        decoder_layers=1,
        bidirectional=True,
        attention="dot",
        attention_options=None,
        decoder=None,
        input_feeding=False,
        dropout=0.0,
        tied_embeddings=False,
        scheduled_sampling=0.0,
        **kwargs,
    ):
        config = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        if decoder is None:
            decoder = "bahdanau" if attention in ("bahdanau", None) else "luong"
        check_kwargs("Seq2Seq", kwargs)
        _check(config, decoder)
        source_size, target_size = (
            vocabulary_size(name, config[name]) for name in ("source", "target")
        )
        embedding = units if embedding is None else check_positive("embedding", embedding)
        layers = keras.layers

        source_ids = keras.Input((None,), dtype="int32", name="source")
        target_ids = keras.Input((None,), dtype="int32", name="target")
        embed_source = layers.Embedding(
            source_size, embedding, mask_zero=True, name="source_embedding"
        )
        x = layers.Dropout(dropout)(embed_source(source_ids))
        memory, states = _encode(x, cell, units, encoder_layers, bidirectional, dropout)
        one, count = CELLS[cell][1:]
        bridge = Bridge([units] * (count * decoder_layers), name="bridge")
        state = bridge(states)

        cells = [one(units, name=f"cell_{i}") for i in range(1, decoder_layers + 1)]
        attend = _attention(attention, units, attention_options or {})
        if decoder == "bahdanau":
            decode = BahdanauDecoder(cells, attend, name="decoder")
        else:
            size = embedding if tied_embeddings else None
            decode = LuongDecoder(
                cells, attend, units=size, input_feeding=input_feeding, name="decoder"
            )
        masked = {"mask_zero": True, "name": "target_embedding"}
        if tied_embeddings:
            embed, output = layers.ReversibleEmbedding(target_size, embedding, **masked), None
        else:
            embed = layers.Embedding(target_size, embedding, **masked)
            output = layers.Dense(target_size, name="logits")

        if callable(scheduled_sampling) or scheduled_sampling:
            logits = ScheduledSampling(
                decode, embed, output, scheduled_sampling, dropout=dropout, name="sampling"
            )(target_ids, memory, initial_state=state)
        else:
            x = layers.Dropout(dropout)(embed(target_ids))
            hidden = decode(x, memory, initial_state=state)
            logits = to_logits(embed, output, layers.Dropout(dropout)(hidden))
        super().__init__([source_ids, target_ids], logits, **kwargs)
        self._arguments, self._searches = config, CompiledSearches(self)
        # (An object of its own: Keras would take a model among the attributes for a part of this.)
        self.inference = Translator(
            keras.Model(source_ids, [memory, *state]),
            decode,
            embed,
            lambda outputs: to_logits(embed, output, outputs),
            *tokenizers(source, target),
            self._searches,
        )

    def translate(self, texts, beam_width=1, **options):
        """Outputs for texts, see `Translator.translate`."""
        return self.inference.translate(texts, beam_width, **options)

    def search(self, source_ids, beam_width=1, **options):
        """Output ids for source ids `[B, S]`, see `Translator.search`."""
        return self.inference.search(source_ids, beam_width=beam_width, **options)


def _check(config, decoder):
    """Raises for names and combinations that do not exist."""
    for name in ("units", "encoder_layers", "decoder_layers"):
        check_positive(name, config[name])
    for name in ("bidirectional", "input_feeding", "tied_embeddings"):
        check_flag(name, config[name])
    check_fraction("dropout", config["dropout"])
    if config["attention"] is None and config["attention_options"]:
        raise ValueError(
            "`attention_options` need an `attention`. Received: "
            f"{config['attention_options']!r} with None."
        )
    if config["cell"] not in CELLS:
        raise ValueError(f"`cell` must be one of {', '.join(CELLS)}. Received: {config['cell']!r}.")
    if not isinstance(config["attention_options"], (dict, type(None))):
        raise ValueError(
            "`attention_options` must be a dictionary, or None. "
            f"Received: {config['attention_options']!r}."
        )
    attentions = ("bahdanau", *SCORE_MODES, None)
    if config["attention"] not in attentions:
        raise ValueError(
            f"`attention` must be one of {', '.join(map(repr, attentions))}. "
            f"Received: {config['attention']!r}."
        )
    if decoder not in DECODERS:
        raise ValueError(f"`decoder` must be one of {DECODERS}. Received: {decoder!r}.")
    if config["input_feeding"] and decoder != "luong":
        raise ValueError("`input_feeding` needs the decoder 'luong'. Received: 'bahdanau'.")
    if config["bidirectional"] and config["units"] % 2:
        raise ValueError(
            "`units` must be even for a bidirectional encoder, whose directions share them. "
            f"Received: {config['units']}."
        )
    embedding = config["embedding"] or config["units"]
    if config["tied_embeddings"] and decoder == "bahdanau" and embedding != config["units"]:
        raise ValueError(
            "`tied_embeddings` with the decoder 'bahdanau' needs `embedding` = `units`. "
            f"Received: {embedding} and {config['units']}."
        )


def _encode(x, cell, units, count, bidirectional, dropout):
    """Memory `[B, S, units]` and the list of last states of the topmost layer."""
    for i in range(1, count + 1):
        if i > 1:
            x = keras.layers.Dropout(dropout)(x)
        layer = CELLS[cell][0](
            units // 2 if bidirectional else units,
            return_sequences=True,
            return_state=True,
            name=f"encoder_{i}",
        )
        if bidirectional:
            layer = keras.layers.Bidirectional(layer, name=f"encoder_{i}")
        x, *states = layer(x)
    return keras.layers.Dropout(dropout, name="memory")(x), states


def _attention(name, units, options):
    """The attention layer of that name."""
    if name is None:
        return NoAttention(**options, name="attention")
    if name == "bahdanau":
        return BahdanauAttention(**{"units": units, **options}, name="attention")
    return LuongAttention(name, **options, name="attention")


def to_logits(embedding, output, hidden):
    """Logits `[..., V]` from the decoder's outputs `[..., U]`.

    Args:
        embedding: the target embedding.
        output: the layer that makes logits; None where the embedding, turned round, does.
        hidden: `[..., U]`.

    Returns:
        The logits.
    """
    return embedding(hidden, reverse=True) if output is None else output(hidden)
