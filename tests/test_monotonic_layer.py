"""`MonotonicAlignment`, the monotonic normaliser of a layer: training, inference, decoders."""

import copy

import keras
import numpy as np
import pytest
import reference_normalizers as normalizers_ref
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy, variable_of
from conftest import MODES, assert_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_layers import close, randomise

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    MonotonicAlignment,
    ScaledDotProductAttention,
)

B, T, S, D = 2, 4, 6, 3
VALUE_MASK = np.array([[0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0]], bool)


def make(dtype="float64", scale=1.5, seed=5, **options):
    """An additive layer with random weights of that size."""
    layer = BahdanauAttention(4, normalizer=MonotonicAlignment(dtype=dtype, **options), dtype=dtype)
    layer.build((None, None, D), (None, None, D))
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(scale * rng.normal(size=weight.shape))
    return layer


def draw(rng, dtype="float64"):
    return [rng.normal(size=shape).astype(dtype) for shape in ((B, T, D), (B, S, D))]


def choosing_probabilities(layer, query, value, mask):
    """sigmoid(v^T tanh(W q + U k) + r), `[B, T, S]`, 0 where masked."""
    W, U = to_numpy(layer.query_projection.kernel), to_numpy(layer.key_projection.kernel)
    hidden = np.tanh((query @ W)[:, :, None] + (value @ U)[:, None])
    p = 1 / (1 + np.exp(-(hidden @ to_numpy(layer.v) + float(layer.normalizer.r))))
    return np.where(mask[:, None], p, 0)


def by_the_equations(p, mask, row):
    """Weights `[B, T, S]`; `row(p, previous)` gives one row of the reference."""
    weights = np.zeros(p.shape)
    for b in range(len(p)):
        previous = np.eye(S)[np.argmax(mask[b])]  # on the first step that is real
        for t in range(p.shape[1]):
            previous = weights[b, t] = row(p[b, t], previous)
    return weights


def weights_of(layer, query, value, **options):
    return layer(query, value, return_attention_scores=True, **options)[1]


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("way", ["parallel", "recursive"])
def test_equations(way, training, masked, rng):
    layer = make(mode=way, noise=0.0, scale=3.0, seed=21)
    query, value = draw(rng)
    mask = VALUE_MASK if masked else np.ones((B, S), bool)
    p = choosing_probabilities(layer, query, value, mask)
    row = normalizers_ref.monotonic if training else normalizers_ref.monotonic_hard
    expected = by_the_equations(p, mask, row)
    options = {"value_mask": mask} if masked else {}
    weights = weights_of(layer, query, value, training=training, **options)
    close(weights, expected, "float64")
    if not training:  # it moves, and some rows find nothing
        assert len(set(np.nonzero(expected)[2])) > 2 and expected.sum() < B * T


def test_parallel_equals_recursive_in_value_and_gradient(rng):
    query, value = draw(rng)
    results = []
    for way in ("parallel", "recursive"):
        layer = make(mode=way, noise=0.0)

        def call(layer=layer):
            return layer(query, value, return_attention_scores=True, training=True)

        def loss(call=call):
            context, weights = call()
            return ops.sum(context**2) + ops.sum(weights**3)

        results.append([*call(), *differentiate(loss, variables=layer.trainable_weights)])
    for a, b in zip(*results, strict=True):
        close(a, b, "float64")


def test_hard_is_for_inference_and_may_be_turned_off(rng):
    query, value = draw(rng)
    expected = weights_of(make(noise=0.0), query, value, training=True)
    close(weights_of(make(noise=0.0, hard=False), query, value), expected, "float64")
    close(weights_of(make(noise=9.0, hard=False), query, value), expected, "float64")
    assert np.abs(weights_of(make(), query, value) - expected).max() > 0.1


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), masked=st.booleans())
def test_inference_moves_on_or_ends(seed, masked):
    """Each row has one weight of 1, never before that of the row before, or none from there on."""
    layer = make(seed=seed, scale=3.0)
    query, value = draw(np.random.default_rng(seed))
    options = {"value_mask": VALUE_MASK} if masked else {}
    weights = to_numpy(weights_of(layer, query, value, **options))
    for rows, real in zip(weights, VALUE_MASK, strict=True):
        place, ended = 0, False
        for row in rows:
            assert set(row) <= {0.0, 1.0} and row.sum() <= 1
            assert not (ended and row.any())
            if row.any():
                assert np.argmax(row) >= place
                assert real[np.argmax(row)] or not masked
                place = np.argmax(row)
            ended = not row.any()


def test_noise_is_drawn_in_training_only(rng):
    query, value = draw(rng)
    noisy, quiet = make(noise=1.0, seed=5), make(noise=0.0, seed=5)
    for options in ({}, {"training": False}):
        first, second = (weights_of(noisy, query, value, **options) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, weights_of(quiet, query, value, **options))
    first, second = (weights_of(noisy, query, value, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    quiet_ones = [weights_of(quiet, query, value, training=True) for _ in range(2)]
    np.testing.assert_array_equal(*quiet_ones)


def test_noise_has_a_seed_and_differs_from_step_to_step():
    def one(seed):
        layer = ScaledDotProductAttention(normalizer=MonotonicAlignment(noise=2.0, seed=seed))
        return to_numpy(weights_of(layer, np.zeros((1, 3, 2)), np.zeros((1, 5, 2)), training=True))

    np.testing.assert_array_equal(one(3), one(3))
    assert np.abs(one(3) - one(4)).max() > 1e-3
    # All scores are 0: with the same noise in each step p would be the same.
    first, second, _ = one(3)[0]
    p = [first[0], second[0] / first[0]]
    assert abs(p[0] - p[1]) > 1e-3


def test_the_size_of_the_noise():
    """p of the first key is sigmoid(noise N(0, 1) + r): its logit has that mean and deviation."""
    normalizer = MonotonicAlignment(noise=0.5, bias=-1.0, seed=1)
    rows = 4000
    scores, start = np.zeros((rows, 1, 1)), np.ones((rows, 1, 1))
    p = np.float64(normalizer(scores, previous=start, training=True)).ravel()
    logits = np.log(p / (1 - p))
    assert abs(logits.mean() + 1.0) < 4 * 0.5 / rows**0.5
    assert abs(logits.std() - 0.5) < 4 * 0.5 / (2 * rows) ** 0.5


def test_r_starts_at_the_bias_and_is_trained():
    layer = BahdanauAttention(4, normalize=True, normalizer=MonotonicAlignment(bias=-4.0))
    layer.build((None, 3), (None, None, 3))
    r = layer.normalizer.r
    assert float(r) == -4.0 and any(w is r for w in layer.trainable_weights)
    assert len(layer.trainable_weights) == 6  # W, b, U, v, g, r


def test_gradients_are_the_numerical_ones(rng):
    """With respect to r and the weights of the score, inputs and the weights before."""
    layer = make(noise=0.0)
    query, value = draw(rng)
    query = query[:, :2]
    previous = rng.random((B, S))
    given = [variable_of(x) for x in (query, value, previous)]
    factors = [rng.normal(size=shape) for shape in ((B, 2, D), (B, 2, S), (B, S))]

    def loss():
        query, value, previous = map(tensor, given)
        results = layer(
            query,
            memory=layer.precompute(value, value_mask=VALUE_MASK),
            alignment={"previous": previous},
            return_attention_scores=True,
            training=True,
        )
        flat = keras.tree.flatten(results)
        return sum(ops.sum(tensor(f) * x) for f, x in zip(factors, flat, strict=True))

    assert_gradients(loss, given + layer.trainable_weights, 1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_modes(training, mode, rng):
    layer = make("float32", noise=0.0, scale=3.0)
    query, value = draw(rng, "float32")

    def call(query, value):
        return layer(
            query, value, value_mask=VALUE_MASK, return_attention_scores=True, training=training
        )

    results = MODES[mode](call)(tensor(query), tensor(value))
    p = choosing_probabilities(layer, np.float64(query), np.float64(value), VALUE_MASK)
    row = normalizers_ref.monotonic if training else normalizers_ref.monotonic_hard
    close(results[1], by_the_equations(p, VALUE_MASK, row))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(policy, rng):
    layer = make(policy, noise=0.0)
    query, value = draw(rng)
    exact = make("float64", noise=0.0)
    expected = weights_of(exact, query, value, training=True)
    weights = weights_of(layer, query, value, training=True)
    assert dtype_of(weights) == policy.removeprefix("mixed_")
    limit = 0.02 if "bf" not in policy else 0.1
    assert_allclose(to_numpy(weights), expected, atol=limit)


def test_padding_changes_nothing(rng):
    layer = make(noise=0.0, scale=2.0)
    query, value = draw(rng)
    for training in (True, False):
        expected = layer(query, value, return_attention_scores=True, training=training)
        padded = np.pad(value, ((0, 0), (2, 3), (0, 0)), constant_values=np.nan)
        mask = np.pad(np.ones((B, S), bool), ((0, 0), (2, 3)))
        context, weights = layer(
            query, padded, value_mask=mask, return_attention_scores=True, training=training
        )
        close(context, expected[0], "float64")
        close(weights[:, :, 2:-3], expected[1], "float64")


# In decoders


DECODERS = {
    "bahdanau": lambda attention: BahdanauDecoder(keras.layers.GRUCell(5), attention),
    "luong": lambda attention: LuongDecoder(keras.layers.GRUCell(5), attention),
    "feeding": lambda attention: LuongDecoder(
        keras.layers.GRUCell(5), attention, input_feeding=True
    ),
}


def decoder_of(kind, **options):
    attention = LuongAttention("general", normalizer=MonotonicAlignment(seed=1, **options))
    decoder = DECODERS[kind](attention)
    decoder.build((None, None, D), (None, None, D))
    return decoder


@pytest.mark.parametrize("kind", DECODERS)
def test_steps_of_a_decoder_equal_its_call_at_inference(kind, rng):
    decoder = randomise(decoder_of(kind))
    inputs, memory = draw(rng, "float32")
    outputs, weights = decoder(inputs, memory, memory_mask=VALUE_MASK, return_attention_scores=True)
    assert set(np.unique(weights)) == {0.0, 1.0}
    prepared = decoder.precompute(memory, VALUE_MASK)
    state = decoder.start_state(prepared)
    for t in range(T):
        output, step_weights, state = decoder.step(inputs[:, t], state, prepared, True)
        close(output, outputs[:, t])
        close(step_weights, weights[:, t])


def test_a_decoder_trains(rng):
    """The expected weights and noise in training, however deep the layer lies in the model."""
    inputs, memory = keras.Input((None, D)), keras.Input((None, D))
    decoder = decoder_of("feeding")
    model = keras.Model([inputs, memory], keras.layers.Dense(D)(decoder(inputs, memory)))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    x = draw(rng, "float32")
    before = {w.path: to_numpy(w) for w in model.trainable_weights}
    start = model.evaluate(x, x[0], verbose=0)
    model.fit(x, x[0], epochs=12, batch_size=B, verbose=0)
    assert model.evaluate(x, x[0], verbose=0) < start
    for weight in model.trainable_weights:
        assert np.all(np.isfinite(weight))
        assert np.any(to_numpy(weight) != before[weight.path]), weight.path
    soft = to_numpy(decoder(*x, return_attention_scores=True, training=True)[1])
    assert np.any((soft > 0) & (soft < 1))
    assert set(np.unique(decoder(*x, return_attention_scores=True)[1])) <= {0.0, 1.0}


# Keras around it


def test_saved_cloned_and_copied(rng, tmp_path):
    query, value = keras.Input((None, D)), keras.Input((None, D))
    normalizer = MonotonicAlignment(noise=0.5, mode="recursive", hard=False, bias=-2.0, seed=3)
    layer = BahdanauAttention(4, normalize=True, normalizer=normalizer)
    model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
    randomise(model)
    inputs = draw(rng, "float32")
    expected = to_numpy(tuple(model(inputs)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for copied in (loaded, cloned, copy.deepcopy(model)):
        close(tuple(copied(inputs)), expected)
        assert copied.layers[-1].normalizer.get_config() == normalizer.get_config()


def test_config_before_and_after_building(rng):
    layer = BahdanauAttention(4, normalizer=MonotonicAlignment(0.5, "recursive", False, -2.0, 3))
    before = layer.get_config()
    layer(*draw(rng, "float32"))
    assert layer.get_config() == before
    again = BahdanauAttention.from_config(before)
    own = {"noise": 0.5, "mode": "recursive", "hard": False, "bias": -2.0, "seed": 3}
    assert own.items() <= again.normalizer.get_config().items()


def test_an_empty_batch_and_a_memory_of_one_step():
    layer = make("float32")
    for training in (True, False):
        context, weights = layer(
            np.zeros((0, T, D)),
            np.zeros((0, S, D)),
            return_attention_scores=True,
            training=training,
        )
        assert context.shape == (0, T, D) and weights.shape == (0, T, S)
        weights = weights_of(layer, np.ones((1, T, D)), np.ones((1, 1, D)), training=training)
        assert weights.shape == (1, T, 1) and np.all(weights <= 1)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"mode": "hard"}, ("`mode`", "'parallel' or 'recursive'", "'hard'")),
        ({"mode": "both"}, ("`mode`", "'both'")),
        ({"noise": -1.0}, ("`noise`", "-1.0")),
        ({"noise": float("nan")}, ("`noise`", "nan")),
        ({"noise": "1"}, ("`noise`", "'1'")),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError) as error:
        MonotonicAlignment(**options)
    assert all(word in str(error.value) for word in words)
