"""
§ 16: crashes before and after each commit yield either the previous state or one complete new state, never a torn view.

Here for the use cases of the queue: each is killed at every write that SQLite does in it, before it and after it all.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import optchat
from optchat.memory import compaction
from optchat.testing import DeterministicSummarizer
from tests.acceptance import boundaries
from tests.nursery import Nursery

pytestmark = pytest.mark.long

EVERY = (
    int(os.environ.get("OPTCHAT_CRASH_ROUNDS", "3")) > 3
)  # else some of the writes: the first, the last, and between
SOME = 4


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.end()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="optchat-boundaries-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def base(place: Path) -> Path:
    (place / "base").mkdir()
    boundaries.prepare(str(place / "base" / "memory.db"))
    return place / "base"


def copied(base: Path, folder: Path) -> str:
    """A copy of a closed file, with what lies beside it."""
    shutil.copytree(base, folder)
    return str(folder / "memory.db")


def points(count: int) -> list[int]:
    """Which writes to die at; one more is after the last."""
    everything = range(1, count + 2)
    if EVERY or count < SOME:
        return list(everything)
    return sorted({everything[place * (len(everything) - 1) // (SOME - 1)] for place in range(SOME)})


@pytest.mark.parametrize("case", boundaries.CASES)
def test_a_crash_leaves_the_state_before_or_the_state_after(
    case: str, nursery: Nursery, base: Path, place: Path
) -> None:
    count, states = nursery.run(
        "tests.acceptance.boundaries:rehearse", path=copied(base, place / case), case=case
    ).result
    assert len(set(states)) >= 2, "it did something"
    seen = set[int]()
    for dies_at in points(count):
        path = copied(base, place / f"{case}-{dies_at}")
        assert nursery.run("tests.acceptance.boundaries:crash", path=path, case=case, dies_at=dies_at).code == -9
        found = boundaries.state_of(path)
        assert found in states, f"torn at write {dies_at} of {count}"
        if states.index(found) not in seen or (EVERY and dies_at % 8 == 0):
            goes_on(path)
        seen.add(states.index(found))
    assert {0, len(states) - 1} <= seen, "killed before the first commit, and after the last"


def goes_on(path: str) -> None:
    """Whoever comes next finds all that is left to do, and does it."""
    with optchat.open(path, scope="test", compact="manual", summarizer=DeterministicSummarizer()) as memory:
        if memory.status().paused is not None:
            memory.retry_failed()
        if memory.status().summarizer == "another-1":
            compaction.take_over(memory)
        status = memory.settle()
        assert (status.ready, status.publications) == (True, 5), status
        assert memory.search("heliotrope").unindexed == 0
        report = memory.verify()
        assert report.ok, report.faults
