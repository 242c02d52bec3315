"""Positions in float64 NumPy, written from the papers, one position and one head at a time."""

import math

import numpy as np


def sinusoidal(positions, size, base=10_000.0):
    """Vaswani et al. 2017, section 3.5: sines at even, cosines at odd features."""
    positions = np.asarray(positions, "float64")
    encoding = np.zeros((*positions.shape, size))
    for j in range(size):
        angle = positions / base ** (2 * (j // 2) / size)
        encoding[..., j] = np.cos(angle) if j % 2 else np.sin(angle)
    return encoding


def frequencies(size, base=10_000.0):
    """Su et al. 2021, section 3.2.2."""
    return np.array([base ** (-2 * i / size) for i in range(size // 2)])


def linear(size, base, factor):
    """Chen et al. 2023: position m becomes m / factor."""
    return frequencies(size, base) / factor


def ntk(size, base, factor):
    """Peng et al. 2023, definition of the NTK-aware interpolation."""
    return frequencies(size, base * factor ** (size / (size - 2)))


def by_parts(size, base, factor, length, low, high):
    """Peng et al. 2023, section 3.2: the number of turns r over the length decides."""
    result = []
    for frequency in frequencies(size, base):
        r = length / (2 * math.pi / frequency)
        gamma = 0 if r < low else 1 if r > high else (r - low) / (high - low)
        result.append((1 - gamma) * frequency / factor + gamma * frequency)
    return np.array(result)


def by_index(size, base, factor, length, low, high):
    """The same mixed linearly in the index, between the indices rounded outwards."""
    turns = [length * f / (2 * math.pi) for f in base ** (-2 * np.arange(-size, 2 * size) / size)]
    # The first index at or after which there are at most `high` turns, rounded down, and so on.
    above = [i for i, r in zip(range(-size, 2 * size), turns, strict=True) if r >= high]
    below = [i for i, r in zip(range(-size, 2 * size), turns, strict=True) if r <= low]
    first, last = max(above[-1], 0), min(below[0], size - 1)
    result = []
    for i, frequency in enumerate(frequencies(size, base)):
        gamma = 1 - min(max((i - first) / (last - first), 0), 1)
        result.append((1 - gamma) * frequency / factor + gamma * frequency)
    return np.array(result)


def llama3(size, base, factor, length, low, high):
    """Wavelengths over length / low are stretched, those under length / high stay."""
    result = []
    for frequency in frequencies(size, base):
        wavelength = 2 * math.pi / frequency
        if wavelength > length / low:
            result.append(frequency / factor)
        elif wavelength < length / high:
            result.append(frequency)
        else:
            smooth = (length / wavelength - low) / (high - low)
            result.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(result)


def rotate(x, positions, turns_by, interleaved=False):
    """x `[..., T, H]` as complex numbers; `turns_by` are the frequencies of the first features."""
    x, half = np.array(x, "float64"), len(turns_by)
    first, second = (slice(0, half), slice(half, 2 * half))
    if interleaved:
        first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    pairs = x[..., first] + 1j * x[..., second]
    pairs = pairs * np.exp(1j * np.asarray(positions, "float64")[..., None] * turns_by)
    x[..., first], x[..., second] = pairs.real, pairs.imag
    return x


def slopes(heads):
    """Press et al. 2022, section 3 and the code published with it."""
    if heads & (heads - 1) == 0:
        ratio = 2 ** (-8 / heads)
        return [ratio ** (n + 1) for n in range(heads)]
    lower = 1
    while 2 * lower < heads:
        lower *= 2
    return slopes(lower) + slopes(2 * lower)[::2][: heads - lower]


def alibi(query, key, heads):
    """Bias `[N, T, S]` for positions `[T]`, `[S]`."""
    distance = np.abs(np.asarray(query)[:, None] - np.asarray(key)[None, :])
    return np.stack([-slope * distance for slope in slopes(heads)])


def bucket(distance, buckets=32, furthest=128, bidirectional=True):
    """Raffel et al. 2020: the bucket of one distance, key minus query.

    Where the logarithms give a whole number in truth, rounding may fall below it; nothing else
    comes as near to one as 1e-9, for the sizes of the tests.
    """
    offset, n = 0, -distance
    if bidirectional:
        buckets //= 2
        offset = buckets if n < 0 else 0
        n = abs(n)
    n, exact = max(n, 0), buckets // 2
    if n < exact:
        return offset + n
    steps = math.log(n / exact) / math.log(furthest / exact) * (buckets - exact)
    return offset + min(exact + math.floor(steps + 1e-9), buckets - 1)


def relative_bias(query, key, weight, **kwargs):
    """Bias `[N, T, S]` from a weight `[buckets, N]`."""
    bias = np.zeros((weight.shape[1], len(query), len(key)))
    for t, p in enumerate(query):
        for s, q in enumerate(key):
            bias[:, t, s] = weight[bucket(int(q) - int(p), len(weight), **kwargs)]
    return bias
