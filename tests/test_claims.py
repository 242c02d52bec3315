"""What the README says of Keras's layers and of ours, side by side.

When a Keras release fixes its half, the test of that half fails and the README has to change.
"""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention


def identity(layer_class, size, **kwargs):
    """One head, no bias, all projections the identity: softmax(q k^T / sqrt(d)) v."""
    layer = layer_class(1, size, use_bias=False, **kwargs)
    layer.build((None, None, size), (None, None, size))
    eye = np.eye(size)
    layer.set_weights([eye[:, None], eye[:, None], eye[:, None], eye[None]])
    return layer


@pytest.fixture(params=[keras.layers.MultiHeadAttention, MultiHeadAttention], ids=["keras", "ours"])
def both(request):
    return request.param, request.param is MultiHeadAttention


def test_two_layers_read_one_masked_tensor(both):
    layer_class, ours = both
    embedding = keras.layers.Embedding(3, 2, mask_zero=True)
    embedding.build(None)
    embedding.set_weights([np.array([[5.0, 5], [1, 0], [0, 1]])])
    query = keras.ops.convert_to_tensor([[[1.0, 0.0]]])
    memory = embedding(np.array([[1, 2, 0, 0]]))
    results = [np.array(identity(layer_class, 2)(query, memory)) for _ in range(2)]
    right = [[[0.669762, 0.330238]]]
    np.testing.assert_allclose(results[0], right, rtol=1e-5)
    assert np.allclose(results[1], right, rtol=1e-5) == ours
    assert (getattr(memory, "_keras_mask", None) is not None) == ours


def test_explicit_query_mask(both):
    layer_class, ours = both
    x = keras.ops.convert_to_tensor([[[1.0, 0], [0, 1], [1, 1]]])
    mask = np.array([[True, True, False]])
    output, weights = identity(layer_class, 2)(x, x, query_mask=mask, return_attention_scores=True)
    assert (not np.any(output[0, 2]) and not np.any(weights[0, 0, 2])) == ours
    assert np.any(output[0, :2])


def test_row_that_may_attend_to_nothing(both):
    layer_class, ours = both
    query, memory = np.array([[[1.0, 0], [0, 1]]]), np.array([[[1.0, 2], [3, 5], [5, 9]]])
    mask = np.array([[[True, True, False], [False] * 3]])
    layer = identity(layer_class, 2)
    alone = np.array(layer(query, memory, attention_mask=mask))
    with_weights, _ = layer(query, memory, attention_mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(alone[0, 0], [2.608859, 4.413289], rtol=1e-5)
    np.testing.assert_array_equal(with_weights[0, 1], 0)
    assert (not np.any(alone[0, 1])) == ours


def test_large_float16_numbers(both):
    layer_class, ours = both
    query = np.full((1, 1, 64), 40.0)
    memory = np.stack([np.full(64, 40.0), np.full(64, 39.0), np.full(64, -1.0)])[None]
    output = np.array(identity(layer_class, 64, dtype="mixed_float16")(query, memory))
    assert (np.all(output == 40)) == ours
    assert (np.all(np.isnan(output))) != ours


def test_nan_behind_a_mask(both):
    layer_class, ours = both
    query = np.array([[[1.0, 0], [0, 1]]])
    memory = np.array([[[1.0, 2], [3, 5], [np.nan, np.inf]]])
    output = np.array(
        identity(layer_class, 2)(query, memory, value_mask=np.array([[True, True, False]]))
    )
    right = [[[2.608859, 4.413289], [2.785916, 4.678875]]]
    assert np.allclose(output, right, rtol=1e-5) == ours
    assert np.all(np.isnan(output)) != ours


def test_additive_attention_of_keras_has_no_projections():
    layer = keras.layers.AdditiveAttention()
    layer.build([(None, 3, 8), (None, 5, 8)])
    assert [tuple(weight.shape) for weight in layer.weights] == [(8,)]
