"""Times search with a transformer against CTranslate2, and writes docs/decoding.md.

All hold the same random weights and take turns in one process, with one thread each, the encoder
included; outputs have as many tokens as asked for, since the logits of END are out of reach. A
ratio is the median, over the rounds, of the tokens a second divided by those of the peer in the
same round: above 1 it is faster than the peer. CTranslate2 is the C++ engine that translation
models are commonly served with (`make benchmark-peers`); without it its columns stay empty.
"""

import argparse
import importlib.util
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from performance import DOCS, surroundings, write_whole
from step_loops import positive

from keras_attention.models.transformer import Transformer
from keras_attention.text import END, PAD, START

CASES = ((1, 1), (8, 1), (32, 1), (1, 5), (8, 5))  # batch, beam width


class Sizes(NamedTuple):
    layers: int = 6
    units: int = 512
    heads: int = 8
    vocabulary: int = 8000
    source: int = 30
    target: int = 128


PEERS = ("CTranslate2 float32", "CTranslate2 int8", "prefix recomputed")
QUICK = Sizes(layers=1, units=32, heads=2, vocabulary=50, source=5, target=6)


class Result(NamedTuple):
    """How one contestant did: tokens a second, its ratio to the peers, the share of equal tokens.

    The ratios are in the order of `PEERS`, None where a peer did not take part; tokens are compared
    with those of our float32 model.
    """

    batch: int
    beam_width: int
    name: str
    speed: float
    ratios: list
    same: float


def build_model(sizes, dtype="float32"):
    keras.utils.set_random_seed(1)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        model = Transformer(
            sizes.vocabulary,
            sizes.vocabulary,
            layers=sizes.layers,
            units=sizes.units,
            num_heads=sizes.heads,
            tied_embeddings=False,
        )
    finally:
        keras.config.set_dtype_policy(policy)
    bias = np.zeros(sizes.vocabulary, "float32")
    bias[[PAD, START, END]] = -1e9
    model.get_layer("logits").bias.assign(bias)
    return model


def our_search(model, sizes, batch, beam_width, jit_compile=False):
    """A function of source ids `[B, S]` that returns ids `[B, L]`."""
    options = {"beam_width": beam_width} if beam_width > 1 else {}
    shape = (batch, sizes.source) if jit_compile else (None, None)

    @tf.function(
        input_signature=[tf.TensorSpec(shape, "int32")], autograph=False, jit_compile=jit_compile
    )
    def search(source):
        grow = {"grow_cache": not jit_compile, "alignments": False}
        return model.search(source, max_length=sizes.target, **grow, **options).ids

    def run(source):
        ids = search(source).numpy()
        return ids[:, 0] if beam_width > 1 else ids

    return run


def prefix_search(model, length):
    """Greedy search that runs the decoder on all tokens so far, at each step."""
    inference = model.inference

    @tf.function(reduce_retracing=True)
    def following(ids, memory):
        hidden = inference.decoder(inference.embed(ids), memory)
        return tf.argmax(inference.to_logits(hidden[:, -1]), -1, "int32")

    encode = tf.function(inference.encoder)

    def run(source):
        memory = encode(source)
        ids = tf.fill((source.shape[0], 1), START)
        for _ in range(length):
            ids = tf.concat([ids, following(ids, memory)[:, None]], axis=1)
        return ids.numpy()[:, 1:]

    return run


def engine_search(model, sizes, beam_width, compute_type):
    """The same by CTranslate2, with one thread."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        specification(model, sizes).save(folder)
        engine = ctranslate2.Translator(
            folder, compute_type=compute_type, inter_threads=1, intra_threads=1
        )

    def run(source):
        found = engine.translate_batch(
            [[f"t{token}" for token in row] for row in source],
            beam_size=beam_width,
            max_decoding_length=sizes.target,
            min_decoding_length=sizes.target,
            length_penalty=0.0,
        )
        return np.array([[int(token[1:]) for token in one.hypotheses[0]] for one in found])

    return run


def specification(model, sizes):
    """The model with its weights as CTranslate2 takes it."""
    from ctranslate2.specs import TransformerSpec

    made = TransformerSpec.from_config(sizes.layers, sizes.heads, pre_norm=True)
    weights = {weight.path: weight.numpy() for weight in model.weights}
    positions = model.inference.decoder.position_embedding
    length = max(sizes.source, sizes.target) + 1
    zeros = np.zeros((1, length, sizes.units), "float32")
    encodings = np.asarray(positions(zeros))[0]

    def linear(target, *names, output=False):
        kernels, biases = [], []
        for name in names:
            kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
            rows = -1 if output else kernel.shape[0]
            kernels.append(kernel.reshape(rows, bias.size).T)
            biases.append(bias.reshape(-1))
        target.weight, target.bias = np.concatenate(kernels), np.concatenate(biases)

    def norm(target, name):
        target.gamma, target.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]

    def feed_forward(target, name):
        linear(target.linear_0, f"{name}/feed_forward/inner")
        linear(target.linear_1, f"{name}/feed_forward/outer")
        norm(target.layer_norm, f"{name}/feed_forward_residual/norm")

    def attention(target, name, kind, groups):
        for dense, group in zip(target.linear, groups, strict=True):
            names = [f"{name}/{kind}_attention/{part}" for part in group]
            linear(dense, *names, output=group == ["attention_output"])
        norm(target.layer_norm, f"{name}/{kind}_attention_residual/norm")

    together = [["query", "key", "value"], ["attention_output"]]
    apart = [["query"], ["key", "value"], ["attention_output"]]
    for number, layer in enumerate(made.encoder.layer, 1):
        attention(layer.self_attention, f"encoder_{number}", "self", together)
        feed_forward(layer.ffn, f"encoder_{number}")
    for number, layer in enumerate(made.decoder.layer, 1):
        attention(layer.self_attention, f"decoder/block_{number}", "self", together)
        attention(layer.attention, f"decoder/block_{number}", "cross", apart)
        feed_forward(layer.ffn, f"decoder/block_{number}")
    norm(made.encoder.layer_norm, "encoder_norm")
    norm(made.decoder.layer_norm, "decoder/norm")
    linear(made.decoder.projection, "logits")
    made.encoder.embeddings[0].weight = weights["source_embedding/embeddings"]
    made.decoder.embeddings.weight = weights["target_embedding/embeddings"]
    for side in (made.encoder, made.decoder):
        side.scale_embeddings = True
        side.position_encodings.encodings = encodings
    tokens = [f"t{number}" for number in range(sizes.vocabulary)]
    for register in (made.register_source_vocabulary, made.register_target_vocabulary):
        register(tokens)
    made.config.unk_token, made.config.bos_token = tokens[PAD], tokens[START]
    made.config.eos_token, made.config.decoder_start_token = tokens[END], tokens[START]
    made.config.add_source_bos = made.config.add_source_eos = False
    made.validate()
    made.optimize()
    return made


def contest(runs, case, sizes, rounds):
    """Lets all runs, functions by name, take turns."""
    batch, beam_width = case
    shape = (batch, sizes.source)
    source = np.random.default_rng(0).integers(END + 1, sizes.vocabulary, shape).astype("int32")
    tokens = {name: run(source) for name, run in runs.items()}
    seconds = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            started = time.perf_counter()
            runs[name](source)
            seconds[name].append(time.perf_counter() - started)

    def ratio(name, peer):
        if peer not in runs or name == peer:
            return None
        pairs = zip(seconds[peer], seconds[name], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    count, first = batch * sizes.target, next(iter(tokens))
    return [
        Result(
            *case,
            name,
            count / statistics.median(seconds[name]),
            [ratio(name, peer) for peer in PEERS],
            float(np.mean(tokens[name] == tokens[first])),
        )
        for name in runs
    ]


def results(sizes, rounds, cases=CASES):
    """The results of all cases, one list after the other."""
    model, half = build_model(sizes), build_model(sizes, "bfloat16")
    half.set_weights(model.get_weights())
    engine = importlib.util.find_spec("ctranslate2") is not None
    if not engine:
        print("CTranslate2 is left out: it is not installed.", file=sys.stderr)
    for case in cases:
        runs = {
            "float32": our_search(model, sizes, *case),
            "float32, XLA": our_search(model, sizes, *case, jit_compile=True),
            "bfloat16": our_search(half, sizes, *case),
        }
        if engine:
            for name, kind in zip(PEERS[:2], ("float32", "int8"), strict=True):
                runs[name] = engine_search(model, sizes, case[1], kind)
        if case == (1, 1):
            runs[PEERS[2]] = prefix_search(model, sizes.target)
        yield contest(runs, case, sizes, rounds)


def table(found):
    lines = [
        f"| search | batch | | tokens/s | against {' | against '.join(PEERS)} | same tokens |",
        f"| --- | --- | --- | --- | {'--- | ' * len(PEERS)}--- |",
    ]
    for x in found:
        search = "greedy" if x.beam_width == 1 else f"beam of {x.beam_width}"
        ratios = " | ".join("" if ratio is None else f"{ratio:.2f}" for ratio in x.ratios)
        lines.append(
            f"| {search} | {x.batch} | {x.name} | {x.speed:.0f} | {ratios} | {x.same:.1%} |"
        )
    return "\n".join(lines)


def report(sizes, rounds, found):
    return f"""\
# Speed of decoding

Written by `benchmarks/decoding.py` (`make benchmark`).

{surroundings(rounds)}

{__doc__.partition("docs/decoding.md.")[2].strip()}

The model is a transformer of {sizes.layers} + {sizes.layers} layers, d {sizes.units}, feed-forward
size {4 * sizes.units}, {sizes.heads} heads, {sizes.vocabulary} words, random weights;
{sizes.source} source tokens, {sizes.target} target tokens. "float32" and "bfloat16" (weights too)
are TensorFlow graphs in which the caches grow, as `translate` makes them; "XLA" is `translate(...,
jit_compile=True)`. Tokens are compared with those of the first row. Random weights have many almost
equal candidates, between which lower precision chooses another; from there on all tokens differ.

{table(found)}
"""


def main():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all works")
    parser.add_argument("--rounds", type=positive, default=5, help="(default: %(default)s)")
    parser.add_argument("--cases", nargs="+", metavar="B,K", help="batch and beam width, e.g. 8,5")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder (default: docs/)")
    options = parser.parse_args()
    cases = CASES
    if options.cases:
        cases = [tuple(map(int, case.split(","))) for case in options.cases]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    found, sizes = [], QUICK if options.quick else Sizes()
    for more in results(sizes, options.rounds, cases):
        print("\n".join(table(more).splitlines()[2:]), file=sys.stderr, flush=True)
        found += more
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "decoding.md"
    write_whole(path, report(sizes, options.rounds, found))
    print(f"Written to {path}")


if __name__ == "__main__":
    main()
