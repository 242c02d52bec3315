"""What attention carries from one step to the next: the position, the last weights, coverage."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention.loops import scan_steps
from keras_attention.normalizers import upcast


class Prepared(NamedTuple):
    """A layer's inputs, checked, hidden where masked, and projected.

    Attributes:
        queries, keys, values: `[B, ..., T, Dq]`, `[B, ..., S, Dk]`, `[B, ..., S, Dv]`.
        pairs: the `Pairs` of the scores `[B, ..., T, S]`.
        query_mask: `[B, ..., T]`, the real steps, or None.
        memory_mask: `[B, ..., S]`, the real keys, or None.
        dropout: the fraction of weights dropped in this call.
        return_attention_scores: whether the weights are wanted.
        steps: the queries before their projection, `[B, ..., T, D]`.
        use_causal_mask: whether a causal mask is still to be applied.
        places: `Places` of queries and keys, or None.
    """

    queries: Any
    keys: Any
    values: Any
    pairs: Any
    query_mask: Any = None
    memory_mask: Any = None
    dropout: float = 0.0
    return_attention_scores: bool = False
    steps: Any = None
    use_causal_mask: bool = False
    places: Any = None


def start(carries, values, previous=None):
    """The alignment before the first step.

    Args:
        carries: names of what is carried: "position", "previous", "coverage".
        values: values `[B, S, Dv]` of the memory.
        previous: the weights `[B, S]` that count as those before the first step; None for 0.

    Returns:
        A dictionary with "position" `[B]`, the number of steps so far; "previous" `[B, S]`, the
        weights of the last step; "coverage" `[B, S]`, the sum of the weights of all steps; those
        that are carried.
    """
    zeros = ops.zeros_like(upcast(values[..., 0]))
    starts = {
        "position": lambda: ops.cast(ops.sum(zeros, axis=-1), "int32"),
        "previous": lambda: zeros if previous is None else ops.cast(previous, zeros.dtype),
        "coverage": lambda: zeros,
    }
    return {name: starts[name]() for name in carries}


def start_spec(carries, batch, keys, dtype):
    """What `start` returns, as symbolic tensors; `dtype` is that of the layer."""
    dtype = keras.backend.result_type(dtype, "float32")
    return {
        name: keras.KerasTensor((batch,), "int32")
        if name == "position"
        else keras.KerasTensor((batch, keys), dtype)
        for name in carries
    }


def check(alignment, carries, values):
    """`alignment`, if it fits a layer that carries `carries` and a memory of these values.

    Args:
        alignment: what a caller passed.
        carries: names of what is carried.
        values: values `[B, ..., S, Dv]` of the memory.

    Returns:
        The alignment, in the dtypes that `start` gives.

    Raises:
        ValueError: if it is no dictionary of these names, or a shape differs.
    """
    if not isinstance(alignment, dict) or set(alignment) != set(carries):
        got = sorted(alignment) if isinstance(alignment, dict) else type(alignment).__name__
        raise ValueError(
            "`alignment` must be what `initial_alignment` or the last call returned: a dictionary "
            f"with the entries {sorted(carries)}. Received: {got}."
        )
    batch, keys = values.shape[0], values.shape[-2]
    dtype = keras.backend.result_type(values.dtype, "float32")
    fitted = {}
    for name, x in alignment.items():
        x, counts = ops.convert_to_tensor(x), name == "position"
        shape = (batch,) if counts else (batch, keys)
        if len(x.shape) != len(shape) or any(
            None not in sizes and sizes[0] != sizes[1] for sizes in zip(x.shape, shape, strict=True)
        ):
            raise ValueError(
                f"`alignment[{name!r}]` must have shape {shape}. Received shape {tuple(x.shape)}."
            )
        fitted[name] = ops.cast(x, "int32" if counts else dtype)
    return fitted


def advance(alignment, weights):
    """The alignment after a step with these weights `[B, S]`."""
    weights = upcast(weights)
    after = {
        "position": lambda old: old + 1,
        "previous": lambda old: weights,
        "coverage": lambda old: old + weights,
    }
    return {name: after[name](old) for name, old in alignment.items()}


def attend_in_steps(attend_step, prepared, alignment, variables):
    """Attends step by step, where the weights of a step depend on those before it.

    Args:
        attend_step: function `(prepared, alignment) -> (context [B, 1, D], weights [B, 1, S])`
            for inputs of one query step.
        prepared: the `Prepared` inputs of T steps, without heads.
        alignment: the alignment before the first step. A masked step keeps it.
        variables: those of the layer that a step may change.

    Returns:
        `(context [B, T, D], weights [B, T, S], alignment)`.
    """
    batch, steps, _ = ops.shape(prepared.queries)
    keys = ops.shape(prepared.keys)[-2]
    # Masks and biases that differ between the steps are read step by step, the others are shared.
    sequences = {"queries": prepared.queries, "query_mask": prepared.query_mask}
    pairs = prepared.pairs.merged()
    for name in ("mask", "bias"):
        x = getattr(pairs, name)
        if x is not None and x.shape[-2] != 1:
            sequences[name] = ops.broadcast_to(x, (batch, steps, keys))
    sequences = {name: x for name, x in sequences.items() if x is not None}

    def step(inputs, alignment):
        single = {name: x[:, None] for name, x in inputs.items()}
        own = {name: single.pop(name) for name in ("mask", "bias") if name in single}
        single["pairs"] = pairs._replace(**own)
        context, weights = attend_step(prepared._replace(**single), alignment)
        context, weights = context[:, 0], weights[:, 0]
        after = advance(alignment, weights)
        if "query_mask" in inputs:
            after = {
                name: ops.where(_like(inputs["query_mask"], x), x, alignment[name])
                for name, x in after.items()
            }
        return [context, weights], after

    if prepared.queries.shape[1] == 1:
        outputs, alignment = step({name: x[:, 0] for name, x in sequences.items()}, alignment)
        return outputs[0][:, None], outputs[1][:, None], alignment
    dtype = keras.backend.standardize_dtype(prepared.values.dtype)
    batch = prepared.queries.shape[0]
    shapes = ((batch, prepared.values.shape[-1]), (batch, prepared.keys.shape[-2]))
    (context, weights), alignment = scan_steps(
        step, sequences, alignment, [(shape, dtype) for shape in shapes], variables
    )
    return context, weights, alignment


def _like(mask, x):
    """A mask `[B]` with the axes of `x`."""
    return mask[(slice(None),) + (None,) * (len(x.shape) - 1)]
