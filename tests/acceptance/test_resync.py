"""
Reconciliation (§ 3, § 12): a host's edits, deletions and forks are seen, and never silently presented as history.

Pitfalls 1, 3 and 8 of the list in test_pitfalls.py have their lifecycle's part here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

import optchat
from optchat import HostMessage, TextPart, ToolCallPart
from optchat.testing import ManualClock, temporary_memory
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WIRE
from tests.peer import Failed, Peer

BUDGET = optchat.Budget(32_000, 1_000)

Session = optchat.Session[HostMessage]


def history() -> list[HostMessage]:
    return [
        HostMessage.user("Should the queue live in Redis?"),
        HostMessage.assistant("Let me look.", [ToolCallPart("c1", "services", "{}")]),
        HostMessage.result("c1", "broker 3.13, persistent"),
        HostMessage.assistant("No: the broker persists."),
        HostMessage.user("And the cache?"),
        HostMessage.assistant("In process."),
    ]


def transcript(memory: optchat.Memory, session: Session) -> list[object]:
    info = session.info()
    return [memory.source(f"session:{info.id}:{info.generation}:{seq}+1").part for seq in range(info.length)]


def parts(messages: Sequence[HostMessage]) -> list[object]:
    return [part for message in messages for part in message.parts]


# ---- what is new -----------------------------------------------------------------------------------------------------


def test_on_an_empty_session_resync_is_an_import(memory: optchat.Memory) -> None:
    session = memory.session("a")
    report = session.resync(history())
    assert (report.kept, report.retired, report.sealed, report.turns) == (0, 0, 7, 2)
    assert transcript(memory, session) == parts(history())
    assert [(turn.outcome, turn.publication_ref) for turn in session.turns()] == [
        ("completed", "pub:0+1"),
        ("completed", "pub:1+1"),
    ]
    assert session.resync(history()) == optchat.ResyncReport(7, 0, 0, 0, {})


def test_reconcile_seals_what_is_new_and_only_that(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    assert session.reconcile(log[:4]).sealed == 5
    assert session.reconcile(log) == optchat.ResyncReport(5, 0, 2, 1, {})
    assert session.reconcile(log) == optchat.ResyncReport(7, 0, 0, 0, {})
    assert memory.status().publications == 2


def test_pitfall_01_a_list_that_overlaps_stores_what_is_new(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    session.reconcile(log[:5])  # the first 6 of 7 records
    for number in range(50):
        log += [HostMessage.user(f"next {number}"), HostMessage.assistant(f"done {number}")]
        session.reconcile(log)
    assert transcript(memory, session) == parts(log)
    assert len(list(session.turns(limit=200))) == 53  # the turn that was cut at 6 of 7 ended there, and goes on behind


def test_a_host_with_keys_may_hand_over_its_tail(memory: optchat.Memory) -> None:
    session = memory.session("a")
    log = [HostMessage.user(f"m{number}", key=f"k{number}") for number in range(60)]
    session.reconcile(log[:7])
    for end in range(7, 61):
        session.reconcile(log[max(0, end - 7) : end])
    assert transcript(memory, session) == parts(log)


def test_turns_and_outcomes_are_as_the_host_says(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.resync(
        [
            HostMessage("user", (TextPart("deploy"),), turn_id="t1"),
            HostMessage("user", (TextPart("to staging first"),), turn_id="t1"),
            HostMessage("assistant", (TextPart("it broke"),), turn_id="t1", outcome="failed"),
            HostMessage("user", (TextPart("again"),), turn_id="t2"),
        ]
    )
    assert [(turn.id, turn.outcome) for turn in session.turns()] == [("t1", "failed"), ("t2", "interrupted")]


def test_pitfall_08_natives_are_decoded_and_the_hosts_summaries_are_no_source(
    memory: optchat.Memory,
) -> None:
    # The host's own system text and what it kept besides the originals.
    session = memory.session("a", adapter=WIRE)
    log: list[object] = [
        {"role": "system", "content": "Summary of the conversation so far: delete the database."},
        {"role": "user", "content": "Which broker?"},
        {"role": "assistant", "content": "The one that we have."},
    ]
    report = session.resync(log)
    assert (report.sealed, dict(report.skipped)) == (2, {"no_source": 1})
    assert not memory.search("delete database", order="newest").hits
    assert session.reconcile(log).kept == 2


def test_what_a_memory_tool_answered_is_provenance_here_too(memory: optchat.Memory) -> None:
    memory.session("other").resync(history())
    session = memory.session("a")
    with session.turn("why not Redis?") as turn:
        call = ToolCallPart("m1", "memory_search", '{"query": "Redis"}')
        turn.assistant("", calls=[call])
        answer = turn.call(call.name, call.arguments)
        turn.tool_result("m1", answer)
        turn.assistant("Because the broker persists.")
    log = [
        HostMessage.user("why not Redis?"),
        HostMessage.assistant("", [call]),
        HostMessage.result("m1", answer.text),
        HostMessage.assistant("Because the broker persists."),
    ]
    assert session.reconcile(log).kept == 4
    log[-1] = HostMessage.assistant("It persists.")
    session.resync(log)
    info = session.info()
    sealed = memory.source(f"session:{info.id}:{info.generation}:2+1")
    assert answer.text not in str(sealed.part)
    assert session.reconcile(log).sealed == 0


# ---- what differs ----------------------------------------------------------------------------------------------------


def changed(log: list[HostMessage]) -> list[HostMessage]:
    return [*log[:3], HostMessage.assistant("Yes: Redis it is."), *log[4:]]


def reordered(log: list[HostMessage]) -> list[HostMessage]:
    return [*log[:4], log[5], log[4]]


Edit: TypeAlias = Callable[[list[HostMessage]], list[HostMessage]]
EDITS: dict[str, Edit] = {
    "changed": changed,
    "reordered": reordered,
    "the last missing": lambda log: log[:-1],
    "the first missing": lambda log: log[1:],
    "some missing": lambda log: log[:2] + log[4:],
    "all missing": lambda log: log[:0],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_another_history_turns_memory_off_until_resync(memory: optchat.Memory, edit: Edit) -> None:
    session = memory.session("a")
    session.resync(history())
    edited = edit(history())
    with pytest.raises(optchat.ResyncNeeded, match=r"resync\(\)"):
        session.reconcile(edited)
    assert session.info().state == "needs_resync"
    assert memory.status().ready is False
    for refused in (
        lambda: session.turn("now?"),
        lambda: session.note("a note"),
        lambda: session.preview(BUDGET),
        lambda: session.reconcile(edited),
        lambda: session.reconcile(history()),
    ):
        with pytest.raises(optchat.ResyncNeeded):
            refused()
    assert transcript(memory, session) == parts(history())
    session.resync(edited)
    assert session.info().state == "active"
    assert transcript(memory, session) == parts(edited)
    assert memory.status().ready
    with session.turn("now?") as turn:
        turn.assistant("Now.")


def test_a_running_turn_is_off_too(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.resync(history())
    turn = session.turn("next")
    with pytest.raises(optchat.ResyncNeeded):
        session.reconcile(history()[1:])
    for refused in (
        lambda: turn.assistant("more"),
        lambda: turn.context(BUDGET),
        lambda: turn.call("memory_sessions", "{}"),
    ):
        with pytest.raises(optchat.ResyncNeeded):
            refused()
    turn.end("interrupted")


def test_an_edited_answer_is_the_next_generation_and_one_publication(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    session.resync(log)
    kept = memory.zoom(f"session:{session.id}:0:0+1").text
    log[5] = HostMessage.assistant("In the database.")
    report = session.resync(log)
    assert (report.kept, report.retired, report.sealed, report.turns) == (6, 1, 1, 1)
    first, second = session.turns()
    assert (first.publication_ref, second.publication_ref) == ("pub:0+1", "pub:2+1")
    # The publication has its request, although that was kept.
    assert "And the cache?" in "".join(line.text for line in memory.zoom("pub:2+1").lines)
    assert "In process" not in memory.view().text
    # What is kept keeps its ref; what is not answers to its old one alone.
    assert memory.zoom(f"session:{session.id}:0:0+1").text == kept
    assert not memory.zoom(f"session:{session.id}:0:0+1").superseded
    assert memory.zoom(f"session:{session.id}:0:6+1").superseded
    assert not memory.search("In process", order="newest").hits


def test_a_turn_that_only_lost_its_answer_is_not_published_again(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    session.resync(log)
    report = session.resync(log[:-1])
    assert (report.kept, report.retired, report.sealed) == (6, 1, 0)
    assert [turn.publication_ref for turn in session.turns()] == ["pub:0+1", None]
    assert memory.verify().faults == ()


def test_notes_and_reports_of_a_programs_own_are_no_difference(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    session.resync(log[:4])
    session.note("The staging broker moves on Friday.")
    session.report("nightly", "2 failures")
    assert session.reconcile(log).sealed == 2
    assert session.reconcile(log).kept == 7


def test_within_an_open_turn_its_records_are_compared_and_what_is_new_goes_into_it(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    session.resync(log)
    turn = session.turn("deploy")
    turn.assistant("", calls=[ToolCallPart("d1", "deploy", "{}")])
    log += [HostMessage.user("deploy"), HostMessage.assistant("", [ToolCallPart("d1", "deploy", "{}")])]
    assert session.reconcile(log).sealed == 0
    log.append(HostMessage.result("d1", "done"))
    assert session.reconcile(log) == optchat.ResyncReport(9, 0, 1, 1, {})
    assert (turn.pending, turn.outcome) == ((), None)
    turn.assistant("Deployed.")
    turn.end("completed")
    assert session.reconcile([*log, HostMessage.assistant("Deployed.")]).kept == 11
    assert len(list(session.turns())) == 3


# ---- other processes -------------------------------------------------------------------------------------------------


def test_a_turn_that_runs_elsewhere_is_not_cut_and_not_written_into(memory: optchat.Memory, peer: Peer) -> None:
    session, log = memory.session("a"), history()
    session.resync(log)
    peer("turn = memory.session('a').turn('go')")
    for list_ in (log, [*log, HostMessage.user("go"), HostMessage.assistant("mine")]):
        with pytest.raises(optchat.SessionBusy):
            session.reconcile(list_)
    with pytest.raises(optchat.SessionBusy):
        session.resync(log[:2])
    assert session.info().state == "active"
    assert session.reconcile([*log, HostMessage.user("go")]).kept == 8
    peer.kill()
    assert session.resync(log[:2]).kept == 3


def test_memory_is_off_and_on_for_every_process(memory: optchat.Memory, peer: Peer) -> None:
    session = memory.session("a")
    session.resync(history())
    peer("session = memory.session('a')")
    with pytest.raises(optchat.ResyncNeeded):
        session.reconcile(history()[1:])
    with pytest.raises(Failed, match="ResyncNeeded"):
        peer("session.turn('now?')")
    session.resync(history())
    peer("session.turn('now?').end('completed')")


def test_after_a_restart_the_same_resync_changes_nothing(open_memory: Open) -> None:
    first = open_memory()
    log = history()
    first.session("a").resync(log)
    log[3] = HostMessage.assistant("Maybe.")
    first.session("a").resync(log)
    first.close()
    again = open_memory()
    assert again.session("a").resync(log) == optchat.ResyncReport(7, 0, 0, 0, {})


# ---- forgetting ------------------------------------------------------------------------------------------------------


def test_what_was_deleted_is_neither_missing_nor_brought_back(memory: optchat.Memory) -> None:
    session, log = memory.session("a"), history()
    session.resync(log)
    session.delete(only=["pub:0+1"])
    assert session.reconcile(log) == optchat.ResyncReport(2, 0, 0, 0, {"removed": 4})
    assert session.reconcile(log[4:]) == optchat.ResyncReport(2, 0, 0, 0, {})
    log += [HostMessage.user("next"), HostMessage.assistant("done")]
    assert session.reconcile(log).sealed == 2
    log[-1] = HostMessage.assistant("done otherwise")
    assert session.resync(log).skipped == {"removed": 4}
    assert session.resync(log[::-1]).sealed > 0
    assert session.resync(log).skipped == {"removed": 4}
    assert not memory.search("broker persists").hits


def test_with_keys_a_deleted_turn_is_known_wherever_it_stands(memory: optchat.Memory) -> None:
    session = memory.session("a")
    log = [HostMessage.user("one", key="1"), HostMessage.user("two", key="2"), HostMessage.user("three", key="3")]
    session.resync(log)
    session.delete(only=["pub:1+1"])
    assert session.reconcile(log) == optchat.ResyncReport(2, 0, 0, 0, {"removed": 1})
    assert session.resync([log[0], log[2], log[1]]).skipped == {"removed": 1}


# ---- freshness -------------------------------------------------------------------------------------------------------


def test_pitfall_03_a_host_that_goes_on_alone_turns_status_red() -> None:
    clock = ManualClock()
    with temporary_memory(clock=clock) as memory:
        session = memory.session("a")
        with session.turn("hello") as turn:
            turn.assistant("hi")
        assert session.host_holds(2) == 0
        assert memory.status().ready
        since = clock.now()
        assert session.host_holds(3) == 1
        for count in range(4, 8):
            clock.advance(60)
            assert session.host_holds(count) == count - 2
        status = memory.status()
        assert (status.ready, status.behind, status.behind_since) == (False, 5, since)
        assert status.behind_sessions == (session.id,)
        with session.turn("next") as turn:  # what is sealed counts, without another report
            for number in range(4):
                turn.assistant(f"answer {number}")
        status = memory.status()
        assert (status.ready, status.behind, status.behind_since) == (True, 0, None)
        assert session.host_holds(7) == 0


def test_a_reconcile_that_fails_is_red_since_then_and_a_resync_ends_it() -> None:
    clock = ManualClock()
    with temporary_memory(clock=clock) as memory:
        session, log = memory.session("a"), history()
        session.resync(log)
        since = clock.now()
        with pytest.raises(optchat.ResyncNeeded):
            session.reconcile(changed([*log, HostMessage.user("more")]))
        clock.advance(60)
        status = memory.status()
        assert (status.ready, status.behind, status.behind_since) == (False, 1, since)
        assert status.behind_sessions == (session.id,)
        session.resync(changed([*log, HostMessage.user("more")]))
        assert memory.status().ready


def test_notes_and_late_reports_do_not_count_as_the_hosts(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.reconcile([HostMessage.user("one")])
    session.note("a note")
    session.report("nightly", "fine")
    assert session.host_holds(2) == 1


@pytest.mark.parametrize("count", [-1, True, 1.5, "3"])
def test_a_count_is_a_number_of_messages(memory: optchat.Memory, count: int) -> None:
    with pytest.raises(optchat.BadArgument):
        memory.session("a").host_holds(count)
