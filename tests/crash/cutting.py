"""
Invariant 9, at every operation: record a use case once, cut it everywhere, and look at what is found after each cut.

What a cut leaves must be a state that a commit made: the one before or the one after, and never an earlier one than
what had been acknowledged by then. It is opened by the plain library, on the plain disk.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import xxhash
from attrs import Factory, define, evolve, frozen

import optchat
from optchat.core.errors import OptchatError
from optchat.memory import compaction
from optchat.store import connection, migrate
from optchat.store.connection import Store
from tests.crash.use_cases import UseCase, opened
from tests.crash.vfs import MODELS, Cut, Disk, Image, Model, Operation, cuts, place, recording, taken_from
from tests.engine.working import WanderingClock

# Owners are the processes themselves: each opening has its own row. A migration draws the scopes' secrets.
_UNCOUNTED = ("owner", "sqlite_schema")
_DRAWN = {"scope": ("secret",)}
_LOG_PAGES = 48  # instead of 1,000, which fresh files grow their log to: a cut of each is a cut of all
_NUMBERS = (
    "SELECT coalesce(max(scope_pk << 40 | next_publication), 0), coalesce(max(scope_pk << 40 | next_document), 0),"
    " coalesce(max(scope_pk << 40 | clock), 0), coalesce(max(scope_pk << 40 | epoch), 0),"
    " (SELECT coalesce(max(seq), 0) FROM sqlite_sequence), (SELECT coalesce(max(turn_pk), 0) FROM turn),"
    " (SELECT coalesce(max(session_pk), 0) FROM session) FROM scope"
)


class Torn(AssertionError):
    """What was found after a cut is no state that the use case made."""


@frozen
class State:
    """All rows of a file, as a digest; how many each table has; and the numbers that may never come again."""

    digest: str
    rows: tuple[int, ...]
    numbers: tuple[int, ...]


def state_of(db: apsw.Connection) -> State:
    """All rows that a transaction sees."""
    tables = db.execute(
        "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow') ORDER BY name"
    ).fetchall()
    digest, counts = xxhash.xxh3_128(), list[int]()
    for table, kind in tables:
        if table in _UNCOUNTED:
            continue
        columns = [row[1] for row in db.execute(f"PRAGMA table_info([{table}])")]
        shown = ", ".join(f"[{name}]" for name in columns if name not in _DRAWN.get(table, ()))
        rows = db.execute(f"SELECT {shown} FROM [{table}]").fetchall()
        digest.update(repr((table, rows)).encode())
        if kind == "table":
            counts.append(len(rows))
    numbers = db.execute(_NUMBERS).fetchone()
    assert numbers is not None
    return State(digest.hexdigest(), tuple(counts), tuple(numbers))


def opened_store(path: Path) -> Store:
    return Store.open(path, mode="rwc", lock_wait_seconds=5.0, clock=WanderingClock())


@contextmanager
def small_logs() -> Iterator[None]:
    """Files that are made in the block have a small log: an image is smaller, and the same things happen to it."""
    real, migrate.WAL_PAGES = migrate.WAL_PAGES, _LOG_PAGES
    try:
        yield
    finally:
        migrate.WAL_PAGES = real


@contextmanager
def placed(image: Image) -> Iterator[Path]:
    """An image in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="optchat-cut-"))
    try:
        place(image, folder / "memory.db")
        yield folder / "memory.db"
    finally:
        shutil.rmtree(folder)


# ---- recording -------------------------------------------------------------------------------------------------------


@frozen
class Recording:
    """
    A use case as it ran: what was done to the disk, where the case began in it, and the states that it went through.

    ``acknowledged`` has, for each state but the first, the point from which on it may not be lost.
    """

    before: Image
    operations: list[Operation]
    first: int
    states: list[State]
    acknowledged: list[int]
    case: UseCase

    def allowed(self, point: int) -> list[State]:
        """What may be found after a cut: the state that was acknowledged last, or the next one."""
        reached = sum(at <= point for at in self.acknowledged)
        return self.states[reached : reached + 2]


_bases: dict[Callable[[Path], None], Image] = {}


def base_of(case: UseCase) -> Image:
    """The closed file that a case begins with; made once."""
    if case.base not in _bases:
        with placed({}) as path:
            case.base(path)
            _bases[case.base] = taken_from(path)
    return _bases[case.base]


@contextmanager
def commits_noticed(notice: Callable[[], None]) -> Iterator[None]:
    """Call ``notice`` after each commit, while nothing else is written."""
    real = connection._commit

    def commit(db: apsw.Connection) -> None:
        real(db)
        notice()

    connection._commit = commit
    try:
        yield
    finally:
        connection._commit = real


def record(case: UseCase) -> Recording:
    """Run a case once, and remember it."""
    before = base_of(case)
    with placed(before) as path, recording(path) as recorder, ExitStack() as stack:
        action = case.arrange(path, stack)
        first = len(recorder.operations)
        commits: list[int] = []
        with commits_noticed(lambda: commits.append(len(recorder.operations))):
            action()
        operations = list(recorder.operations)
    return _with_states(Recording(before, operations, first, [], [], case), commits)


def _with_states(recording: Recording, commits: list[int]) -> Recording:
    states: list[State] = []
    acknowledged: list[int] = []
    points = [recording.first, *commits, len(recording.operations)]
    for point, image in images_at(recording.before, recording.operations, points):
        with placed(image) as path:
            found = look(path)
        if not states:
            states.append(found)
        elif found != states[-1]:  # a commit that wrote nothing made no state; nor did one of another kind of rows
            states.append(found)
            acknowledged.append(point)
    return evolve(recording, states=states, acknowledged=acknowledged)


def images_at(before: Image, operations: list[Operation], points: list[int]) -> Iterator[tuple[int, Image]]:
    """What lies on the disk at some points, in their order."""
    disk, done = Disk.of(before), 0
    for point in points:
        for operation in operations[done:point]:
            disk.apply(operation)
        done = point
        yield point, disk.image("death")


def look(path: Path) -> State:
    """The state that the store finds, and that SQLite finds nothing wrong with."""
    store = opened_store(path)
    try:
        with store.read() as db:
            said = db.execute("PRAGMA integrity_check").get
            assert said == "ok", said
            return state_of(db)
    finally:
        store.close()


# ---- looking at what is left -----------------------------------------------------------------------------------------


@define
class Figures:
    """
    How much was cut, and how much of it was different.

    ``images`` are files that differ; ``contents`` those of which SQLite makes another database, and each so manieth
    besides: what the store opens. ``settled`` are those that were worked with until nothing was left to do.
    """

    points: Counter[Model] = Factory(Counter)
    images: int = 0
    contents: int = 0
    settled: int = 0

    def add(self, other: "Figures") -> None:
        self.points += other.points
        self.images += other.images
        self.contents += other.contents
        self.settled += other.settled

    def __str__(self) -> str:
        models = ", ".join(f"{model} {self.points[model]}" for model in MODELS)
        return (
            f"{sum(self.points.values())} points ({models}), {self.images} images, {self.contents} opened, "
            f"{self.settled} settled"
        )


def cut_everywhere(
    recorded: Recording,
    *,
    wanted: Callable[[int], bool] = lambda _point: True,
    draws: int = 1,
    open_every: int = 10,
    settle_every: int = 100,
) -> Figures:
    """
    Cut a recording at the points that are wanted, and check each image that was not seen before.

    Args:
        draws: how many ways the power is cut at a point where bytes are on their way.
        open_every, settle_every: how many images are looked at more closely than they need be. For most of them SQLite
            recovers a database that is byte for byte one that was checked already.

    Raises:
        Torn: an image that is no allowed state, or cannot be worked with.
    """
    checker = _Checker(recorded, open_every, settle_every)
    for cut in cuts(recorded.before, recorded.operations, first=recorded.first, wanted=wanted, draws=draws):
        checker.check(cut)
    return checker.figures


@define
class _Checker:
    recorded: Recording
    open_every: int
    settle_every: int
    figures: Figures = Factory(Figures)
    by_image: dict[bytes, State] = Factory(dict)
    by_pages: dict[bytes, State] = Factory(dict)
    worked_with: set[State] = Factory(set)

    def check(self, cut: Cut) -> None:
        self.figures.points[cut.model] += 1
        key = _fingerprint(cut.image)
        if key not in self.by_image:
            self.figures.images += 1
            try:
                with placed(cut.image) as path:
                    self.by_image[key] = self._found(path)
            except (OptchatError, AssertionError, apsw.Error) as error:
                raise Torn(f"{self._where(cut)}: {type(error).__name__}: {error}") from error
        found, states = self.by_image[key], self.recorded.states
        allowed = self.recorded.allowed(cut.point)
        if found not in allowed:
            number = states.index(found) if found in states else None
            raise Torn(f"{self._where(cut)}: found state {number}, and not {[*map(states.index, allowed)]}")

    def _found(self, path: Path) -> State:
        migrate.look_at(path)
        pages = _recovered_pages(path)
        if pages in self.by_pages and self.figures.images % self.open_every:
            return self.by_pages[pages]
        self.figures.contents += 1
        found = look(path)
        if pages is not None:
            self.by_pages[pages] = found
        if found not in self.worked_with or self.figures.images % self.settle_every == 0:
            self.worked_with.add(found)
            self.figures.settled += 1
            case = self.recorded.case
            goes_on(path, found, damaged=case.damaged)
            for role, data in taken_from(path).items() if case.gone else ():
                assert case.gone not in data, f"bytes of what was scrubbed stand in {role}"
        return found

    def _where(self, cut: Cut) -> str:
        operations, first = self.recorded.operations, self.recorded.first
        before = operations[cut.point - 1] if cut.point else None
        after = operations[cut.point] if cut.point < len(operations) else None
        near = ", before ".join(
            f"{each.kind} {each.role} {each.offset}" if each else "the end" for each in (before, after)
        )
        return f"{cut.model} at {cut.point - first} of {len(operations) - first} (after {near})"


def _fingerprint(image: Image) -> bytes:
    digest = xxhash.xxh3_128()
    for role in sorted(image):
        digest.update(f"{role} {len(image[role])} ".encode())
        digest.update(image[role])
    return digest.digest()


def _recovered_pages(path: Path) -> bytes | None:
    """What SQLite makes of the files, written or not: all pages of the database. None: it would have to write."""
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.CantOpenError:
        return None
    try:
        return xxhash.xxh3_128_digest(db.serialize("main") or b"")
    except apsw.Error:
        return None
    finally:
        db.close()


def verified(memory: optchat.Memory) -> None:
    report = memory.verify()
    assert report.ok, report.faults


def goes_on(path: Path, left: State, *, damaged: bool = False) -> None:
    """Whoever comes next finds all the work that is left, does it, and uses no number again."""
    with opened(path) as memory:
        if damaged:
            memory.verify(repair=True)
        verified(memory)
        memory.retry_failed()  # time stands still, and would let nothing be tried again
        if memory.status().summarizer == "another-1":
            compaction.take_over(memory)
        with memory.session("who comes next").turn("goes on") as turn:
            turn.assistant("after the cut")
        status = memory.settle()
        assert status.ready, status
        assert not status.failures, status.failures
        assert not status.scrub_pending
        verified(memory)
        with memory._scope.store.read() as db:
            numbers = state_of(db).numbers
            published = db.execute(
                "SELECT publication_key FROM turn WHERE turn_id = :turn",
                {"turn": turn.id},
            ).get
        assert all(now >= before for now, before in zip(numbers, left.numbers, strict=True)), (numbers, left.numbers)
        assert isinstance(published, int)
        assert published >= left.numbers[0], "a publication's number came again"
