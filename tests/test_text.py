"""Tokenizers: round trips, graph against Python, saving; normal forms; text files."""

import ast
import copy
import gzip
import json
import lzma
import pickle
import random
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_attention.text
from keras_attention.text import (
    END,
    PAD,
    START,
    UNKNOWN,
    ByteTokenizer,
    CharacterTokenizer,
    DataError,
    WordTokenizer,
    files,
    normalization,
    read_lines,
    read_pairs,
    read_parallel,
    tables,
    vocabulary,
)

TEXTS = [
    'Hello,  world! (It\'s "here".)',
    " \ta b\n",
    "",
    " ",
    "   ",
    "Ελλάδα ΟΔΟΣ",
    "한국어 값",
    "Tiếng Việt",
    "ɛ\u0301 q\u0323\u0307 \u0301x",
    "12,000.5 €/m² ﬁ",
    "‿a‿ ‿, ,‿",
    "⁇ <s> </s>",
    "می\u200cخواهم 漢字かな 👩\u200d🔬",
    "\ufeffx\x00\uffff\u2028y",
]
COUNTED = [CharacterTokenizer, WordTokenizer]
ALL = [*COUNTED, ByteTokenizer]
FORMS = [None, "NFC", "NFD", "NFKC", "NFKD"]


def strings(tensor):
    """A tensor of strings as nested lists of str."""
    return np.vectorize(lambda x: x.decode("utf-8"), otypes=[object])(tensor.numpy()).tolist()


def composed(text, form):
    """What a text becomes on its way through ids, in the normal form."""
    return text if form is None else unicodedata.normalize("NFC", unicodedata.normalize(form, text))


def graph(function, dtype="string", rank=1):
    return tf.function(function, input_signature=[tf.TensorSpec([None] * rank, dtype)])


# Round trips


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cls", ALL)
def test_round_trip(cls, form):
    tokenizer = cls.fit(TEXTS, normalization=form)
    ids = tokenizer.encode(TEXTS)
    assert strings(tokenizer.decode(ids)) == [composed(text, form) for text in TEXTS]
    assert not (ids.numpy() == UNKNOWN).any()


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# What is hard: letters that compose, jamo, marks, spaces, symbols, the mark of joined symbols.
TRICKY = st.text(
    st.sampled_from("aeAo \u0301\u0323\u0302\u031b가각각\u11a7é ấ,.'-‿\t\u3000"), max_size=10
)


@pytest.mark.parametrize("cls", ALL)
@settings(max_examples=10, deadline=None)
@given(st.lists(ANY_TEXT | TRICKY, min_size=1, max_size=6), st.sampled_from(FORMS))
def test_round_trip_of_any_text(cls, texts, form):
    texts = [*texts, "a"]
    tokenizer = cls.fit(texts, normalization=form)
    decoded = strings(tokenizer.decode(tokenizer.encode(texts, add_end=True)))
    assert decoded == [composed(text, form) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS[1:])
def test_normal_forms_are_those_of_unicodedata(form):
    """In a graph, where one trace serves all examples."""
    convert = graph(lambda texts: normalization.normalize(texts, form))

    @settings(max_examples=50, deadline=None)
    @given(st.lists(ANY_TEXT | TRICKY, min_size=1, max_size=4))
    def check(texts):
        expected = [unicodedata.normalize(form, text) for text in texts]
        assert strings(convert(tf.constant(texts))) == expected

    check()


@pytest.mark.parametrize("form", FORMS[1:])
def test_normal_form_of_every_character(form):
    every = [chr(x) for x in range(0x110000) if unicodedata.category(chr(x)) not in ("Cs", "Cn")]
    expected = [unicodedata.normalize(form, text) for text in every]
    assert strings(normalization.normalize(tf.constant(every), form)) == expected


@pytest.mark.parametrize("form", FORMS[1:])
def test_normal_form_of_runs_of_marks(form):
    random.seed(3)
    marks = [chr(x) for x in range(0x300, 0x370)]
    letters = [chr(x) for x in range(0x41, 0x250)] + list("각가각\u09c7\u09be\u0cca\u0cd5\u0cc6")
    texts = [
        "".join(random.choice(letters) + "".join(random.choices(marks, k=k)) for k in (0, 1, 3, 6))
        for _ in range(500)
    ]
    expected = [unicodedata.normalize(form, text) for text in texts]
    assert strings(graph(lambda x: normalization.normalize(x, form))(texts)) == expected


def test_hangul_becomes_jamo():
    tokenizer = CharacterTokenizer.fit(["값"], normalization="NFD")
    assert tokenizer.tokens[4:] == list("\u1100\u1161\u11b9")
    ids = tokenizer.encode(["값", "가"])
    assert ids.numpy().tolist() == [[4, 5, 6], [4, 5, 0]]
    assert strings(tokenizer.decode(ids)) == ["값", "가"]


@pytest.mark.parametrize("cls", COUNTED)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_equivalent_texts_have_the_same_ids(cls, form):
    """Whether a letter with an accent comes as one code point or two, known or unknown."""
    tokenizer = cls.fit(["é ɛ\u0301 e 한"], normalization=form)
    for text in ("é", "è", "한", "국", "e\u0301", "q\u0307\u0323"):
        variants = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
        one, other = (tokenizer.encode(variant).numpy().tolist() for variant in variants)
        assert one == other


@pytest.mark.parametrize("cls", ALL)
def test_lower_case(cls):
    texts = ["ÀB ΑΣ ẞ İ", "J\u030c", "Ｈℌ"]
    for form in FORMS:
        tokenizer = cls.fit(texts, lowercase=True, normalization=form)
        expected = [composed(composed(text, form).lower(), form) for text in texts]
        assert strings(tokenizer.decode(tokenizer.encode(texts))) == expected
        upper = tokenizer.encode("ÀB")
        assert np.array_equal(upper, tokenizer.encode("àb"))


def test_lower_case_of_a_nul_hides_nothing():
    """TensorFlow's own lower case would end the text there."""
    tokenizer = CharacterTokenizer.fit(["ab\ufffd"], lowercase=True)
    assert strings(tokenizer.decode(tokenizer.encode("A\x00B"))) == ["a\ufffdb"]


# Words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world!", "Hello|‿,|world|‿!"),
        ("it's (a) b-c", "it|‿'‿|s|(‿|a|‿)|b|‿-‿|c"),
        ('he said: "no."', 'he|said|‿:|"‿|no|‿.|‿"'),
        ("a . b", "a|.|b"),
        ("a  b ", "a|‿ |‿ ‿|b|‿ "),
        (" a", " ‿|a"),
        ("a\n b", "a|‿\n|b"),
        ("3.5 x²", "3|‿.‿|5|x²"),
        ("한국어, e\u0301té", "한국어|‿,|été"),
        ("‿ a‿,", "‿|a‿|‿,"),
    ],
)
def test_words(text, tokens):
    tokenizer = WordTokenizer.fit([text])
    assert strings(tokenizer.tokens_of(tokenizer.encode(text)))[0] == tokens.split("|")


def test_unknown_words_stay_visible():
    tokenizer = WordTokenizer.fit(["a dog runs."])
    assert strings(tokenizer.decode(tokenizer.encode(["a cat runs.", "cat", "a!"]))) == [
        "a ⁇ runs.",
        "⁇",
        "a ⁇",
    ]


def test_unknown_characters_stay_visible():
    tokenizer = CharacterTokenizer.fit(["abc"])
    assert strings(tokenizer.decode(tokenizer.encode("cxb"))) == ["c⁇b"]


# Bytes


def test_bytes_that_are_no_utf8():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode([b"a\xff", "é"])
    assert ids.numpy().tolist() == [[4 + 0x61, 4 + 0xFF], [4 + 0xC3, 4 + 0xA9]]
    assert strings(tokenizer.decode(ids)) == ["a\ufffd", "é"]
    assert strings(tokenizer.decode(ids[:, :1])) == ["a", "\ufffd"]
    assert tokenizer.size == len(tokenizer.tokens) == 260


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=12))
def test_any_bytes_survive_in_the_ids(text):
    ids = ByteTokenizer().encode([text]).numpy()[0]
    assert bytes(int(i) - 4 for i in ids if i != PAD) == text


# Ids and shapes


@pytest.mark.parametrize("cls", ALL)
def test_reserved_ids(cls):
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
    tokenizer = cls.fit(["ab"])
    assert tokenizer.tokens[:4] == ["<pad>", "<s>", "</s>", "⁇"]
    assert tokenizer.size == len(tokenizer.tokens)
    ids = tokenizer.encode(["ab", ""], add_start=True, add_end=True)
    assert ids.dtype == tf.int32
    assert ids.numpy()[1].tolist()[:2] == [START, END]
    assert ids.numpy()[0, 0] == START
    assert ids.numpy()[0, -1] == END
    shown = strings(tokenizer.tokens_of([[PAD, START], [END, UNKNOWN]]))
    assert shown == [["<pad>", "<s>"], ["</s>", "⁇"]]


@pytest.mark.parametrize("cls", ALL)
def test_shapes(cls):
    tokenizer = cls.fit(["ab c"])
    assert tokenizer.encode("").numpy().tolist() == [[0]]
    assert tokenizer.encode(["", ""]).shape == (2, 1)
    assert tokenizer.encode([]).shape == (0, 1)
    assert tokenizer.encode([], add_end=True).shape[0] == 0
    assert tokenizer.decode(np.zeros((0, 5), int)).shape == (0,)
    assert strings(tokenizer.decode(np.zeros((2, 0), int))) == ["", ""]
    one = tokenizer.encode("ab c", add_end=True)
    for same in (
        ["ab c"],
        ("ab c",),
        np.array(["ab c"]),
        np.array("ab c"),
        [b"ab c"],
        tf.constant("ab c"),
    ):
        assert np.array_equal(tokenizer.encode(same, add_end=True), one)
    best = tf.stack([one, one], axis=1)
    assert strings(tokenizer.decode(best)) == [["ab c", "ab c"]]
    assert strings(tokenizer.decode(one[0])) == "ab c"
    assert tokenizer.tokens_of(best).shape == best.shape


@pytest.mark.parametrize("cls", ALL)
def test_decoding_stops_at_the_end_and_skips_padding(cls):
    tokenizer = cls.fit(["ab"])
    first = tokenizer.encode("ab").numpy()[0].tolist()
    ids = [[START, PAD, *first, END, *first, PAD], [END, *first, *first, PAD, PAD]]
    ids = np.array([row + [PAD] * (9 - len(row)) for row in ids], "int64")
    assert strings(tokenizer.decode(ids)) == ["ab", ""]
    strange = [[-1, tokenizer.size, 10**6]]
    assert set(strings(tokenizer.decode(strange))[0].replace(" ", "")) == {"⁇"}
    assert strings(tokenizer.tokens_of(strange)) == [["⁇"] * 3]


@pytest.mark.parametrize("cls", ALL)
def test_long_texts_are_cut_but_end(cls):
    tokenizer = cls.fit(["a.b"])
    whole = tokenizer.encode("a.b").numpy()[0].tolist()
    cut = tokenizer.encode(["a.b", ""], add_start=True, add_end=True, max_length=4).numpy()
    assert cut.tolist() == [[START, *whole[:2], END], [START, END, PAD, PAD]]
    assert tokenizer.encode("a.b", max_length=9).numpy().tolist() == [whole]


# Vocabularies


def test_order_of_the_vocabulary():
    texts = ["b a c", "c b", "c"]
    assert WordTokenizer.fit(texts).tokens[4:] == ["c", "b", "a"]
    assert CharacterTokenizer.fit(["bac", "cdb"]).tokens[4:] == ["b", "c", "a", "d"]
    for cls in COUNTED:
        assert cls.fit(texts).tokens == cls.fit(reversed(texts)).tokens
    assert WordTokenizer.fit(texts, max_size=6).tokens[4:] == ["c", "b"]
    assert WordTokenizer.fit(texts, min_count=2).tokens[4:] == ["c", "b"]


def test_texts_are_counted_in_parts(monkeypatch):
    whole = WordTokenizer.fit(TEXTS).tokens
    monkeypatch.setattr(vocabulary, "TEXTS_AT_ONCE", 2)
    assert WordTokenizer.fit(iter(TEXTS)).tokens == whole
    with pytest.raises(ValueError, match=r"texts\[5\]"):
        WordTokenizer.fit(["a"] * 5 + [None])


def test_same_fingerprints_are_noticed(monkeypatch):
    monkeypatch.setattr(tables, "BUCKETS", 1)
    with pytest.raises(ValueError, match="fingerprint"):
        WordTokenizer.fit(["a b"]).encode("a")


def test_a_string_with_the_fingerprint_of_a_token_is_still_unknown(monkeypatch):
    monkeypatch.setattr(tables, "BUCKETS", 1)
    assert WordTokenizer.fit(["a"]).encode("a b").numpy().tolist() == [[4, 3]]


# Graphs and saving


@pytest.mark.slow
@pytest.mark.parametrize("cls", ALL)
def test_graph_equals_eager(cls):
    tokenizer = cls.fit(TEXTS[:-2], normalization="NFD", lowercase=True)

    def everything(texts):
        ids = tokenizer.encode(texts, add_start=True, add_end=True, max_length=12)
        return ids, tokenizer.decode(ids), tokenizer.decode(ids[:, None]), tokenizer.tokens_of(ids)

    in_graph = graph(everything)
    for texts in (tf.constant(TEXTS), tf.constant([], tf.string)):
        for actual, expected in zip(in_graph(texts), everything(texts), strict=True):
            assert np.array_equal(actual, expected)
    assert in_graph(tf.constant([], tf.string))[2].shape == (0, 1)


def test_in_a_pipeline():
    tokenizer = WordTokenizer.fit(["a b c"])
    data = tf.data.Dataset.from_tensor_slices(["a b", "c"]).batch(2).map(tokenizer.encode)
    assert next(iter(data)).numpy().tolist() == [[4, 5], [6, 0]]


@pytest.mark.parametrize("cls", ALL)
def test_config(cls):
    tokenizer = cls.fit(TEXTS, normalization="NFD", lowercase=True)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(tokenizer)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is cls
    assert again.get_config() == tokenizer.get_config()
    tokenizer.encode("a b")
    ids = tokenizer.encode(TEXTS)
    for copied in (again, copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert copied.tokens == tokenizer.tokens
        assert np.array_equal(copied.encode(TEXTS), ids)
        assert strings(copied.decode(ids)) == strings(tokenizer.decode(ids))


SERVE = """
import sys, json
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
texts = json.loads(sys.argv[2])
encode, decode = (served.signatures[name] for name in ("encode", "decode"))
ids = encode(texts=tf.constant(texts))["ids"]
back = decode(ids=ids)["texts"].numpy()
assert not any(name.startswith("keras_attention") for name in sys.modules)
print(json.dumps([ids.numpy().tolist(), [text.decode("utf-8") for text in back]]))
"""


def served(path, texts):
    """Ids and texts from a SavedModel, in a process that imports TensorFlow only."""
    command = [sys.executable, "-c", SERVE, str(path), json.dumps(texts)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return json.loads(answer.stdout.splitlines()[-1])


class Pair(tf.Module):
    """What a server would offer of a tokenizer."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="texts")])
    def encode(self, texts):
        return {"ids": self.tokenizer.encode(texts, add_end=True)}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])
    def decode(self, ids):
        return {"texts": self.tokenizer.decode(ids)}


def test_saved_model_needs_tensorflow_only(tmp_path):
    texts = [text for text in TEXTS if "\x00" not in text]
    tokenizer = WordTokenizer.fit(texts, normalization="NFD")
    tokenizer.encode(texts)  # Used in eager mode before, which must leave nothing untracked.
    pair = Pair(tokenizer)
    tf.saved_model.save(
        pair, str(tmp_path / "m"), signatures={"encode": pair.encode, "decode": pair.decode}
    )
    ids, back = served(tmp_path / "m", texts)
    assert ids == tokenizer.encode(texts, add_end=True).numpy().tolist()
    assert back == [composed(text, "NFC") for text in texts]


def test_export_archive(tmp_path):
    tokenizer = CharacterTokenizer.fit(["한국 abc"], normalization="NFD")
    model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(20, 3)])
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serve",
        lambda texts: model(tokenizer.encode(texts)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    archive.write_out(str(tmp_path / "m"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    out = loaded.serve(tf.constant(["국", "abc"]))
    np.testing.assert_allclose(out, model(tokenizer.encode(["국", "abc"])))


def test_import_without_tensorflow():
    """TensorFlow is imported inside of functions only: Keras may run on another backend."""
    for path in Path(keras_attention.text.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            names.append(getattr(node, "module", None) or "")
            assert not any(name.startswith(("tensorflow", "sentencepiece")) for name in names), path


def test_speed():
    """Thousands of sentences take seconds: the limit is ten times what two cores need."""
    random.seed(0)
    words = ["".join(random.choices("abcdefghijklm", k=k)) for k in (2, 3, 4, 5, 6) * 800]
    texts = [" ".join(random.choices(words, k=12)) + "." for _ in range(5000)]
    for cls in ALL:
        start = time.perf_counter()
        tokenizer = cls.fit(texts)
        ids = tokenizer.encode(texts)
        assert strings(tokenizer.decode(ids)) == texts
        assert time.perf_counter() - start < 20


# Bad input


@pytest.mark.parametrize("cls", ALL)
def test_bad_texts(cls):
    tokenizer = cls.fit(["a"])
    for bad, message in [
        (["a", None], r"texts\[1\] must be a str. Got None"),
        (["a", 3.5], r"texts\[1\]"),
        ([["a"]], r"texts\[0\]"),
        (["a\ud800"], r"texts\[0\].*surrogate"),
        (None, "texts must be"),
        (7, "texts must be"),
        ({"a": 1}, "texts must be"),
        (tf.constant([1]), "string tensor"),
        (tf.constant([["a"]]), r"string tensor \[B\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            tokenizer.encode(bad)
    with pytest.raises(ValueError, match="at least 3. Got 2"):
        tokenizer.encode("a", add_start=True, add_end=True, max_length=2)
    with pytest.raises(ValueError, match="max_length"):
        tokenizer.encode("a", max_length=0)
    for bad in ([[1.0]], [["a"]]):
        with pytest.raises(ValueError, match="ids must be integers"):
            tokenizer.decode(bad)
    with pytest.raises(ValueError, match="axis"):
        tokenizer.decode(3)


@pytest.mark.parametrize("cls", COUNTED)
def test_text_that_is_no_utf8(cls):
    tokenizer = cls.fit(["a b"])
    with pytest.raises(
        ValueError, match=r"texts\[1\] must be UTF-8. Got the byte 0xFF at position 1"
    ):
        tokenizer.encode(["a", b"a\xff"])
    ids = tokenizer.encode(tf.constant([b"a b\xff"]))  # A graph can not refuse: it shows it.
    assert ids.numpy()[0, -1] == UNKNOWN


@pytest.mark.parametrize("cls", COUNTED)
def test_bad_training_texts(cls):
    for bad in ([], [""], ["", ""]):
        with pytest.raises(ValueError, match="texts must hold a token"):
            cls.fit(bad)
    for bad in ("abc", b"abc", None, 3):
        with pytest.raises(ValueError, match="texts must be an iterable of str"):
            cls.fit(bad)
    with pytest.raises(ValueError, match="min_count=3"):
        cls.fit(["a a"], min_count=3)
    with pytest.raises(ValueError, match="max_size must be above 4"):
        cls.fit(["a"], max_size=4)
    with pytest.raises(ValueError, match="normalization must be one of"):
        cls.fit(["a"], normalization="nfc")
    with pytest.raises(ValueError, match="'b' again"):
        cls(["a", "b", "b"])
    for bad in ([], "ab", ["a", ""], ["a", 3]):
        with pytest.raises(ValueError, match="vocabulary"):
            cls(bad)


def test_a_character_is_one_code_point():
    with pytest.raises(ValueError, match=r"vocabulary\[1\] must be one character"):
        CharacterTokenizer(["a", "bc"])


# Files


def write(path, data):
    opener = files.OPENERS.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(data)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.xz"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_read_lines(tmp_path, name, end):
    data = "\ufeffa\tb\r\n\n é\u2028x\x85\n값 ".encode() + end
    assert read_lines(write(tmp_path / name, data)) == ["a\tb", "", " é\u2028x\x85", "값 "]
    assert read_lines(write(tmp_path / name, b"")) == []


def test_bad_utf8_names_file_and_line(tmp_path):
    path = write(tmp_path / "a.txt", b"fine\nb\xc3ad\n")
    with pytest.raises(DataError, match=r"a\.txt, line 2: expected UTF-8. Got the byte 0xC3"):
        read_lines(path)


def test_missing_files_and_folders(tmp_path):
    for read in (read_lines, read_pairs):
        with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
            read(tmp_path / "gone.txt")
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        read_parallel(write(tmp_path / "a.txt", b"a"), str(tmp_path / "gone.txt"))
    with pytest.raises(DataError, match="must be a file"):
        read_lines(tmp_path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_corrupt_archives(tmp_path, compress):
    path = tmp_path / ("a.gz" if compress is gzip.compress else "a.xz")
    whole = compress(bytes(range(256)) * 20)
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    for data in (whole[:-9], whole[:middle], b"plain text", flipped):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.(gz|xz) is not a whole \.(gz|xz) archive"):
            read_lines(path)


def test_read_parallel(tmp_path):
    source, target = write(tmp_path / "a.de", b"eins\nzwei\n"), tmp_path / "a.en.gz"
    assert read_parallel(source, write(target, b"one\ntwo")) == (["eins", "zwei"], ["one", "two"])
    write(target, b"one\n")
    with pytest.raises(DataError, match=r"2 in .*a\.de and 1 in .*a\.en\.gz"):
        read_parallel(source, target)


def test_read_pairs(tmp_path):
    path = write(tmp_path / "a.tsv", b"go\tva\tby someone\nhi\tsalut\n")
    assert read_pairs(path) == (["go", "hi"], ["va", "salut"])
    write(path, b"go\tva\nhi\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 2: .*'hi', which has no tab"):
        read_pairs(path)
