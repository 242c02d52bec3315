"""SubwordTokenizer, trained by sentencepiece and applied by tensorflow_text; both are optional."""

import base64
import copy
import json
import pickle
import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention.text import (
    END,
    PAD,
    START,
    UNKNOWN,
    SubwordTokenizer,
    subword_models,
    subwords,
)
from keras_attention.text.tokenizer import RESERVED

REASON = "subwords need the extra keras-attention-layers[text]"
pytest.importorskip("sentencepiece", reason=REASON)
pytest.importorskip("tensorflow_text", reason=REASON)

random.seed(7)
WORDS = ["".join(random.choices("abcdefgh", k=k)) for k in (2, 3, 4, 5) * 30]
SENTENCES = [" ".join(random.choices(WORDS, k=8)).capitalize() + "." for _ in range(300)]
ODD = [
    "",
    " ",
    "   a  b ",
    "▁ ▁a ▅",
    "<s> a </s> <unk> <pad> ⁇",
    "한국어 값",
    "Tiếng Việt é",
    "a\tb\nc",
    "\u3000x\u2028y\ufeff",
]


def strings(tensor):
    return np.vectorize(lambda x: x.decode("utf-8"), otypes=[object])(tensor.numpy()).tolist()


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.fit(SENTENCES + ODD, vocabulary_size=200)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("form", ["NFC", "NFD", None])
def test_round_trip(model_type, byte_fallback, form):
    texts = SENTENCES + ODD
    tokenizer = SubwordTokenizer.fit(
        texts,
        vocabulary_size=500 if byte_fallback else 200,
        model_type=model_type,
        byte_fallback=byte_fallback,
        normalization=form,
    )
    ids = tokenizer.encode(texts, add_start=True, add_end=True)
    assert strings(tokenizer.decode(ids)) == texts
    assert not (ids.numpy() == UNKNOWN).any()
    if byte_fallback:
        assert strings(tokenizer.decode(tokenizer.encode("漢字 🙂"))) == ["漢字 🙂"]


@settings(max_examples=20, deadline=None)
@given(st.text("abc .▁▅<s>/한é", max_size=12))
def test_round_trip_of_any_text(tokenizer, text):
    assert strings(tokenizer.decode(tokenizer.encode(text))) == [text]


def test_unknown_characters_stay_visible(tokenizer):
    assert strings(tokenizer.decode(tokenizer.encode("ab 漢 c"))) == ["ab ⁇ c"]


def test_a_word_has_the_same_pieces_anywhere(tokenizer):
    word = WORDS[7]
    once, twice = (tokenizer.encode(text).numpy()[0].tolist() for text in (word, f"{word} {word}"))
    assert twice == once * 2


def test_lower_case():
    tokenizer = SubwordTokenizer.fit(SENTENCES, vocabulary_size=100, lowercase=True)
    assert strings(tokenizer.decode(tokenizer.encode(SENTENCES))) == [x.lower() for x in SENTENCES]


def test_training_is_deterministic(tokenizer):
    again = SubwordTokenizer.fit(iter(SENTENCES + ODD), vocabulary_size=200)
    assert again.get_config() == tokenizer.get_config()


def test_setting_a_seed_does_no_harm(tokenizer):
    """It would, to a model that TensorFlow keeps in eager mode."""
    ids = tokenizer.encode(SENTENCES)
    keras.utils.set_random_seed(1)
    assert np.array_equal(tokenizer.encode(SENTENCES), ids)
    assert strings(tokenizer.decode(ids)) == SENTENCES


def test_equivalent_texts_have_the_same_ids(tokenizer):
    one, other = (tokenizer.encode(text).numpy().tolist() for text in ("é 값", "e\u0301 값"))
    assert one == other


def test_long_texts_are_learned_from():
    """SentencePiece alone would leave out what is longer than 4192 bytes."""
    tokenizer = SubwordTokenizer.fit(["ab " * 3000, "xyz"], vocabulary_size=10)
    assert not (tokenizer.encode("ab ab").numpy() == UNKNOWN).any()


def test_reserved_ids(tokenizer):
    assert tokenizer.tokens[:4] == ["<pad>", "<s>", "</s>", "⁇"]
    assert tokenizer.size == len(tokenizer.tokens) == 200
    assert "▁" in "".join(tokenizer.tokens[4:])
    assert "\ufdd0" not in "".join(tokenizer.tokens)
    ids = tokenizer.encode(["ab", ""], add_start=True, add_end=True)
    assert ids.dtype == tf.int32
    assert ids.numpy()[1].tolist()[:3] == [START, END, PAD]
    assert strings(tokenizer.tokens_of([[PAD, START], [END, UNKNOWN]])) == [
        ["<pad>", "<s>"],
        ["</s>", "⁇"],
    ]
    joined = "".join(strings(tokenizer.tokens_of(tokenizer.encode("ab c")))[0])
    assert joined == "▁ab▁c"


def test_shapes(tokenizer):
    assert tokenizer.encode("").numpy().tolist() == [[0]]
    assert tokenizer.encode([]).shape == (0, 1)
    assert tokenizer.decode(np.zeros((0, 5), int)).shape == (0,)
    assert strings(tokenizer.decode(np.zeros((2, 0), int))) == ["", ""]
    one = tokenizer.encode("ab c")
    assert strings(tokenizer.decode(tf.stack([one, one], axis=1))) == [["ab c", "ab c"]]
    assert strings(tokenizer.decode([[START, *one.numpy()[0], END, 9, 9]])) == ["ab c"]
    assert set(strings(tokenizer.decode([[-1, 200, 10**6]]))[0]) == {"⁇"}
    assert tokenizer.encode("ab c" * 9, add_end=True, max_length=3).numpy()[0, 2] == END


def test_config(tokenizer):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(tokenizer)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is SubwordTokenizer
    ids = tokenizer.encode(SENTENCES)
    for copied in (again, copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert copied.get_config() == tokenizer.get_config()
        assert copied.tokens == tokenizer.tokens
        assert np.array_equal(copied.encode(SENTENCES), ids)


SERVE = """
import sys, json
import tensorflow as tf
import tensorflow_text
served = tf.saved_model.load(sys.argv[1])
texts = json.loads(sys.argv[2])
answers = []
for name in ("one", "other"):
    out = served.signatures[name](texts=tf.constant(texts))
    back = [text.decode("utf-8") for text in out["texts"].numpy()]
    answers.append([out["ids"].numpy().tolist(), back])
assert not any(name.startswith("keras_attention") for name in sys.modules)
print(json.dumps(answers))
"""


def there_and_back(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="texts")])
    def function(texts):
        ids = tokenizer.encode(texts, add_end=True)
        return {"ids": ids, "texts": tokenizer.decode(ids)}

    return function


def test_saved_model(tokenizer, tmp_path):
    """Two models in one: neither may be taken for the other."""
    other = SubwordTokenizer.fit(SENTENCES, vocabulary_size=90, model_type="bpe")
    module = tf.Module()
    signatures = {}
    for name, each in (("one", tokenizer), ("other", other)):
        signatures[name] = there_and_back(each)
        setattr(module, name, signatures[name])
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=signatures)
    command = [sys.executable, "-c", SERVE, str(tmp_path / "m"), json.dumps(SENTENCES[:5])]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr[-2000:]
    for each, (ids, back) in zip(
        (tokenizer, other), json.loads(answer.stdout.splitlines()[-1]), strict=True
    ):
        assert ids == each.encode(SENTENCES[:5], add_end=True).numpy().tolist()
        assert back == SENTENCES[:5]


def test_bad_training(tokenizer):
    for bad in ([], [""]):
        with pytest.raises(ValueError, match="texts must hold a text"):
            SubwordTokenizer.fit(bad)
    with pytest.raises(ValueError, match="texts must be an iterable"):
        SubwordTokenizer.fit("abc")
    with pytest.raises(ValueError, match=r"texts\[1\]"):
        SubwordTokenizer.fit(["a", None])
    with pytest.raises(ValueError, match=r"vocabulary_size must be at most \d+ for these texts"):
        SubwordTokenizer.fit(SENTENCES[:5])
    with pytest.raises(ValueError, match=r"vocabulary_size must be at least \d+ for these texts"):
        SubwordTokenizer.fit(SENTENCES, vocabulary_size=6)
    with pytest.raises(ValueError, match="vocabulary_size must be above 4"):
        SubwordTokenizer.fit(SENTENCES, vocabulary_size=4)
    with pytest.raises(ValueError, match="model_type"):
        SubwordTokenizer.fit(SENTENCES, model_type="word")
    with pytest.raises(ValueError, match="character_coverage"):
        SubwordTokenizer.fit(SENTENCES, character_coverage=2)
    with pytest.raises(ValueError, match="normalization"):
        SubwordTokenizer.fit(SENTENCES, normalization="nfc")
    for bad in ("???", 3):
        with pytest.raises(ValueError, match="model must be base64"):
            SubwordTokenizer(bad)
    with pytest.raises(ValueError, match=r"texts\[0\] must be UTF-8"):
        tokenizer.encode([b"\xff"])


def test_vocabulary_sizes_that_errors_name_do_work():
    for wrong in (8000, 6):
        with pytest.raises(ValueError) as error:
            SubwordTokenizer.fit(SENTENCES[:30], vocabulary_size=wrong)
        size = int(str(error.value).split("at most " if wrong > 100 else "at least ")[1].split()[0])
        assert SubwordTokenizer.fit(SENTENCES[:30], vocabulary_size=size).size == size


@pytest.mark.parametrize("missing", ["sentencepiece", "tensorflow_text"])
def test_a_missing_package_is_named(tokenizer, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        ImportError, match=rf"{missing}: pip install keras-attention-layers\[text\]"
    ):
        if missing == "sentencepiece":
            SubwordTokenizer.fit(SENTENCES, vocabulary_size=100)
        else:
            SubwordTokenizer(tokenizer.model).encode("a")


def test_a_model_that_is_none():
    with pytest.raises((ValueError, tf.errors.OpError), match="model"):
        SubwordTokenizer(base64.b64encode(b"nonsense").decode()).encode("a")


def test_special_pieces_are_not_text():
    special = subword_models.SPECIAL_PIECES.values()
    assert len({*subwords.STAND_INS.values(), *special}) == 6


# Two sides that share one model

TARGETS = [" ".join(random.choices(WORDS[:40], k=6)) for _ in range(200)]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def pair(request):
    """Sources with letters that targets lack, and the tokenizers of both."""
    sources = [text.replace("a", "ä").replace("b", "ß") for text in SENTENCES]
    options = {"vocabulary_size": 220, "model_type": request.param}
    return sources, SubwordTokenizer.fit_pair(sources, TARGETS, **options), request.param


def test_both_sides_have_the_same_ids(pair):
    sources, (source, target), _ = pair
    assert RESERVED < target.size < source.size == 220
    assert target.tokens == source.tokens[: target.size]
    assert len(set(source.tokens)) == source.size
    assert np.array_equal(source.encode(TARGETS), target.encode(TARGETS))
    for tokenizer, texts in ((source, sources), (target, TARGETS), (source, TARGETS)):
        ids = tokenizer.encode(texts, add_start=True, add_end=True)
        assert strings(tokenizer.decode(ids)) == texts
        assert not (ids.numpy() == UNKNOWN).any()


def test_tokens_of_targets_come_first(pair):
    """All of them, and none that only sources hold."""
    sources, (source, target), _ = pair
    used = set(np.unique(source.encode(TARGETS))) - {PAD}
    assert used == set(range(RESERVED, target.size))
    assert np.max(source.encode(sources)) >= target.size


def test_the_new_order_splits_texts_as_before(pair):
    """Also what was not learned from: the model decides by scores, not by ids."""
    sources, (source, _), model_type = pair
    before = SubwordTokenizer.fit([*sources, *TARGETS], 220, model_type=model_type)
    assert sorted(before.tokens) == sorted(source.tokens) and before.tokens != source.tokens
    texts = [*sources[:50], *TARGETS[:50], "abc Äßä hhh", *ODD]
    pieces = [strings(x.tokens_of(x.encode(texts))) for x in (before, source)]
    assert pieces[0] == pieces[1]


def test_ids_beyond_the_limit_are_unknown(pair):
    sources, (source, target), _ = pair
    ids, limited = (x.encode(sources[:20]).numpy() for x in (source, target))
    assert np.array_equal(limited, np.where(ids < target.size, ids, UNKNOWN))
    assert (limited == UNKNOWN).any()
    assert "⁇" in strings(target.decode(limited))[0]
    assert set(strings(target.tokens_of([[target.size, source.size, -1]]))[0]) == {"⁇"}
    assert strings(target.decode([[target.size]])) == ["⁇"]


def test_a_limit_is_saved(pair):
    _, (source, target), _ = pair
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(target)))
    again = keras.saving.deserialize_keras_object(config)
    for copied in (again, copy.deepcopy(target), pickle.loads(pickle.dumps(target))):
        assert (copied.limit, copied.size) == (target.limit, target.size)
        assert copied.get_config() == target.get_config()
        assert np.array_equal(copied.encode(SENTENCES), target.encode(SENTENCES))
    limited = SubwordTokenizer(source.model, limit=np.int64(target.size))
    assert json.loads(json.dumps(limited.get_config()))["limit"] == target.size
    assert SubwordTokenizer(source.model, limit=10**6).size == source.size


def test_a_limit_in_a_saved_model(pair, tmp_path):
    _, (_, target), _ = pair
    module = tf.Module()
    module.function = there_and_back(target)
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"one": module.function})
    served = tf.saved_model.load(str(tmp_path / "m")).signatures["one"](
        texts=tf.constant(SENTENCES)
    )
    assert np.array_equal(served["ids"], target.encode(SENTENCES, add_end=True))


def test_bad_pairs(pair):
    _, (source, _), _ = pair
    for bad in (4, 0, True, 5.5, "ten"):
        with pytest.raises(ValueError, match="limit must be .* above 4, or None. Got"):
            SubwordTokenizer(source.model, limit=bad)
    with pytest.raises(ValueError, match="texts must hold a text"):
        SubwordTokenizer.fit_pair([""], [])
    with pytest.raises(ValueError, match="targets: texts must be an iterable"):
        SubwordTokenizer.fit_pair(SENTENCES, "abc")
    with pytest.raises(ValueError, match=r"targets: texts\[1\]"):
        SubwordTokenizer.fit_pair(SENTENCES, ["a", None])
