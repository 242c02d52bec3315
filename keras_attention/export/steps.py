"""The endpoints `encode` and `step`, for those who drive the loop themselves."""

import keras
import tensorflow as tf
from keras import ops

from keras_attention.export.endpoints import Endpoint, spec


def step_endpoints(encode, step, ids_name, ids_check):
    """`encode` and `step` as functions of flat, named tensors.

        encode:  ids [B, S] -> memory_0, ..., state_0, ... (of a language model also token [B])
        step:    token [B], state_0, ..., memory_0, ... -> logits [B, V], next_state_0, ...,
                 attention [B, S] (if the model attends to a memory)

    Args:
        encode: function from ids to a dictionary of structures: "state", and "memory" or "token".
        step: function `(token, state, memory)` to a dictionary of "logits", "state" and perhaps
            "attention"; memory is None where `encode` gives none.
        ids_name: name of the ids.
        ids_check: function from ids to ids that may raise.

    Returns:
        The two endpoints, in a list.
    """
    encoded = _traced(encode, spec(ids_name))
    state, memory = encoded["state"], encoded.get("memory")
    inputs = {"state": state, "memory": memory}
    after = _traced(
        step, spec("token", shape=(None,)), *(_specs(inputs[name]) for name in ("state", "memory"))
    )["state"]
    specs = _flat_specs("state", state, after) + _flat_specs("memory", memory, memory)

    def flat_encode(ids):
        found = encode(ids_check(ids))
        token = {"token": found.pop("token")} if "token" in found else {}
        return {**token, **_named("memory", found.get("memory")), **_named("state", found["state"])}

    def flat_step(token, *tensors):
        count = len(_leaves(state))
        found = step(token, _packed(state, tensors[:count]), _packed(memory, tensors[count:]))
        new = _named("next_state", found.pop("state"))
        return {**found, **new}

    return [
        Endpoint("encode", flat_encode, (spec(ids_name),)),
        Endpoint("step", flat_step, (spec("token", shape=(None,)), *specs)),
    ]


def _traced(function, *specs):
    """The structure of what a function returns, of symbolic tensors."""
    return tf.function(function, autograph=False).get_concrete_function(*specs).structured_outputs


def _leaves(structure):
    return [x for x in keras.tree.flatten(structure) if x is not None]


def _packed(structure, tensors):
    """The structure with these tensors in place of its own; None stays None."""
    if structure is None:
        return None
    rest = iter(tensors)
    flat = [None if x is None else _unbatched(next(rest), x) for x in keras.tree.flatten(structure)]
    return keras.tree.pack_sequence_as(structure, flat)


def _specs(structure):
    return keras.tree.map_structure(
        lambda x: None if x is None else tf.TensorSpec(x.shape, x.dtype), structure
    )


def _flat_specs(name, before, after):
    """Specs of all leaves, batch first; axes that differ before and after a step are free."""
    specs = []
    for number, (x, y) in enumerate(zip(_leaves(before), _leaves(after), strict=True)):
        same = [a if a == b else None for a, b in zip(x.shape, y.shape, strict=True)]
        specs.append(spec(f"{name}_{number}", x.dtype, (None, *same[1:])))
    return specs


def _named(name, structure):
    return {f"{name}_{number}": _batched(x) for number, x in enumerate(_leaves(structure))}


# Servers want the batch first: what a state has once for all rows, each row gets.


def _batched(x):
    return x if x.shape.rank else ops.expand_dims(x, 0)


def _unbatched(x, like):
    return x if like.shape.rank else x[0]
