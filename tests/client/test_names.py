# SPDX-License-Identifier: Apache-2.0
import json
import stat

import pytest

from sfumato.client.names import NameTable, names_path, translate
from sfumato.errors import FileError, InputError

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def test_ids_are_the_same_on_all_devices_with_the_key_and_on_no_others(tmp_path):
    first, second, stranger = (NameTable(key, tmp_path / str(n)) for n, key in enumerate((KEY, KEY, OTHER)))
    place = first.place_id("Dr Smith, bedroom")
    assert place == second.place_id(" Dr Smith, bedroom ")
    assert place != stranger.place_id("Dr Smith, bedroom")
    assert first.image_id(place, "a.jpg") == second.image_id(place, "a.jpg") != stranger.image_id(place, "a.jpg")
    assert first.image_id(place, "a.jpg") != first.image_id(first.place_id("attic"), "a.jpg")
    assert len(place) == len(first.image_id(place, "a.jpg")) == 32
    assert int(place, 16)


def test_the_device_key_is_the_default_and_the_table_lies_beside_it(device_key):
    assert names_path() == device_key.with_suffix(".names")
    assert NameTable().place_id("x") == NameTable(device_key.read_bytes()).place_id("x")


@pytest.mark.parametrize("name", ["", "  ", None])
def test_a_place_needs_a_name(name):
    with pytest.raises(InputError):
        NameTable(KEY).place_id(name)


def test_the_table_is_private_and_comes_back(tmp_path):
    path = tmp_path / "deep" / "device.names"
    table = NameTable(KEY, path)
    place = table.place_id("attic")
    image = table.image_id(place, "Küche.jpg")
    table.remember({place: "attic"})
    table.remember({image: "Küche.jpg"}, place)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = NameTable(OTHER, path)
    assert again.place_name(place) == "attic"
    assert again.image_names(place) == {image: "Küche.jpg"}
    assert again.reveal(f"image {image} of {place}, not {'0' * 32}") == f"image Küche.jpg of attic, not {'0' * 32}"
    assert [entry.name for entry in path.parent.iterdir()] == ["device.names"]
    before = path.stat().st_mtime_ns
    again.remember({place: "attic"})
    assert path.stat().st_mtime_ns == before, "nothing new, nothing written"
    again.forget(place)
    assert NameTable(KEY, path).place_name(place) is None
    assert NameTable(KEY, path).image_names(place) == {}


def test_two_tables_of_one_file_lose_nothing(tmp_path):
    first, second = NameTable(KEY, tmp_path / "t"), NameTable(KEY, tmp_path / "t")
    assert first.place_name("a") is second.place_name("b") is None
    first.remember({"a": "attic"})
    second.remember({"b": "bath"})
    assert NameTable(KEY, tmp_path / "t").place_name("a") == "attic"


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"names": {"": {"a": 3}}, "version": 1}', '{"names": {}, "version": 9}']
)
def test_a_damaged_table_is_refused(tmp_path, text):
    (tmp_path / "t").write_text(text)
    with pytest.raises(FileError):
        NameTable(KEY, tmp_path / "t").place_name("a")


def test_names_are_put_into_plain_values():
    values = {"a": ["a", 1, None], "b": {"a": "b a"}}
    assert translate(values, str.upper) == {"A": ["A", 1, None], "B": {"A": "B A"}}
    assert json.dumps(translate(values, str))


def test_no_text_form_shows_the_key(tmp_path):
    table = NameTable(KEY, tmp_path / "t")
    table.place_id("x")
    assert KEY.hex() not in repr(table)
    assert repr(KEY)[2:20] not in repr(table)
