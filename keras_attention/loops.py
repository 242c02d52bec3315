"""Loops over steps that run in eager mode, in a graph and in XLA."""

import functools

import keras
from keras import ops


def scan_steps(step, inputs, state, outputs, variables=()):
    """Runs `step` over the time axis of `inputs` and stacks what it puts out; differentiable.

    Args:
        step: function `(inputs_t, state) -> (outputs_t, state)`.
        inputs: structure of tensors `[B, T, ...]`, T at least 1.
        state: structure of tensors `[B, ...]`, which keep their shapes and dtypes.
        outputs: list of `(shape, dtype)`, what `step` puts out, with None for unknown sizes.
        variables: those that a step may change: states of random numbers.

    Returns:
        `(outputs, state)`: a list of tensors `[B, T, ...]`, and the state after the last step.
    """
    steps_first = keras.tree.map_structure(_swap, inputs)
    if keras.backend.backend() != "tensorflow":

        def body(carry, inputs_t):
            outputs_t, carry = step(inputs_t, carry)
            return carry, outputs_t

        on_jax = keras.backend.backend() == "jax"
        scan = functools.partial(_scan_with, list(variables)) if on_jax else ops.scan
        state, stacked = scan(body, state, steps_first)
        return [_swap(x) for x in stacked], state

    # `ops.scan` cannot be differentiated under XLA here; a `while_loop` with a bound can.
    import tensorflow as tf

    flat = [tf.TensorArray(x.dtype, size=tf.shape(x)[0]).unstack(x) for x in _flat(steps_first)]
    first = _flat(steps_first)[0]
    stacked, state = _tensorflow_loop(
        lambda i, s: step(keras.tree.pack_sequence_as(inputs, [x.read(i) for x in flat]), s),
        state,
        tf.shape(first)[0],
        outputs,
    )
    for x in stacked:  # the loop forgets a number of steps that is known
        x.set_shape((None, first.shape[0], *[None] * (len(x.shape) - 2)))
    return stacked, state


def _scan_with(variables, body, state, inputs):
    """`ops.scan` with the values of `variables` in its carry, as JAX needs them: what its trace
    leaves in variables is of no use outside of it.
    """

    def with_variables(carry, inputs_t):
        state, values = carry
        _assign(variables, values)
        state, outputs_t = body(state, inputs_t)
        return (state, [v.value for v in variables]), outputs_t

    values = [v.value for v in variables]
    try:
        (state, values), stacked = ops.scan(with_variables, (state, values), inputs)
    finally:
        _assign(variables, values)
    return state, stacked


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def loop_steps(step, state, length, stop):
    """Runs `step` up to `length` times, at least once, until `stop` says so; not differentiable.

    Args:
        step: function `(index, state) -> (outputs_t, state)`; outputs a list of tensors `[B, ...]`,
            which may be empty.
        state: structure of tensors `[B, ...]`, which keep their shapes and dtypes. (TensorFlow
            without XLA: axes may grow, if they grow in the first step.)
        length: the bound, an integer of at least 1.
        stop: function `state -> boolean scalar`, asked before each step but the first.

    Returns:
        `(outputs, state)`: a list of tensors `[B, length, ...]`, 0 where no step ran, and the
        state at the end.
    """
    # The first step, outside of the loop, tells what the outputs look like; and it runs for an
    # empty batch too, which has no unfinished sequence to keep a loop going.
    start = state
    first, state = step(0, state)
    if keras.backend.backend() == "tensorflow":
        shapes = keras.tree.map_structure(_common_shape, start, state)
        return _tensorflow_loop(step, state, length, None, first, stop, shapes)

    buffers = [
        ops.concatenate([x[:, None], ops.zeros((x.shape[0], length - 1, *x.shape[1:]), x.dtype)], 1)
        for x in first
    ]

    def body(i, state, buffers):
        outputs_t, state = step(i, state)
        buffers = [
            ops.slice_update(buffer, (0, i) + (0,) * (len(x.shape) - 1), x[:, None])
            for buffer, x in zip(buffers, outputs_t, strict=True)
        ]
        return i + 1, state, buffers

    _, state, buffers = ops.while_loop(
        lambda i, state, _: ops.logical_and(i < length, ops.logical_not(stop(state))),
        body,
        (ops.convert_to_tensor(1), state, buffers),
    )
    return buffers, state


def _tensorflow_loop(step, state, length, outputs, first=None, stop=None, shapes=None):
    """`tf.while_loop` from step 0, or, where `first` holds the outputs of step 0, from step 1.

    `shapes` are those that the state keeps, where others than it has now.
    """
    import tensorflow as tf

    begun = first is not None
    outputs = [(x.shape, x.dtype) for x in first] if begun else outputs
    arrays = [tf.TensorArray(dtype, size=length, element_shape=shape) for shape, dtype in outputs]
    if begun:
        arrays = [array.write(0, x) for array, x in zip(arrays, first, strict=True)]

    def condition(i, state, _):
        return i < length if stop is None else (i < length) & ~stop(state)

    def body(i, state, arrays):
        outputs_t, state = step(i, state)
        arrays = [array.write(i, x) for array, x in zip(arrays, outputs_t, strict=True)]
        return i + 1, state, arrays

    start = tf.constant(1 if begun else 0)
    invariants = None
    if shapes is not None:
        invariants = (start.shape, shapes, [tf.TensorShape(None) for _ in arrays])
    _, state, arrays = tf.while_loop(
        condition,
        body,
        (start, state, arrays),
        shape_invariants=invariants,
        maximum_iterations=length,
    )
    return [_swap(array.stack()) for array in arrays], state


def _common_shape(before, after):
    """What is known of a shape that a step may change; a size that it changed is not."""
    import tensorflow as tf

    before, after = (tf.convert_to_tensor(x).shape for x in (before, after))
    if before.rank != after.rank:
        return tf.TensorShape(None)
    return tf.TensorShape([a if a == b else None for a, b in zip(before, after, strict=True)])


def _flat(structure):
    return keras.tree.flatten(structure)


def _swap(x):
    """Batch first to time first, and back."""
    return ops.swapaxes(x, 0, 1)
