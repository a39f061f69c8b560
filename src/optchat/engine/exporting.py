"""
Exporting: a session's present history as a transcript that can be imported.

Decides: nothing that core does not: it reads turn by turn, so that a slow reader holds nothing up.
Refuses to know: files.

What was removed is not there, and what was rewound is not part of the present history. A memory tool's answer is told
by its label: its text was never kept, and imported it would be taken for evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from attrs import evolve, frozen

from optchat.core.messages import HostMessage, Part, TextPart, ToolCallPart, ToolResultPart
from optchat.core.terms import Role
from optchat.core.transcripts import MAX_TURN_CHARACTERS, NOTE_ROLE, write_line
from optchat.engine.handle import Scope
from optchat.store import ledger, payloads, registry, turns
from optchat.store.ledger import RecordRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


@frozen
class ExportedTurn:
    """A turn's lines, and how many messages they are."""

    lines: bytes
    messages: int


def export_session(scope: Scope, session_pk: int) -> Iterator[ExportedTurn]:
    """
    The turns of a session's present history, in order, as lines of the transcript format.

    What is sealed while it is read may be there or not; a turn that is removed meanwhile is not.
    """
    with scope.store.read() as db:
        session = registry.session_by_pk(db, session_pk)
        chain = scope.chain(db, session.segment_pk)
        rows = turns.list_on_chain(db, chain, after=-1, limit=1 << 40)
    for number, row in enumerate(rows):
        with scope.store.read() as db:
            exported = _turn(db, session.key, row, number)
        if exported.messages:
            yield exported


def _turn(db: Connection, key: str, turn: TurnRow, number: int) -> ExportedTurn:
    records = [row for row in ledger.records_of_turn(db, turn.turn_pk) if not row.state]
    groups = [list(group) for _, group in groupby(records, key=lambda row: (row.message, _role(row)))]
    turn_id = turn.turn_id
    if not turn_id.isprintable() or len(turn_id) > MAX_TURN_CHARACTERS:
        turn_id = f"turn-{number}"
    written: list[bytes] = []
    seen: set[tuple[type, str]] = set()
    for place, group in enumerate(groups):
        last = place == len(groups) - 1
        message = evolve(
            _message(db, group), turn_id=turn_id, outcome=turn.outcome if last and turn.state == "ended" else None
        )
        calls = {
            (type(part), part.call_id) for part in message.parts if isinstance(part, (ToolCallPart, ToolResultPart))
        }
        if calls & seen:  # in a file that is one message twice, unless a key says that it is not
            message = evolve(message, key=f"{turn_id}/{place}")
        seen |= calls
        written.append(write_line(key, message, note=group[0].kind == NOTE_ROLE))
    return ExportedTurn(b"".join(written), len(written))


def _message(db: Connection, group: list[RecordRow]) -> HostMessage:
    parts: list[Part] = []
    for record in group:
        part = payloads.load_part(db, record)
        if isinstance(part, ToolResultPart) and record.structure is not None and "retrieved" in record.structure:
            part = evolve(part, content=(TextPart(f"[{record.structure['memory']}; not kept]"),))
        parts.append(part)
    role = _role(group[0])
    return HostMessage("user" if role == NOTE_ROLE else role, tuple(parts), at=group[0].time)


def _role(record: RecordRow) -> Role | Literal["note"]:
    match record.kind:
        case "user":
            return "user"
        case "assistant" | "tool_call":
            return "assistant"
        case "note":
            return NOTE_ROLE
        case "tool_result" | "report":
            return "tool"
