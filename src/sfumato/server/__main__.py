# SPDX-License-Identifier: Apache-2.0
"""The server's own entry point: ``python -m sfumato.server --data FOLDER``. ``sfumato serve`` ends up here.

It begins with the guard: from then on nothing can load the clear side into this process.
"""

import argparse
import asyncio
import ipaddress
import os
import signal
import socket
import ssl
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from sfumato.server.guard import guard_imports, log_as_json

if __name__ == "__main__":
    guard_imports()

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError
from sfumato.files.atomic import open_locked
from sfumato.server.access import ADMIN, VERBS, has_admin, make_key
from sfumato.server.app import make_app
from sfumato.server.database import Store
from sfumato.server.engines import Engines
from sfumato.server.foreman import Foreman
from sfumato.server.limits import Limits, read_limits
from sfumato.server.service import Service

GRACE_SECONDS = 10
LOCK = "lock"
"""File in the data folder that a running server has locked."""
MANY_HEADERS = 32_768


def parse() -> argparse.Namespace:
    """Return the options; the same as those of ``sfumato serve``."""
    parser = argparse.ArgumentParser(prog="sfumato serve")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--behind-proxy", action="store_true")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--config", type=Path)
    return parser.parse_args()


def check_options(args: argparse.Namespace) -> bool:
    """Return whether there is TLS; raises InputError for options that contradict each other, and a bad certificate."""
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InputError("give both --tls-cert and --tls-key, or neither")
    for path in (args.tls_cert, args.tls_key):
        if path is not None and not path.is_file():
            raise InputError(f"{path} is no file: give a certificate and its key in PEM form")
    if args.tls_cert is not None:
        check_certificate(args.tls_cert, args.tls_key)
    if not 1 <= args.engines <= 64:
        raise InputError(f"--engines: expected 1 to 64, got {args.engines}")
    check_address(args.host, has_tls=args.tls_cert is not None, behind_proxy=args.behind_proxy)
    return args.tls_cert is not None


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise InputError for a certificate and a key that TLS cannot use."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except OSError as cause:
        reason = "" if isinstance(cause, ssl.SSLError) else f" ({cause.strerror})"
        raise InputError(
            f"{certificate} and {key} cannot be used for TLS{reason}: give a certificate and the key that belongs to "
            f"it, in PEM form and without a password"
        ) from cause


def check_address(host: str, *, has_tls: bool, behind_proxy: bool) -> None:
    """Refuse to listen beyond this machine without TLS; raises InputError."""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not has_tls and not behind_proxy:
        raise InputError(
            f"--host {host} can be reached from other machines, and keys would travel in the clear: give --tls-cert "
            f"and --tls-key, or --behind-proxy if a proxy on this machine ends TLS"
        )


def lock_folder(folder: Path) -> int:
    """Lock a data folder for this process and return the lock; raises FileError if another server runs on it."""
    try:
        return open_locked(folder / LOCK)
    except ArchiveError as cause:
        raise FileError(f"{folder} is in use by another server: stop it first, or name another --data") from cause
    except OSError as cause:
        raise FileError(f"{folder}: cannot be locked: {cause.strerror or cause}") from cause


def open_socket(host: str, port: int) -> socket.socket:
    """Listen at an address; raises InputError if it is taken or not of this machine. Port 0 is any free one."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as cause:
        raise InputError(f"cannot listen at {host}, port {port}: {cause}; choose another --port") from cause
    return listener


def public_url(host: str, port: int, *, has_tls: bool) -> str:
    """Return an address to open; of a server that listens at all addresses of a machine, that with the machine's name.

    >>> public_url("127.0.0.1", 8765, has_tls=False), public_url("::1", 8765, has_tls=True)
    ('http://127.0.0.1:8765/', 'https://[::1]:8765/')
    """
    name = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    return f"{'https' if has_tls else 'http'}://{name}:{port}/"


class PatientProtocol(H11Protocol):
    """HTTP with an end to patience: a head must come in time, and so must the rest of a body that was refused."""

    seconds = 15.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and wait on or not."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        theirs = self.conn.their_state
        return theirs is h11.IDLE or (theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE)

    def _watch(self) -> None:
        if not self._is_waiting():
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.seconds, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._is_waiting() or self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.transport.close()


class Listener(uvicorn.Server):
    """A server that tells its service when it is to stop, so that streams end at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        self.service.is_stopping = True
        super().handle_exit(sig, frame)


def serve(service: Service, listener: socket.socket, args: argparse.Namespace) -> int:
    """Run a server until it is stopped; 0 if it stopped in order."""
    PatientProtocol.seconds = service.limits.head_seconds
    config = uvicorn.Config(
        make_app(service), log_config=None, access_log=False, server_header=False, http=PatientProtocol, ws="none",
        ssl_certfile=args.tls_cert, ssl_keyfile=args.tls_key, proxy_headers=args.behind_proxy,
        timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=30, h11_max_incomplete_event_size=MANY_HEADERS,
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn sends itself the signal again when it has stopped
        signal.signal(number, lambda *_: None)
    server = Listener(config, service)
    service.connections = server.server_state.connections
    server.run(sockets=[listener])
    return 0 if server.started else 1


def open_store(args: argparse.Namespace) -> tuple[Store, Limits, socket.socket]:
    """Return the store, locked, the limits, and the socket; raises SfumatoError."""
    limits = read_limits(args.config)
    store = Store(args.data.absolute())
    lock_folder(store.folder)  # until the process ends
    return store, limits, open_socket(args.host, args.port)


def main() -> int:
    """Run the server until it is stopped."""
    args = parse()
    os.umask(0o077)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(args.data.absolute() / "cache"))
    try:
        has_tls = check_options(args)
        store, limits, listener = open_store(args)
    except SfumatoError as problem:
        print(f"sfumato serve: {problem}", file=sys.stderr)
        return 2
    engines = Engines(store.folder, limits, args.engines)
    service = Service(store, limits, engines, Foreman(store, limits, args.config), has_tls or args.behind_proxy)
    print(f"Sfumato listens at {public_url(args.host, listener.getsockname()[1], has_tls=has_tls)}", flush=True)
    if not has_admin(store):
        key = make_key(store, [ADMIN, "metrics", *(f"{verb}:*" for verb in VERBS)], label="first")
        print(f"The key of the administrator, shown this once: {key}", flush=True)
    log_as_json()
    return serve(service, listener, args)


if __name__ == "__main__":
    sys.exit(main())
