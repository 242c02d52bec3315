"""Unicode normal forms and lower case of string tensors, inside the graph.

TensorFlow has no Unicode normalisation. Here it is made of core operations on code points, by the
algorithm of [Unicode Standard Annex #15](https://www.unicode.org/reports/tr15/): decompose, put
combining marks in canonical order, compose; with the tables of Python's `unicodedata`, and Hangul
by the arithmetic of section 3.12 of the standard.
"""

import functools
import unicodedata

import numpy as np

from keras_attention.text.inputs import check_normalization
from keras_attention.text.tables import Constant, find

CODE_POINTS = 0x110000
SYLLABLES, LEADS, VOWELS, TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
LEAD_COUNT, VOWEL_COUNT, TAIL_COUNT = 19, 21, 28
SYLLABLE_COUNT = LEAD_COUNT * VOWEL_COUNT * TAIL_COUNT
PAIR_SHIFT = 21  # bits of a code point


def code_points(texts):
    """Strings `[B]` -> ragged code points `[B, (T)]`; a byte that is no UTF-8 becomes U+FFFD."""
    import tensorflow as tf

    return tf.strings.unicode_decode(texts, "UTF-8")


def lower(texts):
    """Lower case of strings `[B]`; a NUL character, at which TensorFlow stops, becomes U+FFFD."""
    import tensorflow as tf

    return tf.strings.lower(tf.strings.regex_replace(texts, r"\x00", "\ufffd"), encoding="utf-8")


def normalize(texts, form):
    """Strings `[B]` in a Unicode normal form, as `unicodedata.normalize` gives them.

    Args:
        texts: string tensor `[B]`, UTF-8.
        form: "NFC", "NFD", "NFKC", "NFKD", or None, which changes nothing.

    Returns:
        Strings `[B]`. Bytes that are no UTF-8 become U+FFFD, unless `form` is None.

    Raises:
        ValueError: if the form is none of these.

    Example:

    >>> import tensorflow as tf
    >>> normalize(tf.constant(["e\\u0301"]), "NFC").numpy()[0].decode("utf-8")
    'é'
    """
    import tensorflow as tf

    check_normalization(form)
    if form is None:
        return texts
    return tf.strings.unicode_encode(normalize_points(code_points(texts), form), "UTF-8")


def normalize_points(points, form):
    """`normalize` for ragged code points `[B, (T)]`."""
    import tensorflow as tf

    if form is None:
        return points

    def convert():
        split = _split_syllables(_expand(points, *_decompositions(form[-2] == "K")))
        split = _order_marks(split)
        return _compose(split) if form[-1] == "C" else split

    # Most texts are in normal form already, which one look-up tells.
    _, may_change = find(_changeable(form)(), points.flat_values)
    return tf.cond(tf.reduce_any(may_change), convert, lambda: points)


def _expand(points, keys, starts, lengths, parts):
    """Puts in place of each code point in `keys` its `parts`, however many those are."""
    import tensorflow as tf

    flat = points.flat_values
    place, found = find(keys(), flat)
    counts = tf.where(found, tf.gather(lengths(), place), 1)
    source = tf.repeat(tf.range(tf.size(flat)), counts)
    within = tf.range(tf.size(source)) - tf.gather(tf.cumsum(counts, exclusive=True), source)
    start = tf.where(found, tf.gather(starts(), place), 0)
    # A code point that stays as it is looks up the first part of all, and drops it.
    expanded = tf.gather(parts(), tf.gather(start, source) + within)
    flat = tf.where(tf.gather(found, source), expanded, tf.gather(flat, source))
    return _with_rows(flat, tf.gather(points.value_rowids(), source), points.nrows())


def _with_rows(flat, rows, count):
    import tensorflow as tf

    return tf.RaggedTensor.from_value_rowids(flat, rows, nrows=count, validate=False)


def _split_syllables(points):
    """Hangul syllables into their two or three jamo."""
    import tensorflow as tf

    flat = points.flat_values
    index = flat - SYLLABLES
    is_syllable = (index >= 0) & (index < SYLLABLE_COUNT)
    lead = LEADS + index // (VOWEL_COUNT * TAIL_COUNT)
    vowel = VOWELS + index // TAIL_COUNT % VOWEL_COUNT
    tail = TAILS + index % TAIL_COUNT
    parts = tf.stack([tf.where(is_syllable, lead, flat), vowel, tail], axis=-1)
    present = tf.stack([tf.fill(tf.shape(flat), True), is_syllable, tail != TAILS], axis=-1)
    present &= tf.stack([tf.fill(tf.shape(flat), True), is_syllable, is_syllable], axis=-1)
    row_of_part = tf.repeat(points.value_rowids(), 3)
    kept = tf.reshape(present, [-1])
    flat = tf.boolean_mask(tf.reshape(parts, [-1]), kept)
    return _with_rows(flat, tf.boolean_mask(row_of_part, kept), points.nrows())


def _order_marks(points):
    """Sorts each run of combining marks by combining class; equal classes keep their order."""
    import tensorflow as tf

    flat = points.flat_values
    marks = _combining_class(flat)
    disorder = tf.reduce_any((marks[:-1] > marks[1:]) & (marks[1:] > 0))

    def sort():
        # Neither a base character nor the start of a text is ever passed.
        run = tf.cumsum(tf.cast(marks == 0, "int64")) + points.value_rowids()
        return tf.gather(flat, tf.argsort(run * 256 + tf.cast(marks, "int64"), stable=True))

    return points.with_flat_values(tf.cond(disorder, sort, lambda: flat))


def _combining_class(flat):
    import tensorflow as tf

    keys, classes = _combining_classes()
    place, found = find(keys(), flat)
    return tf.where(found, tf.gather(classes(), place), 0)


def _compose(points):
    """Joins each base character with the marks (or jamo) behind it, as long as a pair has one."""
    import tensorflow as tf

    def join(flat, rows, at, base, composite):
        flat = tf.tensor_scatter_nd_update(flat, base[:, None], composite)
        kept = tf.tensor_scatter_nd_update(
            tf.fill(tf.shape(flat), True), at[:, None], tf.fill(tf.shape(at), False)
        )
        flat, rows = tf.boolean_mask(flat, kept), tf.boolean_mask(rows, kept)
        return flat, rows, *_pairs_to_join(flat, rows)

    flat, rows = points.flat_values, points.value_rowids()
    state = (flat, rows, *_pairs_to_join(flat, rows))
    free = tf.TensorShape([None])
    flat, rows, *_ = tf.while_loop(
        lambda flat, rows, at, base, composite: tf.size(at) > 0,
        join,
        state,
        shape_invariants=(free,) * len(state),
    )
    return _with_rows(flat, rows, points.nrows())


def _pairs_to_join(flat, rows):
    """For each base character the first character behind it that it composes with, if any.

    Returns:
        Index of that character, index of the base, and what they compose to, each `[P]`.
    """
    import tensorflow as tf

    marks = _combining_class(flat)
    is_base = marks == 0
    index = tf.range(tf.size(flat))
    bases = tf.concat([[-1], tf.boolean_mask(index, is_base)], 0)
    base = tf.gather(bases, tf.cumsum(tf.cast(is_base, "int32"), exclusive=True))
    safe = tf.maximum(base, 0)
    # Between the two there may stand marks only, each of a lower class.
    before = tf.concat([[0], marks[:-1]], 0)
    near = (base == index - 1) | (before < marks)
    composite = _composite(tf.gather(flat, safe), flat)
    fits = near & (base >= 0) & (tf.gather(rows, safe) == rows) & (composite > 0)
    at = tf.boolean_mask(index, fits)
    base = tf.gather(base, at)
    first = tf.concat([[-1], base[:-1]], 0) != base
    first &= ~tf.gather(fits, base)  # A base that is joined itself waits.
    at = tf.boolean_mask(at, first)
    return at, tf.boolean_mask(base, first), tf.gather(composite, at)


def _composite(first, second):
    """What two code points compose to, 0 for those that do not."""
    import tensorflow as tf

    keys, composites = _compositions()
    pair = tf.bitwise.left_shift(tf.cast(first, "int64"), PAIR_SHIFT) + tf.cast(second, "int64")
    place, found = find(keys(), pair)
    composite = tf.where(found, tf.gather(composites(), place), 0)

    lead, vowel, tail = first - LEADS, second - VOWELS, second - TAILS
    open_syllable = (lead >= 0) & (lead < LEAD_COUNT) & (vowel >= 0) & (vowel < VOWEL_COUNT)
    composite = tf.where(
        open_syllable, SYLLABLES + (lead * VOWEL_COUNT + vowel) * TAIL_COUNT, composite
    )
    index = first - SYLLABLES
    takes_tail = (index >= 0) & (index < SYLLABLE_COUNT) & (index % TAIL_COUNT == 0)
    closed = takes_tail & (tail > 0) & (tail < TAIL_COUNT)
    return tf.where(closed, first + tail, composite)


def _is_syllable(point):
    return SYLLABLES <= point < SYLLABLES + SYLLABLE_COUNT


@functools.cache
def _changeable(form):
    """Sorted code points without which a text is in normal form."""
    points = set(_combining_classes()[0].array) | set(_decompositions(form[-2] == "K")[0].array)
    if form[-1] == "D":
        points |= set(range(SYLLABLES, SYLLABLES + SYLLABLE_COUNT))
    else:
        points = {
            point for point in points if unicodedata.normalize(form, chr(point)) != chr(point)
        }
        points |= set(_compositions()[0].array & (1 << PAIR_SHIFT) - 1)
        points |= set(_combining_classes()[0].array)
        points |= set(range(VOWELS, VOWELS + VOWEL_COUNT))
        points |= set(range(TAILS, TAILS + TAIL_COUNT))
    return Constant(np.array(sorted(points), "int32"))


@functools.cache
def _decompositions(compatibility):
    """Sorted code points that decompose, and where in the list of parts theirs are."""
    form = "NFKD" if compatibility else "NFD"
    keys, lengths, parts = [], [], []
    for point in range(CODE_POINTS):
        mapping = unicodedata.decomposition(chr(point))
        if mapping and (compatibility or mapping[0] != "<") and not _is_syllable(point):
            decomposed = unicodedata.normalize(form, chr(point))
            keys.append(point)
            lengths.append(len(decomposed))
            parts.extend(map(ord, decomposed))
    starts = np.cumsum([0, *lengths[:-1]])
    return tuple(Constant(np.array(x, "int32")) for x in (keys, starts, lengths, parts))


@functools.cache
def _combining_classes():
    """Sorted code points of combining marks, and their combining classes."""
    classes = {point: unicodedata.combining(chr(point)) for point in range(CODE_POINTS)}
    keys = [point for point in classes if classes[point]]
    return Constant(np.array(keys, "int32")), Constant(
        np.array([classes[point] for point in keys], "int32")
    )


@functools.cache
def _compositions():
    """Sorted pairs of code points that compose, as one number each, and what they compose to."""
    pairs = {}
    for point in range(CODE_POINTS):
        mapping = unicodedata.decomposition(chr(point))
        if (
            not mapping
            or mapping[0] == "<"
            or unicodedata.normalize("NFC", chr(point)) != chr(point)
        ):
            continue
        parts = [int(part, 16) for part in mapping.split()]
        if len(parts) == 2:
            pairs[(parts[0] << PAIR_SHIFT) + parts[1]] = point
    keys = sorted(pairs)
    return Constant(np.array(keys, "int64")), Constant(
        np.array([pairs[key] for key in keys], "int32")
    )
