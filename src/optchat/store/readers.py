"""
Connections for reading, lent to one thread at a time.

Decides: which connection a reader gets, and which are kept for the next.
Refuses to know: transactions.

One reader has the large cache and is lent first; more are made as threads need them, and a few are kept. Where the
database is read as immutable (see ``files.fixed_file``) no lock protects a reader: a connection is lent only while the
file is as it was when the connection was opened, since what it has cached is of that file.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
from attrs import frozen

from optchat.core.errors import StoreBusy
from optchat.store import sqlite
from optchat.store.files import FixedFile, fixed_file

_MOST_IDLE = 4


@frozen(eq=False)
class Reader:
    """A connection, whether its cache is the large one, and the file it was opened on if that must not change."""

    db: apsw.Connection
    is_large: bool
    fixed: FixedFile | None

    def check_unchanged(self, path: Path) -> None:
        """Raise StoreBusy if the file was written while it was read as immutable: it may be of two moments."""
        if self.fixed is not None and fixed_file(path) != self.fixed:
            raise StoreBusy(f"{path} was changed while it was read without locks; read again")


class ReaderPool:
    """The readers of one handle."""

    def __init__(self, path: Path, *, creates_nothing: bool, busy_seconds: float) -> None:
        self._path = path
        self._creates_nothing = creates_nothing
        self._busy_seconds = busy_seconds
        self._guard = threading.Lock()
        self._idle: list[Reader] = []
        self._large_exists = False
        self._closed = False
        self._watcher: Reader | None = None
        self._watching = threading.Lock()

    def borrow(self) -> Reader:
        """Return a reader that is this caller's until ``give_back``."""
        while (reader := self._take_idle()) is not None:
            if reader.fixed is None or fixed_file(self._path) == reader.fixed:
                return reader
            self._discard(reader)
        with self._guard:
            is_large, self._large_exists = not self._large_exists, True
        try:
            return self._connect(sqlite.LARGE_CACHE_KIB if is_large else sqlite.SMALL_CACHE_KIB, is_large=is_large)
        except BaseException:
            if is_large:
                with self._guard:
                    self._large_exists = False
            raise

    def give_back(self, reader: Reader) -> bool:
        """
        Take a reader back and end its transaction.

        Returns:
            False where a cursor is unfinished, which would hold its snapshot for ever: the connection was closed.
        """
        finished = False
        try:
            if reader.db.in_transaction:
                reader.db.execute("COMMIT")
            finished = reader.db.txn_state("main") == apsw.SQLITE_TXN_NONE
        finally:
            with self._guard:
                keep = finished and not self._closed and (reader.is_large or len(self._idle) < _MOST_IDLE)
                if keep:
                    self._idle.insert(len(self._idle) if reader.is_large else 0, reader)
            if not keep:
                self._discard(reader)
        return finished

    def data_version(self) -> int:
        """Return a number that differs from an earlier answer if anybody has committed since."""
        with self._watching:
            watcher = self._watcher
            if watcher is not None and watcher.fixed is not None and fixed_file(self._path) != watcher.fixed:
                sqlite.close(watcher.db)
                watcher = None
            if watcher is None:
                watcher = self._watcher = self._connect(sqlite.TINY_CACHE_KIB, is_large=False)
            if watcher.fixed is not None:  # SQLite takes it for immutable and would answer the same for ever
                return watcher.fixed.modified_ns
            version = watcher.db.execute("PRAGMA data_version").get
        assert isinstance(version, int)
        return version

    def close(self) -> None:
        """Close what is not lent; what is lent is closed when it is given back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            sqlite.close(reader.db)
        with self._watching:
            if self._watcher is not None:
                sqlite.close(self._watcher.db)
                self._watcher = None

    def _connect(self, cache_kib: int, *, is_large: bool) -> Reader:
        fixed = fixed_file(self._path) if self._creates_nothing else None
        db = sqlite.connect_reader(
            self._path, cache_kib=cache_kib, busy_seconds=self._busy_seconds, immutable=fixed is not None
        )
        return Reader(db, is_large, fixed)

    def _take_idle(self) -> Reader | None:
        with self._guard:
            return self._idle.pop() if self._idle else None  # the large cache lies at the end whenever it is idle

    def _discard(self, reader: Reader) -> None:
        with self._guard:
            if reader.is_large:
                self._large_exists = False
        sqlite.close(reader.db)
