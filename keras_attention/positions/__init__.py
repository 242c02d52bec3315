"""Positions: what tells attention the order of the steps.

- `sinusoidal.py`: the sinusoidal encoding, added to the embeddings;
- `rotary.py`: rotary positions (RoPE), which turn queries and keys; `scaling.py`: their
  frequencies, also for contexts longer than those of the training;
- `biases.py`: ALiBi and the relative bias of T5, added to the scores;
- `pieces.py`: positions by name, as attention layers take them.

Positions are integers `[T]`, for the whole batch, or `[B, T]`, counted from 0.
"""

from keras_attention.positions.biases import ALiBi, RelativeBias, alibi_slopes, relative_buckets
from keras_attention.positions.pieces import get_position, serialize_position
from keras_attention.positions.rotary import RotaryPosition, rotate
from keras_attention.positions.sinusoidal import sinusoidal_encoding

__all__ = [
    "ALiBi",
    "RelativeBias",
    "RotaryPosition",
    "alibi_slopes",
    "get_position",
    "relative_buckets",
    "rotate",
    "serialize_position",
    "sinusoidal_encoding",
]
