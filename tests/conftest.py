"""Fixtures of all tests: ways to run a function, seeds, and comparing with stated tolerances."""

import os
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from typing import NamedTuple

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from backend import (
    BACKEND,
    compiled,
    compiled_loss,
    differentiate,
    float_limit,
    needs_float64,
    tensor,
    to_numpy,
)
from keras import ops
from other_backends import (  # noqa: F401  (hooks)
    mark_what_does_not_apply,
    pytest_configure,
    pytest_terminal_summary,
)

from keras_attention import scores

# On recent GPUs float32 products would otherwise keep 10 bits only.
tf.config.experimental.enable_tensor_float_32_execution(False)

# (What other_backends.MODES_HERE leaves out is never called.)
MODES = {
    "eager": lambda function: function,
    "graph": compiled,
    "xla": lambda function: compiled(function, jit_compile=True),
}

# Largest difference allowed, absolute for values around 1 and relative beyond. The reference gets
# the same rounded inputs, so this is the error of the computation only: a few units of the last
# place (2^-11 in float16, 2^-8 in bfloat16) of the query, which is scaled before the product, and
# of the result.
TOLERANCES = {"float64": float_limit(1e-12), "float32": float_limit(2e-6)}
TOLERANCES |= {"float16": 4e-3, "bfloat16": 3e-2}


def rounded(array, dtype):
    """The tensor of that dtype nearest to `array`, and its exact values in float64."""
    nearest = ops.cast(ops.convert_to_tensor(array), dtype)
    return nearest, to_numpy(ops.cast(nearest, "float64"))


def numerical_gradient(function, x, step=1e-6):
    """Central differences of the scalar `function(x)`, one entry of x at a time."""
    needs_float64("numerical gradients")
    x = np.array(x, "float64")
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(float(function(moved)))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def assert_gradients(loss, variables, limit, nonzero=True):
    """The gradients of the scalar `loss()` by each of the variables are the numerical ones."""
    needs_float64("numerical gradients")
    changing = compiled_loss(loss, variables)
    for variable, gradient in zip(variables, differentiate(loss, (), variables), strict=True):
        start, gradient = to_numpy(variable), to_numpy(gradient)

        def moved(x, variable=variable):
            variable.assign(x)
            return changing()

        numerical = numerical_gradient(moved, start)
        variable.assign(start)
        assert not nonzero or np.abs(gradient).max() > 0, variable.path
        np.testing.assert_allclose(
            gradient, numerical, rtol=limit, atol=limit / 10, err_msg=variable.path
        )


class Score(NamedTuple):
    """A score function, its equation in the reference, and the shapes of its weights."""

    function: object
    reference: object
    shapes: object  # (Dq, Dk, U) -> {name: shape}
    same_size: bool  # whether it needs Dq = Dk

    def sizes(self, Dq, Dk):
        return (Dk, Dk) if self.same_size else (Dq, Dk)

    def weights(self, rng, Dq, Dk, U):
        shapes = self.shapes(Dq, Dk, U)
        return {name: rng.normal(size=shape) for name, shape in shapes.items()}

    def bind(self, weights, dtype="float64"):
        """The score as a function of query and key, with its weights in `dtype`."""
        weights = {name: ops.cast(array, dtype) for name, array in weights.items()}
        return lambda query, key: self.function(query, key, **weights)


SCORES = {
    "dot": Score(scores.dot_score, ref.dot, lambda Dq, Dk, U: {}, True),
    "scaled_dot": Score(scores.scaled_dot_score, ref.scaled_dot, lambda Dq, Dk, U: {}, True),
    "general": Score(
        scores.general_score, ref.general, lambda Dq, Dk, U: {"kernel": (Dq, Dk)}, False
    ),
    "additive": Score(scores.additive_score, ref.additive, lambda Dq, Dk, U: {"v": (Dk,)}, True),
    "additive_bias": Score(
        scores.additive_score, ref.additive, lambda Dq, Dk, U: {"v": (Dk,), "bias": (Dk,)}, True
    ),
    "concat": Score(
        scores.concat_score,
        ref.concat,
        lambda Dq, Dk, U: {"kernel": (Dq + Dk, U), "v": (U,)},
        False,
    ),
}


# Of a parametrised test in these files the quick run takes the first case and one in so many of the
# others, the same ones each time; the slow tests are the rest.
ONE_IN = {
    "test_any_backend.py": 40,  # its subjects have tests of their own on TensorFlow
    "test_attend.py": 4,
    "test_beam.py": 4,
    "test_blockwise.py": 4,
    "test_cache.py": 4,
    "test_decoder_state.py": 4,
    "test_decoders.py": 3,
    "test_ecosystem.py": 8,
    "test_examples_toys.py": 4,
    "test_gates.py": 4,
    "test_history.py": 4,
    "test_language_model.py": 6,
    "test_layers.py": 3,
    "test_local.py": 3,
    "test_losses.py": 4,
    "test_monotonic.py": 4,
    "test_multi_head_pieces.py": 4,
    "test_normalizers.py": 4,
    "test_positions.py": 4,
    "test_sample.py": 4,
    "test_saving.py": 4,
    "test_transformer.py": 8,
    "test_transformer_blocks.py": 4,
    "test_transformer_decoder.py": 4,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks as slow what ONE_IN leaves out, and what another backend than TensorFlow has not."""
    mark_what_does_not_apply(items)
    seen = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        leave = zlib.crc32(item.name.encode("utf-8")) % one_in(item.path.name)
        if hasattr(item, "callspec") and name in seen and leave:
            item.add_marker(pytest.mark.slow)
        seen.add(name)


def one_in(file):
    """Of how many cases a quick run takes one."""
    if BACKEND == "tensorflow":
        return ONE_IN.get(file, 1)
    return 1 if file == "test_any_backend.py" else max(ONE_IN.get(file, 1), 12)


@pytest.fixture(params=list(SCORES))
def score(request):
    """One of SCORES."""
    return SCORES[request.param]


@pytest.fixture(autouse=True)
def seeds():
    """Every test starts from the same seeds."""
    keras.utils.set_random_seed(2015)


@pytest.fixture
def rng():
    return np.random.default_rng(1409)


@pytest.fixture(params=list(MODES))
def mode(request):
    """Name of the way to run: eager, graph (tf.function), xla (jit_compile=True, jax.jit)."""
    return request.param


@pytest.fixture
def run(mode):
    """`run(function, *tensors)`: its result in this mode as NumPy arrays."""

    def call(function, *tensors):
        return to_numpy(MODES[mode](function)(*map(tensor, tensors)))

    return call


@pytest.fixture(params=list(TOLERANCES))
def dtype(request):
    return request.param


@pytest.fixture
def assert_close():
    """`assert_close(actual, expected, dtype)`: equal within the tolerance stated for the dtype."""

    def check(actual, expected, dtype="float32"):
        actual, expected = to_numpy(actual), np.asarray(expected)
        assert actual.shape == expected.shape
        limit = TOLERANCES[dtype]
        np.testing.assert_allclose(actual, expected, rtol=limit, atol=limit)

    return check
