"""§ 16: A publishes during B's tool loop; B remains on its pinned snapshot until the next turn (§ 9's schedule)."""

from typing import Any

import pytest

import optchat
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WIRE, Message, Scripted, block, call, converse, says
from tests.peer import Peer

MEMORY_BLOCKS = ("<shared_memory", "<session_memory", "<previous_exchange")


def memory_of(messages: list[Message]) -> list[Message]:
    return [m for m in messages if str(m["content"]).startswith(MEMORY_BLOCKS)]


def publish(memory: optchat.Memory, text: str) -> None:
    with memory.session("a").turn(text) as turn:
        turn.assistant(f"{text}: yes")


def test_b_stays_on_its_snapshot_through_the_tool_loop(memory: optchat.Memory, peer: Peer) -> None:
    publish(memory, "the first thing")
    peer("a = memory.session('from another process')")

    def while_thinking(_messages: list[Message]) -> Message:
        peer("with a.turn('zebra decided') as turn: turn.assistant('yes')")
        publish(memory, "quagga decided")
        return says(None, call("c1", "memory_search", query="zebra quagga"), call("c2", "memory_sessions"))

    def with_answers(messages: list[Message]) -> Message:
        answers = [str(message["content"]) for message in messages if message["role"] == "tool"]
        assert not any("zebra" in answer or "quagga" in answer or "another process" in answer for answer in answers)
        return says(None, call("c3", "memory_zoom", ref="pub:1+1"))

    def with_error(messages: list[Message]) -> Message:
        assert "UNKNOWN_REF" in messages[-1]["content"]
        return says("I see nothing of it.")

    model = Scripted(while_thinking, with_answers, with_error)
    b = memory.session("b", adapter=WIRE)
    with b.turn("go on") as turn:
        converse(turn, model)
    first, second, third = map(memory_of, model.messages)
    assert first == second == third
    assert "decided" not in str(model.messages)
    assert 'through="1"' in block(model.messages[0], "shared_memory")

    later = Scripted(says("Now I see it."))
    with b.turn("and now?") as turn:
        converse(turn, later)
    assert 'through="1"' in block(later.messages[0], "shared_memory")
    new = block(later.messages[0], "since")
    assert "zebra decided" in new
    assert "quagga decided" in new
    assert 'shared_through="4"' in new


def test_every_read_of_the_turn_agrees(memory: optchat.Memory) -> None:
    publish(memory, "the first thing")
    turn = memory.session("b").turn("go on")
    budget = optchat.Budget(32_000, 1_000)
    before: list[Any] = [
        turn.view(),
        turn.sessions(),
        turn.search("thing"),
        turn.date("pub:0+1"),
        turn.context(budget).blocks,
    ]
    for number in range(5):
        publish(memory, f"another thing {number}")
    assert [
        turn.view(),
        turn.sessions(),
        turn.search("thing"),
        turn.date("pub:0+1"),
        turn.context(budget).blocks,
    ] == before
    for ref in ("pub:1+1", "pub:0+2", "pub:4+2"):
        for read in (turn.zoom, turn.date, turn.source):
            with pytest.raises(optchat.UnknownRef):
                read(ref)
    assert turn.snapshot.through == 1
    assert memory.view().through == 6


def test_a_turn_sees_of_a_known_session_only_what_was_published_then(memory: optchat.Memory) -> None:
    publish(memory, "the first thing")
    a = memory.session("a")
    turn = memory.session("b").turn("go on")
    publish(memory, "the second thing")
    assert turn.zoom(f"session:{a.id}:0:0+2").kind == "node"
    for ref in (f"session:{a.id}:0:2+1", f"session:{a.id}:0:2+2", f"session:{a.id}:0:0+4"):
        with pytest.raises(optchat.UnknownRef):
            turn.zoom(ref)
    assert next(info for info in turn.sessions() if info.id == a.id).length == 2
    assert next(info for info in memory.sessions() if info.id == a.id).length == 4


def test_pending_says_what_is_on_its_way(memory: optchat.Memory) -> None:
    with memory.session("a").turn("long") as turn:
        turn.assistant("because. " * 1000)
    with memory.session("b").turn("go on") as turn:
        shared = next(each.text for each in turn.context(optchat.Budget(32_000, 1_000)).blocks if each.kind == "shared")
        assert shared.splitlines()[0].endswith('through="0" pending="1">')
        assert memory.settle().publications == 1
        again = next(each.text for each in turn.context(optchat.Budget(32_000, 1_000)).blocks if each.kind == "shared")
        assert again == shared
    preview = memory.session("b").preview(optchat.Budget(32_000, 1_000))
    assert preview.blocks[1].text == shared
    assert preview.blocks[3].kind == "since"
    assert 'pending="0"' in preview.blocks[3].text


def test_a_late_summary_moves_nothing_that_was_rendered(memory: optchat.Memory) -> None:
    """What a partial view lacked, it lacks until the turn ends; who asks for a strict one gets it once it is there."""
    b = memory.session("b")
    with b.turn("long") as turn:
        turn.assistant("because. " * 1000)
    budget = optchat.Budget(32_000, 1_000)
    with b.turn("go on") as turn:
        partial = turn.context(budget, readiness="partial")
        assert 'missing="1+1"' in next(each.text for each in partial.blocks if each.kind == "session")
        assert partial.receipt.missing == (f"session:{b.id}:0:1+1",)
        with pytest.raises(optchat.SummariesPending) as caught:
            turn.context(budget)
        assert caught.value.missing == (f"session:{b.id}:0:1+1",)
        memory.settle()
        assert turn.context(budget, readiness="partial").blocks == partial.blocks
        strict = turn.context(budget)
        assert strict.receipt.missing == ()
        assert turn.context(budget, readiness="partial").blocks == strict.blocks
        assert strict.blocks[1] == partial.blocks[1], "of other sessions it shows the same"


def test_what_a_pin_sees_never_moves(open_memory: Open, memory: optchat.Memory) -> None:
    publish(memory, "the first thing")
    with memory.pin() as pinned:
        publish(memory, "the second thing")
        assert pinned.view().through == 1
        name = pinned.view().snapshot.id
    publish(memory, "the third thing")
    with open_memory().pin(name) as again:
        assert again.view().through == 1
        assert [hit.ref for hit in again.search("thing")] == [hit.ref for hit in pinned.search("thing")]
