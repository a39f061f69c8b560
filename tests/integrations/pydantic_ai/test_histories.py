"""Histories: what an application hands over is what is sealed, or it is said before the model is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import capture_run_messages
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)

import optchat
from optchat import HostMessage, Memory
from optchat.adapters.pydantic_ai.history import Said, SealedTurn, complete
from optchat.testing import temporary_memory
from tests.integrations.pydantic_ai.host import CODEC, Script, agent, call, do, kinds, records, turns

pytestmark = pytest.mark.host
answer = HostMessage.assistant


@pytest.fixture
def memory() -> Iterator[Memory]:
    with temporary_memory() as memory:
        yield memory


def talk(memory: Memory, *steps: Any) -> tuple[Script, Any]:
    script = Script.of(*steps)
    host = agent(script, memory, "chat-42")
    host.tool_plain(_build)
    return script, host


def _build() -> str:
    """Build it."""
    return "built"


_build.__name__ = "build"


def reread(result: Any) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(result.all_messages_json())


def test_a_history_that_is_what_was_said_adds_nothing(memory: Memory) -> None:
    _, host = talk(memory, call("c1", "build"), answer("one"), answer("two"), answer("three"))
    result = do(host, "first")
    for prompt in ("second", "third"):
        result = do(host, prompt, message_history=reread(result))
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", *["assistant", "user"] * 2, "assistant"]
    assert len(turns(memory, "chat-42")) == 3


def _edited(history: list[ModelMessage]) -> list[ModelMessage]:
    first = history[0]
    assert isinstance(first, ModelRequest)
    return [replace(first, parts=[UserPromptPart("something else")]), *history[1:]]


def _answered_otherwise(history: list[ModelMessage]) -> list[ModelMessage]:
    said = history[1]
    assert isinstance(said, ModelResponse)
    return [history[0], replace(said, parts=[TextPart("not what it said")]), *history[2:]]


def _cut(history: list[ModelMessage]) -> list[ModelMessage]:
    return history[:2]


def _reordered(history: list[ModelMessage]) -> list[ModelMessage]:
    return [*history[2:], *history[:2]]


@pytest.mark.parametrize(
    "change",
    [_edited, _answered_otherwise, _cut, _reordered],
    ids=["edited", "answered otherwise", "cut", "reordered"],
)
def test_a_history_that_differs_is_said_before_the_model_is_asked(memory: Memory, change: Any) -> None:
    script, host = talk(memory, answer("one"), answer("two"), answer("three"), answer("four"))
    first = do(host, "first")
    second = do(host, "second", message_history=first.all_messages())
    with pytest.raises(optchat.ResyncNeeded):
        do(host, "third", message_history=change(reread(second)))
    assert len(script.seen) == 2, "the model was not asked"
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"] * 2, "no turn began"
    with pytest.raises(optchat.ResyncNeeded):
        do(host, "third", message_history=second.all_messages())
    assert len(script.seen) == 2, "memory is off until resync"
    session = memory.session("chat-42", host="pydantic-ai", adapter=CODEC)
    session.resync(second.all_messages())
    do(host, "third", message_history=second.all_messages())
    assert len(script.seen) == 3


def test_a_failed_run_may_be_absent(memory: Memory) -> None:
    _, host = talk(memory, answer("one"), RuntimeError("boom"), answer("two"), answer("three"))
    first = do(host, "first")
    with pytest.raises(RuntimeError):
        do(host, "go", message_history=first.all_messages())
    second = do(host, "go", message_history=first.all_messages())  # asked again, in the same words
    do(host, "third", message_history=reread(second))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed", "failed", "completed", "completed"]
    assert kinds(memory, "chat-42") == ["user", "assistant", "user", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("length", [1, 3])  # a call that waits, at its end, takes no new request
def test_a_failed_run_may_be_kept_in_part_or_whole(memory: Memory, length: int) -> None:
    _, host = talk(memory, call("c1", "build"), RuntimeError("boom"), answer("two"), answer("three"))
    with capture_run_messages() as kept, pytest.raises(RuntimeError):
        do(host, "first")
    second = do(host, "second", message_history=list(kept[:length]))
    do(host, "third", message_history=reread(second))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed", "completed", "completed"]
    assert len(records(memory, "chat-42")) == 7


def test_a_failed_run_that_is_gone_on_with_is_a_turn_with_all_of_it(memory: Memory) -> None:
    script, host = talk(memory, call("c1", "build"), RuntimeError("boom"), answer("built"), answer("next"))
    with capture_run_messages() as captured, pytest.raises(RuntimeError):
        do(host, "Build it.")
    second = do(host, message_history=list(captured))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed", "completed"]
    assert any(isinstance(part, ToolCallPart) for message in script.seen[2].messages for part in message.parts)
    assert script.seen[2].text.count("Build it.") >= 1
    do(host, "Next.", message_history=reread(second))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed", "completed", "completed"]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_a_window_of_the_history_is_none_the_worse(memory: Memory, length: int) -> None:
    _, host = talk(memory, answer("one"), answer("two"), call("c1", "build"), answer("three"), answer("four"))
    result = do(host, "first")
    result = do(host, "second", message_history=result.all_messages())
    result = do(host, "third", message_history=result.all_messages())
    do(host, "fourth", message_history=reread(result)[-length:])
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"] * 4
    assert len(records(memory, "chat-42")) == 10


def test_a_client_may_write_arguments_anew(memory: Memory) -> None:
    _, host = talk(memory, [ToolCallPart("build", '{ "x" :  1 }', "c1")], answer("one"), answer("two"))

    result = do(host, "first")
    history = reread(result)
    said = history[1]
    assert isinstance(said, ModelResponse)
    history[1] = replace(said, parts=[ToolCallPart("build", {"x": 1}, "c1")])
    do(host, "second", message_history=history)
    assert len(turns(memory, "chat-42")) == 2


def test_a_conversation_from_before_memory_is_sealed(memory: Memory) -> None:
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("Which colour?")]),
        ModelResponse(parts=[TextPart("The colour is teal.")]),
    ]
    script, host = talk(memory, answer("one"))
    do(host, "Again?", message_history=history)
    assert kinds(memory, "chat-42") == ["user", "assistant"] * 2
    assert "The colour is teal." in script.seen[0].text


def test_an_answer_of_a_memory_tool_in_the_history_is_known(memory: Memory) -> None:
    with memory.session("other").turn("Redis?") as turn:
        turn.assistant("No Redis.")
    _, host = talk(
        memory, RuntimeError("boom"), call("c1", "memory_search", query="Redis"), answer("one"), answer("two")
    )
    with pytest.raises(RuntimeError):
        do(host, "first")
    result = do(host, "first")
    do(host, "second", message_history=reread(result))
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed", "completed", "completed"]


# ---- what may be absent, by itself -----------------------------------------------------------------------------------


def user(text: str) -> Said:
    return Said("user", optchat.TextPart(text))


def bot(text: str) -> Said:
    return Said("assistant", optchat.TextPart(text))


def turn(turn_id: str, *said: Said, completed: bool = True) -> SealedTurn:
    return SealedTurn(turn_id, completed, said)


def texts(found: Sequence[HostMessage] | None) -> list[str] | None:
    if found is None:
        return None
    return [part.text for message in found for part in message.parts if isinstance(part, optchat.TextPart)]


def test_many_failures_in_the_same_words_are_told_apart_and_none_costs_more_than_the_others() -> None:
    sealed = [turn(f"f{number}", user("go"), completed=False) for number in range(300)]
    sealed.append(turn("done", user("go"), bot("went")))
    assert texts(complete(sealed, [user("go"), bot("went")])) == ["go"] * 301 + ["went"]
    assert texts(complete(sealed, [user("go"), user("go"), bot("went"), user("more")])) == ["go"] * 301 + [
        "went",
        "more",
    ]
    assert complete(sealed, [user("go"), bot("stayed")]) is None


def test_a_turn_that_completed_may_not_be_absent_unless_the_list_is_a_window() -> None:
    sealed = [turn("r1", user("a"), bot("b")), turn("r2", user("c"), bot("d"))]
    assert complete(sealed, [user("c"), bot("d")]) is None
    assert texts(complete(sealed, [user("c"), bot("d")], ["r2"])) == ["a", "b", "c", "d"]
    assert texts(complete(sealed, [bot("d"), user("e")], ["r2", "r3"])) == ["a", "b", "c", "d", "e"]
    assert complete(sealed, [user("a"), bot("b")], ["r1"]) is None
    assert complete(sealed, [user("c"), bot("changed")], ["r2"]) is None
