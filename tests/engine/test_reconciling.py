"""Reconciliation among threads, handles and processes: who comes between comparing and writing, and what is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import optchat
from optchat import HostMessage
from optchat.engine import reconciling
from optchat.engine.comparing import Compared, compare_list
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside

LONG = "said at length, " * 8_000  # apart from its row, staged ahead of its seal


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory() as memory:
        yield memory


def log(turns: int) -> list[HostMessage]:
    return [
        message
        for number in range(turns)
        for message in (HostMessage.user(f"ask {number}"), HostMessage.assistant(f"answer {number}"))
    ]


def texts(memory: optchat.Memory, session: optchat.Session[Any]) -> list[str]:
    info = session.info()
    parts = [memory.source(f"session:{info.id}:{info.generation}:{seq}+1").part for seq in range(info.length)]
    return [part.text for part in parts if isinstance(part, optchat.TextPart)]


def between(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> list[Compared]:
    """Let something happen once, after the first comparison and before what follows from it is written."""
    seen: list[Compared] = []

    def compared(*arguments: Any) -> Compared:
        seen.append(compare_list(*arguments))
        if len(seen) == 1:
            happens()
        return seen[-1]

    monkeypatch.setattr(reconciling, "compare_list", compared)
    return seen


def test_what_was_sealed_meanwhile_is_compared_again(memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    session = memory.session("a")
    session.reconcile(log(1))
    other = open_beside(memory).session("a")
    seen = between(monkeypatch, lambda: _with_the_original(monkeypatch, lambda: other.reconcile(log(2))))
    assert session.reconcile(log(3)) == optchat.ResyncReport(4, 0, 2, 1, {})
    assert len(seen) == 2
    assert texts(memory, session) == [message.parts[0].text for message in log(3)]  # type: ignore[union-attr]


def _with_the_original(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    with monkeypatch.context() as inner:
        inner.setattr(reconciling, "compare_list", compare_list)
        action()


def test_a_difference_that_is_none_any_more_turns_nothing_off(
    memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The list lacks a turn; before that is written down, another handle rewinds the session to where the list ends.
    session, other = memory.session("a"), open_beside(memory).session("a")
    session.reconcile(log(2))
    turn = next(iter(other.turns())).id
    seen = between(monkeypatch, lambda: other.rewind(after=turn))
    assert session.reconcile(log(1)) == optchat.ResyncReport(2, 0, 0, 0, {})
    assert len(seen) == 2
    assert session.info().state == "active"


def test_of_two_resyncs_at_once_the_second_finds_what_the_first_did(
    memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = memory.session("a"), open_beside(memory).session("a")
    session.reconcile(log(3))
    edited = [*log(2), HostMessage.user("ask 2"), HostMessage.assistant("another answer")]
    seen = between(monkeypatch, lambda: _with_the_original(monkeypatch, lambda: other.resync(edited)))
    assert session.resync(edited) == optchat.ResyncReport(6, 0, 0, 0, {})
    assert len(seen) == 2
    assert session.info().generation == 1


def test_many_at_once_seal_each_message_once(memory: optchat.Memory) -> None:
    memory.session("a").reconcile(log(1))
    handles = [memory, open_beside(memory)]
    barrier = threading.Barrier(4)

    def same(number: int) -> None:
        barrier.wait()
        handles[number % 2].session("a").reconcile(log(12))

    threads = [threading.Thread(target=same, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.session("a").info().length == 24
    assert memory.session("a").info().turns == 12


def test_another_handle_goes_on_only_when_it_is_taken_anew(memory: optchat.Memory) -> None:
    session, other = memory.session("a"), memory.session("a")
    session.resync(log(2))
    session.resync(log(1))
    session.turn("here").end("completed")
    with pytest.raises(optchat.GenerationSuperseded):
        other.turn("there")
    assert other.reconcile([*log(1), HostMessage.user("here")]).kept == 3  # the list, not the handle, is compared
    memory.session("a").turn("there").end("completed")


def test_a_turn_that_was_cut_tells_its_handle(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.resync(log(1))
    turn = session.turn("deploy")
    turn.assistant("on it")
    session.resync([*log(1), HostMessage.user("deploy"), HostMessage.assistant("not yet")])
    with pytest.raises(optchat.GenerationSuperseded):
        turn.assistant("done")
    assert texts(memory, session)[-2:] == ["deploy", "not yet"]
    assert [each.outcome for each in session.turns()] == ["completed", "completed"]


def test_a_cut_turn_keeps_its_id_and_its_keys(memory: optchat.Memory) -> None:
    # Delivered again under the same turn and call ids, what was kept is not sealed twice.
    session = memory.session("a")
    turn = session.turn("deploy", turn_id="t")
    call = optchat.ToolCallPart("c", "run", "{}")
    turn.assistant("", calls=[call])
    turn.tool_result("c", LONG)
    turn.assistant("done")
    turn.end("completed")
    said = [HostMessage.user("deploy"), HostMessage.assistant("", [call]), HostMessage.result("c", LONG)]
    session.resync([*said, HostMessage.assistant("not done")])
    (again,) = session.turns()
    assert (again.id, again.outcome) == ("t", "completed")
    assert session.turn("deploy", turn_id="t").observe(said) == tuple(f"session:{session.id}:1:{n}+1" for n in range(3))
    memory.settle()
    assert memory.verify().faults == ()


def test_a_list_that_ends_in_the_midst_of_the_open_turn_may_say_how_it_ended(memory: optchat.Memory) -> None:
    session = memory.session("a")
    turn = session.turn("deploy", turn_id="t")
    turn.assistant("it broke")
    last = HostMessage("assistant", (optchat.TextPart("it broke"),), turn_id="t", outcome="failed")
    first = HostMessage("user", (optchat.TextPart("deploy"),), turn_id="t")
    assert session.reconcile([first, last]).sealed == 0
    assert [each.outcome for each in session.turns()] == ["failed"]
    turn.end("completed")  # the first terminal report wins
    assert [each.outcome for each in session.turns()] == ["failed"]


def test_a_turn_that_the_list_names_goes_on(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.turn("deploy", turn_id="t")
    steer = HostMessage("user", (optchat.TextPart("to staging"),), turn_id="t")
    first = HostMessage("user", (optchat.TextPart("deploy"),), turn_id="t")
    session.reconcile([first, steer])
    assert [(each.id, each.state) for each in session.turns()] == [("t", "open")]


def test_what_an_isolated_or_revoked_session_seals_is_not_published(memory: optchat.Memory) -> None:
    alone = memory.session("alone", isolated=True)
    alone.resync(log(2))
    revoked = memory.session("revoked")
    revoked.revoke()
    revoked.resync(log(2))
    revoked.resync(log(1))
    assert memory.status().publications == 0
    assert revoked.info().state == "revoked"


def test_a_fork_is_compared_with_what_it_inherited(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.resync(log(3))
    fork = session.fork("b")
    assert fork.reconcile(log(4)) == optchat.ResyncReport(6, 0, 2, 1, {})
    assert fork.resync([*log(1), HostMessage.user("elsewhere")]).kept == 2
    assert texts(memory, session) == [message.parts[0].text for message in log(3)]  # type: ignore[union-attr]


def test_an_import_into_a_session_that_is_off_is_refused(memory: optchat.Memory, tmp_path: Any) -> None:
    session = memory.session("a")
    session.resync(log(2))
    with pytest.raises(optchat.ResyncNeeded):
        session.reconcile(log(1))
    file = tmp_path / "more.jsonl"
    file.write_text(
        '{"session": "a", "at": "2026-01-05T12:00:00Z", "role": "user", "parts": [{"type": "text", "text": "x"}]}\n'
    )
    with pytest.raises(optchat.ResyncNeeded):
        memory.import_file(file)


class Forgetful:
    """The codec of a host that keeps what it likes of a turn that did not complete."""

    info = optchat.HostInfo(name="forgetful", drops_unfinished=True)

    def decode(self, message: HostMessage, /) -> list[HostMessage]:
        return [message]

    def encode(self, blocks: Sequence[optchat.MemoryBlock], /) -> list[HostMessage]:
        return [HostMessage.user(block.text) for block in blocks]

    def count(self, message: HostMessage, tokenizer: optchat.Tokenizer, /) -> int:
        return tokenizer.count(str(message))


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_request_that_is_sent_again_after_a_failure_is_no_edit(memory: optchat.Memory, kept: int) -> None:
    session = memory.session("a", adapter=Forgetful(), host="forgetful")
    half = [HostMessage.user("do it"), HostMessage.assistant("on my way")]
    with pytest.raises(RuntimeError), session.turn("do it") as turn:
        turn.add(half[1])
        raise RuntimeError
    whole = [HostMessage.user("do it"), HostMessage.assistant("done")]
    with session.turn("do it") as turn:
        turn.add(whole[1])
    history = [*half[:kept], *whole]
    assert session.reconcile([*history, HostMessage.user("next")]).sealed == 1
    with pytest.raises(optchat.ResyncNeeded):
        session.reconcile([*history[:-1], HostMessage.assistant("undone"), HostMessage.user("next")])


def test_a_call_that_failed_may_be_missing_from_the_midst_of_its_turn(memory: optchat.Memory) -> None:
    session = memory.session("a", adapter=Forgetful(), host="forgetful")
    calls = [optchat.ToolCallPart(name, "build", "{}") for name in ("c1", "c2")]
    with pytest.raises(RuntimeError), session.turn("do it") as turn:
        turn.add(HostMessage.assistant("", calls), HostMessage.result("c1", "built"))
        raise RuntimeError
    kept = [HostMessage.user("do it"), HostMessage.assistant("", calls[:1]), HostMessage.result("c1", "built")]
    assert session.reconcile([*kept, HostMessage.user("next")]).sealed == 1
    assert [turn.request for turn in session.turns()] == ["do it", "next"]


def test_a_host_that_keeps_all_has_edited_what_it_lacks(memory: optchat.Memory) -> None:
    session = memory.session("a")
    with pytest.raises(RuntimeError), session.turn("do it"):
        raise RuntimeError
    with pytest.raises(optchat.ResyncNeeded):
        session.reconcile([HostMessage.user("do that")])
