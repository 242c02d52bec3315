"""Trains and decodes for minutes, and looks whether the memory of the process stays flat.

    python tests/soak.py --minutes 10

Rounds of training, greedy search, beam search, sampling and saving with a recurrent and a
transformer model, on texts of all lengths, so that compiled functions and caches come and go. The
memory is looked at after each round; the first third of the time is for warming up.
"""

import argparse
import gc
import itertools
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

from keras_attention import (
    CharacterTokenizer,
    MaskedCrossEntropy,
    causal_lm,
    seq2seq,
    text_batches,
    transformer,
)

LETTERS = "abcdefgh"
MAX_LENGTH = 12
PAGE = resource.getpagesize()


def memory():
    """Bytes of memory that the process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def random_texts(draw, count=48):
    return ["".join(draw.choices(LETTERS, k=draw.randint(1, MAX_LENGTH))) for _ in range(count)]


def models():
    letters = CharacterTokenizer.fit([LETTERS])
    options = {"units": 32, "num_heads": 2, "layers": 1}
    yield seq2seq(letters, letters, units=32, attention="bahdanau")
    yield transformer(letters, letters, **options)
    yield causal_lm(letters, **options)


def train(model, texts):
    if hasattr(model, "translate"):
        tokenizers = model.inference.source, model.inference.target
        batches = text_batches(texts, [x[::-1] for x in texts], *tokenizers, batch_size=16)
        model.fit(batches, verbose=0, shuffle=False)
    else:
        ids = model.tokenizer.encode(texts, add_start=True, add_end=True)
        model.fit(ids[:, :-1], ids[:, 1:], batch_size=16, verbose=0)


def decode(model, texts):
    ask = model.translate if hasattr(model, "translate") else model.generate
    for options in ({}, {"beam_width": 3}, {"temperature": 0.8, "seed": 1}):
        answers = ask(texts, max_length=MAX_LENGTH, **options)
        assert len(answers) == len(texts)


def soak(seconds, seed=1):
    """Runs for so long; returns `[(seconds, bytes of memory), ...]`, one pair a round."""
    keras.utils.set_random_seed(seed)
    draw, seen, started = random.Random(seed), [], time.monotonic()
    trained = list(models())
    for model in trained:
        model.compile("adam", MaskedCrossEntropy())
    with tempfile.TemporaryDirectory() as folder:
        for model in itertools.cycle(trained):
            texts = random_texts(draw)
            train(model, texts)
            decode(model, texts[: draw.randint(1, len(texts))])
            model.save(Path(folder) / "model.keras")
            if model is trained[-1]:
                seen.append((round(time.monotonic() - started, 1), memory()))
                if seen[-1][0] > seconds:
                    return seen


def growth(seen):
    """Bytes a round by which the memory grows, after the first third: a least-squares line."""
    later = seen[len(seen) // 3 :]
    rounds, sizes = range(len(later)), [size for _, size in later]
    middle, mean = sum(rounds) / len(rounds), sum(sizes) / len(sizes)
    spread = sum((r - middle) ** 2 for r in rounds)
    slope = sum((r - middle) * (s - mean) for r, s in zip(rounds, sizes, strict=True))
    return slope / max(spread, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    seen = soak(60 * options.minutes)
    third = len(seen) // 3
    print(json.dumps({
        "rounds": len(seen),
        "seconds": seen[-1][0],
        "megabytes_first": round(seen[0][1] / 1e6, 1),
        "megabytes_after_a_third": round(seen[third][1] / 1e6, 1),
        "megabytes_last": round(seen[-1][1] / 1e6, 1),
        "megabytes_most": round(max(size for _, size in seen) / 1e6, 1),
        "kilobytes_a_round": round(growth(seen) / 1e3, 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
