# SPDX-License-Identifier: Apache-2.0
"""Worker that alone touches libhdf5: a program that reads or writes one HDF5 file, as its parent asks over pipes.

libhdf5 ends its process on some damaged files, and when a disk is full. So it runs here, with limits, started by
``files.hdf5``: ``python hdf5_worker.py read <descriptor of the file> <bytes of memory>``, or ``write <descriptor>``. It
imports numpy and h5py, nothing of Sfumato. A message is its length (8 bytes), JSON, and the bytes of the arrays that
the JSON names as [name, type, shape]. What hloc never writes is refused here, before any of it is read.
"""

import json
import math
import os
import re
import resource
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

import h5py
import numpy as np

GZIP = h5py.h5z.FILTER_DEFLATE
LARGEST_RATIO, FREE_BYTES = 32, 2**20
"""Gzip packs equal numbers a thousandfold: beyond a megabyte, an array may be this many times as large as stored."""
LARGEST_TEXT = 2**30
DEEPEST = 64

Reply = tuple[dict[str, Any], list[Any]]


def receive(stream: BinaryIO) -> dict[str, Any]:
    """Read the JSON of one message; at the end of the stream the parent is gone, and so is this process."""
    size = stream.read(8)
    if len(size) < 8:
        os._exit(0)
    message: dict[str, Any] = json.loads(stream.read(int.from_bytes(size, "little")))
    return message


def send(message: dict[str, Any], arrays: Iterable[Any] = ()) -> None:
    """Write one message to the parent."""
    raw = json.dumps(message).encode("ascii")
    sys.stdout.buffer.write(len(raw).to_bytes(8, "little") + raw)
    for array in arrays:
        sys.stdout.buffer.write(array.reshape(-1).data.cast("B") if array.size else b"")
    sys.stdout.buffer.flush()


def words(problem: Exception) -> str:
    """Return a problem in words: the system's own where libhdf5 quotes them."""
    if isinstance(problem, MemoryError):
        return "it needs more memory than a file of its size should"
    text = str(problem) or type(problem).__name__
    quoted = re.search(r"error message = '([^']*)'", text)
    return (quoted[1] if quoted else text)[:300]


# --- reading


class MissingGroup(Exception):
    """The file has no such group."""


def is_hard(group: Any, name: bytes) -> bool:
    """Tell whether a group holds a member itself, not by a link to somewhere else."""
    return bool(group.links.get_info(name).type == h5py.h5l.TYPE_HARD)


def find_group(file: Any, path: str) -> Any:
    """Walk to a group without following any link; raises MissingGroup if there is none."""
    group, parts = file.id, path.split("/") if path else []
    if len(parts) > DEEPEST:
        raise ValueError("its groups are nested too deep")
    for part in parts:
        name = part.encode("utf-8", "surrogateescape")
        if not group.links.exists(name):
            raise MissingGroup("it is not in the file")
        if not is_hard(group, name):
            raise ValueError("it is a link to somewhere else: links are refused")
        group = h5py.h5o.open(group, name)
        if not isinstance(group, h5py.h5g.GroupID):
            raise ValueError("an array is where a group should be")
    return group


def text_of(attributes: Any, name: str) -> str | None:
    """Return an attribute that is one text, or None for anything else."""
    attribute = attributes.get_id(name)
    if attribute.shape != () or attribute.dtype.itemsize > LARGEST_TEXT:
        return None
    if attribute.dtype.kind == "S" or h5py.check_string_dtype(attribute.dtype):
        value = attributes[name]
        return value if isinstance(value, str) else bytes(value).decode("utf-8")
    return None


def texts_of(group: Any) -> dict[str, str | None]:
    """Return the attributes of a group, None for those that are no texts."""
    attributes = h5py.Group(group).attrs
    return {str(name): text_of(attributes, name) for name in attributes}


def describe(group: Any, name: bytes) -> list[Any]:
    """Return the name of a member, its kind, and the address of a group or the shape of an array."""
    text = name.decode("utf-8", "surrogateescape")
    if not is_hard(group, name):
        return [text, "link", None]
    info = h5py.h5o.get_info(group, name)
    if info.type == h5py.h5o.TYPE_GROUP:
        return [text, "group", info.addr]
    member = h5py.h5o.open(group, name)
    return [text, "array", member.shape] if isinstance(member, h5py.h5d.DatasetID) else [text, "other", None]


def members_of(file: Any, path: str, most: int) -> list[Any] | str:
    """Describe the members of a group, in the order of their names; in words, why there are none."""
    try:
        group, names = find_group(file, path), list[bytes]()

        def collect(name: bytes) -> Any:
            names.append(name)
            return True if len(names) > most else None

        group.links.iterate(collect)
        if len(names) > most:
            raise ValueError("a group has more members than the file could hold")
        return [describe(group, name) for name in sorted(names)]
    except Exception as problem:
        return words(problem)


def read_array(group: Any, name: str, file_size: int) -> Any:
    """Read an array of numbers that the file really holds; raises ValueError for anything else."""
    raw = name.encode("utf-8", "surrogateescape")
    if not is_hard(group, raw):
        raise ValueError(f"{name} is a link to somewhere else: links are refused")
    member = h5py.h5o.open(group, raw)
    if not isinstance(member, h5py.h5d.DatasetID):
        raise ValueError(f"{name} is not an array")
    plan = member.get_create_plist()
    if plan.get_layout() not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or plan.get_external_count():
        raise ValueError(f"{name} lies in another file: that is refused")
    if member.dtype.kind not in "iuf" or member.dtype.itemsize > 8 or member.shape is None:
        raise ValueError(f"{name} is not an array of numbers")
    filters = {plan.get_filter(number)[0] for number in range(plan.get_nfilters())}
    if not filters <= {GZIP}:
        raise ValueError(f"{name} is packed in a way other than gzip")
    stored = min(member.get_storage_size(), file_size)
    size = math.prod(member.shape) * member.dtype.itemsize
    largest = stored if not filters else LARGEST_RATIO * stored + FREE_BYTES * bool(stored)
    if size > largest:
        raise ValueError(f"{name} declares {size} bytes of numbers, the file holds only {stored} bytes of them")
    if plan.get_layout() == h5py.h5d.CHUNKED and size:
        chunk = math.prod(plan.get_chunk()) * member.dtype.itemsize
        if chunk > max(largest, FREE_BYTES):
            raise ValueError(f"{name} is stored in pieces of {chunk} bytes, the file holds only {stored} bytes of them")
    array = np.empty(member.shape, member.dtype)
    if size:
        member.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def read_arrays(file: Any, message: dict[str, Any], file_size: int) -> Reply:
    """Answer with those arrays that a group has; one that cannot be read has its reason in place of type and shape."""
    try:
        group = find_group(file, message["group"])
    except MissingGroup:
        return {"missing": True}, []
    facts: list[Any] = []
    arrays: list[Any] = []
    for name in message["arrays"]:
        if not group.links.exists(name.encode("utf-8", "surrogateescape")):
            continue
        try:
            arrays.append(read_array(group, name, file_size))
            facts.append([name, arrays[-1].dtype.str, arrays[-1].shape])
        except Exception as problem:
            facts.append([name, None, words(problem)])
    return {"arrays": facts, "texts": texts_of(group) if message["texts"] else {}}, arrays


def serve(descriptor: int, memory: int) -> None:
    """Answer questions about the file until the parent has no more, within ``memory`` bytes, and write nothing."""
    limit(resource.RLIMIT_DATA, memory)
    limit(resource.RLIMIT_FSIZE, 0)
    size = os.fstat(descriptor).st_size
    try:
        file = h5py.File(f"/dev/fd/{descriptor}", "r", locking="best-effort")
    except Exception:
        send({"error": "it is not a complete HDF5 file"})
        os._exit(0)
    send({})
    while True:
        message = receive(sys.stdin.buffer)
        reply: dict[str, Any]
        arrays: list[Any] = []
        try:
            if "groups" in message:
                reply = {"members": [members_of(file, path, size // 8) for path in message["groups"]]}
            else:
                reply, arrays = read_arrays(file, message, size)
        except Exception as problem:
            reply = {"error": words(problem)}
        send(reply, arrays)


# --- writing


def write_group(file: Any, message: dict[str, Any], stream: Any) -> None:
    """Write the arrays and attributes of a group."""
    group = file.require_group(message["group"] or "/")
    for name, dtype, shape in message["arrays"]:
        array = np.empty(shape, dtype)
        if array.size and stream.readinto(array.reshape(-1).data.cast("B")) != array.nbytes:
            os._exit(0)
        group.create_dataset(name, data=array)
    for name, attributes in message["attributes"].items():
        place = group[name] if name else group
        for key, value in attributes.items():
            place.attrs[key] = np.bytes_(value.encode("utf-8")) if isinstance(value, str) else value


def write(descriptor: int) -> None:
    """Write what the parent sends, until it says that this was all; end at the first problem, with its words."""
    try:
        file = h5py.File(f"/dev/fd/{descriptor}", "w", libver="latest", locking=False)  # the parent has the lock
        while message := receive(sys.stdin.buffer):
            write_group(file, message, sys.stdin.buffer)
        file.close()
        send({})
    except Exception as problem:
        send({"error": words(problem)})
    os._exit(0)  # after a problem libhdf5 would not survive to close the file


def limit(what: int, most: int) -> None:
    """Set a limit of this process, unless the system's own is lower."""
    hardest = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most, most) if hardest == resource.RLIM_INFINITY else (min(most, hardest),) * 2)


if __name__ == "__main__":
    limit(resource.RLIMIT_CORE, 0)
    if sys.argv[1] == "read":
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        write(int(sys.argv[2]))
