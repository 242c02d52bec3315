"""The pronunciation example as its users run it, and the model that it exports."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_KERAS = """
import runpy, sys
sys.modules.update(keras=None, keras_attention=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
KOREAN = {"가": "k a", "각": "k a k̚", "나": "n a", "난": "n a n", "간": "k a n", "낙": "n a k̚"}


def run(*arguments, cwd=ROOT):
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": ""}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment,
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g2p")
    output = folder / "made" / "here"
    process = run(ROOT / "examples" / "g2p.py", "--smoke", "--output", output, cwd=folder)
    assert process.returncode == 0, process.stderr
    return process.stdout, output


@pytest.fixture(scope="module")
def serve(smoke):
    model = tf.saved_model.load(str(smoke[1] / "saved_model"))
    signature = model.signatures["serving_default"]
    return lambda words, _owner=model: signature(text=tf.constant(words, "string"))


@pytest.mark.slow
def test_the_script_says_what_it_did(smoke):
    text, _ = smoke
    assert "phoneme error rate" in text and "word error rate" in text
    assert "split by a hash of the word" in text
    assert "a word is right if any of its listed pronunciations is met" in " ".join(text.split())
    assert "A process without Keras pronounced 50 words" in text


@pytest.mark.slow
def test_the_script_leaves_whole_files_only(smoke):
    _, output = smoke
    names = ["alignment.png", "model.keras", "results.json", "saved_model", "vocabulary.json"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert (output / "alignment.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((output / "results.json").read_text("utf-8"))
    assert results["words"] == {"train": 300, "dev": 50, "test": 50}
    assert 0 < results["word_error"] <= 1
    letters, phones = keras.models.load_model(output / "model.keras").inputs
    assert (letters.name, phones.name) == ("letters", "phones")


@pytest.mark.slow
def test_the_exported_model_takes_any_batch(serve):
    check_serving(serve)


def check_serving(serve):
    words = ["attention", "", "Keras", "ñandú", "x" * 60]
    together = serve(words)
    for row, word in enumerate(words):
        alone = serve([word])
        assert alone["pronunciation"][0] == together["pronunciation"][row]
        np.testing.assert_allclose(alone["score"][0], together["score"][row], atol=1e-3)
    assert together["attention"].shape[2] == together["letters"].shape[1] == 60
    assert together["pronunciation"][1] == b"" and together["score"][1] == 0.0
    for words in ([], [""], ["", " "]):
        outputs = serve(words)
        assert outputs["pronunciation"].shape == (len(words),)
        assert outputs["attention"].shape[0] == outputs["tokens"].shape[0] == len(words)
        assert np.all(np.isfinite(outputs["attention"]))


@pytest.mark.slow
def test_attention_weights_of_the_exported_model(serve):
    outputs = serve(["attention", "a"])
    lengths = [len(text.split()) for text in outputs["pronunciation"].numpy()]
    sums = np.sum(outputs["attention"], axis=-1)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(sums[row, : length + 1], 1, atol=1e-5)
        np.testing.assert_allclose(sums[row, length + 1 :], 0)
    assert np.all(outputs["attention"].numpy()[1, :, 1:] == 0)  # "a" has one letter
    assert "".join(letter.decode() for letter in outputs["letters"].numpy()[0]) == "attention"


@pytest.mark.slow
def test_case_and_unknown_letters(serve):
    upper, lower = serve(["ATTENTION"]), serve([" attention "])
    assert upper["pronunciation"][0] == lower["pronunciation"][0]
    unknown = serve(["日本", "ж"])
    assert np.all(np.isfinite(unknown["score"]))


@pytest.mark.slow
def test_pronounce_works_where_keras_can_not_be_imported(smoke, tmp_path):
    script, picture = ROOT / "examples" / "pronounce.py", tmp_path / "plot.png"
    arguments = ("--model", smoke[1] / "saved_model", "--plot", picture, "attention", "model")
    process = run("-c", WITHOUT_KERAS, script, *arguments)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["attention", "model"]
    assert all(float(line.split("\t")[2]) < 0 for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG")
    barred = run("-c", WITHOUT_KERAS, ROOT / "examples" / "g2p.py", "--help")
    assert "ModuleNotFoundError" in barred.stderr or "ImportError" in barred.stderr


def test_bad_data_ends_the_script_with_code_2(tmp_path):
    bad = tmp_path / "bad.tsv"
    bad.write_text("good\tG UH D\nbad line\n", encoding="utf-8")
    output = tmp_path / "output"
    process = run(ROOT / "examples" / "g2p.py", "--data", bad, "--output", output)
    assert process.returncode == 2
    assert f"{bad}, line 2: expected 'word<TAB>phones" in process.stderr
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["bahdanau", "general", "concat", "none"])
def test_every_attention_trains_and_exports(tmp_path, attention):
    arguments = ("--smoke", "--attention", attention, "--output", tmp_path / "output")
    process = run(ROOT / "examples" / "g2p.py", *arguments)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "output" / "alignment.png").exists() == (attention != "none")


@pytest.mark.slow
def test_a_transformer_trains_exports_and_is_used_without_keras(tmp_path):
    output = tmp_path / "output"
    arguments = ("--smoke", "--model", "transformer", "--output", output)
    process = run(ROOT / "examples" / "g2p.py", *arguments)
    assert process.returncode == 0, process.stderr
    assert "Model: transformer; attention: multi-head" in process.stdout
    assert "A process without Keras pronounced 50 words" in process.stdout
    assert (output / "alignment.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((output / "results.json").read_text("utf-8"))
    assert results["model"] == "transformer" and results["beam_word_error"] <= 1
    model = tf.saved_model.load(str(output / "saved_model"))
    serve = model.signatures["serving_default"]
    check_serving(lambda words: serve(text=tf.constant(words, "string")))


@pytest.mark.slow
def test_korean_is_learned_and_its_words_are_given_back_whole(tmp_path):
    for part in ("train", "dev", "test"):
        lines = [f"{word}\t{phones}\n" for word, phones in KOREAN.items()]
        rows = {"train": lines[:4] * 1, "dev": lines[4:5], "test": lines[5:]}[part]
        (tmp_path / f"kor_{part}.tsv").write_text("".join(rows), encoding="utf-8")
    data, output = tmp_path / "kor_train.tsv", tmp_path / "output"
    process = run(ROOT / "examples" / "g2p.py", "--data", data, "--output", output, "--epochs", 60)
    assert process.returncode == 0, process.stderr
    model = tf.saved_model.load(str(output / "saved_model"))
    outputs = model.signatures["serving_default"](text=tf.constant(["각", "난"]))
    phones = [text.decode() for text in outputs["pronunciation"].numpy()]
    assert phones == ["k a k̚", "n a n"]
    assert [letter.decode() for letter in outputs["letters"].numpy()[0]] == [
        "\u1100",
        "\u1161",
        "\u11a8",
    ]
