# %% [markdown]
# # Quickstart
#
# A model that reads numbers written in words and writes them in digits, from nothing to a file that
# runs without Keras, in a minute or two on two CPU cores: data, model, training, what the
# attention looks at, saving, exporting.
#
# It needs `pip install 'keras-attention-layers[examples]'`.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import logging
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt

from keras_attention import (
    CharacterTokenizer,
    MaskedCrossEntropy,
    WordTokenizer,
    alignment_text,
    export_servable,
    plot_alignment,
    seq2seq,
    text_batches,
)

logging.getLogger("tensorflow").setLevel("ERROR")
keras.utils.set_random_seed(1)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Data
#
# Pairs of strings: "forty two thousand seven" and "42007". Any list of pairs will do.

# %%
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number):
    if number < 20:
        return ONES[number]
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {in_words(number % size)}" if number % size else ""
            return f"{in_words(number // size)} {name}{rest}"
    return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")


numbers = random.Random(1).sample(range(1_000_000), 10_200)
numbers = [number // 10 ** (place % 6) for place, number in enumerate(numbers)]  # short ones too
numbers = list(dict.fromkeys(numbers))  # no number twice
held_out, learned = numbers[:200], numbers[200:]
sources, targets = [in_words(number) for number in learned], [str(number) for number in learned]
print(f"{len(learned):,} pairs to learn from, {len(held_out)} others to test on")
print(sources[0], "->", targets[0])

# %% [markdown]
# ## Model
#
# Source tokens are words, target tokens are digits. `seq2seq` puts a bidirectional encoder, a
# bridge and a decoder with attention together; what comes out is a Functional Keras model.

# %%
source, target = WordTokenizer.fit(sources), CharacterTokenizer.fit(targets)
model = seq2seq(source, target, units=96, cell="gru", attention="general")
print(f"{model.count_params():,} parameters")

# %% [markdown]
# ## Training
#
# `fit`, with batches of pairs of like lengths and a loss that does not count padding.

# %%
batches = text_batches(sources, targets, source, target, batch_size=64, seed=1)
epochs = 12
rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * len(batches))
model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), MaskedCrossEntropy())
history = model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
print("loss by epoch:", [round(loss, 3) for loss in history.history["loss"]])

# %% [markdown]
# ## Asking the model
#
# Numbers that it never saw, by greedy search; `beam_width=5` would search with a beam.

# %%
answers = model.translate([in_words(number) for number in held_out])
right = sum(answer == str(number) for answer, number in zip(answers, held_out, strict=True))
print(f"{right} of {len(held_out)} held-out numbers are right")

# %% [markdown]
# ## What it looks at
#
# Each row is a digit, each column a word: a digit looks at the word that says it, and a zero that
# no word says has to be made of what is missing.

# %%
found = model.translate("three hundred five thousand twenty", details=True)
print(found.text)
print(alignment_text(found.attention_scores, found.source_tokens, found.target_tokens))
figure, axes = plt.subplots(figsize=(4, 3))
shown = plot_alignment(found.attention_scores, found.source_tokens, found.target_tokens, ax=axes)

# %% [markdown]
# ## Saving
#
# A `.keras` file holds the tokenizers too. Import `keras_attention` before you load one.

# %%
model.save(folder / "model.keras")
again = keras.saving.load_model(folder / "model.keras")
text = "nine hundred thousand one"
print(again.translate(text) == model.translate(text))

# %% [markdown]
# ## Exporting
#
# A SavedModel with text in and text out. The process below has TensorFlow, and no Keras.

# %%
card = export_servable(model, folder / "servable", max_length=10)
print(sorted(card["endpoints"]))

program = """
import sys

for name in ("keras", "keras_attention"):
    sys.modules[name] = None  # it can not be imported
import tensorflow as tf

servable = tf.saved_model.load(sys.argv[1])
answer = servable.signatures["serving_default"](text=tf.constant(["six hundred two thousand ten"]))
print(answer["translation"].numpy()[0].decode())
"""
command = [sys.executable, "-c", program, str(folder / "servable")]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

# %% [markdown]
# Next: [which attention to choose](../docs/attention.md),
# [from the equation to the layer](../docs/equations.md),
# [export and serve](../docs/serving.md), and [more examples](README.md).
