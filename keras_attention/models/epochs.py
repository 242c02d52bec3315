"""Epochs that come out the same again, also when a training goes on after an interruption."""

import itertools
from numbers import Integral

import keras
import numpy as np

from keras_attention.checks import check_flag

# How far apart the random numbers of two epochs are: more draws than a layer makes in an epoch.
DRAWS_OF_AN_EPOCH = 2**20


class EpochCounter(keras.callbacks.Callback):
    """Tells batches and random layers which epoch it is, so that a training can be taken up again.

    Batches made with `epoch=counter` come in an order that depends on their seed and
    `counter.number` only, and dropout layers get random numbers that depend on their seed and
    `counter.number` only. A training that was killed and goes on from the last finished epoch, by
    `keras.callbacks.BackupAndRestore` or `fit(initial_epoch=...)`, then sees what the uninterrupted
    one would have seen. (Without it, batches count how often they were iterated over, and start
    from 0 in a new process; Keras does not save the states of dropout.)

    The rest is up to the caller: fixed seeds (`keras.utils.set_random_seed`) before the model is
    made, the same number of batches, and, for equality to the last bit,
    `tf.config.experimental.enable_op_determinism()`. Callbacks like `EarlyStopping` start counting
    anew. Backups in the middle of an epoch go on from the weights of that moment, but with the
    first batch of the epoch.

    Args:
        number: the number of the epoch until `fit` says another one, from 0; an own training loop
            sets the attribute `number`.

    Returns:
        A callback for `model.fit(..., callbacks=[...])`. It holds no tensors of any shape `[...]`.

    Raises:
        ValueError: if `number` is not an integer of at least 0.

    Example:

    >>> from keras_attention.models.language_batches import language_batches
    >>> epoch = EpochCounter()
    >>> batches = language_batches(range(1, 100), length=4, batch_size=2, epoch=epoch)
    >>> epoch.number = 3  # as `fit` does with callbacks=[epoch]
    >>> inputs, labels = next(iter(batches))
    """

    def __init__(self, number=0):
        super().__init__()
        if not _is_count(number):
            raise ValueError(f"`number` must be an integer of at least 0. Received: {number!r}.")
        self.number = number

    def on_epoch_begin(self, epoch, logs=None):
        self.number = epoch
        seeds = [epoch]
        for variable in self.model.variables:
            if variable.path.endswith("seed_generator_state"):
                seeds.append(int(keras.ops.convert_to_numpy(variable)[0]))
                draws = epoch * DRAWS_OF_AN_EPOCH % 2**32
                variable.assign(np.array([seeds[-1], draws], variable.dtype))
        if keras.backend.backend() == "torch" and len(seeds) > 1:
            import torch  # whose own generator Keras's dropout without a seed draws from

            torch.manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))


def epoch_dataset(make_batches, signature, count, shuffle=True, seed=0, epoch=None):
    """A dataset of known length that is another one in each epoch.

    Args:
        make_batches: function from a NumPy random generator (None without shuffling) to the
            batches of an epoch, an iterable of nested tuples of arrays of any shapes `[B, ...]`.
        signature: the `tf.TensorSpec`s of a batch.
        count: the number of batches.
        shuffle: whether to give a random generator.
        seed: an integer of at least 0, or None for another order in each process.
        epoch: an `EpochCounter`; by default the iterations are counted.

    Returns:
        A `tf.data.Dataset`.

    Raises:
        ValueError: if `shuffle` is no flag, `seed` no such integer or `epoch` has no `number`.
    """
    import tensorflow as tf

    check_flag("shuffle", shuffle)
    if seed is not None and not _is_count(seed):
        raise ValueError(f"`seed` must be an integer of at least 0, or None. Received: {seed!r}.")
    if epoch is not None and not hasattr(epoch, "number"):
        raise ValueError(f"`epoch` must be an EpochCounter. Received: {epoch!r}.")
    seed = np.random.SeedSequence(seed).entropy  # a number for None, too
    iterations = itertools.count()

    def batches():
        number = next(iterations) if epoch is None else epoch.number
        return make_batches(np.random.default_rng([seed, number]) if shuffle else None)

    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(2)


def _is_count(number):
    return isinstance(number, Integral) and not isinstance(number, bool) and number >= 0
