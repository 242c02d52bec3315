"""Writes torch_*.npz: what PyTorch's attention and transformer modules compute on small inputs.

The files are kept here, so that the tests need no PyTorch. To make them anew, in an environment of
its own:

    python3.11 -m venv pytorch
    pytorch/bin/pip install torch numpy
    pytorch/bin/python tests/data/make_torch_reference.py

Each file holds weights (under PyTorch's names, behind "weights/"), inputs and outputs of one
module, in float32 and in evaluation mode, without dropout. Sizes are distinct primes wherever the
module lets them differ. Inputs that PyTorch calls `key_padding_mask` are kept as they are: True is
padding there. tests/test_torch_parity.py carries the weights over and compares.

What PyTorch computes, where it is not plain from the name:

- Kernels are kept transposed, `[out, in]`. The features of all heads lie one after the other.
- `MultiheadAttention` holds the three projections in one, `in_proj_weight` `[3 D, D]`, unless
  keys or values have another size (`q_proj_weight` ...); their biases always in `in_proj_bias`.
- True in `attn_mask` and `key_padding_mask` forbids. A float `attn_mask` is added to the scores. A
  query that may attend to nothing gets NaN: no case has one at a real step.
- "gelu" is the exact one.
- `nn.Transformer` normalises behind the last block of each stack, also where blocks are post-norm.
- `translator` is a model around nn.Transformer: padding is id 0, embeddings are times sqrt(D).
- In evaluation mode the encoder may leave padded steps out, and so give 0 there.
"""

import argparse
from pathlib import Path

import numpy as np

B, T, S, D, N, F = 2, 3, 7, 10, 5, 11  # samples, steps, memory steps, features, heads, hidden
LENGTHS, MEMORY_LENGTHS = np.array([3, 2]), np.array([4, 7])


def torch_module():
    # Imported here and not above: pytest looks for doctests in this file, too, and lacks it.
    import torch

    return torch


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def padding(lengths, size):
    """`[B, size]`, True = padding, as PyTorch wants it."""
    return np.arange(size) >= lengths[:, None]


def draw(rng, module):
    """Gives a module random weights, gains around 1, and returns them by name."""
    torch, arrays = torch_module(), {}
    for name, parameter in module.named_parameters():
        is_gain = "norm" in name and name.endswith("weight")
        values = is_gain + 0.3 * normal(rng, *parameter.shape)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values))
        arrays[f"weights/{name}"] = values
    return arrays


def run(module, *tensors, **options):
    """The module's outputs as arrays."""
    torch = torch_module()

    def convert(x):
        return torch.from_numpy(x) if isinstance(x, np.ndarray) else x

    with torch.no_grad():
        out = module(
            *(convert(x) for x in tensors), **{name: convert(x) for name, x in options.items()}
        )
    return [x.numpy() for x in out] if isinstance(out, tuple) else out.numpy()


def attention(seed, cross=False, sizes=None, bias=True):
    """MultiheadAttention: plain, with padding, with a boolean mask, with an additive mask."""
    rng, (key_size, value_size) = np.random.default_rng(seed), sizes or (D, D)
    module = torch_module().nn.MultiheadAttention(
        D, N, bias=bias, kdim=key_size, vdim=value_size, batch_first=True
    )
    arrays = draw(rng, module.eval())
    query = normal(rng, B, T, D)
    key = normal(rng, B, S, key_size) if cross else query
    value = normal(rng, B, S, value_size) if cross else query
    steps, lengths = (S, MEMORY_LENGTHS) if cross else (T, LENGTHS)
    forbidden = rng.random((B, N, T, steps)) < 0.4
    forbidden[..., 0] = False
    additive = normal(rng, T, steps)
    masks = {
        "plain": {},
        "padding": {"key_padding_mask": padding(lengths, steps)},
        "mask": {"attn_mask": forbidden.reshape(B * N, T, steps)},
        "bias": {"attn_mask": additive},
    }
    if not cross:
        masks["causal"] = {"attn_mask": np.triu(np.ones((T, T), bool), 1)}
    arrays |= {"query": query, "forbidden": forbidden, "additive": additive, "lengths": lengths}
    if cross:
        arrays |= {"key": key, "value": value}
    for name, options in masks.items():
        output, weights = run(module, query, key, value, average_attn_weights=False, **options)
        arrays |= {f"output/{name}": output, f"attention/{name}": weights}
    return arrays


def encoder_layer(seed, norm_first, activation):
    rng = np.random.default_rng(seed)
    module = torch_module().nn.TransformerEncoderLayer(
        D, N, F, activation=activation, norm_first=norm_first, batch_first=True
    )
    arrays = draw(rng, module.eval())
    x = normal(rng, B, T, D)
    out = run(module, x, src_key_padding_mask=padding(LENGTHS, T))
    causal = np.triu(np.ones((T, T), bool), 1)
    out_causal = run(module, x, src_mask=causal)
    return {**arrays, "x": x, "lengths": LENGTHS, "output": out, "output_causal": out_causal}


def decoder_layer(seed, norm_first, activation):
    rng = np.random.default_rng(seed)
    module = torch_module().nn.TransformerDecoderLayer(
        D, N, F, activation=activation, norm_first=norm_first, batch_first=True
    )
    arrays = draw(rng, module.eval())
    x, memory = normal(rng, B, T, D), normal(rng, B, S, D)
    out = run(
        module,
        x,
        memory,
        tgt_mask=np.triu(np.ones((T, T), bool), 1),
        tgt_key_padding_mask=padding(LENGTHS, T),
        memory_key_padding_mask=padding(MEMORY_LENGTHS, S),
    )
    arrays |= {"x": x, "memory": memory, "output": out}
    return {**arrays, "lengths": LENGTHS, "memory_lengths": MEMORY_LENGTHS}


def whole(seed, norm_first, activation):
    """nn.Transformer with two blocks on each side."""
    rng = np.random.default_rng(seed)
    module = torch_module().nn.Transformer(
        D, N, 2, 2, F, activation=activation, norm_first=norm_first, batch_first=True
    )
    arrays = draw(rng, module.eval())
    source, target = normal(rng, B, S, D), normal(rng, B, T, D)
    padded = padding(MEMORY_LENGTHS, S)
    out = run(
        module,
        source,
        target,
        tgt_mask=np.triu(np.ones((T, T), bool), 1),
        src_key_padding_mask=padded,
        tgt_key_padding_mask=padding(LENGTHS, T),
        memory_key_padding_mask=padded,
    )
    arrays |= {"source": source, "target": target, "output": out}
    return {**arrays, "lengths": LENGTHS, "source_lengths": MEMORY_LENGTHS}


def translator(seed):
    """The usual model around nn.Transformer: embeddings, sinusoidal positions, logits."""
    torch, nn = torch_module(), torch_module().nn
    rng, (source_size, target_size) = np.random.default_rng(seed), (13, 17)

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.source_embedding = nn.Embedding(source_size, D)
            self.target_embedding = nn.Embedding(target_size, D)
            self.transformer = nn.Transformer(D, N, 2, 1, F, norm_first=True, batch_first=True)
            self.generator = nn.Linear(D, target_size)

        def embed(self, embedding, ids):
            angles = torch.arange(ids.shape[1])[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
            positions = torch.stack([angles.sin(), angles.cos()], -1).reshape(-1, D)
            return embedding(ids) * D**0.5 + positions

        def forward(self, source, target):
            padded, steps = source == 0, target.shape[1]
            hidden = self.transformer(
                self.embed(self.source_embedding, source),
                self.embed(self.target_embedding, target),
                tgt_mask=torch.triu(torch.ones(steps, steps, dtype=torch.bool), 1),
                src_key_padding_mask=padded,
                memory_key_padding_mask=padded,
                tgt_key_padding_mask=target == 0,
            )
            return self.generator(hidden)

    module = Translator()
    arrays = draw(rng, module.eval())
    arrays["source"] = np.array([[3, 4, 5, 6, 12], [7, 8, 9, 0, 0]])
    arrays["target"] = np.array([[1, 9, 3, 16], [1, 12, 4, 0]])
    return {**arrays, "logits": run(module, arrays["source"], arrays["target"])}


CASES = {
    "attention_self": lambda: attention(2),
    "attention_self_no_bias": lambda: attention(3, bias=False),
    "attention_cross": lambda: attention(5, cross=True),
    "attention_cross_sizes": lambda: attention(7, cross=True, sizes=(13, 17)),
    "encoder_layer": lambda: encoder_layer(11, False, "relu"),
    "encoder_layer_pre_norm": lambda: encoder_layer(13, True, "gelu"),
    "decoder_layer": lambda: decoder_layer(17, False, "relu"),
    "decoder_layer_pre_norm": lambda: decoder_layer(19, True, "gelu"),
    "transformer": lambda: whole(23, False, "gelu"),
    "transformer_pre_norm": lambda: whole(29, True, "relu"),
    "translator": lambda: translator(31),
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
        path = arguments.output / f"torch_{name}.npz"
        partial = path.with_name(f".{path.name}")
        np.savez_compressed(partial, **CASES[name]())
        partial.replace(path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
