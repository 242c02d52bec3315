"""What of a cell's gates depends on the inputs only, computed before the loop over steps.

A decoder feeds its cell with `[x_t; e_t]`: the inputs x_t are known before the loop, the rest (a
context, an attentional vector) only inside. A cell multiplies both by its kernel in every step.
Split by rows, W = [W_x; W_e], the first half of the product needs no loop:

    [x_t; e_t] W + b = (x_t W_x + b) + e_t W_e
"""

import keras
from keras import ops

from keras_attention.decoders.cell import run_cell
from keras_attention.products import batch_matmul


def hoist(cell, inputs_size, dropout=None):
    """Takes the products with the inputs out of a cell's loop over steps.

    The equations of the cells, with `a_t = x_t W_x + b` from before the loop and U the recurrent
    kernel, per gate:

        SimpleRNNCell        h_t = act(a + e W_e + h U)
        LSTMCell             i, f, o = rec(a + e W_e + h U),  g = act(a + e W_e + h U)
                             c_t = f c + i g,  h_t = o act(c_t)
        GRUCell              z, r = rec(a + e W_e + h U),  h_t = z h + (1 - z) g
          reset_after        g = act(a + e W_e + r (h U + b'))
          not reset_after    g = act(a + e W_e + (r h) U)

    [Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735) with the forget
    gate of [Gers et al., 2000](https://doi.org/10.1162/089976600300015015);
    [Cho et al., 2014](https://arxiv.org/abs/1406.1078). Nothing is stored: the weights stay the
    cell's, and are read here, so call this in every pass, before the loop.

    Args:
        cell: a built Keras cell.
        inputs_size: D, the number of features of the inputs, which come first in what the cell is
            fed with.
        dropout: the masks that `drawn_dropout` gave for the cell, or None.

    Returns:
        An object with `project` and `step`, or None if the cell has to run as it is: its type is
        none of the above or a `StackedRNNCells` that starts with one, or its layer does more than
        the equations (activity regularizer, quantisation, dtypes that differ within a stack).

    Raises:
        ValueError: if the cell is not built or takes fewer than `inputs_size` features.

    Example:

    >>> import numpy as np
    >>> cell = keras.layers.GRUCell(3)
    >>> cell.build((None, 7))
    >>> gates = hoist(cell, inputs_size=5)
    >>> projected = gates.project(np.ones((2, 4, 5)))
    >>> context, state = np.ones((2, 2)), cell.get_initial_state(2)
    >>> output, state = gates.step(projected[:, 0], context, state)
    >>> np.allclose(output, cell(np.ones((2, 7)), cell.get_initial_state(2))[0])
    True
    """
    if type(cell) is keras.layers.StackedRNNCells:
        if any(one.compute_dtype != cell.compute_dtype for one in cell.cells):
            return None
        first = hoist(cell.cells[0], inputs_size, dropout)
        return first and HoistedStack(first, cell.cells[1:])
    if type(cell) not in _EQUATIONS:
        return None
    _check(cell, inputs_size)
    if not _is_plain(cell):
        return None
    return HoistedCell(cell, inputs_size, dropout[0] if dropout else (None, None))


class HoistedCell:
    """A cell in two parts; made by `hoist`."""

    def __init__(self, cell, inputs_size, dropout):
        self._dtype = cell.compute_dtype
        kernel, recurrent = self._cast(cell.kernel), self._cast(cell.recurrent_kernel)
        inputs_masks, state_masks = map(_as_list, dropout)
        self._product = _product(kernel[:inputs_size], [m[:, :inputs_size] for m in inputs_masks])
        self._extra_product = None
        if kernel.shape[0] > inputs_size:
            extra_masks = [m[:, inputs_size:] for m in inputs_masks]
            self._extra_product = _product(kernel[inputs_size:], extra_masks)
        self._bias = self._cast(cell.bias) if cell.use_bias else None
        recurrent_bias = None
        if getattr(cell, "reset_after", False) and cell.use_bias:
            self._bias, recurrent_bias = _outer_bias(self._bias, cell.units)
        self._equations = _EQUATIONS[type(cell)](cell, recurrent, recurrent_bias, state_masks)

    def project(self, inputs):
        """The inputs' share of the gates.

        Args:
            inputs: `[B, D]`, or `[B, T, D]` for all steps at once.

        Returns:
            `[B, G]` or `[B, T, G]`, G = gates times units, in the cell's compute dtype.
        """
        sequence = len(inputs.shape) == 3
        # Steps first, as a loop over steps takes them: the swap after the product and the loop's
        # own cancel out, and the swap before it moves less.
        inputs = ops.swapaxes(self._cast(inputs), 0, 1) if sequence else self._cast(inputs)
        projected = self._product(inputs)
        if self._bias is not None:
            projected = ops.add(projected, self._bias)
        return ops.swapaxes(projected, 0, 1) if sequence else projected

    def step(self, projected, extra, state):
        """One step, the same as that of the cell on the inputs and `extra`.

        Args:
            projected: `[B, G]`, one step of what `project` gave.
            extra: `[B, E]`, what the cell is fed with behind the inputs; None if nothing.
            state: the cell's state, a structure of tensors `[B, size]`.

        Returns:
            `(output, state)`: output `[B, U]`, the state structured as before, both in its dtype.
        """
        if (extra is None) != (self._extra_product is None):
            expected = "None" if self._extra_product is None else "a tensor [B, E]"
            raise ValueError(f"`extra` must be {expected} for this cell. Received: {extra!r}.")
        if extra is not None:
            projected = projected + self._extra_product(self._cast(extra))
        flat = keras.tree.flatten(state)
        new = self._equations(projected, *map(self._cast, flat))
        new = [ops.cast(x, old.dtype) for x, old in zip(new, flat, strict=True)]
        return new[0], keras.tree.pack_sequence_as(state, new)

    def _cast(self, x):
        return ops.cast(ops.convert_to_tensor(x), self._dtype)


class HoistedStack:
    """A stack of cells of which the lowest is in two parts; made by `hoist`."""

    def __init__(self, first, rest):
        self._rest, self.project, self._first = rest, first.project, first

    def step(self, projected, extra, state):
        """As `HoistedCell.step`, with the state of a `StackedRNNCells`: one entry a cell."""
        output, first = self._first.step(projected, extra, state[0])
        states = [first]
        for cell, old in zip(self._rest, state[1:], strict=True):
            output, new = run_cell(cell, output, old)
            states.append(new)
        return output, states


# Equations: `(gates [B, G], *state)` -> the new state, of which the first is the output.


def _simple_rnn(cell, recurrent, recurrent_bias, masks):
    product = _product(recurrent, masks)
    return lambda gates, h: [cell.activation(gates + product(h))]


def _lstm(cell, recurrent, recurrent_bias, masks):
    product = _product(recurrent, masks)

    def equations(gates, h, c):
        i, f, g, o = ops.split(gates + product(h), 4, axis=-1)
        i, f, o = map(cell.recurrent_activation, (i, f, o))
        c = f * c + i * cell.activation(g)
        return [o * cell.activation(c), c]

    return equations


def _gru(cell, recurrent, recurrent_bias, masks):
    both = 2 * cell.units  # gates z and r

    def mix(h, z, g):
        return z * h + (1 - z) * g

    def reset_after(gates, h):
        z, r, g = ops.split(gates, 3, axis=-1)
        h_z, h_r, h_g = ops.split(whole(h), 3, axis=-1)
        z, r = cell.recurrent_activation(z + h_z), cell.recurrent_activation(r + h_r)
        h_g = h_g if recurrent_bias is None else h_g + recurrent_bias
        return [mix(h, z, cell.activation(g + r * h_g))]

    def reset_before(gates, h):
        z, r, g = ops.split(gates, 3, axis=-1)
        h_z, h_r = ops.split(lower(h), 2, axis=-1)
        z, r = cell.recurrent_activation(z + h_z), cell.recurrent_activation(r + h_r)
        return [mix(h, z, cell.activation(g + upper(r * h)))]

    if cell.reset_after:
        whole = _product(recurrent, masks)
        return reset_after
    lower = _product(recurrent[:, :both], masks[:2])
    upper = _product(recurrent[:, both:], masks[2:])
    return reset_before


_EQUATIONS = {
    keras.layers.SimpleRNNCell: _simple_rnn,
    keras.layers.LSTMCell: _lstm,
    keras.layers.GRUCell: _gru,
}


def _product(kernel, masks):
    """`x -> (m x) K`, with no mask, one for all gates, or one for each: `[(m_g x) K_g]`.

    x is `[B, D]` or `[T, B, D]`, a mask m `[B, D]`.
    """
    if not masks:
        return lambda x: batch_matmul(x, kernel)
    # Cut up here and not in the function, which runs inside the loop.
    kernels = ops.split(kernel, len(masks), axis=-1)

    def product(x):
        parts = [batch_matmul(x * m, k) for m, k in zip(masks, kernels, strict=True)]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)

    return product


def _outer_bias(bias, units):
    """Of the biases `[2, 3 U]` of a GRU: what may be added before the loop, and the rest."""
    gates = ops.concatenate([bias[1, : 2 * units], ops.zeros((units,), bias.dtype)], axis=0)
    return bias[0] + gates, bias[1, 2 * units :]


def _as_list(masks):
    if masks is None:
        return []
    return list(masks) if isinstance(masks, (list, tuple)) else [masks]


def _is_plain(cell):
    """Whether calling the layer means its equations, and they can be computed here as well."""
    # In the scope of a layer of less precision Keras hands out the weights rounded.
    weights = ops.convert_to_tensor(cell.kernel).dtype
    known = [ops.zeros((), dtype).dtype for dtype in (cell.variable_dtype, cell.compute_dtype)]
    return (
        cell.activity_regularizer is None
        and cell.autocast
        and getattr(cell, "quantization_mode", None) is None
        and weights in known  # (JAX has float32 in place of float64)
    )


def _check(cell, inputs_size):
    if not cell.built:
        raise ValueError(f"`cell` must be built before its kernel is split. Received: {cell!r}.")
    if not 0 < inputs_size <= cell.kernel.shape[0]:
        raise ValueError(
            f"`inputs_size` must be between 1 and {cell.kernel.shape[0]}, the number of features "
            f"that the cell takes. Received: {inputs_size}."
        )
