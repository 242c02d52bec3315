"""What all tokenizers share: reserved ids, padding, and the way from ids back to text."""

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "⁇")
RESERVED = len(SPECIAL_TOKENS)
UNKNOWN_TEXT = SPECIAL_TOKENS[UNKNOWN]


class Tokenizer:
    """Text -> ids -> text, in eager mode and in the graph: strings `[B]`, ids `[B, L]`.

    Base of `CharacterTokenizer`, `WordTokenizer`, `ByteTokenizer` and `SubwordTokenizer`. Ids are 0
    for padding, 1 for the start of a text, 2 for its end, 3 for what is unknown; tokens follow.

    A subclass defines `tokens`, `_split_to_ids(strings) -> ragged ids` and `_join(ids) -> strings`,
    whose ids `[N, L]` hold padding where nothing is to be shown.
    """

    _check_utf8 = True

    @property
    def tokens(self):
        """List of the text of each token, the four special ones first."""
        raise NotImplementedError

    @property
    def size(self):
        """Number of ids V: a model's embedding and its logits need that many entries."""
        return len(self.tokens)

    def encode(self, texts, add_start=False, add_end=False, max_length=None):
        """Ids of texts.

        Args:
            texts: a str, a list of str, or a string tensor `[B]`, UTF-8. One str counts as B = 1.
            add_start: whether to put START before each text.
            add_end: whether to put END behind each text.
            max_length: the most ids of a text, with START and END; longer texts lose what is
                too much at their end, but not the END.

        Returns:
            int32 ids `[B, L]`, padded with 0 behind each text, L at least 1.

        Raises:
            ValueError: if an item is no text, or not UTF-8, naming its index; or if `max_length`
                leaves no room for a token. (In a string tensor, bytes that are no UTF-8 count as
                the character U+FFFD.)
        """
        import tensorflow as tf

        from keras_attention.text.inputs import as_strings

        extra = bool(add_start) + bool(add_end)
        if max_length is not None and max_length <= extra:
            raise ValueError(
                f"max_length must leave room for a token, expected at least {extra + 1}. "
                f"Got {max_length}"
            )
        ids = self._split_to_ids(as_strings(texts, self._check_utf8))
        if max_length is not None:
            ids = ids[:, : max_length - extra]
        column = [ids.nrows(), 1]
        start = [tf.fill(column, START)] if add_start else []
        end = [tf.fill(column, END)] if add_end else []
        if extra:
            ids = tf.concat([*start, ids, *end], axis=1)
        ids = ids.to_tensor(PAD)
        missing = tf.maximum(1 - tf.shape(ids)[1], 0)
        return tf.pad(ids, [[0, 0], [0, missing]])

    def decode(self, ids):
        """Texts of ids.

        Args:
            ids: integers `[B, L]`, or with more axes in front, such as `[B, N, L]` for the N best.

        Returns:
            String tensor `[B]` (or `[B, N]`): each text up to its first END, without START and
            padding. What is unknown is shown as "⁇".

        Raises:
            ValueError: if the ids are no integers, or a scalar.
        """
        import tensorflow as tf

        ids = _as_ids(ids)
        if ids.shape.rank == 0:
            raise ValueError("ids must have an axis of steps, [B, L]. Got a scalar")
        outer = tf.shape(ids)[:-1]
        ids = tf.reshape(ids, [tf.reduce_prod(outer), tf.shape(ids)[-1]])
        ended = tf.cumsum(tf.cast(ids == END, "int32"), axis=1) > 0
        ids = tf.where(ended | (ids == START), PAD, self._known(ids))
        return tf.reshape(self._join(ids), outer)

    def tokens_of(self, ids):
        """The text of each token, for the axes of a picture: strings of the shape of `ids`.

        Args:
            ids: integers `[B, L]`, or of any other shape.

        Returns:
            Strings, the same shape: "<pad>", "<s>", "</s>", "⁇" or the token as `tokens` has it.

        Raises:
            ValueError: if the ids are no integers.
        """
        import tensorflow as tf

        return tf.gather(self._token_strings(), self._known(_as_ids(ids)))

    def _known(self, ids):
        """Ids beyond the vocabulary, which nothing here gives, count as unknown."""
        import tensorflow as tf

        return tf.where((ids >= 0) & (ids < self.size), ids, UNKNOWN)

    def _split_to_ids(self, strings):
        raise NotImplementedError

    def _join(self, ids):
        raise NotImplementedError

    def _token_strings(self):
        raise NotImplementedError

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def _as_ids(ids):
    import tensorflow as tf

    ids = ids.to_tensor(PAD) if isinstance(ids, tf.RaggedTensor) else tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise ValueError(f"ids must be integers. Got {ids.dtype.name} of shape {ids.shape}")
    return tf.cast(ids, "int32")
