"""The pages in docs/ as a whole: all are listed, complete, linked right, and translated."""

import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest

import keras_attention

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
INDEX = (ROOT / "docs" / "index.md").read_text("utf-8")
TRANSLATED = {"README.md": "README.ko.md", "docs/equations.md": "docs/equations.ko.md"}
FENCE = re.compile(r"^```.*?^```$", re.S | re.M)


def load(name):
    """A module of docs/site, which is no package."""
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(page):
    return (ROOT / page).read_text("utf-8")


def listed():
    return load("navigation").pages(INDEX)


def test_every_page_is_in_the_navigation_once():
    found = listed()
    assert len(found) == len(re.findall(r"^- \[", INDEX, re.M))
    assert all((ROOT / page).is_file() for page in found)
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert pages - {"docs/index.md"} <= set(found)


def test_each_section_of_the_index_becomes_a_toctree():
    text = "# T\n\n## One\n\n- [A](a.md): x\n- [B](../B.md)\n\n## Two\n\n- [C](c/d.ipynb)\n"
    made = load("navigation").with_navigation(text)
    assert ":caption: One\n\nA </docs/a>\nB </B>\n```" in made
    assert ":caption: Two\n\nC </docs/c/d>\n```" in made


def test_every_public_name_is_in_the_reference_once():
    blocks = re.findall(r"^```\{reference\}\n(.*?)^```$", read("docs/reference.md"), re.S | re.M)
    names = [line for block in blocks for line in block.split()]
    assert len(names) == len(set(names))
    public = {name for name in names if "." not in name}
    assert public == set(keras_attention.__all__)


@pytest.mark.parametrize("page", [page for page in listed() if page.endswith(".md")])
def test_links_lead_to_files(page):
    """To a folder, a code host can link and a site can not."""
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", read(page)))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), f"{page}: {target} is no file"
        if file.suffix in (".md", ".ipynb"):  # of what is not listed the site makes no page
            name = str(file.resolve().relative_to(ROOT))
            assert name in {*listed(), "docs/index.md"}, f"docs/index.md does not list {name}"
        if anchor and file.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", FENCE.sub("", file.read_text("utf-8")), re.M)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page}: {target}: no such heading"


@pytest.mark.parametrize(("page", "translation"), TRANSLATED.items())
def test_a_translation_has_the_same_code_and_headings(page, translation):
    original, translated = read(page), read(translation)
    for ours, theirs in zip(FENCE.findall(original), FENCE.findall(translated), strict=True):
        assert ours == theirs

    def outline(text):
        return re.findall(r"^#+(?= )", FENCE.sub("", text), re.M)

    assert outline(original) == outline(translated)
    assert f"]({Path(translation).name})" in original.split("\n## ")[0]
    assert f"]({Path(page).name})" in translated.split("\n## ")[0]


def test_docstrings_become_markdown():
    docstring = """Sums.

        y = a + b

    Args:
        a, b,
        c: `[B]`, first
            and second.
        **kwargs: more.

    Returns:
        A tensor, of: `[B]`.

    Raises:
        as `other`.

    Example:

    >>> f(1)
    1
    <BLANKLINE>
    """
    wanted = """
Sums.

    y = a + b

**Args**

`a`, `b`, `c`
: `[B]`, first
  and second.

`**kwargs`
: more.

**Returns**

A tensor, of: `[B]`.

**Raises**

as `other`.

**Example**

```pycon
>>> f(1)
1

```
"""
    assert load("docstrings").to_markdown(docstring) == wanted.strip()


@pytest.mark.parametrize("name", keras_attention.__all__)
def test_no_word_of_a_docstring_is_lost(name):
    docstring = inspect.getdoc(getattr(keras_attention, name))
    made = load("docstrings").to_markdown(docstring)

    def words(text):
        return re.findall(r"\w+", text.replace("<BLANKLINE>", "").replace("pycon", ""))

    assert sorted(words(made)) == sorted(words(docstring))


def test_every_part_of_the_package_is_drawn():
    drawing = read("docs/internals.md").split("## Who imports whom")[1].split("```")[1]
    package = ROOT / "keras_attention"
    parts = {path.stem for path in package.iterdir() if (path / "__init__.py").exists()}
    parts |= {path.stem for path in package.glob("*.py") if not path.stem.startswith("_")}
    assert parts <= set(re.findall(r"\w+", drawing))


def test_the_pictures_of_the_equations_are_those_of_the_script():
    names = set(load("draw_equations").PANELS)
    shown = set(re.findall(r"\]\(equations/(\w+)\.png\)", read("docs/equations.md")))
    files = {path.stem for path in (ROOT / "docs" / "equations").glob("*.png")}
    assert names == shown == files


def test_the_notebook_is_made_of_the_script():
    made = load("make_notebook").notebook(read("examples/quickstart.py"))
    kept = json.loads(read("examples/quickstart.ipynb"))
    assert [(x["cell_type"], x["source"]) for x in kept["cells"]] == [
        (x["cell_type"], x["source"]) for x in made["cells"]
    ], "run: python docs/site/make_notebook.py --execute"
    printing = [x for x in kept["cells"] if x["cell_type"] == "code" and "print(" in str(x)]
    assert printing and all(x["outputs"] for x in printing)


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the kernel
    maker = load("make_notebook")
    done = maker.execute(maker.notebook(read("examples/quickstart.py")), ROOT / "examples")
    outputs = [output for cell in done["cells"] for output in cell.get("outputs", ())]
    printed = "".join(line for output in outputs for line in output.get("text", ()))
    assert int(re.search(r"(\d+) of 200 held-out numbers are right", printed).group(1)) > 180
    assert printed.strip().endswith("602010"), "what TensorFlow alone answered"
    assert any("image/png" in output.get("data", ()) for output in outputs)
