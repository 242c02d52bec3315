"""Models go from backend to backend, as `.keras` files; JAX and PyTorch export SavedModels."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
SCRIPT = Path(__file__).parent / "models.py"


def run(backend, *arguments):
    done = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "CUDA_VISIBLE_DEVICES": "",  # the same device for all of them
            "PYTHONPATH": os.pathsep.join(
                [str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")]
            ),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("writer", BACKENDS)
def test_keras_files_give_the_same_on_each_backend(writer, tmp_path):
    run(writer, "write", tmp_path)
    for reader in BACKENDS:
        assert run(reader, "read", tmp_path).count("equal") == 6


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_was_trained_elsewhere_is_exported(backend, tmp_path):
    """The SavedModels find the same output ids, and the same beams."""
    import tensorflow as tf

    assert run(backend, "export", tmp_path).count("largest difference") == 3
    for name in ("seq2seq", "transformer", "language_model"):
        expected, loaded = np.load(tmp_path / f"{name}.npz"), tf.saved_model.load(tmp_path / name)
        key = "ids" if name == "language_model" else "source"
        ids = {"ids": [[0, 0, 5], [4, 6, 3]]}.get(
            key, [[4, 5, 6, 7, 2], [8, 6, 2, 0, 0], [5, 2, 0, 0, 0]]
        )
        found = loaded.signatures["serve_tokens"](**{key: tf.constant(ids, "int32")})
        tokens, wanted = np.asarray(found["tokens"]), expected["ids_1"]
        steps = tokens.shape[1]
        np.testing.assert_array_equal(tokens, wanted[:, :steps])
        assert not wanted[:, steps:].any()
        np.testing.assert_allclose(found["score"], expected["scores_1"], rtol=1e-4, atol=1e-5)
