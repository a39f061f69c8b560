"""
Whose file it is, and of which format.

Decides: whether a path holds our database, which version it has, and how an older one becomes the present one.
Refuses to know: who waits for whom; ``prepare`` runs under the writer lock, which the caller holds.

``sql/schema.sql`` is the present format, and the whole of it; a fresh file is made from it. ``NNN_what.sql`` in
``sql/migrations`` makes version NNN of the one before, from 002 on. A version's number is committed with what it
names, so a crash leaves the version before or the one after.

A file that is not ours, or is of a newer version, is left untouched, byte for byte: ``look_at`` reads it as immutable
(SQLite then makes no lock, journal, log or index file), and only what passes is opened in earnest.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, TypeAlias

import apsw
from attrs import frozen

from optchat.core.errors import ConfigError, IntegrityError, NotOurFile, SchemaTooNew
from optchat.store.errors import translate
from optchat.store.files import database_uri

Found: TypeAlias = Literal["absent", "empty", "ours"]

APPLICATION_ID = 0x6F707463  # "optc"
PAGE_BYTES = 4096
WAL_PAGES = 1000  # a background checkpoint's mark: the log grows to about this and is then used over and over

_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_MIGRATION_NAME = re.compile(r"(\d{3})_[a-z0-9_]+\.sql")


@frozen
class Migration:
    """The statements that make version ``number`` of the version before."""

    number: int
    name: str
    sql: str


@frozen
class Format:
    """A schema and the way to it."""

    schema_sql: str
    migrations: tuple[Migration, ...]

    @property
    def version(self) -> int:
        return self.migrations[-1].number if self.migrations else 1


def read_format(folder: Traversable | None = None) -> Format:
    """
    Return the format that this installation writes.

    Args:
        folder: of ``schema.sql`` and ``migrations``; None for the package's own.

    Raises:
        ValueError: a migration is misnamed, or a number is missing: the package was built wrongly.
    """
    folder = folder or resources.files("optchat.store").joinpath("sql")
    migrations: list[Migration] = []
    steps = folder.joinpath("migrations")
    if steps.is_dir():
        for name in sorted(entry.name for entry in steps.iterdir() if entry.name.endswith(".sql")):
            match = _MIGRATION_NAME.fullmatch(name)
            if match is None or int(match[1]) != len(migrations) + 2:
                raise ValueError(f"{name} is no migration 002_what.sql, 003_what.sql, and so on without a gap")
            migrations.append(Migration(int(match[1]), name, steps.joinpath(name).read_text("utf-8")))
    return Format(folder.joinpath("schema.sql").read_text("utf-8"), tuple(migrations))


FORMAT = read_format()


def look_at(path: Path, file_format: Format = FORMAT) -> Found:
    """
    Tell what lies at a path, and touch nothing.

    The answer is preliminary where another process writes just now: ``prepare`` asks again under the writer lock.

    Raises:
        NotOurFile: a folder, a device, no SQLite database, or another application's.
        SchemaTooNew: a newer optchat wrote it.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "absent"
    if stat.S_ISDIR(status.st_mode):
        raise NotOurFile(f"{path} is a folder; name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise NotOurFile(f"{path} is no regular file; name another path")
    if status.st_size == 0 or _creation_was_cut(path, status.st_size):
        return "empty"
    try:
        probe = apsw.Connection(
            database_uri(path, immutable="1"), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        try:
            # Lets the header be read while a checkpoint is just extending the file behind it.
            probe.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
            application_id, version = _number(probe, "application_id"), _number(probe, "user_version")
        finally:
            probe.close()
    except apsw.NotADBError as error:
        raise NotOurFile(f"{path} is no SQLite database and was left untouched; name another path") from error
    except apsw.Error as error:
        raise translate(error, path) from error
    _check(path, application_id, version, file_format)
    return "ours"


def prepare(db: apsw.Connection, path: Path, file_format: Format = FORMAT) -> None:
    """
    Make the file the present format: a fresh one from the schema, an older one by its migrations.

    The caller holds the writer lock, and the connection has no transaction open.

    Atomicity: each version is committed with its number.
    Idempotence: on a file of the present format nothing is written.

    Raises:
        NotOurFile, SchemaTooNew: as ``look_at``; the file is left untouched.
        IntegrityError: a migration left rows that refer to nothing; the file keeps the version before.
    """
    if _number(db, "page_count") == 0:
        # The application's id goes first and outside the log: from its first byte on the file says whose it is.
        db.pragma("page_size", PAGE_BYTES)
        db.pragma("application_id", APPLICATION_ID)
    version = _number(db, "user_version")
    _check(path, _number(db, "application_id"), version, file_format)
    if db.pragma("journal_mode") != "wal" and db.pragma("journal_mode", "wal") != "wal":
        raise ConfigError(f"{path}: SQLite cannot keep a write-ahead log here; move the database to a local disk")
    if version == 0:
        _grow_log(db)
        with _transaction(db):
            db.execute(file_format.schema_sql)
            db.pragma("user_version", file_format.version)
        return
    for migration in file_format.migrations:
        if migration.number > version:
            _apply(db, path, migration)


def version_of(db: apsw.Connection) -> int:
    """Return the file's version as this connection's transaction sees it."""
    version = db.execute("PRAGMA user_version").get  # a cached statement: every transaction asks
    assert isinstance(version, int)
    return version


def too_new(path: Path, version: int, file_format: Format = FORMAT) -> SchemaTooNew:
    """Return the error for a file of a newer version."""
    return SchemaTooNew(
        f"{path} has format {version}, and this optchat knows formats up to {file_format.version}; upgrade optchat"
    )


def _creation_was_cut(path: Path, size_bytes: int) -> bool:
    """
    Whether the file is to be rolled back to nothing: its first page was being written when the power went.

    SQLite makes the journal durable before it writes that page, and rolls back before it reads it; the probe, which
    looks at no journal, would take half a page for somebody else's file, for ever. Whoever's creation it was, what is
    left of it is an empty file. (To open a journal drops no lock: SQLite locks the database's file alone.)
    """
    if size_bytes > PAGE_BYTES:
        return False
    try:
        with open(f"{path}-journal", "rb") as journal:
            header = journal.read(20)
    except OSError:  # none that rolls anything back: the probe says what lies there
        return False
    return header[:8] == _JOURNAL_MAGIC and header[16:] == bytes(4)  # of a file that had no page before


def _check(path: Path, application_id: int, version: int, file_format: Format) -> None:
    if application_id != APPLICATION_ID:
        raise NotOurFile(f"{path} is another application's SQLite database and was left untouched; name another path")
    if version > file_format.version:
        raise too_new(path, version, file_format)


def _apply(db: apsw.Connection, path: Path, migration: Migration) -> None:
    # A table is altered by copying it, which enforced foreign keys would forbid: they are checked at the end instead.
    # Inside a transaction the setting would have no effect.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)
    try:
        with _transaction(db):
            db.execute(migration.sql)
            dangling = db.execute("PRAGMA foreign_key_check").fetchone()
            if dangling is not None:
                raise IntegrityError(
                    f"{path}: after {migration.name} a row of {dangling[0]} refers to nothing, so the file keeps its "
                    "version; restore a backup, or run `optchat verify` with the version that wrote it"
                )
            db.pragma("user_version", migration.number)
    finally:
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)


def _grow_log(db: apsw.Connection) -> None:
    # Appending to a file that must grow costs more than overwriting: 283 against 183 us a commit (measured, first 100).
    # One statement that spills from a small cache and is rolled back grows the log without a sync; PERSIST_WAL keeps it
    # grown. About 10 ms, once a file.
    cache = _number(db, "cache_size")
    db.pragma("cache_size", 16)
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE grown (filler BLOB)")
        db.execute("INSERT INTO grown VALUES (zeroblob(:bytes))", {"bytes": WAL_PAGES * PAGE_BYTES})
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.pragma("cache_size", cache)


@contextmanager
def _transaction(db: apsw.Connection) -> Generator[None, None, None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _number(db: apsw.Connection, pragma: str) -> int:
    value = db.pragma(pragma)
    assert isinstance(value, int), f"PRAGMA {pragma} answers with a number"
    return value
