# SPDX-License-Identifier: Apache-2.0
"""SQLite files of ours: archives, galleries, work in progress. Writers take turns, readers never wait.

A file appears whole, with its empty tables; after that each transaction is in it completely or not at all, whatever
ends the process. A file is not trusted: its mark, version and tables must be exactly those of its kind, before a row
is read; nothing in its schema is executed, no value may be longer than the file, and no statement runs much longer than
it takes to read all of it. It is kept in WAL mode: while it is open, ``-wal`` and ``-shm`` stand beside it, and after a
kill they hold finished work. It is read through SQLite only: closing another handle on an open file drops its locks.
"""

import errno
import os
import re
import secrets
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.files.atomic import file_lock, hidden_part, part_start, refuse_planted, replace_file

WAIT_SECONDS = 60.0
"""How long a writer waits for another."""
HEADER_BYTES = 100
BESIDE = ("-wal", "-shm", "-journal")
IN_USE = (
    "it is being written, or work on it was interrupted, which only who may write to it can finish: wait, or ask its "
    "owner to open it once"
)
NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE")
NO_RIGHT = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
"""How the names of SQLite's errors begin, of a full disk or a limit on files, and of missing access rights."""
PAGE_BYTES = 16384
LARGEST_VALUE = 2**30
MOST_STEPS, PACE = 2**25, 2**16
"""Steps of SQLite's machine that one statement may take, besides one for each byte, and how often they are counted."""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file: ``name`` with its article, ``mark`` (SQLite's application_id), ``version``, and its tables.

    ``advice`` ends every error about what is in a file: what to do. ``error`` is their type. ``earlier`` are the first
    bytes of files of the kind that earlier versions made in another container, and the sentence that says so.
    ``page_bytes``: a power of 2, some times what a row takes.
    """

    name: str
    mark: int
    version: int
    tables: tuple[str, ...]
    advice: str
    error: type[FileError] = FileError
    earlier: tuple[bytes, str] = (b"", "")
    page_bytes: int = PAGE_BYTES
    older: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Versions that are read too, with their tables: the first ones of ``tables``."""


class Database:
    """An open SQLite file of a kind; may be used by several threads, one at a time.

    Every problem of SQLite is raised as the error of the kind, which names the file.
    """

    def __init__(self, path: Path, kind: FileKind, connection: sqlite3.Connection) -> None:
        self.path, self.kind, self._connection, self._lock = path, kind, connection, threading.RLock()
        self._steps, self._place = 0, os.path.realpath(path)
        self.version = kind.version
        self._status = os.stat(self._place)

    def limit_steps(self, most: int) -> None:
        """End every statement that takes more steps: a forged tree can lead to the same page without end."""

        def is_too_long() -> bool:
            self._steps += PACE
            return self._steps > most

        self._connection.set_progress_handler(is_too_long, PACE)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return all its rows."""
        with self._lock, explain(self.path, self.kind):
            self._steps = 0
            return self._connection.execute(query, values).fetchall()

    def many(self, query: str, values: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each of several lists of values."""
        with self._lock, explain(self.path, self.kind):
            self._steps = 0
            self._connection.executemany(query, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything in the block, or nothing of it; wait for another writer's turn to end."""
        with self._lock:
            self.rows("BEGIN IMMEDIATE")
            try:
                yield
                self.rows("COMMIT")
            except BaseException:
                with suppress(SfumatoError):
                    self.rows("ROLLBACK")
                raise

    def pin(self) -> None:
        """Go on seeing the file as it is now, whatever others write."""
        self.rows("BEGIN")
        self.rows("SELECT count(*) FROM sqlite_schema")

    @property
    def is_replaced(self) -> bool:
        """Whether another file, or none, is in the place of this one: what is written to it is lost.

        Certain inside a transaction, which a ``replacement`` waits for.
        """
        try:
            return not os.path.samestat(os.stat(self._place), self._status)
        except FileNotFoundError:
            return True

    @property
    def size_bytes(self) -> int:
        """Bytes of the file as it is seen, with what ``-wal`` adds to it."""
        ((pages,),), ((page_bytes,),) = self.rows("PRAGMA page_count"), self.rows("PRAGMA page_size")
        return int(pages * page_bytes)

    def upgrade(self) -> None:
        """Add the tables that an older version does not have, at once."""
        if self.version != self.kind.version:
            with self.transaction():
                ((version,),) = self.rows("PRAGMA user_version")
                if version == self.version:  # nobody else was faster
                    for table in self.kind.tables[len(dict(self.kind.older)[self.version]) :]:
                        self.rows(table)
                    self.rows(f"PRAGMA user_version={self.kind.version}")
            self.version = self.kind.version

    def check(self) -> None:
        """Read the whole structure of the file; raise the error of its kind if it is damaged."""
        found = [str(text) for (text,) in self.rows("PRAGMA integrity_check(1)")]
        if found != ["ok"]:
            raise self.kind.error(f"{self.path}: its structure is damaged ({found[0]:.200}); {self.kind.advice}")

    def check_size(self) -> None:
        """Raise the error of the kind for a file that is shorter than it says, where SQLite reads zeros, or longer.

        ``-wal`` may hold what the file lacks. The transaction keeps others from changing the file meanwhile. SQLite
        says how long it should be: to open the file and close it again would drop the locks of this process.
        """
        with explain(self.path, self.kind):
            self.rows("BEGIN")
            expected, wal = self.size_bytes, _beside(Path(self._place)).get("-wal")
            status, more = os.stat(self._place), wal.st_size if wal else 0
            is_wrong = status.st_size + more < expected or (not more and status.st_size != expected)
            if is_wrong and os.path.samestat(status, self._status):
                raise InputError(f"it is cut off or damaged: {status.st_size} bytes, and it should have {expected}")
            self.rows("COMMIT")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({str(self.path)!r}, {self.kind.name})"


def open_reader(path: str | os.PathLike[str], kind: FileKind) -> Database:
    """Open a file of a kind to read it.

    A file of another user, or with one beside it, is checked from end to end first. Where nothing can be written, it
    is read as it is, which takes a folder that nobody writes to; one that is in use is read if it is root's or ours.

    Raises the error of the kind for a file that is missing, damaged, hostile, or of another kind or version.
    """
    place = Path(path)
    with explain(place, kind), _recognise(place, kind):
        status, beside = _check_place(place, kind), _beside(place)
        owners = {entry.st_uid for entry in (status, *beside.values())}
        database = _connect(place, kind, _reading_mode(place, beside, owners), status.st_size)
        try:
            database.rows("PRAGMA query_only=ON")
            _check_kind(database)
            database.check_size()
            if hasattr(os, "getuid") and owners != {os.getuid()}:
                database.check()
        except BaseException:
            database.close()
            raise
    return database


def _reading_mode(place: Path, beside: Mapping[str, os.stat_result], owners: set[int]) -> str:
    """Return how SQLite opens a file to read it; raise FileError if it is in use by a user who is not trusted.

    SQLite maps ``-shm`` into memory: whoever owns it can end the processes of its readers by making it shorter.
    """
    target = os.path.realpath(place)
    if os.access(target, os.W_OK) and os.access(os.path.dirname(target), os.W_OK):
        return "mode=rw"
    if not any(entry.st_size for entry in beside.values()):
        return "mode=ro&immutable=1"
    if not {"-wal", "-shm"} <= beside.keys() or not owners <= {0, os.getuid()}:
        raise FileError(f"{place}: {IN_USE}")
    return "mode=ro"


def open_writer(
    path: str | os.PathLike[str], kind: FileKind, *, private: bool = False, shown: Path | None = None
) -> Database:
    """Open a file of a kind to add to it, and make it if it is not there; ``private``: only its user may read it.

    ``shown`` is the path that errors name, if it is another.

    Raises the error of the kind for a file that cannot be written, and for what ``open_reader`` refuses.
    """
    place, shown = Path(os.path.realpath(path)), shown or Path(path)
    with explain(shown, kind), _recognise(place, kind):
        _check_target(path)
        if not os.path.lexists(place):
            create(place, kind, private=private)
        status = _check_place(place, kind)
        if not (os.access(place, os.W_OK) and os.access(place.parent, os.W_OK)):  # SQLite would leave files beside it
            raise PermissionError(errno.EACCES, "it cannot be written")
        database = _connect(place, kind, "mode=rw", status.st_size)
        database.path = shown
        try:
            _check_kind(database)
            database.check_size()
        except BaseException:
            database.close()
            raise
    return database


def create(path: Path, kind: FileKind, *, private: bool = False) -> None:
    """Make a file with empty tables, at once; if another process made it meanwhile, that one stays.

    Raises FileError for a link of another user.
    """
    refuse_planted(path)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600 if private else 0o666)
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as connection:
                for setting in (f"page_size={kind.page_bytes}", "synchronous=OFF", "journal_mode=OFF"):
                    connection.execute(f"PRAGMA {setting}")
                connection.execute("BEGIN")
                for table in kind.tables:
                    connection.execute(table)
                connection.execute(f"PRAGMA application_id={kind.mark}")
                connection.execute(f"PRAGMA user_version={kind.version}")
                connection.execute("COMMIT")
                connection.execute("PRAGMA journal_mode=WAL")
            os.fsync(file)  # once, before anyone sees it
        finally:
            os.close(file)
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        for end in ("", *BESIDE):
            with suppress(OSError):
                os.unlink(f"{part}{end}")


@contextmanager
def replacement(path: str | os.PathLike[str], kind: FileKind) -> Iterator[Database]:
    """Give a new file of a kind that takes the place ``path`` when the block ends, and is removed if it ends in error.

    It is written under a hidden name that nobody can foresee, takes its place at once, and has the access rights of the
    file that was there. One process at a time does this, and removes what killed ones left. Who adds to the old file
    notices that it ``is_replaced``; who reads it goes on seeing it.

    Raises the error of the kind.
    """
    shown, target = Path(path), Path(os.path.realpath(path))
    part = hidden_part(target)
    with ExitStack() as stack:
        with explain(shown, kind):
            _check_target(path)
            stack.enter_context(file_lock(target, WAIT_SECONDS))
            _remove_stale(target)
            stack.callback(remove, part)
            database = stack.enter_context(open_writer(part, kind, private=target.exists(), shown=shown))
        yield database
        with explain(shown, kind):
            database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
            database.close()
            if target.exists():
                os.chmod(part, stat.S_IMODE(target.stat().st_mode))
                _keep_writers_away(target, kind, stack)
            for end in BESIDE:  # they belong to the old file, and SQLite would apply them to the new one
                with suppress(FileNotFoundError):
                    os.unlink(f"{target}{end}")
            replace_file(part, target)


def _check_target(path: str | os.PathLike[str]) -> None:
    """Raise FileError for a place where no file can be written, before any work is done."""
    refuse_planted(path)
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileError(f"{path}: there is no folder {target.parent}: create it, or choose another path")
    if os.path.lexists(target) and not target.is_file():
        raise FileError(f"{path}: this is not a file; choose another path")
    _beside(target)


def _keep_writers_away(target: Path, kind: FileKind, stack: ExitStack) -> None:
    """Hold the turn to write to a file until the stack is left, with as much as possible of its ``-wal`` in it."""
    try:
        old = stack.enter_context(open_writer(target, kind))
        old.rows("PRAGMA wal_checkpoint(PASSIVE)")
    except kind.error:
        return  # something else, or damaged: nobody adds to it
    stack.enter_context(old.transaction())


def remove_stale(path: str | os.PathLike[str]) -> None:
    """Remove what killed ``replacement`` runs left, unless one is at work."""
    target = Path(os.path.realpath(path))
    with suppress(FileError), file_lock(target, 0):
        _remove_stale(target)


def _remove_stale(target: Path) -> None:
    pattern = re.compile(re.escape(part_start(target)) + f"[0-9a-f]{{16}}[.]part({'|'.join(BESIDE)})?")
    for entry in os.listdir(target.parent):
        if pattern.fullmatch(entry):
            with suppress(OSError):
                os.unlink(target.parent / entry)


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file and what SQLite keeps beside it; raises FileError if that is not possible."""
    for place in (f"{os.fspath(path)}{end}" for end in ("", *BESIDE)):
        try:
            os.unlink(place)
        except FileNotFoundError:
            pass
        except OSError as cause:
            raise FileError(f"{place}: cannot be removed: {cause.strerror}; remove it yourself") from cause


@contextmanager
def explain(path: Path, kind: FileKind) -> Iterator[None]:
    """Turn every problem of a file into the error of its kind, with what happened, where, and what to do."""
    try:
        yield
    except InputError as cause:
        raise kind.error(f"{path}: {cause}; {kind.advice}") from cause
    except kind.error:
        raise
    except FileError as cause:
        raise kind.error(str(cause)) from cause
    except SfumatoError:
        raise
    except (sqlite3.Error, OSError, UnicodeError, OverflowError) as cause:
        raise kind.error(f"{path}: {_words(cause, kind.advice)}") from cause


@contextmanager
def _recognise(place: Path, kind: FileKind) -> Iterator[None]:
    """Say of a file that is not SQLite's what it is instead."""
    try:
        yield
    except kind.error as problem:
        if getattr(problem.__cause__, "sqlite_errorname", "") != "SQLITE_NOTADB":
            raise
        signature, sentence = kind.earlier
        with place.open("rb") as file:
            is_earlier = bool(signature) and file.read(HEADER_BYTES).startswith(signature)
        raise InputError(sentence if is_earlier else f"this is not {kind.name}, or it is damaged") from problem


def _words(problem: Exception, advice: str) -> str:
    """Return in words what SQLite or the system complains of, and what to do; ``advice`` is for a damaged file."""
    name, number = getattr(problem, "sqlite_errorname", "") or "", getattr(problem, "errno", None)
    reason = str(getattr(problem, "strerror", None) or problem)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process is writing to it and does not finish: wait for it, and try again"
    if name.startswith(NO_ROOM) or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"nothing more can be written ({reason}): the disk is full or fails, or a limit on the size of files is "
            "reached. What was finished is kept: free space and run again"
        )
    if name.startswith(("SQLITE_READONLY_CANTINIT", "SQLITE_READONLY_CANTLOCK", "SQLITE_READONLY_RECOVERY")):
        return IN_USE
    if name.startswith(NO_RIGHT) or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{reason}; check the access rights of the file and its folder, or choose another path"
    if name.startswith("SQLITE_IOERR"):
        return f"the disk does not answer ({reason}): check it"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"it is damaged ({reason}); {advice}"
    if name.startswith("SQLITE_INTERRUPT"):
        return f"it is damaged (reading it does not end); {advice}"
    return f"{reason}; {'choose another path' if isinstance(problem, OSError) else advice}"


def _beside(place: Path) -> dict[str, os.stat_result]:
    """Return the state of the files beside one, by how their names end.

    Raises FileError for what SQLite must not open: a pipe would stop it, a link lead it elsewhere, and it would undo
    in the file what a journal says.
    """
    entries = {}
    for end in BESIDE:
        path = f"{os.path.realpath(place)}{end}"
        with suppress(FileNotFoundError):
            entries[end] = status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or (end == "-journal" and status.st_size):
                raise FileError(f"{path} does not belong to the file beside it: move it away")
    return entries


def _check_place(place: Path, kind: FileKind) -> os.stat_result:
    """Refuse, before SQLite sees it, what is no file, or has something beside it that none of ours ever has."""
    try:
        status = os.stat(place)
    except FileNotFoundError as cause:
        raise InputError("no such file: check the path") from cause
    if not stat.S_ISREG(status.st_mode):
        raise InputError("this is not a file")
    if not os.access(place, os.R_OK):
        raise PermissionError(errno.EACCES, "it cannot be read")
    if status.st_size < HEADER_BYTES:
        raise InputError(f"this is not {kind.name}, or it is cut off")
    _beside(place)
    return status


def _connect(place: Path, kind: FileKind, mode: str, size: int) -> Database:
    address = f"file:{quote(os.path.realpath(place))}?{mode}"
    connection = sqlite3.connect(
        address, uri=True, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )  # fmt: skip
    database = Database(place, kind, connection)
    database.limit_steps(MOST_STEPS + size)
    try:
        for limit, most in (
            (sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2**16),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 20),
        ):
            connection.setlimit(limit, most)
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "synchronous=NORMAL"):
            database.rows(f"PRAGMA {setting}")
    except BaseException:
        database.close()
        raise
    return database


def _check_kind(database: Database) -> None:
    """Refuse a file of another kind or version, or whose tables, indexes, views or triggers are not exactly its own."""
    kind = database.kind
    database.rows("BEGIN")  # as it is at one moment: another process may add the tables of a new version
    ((mark,),), ((version,),) = database.rows("PRAGMA application_id"), database.rows("PRAGMA user_version")
    if mark != kind.mark:
        raise InputError(f"this is an SQLite file, but not {kind.name}")
    tables = {kind.version: kind.tables, **dict(kind.older)}
    if version not in tables:
        raise InputError(f"it has version {version} of the format, this Sfumato reads {kind.version}: use another")
    database.version = int(version)
    found = database.rows("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name LIMIT 1000")
    database.rows("COMMIT")
    if tuple(found) != _expected(tables[version]):
        raise InputError("its tables are not those that Sfumato makes: it was damaged or changed")


@lru_cache(maxsize=16)
def _expected(tables: tuple[str, ...]) -> tuple[Row, ...]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for table in tables:
            connection.execute(table)
        return tuple(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall())
