"""Sampling: the distribution that it draws from, its seeds, and its scores."""

import keras
import numpy as np
import pytest
import reference_search as ref
import tensorflow as tf
from backend import assert_allclose, tensor, to_numpy
from conftest import MODES
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from search_models import Model, distribution

from keras_attention.search import SearchResult, greedy_search, sample

END, PAD = 2, -1
PROBABILITIES = np.array([0.05, 0.3, 0.15, 0.1, 0.4])


def draw(step, starts, length=1, **more):
    arguments = dict(state=[], end_token=None, seed=7, pad_token=PAD)
    return sample(step, start_tokens=starts, max_length=length, **{**arguments, **more})


def shares(p, temperature=1.0, top_k=None, top_p=None, forbidden=()):
    """The distribution to draw from: temperature, then top-k, then the smallest nucleus."""
    p = np.asarray(p, "float64") ** (1 / temperature)
    p[list(forbidden)] = 0
    order = np.argsort(-p, kind="stable")[:top_k]
    kept = p[order] / p[order].sum()
    if top_p is not None:
        kept = kept[: np.searchsorted(np.cumsum(kept), top_p - 1e-9) + 1]
    q = np.zeros_like(p)
    q[order[: len(kept)]] = kept / kept.sum()
    return q


def check_counts(counts, q):
    """Pearson's statistic below the value that chance exceeds once in a million times or less.

    (For k degrees of freedom that lies below k + 10 sqrt(k) + 28.)
    """
    assert (counts[q == 0] == 0).all()
    expected, k = counts.sum() * q[q > 0], (q > 0).sum() - 1
    statistic = ((counts[q > 0] - expected) ** 2 / expected).sum()
    assert statistic < k + 10 * k**0.5 + 28, (statistic, counts, q)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 2},
        {"top_k": 99},
        {"top_p": 0.69},
        {"top_p": 0.71},
        {"top_p": 1.0},
        {"top_p": 0.01},
        {"top_k": 3, "top_p": 0.8},
        {"temperature": 2.0, "top_k": 4, "top_p": 0.5},
    ],
    ids=str,
)
def test_frequencies(settings):
    result = draw(distribution(PROBABILITIES), np.zeros(20000, "int32"), **settings)
    ids = np.asarray(result.ids)[:, 0]
    check_counts(np.bincount(ids, minlength=5), shares(PROBABILITIES, **settings))
    assert_allclose(result.scores, np.log(PROBABILITIES)[ids], rtol=1e-5)


def test_wrong_frequencies_are_noticed():
    with pytest.raises(AssertionError):
        counts = 20000 * shares(PROBABILITIES, temperature=1.1)
        check_counts(counts, shares(PROBABILITIES))
    with pytest.raises(AssertionError):
        check_counts(np.array([1, 9999]), np.array([0.0, 1.0]))


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_frequencies_in_graphs(mode):
    run = MODES[mode](lambda t: draw(distribution(PROBABILITIES), t, top_p=0.8, temperature=2.0))
    ids = np.asarray(run(ops.zeros(20000, "int32")).ids)[:, 0]
    q = shares(PROBABILITIES, top_p=0.8, temperature=2.0)
    check_counts(np.bincount(ids, minlength=5), q)


def test_frequencies_of_sequences():
    """Each step depends on the token before, and draws anew: chains, not only single tokens."""
    following = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0, 0, 1]])
    step = lambda tokens, state: (ops.take(np.log(following + 1e-30), tokens, axis=0), state)  # noqa: E731
    result = draw(step, np.zeros(20000, "int32"), length=3, end_token=END)
    found, counts = np.unique(np.asarray(result.ids), axis=0, return_counts=True)
    counts = {tuple(ids): n for ids, n in zip(found.tolist(), counts, strict=True)}
    expected = {}
    for y in np.ndindex(3, 3, 3):
        p = following[0, y[0]] * following[y[0], y[1]] * following[y[1], y[2]]
        ids = [*y[: y.index(END) + 1], PAD, PAD][:3] if END in y else y
        expected[tuple(ids)] = expected.get(tuple(ids), 0) + p
    assert set(counts) == {ids for ids, p in expected.items() if p}
    check_counts(
        np.array([counts[ids] for ids in counts]), np.array([expected[ids] for ids in counts])
    )


def test_a_large_vocabulary():
    """Sums over many tokens are rounded; the head and the tail keep their shares."""
    p = 1 / np.arange(1, 10001)
    p = p / p.sum()
    result = draw(distribution(p), np.zeros(400, "int32"), length=25)
    groups = np.array([0, 1, 3, 10, 100, 1000, 5000])
    counts = np.histogram(result.ids, [*groups, 10000])[0]
    check_counts(counts, np.add.reduceat(p, groups))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), top_p=st.floats(0.05, 0.999), top_k=st.integers(1, 9))
def test_nothing_outside_of_the_nucleus(seed, top_p, top_k):
    """For 50 distributions, 20 draws each."""
    p = np.random.default_rng(seed).dirichlet(np.full(8, 0.5), 50)
    result = draw(
        distribution(np.repeat(p, 20, axis=0)), np.zeros(1000, "int32"), top_p=top_p, top_k=top_k
    )
    for ids, row in zip(np.reshape(to_numpy(result.ids), (50, 20)), p, strict=True):
        # A token more or less where the sum is p but for rounding.
        assert set(ids) <= set(np.flatnonzero(shares(row, 1.0, top_k, min(top_p + 1e-5, 1.0))))


# Greedy search


@pytest.mark.parametrize("sharp", [{"top_k": 1}, {"temperature": 0.0}, {"temperature": 1e-6}])
@pytest.mark.parametrize("rules", [{}, {"no_repeat_ngram": 2, "min_length": 3}], ids=str)
def test_the_limit_is_greedy_search(sharp, rules, rng):
    model = Model(3, V=11, H=7, end=END, end_bias=1.0)
    states, starts = model.draw(rng, 8)
    greedy = greedy_search(model.step, states, starts, END, 6, pad_token=PAD, **rules)
    found = sample(model.step, states, starts, END, 6, pad_token=PAD, seed=1, **sharp, **rules)
    assert len(set(np.asarray(greedy.lengths))) > 1
    for a, b in zip(found, greedy, strict=True):
        assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# Seeds


def coins(run, seed):
    """A function that draws 4 times for each of 50 rows, all of 4 tokens alike."""
    step, starts = distribution([0.25] * 4), ops.zeros(50, "int32")
    drawing = run(lambda t: draw(step, t, length=4, seed=seed).ids)
    return lambda: np.asarray(drawing(starts))


def test_seeds(mode):
    first = coins(MODES[mode], 3)
    ids = first()
    np.testing.assert_array_equal(first(), ids)
    np.testing.assert_array_equal(coins(MODES[mode], np.int64(3))(), ids)
    assert (coins(MODES[mode], 4)() != ids).mean() > 0.5
    assert len({tuple(column) for column in ids.T}) == 4  # each step has its own number
    assert len({tuple(row) for row in ids}) > 30  # and each row


def test_a_generator_goes_on(mode):
    generator = coins(MODES[mode], keras.random.SeedGenerator(5))
    first, second = generator(), generator()
    assert (first != second).mean() > 0.5
    generator = coins(MODES[mode], keras.random.SeedGenerator(5))
    np.testing.assert_array_equal([generator(), generator()], [first, second])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_without_a_seed_the_global_generator_goes_on(mode):
    runs = []
    for _ in range(2):
        keras.utils.set_random_seed(2015)
        drawing = coins(MODES[mode], None)
        runs.append([drawing(), drawing()])
    np.testing.assert_array_equal(*runs)
    assert (runs[0][0] != runs[0][1]).mean() > 0.5


def test_nothing_depends_on_the_rest_of_the_batch(mode, rng):
    """A row draws the same in a smaller batch, and beside other rows."""
    model = Model(2, V=9, end=END, end_bias=3.0)
    states, starts = model.draw(rng, 7)
    other_states, other_starts = model.draw(rng, 7)
    run = MODES[mode](
        lambda s, t: sample(model.step, s, t, END, 6, seed=11, top_p=0.95, pad_token=PAD)
    )
    whole = run(tensor(states), tensor(starts))
    assert len(set(np.asarray(whole.lengths))) > 1
    for rows in (1, 3):
        few = run(tensor(states[:rows]), tensor(starts[:rows]))
        other_states[:rows], other_starts[:rows] = states[:rows], starts[:rows]
        among_others = run(tensor(other_states), tensor(other_starts))
        for all_rows, a, b in zip(whole, few, among_others, strict=True):
            assert_allclose(a, all_rows[:rows], rtol=1e-5, atol=1e-6)
            assert_allclose(b[:rows], all_rows[:rows], rtol=1e-5, atol=1e-6)


# Scores, results


def test_scores_are_those_of_the_model(rng):
    """With temperature 1, over all tokens; by teacher forcing."""
    model = Model(4, V=12, end=END, end_bias=1.0)
    states, starts = model.draw(rng, 6)
    result = sample(
        model.step, states, starts, END, 8, seed=2, temperature=1.7, top_k=6, top_p=0.95,
        forbidden_tokens=[5], pad_token=PAD,
    )  # fmt: skip
    ids, lengths = np.asarray(result.ids), np.asarray(result.lengths)
    assert len(set(lengths)) > 2
    for b in range(6):
        state, last, score, made = states[b], starts[b], 0.0, min(lengths[b] + 1, 8)
        assert (ids[b, made:] == PAD).all() and (ids[b, : made - 1] != END).all()
        for t, token in enumerate(ids[b, :made]):
            logits, state, row = model.reference_step(last, state)
            score, last = score + ref.log_softmax(logits)[token], token
            assert_allclose(result.attention_scores[b, t], row, atol=1e-5)
        assert (np.asarray(result.attention_scores)[b, made:] == 0).all()
        assert_allclose(result.scores[b], score, rtol=1e-5)


def test_several_results(rng):
    """`[B, N, ...]`, each row with its own state and memory; N = 1 has the axis too."""
    p = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.3, 0.7]])
    memory = {"logits": np.log(p + 1e-30).astype("float32")}

    def step(tokens, state, memory):
        return memory["logits"], ops.one_hot(tokens, 4), state + 1

    arguments = dict(start_tokens=[0, 1], end_token=None, max_length=2, memory=memory, seed=3)
    result = sample(step, np.zeros((2, 1)), num_results=5000, **arguments)
    assert isinstance(result, SearchResult)
    assert [tuple(x.shape) for x in result] == [(2, 5000, 2), (2, 5000), (2, 5000), (2, 5000, 2, 4)]
    for row, q in zip(np.asarray(result.ids), p, strict=True):
        check_counts(np.bincount(np.ravel(row), minlength=4), q)
    for count in (1, 3):
        few = sample(step, np.zeros((2, 1)), num_results=count, **arguments)
        assert tuple(few.ids.shape) == (2, count, 2)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_modes_unknown_and_empty_batches(rng):
    model = Model(4, V=12, end=END)
    states, starts = model.draw(rng, 6)
    more = dict(seed=2, top_k=6, top_p=0.9, no_repeat_ngram=2, num_results=2)
    specs = [tf.TensorSpec((None, model.H)), tf.TensorSpec((None,), "int64")]
    run = tf.function(lambda s, t: sample(model.step, s, t, END, 5, **more), input_signature=specs)
    for a, b in zip(
        run(states, starts), sample(model.step, states, starts, END, 5, **more), strict=True
    ):
        assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for empty in (run, run.python_function):
        result = empty(ops.zeros((0, model.H)), ops.zeros((0,), "int64"))
        assert [tuple(x.shape) for x in result] == [(0, 2, 5), (0, 2), (0, 2), (0, 2, 5, model.S)]


# Constraints and impossible tokens


def test_rules_hold():
    """With 4 tokens and an end: no end before 3 tokens, no 0, no pair twice."""
    result = draw(
        distribution([0.2] * 5), np.zeros(500, "int32"), length=9, end_token=END, min_length=3,
        forbidden_tokens=[0], no_repeat_ngram=2,
    )  # fmt: skip
    ids, lengths = np.asarray(result.ids), np.asarray(result.lengths)
    assert set(lengths) == set(range(3, 10)) and 0 not in ids
    for row, length in zip(ids, lengths, strict=True):
        pairs = list(zip(row[:length], row[1:length], strict=False))
        assert len(set(pairs)) == len(pairs)
    made = np.minimum(lengths + 1, 9)
    assert_allclose(result.scores, made * np.log(0.2), rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"temperature": 5.0}, {"top_k": 4}, {"top_p": 0.999}])
def test_impossible_tokens_are_never_drawn(settings):
    step = distribution([0.5, 0.0, 0.5, 0.0])
    result = draw(step, np.zeros(2000, "int32"), forbidden_tokens=[0], **settings)
    np.testing.assert_array_equal(result.ids, np.full((2000, 1), 2))


@pytest.mark.parametrize("search", [draw, None], ids=["sample", "greedy"])
@pytest.mark.parametrize("cause", ["nan", "inf", "all -inf", "rules"])
def test_a_row_without_a_possible_token_ends(search, cause, mode):
    """There, with score -inf, without an end token; the others go on."""

    def step(tokens, state):
        logits = ops.zeros((2, 3))
        bad = {"nan": np.nan, "inf": np.inf, "all -inf": -np.inf, "rules": 0.0}[cause]
        is_stuck = ops.logical_and(ops.equal(tokens, 0)[:, None], cause != "rules")
        return ops.where(is_stuck, bad, logits), ops.ones((2, 2)), state

    rules = {"no_repeat_ngram": 1} if cause == "rules" else {"forbidden_tokens": [0]}

    def run(starts):
        if search is None:
            return greedy_search(step, [], starts, None, 5, pad_token=PAD, **rules)
        return draw(step, starts, length=5, **rules)

    result = SearchResult(*(np.asarray(x) for x in MODES[mode](run)(tensor([0, 1]))))
    made = 3 if cause == "rules" else 0
    assert result.lengths[0] == made and result.scores[0] == -np.inf
    assert (result.ids[0, made:] == PAD).all() and (result.ids[0, :made] >= 0).all()
    assert (result.attention_scores[0, made:] == 0).all()
    if cause != "rules":
        assert result.lengths[1] == 5
        assert_allclose(result.scores[1], 5 * np.log(1 / 3), rtol=1e-5)


# Errors


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -1.0),
        ("temperature", "hot"),
        ("temperature", float("inf")),
        ("top_k", 0),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", True),
        ("seed", 1.0),
        ("seed", -1),
        ("seed", True),
        ("num_results", 0),
        ("pad_token", "x"),
        ("end_token", "x"),
        ("min_length", 9),
        ("forbidden_tokens", [9]),
        ("state", [np.zeros((3, 1))]),
    ],
    ids=str,
)
def test_errors_name_the_argument(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        draw(distribution(PROBABILITIES), [0, 0], length=3, **{name: value})
