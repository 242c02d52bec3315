"""What must hold on each of Keras's backends; `make test-backends` runs it on JAX and PyTorch."""

import keras
import numpy as np
import pytest
import reference as ref
from keras import ops

from keras_attention import (
    BahdanauAttention,
    LuongAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    attend,
    fused,
    segment_mask,
)
from keras_attention.losses import MaskedCrossEntropy
from keras_attention.models.language_model import causal_lm
from keras_attention.models.seq2seq import seq2seq
from keras_attention.models.transformer import transformer
from keras_attention.pairs import Pairs
from keras_attention.scores import DotProduct

B, T, S, D = 2, 5, 7, 8
QUERY_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]], bool)
VALUE_MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0, 1]], bool)
NOBODY = np.array([[1] * 7, [0] * 7], bool)  # a sample in which nothing may be attended


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


def close(found, expected, limit=2e-5):
    np.testing.assert_allclose(array(found), expected, rtol=limit, atol=limit)


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


CALLS = {
    "plain": {},
    "causal": {"use_causal_mask": True},
    "causal, padding": {"use_causal_mask": True, "value_mask": VALUE_MASK},
    "query mask": {"query_mask": QUERY_MASK},
    "nobody": {"value_mask": NOBODY},
    "pairs": {"attention_mask": np.arange(7) % 2 == np.arange(5)[:, None] % 2},
}


@pytest.mark.parametrize("scores", [False, True], ids=["", "with weights"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("groups", [None, 1])
def test_multi_head_attention_equals_the_paper(groups, call, scores):
    """By the backend's own attention (without weights), and by ours."""
    layer = MultiHeadAttention(4, 3, num_key_value_heads=groups)
    query, value, options = draw(B, T, D), draw(B, S, D), dict(CALLS[call])
    if "attention_mask" in options:
        options["attention_mask"] = np.broadcast_to(options["attention_mask"], (B, T, S))
    found = layer(query, value, return_attention_scores=scores, **options)
    output, weights = found if scores else (found, None)
    mask = ref.layer_mask(
        B, T, S,
        causal=options.get("use_causal_mask", False),
        **{k: v for k, v in options.items() if k.endswith("_mask") and k != "use_causal_mask"},
    )  # fmt: skip
    dense = {"query": layer.query_dense, "key": layer.key_dense, "value": layer.value_dense}
    dense["output"] = layer.output_dense
    kernels = {name: array(x.kernel) for name, x in dense.items()}
    biases = {name: array(x.bias) for name, x in dense.items()}
    expected, expected_weights = ref.multi_head_attention(
        query, value, value, kernels, biases, mask
    )
    expected[~mask.any(-1)] = 0  # not the output bias
    close(output, expected)
    if scores:
        close(weights, expected_weights)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("what", ["", "columns", "rows", "mask", "causal", "window", "all"])
def test_the_backends_attention_equals_the_equation(what, square):
    steps, keys = T, T if square else S
    query, key, value = draw(B, 2, steps, 3), draw(B, 2, keys, 3), draw(B, 2, keys, 3) + 1
    kinds = {"columns", "rows", "mask", "causal", "window"} if what == "all" else {what}
    rng = np.random.default_rng(1)
    mask, options = np.ones((B, 2, steps, keys), bool), {"sizes": (steps, keys)}
    for name, shape in {
        "columns": (B, 1, 1, keys), "rows": (B, 1, steps, 1), "mask": (B, 2, steps, keys),
    }.items():  # fmt: skip
        if name in kinds:
            options[name] = rng.random(shape) < 0.5
            mask &= options[name]
    if "causal" in kinds:
        options["causal"] = True
        mask &= ref.causal_mask(steps, keys)
    if "window" in kinds:
        options["window"] = 2
        mask &= ref.window_mask(steps, keys, window=2)
    found = fused.dot_attention(query, key, value, 0.6, Pairs(**options))
    weights = ref.masked_softmax(0.6 * np.einsum("bntd,bnsd->bnts", query, key), mask)
    close(found, np.einsum("bnts,bnsd->bntd", weights, value))


def test_when_the_backends_attention_fits():
    x, pairs = draw(B, 2, T, 3), Pairs()
    own = keras.backend.backend() in ("jax", "torch")
    assert fused.fits(x, x, x, DotProduct(1.0), pairs, 0.0) == own
    for product, more, dropout, value in (
        (None, pairs, 0.0, x),
        (DotProduct(1.0, 5.0), pairs, 0.0, x),
        (DotProduct(1.0), pairs._replace(bias=x), 0.0, x),
        (DotProduct(1.0), pairs, 0.5, x),
        (DotProduct(1.0), pairs, 0.0, draw(B, 2, T, 4)),
        (DotProduct(1.0), pairs, 0.0, x[0]),
    ):
        assert not fused.fits(x, x, value, product, more, dropout)


def test_packed_documents():
    x = draw(B, 2, 6, 3)
    output = array(attend(x, x, x, mask=segment_mask([[0, 0, 1, 1, 1, 1]] * B)[:, None]))
    close(output[:, :, :2], array(attend(x[:, :, :2], x[:, :, :2], x[:, :, :2])))
    close(output[:, :, 2:], array(attend(x[:, :, 2:], x[:, :, 2:], x[:, :, 2:])))


LAYERS = {
    "bahdanau": lambda: BahdanauAttention(6),
    "bahdanau, normalised": lambda: BahdanauAttention(6, normalize=True),
    "dot": lambda: LuongAttention("dot"),
    "general": lambda: LuongAttention("general"),
    "concat": lambda: LuongAttention("concat", units=6),
    "scaled dot": lambda: ScaledDotProductAttention(),
    "sparsemax": lambda: ScaledDotProductAttention(normalizer="sparsemax"),
    "heads": lambda: MultiHeadAttention(2, 4),
    "rotary": lambda: MultiHeadAttention(2, 4, position="rotary"),
    "alibi": lambda: MultiHeadAttention(2, 4, position="alibi"),
    "relative": lambda: MultiHeadAttention(2, 4, position="relative"),
    "window": lambda: MultiHeadAttention(2, 4, sliding_window=9),
}


@pytest.mark.parametrize("name", LAYERS)
def test_masked_keys_are_as_if_they_were_not_there(name):
    """NaN in them as well; and one step is as a sequence of one."""
    layer = LAYERS[name]()
    query, value = draw(B, 1, D), draw(B, S, D)
    mask = np.arange(S) < 4
    expected, weights = layer(query, value[:, :4], return_attention_scores=True)
    spoiled = np.where(mask[:, None], value, np.nan)
    options = {"value_mask": np.stack([mask] * B)}
    if name not in ("bahdanau", "bahdanau, normalised", "dot", "general", "concat"):
        if name in ("rotary", "alibi", "relative", "window"):
            options["positions"] = np.array([3])
        found, seen = layer(query, spoiled, return_attention_scores=True, **options)
        close(array(seen)[..., :4], array(weights))
        assert (array(seen)[..., 4:] == 0).all()
        close(layer(query, spoiled, **options), array(expected))
    else:
        found = layer(query, spoiled, **options)
    close(found, array(expected))
    options.pop("positions", None)
    one = layer(query[:, 0], value)
    close(one, array(layer(query, value))[:, 0])


@pytest.mark.parametrize("max_length", [None, T])
@pytest.mark.parametrize("name", ["heads", "rotary", "alibi", "relative", "window"])
def test_the_cache_equals_the_full_pass(name, max_length):
    layer, x = LAYERS[name](), draw(B, T, D)
    expected = array(layer(x, use_causal_mask=True))
    cache = layer.start_cache(B, max_length)
    first, cache = layer(x[:, :3], cache=cache, use_causal_mask=True)
    close(first, expected[:, :3])
    for t in (3, 4):
        step, cache = layer(x[:, t], cache=cache, use_causal_mask=True)
        close(step, expected[:, t])


def greedy_by_hand(logits_of, length):
    ids = [1]
    for _ in range(length):
        logits = logits_of(ids).copy()
        logits[:2] = -np.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == 2:
            break
    return ids[1:] + [0] * (length + 1 - len(ids))


@pytest.mark.parametrize("kind", ["transformer", "seq2seq"])
def test_models_train_and_search(kind):
    keras.utils.set_random_seed(1)
    if kind == "transformer":
        model = transformer(9, 9, layers=1, units=16, num_heads=2, dropout=0.0)
    else:
        model = seq2seq(9, 9, units=16)
    rng = np.random.default_rng(0)
    source = rng.integers(3, 9, (32, 4))
    target = np.concatenate([np.ones((32, 1), int), source], 1)
    labels = np.concatenate([source, np.full((32, 1), 2)], 1)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossEntropy())
    history = model.fit([source, target], labels, epochs=12, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]
    found = array(model.search(source[:2], max_length=4).ids)

    def logits_of(ids):
        return array(model([source[1:2], np.array([ids])], training=False))[0, -1]

    np.testing.assert_array_equal(found[1], greedy_by_hand(logits_of, 4))
    beams = model.search(source[:2], max_length=4, beam_width=3, num_results=2)
    scores = array(beams.scores)
    assert (np.diff(scores, axis=1) <= 0).all() and (scores[:, 0] > -np.inf).all()
    for row, n in np.ndindex(2, 2):
        ids = [int(x) for x in array(beams.ids)[row, n] if x]
        logits = array(model([source[row : row + 1], np.array([[1, *ids[:-1]]])], training=False))
        gains = [ref.log_softmax(x)[i] for x, i in zip(logits[0], ids, strict=True)]
        close(scores[row, n], sum(gains), 1e-4)


def test_a_language_model():
    keras.utils.set_random_seed(1)
    model = causal_lm(9, layers=2, units=16, num_heads=2, position="alibi")
    ids = np.array([[0, 0, 5], [4, 6, 3]])  # padded on the left
    found = array(model.search(ids, max_length=4).ids)
    alone = array(model.search(ids[:1, 2:], max_length=4).ids)
    np.testing.assert_array_equal(found[:1], alone)
    beams = model.search(ids, max_length=4, beam_width=2)
    assert array(beams.ids).shape == (2, 1, 4)
