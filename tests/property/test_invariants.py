"""
The invariants of the design (§ 7 there), each under its own name, through the façade alone.

Nine, ten and twelve are elsewhere: crashes in tests/crash, fences in tests/stateful, and forgetting comes with the part
that brings it.
"""

from __future__ import annotations

import copy
import logging
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings, strategies as st

import optchat
from optchat.adapters.openai import OpenAIChat
from optchat.core.refs import exact_cover
from optchat.core.render import escape, one_line
from optchat.core.speakers import OUTCOME_MARKS
from optchat.engine.neutral import NeutralAdapter
from optchat.store import forest
from optchat.testing import DeterministicSummarizer
from tests.property.worlds import (
    BUDGET,
    FEW,
    SMALL,
    Model,
    World,
    assert_cover,
    blobs_of,
    canonical,
    descend,
    is_shared,
    lived,
    place_of,
    read_pages,
    scoped,
    session_ids,
    span_of,
    text_of,
    worlds,
)

Turn = optchat.Turn[optchat.HostMessage]


def context_of(turn: Turn, budget: optchat.Budget = BUDGET) -> optchat.Context[optchat.HostMessage] | None:
    """The turn's context, however incomplete its summaries; None while a call waits for its result."""
    try:
        return turn.context(budget, readiness="partial")
    except optchat.ToolProtocolError:
        assert turn.pending
        return None


# ---- 1 cover -------------------------------------------------------------------------------------------------------


@FEW
@given(worlds())
def test_cover(world: World) -> None:
    with lived(world) as moments:
        for moment in moments:
            memory = moment.memory
            shared = memory.view()
            assert_cover([line.ref for line in shared.lines], shared.through)
            assert_cover([line.ref for line in memory.view(max_tokens=1).lines], shared.through)
            for session in memory.sessions():
                view = memory.view(session.id)
                assert view.through == session.length
                assert_cover([line.ref for line in view.lines], view.through)
                assert_cover([line.ref for line in memory.view(session.id, max_tokens=20).lines], view.through)
                assert set(view.missing) <= {line.ref for line in view.lines}
                assert not (moment.is_last and view.missing)
            for turn in moment.turns.values():
                assert_context_covers(turn)


def assert_context_covers(turn: Turn) -> None:
    context = context_of(turn)
    if context is None:
        return
    receipt = context.receipt
    assert receipt.shared_through == turn.snapshot.through
    assert_cover([ref for ref in receipt.refs if is_shared(ref)], receipt.shared_through)
    own = [ref for ref in receipt.refs if not is_shared(ref)]
    view, at = [], 0
    for ref in own:  # the session's view comes first; the previous exchange repeats some of its records
        if at == receipt.session_through:
            break
        view.append(ref)
        at = span_of(ref).end
    assert_cover(view, receipt.session_through)


# ---- 2 reach -------------------------------------------------------------------------------------------------------


@FEW
@given(worlds(), st.integers(1, 4))
def test_reach(world: World, depth: int) -> None:
    with lived(world) as moments:
        for moment in moments:
            if not moment.is_last:
                continue
            memory, model = moment.memory, moment.model
            with memory.pin() as pinned:
                for reader in (memory, pinned):
                    assert_shared_reaches(reader, memory, model, depth)
            for key, session in session_ids(memory).items():
                assert_session_reaches(memory, memory.view(session), session, model.records("test", key), depth)


def assert_shared_reaches(reader: optchat.Reader, memory: optchat.Memory, model: Model, depth: int) -> None:
    keys = {session: key for key, session in session_ids(memory).items()}
    reached: list[tuple[str, int]] = []
    for line in reader.view().lines:
        for ref in descend(reader, line.ref, {}, depth):
            session, number = place_of(ref)
            assert_source(reader, ref, model.records("test", keys[session])[number])
            reached.append((keys[session], number))
    ended = [turn for turns in model.turns.values() for turn in turns if turn.outcome is not None]
    assert sorted(reached) == sorted((turn.session, n) for turn in ended for n in range(turn.start, turn.end))


def assert_session_reaches(
    reader: optchat.Reader, view: optchat.View, session: str, parts: list[optchat.Part], depth: int
) -> None:
    reached = [ref for line in view.lines for ref in descend(reader, line.ref, {}, depth)]
    assert [place_of(ref) for ref in reached] == [(session, number) for number in range(len(parts))]
    for ref, part in zip(reached, parts, strict=True):
        assert_source(reader, ref, part)


def assert_source(reader: optchat.Reader, ref: str, part: optchat.Part) -> None:
    """All bytes: page by page, and whole."""
    found = read_pages(reader, ref)
    assert found.text == text_of(part)
    assert found.attachments == blobs_of(part)
    assert reader.source(ref).part == part


# ---- 3 immutable ---------------------------------------------------------------------------------------------------


@FEW
@given(worlds())
def test_immutable(world: World) -> None:
    records: dict[str, optchat.SourceRecord] = {}
    nodes: dict[str, optchat.Line] = {}
    pins: list[tuple[optchat.Reader, optchat.View]] = []
    with lived(world) as moments, ExitStack() as stack:
        for moment in moments:
            memory = moment.memory
            for session in memory.sessions():
                for number in range(session.length):
                    ref = f"session:{session.id}:0:{number}+1"
                    assert memory.source(ref) == records.setdefault(ref, memory.source(ref))
                view = memory.view(session.id)
                remember(nodes, [line for line in view.lines if line.ref not in view.missing])
            remember(nodes, memory.view().lines)
            for pinned, view in pins:
                assert pinned.view() == view
                with memory.pin(view.snapshot.id) as again:
                    assert again.view().through == view.through
                    remember(nodes, again.view().lines)
            pinned = stack.enter_context(memory.pin())
            pins.append((pinned, pinned.view()))


def remember(nodes: dict[str, optchat.Line], lines: list[optchat.Line] | tuple[optchat.Line, ...]) -> None:
    for line in lines:
        assert nodes.setdefault(line.ref, line) == line


# ---- 4 once --------------------------------------------------------------------------------------------------------


def with_keys(world: World) -> World:
    """The same life with a key on every message, so that whatever comes again is known."""
    schedule = tuple(
        step if step.message is None else evolve(step, message=evolve(step.message, key=f"key-{number}"))
        for number, step in enumerate(world.schedule)
    )
    return evolve(world, schedule=schedule)


def otherwise(message: optchat.HostMessage) -> optchat.HostMessage:
    """The message with another content under the same key."""
    other = optchat.ReportPart("other", "another note")  # the one part that every role may bring
    return evolve(message, parts=tuple(other for _ in message.parts))


@FEW
@given(worlds(sessions=2))
def test_once(world: World) -> None:
    delivered: list[tuple[str, str, optchat.HostMessage, optchat.HostMessage]] = []  # session, turn, request, message
    requests: dict[str, optchat.HostMessage] = {}
    with lived(with_keys(world)) as moments:
        for moment in moments:
            step = moment.step
            if step is not None and step.message is not None:
                turn = moment.turns["test", step.session]
                request = requests.setdefault(turn.id, step.message)
                delivered.append((step.session, turn.id, request, step.message))
            before = counts(moment.memory)
            for session, turn_id, request, message in delivered if moment.is_last else delivered[-2:]:
                redeliver(moment.memory, session, turn_id, request, message)
            assert counts(moment.memory) == before
            if moment.is_last:
                moment.memory.settle()
                assert counts(moment.memory) == before


def counts(memory: optchat.Memory) -> tuple[int, ...]:
    status = memory.status()
    return (status.sessions, status.records, status.publications, status.pending, memory.view().through)


def redeliver(
    memory: optchat.Memory, session: str, turn_id: str, request: optchat.HostMessage, message: optchat.HostMessage
) -> None:
    again = memory.session(session).turn(request, turn_id=turn_id)
    assert again.id == turn_id
    sealed = again.add(message)
    assert len(sealed) == len(message.parts)
    assert [memory.source(ref).part for ref in sealed] == list(message.parts)
    with pytest.raises(optchat.RevisionConflict):
        again.add(otherwise(message))
    if again.outcome is not None:
        again.end("failed" if again.outcome == "completed" else "completed")
        assert again.outcome == memory.session(session).turn(request, turn_id=turn_id).outcome


# ---- 5 pinned ------------------------------------------------------------------------------------------------------


def foreign_part(turn: Turn, own: str) -> object:
    """All that a turn can see of other sessions."""
    pages = [turn.search("note", limit=50), turn.search("note queue", order="newest", limit=50)]
    hits = [(hit.ref, hit.excerpt, hit.publication_ref) for page in pages for hit in page if hit.session_id != own]
    view = turn.view()
    infos = [session for session in turn.sessions() if session.id != own]
    absent = turn.search("word-that-nobody-said note", order="newest").words
    return (
        view.text,
        view.lines,
        [turn.zoom(line.ref) for line in view.lines],
        [turn.date(line.ref) for line in view.lines],
        [(session.id, session.length, session.turns, session.last_at) for session in infos],
        view_of(turn.view(max_tokens=1)),
        [view_of(turn.view(session.id, max_tokens=limit)) for session in infos for limit in (None, 1)],
        hits,
        {word: count for word, count in absent.items() if word != "note"},
    )


def view_of(view: optchat.View) -> object:
    return view.text, view.lines, view.through, view.missing


@FEW
@given(worlds())
def test_pinned(world: World) -> None:
    first: dict[str, object] = {}
    with lived(world) as moments:
        for moment in moments:
            ids = session_ids(moment.memory)
            newest = moment.memory.view().through
            for (_, key), turn in moment.turns.items():
                now = foreign_part(turn, ids[key])
                assert now == first.setdefault(turn.id, now)
                for number in range(turn.snapshot.through, newest):
                    with pytest.raises(optchat.UnknownRef):
                        turn.zoom(f"pub:{number}+1")
                    hidden = moment.memory.zoom(f"pub:{number}+1").lines[0].ref
                    if ids[key] not in hidden:
                        for read in (turn.zoom, turn.date):
                            with pytest.raises(optchat.UnknownRef):
                                read(hidden)


# ---- 6 scoped ------------------------------------------------------------------------------------------------------


def marked_by_scope(world: World) -> World:
    """The same life with a word in every text that says which scope it was said in."""

    def part(part: optchat.Part, word: str) -> optchat.Part:
        return optchat.TextPart(f"{part.text} {word}") if isinstance(part, optchat.TextPart) else part

    schedule = tuple(
        step
        if step.message is None
        else evolve(
            step,
            message=evolve(step.message, parts=tuple(part(each, word_of(step.scope)) for each in step.message.parts)),
        )
        for step in world.schedule
    )
    return evolve(world, schedule=schedule)


def word_of(scope: str) -> str:
    return "saidin" + "".join(character for character in scope if character.isalnum())


@FEW
@given(worlds(scopes=2))
def test_scoped(world: World) -> None:
    with lived(marked_by_scope(world)) as moments:
        for moment in moments:
            if not moment.is_last:
                continue
            here, there = scoped(moment.memory, "test"), scoped(moment.memory, "test-1")
            ids = set(session_ids(here).values())
            refs = [f"session:{session}:0:{number}+1" for session in ids for number in range(4)]
            refs += [line.ref for session in ids for line in here.view(session).lines]
            turn = there.session("session-0").turn("one more note")
            with there.pin() as pinned, turn:
                for reader in (there, pinned, turn):
                    assert_knows_nothing(reader, refs, ids)
                blocks = "".join(block.text for block in turn.context(BUDGET, readiness="partial").blocks)
                assert word_of("test") + " " not in blocks.replace("\n", " ")
                assert all(session not in blocks for session in ids)


def assert_knows_nothing(reader: optchat.Reader, refs: list[str], ids: set[str]) -> None:
    for ref in refs:
        absent = re.sub("session:.{8}", "session:zzzzzzzz", ref)
        for read in (reader.zoom, reader.date, reader.source):
            assert error_of(read, ref).replace(ref, "") == error_of(read, absent).replace(absent, "")
    for session in ids:
        assert error_of(reader.view, session).replace(session, "") == error_of(reader.view, "zzzzzzzz").replace(
            "zzzzzzzz", ""
        )
        with pytest.raises(optchat.UnknownRef):
            reader.search("note", session=session)
    word = word_of("test")
    assert not reader.search(word).hits
    assert reader.search(word, order="newest").words.get(word, 0) == 0
    assert all(hit.session_id not in ids for hit in reader.search("note", limit=50))
    assert all(session.id not in ids for session in reader.sessions())
    assert all(line.session_id not in ids for line in reader.view().lines)


def error_of(read: Any, ref: str) -> str:
    with pytest.raises(optchat.UnknownRef) as caught:
        read(ref)
    return str(caught.value)


# ---- 7 published once ----------------------------------------------------------------------------------------------


@FEW
@given(worlds())
def test_published_once(world: World) -> None:
    with lived(world) as moments:
        for moment in moments:
            memory = moment.memory
            published = [memory.zoom(f"pub:{number}+1").turn for number in range(memory.view().through)]
            names = [turn.id for turn in published if turn is not None]
            assert len(names) == len(published) == len(set(names)) == memory.status().publications
            for turns in moment.model.in_scope("test").values():
                mine = [turn.turn_id for turn in turns if turn.outcome is not None]
                done = [name for name in names if name in mine]
                assert done == mine[: len(done)], "a session's turns are published in their order"
                if moment.is_last:
                    assert done == mine
            for number, turn in enumerate(published):
                assert turn is not None
                assert turn.publication_ref == f"pub:{number}+1"
            if moment.is_last:
                memory.settle()
                assert memory.view().through == len(names)


# ---- 8 bounded -----------------------------------------------------------------------------------------------------


def trees(memory: optchat.Memory) -> list[tuple[forest.ViewRow, optchat.View]]:
    """The stored row of the shared view, and the view as it is rendered."""
    scope = memory._scope
    with scope.store.read() as db:
        row = forest.load_view(db, scope.row.shared_tree)
    return [(row, memory.view())]


@FEW
@given(worlds(), st.integers(1_000, 6_000))
def test_bounded(world: World, window: int) -> None:
    high = world.policy.view_high_bytes or 0
    with lived(world) as moments:
        for moment in moments:
            for row, view in trees(moment.memory):
                size = len(view.text.encode())
                assert row.shrinking or size <= high
                if moment.is_last:  # every parent is there: only a cover that cannot be coarser may be above
                    coarsest = [line.ref for line in view.lines] == [f"pub:{s}" for s in exact_cover(0, view.through)]
                    assert size <= high or coarsest
            if moment.is_last:
                for session in moment.memory.sessions():
                    view = moment.memory.view(session.id)
                    if len(view.text.encode()) > high and all(
                        t.outcome for t in moment.model.turns["test", session.key]
                    ):
                        refs = [f"session:{session.id}:0:{span}" for span in exact_cover(0, view.through)]
                        assert [line.ref for line in view.lines] == refs
            for turn in moment.turns.values():
                try:
                    context = context_of(turn, optchat.Budget(window=window, output=100))
                except (optchat.CoverTooLarge, optchat.ContextTooLarge):
                    continue  # said, not hidden
                if context is not None:
                    assert context.receipt.tokens.left >= 0


# ---- 11 paired -----------------------------------------------------------------------------------------------------


def assert_chat_pairs(messages: list[Any]) -> None:
    """What OpenAI accepts: each call is answered once, right after the message that makes it, and nothing else is."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        waiting = set(calls)
        assert len(waiting) == len(calls)
    assert not waiting


@FEW
@given(worlds(sessions=2))
def test_paired(world: World) -> None:
    wire = OpenAIChat()
    with lived(world) as moments:
        for moment in moments:
            for (scope, key), turn in moment.turns.items():
                request = moment.model.turns[scope, key][-1].messages[0]
                chat = moment.memory.session(key, adapter=wire).turn(request, turn_id=turn.id)
                if turn.pending:
                    with pytest.raises(optchat.ToolProtocolError):
                        turn.context(BUDGET, readiness="partial")
                    with pytest.raises(optchat.ToolProtocolError):
                        chat.context(BUDGET, readiness="partial")
                    continue
                assert_chat_pairs(list(chat.context(BUDGET, readiness="partial").messages))
                active = context_of(turn)
                assert active is not None
                assert_chat_pairs(list(wire.rebuild(active.messages[len(active.memory) :])))


# ---- 13 honest -----------------------------------------------------------------------------------------------------


def label_of(turns: list[optchat.Outcome | None]) -> str:
    counted = ((turns.count("failed"), "failed"), (turns.count("interrupted"), "interrupted"))
    return ", ".join(f"{count} {word}" for count, word in counted if count)


@FEW
@given(worlds())
def test_honest(world: World) -> None:
    with lived(world) as moments:
        for moment in moments:
            memory, model = moment.memory, moment.model
            infos = [memory.zoom(f"pub:{number}+1") for number in range(memory.view().through)]
            outcomes = [model.turn(info.turn.id).outcome for info in infos if info.turn is not None]
            assert [info.outcome for info in infos] == outcomes
            for line in lines_under(memory):
                span = span_of(line.ref)
                under = outcomes[span.start : span.end]
                assert line.not_completed == sum(outcome != "completed" for outcome in under), line
                if span.count == 1:
                    assert line.outcome == under[0]
                    assert line.text.startswith(OUTCOME_MARKS[line.outcome]) or line.kind == "stand_in"
                else:
                    assert line.outcome is None
            assert_labels(memory.view().text, outcomes)
            for turn in moment.turns.values():
                context = context_of(turn)
                if context is not None:
                    assert_labels(block_body(context.blocks[1].text), outcomes)


def lines_under(memory: optchat.Memory) -> list[optchat.Line]:
    """Every line of the shared tree, from the view down to the publications."""
    found: dict[str, optchat.Line] = {line.ref: line for line in memory.view().lines}
    waiting = list(found)
    while waiting:
        ref = waiting.pop()
        if span_of(ref).count > 1:
            for line in memory.zoom(ref).lines:
                found[line.ref] = line
                waiting.append(line.ref)
    return list(found.values())


def assert_labels(body: str, outcomes: list[optchat.Outcome | None]) -> None:
    for ref, label, _ in parsed_lines(body):
        span = span_of(ref)
        under = outcomes[span.start : span.end]
        if span.count > 1:
            assert label == label_of(under)
        else:
            assert label[:8].isalnum()
            assert label[9:] == ("" if under[0] == "completed" else under[0])


# ---- 14 inert ------------------------------------------------------------------------------------------------------

ATTRIBUTE = r'[a-z_]+="(?:[^"<>&\'\n]|&(?:amp|lt|gt|quot|#39);)*"'
BLOCK = re.compile(
    rf"<(shared_memory|session_memory|since|previous_exchange)((?: {ATTRIBUTE})*)>\n(.*)</\1>", re.DOTALL
)
LINE = re.compile(r"((?:pub:)?\d+\+\d+)(?: \[([a-z0-9, ]+)\])? \| (.*)")
CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
UNSAFE = re.compile(f"[{CONTROL}<>]|&(?!(?:amp|lt|gt);)")


def block_body(text: str) -> str:
    match = BLOCK.fullmatch(text)
    assert match is not None, text
    return match[3]


def parsed_lines(body: str) -> list[tuple[str, str, str]]:
    """(ref, label, data) of each line, by the grammar and nothing but it."""
    assert not body or body.endswith("\n")
    lines = []
    for row in body.split("\n")[:-1]:
        match = LINE.fullmatch(row)
        assert match is not None, row
        assert not UNSAFE.search(match[3]), row
        lines.append((match[1], match[2] or "", match[3]))
    return lines


SCOPE = "a\"b<c>&'d [1 failed] | e"


@FEW
@given(worlds())
def test_inert(world: World) -> None:
    schedule = tuple(evolve(step, scope=SCOPE) for step in world.schedule)
    with lived(evolve(world, schedule=schedule), scope=SCOPE) as moments:
        for moment in moments:
            for (_, key), turn in moment.turns.items():
                context = context_of(turn)
                if context is not None:
                    assert_inert(moment.memory, moment.memory.session(key).id, turn, context)


def assert_inert(
    memory: optchat.Memory, session: str, turn: Turn, context: optchat.Context[optchat.HostMessage]
) -> None:
    texts = {line.ref: line.text for line in (*turn.view().lines, *memory.view(session).lines)}
    shown: list[str] = []
    assert [block.kind for block in context.blocks[:3]] == ["guidance", "shared", "session"]
    rest = [block.kind for block in context.blocks[3:]]
    assert [kind for kind in rest if kind != "since"] in ([], ["previous_exchange"])
    assert rest == sorted(rest, key=["since", "previous_exchange"].index)
    assert context.blocks[0].text == optchat.MEMORY_GUIDANCE
    for block in context.blocks[1:]:
        for ref, _label, data in parsed_lines(block_body(block.text)):
            full = canonical(ref, session)
            shown.append(full)
            if full in texts and full not in context.receipt.missing and block.kind != "previous_exchange":
                assert data == escape(texts[full])
            elif block.kind == "previous_exchange" and full not in context.receipt.left_out:
                part = memory.source(full).part
                assert one_line(text_of(part)) in memory_unescape(data)
    assert tuple(shown) == context.receipt.refs
    for message, block in zip(context.memory, context.blocks, strict=True):
        assert message == optchat.HostMessage.user(block.text), "never in the system's or the assistant's voice"


def memory_unescape(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


# ---- 15 charged once -----------------------------------------------------------------------------------------------


@FEW
@given(worlds(sessions=2), st.integers(900, 12_000), st.integers(0, 400), st.integers(1, 400))
def test_charged_once(world: World, window: int, instructions: int, output: int) -> None:
    adapter = NeutralAdapter()
    budget = optchat.Budget(window=window, output=output, instructions=instructions, reserve=64)
    tokenizer = optchat.tokenizer_for()
    with lived(world) as moments:
        for moment in moments:
            for turn in moment.turns.values():
                try:
                    context = context_of(turn, budget)
                except (optchat.CoverTooLarge, optchat.ContextTooLarge):
                    continue
                if context is None:
                    continue
                use = context.receipt.tokens
                assert (use.window, use.instructions, use.output, use.reserve) == (window, instructions, output, 64)
                active = context.messages[len(context.memory) :]
                assert use.active == sum(adapter.count(message, tokenizer) for message in active)
                charged = dict.fromkeys((block.kind for block in context.blocks), 0)
                for block in context.blocks:  # of what was added to the views there can be several
                    charged[block.kind] += sum(adapter.count(sent, tokenizer) for sent in adapter.encode([block]))
                assert use.blocks == charged
                parts = use.instructions + use.output + use.reserve + use.active + sum(use.blocks.values())
                assert use.left >= 0
                assert parts + use.left <= window


# ---- 16 unthought --------------------------------------------------------------------------------------------------

THOUGHT = "zqthoughtzq"  # nothing else could put these bytes into a file

thoughts = st.text(max_size=30).map(lambda text: f"{text} {THOUGHT} {text}")


@st.composite
def chat_turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """An assistant's messages of one turn as providers give them, each with what it thought."""
    messages: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant", "content": draw(st.text(max_size=20)) + " note"}
        field = draw(st.sampled_from(["reasoning_content", "reasoning", "reasoning_details", "thinking"]))
        thought = draw(thoughts)
        message[field] = [{"type": "reasoning.text", "text": thought}] if field == "reasoning_details" else thought
        if draw(st.booleans()):
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "run", "arguments": "{}"}}
            messages.append({**message, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "a note"})
        else:
            messages.append(message)
    return messages


@settings(
    parent=FEW, suppress_health_check=[HealthCheck.function_scoped_fixture, *settings.default.suppress_health_check]
)
@given(st.lists(chat_turns(), min_size=1, max_size=3), st.booleans())
def test_unthought(caplog: pytest.LogCaptureFixture, turns: list[list[dict[str, Any]]], observed: bool) -> None:
    wire: Any = OpenAIChat()
    with TemporaryDirectory() as directory, caplog.at_level(logging.DEBUG):
        path = Path(directory) / "memory.db"
        summarizer = DeterministicSummarizer()
        with optchat.open(path, scope="test", summarizer=summarizer, compact="manual", policy=SMALL) as memory:
            chat = memory.session("chat", adapter=wire)
            for messages in turns:
                given_ = copy.deepcopy(messages)
                request = {"role": "user", "content": "a note please"}
                with chat.turn(request) as turn:
                    if observed:
                        turn.observe([request, *messages[:1]])
                        turn.observe([request, *messages])
                    else:
                        turn.add(*messages)
                    sent = turn.context(BUDGET, readiness="partial")
                    active = sent.messages[len(sent.memory) :]
                    assert all(a is b for a, b in zip(active, [request, *messages], strict=True))
                    assert messages == given_
                    assert THOUGHT not in str(sent.memory)
                    assert not turn.search(THOUGHT).hits
            memory.settle()
            assert all(THOUGHT not in source.text for request in summarizer.requests for source in request.sources)
        assert THOUGHT not in caplog.text
        assert_absent(directory, THOUGHT)


def assert_absent(directory: str, word: str) -> None:
    """No file holds the word; looked at by another process, as closing a descriptor here would drop SQLite's locks."""
    script = (
        "import pathlib, sys\n"
        "files = pathlib.Path(sys.argv[1]).iterdir()\n"
        "sys.exit(any(sys.argv[2].encode() in file.read_bytes() for file in files))"
    )
    assert subprocess.run([sys.executable, "-c", script, directory, word], check=False).returncode == 0
