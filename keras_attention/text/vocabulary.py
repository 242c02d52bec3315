"""Tokenizers with a list of tokens counted in training texts."""

import itertools
from collections import Counter

from keras_attention.text.inputs import as_bytes, as_strings, check_normalization
from keras_attention.text.normalization import code_points, lower, normalize, normalize_points
from keras_attention.text.tables import strings_constant
from keras_attention.text.tokenizer import PAD, RESERVED, SPECIAL_TOKENS, UNKNOWN, Tokenizer

TEXTS_AT_ONCE = 4096


def prepare(strings, lowercase, normalization):
    """Strings `[B]` -> ragged code points `[B, (T)]` in lower case, if asked for, and normal form.

    Letters in lower case may compose where capitals do not, so the normal form comes last; and
    compatibility forms may hold capitals, so it also comes first.
    """
    if lowercase:
        if normalization in ("NFKC", "NFKD"):
            strings = normalize(strings, normalization)
        strings = lower(strings)
    return normalize_points(code_points(strings), normalization)


class VocabularyTokenizer(Tokenizer):
    """Base of the tokenizers that count tokens: strings `[B]`, ids `[B, L]`.

    A subclass defines `_split(points) -> ragged tokens`, `_text_of(token) -> str`,
    `_make_index() -> function from tokens to places` and `_join`.
    """

    def __init__(self, vocabulary, lowercase=False, normalization="NFC"):
        check_normalization(normalization)
        if isinstance(vocabulary, str) or not vocabulary:
            raise ValueError(
                f"vocabulary must be a list of tokens, at least one. Got {vocabulary!r}"
            )
        self.vocabulary = list(vocabulary)
        for place, token in enumerate(self.vocabulary):
            self._check_token(token, f"vocabulary[{place}]")
            as_bytes(token, f"vocabulary[{place}]")
        twice = [token for token, count in Counter(self.vocabulary).items() if count > 1]
        if twice:
            raise ValueError(f"vocabulary must name each token once. Got {twice[0]!r} again")
        self.lowercase, self.normalization = bool(lowercase), normalization
        self._tokens = [*SPECIAL_TOKENS, *self.vocabulary]
        self._token_strings = strings_constant(self._tokens)
        self._index = self._make_index()

    @classmethod
    def fit(cls, texts, max_size=None, min_count=1, lowercase=False, normalization="NFC"):
        """A tokenizer whose tokens are those of `texts`, the most frequent first.

        Args:
            texts: iterable of str. Equal counts are put in the order of code points, so that the
                same texts in any order give the same ids.
            max_size: the most ids, with the four special ones; None for no limit.
            min_count: how often a token has to occur.
            lowercase: whether texts are put in lower case, here and in `encode`.
            normalization: Unicode normal form of the tokens, "NFC", "NFD", "NFKC", "NFKD" or None.

        Returns:
            The tokenizer.

        Raises:
            ValueError: if the texts hold no token that occurs often enough, or an item is no text.
        """
        check_normalization(normalization)
        if max_size is not None and max_size <= RESERVED:
            raise ValueError(
                f"max_size must be above {RESERVED}, the number of special tokens. Got {max_size}"
            )
        counts = cls._count(check_texts(texts), lowercase, normalization)
        often = [token for token, count in counts.items() if count >= min_count]
        if not often:
            raise ValueError(
                f"texts must hold a token that occurs min_count={min_count} times or more. "
                f"Got {len(counts)} different tokens"
            )
        often.sort(key=lambda token: (-counts[token], token))
        if max_size is not None:
            often = often[: max_size - RESERVED]
        return cls(often, lowercase, normalization)

    @classmethod
    def _count(cls, texts, lowercase, normalization):
        counts, first = Counter(), 0
        for some in batches(texts, TEXTS_AT_ONCE):
            points = prepare(as_strings(some, first=first), lowercase, normalization)
            counts.update(cls._split(points).flat_values.numpy().tolist())
            first += len(some)
        return {cls._text_of(token): count for token, count in counts.items()}

    @property
    def tokens(self):
        return list(self._tokens)

    @property
    def size(self):
        return len(self._tokens)

    def get_config(self):
        return {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "normalization": self.normalization,
        }

    def _split_to_ids(self, strings):
        import tensorflow as tf

        tokens = self._split(prepare(strings, self.lowercase, self.normalization))
        place = self._index(tokens.flat_values)
        return tokens.with_flat_values(tf.where(place >= 0, place + RESERVED, UNKNOWN))

    def _compose(self, strings):
        """Decoded texts are in composed form, unless normalisation is off."""
        return strings if self.normalization is None else normalize(strings, "NFC")

    def _check_token(self, token, name):
        if not isinstance(token, str) or not token:
            raise ValueError(f"{name} must be a str that is not empty. Got {token!r:.80}")

    def _make_index(self):
        raise NotImplementedError


def check_texts(texts):
    """`texts` as an iterable, if it is one of texts and not a text itself."""
    if isinstance(texts, (str, bytes, dict)) or not hasattr(texts, "__iter__"):
        raise ValueError(
            f"texts must be an iterable of str. Got {texts!r:.80} of type {type(texts).__name__}"
        )
    return texts


def batches(items, size):
    """Lists of up to `size` items."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


def shown(ids, token_strings):
    """Ids `[N, L]` -> strings `[N, L]`, empty for padding."""
    import tensorflow as tf

    return tf.where(ids == PAD, "", tf.gather(token_strings, ids))
