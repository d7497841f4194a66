# SPDX-License-Identifier: Apache-2.0
import logging
import os
import signal
import subprocess
import sys
import time
import warnings

import psutil
import pytest

from sfumato.errors import InputError, MissingDependency, WorkerError
from sfumato.matching import executors
from sfumato.matching.executors import TlsFiles, dask_cluster, local_processes


def test_processes_of_this_machine():
    with local_processes(2) as pool:
        assert pool.submit(os.getpid).result() != os.getpid()
    with pytest.raises(RuntimeError):
        pool.submit(os.getpid)
    with pytest.raises(InputError, match="workers"), local_processes(0):
        pass


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_work_under_way_does_not_outlive_an_error():
    pids = []

    def interrupted():
        with local_processes(1) as pool:
            pids.append(pool.submit(os.getpid).result())
            pool.submit(time.sleep, 10_000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running(pids[0])


PARENT = """
import os, signal
from sfumato.matching.executors import local_processes
if __name__ == "__main__":
    with local_processes(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        signal.pause()
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(3000):
        if not is_running(worker):
            break
        time.sleep(0.02)
    assert not is_running(worker)


@pytest.fixture
def distributed(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("distributed", reason="needs the extra 'cluster'")
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        monkeypatch.setattr(executors, "PATIENCE", 0.5)
        yield found


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingDependency, match=r"sfumato\[cluster\]"), dask_cluster("tcp://127.0.0.1:8786"):
        pass


def test_no_scheduler_answers(distributed):
    with pytest.raises(WorkerError, match="scheduler"), dask_cluster("tcp://127.0.0.1:1"):
        pass
    with pytest.raises(WorkerError, match="nonsense"), dask_cluster("nonsense://here"):
        pass


def test_certificates_need_tls(distributed):
    with pytest.raises(InputError, match="tls://"), dask_cluster("tcp://127.0.0.1:1", TlsFiles(key="k")):
        pass


@pytest.mark.parametrize(
    ("address", "warned"),
    [("tcp://cluster.example:8786", 1), ("10.0.0.1:8786", 1), ("tcp://localhost:1", 0), ("tls://far.example:1", 0)],
)
def test_plain_connections_to_other_machines_are_warned_about(distributed, monkeypatch, address, warned):
    def refuse(*_args, **_kwargs):
        raise OSError("nobody there")

    monkeypatch.setattr(distributed, "Client", refuse)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(WorkerError), dask_cluster(address):
            pass
    assert len([entry for entry in caught if "not encrypted" in str(entry.message)]) == warned


def test_a_cluster_with_certificates(distributed, tmp_path, monkeypatch):
    pytest.importorskip("cryptography", reason="makes the certificates of this test")
    monkeypatch.setattr(executors, "PATIENCE", 20)
    security = distributed.Security.temporary()
    files = {}
    for name, text in (
        ("ca", security.tls_ca_file),
        ("cert", security.tls_client_cert),
        ("key", security.tls_client_key),
    ):
        files[name] = tmp_path / name
        files[name].write_text(text)
    tls = TlsFiles(authority=str(files["ca"]), certificate=str(files["cert"]), key=str(files["key"]))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, host="tls://127.0.0.1", security=security,
        dashboard_address=None, silence_logs=logging.CRITICAL,
    ) as cluster:  # fmt: skip
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with dask_cluster(address, tls) as (executor, cores):
            assert cores == 1
            assert executor.submit(sum, [1, 2]).result() == 3
        monkeypatch.setattr(executors, "PATIENCE", 0.5)
        with pytest.raises(WorkerError), dask_cluster(address):
            pass
