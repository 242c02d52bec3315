"""Tiles: additive scores without the hidden layer of all pairs are those with it."""

import importlib

import numpy as np
import pytest
import tensorflow as tf
from backend import assert_allclose, dtype_of, to_numpy
from conftest import TOLERANCES, numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import BahdanauAttention, LuongAttention
from keras_attention.blockwise import additive

scoring = importlib.import_module("keras_attention.scores")
additive_score = scoring.additive_score


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of a few pairs, so that small problems have many of them."""
    monkeypatch.setattr(additive, "ELEMENTS", 40)


@pytest.fixture
def tiles(monkeypatch):
    """Makes all scores of more than one query take tiles, and counts how often they do."""
    calls, original = [], additive.additive_scores

    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(scoring, "MOST_HIDDEN", 0)
    for name in ("additive_scores", "traced_additive_scores"):
        monkeypatch.setattr(additive, name, counted)
    return calls


def reference(query, key, v):
    """The equation on whole arrays, in float64."""
    return np.tanh(query[..., :, None, :] + key[..., None, :, :]) @ v


def arrays(rng, lead, steps, keys, units):
    shapes = (*lead, steps, units), (*lead, keys, units), (units,)
    return [rng.normal(size=shape) for shape in shapes]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_sizes(data):
    lead = tuple(data.draw(st.lists(st.integers(0, 4), max_size=2)))
    steps, keys = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    inputs = arrays(rng, lead, steps, keys, 3)
    scores = additive.additive_scores(*map(tf.constant, inputs))
    assert_allclose(scores, reference(*inputs), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lead", [(), (3,), (2, 2)])
@pytest.mark.parametrize("mode", ["eager", "graph", "free", "xla"])
def test_gradients(rng, mode, lead):
    inputs = arrays(rng, lead, 5, 7, 3)
    upstream = rng.normal(size=(*lead, 5, 7))

    def ours(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            scores = additive.additive_scores(*inputs)
            total = tf.reduce_sum(scores * upstream)
        return scores, tape.gradient(total, inputs)

    if mode == "free":
        free = [tf.TensorSpec([None] * (x.ndim - 1) + [3], tf.float64) for x in inputs]
        ours = tf.function(ours, autograph=False, input_signature=free)
    elif mode != "eager":
        ours = tf.function(ours, autograph=False, jit_compile=mode == "xla")
    scores, gradients = ours(*map(tf.constant, inputs))
    assert_allclose(scores, reference(*inputs), rtol=1e-12, atol=1e-13)
    for place, gradient in enumerate(gradients):

        def moved(x, place=place):
            changed = [x if i == place else y for i, y in enumerate(inputs)]
            return float((reference(*changed) * upstream).sum())

        expected = numerical_gradient(moved, inputs[place])
        assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(rng, dtype, tiles):
    pairs = [rounded(x, dtype) for x in arrays(rng, (2,), 5, 7, 3)]
    inputs, exact = [x for x, _ in pairs], [x for _, x in pairs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        scores = additive_score(*inputs)
    assert len(tiles) == 1 and dtype_of(scores) == "float32"
    assert_allclose(
        to_numpy(scores), reference(*exact), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )
    for x, gradient in zip(inputs, tape.gradient(scores, inputs), strict=True):
        assert dtype_of(gradient) == dtype_of(x) and np.isfinite(to_numpy(gradient)).all()


LAYERS = {
    "bahdanau": lambda: BahdanauAttention(3, seed=1),
    "normalized": lambda: BahdanauAttention(3, normalize=True, seed=1),
    "concat": lambda: LuongAttention(score_mode="concat", units=3),
}


@pytest.mark.parametrize("free", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(rng, name, free, tiles, monkeypatch):
    """A layer in tiles gives what it gives at once, and the same gradients."""
    layer = LAYERS[name]()
    x = tf.constant(rng.normal(size=(3, 6, 4)).astype("float32"))
    mask = tf.sequence_mask([6, 2, 4], 6)
    upstream = rng.normal(size=(3, 6, 4)).astype("float32")
    layer(x, x)
    tiles.clear()

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output, weights = layer(x, x, value_mask=mask, return_attention_scores=True)
            total = tf.reduce_sum(output * upstream)
        return output, weights, tape.gradient(total, [x, *layer.trainable_variables])

    def traced(x):
        signature = [tf.TensorSpec([None, None, 4])] if free else None
        return tf.function(run, autograph=False, input_signature=signature)(x)

    in_tiles = traced(x)
    assert len(tiles) == 1
    monkeypatch.setattr(scoring, "MOST_HIDDEN", 1 << 40)
    at_once = traced(x)
    for ours, theirs in zip(tf.nest.flatten(in_tiles), tf.nest.flatten(at_once), strict=True):
        assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_one_query_takes_no_tiles(rng, tiles):
    """A step of a decoder, also where the number of keys is not known."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 1, 3]),
                                                   tf.TensorSpec([None, None, 3])])  # fmt: skip
    def step(query, key):
        return additive_score(query, key, tf.ones(3))

    assert step(tf.zeros((2, 1, 3)), tf.zeros((2, 5, 3))).shape == (2, 1, 5)
    assert not tiles
