"""Local attention (`LuongAttention(local=...)`) and the window arithmetic under it."""

import keras
import numpy as np
import pytest
import reference as ref
import reference_local
import tensorflow as tf
from backend import (
    assert_allclose,
    compiled,
    compiled_loss,
    differentiate,
    dtype_of,
    tensor,
    to_numpy,
)
from conftest import MODES, numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_layers import (
    ALL_MASKED,
    LAYER_TOLERANCES,
    MASKS,
    QUERY_MASK,
    VALUE_MASK,
    B,
    Dk,
    Dq,
    Dv,
    S,
    T,
    U,
    both,
    close,
    exact_weights_by_name,
    gradients,
    randomise,
)

from keras_attention.decoders.luong import LuongDecoder
from keras_attention.layers import local
from keras_attention.layers.luong import LuongAttention

LOCAL = pytest.mark.parametrize("kind", ["monotonic", "predictive"])
ALL_MODES = ["dot", "scaled_dot", "general", "concat", "location"]
KEY_SIZES = {"dot": Dq, "scaled_dot": Dq}
D = 2
M = 4  # the rows of the location score's W, fewer than memory steps


SHORT = local.SHORT


@pytest.fixture(autouse=True)
def restore():
    yield
    local.SHORT = SHORT


@pytest.fixture(params=["whole", "gathered"])
def path(request, monkeypatch):
    """A short memory is scored whole, a long one in gathered windows; here either is forced."""
    monkeypatch.setattr(local, "SHORT", 100 if request.param == "whole" else 1)


BOTH_PATHS = pytest.mark.usefixtures("path")


def built(kind, score_mode="general", window=D, **arguments):
    if score_mode == "location":
        arguments.setdefault("max_memory", M)
    layer = LuongAttention(score_mode, local=kind, window=window, name="attention", **arguments)
    layer.build((B, T, Dq), (B, S, Dv), (B, S, KEY_SIZES.get(score_mode, Dk)))
    return randomise(layer)


def draw(rng, score_mode="general", dtype="float64"):
    """Query, value, key as tensors, and their exact values."""
    shapes = (B, T, Dq), (B, S, Dv), (B, S, KEY_SIZES.get(score_mode, Dk))
    return zip(*(rounded(rng.normal(size=shape), dtype) for shape in shapes), strict=True)


def expected(layer, query, value, key, mask=None, query_mask=None, memory_mask=None, bias=None):
    """The paper's equations with the layer's weights; `mask` is `[B, T, S]` and has them all."""
    steps, size = query.shape[:2], value.shape[:2]
    query_mask = np.ones(steps, bool) if query_mask is None else query_mask
    memory_mask = np.ones(size, bool) if memory_mask is None else memory_mask
    mask = np.ones((*steps, size[1]), bool) if mask is None else mask
    weights = {w.path.removeprefix("attention/"): w for w in layer.trainable_variables}
    weights = {name: rounded(w, layer.compute_dtype)[1] for name, w in weights.items()}
    mode = layer.score_mode
    if mode == "general":
        scores = ref.pairwise(ref.general, query, key, kernel=weights["key/kernel"].T)
    elif mode == "concat":
        kernel = np.concatenate([weights["query/kernel"], weights["key/kernel"]])
        scores = ref.pairwise(ref.concat, query, key, kernel=kernel, v=weights["v"])
    elif mode == "location":
        W = weights["location_kernel"].T
        scores = reference_local.location_scores(query, W, memory_mask)
    else:
        scores = ref.pairwise(getattr(ref, mode), query, key)
    if layer.local == "monotonic":
        positions = reference_local.monotonic_positions(query_mask)
    else:
        positions = reference_local.predicted_positions(
            query, weights["position/kernel"].T, weights["v_p"], memory_mask
        )
    return reference_local.local_attention(
        scores if bias is None else scores + bias,
        value,
        positions,
        layer.window,
        memory_mask,
        mask & query_mask[..., None],
        gaussian=layer.local == "predictive",
    )


# The arithmetic, by hand


def test_places_count_real_steps():
    mask = np.array([[False, True, True, False, True]])
    assert to_numpy(local.places_of(mask, 5))[mask].tolist() == [0, 1, 2]
    assert to_numpy(local.places_of(None, 3)).tolist() == [[0, 1, 2]]


def test_monotonic_positions_go_on_from_the_steps_before():
    done, mask = np.array([4, 0], "int32"), np.array([[1, 0, 1], [0, 0, 1]], bool)
    positions, done_after = local.monotonic_positions(tensor(done), mask, 3)
    assert to_numpy(positions)[mask].tolist() == [4, 5, 0]
    assert to_numpy(done_after).tolist() == [6, 1]


def inside(x, window):
    """The entries of x `[B, R, W]` that the window of each query of sample 0 holds."""
    rows = zip(to_numpy(x)[0], to_numpy(window.mask)[0, :, 0], strict=True)
    return [row[mask].tolist() for row, mask in rows]


def test_window_by_hand(monkeypatch):
    """D = 1: at 2.0 the places 1, 2, 3, at 2.5 the places 2, 3, at 0.0 the places 0, 1."""
    monkeypatch.setattr(local, "SHORT", 1)
    window = local.window_around(tensor([[2.0, 2.5, 0.0]]), 1, None, 5)
    assert inside(window.places, window) == [[1, 2, 3], [2, 3], [0, 1]]
    np.testing.assert_array_equal(window.index, window.places)
    np.testing.assert_array_equal(window.distance[0, 1], [[-0.5, 0.5, 1.5]])


def test_window_of_a_padded_memory_by_hand(monkeypatch):
    """Real steps stand at 1, 2, 4; around the second, with D = 1, lie all three."""
    monkeypatch.setattr(local, "SHORT", 1)
    mask = tensor([[False, True, True, False, True]])
    window = local.window_around(tensor([[1.0, 3.0]]), 1, mask, 5)
    assert inside(window.index, window) == [[1, 2, 4], [4]]
    spread = to_numpy(local.spread(ops.ones((1, 2, 1, 3)), window, mask, 5, 2))
    assert spread[0, 0].tolist() == [0, 1, 1, 0, 1]


def test_one_window_of_a_short_memory_by_hand():
    """The places 0 to 4 for all queries; each sees its own neighbourhood."""
    window = local.window_around(tensor([[2.0, 2.5, 0.0]]), 1, None, 5)
    np.testing.assert_array_equal(window.places, [[range(5)]])
    expected = [[0, 1, 1, 1, 0], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]
    np.testing.assert_array_equal(window.mask, [[expected]])


def test_gaussian_by_hand():
    """At the end of the window, two standard deviations away, the factor is exp(-2)."""
    factors = local.gaussian(np.array([-4.0, 0.0, 2.0, 4.0]), 4)
    assert_allclose(factors, np.exp([-2, 0, -0.5, -2]))


def test_predicted_positions_by_hand():
    """tanh(0) = 0 leads to the middle; a large logit to the end of the real steps."""
    hidden, v = np.array([[[0.0], [50.0]]]), np.array([100.0])
    mask = np.array([[False, True, True, True, True]])
    assert_allclose(local.predicted_positions(hidden, v, mask, 5), [[2, 4]])
    assert_allclose(local.predicted_positions(hidden, v, None, 5), [[2.5, 5]])


# Against the reference

PADDING = {
    "query_mask": MASKS["query_mask"],
    "memory_mask": MASKS["value_mask"] & MASKS["key_mask"],
}


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("score_mode", ALL_MODES)
def test_equals_the_equations(rng, kind, score_mode):
    layer = built(kind, score_mode, dtype="float64")
    tensors, arrays = draw(rng, score_mode)
    close(both(layer, *tensors), expected(layer, *arrays), "float64")
    actual = both(layer, *tensors, **MASKS, use_causal_mask=True)
    close(actual, expected(layer, *arrays, ALL_MASKED, **PADDING), "float64")


@BOTH_PATHS
@LOCAL
def test_every_mode_with_poison_in_the_padding(rng, mode, kind):
    """All masks at once; hidden steps hold NaN and Inf; graphs do not know batch and lengths."""
    layer = built(kind, "concat")
    _, (query, value, key) = draw(rng)
    query[~QUERY_MASK] = np.nan
    value[~VALUE_MASK], key[~MASKS["key_mask"]] = np.inf, np.nan
    clean = [np.where(np.isfinite(x), x, 0) for x in (query, value, key)]

    def compute(query, value, key):
        return both(layer, query, value, key, **MASKS, use_causal_mask=True)

    tensors = [tensor(x, "float32") for x in (query, value, key)]
    if mode == "graph":
        signature = [tf.TensorSpec((None, None, x.shape[-1])) for x in tensors]
        compute = tf.function(compute, input_signature=signature)
    else:
        compute = MODES[mode](compute)
    close(compute(*tensors), expected(layer, *clean, ALL_MASKED, **PADDING))


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("policy", LAYER_TOLERANCES)
def test_dtype_policies(rng, kind, policy):
    layer = built(kind, dtype=policy)
    tensors, arrays = draw(rng, dtype=layer.compute_dtype)
    actual = both(layer, *tensors, **MASKS)
    assert [dtype_of(x) for x in actual] == [layer.compute_dtype] * 2
    mask = ref.layer_mask(B, T, S, **MASKS)
    close(actual, expected(layer, *arrays, mask, **PADDING), policy)


@LOCAL
def test_long_memory_in_half_precision(kind):
    """Positions are float32: in float16, 2049 is no integer, and 70,000 no number."""
    layer = LuongAttention(local=kind, window=1, dtype="float16")
    layer.build((1, 1, 1), (1, 1, 1))
    if kind == "predictive":
        for weight in layer.trainable_variables:
            weight.assign(ops.ones(weight.shape))
    size = 70_001
    value = np.zeros((1, size, 1), "float16")
    query = np.full((1, 1, 1), 0.0 if kind == "monotonic" else np.arctanh(0.5), "float16")
    alignment = layer.initial_alignment(layer.precompute(value))
    if kind == "monotonic":
        alignment["position"] = tensor([size - 2])
        place = size - 2
    else:
        place = size / (1 + np.exp(-np.tanh(float(query[0, 0, 0]))))
    _, weights, _ = both(layer, query, value, alignment=alignment)
    centre = np.average(np.arange(size), weights=to_numpy(weights[0, 0]).astype("float64"))
    assert abs(centre - place) < 1


VALUE_ONLY = np.array([[0, 0, 1, 1, 1, 1, 0], [1, 1, 1, 0, 1, 1, 1]], bool)
SHAPED = np.random.default_rng(7).random((B, T, S)) < 0.7
SINGLE_MASKS = {
    "none": {},
    "query_mask": {"query_mask": np.array([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0]], bool)},
    "value_mask": {"value_mask": VALUE_ONLY},
    "key_mask": {"key_mask": VALUE_ONLY},
    "attention_mask": {"attention_mask": SHAPED},
    "attention_mask_of_all_samples": {"attention_mask": SHAPED[:1]},
    "attention_mask_of_all_queries": {"attention_mask": SHAPED[:, :1]},
    "attention_mask_of_all": {"attention_mask": SHAPED[:1, :1]},
    "causal": {"use_causal_mask": True},
}


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("name", SINGLE_MASKS)
def test_each_mask_alone(rng, kind, name):
    masks = dict(SINGLE_MASKS[name])
    layer = built(kind, dtype="float64")
    tensors, arrays = draw(rng)
    actual = both(layer, *tensors, **masks)
    mask = np.broadcast_to(masks.get("attention_mask", True), (B, T, S))
    if masks.pop("use_causal_mask", False):
        mask = mask & (np.arange(S) <= np.arange(T)[:, None] + S - T)
    memory_mask = masks.get("value_mask", masks.get("key_mask"))
    close(
        actual,
        expected(layer, *arrays, mask, masks.get("query_mask"), memory_mask),
        "float64",
    )


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("shape", [(B, T, S), (1, T, S), (B, 1, S), (1, 1, S)], ids=str)
def test_bias(rng, kind, shape):
    layer = built(kind, dtype="float64")
    tensors, arrays = draw(rng)
    bias = rng.normal(size=shape)
    bias[..., 2] = -np.inf
    actual = both(layer, *tensors, attention_bias=bias, value_mask=VALUE_ONLY)
    mask = np.broadcast_to(bias != -np.inf, (B, T, S))
    full = np.broadcast_to(np.where(bias == -np.inf, 0, bias), (B, T, S))
    close(
        actual,
        expected(layer, *arrays, mask, memory_mask=VALUE_ONLY, bias=full),
        "float64",
    )


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
def test_any_normaliser_inside_of_the_window(rng, kind, normalizer):
    """Over the window alone, times the Gaussian: what the window hides could not change it."""
    layer = built(kind, "dot", normalizer=normalizer, dtype="float64")
    tensors, (query, value, key) = draw(rng, "dot")
    _, weights = both(layer, *tensors)
    _, allowed = both(built(kind, "dot", dtype="float64"), *tensors)
    scores = ref.pairwise(ref.dot, query, key)
    factor = np.ones(scores.shape)
    if kind == "predictive":
        (kernel, v_p) = exact_weights_by_name(layer, "position/kernel", "v_p")
        p = reference_local.predicted_positions(query, kernel.T, v_p, np.ones((B, S), bool))
        factor = np.exp(-((np.arange(S) - p[..., None]) ** 2) / (2 * (D / 2) ** 2))
    close(weights, layer.normalizer(scores, allowed > 0) * factor, "float64")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_lengths_that_decide_in_the_graph(mode):
    """Where S is not known before, both ways are in the graph, also of gradients and dropout."""
    layer = LuongAttention(local="predictive", window=1, dropout=0.5, seed=3, dtype="float64")
    layer.build((B, T, Dq), (B, S, Dq))
    signature = [tf.TensorSpec((None, None, Dq), "float64")] * 2

    def compute(query, value):
        def loss(*inputs):
            return sum(ops.sum(x**2) for x in both(layer, *inputs, training=False))

        result = both(layer, query, value, training=False)
        dropped = layer(query, value, training=True)
        return *result, *differentiate(loss, [query, value]), dropped

    compiled = tf.function(compute, input_signature=signature, jit_compile=mode == "xla")
    for size in (SHORT * 3, SHORT * 3 + 1):
        inputs = [tf.random.normal((B, steps, Dq), dtype="float64") for steps in (T, size)]
        *found, dropped = compiled(*inputs)
        close(found, list(compute(*inputs)[:-1]), "float64")
        assert np.isfinite(dropped).all() and np.abs(dropped - found[0]).max() > 0.01


# Gradients


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("score_mode", ["general", "location"])
def test_gradients_equal_numerical_ones(rng, kind, score_mode):
    """By query, value, key and all weights; local-p's flow through the position as well."""
    query, value, key = (rng.normal(size=shape) for shape in ((1, 4, 2), (1, 5, 3), (1, 5, 2)))
    more = {"max_memory": 3} if score_mode == "location" else {}
    layer = LuongAttention(score_mode, local=kind, window=2, dtype="float64", **more)
    layer.build(query.shape, value.shape, key.shape)
    randomise(layer)
    masks = {"value_mask": [[False, True, True, True, True]], "query_mask": [[True] * 3 + [False]]}

    def result(*inputs):
        return ops.concatenate(both(layer, *inputs, **masks), axis=-1)

    variables = layer.trainable_variables
    found = gradients(result, query, value, key, variables=variables)
    weights = np.random.default_rng(8).normal(size=(1, 4, 8))  # as in `gradients`

    loss = compiled(lambda *inputs: ops.sum(result(*inputs) * tensor(weights)))
    loss_now = compiled_loss(
        lambda: ops.sum(result(query, value, key) * tensor(weights)), variables
    )

    def loss_of(variable, array):
        variable.assign(array)
        return loss_now()

    numerical = [
        numerical_gradient(lambda x: loss(x, value, key), query),
        numerical_gradient(lambda x: loss(query, x, key), value),
        numerical_gradient(lambda x: loss(query, value, x), key),
    ]
    for variable in variables:
        start = to_numpy(variable)
        numerical.append(numerical_gradient(lambda x, v=variable: loss_of(v, x), start))
        variable.assign(start)
    unread = 2 if score_mode == "location" else None  # the keys
    for i, (gradient, right) in enumerate(zip(found, numerical, strict=True)):
        assert i == unread or np.abs(right).max() > 1e-4
        assert_allclose(gradient, right, rtol=1e-6, atol=1e-8)


@BOTH_PATHS
@LOCAL
def test_poison_in_padding_reaches_no_gradient(rng, kind):
    layer = built(kind, "concat")
    (query, value, key), _ = draw(rng, dtype="float32")
    variables = layer.trainable_variables

    def context(*args):
        return layer(*args, value_mask=VALUE_MASK, query_mask=QUERY_MASK)

    clean = gradients(context, query, value, key, variables=variables)
    hidden = tensor(~VALUE_MASK)[..., None]
    value, key = (ops.where(hidden, np.nan, x) for x in (value, key))
    query = ops.where(tensor(~QUERY_MASK)[..., None], np.nan, query)
    close(gradients(context, query, value, key, variables=variables), clean)


# Properties

SIZES = st.integers(1, 6)


@settings(max_examples=12, deadline=None)
@given(T=SIZES, S=SIZES, more=st.integers(0, 3), seed=st.integers(0, 99))
def test_monotonic_window_over_everything_equals_global(T, S, more, seed):
    rng = np.random.default_rng(seed)
    query, value = rng.normal(size=(2, T, 3)), rng.normal(size=(2, S, 3))
    mask = rng.random((2, S)) < 0.7
    wide = LuongAttention(local="monotonic", window=max(T, S) + more, dtype="float64")
    close(
        both(wide, query, value, value_mask=mask),
        both(LuongAttention(dtype="float64"), query, value, value_mask=mask),
        "float64",
    )


def test_predictive_window_without_end_equals_global(rng):
    """With D = 1e8 the Gaussian is 1 everywhere."""
    layer = built("predictive", "dot", window=10**8, dtype="float64")
    (query, value, key), _ = draw(rng, "dot")
    close(
        both(layer, query, value, key),
        both(LuongAttention(dtype="float64"), query, value, key),
        "float64",
    )


@LOCAL
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 999), score_mode=st.sampled_from(["dot", "location"]))
def test_masked_steps_count_as_removed(kind, seed, score_mode):
    """Wherever they stand: before, after or between the real ones, of queries and of memory."""
    rng = np.random.default_rng(seed)
    local.SHORT = 1 if seed % 2 else SHORT
    layer = built(kind, score_mode, window=1, dtype="float64")
    query, value = rng.normal(size=(1, 6, Dq)), rng.normal(size=(1, 8, Dv))
    key = rng.normal(size=(1, 8, KEY_SIZES.get(score_mode, Dk)))
    steps, memory = rng.random(6) < 0.6, rng.random(8) < 0.6
    context, weights = both(
        layer, query, value, key, query_mask=steps[None], value_mask=memory[None]
    )
    assert not to_numpy(weights)[0, ~steps].any() and not to_numpy(weights)[0, :, ~memory].any()
    kept = both(layer, query[:, steps], value[:, memory], key[:, memory])
    context, weights = to_numpy(context)[:, steps], to_numpy(weights)[:, steps][:, :, memory]
    close((context, weights), kept, "float64")


@BOTH_PATHS
@LOCAL
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(rng, kind, side):
    layer = built(kind)
    (query, value, key), _ = draw(rng, dtype="float32")
    context, weights = both(layer, query, value, key)
    more = [(0, 0), (4, 0) if side == "left" else (0, 4), (0, 0)]
    query, value, key = (np.pad(x, more, constant_values=9) for x in (query, value, key))
    masks = [np.pad(np.ones((B, size), bool), more[:2]) for size in (T, S)]
    inner = slice(4, None) if side == "left" else slice(-4)
    found = both(layer, query, value, key, query_mask=masks[0], value_mask=masks[1])
    close((found[0][:, inner], found[1][:, inner, inner]), (context, weights))


@LOCAL
def test_rows_sum_to_one_or_less(rng, kind):
    """local-p does not normalise again (equation 10)."""
    (query, value, key), _ = draw(rng)
    sums = to_numpy(both(built(kind, dtype="float64"), query, value, key)[1]).sum(-1)
    if kind == "monotonic":
        assert_allclose(sums, 1)
    else:
        assert (sums < 1).all() and (sums > 0).all()


@BOTH_PATHS
@LOCAL
def test_windows_without_a_real_step(rng, kind):
    """Beyond the end of a short memory, or over masked steps only: weights 0, context 0."""
    layer = built(kind, "dot", window=1)
    query, value = rng.normal(size=(2, 9, Dq)), rng.normal(size=(2, 4, Dq))
    layer = LuongAttention("dot", local=kind, window=1)
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], bool)
    context, weights = both(layer, query, value, value_mask=mask)
    empty = np.array([t > 2 for t in range(9)])
    if kind == "monotonic":
        np.testing.assert_array_equal(to_numpy(weights)[0, empty], 0)
        np.testing.assert_array_equal(to_numpy(context)[0, empty], 0)
        assert (to_numpy(weights)[0, ~empty].sum(-1) > 0.99).all()
    np.testing.assert_array_equal(weights[1], 0)
    np.testing.assert_array_equal(context[1], 0)
    assert all(
        np.isfinite(x).all() for x in gradients(lambda *x: layer(*x, value_mask=mask), query, value)
    )


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@LOCAL
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1), (2, 5, 2)], ids=str)
def test_sizes_below_the_window(rng, kind, sizes):
    """Also in a graph that does not know them."""
    batch, steps, size = sizes
    layer = built(kind, window=3)
    query, value, key = rng.normal(size=(batch, steps, Dq)), np.ones((batch, size, Dv)), None
    key = rng.normal(size=(batch, size, Dk))
    signature = [tf.TensorSpec((None, None, features)) for features in (Dq, Dv, Dk)]
    graph = tf.function(lambda *x: both(layer, *x), input_signature=signature)
    eager = both(layer, query, value, key)
    assert eager[0].shape == (batch, steps, Dv) and eager[1].shape == (batch, steps, size)
    close(graph(*(tensor(x, "float32") for x in (query, value, key))), eager)
    close(eager, expected(layer, query, value, key))


# Step by step


@LOCAL
@pytest.mark.parametrize("masked", [False, True])
def test_steps_equal_the_sequence(rng, kind, masked):
    layer = built(kind)
    (query, value, key), _ = draw(rng, dtype="float32")
    query_mask = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0]], bool) if masked else None
    context, weights = both(layer, query, value, key, value_mask=VALUE_ONLY, query_mask=query_mask)
    memory = layer.precompute(value, key, value_mask=VALUE_ONLY)
    close(both(layer, query, memory=memory, query_mask=query_mask), (context, weights))
    alignment = layer.initial_alignment(memory)
    assert list(alignment) == (["position"] if kind == "monotonic" else [])
    for t in range(T):
        mask = query_mask[:, t] if masked else None
        *found, alignment = both(
            layer, query[:, t], memory=memory, alignment=alignment, query_mask=mask
        )
        close(found, [context[:, t], weights[:, t]])
    if kind == "monotonic":
        real = query_mask.sum(1).tolist() if masked else [T] * B
        assert to_numpy(alignment["position"]).tolist() == real
        halves = [layer(query[:, :2], memory=memory, alignment=layer.initial_alignment(memory))]
        halves.append(layer(query[:, 2:], memory=memory, alignment=halves[0][1]))
        whole = layer(query, memory=memory)
        close(np.concatenate([half[0] for half in halves], axis=1), whole)


@pytest.mark.tensorflow_only("tf.while_loop")
@LOCAL
def test_steps_in_a_compiled_loop(rng, kind):
    layer = built(kind, "dot")
    (query, value, key), _ = draw(rng, "dot", "float32")

    @tf.function(jit_compile=True)
    def steps(query, value, key):
        memory = layer.precompute(value, key, value_mask=VALUE_ONLY)
        loop, alignment = tf.TensorArray("float32", size=T), layer.initial_alignment(memory)
        for t in ops.arange(T):
            context, alignment = layer(query[:, t], memory=memory, alignment=alignment)
            loop = loop.write(t, context)
        return ops.transpose(loop.stack(), (1, 0, 2))

    close(steps(query, value, key), layer(query, value, key, value_mask=VALUE_ONLY))


# Cost


def largest_tensor(function, *shapes):
    """Number of elements of the largest tensor in the graph of a function and its gradient."""

    def with_gradient(*inputs):
        return differentiate(function, inputs)

    graph = tf.function(with_gradient).get_concrete_function(*map(tf.TensorSpec, shapes)).graph
    shapes = [x.shape for operation in graph.get_operations() for x in operation.outputs]
    assert all(shape.is_fully_defined() for shape in shapes if shape.rank is not None)
    return max(shape.num_elements() for shape in shapes if shape.rank is not None)


@pytest.mark.tensorflow_only("the nodes of a graph")
@LOCAL
def test_no_tensor_has_a_number_for_each_pair(kind):
    steps, size, features, window = 53, 1009, 2, 3
    shapes = (1, steps, features), (1, size, features)
    masks = {
        "query_mask": np.ones((1, steps), bool),
        "value_mask": np.ones((1, size), bool),
        "use_causal_mask": True,
    }
    near = LuongAttention(local=kind, window=window)
    everywhere = LuongAttention()
    for layer in (near, everywhere):
        layer.build(*shapes)
    largest = largest_tensor(lambda q, v: near(q, v, **masks), *shapes)
    assert largest <= max(steps * (2 * window + 1), size) * features
    assert largest_tensor(lambda q, v: everywhere(q, v, **masks), *shapes) >= steps * size


@LOCAL
def test_memory_of_a_hundred_thousand_steps(kind):
    """All pairs would take 40 GB."""
    size, layer = 100_000, LuongAttention(local=kind, window=3)
    x = np.random.default_rng(0).normal(size=(1, size, 2)).astype("float32")
    layer.build(x.shape)
    context = to_numpy(layer(x, use_causal_mask=kind == "monotonic"))
    assert context.shape == x.shape and np.isfinite(context).all()
    if kind == "monotonic":  # the first query sees itself only, the last the last four
        assert_allclose(context[0, 0], x[0, 0], rtol=1e-6)
        weights = np.exp(x[0, -4:] @ x[0, -1])
        assert_allclose(context[0, -1], weights @ x[0, -4:] / weights.sum(), rtol=1e-4)


# In decoders and models


def decoder(kind, score_mode="general", input_feeding=True, **arguments):
    if score_mode == "location":
        arguments["max_memory"] = 5
    attention = LuongAttention(score_mode, local=kind, window=2, **arguments)
    return LuongDecoder(keras.layers.GRUCell(6), attention, input_feeding=input_feeding)


@pytest.mark.parametrize(
    "kind, score_mode",
    [
        ("predictive", "location"),
        pytest.param("monotonic", "general", marks=pytest.mark.slow),
        pytest.param("predictive", "concat", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_input_feeding_trains_under_xla(kind, score_mode):
    """With unknown batch and lengths, masks, and a loss on the weights as well."""
    tokens, source = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embed = keras.layers.Embedding(9, 6, mask_zero=True)
    outputs, weights = decoder(kind, score_mode)(
        embed(tokens), embed(source), return_attention_scores=True
    )
    logits = keras.layers.Dense(9)(outputs)
    model = keras.Model([tokens, source], [logits, weights])
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", [crossentropy, "mse"], jit_compile=True)
    rng = np.random.default_rng(0)
    target, memory = rng.integers(1, 9, (4, 5)), rng.integers(1, 9, (4, 7))
    target[1, 3:] = memory[2, 4:] = 0
    before = [to_numpy(w) for w in model.trainable_variables]
    uniform = np.full((4, 5, 7), 1 / 7)
    history = model.fit([target, memory], [target, uniform], epochs=3, verbose=0)
    losses = history.history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    pairs = zip(before, model.trainable_variables, strict=True)
    assert all(np.abs(old - to_numpy(new)).max() > 0 for old, new in pairs)


@LOCAL
@pytest.mark.parametrize("input_feeding", [False, True])
def test_decoder_steps_equal_teacher_forcing(rng, kind, input_feeding):
    layer = decoder(kind, input_feeding=input_feeding)
    inputs = rng.normal(size=(2, 4, 5)).astype("float32")
    memory = rng.normal(size=(2, 7, 6)).astype("float32")
    outputs, weights = layer(inputs, memory, memory_mask=VALUE_ONLY, return_attention_scores=True)
    projected = layer.precompute(memory, VALUE_ONLY)
    state = layer.start_state(projected)
    for t in range(4):
        output, one, state = layer.step(
            inputs[:, t], state, projected, return_attention_scores=True
        )
        close((output, one), (outputs[:, t], weights[:, t]))


@LOCAL
def test_saved_and_loaded(tmp_path, rng, kind):
    query, memory = keras.Input((None, 4)), keras.Input((None, 4))
    layer = LuongAttention("concat", units=3, local=kind, window=2, name="attention")
    model = keras.Model([query, memory], layer(query, memory))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    inputs = [rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 7, 4))]
    close(again.predict(inputs, verbose=0), model.predict(inputs, verbose=0))
    assert again.get_layer("attention").get_config() == layer.get_config()


@LOCAL
def test_symbolic_shapes(kind):
    query, memory = keras.Input((None, Dq)), keras.Input((S, Dq))
    context, weights = LuongAttention(local=kind, window=D)(
        query, memory, return_attention_scores=True
    )
    assert context.shape == (None, None, Dq) and weights.shape == (None, None, S)


@BOTH_PATHS
@LOCAL
def test_dropout_leaves_the_returned_weights(rng, kind):
    layer = built(kind, dropout=0.5, seed=1)
    (query, value, key), _ = draw(rng, dtype="float32")
    context, weights = both(layer, query, value, key)
    dropped, same = both(layer, query, value, key, training=True)
    close(same, weights)
    assert np.abs(dropped - context).max() > 0.01


def test_weights_of_local_p():
    """W_p has `units` rows, by default as many as the query has features."""
    for units, size in ((None, Dq), (U, U)):
        layer = built("predictive", "dot", units=units)
        found = {w.path.removeprefix("attention/"): w.shape for w in layer.weights}
        assert found == {"position/kernel": (Dq, size), "v_p": (size,)}
    assert built("monotonic", "dot").weights == []


# Bad input


def refused(match, *args, **kwargs):
    with pytest.raises(ValueError, match=match):
        LuongAttention(*args, **kwargs)


@pytest.mark.parametrize("kind", ["local-m", "Monotonic", True, 3])
def test_unknown_local(kind):
    refused("`local` must be one of None, monotonic, predictive. Received", local=kind, window=2)


@LOCAL
def test_window_and_local_go_together(kind):
    refused("`window`, a positive integer, is needed with local=", local=kind)
    refused("`window` belongs to local='monotonic' or 'predictive'. Received window=2", window=2)
    for window in (0, -1, 2.5, True, "2"):
        refused("`window` must be a positive integer. Received", local=kind, window=window)


def test_units_belong_to_a_hidden_layer():
    refused("`units` belongs to .* Received units=3", local="monotonic", window=2, units=3)


class Carrying:
    """A normaliser that reads the weights of the step before."""

    carries = ("previous",)

    def __call__(self, scores, mask=None, previous=None, training=None):
        return scores


@LOCAL
def test_normaliser_that_depends_on_earlier_steps(kind):
    refused("`normalizer` must not depend", local=kind, window=2, normalizer=Carrying())
