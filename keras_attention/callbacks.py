"""Callbacks that show attention and translate while a model trains."""

import re
import warnings
from pathlib import Path

import keras
import numpy as np

from keras_attention.checks import check_positive
from keras_attention.layers.outputs import attention_scores_model
from keras_attention.normalizers import upcast
from keras_attention.visualize import check_alignment, check_format, plot_alignment


class AttentionCallback(keras.callbacks.Callback):
    """Draws the alignments of the same sentences after each epoch of `fit`.

    Writes `folder/epoch_0001_sample_0.png` and so on: sample i, target tokens downwards, source
    tokens to the right (`plot_alignment`). With several layers the name of the layer follows:
    `epoch_0001_sample_0_cross.png`. A file is written whole or not at all.

    Args:
        inputs: what the model takes for a few sentences: an array, or a list or dictionary of
            arrays, with B sentences first, e.g. `[B, S]` source ids and `[B, T]` target ids.
        source_tokens: B lists of tokens, at most S each; padding need not be listed: it is not
            drawn.
        target_tokens: B lists of tokens, at most T each: token t is that of row t of the weights,
            what step t puts out.
        layer_name: name of an attention layer or decoder, or a list of names; by default all that
            the model has.
        folder: where to write; made if it is missing.
        every: draws after every so many epochs.
        format: suffix of the files: "png", "svg", "pdf", ...
        **kwargs: further arguments of `plot_alignment`: `cmap`, `vmax`, `dpi`.

    Returns:
        A callback for `model.fit(..., callbacks=[...])`.

    Raises:
        ImportError: if matplotlib is missing.
        ValueError: if numbers of sentences differ or `every` is no positive integer; when the
            training begins, if the model is not Functional, has no attention layer or none of
            that name, or tokens do not fit the weights.

    Example:

    >>> import tempfile
    >>> from keras_attention import LuongAttention
    >>> query, memory = keras.Input((2, 4)), keras.Input((3, 4))
    >>> model = keras.Model([query, memory], LuongAttention("general")(query, memory))
    >>> model.compile("sgd", "mse")
    >>> data = [np.ones((1, 2, 4)), np.ones((1, 3, 4))]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     callback = AttentionCallback(data, [["ich", "bin"]], [["I", "am"]], folder=folder)
    ...     history = model.fit(data, np.ones((1, 2, 4)), verbose=0, callbacks=[callback])
    ...     [path.name for path in Path(folder).iterdir()]
    ['epoch_0001_sample_0.png']
    """

    chief_only = True  # it writes files: see `fit_distributed`

    def __init__(
        self,
        inputs,
        source_tokens,
        target_tokens,
        layer_name=None,
        folder="alignments",
        every=1,
        format="png",
        **kwargs,
    ):
        super().__init__()
        self.format = check_format("format", format)  # now rather than after the first epoch
        self.inputs = keras.tree.map_structure(_as_input, inputs)
        self.source_tokens, self.target_tokens = list(source_tokens), list(target_tokens)
        batches = {len(x) for x in keras.tree.flatten(self.inputs)}
        if not batches == {len(self.source_tokens)} == {len(self.target_tokens)}:
            raise ValueError(
                "`inputs`, `source_tokens` and `target_tokens` must have one entry a sentence. "
                f"Received {sorted(batches)}, {len(self.source_tokens)} and "
                f"{len(self.target_tokens)} sentences."
            )
        self.layer_names = [layer_name] if isinstance(layer_name, str) else layer_name
        self.folder, self.every = Path(folder), check_positive("every", every)
        self.plot_options = kwargs
        self._scores_model = None

    def on_train_begin(self, logs=None):
        self.folder.mkdir(parents=True, exist_ok=True)
        self._scores_model = attention_scores_model(self.model)
        for name, weights in self._weights().items():
            for sample, panel in enumerate(weights):
                self._cut(name, sample, np.zeros_like(panel))  # do the tokens fit?

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        weights = self._weights()
        for name, batch in weights.items():
            where = f", layer {name!r}" if len(weights) > 1 else ""
            if not np.isfinite(batch).all():
                warnings.warn(f"Epoch {epoch + 1}{where}: weights are NaN, not drawn", stacklevel=2)
                continue
            suffix = f"_{re.sub(r'[^-.0-9A-Za-z_]', '_', name)}" if where else ""
            for sample, panel in enumerate(batch):
                file = f"epoch_{epoch + 1:04d}_sample_{sample}{suffix}.{self.format}"
                options = {"title": f"epoch {epoch + 1}{where}", **self.plot_options}
                plot_alignment(*self._cut(name, sample, panel), path=self.folder / file, **options)

    def _weights(self):
        """The weights `[B, (N,) T, S]` of the layers to draw, by name."""
        scores = self._scores_model(self.inputs, training=False)
        names = list(scores) if self.layer_names is None else self.layer_names
        unknown = [name for name in names if name not in scores]
        if unknown:
            raise ValueError(
                f"`layer_name` must be one of {', '.join(map(repr, scores))}. "
                f"Received: {', '.join(map(repr, unknown))}."
            )
        return {name: keras.ops.convert_to_numpy(upcast(scores[name])) for name in names}

    def _cut(self, name, sample, panel):
        """The part of one sentence's weights that has tokens, and the tokens."""
        source, target = self.source_tokens[sample], self.target_tokens[sample]
        panel = panel[None] if panel.ndim == 1 else panel  # of a layer that takes one step
        try:
            return check_alignment(panel[..., : len(target), : len(source)], source, target, (2, 3))
        except ValueError as error:
            raise ValueError(
                f"Layer {name!r} of weights {panel.shape}, sentence {sample}: {error} "
                "(`layer_name` says which layers are drawn.)"
            ) from None


def _as_input(x):
    if not hasattr(x, "shape"):
        raise ValueError(
            f"`inputs` must be arrays, as `model.predict` takes them. Received: {x!r}."
        )
    return keras.ops.convert_to_tensor(x)


class TranslationMetric(keras.callbacks.Callback):
    """Translates held-out texts after each epoch and logs how good the outputs are.

    The value is in the logs, for `EarlyStopping`, `ModelCheckpoint` and the history.

    Args:
        sources: N texts.
        references: N references, of any kind that `metric` takes.
        metric: function `(outputs, references) -> number`; outputs are N str.
        name: the name of the value in the logs.
        every: after every how many epochs.
        **options: arguments of the model's `translate` (`beam_width`, ...).

    Returns:
        A callback for `fit` of a model with `translate`, such as `Seq2Seq`; it has no tensors of
        any shape `[...]` of its own.

    Raises:
        ValueError: if the numbers of texts differ, or the model has no `translate`.

    Example:

    >>> errors = lambda outputs, right: sum(a != b for a, b in zip(outputs, right))
    >>> TranslationMetric(["ab"], ["ba"], errors, name="errors").name
    'errors'
    """

    def __init__(self, sources, references, metric, name="metric", every=1, **options):
        super().__init__()
        if len(sources) != len(references):
            raise ValueError(
                "`sources` and `references` must have the same length. "
                f"Received {len(sources)} and {len(references)}."
            )
        self.sources, self.references = list(sources), list(references)
        self.metric, self.name, self.options = metric, name, options
        self.every = check_positive("every", every)

    def on_train_begin(self, logs=None):
        if not hasattr(self.model, "translate"):
            raise ValueError(
                "TranslationMetric needs a model with `translate`, such as Seq2Seq. Received: "
                f"{type(self.model).__name__}."
            )

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every == 0 and logs is not None:
            outputs = self.model.translate(self.sources, **self.options)
            logs[self.name] = float(self.metric(outputs, self.references))
