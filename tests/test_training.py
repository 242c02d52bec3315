"""Training as people do it: schedules, callbacks, mixed precision, a restart after a kill."""

import csv
import subprocess
import sys
from pathlib import Path

import interrupted_training
import keras
import numpy as np
import pytest
import tensorflow as tf
from interrupted_training import EPOCHS, LETTERS, train, words

from keras_attention import MaskedCrossEntropy, seq2seq, text_batches
from keras_attention.averaging import AverageCheckpoints
from keras_attention.schedules import InverseSquareRoot, WarmupCosine

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]


@pytest.fixture
def policy(request):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


def reversed_words(count, seed=0, **options):
    texts = words(count, seed)
    options = {"tokens_per_batch": 200, **options}
    return text_batches(texts, [text[::-1] for text in texts], LETTERS, LETTERS, **options)


def make(rate=0.01, optimizer="Adam", **options):
    model = seq2seq(LETTERS, LETTERS, cell="gru", units=24, attention="general")
    optimizer = getattr(keras.optimizers, optimizer)(rate, **options)
    model.compile(optimizer, MaskedCrossEntropy(label_smoothing=0.1), jit_compile=False)
    return model


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def scalars_of(folder):
    """Names and values that TensorBoard shows."""
    found = {}
    for path in Path(folder).glob("*/events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars" or not value.HasField(
                    "metadata"
                ):
                    found.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, indirect=True)
def test_everything_together(policy, tmp_path):
    """The loss falls from log 10 = 2.3 towards that of the smoothing, and words are reversed."""
    batches, held_out = reversed_words(600), reversed_words(60, seed=1, shuffle=False)
    epochs = 30
    rate = WarmupCosine(0.02, warmup_steps=30, steps=epochs * len(batches))
    model = make(rate, beta_2=0.98, global_clipnorm=1.0)
    history = model.fit(
        batches,
        epochs=epochs,
        validation_data=held_out,
        verbose=0,
        callbacks=[
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            keras.callbacks.EarlyStopping(patience=12),
            AverageCheckpoints(3),
        ],
    ).history
    assert np.isfinite(history["loss"]).all() and np.isfinite(history["val_loss"]).all()
    assert history["val_loss"][0] > 1.5 and min(history["val_loss"]) < 0.95

    log = rows_of(tmp_path / "log.csv")
    assert [float(row["val_loss"]) for row in log] == pytest.approx(history["val_loss"], rel=1e-6)

    best = keras.saving.load_model(tmp_path / "best.keras")
    assert best.evaluate(held_out, verbose=0) == pytest.approx(min(history["val_loss"]), rel=1e-4)
    assert best.optimizer.learning_rate is not None
    texts = words(60, seed=1)
    for trained in (best, model):  # the best epoch, and the mean of the last three
        outputs = trained.translate(texts)
        right = sum(a == b[::-1] for a, b in zip(outputs, texts, strict=True))
        assert right >= 45, f"{right} of 60 held-out words"


def test_a_training_that_stops_early(tmp_path):
    """With rates next to nothing, no epoch is better than the first."""
    model = make(InverseSquareRoot(1e-12, 5), global_clipnorm=1.0)
    history = model.fit(
        reversed_words(40),
        epochs=9,
        validation_data=reversed_words(20, seed=1, shuffle=False),
        verbose=0,
        callbacks=[
            keras.callbacks.EarlyStopping(min_delta=1e-3, patience=1, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(tmp_path / "last.weights.h5", save_weights_only=True),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        ],
    ).history
    assert len(history["loss"]) == 2
    assert [row["epoch"] for row in rows_of(tmp_path / "log.csv")] == ["0", "1"]
    again = make()
    again.load_weights(tmp_path / "last.weights.h5")
    np.testing.assert_allclose(again.get_weights()[0], model.get_weights()[0], atol=1e-9)


def test_tensorboard_shows_losses_and_rates(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(InverseSquareRoot(0.1, 5)), "mse", run_eagerly=True)
    data, board = np.ones((6, 1)), keras.callbacks.TensorBoard(tmp_path)
    losses = model.fit(data, data, 2, epochs=3, verbose=0, callbacks=[board]).history["loss"]
    shown = scalars_of(tmp_path)
    assert shown["epoch_loss"] == pytest.approx(losses, rel=1e-6)
    expected = [0.1 * min(n / 5, (5 / n) ** 0.5) for n in (4, 7, 10)]  # of the update to come
    assert shown["epoch_learning_rate"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"], indirect=True)
def test_clipping_is_of_the_true_gradient(policy):
    """In float16 the loss is scaled; a gradient clipped before it is scaled back would be tiny."""
    model = make(1.0, "SGD", global_clipnorm=1e-2)
    before = [variable.numpy() for variable in model.trainable_variables]
    model.fit(reversed_words(8), steps_per_epoch=1, verbose=0)
    moves = [b - a.numpy() for a, b in zip(model.trainable_variables, before, strict=True)]
    norm = np.sqrt(sum(np.sum(np.square(move, dtype="float64")) for move in moves))
    # Not to the last digit: TensorFlow takes the norm of an embedding's gradient before it adds up
    # the rows of tokens that occur twice.
    assert norm == pytest.approx(1e-2, rel=0.1)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")


# Restarts


def interrupt():
    raise KeyboardInterrupt


def state_of(model):
    """Weights and what the optimizer keeps."""
    return [*model.get_weights(), *map(np.asarray, model.optimizer.variables)]


def are_equal(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, indirect=True)
def test_an_interrupted_training_ends_like_a_whole_one(policy, tmp_path):
    """Weights, moments, step count, loss scale; with `EpochCounter`, and not without."""
    whole = state_of(train(tmp_path / "whole", epochs=4))
    for counted in (True, False):
        folder = tmp_path / str(counted)
        with pytest.raises(KeyboardInterrupt):
            train(folder, 2, interrupt, counted, epochs=4)
        assert (folder / "backup").is_dir()
        taken_up = state_of(train(folder, counted=counted, epochs=4))
        assert are_equal(whole, taken_up) == counted
        assert [row["epoch"] for row in rows_of(folder / "log.csv")] == list("0123")


def run(folder, *arguments):
    command = [sys.executable, interrupted_training.__file__, str(folder), *map(str, arguments)]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_a_killed_training_goes_on(tmp_path):
    """Two processes, the first killed in the middle of the fourth epoch, against one."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert run(killed, 3).returncode == -9
    assert not (killed / "weights.npz").exists() and (killed / "backup").is_dir()
    log = (killed / "log.csv").read_text()
    assert [row["epoch"] for row in rows_of(killed / "log.csv")] == list("012")
    for folder in (killed, whole):
        result = run(folder)
        assert result.returncode == 0, result.stderr
    assert not (killed / "backup").exists()
    assert (killed / "log.csv").read_text().startswith(log), "finished epochs were trained again"
    assert rows_of(killed / "log.csv") == rows_of(whole / "log.csv")
    assert len(rows_of(whole / "log.csv")) == EPOCHS
    with np.load(killed / "weights.npz") as left, np.load(whole / "weights.npz") as right:
        assert left.files == right.files and len(left.files) > 20
        assert are_equal(left.values(), right.values())
