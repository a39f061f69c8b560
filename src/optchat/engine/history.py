"""
Importing: whole turns that happened elsewhere.

Decides: nothing that core does not: which messages of a turn are new is a question of event keys.
Refuses to know: files and their format.

Atomic: a session's turns appear together, so that half of one is never stored. Idempotent: again, everything is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from optchat.core.grouping import TranscriptTurn
from optchat.core.lineage import Chain
from optchat.core.messages import HostMessage
from optchat.engine import ingest
from optchat.engine.handle import Scope, microseconds
from optchat.engine.landing import Landing
from optchat.engine.turns import check_usable, end_in, requestless_turn
from optchat.store import ledger, registry, turns
from optchat.store.registry import SessionRow
from optchat.store.removals import FORGOTTEN
from optchat.store.rows import Connection


@frozen
class Imported:
    """What an import of one session did, in records and turns."""

    kept: int
    sealed: int
    turns: int


def import_turns(scope: Scope, session: SessionRow, history: Sequence[TranscriptTurn]) -> Imported:
    """Store a session's turns, in one transaction, each ended as it ended."""
    prepared = [(turn, _prepared(scope, turn)) for turn in history]
    kept = sealed = made = 0
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        current = registry.session_by_pk(db, session.session_pk)
        check_usable(current, current.generation_pk)
        landing = Landing(scope, db, scope.now(), backlog=True)
        for turn, parts in prepared:
            new = _store(landing, current, turn, parts)
            kept += len(parts) - new
            sealed += new
            made += bool(new)
        landing.finish()
    landing.after_commit()
    return Imported(kept, sealed, made)


def _prepared(scope: Scope, turn: TranscriptTurn) -> tuple[ingest.Prepared, ...]:
    parts = [
        part
        for ordinal, message in enumerate(turn.messages)
        for part in ingest.prepare(
            scope, [message], turn_id=turn.turn_id, ordinal=ordinal, kind="note" if ordinal in turn.notes else None
        )
    ]
    return ingest.ready(scope, parts)


def _store(landing: Landing, session: SessionRow, history: TranscriptTurn, parts: Sequence[ingest.Prepared]) -> int:
    """
    One turn. What a grown file adds to a turn that has ended is a turn of its own, after it: an end is not taken
    back.
    """
    db = landing.db
    if not parts:
        return 0
    chain = landing.scope.chain(db, session.segment_pk)
    found = turns.find_on_chain(db, chain, history.turn_id)
    if _was_removed(db, chain, parts):
        return 0
    if found is None:
        return _as_turn(landing, session, history, history.turn_id, parts, history.has_request)
    new = [part for part in parts if ledger.find_event(db, chain, part.sealed.event_hash) is None]
    ingest.seal(landing, found, session.session_id, session.generation, [part for part in parts if part not in new])
    if not new:
        return 0
    if found.state != "ended":
        ingest.seal(landing, found, session.session_id, session.generation, new)
        return len(new)
    number = 1
    while turns.find_on_chain(db, chain, f"{history.turn_id}+{number}") is not None:
        number += 1
    return _as_turn(landing, session, history, f"{history.turn_id}+{number}", new, has_request=False)


def _was_removed(db: Connection, chain: Chain, parts: Sequence[ingest.Prepared]) -> bool:
    """Whether all of it was deleted here: it does not come back, and no turn is made for it."""
    known = ledger.find_events(db, chain, (part.sealed.event_hash for part in parts))
    return all(known.get(part.sealed.event_hash, (0, 0, b""))[1] == FORGOTTEN for part in parts)


def _as_turn(
    landing: Landing,
    session: SessionRow,
    history: TranscriptTurn,
    turn_id: str,
    parts: Sequence[ingest.Prepared],
    has_request: bool,
) -> int:
    times = [message.at for message in history.messages if message.at is not None]
    turn = requestless_turn(landing, session, turn_id, times[0] if times else None, has_request)
    ingest.seal(landing, turn, session.session_id, session.generation, parts)
    end_in(landing, turn, history.outcome, None, microseconds(times[-1]) if times else None)
    return len(parts)


def import_note(scope: Scope, session: SessionRow, text: str, turn_id: str) -> Imported:
    """Plain text as a note, in a turn of its own."""
    message = HostMessage.user(text)
    parts = ingest.prepare(scope, [message], turn_id=turn_id, ordinal=0, kind="note")
    prepared = ingest.ready(scope, parts)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        current = registry.session_by_pk(db, session.session_pk)
        check_usable(current, current.generation_pk)
        chain = scope.chain(db, current.segment_pk)
        if _was_removed(db, chain, prepared):
            return Imported(len(prepared), 0, 0)
        landing = Landing(scope, db, scope.now())
        found = turns.find_on_chain(db, chain, turn_id)
        turn = found or requestless_turn(landing, current, turn_id, None)
        new = ingest.seal(landing, turn, current.session_id, current.generation, prepared).new
        if found is None:
            end_in(landing, turn, "completed", None)
        landing.finish()
    landing.after_commit()
    return Imported(1 - new, new, int(found is None))
