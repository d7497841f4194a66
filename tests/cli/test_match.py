# SPDX-License-Identifier: Apache-2.0
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from hashlib import sha256

import numpy as np
import pytest

import sfumato
from sfumato.cli.match import PairOptions
from sfumato.codebooks import codebook_of
from sfumato.matching.codebook import make_codebook
from sfumato.matching.match_file import load_matches
from sfumato.matching.mutual import MatchParams
from sfumato.matching.retrieval import choose_pairs

NAMES = [f"db/{i}.jpg" for i in range(6)]
PAIRS = list(itertools.combinations(NAMES, 2))


def make_archive(path, ambient_dim=16):
    points = np.random.default_rng(99).standard_normal((30, ambient_dim))
    images = {}
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        near = points + 0.1 * rng.standard_normal(points.shape)
        subspaces = sfumato.Subspaces(near, rng.standard_normal((30, 2, ambient_dim)))
        images[name] = sfumato.ConcealedFeatures(rng.random((30, 4)), subspaces, "random-2", sfumato.Extractor("sift"))
    sfumato.save(path, images)
    return path


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_archive(tmp_path_factory.mktemp("match") / "a.sfm")


def spoiled(archive, path):
    """A copy of the archive in which db/1.jpg is damaged."""
    with sfumato.load(archive) as opened:
        raw = opened["db/1.jpg"].code.origin.tobytes()
    content = bytearray(archive.read_bytes())
    content[content.index(raw[:64])] ^= 1
    path.write_bytes(content)
    return path


def test_every_pair_as_by_hand(run_sfumato, archive, tmp_path):
    path = tmp_path / "m.h5"
    done = run_sfumato("match", archive, "--exhaustive", "-o", path)
    with sfumato.load(archive) as opened, load_matches(path) as file:
        assert sorted(file) == PAIRS
        for pair in PAIRS:
            by_hand = sfumato.match(opened[pair[0]], opened[pair[1]])
            assert np.array_equal(file[pair].indices, by_hand.indices)
        total = sum(len(file[pair]) for pair in PAIRS)
    assert f"15 pairs with {total} matches ({total / 15:.1f} per pair, " in done.stdout
    assert "pairs/s)" in done.stdout
    assert str(path) in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert "0 pairs with 0 matches" in run_sfumato("match", archive, "--exhaustive", "-o", path).stdout


def test_lists_and_settings(run_sfumato, archive, tmp_path):
    listing = tmp_path / "pairs.txt"
    listing.write_text("# mine\ndb/3.jpg db/1.jpg\ndb/1.jpg db/3.jpg\ndb/2.jpg db/2.jpg\n")
    path = tmp_path / "m.h5"
    facts = json.loads(run_sfumato("match", archive, "--pairs", listing, "-o", path, "--ratio", 0.9, "--json").stdout)
    assert (facts["pairs"], facts["duplicates"], facts["selves"], facts["skipped"]) == (1, 1, 1, 0)
    with load_matches(path) as file:
        assert list(file) == [("db/3.jpg", "db/1.jpg")]
        assert file.provenance.parameters["ratio"] == 0.9
    assert "ratio 0.9, not ratio 0.95" in run_sfumato("match", archive, "--sequential", 1, "-o", path, code=1).stderr
    done = run_sfumato("match", archive, "--sequential", 1, "-o", path, "--overwrite", "--one-way", "--max-distance", 2)
    assert "5 pairs" in done.stdout
    with load_matches(path) as file:
        assert file.provenance.parameters == {"mutual": False, "ratio": 0.95, "max_distance": 2.0}
        assert len(file["db/0.jpg", "db/1.jpg"]) == 30


@pytest.fixture(scope="module")
def decoys(tmp_path_factory):
    """Decoys of the same kind as the archive."""
    path = tmp_path_factory.mktemp("decoys") / "decoys.npz"
    rows = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)
    sfumato.save_decoys(path, sfumato.Decoys(rows, sfumato.Extractor("sift"), parts=4))
    return path


def test_a_shortlist(run_sfumato, archive, decoys, tmp_path):
    path = tmp_path / "m.h5"
    done = run_sfumato("match", archive, "--retrieval", 2, "--codebook", decoys, "-o", path)
    with sfumato.load(archive) as opened, load_matches(path) as file:
        options = PairOptions(retrieval=2, codebook=decoys)
        expected = choose_pairs(opened, options.choose(opened), options.codebook_for(opened))
        assert sorted(map(sorted, file)) == sorted(map(sorted, expected.pairs))
        assert 6 <= len(list(file)) < 15
        for name in NAMES:
            assert sum(name in pair for pair in file) >= 2
        pair = next(iter(file))
        assert np.array_equal(file[pair].indices, sfumato.match(opened[pair[0]], opened[pair[1]]).indices)
    assert f"{len(expected.pairs)} pairs with" in done.stdout
    facts = json.loads(run_sfumato("match", archive, "--retrieval", 20, "-o", tmp_path / "all.h5", "--json").stdout)
    assert (facts["pairs"], facts["featureless"], facts["unreadable"]) == (
        15,
        [],
        {},
    )  # more than there are: every pair


def test_a_shortlist_leaves_out_what_it_can_not_judge(run_sfumato, archive, decoys, tmp_path):
    damaged = spoiled(archive, tmp_path / "b.sfm")
    empty = sfumato.ConcealedFeatures(
        np.zeros((0, 4)), sfumato.Subspaces(np.zeros((0, 16)), np.zeros((0, 2, 16))), "random-2",
        sfumato.Extractor("sift"),
    )  # fmt: skip
    sfumato.save(damaged, {"empty.jpg": empty}, append=True)
    done = run_sfumato("match", damaged, "--retrieval", 2, "--codebook", decoys, "-o", tmp_path / "m.h5", code=1)
    assert "left out db/1.jpg: cannot read image" in done.stderr
    assert "left out empty.jpg: it has no features" in done.stderr
    assert "2 images left out" in done.stdout
    with load_matches(tmp_path / "m.h5") as file:
        assert {name for pair in file for name in pair} == set(NAMES) - {"db/1.jpg"}


def test_one_image_makes_no_pair(run_sfumato, archive, tmp_path):
    with sfumato.load(archive) as opened:
        sfumato.save(tmp_path / "one.sfm", {"a.jpg": opened[NAMES[0]]})
    done = run_sfumato("match", tmp_path / "one.sfm", "--retrieval", 5, "-o", tmp_path / "m.h5", code=1)
    assert "nothing to match: 1 image makes no pair" in done.stderr


def test_a_codebook_of_another_kind(run_sfumato, archive, tmp_path):
    rows = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    sfumato.save_decoys(tmp_path / "other.npz", sfumato.Decoys(rows, sfumato.Extractor("superpoint")))
    arguments = ("match", archive, "--retrieval", 2, "--codebook", tmp_path / "other.npz", "-o", tmp_path / "m.h5")
    done = run_sfumato(*arguments, code=1)
    assert "image 'db/0.jpg' holds sift, the codebook words of superpoint" in done.stderr


def test_a_codebook_knows_the_parts_of_its_decoys():
    rows = np.abs(np.random.default_rng(0).standard_normal((64, 8))).astype(np.float32)
    permutation = np.random.default_rng(1).permutation(64)
    decoys = sfumato.Decoys(rows, sfumato.Extractor("toy"), permutation, 2)
    codebook = codebook_of(decoys, size=4)
    parts = np.zeros(64, int)
    parts[permutation[32:]] = 1
    assert np.array_equal(codebook.background, make_codebook(rows, decoys.extractor, parts, size=4).background)
    assert codebook.made["decoys"] == decoys.checksum


def test_processes_do_the_same(run_sfumato, archive, tmp_path):
    run_sfumato("match", archive, "--exhaustive", "-o", tmp_path / "one.h5", "--threads", 1)
    run_sfumato("match", archive, "--exhaustive", "-o", tmp_path / "two.h5", "--workers", 2, "--quiet")
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--exhaustive (15 pairs of these 6 images)"),
        (["--exhaustive", "--sequential", "2"], "--exhaustive and --sequential given"),
        (["--sequential", "0"], "sequential:0"),
        (["--pairs", "none.txt"], "none.txt"),
        (["--exhaustive", "--ratio", "7"], "ratio"),
        (["--exhaustive", "--workers", "0"], "--workers"),
        (["--exhaustive", "--workers", "2", "--dask", "tcp://127.0.0.1:1"], "give one of the two"),
        (["--exhaustive", "--dask-key", "k"], "need --dask"),
        (["--exhaustive", "--retrieval", "2"], "--exhaustive and --retrieval given"),
        (["--exhaustive", "--codebook", "c.npz"], "--codebook is for --retrieval"),
        (["--retrieval", "0"], "votes:0"),
        (["--retrieval", "2"], "has 16 dimensions, the codebook 128"),
        (["--retrieval", "2", "--codebook", "none.npz"], "no such file"),
    ],
)
def test_mistakes(run_sfumato, archive, tmp_path, arguments, message):
    done = run_sfumato("match", archive, "-o", tmp_path / "m.h5", *arguments, code=1)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_names_that_are_not_there_are_told_at_once(run_sfumato, archive, tmp_path):
    (tmp_path / "pairs.txt").write_text("db/0.jpg 1.jpg\nxxxx db/7.jpg\n")
    done = run_sfumato("match", archive, "--pairs", tmp_path / "pairs.txt", "-o", tmp_path / "m.h5", code=1)
    assert "3 of the images" in done.stderr
    assert "did you mean 'db/1.jpg'" in done.stderr


def test_a_damaged_image_costs_its_pairs_only_and_the_exit_code_tells(run_sfumato, archive, tmp_path):
    damaged = spoiled(archive, tmp_path / "b.sfm")
    for extra in ((), ("--workers", "2")):
        path = tmp_path / f"m{len(extra)}.h5"
        done = run_sfumato("match", damaged, "--exhaustive", "-o", path, *extra, code=1)
        assert "5 pairs not matched: cannot read image 'db/1.jpg'" in done.stderr
        assert "10 pairs with" in done.stdout
        assert "5 failed" in done.stdout
        with load_matches(path) as file:
            assert sorted(file) == [pair for pair in PAIRS if "db/1.jpg" not in pair]
    (tmp_path / "pairs.txt").write_text("db/0.jpg db/1.jpg\n")
    done = run_sfumato("match", damaged, "--pairs", tmp_path / "pairs.txt", "-o", tmp_path / "n.h5", code=1)
    assert "nothing was written" in done.stdout
    assert not (tmp_path / "n.h5").exists()


def test_distances_that_say_nothing_are_warned_about(run_sfumato, tmp_path):
    path = make_archive(tmp_path / "v.sfm", ambient_dim=4)
    done = run_sfumato("match", path, "--exhaustive", "-o", tmp_path / "m.h5")
    assert "warning: subspaces of dimension 2 and 2 meet in R^4" in done.stderr


def test_no_input_is_ever_the_output(run_sfumato, archive, tmp_path):
    own, listing = tmp_path / "a.sfm", tmp_path / "pairs.txt"
    own.write_bytes(archive.read_bytes())
    listing.write_text("db/0.jpg db/1.jpg\n")
    (tmp_path / "link.h5").symlink_to(own)
    for output in (own, tmp_path / "link.h5"):
        done = run_sfumato("match", own, "--exhaustive", "-o", output, "--overwrite", code=1)
        assert f"error: cannot write to {output}: it is the archive" in done.stderr
    done = run_sfumato("match", own, "--pairs", listing, "-o", listing, "--overwrite", code=1)
    assert "it is the list of pairs" in done.stderr
    assert own.read_bytes() == archive.read_bytes()
    assert listing.read_text() == "db/0.jpg db/1.jpg\n"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_device_that_is_not_there(run_sfumato, archive, decoys, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.h5"
    run_sfumato("match", archive, "--sequential", 1, "-o", path)
    before = path.read_bytes()
    for choice in (["--exhaustive", "--overwrite"], ["--retrieval", 2, "--codebook", decoys]):
        done = run_sfumato("match", archive, "-o", path, "--device", "cuda:99", *choice, code=1)
        assert done.stderr.startswith("error: device: 'cuda:99'")
        assert len(done.stderr.splitlines()) == 1
        assert not done.stdout
    assert path.read_bytes() == before


def test_an_old_file_is_not_shown_as_a_result(run_sfumato, archive, tmp_path):
    (tmp_path / "pairs.txt").write_text("db/0.jpg db/1.jpg\n")
    arguments = ("--pairs", tmp_path / "pairs.txt", "-o", tmp_path / "m.h5")
    assert run_sfumato("match", archive, *arguments).stdout.startswith("1 pair with ")
    assert ", 1 pair already there: " in run_sfumato("match", archive, *arguments).stdout
    damaged = spoiled(archive, tmp_path / "b.sfm")
    done = run_sfumato("match", damaged, *arguments, "--overwrite", code=1)
    assert "1 pair not matched: " in done.stderr
    assert done.stdout.endswith("1 failed: nothing was written\n")


STOPPED = """
import os, signal
from sfumato.cli import main
from sfumato.matching import match_writer

real = match_writer.pair_arrays
def pair_arrays(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return real(*arguments)
match_writer.pair_arrays = pair_arrays
main()
"""


def test_ctrl_c_while_the_file_is_written(run_sfumato, archive, tmp_path):
    path = tmp_path / "m.h5"
    command = [sys.executable, "-c", STOPPED, "match", str(archive), "--exhaustive", "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("interrupted: ")
    assert os.listdir(tmp_path) == ["m.h5.part"]
    facts = json.loads(run_sfumato("match", archive, "--exhaustive", "-o", path, "--json").stdout)
    assert (facts["skipped"], facts["pairs"]) == (15, 0)
    with load_matches(path) as file:
        assert sorted(file) == PAIRS


BLOCKED = """
import signal, sys
from sfumato.cli import main
from sfumato.matching import match_writer
from sfumato.matching.batch import ArchiveImages

match_writer.COMMIT_SECONDS = float(sys.argv.pop())
real, count = ArchiveImages.match, 0
def match(self, pair, params):
    global count
    count += 1
    if count > 5:
        print("blocked", flush=True)
        signal.pause()
    return real(self, pair, params)
ArchiveImages.match = match
main()
"""


def start_and_block(archive, path, seconds):
    """Run the command until five pairs are done; it then waits for a signal. Pairs are kept every so many seconds."""
    command = [sys.executable, "-c", BLOCKED, "match", str(archive), "--exhaustive", "-o", str(path), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "blocked\n", process.communicate()
    return process


def test_killed_in_the_middle_and_run_again(run_sfumato, archive, tmp_path):
    run_sfumato("match", archive, "--exhaustive", "-o", tmp_path / "all.h5")
    path = tmp_path / "m.h5"
    process = start_and_block(archive, path, 0)
    process.kill()
    process.communicate()
    assert not path.exists()
    assert (tmp_path / "m.h5.part").exists()
    facts = json.loads(run_sfumato("match", archive, "--exhaustive", "-o", path, "--json").stdout)
    assert (facts["skipped"], facts["pairs"]) == (5, 10)
    assert path.read_bytes() == (tmp_path / "all.h5").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["all.h5", "m.h5"]


def test_ctrl_c_keeps_what_was_matched_and_a_second_run_is_refused(run_sfumato, archive, tmp_path):
    path = tmp_path / "m.h5"
    process = start_and_block(archive, path, 1000)
    done = run_sfumato("match", archive, "--exhaustive", "-o", path, code=1)
    assert "another process" in done.stderr
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=100)[1]
    assert process.returncode == 130
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    facts = json.loads(run_sfumato("match", archive, "--exhaustive", "-o", path, "--json").stdout)
    assert (facts["skipped"], facts["pairs"]) == (5, 10)


@pytest.mark.slow
def test_a_cluster_does_the_same(run_sfumato, archive, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed = pytest.importorskip("distributed", reason="needs the extra 'cluster'")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster:  # fmt: skip
            address = cluster.scheduler_address
            run_sfumato("match", archive, "--exhaustive", "-o", tmp_path / "there.h5", "--dask", address)
    run_sfumato("match", archive, "--exhaustive", "-o", tmp_path / "here.h5")
    assert (tmp_path / "there.h5").read_bytes() == (tmp_path / "here.h5").read_bytes()


def test_defaults_are_those_of_the_library(run_sfumato, archive):
    shown = run_sfumato("match", "--help").stdout
    for word in (
        "--pairs",
        "--exhaustive",
        "--sequential",
        "--retrieval",
        "--codebook",
        "--one-way",
        "--workers",
        "--dask",
        "Example",
    ):
        assert word in shown
    assert MatchParams().mutual
    with sfumato.load(archive) as opened:
        assert PairOptions(sequential=2).choose(opened) == "sequential:2"


def test_the_first_example_works_on_the_default_recipe_and_so_does_retrieval(run_sfumato, tmp_path):
    import typer

    from sfumato.cli.app import app

    command = typer.main.get_command(app).commands["match"]
    lines = [line for line in command.help.splitlines() if line.startswith("Example: ")]
    points = np.random.default_rng(0).normal(size=(12, 16))
    features = sfumato.Features(np.full((12, 4), 7.0), points / np.linalg.norm(points, axis=1, keepdims=True))
    hidden = sfumato.conceal(features, secret=sha256(b"1").digest())
    assert hidden.recipe.is_sealed
    sfumato.save(tmp_path / "private.sfm", {"a.jpg": hidden, "b.jpg": hidden, "c.jpg": hidden})
    run_sfumato(*lines[0].split()[2:], cwd=tmp_path)
    (tmp_path / "matches.h5").unlink()
    run_sfumato("match", tmp_path / "private.sfm", "--retrieval", 1, "-o", tmp_path / "matches.h5")
