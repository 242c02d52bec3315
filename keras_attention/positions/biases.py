"""Positions as a bias of the scores: ALiBi, and the relative bias of T5."""

import functools

import keras
import numpy as np
from keras import ops

from keras_attention.checks import check_flag, check_positive
from keras_attention.normalizers import upcast
from keras_attention.positions.turns import as_positions


def alibi_slopes(num_heads):
    """How fast the scores of each head fall with the distance.

        slope_n = 2^(-8 n / N),  n = 1, ..., N,  for N a power of two

    Section 3 of [Press et al., 2022](https://arxiv.org/abs/2108.12409). For other numbers of
    heads, as in the code published with it: the slopes of the power of two below, and then every
    second slope of the power of two above.

    Args:
        num_heads: N.

    Returns:
        A float64 array `[N]`.

    Raises:
        ValueError: if `num_heads` is not a positive integer.

    Example:

    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    """
    check_positive("num_heads", num_heads)
    below = 2 ** (int(num_heads).bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-8 * np.arange(1, 2 * below + 1, 2) / (2 * below))
    return np.concatenate([slopes, between[: num_heads - below]])


def relative_buckets(distance, num_buckets=32, max_distance=128, bidirectional=True):
    """Groups distances between positions: near ones each by itself, far ones logarithmically.

        bucket(n) = n                                                    for n < E
                    E + floor(ln(n / E) / ln(max_distance / E) (M - E))   up to M - 1 else

    with M buckets a direction, E = M / 2 and n the absolute distance; section 2.1 of
    [Raffel et al., 2020](https://arxiv.org/abs/1910.10683). Nothing is rounded: the numbers are
    those of whole-number arithmetic, also where the logarithms give a whole number.

    Args:
        distance: integers `[...]`: the position of the key minus that of the query.
        num_buckets: the number of buckets.
        max_distance: distances from here on share the last bucket.
        bidirectional: whether later keys have buckets of their own, the second half of all;
            otherwise they share bucket 0 with the query's own position.

    Returns:
        Integers `[...]` from 0 to num_buckets - 1.

    Raises:
        ValueError: if the distances are no integers, `num_buckets` is too small (or odd and
            `bidirectional`), or `max_distance` is not larger than the exact distances.

    Example:

    >>> relative_buckets([-200, -9, -8, -1, 0, 1, 8, 200]).numpy()
    array([15,  8,  8,  1,  0, 17, 24, 31], dtype=int32)
    """
    check_buckets(num_buckets, max_distance, bidirectional)
    distance = as_positions(distance, "distance", ranks=range(9))
    direction = num_buckets // 2 if bidirectional else num_buckets
    table = ops.convert_to_tensor(_bucket_table(direction, max_distance))
    past = ops.abs(distance) if bidirectional else ops.maximum(-distance, 0)
    buckets = ops.take(table, ops.minimum(past, max_distance))
    if not bidirectional:
        return buckets
    return buckets + direction * ops.cast(distance > 0, "int32")


def check_buckets(num_buckets, max_distance, bidirectional):
    """Raises unless the buckets of distances `[T, S]` are possible.

    Raises:
        ValueError: see `relative_buckets`.
    """
    check_positive("num_buckets", num_buckets)
    check_positive("max_distance", max_distance)
    check_flag("bidirectional", bidirectional)
    directions = 2 if bidirectional else 1
    if num_buckets % directions or num_buckets < 2 * directions:
        raise ValueError(
            f"`num_buckets` must be at least {2 * directions}"
            f"{' and even, half for each direction' if bidirectional else ''}. "
            f"Received: {num_buckets}."
        )
    exact = num_buckets // directions // 2
    if max_distance <= exact:
        raise ValueError(
            f"`max_distance` must be larger than {exact}, the distances that {num_buckets} "
            f"buckets hold one by one. Received: {max_distance}."
        )


@functools.cache
def _bucket_table(buckets, max_distance):
    """The bucket of each distance 0, ..., max_distance in one direction.

    ln(n / E) / ln(D / E) (M - E) >= j  is  n^(M - E) E^j >= D^j E^(M - E)  in whole numbers.
    """
    exact, more = buckets // 2, buckets - buckets // 2
    table = list(range(exact))
    bucket = exact
    for n in range(exact, max_distance + 1):
        j = bucket + 1 - exact  # that of the next bucket
        while bucket < buckets - 1 and n**more * exact**j >= max_distance**j * exact**more:
            bucket, j = bucket + 1, j + 1
        table.append(bucket)
    return np.array(table, "int32")


def _distances(query_positions, key_positions):
    """Position of the key minus that of the query, `[1 or B, T, S]`."""
    query = as_positions(query_positions, "query_positions")
    key = as_positions(key_positions, "key_positions")
    query, key = (x if len(x.shape) == 2 else x[None] for x in (query, key))
    return key[:, None, :] - query[:, :, None]


@keras.saving.register_keras_serializable(package="keras_attention")
class ALiBi:
    """Attention with linear biases, as a piece of an attention layer.

        bias_n(query at p, key at s) = -slope_n |p - s|

    [Press et al., 2022](https://arxiv.org/abs/2108.12409); with a causal mask as in the paper,
    and symmetric without one. Nothing is learned; slopes see `alibi_slopes`.

    Args: none.

    Call arguments:
        bias(query_positions, key_positions, num_heads): integers `[T]` or `[B, T]`, `[S]` or
            `[B, S]`, and N.

    Returns:
        The bias `[1 or B, N, T, S]`, float32.

    Raises:
        ValueError: if positions are no integers.

    Example:

    >>> ALiBi().bias([0, 1], [0, 1], num_heads=1).numpy()
    array([[[[-0.        , -0.00390625],
             [-0.00390625, -0.        ]]]], dtype=float32)
    """

    def bias(self, query_positions, key_positions, num_heads, dtype="float32"):
        """The bias `[1 or B, N, T, S]`."""
        distance = ops.cast(ops.abs(_distances(query_positions, key_positions)), dtype)
        slopes = ops.convert_to_tensor(-alibi_slopes(num_heads)[:, None, None], dtype)
        return slopes * distance[:, None]

    def slopes(self, num_heads):
        """What each head's scores `[..., T, S]` lose for each position of distance: `[N]`."""
        return alibi_slopes(num_heads)

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_attention")
class RelativeBias(keras.layers.Layer):
    """Learned bias for each head and bucket of distances, as in T5.

        bias_n(query at p, key at s) = weight[bucket(s - p), n]

    Section 2.1 of [Raffel et al., 2020](https://arxiv.org/abs/1910.10683); buckets see
    `relative_buckets`. T5 shares one bias between all layers of a stack: give one object to
    several layers, or call it and pass the result as their `attention_bias`.

    Args:
        num_buckets, max_distance, bidirectional: as of `relative_buckets`.
        num_heads: N; an attention layer that owns the bias knows it.
        initializer: of the weights `[num_buckets, N]`.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        query_positions: integers `[T]` or `[B, T]`.
        key_positions: integers `[S]` or `[B, S]`; by default the query's.

    Returns:
        The bias `[1 or B, N, T, S]`, float32 (float64 for a layer of float64).

    Raises:
        ValueError: if positions are no integers, buckets do not fit, or `num_heads` is not known.

    Example:

    >>> RelativeBias(num_heads=2)(np.arange(3), np.arange(5)).shape
    TensorShape([1, 2, 3, 5])
    """

    def __init__(
        self,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        num_heads=None,
        initializer="random_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_buckets(num_buckets, max_distance, bidirectional)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.bidirectional = bidirectional
        self.num_heads = None if num_heads is None else check_positive("num_heads", num_heads)
        self.initializer = keras.initializers.get(initializer)

    def build(self, num_heads=None):
        num_heads = self.num_heads if not isinstance(num_heads, int) else num_heads
        if num_heads is None:
            raise ValueError("`num_heads` must be given to a RelativeBias that is called itself.")
        if self.num_heads not in (None, num_heads):
            raise ValueError(
                f"`num_heads` of this RelativeBias is {self.num_heads}. A layer with {num_heads} "
                "heads can not use it."
            )
        self.weight = self.add_weight(
            name="weight",
            shape=(self.num_buckets, check_positive("num_heads", num_heads)),
            initializer=self.initializer,
            autocast=False,
        )
        self.built = True

    def bias(self, query_positions, key_positions, num_heads):
        """The bias `[1 or B, N, T, S]`."""
        if num_heads != self.weight.shape[-1]:
            raise ValueError(
                f"`num_heads` of this RelativeBias is {self.weight.shape[-1]}. A layer with "
                f"{num_heads} heads can not use it."
            )
        buckets = relative_buckets(
            _distances(query_positions, key_positions),
            self.num_buckets,
            self.max_distance,
            self.bidirectional,
        )
        # Transposed first, the weight gets an ordinary gradient instead of one an entry.
        weight = ops.transpose(upcast(ops.convert_to_tensor(self.weight)))
        return ops.swapaxes(ops.take(weight, buckets, axis=1), 0, 1)

    def call(self, query_positions, key_positions=None):
        key_positions = query_positions if key_positions is None else key_positions
        return self.bias(query_positions, key_positions, self.weight.shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "num_heads": self.num_heads,
            "initializer": keras.initializers.serialize(self.initializer),
        }
