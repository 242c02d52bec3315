"""The processes of a training: how many there are, and which of them is the chief."""

import contextlib

TASKS = ("chief", "worker")  # those that train


def worker_count(strategy):
    """The number of processes that train together.

    Args:
        strategy: a `tf.distribute.Strategy`; the batch `[B, ...]` is split over its replicas.
    """
    return max(1, len(_tasks(strategy.cluster_resolver)))


def configured_workers():
    """The number of processes that the environment variable TF_CONFIG names."""
    import tensorflow as tf

    return max(1, len(_tasks(tf.distribute.cluster_resolver.TFConfigClusterResolver())))


def is_chief(strategy=None):
    """Whether this process is the one that saves and prints: the first of those that train.

    Args:
        strategy: a `tf.distribute.Strategy`, which splits batches `[B, ...]`; by default the
            current one. Without other processes this process is the chief.

    Returns:
        True in one process, False in the others.

    Example:

    >>> is_chief()
    True
    """
    import tensorflow as tf

    resolver = (strategy or tf.distribute.get_strategy()).cluster_resolver
    tasks = _tasks(resolver)
    return len(tasks) < 2 or (resolver.task_type, resolver.task_id) == tasks[0]


def _tasks(resolver):
    """`(type, number)` of each process that trains, the chief first."""
    jobs = {} if resolver is None else resolver.cluster_spec().as_dict()
    return [(job, number) for job in TASKS for number in range(len(jobs.get(job, ())))]


@contextlib.contextmanager
def together():
    """Says what it means when TensorFlow aborts what the processes do together."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        if "Collective ops is aborted" not in str(error):
            raise
        raise RuntimeError(
            "Another process of this training has ended or can not be reached. Start all of them "
            "again: with `backup_folder` the training goes on after the last finished epoch."
        ) from error
