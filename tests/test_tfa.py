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
import tensorflow as tf
from backend import assert_allclose, differentiate, to_numpy
from keras import ops

from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.migrate.from_tfa import attention_from_tfa, decoder_from_tfa
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
    assert_allclose(to_numpy(actual), expected, rtol=limit, atol=limit)


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


def weights_in(arrays):
    """The variables in a file, without inputs and outputs."""
    parts = ("query_layer/", "memory_layer/", "attention_v", "attention_g", "attention_b")
    parts += ("attention_score_bias", "cell/", "attention_layer/")
    return {name: array for name, array in arrays.items() if name.startswith(parts)}


ATTENTIONS = ["bahdanau", "bahdanau_normalized", "luong", "luong_scaled"]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name, run):
    arrays = load(name)
    layer = attention_from_tfa(weights_in(arrays))

    def attend(query, memory, mask):
        return layer(query, memory, value_mask=mask, return_attention_scores=True)[1]

    actual = run(attend, arrays["query"], arrays["memory"], padding_mask(arrays))
    close(actual, arrays["alignments"])


@pytest.mark.parametrize("mode", ["parallel", "recursive", "hard"])
@pytest.mark.parametrize("name", ["monotonic_bahdanau", "monotonic_luong"])
def test_monotonic_attention(name, mode):
    """All steps at once and, the alignment handed on, one after the other."""
    arrays = load(name)
    layer = attention_from_tfa(weights_in(arrays), {"mode": mode, "sigmoid_noise": 0.0})
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


# How AttentionWrapper was made; see make_tfa_reference.py.
SETTINGS = {
    "wrapper_gru_luong": {},
    "wrapper_lstm_luong": {},
    "wrapper_lstm_luong_tanh": {"attention_activation": "tanh"},
    "wrapper_gru_luong_no_feeding": {"attention_activation": "tanh", "input_feeding": False},
    "wrapper_gru_bahdanau": {"output_attention": False},
    "wrapper_lstm_bahdanau_normalized": {"output_attention": False},
}


def run_decoder(decoder, arrays, mask=None):
    """Outputs `[B, T, U]`, weights `[B, T, S]` and the cell's last state."""
    outputs, alignments, last = decoder(
        arrays["inputs"],
        arrays["memory"],
        initial_state=initial_state(arrays),
        memory_mask=padding_mask(arrays),
        mask=mask,
        return_attention_scores=True,
        return_state=True,
    )
    return outputs, alignments, last["cell"] if isinstance(last, dict) else last


@pytest.mark.parametrize("name", SETTINGS)
def test_decoder(name):
    """Outputs, weights and states of every step, the first included."""
    arrays = load(name)
    decoder = decoder_from_tfa(weights_in(arrays), **SETTINGS[name])
    outputs, alignments, last = run_decoder(decoder, arrays)
    close(outputs, arrays["outputs"])
    close(alignments, arrays["alignments"])
    for i, part in enumerate(last):
        close(part, arrays[f"states_{i}"][:, -1])


@pytest.mark.parametrize("name", ["wrapper_gru_bahdanau", "wrapper_lstm_bahdanau_normalized"])
def test_attend_first(name):
    """The paper attends with s_{t-1} in step t, tfa at the end of step t - 1, but not before the
    first. So from the state after tfa's first step on the outputs are the same, and the weights are
    tfa's one step later.
    """
    arrays = load(name)
    decoder = decoder_from_tfa(weights_in(arrays), **SETTINGS[name])
    paper = BahdanauDecoder(decoder.cell, decoder.attention)
    paper.build(arrays["inputs"].shape, arrays["memory"].shape)
    later = {**arrays, "inputs": arrays["inputs"][:, 1:]}
    for i in range(len(initial_state(arrays))):
        later[f"initial_state_{i}"] = arrays[f"states_{i}"][:, 0]
    outputs, alignments, _ = run_decoder(paper, later)
    close(outputs, arrays["outputs"][:, 1:])
    close(alignments, arrays["alignments"][:, :-1])
    first, _, _ = run_decoder(paper, arrays)
    assert np.abs(to_numpy(first)[:, 0] - arrays["outputs"][:, 0]).max() > 0.01


def test_decoder_that_feeds_its_context_step_by_step(tmp_path):
    """`step` gives what the call does, a masked step changes nothing, and it is saved."""
    arrays = load("wrapper_gru_bahdanau")
    decoder = decoder_from_tfa(weights_in(arrays), output_attention=False)
    memory = decoder.precompute(arrays["memory"], padding_mask(arrays))
    state = decoder.start_state(memory, initial_state(arrays))
    for t in range(arrays["inputs"].shape[1]):
        output, weights, state = decoder.step(
            arrays["inputs"][:, t], state, memory, return_attention_scores=True
        )
        close(output, arrays["outputs"][:, t])
        close(weights, arrays["alignments"][:, t])
    real = np.array([True, False, True, True])
    gap = {**arrays, "inputs": np.insert(arrays["inputs"], 1, 9.0, axis=1)[:, :4]}
    outputs, _, _ = run_decoder(decoder, gap, mask=np.stack([real, real]))
    close(to_numpy(outputs)[:, real], arrays["outputs"][:, :3])
    inputs = [keras.Input(arrays[name].shape[1:]) for name in ("inputs", "memory")]
    model = keras.Model(inputs, decoder(*inputs))
    model.save(tmp_path / "model.keras")
    given = [arrays["inputs"], arrays["memory"]]
    close(keras.models.load_model(tmp_path / "model.keras")(given), to_numpy(model(given)))


def test_decoder_that_feeds_its_context_in_a_graph(run):
    """The same outputs, and a gradient for every weight."""
    arrays = load("wrapper_gru_bahdanau")
    decoder = decoder_from_tfa(weights_in(arrays), output_attention=False)
    state = initial_state(arrays)

    def decode(inputs, memory, mask):
        return decoder(inputs, memory, initial_state=state, memory_mask=mask)

    given = arrays["inputs"], arrays["memory"], padding_mask(arrays)
    close(run(decode, *given), arrays["outputs"])
    weights = decoder.trainable_weights
    gradients = differentiate(lambda: ops.sum(ops.square(decode(*given))), (), weights)
    assert len(weights) == 6 and all(np.any(to_numpy(x) != 0) for x in gradients)


def test_wrapper_that_puts_out_its_context():
    """Without an attention layer, a_t = c_t: the sum of the memory with the weights."""
    arrays = load("wrapper_gru_bahdanau")
    outputs, alignments, _ = run_decoder(decoder_from_tfa(weights_in(arrays)), arrays)
    close(alignments, arrays["alignments"])
    close(outputs, arrays["attention"])


# Names, and what does not fit


def renamed(arrays):
    """The variables under what `variable.name` says of them in a model."""
    at = "dec/decoder/attention_wrapper/"
    names = {
        "memory_layer/kernel": "BahdanauAttention/memory_layer/kernel:0",
        "query_layer/kernel": f"{at}BahdanauAttention/kernel:0",
        "attention_v": f"{at}BahdanauAttention/attention_v:0",
        "cell/kernel": f"{at}gru_cell_7/kernel:0",
        "cell/recurrent_kernel": f"{at}gru_cell_7/recurrent_kernel:0",
        "cell/bias": f"{at}gru_cell_7/bias:0",
    }
    return {names[name]: array for name, array in weights_in(arrays).items()}


def test_names_of_variables_in_a_model():
    arrays = load("wrapper_gru_bahdanau")
    decoder = decoder_from_tfa(renamed(arrays), output_attention=False)
    close(run_decoder(decoder, arrays)[0], arrays["outputs"])


@pytest.mark.parametrize("path", ["tfa_model", "folder"])
def test_checkpoint(path, tmp_path):
    """The variables are found among those of a whole model and its optimizer.

    (docs/migration.md computes the model's logits with them.)
    """
    checkpoint = DATA / path
    if path == "folder":
        checkpoint = tmp_path
        for file in DATA.glob("tfa_model.*"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "tfa_model"')
    with pytest.raises(ValueError, match="several of cell/0/.*Tell by `prefix`"):
        decoder_from_tfa(checkpoint)
    decoder = decoder_from_tfa(checkpoint, prefix={"cell": "model/cell/"})
    reader = tf.train.load_checkpoint(str(checkpoint))
    close(decoder.cell.kernel, reader.get_tensor("model/cell/kernel/.ATTRIBUTES/VARIABLE_VALUE"))
    assert decoder.units == 7 and len(decoder.get_weights()) == 5


def test_stack_of_cells():
    """Two cells, and the names that variables of tfa have."""
    arrays = load("stack")
    prefix = "variables/"
    variables = {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}
    assert sum(name.endswith("/recurrent_kernel:0") for name in variables) == 2
    decoder = decoder_from_tfa(variables)
    outputs, alignments, last = run_decoder(decoder, arrays)
    close(outputs, arrays["outputs"])
    close(alignments, arrays["alignments"])
    for i, part in enumerate(keras.tree.flatten(last)):
        close(part, arrays[f"states_{i}"][:, -1])


CELLS = {
    "GRU": lambda: keras.layers.GRUCell(5),
    "GRU, reset before": lambda: keras.layers.GRUCell(5, reset_after=False),
    "LSTM without bias": lambda: keras.layers.LSTMCell(5, use_bias=False),
    "simple": lambda: keras.layers.SimpleRNNCell(5),
}


@pytest.mark.parametrize("name", CELLS)
def test_kinds_of_cells(name, rng):
    """The shapes tell the kind; what they do not, such as an activation, a `cell` does."""
    arrays, cell = load("wrapper_gru_luong"), CELLS[name]()
    variables = {n: x for n, x in weights_in(arrays).items() if not n.startswith("cell/")}
    cell.build((None, 16))
    cell.set_weights([rng.normal(size=weight.shape) for weight in cell.weights])
    variables |= {f"cell/{weight.name}": to_numpy(weight) for weight in cell.weights}
    made = decoder_from_tfa(variables).cell
    assert type(made) is type(cell) and made.use_bias == cell.use_bias
    x, state = rng.normal(size=(2, 16)).astype("float32"), cell.get_initial_state(batch_size=2)
    state = [part + 0.5 for part in keras.tree.flatten(state)]
    close(made(x, state)[0], to_numpy(cell(x, state)[0]))
    given = CELLS[name]()
    given.activation = keras.activations.relu
    with_relu = decoder_from_tfa(variables, cell=given)
    assert with_relu.cell is given
    close(with_relu.cell.kernel, variables["cell/kernel"])
    with pytest.raises(ValueError, match="'cell/kernel' in `variables` must have shape"):
        decoder_from_tfa(variables, cell=keras.layers.GRUCell(7))


def test_a_path_that_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="`variables` must be the path of a TensorFlow checkpoint"):
        attention_from_tfa(tmp_path / "none")


def test_variables_that_do_not_fit():
    variables = weights_in(load("bahdanau_normalized"))

    def refused(message, function=attention_from_tfa, **changed):
        arrays = {n: x for n, x in {**variables, **changed}.items() if x is not None}
        with pytest.raises(ValueError, match=message):
            function(arrays)

    refused(r"no 'query_layer/kernel', an array of shape", **{"query_layer/kernel": None})
    refused(r"no 'attention_b', an array of shape \(13\)", attention_b=None)
    refused(r"no 'memory_layer/kernel'", **{"memory_layer/kernel": None})
    refused(
        r"'attention_v' in `variables` must have shape \(13\). Received shape \(12\)",
        attention_v=np.ones(12),
    )
    refused("more than is carried over: 'output/kernel'", **{"output/kernel": np.ones((2, 2))})
    refused("more than the layer takes: 'attention_b'", attention_g=None)
    refused("several of attention_v: 'attention_v' and 'b/attention_v'", **{"b/attention_v": 1.0})
    refused("no 'cell/0/recurrent_kernel'", decoder_from_tfa)
    with pytest.raises(ValueError, match="none of tfa.seq2seq that begins with 'decoder/'"):
        attention_from_tfa(variables, prefix="decoder/")
    with pytest.raises(ValueError, match="no part \\['memory'\\]: attention, cell"):
        attention_from_tfa(variables, prefix={"memory": ""})
    with pytest.raises(ValueError, match="must be a dictionary .* or the path .* list"):
        attention_from_tfa(list(variables.values()))
    wrapper = weights_in(load("wrapper_gru_luong"))
    with pytest.raises(ValueError, match="'cell/kernel' must have more than 13 rows"):
        decoder_from_tfa({**wrapper, "cell/kernel": wrapper["cell/kernel"][:13]})
    with pytest.raises(ValueError, match=r"'cell/recurrent_kernel' must have shape \[U, U\]"):
        decoder_from_tfa({**wrapper, "cell/recurrent_kernel": np.ones((5, 10))})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"probability_fn": "hardmax"}, "`probability_fn` must be 'softmax'.*'hardmax'"),
        ({"units": 7}, "units=7, but 'memory_layer/kernel' has shape \\(11, 13\\)"),
        ({"normalize": False}, "normalize=False, but the variables have an 'attention_g'"),
    ],
)
def test_a_config_that_contradicts_the_variables(config, message):
    variables = weights_in(load("bahdanau_normalized"))
    attention_from_tfa(variables, {"units": 13, "normalize": True, "probability_fn": "softmax"})
    with pytest.raises(ValueError, match=message):
        attention_from_tfa(variables, config)


def test_wrappers_without_a_counterpart():
    with_layer = weights_in(load("wrapper_gru_luong"))
    without = weights_in(load("wrapper_gru_bahdanau"))
    with pytest.raises(ValueError, match="`output_attention=False` with an attention layer"):
        decoder_from_tfa(with_layer, output_attention=False)
    with pytest.raises(ValueError, match="nothing reads the attention"):
        decoder_from_tfa(without, output_attention=False, input_feeding=False)
    with pytest.raises(ValueError, match="`attention_activation` is that of the attention layer"):
        decoder_from_tfa(without, attention_activation="tanh")


# Search


def search_model(arrays):
    """`(step, state, memory)` for our searches: the model of the file in Keras."""
    embedding, kernel, bias = map(
        ops.convert_to_tensor, weights(arrays, "embedding", "output/kernel", "output/bias")
    )
    state = [ops.convert_to_tensor(arrays["initial_state"])]
    if "memory" in arrays:
        decoder = decoder_from_tfa(weights_in(arrays), attention_activation="tanh")
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
