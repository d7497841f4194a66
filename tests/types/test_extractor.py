# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError
from sfumato.types.extractor import Extractor

printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
values = (
    st.none()
    | st.booleans()
    | st.integers(1 - 2**63, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | printable
)


@given(printable, st.dictionaries(printable, values, max_size=5))
def test_json_round_trip(name: str, settings: dict):
    extractor = Extractor(name, settings)
    back = Extractor.from_json(extractor.to_json())
    assert back == extractor
    assert back.to_json() == extractor.to_json()
    assert hash(back) == hash(extractor)


def test_settings_are_detached_from_the_callers():
    settings = {"max_features": 1}
    extractor = Extractor("sift", settings)
    settings["max_features"] = 2
    assert extractor.settings == {"max_features": 1}


def test_matches_by_name_only():
    assert Extractor("sift", {"a": 1}).matches(Extractor("sift", {"a": 2}))
    assert not Extractor("sift").matches(Extractor("rootsift"))
    assert Extractor().matches(Extractor("sift"))
    assert Extractor("sift").matches(Extractor())


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, 5, None, "a\nb", "\x1b[2J", "\ud800"])
def test_refuses_names_that_can_not_be_shown(name):
    with pytest.raises(InputError, match="extractor name"):
        Extractor(name)


@pytest.mark.parametrize(
    "settings",
    [{"a": [1]}, {1: 1}, {"a": float("nan")}, {"a": float("inf")}, {"a": "\x1b"}, {"": 1}, {"a": {}}],
)
def test_refuses_settings_that_can_not_be_stored_or_shown(settings):
    with pytest.raises(InputError, match="extractor setting"):
        Extractor("sift", settings)


def test_refuses_settings_that_are_no_mapping():
    with pytest.raises(InputError, match="mapping"):
        Extractor("sift", [("a", 1)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        '{"name": "sift"}',
        '{"name": "sift", "settings": {}, "more": 1}',
        "[" * 100_000,
        '{"name": 5, "settings": {}}',
        '{"name": "sift", "settings": []}',
        '{"name": "sift", "settings": {"a": NaN}}',
    ],
)
def test_from_json_refuses(text: str):
    with pytest.raises(InputError, match="extractor"):
        Extractor.from_json(text)


def test_json_is_one_form():
    assert Extractor("sift", {"b": 1, "a": 2}).to_json() == '{"name":"sift","settings":{"a":2,"b":1}}'
    assert json.loads(Extractor().to_json()) == {"name": "unknown", "settings": {}}


def test_integers_are_those_other_programs_can_hold():
    assert Extractor("x", {"seed": 2**63 - 1}).settings["seed"] == 2**63 - 1
    with pytest.raises(InputError):
        Extractor("x", {"seed": 10**400})
