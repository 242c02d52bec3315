"""The cache of MultiHeadAttention: step by step, or in chunks, as in one pass."""

import itertools

import keras
import numpy as np
import pytest
import reference_pieces as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import MODES, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_multi_head_pieces import (
    LIMITS,
    PIECES,
    B,
    D,
    H,
    N,
    close,
    expected,
    lean_one,
    make,
    pieces_of,
    stripes_one,
)
from transformer_models import attention_weights, randomise

from keras_attention import MultiHeadAttention, prefix_mask, segment_mask
from keras_attention.cache import next_positions, own_past
from keras_attention.search import beam_search, greedy_search

T, V = 7, 9
KINDS = ["grown", "static", "rolling"]


def cache_of(kind, layer, batch=B, steps=T):
    """A cache of this kind; "static" with one slot to spare."""
    return layer.start_cache(batch, steps + 1 if kind == "static" else None)


def made(name, kind, groups=2, **options):
    """A layer whose cache is of this kind."""
    if kind == "rolling" and name != "all":
        options |= {"sliding_window": 3}
    if kind != "rolling" and name == "window":
        options |= {"sliding_window": T + 2}  # room for more than the whole static cache
    if kind != "rolling" and name == "all":
        options |= {"sliding_window": None if kind == "grown" else T + 2}
    return make(name, groups, **options)


def kind_of(layer, cache):
    if "length" in cache:
        return "static"
    return "grown" if layer.get_config()["sliding_window"] is None else "rolling"


def in_chunks(layer, x, cache, chunks, mask=None, causal=True):
    """Outputs of the chunks; a chunk of 0 is one step `[B, D]`."""
    outputs, start = [], 0
    for size in chunks:
        here = start if size == 0 else slice(start, start + size)
        options = {} if mask is None else {"query_mask": mask[:, here]}
        output, cache = layer(x[:, here], cache=cache, use_causal_mask=causal, **options)
        outputs.append(output[:, None] if size == 0 else output)
        start += size or 1
    assert start == x.shape[1]
    return np.concatenate([to_numpy(output) for output in outputs], axis=1), cache


def draw(rng, batch=B, steps=T):
    return rng.normal(size=(batch, steps, D)).astype("float32")


# The cache equals the full pass


# (A window makes a cache roll that would grow without.)
CACHES = [(name, kind) for name in PIECES for kind in KINDS if (name, kind) != ("window", "grown")]


@pytest.mark.parametrize(("name", "kind"), CACHES)
def test_steps_and_chunks_equal_the_full_pass(rng, name, kind):
    """And both the reference."""
    layer, x = made(name, kind), draw(rng)
    wanted = expected(layer, x, causal=True)[0]
    for chunks in ([0] * T, [3, 0, 1, 2]):
        cache = cache_of(kind, layer)
        assert kind_of(layer, cache) == kind
        outputs, cache = in_chunks(layer, x, cache, chunks)
        close([outputs], [wanted])
        assert np.all(cache["next"] == T)


def sample_alone(layer, x, b):
    """Output `[T, D]` by the reference of sample b, whose number functions of the user get."""
    pieces = pieces_of(layer)
    if pieces.modifier is not None:
        pieces = pieces._replace(modifier=lambda x, _, *pair: lean_one(x, b, *pair))
    if pieces.allowed is not None:
        pieces = pieces._replace(allowed=lambda _, *pair: stripes_one(b, *pair))
    output, _ = ref.attention(x[None], x[None], **attention_weights(layer), pieces=pieces, causal=1)
    return output[0]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_pieces_chunks_and_padding(data):
    """Left padding of any length, with NaN in it, is as if it were not there."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    extra = data.draw(st.sets(st.sampled_from(list(PIECES)[6:-1]), max_size=3), label="pieces")
    options = {k: v for name in sorted(extra) for k, v in PIECES[name]("float64").items()}
    kind = data.draw(st.sampled_from(KINDS), label="kind")
    options["sliding_window"] = (
        data.draw(st.integers(1, 9), label="window") if kind == "rolling" else None
    )
    position = data.draw(st.sampled_from(list(PIECES)[:6]), label="position")
    groups = data.draw(st.sampled_from([1, 2, 4]), label="groups")
    layer = make(position, groups, "float64", **options)
    chunks = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4), label="chunks")
    total = sum(max(size, 1) for size in chunks)
    padding = data.draw(st.lists(st.integers(0, total), min_size=B, max_size=B), label="padding")
    x = rng.normal(size=(B, total, D))
    mask = np.arange(total) >= np.array(padding)[:, None]
    x[~mask] = np.nan
    outputs, cache = in_chunks(
        layer, x, cache_of(kind, layer, steps=total), chunks, mask if any(padding) else None
    )
    assert np.all(outputs[~mask] == 0)
    assert np.array_equal(cache["next"], mask.sum(1))
    for b in range(B):
        if padding[b] < total:
            alone = sample_alone(layer, x[b, padding[b] :], b)
            assert_allclose(outputs[b, padding[b] :], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_between_the_steps(rng, kind):
    """Prompts of two lengths, padded on the right; another padded turn; then steps."""
    layer = made("rotary", kind)
    lengths, x = np.array([[4, 2], [1, 3]]), draw(rng, steps=8)  # of the two turns, by sample
    cache, at, found = layer.start_cache(B, 12 if kind == "static" else None), [0, 0], [[], []]
    for turn in lengths:
        chunk, mask = np.full((B, 4, D), np.nan, "float32"), np.arange(4) < turn[:, None]
        for b in range(B):
            chunk[b, : turn[b]] = x[b, at[b] : at[b] + turn[b]]
        output, cache = layer(chunk, cache=cache, query_mask=mask, use_causal_mask=True)
        for b in range(B):
            found[b].extend(to_numpy(output[b, : turn[b]]))
            at[b] += turn[b]
    for _ in range(3):
        output, cache = layer(np.stack([x[b, at[b]] for b in range(B)]), cache=cache)
        for b in range(B):
            found[b].append(to_numpy(output[b]))
            at[b] += 1
    for b in range(B):
        close([np.array(found[b])], [expected(layer, x[b : b + 1, : at[b]], causal=True)[0][0]])


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype(rng, kind, dtype):
    layer = made("all", kind, dtype=dtype)
    x, exact_x = rounded(rng.normal(size=(B, T, D)), dtype)
    cache = cache_of(kind, layer)
    assert dtype_of(cache["keys"]) == dtype_of(cache["values"]) == dtype
    outputs, cache = in_chunks(layer, x, cache, [2, 0, 4])
    assert dtype_of(cache["keys"]) == dtype
    close([outputs], [expected(layer, exact_x, causal=True)[0]], dtype)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(rng, policy):
    layer = made("rotary", "static", dtype=policy)
    x = draw(rng)
    outputs, cache = in_chunks(layer, x, cache_of("static", layer), [0] * T)
    assert dtype_of(cache["keys"]) == layer.compute_dtype
    full = to_numpy(layer(x, use_causal_mask=True))
    limit = LIMITS[layer.compute_dtype]
    assert_allclose(outputs, full, rtol=limit, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_over_the_slots(rng, kind):
    """Of steps `[B, N, T, S]`, of one step `[B, N, S]`; 0 where a slot holds nothing."""
    layer, x = made("rotary", kind), draw(rng)
    cache = cache_of(kind, layer)
    full = to_numpy(layer(x, use_causal_mask=True, return_attention_scores=True)[1])
    slots = {"grown": [3, 4], "static": [T + 1] * 2, "rolling": [5, 3]}[kind]
    first = {"grown": 0, "static": 0, "rolling": -2}[kind]  # the step of the first slot
    for start, (step, size) in zip(
        (0, 3), ((x[:, :3], slots[0]), (x[:, 3], slots[1])), strict=True
    ):
        _, weights, cache = layer(
            step, cache=cache, use_causal_mask=True, return_attention_scores=True
        )
        weights = to_numpy(weights if start == 0 else weights[:, :, None])
        rows = range(start, start + weights.shape[2])
        assert weights.shape == (B, N, len(rows), size)
        for slot in range(size):
            s = slot + first + (start if kind == "rolling" else 0)
            wanted = full[:, :, rows, s] if 0 <= s < T else np.zeros((B, N, len(rows)))
            assert_allclose(weights[..., slot], wanted, atol=2e-6)


@pytest.mark.parametrize("kind", ["grown", "static"])
def test_a_prefix(rng, kind):
    """The prompt sees itself whole, what follows is causal."""
    layer, x = made("relative", kind), draw(rng)
    output, cache = layer(x[:, :4], cache=cache_of(kind, layer))
    outputs = [output]
    for t in range(4, T):
        output, cache = layer(x[:, t], cache=cache)
        outputs.append(output[:, None])
    full = layer(x, attention_mask=prefix_mask([4] * B, T))
    close([np.concatenate(outputs, 1)], [to_numpy(full)])


@pytest.mark.parametrize("kind", ["grown", "static"])
@pytest.mark.parametrize("name", ["rotary", "alibi", "all"])
def test_packed_documents(rng, name, kind):
    """Positions that are given, and a segment mask over the slots."""
    layer, x = made(name, kind), draw(rng)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 2, 2]])
    positions = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]])
    options = {"use_causal_mask": True}
    full = layer(x, attention_mask=segment_mask(segments), positions=positions, **options)
    cache, outputs = cache_of(kind, layer), []
    slots = np.pad(segments, ((0, 0), (0, 1)))
    for start, end in itertools.pairwise((0, 4, 5, T)):
        here = slots if kind == "static" else segments[:, :end]
        output, cache = layer(
            x[:, start:end],
            cache=cache,
            positions=positions[:, start:end],
            attention_mask=segment_mask(segments[:, start:end], here),
            **options,
        )
        outputs.append(output)
    close([np.concatenate(outputs, 1)], [to_numpy(full)])
    assert np.array_equal(cache["next"], [4, 2])
    assert np.array_equal(cache["positions"][:, :T], positions)


def test_a_key_that_a_mask_hides_may_hold_nan(rng):
    layer, x = made("rotary", "static"), draw(rng)
    poisoned = x.copy()
    poisoned[:, 1] = np.nan
    mask = np.arange(T + 1) != 1
    results = []
    for steps in (x, poisoned):
        _, cache = layer(steps[:, :3], cache=cache_of("static", layer), use_causal_mask=True)
        output, _ = layer(
            steps[:, 3], cache=cache, attention_mask=np.broadcast_to(mask, (B, T + 1))
        )
        results.append(to_numpy(output))
    np.testing.assert_array_equal(*results)
    assert np.all(np.isfinite(results))


# How much is kept


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_rolling_cache_does_not_grow(rng, window):
    layer, steps = make("rotary", sliding_window=window), 20
    x = draw(rng, steps=steps)
    cache, outputs = layer.start_cache(B, max_length=steps), []
    sizes = {name: x.shape for name, x in cache.items()}
    assert sizes["keys"] == (B, N, window - 1, H) and "length" not in sizes
    for t in range(steps):
        output, cache = layer(x[:, t], cache=cache)
        outputs.append(output)
        assert {name: x.shape for name, x in cache.items()} == sizes
    close([np.stack(outputs, 1)], [to_numpy(layer(x, use_causal_mask=True))])


def test_shapes_of_the_caches():
    """Grouped heads are kept once a group."""
    layer = make("none", groups=2, value_dim=5)
    grown, static = layer.start_cache(3), layer.start_cache(3, 8)
    assert grown["keys"].shape == (3, 2, 1, 0, H) and grown["values"].shape == (3, 2, 1, 0, 5)
    assert static["keys"].shape == (3, 2, 1, 8, H) and static["length"].shape == ()
    assert dtype_of(static["mask"]) == "bool" and static["positions"].shape == (3, 8)
    _, grown = layer(np.zeros((3, 4, D)), cache=grown)
    assert grown["keys"].shape == (3, 2, 1, 4, H) and set(grown) == set(static) - {"length"}
    short = make("window").start_cache(3, 2)  # fits inside of the window, which keeps 2 steps
    assert "length" in short and short["mask"].shape == (3, 2)


def test_positions_of_padding():
    cache = {"next": tensor([5, 0])}
    mask = tensor([[False, False, True, True], [True, True, False, True]])
    positions, following = next_positions(cache, mask, 4)
    assert to_numpy(positions).tolist() == [[5, 5, 5, 6], [0, 1, 1, 2]]
    assert to_numpy(following).tolist() == [7, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_no_samples_and_no_steps(rng, kind):
    layer = made("rotary", kind)
    output, cache = layer(np.zeros((0, 3, D)), cache=cache_of(kind, layer, batch=0))
    assert output.shape == (0, 3, D)
    x = draw(rng)
    _, cache = layer(x[:, :3], cache=cache_of(kind, layer), use_causal_mask=True)
    output, again = layer(x[:, :0], cache=cache, use_causal_mask=True)
    assert output.shape == (B, 0, D)
    for name, values in cache.items():
        np.testing.assert_array_equal(values, again[name])


# In graphs and loops


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.while_loop")
@pytest.mark.parametrize(("name", "kind"), [("rotary", "static"), ("all", "rolling")])
def test_a_while_loop(rng, mode, name, kind):
    """The cache goes through `tf.while_loop`, and through XLA, as it is."""
    layer, x = made(name, kind), draw(rng)

    def run(x):
        outputs = tf.TensorArray("float32", T - 3, element_shape=(B, D))
        prompt, cache = layer(x[:, :3], cache=cache_of(kind, layer), use_causal_mask=True)

        def body(t, cache, outputs):
            output, cache = layer(x[:, t], cache=cache)
            return t + 1, cache, outputs.write(t - 3, output)

        _, _, outputs = tf.while_loop(
            lambda t, *_: t < T, body, (3, cache, outputs), maximum_iterations=T
        )
        return ops.concatenate([prompt, ops.transpose(outputs.stack(), (1, 0, 2))], 1)

    close([MODES[mode](run)(tensor(x))], [expected(layer, x, causal=True)[0]])


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("kind", KINDS)
def test_unknown_sizes(rng, kind):
    """One graph for all batches and chunks."""
    layer = made("rotary", kind)
    start = cache_of(kind, layer)
    free = {name: [None] * len(x.shape) for name, x in start.items()}
    for name in ("keys", "values"):
        free[name] = [None, *start[name].shape[1:-2], None, H]
    spec = [
        tf.TensorSpec((None, None, D)),
        {name: tf.TensorSpec(free[name], x.dtype) for name, x in start.items()},
    ]
    call = tf.function(
        lambda x, cache: layer(x, cache=cache, use_causal_mask=True), input_signature=spec
    )
    for batch in (1, 3):
        x, cache, outputs = draw(rng, batch), cache_of(kind, layer, batch), []
        for first, last in ((0, 3), (3, 4), (4, T)):
            output, cache = call(x[:, first:last], cache)
            outputs.append(output)
        close([np.concatenate(outputs, 1)], [expected(layer, x, causal=True)[0]])
    if kind == "static":
        with pytest.raises(tf.errors.InvalidArgumentError, match="slots"):
            call(x[:, :2], cache)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_a_batch_size_that_is_a_tensor(rng):
    layer, x = made("rotary", "static"), draw(rng)
    call = tf.function(
        lambda x: layer(x, cache=layer.start_cache(ops.shape(x)[0], T), use_causal_mask=True)[0],
        input_signature=[tf.TensorSpec((None, T, D))],
    )
    close([call(x)], [expected(layer, x, causal=True)[0]])


def test_a_layer_that_is_built_by_its_first_step(rng):
    layer = MultiHeadAttention(N, H, position="relative", query_key_norm="layer")
    x = draw(rng)
    output, cache = layer(x[:, 0], cache=layer.start_cache(B))
    randomise(layer)
    outputs, _ = in_chunks(layer, x, layer.start_cache(B), [0] * T)
    close([outputs], [expected(layer, x, causal=True)[0]])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_go_through_the_cache(rng, kind):
    layer, x, out = made("all", kind), draw(rng), draw(rng)

    def gradients(function):
        found = differentiate(lambda x: function(x) * tensor(out), [x], layer.trainable_variables)
        return to_numpy(found)

    def chunked(x):
        first, cache = layer(x[:, :4], cache=cache_of(kind, layer), use_causal_mask=True)
        second, _ = layer(x[:, 4:], cache=cache, use_causal_mask=True)
        return ops.concatenate([first, second], 1)

    wanted = gradients(lambda x: layer(x, use_causal_mask=True))
    for found, full in zip(gradients(chunked), wanted, strict=True):
        assert_allclose(found, full, rtol=1e-3, atol=1e-4)
        assert np.any(full != 0)


# Search


def language(layer, rng):
    """A step over tokens with the cache, and one that reads all tokens so far anew."""
    table = rng.normal(size=(V, D)).astype("float32")
    output = rng.normal(size=(D, V)).astype("float32")

    def step(tokens, cache):
        hidden, cache = layer(ops.take(table, tokens, axis=0), cache=cache)
        return hidden @ output, cache

    def slow_step(tokens, state):
        ids, count = state
        ids = ops.where(ops.arange(ids.shape[1]) == count[:, None], tokens[:, None], ids)
        hidden = layer(ops.take(table, ids, axis=0), use_causal_mask=True)
        last = ops.take_along_axis(hidden, count[:, None, None], axis=1)[:, 0]
        return last @ output, [ids, count + 1]

    return step, slow_step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "search", "mode"),
    [
        ("rotary", "static", "greedy", "xla"),
        ("relative", "rolling", "greedy", "graph"),
        ("alibi", "static", "beam", "graph"),
        ("rotary", "rolling", "beam", "xla"),
    ],
)
def test_searches_find_what_they_find_without_a_cache(rng, name, kind, search, mode):
    """In one graph; beams are reordered, their caches with them."""
    layer, length = made(name, kind), 5
    step, slow_step = language(layer, rng)
    options = {"start_tokens": [1, 3], "end_token": None, "max_length": length}
    function = greedy_search
    if search == "beam":
        function, options = beam_search, {**options, "beam_width": 3, "num_results": 3}

    def fast():
        found = function(step, cache_of(kind, layer, steps=length), **options)
        return found.ids, found.scores

    ids, scores = MODES[mode](fast)()
    slow = [np.zeros((B, length), "int32"), np.zeros((B,), "int32")]
    wanted = function(slow_step, slow, **options)
    assert np.array_equal(ids, wanted.ids)
    assert_allclose(scores, wanted.scores, rtol=1e-4, atol=1e-4)
    rows = np.reshape(ids, (-1, length))
    assert len({tuple(row) for row in rows}) == len(rows)


def test_a_search_behind_prompts_of_different_lengths(rng):
    """The cache is filled with padded prompts, and goes into the beams."""
    layer = made("rotary", "rolling")
    step, _ = language(layer, rng)
    prompts, mask = draw(rng, steps=4), np.arange(4) >= np.array([[0], [2]])
    _, cache = layer(prompts, cache=layer.start_cache(B), query_mask=mask, use_causal_mask=True)
    options = {"end_token": None, "max_length": 5, "beam_width": 3}
    both = beam_search(step, cache, [1, 3], **options)
    for b, start in enumerate((0, 2)):
        _, cache = layer(
            prompts[b : b + 1, start:], cache=layer.start_cache(1), use_causal_mask=True
        )
        alone = beam_search(step, cache, [1 + 2 * b], **options)
        assert np.array_equal(both.ids[b], alone.ids[0])
        assert_allclose(both.scores[b], alone.scores[0], rtol=1e-4)


# Bad input


def refused(words, layer, x, error=ValueError, **arguments):
    with pytest.raises(error, match=f"(?s){words}"):
        layer(x, **arguments)


def test_caches_of_something_else():
    layer, x = make("none"), np.zeros((B, 3, D), "float32")
    cache = layer.start_cache(B, 8)
    keys = r"`cache` is of another layer or batch: its keys have shape \(2, 4, 8, 6\)"
    refused(rf"{keys}.*batch of 3", layer, np.zeros((3, 3, D)), cache=cache)
    other = MultiHeadAttention(N, H + 1)
    refused(rf"{keys}.*\(2, 4, 3, 7\)", other, x, cache=cache)
    refused(rf"{keys}.*\(2, 5, 3, 6\)", MultiHeadAttention(5, H), x, cache=cache)
    refused(rf"{keys}.*\(2, 2, 1, 3, 6\)", make("none", groups=2), x, cache=cache)
    other = make("none", value_dim=5)
    refused(r"its values have shape \(2, 4, 8, 6\).*\(2, 4, 3, 5\)", other, x, cache=cache)
    for wrong in (
        {name: values for name, values in cache.items() if name != "next"},
        {**cache, "more": cache["next"]},
        list(cache.values()),
        layer.precompute(x),
    ):
        refused("`cache` must be what `start_cache`.*'keys'.*Received", layer, x, cache=wrong)


def test_caches_of_another_window():
    x, layer = np.zeros((B, 3, D), "float32"), make("window")
    for cache in (make("none").start_cache(B), make("window", sliding_window=5).start_cache(B)):
        slots = cache["mask"].shape[1]
        refused(f"keeps {slots} steps.*`sliding_window` of 3 needs 2", layer, x, cache=cache)


def test_a_full_cache():
    layer, x = make("none"), np.zeros((B, 3, D), "float32")
    refused(r"2 slots \(`max_length`\).*0 steps.*3 more", layer, x, cache=layer.start_cache(B, 2))
    _, cache = layer(x, cache=layer.start_cache(B, 4))
    refused(r"4 slots.*3 steps.*3 more", layer, x, cache=cache)


@pytest.mark.tensorflow_only("errors that a graph raises when it runs")
def test_a_full_cache_in_a_graph():
    layer, x = make("none"), np.zeros((B, 3, D), "float32")
    _, cache = layer(x, cache=layer.start_cache(B, 4))
    step = tf.function(lambda x, cache: layer(x, cache=cache))
    refused("4 slots", step, x, tf.errors.InvalidArgumentError, cache=cache)
    _, cache = step(x[:, 0], cache)  # there is room for one
    refused("4 slots", step, x[:, 0], tf.errors.InvalidArgumentError, cache=cache)


def test_a_cache_and_other_sources():
    layer, x = make("none"), np.zeros((B, 3, D), "float32")
    cache = layer.start_cache(B)
    for more in (
        {"value": x},
        {"key": x},
        {"memory": layer.precompute(x)},
        {"value_mask": np.ones((B, 3), bool)},
        {"key_mask": np.ones((B, 3), bool)},
        {"key_positions": np.arange(3)},
    ):
        refused("`cache` is for self-attention", layer, x, cache=cache, **more)


def test_inputs_that_do_not_fit_a_cache():
    layer = make("none")
    cache, x = layer.start_cache(B, 8), np.zeros((B, 3, D), "float32")
    refused(r"`positions`.*T = 3.*\(4,\)", layer, x, cache=cache, positions=np.arange(4))
    refused("`positions`.*integers", layer, x, cache=cache, positions=np.zeros(3))
    mask = np.ones((B, 3, 3), bool)  # of the steps, not of the slots
    refused(r"`attention_mask`.*8.*\(2, 3, 3\)", layer, x, cache=cache, attention_mask=mask)
    refused(
        r"`query_mask`.*\(2, 3\).*\(2, 4\)", layer, x, cache=cache, query_mask=np.ones((B, 4)) > 0
    )
    axes = MultiHeadAttention(N, H, attention_axes=1)
    refused(r"\[B, T, D\].*\(2, 5, 3, 11\)", axes, np.zeros((B, 3, 5, D)), cache=cache)
    for length in (0, -1, 2.5, "8"):
        with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
            layer.start_cache(B, length)


def test_symbolic_shapes():
    """What a Functional model is told of outputs, weights and caches."""
    layer = make("rotary", groups=2)
    for kind, slots in (("grown", T + 4), ("static", 8)):
        start = layer.start_cache(B, 8 if kind == "static" else None)
        if kind == "grown":
            _, start = layer(np.zeros((B, T, D)), cache=start)
        cache = {name: keras.KerasTensor(x.shape, x.dtype) for name, x in start.items()}
        output, weights, cache = layer(
            keras.KerasTensor((B, 4, D)), cache=cache, return_attention_scores=True
        )
        assert output.shape == (B, 4, D) and weights.shape == (B, N, 4, slots)
        assert cache["keys"].shape == (B, 2, 1, slots, H) and dtype_of(cache["mask"]) == "bool"


# Beams that share a cache


@given(
    beams=st.integers(1, 4),
    steps=st.integers(1, 5),
    prompt=st.integers(0, 3),
    spare=st.integers(0, 2),
    static=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_a_beam_sees_its_own_past(beams, steps, prompt, spare, static, seed):
    """Slots P + s K + j: of the prompt, P of them, then of the steps s of each beam j."""
    rng = np.random.default_rng(seed)
    length = steps + spare
    origins = np.full((B, beams, length), -1, "int32")
    origins[:, :, : steps - 1] = rng.integers(0, beams, (B, beams, steps - 1))
    origins[:, :, steps - 1] = np.arange(beams)
    slots = prompt + (length if static else steps - 1) * beams
    cache = {"mask": ops.zeros((B, slots), "bool")} | ({"length": 0} if static else {})
    visible = to_numpy(own_past(cache, tensor(origins)))
    assert visible.shape == (B, beams, slots if static else slots + beams)
    for (b, k, slot), seen in np.ndenumerate(visible):
        s, j = divmod(slot - prompt, beams)
        assert seen == (slot < prompt or (s < steps and origins[b, k, s] == j))
