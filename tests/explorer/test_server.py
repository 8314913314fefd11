"""The explorer's server answers the page, and refuses what is not from it."""

import dataclasses
import http.client
import json
import re
import socket
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from explorer_support import TEXT, classifier, language_model, served

from transformer_jax.cli.explore import _label
from transformer_jax.cli.main import main
from transformer_jax.evaluation import loading
from transformer_jax.explorer import server
from transformer_jax.explorer.explored import Explored
from transformer_jax.explorer.server import FILES, MAX_BODY

OWN = "decoder/self_attention"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client():
    with served(language_model(), language_model(seed=1)) as client:
        yield client


@pytest.fixture(scope="module")
def two_kinds():
    with served(classifier(), language_model()) as client:
        yield client


def test_it_serves_its_own_files_and_nothing_else(client):
    for path, (_, kind) in FILES.items():
        status, headers, body = client.request(f"/{path}")
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert body
    for path in (
        "/views.py",
        "/../server.py",
        "/..%2fserver.py",
        "/etc/passwd",
        "/page/index.html",
        "/static/../app.js/..",
    ):
        assert client.request(path)[0] == 404


def test_looks_of_both_models(client):
    looks = [client.json("/api/look", {"model": model, "text": TEXT})[1] for model in (0, 1)]
    assert looks[0]["tokens"] == looks[1]["tokens"]
    assert looks[0]["losses"] != looks[1]["losses"]
    assert [about["label"] for about in client.json("/api/about")[1]["models"]] == ["model 0", "model 1"]
    assert client.json("/api/effects", {"text": TEXT})[1]["numbers"][OWN][0][0] != 0
    assert len(client.json("/api/induction", {})[1]["numbers"][OWN]) == 2


def test_patching_is_of_language_models(client):
    found = client.json("/api/patch", {"text": TEXT, "other": TEXT.replace("7", "8")})
    assert found[0] == 200
    assert len(found[1]["shares"]) == 3


def test_generation_step_by_step(client):
    status, found = client.json("/api/generate", {"text": TEXT, "width": 2, "steps": 3})
    assert (status, len(found["steps"])) == (200, 3)
    status, found = client.json("/api/generate", {"text": TEXT, "width": 99})
    assert (status, found["error"]) == (400, "generation with 99 beams: expected 1 to 8")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("generate", {}, "model 0 generates no text"),
        ("patch", {}, "model 0 is no language model"),
        ("induction", {}, "model 0 is no language model"),
        ("attributions", {"model": 1}, "model 1 predicts no labels and no masked tokens"),
        ("attributions", {"text": "fine", "second": "no", "unit": 1}, "there is no prediction 1; the last one is 0"),
        ("effects", {"text": "fine", "second": "no", "unit": -1}, "there is no prediction -1"),
        ("effects", {"model": 1, "text": TEXT, "unit": 1}, "there is no prediction 1; the loss is one of the whole"),
        ("look", {"text": "fine"}, "the text has no text"),
        ("look", {"text": "fine", "second": []}, "'second': expected str"),
    ],
)
def test_what_a_kind_of_model_cannot_answer(two_kinds, path, body, message):
    status, found = two_kinds.json(f"/api/{path}", body)
    assert status == 400
    assert message in found["error"]


@pytest.mark.parametrize(
    "headers",
    [{"Host": "elsewhere.example"}, {"Host": "127.0.0.1"}, {"Origin": "http://elsewhere.example"}, {"Origin": "null"}],
)
def test_requests_of_other_sites_are_refused(client, headers):
    for path, body in (("/api/look", {"text": TEXT}), ("/api/about", None)):
        status, found = client.json(path, body, **headers)
        assert status == 403
        assert "error" in found
        assert "tokens" not in found


def test_the_pages_own_origin_is_not(client):
    assert client.json("/api/look", {"text": TEXT}, Origin=f"http://127.0.0.1:{client.port}")[0] == 200


def test_with_a_token_every_request_needs_it():
    with served(language_model(), token="secret") as client:
        assert client.json("/api/about")[0] == 403
        assert client.json("/api/about", X_Token="wrong")[0] == 403
        assert client.request("/")[0] == 403
        assert client.request("/?token=secret")[0] == 200
        assert client.json("/api/look", {"text": TEXT}, X_Token="secret", Host="machine.example:80")[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the request cannot be read"),
        ([], 400, "expected a JSON object"),
        ({"text": 3}, 400, "'text': expected str"),
        ({"text": "\ud800"}, 400, "the request cannot be read"),
        ({"text": TEXT, "model": 2}, 400, "there is no model 2"),
        ({"text": TEXT, "model": True}, 400, "'model': expected int"),
        ({"text": TEXT, "ablated": [[0]]}, 400, "expected lists of an attention's name, a layer and a head"),
        ({"text": TEXT, "ablated": [[OWN, 0, 7]]}, 400, "no head 7 in layer 0"),
        ({"text": "12 " * 5000}, 400, "the page shows at most"),
        (b"x" * (MAX_BODY + 1), 413, "has more than 65,536 bytes"),
    ],
)
def test_requests_that_cannot_be_answered(client, body, status, message):
    found = client.json("/api/look", body)
    assert found[0] == status
    assert message in found[1]["error"]


def test_markup_is_text(client):
    text = "<script>alert(1)</script> & \u202e\u0000"
    status, look = client.json("/api/look", {"text": text})
    assert status == 200
    assert look["text"] == text


def test_ten_requests_at_once_have_their_own_answers(client):
    texts = [f"{number} is a text" for number in range(10, 20)]
    with ThreadPoolExecutor(10) as pool:
        looks = [*pool.map(lambda text: client.json("/api/look", {"text": text})[1], texts)]
    assert [look["text"] for look in looks] == texts
    assert looks[0]["losses"] != looks[1]["losses"]


def test_a_client_that_disappears_ends_its_computation(client, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def effects(explored, text, by_mean, second, cancelled, unit):
        begun.set()
        while not cancelled():
            pass
        ended.set()
        raise CancelledError

    monkeypatch.setattr(Explored, "effects", effects)
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    connection.request("POST", "/api/effects", json.dumps({"text": TEXT}).encode())
    assert begun.wait(60)
    connection.close()
    assert ended.wait(60)
    assert client.json("/api/look", {"text": TEXT})[0] == 200


def test_a_body_that_does_not_arrive_is_an_error(client, monkeypatch):
    monkeypatch.setattr(server, "MAX_SECONDS", 0.1)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    connection.putrequest("POST", "/api/look")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    response = connection.getresponse()
    assert response.status == 408
    assert "did not arrive in time" in json.loads(response.read())["error"]
    connection.close()


def test_a_failure_of_the_server_is_json_too(client, monkeypatch):
    def look(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(Explored, "look", look)
    status, found = client.json("/api/look", {"text": TEXT})
    assert (status, found) == (500, {"error": "the server has failed; its terminal says why"})


def test_half_a_request_does_not_keep_the_others_waiting(client):
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    connection.putrequest("POST", "/api/look")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    found = []
    thread = threading.Thread(target=lambda: found.append(client.json("/api/look", {"text": TEXT})[0]))
    thread.start()
    thread.join(60)
    connection.close()
    assert found == [200]


def test_a_port_in_use_is_named(client, tmp_path, capsys):
    assert main(["explore", f"--checkpoint={tmp_path}", f"--port={client.port}"]) == 2
    assert f"--host=127.0.0.1 --port={client.port}: Address already in use" in capsys.readouterr().err


def test_a_port_that_there_is_not(tmp_path, capsys):
    assert main(["explore", f"--checkpoint={tmp_path}", "--port=70000"]) == 2
    assert "--port=70000: expected at most 65535" in capsys.readouterr().err


def test_a_checkpoint_of_a_task_without_a_page(monkeypatch, capsys):
    loaded = classifier()
    config = dataclasses.replace(loaded.config, task=dataclasses.replace(loaded.config.task, name="span_qa"))
    monkeypatch.setattr(loading, "load", lambda path: loaded._replace(config=config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert main(["explore", "--checkpoint=runs/questions", f"--port={port}"]) == 2
    message = "questions: models of task.name='span_qa' are not shown; shown are those of classification, tagging"
    assert message in capsys.readouterr().err


def test_one_or_two_checkpoints(capsys):
    assert main(["explore"]) == 2
    assert "explore takes one or two --checkpoint=WORKDIR" in capsys.readouterr().err


def test_a_model_is_called_like_its_work_directory_and_a_step_like_both():
    assert _label("runs/one", ["runs/one", "runs/two"]) == "one"
    assert _label("a/run", ["a/run", "b/run"]) == "a/run"
    paths = ["runs/one", "runs/one/checkpoints/150"]
    assert [_label(path, paths) for path in paths] == ["one", "one, step 150"]
    assert _label("a/run/checkpoints/5", ["a/run/checkpoints/5", "b/run/checkpoints/5"]) == "a/run/checkpoints/5"


def test_a_saved_page_has_all_modules():
    """Their order matters there, so it is a list of its own."""
    named = re.search(r"names = \[(.*?)\]", server.page_file("export.js").decode())[1]
    assert {*re.findall(r'"(\w+)"', named)} == {*server.PAGE_MODULES}


def test_a_text_may_not_be_as_large_as_a_picture():
    with pytest.raises(server.BadRequest, match="'text' has 65,537 characters; expected at most 65,536"):
        server.Fields({"text": "a" * 65_537}).text("text")
    assert len(server.Fields({"picture": "a" * 65_537}).text("picture")) == 65_537
