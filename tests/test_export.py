"""Servables: what TensorFlow alone makes of an exported model equals the model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import (
    CharacterTokenizer,
    SubwordTokenizer,
    causal_lm,
    export_servable,
    load_servable,
    seq2seq,
    text_classifier,
    transformer,
)
from keras_attention.export import comparison, servable
from keras_attention.export.endpoints import settings_for
from keras_attention.text import START

HERE = Path(__file__).parent
LENGTH, WIDTH = 6, 3
LETTERS = CharacterTokenizer.fit(["abcdefgh xyz", "한국어 문장"])
TEXTS = ["abc d", "", "한국", "xyzz yx abc"]
MODELS = {
    "recurrent": lambda: seq2seq(
        LETTERS,
        LETTERS,
        units=8,
        attention="general",
        attention_options={"local": "predictive", "window": 2},
        input_feeding=True,
    ),
    "transformer": lambda: transformer(
        LETTERS, LETTERS, layers=1, units=8, num_heads=2, position="learned", max_length=16
    ),
    "language": lambda: causal_lm(LETTERS, layers=1, units=8, num_heads=2),
}


def ids_only():
    return seq2seq(20, 30, units=8)


MORE_MODELS = {
    "without attention": lambda: seq2seq(LETTERS, LETTERS, units=8, attention=None),
    "coverage": lambda: seq2seq(
        LETTERS, LETTERS, units=8, attention="bahdanau", attention_options={"history": "coverage"}
    ),
    "monotonic": lambda: seq2seq(
        LETTERS, LETTERS, units=8, cell="gru", attention_options={"local": "monotonic", "window": 3}
    ),
    "ids": ids_only,
    "rotary": lambda: transformer(
        LETTERS, LETTERS, layers=2, units=8, num_heads=2, position="rotary", tied_embeddings=True
    ),
    "alibi": lambda: causal_lm(LETTERS, layers=1, units=8, num_heads=2, position="alibi"),
    "learned": lambda: causal_lm(
        LETTERS, layers=1, units=8, num_heads=2, position="learned", max_length=24
    ),
    "ids that go on": lambda: causal_lm(30, layers=1, units=8, num_heads=2),
    "window": lambda: causal_lm(
        LETTERS, layers=1, units=8, num_heads=2, attention_options={"sliding_window": 3}
    ),
}


def quick(name):
    """One of the models; the others with the slow tests."""
    return [pytest.param(x, marks=() if x == name else pytest.mark.slow) for x in MODELS]


QUICK = [pytest.param(x, marks=pytest.mark.slow if x == "language" else ()) for x in MODELS]


@pytest.fixture(scope="module", params=QUICK)
def exported(request, tmp_path_factory):
    """A model and where it was exported."""
    keras.utils.set_random_seed(1)
    model = MODELS[request.param]()
    path = tmp_path_factory.mktemp("export") / "model"
    card = export_servable(
        model, path, WIDTH, LENGTH, command="train.py", metrics={"loss": np.float32(0.5)}
    )
    return model, path, card


@pytest.fixture(scope="module")
def requests(exported):
    """Requests to all endpoints of the exported model, as `requests_for` gives them."""
    return list(requests_for(exported[0]))


def answers_of(model):
    """What the model gives for TEXTS: the best, and the best of a beam with their scores."""
    ask = model.generate if hasattr(model, "generate") else model.translate
    best = ask(TEXTS, max_length=LENGTH)
    several = ask(TEXTS, max_length=LENGTH, beam_width=WIDTH, num_results=WIDTH)
    return best, several


def tensor(dtype, values):
    array = np.array(values, object if dtype == "string" else dtype)
    return {"dtype": dtype, "shape": list(array.shape), "values": np.ravel(array).tolist()}


def requests_for(model):
    """A request to each endpoint, and a check of its answer: `(name, given, earlier, check)`."""
    best, several = answers_of(model)
    continues = hasattr(model, "generate")
    name, key = ("ids", "generated") if continues else ("source", "translation")
    ids = np.array([[5, 6, 7, 2], [8, 2, 0, 0]], "int32")
    ids = ids[:, ::-1].copy() if continues else ids
    source, text = {name: tensor("int32", ids)}, {"text": tensor("string", TEXTS)}
    target = np.array([[1, 5, 6], [1, 7, 0]], "int32")
    both = source if continues else {**source, "target": tensor("int32", target)}
    token = {} if continues else {"token": tensor("int32", [START, START])}
    logits = model(ids if continues else [ids, target], training=False)
    found = model.search(ids, max_length=LENGTH)
    steps = int(np.max(found.lengths)) + 1

    def near(output, expected):
        values = np.reshape(output["values"], output["shape"])
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)

    def nothing(outputs):
        assert all(x["shape"][0] == 0 for x in outputs.values())

    def strings(outputs, expected):
        found = np.reshape(np.array(outputs[key]["values"], object), outputs[key]["shape"])
        assert found.tolist() == expected

    yield "encode", source, None, lambda x: None
    yield "step", token, 0, lambda x: near(x["logits"], first_logits(model, ids))
    yield "serving_default", text, None, lambda x: strings(x, best)
    yield "beam", text, None, lambda x: strings(x, several)
    for name in ("serving_default", "beam"):
        yield name, {"text": tensor("string", [])}, None, nothing
    yield "serve_tokens", source, None, lambda x: near(x["tokens"], found.ids[:, :steps])
    yield "forward", both, None, lambda x: near(x["logits"], logits)
    # A value of the wrong type is an error as text, and what comes after it is answered.
    yield "serving_default", {"text": tensor("int32", [1])}, None, lambda x: x["error"]
    yield "serving_default", text, None, lambda x: strings(x, best)


def first_logits(model, ids):
    """Of the step that follows what was read."""
    if hasattr(model, "generate"):
        return model.step(*model.start(ids))[0]
    memory, state = model.inference.encode(ids)
    return model.inference.step(np.array([START, START]), state, memory)[0]


def run_script(script, *arguments, requests):
    asked = json.dumps([request[:3] for request in requests])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / script), *map(str, arguments)],
        input=asked,
        capture_output=True,
        text=True,
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check_answers(requests, answers):
    for (*_, check), answer in zip(requests, answers, strict=True):
        check(answer)


@pytest.mark.parametrize("exported", quick("recurrent"), indirect=True)
def test_the_c_api_gives_what_the_model_gives(exported, requests):
    _, path, _ = exported
    check_answers(requests, run_script("c_api.py", path, requests=requests))


@pytest.mark.parametrize("exported", quick("transformer"), indirect=True)
def test_without_keras(exported, requests):
    """Where Keras can not be imported, each endpoint works, and a copy of the front end."""
    model, path, _ = exported
    copy = path.parent / "copied.py"
    shutil.copy(servable.__file__, copy)
    *answers, front = run_script(
        "without_keras.py", path, copy, json.dumps(TEXTS), requests=requests
    )
    check_answers(requests, answers)
    best, several = answers_of(model)
    assert front[0] == best
    assert [[text for text, _ in row] for row in front[1]] == several


@pytest.mark.parametrize("command", ["show", "scan", "run"])
@pytest.mark.parametrize("exported", ["recurrent"], indirect=True)
def test_saved_model_cli(exported, command):
    _, path, _ = exported
    options = {
        "show": ["--all"],
        "scan": [],
        "run": [
            "--signature_def",
            "beam",
            "--input_exprs",
            'text=["abc", ""]',
            "--tag_set",
            "serve",
        ],
    }[command]
    tool = Path(sys.executable).with_name("saved_model_cli")
    done = subprocess.run(
        [tool, command, "--dir", path, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = {"show": "serve_tokens", "scan": "does not contain", "run": "Result for output key"}
    assert expected[command] in done.stdout


def test_the_front_end(exported):
    model, path, card = exported
    front = load_servable(path)
    assert front.card == card == json.loads((path / "model_card.json").read_text("utf-8"))
    texts = TEXTS * 30  # more than a batch
    continues = hasattr(model, "generate")
    ask, ask_model = (
        (front.generate, model.generate) if continues else (front.translate, model.translate)
    )
    best = ask_model(texts, max_length=LENGTH)
    assert ask(texts) == best
    assert ask(texts[0]) == best[0] and ask([]) == []
    with pytest.raises(ValueError, match=r"texts\[1\] must be a str. Received: 3"):
        ask(["a", 3])
    for wrong in (None, 5, b"abc"):
        with pytest.raises(ValueError, match="must be a str or a list of str"):
            ask(wrong)
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="batch_size must be a positive integer"):
            ask(["a"], batch_size=wrong)
    with pytest.raises(ValueError, match="It gives"):
        (front.translate if continues else front.generate)("a")
    if continues:
        return
    expected = model.translate(TEXTS, max_length=LENGTH, details=True)
    for found, wanted in zip(front.alignments(TEXTS), expected, strict=True):
        assert found.text == wanted.text
        assert found.target_tokens == wanted.target_tokens
        assert found.source_tokens == wanted.source_tokens
        np.testing.assert_allclose(found.score, wanted.score, rtol=1e-5)
        np.testing.assert_allclose(found.attention_scores, wanted.attention_scores, atol=1e-6)


@pytest.mark.parametrize("exported", ["recurrent"], indirect=True)
@pytest.mark.parametrize("damaged", ["saved_model.pb", "data", "index"])
def test_a_damaged_export(exported, tmp_path, damaged):
    shutil.copytree(exported[1], tmp_path / "a")
    (file,) = (x for x in (tmp_path / "a").rglob("*") if damaged in x.name and x.is_file())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="can not be loaded, it may be damaged: .") as error:
        load_servable(tmp_path / "a")
    assert "\n" not in str(error.value)


def test_the_model_card(exported):
    model, _, card = exported
    assert card["model"] == type(model).__name__
    assert card["parameters"] == model.count_params()
    assert (card["command"], card["metrics"]) == ("train.py", {"loss": 0.5})
    assert card["requires"] == ["tensorflow"]
    assert card["search"]["max_length"] == LENGTH
    assert len({x["sha256"] for x in card["tokenizers"].values()}) == 1
    assert card["endpoints"]["beam"]["outputs"]["score"] == {
        "dtype": "float32",
        "shape": [None, WIDTH],
    }
    assert card["compared_with_model"]["largest_difference"] < 1e-4
    for endpoint in card["endpoints"].values():  # servers want the batch first, and free
        for side in endpoint.values():
            assert all(x["shape"][0] is None for x in side.values())
        assert not set(endpoint["inputs"]) & set(endpoint["outputs"])


def test_nothing_is_overwritten_or_left_behind(tmp_path, monkeypatch):
    model, path = ids_only(), tmp_path / "model"
    path.mkdir()
    (path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_servable(model, path)
    with pytest.raises(FileExistsError, match="is nothing that an export wrote"):
        export_servable(model, path, overwrite=True)
    (path / "saved_model.pb").touch()

    def differs(*arguments):
        raise RuntimeError("`beam` does not give what the model gives")

    with monkeypatch.context() as patch:
        patch.setattr(comparison, "compare", differs)
        with pytest.raises(RuntimeError, match="`beam` does not give"):
            export_servable(model, path, max_length=3, overwrite=True)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert (path / "mine.txt").read_text() == "mine"
    export_servable(model, path, max_length=3, overwrite=True)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert not (path / "mine.txt").exists()
    with pytest.raises(FileNotFoundError, match="no_such_folder"):
        export_servable(model, tmp_path / "no_such_folder" / "model")


@pytest.mark.parametrize("exported", quick("recurrent"), indirect=True)
def test_what_differs_is_found(exported):
    """The comparison sees a model whose weights are other ones than those exported."""
    model, path, card = exported
    loaded = tf.saved_model.load(str(path))
    settings = settings_for(model, LENGTH, None, WIDTH)
    other = model.from_config(model.get_config())
    with pytest.raises(RuntimeError, match="endpoint `.*` does not give what the model gives for"):
        comparison.compare(loaded, other, settings)


def test_the_state_of_the_optimizer_stays_behind(tmp_path):
    model = ids_only()
    model.compile("adam", "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    export_servable(model, tmp_path / "a", max_length=2)
    (data,) = (tmp_path / "a" / "variables").glob("*.data*")
    assert data.stat().st_size < 1.5 * 4 * model.count_params()


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"beam_width": 1}, "`beam_width` must be at least 2. Received: 1"),
        ({"max_length": 0}, "`max_length` must be a positive integer"),
        ({"max_length": 17}, "`max_length` must be at most 16"),
        ({"search_options": {"length_penalty": 1.0}}, "`length_penalty` is no option of"),
        ({"beam_options": {"temperature": 1.0}}, "`beam_width` does not go with sampling"),
        ({"beam_options": {"num_results": 2}}, "`num_results` is not for an export"),
    ],
)
def test_wrong_arguments(tmp_path, kwargs, message):
    with pytest.raises(ValueError, match=message):
        export_servable(MODELS["transformer"](), tmp_path / "a", **kwargs)
    assert not list(tmp_path.iterdir())


def test_metrics_that_json_can_not_hold(tmp_path):
    with pytest.raises(ValueError, match="`metrics` must be a dictionary of plain"):
        export_servable(ids_only(), tmp_path / "a", metrics={"x": object()})
    assert not list(tmp_path.iterdir())


def test_other_models_are_refused(tmp_path):
    model = text_classifier(20, 3, layers=1, units=8, num_heads=2)
    with pytest.raises(ValueError, match="`Seq2Seq`, `Transformer` or `CausalLM`.*TextClassifier"):
        export_servable(model, tmp_path / "a")


def test_no_servable(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no SavedModel"):
        load_servable(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(FileNotFoundError, match="no model_card.json"):
        load_servable(tmp_path)
    (tmp_path / "model_card.json").write_text("[]")
    with pytest.raises(ValueError, match="is no model card"):
        load_servable(tmp_path)
    (tmp_path / "model_card.json").write_text('{"format": 1, "requires": []}')
    with pytest.raises(ValueError, match="it lacks dtype, endpoints, model"):
        load_servable(tmp_path)
    (tmp_path / "model_card.json").write_text('{"format": 2, "requires": []}')
    with pytest.raises(ValueError, match="has format 2"):
        load_servable(tmp_path)


def refused(signature, **inputs):
    """What a client is told, which it is by an error of the kind that a server answers with 400."""
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        signature(**{name: tf.constant(x, "int32") for name, x in inputs.items()})
    return servable.what(error.value)


def test_ids_that_a_model_does_not_have_are_an_error(exported):
    """Also negative ones, which a lookup takes, and inputs without steps."""
    model, path, _ = exported
    ask = tf.saved_model.load(str(path)).signatures
    target = np.array([[1, 5]])
    name, other = ("ids", {}) if hasattr(model, "generate") else ("source", {"target": target})
    beyond = f"must be of ids in the range [0, {LETTERS.size}). Received: one beyond it."
    nothing = "must have at least one step. Received: none."
    for endpoint, more in (("serve_tokens", {}), ("encode", {}), ("forward", other)):
        for wrong in (LETTERS.size, -1):
            found = refused(ask[endpoint], **{name: [[5, wrong, 2]]}, **more)
            assert found == f"`{name}` {beyond}"
        assert refused(ask[endpoint], **{name: np.zeros((1, 0))}, **more) == f"`{name}` {nothing}"
        assert ask[endpoint](
            **{name: tf.constant([[5, LETTERS.size - 1]])}
            | {key: tf.constant(x, "int32") for key, x in more.items()}
        )
    for key in other:
        assert refused(ask["forward"], source=[[5, 2]], target=[[1, -1]]) == f"`{key}` {beyond}"
        found = refused(ask["forward"], source=[[5, 2]], target=np.zeros((1, 0)))
        assert found == f"`{key}` {nothing}"
    state = ask["encode"](**{name: tf.constant([[5, 6]])})
    state.pop("token", None)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        ask["step"](token=tf.constant([LETTERS.size]), **state)
    assert servable.what(error.value) == f"`token` {beyond}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ids", "ids that go on"])
def test_the_limits_of_a_model_for_ids(tmp_path, name):
    """Of its beam too; `forward` of a language model reads what a search reads, in one piece."""
    export_servable(MORE_MODELS[name](), tmp_path / "a", 2, 4, max_input_length=5)
    ask = tf.saved_model.load(str(tmp_path / "a")).signatures
    name, other, reach = ("source", {"target": [[1, 5]]}, 5) if name == "ids" else ("ids", {}, 8)
    assert "range [0, " in refused(ask["beam"], **{name: [[-1]]})
    for endpoint, longest in (("beam", 5), ("serve_tokens", 5), ("encode", 5), ("forward", reach)):
        more = other if endpoint == "forward" else {}
        given = {name: np.full((1, longest), 5), **more}
        assert ask[endpoint](**{key: tf.constant(x, "int32") for key, x in given.items()})
        given[name] = np.full((1, longest + 1), 5)
        assert f"too many tokens for this model: at most {longest}" in refused(
            ask[endpoint], **given
        )


@pytest.mark.slow
def test_an_input_that_is_too_long_is_an_error(tmp_path):
    model = MODELS["transformer"]()
    export_servable(model, tmp_path / "a", max_length=4, max_input_length=7)
    front = load_servable(tmp_path / "a")
    assert front.translate("abcdef") == model.translate("abcdef", max_length=4)
    with pytest.raises(ValueError, match="^An input has too many tokens.*at most 7"):
        front.translate(["a", "abcdefg"])
    assert front.translate("abcdef") == model.translate("abcdef", max_length=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_MODELS)
def test_more_models(tmp_path, name):
    """(`export_servable` compares all endpoints with the model.)"""
    keras.utils.set_random_seed(2)
    card = export_servable(MORE_MODELS[name](), tmp_path / "a", WIDTH, LENGTH)
    assert card["compared_with_model"]["largest_difference"] < 1e-4
    assert card["compared_with_model"]["texts"] or "ids" in name


def in_precision(dtype, make):
    keras.config.set_dtype_policy(dtype)
    try:
        return make()
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(tmp_path, dtype):
    model = in_precision(dtype, MODELS["transformer"])
    card = export_servable(model, tmp_path / "a", WIDTH, LENGTH)
    assert card["dtype"] == dtype


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_state_that_stands_still_is_found(tmp_path, dtype):
    """`step` is right at first, and wrong from the second step on."""
    keras.utils.set_random_seed(1)
    model = in_precision(dtype, ids_only)
    for variable in model.trainable_variables:
        variable.assign(variable * 4)  # so that some token is clearly the best
    export_servable(model, tmp_path / "a", WIDTH, LENGTH)
    loaded = tf.saved_model.load(str(tmp_path / "a"))
    step = loaded.signatures["step"]

    class StandsStill:
        structured_input_signature = step.structured_input_signature

        def __call__(self, **inputs):
            before = {f"next_{key}": x for key, x in inputs.items() if "state" in key}
            return {**step(**inputs), **before}

    stuck = SimpleNamespace(signatures={**loaded.signatures, "step": StandsStill()})
    with pytest.raises(RuntimeError, match="endpoint `step` does not give"):
        comparison.compare(stuck, model, settings_for(model, LENGTH, None, WIDTH), tolerance=0.1)


@pytest.mark.slow
def test_options_and_saved_models(tmp_path):
    """Search options are in the graph; a model that was saved and loaded exports."""
    MODELS["language"]().save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    options = {"temperature": 0.7, "top_k": 5, "seed": 3}
    penalty = {"length_penalty": 0.6, "no_repeat_ngram": 2}
    export_servable(model, tmp_path / "a", 2, LENGTH, None, options, penalty)
    front = load_servable(tmp_path / "a")
    drawn = front.generate(["abc"] * 20)
    assert len(set(drawn)) > 1 and drawn == front.generate(["abc"] * 20)
    export_servable(model, tmp_path / "b", 2, LENGTH, None, {"temperature": 0.7})
    front_b = load_servable(tmp_path / "b")  # without a seed each call draws anew
    assert front_b.generate(["abc"] * 20) != front_b.generate(["abc"] * 20)
    found = front.generate_beam(["abc"])
    expected = model.generate(["abc"], max_length=LENGTH, beam_width=2, num_results=2, **penalty)
    assert [[text for text, _ in row] for row in found] == expected


@pytest.mark.slow
def test_subwords(tmp_path):
    texts = ["the cat sat on the mat", "the dog sat on the log", "cats and dogs"] * 5
    words = SubwordTokenizer.fit(texts, vocabulary_size=20)
    model = seq2seq(words, words, units=8)
    card = export_servable(model, tmp_path / "a", WIDTH, LENGTH)
    assert card["requires"] == ["tensorflow", "tensorflow_text"]
    assert load_servable(tmp_path / "a").translate(texts[:3]) == model.translate(
        texts[:3], max_length=LENGTH
    )


def test_distances():
    """In any precision by size, and exactly for what is no floating-point number."""
    half = np.asarray(tf.constant([1.0, 200.0], "bfloat16"))
    more = np.asarray(tf.constant([1.0, 202.0], "bfloat16"))
    assert comparison.distance(half, half) == 0
    np.testing.assert_allclose(comparison.distance(more, half), 0.01)
    assert comparison.distance(np.array([-np.inf, 1.5]), np.array([-np.inf, 1.0])) == 0.5
    assert not comparison.distance(np.array([np.nan]), np.array([1.0])) <= 1
    assert comparison.distance(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert comparison.distance(np.array(["a"], object), np.array(["a"], object)) == 0
    assert comparison.distance(np.zeros((2, 1)), np.zeros(2)) == np.inf
