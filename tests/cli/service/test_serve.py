# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from sfumato.cli.service import serve as module


def test_the_command_becomes_the_server_s_own_program(run_sfumato, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(module.os, "execve", lambda *words: calls.append(words))
    monkeypatch.setenv("SFUMATO_API_KEY", "secret")
    run_sfumato(
        "serve", "--data", tmp_path / "d", "--port", "81", "--behind-proxy", "--engines", "2", "--config", "x.toml"
    )
    ((program, words, environment),) = calls
    assert (program, words[:3]) == (sys.executable, [sys.executable, "-m", "sfumato.server"])
    assert words[3:] == ["--data", str(tmp_path / "d"), "--host", "127.0.0.1", "--port", "81", "--engines", "2",
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


@pytest.mark.slow
def test_an_open_address_without_tls_is_refused(tmp_path):
    words = [sys.executable, "-m", "sfumato", "serve", "--data", str(tmp_path / "d"), "--host", "0.0.0.0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr
    assert not (tmp_path / "d").exists()
