"""`Bridge`, from the states of an encoder to those of a decoder."""

import copy

import keras
import numpy as np
import pytest
from backend import assert_allclose, dtype_of, tensor, to_numpy, variable_of
from conftest import MODES, assert_gradients
from keras import ops
from test_layers import LAYER_TOLERANCES, close, randomise

from keras_attention import Bridge

B = 2
SIZES = 3, 5, 2, 4  # of four states, e.g. of a bidirectional LSTM


def draw(rng, dtype="float64"):
    return [rng.normal(size=(B, size)).astype(dtype) for size in SIZES]


def make(sizes=(6, 7), dtype="float64", **options):
    bridge = Bridge(sizes, dtype=dtype, **options)
    bridge.build([(None, size) for size in SIZES])
    return randomise(bridge)


def by_the_equation(bridge, states, activation=np.tanh):
    """activation(W_i [e_1; e_2; ...] + b_i); the W_i and b_i stand side by side in one kernel."""
    merged, start, results = np.concatenate(states, axis=-1), 0, []
    kernel, bias = (np.float64(w) for w in bridge.get_weights())
    for size in bridge.sizes:
        rows = np.zeros((len(merged), size))
        for b in range(len(merged)):
            for u in range(size):
                rows[b, u] = merged[b] @ kernel[:, start + u] + bias[start + u]
        results.append(activation(rows))
        start += size
    return results


def test_equation(rng):
    bridge, states = make(), draw(rng)
    close(bridge(states), by_the_equation(bridge, states), "float64")
    assert [x.shape for x in bridge(states)] == [(B, 6), (B, 7)]


@pytest.mark.parametrize("activation", [None, "relu"])
def test_activation(activation, rng):
    bridge, states = make(activation=activation), draw(rng)
    function = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0)}[activation]
    close(bridge(states), by_the_equation(bridge, states, function), "float64")


def test_states_in_any_structure(rng):
    bridge, (a, b, c, d) = make(), draw(rng)
    expected = to_numpy(tuple(bridge([a, b, c, d])))
    for states in ([[a, b], [c, d]], ((a, b), (c, d)), [a, [b, [c, d]]]):
        close(tuple(bridge(states)), expected, "float64")
        new = Bridge((6, 7), dtype="float64")  # built by the call
        new(states)
        new.set_weights(bridge.get_weights())
        close(tuple(new(states)), expected, "float64")


@pytest.mark.parametrize("sizes", [6, [6], (6,), np.int64(6)])
def test_one_state(sizes, rng):
    bridge = Bridge(sizes)
    states = bridge(draw(rng, "float32")[0])
    assert isinstance(states, list) and [x.shape for x in states] == [(B, 6)]
    assert [w.shape for w in bridge.weights] == [(3, 6), (6,)]
    assert bridge.sizes == (6,)


def test_without_a_bias():
    bridge = Bridge([2, 3], use_bias=False)
    assert all(np.all(x == 0) for x in bridge(np.zeros((B, 4))))
    assert [w.shape for w in bridge.weights] == [(4, 5)]


def test_kernel_initializer():
    bridge = Bridge([2, 3], kernel_initializer="ones", activation=None)
    assert all(np.all(x == 4) for x in bridge(np.ones((B, 4))))


def test_modes(mode, rng):
    bridge = make(dtype="float32")
    states = draw(rng, "float32")
    results = MODES[mode](lambda *states: bridge(list(states)))(*map(tensor, states))
    close(results, by_the_equation(bridge, states))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(policy, rng):
    bridge, states = make(dtype=policy), draw(rng)
    results = bridge([tensor(x, "float32") for x in states])
    assert {dtype_of(x) for x in results} == {policy.removeprefix("mixed_")}
    limit = LAYER_TOLERANCES[policy]
    for result, expected in zip(results, by_the_equation(bridge, states), strict=True):
        assert_allclose(to_numpy(result), expected, atol=limit)


def test_gradients_are_the_numerical_ones(rng):
    bridge = make()
    given = [variable_of(x) for x in draw(rng)]
    factors = [rng.normal(size=(B, size)) for size in bridge.sizes]

    def loss():
        results = bridge([tensor(x) for x in given])
        return sum(ops.sum(tensor(f) * x) for f, x in zip(factors, results, strict=True))

    assert_gradients(loss, given + bridge.trainable_weights, 1e-6, nonzero=False)


def test_from_a_bidirectional_encoder(rng, tmp_path):
    """In a Functional model of free sizes: padding behind the source changes no state."""
    ids = keras.Input((None,), dtype="int32")
    encoder = keras.layers.Bidirectional(
        keras.layers.LSTM(3, return_sequences=True, return_state=True)
    )
    _, *states = encoder(keras.layers.Embedding(9, 4, mask_zero=True)(ids))
    model = keras.Model(ids, Bridge([5, 6])(states))
    assert [x.shape for x in model.outputs] == [(None, 5), (None, 6)]
    source = rng.integers(1, 9, (B, 4))
    expected = to_numpy(tuple(model(source)))
    assert [x.shape for x in expected] == [(B, 5), (B, 6)]
    close(tuple(model(np.pad(source, ((0, 0), (0, 3))))), expected)
    kernel = model.layers[-1].dense.kernel
    assert kernel.shape == (4 * 3, 5 + 6)
    model.save(tmp_path / "model.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for copied in (keras.saving.load_model(tmp_path / "model.keras"), cloned, copy.deepcopy(model)):
        close(tuple(copied(source)), expected)


def test_an_empty_batch():
    empty = [np.zeros((0, size)) for size in SIZES]
    assert [x.shape for x in make()(empty)] == [(0, 6), (0, 7)]


def test_config_before_and_after_building(rng):
    bridge = Bridge((4, 5), "relu", False, "he_normal", name="its_name", dtype="mixed_float16")
    before = bridge.get_config()
    bridge(draw(rng))
    assert bridge.get_config() == before
    again = Bridge.from_config(before)
    assert again.get_config() == before
    assert (again.sizes, again.use_bias, again.name) == ((4, 5), False, "its_name")


def test_declared_shapes():
    bridge = make()
    shapes = bridge.compute_output_shape([(None, size) for size in SIZES])
    assert shapes == [(None, 6), (None, 7)]
    states = [keras.Input((size,), batch_size=B) for size in SIZES]
    assert [(x.shape, x.dtype) for x in bridge(states)] == [
        ((B, 6), "float64"),
        ((B, 7), "float64"),
    ]


@pytest.mark.parametrize("sizes", [0, -1, 2.5, [3, 0], [], None, "12", [True], [2, None]])
def test_wrong_sizes(sizes):
    with pytest.raises(ValueError, match="`sizes` must be one positive integer or several"):
        Bridge(sizes)


@pytest.mark.parametrize("shape", [(B, 3, 4), (B,)])
def test_wrong_states(shape):
    with pytest.raises(ValueError, match=r"`states` must have shape \[B, D\]"):
        Bridge(4)(np.zeros(shape))
