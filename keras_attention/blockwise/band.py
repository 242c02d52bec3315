"""The causal mask and the window of a block."""

import numpy as np
import tensorflow as tf

MASKED = -0.25 * float(np.finfo("float32").max)  # twice that is still finite


class Band:
    """What the scores of a block get where a query may not look, by the distance to the key.

    All blocks read it from one table, which has a column for each distance to the first query.

    Args:
        cut: the `Cut`.
        dtype: of the scores.
    """

    def __init__(self, cut, dtype):
        self.cut, self.dtype = cut, dtype
        self.table = None
        if cut.partial and (cut.causal or cut.window is not None):
            window, late = cut.window or 0, tf.maximum(0, cut.steps - cut.key_steps)
            last = tf.maximum(0, cut.start(cut.parts - 1))
            self.first = last if cut.window is None else window - 1
            width = self.first + cut.queries + window + late + 1
            distance = tf.range(width) - self.first - tf.range(cut.queries)[:, None]
            self.table = self._hidden(distance)

    def of(self, block):
        """What is added to the scores of a block, `[t, s]`."""
        start = self.cut.start(block.part)
        if self.table is None:
            return self._hidden(self.distance(block))
        place = (0, self.first + block.key - start)
        return tf.slice(self.table, place, (block.queries, block.keys))

    def distance(self, block):
        """The position of the key minus that of the query, `[t, s]`."""
        queries = self.cut.start(block.part) + tf.range(block.queries)
        return block.key + tf.range(block.keys) - queries[:, None]

    def _hidden(self, distance):
        allowed = distance <= 0 if self.cut.causal else tf.ones_like(distance, tf.bool)
        if self.cut.window is not None:
            allowed &= tf.abs(distance) < self.cut.window
        return tf.where(allowed, tf.zeros((), self.dtype), tf.constant(MASKED, self.dtype))
