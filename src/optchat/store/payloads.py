"""
Payloads: the bytes of what was said, in the record's row or in the pieces of a blob.

Decides: where bytes lie, and that they come back exactly or not at all.
Refuses to know: what they mean beyond what core says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.messages import Part
from optchat.core.records import KINDS, PIECE_BYTES, decode_part, leaf_text, spoken_text
from optchat.store.ledger import RecordRow, load_records
from optchat.store.rows import Connection, all_rows, insert, keys, one_row, one_value, run


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
        for row in all_rows(db, "SELECT data FROM blob_piece WHERE blob_pk = :blob ORDER BY piece", {"blob": blob_pk})
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
    has_blobs = record.structure is not None and (
        "content" in record.structure or record.structure.get("type") == "blob"
    )
    blobs = load_attachments(db, record.record_key) if has_blobs else []
    return decode_part(record.kind, load_payload(db, record), record.structure, blobs)


def load_leaf_text(db: Connection, record: RecordRow) -> str:
    """The whole leaf text of a record, whatever its size."""
    return leaf_text(record.kind, load_payload(db, record), record.structure, record.leaf_format)


@frozen
class Leaf:
    """A verbatim leaf, read from its record; ``at`` is microseconds."""

    text: str
    escaped_bytes: int
    at: int


def load_leaves(db: Connection, record_keys: Iterable[int]) -> dict[int, Leaf]:
    """The verbatim leaves of many records, in one statement; records that are too long for one are left out."""
    found: dict[int, Leaf] = {}
    for key, kind, payload, structure, leaf_format, escaped, at in all_rows(
        db,
        "SELECT record_key, kind, payload, structure, leaf_format, leaf_escaped, at FROM record"
        " WHERE record_key IN (SELECT value FROM carray(:keys)) AND leaf_escaped IS NOT NULL AND state = 0",
        {"keys": keys(record_keys)},
    ):
        if payload is None:
            raise IntegrityError(f"the payload of record {key} is missing; run verify() and restore a backup")
        parsed = None if structure is None else json.loads(structure)
        found[key] = Leaf(leaf_text(KINDS[kind], payload, parsed, leaf_format), escaped, at)
    return found


def load_spoken(db: Connection, record_keys: Iterable[int]) -> dict[int, str]:
    """The spoken text of records: what the search index holds the words of."""
    return {
        key: spoken_text(record.kind, load_payload(db, record), record.structure)
        for key, record in load_records(db, record_keys).items()
        if record.state == 0
    }


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


def count_pieces(db: Connection, blob_pk: int) -> int:
    return int(one_value(db, "SELECT count(*) FROM blob_piece WHERE blob_pk = :blob", {"blob": blob_pk}))


def next_blob_pk(db: Connection) -> int:
    """Above the key of every blob that there is."""
    return int(one_value(db, "SELECT coalesce(max(blob_pk), 0) + 1 FROM blob"))


def complete_blob(db: Connection, blob_pk: int) -> None:
    run(db, "UPDATE blob SET complete = 1 WHERE blob_pk = :blob", {"blob": blob_pk})


def link_blobs(db: Connection, record_key: int, blobs: Sequence[int]) -> None:
    for ordinal, blob in enumerate(blobs):
        run(
            db,
            "INSERT INTO record_blob (record_key, ordinal, blob_pk) VALUES (:record, :ordinal, :blob)",
            {"record": record_key, "ordinal": ordinal, "blob": blob},
        )
