"""A token for each word and each punctuation mark, with the spaces between them kept."""

import functools
import unicodedata

import keras
import numpy as np

from keras_attention.text.tables import Constant, StringIndex, strings_constant
from keras_attention.text.tokenizer import PAD, SPECIAL_TOKENS
from keras_attention.text.vocabulary import VocabularyTokenizer

# On a symbol's side, it says that no space stands between the symbol and its neighbour. In a text
# it counts as a letter, so that no word can be taken for a marked symbol.
JOIN = "‿"
JOINERS = "\u200c\u200d"  # The zero-width (non-)joiner stands within words of some scripts.
SPACE = ord(" ")
EDGE = -1


@keras.saving.register_keras_serializable(package="keras_attention")
class WordTokenizer(VocabularyTokenizer):
    """Splits texts `[B]` into words and single symbols: ids `[B, L]`.

    A word is a run of letters, combining marks and digits of any script. Every other character is a
    token of its own, a symbol, except for the single space between two tokens, which is no token.
    "‿" on the side of a symbol says that no space stands there: "(Oh, no!)" is
    `(‿ Oh ‿, no ‿! ‿)`. Words need no such mark. A space at an end of the text, or beside another
    space, is a symbol like any other. So texts of known tokens come back from `decode` exactly, up
    to lower case and normal form. An unknown token comes back as "⁇" between spaces.

    Scripts without spaces, such as Chinese or Thai, need characters or subwords instead.

    Args:
        vocabulary: list of tokens, in the order of their ids, which begin at 4. `fit` counts them
            in training texts.
        lowercase: whether texts are put in lower case.
        normalization: Unicode normal form of the tokens, "NFC", "NFD", "NFKC", "NFKD" or None.

    Call arguments: `encode(texts [B])`, `decode(ids [B, L])`, `tokens_of(ids)`.

    Returns:
        `encode`: int32 ids `[B, L]`; `decode`: strings `[B]`.

    Masking: padding has id 0, as `Embedding(mask_zero=True)` and `padding_mask` expect.

    Raises:
        ValueError: if the vocabulary is empty, or holds a token twice.

    Example:

    >>> tokenizer = WordTokenizer.fit(["A dog (brown) runs.", "It's a dog."], lowercase=True)
    >>> ids = tokenizer.encode("It's (a) cat.")
    >>> print(*[token.decode("utf-8") for token in tokenizer.tokens_of(ids)[0].numpy()])
    it ‿'‿ s (‿ a ‿) ⁇ ‿.
    >>> print(tokenizer.decode(ids)[0].numpy().decode("utf-8"))
    it's (a) ⁇.
    """

    def __init__(self, vocabulary, lowercase=False, normalization="NFC"):
        super().__init__(vocabulary, lowercase, normalization)
        parts = [("", False, False)] * len(SPECIAL_TOKENS) + list(map(_parts, self.vocabulary))
        parts[: len(SPECIAL_TOKENS)] = [(token, False, False) for token in SPECIAL_TOKENS]
        texts, joins_left, joins_right = zip(*parts, strict=True)
        self._texts = strings_constant(texts)
        self._joins_left, self._joins_right = Constant(joins_left), Constant(joins_right)

    @staticmethod
    def _split(points):
        return _split_words(points)

    @staticmethod
    def _text_of(token):
        return token.decode("utf-8")

    def _make_index(self):
        return StringIndex(self.vocabulary)

    def _join(self, ids):
        import tensorflow as tf

        ids = tf.ragged.boolean_mask(ids, ids != PAD)
        flat = ids.flat_values
        _, same_row = _neighbours(ids.value_rowids())
        before = tf.concat([[PAD], flat[:-1]], 0)
        joined = tf.gather(self._joins_left(), flat) | tf.gather(self._joins_right(), before)
        space = tf.where(same_row & ~joined, " ", "")
        pieces = ids.with_flat_values(space + tf.gather(self._texts(), flat))
        return self._compose(tf.strings.reduce_join(pieces.to_tensor(""), axis=-1))


def _parts(token):
    """A token's text, and whether it joins what is left and right of it without a space."""
    body = token.removeprefix(JOIN)
    left = len(body) < len(token)
    symbol = body.removesuffix(JOIN)
    if len(symbol) != 1 or _is_word(ord(symbol)):
        return token, False, False
    return symbol, left, len(symbol) < len(body)


def _split_words(points):
    """Ragged code points `[B, (T)]` -> ragged tokens `[B, (L)]`."""
    import tensorflow as tf

    flat, rows = points.flat_values, points.value_rowids()
    has_next, has_previous = _neighbours(rows)
    before = tf.where(has_previous, tf.concat([[EDGE], flat[:-1]], 0), EDGE)
    after = tf.where(has_next, tf.concat([flat[1:], [EDGE]], 0), EDGE)

    def separates(left, point, right):
        ends = (left == EDGE) | (right == EDGE) | (left == SPACE) | (right == SPACE)
        return (point == SPACE) & ~ends

    word = _in_words(flat)
    separator = separates(before, flat, after)
    symbol = ~word & ~separator
    previous = lambda x: tf.concat([[False], x[:-1]], 0) & has_previous  # noqa: E731
    following = lambda x: tf.concat([x[1:], [False]], 0) & has_next  # noqa: E731
    first = symbol | (word & ~previous(word))
    left = symbol & has_previous & ~previous(separator)
    right = symbol & following(word)

    kept = tf.boolean_mask(flat, ~separator)
    token = tf.cumsum(tf.boolean_mask(tf.cast(first, "int64"), ~separator)) - 1
    count = tf.reduce_sum(tf.cast(first, "int64"))
    letters = tf.RaggedTensor.from_value_rowids(kept, token, nrows=count, validate=False)
    texts = tf.strings.unicode_encode(letters, "UTF-8")
    mark = lambda x: tf.where(tf.boolean_mask(x, first), JOIN, "")  # noqa: E731
    return tf.RaggedTensor.from_value_rowids(
        mark(left) + texts + mark(right),
        tf.boolean_mask(rows, first),
        nrows=points.nrows(),
        validate=False,
    )


def _neighbours(rows):
    """Whether the next, and the previous, of the values `[N]` is in the same row."""
    import tensorflow as tf

    same = rows[1:] == rows[:-1]
    return tf.concat([same, [False]], 0), tf.concat([[False], same], 0)


def _in_words(flat):
    """Whether each code point belongs to words."""
    import tensorflow as tf

    # Between the bounds, code points are in words and not, in turns.
    passed = tf.searchsorted(_word_bounds()(), flat, side="right")
    return passed % 2 == 1


def _is_word(point):
    character = chr(point)
    return unicodedata.category(character)[0] in "LMN" or character in JOIN + JOINERS


@functools.cache
def _word_bounds():
    """Sorted code points at which those of words begin and end."""
    is_word = np.array([False, *map(_is_word, range(0x110000))])
    return Constant(np.flatnonzero(is_word[1:] != is_word[:-1]).astype("int32"))
