# SPDX-License-Identifier: Apache-2.0
import json
import os

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError
from sfumato.geometry.cameras import default_camera, write_cameras, write_poses
from sfumato.geometry.outputs import (
    HLOC_FEATURES,
    HLOC_MATCHES,
    HLOC_PAIRS,
    POSES,
    PUBLIC,
    TABLE,
    map_paths,
    refuse_existing,
)
from sfumato.publish import _write_public
from sfumato.types.concealed import PublicPoints
from sfumato.types.scene import Pose

KINDS = {
    "poses": POSES, "table": TABLE, "features": HLOC_FEATURES, "matches": HLOC_MATCHES, "pairs": HLOC_PAIRS,
    "public": PUBLIC,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each kind, and an archive, a list of cameras, a JSON of somebody, and bytes."""
    folder = tmp_path_factory.mktemp("kinds")
    write_poses(folder / "poses", {"a.jpg": Pose(np.eye(3), np.zeros(3))})
    (folder / "table").write_text(json.dumps({"params": {}, "queries": {}}))
    with h5py.File(folder / "features", "w") as file:
        file["deep/a.jpg/keypoints"] = np.zeros((1, 2))
    with h5py.File(folder / "matches", "w") as file:
        file["a.jpg/b.jpg/matches0"] = np.zeros(1, np.int32)
    (folder / "pairs").write_text("a.jpg b.jpg\n")
    _write_public(folder / "public", [("a.jpg", PublicPoints([1], np.ones((1, 8))))])
    hidden = sfumato.ConcealedFeatures(
        np.zeros((1, 4)), sfumato.Subspaces(np.ones((1, 8)), np.eye(8)[None, :2]), "random-2", image_size=(9, 9)
    )
    sfumato.save(folder / "archive", {"a.jpg": hidden})
    write_cameras(folder / "cameras", {"a.jpg": default_camera((640, 480))})
    (folder / "json").write_text("[1, 2, 3]")
    (folder / "bytes").write_bytes(bytes(range(256)) * 4)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_same_kind_is_replaced_and_only_if_asked(files, kind):
    for path in sorted(files.iterdir()):
        with pytest.raises(FileError, match="exists"):
            refuse_existing(path, KINDS[kind], {}, overwrite=False)
        if path.name == kind:
            refuse_existing(path, KINDS[kind], {}, overwrite=True)
            continue
        with pytest.raises(FileError, match="replaced"):
            refuse_existing(path, KINDS[kind], {}, overwrite=True)


def test_what_is_read_is_never_replaced(files, tmp_path):
    os.link(files / "poses", tmp_path / "linked") if os.stat(files).st_dev == os.stat(tmp_path).st_dev else None
    (tmp_path / "poses").symlink_to(files / "poses")
    for path in (files / "poses", tmp_path / "poses", *tmp_path.glob("linked")):
        with pytest.raises(FileError, match="list"):
            refuse_existing(path, POSES, {"the list": files / "poses", "nothing": None}, overwrite=True)


def test_new_and_empty_files_will_do(tmp_path):
    refuse_existing(tmp_path / "new", POSES, {"a": tmp_path / "none"}, overwrite=False)
    (tmp_path / "empty").touch()
    refuse_existing(tmp_path / "empty", PUBLIC, {}, overwrite=True)


def test_a_device_is_no_file():
    with pytest.raises(FileError, match="no file"):
        refuse_existing("/dev/null", POSES, {}, overwrite=True)


def test_a_map_is_never_replaced(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    (tmp_path / "model" / "images.bin").touch()  # even an empty one
    refuse_existing(tmp_path / "model" / "poses.txt", POSES, map_paths(tmp_path / "model"), overwrite=True)
    with pytest.raises(FileError, match=r"images\.bin"):
        refuse_existing(tmp_path / "link" / "images.bin", POSES, map_paths(tmp_path / "model"), overwrite=True)
