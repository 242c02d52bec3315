"""The parts of the pronunciation example: text, metrics, data, model, command line."""

import dataclasses
import importlib
import lzma
import sys
import unicodedata
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "data")]
(
    build_cmudict,
    g2p,
    g2p_data,
    g2p_metrics,
    g2p_model,
    g2p_recipe,
    g2p_text,
    pronounce,
) = (
    importlib.import_module(name)
    for name in (
        "build_cmudict",
        "g2p",
        "g2p_data",
        "g2p_metrics",
        "g2p_model",
        "g2p_recipe",
        "g2p_text",
        "pronounce",
    )
)

WORDS = [
    "Þorn",
    "çà",
    "한국어",
    "값",
    "뷁",
    "İstanbul",
    "ΟΔΟΣ",
    "  padded ",
    "a-b'c",
    "日本",
    "",
    " ",
]


def graph_letters(words, alphabet=()):
    split = tf.function(lambda text: g2p_text.graph_split_letters(text, alphabet))
    points = split(tf.constant(words, "string")).to_list()
    return [[chr(point) for point in row] for row in points]


# Text.


def test_hangul_is_split_into_the_jamo_of_unicode():
    assert g2p_text.split_letters("값") == ["\u1100", "\u1161", "\u11b9"]
    assert g2p_text.split_letters("하") == ["\u1112", "\u1161"]
    syllables = [chr(point) for point in range(0xAC00, 0xD7A4)]
    expected = [list(unicodedata.normalize("NFD", syllable)) for syllable in syllables]
    assert [g2p_text.split_letters(syllable) for syllable in syllables] == expected
    assert graph_letters(syllables) == expected


def test_the_graph_splits_words_as_python_does():
    assert graph_letters(WORDS) == [g2p_text.split_letters(word) for word in WORDS]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_either_normal_form_gives_the_same_letters(form):
    words = [unicodedata.normalize(form, word) for word in ("Þór", "çà", "값이")]
    composed = [["þ", "ó", "r"], ["ç", "à"], list(unicodedata.normalize("NFD", "값이"))]
    assert [g2p_text.split_letters(word) for word in words] == composed
    assert graph_letters(words, alphabet=("à", "ç", "ó")) == composed


def test_letter_ids_of_the_graph_are_those_of_the_vocabulary():
    vocabulary = g2p_data.Vocabulary(letters=("a", "c", "é"), phones=("A",))
    points = g2p_text.graph_split_letters(tf.constant(["cab", "É", "", "zzzz"]), vocabulary.letters)
    ids, lengths = g2p_text.graph_letter_ids(points, vocabulary.letters)
    np.testing.assert_array_equal(ids, [[3, 2, 1, 0], [4, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(lengths, [3, 1, 0, 4])
    assert vocabulary.letter_ids(["cab", "É", "", "zzzz"]) == [[3, 2, 1], [4], [], [1, 1, 1, 1]]


@pytest.mark.parametrize("words", [[], ["", " "]])
def test_no_letters_at_all_are_one_column_of_padding(words):
    points = g2p_text.graph_split_letters(tf.constant(words, "string"), ("a",))
    ids, lengths = g2p_text.graph_letter_ids(points, ("a",))
    assert ids.shape == (len(words), 1) and not np.any(ids) and not np.any(lengths)


# Metrics.


@pytest.mark.parametrize(
    ("source", "target", "distance"),
    [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)],
)
def test_edit_distance(source, target, distance):
    assert g2p_metrics.edit_distance(source, target) == distance
    assert g2p_metrics.edit_distance(target, source) == distance


def test_error_rates_by_hand():
    predictions = [("A", "B"), ("A", "C"), ("X",)]
    references = [
        [("A", "B")],  # right
        [("A", "B", "C", "D"), ("A", "C")],  # right by the second pronunciation
        [("A", "B", "C"), ("Y", "Z")],  # wrong; the nearer one is 2 edits away and 2 phones long
    ]
    rates = g2p_metrics.error_rates(predictions, references)
    assert rates.word == pytest.approx(1 / 3)
    assert rates.phoneme == pytest.approx((0 + 0 + 2) / (2 + 2 + 2))
    assert rates.words == 3


def test_error_rates_by_length_by_hand():
    words = ["a", "abcd", "abcde", "abcdefghijklmno", "abc"]
    listed = [[("A",)]] * 5
    predictions = [("A",), ("B",), ("A",), ("C",), ("A",)]
    rows = g2p_metrics.error_rates_by_length(words, predictions, listed)
    assert [(x["from"], x["to"], x["words"]) for x in rows] == [(1, 4, 3), (5, 5, 1), (15, 15, 1)]
    assert [x["word_error"] for x in rows] == [1 / 3, 0, 1]


def test_error_rates_need_a_prediction_for_each_word():
    with pytest.raises(ValueError, match="got 1 and 2"):
        g2p_metrics.error_rates([("A",)], [[("A",)], [("B",)]])


# Data.


def test_bundled_data_is_cmudict_without_stress():
    lexicon = g2p_data.read_lexicon(g2p_data.BUNDLED)
    assert len(lexicon) > 100_000
    assert lexicon["attention"] == [("AH", "T", "EH", "N", "SH", "AH", "N")]
    assert lexicon["a"] == [("AH",), ("EY",)]
    assert all(word.isalpha() for word in lexicon)
    assert len(g2p_data.Vocabulary.of(lexicon).phones) == 39
    assert (g2p_data.BUNDLED.with_name("LICENSE.cmudict")).is_file()


def test_parts_share_no_word_and_do_not_depend_on_order():
    lexicon = g2p_data.read_lexicon(g2p_data.BUNDLED)
    parts = g2p_data.load_parts(g2p_data.BUNDLED)
    train, dev, test = (set(part) for part in parts)
    assert not (train & dev or train & test or dev & test)
    assert train | dev | test == set(lexicon)
    assert 0.89 < len(train) / len(lexicon) < 0.91
    assert all(parts.test[word] == lexicon[word] for word in test)
    assert "attention" in train  # the hash is the same on every machine
    backwards = dict(reversed(lexicon.items()))
    assert set(g2p_data.split_by_word(backwards).test) == test
    assert set(g2p_data.take(backwards, 50)) == set(g2p_data.take(lexicon, 50))


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_files_of_their_own_for_the_parts(tmp_path):
    train = write(tmp_path / "xx_train.tsv", "ab\tA B", "Ab\tA P", "cd\tC D", "ef\tE F")
    write(tmp_path / "xx_dev.tsv", "cd\tC D", "gh\tG H")
    write(tmp_path / "xx_test.tsv", "gh\tG H")
    parts = g2p_data.load_parts(train)
    assert parts.train == {"ab": [("A", "B"), ("A", "P")], "ef": [("E", "F")]}
    assert parts.dev == {"cd": [("C", "D")]} and parts.test == {"gh": [("G", "H")]}
    (tmp_path / "xx_test.tsv").unlink()
    with pytest.raises(g2p_data.DataError, match="both a dev and a test file"):
        g2p_data.load_parts(train)


def test_batches_hold_each_pair_once_with_words_of_like_length():
    lexicon = {"a" * n: [("A",) * n, ("B",) * n] for n in range(1, 25)}
    vocabulary = g2p_data.Vocabulary.of(lexicon)
    dataset = g2p_data.training_batches(lexicon, vocabulary, batch_size=4, seed=1)
    seen, batches = [], 0
    for (letters, inputs), targets in dataset:
        batches += 1
        targets = tf.argmax(targets, axis=-1).numpy() * (inputs.numpy() > 0)
        assert np.all(inputs[:, 0] == g2p_data.START)
        np.testing.assert_array_equal(
            inputs[:, 1:] * (targets[:, 1:] > 0), targets[:, :-1] * (targets[:, 1:] > 0)
        )
        for source, row in zip(letters.numpy(), targets, strict=True):
            length = np.count_nonzero(source)
            assert row[length] == g2p_data.END
            seen.append((length, row[0]))
    assert batches == len(dataset)
    assert sorted(seen) == sorted((n, phone) for n in range(1, 25) for phone in (3, 4))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "bad.tsv: expected lines 'word<TAB>phones', got an empty file"),
        (["ab\tA B", "no tab"], "bad.tsv, line 2: expected 'word<TAB>phones"),
        (["ab\tA B", "", "\tA"], "bad.tsv, line 3: expected 'word<TAB>phones"),
        (["ab\t "], "bad.tsv, line 1: expected 'word<TAB>phones"),
        (["ab\tA\tB"], "bad.tsv, line 1: expected 'word<TAB>phones"),
        (["ab\tA"], "bad.tsv: expected more words, the dev part is empty"),
    ],
)
def test_malformed_data_is_refused_with_file_and_line(tmp_path, capsys, lines, message):
    path = write(tmp_path / "bad.tsv", *lines)
    output = tmp_path / "output"
    assert g2p.main(["--data", str(path), "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not output.exists()


def test_unreadable_data_is_refused(tmp_path, capsys):
    for name, content in (("latin.tsv", "é\tE\n".encode("latin-1")), ("cut.xz", b"no xz at all")):
        (tmp_path / name).write_bytes(content)
        assert g2p.main(["--data", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err
    truncated = tmp_path / "truncated.xz"
    truncated.write_bytes(lzma.compress(b"ab\tA B\n" * 100)[:-20])
    assert g2p.main(["--data", str(truncated)]) == 2
    assert "truncated.xz is not a whole .xz archive" in capsys.readouterr().err


# The script that makes the data.


def test_build_cmudict(tmp_path, capsys):
    source = write(
        tmp_path / "cmudict.dict",
        "'bout B AW1 T",
        "a AH0",
        "a(2) EY1",
        "close K L OW1 S # adjective",
        "close(2) K L OW0 S",
        "d'or D AO1 R",
    )
    target = tmp_path / "out.tsv.xz"
    assert build_cmudict.main([str(source), "--output", str(target)]) == 0
    assert lzma.decompress(target.read_bytes()).decode() == "a\tAH\na\tEY\nclose\tK L OW S\n"
    first = target.read_bytes()
    assert build_cmudict.main([str(source), "--output", str(target)]) == 0
    assert target.read_bytes() == first

    write(source, "a AH0", "word")
    assert build_cmudict.main([str(source), "--output", str(target)]) == 2
    assert "cmudict.dict, line 2" in capsys.readouterr().err
    assert target.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cmudict.dict", "out.tsv.xz"]


# The model.

LEXICON = {"ab": [("A", "B")], "abba": [("A", "B", "A")], "b": [("B",)]}
TINY = dataclasses.replace(g2p_recipe.SMOKE, embedding=5, units=6, dropout=0.0)
TINY_TRANSFORMER = dataclasses.replace(
    g2p_recipe.TRANSFORMER_SMOKE, units=8, dropout=0.0, attention_dropout=0.0
)


@pytest.fixture(scope="module", params=["dot", "none", "transformer"])
def tiny(request):
    vocabulary = g2p_data.Vocabulary.of(LEXICON)
    keras.utils.set_random_seed(1)
    if request.param == "transformer":
        model, recipe = g2p_model.build_transformer(vocabulary, TINY_TRANSFORMER), TINY_TRANSFORMER
    else:
        model, recipe = g2p_model.build_model(vocabulary, request.param, TINY), TINY
    g2p_model.compile_model(model, recipe, steps=10)
    return model, vocabulary


def test_padding_does_not_count_in_the_loss(tiny):
    model, vocabulary = tiny
    letters, inputs = np.array([[2, 3, 3, 2]]), np.array([[1, 3, 4, 3]])
    targets = tf.one_hot([[3, 4, 3, 2]], vocabulary.phone_count)
    loss = model.test_on_batch((letters, inputs), targets)

    def pad(array):
        return np.pad(array, [[0, 0], [0, 5]])

    padding = tf.one_hot(np.zeros([1, 5], "int32"), vocabulary.phone_count)
    padded = model.test_on_batch((pad(letters), pad(inputs)), tf.concat([targets, padding], axis=1))
    assert padded == pytest.approx(loss, rel=1e-5)
    logits = model.predict((letters, inputs), verbose=0)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True)(targets, logits)
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_search_agrees_with_teacher_forcing(tiny):
    model, vocabulary = tiny
    letters = np.array([[2, 3, 3, 2], [3, 0, 0, 0]], "int32")
    found = g2p_model.Transcriber(model).search(letters)
    ids = found.ids.numpy()
    inputs = np.concatenate([np.full([2, 1], g2p_data.START), ids[:, :-1]], axis=1)
    logits = np.array(model.predict((letters, inputs), verbose=0))
    possible = logits.copy()
    possible[..., : g2p_data.END] = -1e9
    real = np.arange(ids.shape[1]) <= found.lengths.numpy()[:, None]
    np.testing.assert_array_equal(np.argmax(possible, axis=-1)[real], ids[real])
    chosen = np.take_along_axis(np.array(tf.nn.log_softmax(logits)), ids[..., None], axis=-1)
    np.testing.assert_allclose(found.scores, np.sum(chosen[..., 0] * real, axis=1), rtol=1e-4)


def test_a_beam_of_a_transformer_finds_no_less_than_greedy_search():
    vocabulary = g2p_data.Vocabulary.of(LEXICON)
    keras.utils.set_random_seed(2)
    model = g2p_model.build_transformer(vocabulary, TINY_TRANSFORMER)
    letters = np.array([[2, 3, 3, 2], [3, 0, 0, 0]], "int32")
    greedy, beam = (g2p_model.Transcriber(model, width).search(letters) for width in (1, 4))
    assert beam.ids.shape.rank == greedy.ids.shape.rank == 2
    assert np.all(beam.scores.numpy() >= greedy.scores.numpy() - 1e-5)
    assert np.all(greedy.ids.numpy() != g2p_data.START)


def test_recipes_by_model_and_number_of_words():
    for model, recipes in g2p_recipe.RECIPES.items():
        small, large, full, smoke = recipes
        assert g2p_recipe.recipe_for(9_999, model=model) is small
        assert g2p_recipe.recipe_for(10_000, model=model) is large
        assert g2p_recipe.recipe_for(10_000, True, model) is full
        assert g2p_recipe.recipe_for(10_000, True, model, smoke=True) is smoke
        is_transformer = [isinstance(x, g2p_recipe.TransformerRecipe) for x in recipes]
        assert is_transformer == [model == "transformer"] * 4


# Output.


def test_output_that_can_not_be_written_is_refused_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(g2p, "train", lambda *arguments: pytest.fail("training has started"))
    blocked = write(tmp_path / "file", "in the way") / "output"
    assert g2p.main(["--smoke", "--output", str(blocked)]) == 2
    error = capsys.readouterr().err
    assert f"--output {blocked}: expected a folder that can be written" in error
    assert error.count("\n") == 1


# Command lines.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention", "best"], "'local-m', 'local-p', 'none'"),
        (["--epochs", "0"], "argument --epochs: expected an integer above 0, got '0'"),
        (["--limit", "-3"], "argument --limit: expected an integer above 0, got '-3'"),
        (["--eval-words", "many"], "argument --eval-words: expected an integer above 0"),
        (["--model", "both"], "argument --model: invalid choice: 'both'"),
        (["--model", "transformer", "--attention", "dot"], "go with --model recurrent only"),
        (["--model", "transformer", "--input-feeding"], "go with --model recurrent only"),
    ],
)
def test_bad_options_are_refused_in_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        g2p.main(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error and error.count("\n") == 1


def test_the_exported_model_must_say_what_the_keras_model_says(capsys):
    result = {"word": "ab", "pronunciation": "A B", "score": -1.0}
    g2p.compare([result], ["ab"], [["A", "B"]], [-1.0])
    assert "pronounced 1 words" in capsys.readouterr().out
    with pytest.raises(g2p.ExportError, match="'A B', the Keras model 'A P'"):
        g2p.compare([result], ["ab"], [["A", "P"]], [-1.0])
    with pytest.raises(g2p.ExportError, match="scores .* differ by 5.00e-01"):
        g2p.compare([result], ["ab"], [["A", "B"]], [-1.5])


def test_matplotlib_is_asked_for_before_training(capsys, monkeypatch):
    monkeypatch.setattr(g2p.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(g2p, "run", lambda options: pytest.fail("the run has started"))
    assert g2p.main([]) == 2
    assert "matplotlib is needed" in capsys.readouterr().err


def test_missing_data_is_refused(capsys):
    assert g2p.main(["--data", "no/such/file.tsv"]) == 2
    assert capsys.readouterr().err == "g2p.py: error: no/such/file.tsv: no such data file\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "word"], "--model nowhere: expected the folder of a SavedModel"),
        (["word", " "], "word 2: expected letters, got ' '"),
    ],
)
def test_pronounce_refuses_bad_input(capsys, arguments, message):
    assert pronounce.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_pictures_have_labels_for_every_letter(tmp_path, recwarn):
    letters = g2p_text.split_letters("å한日")
    assert pronounce.letter_labels(letters) == ["å", "hieuh", "a", "nieun", "ideograph-65e5"]
    result = {
        "word": "å한日",
        "letters": letters,
        "pronunciation": "oː k͈",
        "attention": np.full([3, 5], 0.2).tolist(),
    }
    pronounce.plot_alignment(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not [warning for warning in recwarn if "missing from font" in str(warning.message)]
