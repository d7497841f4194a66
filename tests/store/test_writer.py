# SPDX-License-Identifier: Apache-2.0
"""Archives are written image by image; nothing written is lost, and nothing clear goes in."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sfumato.errors import ArchiveError, InputError
from sfumato.store import ArchiveWriter, load, save
from sfumato.store import writer as part_module
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sfm.h5"


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def files(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


# ---------------------------------------------------------------- what goes in comes out


@pytest.mark.parametrize("dim", [1, 2, 16])
def test_float32_comes_back_bit_for_bit(path: Path, features: Any, same: Any, dim: int):
    given = {f"{i}.jpg": features(seed=i, count=i, dim=dim) for i in range(12)}
    save(path, given)
    archive = load(path)
    assert set(archive) == set(given)
    for name in given:
        same(archive[name], given[name])
    assert files(path) == [path.name]


def test_libhdf5_reads_the_same_values(path: Path, features: Any):
    given = {f"{i}.jpg": features(seed=i, count=i) for i in range(12)}
    save(path, given)
    with h5py.File(path) as file:
        assert list(file["images"]) == sorted(given)
        for name, image in given.items():
            group = file["images"][name]
            assert group["keypoints"][()].tobytes() == image.keypoints.tobytes()
            assert group["origin"][()].tobytes() == image.subspaces.origin.tobytes()
            assert group["basis"][()].tobytes() == image.subspaces.basis.tobytes()
            assert group.attrs["recipe"] == image.recipe.to_json().encode()


def test_float16_is_half_the_size_and_near(path: Path, features: Any):
    given = features(count=1000, dim=2, ambient_dim=128)
    save(path, {"a.jpg": given})
    full = path.stat().st_size
    save(path, {"a.jpg": given}, dtype="float16")
    assert 0.50 < path.stat().st_size / full < 0.52
    archive = load(path)
    assert archive.header("a.jpg").dtype == "float16"
    back = archive["a.jpg"]
    assert back.keypoints.tobytes() == given.keypoints.tobytes()
    scale = np.linalg.norm(given.subspaces.origin, axis=1).max()
    assert np.abs(back.subspaces.basis - given.subspaces.basis).max() < 1e-3
    assert 0 < np.abs(back.subspaces.origin - given.subspaces.origin).max() < 1e-3 * scale
    with h5py.File(path) as file:
        assert file["images/a.jpg/basis"].dtype == np.float16


def test_values_too_large_for_float16_are_refused(path: Path, features: Any):
    given = features()
    large = Subspaces(given.subspaces.origin * 1e6, given.subspaces.basis)
    image = ConcealedFeatures(given.keypoints, large, given.recipe)
    with pytest.raises(InputError, match="'float32'"):
        save(path, {"a.jpg": image}, dtype="float16")
    assert files(path) == []
    save(path, {"a.jpg": image})


def test_the_same_features_give_the_same_bytes(path: Path, features: Any):
    given = {f"{i}.jpg": features(seed=i) for i in range(3)}
    save(path, given)
    before = path.read_bytes()
    save(path, given)
    assert path.read_bytes() == before


def test_names_of_any_kind(path: Path, features: Any, same: Any):
    names = ["a/b/c.jpg", "/", ".", "..", "a b", "ü/é.png", "%2F", "日本", "\udcff", "a\nb", "n" * 1024]
    given = {name: features(seed=i) for i, name in enumerate(names)}
    save(path, given)
    archive = load(path)
    assert list(archive) == sorted(names)
    for name in names:
        same(archive[name], given[name])
    with h5py.File(path) as file:
        assert len(file["images"]) == len(names)


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
    save(tmp_path / "b.h5", load(path))
    assert (tmp_path / "b.h5").read_bytes() == path.read_bytes()
    save(path, load(path))
    same(load(path)["b.jpg"], features(seed=1))


# ---------------------------------------------------------------- nothing clear goes in


@pytest.mark.parametrize("kind", ["clear", "dict", "array", "subspaces", "none"])
def test_only_concealed_features_are_accepted(path: Path, features: Any, kind: str):
    concealed = features()
    given = {
        "clear": Features(concealed.keypoints, np.ones((5, 16), np.float32)),
        "dict": {"keypoints": concealed.keypoints, "descriptors": np.ones((5, 16))},
        "array": np.ones((5, 16), np.float32),
        "subspaces": concealed.subspaces,
        "none": None,
    }[kind]
    with pytest.raises(InputError, match="ConcealedFeatures"):
        save(path, {"a.jpg": given})
    assert files(path) == []


def test_a_clear_recipe_is_refused(path: Path, features: Any):
    points = features(dim=0, recipe="raw")
    with pytest.raises(InputError, match="the clear"):
        save(path, {"a.jpg": points})
    assert files(path) == []


@pytest.mark.parametrize("recipe", ["compress-16", "ninja-sift-1.0"])
def test_points_behind_an_encoder_are_accepted(path: Path, features: Any, same: Any, recipe: str):
    given = features(dim=0, recipe=recipe)
    save(path, {"a.jpg": given})
    same(load(path)["a.jpg"], given)


def test_a_recipe_changed_behind_our_back_is_refused(path: Path, features: Any):
    given = features()
    for recipe in ("raw", "random-3", "compress-16"):
        object.__setattr__(given, "recipe", features(dim=0, recipe="raw").recipe.of(recipe))
        with pytest.raises(InputError, match=r"clear|dimension"):
            save(path, {"a.jpg": given})


@pytest.mark.parametrize("given", [3, None, "concealed"])
def test_what_is_no_mapping_is_refused(path: Path, features: Any, given: Any):
    given = features() if given == "concealed" else given
    with pytest.raises(InputError, match="mapping"):
        save(path, given)


@pytest.mark.parametrize("pair", ["ab", ("a.jpg",), ["a.jpg", None], ("a", "b", "c")])
def test_what_is_no_pair_is_refused(path: Path, pair: Any):
    with pytest.raises(InputError, match="pairs"):
        save(path, [pair])
    assert files(path) == []


@pytest.mark.parametrize("name", ["", "n" * 1025, 3, None, "\ud800"])
def test_bad_names_are_refused(path: Path, features: Any, name: Any):
    with pytest.raises(InputError, match="name"):
        save(path, {name: features()})
    assert files(path) == []


def test_two_images_of_one_name_are_refused(path: Path, features: Any):
    with pytest.raises(InputError, match=r"'a\.jpg'"):
        save(path, [("a.jpg", features()), ("a.jpg", features())])
    assert not path.exists()


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
    save(path.with_name("new.h5"), {"c.jpg": features()}, overwrite=False)


def test_append_adds(path: Path, features: Any, same: Any):
    given = {f"{i}.jpg": features(seed=i) for i in range(6)}
    for name, image in given.items():
        save(path, {name: image}, append=True)
    archive = load(path)
    assert list(archive) == list(given)
    for name in given:
        same(archive[name], given[name])
    assert files(path) == [path.name]
    once = path.with_name("once.h5")
    save(once, given)
    assert once.read_bytes() == path.read_bytes()  # nothing is left behind by six steps
    with h5py.File(path) as file:
        assert list(file["images"]) == list(given)


def test_appending_nothing_leaves_the_file_alone(path: Path, features: Any):
    save(path, {"a.jpg": features()})
    before = path.stat().st_ino
    save(path, {}, append=True)
    assert path.stat().st_ino == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_append_mixes_types(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features()})
    save(path, {"b.jpg": features(seed=1)}, append=True, dtype="float16")
    archive = load(path)
    same(archive["a.jpg"], features())
    assert [header.dtype for header in archive.summary().images] == ["float32", "float16"]


def test_append_refuses_names_that_are_there(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features()})
    with pytest.raises(InputError, match="already"):
        save(path, {"a.jpg": features(seed=1)}, append=True)
    same(load(path)["a.jpg"], features())
    assert files(path) == [path.name]


def test_append_keeps_a_damaged_image_as_it_is(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features(), "b.jpg": features(seed=1)})
    raw = bytearray(path.read_bytes())
    basis = features().subspaces.basis.tobytes()
    raw[raw.index(basis)] ^= 1
    path.write_bytes(raw)
    save(path, {"c.jpg": features(seed=2)}, append=True)
    archive = load(path)
    with pytest.raises(ArchiveError, match="checksum"):
        archive["a.jpg"]
    same(archive["b.jpg"], features(seed=1))
    same(archive["c.jpg"], features(seed=2))


def test_append_to_what_is_no_archive_is_refused(path: Path, features: Any):
    path.write_bytes(b"notes" * 100)
    with pytest.raises(ArchiveError, match="HDF5"):
        save(path, {"a.jpg": features()}, append=True)
    assert path.read_bytes() == b"notes" * 100
    assert files(path) == [path.name]


def test_a_link_to_an_archive_stays_a_link(path: Path, features: Any):
    real = path.with_name("real.h5")
    save(real, {"a.jpg": features()})
    path.symlink_to(real)
    save(path, {"b.jpg": features()})
    assert path.is_symlink()
    assert list(load(real)) == ["b.jpg"]


# ---------------------------------------------------------------- the writer


def test_the_writer_knows_what_is_there(path: Path, features: Any):
    save(path, {"old.jpg": features(count=3)})
    with ArchiveWriter(path, append=True) as writer:
        assert writer.names == ("old.jpg",)
        assert "old.jpg" in writer
        assert "new.jpg" not in writer
        writer.add("new.jpg", features(count=4))
        assert "new.jpg" in writer
        assert len(writer) == 2
        assert writer.names == ("old.jpg", "new.jpg")
        assert [writer.header(name).count for name in writer.names] == [3, 4]
        assert list(load(path)) == ["old.jpg"]  # not before the end
        assert part_of(path).exists()
    assert list(load(path)) == ["new.jpg", "old.jpg"]


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
    assert list(load(path)) == ["a.jpg"]


def test_a_refused_image_does_not_end_the_work(path: Path, features: Any):
    with ArchiveWriter(path) as writer:
        writer.add("a.jpg", features())
        with pytest.raises(InputError):
            writer.add("b.jpg", features(dim=0, recipe="raw"))
        writer.add("c.jpg", features())
    assert list(load(path)) == ["a.jpg", "c.jpg"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("append", [False, True])
def test_an_error_keeps_the_target_and_what_was_written(
    path: Path, features: Any, same: Any, error: type[BaseException], append: bool
):
    save(path, {"old.jpg": features(seed=7)})
    before = path.read_bytes()
    with pytest.raises(error), ArchiveWriter(path, append=append) as writer:  # noqa: PT012
        writer.add("a.jpg", features())
        writer.add("b.jpg", features(seed=1))
        raise error
    assert path.read_bytes() == before
    with ArchiveWriter(path, append=append) as writer:
        assert writer.resumed == ("a.jpg", "b.jpg")
        assert writer.header("b.jpg").count == 5
        assert "a.jpg" in writer
        writer.add("c.jpg", features(seed=2))
    archive = load(path)
    assert list(archive) == ["a.jpg", "b.jpg", "c.jpg", *(["old.jpg"] if append else [])]
    same(archive["b.jpg"], features(seed=1))
    assert files(path) == [path.name]


def test_an_error_before_the_first_image_leaves_nothing(path: Path):
    with pytest.raises(RuntimeError), ArchiveWriter(path):
        raise RuntimeError
    assert files(path) == []


def interrupted(path: Path, features: Any, dtype: str = "float32") -> None:
    with pytest.raises(RuntimeError), ArchiveWriter(path, dtype=dtype) as writer:  # noqa: PT012
        writer.add("a.jpg", features())
        raise RuntimeError


def test_resume_false_and_save_start_afresh(path: Path, features: Any, caplog: pytest.LogCaptureFixture):
    interrupted(path, features)
    with caplog.at_level(logging.WARNING):
        save(path, {"b.jpg": features()})
    assert "discarding" in caplog.text
    assert list(load(path)) == ["b.jpg"]
    interrupted(path, features)
    with ArchiveWriter(path, resume=False) as writer:
        assert writer.names == ()
    assert len(load(path)) == 0


def test_resuming_with_another_type_is_refused(path: Path, features: Any):
    interrupted(path, features, "float16")
    with pytest.raises(ArchiveError, match="'float16'"), ArchiveWriter(path):
        pass
    with ArchiveWriter(path, dtype="float16") as writer:
        assert writer.resumed == ("a.jpg",)


def test_resumed_images_that_the_archive_has_by_now_are_dropped(
    path: Path, features: Any, same: Any, caplog: pytest.LogCaptureFixture
):
    interrupted(path, features)
    shutil.move(part_of(path), path.with_name("aside"))
    save(path, {"a.jpg": features(seed=8)})
    shutil.move(path.with_name("aside"), part_of(path))
    with caplog.at_level(logging.WARNING), ArchiveWriter(path, append=True) as writer:
        assert writer.resumed == ()
    assert "which is in the archive already" in caplog.text
    same(load(path)["a.jpg"], features(seed=8))


def test_one_writer_at_a_time(path: Path, features: Any):
    with ArchiveWriter(path) as writer:
        writer.add("a.jpg", features())
        with pytest.raises(ArchiveError, match="another writer"), ArchiveWriter(path):
            pass
        with pytest.raises(ArchiveError, match="another writer"):
            save(path, {"b.jpg": features()})
        writer.add("c.jpg", features())
    assert list(load(path)) == ["a.jpg", "c.jpg"]


# ---------------------------------------------------------------- where nothing can be written


def test_a_path_without_a_folder_is_refused(tmp_path: Path, features: Any):
    with pytest.raises(ArchiveError, match=r"no folder .*create it"):
        save(tmp_path / "no" / "a.h5", {"a.jpg": features()})


def test_a_folder_in_the_way_is_refused(tmp_path: Path, features: Any):
    with pytest.raises(ArchiveError, match="not a"):
        save(tmp_path, {"a.jpg": features()})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="not a"):
        save(tmp_path / "pipe", {"a.jpg": features()})


def test_a_name_that_is_too_long_is_refused(tmp_path: Path, features: Any):
    with pytest.raises(ArchiveError, match="long"):
        save(tmp_path / ("n" * 253), {"a.jpg": features()})


def test_a_folder_that_is_read_only_is_refused(features: Any):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # nobody: root may write anywhere
        try:
            with pytest.raises(ArchiveError, match="Permission"):
                save(Path(folder) / "a.h5", {"a.jpg": features()})
        finally:
            os.seteuid(user)
        assert os.listdir(folder) == []
        os.chmod(folder, 0o755)


def test_a_full_disk_is_noticed_before_writing(path: Path, features: Any, monkeypatch: pytest.MonkeyPatch):
    free = [10**9, 10**9, 1000]
    usage = type("usage", (), {})
    monkeypatch.setattr(part_module.shutil, "disk_usage", lambda folder: setattr(usage, "free", free.pop(0)) or usage)
    with pytest.raises(ArchiveError, match="1000"):
        save(path, {f"{i}.jpg": features(seed=i) for i in range(3)})
    assert not path.exists()
    monkeypatch.undo()
    with ArchiveWriter(path) as writer:
        assert writer.resumed == ("0.jpg", "1.jpg")


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.errors import ArchiveError
from sfumato.store import ArchiveWriter, load, save
path, limit, append = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "append"
features = [make_features(seed=i, count=20) for i in range(40)]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with ArchiveWriter(path, append=append) as writer:
        for i, image in enumerate(features):
            writer.add(f"{i:02}.jpg", image)
except ArchiveError as problem:
    print(problem)
else:
    print("no error")
"""


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("limit", [60, 20_000, 100_000, 200_000])
def test_a_file_that_may_not_grow(path: Path, features: Any, same: Any, limit: int, append: bool):
    """A limit on the size of files stands for a full disk: writing fails in the middle of a block."""
    if append:
        save(path, {"old.jpg": features(seed=99, count=150)})
    before = path.read_bytes() if append else None
    command = [sys.executable, "-c", LIMITED, Path(__file__).parent, path, str(limit), "append" if append else "new"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    total = 40 * (20 * (16 + 4 * 48) + 1200)
    assert "no error" not in done.stdout
    assert "File too large" in done.stdout
    assert (path.read_bytes() if append else None) == before
    with ArchiveWriter(path, append=append) as writer:
        done_before = len(writer.resumed)
        assert done_before == 0 if limit == 60 else done_before > 0.8 * min(1, limit / total) * 40 - 2
        for i in range(done_before, 40):
            writer.add(f"{i:02}.jpg", features(seed=i, count=20))
    with load(path) as archive:
        assert len(archive) == 40 + append
        for i in range(40):
            same(archive[f"{i:02}.jpg"], features(seed=i, count=20))
    assert files(path) == [path.name]


# ---------------------------------------------------------------- killed and interrupted


ENDLESS = """
import sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.store import ArchiveWriter
features = [make_features(seed=i, count=300, ambient_dim=64) for i in range(10)]
with ArchiveWriter(sys.argv[2]) as writer:
    start = len(writer)
    for i in range(start, 100_000):
        writer.add(f"{i}.jpg", features[i % 10])
        print(i, flush=True)
"""


def start_writing(path: Path, count: int) -> tuple[subprocess.Popen[str], Callable[[], int]]:
    """Start a process that writes until it is stopped; return after ``count`` images."""
    command = [sys.executable, "-c", ENDLESS, str(Path(__file__).parent), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(count)]
    assert all(line.endswith("\n") for line in lines), process.communicate()[1]

    def last() -> int:
        rest = process.stdout.read().splitlines(keepends=True)  # not communicate: readline may hold lines already
        process.communicate(timeout=60)
        return int([line for line in [*lines, *rest] if line.endswith("\n")][-1])

    return process, last


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_process_loses_nothing(path: Path, features: Any, same: Any, how: signal.Signals):
    save(path, {"old.jpg": features()})
    before = path.read_bytes()
    written = 0
    for delay in (0.0, 0.003, 0.011):
        process, last = start_writing(path, 3)
        time.sleep(delay)
        process.send_signal(how)
        written = last() + 1
        assert process.returncode in (-how, 130, 1)
        assert path.read_bytes() == before
    with ArchiveWriter(path) as writer:
        assert written <= len(writer.resumed) <= written + 1
        assert written >= 9
        names = writer.names
    with load(path) as archive:
        assert set(archive) == set(names) == {f"{i}.jpg" for i in range(len(names))}
        for name in names:
            same(archive[name], features(seed=int(name[:-4]) % 10, count=300, ambient_dim=64))
    with h5py.File(path) as file:
        assert len(file["images"]) == len(names)
    assert files(path) == [path.name]


# ---------------------------------------------------------------- many


MANY = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from conftest import make_features
from sfumato.store import load, save

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 1024**2)

image, count = make_features(count=64, ambient_dim=128), 2000
save(sys.argv[2] + ".small", ((f"{i}.jpg", image) for i in range(10)))
sum(len(back) for back in load(sys.argv[2] + ".small").values())
start = peak()
save(sys.argv[2], ((f"{i}.jpg", image) for i in range(count)))
wrote = peak()
assert sum(len(back) for back in load(sys.argv[2]).values()) == 64 * count
print(wrote - start, peak() - start)
"""


def test_many_images_need_memory_for_one(path: Path):
    """200 MB of images; 2,000 names and addresses, not the images, are kept in memory."""
    command = [sys.executable, "-c", MANY, str(Path(__file__).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size > 190e6
    wrote, read = (int(word) for word in done.stdout.split())
    assert wrote < 20
    assert read < 30


def test_an_interrupted_append_goes_on(path: Path, features: Any, same: Any):
    save(path, {"a.jpg": features()})

    def interrupted() -> Any:
        yield "b.jpg", features(seed=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(path, interrupted(), append=True)
    assert list(load(path)) == ["a.jpg"]
    save(path, {"b.jpg": features(seed=1), "c.jpg": features(seed=2)}, append=True)
    with load(path) as archive:
        assert list(archive) == ["a.jpg", "b.jpg", "c.jpg"]
        same(archive["b.jpg"], features(seed=1))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_encoded_points_are_written_read_and_resumed(path: Path, features: Any, same: Any, dtype: str):
    given = {f"{i}.jpg": features(seed=i, dim=0, count=i, recipe="ninja:x@0123456789ab") for i in range(4)}
    with ArchiveWriter(path, dtype=dtype) as writer:
        writer.add("0.jpg", given["0.jpg"])
        writer.add("1.jpg", given["1.jpg"])
    with ArchiveWriter(path, append=True, resume=True, dtype=dtype) as writer:
        assert set(writer.names) == {"0.jpg", "1.jpg"}
        for name in ("2.jpg", "3.jpg"):
            writer.add(name, given[name])
    with load(path) as archive:
        for name, image in given.items():
            assert (archive.header(name).dim, archive[name].subspaces.basis.shape) == (0, (len(image), 0, 16))
            if dtype == "float32":
                same(archive[name], image)
            assert np.abs(archive[name].subspaces.origin - image.subspaces.origin).max(initial=0) < 2e-3
            assert str(archive[name].recipe) == "ninja:x@0123456789ab"


def test_a_cut_archive_of_encoded_points_is_refused(path: Path, features: Any):
    save(path, {"a.jpg": features(dim=0, recipe="ninja:x@0123456789ab")})
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError):
            load(path)
