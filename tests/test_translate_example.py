"""The translation example: its data, its scores, and the script as its users run it."""

import gzip
import hashlib
import importlib
import json
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
translate, data, options, score = (
    importlib.import_module(name)
    for name in ("translate", "translate_data", "translate_options", "translate_score")
)
NEEDS_BLEU = "BLEU is computed by sacrebleu, of the extra `examples`"


def write_folder(folder, train=(), dev=(), test=()):
    """Files of German and English as Multi30k has them, of lists of pairs."""
    folder.mkdir(exist_ok=True)
    for part, pairs in zip(data.PARTS, (train, dev, test), strict=True):
        for language, place in (("de", 0), ("en", 1)):
            text = "".join(pair[place] + "\n" for pair in pairs)
            with gzip.open(folder / f"{part}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write(text)
    return folder


PAIRS = [("Ein Hund.", "A dog."), ("Der Ball.", "The ball.")]


# Data


def test_a_folder_of_parallel_files(tmp_path):
    folder = write_folder(tmp_path / "data", PAIRS, PAIRS[:1], PAIRS[1:])
    (folder / "val.de").write_text("Plain.\n", encoding="utf-8")  # goes before the .gz
    name, parts = data.load_parts(options.parse_options(["--data", str(folder)]))
    assert name == "data"
    assert parts.train == (["ein hund.", "der ball."], ["a dog.", "the ball."])
    assert parts.dev == (["plain."], ["a dog."])
    assert parts.test == (["der ball."], ["the ball."])


def test_pairs_are_split_by_their_source():
    pairs = [(f"Satz {i % 3000}.", f"sentence {i}") for i in range(6000)]
    pairs += [(source.upper(), target) for source, target in pairs[:500]]
    parts = data.split(data.Pairs(*map(list, zip(*pairs, strict=True))))
    keys = [{source.lower() for source in part.sources} for part in parts]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    for part in parts[1:]:
        assert len(set(part.sources)) == len(part.sources)  # tested on once
        assert 30 <= len(part.sources) <= 90  # 2 percent of 3,000
    held_out = len(keys[1]) + len(keys[2])
    assert len(keys[0]) == 3000 - held_out
    shuffled = data.split(data.Pairs(*map(list, zip(*reversed(pairs), strict=True))))
    assert [{source.lower() for source in part.sources} for part in shuffled] == keys
    assert set(zip(*parts.train, strict=True)) <= set(pairs)


def test_no_more_is_held_out_than_is_needed():
    pairs = [(str(i), str(i)) for i in range(130_000)]
    parts = data.split(data.Pairs(*zip(*pairs, strict=True)))
    assert [len(part.sources) for part in parts[1:]] == [data.LARGEST_DEV, data.LARGEST_TEST]


def test_pair_files_plain_zipped_and_swapped(tmp_path):
    text = "Go.\tVete.\tCC-BY\nHi!\t¡Hola!\tCC-BY\n"
    plain, archive = tmp_path / "spa.txt", tmp_path / "spa-eng.zip"
    plain.write_text(text, encoding="utf-8")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("_about.txt", "about")
        file.writestr("spa.txt", text)
    for path in (plain, archive):
        assert data.read_pair_file(path) == (["Go.", "Hi!"], ["Vete.", "¡Hola!"])
    assert data.read_pair_file(archive, swap=True).sources == ["Vete.", "¡Hola!"]


def test_the_grammar_has_every_sentence_once():
    pairs = data.grammar()
    assert len(set(pairs.sources)) == len(pairs.sources) == len(pairs.targets) == 180
    assert ("Eine Frau sucht heute den Ball.", "A woman is looking for the ball today.") in zip(
        *pairs, strict=True
    )
    assert all(len(part.sources) >= 10 for part in data.split(pairs, percent=10))


def test_fetched_files_are_checked_and_kept(tmp_path):
    origin, cache = tmp_path / "origin", tmp_path / "new" / "cache"
    origin.mkdir()
    (origin / "a.gz").write_bytes(b"first")
    files = {"a.gz": hashlib.sha256(b"first").hexdigest()}
    address = origin.as_uri() + "/"
    data.fetch(cache, address, files)
    assert [path.name for path in cache.iterdir()] == ["a.gz"]
    assert (cache / "a.gz").read_bytes() == b"first"
    (origin / "a.gz").unlink()
    data.fetch(cache, address, files)  # now from the cache
    (cache / "a.gz").write_bytes(b"spoiled")
    with pytest.raises(data.DataError, match="a.gz: expected the SHA256 .*, got "):
        data.fetch(cache, address, files)


def test_what_is_not_as_expected_is_not_kept(tmp_path):
    origin, cache = tmp_path / "origin", tmp_path / "cache"
    origin.mkdir()
    (origin / "a.gz").write_bytes(b"other")
    with pytest.raises(data.DataError, match="expected the SHA256"):
        data.fetch(cache, origin.as_uri() + "/", {"a.gz": "0" * 64})
    assert not cache.exists()
    with pytest.raises(data.DataError, match=r"can not fetch .*--data DIR.*--smoke.*reverse\.py"):
        data.fetch(cache, origin.as_uri() + "/", {"missing.gz": "0" * 64})
    assert not cache.exists()


# Scores


def test_bleu():
    pytest.importorskip("sacrebleu", reason=NEEDS_BLEU)
    assert score.bleu(["A dog runs."] * 2, ["a dog RUNS ."] * 2).bleu == 100  # case, tokens
    # Precisions 4/5, 3/4, 2/3 and 1/2 of 1 to 4 words; no brevity penalty.
    found = score.bleu(["a b c d e"], ["a b c d f"])
    assert found.bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25, abs=0.01)
    assert "case:lc" in found.signature and "tok:13a" in found.signature


def test_bleu_by_length_of_the_source():
    pytest.importorskip("sacrebleu", reason=NEEDS_BLEU)
    sources = [" ".join("x" * n) for n in (1, 6, 7, 15, 16, 40)]
    outputs = ["a b c d e"] * 2 + ["none of these words"] + ["a b c d e"] * 3
    rows = score.bleu_by_length(sources, outputs, ["a b c d e"] * 6)
    assert [(row["from"], row["to"], row["sentences"]) for row in rows] == [
        (0, 6, 2),
        (7, 9, 1),
        (13, 15, 1),
        (16, 20, 1),
        (21, 40, 1),
    ]
    assert [row["bleu"] > 50 for row in rows] == [True, False, True, True, True]


# Training


def test_the_learning_rate_rises_and_falls():
    rate = [float(translate.schedule(0.01, 100)(step)) for step in range(101)]
    assert rate[0] == 0 and rate[10] == pytest.approx(0.01) == max(rate)
    assert rate[5] == pytest.approx(0.005)
    assert rate[55] == pytest.approx(0.005) and rate[100] == pytest.approx(0, abs=1e-6)
    assert np.isfinite([float(translate.schedule(0.01, 1)(step)) for step in range(3)]).all()


def test_the_time_limit_ends_the_training_before_it_is_passed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(translate.time, "monotonic", lambda: now[0])
    limit = translate.TimeLimit(minutes=1)
    limit.set_model(types.SimpleNamespace(stop_training=False))
    ended = []
    for epoch in range(4):  # of 18 seconds: the fourth would end at 72
        limit.on_epoch_begin(epoch)
        now[0] += 18
        limit.on_epoch_end(epoch)
        ended.append(limit.model.stop_training)
        if ended[-1]:
            break
    assert ended == [False, False, True]


def test_few_texts_get_as_many_ids_as_they_allow():
    words = translate.fit_tokenizer("words", ["a b", "c d"], None)
    assert words.size == 4 + 4
    assert translate.fit_tokenizer("words", ["a b", "a d"], 6).size == 6
    with pytest.raises(translate.OptionError, match="--vocabulary 3"):
        translate.fit_tokenizer("characters", ["ab"], 3)


def test_few_texts_get_as_many_subwords_as_they_allow():
    pytest.importorskip("sentencepiece", reason="subwords need the extra `text`")
    pytest.importorskip("tensorflow_text", reason="subwords need the extra `text`")
    texts = data.grammar().sources
    tokenizer = translate.fit_tokenizer("subwords", texts, None)
    assert 20 < tokenizer.size < 1000
    assert tokenizer.decode(tokenizer.encode(texts[:1])).numpy()[0].decode() == texts[0].lower()
    with pytest.raises(translate.OptionError, match="--vocabulary 5000: .*at most"):
        translate.fit_tokenizer("subwords", texts, 5000)


# The script


def run(*arguments, cwd=ROOT):
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "", "HOME": ""}
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "translate.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment,
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    pytest.importorskip("sacrebleu", reason=NEEDS_BLEU)
    folder = tmp_path_factory.mktemp("translate")
    output = folder / "made" / "here"
    arguments = ("--smoke", "--tokenizer", "words", "--epochs", 4, "--beam-width", 2)
    process = run(*arguments, "--learning-rate", 0.02, "--output", output, cwd=folder)
    assert process.returncode == 0, process.stderr
    return process.stdout, output


@pytest.mark.slow
def test_the_script_leaves_what_it_says(smoke):
    text, output = smoke
    assert sorted(path.name for path in output.iterdir()) == sorted(translate.WRITTEN)
    assert (output / "alignment.png").read_bytes().startswith(b"\x89PNG")
    assert "Held-out sentences, greedy: BLEU" in text and "beam of 2: BLEU" in text
    assert text.count("reference:") == translate.SHOWN
    results = json.loads((output / "results.json").read_text("utf-8"))
    assert results["data"] == "a small grammar" and results["tokenizer"] == "words"
    assert sum(results["pairs"].values()) == 180
    assert results["options"]["epochs"] == len(results["history"]["loss"]) == 4
    assert results["signature"] in text and f"{results['parameters']:,} parameters" in text
    assert results["seconds"]["total"] > results["seconds"]["training"] > 0
    for name in ("greedy", "beam"):
        assert 0 <= results["bleu"][name] <= 100
        rows = results["bleu_by_length"][name]
        assert sum(row["sentences"] for row in rows) == results["pairs"]["test"]


@pytest.mark.slow
def test_the_saved_model_is_that_of_the_best_epoch(smoke):
    _, output = smoke
    results = json.loads((output / "results.json").read_text("utf-8"))
    losses = results["history"]["val_loss"]
    assert results["best_epoch"] == losses.index(min(losses)) + 1
    model = keras.models.load_model(output / "model.keras")
    assert model.count_params() == results["parameters"]
    dev = data.load_parts(options.parse_options(["--smoke"]))[1].dev
    batches = translate.text_batches(
        *dev, model.inference.source, model.inference.target, 32, shuffle=False
    )
    assert model.evaluate(batches, verbose=0) == pytest.approx(min(losses), abs=1e-3)


def test_texts_are_translated_without_training(smoke, capsys):
    _, output = smoke
    texts = ["EIN MANN sieht den Ball.", "", "völlig Unbekanntes"]
    arguments = ["--model", str(output), "--beam-width", "1", "--text", *texts]
    assert translate.main(arguments) == 0
    lines = capsys.readouterr().out.split("\n")
    model = keras.models.load_model(output / "model.keras", compile=False)
    assert lines == [*model.translate([text.lower() for text in texts]), ""]


def test_run_returns_the_results(tmp_path):
    pytest.importorskip("sacrebleu", reason=NEEDS_BLEU)
    folder = write_folder(tmp_path / "data", PAIRS * 2, PAIRS, PAIRS)
    output = tmp_path / "output"
    arguments = ["--data", folder, "--smoke", "--tokenizer", "characters", "--attention", "none"]
    arguments += ["--limit", 3, "--test-limit", 1, "--beam-width", 1, "--epochs", 1]
    arguments += ["--output", output]
    results = translate.run(options.parse_options(list(map(str, arguments))))
    assert results["pairs"] == {"train": 3, "dev": 2, "test": 1}
    assert list(results["bleu"]) == ["greedy"]
    written = json.loads((output / "results.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(results))
    assert not (output / "alignment.png").exists()  # nothing attends


# Errors: one line, exit code 2, nothing written


def spoil_lines(folder):
    (folder / "train.en").write_text("one\n", encoding="utf-8")


def spoil_utf8(folder):
    (folder / "train.de").write_bytes(b"gut\nschl\xe4cht\n")


def spoil_archive(folder):
    path = folder / "val.en.gz"
    path.write_bytes(path.read_bytes()[:-9])


def remove_file(folder):
    (folder / "val.en.gz").unlink()


@pytest.mark.parametrize(
    "spoil, messages",
    [
        (spoil_lines, ["2 in", "train.de.gz", "1 in", "train.en"]),
        (spoil_utf8, ["train.de, line 2", "0xE4"]),
        (spoil_archive, ["val.en.gz", "not a whole .gz archive"]),
        (remove_file, ["no such file", "val.en.gz"]),
    ],
)
def test_bad_data_is_one_line(tmp_path, capsys, monkeypatch, spoil, messages):
    monkeypatch.setattr(translate, "missing_packages", lambda options: None)
    folder = write_folder(tmp_path / "data", PAIRS, PAIRS, PAIRS)
    spoil(folder)
    assert translate.main(["--data", str(folder), "--output", str(tmp_path / "output")]) == 2
    check_line(capsys, *messages)
    assert not (tmp_path / "output").exists()


def check_line(capsys, *messages):
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("translate.py: error: ")
    for message in messages:
        assert message in printed


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("pairs.tsv", b"a\tb\nc\n", "line 2: expected source, tab, target"),
        ("pairs.zip", b"PK no archive", "not a whole .zip archive"),
        ("pairs.tsv", b"a\tb\n", "the dev part is empty"),
        ("pairs.tsv", None, "no such file"),
        ("pairs.zip", None, "no such file"),
    ],
)
def test_bad_pairs_are_one_line(tmp_path, capsys, monkeypatch, name, content, message):
    monkeypatch.setattr(translate, "missing_packages", lambda options: None)
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert translate.main(["--pairs", str(path), "--output", str(tmp_path / "output")]) == 2
    check_line(capsys, name, message)


def test_a_bad_line_in_an_archive_is_named(tmp_path):
    archive = tmp_path / "spa-eng.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("spa.txt", b"a\tb\nno tab\n")
    with pytest.raises(data.DataError, match=r"spa-eng\.zip/spa\.txt, line 2"):
        data.read_pair_file(archive)


def test_the_output_must_not_mix_with_other_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(translate, "missing_packages", lambda options: None)
    (tmp_path / "thesis.tex").write_text("mine")
    assert translate.main(["--smoke", "--output", str(tmp_path)]) == 2
    check_line(capsys, "--output", "it holds thesis.tex")
    assert translate.main(["--smoke", "--output", str(tmp_path / "thesis.tex")]) == 2
    check_line(capsys, "--output", "thesis.tex")


@pytest.mark.parametrize("package", ["sacrebleu", "matplotlib"])
def test_a_missing_package_is_named_before_the_training(capsys, monkeypatch, package):
    find = translate.importlib.util.find_spec
    monkeypatch.setattr(
        translate.importlib.util, "find_spec", lambda name: None if name == package else True
    )
    assert translate.main(["--smoke"]) == 2
    check_line(capsys, f"pip install {package}")
    monkeypatch.setattr(translate.importlib.util, "find_spec", find)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--epochs", "0"], "expected an integer above 0"),
        (["--dropout", "1"], "expected a number from 0 to below 1"),
        (["--learning-rate", "nan"], "expected a number above 0"),
        (["--length-penalty", "-1"], "expected a number of at least 0"),
        (["--attention", "all"], "invalid choice"),
        (["--units", "33"], "--units must be even"),
        (["--text", "ein Hund"], "--text and --model go together"),
        (["--model", "folder"], "--text and --model go together"),
        (["--data", "a", "--pairs", "b"], "not allowed with"),
    ],
)
def test_bad_options_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        translate.main(arguments)
    check_line(capsys, message)


def test_a_folder_without_a_model(tmp_path, capsys):
    assert translate.main(["--model", str(tmp_path), "--text", "a"]) == 2
    check_line(capsys, "holds no model.keras")
    (tmp_path / "model.keras").write_bytes(b"no model")
    assert translate.main(["--model", str(tmp_path), "--text", "a"]) == 2
    check_line(capsys, "model.keras")


def test_options_that_do_not_go_together(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(translate, "missing_packages", lambda options: None)
    arguments = ["--smoke", "--tokenizer", "words", "--attention", "bahdanau", "--embedding", "4"]
    arguments += ["--tied-embeddings", "--output", str(tmp_path / "output")]
    assert translate.main(arguments) == 2
    check_line(capsys, "`tied_embeddings` with the decoder 'bahdanau'")
