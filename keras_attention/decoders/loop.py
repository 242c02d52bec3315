"""The loop of the decoders: a step with a recurrent cell in it, over a sequence."""

import keras
from keras import ops

from keras_attention.decoders import cell as cells
from keras_attention.decoders.gates import hoist
from keras_attention.loops import scan_steps


def run_cell_on(cell):
    """A function `(inputs, extra, state) -> (output, state)` that runs `cell` on both inputs.

    Args:
        cell: the cell; `inputs` is `[B, D]`, `extra` `[B, E]` or None.

    Returns:
        The function.
    """

    def run(inputs, extra, state):
        inputs = inputs if extra is None else ops.concatenate([inputs, extra], axis=-1)
        return cells.run_cell(cell, inputs, state)

    return run


def changed_by(*callers):
    """The variables that steps may change, states of random numbers: those of layers, or of the
    layers whose methods are given.
    """
    layers = [getattr(x, "__self__", x) for x in callers]
    layers = [x for x in layers if isinstance(x, keras.Layer)]
    return {id(v): v for layer in layers for v in layer.non_trainable_variables}.values()


def run_steps(
    cell, step, inputs, carry, cell_state, extra_size, mask, sizes, training, variables, more=()
):
    """Runs a step over a sequence.

    Args:
        cell: the cell that the step runs.
        step: function `(inputs_t, carry, run_cell, *more_t) -> (outputs_t, carry)`; `run_cell` is a
            function as of `run_cell_on`.
        inputs: `[B, T, D]`.
        carry: what goes from step to step, a structure of tensors `[B, ...]`.
        cell_state: the part of it that is the cell's state.
        extra_size: E, the number of features that the cell gets besides `inputs`.
        mask: `[B, T]`, or None; a masked step keeps the carry and puts out 0.
        sizes: number of features of each of the outputs.
        training: whether the cell's dropout is drawn.
        variables: those of the decoder that a step may change.
        more: further tensors `[B, T, ...]` that the step reads. With them it may change its
            inputs.

    Returns:
        A list of outputs `[B, T, size]`, and the carry after the last step.
    """
    dtype, size = inputs.dtype, inputs.shape[-1]
    cell_input = ops.zeros((ops.shape(inputs)[0], size + extra_size), dtype)
    with cells.drawn_dropout(cell, cell_input, cell_state, training) as dropout:
        run_cell = run_cell_on(cell)
        # What the cell does to the inputs alone is done for all steps at once.
        gates = None if more else hoist(cell, size, dropout)
        if gates is not None:
            inputs, run_cell = gates.project(inputs), gates.step

        def masked_step(sequences_t, carry):
            (inputs_t, *more_t), *real = sequences_t
            outputs, new_carry = step(inputs_t, carry, run_cell, *more_t)
            if not real:
                return outputs, new_carry
            zeros = [ops.zeros_like(x) for x in outputs]
            return cells.keep_where(real[0], (outputs, new_carry), (zeros, carry))

        sequences = [[inputs, *more]] if mask is None else [[inputs, *more], mask]
        shapes = [((inputs.shape[0], size), dtype) for size in sizes]
        return scan_steps(masked_step, sequences, carry, shapes, variables)
