"""Whole loops over each wire: a real client, a fake server, and the requests that it got."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import optchat
from optchat.adapters.openai import OpenAIChat, OpenAIResponses
from optchat.testing import FakeAnthropic, FakeOpenAI, replies, temporary_memory
from optchat.testing.memories import open_beside
from tests.adapters.wires import WINDOW, WIRES, Wire, converse

BUDGET = optchat.Budget(50_000, 200)

each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
Server = FakeOpenAI | FakeAnthropic


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory() as memory:
        yield memory


def requests(wire: Wire, server: Server) -> list[list[dict[str, Any]]]:
    """The messages of each request, each held to the provider's rules."""
    found = [wire.sent(request.body) for request in server.requests]
    for messages in found:
        wire.check(messages)
    return found


@each_wire
def test_two_sessions_know_of_each_other(memory: optchat.Memory, wire: Wire) -> None:
    script = [replies.answer("Decided: no Redis, the broker persists."), replies.answer("Then I use the broker.")]
    with wire.server(script) as server, wire.client(server) as client:
        with memory.session("a", adapter=wire.adapter).turn("Should we use Redis?") as turn:
            converse(wire, client, turn)
        with memory.session("b", adapter=wire.adapter).turn("Add a persistent queue.") as turn:
            converse(wire, client, turn)
        with memory.session("a", adapter=wire.adapter).turn("Who uses what?") as turn:
            converse(wire, client, turn)
    first, second, third = requests(wire, server)
    assert "no Redis" not in str(first)
    assert "<shared_memory " in str(second)
    assert "no Redis, the broker persists." in str(second)
    assert "Then I use the broker." in str(third)
    assert str(third).count(optchat.MEMORY_GUIDANCE[:60]) == 1
    assert all(message["role"] == "user" for message in second), "memory is the user's, never the system's"
    assert "Add a persistent queue." in str(second[-1])
    assert str(second).count("Add a persistent queue.") == 1


@each_wire
def test_tools_are_called_and_memory_answers_are_no_evidence(memory: optchat.Memory, wire: Wire) -> None:
    with memory.session("other").turn("Should we use Redis?") as turn:
        turn.assistant("Zanzibar: no Redis.")
    script = [
        replies.tool_calls(
            ("memory_search", {"query": "Zanzibar"}),
            ("build", {"target": "é"}),
            ("fails", {}),
            text="Let me look.",
            thinking="They may know.",
        ),
        replies.tool_calls(("memory_zoom", {"ref": "pub:77+1"})),
        replies.answer("No Redis."),
    ]
    with wire.server(script) as server, wire.client(server) as client:
        session = memory.session("s", adapter=wire.adapter)
        with session.turn("Redis?") as turn:
            converse(wire, client, turn)
        assert turn.outcome == "completed"
    _, second, third = requests(wire, server)
    assert "Zanzibar: no Redis." in str(second[-1]) + str(second[-2]) + str(second[-3]), "the search's answer"
    assert "They may know." in json.dumps(second), "reasoning goes back"
    assert "build: done" in str(second)
    assert "UNKNOWN_REF" in str(third)
    assert third[: len(second)] == second, "what was sent is sent again as it was"
    kinds = [memory.source(f"session:{session.id}:0:{seq}+1").kind for seq in range(session.info().length)]
    assert kinds == [
        "user", "assistant", "tool_call", "tool_call", "tool_call", "tool_result", "tool_result", "tool_result",
        "tool_call", "tool_result", "assistant",
    ]  # fmt: skip
    assert memory.search("Zanzibar", kind="tool_result", order="newest").hits == ()
    assert memory.search("They may know", order="newest").hits == (), "reasoning is not retained"
    assert memory.verify().ok


@each_wire
def test_a_turn_keeps_its_snapshot_through_its_loop(memory: optchat.Memory, wire: Wire) -> None:
    def meddle(_request: Any) -> Any:
        with memory.session("other").turn("Meanwhile?") as turn:
            turn.assistant("Published meanwhile.")
        return replies.tool_calls(("build", {}))

    steps = iter([meddle, lambda _request: replies.answer("Done."), lambda _request: replies.answer("Yes.")])

    def in_turn(request: Any) -> Any:
        return next(steps)(request)

    with wire.server(in_turn) as server, wire.client(server) as client:
        session = memory.session("s", adapter=wire.adapter)
        for text in ("Build.", "And now?"):
            with session.turn(text) as turn:
                converse(wire, client, turn)
    first, second, third = requests(wire, server)
    assert second[: len(first)] == first
    assert "Published meanwhile." not in str(second)
    assert "Published meanwhile." in str(third)


@each_wire
def test_an_approval_pauses_the_turn_for_another_process(memory: optchat.Memory, wire: Wire) -> None:
    script = [
        replies.tool_calls(("deploy", {"env": "prod"}), ("build", {}), text="I will deploy."),
        replies.answer("Deployed."),
    ]
    with wire.server(script) as server, wire.client(server) as client:
        turn = memory.session("s", adapter=wire.adapter).turn("Ship it.")
        turn.add(*wire.ask(client, turn.context(WINDOW).messages, []))
        turn.tool_result(turn.pending[1].call_id, "built")
        turn.suspend()
        there = open_beside(memory).session("s", adapter=wire.adapter, create=False).resume()
        assert there.snapshot == turn.snapshot
        (call,) = there.pending
        assert call.name == "deploy"
        there.tool_result(call.call_id, "denied by the user", is_error=True)
        with there:
            converse(wire, client, there)
    first, second = requests(wire, server)
    assert second[: len(first)] == first
    assert "denied by the user" in str(second)
    assert there.outcome == "completed"


@each_wire
def test_a_provider_s_failure_fails_the_turn(memory: optchat.Memory, wire: Wire) -> None:
    session = memory.session("s", adapter=wire.adapter)
    with (
        wire.server([replies.server_error()]) as server,
        wire.client(server) as client,
        pytest.raises(Exception, match="500"),
        session.turn("Go.") as turn,
    ):
        converse(wire, client, turn)
    assert turn.outcome == "failed"


@each_wire
def test_a_streamed_reply_is_the_same_reply(memory: optchat.Memory, wire: Wire) -> None:
    say = replies.tool_calls(("build", {"a": 1}), ("run", {}), text="Both.", thinking="Two are better.")
    with wire.server([say, say]) as server, wire.client(server) as client:
        messages = memory.session("s", adapter=wire.adapter).preview(WINDOW, request="Go.").messages
        whole = wire.ask(client, messages, [])
        reply = wire.adapter.reply
        if wire.name == "chat":
            with client.chat.completions.stream(model="m", messages=messages) as stream:
                streamed = reply(stream.get_final_completion())
        elif wire.name == "responses":
            with client.responses.stream(model="m", input=messages) as stream:
                streamed = reply(stream.get_final_response())
        else:
            with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
                streamed = reply(stream.get_final_message())

    def neutral(natives: list[Any]) -> list[tuple[Any, ...]]:
        # each answer has ids of its own
        return [
            tuple(getattr(part, "arguments", getattr(part, "text", None)) for part in message.parts)
            for native in natives
            for message in wire.adapter.decode(native)
        ]

    assert neutral(streamed) == neutral(whole)
    assert [native.get("type") for native in streamed] == [native.get("type") for native in whole]


# ---- what is handed over piece by piece ------------------------------------------------------------------------------


def _reasoning(number: int) -> Any:
    return {"type": "reasoning", "id": f"r{number}", "summary": [], "encrypted_content": "x"}


def _call(number: int) -> Any:
    return {"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": "{}"}


def _output(number: int) -> Any:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": "found"}


@pytest.mark.parametrize("sizes", [(6,), (1, 1, 1, 1, 1, 1), (2, 2, 2), (1, 3, 2), (3, 1, 2), (4, 2)], ids=str)
def test_reasoning_goes_with_what_it_led_to_however_it_was_handed_over(sizes: tuple[int, ...]) -> None:
    items = [_reasoning(0), _call(0), _output(0), _reasoning(1), _call(1), _output(1)]
    with temporary_memory() as memory:
        turn = memory.session("a", adapter=OpenAIResponses()).turn("go")
        at = 0
        for size in sizes:
            turn.add(*items[at : at + size])
            at += size
        context = turn.context(BUDGET)
        assert context.messages[len(context.memory) + 1 :] == items
        turn.observe([{"role": "user", "content": "go"}, *items])
        assert len(turn.messages) == 5, "the same places as in the list"


def test_what_is_handed_over_again_with_something_new_is_sent_once() -> None:
    call: Any = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    made: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered: Any = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    said: Any = {"role": "assistant", "content": "Done."}
    with temporary_memory() as memory:
        turn = memory.session("a", adapter=OpenAIChat()).turn("go")
        turn.add(made)
        turn.add(made, answered)
        turn.add(answered, said)
        context = turn.context(BUDGET)
        assert context.messages[len(context.memory) + 1 :] == [made, answered, said]


def test_what_is_rebuilt_anew_is_not_remembered_for_ever() -> None:
    with temporary_memory() as memory:
        turn = memory.session("a", adapter=OpenAIChat()).turn("go")
        for number in range(10):
            turn.tool_call(f"c{number}", "read", "{}")
            turn.tool_result(f"c{number}", "found")
            turn.context(BUDGET)
        assert len(turn._natives._counted) <= 21
