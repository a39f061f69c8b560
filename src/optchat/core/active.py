"""
The active transcript (§ 7): the open turn's messages as they are sent.

Decides: the order in which a turn's messages pair, and what is made anew where a host's own message is not at hand.
Refuses to know: any host's format, where messages come from, and what is left out when there are too many of them
(:mod:`optchat.core.checkpoint`).

A host's own objects are sent as they were handed over, by identity. Only what this process was not handed is rebuilt,
and in runs, since some hosts put several results into one message. What was sealed between a call and its results goes
behind them: no provider takes it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from attrs import frozen

from optchat.core.messages import HostMessage, ReportPart, ToolCallPart
from optchat.core.pairing import calls_of, reports_apart, results_of
from optchat.core.ports import HostAdapter, WireAdapter

M = TypeVar("M")


@frozen
class Entry(Generic[M]):
    """
    One message of the turn: as it was said, and as the host has it, if this process was handed that.

    ``records``: the sequence numbers that its parts are sealed under, one a part; None where that is not known.
    """

    messages: tuple[HostMessage, ...]
    natives: tuple[M, ...] = ()
    records: tuple[int, ...] | None = None

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(call for message in self.messages for call in calls_of(message))

    @property
    def answered(self) -> tuple[str, ...]:
        return tuple(result.call_id for message in self.messages for result in results_of(message))


@frozen
class Sent(Generic[M]):
    """
    What is sent in one piece, all of it or none: a host's message, or what was made of a run of sealed ones.

    ``records``: as an entry's, of all its parts.
    """

    natives: tuple[M, ...]
    messages: tuple[HostMessage, ...]
    records: tuple[int, ...] | None


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
            continue
        first = 0
        for message in entry.messages:
            end = first + len(message.parts)
            records = None if entry.records is None else entry.records[first:end]
            for apart in reports_apart((message,)):
                yield Entry[M]((apart,), records=_records_of(apart, message, records))
            first = end


def _records_of(apart: HostMessage, message: HostMessage, records: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The records of what stands apart of a message: its reports, or the rest of it."""
    if records is None or len(apart.parts) == len(message.parts):
        return records
    reports = isinstance(apart.parts[0], ReportPart)
    pairs = zip(message.parts, records, strict=True)
    return tuple(record for part, record in pairs if isinstance(part, ReportPart) == reports)


def sent(entries: Iterable[Entry[M]], adapter: WireAdapter[M]) -> list[Sent[M]]:
    """
    Entries as they are sent, in the order that pairs.

    What is rebuilt is rebuilt in runs that begin and end where no call waits, since there no provider joins messages:
    so that a run can be left out without another one being made otherwise.

    Raises:
        ToolProtocolError: what must be rebuilt would be invalid.
    """
    pieces: list[Sent[M]] = []
    run: list[Entry[M]] = []
    calls: dict[str, ToolCallPart] = {}

    def flush() -> None:
        natives = _rebuilt([message for entry in run for message in entry.messages], calls, adapter)
        if natives:
            pieces.append(
                Sent(tuple(natives), tuple(message for entry in run for message in entry.messages), _all_records(run))
            )
        run.clear()

    for entry in arrange(entries):
        if entry.natives and not _answers_calls_of(run, entry):
            flush()
            pieces.append(Sent(entry.natives, entry.messages, entry.records))
            calls |= {call.call_id: call for call in entry.calls}
        else:
            if run and _ends(run, entry):
                flush()
            run.append(entry)
    flush()
    return pieces


def transcript(entries: Iterable[Entry[M]], adapter: WireAdapter[M]) -> list[M]:
    """
    Entries as native messages, in the order that pairs.

    Raises:
        ToolProtocolError: what must be rebuilt would be invalid.
    """
    return [native for piece in sent(entries, adapter) for native in piece.natives]


def _all_records(run: Sequence[Entry[M]]) -> tuple[int, ...] | None:
    known = [entry.records for entry in run if entry.records is not None]
    return tuple(record for records in known for record in records) if len(known) == len(run) else None


def _ends(run: Sequence[Entry[M]], entry: Entry[M]) -> bool:
    """Whether a run ends before an entry: all that it called is answered, and somebody begins to speak anew."""
    waiting: set[str] = set()
    for each in run:
        waiting.update(call.call_id for call in each.calls)
        waiting.difference_update(each.answered)
    if waiting or entry.answered:  # a host's own calls, elsewhere, may be what these results answer
        return False
    words = any(message.role == "user" for message in entry.messages)
    return words or bool(run[-1].answered) or any(message.role == "user" for message in run[-1].messages)


def _answers_calls_of(run: Sequence[Entry[M]], entry: Entry[M]) -> bool:
    """
    Whether a host's own message brings results of calls that have to be rebuilt: a resumed turn's, answered here.

    It is rebuilt with them, from what it says: calls alone would be no valid run, and some hosts put all results of a
    group into one message.
    """
    made = {call.call_id for each in run for call in each.calls}
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
