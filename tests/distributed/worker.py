"""A process of a small training: worker.py FOLDER [--kill-in EPOCH] [--epochs N]

Writes FOLDER/NUMBER.json (history, what `fit` says) and the chief FOLDER/weights.npz. With
--kill-in the last process kills itself once, in the middle of that epoch.
"""

import argparse
import json
import os
import signal
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from keras_attention import (
    EpochCounter,
    MaskedCrossEntropy,
    MultiHeadAttention,
    TokenEmbedding,
    fit_distributed,
    is_chief,
)
from keras_attention.models.epochs import epoch_dataset

ROWS, STEPS, BATCH, EPOCHS = 37, 7, 6, 4  # the last batch has one row: nothing for one process


class KillOnce(keras.callbacks.Callback):
    def __init__(self, epoch, marker):
        super().__init__()
        self.epoch, self.marker, self.now = epoch, marker, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.now == self.epoch and batch == 3 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def make_model(optimizer=None):
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(9, 8)(ids)
    x = MultiHeadAttention(2, 4)(x)
    model = keras.Model(ids, keras.layers.Dense(9, kernel_regularizer="l2")(x))
    model.compile(
        optimizer or keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5),
        MaskedCrossEntropy(),
        weighted_metrics=["accuracy"],
    )
    random = np.random.default_rng(0)
    model.set_weights([0.3 * random.normal(size=x.shape) for x in model.get_weights()])
    return model


def data():
    """Ids that are padded to very different lengths, and these ids backwards."""
    random = np.random.default_rng(1)
    ids = random.integers(3, 9, (ROWS, STEPS)).astype("int32")
    ids[np.arange(STEPS) >= random.integers(1, STEPS + 1, (ROWS, 1))] = 0
    return ids, ids[:, ::-1].copy()


def batches(counter):
    ids, labels = data()

    def of_epoch(random):
        rows = random.permutation(ROWS)
        for first in range(0, ROWS, BATCH):
            some = rows[first : first + BATCH]
            yield ids[some], labels[some]

    spec = tf.TensorSpec([None, STEPS], "int32")
    return epoch_dataset(of_epoch, (spec, spec), -(-ROWS // BATCH), epoch=counter)


def own_validation(context):
    """This process's own rows of each batch; the last one has none for the second process."""
    ids, labels = (x[: 2 * BATCH + 1] for x in data())

    def mine():
        for first in range(0, len(ids), BATCH):
            rows = np.arange(first, min(first + BATCH, len(ids)))
            if len(rows := rows[context.input_pipeline_id :: context.num_input_pipelines]):
                yield ids[rows], labels[rows]

    spec = tf.TensorSpec([None, STEPS], "int32")
    return tf.data.Dataset.from_generator(mine, output_signature=(spec, spec))


def what_fit_says(strategy):
    """Keras's own `fit` on the same processes."""
    with strategy.scope():
        model = make_model()
    try:
        model.fit(tf.data.Dataset.from_tensor_slices(data()).batch(BATCH), verbose=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-in", type=int)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model()
    number = strategy.cluster_resolver.task_id or 0
    counter = EpochCounter()
    callbacks = [counter, keras.callbacks.CSVLogger(options.folder / "log.csv", append=True)]
    if options.kill_in is not None and not is_chief(strategy):
        callbacks.append(KillOnce(options.kill_in, options.folder / "killed"))
    history = fit_distributed(
        model,
        batches(counter),
        epochs=options.epochs,
        verbose=2,
        callbacks=callbacks,
        validation_data=own_validation,
        backup_folder=options.folder / "backup",
    )
    found = {"epoch": history.epoch, "history": history.history, "fit": what_fit_says(strategy)}
    (options.folder / f"{number}.json").write_text(json.dumps(found), "utf-8")
    if is_chief(strategy):
        np.savez(options.folder / "weights.npz", *model.get_weights())


if __name__ == "__main__":
    main()
