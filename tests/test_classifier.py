"""Classifiers of texts: the papers' numbers, empty texts, classifying, saving, training."""

import keras
import numpy as np
import pytest
import reference_models as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, differentiate, to_numpy
from conftest import numerical_gradient
from keras import ops
from transformer_models import model_weights, policy, randomise, unmoved

from keras_attention import CharacterTokenizer, attention_scores_model
from keras_attention.layers.sink import SinkSoftmax
from keras_attention.models.classifier import TextClassifier, text_classifier

LETTERS = CharacterTokenizer.fit(["abcdef"])
V = LETTERS.size
NAMES = ["good", "bad", "neither"]
IDS = np.array([[4, 5, 6, 7, 8], [8, 4, 4, 0, 0], [0, 0, 0, 0, 0]])

CASES = {
    "sinusoidal": {},
    "learned": {"position": "learned", "max_length": 8, "norm_first": False},
    "rotary": {"position": "rotary", "normalization": "rms", "activation": "swiglu"},
    "alibi": {"position": "alibi", "layers": 2},
    "relative": {"position": "relative", "activation": "gelu"},
    "no position": {"position": None},
    "groups": {"attention_options": {"num_key_value_heads": 1, "sliding_window": 2}},
}
EACH = pytest.mark.parametrize("case", CASES)


def make(case="sinusoidal", tokenizer=V, dtype="float64", seed=5, **options):
    """A small model with random weights; by default in float64."""
    with policy(dtype):
        sizes = {"layers": 1, "units": 8, "num_heads": 2, "feedforward_size": 11}
        model = text_classifier(tokenizer, NAMES, **{**sizes, **CASES[case], **options})
    return randomise(model, seed, scale=0.5)


@EACH
def test_logits_equal_the_papers(case):
    model, options = make(case), CASES[case]
    expected = ref.classifier(
        IDS,
        model_weights(model),
        options.get("activation", "relu"),
        options.get("norm_first", True),
        options.get("position", "sinusoidal"),
        options.get("attention_options", {}).get("sliding_window"),
    )
    logits = np.asarray(model(IDS, training=False))
    assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)
    # Nothing of the empty sample, neither positions nor biases, comes through.
    np.testing.assert_array_equal(logits[2], model.get_layer("logits").bias)
    wide = model(np.pad(IDS, [(0, 0), (0, 3)]))
    assert_allclose(wide, logits, rtol=1e-9, atol=1e-9)
    assert_allclose(model(IDS[1:2, :3]), logits[1:2], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pooling", ["mean", "max", "sum", "first", "last"])
def test_pooling_and_empty_samples(pooling):
    """Of real steps alone; a sample without any gives 0."""
    model = make(pooling=pooling)
    pooled = keras.Model(model.input, model.get_layer("pooling").output)
    x = to_numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(IDS)[0])
    expected = {"mean": x.mean(0), "max": x.max(0), "sum": x.sum(0), "first": x[0], "last": x[-1]}
    assert_allclose(pooled(IDS)[0], expected[pooling], rtol=1e-9)
    np.testing.assert_array_equal(pooled(IDS)[2], np.zeros(8))


def test_gradients_with_an_empty_sample():
    """Empty samples alone have gradient 0 but for the last bias; in company they add nothing."""
    model = make("relative")
    weights = model.trainable_weights

    def loss(ids):
        def value():
            return ops.sum(ops.log_softmax(model(ids))[:, 0])

        return value(), to_numpy(differentiate(value, variables=weights))

    _, alone = loss(IDS[2:])
    for weight, gradient in zip(weights, alone, strict=True):
        if weight.path.endswith("logits/bias"):
            assert np.abs(gradient).max() > 0
        else:
            assert np.all(gradient == 0)
    _, both = loss(IDS)
    _, without = loss(IDS[:2])
    for weight, a, b in zip(weights, both, without, strict=True):
        if not weight.path.endswith("logits/bias"):
            assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    # And the gradient is that of the function.
    kernel = model.get_layer("logits").kernel
    index = [i for i, w in enumerate(weights) if w is kernel][0]

    def moved(values):
        before = to_numpy(kernel)
        kernel.assign(values)
        value, _ = loss(IDS)
        kernel.assign(before)
        return value

    assert_allclose(both[index], numerical_gradient(moved, to_numpy(kernel)), atol=1e-6)


# Classifying


def test_classify():
    model, texts = make(tokenizer=LETTERS), ["abc", "f", "", "abcdefabc", "ddd", "dddd"]
    names = model.classify(texts)
    assert set(names) <= set(NAMES) and len(set(names)) > 1
    shares = model.classify(texts, probabilities=True)
    assert shares.shape == (6, 3)
    assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    assert names == [NAMES[i] for i in shares.argmax(axis=1)]
    for some in (1, 4):  # not a matter of the batch
        assert_allclose(
            model.classify(texts, probabilities=True, batch_size=some), shares, rtol=1e-6
        )
    assert model.classify("abc") == names[0]  # one text, not its letters
    assert_allclose(model.classify("abc", probabilities=True), shares[0], rtol=1e-6)
    assert model.classify(tuple(texts)) == model.classify(np.array(texts)) == names
    assert model.classify([]) == [] and model.classify([], probabilities=True).shape == (0, 3)
    assert model.classify("") == names[2]
    assert make(tokenizer=LETTERS, layers=1).class_names == NAMES
    assert text_classifier(9, 2, layers=1, units=8).class_names == ["0", "1"]


def test_learned_positions_that_do_not_suffice():
    model = make("learned", LETTERS)
    assert model.classify("abcdefab") in NAMES
    with pytest.raises(ValueError, match="0 to 7.*max_length = 8.*sequence of 9 steps"):
        model.classify("abcdefabc")


# Saving


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sinusoidal", "learned", "rotary", "relative", "sinks"])
def test_saved_loaded_and_cloned(tmp_path, case):
    options = {"dtype": "float32", "pooling": "max", "name": "mine"}
    if case == "sinks":
        case, options["attention_options"] = "alibi", {"normalizer": SinkSoftmax("ones")}
    model = make(case, LETTERS, **options)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = TextClassifier.from_config(model.get_config())
    clone.set_weights(model.get_weights())
    other = make(case, LETTERS, seed=9, **options)
    assert not np.allclose(other(IDS), model(IDS))
    other.load_weights(tmp_path / "model.weights.h5")
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    for copy in (loaded, clone, other, plain):
        assert_allclose(copy(IDS), model(IDS), rtol=1e-6, atol=1e-6)
    for copy in (loaded, clone, other):
        assert copy.name == "mine" and copy.get_config() == model.get_config()
        assert copy.classify(["abc", ""]) == model.classify(["abc", ""])


@pytest.mark.skipif(BACKEND == "torch", reason="SavedModels and the command `keras-attention`")
def test_an_exported_model_computes_the_same(tmp_path):
    model = make("rotary", dtype="float32")
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")
    assert_allclose(loaded.serve(IDS), model(IDS), rtol=1e-5, atol=1e-5)


# Training


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_a_step_of_training(name):
    """It moves every weight, with an empty sample in the batch; and large activations."""
    model = make("rotary", dtype=name)
    before = {weight.path: to_numpy(weight) for weight in model.trainable_weights}
    model.compile(keras.optimizers.SGD(1.0), loss(), run_eagerly=True)
    assert np.isfinite(model.train_on_batch(IDS, np.array([0, 1, 2])))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    if name == "float32":
        assert not unmoved(model, before)
    table = model.get_layer("embedding").embeddings
    table.assign(table * 1000)
    assert np.isfinite(np.asarray(model(IDS)).astype("float32")).all()


@pytest.mark.slow
def test_xla_trains_as_the_graph_does():
    losses = []
    for jit_compile in (False, True):
        model = make("relative", dtype="float32", layers=1, dropout=0.0)
        model.compile("sgd", loss(), jit_compile=jit_compile)
        losses.append([model.train_on_batch(IDS, np.array([0, 1, 2])) for _ in range(2)])
    assert_allclose(*losses, rtol=1e-4)


@pytest.mark.slow
def test_fit_learns_which_letter_comes_first():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.permutation(list("abcdef"))) for _ in range(200)]
    right = [NAMES[text.index("a") < text.index("b")] for text in texts]
    model = text_classifier(LETTERS, NAMES[:2], layers=1, units=16, num_heads=2, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.01), loss())
    labels = np.array([NAMES.index(name) for name in right])
    model.fit(to_numpy(LETTERS.encode(texts)), labels, epochs=20, batch_size=20, verbose=0)
    found = model.classify(texts)
    assert np.mean([a == b for a, b in zip(found, right, strict=True)]) > 0.9


def test_attention_weights_by_name():
    scores = attention_scores_model(make("alibi"))(IDS)
    assert sorted(scores) == ["encoder_1/self", "encoder_2/self"]
    weights = np.asarray(scores["encoder_2/self"])
    assert (
        weights.shape == (3, 2, 5, 5)
        and np.all(weights[2] == 0)
        and np.all(weights[1, ..., 3:] == 0)
    )


# Bad input


@pytest.mark.parametrize(
    "message, options",
    [
        ("`tokenizer` must be a tokenizer, or a number", {"tokenizer": 2}),
        ("`classes` must be a list of names, or a number", {"classes": "abc"}),
        ("`classes` must be a list of names, or a number", {"classes": []}),
        ("`classes` must be a positive integer", {"classes": 0}),
        ("`classes` must be different names", {"classes": ["a", "a"]}),
        ("`mode` must be one of|`pooling`", {"pooling": "median"}),
        ("`layers` must be a positive integer", {"layers": 0}),
        ("`num_heads` = 3 must divide.*8 features", {"num_heads": 3}),
        ("`position` must be one of", {"position": "rope"}),
        ("`max_length`.*goes with.*None with 'learned'", {"position": "learned"}),
        ("`dropout` must lie", {"dropout": 1.0}),
        ("`attention_options` must be a dictionary", {"attention_options": "rotary"}),
    ],
)
def test_errors_name_the_argument(message, options):
    with pytest.raises(ValueError, match=message):
        text_classifier(**{"tokenizer": 9, "classes": 2, "units": 8, "num_heads": 2, **options})


def test_unknown_arguments_and_texts_that_are_none():
    with pytest.raises(TypeError, match="TextClassifier has no argument 'tied_embeddings'"):
        text_classifier(9, 2, tied_embeddings=True)
    model = make(tokenizer=LETTERS, layers=1)
    for texts in (None, 3, {"ab": 1}, [1], ["a", b"\xff"]):
        with pytest.raises(ValueError, match="texts"):
            model.classify(texts)
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        model.classify(["a"], batch_size=0)
    with pytest.raises(ValueError, match="`classify` needs a model .* with a tokenizer"):
        make(layers=1).classify(["a"])
