# SPDX-License-Identifier: Apache-2.0
"""Messages that people read when something is wrong; tests/messages.txt holds them, other tests hold on to no sentence.

After a change that is meant: python tests/test_messages.py --update
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import cv2
import numpy as np

import sfumato
from sfumato.errors import SfumatoError
from sfumato.images.samples import sample_image

KNOWN = Path(__file__).resolve().with_name("messages.txt")
HOW = "Meant? Then: python tests/test_messages.py --update"

COMMANDS = (
    "conceal nowhere/ -o x.sfm",
    "conceal empty/ -o x.sfm",
    "conceal notes.txt -o x.sfm",
    "conceal photos/ -o x.sfm --recipe sub-hybird-2",
    "conceal photos/ -o x.sfm --recipe raw",
    "conceal photos/ -o x.sfm --decoys notes.txt",
    "conceal photos/ -o x.sfm --recipe sub-hybrid-2 --decoys notes.txt",
    "conceal photos/ -o x.sfm --recipe ninja:gone.safetensors",
    "conceal photos/ -o x.sfm --descriptor hardtfeat",
    "conceal photos/ -o x.sfm --secret-file weak.key",
    "conceal photos/ -o x.sfm --max-features 0",
    "inspect gone.sfm",
    "inspect notes.txt",
    "match sealed.sfm -o m.h5",
    "match sealed.sfm --retrieval 0 -o m.h5",
    "match sealed.sfm --pairs pairs.txt -o m.h5",
    "match sealed.sfm --exhaustive -o sealed.sfm --overwrite",
    "map sealed.sfm --matches gone.h5 -o model",
    "localize sealed.sfm --map gone -o poses.txt",
    "export hloc sealed.sfm gone.h5 -o hloc",
    "index build notes.txt -o x.index",
    "index search notes.txt sealed.sfm -k 2 -o x.csv",
    "enroll staff.npz --row p7 --gallery gallery.sqlite",
    "verify staff.npz --row p0 --id p0 --gallery gone.sqlite",
    "attack sealed.sfm vertexx",
    "invert gone.png -o x.png",
    "invert photos/ -o x.png --inverter notes.txt",
    "report empty/ -o x.html",
    "push photos/ --place kitchen",
    "push device.key --place kitchen --server http://127.0.0.1:1",
    "push sealed.sfm --place kitchen --server http://maps.example",
    "map sealed.sfm --server http://127.0.0.1:1 --place kitchen",
    "map sealed.sfm -o model --place kitchen",
    "localize sealed.sfm --public x --server http://127.0.0.1:1 --place kitchen",
    "server key create localize --data empty/",
    "server doctor --data empty/",
)


def make_folder(folder: Path) -> None:
    """Write the files that commands are given."""
    for name in ("photos", "empty"):
        (folder / name).mkdir()
    cv2.imwrite(str(folder / "photos" / "a.png"), sample_image("coffee").pixels[:80, :80])
    (folder / "notes.txt").write_text("this is no picture\n")
    (folder / "weak.key").write_text("password")
    (folder / "weak.key").chmod(0o600)
    (folder / "device.key").write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 32, np.uint8)))
    (folder / "device.key").chmod(0o600)
    (folder / "pairs.txt").write_text("a.jpg d.jpg\n")
    rows = np.random.default_rng(0).normal(size=(12, 16))
    np.savez(folder / "staff.npz", embedding=rows[:1], name=["p0"])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    hidden = sfumato.conceal(sfumato.Features(np.full((12, 4), 7.0), rows), "sealed-512", secret=sha256(b"1").digest())
    sfumato.save(folder / "sealed.sfm", {"a.jpg": hidden, "b.jpg": hidden, "c.jpg": hidden})


def calls(folder: Path) -> dict[str, Callable[[], object]]:
    """Calls of the library that are refused."""
    rng = np.random.default_rng(0)
    features = sfumato.Features(np.zeros((5, 4)), rng.normal(size=(5, 128)), sfumato.Extractor("sift"))
    return {
        "Features(4 keypoints, 5 descriptors)": lambda: sfumato.Features(np.zeros((4, 4)), np.zeros((5, 128))),
        "Features(not finite)": lambda: sfumato.Features(np.zeros((1, 4)), np.full((1, 128), np.nan)),
        "conceal(features, random-500)": lambda: sfumato.conceal(features, "random-500"),
        "conceal(features, sub-hybrid-2) without decoys": lambda: sfumato.conceal(features, "sub-hybrid-2"),
        "conceal(features, default) without secret": lambda: sfumato.conceal(features, "default"),
        "load(text)": lambda: sfumato.load(folder / "notes.txt"),
        "load_decoys(text)": lambda: sfumato.load_decoys(folder / "notes.txt"),
        "match(8 dimensions, 9)": lambda: sfumato.match(np.zeros((2, 8)), np.zeros((2, 9))),
        "search.build(kind)": lambda: sfumato.search.build(np.zeros((3, 8)), kind="exakt"),
    }


def message_of(call: Callable[[], object]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except SfumatoError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def collect(folder: Path) -> str:
    """Return every command and call with what it says, without the folder's own name."""
    from typer.testing import CliRunner

    from sfumato.cli.app import app

    make_folder(folder)
    before, key = Path.cwd(), os.environ.get("SFUMATO_KEY")
    os.environ["SFUMATO_KEY"] = str(folder / "device.key")
    os.environ.pop("SFUMATO_SERVER", None)
    os.chdir(folder)
    try:
        texts = {f"sfumato {line}": CliRunner().invoke(app, line.split()).stderr for line in COMMANDS}
        texts |= {name: message_of(call) for name, call in calls(folder).items()}
    finally:
        os.chdir(before)
        os.environ.update({} if key is None else {"SFUMATO_KEY": key})
    parts = [f"{name}\n{text.strip()}\n" for name, text in texts.items()]
    return "\n".join(parts).replace(f"{folder}/", "")


def test_messages_are_the_known_ones(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    assert collect(tmp_path) == KNOWN.read_text(encoding="utf-8"), HOW


def test_every_message_is_one_that_helps():
    blocks = KNOWN.read_text(encoding="utf-8").split("\n\n")
    assert len(blocks) == len(COMMANDS) + 9
    for block in blocks:
        assert "Traceback" not in block
        assert "no error" not in block
        assert len(block.splitlines()) > 1, block


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(HOW)
    with tempfile.TemporaryDirectory() as place:
        KNOWN.write_text(collect(Path(place)), encoding="utf-8")
