# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from sfumato.errors import FileError
from sfumato.files.atomic import file_lock


def test_writers_take_turns(tmp_path):
    path, order = tmp_path / "file", []

    def write(number):
        with file_lock(path):
            order.append(("in", number))
            order.append(("out", number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number for _, number in order[::2]] == [number for _, number in order[1::2]]
    assert not list(tmp_path.iterdir())


def test_nobody_waits_for_ever(tmp_path):
    path = tmp_path / "file"
    with file_lock(path), pytest.raises(FileError, match="changed"), file_lock(path, wait=0.05):
        pass
    with file_lock(path, wait=0.0):
        pass


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match="written"), file_lock(tmp_path / "none" / "file"):
        pass
