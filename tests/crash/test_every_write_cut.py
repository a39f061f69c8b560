"""
Invariant 9 for every write: whatever is cut, the state before or the state after is found, and all goes on from there.

The everyday suite cuts a sample; `nox -s crash` every operation of every use case, in three models (see ``vfs``).
"""

import random
import subprocess
import time
from collections.abc import Callable, Iterator

import apsw
import pytest
from attrs import evolve

from optchat.store import sqlite
from tests.crash import cutting
from tests.crash.conftest import EVERY, Say
from tests.crash.cutting import Figures, Recording, Torn, cut_everywhere, goes_on, look, placed, record
from tests.crash.use_cases import CASES, opened
from tests.crash.vfs import Disk, Image, Operation, cuts, recording, taken_from

pytestmark = pytest.mark.usefixtures("in_ram", "small_logs")

EVERYDAY = ["admit", "end", "rewind", "delete turns", "close", "open fresh"]
SAMPLE = 3  # points of a case: the first, the last, and between


@pytest.fixture
def small_logs() -> Iterator[None]:
    with cutting.small_logs():
        yield


@pytest.fixture(scope="module")
def total(say: Say) -> Iterator[Figures]:
    """Over all use cases; said when the last is done."""
    figures, started = Figures(), time.monotonic()
    yield figures
    if figures.points:
        say(f"all of them: {figures}, {time.monotonic() - started:.0f} s")


def sampled(recorded: Recording) -> Callable[[int], bool]:
    count = len(recorded.operations) - recorded.first
    return {recorded.first + count * place // (SAMPLE - 1) for place in range(SAMPLE)}.__contains__


@pytest.mark.parametrize("name", CASES if EVERY else EVERYDAY)
def test_a_cut_leaves_the_state_before_or_the_state_after(name: str, total: Figures, say: Say) -> None:
    recorded = record(CASES[name])
    assert len(recorded.operations) > recorded.first, "it wrote nothing"
    wanted = (lambda _point: True) if EVERY else sampled(recorded)
    figures = cut_everywhere(recorded, wanted=wanted)
    total.add(figures)
    say(f"{name}: {len(recorded.operations) - recorded.first} operations, {len(recorded.states)} states; {figures}")


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_a_cut_of_the_power_leaves_it_so_whatever_was_on_its_way(name: str, total: Figures) -> None:
    total.add(cut_everywhere(record(CASES[name]), draws=20, settle_every=5))


# ---- the first page --------------------------------------------------------------------------------------------------


def test_a_file_whose_first_page_was_torn_is_made_anew() -> None:
    """The probe took half a page for another application's file, for ever."""
    recorded = record(CASES["open fresh"])
    blank = recorded.states[0]
    writes = [
        number
        for number, operation in enumerate(recorded.operations)
        if (operation.kind, operation.role) == ("write", "main")
    ][:2]
    assert len(writes) == 2, "the application's id, and the log"
    lengths = (*range(0, 112, 4), *range(112, 4096, 256)) if EVERY else (1, 40, 70, 512)
    found = []
    for number in writes:
        for model in ("death", "dropped"):
            for length in lengths:
                for image in torn_pages(recorded, number, model, length):
                    with placed(image) as path:
                        found.append(look(path) == blank)
    assert all(found)
    with placed(image) as path:
        goes_on(path, blank)


def torn_pages(recorded: Recording, number: int, model: str, length: int) -> Iterator[Image]:
    """So much of a page, with the rest absent, or there and empty."""
    disk = Disk.of({})
    for operation in recorded.operations[:number]:
        disk.apply(operation)
    page = recorded.operations[number].data
    image = disk.image("death" if model == "death" else "dropped")
    old = image.get("main", b"")
    yield {**image, "main": page[:length] + old[length:]}
    yield {**image, "main": page[:length] + (old[length:] or bytes(len(page) - length))}


def test_an_index_of_the_log_that_outlived_a_cut_of_the_power_is_not_believed() -> None:
    """The file of shared memory may lie on the disk, too, with whatever it held: of another moment, or of none."""
    recorded = record(CASES["end"])
    wanted = range(recorded.first, len(recorded.operations) + 1, 1 if EVERY else 7)
    with placed(recorded.before) as path:
        memory = opened(path)
        stale = subprocess.run(["cat", f"{path}-shm"], check=True, capture_output=True).stdout
        memory.close()
    assert stale
    for cut in cuts(recorded.before, recorded.operations, wanted=wanted.__contains__):
        for index in (stale, bytes(len(stale)), random.Random(cut.point).randbytes(len(stale))):
            with placed(cut.image) as path:
                path.with_name("memory.db-shm").write_bytes(index)
                assert look(path) in recorded.allowed(cut.point)


# ---- the harness itself ----------------------------------------------------------------------------------------------


def test_what_is_recorded_is_what_lies_on_the_disk() -> None:
    for name in ("two handles", "open fresh", "truncate the log"):
        case = CASES[name]
        before = cutting.base_of(case)
        with placed(before) as path:
            with recording(path) as recorder, cutting.ExitStack() as stack:
                case.arrange(path, stack)()
            disk = Disk.of(before)
            for operation in recorder.operations:
                disk.apply(operation)
            assert dict(disk.image("death")) == dict(taken_from(path)), name


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"] if EVERY else ["NORMAL"])
def test_a_log_that_is_not_synced_is_found_out(synchronous: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = sqlite._keep_log

    def careless(db: apsw.Connection) -> None:
        keep(db)
        db.pragma("synchronous", synchronous)

    monkeypatch.setattr(sqlite, "_keep_log", careless)
    recorded = record(CASES["end"])
    monkeypatch.undo()
    with pytest.raises(Torn, match="and not"):
        cut_everywhere(recorded)


def test_a_disk_that_loses_more_than_it_may_is_found_out() -> None:
    """A write that was synced is taken away: what it was part of is not there, or is torn."""
    recorded = record(CASES["close"])
    lost = next(
        number
        for number, operation in enumerate(recorded.operations)
        if number > recorded.first and operation.kind == "write" and operation.role == "wal"
    )
    operations = [*recorded.operations]
    operations[lost] = Operation("write", "wal", operations[lost].offset, b"")
    spoiled = evolve(recorded, operations=operations)
    with pytest.raises(Torn):
        cut_everywhere(spoiled)
