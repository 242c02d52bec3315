"""Whole transformers, encoder and decoder: the papers' numbers, search, translation, training."""

import keras
import numpy as np
import pytest
import reference_models as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, tensor, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_seq2seq import words
from transformer_models import model_weights, policy, randomise, unmoved

from keras_attention import (
    AttentionCallback,
    CharacterTokenizer,
    MaskedCrossEntropy,
    TranslationMetric,
    attention_scores_model,
    text_batches,
)
from keras_attention.layers.sink import SinkSoftmax
from keras_attention.models.epochs import EpochCounter
from keras_attention.models.transformer import Transformer, transformer
from keras_attention.positions import RotaryPosition

LETTERS = CharacterTokenizer.fit(["abcdef"])
V = LETTERS.size
SOURCE = np.array([[4, 5, 6, 7, 2], [8, 4, 2, 0, 0], [6, 2, 0, 0, 0]])
TARGET = np.array([[1, 4, 5, 6], [1, 7, 7, 0], [1, 6, 0, 0]])
LABELS = np.roll(TARGET, -1, axis=1)


@keras.saving.register_keras_serializable(package="tests")
def nearer(scores, batch, head, query_index, key_index):
    """A user's function of scores."""
    return scores - 0.1 * keras.ops.cast(keras.ops.abs(query_index - key_index), scores.dtype)


CASES = {
    "sinusoidal": {},
    "learned": {"position": "learned", "max_length": 8},
    "rotary": {"position": "rotary"},
    "alibi": {"position": "alibi", "layers": 2},
    "relative": {"position": "relative"},
    "no position": {"position": None},
    "post-norm": {"norm_first": False, "activation": "gelu", "layers": 2, "decoder_layers": 1},
    "rms, swiglu": {"normalization": "rms", "activation": "swiglu", "position": "rotary"},
    "untied": {"tied_embeddings": False},
    "all tied": {"tied_embeddings": "all"},
    "window": {"attention_options": {"sliding_window": 2}},
    "groups": {
        "position": "rotary",
        "attention_options": {"num_key_value_heads": 1, "sliding_window": 3},
    },
}
# What the reference does not have.
OTHERS = {
    "pieces": {
        "attention_options": {
            "position": RotaryPosition(base=100.0, fraction=0.5),
            "normalizer": SinkSoftmax("ones"),
            "score_modifier": nearer,
            "query_key_norm": "rms",
            "logit_soft_cap": 4.0,
        }
    }
}
EACH = pytest.mark.parametrize("case", CASES)


def make(case="sinusoidal", scale=0.4, dtype="float64", source=V, target=V, **options):
    """A small model with random weights; by default in float64."""
    with policy(dtype):
        sizes = {"layers": 1, "units": 8, "num_heads": 2, "feedforward_size": 11}
        model = transformer(source, target, **{**sizes, **{**CASES, **OTHERS}[case], **options})
    return randomise(model, scale=scale)


MODELS = {}


def model_of(case):
    """One model for all tests that do not change it."""
    if case not in MODELS:
        tied = CASES.get(case, {}).get("tied_embeddings")
        MODELS[case] = make(case, target=V - 1 if tied == "all" else V)
    return MODELS[case]


@pytest.fixture
def eager():
    """Searches without making graphs, which takes seconds each; the other tests make them."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def real(ids):
    return np.asarray(ids) != 0


def log_softmax(model, source, target):
    return np.asarray(keras.ops.log_softmax(model([source, target], training=False)))


# The papers' numbers


@EACH
def test_logits_equal_the_papers(case):
    model, options = model_of(case), CASES[case]
    expected = ref.transformer(
        SOURCE,
        TARGET,
        model_weights(model),
        options.get("activation", "relu"),
        options.get("norm_first", True),
        options.get("position", "sinusoidal"),
        options.get("attention_options", {}).get("sliding_window"),
    )
    logits = np.asarray(model([SOURCE, TARGET], training=False))
    assert logits.shape == (3, 4, model.output_shape[-1])
    assert_allclose(logits[real(TARGET)], expected[real(TARGET)], rtol=1e-9, atol=1e-9)


def test_options_change_what_they_say():
    """So that the comparisons above could not pass on a model that ignores them."""
    one = {case: np.asarray(model_of(case)([SOURCE, TARGET])) for case in CASES}
    same_shape = [case for case in CASES if case != "all tied"]
    logits = [one[case][0] for case in same_shape]
    for i, x in enumerate(logits):
        assert not any(np.allclose(x, y, atol=1e-3) for y in logits[:i])


def test_embeddings_and_logits_share_weights():
    paths = {
        case: [w.path for w in model_of(case).weights if w.shape[0] == V and len(w.shape) == 2]
        for case in ("sinusoidal", "untied", "all tied")
    }
    assert len(paths["sinusoidal"]) == 2 and len(paths["all tied"]) == 1
    assert len(paths["untied"]) == 2  # and the layer "logits", `[D, V]`
    assert model_of("untied").get_layer("logits").kernel.shape == (8, V)


def test_inputs_by_name_and_the_mask_of_the_target():
    model = model_of("sinusoidal")
    logits = model({"target": TARGET, "source": SOURCE})
    np.testing.assert_array_equal(logits, model([SOURCE, TARGET]))
    np.testing.assert_array_equal(logits._keras_mask, real(TARGET))


# Step by step, and searches


def stepped(model, source, target):
    """Logits `[B, T, V]` and weights `[B, T, S]` by the steps of inference."""
    memory, state = model.inference.encode(source, target.shape[1])
    logits, weights = [], []
    for tokens in target.T:
        outputs, attended, state = model.inference.step(tensor(tokens), state, memory)
        logits.append(outputs)
        weights.append(attended)
    return np.stack(logits, 1), np.stack(weights, 1)


@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_teacher_forcing_equals_stepping(case):
    model = model_of(case)
    logits, weights = stepped(model, SOURCE, TARGET)
    at_once = np.asarray(model([SOURCE, TARGET], training=False))
    limits = {"rtol": 1e-6, "atol": 1e-6} if case == "pieces" else {"rtol": 1e-9, "atol": 1e-9}
    assert_allclose(at_once[real(TARGET)], logits[real(TARGET)], **limits)
    if case in ("alibi", "post-norm", "groups"):  # the mean over heads, of the last block
        scores = attention_scores_model(model)([SOURCE, TARGET], training=False)
        mean = np.mean(scores[max(name for name in scores if name.endswith("/cross"))], axis=1)
        assert_allclose(mean[real(TARGET)], weights[real(TARGET)], **limits)


def total(model, ids):
    """Log-probabilities `[B]` of outputs, by the model called on them at once."""
    ids = np.asarray(ids)
    inputs = np.concatenate([np.ones((len(ids), 1), int), ids[:, :-1]], axis=1)
    gains = np.take_along_axis(log_softmax(model, SOURCE, inputs), ids[..., None], axis=2)
    return np.sum(gains[..., 0] * (ids != 0), axis=1)


@pytest.mark.parametrize(
    "case", ["sinusoidal", "learned", "rotary", "alibi", "relative", "no position", "groups"]
)
def test_search_equals_teacher_forcing_and_naive_search(case):
    """Scores are sums of log-probabilities; greedy search takes what a loop without cache takes."""
    model, length = model_of(case), 4
    greedy = model.search(SOURCE, max_length=length)
    ids = np.full((3, 1), 1)
    for _ in range(length):
        gains = log_softmax(model, SOURCE, ids)[:, -1].copy()
        gains[:, :2] = -np.inf  # padding and start are forbidden
        ended = (ids == 2).any(axis=1)
        ids = np.append(ids, np.where(ended, 0, gains.argmax(axis=1))[:, None], axis=1)
    np.testing.assert_array_equal(greedy.ids, ids[:, 1:])
    assert_allclose(greedy.scores, total(model, greedy.ids), rtol=1e-5)

    one = model.search(SOURCE, max_length=length, num_results=1)  # a beam of one
    np.testing.assert_array_equal(one.ids[:, 0], greedy.ids)
    assert_allclose(one.scores[:, 0], greedy.scores, rtol=1e-5)

    beam = model.search(SOURCE, max_length=length, beam_width=2, num_results=2)
    for n in range(2):
        expected = total(model, np.asarray(beam.ids)[:, n])
        assert_allclose(beam.scores[:, n], expected, rtol=1e-5)
    assert not np.array_equal(beam.ids[:, 0], beam.ids[:, 1])


def test_a_beam_as_wide_as_all_finds_the_best_of_all():
    model = make("rotary", source=9, target=5, scale=0.8)
    result = model.search(SOURCE, max_length=3, beam_width=40, num_results=3)
    sequences = [[2, 0, 0], *([a, 2, 0] for a in (3, 4))]
    sequences += [[a, b, c] for a in (3, 4) for b in (3, 4) for c in (2, 3, 4)]
    targets = np.array([[1, *s] for s in sequences])
    for row, source in enumerate(SOURCE):
        gains = log_softmax(model, np.tile(source, (len(targets), 1)), targets[:, :-1])
        gains = np.take_along_axis(gains, targets[:, 1:, None], axis=2)[..., 0]
        totals = np.sort(np.sum(gains * (targets[:, 1:] != 0), axis=1))[::-1]
        assert_allclose(result.scores[row], totals[:3], rtol=1e-5)


# What a step may see


@EACH
def test_no_step_sees_a_later_one(case):
    """Exactly, not to rounding; nor does another source matter less than it should."""
    model, rng = model_of(case), np.random.default_rng(3)
    top = model.output_shape[-1]
    target = rng.integers(3, top, (3, 6))
    before = np.asarray(model([SOURCE, target]))
    for t in (1, 3, 5):
        changed = target.copy()
        changed[:, t:] = 3 + (changed[:, t:] - 3 + rng.integers(1, top - 3)) % (top - 3)
        after = np.asarray(model([SOURCE, changed]))
        assert np.array_equal(after[:, :t], before[:, :t])
        assert np.abs(after[:, t] - before[:, t]).max() > 0
    changed[:, 5:] = 0  # or padding
    assert np.array_equal(np.asarray(model([SOURCE, changed]))[:, :5], before[:, :5])
    assert np.abs(np.asarray(model([SOURCE[:, ::-1], target])) - before).max() > 0


@EACH
def test_padding_changes_nothing(case):
    """Right padding on both sides, and what else is in the batch."""
    model = model_of(case)
    logits = np.asarray(model([SOURCE, TARGET]))
    wide = [np.pad(SOURCE, [(0, 0), (0, 3)]), np.pad(TARGET, [(0, 0), (0, 2)])]
    padded = np.asarray(model(wide))[:, :4]
    assert_allclose(padded[real(TARGET)], logits[real(TARGET)], atol=1e-10)
    for row in range(3):
        source, target = SOURCE[row, real(SOURCE[row])], TARGET[row, real(TARGET[row])]
        alone = model([source[None], target[None]])[0]
        assert_allclose(alone, logits[row, : len(target)], atol=1e-10)


def test_padding_does_not_change_what_is_found():
    wide = np.pad(SOURCE, [(0, 0), (0, 3)])
    for beam_width in (1, 2):
        options = {"max_length": 4, "beam_width": beam_width}
        narrow, found = (model_of("relative").search(x, **options) for x in (SOURCE, wide))
        np.testing.assert_array_equal(narrow.ids, found.ids)
        assert_allclose(narrow.scores, found.scores, rtol=1e-6)
        weights = np.asarray(found.attention_scores)
        assert np.all(weights[..., 5:] == 0)
        assert_allclose(narrow.attention_scores, weights[..., :5], atol=1e-8)


# Translating


def shared_model():
    """One model with tokenizers that tells texts apart, to some with an end; it never changes."""
    if "letters" not in MODELS:
        model = make("rotary", source=LETTERS, target=LETTERS, tied_embeddings=False)
        for weight in model.trainable_weights:
            if "cross_attention/" in weight.path:
                weight.assign(3 * weight)
        output = model.get_layer("logits")
        output.kernel.assign(6 * output.kernel)
        output.bias.assign(output.bias + 4 * np.eye(1, V, 2)[0])
        MODELS["letters"] = model
    return MODELS["letters"]


def test_order_singles_and_nothing():
    """In graphs. The order is kept over batches of like lengths."""
    model, texts = shared_model(), words(70, longest=5) + [""]
    got = model.translate(texts, max_length=6)
    assert len(set(got)) > 10 and "" in got[:-1]  # the model tells texts apart
    assert got[-1] == "" and len(got) == 71
    assert [got[i] for i in (0, 35, 69)] == [
        model.translate(texts[i], max_length=6) for i in (0, 35, 69)
    ]
    assert model.translate([]) == [] and model.translate("", max_length=6) == ""
    assert model.translate((texts[0],), max_length=6) == got[:1]
    assert model.translate(np.array(texts[:3]), max_length=6) == got[:3]


@settings(max_examples=6, deadline=None)
@given(
    texts=st.lists(st.text("abcdef", max_size=20), min_size=1, max_size=4),
    beam_width=st.sampled_from([1, 3]),
)
def test_a_translation_does_not_depend_on_the_others(texts, beam_width):
    model, options = shared_model(), {"beam_width": beam_width, "details": True, "max_length": 7}
    together = model.translate(texts, **options)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.translate([text], **options)
        assert (alone.text, alone.target_tokens) == (found.text, found.target_tokens)
        assert_allclose(alone.score, found.score, rtol=1e-6)
        assert_allclose(alone.attention_scores, found.attention_scores, atol=1e-8)


def test_details_and_several_results(eager):
    texts = ["abc", "f", "abcdefab", ""]
    several = shared_model().translate(
        texts, beam_width=3, num_results=2, details=True, max_length=6
    )
    assert [len(x) for x in several] == [2] * 4
    for text, results in zip(texts, several, strict=True):
        assert results[0].score >= results[1].score
        for found in results:
            assert found.source_tokens == [*text, "</s>"]
            assert found.text == "".join(found.target_tokens)
            shape = (len(found.target_tokens), len(text) + 1)
            assert found.attention_scores.shape == shape and shape[0] <= 6
            assert_allclose(found.attention_scores.sum(axis=1), 1, atol=1e-6)
    assert several[3][0].text == "" and several[3][0].score == 0


def test_sampling_follows_its_seed(eager):
    model, short = shared_model(), {"max_length": 6}
    draws = [model.translate(["abc"] * 8, temperature=2.0, seed=s, **short) for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert model.translate("abc", top_k=1, **short) == model.translate("abc", **short)


def test_sizes_in_place_of_tokenizers():
    model = make()
    assert model.search([[4, 5, 2]], max_length=3).ids.shape == (1, 3)
    empty = model.search(np.zeros((0, 3), "int32"), max_length=4, beam_width=2)
    assert empty.ids.shape == (0, 1, 4)
    with pytest.raises(ValueError, match="needs a model that was made with tokenizers"):
        model.translate("ab")


# Learned positions


def test_learned_positions_that_do_not_suffice():
    model = make("learned", source=LETTERS, target=LETTERS)
    assert len(model.translate("abcdefa")) <= 8  # seven tokens and the end
    assert len(model.search(SOURCE).ids[0]) == 8  # by default as many as there are
    message = r"at most 8 tokens.*Received: {}\."
    for call in (model.translate, lambda text: model.translate(["a", text], details=True)):
        with pytest.raises(ValueError, match="source must be " + message.format(9)):
            call("abcdefab")
    for call in (
        lambda: model.translate("ab", max_length=9),
        lambda: model.search(SOURCE, max_length=9, beam_width=2),
    ):
        with pytest.raises(ValueError, match="`max_length` must be " + message.format(9)):
            call()
    with pytest.raises(ValueError, match="source must be " + message.format(10)):
        model.search(np.full((1, 10), 4))
    for inputs in ([np.full((1, 9), 4), TARGET[:1]], [SOURCE[:1], np.full((1, 9), 4)]):
        with pytest.raises(ValueError, match="0 to 7.*max_length = 8.*sequence of 9 steps"):
            model(inputs)
    model.compile("sgd", MaskedCrossEntropy())
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="max_length = 8"):
        model.train_on_batch([np.full((1, 9), 4), TARGET[:1]], LABELS[:1])


# Saving


@pytest.mark.parametrize(
    "case",
    ["all tied"]
    + [pytest.param(x, marks=pytest.mark.slow) for x in ("learned", "relative", "pieces")],
)
def test_saved_loaded_and_cloned(eager, tmp_path, case):
    """Equal to the last bit, whether trainable or not."""
    model = make(case, dtype="float32", source=LETTERS, target=LETTERS, name="mine")
    model.trainable = False
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = Transformer.from_config(model.get_config())
    clone.set_weights(model.get_weights())
    other = make(case, dtype="float32", source=LETTERS, target=LETTERS, name="mine", scale=0.1)
    other.trainable = False
    assert not np.allclose(other([SOURCE, TARGET]), model([SOURCE, TARGET]))
    other.load_weights(tmp_path / "model.weights.h5")
    expected = model.translate(["abc", "f"], beam_width=2, max_length=2)
    for copy in (loaded, clone, other):
        assert (copy.name, copy.trainable) == ("mine", False)
        np.testing.assert_array_equal(copy([SOURCE, TARGET]), model([SOURCE, TARGET]))
        assert copy.get_config() == model.get_config()
    assert loaded.translate(["abc", "f"], beam_width=2, max_length=2) == expected


@pytest.mark.parametrize("case", ["rms, swiglu", "post-norm"])
def test_a_copy_by_keras_computes_the_same(case):
    """Padding included: masks go the same way in the copy."""
    model = make(case, dtype="float32")
    clone = keras.models.clone_model(model)  # a plain Functional model
    clone.set_weights(model.get_weights())
    assert_allclose(clone([SOURCE, TARGET]), model([SOURCE, TARGET]), atol=1e-6)


def test_layers_among_the_options_are_made_for_each_block():
    model = model_of("pieces")
    sinks = {id(w) for w in model.weights if w.path.endswith("sinks")}
    assert len(sinks) == 2  # a block on each side


@pytest.mark.slow
def test_an_exported_model_computes_the_same(tmp_path):
    model = make("rotary", dtype="float32")
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")
    assert_allclose(loaded.serve([SOURCE, TARGET]), model([SOURCE, TARGET]), rtol=1e-5, atol=1e-5)


# Training


@pytest.mark.slow
@pytest.mark.parametrize("case", ["learned", "all tied", "rms, swiglu", "pieces"])
def test_a_step_of_training_moves_every_weight(case):
    model = make(case, dtype="float32", attention_dropout=0.1)
    before = {weight.path: to_numpy(weight) for weight in model.trainable_weights}
    loss = MaskedCrossEntropy(label_smoothing=0.1)
    model.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
    assert np.isfinite(model.train_on_batch([SOURCE, TARGET], LABELS))
    assert not unmoved(model, before)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["post-norm", "rms, swiglu"])
@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(case, name):
    """A step of training, inference, and embeddings that make activations of thousands."""
    model = make(case, dtype=name, scale=0.3, source=LETTERS, target=LETTERS)
    assert {w.dtype for w in model.trainable_weights} == {"float32"}
    model.compile("adam", MaskedCrossEntropy(), run_eagerly=True)
    assert np.isfinite(model.train_on_batch([SOURCE, TARGET], LABELS))
    logits = stepped(model, SOURCE, TARGET)[0].astype("float32")
    at_once = np.asarray(model([SOURCE, TARGET])).astype("float32")
    limit = {"mixed_float16": 0.05, "mixed_bfloat16": 0.4}[name]
    assert_allclose(logits[real(TARGET)], at_once[real(TARGET)], atol=limit)

    for side in ("source", "target"):
        table = model.get_layer(f"{side}_embedding").embeddings
        table.assign(table * (2000 if side == "source" else 20))
    memory = np.asarray(model.inference.encoder(SOURCE)).astype("float32")
    logits = np.asarray(model([SOURCE, TARGET])).astype("float32")
    assert np.isfinite(memory).all() and np.isfinite(logits).all()
    assert np.isfinite(model.evaluate([SOURCE, TARGET], LABELS, verbose=0))


@pytest.mark.slow
def test_xla_trains_as_the_graph_does():
    losses = []
    for jit_compile in (False, True):
        model = make("rotary", dtype="float32", layers=1, dropout=0.0)
        model.compile("sgd", MaskedCrossEntropy(), jit_compile=jit_compile)
        losses.append([model.train_on_batch([SOURCE, TARGET], LABELS) for _ in range(2)])
    assert_allclose(*losses, rtol=1e-4)
    assert losses[0][1] < losses[0][0]


@pytest.mark.slow
def test_fit_learns_to_reverse():
    """With batches counted in tokens, and a counter of epochs."""
    texts, held_out = words(1500), words(60, seed=1)
    epoch = EpochCounter()
    batches = text_batches(
        texts, [x[::-1] for x in texts], LETTERS, LETTERS, tokens_per_batch=200, epoch=epoch
    )
    model = transformer(LETTERS, LETTERS, layers=1, units=32, num_heads=4, dropout=0.0)
    rate = keras.optimizers.schedules.CosineDecay(5e-3, decay_steps=25 * len(batches))
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), MaskedCrossEntropy())
    model.fit(batches, epochs=25, verbose=0, callbacks=[epoch])
    assert epoch.number == 24
    right = [text[::-1] for text in held_out]
    for beam_width in (1, 3):
        found = model.translate(held_out, beam_width=beam_width)
        assert np.mean([a == b for a, b in zip(found, right, strict=True)]) > 0.95


# Callbacks


NAMES = [
    *(f"decoder/block_{n}/{part}" for n in (1, 2) for part in ("cross", "self")),
    "encoder_1/self",
    "encoder_2/self",
]


def test_weights_of_all_three_attentions():
    """In the encoder, in the decoder, and from the decoder to the memory; with heads."""
    scores = attention_scores_model(model_of("alibi"))([SOURCE, TARGET])
    assert sorted(scores) == NAMES
    sides = {"encoder": (SOURCE, SOURCE), "self": (TARGET, TARGET), "cross": (TARGET, SOURCE)}
    for name, weights in scores.items():
        part = "encoder" if name.startswith("encoder") else name.split("/")[-1]
        queries, keys = (real(x) for x in sides[part])
        weights = np.asarray(weights)
        assert weights.shape == (3, 2, queries.shape[1], keys.shape[1])
        assert_allclose(weights.sum(-1), np.repeat(queries[:, None], 2, 1), atol=1e-6)
        assert np.all(weights[~np.broadcast_to(keys[:, None, None], weights.shape)] == 0)
        if part == "self":
            assert np.all(np.triu(np.ones((4, 4)), 1) * weights == 0)


@pytest.mark.parametrize("options", [{}, {"beam_width": 3, "num_results": 2}])
def test_translating_compiled_by_xla(options):
    """The same outputs and alignments; sources of like length share a compiled search."""
    model = make("rotary", dtype="float32", source=LETTERS, target=LETTERS, layers=1)
    texts, options = ["abc", "fedcba", "", "cab", "f"], {"max_length": 4, **options}
    expected = model.translate(texts, details=True, **options)
    made = len(model.inference.searches)
    found = model.translate(texts, details=True, jit_compile=True, **options)
    more = model.translate(["abcdef"] * 7, details=True, jit_compile=True, **options)
    assert len(model.inference.searches) == made + (BACKEND != "torch")
    several = "num_results" in options
    more = [[one.text for one in row] if several else row.text for row in more]
    assert more == [model.translate("abcdef", **options)] * 7
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True) if several else [(one, other)]:
            assert a.text == b.text and a.target_tokens == b.target_tokens
            assert a.source_tokens == b.source_tokens
            assert_allclose(a.score, b.score, rtol=1e-4, atol=1e-5)
            assert_allclose(a.attention_scores, b.attention_scores, atol=1e-5)
    with pytest.raises(ValueError, match="`jit_compile` must be"):
        model.translate(texts, jit_compile=2)


def test_callbacks_draw_and_translate(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    texts, seen = ["ab", "cd"], []

    def metric(outputs, references):
        seen.append((outputs, references))
        return len(seen)

    model = make("rotary", dtype="float32", source=LETTERS, target=LETTERS, layers=1)
    model.compile("sgd", MaskedCrossEntropy(), run_eagerly=True)
    draw = AttentionCallback(
        [SOURCE[:1], TARGET[:1]],
        [list("abcd") + ["</s>"]],
        [list("abc") + ["</s>"]],
        layer_name=["decoder/block_1/cross"],
        folder=tmp_path,
        every=2,
    )
    measure = TranslationMetric(texts, [["x"], ["y"]], metric, "mine", max_length=4)
    history = model.fit(
        text_batches(texts, texts, LETTERS, LETTERS),
        epochs=2,
        verbose=0,
        callbacks=[draw, measure],
    )
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_0002_sample_0.png"]
    assert history.history["mine"] == [1.0, 2.0]
    assert seen[-1] == (model.translate(texts, max_length=4), [["x"], ["y"]])
    with pytest.raises(ValueError, match="`layer_name` must be one of.*'decoder/block_1/cross'"):
        unknown = AttentionCallback([SOURCE, TARGET], [[]] * 3, [[]] * 3, "cross", tmp_path)
        unknown.set_model(model)
        unknown.on_train_begin()


# Bad input


@pytest.mark.parametrize(
    "message, options",
    [
        ("`source` must be a tokenizer, or a number", {"source": 2}),
        ("`source` must be a tokenizer, or a number", {"source": CharacterTokenizer}),
        ("`target` must be a tokenizer, or a number", {"target": True}),
        ("`layers` must be a positive integer", {"layers": 0}),
        ("`decoder_layers` must be a positive integer", {"decoder_layers": 1.5}),
        ("`units` must be a positive integer", {"units": -8}),
        ("`num_heads` must be a positive integer", {"num_heads": 0}),
        ("`num_heads` = 3 must divide.*8 features", {"num_heads": 3}),
        ("`feedforward_size` must be a positive integer", {"feedforward_size": 0}),
        ("`position` must be one of 'sinusoidal'.*'rope'", {"position": "rope"}),
        ("`max_length`.*goes with.*None with 'learned'", {"position": "learned"}),
        ("`max_length`.*goes with.*9 with 'sinusoidal'", {"max_length": 9}),
        ("`max_length` must be a positive integer", {"position": "learned", "max_length": 0}),
        ("`norm_first`", {"norm_first": "no"}),
        ("`normalization` must be one of 'layer', 'rms'", {"normalization": "batch"}),
        ("`activation` must be one of", {"activation": "tanh"}),
        ("`dropout` must lie", {"dropout": 1.0}),
        ("`attention_dropout` must lie", {"attention_dropout": -0.1}),
        ("`tied_embeddings` must be False, True or 'all'", {"tied_embeddings": "both"}),
        ("needs a target whose ids.*9 and 12", {"tied_embeddings": "all", "target": 12}),
        ("`attention_options` must be a dictionary", {"attention_options": "rotary"}),
        ("`attention_options` must be a dictionary", {"attention_options": {"key_dim": 3}}),
        ("must divide `num_heads` = 2.*3", {"attention_options": {"num_key_value_heads": 3}}),
        ("odd|even", {"num_heads": 2, "units": 6, "position": "rotary"}),
    ],
)
def test_errors_name_the_argument(message, options):
    with pytest.raises(ValueError, match=message):
        transformer(**{"source": 9, "target": 9, "units": 8, "num_heads": 2, **options})


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="Transformer has no argument 'heads', 'unit'"):
        transformer(9, 9, unit=8, heads=2)
    with pytest.raises((TypeError, ValueError), match="window"):
        transformer(9, 9, units=8, attention_options={"window": 2})


@pytest.mark.parametrize(
    "message, options",
    [
        ("`beam_size` is no option of `greedy_search`", {"beam_size": 3}),
        ("`beam_width` must be a positive integer", {"beam_width": 0}),
        ("`max_length` must be a positive integer", {"max_length": 0}),
        ("`num_results` must be at most", {"num_results": 3, "beam_width": 2}),
        ("`beam_width` does not go with sampling", {"temperature": 0.5, "beam_width": 2}),
    ],
)
def test_errors_of_translate_name_the_option(eager, message, options):
    with pytest.raises(ValueError, match=message):
        shared_model().translate(["abc"], **options)


@pytest.mark.parametrize("texts", [None, 3, {"ab": 1}, {"ab"}, [1], ["a", b"\xff"]])
def test_texts_that_are_none(eager, texts):
    with pytest.raises(ValueError, match="texts"):
        shared_model().translate(texts)


@pytest.mark.parametrize("ids", [[[0.5]], [4, 5], np.zeros((2, 0), int)])
def test_source_ids_must_be_a_table_of_integers(ids):
    with pytest.raises(ValueError, match="`source_ids` must"):
        shared_model().search(np.array(ids), max_length=3)
