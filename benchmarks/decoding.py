"""Times search with a transformer against CTranslate2 and against recomputing the prefix.

All hold the same random weights and take turns in one process, the encoder included; outputs have
as many tokens as asked for, since the logits of END are out of reach. The ratio is the median, over
the rounds, of our tokens a second divided by the peer's in the same round: above 1 ours is faster.
CTranslate2 is the C++ engine that translation models are commonly served with (`pip install
ctranslate2`); without it its columns stay empty.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
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


QUICK = Sizes(layers=1, units=32, heads=2, vocabulary=50, source=5, target=6)


class Result(NamedTuple):
    """A contest: tokens a second of both, the ratio, and the share of equal tokens."""

    peer: str
    batch: int
    beam_width: int
    dtype: str
    ours: float
    theirs: float
    ratio: float
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


def our_search(model, beam_width, length):
    """A function of source ids `[B, S]` that returns ids `[B, L]`."""
    options = {"beam_width": beam_width} if beam_width > 1 else {}

    @tf.function(input_signature=[tf.TensorSpec((None, None), "int32")], autograph=False)
    def search(source):
        return model.search(source, max_length=length, **options).ids

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


def contest(peer, ours, theirs, case, sizes, dtype, rounds):
    """Lets the two take turns."""
    batch, beam_width = case
    shape = (batch, sizes.source)
    source = np.random.default_rng(0).integers(END + 1, sizes.vocabulary, shape).astype("int32")
    found = [search(source) for search in (ours, theirs)]
    speeds = [[], []]
    for _ in range(rounds):
        for which in random.sample((0, 1), 2):
            started = time.perf_counter()
            (ours, theirs)[which](source)
            speeds[which].append(batch * sizes.target / (time.perf_counter() - started))
    ratio = statistics.median(a / b for a, b in zip(*speeds, strict=True))
    same = float(np.mean(found[0] == found[1]))
    return Result(peer, batch, beam_width, dtype, *map(statistics.median, speeds), ratio, same)


def results(sizes, rounds, cases=CASES):
    """All contests, one after the other."""
    model = build_model(sizes)
    yield contest(
        "recomputing the prefix",
        our_search(model, 1, sizes.target),
        prefix_search(model, sizes.target),
        (1, 1),
        sizes,
        "float32",
        max(1, rounds // 2),
    )
    try:
        import ctranslate2
    except ImportError:
        print("CTranslate2 is left out: it is not installed.", file=sys.stderr)
        return
    half = build_model(sizes, "mixed_bfloat16")
    half.set_weights(model.get_weights())
    peer = f"CTranslate2 {ctranslate2.__version__}"
    for case in cases:
        for kind, held, dtype in (("float32", model, "float32"), ("int8", half, "bfloat16")):
            ours = our_search(held, case[1], sizes.target)
            theirs = engine_search(model, sizes, case[1], kind)
            yield contest(f"{peer} {kind}", ours, theirs, case, sizes, dtype, rounds)


def table(found):
    lines = [
        "| search | batch | dtype | peer | ours, tokens/s | peer, tokens/s | ratio | same tokens |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for x in found:
        search = "greedy" if x.beam_width == 1 else f"beam of {x.beam_width}"
        lines.append(
            f"| {search} | {x.batch} | {x.dtype} | {x.peer} | {x.ours:.0f} | {x.theirs:.0f} "
            f"| {x.ratio:.2f} | {x.same:.1%} |"
        )
    return "\n".join(lines)


def main():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all works")
    parser.add_argument("--rounds", type=positive, default=5, help="(default: %(default)s)")
    parser.add_argument("--cases", nargs="+", metavar="B,K", help="batch and beam width, e.g. 8,5")
    options = parser.parse_args()
    cases = CASES
    if options.cases:
        cases = [tuple(map(int, case.split(","))) for case in options.cases]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    found = []
    for result in results(QUICK if options.quick else Sizes(), options.rounds, cases):
        print(table([result]).splitlines()[-1], file=sys.stderr, flush=True)
        found.append(result)
    print(table(found))


if __name__ == "__main__":
    main()
