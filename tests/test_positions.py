"""Sinusoidal, rotary, ALiBi and relative positions against the references."""

import keras
import numpy as np
import pytest
import reference_positions as ref
import tensorflow as tf
from backend import FLOAT64, assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention.positions import (
    ALiBi,
    RelativeBias,
    RotaryPosition,
    alibi_slopes,
    get_position,
    relative_buckets,
    rotate,
    serialize_position,
    sinusoidal_encoding,
)
from keras_attention.positions.scaling import rotary_frequencies

B, N, G, T, S, H = 2, 3, 2, 5, 7, 12
PACKED = np.array([[0, 1, 2, 0, 1], [0, 0, 0, 1, 2]])  # two documents; padding on the left

YARN = {"type": "yarn", "factor": 8.0, "original_length": 300}
LLAMA = {"type": "llama3", "factor": 4.0, "original_length": 200, "low": 1.0, "high": 4.0}
SCALINGS = {
    "none": (None, lambda size, base: ref.frequencies(size, base)),
    "linear": ({"type": "linear", "factor": 4.0}, lambda size, base: ref.linear(size, base, 4)),
    "ntk": ({"type": "ntk", "factor": 4.0}, lambda size, base: ref.ntk(size, base, 4)),
    "yarn": (YARN, lambda size, base: ref.by_parts(size, base, 8, 300, 1, 32)),
    "yarn by index": (
        {**YARN, "ramp": "index", "low": 0.5, "high": 20.0},
        lambda size, base: ref.by_index(size, base, 8, 300, 0.5, 20),
    ),
    "llama3": (LLAMA, lambda size, base: ref.llama3(size, base, 4, 200, 1, 4)),
}


# Sinusoidal encoding.


@pytest.mark.parametrize("positions", [[0, 1, 5, 300, -4], PACKED], ids=["T", "BT"])
def test_sinusoidal(run, dtype, positions, assert_close):
    actual = run(lambda p: sinusoidal_encoding(p, 16, dtype=dtype), np.array(positions))
    assert_close(actual, ref.sinusoidal(positions, 16), dtype)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_sizes_of_the_sinusoidal_encoding(size, assert_close):
    for positions in (3, [3, 4], PACKED[None]):
        assert_close(sinusoidal_encoding(positions, size), ref.sinusoidal(positions, size))


def test_base_and_dtype_of_the_sinusoidal_encoding(assert_close):
    encoding = sinusoidal_encoding([3, 9], 6, base=100.0)
    assert dtype_of(encoding) == "float32"
    assert_close(encoding, ref.sinusoidal([3, 9], 6, 100.0))


def test_the_encoding_of_a_shift_is_a_rotation():
    """What the paper says of it: encoding(p + k) is a linear function of encoding(p)."""
    size, shift = 8, 6
    angles = shift * ref.frequencies(size)
    first, later = (to_numpy(sinusoidal_encoding(np.arange(9) + k, size)) for k in (0, shift))
    sin, cos = first[:, 0::2], first[:, 1::2]
    turned = sin * np.cos(angles) + cos * np.sin(angles)
    assert_allclose(later[:, 0::2], turned, atol=1e-6)


@pytest.mark.parametrize("far", [100_000, 16_000_000, 2**31 - 1])
def test_angles_are_exact_far_away(run, far, assert_close):
    """In float32 the product of position and frequency alone would be wrong by 0.004 at 100,000."""
    positions = np.array([far, far - 1, far - 77], "int32")
    actual = run(lambda p: sinusoidal_encoding(p, 16), positions)
    assert_allclose(actual, ref.sinusoidal(positions, 16), atol=2e-6)


# Rotary positions.


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("positions", [np.arange(T), PACKED, PACKED[:1]], ids=["T", "BT", "1T"])
def test_rotate(run, rng, dtype, interleaved, positions, assert_close):
    x, exact = rounded(rng.normal(size=(B, N, T, H)), dtype)
    inserted = positions if positions.ndim == 1 else positions[:, None]
    expected = ref.rotate(exact, inserted, ref.frequencies(H), interleaved)
    actual = run(lambda x, p: rotate(x, p, interleaved=interleaved), x, positions)
    assert_close(actual, expected, dtype)
    assert dtype_of(rotate(x, positions, interleaved=interleaved)) == dtype_of(x)


@pytest.mark.parametrize("shape", [(T, H), (B, T, H), (B, N, T, H), (B, N, G, T, H)], ids=str)
def test_ranks(rng, shape, assert_close):
    x, piece = rng.normal(size=shape), RotaryPosition()
    expected = ref.rotate(x, np.arange(T), ref.frequencies(H))
    assert_close(piece.rotate(x, np.arange(T)), expected, "float64")
    if len(shape) > 2:
        inserted = PACKED.reshape(B, *(1,) * (len(shape) - 3), T)
        expected = ref.rotate(x, inserted, ref.frequencies(H))
        assert_close(piece.rotate(x, PACKED), expected, "float64")


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("size", "base"), [(4, 100.0), (16, 10_000.0), (64, 500_000.0)])
def test_scaling(name, size, base):
    scaling, expected = SCALINGS[name]
    frequencies, factor = rotary_frequencies(size, base, scaling)
    assert_allclose(frequencies, expected(size, base), rtol=1e-13)
    assert factor == pytest.approx(0.1 * np.log(8) + 1 if "yarn" in name else 1.0, rel=1e-15)


def test_scalings_do_what_they_are_for():
    """The lowest frequency is divided by the factor, the highest stays (but for linear)."""
    plain = ref.frequencies(64)
    for name, (scaling, _) in SCALINGS.items():
        frequencies, _ = rotary_frequencies(64, 10_000.0, scaling)
        factor = (scaling or {"factor": 1.0})["factor"]
        assert frequencies[-1] == pytest.approx(plain[-1] / factor), name
        assert frequencies[0] == pytest.approx(plain[0] / (4 if name == "linear" else 1)), name
        assert (np.diff(frequencies) < 0).all(), name


def test_the_attention_factor_of_yarn(rng, assert_close):
    """It multiplies rotated queries and keys: scores by its square, 1 / t in the paper."""
    x = rng.normal(size=(T, 16))
    frequencies = ref.by_parts(16, 10_000.0, 8, 300, 1, 32)
    expected = (0.1 * np.log(8) + 1) * ref.rotate(x, np.arange(T), frequencies)
    assert_close(rotate(x, np.arange(T), scaling=YARN), expected, "float64")
    plain = rotate(x, np.arange(T), scaling={**YARN, "attention_factor": 1.0})
    assert_close(plain, ref.rotate(x, np.arange(T), frequencies), "float64")


def test_position_interpolation(rng, assert_close):
    """At every fourth position, linear scaling by 4 is as no scaling at every one."""
    x = rng.normal(size=(T, H))
    scaled = rotate(x, 4 * np.arange(T), scaling={"type": "linear", "factor": 4.0})
    assert_close(scaled, to_numpy(rotate(x, np.arange(T))), "float64")


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 100_000),
    st.integers(0, 100_000),
    st.integers(-1000, 100_000),
    st.sampled_from(list(SCALINGS)),
    st.booleans(),
    st.sampled_from([0.5, 1.0]),
)
def test_scores_depend_on_the_difference_only(p, q, shift, scaling, interleaved, fraction):
    piece = RotaryPosition(100.0, fraction, SCALINGS[scaling][0], interleaved)
    rng = np.random.default_rng(p)
    query, key = rng.normal(size=(2, 1, 8)).astype("float32")
    here, there = (
        to_numpy(piece.rotate(query, [p + d])) @ to_numpy(piece.rotate(key, [q + d])).T
        for d in (0, shift)
    )
    assert_allclose(here, there, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(["none", "linear", "ntk", "llama3"]),
    st.booleans(),
)
def test_norms_stay(position, scaling, interleaved):
    x = np.random.default_rng(1).normal(size=(1, 8)).astype("float32")
    piece = RotaryPosition(scaling=SCALINGS[scaling][0], interleaved=interleaved)
    turned = to_numpy(piece.rotate(x, [position]))
    assert_allclose(np.linalg.norm(turned), np.linalg.norm(x), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rotation_far_away(run, rng, dtype, assert_close):
    positions = np.array([0, 2_049, 65_537, 100_000, 1_000_000])
    x, exact = rounded(rng.normal(size=(B, T, H)), dtype)
    expected = ref.rotate(exact, positions, ref.frequencies(H))
    assert_close(run(lambda x: rotate(x, positions), x), expected, dtype)


def test_position_zero_changes_nothing(dtype):
    x = ops.cast(np.linspace(-3, 3, 12).reshape(1, 12), dtype)
    assert np.array_equal(to_numpy(rotate(x, [0])), to_numpy(x))


@pytest.mark.parametrize("interleaved", [False, True])
def test_fraction_leaves_the_rest(rng, interleaved, assert_close):
    x = rng.normal(size=(B, N, T, 16)).astype("float64" if FLOAT64 else "float32")
    piece = RotaryPosition(fraction=0.25, interleaved=interleaved)
    turned = to_numpy(piece.rotate(x, np.arange(T)))
    assert np.array_equal(turned[..., 4:], x[..., 4:])
    expected = ref.rotate(x[..., :4], np.arange(T), ref.frequencies(4), interleaved)
    assert_close(turned[..., :4], expected, "float64")


def test_interleaved_is_an_order_of_features(rng, assert_close):
    x = rng.normal(size=(B, T, H))
    order = np.concatenate([np.arange(0, H, 2), np.arange(1, H, 2)])
    halves = to_numpy(rotate(x[..., order], np.arange(T)))
    pairs = to_numpy(rotate(x, np.arange(T), interleaved=True))
    assert_close(pairs[..., order], halves, "float64")


def test_gradient_of_a_rotation_is_the_rotation_back(run, rng, assert_close):
    x, cotangent = rng.normal(size=(2, B, T, H))

    def gradient(x):
        return differentiate(lambda x: rotate(x, PACKED) * tensor(cotangent), [x])[0]

    assert_close(run(gradient, x), ref.rotate(cotangent, -PACKED, ref.frequencies(H)), "float64")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_sizes_that_are_not_known(rng, jit_compile, interleaved, assert_close):
    @tf.function(
        input_signature=[
            tf.TensorSpec((None, N, None, H), "float64"),
            tf.TensorSpec((None, None), "int32"),
        ],
        jit_compile=jit_compile,
    )
    def function(x, positions):
        return rotate(x, positions, interleaved=interleaved)

    for steps in (1, T):
        x = rng.normal(size=(B, N, steps, H))
        actual = function(tensor(x), tensor(PACKED[:, :steps], "int32"))
        expected = ref.rotate(x, PACKED[:, None, :steps], ref.frequencies(H), interleaved)
        assert_close(actual, expected, "float64")


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_steps_of_positions_do_not_broadcast_in_a_graph():
    function = tf.function(rotate).get_concrete_function(
        tf.TensorSpec((None, None, H)), tf.TensorSpec((None, None), "int32")
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(ops.zeros((2, 3, H)), ops.zeros((2, 1), "int32"))


# Biases.


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 32, 71])
def test_slopes(heads):
    assert alibi_slopes(heads).shape == (heads,)
    assert_allclose(alibi_slopes(heads), ref.slopes(heads), rtol=1e-13)


def test_slopes_that_the_paper_names():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(16) == pytest.approx([2.0 ** (-n / 2) for n in range(1, 17)])
    assert alibi_slopes(12)[8:] == pytest.approx([2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibi(run, heads, assert_close):
    query, key = np.arange(4, 4 + T), np.arange(S)
    actual = run(lambda q, k: ALiBi().bias(q, k, heads), query, key)
    assert_close(actual, ref.alibi(query, key, heads)[None])
    keys = np.stack([key, key - 2])
    packed = run(lambda q, k: ALiBi().bias(q, k, heads), PACKED, keys)
    expected = [ref.alibi(q, k, heads) for q, k in zip(PACKED, keys, strict=True)]
    assert_close(packed, np.stack(expected))


def test_dtypes_of_biases(assert_close):
    assert dtype_of(ALiBi().bias([0, 1], [0], 3)) == "float32"
    exact = ALiBi().bias([0, 100_000], [0], 3, dtype="float64")
    assert_close(exact, ref.alibi([0, 100_000], [0], 3)[None], "float64")
    for policy in ("float32", "mixed_float16", "bfloat16", "float64"):
        bias = RelativeBias(num_heads=2, dtype=policy)(np.arange(3))
        assert dtype_of(bias) == ("float64" if policy == "float64" and FLOAT64 else "float32")


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "furthest"), [(32, 128), (32, 129), (4, 3), (8, 20), (64, 256)]
)
def test_buckets(run, buckets, furthest, bidirectional):
    distance = np.arange(-300, 301)
    actual = run(lambda d: relative_buckets(d, buckets, furthest, bidirectional), distance)
    expected = [ref.bucket(int(d), buckets, furthest, bidirectional) for d in distance]
    assert actual.tolist() == expected
    assert set(actual) <= set(range(buckets))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 500), st.booleans())
def test_buckets_are_ordered(half, extra, bidirectional):
    """Distances further away never have a smaller bucket; the furthest all have the last one."""
    buckets, furthest = 4 * half, 2 * half + extra
    distance = -np.arange(furthest + 9)
    past = to_numpy(relative_buckets(distance, buckets, furthest, bidirectional))
    assert past[0] == 0
    assert (np.diff(past) >= 0).all()
    last = buckets // 2 - 1 if bidirectional else buckets - 1
    assert (past[furthest:] == last).all()
    future = to_numpy(relative_buckets(-distance, buckets, furthest, bidirectional))[1:]
    assert np.array_equal(future, past[1:] + buckets // 2 if bidirectional else 0 * past[1:])


def test_whole_logarithms_are_not_rounded_down():
    """The edges are powers: with E = 8 and D = 128, bucket 8 + j begins at 8 * 2^(j / 2)."""
    edges = [8, 12, 16, 23, 32, 46, 64, 91]
    assert to_numpy(relative_buckets([-n for n in edges])).tolist() == list(range(8, 16))
    before = to_numpy(relative_buckets([1 - n for n in edges])).tolist()
    assert before == list(range(7, 15))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias(run, rng, bidirectional, assert_close):
    piece = RelativeBias(8, 20, bidirectional)
    piece.build(N)
    weight = rng.normal(size=(8, N)).astype("float32")
    piece.set_weights([weight])
    query, key = np.arange(20, 20 + T), np.arange(0, 6 * S, 6)
    expected = ref.relative_bias(query, key, weight, furthest=20, bidirectional=bidirectional)
    assert_close(run(lambda q, k: piece.bias(q, k, N), query, key), expected[None])
    assert_close(run(piece, query, key), expected[None])
    packed = np.stack([
        ref.relative_bias(row, key, weight, furthest=20, bidirectional=bidirectional)
        for row in PACKED
    ])  # fmt: skip
    assert_close(run(lambda q, k: piece.bias(q, k, N), PACKED, key), packed)
    assert_close(run(piece, query), to_numpy(piece(query, query)))


def test_gradient_of_the_relative_bias(run, rng):
    piece = RelativeBias(8, 20, num_heads=N, dtype="float64")
    piece.build()
    query, key = PACKED, np.arange(S)
    cotangent = rng.normal(size=(B, N, T, S))

    def gradient(q, k):
        return differentiate(
            lambda: piece(q, k) ** 2 * tensor(cotangent), variables=piece.variables
        )[0]

    def loss(weight):
        bias = [ref.relative_bias(row, key, weight, furthest=20) for row in query]
        return np.sum(np.stack(bias) ** 2 * cotangent)

    expected = numerical_gradient(loss, piece.get_weights()[0])
    assert_allclose(run(gradient, query, key), expected, rtol=1e-6, atol=1e-8)


def test_relative_bias_in_a_functional_model(tmp_path):
    positions = keras.Input((None,), dtype="int32")
    keys = keras.Input((None,), dtype="int32")
    model = keras.Model([positions, keys], RelativeBias(num_heads=N)(positions, keys))
    assert model.outputs[0].shape == (None, N, None, None)
    inputs = [PACKED, np.zeros((B, S), int) + np.arange(S)]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    before, after = model(inputs), loaded(inputs)
    assert before.shape == (B, N, T, S)
    assert np.array_equal(before, after)
    assert np.ptp(to_numpy(before)) > 0


@keras.saving.register_keras_serializable(package="test_positions")
class Owner(keras.layers.Layer):
    """An attention layer, as far as its positions go."""

    def __init__(self, position=None, **kwargs):
        super().__init__(**kwargs)
        self.position = get_position(position)

    def build(self, shape):
        if isinstance(self.position, RelativeBias) and not self.position.built:
            self.position.build(N)

    def call(self, x):
        positions = keras.ops.arange(x.shape[1])
        if hasattr(self.position, "rotate"):
            return self.position.rotate(x, positions)
        return self.position.bias(positions, positions, N)

    def get_config(self):
        return {**super().get_config(), "position": serialize_position(self.position)}


PIECES = {
    "rotary": lambda: RotaryPosition(500.0, 0.5, YARN, True),
    "alibi": lambda: ALiBi(),
    "relative": lambda: RelativeBias(8, 20, False),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_are_saved_with_their_layer(tmp_path, name, rng):
    for piece in (PIECES[name](), name):
        layer = Owner(piece)
        config = layer.get_config()
        model = keras.Sequential([keras.Input((T, H)), layer])
        assert layer.get_config() == config, "the same before and after building"
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.layers[0].get_config() == config
        x = rng.normal(size=(1, T, H)).astype("float32")
        assert np.array_equal(model(x), loaded(x))
        model.load_weights(tmp_path / "model.keras")


@pytest.mark.parametrize("name", PIECES)
def test_pieces_by_name_and_config(name):
    piece = get_position(name)
    assert type(piece) is type(PIECES[name]())
    assert get_position(name) is not piece, "a layer's own"
    assert get_position(piece) is piece
    for made in (piece, PIECES[name]()):
        again = get_position(serialize_position(made))
        assert type(again) is type(made)
        assert serialize_position(again) == serialize_position(made)
    assert get_position(None) is serialize_position(None) is None


def test_mixed_precision_keeps_the_bias_in_float32():
    """Inside a float16 layer too, where Keras casts the variables that are read."""
    layer = Owner("relative", dtype="mixed_float16")
    bias = layer(np.ones((1, T, H), "float16"))
    assert dtype_of(bias) == "float32"
    assert dtype_of(layer.position.weight) == "float32"


# Bad input.


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: rotate(np.ones((T, 7)), range(T)), "7 rotated features, head size 7"),
        (lambda: rotate(np.ones((T, 8)), range(T), size=10), "10 rotated.*size 8"),
        (lambda: RotaryPosition(fraction=0.5).rotate(np.ones((T, 6)), range(T)), "3 .*size 6"),
        (lambda: rotate(np.ones((T, 8)), range(4)), r"T = 5.*\(4,\)"),
        (lambda: rotate(np.ones((T, 8)), PACKED), r"\[T\].*\(5, 8\).*\(2, 5\)"),
        (lambda: rotate(np.ones((3, T, 8)), PACKED), r"\(3, 5, 8\).*\(2, 5\)"),
        (lambda: rotate(np.ones((B, T, 8)), [[0], [1]]), r"T = 5.*\(2, 1\)"),
        (lambda: rotate(np.ones((T, 8)), np.arange(5.0)), "`positions` must be integers"),
        (lambda: rotate(np.ones((T, 8)), range(T), base=-1.0), "`base` must be a positive"),
        (lambda: rotate(np.ones((T, 8)), range(T), interleaved=1), "`interleaved`"),
        (lambda: RotaryPosition(base=-10_000.0), "`base` must be a positive number.*-10000"),
        (lambda: RotaryPosition(base=float("nan")), "`base`"),
        (lambda: RotaryPosition(fraction=0), r"`fraction` must lie in \(0, 1\].*0"),
        (lambda: RotaryPosition(fraction=1.5), "`fraction`"),
        (lambda: RotaryPosition(scaling="linear"), "`scaling` must be None or a dictionary"),
        (lambda: RotaryPosition(scaling={"type": "log"}), "'linear', 'ntk', 'yarn', 'llama3'"),
        (lambda: RotaryPosition(scaling={"type": "linear"}), "needs factor"),
        (lambda: RotaryPosition(scaling={"type": "ntk", "factor": 0}), r'scaling\["factor"\]'),
        (lambda: RotaryPosition(scaling={**LLAMA, "beta": 3}), "takes factor, original_length"),
        (lambda: RotaryPosition(scaling={**LLAMA, "low": 9.0}), "less than.*9.0 and 4.0"),
        (lambda: RotaryPosition(scaling={**YARN, "ramp": "r"}), '"rotations" or "index"'),
        (lambda: sinusoidal_encoding([0.5], 4), "`positions` must be integers.*float32"),
        (lambda: sinusoidal_encoding([0], 0), "`size` must be a positive integer"),
        (lambda: sinusoidal_encoding([0], 4, base=0), "`base`"),
        (lambda: alibi_slopes(0), "`num_heads` must be a positive integer. Received: 0"),
        (lambda: ALiBi().bias([0.0], [0], 2), "`query_positions` must be integers"),
        (lambda: ALiBi().bias([0], [[[0]]], 2), r"`key_positions` must have shape.*\(1, 1, 1\)"),
        (lambda: relative_buckets([1.0]), "`distance` must be integers"),
        (lambda: RelativeBias(7), "`num_buckets`.*even.*7"),
        (lambda: RelativeBias(1, bidirectional=False), "`num_buckets` must be at least 2"),
        (lambda: RelativeBias(32, 8), "`max_distance` must be larger than 8.*32.*8"),
        (lambda: RelativeBias(num_heads=-2), "`num_heads` must be a positive integer"),
        (lambda: RelativeBias()(np.arange(2)), "`num_heads` must be given"),
        (lambda: RelativeBias(num_heads=4).build(8), "is 4.*8 heads"),
        (lambda: get_position("rope"), "'rotary', 'alibi', 'relative'.*'rope'"),
        (lambda: get_position(RotaryPosition), "`position` must be None"),
        (lambda: get_position(3), "`position`.*3"),
    ],
)  # fmt: skip
def test_bad_input(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


def test_a_bias_of_other_heads():
    piece = RelativeBias()
    piece.build(4)
    with pytest.raises(ValueError, match="is 4.*2 heads"):
        piece.bias([0], [0], 2)
