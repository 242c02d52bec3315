"""Real servers on loopback, asked by the client of examples/serving (`make test-serving`)."""

import signal
import sys
import time
from pathlib import Path

import keras
import pytest
import requests

from keras_attention import CharacterTokenizer, export_servable, seq2seq

SERVING = Path(__file__).parents[2] / "examples" / "serving"
sys.path[:0] = [str(SERVING), str(Path(__file__).parent)]

from client import Client, ServerError  # noqa: E402
from load import put_under_load  # noqa: E402
from processes import SERVERS, Server  # noqa: E402

LETTERS = CharacterTokenizer.fit(["abcdefgh xyz", "한국어 문장"])
TEXTS = ["abc d", "", "한국", "xyzz yx abc", "a", "hg fe dcba", "문장", "zzzzzzzzzzz"]
LENGTH, WIDTH, SECONDS = 12, 3, 30.0


def make_model(seed):
    keras.utils.set_random_seed(seed)
    return seq2seq(LETTERS, LETTERS, units=32)


@pytest.fixture(scope="module")
def model():
    return make_model(1)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "1"
    export_servable(model, path, WIDTH, LENGTH, max_input_length=2000)
    return path


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request, exported, tmp_path_factory):
    models = tmp_path_factory.mktemp(request.param) / "translate"
    models.mkdir()
    (models / "1").symlink_to(exported)
    server = Server(request.param, models)
    yield server
    server.kill()


@pytest.fixture
def client(server):
    return Client(server.url, "translate", batch_size=3)


def test_right_answers(client, model):
    expected = model.translate(TEXTS, max_length=LENGTH)
    rows = client.predict(TEXTS)
    assert [row["translation"] for row in rows] == expected
    several = model.translate(TEXTS, max_length=LENGTH, beam_width=WIDTH, num_results=WIDTH)
    assert [row["translation"] for row in client.predict(TEXTS, "beam")] == several
    assert client.predict([]) == []
    assert client.post({"instances": []}) == []


def test_ids(client, model):
    ids = [[5, 6, 7, 2], [8, 9, 2, 0]]
    rows = client.post(
        {"instances": [{"source": row} for row in ids], "signature_name": "serve_tokens"}
    )
    found = model.search(keras.ops.convert_to_tensor(ids), max_length=LENGTH)
    steps = len(rows[0]["tokens"])
    assert [row["tokens"] for row in rows] == found.ids[:, :steps].numpy().tolist()


@pytest.mark.parametrize(
    "payload, message",
    [
        ({"instances": [{"text": "a" * 10_000}]}, "too many tokens"),
        ({"instances": [{"text": "a" * 20_001}]}, "at most 20000 characters"),
        ({"instances": [{"text": "a"}] * 257}, "at most 256"),
        ({"instances": [{"text": 3}]}, "must be a text"),
        ({"instances": [{"text": None}]}, "must be a text"),
        ({"instances": [{"texts": "a"}]}, "must have exactly: text"),
        ({"instances": "a"}, "list"),
        ({"rows": []}, "instances"),
        ([1], "instances"),
        ({"instances": [], "signature_name": "sing"}, "Unknown signature_name"),
        (
            {"instances": [{"source": [5]}, {"source": [5, 6]}], "signature_name": "serve_tokens"},
            "one length",
        ),
        (
            {"instances": [{"source": [0.5]}], "signature_name": "serve_tokens"},
            "must be int32",
        ),
    ],
)
def test_what_is_wrong_is_refused(client, model, payload, message):
    with pytest.raises(ServerError, match=message) as refused:
        client.post(payload)
    assert refused.value.status == 400
    (row,) = client.predict(["abc d"])
    assert row["translation"] == model.translate("abc d", max_length=LENGTH)


def test_bad_json_and_unknown_models(server, client):
    for body in (b"{", b"", b"\xff\xfe", b'{"instances": ['):
        headers = {"Content-Type": "application/json"}
        answer = requests.post(client.url, data=body, headers=headers, timeout=30)
        assert answer.status_code == 400 and answer.json()["error"]
    with pytest.raises(ServerError) as refused:
        Client(server.url, "sing").predict(["a"])
    assert refused.value.status == 404
    assert len(client.predict(["a"])) == 1


def test_one_request_at_fault_does_not_harm_others(server, model):
    """In the same batch: who asks for too much is refused, everybody else is answered."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(text):
        try:
            return Client(server.url, "translate").predict([text])[0]["translation"]
        except ServerError as error:
            return error.status

    texts = TEXTS * 2 + ["a" * 5000]
    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(ask, texts))
    assert found == [*model.translate(TEXTS * 2, max_length=LENGTH), 400]


def test_many_clients(server, model):
    expected = dict(zip(TEXTS, model.translate(TEXTS, max_length=LENGTH), strict=True))
    load = put_under_load(server.url, "translate", TEXTS, 16, SECONDS, expected)
    print(f"\n{server.kind}, batching: {load}")
    assert not load.errors and not load.wrong and load.requests > 50


def test_many_clients_without_batching(server, exported, model, tmp_path):
    if server.kind == "ray":  # one at a time on a machine
        server.kill()
    models = tmp_path / "translate"
    models.mkdir()
    (models / "1").symlink_to(exported)
    plain = Server(server.kind, models, "--no-batching")
    try:
        expected = dict(zip(TEXTS, model.translate(TEXTS, max_length=LENGTH), strict=True))
        load = put_under_load(plain.url, "translate", TEXTS, 16, SECONDS, expected)
        print(f"\n{server.kind}, each request by itself: {load}")
        assert not load.errors and not load.wrong and load.requests > 50
    finally:
        plain.kill()
        if server.kind == "ray":
            server.start()


def test_killed_and_started_again(server, client):
    before = client.predict(TEXTS)
    server.kill(signal.SIGKILL)
    with pytest.raises(requests.RequestException):
        Client(server.url, "translate", retries=0).predict(["a"])
    server.start()
    assert client.predict(TEXTS) == before


def test_a_new_version_is_taken(server, client):
    other = make_model(2)
    wanted = other.translate(TEXTS, max_length=LENGTH)
    assert [row["translation"] for row in client.predict(TEXTS)] != wanted
    export_servable(other, server.models / "2", WIDTH, LENGTH)
    end = time.monotonic() + 60
    while [row["translation"] for row in client.predict(TEXTS)] != wanted:
        assert time.monotonic() < end, "the new version was not taken"
        time.sleep(0.5)


def test_a_broken_version_is_left_alone(server, client):
    before = client.predict(TEXTS)
    broken = server.models / "3"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"this is no model")
    time.sleep(5)
    assert client.predict(TEXTS) == before
