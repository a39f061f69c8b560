"""
A memory against a plain model of it, over every order of events that a machine thinks of.

Two handles on one file, two scopes, three sessions each. Messages come by every door and again; turns are suspended
and taken up by the other handle; results come late; sessions are forked and rewound, forks too; a summarizer is down
for a while, so that turns are published in another order than they ended; handles are closed and opened. After every
step the store says what the model says.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import optchat
from optchat.core.messages import OUTCOMES
from optchat.core.refs import exact_cover
from optchat.memory.opening import open_with
from optchat.testing import DeterministicSummarizer, ManualClock
from tests.property.worlds import FEW, blobs_of, descend, place_of, read_pages, text_of
from tests.stateful.turn_model import Name, TurnModel, bodies, handles, names, spoken

SCOPES = ("one", "two")
KEYS = ("a", "b", "c")
FORKS = ("d", "e")
POLICY = optchat.Policy(node_bytes=64, view_high_bytes=500, view_low_bytes=200, page_bytes=32, job_attempts=1000)
BUDGET = optchat.Budget(window=300_000, output=1_000)


class MemoryMachine(RuleBasedStateMachine):
    """Rules are what hosts do, by whichever handle; invariants are what every reader may rely on."""

    @initialize(down=st.booleans())
    def begin_life(self, down: bool) -> None:
        self.folder = Path(mkdtemp(prefix="optchat-machine-"))
        self.clock = ManualClock()
        self.down = down
        self.summarizer = DeterministicSummarizer(fail=lambda _: ConnectionError("down") if self.down else None)
        self.count = 0
        self.open_handles: dict[int, optchat.Memory] = {}
        self.held: dict[int, set[TurnModel]] = {0: set(), 1: set()}  # turns that end when their handle is closed
        self.turns: dict[Name, list[TurnModel]] = {(scope, key): [] for scope in SCOPES for key in KEYS}
        self.late: dict[Name, list[tuple[str, int]]] = {
            name: [] for name in self.turns
        }  # unanswered calls, their place
        self.published: dict[str, list[TurnModel]] = {scope: [] for scope in SCOPES}  # by number
        self.generations: dict[Name, int] = dict.fromkeys(self.turns, 0)
        self.all_turns: list[TurnModel] = []  # superseded ones, too
        self.pins: list[tuple[str, optchat.Reader, object]] = []
        self.last: Name = ("one", "a")

    # ---- handles -----------------------------------------------------------------------------------------------------

    def handle(self, number: int) -> optchat.Memory:
        if number not in self.open_handles:
            self.open_handles[number] = open_with(
                self.folder / "memory.db",
                scope=SCOPES[0],
                summarizer=self.summarizer,
                tokenizer=None,
                policy=POLICY,
                background=False,
                mode="rwc",
                clock=self.clock,
            )
        return self.open_handles[number]

    def memory(self, number: int, scope: str) -> optchat.Memory:
        root = self.handle(number)
        return root if scope == SCOPES[0] else root.scoped(scope)

    def session(self, number: int, name: Name) -> optchat.Session[optchat.HostMessage]:
        return self.memory(number, name[0]).session(name[1])

    def turn(self, number: int, name: Name, model: TurnModel) -> optchat.Turn[optchat.HostMessage]:
        """A turn as a handle finds it by its id."""
        assert model.request is not None
        turn = self.session(number, name).turn(model.request, turn_id=model.turn_id)
        if model.state == "open":
            self.held[number].add(model)
        return turn

    def model(self, name: Name, turn_id: str, request: optchat.HostMessage | None) -> TurnModel:
        """A turn that begins now, at the end of a session's history."""
        turns = self.turns[name]
        start = turns[-1].end if turns else 0
        model = TurnModel(turn_id, start, name, self.generations[name], request, begun=self.fresh())
        self.all_turns.append(model)
        return model

    def current(self, name: Name) -> TurnModel | None:
        """The turn in progress."""
        turns = self.turns[name]
        return turns[-1] if turns and turns[-1].state != "ended" else None

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def text(self, body: str) -> str:
        """A text with a word that no other has, and one that all have."""
        return f"note word{self.fresh()} {body}"

    def close_handle(self, number: int) -> None:
        memory = self.open_handles.pop(number, None)
        if memory is None:
            return
        self.pins = [(scope, reader, seen) for scope, reader, seen in self.pins if reader._house is not memory._house]
        memory.close()
        for turns in self.turns.values():
            for turn in turns:
                if turn in self.held[number] and turn.state == "open":
                    turn.finish("interrupted")
        self.held[number].clear()

    # ---- what hosts do -----------------------------------------------------------------------------------------------

    @rule(name=names, number=handles, body=bodies, key=st.booleans())
    def begins(self, name: Name, number: int, body: str, key: bool) -> None:
        before = self.current(name)
        request = optchat.HostMessage.user(self.text(body), key=f"key{self.fresh()}" if key else None)
        if before is not None:
            before.finish("interrupted")
        self.leave_calls(name, before)
        model = self.model(name, f"turn-{self.fresh()}", request)
        turn = self.turn(number, name, model)
        model.say(request)
        self.turns[name].append(model)
        self.last = name
        assert turn.outcome is None
        assert turn.messages[0].parts == request.parts

    def leave_calls(self, name: Name, ended: TurnModel | None) -> None:
        """Calls that a turn ended without are answered later, if at all."""
        if ended is not None:
            calls = {
                part.call_id: ended.start + number
                for number, part in enumerate(ended.parts)
                if isinstance(part, optchat.ToolCallPart)
            }
            self.late[name] += [(call_id, calls[call_id]) for call_id in ended.pending if call_id in calls]
            ended.pending.clear()

    @rule(name=names, number=handles)
    def begins_again(self, name: Name, number: int) -> None:
        for model in self.turns[name][-2:]:
            if model.request is not None:
                turn = self.turn(number, name, model)
                assert turn.id == model.turn_id
                assert turn.outcome == model.outcome

    @rule(
        name=names,
        number=handles,
        body=bodies,
        door=st.sampled_from(("add", "observe", "method", "stage")),
        what=st.sampled_from(("assistant", "assistant", "calls", "call", "user", "report")),
    )
    def says(self, name: Name, number: int, body: str, door: str, what: str) -> None:
        model = self.current(name)
        if model is None or model.request is None:
            return
        turn = self.turn(number, name, model)
        message, method = self.message(turn, what, self.text(body))
        self.last = name
        if door == "stage":
            turn.stage(optchat.HostMessage.assistant(self.text(body), key=f"staged{self.fresh()}"))
            return
        if door == "method":
            refs = method()
        elif door == "add" or model.notes:
            refs = turn.add(message)
        else:
            refs = turn.observe([*model.messages, message])[-len(message.parts) :]
        first = model.end
        model.say(message)
        model.pending += [part.call_id for part in message.parts if isinstance(part, optchat.ToolCallPart)]
        assert [place_of(ref)[1] for ref in refs] == list(range(first, model.end))

    def message(
        self, turn: optchat.Turn[optchat.HostMessage], what: str, text: str
    ) -> tuple[optchat.HostMessage, Callable[[], tuple[str, ...]]]:
        """A message, and the method that says the same."""
        if what == "assistant":
            return optchat.HostMessage.assistant(text), lambda: turn.assistant(text)
        if what == "calls":
            calls = [optchat.ToolCallPart(f"call{self.fresh()}", "run", text) for _ in range(2)]
            return optchat.HostMessage.assistant(text, calls), lambda: turn.assistant(text, calls=calls)
        if what == "call":
            call = optchat.ToolCallPart(f"call{self.fresh()}", "run", text)
            return optchat.HostMessage.assistant("", [call]), lambda: turn.tool_call(call.call_id, "run", text)
        if what == "user":
            return optchat.HostMessage.user(text), lambda: turn.user(text)
        report = optchat.HostMessage("tool", (optchat.ReportPart("survey", text),))
        return report, lambda: turn.report("survey", text)

    @rule(name=names, number=handles, body=bodies, late=st.booleans(), error=st.booleans())
    def answers_a_call(self, name: Name, number: int, body: str, late: bool, error: bool) -> None:
        model = self.current(name)
        if model is None or model.request is None:
            return
        waiting = self.late[name] if late else [(call_id, -1) for call_id in model.pending]
        if not waiting:
            return
        call_id, place = waiting[0]
        text = self.text(body)
        ref = self.turn(number, name, model).tool_result(call_id, text, is_error=error)[0]
        model.say(optchat.HostMessage.result(call_id, text, is_error=error))
        if late:
            self.late[name].remove((call_id, place))
            found = self.memory(number, name[0]).zoom(ref)
            assert found.paired_ref is not None
            assert place_of(found.paired_ref)[1] == place
        else:
            model.pending.remove(call_id)
        assert place_of(ref)[1] == model.end - 1
        self.last = name

    @rule(name=names, number=handles, whole=st.booleans())
    def redelivers(self, name: Name, number: int, whole: bool) -> None:
        """Everything that a turn has said comes again: also after its end, and by another handle."""
        for model in self.turns[name][-2:]:
            if model.request is None or model.notes:
                continue
            turn = self.turn(number, name, model)
            if whole:
                assert len(turn.observe(model.messages)) == len(model.parts)
            for message in model.messages:
                if all(isinstance(part, (optchat.ToolCallPart, optchat.ToolResultPart)) for part in message.parts):
                    turn.add(message)
            turn.observe(model.messages[:1])
        self.last = name

    @rule(name=names, number=handles, body=bodies, is_note=st.booleans(), complete=st.booleans())
    def says_outside(self, name: Name, number: int, body: str, is_note: bool, complete: bool) -> None:
        """A note or a background report: into the open turn, else a turn of its own."""
        session, text = self.session(number, name), self.text(body)
        ref = session.note(text) if is_note else session.report("late", text, complete=complete)
        model = self.current(name)
        if model is None:
            model = self.model(name, "", None)
            self.turns[name].append(model)
        part: optchat.Part = optchat.TextPart(text) if is_note else optchat.ReportPart("late", text, complete)
        model.say(optchat.HostMessage("user", (part,)))
        if is_note:
            model.notes.append(part)
        if model.request is None:
            model.finish("completed" if is_note or complete else "interrupted")
            model.turn_id = self.memory(number, name[0]).source(ref).turn_id
        assert place_of(ref)[1] == model.end - 1
        self.last = name

    @rule(name=names, number=handles)
    def suspends(self, name: Name, number: int) -> None:
        model = self.current(name)
        if model is not None:
            self.turn(number, name, model).suspend()
            model.state = "suspended"
            self.held[number].discard(model)

    @rule(name=names, number=handles)
    def resumes(self, name: Name, number: int) -> None:
        model, session = self.current(name), self.session(number, name)
        if model is None:
            with pytest.raises(optchat.UnknownRef):
                session.resume()
        elif model.state == "open":
            with pytest.raises(optchat.SessionBusy):
                session.resume(model.turn_id)
        else:
            turn = session.resume(model.turn_id)
            model.state = "open"
            self.held[number].add(model)
            assert [call.call_id for call in turn.pending] == model.pending

    @rule(name=names, number=handles, outcome=st.one_of(st.none(), st.sampled_from(OUTCOMES)))
    def ends(self, name: Name, number: int, outcome: optchat.Outcome | None) -> None:
        """As told; or, without an outcome, by leaving the with block. A second report changes nothing."""
        model = self.current(name)
        if model is None or (outcome is None and model.state == "suspended"):
            return
        turn = self.turn(number, name, model)
        if outcome is None:
            with turn:
                pass
        else:
            turn.end(outcome)
        model.finish(outcome)
        self.held[number].discard(model)
        assert turn.outcome == model.outcome
        turn.end("failed" if model.outcome == "completed" else "completed")
        assert turn.outcome == model.outcome
        self.leave_calls(name, model)
        with pytest.raises(optchat.TurnEnded):
            turn.user("one more note")
        self.last = name

    # ---- what users undo ---------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.turns) < len(SCOPES) * len(KEYS) + 3)
    @rule(name=spoken, number=handles, key=st.sampled_from(FORKS), back=st.integers(0, 3))
    def forks(self, name: Name, number: int, key: str, back: int) -> None:
        target = (name[0], key)
        ended = [turn for turn in self.turns[name] if turn.state == "ended"]
        kept = ended[: max(0, len(ended) - back)]
        after = kept[-1].turn_id if kept and back else None
        if target in self.turns or (back and not kept):
            return
        made = self.session(number, name).fork(key, after=after)
        assert self.session(1 - number, name).fork(key, after=after).id == made.id
        end = kept[-1].end if kept else 0
        self.turns[target], self.generations[target] = list(kept), 0
        self.late[target] = [(call_id, place) for call_id, place in self.late[name] if place < end]
        self.last = target

    @rule(name=spoken, number=handles, back=st.integers(0, 3), by=st.sampled_from(("after", "before")))
    def rewinds(self, name: Name, number: int, back: int, by: str) -> None:
        turns, session = self.turns[name], self.session(number, name)
        if not turns:
            with pytest.raises(optchat.UnknownRef):
                session.rewind(before="nobody's")
            return
        at = max(0, len(turns) - 1 - back)
        self.last = name
        if by == "before":
            session.rewind(before=turns[at].turn_id)
        elif turns[at].state != "ended":
            with pytest.raises(optchat.BadArgument):
                session.rewind(after=turns[at].turn_id)
            return
        else:
            session.rewind(after=turns[at].turn_id)
            at += 1
        if at == len(turns):
            return
        for model in turns[at:]:
            if model.home == name:  # what a fork rests on is its parent's
                model.superseded = self.fresh()
            if model.state != "ended":
                model.finish("interrupted")
                for held in self.held.values():
                    held.discard(model)
        end = turns[at].start
        self.turns[name], self.generations[name] = turns[:at], self.generations[name] + 1
        self.late[name] = [(call_id, place) for call_id, place in self.late[name] if place < end]

    @rule(name=spoken, number=handles)
    def looks_at_what_was_rewound(self, name: Name, number: int) -> None:
        gone = [turn for turn in self.all_turns if turn.home == name and turn.superseded is not None and turn.parts]
        if gone:
            model, memory = gone[-1], self.memory(number, name[0])
            ref = f"session:{self.session(number, name).id}:{model.generation}:{model.end - 1}+1"
            assert memory.source(ref).part == model.parts[-1]
            assert memory.zoom(ref).superseded
            assert model.turn_id not in [turn.id for turn in self.session(number, name).turns(limit=200)]

    # ---- what time does ----------------------------------------------------------------------------------------------

    @rule(scope=st.sampled_from(SCOPES), number=handles)
    def settles(self, scope: str, number: int) -> None:
        self.clock.advance(100_000)  # whatever waits for another attempt is due
        self.memory(number, scope).settle()

    @rule()
    def summarizer_goes_or_comes(self) -> None:
        self.down = not self.down

    @rule(number=handles)
    def closes(self, number: int) -> None:
        self.close_handle(number)

    @rule()
    def reopens(self) -> None:
        for number in (0, 1):
            self.close_handle(number)

    # ---- what readers see --------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.pins) < 3)
    @rule(scope=st.sampled_from(SCOPES), number=handles)
    def pins_a_snapshot(self, scope: str, number: int) -> None:
        pinned = self.memory(number, scope).pin().__enter__()
        self.pins.append((scope, pinned, self.seen(pinned)))

    @rule(name=names, number=handles)
    def asks_for_context(self, name: Name, number: int) -> None:
        """The memory of a turn is the same bytes in every handle, however often it is asked for."""
        model = self.current(name)
        if model is None or model.request is None:
            return
        turn = self.turn(number, name, model)
        context = turn.context(BUDGET, active=[model.request], readiness="partial")
        blocks = tuple(block.text for block in context.blocks)
        model.shown = model.shown or blocks
        assert blocks == model.shown
        assert context.messages[-1] is model.request

    @rule(name=names, number=handles)
    def searches(self, name: Name, number: int) -> None:
        """A word is found where it was said, by its scope and no other; by a turn only if it may see it."""
        turns = self.turns[name]
        said = [(turn, n) for turn in turns[-3:] for n, part in enumerate(turn.parts) if text_of(part)]
        if not said:
            return
        model, place = said[len(said) // 2]
        word = next(word for word in text_of(model.parts[place]).split() if word.startswith("word"))
        found = [hit for hit in self.memory(number, name[0]).search(word) if hit.kind != "summary"]
        # A fork and what it was forked from both have it, and it is found once.
        having = [of for of, theirs in self.turns.items() if of[0] == name[0] and model in theirs]
        (where,) = {place_of(hit.ref)[0] for hit in found}
        assert where in [self.session(number, of).id for of in having]
        said_at = [model.start + n for n, part in enumerate(model.parts) if word in text_of(part).split()]
        assert sorted(place_of(hit.ref)[1] for hit in found) == said_at
        assert not any(self.memory(number, name[0]).zoom(hit.ref).superseded for hit in found)
        other = self.memory(number, next(scope for scope in SCOPES if scope != name[0]))
        assert not other.search(word).hits
        with pytest.raises(optchat.UnknownRef):
            other.source(found[0].ref)
        for of in [of for of in self.turns if of[0] == name[0]]:
            reader = self.current(of)
            if reader is not None and reader.request is not None:
                turn = self.turn(number, of, reader)
                published = self.published[name[0]][: turn.snapshot.through]
                stood = model.superseded is None or model.superseded > reader.begun
                sees = model in self.turns[of] or (model in published and stood)
                assert any(hit.kind != "summary" for hit in turn.search(word)) == sees

    def seen(self, reader: optchat.Reader, own: str = "") -> object:
        """All that a reader sees of other sessions."""
        view = reader.view()
        hits = [hit for hit in reader.search("note", limit=50, order="newest") if hit.session_id != own]
        return (
            view.text,
            [reader.zoom(line.ref) for line in view.lines if line.kind != "tombstone"],
            [(info.id, info.length, info.turns) for info in reader.sessions() if info.id != own],
            [(hit.ref, hit.excerpt) for hit in hits] if not own else None,
        )

    # ---- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_last_session_is_as_it_was_told(self) -> None:
        if not hasattr(self, "folder") or not self.turns[self.last]:
            return
        memory = self.memory(0, self.last[0])
        session = memory.session(self.last[1])
        turns = self.turns[self.last]
        parts = [part for turn in turns for part in turn.parts]
        info = session.info()
        assert (info.length, info.turns, info.generation) == (len(parts), len(turns), self.generations[self.last])
        for number in range(max(0, len(parts) - 4), len(parts)):
            ref = f"session:{session.id}:{self.generations[self.last]}:{number}+1"
            assert memory.source(ref).part == parts[number]
        newest = list(session.turns(limit=200))[-1]
        assert (newest.id, newest.state, newest.outcome) == (turns[-1].turn_id, turns[-1].state, turns[-1].outcome)

    @invariant()
    def publications_are_ended_turns_in_order(self) -> None:
        if not hasattr(self, "folder"):
            return
        for scope in SCOPES:
            memory, known = self.memory(0, scope), self.published[scope]
            through = memory.view().through
            for number in range(len(known), through):
                self.a_new_publication(memory, scope, number)
            assert len(known) == through
            assert len([turn for turn in known if turn.superseded is None]) == memory.status().publications
            assert all(turn.outcome for turn in known)

    def a_new_publication(self, memory: optchat.Memory, scope: str, number: int) -> None:
        found = memory.zoom(f"pub:{number}+1")
        assert found.turn is not None
        session, start = place_of(found.turn.ref)
        name = (scope, next(info.key for info in memory.sessions() if info.id == session))
        model = next(turn for turn in self.turns[name] if turn.turn_id == found.turn.id)
        assert (start, found.outcome, model.home) == (model.start, model.outcome, name), "of its own session's turns"
        covers = [f"session:{session}:{model.generation}:{span}" for span in exact_cover(model.start, model.end)]
        assert [line.ref for line in found.lines] == covers
        same = [turn for turn in self.all_turns if (turn.home, turn.generation) == (name, model.generation)]
        before = [turn for turn in self.published[scope] if turn in same]
        assert [*before, model] == same[: len(before) + 1], "in the order of the generation's turns, each once"
        self.published[scope].append(model)

    @invariant()
    def what_is_pinned_does_not_move(self) -> None:
        if not hasattr(self, "folder"):
            return
        for _scope, reader, seen in self.pins:
            assert self.seen(reader) == seen
        for name, turns in self.turns.items():
            model = turns[-1] if turns else None
            if model is None or model.state == "ended" or model.request is None:
                continue
            if (self.count + model.start) % 3 and model.foreign is not None:
                continue  # a third of them after each step: all of them at every step would be most of the time
            number = next((n for n in (0, 1) if model in self.held[n]), 0)
            turn = self.turn(number, name, model)
            now = self.seen(turn, turn._session.session_id)
            model.foreign = model.foreign or now
            assert now == model.foreign
            assert [call.call_id for call in turn.pending] == model.pending
            assert [part for message in turn.messages for part in message.parts] == model.parts_again

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            self.down = False
            for scope in SCOPES:
                self.settles(scope, 1)
                self.at_the_end(scope)
        finally:
            for memory in self.open_handles.values():
                memory.close()
            shutil.rmtree(self.folder)

    def at_the_end(self, scope: str) -> None:
        """Every turn that ended is published, and every byte that was told is there, by whatever way one goes."""
        memory = self.memory(0, scope)
        self.publications_are_ended_turns_in_order()
        report = memory.verify()
        assert report.ok, report.faults
        ended = [turn for turn in self.all_turns if turn.home[0] == scope and turn.outcome and turn.superseded is None]
        live = [turn.turn_id for turn in self.published[scope] if turn.superseded is None]
        assert sorted(live) == sorted(turn.turn_id for turn in ended), "all that stands is published, each once"
        for info in memory.sessions():
            parts = [part for turn in self.turns[scope, info.key] for part in turn.parts]
            refs = [ref for line in memory.view(info.id).lines for ref in descend(memory, line.ref, {})]
            assert [place_of(ref) for ref in refs] == [(info.id, number) for number in range(len(parts))]
            for ref, part in zip(refs, parts, strict=True):
                found = read_pages(memory, ref)
                assert (found.text, found.attachments) == (text_of(part), blobs_of(part))


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(parent=FEW)
