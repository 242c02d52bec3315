"""Products over leading axes, where TensorFlow's own matmul crashes or is wrong."""

import pytest
from backend import assert_allclose

from keras_attention.products import batch_matmul, vector_product


@pytest.mark.parametrize(
    "a_shape, b_shape",
    [
        ((8, 1, 5, 4), (1, 1, 4, 3)),  # crashes or is wrong in tf.matmul
        ((8, 1, 5, 4), (1, 1, 4, 1)),
        ((8, 1, 5, 4), (4, 3)),
        ((8, 2, 3, 5, 4), (8, 2, 1, 4, 3)),
        ((1, 1, 5, 4), (8, 1, 4, 3)),
        ((5, 4), (4, 3)),
        ((8, 5, 1), (1, 3)),
        ((1, 5, 4), (1, 4, 3)),
        ((0, 1, 5, 4), (1, 1, 4, 3)),
        ((8, 1, 5, 0), (1, 1, 0, 3)),
    ],
)
def test_batch_matmul(a_shape, b_shape, run, rng):
    a, b = rng.normal(size=a_shape), rng.normal(size=b_shape)
    for _ in range(5):  # what is wrong is so at random
        assert_allclose(run(batch_matmul, a, b), a @ b, atol=1e-12)


def test_vector_product(rng):
    a, v = rng.normal(size=(2, 3, 5, 7)), rng.normal(size=7)
    assert_allclose(vector_product(a, v), a @ v, atol=1e-12)
