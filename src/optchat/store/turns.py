"""
Turns: their rows, what was staged in them, what they retrieved.

Decides: how turns, staged messages and retrievals are stored.
Refuses to know: when a turn may end, and what it pinned (:mod:`optchat.store.renderings`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from optchat.core.lineage import Chain
from optchat.core.publications import TurnState
from optchat.core.records import KIND_NUMBER
from optchat.core.refs import KEY_MASK
from optchat.core.terms import Outcome
from optchat.store.rows import Connection, Row, all_rows, blobs, insert, one_row, one_value, run, with_flags


@frozen
class TurnRow:
    """A turn as stored; times are microseconds."""

    turn_pk: int
    turn_id: str
    generation_pk: int
    scope_pk: int
    segment_pk: int
    ordinal: int
    state: TurnState
    outcome: Outcome | None
    detail: str | None
    has_request: bool
    inherited: bool
    start_seq: int
    end_seq: int | None
    owner_pk: int | None
    started_at: int
    ended_at: int | None
    utc_offset: int
    worktree: str | None
    commit_id: str | None
    publication_key: int | None
    removed: bool


_TURN_COLUMNS = (
    "turn_pk, turn_id, generation_pk, scope_pk, segment_pk, ordinal, state, outcome, detail, has_request, inherited,"
    " start_seq, end_seq, owner_pk, started_at, ended_at, utc_offset, worktree, commit_id, publication_key, removed"
)
_TURN = f"SELECT {_TURN_COLUMNS} FROM turn "


def _turn(row: Row) -> TurnRow:
    return TurnRow(*with_flags(row, 9, 10, 20))


def load_turn(db: Connection, turn_pk: int) -> TurnRow | None:
    row = one_row(db, _TURN + "WHERE turn_pk = :turn", {"turn": turn_pk})
    return None if row is None else _turn(row)


def find_turn(db: Connection, generation_pk: int, turn_id: str) -> TurnRow | None:
    row = one_row(
        db,
        _TURN + "WHERE generation_pk = :generation AND turn_id = :id",
        {"generation": generation_pk, "id": turn_id},
    )
    return None if row is None else _turn(row)


# A turn on a chain is of the generation that has the link's segment, and begins below the length that is kept of it.
_ON_LINK = (
    "generation_pk = (SELECT generation.generation_pk FROM generation WHERE generation.segment_pk = :segment)"
    " AND start_seq < :below"
)


_COUNT = "SELECT count(*) FROM turn"


def _links(chain: Chain) -> Iterator[dict[str, int]]:
    """For each link, own first, what :data:`_ON_LINK` binds."""
    below = KEY_MASK
    for link in chain.links:
        yield {"segment": link.segment, "below": below}
        below = min(below, link.base_length)


def find_on_chain(db: Connection, chain: Chain, turn_id: str) -> TurnRow | None:
    """The turn of a session's present history with that id: its own, or one that it rests on."""
    for link in _links(chain):
        row = one_row(db, f"{_TURN}WHERE {_ON_LINK} AND turn_id = :id", {**link, "id": turn_id})
        if row is not None:
            return _turn(row)
    return None


def find_in_scope(db: Connection, scope_pk: int, turn_id: str, session_id: str | None) -> list[TurnRow]:
    """The turns with that id in any generation of the scope's sessions, or of one of them; in order of time."""
    columns = ", ".join(f"turn.{column}" for column in _TURN_COLUMNS.split(", "))
    return [
        _turn(row)
        for row in all_rows(
            db,
            f"SELECT {columns} FROM session JOIN generation USING (session_pk)"
            " JOIN turn ON turn.generation_pk = generation.generation_pk AND turn.turn_id = :id"
            " WHERE session.scope_pk = :scope AND turn.removed = 0 AND (:session IS NULL OR session_id = :session)"
            " ORDER BY turn_pk",
            {"scope": scope_pk, "id": turn_id, "session": session_id},
        )
    ]


def count_on_chain(db: Connection, chain: Chain) -> int:
    """How many turns a session's present history has."""
    return sum(int(one_value(db, f"{_COUNT} WHERE {_ON_LINK} AND removed = 0", link)) for link in _links(chain))


def list_on_chain(db: Connection, chain: Chain, *, after: int, limit: int) -> list[TurnRow]:
    """
    The turns of a session's present history in order, from the one after a key; -1 is the beginning.

    What a segment rests on was said before it was made, so that the order of keys is that of the history.
    """
    found: list[TurnRow] = []
    for link in reversed(list(_links(chain))):
        found += [
            _turn(row)
            for row in all_rows(
                db,
                f"{_TURN}WHERE {_ON_LINK} AND turn_pk > :after AND removed = 0 ORDER BY ordinal LIMIT :limit",
                {**link, "after": after, "limit": limit - len(found)},
            )
        ]
        if len(found) == limit:
            break
    return found


def turns_of_generation(db: Connection, generation_pk: int) -> list[TurnRow]:
    """Every turn of a generation, removed ones included, in order."""
    return [
        _turn(row)
        for row in all_rows(
            db, _TURN + "WHERE generation_pk = :generation ORDER BY ordinal", {"generation": generation_pk}
        )
    ]


def superseded_turns(db: Connection, generation_pk: int, length: int) -> list[TurnRow]:
    """The ended turns of a generation that a history of that length no longer has."""
    return [
        _turn(row)
        for row in all_rows(
            db,
            _TURN + "WHERE generation_pk = :generation AND end_seq > :length AND start_seq >= :length ORDER BY ordinal",
            {"generation": generation_pk, "length": length},
        )
    ]


def open_turn(db: Connection, generation_pk: int) -> TurnRow | None:
    """The generation's open or suspended turn: there is at most one."""
    row = one_row(db, _TURN + "WHERE generation_pk = :generation AND state <> 'ended'", {"generation": generation_pk})
    return None if row is None else _turn(row)


def open_turns_of_scope(db: Connection, scope_pk: int) -> list[TurnRow]:
    """Turns that claim to be running: upkeep ends those whose owner is dead."""
    return [
        _turn(row) for row in all_rows(db, _TURN + "WHERE scope_pk = :scope AND state = 'open'", {"scope": scope_pk})
    ]


def turn_at(db: Connection, segment_pk: int, seq: int) -> TurnRow | None:
    """The turn that a record belongs to."""
    row = one_row(
        db,
        _TURN + "WHERE segment_pk = :segment AND start_seq <= :seq ORDER BY start_seq DESC LIMIT 1",
        {"segment": segment_pk, "seq": seq},
    )
    return None if row is None else _turn(row)


def publishable_before(db: Connection, turn: TurnRow, shared_from: int) -> TurnRow | None:
    """
    The nearest earlier turn of the generation that is published or is to be: publications are made in that order.

    Turns without records (all that they said was sealed before), inherited and removed ones, and those from before the
    session was shared, never are.
    """
    row = one_row(
        db,
        _TURN + "WHERE generation_pk = :generation AND ordinal < :ordinal AND ordinal >= :shared AND inherited = 0"
        " AND removed = 0 AND end_seq > start_seq ORDER BY ordinal DESC LIMIT 1",
        {"generation": turn.generation_pk, "ordinal": turn.ordinal, "shared": shared_from},
    )
    return None if row is None else _turn(row)


def last_exchange(db: Connection, chain: Chain) -> TurnRow | None:
    """
    The newest ended turn of a history that has a request, and records: one that only repeated what was sealed says
    nothing, and one that was removed is forgotten.
    """
    for link in _links(chain):
        row = one_row(
            db,
            f"{_TURN}WHERE {_ON_LINK} AND state = 'ended' AND has_request = 1 AND end_seq > start_seq AND removed = 0"
            " ORDER BY ordinal DESC LIMIT 1",
            link,
        )
        if row is not None:
            return _turn(row)
    return None


def insert_turn(
    db: Connection,
    *,
    turn_id: str,
    generation_pk: int,
    scope_pk: int,
    segment_pk: int,
    has_request: bool,
    start_seq: int,
    owner_pk: int | None,
    at: int,
    utc_offset: int,
    worktree: str | None,
    commit_id: str | None,
    inherited: bool = False,
) -> TurnRow:
    ordinal = next_ordinal(db, generation_pk)
    turn_pk = insert(
        db,
        "INSERT INTO turn (turn_id, generation_pk, scope_pk, segment_pk, ordinal, state, has_request, start_seq,"
        " owner_pk, started_at, utc_offset, worktree, commit_id, inherited) VALUES (:id, :generation, :scope, :segment,"
        " :ordinal, 'open', :has_request, :start, :owner, :at, :offset, :worktree, :commit_id, :inherited)",
        {
            "id": turn_id,
            "generation": generation_pk,
            "scope": scope_pk,
            "segment": segment_pk,
            "ordinal": ordinal,
            "has_request": int(has_request),
            "start": start_seq,
            "owner": owner_pk,
            "at": at,
            "offset": utc_offset,
            "worktree": worktree,
            "commit_id": commit_id,
            "inherited": int(inherited),
        },
    )
    turn = load_turn(db, turn_pk)
    assert turn is not None, "just inserted"
    return turn


def next_turn_pk(db: Connection) -> int:
    """A key above those of all turns."""
    return 1 + int(one_value(db, "SELECT max(turn_pk) FROM turn") or 0)


def next_ordinal(db: Connection, generation_pk: int) -> int:
    """The ordinal of the next turn that a generation begins."""
    value = one_value(
        db, "SELECT max(ordinal) FROM turn WHERE generation_pk = :generation", {"generation": generation_pk}
    )
    return 0 if value is None else int(value) + 1


def set_turn_state(db: Connection, turn_pk: int, state: TurnState, owner_pk: int | None) -> None:
    """Suspend or resume."""
    run(
        db,
        "UPDATE turn SET state = :state, owner_pk = :owner WHERE turn_pk = :turn",
        {"state": state, "owner": owner_pk, "turn": turn_pk},
    )


def mark_ended(db: Connection, turn_pk: int, *, outcome: Outcome, detail: str | None, end_seq: int, at: int) -> None:
    run(
        db,
        "UPDATE turn SET state = 'ended', outcome = :outcome, detail = :detail, end_seq = :end, ended_at = :at,"
        " owner_pk = NULL WHERE turn_pk = :turn",
        {"outcome": outcome, "detail": detail, "end": end_seq, "at": at, "turn": turn_pk},
    )


def mark_published(db: Connection, turn_pk: int, publication_key: int) -> None:
    run(
        db,
        "UPDATE turn SET publication_key = :publication WHERE turn_pk = :turn",
        {"publication": publication_key, "turn": turn_pk},
    )


def mark_unpublished(db: Connection, publication_key: int) -> None:
    """No turn has this publication as its live one any more."""
    run(
        db,
        "UPDATE turn SET publication_key = NULL WHERE publication_key = :key"
        " AND turn_pk = (SELECT turn_pk FROM publication WHERE publication.publication_key = :key)",
        {"key": publication_key},
    )


def last_message_ordinal(db: Connection, turn_pk: int) -> int:
    """The highest message ordinal that is sealed in a turn, or -1."""
    value = one_value(db, "SELECT max(message) FROM record WHERE turn_pk = :turn", {"turn": turn_pk})
    return -1 if value is None else int(value)


def sealed_beside(db: Connection, turn_pk: int) -> dict[int, frozenset[bytes]]:
    """The reports and notes that are sealed in a turn: by message ordinal, the hashes of their contents."""
    found: dict[int, frozenset[bytes]] = {}
    for ordinal, sha256 in all_rows(
        db,
        "SELECT message, sha256 FROM record WHERE turn_pk = :turn AND kind IN (:report, :note)",
        {"turn": turn_pk, "report": KIND_NUMBER["report"], "note": KIND_NUMBER["note"]},
    ):
        found[ordinal] = found.get(ordinal, frozenset()) | {sha256}
    return found


# ---- staging ---------------------------------------------------------------------------------------------------------


def put_staged(db: Connection, turn_pk: int, stage_key: bytes, message: bytes, at: int) -> None:
    """Keep a message that is not final, in place of what was staged under its key."""
    run(
        db,
        "INSERT INTO staged (turn_pk, stage_key, message, at) VALUES (:turn, :key, :message, :at)"
        " ON CONFLICT (turn_pk, stage_key) DO UPDATE SET message = excluded.message, at = excluded.at",
        {"turn": turn_pk, "key": stage_key, "message": message, "at": at},
    )


def drop_staged(db: Connection, turn_pk: int, stage_keys: Sequence[bytes]) -> None:
    """What is sealed is staged no more."""
    if stage_keys:
        run(
            db,
            "DELETE FROM staged WHERE turn_pk = :turn AND stage_key IN (SELECT value FROM carray(:keys))",
            {"turn": turn_pk, "keys": blobs(stage_keys)},
        )


def drop_all_staged(db: Connection, turn_pk: int) -> None:
    run(db, "DELETE FROM staged WHERE turn_pk = :turn", {"turn": turn_pk})


# ---- retrievals ------------------------------------------------------------------------------------------------------


@frozen
class RetrievalRow:
    """A memory tool's answer as provenance: enough to render it again."""

    retrieval_pk: int
    tool: str
    arguments: bytes
    own_end: int
    is_error: bool
    size_bytes: int
    sha256: bytes
    pin: int


def insert_retrieval(
    db: Connection,
    *,
    turn_pk: int,
    tool: str,
    arguments: bytes,
    pin: int,
    own_end: int,
    is_error: bool,
    refs: Sequence[str],
    size: int,
    sha256: bytes,
    at: int,
    publications: Iterable[int],
) -> None:
    """Record an answer and the foreign publications that it showed."""
    run(
        db,
        "INSERT INTO retrieval (turn_pk, tool, arguments, pin, own_end, is_error, refs, bytes, sha256, at)"
        " VALUES (:turn, :tool, :arguments, :pin, :own_end, :is_error, :refs, :bytes, :sha256, :at)",
        {
            "turn": turn_pk,
            "tool": tool,
            "arguments": arguments,
            "pin": pin,
            "own_end": own_end,
            "is_error": int(is_error),
            "refs": json.dumps(list(refs)),
            "bytes": size,
            "sha256": sha256,
            "at": at,
        },
    )
    for publication in publications:
        run(
            db,
            "INSERT OR IGNORE INTO foreign_context (turn_pk, publication_key) VALUES (:turn, :publication)",
            {"turn": turn_pk, "publication": publication},
        )


def find_retrieval(db: Connection, turn_pk: int, sha256: bytes) -> RetrievalRow | None:
    """The answer of that hash that the turn was given."""
    row = one_row(
        db,
        "SELECT retrieval_pk, tool, arguments, own_end, is_error, bytes, sha256, pin FROM retrieval"
        " WHERE turn_pk = :turn AND sha256 = :sha256 ORDER BY retrieval_pk LIMIT 1",
        {"turn": turn_pk, "sha256": sha256},
    )
    return None if row is None else RetrievalRow(*with_flags(row, 4))


def foreign_context(db: Connection, turn_pk: int) -> list[int]:
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT publication_key FROM foreign_context WHERE turn_pk = :turn ORDER BY publication_key",
            {"turn": turn_pk},
        )
    ]


@frozen
class RetrievedRefs:
    """What one retrieval showed, and the live turn's end when it was asked."""

    own_end: int
    refs: tuple[str, ...]


def retrieved_refs(db: Connection, turn_pk: int) -> list[RetrievedRefs]:
    """What a turn's retrievals showed, the last one first."""
    return [
        RetrievedRefs(row[0], tuple(json.loads(row[1])))
        for row in all_rows(
            db,
            "SELECT own_end, refs FROM retrieval WHERE turn_pk = :turn ORDER BY retrieval_pk DESC",
            {"turn": turn_pk},
        )
    ]


def answer_hashes(db: Connection, turn_pk: int) -> list[bytes]:
    """The hashes of what a turn's memory tools answered."""
    return [row[0] for row in all_rows(db, "SELECT sha256 FROM retrieval WHERE turn_pk = :turn", {"turn": turn_pk})]
