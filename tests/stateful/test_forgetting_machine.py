"""
Forgetting against a plain model of it: invariants 10 and 12 under every order of events that a machine thinks of.

Sessions talk, look at one another, fork, go back, share and stop sharing; turns stay open and read on; summaries are
made now and then, by a model that repeats every canary it is shown. Whatever is removed, and whenever: no way to read
shows it any more, what is left is whole, and nobody who could not see it is disturbed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from attrs import define, field
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import optchat
from optchat.memory.opening import open_with
from optchat.testing import ManualClock
from tests.canaries import Parrot, assert_forgotten, canaries, seen_by, seen_in

POLICY = optchat.Policy(view_high_bytes=3_000, view_low_bytes=1_500, job_attempts=1000)
BUDGET = optchat.Budget(window=300_000, output=1_000)
Turn = optchat.Turn[optchat.HostMessage]
assert settings.default is not None


@define(eq=False)
class Said:
    """A turn as the model knows it: what it said once, and whose it is."""

    turn_id: str
    canary: str
    by: str
    canaries: tuple[str, ...]


@define(eq=False)
class Person:
    """A session: its present history, and what it went back on."""

    history: list[Said] = field(factory=list[Said])
    superseded: list[Said] = field(factory=list[Said])
    open: Turn | None = None
    open_said: Said | None = None
    revoked: bool = False
    shown: tuple[str, str] | None = None  # the snapshot and the memory that the open turn was last shown

    def holds(self, said: Said) -> bool:
        return said in self.history or said in self.superseded or said is self.open_said


class ForgettingMachine(RuleBasedStateMachine):
    """Rules are what hosts and their users do."""

    @initialize()
    def begin_life(self) -> None:
        self.folder = Path(mkdtemp(prefix="optchat-forgetting-"))
        self.clock = ManualClock()
        self.parrot = Parrot()
        self.count = 0
        self.people: dict[str, Person] = {key: Person() for key in ("a", "b", "c")}
        self.gone: set[str] = set()  # canaries that are nowhere any more
        self.private: set[str] = set()  # that nobody but their own sessions may see
        self.memory = self.open()

    def open(self) -> optchat.Memory:
        return open_with(
            self.folder / "memory.db",
            scope="one",
            summarizer=self.parrot,
            tokenizer=None,
            policy=POLICY,
            background=False,
            mode="rwc",
            clock=self.clock,
        )

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def session(self, key: str) -> optchat.Session[optchat.HostMessage]:
        return self.memory.session(key)

    def said(self, key: str, turn_id: str, number: int) -> Said:
        canary = f"canary{number}"
        return Said(turn_id, canary, key, tuple(f"{canary}{part}" for part in ("ask", "say", "end")))

    # ---- talking -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), size=st.sampled_from((0, 0, 700)), looks=st.booleans())
    def talks(self, data: st.DataObject, size: int, looks: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people[key]
        if person.open is not None:
            self.ends(key)
        number = self.fresh()
        turn = self.session(key).turn(f"note canary{number}ask")
        said = self.said(key, turn.id, number)
        if looks:
            self.looks(turn, data)
        turn.assistant(f"says canary{number}say " + "x" * size)
        turn.assistant(f"says canary{number}end")
        turn.end("completed")
        person.history.append(said)
        self.unshared(person, said)

    def looks(self, turn: Turn, data: st.DataObject) -> None:
        """The turn retrieves what another session said, and goes on."""
        through = turn.snapshot.through
        if not through:
            return
        arguments = json.dumps({"ref": f"pub:{data.draw(st.integers(0, through - 1))}+1"})
        turn.assistant("", calls=[optchat.ToolCallPart("c", "memory_zoom", arguments)])
        turn.tool_result("c", turn.call("memory_zoom", arguments))

    def unshared(self, person: Person, said: Said) -> None:
        if person.revoked:
            self.private.update(said.canaries)

    @rule(data=st.data())
    def begins(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people[key]
        if person.open is not None:
            self.ends(key)
        number = self.fresh()
        person.open = self.session(key).turn(f"note canary{number}ask")
        person.open_said = self.said(key, person.open.id, number)
        self.unshared(person, person.open_said)

    @precondition(lambda self: any(person.open for person in self.people.values()))
    @rule(data=st.data())
    def reads_on(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, person in self.people.items() if person.open)))
        self.look_at(self.people[key])

    def ends(self, key: str) -> None:
        person = self.people[key]
        assert person.open is not None
        assert person.open_said is not None
        person.open.assistant(f"says {person.open_said.canary}end")
        person.open.end("completed")
        person.history.append(person.open_said)
        person.open, person.open_said, person.shown = None, None, None

    @rule()
    def settles(self) -> None:
        self.memory.settle()
        self.check()

    @rule()
    def comes_back(self) -> None:
        for person in self.people.values():
            if person.open is not None:
                person.open.suspend()
        self.memory.close()
        self.memory = self.open()
        for key, person in self.people.items():
            if person.open is not None:
                person.open = self.session(key).resume()

    # ---- lifecycle ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.people) < 6)
    @rule(data=st.data())
    def forks(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people[key]
        if not person.history:
            return
        place = data.draw(st.integers(0, len(person.history) - 1))
        child = f"{key}{self.fresh()}"
        self.session(key).fork(child, after=person.history[place].turn_id)
        self.people[child] = Person(person.history[: place + 1], revoked=person.revoked)

    @rule(data=st.data())
    def goes_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people[key]
        if not person.history:
            return
        if person.open is not None:
            self.ends(key)
        place = data.draw(st.integers(0, len(person.history) - 1))
        self.session(key).rewind(before=person.history[place].turn_id)
        person.superseded += person.history[place:]
        person.history = person.history[:place]

    # ---- forgetting --------------------------------------------------------------------------------------------------

    @rule(data=st.data(), forget=st.booleans())
    def deletes(self, data: st.DataObject, forget: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people.pop(key)
        words = [*person.history, *person.superseded, *([person.open_said] if person.open_said else [])]
        receipt = self.session(key).delete(forks="forget" if forget else "preserve")
        own = [said for said in words if said.by == key]
        for said in own:
            self.private.update(said.canaries)
        if forget:
            for other in self.people.values():
                other.history = [said for said in other.history if said not in own]
                other.superseded = [said for said in other.superseded if said not in own]
        if person.open is not None:
            with pytest.raises(optchat.SessionDeleted):
                person.open.context(BUDGET)
        assert receipt.removed["sessions"] == 1
        self.forget(words)
        with pytest.raises(optchat.SessionDeleted):
            self.session(key)
        self.people[key] = Person()
        self.memory.session(key, recreate=True)
        self.check()

    @rule(data=st.data())
    def deletes_some(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people[key]
        own = [said for said in (*person.history, *person.superseded) if said.by == key]
        if not own:
            return
        chosen = data.draw(st.lists(st.sampled_from(own), min_size=1, max_size=3, unique=True))
        self.session(key).delete(only=[said.turn_id for said in chosen], forks="forget")
        for other in self.people.values():
            other.history = [said for said in other.history if said not in chosen]
            other.superseded = [said for said in other.superseded if said not in chosen]
        self.forget(chosen)
        self.check()

    @rule(data=st.data())
    def revokes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.people)))
        person = self.people[key]
        self.session(key).revoke()
        person.revoked = True
        for said in (*person.history, *person.superseded, *([person.open_said] if person.open_said else [])):
            if said.by == key:
                self.private.update(said.canaries)
        self.check()

    def forget(self, words: list[Said]) -> None:
        """What no session holds any more is gone."""
        for said in words:
            if not any(person.holds(said) for person in self.people.values()):
                self.gone.update(said.canaries)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def look_at(self, person: Person) -> None:
        """An open turn shows nothing that is gone; and while its pin stands, its memory is what it was."""
        turn = person.open
        assert turn is not None
        shown = canaries(seen_in(turn))
        assert not shown & self.gone
        own = {canary for said in (*person.history, *person.superseded) for canary in said.canaries}
        own |= set(person.open_said.canaries if person.open_said else ())
        assert not shown & (self.private - own)
        memory = "\n".join(block.text for block in turn.context(BUDGET, readiness="partial").blocks)
        if person.shown is not None and person.shown[0] == turn.snapshot.id:
            assert memory == person.shown[1]
        person.shown = turn.snapshot.id, memory

    def check(self) -> None:
        report = self.memory.verify()
        assert report.ok, report.faults
        assert_forgotten(self.memory, self.gone)
        with self.memory.pin() as pin:
            assert not canaries(seen_by(pin)) & self.private
        for person in self.people.values():
            if person.open is not None:
                self.look_at(person)

    def teardown(self) -> None:
        try:
            if hasattr(self, "memory"):
                for person in self.people.values():
                    person.open = None
                self.memory.settle()
                self.check()
        finally:
            if hasattr(self, "memory"):
                self.memory.close()
                shutil.rmtree(self.folder)


TestForgetting = ForgettingMachine.TestCase
# Each look opens all that there is: a tenth of a profile's examples takes the time of other laws' all.
TestForgetting.settings = settings(
    max_examples=max(5, settings.default.max_examples // 10),
    stateful_step_count=min(20, settings.default.stateful_step_count // 4),
)
