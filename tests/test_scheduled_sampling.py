"""Scheduled sampling: the model's own tokens in place of the given ones, in training."""

import copy
import json

import keras
import numpy as np
import pytest
import reference_alignment as past_ref
from backend import assert_allclose, compiled, differentiate, dtype_of, tensor, to_numpy
from test_decoder_state import decoder_step
from test_layers import close, randomise

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    InverseSigmoid,
    LuongAttention,
    LuongDecoder,
    NoAttention,
    ScheduledSampling,
)

B, T, S, D, Dm, U, V = 3, 5, 4, 3, 6, 5, 7
# Padding before, between and behind.
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
MEMORY_MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]], bool)

DECODERS = {
    "luong": lambda **kw: LuongDecoder(
        keras.layers.GRUCell(U, **kw), LuongAttention("general", **kw), **kw
    ),
    "feeding": lambda **kw: LuongDecoder(
        keras.layers.LSTMCell(U, **kw), LuongAttention("general", **kw), input_feeding=True, **kw
    ),
    "coverage": lambda **kw: BahdanauDecoder(
        keras.layers.GRUCell(U, **kw), BahdanauAttention(4, history="coverage", **kw), **kw
    ),
}
ALL = pytest.mark.parametrize("kind", DECODERS)


def make(kind="feeding", dtype="float64", mask_zero=False, **options):
    layer = ScheduledSampling(
        DECODERS[kind](dtype=dtype),
        keras.layers.Embedding(V, D, mask_zero=mask_zero, dtype=dtype),
        keras.layers.Dense(V, dtype=dtype),
        dtype=dtype,
        **options,
    )
    layer.build((None, None), (None, None, Dm))
    rng = np.random.default_rng(3)
    for weight in layer.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def draw(rng, dtype="float64"):
    return rng.integers(1, V, (B, T)), rng.normal(size=(B, S, Dm)).astype(dtype)


def plainly(layer, tokens, memory, **options):
    return layer.output_layer(layer.decoder(layer.embedding(tokens), memory, **options))


def by_the_equations(layer, tokens, memory, coins, mask=None, memory_mask=None):
    """Logits `[B, T, V]` with the likeliest tokens where coins are True."""
    decoder, results = layer.decoder, []
    mask = np.ones((B, T), bool) if mask is None else mask
    memory_mask = np.ones((B, S), bool) if memory_mask is None else memory_mask
    embeddings = to_numpy(layer.embedding.embeddings)
    kernel, bias = (to_numpy(w) for w in layer.output_layer.weights)
    for b in range(B):
        cell_state = [np.zeros(U) for _ in decoder.get_initial_state(1)]
        results.append(
            past_ref.decode_with_coins(
                decoder_step(decoder),
                (cell_state, past_ref.beginning(S), np.zeros(U)),
                tokens[b],
                coins[b],
                lambda token: embeddings[token],
                lambda output: output @ kernel + bias,
                memory[b],
                mask[b],
                memory_mask[b],
            )
        )
    return np.array(results)


# Against plain decoding and the equations


@ALL
def test_plain_at_inference_and_at_rate_0(kind, rng):
    tokens, memory = draw(rng)
    always, never = make(kind, rate=1.0), make(kind, rate=0)
    expected = plainly(never, tokens, memory)
    close(never(tokens, memory, training=True), expected, "float64")
    for options in ({}, {"training": False}):
        close(always(tokens, memory, **options), expected, "float64")
    assert np.abs(always(tokens, memory, training=True) - expected).max() > 1e-3


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@ALL
def test_its_own_tokens_throughout(kind, masked, rng):
    """Rate 1: every token but the first real one is the likeliest after the step before."""
    layer = make(kind, rate=1.0, draw=False)
    tokens, memory = draw(rng)
    masks = {"mask": MASK, "memory_mask": MEMORY_MASK} if masked else {}
    logits = layer(tokens, memory, training=True, **masks)
    expected = by_the_equations(layer, tokens, memory, np.ones((B, T), bool), **masks)
    close(logits, expected, "float64")
    # So only the first real token counts.
    first = np.argmax(MASK, axis=1) if masked else np.zeros(B, int)
    others = np.where(np.arange(T) == first[:, None], tokens, (tokens + 1) % V)
    close(layer(others, memory, training=True, **masks), logits, "float64")
    others = np.where(np.arange(T) == first[:, None], (tokens + 1) % V, tokens)
    assert np.abs(layer(others, memory, training=True, **masks) - logits).max() > 1e-3


def test_it_feeds_what_a_loop_over_steps_feeds(rng):
    layer = make("coverage", rate=1.0, draw=False)
    tokens, memory = draw(rng)
    logits = layer(tokens, memory, training=True)
    prepared = layer.decoder.precompute(memory)
    state, token = layer.decoder.start_state(prepared), tokens[:, 0]
    for t in range(T):
        output, state = layer.decoder.step(layer.embedding(token), state, prepared)
        close(layer.output_layer(output), logits[:, t], "float64")
        token = np.argmax(layer.output_layer(output), axis=-1)


@ALL
def test_a_coin_for_each_token(kind, rng, monkeypatch):
    """Where the coin says so, and nowhere else."""
    layer = make(kind, rate=0.5, draw=False)
    tokens, memory = draw(rng)
    coins = rng.random((B, T)) < 0.5
    monkeypatch.setattr(layer, "_coins", lambda tokens: tensor(coins))
    logits = layer(tokens, memory, training=True, mask=MASK)
    close(logits, by_the_equations(layer, tokens, memory, coins, MASK), "float64")


def test_weights_are_those_of_the_tokens_that_were_fed(rng):
    layer = make(rate=1.0, draw=False)
    tokens, memory = draw(rng)
    logits, weights = layer(tokens, memory, training=True, return_attention_scores=True)
    own = np.concatenate([tokens[:, :1], np.argmax(logits, -1)[:, :-1]], axis=1)
    expected = layer(own, memory, return_attention_scores=True)
    close((logits, weights), tuple(expected), "float64")
    assert weights.shape == (B, T, S)


def test_initial_state(rng):
    layer = make("luong", rate=1.0, draw=False)
    tokens, memory = draw(rng)
    state = [rng.normal(size=(B, U))]
    expected = plainly(layer, tokens, memory, initial_state=state)
    close(layer(tokens, memory, initial_state=state), expected, "float64")
    close(
        layer(tokens, memory, initial_state=state, training=True)[:, 0], expected[:, 0], "float64"
    )


# Coins and draws, on a decoder that shows what it was fed


class Echo(keras.layers.Layer):
    """A cell that puts out its input."""

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.state_size, self.output_size = 1, size

    def call(self, inputs, states):
        return inputs, states


STEPS = np.log(np.array([1e-9, 0.5, 0.3, 0.2, 1e-9, 1e-9, 1e-9]))  # of a walk over the tokens


def walk(rate, rows, steps=4, **options):
    """Tokens `[rows, steps]` that were fed to a model which walks on by 1, 2 or 3, modulo V.

    The given tokens are all 0.
    """
    embedding, output = keras.layers.Embedding(V, V), keras.layers.Dense(V, use_bias=False)
    decoder = BahdanauDecoder(Echo(V), NoAttention())
    layer = ScheduledSampling(decoder, embedding, output, rate, **options)
    layer.build((None, None), (None, None, 1))
    embedding.set_weights([np.eye(V)])
    output.set_weights([np.array([np.roll(STEPS, token) for token in range(V)])])
    logits = layer(np.zeros((rows, steps), int), np.zeros((rows, 1, 1)), training=True)
    # Row by row the logits are STEPS, rolled by the token that was fed.
    return (np.argmax(logits, axis=-1) - 1) % V


def near(counts, probability, rows):
    """Within four standard deviations of a binomial distribution."""
    deviation = (probability * (1 - probability) / rows) ** 0.5
    return np.all(np.abs(counts / rows - probability) < 4 * deviation + 1e-6)


def test_the_likeliest_tokens_by_hand():
    assert walk(1.0, 2, steps=6, draw=False).tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_coins_fall_for_each_token_with_the_rate():
    rows, rate = 4000, 0.3
    fed = walk(rate, rows, steps=5, draw=False, seed=1)
    coins = fed != 0  # given tokens are 0, the model's own are not
    assert not coins[:, 0].any()
    for t in range(1, 5):
        assert near(coins[:, t].sum(), rate, rows)
    # One for each token: two fall alike as often as independent ones do.
    for t in range(1, 4):
        assert near((coins[:, t] & coins[:, t + 1]).sum(), rate**2, rows)
    assert near((coins[:-1, 1] & coins[1:, 1]).sum(), rate**2, rows - 1)


def test_tokens_are_drawn_from_the_models_probabilities():
    rows = 4000
    steps = np.diff(walk(1.0, rows, seed=1), axis=1) % V
    for t in range(steps.shape[1]):
        for step in range(V):
            assert near((steps[:, t] == step).sum(), np.exp(STEPS[step]), rows)
    pairs = (steps[:, 0] == 1) & (steps[:, 1] == 1)
    assert near(pairs.sum(), 0.25, rows)


def test_seeds():
    first = walk(0.5, 50, seed=1)
    np.testing.assert_array_equal(walk(0.5, 50, seed=1), first)
    assert np.any(walk(0.5, 50, seed=2) != first)


# The schedule


def test_inverse_sigmoid():
    for k in (1, 7.5, 1000):
        for i in (0, 1, 10, 500, 690):
            expected = past_ref.inverse_sigmoid(i, k)
            assert_allclose(InverseSigmoid(k)(i), expected, rtol=2e-6, atol=1e-7)
    assert float(InverseSigmoid(1)(10**9)) == 1.0  # exp(1e9) would overflow
    rates = [float(InverseSigmoid(50)(i)) for i in range(0, 600, 20)]
    assert rates == sorted(rates) and rates[0] < 0.02 and rates[-1] > 0.99
    again = keras.optimizers.schedules.deserialize(
        keras.optimizers.schedules.serialize(InverseSigmoid(50))
    )
    assert again.k == 50
    step = compiled(InverseSigmoid(50))(tensor(100))
    close(step, np.float32(past_ref.inverse_sigmoid(100, 50)))


def test_steps_are_counted_in_training(rng):
    layer = make(rate=InverseSigmoid(4.0))
    tokens, memory = draw(rng)
    for count in range(3):
        assert int(layer.steps) == count
        layer(tokens, memory, training=True)
        layer(tokens, memory)
    assert not any(w is layer.steps for w in layer.trainable_weights)


def test_the_rate_follows_the_schedule():
    """A schedule of 0 and then 1: nothing is replaced, then everything."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.0, 1.0])
    embedding, output = keras.layers.Embedding(V, V), keras.layers.Dense(V, use_bias=False)
    decoder = BahdanauDecoder(Echo(V), NoAttention())
    layer = ScheduledSampling(decoder, embedding, output, schedule, draw=False)
    layer.build((None, None), (None, None, 1))
    embedding.set_weights([np.eye(V)])
    output.set_weights([np.roll(np.eye(V), 1, axis=1)])
    fed = [
        (np.argmax(layer(np.zeros((1, 3), int), np.zeros((1, 1, 1)), training=True), -1) - 1) % V
        for _ in range(2)
    ]
    assert [x[0].tolist() for x in fed] == [[0, 0, 0], [0, 1, 2]]


# Masks and dropout


def test_the_mask_of_the_embedding(rng):
    layer = make("feeding", mask_zero=True, rate=1.0, draw=False)
    tokens, memory = draw(rng)
    ids = np.where(MASK, tokens, 0)
    for training in (False, True):
        logits, weights = layer(ids, memory, training=training, return_attention_scores=True)
        expected = layer(tokens, memory, training=training, mask=MASK)
        np.testing.assert_array_equal(logits._keras_mask, MASK)
        close(logits, expected, "float64")
        assert np.all(to_numpy(weights)[~MASK] == 0)
        # An explicit mask is taken in place of the embedding's.
        everything = layer(ids, memory, training=training, mask=np.ones((B, T), bool))
        assert np.abs(everything - logits).max() > 1e-3


def test_the_mask_of_the_memory(rng):
    layer = make("luong")
    tokens, memory = draw(rng)
    expected = layer(tokens, memory, memory_mask=MEMORY_MASK)
    masked = tensor(memory)
    masked._keras_mask = tensor(MEMORY_MASK)
    close(layer(tokens, masked), expected, "float64")
    soiled = np.where(MEMORY_MASK[..., None], memory, np.nan)
    close(layer(tokens, soiled, memory_mask=MEMORY_MASK), expected, "float64")


def test_dropout_in_training_only(rng):
    tokens, memory = draw(rng)
    layer, plain = make(dropout=0.5, seed=1), make()
    close(layer(tokens, memory), plain(tokens, memory), "float64")
    first, second = (to_numpy(layer(tokens, memory, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    # Outputs are dropped before the logits: of those of zeros only the bias is left.
    close(
        layer(tokens, memory, training=True, mask=np.zeros((B, T), bool))[0, 0],
        plain.output_layer.bias,
        "float64",
    )


def test_dropout_of_the_tokens_that_are_fed_back():
    """As of the given ones: half of the echoed one-hot vectors are 0, the others 2."""
    embedding, output = keras.layers.Embedding(1, 1), keras.layers.Dense(1, use_bias=False)
    decoder = BahdanauDecoder(Echo(1), NoAttention())
    layer = ScheduledSampling(decoder, embedding, output, 1.0, dropout=0.5, seed=1)
    layer.build((None, None), (None, None, 1))
    embedding.set_weights([np.ones((1, 1))])
    output.set_weights([np.ones((1, 1))])
    rows = 4000
    logits = to_numpy(layer(np.zeros((rows, 2), int), np.zeros((rows, 1, 1)), training=True))
    assert set(np.unique(logits)) == {0.0, 4.0}  # dropped, or doubled twice
    for t in range(2):
        assert near((logits[:, t] > 0).sum(), 0.25, rows)


# Gradients


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_gradients_reach_all_weights(rate, rng):
    layer = make("coverage", rate=rate, seed=1)
    tokens, memory = draw(rng)
    variables = layer.trainable_weights
    assert len(variables) == 1 + 3 + 4 + 2  # embedding, cell, attention, logits
    for gradient in to_numpy(
        differentiate(lambda: layer(tokens, memory, training=True) ** 2, variables=variables)
    ):
        assert np.all(np.isfinite(gradient)) and np.abs(gradient).max() > 0


def test_the_gradient_is_that_of_the_tokens_that_were_fed(rng):
    """None goes through the choice of a token."""
    layer = make("feeding", rate=1.0, draw=False)
    tokens, memory = draw(rng)
    logits = layer(tokens, memory, training=True)
    own = np.concatenate([tokens[:, :1], np.argmax(logits, -1)[:, :-1]], axis=1)
    gradients = []
    for ids, training in ((tokens, True), (own, False)):

        def squares(ids=ids, training=training):
            return layer(ids, memory, training=training) ** 2

        found = differentiate(squares, variables=layer.trainable_weights)
        gradients.append(to_numpy(found))
    for a, b in zip(*gradients, strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-9)


# Tied embeddings


def test_tied_embeddings(rng):
    embedding = keras.layers.ReversibleEmbedding(V, U)
    decoder = DECODERS["luong"]()
    layer = ScheduledSampling(decoder, embedding, rate=1.0, draw=False)
    tokens, memory = draw(rng, "float32")
    logits = layer(tokens, memory)
    randomise(layer)
    logits = layer(tokens, memory, training=True)
    own = np.concatenate([tokens[:, :1], np.argmax(logits, -1)[:, :-1]], axis=1)
    outputs = decoder(embedding(own), memory)
    table = to_numpy(embedding.embeddings)
    assert table.shape == (V, U)
    close(logits, to_numpy(outputs) @ table.T)
    assert len(layer.trainable_weights) == 1 + len(decoder.trainable_weights)


# Keras around it


def model_of(layer, memory_size=Dm):
    tokens, memory = keras.Input((None,), dtype="int32"), keras.Input((None, memory_size))
    return keras.Model([tokens, memory], layer(tokens, memory))


@pytest.mark.slow
def test_fit_with_jit_compile(rng):
    """Padding has no part in the loss; all weights are trained; the steps are counted."""
    layer = make("feeding", "float32", mask_zero=True, rate=InverseSigmoid(2.0), dropout=0.1)
    model = model_of(layer)
    assert model.output_shape == (None, None, V)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=True)
    before = {w.path: to_numpy(w) for w in model.trainable_weights}
    tokens, memory = draw(rng, "float32")
    ids = np.where(MASK, tokens, 0)
    history = model.fit([ids, memory], tokens, epochs=2, batch_size=B, verbose=0)
    assert np.all(np.isfinite(history.history["loss"])) and int(layer.steps) == 2
    for weight in model.trainable_weights:
        assert np.all(np.isfinite(weight)), weight.path
        assert np.any(to_numpy(weight) != before[weight.path]), weight.path
    close(model.predict([ids, memory], verbose=0), model([ids, memory]))


def test_saved_cloned_and_copied(rng, tmp_path):
    layer = make("coverage", "float32", mask_zero=True, rate=InverseSigmoid(9.0), dropout=0.2)
    model, (tokens, memory) = model_of(layer), draw(rng, "float32")
    layer(tokens, memory, training=True)
    expected = to_numpy(model([tokens, memory]))
    model.save(tmp_path / "model.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for copied in (keras.saving.load_model(tmp_path / "model.keras"), cloned, copy.deepcopy(model)):
        close(copied([tokens, memory]), expected)
        own = copied.layers[-1]
        assert own is not layer and int(own.steps) == 1 and own.rate.k == 9.0
        assert own.dropout.rate == 0.2
    other = rng.integers(1, V, (2, T + 2)), rng.normal(size=(2, S + 3, Dm)).astype("float32")
    assert model(list(other)).shape == (2, T + 2, V)


def test_config(rng):
    layer = make("luong", "float32", rate=0.25, dropout=0.5, draw=False, seed=3, name="its_name")
    config = layer.get_config()
    json.dumps(config)
    again = ScheduledSampling.from_config(config)
    assert (again.rate, again.draw, again.seed, again.name) == (0.25, False, 3, "its_name")
    assert again.dropout.rate == 0.5
    assert type(again.decoder) is LuongDecoder and again.embedding.input_dim == V
    assert again.output_layer.units == V
    fresh = ScheduledSampling.from_config(config)  # the config was left as it is
    assert fresh.get_config().keys() == config.keys()


def test_half_precision(rng):
    tokens, memory = draw(rng, "float32")
    layer = make("feeding", "mixed_float16", rate=1.0, draw=False)
    logits = layer(tokens, memory, training=True)
    assert dtype_of(logits) == "float16" and np.all(np.isfinite(logits))
    exact = make("feeding", "float64")
    assert_allclose(to_numpy(layer(tokens, memory)), exact(tokens, memory), atol=0.05)


def test_an_empty_batch():
    layer = make("luong", "float32", rate=1.0)
    for training in (True, False):
        logits = layer(np.zeros((0, T), int), np.zeros((0, S, Dm)), training=training)
        assert logits.shape == (0, T, V)


# Errors


@pytest.mark.parametrize(
    "options, words",
    [
        ({"rate": -0.1}, ("`rate`", "[0, 1]", "-0.1")),
        ({"rate": 1.5}, ("`rate`", "1.5")),
        ({"rate": float("nan")}, ("`rate`", "nan")),
        ({"rate": "0.5"}, ("`rate`", "schedule", "'0.5'")),
        ({"rate": lambda step: 0.5}, ("`rate`", "schedule")),
        ({"decoder": keras.layers.Dense(3)}, ("`decoder`", "LuongDecoder(...)", "Dense")),
    ],
)
def test_wrong_arguments(options, words):
    options = {"decoder": DECODERS["luong"](), "embedding": keras.layers.Embedding(V, D), **options}
    with pytest.raises(ValueError) as error:
        ScheduledSampling(**options)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("k", [0.5, 0, -1, "3", float("nan"), float("inf")])
def test_wrong_k(k):
    with pytest.raises(ValueError, match="`k` must be a number of at least 1"):
        InverseSigmoid(k)


def test_wrong_calls(rng):
    layer = make("luong")
    tokens, memory = draw(rng)
    with pytest.raises(ValueError, match="`memory` must have the batch size"):
        layer(tokens, memory[:1])
    with pytest.raises(ValueError, match="`mask` must have shape"):
        layer(tokens, memory, mask=MASK[:, 1:], training=True)
