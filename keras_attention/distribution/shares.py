"""Which rows of a batch each process reads, and how much its mean counts."""

import keras
from keras import ops


def own_share(batches, context):
    """The rows of global batches that the replicas of one process read.

    Replica r of N reads rows `r * B // N` up to `(r + 1) * B // N` of each batch of B rows: all
    processes make equally many steps, and their rows together are the batch.

    Args:
        batches: `tf.data.Dataset` of batches `[B, ...]`, the same ones in each process.
        context: the `tf.distribute.InputContext` of the process.

    Returns:
        A dataset with a batch for each replica of the process, one after the other.
    """
    import tensorflow as tf

    replicas = context.num_replicas_in_sync
    local = replicas // context.num_input_pipelines
    first = context.input_pipeline_id * local

    def split(*batch):
        batch = batch if len(batch) > 1 else batch[0]
        rows = tf.shape(tf.nest.flatten(batch)[0], out_type="int64")[0]

        def share(replica):
            start, stop = replica * rows // replicas, (replica + 1) * rows // replicas
            return tf.nest.map_structure(lambda x: x[start:stop], batch)

        return tf.data.Dataset.range(first, first + local).map(share)

    return batches.flat_map(split).prefetch(local)


def over_workers(strategy, batches):
    """Batches, or a function that makes a process's own, as a distributed dataset.

    Args:
        strategy: the `tf.distribute.Strategy`.
        batches: `tf.data.Dataset` of global batches `[B, ...]`, or a function from a
            `tf.distribute.InputContext` to the dataset that this process reads.

    Returns:
        A `tf.distribute.DistributedDataset`.
    """
    make = batches if callable(batches) else lambda context: own_share(batches, context)
    return strategy.distribute_datasets_from_function(make)


def averaged_over(loss, y, y_pred, sample_weight=None):
    """How many things the mean of a loss is over: rows `[B]`, or steps `[B, T]` that are real.

    Means of several replicas, each weighted by this number, make the mean of the whole batch.

    Args:
        loss: what `compile` was given. Of several losses the rows are counted.
        y, y_pred, sample_weight: as the loss takes them.

    Returns:
        A number; None of a loss that is a sum, to which each replica adds its own.
    """
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction == "sum":
        return None
    weights = None
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = ops.cast(sample_weight, "float32")
    one = not isinstance(loss, (list, tuple, dict))
    real = _real(loss, y, y_pred) if one else None
    if real is None:
        return row_count(y_pred) if weights is None else ops.sum(weights)
    if weights is None:
        return ops.sum(real)
    while len(weights.shape) < len(real.shape):
        weights = weights[..., None]
    return ops.sum(real * weights)


def row_count(batch):
    """B of tensors `[B, ...]`, nested or not, as a floating number."""
    return ops.cast(ops.shape(keras.tree.flatten(batch)[0])[0], "float32")


def _real(loss, y, y_pred):
    """1 where a step is neither padding nor masked, `[B, T]`; None if all are real."""
    parts = [getattr(y_pred, "_keras_mask", None)]
    if hasattr(loss, "real_steps"):
        parts.append(loss.real_steps(y))
    parts = [ops.cast(part, "float32") for part in parts if part is not None]
    return None if not parts else parts[0] if len(parts) == 1 else parts[0] * parts[1]
