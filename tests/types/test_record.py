# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError
from sfumato.types.record import Picture, Record, Score, describe_machine

texts = st.text(min_size=1, max_size=10)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | finite | texts, max_size=3)
scores = st.builds(Score, texts, finite, texts, st.integers(0, 10**9))
records = st.builds(
    Record,
    task=texts,
    scores=st.lists(scores, max_size=3).map(tuple),
    params=plain,
    seed=st.none() | st.integers(),
    data=texts,
    commit=texts,
    machine=plain,
    seconds=finite,
    dropped=st.lists(texts, max_size=3).map(tuple),
)


@given(records)
def test_json_round_trip(record: Record):
    back = Record.from_json(record.to_json())
    assert back == record
    assert hash(back) == hash(record)


def test_values_are_detached_and_plain():
    params = {"m": 2}
    record = Record("attack", [Score("found", np.float32(0.5))], params, dropped=["a.jpg"])  # type: ignore[arg-type]
    params["m"] = 3
    assert record.params == {"m": 2}
    assert record.scores[0].value == 0.5
    assert type(record.scores[0].value) is float
    assert record.dropped == ("a.jpg",)
    assert Record("attack", ()).scores == ()


@pytest.mark.parametrize(
    "arguments",
    [("", 1.0), (5, 1.0), ("a", "1"), ("a", True), ("a", None), ("a", float("nan")), ("a", float("inf"))],
)
def test_score_refuses(arguments: tuple):
    with pytest.raises(InputError, match="score"):
        Score(*arguments)


@pytest.mark.parametrize("more", [{"unit": 5}, {"samples": -1}, {"samples": 1.5}])
def test_score_refuses_units_and_counts(more: dict):
    with pytest.raises(InputError, match="score a"):
        Score("a", 1.0, **more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", ""),
        ("scores", (1,)),
        ("params", {"a": []}),
        ("params", {"a": float("nan")}),
        ("params", {1: 1}),
        ("seed", 1.5),
        ("seed", True),
        ("data", 5),
        ("commit", None),
        ("machine", []),
        ("seconds", float("inf")),
        ("dropped", "a.jpg"),
        ("dropped", (5,)),
        ("params", {"a": np.zeros(2)}),
    ],
)
def test_record_refuses(name: str, value):
    with pytest.raises(InputError, match=f"record: {name} must be"):
        Record(**{"task": "attack", "scores": (), name: value})


def test_record_tells_all_problems_at_once():
    with pytest.raises(InputError, match="task"):
        Record(5, (), seed="x", dropped="y")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", '{"task": "a"}', '{"task": "a", "scores": [1]}', "[" * 100_000])
def test_from_json_refuses(text: str):
    with pytest.raises(InputError, match="record"):
        Record.from_json(text)


def test_from_json_refuses_unknown_keys():
    data = json.loads(Record("attack", ()).to_json())
    with pytest.raises(InputError, match="record"):
        Record.from_json(json.dumps({**data, "more": 1}))


def test_text_form_is_short():
    record = Record("attack", (Score("found", 0.123),), {"secret": "no"}, dropped=("a",))
    assert repr(record) == "Record('attack', 1 scores, 1 dropped)"


def test_the_machine_is_described_in_plain_values():
    machine = describe_machine()
    assert Record("attack", (), machine=machine).machine == machine
    assert machine["cores"]
    assert machine["numpy"] == np.__version__


def test_a_picture_tells_no_pixels():
    picture = Picture(shows="photo", content=b"secret pixels", media="image/webp", photo="cat.jpg")
    assert repr(picture) == "Picture('photo', 13 bytes)"


@pytest.mark.parametrize(
    "wrong",
    [{"media": 'image/webp" onerror="'}, {"shows": ""}, {"content": "text"}, {"photo": None}, {"media": "text/html"}],
)
def test_a_picture_is_checked(wrong):
    with pytest.raises(InputError, match="picture"):
        Picture(**{"shows": "photo", "content": b"x", "media": "image/png", **wrong})
