"""Beam search against the reference, brute force, greedy search and teacher forcing."""

import keras
import numpy as np
import pytest
import reference_search as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, dtype_of, tensor
from conftest import MODES
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from search_models import Model, counting, distribution

from keras_attention.search import BeamResult, beam_search, greedy_search
from keras_attention.search.ranking import coverage_penalty, length_penalties

END, PAD = 2, -1
RULES = {
    "none": {},
    "min_length": {"min_length": 3},
    "forbidden": {"forbidden_tokens": (1, 3)},
    "unigram": {"no_repeat_ngram": 1},
    "bigram": {"no_repeat_ngram": 2},
    "all": {"no_repeat_ngram": 2, "min_length": 3, "forbidden_tokens": [0]},
    "more than there is": {"no_repeat_ngram": 1, "min_length": 4, "forbidden_tokens": [0]},
}
PENALTIES = {"none": (0.0, 0.0), "length": (1.0, 0.0), "coverage": (0.0, 0.4), "both": (0.6, 0.2)}


def for_the_reference(rules):
    names = {"no_repeat_ngram": "n", "forbidden_tokens": "forbidden"}
    return {names.get(name, name): value for name, value in rules.items()}


def to_numpy(result):
    return BeamResult(*(None if x is None else np.asarray(x) for x in result))


def check(actual, expected, end=END, atol=1e-4):
    """`expected`: for each row of the batch, what the reference found, best first."""
    actual = to_numpy(actual)
    B, N, L = actual.ids.shape
    assert B == len(expected)
    for b in range(B):
        for n in range(N):
            found = expected[b][n] if n < len(expected[b]) else None
            tokens = found.tokens if found else ()
            made = len(tokens)
            np.testing.assert_array_equal(actual.ids[b, n], [*tokens] + [PAD] * (L - made))
            assert actual.lengths[b, n] == made - (made > 0 and tokens[-1] == end)
            score, ranking = (found.score, found.ranking) if found else (-np.inf, -np.inf)
            assert_allclose(actual.scores[b, n], score, atol=atol, rtol=1e-5)
            assert_allclose(actual.ranking[b, n], ranking, atol=atol, rtol=1e-5)
            if actual.attention_scores is not None:
                weights = actual.attention_scores[b, n]
                assert (weights[made:] == 0).all()
                if found:
                    assert_allclose(weights[:made], found.weights, atol=1e-4)


def by_the_reference(model, states, starts, length, width, penalties=(0, 0), end=END, **rules):
    return [
        ref.beam_search(
            model.reference_step, state, start, end, length, width, *penalties,
            **for_the_reference(rules),
        )
        for state, start in zip(states, starts, strict=True)
    ]  # fmt: skip


def search(model, states, starts, length, width, penalties=(0, 0), end=END, **more):
    return beam_search(
        model.step, states, starts, end, length,
        beam_width=width, length_penalty=penalties[0], coverage_penalty=penalties[1],
        pad_token=PAD, **more,
    )  # fmt: skip


# Against the reference, which never stops early


@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_equals_the_reference(width, penalties, rng):
    model = Model(0, end=END, end_bias=0.5)
    states, starts = model.draw(rng, 6)
    expected = by_the_reference(model, states, starts, 5, width, penalties)
    check(search(model, states, starts, 5, width, penalties, num_results=width), expected)
    check(search(model, states, starts, 5, width, penalties), expected)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_rules_equal_the_reference(rules, rng):
    model = Model(1, end=END, end_bias=0.5)
    states, starts = model.draw(rng, 6)
    expected = by_the_reference(model, states, starts, 6, 3, PENALTIES["both"], **rules)
    check(search(model, states, starts, 6, 3, PENALTIES["both"], num_results=3, **rules), expected)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    V=st.integers(3, 7),
    width=st.integers(1, 6),
    length=st.integers(1, 6),
    penalties=st.tuples(st.sampled_from([0.0, 0.3, 1.0, 2.0]), st.sampled_from([0.0, 0.5])),
    end_bias=st.sampled_from([-1.0, 0.0, 3.0]),
    data=st.data(),
)
def test_anything_equals_the_reference(seed, V, width, length, penalties, end_bias, data):
    rules = {
        "min_length": data.draw(st.integers(0, length)),
        "no_repeat_ngram": data.draw(st.integers(0, 3)),
        "forbidden_tokens": data.draw(st.sampled_from([(), (0,), (0, 1)])),
    }
    model = Model(seed, V=V, end=END, end_bias=end_bias)
    states, starts = model.draw(np.random.default_rng(seed), 3)
    expected = by_the_reference(model, states, starts, length, width, penalties, **rules)
    results = data.draw(st.integers(1, width))
    result = search(model, states, starts, length, width, penalties, num_results=results, **rules)
    check(result, expected)


def test_modes(mode, rng):
    model = Model(1, end=END, end_bias=0.5)
    states, starts = model.draw(rng, 5)
    more = dict(penalties=PENALTIES["both"], **RULES["all"])
    expected = by_the_reference(model, states, starts, 6, 3, **more)
    run = MODES[mode](lambda s, t: search(model, s, t, 6, 3, num_results=2, **more))
    result = run(tensor(states), tensor(starts))
    assert isinstance(result, BeamResult)
    check(result, expected)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_an_unknown_batch_and_an_empty_one(rng):
    model = Model(1, end=END)
    states, starts = model.draw(rng, 5)
    specs = [tf.TensorSpec((None, model.H)), tf.TensorSpec((None,), "int64")]
    run = tf.function(
        lambda s, t: search(model, s, t, 4, 3, PENALTIES["both"], num_results=2, no_repeat_ngram=2),
        input_signature=specs,
    )
    for batch in (5, 1):
        expected = by_the_reference(
            model, states[:batch], starts[:batch], 4, 3, PENALTIES["both"], no_repeat_ngram=2
        )
        check(run(states[:batch], starts[:batch]), expected)
    for empty in (run, run.python_function):
        result = empty(ops.zeros((0, model.H)), ops.zeros((0,), "int64"))
        shapes = [tuple(x.shape) for x in result]
        assert shapes == [(0, 2, 4), (0, 2), (0, 2), (0, 2), (0, 2, 4, model.S)]
    outputs = run.get_concrete_function().structured_outputs
    assert [dtype_of(x) for x in outputs] == ["int32"] * 2 + ["float32"] * 3
    shapes = [tuple(x.shape) for x in outputs]
    assert shapes == [(None, 2, 4), (None, 2), (None, 2), (None, 2), (None, 2, 4, model.S)]


def test_the_loop_of_other_backends(monkeypatch, rng):
    """With the loops of `keras.ops`, on TensorFlow's tensors; with weights and without."""
    model = Model(1, end=END, end_bias=0.5)
    states, starts = model.draw(rng, 5)
    more = dict(length_penalty=0.6, num_results=2, min_length=2, no_repeat_ngram=2, pad_token=PAD)
    monkeypatch.setattr(keras.backend, "backend", lambda: "another")
    for step in (model.step, model.step_without_weights):
        result = beam_search(step, states, starts, END, 6, 3, **more)
        rules = dict(min_length=2, no_repeat_ngram=2)
        check(result, by_the_reference(model, states, starts, 6, 3, (0.6, 0), **rules))
    assert result.attention_scores is None


# Brute force


@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("rules", ["none", "min_length", "bigram", "more than there is"])
def test_as_wide_as_the_space_finds_the_best_of_all(rules, penalties, rng):
    """With V = 4 there are 1 + 3 + 9 + 27 sequences that end, and 81 that do not."""
    model, rules = Model(4, V=4), RULES[rules]
    states, starts = model.draw(rng, 2)
    expected = [
        ref.ranked(
            ref.every_sequence(
                model.reference_step, state, start, END, 4, **for_the_reference(rules)
            ),
            *penalties,
        )
        for state, start in zip(states, starts, strict=True)
    ]
    assert rules or {len(found) for found in expected} == {1 + 3 + 9 + 27 + 81}
    result = search(model, states, starts, 4, 4**4, penalties, num_results=130, **rules)
    check(result, expected)


def test_a_narrow_beam_does_not_find_the_best_of_all():
    """The search is a search: width 1 misses what width 2 finds."""
    following = np.log([[0.1, 0.5, 0.4], [0.4, 0.3, 0.3], [0.0001, 0.0099, 0.99]])

    def step(tokens, state):
        return ops.take(following, tokens, axis=0), state

    scores = [
        float(beam_search(step, [], [0], 2, 2, beam_width=width).scores[0, 0]) for width in (1, 3)
    ]
    assert_allclose(np.exp(scores), [0.5 * 0.4, 0.4], rtol=1e-5)


# Greedy search and teacher forcing


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_width_of_one_is_greedy_search(rules, rng):
    model = Model(3, V=11, H=7, end=END, end_bias=1.5)
    states, starts = model.draw(rng, 12)
    greedy = greedy_search(model.step, states, starts, END, 6, pad_token=PAD, **rules)
    beam = search(model, states, starts, 6, 1, **rules)
    assert len(set(np.asarray(greedy.lengths))) > 1
    np.testing.assert_array_equal(beam.ids[:, 0], greedy.ids)
    np.testing.assert_array_equal(beam.lengths[:, 0], greedy.lengths)
    assert_allclose(beam.scores[:, 0], greedy.scores, rtol=1e-5)
    assert_allclose(beam.attention_scores[:, 0], greedy.attention_scores, atol=1e-6)


@pytest.mark.parametrize("rules", ["none", "all"])
def test_scores_are_the_teacher_forced_log_probabilities(rules, rng):
    """Of the model as it is: the rules change what is chosen, not what it scores."""
    model = Model(6, V=40, H=8, S=5, end=END, end_bias=2.0)
    states, starts = model.draw(rng, 4)
    result = to_numpy(
        search(model, states, starts, 12, 6, (0.8, 0.1), num_results=6, **RULES[rules])
    )
    assert len(np.unique(result.lengths)) > 1
    for b, n in np.ndindex(4, 6):
        state, last, score, made = states[b], starts[b], 0.0, min(result.lengths[b, n] + 1, 12)
        rows = []
        for token in result.ids[b, n, :made]:
            logits, state, row = model.reference_step(last, state)
            score, last = score + ref.log_softmax(logits)[token], token
            rows.append(row)
        assert_allclose(result.scores[b, n], score, rtol=1e-5)
        assert_allclose(result.attention_scores[b, n, :made], rows, atol=1e-5)
        ranking = score / ref.length_penalty(made, 0.8) + ref.coverage_penalty(rows, 0.1)
        assert_allclose(result.ranking[b, n], ranking, rtol=1e-4)
    assert (np.diff(result.ranking, axis=1) <= 0).all()


# Independence


@pytest.fixture(scope="module")
def compiled():
    """A search of any number of rows, and its model."""
    model = Model(8, V=9, end=END, end_bias=1.0)
    specs = [tf.TensorSpec((None, model.H)), tf.TensorSpec((None,), "int32")]

    def find(states, starts):
        return search(model, states, starts, 6, 3, (0.5, 0.1), num_results=2)

    return model, tf.function(find, specs) if BACKEND == "tensorflow" else find


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_depends_on_the_rest_of_the_batch(compiled, seed):
    """Alone, in another order, or beside sequences that go on for longer."""
    model, find = compiled
    rng = np.random.default_rng(seed)
    states, starts = model.draw(rng, 6)
    whole, order = to_numpy(find(states, starts)), rng.permutation(6)
    for rows in (order, *([b] for b in range(6))):
        for part, all_rows in zip(find(states[rows], starts[rows]), whole, strict=True):
            assert_allclose(part, all_rows[rows], rtol=1e-5, atol=1e-5)


def attend(tokens, state, memory):
    """Reads a memory `[N, S, H]` that is padded: logits, weights, state."""
    values, mask = memory
    scores = ops.einsum("nh,nsh->ns", state, values)
    weights = ops.softmax(ops.where(mask, scores, -1e9))
    context = ops.einsum("ns,nsh->nh", weights, values)
    new = ops.tanh(2 * context + ops.flip(state, axis=1) + ops.cast(tokens, "float32")[:, None] / 3)
    return 3 * ops.concatenate([new, -new[:, :1]], 1), weights, new


LAST = 5  # The step at which an end is certain.


def search_of_length(length):
    """Over a padded memory, with a model whose sequences have all ended after LAST + 1 tokens."""

    def step(tokens, state, memory):
        count, h = state
        logits, weights, h = attend(tokens, h, memory)
        certain = ops.where(ops.equal(ops.arange(5), END), 0.0, -np.inf)[None]
        logits = ops.where(count[:, None] >= LAST, certain, logits)
        return logits, weights, [count + 1, h]

    specs = tf.TensorSpec((3, 4)), tf.TensorSpec((3, None, 4)), tf.TensorSpec((3, None), "bool")

    def find(states, values, mask):
        return beam_search(
            step, [ops.zeros(3, "int32"), states], [0, 1, 3], END, length,
            beam_width=3, num_results=3, length_penalty=0.7, coverage_penalty=0.3,
            memory=(values, mask), memory_mask=mask, pad_token=PAD,
        )  # fmt: skip

    return tf.function(find, specs) if BACKEND == "tensorflow" else find


@pytest.fixture(scope="module")
def short_and_long():
    return search_of_length(LAST + 1), search_of_length(LAST + 4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), padding=st.integers(1, 4))
def test_padding_of_memory_and_result_changes_nothing(short_and_long, seed, padding):
    """Padded memory, and a `max_length` behind the place where all sequences end."""
    short, long = short_and_long
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(3, 4)).astype("float32")
    values = rng.normal(size=(3, 5, 4)).astype("float32")
    mask = np.arange(5) < np.array([[5], [3], [1]])
    filler = rng.normal(size=(3, padding, 4)).astype("float32")
    plain = to_numpy(short(states, values, mask))
    assert np.isfinite(plain.ranking).all()
    padded = short(
        states, np.concatenate([values, filler], 1), np.pad(mask, ((0, 0), (0, padding)))
    )
    for other in map(to_numpy, (padded, long(states, values, mask))):
        made = LAST + 1
        np.testing.assert_array_equal(other.ids[..., :made], plain.ids)
        assert (other.ids[..., made:] == PAD).all()
        np.testing.assert_array_equal(other.lengths, plain.lengths)
        assert_allclose(other.scores, plain.scores, rtol=1e-4, atol=1e-5)
        assert_allclose(other.ranking, plain.ranking, rtol=1e-4, atol=1e-5)
        weights = other.attention_scores
        assert_allclose(weights[:, :, :made, :5], plain.attention_scores, atol=1e-5)
        assert (weights[..., 5:] == 0).all() and (weights[:, :, made:] == 0).all()


# Stopping


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("results, alpha", [(1, 0.0), (2, 0.0), (1, 1.0), (3, 0.5)])
def test_stops_as_soon_as_the_bound_says(mode, results, alpha):
    """The end has probability 0.6 at each step, token 0 the rest: all is known beforehand."""
    L, width = 20, 4
    step, calls = counting(distribution([0.4, 0.0, 0.6]))
    run = MODES[mode](
        lambda t: beam_search(step, [], t, END, L, width, length_penalty=alpha, num_results=results)
    )
    result = to_numpy(run(tensor([0, 0])))
    finished, steps = [], 0
    for t in range(1, L + 1):
        score = (t - 1) * np.log(0.4) + np.log(0.6)
        finished = sorted([*finished, score / ref.length_penalty(t, alpha)])[-results:]
        steps += 1
        bound = t * np.log(0.4) / ref.length_penalty(L, alpha)
        if len(finished) == results and finished[0] >= bound:
            break
    assert steps < L and (BACKEND == "jax" or int(calls.value) == steps)
    assert_allclose(result.ranking[0], finished[::-1], rtol=1e-5)


def test_goes_on_for_the_row_that_needs_it():
    step, calls = counting(distribution([[0.05, 0.05, 0.9], [0.9, 0.05, 0.05]]))
    result = to_numpy(beam_search(step, [], [0, 0], END, 8, beam_width=1, pad_token=PAD))
    assert BACKEND == "jax" or int(calls.value) == 8
    np.testing.assert_array_equal(result.ids[0, 0], [END] + [PAD] * 7)
    np.testing.assert_array_equal(result.ids[1, 0], [0] * 8)
    np.testing.assert_array_equal(result.lengths[:, 0], [0, 8])
    assert_allclose(result.scores[:, 0], [np.log(0.9), 8 * np.log(0.9)], rtol=1e-5)


def test_what_has_not_ended_competes_at_the_maximum():
    """Ended after 1 token: log 0.6; not ended after 2: 2 log 0.4, which the penalty lifts."""
    results = [
        to_numpy(
            beam_search(
                distribution([0.4, 0.0, 0.6]), [], [0], END, 2, num_results=3, length_penalty=alpha
            )
        )
        for alpha in (0.0, 20.0)
    ]
    assert [list(r.lengths[0]) for r in results] == [[0, 1, 2], [1, 2, 0]]
    for result in results:
        by_length = dict(zip(result.lengths[0], result.scores[0], strict=True))
        expected = [np.log(0.6), np.log(0.4 * 0.6), 2 * np.log(0.4)]
        assert_allclose([by_length[n] for n in range(3)], expected, rtol=1e-5)


@pytest.mark.parametrize("V", [3, 6])
def test_finished_hypotheses_take_no_further_part(V, rng):
    """What the model would say behind the end, however attractive, changes nothing."""
    model = Model(2, V=V, end=END, end_bias=1.0)
    states, starts = model.draw(rng, 6)
    starts[starts == END] = 0

    def tempting(tokens, state):
        logits, weights, state = model.step(tokens, state)
        certain = ops.where(ops.equal(ops.arange(V), 0), 100.0, -100.0)[None]
        return ops.where(ops.equal(tokens, END)[:, None], certain, logits), weights, state

    more = dict(beam_width=5, num_results=5, length_penalty=1.0)
    plain = beam_search(model.step, states, starts, END, 5, **more)
    for a, b in zip(beam_search(tempting, states, starts, END, 5, **more), plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_an_end_token(rng):
    model = Model(5)
    states, starts = model.draw(rng, 4)
    step, calls = counting(model.step)
    result = beam_search(step, states, starts, None, 4, 3, num_results=3, min_length=2)
    assert BACKEND == "jax" or int(calls.value) == 4
    assert (np.asarray(result.lengths) == 4).all()
    check(result, by_the_reference(model, states, starts, 4, 3, end=None), end=None)


# State, memory, weights


def test_state_and_weights_are_those_of_the_hypothesis(rng):
    """The state is the history; the weights show it: those of step t are the tokens before t."""
    L, V = 7, 5
    table = tensor(rng.normal(size=(L, V, V)), "float32")
    places = np.arange(L)

    def step(tokens, state):
        history, (count,) = state["history"], state["counts"]  # a scalar: for all rows
        logits = ops.take(ops.take(table, count, axis=0), tokens, axis=0)
        shown = ops.cast(history, "float32")
        history = ops.where(ops.equal(places, count), ops.cast(tokens, "int8")[:, None], history)
        return logits, shown, {"history": history, "counts": (count + 1,)}

    state = {"history": ops.full((3, L), tensor(-1, "int8")), "counts": (tensor(0),)}
    result = to_numpy(
        beam_search(
            step, state, [0, 1, 3], END, L, beam_width=4, num_results=4, min_length=2,
            length_penalty=1.0, pad_token=PAD,
        )
    )  # fmt: skip
    assert len(np.unique(result.lengths)) > 2
    for b, n in np.ndindex(3, 4):
        for t in range(min(result.lengths[b, n] + 1, L)):
            seen = [[0, 1, 3][b], *result.ids[b, n]][:t]
            np.testing.assert_array_equal(result.attention_scores[b, n, t], seen + [-1] * (L - t))


def test_memory_is_repeated_for_the_beams():
    """Each row of the batch finds its own memory with all of its beams, and as it was given."""
    seen = []

    def step(tokens, state, memory):
        seen.append(keras.tree.map_structure(lambda x: (tuple(x.shape), dtype_of(x)), memory))
        return 5.0 * ops.one_hot(memory["token"][0], 6) + ops.one_hot(4, 6), state

    memory = {"token": (np.array([3, 5, 1], "int32"),), "rest": [np.ones((3, 2), bool)]}
    result = beam_search(step, [], [0, 0, 0], END, 3, beam_width=2, memory=memory)
    np.testing.assert_array_equal(result.ids[:, 0], [[3] * 3, [5] * 3, [1] * 3])
    expected = {"token": (((6,), "int32"),), "rest": [((6, 2), "bool")]}
    assert seen == [expected] * (2 if BACKEND == "jax" else 3)


# Few possibilities


@pytest.mark.parametrize("end, sequences", [(None, 8), (1, 4)])
def test_wider_than_the_vocabulary(end, sequences):
    """V = 2: 2^3 sequences without an end; 0, 00, 000 and the empty one with one."""
    result = to_numpy(
        beam_search(
            distribution([0.7, 0.3]), [], [0], end, 3, beam_width=20, num_results=20, pad_token=PAD
        )
    )
    assert np.isfinite(result.scores[0]).sum() == sequences
    real = result.ids[0, :sequences]
    assert len(np.unique(real, axis=0)) == sequences
    assert_allclose(np.exp(result.scores[0, :sequences]).sum(), 1.0, rtol=1e-5)
    assert (result.scores[0, sequences:] == -np.inf).all()
    assert (result.ranking[0, sequences:] == -np.inf).all()
    assert (result.lengths[0, sequences:] == 0).all()
    assert (result.ids[0, sequences:] == PAD).all()


@pytest.mark.parametrize("end, length", [(None, 3), (0, 0)])
def test_a_vocabulary_of_one(end, length):
    result = to_numpy(
        beam_search(distribution([1.0]), [], [0], end, 3, beam_width=3, num_results=2)
    )
    np.testing.assert_array_equal(result.lengths, [[length, 0]])
    np.testing.assert_array_equal(result.scores, [[0.0, -np.inf]])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), V=st.integers(3, 4), width=st.integers(2, 12))
def test_no_sequence_twice(seed, V, width):
    model = Model(seed, V=V)
    states, starts = model.draw(np.random.default_rng(seed), 2)
    result = to_numpy(search(model, states, starts, 3, width, num_results=width))
    for ids, scores in zip(result.ids, result.scores, strict=True):
        real = ids[np.isfinite(scores)]
        assert len(np.unique(real, axis=0)) == len(real)


def test_a_maximum_of_one(rng):
    model = Model(1)
    states, starts = model.draw(rng, 3)
    expected = by_the_reference(model, states, starts, 1, 3)
    check(search(model, states, starts, 1, 3, num_results=3), expected)


# Impossible tokens


def test_logits_of_minus_infinity_are_never_chosen():
    step = distribution([[0.5, 0.0, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    result = to_numpy(
        beam_search(step, [], [0] * 3, END, 3, beam_width=1, length_penalty=1.0, pad_token=PAD)
    )
    np.testing.assert_array_equal(result.ids[:, 0], [[0, 0, 0], [END, PAD, PAD], [1, 1, 1]])
    assert_allclose(result.scores[:, 0], [3 * np.log(0.5), 0, 0], rtol=1e-5)
    wide = distribution([0.5, 0.0, 0.25, 0.25])
    result = to_numpy(beam_search(wide, [], [0], END, 3, beam_width=30, num_results=30))
    assert not np.isnan(result.ranking).any()
    assert 1 not in result.ids[0][np.isfinite(result.scores[0])]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hypothesis_whose_logits_are_no_numbers_drops_out(bad, mode):
    """Token 3 leads to such logits; without a token the row has no result."""

    def step(tokens, state):
        logits = ops.log(tensor([[0.3, 0.1, 0.1, 0.5]])) + 0 * ops.one_hot(tokens, 4)
        return ops.where(ops.equal(tokens, 3)[:, None], bad, logits), state

    run = MODES[mode](lambda t: beam_search(step, [], t, END, 3, 2, num_results=2, pad_token=PAD))
    result = to_numpy(run(tensor([0, 3])))
    assert not np.isnan(result.scores).any()
    assert 3 not in result.ids[0, :, :2] and np.isfinite(result.scores[0]).all()
    np.testing.assert_array_equal(result.scores[1], [-np.inf, -np.inf])
    np.testing.assert_array_equal(result.lengths[1], [0, 0])
    assert (result.ids[1] == PAD).all()


def test_half_precision_logits_are_summed_in_float32():
    exact = np.asarray(ops.cast(ops.cast(np.linspace(-3, 3, 6), "bfloat16"), "float64"))
    result = beam_search(
        lambda tokens, state: (ops.cast(np.array([exact] * 2), "bfloat16"), state),
        [],
        [0],
        None,
        150,
        2,
    )
    assert dtype_of(result.scores) == "float32"
    assert_allclose(result.scores, [[150 * ref.log_softmax(exact)[-1]]], rtol=1e-5)


# Penalties


def test_length_penalties():
    """Wu et al. 2016, equation 14: 1 for one token, and for 7 tokens (12 / 6)^alpha."""
    assert_allclose(length_penalties(7, 1.0)[1:], [(5 + n) / 6 for n in range(1, 8)])
    assert_allclose(length_penalties(7, 0.6)[7], 2**0.6, rtol=1e-6)
    np.testing.assert_array_equal(length_penalties(3, 0.0), [1, 1, 1, 1])


def test_coverage_penalty():
    """beta (log 0.5 + log 1 + log 1); padding counts nothing; nothing at all stays finite."""
    coverage = np.array([[0.5, 1.0, 2.5], [0.5, 0.0, 0.25], [0.0, 0.0, 0.0]], "float32")
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]], bool)
    expected = [0.2 * np.log(0.5), 0.2 * (np.log(0.5) + np.log(0.25)), 0.0]
    assert_allclose(coverage_penalty(coverage, 0.2, mask), expected, rtol=1e-6)
    unmasked = coverage_penalty(coverage, 0.2)
    assert_allclose(unmasked[0], expected[0], rtol=1e-6)
    assert_allclose(unmasked[2], 0.2 * 3 * -126 * np.log(2), rtol=1e-6)


def test_the_coverage_penalty_prefers_what_was_attended_to():
    """Token 0 looks at position 0 and token 1 at position 1; 2 is padding."""

    def step(tokens, state):
        logits = ops.log(tensor([[0.55, 0.45]])) + 0 * ops.one_hot(tokens, 2)
        return logits, ops.one_hot(tokens, 3), state

    def find(beta, mask):
        return beam_search(step, [], [0], None, 2, 4, coverage_penalty=beta, memory_mask=mask)

    mask = [[True, True, False]]
    np.testing.assert_array_equal(find(0.0, mask).ids[0, 0], [0, 0])
    result = find(1.0, mask)
    np.testing.assert_array_equal(result.ids[0, 0], [1, 0])
    assert_allclose(result.ranking, result.scores)  # everything real is covered
    assert_allclose(find(1.0, None).ranking, result.scores - 126 * np.log(2), rtol=1e-5)


# Errors


@pytest.mark.parametrize(
    "name, value",
    [
        ("start_tokens", [[3]]),
        ("start_tokens", [0.5]),
        ("end_token", 1.5),
        ("end_token", 7),
        ("end_token", -1),
        ("max_length", 0),
        ("beam_width", 0),
        ("beam_width", 2.0),
        ("num_results", 5),
        ("num_results", 0),
        ("length_penalty", -1),
        ("length_penalty", "1"),
        ("coverage_penalty", float("nan")),
        ("coverage_penalty", 0.1),
        ("min_length", -1),
        ("min_length", 4),
        ("forbidden_tokens", 3),
        ("forbidden_tokens", [2]),
        ("forbidden_tokens", [5]),
        ("forbidden_tokens", [True]),
        ("no_repeat_ngram", -1),
        ("no_repeat_ngram", 1.0),
        ("pad_token", None),
        ("state", [np.zeros((2, 3))]),
        ("memory", {"x": np.zeros((2, 3))}),
        ("memory_mask", np.ones((1, 3))),
        ("memory_mask", np.ones((2, 3), bool)),
        ("memory_mask", np.ones(1, bool)),
    ],
    ids=lambda x: str(x).replace("\n", ""),
)
def test_errors_name_the_argument(name, value):
    arguments = dict(state=[], start_tokens=[0], end_token=2, max_length=3)
    step = distribution([0.2] * 5)
    with pytest.raises(ValueError, match=f"`{name}`"):
        beam_search(lambda *args: step(*args[:2]), **{**arguments, name: value})


@pytest.mark.parametrize(
    "returned",
    [
        np.zeros((4, 5)),
        (np.zeros((1, 5)), []),
        (np.zeros((4, 5)), [np.zeros(4)]),
        (np.zeros((4, 5)), np.zeros(4), []),
        (np.zeros((4, 5)), np.zeros((2, 3)), []),
    ],
    ids=["no tuple", "one row", "another state", "weights without S", "weights of few rows"],
)
def test_a_step_that_returns_something_else(returned):
    with pytest.raises(ValueError, match="`step` must return"):
        beam_search(lambda tokens, state: returned, [], [3], 2, 3)


def test_a_step_that_keeps_beams_must_return_their_axis():
    def step(tokens, state, origins):
        assert tokens.shape == (2, 3) and origins.shape == (2, 3, 4)
        return np.zeros((6, 5), "float32"), state

    options = {"end_token": 2, "max_length": 4, "beam_width": 3, "reorder_state": False}
    with pytest.raises(ValueError, match=r"logits \[B, K, V\].*K = 3. Received shape \(6, 5\)"):
        beam_search(step, [], [1, 1], **options)
    with pytest.raises(ValueError, match="`reorder_state` must be"):
        beam_search(step, [], [1, 1], **{**options, "reorder_state": None})
