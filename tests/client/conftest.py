# SPDX-License-Identifier: Apache-2.0
"""A server of scripted answers: what a client does when a server says something that ours rarely does."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEY = f"sfm_{'a' * 8}_{'B' * 43}_{'0' * 6}"


@dataclass
class Scripted:
    """Answers to give one after the other, the last for ever, and the requests that came."""

    url: str
    key: str = KEY
    answers: list[Any] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def next(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def problem(status: int, code: str, *, retry: bool = False, wait: object = None) -> tuple[int, Any, dict[str, str]]:
    headers = {} if wait is None else {"Retry-After": str(wait)}
    return status, {"detail": f"because {code}", "code": code, "retry": retry, "status": status}, headers


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A server that gives scripted answers: (status, JSON or bytes, headers), or a function of the handler."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.requests.append(
                {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
            )
            reply = script.next()
            if isinstance(reply, Callable):
                reply(self)
                self.close_connection = True
                return
            status, content, headers = reply
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    script = Scripted(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield script
    server.shutdown()
    server.server_close()


@pytest.fixture
def refusal():
    return problem


@pytest.fixture
def client(live_server, tmp_path):
    """A client of the live server, with a table of names of its own."""
    from sfumato.client import Client

    with Client(live_server.url, live_server.key, names=tmp_path / "device.names") as made:
        yield made
