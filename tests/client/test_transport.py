# SPDX-License-Identifier: Apache-2.0
import logging
import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import pytest

pytest.importorskip("httpx2")

from sfumato.client import Client
from sfumato.client.transport import RetryParams, Transport
from sfumato.errors import ServerError


@pytest.fixture
def connect(scripted):
    """Make a transport to the scripted server; it notes how long it would wait."""
    made = []

    def make(waits=None, url=scripted.url, **words):
        made.append(Transport(url, scripted.key, sleep=(waits if waits is not None else []).append, **words))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def test_an_answer_comes_back_and_the_key_goes_in_the_header_alone(scripted, connect):
    scripted.answers = [(200, {"a": 1}, {})]
    assert connect().ask("GET", "/x", params={"b": 2, "c": None}) == {"a": 1}
    (request,) = scripted.requests
    assert request["path"] == "/x?b=2"
    assert request["headers"]["Authorization"] == f"Bearer {scripted.key}"
    assert "gzip" not in request["headers"]["Accept-Encoding"]


@pytest.mark.parametrize("status", [429, 503, 504, 507])
def test_it_tries_again_where_the_server_says_so_after_the_time_it_names(scripted, connect, refusal, status):
    scripted.answers = [refusal(status, "busy", retry=True, wait=7), refusal(status, "busy", retry=True), (200, 1, {})]
    waits = []
    assert connect(waits).ask("PUT", "/x", content=b"frame") == 1
    assert waits == [7.0, 1.0]
    assert [request["body"] for request in scripted.requests] == [b"frame"] * 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 500])
def test_nothing_else_is_sent_again_whatever_it_says(scripted, connect, refusal, status):
    scripted.answers = [refusal(status, "no", retry=True)]
    with pytest.raises(ServerError) as caught:
        connect().ask("GET", "/x")
    assert (caught.value.status, caught.value.code, caught.value.retry) == (status, "no", False)
    assert len(scripted.requests) == 1


def test_a_refusal_without_leave_is_final(scripted, connect, refusal):
    scripted.answers = [refusal(429, "rate"), (200, 1, {})]
    with pytest.raises(ServerError):
        connect().ask("GET", "/x")
    assert len(scripted.requests) == 1


def test_patience_has_an_end(scripted, connect, refusal):
    scripted.answers = [refusal(503, "busy", retry=True)]
    waits = []
    with pytest.raises(ServerError, match="busy"):
        connect(waits, retries=RetryParams(attempts=3)).ask("GET", "/x")
    assert len(scripted.requests) == 3
    assert len(waits) == 2
    scripted.answers = [refusal(503, "busy", retry=True, wait=999_999)]
    with pytest.raises(ServerError):
        connect(waits).ask("GET", "/x")
    assert len(waits) == 2, "nobody waits for days"


def test_no_redirect_is_followed(scripted, connect):
    scripted.answers = [(307, b"", {"Location": "http://127.0.0.1:1/elsewhere"})]
    with pytest.raises(ServerError) as caught:
        connect().ask("GET", "/x")
    assert caught.value.code == "redirect"
    assert len(scripted.requests) == 1


@pytest.mark.parametrize("content", [b"<html>", b'{"detail": 3', b"[" * 100_000])
def test_answers_of_other_servers_are_refused(scripted, connect, content):
    for status in (200, 500):
        scripted.answers = [(status, content, {})]
        with pytest.raises(ServerError) as caught:
            connect().ask("GET", "/x")
        assert caught.value.code == "strange_answer"


def test_an_endless_answer_is_cut(scripted, connect, monkeypatch):
    monkeypatch.setattr("sfumato.client.transport.LARGEST_ANSWER", 1000)
    scripted.answers = [(200, b"x" * 2000, {})]
    with pytest.raises(ServerError):
        connect().ask("GET", "/x")


def test_a_server_that_is_not_there(scripted, connect):
    with pytest.raises(ServerError) as caught:
        connect(url="http://127.0.0.1:1").ask("GET", "/x")
    assert (caught.value.status, caught.value.code) == (0, "unreachable")
    assert scripted.key not in str(caught.value)


def test_a_certificate_that_is_not_trusted_says_which_option_helps(tmp_path, connect):
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    try:
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            connection = listener.accept()[0]
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(ServerError, match="--ca-file") as caught:
            connect(url=f"https://127.0.0.1:{listener.getsockname()[1]}").ask("GET", "/x")
        thread.join()
    assert caught.value.code == "unreachable"


def test_the_environment_sends_nothing_elsewhere(scripted, connect, monkeypatch):
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    scripted.answers = [(200, {}, {})]
    assert connect().ask("GET", "/x") == {}


def test_no_log_shows_the_key(scripted, caplog):
    caplog.set_level(logging.DEBUG)
    scripted.answers = [(200, {"version": "1"}, {})]
    with Client(scripted.url, scripted.key) as client:
        client.about()
    assert scripted.key not in caplog.text
    assert scripted.key[13:56] not in caplog.text


def test_what_the_server_says_is_cut_and_has_names_for_ids(scripted, connect):
    key = "0123456789abcdef" * 2
    scripted.answers = [(409, {"detail": f"image {key} " + "x" * 5000, "code": "c" * 500}, {})]
    with pytest.raises(ServerError) as caught:
        connect(reveal=lambda text: text.replace(key, "'attic.jpg'")).ask("GET", "/x")
    assert "'attic.jpg'" in str(caught.value)
    assert len(str(caught.value)) < 800
    assert len(caught.value.code) < 100


def test_lines_of_a_stream_come_as_they_were_and_have_an_end(scripted, connect, monkeypatch):
    headers = {"Content-Type": "text/event-stream"}
    scripted.answers = [(200, "a: ü\r\n\nb".encode(), headers), (200, b"x" * 5000, headers)]
    with connect().lines("/x", headers={}, timeout_seconds=5) as lines:
        assert list(lines) == ["a: ü", ""]
    monkeypatch.setattr("sfumato.client.transport.LONGEST_LINE", 1000)
    with pytest.raises(ServerError), connect().lines("/x", headers={}, timeout_seconds=5) as lines:
        list(lines)


def test_an_empty_answer_is_none(scripted, connect):
    scripted.answers = [(204, b"", {})]
    assert connect().ask("DELETE", "/x") is None
