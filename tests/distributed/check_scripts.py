"""examples/distributed/train.py on what it runs on, by the losses that it writes."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest

import keras_attention  # noqa: F401  (its classes, for load_model)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/distributed/train.py"
LOSSES = ("loss", "val_loss")


def train(folder, *options):
    """Runs train.py --smoke; returns its results."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--smoke", "--output", str(folder), *options],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    print(done.stdout[-600:])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "results.json").read_text("utf-8"))


def check_losses(found, expected):
    assert len(expected["history"]["loss"]) == 2
    for name in LOSSES:
        np.testing.assert_allclose(found["history"][name], expected["history"][name], rtol=1e-4)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), "--backend", "jax")


@pytest.mark.parametrize(
    "options",
    [
        "--devices 2 --parallel data",
        "--devices 2 --parallel model",
        "--processes 2 --parallel data --restarts 0",
        "--processes 2 --parallel model --restarts 0",
    ],
)
def test_jax_on_many_equals_one_device(one_device, tmp_path, options):
    found = train(tmp_path, "--backend", "jax", *options.split())
    check_losses(found, one_device)
    model = keras.models.load_model(tmp_path / "model.keras")  # on this process's backend
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_two_processes_and_ray_train_do_the_same(tmp_path):
    two = train(tmp_path / "two", "--processes", "2")
    under_ray = train(tmp_path / "ray", "--processes", "2", "--ray")
    check_losses(under_ray, two)
    for folder in ("two", "ray"):
        keras.models.load_model(tmp_path / folder / "model.keras")


def test_ray_starts_a_killed_worker_again(tmp_path):
    """It goes on from the last epoch that was finished, and ends like an undisturbed training."""
    two = train(tmp_path / "two", "--processes", "2", "--epochs", "30")
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    options = ["--smoke", "--epochs", "30", "--processes", "2", "--ray"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path / "ray"), *options],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log, killed = tmp_path / "ray/log.csv", []
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        end = time.monotonic() + 300
        while not killed and time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
            if log.exists() and len(log.read_text("utf-8").splitlines()) > 4:
                killed = [x for x in psutil.Process(process.pid).children(True) if _trains(x)][:1]
                killed[0].kill()
        said, _ = process.communicate(timeout=600)
    print(said[-2000:])
    assert killed and process.returncode == 0
    epochs = [int(line.split(",")[0]) for line in log.read_text("utf-8").splitlines()[1:]]
    # One that was logged, but not yet in the backup, is trained and logged again.
    assert sorted(set(epochs)) == list(range(30)) and len(epochs) <= 31
    found = json.loads((tmp_path / "ray/results.json").read_text("utf-8"))
    for name in LOSSES:
        np.testing.assert_allclose(found["history"][name], two["history"][name], rtol=1e-3)


def _trains(process):
    return "TrainWorker" in " ".join(process.cmdline())


@pytest.mark.parametrize(
    "options, message",
    [
        ("--backend jax --ray", "--ray goes with --backend tensorflow"),
        ("--parallel model", "go with --backend jax"),
        ("--processes 0", "expected an integer above 0"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options.split()], capture_output=True, text=True
    )
    assert done.returncode == 2 and message in done.stderr
