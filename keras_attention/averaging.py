"""The mean of several checkpoints' weights, often a better model than the last of them."""

import re
from pathlib import Path

import keras

from keras_attention.checks import check_positive
from keras_attention.room import check_room
from keras_attention.whole import whole

FILE = re.compile(r"epoch_(\d{4,})\.weights\.h5")


def average_weights(model, paths):
    """Gives a model the mean of the weights in several files.

        w = 1/n * sum_i w_i

    As in section 6.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), who averaged the
    last 5 checkpoints of their base model and the last 20 of the big one. Each weight, of any shape
    `[...]`, is summed in float64; of integers the last file's are taken.

    Args:
        model: a built Keras model.
        paths: files that `model.save_weights` or `keras.callbacks.ModelCheckpoint(...,
            save_weights_only=True)` wrote, `.weights.h5`.

    The state of a compiled model's optimizer becomes that of the last file.

    Raises:
        ValueError: if `paths` is a single path or empty, or a file does not fit the model; the
            weights are then those from before.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{number}.weights.h5" for number in (1, 2)]
    ...     for number, path in enumerate(paths, start=1):
    ...         model.set_weights([np.array([[number]])])
    ...         model.save_weights(path)
    ...     average_weights(model, paths)
    >>> model.get_weights()[0].tolist()
    [[1.5]]
    """
    if isinstance(paths, (str, bytes, Path)):
        raise ValueError(f"`paths` must be a list of paths. Received: {paths!r}.")
    paths = [Path(path) for path in paths]
    before = model.get_weights()
    try:
        model.set_weights(_mean(_weights_of(model, path) for path in paths))
    except BaseException:
        model.set_weights(before)
        raise


class AverageCheckpoints(keras.callbacks.Callback):
    """Puts the mean of the weights after each of the last epochs into the model.

        w = 1/n * sum over the last n epochs of w_epoch

    As in section 6.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762). The model has
    the mean when `fit` returns; while it trains, and in what other callbacks see and save, the
    weights are its own.

    Args:
        last: n, the number of epochs. If there were fewer, the mean is over all.
        folder: where to keep the weights, as `epoch_0001.weights.h5` and so on, and nothing else;
            made if it is missing. Then a training that was killed and goes on, by
            `keras.callbacks.BackupAndRestore` or `initial_epoch`, has the mean of an uninterrupted
            one. Files of epochs that `fit` starts with anew are deleted; those of the last n
            epochs stay. By default the weights are kept in memory, n times the size of the
            model, and lost with the process.

    Returns:
        A callback for `model.fit(..., callbacks=[...])`, to be put before `BackupAndRestore` and
        after `EarlyStopping(restore_best_weights=True)`, which sets the weights in the end, too. It
        has no tensors of any shape `[...]` of its own.

    Where `fit` ends by an exception, the model keeps the weights that it has, and
    `average_weights(model, paths)` takes the files.

    Raises:
        ValueError: if `last` is no positive integer.

    Example: the weight after the epochs is 1, 2 and 3

    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    >>> model.set_weights([np.zeros((1, 1))])
    >>> model.compile(keras.optimizers.SGD(1.0), lambda y, output: -output)
    >>> x, callbacks = np.ones((1, 1)), [AverageCheckpoints(last=2)]
    >>> history = model.fit(x, x, epochs=3, verbose=0, callbacks=callbacks)
    >>> model.get_weights()[0].tolist()
    [[2.5]]
    """

    def __init__(self, last=5, folder=None):
        super().__init__()
        self.last = check_positive("last", last)
        self.folder = None if folder is None else Path(folder)
        self._kept = {}  # weights or the path to them, by the number of epochs trained

    def on_train_begin(self, logs=None):
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = ((FILE.fullmatch(path.name), path) for path in self.folder.iterdir())
            self._kept = {int(name[1]): path for name, path in names if name}
        self._first = True

    def on_epoch_begin(self, epoch, logs=None):
        if self._first:  # what is there from later epochs belongs to another training
            self._first = False
            self._keep_only(lambda number: number <= epoch)

    def on_epoch_end(self, epoch, logs=None):
        self._kept[epoch + 1] = self._weights(epoch + 1)
        self._keep_only(lambda number: number > epoch + 1 - self.last)

    def on_train_end(self, logs=None):
        kept = [self._kept[number] for number in sorted(self._kept)]
        if not kept:
            return
        if self.folder is None:
            self.model.set_weights(_mean(kept))
        else:
            average_weights(self.model, kept)

    def _weights(self, number):
        if self.folder is None:
            return self.model.get_weights()
        path = self.folder / f"epoch_{number:04d}.weights.h5"
        with whole(path) as unfinished:
            check_room(self.model, self.folder)
            self.model.save_weights(unfinished)
        return path

    def _keep_only(self, wanted):
        for number in [number for number in self._kept if not wanted(number)]:
            weights = self._kept.pop(number)
            if self.folder is not None:
                weights.unlink(missing_ok=True)


def _weights_of(model, path):
    model.load_weights(path)
    return model.get_weights()


def _mean(collections):
    """The mean of lists of arrays; the last one's of arrays that are not floating."""
    totals, count = None, 0
    for weights in collections:
        arrays = [x.astype("float64") if _is_float(x) else x for x in weights]
        if totals is None:
            totals = arrays
        else:
            totals = [a + b if _is_float(b) else b for a, b in zip(totals, arrays, strict=True)]
        count += 1
    if not count:
        raise ValueError("`paths` must name at least one file. Received none.")
    return [
        (total / count).astype(array.dtype) if _is_float(array) else total
        for total, array in zip(totals, weights, strict=True)
    ]


def _is_float(array):
    return keras.backend.is_float_dtype(array.dtype.name)
