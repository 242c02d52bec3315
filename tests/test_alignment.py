"""The alignment that goes from step to step, and the `normalizer` argument, in all layers."""

import json

import keras
import numpy as np
import pytest
import reference_alignment as past_ref
import reference_normalizers as normalizers_ref
import tensorflow as tf
from backend import FLOAT64, dtype_of, tensor, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_history import B, Dk, Dq, Dv, S, T, U, draw, make, step_of
from test_layers import LAYERS, close, randomise

from keras_attention import (
    BahdanauAttention,
    Coverage,
    LocationFeatures,
    LuongAttention,
    MonotonicAlignment,
    MultiHeadAttention,
    NoAttention,
    ScaledDotProductAttention,
    Softmax,
    attend,
    masked_softmax,
)
from keras_attention.layers import alignment as alignments


@keras.saving.register_keras_serializable(package="test_alignment")
def even_weights(scores, mask=None):
    """The same weight for all that may be attended."""
    allowed = ops.ones_like(scores) if mask is None else ops.cast(mask, scores.dtype) + 0 * scores
    return allowed / ops.maximum(ops.sum(allowed, -1, keepdims=True), 1)


@keras.saving.register_keras_serializable(package="test_alignment")
class Sharp:
    """A normaliser with a setting of its own."""

    def __init__(self, power):
        self.power = power

    def __call__(self, scores, mask=None):
        return masked_softmax(self.power * scores, mask)

    def get_config(self):
        return {"power": self.power}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


NORMALIZERS = {
    "softmax": ("softmax", lambda scores, mask: softmax_rows(scores, mask)),
    "temperature": (Softmax(0.5), lambda scores, mask: softmax_rows(2 * scores, mask)),
    "sparsemax": ("sparsemax", lambda scores, mask: normalizers_ref.entmax(scores, mask, 2.0)),
    "entmax15": ("entmax15", lambda scores, mask: normalizers_ref.entmax(scores, mask, 1.5)),
    "function": (even_weights, lambda scores, mask: mask / np.maximum(mask.sum(-1), 1)[..., None]),
    "object": (Sharp(3.0), lambda scores, mask: softmax_rows(3 * scores, mask)),
}


def softmax_rows(scores, mask):
    weights = np.zeros(scores.shape)
    for index in np.ndindex(*scores.shape[:-1]):
        weights[index] = past_ref.softmax(scores[index], mask[index], None)
    return weights


ANY_NORMALIZER = pytest.mark.parametrize("name", NORMALIZERS)
KINDS = pytest.mark.parametrize("kind", LAYERS)


# The `normalizer` argument


@ANY_NORMALIZER
@KINDS
def test_normaliser_of_each_layer(kind, name, rng):
    """The weights are those of the reference, and of `attend` with the same normaliser."""
    normalizer, reference = NORMALIZERS[name]
    layer = LAYERS[kind].build(rng, normalizer=normalizer, dtype="float64")
    query, value, key = LAYERS[kind].arrays(rng, 3, 4)
    mask = rng.random((B, 3, 4)) < 0.8
    mask[0, 1] = False
    seen = {}

    def spy(scores, mask=None):
        seen.update(scores=np.asarray(scores), mask=np.asarray(mask))
        return masked_softmax(scores, mask)

    spying = type(layer).from_config({**layer.get_config(), "normalizer": "softmax"})
    spying.build(query.shape, value.shape, key.shape)
    spying.set_weights(layer.get_weights())
    spying.normalizer = spy
    spying(query, value, key, attention_mask=mask)
    context, weights = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    scores = seen["scores"]
    allowed = np.broadcast_to(seen["mask"], scores.shape)
    close(weights, reference(scores, allowed), "float64")
    expected = attend(
        np.zeros((*scores.shape[:-1], 1)),
        np.zeros((*scores.shape[:-2], scores.shape[-1], 1)),
        np.ones((*scores.shape[:-2], scores.shape[-1], 2)),
        score=lambda query, key: tensor(scores),
        mask=allowed,
        normalizer=layer.normalizer,
        return_attention_scores=True,
    )
    close(weights, expected[1], "float64")
    assert np.all(weights[0, ..., 1, :] == 0)
    if kind != "multi_head":  # its heads are projected and merged after the weighted sum
        close(context, np.asarray(weights) @ value, "float64")


@ANY_NORMALIZER
@KINDS
def test_normaliser_in_the_config(kind, name, rng):
    normalizer, _ = NORMALIZERS[name]
    layer = LAYERS[kind].make(normalizer=normalizer, name="layer")
    config = layer.get_config()
    json.dumps(config)
    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    inputs = [x.astype("float32") for x in LAYERS[kind].arrays(rng)]
    expected = layer(*inputs)
    assert layer.get_config() == config
    again.build(*(x.shape for x in inputs))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*inputs), expected)


@pytest.mark.parametrize("kind", ["bahdanau", "luong"])
def test_normaliser_of_ones_own_is_saved(kind, rng, tmp_path):
    query, value = keras.Input((None, Dq)), keras.Input((None, Dv))
    layer = LAYERS[kind].make(normalizer=even_weights)
    model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
    model.save(tmp_path / "model.keras")
    inputs = draw(rng, "float32")[:2]
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close(loaded(inputs)[1], np.full((B, T, S), 1 / S))
    close(tuple(loaded(inputs)), tuple(model(inputs)))


@KINDS
def test_unknown_normaliser(kind):
    for wrong in ("sofmax", 3, None, Softmax):
        with pytest.raises(ValueError, match="`normalizer` must be one of 'softmax', 'sparsemax'"):
            LAYERS[kind].make(normalizer=wrong)


def test_heads_take_no_normaliser_that_depends_on_earlier_steps():
    with pytest.raises(ValueError, match="`normalizer` must not depend.*heads.*MonotonicAlignment"):
        MultiHeadAttention(2, 3, normalizer=MonotonicAlignment())


# What is carried


CARRYING = {
    "coverage": (lambda **kw: BahdanauAttention(U, history="coverage", **kw), {"coverage"}),
    "location": (lambda **kw: BahdanauAttention(U, history="location", **kw), {"previous"}),
    "monotonic": (
        lambda **kw: LuongAttention("general", normalizer=MonotonicAlignment(hard=False), **kw),
        {"previous"},
    ),
    "monotonic_scaled_dot": (
        lambda **kw: ScaledDotProductAttention(normalizer=MonotonicAlignment(hard=False), **kw),
        {"previous"},
    ),
    "both": (
        lambda **kw: BahdanauAttention(
            U, history=Coverage(2.0), normalizer=MonotonicAlignment(hard=False), **kw
        ),
        {"coverage", "previous"},
    ),
    "both_previous": (
        lambda **kw: BahdanauAttention(
            U, history=LocationFeatures(2, 3), normalizer=MonotonicAlignment(hard=False), **kw
        ),
        {"previous"},
    ),
    "local": (
        lambda **kw: LuongAttention("general", local="monotonic", window=1, **kw),
        {"position"},
    ),
    "plain": (lambda **kw: BahdanauAttention(U, **kw), set()),
    "predictive": (lambda **kw: LuongAttention(local="predictive", window=1, **kw), set()),
    "heads": (lambda **kw: MultiHeadAttention(2, 3, **kw), set()),
    "none": (lambda **kw: NoAttention(**kw), set()),
}
ALL = pytest.mark.parametrize("name", CARRYING)
SIZE = 4  # of query, key and value alike
MASK = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)


def built(name, dtype="float64"):
    """A layer with random weights, and the names of what it carries."""
    make_layer, carries = CARRYING[name]
    layer = make_layer(dtype=dtype, name="attention")
    layer.build((None, None, SIZE), (None, None, SIZE))
    return randomise(layer, np.random.default_rng(3)), carries


def some(rng, steps=T, dtype="float64"):
    return rng.normal(size=(B, steps, SIZE)).astype(dtype), rng.normal(size=(B, S, SIZE)).astype(
        dtype
    )


def call(layer, query, memory, alignment, **options):
    return layer(query, memory=memory, alignment=alignment, return_attention_scores=True, **options)


@ALL
def test_the_alignment_before_the_first_step(name, rng):
    layer, carries = built(name)
    memory = layer.precompute(some(rng)[1], value_mask=MASK)
    alignment = layer.initial_alignment(memory)
    assert set(alignment) == carries
    first = np.zeros((B, S))
    if "monotonic" in name or "both" in name:
        first[:, 0] = 1
    expected = {"position": np.zeros(B), "coverage": np.zeros((B, S)), "previous": first}
    for key, x in alignment.items():
        assert np.array_equal(x, expected[key])
        assert dtype_of(x) == (
            "int32" if key == "position" else "float64" if FLOAT64 else "float32"
        )


@ALL
def test_steps_equal_the_sequence(name, rng):
    layer, carries = built(name)
    query, value = some(rng)
    query_mask = np.array([[1, 0, 1], [1, 1, 0]], bool)
    memory = layer.precompute(value, value_mask=MASK)
    start = layer.initial_alignment(memory)
    context, weights, alignment = call(layer, query, memory, start, query_mask=query_mask)
    whole = layer(
        query, value, value_mask=MASK, query_mask=query_mask, return_attention_scores=True
    )
    close(whole, (context, weights), "float64")
    past = start
    for t in range(T):
        before = to_numpy(tuple(past[key] for key in sorted(past)))
        step = call(layer, query[:, t], memory, past, query_mask=query_mask[:, t])
        close(step[0], context[:, t], "float64")
        close(step[1], weights[..., t, :], "float64")
        past = step[2]
        for key, old in zip(sorted(past), before, strict=True):  # a masked step keeps it
            hidden = ~query_mask[:, t]
            assert np.array_equal(to_numpy(past[key])[hidden], old[hidden])
    assert set(past) == carries == set(alignment)
    for key in past:
        close(past[key], alignment[key], "float64")


@settings(max_examples=8, deadline=None)
@given(name=st.sampled_from(list(CARRYING)), seed=st.integers(0, 99), cut=st.integers(1, T))
def test_a_sequence_in_two_parts(name, seed, cut):
    layer, _ = built(name)
    query, value = some(np.random.default_rng(seed), T + 1)
    memory = layer.precompute(value)
    context, weights, alignment = call(layer, query, memory, layer.initial_alignment(memory))
    past, parts = layer.initial_alignment(memory), []
    for part in (query[:, :cut], query[:, cut:]):
        *results, past = call(layer, part, memory, past)
        parts.append(results)
    contexts, part_weights = zip(*parts, strict=True)
    close(np.concatenate(contexts, axis=1), context, "float64")
    close(np.concatenate(part_weights, axis=-2), weights, "float64")
    for key in past:
        close(past[key], alignment[key], "float64")


@pytest.mark.parametrize("name", ["coverage", "both", "local"])
def test_causal_and_other_masks_of_each_step(name, rng):
    """Masks and biases that differ between the steps, and those that are shared."""
    layer, _ = built(name)
    query, value = some(rng)
    memory = layer.precompute(value)
    mask, bias = rng.random((B, T, S)) < 0.7, rng.normal(size=(B, 1, S))
    start = layer.initial_alignment(memory)
    options = {"attention_mask": mask, "attention_bias": bias, "use_causal_mask": True}
    context, weights, _ = call(layer, query, memory, start, **options)
    late = np.tril(np.ones((T, S), bool), S - T)
    past = start
    for t in range(T):
        one = {"attention_mask": mask[:, t] & late[t], "attention_bias": bias[:, 0]}
        one_context, one_weights, past = call(layer, query[:, t], memory, past, **one)
        close(one_context, context[:, t], "float64")
        close(one_weights, weights[:, t], "float64")


def test_monotonic_attention_that_reads_its_coverage(rng):
    """Two pieces that look back, in one layer, against the equations."""
    layer = BahdanauAttention(
        U,
        history=Coverage(dtype="float64"),
        normalizer=MonotonicAlignment(hard=False),
        dtype="float64",
    )
    query, value, key = draw(rng)
    layer.build(query.shape, value.shape, key.shape)
    randomise(layer)
    r = float(layer.normalizer.r)
    plain = make("coverage")
    plain.set_weights([w for w in layer.get_weights() if w.shape])

    def normalize(scores, allowed, past):
        p = np.where(allowed, 1 / (1 + np.exp(-scores - r)), 0)
        return normalizers_ref.monotonic(p, past.previous)

    step = step_of(plain, normalize)
    context, weights = layer(query, value, key, return_attention_scores=True)
    for b in range(B):
        past = past_ref.beginning(S, np.eye(S)[0])
        expected = past_ref.attend(step, query[b], key[b], value[b], past=past)
        close(context[b], expected[0], "float64")
        close(weights[b], expected[1], "float64")


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["both", "local"])
def test_dtypes(name, policy, rng):
    """Contexts and weights in the layer's dtype, the alignment at least in float32."""
    layer, _ = built(name, policy)
    query, value = some(rng)
    memory = layer.precompute(value)
    start = layer.initial_alignment(memory)
    context, weights, alignment = call(layer, query, memory, start)
    half = policy.removeprefix("mixed_")
    assert dtype_of(context) == dtype_of(weights) == half
    wide = "float64" if policy == "float64" else "float32"
    specs = layer.alignment_spec(B, S)
    for key, x in alignment.items():
        assert dtype_of(x) == dtype_of(start[key]) == ("int32" if key == "position" else wide)
        assert (tuple(x.shape), dtype_of(x)) == (specs[key].shape, specs[key].dtype)
    # What comes from a file or from NumPy may have another dtype.
    for dtype in ("float32", "float64"):
        given = {key: np.asarray(x).astype(dtype) for key, x in start.items()}
        again = call(layer, query, memory, given)
        np.testing.assert_array_equal(to_numpy(again[0]), to_numpy(context))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("name", ["both", "location", "local"])
def test_a_graph_of_unknown_sizes(name, rng):
    layer, _ = built(name)
    query, value = some(rng)

    @tf.function(input_signature=[tf.TensorSpec((None, None, SIZE), "float64")] * 2)
    def run(query, value):
        memory = layer.precompute(value)
        return call(layer, query, memory, layer.initial_alignment(memory))

    memory = layer.precompute(value)
    expected = call(layer, query, memory, layer.initial_alignment(memory))
    for a, b in zip(run(query, value)[:2], expected[:2], strict=True):
        close(a, b, "float64")
    empty = run(np.zeros((0, T, SIZE)), np.zeros((0, S, SIZE)))
    assert [x.shape for x in empty[:2]] == [(0, T, SIZE), (0, T, S)]


# The functions


def test_advance():
    alignment = {
        "position": tensor([3, 4]),
        "previous": tensor([[0.0, 1.0]] * 2),
        "coverage": tensor([[0.25, 1.5]] * 2),
    }
    after = alignments.advance(alignment, tensor([[0.75, 0.25]] * 2, "float16"))
    assert np.array_equal(after["position"], [4, 5])
    assert np.array_equal(after["previous"], [[0.75, 0.25]] * 2)
    assert np.array_equal(after["coverage"], [[1.0, 1.75]] * 2)
    assert {dtype_of(x) for x in after.values()} == {"int32", "float32"}


# Errors


def refused(layer, words, *args, **kwargs):
    with pytest.raises(ValueError) as error:
        layer(*args, **kwargs)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({}, ("`alignment`", "['coverage', 'previous']", "[]")),
        ({"coverage": np.zeros((B, S))}, ("`alignment`", "['coverage']")),
        ([np.zeros((B, S))] * 2, ("`alignment`", "dictionary", "list")),
        (
            {"coverage": np.zeros((B, S)), "previous": np.zeros((B, S + 1))},
            ("`alignment['previous']`", "(2, 5)", "(2, 6)"),
        ),
        (
            {"coverage": np.zeros((B, 1, S)), "previous": np.zeros((B, S))},
            ("`alignment['coverage']`", "(2, 1, 5)"),
        ),
        (
            {"coverage": np.zeros((B + 1, S)), "previous": np.zeros((B, S))},
            ("`alignment['coverage']`", "(3, 5)"),
        ),
    ],
)
def test_wrong_alignment(wrong, words, rng):
    layer, _ = built("both")
    query, value = some(rng)
    refused(layer, words, query, memory=layer.precompute(value), alignment=wrong)


def test_an_alignment_for_a_layer_without_one(rng):
    layer, _ = built("plain")
    query, value = some(rng)
    wrong = {"coverage": np.zeros((B, S))}
    refused(layer, ("`alignment`", "['coverage']"), query, value, alignment=wrong)


@ALL
def test_memory_of_another_batch(name, rng):
    layer, _ = built(name)
    query, value = some(rng)
    memory = layer.precompute(value[:1])
    words = ("`memory`", "batch size")
    refused(layer, words, query, memory=memory, alignment=layer.initial_alignment(memory))
    refused(layer, words, query, memory=memory)


def test_sizes_of_the_tests_differ():
    assert len({T, S, Dq, Dk, Dv}) == 5
