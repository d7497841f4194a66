# SPDX-License-Identifier: Apache-2.0
"""Keys, scopes, sign-ins and rates."""

import re
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from sfumato.errors import InputError
from sfumato.server import access
from sfumato.server.access import Grant, RequestRate, Slots, grant_of, make_key
from sfumato.server.database import Store

PLACE = "0123456789abcdef"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that tests turn."""
    now = SimpleNamespace(seconds=1.8e9)
    fake = SimpleNamespace(
        time=lambda: now.seconds, strftime=time.strftime, gmtime=lambda: time.gmtime(now.seconds),
        monotonic=lambda: now.seconds,
    )  # fmt: skip
    monkeypatch.setattr(access, "time", fake)
    return now


def test_a_key_has_its_form_and_is_not_stored(store: Store):
    key = make_key(store, ["read:*"])
    assert re.fullmatch(r"sfm_[a-z2-7]{8}_[A-Za-z0-9_-]{43}_[0-9a-f]{6}", key)
    assert grant_of(store, key) == Grant(key.split("_")[1], frozenset(["read:*"]))
    store.close()
    stored = b"".join(path.read_bytes() for path in store.folder.iterdir())
    secret = key[13:56].encode()
    assert not any(secret[start : start + 8] in stored for start in range(len(secret) - 7))


def test_keys_end(store: Store, clock: SimpleNamespace):
    key, other = make_key(store, ["read:*"], seconds=60), make_key(store, ["read:*"])
    clock.seconds += 59
    assert grant_of(store, key) is not None
    clock.seconds += 2
    assert grant_of(store, key) is None
    assert grant_of(store, other) is not None
    assert access.revoke_key(store, other.split("_")[1])
    assert grant_of(store, other) is None
    assert not access.revoke_key(store, "aaaaaaaa")


@pytest.mark.parametrize(
    "scopes", [[], ["everything"], ["read"], ["read:"], ["read:xyz"], ["admin:*"], ["READ:*"], ["read:*", "no"]]
)
def test_scopes_that_there_are_not(store: Store, scopes: list[str]):
    with pytest.raises(InputError):
        make_key(store, scopes)
    assert not access.list_keys(store)


@pytest.mark.parametrize("words", [{"label": "x" * 81}, {"label": "a\nb"}, {"seconds": 0}, {"seconds": float("nan")}])
def test_keys_with_wrong_words(store: Store, words: dict[str, object]):
    with pytest.raises(InputError):
        make_key(store, ["read:*"], **words)  # type: ignore[arg-type]


def test_grants():
    grant = Grant("key", frozenset([f"localize:{PLACE}", "metrics"]))
    assert grant.allows("localize", PLACE)
    assert grant.allows("metrics")
    assert not grant.allows("read", PLACE)
    assert not grant.allows("admin")
    assert grant.sees(PLACE)
    assert not grant.sees("ffffffff")
    assert grant.places == {PLACE}
    admin = Grant("key", frozenset(["admin"]))
    assert admin.sees(PLACE)
    assert not any(admin.allows(verb, PLACE) for verb in access.VERBS)
    assert admin.places is None
    assert Grant("key", frozenset(["metrics"])).places == frozenset()


def test_only_the_day_of_use_is_kept(store: Store, clock: SimpleNamespace):
    key = make_key(store, ["read:*"])
    grant_of(store, key)
    clock.seconds += 3600
    grant_of(store, key)
    assert access.list_keys(store)[0]["last_day"] == time.strftime("%Y-%m-%d", time.gmtime(clock.seconds))


def test_an_administrator_is_missed(store: Store, clock: SimpleNamespace):
    assert not access.has_admin(store)
    key = make_key(store, ["admin"], seconds=10)
    assert access.has_admin(store)
    clock.seconds += 11
    assert not access.has_admin(store)
    assert grant_of(store, key) is None


def test_sign_ins_end_with_time_and_with_their_key(store: Store, clock: SimpleNamespace):
    key = make_key(store, ["read:*"])
    token, other = access.sign_in(store, key, 100), access.sign_in(store, key, 100)
    assert token is not None
    assert other is not None
    assert access.sign_in(store, "garbage", 100) is None
    session = access.session_of(store, token)
    assert session is not None
    assert session.grant.allows("read", PLACE)
    access.sign_out(store, token)
    assert access.session_of(store, token) is None
    assert access.session_of(store, other) is not None
    clock.seconds += 101
    assert access.session_of(store, other) is None
    third = access.sign_in(store, key, 100)
    assert third is not None
    access.revoke_key(store, key.split("_")[1])
    assert access.session_of(store, third) is None


def test_one_key_cannot_take_all_slots():
    slots = Slots(3, 2)
    with slots.take("a", KeyError()), slots.take("a", KeyError()):
        with pytest.raises(KeyError), slots.take("a", KeyError()):
            pass
        with slots.take("b", KeyError()), pytest.raises(KeyError), slots.take("c", KeyError()):
            pass
    with pytest.raises(ValueError), slots.take("a", KeyError()):
        raise ValueError
    with slots.take("a", KeyError()), slots.take("a", KeyError()):
        pass


def test_places_of_a_verb():
    grant = Grant("key", frozenset([f"read:{PLACE}", "localize:*", "admin"]))
    assert grant.places_of("read") == {PLACE}
    assert grant.places_of("localize") is None
    assert grant.places_of("upload") == frozenset()


def test_rates():
    rate = RequestRate(2.0, 3)
    assert [rate.wait_seconds("a", 0.0) for _ in range(3)] == [0.0] * 3
    assert rate.wait_seconds("a", 0.0) == 0.5
    assert rate.wait_seconds("b", 0.0) == 0.0
    assert rate.wait_seconds("a", 0.5) == 0.0
    assert rate.wait_seconds("a", 0.5) == 0.5
    assert [rate.wait_seconds("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert RequestRate(0.0, 0).wait_seconds("a", 0.0) == 3600.0
