"""Causal language models: the paper's numbers, prompts, generating with a cache, training."""

import keras
import numpy as np
import pytest
import reference_models as ref
import tensorflow as tf
from backend import assert_allclose, to_numpy
from keras import ops
from transformer_models import model_weights, policy, randomise, unmoved

from keras_attention import CharacterTokenizer, MaskedCrossEntropy, attention_scores_model
from keras_attention.layers.sink import SinkSoftmax
from keras_attention.models.language_batches import language_batches
from keras_attention.models.language_model import CausalLM, causal_lm
from keras_attention.positions import RotaryPosition

LETTERS = CharacterTokenizer.fit(["abcdef"])
V = LETTERS.size
IDS = np.array([[4, 5, 6, 7, 8], [8, 4, 4, 0, 0], [6, 0, 0, 0, 0]])

CASES = {
    "rotary": {},
    "sinusoidal": {"position": "sinusoidal", "norm_first": False, "activation": "relu"},
    "learned": {"position": "learned", "max_length": 12},
    "alibi": {"position": "alibi", "tied_embeddings": False, "layers": 2},
    "relative": {"position": "relative", "normalization": "rms", "activation": "swiglu"},
    "no position": {"position": None},
    "window": {"attention_options": {"sliding_window": 2}},
    "groups": {"attention_options": {"num_key_value_heads": 1, "sliding_window": 3}},
}
EACH = pytest.mark.parametrize("case", CASES)


def make(case="rotary", tokenizer=V, scale=0.5, dtype="float64", **options):
    """A small model with random weights; by default in float64."""
    with policy(dtype):
        sizes = {"layers": 1, "units": 8, "num_heads": 2, "feedforward_size": 11}
        model = causal_lm(tokenizer, **{**sizes, **CASES[case], **options})
    return randomise(model, scale=scale)


MODELS = {}


def model_of(case):
    """One model with a tokenizer for all tests that do not change it."""
    if case not in MODELS:
        MODELS[case] = make(case, LETTERS)
    return MODELS[case]


@pytest.fixture
def eager():
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def log_softmax(model, ids):
    return np.asarray(keras.ops.log_softmax(model(np.asarray(ids), training=False)))


@EACH
def test_logits_equal_the_paper(case):
    model, options = model_of(case), CASES[case]
    expected = ref.language_model(
        IDS,
        model_weights(model),
        options.get("activation", "gelu"),
        options.get("norm_first", True),
        options.get("position", "rotary"),
        options.get("attention_options", {}).get("sliding_window"),
    )
    logits = np.asarray(model(IDS, training=False))
    assert logits.shape == (3, 5, V)
    assert_allclose(logits[IDS != 0], expected[IDS != 0], rtol=1e-9, atol=1e-9)


@EACH
def test_no_step_sees_a_later_one(case):
    """Exactly; and padding behind, and what else is in the batch, change nothing."""
    model, rng = model_of(case), np.random.default_rng(1)
    ids = rng.integers(4, V, (2, 6))
    before = np.asarray(model(ids))
    for t in (1, 3, 5):
        changed = ids.copy()
        changed[:, t:] = 4 + (changed[:, t:] - 3) % (V - 4)
        after = np.asarray(model(changed))
        assert np.array_equal(after[:, :t], before[:, :t])
        assert np.abs(after[:, t] - before[:, t]).max() > 0
    wide, logits = np.pad(IDS, [(0, 0), (0, 3)]), np.asarray(model(IDS))
    assert_allclose(np.asarray(model(wide))[:, :5][IDS != 0], logits[IDS != 0])
    for row, ids in enumerate(IDS):
        alone = model(ids[None, ids != 0])[0]
        assert_allclose(alone, logits[row, ids != 0], rtol=1e-9)


# Prompts


def padded_left(rows, width):
    return np.array([[0] * (width - len(row)) + list(row) for row in rows])


PROMPTS = [[4, 5, 6, 7], [8], [5, 5]]


@EACH
def test_reading_prompts_and_stepping_equal_the_full_pass(case):
    """Prompts of different lengths, padded on the left: each as alone, without padding."""
    model, more = model_of(case), [4, 6, 5]
    for width in (4, 6):
        tokens, state = model.start(padded_left(PROMPTS, width), max_length=4)
        steps = []
        for token in (tokens, *(ops.full([3], x, "int32") for x in more)):
            logits, state = model.step(token, state)
            steps.append(logits)
        for row, prompt in enumerate(PROMPTS):
            full = np.asarray(model(np.array([prompt + more])))[0, len(prompt) - 1 :]
            found = [x[row] for x in steps]
            assert_allclose(found, full, rtol=1e-8, atol=1e-8)


@EACH
def test_search_equals_a_loop_without_cache(case):
    model, length = model_of(case), 4
    greedy = model.search(padded_left(PROMPTS, 5), max_length=length)
    beam = model.search(padded_left(PROMPTS, 5), max_length=length, beam_width=2, num_results=2)
    one = model.search(padded_left(PROMPTS, 4), max_length=length, num_results=1)
    np.testing.assert_array_equal(one.ids[:, 0], greedy.ids)
    for row, prompt in enumerate(PROMPTS):
        ids = list(prompt)
        for _ in range(length):
            gains = log_softmax(model, [ids])[0, -1].copy()
            gains[:2] = -np.inf  # padding and start are forbidden
            ids.append(gains.argmax())
            if ids[-1] == 2:
                break
        new = ids[len(prompt) :]
        np.testing.assert_array_equal(greedy.ids[row], new + [0] * (length - len(new)))
        found = [(greedy.ids[row], greedy.scores[row])]
        found += list(zip(beam.ids[row], beam.scores[row], strict=True))
        for new, score in found:
            new = [x for x in np.asarray(new) if x]
            gains = log_softmax(model, [prompt + new])[0, len(prompt) - 1 : -1]
            assert_allclose(score, gains[range(len(new)), new].sum(), rtol=1e-5)
        assert len({tuple(x) for x in to_numpy(beam.ids[row])}) == 2


def test_the_cache_of_a_window_keeps_no_more_than_the_window():
    tokens, state = model_of("window").start(np.full((2, 9), 4), max_length=50)
    assert {cache["keys"].shape[2] for cache in state} == {1}  # besides the step itself
    _, state = model_of("window").step(tokens, state)
    assert {cache["keys"].shape[2] for cache in state} == {1}


# Generating


def test_generate():
    """In graphs: order, one text, none, an empty one, many at once."""
    model, short = model_of("alibi"), {"max_length": 6}
    prompts = ["abc", "f", "", "abcdefabc", "fedcba" * 8]
    texts = model.generate(prompts, **short)
    assert all(x.startswith(prompt) for x, prompt in zip(texts, prompts, strict=True))
    assert all(len(x) <= len(prompt) + 6 for x, prompt in zip(texts, prompts, strict=True))
    assert len({x[len(y) :] for x, y in zip(texts, prompts, strict=True)}) > 1
    for prompt, text in zip(prompts, texts, strict=True):
        assert model.generate(prompt, **short) == text
    assert model.generate([], **short) == []
    assert model.generate(tuple(prompts[:2]), **short) == texts[:2]
    assert model.generate(np.array(prompts[:2]), **short) == texts[:2]
    assert model.generate(prompts[:2] * 40, **short) == texts[:2] * 40
    # As searched for by hand: "f" is 9.
    found = model.search([[9]], max_length=6)
    assert model.generate("f", **short) == "f" + to_numpy(LETTERS.decode(found.ids))[0].decode()
    found = model.search([[1]], max_length=6)  # an empty one begins with START
    assert texts[2] == to_numpy(LETTERS.decode(found.ids))[0].decode()


def test_several_results_and_sampling(eager):
    model, short = model_of("rotary"), {"max_length": 5}
    several = model.generate(["ab", "f"], beam_width=3, num_results=2, **short)
    assert [len(x) for x in several] == [2, 2] and several[0][0] != several[0][1]
    assert [x[0] for x in several] == model.generate(["ab", "f"], beam_width=3, **short)
    assert model.generate("ab", beam_width=3, num_results=2, **short) == several[0]
    draws = [model.generate(["ab"] * 8, temperature=2.0, seed=s, **short) for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2] and len(set(draws[0])) > 1
    drawn = model.generate("ab", temperature=2.0, num_results=5, seed=3, **short)
    assert len(drawn) == 5 and all(x.startswith("ab") for x in drawn)
    assert model.generate("ab", top_k=1, **short) == model.generate("ab", **short)


def test_compiled_by_xla():
    """The same texts; batches of like size share a compiled search."""
    model, short = model_of("learned"), {"max_length": 3}
    for prompts in (["abc"], ["abc", "f", "bcd"], ["abc", "f", "bcd", "e"]):
        before = len(model._searches)
        assert model.generate(prompts, **short, jit_compile=True) == model.generate(
            prompts, **short
        )
    assert len(model._searches) == before  # three were padded to four
    with pytest.raises(ValueError, match="`jit_compile` must be"):
        model.generate("a", jit_compile="yes")


def test_learned_positions_that_do_not_suffice(eager):
    model = model_of("learned")
    assert model.generate("abcd", max_length=9).startswith("abcd")  # 3 before, 9 steps
    with pytest.raises(ValueError, match="Prompts of 4 tokens.*= 10 more need 13.*has 12"):
        model.generate("abcd", max_length=10)
    with pytest.raises(ValueError, match="need 102 positions. The model has 12"):
        model.generate(["ab", "abc"])
    with pytest.raises(ValueError, match="Prompts of 14 tokens.*The model has 12"):
        model.search(np.full((1, 14), 4), max_length=1, beam_width=2)
    with pytest.raises(ValueError, match="0 to 11.*max_length = 12.*sequence of 13 steps"):
        model(np.full((1, 13), 4))


# Saving


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rotary", "learned", "relative", "groups", "pieces"])
def test_saved_loaded_and_cloned(eager, tmp_path, case):
    pieces = {"position": RotaryPosition(base=100.0), "normalizer": SinkSoftmax("ones")}
    options = {"attention_options": pieces} if case == "pieces" else {}
    name = "no position" if case == "pieces" else case
    options |= {"dtype": "float32", "name": "mine"}
    model = make(name, LETTERS, **options)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = CausalLM.from_config(model.get_config())
    clone.set_weights(model.get_weights())
    other = make(name, LETTERS, scale=0.1, **options)
    other.load_weights(tmp_path / "model.weights.h5")
    expected = model.generate(["abc", "f"], beam_width=2, max_length=2)
    for copy in (loaded, clone, other):
        assert copy.name == "mine" and copy.get_config() == model.get_config()
        np.testing.assert_array_equal(copy(IDS), model(IDS))
    assert loaded.generate(["abc", "f"], beam_width=2, max_length=2) == expected


@pytest.mark.slow
def test_an_exported_model_computes_the_same(tmp_path):
    model = make("relative", dtype="float32")
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")
    assert_allclose(loaded.serve(IDS), model(IDS), rtol=1e-5, atol=1e-5)


# Training


def test_a_step_of_training_moves_every_weight():
    for case in ("rotary", "learned", "alibi", "relative"):
        model = make(case, dtype="float32")
        before = {weight.path: to_numpy(weight) for weight in model.trainable_weights}
        model.compile(keras.optimizers.SGD(1.0), MaskedCrossEntropy(), run_eagerly=True)
        assert np.isfinite(model.train_on_batch(IDS, np.roll(IDS, -1, axis=1)))
        assert not unmoved(model, before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(eager, name):
    model = make("rotary", LETTERS, dtype=name)
    model.compile("adam", MaskedCrossEntropy(), run_eagerly=True)
    assert np.isfinite(model.train_on_batch(IDS, np.roll(IDS, -1, axis=1)))
    assert len(model.generate(["ab", "f"], max_length=3)) == 2
    table = model.get_layer("embedding").embeddings
    table.assign(table * 1000)
    assert np.isfinite(np.asarray(model.decoder(model.embed(IDS))).astype("float32")).all()
    assert np.isfinite(model.evaluate(IDS, np.roll(IDS, -1, axis=1), verbose=0))


@pytest.mark.slow
def test_xla_trains_as_the_graph_does():
    losses = []
    for jit_compile in (False, True):
        model = make("alibi", dtype="float32", layers=1, dropout=0.0)
        model.compile("sgd", MaskedCrossEntropy(), jit_compile=jit_compile)
        losses.append([model.train_on_batch(IDS, np.roll(IDS, -1, axis=1)) for _ in range(2)])
    assert_allclose(*losses, rtol=1e-4)


@pytest.mark.slow
def test_fit_learns_a_text_and_goes_on_with_it():
    """A text of which each letter follows from the two before it."""
    text = "abcadc" * 100
    ids = LETTERS.encode([text])[0]
    model = causal_lm(LETTERS, layers=1, units=16, num_heads=2, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossEntropy())
    model.fit(language_batches(ids, length=12, batch_size=16), epochs=12, verbose=0)
    for prompt in ("ab", "abcad", "cadcabc"):
        expected = (prompt + text[text.find(prompt) + len(prompt) :])[: len(prompt) + 12]
        assert model.generate(prompt, max_length=12) == expected


def test_attention_weights_by_name():
    scores = attention_scores_model(model_of("alibi"))(IDS)
    assert sorted(scores) == ["decoder/block_1/self", "decoder/block_2/self"]
    weights = np.asarray(scores["decoder/block_2/self"])
    assert weights.shape == (3, 2, 5, 5) and np.all(np.triu(np.ones((5, 5)), 1) * weights == 0)


# Bad input


@pytest.mark.parametrize(
    "message, options",
    [
        ("`tokenizer` must be a tokenizer, or a number", {"tokenizer": 2}),
        ("`layers` must be a positive integer", {"layers": 0}),
        ("`units` must be a positive integer", {"units": 0}),
        ("`num_heads` = 3 must divide.*8 features", {"num_heads": 3}),
        ("`position` must be one of", {"position": "rope"}),
        ("`max_length`.*goes with.*9 with 'rotary'", {"max_length": 9}),
        ("`tied_embeddings`", {"tied_embeddings": "all"}),
        ("`normalization` must be one of", {"normalization": "batch"}),
        ("`activation` must be one of", {"activation": "tanh"}),
        ("`dropout` must lie", {"dropout": 1.0}),
        ("`attention_options` must be a dictionary", {"attention_options": ["rotary"]}),
        ("(?i)odd|even", {"units": 6}),
    ],
)
def test_errors_name_the_argument(message, options):
    with pytest.raises(ValueError, match=message):
        causal_lm(**{"tokenizer": 9, "units": 8, "num_heads": 2, **options})


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="CausalLM has no argument 'decoder_layers'"):
        causal_lm(9, decoder_layers=2)


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
def test_errors_of_generate_name_the_option(eager, message, options):
    with pytest.raises(ValueError, match=message):
        model_of("rotary").generate(["abc"], **options)


@pytest.mark.parametrize("prompts", [None, 3, {"ab": 1}, {"ab"}, [1], ["a", b"\xff"]])
def test_prompts_that_are_none(prompts):
    with pytest.raises(ValueError, match="texts|prompts"):
        model_of("rotary").generate(prompts)


def test_ids_that_are_none():
    model = make()
    assert model.search([[4, 5]], max_length=2).ids.shape == (1, 2)
    assert model.search(np.zeros((0, 3), int), max_length=2).ids.shape == (0, 2)
    for ids in ([[0.5]], [4, 5], np.zeros((2, 0), int)):
        with pytest.raises(ValueError, match="`ids` must"):
            model.search(np.array(ids), max_length=3)
    with pytest.raises(ValueError, match="`generate` needs a model .* with a tokenizer"):
        model.generate("ab")
