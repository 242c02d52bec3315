"""Look-up in constant tables by core operations, which need no resource that must be tracked.

A `tf.lookup` table lives outside of the graph: whoever saves a function that uses one has to track
it. Sorted keys and a binary search are plain constants, and work in eager mode, in any graph, in a
`tf.data` pipeline and in a SavedModel alike.
"""

import numpy as np

# Largest number of buckets: the hash itself, without its sign.
BUCKETS = 2**63 - 1


class Constant:
    """An array as a tensor: made once for eager mode, a part of each graph otherwise."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self._tensor = None

    def __call__(self):
        import tensorflow as tf

        if not tf.executing_eagerly():
            return tf.constant(self.array)
        if self._tensor is None:
            self._tensor = tf.constant(self.array)
        return self._tensor

    def __getstate__(self):
        return {"array": self.array, "_tensor": None}


def strings_constant(strings):
    """A `Constant` that holds a list of str as UTF-8."""
    array = np.empty(len(strings), object)  # Fixed-width arrays would drop final NUL characters.
    array[:] = [string.encode("utf-8") for string in strings]
    return Constant(array)


def find(keys, values):
    """Where the sorted `keys` `[K]` hold `values` `[N]`: `(place, found)`, both `[N]`.

    Where not found, the place is some valid one. K is at least 1.
    """
    import tensorflow as tf

    place = tf.minimum(tf.searchsorted(keys, values), tf.shape(keys)[0] - 1)
    return place, tf.gather(keys, place) == values


class IntegerIndex:
    """Distinct integers -> their places in the list that they came in."""

    def __init__(self, integers):
        integers = np.asarray(integers, "int32")
        order = np.argsort(integers)
        self._keys, self._order = Constant(integers[order]), Constant(order.astype("int32"))

    def __call__(self, values):
        """int32 `[N]` -> places `[N]`, -1 for those that are not in the list."""
        import tensorflow as tf

        place, found = find(self._keys(), values)
        return tf.where(found, tf.gather(self._order(), place), -1)


class StringIndex:
    """Distinct strings -> their places in the list that they came in.

    The keys are 63 bits of the strings' fingerprints (`tf.strings.to_hash_bucket_fast`, which never
    changes); a string that is found is then compared in full.
    """

    def __init__(self, strings):
        self._strings = strings
        self._tables = None

    def __call__(self, values):
        """Strings `[N]` -> places `[N]`, -1 for those that are not in the list."""
        import tensorflow as tf

        if self._tables is None:
            with tf.init_scope():
                self._tables = self._make_tables()
        keys, strings, order = (table() for table in self._tables)
        place, found = find(keys, tf.strings.to_hash_bucket_fast(values, BUCKETS))
        found &= tf.gather(strings, place) == values
        return tf.where(found, tf.gather(order, place), -1)

    def _make_tables(self):
        import tensorflow as tf

        strings = strings_constant(self._strings)
        keys = tf.strings.to_hash_bucket_fast(strings.array, BUCKETS).numpy()
        order = np.argsort(keys)
        keys = keys[order]
        same = np.flatnonzero(keys[1:] == keys[:-1])
        if same.size:  # One chance in a thousand millions for a vocabulary of 100,000.
            pair = [self._strings[order[same[0] + i]] for i in (0, 1)]
            raise ValueError(f"the vocabulary must not hold both of {pair}: same fingerprint")
        return Constant(keys), Constant(strings.array[order]), Constant(order.astype("int32"))
