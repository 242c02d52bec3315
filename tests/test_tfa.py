"""Against tfa.seq2seq of TensorFlow Addons, from files that it made (see tests/data).

First the equations in reference_tfa.py, which show that we know what tfa computes, then the layers,
decoders and searches of the package with tfa's weights.
"""

from pathlib import Path

import numpy as np
import pytest
import reference as ref
import reference_tfa as tfa
from conftest import to_numpy

from keras_attention import BahdanauAttention

DATA = Path(__file__).parent / "data"
B = 2
LIMIT = 5e-6  # for numbers around 1 that went through several steps in float32


def load(name):
    """The arrays of a file by name."""
    with np.load(DATA / f"tfa_{name}.npz") as file:
        return dict(file)


def weights(arrays, *names):
    return [arrays[name] for name in names]


def padding_mask(arrays):
    return np.arange(arrays["memory"].shape[1]) < arrays["lengths"][:, None]


def close(actual, expected, limit=LIMIT):
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=limit, atol=limit)


# The equations


def scores_of(arrays, b):
    """Scores `[T, S]` of sample b, with all that the file has weights for."""
    query, memory = arrays["query"][b], arrays["memory"][b]
    if "attention_v" in arrays:
        names = ["query_layer/kernel", "memory_layer/kernel", "attention_v"]
        if "attention_g" in arrays:
            names += ["attention_g", "attention_b"]
            return tfa.bahdanau_normalized(query, memory, *weights(arrays, *names))
        return tfa.bahdanau(query, memory, *weights(arrays, *names))
    g = arrays.get("attention_g", 1.0)
    return tfa.luong_scaled(query, memory, arrays["memory_layer/kernel"], g)


@pytest.mark.parametrize("name", ["bahdanau", "bahdanau_normalized", "luong", "luong_scaled"])
def test_equations_of_attention(name):
    arrays = load(name)
    for b, length in enumerate(arrays["lengths"]):
        close(tfa.softmax_steps(scores_of(arrays, b), length), arrays["alignments"][b])


@pytest.mark.parametrize("mode", ["parallel", "recursive", "hard"])
@pytest.mark.parametrize("name", ["monotonic_bahdanau", "monotonic_luong"])
def test_equations_of_monotonic_attention(name, mode):
    arrays = load(name)
    for b, length in enumerate(arrays["lengths"]):
        scores = scores_of(arrays, b) + arrays["attention_score_bias"]
        actual = tfa.monotonic_steps(scores, length, hard=mode == "hard")
        close(actual, arrays[f"alignments_{mode}"][b])


def test_monotonic_files_tell_the_cases_apart():
    """Among the steps are some that stay, move on, and run off the end of the memory."""
    for name in ("monotonic_bahdanau", "monotonic_luong"):
        hard = load(name)["alignments_hard"]
        places = [[s.argmax() if s.any() else None for s in sample] for sample in hard]
        pairs = [pair for steps in places for pair in zip(steps, steps[1:], strict=False)]
        assert any(a == b is not None for a, b in pairs)
        assert any(None not in pair and pair[0] < pair[1] for pair in pairs)
        assert any(a is not None and b is None for a, b in pairs)


def reference_cell(arrays):
    parts = weights(arrays, "cell/kernel", "cell/recurrent_kernel", "cell/bias")
    return ref.gru_cell(*parts) if parts[2].ndim == 2 else ref.lstm_cell(*parts)


def reference_wrapper(arrays, b, cell, activation=lambda x: x, feeding=True):
    """`step(x, state, attention)` for sample b, with the attention and layer in the file."""
    memory, length, layer = arrays["memory"][b], arrays["lengths"][b], None
    if "attention_layer/kernel" in arrays:
        bias = arrays.get("attention_layer/bias")
        layer = tfa.dense(arrays["attention_layer/kernel"], bias, activation)

    def align(query):
        with_query = {**arrays, "query": np.broadcast_to(query, (B, 1, len(query)))}
        return tfa.softmax_steps(scores_of(with_query, b), length)[0]

    def step(x, state, attention):
        return tfa.attention_wrapper_step(cell, align, memory, x, state, attention, layer, feeding)

    return step


def initial_state(arrays):
    """`[h]` or `[h, c]`."""
    return [arrays[name] for name in sorted(arrays) if name.startswith("initial_state")]


WRAPPERS = {
    "wrapper_gru_luong": {},
    "wrapper_lstm_luong": {},
    "wrapper_lstm_luong_tanh": {"activation": np.tanh},
    "wrapper_gru_luong_no_feeding": {"activation": np.tanh, "feeding": False},
    "wrapper_gru_bahdanau": {},
    "wrapper_lstm_bahdanau_normalized": {},
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_equations_of_the_wrapper(name):
    arrays = load(name)
    for b in range(B):
        step = reference_wrapper(arrays, b, reference_cell(arrays), **WRAPPERS[name])
        state = [ref.f64(part[b]) for part in initial_state(arrays)]
        size = arrays["attention"].shape[-1]
        steps = tfa.attention_wrapper(step, arrays["inputs"][b], state, size)
        close([s.alignment for s in steps], arrays["alignments"][b])
        close([s.attention for s in steps], arrays["attention"][b])
        for i in range(len(state)):
            close([s.state[i] for s in steps], arrays[f"states_{i}"][b])
        outputs = "output" if "bahdanau" in name else "attention"
        close([getattr(s, outputs) for s in steps], arrays["outputs"][b])


# The equations of the search


def reference_search(arrays, b):
    """`(step, state, start_token, end_token)` of the file's model, for sample b."""
    cell, state = reference_cell(arrays), [ref.f64(arrays["initial_state"][b])]
    output = tfa.dense(*weights(arrays, "output/kernel", "output/bias"))
    if "memory" in arrays:
        wrapped = reference_wrapper(arrays, b, cell, np.tanh)

        def step(token, state):
            done = wrapped(arrays["embedding"][token], *state)
            return output(done.attention), (done.state, done.attention), done.alignment

        state = (state, np.zeros(arrays["attention_layer/kernel"].shape[1]))
    else:

        def step(token, state):
            hidden, state = cell(arrays["embedding"][token], state)
            return output(hidden), state

    return step, state, int(arrays["start_tokens"][b]), int(arrays["end_token"])


SEARCHES = pytest.mark.parametrize(
    ("name", "i"),  # i: which pair of penalties
    [("beam_gru", 0), ("beam_gru", 1), ("beam_whole", 0), ("beam_whole", 1)]
    + [("beam_attention", 0), ("beam_attention", 1), ("beam_attention", 2)],
)


def of_search(arrays, i):
    """The outputs of the search with the i-th pair of penalties."""
    return {n.removesuffix(f"_{i}"): x for n, x in arrays.items() if n.endswith(f"_{i}")}


@SEARCHES
def test_equations_of_beam_search(name, i):
    """Each step keeps the same hypotheses, in the same order, with the same scores."""
    arrays = load(name)
    found = of_search(arrays, i)
    _, steps, width = found["predicted_ids"].shape
    done = []
    for b in range(B):
        penalties = map(float, arrays["penalties"][i])
        history = tfa.beam_search(*reference_search(arrays, b), steps, width, *penalties)
        for t, kept in enumerate(history):
            n = len(kept)  # what fills a beam that is too wide comes behind
            close([h.score for h in kept], found["step_scores"][b, t, :n])
            assert [h.ids[-1] for h in kept] == found["step_ids"][b, t, :n].tolist()
            assert [h.parent for h in kept] == found["parent_ids"][b, t, :n].tolist()
        close([h.log_prob for h in kept], found["log_probs"][b])
        assert [len(h.ids) for h in kept] == found["lengths"][b].tolist()
        assert [h.finished for h in kept] == found["finished"][b].tolist()
        longest = max(len(h.ids) for h in kept)
        for k, hypothesis in enumerate(history[longest - 1]):
            ids = found["predicted_ids"][b, :, k].tolist()
            assert ids[: len(hypothesis.ids)] == list(hypothesis.ids)
            assert set(ids[len(hypothesis.ids) :]) <= {int(arrays["end_token"])}
        done.append([all(h.finished for h in kept) for kept in history])
    ended = np.all(done, axis=0)
    assert not ended[:-1].any() and (ended[-1] or steps == arrays["maximum_iterations"])


def ranking(hypothesis, penalties):
    """Wu's score, the end token counted in the length."""
    length_weight, coverage_weight = map(float, penalties)
    lp = tfa.length_penalty(len(hypothesis.ids), length_weight)
    return hypothesis.log_prob / lp + tfa.coverage_penalty(hypothesis.coverage, coverage_weight)


def whole_space(arrays, b, penalties, at_least=-np.inf):
    """All hypotheses whose ranking is `at_least` that, the best first."""
    steps = int(arrays["maximum_iterations"])

    def may_reach(prefix):  # log p can only fall, and both penalties are at most 0
        return prefix.log_prob / tfa.length_penalty(steps, float(penalties[0])) >= at_least

    found = tfa.all_hypotheses(*reference_search(arrays, b), steps, worth_continuing=may_reach)
    found = [h._replace(score=ranking(h, penalties)) for h in found]
    return sorted((h for h in found if h.score >= at_least), key=lambda h: -h.score)


@SEARCHES
def test_the_best_hypotheses_in_the_files_are_the_best_there_are(name, i):
    arrays = load(name)
    found = of_search(arrays, i)
    for b in range(B):
        ids = found["predicted_ids"][b, : found["lengths"][b, 0], 0].tolist()
        assert found["finished"][b, 0] and len(ids) < arrays["maximum_iterations"]
        score = found["step_scores"][b, -1, 0]
        best = whole_space(arrays, b, arrays["penalties"][i], at_least=score - LIMIT)
        assert [list(h.ids) for h in best] == [ids]
        close(best[0].score, score)


def test_the_wide_beam_holds_the_whole_space():
    arrays = load("beam_whole")
    for b in range(B):
        every = whole_space(arrays, b, (0.0, 0.0))
        assert len(every) == arrays["log_probs_0"].shape[1] == 15 + 16
        close([h.log_prob for h in every], arrays["log_probs_0"][b])


# Layers


def test_bahdanau_attention(run):
    arrays = load("bahdanau")
    layer = BahdanauAttention(arrays["attention_v"].shape[0])
    layer.build(arrays["query"].shape, arrays["memory"].shape)
    set_attention(layer, arrays)

    def attend(query, memory, mask):
        return layer(query, memory, value_mask=mask, return_attention_scores=True)[1]

    actual = run(attend, arrays["query"], arrays["memory"], padding_mask(arrays))
    close(actual, arrays["alignments"])


def set_attention(layer, arrays):
    """Gives an attention layer the weights in the file."""
    layer.key_projection.kernel.assign(arrays["memory_layer/kernel"])
    if isinstance(layer, BahdanauAttention):
        layer.query_projection.kernel.assign(arrays["query_layer/kernel"])
        layer.v.assign(arrays["attention_v"])
