"""A token for each character."""

import keras

from keras_attention.text.tables import IntegerIndex
from keras_attention.text.vocabulary import VocabularyTokenizer, shown


@keras.saving.register_keras_serializable(package="keras_attention")
class CharacterTokenizer(VocabularyTokenizer):
    """Splits texts `[B]` into characters (Unicode code points): ids `[B, L]`.

    With `normalization="NFD"` a Hangul syllable is two or three tokens, its jamo, and an accented
    letter a letter and its accents. `decode` puts them together again: for texts whose characters
    are all known, `decode(encode(x))` is x in composed form (NFC; NFKC for the two compatibility
    forms; x itself for None), in lower case if that was asked for.

    Args:
        vocabulary: list of characters, in the order of their ids, which begin at 4. `fit` counts
            them in training texts.
        lowercase: whether texts are put in lower case.
        normalization: Unicode normal form of the tokens, "NFC", "NFD", "NFKC", "NFKD" or None.

    Call arguments: `encode(texts [B])`, `decode(ids [B, L])`, `tokens_of(ids)`.

    Returns:
        `encode`: int32 ids `[B, L]`; `decode`: strings `[B]`.

    Masking: padding has id 0, as `Embedding(mask_zero=True)` and `padding_mask` expect.

    Raises:
        ValueError: if the vocabulary is empty, or holds a token twice or one of several characters.

    Example:

    >>> tokenizer = CharacterTokenizer.fit(["한국", "abc"], normalization="NFD")
    >>> ids = tokenizer.encode(["국", "cab"], add_end=True)
    >>> ids.shape
    TensorShape([2, 4])
    >>> [text.decode("utf-8") for text in tokenizer.decode(ids).numpy()]
    ['국', 'cab']
    """

    @staticmethod
    def _split(points):
        return points

    _text_of = staticmethod(chr)

    def _check_token(self, token, name):
        if not isinstance(token, str) or len(token) != 1:
            raise ValueError(f"{name} must be one character. Got {token!r:.80}")

    def _make_index(self):
        return IntegerIndex([ord(token) for token in self.vocabulary])

    def _join(self, ids):
        import tensorflow as tf

        return self._compose(tf.strings.reduce_join(shown(ids, self._token_strings()), axis=-1))
