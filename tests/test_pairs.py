"""Pairs: the masks of a call in parts say the same as all of them in one."""

import numpy as np
import pytest
import tensorflow as tf
from backend import assert_allclose, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention.pairs import Pairs


def all_pairs(pairs, steps, keys):
    """What the parts allow, entry by entry."""
    mask = np.ones((2, steps, keys), bool)
    for b, t, s in np.ndindex(mask.shape):
        distance = s - (t + keys - steps)
        allowed = not (pairs.causal and distance > 0)
        allowed &= pairs.window is None or abs(distance) < pairs.window
        for part in (pairs.rows, pairs.columns, pairs.mask):
            allowed &= part is None or bool(np.broadcast_to(part, mask.shape)[b, t, s])
        mask[b, t, s] = allowed
    return mask


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_parts_say_the_same_as_the_whole(data):
    size = st.integers(0, 5)
    steps, keys = data.draw(size), data.draw(size)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shapes = {"rows": (2, steps, 1), "columns": (2, 1, keys), "mask": (2, steps, keys)}
    kinds = data.draw(st.sets(st.sampled_from(["rows", "columns", "rows columns", "mask"])))
    parts = {
        name: tensor(rng.random(shape) > 0.5)
        for name, shape in shapes.items()
        if any(name in kind for kind in kinds)
    }
    pairs = Pairs(
        **parts,
        causal=data.draw(st.booleans()),
        window=data.draw(st.one_of(st.none(), st.integers(1, 6))),
        sizes=(steps, keys),
    )
    expected = all_pairs(pairs, steps, keys)
    merged = pairs.merged()
    assert merged[3:] == (None, None, False, None, None)
    if merged.mask is None:
        assert expected.all()
    else:
        np.testing.assert_array_equal(np.broadcast_to(merged.mask, expected.shape), expected)
    for name, axis, found in (("rows", 2, pairs.queries()), ("columns", 1, pairs.keys())):
        wanted = expected.any(axis)[..., None]
        if 0 in (steps, keys):
            continue  # nothing on the other side at all: that is for the caller to see
        if found is None:
            assert wanted.all(), name
        else:
            np.testing.assert_array_equal(np.broadcast_to(found, wanted.shape), wanted, name)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("what", [{"causal": True}, {"window": 2}, {"causal": True, "window": 3}])
@pytest.mark.parametrize("sizes", [(4, 4), (2, 5), (5, 2)])
def test_sizes_of_a_graph(what, sizes):
    """Scalar tensors as sizes give what numbers give."""

    @tf.function(autograph=False)
    def found(steps, keys):
        pairs = Pairs(**what, sizes=(steps, keys))
        return pairs.merged().mask, pairs.queries(), pairs.keys()

    mask, queries, keys = found(*map(tensor, sizes))
    expected = all_pairs(Pairs(**what), *sizes)[0]
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(queries[:, 0], expected.any(1))
    np.testing.assert_array_equal(keys[:, 0], expected.any(0))


def test_slopes_are_a_bias():
    slopes = tensor([0.5, 2.0])[:, None, None]
    bias = Pairs(slopes=slopes, bias=ops.ones((2, 1, 3)), sizes=(2, 3)).merged().bias
    assert_allclose(bias[0], [[0.5, 1.0, 0.5], [0.0, 0.5, 1.0]])
    assert_allclose(bias[1], [[-1.0, 1.0, -1.0], [-3.0, -1.0, 1.0]])
    assert Pairs(slopes=slopes, sizes=(2, 3)).map(lambda x: x).merged().mask is None
