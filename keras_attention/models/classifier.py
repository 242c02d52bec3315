"""An encoder that puts texts into classes."""

import keras
import numpy as np

from keras_attention.checks import check_fraction, check_positive
from keras_attention.layers.pooling import MaskedPooling
from keras_attention.layers.token_embedding import TokenEmbedding
from keras_attention.models.configured import ConfiguredModel
from keras_attention.models.inputs import as_texts
from keras_attention.models.parts import (
    StackOptions,
    check_kwargs,
    tokenizers,
    vocabulary_size,
)


def text_classifier(tokenizer, classes, **options):
    """Builds a `TextClassifier`: ids `[B, S]` to logits `[B, C]`.

    Args:
        tokenizer: a tokenizer, or the number of ids.
        classes: the names of the C classes, or their number.
        **options: as of `TextClassifier`.

    Returns:
        The model, for `compile`, `fit`, `save` and `classify`.

    Raises:
        ValueError: as `TextClassifier`.

    Example:

    >>> text_classifier(20, 3, layers=1, units=8, num_heads=2).output_shape
    (None, 3)
    """
    return TextClassifier(tokenizer, classes, **options)


@keras.saving.register_keras_serializable(package="keras_attention")
class TextClassifier(ConfiguredModel):
    """The encoder of a transformer, pooled over the real tokens, and a linear layer.

        logits = W pool(encoder(sqrt(D) E_source + positions)) + b

    The encoder is that of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), as of
    `Transformer`. A Functional model with the input "source".

    Args:
        tokenizer: a tokenizer, kept in the saved model; or the number of ids.
        classes: list of C names; or their number, which names them "0", "1", ...
        layers, units, num_heads, feedforward_size, position, max_length, norm_first,
        normalization, activation, dropout, attention_dropout, attention_options: as of
            `Transformer`.
        pooling: "mean", "max", "sum", "first" or "last", see `MaskedPooling`.
        **kwargs: `name` and `trainable` of `keras.Model`.

    Call arguments:
        inputs: integers `[B, S]`, 0 is padding.

    Returns:
        Logits `[B, C]`, for `SparseCategoricalCrossentropy(from_logits=True)`.

    Masking:
        Id 0 is not attended to and not pooled. A sample of padding alone is pooled to 0.

    Raises:
        ValueError: for an unknown name, a number out of range, or options that do not go together.

    Example:

    >>> from keras_attention.text import CharacterTokenizer
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> model = TextClassifier(letters, ["good", "bad"], layers=1, units=8, num_heads=2)
    >>> model.classify(["ab", ""])[0] in ("good", "bad")
    True
    """

    _objects = ("tokenizer",)

    def __init__(
        self,
        tokenizer,
        classes,
        layers=2,
        units=128,
        num_heads=4,
        feedforward_size=None,
        position="sinusoidal",
        max_length=None,
        norm_first=True,
        normalization="layer",
        activation="relu",
        dropout=0.1,
        attention_dropout=0.0,
        pooling="mean",
        attention_options=None,
        **kwargs,
    ):
        config = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        check_kwargs("TextClassifier", kwargs)
        check_positive("layers", layers)
        check_fraction("dropout", dropout)
        config["classes"] = names = _class_names(classes)
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
        ids = keras.Input((None,), dtype="int32", name="source")
        embed = TokenEmbedding(vocabulary_size("tokenizer", tokenizer), units, name="embedding")
        x = MaskedPooling(pooling, name="pooling")(stack.encode(embed(ids), layers))
        x = keras.layers.Dropout(dropout, name="dropout")(x)
        super().__init__(ids, keras.layers.Dense(len(names), name="logits")(x), **kwargs)
        self._arguments, self.class_names = config, names
        (self.tokenizer,) = tokenizers(tokenizer)

    def classify(self, texts, probabilities=False, batch_size=64):
        """The class of each text.

        Args:
            texts: a str, or a list of str.
            probabilities: whether to return the probabilities of all classes.
            batch_size: the number of texts read at a time.

        Returns:
            A list of names, for one str one name; or an array `[B, C]`, for one str `[C]`.

        Raises:
            ValueError: if the model was made without a tokenizer, or an item is no text.
        """
        if self.tokenizer is None:
            raise ValueError("`classify` needs a model that was made with a tokenizer.")
        (texts, single), logits = (
            as_texts("texts", texts),
            np.zeros((0, len(self.class_names)), "float32"),
        )
        for first in range(0, len(texts), check_positive("batch_size", batch_size)):
            ids = self.tokenizer.encode(texts[first : first + batch_size])
            rows = keras.ops.convert_to_numpy(self(ids, training=False))
            logits = np.concatenate([logits, rows.astype("float32")])
        if probabilities:
            results = keras.ops.convert_to_numpy(keras.ops.softmax(logits)) if texts else logits
        else:
            results = [self.class_names[i] for i in logits.argmax(axis=1)]
        return results[0] if single else results


def _class_names(classes):
    if isinstance(classes, int) and not isinstance(classes, bool):
        classes = [str(i) for i in range(check_positive("classes", classes))]
    if isinstance(classes, (str, bytes)) or not isinstance(classes, (list, tuple)) or not classes:
        raise ValueError(f"`classes` must be a list of names, or a number. Received: {classes!r}.")
    names = [str(name) for name in classes]
    if len(set(names)) < len(names):
        raise ValueError(f"`classes` must be different names. Received: {classes!r}.")
    return names
