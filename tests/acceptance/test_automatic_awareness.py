"""§ 16: B's captured request contains A's published decision, without B calling a memory tool first."""

from typing import Any

import optchat
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WIRE, Scripted, block, converse, says
from tests.peer import Peer

DECISION = "Decided against Redis for the queue: the existing broker persists messages to disk."


def ask(memory: optchat.Memory, key: str, text: str) -> list[dict[str, Any]]:
    """The first request that a model gets in this session for that text."""
    model = Scripted(says("I will build on the broker."))
    with memory.session(key, adapter=WIRE).turn(text) as turn:
        converse(turn, model)
    assert not any(message["role"] == "tool" for message in model.messages[0])
    return model.messages[0]


def check_aware(messages: list[dict[str, Any]], session_id: str, words: str = "Decided against Redis") -> None:
    lines = block(messages, "shared_memory").splitlines()
    named = [line for line in lines if words in line]
    assert named, "the decision does not stand in the shared block"
    assert named[0].startswith("pub:0+1 ")
    assert f"[{session_id}" in named[0]
    assert messages[-1] == {"role": "user", "content": "add a persistent queue"}


def test_b_sees_what_a_decided(memory: optchat.Memory) -> None:
    a = memory.session("a")
    with a.turn("Should we use Redis for the queue?") as turn:
        turn.assistant(DECISION)
    messages = ask(memory, "b", "add a persistent queue")
    check_aware(messages, a.id)
    assert messages[0]["content"] == optchat.MEMORY_GUIDANCE


def test_b_sees_it_in_a_later_turn_too(memory: optchat.Memory) -> None:
    ask(memory, "b", "hello")
    a = memory.session("a")
    with a.turn("Should we use Redis for the queue?") as turn:
        turn.assistant(DECISION)
    messages = ask(memory, "b", "add a persistent queue")
    named = [line for line in block(messages, "since").splitlines() if "Decided against Redis" in line]
    assert named[0].startswith(f"pub:1+1 [{a.id}] | ")


def test_b_sees_it_across_processes(memory: optchat.Memory, peer: Peer) -> None:
    code = "with a.turn('Should we use Redis for the queue?') as turn: turn.assistant(decision)"
    peer("a = memory.session('a')")
    peer(code, decision=DECISION)
    check_aware(ask(memory, "b", "add a persistent queue"), peer("a.id"))


def test_b_sees_a_summary_of_what_is_too_long_to_show(memory: optchat.Memory) -> None:
    a = memory.session("a")
    with a.turn("Should we use Redis for the queue?") as turn:
        turn.tool_call("c1", "read_file", {"path": "docs/broker.md"})
        turn.tool_result("c1", "The broker keeps its log on disk. " * 400)
        turn.assistant(DECISION + " " + "The measurements are in the log. " * 100)
    assert memory.settle().ready
    messages = ask(memory, "b", "add a persistent queue")
    check_aware(messages, a.id, "Redis")
    line = block(messages, "shared_memory").splitlines()[1]
    assert len(line) < 1000
    assert "broker" in line


def test_b_sees_it_once_the_background_worker_has_summarised_it(open_memory: Open) -> None:
    memory = open_memory(compact="background")
    a = memory.session("a")
    with a.turn("Should we use Redis for the queue?") as turn:
        turn.assistant(DECISION + " " + "The measurements are in the log. " * 100)
    memory.settle()
    check_aware(ask(memory, "b", "add a persistent queue"), a.id, "Redis")


def test_an_isolated_session_neither_tells_nor_hears(memory: optchat.Memory) -> None:
    with memory.session("a").turn("Should we use Redis for the queue?") as turn:
        turn.assistant(DECISION)
    with memory.session("hermit", isolated=True).turn("The passphrase is heliotrope.") as turn:
        context = turn.context(optchat.Budget(32_000, 1_000))
        assert "shared" not in {each.kind for each in context.blocks}
        assert "Redis" not in "".join(each.text for each in context.blocks)
        turn.assistant("noted")
    assert "heliotrope" not in str(ask(memory, "b", "add a persistent queue"))
    assert memory.status().publications == 2
