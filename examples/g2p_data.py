"""Pronunciation dictionaries: files, parts for training and testing, vocabularies, batches."""

import hashlib
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from g2p_text import RESERVED_LETTERS, UNKNOWN, split_letters

from keras_attention.text import DataError, read_lines

BUNDLED = Path(__file__).parent / "data" / "cmudict.tsv.xz"
PADDING, START, END, RESERVED_PHONES = 0, 1, 2, 3
HELD_OUT_PERCENT = 5
Lexicon = dict  # word -> list of pronunciations, each a tuple of phones


def read_lexicon(path):
    """Reads `word<TAB>phones separated by spaces`, one pronunciation a line.

    A `DataError` names the file and, where it can, the line.
    """
    lexicon = {}
    try:
        lines = read_lines(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such data file") from None
    except OSError as error:
        raise DataError(f"{path}: can not be read: {error.strerror or error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            word, phones = _parse(line, f"{path}, line {number}")
            pronunciations = lexicon.setdefault(word, [])
            if phones not in pronunciations:
                pronunciations.append(phones)
    if not lexicon:
        raise DataError(f"{path}: expected lines 'word<TAB>phones', got an empty file")
    return lexicon


def _parse(line, place):
    fields = unicodedata.normalize("NFC", line).split("\t")
    word, phones = fields[0].strip().lower(), tuple(fields[-1].split())
    if len(fields) != 2 or not word or not phones:
        raise DataError(
            f"{place}: expected 'word<TAB>phones separated by spaces', got {line!r:.80}"
        )
    return word, phones


class Parts(NamedTuple):
    """Three lexicons that share no word."""

    train: Lexicon
    dev: Lexicon
    test: Lexicon


def stable_hash(word):
    """Returns a number that depends on the word alone: the same on every machine and day."""
    return int.from_bytes(hashlib.sha256(word.encode("utf-8")).digest()[:8], "big")


def split_by_word(lexicon):
    """Splits a lexicon by a hash of the word: all pronunciations of a word fall in one part."""
    parts = Parts({}, {}, {})
    for word, pronunciations in lexicon.items():
        percent = stable_hash(word) % 100
        held_out = (percent < 2 * HELD_OUT_PERCENT) + (percent < HELD_OUT_PERCENT)
        parts[held_out][word] = pronunciations
    return parts


def companions(path):
    """Returns the dev and test files beside `..._train.tsv`; None where there are none."""
    stem, mark, suffix = Path(path).name.rpartition("_train.")
    files = [Path(path).with_name(f"{stem}_{part}.{suffix}") for part in ("dev", "test")]
    return [file if mark and file.exists() else None for file in files]


def load_parts(path, dev_path=None, test_path=None):
    """Reads the three parts: from files of their own where given or found, else by the split."""
    lexicon = read_lexicon(path)
    found_dev, found_test = companions(path)
    dev_path, test_path = dev_path or found_dev, test_path or found_test
    if (dev_path is None) != (test_path is None):
        raise DataError(f"{path}: expected both a dev and a test file beside it, or neither")
    if dev_path is None:
        parts = split_by_word(lexicon)
    else:
        dev, test = read_lexicon(dev_path), read_lexicon(test_path)
        dev = {word: phones for word, phones in dev.items() if word not in test}
        held_out = dev.keys() | test.keys()
        train = {word: phones for word, phones in lexicon.items() if word not in held_out}
        parts = Parts(train, dev, test)
    for name, part in parts._asdict().items():
        if not part:
            raise DataError(f"{path}: expected more words, the {name} part is empty")
    return parts


def take(lexicon, limit):
    """Returns `limit` words, drawn by their hash and so the same in every run."""
    if limit is None or limit >= len(lexicon):
        return lexicon
    return {word: lexicon[word] for word in sorted(lexicon, key=stable_hash)[:limit]}


class Vocabulary(NamedTuple):
    """Letters (sorted single code points, jamo for Hangul) and phones of a training part."""

    letters: tuple
    phones: tuple

    @classmethod
    def of(cls, lexicon):
        letters = {letter for word in lexicon for letter in split_letters(word)}
        phones = {phone for listed in lexicon.values() for phones in listed for phone in phones}
        return cls(tuple(sorted(letters)), tuple(sorted(phones)))

    @property
    def letter_count(self):
        return len(self.letters) + RESERVED_LETTERS

    @property
    def phone_count(self):
        return len(self.phones) + RESERVED_PHONES

    def letter_ids(self, words):
        ids = {letter: place for place, letter in enumerate(self.letters, RESERVED_LETTERS)}
        return [[ids.get(letter, UNKNOWN) for letter in split_letters(word)] for word in words]

    def phone_ids(self, pronunciations):
        """Ids of pronunciations; a phone that training does not know raises KeyError."""
        ids = {phone: place for place, phone in enumerate(self.phones, RESERVED_PHONES)}
        return [[ids[phone] for phone in phones] for phones in pronunciations]

    def phones_of(self, ids):
        return [self.phones[number - RESERVED_PHONES] for number in ids]


BUCKET_BOUNDS = (5, 7, 9, 11, 13, 16, 20)


def padded(rows):
    """Returns lists of ids as one array `[N, longest]`, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    array = np.full([len(rows), lengths.max()], PADDING, "int32")
    for row, target in zip(rows, array, strict=True):
        target[: len(row)] = row
    return array, lengths


def bucketed(lengths, batch_size, random):
    """Returns the row numbers of each batch of one epoch, in random order.

    Rows of about the same length share a batch, so that little of it is padding.
    """
    order = random.permutation(len(lengths))
    buckets = np.digitize(lengths, BUCKET_BOUNDS)[order]
    batches = [
        members[first : first + batch_size]
        for members in (order[buckets == bucket] for bucket in np.unique(buckets))
        for first in range(0, len(members), batch_size)
    ]
    random.shuffle(batches)
    return batches


def training_batches(lexicon, vocabulary, batch_size, seed):
    """Returns a dataset of ((letters, phones shifted right), one-hot phones with the end)."""
    pairs = [(word, phones) for word, listed in lexicon.items() for phones in listed]
    letters, letter_lengths = padded(vocabulary.letter_ids(word for word, _ in pairs))
    phones = vocabulary.phone_ids(phones for _, phones in pairs)
    inputs, phone_lengths = padded([[START, *ids] for ids in phones])
    targets, _ = padded([[*ids, END] for ids in phones])
    lengths = np.maximum(letter_lengths, phone_lengths)
    random = np.random.default_rng(seed)

    def epoch():
        for rows in bucketed(lengths, batch_size, random):
            width, height = letter_lengths[rows].max(), phone_lengths[rows].max()
            yield (letters[rows, :width], inputs[rows, :height]), targets[rows, :height]

    ids = tf.TensorSpec([None, None], "int32")
    return (
        tf.data.Dataset.from_generator(epoch, output_signature=((ids, ids), ids))
        .apply(tf.data.experimental.assert_cardinality(len(bucketed(lengths, batch_size, random))))
        .map(lambda sources, targets: (sources, tf.one_hot(targets, vocabulary.phone_count)))
        .prefetch(tf.data.AUTOTUNE)
    )
