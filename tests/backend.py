"""What tests need of a backend of Keras: tensors, gradients, functions that are compiled."""

import sys

import keras
import numpy as np
import pytest
from keras import ops

BACKEND = keras.backend.backend()
# What Keras computes of float64 on JAX and PyTorch is float32 mostly: `keras.ops.matmul` of two
# float64 matrices is a float32 matrix there.
FLOAT64 = BACKEND == "tensorflow"


def float_limit(limit):
    """A difference that is allowed of numbers around 1; where float64 is float32, of that."""
    return limit if FLOAT64 else max(limit, 2e-5)


def assert_allclose(actual, expected, rtol=1e-7, atol=0, err_msg=""):
    """That of NumPy, for tensors too, with limits no closer than `float_limit`."""
    np.testing.assert_allclose(
        to_numpy(actual), to_numpy(expected), float_limit(rtol), float_limit(atol), err_msg=err_msg
    )


def assert_equal_without_weights(actual, expected):
    """Outputs of which one was computed without the attention weights: on TensorFlow the same to
    the last bit; elsewhere the backend's own attention computes what returns no weights.
    """
    if BACKEND == "tensorflow":
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), 1e-5, 1e-6)


def needs_float64(what):
    """Leaves a test out where there is no float64."""
    if not FLOAT64:
        pytest.skip(f"Keras computes float64 as float32 here: {what}")


def tensor(x, dtype=None):
    """A tensor of the backend. Python's numbers become float32 or int32, arrays keep their type."""
    if dtype is None and not hasattr(x, "dtype"):
        x = np.array(x)
        dtype = {"float64": "float32", "int64": "int32"}.get(x.dtype.name)
    return ops.convert_to_tensor(x, dtype)


def to_numpy(value):
    """NumPy arrays in place of tensors, at any depth of tuples; half precision as float32."""
    if isinstance(value, (tuple, list)):
        items = [to_numpy(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    value = value.value if isinstance(value, keras.Variable) else value
    array = np.asarray(ops.convert_to_numpy(value) if ops.is_tensor(value) else value)
    return array.astype("float32") if array.dtype.name in ("float16", "bfloat16") else array


def dtype_of(x):
    """The name of a tensor's type."""
    return keras.backend.standardize_dtype(x.dtype)


def differentiate(function, tensors=(), variables=()):
    """Gradients of the sum of `function(*tensors)`, by the tensors and then by the variables."""
    tensors, variables = [tensor(x) for x in tensors], list(variables)
    return GRADIENTS[BACKEND](lambda *x: ops.sum(function(*x)), tensors, variables)


def _gradients_on_tensorflow(total, tensors, variables):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = total(*tensors)
    sources = [*tensors, *(v.value for v in variables)]
    found = tape.gradient(result, sources, unconnected_gradients="zero")
    return [tf.convert_to_tensor(x) for x in found]  # rows of a table come as `IndexedSlices`


def _gradients_on_jax(total, tensors, variables):
    import jax

    def function(tensors, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return total(*tensors)

    tensors, values = jax.grad(function, (0, 1))(tensors, [v.value for v in variables])
    return [*tensors, *values]


def _gradients_on_torch(total, tensors, variables):
    import torch

    tensors = [x.detach().requires_grad_() for x in tensors]
    sources = [*tensors, *(v.value for v in variables)]
    found = torch.autograd.grad(total(*tensors), sources, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True)]


GRADIENTS = {
    "tensorflow": _gradients_on_tensorflow,
    "jax": _gradients_on_jax,
    "torch": _gradients_on_torch,
}


def _plain(x):
    return to_numpy(x) if ops.is_tensor(x) else x


def _read_by_numpy():
    """Lets NumPy read tensors of PyTorch that have a gradient, as outputs of layers do, in tests.

    The package itself must convert them: there it stays the error that users would get.
    """
    import torch

    read = torch.Tensor.__array__

    def read_any(x, *args, **kwargs):
        if not sys._getframe(1).f_globals["__name__"].startswith("keras_attention"):
            x = x.detach().float() if x.dtype == torch.bfloat16 else x.detach()
        return read(x, *args, **kwargs)

    def call(x, function, types, args, kwargs):
        """`np.all(x)` and the like, which would look for a method of the tensor."""
        if function is np.ndim:
            return x.dim()
        if sys._getframe(1).f_globals["__name__"].startswith("keras_attention"):
            return NotImplemented
        args, kwargs = keras.tree.map_structure(_plain, (args, kwargs))
        return function(*args, **kwargs)

    torch.Tensor.__array__, torch.Tensor.__array_function__ = read_any, call
    torch.Tensor.__array_priority__ = -1  # an array minus a tensor is an array


if BACKEND == "torch":
    _read_by_numpy()


def compiled(function, jit_compile=False, signature=None):
    """`function` in a graph (TensorFlow), or compiled by XLA (TensorFlow, JAX).

    `signature` says what TensorFlow's graph knows of the arguments.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, signature, jit_compile=jit_compile)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def compiled_loss(function, variables):
    """`function()`, compiled, of variables that change from call to call."""
    if BACKEND != "jax":
        return compiled(function)
    import jax

    def of_values(values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function()

    of_values = jax.jit(of_values)
    return lambda: of_values([v.value for v in variables])


def variable_of(x):
    """A variable with the values and the type of an array."""
    return keras.Variable(x, dtype=x.dtype.name)
