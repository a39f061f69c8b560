"""
Tool pairs (§ 7, § 16).

Decides: whether the calls and results of a request pair as providers require, and in which order sealed messages are
sent so that they do.
Refuses to know: any provider's format.

The rule. A *group* is a run of adjacent assistant messages with calls in it, and the tool messages that follow: hosts
that seal each of several parallel calls by itself make such runs, and an adapter sends a run as one message. Every call
of a group is answered exactly once, before anything else is said. An id is unique among its group's calls, and may come
again in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve

from optchat.core.errors import ToolProtocolError
from optchat.core.messages import HostMessage, ReportPart, ToolCallPart, ToolResultPart


def calls_of(message: HostMessage) -> tuple[ToolCallPart, ...]:
    """The calls that a message makes."""
    return tuple(part for part in message.parts if isinstance(part, ToolCallPart))


def results_of(message: HostMessage) -> tuple[ToolResultPart, ...]:
    """The results that a message brings."""
    return tuple(part for part in message.parts if isinstance(part, ToolResultPart))


def pending_calls(messages: Iterable[HostMessage]) -> tuple[ToolCallPart, ...]:
    """The calls without a result, in the order they were made. A result answers the earliest open call of its id."""
    open_calls: list[ToolCallPart] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                open_calls.append(part)
            elif isinstance(part, ToolResultPart):
                answered = next((n for n, call in enumerate(open_calls) if call.call_id == part.call_id), None)
                if answered is not None:
                    del open_calls[answered]
    return tuple(open_calls)


def check_pairs(messages: Sequence[HostMessage], *, as_sent: bool = False) -> None:
    """
    Accept messages whose calls and results pair as providers require.

    Args:
        as_sent: the messages are the host's own and go out as they stand: between a call and its result only further
        calls may
            come. Messages that an adapter will rebuild may hold words there too, for it makes one message of a group.

    Raises:
        ToolProtocolError: a call without a result, a result without a call or a second one, something else between
            them, or an id that one group uses twice. The message names the id and what to do.
    """
    waiting: list[str] = []
    answered: set[str] = set()  # of the current group
    for message in messages:
        if message.role == "tool" and results_of(message):
            for result in results_of(message):
                _accept(result.call_id, waiting, answered)
            continue
        if waiting and (message.role != "assistant" or answered):
            raise ToolProtocolError(
                f"a message of role {message.role!r} stands between the call {waiting[0]!r} and its result; "
                "bring the results directly after the calls, as order_for_dispatch does"
            )
        if waiting and as_sent and len(calls_of(message)) < len(message.parts):
            raise ToolProtocolError(
                f"the assistant's words stand between the call {waiting[0]!r} and its result; bring the results"
                f" directly after "
                "the calls"
            )
        if not waiting:
            answered.clear()
        for call in calls_of(message):
            if call.call_id in waiting:
                raise ToolProtocolError(
                    f"the call id {call.call_id!r} is used by two calls that are open together; give each its own id"
                )
            waiting.append(call.call_id)
    if waiting:
        raise ToolProtocolError(
            f"{len(waiting)} call(s) have no result, first {waiting[0]!r}; seal each one's result, "
            "an error or a denial too, before the next request"
        )


def _accept(call_id: str, waiting: list[str], answered: set[str]) -> None:
    if call_id in waiting:
        waiting.remove(call_id)
        answered.add(call_id)
    elif call_id in answered:
        raise ToolProtocolError(f"the call {call_id!r} has two results; send the first one only")
    else:
        raise ToolProtocolError(
            f"the result {call_id!r} answers no call of the message before it; send the assistant message that called, "
            "or the result as a report"
        )


def reports_apart(messages: Iterable[HostMessage]) -> Iterator[HostMessage]:
    """
    The same messages; reports within an assistant or tool message stand in one of their own, as no provider lets
    them stay.
    """
    for message in messages:
        reports = tuple(part for part in message.parts if isinstance(part, ReportPart))
        if message.role == "user" or not reports:
            yield message
            continue
        rest = tuple(part for part in message.parts if not isinstance(part, ReportPart))
        if rest:
            yield evolve(message, parts=rest)
        yield HostMessage("user", reports, at=message.at, turn_id=message.turn_id)
