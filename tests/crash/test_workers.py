"""
Workers that are killed at random moments, over and over, on one database: all work completes, nothing twice, nothing
torn, and no call that began is missing from the ledger.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import optchat
from optchat.testing import DeterministicSummarizer
from tests.crash.laborer import POLICY, SCOPE
from tests.nursery import Nursery

pytestmark = pytest.mark.long

WORKERS = 4
EVERY_SECONDS = 0.2
CALL_SECONDS = 0.01


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.end()


def watched(path: Path) -> optchat.Memory:
    """A handle that works nothing, and arms nothing."""
    return optchat.open(path, scope=SCOPE, policy=POLICY, mode="ro")


def killed(nursery: Nursery, path: Path, log: Path, seconds: float) -> tuple[int, set[int]]:
    """Four workers, of which one is killed and replaced every so often; how many were, and those that are left."""
    chance = random.Random(20260201)
    order = {"path": str(path), "log": str(log), "seconds": CALL_SECONDS}
    alive = [nursery.spawn("tests.crash.laborer:work", **order) for _ in range(WORKERS)]
    kills = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(EVERY_SECONDS)
        victim = chance.randrange(len(alive))
        assert nursery.kill(alive[victim]).code == -9, "it ended by itself"
        alive[victim] = nursery.spawn("tests.crash.laborer:work", **order)
        kills += 1
    return kills, set(alive)


def wait_until_ready(memory: optchat.Memory) -> optchat.Status:
    """The workers that are left do the rest; a worker that does nothing more fails the test."""
    before, still = -1, time.monotonic() + 60
    while time.monotonic() < still:
        status = memory.status()
        if status.ready:
            return status
        if status.total.calls != before:
            before, still = status.total.calls, time.monotonic() + 60
        time.sleep(0.05)
    raise AssertionError(f"nobody goes on: {memory.status()}")


def rows(memory: optchat.Memory, sql: str) -> list[tuple[object, ...]]:
    with memory._scope.store.read() as db:
        return list(db.execute(sql))


def check(memory: optchat.Memory, log: Path, kills: int, turns: int) -> None:
    status = wait_until_ready(memory)
    assert (status.publications, status.stand_ins, status.failures) == (turns, 0, ())
    report = memory.verify()
    assert report.ok, report.faults
    assert rows(memory, "SELECT count(*) FROM job") == [(0,)]
    # Nothing twice: each summary that is stored was paid for by one call whose answer was taken, and no other was.
    made = dict(rows(memory, "SELECT r.kind, count(*) FROM node n JOIN recipe r USING (recipe_pk) GROUP BY r.kind"))
    outcomes = Counter(outcome for (outcome,) in rows(memory, "SELECT outcome FROM call"))
    assert outcomes["accepted"] == made["summary"]
    counted = dict(rows(memory, "SELECT kind, sum(nodes) FROM recipe WHERE kind <> 'join' GROUP BY kind"))
    assert counted == {kind: count for kind, count in made.items() if kind != "join"}
    # No call is missing: each that was made is in the ledger, and what else is there, a kill came before.
    asked = len(log.read_bytes().splitlines())
    began = sum(outcomes.values())
    assert asked <= began <= asked + kills
    # A call that nobody heard the end of is one that a kill, or the end, came between; each worker had one at a time.
    assert outcomes["started"] <= kills + WORKERS
    assert set(outcomes) <= {"accepted", "started", "cancelled"}


def run(nursery: Nursery, folder: Path, seconds: float, sessions: int, turns: int) -> None:
    path, log = folder / "memory.db", folder / "calls"
    assert nursery.run("tests.crash.laborer:fill", path=str(path), sessions=sessions, turns=turns).code == 0
    kills, alive = killed(nursery, path, log, seconds)
    with watched(path) as memory:
        in_time = memory.status()
        wait_until_ready(memory)
        for pid in alive:
            nursery.kill(pid)
        check(memory, log, kills, sessions * turns)
    assert kills >= seconds, "too few to mean anything"
    assert in_time.total.calls > 0
    with optchat.open(
        path, scope=SCOPE, policy=POLICY, compact="manual", summarizer=DeterministicSummarizer()
    ) as memory:
        assert memory.settle().ready, "and who comes next finds nothing to do"


def test_all_work_completes_whoever_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    run(nursery, tmp_path, seconds=4, sessions=4, turns=20)


@pytest.mark.soak
def test_all_work_completes_whoever_is_killed_for_long(nursery: Nursery, tmp_path: Path) -> None:
    run(nursery, tmp_path, seconds=20, sessions=12, turns=120)


def test_turns_that_are_said_meanwhile_are_published_too(nursery: Nursery, tmp_path: Path) -> None:
    """Writers and workers are killed on one file; a turn that was written down as ended is there, and published."""
    path, log = tmp_path / "memory.db", tmp_path / "calls"
    nursery.run("tests.crash.laborer:fill", path=str(path), sessions=1, turns=2)
    chance = random.Random(5)
    order = {"path": str(path), "log": str(log), "seconds": 0.002}
    workers = [nursery.spawn("tests.crash.laborer:work", **order) for _ in range(2)]
    rounds = int(os.environ.get("OPTCHAT_CRASH_ROUNDS", "3"))
    ended: list[str] = []
    for generation in range(rounds):
        said = tmp_path / f"said-{generation}"
        writer = nursery.spawn("tests.crash.laborer:seal", path=str(path), key="live", log=str(said))
        for _ in range(2):
            time.sleep(0.25)
            victim = chance.randrange(len(workers))
            nursery.kill(workers[victim])
            workers[victim] = nursery.spawn("tests.crash.laborer:work", **order)
        nursery.kill(writer)
        ended += said.read_text().split()
    with watched(path) as memory:
        wait_until_ready_and_quiet(memory)
        for pid in workers:
            nursery.kill(pid)
        session = memory.session("live", create=False)
        page = session.turns(limit=200)
        turns = list(page)
        while page.cursor is not None:
            page = session.turns(limit=200, cursor=page.cursor)
            turns += page
        found = {turn.id: turn for turn in turns}
        assert set(ended) <= set(found)
        assert {found[turn].outcome for turn in ended} == {"completed"}
        assert all(turn.publication_ref is not None for turn in turns)
        assert len(found) - len(ended) <= 2 * rounds
        assert memory.verify().ok


def wait_until_ready_and_quiet(memory: optchat.Memory) -> None:
    """Ready, and with no turn that its dead writer left open: the workers end those, too."""
    still = time.monotonic() + 60
    while time.monotonic() < still:
        if memory.status().ready and rows(memory, "SELECT count(*) FROM turn WHERE state = 'open'") == [(0,)]:
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody goes on: {memory.status()}")
