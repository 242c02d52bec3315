"""What a training that was killed goes on from."""

import json
from pathlib import PurePath

import keras

KEPT = 2  # so that there is one while the next is written


class Backup(keras.callbacks.Callback):
    """Writes all that a training has learned after each epoch, by `tf.train.Checkpoint`.

    Weights, the states of random layers and of the optimizer, the number of epochs and the
    history. Put it behind all other callbacks. The number of processes may change from one start
    to the next.

    Args:
        model: a compiled model whose weights, of any shapes `[...]`, exist.
        folder: where to write; a path of a kind that TensorFlow reads, also `gs://`. It must be
            the same for all processes.
        history: the `keras.callbacks.History` of the training.
        writes: whether this process writes; all read.

    Raises:
        ValueError: by `restore`, if what is there is of another model or optimizer.
    """

    def __init__(self, model, folder, history, writes=True):
        import tensorflow as tf

        super().__init__()
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self.history, self.writes, self.folder = history, writes, folder
        self._epochs = tf.Variable(0, dtype="int64", trainable=False)
        self._stopped = tf.Variable(False, trainable=False)
        self._logs = tf.Variable("", dtype=tf.string, trainable=False)
        self._checkpoint = tf.train.Checkpoint(
            weights=_plain(_state(model)),
            optimizer=_plain(model.optimizer.variables),
            epochs=self._epochs,
            stopped=self._stopped,
            logs=self._logs,
        )
        folder = str(folder) if isinstance(folder, PurePath) else folder
        self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=KEPT)

    def restore(self):
        """Takes up the last backup.

        Returns:
            `(epochs, stopped)`: the number of epochs done, 0 without a backup; whether a callback
            ended the training.
        """
        import tensorflow as tf

        path = self._manager.latest_checkpoint
        if path is None:
            return 0, False
        try:
            self._checkpoint.restore(path).assert_consumed()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"`backup_folder` {str(self.folder)!r} holds backups of another model or "
                f"optimizer. Give another folder, or delete it to begin anew. ({error})"
            ) from None
        self._done = json.loads(self._logs.numpy())
        return int(self._epochs.numpy()), bool(self._stopped.numpy())

    def on_train_begin(self, logs=None):
        if self._manager.latest_checkpoint is not None:
            self.history.epoch[:] = self._done["epoch"]
            self.history.history.update(self._done["history"])

    def on_epoch_end(self, epoch, logs=None):
        self._epochs.assign(epoch + 1)
        self._write()

    def on_train_end(self, logs=None):
        # The weights may be others by now: the best ones, or a mean.
        self._stopped.assign(self.model.stop_training)
        self._write()

    def _write(self):
        done = {"epoch": self.history.epoch, "history": self.history.history}
        self._logs.assign(json.dumps(done))
        if self.writes:
            self._manager.save()


def _state(model):
    """The variables of a model without those of its metrics."""
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [variable for variable in model.variables if id(variable) not in metrics]


def _plain(variables):
    """TensorFlow's variables of Keras's."""
    return [variable.value for variable in variables]
