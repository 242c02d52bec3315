"""`NoAttention`, the baseline that sees nothing of the memory."""

import copy

import keras
import numpy as np
import pytest
import reference as ref
from backend import differentiate, to_numpy
from conftest import MODES
from test_decoders import cell_of
from test_layers import close, randomise

from keras_attention import BahdanauDecoder, LuongDecoder, MonotonicAlignment, NoAttention

B, T, S, D, Dm, U = 2, 3, 5, 4, 6, 7
MASK = np.array([[1, 1, 0], [1, 1, 1]], bool)
DECODERS = {
    "bahdanau": lambda cell, **kw: BahdanauDecoder(cell, NoAttention(**kw), **kw),
    "luong": lambda cell, **kw: LuongDecoder(cell, NoAttention(**kw), **kw),
    "feeding": lambda cell, **kw: LuongDecoder(cell, NoAttention(**kw), input_feeding=True, **kw),
}
ALL = pytest.mark.parametrize("kind", DECODERS)


def make(kind, dtype="float64"):
    decoder = DECODERS[kind](keras.layers.LSTMCell(U, dtype=dtype), dtype=dtype)
    decoder.build((None, None, D), (None, None, Dm))
    return randomise(decoder)


def draw(rng, dtype="float64"):
    shapes = (B, T, D), (B, S, Dm), (B, U), (B, U)
    inputs, memory, *state = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    return inputs, memory, state


def test_the_layer(run):
    context, weights = run(
        lambda query, value: NoAttention()(query, value, return_attention_scores=True),
        np.ones((B, T, D), "float32"),
        np.full((B, S, Dm), np.nan, "float32"),
    )
    assert context.shape == (B, T, 0)
    assert weights.shape == (B, T, S) and np.all(weights == 0)


def test_one_step_and_memory():
    layer = NoAttention()
    layer.build((None, D), (None, None, Dm))
    memory = layer.precompute(np.ones((B, S, Dm)), value_mask=np.ones((B, S), bool))
    context, weights, alignment = layer(
        np.ones((B, D)), memory=memory, alignment={}, return_attention_scores=True
    )
    assert (context.shape, weights.shape, alignment) == ((B, 0), (B, S), {})
    assert layer.weights == [] and layer.initial_alignment(memory) == {}
    assert layer.compute_output_shape((B, T, D), (B, S, Dm)) == (B, T, 0)


def test_declared_shapes():
    query, value = keras.Input((None, D)), keras.Input((None, Dm))
    context, weights = NoAttention()(query, value, return_attention_scores=True)
    assert (context.shape, weights.shape) == ((None, None, 0), (None, None, None))


def by_the_equations(decoder, inputs, state):
    """The cell alone, and for Luong tanh(W_c s_t + b_c)."""
    run_cell, outputs = cell_of(decoder.cell), []
    luong = isinstance(decoder, LuongDecoder)
    last = np.zeros(U)
    for x in inputs:
        feeding = luong and decoder.input_feeding
        last, state = run_cell(np.concatenate([x, last]) if feeding else x, state)
        if luong:
            last = np.tanh(ref.affine(last, *(to_numpy(w) for w in decoder.combine.weights)))
        outputs.append(last)
    return np.array(outputs), state


@ALL
def test_decoders_follow_the_cell(kind, rng):
    decoder = make(kind)
    inputs, memory, state = draw(rng)
    outputs, weights, after = decoder(
        inputs, memory, initial_state=state, return_attention_scores=True, return_state=True
    )
    assert weights.shape == (B, T, S) and np.all(weights == 0)
    after = after["cell"] if kind == "feeding" else after
    for b in range(B):
        expected, expected_state = by_the_equations(decoder, inputs[b], [x[b] for x in state])
        close(outputs[b], expected, "float64")
        close([x[b] for x in after], expected_state, "float64")
    # Nothing of the memory gets in, whatever it holds and however long it is.
    other = decoder(inputs, np.full((B, S + 2, Dm), np.nan), initial_state=state)
    np.testing.assert_array_equal(other, outputs)


@ALL
def test_steps_equal_the_sequence(kind, rng):
    decoder = make(kind)
    inputs, memory, state = draw(rng)
    expected = decoder(inputs, memory, initial_state=state, mask=MASK)
    prepared = decoder.precompute(memory)
    state = decoder.start_state(prepared, state)
    for t in range(T):
        output, weights, state = decoder.step(inputs[:, t], state, prepared, True)
        close(output * MASK[:, t, None], expected[:, t], "float64")
        assert weights.shape == (B, S) and np.all(weights == 0)


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_modes(mode, rng):
    decoder = make("bahdanau", "float32")
    inputs, memory, _ = draw(rng, "float32")
    expected = decoder(inputs, memory)
    close(MODES[mode](lambda *x: decoder(*x))(inputs, memory), expected)


@ALL
def test_saved_cloned_and_copied(kind, rng, tmp_path):
    inputs, memory = keras.Input((None, D)), keras.Input((None, Dm))
    decoder = make(kind, "float32")
    results = decoder(inputs, memory, return_attention_scores=True)
    assert results[1].shape == (None, None, None)
    model = keras.Model([inputs, memory], results)
    x = draw(rng, "float32")[:2]
    expected = to_numpy(tuple(model(x)))
    model.save(tmp_path / "model.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for copied in (keras.saving.load_model(tmp_path / "model.keras"), cloned, copy.deepcopy(model)):
        close(tuple(copied(x)), expected)


def test_gradients_reach_the_cell_and_not_the_memory(rng):
    decoder = make("luong")
    inputs, memory, state = draw(rng)
    gradients = to_numpy(
        differentiate(
            lambda memory: decoder(inputs, memory, initial_state=state) ** 2,
            [memory],
            decoder.weights,
        )
    )
    assert np.all(gradients[0] == 0)
    assert all(np.abs(x).max() > 0 for x in gradients[1:])


def test_an_empty_batch():
    context, weights = NoAttention()(
        np.zeros((0, T, D)), np.zeros((0, S, Dm)), return_attention_scores=True
    )
    assert context.shape == (0, T, 0) and weights.shape == (0, T, S)
    assert make("bahdanau")(np.zeros((0, T, D)), np.zeros((0, S, Dm))).shape == (0, T, U)


def test_config():
    layer = NoAttention(name="nothing", normalizer="sparsemax", dtype="mixed_float16")
    again = NoAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config() and again.name == "nothing"
    layer(np.ones((B, T, D)), np.ones((B, S, Dm)))
    assert layer.get_config() == again.get_config()


def test_errors():
    with pytest.raises(ValueError, match="`value` must have the batch size of `query`, 2"):
        NoAttention()(np.ones((B, T, D)), np.ones((B + 1, S, Dm)))
    with pytest.raises(ValueError, match="`value_mask` must have shape"):
        NoAttention()(np.ones((B, T, D)), np.ones((B, S, Dm)), value_mask=np.ones((B, S + 1), bool))


def test_a_normaliser_that_carries_is_of_no_consequence(rng):
    layer = NoAttention(normalizer=MonotonicAlignment())
    inputs, memory, _ = draw(rng, "float32")
    assert layer(inputs, memory).shape == (B, T, 0)
