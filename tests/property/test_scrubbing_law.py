"""
Invariant 12 for bytes: whatever was said, forked, rewound, removed and read in whatever order, once scrubbed the files
hold the words that somebody still has, and no other.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define, field
from hypothesis import given, settings, strategies as st

import optchat
from optchat.engine import scrubbing
from tests.acceptance.canaries import found, spoken
from tests.engine.helpers import words
from tests.engine.working import open_wandering

KEYS = ("a", "b", "c")
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "say",
                "say",
                "say",
                "begin",
                "settle",
                "fork",
                "rewind",
                "delete",
                "forget",
                "drop",
                "revoke",
                "read",
                "close",
                "scrub",
                "reopen",
            )
        ),
        st.sampled_from(KEYS),
        st.integers(0, 7),
    ),
    min_size=4,
    max_size=22,
)


@define
class Told:
    """A session as the model knows it: its turns by id, each with its canary, those that it went back on included."""

    turns: dict[str, str] = field(factory=dict[str, str])
    superseded: dict[str, str] = field(factory=dict[str, str])
    rests_on: set[str] = field(factory=set[str])  # ids of turns that a fork has as its own

    @property
    def holds(self) -> set[str]:
        return {*self.turns.values(), *self.superseded.values()}


@define
class World:
    path: Path
    memory: optchat.Memory
    sessions: dict[str, Told] = field(factory=dict[str, Told])
    said: list[str] = field(factory=list[str])
    forks: int = 0
    readers: list[object] = field(factory=list[object])

    @staticmethod
    def open(path: Path) -> optchat.Memory:
        return open_wandering(path)

    def session(self, key: str) -> optchat.Session[optchat.HostMessage]:
        self.sessions.setdefault(key, Told())
        return self.memory.session(key, recreate=True)

    def do(self, action: str, key: str, number: int) -> None:
        of: Callable[[str, int], None] = getattr(self, f"_{action}")
        of(key, number)

    def _say(self, key: str, number: int) -> None:
        turn = self._begin(key, number)
        turn.assistant(f"{spoken(self.said[-1])} {words(number, 600 if number % 2 else 5_000)}")
        turn.end("completed" if number else "failed")

    def _begin(self, key: str, number: int) -> optchat.Turn[optchat.HostMessage]:
        self.said.append(f"turn {len(self.said)}")
        turn = self.session(key).turn(f"{spoken(self.said[-1])} {number}")
        self.sessions[key].turns[turn.id] = self.said[-1]
        return turn

    def _settle(self, _key: str, _number: int) -> None:
        self.memory.settle()

    def _fork(self, key: str, number: int) -> None:
        session, told = self.session(key), self.sessions[key]
        ended = [turn.id for turn in session.turns() if turn.state == "ended"]
        if not ended:
            return
        after = ended[number % len(ended)]
        kept = ended[: ended.index(after) + 1]
        self.forks += 1
        session.fork(f"fork {self.forks}", after=after)
        self.sessions[f"fork {self.forks}"] = Told({each: told.turns[each] for each in kept if each in told.turns})

    def _rewind(self, key: str, number: int) -> None:
        session, told = self.session(key), self.sessions[key]
        there = [turn.id for turn in session.turns()]
        if not there:
            return
        cut = number % len(there)
        session.rewind(before=there[cut])
        for each in there[cut:]:
            if each in told.turns:
                told.superseded[each] = told.turns.pop(each)

    def _delete(self, key: str, _number: int) -> None:
        self.session(key).delete()
        del self.sessions[key]

    def _forget(self, key: str, _number: int) -> None:
        told = self.sessions.get(key)
        if told is None:
            return
        self.session(key).delete(forks="forget")
        del self.sessions[key]
        for other in self.sessions.values():
            for each in told.turns.keys() | told.superseded.keys():
                if other.turns.get(each) in told.holds:
                    other.turns.pop(each, None)
                if other.superseded.get(each) in told.holds:
                    other.superseded.pop(each, None)

    def _drop(self, key: str, number: int) -> None:
        session, told = self.session(key), self.sessions[key]
        there = [turn.id for turn in session.turns() if turn.id in told.turns]
        if not there:
            return
        chosen = there[number % len(there)]
        try:
            session.delete(only=[chosen])
        except optchat.BadArgument:
            return  # a fork rests on it
        told.turns.pop(chosen)
        told.superseded.pop(chosen, None)

    def _revoke(self, key: str, _number: int) -> None:
        self.session(key).revoke()

    def _read(self, _key: str, _number: int) -> None:
        reading = self.memory._scope.store._readers.borrow()
        reading.db.execute("BEGIN; SELECT count(*) FROM record").fetchall()
        self.readers.append(reading)

    def _close(self, _key: str, _number: int) -> None:
        for reading in self.readers:
            self.memory._scope.store._readers.give_back(reading)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        self.readers.clear()

    def _scrub(self, _key: str, _number: int) -> None:
        scrubbing.scrub_slice(self.memory._scope)

    def _reopen(self, key: str, number: int) -> None:
        self._close(key, number)
        self.memory.close()
        self.memory = self.open(self.path)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="optchat-law-") as name:
        yield Path(name)


@settings(
    max_examples=settings().max_examples // (16 if settings().max_examples <= 100 else 8)
)  # each reads files in a process
@given(ACTIONS)
def test_forgotten(folder: Path, actions: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name) / "memory.db"
        world = World(path, World.open(path))
        try:
            for action in actions:
                world.do(*action)
            world._close("", 0)
            assert not world.memory.settle().scrub_pending
            held = {each for told in world.sessions.values() for each in told.holds}
            assert set(found(path, world.said)) == held
            assert world.memory.verify().faults == ()
            with world.memory._scope.store.read() as db:
                assert db.execute("PRAGMA integrity_check").get == "ok"
                assert db.execute("SELECT count(*) FROM erasure").get == 0
        finally:
            world._close("", 0)
            world.memory.close()
