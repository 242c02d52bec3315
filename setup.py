"""Packaging of keras_attention. Tools are configured in pyproject.toml."""

import ast
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_version():
    """The value of `__version__`, read without importing the package (and so without Keras)."""
    for node in ast.parse((ROOT / "keras_attention/__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__version__":
            return ast.literal_eval(node.value)
    raise RuntimeError("keras_attention/__init__.py sets no __version__")


TEXT = ["sentencepiece", "tensorflow-text>=2.21,<2.22"]  # for SubwordTokenizer
EXPORT = ["tf2onnx", "onnx", "onnxruntime", "ai-edge-litert"]  # a SavedModel needs none of them
EXAMPLES = ["matplotlib", "sacrebleu", "babel", *TEXT]
BACKENDS = ["jax", "torch"]  # gigabytes
SERVING = ["kserve==0.21.*", "ray[serve]==2.60.*", "requests"]  # of examples/serving
DISTRIBUTED = ["ray[data,train]==2.60.*", "jax"]  # of examples/distributed
PEERS = ["ctranslate2", "keras-hub", "torch"]  # what the benchmarks compare with
DOCS = ["sphinx>=8", "myst-nb", "furo"]
NOTEBOOK = ["nbclient", "ipykernel"]  # to execute examples/quickstart.ipynb
TOOLS = ["keras-tuner", "pydot", "tensorboard"]  # of Keras, which the tests try with our models
TEST = ["pytest", "pytest-xdist", "hypothesis", "setuptools", *TOOLS, *EXPORT, *EXAMPLES]

setup(
    name="keras-attention-layers",
    version=read_version(),
    description="Attention layers and attentional decoders for Keras 3 on TensorFlow",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["keras_attention", "keras_attention.*"]),
    entry_points={"console_scripts": ["keras-attention = keras_attention.command:main"]},
    package_data={"keras_attention": ["py.typed", "visualize/attention_view.*"]},
    # The bounds are the versions that the tests ran on.
    python_requires=">=3.11,<3.14",
    install_requires=["keras>=3.15,<3.16", "tensorflow>=2.21,<2.22", "numpy>=2"],
    extras_require={
        "text": TEXT,
        "examples": EXAMPLES,
        "export": EXPORT,
        "docs": DOCS,
        "notebook": NOTEBOOK,
        "test": TEST,
        "backends": [*BACKENDS, *TEST],
        "peers": PEERS,
        "serving": SERVING,
        "distributed": DISTRIBUTED,
        "test-distributed": [*DISTRIBUTED, "psutil", "pytest"],
        "test-serving": [*SERVING, *EXPORT, *EXAMPLES, "playwright", "pytest"],
        "dev": ["ruff", "build", "twine", *TEST],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    keywords="attention keras tensorflow bahdanau luong multi-head seq2seq",
    zip_safe=False,
)
