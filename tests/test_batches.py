"""Batches: limits on tokens, the order of epochs, a long text in stretches.

What all batches of pairs have in common is tested in test_seq2seq.py.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention.layers.pooling import MaskedPooling
from keras_attention.models.batches import text_batches
from keras_attention.models.epochs import EpochCounter, epoch_dataset
from keras_attention.models.language_batches import language_batches
from keras_attention.text import CharacterTokenizer

LETTERS = CharacterTokenizer.fit(["abcdef"])
TEXTS = st.lists(st.tuples(*[st.text("abcdef", min_size=1, max_size=9)] * 2), min_size=1)


def epoch_of(batches):
    """Batches as lists: `[((source, target), labels), ...]`."""
    return [((s.numpy(), t.numpy()), labels.numpy()) for (s, t), labels in batches]


def pairs_of(epoch):
    """The pairs of texts of each batch."""
    return [
        list(zip(*(map(bytes.decode, LETTERS.decode(x).numpy()) for x in (s, labels)), strict=True))
        for (s, _), labels in epoch
    ]


def words(count, seed=0, longest=15):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("abcdef"), rng.integers(1, longest))) for _ in range(count)]


# Batches of so many tokens


@settings(max_examples=20, deadline=None)
@given(TEXTS, st.integers(10, 60), st.none() | st.integers(1, 5), st.booleans())
def test_no_batch_has_more_tokens(pairs, tokens, batch_size, shuffle):
    sources, targets = zip(*pairs, strict=True)
    batches = text_batches(
        sources, targets, LETTERS, LETTERS, batch_size, shuffle, tokens_per_batch=tokens
    )
    for _ in range(2):
        epoch = epoch_of(batches)
        assert len(epoch) == len(batches)
        assert sorted(sum(pairs_of(epoch), [])) == sorted(pairs)
        for (source, target), labels in epoch:
            assert source.size <= tokens and target.size <= tokens
            assert len(source) <= (batch_size or 1000)
            assert source.max(axis=0).all() and labels.max(axis=0).all()  # not padded in vain


def test_batches_are_as_full_as_they_may_be():
    """The first pair of the next longer batch would not have fitted in."""
    texts = words(300)
    batches = text_batches(texts, texts, LETTERS, LETTERS, shuffle=False, tokens_per_batch=64)
    shapes = [source.shape for (source, _), _ in epoch_of(batches)]
    lengths = sorted(len(text) + 1 for text in texts)
    start = 0
    for rows, longest in shapes[:-1]:
        assert longest == lengths[start + rows - 1]
        assert (rows + 1) * lengths[start + rows] > 64
        start += rows
    assert len({rows for rows, _ in shapes}) > 5, "short pairs make larger batches"


def test_the_longer_side_counts():
    short, long = ["a"] * 12, ["abcde"] * 12
    for pairs in ((short, long), (long, short)):
        batches = text_batches(*pairs, LETTERS, LETTERS, tokens_per_batch=24)
        assert [len(labels) for _, labels in epoch_of(batches)] == [4, 4, 4]
    # The smaller of two limits holds, and 64 is no limit here.
    few = text_batches(short, long, LETTERS, LETTERS, 3, tokens_per_batch=24)
    assert [len(labels) for _, labels in epoch_of(few)] == [3, 3, 3, 3]
    (one,) = epoch_of(text_batches(["a"] * 80, ["a"] * 80, LETTERS, LETTERS, tokens_per_batch=160))
    assert one[1].shape == (80, 2)


def test_batches_of_tokens_are_others_in_each_epoch():
    texts = words(200, longest=6)
    make = lambda seed: text_batches(  # noqa: E731
        texts, texts, LETTERS, LETTERS, seed=seed, tokens_per_batch=50
    )
    first, again, other = make(0), make(0), make(1)
    epochs = [pairs_of(epoch_of(first)) for _ in range(2)]
    assert epochs == [pairs_of(epoch_of(again)) for _ in range(2)]
    assert epochs[0] != pairs_of(epoch_of(other))
    company = [{frozenset(map(str, batch)) for batch in epoch} for epoch in epochs]
    assert len(company[0] & company[1]) < len(company[0]) / 2, "the same pairs stay together"
    assert [len(x) for x in epochs[0]] != [len(x) for x in epochs[1]], "the order stays"
    assert sorted(map(len, epochs[0])) == sorted(map(len, epochs[1])), "the sizes must stay"


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (
            r"Received 5; 2 of 3 pairs need more, up to 8 tokens. `max_length=4` leaves",
            {"tokens_per_batch": 5},
        ),
        ("`tokens_per_batch` must be a positive integer", {"tokens_per_batch": 0}),
        ("`tokens_per_batch` must be a positive integer", {"tokens_per_batch": 64.0}),
        ("`batch_size` must be a positive", {"tokens_per_batch": 64, "batch_size": 0}),
        ("`seed` must be an integer", {"seed": -1}),
        ("`seed` must be an integer", {"seed": "0"}),
        ("`shuffle` must be True or False", {"shuffle": 1}),
        ("`epoch` must be an EpochCounter", {"epoch": 3}),
    ],
)
def test_errors_of_batches(message, options):
    sources, targets = ["ab", "abcdefa", "ab"], ["a", "abc", "abcde"]
    with pytest.raises(ValueError, match=message):
        text_batches(sources, targets, LETTERS, LETTERS, **options)
    if "leaves" in message:
        kept = text_batches(sources, targets, LETTERS, LETTERS, max_length=4, **options)
        assert pairs_of(epoch_of(kept)) == [[("ab", "a")]]


# A long text


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_stretches_of_a_text(count, length, batch_size, shuffle):
    if count <= length:
        return
    batches = language_batches(np.arange(count) + 4, length, batch_size, shuffle)
    for _ in range(3):
        epoch = [(x.numpy(), y.numpy()) for x, y in batches]
        assert len(epoch) == len(batches)
        assert all(len(x) == batch_size for x, _ in epoch[:-1])
        inputs, labels = (np.concatenate(side) for side in zip(*epoch, strict=True))
        assert inputs.dtype == labels.dtype == "int32" and inputs.shape[1] == length
        np.testing.assert_array_equal(labels, inputs + 1)
        flat = np.sort(inputs.ravel())
        np.testing.assert_array_equal(flat, np.arange(len(flat)) + flat[0])  # without a gap
        offset, left_out = flat[0] - 4, count - 1 - len(flat)
        assert offset == 0 if not shuffle else offset < length
        assert left_out <= (2 * length - 2 if shuffle else length - 1)


def test_stretches_start_elsewhere_in_each_epoch():
    ids = np.arange(1000)
    batches = language_batches(ids, 7, 16)
    epochs = [np.concatenate([x for x, _ in batches]) for _ in range(40)]
    assert {epoch.min() for epoch in epochs} == set(range(7)), "not all offsets are used"
    assert (np.diff(epochs[0][:, 0]) != 7).any(), "stretches are not shuffled"
    again = language_batches(ids, 7, 16)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in again]), epochs[0])
    assert {len(epoch) for epoch in epochs} == {(1000 - 7) // 7}


def test_a_text_on_disk(tmp_path):
    array = np.memmap(tmp_path / "ids", dtype="uint16", mode="w+", shape=(100,))
    array[:] = np.arange(100)
    (inputs, labels), *_ = language_batches(array, 9, 4, shuffle=False)
    assert inputs.shape == (4, 9) and labels[3, 8] == 36


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("Received 3 tokens and a length of 3", ([1, 2, 3], 3)),
        (r"`ids` must be integers \[N\]. Received shape \(1, 3\)", ([[1, 2, 3]], 1)),
        ("dtype float64", ([1.0, 2.0], 1)),
        (r"shape \(\)", ("abc", 1)),
        ("`length` must be a positive", ([1, 2, 3], 0)),
        ("`batch_size` must be a positive", ([1, 2, 3], 1, None)),
    ],
)
def test_errors_of_stretches(message, arguments):
    with pytest.raises(ValueError, match=message):
        language_batches(*arguments)


# Which epoch it is


def small_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("kind", ["sizes", "tokens", "stretches"])
def test_the_order_depends_on_the_counter(kind):
    texts, epoch = words(60), EpochCounter(4)
    make = {
        "sizes": lambda **kw: text_batches(texts, texts, LETTERS, LETTERS, 8, **kw),
        "tokens": lambda **kw: text_batches(
            texts, texts, LETTERS, LETTERS, tokens_per_batch=60, **kw
        ),
        "stretches": lambda **kw: language_batches(range(99), 5, 4, **kw),
    }[kind]

    def read(batches):
        return [keras.tree.map_structure(lambda x: x.numpy().tolist(), batch) for batch in batches]

    counted, told = make(), make(epoch=epoch)
    epochs = [read(counted) for _ in range(6)]
    assert read(told) == epochs[4] == read(told)
    epoch.number = 1
    assert read(told) == epochs[1] != epochs[4]
    assert read(told.map(lambda *batch: batch).prefetch(1)) == epochs[1]


def test_fit_tells_which_epoch_it_is(monkeypatch):
    seen, epoch, model = [], EpochCounter(), small_model()

    def batches(random):
        seen.append((epoch.number, random.integers(10**9)))
        yield np.ones((2, 3), "float32"), np.ones((2, 1), "float32")

    signature = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
    data = epoch_dataset(batches, signature, count=1, epoch=epoch)
    model.fit(data, epochs=3, verbose=0, callbacks=[epoch])
    model.fit(data, initial_epoch=1, epochs=4, verbose=0, callbacks=[epoch])
    # (JAX's and PyTorch's `fit` read the first batch once more.)
    assert [number for number, _ in itertools.groupby(seen, key=lambda x: x[0])] == [
        0,
        1,
        2,
        1,
        2,
        3,
    ]
    numbers = dict(seen)
    assert (
        all(numbers[epoch] == number for epoch, number in seen) and len(set(numbers.values())) == 4
    )


def test_dropout_depends_on_the_counter():
    x, y, epoch = np.ones((8, 3)), np.ones((8, 1)), EpochCounter()
    whole, halves = small_model(), small_model()
    fit = {"x": x, "y": y, "batch_size": 2, "shuffle": False, "verbose": 0, "callbacks": [epoch]}
    whole.fit(epochs=4, **fit)
    halves.fit(epochs=2, **fit)
    taken_up = small_model()
    taken_up.set_weights(halves.get_weights())
    taken_up.fit(initial_epoch=2, epochs=4, **fit)
    for a, b in zip(whole.get_weights(), taken_up.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    other = small_model()
    other.set_weights(halves.get_weights())
    other.fit(initial_epoch=0, epochs=2, **fit)
    assert any(
        (a != b).any() for a, b in zip(whole.get_weights(), other.get_weights(), strict=True)
    )


@pytest.mark.parametrize("bad", [-1, 1.0, None, True])
def test_numbers_that_are_no_epoch(bad):
    with pytest.raises(ValueError, match="`number` must be an integer of at least 0"):
        EpochCounter(bad)


def test_pooled_pairs_go_into_fit():
    """Batches of all kinds of sizes, with the padding that the pooling leaves out."""
    source, target = (keras.Input((None,), dtype="int32", name=n) for n in ("source", "target"))
    embed = keras.layers.Embedding(10, 4, mask_zero=True)
    vector = keras.layers.Add()([MaskedPooling()(embed(x)) for x in (source, target)])
    model = keras.Model([source, target], keras.layers.Dense(1)(vector))
    model.compile("sgd", "mse", jit_compile=False)
    texts = words(40)
    batches = text_batches(texts, texts, LETTERS, LETTERS, tokens_per_batch=60)
    targets = batches.map(lambda x, labels: (x, labels[:, :1]))
    assert np.isfinite(model.fit(targets, epochs=2, verbose=0).history["loss"]).all()
    assert int(model.optimizer.iterations) == 2 * len(batches)
