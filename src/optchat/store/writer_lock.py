"""
Who writes next.

Decides: the order of writers over threads and processes, who holds the lock, and whether another process is alive.
Refuses to know: SQL, and what a lock guards.

Rules (§ 12; each is a schedule that broke a simpler design):

- One thread mutex per (process, lock file), then one ``fcntl`` record lock on byte 0, polled without blocking. A
  blocking ``flock`` ignores deadlines, two threads on one descriptor both get it, and a forked child keeps a killed
  parent's. A plain busy timeout starves: of two processes one wrote nothing.
- A record lock belongs to a process and an inode, and closing *any* descriptor of the inode drops it. So the lock file
  is opened once a process, kept in a registry by (device, inode), and closed only with the last handle.
- Where a commit takes long (a busy disk: 5 ms), the moment between two transactions of one process is too short for
  pollers to hit, and it would write on and on. So waiters show themselves by a shared lock on a byte of its own, and a
  process that has written for ``_TENURE_SECONDS`` without a pause looks for them, and lets one go first. (Measured
  interleaved on a busy disk, 2 and 4 processes: worst wait 88 to 1186 ms without, 13 to 83 ms with it.)
- Byte 1 + slot is held from open to close. The kernel frees it with the process, however it ends: whoever can lock the
  byte has proof that the slot's owner is dead. No clock, heartbeat or pid is trusted.
- A forked child holds none of its parent's record locks: the registry is made anew there, and inherited handles refuse.

Waits are real time (``time.monotonic``), never the library's ``Clock``: a clock that a test moves by hand would make a
wait endless.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from optchat.core.errors import StoreBusy, StoreError, StoreReadOnly
from optchat.store.files import Inode, inode

_WRITER_BYTE = 0
_FIRST_SLOT_BYTE = 1
_MOST_SLOTS = 1 << 20  # far above any number of processes: a bound for the search, not a limit to meet

_WAITING_BYTE = _FIRST_SLOT_BYTE + _MOST_SLOTS

# Jitter keeps pollers from marching in step. A pause for others is longer than any poller's, so that one must come by.
_POLL_SECONDS = (0.0001, 0.0006)
_PATIENT_POLL_SECONDS = (0.0002, 0.0012)
_PATIENT_AFTER_SECONDS = 1.0
_TENURE_SECONDS = 0.005
_COURTESY_SECONDS = 0.0013
_REFUSED = frozenset({errno.EACCES, errno.EAGAIN})


def poll(attempt: Callable[[], bool], deadline: float) -> bool:
    """
    Try until it succeeds or the deadline has passed; at least once.

    Args:
        attempt: must not block; True when it succeeded.
        deadline: on ``time.monotonic``.

    Returns:
        Whether an attempt succeeded.
    """
    started = time.monotonic()
    while not attempt():
        now = time.monotonic()
        if now >= deadline:
            return False
        low, high = _POLL_SECONDS if now - started < _PATIENT_AFTER_SECONDS else _PATIENT_POLL_SECONDS
        time.sleep(min(random.uniform(low, high), deadline - now))  # noqa: S311  jitter, no secret
    return True


class HandoverMutex:
    """
    A mutex of threads with a deadline, first come, first served.

    ``threading.Lock`` lets the thread that releases it take it again before a woken waiter runs: a thread that writes
    in a loop would starve the others of its process. Here release hands the mutex to the longest waiter.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holder: int | None = None
        self._waiters: deque[tuple[int, threading.Lock]] = deque()

    @property
    def held_by_this_thread(self) -> bool:
        # Unguarded: only this thread can make, or unmake, its own identity the holder's.
        return self._holder == threading.get_ident()

    def acquire(self, deadline: float) -> bool:
        """Wait for the mutex until the deadline (on ``time.monotonic``); return whether it is held now."""
        me = threading.get_ident()
        with self._guard:
            if self._holder is None:
                self._holder = me
                return True
            turn = threading.Lock()
            turn.acquire()
            waiter = (me, turn)
            self._waiters.append(waiter)
        try:
            timeout = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
            if turn.acquire(timeout=timeout):
                return True
        except BaseException:  # a signal's exception: leave the queue, or pass on what was handed over meanwhile
            if not self._withdraw(waiter):
                self.release()
            raise
        return not self._withdraw(waiter)

    def release(self) -> None:
        """Hand the mutex to the longest waiter, or free it."""
        with self._guard:
            if self._waiters:
                self._holder, turn = self._waiters.popleft()
                turn.release()
            else:
                self._holder = None

    def _withdraw(self, waiter: tuple[int, threading.Lock]) -> bool:
        # False: release() took the waiter out between the timeout and here, so the mutex is this thread's already.
        with self._guard:
            if waiter not in self._waiters:
                return False
            self._waiters.remove(waiter)
            return True


class LockFile:
    """
    This process's one hold on a lock file, shared by all its handles of that file.

    ``slot`` and ``owner_pk`` describe this process while it has the file open for writing. Both are written under the
    writer lock only.
    """

    _registry: ClassVar[dict[Inode, LockFile]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path, key: Inode, descriptor: int, writable: bool) -> None:
        self.path = path
        self._name = str(path)
        self.slot: int | None = None
        self.owner_pk = 0
        self._inode = key
        self.descriptors = [descriptor]  # the last one is used; the others wait, unused, for the last handle to close
        self.writable = writable
        self.handles = 0
        self._mutex = HandoverMutex()
        # Under the mutex: since when this process has written without a pause in which others could have come, and when
        # it last let go.
        self._writing_since = 0.0
        self._released_at = 0.0

    @classmethod
    def open(cls, path: Path, *, create: bool) -> LockFile | None:
        """
        Count one more handle of this process on the lock file; ``close`` counts it off.

        Args:
            path: of the lock file; it is made, readable by its owner only, if ``create`` says so.
            create: whether this handle will write. Without it nothing is made, and an absent file gives None.

        Raises:
            StoreReadOnly: the file cannot be made or written here.
        """
        with cls._guard:
            lock = cls._known(path)
            if lock is None or (create and not lock.writable):
                descriptor, writable = _open_lock_file(path, create=create)
                if descriptor is None:
                    return None
                lock = cls._enter(path, descriptor, writable)
            lock.handles += 1
            return lock

    @classmethod
    def _known(cls, path: Path) -> LockFile | None:
        key = inode(path)
        return None if key is None else cls._registry.get(key)

    @classmethod
    def _enter(cls, path: Path, descriptor: int, writable: bool) -> LockFile:
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        lock = cls._registry.get(key)
        if lock is None:
            lock = cls._registry[key] = cls(path, key, descriptor, writable)
        else:  # a second descriptor of one inode: it may only be closed together with the first
            lock.descriptors.append(descriptor)
            lock.writable = lock.writable or writable
        return lock

    def close(self) -> None:
        """Count a handle off. The last one frees the slot, and whatever else this process holds in the file."""
        with self._guard:
            self.handles -= 1
            if self.handles == 0:
                self._registry.pop(self._inode, None)
                for descriptor in self.descriptors:
                    os.close(descriptor)
                self.descriptors.clear()
                self.slot, self.owner_pk = None, 0

    @classmethod
    def forget_parent(cls) -> None:
        """
        Start anew in a forked child.

        Closing the inherited descriptors is safe only now, while the child holds no record lock of its own.
        """
        cls._guard = threading.Lock()  # another thread of the parent may have held it
        for lock in cls._registry.values():
            for descriptor in lock.descriptors:
                os.close(descriptor)
            lock.descriptors.clear()
        cls._registry.clear()

    @property
    def held_by_this_thread(self) -> bool:
        """Whether this thread holds the writer lock, through any handle of this process."""
        return self._mutex.held_by_this_thread

    @property
    def in_place(self) -> bool:
        """Whether the path still names the file that is held: a removed lock file orders nobody."""
        return inode(self._name) == self._inode

    def acquire(self, deadline: float, waited_seconds: float) -> None:
        """
        Take the writer lock: until ``release`` no other thread or process that keeps these rules writes.

        Args:
            deadline: on ``time.monotonic``.
            waited_seconds: how long that is from the caller's start, for the message.

        Raises:
            RuntimeError: this thread holds it already; the lock is not reentrant.
            StoreBusy: it was not had before the deadline; the message names the holder.
        """
        self.acquire_threads(deadline, waited_seconds)
        try:
            self._let_others_go_first(deadline)
            if not self._try_lock(_WRITER_BYTE) and not self._wait(deadline):
                raise StoreBusy(  # noqa: TRY301  the handler is the one exit for this, a signal and a refusing system
                    f"{self._database}: {self._describe_holder()} was still writing after {waited_seconds:g} s; "
                    "try again, or raise Policy.lock_wait_seconds"
                )
        except BaseException:
            self.release_threads()
            raise

    def release(self) -> None:
        """Let the next writer go on."""
        try:
            self._unlock(_WRITER_BYTE)
            self._released_at = time.monotonic()
        finally:
            self.release_threads()

    @contextmanager
    def hold(self, deadline: float, waited_seconds: float) -> Generator[None, None, None]:
        """Hold the writer lock for a block; as ``acquire``."""
        self.acquire(deadline, waited_seconds)
        try:
            yield
        finally:
            self.release()

    def acquire_threads(self, deadline: float, waited_seconds: float) -> None:
        """
        Take this process's part of the lock alone: none of its threads writes. Other processes may.

        Raises:
            RuntimeError: this thread holds it already.
            StoreBusy: another thread still wrote at the deadline.
        """
        if self._mutex.held_by_this_thread:
            raise RuntimeError("this thread is writing already: leave the transaction's block first")
        if not self._mutex.acquire(deadline):
            raise StoreBusy(
                f"{self._database}: another thread of this process was still writing after {waited_seconds:g} s; "
                "let its transaction end and try again"
            )

    def release_threads(self) -> None:
        """Let the next thread of this process go on."""
        self._mutex.release()

    def claim_slot(self) -> int:
        """
        Hold the lowest free slot until the last handle closes. The caller holds the writer lock.

        Returns:
            The slot, the same for every handle of this process.
        """
        if self.slot is None:
            for slot in range(_MOST_SLOTS):
                if self._try_lock(_FIRST_SLOT_BYTE + slot):
                    self.slot = slot
                    break
            else:
                raise StoreBusy(
                    f"{self._database}: every slot for a process is taken; close some of them and try again"
                )
        return self.slot

    def free_slot(self) -> None:
        """Give the slot back: the transaction that would have made it known failed. As ``claim_slot``."""
        if self.slot is not None:
            self._unlock(_FIRST_SLOT_BYTE + self.slot)
            self.slot = None

    def slot_taken(self, slot: int) -> bool:
        """
        Whether a living process holds the slot.

        A shared lock is tried, so that two probes do not take each other for the owner; and never on this process's own
        slot, where releasing the probe would release the slot.
        """
        if slot == self.slot:
            return True
        byte = _FIRST_SLOT_BYTE + slot
        if not self._try_lock(byte, fcntl.LOCK_SH):
            return True
        self._unlock(byte)
        return False

    def _wait(self, deadline: float) -> bool:
        self._try_lock(_WAITING_BYTE, fcntl.LOCK_SH)  # refused for a moment while somebody looks: then it looks again
        try:
            return poll(lambda: self._try_lock(_WRITER_BYTE), deadline)
        finally:
            self._unlock(_WAITING_BYTE)

    def _let_others_go_first(self, deadline: float) -> None:
        now = time.monotonic()
        if now - self._released_at > _COURTESY_SECONDS:
            self._writing_since = now
        elif now - self._writing_since > _TENURE_SECONDS:
            if self._try_lock(_WAITING_BYTE):
                self._unlock(_WAITING_BYTE)
            elif now < deadline:
                time.sleep(min(_COURTESY_SECONDS, deadline - now))
            self._writing_since = time.monotonic()

    @property
    def _descriptor(self) -> int:
        return self.descriptors[-1]

    @property
    def _database(self) -> str:
        return self._name.removesuffix("-lock")

    def _try_lock(self, byte: int, kind: int = fcntl.LOCK_EX) -> bool:
        try:
            fcntl.lockf(self._descriptor, kind | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in _REFUSED:
                return False
            raise StoreError(
                f"{self.path}: the system refused a record lock ({error}); keep the database on a local disk"
            ) from error
        return True

    def _unlock(self, byte: int) -> None:
        if not self.descriptors:  # a block that was entered before a fork ends in the child, which holds nothing
            return
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)

    def _describe_holder(self) -> str:
        pid = _holder_pid(self._descriptor, _WRITER_BYTE)
        if pid is None:
            return "another process"
        if pid <= 0:  # the kernel gives no number across pid namespaces
            return "a process of another container"
        if _is_stopped(pid):
            return f"process {pid}, which is stopped (continue it with `kill -CONT {pid}`, or end it),"
        return f"process {pid}"


def _open_lock_file(path: Path, *, create: bool) -> tuple[int | None, bool]:
    # O_NOFOLLOW: in a shared folder somebody else's link could make us create a file elsewhere.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o600), True
    except FileNotFoundError as error:
        if not create:
            return None, False
        raise StoreError(f"{path}: the folder is gone ({error}); make it and open again") from error
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreError(
                f"{path}: cannot open the lock file ({error}); move what is there out of the way"
            ) from error
        if create:
            raise StoreReadOnly(
                f"{path}: cannot write the lock file ({error}); make the folder writable, or open with mode='ro'"
            ) from error
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), False
    except OSError:  # a reader does without: it only loses the proof that other processes live
        return None, False


# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi0q")


def _holder_pid(descriptor: int, byte: int) -> int | None:
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else pid


def _is_stopped(pid: int) -> bool:
    try:
        # The name stands in brackets and may hold any character: the state follows the last bracket.
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


os.register_at_fork(after_in_child=LockFile.forget_parent)
