"""
Discovery (§ 8): sessions, turns, reports by name.

Decides: nothing that core does not: what a reader may see of each session is counted under its sight.
Refuses to know: the text of summaries.
"""

from __future__ import annotations

from typing import Literal

from optchat.core.cursors import query_digest, read_cursor, write_cursor
from optchat.core.errors import BadArgument, BadCursor
from optchat.core.refs import Span
from optchat.core.retrieval import Page, SessionInfo, TurnInfo
from optchat.engine.reading import turn_info
from optchat.engine.sights import Reading, SessionTarget, is_superseded, may_see, published_of
from optchat.store import ledger, registry, scopes, turns
from optchat.store.ledger import RecordRow
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection, moment_of

_MOST = 200
_BATCH = 100


def _limit(limit: int) -> int:
    if not 1 <= limit <= _MOST:
        raise BadArgument(f"limit is from 1 to {_MOST}; go on with the page's cursor for more")
    return limit


def _after(reading: Reading, cursor: str | None, digest: str) -> int:
    if cursor is None:
        return -1
    read = read_cursor(cursor, digest)
    if len(read.position) != 1:
        raise BadCursor("that cursor belongs to another query; repeat the query that gave it, or ask without one")
    if not reading.sight.owner and read.clock != reading.clock:
        raise BadCursor("that cursor belongs to another snapshot; ask again without one")
    return read.position[0]


def sessions(reading: Reading, db: Connection, *, archived: bool, limit: int, cursor: str | None) -> Page[SessionInfo]:
    """The sessions that a reader may see, in the order in which they were begun."""
    _limit(limit)
    digest = query_digest("sessions", archived)
    at = max(0, _after(reading, cursor, digest))
    found: list[tuple[int, SessionInfo]] = []
    while len(found) <= limit:
        batch = registry.list_sessions(
            db, reading.scope.pk, after=at, limit=_BATCH, archived=archived, clock=reading.clock
        )
        if not batch:
            break
        for row in batch:
            at = row.session_pk
            info = session_info(reading, db, row)
            if info is not None:
                found.append((at, info))
                if len(found) > limit:
                    break
    items = tuple(info for _, info in found[:limit])
    more = write_cursor(digest, reading.clock, found[limit - 1][0]) if len(found) > limit else None
    return Page(items, more, reading.snapshot)


def session_info(reading: Reading, db: Connection, row: SessionRow) -> SessionInfo | None:
    """A session as this reader may see it; None if nothing of it is visible."""
    own = reading.own
    if reading.sight.owner:
        chain = reading.scope.chain(db, row.segment_pk)
        length = registry.segment_length(db, row.segment_pk, chain.own.base_length)
        count = turns.count_on_chain(db, chain)
    elif own is not None and own.session.session_pk == row.session_pk:
        chain, length, count = own.chain, own.end, turns.count_on_chain(db, own.chain)
    else:
        chain = reading.scope.chain(db, registry.session_at(db, row.session_pk, reading.clock).segment_pk)
        published = published_of(reading, db, row, chain)
        if published.records is None:
            return None
        length, count = published.records.end, published.turns
    said = ledger.ends_of(db, chain, 0, length) if length else None
    return SessionInfo(
        id=row.session_id,
        key=row.key,
        host=row.host,
        generation=chain.generation,
        length=length,
        turns=count,
        title=row.title,
        project=None if row.project_pk is None else scopes.project_id(db, row.project_pk),
        worktree=row.worktree,
        commit=row.commit_id,
        isolated=row.isolated,
        created_at=moment_of(row.created_at),
        last_at=moment_of(row.created_at) if said is None else said[1],
        state=_state(row, reading.clock),
    )


def _state(row: SessionRow, clock: int) -> Literal["active", "archived", "revoked", "needs_resync"]:
    """What matters most of what holds: that memory is off, that nothing is shared, that it is hidden from discovery."""
    if row.state == "needs_resync":
        return "needs_resync"
    if row.revoked:
        return "revoked"
    return "archived" if 0 < row.archived <= clock else "active"


def turn_list(
    reading: Reading, db: Connection, session: SessionRow, *, limit: int, cursor: str | None
) -> Page[TurnInfo]:
    """The turns of a session's present history, what it was forked from included, oldest first, for its owner."""
    _limit(limit)
    digest = query_digest("turns", session.session_id, session.generation)
    after = _after(reading, cursor, digest)
    chain = reading.scope.chain(db, session.segment_pk)
    rows = turns.list_on_chain(db, chain, after=after, limit=limit + 1)
    more = write_cursor(digest, reading.clock, rows[limit - 1].turn_pk) if len(rows) > limit else None
    known_as = session.session_id, session.generation
    return Page(tuple(turn_info(reading, db, row, known_as) for row in rows[:limit]), more, reading.snapshot)


def find_report(reading: Reading, db: Connection, name: str) -> str | None:
    """
    The ref of the newest report of that name that this reader may see.

    All candidates are looked at, however many: were it some, reports of other scopes, or later ones, could hide one.
    What was rewound is none: it answers to its ref alone.
    """
    rows = ledger.reports_named(db, name, limit=_BATCH)
    while rows:
        for record in rows:
            target = _record_target(reading, db, record)
            if target is not None and may_see(reading, db, target) and not is_superseded(reading, db, target):
                return target.ref
        rows = ledger.reports_named(db, name, before=(rows[-1].at, rows[-1].record_key), limit=_BATCH)
    return None


def _record_target(reading: Reading, db: Connection, record: RecordRow) -> SessionTarget | None:
    """A record as the reader's own history has it, else as the session does, of this scope, that it is of."""
    own, span = reading.own, Span(record.seq, 1)
    if own is not None and record.seq < own.end and own.chain.of_record(record.seq).segment == record.segment:
        return SessionTarget(own.session, own.chain.generation, own.session.generation_pk, own.chain, span)
    generation = registry.generation_of_segment(db, record.segment)
    if reading.sight.owner:  # a fork may still have what its parent rewound
        generation = registry.holder_of(db, record.segment, span.end)
    session = None if generation is None else registry.session_by_pk(db, generation[1])
    if generation is None or session is None or session.scope_pk != reading.scope.pk:
        return None
    chain = reading.scope.chain(db, registry.session_as_of(db, generation[0]).segment_pk)
    return SessionTarget(session, generation[2], generation[0], chain, span)
