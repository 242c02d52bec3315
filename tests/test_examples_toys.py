"""The examples of generated tasks: their pairs, their command lines, and a run of each."""

import datetime
import importlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
addition, attentions, dates, reverse, toy_options, toy_tasks = (
    importlib.import_module(name)
    for name in ("addition", "attentions", "dates", "reverse", "toy_options", "toy_tasks")
)
SCRIPTS = {"addition": addition, "dates": dates, "reverse": reverse}
MARCH = datetime.date(2021, 3, 4)


def options_of(script, *arguments):
    return SCRIPTS[script].parse_options([str(x) for x in arguments])


def task_of(script, *arguments):
    if script == "dates":
        pytest.importorskip("babel", reason="dates.py needs the optional package Babel")
    return SCRIPTS[script].make_task(options_of(script, *arguments))


def sources_of(pairs):
    return {source for source, _ in pairs}


def asked(task):
    return [pair for pairs in task.test.values() for pair in pairs]


# Pairs.


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_same_seed_gives_the_same_pairs_and_no_tested_one_is_learned(script):
    arguments = ("--smoke", "--examples", 500)
    task = task_of(script, *arguments, "--seed", 3)
    assert task == task_of(script, *arguments, "--seed", 3)
    assert task.train != task_of(script, *arguments, "--seed", 4).train
    assert len(task.train) == 500
    assert not sources_of(task.train) & sources_of(asked(task))
    assert set(task.watched) <= set(asked(task)) and set(task.drawn.values()) <= set(asked(task))


def test_strings_are_reversed_and_as_long_as_asked():
    task = task_of("reverse", "--train-length", 4, "--test-length", 7, "--examples", 300)
    assert all(target == source[::-1] for source, target in task.train + asked(task))
    assert {len(source) for source, _ in task.train} == {1, 2, 3, 4}
    assert list(task.test) == ["1-2", "3-4", "5-6", "7-7"]
    for name, pairs in task.test.items():
        first, last = map(int, name.split("-"))
        assert {len(source) for source, _ in pairs} == set(range(first, last + 1))
    assert max(len(source) for source, _ in task.watched) == 4
    # Half of the 26 strings of one letter are left to learn.
    assert [len(reverse.test_strings(random.Random(1), n)) for n in (1, 2)] == [13, 20]


def test_no_span_of_lengths_mixes_those_learned_with_longer_ones():
    assert reverse.buckets(30, 60) == [(1, 10), (11, 20), (21, 30), (31, 40), (41, 50), (51, 60)]
    assert reverse.buckets(5, 8) == [(1, 2), (3, 4), (5, 5), (6, 7), (8, 8)]
    assert reverse.buckets(1, 1) == [(1, 1)]


def test_sums_are_right_and_sorted_by_digits():
    task = task_of("addition", "--digits", 3, "--examples", 2000)
    for source, target in task.train + asked(task):
        assert re.fullmatch(r"(0|[1-9]\d*)\+(0|[1-9]\d*)", source)
        a, b = map(int, source.split("+"))
        assert target == str(a + b)
    for digits, pairs in task.test.items():
        assert {str(max(map(len, source.split("+")))) for source, _ in pairs} == {digits}
    assert {name: len(pairs) for name, pairs in task.test.items()} == {"1": 5, "2": 499, "3": 500}


def test_a_tested_sum_is_not_learned_the_other_way_round_either():
    task = task_of("addition", "--digits", 1, "--examples", 1000)
    turned = {"+".join(reversed(source.split("+"))) for source in sources_of(asked(task))}
    assert turned and not turned & sources_of(task.train)
    assert len(sources_of(task.train) | turned | sources_of(asked(task))) == 100  # 0+0 to 9+9


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("MMMM d, y", True),
        ("EEEE, d 'de' MMMM 'de' y", True),
        ("d LLLL y", True),
        ("y년 M월 d일 (E)", True),
        ("y/MM/dd", True),
        ("MM/dd/y", False),
        ("dd.MM.y", False),
        ("y/dd/MM", False),
        ("d MMM yy", False),
        ("MMMM y", False),
        ("d MMM y G 'd'", True),
    ],
)
def test_formats_that_tell_one_date_everywhere(pattern, expected):
    assert dates.well_defined(pattern) is expected


def written(locale):
    pytest.importorskip("babel", reason="dates.py needs the optional package Babel")
    return {dates.write(MARCH, pattern, locale) for pattern in dates.patterns_of(locale)}


def test_dates_as_locales_write_them():
    assert {"Mar 4, 2021", "March 4, 2021", "Thursday, March 4, 2021"} <= written("en")
    assert {"2021. 3. 4.", "2021년 3월 4일", "2021년 3월 4일 목요일"} <= written("ko")
    assert {"4. März 2021", "Donnerstag, 4. März 2021"} <= written("de")
    assert {"4 de marzo de 2021", "jueves, 4 de marzo de 2021"} <= written("es")
    assert {"4 mars 2021", "jeudi 4 mars 2021"} <= written("fr")
    assert {"2021/03/04", "2021年3月4日木曜日"} <= written("ja")
    for locale in dates.LOCALES:
        assert not {"3/4/2021", "04/03/2021", "4.3.2021", "04.03.2021"} & written(locale)


def test_no_text_means_two_dates():
    """Each day of a leap year, in every format of every locale and every case."""
    pytest.importorskip("babel", reason="dates.py needs the optional package Babel")
    days = [datetime.date(2012, 1, 1) + datetime.timedelta(n) for n in range(366)]
    meanings = {}
    for locale in dates.LOCALES:
        for pattern in dates.patterns_of(locale):
            for day in days:
                text = dates.write(day, pattern, locale)
                for case in dates.CASES:
                    meanings.setdefault(case(text), set()).add(day)
    assert len(meanings) > 10_000
    assert {len(days) for days in meanings.values()} == {1}


def test_pairs_of_dates():
    task = task_of("dates", "--locales", "en", "ko", "--examples", 2000)
    pairs = task.train + asked(task)
    assert list(task.test) == ["en", "ko"]
    days = {datetime.date.fromisoformat(target) for _, target in pairs}
    assert min(days) >= dates.FIRST and max(days) <= dates.LAST
    assert {day.year // 100 for day in days} == {19, 20}
    # A tested date is learned in no language.
    assert not {target for _, target in task.train} & {target for _, target in asked(task)}
    for text, target in task.test["ko"]:
        year, month, day = map(int, re.findall(r"\d+", text))
        assert target == f"{year:04}-{month:02}-{day:02}"
    sources = sources_of(pairs)
    assert any(x.isupper() for x in sources) and any(x != x.lower() for x in sources)


# Accuracy.


def test_accuracy_of_texts_and_characters():
    found = toy_tasks.accuracy(["abc", "ab", "abcd", ""], ["abc", "abc", "abc", "abc"])
    assert found == (1 / 4, (3 + 2 + 3 + 0) / 12, 4)
    assert toy_tasks.accuracy(["bca"], ["abc"]) == (0, 0, 1)
    for bad in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(ValueError, match="as many `outputs` as `references`"):
            toy_tasks.accuracy(*bad)


def test_few_of_many_come_from_everywhere():
    assert toy_tasks.every_few(list(range(10)), 5) == [0, 2, 4, 6, 8]
    assert toy_tasks.every_few(list(range(11)), 5) == [0, 3, 6, 9]
    assert toy_tasks.every_few([1, 2], 5) == [1, 2]


# Command line.


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("name", attentions.ATTENTIONS)
def test_every_attention_names_a_model(name, feeding):
    options = attentions.attention_options(name, feeding, window=2, longest_source=7)
    model = toy_tasks.seq2seq(9, 9, units=4, **options)
    ids = {"source": keras.ops.ones((2, 7), "int32"), "target": keras.ops.ones((2, 3), "int32")}
    assert model(ids).shape == (2, 3, 9)
    layer = model.get_layer("decoder").attention
    expected = {"bahdanau": "BahdanauAttention", "none": "NoAttention"}.get(name, "LuongAttention")
    assert type(layer).__name__ == expected
    assert type(model.get_layer("decoder")).__name__ == (
        "LuongDecoder" if feeding or expected == "LuongAttention" else "BahdanauDecoder"
    )
    assert getattr(layer, "local", None) == attentions.LOCAL.get(name)


def test_an_unknown_attention():
    with pytest.raises(ValueError, match="one of bahdanau, dot, .*, got 'luong'"):
        attentions.attention_options("luong")


def test_smoke_changes_defaults_and_leaves_what_is_given():
    assert options_of("reverse").examples == reverse.DEFAULTS["examples"]
    options = options_of("reverse", "--smoke", "--units", 8)
    assert (options.units, options.examples) == (8, reverse.SMOKE["examples"])
    assert options_of("reverse", "--smoke", "--train-length", 9).test_length == 10


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--attention", "luong"], "argument --attention: invalid choice: 'luong'"),
        (["--units", "0"], "argument --units: expected an integer above 0, got '0'"),
        (["--units", "7"], "--units 7: expected an even number"),
        (["--epochs", "x"], "argument --epochs: expected an integer above 0, got 'x'"),
        (["--model", "here"], "--model goes with --text"),
        (["--text"], "argument --text: expected at least one argument"),
    ],
)
def test_wrong_options(script, arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        options_of(script, *arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.count("\n") == 1
    assert error.startswith(f"{script}.py: error: ") and message in error


def test_tested_strings_are_at_least_as_long_as_learned_ones(capsys):
    with pytest.raises(SystemExit):
        options_of("reverse", "--test-length", 20)
    assert "--test-length 20: expected at least the --train-length, 30" in capsys.readouterr().err


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_has_examples(script, capsys):
    with pytest.raises(SystemExit) as stopped:
        options_of(script, "--help")
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert f"examples:\n  {script}.py " in text and "None" not in text


# Runs.


def refusal(script, capsys, *arguments):
    """The error of a run that is refused before anything is learned."""
    module = SCRIPTS[script]
    assert toy_tasks.main(script, module.make_task, options_of(script, *arguments)) == 2
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def test_a_folder_that_can_not_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    error = refusal("reverse", capsys, "--output", tmp_path / "file" / "folder")
    assert error.startswith("reverse.py: error: --output ")
    assert "expected a folder that can be written" in error


def test_a_model_that_is_missing_or_none(tmp_path, capsys):
    error = refusal("dates", capsys, "--text", "a", "--model", tmp_path)
    assert f"{tmp_path}: it holds no model.keras; train a model first" in error
    (tmp_path / "model.keras").write_text("no model", encoding="utf-8")
    error = refusal("dates", capsys, "--text", "a", "--output", tmp_path)
    assert f"{tmp_path / 'model.keras'} is no model of this script: " in error


def test_an_unknown_locale(tmp_path, capsys):
    pytest.importorskip("babel", reason="dates.py needs the optional package Babel")
    for name in ("xx_nowhere", "english"):
        error = refusal("dates", capsys, "--locales", "ko", name, "--output", tmp_path)
        assert f"--locales {name}: expected locales of Babel" in error


def test_without_babel(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    output = tmp_path / "output"
    error = refusal("dates", capsys, "--output", output)
    assert not output.exists()
    assert "Babel is needed to write dates: pip install 'keras-attention-layers[examples]'" in error


@pytest.mark.slow
def test_a_run_from_training_to_answers(tmp_path, capsys):
    output = tmp_path / "made" / "here"
    arguments = ("--smoke", "--train-length", 3, "--test-length", 4, "--examples", 128)
    options = options_of("reverse", *arguments, "--output", output)
    assert toy_tasks.main("reverse", reverse.make_task, options) == 0
    text = capsys.readouterr().out
    assert "Reversing strings of 1 to 3 letters: 128 pairs to learn from" in text
    assert "what it has not seen" in text and re.search(r"\n +all +\d+ ", text)
    names = ["alignment.png", "model.keras", "results.json"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert (output / "alignment.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((output / "results.json").read_text("utf-8"))
    assert list(results["accuracy"]) == ["1-1", "2-2", "3-3", "4-4", "all"]
    assert results["pairs"] == {"train": 128, "test": results["accuracy"]["all"]["count"]}
    assert results["settings"]["attention"] == "dot" and results["settings"]["seed"] == 1
    assert len(results["history"]["loss"]) == 1
    assert {"keras", "tensorflow", "keras_attention"} <= set(results["versions"])

    options = options_of("reverse", "--text", "abc", "", "--model", output)
    assert toy_tasks.main("reverse", reverse.make_task, options) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"abc\t[a-z]+", first) and second == "\t"


def run(script, *arguments):
    command = [sys.executable, ROOT / "examples" / f"{script}.py", *map(str, arguments)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script, tmp_path):
    if script == "dates":
        pytest.importorskip("babel", reason="dates.py needs the optional package Babel")
    process = run(script, "--smoke", "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "results.json").is_file() and list(tmp_path.glob("alignment*.png"))
    process = run(script, "--text", "2021년 3월 4일", "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("2021년 3월 4일\t")


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["bahdanau", "location", "local-m", "local-p", "none"])
def test_attentions_learn_save_and_answer(attention, tmp_path):
    (tmp_path / "alignment.png").write_bytes(b"of another run")
    arguments = ("--smoke", "--attention", attention, "--input-feeding", "--output", tmp_path)
    process = run("addition", *arguments)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "alignment.png").exists() == (attention != "none")


@pytest.mark.slow
def test_strings_of_a_few_letters_are_reversed_with_attention(tmp_path):
    arguments = ("--train-length", 6, "--test-length", 6, "--units", 64, "--examples", 6000)
    process = run("reverse", *arguments, "--epochs", 6, "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert results["accuracy"]["all"]["texts"] > 0.9
