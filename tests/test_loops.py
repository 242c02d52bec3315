"""Loops over steps against Python loops, on TensorFlow's path and on that of other backends."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import BACKEND, assert_allclose, compiled, differentiate, tensor
from conftest import MODES, numerical_gradient
from keras import ops

from keras_attention.loops import loop_steps, scan_steps

B, T, D, U = 2, 5, 3, 4


@pytest.fixture(params=["tensorflow", "other backends"])
def path(request, monkeypatch):
    """Which of the two ways to loop: `tf.while_loop`, or the loops of `keras.ops`.

    The latter are run on TensorFlow's tensors here: only the choice is changed.
    """
    if request.param != "tensorflow":
        monkeypatch.setattr(keras.backend, "backend", lambda: "another")
    return request.param


# scan_steps


def recurrence(x, state):
    """A step with inputs of two dtypes, and two states and outputs of unequal size.

    (On TensorFlow `ops.scan` wants outputs in the structure of the state.)
    """
    values, real = x
    h, total = state
    h = ops.tanh(0.5 * h + ops.sum(values, -1, keepdims=True))
    total = total + ops.where(real[:, None], values, ops.zeros_like(values))
    return [2.0 * h, total * values], [h, total]


OUTPUTS = [((None, U), "float64"), ((None, D), "float64")]


def scan(values, real):
    batch = ops.shape(values)[0]
    state = [ops.zeros((batch, U), "float64"), ops.zeros((batch, D), "float64")]
    return scan_steps(recurrence, (values, real), state, OUTPUTS)


def scan_in_python(values, real):
    h, total, rows = np.zeros((len(values), U)), np.zeros((len(values), D)), []
    for t in range(values.shape[1]):
        h = np.tanh(0.5 * h + values[:, t].sum(-1, keepdims=True))
        total = total + real[:, t, None] * values[:, t]
        rows.append([2.0 * h, total * values[:, t]])
    return [np.stack(x, 1) for x in zip(*rows, strict=True)], [h, total]


def draw(rng, steps=T):
    return rng.normal(size=(B, steps, D)), rng.random((B, steps)) < 0.7


def check(actual, expected):
    keras.tree.assert_same_structure(actual, expected)
    for a, e in zip(*map(keras.tree.flatten, (actual, expected)), strict=True):
        assert_allclose(a, e, atol=1e-12)


@pytest.mark.parametrize("steps", [1, T])
def test_scan_equals_a_python_loop(path, steps, rng):
    values, real = draw(rng, steps)
    check(scan(values, real), scan_in_python(values, real))


def test_scan_in_all_modes(mode, rng):
    values, real = draw(rng)
    check(MODES[mode](scan)(tensor(values), tensor(real)), scan_in_python(values, real))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_scan_over_unknown_lengths(rng):
    specs = [tf.TensorSpec((None, None, D), "float64"), tf.TensorSpec((None, None), "bool")]
    compiled = tf.function(scan, input_signature=specs)
    for steps in (1, 3, 6):
        values, real = draw(rng, steps)
        check(compiled(values, real), scan_in_python(values, real))
        check(compiled(values[:1], real[:1]), scan_in_python(values[:1], real[:1]))
    (outputs, products), _ = compiled(values[:0], real[:0])
    assert (outputs.shape, products.shape) == ((0, 6, U), (0, 6, D))
    assert compiled.experimental_get_tracing_count() == 1


def test_gradient_of_scan_is_the_numerical_one(mode, rng):
    values, real = draw(rng, steps=3)
    factors = rng.normal(size=(B, 3, U))

    def loss(values):
        (outputs, products), (h, total) = scan(values, real)
        ends = ops.sum(h**3) + ops.sum(total)
        return ops.sum(outputs * tensor(factors)) + ops.sum(products) + ends

    def gradient(values):
        return differentiate(loss, [values])[0]

    actual = MODES[mode](gradient)(tensor(values))
    numerical = numerical_gradient(compiled(loss), values)
    assert_allclose(actual, numerical, rtol=1e-6, atol=1e-8)


# loop_steps


def countdown(limits, length, calls=None):
    """Each sample counts up to its limit; the loop stops when all are there."""

    def step(index, state):
        counts, limits = state
        if calls is not None:
            calls.append(int(index))
        running = ops.cast(counts < limits, "int32")
        state = counts + running, limits
        return [10 * ops.cast(index, "int32") + state[0], ops.stack([running] * 3, -1)], state

    state = ops.zeros_like(limits), limits
    return loop_steps(step, state, length, stop=lambda s: ops.all(s[0] >= s[1]))


def countdown_in_python(limits, length):
    """The steps that ran, the first one always; zeros behind them."""
    steps = max(1, min(length, max(limits, default=0)))
    outputs = np.zeros((len(limits), length), int)
    running = np.zeros((len(limits), length, 3), int)
    for b, limit in enumerate(limits):
        for t in range(steps):
            outputs[b, t] = 10 * t + min(t + 1, limit)
            running[b, t] = t < limit
    return [outputs, running], (np.minimum(limits, steps), np.array(limits)), steps


LIMITS = {
    "some steps": ([2, 3, 1], 5),
    "all steps": ([2, 9, 1], 5),
    "the first step only": ([1, 1, 1], 5),
    "done before it starts": ([0, 0, 0], 5),
    "a length of one": ([2, 3, 1], 1),
    "no sample": (np.zeros(0, "int32"), 4),
}


@pytest.mark.parametrize("name", LIMITS)
def test_loop_stops_when_it_is_told_to(path, name):
    limits, length = LIMITS[name]
    calls = None if BACKEND == "jax" else []  # which traces its loops
    outputs, state = countdown(ops.convert_to_tensor(limits, "int32"), length, calls)
    expected, expected_state, steps = countdown_in_python(limits, length)
    assert calls in (None, list(range(steps)))
    check([list(outputs), tuple(state)], [expected, expected_state])


def test_loop_in_all_modes(mode):
    limits, length = LIMITS["some steps"]
    results = MODES[mode](lambda x: countdown(x, length))(tensor(limits))
    outputs, state = results
    expected, expected_state, _ = countdown_in_python(limits, length)
    check([list(outputs), tuple(state)], [expected, expected_state])


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_loop_over_an_unknown_batch():
    compiled = tf.function(
        lambda x: countdown(x, 5), input_signature=[tf.TensorSpec((None,), "int32")]
    )
    for limits, _ in LIMITS.values():
        outputs, _ = compiled(tensor(limits, "int32"))
        expected = countdown_in_python(limits, 5)[0]
        for a, e in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(a, e)


def growing(stop=lambda state: tensor(False)):
    def step(index, state):
        return [state[0][:, -1]], [
            ops.concatenate([state[0], state[0][:, -1:] + index], 1),
            state[1],
        ]

    return loop_steps(step, [ops.zeros((B, 1), "int32"), ops.ones((B,))], 5, stop)


@pytest.mark.skipif(BACKEND == "jax", reason="a cache that grows in a search")
def test_what_the_first_step_makes_longer_may_grow():
    for run in (growing, compiled(growing)):
        (outputs,), (grown, other) = run()
        np.testing.assert_array_equal(grown, [[0, 0, 1, 3, 6, 10]] * B)
        np.testing.assert_array_equal(outputs, [[0, 0, 1, 3, 6]] * B)
        np.testing.assert_array_equal(other, np.ones(B))
    (outputs,), (grown, _) = growing(stop=lambda state: ops.greater(ops.shape(state[0])[1], 3))
    np.testing.assert_array_equal(grown, [[0, 0, 1, 3]] * B)
    np.testing.assert_array_equal(outputs, [[0, 0, 1, 0, 0]] * B)
