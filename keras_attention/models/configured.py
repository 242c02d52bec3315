"""What all models here share: they are made again of the arguments they were made with."""

from pathlib import Path

import keras

from keras_attention.models.inputs import as_dense
from keras_attention.models.lora import renew_products
from keras_attention.models.parts import deserialized, serialized
from keras_attention.room import check_room
from keras_attention.whole import whole

MODES = ("int8", "int4", "float8")


class ConfiguredModel(keras.Model):
    """A Functional model whose config holds the arguments of its constructor.

    A subclass sets `_arguments` to a dictionary of these, ids `[B, T]` not among them, after it has
    called `super().__init__`, and `_searches` if it has compiled some.
    """

    _objects = ()  # names of the arguments that may be tokenizers, schedules or layers
    _searches = None
    _quantized = None  # how it was quantised; a str: in which way that a config can not tell

    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        """Quantises as `keras.Model.quantize` does; a saved model is loaded quantised.

        Args:
            mode: "int8", or another mode of Keras.
            config, filters, **kwargs: as of `keras.Model.quantize`. A model that was quantised with
                a function as filter, or in a mode that learns from data, can neither be saved as
                .keras nor exported. (Outputs `[B, T, V]` change a little.)
        """
        super().quantize(mode, config=config, filters=filters, **kwargs)
        texts = [filters] if isinstance(filters, str) else filters or []
        plain = not callable(filters) and all(isinstance(text, str) for text in texts)
        if mode not in MODES:
            self._quantized = f"in the mode {mode!r}, which learns from data"
        elif not plain:
            self._quantized = "with a function as filter (`filters` of `quantize`)"
        else:  # (Keras has put the mode's own config in place of None.)
            self._quantized = {"mode": mode, "config": config, "filters": filters}
        if self._searches is not None:
            self._searches.forget()

    def call(self, inputs, training=None, mask=None, **kwargs):
        inputs = keras.tree.map_structure(as_dense, inputs)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """Saves as `keras.Model.save` does; a `.keras` file is written whole or not at all.

        So what was there before outlives a full disk, or a kill while `ModelCheckpoint` saves.

        Args:
            filepath, overwrite, zipped, **kwargs: as of `keras.Model.save`. (The model takes ids
                `[B, T]`.)
        """
        if not _is_local(filepath, ".keras") or (Path(filepath).exists() and not overwrite):
            super().save(filepath, overwrite, zipped, **kwargs)  # (asks whether to overwrite)
            return
        with whole(filepath) as unfinished:
            check_room(self, unfinished.parent)
            super().save(unfinished, zipped=zipped, **kwargs)

    def save_weights(self, filepath, overwrite=True, max_shard_size=None):
        """Saves weights as `keras.Model.save_weights` does; a file is whole, as of `save`.

        Args:
            filepath, overwrite, max_shard_size: as of `keras.Model.save_weights`. Shards of weights
                `[...]` are several files, which Keras writes one after the other.
        """
        several = max_shard_size is not None or not _is_local(filepath, ".weights.h5")
        if several or (Path(filepath).exists() and not overwrite):
            super().save_weights(filepath, overwrite, max_shard_size)
            return
        with whole(filepath) as unfinished:
            check_room(self, unfinished.parent)
            super().save_weights(unfinished)

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """Loads weights as `keras.Model.load_weights` does; `enable_lora` may have been called.

        Args:
            filepath, skip_mismatch, **kwargs: as of `keras.Model.load_weights`. (The model takes
                ids `[B, T]`.)
        """
        super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        renew_products(self)

    def get_compile_config(self):
        return _on_any_backend(super().get_compile_config())

    def get_config(self):
        if isinstance(self._quantized, str):
            raise ValueError(
                f"{self.name} was quantised {self._quantized}. A config can not tell that, so the "
                "model can neither be saved as .keras nor exported; its weights can be saved. "
                f"Filters may be regular expressions, and modes {', '.join(MODES)}."
            )
        config = serialized(self._arguments, self._objects)
        if self._quantized is not None:
            config["quantized"] = keras.saving.serialize_keras_object(self._quantized)
        return {**config, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        quantized = config.pop("quantized", None)
        model = cls(**deserialized(config, custom_objects))
        if quantized is not None:
            model.quantize(**keras.saving.deserialize_keras_object(quantized, custom_objects))
        return model


def _on_any_backend(config):
    """A config without the classes that PyTorch has of its own for Keras's optimizers."""
    if isinstance(config, dict):
        config = {name: _on_any_backend(value) for name, value in config.items()}
        if ".backend.torch.optimizers." in str(config.get("module")):
            config["module"] = "keras.optimizers"
    return config


def _is_local(path, suffix):
    """Whether it is a path on this machine with the suffix, and no open file or address."""
    return isinstance(path, (str, Path)) and str(path).endswith(suffix) and "://" not in str(path)
