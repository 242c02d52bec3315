"""Cells in two parts, before the loop and inside it, against the cells and the equations."""

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, compiled, differentiate, dtype_of, tensor, to_numpy
from conftest import MODES, TOLERANCES, assert_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention.decoders.cell import drawn_dropout, initial_state, run_cell
from keras_attention.decoders.gates import hoist
from keras_attention.loops import scan_steps

B, T, D, E, U = 2, 5, 3, 7, 11
CELLS = {
    "gru": lambda **kw: keras.layers.GRUCell(U, **kw),
    "gru_reset_before": lambda **kw: keras.layers.GRUCell(U, reset_after=False, **kw),
    "lstm": lambda **kw: keras.layers.LSTMCell(U, **kw),
    "simple_rnn": lambda **kw: keras.layers.SimpleRNNCell(U, **kw),
}


def stack(*cells, dtype="float64", **kw):
    cells = [CELLS[name](dtype=dtype, **kw) for name in cells]
    return keras.layers.StackedRNNCells(cells, dtype=dtype)


ALL = {**CELLS, "stack": lambda **kw: stack("lstm", "gru", **kw)}
EACH = pytest.mark.parametrize("name", ALL)
ONE = pytest.mark.parametrize("name", CELLS)


def make(name, extra=E, dtype="float64", **kw):
    """A built cell with random weights, biases included."""
    cell = ALL[name](dtype=dtype, **kw)
    cell.build((None, D + extra))
    rng = np.random.default_rng(7)
    for weight in cell.trainable_weights:
        weight.assign(0.7 * rng.normal(size=weight.shape))
    return cell


def draw(rng, batch=B, dtype="float64"):
    """Inputs, and the matrix that makes what the cell is fed with besides out of its state."""
    inputs = tensor(rng.normal(size=(batch, T, D)), dtype)
    return inputs, tensor(0.5 * rng.normal(size=(U, E)), dtype)


def first_state(cell, inputs):
    """A state that is not zero, so that the first step counts too."""
    state = initial_state(cell, ops.shape(inputs)[0], inputs.dtype)
    return keras.tree.map_structure(lambda x: x + ops.ones((), x.dtype) / 4, state)


def context_of(state, matrix):
    """Stands for a decoder's context: something only the loop knows."""
    if matrix is None:
        return None
    return ops.tanh(ops.matmul(keras.tree.flatten(state)[0], matrix))


def loop(step, cell, inputs, xs):
    outputs = [((None, U), keras.backend.standardize_dtype(inputs.dtype))]
    (result,), state = scan_steps(step, xs, first_state(cell, inputs), outputs)
    return [result, *keras.tree.flatten(state)]


def plain(cell, inputs, matrix=None, training=False):
    """What `hoisted` has to equal: the cell itself in the loop."""

    def step(x, state):
        extra = context_of(state, matrix)
        x = x if extra is None else ops.concatenate([x, extra], axis=-1)
        if not training:
            output, state = run_cell(cell, x, state)
            return [output], state
        output, new = cell(x, state, training=True)
        return [output], new

    return loop(step, cell, inputs, inputs)


def hoisted(cell, inputs, matrix=None, dropout=None):
    gates = hoist(cell, inputs.shape[-1], dropout)

    def step(projected, state):
        output, state = gates.step(projected, context_of(state, matrix), state)
        return [output], state

    return loop(step, cell, inputs, gates.project(inputs))


def assert_equal(actual, expected, limit=1e-12):
    assert len(actual) == len(expected)
    for a, b in zip(to_numpy(list(actual)), to_numpy(list(expected)), strict=True):
        assert_allclose(a, b, rtol=limit, atol=limit)


# Forward


@pytest.mark.slow
@EACH
def test_equals_the_cell(name, run, rng):
    cell, (inputs, matrix) = make(name), draw(rng)
    actual = run(lambda x, m: hoisted(cell, x, m), inputs, matrix)
    assert_equal(actual, plain(cell, inputs, matrix))


@EACH
def test_equals_the_cell_without_bias(name, rng):
    cell, (inputs, matrix) = make(name, use_bias=False), draw(rng)
    assert_equal(hoisted(cell, inputs, matrix), plain(cell, inputs, matrix))


@EACH
def test_equals_the_cell_that_is_fed_with_the_inputs_only(name, rng):
    cell, (inputs, _) = make(name, extra=0), draw(rng)
    assert_equal(hoisted(cell, inputs), plain(cell, inputs))


@ONE
def test_equals_the_equations(name, rng):
    cell, (inputs, matrix) = make(name), draw(rng)
    kernels = [np.asarray(weight) for weight in cell.get_weights()]
    reference = {"lstm": ref.lstm_cell, "simple_rnn": ref.simple_rnn_cell}.get(name)
    if reference is None:
        step = ref.gru_cell(*kernels, reset_after=cell.reset_after)
    else:
        step = reference(*kernels)
    results = []
    for b in range(B):
        state = [np.asarray(x)[b] for x in first_state(cell, inputs)]
        for t in range(T):
            context = np.tanh(state[0] @ np.asarray(matrix))
            _, state = step(np.concatenate([inputs[b, t], context]), state)
        results.append(state)
    _, *state = hoisted(cell, inputs, matrix)
    assert_equal(state, [np.stack(x) for x in zip(*results, strict=True)])


@ONE
@given(
    activation=st.sampled_from(["tanh", "relu", "softmax", "softplus", None]),
    recurrent=st.sampled_from(["sigmoid", "hard_sigmoid", "softmax", None]),
    sizes=st.tuples(*[st.integers(1, 4)] * 2, st.integers(0, 3)),
)
@settings(max_examples=8, deadline=None)
def test_any_activations_and_sizes(name, activation, recurrent, sizes):
    """Softmax goes over the units of one gate, not over all gates."""
    batch, size, extra = sizes
    kw = {} if name == "simple_rnn" else {"recurrent_activation": recurrent}
    cell = CELLS[name](dtype="float64", activation=activation, **kw)
    cell.build((None, size + extra))
    rng = np.random.default_rng(1)
    x, e = rng.normal(size=(batch, size)), rng.normal(size=(batch, extra)) if extra else None
    state = first_state(cell, tensor(x))
    gates = hoist(cell, size)
    output, new = gates.step(gates.project(x), e, state)
    expected = run_cell(cell, ops.concatenate([x, e], axis=-1) if extra else x, state)
    assert_equal([output, *new], [expected[0], *expected[1]])


@EACH
def test_dtypes(name, dtype, rng):
    initializer = "glorot_uniform"  # Keras's default does not know bfloat16.
    cell = make(name, dtype=dtype, recurrent_initializer=initializer)
    inputs, matrix = draw(rng, dtype=dtype)
    actual, expected = hoisted(cell, inputs, matrix), plain(cell, inputs, matrix)
    assert {dtype_of(x) for x in actual} == {dtype}
    # Both round in every step, each in its own order.
    assert_equal(actual, expected, 1e-12 if dtype == "float64" else 4 * TOLERANCES[dtype])


@EACH
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(name, policy, rng):
    """In the call of a layer, which hands out the weights rounded, and outside."""
    half = policy.removeprefix("mixed_")
    cell, (inputs, matrix) = make(name, dtype=policy), draw(rng, dtype=half)
    layer = InALayer(cell, dtype=policy)
    expected, limit = plain(cell, inputs, matrix), 4 * TOLERANCES[half]
    for actual in (hoisted(cell, inputs, matrix), layer(inputs, matrix)):
        assert {dtype_of(x) for x in actual} == {half}
        assert_equal(actual, expected, limit)


@EACH
def test_a_cell_of_half_precision_in_a_loop_of_float32(name, rng):
    cell, (inputs, matrix) = make(name, dtype="mixed_float16"), draw(rng, dtype="float32")
    actual = hoisted(cell, inputs, matrix)
    assert {dtype_of(x) for x in actual} == {"float32"}
    assert_equal(actual, plain(cell, inputs, matrix), 4 * TOLERANCES["float16"])


class InALayer(keras.layers.Layer):
    def __init__(self, cell, **kw):
        super().__init__(**kw)
        self.cell = cell

    def call(self, inputs, matrix):
        return hoisted(self.cell, inputs, matrix)


@ONE
def test_one_step_projects_as_all_do(name, rng):
    cell, (inputs, _) = make(name), draw(rng)
    gates = hoist(cell, D)
    steps = [gates.project(inputs[:, t]) for t in range(T)]
    assert_equal([np.stack(steps, 1)], [gates.project(inputs)])


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize(
    ("name", "jit"), [*((name, False) for name in CELLS), ("stack", True), ("simple_rnn", True)]
)
def test_unknown_batch_and_steps(name, jit, rng):
    cell = make(name)
    matrix = draw(rng)[1]
    signature = [tf.TensorSpec((None, None, D), "float64")]
    function = tf.function(lambda x: hoisted(cell, x, matrix), signature, jit_compile=jit)
    for batch in (1, 3):
        inputs = draw(rng, batch)[0]
        assert_equal(function(inputs), plain(cell, inputs, matrix))
    assert function(draw(rng, 0)[0])[0].shape == (0, T, U)  # Keras's LSTMCell fails at that.


# Gradients


def gradients(loop_of, cell, inputs, matrix):
    """With respect to the inputs, the matrix and the weights, of a loss that sees all results."""
    return differentiate(
        lambda *args: sum(ops.sum(ops.sin(3 * x)) for x in loop_of(cell, *args)),
        [inputs, matrix],
        cell.trainable_weights,
    )


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("way", ["eager", "xla"])
def test_gradients_equal_those_of_the_cell(name, way, rng):
    cell, (inputs, matrix) = make(name), draw(rng)
    actual = MODES[way](lambda x, m: gradients(hoisted, cell, x, m))(inputs, matrix)
    assert_equal(actual, gradients(plain, cell, inputs, matrix), 1e-11)


@ONE
def test_gradient_of_the_kernel_is_the_numerical_one(name, rng):
    cell, (inputs, matrix) = make(name), draw(rng)
    inputs = inputs[:, :2]

    def loss():
        return sum(ops.sum(ops.sin(3 * x)) for x in hoisted(cell, inputs, matrix))

    assert_gradients(loss, [cell.kernel], 1e-6)


# Dropout

RATES = [
    {"dropout": 0.5},
    {"recurrent_dropout": 0.5},
    {"dropout": 0.5, "recurrent_dropout": 0.3},
    {"dropout": 0.5, "implementation": 1},
]


def with_and_without(cell, inputs, matrix):
    """The hoisted and the plain loop with the same masks; the masks."""
    fed = ops.zeros((ops.shape(inputs)[0], D + E), inputs.dtype)
    with drawn_dropout(cell, fed, first_state(cell, inputs), True) as masks:
        ours = hoisted(cell, inputs, matrix, masks)
        theirs = plain(cell, inputs, matrix, training=True)
        return ours, theirs, [m for m in keras.tree.flatten(masks) if m is not None]


def check_dropout(mode, cell, inputs, matrix):
    function = MODES[mode](lambda x, m: with_and_without(cell, x, m))
    ours, theirs, masks = map(to_numpy, function(inputs, matrix))
    assert_equal(ours, theirs)
    assert masks and all((m == 0).any() and (m > 1).any() for m in masks)
    assert not np.allclose(theirs[0], plain(cell, inputs, matrix)[0], atol=1e-3)


@pytest.mark.slow
@ONE
@pytest.mark.parametrize("rates", RATES, ids=lambda rates: "-".join(rates))
def test_dropout_with_the_masks_of_the_cell(name, rates, rng):
    if name == "simple_rnn":  # which knows one way only
        rates = {key: value for key, value in rates.items() if key != "implementation"}
    check_dropout("graph", make(name, seed=3, **rates), *draw(rng))


@pytest.mark.slow
def test_dropout_in_each_mode(mode, rng):
    check_dropout(mode, make("gru", dropout=0.5, recurrent_dropout=0.3, seed=3), *draw(rng))


class Training(InALayer):
    """Where cells learn from the layer around them that they are training."""

    def call(self, inputs, matrix, training=False):
        fed = ops.zeros((ops.shape(inputs)[0], D + E), inputs.dtype)
        with drawn_dropout(self.cell, fed, first_state(self.cell, inputs), training) as masks:
            ours = hoisted(self.cell, inputs, matrix, masks)
            return ours, plain(self.cell, inputs, matrix, training=training)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_in_a_stack(training, rng):
    cell, (inputs, matrix) = make("stack", dropout=0.5, recurrent_dropout=0.3), draw(rng)
    layer = Training(cell, dtype="float64")
    ours, theirs = layer(inputs, matrix, training=training)
    assert_equal(ours, theirs)
    assert np.allclose(theirs[0], plain(cell, inputs, matrix)[0], atol=1e-3) != training


def test_dropout_gradients_equal_those_of_the_cell(rng):
    cell, (inputs, matrix) = make("lstm", dropout=0.5, recurrent_dropout=0.3), draw(rng)

    fed = ops.zeros((B, D + E), inputs.dtype)
    with drawn_dropout(cell, fed, first_state(cell, inputs), True) as masks:
        actual = gradients(lambda *args: hoisted(*args, masks), cell, inputs, matrix)
        expected = gradients(lambda *args: plain(*args, training=True), cell, inputs, matrix)
    assert_equal(actual, expected, 1e-11)


@pytest.mark.skipif(BACKEND == "jax", reason="random states do not leave `jax.jit`")
def test_masks_are_drawn_anew_though_the_cell_kept_some():
    """A SimpleRNNCell called by itself keeps masks, in a graph even such that are of no use."""
    cell = make("simple_rnn", dropout=0.5)
    state = [ops.zeros((3, U), "float64")]
    compiled(lambda: run_cell(cell, ops.ones((3, D + E), "float64"), state))()
    with drawn_dropout(cell, ops.ones((B, D + E), "float64"), [state[0][:B]], True) as masks:
        assert to_numpy(masks[0][0]).shape == (B, D + E)
    with drawn_dropout(cell, ops.ones((B, D + E), "float64"), [state[0][:B]], False) as masks:
        assert masks is None


# What can not be taken apart, and bad input


class Custom(keras.layers.Layer):
    state_size = U


class Own(keras.layers.GRUCell):
    def call(self, inputs, states, training=False):
        output, states = super().call(inputs, states, training)
        return -output, states


@pytest.mark.parametrize(
    "make_cell",
    [
        Custom,
        lambda: Own(U),
        lambda: keras.layers.GRUCell(U, activity_regularizer="l2"),
        lambda: keras.layers.LSTMCell(U, autocast=False),
        lambda: keras.layers.GRUCell(U, dtype="int8_from_float32"),
        lambda: keras.layers.StackedRNNCells([Own(U), keras.layers.GRUCell(U)]),
        lambda: keras.layers.StackedRNNCells([keras.layers.GRUCell(U, dtype="float64")]),
    ],
    ids=["custom", "subclass", "regularizer", "no cast", "quantised", "stack", "stack dtypes"],
)
def test_other_cells_are_left_alone(make_cell):
    cell = make_cell()
    cell.build((None, D))
    assert hoist(cell, D) is None


def test_a_stack_may_go_on_with_any_cell(rng):
    cells = [CELLS["lstm"](dtype="float64"), Own(U, dtype="float64")]
    cell = keras.layers.StackedRNNCells(cells, dtype="float64")
    cell.build((None, D + E))
    inputs, matrix = draw(rng)
    assert_equal(hoisted(cell, inputs, matrix), plain(cell, inputs, matrix))


def test_a_cell_of_more_precision_than_the_layer_around_it_is_left_alone():
    """There its weights would come rounded to half precision."""

    class Holder(keras.layers.Layer):
        def call(self, x):
            assert hoist(cell, D) is None
            return x

    cell = make("gru", dtype="float32")
    assert hoist(cell, D) is not None
    Holder(dtype="mixed_float16")(np.ones((B, D)))


@ONE
def test_weights_stay_those_of_the_cell(name, tmp_path, rng):
    cell, (inputs, matrix) = make(name), draw(rng)
    before = [weight.path for weight in cell.weights]
    expected = hoisted(cell, inputs, matrix)
    assert [weight.path for weight in cell.weights] == before
    rnn = keras.Sequential([keras.Input((None, D + E)), keras.layers.RNN(cell)])
    rnn.save(tmp_path / "rnn.keras")
    loaded = keras.models.load_model(tmp_path / "rnn.keras").layers[0].cell
    assert_equal(hoisted(loaded, inputs, matrix), expected, 0)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="`cell` must be built"):
        hoist(keras.layers.GRUCell(U), D)
    cell = make("lstm")
    for size in (0, D + E + 1):
        with pytest.raises(ValueError, match=rf"`inputs_size` must be .* 10, .*Received: {size}"):
            hoist(cell, size)
    gates, state = hoist(cell, D), [np.zeros((B, U))] * 2
    with pytest.raises(ValueError, match=r"`extra` must be a tensor \[B, E\].*Received: None"):
        gates.step(gates.project(np.ones((B, D))), None, state)
    gates = hoist(cell, D + E)
    with pytest.raises(ValueError, match="`extra` must be None"):
        gates.step(gates.project(np.ones((B, D + E))), np.ones((B, 1)), state)
