"""Blocks: attention without the whole score matrix gives what the whole matrix gives."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import assert_allclose, dtype_of, to_numpy
from conftest import TOLERANCES, numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import (
    LuongAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    segment_mask,
)
from keras_attention.blockwise import cut
from keras_attention.blockwise.dot import dot_attention
from keras_attention.blockwise.piece import spans_of
from keras_attention.pairs import Pairs

attending = importlib.import_module("keras_attention.attend")
attend = attending.attend


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of two to four queries and few rows, so that small problems have many of them."""
    monkeypatch.setattr(cut, "SCORES", 60)
    monkeypatch.setattr(cut, "QUERIES", ((3, 8), (4, None)))
    monkeypatch.setattr(cut, "DIAGONAL", (2, 3))


@pytest.fixture
def blocks(monkeypatch):
    """Makes `attend` and the layers take blocks, and counts how often they do."""
    calls = []

    def counted(*args):
        calls.append(args)
        return dot_attention(*args)

    monkeypatch.setattr(attending, "MOST_AT_ONCE", 0)
    for name in ("dot_attention", "traced_dot_attention"):
        monkeypatch.setattr(f"keras_attention.blockwise.dot.{name}", counted)
    return calls


def allowed(shape, pairs):
    """What `pairs` allow, `[..., T, S]`, entry by entry."""
    *lead, steps, key_steps = shape
    mask = np.ones(shape, bool)
    for index in np.ndindex(*shape):
        *_, t, s = index
        distance = s - (t + key_steps - steps)
        mask[index] = not (pairs.causal and distance > 0)
        if pairs.window is not None:
            mask[index] &= abs(distance) < pairs.window
    for more in (pairs.rows, pairs.columns, pairs.mask):
        mask = mask if more is None else mask & np.asarray(more)
    return mask


def reference(query, key, value, scale, pairs, cap=None):
    """The equation on whole arrays, in float64."""
    scores = scale * np.einsum("...td,...sd->...ts", query, np.broadcast_to(
        key, (*query.shape[:-2], *key.shape[-2:])))  # fmt: skip
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    if pairs.bias is not None:
        scores = scores + np.asarray(pairs.bias, "float64")
    if pairs.slopes is not None:
        steps, keys = scores.shape[-2:]
        distance = np.arange(keys) - (np.arange(steps)[:, None] + keys - steps)
        scores = scores - np.asarray(pairs.slopes) * np.abs(distance)
    mask = allowed(scores.shape, pairs)
    scores = np.where(mask, scores, -np.inf)
    largest = np.max(scores, -1, keepdims=True, initial=-1e300)
    weights = np.where(mask, np.exp(scores - largest), 0)
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    value = np.broadcast_to(value, (*query.shape[:-2], *value.shape[-2:]))
    return np.einsum("...ts,...sd->...td", weights, value)


LEADS = [((2,), (2,)), ((2, 3), (2, 3)), ((2, 2, 3), (2, 2, 1)), ((5,), (5,)), ((), ())]
SETTINGS = ["", "keys", "causal", "causal keys", "window", "window causal keys", "mask bias",
            "cap keys", "bias causal", "cap bias causal keys window", "slopes rows",
            "slopes causal bias"]  # fmt: skip


def problem(rng, lead, key_lead, steps, key_steps, what, dtype="float64"):
    """Inputs `[q, k, v(, bias)]`, their exact values, and a function from a bias to pairs."""

    def normal(*shape):
        return rounded(rng.normal(size=shape), dtype)

    def some(sizes):
        return [1 if rng.random() < 0.5 else size for size in sizes]

    inputs = [
        normal(*lead, steps, 3),
        normal(*key_lead, key_steps, 3),
        normal(*key_lead, key_steps, 4),
    ]
    kwargs = {"causal": "causal" in what, "window": 3 if "window" in what else None}
    if "keys" in what:
        kwargs["columns"] = rng.random((*some(lead), 1, key_steps)) > 0.3
    if "rows" in what:
        kwargs["rows"] = rng.random((*some(lead), steps, 1)) > 0.3
    if "slopes" in what:
        kwargs["slopes"] = rng.random((*some(lead), 1, 1))
    if "mask" in what:
        kwargs["mask"] = rng.random((*some(lead), *some([steps]), key_steps)) > 0.3
    if "bias" in what:
        inputs.append(normal(*some(lead), *some([steps, key_steps])))
    return [x for x, _ in inputs], [x for _, x in inputs], kwargs


def some_or_slow(mode, place, what):
    """A third of the cases in each mode; all others with the slow tests."""
    chosen = (["eager", "graph", "xla"].index(mode) + place + SETTINGS.index(what)) % 3 == 0
    marks = () if chosen else pytest.mark.slow
    return pytest.param(mode, *LEADS[place], what, marks=marks)


@pytest.mark.parametrize(
    ("mode", "lead", "key_lead", "what"),
    [
        some_or_slow(mode, place, what)
        for mode in ("eager", "graph", "xla")
        for place in range(len(LEADS))
        for what in SETTINGS
    ],
)
def test_equals_the_whole(rng, mode, lead, key_lead, what):
    """Values, and gradients against numerical ones along a random direction."""
    steps, key_steps = (int(n) for n in rng.integers(1, 13, 2))
    inputs, exact, kwargs = problem(rng, lead, key_lead, steps, key_steps, what)
    cap = 1.5 if "cap" in what else None

    def whole(arrays):
        pairs = Pairs(**kwargs, bias=arrays[3] if len(arrays) > 3 else None)
        return reference(*arrays[:3], 0.7, pairs, cap)

    expected = whole(exact)
    upstream = rng.normal(size=expected.shape)

    def ours(*inputs):
        masks = {k: tf.constant(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
        pairs = Pairs(**masks, bias=inputs[3] if len(inputs) > 3 else None)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = dot_attention(*inputs[:3], 0.7, cap, pairs)
            total = tf.reduce_sum(output * upstream)
        return output, tape.gradient(total, inputs)

    if mode != "eager":
        ours = tf.function(ours, autograph=False, jit_compile=mode == "xla")
    output, gradients = ours(*inputs)
    assert_allclose(output, expected, rtol=1e-10, atol=1e-12)
    for place, gradient in enumerate(gradients):
        direction = rng.normal(size=exact[place].shape)

        def moved(step, place=place, direction=direction):
            arrays = list(exact)
            arrays[place] = arrays[place] + step * direction
            return float((whole(arrays) * upstream).sum())

        assert_allclose(
            (gradient.numpy() * direction).sum(),
            numerical_gradient(moved, 0.0),
            rtol=1e-6,
            atol=1e-7,
        )


@pytest.mark.parametrize("what", ["", "causal keys", "mask bias", "window"])
def test_sizes_that_the_graph_does_not_know(rng, what):
    inputs, exact, kwargs = problem(rng, (2, 3), (2, 3), 7, 9, what)
    expected = reference(*exact[:3], 1.0, Pairs(**kwargs, bias=(exact + [None])[3]))
    free = [
        tf.TensorSpec([None if n > 1 else 1 for n in x.shape[:-1]] + [x.shape[-1]], x.dtype)
        for x in inputs
    ]

    @tf.function(autograph=False, input_signature=free)
    def ours(*inputs):
        pairs = Pairs(**kwargs, bias=(inputs + (None,))[3])
        return dot_attention(*inputs[:3], 1.0, pairs=pairs)

    assert_allclose(ours(*inputs), expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_sizes(data):
    """Lengths one below, at and above a block among them."""
    number = st.integers(1, 9)
    lead = tuple(data.draw(st.lists(st.integers(1, 3), max_size=3)))
    grouped = data.draw(st.booleans()) and lead
    key_lead = (*lead[:-1], 1) if grouped else lead
    steps, key_steps = data.draw(number), data.draw(number)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    what = data.draw(st.sampled_from(SETTINGS))
    inputs, exact, kwargs = problem(rng, lead, key_lead, steps, key_steps, what)
    pairs = Pairs(**kwargs, bias=(exact + [None])[3])
    cap = 1.5 if "cap" in what else None
    expected = reference(*exact[:3], 1.0, pairs, cap)
    masks = {k: tf.constant(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    pairs = Pairs(**masks, bias=(inputs + [None])[3])
    output = dot_attention(*inputs[:3], 1.0, cap, pairs)
    assert_allclose(output, expected, rtol=1e-10, atol=1e-12)


def segments(rng, steps, count):
    """Documents `[B, T]` of unequal lengths, packed."""
    ends = np.sort(rng.choice(np.arange(1, steps), (B, count - 1)), axis=1)
    return (np.arange(steps) >= ends[..., None]).sum(1)


B = 3


@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents(rng, causal, monkeypatch):
    """Each as alone; and blocks read no more of the keys than their documents."""
    monkeypatch.setattr(cut, "SCORES", 64)
    monkeypatch.setattr(cut, "QUERIES", ((4, None),))
    spans = []

    def spying(mask, cut):
        spans.append(found := spans_of(mask, cut))
        return found

    monkeypatch.setattr("keras_attention.blockwise.dot.spans_of", spying)
    steps, ids = 40, segments(rng, 40, 5)
    query, key, value = (tf.constant(rng.normal(size=(B, 2, steps, 3))) for _ in range(3))
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        mask = segment_mask(ids)[:, None]
        output = dot_attention(query, key, value, 0.7, None, Pairs(mask=mask, causal=causal))
    gradients = tape.gradient(output, [query, key, value], output)
    for b in range(B):
        for segment in range(5):
            here = ids[b] == segment
            alone = [x.numpy()[b][:, here] for x in (query, key, value)]
            with tf.GradientTape() as tape:
                tape.watch(alone := [tf.constant(x) for x in alone])
                expected = dot_attention(*alone, 0.7, None, Pairs(causal=causal))
            assert_allclose(output.numpy()[b][:, here], expected, rtol=1e-12, atol=1e-12)
            for whole, one in zip(gradients, tape.gradient(expected, alone, expected), strict=True):
                assert_allclose(whole.numpy()[b][:, here], one, rtol=1e-11, atol=1e-11)
    first, end = spans[0].numpy()
    assert first.shape[1] > 5 and (end - first).mean() < steps / 2
    queries = steps // first.shape[1]
    longest = max(np.bincount(row).max() for row in ids)
    assert first.shape[0] == B  # a group of rows for each sample
    assert (end - first).max() <= queries + 2 * longest


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(rng, dtype, blocks):
    """`attend` in blocks is as exact as at once; huge scores and hidden NaN stay out."""
    (query, key, value), exact, _ = problem(rng, (2, 3), (2, 3), 7, 9, "", dtype)
    mask = tf.constant(rng.random((2, 1, 7, 9)) > 0.4)
    output = attend(query, key, value, mask=mask)
    expected = reference(*exact, 3**-0.5, Pairs(mask=mask))
    assert len(blocks) == 1 and dtype_of(output) == dtype_of(query)
    assert_allclose(to_numpy(output), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    huge = [tf.cast(tf.fill(x.shape, 300.0), dtype) for x in (query, key)]
    assert np.isfinite(to_numpy(attend(*huge, value, mask=mask))).all()


LAYERS = {
    "heads": lambda: MultiHeadAttention(4, 3, seed=1),
    "grouped": lambda: MultiHeadAttention(4, 3, num_key_value_heads=2, seed=1),
    "shared": lambda: MultiHeadAttention(4, 3, num_key_value_heads=1, sliding_window=4, seed=1),
    "rotary": lambda: MultiHeadAttention(4, 4, position="rotary", logit_soft_cap=2.0, seed=1),
    "alibi": lambda: MultiHeadAttention(4, 3, position="alibi", seed=1),
    "scaled": ScaledDotProductAttention,
    "general": lambda: LuongAttention(score_mode="general"),
}
CALLS = {
    "self": {},
    "causal": {"use_causal_mask": True},
    "masks": {"query_mask": True, "attention_mask": True},
    "bias": {"attention_bias": True, "use_causal_mask": True},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(rng, name, call, blocks, monkeypatch):
    """A layer in blocks gives what it gives at once, and the same gradients."""
    keras.utils.set_random_seed(1)
    layer = LAYERS[name]()
    x = tf.constant(rng.normal(size=(2, 11, 8)).astype("float32"))
    mask = np.ones((2, 11), bool)
    mask[0, 7:] = False
    given = {
        "query_mask": tf.constant(mask),
        "attention_mask": tf.constant(rng.random((2, 11, 11)) > 0.3),
        "attention_bias": tf.constant(rng.normal(size=(2, 11, 11)).astype("float32")),
    }
    kwargs = {k: given.get(k, v) for k, v in CALLS[call].items()}
    upstream = rng.normal(size=(2, 11, 8)).astype("float32")

    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, x, value_mask=given["query_mask"], **kwargs)
            total = tf.reduce_sum(output * upstream)
        return output, tape.gradient(total, [x, *layer.trainable_variables])

    output, gradients = run()
    assert len(blocks) == 1
    monkeypatch.setattr(attending, "MOST_AT_ONCE", 1 << 40)
    expected, wanted = run()
    assert len(blocks) == 1
    assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["heads", "shared", "alibi"])
def test_layers_choose_in_the_graph(rng, name, monkeypatch):
    """Where sizes are not known, the graph chooses: with the same numbers, and gradients."""
    layer = LAYERS[name]()
    layer(tf.zeros((1, 2, 8)))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None, 8])])
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, use_causal_mask=True)
            total = tf.reduce_sum(output**2)
        return output, *tape.gradient(total, [x, *layer.trainable_variables])

    inputs = [tf.constant(rng.normal(size=(2, n, 8)).astype("float32")) for n in (3, 11)]
    monkeypatch.setattr(attending, "MOST_AT_ONCE", 2 * 4 * 5 * 5)
    chosen = [run(x) for x in inputs]
    branches = [op.type for op in run.get_concrete_function().graph.get_operations()]
    assert {"If", "StatelessIf"} & set(branches)
    monkeypatch.setattr(attending, "MOST_AT_ONCE", 1 << 40)
    for x, found in zip(inputs, chosen, strict=True):
        layer_at_once = run.python_function(x)
        for ours, theirs in zip(found, layer_at_once, strict=True):
            assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_exported_without_lengths(rng, monkeypatch, tmp_path):
    """A SavedModel of unknown lengths holds both ways, and takes the right one; also of nothing."""
    monkeypatch.setattr(attending, "MOST_AT_ONCE", 2 * 4 * 5 * 5)
    x = keras.Input((None, 8))
    layer = MultiHeadAttention(4, 2)
    model = keras.Model(x, layer(x, use_causal_mask=True))
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    served = loaded.serve
    graph = str(served.get_concrete_function(tf.zeros((1, 2, 8))).graph.as_graph_def())
    for kind in ("If", "While"):
        assert f'op: "{kind}"' in graph or f'op: "Stateless{kind}"' in graph
    monkeypatch.setattr(attending, "MOST_AT_ONCE", 1 << 40)
    for batch, steps in ((2, 3), (2, 11), (2, 40), (0, 11), (2, 0)):
        x = rng.normal(size=(batch, steps, 8)).astype("float32")
        found = served(x)
        assert found.shape == x.shape
        assert_allclose(found, model(x), rtol=1e-4, atol=1e-5)


def test_dropout(rng, blocks):
    """Dropped weights are dropped in the gradient too; the mean is that without dropout."""
    query, key, value = (
        tf.constant(rng.normal(size=(2, n, 4)).astype("float32")) for n in (7, 9, 9)
    )
    seed = tf.constant([3, 4])

    def run(value):
        return dot_attention(query, key, value, 0.5, dropout=0.4, seed=seed)

    # The output is linear in the values, so their gradient says which weights were kept.
    with tf.GradientTape() as tape:
        tape.watch(value)
        output = run(value)
        total = tf.reduce_sum(output)
    gradient = tape.gradient(total, value)
    assert_allclose(tf.reduce_sum(gradient * value), total, rtol=1e-5)
    np.testing.assert_array_equal(output, run(value))
    many = attend(
        tf.zeros((64, 40, 2)), tf.zeros((64, 50, 2)), tf.ones((64, 50, 1)), dropout=0.4, seed=5
    )
    assert len(blocks) == 1
    assert_allclose(np.mean(many), 1.0, atol=0.01)
    assert np.std(many) > 0.05


def test_dropout_gradients(rng):
    """Of queries and keys, against numerical ones."""
    arrays = [rng.normal(size=(2, n, 3)) for n in (5, 6, 6)]
    upstream, seed = rng.normal(size=(2, 5, 3)), tf.constant([1, 2])

    def total(*arrays):
        return tf.reduce_sum(dot_attention(*arrays, 1.0, dropout=0.3, seed=seed) * upstream)

    tensors = [tf.constant(x) for x in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = total(*tensors)
    for place, gradient in enumerate(tape.gradient(result, tensors)):

        def moved(x, place=place):
            return total(*(tf.constant(x) if i == place else y for i, y in enumerate(tensors)))

        assert_allclose(gradient, numerical_gradient(moved, arrays[place]), rtol=1e-6, atol=1e-8)


def test_when_blocks_are_taken(rng, monkeypatch):
    """Large problems of known sizes take blocks, unless the weights are wanted."""
    calls = []
    monkeypatch.setattr(
        "keras_attention.blockwise.dot.dot_attention",
        lambda query, *args: calls.append(1) or tf.zeros_like(query),
    )
    x = tf.zeros((2, 1600, 1))
    attend(x, x, x)
    assert len(calls) == 1
    attend(x, x, x, return_attention_scores=True)
    attend(x[:, :100], x[:, :100], x[:, :100])
    attend(x, x, x, normalizer=lambda scores, mask: scores)
    assert len(calls) == 1


def test_alibi_keeps_its_precision_beside_a_coarse_bias(rng):
    """A caller's bias of bfloat16 does not round the distances: 257 slopes are not 256."""
    layer = LAYERS["alibi"]()
    x = tf.constant(rng.normal(size=(1, 300, 8)).astype("float32"))
    expected = layer(x, return_attention_scores=True)[1]
    bias = tf.zeros((1, 300, 300), "bfloat16")
    found = layer(x, attention_bias=bias, return_attention_scores=True)[1]
    assert_allclose(found, expected, rtol=1e-6)
