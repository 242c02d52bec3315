"""Scaled dot-product attention in blocks, with its gradient."""

import tensorflow as tf

from keras_attention.blockwise.band import MASKED, Band
from keras_attention.blockwise.cut import Cut, loop, product
from keras_attention.blockwise.piece import piece_of, spans_of
from keras_attention.pairs import Pairs

NO_PAIRS = Pairs()


def dot_attention(query, key, value, scale, soft_cap=None, pairs=NO_PAIRS, dropout=0.0, seed=None):
    """dropout(softmax(scale query key^T + bias)) value, block by block.

    Equation 1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

    Args:
        query: `[..., T, D]`, float32, float64 or bfloat16, T at least 1.
        key: `[..., S, D]`, S at least 1; the last of the leading axes may be 1, for a group.
        value: `[..., S, Dv]`, leading axes as of `key`.
        scale: a number.
        soft_cap: None, or c: scores are c tanh(scores / c), before the bias.
        pairs: `Pairs` of the scores. Hidden keys and values, and the bias, are finite.
        dropout: the fraction of weights dropped.
        seed: integers `[2]` for the dropout.

    Returns:
        `[..., T, Dv]`, 0 for queries that may attend to nothing.
    """
    cut = Cut(query, key, pairs.causal, pairs.window)
    pairs = pairs._replace(sizes=(cut.steps, cut.key_steps)).map(lambda x: _to_rank(x, query))
    work = _Dot(cut, pairs, query.dtype, soft_cap, dropout, seed)

    @tf.custom_gradient
    def run(*inputs):
        output = work.forward(*inputs)
        return output, lambda upstream: work.backward(*inputs, output, upstream)

    features, value_features = query.shape[-1], value.shape[-1]
    inputs = [
        tf.reshape(query * tf.constant(scale, query.dtype), (cut.size, cut.group, -1, features)),
        tf.reshape(key, (cut.size, -1, features)),
        tf.reshape(value, (cut.size, -1, value_features)),
    ]
    if work.bias is not None:
        inputs.append(work.bias.values)
    return tf.reshape(run(*inputs), (*cut.lead, cut.steps, value_features))


traced_dot_attention = tf.function(dot_attention, autograph=False)


class _Dot:
    """Forward and backward of queries `[L, n, T, D]`, scaled, and keys and values `[L, S, D]`."""

    def __init__(self, cut, pairs, dtype, soft_cap, dropout, seed):
        self.cut, self.dtype = cut, dtype
        self.soft_cap, self.dropout, self.seed = soft_cap, dropout, seed
        self.sums = tf.float64 if dtype == tf.float64 else tf.float32
        keys = piece_of(pairs.columns, cut)
        # The mask of keys rides in the product with the query, where that is all that there is.
        rides = keys is not None and soft_cap is None and keys.values.shape[1] == 1
        self.column = keys if rides else None
        mask = piece_of(pairs.mask, cut)
        self.masks = [x for x in (None if self.column else keys, mask) if x is not None]
        if mask is not None and not cut.fixed:  # packed documents, say, are blocks of their own
            cut.narrow(spans_of(mask, cut))
        self.bias, self.slopes = piece_of(pairs.bias, cut), piece_of(pairs.slopes, cut)
        self.band = Band(cut, self.sums)
        self.attending = pairs.queries()
        if self.attending is not None:
            rows = tf.broadcast_to(self.attending, (*cut.lead, cut.steps, 1))
            self.attending = tf.reshape(rows, (cut.size, cut.group, cut.steps, 1))

    def forward(self, query, key, value, bias=None):
        cut = self.cut
        query, key = self._prepared(query, key)
        value = cut.fill_rows(value)

        def of_rows(i, outputs):
            keys, values = cut.rows_of(key, i), cut.rows_of(value, i)

            def of_queries(j, outputs):
                block = cut.block(i, j)
                weights, _ = self._weights(
                    cut.queries_of(query, block), cut.keys_of(keys, block), block
                )
                if self.dropout:
                    weights *= self._kept(block, i, j)
                context = tf.matmul(self._matrix(weights, block), cut.keys_of(values, block))
                return (outputs.write(i * cut.parts + j, context),)

            return loop(cut.parts, of_queries, (outputs,))

        outputs = tf.TensorArray(self.dtype, cut.groups * cut.parts)
        (outputs,) = loop(cut.groups, of_rows, (outputs,))
        return self._seen(cut.join(outputs, value.shape[-1]))

    def backward(self, query, key, value, *rest):
        *bias, output, upstream = rest
        cut, features, value_features = self.cut, query.shape[-1], value.shape[-1]
        query, key = self._prepared(query, key)
        upstream = self._seen(upstream)
        # What the gradient of a softmax subtracts, the sum over a row of weights times their
        # gradients, is output times upstream: as one more feature it rides in the product.
        less = tf.reduce_sum(upstream * output, -1, keepdims=True)
        upstream = cut.fill(tf.concat([upstream, -less], -1))
        value = cut.fill_rows(tf.concat([value, tf.ones_like(value[..., :1])], -1))

        def of_rows(i, query_array, key_array, value_array, *bias_sum):
            keys, values = cut.rows_of(key, i), cut.rows_of(value, i)

            def of_queries(j, array, key_sum, value_sum, *bias_sum):
                block = cut.block(i, j)
                q, up = cut.queries_of(query, block), cut.queries_of(upstream, block)
                k, v = cut.keys_of(keys, block), cut.keys_of(values, block)
                weights, slope = self._weights(q, k, block)
                dropped, change = self._changes(weights, up, v, block, i, j)
                if bias_sum:
                    bias_sum = (self.bias.add(*bias_sum, change, block, cut.partial),)
                if slope is not None:
                    change *= slope
                change, dropped = self._matrix(change, block), self._matrix(dropped, block)
                for_key = tf.matmul(change, q, transpose_a=True)
                for_value = tf.matmul(dropped, up[..., :value_features], transpose_a=True)
                return (
                    array.write(i * cut.parts + j, tf.matmul(change, k)),
                    cut.add_to_keys(key_sum, for_key, block),
                    cut.add_to_keys(value_sum, for_value, block),
                    *bias_sum,
                )

            zeros = [
                tf.zeros((cut.rows, cut.key_steps, size), self.sums)
                for size in (key.shape[-1], value_features)
            ]
            query_array, key_sum, value_sum, *bias_sum = loop(
                cut.parts, of_queries, (query_array, *zeros, *bias_sum)
            )
            key_array, value_array = key_array.write(i, key_sum), value_array.write(i, value_sum)
            return (query_array, key_array, value_array, *bias_sum)

        arrays = [tf.TensorArray(self.dtype, cut.groups * cut.parts)]
        arrays += [tf.TensorArray(self.sums, cut.groups) for _ in range(2)]
        bias_sum = [tf.zeros(tf.shape(x), self.sums) for x in bias]
        query_array, key_array, value_array, *bias_sum = loop(
            cut.groups, of_rows, (*arrays, *bias_sum)
        )
        gradients = [
            cut.join(query_array, query.shape[-1])[..., :features],
            cut.join_rows(key_array, key.shape[-1])[..., :features],
            cut.join_rows(value_array, value_features),
        ]
        gradients = [tf.cast(x, self.dtype) for x in gradients]
        return gradients + [tf.cast(x, y.dtype) for x, y in zip(bias_sum, bias, strict=True)]

    def _prepared(self, query, key):
        """Query and key in whole blocks, with the mask of keys as one more feature."""
        cut = self.cut
        if self.column:
            query = tf.concat([query, tf.ones_like(query[..., :1])], -1)
            hidden = tf.where(self.column.values[:, 0, 0], 0.0, MASKED)
            hidden = tf.gather(hidden, self.column.owners[: cut.size])
            hidden = tf.broadcast_to(hidden, (cut.size, cut.key_steps))
            key = tf.concat([key, tf.cast(hidden, key.dtype)[..., None]], -1)
        return cut.fill(query), cut.fill_rows(key)

    def _weights(self, query, key, block):
        """Weights `[g, n, t, s]`, and the slope of the soft cap, or None."""
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), self.sums)
        scores, slope = self.cut.scores(scores, block), None
        if self.soft_cap is not None:
            ratio = tf.tanh(scores / self.soft_cap)
            scores, slope = self.soft_cap * ratio, 1 - ratio * ratio
        if self.bias is not None:
            scores += tf.cast(self.bias.of(block, self.cut.fixed), self.sums)
        if self.slopes is not None:
            slopes = tf.cast(self.slopes.of(block, self.cut.fixed), self.sums)
            scores -= slopes * tf.cast(tf.abs(self.band.distance(block)), self.sums)
        for mask in self.masks:
            allowed = mask.of(block, self.cut.fixed)
            scores += tf.where(allowed, tf.zeros((), self.sums), tf.constant(MASKED, self.sums))
        if self.cut.causal or self.cut.window is not None:
            scores += self.band.of(block)
        return tf.nn.softmax(scores), slope

    def _changes(self, weights, upstream, value, block, i, j):
        """Weights as they met the values, and the gradient of the scores: `[g, n, t, s]` both."""
        if not self.dropout:
            change = tf.matmul(upstream, value, transpose_b=True)
            return weights, weights * self.cut.scores(tf.cast(change, self.sums), block)
        kept = self._kept(block, i, j)
        change = tf.matmul(upstream[..., :-1], value[..., :-1], transpose_b=True)
        change = self.cut.scores(tf.cast(change, self.sums), block) * kept
        less = tf.reshape(upstream[..., -1], (block.rows, self.cut.group, block.queries, 1))
        return weights * kept, weights * (change + tf.cast(less, self.sums))

    def _kept(self, block, i, j):
        """What dropout multiplies the weights of a block by, `[g, n, t, s]`."""
        seed = tf.stack([self.seed[0], self.seed[1] + i * self.cut.parts + j])
        shape = (block.rows, self.cut.group, block.queries, block.keys)
        # 16 random bits for each weight are enough, and cost half of what 32 do.
        count, dropped = product(shape), min(round(self.dropout * 2**16), 2**16 - 1)
        bits = tf.random.stateless_uniform(((count + 1) // 2,), seed, None, None, tf.int32)
        bits = tf.reshape(tf.bitcast(bits, tf.int16), (-1,))
        kept = tf.reshape(bits[:count], shape) >= dropped - 2**15
        return tf.cast(kept, self.sums) * tf.constant(2**16 / (2**16 - dropped), self.sums)

    def _matrix(self, x, block):
        return tf.cast(self.cut.matrix(x, block), self.dtype)

    def _seen(self, x):
        """`[L, n, T, D]`, 0 for queries that may attend to nothing."""
        seen = self.attending
        return x if seen is None else tf.where(seen, x, tf.zeros((), x.dtype))


def _to_rank(x, like):
    """With axes of size 1 in front, up to the rank of `like`; None for None."""
    while x is not None and len(x.shape) < len(like.shape):
        x = tf.expand_dims(x, 0)
    return x
