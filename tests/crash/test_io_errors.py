"""
A disk that fails at any operation: a clear error, nothing torn, and the same use case succeeds once it is mended.

The everyday suite takes a few operations of a few cases, `nox -s crash` some of every case, the soak every one.
"""

import time
from collections.abc import Iterator

import pytest

from tests.crash import cutting
from tests.crash.conftest import EVERY, Say
from tests.crash.failing import FAILINGS, Failures, Told
from tests.crash.use_cases import CASES

pytestmark = pytest.mark.usefixtures("in_ram", "small_logs")

EVERYDAY = ["end", "open fresh"]
MOST = {"I/O error": 20, "disk full": 20, "unreadable": 6} if EVERY else dict.fromkeys(FAILINGS, 2)
AFRESH = 8  # of so many failures one is taken up afresh as well


@pytest.fixture
def small_logs() -> Iterator[None]:
    with cutting.small_logs():
        yield


@pytest.fixture(scope="module")
def totals(say: Say) -> Iterator[dict[str, Told]]:
    """By the kind of failure; said when the last is done."""
    told, started = {kind: Told() for kind in FAILINGS}, time.monotonic()
    yield told
    for kind, each in told.items():
        say(f"{kind}: {each}")
    say(f"all disks that failed: {time.monotonic() - started:.0f} s")


def points(count: int, most: int) -> list[int]:
    """All, or so many of them from the first to the last."""
    if count <= most:
        return list(range(count))
    return sorted({place * (count - 1) // (most - 1) for place in range(most)})


def fail_at(failures: Failures, at: list[int]) -> Told:
    for number, point in enumerate(at):
        try:
            failures.fail(point, afresh=number % AFRESH == 1)
        except Exception as error:
            error.add_note(f"at operation {point} of {failures.rehearsed.points}")
            raise
    return failures.told


@pytest.mark.parametrize("name", CASES if EVERY else EVERYDAY)
@pytest.mark.parametrize("kind", FAILINGS)
def test_a_disk_that_fails_is_told_of_and_harms_nothing(name: str, kind: str, totals: dict[str, Told]) -> None:
    failures = Failures.of(CASES[name], FAILINGS[kind])
    totals[kind].add(fail_at(failures, points(failures.rehearsed.points, MOST[kind])))


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", FAILINGS)
def test_a_disk_that_fails_anywhere(name: str, kind: str, totals: dict[str, Told]) -> None:
    failures = Failures.of(CASES[name], FAILINGS[kind])
    totals[kind].add(fail_at(failures, list(range(failures.rehearsed.points))))
