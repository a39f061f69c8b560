"""
One open database file.

Decides: where a transaction begins and ends, and who may be in one.
Refuses to know: what is written.

Rules:

- A block is a transaction: what a reader sees does not move; what a writer did is committed at the block's normal end
  and undone by any exception. Blocks do not nest on one thread, in any combination: a decision made on one snapshot and
  committed on another is a lost update.
- One connection writes, under the writer lock; readers are lent to one thread at a time. (On a shared connection a
  second thread's insert joined the first's transaction, and was rolled back with it.)
- No cursor outlives its block: it would keep the log from ever being used anew.
- In this process the database's files are opened by SQLite alone. Closing any other descriptor of them would drop
  SQLite's record locks; acknowledged commits were lost that way. ``os.stat`` opens nothing.
- After ``os.fork()`` an inherited handle refuses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import apsw

from optchat.core.errors import ConfigError, StoreBusy, StoreError, StoreReadOnly
from optchat.core.ports import Clock
from optchat.store import migrate, owners, sqlite
from optchat.store.checkpointer import Checkpointer, passive_checkpoint
from optchat.store.errors import translate, translated
from optchat.store.files import Inode, StrPath, disk_bytes, inode, lock_path, resolve
from optchat.store.filesystem import network_filesystem
from optchat.store.readers import ReaderPool
from optchat.store.writer_lock import LockFile, poll

Mode: TypeAlias = Literal["rwc", "rw", "ro"]

_CHECKPOINT_WAIT_SECONDS = 1.0


class Store:
    """
    A handle on one database file: transactions, and who else is alive.

    Thread-safe. Refused after ``os.fork()``. Handles of one process on one file share its writer lock, slot and owner.
    """

    def __init__(self, path: Path, *, lock: LockFile | None, read_only: bool, lock_wait_seconds: float) -> None:
        """Use ``Store.open``."""
        self.path = path
        self.read_only = read_only
        self.owner_pk = 0
        self._lock = lock
        self._lock_wait_seconds = lock_wait_seconds
        self._pid = os.getpid()
        self._closed = False
        self._this_thread = _ThreadState()
        self._readers = ReaderPool(path, creates_nothing=read_only, busy_seconds=lock_wait_seconds)
        self._writer: apsw.Connection | None = None
        self._name = str(path)
        self._inode: Inode | None = None
        self._log_frames = 0
        self._checkpointer = Checkpointer(path, self._exclude_writers)
        self.when_undone: list[Callable[[], None]] = []  # what was believed of rows that a rollback took back

    @staticmethod
    def open(path: StrPath, *, mode: Mode, lock_wait_seconds: float, clock: Clock) -> Store:
        """
        Open the database, and make or migrate it as ``mode`` allows.

        Files are made readable by their owner only (0600). A process that opens for writing takes a slot and a row of
        ``owner``; its further handles share them.

        Args:
            path: of the database; links are followed.
            mode: "rwc" makes an absent file, and takes an empty one for fresh; "rw" does neither; "ro" makes and writes
                nothing at all, and reads from read-only media.
            lock_wait_seconds: how long opening, and each transaction, may wait for other writers. In real time: with a
                clock that a test moves by hand a wait would be endless.
            clock: for the row's ``started_at``.

        Raises:
            ConfigError: no database or no folder there, a network filesystem, or an older format under "ro".
            NotOurFile, SchemaTooNew: the file is left untouched.
            StoreReadOnly: it cannot be written here; or, under "ro", its log must be replayed first.
            StoreBusy: other writers did not let go in time.
        """
        file = resolve(path)
        filesystem = network_filesystem(file)
        if filesystem is not None:
            raise ConfigError(
                f"{file} lies on a network filesystem ({filesystem}), where SQLite's log and locks do not hold; "
                "move it to a local disk"
            )
        with translated(file):
            found = migrate.look_at(file)
            if found != "ours" and mode != "rwc":
                raise ConfigError(f"no database at {file}; check the path, or open with mode='rwc' to make one")
            if found == "absent" and not file.parent.is_dir():
                raise ConfigError(f"no folder {file.parent} to make {file.name} in; make the folder first")
            lock = LockFile.open(lock_path(file), create=mode != "ro")
            store = Store(file, lock=lock, read_only=mode == "ro", lock_wait_seconds=lock_wait_seconds)
            try:
                if mode == "ro":
                    store._open_for_reading()
                else:
                    store._open_for_writing(may_create=mode == "rwc", clock=clock)
            except BaseException:
                store._release()
                raise
        return store

    @contextmanager
    def read(self) -> Generator[apsw.Connection, None, None]:
        """
        Read within one transaction: everything in the block is of one moment.

        Yields:
            A connection that cannot write. Fetch rows whole: no cursor may outlive the block.

        Raises:
            RuntimeError: this thread is in a block already, or a cursor was left unfinished.
            SchemaTooNew: a newer optchat has migrated the file since it was opened.
            StoreBusy: under "ro" without locks, the file was changed meanwhile.
        """
        self._check_usable()
        self._this_thread.begin("reading")
        try:
            reader = self._readers.borrow()
            try:
                reader.db.execute("BEGIN")
                self._check_version(reader.db)
                yield reader.db
                reader.check_unchanged(self.path)
            finally:
                self._check_alive_here()  # what a child inherited is left alone
                finished = self._readers.give_back(reader)
            if not finished:
                raise RuntimeError("a cursor outlived its read block; fetch its rows whole inside the block")
        except apsw.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._this_thread.doing = None

    @contextmanager
    def write(self, *, wait_seconds: float | None = None) -> Generator[apsw.Connection, None, None]:
        """
        Write within one transaction, which no other writer enters.

        Atomicity: committed and on disk when the block has ended normally; undone by any exception.

        Args:
            wait_seconds: for the lock; None as the handle was opened.

        Yields:
            The writing connection. Never wait for a model, a tokenizer or another file in the block.

        Raises:
            StoreBusy: the lock was not had in time; the message names its holder.
            StoreReadOnly: opened with mode="ro".
            RuntimeError: this thread is in a block already, or a cursor was left unfinished.
            SchemaTooNew: a newer optchat has migrated the file since it was opened.
        """
        deadline = self._begin_writing(wait_seconds)
        try:
            db = self._writer_in_place(deadline)
            self._without_others(lambda: db.execute("BEGIN IMMEDIATE"), deadline)
            try:
                self._check_version(db)
                yield db
                self._check_alive_here()
                _commit(db)
            except BaseException:
                self._undo(db)
                raise
            self._checkpointer.committed(self._log_frames)
            self._check_no_cursor(db)
        except apsw.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._end_writing()

    @contextmanager
    def exclusive(self, *, wait_seconds: float | None = None) -> Generator[apsw.Connection, None, None]:
        """
        Hold the writer lock with no transaction open: for what SQLite does outside of one, as VACUUM.

        Raises: as ``write``.
        """
        deadline = self._begin_writing(wait_seconds)
        try:
            db = self._writer_in_place(deadline)
            try:
                yield db
                self._check_alive_here()
                _check_none_open(db)
            except BaseException:
                self._undo(db)
                raise
            self._checkpointer.committed(self._log_frames)
            self._check_no_cursor(db)
        except apsw.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._end_writing()

    def owner_alive(self, db: apsw.Connection, owner_pk: int) -> bool:
        """
        Tell whether the process of a row of ``owner`` still has the file open. False is proof; True may come late.

        Args:
            db: the transaction that the answer is for.
            owner_pk: as ``turn`` and ``job`` name it.
        """
        if owner_pk == self.owner_pk and not self.read_only:
            return True
        return owners.alive(db, self._lock, owner_pk)

    def data_version(self) -> int:
        """Return a number that differs from an earlier answer of this handle if anybody has committed since."""
        self._check_usable()
        with translated(self.path):
            return self._readers.data_version()

    def checkpoint(self) -> None:
        """
        Move what no reader needs from the log into the database, now and here; wait for nobody.

        Not for hot paths, nor needed in service: the background does it about every 1,000 frames.
        """
        self._check_writable()
        with translated(self.path):
            db = sqlite.connect_checkpointer(self.path)
            try:
                passive_checkpoint(db)
            finally:
                sqlite.close(db)

    def truncate_log(self, *, wait_seconds: float | None = None) -> bool:
        """
        Move the whole log into the database and empty it, under the writer lock. A step of erasing; never in service.

        Returns:
            False where a reader hinders it: then removed bytes may still stand in the log.
        """
        with self.exclusive(wait_seconds=wait_seconds) as db:
            try:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return False
            self._log_frames = 0
        return True

    def file_bytes(self) -> int:
        """Return what the database and its log take on disk, in bytes."""
        return disk_bytes(self.path)

    def close(self) -> None:
        """
        Close the handle. Idempotent; another thread's transaction ends first.

        A reader that another thread still holds is closed by that thread. The process's last handle frees its slot; the
        last of all moves the log into the database, and keeps the log file for the next (PERSIST_WAL). In a forked
        child nothing happens but that the handle counts as closed.

        Raises:
            RuntimeError: from within a block of this handle.
            StoreBusy: another thread was still writing after ``lock_wait_seconds``; the handle stays open.
        """
        if self._closed:
            return
        if self._pid != os.getpid():
            self._closed = True
            return
        if self._this_thread.doing is not None:
            raise RuntimeError("close() from within a read or write block: leave the block first")
        lock = self._lock
        if lock is None:
            self._release()
            return
        self._checkpointer.stop()  # it may be waiting for what is taken next
        lock.acquire_threads(time.monotonic() + self._lock_wait_seconds, self._lock_wait_seconds)
        try:
            with translated(self.path):
                self._release()
        finally:
            lock.release_threads()

    # ---- opening and closing -----------------------------------------------------------------------------------------

    def _open_for_writing(self, *, may_create: bool, clock: Clock) -> None:
        lock = self._lock
        assert lock is not None
        wait = self._lock_wait_seconds
        deadline = time.monotonic() + wait
        now = clock.now()
        with lock.hold(deadline, wait):
            db = self._connect_writer(deadline, may_create=may_create)
            if db.readonly("main"):
                raise StoreReadOnly(
                    f"{self.path} may not be written; make it and its folder writable, or open with mode='ro'"
                )
            self._without_others(lambda: migrate.prepare(db, self.path), deadline)
            sqlite.allow_tidying(db)
            db.set_wal_hook(self._note_log_frames)
            self._inode = inode(self._name)
            self._without_others(lambda: db.execute("BEGIN IMMEDIATE"), deadline)
            had_slot = lock.slot is not None
            try:
                owner_pk = owners.enter(db, lock, now)
                db.execute("COMMIT")
            except BaseException:
                self._undo(db)
                if not had_slot:
                    lock.free_slot()
                raise
            self.owner_pk = lock.owner_pk = owner_pk

    def _open_for_reading(self) -> None:
        reader = self._readers.borrow()
        try:
            version = migrate.version_of(reader.db)
        finally:
            self._readers.give_back(reader)
        if version == 0:
            raise ConfigError(f"no database at {self.path}: it was never finished; open with mode='rwc' to finish it")
        if version > migrate.FORMAT.version:
            raise migrate.too_new(self.path, version)
        if version < migrate.FORMAT.version:
            raise ConfigError(
                f"{self.path} has format {version}, older than {migrate.FORMAT.version}; open it once with mode='rw'"
            )

    def _release(self) -> None:
        if self._closed:  # another thread closed it while this one waited
            return
        self._closed = True
        self._checkpointer.stop()
        try:
            self._readers.close()
        finally:
            try:
                if self._writer is not None:  # the last one, since a reader cannot move the log into the database
                    sqlite.close(self._writer)
            finally:  # whatever the disk said: a slot that is never freed would pass this process's turns for live ones
                if self._lock is not None:
                    self._lock.close()

    # ---- the writer's rules ------------------------------------------------------------------------------------------

    def _begin_writing(self, wait_seconds: float | None) -> float:
        self._check_writable()
        assert self._lock is not None
        wait = self._lock_wait_seconds if wait_seconds is None else wait_seconds
        deadline = time.monotonic() + wait
        self._this_thread.begin("writing")
        try:
            self._lock.acquire(deadline, wait)
        except BaseException:
            self._this_thread.doing = None
            raise
        return deadline

    def _end_writing(self) -> None:
        assert self._lock is not None
        self._this_thread.doing = None
        self._lock.release()

    def _writer_in_place(self, deadline: float) -> apsw.Connection:
        self._check_usable()  # another thread may have closed the handle while this one waited
        assert self._lock is not None
        # Commits to a file that has no name any more would be acknowledged and lost.
        if not self._lock.in_place or inode(self._name) != self._inode:
            raise StoreError(
                f"{self.path}, or its lock file, was removed or replaced while it was open; "
                "close this handle and open again"
            )
        if self._writer is not None:
            return self._writer
        db = self._connect_writer(deadline, may_create=False)
        sqlite.allow_tidying(db)
        db.set_wal_hook(self._note_log_frames)
        return db

    def _connect_writer(self, deadline: float, *, may_create: bool) -> apsw.Connection:
        def connect() -> None:
            self._writer = sqlite.connect_writer(self.path, may_create=may_create)

        self._without_others(connect, deadline)
        assert self._writer is not None
        return self._writer

    def _without_others(self, action: Callable[[], object], deadline: float) -> None:
        # The writer lock is held, so only a program that does not know it can be in the way, SQLite's own recovery, or
        # the last process that closes: it has the file to itself while the log is moved.
        busy: apsw.BusyError | None = None

        def attempt() -> bool:
            nonlocal busy
            try:
                action()
            except apsw.BusyError as error:
                busy = error
                return False
            return True

        if not attempt() and not poll(attempt, deadline):
            raise StoreBusy(
                f"{self.path}: a program that does not keep optchat's lock is in a transaction, or a process is just "
                "closing the file; let it end and try again"
            ) from busy

    def _undo(self, db: apsw.Connection) -> None:
        if self._pid != os.getpid():
            return
        if db.in_transaction:
            db.execute("ROLLBACK")
        for forget in self.when_undone:
            forget()
        try:
            # Refused while a statement that writes is unfinished: the traceback may hold its cursor for long.
            db.execute("BEGIN")
            db.execute("COMMIT")
        except apsw.BusyError:
            self._replace_writer(db)
        else:
            if db.txn_state("main") != apsw.SQLITE_TXN_NONE:
                self._replace_writer(db)

    def _check_no_cursor(self, db: apsw.Connection) -> None:
        if db.txn_state("main") != apsw.SQLITE_TXN_NONE:
            self._replace_writer(db)
            raise RuntimeError(
                "a cursor outlived its block, whose changes are committed; fetch its rows whole inside the block"
            )

    def _replace_writer(self, db: apsw.Connection) -> None:
        # Which cursor is unfinished cannot be found from here: the next block gets a connection that is free of it.
        self._writer = None
        sqlite.close(db)

    @contextmanager
    def _exclude_writers(self) -> Generator[None, None, None]:
        assert self._lock is not None
        with self._lock.hold(time.monotonic() + _CHECKPOINT_WAIT_SECONDS, _CHECKPOINT_WAIT_SECONDS):
            yield

    def _note_log_frames(self, _db: apsw.Connection, _name: str, frames: int) -> int:
        self._log_frames = frames
        return apsw.SQLITE_OK

    # ---- checks ------------------------------------------------------------------------------------------------------

    def _check_alive_here(self) -> None:
        if self._pid != os.getpid():
            raise ConfigError(
                f"{self.path} was opened before this process was forked; open it again in the child, after the fork"
            )

    def _check_usable(self) -> None:
        self._check_alive_here()
        if self._closed:
            raise ConfigError(f"this handle on {self.path} is closed; open it again")

    def _check_writable(self) -> None:
        self._check_usable()
        if self.read_only:
            raise StoreReadOnly(f"{self.path} was opened with mode='ro'; open it with mode='rw' to write")

    def _check_version(self, db: apsw.Connection) -> None:
        # Another process may have migrated the file while this one had it open.
        version = migrate.version_of(db)
        if version > migrate.FORMAT.version:
            raise migrate.too_new(self.path, version)


class _ThreadState(threading.local):
    """What this thread is doing with the handle: blocks do not nest."""

    doing: str | None = None

    def begin(self, doing: str) -> None:
        if self.doing is not None:
            raise RuntimeError(f"this thread is {self.doing} already: leave that block before another begins")
        self.doing = doing


def _check_none_open(db: apsw.Connection) -> None:
    if db.in_transaction:
        raise RuntimeError("a transaction was left open in exclusive(): use write() for one")


def _commit(db: apsw.Connection) -> None:
    try:
        db.execute("COMMIT")
    except apsw.BusyError as error:  # with the log, and the lock held, only this connection can be in its own way
        raise RuntimeError(
            "a statement of the write block is unfinished; fetch its rows whole inside the block"
        ) from error
