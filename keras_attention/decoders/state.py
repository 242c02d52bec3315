"""The state of a decoder: its cell's, and what else goes from step to step.

A state is the cell's state, a list of tensors `[B, size]` (of lists, in stacks). Where the decoder
carries more it is a dictionary: "cell", "alignment" (the tensors of `initial_alignment` of the
attention layer) and "attended" `[B, size]` (what is fed into the next step).
"""

from keras_attention.decoders.cell import pack_state


def join(cell_state, alignment, attended=None):
    """A state from its parts; `alignment` is empty and `attended` None where there is none.

    Args:
        cell_state: tensors `[B, size]`.
        alignment: dictionary of tensors `[B, ...]`.
        attended: `[B, size]`, or None.

    Returns:
        The state.
    """
    parts = {"cell": cell_state}
    if alignment:
        parts["alignment"] = alignment
    if attended is not None:
        parts["attended"] = attended
    return parts if len(parts) > 1 else cell_state


def split(state):
    """Undoes `join`: the cell's state, the alignment and the attended output `[B, U]`."""
    if not isinstance(state, dict):
        return state, {}, None
    return state["cell"], state.get("alignment", {}), state.get("attended")


def pack(like, state, name):
    """Gives `state` the structure and dtypes of `like`.

    Args:
        like: a state before the first step.
        state: a state, or the state of the cell alone: then the rest is that of `like`.
        name: what error messages call it; only of "initial_state" the cell's part may stand alone.

    Returns:
        The state.

    Raises:
        ValueError: if a part is missing, or a tensor does not have the size `[B, size]`.
    """
    if not isinstance(like, dict):
        return pack_state(like, state, name)
    if not isinstance(state, dict) and name == "initial_state":
        return {**like, "cell": pack_state(like["cell"], state, name)}
    if not isinstance(state, dict) or set(state) != set(like):
        got = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"`{name}` must be what `start_state` or the last step returned: a dictionary with "
            f"the entries {sorted(like)}. Received: {got}."
        )
    return {key: pack(like[key], state[key], f"{name}[{key!r}]") for key in like}
