"""Approvals: one turn is a chain of runs, under one snapshot, in whatever process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponsePart, ToolCallPart, ToolReturnPart

import optchat
from optchat import HostMessage, Memory
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside
from tests.integrations.pydantic_ai.host import Script, agent, call, do, kinds, publish, records, turns

pytestmark = pytest.mark.host
answer = HostMessage.assistant


@pytest.fixture
def memory() -> Iterator[Memory]:
    with temporary_memory() as memory:
        yield memory


def shipper(script: Script, memory: Memory) -> Agent[Any, Any]:
    host = agent(script, memory, "chat-42", output_type=[str, DeferredToolRequests])

    @host.tool_plain(requires_approval=True)
    def deploy(where: str) -> str:
        return f"deployed to {where}"

    @host.tool_plain
    def build() -> str:
        return "built"

    del deploy, build
    return host


def stored(result: Any) -> list[ModelMessage]:
    """The history as an application keeps it: written down and read."""
    return ModelMessagesTypeAdapter.validate_json(result.all_messages_json())


def test_a_pause_suspends_the_turn_and_its_resume_goes_on_with_it(memory: Memory) -> None:
    publish(memory, "other", "Before?", "Known before.")
    script = Script.of(call("c1", "deploy", where="prod"), answer("shipped"))
    host = shipper(script, memory)
    first = do(host, "Ship it.")
    assert isinstance(first.output, DeferredToolRequests)
    (waiting,) = turns(memory, "chat-42")
    assert (waiting.state, waiting.outcome) == ("suspended", None)
    publish(memory, "other", "Meanwhile?", "Known only later.")
    second = do(host, message_history=stored(first), deferred_tool_results=DeferredToolResults(approvals={"c1": True}))
    assert second.output == "shipped"
    (turn,) = turns(memory, "chat-42")
    assert (turn.id, turn.outcome) == (waiting.id, "completed")
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "assistant"]
    sent = [part for message in script.seen[1].messages for part in message.parts]
    assert any(isinstance(part, ToolCallPart) for part in sent), "the call that waited is in the request"
    assert any(isinstance(part, ToolReturnPart) and part.content == "deployed to prod" for part in sent)
    assert script.seen[1].text.count("Ship it.") == 1
    assert "Known before." in script.seen[1].text
    assert "Known only later." not in script.seen[1].text, "the snapshot is that of the turn"


def test_another_process_resumes(memory: Memory) -> None:
    script = Script.of(call("c1", "deploy", where="prod"))
    first = do(shipper(script, memory), "Ship it.")
    (waiting,) = turns(memory, "chat-42")
    there = open_beside(memory)
    later = Script.of(answer("shipped"))
    results = DeferredToolResults(approvals={"c1": ToolDenied("not on a Friday")})
    do(shipper(later, there), message_history=stored(first), deferred_tool_results=results)
    (turn,) = turns(there, "chat-42")
    assert (turn.id, turn.outcome) == (waiting.id, "completed")
    found = [part for _, part in records(there, "chat-42") if isinstance(part, optchat.ToolResultPart)]
    assert [(part.call_id, part.is_error) for part in found] == [("c1", True)], "what was denied did not happen"
    assert "not on a Friday" in later.seen[0].text


def test_a_turn_may_pause_again_and_again(memory: Memory) -> None:
    script = Script.of(
        call("c1", "deploy", where="a"),
        call("c2", "deploy", where="b"),
        call("c3", "deploy", where="c"),
        answer("done"),
    )
    host = shipper(script, memory)
    result = do(host, "Ship it.")
    for call_id in ("c1", "c2", "c3"):
        results = DeferredToolResults(approvals={call_id: True})
        result = do(host, message_history=stored(result), deferred_tool_results=results)
    assert result.output == "done"
    (turn,) = turns(memory, "chat-42")
    assert turn.outcome == "completed"
    assert kinds(memory, "chat-42") == ["user", *["tool_call", "tool_result"] * 3, "assistant"]
    assert script.seen[-1].text.count("Ship it.") == 1
    after = Script.of(answer("next"))
    do(shipper(after, memory), "Next.", message_history=stored(result))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"] * 2


def test_one_call_runs_and_another_waits(memory: Memory) -> None:
    both: list[ModelResponsePart] = [
        ToolCallPart("build", "{}", "c1"),
        ToolCallPart("deploy", '{"where": "prod"}', "c2"),
    ]
    script = Script.of(both, answer("shipped"))
    host = shipper(script, memory)
    first = do(host, "Ship it.")
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_call", "tool_result"]
    results = DeferredToolResults(approvals={"c2": True})
    do(host, message_history=stored(first), deferred_tool_results=results)
    found = [part for _, part in records(memory, "chat-42") if isinstance(part, optchat.ToolResultPart)]
    assert [part.call_id for part in found] == ["c1", "c2"]
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


def test_results_may_come_with_a_word_of_the_user(memory: Memory) -> None:
    script = Script.of(call("c1", "deploy", where="prod"), answer("shipped"))
    host = shipper(script, memory)
    first = do(host, "Ship it.")
    results = DeferredToolResults(approvals={"c1": True})
    do(host, "And be quick.", message_history=stored(first), deferred_tool_results=results)
    (turn,) = turns(memory, "chat-42")
    assert turn.outcome == "completed"
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "user", "assistant"]


def test_another_request_while_a_turn_waits_interrupts_it(memory: Memory) -> None:
    script = Script.of(answer("hello"), call("c1", "deploy", where="prod"), answer("else"))
    host = shipper(script, memory)
    before = do(host, "Hello.")
    do(host, "Ship it.", message_history=stored(before))
    do(host, "Something else.", message_history=stored(before))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed", "interrupted", "completed"]
    assert not any(isinstance(part, ToolCallPart) for message in script.seen[2].messages for part in message.parts)


def test_a_prompt_over_waiting_calls_is_the_framework_s_error_and_costs_nothing(memory: Memory) -> None:
    script = Script.of(call("c1", "deploy", where="prod"), answer("shipped"))
    host = shipper(script, memory)
    first = do(host, "Ship it.")
    with pytest.raises(UserError, match="unprocessed tool calls"):
        do(host, "Something else.", message_history=stored(first))
    (turn,) = turns(memory, "chat-42")
    assert turn.state == "suspended", "the turn still waits"
    results = DeferredToolResults(approvals={"c1": True})
    do(host, message_history=stored(first), deferred_tool_results=results)
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


def test_a_tool_that_fails_after_its_approval_leaves_the_turn_waiting(memory: Memory) -> None:
    script = Script.of(call("c1", "wipe"), answer("wiped"))
    host = agent(script, memory, "chat-42", output_type=[str, DeferredToolRequests])
    broken = [True]

    @host.tool_plain(requires_approval=True)
    def wipe() -> str:
        if broken.pop():
            raise RuntimeError("the disk is gone")
        return "wiped"

    del wipe
    first = do(host, "Wipe it.")
    results = DeferredToolResults(approvals={"c1": True})
    with pytest.raises(RuntimeError, match="disk"):
        do(host, message_history=stored(first), deferred_tool_results=results)
    broken[:] = [False]
    assert [turn.state for turn in turns(memory, "chat-42")] == ["suspended"]
    do(host, message_history=stored(first), deferred_tool_results=results)
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


def test_a_turn_that_ended_meanwhile_is_gone_on_with_as_another(memory: Memory) -> None:
    """The suspended turn was ended, by another request: what the application goes on with is a turn of its own."""
    script = Script.of(call("c1", "deploy", where="prod"), answer("hello"), answer("shipped"))
    host = shipper(script, memory)
    first = do(host, "Ship it.")
    do(host, "Hello.")
    results = DeferredToolResults(approvals={"c1": True})
    do(host, message_history=stored(first), deferred_tool_results=results)
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted", "completed", "completed"]
    assert kinds(memory, "chat-42")[-4:] == ["user", "tool_call", "tool_result", "assistant"]


def test_cancelled_while_it_goes_on_the_turn_is_interrupted(memory: Memory) -> None:
    script = Script.of(call("c1", "deploy", where="prod"), asyncio.CancelledError())
    host = shipper(script, memory)
    first = do(host, "Ship it.")
    results = DeferredToolResults(approvals={"c1": True})
    with pytest.raises(asyncio.CancelledError):
        do(host, message_history=stored(first), deferred_tool_results=results)
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted"]
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result"]


def test_a_history_that_was_edited_before_a_resume_is_said_before_anything_runs(memory: Memory) -> None:
    script = Script.of(answer("hello"), call("c1", "deploy", where="prod"), answer("shipped"))
    host = shipper(script, memory)
    first = do(host, "Hello.")
    second = do(host, "Ship it.", message_history=stored(first))
    edited = ModelMessagesTypeAdapter.validate_json(second.all_messages_json().replace(b"hello", b"goodbye"))
    results = DeferredToolResults(approvals={"c1": True})
    with pytest.raises(optchat.ResyncNeeded):
        do(host, message_history=edited, deferred_tool_results=results)
    assert len(script.seen) == 2
    assert [turn.state for turn in turns(memory, "chat-42")] == ["ended", "suspended"], "the turn still waits"
