"""One step of all processes together, on public functions of TensorFlow and Keras."""

import keras

from keras_attention.distribution.shares import averaged_over, row_count


class WorkerSteps:
    """The steps of a compiled model on all replicas of all processes.

        gradient = sum over replicas r of n_r / n * gradient of the mean loss of r

    where n_r is what the mean is over (`averaged_over`) and n the sum of them: a step equals that
    of one process on the same global batch `[B, ...]`, also where shares or the numbers of real
    steps differ. Gradients are clipped after they are summed.

    Args:
        model: the model, made in the scope of `strategy`.
        strategy: a `tf.distribute.Strategy`.
    """

    def __init__(self, model, strategy):
        import tensorflow as tf

        self.model, self.strategy, self._has_metrics = model, strategy, False
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        function = {"reduce_retracing": True, "autograph": False}
        self._train_function = tf.function(self._train, **function)
        self._test_function = tf.function(self._test, **function)
        self._sum_function = tf.function(self._sum, autograph=False)

    def train(self, batch, stop=False):
        """Learns from a batch.

        Args:
            batch: what an iteration over a distributed dataset gives, shares of `[B, ...]`.
            stop: whether this process wants to stop.

        Returns:
            `(logs, stop)`: the metrics so far, the same in each process; whether any of the
            processes wanted to stop before this step.
        """
        import tensorflow as tf

        with self.strategy.scope():
            self._make_metrics(batch)
            found = self._train_function(batch, tf.constant(float(stop)))
        return found["logs"], bool(found["stop"] > 0)

    def test(self, batch):
        """The metrics so far, after this batch, without learning from it."""
        with self.strategy.scope():
            self._make_metrics(batch)
            return self._test_function(batch)

    def sum(self, number):
        """The sum of the numbers of all processes: all wait for each other here."""
        import tensorflow as tf

        with self.strategy.scope():
            return float(self._sum_function(tf.constant(float(number))))

    def metrics(self):
        """The metrics over all processes, by name."""
        with self.strategy.scope():
            return {name: float(x) for name, x in self.model.get_metrics_result().items()}

    def reset_metrics(self):
        with self.strategy.scope():
            self.model.reset_metrics()

    def finish(self):
        """What Keras does to the weights at the end, e.g. their moving average."""
        with self.strategy.scope():
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def _make_metrics(self, batch):
        """Metrics make their variables when they are first used; in a graph that fails."""
        if not self._has_metrics:
            self.strategy.run(self._measure, args=(batch,))
            self.model.reset_metrics()
            self._has_metrics = True

    def _measure(self, batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        self.model.compute_metrics(x, y, self.model(x, training=False), sample_weight)

    def _train(self, batch, stop):
        return self._everywhere(self.strategy.run(self._learn, args=(batch, stop)))

    def _test(self, batch):
        return self._everywhere(self.strategy.run(self._evaluate, args=(batch,)))

    def _sum(self, number):
        import tensorflow as tf

        found = self.strategy.run(lambda x: _reduced("SUM", tf.identity(x)), args=(number,))
        return self._local(found) / float(len(self.strategy.extended.worker_devices))

    def _learn(self, batch, stop):
        """What one replica does; `apply` sums the gradients of all and updates each copy."""
        import tensorflow as tf

        optimizer, variables = self.model.optimizer, self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss, factor, logs = self._forward(batch, training=True)
            loss = loss * factor
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        if any((optimizer.clipvalue, optimizer.clipnorm, optimizer.global_clipnorm)):
            gradients = _summed_on_first(gradients)
        optimizer.apply(gradients, variables)
        logs, stop = _reduced("MEAN", (logs, tf.identity(stop)))
        return {"logs": logs, "stop": stop}

    def _evaluate(self, batch):
        return _reduced("MEAN", self._forward(batch, training=False)[2])

    def _forward(self, batch, training):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = self.model(x, training=training)
        loss = self.model.compute_loss(x, y, y_pred, sample_weight, training=training)
        factor = self._weigh(loss, x, y, y_pred, sample_weight)
        return loss, factor, self.model.compute_metrics(x, y, y_pred, sample_weight)

    def _weigh(self, loss, x, y, y_pred, sample_weight):
        """The factor of this replica's loss, N n_r / n, as Keras has divided it by N already."""
        import tensorflow as tf

        replicas, rows = self.strategy.num_replicas_in_sync, row_count(x)
        count = averaged_over(self.model.loss, y, y_pred, sample_weight)
        every_count, every_row = _reduced("SUM", (rows if count is None else count, rows))
        share = equal = tf.constant(1 / replicas)
        if count is not None:  # Of no real step at all the mean is 0, and regularisation is left.
            share = tf.where(every_count > 0, tf.math.divide_no_nan(count, every_count), equal)
        for metric in self.model.metrics:
            if metric.name == "loss":
                metric.update_state(loss * replicas, sample_weight=every_row * share)
        return share * replicas

    def _local(self, x):
        """One of the equal values that the replicas of this process returned."""
        return self.strategy.experimental_local_results(x)[0]

    def _everywhere(self, found):
        if isinstance(found, dict):
            return {name: self._everywhere(x) for name, x in found.items()}
        return self._local(found)


def _reduced(how, values):
    """The sum or mean, over all replicas, of each of the nested values of this one."""
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce(how, values)


def _summed_on_first(gradients):
    """Sums of gradients on the first replica, zeros on the others.

    Keras clips before it sums: so the first one clips the whole gradient and nothing is added.
    """
    import tensorflow as tf

    places = [place for place, gradient in enumerate(gradients) if gradient is not None]
    summed = _reduced("SUM", [gradients[place] for place in places])
    first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
    found = [None] * len(gradients)
    for place, gradient in zip(places, summed, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            rows = tf.where(first, tf.shape(gradient.indices)[0], 0)
            found[place] = tf.IndexedSlices(
                gradient.values[:rows], gradient.indices[:rows], gradient.dense_shape
            )
        else:
            found[place] = gradient * tf.cast(first, gradient.dtype)
    return found
