"""Recurrent cells as the decoders see them: Keras cells, their states, sizes and dropout."""

import contextlib

import keras
from keras import ops


def as_cell(cell):
    """A cell from a Keras cell or from a list of cells.

    Args:
        cell: a layer with `state_size` and `call(inputs [B, D], states) -> (output [B, U],
            states)`, such as `keras.layers.GRUCell`, or a list or tuple of such layers.

    Returns:
        The cell, or a `keras.layers.StackedRNNCells` of the list.

    Raises:
        ValueError: if it is no cell (a `keras.layers.GRU` is a layer over time, not a cell).
    """
    if isinstance(cell, (list, tuple)):
        cell = [as_cell(one) for one in cell]
        if len(cell) > 1:
            cell = keras.layers.StackedRNNCells(cell, dtype=cell[0].dtype_policy)
        else:
            cell = cell[0] if cell else None
    if not isinstance(cell, keras.layers.Layer) or not hasattr(cell, "state_size"):
        raise ValueError(
            "`cell` must be a Keras cell (keras.layers.GRUCell, LSTMCell, ...) or a list of "
            f"cells. Received: {cell!r}."
        )
    if isinstance(cell, keras.layers.RNN):
        raise ValueError(
            f"`cell` must be a cell, not a layer over time: pass keras.layers."
            f"{type(cell).__name__}Cell(...). Received: {cell!r}."
        )
    return cell


def query_size(cell):
    """Size of the decoder's query: the first state (h) of the topmost cell, `[B, size]`."""
    return _flat(_top(cell).state_size)[0]


def output_size(cell):
    """Size U of the cell's output `[B, U]`."""
    top = _top(cell)
    return getattr(top, "output_size", None) or _flat(top.state_size)[0]


def query_of(cell, state):
    """The query s: the first state (h) of the topmost cell.

    Args:
        cell: the cell.
        state: its state, a structure of tensors `[B, size]`.

    Returns:
        A tensor `[B, query_size(cell)]`.
    """
    return _flat(state[-1] if isinstance(cell, keras.layers.StackedRNNCells) else state)[0]


def initial_state(cell, batch_size, dtype):
    """The cell's state before the first step: `[B, size]` tensors, as the cell makes them."""
    if hasattr(cell, "get_initial_state"):
        state = cell.get_initial_state(batch_size=batch_size)
    else:
        state = [ops.zeros((batch_size, size), dtype) for size in _flat(cell.state_size)]
    state = list(state) if isinstance(state, tuple) else state
    state = state if isinstance(state, list) else [state]
    return keras.tree.map_structure(lambda x: ops.cast(x, dtype), state)


def pack_state(like, state, name="initial_state"):
    """Gives `state` the structure and dtypes of `like`.

    Args:
        like: the structure of tensors `[B, size]` that the cell uses.
        state: the same tensors in any structure; a single tensor for a cell of one state.
        name: what error messages call it.

    Returns:
        The tensors of `state` in the structure of `like`.

    Raises:
        ValueError: if their number or a size differs.
    """
    wanted, given = _flat(like), [ops.convert_to_tensor(x) for x in _flat(state)]
    shapes, received = [tuple(x.shape) for x in wanted], [tuple(x.shape) for x in given]
    if len(wanted) != len(given) or not all(map(_fits, shapes, received)):
        raise ValueError(
            f"`{name}` does not fit: expected {len(wanted)} tensors [B, size] of shapes {shapes}. "
            f"Received {len(given)} of shapes {received}."
        )
    cast = [ops.cast(g, w.dtype) for g, w in zip(given, wanted, strict=True)]
    return keras.tree.pack_sequence_as(like, cast)


def _fits(wanted, received):
    return len(wanted) == len(received) and all(
        w is None or r is None or w == r for w, r in zip(wanted, received, strict=True)
    )


def run_cell(cell, inputs, state):
    """One step of the cell: `[B, D]` -> output `[B, U]` and the state, structured as before."""
    output, new_state = cell(inputs, state)
    flat = [ops.cast(x, old.dtype) for x, old in zip(_flat(new_state), _flat(state), strict=True)]
    return ops.cast(output, inputs.dtype), keras.tree.pack_sequence_as(state, flat)


def keep_where(mask, new, old):
    """`new` where the step is real, `old` where it is padding.

    Args:
        mask: boolean `[B]`, or None for "all real".
        new, old: equal structures of tensors `[B, ...]`.

    Returns:
        The same structure.
    """
    if mask is None:
        return new

    def keep(new, old):
        axes = (slice(None),) + (None,) * (len(new.shape) - 1)
        return ops.where(mask[axes], new, old)

    return keras.tree.map_structure(keep, new, old)


@contextlib.contextmanager
def drawn_dropout(cell, inputs, state, training):
    """Draws the dropout masks of a cell before a training loop and forgets them after it.

    Keras cells keep the masks of a sequence on themselves. Drawn inside a loop they would belong
    to the loop's graph and be out of scope in the next call.

    Args:
        cell: the cell; cells without dropout are left alone.
        inputs: a tensor of the shape of one step's input, `[B, D]`.
        state: the cell's state, a structure of tensors `[B, size]`.
        training: whether dropout is applied at all.

    Returns:
        A context manager that gives, for each cell from the lowest up, its masks of the inputs
        and of the state as Keras makes them: None, a tensor `[B, size]`, or a list of them, one
        a gate. None if `training` is false.
    """
    _forget_dropout(cell)  # An earlier call of a cell by itself may have left some.
    try:
        yield _draw_dropout(cell, inputs, state) if training else None
    finally:
        _forget_dropout(cell)


def _draw_dropout(cell, inputs, state):
    if isinstance(cell, keras.layers.StackedRNNCells):
        masks = []
        for one, its_state in zip(cell.cells, state, strict=True):
            masks += _draw_dropout(one, inputs, its_state)
            inputs = ops.zeros((ops.shape(inputs)[0], output_size(one)), inputs.dtype)
        return masks
    if not hasattr(cell, "get_dropout_mask"):
        return [(None, None)]
    return [(cell.get_dropout_mask(inputs), cell.get_recurrent_dropout_mask(_flat(state)[0]))]


def _forget_dropout(cell):
    if isinstance(cell, keras.layers.StackedRNNCells):
        for one in cell.cells:
            _forget_dropout(one)
    elif hasattr(cell, "reset_dropout_mask"):
        cell.reset_dropout_mask()
        cell.reset_recurrent_dropout_mask()


def _cells(cell):
    return cell.cells if isinstance(cell, keras.layers.StackedRNNCells) else [cell]


def _top(cell):
    return _cells(cell)[-1]


def _flat(structure):
    return keras.tree.flatten(structure)
