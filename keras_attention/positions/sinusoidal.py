"""The sinusoidal encoding of positions, section 3.5 of Vaswani et al. 2017."""

import keras
import numpy as np
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.positions.scaling import check_base
from keras_attention.positions.turns import as_positions, turns


def sinusoidal_encoding(positions, size, base=10_000.0, dtype=None):
    """Sines and cosines of the position, at wavelengths from 2 pi to 2 pi base.

        encoding[2i] = sin(position / base^(2i / size))
        encoding[2i + 1] = cos(position / base^(2i / size))

    Section 3.5 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

    Args:
        positions: integers `[...]`, e.g. `[T]` or `[B, T]`.
        size: D, the number of features; an odd number lacks the last cosine.
        base: positive number; the longest wavelength is nearly 2 pi base.
        dtype: of the result, by default `keras.config.floatx()`. The angles are in float32 at
            least.

    Returns:
        The encoding `[..., size]`.

    Raises:
        ValueError: if the positions are no integers, or `size` or `base` is not positive.

    Example:

    >>> sinusoidal_encoding([0, 1], 4).numpy().round(2)
    array([[0.  , 1.  , 0.  , 1.  ],
           [0.84, 0.54, 0.01, 1.  ]], dtype=float32)
    """
    check_positive("size", size)
    check_base(base)
    dtype = keras.backend.standardize_dtype(dtype or keras.config.floatx())
    exact = keras.backend.result_type(dtype, "float32")
    feature = np.arange(size)
    frequencies = float(base) ** (-2.0 * (feature // 2) / size)
    positions = as_positions(positions, ranks=range(9))
    # A cosine is a sine a quarter of a turn later.
    quarter = ops.convert_to_tensor(0.25 * (feature % 2), exact)
    angles = (turns(positions, frequencies, exact) + quarter) * ops.convert_to_tensor(
        np.array(2 * np.pi), exact
    )
    return ops.cast(ops.sin(angles), dtype)
