"""examples/distributed/train.py on what it runs on, by the losses that it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
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
