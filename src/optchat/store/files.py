"""
The database's files, by their names only.

Decides: where the files beside a database lie, and how a reader that may create nothing can read it.
Refuses to know: what is in them. Nothing here opens one of them: closing a descriptor would drop SQLite's record locks.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from attrs import frozen

from optchat.core.errors import BadArgument, StoreReadOnly

StrPath: TypeAlias = str | PathLike[str]
Inode: TypeAlias = tuple[int, int]  # device and number


def resolve(path: StrPath) -> Path:
    """Return the absolute path with links followed, as SQLite does: one file has one log and one lock file."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise BadArgument(f"{path!r} cannot be a path ({error}); name a file") from error


def database_uri(path: Path, **parameters: str) -> str:
    """Return SQLite's URI of an absolute path; file names of any bytes survive."""
    query = "&".join(f"{name}={quote(os.fsencode(value))}" for name, value in parameters.items())
    return f"{path.as_uri()}?{query}" if query else path.as_uri()


def lock_path(database: Path) -> Path:
    """Where the lock file lies. It is never removed: a new one would order nobody."""
    return _beside(database, "-lock")


def inode(path: str | Path) -> Inode | None:
    """Return which file a path names now; None for none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def disk_bytes(database: Path) -> int:
    """Return what the database and its log take, in bytes."""
    return sum(_size(path) or 0 for path in (database, _beside(database, "-wal")))


@frozen
class FixedFile:
    """A database that is read as immutable: what must not change under its reader."""

    inode: Inode
    size_bytes: int
    modified_ns: int


def fixed_file(database: Path) -> FixedFile | None:
    """
    Tell how a database can be read by one who may create nothing.

    SQLite reads a log only with its index, and would make what is missing. Where both are there they are used. Where
    there is no log, the file alone is the database: it is read as immutable, which takes no lock, so the reader must
    compare this value before and after. A log without its index would have to be replayed, which writes.

    Returns:
        None: open it as usual. Else: open it as immutable while this value stays the same.

    Raises:
        StoreReadOnly: a log must be replayed first.
    """
    log_bytes = _size(_beside(database, "-wal"))
    if log_bytes is not None and _size(_beside(database, "-shm")) is not None:
        return None
    if log_bytes:
        raise StoreReadOnly(
            f"{database} has a log that must be replayed before anyone can read it; "
            "open it once with mode='rw' where it can be written"
        )
    status = os.stat(database)
    return FixedFile((status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
