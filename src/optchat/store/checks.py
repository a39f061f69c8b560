"""
Queries that only verification needs.

Decides: how contradictions between tables are found.
Refuses to know: which of them are faults.
"""

from __future__ import annotations

import hashlib

from optchat.core.lineage import node_key
from optchat.core.records import SUMMARY_KIND
from optchat.core.refs import KEY_BITS, KEY_MASK, Span
from optchat.store.publications import PublicationRow, load_publications
from optchat.store.rows import Connection, all_rows, keys, one_row, one_value


def sqlite_faults(db: Connection) -> list[str]:
    """What SQLite's own checks say, and foreign keys that point nowhere."""
    # FTS5 checks with the structure that this connection read last, which another process may have moved on from:
    # without a search in this very transaction, 41 of 300 checks beside a writer reported a corruption that was none
    # (tried).
    one_row(db, "SELECT rowid FROM words WHERE words MATCH 'place : k0' LIMIT 1")
    found = [str(row[0]) for row in all_rows(db, "PRAGMA quick_check(20)") if row[0] != "ok"]
    found += [f"a row of {row[0]} names a missing row of {row[2]}" for row in all_rows(db, "PRAGMA foreign_key_check")][
        :20
    ]
    return found


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raw_structure(db: Connection, record_key: int) -> str | None:
    """A record's structure as written: what its hash is over."""
    value = one_value(db, "SELECT structure FROM record WHERE record_key = :key", {"key": record_key})
    return None if value is None else str(value)


def publications_after(db: Connection, scope_pk: int, after: int, limit: int) -> list[PublicationRow]:
    """Publications in order, from the one after a number."""
    numbers = [
        row[0] & KEY_MASK
        for row in all_rows(
            db,
            "SELECT publication_key FROM publication WHERE publication_key > :low AND publication_key < :high"
            " ORDER BY publication_key LIMIT :limit",
            {
                "low": (scope_pk << KEY_BITS) + after,
                "high": (scope_pk + 1) << KEY_BITS,
                "limit": limit,
            },
        )
    ]
    found = load_publications(db, scope_pk, numbers)
    return [found[number] for number in numbers]


def turn_agrees(db: Connection, row: PublicationRow) -> bool:
    """Whether a publication's turn has the same generation, range and outcome, and names it if it is live."""
    turn = one_row(
        db,
        "SELECT generation_pk, start_seq, end_seq, outcome, publication_key FROM turn WHERE turn_pk = :turn",
        {"turn": row.turn_pk},
    )
    if turn is None:
        return False
    live = row.retired_clock is None and not row.removed
    same = turn[:4] == (row.generation_pk, row.start_seq, row.end_seq, row.outcome)
    return same and (not live or turn[4] == row.publication_key)


def segment_of_generation(db: Connection, generation_pk: int) -> int:
    return int(
        one_value(
            db, "SELECT segment_pk FROM generation WHERE generation_pk = :generation", {"generation": generation_pk}
        )
    )


def unindexed_records(db: Connection, scope_pk: int) -> list[int]:
    """
    Records with text that have neither a document nor an index job: those without a word, and those that were lost.

    Memory tools' own are left out on purpose.
    """
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM segment JOIN record ON record_key BETWEEN segment_pk << 40 AND segment_pk << 40 |"
            " :mask WHERE scope_pk = :scope AND record.state = 0 AND payload_bytes > 0"
            " AND NOT EXISTS (SELECT 1 FROM document WHERE document.subject = record_key AND document.kind < 6)"
            " AND NOT EXISTS (SELECT 1 FROM job WHERE job.kind = 4 AND job.subject = record_key)"
            " AND (structure IS NULL OR json_extract(structure, '$.memory') IS NULL)"
            " AND EXISTS (SELECT 1 FROM turn WHERE turn.turn_pk = record.turn_pk)",
            {"scope": scope_pk, "mask": KEY_MASK},
        )
    ]


def index_faults(db: Connection) -> list[str]:
    """Whether the full-text index has an entry for each live document and no other."""
    # A contentless table cannot be scanned; but every entry holds one term for its kind.
    every = "place : (" + " OR ".join(f"k{kind}" for kind in range(SUMMARY_KIND + 1)) + ")"
    entries = {row[0] for row in all_rows(db, "SELECT rowid FROM words WHERE words MATCH :every", {"every": every})}
    documents = {row[0] for row in all_rows(db, "SELECT document_key FROM document WHERE state <> 2")}
    found: list[str] = []
    if documents - entries:
        found.append(f"{len(documents - entries)} documents have no entry in the search index")
    if entries - documents:
        found.append(f"{len(entries - documents)} entries of the search index have no document")
    return found


def lost_events(db: Connection, scope_pk: int, limit: int = 50) -> list[int]:
    """Event keys whose record is missing, by that record's key."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT event.record_key FROM segment JOIN event ON event.segment_pk = segment.segment_pk"
            " LEFT JOIN record ON record.record_key = event.record_key"
            " WHERE scope_pk = :scope AND record.record_key IS NULL LIMIT :limit",
            {"scope": scope_pk, "limit": limit},
        )
    ]


def document_count(db: Connection, scope_pk: int) -> int:
    return int(
        one_value(
            db,
            "SELECT count(*) FROM document WHERE document_key BETWEEN :low AND :high",
            {"low": scope_pk << KEY_BITS, "high": scope_pk << KEY_BITS | KEY_MASK},
        )
    )


def unpublished_without_job(db: Connection, scope_pk: int) -> list[int]:
    """Ended turns that should be published, are not, and have no job."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT turn_pk FROM turn JOIN generation ON generation.generation_pk = turn.generation_pk"
            " JOIN session ON session.session_pk = generation.session_pk"
            " WHERE turn.scope_pk = :scope AND turn.state = 'ended' AND publication_key IS NULL AND inherited = 0"
            " AND end_seq > start_seq AND isolated = 0 AND session.state <> 'revoked' AND superseded_clock IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM job WHERE job.kind = 3 AND job.subject = turn_pk)",
            {"scope": scope_pk},
        )
    ]


def leaves_without_job(db: Connection, scope_pk: int, limit: int = 50) -> list[int]:
    """Records too long for a verbatim leaf that have neither a node nor a job."""
    candidates = all_rows(
        db,
        "SELECT record_key, segment.tree_pk FROM segment"
        " JOIN record ON record_key BETWEEN segment_pk << 40 AND segment_pk << 40 | :mask"
        " WHERE scope_pk = :scope AND record.state = 0 AND leaf_escaped IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM job WHERE job.kind = 0 AND job.tree_pk = segment.tree_pk"
        " AND job.position = record_key & :mask)",
        {"scope": scope_pk, "mask": KEY_MASK},
    )
    by_node = {node_key(tree, Span(record & KEY_MASK, 1)): record for record, tree in candidates}
    durable = {
        row[0]
        for row in all_rows(
            db,
            "SELECT node_key FROM node WHERE node_key IN (SELECT value FROM carray(:keys))",
            {"keys": keys(by_node)},
        )
    }
    return [record for node, record in by_node.items() if node not in durable][:limit]


def job_count(db: Connection, scope_pk: int) -> int:
    return int(one_value(db, "SELECT count(*) FROM job WHERE scope_pk = :scope", {"scope": scope_pk}))
