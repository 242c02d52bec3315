"""Uses an installed package, not that of a checkout: trains, saves, loads, exports, asks.

Run by `make test-release` in a new environment, from an empty folder.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import tensorflow as tf

import keras_attention as ka


def main():
    place = Path(ka.__file__).resolve()
    if Path(sys.prefix).resolve() not in place.parents:
        sys.exit(f"imported {place}, which is not in the environment {sys.prefix}")
    version = importlib.metadata.version("keras-attention-layers")
    assert version == ka.__version__, (version, ka.__version__)
    words = ["abc", "dab", "cad", "bad", "cab"] * 8
    letters = ka.CharacterTokenizer.fit(words)
    model = ka.seq2seq(letters, letters, units=16, attention="bahdanau")
    model.compile("adam", ka.MaskedCrossEntropy())
    batches = ka.text_batches(words, [x[::-1] for x in words], letters, letters, batch_size=8)
    model.fit(batches, epochs=2, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        file, servable = Path(folder) / "model.keras", Path(folder) / "servable"
        model.save(file)
        expected = model.translate(words[:5], max_length=6)
        assert keras.saving.load_model(file).translate(words[:5], max_length=6) == expected
        command = Path(sys.executable).with_name("keras-attention")
        export = [command, "export", file, servable, "--max-length", "6"]
        subprocess.run(list(map(str, export)), check=True)
        ask = [str(command), "run", str(servable), "--text", *words[:5]]
        done = subprocess.run(ask, check=True, capture_output=True, text=True)
        assert done.stdout.split("\n")[:-1] == expected, done.stdout
        page = ka.attention_page([[0.5, 0.5]], ["a", "b"], ["c"], path=Path(folder) / "page.html")
        assert "showAttention" in page.html
    python = ".".join(map(str, sys.version_info[:3]))
    print(
        f"keras-attention-layers {version} on Python {python}, Keras {keras.__version__}, "
        f"TensorFlow {tf.__version__}: trained, saved, loaded, exported and asked"
    )


if __name__ == "__main__":
    main()
