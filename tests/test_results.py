"""docs/results.md is what its script makes of the results; examples are run as they are named."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUALITY = ROOT / "benchmarks" / "quality"


@pytest.fixture
def script(monkeypatch):
    """A function that loads a script of benchmarks/quality."""
    monkeypatch.setattr(sys, "path", [str(QUALITY), *sys.path])

    def load(name):
        spec = importlib.util.spec_from_file_location(name, QUALITY / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_page_is_what_the_results_give(script, tmp_path):
    folder, page = tmp_path / "results", tmp_path / "results.md"
    shutil.copytree(ROOT / "docs" / "results", folder)
    choice = tmp_path / "attention.md"
    kept = (ROOT / "docs" / "attention.md").read_text("utf-8")
    choice.write_text(re.sub(r"(report.py -->\n).*?(\n<!-- until)", r"\1old\2", kept, flags=re.S))
    script("report").main(
        ["--folder", str(folder), "--output", str(page), "--attention", str(choice)]
    )
    assert choice.read_text("utf-8") == kept and "bahdanau | " in kept
    text = page.read_text("utf-8")
    assert text == (ROOT / "docs" / "results.md").read_text("utf-8")
    pictures = re.findall(r"\]\((results/[^)]+\.(?:png|svg))\)", text)
    assert pictures and all((ROOT / "docs" / picture).exists() for picture in pictures)


def test_mean_and_deviation(script):
    spread = script("report").spread
    assert spread([]) == "not run"
    assert spread([0.1]) == "10.00 (1 run)"
    assert spread([0.1, 0.2]) == "15.00 ± 7.07 (2 runs)"
    assert spread([0.1, 0.2, 0.3]) == "20.00 ± 10.00"


def test_no_results_are_an_error(script, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script("report").main(["--folder", str(tmp_path), "--output", str(tmp_path / "page.md")])
    assert "no results" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_places_of_data_go_into_the_command(script):
    runs, places = script("runs"), {"multi30k": None, "sigmorphon": None, "shakespeare": None}
    assert "--data" not in runs.arguments_of("multi30k-dot", places)  # the example fetches it
    given = runs.arguments_of("multi30k-dot", {**places, "multi30k": Path("some/where")})
    assert given[:3] == ["translate.py", "--data", Path("some/where")]
    assert runs.arguments_of("transformer-ice", places) is None
    found = runs.arguments_of("transformer-ice", {**places, "sigmorphon": Path("words")})
    assert found[-1] == "words/ice_train.tsv"
    assert runs.arguments_of("shakespeare", {**places, "shakespeare": "a.txt"})[2] == "a.txt"
    for name in runs.RUNS:
        assert (ROOT / "examples" / runs.RUNS[name][0]).exists()


def test_finished_runs_are_kept(script, tmp_path, monkeypatch):
    """A run that is there is not made again; a new one appears whole, without where it lay."""
    runs, calls = script("runs"), []

    def example(command, env):
        calls.append(command)
        output = Path(command[command.index("--output") + 1])
        results = {"options": {"seed": 1, "output": str(output), "data": "x"}, "accuracy": 1}
        (output / "results.json").write_text(json.dumps(results))
        return type("Process", (), {"returncode": 0})

    monkeypatch.setattr(runs.subprocess, "run", example)
    options = ["--folder", str(tmp_path), "--names", "reverse-dot-1"]
    assert runs.main(options) == 0 and runs.main(options) == 0
    assert len(calls) == 1
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text()) == {"options": {"seed": 1}, "accuracy": 1}
    runs.main([*options, "--again"])
    assert len(calls) == 2
