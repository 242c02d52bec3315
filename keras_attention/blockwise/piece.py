"""A mask or bias of all scores, and its part for a block."""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_attention.blockwise.cut import pad, product, sizes


class Piece(NamedTuple):
    """A mask or bias of a `Cut`.

    Attributes:
        values: `[P, n or 1, T or 1, S or 1]`.
        owners: `[L']`, which of the P belongs to each of L.
    """

    values: Any
    owners: Any

    def of(self, block, fixed):
        """Its part for a block, `[g or 1, n or 1, t or 1, s or 1]`."""
        values, size, first = self.values, tf.shape(self.values), 0
        rows, owners = size[0], self.owners_of(block)
        if not fixed:
            first = tf.reduce_min(owners)
            rows = tf.reduce_max(owners) + 1 - first
        starts, counts = [first, 0], [rows, size[1]]
        for axis, start, count in ((2, block.query, block.queries), (3, block.key, block.keys)):
            starts.append(tf.where(size[axis] == 1, 0, start))
            most = count if fixed else tf.minimum(count, size[axis] - start)
            counts.append(tf.where(size[axis] == 1, 1, most))
        part = tf.slice(values, starts, counts)
        if not fixed:  # the last block may have queries that there are not
            missing = tf.where(size[2] == 1, 0, block.queries - counts[2])
            part = tf.pad(part, [[0, 0], [0, 0], [0, missing], [0, 0]])
        return part if values.shape[0] == 1 else tf.gather(part, owners - first)

    def owners_of(self, block):
        """Which of the P belongs to each row of a block, `[g]`."""
        return tf.slice(self.owners, (block.row,), (block.rows,))

    def add(self, total, change, block, partial):
        """The gradient `[g, n, t, s]` of the scores of a block, added to that of the values."""
        for axis in (1, 2, 3):
            if total.shape[axis] == 1:
                change = tf.reduce_sum(change, axis, keepdims=True)
        size = tf.shape(total)
        if partial and total.shape[3] != 1:  # a part of the keys
            behind = size[3] - block.key - block.keys
            change = tf.pad(change, [[0, 0], [0, 0], [0, 0], [block.key, behind]])
        # What stands behind the last query is 0, and may be added to the last one.
        query = tf.range(1) if total.shape[2] == 1 else block.query + tf.range(block.queries)
        query = tf.minimum(query, size[2] - 1)
        rows = self.owners_of(block)[:, None] * size[1] + tf.range(size[1])
        flat = tf.tensor_scatter_nd_add(
            tf.reshape(total, (-1, size[3])),
            tf.reshape(rows[..., None] * size[2] + query, (-1, 1)),
            tf.reshape(change, (-1, size[3])),
        )
        return tf.reshape(flat, size)


def piece_of(values, cut):
    """A mask or bias `[..., T or 1, S or 1]` as a `Piece`; None for None."""
    if values is None:
        return None
    own = sizes(values)
    # Sizes that the graph does not know are whole: an axis of 1 is known to be.
    own[-2], own[-1] = (
        whole if size is None else size
        for size, whole in zip(values.shape[-2:], (cut.steps, cut.key_steps), strict=True)
    )
    values = tf.broadcast_to(values, own) if None in values.shape[-2:] else values
    outer = own[: len(cut.outer)]
    inner = product(own[len(cut.outer) : -2])
    values = tf.reshape(values, (product(outer), inner, *own[-2:]))
    if cut.fixed and values.shape[2] != 1:
        values = pad(values, 2, cut.parts * cut.queries)
    return Piece(values, cut.fill_rows(_owners(outer, cut.outer)))


def spans_of(mask, cut):
    """Where in the keys the first and the last lie that a block of queries sees.

    Args:
        mask: the `Piece` of a mask.
        cut: the `Cut`.

    Returns:
        Integers `[2, groups, parts]`, for `Cut.narrow`.
    """
    seen = tf.reduce_any(mask.values, 1)
    if seen.shape[1] != 1:
        seen = pad(seen, 1, cut.parts * cut.queries)
        seen = tf.reduce_any(tf.reshape(seen, (-1, cut.parts, cut.queries, cut.key_steps)), 2)
    steps = tf.range(cut.key_steps)
    first = tf.reduce_min(tf.where(seen, steps, cut.key_steps), -1)
    end = tf.reduce_max(tf.where(seen, steps + 1, 0), -1)

    def of_groups(x, reduce):
        x = reduce(tf.reshape(tf.gather(x, mask.owners), (cut.groups, cut.rows, -1)), 1)
        return tf.broadcast_to(x, (cut.groups, cut.parts))

    return tf.stack([of_groups(first, tf.reduce_min), of_groups(end, tf.reduce_max)])


def _owners(own, lead):
    """For each row of axes `lead` the row of axes `own`, of which some are of size 1: `[L]`."""
    rows = tf.range(product(lead))
    owners = tf.zeros_like(rows)
    for axis, size in enumerate(lead):
        place = rows // tf.maximum(1, product(lead[axis + 1 :])) % tf.maximum(1, size)
        owners = owners * own[axis] + place % own[axis]
    return owners
