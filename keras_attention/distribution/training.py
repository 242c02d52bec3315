"""`fit` over several processes."""

import keras

from keras_attention.checks import check_positive
from keras_attention.distribution.backup import Backup
from keras_attention.distribution.loop import fit_over_workers
from keras_attention.distribution.workers import (
    configured_workers,
    is_chief,
    together,
    worker_count,
)

CHIEF_ONLY = ("CSVLogger", "ModelCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard")


def fit_distributed(
    model,
    x,
    epochs=1,
    verbose="auto",
    callbacks=None,
    validation_data=None,
    steps_per_epoch=None,
    validation_steps=None,
    backup_folder=None,
):
    """Trains a model on one process or many, and goes on where a killed training was.

    In one process, with or without a `tf.distribute.MirroredStrategy`, this is `model.fit`. Over
    the processes of a `tf.distribute.MultiWorkerMirroredStrategy`, where `fit` of Keras 3.15 fails
    (github.com/keras-team/keras/issues/20585), it is a loop of its own: its steps equal those of
    one process on the same batches, as each process's mean counts by the number of rows, or of
    real steps, that it is over, and gradients are clipped after they are summed.

    Args:
        model: a compiled model, made in the scope of the strategy.
        x: `tf.data.Dataset` of global batches `[B, ...]`, the same ones in the same order in each
            process (shuffle with a seed): each reads its own rows of every batch. Or a function
            from a `tf.distribute.InputContext` to a dataset of this process's own batches
            `[B / N, ...]`, e.g. of its own files.
        epochs: the number of passes over the data, those before a restart included.
        verbose: as of `fit`; only the chief shows anything.
        callbacks: list of callbacks. They run in each process, on the same logs. Those of Keras
            that write files, and those with an attribute `chief_only = True`, run on the chief.
            A process that sets `model.stop_training` stops all of them.
        validation_data: as `x`, evaluated after each epoch.
        steps_per_epoch, validation_steps: numbers of batches, if not all of the data.
        backup_folder: where to keep backups, a folder that all processes see. After each epoch all
            is written that is needed to go on from there; with the same arguments, a training that
            was killed and is started again does. Batches and dropout are those of the
            uninterrupted training with `callbacks=[EpochCounter()]`. A finished training does
            nothing but restore its weights; delete the folder to begin anew.

    Returns:
        A `keras.callbacks.History`, of all epochs, with the metrics over all processes.

    When a process dies, TensorFlow tells the others within a minute, and they raise an error: start
    all of them again.

    Raises:
        RuntimeError: if another process has died.
        ValueError: on another backend than TensorFlow; if the model is not compiled, or not made
            in the scope although TF_CONFIG names several processes; for a kind of data, a
            callback, or a setting of `compile` that this can not respect; if backups do not fit.

    Example: one process, killed after two epochs

    >>> import tempfile
    >>> import tensorflow as tf
    >>> def train(epochs, folder):
    ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     batches = tf.data.Dataset.from_tensors(([[1.0], [2.0]], [[2.0], [4.0]]))
    ...     return fit_distributed(model, batches, epochs, verbose=0, backup_folder=folder)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     before, after = train(2, folder), train(3, folder)
    >>> after.epoch, after.history["loss"][:2] == before.history["loss"]
    ([0, 1, 2], True)
    """
    _check_model(model)
    for name, data in (("x", x), ("validation_data", validation_data)):
        _check_data(name, data, optional=name != "x")
    _check_callbacks(callbacks)
    check_positive("epochs", epochs)
    strategy = model.distribute_strategy
    chief, history = is_chief(strategy), keras.callbacks.History()
    callbacks = [history, *(x for x in callbacks or () if chief or not writes_files(x))]
    first, stopped = 0, False
    if backup_folder is not None:
        backup = Backup(model, backup_folder, history, writes=chief)
        first, stopped = backup.restore()
        callbacks.append(backup)
    fitting = {
        "epochs": epochs,
        "initial_epoch": epochs if stopped else min(first, epochs),
        "verbose": verbose if chief else 0,
        "callbacks": callbacks,
        "validation_data": validation_data,
        "steps_per_epoch": steps_per_epoch,
        "validation_steps": validation_steps,
    }
    if worker_count(strategy) > 1:
        with together():
            fit_over_workers(model, strategy, x, **fitting)
    else:
        fitting["validation_data"] = _for_fit(strategy, validation_data)
        model.fit(_for_fit(strategy, x), shuffle=False, **fitting)
    return history


def _for_fit(strategy, data):
    """The dataset of a function, where one process reads all."""
    import tensorflow as tf

    if not callable(data):
        return data
    if strategy.num_replicas_in_sync == 1:
        return data(tf.distribute.InputContext())
    return strategy.distribute_datasets_from_function(data)


def writes_files(callback):
    """Whether a callback is for the chief alone: it writes, and decides nothing of the training."""
    names = {base.__name__ for base in type(callback).__mro__}
    return getattr(callback, "chief_only", False) or not names.isdisjoint(CHIEF_ONLY)


def _check_model(model):
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`fit_distributed` needs the TensorFlow backend. On JAX `model.fit` trains on many "
            "devices and processes with `keras.distribution` (see `layout_map`). Received: the "
            f"{keras.backend.backend()} backend."
        )
    if not getattr(model, "compiled", False):
        raise ValueError("`model` must be a compiled Keras model. Call `compile` first.")
    workers = configured_workers()
    if workers > 1 and worker_count(model.distribute_strategy) < 2:
        raise ValueError(
            "`model` must be made and compiled in the scope of a "
            f"`tf.distribute.MultiWorkerMirroredStrategy`: TF_CONFIG names {workers} processes. "
            "Otherwise each of them would train a model by itself."
        )


def _check_data(name, data, optional):
    import tensorflow as tf

    if data is None and optional:
        return
    if not isinstance(data, tf.data.Dataset) and not callable(data):
        raise ValueError(
            f"`{name}` must be a `tf.data.Dataset` of batches, or a function from a "
            f"`tf.distribute.InputContext` to one. Received: {data!r:.100}."
        )


def _check_callbacks(callbacks):
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        raise ValueError(f"`callbacks` must be a list of callbacks. Received: {callbacks!r:.100}.")
    for callback in callbacks or ():
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "`callbacks` must not hold BackupAndRestore: `backup_folder` does what it does, "
                "over several processes too."
            )
