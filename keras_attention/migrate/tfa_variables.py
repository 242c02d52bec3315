"""Variables of tfa.seq2seq by what they are, out of a dictionary or a TensorFlow checkpoint.

One variable has several names: `memory_layer/kernel` for itself,
"decoder/cell/attention_wrapper/BahdanauAttention/kernel:0" as `variable.name` of a query layer, and
"decoder/rnn_cell/_attention_layers/0/kernel/.ATTRIBUTES/VARIABLE_VALUE" in a checkpoint. Only the
ends of a name tell, and which variables lie beside it.
"""

import os
import re

from keras_attention.migrate.weights import Weights

MECHANISM = ("attention_v", "attention_g", "attention_b", "attention_score_bias")
PARTS = ("attention", "cell", "attention_layer")
IN_CHECKPOINTS = "/.ATTRIBUTES/VARIABLE_VALUE"


def tfa_weights(variables, prefix="", parts=PARTS):
    """The variables of an attention mechanism, or of an AttentionWrapper, under plain names.

    Args:
        variables: a dictionary from names to arrays `[...]`, or the path of a checkpoint.
        prefix: where their names begin; or a dictionary of "attention", "cell" and
            "attention_layer" with the prefix of each.
        parts: those of the three that are looked for.

    Returns:
        `Weights` with the names "memory_layer/kernel", "query_layer/kernel", "attention_v",
        "attention_g", "attention_b", "attention_score_bias", "cell/0/kernel",
        "cell/0/recurrent_kernel", "cell/0/bias", ..., "attention_layer/kernel" and
        "attention_layer/bias", as far as there are such.

    Raises:
        ValueError: if several variables may be meant, or, of a dictionary, one that begins with
            `prefix` is none of these. (A checkpoint holds the rest of a model, too.)
    """
    is_path = isinstance(variables, (str, os.PathLike))
    names, read = _checkpoint(variables) if is_path else _dictionary(variables)
    prefixes = prefix if isinstance(prefix, dict) else dict.fromkeys(PARTS, prefix)
    unknown = set(prefixes) - set(PARTS)
    if unknown:
        raise ValueError(f"`prefix` has no part {sorted(unknown)}: {', '.join(PARTS)}.")
    finders = {"attention": _mechanism, "cell": _cells, "attention_layer": _attention_layer}
    found = {}
    for part in parts:
        start = prefixes.get(part, "")
        below = [name for name in names if name.startswith(start)]
        for role, name in finders[part](below, start):
            if role in found and found[role] != name:
                raise ValueError(
                    f"`variables` has several of {role}: {found[role]!r} and {name!r}. Tell by "
                    "`prefix` which one, if need be by a dictionary with the prefixes of "
                    f"{', '.join(PARTS)}."
                )
            found[role] = name
    left = set(names) - set(found.values())
    left = sorted(n for n in left if any(n.startswith(prefixes.get(p, "")) for p in parts))
    if left and not is_path:
        raise ValueError(
            f"`variables` has more than is carried over: {', '.join(map(repr, left))}. Leave out "
            "what belongs to other layers, or tell by `prefix` which ones are meant."
        )
    if not found:
        raise ValueError(
            f"`variables` has none of tfa.seq2seq that begins with {prefix!r}. It has: "
            f"{', '.join(map(repr, sorted(names)[:20])) or 'nothing'}."
        )
    arrays = {role: read(name) for role, name in found.items()}
    return Weights(arrays, "variables", called=found)


def _dictionary(variables):
    if not hasattr(variables, "items"):
        raise ValueError(
            "`variables` must be a dictionary from names to arrays, or the path of a checkpoint. "
            f"Received: {type(variables).__name__}."
        )
    originals = {re.sub(r":\d+$", "", name): name for name in variables}
    return list(originals), lambda name: variables[originals[name]]


def _checkpoint(path):
    import tensorflow as tf  # (Keras may run on another backend.)

    try:
        reader = tf.train.load_checkpoint(os.fspath(path))
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(
            "`variables` must be the path of a TensorFlow checkpoint (its prefix, without "
            f".index), or of a folder with one. Received: {os.fspath(path)!r}. {error}"
        ) from error
    originals = {
        name.removesuffix(IN_CHECKPOINTS): name
        for name in reader.get_variable_to_shape_map()
        if ".OPTIMIZER_SLOT" not in name
    }
    return list(originals), lambda name: reader.get_tensor(originals[name])


def _split(name):
    """The folder of a name, with its slash, and the last part."""
    folder, slash, last = name.rpartition("/")
    return folder + slash, last


def _mechanism(names, start):
    beside_v = {_split(name)[0] for name in names if _split(name)[1] == "attention_v"}
    for name in names:
        folder, last = _split(name)
        layer = folder.rstrip("/").rpartition("/")[2]
        if last in MECHANISM:
            yield last, name
        elif last == "kernel" and layer in ("memory_layer", "query_layer"):
            yield f"{layer}/kernel", name
        elif last == "kernel" and folder in beside_v:  # a query layer in `variable.name`
            yield "query_layer/kernel", name


def _cells(names, start):
    folders = [_split(name)[0] for name in names if _split(name)[1] == "recurrent_kernel"]
    folders.sort(key=lambda folder: [int(n) for n in re.findall(r"\d+", folder)])
    same = {re.sub(r"_?\d+/$", "/", folder) for folder in folders}  # "cells/0/", "gru_cell_1/"
    for number, folder in enumerate(folders):
        index = number if len(same) == 1 else 0  # cells of other places are no stack: they clash
        for last in ("kernel", "recurrent_kernel", "bias"):
            if folder + last in names:
                yield f"cell/{index}/{last}", folder + last


def _attention_layer(names, start):
    for name in names:
        folder, last = _split(name)
        own = re.search(r"(^|/)(attention_layer|_attention_layers/\d+)/$", folder)
        if last in ("kernel", "bias") and (own or (start and folder == start)):
            yield f"attention_layer/{last}", name
