"""
Invariant 3 where nodes are made anew: under random repairs, upgrades and failures, among appends and pins.

A revision that was stored never changes, a pin never resolves to another text, whatever it reads by, and what is stored
fits together at every moment, also half-way through an upgrade.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field
from hypothesis import given, strategies as st

import optchat
from optchat.engine import remaking
from optchat.engine.naming import node_ref
from optchat.store import queue
from optchat.testing import temporary_memory
from tests.engine.helpers import Turn
from tests.engine.remaking_steps import Author, assert_sound, claim, commit, give_up, repair, work_off
from tests.property.worlds import FEW

POLICY = optchat.Policy(node_bytes=64, view_high_bytes=500, view_low_bytes=200)
NAME = "worker"  # of every summarizer here: what an upgrade makes anew may be upgraded again
SIZES = st.sampled_from([3, 20, 31, 48, 64])

steps = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 1), st.sampled_from([4, 40, 90, 200]), st.booleans()),
    st.tuples(st.just("work"), st.integers(1, 12), SIZES),
    st.tuples(st.just("repair"), st.integers(0, 999), SIZES),
    st.tuples(st.just("upgrade")),
    st.tuples(st.just("fail"), st.integers(0, 9)),
    st.tuples(st.just("pin")),
    st.tuples(st.just("turn"), st.integers(0, 1)),
)


@define
class Life:
    """A memory, what was stored in it, and what its pins were shown."""

    memory: optchat.Memory
    said: int = 0
    stored: dict[tuple[int, int], tuple[Any, ...]] = field(factory=dict)
    pins: list[tuple[optchat.Reader, list[Any]]] = field(factory=list)
    turns: list[tuple[Turn, dict[str, str], list[optchat.Hit]]] = field(factory=list)

    def session(self, number: int) -> optchat.Session[optchat.HostMessage]:
        return self.memory.session(f"s{number}")

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("say", session, size, answered):
                self.said += 1
                turn = self.session(session).turn(f"record {self.said} of many words " + "x" * size)
                if answered:
                    turn.assistant(f"answer {self.said} to it " + "y" * (size // 2))
                turn.end("completed" if answered else "failed")
            case ("work", limit, size):
                author = Author(NAME, size)
                for task in claim(self.memory, author, limit).tasks:
                    commit(self.memory, task, author)
            case ("repair", number, size):
                refs = self.refs()
                if refs:
                    self.repair(refs[number % len(refs)], size)
            case ("upgrade",):
                remaking.upgrade(self.memory._scope, NAME)
                assert_sound(self.memory)
            case ("fail", number):
                self.fail(number)
            case ("pin",):
                self.pins.append((pin := self.memory.pin().__enter__(), self.seen(pin)))
            case ("turn", session):
                turn = self.session(session).turn("what is known?")
                self.turns.append((turn, {}, repaired_hits(turn)))
            case _:
                raise AssertionError(step)
        self.check()

    def refs(self) -> list[str]:
        scope = self.memory._scope
        with scope.store.read() as db:
            rows = db.execute("SELECT node_key FROM node ORDER BY node_key").fetchall()
            return [node_ref(scope, db, key) for (key,) in rows]

    def repair(self, ref: str, size: int) -> None:
        before = self.memory.status()
        try:
            assert repair(self.memory, ref, Author("repaired", size)) > 0
        except optchat.BadArgument as error:
            assert "word for word" in str(error)
            return
        assert self.memory.status().records == before.records
        assert_sound(self.memory)

    def fail(self, number: int) -> None:
        tasks = claim(self.memory, Author(NAME, 40)).tasks
        for place, task in enumerate(tasks):
            if place == number % len(tasks) and task.job.kind == "remake":
                give_up(self.memory, task)
            else:
                with self.memory._scope.store.write() as db:
                    queue.end_lease(db, task.job.job_pk, task.job.fence)
        assert_sound(self.memory)

    def seen(self, pin: optchat.Reader) -> list[Any]:
        """All that a pin reads: nothing of it may ever move."""
        view = pin.view()
        found: list[Any] = [view, pin.view(max_tokens=40)]
        found += [pin.zoom(line.ref) for line in view.lines]
        found += [pin.view(session.id) for session in pin.sessions()]
        for query in ("worker has", "repaired has", "record"):
            found += [pin.search(query, order=order, limit=50) for order in ("best", "newest")]
        return found

    def check(self) -> None:
        columns = "node_key, revision, kind, text, escaped_bytes, recipe_pk, inputs_sha256, born"
        with self.memory._scope.store.read() as db:
            for table in ("node", "node_history"):
                for row in db.execute(f"SELECT {columns} FROM {table}").fetchall():
                    assert self.stored.setdefault((row[0], row[1]), row) == row
        for pin, seen in self.pins:
            assert self.seen(pin) == seen
        for turn, lines, hits in self.turns:
            own = turn.view(turn._session.session_id)
            for line in (*turn.view().lines, *own.lines):
                if line.text != "[not summarised yet]":  # what lands late is new, and stays as it landed
                    assert lines.setdefault(line.ref, line.text) == line.text
            assert repaired_hits(turn) == hits, "only a later revision says so, and the turn began before it"


def repaired_hits(turn: Turn) -> list[optchat.Hit]:
    return list(turn.search("repaired", kind="summary", order="newest", limit=50))


@FEW
@given(st.lists(steps, min_size=4, max_size=12))
def test_immutable_under_revisions(schedule: list[tuple[Any, ...]]) -> None:
    with temporary_memory(policy=POLICY) as memory:
        life = Life(memory)
        for step in [("say", 0, 90, True), ("say", 1, 200, False), ("work", 12, 48), *schedule]:
            life.do(step)
        queue_rearmed(memory)
        work_off(memory, Author(NAME, 48))
        life.check()
        assert memory.status().pending == 0
        assert memory.status().failures == ()
        assert_sound(memory)


def queue_rearmed(memory: optchat.Memory) -> None:
    with memory._scope.store.write() as db:
        queue.rearm(db, memory._scope.pk, memory._scope.now())
