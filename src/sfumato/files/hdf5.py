# SPDX-License-Identifier: Apache-2.0
"""HDF5 files, read and written in a process of their own, because libhdf5 does not survive damage and full disks.

``Hdf5Reader`` is for files of unknown origin: a file that ends its process, or takes more time or memory than one of
its size should, is a FileError here. Links, data of other files, packing other than gzip and arrays larger than the
file are refused. ``new_hdf5`` writes. Knows no format that is kept in HDF5, and never imports h5py: that is for
``hdf5_worker``.
"""

import json
import math
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.atomic import new_file

SIGNATURE = b"\x89HDF\r\n\x1a\n"
WORKER = Path(__file__).with_name("hdf5_worker.py")
MEMORY_BYTES, MEMORY_PER_BYTE = 512 * 2**20, 4
"""Memory of the process that reads: this much, and this many times the size of the file."""
LARGEST_RATIO, FREE_BYTES = 32, 2**20
"""An array is at most this many times as large as the file, and a megabyte."""
SECONDS, SECONDS_PER_BYTE = 60.0, 1e-7
"""Time for one answer."""
GROUPS_AT_ONCE = 500

Arrays = dict[str, NDArray[Any]]


class Member(NamedTuple):
    """One member of a group; ``kind`` is group, array, link or other.

    ``detail`` is the shape of an array, and the address of a group, by which one that is in itself is recognised.
    """

    name: str
    kind: str
    detail: Any


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class GroupContent:
    """Arrays of a group by name, the reasons why others cannot be read, and its attributes: texts, or None."""

    arrays: Arrays
    problems: Mapping[str, str]
    texts: Mapping[str, str | None] = field(default_factory=dict)

    def array(self, name: str) -> NDArray[Any]:
        """Return an array; raises InputError if it is missing, or with the reason why it cannot be read."""
        if name not in self.arrays:
            raise InputError(self.problems.get(name, f"{name} is missing"))
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays or name in self.problems


class _Worker:
    """A running process of ``hdf5_worker``, and the messages to and from it."""

    def __init__(self, arguments: Sequence[str], descriptor: int) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "HDF5_PLUGIN_PRELOAD": "::"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, pass_fds=(descriptor,), env=environment, start_new_session=True,
        )  # fmt: skip
        self.stop = weakref.finalize(self, _stop, self.process, os.getpid())

    def send(self, message: Mapping[str, Any], arrays: Iterable[NDArray[Any]] = ()) -> None:
        """Send a message; raises BrokenPipeError if the process is no more."""
        raw, pipe = json.dumps(message).encode("ascii"), self.process.stdin
        assert pipe is not None
        pipe.write(len(raw).to_bytes(8, "little") + raw)
        for array in arrays:
            pipe.write(array.reshape(-1).data.cast("B") if array.size else b"")
        pipe.flush()

    def receive(self, largest: int, seconds: float | None) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Wait for a message and its arrays, none larger than ``largest`` bytes, as long as it takes if None.

        Raises EOFError if the process ended, TimeoutError if it took too long, ValueError if it sent nonsense.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        size = int.from_bytes(self._read(8, deadline), "little")
        if size > largest:
            raise ValueError("a message that is too long")
        message: dict[str, Any] = json.loads(bytes(self._read(size, deadline)))
        arrays = []
        for _, dtype, shape in message.get("arrays", ()):
            if dtype is None:
                continue
            kind = np.dtype(dtype)
            if kind.kind not in "iuf" or math.prod(shape) * kind.itemsize > largest:
                raise ValueError("an array that is too large")
            arrays.append(np.frombuffer(self._read(math.prod(shape) * kind.itemsize, deadline), kind).reshape(shape))
        return message, arrays

    def _read(self, size: int, deadline: float | None) -> bytearray:
        pipe, data, place = self.process.stdout, bytearray(size), 0
        assert pipe is not None
        waiter = select.poll()
        waiter.register(pipe.fileno(), select.POLLIN)
        while place < size:
            if not waiter.poll(None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))):
                raise TimeoutError
            count = os.readv(pipe.fileno(), [memoryview(data)[place : place + 2**30]])
            if not count:
                raise EOFError
            place += count
        return data

    def end(self) -> str:
        """Wait for a process that ended by itself, and return why: the name of a signal, or nothing."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        code = self.process.poll() or 0
        self.stop()
        return signal.Signals(-code).name if code < 0 else ""


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # a copy of this process ends; the file is not its own
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


class Hdf5Reader:
    """A file of unknown origin, open to read until it is closed; may be used by several threads, one at a time.

    ``what`` it is and the ``advice`` stand in errors, which are of type ``error``.
    """

    def __init__(
        self, path: str | os.PathLike[str], what: str, advice: str, error: type[FileError] = FileError
    ) -> None:
        self.path = Path(path)
        self._what, self._advice, self._error, self._lock = what, advice, error, threading.Lock()
        self._worker: _Worker | None = None
        descriptor = self._open()
        try:
            self._size = os.fstat(descriptor).st_size
            self._largest = LARGEST_RATIO * self._size + FREE_BYTES
            memory = MEMORY_BYTES + MEMORY_PER_BYTE * self._size
            self._worker = _Worker(["read", str(descriptor), str(memory)], descriptor)
        finally:
            os.close(descriptor)
        with self.explain():
            self._answer()

    def _open(self) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as cause:
            reason = getattr(cause, "strerror", None) or cause
            missing = isinstance(cause, FileNotFoundError)
            what = f"no such {self._what}; check the path" if missing else f"cannot be read: {reason}; check it"
            raise self._error(f"{self.path}: {what}") from cause
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._error(f"{self.path}: this is not a file, and so no {self._what}; check the path")
        return descriptor

    def members(self, groups: Iterable[str]) -> Iterator[list[Member]]:
        """Yield the members of each group, sorted by name; the group "" is that of the file, "a/b" is inside "a".

        Raises InputError for a group that is not in the file, or by a link only.
        """
        waiting: list[str] = []
        for group in groups:
            waiting.append(group)
            if len(waiting) == GROUPS_AT_ONCE:
                yield from self._members(waiting)
                waiting = []
        if waiting:
            yield from self._members(waiting)

    def _members(self, groups: list[str]) -> Iterator[list[Member]]:
        message, _ = self._ask({"groups": groups})
        for group, members in zip(groups, message["members"], strict=True):
            if isinstance(members, str):
                raise InputError(f"group {group!r:.80}: {_printable(members)}")
            yield [Member(*member) for member in members]

    def texts(self) -> Mapping[str, str | None]:
        """Return the attributes of the file itself: texts, and None for those that are none."""
        content = self.read("", texts=True)
        return {} if content is None else content.texts

    def read(self, group: str, arrays: Sequence[str] = (), *, texts: bool = False) -> GroupContent | None:
        """Read arrays of a group, and its attributes if ``texts``; None if the file has no such group.

        Raises InputError for a group that is there by a link only, and for what is no group.
        """
        message, values = self._ask({"group": group, "arrays": arrays, "texts": texts})
        if message.get("missing"):
            return None
        rest, read, problems = iter(values), dict[str, NDArray[Any]](), dict[str, str]()
        for name, dtype, detail in message["arrays"]:
            if dtype is None:
                problems[name] = _printable(detail)
            else:
                read[name] = next(rest)
        return GroupContent(read, problems, message["texts"])

    @contextmanager
    def explain(self, where: str = "") -> Iterator[None]:
        """Turn an InputError into the error of this file, which says where in it, and what to do."""
        try:
            yield
        except InputError as cause:
            raise self._error(f"{self.path}{where}: {cause}; {self._advice}") from cause

    def _ask(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        with self._lock:
            if self._worker is None:
                raise self._error(f"the {self._what} {self.path} is closed; load it again")
            return self._answer(message)

    def _answer(self, question: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        worker = self._worker
        assert worker is not None
        try:
            with suppress(BrokenPipeError):  # the answer says that the process ended
                worker.send(question) if question is not None else None
            message, arrays = worker.receive(self._largest + FREE_BYTES, SECONDS + SECONDS_PER_BYTE * self._size)
        except BaseException as cause:  # what comes next from it would be the answer to another question
            self._worker = None
            if not isinstance(cause, EOFError | TimeoutError | ValueError | TypeError | MemoryError):
                worker.stop()
                raise
            reason = "it took too long" if isinstance(cause, TimeoutError) else "it ended the process that read it"
            name = worker.end() if isinstance(cause, EOFError) else ""
            worker.stop()
            raise self._error(
                f"{self.path}: it is damaged or hostile: {reason}{f' ({name})' if name else ''}; {self._advice}"
            ) from cause
        if "error" in message:
            raise InputError(_printable(message["error"]))
        return message, arrays

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            worker, self._worker = self._worker, None
            if worker is not None:
                worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _printable(text: Any) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:300])


# --- writing


class Hdf5Writer:
    """A file in the making, group by group."""

    def __init__(self, path: str | os.PathLike[str], descriptor: int) -> None:
        self.path, self._worker = path, _Worker(["write", str(descriptor)], descriptor)
        self._groups: dict[str, bool] = {}

    def add(
        self,
        group: str,
        arrays: Mapping[str, NDArray[Any]],
        attributes: Mapping[str, Mapping[str, str | float]] | None = None,
    ) -> None:
        """Write arrays to a new group, and attributes of the group (by the name "") or of its arrays.

        The group "" is that of the file. A group with arrays has no groups inside.

        Raises InputError for a group that cannot stand beside the others, FileError if it cannot be written.
        """
        self._check(group, bool(arrays))
        values = [np.ascontiguousarray(array) for array in arrays.values()]
        facts = [[name, one.dtype.str, one.shape] for name, one in zip(arrays, values, strict=True)]
        try:
            self._worker.send({"group": group, "arrays": facts, "attributes": attributes or {}}, values)
        except BrokenPipeError:
            self.finish()

    def _check(self, group: str, is_last: bool) -> None:
        parts = group.split("/") if group else []
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        if any(part in ("", ".", "..") for part in parts) or "\0" in group:
            raise InputError(f"{group!r:.80} cannot be the name of a group in an HDF5 file")
        if group in self._groups or any(self._groups.get(name) for name in above):
            raise InputError(f"{group!r:.80} does not go beside the others in one file: it is there, or inside another")
        self._groups |= dict.fromkeys(above, False) | ({group: is_last} if group else {})

    def finish(self) -> None:
        """Wait until everything is in the file; raises FileError if it is not."""
        try:
            with suppress(BrokenPipeError):
                self._worker.send({})
            reason = self._worker.receive(FREE_BYTES, None)[0].get("error")
        except EOFError:
            reason = "the disk is full, or does not answer"
        if reason is not None:
            raise FileError(f"{self.path}: cannot be written: {_printable(reason)}; free space or choose another path")

    def close(self) -> None:
        """End the process that writes."""
        self._worker.stop()


@contextmanager
def new_hdf5(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Hdf5Writer]:
    """Give a writer of a new file that takes its place when the block ends; an error leaves what was there.

    ``private``: a new file is readable by its owner only. The same groups in the same order give the same bytes.

    Raises FileError if it cannot be written.
    """
    with new_file(path, private=private) as (file, _):
        writer = Hdf5Writer(path, file.fileno())
        try:
            yield writer
            writer.finish()
        finally:
            writer.close()
