"""Training on several replicas: shares, weights of means, backups, layouts, clear errors.

Several processes are started by tests/distributed (`make test-distributed`).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import MaskedCrossEntropy, fit_distributed, is_chief, layout_map
from keras_attention.distribution.layouts import split_weights
from keras_attention.distribution.shares import averaged_over, own_share
from keras_attention.distribution.training import writes_files
from keras_attention.models.language_model import causal_lm
from keras_attention.models.transformer import transformer

ROOT = Path(__file__).parents[1]
X = np.arange(10, dtype="float32")[:, None]
BATCHES = tf.data.Dataset.from_tensor_slices((X, 2 * X)).batch(4)


def make_model(rate=0.001):
    dropout = keras.layers.Dropout(0.5, seed=1)
    model = keras.Sequential([keras.Input((1,)), dropout, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    model.set_weights([np.ones((1, 1)), np.zeros(1)])
    return model


# Who reads what


@pytest.mark.parametrize("replicas, processes", [(2, 2), (3, 3), (4, 2), (1, 1)])
def test_the_shares_are_the_batch(replicas, processes):
    local = replicas // processes
    shares = [
        list(own_share(BATCHES, tf.distribute.InputContext(processes, number, replicas)))
        for number in range(processes)
    ]
    for step, (x, y) in enumerate(BATCHES):
        of_step = [share for own in shares for share in own[step * local : (step + 1) * local]]
        assert len(of_step) == replicas
        np.testing.assert_array_equal(np.concatenate([share[0] for share in of_step]), x)
        np.testing.assert_array_equal(np.concatenate([share[1] for share in of_step]), y)
        sizes = [len(share[0]) for share in of_step]
        assert max(sizes) - min(sizes) <= 1


def test_a_dataset_of_single_tensors_is_shared_too():
    batches = tf.data.Dataset.range(4).batch(4)
    context = tf.distribute.InputContext(2, 1, 2)
    assert [x.numpy().tolist() for x in own_share(batches, context)] == [[2, 3]]


IDS = np.array([[3, 4, 0, 0], [5, 0, 0, 0], [6, 7, 8, 0]])


def masked(shape):
    y_pred = tf.zeros(shape)
    y_pred._keras_mask = tf.constant([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    return y_pred


@pytest.mark.parametrize(
    "loss, y_pred, sample_weight, expected",
    [
        ("mse", tf.zeros((3, 4, 9)), None, 3),
        ("mse", masked((3, 4, 9)), None, 10),
        (MaskedCrossEntropy(), tf.zeros((3, 4, 9)), None, 6),
        (MaskedCrossEntropy(), masked((3, 4, 9)), None, 5),
        (MaskedCrossEntropy(reduction="sum"), tf.zeros((3, 4, 9)), None, None),
        (MaskedCrossEntropy(), tf.zeros((3, 4, 9)), [1.0, 2.0, 4.0], 6),
        (
            MaskedCrossEntropy(reduction="mean_with_sample_weight"),
            tf.zeros((3, 4, 9)),
            [1.0, 2.0, 4.0],
            2 * 1 + 1 * 2 + 3 * 4,
        ),
        (
            keras.losses.MeanSquaredError("mean_with_sample_weight"),
            tf.zeros((3, 4, 9)),
            [1.0, 2.0, 4.0],
            7,
        ),
        ([MaskedCrossEntropy(), "mse"], [tf.zeros((3, 4, 9)), tf.zeros((3, 1))], None, 3),
    ],
)
def test_what_a_mean_is_over(loss, y_pred, sample_weight, expected):
    found = averaged_over(loss, IDS, y_pred, sample_weight)
    assert found is None if expected is None else float(found) == expected


REPLICAS = """
import sys
import keras, numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
sys.path.insert(0, "tests/distributed")
import json, worker
from keras_attention.distribution.shares import over_workers
from keras_attention.distribution.steps import WorkerSteps
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
ids, labels = worker.data()
for clip in (0.05, None):
    optimizers = [keras.optimizers.SGD(0.1, global_clipnorm=clip) for _ in range(2)]
    with strategy.scope():
        model = worker.make_model(optimizers[0])
    one = worker.make_model(optimizers[1])
    batches = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(6)
    steps = WorkerSteps(model, strategy)
    stops = [steps.train(batch, stop=True)[1] for batch in over_workers(strategy, batches)]
    history = one.fit(batches, shuffle=False, verbose=0).history
    pairs = zip(one.get_weights(), model.get_weights(), strict=True)
    apart = max(float(abs(a - b).max()) for a, b in pairs)
    print(json.dumps([apart, steps.metrics(), history, stops, steps.sum(3)]))
"""


@pytest.mark.slow
def test_a_step_of_two_replicas_equals_that_of_one():
    """Padding, a batch of one row, regularisation, clipping: the shares weigh what they hold."""
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 2
    for apart, metrics, history, stops, total in found:
        assert apart < 2e-6
        for name, value in metrics.items():
            assert value == pytest.approx(history[name][-1], rel=1e-5)
        assert stops == [True] * 7
        assert total == 3  # of one process, however many replicas it has


# One process


@pytest.mark.tensorflow_only("`fit_distributed`")
def test_one_process_is_fit():
    ours, keras_own = make_model(), make_model()
    found = fit_distributed(ours, BATCHES, epochs=2, verbose=0, validation_data=BATCHES)
    expected = keras_own.fit(BATCHES, epochs=2, verbose=0, validation_data=BATCHES, shuffle=False)
    assert found.history == expected.history
    own = fit_distributed(make_model(), lambda context: BATCHES, epochs=2, verbose=0)
    assert own.history["loss"] == found.history["loss"]
    assert is_chief()


class Stop(keras.callbacks.Callback):
    def __init__(self, epoch, error=None):
        super().__init__()
        self.epoch, self.error = epoch, error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch and self.error:
            raise self.error
        self.model.stop_training = epoch == self.epoch


@pytest.mark.tensorflow_only("`fit_distributed`")
def test_goes_on_from_the_last_backup(tmp_path):
    whole = make_model()
    expected = fit_distributed(whole, BATCHES, epochs=4, verbose=0)
    options = {"epochs": 4, "verbose": 0, "backup_folder": tmp_path}
    with pytest.raises(KeyError):
        fit_distributed(make_model(), BATCHES, callbacks=[Stop(2, KeyError())], **options)
    for _ in range(2):  # the second time there is nothing left to do
        model = make_model()
        found = fit_distributed(model, BATCHES, **options)
        assert found.epoch == [0, 1, 2, 3] and found.history == expected.history
        for a, b in zip(model.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert int(model.optimizer.iterations.numpy()) == 4 * 3


@pytest.mark.tensorflow_only("`fit_distributed`")
def test_a_training_that_a_callback_ended_stays_ended(tmp_path):
    options = {"epochs": 5, "verbose": 0, "backup_folder": tmp_path}
    first = fit_distributed(make_model(), BATCHES, callbacks=[Stop(1)], **options)
    again = fit_distributed(make_model(), BATCHES, **options)
    assert first.epoch == again.epoch == [0, 1]


OTHERS = {
    "more": [{"units": 1}, {"units": 1}],
    "larger": [{"units": 2}],
    "fewer": [{"units": 1, "use_bias": False}],
}


@pytest.mark.tensorflow_only("`fit_distributed`")
@pytest.mark.parametrize("layers", OTHERS.values(), ids=OTHERS)
def test_backups_of_another_model_are_refused(layers, tmp_path):
    fit_distributed(make_model(), BATCHES, verbose=0, backup_folder=tmp_path)
    dense = [keras.layers.Dense(**options) for options in layers]
    other = keras.Sequential([keras.Input((1,)), *dense])
    other.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`backup_folder` .* another model"):
        fit_distributed(other, BATCHES, verbose=0, backup_folder=tmp_path)


@pytest.mark.tensorflow_only("`fit_distributed`")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"x": X}, "`x` must be a `tf.data.Dataset`"),
        ({"validation_data": (X, X)}, "`validation_data` must be a `tf.data.Dataset`"),
        ({"epochs": 0}, "`epochs` must be a positive"),
        ({"callbacks": keras.callbacks.History()}, "`callbacks` must be a list"),
        ({"callbacks": [keras.callbacks.BackupAndRestore("b")]}, "must not hold BackupAndRestore"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_distributed(make_model(), **{"x": BATCHES, "verbose": 0, **options})


@pytest.mark.tensorflow_only("`fit_distributed`")
def test_a_model_that_is_not_compiled():
    with pytest.raises(ValueError, match="`model` must be a compiled"):
        fit_distributed(keras.Sequential([keras.layers.Dense(1)]), BATCHES)


@pytest.mark.tensorflow_only("`fit_distributed`")
def test_a_model_made_outside_of_the_scope(monkeypatch):
    """Each process would train by itself, and nobody would notice."""
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ValueError, match="TF_CONFIG names 2 processes"):
        fit_distributed(make_model(), BATCHES)


# Layouts


def test_layout_map_on_tensorflow_says_that_it_would_do_nothing():
    if keras.backend.backend() == "jax":
        pytest.skip("about the other backends")
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
    with pytest.raises(ValueError, match="needs the JAX backend.*`fit_distributed`"):
        layout_map(mesh)


MODELS = {
    "transformer": lambda: transformer(
        20, 24, layers=1, units=8, num_heads=4, activation="swiglu", tied_embeddings=False
    ),
    "relative positions": lambda: transformer(
        20, 20, layers=1, units=8, num_heads=4, position="relative"
    ),
    "language model": lambda: causal_lm(
        20, layers=1, units=8, num_heads=4, attention_options={"use_gate": True}
    ),
}
WHOLE = re.compile(r".*(norm/(gamma|beta)|attention_output/bias|outer/bias|logits/bias)")


@pytest.mark.parametrize("name", MODELS)
def test_each_large_weight_is_split_in_one_way(name):
    for weight in MODELS[name]().weights:
        rules = split_weights("model").items()
        found = [x for path, x in rules if re.fullmatch(f"(.*/)?{path}", weight.path)]
        if WHOLE.fullmatch(weight.path):
            assert not found, weight.path
            continue
        (layout,) = found
        assert len(layout) == len(weight.shape), weight.path
        assert weight.shape[layout.index("model")] % 4 == 0


def test_keys_and_values_may_stay_whole():
    paths = [path for path in split_weights("model", split_keys=False) if "query" in path]
    assert paths and not any("key" in path or "value" in path for path in paths)
    assert any("key" in path for path in split_weights("model"))


class Writer(keras.callbacks.Callback):
    chief_only = True


@pytest.mark.parametrize(
    "callback, expected",
    [
        (keras.callbacks.CSVLogger("log.csv"), True),
        (keras.callbacks.ModelCheckpoint("model.keras"), True),
        (Writer(), True),
        (keras.callbacks.EarlyStopping(), False),
        (Stop(1), False),
    ],
)
def test_who_runs_which_callback(callback, expected):
    """Those that write run on the chief; those that decide run everywhere."""
    assert writes_files(callback) is expected
