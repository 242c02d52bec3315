"""Pooling over real steps against the reference, and what padding must not do."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops
from reference_pooling import pooled

from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.pooling import MODES, MaskedPooling

B, S, D = 5, 7, 3
# Padding on the right, on the left and in between; nothing real; everything real.
MASK = np.array(
    [[1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 0, 0], [0] * 7, [1] * 7], bool
)


@pytest.fixture(params=MODES)
def mode_of_pooling(request):
    return request.param


def test_against_the_reference(mode_of_pooling, run, rng, dtype, assert_close):
    x, exact = rounded(rng.normal(size=(B, S, D)), dtype)
    layer = MaskedPooling(mode_of_pooling, dtype=dtype)
    actual = run(lambda x, mask: layer(x, mask=mask), x, MASK)
    assert_close(actual, pooled(exact, MASK, mode_of_pooling), dtype)
    everything = np.ones((B, S), bool)
    assert_close(run(layer, x), pooled(exact, everything, mode_of_pooling), dtype)
    assert dtype_of(layer(x, mask=MASK)) == dtype


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
def test_empty_and_single_axes(mode_of_pooling, run, shape):
    x, layer = np.ones(shape, "float32"), MaskedPooling(mode_of_pooling)
    expected = pooled(x, np.ones(shape[:2]), mode_of_pooling)
    np.testing.assert_array_equal(run(layer, x), expected)
    np.testing.assert_array_equal(
        run(lambda x, mask: layer(x, mask=mask), x, np.ones(shape[:2], bool)), expected
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_padding_reaches_neither_output_nor_gradient(mode_of_pooling, run, rng, bad):
    clean = rng.normal(size=(B, S, D)).astype("float32")
    spoiled = np.where(MASK[..., None], clean, np.float32(bad))
    cotangent = rng.normal(size=(B, D)).astype("float32")
    layer = MaskedPooling(mode_of_pooling)

    def output_and_gradient(x, mask):
        gradient = differentiate(lambda x: layer(x, mask=mask) * tensor(cotangent), [x])[0]
        return layer(x, mask=mask), gradient

    right, wrong = (run(output_and_gradient, x, MASK) for x in (clean, spoiled))
    for a, b in zip(right, wrong, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (right[0][3] == 0).all() and np.isfinite(right[1]).all()
    assert (right[1][~MASK] == 0).all()


def test_gradient(mode_of_pooling, rng):
    x, cotangent = rng.normal(size=(B, S, D)), rng.normal(size=(B, D))
    layer = MaskedPooling(mode_of_pooling, dtype="float64")
    (gradient,) = to_numpy(differentiate(lambda x: layer(x, mask=MASK) * tensor(cotangent), [x]))
    expected = numerical_gradient(lambda x: np.sum(pooled(x, MASK, mode_of_pooling) * cotangent), x)
    assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_means_in_half_precision(dtype):
    """The sum of the steps, 9000 * 20, is above what float16 can hold, and 9000 terms of equal
    size cannot be added up in 8 bits."""
    x = np.full((1, 9000, 2), 20.0)
    x[:, ::2, 1] = 10.0
    output = to_numpy(MaskedPooling("mean", dtype=dtype)(ops.cast(x, dtype)))
    np.testing.assert_array_equal(output, [[20.0, 15.0]])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MODES),
    hnp.arrays("float64", (2, 4, 2), elements=st.floats(-9, 9)),
    hnp.arrays(bool, (2, 4)),
    st.integers(0, 3),
)
def test_masked_equals_removed(mode, x, mask, more):
    """However much padding there is, and on which side."""
    layer = MaskedPooling(mode, dtype="float64")
    output = to_numpy(layer(x, mask=mask))
    for sample in range(2):
        real = x[sample][mask[sample]][None]
        removed = layer(real) if real.size else np.zeros((1, 2))
        assert_allclose(output[sample], to_numpy(removed)[0], rtol=1e-14, atol=1e-14)
    for widths in ((0, more), (more, 0)):
        wider = np.pad(x, ((0, 0), widths, (0, 0)), constant_values=99.0)
        assert_allclose(
            to_numpy(layer(wider, mask=np.pad(mask, ((0, 0), widths)))), output, atol=1e-13
        )


# Masks


def test_keras_masks_and_explicit_masks(mode_of_pooling, rng):
    ids = np.array([[3, 1, 0, 0], [0, 0, 2, 1], [0, 0, 0, 0]])
    embedding, layer = keras.layers.Embedding(4, D, mask_zero=True), MaskedPooling(mode_of_pooling)
    x = embedding(ids)
    output = layer(x)
    assert_allclose(
        output, pooled(np.asarray(x, "float64"), ids != 0, mode_of_pooling), rtol=1e-6, atol=1e-7
    )
    assert getattr(output, "_keras_mask", None) is None
    other = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    expected = pooled(np.asarray(x, "float64"), other, mode_of_pooling)
    for mask in (other, other.astype(bool), other.tolist(), tuple(map(tuple, other))):
        assert_allclose(layer(x, mask=np.array(mask)), expected, rtol=1e-6, atol=1e-7)
    assert x._keras_mask is not None, "the caller's tensor has lost its mask"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode_of_pooling", "policy"),
    [*((mode, "float32") for mode in MODES), ("mean", "mixed_float16"), ("max", "mixed_bfloat16")],
    indirect=["mode_of_pooling"],
)
def test_an_empty_sample_in_a_model(mode_of_pooling, policy):
    """Embedding, attention, pooling, logits; one step of fit (keras#18152)."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(3, 4, mask_zero=True, dtype=policy)(ids)
    x = MultiHeadAttention(2, 3, dtype=policy)(x)
    vector = MaskedPooling(mode_of_pooling, dtype=policy)(x)
    model = keras.Model(ids, keras.layers.Dense(1, dtype="float32")(vector))
    array = np.array([[0, 0, 0], [1, 2, 0]])
    inner = keras.Model(ids, vector)
    assert inner.output_shape == (None, 4)
    np.testing.assert_array_equal(to_numpy(inner(array))[0], np.zeros(4))
    assert_allclose(  # padding changes nothing
        to_numpy(inner(np.array([[1, 2]]))), to_numpy(inner(array))[1:], rtol=1e-2, atol=1e-3
    )
    model.compile("adam", "mse", jit_compile=False)
    assert np.isfinite(model.fit(array, np.ones((2, 1)), verbose=0).history["loss"][0])
    assert all(np.isfinite(to_numpy(w)).all() for w in model.weights)


# As a Keras layer


def test_saving_and_copying(mode_of_pooling, rng, tmp_path):
    inputs, mask = keras.Input((None, D)), keras.Input((None,), dtype="bool")
    model = keras.Model([inputs, mask], MaskedPooling(mode_of_pooling)(inputs, mask=mask))
    arrays = [rng.normal(size=(B, S, D)).astype("float32"), MASK]
    expected = model(arrays)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for same in (loaded, copy.deepcopy(model), keras.models.clone_model(model)):
        np.testing.assert_array_equal(same(arrays), expected)
    layer = MaskedPooling(mode_of_pooling, name="pool")
    assert MaskedPooling.from_config(layer.get_config()).get_config() == layer.get_config()


def test_one_layer_at_several_lengths_and_in_time_distributed(rng, mode_of_pooling):
    layer = MaskedPooling(mode_of_pooling)
    for shape in ((2, 3, 4), (5, 1, 2), (1, 8, 3)):
        x = rng.normal(size=shape).astype("float32")
        expected = pooled(x.astype("float64"), np.ones(shape[:2]), mode_of_pooling)
        assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)
    sentences = rng.normal(size=(2, 3, 4, 5)).astype("float32")
    together = keras.layers.TimeDistributed(layer)(sentences)
    for i in range(3):
        assert_allclose(together[:, i], layer(sentences[:, i]), rtol=1e-6)


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_unknown_sizes_are_checked_when_they_are_known():
    layer = MaskedPooling()
    specs = [tf.TensorSpec([None, None, D]), tf.TensorSpec([None, None], "bool")]
    function = tf.function(lambda x, mask: layer(x, mask=mask), input_signature=specs)
    assert function(np.ones((2, 3, D), "float32"), np.ones((2, 3), bool)).shape == (2, D)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(np.ones((2, 3, D), "float32"), np.ones((2, 1), bool))


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("`mode` must be one of 'mean', 'max'.*Received: 'avg'", lambda: MaskedPooling("avg")),
        ("`mode` must be one of", lambda: MaskedPooling(None)),
        (r"\[B, S, D\]. Received shape \(2, 3\)", lambda: MaskedPooling()(np.ones((2, 3)))),
        (r"Received shape \(2, 3, 4, 5\)", lambda: MaskedPooling()(np.ones((2, 3, 4, 5)))),
        ("`inputs` must be floating", lambda: MaskedPooling()(np.ones((2, 3, 4), int))),
        (
            r"`mask` must have shape \(2, 3\). Received shape \(2, 1\)",
            lambda: MaskedPooling()(np.ones((2, 3, 4)), mask=np.ones((2, 1), bool)),
        ),
        (
            "`mask` must be boolean",
            lambda: MaskedPooling()(np.ones((2, 3, 4)), mask=np.ones((2, 3))),
        ),
        (
            r"\[B, S, D\]. Received shape \(None, 3\)",
            lambda: MaskedPooling().compute_output_shape((None, 3)),
        ),
    ],
)
def test_errors(message, make):
    with pytest.raises(ValueError, match=message):
        make()
