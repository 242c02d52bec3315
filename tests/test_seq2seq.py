"""Whole seq2seq models: building, teacher forcing against steps, training, translating, saving."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import BACKEND, assert_allclose, dtype_of, tensor, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import (
    CharacterTokenizer,
    Coverage,
    InverseSigmoid,
    MaskedCrossEntropy,
    MonotonicAlignment,
    Seq2Seq,
    TranslationMetric,
    WordTokenizer,
    attention_scores_model,
    seq2seq,
    text_batches,
)

LETTERS = CharacterTokenizer.fit(["abcdef"])
SOURCE = np.array([[4, 5, 6, 7, 2], [8, 4, 2, 0, 0], [6, 2, 0, 0, 0]])
TARGET = np.array([[1, 4, 5, 6], [1, 7, 7, 0], [1, 6, 0, 0]])
SOFT = MonotonicAlignment(noise=0.0, hard=False)

# What is not a matter of the names alone; drawn combinations of these follow below.
VARIANTS = {
    "local_monotonic": {
        "attention": "general",
        "attention_options": {"local": "monotonic", "window": 1},
    },
    "local_predictive": {
        "attention": "dot",
        "attention_options": {"local": "predictive", "window": 2},
    },
    "location_score": {"attention": "location", "attention_options": {"max_memory": 6}},
    "coverage": {"attention": "bahdanau", "attention_options": {"history": "coverage"}},
    "fertility": {"attention": "bahdanau", "attention_options": {"history": Coverage(2.0)}},
    "location_features": {"attention": "bahdanau", "attention_options": {"history": "location"}},
    "expected_monotonic": {"attention": "bahdanau", "attention_options": {"normalizer": SOFT}},
    "normalized": {"attention": "bahdanau", "attention_options": {"normalize": True}},
    "scaled": {"attention": "general", "attention_options": {"scale": True}},
    "sparsemax": {"attention": "dot", "attention_options": {"normalizer": "sparsemax"}},
    "feeding_a_stack": {"input_feeding": True, "decoder_layers": 2, "encoder_layers": 2},
    "feeding_local": {
        "input_feeding": True,
        "attention": "general",
        "attention_options": {"local": "monotonic", "window": 1},
    },
    "bahdanau_after_the_cell": {"attention": "bahdanau", "decoder": "luong"},
    "dot_before_the_cell": {"attention": "dot", "decoder": "bahdanau", "cell": "gru"},
    "tied": {"tied_embeddings": True, "attention": "general", "embedding": 6},
    "scheduled_sampling": {"scheduled_sampling": 0.5, "dropout": 0.5},
    "tied_scheduled_sampling": {"scheduled_sampling": 0.5, "tied_embeddings": True},
}


@pytest.fixture
def double():
    """Builds models in float64, in which a choice between tokens does not hang on rounding."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def eager():
    """Searches without making graphs, which takes seconds each; the other tests make them."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def make(source=LETTERS, target=LETTERS, units=8, scale=0.6, **options):
    """A small model with random weights, large enough to tell inputs apart."""
    model = seq2seq(source, target, units=units, **options)
    rng = np.random.default_rng(7)
    for weight in model.trainable_weights:
        weight.assign(scale * rng.normal(size=weight.shape))
    return model


def stepped(model, source, target):
    """Logits `[B, T, V]` and weights `[B, T, S]` by the steps of inference."""
    memory, state = model.inference.encode(source)
    logits, weights = [], []
    for tokens in target.T:
        outputs, *attended, state = model.inference.step(tensor(tokens), state, memory)
        logits.append(outputs)
        weights += attended or [np.zeros(source.shape)]  # without attention there are none
    return np.stack(logits, 1), np.stack(weights, 1)


def assert_steps_equal(model, source=SOURCE, target=TARGET):
    """Teacher forcing equals stepping at all real steps of the target."""
    real = target != 0
    logits, weights = stepped(model, source, target)
    at_once = model([source, target], training=False)
    assert_allclose(np.asarray(at_once)[real], logits[real], atol=1e-10)
    (alignment,) = attention_scores_model(model)([source, target], training=False).values()
    assert_allclose(np.asarray(alignment)[real], weights[real], atol=1e-10)


# Building and stepping


@pytest.mark.parametrize("name", VARIANTS)
def test_teacher_forcing_equals_stepping(double, name):
    model = make(**VARIANTS[name])
    assert model.output_shape == (None, None, LETTERS.size)
    assert_steps_equal(model)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    cell=st.sampled_from(["lstm", "gru", "simple_rnn"]),
    attention=st.sampled_from(["bahdanau", "dot", "scaled_dot", "general", "concat", None]),
    decoder=st.sampled_from([None, "bahdanau", "luong"]),
    layers=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bidirectional=st.booleans(),
    input_feeding=st.booleans(),
    tied_embeddings=st.booleans(),
    embedding=st.sampled_from([None, 6]),
)
def test_every_combination_of_names(layers, **names):
    luong = names["decoder"] == "luong" or (
        names["decoder"] is None and names["attention"] not in ("bahdanau", None)
    )
    names["input_feeding"] &= luong
    if names["tied_embeddings"] and not luong:
        names["embedding"] = None
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        assert_steps_equal(make(encoder_layers=layers[0], decoder_layers=layers[1], **names))
    finally:
        keras.config.set_dtype_policy(policy)


def test_inputs_by_name_and_sizes_in_place_of_tokenizers():
    model = make(9, 12)
    assert [x.name for x in model.inputs] == ["source", "target"]
    by_name = model({"target": TARGET, "source": SOURCE})
    np.testing.assert_array_equal(by_name, model([SOURCE, TARGET]))
    assert by_name.shape == (3, 4, 12)
    found = model.search([[4, 5, 2]], max_length=3)  # a list will do
    assert found.ids.shape == (1, 3)
    with pytest.raises(ValueError, match="needs a model that was made with tokenizers"):
        model.translate("ab")


def test_padding_changes_nothing(double):
    model = make()
    wide = np.pad(SOURCE, [(0, 0), (0, 3)])
    logits = model([SOURCE, TARGET])
    assert_allclose(model([wide, TARGET]), logits, atol=1e-12)
    alone = model([SOURCE[2:, :2], TARGET[2:, :2]])
    assert_allclose(alone, logits[2:, :2], atol=1e-12)


def test_the_logits_carry_the_mask_of_the_target():
    logits = make()([SOURCE, TARGET])
    np.testing.assert_array_equal(logits._keras_mask, TARGET != 0)


@pytest.mark.parametrize(
    "message, options",
    [
        ("`source` must be a tokenizer, or a number", {"source": 2}),
        ("`target` must be a tokenizer, or a number", {"target": True}),
        ("`target` must be a tokenizer, or a number", {"target": "abc"}),
        ("`cell` must be one of gru, lstm, simple_rnn", {"cell": "rnn"}),
        ("`attention` must be one of 'bahdanau', 'dot'", {"attention": "additive"}),
        ("`decoder` must be one of", {"decoder": "rnn"}),
        ("`units` must be a positive integer", {"units": 0}),
        ("`embedding` must be a positive integer", {"embedding": -1}),
        ("`encoder_layers` must be a positive integer", {"encoder_layers": 0}),
        ("`decoder_layers` must be a positive integer", {"decoder_layers": 1.5}),
        ("`units` must be even", {"units": 7}),
        ("`input_feeding` needs the decoder 'luong'", {"attention": None, "input_feeding": True}),
        (
            "`tied_embeddings` with the decoder 'bahdanau' needs",
            {"attention": "bahdanau", "tied_embeddings": True, "embedding": 4},
        ),
        ("`rate` must lie in", {"scheduled_sampling": 2.0}),
        ("`window`", {"attention_options": {"local": "monotonic"}}),
        ("`max_memory`", {"attention": "location"}),
        ("`attention_options` must be a dictionary", {"attention_options": "coverage"}),
    ],
)
def test_errors_name_the_argument(message, options):
    with pytest.raises(ValueError, match=message):
        Seq2Seq(**{"source": 9, "target": 9, "units": 8, **options})


def test_an_unknown_argument_of_the_attention_is_an_error():
    with pytest.raises(ValueError, match="fertility"):
        seq2seq(9, 9, units=8, attention_options={"fertility": 2})


# Training


def words(count, seed=0, longest=3):
    """Texts of 1 to `longest` letters."""
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("abcdef"), rng.integers(1, longest + 1))) for _ in range(count)]


@pytest.mark.slow
def test_fit_learns_to_copy_and_translates(tmp_path):
    texts, held_out = words(600), words(40, seed=1)
    model = seq2seq(LETTERS, LETTERS, units=32)
    rate = keras.optimizers.schedules.CosineDecay(0.02, decay_steps=18 * 12)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), MaskedCrossEntropy())
    model.fit(text_batches(texts, texts, LETTERS, LETTERS, 50), epochs=18, verbose=0)
    assert model.translate(held_out) == held_out
    assert model.translate(held_out, beam_width=3) == held_out

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.translate(held_out[:5]) == held_out[:5]
    loaded.fit(text_batches(texts[:50], texts[:50], LETTERS, LETTERS, 50), verbose=0)  # goes on


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coverage", "local_predictive", "tied_scheduled_sampling"])
def test_a_step_of_training_moves_every_weight(name):
    model = make(**VARIANTS[name], dropout=0.1)
    before = {weight.path: to_numpy(weight) for weight in model.trainable_weights}
    model.compile(keras.optimizers.SGD(1.0), MaskedCrossEntropy(label_smoothing=0.1))
    loss = model.train_on_batch([SOURCE, TARGET], np.roll(TARGET, -1, axis=1))
    assert np.isfinite(loss)
    still = [w.path for w in model.trainable_weights if np.array_equal(w, before[w.path])]
    assert not still


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feeding_a_stack", "expected_monotonic"])
def test_xla_trains_as_the_graph_does(name):
    losses = []
    for jit_compile in (False, True):
        model = make(**VARIANTS[name])
        model.compile("sgd", MaskedCrossEntropy(), jit_compile=jit_compile)
        labels = np.roll(TARGET, -1, axis=1)
        losses.append([model.train_on_batch([SOURCE, TARGET], labels) for _ in range(2)])
    assert_allclose(*losses, rtol=1e-4)


@pytest.mark.slow
def test_mixed_precision():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make(scale=0.3, attention="bahdanau", dropout=0.1)
    finally:
        keras.config.set_dtype_policy(policy)
    assert {w.dtype for w in model.trainable_weights} == {"float32"}
    model.compile("adam", MaskedCrossEntropy())
    loss = model.train_on_batch([SOURCE, TARGET], np.roll(TARGET, -1, axis=1))
    assert np.isfinite(loss)
    assert len(model.translate(["ab", "cdefabc"], beam_width=2)) == 2
    logits = stepped(model, SOURCE, TARGET)[0][TARGET != 0]
    at_once = np.asarray(model([SOURCE, TARGET]))[TARGET != 0]
    assert_allclose(logits, at_once, atol=0.02)


@pytest.mark.slow
def test_a_schedule_of_sampling_counts_training_steps(tmp_path):
    model = make(scheduled_sampling=InverseSigmoid(10.0))
    model.compile("sgd", MaskedCrossEntropy())
    for _ in range(2):
        model.train_on_batch([SOURCE, TARGET], np.roll(TARGET, -1, axis=1))
    assert int(model.get_layer("sampling").steps) == 2
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.get_layer("sampling").steps) == 2
    assert_allclose(loaded([SOURCE, TARGET]), model([SOURCE, TARGET]), atol=1e-6)


# Saving


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fertility", "expected_monotonic", "feeding_a_stack", "local_predictive", "tied"]
)
def test_saved_and_cloned_models_translate_the_same(eager, tmp_path, name):
    model = make(**VARIANTS[name], scale=1.5, name="mine")
    model.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = Seq2Seq.from_config(model.get_config())
    clone.set_weights(model.get_weights())
    texts, search = ["abc", "f", "abcdefabcdef"], {"beam_width": 2, "max_length": 6}
    expected = model.translate(texts, details=True, **search)
    for other in (loaded, clone):
        assert (other.name, other.trainable) == ("mine", False)
        translations = other.translate(texts, details=True, **search)
        for got, wanted in zip(translations, expected, strict=True):
            assert got.text == wanted.text
            assert_allclose(got.score, wanted.score, rtol=1e-4)


def test_a_copy_by_keras_computes_the_same():
    model = make(attention="bahdanau", attention_options={"history": "coverage"})
    clone = keras.models.clone_model(model)  # a plain Functional model
    clone.set_weights(model.get_weights())
    inputs = [SOURCE, TARGET]
    assert_allclose(clone(inputs), model(inputs), atol=1e-6)


def test_without_attention_the_translations_have_no_weights(eager):
    found = make(attention=None).translate("abc", details=True, max_length=4)
    assert found.attention_scores is None


class Server(tf.Module):
    """Texts to texts, as it would be served."""

    def __init__(self, model):
        super().__init__()
        self.model, self.variables_of_it = model.inference, [v.value for v in model.variables]
        self.source, self.target = model.inference.source, model.inference.target

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, texts):
        ids = self.source.encode(texts, add_end=True)
        return self.target.decode(self.model.search(ids, max_length=8, beam_width=2).ids[:, 0])


SERVE = """
import sys
sys.modules.update(keras=None, keras_attention=None)
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
served = loaded.serve(tensor(sys.argv[2:]))
sys.stdout.buffer.write(b"\\n".join(to_numpy(served)))
"""


@pytest.mark.slow
def test_a_saved_model_with_search_and_tokenizers_needs_tensorflow_only(tmp_path):
    model = make(scale=1.5)
    tf.saved_model.save(Server(model), str(tmp_path / "saved"))
    texts = ["abc", "f", "fedcbafedcba"]
    process = subprocess.run(
        [sys.executable, "-c", SERVE, tmp_path / "saved", *texts], capture_output=True, check=True
    )
    served = process.stdout.decode("utf-8").split("\n")
    assert served == model.translate(texts, beam_width=2, max_length=8)
    assert len(set(served)) > 1


# Translating


@settings(max_examples=8, deadline=None)
@given(
    texts=st.lists(st.text("abcdef", max_size=30), min_size=1, max_size=5),
    beam_width=st.sampled_from([1, 3]),
)
def test_a_translation_does_not_depend_on_the_others(texts, beam_width):
    model = shared_model()
    together = model.translate(texts, beam_width=beam_width, details=True)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.translate([text], beam_width=beam_width, details=True)
        assert alone.text == found.text
        assert alone.target_tokens == found.target_tokens
        assert_allclose(alone.score, found.score, rtol=1e-5)
        assert_allclose(alone.attention_scores, found.attention_scores, atol=1e-5)


_MODELS = []
ENDLESS = "f"  # a text whose output does not end by itself


def shared_model():
    """One model in float64 for all examples of a property; it never changes."""
    if not _MODELS:
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy("float64")
        try:
            _MODELS.append(make(scale=1.5))
        finally:
            keras.config.set_dtype_policy(policy)
        bias = _MODELS[0].get_layer("logits").bias
        bias.assign(bias + 4.0 * np.eye(1, bias.shape[0], 2)[0])  # so that texts end
    return _MODELS[0]


def test_an_output_without_end_is_cut_off_the_same_in_company(eager):
    model = shared_model()
    alone = model.translate(ENDLESS)
    assert len(alone) == 32
    assert model.translate([ENDLESS, "abcdef" * 8])[0] == alone


@pytest.mark.parametrize("beam_width", [1, 3])
def test_search_does_not_depend_on_padding(beam_width):
    model, wide = shared_model(), np.pad(SOURCE, [(0, 0), (0, 4)])
    narrow, wide = (
        model.search(ids, max_length=6, beam_width=beam_width) for ids in (SOURCE, wide)
    )
    np.testing.assert_array_equal(narrow.ids, wide.ids)
    assert_allclose(narrow.scores, wide.scores, rtol=1e-6)
    assert_allclose(wide.attention_scores[..., 5:], 0)
    assert_allclose(narrow.attention_scores, wide.attention_scores[..., :5], atol=1e-9)


def test_what_was_translated_before_does_not_matter():
    models = [make(), make()]
    for text in ("abcdef", "a"):  # now its graph takes sources of any length
        models[1].translate(text)
    assert models[0].translate("ab") == models[1].translate("ab")


def test_the_order_of_texts_is_kept_over_many_batches():
    model = shared_model()
    texts = words(150, longest=5)
    got = model.translate(texts, max_length=6)
    assert len(set(got)) > 20 and len(set(map(len, got))) > 2  # the model tells texts apart
    one_by_one = {text: model.translate(text, max_length=6) for text in set(texts[::10])}
    assert [got[i] for i in range(0, 150, 10)] == [one_by_one[text] for text in texts[::10]]


def test_what_counts_as_texts(eager):
    model = shared_model()
    assert isinstance(model.translate("abc"), str)
    assert model.translate(("abc",)) == [model.translate("abc")]
    assert model.translate([]) == []
    assert model.translate("") == "" and model.translate(["", ""]) == ["", ""]
    assert model.translate(["", "abc"], beam_width=2)[0] == ""
    for bad in ([1], [None], ["a", b"\xff"]):
        with pytest.raises(ValueError, match="texts"):
            model.translate(bad)


def test_an_empty_text_has_an_empty_output_in_detail():
    found, other = shared_model().translate(["", "abc"], details=True)
    assert (found.text, found.score, found.target_tokens) == ("", 0.0, [])
    assert found.attention_scores.shape == (0, 1)  # there is the end to read
    assert other.target_tokens


def test_unknown_characters_and_long_texts(eager):
    model = make(attention="location", attention_options={"max_memory": 4})
    outputs = model.translate(["日本", "z", "abc" * 100], max_length=3)
    assert len(outputs) == 3
    found = model.translate("azb", details=True, max_length=3)
    assert found.source_tokens == ["a", "⁇", "b", "</s>"]
    long = shared_model().translate("abcdef" * 60, details=True, max_length=6)
    assert len(long.source_tokens) == 361
    assert np.isfinite(long.score)


def test_beam_of_one_equals_greedy():
    model, texts = shared_model(), words(6, longest=8)
    greedy = model.translate(texts, details=True, max_length=6)
    # With `num_results` it is the beam search that runs.
    beam = [x[0] for x in model.translate(texts, num_results=1, details=True, max_length=6)]
    assert [x.text for x in beam] == [x.text for x in greedy]
    assert_allclose([x.score for x in beam], [x.score for x in greedy], rtol=1e-6)


def test_a_beam_wider_than_the_vocabulary_finds_the_best_of_all():
    model = make(9, 6, scale=1.0)
    result = model.search(SOURCE, max_length=3, beam_width=40, num_results=3)
    scores = np.asarray(result.scores)
    assert np.all(np.diff(scores, axis=1) <= 0) and np.isfinite(scores).all()
    for row, source in enumerate(SOURCE):
        assert scores[row, 0] == pytest.approx(best_score(model, source, 6, 3), rel=1e-5)


def best_score(model, source, size, length):
    """The largest log-probability of all sequences, by teacher forcing."""
    tokens = range(2, size)
    sequences = [[2]] + [[a, 2] for a in tokens if a != 2]
    sequences += [[a, b, c] for a in tokens for b in tokens for c in tokens if 2 not in (a, b)]
    targets = np.array([[1, *s, *[0] * (length - len(s))] for s in sequences])
    logits = model([np.tile(source, (len(targets), 1)), targets[:, :-1]])
    gains = np.asarray(keras.ops.log_softmax(logits))
    gains = np.take_along_axis(gains, targets[:, 1:, None], axis=2)[..., 0]
    return np.sum(gains * (targets[:, 1:] != 0), axis=1).max()


def test_scores_are_those_of_teacher_forcing(eager):
    model = shared_model()
    texts = ["abc", "fed", "bcd"]
    for results in model.translate(texts, beam_width=3, max_length=6, num_results=2, details=True):
        assert len(results) == 2 and results[0].score >= results[1].score
        for found in results:
            source = LETTERS.encode(["".join(found.source_tokens[:-1])], add_end=True)
            ids = [LETTERS.tokens.index(token) for token in found.target_tokens]
            ids += [2] if len(ids) < 6 else []
            logits = model([to_numpy(source), np.array([[1, *ids[:-1]]])])
            gains = np.asarray(keras.ops.log_softmax(logits))[0, range(len(ids)), ids]
            assert_allclose(found.score, gains.sum(), rtol=1e-5)


def test_details_have_a_row_of_weights_for_each_token(eager):
    for found in shared_model().translate(["abc", "f", "abcdefab"], details=True, max_length=6):
        rows, columns = len(found.target_tokens), len(found.source_tokens)
        assert found.attention_scores.shape == (rows, columns) and rows <= 6
        assert_allclose(found.attention_scores.sum(axis=1), 1, atol=1e-6)
        assert found.source_tokens[-1] == "</s>"
        assert found.text == "".join(found.target_tokens)


def test_sampling_follows_its_seed(eager):
    model, short = shared_model(), {"max_length": 6}
    draws = [model.translate(["abc"] * 8, temperature=2.0, seed=s, **short) for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert model.translate("abc", top_k=1, **short) == model.translate("abc", **short)
    several = model.translate(["abc", "f"], temperature=2.0, num_results=5, details=True, **short)
    assert [len(x) for x in several] == [5, 5] and len({x.text for x in several[0]}) > 1
    for found in several[1]:
        assert found.attention_scores.shape == (len(found.target_tokens), 2)


@pytest.mark.parametrize(
    "message, options",
    [
        ("`beam_size` is no option of `greedy_search`", {"beam_size": 3}),
        ("`beam_width` must be a positive integer", {"beam_width": 0}),
        ("`max_length` must be a positive integer", {"max_length": 0}),
        ("`num_results` must be at most", {"num_results": 3, "beam_width": 2}),
        ("`beam_width` does not go with sampling", {"temperature": 0.5, "beam_width": 2}),
        ("length_penalty", {"length_penalty": -1.0, "beam_width": 2}),
        ("`length_penalty` is no option of `greedy_search`", {"length_penalty": 1.0}),
        ("`memory` is no option of", {"memory": None}),
    ],
)
def test_errors_of_translate_name_the_option(eager, message, options):
    with pytest.raises((ValueError, TypeError), match=message):
        shared_model().translate(["abc"], **options)


@pytest.mark.parametrize("ids", [[[0.5]], [4, 5], np.zeros((2, 0), int)])
def test_source_ids_must_be_a_table_of_integers(ids):
    with pytest.raises(ValueError, match="`source_ids` must"):
        shared_model().search(np.array(ids), max_length=3)


def test_an_empty_batch_of_ids():
    result = shared_model().search(np.zeros((0, 3), "int32"), max_length=4, beam_width=2)
    assert result.ids.shape == (0, 1, 4)


# Batches


def pairs_of(batches):
    """The pairs of texts in batches, and the sizes of the batches."""
    pairs, sizes = [], []
    for (source, target), labels in batches:
        source, target, labels = (to_numpy(x) for x in (source, target, labels))
        assert dtype_of(source) == dtype_of(target) == dtype_of(labels) == "int32"
        # The target is START and all labels but END, which is the last of each row.
        assert np.all(target[:, 0] == 1) and np.all(np.sum(labels == 2, axis=1) == 1)
        np.testing.assert_array_equal(target[:, 1:], np.where(labels == 2, 0, labels)[:, :-1])
        np.testing.assert_array_equal(target != 0, labels != 0)
        assert source.max(axis=0).all() and labels.max(axis=0).all()  # not padded in vain
        texts = ([x.decode() for x in to_numpy(LETTERS.decode(ids))] for ids in (source, labels))
        pairs += zip(*texts, strict=True)
        sizes.append(len(source))
    return pairs, sizes


def test_batches_hold_each_pair_once():
    sources, targets = words(70, longest=9), words(70, seed=1, longest=9)
    batches = text_batches(sources, targets, LETTERS, LETTERS, batch_size=16)
    pairs, sizes = pairs_of(batches)
    assert sorted(pairs) == sorted(zip(sources, targets, strict=True))
    assert len(batches) == 5 and sorted(sizes) == [6, 16, 16, 16, 16]


def test_the_order_of_batches():
    texts = words(60, longest=9)
    first, again, other = (
        text_batches(texts, texts, LETTERS, LETTERS, 8, seed=seed) for seed in (0, 0, 1)
    )
    epochs = [pairs_of(first)[0], pairs_of(first)[0]]
    assert epochs == [pairs_of(again)[0], pairs_of(again)[0]]
    assert epochs[0] != epochs[1] and epochs[0] != pairs_of(other)[0]
    still = text_batches(texts, texts, LETTERS, LETTERS, 8, shuffle=False)
    assert pairs_of(still) == pairs_of(still)
    lengths = [len(text) for text, _ in pairs_of(still)[0]]
    assert lengths == sorted(lengths)


def test_batches_leave_out_long_pairs():
    sources, targets = ["ab", "abc", "a", "abcd"], ["a", "abcdef", "abc", "ab"]
    batches = text_batches(sources, targets, LETTERS, LETTERS, max_length=3)
    assert sorted(pairs_of(batches)[0]) == [("a", "abc"), ("ab", "a")]


@pytest.mark.parametrize(
    "message, arguments",
    [
        ("Received 2 and 1", {"sources": ["a", "b"], "targets": ["a"]}),
        ("at least one pair", {"sources": [], "targets": []}),
        ("at most 1 tokens. Received 1 pair", {"max_length": 1}),
        ("`batch_size` must be a positive integer", {"batch_size": 0}),
    ],
)
def test_errors_of_batches(message, arguments):
    arguments = {"sources": ["ab"], "targets": ["ab"], **arguments}
    with pytest.raises(ValueError, match=message):
        text_batches(**arguments, source_tokenizer=LETTERS, target_tokenizer=LETTERS)


# The metric


def test_translation_metric_logs_what_the_metric_says():
    texts, seen = ["ab", "cd"], []

    def metric(outputs, references):
        seen.append((outputs, references))
        return len(seen)

    model = make()
    model.compile("sgd", MaskedCrossEntropy())
    callback = TranslationMetric(texts, [["x"], ["y"]], metric, "mine", every=2, beam_width=2)
    history = model.fit(
        text_batches(texts, texts, LETTERS, LETTERS), epochs=4, verbose=0, callbacks=[callback]
    )
    assert history.history["mine"] == [1.0, 2.0]
    assert seen[-1] == (model.translate(texts, beam_width=2), [["x"], ["y"]])


def test_errors_of_the_metric():
    with pytest.raises(ValueError, match="Received 2 and 1"):
        TranslationMetric(["a", "b"], ["a"], len)
    with pytest.raises(ValueError, match="`every` must be a positive integer"):
        TranslationMetric(["a"], ["a"], len, every=0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs a model with `translate`"):
        model.fit(np.ones((1, 1)), np.ones((1, 1)), callbacks=[TranslationMetric([], [], len)])


def test_words_go_in_and_out(eager):
    tokenizer = WordTokenizer.fit(["The dog runs.", "A cat sits."], lowercase=True)
    model = make(tokenizer, tokenizer)
    found = model.translate("The cat barks.", details=True)
    assert found.source_tokens == ["the", "cat", "⁇", "‿.", "</s>"]
    assert set(found.target_tokens) <= set(tokenizer.tokens)


# What a newcomer tried


@pytest.mark.parametrize(
    "options, named",
    [
        ({"unit": 8}, "'unit'"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"dropout": None}, "`dropout`"),
        ({"bidirectional": "no"}, "`bidirectional`"),
        ({"tied_embeddings": "yes"}, "`tied_embeddings`"),
        (
            {"attention": None, "attention_options": {"normalizer": "sparsemax"}},
            "attention_options",
        ),
    ],
)
def test_options_that_are_none_are_named(options, named):
    with pytest.raises((TypeError, ValueError), match=named):
        seq2seq(9, 8, **{"units": 4, **options})


def test_a_tokenizer_class_is_no_tokenizer():
    with pytest.raises(ValueError, match="`source`"):
        seq2seq(CharacterTokenizer, 8)


def test_the_units_of_bahdanau_can_be_chosen():
    options = {"units": 4, "attention": "bahdanau", "attention_options": {"units": 3}}
    assert seq2seq(9, 8, **options).get_layer("decoder").attention.units == 3


@pytest.mark.parametrize("texts", [None, 3, {"ab": 1}, {"ab"}])
def test_texts_that_are_no_list_are_refused(texts):
    with pytest.raises(ValueError, match="`texts`"):
        make(units=4).translate(texts)


def test_equal_looking_options_have_searches_of_their_own():
    model = make(units=4, cell="gru")
    texts = tensor(["ab"]) if BACKEND == "tensorflow" else np.array(["ab"], object)
    assert model.translate(np.array(["ab"]), max_length=3) == model.translate(texts, max_length=3)
    for wrong in ({"beam_width": 1.0}, {"beam_width": True}, {"max_length": 3.0}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`"):
            model.translate(["ab"], **{"max_length": 3, **wrong})
    # Arrays that NumPy shows alike are not taken for each other.
    many = np.zeros(2000, int)
    few = many.copy()
    few[1000] = 4
    with pytest.raises(ValueError, match="`forbidden_tokens`"):
        model.translate(["ab"], forbidden_tokens=few + 10**6)
    for tokens in (many, few):
        model.translate(["ab"], max_length=3, forbidden_tokens=tokens)
    assert len(model.inference.searches) >= (0 if BACKEND == "torch" else 3)


@pytest.mark.parametrize("texts", ["ab", None, iter(["ab"])])
def test_batches_take_lists(texts):
    with pytest.raises(ValueError, match="`sources`"):
        text_batches(texts, ["ab"], LETTERS, LETTERS)
