# SPDX-License-Identifier: Apache-2.0
"""Requests to a server: one connection, answers within limits, refusals as ServerError, and few, patient retries.

A request is sent again only where the server says so. No redirect is followed, no setting of the environment changes
where a key goes, and no text of an error shows it.
"""

import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from sfumato import __version__
from sfumato.client.settings import check_api_key, check_url
from sfumato.errors import FileError, ServerError, need

MAY_RETRY = frozenset({429, 503, 504, 507})
"""Statuses after which a request may be sent again, if the answer says that it helps."""
LARGEST_ANSWER = 64 * 2**20
LONGEST_SENTENCE = 600
LONGEST_LINE = 2**22
UNREACHABLE, STRANGE = "unreachable", "strange_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryParams:
    """How often a request is sent in all, and how long to wait: at first, at most each time, and at most in all."""

    attempts: int = 8
    first_seconds: float = 0.5
    longest_seconds: float = 60.0
    total_seconds: float = 180.0


class Transport:
    """A connection to one server. ``reveal`` puts people's names in the place of ids in what the server says."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        allow_http: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_seconds: float = 60.0,
        retries: RetryParams | None = None,
        sleep: Callable[[float], object] = time.sleep,
        reveal: Callable[[str], str] = str,
    ) -> None:
        self.url = check_url(url, allow_http=allow_http)
        self.retries, self.timeout_seconds = retries or RetryParams(), timeout_seconds
        self._sleep, self._reveal = sleep, reveal
        self._httpx = need("httpx2", extra="client")
        headers = {
            "Authorization": f"Bearer {check_api_key(api_key)}",
            "Accept-Encoding": "identity",
            "User-Agent": f"sfumato/{__version__}",
        }
        self._http = self._httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=timeout_seconds,
            follow_redirects=False,
            trust_env=False,
            verify=True if ca_file is None else _context_of(ca_file),
        )

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        answers: frozenset[int] = frozenset(),
    ) -> Any:
        """Send a request and return the JSON of the answer, None of an empty one.

        ``answers`` are statuses beside those of success that are answers too. A request is sent again where the server
        says so, after the time it names, within bounds. Raises ServerError.
        """
        words = {key: value for key, value in (params or {}).items() if value is not None}
        data = content if body is None else json.dumps(body).encode()
        kinds = {} if body is None else {"Content-Type": "application/json"}
        until = time.monotonic() + self.retries.total_seconds
        for attempt in range(self.retries.attempts):
            with self._stream(method, path, data, words, {**kinds, **(headers or {})}) as answer:
                text = self._read(answer)
            if answer.is_success or answer.status_code in answers:
                return self._parse(text, answer) if text else None
            refusal = self._refusal(answer, text)
            wait = self._wait_seconds(answer, attempt)
            is_last = attempt + 1 == self.retries.attempts or time.monotonic() + wait > until
            if not refusal.retry or is_last or wait > self.retries.longest_seconds:
                raise refusal
            self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def download(self, path: str, file: BinaryIO, most: int) -> None:
        """Write an answer to a file; raises ServerError for a refusal and for more than ``most`` bytes."""
        with self._stream("GET", path, None, {}, {}) as answer:
            if not answer.is_success:
                raise self._refusal(answer, self._read(answer))
            with self._explained():
                for number, chunk in _counted(answer.iter_raw()):
                    if number > most:
                        raise ServerError(f"{self.url} sends more than {most} bytes, which are not taken", code=STRANGE)
                    file.write(chunk)

    @contextmanager
    def lines(self, path: str, *, headers: Mapping[str, str], timeout_seconds: float) -> Iterator[Iterator[str]]:
        """Give the lines of a stream of events as they come; raises ServerError for a refusal and a broken stream."""
        with self._stream("GET", path, None, {}, headers, timeout_seconds) as answer:
            if not answer.is_success:
                raise self._refusal(answer, self._read(answer))
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise ServerError(f"{self.url} sends no stream of events", status=answer.status_code, code=STRANGE)
            with self._explained():
                yield _lines(answer.iter_raw())

    # --- one request

    @contextmanager
    def _stream(
        self,
        method: str,
        path: str,
        content: bytes | None,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout_seconds: float | None = None,
    ) -> Iterator[Any]:
        timeout = timeout_seconds or self.timeout_seconds
        with self._explained():
            stream = self._http.stream(
                method, path, content=content, params=dict(params), headers=dict(headers), timeout=timeout
            )
            with stream as answer:
                yield answer

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what goes wrong on the way into a ServerError."""
        try:
            yield
        except (self._httpx.HTTPError, self._httpx.StreamError, self._httpx.InvalidURL) as cause:
            reason = _word_of(cause)
            if "certificate verify failed" in reason:
                raise ServerError(
                    f"{self.url} cannot be trusted: {reason}; if the server has a certificate of its own, name it, or "
                    f"that of its authority, with --ca-file (ca_file=)",
                    code=UNREACHABLE,
                ) from cause
            raise ServerError(
                f"cannot reach {self.url}: {reason}; is the server running (sfumato serve), and the address right?",
                code=UNREACHABLE,
            ) from cause

    def _read(self, answer: Any) -> bytes:
        """Read a short answer."""
        parts = []
        with self._explained():
            for number, chunk in _counted(answer.iter_raw()):
                if number > LARGEST_ANSWER:
                    raise ServerError(f"{self.url} answers with more than {LARGEST_ANSWER} bytes", code=STRANGE)
                parts.append(chunk)
        return b"".join(parts)

    def _parse(self, text: bytes, answer: Any) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise ServerError(
                f"{self.url} answers with something that is no JSON: is it a server of Sfumato?",
                status=answer.status_code,
                code=STRANGE,
            ) from cause

    def _refusal(self, answer: Any, text: bytes) -> ServerError:
        """Return what the server says against a request, with people's names in place of ids."""
        status = int(answer.status_code)
        if 300 <= status < 400:
            return ServerError(
                f"{self.url} sends requests on to another address, which is not followed: give that address itself",
                status=status,
                code="redirect",
            )
        try:
            facts = json.loads(text)
            sentence, code, retry = str(facts["detail"]), str(facts.get("code", "")), facts.get("retry") is True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sentence, code, retry = f"status {status}; is it a server of Sfumato?", STRANGE, False
        return ServerError(
            f"{self.url} says: {self._reveal(sentence[:LONGEST_SENTENCE])}",
            status=status,
            code=code[:80],
            retry=retry and status in MAY_RETRY,
        )

    def _wait_seconds(self, answer: Any, attempt: int) -> float:
        """Return how long to wait before the next attempt: as the server says, or twice as long each time."""
        words = re.fullmatch(r"\d{1,6}", answer.headers.get("retry-after", "").strip())
        return float(words[0]) if words else self.retries.first_seconds * 2.0**attempt


def _counted(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        yield total, chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield the lines of a stream; raises ServerError for one that does not end."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(rest) > LONGEST_LINE:
            raise ServerError("the server sends events that cannot be read", code=STRANGE)


def _context_of(path: str | os.PathLike[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=os.fspath(path))
    except (OSError, ssl.SSLError) as cause:
        raise FileError(f"{path}: this is no file of certificates (PEM): {cause}") from cause


def _word_of(cause: BaseException) -> str:
    """Return in a few words why a server was not reached."""
    text = str(cause).strip() or type(cause).__name__
    return re.sub(r"\[(Errno -?\d+|SSL: \w+)\] ", "", text)[:200]
