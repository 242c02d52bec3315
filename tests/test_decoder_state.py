"""Decoders that carry more than the cell's state: the alignment, and the output that is fed in."""

import copy

import keras
import numpy as np
import pytest
import reference as ref
import reference_alignment as past_ref
import reference_local
import reference_normalizers as normalizers_ref
import tensorflow as tf
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy, variable_of
from conftest import assert_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_decoders import cell_of
from test_history import step_of
from test_layers import LAYER_TOLERANCES, close, randomise

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    Coverage,
    LocationFeatures,
    LuongAttention,
    LuongDecoder,
    MonotonicAlignment,
)
from keras_attention.search import beam_search, greedy_search

B, T, S, D, Dm, U = 2, 4, 5, 3, 6, 7
MASK = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], bool)
MEMORY_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
MASKS = {"mask": MASK, "memory_mask": MEMORY_MASK}
EVERYTHING = {"return_attention_scores": True, "return_state": True}


def gru(units=U, **kw):
    return keras.layers.GRUCell(units, **kw)


def lstm(units=U, **kw):
    return keras.layers.LSTMCell(units, **kw)


def stack(units=U, **kw):
    return [keras.layers.GRUCell(4, **kw), keras.layers.LSTMCell(units, **kw)]


def bahdanau(cell, history=None, **attention):
    """How to make a decoder of that cell; `history` a function from a dtype to a history."""

    def make(dtype=None, **cell_options):
        own = {"history": history and history(dtype=dtype), **attention}
        return BahdanauDecoder(
            cell(dtype=dtype, **cell_options), BahdanauAttention(5, dtype=dtype, **own), dtype=dtype
        )

    return make


def luong(cell, history=None, score="general", **options):
    attention = {
        name: options.pop(name) for name in ("normalizer", "local", "window") if name in options
    }

    def make(dtype=None, **cell_options):
        if history:
            own = {"history": history(dtype=dtype), **attention}
            layer = BahdanauAttention(5, dtype=dtype, **own)
        else:
            layer = LuongAttention(score, dtype=dtype, **attention)
        return LuongDecoder(cell(dtype=dtype, **cell_options), layer, dtype=dtype, **options)

    return make


def location(**kw):
    return LocationFeatures(2, 3, **kw)


def fertility(**kw):
    return Coverage(2.0, **kw)


CELL, ALL_PARTS = ["cell"], ["alignment", "attended", "cell"]
DECODERS = {
    "coverage": (bahdanau(gru, Coverage), ["alignment", "cell"]),
    "fertility_normalised": (bahdanau(lstm, fertility, normalize=True), ["alignment", "cell"]),
    "location_stack": (bahdanau(stack, location), ["alignment", "cell"]),
    "coverage_after": (luong(gru, Coverage), ["alignment", "cell"]),
    "feeding": (luong(lstm, units=4, input_feeding=True), ["attended", "cell"]),
    "feeding_stack": (luong(stack, input_feeding=True), ["attended", "cell"]),
    "feeding_coverage": (luong(lstm, Coverage, units=4, input_feeding=True), ALL_PARTS),
    "feeding_location_relu": (
        luong(stack, location, units=4, activation="relu", input_feeding=True),
        ALL_PARTS,
    ),
    "sparsemax": (luong(gru, normalizer="sparsemax"), CELL),
    "sparsemax_feeding": (
        luong(gru, normalizer="sparsemax", input_feeding=True, activation=None),
        ["attended", "cell"],
    ),
    "predictive": (luong(gru, local="predictive", window=1), CELL),
    "predictive_feeding": (
        luong(lstm, local="predictive", window=2, input_feeding=True),
        ["attended", "cell"],
    ),
    "bahdanau_sparsemax": (bahdanau(gru, normalizer="sparsemax"), CELL),
    "bahdanau_coverage_entmax": (
        bahdanau(gru, Coverage, normalizer="entmax15"),
        ["alignment", "cell"],
    ),
}
# Without a reference here, but with a state.
MORE = {
    "local": (luong(gru, local="monotonic", window=1), ["alignment", "cell"]),
    "local_feeding": (luong(gru, local="monotonic", window=1, input_feeding=True), ALL_PARTS),
    "monotonic": (
        bahdanau(gru, Coverage, normalizer=MonotonicAlignment(hard=False)),
        ["alignment", "cell"],
    ),
}
WITH_STATE = DECODERS | MORE
SOME = ["location_stack", "coverage_after", "feeding_coverage", "local_feeding"]
ALL = pytest.mark.parametrize("name", DECODERS)
ALL_STATES = pytest.mark.parametrize("name", WITH_STATE)


def built(name, dtype="float64", **cell_options):
    decoder = WITH_STATE[name][0](dtype=dtype, **cell_options)
    decoder.build((None, None, D), (None, None, Dm))
    return randomise(decoder, np.random.default_rng(3))


def draw(rng, decoder=None, dtype="float64", batch=B, steps=T, keys=S):
    """Inputs, memory and, for a decoder, a state of its cell."""
    arrays = [rng.normal(size=shape) for shape in ((batch, steps, D), (batch, keys, Dm))]
    arrays = [x.astype(dtype) for x in arrays]
    if decoder is None:
        return arrays
    return *arrays, keras.tree.map_structure(
        lambda x: rng.normal(size=x.shape).astype(dtype), decoder.get_initial_state(batch)
    )


def parts_of(state):
    """The cell's state, the alignment and the fed output of a state, as flat lists of arrays."""
    if not isinstance(state, dict):
        state = {"cell": state}
    names = ("cell", "alignment", "attended")
    return {name: to_numpy(tuple(keras.tree.flatten(state.get(name, [])))) for name in names}


def same(state, other, dtype="float64"):
    assert type(state) is type(other)
    if isinstance(state, dict):
        assert sorted(state) == sorted(other)
    for a, b in zip(keras.tree.flatten(state), keras.tree.flatten(other), strict=True):
        close(a, b, dtype)


# The equations


def attention_step(layer):
    """One step of the decoder's attention in the reference."""
    normalize = past_ref.softmax
    if layer.normalizer.__name__ in ("sparsemax", "entmax15"):
        alpha = {"sparsemax": 2.0, "entmax15": 1.5}[layer.normalizer.__name__]

        def normalize(scores, allowed, past):
            return normalizers_ref.entmax(scores, allowed, alpha)

    if isinstance(layer, BahdanauAttention):
        return step_of(layer, normalize)
    kernel = to_numpy(layer.key_projection.kernel).T  # the layer computes W h_s

    def score(query, keys, values, past):
        return np.array([ref.general(query, key, kernel) for key in keys])

    if layer.local is None:
        return past_ref.step_of(score, normalize)
    W_p, v_p = to_numpy(layer.position_projection.kernel).T, to_numpy(layer.v_p)

    def local_step(query, keys, values, allowed, past):
        mask = np.array(allowed)[None]
        positions = reference_local.predicted_positions(query[None, None], W_p, v_p, mask)
        scores = score(query, keys, values, past)[None, None]
        context, weights = reference_local.local_attention(
            scores, values[None], positions, layer.window, mask, mask[:, None], gaussian=True
        )
        return context[0, 0], weights[0, 0], past

    return local_step


def decoder_step(decoder):
    cell, attention = cell_of(decoder.cell), attention_step(decoder.attention)
    if isinstance(decoder, BahdanauDecoder):
        return past_ref.bahdanau_step(cell, attention)
    activations = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "linear": lambda x: x}
    return past_ref.luong_step(
        cell,
        attention,
        *(to_numpy(w) for w in decoder.combine.weights),
        activations[decoder.activation.__name__],
        decoder.input_feeding,
    )


def by_the_equations(decoder, inputs, memory, state, memory_mask, mask):
    """Outputs, weights, and the parts of the state as `parts_of` gives them."""
    step, samples = decoder_step(decoder), []
    for b in range(len(inputs)):
        cell_state = keras.tree.map_structure(lambda x, b=b: np.float64(x[b]), state)
        start = (cell_state, past_ref.beginning(memory.shape[1]), np.zeros(decoder._output_size()))
        outputs, weights, (cell_state, past, last) = ref.run_decoder(
            step, inputs[b], start, memory[b], memory_mask[b], mask[b]
        )
        carried = {"coverage": past.total, "previous": past.previous}
        alignment = [carried[name] for name in decoder.attention.alignment_spec(1, S)]
        attended = [last] if getattr(decoder, "input_feeding", False) else []
        parts = keras.tree.flatten(cell_state), alignment, attended
        samples.append((outputs, weights, *parts))
    outputs, weights, *parts = zip(*samples, strict=True)
    parts = [tuple(map(np.array, zip(*part, strict=True))) for part in parts]
    names = ("cell", "alignment", "attended")
    return np.array(outputs), np.array(weights), dict(zip(names, parts, strict=True))


@ALL
def test_equations(name, rng):
    decoder = built(name)
    inputs, memory, state = draw(rng, decoder)
    results = decoder(inputs, memory, initial_state=state, **MASKS, **EVERYTHING)
    expected = by_the_equations(decoder, inputs, memory, state, MEMORY_MASK, MASK)
    close(results[:2], expected[:2], "float64")
    parts = parts_of(results[2])
    for part, arrays in expected[2].items():
        close(parts[part], arrays, "float64")
    assert WITH_STATE[name][1] == sorted(part for part in parts if parts[part])


# Steps and parts of sequences


@ALL_STATES
def test_steps_equal_the_sequence(name, rng):
    decoder = built(name)
    inputs, memory, state = draw(rng, decoder)
    options = {"initial_state": state, "memory_mask": MEMORY_MASK}
    outputs, weights, after = decoder(inputs, memory, **options, **EVERYTHING)
    prepared = decoder.precompute(memory, MEMORY_MASK)
    state = decoder.start_state(prepared, state)
    for t in range(T):
        output, step_weights, state = decoder.step(inputs[:, t], state, prepared, True)
        close(output, outputs[:, t], "float64")
        close(step_weights, weights[:, t], "float64")
    same(state, after)


@settings(max_examples=8, deadline=None)
@given(name=st.sampled_from(list(WITH_STATE)), seed=st.integers(0, 99), cut=st.integers(1, T - 1))
def test_a_sequence_in_two_calls(name, seed, cut):
    """Masked steps on both sides of the cut included."""
    decoder = built(name)
    inputs, memory, state = draw(np.random.default_rng(seed), decoder)
    options = {"memory_mask": MEMORY_MASK, **EVERYTHING}
    outputs, weights, after = decoder(inputs, memory, initial_state=state, mask=MASK, **options)
    parts = []
    for steps in (slice(cut), slice(cut, None)):
        *results, state = decoder(
            inputs[:, steps], memory, initial_state=state, mask=MASK[:, steps], **options
        )
        parts.append(results)
    for whole, halves in zip((outputs, weights), zip(*parts, strict=True), strict=True):
        close(np.concatenate(halves, axis=1), whole, "float64")
    same(state, after)


@ALL_STATES
def test_masked_steps_keep_all_of_the_state(name, rng):
    decoder = built(name)
    inputs, memory, state = draw(rng, decoder)
    _, state = decoder(inputs, memory, initial_state=state, return_state=True)
    none = np.zeros((B, T), bool)
    outputs, weights, after = decoder(
        inputs, memory, initial_state=state, mask=none, memory_mask=MEMORY_MASK, **EVERYTHING
    )
    same(after, state)
    assert np.all(outputs == 0) and np.all(weights == 0)


@pytest.mark.parametrize("name", SOME)
def test_padding_changes_nothing(name, rng):
    decoder = built(name)
    inputs, memory, state = draw(rng, decoder)
    outputs, weights, after = decoder(inputs, memory, initial_state=state, **EVERYTHING)
    padded_inputs = np.insert(inputs, 2, np.nan, axis=1)
    padded_memory = np.pad(memory, ((0, 0), (0, 3), (0, 0)), constant_values=np.nan)
    results = decoder(
        padded_inputs,
        padded_memory,
        initial_state=state,
        mask=np.insert(np.ones((B, T), bool), 2, False, axis=1),
        memory_mask=np.pad(np.ones((B, S), bool), ((0, 0), (0, 3))),
        **EVERYTHING,
    )
    close(np.delete(results[0], 2, axis=1), outputs, "float64")
    close(np.delete(results[1], 2, axis=1)[:, :, :S], weights, "float64")
    cut = keras.tree.map_structure(lambda x: x[:, :S] if x.shape[-1] == S + 3 else x, results[2])
    same(cut, after)


@pytest.mark.parametrize("name", ["coverage", "feeding_coverage"])
def test_masked_memory_equals_deleted_memory(name, rng):
    decoder = built(name)
    inputs, memory = draw(rng)
    mask = np.ones((B, S), bool)
    mask[:, 1] = False
    masked = decoder(inputs, memory, memory_mask=mask, return_attention_scores=True)
    deleted = decoder(inputs, np.delete(memory, 1, axis=1), return_attention_scores=True)
    close(masked[0], deleted[0], "float64")
    close(np.delete(masked[1], 1, axis=2), deleted[1], "float64")


# The state as a structure


def described(state):
    """Names, shapes without the batch, and dtypes."""
    if isinstance(state, dict):
        return {name: described(part) for name, part in state.items()}
    if isinstance(state, (list, tuple)):
        return [described(part) for part in state]
    return tuple(state.shape)[1:], keras.backend.standardize_dtype(state.dtype)


@pytest.mark.parametrize("policy", ["float64", "mixed_float16"])
@ALL_STATES
def test_declared_state_equals_the_real_one(name, policy, rng):
    decoder = built(name, policy)
    inputs, memory = draw(rng, dtype="float32")
    outputs, weights, state = decoder(inputs, memory, **EVERYTHING)
    symbolic = decoder(
        keras.Input((T, D), dtype="float32"), keras.Input((S, Dm), dtype="float32"), **EVERYTHING
    )
    assert described(symbolic[2]) == described(state)
    for declared, real in zip(symbolic[:2], (outputs, weights), strict=True):
        assert declared.shape == (None, *real.shape[1:])
        assert keras.backend.standardize_dtype(real.dtype) == declared.dtype
    start = decoder.start_state(decoder.precompute(memory))
    assert described(start) == described(state)
    assert isinstance(state, list) == (WITH_STATE[name][1] == CELL)
    if isinstance(state, dict):
        assert sorted(state) == WITH_STATE[name][1]
    free = decoder(keras.Input((None, D)), keras.Input((None, Dm)), return_state=True)[1]
    sizes = [None if x.shape[1:] == (S,) else x.shape[-1] for x in keras.tree.flatten(state)]
    for x, size in zip(keras.tree.flatten(free), sizes, strict=True):
        assert x.shape in ((None, size), (None,))


@pytest.mark.parametrize("name", SOME)
def test_the_state_as_input_and_output_of_a_functional_model(name, rng, tmp_path):
    decoder = built(name, "float32")
    *arrays, cell_state = draw(rng, decoder, "float32")
    inputs, memory = map(tensor, arrays)
    _, state = decoder(inputs, memory, initial_state=cell_state, return_state=True)
    given = keras.tree.map_structure(lambda x: keras.Input(x.shape[1:], dtype=dtype_of(x)), state)
    symbolic = [keras.Input((None, D)), keras.Input((None, Dm))]
    results = decoder(*symbolic, initial_state=given, return_state=True)
    model = keras.Model([*symbolic, given], results)
    expected = decoder(inputs, memory, initial_state=state, return_state=True)
    outputs, after = model([inputs, memory, state])
    close(outputs, expected[0])
    same(after, expected[1], "float32")
    model.save(tmp_path / "model.keras")
    outputs, after = keras.saving.load_model(tmp_path / "model.keras")([inputs, memory, state])
    close(outputs, expected[0])
    same(after, expected[1], "float32")


@pytest.mark.parametrize("name", SOME)
def test_a_state_of_the_cell_alone_may_start(name, rng):
    decoder = built(name)
    inputs, memory, cell_state = draw(rng, decoder)
    whole = decoder.start_state(decoder.precompute(memory), cell_state)
    assert isinstance(whole, dict)
    expected = decoder(inputs, memory, initial_state=whole)
    np.testing.assert_array_equal(decoder(inputs, memory, initial_state=cell_state), expected)
    flat = keras.tree.flatten(cell_state)
    np.testing.assert_array_equal(decoder(inputs, memory, initial_state=flat), expected)


# Search


class Searched:
    """A decoder with embeddings and logits, as a step for the searches."""

    V, START, END = 6, 0, 1

    def __init__(self, decoder, rng):
        self.decoder = decoder
        self.embeddings = tensor(rng.normal(size=(self.V, D)).astype("float32"))
        self.kernel = tensor(rng.normal(size=(decoder._output_size(), self.V)).astype("float32"))

    def step(self, tokens, state, memory):
        output, weights, state = self.decoder.step(
            ops.take(self.embeddings, tokens, axis=0), state, memory, return_attention_scores=True
        )
        return ops.matmul(output, self.kernel), weights, state

    def search(self, function, memory, **options):
        prepared = self.decoder.precompute(memory, MEMORY_MASK)
        return function(
            self.step,
            state=self.decoder.start_state(prepared),
            start_tokens=np.full(B, self.START),
            end_token=self.END,
            memory=prepared,
            forbidden_tokens=(self.START,),
            **options,
        )

    def teacher_forced(self, ids, memory):
        """Log-probabilities of ids `[T]` and weights, for one sample."""
        inputs = ops.take(self.embeddings, [[self.START, *ids[:-1]]], axis=0)
        outputs, weights = self.decoder(
            inputs, memory[0], memory_mask=memory[1], return_attention_scores=True
        )
        rows = map(ref.log_softmax, np.asarray(outputs[0] @ self.kernel))
        return [row[i] for row, i in zip(rows, ids, strict=True)], weights[0]


@pytest.mark.parametrize("name", ["feeding_coverage", "location_stack"])
def test_a_beam_of_one_is_greedy(name, rng):
    model = Searched(built(name, "float32"), rng)
    memory = draw(rng, dtype="float32")[1]
    greedy = model.search(greedy_search, memory, max_length=6)
    beam = model.search(beam_search, memory, max_length=6, beam_width=1)
    np.testing.assert_array_equal(beam.ids[:, 0], greedy.ids)
    np.testing.assert_array_equal(beam.lengths[:, 0], greedy.lengths)
    close(beam.scores[:, 0], greedy.scores)
    close(beam.attention_scores[:, 0], greedy.attention_scores)


def test_all_of_the_state_follows_its_hypothesis(rng):
    """Scores and alignments of all results of a beam are those of teacher forcing."""
    model = Searched(built("feeding_coverage", "float32"), rng)
    memory = draw(rng, dtype="float32")[1]
    found = model.search(beam_search, memory, max_length=5, beam_width=4, num_results=4)
    orders = set()
    for b in range(B):
        for n in range(4):
            ids = [i for i in np.asarray(found.ids[b, n]).tolist() if i]
            orders.add(tuple(ids))
            gains, weights = model.teacher_forced(ids, (memory[b : b + 1], MEMORY_MASK[b : b + 1]))
            assert_allclose(found.scores[b, n], sum(gains), atol=1e-4)
            assert_allclose(found.attention_scores[b, n, : len(ids)], weights, atol=1e-5)
    assert len(orders) > 4


# Numbers


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["fertility_normalised", "feeding_location_relu"])
def test_half_precision_is_near(name, policy, rng):
    inputs, memory = draw(rng)
    exact, half = built(name), built(name, policy)
    half.set_weights(exact.get_weights())
    limit = 4 * LAYER_TOLERANCES[policy]  # it adds up over the steps
    for a, b in zip(
        keras.tree.flatten(half(inputs, memory, **EVERYTHING)),
        keras.tree.flatten(exact(inputs, memory, **EVERYTHING)),
        strict=True,
    ):
        assert_allclose(to_numpy(a), b, atol=limit)


def test_gradients_are_the_numerical_ones(rng):
    """Of all weights, inputs and parts of the state, through input feeding and coverage."""
    decoder = luong(lambda **kw: gru(2, **kw), fertility, units=2, input_feeding=True)("float64")
    shapes = {"inputs": (B, 2, 2), "memory": (B, 3, 2), "cell": (B, 2), "attended": (B, 2)}
    shapes["coverage"] = (B, 3)
    decoder.build((None, None, 2), (None, None, 2))
    randomise(decoder)
    given = {name: variable_of(rng.random(shape)) for name, shape in shapes.items()}
    mask = np.array([[1, 1], [0, 1]], bool)
    memory_mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    shapes = [(B, 2, 2), (B, 2, 3), (B, 3), (B, 2), (B, 2)]
    factors = [rng.normal(size=shape) for shape in shapes]

    def loss():
        x = {name: tensor(variable) for name, variable in given.items()}
        state = {"cell": [x["cell"]], "attended": x["attended"]}
        state["alignment"] = {"coverage": x["coverage"]}
        masks = {"mask": mask, "memory_mask": memory_mask}
        results = decoder(x["inputs"], x["memory"], initial_state=state, **masks, **EVERYTHING)
        flat = keras.tree.flatten(results)
        return sum(ops.sum(tensor(f) * x) for f, x in zip(factors, flat, strict=True))

    assert_gradients(loss, [*given.values(), *decoder.trainable_weights], 1e-5)


@pytest.mark.parametrize("name", ["location_stack", "feeding_coverage"])
def test_rubbish_in_padding_reaches_nothing(name, rng):
    decoder, clean = built(name), draw(rng)

    def run(*inputs):
        def results(*tensors):
            return keras.tree.flatten(decoder(*tensors, **MASKS, **EVERYTHING))

        def loss(*tensors):
            return sum(ops.sum(x * x) for x in results(*tensors))

        found = differentiate(loss, inputs, decoder.trainable_weights)
        return to_numpy([*results(*inputs), *found])

    masks = (MASK, MEMORY_MASK)
    soiled = [np.where(m[..., None], x, np.nan) for x, m in zip(clean, masks, strict=True)]
    for a, b in zip(run(*clean), run(*soiled), strict=True):
        assert np.all(np.isfinite(b))
        assert_allclose(b, a, atol=1e-12)


@pytest.mark.parametrize("name", ["feeding_coverage", "location_stack"])
def test_dropout_of_the_cells(name, rng):
    """One mask for all steps of a sequence; another in the next call; none at inference."""
    dropout = {"dropout": 0.4, "recurrent_dropout": 0.4, "seed": 1}
    decoder, plain = built(name, "float32", **dropout), built(name, "float32")
    inputs, memory = draw(rng, dtype="float32")
    close(decoder(inputs, memory), plain(inputs, memory))
    first, second = (to_numpy(decoder(inputs, memory, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(first - plain(inputs, memory)).max() > 1e-3


# Keras around them


def model_of(decoder):
    inputs, memory = keras.Input((None, D)), keras.Input((None, Dm))
    return keras.Model([inputs, memory], decoder(inputs, memory, return_attention_scores=True))


@pytest.mark.parametrize("name", SOME)
def test_saved_cloned_and_copied(name, rng, tmp_path):
    model, x = model_of(built(name, "float32")), draw(rng, dtype="float32")
    expected = to_numpy(tuple(model(x)))
    model.save(tmp_path / "model.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for copied in (keras.saving.load_model(tmp_path / "model.keras"), cloned, copy.deepcopy(model)):
        close(tuple(copied(x)), expected)
    # Free batch and lengths.
    other = model(draw(rng, dtype="float32", batch=3, steps=T + 2, keys=S - 3))
    assert other[1].shape == (3, T + 2, S - 3)


def without_build_config(config):
    """A sub-layer's own record of the shapes it was built with comes with building."""
    if isinstance(config, dict):
        return {k: without_build_config(v) for k, v in config.items() if k != "build_config"}
    return [without_build_config(x) for x in config] if isinstance(config, list) else config


@pytest.mark.parametrize("name", ["feeding_location_relu", "coverage"])
def test_config_before_and_after_building(name):
    decoder = WITH_STATE[name][0]("float32")
    before = decoder.get_config()
    decoder.build((None, None, D), (None, None, Dm))
    assert without_build_config(decoder.get_config()) == without_build_config(before)
    again = type(decoder).from_config(before)
    assert again.get_config() == before
    if name == "feeding_location_relu":
        assert (again.units, again.input_feeding) == (4, True)
        assert again.activation is keras.activations.relu


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_an_empty_batch(name):
    decoder = built(name, "float32")

    # (In a graph: keras.layers.LSTMCell fails on a batch of known size 0.)
    @tf.function(input_signature=[tf.TensorSpec((None, None, size)) for size in (D, Dm)])
    def run(inputs, memory):
        results = decoder(inputs, memory, **EVERYTHING)
        return results, differentiate(
            lambda: decoder(inputs, memory), variables=decoder.trainable_weights
        )

    (outputs, weights, state), gradients = run(ops.zeros((0, T, D)), ops.zeros((0, S, Dm)))
    assert outputs.shape == (0, T, decoder._output_size()) and weights.shape == (0, T, S)
    assert all(x.shape[0] == 0 for x in keras.tree.flatten(state))
    for gradient in gradients:
        assert np.all(np.asarray(gradient) == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coverage", "feeding"])
def test_fit_with_jit_compile_and_free_lengths(name, rng):
    """With dropout in cells inside of the loop; trained weights are right outside of XLA too."""
    decoder = built(name, "float32", dropout=0.2, recurrent_dropout=0.2)
    inputs, memory = keras.Input((None, D)), keras.Input((None, Dm))
    hidden = decoder(inputs, memory)
    model = keras.Model([inputs, memory], keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", jit_compile=True)
    before = {w.path: to_numpy(w) for w in model.trainable_weights}
    x = draw(rng, dtype="float32")
    history = model.fit(x, np.ones((B, T, 1)), batch_size=B, verbose=0)
    assert np.all(np.isfinite(history.history["loss"]))
    for weight in model.trainable_weights:
        assert np.all(np.isfinite(weight)), weight.path
        assert np.any(to_numpy(weight) != before[weight.path]), weight.path
    close(model.predict(x, verbose=0), model(x))


# Errors


def refused(words, function, *args, **kwargs):
    with pytest.raises(ValueError) as error:
        function(*args, **kwargs)
    assert all(word in str(error.value) for word in words), error.value


def test_wrong_states(rng):
    decoder = built("feeding_coverage")
    inputs, memory = draw(rng)
    state = decoder.start_state(decoder.precompute(memory))
    names = "['alignment', 'attended', 'cell']"
    coverage = state["alignment"]["coverage"]
    for wrong, words in (
        ({"cell": state["cell"]}, ("`initial_state`", names, "['cell']")),
        ({**state, "more": coverage}, ("`initial_state`", "'more'")),
        (
            {**state, "alignment": {"previous": coverage}},
            ("`initial_state['alignment']`", "['coverage']", "['previous']"),
        ),
        ({**state, "alignment": coverage}, ("`initial_state['alignment']`", "dictionary")),
        (
            {**state, "alignment": {"coverage": coverage[:, 1:]}},
            ("`initial_state['alignment']['coverage']`", "(2, 5)", "(2, 4)"),
        ),
        ({**state, "attended": state["attended"][:, 1:]}, ("`initial_state['attended']`",)),
        ({**state, "cell": state["cell"][:1]}, ("`initial_state['cell']`", "2 tensors")),
        (state["cell"][:1], ("`initial_state`", "2 tensors")),
        (keras.tree.map_structure(lambda x: x[:1], state), ("`initial_state[", "(1, ")),
    ):
        refused(words, decoder, inputs, memory, initial_state=wrong)
    prepared = decoder.precompute(memory)
    refused(("`state`", names, "list"), decoder.step, inputs[:, 0], state["cell"], prepared)
    refused(("`state`", names), decoder.step, inputs[:, 0], {"cell": state["cell"]}, prepared)


def test_a_dictionary_for_a_decoder_with_the_cells_state_only(rng):
    decoder = built("predictive")
    inputs, memory, state = draw(rng, decoder)
    other = {"cell": state, "attended": np.zeros((B, U))}
    refused(("`initial_state`", "1 tensors"), decoder, inputs, memory, initial_state=other)


@pytest.mark.parametrize("name", ["coverage", "feeding", "predictive"])
def test_memory_of_another_batch(name, rng):
    decoder = built(name)
    inputs, memory = draw(rng)
    refused(("`memory`", "batch size"), decoder, inputs, memory[:1])
    prepared = decoder.precompute(memory[:1])
    state = decoder.start_state(prepared)
    refused(("`memory`", "batch size"), decoder.step, inputs[:, 0], state, prepared)


def test_feedback_and_its_mask_go_together(rng):
    decoder = built("feeding")
    inputs, memory = draw(rng)
    coins = np.ones((B, T), bool)
    words = ("`feedback`", "`feedback_mask`", "go together")
    refused(words, decoder, inputs, memory, feedback=lambda output: output[:, :D])
    refused(words, decoder, inputs, memory, feedback_mask=coins)
    refused(words, decoder, inputs, memory, feedback="greedy", feedback_mask=coins)
    wrong = {"feedback": lambda output: output[:, :D], "feedback_mask": coins[:, 1:]}
    refused(("`feedback_mask`", "(2, 4)", "(2, 3)"), decoder, inputs, memory, **wrong)
    wrong["feedback_mask"] = coins.astype("float32")
    refused(("`feedback_mask`", "boolean"), decoder, inputs, memory, **wrong)


def test_unknown_activation():
    with pytest.raises(ValueError, match="activation"):
        luong(gru, activation="tangent")("float32")
