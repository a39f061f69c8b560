"""
The ledger: sessions, segments, records, events, blobs.

Decides: how what was said is stored and found again.
Refuses to know: who may see it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import Chain, Link
from optchat.core.messages import Part, RecordKind
from optchat.core.records import (
    INLINE_BYTES,
    KINDS,
    PIECE_BYTES,
    KIND_NUMBER,
    SealedPart,
    call_hash,
    decode_part,
    leaf_text,
    spoken_text,
)
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.store.rows import Connection, Row, all_rows, insert, keys, one_row, one_value, run, with_flags


def moment_of(microseconds: int, utc_offset_seconds: int = 0) -> datetime:
    """A stored time, in the offset in which it was recorded."""
    at = datetime.fromtimestamp(microseconds // 1_000_000, timezone(timedelta(seconds=utc_offset_seconds)))
    return at + timedelta(microseconds=microseconds % 1_000_000)


# ---- sessions ----------------------------------------------------------------------------------------------------------


@frozen
class SessionRow:
    """A session and its current generation."""

    session_pk: int
    session_id: str
    scope_pk: int
    host: str
    key: str
    generation: int
    generation_pk: int
    segment_pk: int
    state: str
    isolated: bool
    title: str | None
    project_pk: int | None
    worktree: str | None
    commit_id: str | None
    created_at: int


_SESSION = (
    "SELECT session.session_pk, session_id, scope_pk, host, key, generation, generation_pk, segment_pk, state, isolated, title,"
    " project_pk, worktree, commit_id, created_at"
    " FROM session JOIN generation ON generation.session_pk = session.session_pk AND number = generation "
)


def _session(row: Row) -> SessionRow:
    return SessionRow(*with_flags(row, 9))


def find_session(db: Connection, scope_pk: int, host: str, key: str) -> SessionRow | None:
    row = one_row(
        db,
        _SESSION + "WHERE scope_pk = :scope AND host = :host AND key = :key AND current = 1",
        {"scope": scope_pk, "host": host, "key": key},
    )
    return None if row is None else _session(row)


def session_by_id(db: Connection, scope_pk: int, session_id: str) -> SessionRow | None:
    """A session of this scope; another scope's id finds nothing, as an unknown one does."""
    row = one_row(
        db, _SESSION + "WHERE session_id = :id AND scope_pk = :scope", {"id": session_id, "scope": scope_pk}
    )
    return None if row is None else _session(row)


def session_by_pk(db: Connection, session_pk: int) -> SessionRow:
    row = one_row(db, _SESSION + "WHERE session.session_pk = :pk", {"pk": session_pk})
    assert row is not None, "a stored key names a session"
    return _session(row)


def session_of_generation(db: Connection, generation_pk: int) -> tuple[SessionRow, int]:
    """The session that a generation belongs to, and that generation's number."""
    row = one_row(
        db, "SELECT session_pk, number FROM generation WHERE generation_pk = :pk", {"pk": generation_pk}
    )
    assert row is not None, "a stored key names a generation"
    return session_by_pk(db, row[0]), int(row[1])


def generation_of(db: Connection, session_pk: int, number: int) -> tuple[int, int] | None:
    """(generation_pk, segment_pk) of a session's generation."""
    row = one_row(
        db,
        "SELECT generation_pk, segment_pk FROM generation WHERE session_pk = :session AND number = :number",
        {"session": session_pk, "number": number},
    )
    return None if row is None else (row[0], row[1])


def generation_of_segment(db: Connection, segment_pk: int) -> tuple[int, int, int] | None:
    """(generation_pk, session_pk, number) of the generation that a segment belongs to."""
    row = one_row(
        db,
        "SELECT generation_pk, session_pk, number FROM generation WHERE segment_pk = :segment",
        {"segment": segment_pk},
    )
    return None if row is None else (row[0], row[1], row[2])


def create_session(
    db: Connection,
    *,
    session_id: str,
    scope_pk: int,
    host: str,
    key: str,
    isolated: bool,
    title: str | None,
    project_pk: int | None,
    worktree: str | None,
    commit_id: str | None,
    at: int,
) -> SessionRow:
    """Insert a session with an empty generation 0, its segment, its tree and an empty view."""
    session_pk = insert(
        db,
        "INSERT INTO session (session_id, scope_pk, host, key, isolated, title, project_pk, worktree, commit_id, created_at)"
        " VALUES (:id, :scope, :host, :key, :isolated, :title, :project, :worktree, :commit_id, :at)",
        {
            "id": session_id,
            "scope": scope_pk,
            "host": host,
            "key": key,
            "isolated": int(isolated),
            "title": title,
            "project": project_pk,
            "worktree": worktree,
            "commit_id": commit_id,
            "at": at,
        },
    )
    tree = insert(db, "INSERT INTO tree (scope_pk, kind) VALUES (:scope, 'session')", {"scope": scope_pk})
    run(
        db,
        "INSERT INTO view (tree_pk, revision, length, levels, shrinking) VALUES (:tree, 0, 0, x'', 0)",
        {"tree": tree},
    )
    segment = insert(
        db, "INSERT INTO segment (scope_pk, tree_pk) VALUES (:scope, :tree)", {"scope": scope_pk, "tree": tree}
    )
    run(
        db,
        "INSERT INTO generation (session_pk, number, segment_pk) VALUES (:session, 0, :segment)",
        {"session": session_pk, "segment": segment},
    )
    return session_by_pk(db, session_pk)


def describe_session(db: Connection, session_pk: int, changes: dict[str, str | int | None]) -> None:
    """Fill in title, project, worktree or commit where a later opening knows more."""
    for column in ("title", "project_pk", "worktree", "commit_id"):
        if changes.get(column) is not None:
            run(
                db,
                f"UPDATE session SET {column} = :value WHERE session_pk = :pk",  # noqa: S608 - one of four literals
                {"value": changes[column], "pk": session_pk},
            )


def session_id_taken(db: Connection, session_id: str) -> bool:
    return one_row(db, "SELECT 1 FROM session WHERE session_id = :id", {"id": session_id}) is not None


def list_sessions(db: Connection, scope_pk: int, *, after: int, limit: int, archived: bool) -> list[SessionRow]:
    """Sessions in the order in which they were made, from the one after a key."""
    return [
        _session(row)
        for row in all_rows(
            db,
            _SESSION + "WHERE session.session_pk > :after AND scope_pk = :scope AND state <> 'deleted'"
            " AND (state <> 'archived' OR :archived) ORDER BY session.session_pk LIMIT :limit",
            {"after": after, "scope": scope_pk, "archived": int(archived), "limit": limit},
        )
    ]


def count_sessions(db: Connection, scope_pk: int) -> int:
    return int(
        one_value(
            db, "SELECT count(*) FROM session WHERE scope_pk = :scope AND state <> 'deleted'", {"scope": scope_pk}
        )
    )


# ---- segments ----------------------------------------------------------------------------------------------------------


def load_chain(db: Connection, segment_pk: int) -> Chain:
    """A segment and its bases, own first."""
    links: list[Link] = []
    at: int | None = segment_pk
    while at is not None:
        row = one_row(
            db,
            "SELECT segment_pk, tree_pk, base_length, base_segment FROM segment WHERE segment_pk = :segment",
            {"segment": at},
        )
        if row is None:
            raise IntegrityError(f"segment {at} is missing; run verify() to see what rests on it")
        links.append(Link(row[0], row[1], row[2]))
        at = row[3]
    return Chain(tuple(links))


def segment_of_tree(db: Connection, tree_pk: int) -> tuple[int, int] | None:
    """(segment_pk, ended_length) of the segment whose tree this is."""
    row = one_row(
        db, "SELECT segment_pk, ended_length FROM segment WHERE tree_pk = :tree", {"tree": tree_pk}
    )
    return None if row is None else (row[0], row[1])


def scope_segments(db: Connection, scope_pk: int) -> list[tuple[int, int, int, int]]:
    """(segment_pk, tree_pk, base_length, ended_length) of every segment of a scope."""
    return [
        (row[0], row[1], row[2], row[3])
        for row in all_rows(
            db,
            "SELECT segment_pk, tree_pk, base_length, ended_length FROM segment WHERE scope_pk = :scope",
            {"scope": scope_pk},
        )
    ]


def segments_on(db: Connection, segment_pk: int, length: int) -> list[int]:
    """The segments whose base is this one, up to at least ``length`` records."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT segment_pk FROM segment WHERE base_segment = :segment AND base_length >= :length",
            {"segment": segment_pk, "length": length},
        )
    ]


def set_ended_length(db: Connection, segment_pk: int, length: int) -> None:
    run(
        db,
        "UPDATE segment SET ended_length = :length WHERE segment_pk = :segment",
        {"length": length, "segment": segment_pk},
    )


def segment_length(db: Connection, segment_pk: int, base_length: int) -> int:
    """The next free sequence number. Removed records leave their rows behind, so no number is used again."""
    value = one_value(
        db,
        "SELECT max(record_key) FROM record WHERE record_key BETWEEN :low AND :high",
        {"low": segment_pk << KEY_BITS, "high": segment_pk << KEY_BITS | KEY_MASK},
    )
    return base_length if value is None else (value & KEY_MASK) + 1


# ---- records -----------------------------------------------------------------------------------------------------------


@frozen
class RecordRow:
    """A record without its payload."""

    record_key: int
    turn_pk: int
    kind: RecordKind
    message: int
    part: int
    at: int
    utc_offset: int
    sha256: bytes
    payload_bytes: int
    blob_pk: int | None
    structure: dict[str, Any] | None
    paired_key: int | None
    leaf_format: int
    leaf_bytes: int | None
    leaf_escaped: int | None
    state: int

    @property
    def seq(self) -> int:
        return self.record_key & KEY_MASK

    @property
    def segment(self) -> int:
        return self.record_key >> KEY_BITS

    @property
    def time(self) -> datetime:
        return moment_of(self.at, self.utc_offset)


_RECORD = (
    "SELECT record_key, turn_pk, kind, message, part, at, utc_offset, sha256, payload_bytes, blob_pk, structure, paired_key,"
    " leaf_format, leaf_bytes, leaf_escaped, state FROM record "
)


def _record(row: Row) -> RecordRow:
    fields: Row = (*row[:2], KINDS[row[2]], *row[3:10], None if row[10] is None else json.loads(row[10]), *row[11:])
    return RecordRow(*fields)


def insert_record(
    db: Connection,
    *,
    record_key: int,
    turn_pk: int,
    sealed: SealedPart,
    at: int,
    utc_offset: int,
    blob_pk: int | None,
    paired_key: int | None,
    leaf_format: int,
) -> None:
    run(
        db,
        "INSERT INTO record (record_key, turn_pk, kind, message, part, at, utc_offset, sha256, payload_bytes, payload, blob_pk,"
        " structure, call_hash, paired_key, leaf_format, leaf_bytes, leaf_escaped)"
        " VALUES (:key, :turn, :kind, :message, :part, :at, :offset, :sha256, :bytes, :payload, :blob, :structure, :call_hash,"
        " :paired, :leaf_format, :leaf_bytes, :leaf_escaped)",
        {
            "key": record_key,
            "turn": turn_pk,
            "kind": KIND_NUMBER[sealed.kind],
            "message": sealed.message,
            "part": sealed.part,
            "at": at,
            "offset": utc_offset,
            "sha256": sealed.sha256,
            "bytes": len(sealed.payload),
            "payload": sealed.payload if blob_pk is None else None,
            "blob": blob_pk,
            "structure": sealed.structure,
            "call_hash": None if sealed.call_id is None else call_hash(sealed.call_id),
            "paired": paired_key,
            "leaf_format": leaf_format,
            "leaf_bytes": sealed.leaf_bytes,
            "leaf_escaped": sealed.leaf_escaped,
        },
    )


def load_record(db: Connection, record_key: int) -> RecordRow | None:
    row = one_row(db, _RECORD + "WHERE record_key = :key", {"key": record_key})
    return None if row is None else _record(row)


def load_records(db: Connection, record_keys: Iterable[int]) -> dict[int, RecordRow]:
    return {
        row[0]: _record(row)
        for row in all_rows(
            db,
            _RECORD + "WHERE record_key IN (SELECT value FROM carray(:keys))",
            {"keys": keys(record_keys)},
        )
    }


def records_between(db: Connection, low: int, high: int, *, limit: int = -1) -> list[RecordRow]:
    """Records whose key lies in ``[low, high)``, in order."""
    return [
        _record(row)
        for row in all_rows(
            db,
            _RECORD + "WHERE record_key >= :low AND record_key < :high ORDER BY record_key LIMIT :limit",
            {"low": low, "high": high, "limit": limit},
        )
    ]


def records_of_turn(db: Connection, turn_pk: int) -> list[RecordRow]:
    return [
        _record(row)
        for row in all_rows(db, _RECORD + "WHERE turn_pk = :turn ORDER BY record_key", {"turn": turn_pk})
    ]


def last_of_turn(db: Connection, turn_pk: int) -> RecordRow | None:
    row = one_row(db, _RECORD + "WHERE record_key = (SELECT max(record_key) FROM record WHERE turn_pk = :turn)", {"turn": turn_pk})
    return None if row is None else _record(row)


def count_pending_calls(db: Connection, turn_pk: int) -> int:
    """The calls of a turn that no result answers."""
    return int(
        one_value(
            db,
            "SELECT count(*) FROM record AS call WHERE turn_pk = :turn AND kind = 2"
            " AND NOT EXISTS (SELECT 1 FROM record AS result WHERE result.paired_key = call.record_key)",
            {"turn": turn_pk},
        )
    )


def pending_calls(db: Connection, turn_pk: int) -> list[RecordRow]:
    """The calls of a turn that no result answers, in order."""
    return [
        _record(row)
        for row in all_rows(
            db,
            _RECORD.replace("FROM record ", "FROM record AS call ")
            + "WHERE turn_pk = :turn AND kind = 2"
            " AND NOT EXISTS (SELECT 1 FROM record AS result WHERE result.paired_key = call.record_key) ORDER BY record_key",
            {"turn": turn_pk},
        )
    ]


def memory_calls(db: Connection, turn_pk: int) -> list[RecordRow]:
    """The calls of a turn that are kept as provenance."""
    return [
        _record(row)
        for row in all_rows(
            db,
            _RECORD + "WHERE turn_pk = :turn AND kind = 2 AND json_extract(structure, '$.memory') IS NOT NULL",
            {"turn": turn_pk},
        )
    ]


def find_call(db: Connection, chain: Chain, call_id: str, below: int) -> int | None:
    """The newest call of that id along a chain, below a sequence number: what a result answers."""
    for own in reversed(chain.ranges(below)):
        value = one_value(
            db,
            "SELECT max(record_key) FROM record WHERE call_hash = :hash AND record_key >= :low AND record_key < :high AND kind = 2",
            {
                "hash": call_hash(call_id),
                "low": own.segment << KEY_BITS | own.start,
                "high": own.segment << KEY_BITS | own.end,
            },
        )
        if value is not None:
            return int(value)
    return None


def result_of(db: Connection, record_key: int) -> int | None:
    """The first result that answers a call."""
    value = one_value(db, "SELECT min(record_key) FROM record WHERE paired_key = :key", {"key": record_key})
    return None if value is None else int(value)


def reports_named(db: Connection, name: str, *, limit: int) -> list[RecordRow]:
    """Reports of a name in the whole file, newest first: candidates, of which the caller keeps those it may see."""
    return [
        _record(row)
        for row in all_rows(
            db,
            _RECORD + "WHERE kind = 4 AND json_extract(structure, '$.name') = :name AND state = 0"
            " ORDER BY at DESC, record_key DESC LIMIT :limit",
            {"name": name, "limit": limit},
        )
    ]


def newest_record_at(db: Connection, scope_pk: int) -> int | None:
    """When the newest record of a scope was said."""
    newest: int | None = None
    for segment, _tree, _base, _ended in scope_segments(db, scope_pk):
        value = one_value(
            db,
            "SELECT at FROM record WHERE record_key BETWEEN :low AND :high ORDER BY record_key DESC LIMIT 1",
            {"low": segment << KEY_BITS, "high": segment << KEY_BITS | KEY_MASK},
        )
        newest = value if newest is None or (value is not None and value > newest) else newest
    return newest


# ---- payloads ----------------------------------------------------------------------------------------------------------


def load_payload(db: Connection, record: RecordRow) -> bytes:
    """A record's whole payload; IntegrityError where stored bytes are missing."""
    if record.blob_pk is not None:
        return load_blob(db, record.blob_pk, record.payload_bytes)
    value = one_value(db, "SELECT payload FROM record WHERE record_key = :key", {"key": record.record_key})
    if value is None:
        raise IntegrityError(f"the payload of record {record.record_key} is missing; run verify() and restore a backup")
    return bytes(value)


def load_payload_page(db: Connection, record: RecordRow, start: int, length: int) -> bytes:
    """Bytes ``[start, start + length)`` of a payload, without reading the rest."""
    if record.blob_pk is None:
        return load_payload(db, record)[start : start + length]
    first, last = start // PIECE_BYTES, max(start, start + length - 1) // PIECE_BYTES
    pieces = all_rows(
        db,
        "SELECT piece, data FROM blob_piece WHERE blob_pk = :blob AND piece BETWEEN :first AND :last ORDER BY piece",
        {"blob": record.blob_pk, "first": first, "last": last},
    )
    if start < record.payload_bytes and not pieces:
        raise IntegrityError(f"blob {record.blob_pk} is incomplete; run verify() and restore a backup")
    return b"".join(row[1] for row in pieces)[start - first * PIECE_BYTES :][:length]


def load_blob(db: Connection, blob_pk: int, expected_bytes: int) -> bytes:
    data = b"".join(
        row[0]
        for row in all_rows(
            db, "SELECT data FROM blob_piece WHERE blob_pk = :blob ORDER BY piece", {"blob": blob_pk}
        )
    )
    if len(data) != expected_bytes:
        raise IntegrityError(f"blob {blob_pk} is incomplete; run verify() and restore a backup")
    return data


def load_attachments(db: Connection, record_key: int) -> list[bytes]:
    """The bytes of a record's images and files, in the order of its manifests."""
    return [
        load_blob(db, row[0], row[1])
        for row in all_rows(
            db,
            "SELECT blob.blob_pk, bytes FROM record_blob JOIN blob ON blob.blob_pk = record_blob.blob_pk"
            " WHERE record_key = :key ORDER BY ordinal",
            {"key": record_key},
        )
    ]


def load_part(db: Connection, record: RecordRow) -> Part:
    """The part that a record was sealed from, exactly."""
    has_blobs = record.structure is not None and ("content" in record.structure or record.structure.get("type") == "blob")
    blobs = load_attachments(db, record.record_key) if has_blobs else []
    return decode_part(record.kind, load_payload(db, record), record.structure, blobs)


def load_leaf_text(db: Connection, record: RecordRow) -> str:
    """The whole leaf text of a record, whatever its size."""
    return leaf_text(record.kind, load_payload(db, record), record.structure, record.leaf_format)


def load_leaf_texts(db: Connection, record_keys: Iterable[int]) -> dict[int, str]:
    """The verbatim leaves of many records, in one statement; records that are too long for one are left out."""
    found: dict[int, str] = {}
    for key, kind, payload, structure, leaf_format in all_rows(
        db,
        "SELECT record_key, kind, payload, structure, leaf_format FROM record"
        " WHERE record_key IN (SELECT value FROM carray(:keys)) AND leaf_escaped IS NOT NULL AND state = 0",
        {"keys": keys(record_keys)},
    ):
        parsed = None if structure is None else json.loads(structure)
        found[key] = leaf_text(KINDS[kind], payload, parsed, leaf_format)
    return found


def load_spoken(db: Connection, record_keys: Iterable[int]) -> dict[int, str]:
    """The spoken text of records: what the search index holds the words of."""
    return {
        key: spoken_text(record.kind, load_payload(db, record), record.structure)
        for key, record in load_records(db, record_keys).items()
        if record.state == 0
    }


# ---- events ------------------------------------------------------------------------------------------------------------


def find_event(db: Connection, chain: Chain, event: bytes) -> tuple[int, int, bytes] | None:
    """(record_key, revision, sha256) of what is sealed under an event key, along the chain."""
    below = KEY_MASK
    for link in chain.links:
        row = one_row(
            db,
            "SELECT event.record_key, revision, sha256 FROM event JOIN record ON record.record_key = event.record_key"
            " WHERE segment_pk = :segment AND event_hash = :event",
            {"segment": link.segment, "event": event},
        )
        if row is not None and row[0] & KEY_MASK < below:
            return row[0], row[1], row[2]
        below = min(below, link.base_length)
    return None


def insert_event(db: Connection, segment_pk: int, event: bytes, revision: int, record_key: int) -> None:
    run(
        db,
        "INSERT INTO event (segment_pk, event_hash, revision, record_key) VALUES (:segment, :event, :revision, :record)",
        {"segment": segment_pk, "event": event, "revision": revision, "record": record_key},
    )


# ---- blobs -------------------------------------------------------------------------------------------------------------


def find_blob(db: Connection, scope_pk: int, sha256: bytes) -> tuple[int, bool] | None:
    """(blob_pk, complete) of bytes that the scope keeps already, or is staging."""
    row = one_row(
        db,
        "SELECT blob_pk, complete FROM blob WHERE scope_pk = :scope AND sha256 = :sha256",
        {"scope": scope_pk, "sha256": sha256},
    )
    return None if row is None else (row[0], bool(row[1]))


def create_blob(db: Connection, scope_pk: int, sha256: bytes, size: int) -> int:
    return insert(
        db,
        "INSERT INTO blob (scope_pk, sha256, bytes, complete) VALUES (:scope, :sha256, :bytes, 0)",
        {"scope": scope_pk, "sha256": sha256, "bytes": size},
    )


def write_pieces(db: Connection, blob_pk: int, data: bytes, first: int, count: int) -> None:
    """Store pieces ``[first, first + count)`` of a blob; a piece that is there already stays as it is."""
    for piece in range(first, first + count):
        run(
            db,
            "INSERT OR IGNORE INTO blob_piece (blob_pk, piece, data) VALUES (:blob, :piece, :data)",
            {"blob": blob_pk, "piece": piece, "data": data[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]},
        )


def complete_blob(db: Connection, blob_pk: int) -> None:
    run(db, "UPDATE blob SET complete = 1 WHERE blob_pk = :blob", {"blob": blob_pk})


def link_blobs(db: Connection, record_key: int, blobs: Sequence[int]) -> None:
    for ordinal, blob in enumerate(blobs):
        run(
            db,
            "INSERT INTO record_blob (record_key, ordinal, blob_pk) VALUES (:record, :ordinal, :blob)",
            {"record": record_key, "ordinal": ordinal, "blob": blob},
        )


def needs_blob(payload_bytes: int) -> bool:
    """Whether a payload of that size is kept in pieces rather than in its row."""
    return payload_bytes > INLINE_BYTES
