"""Words to letters, in Python and inside the graph, with the same result.

A letter is one Unicode code point of the lower-cased word in composed form (NFC), except that a
Hangul syllable is split into its jamo, by the arithmetic of the Unicode standard, section 3.12.
"""

import unicodedata

import tensorflow as tf

HANGUL_FIRST, HANGUL_LAST = 0xAC00, 0xD7A3
LEADS, VOWELS, TAILS = 0x1100, 0x1161, 0x11A7
VOWEL_COUNT, TAIL_COUNT = 21, 28

ASCII_SPACE = " \t\n\v\f\r"  # what tf.strings.strip takes away
PADDING, UNKNOWN, RESERVED_LETTERS = 0, 1, 2


def split_syllable(letter):
    """Returns the jamo of a Hangul syllable; any other letter unchanged."""
    index = ord(letter) - HANGUL_FIRST
    if not 0 <= index <= HANGUL_LAST - HANGUL_FIRST:
        return letter
    block, tail = divmod(index, TAIL_COUNT)
    lead, vowel = divmod(block, VOWEL_COUNT)
    jamo = chr(LEADS + lead) + chr(VOWELS + vowel)
    return jamo + chr(TAILS + tail) if tail else jamo


def split_letters(word):
    """Returns the list of letters of a word."""
    composed = unicodedata.normalize("NFC", word.strip(ASCII_SPACE).lower())
    return [jamo for letter in composed for jamo in split_syllable(letter)]


def graph_split_letters(text, alphabet):
    """`split_letters` for a tensor of strings `[B]`: ragged code points `[B, (T)]`.

    TensorFlow has no NFC: the letters of `alphabet` are composed, which are all that have an id.
    """
    text = tf.strings.strip(tf.strings.lower(text, encoding="utf-8"))
    for letter in alphabet:
        decomposed = unicodedata.normalize("NFD", letter)
        if decomposed != letter:
            text = tf.strings.regex_replace(text, decomposed, letter)
    points = tf.strings.unicode_decode(text, "UTF-8")
    jamo, present = _graph_split_syllables(points.flat_values)
    split = tf.ragged.boolean_mask(points.with_values(jamo), points.with_values(present))
    return split.merge_dims(1, 2)


def _graph_split_syllables(points):
    """Code points `[N]` -> their up to three parts `[N, 3]`, and which of them there are."""
    is_syllable = (points >= HANGUL_FIRST) & (points <= HANGUL_LAST)
    index = points - HANGUL_FIRST
    lead = LEADS + index // (VOWEL_COUNT * TAIL_COUNT)
    vowel = VOWELS + index // TAIL_COUNT % VOWEL_COUNT
    tail = TAILS + index % TAIL_COUNT
    parts = tf.stack([tf.where(is_syllable, lead, points), vowel, tail], axis=-1)
    has_tail = is_syllable & (tail != TAILS)
    present = tf.stack([tf.ones_like(is_syllable), is_syllable, has_tail], axis=-1)
    return parts, present


def graph_letter_ids(points, alphabet):
    """Ids of ragged code points: the place in the sorted `alphabet`, or [UNK].

    Returns: ids `[B, T]`, padded, with T at least 1, and the lengths `[B]`.
    """
    known = tf.constant([ord(letter) for letter in alphabet], dtype="int32")
    place = tf.searchsorted(known, points.flat_values)
    found = tf.gather(known, tf.minimum(place, len(alphabet) - 1)) == points.flat_values
    ids = points.with_values(tf.where(found, place + RESERVED_LETTERS, UNKNOWN))
    lengths = tf.cast(points.row_lengths(), "int32")
    ids = ids.to_tensor(default_value=PADDING)
    missing = tf.maximum(1 - tf.shape(ids)[1], 0)
    return tf.pad(ids, [[0, 0], [0, missing]], constant_values=PADDING), lengths
