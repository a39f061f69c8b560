"""
The active transcript (§ 7): the open turn's messages as they are sent.

Decides: the order in which a turn's messages pair, and what is made anew where a host's own message is not at hand.
Refuses to know: any host's format, and where messages come from.

A host's own objects are sent as they were handed over, by identity. Only what this process was not handed is rebuilt,
and in runs, since some hosts put several results into one message. What was sealed between a call and its results goes
behind them: no provider takes it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from attrs import frozen

from optchat.core.messages import HostMessage, ToolCallPart
from optchat.core.pairing import calls_of, reports_apart, results_of
from optchat.core.ports import HostAdapter, WireAdapter

M = TypeVar("M")


@frozen
class Entry(Generic[M]):
    """One message of the turn: as it was said, and as the host has it, if this process was handed that."""

    messages: tuple[HostMessage, ...]
    natives: tuple[M, ...] = ()

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(call for message in self.messages for call in calls_of(message))

    @property
    def answered(self) -> tuple[str, ...]:
        return tuple(result.call_id for message in self.messages for result in results_of(message))


def arrange(entries: Iterable[Entry[M]]) -> list[Entry[M]]:
    """
    The same entries in an order that pairs, if there is one; else a call without its result stays where it is.

    Assistant messages before the first result of a group belong to the group: some hosts give each parallel call a
    message.
    """
    ahead = deque(_reports_apart(entries))
    ordered: list[Entry[M]] = []
    behind: list[Entry[M]] = []
    waiting: set[str] = set()
    answering = False
    while ahead:
        entry = ahead.popleft()
        if not waiting:
            answering = False
        if entry.answered and waiting.issuperset(entry.answered):
            ordered.append(entry)
            waiting.difference_update(entry.answered)
            answering = True
            if not waiting:
                ahead.extendleft(reversed(behind))
                behind.clear()
        elif not waiting or (not answering and not behind and _joins(ordered[-1], entry)):
            ordered.append(entry)
            waiting.update(call.call_id for call in entry.calls)
        else:
            behind.append(entry)
    return ordered + behind


def order_for_dispatch(messages: Iterable[HostMessage]) -> tuple[HostMessage, ...]:
    """Messages alone, arranged: for adapters that make natives of them."""
    entries = arrange(Entry[HostMessage]((message,)) for message in messages)
    return tuple(message for entry in entries for message in entry.messages)


def _joins(group: Entry[M], entry: Entry[M]) -> bool:
    """
    Whether a message can be sent as a part of the group of calls before it, whose first result is not there yet.

    Neutral ones are rebuilt as one message. A host's own objects stay apart, so that between them only calls can stand.
    """
    if any(message.role != "assistant" for message in entry.messages):
        return False
    return bool(entry.calls) if entry.natives and group.natives else not entry.natives and not group.natives


def _reports_apart(entries: Iterable[Entry[M]]) -> Iterable[Entry[M]]:
    for entry in entries:
        if entry.natives:
            yield entry
        else:
            yield from (Entry[M]((message,)) for message in reports_apart(entry.messages))


def transcript(entries: Iterable[Entry[M]], adapter: WireAdapter[M]) -> list[M]:
    """
    Entries as native messages, in the order that pairs.

    Raises:
        ToolProtocolError: what must be rebuilt would be invalid.
    """
    natives: list[M] = []
    run: list[HostMessage] = []
    calls: dict[str, ToolCallPart] = {}
    for entry in arrange(entries):
        if entry.natives and not _answers_calls_of(run, entry):
            natives += _rebuilt(run, calls, adapter)
            run = []
            natives += entry.natives
            calls |= {call.call_id: call for call in entry.calls}
        else:
            run += entry.messages
    return natives + _rebuilt(run, calls, adapter)


def _answers_calls_of(run: Sequence[HostMessage], entry: Entry[M]) -> bool:
    """
    Whether a host's own message brings results of calls that have to be rebuilt: a resumed turn's, answered here.

    It is rebuilt with them, from what it says: calls alone would be no valid run, and some hosts put all results of a
    group into one message.
    """
    made = {call.call_id for message in run for call in calls_of(message)}
    return not made.isdisjoint(entry.answered)


def _rebuilt(run: Sequence[HostMessage], calls: dict[str, ToolCallPart], adapter: WireAdapter[M]) -> list[M]:
    """
    A run of neutral messages as natives.

    Results whose calls the host has in a message of its own cannot be rebuilt alone, for that would be invalid. Their
    calls are put before them, and what the adapter made of those is left out again.
    """
    if not run:
        return []
    own = {call.call_id for message in run for call in calls_of(message)}
    answered = [result.call_id for message in run for result in results_of(message)]
    lead = [calls[call_id] for call_id in answered if call_id in calls and call_id not in own]
    if not lead:
        return list(adapter.rebuild(run))
    made = list(adapter.rebuild([HostMessage.assistant("", lead), *run]))
    while made and _only_calls(adapter, made[0]):
        made.pop(0)
    return made


def _only_calls(adapter: HostAdapter[M], native: M) -> bool:
    parts = [part for message in adapter.decode(native) for part in message.parts]
    return bool(parts) and all(isinstance(part, ToolCallPart) for part in parts)
