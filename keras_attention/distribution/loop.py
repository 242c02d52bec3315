"""The loop over epochs and batches of several processes, with the callbacks of `fit`."""

import itertools

import keras

from keras_attention.distribution.shares import over_workers
from keras_attention.distribution.steps import WorkerSteps


def fit_over_workers(
    model,
    strategy,
    x,
    epochs,
    initial_epoch,
    verbose,
    callbacks,
    validation_data,
    steps_per_epoch,
    validation_steps,
):
    """Trains a model on batches `[B, ...]` with the other processes; see `fit_distributed`.

    Raises:
        ValueError: for a setting of `compile` that this can not respect, if there is no batch, or
            if the processes start from different epochs.
    """
    _check_settings(model)
    steps = WorkerSteps(model, strategy)
    _check_same_start(steps, strategy, initial_epoch)
    epoch_of = _batches(over_workers(strategy, x), steps_per_epoch)
    validation = validation_data is not None and _batches(
        over_workers(strategy, validation_data), validation_steps, endless=False
    )
    callbacks = keras.callbacks.CallbackList(
        callbacks,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=_length(x, steps_per_epoch),
        model=model,
    )
    model.stop_training = False
    callbacks.on_train_begin()
    logs = {}
    for epoch in range(initial_epoch, epochs):
        callbacks.on_epoch_begin(epoch)
        logs = _train_epoch(model, steps, epoch_of(), callbacks)
        if validation:
            found = _evaluate(steps, validation(), callbacks)
            logs.update({f"val_{name}": value for name, value in found.items()})
        callbacks.on_epoch_end(epoch, logs)
        model.stop_training = steps.sum(model.stop_training) > 0
        if model.stop_training:
            break
    steps.finish()
    callbacks.on_train_end(logs)
    steps.sum(0)  # Nobody leaves before the chief has written.


def _train_epoch(model, steps, batches, callbacks):
    steps.reset_metrics()
    step = -1
    for step, batch in enumerate(batches):
        callbacks.on_train_batch_begin(step)
        logs, stop = steps.train(batch, model.stop_training)
        callbacks.on_train_batch_end(step, logs)
        if stop:
            model.stop_training = True
            break
    if step < 0:
        raise ValueError("`x` must hold at least one batch. Received none.")
    return steps.metrics()


def _evaluate(steps, batches, callbacks):
    callbacks.on_test_begin()
    steps.reset_metrics()
    for step, batch in enumerate(batches):
        callbacks.on_test_batch_begin(step)
        callbacks.on_test_batch_end(step, steps.test(batch))
    logs = steps.metrics()
    callbacks.on_test_end(logs)
    return logs


def _batches(dataset, count, endless=True):
    """A function that gives the batches of the next epoch.

    Args:
        dataset: a distributed dataset of batches `[B, ...]`.
        count: how many batches; None for all of the dataset.
        endless: whether to go on where the epoch before ended, and at the end from the start.
    """
    if count is None:
        return lambda: dataset
    if not endless:
        return lambda: itertools.islice(dataset, count)

    def forever():
        while True:
            some = False
            for batch in dataset:
                some = True
                yield batch
            if not some:
                return

    batches = forever()
    return lambda: itertools.islice(batches, count)


def _length(x, count):
    if count is not None or callable(x):
        return count
    length = int(x.cardinality())
    return length if length >= 0 else None


def _check_same_start(steps, strategy, epoch):
    """Raises unless all processes go on from the same backup."""
    workers = steps.sum(1)
    total, squares = steps.sum(epoch), steps.sum(epoch**2)
    if squares * workers != total**2:
        raise ValueError(
            "`backup_folder` must be a folder that all processes see: they found backups of "
            f"different epochs. Received: {epoch} epochs done, by this process."
        )


def _check_settings(model):
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            "`model` must not have a `train_step` of its own: over several processes the steps "
            f"are other ones. Received: {type(model).__name__}. (`compute_loss` may be its own.)"
        )
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`model.optimizer` must not scale the loss, as mixed_float16 does: over several "
            "processes use another dtype. Received: LossScaleOptimizer."
        )
    for name, received, only in (
        ("jit_compile", model.jit_compile, False),
        ("run_eagerly", model.run_eagerly, False),
        ("steps_per_execution", model.steps_per_execution, 1),
    ):
        if received != only:
            raise ValueError(
                f"`compile({name}=...)` must be {only} over several processes. "
                f"Received: {received!r}."
            )
