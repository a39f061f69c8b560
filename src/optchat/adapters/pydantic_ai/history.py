"""
What a run's history lacks of the session, and is none the worse for.

Decides: which sealed messages a history may leave out, and the whole history that it stands for.
Refuses to know: what becomes of a difference; :meth:`Session.reconcile` says it.

An application hands each run the messages it kept. It got none of a run that raised: a turn that did not end as it
should may be absent, whole or from some message on. It may hand over the last messages only: runs have ids, so that
such a window is known from a history whose beginning was deleted. And a client that holds the history writes the
arguments of calls anew. All else that differs is a difference, and is left in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import frozen
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart

from optchat.adapters.pydantic_ai.chain import run_ids
from optchat.adapters.pydantic_ai.codec import CODEC
from optchat.core.errors import UnknownRef
from optchat.core.messages import HostMessage, Part, ToolCallPart, ToolResultPart
from optchat.core.retrieval import SessionInfo, TurnInfo
from optchat.core.terms import RecordKind, Role
from optchat.memory.memory import Memory
from optchat.memory.session import Session

_ROLES: Final[dict[RecordKind, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "tool_call": "assistant",
    "tool_result": "tool",
}


@frozen
class Said:
    """A part of a message; ``cut_off``: the framework's own answer to a call that was never answered."""

    role: Role
    part: Part
    cut_off: bool = False


@frozen
class SealedTurn:
    """A turn of the session: its id, whether it ended as completed, and what was said in it."""

    turn_id: str
    completed: bool
    said: tuple[Said, ...]


def whole_history(
    memory: Memory, session: Session[ModelMessage], history: Sequence[ModelMessage]
) -> list[ModelMessage | HostMessage]:
    """
    The history that an application's stands for, to reconcile with; in a thread.

    Where what it holds is not what is sealed, it is given back as it is.
    """
    info = session.info()
    turns = list(_turns(session))
    listed = listed_parts(history)
    if len(listed) >= info.length and all(turn.outcome == "completed" for turn in turns) and _is_as_written(history):
        return list(history)  # nothing can be left out, and reconciling reads what is sealed itself, and faster
    found = complete(sealed_turns(memory, info, turns), listed, run_ids(history))
    return list(history) if found is None else list(found)


def _is_as_written(history: Iterable[ModelMessage]) -> bool:
    """Whether no call's arguments came through a client, as an object."""
    return all(
        isinstance(call.args, str)
        for message in history
        if isinstance(message, ModelResponse)
        for call in message.tool_calls
    )


def sealed_turns(memory: Memory, info: SessionInfo, turns: Sequence[TurnInfo]) -> list[SealedTurn]:
    """What is sealed of a session, turn by turn, without what programs said in it by themselves."""
    starts = [int(turn.ref.rpartition(":")[2].partition("+")[0]) for turn in turns]
    found: list[SealedTurn] = []
    for turn, start, end in zip(turns, starts, [*starts[1:], info.length], strict=True):
        said: list[Said] = []
        for seq in range(start, end):
            try:
                record = memory.source(f"session:{info.id}:{info.generation}:{seq}+1")
            except UnknownRef:  # removed: a history may have it or not, and reconciling knows
                continue
            role = _ROLES.get(record.kind)
            if role is not None:
                said.append(Said(role, record.part))
        found.append(SealedTurn(turn.id, turn.outcome == "completed", tuple(said)))
    return found


def _turns(session: Session[ModelMessage]) -> Iterator[TurnInfo]:
    page = session.turns(limit=200)
    yield from page
    while page.cursor is not None:
        page = session.turns(limit=200, cursor=page.cursor)
        yield from page


def listed_parts(history: Iterable[ModelMessage]) -> list[Said]:
    """What a history says, part by part."""
    listed: list[Said] = []
    for message in history:
        native: Sequence[object] = message.parts
        cut_off = {
            part.tool_call_id for part in native if isinstance(part, ToolReturnPart) and part.outcome == "interrupted"
        }
        listed += [
            Said(said.role, part, isinstance(part, ToolResultPart) and part.call_id in cut_off)
            for said in CODEC.decode(message)
            for part in said.parts
        ]
    return listed


def complete(
    sealed: Sequence[SealedTurn], listed: Sequence[Said], runs: Sequence[str] = ()
) -> list[HostMessage] | None:
    """
    A list with what it may lack put in; None if it does not follow what is sealed.

    Args:
        runs: the runs of the list, in order: one that lies further on than the first says that the list is a window.
    """
    found = _follow(sealed, listed, 0)
    if found is not None:
        return found
    ids = {turn.turn_id: number for number, turn in enumerate(sealed)}
    first = next((ids[run] for run in runs if run in ids), None)
    if first is None:
        return None
    before = [_message(said) for turn in sealed[:first] for said in turn.said]
    for cut in range(len(sealed[first].said)):
        torn = SealedTurn(sealed[first].turn_id, sealed[first].completed, sealed[first].said[cut:])
        rest = _follow([torn, *sealed[first + 1 :]], listed, 0)
        if rest is not None:
            return [*before, *map(_message, sealed[first].said[:cut]), *rest]
    return None


def _follow(sealed: Sequence[SealedTurn], listed: Sequence[Said], at: int) -> list[HostMessage] | None:
    """
    Follow a list along turns, going back where a turn that may be absent was taken for the next one: who asks again
    after a failure asks in the same words.
    """
    dead: set[tuple[int, int]] = set()
    tried: list[Iterator[tuple[int, list[HostMessage]]]] = []
    taken: list[list[HostMessage]] = []
    here = at
    while len(taken) < len(sealed):
        if len(tried) == len(taken):
            tried.append(_ways(sealed[len(taken)], listed, here))
        way = next((way for way in tried[-1] if (len(tried), way[0]) not in dead), None)
        if way is None:  # this turn cannot be here: neither can what led here
            tried.pop()
            if not tried:
                return None
            dead.add((len(tried), here))
            taken.pop()
            continue
        here, said = way
        taken.append(said)
    return [*(message for said in taken for message in said), *map(_message, listed[here:])]


def _ways(turn: SealedTurn, listed: Sequence[Said], at: int) -> Iterator[tuple[int, list[HostMessage]]]:
    """Where a list may stand behind a turn, and what it says of it then: all, and of one that broke off also less."""
    matched: list[HostMessage] = []
    ends = [at]
    here = at
    for said in turn.said:
        while here < len(listed) and listed[here].cut_off and not _same(said, listed[here]):
            here += 1
        if here == len(listed) or not _same(said, listed[here]):
            break
        matched.append(_matched(said, listed[here]))
        here += 1
        ends.append(here)
    whole = len(matched) == len(turn.said)
    if not whole and turn.completed:
        return
    if whole:
        while here < len(listed) and listed[here].cut_off:
            here += 1
        yield here, matched
    if not turn.completed:
        for length in range(len(matched) - whole, -1, -1):
            yield ends[length], [*matched[:length], *map(_message, turn.said[length:])]


def _message(said: Said) -> HostMessage:
    return HostMessage(said.role, (said.part,))


def _matched(sealed: Said, listed: Said) -> HostMessage:
    """What stands for both: as it is sealed, but a tool's answer as the history has it: reconciling knows memory's."""
    return _message(listed if isinstance(sealed.part, ToolResultPart) else sealed)


def _same(sealed: Said, listed: Said) -> bool:
    one, other = sealed.part, listed.part
    if isinstance(one, ToolCallPart) and isinstance(other, ToolCallPart):
        return (one.call_id, one.name) == (other.call_id, other.name) and _read(one) == _read(other)
    return sealed.role == listed.role and one == other


def _read(call: ToolCallPart) -> object:
    try:
        return json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
