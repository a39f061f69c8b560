"""
The ledger: records and the event keys under which they were delivered.

Decides: how what was said is stored and found again.
Refuses to know: who may see it, and the payloads' bytes (:mod:`optchat.store.payloads`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from attrs import frozen

from optchat.core.lineage import Chain
from optchat.core.records import KIND_NUMBER, KINDS, SealedPart, call_hash
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.core.terms import RecordKind
from optchat.store import registry, removals
from optchat.store.rows import Connection, Row, all_rows, blobs, keys, moment_of, one_row, one_value, run

_FROM_THE_NEWEST = (1 << 62, 1 << 62)  # above every time and every key


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
    "SELECT record_key, turn_pk, kind, message, part, at, utc_offset, sha256, payload_bytes, blob_pk, structure,"
    " paired_key, leaf_format, leaf_bytes, leaf_escaped, state FROM record "
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
        "INSERT INTO record (record_key, turn_pk, kind, message, part, at, utc_offset, sha256, payload_bytes, payload,"
        " blob_pk, structure, call_hash, paired_key, leaf_format, leaf_bytes, leaf_escaped)"
        " VALUES (:key, :turn, :kind, :message, :part, :at, :offset, :sha256, :bytes, :payload, :blob, :structure,"
        " :call_hash, :paired, :leaf_format, :leaf_bytes, :leaf_escaped)",
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


def is_live(db: Connection, record_key: int) -> bool:
    """Whether a record is there, and was not removed."""
    return bool(one_value(db, "SELECT state = 0 FROM record WHERE record_key = :key", {"key": record_key}))


def ends_of(db: Connection, chain: Chain, start: int, end: int) -> tuple[datetime, datetime] | None:
    """When the first and the last of records ``[start, end)`` of a chain were said that were not removed."""
    found: list[datetime] = []
    for own in chain.ranges(end, start):
        for order in ("", " DESC"):
            row = one_row(
                db,
                "SELECT at, utc_offset FROM record WHERE record_key >= :low AND record_key < :high AND state = 0"
                f" ORDER BY record_key{order} LIMIT 1",
                {"low": own.segment << KEY_BITS | own.start, "high": own.segment << KEY_BITS | own.end},
            )
            if row is not None:
                found.append(moment_of(*row))
    return (found[0], found[-1]) if found else None


def records_of_turn(db: Connection, turn_pk: int) -> list[RecordRow]:
    return [
        _record(row) for row in all_rows(db, _RECORD + "WHERE turn_pk = :turn ORDER BY record_key", {"turn": turn_pk})
    ]


def places_of_turn(db: Connection, turn_pk: int) -> list[tuple[int, int]]:
    """(sequence number, message ordinal) of a turn's records, in order."""
    return [
        (row[0], row[1])
        for row in all_rows(
            db,
            "SELECT record_key & :mask, message FROM record WHERE turn_pk = :turn AND state = 0 ORDER BY record_key",
            {"turn": turn_pk, "mask": KEY_MASK},
        )
    ]


def user_spoke(db: Connection, low: int, high: int) -> bool:
    """Whether a record whose key lies in ``[low, high)`` is a user's; the first such one answers."""
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM record WHERE record_key >= :low AND record_key < :high AND kind = :kind)",
            {"low": low, "high": high, "kind": KIND_NUMBER["user"]},
        )
    )


def last_of_turn(db: Connection, turn_pk: int) -> RecordRow | None:
    row = one_row(
        db, _RECORD + "WHERE record_key = (SELECT max(record_key) FROM record WHERE turn_pk = :turn)", {"turn": turn_pk}
    )
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
            _RECORD.replace("FROM record ", "FROM record AS call ") + "WHERE turn_pk = :turn AND kind = 2"
            " AND NOT EXISTS (SELECT 1 FROM record AS result WHERE result.paired_key = call.record_key) ORDER BY"
            " record_key",
            {"turn": turn_pk},
        )
    ]


def call_ids(db: Connection, turn_pk: int) -> list[str]:
    """The ids of the calls of a turn."""
    return [
        str(
            json.loads(row[0])["call_id"]
        )  # not json_extract: an id may hold a lone surrogate, which is no text to SQLite
        for row in all_rows(db, "SELECT structure FROM record WHERE turn_pk = :turn AND kind = 2", {"turn": turn_pk})
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
            "SELECT max(record_key) FROM record WHERE call_hash = :hash AND record_key >= :low AND record_key < :high"
            " AND kind = 2",
            {
                "hash": call_hash(call_id),
                "low": own.segment << KEY_BITS | own.start,
                "high": own.segment << KEY_BITS | own.end,
            },
        )
        if value is not None:
            return int(value)
    return None


def result_of(db: Connection, chain: Chain, record_key: int) -> int | None:
    """The first result along a chain that answers a call: forks and generations may each have their own."""
    results = all_rows(
        db, "SELECT record_key FROM record WHERE paired_key = :key ORDER BY record_key", {"key": record_key}
    )
    on_chain = (key for (key,) in results if chain.of_record(key & KEY_MASK).segment == key >> KEY_BITS)
    return next(on_chain, None)


def reports_named(
    db: Connection, name: str, *, before: tuple[int, int] = _FROM_THE_NEWEST, limit: int
) -> list[RecordRow]:
    """
    Reports of a name in the whole file, newest first: candidates, of which the caller keeps those it may see.

    Args:
        before: (time, record key) of the last one that the caller has looked at.
    """
    return [
        _record(row)
        for row in all_rows(
            db,
            _RECORD + "WHERE kind = 4 AND json_extract(structure, '$.name') = :name AND state = 0"
            " AND (at, record_key) < (:at, :key) ORDER BY at DESC, record_key DESC LIMIT :limit",
            {"name": name, "at": before[0], "key": before[1], "limit": limit},
        )
    ]


def newest_record_at(db: Connection, scope_pk: int) -> int | None:
    """When the newest record of a scope was said."""
    newest: int | None = None
    for segment, _tree, _base, _ended in registry.scope_segments(db, scope_pk):
        value = one_value(
            db,
            "SELECT at FROM record WHERE record_key BETWEEN :low AND :high ORDER BY record_key DESC LIMIT 1",
            {"low": segment << KEY_BITS, "high": segment << KEY_BITS | KEY_MASK},
        )
        newest = value if newest is None or (value is not None and value > newest) else newest
    return newest


# What was removed is known for good: its revision is above any that a host delivers.
_EVENT = (
    f"SELECT event_hash, event.record_key, CASE state WHEN 0 THEN revision ELSE {removals.FORGOTTEN} END, sha256"
    " FROM event"
    " JOIN record ON record.record_key = event.record_key WHERE segment_pk = :segment"
)


def find_event(db: Connection, chain: Chain, event: bytes) -> tuple[int, int, bytes] | None:
    """
    (record_key, revision, sha256) of what is sealed under an event key, along the chain. Of what was removed the
    revision is :data:`optchat.store.removals.FORGOTTEN`, whether or not its bytes are gone.
    """
    below = KEY_MASK
    for link in chain.links:
        row = one_row(db, f"{_EVENT} AND event_hash = :event", {"segment": link.segment, "event": event})
        if row is not None and row[1] & KEY_MASK < below:
            return row[1], row[2], row[3]
        for key in removals.forgotten_events(db, link.segment, [event]).values():
            if key & KEY_MASK < below:
                return key, removals.FORGOTTEN, b""
        below = min(below, link.base_length)
    return None


def find_events(db: Connection, chain: Chain, events: Iterable[bytes]) -> dict[bytes, tuple[int, int, bytes]]:
    """
    The same for many event keys, one statement a link of the chain; keys that nothing is sealed under are left
    out.
    """
    wanted = tuple(dict.fromkeys(events))
    if len(wanted) == 1:  # the usual seal: a table of one value costs more than the search
        only = find_event(db, chain, wanted[0])
        return {} if only is None else {wanted[0]: only}
    found: dict[bytes, tuple[int, int, bytes]] = {}
    below = KEY_MASK
    for link in chain.links:
        if not wanted:
            break
        for event, key, revision, sha256 in all_rows(
            db,
            f"{_EVENT} AND event_hash IN (SELECT value FROM carray(:events))",
            {"segment": link.segment, "events": blobs(wanted)},
        ):
            if key & KEY_MASK < below:
                found[event] = key, revision, sha256
        for event, key in removals.forgotten_events(db, link.segment, wanted).items():
            if key & KEY_MASK < below:
                found.setdefault(event, (key, removals.FORGOTTEN, b""))
        wanted = tuple(event for event in wanted if event not in found)
        below = min(below, link.base_length)
    return found


def events_between(db: Connection, low: int, high: int) -> dict[int, tuple[bytes, int]]:
    """
    (event key, revision) of what is sealed in ``[low, high)`` of one segment, by record key.

    It looks at all event keys of the segment: an index of their records would cost each seal a page.
    """
    return {
        row[0]: (row[1], row[2])
        for row in all_rows(
            db,
            "SELECT record_key, event_hash, revision FROM event WHERE segment_pk = :segment AND record_key >= :low"
            " AND record_key < :high",
            {"segment": low >> KEY_BITS, "low": low, "high": high},
        )
    }


def written_structure(db: Connection, record_key: int) -> str | None:
    """A record's structure as it was written: what its hash is over."""
    value = one_value(db, "SELECT structure FROM record WHERE record_key = :key", {"key": record_key})
    return None if value is None else str(value)


def insert_event(db: Connection, segment_pk: int, event: bytes, revision: int, record_key: int) -> None:
    run(
        db,
        "INSERT INTO event (segment_pk, event_hash, revision, record_key) VALUES (:segment, :event, :revision,"
        " :record)",
        {"segment": segment_pk, "event": event, "revision": revision, "record": record_key},
    )
