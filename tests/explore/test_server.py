"""Who is answered: only the page whose address the command has printed."""

import http.client
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from small_subjects import open_small

from minibert.cli import main
from minibert.explore.session import Session

pytest.importorskip("tornado", reason="needs Tornado")
TEXT = "the capital of france is [MASK] ."


@pytest.fixture(scope="module")
def served():
    """The port and the token of a running command."""
    command = [sys.executable, "-m", "minibert", "explore", TEXT, "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stderr
        address = urlsplit(server.stdout.readline().split()[1])
        assert address.hostname == "127.0.0.1"
        try:
            yield address.port, parse_qs(address.query)["token"][0]
            server.send_signal(signal.SIGINT)
            assert server.wait(10) == 130
            assert server.stderr.read() == "minibert: interrupted\n"
        finally:
            server.kill()  # one that does not hear the signal would be waited for for ever


def request(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return response.status, response.read().decode(), response.headers


def test_the_page_and_an_answer(served):
    port, token = served
    status, html, headers = request(port, "GET", f"/?token={token}")
    assert status == 200 and "minibert" in html and TEXT in html
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    status, body, _ = request(port, "POST", "/look", json.dumps({"text": TEXT}), X_Token=token)
    assert status == 200 and json.loads(body)["tokens"][6] == "[MASK]"


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_does_not_have(number):
    from minibert.explore.server import Answer  # which needs Tornado

    answered = []
    handler = SimpleNamespace(
        server=SimpleNamespace(methods={"look": lambda: {"loss": number}}, passes=0),
        request=SimpleNamespace(body=b"", headers={}),
        set_header=lambda *_: None,
        finish=answered.append,
    )
    Answer.post(handler, "look")
    assert answered == [{"error": "some numbers are not finite; undo the steps that have been taken"}]


def test_a_folder_may_have_any_name(tmp_path):
    from minibert.explore.server import Page, Server  # which needs Tornado

    page = Server(Session(open_small("labels", tmp_path)), os.fsdecode(b"mod\xe9l"), TEXT)
    answered = []
    handler = SimpleNamespace(server=page, set_header=lambda *_: None, write=answered.append)
    Page.get(handler)
    assert b"mod\\udce9l" in answered[0]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X_Token": "wrong"},
        {"X_Token": "\u00e9"},
        {"X_Token": "TOKEN", "Host": "evil.example"},
        {"X_Token": "TOKEN", "Origin": "https://evil.example"},
        {"X_Token": "TOKEN", "Origin": "null"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/look"), ("POST", "/step")])
def test_nobody_else_is_answered(served, method, path, headers):
    port, token = served
    given = {name: token if value == "TOKEN" else value for name, value in headers.items()}
    status, body, _ = request(port, method, path, "{}" if method == "POST" else None, **given)
    assert status == 403 and "open the address" in body


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/look", "{", "Expecting"),
        ("/look", "[]", "expected a JSON object"),
        ("/look", "[" * 200_000, "no such request can be answered"),
        ("/look", '{"text": "a [MASK]", "changes": ["x"]}', "no such request can be answered"),
        ("/step", '{"rate": 1e400}', "expected a number"),
        ("/step", f'{{"rate": {10**400}}}', "no such request can be answered"),
        ("/look", '{"text": "a", "depth": 3}', "depth"),
        ("/look", '{"text": "no mask"}', "no word is hidden"),
        ("/tensor", '{"name": "nothing"}', "there is no value"),
    ],
)
def test_mistakes_are_answered_in_words(served, path, body, message):
    port, token = served
    status, answer, _ = request(port, "POST", path, body, X_Token=token)
    assert status == 200 and message in json.loads(answer)["error"]


def test_only_what_is_listed_can_be_asked(served):
    port, token = served
    for name in ("model", "_change", "__class__", "tokenizer"):
        status, _, _ = request(port, "POST", f"/{name}", "{}", X_Token=token)
        assert status == 404


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["one [MASK]", "two [MASK]"], "2 texts; without --output there is one"),
        ([TEXT, "--answer", "paris"], "--answer is for --output"),
        (["nothing is hidden"], "no word is hidden"),
    ],
)
def test_what_the_command_refuses(flags, message, capsys):
    assert main(["explore", *flags, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_a_browser_that_is_waited_for_gets_its_page(monkeypatch):
    """Python waits for the end of some browsers, and these wait for the page."""
    pytest.importorskip("tornado")
    served, waited = threading.Event(), queue.Queue()
    monkeypatch.setattr("webbrowser.open", lambda address: waited.put(served.wait(timeout=5)))
    monkeypatch.setattr("minibert.explore.server.Server.run", lambda self: served.set())
    assert main(["explore", TEXT, "--device", "cpu"]) == 0
    assert waited.get(timeout=10), "the page was there before the browser ended"


def test_without_tornado(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "minibert.explore.server", None)
    assert main(["explore", TEXT, "--device", "cpu"]) == 2
    assert "pip install" in capsys.readouterr().err
