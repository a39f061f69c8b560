"""
One SQLite connection, set up as this library needs it.

Decides: every setting of a connection, by what it is for.
Refuses to know: transactions, and who uses it.

Settings are per connection; no hook of APSW that is the process's is touched. A connection that was inherited through
``os.fork()`` must never be closed in the child, not even by being collected: SQLite there would take itself for the
last user of the log. So every open connection is known here, and a child keeps them all for good.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import apsw

from optchat.store.files import database_uri, lock_path

LARGE_CACHE_KIB = 64 * 1024
SMALL_CACHE_KIB = 4 * 1024
TINY_CACHE_KIB = 64
_CHECKPOINTERS_PATIENCE_SECONDS = 1.0
_CACHED_STATEMENTS = 256

_open_connections: set[apsw.Connection] = set()
_guard = threading.Lock()


def connect_writer(path: Path, *, may_create: bool) -> apsw.Connection:
    """
    Open the connection that writes. Until ``allow_tidying`` it leaves a file as it found it when it is closed.

    Args:
        may_create: make an absent file, with the permissions of its lock file, as are all that SQLite makes beside it.

    Raises:
        apsw.BusyError: the last process that had it open is just closing it. Waiting is the caller's, as ever.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if may_create else 0)
    db = _connect(database_uri(path, modeof=str(lock_path(path))), flags, LARGE_CACHE_KIB)
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        _keep_log(db)
        db.pragma("secure_delete", "ON")
    except BaseException:
        close(db)
        raise
    return db


def allow_tidying(db: apsw.Connection) -> None:
    """Let the last connection move the log into the database when it closes: the file is ours for certain."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def connect_checkpointer(path: Path) -> apsw.Connection:
    """Open a connection for checkpoints alone."""
    db = _connect(database_uri(path), apsw.SQLITE_OPEN_READWRITE, TINY_CACHE_KIB, _CHECKPOINTERS_PATIENCE_SECONDS)
    try:
        db.set_busy_timeout(0)
        _keep_log(db)
    except BaseException:
        close(db)
        raise
    return db


def connect_reader(path: Path, *, cache_kib: int, busy_seconds: float, immutable: bool = False) -> apsw.Connection:
    """
    Open a connection that cannot write.

    Args:
        busy_seconds: how long to wait while another process recovers or closes the log.
        immutable: take no lock and look for no log: the file must not change.
    """
    uri = database_uri(path, immutable="1") if immutable else database_uri(path)
    return _connect(uri, apsw.SQLITE_OPEN_READONLY, cache_kib, busy_seconds)


def connect_copy(path: Path, like: Path) -> apsw.Connection:
    """
    Make a new file to copy into: no log, no journal beside it, and on disk when a transaction of it has ended.

    Args:
        like: the database whose permissions it gets.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = _connect(database_uri(path, modeof=str(lock_path(like))), flags, TINY_CACHE_KIB)
    try:
        db.pragma("journal_mode", "MEMORY")  # a copy that was cut off is thrown away
        db.pragma("synchronous", "FULL")
    except BaseException:
        close(db)
        raise
    return db


def close(db: apsw.Connection) -> None:
    """Close a connection, and what is unfinished on it. Idempotent."""
    with _guard:
        _open_connections.discard(db)
    db.close()


def _connect(uri: str, flags: int, cache_kib: int, busy_seconds: float = 0.0) -> apsw.Connection:
    # Before anything else: the pragmas read the file already, which the last process to close it has to itself while it
    # moves the log. (For a writer a busy timeout would be a wait that starves: its waiting is the writer lock's.)
    db = apsw.Connection(uri, flags=flags | apsw.SQLITE_OPEN_URI, statementcachesize=_CACHED_STATEMENTS)
    with _guard:
        _open_connections.add(db)
    try:
        db.set_busy_timeout(int(busy_seconds * 1000))
        for option, value in (
            (apsw.SQLITE_DBCONFIG_DQS_DML, 0),
            (apsw.SQLITE_DBCONFIG_DQS_DDL, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1),
            (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
            (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
        ):
            db.config(option, value)
        db.pragma("cache_size", -cache_kib)
        db.pragma("temp_store", "MEMORY")
        db.pragma("mmap_size", 0)
    except BaseException:
        close(db)
        raise
    return db


def _keep_log(db: apsw.Connection) -> None:
    db.pragma("synchronous", "FULL")
    db.wal_autocheckpoint(0)  # inline checkpoints cost a commit up to 43 ms (measured)
    # Without it the last connection to close deletes the log, and the next one grows it anew.
    flag = ctypes.c_int(1)
    db.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(flag))


def _keep_inherited_connections() -> None:
    global _guard  # noqa: PLW0603  another thread of the parent may have held the one before
    _guard = threading.Lock()
    for db in _open_connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))  # what is referred to for ever is never collected
    _open_connections.clear()


os.register_at_fork(after_in_child=_keep_inherited_connections)
