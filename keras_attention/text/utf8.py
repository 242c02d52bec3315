"""A token for each byte of a text's UTF-8 form."""

import keras
import numpy as np

from keras_attention.text.inputs import as_strings, check_normalization
from keras_attention.text.normalization import normalize
from keras_attention.text.tables import Constant, strings_constant
from keras_attention.text.tokenizer import RESERVED, SPECIAL_TOKENS, UNKNOWN_TEXT, Tokenizer
from keras_attention.text.vocabulary import check_texts, prepare, shown

BYTES = 256


@keras.saving.register_keras_serializable(package="keras_attention")
class ByteTokenizer(Tokenizer):
    """Splits texts `[B]` into the bytes of their UTF-8 form: ids `[B, L]`, byte b has id b + 4.

    It needs no vocabulary and knows every text: by default `decode(encode(x))` is x. Bytes that
    are no UTF-8 have ids too; where decoded bytes are no UTF-8, as a model may put out, `decode`
    shows U+FFFD.

    Args:
        lowercase: whether texts are put in lower case.
        normalization: Unicode normal form that texts are put into, "NFC", "NFD", "NFKC", "NFKD",
            or None to leave them as they are. Unless it is None, `decode` gives composed text.

    Call arguments: `encode(texts [B])`, `decode(ids [B, L])`, `tokens_of(ids)`.

    Returns:
        `encode`: int32 ids `[B, L]`; `decode`: strings `[B]`.

    Masking: padding has id 0, as `Embedding(mask_zero=True)` and `padding_mask` expect.

    Raises:
        ValueError: if the normalisation is none of these.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> ids = tokenizer.encode(["é!"], add_end=True)
    >>> ids.numpy().tolist()
    [[199, 173, 37, 2]]
    >>> print(*[token.decode("utf-8") for token in tokenizer.tokens_of(ids)[0].numpy()])
    <0xC3> <0xA9> ! </s>
    """

    _check_utf8 = False

    def __init__(self, lowercase=False, normalization=None):
        check_normalization(normalization)
        self.lowercase, self.normalization = bool(lowercase), normalization
        letters = [chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>" for byte in range(BYTES)]
        self._tokens = [*SPECIAL_TOKENS, *letters]
        self._token_strings = strings_constant(self._tokens)
        raw = np.empty(len(self._tokens), object)
        raw[:] = [b""] * 3 + [UNKNOWN_TEXT.encode("utf-8")] + [bytes([b]) for b in range(BYTES)]
        self._raw = Constant(raw)

    @classmethod
    def fit(cls, texts, lowercase=False, normalization=None):
        """A tokenizer, as the other classes make it; there is nothing to learn from `texts`.

        Args:
            texts: iterable of str, which is only checked.
            lowercase: whether texts are put in lower case.
            normalization: Unicode normal form that texts are put into, or None.

        Returns:
            The tokenizer.

        Raises:
            ValueError: if an item is no text.
        """
        as_strings(check_texts(texts), check_utf8=False)
        return cls(lowercase, normalization)

    @property
    def tokens(self):
        return list(self._tokens)

    def get_config(self):
        return {"lowercase": self.lowercase, "normalization": self.normalization}

    def _split_to_ids(self, strings):
        import tensorflow as tf

        if self.lowercase:
            points = prepare(strings, True, self.normalization)
            strings = tf.strings.unicode_encode(points, "UTF-8")
        else:
            strings = normalize(strings, self.normalization)
        characters = tf.strings.bytes_split(strings)
        codes = tf.io.decode_raw(characters.flat_values, "uint8", fixed_length=1)
        ids = tf.cast(tf.reshape(codes, [-1]), "int32") + RESERVED
        return characters.with_flat_values(ids)

    def _join(self, ids):
        import tensorflow as tf

        text = tf.strings.reduce_join(shown(ids, self._raw()), axis=-1)
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")  # U+FFFD for what is no UTF-8
        return text if self.normalization is None else normalize(text, "NFC")
