# SPDX-License-Identifier: Apache-2.0
import json
import multiprocessing
import os
import sqlite3
import tracemalloc
from collections import Counter
from contextlib import closing, suppress

import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings, conceal_parallel
from sfumato.errors import FileError, InputError, NotEnrolledError, SfumatoError
from sfumato.faces import gallery_file
from sfumato.faces.compare import choose_threshold
from sfumato.faces.gallery_file import GalleryWriter, code_rows, load_gallery, people_in
from sfumato.files.sqlite import Database, create
from sfumato.types.clear import Embeddings
from sfumato.types.recipe import Recipe

THRESHOLD = choose_threshold(np.arange(1.0, 100), 0.2, comparison="s-to-s", people=9)


@pytest.fixture
def templates(photos):
    return conceal_embeddings(photos(range(4)), "random-2")


@pytest.fixture
def path(templates, tmp_path, write_gallery):
    """A gallery of three, a fourth revoked, with a threshold."""
    path = write_gallery(tmp_path / "gallery.sqlite", templates, THRESHOLD)
    revoke(path, "p3_0")
    return path


def revoke(path, *people):
    with GalleryWriter(path) as writer, writer.turn():
        writer.revoke(people)


def everything(gallery):
    """What a gallery holds, to compare it to the last bit."""
    kind = gallery.recipe, gallery.recipe.decoys, gallery.templates.extractor
    return gallery.templates.ids, code_rows(gallery.templates), dict(gallery.releases), gallery.thresholds, kind


def on_disk(folder):
    return b"".join(entry.read_bytes() for entry in sorted(folder.iterdir()))


def test_what_was_written_is_read_to_the_last_bit(path, templates):
    gallery = load_gallery(path)
    assert everything(gallery) == (
        templates.ids[:3],
        code_rows(templates)[:3],
        dict.fromkeys(templates.ids, 1),
        (THRESHOLD,),
        (templates.recipe, templates.recipe.decoys, templates.extractor),
    )
    assert os.listdir(path.parent) == ["gallery.sqlite"]
    with GalleryWriter(path) as writer:
        assert (writer.people, len(list(writer.blocks()))) == (3, 1)
    revoke(path, *gallery.templates.ids)
    assert (len(load_gallery(path)), load_gallery(path).revoked) == (0, templates.ids)


def test_some_people_are_read_without_the_others(path, monkeypatch):
    monkeypatch.setattr(gallery_file, "_row_blocks", None)
    one = load_gallery(path, ("p1_0",))
    assert (one.templates.ids, dict(one.releases), one.thresholds) == (("p1_0",), {"p1_0": 1}, (THRESHOLD,))
    with pytest.raises(InputError, match="revoked"):
        load_gallery(path, ("p1_0", "p3_0"))
    with pytest.raises(NotEnrolledError, match="'p10'") as problem:
        load_gallery(path, ("p10",))
    assert "p1_0" not in str(problem.value)


def test_who_is_not_enrolled_is_not_looked_for_among_all(path, monkeypatch):
    asked, usual = [], Database.rows
    monkeypatch.setattr(Database, "rows", lambda self, sql, *more: asked.append((sql, more)) or usual(self, sql, *more))
    with pytest.raises(NotEnrolledError):
        load_gallery(path, ("nobody",))
    assert all(more for sql, more in asked if "FROM templates" in sql)  # one person's row, by the id
    assert people_in(path) == ("p0_0", "p1_0", "p2_0")


def test_blocks_are_read_one_after_the_other(path, monkeypatch):
    gallery = load_gallery(path)
    monkeypatch.setattr(gallery_file, "AT_ONCE", 2)
    assert everything(load_gallery(path)) == everything(gallery)
    with GalleryWriter(path) as writer:
        assert [len(block) for block in writer.blocks()] == [2, 1]


def test_changes_follow_the_rules_of_releases(path, photos):
    with GalleryWriter(path) as writer, writer.turn():
        before, newer = writer.templates(["p1_0"]), photos(range(1, 2), seed=9)
        with pytest.raises(InputError, match="'p1_0'"):
            writer.add(conceal_embeddings(newer, "random-2"))
        with pytest.raises(InputError, match="directions"):
            writer.replace(conceal_embeddings(newer, "random-2"))
        with pytest.raises(InputError, match="random-3"):
            writer.add(conceal_embeddings(photos(range(7, 8)), "random-3"))
        with pytest.raises(InputError, match="revoked"):
            writer.revoke(["p3_0"])
        writer.replace(conceal_parallel(newer, before))
        writer.add(conceal_embeddings(photos(range(3, 5)), "random-2"))
    gallery = load_gallery(path)
    assert gallery.templates.ids == ("p0_0", "p1_0", "p2_0", "p3_0", "p4_0")
    assert dict(gallery.releases) == {"p0_0": 1, "p1_0": 1, "p2_0": 1, "p3_0": 2, "p4_0": 1}
    assert not np.allclose(gallery.template("p1_0").code.origin, before.code.origin)


def test_a_new_file_is_private_and_a_changed_one_keeps_its_mode(path, templates):
    modes = set()
    for mode in (0o600, 0o640):
        path.chmod(mode)
        with GalleryWriter(path) as writer:
            with writer.turn():
                writer.set_threshold(THRESHOLD)
            modes.add(tuple(entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()))
        assert path.stat().st_mode & 0o777 == mode
    assert modes == {(0o600,) * 3, (0o640,) * 3}  # the file, -wal and -shm


def test_a_page_holds_several_templates(path):
    """Of 512 dimensions too: with smaller pages a third of the file would be empty."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (gallery_file.KIND.page_bytes,)


def test_nothing_clear_is_in_the_file(path, photos):
    content = path.read_bytes()
    for row in photos(range(4)).values:
        assert all(row[at : at + 2].tobytes() not in content for at in range(0, 64, 2))


def test_nothing_of_a_removed_template_stays_on_the_disk(tmp_path, photos, write_gallery):
    """What is left of a revoked template, and a later one of the same person, would reveal the face."""
    templates = conceal_embeddings(photos(range(200)), "random-2")
    path = write_gallery(tmp_path / "gallery.sqlite", templates)
    codes = dict(zip(templates.ids, code_rows(templates), strict=True))
    assert all(code in on_disk(tmp_path) for code in codes.values())
    people = [str(person) for person in np.random.default_rng(1).permutation(templates.ids)[:180]]
    for start in range(0, 180, 30):
        revoke(path, *people[start : start + 30])
        content = on_disk(tmp_path)
        assert not any(codes[person][64:128] in content for person in people[: start + 30])
        with GalleryWriter(path) as writer, writer.turn():
            writer.add(conceal_embeddings(photos(range(1000 + start, 1010 + start)), "random-2"))
    one = templates[[templates.ids.index(person) for person in templates.ids if person not in people][:1]]
    with GalleryWriter(path) as writer, writer.turn():
        writer.replace(conceal_parallel(Embeddings(photos(range(500, 501)).values, one.ids, one.extractor), one))
    assert codes[one.ids[0]][64:128] not in on_disk(tmp_path)


def stop_in(path, change, problem):
    with GalleryWriter(path) as writer, writer.turn():
        change(writer)
        raise problem


@pytest.mark.parametrize("problem", [KeyboardInterrupt, MemoryError])
def test_an_error_leaves_the_gallery_as_it_was(path, problem):
    before = everything(load_gallery(path))
    with pytest.raises(problem):
        stop_in(path, lambda writer: writer.revoke(["p0_0"]), problem)
    assert everything(load_gallery(path)) == before
    assert os.listdir(path.parent) == ["gallery.sqlite"]
    revoke(path, "p0_0")  # and nobody is locked out
    assert len(load_gallery(path)) == 2


def test_a_full_disk_is_told_and_loses_nothing(path, photos, monkeypatch):
    more, before = conceal_embeddings(photos(range(10, 400)), "random-2"), everything(load_gallery(path))
    many = Database.many

    def limited(self, query, values):
        self.rows("PRAGMA max_page_count=8")
        many(self, query, values)

    monkeypatch.setattr(Database, "many", limited)
    with pytest.raises(FileError, match="full"), GalleryWriter(path) as writer, writer.turn():
        writer.add(more)
    monkeypatch.undo()
    assert everything(load_gallery(path)) == before
    assert os.listdir(path.parent) == ["gallery.sqlite"]


def enroll_five(path, first, go):
    go.wait()
    for person in range(first, first + 5):
        rng = np.random.default_rng(person)
        faces = Embeddings(rng.normal(size=(1, 64)), (f"q{person}",), load_gallery(path).templates.extractor)
        with GalleryWriter(path) as writer, writer.turn():
            writer.add(conceal_embeddings(faces, "random-2"))


def test_two_processes_lose_nobody(path):
    spawn = multiprocessing.get_context("spawn")
    go = spawn.Event()
    writers = [spawn.Process(target=enroll_five, args=(path, 10 * number, go)) for number in range(2)]
    for writer in writers:
        writer.start()
    go.set()
    for writer in writers:
        writer.join(200)
        assert writer.exitcode == 0
    assert len(load_gallery(path)) == 13


def test_a_turn_tells_whether_others_wrote(path, tmp_path):
    with GalleryWriter(path) as one, GalleryWriter(path) as two:
        with one.turn() as others_wrote:
            assert not others_wrote
            one.set_threshold(THRESHOLD)
        with one.turn() as others_wrote:
            assert not others_wrote
        with two.turn() as others_wrote:
            assert others_wrote
        path.rename(tmp_path / "moved")
        with pytest.raises(FileError, match="replaced"), one.turn():
            pass


# --- files that are something else


def edit(path, *statements, head=None):
    """Change a file as anyone with SQLite can; ``head`` is written with the right checksum."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(*statement if isinstance(statement, tuple) else (statement,))
        if head is not None:
            (row,) = connection.execute("SELECT people, releases, facts FROM gallery").fetchall()
            counts = head.pop("people", row[0]), head.pop("releases", row[1])
            facts = head.pop("facts", None) or json.dumps({**json.loads(row[2]), **head})
            values = (*counts, facts, gallery_file._head_digest(*counts, facts))
            connection.execute("UPDATE gallery SET people = ?, releases = ?, facts = ?, digest = ?", values)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 3", "version 3"),
        ("PRAGMA application_id = 7", "not a gallery"),
        ("CREATE VIEW v AS SELECT * FROM templates", "tables"),
        ("CREATE TRIGGER t AFTER INSERT ON templates BEGIN DELETE FROM releases; END", "tables"),
        ("CREATE INDEX i ON templates (digest)", "tables"),
        ("DROP TABLE releases", "tables"),
        ("UPDATE gallery SET people = 2", "checksum"),
        ("UPDATE gallery SET number = 2", "checksum"),
        ("UPDATE gallery SET facts = X'00'", "checksum"),
        ("INSERT INTO gallery SELECT 2, people, releases, facts, digest FROM gallery", "checksum"),
        ("UPDATE templates SET code = zeroblob(768) WHERE number = 2", "checksum"),
        ("UPDATE templates SET code = zeroblob(3000000) WHERE number = 2", "size"),
        ("UPDATE templates SET code = 7 WHERE number = 2", "size"),
        ("UPDATE templates SET dtype = '<f8' WHERE number = 2", "size"),
        ("UPDATE templates SET person = X'61' WHERE number = 2", "size"),
        ("UPDATE templates SET person = 'mallory' WHERE number = 2", "checksum"),
        ("DELETE FROM templates WHERE number = 2", "templates"),
        ("DELETE FROM releases WHERE person = 'p1_0'", "release"),
        ("DELETE FROM releases WHERE person = 'p3_0'", "release"),
        ("UPDATE templates SET dtype = '<f4' WHERE person = 'p3_0'", "checksum"),
        ("UPDATE templates SET dtype = '|V0' WHERE person = 'p1_0'", "templates"),
        ("UPDATE releases SET number = 2 WHERE person = 'p1_0'", "release"),
        ("UPDATE releases SET number = 'x' WHERE person = 'p1_0'", "release"),
        ("UPDATE releases SET code = X'00' WHERE person = 'p1_0'", "release"),
    ],
)
def test_a_file_that_was_changed_is_refused(path, statement, words):
    edit(path, statement)
    with pytest.raises(FileError, match=words) as problem:
        load_gallery(path)
    assert str(path) in str(problem.value)


@pytest.mark.parametrize("table", ["templates", "releases"])
def test_someone_who_is_in_one_table_only_is_not_enrolled_again(path, photos, table):
    edit(path, f"DELETE FROM {table} WHERE person = 'p1_0'")
    with pytest.raises(FileError, match="damaged"):
        load_gallery(path, ["p1_0"])
    with pytest.raises(FileError, match="damaged"), GalleryWriter(path) as writer, writer.turn():
        writer.add(conceal_embeddings(photos(range(1, 2), seed=1), "random-2"))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({"people": 4}, "more or fewer"),
        ({"people": 2}, "more or fewer"),
        ({"people": -1}, "counts"),
        ({"people": 10**12, "releases": 10**12}, "hold"),
        ({"releases": 5}, "release"),
        ({"recipe": Recipe.of("raw").to_json()}, "protects nobody"),
        ({"recipe": "{}"}, "recipe"),
        ({"recipe": Recipe.of("random-3").to_json()}, "hold|size"),
        ({"dimensions": 32}, "size"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 10**12}, "dimensions"),
        ({"dimensions": "64"}, "dimensions"),
        ({"id": "00"}, "id"),
        ({"id": 7}, "facts"),
        ({"thresholds": [{}]}, "incomplete"),
        ({"thresholds": "none"}, "facts"),
        ({"more": 1}, "facts"),
        *(({"facts": text}, "facts") for text in ("null", "[" * 10_000, "9" * 10_000, "{", "NaN")),
    ],
)
def test_facts_that_are_none_are_refused_with_the_right_checksum(path, head, words):
    edit(path, head=dict(head))
    with pytest.raises(FileError, match=words):
        load_gallery(path)


@pytest.mark.parametrize(
    ("place", "value", "words"), [(0, np.nan, "finite"), (70, np.inf, "finite"), (64, 0, "depend")]
)
def test_forged_templates_with_the_right_checksum_are_refused(path, place, value, words):
    with GalleryWriter(path) as writer:
        facts, code = writer.facts, np.frombuffer(code_rows(writer.templates(["p1_0"]))[0], "<f4").copy()
    code[place : place + (64 if words == "depend" else 1)] = value
    row = "p1_0", "<f4", code.tobytes()
    digest = gallery_file._template_digest(facts, *row)
    edit(path, ("UPDATE templates SET code = ?, digest = ? WHERE person = ?", (row[2], digest, row[0])))
    for people in (None, ["p1_0"]):
        with pytest.raises(FileError, match=words):
            load_gallery(path, people)


def test_other_files_are_refused(path, tmp_path):
    for name, content, words in (
        ("old.h5", b"\x89HDF\r\n\x1a\n" + bytes(500), "earlier"),
        ("empty", b"", "cut"),
        ("cut", path.read_bytes()[:5000], "gallery|damaged"),
        ("text", b"name,1,2,3\n" * 50, "not a gallery"),
    ):
        (tmp_path / name).write_bytes(content)
        for use in (load_gallery, GalleryWriter):
            with pytest.raises(FileError, match=words):
                use(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(FileError, match="no such"):
        load_gallery(tmp_path / "gone.sqlite")
    missing = GalleryWriter(tmp_path / "no" / "gallery.sqlite")
    with pytest.raises(FileError, match="folder"), missing.turn():
        pass
    for use in (load_gallery, GalleryWriter):
        with pytest.raises(FileError, match="gallery's file"):
            use(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError):
        load_gallery(tmp_path / "pipe")


def test_a_gallery_before_its_first_person_is_no_damage(tmp_path):
    """A kill between the making of a file and the first turn leaves it."""
    create(tmp_path / "gallery.sqlite", gallery_file.KIND, private=True)
    with pytest.raises(FileError, match="yet"):
        load_gallery(tmp_path / "gallery.sqlite")
    with GalleryWriter(tmp_path / "gallery.sqlite") as writer:
        assert (writer.facts, writer.people, list(writer.blocks()), writer.releases(["a"])) == (None, 0, [], {"a": {}})
        with pytest.raises(FileError, match="yet"), writer.turn():
            writer.set_threshold(THRESHOLD)


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(path):
    path.parent.chmod(0o500)
    try:
        assert len(load_gallery(path)) == 3
        with pytest.raises(FileError, match="written"), GalleryWriter(path) as writer, writer.turn():
            writer.revoke(["p0_0"])
    finally:
        path.parent.chmod(0o700)


# --- files with changes at random


def damage(data, draw):
    """Change bytes, set numbers to extremes, exchange stretches, cut, or prolong."""
    content = bytearray(data)
    for _ in range(draw.integers(1, 4)):
        size, other = int(draw.choice([1, 16, 512, 32768])), int(draw.integers(max(1, len(content))))
        place = int(
            draw.choice(
                [draw.integers(max(1, len(content))), draw.integers(100), draw.integers(64) + other // 32768 * 32768]
            )
        )
        match draw.integers(6):
            case 0:
                content[place : place + 1] = draw.bytes(1)
            case 1:
                content[place : place + 4] = draw.choice([bytes(3) + b"\1", b"\xff" * 4, b"\x7f\xff\xff\xff"])
            case 2:
                content[place : place + size] = content[other : other + size]
            case 3:
                content[place : place + size] = b""
            case 4:
                del content[max(1, place) :]
            case _:
                content[place:place] = draw.bytes(size)
    return bytes(content)


def outcome_of(path, people, expected):
    """Read a damaged file: an error that names it, or what was in it."""
    try:
        gallery = load_gallery(path, people)
    except SfumatoError as problem:
        return "refused" if str(path) in str(problem) else "nameless"
    return "same" if everything(gallery) == expected else "other"


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_damaged_file_is_an_error_or_the_same_gallery(tmp_path, photos, write_gallery, count):
    path, bad = (
        write_gallery(tmp_path / "good", conceal_embeddings(photos(range(30)), "random-2"), THRESHOLD),
        tmp_path / "bad",
    )
    revoke(path, "p3_0", "p17_0")
    data, outcomes = path.read_bytes(), Counter()
    expected = {people: everything(load_gallery(path, people)) for people in (None, ("p5_0",))}
    tracemalloc.start()
    try:
        for seed in range(count):
            draw = np.random.default_rng(seed)
            bad.write_bytes(damage(data, draw))
            if seed % 5 == 0:
                (tmp_path / "bad-wal").write_bytes(draw.bytes(draw.integers(1, 5000)))
            outcomes.update((people, outcome_of(bad, people, content)) for people, content in expected.items())
            with suppress(SfumatoError), GalleryWriter(bad) as writer, writer.turn():
                writer.revoke(["p7_0"])
            for entry in tmp_path.glob("bad*"):
                entry.unlink()
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    assert {outcome for _, outcome in outcomes} == {"refused", "same"}
    assert outcomes[None, "refused"] > count / 2
    assert outcomes[None, "same"] > 0
