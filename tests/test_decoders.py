"""Decoders against the papers' equations; masks, steps, dropout, gradients, saving, errors."""

import copy

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import (
    assert_allclose,
    compiled,
    differentiate,
    dtype_of,
    tensor,
    to_numpy,
    variable_of,
)
from conftest import MODES, assert_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    MultiHeadAttention,
    ScaledDotProductAttention,
)

B, T, S, D, Dm, U = 2, 4, 5, 3, 11, 7
MEMORY_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
# Padding in the middle, too: a masked step keeps the state for the steps that follow.
MASK = np.array([[1, 1, 0, 0], [1, 0, 1, 1]], bool)
BOTH_MASKS = {"memory_mask": MEMORY_MASK, "mask": MASK}
EVERYTHING = {"return_attention_scores": True, "return_state": True}

CELLS = {
    "gru": lambda units, **kw: keras.layers.GRUCell(units, **kw),
    "gru_reset_before": lambda units, **kw: keras.layers.GRUCell(units, reset_after=False, **kw),
    "lstm": lambda units, **kw: keras.layers.LSTMCell(units, **kw),
    "simple_rnn": lambda units, **kw: keras.layers.SimpleRNNCell(units, **kw),
    "stack": lambda units, **kw: [
        keras.layers.GRUCell(2, **kw),
        keras.layers.LSTMCell(units, **kw),
    ],
}
ATTENTIONS = {
    "bahdanau": lambda **kw: BahdanauAttention(5, use_bias=True, **kw),
    "general": lambda **kw: LuongAttention("general", **kw),
    "concat": lambda **kw: LuongAttention("concat", units=5, **kw),
    "dot": lambda **kw: LuongAttention("dot", **kw),
    "scaled_dot": lambda **kw: ScaledDotProductAttention(**kw),
    "multi_head": lambda **kw: MultiHeadAttention(2, 3, **kw),
}
DECODERS = {
    "bahdanau": lambda cell, attention, **kw: BahdanauDecoder(cell, attention, **kw),
    "luong": lambda cell, attention, **kw: LuongDecoder(cell, attention, units=13, **kw),
}
OWN_ATTENTION = {"bahdanau": "bahdanau", "luong": "general"}  # the papers' pairs
BOTH = pytest.mark.parametrize("kind", DECODERS)


def make(kind, cell="gru", attention=None, dtype="float64", dropout=0.0, sizes=(D, Dm, U)):
    """A built decoder with random weights, biases included."""
    attention = attention or OWN_ATTENTION[kind]
    size, memory_size, units = sizes
    units = memory_size if "dot" in attention else units
    cell_dropout = {"dropout": dropout, "recurrent_dropout": dropout, "seed": 1} if dropout else {}
    attention_dropout = {"dropout": dropout, "seed": 2} if dropout else {}
    decoder = DECODERS[kind](
        CELLS[cell](units, dtype=dtype, **cell_dropout),
        ATTENTIONS[attention](dtype=dtype, **attention_dropout),
        dtype=dtype,
    )
    decoder.build((None, None, size), (None, None, memory_size))
    rng = np.random.default_rng(7)
    for weight in decoder.trainable_weights:
        weight.assign(0.7 * rng.normal(size=weight.shape))
    return decoder


def draw(rng, decoder=None, batch=B, steps=T, memory_steps=S, dtype="float64"):
    """Inputs, memory and, if a decoder is given, a state for it."""
    arrays = [rng.normal(size=(batch, steps, D)), rng.normal(size=(batch, memory_steps, Dm))]
    if decoder is None:
        return [a.astype(dtype) for a in arrays]
    state = keras.tree.map_structure(
        lambda x: rng.normal(size=x.shape).astype(dtype), decoder.get_initial_state(batch)
    )
    return [*(a.astype(dtype) for a in arrays), state]


# The same decoder in the reference


def cell_of(cell):
    if isinstance(cell, keras.layers.StackedRNNCells):
        return ref.stacked_cells(*map(cell_of, cell.cells))
    kernels = [np.asarray(w) for w in cell.get_weights()[:3]]
    if isinstance(cell, keras.layers.GRUCell):
        return ref.gru_cell(*kernels, reset_after=cell.reset_after)
    lstm = isinstance(cell, keras.layers.LSTMCell)
    return ref.lstm_cell(*kernels) if lstm else ref.simple_rnn_cell(*kernels)


def attention_of(layer):
    if isinstance(layer, MultiHeadAttention):
        parts = ("query", "key", "value", "output")
        weights = layer.get_weights()
        kernels, biases = (dict(zip(parts, weights[i::2], strict=True)) for i in (0, 1))

        def attention(query, memory, mask):
            output, alignment = ref.multi_head_attention(
                query[None, None], memory[None], memory[None], kernels, biases, mask[None, None]
            )
            return output[0, 0], alignment[0, :, 0].mean(axis=0)

        return attention
    if isinstance(layer, BahdanauAttention):
        return ref.one_query(
            ref.bahdanau_attention,
            query_kernel=np.asarray(layer.query_projection.kernel),
            key_kernel=np.asarray(layer.key_projection.kernel),
            v=np.asarray(layer.v),
            bias=np.asarray(layer.query_projection.bias),
        )
    if isinstance(layer, ScaledDotProductAttention):
        return ref.one_query(ref.scaled_dot_product_attention)
    kernel = v = None
    if layer.score_mode == "general":  # the layer computes W h_s
        kernel = np.asarray(layer.key_projection.kernel).T
    if layer.score_mode == "concat":
        halves = [layer.query_projection.kernel, layer.key_projection.kernel]
        kernel, v = np.concatenate([np.asarray(half) for half in halves]), np.asarray(layer.v)
    return ref.one_query(ref.luong_attention, score_mode=layer.score_mode, kernel=kernel, v=v)


def by_the_equations(decoder, inputs, memory, state=None, memory_mask=None, mask=None):
    """Outputs `[B, T, U]`, weights `[B, T, S]`, and the tensors of the state."""
    parts = [cell_of(decoder.cell), attention_of(decoder.attention)]
    decode = ref.bahdanau_decoder
    if isinstance(decoder, LuongDecoder):
        decode = ref.luong_decoder
        parts += [np.asarray(w) for w in decoder.combine.get_weights()]
    state = decoder.get_initial_state(len(inputs)) if state is None else state
    samples = []
    for b in range(len(inputs)):
        outputs, weights, after = decode(
            *parts,
            inputs[b],
            keras.tree.map_structure(lambda x, b=b: np.asarray(x, "float64")[b], state),
            memory[b],
            None if memory_mask is None else memory_mask[b],
            None if mask is None else mask[b],
        )
        samples.append([outputs, weights, *keras.tree.flatten(after)])
    outputs, weights, *state = (np.stack(arrays) for arrays in zip(*samples, strict=True))
    return outputs, weights, state


def check(results, expected, assert_close, dtype="float64"):
    outputs, weights, state = results
    assert_close(outputs, expected[0], dtype)
    assert_close(weights, expected[1], dtype)
    for actual, exact in zip(keras.tree.flatten(state), expected[2], strict=True):
        assert_close(actual, exact, dtype)


@pytest.mark.parametrize("cell", CELLS)
@BOTH
def test_each_cell_follows_the_equations(kind, cell, rng, assert_close):
    decoder = make(kind, cell)
    inputs, memory, state = draw(rng, decoder)
    results = decoder(inputs, memory, initial_state=state, **BOTH_MASKS, **EVERYTHING)
    check(results, by_the_equations(decoder, inputs, memory, state, **BOTH_MASKS), assert_close)


@pytest.mark.parametrize("attention", ATTENTIONS)
@BOTH
def test_each_attention_follows_the_equations(kind, attention, rng, assert_close):
    decoder = make(kind, attention=attention)
    inputs, memory = draw(rng)
    results = decoder(inputs, memory, **BOTH_MASKS, **EVERYTHING)
    check(results, by_the_equations(decoder, inputs, memory, **BOTH_MASKS), assert_close)
    results = decoder(inputs, memory, **EVERYTHING)
    check(results, by_the_equations(decoder, inputs, memory), assert_close)


@BOTH
def test_modes(kind, mode, rng, assert_close):
    """float32; in graphs the batch and both lengths are unknown."""
    decoder = make(kind, "lstm", dtype="float32")
    inputs, memory = draw(rng, dtype="float32")
    expected = by_the_equations(decoder, inputs, memory, **BOTH_MASKS)

    def decode(inputs, memory, memory_mask, mask):
        return decoder(inputs, memory, memory_mask=memory_mask, mask=mask, **EVERYTHING)

    if mode == "graph":
        shapes = [((None, None, D), "float32"), ((None, None, Dm), "float32")]
        shapes += [((None, None), "bool")] * 2
        decode = tf.function(decode, input_signature=[tf.TensorSpec(*spec) for spec in shapes])
        # The same graph takes other sizes.
        decode(inputs[:1, :1], memory[:1, :2], MEMORY_MASK[:1, :2], MASK[:1, :1])
    results = MODES[mode](decode)(*map(tensor, (inputs, memory, MEMORY_MASK, MASK)))
    check(results, expected, assert_close, "float32")


@pytest.mark.parametrize("cell", ["lstm", "stack"])
@pytest.mark.parametrize("half, limit", [("float16", 0.02), ("bfloat16", 0.15)])
@BOTH
def test_half_precision_is_near_the_equations(kind, half, limit, cell, rng):
    """Rounding adds up over the steps, so the limits are loose; weights are about 1/5."""
    decoder = make(kind, cell, dtype=f"mixed_{half}")
    inputs, memory, state = draw(rng, decoder, dtype="float32")
    results = decoder(inputs, memory, initial_state=state, **BOTH_MASKS, **EVERYTHING)
    assert {dtype_of(x) for x in keras.tree.flatten(results)} == {half}
    outputs, weights, state = by_the_equations(decoder, inputs, memory, state, **BOTH_MASKS)
    expected = [outputs, weights, *state]
    for actual, exact in zip(keras.tree.flatten(results), expected, strict=True):
        assert_allclose(to_numpy(actual), exact, atol=limit)


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
@BOTH
def test_parts_made_without_a_dtype(kind, dtype, rng):
    """What comes out has the dtype of the decoder, in whatever dtype its parts compute."""
    decoder = DECODERS[kind](CELLS["lstm"](U), ATTENTIONS[OWN_ATTENTION[kind]](), dtype=dtype)
    results = decoder(*draw(rng, dtype="float32"), **EVERYTHING)
    assert {dtype_of(x) for x in keras.tree.flatten(results)} == {decoder.compute_dtype}


# The state


@pytest.mark.parametrize("cell", ["gru", "lstm", "stack"])
@BOTH
def test_initial_state_in_every_structure(kind, cell, rng):
    decoder = make(kind, cell)
    inputs, memory, state = draw(rng, decoder)
    flat = keras.tree.flatten(state)
    structures = [state, tuple(state), flat, tuple(flat), list(map(tensor, flat))]
    structures += [tuple(map(tuple, state))] if cell == "stack" else []
    structures += [flat[0], tensor(flat[0])] if cell == "gru" else []
    expected = by_the_equations(decoder, inputs, memory, state)[0]
    for structure in structures:
        outputs = decoder(inputs, memory, initial_state=structure)
        assert_allclose(outputs, expected, atol=1e-12)


def test_state_has_the_structure_of_the_cell():
    def sizes(cell):
        decoder = make("bahdanau", cell)
        inputs, memory = draw(np.random.default_rng(0))
        initial = decoder.get_initial_state(B)
        _, after = decoder(inputs, memory, return_state=True)
        keras.tree.assert_same_structure(initial, after)
        assert isinstance(initial, list)
        shapes = keras.tree.map_structure(lambda x: tuple(x.shape), initial)
        assert shapes == keras.tree.map_structure(lambda x: tuple(x.shape), after)
        assert all(np.all(x == 0) for x in map(np.asarray, keras.tree.flatten(initial)))
        return keras.tree.map_shape_structure(lambda shape: shape[-1], shapes)

    assert sizes("gru") == [U]
    assert sizes("lstm") == [U, U]
    assert sizes("stack") == [[2], [U, U]]


@BOTH
def test_a_sequence_in_two_halves(kind, rng):
    """The state returned by the first half is a valid initial state of the second."""
    decoder = make(kind, "stack")
    inputs, memory = draw(rng)
    whole, state_whole = decoder(inputs, memory, return_state=True)
    first, state = decoder(inputs[:, :1], memory, return_state=True)
    second, state = decoder(inputs[:, 1:], memory, initial_state=state, return_state=True)
    assert_allclose(np.concatenate([first, second], 1), whole, atol=1e-13)
    for a, b in zip(*map(keras.tree.flatten, (state, state_whole)), strict=True):
        assert_allclose(a, b, atol=1e-13)


@BOTH
def test_return_orders(kind, rng):
    decoder = make(kind)
    inputs, memory = draw(rng)
    outputs, weights, state = decoder(inputs, memory, **EVERYTHING)
    size = {"bahdanau": U, "luong": 13}[kind]
    assert (outputs.shape, weights.shape) == ((B, T, size), (B, T, S))
    assert [tuple(x.shape) for x in state] == [(B, U)]
    alone = decoder(inputs, memory)
    with_weights = decoder(inputs, memory, return_attention_scores=True)
    with_state = decoder(inputs, memory, return_state=True)
    assert (len(with_weights), len(with_state)) == (2, 2)
    np.testing.assert_array_equal(alone, outputs)
    np.testing.assert_array_equal(with_weights[0], outputs)
    np.testing.assert_array_equal(with_weights[1], weights)
    np.testing.assert_array_equal(with_state[0], outputs)
    np.testing.assert_array_equal(with_state[1][0], state[0])


# Masks


def embedded(rng, ids, size):
    """Vectors that carry the Keras mask of id 0."""
    layer = keras.layers.Embedding(5, size, mask_zero=True, dtype="float64")
    layer.build((None,))
    layer.set_weights([rng.normal(size=(5, size))])
    return layer(np.where(ids, rng.integers(1, 5, ids.shape), 0))


@BOTH
def test_implicit_masks_equal_explicit_ones(kind, rng):
    decoder = make(kind)
    inputs, memory = embedded(rng, MASK, D), embedded(rng, MEMORY_MASK, Dm)
    implicit = decoder(inputs, memory, **EVERYTHING)
    plain = np.array(inputs), np.array(memory)
    explicit = decoder(*plain, **BOTH_MASKS, **EVERYTHING)
    for a, b in zip(*map(keras.tree.flatten, (implicit, explicit)), strict=True):
        np.testing.assert_array_equal(a, b)
    unmasked = decoder(*plain, **EVERYTHING)
    assert np.abs(unmasked[1] - implicit[1]).max() > 0.01
    # An explicit mask replaces the implicit one.
    ones = {"memory_mask": np.ones_like(MEMORY_MASK), "mask": np.ones_like(MASK)}
    replaced = decoder(inputs, memory, **ones, **EVERYTHING)
    for a, b in zip(*map(keras.tree.flatten, (replaced, unmasked)), strict=True):
        assert_allclose(a, b, atol=1e-13)
    # The caller's tensors keep their masks.
    np.testing.assert_array_equal(inputs._keras_mask, MASK)
    np.testing.assert_array_equal(memory._keras_mask, MEMORY_MASK)


@BOTH
def test_implicit_masks_in_a_functional_model(kind, rng):
    decoder = make(kind)
    ids, source = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embed = [keras.layers.Embedding(5, size, mask_zero=True, dtype="float64") for size in (D, Dm)]
    outputs = decoder(embed[0](ids), embed[1](source), **EVERYTHING)
    model = keras.Model([ids, source], outputs)
    values = [np.where(m, rng.integers(1, 5, m.shape), 0) for m in (MASK, MEMORY_MASK)]
    explicit = decoder(
        *(np.array(layer(x)) for layer, x in zip(embed, values, strict=True)),
        **BOTH_MASKS,
        **EVERYTHING,
    )
    for result in (model(values), model.predict(values, verbose=0)):
        for a, b in zip(*map(keras.tree.flatten, (result, explicit)), strict=True):
            assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("make_mask", [np.int32, np.uint8, np.ndarray.tolist, tensor])
@BOTH
def test_masks_of_any_kind(kind, make_mask, rng):
    decoder = make(kind)
    inputs, memory = draw(rng)
    masks = {name: make_mask(mask) for name, mask in BOTH_MASKS.items()}
    np.testing.assert_array_equal(
        decoder(inputs, memory, **masks), decoder(inputs, memory, **BOTH_MASKS)
    )


@BOTH
def test_masked_steps_keep_the_state_and_give_zeros(kind, rng):
    decoder = make(kind, "lstm")
    inputs, memory, initial = draw(rng, decoder)
    options = {"initial_state": initial, **BOTH_MASKS, **EVERYTHING}
    outputs, weights, state = decoder(inputs, memory, **options)
    assert np.all(np.array(outputs)[~MASK] == 0) and np.all(np.array(weights)[~MASK] == 0)
    assert_allclose(np.sum(weights, -1)[MASK], 1.0, atol=1e-12)
    assert np.all(np.array(weights)[0][:, ~MEMORY_MASK[0]] == 0)
    # Masked equals removed: the steps that count, alone, give the same.
    for b in range(B):
        alone, _, its_state = decoder(
            inputs[b : b + 1, MASK[b]],
            memory[b : b + 1, MEMORY_MASK[b]],
            initial_state=[x[b : b + 1] for x in initial],
            **EVERYTHING,
        )
        assert_allclose(alone[0], np.array(outputs)[b, MASK[b]], atol=1e-13)
        for a, e in zip(its_state, state, strict=True):
            assert_allclose(a[0], e[b], atol=1e-13)
    # A sample without any real step keeps the state it started with.
    options["mask"] = np.array([[False] * T, [True] * T])
    _, _, state = decoder(inputs, memory, **options)
    for before, after in zip(initial, state, strict=True):
        np.testing.assert_array_equal(after[0], tensor(before[0]))


@BOTH
def test_a_memory_of_padding_only(kind, rng):
    decoder = make(kind)
    inputs, memory = draw(rng)
    nothing = np.zeros((B, S), bool)
    outputs, weights = decoder(inputs, memory, memory_mask=nothing, return_attention_scores=True)
    assert np.all(to_numpy(weights) == 0)
    assert_allclose(
        outputs, decoder(inputs, np.zeros_like(memory), memory_mask=nothing), atol=1e-13
    )
    (gradient,) = differentiate(lambda x: decoder(inputs, x, memory_mask=nothing), [memory])
    assert np.all(to_numpy(gradient) == 0)


@BOTH
def test_output_carries_the_mask_of_the_inputs(kind, rng):
    decoder = make(kind)
    inputs, memory = embedded(rng, MASK, D), embedded(rng, MEMORY_MASK, Dm)
    outputs, weights, state = decoder(inputs, memory, **EVERYTHING)
    np.testing.assert_array_equal(outputs._keras_mask, MASK)
    np.testing.assert_array_equal(decoder(inputs, memory)._keras_mask, MASK)
    assert all(getattr(x, "_keras_mask", None) is None for x in [weights, *state])
    assert getattr(decoder(np.array(inputs), memory), "_keras_mask", None) is None


@BOTH
def test_output_carries_an_explicit_mask(kind, rng):
    decoder = make(kind)
    inputs, memory = draw(rng)
    outputs = decoder(inputs, memory, mask=MASK)
    np.testing.assert_array_equal(getattr(outputs, "_keras_mask", None), MASK)
    other = embedded(rng, np.ones_like(MASK), D)
    np.testing.assert_array_equal(decoder(other, memory, mask=MASK)._keras_mask, MASK)


# Properties


BUILT = {}


def built(kind):
    """One decoder for all examples of a property."""
    if kind not in BUILT:
        BUILT[kind] = make(kind, "lstm")
    return BUILT[kind]


FEW = settings(max_examples=10, deadline=None)


@BOTH
@FEW
@given(seed=st.integers(0, 2**16), more=st.integers(1, 4), more_memory=st.integers(1, 4))
def test_more_padding_changes_nothing(kind, seed, more, more_memory):
    decoder, rng = built(kind), np.random.default_rng(seed)
    inputs, memory = draw(rng)
    mask = np.concatenate([MASK, np.zeros((B, more), bool)], 1)
    memory_mask = np.concatenate([MEMORY_MASK, np.zeros((B, more_memory), bool)], 1)
    longer = [
        np.concatenate([x, 9 * rng.normal(size=(B, extra, x.shape[-1]))], 1)
        for x, extra in ((inputs, more), (memory, more_memory))
    ]
    outputs, weights, state = decoder(inputs, memory, **BOTH_MASKS, **EVERYTHING)
    padded = decoder(*longer, mask=mask, memory_mask=memory_mask, **EVERYTHING)
    assert_allclose(padded[0][:, :T], outputs, atol=1e-12)
    assert_allclose(padded[1][:, :T, :S], weights, atol=1e-12)
    assert np.all(np.array(padded[0])[:, T:] == 0) and np.all(np.array(padded[1])[..., S:] == 0)
    for a, b in zip(padded[2], state, strict=True):
        assert_allclose(a, b, atol=1e-12)


@BOTH
@FEW
@given(seed=st.integers(0, 2**16), order=st.permutations(range(S)))
def test_a_permutation_of_the_memory_permutes_the_alignment(kind, seed, order):
    decoder = built(kind)
    inputs, memory = draw(np.random.default_rng(seed))
    outputs, weights = decoder(
        inputs, memory, memory_mask=MEMORY_MASK, return_attention_scores=True
    )
    shuffled = decoder(
        inputs, memory[:, order], memory_mask=MEMORY_MASK[:, order], return_attention_scores=True
    )
    assert_allclose(shuffled[0], outputs, atol=1e-12)
    assert_allclose(shuffled[1], np.array(weights)[..., order], atol=1e-12)


@BOTH
@FEW
@given(seed=st.integers(0, 2**16), changed=st.integers(1, T - 1))
def test_later_inputs_change_no_earlier_output(kind, seed, changed):
    decoder, rng = built(kind), np.random.default_rng(seed)
    inputs, memory = draw(rng)
    other = inputs.copy()
    other[:, changed:] = rng.normal(size=other[:, changed:].shape)
    before, after = np.array(decoder(inputs, memory)), np.array(decoder(other, memory))
    np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
    assert np.all(np.abs(before - after)[:, changed:].max(-1) > 1e-6)


@pytest.mark.parametrize(
    "cell, attention", [("lstm", None), ("stack", None), ("gru", "multi_head")]
)
@BOTH
def test_stepping_equals_teacher_forcing(kind, cell, attention, rng):
    decoder = make(kind, cell, attention)
    inputs, memory, initial = draw(rng, decoder)
    outputs, weights, state = decoder(
        inputs, memory, initial_state=initial, memory_mask=MEMORY_MASK, **EVERYTHING
    )
    masked = tensor(memory)
    masked._keras_mask = tensor(MEMORY_MASK)
    precomputed = decoder.precompute(memory, memory_mask=MEMORY_MASK)
    assert isinstance(precomputed, tuple)
    for its_memory in (precomputed, list(precomputed), decoder.precompute(masked), masked):
        step_state = initial
        for t in range(T):
            before = step_state
            output, w, step_state = decoder.step(
                inputs[:, t], before, its_memory, return_attention_scores=True
            )
            assert_allclose(output, outputs[:, t], atol=1e-13)
            assert_allclose(w, weights[:, t], atol=1e-13)
            pair = decoder.step(inputs[:, t], before, its_memory)
            assert len(pair) == 2
            np.testing.assert_array_equal(pair[0], output)
        keras.tree.assert_same_structure(step_state, state)
        for a, b in zip(*map(keras.tree.flatten, (step_state, state)), strict=True):
            assert_allclose(a, b, atol=1e-13)


@BOTH
def test_step_is_pure_and_takes_any_batch(kind, rng):
    """Memory and state can be repeated and reordered between steps, as a beam search does."""
    decoder = make(kind, "lstm")
    inputs, memory = draw(rng)
    plain = decoder.precompute(memory, memory_mask=MEMORY_MASK)
    output, state = decoder.step(inputs[:, 0], decoder.get_initial_state(B), plain)
    output, _ = decoder.step(inputs[:, 1], state, plain)
    beams = [0, 0, 1, 1, 1]
    gathered = keras.tree.map_structure(lambda x: ops.take(x, beams, axis=0), (state, plain))
    wide, _ = decoder.step(inputs[beams, 1], *gathered)
    assert_allclose(wide, np.array(output)[beams], atol=1e-13)
    again, _ = decoder.step(inputs[:, 1], state, plain)
    np.testing.assert_array_equal(again, output)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@BOTH
def test_an_empty_batch(kind, cell):
    decoder = make(kind, cell, dtype="float32")

    def decode(inputs, memory):
        return decoder(inputs, memory, **EVERYTHING)

    if cell == "lstm":  # keras.layers.LSTMCell itself fails on a batch of known size 0
        specs = [tf.TensorSpec((None, None, size)) for size in (D, Dm)]
        decode = tf.function(decode, input_signature=specs)
    outputs, weights, state = decode(ops.zeros((0, T, D)), ops.zeros((0, S, Dm)))
    size = {"bahdanau": U, "luong": 13}[kind]
    assert (outputs.shape, weights.shape) == ((0, T, size), (0, T, S))
    assert {tuple(x.shape) for x in state} == {(0, U)}


# Dropout


@BOTH
def test_inference_leaves_the_seeds_alone(kind, rng):
    """Else a served model would change a variable at each request."""
    decoder = make(kind, "stack", dropout=0.4)
    seeds = [v for v in decoder.variables if "seed" in v.path]
    before = [to_numpy(v) for v in seeds]
    assert before
    decoder(*draw(rng))
    np.testing.assert_array_equal([to_numpy(v) for v in seeds], before)


@pytest.mark.parametrize("cell", ["gru", "stack"])
@BOTH
def test_dropout(kind, cell, rng):
    inputs, memory = draw(rng)
    one, same = make(kind, cell, dropout=0.4), make(kind, cell, dropout=0.4)
    plain = make(kind, cell)
    for decoder in (one, same):
        assert_allclose(decoder(inputs, memory), plain(inputs, memory), atol=1e-13)
    results = [np.array(one(inputs, memory, training=True, **BOTH_MASKS)) for _ in range(2)]
    repeated = [np.array(same(inputs, memory, training=True, **BOTH_MASKS)) for _ in range(2)]
    np.testing.assert_array_equal(results, repeated)
    assert np.all(np.isfinite(results))
    assert np.abs(results[0] - results[1]).max() > 1e-3
    assert np.abs(results[0] - plain(inputs, memory, **BOTH_MASKS)).max() > 1e-3
    # Another batch size after it, and inference is as before.
    assert one(inputs[:1], memory[:1], training=True).shape[0] == 1
    assert_allclose(one(inputs, memory), plain(inputs, memory), atol=1e-13)


@BOTH
def test_dropout_of_the_attention_alone(kind, rng):
    """Weights are returned as they were before dropout: rows sum to 1."""
    decoder = DECODERS[kind](
        keras.layers.GRUCell(U), ATTENTIONS[OWN_ATTENTION[kind]](dropout=0.5, seed=3)
    )
    inputs, memory = draw(rng, dtype="float32")
    plain = decoder(inputs, memory)
    outputs, weights = decoder(inputs, memory, training=True, return_attention_scores=True)
    assert_allclose(np.sum(weights, -1), 1.0, atol=1e-5)
    assert np.abs(outputs - plain).max() > 1e-3


def model_of(decoder, jit_compile):
    inputs, memory = keras.Input((None, D)), keras.Input((None, Dm))
    model = keras.Model([inputs, memory], keras.layers.Dense(1)(decoder(inputs, memory)))
    model.compile("sgd", "mse", jit_compile=jit_compile)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, cell, jit_compile",
    [("bahdanau", "stack", False), ("bahdanau", "gru", True), ("luong", "gru", True)],
    ids=["bahdanau-graph", "bahdanau-jit", "luong-jit"],
)
def test_fit_twice_with_dropout_and_free_lengths(kind, cell, jit_compile, rng):
    decoder = make(kind, cell, dtype="float32", dropout=0.3)
    model = model_of(decoder, jit_compile)
    before = [to_numpy(w) for w in model.trainable_weights]
    for steps, memory_steps in ((T, S), (T + 1, S - 1)):
        x = draw(rng, batch=4, steps=steps, memory_steps=memory_steps, dtype="float32")
        history = model.fit(x, np.ones((4, steps, 1)), batch_size=2, verbose=0)
        assert np.isfinite(history.history["loss"][0])
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.all(np.isfinite(weight)) and np.any(to_numpy(weight) != old), weight.path
    # Nothing of the graph is left behind: eager calls in training and inference still work.
    for training in (True, False):
        assert np.all(np.isfinite(decoder(*x, training=training)))


# Gradients


TINY = 2, 3, 2  # D, Dm, U


def variables_and_loss(kind, rng):
    """All that a decoder depends on, and a scalar that depends on all it returns."""
    decoder = make(kind, "lstm", sizes=TINY)
    steps, memory_steps = 3, 3
    mask = np.array([[1, 1, 1], [1, 0, 1]], bool)
    memory_mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    shapes = [(B, steps, TINY[0]), (B, memory_steps, TINY[1]), (B, TINY[2]), (B, TINY[2])]
    given = [variable_of(rng.normal(size=shape)) for shape in shapes]
    size = {"bahdanau": TINY[2], "luong": 13}[kind]
    shapes = [(B, steps, size), (B, steps, memory_steps), (B, TINY[2]), (B, TINY[2])]
    factors = [rng.normal(size=shape) for shape in shapes]

    def loss():
        inputs, memory, *state = given
        options = {"memory_mask": memory_mask, "mask": mask, **EVERYTHING}
        results = decoder(
            tensor(inputs),
            tensor(memory),
            initial_state=[tensor(x) for x in state],
            **options,
        )
        flat = keras.tree.flatten(results)
        return sum(ops.sum(tensor(f) * x) for f, x in zip(factors, flat, strict=True))

    return given + decoder.trainable_weights, loss


@BOTH
def test_gradients_are_the_numerical_ones(kind, rng):
    """With respect to inputs, memory, state and every weight of cell, attention and decoder."""
    variables, loss = variables_and_loss(kind, rng)
    assert_gradients(loss, variables, 1e-6)


@pytest.mark.slow
@BOTH
def test_gradients_in_xla_are_those_of_eager_mode(kind, rng):
    variables, loss = variables_and_loss(kind, rng)
    eager = differentiate(loss, variables=variables)
    in_xla = compiled(lambda: differentiate(loss, variables=variables), jit_compile=True)()
    for a, b in zip(to_numpy(eager), to_numpy(in_xla), strict=True):
        assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("attention", [None, "concat", "dot", "multi_head"])
@pytest.mark.parametrize("rubbish", [np.nan, np.inf])
@BOTH
def test_rubbish_in_padding_reaches_nothing(kind, attention, rubbish, rng):
    decoder = make(kind, attention=attention)
    clean = draw(rng)

    def run(inputs, memory):
        def results(*tensors):
            return keras.tree.flatten(decoder(*tensors, **BOTH_MASKS, **EVERYTHING))

        def loss(*tensors):
            return sum(ops.sum(x * x) for x in results(*tensors))

        found = differentiate(loss, [inputs, memory], decoder.trainable_weights)
        return to_numpy([*results(inputs, memory), *found])

    masks = (MASK, MEMORY_MASK)
    soiled = [np.where(m[..., None], x, rubbish) for x, m in zip(clean, masks, strict=True)]
    for a, b in zip(run(*clean), run(*soiled), strict=True):
        assert_allclose(b, a, atol=1e-12)
        assert np.all(np.isfinite(b))
    inputs_gradient, memory_gradient = run(*soiled)[3:5]
    assert np.all(np.array(inputs_gradient)[~MASK] == 0)
    assert np.all(np.array(memory_gradient)[~MEMORY_MASK] == 0)


# Configuration, copies, shapes


@pytest.mark.parametrize("cell", ["gru", "stack"])
@BOTH
def test_config_is_the_same_before_and_after_building(kind, cell, rng):
    dtype = {"dtype": "mixed_bfloat16"}
    attention = ATTENTIONS[OWN_ATTENTION[kind]](dropout=0.1, seed=4, name="its_attention", **dtype)
    decoder = DECODERS[kind](CELLS[cell](U, **dtype), attention, name="its_name", **dtype)
    before = decoder.get_config()
    decoder(*draw(rng, dtype="float32"))

    def without_build_config(config):
        """A sub-layer's own record of the shapes it was built with comes with building."""
        if isinstance(config, dict):
            return {k: without_build_config(v) for k, v in config.items() if k != "build_config"}
        return [without_build_config(x) for x in config] if isinstance(config, list) else config

    assert without_build_config(before) == without_build_config(decoder.get_config())
    again = type(decoder).from_config(decoder.get_config())
    assert again.name == "its_name" and again.attention.name == "its_attention"
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert type(again.cell) is type(decoder.cell)
    if kind == "luong":
        assert again.units == 13


def same_copy(copied, original, *tensors):
    assert copied is not original and copied.cell is not original.cell
    assert copied.attention is not original.attention
    if not copied.built:
        copied(*tensors)
    copied.set_weights(original.get_weights())
    np.testing.assert_array_equal(copied(*tensors), original(*tensors))
    # What happens to the copy does not happen to the original.
    kept = np.array(original(*tensors))
    for weight in copied.trainable_weights:
        weight.assign(weight + 1)
    np.testing.assert_array_equal(original(*tensors), kept)


@pytest.mark.parametrize("cell", ["gru", "stack"])
@BOTH
def test_copies(kind, cell, rng):
    decoder = make(kind, cell)
    tensors = draw(rng)
    deep = copy.deepcopy(decoder)
    np.testing.assert_array_equal(deep(*tensors), decoder(*tensors))
    same_copy(deep, decoder, *tensors)
    same_copy(type(decoder).from_config(decoder.get_config()), decoder, *tensors)


@BOTH
def test_clone_model(kind, rng):
    decoder = make(kind, dtype="float32")
    x = draw(rng, dtype="float32")
    model = model_of(decoder, jit_compile=False)
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    np.testing.assert_array_equal(cloned(x), model(x))
    cloned.set_weights([w + 1 for w in cloned.get_weights()])
    assert np.abs(cloned(x) - model(x)).max() > 1e-3


@BOTH
def test_cell_and_attention_that_were_built_before(kind, rng):
    original = make(kind)
    inputs, memory = draw(rng)
    cell, attention = original.cell, original.attention
    attention(np.zeros((B, U)), memory)  # used elsewhere, too
    again = DECODERS[kind](cell, attention, dtype="float64")
    again.build(inputs.shape, memory.shape)
    again.set_weights(original.get_weights())
    assert len(again.trainable_weights) == len(original.trainable_weights)
    np.testing.assert_array_equal(again(inputs, memory), original(inputs, memory))


@BOTH
def test_two_decoders_share_an_attention(kind, rng, tmp_path):
    """Its weights count once, and one file of weights fills both decoders."""

    def build():
        attention = ATTENTIONS[OWN_ATTENTION[kind]](name="shared")
        inputs, memory = keras.Input((None, D)), keras.Input((None, Dm))
        decoders = [DECODERS[kind](keras.layers.GRUCell(U), attention) for _ in range(2)]
        model = keras.Model([inputs, memory], [decoder(inputs, memory) for decoder in decoders])
        return model, decoders, attention

    model, decoders, attention = build()
    own = [len(decoder.trainable_weights) for decoder in decoders]
    assert len(model.trainable_weights) == sum(own) - len(attention.trainable_weights)
    x = draw(rng, dtype="float32")
    expected = model(x)
    model.save_weights(tmp_path / "model.weights.h5")
    again = build()[0]
    again.load_weights(tmp_path / "model.weights.h5")
    for a, b in zip(again(x), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    # A .keras file does not know that Keras layers share a sub-layer. It must say so when it is
    # loaded, and not leave one of the copies with random weights.
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.models.load_model(tmp_path / "model.keras")


@BOTH
def test_declared_shapes(kind, rng):
    decoder = make(kind, "stack", dtype="float32")
    size = {"bahdanau": U, "luong": 13}[kind]
    assert decoder.compute_output_shape((None, None, D), (None, 9, Dm)) == (None, None, size)
    inputs, memory = keras.Input((None, D)), keras.Input((9, Dm))
    outputs, weights, state = decoder(inputs, memory, **EVERYTHING)
    assert (outputs.shape, weights.shape) == ((None, None, size), (None, None, 9))
    shapes = keras.tree.map_structure(lambda x: x.shape[1:], state)
    assert shapes == [[(2,)], [(U,), (U,)]]
    # What is declared for known sizes is what comes out.
    x = draw(rng, dtype="float32")
    specs = decoder.compute_output_spec(*(keras.KerasTensor(a.shape) for a in x), **EVERYTHING)
    results = decoder(*x, **EVERYTHING)
    for spec, result in zip(*map(keras.tree.flatten, (specs, results)), strict=True):
        assert (spec.shape, spec.dtype) == (tuple(result.shape), dtype_of(result))


@BOTH
def test_size_of_the_output(kind):
    cell = keras.layers.LSTMCell(U)
    if kind == "bahdanau":
        assert BahdanauDecoder(cell, BahdanauAttention(2)).compute_output_shape(
            (B, T, D), (B, S, Dm)
        ) == (B, T, U)
        return
    default = LuongDecoder(cell, LuongAttention("general"), use_bias=False)
    default.build((B, T, D), (B, S, Dm))
    assert default.compute_output_shape((B, T, D), (B, S, Dm)) == (B, T, U)
    assert [w.shape for w in default.combine.weights] == [(Dm + U, U)]


# Errors


@pytest.mark.parametrize(
    "cell",
    [
        "gru",
        keras.layers.GRU(U),
        keras.layers.GRUCell,
        [keras.layers.GRUCell(U), keras.layers.LSTM(U)],
        keras.layers.Dense(U),
        [],
        None,
    ],
    ids=str,
)
@BOTH
def test_what_is_no_cell(kind, cell):
    with pytest.raises(ValueError, match="`cell` must be"):
        DECODERS[kind](cell, BahdanauAttention(2))


def test_a_layer_over_time_is_answered_with_its_cell():
    with pytest.raises(ValueError, match=r"keras\.layers\.LSTMCell"):
        BahdanauDecoder(keras.layers.LSTM(U), BahdanauAttention(2))


@pytest.mark.parametrize(
    "attention", ["bahdanau", keras.layers.AdditiveAttention(), BahdanauAttention, None], ids=str
)
@BOTH
def test_what_is_no_attention(kind, attention):
    with pytest.raises(ValueError, match="`attention` must be an attention layer"):
        DECODERS[kind](keras.layers.GRUCell(U), attention)


@pytest.mark.parametrize("units", [0, -1, 2.5, True, "7"])
def test_units_of_luong_decoder(units):
    with pytest.raises(ValueError, match="`units` must be a positive integer"):
        LuongDecoder(keras.layers.GRUCell(U), LuongAttention("general"), units=units)


WRONG_CALLS = {
    "state size": ({"initial_state": np.zeros((B, U + 1))}, r"`initial_state`.*8"),
    "state count": ({"initial_state": [np.zeros((B, U))] * 2}, r"`initial_state`.*2"),
    "state rank": ({"initial_state": np.zeros(U)}, "`initial_state`"),
    "mask length": ({"mask": MASK[:, :3]}, r"`mask` must have shape.*\(2, 3\)"),
    "mask of one step": ({"mask": MASK[:, :1]}, r"`mask` must have shape.*\(2, 1\)"),
    "mask rank": ({"mask": MASK[0]}, r"`mask` must have shape"),
    "memory_mask length": (
        {"memory_mask": MEMORY_MASK[:, :4]},
        r"`memory_mask` must have shape.*\(2, 4\)",
    ),
    "memory_mask rank": ({"memory_mask": MEMORY_MASK[:, None]}, "`memory_mask` must have shape"),
    "floating mask": ({"mask": MASK.astype("float32")}, "`mask` must be boolean.*float"),
    "floating memory_mask": (
        {"memory_mask": MEMORY_MASK.astype("float32")},
        "`memory_mask` must be boolean.*float",
    ),
    "memory rank 2": ({"memory": np.zeros((B, Dm))}, r"`memory`.*\(2, 11\)"),
    "memory rank 4": ({"memory": np.zeros((B, 1, S, Dm))}, r"`memory`.*\(2, 1, 5, 11\)"),
    "inputs rank 2": ({"inputs": np.zeros((B, D))}, r"`inputs`.*\(2, 3\)"),
    "inputs size": ({"inputs": np.zeros((B, T, D + 1))}, r"`inputs`.*4"),
    "memory size": ({"memory": np.zeros((B, S, Dm + 1))}, r"`memory`.*12"),
    "no steps": ({"inputs": np.zeros((B, 0, D))}, r"`inputs`"),
    "batches": ({"memory": np.zeros((B + 1, S, Dm))}, r"`memory`"),
    "token ids": ({"inputs": np.ones((B, T), "int32")}, r"`inputs`"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
@BOTH
def test_wrong_calls(kind, name, rng):
    inputs, memory = draw(rng)
    wrong, message = WRONG_CALLS[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make(kind)(**{"inputs": inputs, "memory": memory, **wrong})


@pytest.mark.parametrize("name", ["memory rank 2", "memory rank 4", "inputs rank 2"])
@BOTH
def test_wrong_first_calls(kind, name, rng):
    inputs, memory = draw(rng)
    wrong, message = WRONG_CALLS[name]
    decoder = DECODERS[kind](keras.layers.GRUCell(U), ATTENTIONS["general"]())
    with pytest.raises(ValueError, match=message):
        decoder(**{"inputs": inputs, "memory": memory, **wrong})


@BOTH
def test_wrong_steps(kind, rng):
    decoder = make(kind)
    inputs, memory, state = draw(rng, decoder)
    with pytest.raises(ValueError, match="`state`.*Received 2"):
        decoder.step(inputs[:, 0], state * 2, memory)
    with pytest.raises(ValueError, match="`inputs`"):
        decoder.step(inputs, state, memory)
    with pytest.raises(ValueError, match="`memory_mask` must have shape"):
        decoder.precompute(memory, memory_mask=MEMORY_MASK[:, :2])


def test_dot_attention_with_a_memory_of_another_size():
    decoder = LuongDecoder(keras.layers.GRUCell(U), LuongAttention("dot"))
    with pytest.raises(ValueError, match="dot.*same size"):
        decoder(np.zeros((B, T, D)), np.zeros((B, S, Dm)))


# Inputs that broke decoders elsewhere


def test_c18_gru_decoder_with_padding_on_both_sides(rng, tmp_path):
    """tensorflow/addons#1194 and #2675."""
    decoder = BahdanauDecoder(keras.layers.GRUCell(U), BahdanauAttention(4))
    inputs = rng.normal(size=(2, 4, 6)).astype("float32")
    memory = rng.normal(size=(2, 5, 6)).astype("float32")
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    outputs, weights, state = eager = decoder(
        inputs, memory, memory_mask=MEMORY_MASK, mask=mask, **EVERYTHING
    )
    assert_allclose(np.sum(weights, -1), mask, atol=1e-6)
    assert np.all(np.array(weights)[0, :, 3:] == 0)
    _, first_two = decoder(inputs[:1, :2], memory[:1, :3], return_state=True)
    assert_allclose(state[0][:1], first_two[0], atol=1e-6)

    tensors = [
        keras.Input((None, 6), name="inputs"),
        keras.Input((None, 6), name="memory"),
        keras.Input((None,), dtype="bool", name="memory_mask"),
        keras.Input((None,), dtype="bool", name="mask"),
    ]
    model = keras.Model(
        tensors,
        decoder(tensors[0], tensors[1], memory_mask=tensors[2], mask=tensors[3], **EVERYTHING),
    )
    model.save(tmp_path / "c18.keras")
    loaded = keras.models.load_model(tmp_path / "c18.keras")
    for one in (model, loaded):
        results = one([inputs, memory, MEMORY_MASK, mask])
        for a, b in zip(*map(keras.tree.flatten, (results, eager)), strict=True):
            assert_allclose(a, b, atol=1e-6)
