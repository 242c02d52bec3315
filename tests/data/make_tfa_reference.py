"""Writes tfa_*.npz: what tfa.seq2seq of TensorFlow Addons computes on small random inputs.

TensorFlow Addons ended with version 0.23, which does not run beside Keras 3. So this script needs
an environment of its own, with Python 3.11, and the files that it writes are kept here:

    python3.11 -m venv tfa
    tfa/bin/pip install tensorflow==2.15.1 tensorflow-addons==0.23.0 "numpy<2"
    tfa/bin/python tests/data/make_tfa_reference.py

Each file holds inputs, weights (under tfa's names) and outputs of one case, in float32. Sizes are
distinct primes wherever the mechanism lets them differ, so that a transposition can not hide. The
memory is padded behind `memory_sequence_length`, and the padding holds numbers, not zeros: tfa
multiplies it by 0 and gives its scores the lowest float before the softmax (or the sigmoid).
tests/test_tfa.py reads the files; tests/reference_tfa.py says the same equations in NumPy.

What tfa computes, where it is not plain from the name:

- Keys are the projected memory, values are the memory as it is. All projections lack a bias.
- LuongAttention(units) projects the memory: q^T (h W), W `[Dm, units]`, and units is the size of
  the query. This is the paper's "general" score; for "dot" one has to pass a `memory_layer` that
  does nothing.
- scale=True multiplies the Luong score by a learned scalar `attention_g`.
- normalize=True: g v / |v| in place of v, and b inside the tanh: (g v / |v|)^T tanh(W q + U h + b).
- The monotonic mechanisms add the scalar `attention_score_bias` (r) to the score, behind scale and
  normalize. p = sigmoid(score); with mode="hard", p = 1 where score > 0. The state is the last
  alignment, at first all on the first memory step.
- AttentionWrapper, each step, with a_0 = 0:
      s_t = cell([x_t; a_{t-1}], s_{t-1})             (cell_input_fn, by default this concatenation)
      c_t = attention(query = output of the cell)      (an LSTM's h)
      a_t = attention_layer([s_t; c_t]), or c_t without such a layer
  The output is a_t, or s_t with output_attention=False; a_t is fed to the next step either way.
  `attention_layer_size` makes the layer linear and without a bias; the paper's tanh needs
  `attention_layer=Dense(size, activation="tanh")`. The cell output comes first in [s_t; c_t].

BeamSearchDecoder, each step, for each sample on its own:

- One list of `beam_width` hypotheses holds running and finished ones. A finished one has one
  continuation, the end token with log-probability 0, and so keeps its place in the list only while
  it is among the `beam_width` best: it takes a place from the running ones, and may be lost.
- All are ranked by score = log p / ((5 + length) / 6)^w. For the ranking at the step that appends
  the end token, length does not count that token; from the next step on it does. So with w > 0 the
  score of a finished hypothesis rises once, one step after it has ended, and one that ends at the
  very last step has a score that is not comparable with the others'.
- The coverage penalty, weight * sum_s log(min(sum_t alignment_ts, 1)), is added for hypotheses
  that had ended before the step, and for no others: neither to running ones, nor at the step that
  ends one. Memory steps whose sum is exactly 0 (padding) are left out. The step that makes the end
  token counts in the sum over t.
- The loop ends when all hypotheses of all samples are finished, or at maximum_iterations. What runs
  still then is ranked among the finished. For the two reasons above, one step more may change the
  order of a list in which all are finished: so it depends on what else is in the batch.
- predicted_ids are traced back from the step at which the sample's longest hypothesis ended, and
  are in the order of that step's list; scores, log_probs and lengths are in the order of the last.
- The first list has one hypothesis and `beam_width` - 1 of log-probability -inf. With a beam wider
  than what there is to keep, hypotheses of -inf, or of about -3.4e38 (a finished one continued by
  another token than the end), fill it. They mean nothing.

A search that keeps finished hypotheses in a list of their own, beside `beam_width` running ones,
follows as many prefixes or more at each step, as finished ones take no place, and loses no finished
one. From the first step on at which the two differ, each may follow prefixes that the other has
dropped, and so find what the other does not. They give the same best hypothesis when neither drops
a prefix of it and all are ranked by the same length, end token included. The beam of
tfa_beam_whole.npz is as wide as the space (V = 3, L = 4: 15 finished and 16 unfinished hypotheses),
so that any right search finds the same log-probabilities. For tfa_beam_gru.npz and
tfa_beam_attention.npz seeds were chosen for which a beam of 3 finds the best of the whole space
(V = 7, L = 6: 9,331 finished and 46,656 unfinished hypotheses, with length counting the end token
throughout), by a clear margin, where it is not always the greedy one, and where the penalties
change which it is. A test searches the space to check it.
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

B, T, S, D, Dm = 2, 3, 7, 5, 11  # samples, steps, memory steps, sizes of query and memory
LENGTHS = np.array([7, 4], "int32")


def seq2seq(name, *args, **kwargs):
    """An object of `tfa.seq2seq`."""
    # Imported here and not above: pytest looks for doctests in this file, too, and lacks it.
    import tensorflow_addons

    return getattr(tensorflow_addons.seq2seq, name)(*args, **kwargs)


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def weights_of(mechanism):
    """The variables of an attention mechanism under tfa's names."""
    variables = {
        "memory_layer/kernel": mechanism.memory_layer.kernel,
        "attention_v": getattr(mechanism, "attention_v", None),
        "attention_g": getattr(mechanism, "attention_g", None),
        "attention_b": getattr(mechanism, "attention_b", None),
        "attention_score_bias": getattr(mechanism, "attention_score_bias", None),
    }
    if mechanism.query_layer is not None:
        variables["query_layer/kernel"] = mechanism.query_layer.kernel
    if hasattr(mechanism, "scale_weight"):  # LuongAttention keeps `attention_g` under this name
        variables["attention_g"] = mechanism.scale_weight
    return {name: variable for name, variable in variables.items() if variable is not None}


def draw(rng, variables, scale=0.6):
    """Gives the variables random values and returns these by name."""
    for variable in variables.values():
        variable.assign(scale * normal(rng, *variable.shape))
    return {name: variable.numpy() for name, variable in variables.items()}


def alignments_of(mechanism, query):
    """Alignments `[B, T, S]`, each step given those of the step before."""
    state, steps = mechanism.initial_state(len(query), tf.float32), []
    for t in range(query.shape[1]):
        alignments, state = mechanism([query[:, t], state])
        steps.append(alignments.numpy())
    return np.stack(steps, 1)


def attention(seed, name, units, **settings):
    """One mechanism on T queries."""
    rng = np.random.default_rng(seed)
    arrays = {"query": normal(rng, B, T, D), "memory": normal(rng, B, S, Dm), "lengths": LENGTHS}
    mechanism = seq2seq(name, units, **settings)
    mechanism.setup_memory(arrays["memory"], LENGTHS)
    alignments_of(mechanism, arrays["query"])  # makes the variables
    arrays.update(draw(rng, weights_of(mechanism)))
    mechanism.setup_memory(arrays["memory"], LENGTHS)  # projects the memory with the new weights
    return {**arrays, "alignments": alignments_of(mechanism, arrays["query"])}


def monotonic(seed, name, units, **settings):
    """One monotonic mechanism in its three modes: the same weights and inputs in each."""
    modes = ("parallel", "recursive", "hard")
    runs = {mode: attention(seed, name, units, mode=mode, **settings) for mode in modes}
    arrays = {f"alignments_{mode}": run.pop("alignments") for mode, run in runs.items()}
    return {**runs["parallel"], **arrays}


def make_cell(kind, size, units):
    """A Keras cell and its variables."""
    cell = {"gru": tf.keras.layers.GRUCell, "lstm": tf.keras.layers.LSTMCell}[kind](units)
    cell.build((None, size))
    names = ("cell/kernel", "cell/recurrent_kernel", "cell/bias")
    return cell, dict(zip(names, cell.trainable_variables, strict=True))


def wrapper(seed, kind, mechanism, layer=None, feeding=True, **settings):
    """AttentionWrapper for 4 steps; `layer` is what makes the attention layer, or None."""
    steps, inputs_size, units, layer_size = 4, 3, 5, 13
    rng = np.random.default_rng(seed)
    arrays = {
        "inputs": normal(rng, B, steps, inputs_size),
        "memory": normal(rng, B, S, Dm),
        "lengths": LENGTHS,
    }
    state = [normal(rng, B, units) for _ in range({"gru": 1, "lstm": 2}[kind])]
    fed = (layer_size if layer else Dm) if feeding else 0
    cell, variables = make_cell(kind, inputs_size + fed, units)
    mechanism.setup_memory(arrays["memory"], LENGTHS)
    mechanism([state[0], mechanism.initial_state(B, tf.float32)])
    variables.update(weights_of(mechanism))
    if layer:
        settings["attention_layer"] = layer = layer(layer_size)
        layer.build((None, units + Dm))
        variables["attention_layer/kernel"] = layer.kernel
        if layer.use_bias:
            variables["attention_layer/bias"] = layer.bias
    if not feeding:
        settings["cell_input_fn"] = lambda inputs, attention: inputs
    arrays.update(draw(rng, variables))
    mechanism.setup_memory(arrays["memory"], LENGTHS)
    arrays.update({f"initial_state_{i}": part for i, part in enumerate(state)})
    wrapped = seq2seq("AttentionWrapper", cell, mechanism, **settings)
    return {**arrays, **run_wrapper(wrapped, arrays["inputs"], state)}


def run_wrapper(wrapped, inputs, state):
    """What each step gives, `[B, T, ...]`."""
    at_first = wrapped.get_initial_state(batch_size=B, dtype=tf.float32)
    state = [tf.constant(part) for part in state]
    state = at_first.clone(cell_state=tf.nest.pack_sequence_as(at_first.cell_state, state))
    collected = {}
    for t in range(inputs.shape[1]):
        output, state = wrapped(inputs[:, t], state)
        parts = {"outputs": output, "attention": state.attention, "alignments": state.alignments}
        for i, part in enumerate(tf.nest.flatten(state.cell_state)):
            parts[f"states_{i}"] = part
        for name, part in parts.items():
            collected.setdefault(name, []).append(part.numpy())
    return {name: np.stack(steps, 1) for name, steps in collected.items()}


def stack(seed):
    """AttentionWrapper around two cells; variables under their own names behind "variables/"."""
    size, units = 3, 5
    rng = np.random.default_rng(seed)
    arrays = {
        "inputs": normal(rng, B, 4, size),
        "memory": normal(rng, B, S, Dm),
        "lengths": LENGTHS,
    }
    cell = tf.keras.layers.StackedRNNCells([tf.keras.layers.GRUCell(units) for _ in range(2)])
    mechanism = seq2seq("LuongAttention", units)
    mechanism.setup_memory(arrays["memory"], LENGTHS)
    wrapped = seq2seq("AttentionWrapper", cell, mechanism, attention_layer_size=13)
    state = [normal(rng, B, units) for _ in range(2)]
    run_wrapper(wrapped, arrays["inputs"], state)  # makes the variables
    values = draw(rng, {variable.name: variable for variable in wrapped.variables})
    arrays.update({f"variables/{name}": value for name, value in values.items()})
    arrays.update({f"initial_state_{i}": part for i, part in enumerate(state)})
    mechanism.setup_memory(arrays["memory"], LENGTHS)
    return {**arrays, **run_wrapper(wrapped, arrays["inputs"], state)}


class Translator(tf.keras.Model):
    """The model of docs/migration.md, in its form before: logits of the next token."""

    def __init__(self, source_size, target_size, units):
        super().__init__()
        self.source_embedding = tf.keras.layers.Embedding(source_size, 3, mask_zero=True)
        self.target_embedding = tf.keras.layers.Embedding(target_size, 3)
        self.encoder = tf.keras.layers.GRU(units, return_sequences=True, return_state=True)
        self.cell = tf.keras.layers.GRUCell(units)
        self.attention = seq2seq("LuongAttention", units)
        self.decoder_cell = seq2seq(
            "AttentionWrapper", self.cell, self.attention, attention_layer_size=7
        )
        self.to_logits = tf.keras.layers.Dense(target_size)
        self.decoder = seq2seq(
            "BasicDecoder",
            self.decoder_cell,
            seq2seq("TrainingSampler"),
            output_layer=self.to_logits,
        )

    def call(self, inputs):
        source, target = inputs
        memory, state = self.encoder(self.source_embedding(source))
        lengths = tf.reduce_sum(tf.cast(source != 0, "int32"), axis=1)
        self.attention.setup_memory(memory, lengths)
        start = self.decoder_cell.get_initial_state(batch_size=len(source), dtype=tf.float32)
        outputs, _, _ = self.decoder(
            self.target_embedding(target), initial_state=start.clone(cell_state=state)
        )
        return outputs.rnn_output


def model(seed):
    """A whole model, as a checkpoint with its optimizer, and its logits."""
    rng = np.random.default_rng(seed)
    translator = Translator(source_size=11, target_size=13, units=5)
    arrays = {
        "source": np.array([[3, 4, 5, 6], [7, 8, 0, 0]], "int32"),
        "target": np.array([[1, 9, 3], [1, 12, 4]], "int32"),
    }
    inputs = arrays["source"], arrays["target"]
    translator(inputs)  # makes the variables
    draw(rng, {variable.name: variable for variable in translator.variables})
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(translator.trainable_variables)
    arrays["logits"] = translator(inputs).numpy()
    return {**arrays, "checkpoint": tf.train.Checkpoint(model=translator, optimizer=optimizer)}


def linear(size):
    """What attention_layer_size makes."""
    return tf.keras.layers.Dense(size, use_bias=False, name="attention_layer")


def tanh(size):
    """Equation 5 of Luong et al., which has no bias."""
    return tf.keras.layers.Dense(size, activation="tanh", use_bias=False)


def tanh_with_bias(size):
    return tf.keras.layers.Dense(size, activation="tanh")


def beam_search(seed, sizes, scale, penalties, attend=False):
    """BeamSearchDecoder over a GRU, alone or in an AttentionWrapper, for each pair of weights."""
    vocabulary, width, steps = sizes
    size, units, memory_steps, memory_size, layer_size = 11, 5, 13, 17, 19
    rng = np.random.default_rng(seed)
    arrays = {
        "embedding": normal(rng, vocabulary, size),
        "initial_state": normal(rng, B, units),
        "start_tokens": np.array([0, 1], "int32"),
        "end_token": np.int32(vocabulary - 1),
        "maximum_iterations": np.int32(steps),
        "penalties": np.array(penalties, "float32"),  # weights of length and coverage
    }
    cell, variables = make_cell("gru", size + layer_size * attend, units)
    output = tf.keras.layers.Dense(vocabulary)
    output.build((None, layer_size if attend else units))
    variables.update({"output/kernel": output.kernel, "output/bias": output.bias})
    state = seq2seq("tile_batch", arrays["initial_state"], width)
    if attend:
        arrays["memory"] = normal(rng, B, memory_steps, memory_size)
        arrays["lengths"] = np.array([13, 8], "int32")
        tiled = [seq2seq("tile_batch", arrays[name], width) for name in ("memory", "lengths")]
        mechanism, layer = seq2seq("LuongAttention", units), tanh(layer_size)
        mechanism.setup_memory(*tiled)
        layer.build((None, units + memory_size))
        variables.update(weights_of(mechanism), **{"attention_layer/kernel": layer.kernel})
        cell = seq2seq("AttentionWrapper", cell, mechanism, attention_layer=layer)
    arrays.update(draw(rng, variables, scale))
    if attend:
        mechanism.setup_memory(*tiled)
        at_first = cell.get_initial_state(batch_size=B * width, dtype=tf.float32)
        state = at_first.clone(cell_state=state)
    for i, (length, coverage) in enumerate(penalties):
        decoder = seq2seq(
            "BeamSearchDecoder",
            cell,
            width,
            output_layer=output,
            length_penalty_weight=length,
            coverage_penalty_weight=coverage,
            maximum_iterations=steps,
        )
        arrays.update({f"{name}_{i}": x for name, x in run_search(decoder, arrays, state).items()})
    return arrays


def run_search(decoder, arrays, state):
    """The search's last list of hypotheses, and what each step kept."""
    outputs, last, _ = decoder(
        arrays["embedding"],
        start_tokens=arrays["start_tokens"],
        end_token=int(arrays["end_token"]),
        initial_state=state,
    )
    steps = outputs.beam_search_decoder_output
    return {
        "predicted_ids": outputs.predicted_ids.numpy(),  # [B, T, K], the best first
        "step_scores": steps.scores.numpy(),  # [B, T, K]; of the last step: the final scores
        "step_ids": steps.predicted_ids.numpy(),
        "parent_ids": steps.parent_ids.numpy(),
        "log_probs": last.log_probs.numpy(),  # [B, K]
        "lengths": last.lengths.numpy(),  # the end token counts
        "finished": last.finished.numpy(),
    }


CASES = {
    "bahdanau": lambda: attention(2, "BahdanauAttention", 13),
    "bahdanau_normalized": lambda: attention(3, "BahdanauAttention", 13, normalize=True),
    "luong": lambda: attention(5, "LuongAttention", D),
    "luong_scaled": lambda: attention(7, "LuongAttention", D, scale=True),
    "monotonic_bahdanau": lambda: monotonic(11, "BahdanauMonotonicAttention", 13, normalize=True),
    "monotonic_luong": lambda: monotonic(15, "LuongMonotonicAttention", D, scale=True),
    "wrapper_gru_luong": lambda: wrapper(17, "gru", seq2seq("LuongAttention", 5), linear),
    "wrapper_lstm_luong": lambda: wrapper(19, "lstm", seq2seq("LuongAttention", 5), linear),
    "wrapper_lstm_luong_tanh": lambda: wrapper(23, "lstm", seq2seq("LuongAttention", 5), tanh),
    "wrapper_gru_luong_no_feeding": lambda: wrapper(
        29,
        "gru",
        seq2seq("LuongAttention", 5),
        tanh_with_bias,
        feeding=False,
    ),
    "wrapper_gru_bahdanau": lambda: wrapper(
        31, "gru", seq2seq("BahdanauAttention", 17), output_attention=False
    ),
    "wrapper_lstm_bahdanau_normalized": lambda: wrapper(
        37, "lstm", seq2seq("BahdanauAttention", 17, normalize=True), output_attention=False
    ),
    "stack": lambda: stack(41),
    "model": lambda: model(43),
    "beam_gru": lambda: beam_search(548, (7, 3, 6), 2.0, [(0.0, 0.0), (0.6, 0.0)]),
    "beam_attention": lambda: beam_search(
        359, (7, 3, 6), 0.8, [(0.0, 0.0), (0.6, 0.0), (0.6, 0.02)], attend=True
    ),
    "beam_whole": lambda: beam_search(1191, (3, 31, 4), 1.0, [(0.0, 0.0), (0.6, 0.0)]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("cases", nargs="*", help="names of cases; by default all")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown cases {unknown}; there are {', '.join(CASES)}")
    for name in arguments.cases or CASES:
        path = arguments.output / f"tfa_{name}.npz"
        whole = path.with_name(f".{path.name}")
        arrays = CASES[name]()
        if "checkpoint" in arrays:  # tfa_*.index and tfa_*.data-...
            arrays.pop("checkpoint").write(str(path.with_suffix("")))
        np.savez(whole, **arrays)
        whole.replace(path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
