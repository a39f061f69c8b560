"""
Which of a run's messages are the turn's.

Decides: where the turn begins in a list of messages, which runs it is made of, and what of the earlier messages is not
conversation but the application's: that is sent as it is.
Refuses to know: memory.

A turn is a chain of runs. One that ends for an approval is gone on with by a run of another id, whose first message
answers the earlier one's calls; to cut at the id alone would lose the call and its result, for the framework drops a
result without its call. So is a run without a prompt, which goes on with what it is given.

The framework rewrites a history between runs: it makes one of adjacent requests, and such a one has no run's id.
"""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import replace
from typing import Final, TypeGuard

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,  # pyright: ignore[reportDeprecated] - histories still hold it
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

# Parts of a request that are said in the conversation; everything else is of the application or the framework.
_SAID: Final = frozenset({"user-prompt", "speech", "tool-return", "retry-prompt", "retry-feedback", "compaction"})
# Calls by which a model opens what the application has deferred. What it opened stays open by them, so they are kept.
_OPENING: Final = frozenset({"tool-search", "capability-load"})


def turn_start(messages: Sequence[ModelMessage], run_id: str | None) -> int:
    """
    Where the turn of a run begins, which may be in an earlier run.

    Args:
        run_id: the run's; a list that holds none of its messages is one that the run goes on with.
    """
    at = next((number for number, message in enumerate(messages) if message.run_id == run_id), len(messages))
    while at and goes_on(messages, at):
        at = _block_start(messages, at - 1)
    return at


def goes_on(messages: Sequence[ModelMessage], at: int) -> bool:
    """Whether the messages from here on go on with what stands before: a response does, and what answers calls."""
    if at == len(messages):
        return True
    message = messages[at]
    return isinstance(message, ModelResponse) or any(_answers(part) for part in message.parts)


def run_ids(messages: Sequence[ModelMessage]) -> tuple[str, ...]:
    """The runs of which these messages are, in order."""
    return tuple(dict.fromkeys(message.run_id for message in messages if message.run_id is not None))


def is_open(messages: Sequence[ModelMessage]) -> bool:
    """Whether a history ends in the midst of a turn: a call waits, or nobody has answered."""
    if not messages:
        return False
    last = messages[-1]
    return isinstance(last, ModelRequest) or bool(last.tool_calls) or last.state == "suspended"


def is_waiting(messages: Sequence[ModelMessage]) -> bool:
    """Whether calls of a history's last response have no answer, and may still get one."""
    waiting: set[str] = set()
    for message in messages:
        if isinstance(message, ModelResponse):
            waiting = set() if message.state == "interrupted" else {call.tool_call_id for call in message.tool_calls}
        elif message.state == "interrupted":
            waiting = set()
        else:
            waiting -= {call_id for part in message.parts if (call_id := _answered(part)) is not None}
    return bool(waiting)


def request_of(messages: Sequence[ModelMessage]) -> ModelRequest | None:
    """The user's request with which a turn begins, without what else stands in its message; None if there is none."""
    if not messages or not isinstance(messages[0], ModelRequest):
        return None
    said = [part for part in messages[0].parts if isinstance(part, UserPromptPart)]
    return ModelRequest(parts=said) if said else None


def split_head(messages: Sequence[ModelMessage], start: int) -> tuple[list[ModelMessage], list[ModelMessage]]:
    """
    A request's messages as what leads it and what is the turn's, which ends it.

    Of the earlier messages only what the application and the framework put into them leads: system prompts, changes
    of instructions and tools, and what opened deferred tools. System prompts of the turn's first message lead too.
    Messages of the turn are the very same objects, but for that first one where it holds such a prompt.
    """
    opened = {part.tool_call_id for message in messages[:start] for part in message.parts if _opens(part)}
    head = [kept for message in messages[:start] if (kept := _kept(message, opened)) is not None]
    turn = list(messages[start:])
    if turn and isinstance(first := turn[0], ModelRequest):
        standing = [part for part in first.parts if _stands(part)]
        if standing:
            head.append(ModelRequest(parts=standing))
            turn[0] = replace(first, parts=[part for part in first.parts if not _stands(part)])
    return head, turn


def _block_start(messages: Sequence[ModelMessage], last: int) -> int:
    """The first message of the run that the message there is of; of no known run, the user's words before it."""
    run_id = messages[last].run_id
    at = last
    while at:
        if run_id is None and _asks(messages[at]):
            break
        if messages[at - 1].run_id != run_id:
            break
        at -= 1
    return at


def _asks(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)


def _answers(part: object) -> bool:
    """Whether a part answers an earlier call; what the framework puts for one that was cut off, does not go on."""
    return _answered(part) is not None and getattr(part, "outcome", None) != "interrupted"


def _answered(part: object) -> str | None:
    if isinstance(part, RetryPromptPart):  # pyright: ignore[reportDeprecated]
        return None if part.tool_name is None else part.tool_call_id
    return part.tool_call_id if isinstance(part, ToolReturnPart) else None


def _stands(part: ModelRequestPart) -> bool:
    return isinstance(part, SystemPromptPart) and part.scope == "conversation"


def _opens(part: ModelRequestPart | ModelResponsePart) -> TypeGuard[ToolCallPart]:
    return isinstance(part, ToolCallPart) and part.tool_kind in _OPENING


def _kept(message: ModelMessage, opened: AbstractSet[str]) -> ModelMessage | None:
    """What of an earlier message leads; ``opened``: the calls that opened something, whose answers are kept too."""
    if isinstance(message, ModelResponse):
        calls = [part for part in message.parts if _opens(part)]
        return replace(message, parts=calls) if calls else None
    parts = [part for part in message.parts if _leads(part, opened)]
    return ModelRequest(parts=parts, metadata=message.metadata) if parts else None


def _leads(part: ModelRequestPart, opened: AbstractSet[str]) -> bool:
    if isinstance(part, SystemPromptPart):
        return _stands(part)
    return part.part_kind not in _SAID or _answered(part) in opened
