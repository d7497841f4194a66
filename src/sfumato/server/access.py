# SPDX-License-Identifier: Apache-2.0
"""Access: API keys with scopes, sign-ins of the page, and rates.

A key is ``sfm_<id>_<secret>_<checksum>``: 256 random bits, so that a plain digest of the secret is enough to know it
by. The prefix and the checksum let scanners find keys that leaked. A scope is a verb and a place, ``localize:7f3a`` or
``upload:*``; ``admin`` stands alone. What a key may not even read is not there: 404.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import sqlalchemy as sql

from sfumato.errors import InputError
from sfumato.server.database import Store, api_keys, sessions

VERBS = ("read", "upload", "map", "localize", "landmarks", "export", "poses")
"""What can be allowed at a place; ``admin`` and ``metrics`` belong to the server. ``landmarks`` lets a device localize
without its positions: points of the map come down, those that its features match. ``localize`` sends positions up."""
SERVER_SCOPES = ("admin", "metrics")
ADMIN = "admin"
EVERYWHERE = "*"
KEY = re.compile(r"sfm_([a-z2-7]{8})_([A-Za-z0-9_-]{43})_([0-9a-f]{6})\Z")
PLACE = re.compile(r"[0-9a-f]{8,64}\Z")
LONGEST_LABEL = 80


@dataclass(frozen=True, slots=True)
class Grant:
    """What the holder of a key may do: the key's id and its scopes."""

    key: str
    scopes: frozenset[str]

    def allows(self, verb: str, place: str | None = None) -> bool:
        """Tell whether a verb is allowed, at a place. ``admin`` makes places; it does not read what they hold."""
        if verb in SERVER_SCOPES:
            return verb in self.scopes
        return bool({f"{verb}:{EVERYWHERE}", f"{verb}:{place}"} & self.scopes)

    def sees(self, place: str) -> bool:
        """Tell whether the holder may know that a place exists."""
        visible = self.places
        return visible is None or place in visible

    @property
    def places(self) -> frozenset[str] | None:
        """The places that the holder may know of; None for all."""
        names = frozenset(scope.partition(":")[2] for scope in self.scopes if scope not in SERVER_SCOPES)
        return None if ADMIN in self.scopes or EVERYWHERE in names else names

    def places_of(self, verb: str) -> frozenset[str] | None:
        """Return the places at which a verb is allowed; None for all."""
        names = frozenset(scope.partition(":")[2] for scope in self.scopes if scope.startswith(f"{verb}:"))
        return None if EVERYWHERE in names else names


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return scopes as a set; raises InputError naming the first that there is not."""
    result = frozenset(scopes)
    for scope in sorted(result):
        verb, _, place = scope.partition(":")
        if scope not in SERVER_SCOPES and not (verb in VERBS and (place == EVERYWHERE or PLACE.match(place))):
            raise InputError(
                f"no scope is called {scope!r:.80}: give admin, metrics, or one of {', '.join(VERBS)} with a place or "
                f"*, such as localize:*"
            )
    if not result:
        raise InputError("a key needs a scope, such as localize:*")
    return result


def make_key(store: Store, scopes: Iterable[str], *, label: str = "", seconds: float | None = None) -> str:
    """Make a key and return it; it cannot be had again, the database has its digest alone.

    ``seconds``: how long it is valid; None for ever.

    Raises InputError for scopes that there are not, or a label that is too long.
    """
    checked = check_scopes(scopes)
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise InputError(f"label: expected at most {LONGEST_LABEL} printable characters")
    if seconds is not None and not 0 < seconds < 1e10:
        raise InputError(f"seconds: expected a number above 0, got {seconds!r:.40}")
    name = base64.b32encode(secrets.token_bytes(5)).decode().lower()
    secret, now = secrets.token_urlsafe(32), time.time()
    with store.write() as connection:
        connection.execute(
            api_keys.insert().values(
                id=name,
                digest=_digest(secret),
                scopes=json.dumps(sorted(checked)),
                label=label,
                expires=None if seconds is None else now + seconds,
                revoked=False,
                made=now,
            )
        )
    return f"sfm_{name}_{secret}_{_checksum(name, secret)}"


def grant_of(store: Store, key: str) -> Grant | None:
    """Return what a key allows; None for one that is unknown, revoked or expired."""
    match = KEY.match(key)
    name, secret = (match[1], match[2]) if match and match[3] == _checksum(match[1], match[2]) else ("", "")
    with store.read() as connection:
        row = connection.execute(sql.select(api_keys).where(api_keys.c.id == name)).one_or_none()
    is_right = hmac.compare_digest(_digest(secret), row.digest if row else bytes(32))
    if row is None or not is_right or not _is_valid(row):
        return None
    today = time.strftime("%Y-%m-%d", time.gmtime())
    if row.last_day != today:
        with suppress(sql.exc.OperationalError), store.write() as connection:  # on a full disk reading goes on
            connection.execute(api_keys.update().where(api_keys.c.id == name).values(last_day=today))
    return Grant(row.id, frozenset(json.loads(row.scopes)))


def _is_valid(row: sql.Row[tuple[object, ...]]) -> bool:
    return not row.revoked and (row.expires is None or row.expires > time.time())


def list_keys(store: Store) -> list[dict[str, object]]:
    """Return all keys, newest first: ids, labels, scopes and days; never digests."""
    with store.read() as connection:
        rows = connection.execute(sql.select(api_keys).order_by(api_keys.c.made.desc(), api_keys.c.id)).all()
    return [
        {
            "id": row.id,
            "label": row.label,
            "scopes": json.loads(row.scopes),
            "expires": row.expires,
            "revoked": bool(row.revoked),
            "made": row.made,
            "last_day": row.last_day,
        }
        for row in rows
    ]


def revoke_key(store: Store, name: str) -> bool:
    """Revoke a key and end the sign-ins made with it; False if there is none."""
    with store.write() as connection:
        done = connection.execute(api_keys.update().where(api_keys.c.id == name).values(revoked=True))
        connection.execute(sessions.delete().where(sessions.c.key == name))
    return done.rowcount > 0


def has_admin(store: Store) -> bool:
    """Tell whether there is a key of an administrator that can be used."""
    with store.read() as connection:
        rows = connection.execute(sql.select(api_keys)).all()
    return any(ADMIN in json.loads(row.scopes) and _is_valid(row) for row in rows)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _checksum(name: str, secret: str) -> str:
    return f"{zlib.crc32(f'{name}_{secret}'.encode()):08x}"[-6:]


# --- sign-ins of the page


@dataclass(frozen=True, slots=True)
class Session:
    """A sign-in: what it allows, and the token that its forms carry."""

    grant: Grant
    form: str


def sign_in(store: Store, key: str, seconds: float) -> str | None:
    """Return the token of a new sign-in for a cookie; None for a key that is not valid."""
    grant = grant_of(store, key)
    if grant is None:
        return None
    token = secrets.token_urlsafe(32)
    with store.write() as connection:
        connection.execute(sessions.delete().where(sessions.c.expires < time.time()))
        connection.execute(
            sessions.insert().values(
                digest=_digest(token), key=grant.key, form=secrets.token_urlsafe(24), expires=time.time() + seconds
            )
        )
    return token


def session_of(store: Store, token: str) -> Session | None:
    """Return the sign-in of a cookie; None if it has ended or its key has."""
    with store.read() as connection:
        row = connection.execute(
            sql.select(sessions.c.form, sessions.c.expires.label("until"), api_keys)
            .join(api_keys, api_keys.c.id == sessions.c.key)
            .where(sessions.c.digest == _digest(token))
        ).one_or_none()
    if row is None or row.until < time.time() or not _is_valid(row):
        return None
    return Session(Grant(row.id, frozenset(json.loads(row.scopes))), row.form)


def sign_out(store: Store, token: str) -> None:
    """End a sign-in."""
    with store.write() as connection:
        connection.execute(sessions.delete().where(sessions.c.digest == _digest(token)))


# --- rates, and requests that are under way


class RequestRate:
    """Requests of each key: ``per_second`` in the long run, ``burst`` at once. Kept in memory, by the ids of keys."""

    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second, self.burst = per_second, burst
        self._tokens: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def wait_seconds(self, key: str, now: float | None = None) -> float:
        """Count a request of a key; return 0 if it may go on, or the seconds after which it may be sent again."""
        now = time.monotonic() if now is None else now
        with self._lock:
            tokens, last = self._tokens.get(key, (float(self.burst), now))
            tokens = min(self.burst, tokens + (now - last) * self.per_second)
            if tokens < 1:
                self._tokens[key] = tokens, now
                return (1 - tokens) / self.per_second if self.per_second else 3600.0
            self._tokens[key] = tokens - 1, now
            return 0.0


class Slots:
    """Requests that are under way: ``most`` of all keys, and ``most_of_key`` of one, which cannot take them all."""

    def __init__(self, most: int, most_of_key: int) -> None:
        self.most, self.most_of_key = most, most_of_key
        self._counts: Counter[str] = Counter()

    @contextmanager
    def take(self, key: str, refusal: Exception) -> Iterator[None]:
        """Count a request of a key until it ends; raises ``refusal`` if there is no room for it."""
        if self._counts[key] >= self.most_of_key or self._counts.total() >= self.most:
            raise refusal
        self._counts[key] += 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
