"""
Writers, readers, workers and a deleter on one file, killed at random moments and replaced at once.

pytestmark = pytest.mark.long

A supervisor's log of what was acknowledged is the truth: nothing of it is lost, nothing is there twice, and what was
deleted is gone.
"""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from attrs import Factory, define

import optchat
from tests.crash.conftest import EVERY, ROUNDS, Say
from tests.crash.crew import DOOMED, opened
from tests.nursery import Nursery

SECONDS = 10.0 if EVERY else 1.2
LINUX_KILLED = -9


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.end()


@define
class Log:
    """What the processes were told, as far as they had time to write it down."""

    began: dict[str, dict[str, Any]] = Factory(dict)
    sealed: dict[str, dict[str, Any]] = Factory(dict)
    ended: dict[str, str] = Factory(dict)
    said: set[str] = Factory(set)
    deleted: set[str] = Factory(set)
    turns_deleted: set[str] = Factory(set)
    noted: dict[str, str] = Factory(dict)
    reads: int = 0
    closings: int = 0
    refused: list[str] = Factory(list)

    def read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            fact = json.loads(line)
            if "began" in fact:
                self.began[fact["began"]] = fact
            elif "sealed" in fact:
                self.sealed[fact["sealed"]] = fact
            elif "ended" in fact:
                self.ended[fact["ended"]] = fact["outcome"]
            elif "said" in fact:
                self.said.add(fact["said"])
            elif "turn_deleted" in fact:
                self.turns_deleted.add(fact["turn_deleted"])
            elif "noted" in fact:
                self.noted[fact["noted"]] = fact["text"]
            elif "read" in fact:
                self.reads += 1
            elif "closed" in fact:
                self.closings += 1
            elif "refused" in fact:
                self.refused.append(fact["refused"])
            elif "deleted" in fact:
                self.deleted.add(fact["deleted"])


Crew: TypeAlias = list[tuple[str, dict[str, str]]]


def orders(path: Path, folder: Path) -> Crew:
    database = str(path)
    return [
        *(
            ("tests.crash.crew:write", {"path": database, "key": f"writer {n}", "log": str(folder / f"writer-{n}")})
            for n in range(3)
        ),
        ("tests.crash.crew:read", {"path": database, "log": str(folder / "reader")}),
        ("tests.crash.crew:work", {"path": database, "log": str(folder / "worker-0")}),
        ("tests.crash.crew:work", {"path": database, "log": str(folder / "worker-1")}),
        ("tests.crash.crew:delete", {"path": database, "log": str(folder / "deleter")}),
        ("tests.crash.crew:come_and_go", {"path": database, "key": "notes", "log": str(folder / "guest")}),
    ]


def kill_at_random(nursery: Nursery, crew: Crew, seconds: float, seed: int) -> tuple[int, Log]:
    """
    Kill one after the other and replace it; in the end all are.

    Returns:
        How many were killed, and what was written down.
    """
    chance = random.Random(seed)
    alive = [nursery.spawn(target, **arguments) for target, arguments in crew]
    codes: list[int] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.02, 0.25))
        victim = chance.randrange(len(alive))
        codes.append(nursery.kill(alive[victim]).code)
        alive[victim] = nursery.spawn(crew[victim][0], **crew[victim][1])
    codes += [nursery.kill(pid).code for pid in alive]
    log = Log()
    for _, arguments in crew:
        log.read(Path(arguments["log"]))
    assert not log.refused, log.refused[0]
    assert set(codes) == {LINUX_KILLED}, "one ended by itself"
    return len(codes), log


def all_turns(session: "optchat.Session[optchat.HostMessage]") -> list[optchat.TurnInfo]:
    page = session.turns(limit=200)
    turns = list(page)
    while page.cursor is not None:
        page = session.turns(limit=200, cursor=page.cursor)
        turns += page
    return turns


def check(path: Path, log: Log, kills: int) -> int:
    """All that was acknowledged is there once, and works; how many turns there are."""
    with opened(str(path), compact="manual") as memory:
        status = memory.settle(timeout_seconds=120)
        assert status.ready, status
        assert (status.pending, status.failures, status.scrub_pending) == (0, (), False), status
        report = memory.verify()
        assert report.ok, report.faults
        check_said(memory, log, kills)
        check_noted(memory, log)
        for key in check_forgotten(memory, log, kills):
            memory.session(key).delete()
        assert not memory.settle(timeout_seconds=120).scrub_pending
        assert memory.verify().ok
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    assert not [file for file in files if DOOMED.encode() in file.read_bytes()], "bytes of what was deleted"
    return status.publications


def check_said(memory: optchat.Memory, log: Log, kills: int) -> None:
    found: dict[str, optchat.TurnInfo] = {}
    published: list[str | None] = []
    for key in {fact["key"] for fact in log.began.values()}:
        turns = all_turns(memory.session(key, create=False))
        assert not {turn.id for turn in turns} & set(found), "a turn is there twice"
        found |= {turn.id: turn for turn in turns}
        published += [turn.publication_ref for turn in turns]
    assert set(log.began) <= set(found), "an acknowledged turn was lost"
    assert len(found) <= len(log.began) + kills, "a turn that nobody began"
    assert None not in published, "an ended turn was not published"
    assert len(set(published)) == len(published), "two turns under one number"
    for turn, fact in log.began.items():
        assert memory.source(found[turn].ref).part == optchat.TextPart(fact["request"])
    for turn, fact in log.sealed.items():
        (source,) = [memory.source(ref) for ref in fact["refs"]]
        assert (source.turn_id, source.part) == (turn, optchat.TextPart(fact["answer"]))
    assert {turn: found[turn].outcome for turn in log.ended} == log.ended
    assert {turn.outcome for turn in found.values()} <= {"completed", "interrupted"}


def check_noted(memory: optchat.Memory, log: Log) -> None:
    for ref, text in log.noted.items():
        assert memory.source(ref).part == optchat.TextPart(text)


def check_forgotten(memory: optchat.Memory, log: Log, kills: int) -> set[str]:
    """What was deleted is found by no read; the sessions whose deletion a kill came before."""
    left = {session.key for session in memory.sessions(archived=True, limit=200) if session.key.startswith("doomed")}
    assert not left & log.deleted, "a deleted session is there"
    assert len(left) <= kills, "more than those that were killed over their deletion"
    for key in left & log.said:
        gone = {turn.id for turn in all_turns(memory.session(key, create=False))} & log.turns_deleted
        assert not gone, "a deleted turn is there"
    for hit in memory.search(DOOMED, limit=50):
        assert memory.session_by_id(hit.session_id).key in left, "a deleted session is found"
    return left


def run(nursery: Nursery, folder: Path, seconds: float, seed: int) -> str:
    path = folder / "memory.db"
    with opened(str(path), compact="manual"):
        pass  # a reader creates nothing
    kills, log = kill_at_random(nursery, orders(path, folder), seconds, seed)
    assert log.ended, "nobody came to write"
    assert log.reads, "nobody came to read"
    assert log.closings, "nobody came and went"
    turns = check(path, log, kills)
    return (
        f"{kills} processes killed in {seconds:g} s: {len(log.ended)} turns acknowledged, {turns} published, "
        f"{len(log.deleted)} sessions deleted; nothing lost, nothing twice"
    )


def test_nothing_acknowledged_is_lost_whoever_is_killed(nursery: Nursery, tmp_path: Path, say: Say) -> None:
    say(run(nursery, tmp_path, SECONDS, seed=20260301))


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_for_a_minute(nursery: Nursery, tmp_path: Path, say: Say) -> None:
    say(run(nursery, tmp_path, 60.0, seed=int(time.time())))


def test_whoever_is_killed_while_it_opens_or_closes_takes_nothing_along(
    nursery: Nursery, tmp_path: Path, say: Say
) -> None:
    """Few are there at a time, so that most are the first one or the last: who recovers the log, or moves it."""
    path = tmp_path / "memory.db"
    crew = [
        ("tests.crash.crew:come_and_go", {"path": str(path), "key": f"guest {n}", "log": str(tmp_path / f"guest-{n}")})
        for n in range(2)
    ]
    kills, log = kill_at_random(nursery, crew, SECONDS / 2, seed=20260302)
    assert log.closings
    with opened(str(path), compact="manual") as memory:
        assert memory.settle(timeout_seconds=120).ready
        check_noted(memory, log)
        assert memory.verify().ok
        assert len(log.noted) <= memory.status().records <= len(log.noted) + kills
    say(f"{kills} guests killed in {SECONDS / 2:g} s: {len(log.noted)} notes acknowledged, {log.closings} closings")


def test_whoever_is_killed_while_it_makes_the_file_leaves_one_that_can_be_made(
    nursery: Nursery, tmp_path: Path, say: Say
) -> None:
    chance = random.Random(20260303)
    unmade = 0
    for number in range(ROUNDS * 2):
        path, log = tmp_path / f"{number}.db", Log()
        guests = [{"path": str(path), "key": f"guest {n}", "log": str(tmp_path / f"{number}-{n}")} for n in range(3)]
        alive = [nursery.spawn("tests.crash.crew:come_and_go", **guest) for guest in guests]
        time.sleep(chance.uniform(0.0, 0.2))
        codes = {nursery.kill(pid).code for pid in alive}
        for guest in guests:
            log.read(Path(guest["log"]))
        assert not log.refused, log.refused[0]
        assert codes == {LINUX_KILLED}, "one ended by itself"
        unmade += not log.noted
        with opened(str(path), compact="manual") as memory:
            check_noted(memory, log)
            assert memory.session("after").note("made after all")
            assert memory.settle(timeout_seconds=120).ready
            assert memory.verify().ok
    say(f"{ROUNDS * 2} files killed in the making, {unmade} before anything was acknowledged")
