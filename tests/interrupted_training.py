"""A training that may be killed in the middle of an epoch; run again, it goes on.

    python interrupted_training.py FOLDER [EPOCH]

trains with backups in FOLDER, kills itself in the middle of EPOCH, if one is given, and otherwise
writes the weights to FOLDER/weights.npz and the loss of each epoch to FOLDER/log.csv.
"""

import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from keras_attention import CharacterTokenizer, MaskedCrossEntropy, seq2seq, text_batches
from keras_attention.averaging import AverageCheckpoints
from keras_attention.models.epochs import EpochCounter
from keras_attention.schedules import WarmupCosine

LETTERS = CharacterTokenizer.fit(["abcdef"])
EPOCHS = 5


class StopInTheMiddle(keras.callbacks.Callback):
    """Calls `stop` in the middle of an epoch."""

    def __init__(self, epoch, stop):
        super().__init__()
        self.epoch, self.stop, self.now = epoch, stop, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.now == self.epoch and batch == self.params["steps"] // 2:
            self.stop()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def words(count, seed=0):
    random = np.random.default_rng(seed)
    return ["".join(random.choice(list("abcdef"), random.integers(1, 7))) for _ in range(count)]


def train(folder, stop_in=None, stop=kill, counted=True, epochs=EPOCHS):
    """Everything that a training has: warm-up, dropout, clipping, batches of tokens, averaging."""
    keras.utils.set_random_seed(1409)
    folder, texts = Path(folder), words(60)
    folder.mkdir(parents=True, exist_ok=True)
    counter = EpochCounter()
    batches = text_batches(
        texts,
        [text[::-1] for text in texts],
        LETTERS,
        LETTERS,
        tokens_per_batch=60,
        epoch=counter if counted else None,
    )
    model = seq2seq(LETTERS, LETTERS, cell="gru", units=8, attention="dot", dropout=0.2)
    rate = WarmupCosine(0.02, warmup_steps=10, steps=epochs * len(batches))
    optimizer = keras.optimizers.Adam(rate, beta_2=0.98, global_clipnorm=1.0)
    model.compile(optimizer, MaskedCrossEntropy(label_smoothing=0.1), jit_compile=False)
    callbacks = [
        counter,
        keras.callbacks.CSVLogger(folder / "log.csv", append=True),
        AverageCheckpoints(3, folder / "kept"),
        keras.callbacks.BackupAndRestore(folder / "backup"),
        StopInTheMiddle(stop_in, stop),
    ]
    model.fit(batches, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    target = Path(sys.argv[1])
    trained = train(target, *map(int, sys.argv[2:]))
    arrays = [*trained.get_weights(), *map(np.asarray, trained.optimizer.variables)]
    np.savez(target / "weights.npz", *arrays)
