"""The additive score in tiles, with its gradient: no tensor `[..., T, S, U]`."""

import tensorflow as tf

from keras_attention.blockwise.cut import Cut, divide, loop

ELEMENTS = 1 << 19  # numbers in the hidden layer of a tile: 2 MB of float32


class Tiles(Cut):
    """As `Cut`: a tile is some rows of L with all queries, or one row with some of its queries."""

    def __init__(self, query, key):
        super().__init__(query, key, causal=False, window=None)

    def _choose(self):
        size = tf.maximum(1, self.key_steps * self.features)
        self.parts, self.queries = divide(self.steps, ELEMENTS // size)
        self.groups, self.rows = divide(self.size, ELEMENTS // (size * self.queries))


def additive_scores(query, key, v):
    """v^T tanh(query + key) of each pair, in tiles.

    Appendix A.1.2 of [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473).

    Args:
        query: `[..., T, U]`, floating, U known.
        key: `[..., S, U]`.
        v: `[U]`.

    Returns:
        Scores `[..., T, S]`.
    """
    cut = Tiles(query, key)
    work = _Additive(cut, query.dtype)

    @tf.custom_gradient
    def run(*inputs):
        return work.forward(*inputs), lambda upstream: work.backward(*inputs, upstream)

    rows = tf.reshape(query, (cut.size, 1, cut.steps, cut.features))
    columns = tf.reshape(key, (cut.size, cut.key_steps, cut.features))
    return tf.reshape(run(rows, columns, v), (*cut.lead, cut.steps, cut.key_steps))


traced_additive_scores = tf.function(additive_scores, autograph=False)


class _Additive:
    """Forward and backward of queries `[L, 1, T, U]` and keys `[L, S, U]`."""

    def __init__(self, cut, dtype):
        self.cut, self.dtype = cut, dtype
        self.sums = tf.float64 if dtype == tf.float64 else tf.float32

    def forward(self, query, key, v):
        cut = self.cut
        query, key = cut.fill(query), cut.fill_rows(key)

        def of_rows(i, scores):
            keys = cut.rows_of(key, i)

            def of_queries(j, scores):
                block = cut.block(i, j)
                hidden = self._hidden(query, keys, block)
                products = tf.matmul(tf.reshape(hidden, (-1, cut.features)), v[:, None])
                products = tf.reshape(products, (block.rows, block.queries, cut.key_steps))
                return (scores.write(i * cut.parts + j, products),)

            return loop(cut.parts, of_queries, (scores,))

        scores = tf.TensorArray(self.dtype, cut.groups * cut.parts)
        (scores,) = loop(cut.groups, of_rows, (scores,))
        return cut.join(scores, cut.key_steps)

    def backward(self, query, key, v, upstream):
        cut, units = self.cut, self.cut.features
        query, key, upstream = cut.fill(query), cut.fill_rows(key), cut.fill(upstream)

        def of_rows(i, query_array, key_array, v_sum):
            keys = cut.rows_of(key, i)

            def of_queries(j, array, key_sum, v_sum):
                block = cut.block(i, j)
                hidden = self._hidden(query, keys, block)
                change = cut.queries_of(upstream, block)
                for_v = tf.matmul(tf.reshape(change, (1, -1)), tf.reshape(hidden, (-1, units)))
                change = tf.raw_ops.TanhGrad(y=hidden, dy=change[..., None] * v)
                return (
                    array.write(i * cut.parts + j, tf.reduce_sum(change, 2)),
                    key_sum + tf.cast(tf.reduce_sum(change, 1), self.sums),
                    v_sum + tf.cast(for_v[0], self.sums),
                )

            zeros = tf.zeros((cut.rows, cut.key_steps, units), self.sums)
            query_array, key_sum, v_sum = loop(cut.parts, of_queries, (query_array, zeros, v_sum))
            return query_array, key_array.write(i, key_sum), v_sum

        arrays = (
            tf.TensorArray(self.dtype, cut.groups * cut.parts),
            tf.TensorArray(self.sums, cut.groups),
        )
        zeros = tf.zeros(v.shape, self.sums)
        query_array, key_array, v_sum = loop(cut.groups, of_rows, (*arrays, zeros))
        gradients = cut.join(query_array, units), cut.join_rows(key_array, units), v_sum
        return [tf.cast(x, self.dtype) for x in gradients]

    def _hidden(self, query, keys, block):
        """tanh(query + key) of a tile, `[g, t, S, U]`."""
        steps = self.cut.queries_of(query, block)
        return tf.tanh(tf.expand_dims(steps, 2) + tf.expand_dims(keys, 1))
