"""Greedy search against the reference loop, in all modes; stopping, scores, errors."""

import keras
import numpy as np
import pytest
import reference as ref
import reference_search
import tensorflow as tf
from backend import BACKEND, assert_allclose, compiled, dtype_of, tensor
from conftest import MODES
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from search_models import Model, distribution

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    SearchResult,
    greedy_search,
)

B, V, H, S, L = 5, 11, 7, 3, 6
START, END = 1, 2


def language(seed, end_bias=1.5):
    """A small random recurrent model, as a step for the package and one for the reference."""
    rng = np.random.default_rng(seed)
    embed, recurrent = rng.normal(size=(V, H)), rng.normal(size=(H, H))
    output, attention = rng.normal(size=(H, V)) * 2, rng.normal(size=(H, S))
    bias = np.zeros(V)
    bias[END] = end_bias

    def step(tokens, state):
        new = ops.tanh(ops.take(ops.cast(embed, "float32"), tokens, axis=0) + state @ recurrent)
        return new @ output + bias, ops.softmax(new @ attention), new

    def reference_step(token, state):
        new = np.tanh(embed[token] + state @ recurrent)
        return new @ output + bias, new, ref.softmax_row(new @ attention, [True] * S)

    return step, reference_step


def without_weights(step):
    def step_of_two(tokens, state):
        logits, _, state = step(tokens, state)
        return logits, state

    return step_of_two


def by_the_reference(step, state, starts, length=L, pad_token=0):
    """Ids, lengths, scores, and weights padded with zeros."""
    results = []
    for h, start in zip(state, starts, strict=True):
        ids, count, score, weights = ref.greedy_search(
            step, np.asarray(h, "float64"), start, END, length, pad_token
        )
        weights = list(weights) + [np.zeros(S)] * (length - len(weights))
        results.append([np.array(ids), count, score, np.array(weights)])
    return SearchResult(*(np.array(column) for column in zip(*results, strict=True)))


def check(actual, expected):
    actual = to_numpy(actual)
    np.testing.assert_array_equal(actual.ids, expected.ids)
    np.testing.assert_array_equal(actual.lengths, expected.lengths)
    assert_allclose(actual.scores, expected.scores, rtol=1e-5, atol=1e-5)
    if actual.attention_scores is not None:
        assert_allclose(actual.attention_scores, expected.attention_scores, atol=1e-5)


def to_numpy(result):
    return SearchResult(*(None if x is None else np.asarray(x) for x in result))


def draw(rng, batch=B):
    return rng.normal(size=(batch, H)).astype("float32"), rng.integers(3, V, batch)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_equals_the_reference(seed, rng):
    step, reference_step = language(seed)
    state, starts = draw(rng)
    expected = by_the_reference(reference_step, state, starts)
    check(greedy_search(step, state, starts, END, L), expected)
    result = greedy_search(without_weights(step), state, starts, END, L)
    check(result, expected)
    assert result.attention_scores is None


def test_the_cases_above_differ(rng):
    """Some sequences end early, some late, some never."""
    lengths = set()
    for seed in range(4):
        state, starts = draw(np.random.default_rng(1409))
        lengths |= set(by_the_reference(language(seed)[1], state, starts).lengths)
    assert len(lengths) >= 4 and L in lengths


def test_modes(mode, rng):
    step, reference_step = language(1)
    state, starts = draw(rng)

    def search(state, starts):
        return greedy_search(step, state, starts, END, L)

    result = MODES[mode](search)(tensor(state), tensor(starts))
    assert isinstance(result, SearchResult)
    check(result, by_the_reference(reference_step, state, starts))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_an_unknown_batch_and_an_empty_one(rng):
    step, reference_step = language(1)
    state, starts = draw(rng)
    specs = [tf.TensorSpec((None, H)), tf.TensorSpec((None,), "int64")]
    search = tf.function(
        lambda state, starts: greedy_search(step, state, starts, END, L), input_signature=specs
    )
    for batch in (B, 1):
        expected = by_the_reference(reference_step, state[:batch], starts[:batch])
        check(search(state[:batch], starts[:batch]), expected)
    for empty in (search, lambda s, t: greedy_search(step, s, t, END, L)):
        result = empty(ops.zeros((0, H)), ops.zeros((0,), "int64"))
        shapes = [tuple(x.shape) for x in result]
        assert shapes == [(0, L), (0,), (0,), (0, L, S)]


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_dtypes_and_static_shapes(rng):
    step, _ = language(1)
    state, starts = draw(rng)
    compiled = tf.function(lambda s, t: greedy_search(step, s, t, END, L))
    outputs = compiled.get_concrete_function(
        tf.TensorSpec((None, H)), tf.TensorSpec((None,), "int32")
    ).structured_outputs
    for result in (greedy_search(step, state, starts, END, L), outputs):
        assert [dtype_of(x) for x in result] == ["int32", "int32", "float32", "float32"]
    assert [len(x.shape) for x in outputs] == [2, 1, 1, 3]


# Stopping


def counter(last):
    """A model that says start + 1, start + 2, ... `last`, then END for ever; counts its calls."""
    calls = keras.Variable(0, dtype="int32", trainable=False)

    def step(tokens, state):
        if BACKEND != "jax":  # which traces a loop's steps once
            calls.assign_add(1)
        following = ops.where(tokens >= last, ops.full_like(tokens, END), tokens + 1)
        return 5.0 * ops.one_hot(following, V), state

    return step, calls


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    "starts, expected, lengths, steps",
    [
        ([7, 5], [[8, END, 0, 0, 0, 0], [6, 7, 8, END, 0, 0]], [1, 3], 4),
        ([8, 9], [[END, 0, 0, 0, 0, 0]] * 2, [0, 0], 1),
        ([3, 8], [[4, 5, 6, 7, 8, END], [END, 0, 0, 0, 0, 0]], [5, 0], 6),
    ],
    ids=["early", "at the first step", "at the last step"],
)
def test_stops_when_all_have_ended(mode, starts, expected, lengths, steps):
    step, calls = counter(last=8)
    search = MODES[mode](lambda tokens: greedy_search(step, [], tokens, END, L))
    result = search(tensor(starts))
    np.testing.assert_array_equal(result.ids, expected)
    np.testing.assert_array_equal(result.lengths, lengths)
    assert BACKEND == "jax" or int(calls.value) == steps


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_what_never_ends_stops_at_the_maximum(mode):
    step, calls = counter(last=100)

    def search(tokens):
        return greedy_search(
            lambda tokens, state: step(ops.minimum(tokens, 4), state), [], tokens, END, 4
        )

    result = MODES[mode](search)(tensor([3, 4]))
    np.testing.assert_array_equal(result.ids, [[4, 5, 5, 5], [5, 5, 5, 5]])
    np.testing.assert_array_equal(result.lengths, [4, 4])
    assert BACKEND == "jax" or int(calls.value) == 4


def test_a_maximum_of_one(rng):
    step, reference_step = language(1)
    state, starts = draw(rng)
    check(
        greedy_search(step, state, starts, END, 1),
        by_the_reference(reference_step, state, starts, length=1),
    )


@pytest.mark.parametrize("pad_token", [-1, 9, END])
def test_pad_token(pad_token, rng):
    """Even where it is the end token, a sequence ends only once and its score stands still."""
    step, reference_step = language(1)
    state, starts = draw(rng)
    expected = by_the_reference(reference_step, state, starts, pad_token=pad_token)
    assert expected.lengths.min() < L - 1  # something is padded
    check(greedy_search(step, state, starts, END, L, pad_token=pad_token), expected)


def test_pad_token_behind_the_step_at_which_all_have_ended():
    """The loop stops early; what no step wrote is padding too."""

    def step(tokens, state):
        return 10.0 * ops.one_hot(ops.minimum(tokens + 1, 3), 4), state

    result = greedy_search(step, [], [0, 1], end_token=3, max_length=6, pad_token=9)
    np.testing.assert_array_equal(result.ids, [[1, 2, 3, 9, 9, 9], [2, 3, 9, 9, 9, 9]])


@pytest.mark.parametrize("logits", [(1, 4), (2, 1, 4), (4,)])
def test_logits_of_a_wrong_shape(logits):
    with pytest.raises(ValueError, match="logits"):
        greedy_search(lambda tokens, state: (ops.zeros(logits), state), [], [0, 1], 3, 6)


# Scores


def test_the_first_of_equals():
    def step(tokens, state):
        return ops.zeros((2, V)), state

    result = greedy_search(step, [], [3, 4], END, 3)
    np.testing.assert_array_equal(result.ids, np.zeros((2, 3)))
    assert_allclose(result.scores, [-3 * np.log(V)] * 2, rtol=1e-6)


def test_forbidden_tokens():
    """A logit of -inf has probability 0; a token that is certain has log-probability 0."""
    allowed = np.full((2, V), -np.inf, "float32")
    allowed[:, 5] = -1000.0
    result = greedy_search(lambda tokens, state: (allowed, state), [], [3, 4], END, 3)
    np.testing.assert_array_equal(result.ids, np.full((2, 3), 5))
    np.testing.assert_array_equal(result.scores, [0.0, 0.0])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_logits_are_summed_in_float32(half):
    logits = np.linspace(-3, 3, V)
    exact = np.asarray(ops.cast(ops.cast(logits, half), "float64"))
    result = greedy_search(
        lambda tokens, state: (ops.cast(np.array([logits] * 2), half), state), [], [3, 4], END, 200
    )
    assert dtype_of(result.scores) == "float32"
    assert_allclose(result.scores, 200 * ref.log_softmax(exact)[-1], rtol=1e-5)


def randomize(layer, size):
    for i, weight in enumerate(layer.trainable_weights):
        # With this seed some sequences end and some do not.
        weight.assign(size * np.random.default_rng([6, i]).normal(size=weight.shape))


def model_with(decoder):
    """Embedding, decoder and classifier: a teacher-forced function and a step, same weights."""
    embedding, classifier = keras.layers.Embedding(V, 5), keras.layers.Dense(V)
    classifier.build((None, 6))
    randomize(classifier, 1.5)

    def forced(ids, memory, memory_mask):
        outputs, weights = decoder(
            embedding(ids), memory, memory_mask=memory_mask, return_attention_scores=True
        )
        return classifier(outputs), weights

    def search(memory, memory_mask, length):
        batch = ops.shape(memory)[0]
        precomputed = decoder.precompute(memory, memory_mask=memory_mask)

        def step(tokens, state):
            output, weights, state = decoder.step(
                embedding(tokens), state, precomputed, return_attention_scores=True
            )
            return classifier(output), weights, state

        start = ops.full((batch,), START, "int32")
        return greedy_search(step, decoder.get_initial_state(batch), start, END, length)

    return forced, search


@pytest.mark.parametrize("kind", ["bahdanau", "luong"])
def test_scores_are_the_teacher_forced_log_probabilities(kind, rng):
    """And the alignments are the teacher-forced ones; in a graph of unknown sizes, too."""
    decoder = {
        "bahdanau": lambda: BahdanauDecoder(keras.layers.LSTMCell(6), BahdanauAttention(4)),
        "luong": lambda: LuongDecoder(
            [keras.layers.GRUCell(3), keras.layers.GRUCell(6)], LuongAttention("general")
        ),
    }[kind]()
    forced, search = model_with(decoder)
    memory = rng.normal(size=(7, 5, 8)).astype("float32")
    mask = np.arange(5) < rng.integers(1, 6, (7, 1))
    forced(np.ones((7, 2), "int32"), memory, mask)  # builds
    randomize(decoder, 0.7)
    result = to_numpy(compiled(lambda memory, mask: search(memory, mask, 8))(memory, mask))
    assert len(set(result.lengths)) > 1
    shifted = np.concatenate([np.full((7, 1), START), result.ids[:, :-1]], 1)
    logits, weights = map(np.asarray, forced(shifted, memory, mask))
    scores = np.zeros(7)
    for b in range(7):
        made = min(result.lengths[b] + 1, 8)  # the end token counts
        for t in range(made):
            scores[b] += ref.log_softmax(logits[b, t])[result.ids[b, t]]
        assert_allclose(result.attention_scores[b, :made], weights[b, :made], atol=1e-5)
        assert np.all(result.attention_scores[b, made:] == 0)
    assert_allclose(result.scores, scores, rtol=1e-5, atol=1e-5)
    check(search(memory, mask, 8), result)


def test_nothing_depends_on_the_rest_of_the_batch(rng):
    """Alone, in another order, or beside sequences that go on for longer."""
    step, _ = language(2)
    state, starts = draw(rng, batch=8)
    whole = to_numpy(greedy_search(step, state, starts, END, L))
    assert whole.lengths.min() < whole.lengths.max()
    order = rng.permutation(8)
    shuffled = to_numpy(greedy_search(step, state[order], starts[order], END, L))
    check(shuffled, SearchResult(*(x[order] for x in whole)))
    for b in range(8):
        alone = greedy_search(step, state[b : b + 1], starts[b : b + 1], END, L)
        check(alone, SearchResult(*(x[b : b + 1] for x in whole)))


# State


def test_state_of_any_structure(rng):
    """Lists, tuples and dictionaries, of any dtype, as the search was given them."""
    seen = []

    def step(tokens, state):
        seen.append(keras.tree.map_structure(dtype_of, state))
        count = state["counts"][0] + 1
        return 5.0 * ops.one_hot(count + 2, V), {"counts": (count,), "rest": [state["rest"][0]]}

    state = {"counts": (ops.zeros(2, "int32"),), "rest": [ops.ones((2, 3), "bool")]}
    result = greedy_search(step, state, [3, 3], END, 4)
    np.testing.assert_array_equal(result.ids, [[3, 4, 5, 6]] * 2)
    assert seen == [{"counts": ("int32",), "rest": ["bool"]}] * (2 if BACKEND == "jax" else 4)


def test_start_tokens_of_any_integer_kind():
    step, _ = counter(last=8)
    for starts in ([7, 5], (7, 5), np.array([7, 5], "int64"), tensor([7, 5], "uint8")):
        result = greedy_search(step, [], starts, END, 4)
        np.testing.assert_array_equal(result.ids, [[8, END, 0, 0], [6, 7, 8, END]])


def test_scalars_in_the_state_belong_to_all_rows(mode):
    """Such as the number of steps made."""

    def step(tokens, state):
        place = state["place"]
        return ops.ones((2, 1)) * 5.0 * ops.one_hot(place + 4, V)[None], {"place": place + 1}

    search = MODES[mode](lambda t: greedy_search(step, {"place": tensor(0)}, t, END, 4))
    np.testing.assert_array_equal(search(tensor([3, 3])).ids, [[4, 5, 6, 7]] * 2)


def test_memory_is_given_to_each_step():
    memory = {"tokens": [np.array([5, 6])], "more": (np.ones((2, 3)),)}
    seen = []

    def step(tokens, state, memory):
        seen.append(keras.tree.map_structure(lambda x: tuple(x.shape), memory))
        return 5.0 * ops.one_hot(memory["tokens"][0], V), state

    result = greedy_search(step, [], [3, 3], END, 3, memory=memory)
    np.testing.assert_array_equal(result.ids, [[5, 5, 5], [6, 6, 6]])
    assert seen == [{"tokens": [(2,)], "more": ((2, 3),)}] * (2 if BACKEND == "jax" else 3)


# Constraints


def greedy_by_the_reference(model, state, last, length, rules):
    """Tokens and score; -inf where no token is possible."""
    tokens, score = [], 0.0
    while len(tokens) < length and (not tokens or last != END):
        logits, state, _ = model.reference_step(last, state)
        options = reference_search.continuations(logits, tokens, END, **rules)
        if not options:
            return tokens, -np.inf
        last = max(options, key=options.get)
        score += options[last]
        tokens.append(last)
    return tokens, score


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 9),
    n=st.integers(0, 4),
    forbidden=st.sampled_from([(), (0,), [1, 3], (1, 1)]),
    data=st.data(),
)
def test_rules_equal_the_reference(seed, length, n, forbidden, data):
    model = Model(seed, V=5, end=END, end_bias=1.0)
    states, starts = model.draw(np.random.default_rng(seed), 8)
    minimum = data.draw(st.integers(0, length))
    result = greedy_search(
        model.step, states, starts, END, length, pad_token=-1, min_length=minimum,
        forbidden_tokens=forbidden, no_repeat_ngram=n,
    )  # fmt: skip
    rules = {"min_length": minimum, "forbidden": forbidden, "n": n}
    for b in range(8):
        tokens, score = greedy_by_the_reference(model, states[b], starts[b], length, rules)
        np.testing.assert_array_equal(result.ids[b], tokens + [-1] * (length - len(tokens)))
        assert_allclose(result.scores[b], score, rtol=1e-5, atol=1e-5)


def test_rules_in_all_modes(mode, rng):
    model = Model(1, V=5, end=END, end_bias=1.0)
    states, starts = model.draw(rng, 6)
    rules = dict(min_length=3, forbidden_tokens=[3], no_repeat_ngram=2)
    plain, ruled = (
        MODES[mode](lambda s, t, more=more: greedy_search(model.step, s, t, END, 7, **more).ids)
        for more in ({}, rules)
    )
    arguments = tensor(states), tensor(starts)
    assert np.any(plain(*arguments) != ruled(*arguments))
    np.testing.assert_array_equal(
        ruled(*arguments), greedy_search(model.step, states, starts, END, 7, **rules).ids
    )


def test_rules_do_not_change_the_probabilities():
    """The score is that of the model, with its softmax over all tokens."""
    step = distribution([0.1, 0.2, 0.4, 0.3])
    result = greedy_search(
        step, [], [0], 2, 3, min_length=2, forbidden_tokens=[3], no_repeat_ngram=2
    )
    np.testing.assert_array_equal(result.ids, [[1, 1, 2]])
    assert_allclose(result.scores, [np.log(0.2 * 0.2 * 0.4)], rtol=1e-5)


def test_the_end_comes_early_where_nothing_else_is_possible():
    """Two tokens are there, each may come once; then there is the end, too early as it is."""
    result = greedy_search(
        distribution([0.5, 0.4, 0.1]), [], [0], END, 6, min_length=5, no_repeat_ngram=1
    )
    np.testing.assert_array_equal(result.ids, [[0, 1, END, 0, 0, 0]])
    assert_allclose(result.scores, [np.log(0.5 * 0.4 * 0.1)], rtol=1e-5)


def test_without_an_end_token():
    result = greedy_search(distribution([0.3, 0.1, 0.6]), [], [0], None, 4, min_length=2)
    np.testing.assert_array_equal(result.ids, [[2, 2, 2, 2]])
    np.testing.assert_array_equal(result.lengths, [4])


# Errors


@pytest.mark.parametrize("starts", [[[3]], 3, [3.0], [[3, 4]]], ids=str)
def test_wrong_start_tokens(starts):
    with pytest.raises(ValueError, match=r"`start_tokens` must be integers of shape \[B\]"):
        greedy_search(counter(8)[0], [], starts, END, L)


@pytest.mark.parametrize("length", [0, -1, 2.5, True, None, "5"], ids=str)
def test_wrong_max_length(length):
    with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
        greedy_search(counter(8)[0], [], [3], END, length)


@pytest.mark.parametrize(
    "name, value",
    [
        ("end_token", "end"),
        ("end_token", V),
        ("end_token", -1),
        ("pad_token", None),
        ("min_length", 7),
        ("min_length", 0.0),
        ("forbidden_tokens", 3),
        ("forbidden_tokens", "3"),
        ("forbidden_tokens", [V]),
        ("forbidden_tokens", [END]),
        ("no_repeat_ngram", True),
        ("state", [np.zeros((2, 1))]),
        ("memory", np.zeros((2, 1))),
    ],
    ids=str,
)
def test_errors_name_the_argument(name, value):
    arguments = dict(state=[], start_tokens=[3], end_token=END, max_length=6)
    with pytest.raises(ValueError, match=f"`{name}`"):
        greedy_search(counter(8)[0], **{**arguments, name: value})


def test_a_step_that_changes_the_structure_of_the_state():
    with pytest.raises(ValueError, match="`step` must return a state of the structure"):
        greedy_search(
            lambda tokens, state: (np.zeros((1, V)), state * 2), [ops.zeros(1)], [3], END, 2
        )


@pytest.mark.parametrize(
    "returned", [np.zeros((1, V)), (np.zeros((1, V)),), (1, 2, 3, 4), [np.zeros((1, V)), []], None]
)
def test_a_step_that_returns_something_else(returned):
    with pytest.raises(ValueError, match="`step` must return"):
        greedy_search(lambda tokens, state: returned, [], [3], END, L)
