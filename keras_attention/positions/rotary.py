"""Rotary positions (RoPE): queries and keys turn with their position, Su et al. 2021."""

import keras
import numpy as np
from keras import ops

from keras_attention.checks import as_float, check_flag
from keras_attention.normalizers import upcast
from keras_attention.positions.scaling import check_base, check_scaling, rotary_frequencies
from keras_attention.positions.turns import as_positions, fit_steps, turns


def rotate(x, positions, base=10_000.0, size=None, scaling=None, interleaved=False):
    """Rotates pairs of features by angles that grow with the position.

        [a_i]      [cos(p f_i)  -sin(p f_i)] [a_i]
        [b_i]  ->  [sin(p f_i)   cos(p f_i)] [b_i],   f_i = base^(-2i / size)

    Section 3.4.2 of [Su et al., 2021](https://arxiv.org/abs/2104.09864). The product of a query
    at position p and a key at position q, both rotated, depends on p - q only; norms stay.

    Args:
        x: queries or keys, `[..., T, H]`, floating, e.g. `[B, N, T, H]`.
        positions: integers `[T]`, or `[B, T]` where the first axis of `x` is B; axes between
            are inserted.
        base: positive number.
        size: how many features are rotated, the first ones; an even number, by default H. The
            others stay as they are.
        scaling: of the frequencies, see `rotary_frequencies`.
        interleaved: which features make the pair (a_i, b_i): features i and i + size / 2, or, if
            True, 2i and 2i + 1 as in the paper. The two differ by an order of the features.

    Returns:
        A tensor like `x`. Half precision is computed in float32 and rounded once.

    Raises:
        ValueError: if `size` is odd or larger than H, the positions are no integers or do not
            fit, `base` is not positive, or the scaling is unknown.

    Example:

    >>> import numpy as np
    >>> rotate(np.array([[1.0, 0.0], [1.0, 0.0]]), [0, 1]).numpy().round(2)
    array([[1.  , 0.  ],
           [0.54, 0.84]])
    """
    x, positions = as_float(x), as_positions(positions)
    size = _check_size(x.shape, size)
    check_flag("interleaved", interleaved)
    positions = fit_steps(positions, x)
    frequencies, factor = rotary_frequencies(size, base, scaling)
    exact = upcast(x)
    dtype = keras.backend.standardize_dtype(exact.dtype)
    angles = turns(positions, _both_ways(frequencies, interleaved), dtype)
    while len(positions.shape) == 2 and len(angles.shape) < len(x.shape):
        angles = ops.expand_dims(angles, 1)
    angles = angles * ops.convert_to_tensor(np.array(2 * np.pi), dtype)
    factor = ops.convert_to_tensor(np.array(factor), dtype)
    whole = size == x.shape[-1]
    part = exact if whole else exact[..., :size]
    turned = part * (ops.cos(angles) * factor)
    turned = turned + _partners(part, interleaved) * (ops.sin(angles) * factor)
    turned = ops.cast(turned, x.dtype)
    return turned if whole else ops.concatenate([turned, x[..., size:]], axis=-1)


def _both_ways(frequencies, interleaved):
    """A frequency for each feature, negative for the a_i: sin(-angle) is -sin(angle)."""
    pairs = [-frequencies, frequencies]
    return np.stack(pairs, axis=-1).ravel() if interleaved else np.concatenate(pairs)


def _partners(x, interleaved):
    """For each feature the other one of its pair. (Slices would have a slower gradient.)"""
    if not interleaved:  # not `ops.roll`, which LiteRT does not know
        first, second = ops.split(x, 2, axis=-1)
        return ops.concatenate([second, first], axis=-1)
    first = np.arange(x.shape[-1]) % 2 == 0
    return ops.where(first, ops.roll(x, -1, axis=-1), ops.roll(x, 1, axis=-1))


def _check_size(shape, size):
    if len(shape) < 2 or shape[-1] is None:
        raise ValueError(f"`x` must have shape [..., T, H], H known. Received shape {shape}.")
    size = shape[-1] if size is None else size
    if not 0 < size <= shape[-1] or size % 2:
        raise ValueError(
            "The number of rotated features must be even and at most the size of a head: "
            f"features turn in pairs. Received {size} rotated features, head size {shape[-1]}."
        )
    return size


@keras.saving.register_keras_serializable(package="keras_attention")
class RotaryPosition:
    """Rotary positions (RoPE) as a piece of an attention layer.

        score(q_p, k_s) = (R_p q_p) . (R_s k_s) = q_p . R_(s - p) k_s

    [Su et al., 2021](https://arxiv.org/abs/2104.09864): see `rotate`.

    Args:
        base: positive number; longer contexts take larger ones (500,000 in Llama 3).
        fraction: the part of each head's features that is rotated, in (0, 1].
        scaling: of the frequencies, for contexts longer than the training's: None or a
            dictionary of type "linear", "ntk", "yarn" or "llama3", see `rotary_frequencies`.
        interleaved: whether pairs are features 2i and 2i + 1, as in the paper, instead of i and
            i + half.

    Call arguments:
        rotate(x, positions): `[B, N, T, H]` or `[B, N_kv, G, T, H]`, and `[T]` or `[B, T]`.

    Returns:
        A tensor like x.

    Raises:
        ValueError: if `base` is not positive, `fraction` not in (0, 1], or the scaling unknown;
            in use, if the number of rotated features is odd.

    Example:

    >>> import numpy as np
    >>> RotaryPosition(fraction=0.5).rotate(np.ones((1, 2, 3, 8)), np.arange(3)).shape
    TensorShape([1, 2, 3, 8])
    """

    def __init__(self, base=10_000.0, fraction=1.0, scaling=None, interleaved=False):
        self.base = check_base(base)
        good = not isinstance(fraction, bool) and isinstance(fraction, (int, float))
        if not good or not 0 < fraction <= 1:
            raise ValueError(f"`fraction` must lie in (0, 1]. Received: {fraction!r}.")
        self.fraction = fraction
        self.scaling = check_scaling(scaling)
        self.interleaved = check_flag("interleaved", interleaved)

    def rotate(self, x, positions):
        """`x` `[B, ..., T, H]`, rotated to `positions` `[T]` or `[B, T]`."""
        x = ops.convert_to_tensor(x)
        size = round(self.fraction * x.shape[-1])
        return rotate(x, positions, self.base, size, self.scaling, self.interleaved)

    def get_config(self):
        return {
            "base": self.base,
            "fraction": self.fraction,
            "scaling": self.scaling,
            "interleaved": self.interleaved,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)
