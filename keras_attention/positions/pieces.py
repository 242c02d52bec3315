"""Positions by name, as attention layers take them and save them."""

import keras

from keras_attention.positions.biases import ALiBi, RelativeBias
from keras_attention.positions.rotary import RotaryPosition

POSITIONS = {"rotary": RotaryPosition, "alibi": ALiBi, "relative": RelativeBias}


def get_position(identifier):
    """The positions that a layer is given by name, as an object, or from its config.

    Args:
        identifier: None; "rotary", "alibi" or "relative"; an object with a method
            `rotate(x [B, N, T, H], positions)` or `bias(query_positions, key_positions,
            num_heads) -> [1 or B, N, T, S]`; or what `serialize_position` made.

    Returns:
        The object, a new one for a name, or None.

    Raises:
        ValueError: if there is none of that name, or the object has neither method.

    Example:

    >>> get_position("rotary").get_config()["base"]
    10000.0
    """
    if identifier is None:
        return None
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    piece = identifier
    if isinstance(identifier, str) and identifier in POSITIONS:
        piece = POSITIONS[identifier]()
    methods = (getattr(piece, name, None) for name in ("rotate", "bias"))
    if isinstance(piece, (str, type)) or not any(callable(method) for method in methods):
        known = ", ".join(repr(name) for name in POSITIONS)
        raise ValueError(
            f"`position` must be None, one of {known}, or an object with a method `rotate` or "
            f"`bias`. Received: {identifier!r}."
        )
    return piece


def serialize_position(piece):
    """What stands for positions in the config of a layer; `get_position` reads it.

    Args:
        piece: what `get_position` takes, for heads `[B, N, T, H]`. Classes of your own are found
            again where they are registered with `keras.saving.register_keras_serializable`.

    Returns:
        Its serialised form, a dictionary, or None.

    Raises:
        ValueError: if `piece` is none.

    Example:

    >>> serialize_position(RotaryPosition(fraction=0.5))["config"]["fraction"]
    0.5
    """
    piece = get_position(piece)
    if piece is None:
        return None
    serialized = keras.saving.serialize_keras_object(piece)
    if isinstance(piece, keras.layers.Layer):
        # While a model is saved, objects that come twice get a number, by which those that several
        # layers share are one again in the loaded model.
        serialized = keras.saving.serialize_keras_object(piece)
    # A layer that holds one has the same config before and after it was built.
    serialized.pop("build_config", None)
    return serialized
