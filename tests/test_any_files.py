"""Files of any bytes and texts of any characters: read without loss, or refused in one line."""

import gzip
import importlib
import io
import json
import lzma
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keras_attention import ByteTokenizer, CharacterTokenizer, SubwordTokenizer, WordTokenizer
from keras_attention.links import read_links
from keras_attention.text import DataError, read_lines, read_pairs, read_parallel
from keras_attention.text.inputs import to_texts
from keras_attention.visualize import alignment_text, attention_page, plot_alignment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
g2p_data, language_text, listops_data, translate_data = (
    importlib.import_module(name)
    for name in ("g2p_data", "language_text", "listops_data", "translate_data")
)

few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BOM = b"\xef\xbb\xbf"
# What files hold by accident: other line ends, NUL, marks of other encodings, half letters, text
# from right to left with its marks, emoji of several code points, marks without a letter.
PIECES = ["\n", "\r\n", "\r", "\0", "\t", " ", "\x0b", "\x1c", "\x85", "\u2028", "\ufeff", "\ufffe"]
PIECES += ["a", "Z", "0", "é", "e\u0301", "\u0301", "한국", "ﬁ", "İ", "‿", "▁", "⁇", "<s>", "</s>"]
PIECES += ["שלום", "\u202eعرب\u202c", "👩‍👩‍👧", "🇰🇷", "\U0010ffff", "x" * 70_000]
LINES = ["ab\tA B", "source\ttarget\tmore", "[ MAX 2 [ MIN 4 7 ] ]", "0-0 1?2", "a\t ", " \t"]
RAW = [BOM, b"\xff\xfe", b"\xfe\xff", b"\xc3", b"\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
ANY_TEXT = st.lists(st.sampled_from(PIECES + LINES) | st.text(max_size=3), max_size=8).map("".join)
ANY_BYTES = st.binary(max_size=40) | st.lists(
    st.sampled_from([x.encode("utf-8") for x in PIECES + LINES] + RAW + [b"\n"] * 8), max_size=12
).map(b"".join)
HALF_LETTERS = st.text(st.sampled_from("a한\ud800\udfff\udc80"), min_size=1, max_size=4)
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def refused(error, *names):
    """The error is one line that names the file, and not a page long."""
    told = str(error)
    assert len(told.splitlines()) == 1 and len(told) < 1000, told
    assert all(name in told for name in names), told


def first_bad_line(data):
    """The number of the line with the first byte that is no UTF-8, by Python's own decoder."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data.count(b"\n", 0, error.start) + 1
    return None


# Readers of files


@few
@given(ANY_BYTES, st.sampled_from(list(PACK)))
@example(BOM + b"\r\n\r\n\n", "")
@example(b"", ".gz")
@example(b"a\0\n" * 3 + b"\r", "")
def test_lines_lose_nothing(tmp_path, data, suffix):
    path = tmp_path / f"lines{suffix}"
    path.write_bytes(PACK[suffix](data))
    bad = first_bad_line(data.removeprefix(BOM))
    if bad is not None:
        with pytest.raises(DataError) as error:
            read_lines(path)
        return refused(error.value, f"{path}, line {bad}: expected UTF-8")
    text = data.removeprefix(BOM).decode("utf-8")
    text += "\n" if text and not text.endswith("\n") else ""
    lines = read_lines(path)
    assert "".join(line + "\n" for line in lines) == re.sub("\r\n", "\n", text)


@few
@given(ANY_BYTES, st.sampled_from([".gz", ".xz"]), st.integers(0, 200), st.integers(0, 255))
def test_damaged_archives(tmp_path, data, suffix, place, byte):
    """With another byte somewhere, or cut there, they are refused, or nothing was lost."""
    packed = bytearray(PACK[suffix](data.decode("utf-8", "replace").encode("utf-8")))
    whole = bytes(packed)
    place %= len(packed)
    packed[place] = byte
    path = tmp_path / f"damaged{suffix}"
    for damaged in (bytes(packed), whole[:place]):
        path.write_bytes(damaged)
        try:
            found = read_lines(path)
        except DataError as error:
            refused(error, str(path))
        else:
            path.write_bytes(whole)
            assert not damaged or found == read_lines(path)


def read_text(path):
    return language_text.load_text(SimpleNamespace(data=path, limit=None, length=3))


READERS = {
    "lexicon": g2p_data.read_lexicon,
    "parts": g2p_data.load_parts,
    "pairs": read_pairs,
    "parallel": lambda path: read_parallel(path, path),
    "pair file": translate_data.read_pair_file,
    "text": read_text,
}


@pytest.mark.parametrize("name", READERS)
@few
@given(ANY_BYTES, st.sampled_from([".tsv", ".gz", ".zip"]))
@example(b"ab\tA B\n\tA\n", ".tsv")
@example(b"ab\tA B\n" + b"x" * 70_000, ".tsv")
def test_readers_refuse_in_one_line(tmp_path, name, data, suffix):
    path = tmp_path / f"data{suffix}"
    path.write_bytes(data)
    try:
        READERS[name](path)
    except DataError as error:
        refused(error, "data")


@few
@given(ANY_BYTES)
@example(BOM + b"ab\tA B\nb\rc\tC\n")
def test_a_lexicon_has_each_line(tmp_path, data):
    """Also the first, where a mark of the encoding stands before it."""
    path = tmp_path / "data.tsv"
    path.write_bytes(data)
    try:
        found = g2p_data.read_lexicon(path)
    except DataError:
        return
    for line in filter(str.strip, read_lines(path)):
        word, phones = line.split("\t")
        places = [x for x in found.values() for x in x if list(x) == phones.split()]
        assert places or not phones.isascii()  # (others are composed)
        assert word.strip().lower() in found or not word.isascii()


def zipped(content, name="pairs.txt", **options):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", **options) as archive:
        archive.writestr(name, content)
    return bytearray(memory.getvalue())


@few
@given(st.integers(0, 400), st.integers(0, 255), st.sampled_from([0, 8, 12, 14]))
@example(6, 1, 8)  # the mark of a password
@example(8, 99, 8)  # a compression that nobody knows
def test_damaged_zips(tmp_path, place, byte, compression):
    damaged = zipped("ein\tone\nzwei\ttwo\n" * 9, compression=compression)
    place %= len(damaged)
    damaged[place] = byte
    central = damaged.find(b"PK\1\2")
    if place in (6, 8):  # as archivers write it, in both places
        damaged[central + place + 2] = byte
    path = tmp_path / "pairs.zip"
    for data in (damaged, damaged[:place]):
        path.write_bytes(data)
        try:
            translate_data.read_pair_file(path)
        except DataError as error:
            refused(error, "pairs.zip")


@few
@given(ANY_TEXT | st.text("[]MAXINED 0123456789²٣", max_size=30))
@example("[ MAX " * 100_000)
@example("[MAX" * 50 + " 1" + "]" * 50)
def test_expressions(text):
    try:
        found = listops_data.parse(text)
    except DataError as error:
        return refused(error)
    again = listops_data.written(found)
    assert re.sub(r"\s", "", again) == re.sub(r"\s", "", text).upper()
    assert 0 <= listops_data.evaluate(found) <= 9


@few
@given(ANY_TEXT | st.text("0123456789-?p ²٣", max_size=12))
@example("1" * 5000 + "-1")
def test_links(line):
    try:
        sure, possible = read_links(line)
    except ValueError as error:
        return refused(error, "`line`")
    assert sure <= possible and len(possible) <= len(line.split())


# Texts


TOKENIZERS = {
    "characters": lambda texts, form: CharacterTokenizer.fit([*texts, "a"], normalization=form),
    "words": lambda texts, form: WordTokenizer.fit([*texts, "a"], normalization=form),
    "bytes": lambda texts, form: ByteTokenizer(normalization=form),
}


def check_round_trip(tokenizer, texts):
    ids = tokenizer.encode(texts, add_start=True, add_end=True)
    assert to_texts(tokenizer.decode(ids)) == texts
    again = type(tokenizer).from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert np.array_equal(again.encode(texts, add_start=True, add_end=True), ids)
    assert again.tokens == tokenizer.tokens


@pytest.mark.parametrize("name", TOKENIZERS)
@few
@given(st.lists(ANY_TEXT, max_size=3))
def test_any_text_comes_back(name, texts):
    texts = [text.replace("x" * 1000, "") for text in texts]
    check_round_trip(TOKENIZERS[name](texts, None), texts)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_huge_line_comes_back(name):
    text = "".join(PIECES) * 3
    check_round_trip(TOKENIZERS[name]([text], None), [text, "", "a"])


@settings(few, max_examples=5)
@given(st.lists(st.text("ab한🙂\u202eע\0 ", max_size=9), max_size=3))
def test_subwords_of_any_text(texts):
    """(SentencePiece can not hold NUL: it counts as U+FFFD.)"""
    texts = [text.replace("\0", "\ufffd") for text in texts]
    known = translate_data.grammar().sources
    options = {"vocabulary_size": 290, "byte_fallback": True, "character_coverage": 0.98}
    tokenizer = SubwordTokenizer.fit([*known, *texts], normalization=None, **options)
    check_round_trip(tokenizer, texts)


@few
@given(HALF_LETTERS.filter(lambda text: re.search("[\ud800-\udfff]", text)), st.integers(0, 2))
def test_half_letters_are_refused_by_name(text, place):
    texts = ["a"] * place + [text]
    for cls in (CharacterTokenizer, WordTokenizer, ByteTokenizer, SubwordTokenizer):
        with pytest.raises(ValueError) as error:
            cls.fit(texts)
        refused(error.value, f"texts[{place}]", "surrogate")
    with pytest.raises(ValueError) as error:
        ByteTokenizer().encode(texts)
    refused(error.value, f"texts[{place}]", "surrogate")
    for cls, token in ((CharacterTokenizer, "\ud800"), (WordTokenizer, text)):
        with pytest.raises(ValueError) as error:
            cls(["a", token])
        refused(error.value, "vocabulary[1]", "surrogate")


def test_errors_do_not_repeat_a_huge_text():
    huge = "x" * 100_000
    letters = CharacterTokenizer(["a"])
    for bad in ([huge + "\ud800"], [huge.encode() + b"\xff"], [1j, huge], {huge: 1}, [[huge]]):
        for function in (letters.encode, CharacterTokenizer.fit):
            with pytest.raises(ValueError) as error:
                function(bad)
            assert len(str(error.value)) < 300


def test_a_nul_at_the_end_of_an_output_stays():
    """(NumPy's own strings would drop it.)"""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(["a\0", "\0", ""])
    assert to_texts(tokenizer.decode(ids)) == ["a\0", "\0", ""]


@settings(few, max_examples=8)
@given(st.lists(ANY_TEXT | HALF_LETTERS, min_size=1, max_size=3), ANY_TEXT | HALF_LETTERS)
def test_pictures_and_pages_of_any_tokens(tmp_path, tokens, title):
    weights = np.full([1, len(tokens)], 1 / len(tokens))
    title = title[:200]
    page = attention_page(weights, tokens, ["a"], title=title, path=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes().decode("utf-8") == page.html
    assert len(alignment_text(weights, tokens, ["a"]).encode("utf-8").splitlines()) == 2
    plot_alignment(weights, tokens, ["a"], title=title, path=tmp_path / "picture.svg", dpi=40)


@pytest.mark.parametrize("letter", ["a", "한", "\u0301", "\ud800", " ", "\n"])
def test_a_huge_token_has_a_short_label(letter):
    assert len(alignment_text([[1.0]], ["a" + letter * 100_000], ["b"])) < 250
