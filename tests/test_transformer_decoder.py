"""The stack of decoder blocks: the papers' numbers, causality, decoding with a cache, search."""

import copy
import itertools
import json

import keras
import numpy as np
import pytest
import reference_transformer as ref
from backend import assert_allclose, compiled, differentiate, tensor, to_numpy
from conftest import MODES
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from transformer_models import block_weights, norm_weights, randomise

from keras_attention.decoders.transformer import TransformerDecoder
from keras_attention.layers.outputs import attention_model, attention_scores_model
from keras_attention.layers.position_embedding import LearnedEmbedding, SinusoidalEmbedding
from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attention.search import beam_search, greedy_search

B, T, S, D, Dm, N, F, V = 2, 5, 7, 12, 10, 2, 13, 9

X_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
MEMORY_MASK = np.array([[1] * 7, [1, 1, 1, 0, 0, 0, 0]], bool)


def make(blocks=2, embedding=None, cross_attention=True, norm_first=True, dtype=None, **options):
    options = {"dropout": 0.0, "norm_first": norm_first, **options}
    layers = [
        TransformerDecoderBlock(N, F, cross_attention=cross_attention, dtype=dtype, **options)
        for _ in range(blocks)
    ]
    decoder = TransformerDecoder(layers, position_embedding=embedding, dtype=dtype)
    decoder.build((None, None, D), (None, None, Dm) if cross_attention else None)
    return randomise(decoder)


def draw(rng, dtype="float32", steps=T):
    return rng.normal(size=(B, steps, D)).astype(dtype), rng.normal(size=(B, S, Dm)).astype(dtype)


# The papers' numbers


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_the_stack_equals_the_papers(rng, norm_first, normalization):
    """With the sinusoidal encoding, masks and causality; the weights of each attention as well."""
    decoder = make(
        3,
        SinusoidalEmbedding(dtype="float64"),
        norm_first=norm_first,
        normalization=normalization,
        activation="gelu",
        dtype="float64",
    )
    x, memory = draw(rng, "float64")
    outputs, weights = decoder(
        x, memory, mask=X_MASK, memory_mask=MEMORY_MASK, return_attention_scores=True
    )
    angles = np.arange(T)[:, None] / 10_000.0 ** (2 * (np.arange(D) // 2) / D)
    encoding = np.where(np.arange(D) % 2, np.cos(angles), np.sin(angles))
    expected, scores = ref.stack(
        x + encoding,
        [block_weights(block) for block in decoder.blocks],
        "gelu",
        norm_first,
        ref.full_mask(X_MASK, X_MASK, causal=True),
        memory,
        ref.full_mask(X_MASK, MEMORY_MASK),
        norm_weights(decoder.norm, 1e-5) if norm_first else None,
    )
    assert_allclose(outputs[X_MASK], expected[X_MASK], rtol=1e-10, atol=1e-10)
    assert list(weights) == [f"block_{n}/{part}" for n in (1, 2, 3) for part in ("self", "cross")]
    for found, wanted in zip(weights.values(), itertools.chain(*scores), strict=True):
        assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
    assert_allclose(
        decoder(x, memory, mask=X_MASK, memory_mask=MEMORY_MASK), outputs, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("position", [None, "rotary", "alibi", "relative"])
def test_no_step_sees_a_later_one(rng, position):
    """Exactly: through three blocks, with each kind of position, and backwards as well."""
    decoder = make(3, attention_options={"position": position})
    x, memory = draw(rng)
    before = np.asarray(decoder(x, memory))
    for t in range(1, T):
        changed = x.copy()
        changed[:, t:] = 5.0 * rng.normal(size=changed[:, t:].shape)
        assert np.array_equal(np.asarray(decoder(changed, memory))[:, :t], before[:, :t])
    (gradient,) = to_numpy(differentiate(lambda x: decoder(x, memory)[:, 2] ** 2, [x]))
    assert (gradient[:, 3:] == 0).all()
    assert np.abs(gradient[:, :3]).min(axis=-1).max() > 0


# Step by step


def in_steps(decoder, x, memory, max_length=None, memory_mask=None):
    """Outputs of `step` for each token in turn, and the weights of the last block."""
    projected = memory if memory is None else decoder.precompute(memory, memory_mask)
    state = decoder.start_state(projected, max_length=max_length, batch_size=B)
    outputs, weights = [], []
    for t in range(x.shape[1]):
        output, *found, state = decoder.step(x[:, t], state, projected, memory is not None)
        outputs.append(output)
        weights += found
    return np.stack(outputs, 1), np.stack(weights, 1) if weights else None


OPTIONS = {
    "no position": {},
    "post-norm": {"norm_first": False, "activation": "swiglu", "normalization": "rms"},
    "sinusoidal": {"embedding": SinusoidalEmbedding},
    "learned": {"embedding": lambda: LearnedEmbedding(20)},
    "rotary": {"attention_options": {"position": "rotary"}},
    "alibi": {"attention_options": {"position": "alibi"}},
    "relative": {"attention_options": {"position": "relative"}},
    "window": {"attention_options": {"sliding_window": 3}},
    "window, rotary, groups": {
        "attention_options": {"sliding_window": 3, "position": "rotary", "num_key_value_heads": 1}
    },
    "cap, norm": {"attention_options": {"logit_soft_cap": 3.0, "query_key_norm": "rms"}},
}


def made(case, **more):
    options = {**OPTIONS[case], **more}
    if "embedding" in options:
        options["embedding"] = options["embedding"]()
    return make(**options)


DECODERS = {case: made(case) for case in OPTIONS}


@pytest.mark.parametrize("max_length", [None, 6])
@pytest.mark.parametrize("case", OPTIONS)
def test_steps_equal_the_full_pass(rng, case, max_length):
    decoder = DECODERS[case]
    x, memory = draw(rng, steps=6)
    expected, scores = decoder(x, memory, memory_mask=MEMORY_MASK, return_attention_scores=True)
    outputs, weights = in_steps(decoder, x, memory, max_length, MEMORY_MASK)
    assert_allclose(outputs, expected, rtol=2e-5, atol=2e-5)
    mean = np.mean(scores["block_2/cross"], axis=1)
    assert_allclose(weights, mean, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", OPTIONS)
def test_prompts_padded_on_the_left(rng, case):
    """Prompts of two lengths at once, then step by step: as each alone, in one pass."""
    decoder = made(case, cross_attention=False)
    x, _ = draw(rng, steps=7)
    lengths, prompt = (4, 2), 4
    padded = np.full((B, prompt, D), np.nan, "float32")
    for b, length in enumerate(lengths):
        padded[b, prompt - length :] = x[b, :length]
    mask = np.arange(prompt) >= prompt - np.array(lengths)[:, None]
    for max_length in (None, 7):
        state = decoder.start_state(max_length=max_length, batch_size=B)
        output, state = decoder.step(padded, state, mask=mask)
        outputs = [output]
        for t in range(3):
            token = np.stack([x[b, length + t] for b, length in enumerate(lengths)])
            output, state = decoder.step(token, state)
            outputs.append(output[:, None])
        found = np.concatenate(outputs, 1)
        for b, length in enumerate(lengths):
            alone = decoder(x[b : b + 1, : length + 3])[0]
            assert_allclose(found[b, prompt - length :], alone, rtol=2e-5, atol=2e-5)
        # The same padding without a cache, positions told.
        if case != "no position" and max_length is None:
            positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
            full = np.asarray(decoder(padded, mask=mask, positions=positions))
            assert_allclose(full[mask], found[:, :prompt][mask], rtol=2e-5, atol=2e-5)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    case=st.sampled_from(sorted(OPTIONS)),
    parts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    fixed=st.booleans(),
    lengths=st.lists(st.integers(1, S), min_size=B, max_size=B),
)
def test_any_division_into_steps(seed, case, parts, fixed, lengths):
    decoder = DECODERS[case]
    rng = np.random.default_rng(seed)
    total = sum(parts)
    x, memory = draw(rng, steps=total)
    memory_mask = np.arange(S) < np.array(lengths)[:, None]
    projected = decoder.precompute(memory, memory_mask)
    state = decoder.start_state(projected, max_length=total if fixed else None)
    outputs, ends = [], np.cumsum(parts)
    for start, end in zip(ends - parts, ends, strict=True):
        output, state = decoder.step(x[:, start:end], state, projected)
        outputs.append(output)
    expected = decoder(x, memory, memory_mask=memory_mask)
    assert_allclose(np.concatenate(outputs, 1), expected, rtol=2e-5, atol=2e-5)


def test_the_cache_of_a_window_does_not_grow(rng):
    """Of steps that no later one will see, nothing is kept."""
    decoder = DECODERS["window"]
    x, memory = draw(rng, steps=6)
    projected = decoder.precompute(memory)
    state = decoder.start_state(projected)
    sizes = []
    for t in range(6):
        _, state = decoder.step(x[:, t], state, projected)
        sizes.append(state[0]["keys"].shape)
    assert set(sizes) == {(B, N, 2, D // N)}


@pytest.mark.parametrize("policy", ["float64", "mixed_float16", "mixed_bfloat16"])
def test_steps_in_other_dtypes(rng, policy):
    decoder = make(2, attention_options={"position": "rotary"}, dtype=policy)
    x, memory = draw(rng, "float64", steps=6)
    expected = decoder(x, memory)
    outputs, weights = in_steps(decoder, x, memory, 6)
    limit = {"float64": 1e-11, "mixed_float16": 2e-2, "mixed_bfloat16": 1e-1}[policy]
    assert_allclose(
        to_numpy(outputs).astype(float), to_numpy(expected).astype(float), rtol=limit, atol=limit
    )
    assert weights.shape == (B, 6, S)


def test_a_step_takes_a_keras_mask_for_no_padding(rng):
    """The id 0 may be put into a step: behind the end of an output, say."""
    decoder, (x, memory) = DECODERS["rotary"], draw(rng)
    projected = decoder.precompute(memory)
    token = tensor(x[:, 0])
    token._keras_mask = tensor([False, True])
    output, _ = decoder.step(token, decoder.start_state(projected), projected)
    assert_allclose(output, decoder(x[:, :1], memory)[:, 0], rtol=2e-5, atol=2e-5)
    # A memory that is not projected yet is projected here.
    again, _ = decoder.step(x[:, 0], decoder.start_state(projected), memory)
    assert_allclose(again, output, rtol=2e-5, atol=2e-5)


# Search


def language(decoder, seed=3):
    """A step over tokens with the cache, and one that reads all tokens so far anew."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(V, D)).astype("float32")
    output = rng.normal(size=(D, V)).astype("float32")

    def step(tokens, state, memory):
        hidden, weights, state = decoder.step(
            keras.ops.take(table, tokens, axis=0), state, memory, True
        )
        return hidden @ output, weights, state

    def slow_step(tokens, state, memory):
        ids, count = state
        here = ops.arange(ids.shape[1]) == count[:, None]
        ids = ops.where(here, tokens[:, None], ids)
        x = keras.ops.take(table, ids, axis=0)
        hidden = decoder(x, memory[0], memory_mask=memory[1])  # causal: later ids are not seen
        hidden = ops.take_along_axis(hidden, count[:, None, None], axis=1)[:, 0]
        return hidden @ output, [ids, count + 1]

    return step, slow_step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "search"),
    [
        ("relative", "greedy"),
        ("rotary", "beam"),
        ("sinusoidal", "beam"),
        ("window, rotary, groups", "beam"),
    ],
)
def test_searches_with_the_cache_find_what_those_without_find(rng, case, search):
    """Beams are reordered, their caches with them."""
    decoder, length = DECODERS[case], 5
    _, memory = draw(rng)
    step, slow_step = language(decoder)
    projected = decoder.precompute(memory, MEMORY_MASK)
    options = {"start_tokens": [1, 1], "end_token": 2, "max_length": length}
    function = greedy_search
    if search == "beam":
        function = beam_search
        options |= {"beam_width": 3, "num_results": 3, "min_length": 3}

    def fast():
        state = decoder.start_state(projected, max_length=length)
        return function(step, state, memory=projected, **options)

    in_graph = case.startswith("window")
    found = compiled(fast)() if in_graph else fast()
    state = [np.zeros((B, length), "int32"), np.zeros((B,), "int32")]
    expected = function(slow_step, state, memory=(memory, MEMORY_MASK), **options)
    assert np.array_equal(found.ids, expected.ids)
    assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
    assert len({tuple(row) for row in np.reshape(found.ids, (-1, length))}) > 1
    if search == "beam":
        assert len({tuple(row) for row in to_numpy(found.ids[0])}) == 3
    assert found.attention_scores.shape[-2:] == (length, S)


def beams_of(decoder, cross_attention=True, prompt=0):
    """A beam search as a function of its options; the decoder's beams share a cache, or do not."""
    rng = np.random.default_rng(4)
    table = tensor(3 * rng.normal(size=(V, D)), "float32")
    output = tensor(rng.normal(size=(D, V)), "float32")
    _, memory = draw(rng)

    def search(reorder_state, grow, width=3, length=6):
        projected, slots = None, prompt + length * (1 if reorder_state else width)
        if cross_attention:
            projected = decoder.precompute(memory, MEMORY_MASK)
        state = decoder.start_state(projected, None, None if grow else slots, B)
        if prompt:  # two of them, padded on the left
            before, mask = (
                ops.take(table, [[4, 5, 6, 7], [0, 0, 8, 3]], axis=0),
                [[1] * 4, [0, 0, 1, 1]],
            )
            _, state = decoder.step(before, state, projected, mask=np.array(mask, bool))

        def step(tokens, state, memory=None, **origins):
            hidden = keras.ops.take(table, tokens, axis=0)
            hidden, *rest = decoder.step(hidden, state, memory, cross_attention, **origins)
            return hidden @ output, *rest

        options = {"beam_width": width, "num_results": width, "min_length": 3}
        options |= {"memory": projected, "reorder_state": reorder_state}
        found = beam_search(step, state, [1, 1], 2, length, **options)
        return [x for x in found if x is not None]

    return search


SHARING = [case for case in OPTIONS if DECODERS[case].keeps_beams]


@pytest.mark.parametrize(
    ("case", "grow"),
    [
        pytest.param(case, grow, marks=() if n % 4 == 2 * grow else pytest.mark.slow)
        for n, case in enumerate(SHARING)
        for grow in (False, True)
    ],
)
def test_beams_that_share_a_cache_find_what_copies_find(case, grow):
    search = beams_of(DECODERS[case])
    expected = search(True, False)
    found = compiled(lambda: search(False, grow))()
    assert np.array_equal(found[0], expected[0])
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    # Beams do change places; else nothing was tried.
    first = np.asarray(found[0])[:, :, 0]
    assert len(np.unique(first)) < first.size


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize("case", ["alibi", "relative"])
def test_beams_share_a_prompt(case, grow):
    search = beams_of(made(case, cross_attention=False), False, prompt=4)
    expected, found = search(True, False), search(False, grow)
    assert np.array_equal(found[0], expected[0])
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_beams_that_share_a_cache_under_xla():
    search = beams_of(DECODERS["rotary"])
    expected = search(True, False)
    found = compiled(lambda: search(False, False), jit_compile=True)()
    assert np.array_equal(found[0], expected[0])
    assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-4)


def test_origins_that_do_not_fit(rng):
    decoder, (x, memory) = DECODERS["rotary"], draw(rng)
    projected = decoder.precompute(memory)
    state, origins = decoder.start_state(projected, max_length=12), np.zeros((B, 3, 4), "int32")
    for inputs in (x[:, 0], x[:, :2]):
        with pytest.raises(ValueError, match=r"`origins` \[B, K, L\] needs `inputs` \[B, K, D\]"):
            decoder.step(inputs, state, projected, origins=origins)
    window = DECODERS["window, rotary, groups"]
    assert not window.keeps_beams
    projected = window.precompute(memory)
    with pytest.raises(ValueError, match="`origins`.*`sliding_window` drops old steps"):
        window.step(x[:, :3], window.start_state(projected), projected, origins=origins)


@pytest.mark.slow
def test_a_loop_compiled_by_xla(rng, mode):
    decoder = DECODERS["rotary"]
    _, memory = draw(rng)
    step, _ = language(decoder)

    def run(memory):
        projected = decoder.precompute(memory)
        state = decoder.start_state(projected, max_length=4)
        found = greedy_search(step, state, [1, 1], 2, 4, memory=projected)
        return found.ids, found.scores

    ids, scores = to_numpy(MODES[mode](run)(tensor(memory)))
    expected = run(tensor(memory))
    assert np.array_equal(ids, expected[0])
    assert_allclose(scores, expected[1], rtol=1e-5, atol=1e-5)


# Keras around the stack


def test_in_a_functional_model(rng, tmp_path):
    """Encoder and decoder with masks from embeddings; saved, loaded, copied; weights by name."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embed_source, embed = (keras.layers.Embedding(V, D, mask_zero=True) for _ in "ab")
    memory = embed_source(source)
    for number in (1, 2):
        memory = TransformerEncoderBlock(N, F, name=f"encoder_{number}")(memory)
    decoder = TransformerDecoder(
        [TransformerDecoderBlock(N, F, norm_first=True, normalization="rms") for _ in "ab"],
        position_embedding=SinusoidalEmbedding(),
        dropout=0.1,
        name="decoder",
    )
    x = decoder(embed(target), memory)
    model = keras.Model([source, target], keras.layers.Dense(V)(x))
    ids = [np.array([[1, 2, 3, 0], [4, 5, 6, 7]]), np.array([[1, 2, 0], [3, 4, 5]])]
    expected = model(ids)
    scores = attention_scores_model(model)(ids)
    assert sorted(scores) == [
        *(f"decoder/block_{n}/{part}" for n in (1, 2) for part in ("cross", "self")),
        "encoder_1/self",
        "encoder_2/self",
    ]
    source_mask, target_mask = ids[0] != 0, ids[1] != 0
    for name, weights in scores.items():
        queries = source_mask if name.startswith("encoder") else target_mask
        keys = queries if name.endswith("self") else source_mask
        real = np.repeat(queries[:, None, :, None] & keys[:, None, None, :], N, axis=1)
        weights = np.asarray(weights)
        assert (weights[~real] == 0).all(), name
        assert_allclose(weights.sum(-1), np.repeat(queries[:, None], N, 1), rtol=1e-5)
    outputs, weights = attention_model(model, "decoder/block_2/cross")(ids)
    assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)
    assert_allclose(weights, scores["decoder/block_2/cross"], rtol=1e-6, atol=1e-6)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    for other in (loaded, copied, copy.deepcopy(model)):
        assert_allclose(other(ids), expected, rtol=1e-6, atol=1e-6)


def test_config(rng):
    decoder = TransformerDecoder(
        [
            TransformerDecoderBlock(N, F, attention_options={"position": "rotary"}, seed=n)
            for n in (1, 2)
        ],
        position_embedding=LearnedEmbedding(9),
        dropout=0.1,
        seed=4,
    )
    config = json.loads(json.dumps(decoder.get_config()))
    decoder.build((None, None, D), (None, None, Dm))
    for name in ("dropout", "seed", "name"):
        assert decoder.get_config()[name] == config[name]
    assert [json.loads(json.dumps(block.get_config())) for block in decoder.blocks] == [
        block["config"] for block in config["blocks"]
    ]
    other = TransformerDecoder.from_config(config)
    other.build((None, None, D), (None, None, Dm))
    other.set_weights(randomise(decoder).get_weights())
    x, memory = draw(rng)
    assert np.array_equal(other(x, memory), decoder(x, memory))
    assert np.array_equal(other(x, memory, training=True), decoder(x, memory, training=True))
    assert not np.array_equal(decoder(x, memory, training=True), decoder(x, memory))
    assert decoder.attention is decoder.blocks[-1].cross_attention
    assert decoder.compute_output_shape(x.shape, memory.shape) == x.shape


# Bad input


def test_bad_blocks():
    encoder = TransformerEncoderBlock(N, F)
    for blocks in ([], [encoder], None, keras.layers.Dense(3)):
        with pytest.raises(ValueError, match="`blocks` must be a list of TransformerDecoderBlock"):
            TransformerDecoder(blocks)
    mixed = [TransformerDecoderBlock(N, F, cross_attention=cross) for cross in (True, False)]
    with pytest.raises(ValueError, match=r"must all have cross-attention.*\[True, False\]"):
        TransformerDecoder(mixed)
    with pytest.raises(ValueError, match="`dropout` must lie"):
        TransformerDecoder([TransformerDecoderBlock(N, F)], dropout=2)


def test_bad_steps(rng):
    decoder, (x, memory) = DECODERS["rotary"], draw(rng)
    projected = decoder.precompute(memory)
    state = decoder.start_state(projected)
    with pytest.raises(ValueError, match="`state` must be .* a list of 2 caches.*Received: 1"):
        decoder.step(x[:, 0], state[:1], projected)
    with pytest.raises(ValueError, match="`state` must be .* Received: dict"):
        decoder.step(x[:, 0], state[0], projected)
    with pytest.raises(ValueError, match="`cache` must be what `start_cache`"):
        decoder.step(x[:, 0], [{}, {}], projected)
    with pytest.raises(ValueError, match="`state` is of 2 samples.*1"):
        decoder.step(x[:1, 0], state, [tuple(y[:1] for y in one) for one in projected])
    with pytest.raises(ValueError, match="`cache` is of another layer or batch"):
        decoder.step(x[:, 0], DECODERS["window, rotary, groups"].start_state(projected), projected)
    with pytest.raises(ValueError, match="needs either `memory`.*neither"):
        decoder.step(x[:, 0], state)
    with pytest.raises(ValueError, match="must be built first"):
        TransformerDecoder([TransformerDecoderBlock(N, F)]).start_state(projected)
    with pytest.raises(ValueError, match="`batch_size` must be given"):
        decoder.start_state()
    with pytest.raises(ValueError, match="3 slots .*too few for 3 steps in it and 2 more"):
        full = decoder.start_state(projected, max_length=3)
        _, full = decoder.step(x[:, :3], full, projected)
        decoder.step(x[:, 3:], full, projected)
    alone = made("rotary", cross_attention=False)
    state = alone.start_state(batch_size=B)
    with pytest.raises(ValueError, match="takes no memory"):
        alone.step(x[:, 0], state, projected)
    with pytest.raises(ValueError, match="`return_attention_scores`: there is no attention"):
        alone.step(x[:, 0], state, return_attention_scores=True)
