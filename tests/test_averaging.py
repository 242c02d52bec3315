"""The mean of checkpoints: numbers, files, and a training that was interrupted."""

import os

import keras
import numpy as np
import pytest

from keras_attention.averaging import AverageCheckpoints, average_weights
from keras_attention.whole import whole as whole_file

X, Y = np.arange(12.0).reshape(4, 3) / 12, np.ones((4, 2))


def make(dtype=None):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.BatchNormalization(dtype=dtype), keras.layers.Dense(2, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=True)
    return model


class Record(keras.callbacks.Callback):
    """The weights after each epoch, and an end in the middle of one."""

    def __init__(self, stop_in=None):
        super().__init__()
        self.weights, self.stop_in = [], stop_in

    def on_train_batch_begin(self, batch, logs=None):
        if len(self.weights) == self.stop_in:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(self.model.get_weights())


def fit(model, *callbacks, epochs=5, **options):
    model.fit(X, Y, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks, **options)


def assert_mean(model, collections):
    """In float64, one weight at a time."""
    for index, weight in enumerate(model.get_weights()):
        expected = np.mean([np.asarray(x[index], "float64") for x in collections], axis=0)
        np.testing.assert_array_equal(weight, expected.astype(weight.dtype))


@pytest.fixture(params=["memory", "folder"])
def folder(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "new" / "kept"


@pytest.mark.parametrize("last", [1, 3, 9])
def test_the_model_gets_the_mean_of_the_last_epochs(last, folder):
    model, record = make(), Record()
    fit(model, AverageCheckpoints(last, folder), record)
    assert_mean(model, record.weights[-last:])
    assert len(record.weights) == 5 and any((a != 0).any() for a in model.get_weights())
    plain, other = make(), Record()
    fit(plain, other)
    for ours, theirs in zip(record.weights[-1], other.weights[-1], strict=True):
        np.testing.assert_array_equal(ours, theirs)  # the training itself is not changed


def test_files_of_the_last_epochs_stay(tmp_path):
    (tmp_path / "epoch_0099.weights.h5").write_text("of a training before")
    (tmp_path / "notes.txt").write_text("mine")
    model, record = make(), Record()
    fit(model, AverageCheckpoints(2, tmp_path), record)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["epoch_0004.weights.h5", "epoch_0005.weights.h5", "notes.txt"]
    other = make()
    average_weights(other, sorted(tmp_path.glob("*.h5")))
    assert_mean(other, record.weights[-2:])


def test_each_training_has_its_own_mean(folder):
    model, callback = make(), AverageCheckpoints(4, folder)
    fit(model, callback)
    record = Record()
    fit(model, callback, record, epochs=2)
    assert_mean(model, record.weights)
    before = model.get_weights()
    fit(model, callback, epochs=0)
    assert_mean(model, [before])


def test_an_interrupted_training_has_the_same_mean(tmp_path):
    whole, record = make(), Record()
    fit(whole, AverageCheckpoints(4), record)

    def callbacks(stop_in):
        average = AverageCheckpoints(4, tmp_path / "kept")
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return average, backup, Record(stop_in)

    with pytest.raises(KeyboardInterrupt):
        fit(make(), *callbacks(stop_in=3))
    # Killed after a file of the next epoch was written, and while the one after that was.
    kept = tmp_path / "kept"
    half = sorted(kept.iterdir())[0].read_bytes()
    (kept / "epoch_0004.weights.h5").write_bytes(half)
    unfinished = whole_file(kept / "epoch_0005.weights.h5")
    folder = unfinished.__enter__().parent
    folder.rename(folder.with_name(folder.name.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")))
    taken_up = make()
    *others, rest = callbacks(stop_in=None)
    fit(taken_up, *others, rest)
    assert len(rest.weights) == 2
    for a, b in zip(whole.get_weights(), taken_up.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_mean(taken_up, record.weights[-4:])
    names = sorted(path.name for path in kept.iterdir())
    assert names == [f"epoch_000{number}.weights.h5" for number in (2, 3, 4, 5)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype, tmp_path):
    """In float16 the sum of two such weights would be infinite."""
    model, paths = make(dtype), []
    for number, value in enumerate((61440.0, 49152.0)):
        model.set_weights([np.full_like(x, value) for x in model.get_weights()])
        paths.append(tmp_path / f"{number}.weights.h5")
        model.save_weights(paths[-1])
    average_weights(model, paths)
    for weight in model.get_weights():
        assert weight.dtype.name == ("float32" if weight.dtype == "float32" else dtype)
        np.testing.assert_array_equal(weight, np.full_like(weight, 55296.0))


def test_integers_are_those_of_the_last_file(tmp_path):
    class Counted(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), dtype="int32", trainable=False)

        def call(self, x):
            return x

    model = keras.Sequential([keras.Input((3,)), Counted()])
    paths = [str(tmp_path / f"{number}.weights.h5") for number in (4, 7)]
    for path, number in zip(paths, (4, 7), strict=True):
        model.set_weights([np.array(number)])
        model.save_weights(path)
    average_weights(model, paths)
    assert model.get_weights()[0] == 7


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    model, paths = make(), [tmp_path / "right.weights.h5", tmp_path / "wrong.weights.h5"]
    make().save_weights(paths[0])
    wrong = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    wrong.save_weights(paths[1])
    fit(model, epochs=1)
    before = model.get_weights()
    with pytest.raises(ValueError):
        average_weights(model, paths)
    assert_mean(model, [before])


@pytest.mark.parametrize(
    ("message", "make_error"),
    [
        ("`last` must be a positive integer. Received: 0", lambda: AverageCheckpoints(0)),
        ("`last` must be a positive integer", lambda: AverageCheckpoints("weights")),
        ("`paths` must be a list of paths", lambda: average_weights(make(), "a.weights.h5")),
        ("`paths` must name at least one file", lambda: average_weights(make(), [])),
    ],
)
def test_errors(message, make_error):
    with pytest.raises(ValueError, match=message):
        make_error()
