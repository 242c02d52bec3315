"""Token embeddings: sqrt(D) E_y one way, E h the other."""

import keras
import numpy as np
import pytest
from backend import assert_allclose, differentiate, dtype_of, tensor, to_numpy
from conftest import assert_gradients, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention import TokenEmbedding

V, D, B, T = 13, 6, 2, 5
IDS = np.array([[3, 1, 12, 0, 0], [5, 5, 2, 7, 0]])


def built(output_size=None, **options):
    layer = TokenEmbedding(V, D, output_size, **options)
    layer.build()
    layer.embeddings.assign(np.random.default_rng(3).normal(size=(V, D)))
    return layer


def table_of(layer):
    """E in float64, as the layer computes with it."""
    return rounded(layer.embeddings, layer.compute_dtype)[1]


def test_embeddings(run, dtype, assert_close):
    layer = built(dtype=dtype)
    expected = np.zeros((B, T, D))
    for b, t in np.ndindex(B, T):
        expected[b, t] = np.sqrt(D) * table_of(layer)[IDS[b, t]]
    assert_close(run(layer, IDS), expected, dtype)
    assert dtype_of(layer(IDS)) == dtype


@pytest.mark.parametrize("output_size", [None, 7])
def test_logits(run, rng, dtype, output_size, assert_close):
    layer = built(output_size, dtype=dtype)
    hidden, exact = rounded(rng.normal(size=(B, T, D)), dtype)
    expected = np.zeros((B, T, output_size or V))
    for b, t, y in np.ndindex(*expected.shape):
        expected[b, t, y] = table_of(layer)[y] @ exact[b, t]
    assert_close(run(lambda h: layer(h, reverse=True), hidden), expected, dtype)


def test_one_step_and_other_dtypes_of_ids(assert_close):
    layer = built()
    expected = np.sqrt(D) * table_of(layer)[IDS]
    for dtype in ("int32", "int64", "uint8", "int16"):
        assert_close(layer(IDS.astype(dtype)), expected)
    assert_close(layer(IDS[:, 0]), expected[:, 0])
    assert_close(layer(layer(IDS[:, 0]), reverse=True), expected[:, 0] @ table_of(layer).T)
    assert layer(IDS[:0]).shape == (0, T, D) and layer(IDS[:, :0]).shape == (B, 0, D)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_sizes(size, units, data):
    output_size = data.draw(st.integers(1, size))
    layer = TokenEmbedding(size, units, output_size)
    ids = np.arange(size)
    embedded = layer(ids)
    assert embedded.shape == (size, units)
    logits = layer(embedded, reverse=True)
    assert logits.shape == (size, output_size)
    table = to_numpy(layer.embeddings.value).astype("float64")
    wanted = np.sqrt(units) * table @ table[:output_size].T
    assert_allclose(logits, wanted, rtol=1e-4, atol=1e-5)


def test_both_ways_have_about_unit_size():
    """E starts with standard deviation 1 / sqrt(D)."""
    layer = TokenEmbedding(400, 100)
    embedded = to_numpy(layer(np.arange(400)))
    assert np.std(embedded) == pytest.approx(1.0, rel=0.05)
    hidden = np.random.default_rng(0).normal(size=(400, 100)).astype("float32")
    assert np.std(layer(hidden, reverse=True)) == pytest.approx(1.0, rel=0.05)


def test_the_mask_hides_id_0():
    layer = built()
    assert np.array_equal(layer(IDS)._keras_mask, IDS != 0)
    x = layer(IDS)
    assert np.array_equal(layer(x, reverse=True)._keras_mask, IDS != 0)  # it goes on to the loss
    assert getattr(layer(np.ones((B, T, D), "float32"), reverse=True), "_keras_mask", None) is None
    assert np.array_equal(layer.compute_mask(tensor(IDS)), IDS != 0)


def test_gradient_of_the_tied_weights(rng):
    """Both uses of one matrix add up."""
    layer = built(7, dtype="float64")
    weight = rng.normal(size=(B, T, 7))

    def loss():
        return ops.sum(layer(layer(IDS), reverse=True) * tensor(weight))

    assert_gradients(loss, [layer.embeddings], 1e-6)
    (found,) = to_numpy(differentiate(loss, variables=[layer.embeddings]))
    assert np.all(found[[4, 6]] != 0) and np.all(found[[8, 9]] == 0)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    layer = built(dtype=policy)
    x = layer(IDS)
    assert dtype_of(x) == layer.compute_dtype == dtype_of(layer(x, reverse=True))
    assert dtype_of(layer.embeddings) == "float32"
    (gradient,) = differentiate(
        lambda: ops.cast(layer(layer(IDS), reverse=True), "float32"), variables=[layer.embeddings]
    )
    assert dtype_of(gradient) == "float32" and np.all(np.isfinite(to_numpy(gradient)))


def model_of(layer):
    ids = keras.Input((None,), dtype="int32")
    x = layer(ids)
    hidden = keras.layers.Dense(D, name="hidden")(x)
    return keras.Model(ids, layer(hidden, reverse=True))


def test_in_a_functional_model(tmp_path, assert_close):
    """Called both ways, of unknown sizes; saved, loaded, cloned, trained."""
    layer = TokenEmbedding(V, D, 7)
    config = layer.get_config()
    model = model_of(layer)
    assert layer.get_config() == config
    assert model.output.shape == (None, None, 7) and len(model.weights) == 3
    assert TokenEmbedding.from_config(config).get_config() == config
    expected = to_numpy(model(IDS))
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(IDS), expected)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_close(clone(IDS), expected)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True), jit_compile=True)
    before = to_numpy(layer.embeddings.value)
    model.fit(IDS, IDS % 7, epochs=1, verbose=0)
    after = to_numpy(layer.embeddings.value)
    assert np.all(np.isfinite(after)) and np.any(after != before)


@pytest.mark.parametrize("name", ["size", "units", "output_size"])
@pytest.mark.parametrize("value", [0, -3, 2.5, True, "4"])
def test_sizes_must_be_positive_integers(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
        TokenEmbedding(**{"size": V, "units": D, name: value})


def test_bad_input():
    layer = built()
    with pytest.raises(ValueError, match=r"(?s)`output_size`.*at most `size`, 13.*14"):
        TokenEmbedding(V, D, 14)
    for wrong in (IDS.astype("float32"), IDS > 0):
        with pytest.raises(ValueError, match="(?s)`inputs` must be integers"):
            layer(wrong)
    with pytest.raises(ValueError, match=r"(?s)6 features.*\(2, 5, 7\)"):
        layer(np.zeros((B, T, 7), "float32"), reverse=True)
    with pytest.raises(ValueError, match=r"(?s)6 features"):
        layer(keras.Input((T, 7)), reverse=True)


# In 8 bits.


def in_8_bits(layer):
    """The layer quantised, and E as it is then, in float64."""
    scale = 127 / np.abs(np.asarray(layer.embeddings)).max(-1, keepdims=True)
    table = np.rint(np.asarray(layer.embeddings, "float64") * scale)
    layer.quantize("int8")
    assert [weight.dtype for weight in layer.weights] == ["int8", "float32"]
    assert_allclose(np.asarray(layer.embeddings, "float64"), table, atol=1)
    return np.asarray(layer.embeddings, "float64") / np.asarray(layer.embeddings_scale)[:, None]


@pytest.mark.parametrize("output_size", [None, 7])
def test_in_8_bits(run, rng, output_size, assert_close):
    layer = built(output_size)
    exact = np.asarray(layer.embeddings, "float64")
    table = in_8_bits(layer)
    assert_allclose(table, exact, atol=np.abs(exact).max() / 127)
    assert_close(run(layer, IDS), np.sqrt(D) * table[IDS])
    # Inputs of logits are rounded too; these are in 8 bits already.
    steps = rng.integers(-127, 128, (B, T, D))
    steps[..., 0] = 127
    hidden = (steps / 127 * 3).astype("float32")
    logits = run(lambda h: layer(h, reverse=True), hidden)
    assert_allclose(logits, hidden @ table[:output_size].T, atol=1e-4)
    assert to_numpy(layer.compute_mask(tensor(IDS))).tolist() == (IDS != 0).tolist()


def test_in_8_bits_the_inputs_can_stay_as_they_are(rng, assert_close):
    layer, hidden = built(), rng.normal(size=(B, D)).astype("float32")
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    layer.quantize("int8", config=config)
    table = np.asarray(layer.embeddings, "float64") / np.asarray(layer.embeddings_scale)[:, None]
    assert_allclose(layer(hidden, reverse=True), hidden @ table.T, rtol=1e-5, atol=1e-5)


def test_in_8_bits_it_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    layer = TokenEmbedding(V, D, 7)
    model = keras.Model(inputs, layer(layer(inputs), reverse=True))
    model.quantize("int8")
    expected = model(IDS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), expected)
    assert [weight.dtype for weight in loaded.weights] == ["int8", "float32"]


def test_other_modes_leave_it_as_it_is():
    layer = built()
    with pytest.raises(NotImplementedError, match="int8 only, not 'int4'"):
        layer.quantize("int4")
    assert [weight.dtype for weight in layer.weights] == ["float32"]
    with pytest.raises(ValueError, match="D|features"):
        in_8_bits(layer)
        layer(np.zeros((2, D + 1), "float32"), reverse=True)
