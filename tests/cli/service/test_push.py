# SPDX-License-Identifier: Apache-2.0
import json
import stat

import pytest

pytest.importorskip("httpx2")

from sfumato.cli.service.connect import pushed_path
from sfumato.client.names import NameTable

FEW = ("--max-features", "60", "--extractor", "opencv", "--recipe", "sealed-256")


def test_an_archive_is_sent_once(run_sfumato, at_server, archive):
    facts = json.loads(run_sfumato("push", archive, "--place", "cellar", "--json").stdout)
    assert sorted(facts["sent"]) == ["3.jpg", "Küche 1.jpg", "attic 2.jpg"]
    assert (facts["already there"], facts["new place"], facts["concealed"]) == (0, True, None)
    assert facts["place id"] == NameTable().place_id("cellar")
    again = run_sfumato("push", archive, "--place", "cellar", "--server", at_server.url).stdout
    assert again == f"0 images sent, 3 already there: cellar at {at_server.url}\n"
    by_id = run_sfumato("push", archive, "--place", f"id:{facts['place id']}").stdout
    assert by_id.startswith("0 images sent, 3 already there: cellar ")


def test_photos_are_concealed_here_once_and_a_second_push_goes_on(run_sfumato, at_server, small_photos, tmp_path):
    folder = small_photos["coffee.png"].parent
    words = ("--place", "desk", *FEW)
    done = run_sfumato("push", small_photos["coffee.png"], *words)
    assert done.stdout.startswith("1 image sent")
    kept = pushed_path(NameTable().place_id("desk"))
    assert str(kept) in done.stdout
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    more = json.loads(run_sfumato("push", folder, *words, "--json").stdout)
    assert sorted(more["sent"]) == ["chelsea.png", "wall.png"]
    assert (more["already there"], more["concealed"]["skipped"]) == (1, 1)
    assert more["concealed"]["archive"] == str(kept)
    mine = json.loads(run_sfumato("push", folder, *words, "--archive", tmp_path / "mine.sfm", "--json").stdout)
    assert mine["sent"] == [], "a seal gives the same code again"


def test_other_options_than_those_of_the_first_push_are_refused_and_these_are_named(
    run_sfumato, at_server, small_photos
):
    photo = small_photos["coffee.png"]
    run_sfumato("push", photo, "--place", "shelf", *FEW)
    for words in ((), (*FEW[2:],), ("--max-features", "60", "--extractor", "opencv")):
        errors = run_sfumato("push", photo, "--place", "shelf", *words, code=1).stderr
        assert "(--extractor opencv --max-features 60 --recipe sealed-256)" in errors
        assert "--overwrite" not in errors
    run_sfumato("push", photo, "--place", "shelf", "--extractor", "opencv", "--max-features", "60",
                "--recipe", "sealed-256")  # fmt: skip


def test_a_place_that_the_key_may_not_make_is_told_before_any_photo_is_read(
    run_sfumato, at_server, small_photos, monkeypatch
):
    key = run_sfumato("server", "key", "create", "upload:*").stdout.strip()
    monkeypatch.setenv("SFUMATO_API_KEY", key)
    monkeypatch.setattr("sfumato.cli.service.push.conceal_photos", lambda *words, **more: pytest.fail("too early"))
    errors = run_sfumato("push", small_photos["coffee.png"], "--place", "vault", code=1).stderr
    assert f"place create id:{NameTable().place_id('vault')}" in errors


def test_a_conflict_is_told_by_the_name(run_sfumato, at_server, archive, scene, tmp_path):
    import sfumato

    run_sfumato("push", archive, "--place", "loft")
    images = list(scene.images.items())
    sfumato.save(tmp_path / "other.sfm", {images[1][0]: images[2][1]})
    errors = run_sfumato("push", tmp_path / "other.sfm", "--place", "loft", code=1).stderr
    assert errors.startswith("error: 'attic 2.jpg': ")
    assert errors.count("\n") == 1


def test_a_device_key_and_options_of_photos_are_refused(run_sfumato, at_server, archive, device_key):
    assert "device key" in run_sfumato("push", device_key, "--place", "x", code=1).stderr
    for option in (["--recipe", "sealed-512"], ["--with-cameras"], ["--archive", "x.sfm"]):
        errors = run_sfumato("push", archive, "--place", "x", *option, code=1).stderr
        assert option[0] in errors
    assert "no such file" in run_sfumato("push", "nowhere", "--place", "x", code=1).stderr
    assert "--place" in run_sfumato("push", archive, code=2).stderr


def test_without_a_server_or_a_key_one_line_says_what_to_do(run_sfumato, no_server, archive, monkeypatch):
    assert "$SFUMATO_SERVER" in run_sfumato("push", archive, "--place", "x", code=1).stderr
    words = ("--place", "x", "--server", "http://127.0.0.1:1")
    assert "$SFUMATO_API_KEY" in run_sfumato("push", archive, *words, code=1).stderr
    monkeypatch.setenv("SFUMATO_API_KEY", f"sfm_{'a' * 8}_{'b' * 43}_{'c' * 6}")
    errors = run_sfumato("push", archive, *words, code=1).stderr
    assert "cannot reach" in errors
    assert "bbbb" not in errors
    assert "--allow-http" in run_sfumato("push", archive, "--place", "x", "--server", "http://a.example", code=1).stderr


def test_a_map_is_pulled_and_jobs_are_listed(run_sfumato, at_server, mapped_place, scene, tmp_path):
    done = run_sfumato("pull", "--place", mapped_place, "-o", tmp_path / "model")
    assert done.stdout.startswith("map 1 of Dr Smith, bedroom, 3 images, ")
    assert (tmp_path / "model" / "landmarks.sfm").is_file()
    taken = run_sfumato("pull", "--place", mapped_place, "-o", tmp_path / "model", code=1)
    assert "--overwrite" in taken.stderr
    run_sfumato("pull", "--place", mapped_place, "-o", tmp_path / "model", "--overwrite", "--json")
    assert "done (Dr Smith, bedroom)" in run_sfumato("jobs", "--place", mapped_place, "--follow").stdout
    facts = json.loads(run_sfumato("jobs", "--json").stdout)
    assert {job["place name"] for job in facts["jobs"]} >= {mapped_place}
    number = str(facts["jobs"][-1]["number"])
    assert "error: " in run_sfumato("jobs", "--cancel", number, code=1).stderr
    assert "--cancel" not in run_sfumato("jobs", "--cancel", "99999", code=1).stderr
