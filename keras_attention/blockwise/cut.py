"""How queries and keys are cut into blocks, for the caches of a CPU."""

from typing import Any, NamedTuple

import tensorflow as tf

SCORES = 2 << 20  # numbers in the scores of a block: 8 MB of float32
QUERIES = ((512, 512), (256, 4096), (128, None))  # most queries of a block, up to so many keys
DIAGONAL = (64, 256)  # least and most where a block reads a part of the keys


class Block(NamedTuple):
    """Where a block lies: its first of L, of the queries and of the keys, and how many of each.

    `part` says which block of queries it is.
    """

    row: Any
    rows: Any
    part: Any
    query: Any
    queries: Any
    key: Any
    keys: Any


class Cut:
    """Queries `[..., T, D]` and keys `[..., S, D]` as `[L, n, T, D]` and `[L, S, D]`, in blocks.

    There are `groups` times `rows` of L, and `parts` times `queries` of T; what is missing at the
    ends is filled with zeros. Numbers, where sizes are known, or scalar tensors.

    Args:
        query, key: the tensors; the last of the leading axes of `key` may be 1, for a group.
        causal, window: as of `keras_attention.pairs.Pairs`.
    """

    def __init__(self, query, key, causal, window):
        *lead, self.steps, self.features = sizes(query)
        grouped = len(lead) > 0 and key.shape[-3] == 1 and query.shape[-3] != 1
        self.lead, self.outer = lead, lead[:-1] if grouped else lead
        self.group = lead[-1] if grouped else 1
        self.size, self.key_steps = product(self.outer), sizes(key)[-2]
        self.causal, self.window = causal, window
        # XLA knows no sizes that change from block to block: there, each reads all of the keys.
        self.fixed = _in_xla()
        self.partial = not self.fixed and (causal or window is not None)
        self.spans = None
        self._choose()

    def _choose(self):
        """Short blocks waste less above the diagonal, long ones read the keys less often."""
        span = self.key_steps
        most = QUERIES[-1][0]
        for count, keys in QUERIES[-2::-1]:
            most = tf.where(span > keys, most, count)
        if self.causal or self.window is not None:
            most = tf.clip_by_value(self.steps // 4, *DIAGONAL)
        self.parts, self.queries = divide(self.steps, most)
        if self.window is not None and not self.fixed:
            sides = 1 if self.causal else 2
            span = tf.minimum(span, self.queries + self.window * sides)
        elif self.partial:  # on average
            span = span // 2
        rows = SCORES // (tf.maximum(1, span) * self.queries * self.group)
        self.groups, self.rows = divide(self.size, tf.maximum(2, rows))

    def narrow(self, spans):
        """Has each block read a span of the keys, and no more.

        Args:
            spans: integers `[2, groups, parts]`: the first key of a block, and the end.
        """
        self.partial, self.spans = True, spans

    def block(self, i, j):
        """The block of rows i and queries j, with the keys that it may attend to."""
        first, end = 0, self.key_steps
        if self.spans is not None:
            first, end = self.spans[0, i, j], self.spans[1, i, j]
        if self.partial and (self.causal or self.window is not None):
            start = self.start(j)
            last = start + self.queries
            if not self.causal:
                last = last + self.window - 1
            end = tf.minimum(end, tf.clip_by_value(last, 1, self.key_steps))
            if self.window is not None:
                first = tf.maximum(first, start - self.window + 1)
        if self.partial:  # one key at least, also where none is seen
            end = tf.maximum(end, 1)
            first = tf.clip_by_value(first, 0, end - 1)
        query = j * self.queries
        return Block(i * self.rows, self.rows, j, query, self.queries, first, end - first)

    def start(self, j):
        """The position among the keys at which the first of the queries j stands."""
        return j * self.queries + self.key_steps - self.steps

    def queries_of(self, x, block):
        """Of `[L', n, T', D]` the queries of a block: `[g, n t, D]`."""
        starts, features = (block.row, 0, block.query, 0), sizes(x)[-1]
        part = tf.slice(x, starts, (block.rows, self.group, block.queries, features))
        return tf.reshape(part, (block.rows, self.group * block.queries, features))

    def rows_of(self, x, i):
        """Of `[L', S, D]` the rows i: `[g, S, D]`."""
        return tf.slice(x, (i * self.rows, 0, 0), (self.rows, self.key_steps, x.shape[-1]))

    def keys_of(self, x, block):
        """Of `[g, S, D]` the keys of a block: `[g, s, D]`."""
        if not self.partial:
            return x
        return tf.slice(x, (0, block.key, 0), (block.rows, block.keys, x.shape[-1]))

    def add_to_keys(self, total, part, block):
        """`[g, S, D]` with `[g, s, D]` added to the keys of a block."""
        part = tf.cast(part, total.dtype)
        if not self.partial:
            return total + part
        if self.window is None:  # many of the keys: faster than a scatter
            behind = self.key_steps - block.key - block.keys
            return total + tf.pad(part, [[0, 0], [block.key, behind], [0, 0]])
        rows = tf.range(self.rows)[:, None] * self.key_steps + block.key + tf.range(block.keys)
        flat, features = tf.reshape(total, (-1, part.shape[-1])), part.shape[-1]
        part = tf.reshape(part, (-1, features))
        flat = tf.tensor_scatter_nd_add(flat, tf.reshape(rows, (-1, 1)), part)
        return tf.reshape(flat, tf.shape(total))

    def scores(self, x, block):
        """`[g, n t, s]` as `[g, n, t, s]`."""
        return tf.reshape(x, (block.rows, self.group, block.queries, block.keys))

    def matrix(self, x, block):
        """`[g, n, t, s]` as `[g, n t, s]`."""
        return tf.reshape(x, (block.rows, self.group * block.queries, block.keys))

    def fill_rows(self, x):
        """`[L, ...]` with zeros up to whole blocks."""
        return pad(x, 0, self.groups * self.rows)

    def fill(self, x):
        """`[L, n, T, ...]` with zeros up to whole blocks."""
        return pad(self.fill_rows(x), 2, self.parts * self.queries)

    def join(self, array, features):
        """The blocks of queries `[g, n t, D]` of a TensorArray as `[L, n, T, D]`."""
        shape = (self.groups, self.parts, self.rows, self.group, self.queries, features)
        x = tf.transpose(tf.reshape(array.stack(), shape), (0, 2, 3, 1, 4, 5))
        x = tf.reshape(x, (self.groups * self.rows, self.group, -1, features))
        return x[: self.size, :, : self.steps]

    def join_rows(self, array, features):
        """The sums `[g, S, D]` of a TensorArray as `[L, S, D]`."""
        shape = (self.groups * self.rows, self.key_steps, features)
        return tf.reshape(array.stack(), shape)[: self.size]


def loop(count, body, carry):
    """Runs `body(i, *carry) -> carry`, one after the other; returns the last carry."""
    return tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *carry: (i + 1, *body(i, *carry)),
        (tf.constant(0), *carry),
        parallel_iterations=1,
        maximum_iterations=count,
    )[1:]


def divide(size, most):
    """The number of equal parts of at most `most`, and their size."""
    count = tf.maximum(1, -(-size // tf.maximum(1, most)))
    return count, -(-size // count)


def sizes(x):
    """The shape `[...]`: numbers where they are known, scalar tensors elsewhere."""
    shape = tf.shape(x)
    return [shape[axis] if size is None else size for axis, size in enumerate(x.shape)]


def product(numbers):
    """The product of numbers or scalar tensors, 1 of none."""
    total = 1
    for number in numbers:
        total = total * number
    return total


def pad(x, axis, size):
    """`x` with zeros behind it along an axis, up to a size."""
    missing = size - sizes(x)[axis]
    paddings = [[0, 0] for _ in x.shape]
    paddings[axis] = [0, missing]
    return tf.pad(x, paddings)


def _in_xla():
    """Whether what is traced now is to be compiled by XLA."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()  # no public way to ask
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False
