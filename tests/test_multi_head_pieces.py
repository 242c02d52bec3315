"""The pieces of MultiHeadAttention, alone and combined, against the reference."""

import json

import keras
import numpy as np
import pytest
import reference_pieces as ref
import reference_positions as places
import tensorflow as tf
from backend import BACKEND, assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import MODES, assert_gradients, numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from transformer_models import attention_weights, exact, norm_weights, randomise

from keras_attention import (
    ALiBi,
    BahdanauAttention,
    LuongAttention,
    MultiHeadAttention,
    RelativeBias,
    RotaryPosition,
    ScaledDotProductAttention,
    SinkSoftmax,
    prefix_mask,
    segment_mask,
)

B, N, H, T, S, D, Dv = 2, 4, 6, 5, 7, 11, 13

# After several projections and a normalisation; absolute for values around 1.
LIMITS = {"float64": 1e-11, "float32": 2e-5, "float16": 1.5e-2, "bfloat16": 1.2e-1}


# A user's functions, of tensors and of one pair.


@keras.saving.register_keras_serializable(package="tests")
def lean(scores, batch, head, query_index, key_index):
    change = (head + 1) * (query_index - key_index) + batch
    return scores + 0.1 * ops.cast(change, scores.dtype)


def lean_one(score, b, n, p, q):
    return score + 0.1 * ((n + 1) * (p - q) + b)


@keras.saving.register_keras_serializable(package="tests")
def stripes(batch, head, query_index, key_index):
    return ops.not_equal((query_index + key_index + head + batch) % 3, 0)


def stripes_one(b, n, p, q):
    return (p + q + n + b) % 3 != 0


ONE_PAIR = {None: None, lean: lean_one, stripes: stripes_one}

# Constructor arguments. (Functions, as layers and their positions are made anew each time.)
PIECES = {
    "none": lambda dtype: {},
    "rotary": lambda dtype: {"position": "rotary"},
    "rotary in part": lambda dtype: {
        "position": RotaryPosition(base=50.0, fraction=2 / 3, interleaved=True)
    },
    "alibi": lambda dtype: {"position": "alibi"},
    "relative": lambda dtype: {"position": RelativeBias(8, dtype=dtype)},
    "relative, of the past": lambda dtype: {
        "position": RelativeBias(4, bidirectional=False, dtype=dtype)
    },
    "cap": lambda dtype: {"logit_soft_cap": 0.7},
    "rms": lambda dtype: {"query_key_norm": "rms"},
    "layer norm": lambda dtype: {"query_key_norm": "layer"},
    "modifier": lambda dtype: {"score_modifier": lean},
    "mask function": lambda dtype: {"mask_function": stripes},
    "window": lambda dtype: {"sliding_window": 3},
    "sinks": lambda dtype: {"normalizer": SinkSoftmax(dtype=dtype)},
    "all": lambda dtype: {
        "position": RelativeBias(8, dtype=dtype),
        "logit_soft_cap": 2.0,
        "query_key_norm": "rms",
        "score_modifier": lean,
        "mask_function": stripes,
        "sliding_window": 4,
        "normalizer": SinkSoftmax(dtype=dtype),
    },
}


def make(name, groups=N, dtype="float32", cross=False, **options):
    """A built layer with random weights."""
    weights = "float64" if dtype == "float64" else "float32"
    options = {**PIECES[name](weights), **options}
    layer = MultiHeadAttention(N, H, num_key_value_heads=groups, dtype=dtype, **options)
    layer.build(*([(B, T, D), (B, S, Dv)] if cross else [(B, T, D)]))
    return randomise(layer)


def norm_of(layer, sublayer):
    if sublayer is None:
        return None
    weights = norm_weights(sublayer, sublayer.epsilon)
    if "beta" in weights:
        return lambda x: ref.layer_norm(x, **weights)
    return lambda x: ref.rms_norm(x, weights["gamma"], weights["epsilon"])


def pieces_of(layer):
    """The `Pieces` of a layer, for the reference."""
    config, position = layer.get_config(), layer.position
    pieces = ref.Pieces(
        alibi=isinstance(position, ALiBi),
        cap=config["logit_soft_cap"],
        query_norm=norm_of(layer, layer.query_norm),
        key_norm=norm_of(layer, layer.key_norm),
        modifier=ONE_PAIR[layer._score_modifier],
        allowed=ONE_PAIR[layer._mask_function],
        window=config["sliding_window"],
    )
    if isinstance(position, RotaryPosition):
        size = round(position.fraction * config["key_dim"])
        frequencies = places.frequencies(size, position.base)
        pieces = pieces._replace(frequencies=frequencies, interleaved=position.interleaved)
    if isinstance(position, RelativeBias):
        weight = exact(position, position.weight)
        pieces = pieces._replace(relative=weight, bidirectional=position.bidirectional)
    if isinstance(layer.normalizer, SinkSoftmax):
        pieces = pieces._replace(sinks=exact(layer.normalizer, layer.normalizer.sinks))
    return pieces


def expected(layer, query, value=None, **options):
    """Output and weights by the reference."""
    value = query if value is None else value
    return ref.attention(
        query, value, **attention_weights(layer), pieces=pieces_of(layer), **options
    )


def close(actual, wanted, dtype="float32"):
    limit = LIMITS[dtype]
    for a, w in zip(actual, wanted, strict=True):
        assert a.shape == w.shape
        assert_allclose(to_numpy(a), w, rtol=limit, atol=limit)


def every_head(mask):
    """`[B, T, S]` for the N heads."""
    return np.repeat(np.asarray(mask)[:, None], N, axis=1)


QUERY_MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)  # padding on the left
VALUE_MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool)
COUNTED = np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])  # positions, padding on the left
PACKED = np.array([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]])  # two documents
SEGMENTS = np.array([[1, 1, 1, 2, 2], [1, 1, 2, 2, 2]])


# Each piece


# Those that compile to something of their own; the others are compiled all together below.
COMPILED = ["rotary in part", "alibi", "relative, of the past", "layer norm"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name"),
    [("eager", name) for name in PIECES]
    + [(mode, name) for mode in ("graph", "xla") for name in COMPILED],
)
def test_each_piece_in_every_mode(rng, mode, name):
    """Grouped heads, causal, padding on the left with NaN in it."""
    layer = make(name, groups=2)
    x = rng.normal(size=(B, T, D)).astype("float32")
    options = {"query_mask": QUERY_MASK, "positions": COUNTED}
    wanted = expected(
        layer, x, causal=True, value_mask=QUERY_MASK, key_positions=COUNTED, **options
    )
    x[~QUERY_MASK] = np.nan

    def call(x):
        return layer(x, use_causal_mask=True, return_attention_scores=True, **options)

    close(MODES[mode](call)(tensor(x)), wanted)


@pytest.mark.parametrize("name", PIECES)
def test_each_piece_in_every_dtype(rng, dtype, name):
    """Cross-attention with all heads, positions by default."""
    layer = make(name, dtype=dtype, cross=True)
    (query, exact_query), (value, exact_value) = (
        rounded(rng.normal(size=shape), dtype) for shape in ((B, T, D), (B, S, Dv))
    )
    wanted = expected(layer, exact_query, exact_value, value_mask=VALUE_MASK)
    output, weights = layer(query, value, value_mask=VALUE_MASK, return_attention_scores=True)
    assert dtype_of(output) == dtype_of(weights) == dtype
    close((output, weights), wanted, dtype)
    alone = to_numpy(layer(query, value, value_mask=VALUE_MASK))
    if BACKEND == "tensorflow":
        np.testing.assert_array_equal(alone, to_numpy(output))
    else:  # by the backend's own attention, with roundings of its own
        close([alone], [to_numpy(output)], dtype)


def test_all_pieces_in_every_mode_and_dtype(run, rng, dtype):
    layer = make("all", groups=1, dtype=dtype)
    x, exact_x = rounded(rng.normal(size=(B, T, D)), dtype)
    bias = rng.normal(size=(B, N, T, T))
    bias[:, :, 2, 1] = -np.inf

    def call(x):
        return layer(x, attention_bias=bias, positions=PACKED, return_attention_scores=True)

    wanted = expected(
        layer,
        exact_x,
        attention_bias=np.where(bias == -np.inf, 0.0, bias),
        attention_mask=bias != -np.inf,
        positions=PACKED,
        key_positions=PACKED,
    )
    close(run(call, x), wanted, dtype)


def test_pieces_change_the_output(rng):
    """Else the tests above would prove little."""
    x = rng.normal(size=(B, T, D)).astype("float32")
    plain = None
    for name in PIECES:
        output = to_numpy(make(name)(x))
        plain = output if plain is None else plain
        assert name == "none" or np.abs(output - plain).max() > 1e-3, name


POSITIONS = st.sampled_from(
    ["none", "rotary", "rotary in part", "alibi", "relative", "relative, of the past"]
)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_combination(data):
    """Kinds of positions, masks and other pieces, given as one draws them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    extra = data.draw(st.sets(st.sampled_from(list(PIECES)[6:-1]), max_size=4), label="pieces")
    options = {k: v for name in sorted(extra) for k, v in PIECES[name]("float64").items()}
    groups = data.draw(st.sampled_from([1, 2, 4]), label="groups")
    layer = make(data.draw(POSITIONS, label="position"), groups, "float64", **options)
    x = rng.normal(size=(B, T, D))
    ours, theirs = {}, {}
    if data.draw(st.booleans(), label="padding"):
        side = data.draw(st.sampled_from([1, -1]), label="side")
        mask = (np.arange(T) < rng.integers(0, T + 1, size=(B, 1)))[:, ::side]
        ours["query_mask"] = mask
        theirs |= {"query_mask": mask, "value_mask": mask}
    if data.draw(st.booleans(), label="causal"):
        ours["use_causal_mask"] = theirs["causal"] = True
    which = data.draw(st.sampled_from(["default", "[T]", "[B, T]"]), label="positions")
    if which != "default":
        positions = rng.integers(0, 9, size=T if which == "[T]" else (B, T))
        ours["positions"] = positions
        positions = np.broadcast_to(positions, (B, T))
        theirs |= {"positions": positions, "key_positions": positions}
    masks = data.draw(st.sampled_from(["none", "heads", "segments"]), label="mask")
    if masks == "heads":
        ours["attention_mask"] = theirs["attention_mask"] = rng.random((B, N, T, T)) < 0.7
    if masks == "segments":
        ours["attention_mask"] = segment_mask(SEGMENTS)
        theirs["segments"] = (SEGMENTS, SEGMENTS)
    if data.draw(st.booleans(), label="bias"):
        ours["attention_bias"] = theirs["attention_bias"] = rng.normal(size=(B, N, T, T))
    actual = layer(x, return_attention_scores=True, **ours)
    close(actual, expected(layer, x, **theirs), "float64")


# Positions


@pytest.mark.parametrize("name", PIECES)
def test_positions_given_equal_those_by_default(rng, name):
    layer = make(name, groups=2, cross=True)
    query, value = (rng.normal(size=shape).astype("float32") for shape in ((B, T, D), (B, S, Dv)))
    options = {"use_causal_mask": True, "return_attention_scores": True}
    default = layer(query, value, **options)
    queries, keys = np.arange(S - T, S), np.arange(S)
    for positions, key_positions in (
        (queries, keys),
        (queries.astype("uint8"), None),
        (None, keys.tolist()),
        (np.tile(queries, (B, 1)), keys.astype("int64")),
        (queries, np.tile(keys, (B, 1))),
    ):
        actual = layer(query, value, positions=positions, key_positions=key_positions, **options)
        close(actual, to_numpy(default))


@pytest.mark.parametrize("name", [n for n in PIECES if n not in ("modifier", "mask function")])
def test_packed_documents_equal_separate_ones(rng, name):
    """Positions that start anew and a segment mask. (The functions above know the sample.)"""
    if name == "all":
        layer = make(name, groups=2, score_modifier=None, mask_function=None)
    else:
        layer = make(name, groups=2)
    x = rng.normal(size=(B, T, D)).astype("float32")
    packed, weights = layer(
        x,
        attention_mask=segment_mask(SEGMENTS),
        positions=PACKED,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    for b in range(B):
        cut = int(np.argmax(SEGMENTS[b] == 2))
        for part in (slice(0, cut), slice(cut, T)):
            alone, own = layer(x[b : b + 1, part], use_causal_mask=True, return_attention_scores=1)
            close((packed[b, part], weights[b, :, part, part]), to_numpy((alone[0], own[0])))


@pytest.mark.parametrize("name", ["rotary", "alibi", "relative", "all"])
def test_a_prefix(rng, name):
    layer, lengths = make(name, groups=2), np.array([2, 4])
    x = rng.normal(size=(B, T, D)).astype("float32")
    actual = layer(x, attention_mask=prefix_mask(lengths, T), return_attention_scores=True)
    close(actual, expected(layer, x, causal=True, prefix=lengths))


@pytest.mark.parametrize("name", PIECES)
def test_memory_equals_value(rng, name):
    layer = make(name, groups=2, cross=True)
    query, value = (rng.normal(size=shape).astype("float32") for shape in ((B, T, D), (B, S, Dv)))
    keys = np.stack([np.arange(S) + 3, 2 * np.arange(S)])
    for options in ({}, {"key_positions": keys}):
        memory = layer.precompute(value, value_mask=VALUE_MASK, **options)
        actual = layer(query, memory=memory, return_attention_scores=True, **options)
        wanted = layer(query, value, value_mask=VALUE_MASK, return_attention_scores=True, **options)
        close(actual, to_numpy(wanted))
    memory = layer.precompute(value)
    wanted = layer(query, value, positions=PACKED, use_causal_mask=True)
    close([layer(query, memory=memory, positions=PACKED, use_causal_mask=True)], [to_numpy(wanted)])


@pytest.mark.parametrize("name", PIECES)
def test_one_step_equals_a_sequence_of_length_1(rng, name):
    layer = make(name, groups=2, cross=True)
    query, value = rng.normal(size=(B, D)), rng.normal(size=(B, S, Dv))
    where = np.array([3, 5])
    output, weights = layer(query, value, positions=where, return_attention_scores=True)
    wanted = layer(query[:, None], value, positions=where[:, None], return_attention_scores=True)
    close((output, weights), (to_numpy(wanted[0])[:, 0], to_numpy(wanted[1])[:, :, 0]))


@pytest.mark.parametrize("axes", [(2,), (1, 2)], ids=str)
def test_pieces_over_axes(rng, axes):
    """Inputs `[B, 3, 5, D]`: over one axis a call for each slice, over two a row-major sequence."""
    options = PIECES["all"]("float32") | {"position": "rotary"}
    layer = MultiHeadAttention(N, H, attention_axes=axes, num_key_value_heads=2, **options)
    layer.build((B, 3, 5, D))
    randomise(layer)
    x = rng.normal(size=(B, 3, 5, D)).astype("float32")
    output = to_numpy(layer(x, use_causal_mask=True))
    if axes == (1, 2):
        wanted = expected(layer, x.reshape(B, 15, D), causal=True)[0].reshape(x.shape)
        close([output], [wanted])
    for i in range(3 if axes == (2,) else 0):
        close([output[:, i]], [expected(layer, x[:, i], causal=True)[0]])


# Masks and rows that see nothing


@pytest.mark.parametrize("name", PIECES)
def test_rows_that_see_nothing_are_0(rng, name):
    layer = make(name, groups=2)
    x = tensor(rng.normal(size=(B, T, D)), "float32")
    mask = np.ones((B, 1, T, T), bool)
    mask[0, :, 1], mask[1] = False, False
    output, weights = to_numpy(layer(x, attention_mask=mask, return_attention_scores=True))
    (gradient,) = to_numpy(differentiate(lambda x: layer(x, attention_mask=mask), [x]))
    assert np.all(output[0, 1] == 0) and np.all(weights[0, :, 1] == 0)
    assert np.all(output[1] == 0) and np.all(weights[1] == 0) and np.all(gradient[1] == 0)
    assert np.all(np.isfinite(gradient)) and np.any(gradient[0] != 0)


def test_a_mask_function_that_forbids_all(rng):
    """Also one that looks at the queries alone, or at nothing."""
    x = rng.normal(size=(B, T, D)).astype("float32")
    for function, empty in (
        (lambda batch, head, query_index, key_index: query_index > 1, [0, 1]),
        (lambda batch, head, query_index, key_index: tensor(False), range(T)),
    ):
        for normalizer in ("softmax", SinkSoftmax(), "sparsemax"):
            layer = MultiHeadAttention(N, H, mask_function=function, normalizer=normalizer)
            output, weights = layer(x, return_attention_scores=True)
            rows = np.isin(np.arange(T), list(empty))
            assert np.all(to_numpy(output)[:, rows] == 0)
            assert np.all(to_numpy(weights)[:, :, rows] == 0)
            assert np.all(np.sum(weights, -1)[:, :, ~rows] > 0.5)


def test_a_modifier_forbids_by_minus_infinity(rng):
    """As in a mask, with finite gradients; a row of nothing else has weights 0."""
    layer = make("none", groups=2)
    causal = make(
        "none",
        groups=2,
        score_modifier=lambda scores, batch, head, query_index, key_index: ops.where(
            ops.logical_and(key_index <= query_index, query_index > 0), scores, -np.inf
        ),
    )
    x = tensor(rng.normal(size=(B, T, D)), "float32")
    output, weights = to_numpy(causal(x, return_attention_scores=True))
    wanted = to_numpy(layer(x, use_causal_mask=True, return_attention_scores=True))
    close((output[:, 1:], weights[:, :, 1:]), (wanted[0][:, 1:], wanted[1][:, :, 1:]))
    assert np.all(weights[:, :, 0] == 0)
    assert np.all(np.isfinite(to_numpy(differentiate(causal, [x])[0])))


@pytest.mark.parametrize("name", PIECES)
def test_nan_in_padding_stays_there(rng, name):
    """Output and gradients are those with 0 there instead."""
    layer = make(name, groups=2)
    x = rng.normal(size=(B, T, D)).astype("float32")
    results = []
    for padding in (0.0, np.nan):
        padded = tensor(np.where(QUERY_MASK[..., None], x, padding), "float32")

        def call(x):
            return layer(x, query_mask=QUERY_MASK, positions=COUNTED)

        gradients = differentiate(call, [padded], layer.trainable_variables)
        results.append(to_numpy([call(padded), *gradients]))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    assert np.all(np.isfinite(results[0][0]))


# Gradients


@pytest.mark.parametrize("name", ["all", "rotary in part", "alibi", "layer norm"])
def test_gradients_are_those_of_finite_differences(rng, name):
    """By the input, and by all weights, the sinks and the relative bias among them."""
    layer = make(name, groups=2, dtype="float64")
    x, out = rng.normal(size=(B, T, D)), rng.normal(size=(B, T, D))
    options = {"query_mask": QUERY_MASK, "positions": COUNTED, "use_causal_mask": True}

    def loss(x):
        return ops.sum(layer(x, **options) * tensor(out))

    variables = layer.trainable_variables
    gradient, *others = to_numpy(differentiate(loss, [x], variables))
    for variable, found in zip(variables, others, strict=True):
        start, direction = to_numpy(variable.value), rng.normal(size=variable.shape)

        def along(step, variable=variable, start=start, direction=direction):
            variable.assign(start + step * direction)
            return loss(x)

        (wanted,) = numerical_gradient(lambda step: along(step[0]), np.zeros(1))
        variable.assign(start)
        assert np.sum(found * direction) == pytest.approx(wanted, rel=1e-6, abs=1e-7), variable.path
    direction = rng.normal(size=x.shape)
    (wanted,) = numerical_gradient(lambda step: loss(x + step[0] * direction), np.zeros(1))
    assert np.sum(gradient * direction) == pytest.approx(wanted, rel=1e-6, abs=1e-7)
    assert len(variables) == len(others) and all(np.any(g != 0) for g in others)


def test_gradient_of_one_sink(rng):
    """The gradient by each sink, one at a time."""
    piece = SinkSoftmax(dtype="float64")
    scores = tensor(rng.normal(size=(B, N, 3, 5)))
    piece.build(scores.shape)
    weight = rng.normal(size=scores.shape)

    piece.sinks.assign(rng.normal(size=N))
    assert_gradients(
        lambda: ops.sum(piece(scores, mask=np.arange(5) < 4) * tensor(weight)),
        piece.variables,
        1e-6,
    )


# Sinks


def test_sinks_by_themselves(rng, dtype):
    """Masks of few axes and of one column; far away sinks change nothing or take everything."""
    piece, scores = SinkSoftmax(), rng.normal(size=(B, N, 3, 5))
    piece.build(scores.shape)
    piece.sinks.assign([0.5, -1e9, 1e9, -0.5])
    tensor, exact_scores = rounded(scores, dtype)
    for mask in (
        None,
        np.arange(5) < 3,
        rng.random((3, 5)) < 0.5,
        rng.random((B, N, 3, 5)) < 0.5,
        np.array([True, False, True])[:, None],
        np.ones((B, 1, 1, 1), bool),
    ):
        weights = to_numpy(piece(tensor, mask=mask))
        allowed = np.broadcast_to(True if mask is None else mask, scores.shape)
        for b, n, t in np.ndindex(B, N, 3):
            sink = float(np.clip(piece.sinks[n], -500, 500))
            row = ref.softmax_with_sink(exact_scores[b, n, t], allowed[b, n, t], sink)
            assert_allclose(weights[b, n, t], row, rtol=1e-5, atol=1e-6)
        assert np.all(weights[:, 2] == 0)


def test_sinks_need_heads():
    with pytest.raises(ValueError, match=r"(?s)heads \[B, N, T, S\].*\(3, 5\)"):
        SinkSoftmax().build((3, 5))


# Sizes that are not known, and none at all


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("mode", [m for m in MODES if m != "eager"])
def test_unknown_sizes(rng, mode):
    layer = make("all", groups=2)
    spec = [
        tf.TensorSpec((None, None, D)),
        tf.TensorSpec((None, None), "int32"),
        tf.TensorSpec((None, None), "bool"),
    ]

    @tf.function(input_signature=spec, jit_compile=mode == "xla")
    def call(x, positions, mask):
        return layer(x, positions=positions, query_mask=mask, return_attention_scores=True)

    for batch, steps in ((2, 5), (3, 1)):
        x = rng.normal(size=(batch, steps, D)).astype("float32")
        positions = rng.integers(0, 9, size=(batch, steps)).astype("int32")
        mask = np.arange(steps) < rng.integers(1, steps + 1, size=(batch, 1))
        wanted = expected(
            layer,
            x,
            positions=positions,
            key_positions=positions,
            query_mask=mask,
            value_mask=mask,
        )
        close(call(x, positions, mask), wanted)


@pytest.mark.parametrize("name", PIECES)
def test_nothing_at_all(name):
    """No samples, no queries, no keys."""
    layer = make(name, groups=2, cross=True)
    for batch, steps, keys in ((0, T, S), (B, 0, S), (B, T, 0)):
        query, value = np.zeros((batch, steps, D)), np.ones((batch, keys, Dv))
        output, weights = layer(query, value, return_attention_scores=True)
        assert output.shape == (batch, steps, D) and weights.shape == (batch, N, steps, keys)
        assert np.all(output == 0)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("positions", []), ("positions", [B]), ("query_mask", [B]), ("value_mask", [B])],
)
def test_a_length_of_1_in_a_graph_of_unknown_lengths(name, sizes):
    """One entry must not stand for all steps, also where the length alone is unknown."""
    layer, dtype = make("rotary"), "int32" if name == "positions" else "bool"
    spec = [tf.TensorSpec((B, None, D)), tf.TensorSpec((*sizes, None), dtype)]
    call = tf.function(lambda x, given: layer(x, **{name: given}), input_signature=spec)
    x = np.zeros((B, T, D), "float32")
    assert call(x, np.ones((*sizes, T), dtype)).shape == (B, T, D)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(x, np.ones((*sizes, 1), dtype))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_a_batch_of_1_in_a_graph_of_unknown_batches():
    """The keys of one sample must not stand for those of all."""
    layer = make("rotary", cross=True)
    spec = [tf.TensorSpec((None, T, D)), tf.TensorSpec((None, S, Dv))]
    call = tf.function(lambda query, value: layer(query, value), input_signature=spec)
    assert call(np.zeros((B, T, D)), np.zeros((B, S, Dv))).shape == (B, T, D)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(np.zeros((B, T, D)), np.zeros((1, S, Dv)))


# Precision


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", PIECES)
def test_large_activations_in_mixed_precision(rng, name, policy):
    """Projected queries and keys go up to some hundreds: products of them pass 65,504."""
    layer = make(name, groups=2, dtype=policy)
    x = tensor(200 * rng.normal(size=(B, T, D)), "float32")
    output, weights = layer(x, return_attention_scores=True)
    assert dtype_of(output) == layer.compute_dtype and layer.variable_dtype == "float32"
    gradients = differentiate(
        lambda: ops.cast(layer(x), "float32") ** 2 * 1e-6, variables=layer.trainable_variables
    )
    for values in (output, weights, *gradients):
        assert np.all(np.isfinite(to_numpy(values))), name


def test_a_bias_of_half_precision_rounds_no_positions(rng):
    """Far away distances are large numbers, of which float16 keeps 11 bits."""
    layer = make("alibi")
    x = rng.normal(size=(B, T, D)).astype("float32")
    positions = np.array([0, 5001, 5003, 9001, 9003])
    zeros = np.zeros((B, N, T, T), "float16")
    actual = layer(x, positions=positions, attention_bias=zeros, return_attention_scores=True)
    close(actual, to_numpy(layer(x, positions=positions, return_attention_scores=True)))


# Keras


def model_of(layer):
    x = keras.Input((None, D))
    return keras.Model(x, layer(x, use_causal_mask=True))


@pytest.mark.parametrize("name", PIECES)
def test_config(rng, name):
    """The same before and after building, and of a layer that is made from it."""
    layer = MultiHeadAttention(N, H, num_key_value_heads=2, **PIECES[name]("float32"))
    config = layer.get_config()
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer(x)
    assert layer.get_config() == config
    again = MultiHeadAttention.from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    randomise(layer), again(x)
    again.set_weights(layer.get_weights())
    close([again(x)], [to_numpy(layer(x))])


@pytest.mark.parametrize("name", ["none", "rotary in part", "alibi", "layer norm", "all"])
def test_saving_and_cloning(rng, tmp_path, name):
    model = model_of(make(name, groups=2))
    x = rng.normal(size=(B, T, D)).astype("float32")
    wanted = to_numpy(model(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close([loaded(x)], [wanted])
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    clone = keras.models.clone_model(model)
    assert [w.shape for w in clone.weights] == [w.shape for w in model.weights]
    clone.set_weights(model.get_weights())
    close([clone(x)], [wanted])


def test_one_relative_bias_for_several_layers(rng, tmp_path):
    """As in T5: one weight, also in the saved model."""
    shared, x = RelativeBias(8), keras.Input((None, D))
    layers = [MultiHeadAttention(N, H, position=shared) for _ in range(2)]
    model = keras.Model(x, layers[1](layers[0](x)))
    randomise(layers[0]), randomise(layers[1])
    assert len(model.trainable_variables) == 2 * 8 + 1
    inputs = rng.normal(size=(B, T, D)).astype("float32")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close([loaded(inputs)], [to_numpy(model(inputs))])


@pytest.mark.slow
def test_fit(rng):
    """All weights learn, in a compiled step."""
    model = model_of(make("all", groups=2))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    x, y = (rng.normal(size=(4, T, D)).astype("float32") for _ in range(2))
    before = model.get_weights()
    model.fit(x, y, epochs=2, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        assert np.all(np.isfinite(new)) and np.any(new != old)


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logit_soft_cap": 0}, "logit_soft_cap.*positive.*0"),
        ({"logit_soft_cap": -1.5}, "logit_soft_cap.*positive.*-1.5"),
        ({"logit_soft_cap": "50"}, "logit_soft_cap.*positive.*'50'"),
        ({"query_key_norm": "batch"}, "query_key_norm.*'rms', 'layer'.*'batch'"),
        ({"position": "rotatory"}, "position.*'rotary', 'alibi', 'relative'.*'rotatory'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads.*divide.*4.*3"),
        ({"score_modifier": 3}, "score_modifier.*function.*3"),
        ({"mask_function": "causal"}, "mask_function.*function.*'causal'"),
        ({"sliding_window": 0}, "sliding_window.*positive.*0"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        MultiHeadAttention(N, H, **options)


def test_sizes_that_do_not_turn_in_pairs():
    layer = MultiHeadAttention(N, 7, position="rotary")
    with pytest.raises(ValueError, match="(?s)even.*7 rotated features, head size 7"):
        layer(np.zeros((B, T, D)))


def test_a_relative_bias_of_other_heads():
    layer = MultiHeadAttention(N, H, position=RelativeBias(8, num_heads=3))
    with pytest.raises(ValueError, match="(?s)num_heads.*3.*4 heads"):
        layer(np.zeros((B, T, D)))
    shared = RelativeBias(8)
    MultiHeadAttention(2, H, position=shared)(np.zeros((B, T, D)))
    with pytest.raises(ValueError, match="(?s)num_heads.*2.*4 heads"):
        MultiHeadAttention(N, H, position=shared)(np.zeros((B, T, D)))


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: keras.Input(x.shape[1:], B)])
@pytest.mark.parametrize(
    ("positions", "words"),
    [
        (np.arange(T + 1), r"positions.*T = 5.*\(6,\)"),
        (np.zeros((B + 1, T), int), r"positions.*\(2, 5, 11\).*\(3, 5\)"),
        (np.zeros((B, T, 1), int), r"positions.*\[T\] or \[B, T\].*\(2, 5, 1\)"),
        (np.zeros((B, T)), "positions.*integers.*float"),
        (np.zeros((B, T), bool), "positions.*integers.*bool"),
        (np.int64(3), r"positions.*\[T\] or \[B, T\].*\(\)"),
    ],
    ids=["too many", "other batch", "rank 3", "floating", "boolean", "a number"],
)
def test_bad_positions(convert, positions, words):
    for layer in (make("rotary"), make("none")):
        x = convert(np.zeros((B, T, D), "float32"))
        with pytest.raises(ValueError, match=f"(?s)`{words}"):
            layer(x, positions=positions)
        with pytest.raises(ValueError, match=f"(?s)`key_{words}"):
            layer(x, key_positions=positions)


def test_positions_of_one_step_that_do_not_fit():
    layer, x = make("rotary", cross=True), np.zeros((B, D), "float32")
    for positions in (np.zeros(3, int), np.zeros((B, 1), int)):
        with pytest.raises(ValueError, match="`positions`"):
            layer(x, np.zeros((B, S, Dv)), positions=positions)


@pytest.mark.parametrize(
    "layer",
    [BahdanauAttention(5), LuongAttention("general"), ScaledDotProductAttention()],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_take_positions_for_their_causal_mask(rng, layer):
    """And refuse a cache, which they do not keep."""
    x = rng.normal(size=(B, T, D)).astype("float32")
    default = layer(x, use_causal_mask=True)
    close([layer(x, positions=np.arange(T), use_causal_mask=True)], [to_numpy(default)])
    reverse = layer(x, positions=np.arange(T)[::-1].copy(), use_causal_mask=True)
    mirrored = to_numpy(layer(x[:, ::-1].copy(), use_causal_mask=True))[:, ::-1]
    close([reverse], [mirrored])
    with pytest.raises(ValueError, match=f"(?s){type(layer).__name__} keeps no `cache`"):
        layer(x, cache=make("none").start_cache(B))


def test_a_window_of_luong_takes_no_positions():
    layer = LuongAttention("dot", local="predictive", window=2)
    x = np.zeros((B, T, D), "float32")
    for name in ("positions", "key_positions"):
        with pytest.raises(ValueError, match="(?s)LuongAttention with a window.*positions"):
            layer(x, x, **{name: np.arange(T)})


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("score_modifier", lambda s, b, h, q, k: s[:, :1], r"\(2, 4, 5, 5\).*\(2, 1, 5, 5\)"),
        ("score_modifier", lambda s, b, h, q, k: s[..., 0], r"\(2, 4, 5, 5\).*\(2, 4, 5\)"),
        ("mask_function", lambda b, h, q, k: ops.cast(q > k, "float32"), "booleans.*float32"),
        ("mask_function", lambda b, h, q, k: q - k, "booleans.*int32"),
        ("mask_function", lambda b, h, q, k: (q > k)[0], r"rank 4.*\(1, 5, 5\)"),
        ("mask_function", lambda b, h, q, k: ops.ones((2, 3, 5, 5), "bool"), r"\(2, 3, 5, 5\)"),
    ],
)
def test_functions_that_return_something_else(name, function, words):
    layer = MultiHeadAttention(N, H, **{name: function})
    with pytest.raises(ValueError, match=f"(?s){name}.*{words}|mask.*{words}"):
        layer(np.zeros((B, T, D), "float32"))
