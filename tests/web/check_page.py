"""The page of examples/serving/web in headless Chromium (`make test-web`): a model that runs in the
browser, the same model behind a real server, and what `attention_page` writes."""

import functools
import http.server
import json
import os
import shutil
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from keras_attention import (
    ByteTokenizer,
    CharacterTokenizer,
    MaskedCrossEntropy,
    SubwordTokenizer,
    WordTokenizer,
    attention_page,
    export_servable,
    seq2seq,
    text_batches,
    transformer,
)

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "serving" / "web"), str(ROOT / "tests" / "serving")]

import build  # noqa: E402
from processes import Server  # noqa: E402

LENGTH = 20
LETTERS = CharacterTokenizer.fit(["abcdefgh"])
TEXTS = ["abc", "hgfed", "a", "bad cab", "", "한", "gacb\nd"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def model():
    """Says short strings backwards, after some seconds of training."""
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefgh"), random.integers(1, 7))) for _ in range(4000)]
    model = seq2seq(LETTERS, LETTERS, units=64, cell="gru", attention="general")
    model.compile(keras.optimizers.Adam(5e-3), MaskedCrossEntropy())
    backwards = [word[::-1] for word in words]
    batches = text_batches(words, backwards, LETTERS, LETTERS, batch_size=64)
    model.fit(batches, epochs=5, shuffle=False, verbose=0)
    assert model.translate("hgfed") == "defgh"
    return model


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Pages:
    """A web server for a folder, with the address of each page in it."""

    def __init__(self, folder):
        self.folder = folder
        handler = functools.partial(QuietFiles, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def build(self, name, *arguments):
        arguments = [str(x) for x in (*arguments, "--output", self.folder / name)]
        build.build(build.read_arguments(arguments))
        return f"{self.origin}/{name}/"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pages = Pages(tmp_path_factory.mktemp("pages"))
    yield pages
    pages.server.shutdown()


@pytest.fixture(scope="module")
def in_browser(pages, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    options = ("--max-length", LENGTH, "--title", "Backwards", "--example", "abc", "hgfed")
    return pages.build("browser", path, *options)


@pytest.fixture(scope="module")
def behind_server(pages, model, tmp_path_factory):
    models = tmp_path_factory.mktemp("served") / "translate"
    models.mkdir()
    export_servable(model, models / "1", max_length=LENGTH, max_input_length=500)
    server = Server("kserve", models, "--allow-origin", pages.origin)
    yield pages.build("served", "--service", server.url, "--name", "translate")
    server.kill()


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail("Chromium is needed, e.g. apt install chromium; or name one in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that must not log an error."""
    page, errors = browser.new_page(viewport={"width": 820, "height": 640}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: line.type == "error" and errors.append(line.text))
    page.errors = errors
    yield page
    page.close()
    assert not errors


@pytest.fixture(params=["in_browser", "behind_server"])
def address(request):
    return request.getfixturevalue(request.param)


def ask(page, text):
    page.fill("#text", text)
    page.click("#go")
    expect(page.locator("#status")).to_contain_text("log-probability")
    return page.locator("#attention h2").text_content()


def open_page(page, address):
    page.goto(address)
    expect(page.locator("#go")).to_be_enabled(timeout=60_000)


def weights_of(page, side):
    tokens = page.locator(f"[data-side={side}] .token")
    return tokens.evaluate_all(
        "all => all.map(x => Number(x.style.getPropertyValue('--weight') || 0))"
    )


def test_answers(page, address, model):
    open_page(page, address)
    for text in TEXTS:
        if not text:
            continue  # the form wants one
        assert ask(page, text) == (model.translate(text, max_length=LENGTH) or "(nothing)")
        score = float(page.locator("#status").inner_text().rpartition(" ")[2])
        found = model.translate(text, max_length=LENGTH, details=True)
        assert score == pytest.approx(found.score, abs=0.011)


def test_pointing_at_a_token_shows_what_it_looked_at(page, address, model):
    open_page(page, address)
    assert ask(page, "hgfed") == "defgh"
    found = model.translate("hgfed", max_length=LENGTH, details=True)
    target = page.locator("[data-side=target] .token")
    source = page.locator("[data-side=source] .token")
    assert source.all_inner_texts() == [*"hgfed", "</s>"]
    assert target.all_inner_texts() == [*"defgh", "</s>"]
    for step in range(len(found.target_tokens)):
        target.nth(step).hover()
        np.testing.assert_allclose(
            weights_of(page, "source"), found.attention_scores[step], atol=1e-4
        )
        assert "chosen" in target.nth(step).get_attribute("class")
    # The last letter was written first: it is what the first one looked at.
    target.nth(0).hover()
    assert np.argmax(weights_of(page, "source")) == 4
    assert int(source.nth(4).get_attribute("data-percent").rstrip("%")) > 50
    source.nth(4).hover()
    np.testing.assert_allclose(
        weights_of(page, "target")[:-1], found.attention_scores[:, 4], atol=1e-4
    )
    # A click keeps it so.
    target.nth(0).click()
    page.locator("#title").hover()
    assert np.argmax(weights_of(page, "source")) == 4


def test_examples_and_keys(page, in_browser):
    open_page(page, in_browser)
    assert page.title() == "Backwards"
    page.get_by_role("button", name="hgfed").click()
    expect(page.locator("#attention h2")).to_have_text("defgh")
    page.fill("#text", "abc")
    page.press("#text", "Enter")
    expect(page.locator("#attention h2")).to_have_text("cba")


def test_texts_are_shown_as_they_are(page, address):
    open_page(page, address)
    ask(page, "<img src=x onerror=throw(1)>a")
    assert page.locator("#attention img").count() == 0


def test_a_text_that_is_too_long_is_refused_by_the_server(page, behind_server):
    open_page(page, behind_server)
    page.fill("#text", "a" * 600)
    page.click("#go")
    expect(page.locator("#error")).to_contain_text("too many tokens")
    page.errors.clear()  # (the browser logs the status 400)
    assert ask(page, "abc") == "cba"


def test_a_server_that_is_not_there(page, in_browser):
    open_page(page, f"{in_browser}?service=http://127.0.0.1:9&name=a")
    page.fill("#text", "abc")
    page.click("#go")
    expect(page.locator("#error")).to_contain_text("can not be reached")
    page.errors.clear()


def test_a_server_that_allows_no_page_of_others(page, behind_server, pages):
    stranger = behind_server.replace("127.0.0.1", "localhost")
    open_page(page, stranger)
    page.fill("#text", "abc")
    page.click("#go")
    expect(page.locator("#error")).to_contain_text("--allow-origin")
    page.errors.clear()


@pytest.mark.parametrize("cell", ["lstm", "no attention", "transformer"])
def test_other_models(page, pages, tmp_path, cell):
    """Untrained: the browser must say what the model says, whatever it is."""
    keras.utils.set_random_seed(2)
    words = WordTokenizer.fit(["a dog (brown) runs.", "It's a dog!"], lowercase=True)
    if cell == "no attention":
        model = seq2seq(words, words, units=16, attention=None)
    elif cell == "lstm":
        model = seq2seq(words, ByteTokenizer(), units=16, encoder_layers=2, input_feeding=True)
    else:
        model = transformer(
            words, words, layers=1, units=16, num_heads=2, max_length=12, position="learned"
        )
    path = tmp_path / "model.keras"
    model.save(path)
    open_page(page, pages.build(cell.replace(" ", "-"), path, "--max-length", 10))
    for text in ("A dog runs.", "it's (brown)", "dog dog  dog"):
        assert ask(page, text) == (model.translate(text, max_length=10) or "(nothing)")
        page.locator("[data-side=source] .token").first.hover()  # must not fail, see `page`


@pytest.mark.parametrize(
    "tokenizer",
    [
        CharacterTokenizer.fit(["abc ΑΣσς한국어éA"], lowercase=True, normalization="NFD"),
        CharacterTokenizer.fit(["abc <s> é"], normalization=None),
        WordTokenizer.fit(["(a) dog's tail, ΑΣ σ ß! ‿ x‿ 한국어 ... a_b"], lowercase=True),
        WordTokenizer.fit(["① ﬁne a.b c"], normalization="NFKC"),
        ByteTokenizer(),
        ByteTokenizer(lowercase=True, normalization="NFC"),
    ],
    ids=lambda x: f"{type(x).__name__}-{x.normalization}",
)
def test_tokenizers_are_those_of_the_package(page, in_browser, tokenizer):
    page.goto(in_browser)
    random = np.random.default_rng(0)
    letters = list("abcx  ..,()'_\n\t<s>AΣσς한국e\u0301éßﬁ①‿\u200d😀")
    texts = ["".join(random.choice(letters, random.integers(0, 12))) for _ in range(300)]
    texts += ["<s>", "</s> a", "⁇", " ", "  a  b  "]
    ids = [[int(x) for x in row] for row in np.asarray(tokenizer.encode(texts, add_end=True))]
    ids = [row[: row.index(2) + 1] for row in ids]
    wild = [[int(x) for x in random.integers(0, tokenizer.size + 2, 8)] for _ in range(300)]
    found = page.evaluate(
        """async ([description, texts, wild]) => {
          const { makeTokenizer } = await import("./tokens.js");
          const tokenizer = makeTokenizer(description);
          return [texts.map(tokenizer.encode), wild.map(tokenizer.decode)];
        }""",
        [build.describe("source", tokenizer), texts, wild],
    )
    assert found[0] == ids
    decoded = tokenizer.decode(np.array(wild)).numpy()
    assert found[1] == [text.decode("utf-8") for text in decoded]


def test_attention_page(page, tmp_path):
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4))
    path = tmp_path / "page.html"
    attention_page(weights, ["a", "<b>", "c"], list("wxyz"), title="<i>", path=path)
    page.goto(path.as_uri())
    assert page.locator(".attention-view h2").inner_text() == "<i>"
    target = page.locator("[data-side=target] .token")
    target.nth(2).hover()
    np.testing.assert_allclose(weights_of(page, "source"), weights.mean(0)[2], atol=2e-4)
    page.select_option("select", label="head 1")
    target.nth(1).hover()
    np.testing.assert_allclose(weights_of(page, "source"), weights[1, 1], atol=1e-4)
    canvas = page.locator("canvas").bounding_box()
    page.mouse.move(canvas["x"] + 2, canvas["y"] + canvas["height"] - 2)  # the cell (3, 0)
    np.testing.assert_allclose(weights_of(page, "source"), weights[1, 3], atol=1e-4)


def test_what_can_not_be_built(tmp_path, model):
    def message(*arguments):
        with pytest.raises((build.BuildError, SystemExit)) as error:
            build.build(build.read_arguments([*map(str, arguments)]))
        return str(error.value)

    output = ("--output", tmp_path / "out")
    assert "no such file" in message(tmp_path / "a.keras", *output)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    assert "not overwritten" in message("--service", "http://x", "--output", full)
    subwords = SubwordTokenizer.fit(["abc abd", "bcd"] * 20, vocabulary_size=11)
    path = tmp_path / "subwords.keras"
    seq2seq(subwords, LETTERS, units=8).save(path)
    assert "Others work with --service" in message(path, *output)
    assert message(*output) == "2" and message(path, "--service", "http://x", *output) == "2"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["full", "subwords.keras"]


def test_building_again(pages, in_browser):
    address = pages.build("again", "--service", "http://127.0.0.1:1")
    assert pages.build("again", "--service", "http://127.0.0.1:2", "--title", "x") == address
    settings = json.loads((pages.folder / "again" / "page.json").read_text("utf-8"))
    assert settings["service"]["url"].endswith(":2")
