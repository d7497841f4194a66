# SPDX-License-Identifier: Apache-2.0
import json

import pytest

pytest.importorskip("httpx2")
pytest.importorskip("sqlalchemy")

from sfumato.client import Client
from sfumato.client.names import NameTable
from sfumato.errors import ServerError
from sfumato.server.access import grant_of
from sfumato.server.database import Store


def test_keys_are_made_listed_and_revoked_over_http(run_sfumato, at_server, mapped_place):
    made = run_sfumato("server", "key", "create", "localize", "read", "--place", mapped_place, "--label", "phone",
                       "--days", "2").stdout.strip()  # fmt: skip
    with Client(at_server.url, made) as phone:
        assert [one.name for one in phone.places()] == [mapped_place]
        with pytest.raises(ServerError) as caught:
            phone.list_keys()
        assert caught.value.status == 403
    listed = run_sfumato("server", "key", "list").stdout
    line = next(line for line in listed.splitlines() if "(phone)" in line)
    assert made not in listed
    assert "valid until" in line
    assert f"localize:{mapped_place}" in line
    run_sfumato("server", "key", "revoke", made.split("_")[1])
    assert "revoked" in next(
        line for line in run_sfumato("server", "key", "list").stdout.splitlines() if "phone" in line
    )
    assert "error: " in run_sfumato("server", "key", "revoke", "nonsense!", code=1).stderr


def test_keys_and_places_are_made_in_the_data_folder(run_sfumato, no_server, tmp_path):
    Store(tmp_path / "data").close()
    data = ("--data", tmp_path / "data")
    facts = json.loads(run_sfumato("server", "key", "create", "admin", "localize:*", *data, "--json").stdout)
    store = Store(tmp_path / "data")
    assert grant_of(store, facts["key"]).allows("localize", "abcd" * 8)
    place = "0123abcd" * 4
    assert place in run_sfumato("server", "place", "create", f"id:{place}", *data).stdout
    assert run_sfumato("server", "place", "list", *data).stdout == f"id:{place}: 0 images, 0 bytes, no map yet\n"
    scoped = run_sfumato("server", "key", "create", "upload", "--place", f"id:{place}", *data).stdout.strip()
    assert grant_of(store, scoped).scopes == {f"upload:{place}"}
    assert "first" not in run_sfumato("server", "key", "list", *data).stdout
    name = facts["key"].split("_")[1]
    run_sfumato("server", "key", "revoke", name, *data)
    assert grant_of(store, facts["key"]) is None
    run_sfumato("server", "place", "delete", f"id:{place}", "--yes", *data)
    assert run_sfumato("server", "place", "list", *data).stdout == "no places\n"
    for words in (
        ("place", "delete", f"id:{place}", "--yes"),
        ("key", "revoke", "aaaaaaaa"),
        ("key", "create", "up:*"),
    ):
        assert run_sfumato("server", *words, *data, code=1).stderr.startswith("error: ")
    store.close()


def test_names_mean_nothing_on_the_machine_of_a_server(run_sfumato, no_server, tmp_path, monkeypatch):
    Store(tmp_path / "data").close()
    monkeypatch.setenv("SFUMATO_KEY", str(tmp_path / "keys" / "device.key"))
    data = ("--data", tmp_path / "data")
    for words in (("place", "create", "kitchen"), ("key", "create", "read", "--place", "kitchen")):
        assert "id:" in run_sfumato("server", *words, *data, code=1).stderr
    assert not (tmp_path / "keys").exists(), "no device key is made there"
    assert "--place" in run_sfumato("server", "key", "create", "read", *data, code=1).stderr
    assert "server.sqlite" in run_sfumato("server", "key", "list", "--data", tmp_path / "none", code=1).stderr
    assert not (tmp_path / "none").exists()


def test_places_are_made_listed_and_deleted_over_http(run_sfumato, at_server):
    facts = json.loads(run_sfumato("server", "place", "create", "green house", "--json").stdout)
    assert facts["place id"] == NameTable().place_id("green house")
    assert "green house: 0 images" in run_sfumato("server", "place", "list").stdout
    run_sfumato("server", "place", "delete", "green house", "--yes")
    assert "green house" not in run_sfumato("server", "place", "list").stdout
    assert "green house" in run_sfumato("server", "place", "delete", "green house", "--yes", code=1).stderr


# --- doctor


def test_a_server_that_is_well(run_sfumato, at_server, data):
    done = run_sfumato("server", "doctor", "--data", data)
    assert done.stdout.endswith(": all is well\n")
    assert done.stdout.startswith("1 database, ")
    done = run_sfumato("server", "doctor", "--server", at_server.url)
    assert done.stdout == "1 server: all is well\n"


def test_damage_is_named(run_sfumato, data):
    frames = sorted((data / "frames").glob("*/*/*"))
    frames[0].write_bytes(frames[0].read_bytes()[:-1] + b"\1")
    frames[1].unlink()
    next((data / "maps").glob("*/*/bundle.tar")).write_bytes(b"")
    (data / "uploads").mkdir(exist_ok=True)
    (data / "uploads" / "x.part").touch()
    (data / "frames" / "stray" / "00").mkdir(parents=True)
    (data / "frames" / "stray" / "00" / "00ff").touch()
    (data / "work" / "gone").mkdir(parents=True)
    done = run_sfumato("server", "doctor", "--data", data, "--json", code=1)
    facts = json.loads(done.stdout)
    assert len(facts["problems"]) == 3
    assert [word for word in ("digest", "missing", "bundle") if word not in " ".join(facts["problems"])] == []
    assert len(facts["remarks"]) == 3
    assert frames[1].name not in done.stderr


def test_damage_to_the_model_that_engines_read_is_named(run_sfumato, data):
    bundle = next((data / "maps").glob("*/*/bundle.tar"))
    points, landmarks = bundle.parent / "model" / "points3D.bin", bundle.parent / "model" / "landmarks.sfm"
    points.write_bytes(points.read_bytes()[:-1] + b"\1")
    landmarks.unlink()
    (bundle.parent / "cameras.json").unlink()
    facts = json.loads(run_sfumato("server", "doctor", "--data", data, "--json", code=1).stdout)
    (problem,) = facts["problems"]
    assert ": cameras.json, model/landmarks.sfm, model/points3D.bin: " in problem


def test_a_key_for_a_place_that_is_not_there_is_made_with_a_warning(run_sfumato, at_server, mapped_place, data):
    words = ("server", "key", "create", "read", "--place")
    assert "nowhere" in run_sfumato(*words, "nowhere").stderr
    assert run_sfumato(*words, mapped_place).stderr == ""
    there, missing = NameTable().place_id(mapped_place), "0123abcd" * 4
    assert missing in run_sfumato(*words, f"id:{missing}", "--data", data).stderr
    assert run_sfumato(*words, f"id:{there}", "--data", data).stderr == ""


def test_a_database_that_is_damaged(run_sfumato, no_server, tmp_path):
    Store(tmp_path / "data").close()
    path = tmp_path / "data" / "server.sqlite"
    content = bytearray(path.read_bytes())
    content[4096 : 3 * 4096] = b"\xff" * (2 * 4096)
    path.write_bytes(content)
    done = run_sfumato("server", "doctor", "--data", tmp_path / "data", code=1)
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr or "problem: " in done.stderr
