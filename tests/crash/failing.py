"""
A disk that refuses: each operation of a use case fails once with an I/O error, or from it on the disk is full.

What is asked each time: the caller is told by an error of the hierarchy, or need not be told; what lies on the disk is
whole; and the same use case succeeds once the disk is mended, in the same process and in a fresh one.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import apsw
from attrs import Factory, define, frozen

from optchat.core.errors import StoreError, StoreFull
from optchat.store.writer_lock import LockFile
from tests.crash.cutting import base_of, commits_noticed, goes_on, images_at, look, placed, verified
from tests.crash.use_cases import UseCase, opened
from tests.crash.vfs import Fault, Image, Kind, recording

_EXTENDED: dict[Kind, int] = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


def io_error(kind: Kind) -> Exception:
    """As the system says it: a sector that cannot be read or written, a device that is gone."""
    if kind == "create":
        return apsw.CantOpenError("made to fail")
    error = apsw.IOError("made to fail")
    error.extendedresult = _EXTENDED[kind]
    return error


def disk_full(_kind: Kind) -> Exception:
    """As the system says it until somebody frees some space."""
    return apsw.FullError("made to fail")


@frozen
class Failing:
    """
    How a disk fails.

    Args:
        error: what it says.
        kinds: which operations it refuses.
        lasting: from the point on until it is mended; else once.
        says: what a caller is told.
    """

    error: Callable[[Kind], Exception]
    kinds: frozenset[Kind]
    lasting: bool
    says: type[StoreError]

    def fault(self, at: int) -> Fault:
        return Fault(at, self.error, self.kinds, self.lasting)


FAILINGS = {
    "I/O error": Failing(io_error, frozenset({"write", "sync", "truncate", "delete", "create"}), False, StoreError),
    "unreadable": Failing(io_error, frozenset({"read"}), False, StoreError),
    "disk full": Failing(disk_full, frozenset({"write", "truncate", "create"}), True, StoreFull),
}


@frozen
class Rehearsal:
    """A case on a sound disk: how many operations could fail, and how many rows its states have."""

    points: int
    rows: list[tuple[int, ...]]


@define
class Told:
    """What failures came to: how many there were, and what the caller heard of them."""

    failures: int = 0
    heard: Counter[str] = Factory(Counter)
    fresh: int = 0

    def add(self, other: "Told") -> None:
        self.failures += other.failures
        self.heard += other.heard
        self.fresh += other.fresh

    def __str__(self) -> str:
        heard = ", ".join(f"{name} {count}" for name, count in sorted(self.heard.items()))
        return f"{self.failures} failures ({heard}), {self.fresh} taken up afresh as well"


def rehearse(case: UseCase, failing: Failing) -> Rehearsal:
    """Run a case undisturbed."""
    fault = failing.fault(1 << 60)
    with placed(base_of(case)) as path, recording(path) as recorder, ExitStack() as stack:
        action = case.arrange(path, stack)
        points = [len(recorder.operations)]
        recorder.fault = fault
        with commits_noticed(lambda: points.append(len(recorder.operations))):
            action()
        recorder.fault = None
        points.append(len(recorder.operations))
        operations = list(recorder.operations)
    rows = []
    for _, image in images_at(base_of(case), operations, points):
        with placed(image) as path:
            rows.append(look(path).rows)
    return Rehearsal(fault.counted, rows)


@define
class Failures:
    """
    A case on disks that fail.

    What costs most, to verify a file, is done once for each number of rows that a failure leaves.
    """

    case: UseCase
    failing: Failing
    rehearsed: Rehearsal
    told: Told = Factory(Told)
    verified: set[tuple[int, ...]] = Factory(set)

    @staticmethod
    def of(case: UseCase, failing: Failing) -> "Failures":
        return Failures(case, failing, rehearse(case, failing))

    def fail(self, at: int, *, afresh: bool) -> None:
        """
        Run the case on a disk that fails at a point.

        Args:
            afresh: take the file up by a fresh handle as well, as another process would find it.
        """
        fault = self.failing.fault(at)
        heard: StoreError | None = None
        with placed(base_of(self.case)) as path, recording(path) as recorder:
            with ExitStack() as stack:
                action = self.case.arrange(path, stack)
                recorder.fault = fault
                try:
                    action()
                except self.failing.says as error:
                    heard = error
                fault.mended = True
                left = len(recorder.operations)
                if heard is not None and self.case.again:
                    action()
                done = len(recorder.operations)
            points = [left, done, len(recorder.operations)]
            operations = list(recorder.operations)
            assert not [lock for lock in LockFile._registry.values() if lock.path.parent == path.parent], "it is held"
        assert heard is None or isinstance(heard.__cause__, apsw.Error), "the driver's error is the cause"
        self.told.failures += fault.met > 0
        self.told.heard["nothing" if heard is None else type(heard).__name__] += 1
        images = dict(images_at(base_of(self.case), operations, points))
        before, after = self._whole(images[left]), self._whole(images[done])
        self._whole(images[len(operations)])
        if self.case.steady:
            assert before in self.rehearsed.rows, "half of something was left"
            if self.case.again and before == self.rehearsed.rows[0]:
                assert after == self.rehearsed.rows[-1], "the second attempt did something else"
        if afresh:
            self.told.fresh += 1
            self._taken_up(images[left])

    def _whole(self, image: Image) -> tuple[int, ...]:
        with placed(image) as path:
            rows = look(path).rows
            if rows not in self.verified and not self.case.damaged:
                self.verified.add(rows)
                with opened(path) as memory:
                    verified(memory)
        return rows

    def _taken_up(self, image: Image) -> None:
        with placed(image) as path:
            if self.case.anew:
                with ExitStack() as stack:
                    self.case.arrange(path, stack)()
            goes_on(path, look(path), damaged=self.case.damaged)
