"""§ 16: replaying finalization and terminal events changes neither record count nor publication count."""

import threading
from pathlib import Path
from typing import Any

import pytest

import optchat
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WIRE, Scripted, call, says
from tests.peer import Failed, Peer

CALL = optchat.ToolCallPart("c1", "read", '{"path": "a"}')
TURN = [
    optchat.HostMessage.user("look at a", key="m1"),
    optchat.HostMessage.assistant("looking", [CALL], key="m2"),
    optchat.HostMessage.result("c1", "a is empty"),
    optchat.HostMessage.assistant("a is empty", key="m4"),
]


def counts(memory: optchat.Memory) -> tuple[int, int, int]:
    status = memory.status()
    return status.sessions, status.records, status.publications


def deliver(memory: optchat.Memory) -> tuple[str, ...]:
    turn = memory.session("a").turn(TURN[0], turn_id="t1")
    refs = turn.add(*TURN[1:])
    turn.end("completed")
    return refs


def test_every_event_twice(memory: optchat.Memory) -> None:
    refs = deliver(memory)
    before = counts(memory)
    assert before == (1, 5, 1)
    for _ in range(2):
        assert deliver(memory) == refs
    assert counts(memory) == before
    assert memory.verify().ok


def test_message_by_message_while_the_turn_runs(memory: optchat.Memory) -> None:
    turn = memory.session("a").turn(TURN[0], turn_id="t1")
    for message in TURN[1:]:
        first = turn.add(message)
        assert turn.add(message) == first
    assert len(turn.messages) == len(TURN)


def test_the_whole_list_again_and_again(memory: optchat.Memory) -> None:
    """A host that has no ids: a message's place in its turn is its identity."""
    plain = [optchat.HostMessage("user", (optchat.TextPart("go"),))] + [
        optchat.HostMessage.assistant("the same words") for _ in range(3)
    ]
    turn = memory.session("a").turn(plain[0], turn_id="t1")
    for end in (1, 2, 3, 4, 4, 2):
        refs = turn.observe(plain[:end])
        assert len(refs) == end
    assert memory.status().records == 4
    turn.end("completed")
    assert memory.session("a").turn(plain[0], turn_id="t1").observe(plain) == turn.observe(plain)
    assert counts(memory) == (1, 4, 1)


def test_calls_and_results_are_known_by_their_id(memory: optchat.Memory) -> None:
    turn = memory.session("a").turn("go")
    refs = [turn.tool_call("c1", "read", "{}"), turn.tool_result("c1", "x")]
    turn.assistant("between")
    assert [turn.tool_call("c1", "read", "{}"), turn.tool_result("c1", "x")] == refs
    assert turn.pending == ()
    assert memory.status().records == 4


def test_a_request_is_known_by_its_key(memory: optchat.Memory, peer: Peer) -> None:
    """A host without turn ids: its request, delivered again, is the turn that it began, and cuts nothing off."""
    turn = memory.session("a").turn("look", key="m1")
    again = memory.session("a").turn("look", key="m1")
    assert (again.id, again.outcome, again.snapshot) == (turn.id, None, turn.snapshot)
    assert peer("memory.session('a').turn('look', key='m1').id") == turn.id
    again.assistant("seen", key="m2")
    turn.end("completed")
    before = counts(memory)
    assert memory.session("a").turn(optchat.HostMessage.user("look", key="m1")).outcome == "completed"
    assert counts(memory) == before == (1, 2, 1)
    assert [one.outcome for one in memory.session("a").turns()] == ["completed"]
    with pytest.raises(optchat.RevisionConflict):
        memory.session("a").turn("look elsewhere", key="m1")
    other = memory.session("a").turn("look", key="m3")
    assert other.id != turn.id
    other.user("steer", key="m4")
    assert memory.session("b").turn("look", key="m1").id != turn.id


def test_the_first_terminal_report_wins(memory: optchat.Memory) -> None:
    turn = memory.session("a").turn("go")
    turn.assistant("done")
    turn.end("failed", "it broke")
    for outcome in ("completed", "interrupted", "failed"):
        turn.end(outcome)
    assert turn.outcome == "failed"
    assert memory.zoom("pub:0+1").outcome == "failed"
    assert memory.status().publications == 1


def test_another_process_delivers_the_same(memory: optchat.Memory, peer: Peer) -> None:
    refs = deliver(memory)
    peer("from tests.acceptance.test_duplicate_delivery import deliver")
    assert peer("list(deliver(memory))") == list(refs)
    peer("turn = memory.session('a').turn('look at a', turn_id='t1', key='m1')")
    assert peer("turn.outcome") == "completed"
    with pytest.raises(Failed, match="TurnEnded"):
        peer("turn.assistant('more')")
    assert counts(memory) == (1, 5, 1)


def test_threads_deliver_the_same_at_once(memory: optchat.Memory) -> None:
    turn = memory.session("a").turn(TURN[0], turn_id="t1")
    barrier, results = threading.Barrier(4), list[tuple[str, ...]]()

    def add() -> None:
        barrier.wait()
        results.append(turn.add(*TURN[1:]))
        turn.end("completed")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert counts(memory) == (1, 5, 1)


def test_two_processes_admit_the_same_turn(memory: optchat.Memory, peer: Peer) -> None:
    """A host that delivers through two plugins at once: one turn, sealed by both."""
    peer("turn = memory.session('a').turn('look at a', turn_id='t1', key='m1')")
    turn = memory.session("a").turn(TURN[0], turn_id="t1")
    refs = turn.add(*TURN[1:])
    peer("from tests.acceptance.test_duplicate_delivery import TURN")
    assert peer("list(turn.add(*TURN[1:]))") == list(refs)
    turn.end("completed")
    peer("turn.end('interrupted')")
    assert peer("turn.outcome") == "completed"
    assert counts(memory) == (1, 5, 1)


def test_other_content_is_an_error_and_changes_nothing(memory: optchat.Memory) -> None:
    turn = memory.session("a").turn(TURN[0], turn_id="t1")
    turn.add(*TURN[1:])
    other = optchat.HostMessage.assistant("a is full", key="m4")
    with pytest.raises(optchat.RevisionConflict):
        turn.add(other)
    with pytest.raises(optchat.RevisionConflict):
        turn.tool_result("c1", "a is full")
    with pytest.raises(optchat.ResyncNeeded):
        turn.add(optchat.HostMessage("assistant", (optchat.TextPart("a is full"),), key="m4", revision=1))
    with pytest.raises(optchat.RevisionConflict):
        turn.add(optchat.HostMessage.assistant("new"), other)
    assert turn.messages[-1].parts == (optchat.TextPart("a is empty"),)
    assert memory.status().records == 5
    assert "full" not in str(memory.search("full").hits)


def test_an_older_revision_arrives_late(memory: optchat.Memory) -> None:
    turn = memory.session("a").turn("go")
    sealed = turn.add(optchat.HostMessage("assistant", (optchat.TextPart("newest"),), key="m", revision=3))
    assert turn.add(optchat.HostMessage("assistant", (optchat.TextPart("stale"),), key="m", revision=1)) == sealed
    assert turn.messages[-1].parts == (optchat.TextPart("newest"),)


def test_through_the_wire(memory: optchat.Memory) -> None:
    """A response delivered by the loop and again by the host's list: once."""
    model = Scripted(says("looking", call("c1", "read", path="a"), call("c2", "read", path="b")), says("empty"))
    history: list[Any] = [{"role": "user", "content": "look"}]
    with memory.session("a", adapter=WIRE).turn(history[0]) as turn:
        for _ in range(2):
            messages = turn.context(optchat.Budget(32_000, 1_000), active=history).messages
            response = model.client.chat.completions.create(model="scripted", messages=messages)
            history += WIRE.reply(response)
            made = response.choices[0].message.tool_calls or []
            history += [{"role": "tool", "tool_call_id": one.id, "content": "nothing"} for one in made]
            turn.observe(history)
            turn.observe(history)
    assert turn.outcome == "completed"
    assert counts(memory) == (1, 7, 1)


def test_the_same_file_again(memory: optchat.Memory, tmp_path: Path) -> None:
    file = tmp_path / "told.jsonl"
    line = '{"session": "s", "at": "2026-01-05T12:17:31Z", "role": "%s", "parts": [{"type": "text", "text": "%s"}]}\n'
    file.write_text(line % ("user", "hello") + line % ("assistant", "hi"), encoding="utf-8")
    assert memory.import_file(file).sealed == 2
    before = counts(memory)
    again = memory.import_file(file)
    assert (again.kept, again.sealed, again.turns) == (2, 0, 0)
    assert counts(memory) == before


def test_after_a_restart(open_memory: Open) -> None:
    first = open_memory()
    refs = deliver(first)
    first.close()
    again = open_memory()
    assert deliver(again) == refs
    assert counts(again) == (1, 5, 1)
