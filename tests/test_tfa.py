"""Against tfa.seq2seq of TensorFlow Addons, from files that it made (see tests/data).

First the equations in reference_tfa.py, which show that we know what tfa computes, then the layers,
decoders and searches of the package with tfa's weights.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
import reference as ref
import reference_tfa as tfa
from backend import to_numpy
from keras import ops

from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.monotonic import MonotonicAlignment
from keras_attention.search import beam_search

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


def set_attention(layer, arrays):
    """Gives a built attention layer the weights in the file."""
    layer.key_projection.kernel.assign(arrays["memory_layer/kernel"])
    if "query_layer/kernel" in arrays:
        layer.query_projection.kernel.assign(arrays["query_layer/kernel"])
        layer.v.assign(arrays["attention_v"])
    if "attention_g" in arrays:
        layer.g.assign(arrays["attention_g"])
    if "attention_b" in arrays:
        layer.query_projection.bias.assign(arrays["attention_b"])


ATTENTIONS = {
    "bahdanau": lambda units, **kw: BahdanauAttention(units, **kw),
    "bahdanau_normalized": lambda units, **kw: BahdanauAttention(units, normalize=True, **kw),
    # tfa's memory layer is the W of the paper's general score: q^T (W h).
    "luong": lambda units, **kw: LuongAttention("general", **kw),
    "luong_scaled": lambda units, **kw: LuongAttention("general", scale=True, **kw),
}


def make_attention(name, arrays, **settings):
    """A layer of ATTENTIONS with the weights in the file."""
    layer = ATTENTIONS[name](arrays["memory_layer/kernel"].shape[1], **settings)
    layer.build(arrays["query"].shape, arrays["memory"].shape)
    set_attention(layer, arrays)
    return layer


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name, run):
    arrays = load(name)
    layer = make_attention(name, arrays)

    def attend(query, memory, mask):
        return layer(query, memory, value_mask=mask, return_attention_scores=True)[1]

    actual = run(attend, arrays["query"], arrays["memory"], padding_mask(arrays))
    close(actual, arrays["alignments"])


MONOTONIC = {
    "parallel": {"mode": "parallel", "hard": False},
    "recursive": {"mode": "recursive", "hard": False},
    "hard": {"hard": True},
}


@pytest.mark.parametrize("mode", MONOTONIC)
@pytest.mark.parametrize(
    ("name", "score"),
    [("monotonic_bahdanau", "bahdanau_normalized"), ("monotonic_luong", "luong_scaled")],
)
def test_monotonic_attention(name, score, mode):
    """All steps at once and, the alignment handed on, one after the other."""
    arrays = load(name)
    normalizer = MonotonicAlignment(noise=0.0, **MONOTONIC[mode])
    layer = make_attention(score, arrays, normalizer=normalizer)
    normalizer.r.assign(arrays["attention_score_bias"])
    query, memory, mask = arrays["query"], arrays["memory"], padding_mask(arrays)
    expected = arrays[f"alignments_{mode}"]
    _, at_once = layer(query, memory, value_mask=mask, return_attention_scores=True)
    close(at_once, expected)
    memory = layer.precompute(memory, value_mask=mask)
    alignment = layer.initial_alignment(memory)
    for t in range(query.shape[1]):
        _, step, alignment = layer(
            query[:, t], memory=memory, alignment=alignment, return_attention_scores=True
        )
        close(step, expected[:, t])


# Decoders


def make_cell(arrays):
    """The Keras cell whose weights are in the file; `set_cell` gives it these."""
    kind = keras.layers.GRUCell if arrays["cell/bias"].ndim == 2 else keras.layers.LSTMCell
    return kind(arrays["cell/recurrent_kernel"].shape[0])


def set_cell(cell, arrays):
    cell.set_weights(weights(arrays, "cell/kernel", "cell/recurrent_kernel", "cell/bias"))


def luong_decoder(arrays, **settings):
    """A LuongDecoder with the weights of tfa's cell, attention and attention layer."""
    kernel = arrays["attention_layer/kernel"]
    bias = arrays.get("attention_layer/bias")
    decoder = LuongDecoder(
        make_cell(arrays),
        LuongAttention("general"),
        units=kernel.shape[1],
        use_bias=bias is not None,
        **settings,
    )
    size = arrays["embedding" if "embedding" in arrays else "inputs"].shape[-1]
    decoder.build((None, None, size), arrays["memory"].shape)
    set_cell(decoder.cell, arrays)
    set_attention(decoder.attention, arrays)
    units = arrays["cell/recurrent_kernel"].shape[0]
    of_output, of_context = kernel[:units], kernel[units:]  # ours is of [c; s], tfa's of [s; c]
    parts = [np.concatenate([of_context, of_output]), bias]
    decoder.combine.set_weights([part for part in parts if part is not None])
    return decoder


def check_decoder(decoder, arrays, first=0):
    """Runs the decoder from tfa's state before the step `first`; compares that of the last step.

    Returns outputs `[B, T - first, U]` and weights `[B, T - first, S]`.
    """
    state = initial_state(arrays)
    if first:
        state = [arrays[f"states_{i}"][:, first - 1] for i in range(len(state))]
    outputs, alignments, last = decoder(
        arrays["inputs"][:, first:],
        arrays["memory"],
        initial_state=state,
        memory_mask=padding_mask(arrays),
        return_attention_scores=True,
        return_state=True,
    )
    last = last["cell"] if isinstance(last, dict) else last
    for i, part in enumerate(last):
        close(part, arrays[f"states_{i}"][:, -1])
    return outputs, alignments


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("wrapper_gru_luong_no_feeding", {}),
        ("wrapper_lstm_luong_tanh", {"input_feeding": True}),
        ("wrapper_gru_luong", {"input_feeding": True}),
        ("wrapper_lstm_luong", {"input_feeding": True}),
    ],
)
def test_luong_decoder(name, settings):
    arrays = load(name)
    decoder = luong_decoder(arrays, **settings)
    if "activation" not in WRAPPERS[name]:  # `attention_layer_size` makes a linear layer
        decoder.combine.activation = keras.activations.linear
    outputs, alignments = check_decoder(decoder, arrays)
    close(outputs, arrays["outputs"])
    close(alignments, arrays["alignments"])


@pytest.mark.parametrize("name", ["wrapper_gru_bahdanau", "wrapper_lstm_bahdanau_normalized"])
def test_bahdanau_decoder(name):
    """The paper attends with s_{t-1} in step t, tfa at the end of step t - 1, but not before the
    first. So from the state after tfa's first step on the outputs are the same, and the weights are
    tfa's one step later.
    """
    arrays = load(name)
    attention = BahdanauAttention(arrays["attention_v"].shape[0], normalize="normalized" in name)
    decoder = BahdanauDecoder(make_cell(arrays), attention)
    decoder.build(arrays["inputs"].shape, arrays["memory"].shape)
    set_cell(decoder.cell, arrays)
    set_attention(attention, arrays)
    outputs, alignments = check_decoder(decoder, arrays, first=1)
    close(outputs, arrays["outputs"][:, 1:])
    close(alignments, arrays["alignments"][:, :-1])


# Search


def search_model(arrays):
    """`(step, state, memory)` for our searches: the model of the file in Keras."""
    embedding, kernel, bias = map(
        ops.convert_to_tensor, weights(arrays, "embedding", "output/kernel", "output/bias")
    )
    state = [ops.convert_to_tensor(arrays["initial_state"])]
    if "memory" in arrays:
        decoder = luong_decoder(arrays, input_feeding=True)
        memory = decoder.precompute(arrays["memory"], padding_mask(arrays))

        def step(tokens, state, memory):
            x = ops.take(embedding, tokens, axis=0)
            output, alignment, state = decoder.step(x, state, memory, return_attention_scores=True)
            return ops.matmul(output, kernel) + bias, alignment, state

        return step, decoder.start_state(memory, state), memory
    cell = make_cell(arrays)
    cell.build(embedding.shape)
    set_cell(cell, arrays)

    def step(tokens, state):
        output, state = cell(ops.take(embedding, tokens, axis=0), state)
        return ops.matmul(output, kernel) + bias, list(state)

    return step, state, None


def search(arrays, penalties, **settings):
    """Ids, lengths, scores and ranking that our beam search finds on the model of the file."""
    step, state, memory = search_model(arrays)
    length_penalty, coverage_penalty = map(float, penalties)
    result = beam_search(
        step,
        state,
        arrays["start_tokens"],
        int(arrays["end_token"]),
        int(arrays["maximum_iterations"]),
        memory=memory,
        memory_mask=padding_mask(arrays) if coverage_penalty else None,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        **settings,
    )
    return to_numpy((result.ids, result.lengths, result.scores, result.ranking))


@SEARCHES
def test_beam_search_finds_what_tfa_finds(name, i):
    """The best hypothesis: its tokens, log-probability and score. It did not end at the last step,
    so that tfa counts its end token.
    """
    arrays = load(name)
    found = of_search(arrays, i)
    width = found["predicted_ids"].shape[2]
    ids, lengths, scores, ranking = search(arrays, arrays["penalties"][i], beam_width=width)
    close(lengths[:, 0], found["lengths"][:, 0] - 1)
    for b, n in enumerate(found["lengths"][:, 0]):
        assert ids[b, 0, :n].tolist() == found["predicted_ids"][b, :n, 0].tolist()
    close(scores[:, 0], found["log_probs"][:, 0])
    close(ranking[:, 0], found["step_scores"][:, -1, 0])


def test_beam_search_finds_the_whole_space_as_tfa_does():
    """All 31 hypotheses, those that have not ended included, in the same order."""
    arrays = load("beam_whole")
    found = of_search(arrays, 0)
    ids, _, scores, ranking = search(
        arrays, (0.0, 0.0), beam_width=31, num_results=31, pad_token=int(arrays["end_token"])
    )
    assert ids.tolist() == found["predicted_ids"].transpose(0, 2, 1).tolist()
    close(scores, found["log_probs"])
    close(ranking, found["step_scores"][:, -1])
