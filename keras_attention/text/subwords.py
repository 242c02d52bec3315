"""A token for each frequent piece of a word, by a SentencePiece model."""

import base64
import hashlib
from numbers import Integral
from typing import NamedTuple

import keras
import numpy as np

from keras_attention.text.inputs import as_strings, check_normalization
from keras_attention.text.normalization import normalize
from keras_attention.text.subword_models import missing_package, reorder_pieces, train_model
from keras_attention.text.tables import strings_constant
from keras_attention.text.tokenizer import (
    PAD,
    RESERVED,
    SPECIAL_TOKENS,
    Tokenizer,
)
from keras_attention.text.vocabulary import TEXTS_AT_ONCE, batches, check_texts, prepare

MODEL_TYPES = ("unigram", "bpe")
# SentencePiece reads a meaning into the first of each of these: it writes spaces as "▁", and drops
# training texts that hold "▅" or a NUL. Code points that Unicode sets aside for internal use stand
# for them in the model.
STAND_INS = {"▁": "\ufdd0", "▅": "\ufdd1"}
LEAST_COVERAGE = 0.98
NUL, REPLACEMENT = r"\x00", "\ufffd"


@keras.saving.register_keras_serializable(package="keras_attention")
class SubwordTokenizer(Tokenizer):
    """Splits texts `[B]` into subwords by a SentencePiece model: ids `[B, L]`.

    Unigram language model ([Kudo, 2018](https://arxiv.org/abs/1804.10959)) or byte-pair encoding
    ([Sennrich et al., 2016](https://arxiv.org/abs/1508.07909)), trained by the `sentencepiece`
    package and applied in the graph by `tensorflow_text`; `pip install
    keras-attention-layers[text]` installs both. A SavedModel that holds this tokenizer needs the
    operations of `tensorflow_text` wherever it is served (`import tensorflow_text` in Python).

    The model changes no text itself (its normalisation is `identity`): `decode(encode(x))` is x,
    with all of its spaces, in composed form and in lower case if that was asked for, as long as its
    characters are known; others come back as "⁇". With `byte_fallback` no character is unknown. A
    NUL character counts as U+FFFD, and line ends at the end of a training text are not learned.

    Args:
        model: a SentencePiece model as base64 text, whose ids of padding, start, end and unknown
            are 0, 1, 2 and 3, and which adds no space in front by itself. `fit` trains one.
        lowercase: whether texts are put in lower case.
        normalization: Unicode normal form of the tokens, "NFC", "NFD", "NFKC", "NFKD" or None.
        limit: the number of ids V, if fewer than the model has: later ones count as unknown. See
            `fit_pair`.

    Call arguments: `encode(texts [B])`, `decode(ids [B, L])`, `tokens_of(ids)`.

    Returns:
        `encode`: int32 ids `[B, L]`; `decode`: strings `[B]`.

    Masking: padding has id 0, as `Embedding(mask_zero=True)` and `padding_mask` expect.

    Raises:
        ValueError: if the model is no base64 text, or `limit` leaves no id for a token.
        ImportError: on use, if `tensorflow_text` is not installed.

    Example: `SubwordTokenizer.fit(texts, vocabulary_size=8000).encode(texts, add_end=True)`
    """

    def __init__(self, model, lowercase=False, normalization="NFC", limit=None):
        check_normalization(normalization)
        is_count = isinstance(limit, Integral) and not isinstance(limit, bool)
        if limit is not None and not (is_count and limit > RESERVED):
            raise ValueError(f"limit must be an integer above {RESERVED}, or None. Got {limit!r}")
        self.limit = None if limit is None else int(limit)
        try:
            self._model = base64.b64decode(model, validate=True)
        except (ValueError, TypeError) as error:
            raise ValueError(f"model must be base64 text. Got {model!r:.80}: {error}") from error
        self.model, self.lowercase, self.normalization = model, bool(lowercase), normalization
        self._tokens = self._made = self._strings = None

    @classmethod
    def fit(
        cls,
        texts,
        vocabulary_size=8000,
        lowercase=False,
        normalization="NFC",
        model_type="unigram",
        byte_fallback=False,
        character_coverage=1.0,
    ):
        """A tokenizer with subwords of `texts`; the same texts give the same model.

        Args:
            texts: iterable of str.
            vocabulary_size: number of ids, with the four special ones.
            lowercase: whether texts are put in lower case, here and in `encode`.
            normalization: Unicode normal form of the tokens, "NFC", "NFD", "NFKC", "NFKD" or None.
            model_type: "unigram" or "bpe".
            byte_fallback: whether an unknown character becomes its UTF-8 bytes, which take 256 ids.
            character_coverage: share of the characters in the texts that get an id, the most
                frequent ones, at least 0.98; 0.9995 suits languages with thousands of them.

        Returns:
            The tokenizer.

        Raises:
            ValueError: if the texts are empty or no texts, or too few for that many ids, or hold
                more characters than there are ids.
            ImportError: if `sentencepiece` is not installed.
        """
        check_normalization(normalization)
        if model_type not in MODEL_TYPES:
            raise ValueError(f"model_type must be one of {MODEL_TYPES}. Got {model_type!r}")
        if not isinstance(vocabulary_size, Integral) or vocabulary_size <= RESERVED:
            raise ValueError(
                f"vocabulary_size must be above {RESERVED}, an integer. Got {vocabulary_size!r}"
            )
        if not LEAST_COVERAGE <= character_coverage <= 1:
            raise ValueError(
                f"character_coverage must lie in [{LEAST_COVERAGE}, 1], as SentencePiece wants it. "
                f"Got {character_coverage}"
            )
        model = train_model(
            list(_prepared(check_texts(texts), lowercase, normalization)),
            vocab_size=vocabulary_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
        )
        return cls(base64.b64encode(model).decode("ascii"), lowercase, normalization)

    @classmethod
    def fit_pair(cls, sources, targets, vocabulary_size=8000, **options):
        """Two tokenizers that share one model, for embeddings that both sides share.

        Tokens that occur in the targets have the first ids: the target's tokenizer has these alone,
        so that a model makes no logits for what only sources hold.

        Args:
            sources, targets: lists of str.
            vocabulary_size: number of ids of the source's tokenizer.
            **options: as of `fit`.

        Returns:
            `(source, target)`: equal tokens have equal ids.

        Raises:
            ValueError: as `fit`.
            ImportError: as `fit`.
        """
        sources, targets = _side("sources", sources), _side("targets", targets)
        joint = cls.fit([*sources, *targets], vocabulary_size, **options)
        used = np.zeros(joint.size, "int64")
        for some in batches(targets, TEXTS_AT_ONCE):
            used += np.bincount(np.ravel(joint.encode(some)), minlength=joint.size)
        used[:RESERVED] = 1
        model = reorder_pieces(joint._model, np.argsort(used == 0, kind="stable"))
        text = base64.b64encode(model).decode("ascii")
        common = (text, joint.lowercase, joint.normalization)
        return cls(*common), cls(*common, limit=int((used > 0).sum()))

    @property
    def tokens(self):
        import tensorflow as tf

        if self._tokens is None:
            with tf.init_scope():
                pieces = self._functions().pieces()[RESERVED:].numpy()
            symbols = str.maketrans({new: old for old, new in STAND_INS.items()})
            learned = (piece.decode("utf-8").translate(symbols) for piece in pieces)
            self._tokens = [*SPECIAL_TOKENS, *learned][: self.limit]
        return list(self._tokens)

    def get_config(self):
        return {
            "model": self.model,
            "lowercase": self.lowercase,
            "normalization": self.normalization,
            "limit": self.limit,
        }

    def __getstate__(self):
        return {**self.__dict__, "_made": None, "_strings": None}

    def _token_strings(self):
        if self._strings is None:
            self._strings = strings_constant(self.tokens)
        return self._strings()

    def _split_to_ids(self, strings):
        text = _mark_start(_escape(strings, self.lowercase, self.normalization))
        ids = self._functions().tokenize(text)
        return ids if self.limit is None else ids.with_flat_values(self._known(ids.flat_values))

    def _join(self, ids):
        import tensorflow as tf

        text = self._functions().detokenize(tf.ragged.boolean_mask(ids, ids != PAD))
        text = tf.strings.regex_replace(text, "^ ", "", replace_global=False)
        for symbol, stand_in in STAND_INS.items():
            text = tf.strings.regex_replace(text, stand_in, symbol)
        return text if self.normalization is None else normalize(text, "NFC")

    def _functions(self):
        if self._made is None:
            self._made = _graph_functions(self._model)
        return self._made


def _side(name, texts):
    """A list of texts; errors say which of both lists has what is none, and where."""
    try:
        as_strings(texts := list(check_texts(texts)))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return texts


class _Functions(NamedTuple):
    tokenize: object
    detokenize: object
    pieces: object


def _graph_functions(model):
    """The model as graph functions, each of which makes the model's resource whenever it runs.

    So nothing outside of the graph has to be tracked by whoever saves it; and a resource made in
    eager mode would not last: TensorFlow drops it when a seed is set. Its name tells one model from
    another, as TensorFlow's loader shares a resource between operations of one name.
    """
    import tensorflow as tf

    try:
        import tensorflow_text
    except ImportError as error:
        raise missing_package("tensorflow_text") from error

    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"

    def processor():
        return tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)

    texts = tf.TensorSpec([None], tf.string)
    ids = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)
    return _Functions(
        tf.function(lambda texts: processor().tokenize(texts), input_signature=[texts]),
        tf.function(lambda ids: processor().detokenize(ids), input_signature=[ids]),
        tf.function(lambda: processor().id_to_string(tf.range(processor().vocab_size()))),
    )


def _escape(strings, lowercase, normalization):
    """Strings `[B]` in the form that the model sees, but for the space in front."""
    import tensorflow as tf

    if lowercase or normalization is not None:
        points = prepare(strings, lowercase, normalization)
        strings = tf.strings.unicode_encode(points, "UTF-8")
    strings = tf.strings.regex_replace(strings, NUL, REPLACEMENT)
    for symbol, stand_in in STAND_INS.items():
        strings = tf.strings.regex_replace(strings, symbol, stand_in)
    return strings


def _mark_start(strings):
    """A space in front, so that a word has the same pieces at the start of a text and within."""
    import tensorflow as tf

    return tf.where(strings == "", "", " " + strings)


def _prepared(texts, lowercase, normalization):
    first = 0
    for some in batches(texts, TEXTS_AT_ONCE):
        strings = _mark_start(_escape(as_strings(some, first=first), lowercase, normalization))
        yield from strings.numpy()
        first += len(some)
