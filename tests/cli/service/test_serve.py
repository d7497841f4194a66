# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

pytest.importorskip("httpx2")

import sfumato
from sfumato.cli.service import serve as module
from sfumato.client import Client
from sfumato.client.names import NameTable
from sfumato.errors import ServerError


def test_the_command_becomes_the_server_s_own_program(run_sfumato, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(module.os, "execve", lambda *words: calls.append(words))
    monkeypatch.setenv("SFUMATO_API_KEY", "secret")
    run_sfumato(
        "serve", "--data", tmp_path / "d", "--port", "81", "--behind-proxy", "--engines", "2", "--config", "x.toml"
    )
    ((program, words, environment),) = calls
    assert (program, words[:4]) == (sys.executable, [sys.executable, "-P", "-m", "sfumato.server"])
    assert words[4:] == ["--data", str(tmp_path / "d"), "--host", "127.0.0.1", "--port", "81", "--engines", "2",
                         "--config", "x.toml", "--behind-proxy"]  # fmt: skip
    assert not {"SFUMATO_API_KEY", "SFUMATO_KEY", "SFUMATO_SERVER"} & environment.keys()
    assert environment["PATH"] == os.environ["PATH"]


def test_without_the_extra_one_line_names_it(run_sfumato, monkeypatch, tmp_path):
    monkeypatch.setattr("sfumato.cli.service.admin.find_spec", lambda name: None)
    for words in (("serve", "--data", tmp_path / "d"), ("server", "doctor", "--data", tmp_path)):
        assert "'sfumato[server]'" in run_sfumato(*words, code=1).stderr


def test_without_the_extra_of_clients_one_line_names_it(run_sfumato, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.setenv("SFUMATO_API_KEY", f"sfm_{'a' * 8}_{'b' * 43}_{'c' * 6}")
    assert "'sfumato[client]'" in run_sfumato("jobs", "--server", "http://127.0.0.1:1", code=1).stderr


def test_a_real_server_starts_prints_its_key_once_and_stops(live, tmp_path):
    words = [sys.executable, "-m", "sfumato", "serve", "--data", str(tmp_path / "d"), "--port", str(live.free_port())]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout.readline().startswith("Sfumato listens at http://127.0.0.1:")
        assert " sfm_" in process.stdout.readline()
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            assert b"sfumato.server" in file.read().split(b"\0")
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait(30)


def test_the_help_shows_the_table_of_limits(run_sfumato):
    assert "[limits]" in run_sfumato("serve", "--help").stdout


STRAYS = ("h11", "numba", "pycolmap", "queue", "sqlalchemy", "uvicorn")


@pytest.fixture
def among_strays(data, live, mapped_place, tmp_path):
    """A server on a copy of the live one's data where a map is damaged, started in a folder of stray Python files.

    Gives its address, the file that strays write to, and its log.
    """
    folder, marker, log = tmp_path / "folder", tmp_path / "marker", tmp_path / "log"
    folder.mkdir()
    for name in STRAYS:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\nraise SystemExit")
    for path in (data / "maps").glob(f"{NameTable().place_id(mapped_place)}/*/model/landmarks.sfm"):
        path.write_bytes(b"")
    port, source = live.free_port(), Path(sfumato.__file__).parents[1]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sfumato", "serve", "--data", str(data), "--port", str(port)],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=errors,
            env={"NUMBA_CACHE_DIR": "", **os.environ, "PYTHONPATH": str(source)},
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}", marker, log
    finally:
        process.terminate()
        process.wait(30)


def problems_when(client, is_over):
    """What a server says of itself, as soon as a condition on that holds."""
    for _ in range(600):
        try:
            problems = client.problems()
        except ServerError:
            problems = ["not there yet"]
        if is_over(problems):
            return problems
        time.sleep(0.1)
    raise AssertionError(problems)


def test_a_server_loads_nothing_from_its_working_folder_and_tells_of_a_damaged_map(
    among_strays, at_server, mapped_place, scene
):
    url, marker, log = among_strays
    with Client(url, at_server.key) as client:
        problems = problems_when(client, lambda problems: not any("engines" in one or "yet" in one for one in problems))
        assert len(problems) == 1
        assert problems[0].startswith("1 of the current maps ")
        place = client.place(mapped_place)
        with pytest.raises(ServerError, match="damaged") as caught:
            place.localize(scene.query, scene.camera)
        assert (caught.value.status, caught.value.code) == (500, "damaged_map")
        place.build_map(mapper="incremental", tries=1).wait()
        problems_when(client, lambda problems: not problems)
        assert place.localize(scene.query, scene.camera).pose is not None
    assert not marker.exists()
    line = next(line for line in log.read_text().splitlines() if "a map cannot be opened" in line)
    facts = json.loads(line)
    assert len(facts["map"]) > 32
    assert facts["files"] == ["model/landmarks.sfm"]


@pytest.mark.slow
def test_an_open_address_without_tls_is_refused(tmp_path):
    words = [sys.executable, "-m", "sfumato", "serve", "--data", str(tmp_path / "d"), "--host", "0.0.0.0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr
    assert not (tmp_path / "d").exists()
