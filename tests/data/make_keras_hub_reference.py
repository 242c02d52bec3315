"""Writes keras_hub_*.npz: what KerasHub's transformer layers compute on small inputs.

The files are kept here, so that the tests need no KerasHub. To make them anew, in an environment of
its own:

    python3.11 -m venv keras_hub
    keras_hub/bin/pip install keras-hub tensorflow
    keras_hub/bin/python tests/data/make_keras_hub_reference.py

Each file holds one layer: its class and config as JSON (what `keras.saving.serialize_keras_object`
gives), weights (under their paths, behind "weights/"), inputs and outputs, in float32 and without
dropout. Sizes are distinct primes wherever the layer lets them differ.

What KerasHub computes, where it is not plain from the name:

- Padding masks forbid keys only: what a padded step itself gives means nothing.
- The heads have D // N features, also where N does not divide D.
- "gelu" is the exact one.
- A decoder layer has cross-attention if it was built with two shapes.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

B, T, S, D, Dm, N, F = 2, 3, 7, 10, 13, 5, 11  # samples, steps, sizes, heads, hidden units
LENGTHS, MEMORY_LENGTHS = np.array([3, 2]), np.array([4, 7])


def layer_of(kind, **settings):
    """A layer of KerasHub."""
    # Imported here and not above: pytest looks for doctests in this file, too, and lacks it.
    import keras_hub

    return getattr(keras_hub.layers, kind)(**settings)


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def real(lengths, size):
    """`[B, size]`, True = a real step."""
    return np.arange(size) < lengths[:, None]


def draw(rng, layer):
    """Gives a built layer random weights, gains around 1; what it is, and the weights by path."""
    serialized = keras.saving.serialize_keras_object(layer)
    kept = {name: serialized[name] for name in ("class_name", "config")}
    arrays = {"layer": np.array(json.dumps(kept))}
    for weight in layer.weights:
        values = weight.path.endswith("gamma") + 0.3 * normal(rng, *weight.shape)
        weight.assign(values)
        arrays[f"weights/{weight.path}"] = values
    return arrays


def encoder(seed, num_heads=N, **settings):
    rng = np.random.default_rng(seed)
    layer = layer_of(
        "TransformerEncoder", intermediate_dim=F, num_heads=num_heads, name="encoder", **settings
    )
    layer.build((None, None, D))
    arrays = draw(rng, layer)
    x, mask = normal(rng, B, T, D), rng.random((B, T, T)) < 0.6
    mask |= np.eye(T, dtype=bool)
    arrays |= {"x": x, "lengths": LENGTHS, "attention_mask": mask}
    arrays["output"] = np.array(layer(x, padding_mask=real(LENGTHS, T)))
    arrays["output_mask"] = np.array(layer(x, attention_mask=mask))
    return arrays


def decoder(seed, cross=True, **settings):
    rng = np.random.default_rng(seed)
    layer = layer_of(
        "TransformerDecoder", intermediate_dim=F, num_heads=N, name="decoder", **settings
    )
    layer.build((None, None, D), *[(None, None, Dm)] * cross)
    arrays = draw(rng, layer)
    x, memory = normal(rng, B, T, D), normal(rng, B, S, Dm)
    arrays |= {"x": x, "lengths": LENGTHS}
    masks = {"decoder_padding_mask": real(LENGTHS, T)}
    if cross:
        arrays |= {"memory": memory, "memory_lengths": MEMORY_LENGTHS}
        masks["encoder_padding_mask"] = real(MEMORY_LENGTHS, S)
    arrays["output"] = np.array(layer(x, *[memory] * cross, **masks))
    return arrays


CASES = {
    "encoder": lambda: encoder(2),
    "encoder_pre_norm": lambda: encoder(3, normalize_first=True, activation="gelu"),
    "encoder_odd_heads": lambda: encoder(5, num_heads=3, layer_norm_epsilon=1e-3),
    "decoder": lambda: decoder(7),
    "decoder_pre_norm": lambda: decoder(11, normalize_first=True, activation="gelu"),
    "decoder_alone": lambda: decoder(13, cross=False, activation="silu"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("cases", nargs="*", help="names of cases; by default all")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown cases {unknown}; there are {', '.join(CASES)}")
    for name in arguments.cases or CASES:
        path = arguments.output / f"keras_hub_{name}.npz"
        partial = path.with_name(f".{path.name}")
        np.savez_compressed(partial, **CASES[name]())
        partial.replace(path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
