"""What the transformer models are put together from: names to layers, sizes of vocabularies."""

import keras

from keras_attention.checks import check_flag, check_fraction, check_positive
from keras_attention.layers.position_embedding import LearnedEmbedding, SinusoidalEmbedding
from keras_attention.layers.residual import normalization_layer
from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attention.layers.transformer_block import serialize_options
from keras_attention.positions import RelativeBias
from keras_attention.text import END

ADDED = ("sinusoidal", "learned")  # positions that are added to embeddings
IN_SCORES = ("rotary", "alibi", "relative")  # positions that the attentions know


def vocabulary_size(name, tokenizer):
    """The number of ids of a tokenizer, or the number itself.

    Args:
        name: what error messages call it.
        tokenizer: a tokenizer, or a number of ids.

    Returns:
        V, the last axis of logits `[B, T, V]`.

    Raises:
        ValueError: if it is neither, or leaves no room for the special ids.
    """
    if hasattr(tokenizer, "tokens_of") and not isinstance(tokenizer, type):
        return tokenizer.size
    if isinstance(tokenizer, int) and not isinstance(tokenizer, bool) and tokenizer > END:
        return tokenizer
    raise ValueError(
        f"`{name}` must be a tokenizer, or a number of ids that has room for padding (0), start "
        f"(1) and end (2). Received: {tokenizer!r}."
    )


def tokenizers(*sides):
    """The tokenizers among tokenizers and sizes V of logits `[B, T, V]`; None for a size."""
    return [None if isinstance(side, int) else side for side in sides]


def check_kwargs(model, kwargs):
    """Raises a TypeError for arguments that neither the model nor `keras.Model` `[...]` has."""
    unknown = sorted(set(kwargs) - {"name", "trainable"})
    if unknown:
        raise TypeError(f"{model} has no argument {', '.join(map(repr, unknown))}.")


def serialized(config, names):
    """A model's arguments as a config of plain values.

    Args:
        config: dictionary of the arguments, "attention_options" among them.
        names: those of them that may be tokenizers, of ids `[B, T]`.

    Returns:
        A dictionary; `deserialized` undoes it.
    """
    serialize, options = keras.saving.serialize_keras_object, config["attention_options"]
    config = {
        name: serialize(x) if name in names and hasattr(x, "get_config") else x
        for name, x in config.items()
    }
    return {**config, "attention_options": options and serialize_options(options)}


def deserialized(config, custom_objects=None):
    """The arguments of a model, for tensors `[B, T]`, out of what `serialized` made of them."""

    def make(x):
        is_object = isinstance(x, dict) and "class_name" in x
        return keras.saving.deserialize_keras_object(x, custom_objects) if is_object else x

    options = config.get("attention_options")
    config = {name: make(x) for name, x in config.items()}
    if isinstance(options, dict):
        config["attention_options"] = {name: make(x) for name, x in options.items()}
    return config


class StackOptions:
    """The sizes and names that blocks of a stack share, checked.

    Args:
        units: D, the size of the embeddings and of all layers' outputs, for tensors `[B, T, D]`.
        num_heads: N.
        feedforward_size: number of hidden units; None for 4 D.
        position: "sinusoidal", "learned", "rotary", "alibi", "relative" or None.
        max_length: number of positions of "learned".
        norm_first, normalization, activation, dropout, attention_dropout, attention_options: as
            of `TransformerEncoderBlock`. Of layers among the options each block has its own.

    Raises:
        ValueError: for a number out of range, an unknown name, or options that do not go together.
    """

    def __init__(
        self,
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
    ):
        self.units = check_positive("units", units)
        check_positive("num_heads", num_heads)
        check_flag("norm_first", norm_first)
        check_fraction("dropout", dropout)
        if position not in (None, *ADDED, *IN_SCORES):
            known = ", ".join(map(repr, (*ADDED, *IN_SCORES, None)))
            raise ValueError(f"`position` must be one of {known}. Received: {position!r}.")
        if (position == "learned") != (max_length is not None):
            raise ValueError(
                "`max_length`, the number of positions, goes with `position='learned'`. "
                f"Received: {max_length!r} with {position!r}."
            )
        if not isinstance(attention_options, (dict, type(None))):
            raise ValueError(
                "`attention_options` must be a dictionary, or None. "
                f"Received: {attention_options!r}."
            )
        self.position, self.max_length, self.dropout = position, max_length, dropout
        self.attention_options = attention_options or {}
        self.common = {
            "num_heads": num_heads,
            "feedforward_size": 4 * units if feedforward_size is None else feedforward_size,
            "norm_first": norm_first,
            "normalization": normalization,
            "activation": activation,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
        }

    def embed_positions(self, name):
        """The layer that adds positions to embeddings, or None."""
        if self.position == "sinusoidal":
            return SinusoidalEmbedding(name=name)
        if self.position == "learned":
            return LearnedEmbedding(self.max_length, name=name)
        return None

    def encoder_block(self, name):
        """A block that reads in both directions."""
        return TransformerEncoderBlock(
            **self.common, attention_options=self._options(bidirectional=True), name=name
        )

    def decoder_block(self, name, cross_attention):
        """A block whose steps see what is behind them."""
        return TransformerDecoderBlock(
            **self.common,
            cross_attention=cross_attention,
            attention_options=self._options(bidirectional=False),
            name=name,
        )

    def encode(self, x, count, name="encoder"):
        """Runs `count` encoder blocks on embedded tokens, as part of a Functional model."""
        embed = self.embed_positions(f"{name}_positions")
        x = x if embed is None else embed(x)
        x = keras.layers.Dropout(self.dropout, name=f"{name}_dropout")(x)
        for i in range(1, count + 1):
            x = self.encoder_block(f"{name}_{i}")(x)
        if self.common["norm_first"]:
            x = normalization_layer(self.common["normalization"], name=f"{name}_norm")(x)
        return x

    def _options(self, bidirectional):
        # One layer in all blocks would be one set of weights.
        options = {name: _another(x) for name, x in self.attention_options.items()}
        if self.position not in IN_SCORES:
            return options
        position = self.position
        if position == "relative":
            position = RelativeBias(bidirectional=bidirectional)
        return {"position": position, **options}


def _another(option):
    """An option; if it is a layer `[...]`, one like it with weights of its own."""
    if isinstance(option, keras.layers.Layer):
        return type(option).from_config(option.get_config())
    return option
