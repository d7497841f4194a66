# SPDX-License-Identifier: Apache-2.0
"""Archives are written image by image; nothing written is lost, and nothing clear goes in."""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import ArchiveError, InputError
from sfumato.files import sqlite
from sfumato.store import ArchiveWriter, load, save
from sfumato.store.layout import ARCHIVE
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import Extractor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sfm"


def files(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


# ---------------------------------------------------------------- what goes in comes out


@pytest.mark.parametrize("dim", [0, 1, 2, 16])
def test_float32_comes_back_bit_for_bit(path: Path, features: Any, same: Any, dim: int):
    recipe = f"random-{dim}" if dim else "compress-16"
    images = {f"{i}.jpg": features(seed=i, count=i, dim=dim, recipe=recipe) for i in range(12)}
    save(path, images)
    archive = load(path)
    assert set(archive) == set(images)
    for name in images:
        same(archive[name], images[name])
    archive.close()
    assert files(path) == [path.name]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bits"])
def test_bits_come_back_bit_for_bit(path: Path, sealed: Any, same: Any, dtype: str):
    images = {f"{i}.jpg": sealed(seed=i, count=40 * i, bits=512) for i in range(5)}
    save(path, images, dtype=dtype)
    with load(path) as archive:
        assert {header.dtype for header in archive.summary().images} == {"bits"}
        for name, image in images.items():
            same(archive[name], image)


def test_float16_is_half_the_size(path: Path, features: Any):
    image = features(count=1000, dim=2, ambient_dim=128)
    save(path, {"a.jpg": image})
    full = path.stat().st_size
    save(path, {"a.jpg": image}, dtype="float16")
    assert 0.50 < path.stat().st_size / full < 0.54
    with load(path) as archive:
        assert archive.header("a.jpg").dtype == "float16"
        assert archive["a.jpg"].keypoints.tobytes() == image.keypoints.tobytes()


@pytest.mark.parametrize("is_home", [False, True])
def test_a_feature_of_512_bits_takes_72_bytes(path: Path, sealed: Any, home: Any, is_home: bool):
    """64 of them are the code; 8 its position or, where that stays home, its tag."""
    make = home if is_home else sealed
    save(path, {f"{i}.jpg": make(seed=i, count=2000, bits=512) for i in range(40)})
    assert 72 < path.stat().st_size / 80_000 < 76


def test_names_of_many_kinds(path: Path, features: Any, same: Any):
    names = ["a/b/c.jpg", "/", ".", "..", "a b", "ü/é.png", "%2F", "日本", "😀", "n" * 1024]
    images = {name: features(seed=i) for i, name in enumerate(names)}
    save(path, images)
    with load(path) as archive:
        assert list(archive) == sorted(names)
        for name in names:
            same(archive[name], images[name])


def test_an_iterable_is_consumed_one_at_a_time(path: Path, features: Any):
    alive: list[str] = []

    def pairs() -> Iterator[tuple[str, ConcealedFeatures]]:
        for i in range(5):
            assert len(alive) == i
            yield f"{i}.jpg", features(seed=i)
            alive.append(f"{i}.jpg")

    save(path, pairs())
    assert list(load(path)) == alive


def test_progress_wraps_the_iterable(path: Path, features: Any):
    seen: list[str] = []

    def progress(pairs: Any) -> Iterator[Any]:
        assert len(pairs) == 2
        for pair in pairs:
            seen.append(pair[0])
            yield pair

    save(path, {"b.jpg": features(), "a.jpg": features()}, progress=progress)
    assert seen == ["b.jpg", "a.jpg"]


def test_an_archive_is_saved_again(path: Path, tmp_path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features(), "b.jpg": features(seed=1)})
    save(tmp_path / "b.sfm", load(path))
    save(path, load(path))
    for copy in (path, tmp_path / "b.sfm"):
        same(load(copy)["b.jpg"], features(seed=1))


# ---------------------------------------------------------------- nothing clear goes in


@pytest.mark.parametrize("kind", ["clear", "dict", "array", "code", "none"])
@pytest.mark.parametrize("append", [False, True])
def test_only_concealed_features_are_accepted(path: Path, features: Any, kind: str, append: bool):
    concealed = features()
    value = {
        "clear": Features(concealed.keypoints, np.ones((5, 16), np.float32)),
        "dict": {"keypoints": concealed.keypoints, "descriptors": np.ones((5, 16))},
        "array": np.ones((5, 16), np.float32),
        "code": concealed.code,
        "none": None,
    }[kind]
    with pytest.raises(InputError, match="ConcealedFeatures"):
        save(path, {"a.jpg": value}, append=append)
    assert files(path) == []


def test_a_clear_recipe_is_refused(path: Path, features: Any):
    points = features(dim=0, recipe="raw")
    with pytest.raises(InputError, match="the clear"):
        save(path, {"a.jpg": points})
    assert files(path) == []


def test_a_recipe_changed_behind_our_back_is_refused(path: Path, features: Any):
    image = features()
    for recipe in ("raw", "random-3", "compress-16"):
        object.__setattr__(image, "recipe", features(dim=0, recipe="raw").recipe.of(recipe))
        with pytest.raises(InputError, match=r"clear|dimension"):
            save(path, {"a.jpg": image})


@pytest.mark.parametrize("value", [3, None, "concealed"])
def test_what_is_no_mapping_is_refused(path: Path, features: Any, value: Any):
    with pytest.raises(InputError, match="mapping"):
        save(path, features() if value == "concealed" else value)


@pytest.mark.parametrize("pair", ["ab", ("a.jpg",), ["a.jpg", None], ("a", "b", "c")])
def test_what_is_no_pair_is_refused(path: Path, pair: Any):
    with pytest.raises(InputError, match="pairs"):
        save(path, [pair])
    assert files(path) == []


@pytest.mark.parametrize("name", ["", "n" * 1025, 3, None, "\ud800", "a\nb"])
@pytest.mark.parametrize("append", [False, True])
def test_bad_names_are_refused(path: Path, features: Any, name: Any, append: bool):
    with pytest.raises(InputError, match="name"):
        save(path, {name: features()}, append=append)
    assert files(path) == []


def test_two_images_of_one_name_are_refused(path: Path, features: Any):
    with pytest.raises(InputError, match=r"'a\.jpg'"):
        save(path, [("a.jpg", features()), ("a.jpg", features())])
    assert files(path) == []


def test_unknown_types_are_refused(path: Path, features: Any):
    with pytest.raises(InputError, match="'float16'"):
        save(path, {"a.jpg": features()}, dtype="flaot16")
    with pytest.raises(InputError, match="dtype"):
        ArchiveWriter(path, dtype="float64")


def test_an_extractor_with_too_much_to_say_is_refused(path: Path, features: Any):
    extractor = Extractor("sift", {f"setting{i}": "x" * 4000 for i in range(9)})
    with pytest.raises(InputError, match=r"extractor.*shorten"):
        save(path, {"a.jpg": features(extractor=extractor)})
    assert files(path) == []


# ---------------------------------------------------------------- replacing and adding


def test_save_replaces_unless_told_otherwise(path: Path, features: Any):
    save(path, {"a.jpg": features()})
    save(path, {"b.jpg": features()})
    assert list(load(path)) == ["b.jpg"]
    with pytest.raises(ArchiveError, match="append"):
        save(path, {"c.jpg": features()}, overwrite=False)
    assert list(load(path)) == ["b.jpg"]
    save(path.with_name("new.sfm"), {"c.jpg": features()}, overwrite=False)


def test_append_adds_in_place(path: Path, features: Any, sealed: Any, same: Any):
    images = {f"{i}.jpg": features(seed=i) if i % 2 else sealed(seed=i) for i in range(6)}
    save(path, {"0.jpg": images["0.jpg"]}, append=True)
    number = path.stat().st_ino
    for name in list(images)[1:]:
        save(path, {name: images[name]}, append=True)
    assert path.stat().st_ino == number
    with load(path) as archive:
        assert list(archive) == list(images)
        for name in images:
            same(archive[name], images[name])
    assert files(path) == [path.name]


def test_append_mixes_types(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features()})
    save(path, {"b.jpg": features(seed=1)}, append=True, dtype="float16")
    with load(path) as archive:
        same(archive["a.jpg"], features())
        assert [header.dtype for header in archive.summary().images] == ["float32", "float16"]


def test_append_passes_over_the_same_image_and_refuses_another(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features()})
    save(path, {"a.jpg": features(), "b.jpg": features(seed=1)}, append=True)
    with pytest.raises(InputError, match="already"):
        save(path, {"a.jpg": features(seed=1)}, append=True)
    with load(path) as archive:
        assert list(archive) == ["a.jpg", "b.jpg"]
        same(archive["a.jpg"], features())


def test_an_interrupted_append_goes_on(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features()})

    def interrupted() -> Any:
        yield "b.jpg", features(seed=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(path, interrupted(), append=True)
    assert list(load(path)) == ["a.jpg", "b.jpg"]
    save(path, {"b.jpg": features(seed=1), "c.jpg": features(seed=2)}, append=True)
    with load(path) as archive:
        assert list(archive) == ["a.jpg", "b.jpg", "c.jpg"]
        same(archive["b.jpg"], features(seed=1))


def test_append_keeps_a_damaged_image_as_it_is(path: Path, features: Any, same: Any, sql: Any):
    save(path, {"a.jpg": features(), "b.jpg": features(seed=1)})
    sql(path, "UPDATE image SET code = zeroblob(length(code)) WHERE name = 'a.jpg'")
    save(path, {"c.jpg": features(seed=2)}, append=True)
    with load(path) as archive:
        with pytest.raises(ArchiveError, match="checksum"):
            archive["a.jpg"]
        same(archive["b.jpg"], features(seed=1))
        same(archive["c.jpg"], features(seed=2))


def test_append_to_what_is_no_archive_is_refused(path: Path, features: Any):
    path.write_bytes(b"notes" * 100)
    with pytest.raises(ArchiveError, match="archive"):
        save(path, {"a.jpg": features()}, append=True)
    assert path.read_bytes() == b"notes" * 100
    assert files(path) == [path.name]


def test_a_link_to_an_archive_stays_a_link(path: Path, features: Any):
    real = path.with_name("real.sfm")
    save(real, {"a.jpg": features()})
    path.symlink_to(real)
    save(path, {"b.jpg": features()})
    save(path, {"c.jpg": features()}, append=True)
    assert path.is_symlink()
    assert list(load(real)) == ["b.jpg", "c.jpg"]


def test_access_rights_are_kept(path: Path, features: Any):
    save(path, {"a.jpg": features()})
    for mode in (0o600, 0o640):
        path.chmod(mode)
        with ArchiveWriter(path) as writer:
            writer.add("b.jpg", features())
            (part,) = path.parent.glob(".a.sfm.*.part")
            assert stat.S_IMODE(part.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.stat().st_mode) == mode
        save(path, {f"{mode}.jpg": features()}, append=True)
        assert stat.S_IMODE(path.stat().st_mode) == mode


# ---------------------------------------------------------------- the writer


@pytest.mark.parametrize("append", [False, True])
def test_the_writer_knows_what_is_there(path: Path, features: Any, same: Any, append: bool):
    save(path, {"old.jpg": features(count=3)})
    with ArchiveWriter(path, append=append) as writer:
        old = ("old.jpg",) if append else ()
        assert writer.names == old
        assert ("old.jpg" in writer) is append
        assert "new.jpg" not in writer
        assert 3 not in writer
        assert "\udcff" not in writer
        writer.add("new.jpg", features(count=4))
        assert "new.jpg" in writer
        assert len(writer) == 1 + append
        assert writer.names == ("new.jpg", *old)
        assert [writer.header(name).count for name in writer.names] == [4, 3][: 1 + append]
        same(writer.read("new.jpg"), features(count=4))
        with load(path) as archive:
            assert list(archive) == ["new.jpg", "old.jpg"] if append else ["old.jpg"]
    assert list(load(path)) == ["new.jpg", *old]


def test_the_writer_is_used_in_a_with_block(path: Path, features: Any):
    writer = ArchiveWriter(path)
    with pytest.raises(ArchiveError, match="with block"):
        writer.add("a.jpg", features())
    with writer:
        writer.add("a.jpg", features())
        with pytest.raises(ArchiveError, match="already"):
            writer.__enter__()
    with pytest.raises(ArchiveError, match="with block"):
        writer.add("b.jpg", features())
    with writer:
        writer.add("b.jpg", features())
    assert list(load(path)) == ["b.jpg"]


@pytest.mark.parametrize("append", [False, True])
def test_a_refused_image_does_not_end_the_work(path: Path, features: Any, append: bool):
    with ArchiveWriter(path, append=append) as writer:
        writer.add("a.jpg", features())
        with pytest.raises(InputError):
            writer.add("b.jpg", features(dim=0, recipe="raw"))
        writer.add("c.jpg", features())
    assert list(load(path)) == ["a.jpg", "c.jpg"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, InputError])
def test_an_error_keeps_the_archive_and_what_was_added_to_it(
    path: Path, features: Any, same: Any, error: type[BaseException]
):
    save(path, {"old.jpg": features(seed=7)})
    before = path.read_bytes()
    with pytest.raises(error), ArchiveWriter(path) as writer:  # noqa: PT012
        writer.add("a.jpg", features())
        raise error
    assert path.read_bytes() == before
    with pytest.raises(error), ArchiveWriter(path, append=True) as writer:  # noqa: PT012
        writer.add("a.jpg", features())
        raise error
    assert files(path) == [path.name]
    with load(path) as archive:
        assert list(archive) == ["a.jpg", "old.jpg"]
        same(archive["a.jpg"], features())


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, None])
def test_nothing_added_leaves_nothing_new(path: Path, append: bool, error: type[BaseException] | None):
    try:
        with ArchiveWriter(path, append=append):
            if error:
                raise error
    except RuntimeError:
        pass
    assert files(path) == ([] if error or append else [path.name])


def test_appending_nothing_leaves_the_file_alone(path: Path, features: Any):
    save(path, {"a.jpg": features()})
    before = path.stat().st_ino, path.read_bytes()
    save(path, {}, append=True)
    assert (path.stat().st_ino, path.read_bytes()) == before
    assert files(path) == [path.name]


# ---------------------------------------------------------------- several writers


def test_two_writers_take_turns(path: Path, features: Any, same: Any):
    with ArchiveWriter(path, append=True) as one, ArchiveWriter(path, append=True) as two:
        for i in range(10):
            (one, two)[i % 2].add(f"{i}.jpg", features(seed=i))
        with pytest.raises(InputError, match="already"):
            two.add("0.jpg", features())
        assert len(one) == len(two) == 10
    with load(path) as archive:
        for i in range(10):
            same(archive[f"{i}.jpg"], features(seed=i))
    assert files(path) == [path.name]


def test_an_empty_file_that_another_writer_has_open_stays(path: Path, features: Any):
    with ArchiveWriter(path, append=True):
        other = ArchiveWriter(path, append=True).__enter__()
    other.add("a.jpg", features())
    other.__exit__(None, None, None)
    assert list(load(path)) == ["a.jpg"]


def test_who_adds_notices_that_the_archive_was_replaced(path: Path, features: Any, same: Any):
    save(path, {"old.jpg": features()})
    with ArchiveWriter(path, append=True) as writer:
        writer.add("a.jpg", features(seed=1))
        save(path, {"new.jpg": features(seed=2)})
        with pytest.raises(ArchiveError, match="replaced"):
            writer.add("b.jpg", features(seed=3))
    with load(path) as archive:
        assert list(archive) == ["new.jpg"]
        same(archive["new.jpg"], features(seed=2))
    assert files(path) == [path.name]


def test_one_replacement_at_a_time(path: Path, features: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.05)
    with ArchiveWriter(path) as writer:
        writer.add("a.jpg", features())
        with pytest.raises(ArchiveError, match="another process"):
            save(path, {"b.jpg": features()})
    assert list(load(path)) == ["a.jpg"]
    assert files(path) == [path.name]


def test_what_killed_runs_left_is_removed(path: Path, features: Any):
    stale = [f".a.sfm.{'0' * 16}.part{end}" for end in ("", "-wal", "-shm")]
    others = [".a.sfm.notes.part", f".b.sfm.{'0' * 16}.part", f".{'0' * 16}.part"]
    for append in (False, True):
        for name in (*stale, *others):
            path.with_name(name).write_bytes(b"x")
        save(path, {f"{append}.jpg": features()}, append=append)
        assert files(path) == sorted([*others, "a.sfm"])


RACE = """
import sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.errors import InputError
from sfumato.store import ArchiveWriter
start, lost = int(sys.argv[3]), 0
with ArchiveWriter(sys.argv[2], append=True) as writer:
    for i in range(start, start + 40):
        try:
            writer.add(f"{i}.jpg", make_features(seed=i))
        except InputError:
            lost += 1
print(lost)
"""


def test_processes_share_an_archive(path: Path, features: Any, same: Any):
    """Two processes add 40 images each, of which they have 20 in common: each is there once."""
    command = [sys.executable, "-c", RACE, str(Path(__file__).parent), str(path)]
    runs = [subprocess.Popen([*command, start], stdout=subprocess.PIPE, text=True) for start in ("0", "20")]
    assert sum(int(run.communicate(timeout=60)[0]) for run in runs) == 20
    with load(path) as archive:
        assert len(archive) == 60
        for i in range(60):
            same(archive[f"{i}.jpg"], features(seed=i))
    assert files(path) == [path.name]


# ---------------------------------------------------------------- where nothing can be written


@pytest.mark.parametrize("append", [False, True])
def test_paths_that_cannot_be_written_are_refused(tmp_path: Path, features: Any, append: bool):
    os.mkfifo(tmp_path / "pipe")
    for name, word in (("no/a.sfm", "no folder"), (".", "not a"), ("pipe", "not a"), ("n" * 300, "long")):
        with pytest.raises(ArchiveError, match=word):
            save(tmp_path / name, {"a.jpg": features()}, append=append)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("append", [False, True])
def test_a_folder_that_is_read_only_is_refused(features: Any, append: bool):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # nobody: root may write anywhere
        try:
            with pytest.raises(ArchiveError, match="Permission") as caught:
                save(Path(folder) / "a.sfm", {"a.jpg": features()}, append=append)
        finally:
            os.seteuid(user)
        assert ARCHIVE.advice not in str(caught.value)
        assert os.listdir(folder) == []
        os.chmod(folder, 0o755)


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.errors import ArchiveError
from sfumato.store import ArchiveWriter
path, limit, append, count = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "append", 0
features = [make_features(seed=i, count=100) for i in range(40)]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with ArchiveWriter(path, append=append) as writer:
        for i, image in enumerate(features):
            writer.add(f"{i:02}.jpg", image)
            count += 1
except ArchiveError as problem:
    print(count, problem)
"""


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("limit", [60, 200_000, 500_000])
def test_a_file_that_may_not_grow(path: Path, features: Any, same: Any, limit: int, append: bool):
    """A limit on the size of files stands for a full disk: writing fails in the middle of an image."""
    save(path, {"old.jpg": features(seed=99, count=150)})
    command = [sys.executable, "-c", LIMITED, Path(__file__).parent, path, str(limit), "append" if append else "new"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    count, problem = int(done.stdout.split()[0]), done.stdout.split(maxsplit=1)[1]
    assert str(path) in problem
    assert "free space" in problem
    assert ARCHIVE.advice not in problem
    assert (count > 0) is (limit > 60)
    with load(path) as archive:
        assert len(archive) == 1 + (count if append else 0)
        for i in range(count if append else 0):
            same(archive[f"{i:02}.jpg"], features(seed=i, count=100))
        same(archive["old.jpg"], features(seed=99, count=150))
    assert files(path) == [path.name]


# ---------------------------------------------------------------- killed and interrupted


ENDLESS = """
import sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.store import ArchiveWriter
features = [make_features(seed=i, count=300, ambient_dim=64) for i in range(10)]
with ArchiveWriter(sys.argv[2], append=sys.argv[3] == "append") as writer:
    start = len(writer)
    print("ready", flush=True)
    for i in range(start, 100_000):
        writer.add(f"{i}.jpg", features[i % 10])
        print(i, flush=True)
"""


def stop_writing(path: Path, how: signal.Signals, seconds: float, mode: str = "append") -> int:
    """Write in a process and stop it after a while; return how many images it said were added."""
    command = [sys.executable, "-c", ENDLESS, str(Path(__file__).parent), str(path), mode]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    time.sleep(seconds)
    process.send_signal(how)
    lines = process.communicate(timeout=60)[0].splitlines(keepends=True)
    assert process.returncode in (-how, 130, 1)
    numbers = [int(line) for line in lines if re.fullmatch(r"\d+\n", line)]
    return numbers[-1] + 1 if numbers else 0


@pytest.mark.parametrize(
    ("how", "times"),
    [
        *((signal.SIGKILL, 4), (signal.SIGTERM, 1), (signal.SIGINT, 1)),
        pytest.param(signal.SIGKILL, 100, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_process_loses_nothing(path: Path, features: Any, same: Any, how: signal.Signals, times: int):
    rng = np.random.default_rng(times)
    present = 0
    for _ in range(times):
        written = max(present, stop_writing(path, how, rng.uniform(0, 0.08)))
        with load(path) as archive:
            present = len(archive)
            assert written <= present <= written + 1
            assert set(archive) == {f"{i}.jpg" for i in range(present)}
            for name in list(archive) if times < 10 else list(archive)[-20:]:
                same(archive[name], features(seed=int(name[:-4]) % 10, count=300, ambient_dim=64))
    assert present > 0
    save(path, {"last.jpg": features()}, append=True)
    with load(path) as archive:
        assert len(archive) == present + 1
    assert files(path) == [path.name]


def test_a_killed_replacement_keeps_the_old_archive(path: Path, features: Any, same: Any):
    save(path, {"old.jpg": features()})
    assert stop_writing(path, signal.SIGKILL, 0.05, "new") > 0
    assert len(files(path)) > 1
    with load(path) as archive:
        assert list(archive) == ["old.jpg"]
        same(archive["old.jpg"], features())
    save(path, {"new.jpg": features(seed=1)})
    assert list(load(path)) == ["new.jpg"]
    assert files(path) == [path.name]


# ---------------------------------------------------------------- many


MANY = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.store import load, save

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 1024**2)

image, count = make_features(count=64, ambient_dim=128), 1000
save(sys.argv[2] + ".small", ((f"{i}.jpg", image) for i in range(10)))
sum(len(back) for back in load(sys.argv[2] + ".small").values())
start = peak()
save(sys.argv[2], ((f"{i}.jpg", image) for i in range(count)))
wrote = peak()
assert sum(len(back) for back in load(sys.argv[2]).values()) == 64 * count
print(wrote - start, peak() - start)
"""


def test_many_images_need_memory_for_one(path: Path):
    """100 MB of images; names, not the images, are kept in memory."""
    command = [sys.executable, "-c", MANY, str(Path(__file__).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size > 95e6
    wrote, read = (int(word) for word in done.stdout.split())
    assert wrote < 20
    assert read < 30
