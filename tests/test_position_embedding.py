"""Layers that add positions to embeddings."""

import keras
import numpy as np
import pytest
import reference_positions as ref
import tensorflow as tf
from backend import assert_allclose, compiled, differentiate, dtype_of, tensor, to_numpy
from conftest import MODES, rounded
from keras import ops

from keras_attention.layers.position_embedding import LearnedEmbedding, SinusoidalEmbedding

B, T, D, L = 2, 5, 6, 9
PACKED = np.array([[0, 1, 2, 0, 1], [0, 0, 8, 1, 2]])
LAYERS = {
    "sinusoidal": lambda **kwargs: SinusoidalEmbedding(base=100.0, **kwargs),
    "learned": lambda **kwargs: LearnedEmbedding(L, **kwargs),
}


@pytest.fixture(params=list(LAYERS))
def make(request):
    return LAYERS[request.param]


def expected(layer, positions):
    """The encoding in float64."""
    if isinstance(layer, SinusoidalEmbedding):
        return ref.sinusoidal(positions, D, 100.0)
    return to_numpy(ops.cast(layer.get_weights()[0], "float64"))[positions]


@pytest.mark.parametrize("positions", [None, np.arange(2, 2 + T), PACKED], ids=["-", "T", "BT"])
def test_adds_the_encoding(make, run, rng, dtype, positions, assert_close):
    layer = make(dtype=dtype)
    x, exact = rounded(rng.normal(size=(B, T, D)), dtype)
    layer.build(x.shape)
    want = exact + expected(layer, np.arange(T) if positions is None else positions)
    if positions is None:
        assert_close(run(layer, x), want, dtype)
    else:
        assert_close(run(lambda x, p: layer(x, positions=p), x, positions), want, dtype)
    assert dtype_of(layer(x)) == dtype


def test_one_step_equals_the_whole(make, run, rng, assert_close):
    layer, x = make(), rng.normal(size=(B, T, D)).astype("float32")
    whole = to_numpy(layer(x, positions=PACKED))
    for t in range(T):
        step = run(lambda x, p: layer(x, positions=p), x[:, t], PACKED[:, t])
        assert_close(step, whole[:, t])
    assert_close(layer(x[:, 3], positions=3), to_numpy(layer(x))[:, 3])


def test_encodings_differ_between_positions(make):
    rows = to_numpy(make()(np.zeros((1, T, D), "float32")))[0]
    assert (np.abs(rows[1:] - rows[:-1]).max(-1) > 1e-4).all()


def test_functional_model_with_any_length(make, tmp_path, rng):
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(7, D, mask_zero=True)(tokens)
    model = keras.Model(tokens, make()(x))
    assert model.outputs[0].shape == (None, None, D)
    ids = np.array([[3, 4, 0], [5, 0, 0]])
    assert np.array_equal(keras.ops.not_equal(ids, 0), model(ids)._keras_mask)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for steps in (1, 3, L):
        ids = rng.integers(1, 7, size=(B, steps))
        assert np.array_equal(model(ids), loaded(ids))
    assert loaded.layers[-1].get_config() == model.layers[-1].get_config()


def test_functional_model_with_positions(make, rng, assert_close):
    x, positions = keras.Input((None, D)), keras.Input((None,), dtype="int32")
    layer = make()
    model = keras.Model([x, positions], layer(x, positions=positions))
    array = rng.normal(size=(B, T, D)).astype("float32")
    assert_close(model([array, PACKED]), array + expected(layer, PACKED))
    assert_close(model.predict([array, PACKED], verbose=0), array + expected(layer, PACKED))


def test_mask_is_carried_with_positions_too(make):
    x = keras.layers.Masking()(np.array([[[1.0] * D, [0.0] * D]]))
    for output in (make()(x), make()(x, positions=np.array([4, 5]))):
        assert to_numpy(output._keras_mask).tolist() == [[True, False]]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(make, policy, rng, assert_close):
    layer = make(dtype=policy)
    x, exact = rounded(rng.normal(size=(B, T, D)), policy[6:])
    output = layer(x, positions=PACKED)
    assert dtype_of(output) == policy[6:]
    assert_close(output, exact + expected(layer, PACKED), policy[6:])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_trains(make, jit_compile, rng):
    model = keras.Sequential([keras.Input((None, D)), make(), keras.layers.Dense(1)])
    before = [w.copy() for w in model.layers[0].get_weights()]
    model.compile("sgd", "mse", jit_compile=jit_compile)
    model.fit(rng.normal(size=(B, T, D)), rng.normal(size=(B, T, 1)), verbose=0)
    for old, new in zip(before, model.layers[0].get_weights(), strict=True):
        assert (np.abs(new - old).max(-1) > 0).tolist() == [True] * T + [False] * (L - T)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("positions", [None, PACKED], ids=["first", "packed"])
def test_gradient_counts_how_often_a_position_came(run, positions):
    layer, x = LearnedEmbedding(L, dtype="float64"), np.ones((B, T, D))
    layer.build(x.shape)

    def gradient(x):
        return differentiate(lambda x: layer(x, positions=positions) * x, [x], layer.weights)[1]

    came = np.tile(np.arange(T), (B, 1)) if positions is None else positions
    counts = np.bincount(came.ravel(), minlength=L).astype("float64")
    assert np.array_equal(run(gradient, x), np.repeat(counts[:, None], D, 1))


@pytest.mark.parametrize("optimizer", [
    lambda: keras.optimizers.Adam(0.01),
    lambda: keras.optimizers.SGD(1.0, global_clipnorm=1e-3),
], ids=["adam", "clipped"])  # fmt: skip
def test_optimizers_see_the_sum_of_the_gradients(optimizer, rng):
    """Given positions train as those that are counted, though each comes once a sample."""
    x, target = rng.normal(size=(4, T, D)), np.ones((4, T, 1))
    weights = []
    for positions in (None, np.tile(np.arange(T), (4, 1))):
        layer, dense = (
            LearnedEmbedding(L, "zeros"),
            keras.layers.Dense(1, kernel_initializer="ones"),
        )
        inputs = keras.Input((T, D), batch_size=4)
        model = keras.Model(inputs, dense(layer(inputs, positions=positions)))
        model.compile(optimizer(), "mse")
        model.fit(x, target, epochs=2, verbose=0)
        weights.append(layer.get_weights()[0])
    assert_allclose(weights[0], weights[1], rtol=1e-4)
    assert (np.abs(weights[0][:T]) > 0).all()


def test_config(make):
    layer = make(name="positions")
    config = layer.get_config()
    layer.build((None, None, D))
    assert layer.get_config() == config
    again = type(layer).from_config(config)
    assert again.get_config() == config
    assert "base" in config or config["max_length"] == L


def test_initializer():
    layer = LearnedEmbedding(L, initializer="ones")
    assert to_numpy(layer(np.zeros((1, 2, D), "float32"))).tolist() == [[[1.0] * D] * 2]


def test_output_shape(make):
    for shape in ((None, None, D), (B, T, D)):
        assert make().compute_output_shape(shape) == shape


# Bad input.


@pytest.mark.tensorflow_only("errors that a graph raises when it runs")
@pytest.mark.parametrize(
    ("positions", "wrong"), [([0, 1, 9], 9), ([[0, 1, 2], [3, 99, 10]], 99), ([-1, 0, 1], -1)]
)
def test_positions_out_of_range(positions, wrong):
    """Both sizes are named; in a graph the positions are known when it runs."""
    layer, x = LearnedEmbedding(L), np.zeros((B, 3, D), "float32")
    with pytest.raises(ValueError, match=rf"max_length = {L}. Received position {wrong}\D"):
        layer(x, positions=np.array(positions))
    graph = tf.function(lambda x, p: layer(x, positions=p))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"max_length = {L}.*{wrong}"):
        graph(x, tensor(positions))


@pytest.mark.parametrize("positions", [[0, 1, 9], [[0, 1, 2], [3, 99, 10]], [-1, 0, 1]])
def test_positions_out_of_range_under_xla(positions):
    """There, and on other backends than TensorFlow, the output of such a position is NaN."""
    layer, x = LearnedEmbedding(L), np.zeros((B, 3, D), "float32")
    layer.build(x.shape)
    output = to_numpy(
        compiled(lambda x, p: layer(x, positions=p), jit_compile=True)(x, tensor(positions))
    )
    outside = np.broadcast_to((np.array(positions) < 0) | (np.array(positions) >= L), (B, 3))
    assert np.array_equal(np.isnan(output), np.repeat(outside[..., None], D, -1))


def test_sequences_that_are_too_long():
    layer = LearnedEmbedding(L)
    complaint = rf"max_length = {L}. Received position {L}, of a sequence of {L + 1} steps"
    with pytest.raises(ValueError, match=complaint):
        layer(np.zeros((1, L + 1, D), "float32"))
    with pytest.raises(ValueError, match=complaint):
        layer(keras.Input((L + 1, D)))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_sequences_that_are_too_long_in_a_graph():
    layer = LearnedEmbedding(L)
    graph = tf.function(layer, input_signature=[tf.TensorSpec((None, None, D))])
    assert graph(ops.zeros((1, L, D))).shape == (1, L, D)
    assert graph(ops.zeros((1, 0, D))).shape == (1, 0, D)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"max_length = {L}.*{L}"):
        graph(ops.zeros((1, L + 1, D)))


def test_a_functional_model_is_refused_when_it_is_made(make):
    x = keras.Input((T, D))
    with pytest.raises(ValueError, match=r"T = 5.*\(None, 4\)"):
        make()(x, positions=keras.Input((4,), dtype="int32"))
    with pytest.raises(ValueError, match="`positions` must be integers"):
        make()(x, positions=keras.Input((T,)))


@pytest.mark.parametrize(
    ("x", "positions", "complaint"),
    [
        ((B, T, D), np.arange(4), r"T = 5.*\(2, 5, 6\).*\(4,\)"),
        ((B, T, D), np.zeros((3, T), int), r"\(2, 5, 6\).*\(3, 5\)"),
        ((B, T, D), np.zeros((B, 1), int), r"T = 5.*\(2, 1\)"),
        ((B, T, D), np.arange(5.0), "`positions` must be integers"),
        ((B, D), None, "`positions` must be given for one step"),
        ((B, D), np.arange(3), r"\[B\].*\(2, 6\).*\(3,\)"),
        ((B, 1, T, D), None, r"`x` must have shape \[B, T, D\].*\(2, 1, 5, 6\)"),
    ],
)
def test_bad_shapes(make, x, positions, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()(np.zeros(x, "float32"), positions=positions)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: LearnedEmbedding(0), "`max_length` must be a positive integer"),
        (lambda: LearnedEmbedding(4.0), "`max_length`"),
        (lambda: SinusoidalEmbedding(base=-1), "`base` must be a positive number"),
        (lambda: SinusoidalEmbedding()(np.array([[[1, 2]]])), "`x` must be floating"),
    ],
)
def test_bad_arguments(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
