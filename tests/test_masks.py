"""Masks against the reference's loops, alone and combined, in every mode."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import tensor, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    prefix_mask,
    segment_mask,
    window_mask,
)

SIZES = [(5, 7), (7, 5), (5, 5), (1, 7), (5, 1), (0, 3), (3, 0)]  # (T, S)


def assert_mask(actual, expected):
    actual = to_numpy(actual)
    assert actual.dtype == bool
    assert actual.shape == np.shape(expected)
    assert np.array_equal(actual, expected)


# Makers


@pytest.mark.parametrize("sizes", SIZES)
def test_causal_mask(run, sizes):
    assert_mask(run(lambda: causal_mask(*sizes)), ref.causal_mask(*sizes))


def test_causal_mask_is_square_by_default(run):
    assert_mask(run(lambda: causal_mask(5)), ref.causal_mask(5))


@pytest.mark.parametrize("window", [1, 2, 3, 100])
@pytest.mark.parametrize("sizes", SIZES)
def test_window_mask(sizes, window):
    assert_mask(window_mask(*sizes, window=window), ref.window_mask(*sizes, window=window))


def test_window_mask_modes(run):
    assert_mask(run(lambda: window_mask(5, 7, window=2)), ref.window_mask(5, 7, window=2))
    assert_mask(run(lambda: window_mask(5, window=2)), ref.window_mask(5, window=2))


@pytest.mark.parametrize("size", [3, 5, 7])
def test_padding_mask(run, size):
    """Lengths of 0, and beyond the size, included."""
    lengths = [3, 0, 5]
    assert_mask(run(lambda x: padding_mask(x, size), lengths), ref.padding_mask(lengths, size))


def test_padding_mask_sizes_itself():
    assert_mask(padding_mask([3, 0, 5]), ref.padding_mask([3, 0, 5]))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_padding_mask_sizes_itself_in_a_graph():
    graph = tf.function(padding_mask, input_signature=[tf.TensorSpec([None], "int64")])
    assert_mask(graph(tensor([2, 7], "int64")), ref.padding_mask([2, 7]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_padding_mask_of_any_integers(dtype):
    """The positions need not fit into the type of the lengths."""
    lengths = np.array([3, 100], dtype)
    assert_mask(padding_mask(lengths, 300), ref.padding_mask([3, 100], 300))


def test_padding_mask_of_an_empty_batch():
    assert padding_mask(np.zeros(0, "int32"), 3).shape == (0, 1, 3)


def test_segment_mask(run):
    queries, keys = [[1, 1, 2, 0, 3], [5, 5, 5, 6, 0]], [[2, 1, 0, 0, 1, 9, 3]] * 2
    assert_mask(run(segment_mask, queries, keys), ref.segment_mask(queries, keys))
    assert_mask(run(segment_mask, queries), ref.segment_mask(queries))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_sizes_known_only_at_run_time():
    def masks(queries, keys):
        T, S = ops.shape(queries)[1], ops.shape(keys)[1]
        return (
            causal_mask(T, S),
            window_mask(T, S, window=2),
            segment_mask(queries, keys),
            combine_masks(causal_mask(T, S), segment_mask(queries, keys)),
        )

    unknown = tf.TensorSpec([None, None], "int32")
    graph = tf.function(masks, input_signature=[unknown, unknown])
    for queries, keys in [([[1, 1, 2]], [[1, 2, 2, 1, 2]]), ([[7], [8]], [[7, 8], [7, 8]])]:
        shape = (len(queries), len(queries[0]), len(keys[0]))
        causal, segment = ref.causal_mask(*shape[1:]), ref.segment_mask(queries, keys)
        actual = graph(tensor(queries), tensor(keys))
        assert_mask(actual[0], causal)
        assert_mask(actual[1], ref.window_mask(*shape[1:], window=2))
        assert_mask(actual[2], segment)
        assert_mask(actual[3], ref.combine_masks(shape, causal, segment))


# Combinations. B = N on purpose: there a pairing of batch with heads would go unnoticed.

B, N, T, S = 3, 3, 5, 7
WHOLE = (B, N, T, S)


def random_mask(rng, *shape):
    return rng.random(shape) < 0.7


MASKS = {
    "causal": lambda rng: ref.causal_mask(T, S),
    "window": lambda rng: ref.window_mask(T, S, window=3),
    "padding": lambda rng: ref.padding_mask([4, 7, 0], S),
    "segment": lambda rng: ref.segment_mask(
        rng.integers(3, size=(B, T)), rng.integers(3, size=(B, S))
    ),
    "rows": lambda rng: random_mask(rng, B, T, 1),
    "samples": lambda rng: random_mask(rng, B, T, S),
    "heads": lambda rng: random_mask(rng, 1, N, T, S),
    "all": lambda rng: random_mask(rng, B, N, T, S),
}


@pytest.mark.parametrize("second", MASKS)
@pytest.mark.parametrize("first", MASKS)
def test_combine_two(rng, first, second):
    """Every kind with every other, against the scores of all heads."""
    masks = [MASKS[first](rng), MASKS[second](rng), np.ones(WHOLE, bool)]
    assert_mask(combine_masks(*masks), ref.combine_masks(WHOLE, *masks))


def test_combine_modes(run, rng):
    masks = [make(rng) for make in MASKS.values()]
    assert_mask(run(combine_masks, *masks), ref.combine_masks(WHOLE, *masks))


@pytest.mark.parametrize("heads", [2, 3])
def test_a_mask_of_samples_is_never_taken_for_heads(heads):
    """Case C04: two samples, two heads (and three); sample 0's last key is padding."""
    per_head = np.ones((1, heads, 3, 3), bool)
    per_head[0, 1, :, 0] = False
    by_key = np.array([[[1, 1, 0]], [[1, 1, 1]]], bool)
    for padding in (by_key, np.repeat(by_key, 3, axis=1)):  # [B, 1, S] and [B, T, S]
        mask = to_numpy(combine_masks(padding, per_head))
        assert mask.shape == (2, heads, 3, 3)
        assert not mask[0, :, :, 2].any()
        assert mask[1, :, :, 2].all()
        assert not mask[:, 1, :, 0].any()
        assert mask[:, 0, :, 0].all()


def test_none_means_no_mask():
    assert combine_masks() is None
    assert combine_masks(None, None) is None
    assert_mask(combine_masks(None, ref.causal_mask(3), None), ref.causal_mask(3))


@pytest.mark.parametrize(
    "convert",
    [
        np.array,
        lambda m: m.astype("int32"),
        lambda m: m.astype("uint8"),
        np.ndarray.tolist,
        lambda m: tuple(map(tuple, m.astype(int).tolist())),
        tensor,
    ],
    ids=["bool", "int32", "uint8", "list", "tuple", "tensor"],
)
def test_forms_of_one_mask(convert):
    """Case C16: booleans or 0/1 integers, as an array, a tensor, a list or a tuple."""
    mask = ref.causal_mask(3, 5)
    assert_mask(combine_masks(convert(mask)), mask)
    both = mask & ref.window_mask(3, 5, window=2)
    assert_mask(combine_masks(convert(mask), window_mask(3, 5, window=2)), both)


@settings(max_examples=25, deadline=None)
@given(st.permutations(list(MASKS)), st.integers(0, 2**32 - 1))
def test_order_and_repetition_do_not_matter(order, seed):
    masks = {name: make(np.random.default_rng(seed)) for name, make in MASKS.items()}
    expected = to_numpy(combine_masks(*masks.values()))
    assert_mask(combine_masks(*(masks[name] for name in order + order[:2])), expected)


# Prefix


@pytest.mark.parametrize(("T", "S"), [(5, 5), (3, 5), (5, 3), (1, 4)])
def test_a_prefix_is_seen_by_all(run, T, S):
    lengths = [0, 2, S, S + 3]
    expected = np.zeros((4, T, S), bool)
    for b, t, s in np.ndindex(*expected.shape):
        expected[b, t, s] = s < lengths[b] or s <= t + (S - T)
    assert_mask(run(lambda lengths: prefix_mask(lengths, T, S), lengths), expected)
    assert_mask(prefix_mask(np.array(lengths, "uint8"), T, S), expected)
    if T == S:
        assert_mask(prefix_mask(lengths, T), expected)
    assert_mask(prefix_mask([0], T, S)[0], ref.causal_mask(T, S))
    assert_mask(prefix_mask([S], T, S)[0], np.ones((T, S), bool))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_a_prefix_of_unknown_sizes():
    spec = [tf.TensorSpec((None,), "int32"), tf.TensorSpec((), "int32"), tf.TensorSpec((), "int32")]
    call = tf.function(prefix_mask, input_signature=spec)
    for lengths, T, S in (([1, 2], 3, 3), ([0], 2, 4), ([], 2, 2)):
        lengths = np.array(lengths, "int32")
        assert_mask(call(lengths, T, S), to_numpy(prefix_mask(lengths, T, S)))


def test_prefixes_that_are_none():
    with pytest.raises(ValueError, match=r"lengths.*\(1, 2\)"):
        prefix_mask([[1, 2]], 3)
    with pytest.raises(ValueError, match="lengths.*integers.*float"):
        prefix_mask([1.0], 3)


# Errors


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_masks_are_refused(dtype):
    with pytest.raises(ValueError, match=rf"(?s)True = may attend.*{dtype}.*attention_bias"):
        combine_masks(None, np.zeros((2, 3), dtype))


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"(?s)mask.*\(5, 7\).*\(5, 6\)|mask.*\(5, 6\).*\(5, 7\)"):
        combine_masks(np.ones((5, 7), bool), np.ones((5, 6), bool))
    with pytest.raises(ValueError, match="mask"):
        combine_masks(np.ones((2, 1, 7), bool), np.ones((3, 1, 7), bool))
    with pytest.raises(ValueError, match=r"(?s)mask.*\[T, S\].*\(7,\)"):
        combine_masks(np.ones(7, bool), np.ones((5, 7), bool))


@pytest.mark.parametrize("window", [0, -1, 2.5, None, "3"])
def test_windows_that_are_no_window(window):
    with pytest.raises(ValueError, match="window"):
        window_mask(3, window=window)


def test_a_window_may_be_a_numpy_integer():
    assert_mask(window_mask(3, window=np.int64(2)), ref.window_mask(3, window=2))


def test_wrong_ranks_and_batches():
    with pytest.raises(ValueError, match=r"lengths.*\(1, 2\)"):
        padding_mask([[1, 2]])
    with pytest.raises(ValueError, match=r"(?s)query_segments.*\(3,\)"):
        segment_mask([1, 2, 2])
    with pytest.raises(ValueError, match=r"(?s)key_segments.*\(1, 1, 2\)"):
        segment_mask([[1, 2]], [[[1, 2]]])
    with pytest.raises(ValueError, match="segments"):
        segment_mask([[1], [1]], [[1], [2], [3]])
