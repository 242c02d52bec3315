"""The task of train.py, strings written backwards, and its training on either backend."""

import functools
import json
import random
import string
import time

import keras
import tensorflow as tf

from keras_attention import (
    CharacterTokenizer,
    EpochCounter,
    MaskedCrossEntropy,
    WarmupCosine,
    fit_distributed,
    is_chief,
    layout_map,
    text_batches,
    transformer,
)
from keras_attention.whole import whole

LONGEST, LENGTH = 12, 16  # letters; tokens, with the end and padding
HELD_OUT = 256


@functools.cache
def letters():
    """The tokenizer; made after the strategy, which has to come first in a process."""
    return CharacterTokenizer.fit([string.ascii_lowercase])


def strings(options):
    """Strings to learn from, a multiple of the batch size, and others to test on."""
    generator = random.Random(options.seed)
    count = options.examples // options.batch_size * options.batch_size
    found = {}
    while len(found) < count + HELD_OUT:
        drawn = generator.choices(string.ascii_lowercase, k=generator.randint(5, LONGEST))
        found["".join(drawn)] = None
    found = list(found)
    return found[HELD_OUT:], found[:HELD_OUT]


def batches(texts, options, epoch=None):
    """Batches of one shape: of all processes together, in an order that the epoch decides."""
    backwards = [text[::-1] for text in texts]
    size = min(options.batch_size, len(texts))
    made = text_batches(
        texts,
        backwards,
        letters(),
        letters(),
        size,
        seed=options.seed,
        shuffle=epoch is not None,
        epoch=epoch,
        length_multiple=LENGTH,
    )

    def shaped(inputs, labels):
        source, target = (tf.ensure_shape(x, (size, LENGTH)) for x in inputs)
        return (source, target), tf.ensure_shape(labels, (size, LENGTH))

    return made.map(shaped)


def make_model(options):
    """The compiled model; called where the weights are to be."""
    model = transformer(
        letters(), letters(), layers=1, units=options.units, num_heads=4, position="rotary"
    )
    steps = options.examples // options.batch_size * options.epochs
    rate = WarmupCosine(3e-3, max(1, steps // 10), steps)
    model.compile(
        keras.optimizers.Adam(rate, global_clipnorm=1.0),
        MaskedCrossEntropy(),
        weighted_metrics=["accuracy"],
        jit_compile=False if options.backend == "tensorflow" else "auto",
    )
    return model


class EpochTimes(keras.callbacks.Callback):
    """Notes how many seconds the training batches of each epoch take; the first one compiles."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self._began = self._last = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self._last = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(self._last - self._began)


def train(options, more_callbacks=()):
    """Trains on TensorFlow, in this process or with those that TF_CONFIG names."""
    if options.threads:
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    chief = is_chief(strategy)
    options.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        model = make_model(options)
    learned, held_out = strings(options)
    counter, times, started = EpochCounter(), EpochTimes(), time.monotonic()
    history = fit_distributed(
        model,
        batches(learned, options, counter),
        epochs=options.epochs,
        verbose=2,
        callbacks=[
            counter,
            times,
            keras.callbacks.CSVLogger(options.output / "log.csv", append=True),
            *more_callbacks,
        ],
        validation_data=batches(held_out, options),
        backup_folder=options.output / "backup",
    )
    seconds = time.monotonic() - started
    if chief:
        answers = model.translate(held_out, max_length=LENGTH)
        right = sum(a == text[::-1] for a, text in zip(answers, held_out, strict=True))
        more = {"right": right / len(held_out), "epoch_seconds": times.seconds}
        report(model, options, history, seconds, **more)


def train_on_jax(options):
    """Trains on JAX, over all devices of all processes."""
    import jax

    processes = options.processes or 1
    if processes > 1:
        keras.distribution.initialize()
    devices = keras.distribution.list_devices()
    if options.parallel == "model":
        mesh = keras.distribution.DeviceMesh((1, len(devices)), ("batch", "model"), devices)
        distribution = keras.distribution.ModelParallel(layout_map=layout_map(mesh))
    else:
        distribution = keras.distribution.DataParallel(devices=devices)
    keras.distribution.set_distribution(distribution)
    chief = jax.process_index() == 0
    options.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    model = make_model(options)
    learned, held_out = strings(options)
    counter, started = EpochCounter(), time.monotonic()
    history = model.fit(
        batches(learned, options, counter),
        epochs=options.epochs,
        verbose=2 if chief else 0,
        callbacks=[counter],
        validation_data=batches(held_out, options),
    )
    seconds = time.monotonic() - started
    model = in_one_piece(model, options)
    if chief:
        report(model, options, history, seconds)


def in_one_piece(model, options):
    """The model on this process alone, from weights that are spread over all; all take part."""
    from jax.experimental.multihost_utils import process_allgather

    arrays = [process_allgather(weight.value, tiled=True) for weight in model.weights]
    keras.distribution.set_distribution(None)
    alone = make_model(options)
    alone.set_weights(arrays)
    return alone


def report(model, options, history, seconds, **more):
    """Saves the model and the results."""
    with whole(options.output / "model.keras") as path:
        model.save(path)
    last = {name: values[-1] for name, values in history.history.items()}
    results = {**more, "last": last, "history": history.history, "seconds": seconds}
    results["processes"], results["backend"] = options.processes or 1, options.backend
    with whole(options.output / "results.json") as path:
        path.write_text(json.dumps(results, indent=1, default=float), "utf-8")
    said = [f"{name} {value:.4f}" for name, value in last.items()]
    if "right" in more:
        said.append(f"{more['right']:.1%} of held-out strings right")
    print(f"{', '.join(said)}; {seconds:.0f} s of training; written to {options.output}.")
