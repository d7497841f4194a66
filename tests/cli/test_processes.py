# SPDX-License-Identifier: Apache-2.0
"""Every command once as a process of its own, on small files; all other tests run commands in their own process."""

import logging
import os
import shutil
import signal
import sys
import warnings

import cv2
import numpy as np
import pytest

from sfumato.cli.app import COMMANDS
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.geometry.cameras import write_cameras
from sfumato.images.samples import sample_image

FEW = "--max-features 300 --extractor opencv"
FACES = "--gallery gallery.sqlite"
DECOYS = "--decoys others.npz --decoy-count 100 -o faces-out"
TINY = "--limit 1 --max-features 40 --workers 1"
PAIRS = "--pairs pairs --pair-features 100"
SIZES = "--decoy-faces 50 --attacker-faces 150 --attacked-faces 100"

LINES = {
    "local": f"""
        extract room/images -o clear.h5 {FEW}
        conceal room/images -o private.sfm --recipe random-2 {FEW}
        inspect private.sfm
        cameras private.sfm -o guessed.txt
        match private.sfm --exhaustive -o matches.h5
        map private.sfm --matches matches.h5 --cameras cameras.txt -o model
        localize private.sfm --map model --cameras cameras.txt -o poses.txt
        export hloc private.sfm matches.h5 -o hloc
        export colmap private.sfm matches.h5 -o database.db
        help recipes
        conceal room/images -o sealed.sfm {FEW}
        match sealed.sfm --exhaustive -o pairs.h5
        release sealed.sfm --matches pairs.h5 --photos room/images --pictures seen
        export public clear.h5 --map model -o public-points.sqlite --yes
        index build private.sfm -o x.index --kind exact
        index remove x.index view-0000.png
        conceal room/images/view-0000.png -o more.sfm --recipe random-2 {FEW}
        index add x.index more.sfm
        index search x.index more.sfm -k 2 -o nearest.csv
        attack private.sfm vertex --clear clear.h5
        decoys build room/images -o decoys.safetensors --size 64 {FEW}
        invert photos/coffee.png -o seen.png
        audit photos/coffee.png --recipes raw --max-features 40 --side 96 -o report.html
        report report-data -o figures.html
    """,
    "faces": f"""
        enroll staff.npz {FACES}
        calibrate strangers.npz {FACES} --rate 0.01
        renew staff.npz --row p1 {FACES}
        verify staff.npz --row p1 --id p1 {FACES}
        enroll staff.npz --gallery shared.sqlite --shared-key
        identify staff.npz --row p0 --gallery shared.sqlite -k 2
        revoke p0 {FACES}
        evaluate faces pairs.npz --recipes raw {DECOYS}
        evaluate releases pairs.npz --count 1,2 --recipes hybrid-2 {DECOYS}
        evaluate protection pairs.npz --recipes hybrid-2 {DECOYS}
        evaluate attributes others.npz --recipes raw --attribute gender {SIZES} -o faces-out
    """,
    "evaluate": f"""
        evaluate homography pairs --recipes raw --max-features 100 -o out
        evaluate map room --recipes raw --max-features 500 --extractor opencv -o out
        evaluate localize room --recipes raw --max-features 500 --extractor opencv -o out
        evaluate leakage photos --recipes raw {TINY} -o out
        evaluate patches photos --recipes raw --points 60 --pairs 100 --queries 20 --distractors 50 -o out
        evaluate search photos --recipe random-2 --queries 20 --efforts 0.1 --methods exact -o out
        evaluate tradeoff photos --recipes raw,random-2 --attacks vertex {TINY} {PAIRS} -o out
        evaluate frontier photos --recipes random-2 --keyed {TINY} {PAIRS} --no-room -o out
    """,
    "train": """
        train pairs room/images -o pairs-sift.npz --most 100 --extractor opencv
        train compress room/images -o mine.safetensors --workers 1 --extractor opencv
        train inverter room/images -o inverter.safetensors --steps 1 --refine-steps 0 --max-features 40
        train decoder room/images -o decoder.safetensors --recipe sub-hybrid-2 --steps 5 --hidden 16 --extractor opencv
        train ninja --patches pairs-sift.npz --steps 3 --adversary decoder -o ninja.safetensors
    """,
    "service": f"""
        serve --help
        push room/images --place den {FEW}
        map --place den --mapper incremental
        jobs --follow
        pull --place den -o pulled
        localize room/images/view-0000.png --place den
        server place create yard
        server place list
        server place delete yard --yes
        server key create localize --place den
        server key list
        server key revoke KEY
        server doctor
    """,
}  # fmt: skip
"""Command lines by folder; each may use what those before it wrote."""


def lines_of(name):
    return [line.split() for line in LINES[name].strip().splitlines()]


def words_of(line):
    """The command that a line calls."""
    return next(command.words for command in COMMANDS if line[: len(command.words.split())] == command.words.split())


@pytest.fixture
def folder(small_room, tmp_path):
    """Small photos, a room, sequences, and embeddings of made-up people."""
    shutil.copytree(small_room, tmp_path / "room")
    write_cameras(tmp_path / "cameras.txt", read_posed_folder(tmp_path / "room").cameras)
    (tmp_path / "photos").mkdir()
    for name in ("coffee", "chelsea"):
        small = cv2.resize(sample_image(name).pixels[:, :, ::-1], (220, 165))
        assert cv2.imwrite(str(tmp_path / "photos" / f"{name}.png"), small)
    rng = np.random.default_rng(0)
    people = np.arange(30)
    rows = np.repeat(rng.normal(size=(30, 48)), 3, axis=0) + 0.4 * rng.normal(size=(90, 48))
    names = [f"person{number}_{photo:04d}" for number in people for photo in (1, 2, 3)]
    pairs = {"left": np.tile(3 * people, 2), "right": np.r_[3 * people + 1, (3 * people + 4) % 90]}
    facts = {"name": names, "same": np.arange(60) < 30, "fold": np.tile(people % 3, 2), **pairs}
    np.savez(tmp_path / "pairs.npz", embedding=rows.astype(np.float32), **facts)
    others = rng.normal(size=(300, 48)).astype(np.float32)
    np.savez(tmp_path / "others.npz", embedding=others, gender=np.arange(300) % 2)
    np.savez(tmp_path / "staff.npz", embedding=others[:3], name=["p0", "p1", "p2"])
    np.savez(tmp_path / "strangers.npz", embedding=others[100:160], name=[f"s{row}" for row in range(60)])
    return tmp_path


@pytest.fixture
def server_key(live_server, monkeypatch):
    """A live server in the environment, and the id of a key of it that can be revoked."""
    from sfumato.client import Client

    monkeypatch.setenv("SFUMATO_SERVER", live_server.url)
    monkeypatch.setenv("SFUMATO_API_KEY", live_server.key)
    with Client(live_server.url, live_server.key) as client:
        return client.make_key(["metrics"])[4:12]


SLOW = ("evaluate", "faces", "train", "local", "service")
"""Chains that take ten seconds and more."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LINES]
)
def test_commands_as_processes(run_sfumato, folder, small_sequences, name, request):
    if name == "train":
        pytest.importorskip("torch")
    key = request.getfixturevalue("server_key") if name == "service" else ""
    shutil.copytree(small_sequences, folder / "pairs")
    for words in lines_of(name):
        line = [key if word == "KEY" else word for word in words]
        done = run_sfumato(*line, cwd=folder, real=True)
        assert done.stdout.strip(), line
        assert "Traceback" not in done.stderr, line


def test_no_command_is_left_out():
    assert {words_of(line) for name in LINES for line in lines_of(name)} == {command.words for command in COMMANDS}


def test_a_command_says_the_same_in_this_process_and_leaves_it_as_it_was(run_sfumato, folder):
    def state():
        root = logging.getLogger()
        facts = dict(os.environ), os.getcwd(), list(sys.argv), warnings.formatwarning, warnings.showwarning
        return facts, list(warnings.filters), list(root.handlers), root.level, signal.getsignal(signal.SIGINT)

    before = state()
    for code, line in (
        (0, "-v conceal photos -o {}.sfm --recipe random-2 --evaluation-seed 4"),
        (1, "inspect {}.h5"),
    ):
        said = []
        for real in (True, False):
            done = run_sfumato(*line.format(f"made-{real}").split(), cwd=folder, code=code, real=real)
            said.append([text.replace(f"made-{real}", "made") for text in (done.stdout, done.stderr)])
        assert said[0] == said[1]
        assert code or "warning: " in said[0][1]
    assert state() == before
