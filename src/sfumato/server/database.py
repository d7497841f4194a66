# SPDX-License-Identifier: Apache-2.0
"""The server's database: its tables, and connections to them. Names are opaque, and nothing of a query is ever written.

SQLite through SQLAlchemy Core, so that another database can follow. Writers begin with ``BEGIN IMMEDIATE``: a read that
turns into a write would fail at once when somebody else has written, and no timeout helps.
"""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.engine import Connection, Engine

from sfumato.errors import FileError

SCHEMA = 1
FILE = "server.sqlite"
OWN_FILES = frozenset((FILE, f"{FILE}-wal", f"{FILE}-shm", "lock", "cache", "lost+found"))
"""What may lie in a data folder that has no database yet: the rest of a first start, and a disk of its own."""
BUSY_SECONDS = 20

metadata = sql.MetaData()

facts = sql.Table(
    "facts",
    metadata,
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("value", sql.Text, nullable=False),
)
"""The version of the tables."""

api_keys = sql.Table(
    "api_keys",
    metadata,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("digest", sql.LargeBinary, nullable=False),
    sql.Column("scopes", sql.Text, nullable=False),
    sql.Column("label", sql.Text, nullable=False, default=""),
    sql.Column("expires", sql.Float),
    sql.Column("revoked", sql.Boolean, nullable=False, default=False),
    sql.Column("made", sql.Float, nullable=False),
    sql.Column("last_day", sql.Text),
)
"""Digests of API keys, never the keys; of their use the day alone."""

sessions = sql.Table(
    "sessions",
    metadata,
    sql.Column("digest", sql.LargeBinary, primary_key=True),
    sql.Column("key", sql.Text, sql.ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False),
    sql.Column("form", sql.Text, nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
)
"""Sign-ins of the page; ``form`` is the token that its forms carry."""

places = sql.Table(
    "places",
    metadata,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("space", sql.Text),
    sql.Column("made", sql.Float, nullable=False),
    sql.Column("current_map", sql.Text),
)
"""``space``: what all features of a place have in common, fixed by the first upload."""

images = sql.Table(
    "images",
    metadata,
    sql.Column("place", sql.Text, sql.ForeignKey("places.id", ondelete="CASCADE"), primary_key=True),
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("digest", sql.Text, nullable=False),
    sql.Column("layout", sql.Text, nullable=False),
    sql.Column("count", sql.Integer, nullable=False),
    sql.Column("bytes", sql.Integer, nullable=False),
    sql.Column("width", sql.Integer),
    sql.Column("height", sql.Integer),
    sql.Column("recipe", sql.Text, nullable=False),
    sql.Column("extractor", sql.Text, nullable=False),
    sql.Column("camera", sql.Text),
    sql.Column("focal_px", sql.Float),
    sql.Column("made", sql.Float, nullable=False),
    sql.Index("images_by_layout", "place", "layout"),
)
"""Images of a place. ``layout`` is a digest of the positions, or the name under the key of a photo whose positions stay
home: a second release of one photo shows by it."""

releases = sql.Table(
    "releases",
    metadata,
    sql.Column("place", sql.Text, primary_key=True),
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("count", sql.Integer, nullable=False),
    sql.Column("positions", sql.LargeBinary, nullable=False),
    sql.ForeignKeyConstraint(["place", "name"], ["images.place", "images.name"], ondelete="CASCADE"),
)
"""Of images whose positions stay home, those that were released later, as they are sent; at first none."""

maps = sql.Table(
    "maps",
    metadata,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("place", sql.Text, sql.ForeignKey("places.id", ondelete="CASCADE"), nullable=False, index=True),
    sql.Column("number", sql.Integer, nullable=False),
    sql.Column("facts", sql.Text, nullable=False),
    sql.Column("digest", sql.Text, nullable=False),
    sql.Column("made", sql.Float, nullable=False),
    sql.UniqueConstraint("place", "number"),
)
"""Maps that were published; the id is that of the job that made it."""

jobs = sql.Table(
    "jobs",
    metadata,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("number", sql.Integer, nullable=False, unique=True),
    sql.Column("place", sql.Text, sql.ForeignKey("places.id", ondelete="CASCADE"), nullable=False, index=True),
    sql.Column("request", sql.Text, nullable=False),
    sql.Column("request_key", sql.Text),
    sql.Column("state", sql.Text, nullable=False, index=True),
    sql.Column("stage", sql.Text, nullable=False, default=""),
    sql.Column("done", sql.Integer, nullable=False, default=0),
    sql.Column("total", sql.Integer, nullable=False, default=0),
    sql.Column("reason", sql.Text, nullable=False, default=""),
    sql.Column("attempt", sql.Integer, nullable=False, default=0),
    sql.Column("fence", sql.Integer, nullable=False, default=0),
    sql.Column("lease_until", sql.Float, nullable=False, default=0.0),
    sql.Column("is_cancelled", sql.Boolean, nullable=False, default=False),
    sql.Column("process", sql.Integer),
    sql.Column("made", sql.Float, nullable=False),
    sql.Column("ended", sql.Float),
    sql.UniqueConstraint("place", "request_key"),
)
"""Jobs, with the lease of the process that works on each and its fence number."""

events = sql.Table(
    "events",
    metadata,
    sql.Column("job", sql.Text, sql.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("kind", sql.Text, nullable=False),
    sql.Column("facts", sql.Text, nullable=False),
    sql.Column("made", sql.Float, nullable=False),
)


class Store:
    """A database and the folder it lies in. ``read`` and ``write`` give a connection within one transaction."""

    def __init__(self, folder: Path) -> None:
        """Open the database of a folder, or make it.

        Raises FileError if it cannot be opened, is damaged, or was made by a newer version.
        """
        self.folder = folder
        try:
            prepare_folder(folder)
            self.engine = _engine(folder / FILE)
            with self.write() as connection:
                metadata.create_all(connection)
                self._check_version(connection)
        except (sql.exc.DatabaseError, OSError) as cause:
            if isinstance(cause, FileError):
                raise
            reason = getattr(cause, "orig", None) or cause
            raise FileError(f"{folder / FILE}: cannot be opened: {reason}; name another folder with --data") from cause

    def read(self) -> AbstractContextManager[Connection]:
        """Return a connection that reads; use it in a with statement."""
        return self.engine.execution_options(is_reader=True).begin()

    def write(self) -> AbstractContextManager[Connection]:
        """Return a connection that writes; what a with statement did is committed at its end, or none of it."""
        return self.engine.begin()

    def forget(self) -> None:
        """Write what was removed out of the journal too: the database itself overwrites what it removes."""
        with suppress(sql.exc.OperationalError), self.engine.connect() as connection:
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _check_version(self, connection: Connection) -> None:
        version = connection.execute(sql.select(facts.c.value).where(facts.c.name == "schema")).scalar()
        if version is None:
            connection.execute(facts.insert().values(name="schema", value=str(SCHEMA)))
        elif version != str(SCHEMA):
            raise FileError(
                f"{self.folder / FILE} has tables of version {version!r:.20}, and this server reads version {SCHEMA}: "
                f"run the version of sfumato that made it"
            )


def prepare_folder(folder: Path) -> None:
    """Make the folder of a server's data, readable by its owner alone, and the empty database.

    Raises FileError for a folder of another user, or one that others can write to: whoever can put files there can
    change maps, and the compiled code that engines load. Raises it too for a folder that holds something else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts_of = folder.stat()
    if hasattr(os, "geteuid") and facts_of.st_uid != os.geteuid():
        raise FileError(f"{folder} belongs to another user: run the server as that user, or name another --data")
    if facts_of.st_mode & 0o022:
        raise FileError(f"{folder} can be changed by other users of this machine: run chmod go-w on it")
    path = folder / FILE
    names = {entry.name for entry in folder.iterdir()} - OWN_FILES
    others = sorted(name for name in names if not name.startswith("."))
    if others and not path.exists():
        raise FileError(f"{folder} holds {others[0]!r:.80} and no data of a server: name a new folder with --data")
    if facts_of.st_mode & 0o077:
        folder.chmod(0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _engine(path: Path) -> Engine:
    engine = sql.create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_SECONDS})

    @sql.event.listens_for(engine, "connect")
    def prepare(connection: object, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy begins, not sqlite3
        cursor = connection.cursor()  # type: ignore[attr-defined]
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sql.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        is_reader = connection.get_execution_options().get("is_reader", False)
        connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")

    return engine
