"""Training of language models: for a number of epochs, or side by side for so many minutes."""

import math
import time

import keras

from keras_attention import MaskedCrossEntropy, WarmupCosine, language_batches

ROUNDS = 10  # so often do models that train side by side take turns
MOMENTS = 1000  # steps of a schedule that follows the clock


class Clock(keras.callbacks.Callback):
    """Sets the learning rate by the time that a model has trained, and stops it at `until` seconds.

    The last step of the schedule is at `seconds`. A clock goes on from one `fit` to the next.
    """

    def __init__(self, schedule, seconds):
        super().__init__()
        self.schedule, self.seconds, self.until, self.trained = schedule, seconds, seconds, 0.0

    def on_train_begin(self, logs=None):
        self.begun = time.monotonic() - self.trained

    def on_train_batch_begin(self, batch, logs=None):
        share = min(1.0, (time.monotonic() - self.begun) / self.seconds)
        self.model.optimizer.learning_rate = float(self.schedule(share * self.schedule.steps))

    def on_train_batch_end(self, batch, logs=None):
        self.trained = time.monotonic() - self.begun
        if self.trained >= self.until:
            self.model.stop_training = True


def make_batches(ids, options, shuffle=True):
    return language_batches(ids, options.length, options.batch_size, shuffle, options.seed)


def compile_model(model, rate):
    optimizer = keras.optimizers.Adam(rate, beta_2=0.99, global_clipnorm=1.0)
    # (On a CPU, XLA makes a step of either model slower.)
    model.compile(optimizer, MaskedCrossEntropy(), jit_compile=False)


def train_epochs(model, train, held_out, options):
    """Fits one model; returns Keras's history."""
    batches = make_batches(train, options)
    steps = max(2, options.epochs * len(batches))
    rate = WarmupCosine(options.learning_rate, max(1, min(options.warmup, steps // 10)), steps)
    compile_model(model, rate)
    fitting = {"epochs": options.epochs, "shuffle": False, "verbose": 2}
    dev = make_batches(held_out, options, shuffle=False)
    return model.fit(batches, validation_data=dev, **fitting).history


def train_minutes(models, train, options):
    """Fits models in turns, for so many minutes each, compilation included.

    Each gets the same batches in the same order, and the same learning rates at the same times:
    what else the machine does hits all alike.

    Returns: a dictionary with the list of the losses after each round, for each name.
    """
    seconds = 60 * options.time_limit
    rate = WarmupCosine(options.learning_rate, MOMENTS // 20, MOMENTS)
    clocks = {name: Clock(rate, seconds) for name in models}
    batches = {name: make_batches(train, options) for name in models}
    losses = {name: [] for name in models}
    for model in models.values():
        compile_model(model, rate.peak)
    for turn in range(1, ROUNDS + 1):
        for name, model in models.items():
            clock = clocks[name]
            clock.until = seconds * turn / ROUNDS
            if clock.trained < clock.until:  # the first step, which compiles, may take turns
                fitting = {"epochs": 10**6, "shuffle": False, "verbose": 0, "callbacks": [clock]}
                losses[name].append(model.fit(batches[name], **fitting).history["loss"][-1])
        shown = ", ".join(f"{name} {loss[-1]:.3f}" for name, loss in losses.items())
        print(f"{turn * options.time_limit / ROUNDS:.1f} minutes of each: loss {shown}", flush=True)
    return losses


def test(model, tokenizer, text, ids, options):
    """The loss on a text, each token from those before it in its stretch of `options.length`.

    Returns: a dictionary of its nats and its bits, for each character of the text.
    """
    loss = model.evaluate(make_batches(ids, options, shuffle=False), verbose=0)
    nats = loss * len(ids) / len(text)  # a character may be several tokens
    return {"nats": round(nats, 4), "bits": round(nats / math.log(2), 4)}
