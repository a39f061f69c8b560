"""
Removals: what is hidden, who may have seen it, and what a host that goes on delivering is told (§ 12).

Decides: how removals and tombstones are stored, and which rows a removal hides at once.
Refuses to know: what belongs to a removal, and how bytes leave the file (:mod:`optchat.store.scrubs`).

A tombstone is a hash under a key that only this file has: whoever holds a copy without the key cannot try names against
it. Everything that is hidden here is hidden by a state that every read checks.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

from optchat.core.jobs import KIND_NUMBER, JobKind
from optchat.core.reconciling import turn_digests
from optchat.core.records import KINDS, SUMMARY_KIND
from optchat.core.refs import KEY_BITS
from optchat.core.snapshots import Taken
from optchat.core.terms import RecordKind
from optchat.store.rows import Connection, Row, all_rows, blobs, insert, keys, one_row, one_value, run

RemovalKind: TypeAlias = Literal["session", "turns", "revoke", "scope"]
FORGOTTEN: Final = 1 << 62  # the revision of what was removed: above any that a host delivers


# ---- removals --------------------------------------------------------------------------------------------------------


@frozen
class RemovalRow:
    """A removal as its receipt tells it; ``session_pk`` None: the whole scope."""

    removal_pk: int
    kind: RemovalKind
    epoch: int
    session_pk: int | None
    removed: dict[str, int]
    kept: dict[str, str]
    taken: Taken
    turns: tuple[tuple[int, int], ...]  # the keys [low, high) of the turns that it took
    scrubbed: bool
    hindered: str | None  # what scrubbing waits for


_REMOVAL: Final = (
    "SELECT removal_pk, kind, epoch, session_pk, removed, kept, seen, stage = 'scrubbed', hindered FROM removal "
)


def _removal(row: Row) -> RemovalRow:
    seen = json.loads(row[6])
    retired = seen["retired"]
    taken = Taken(
        seen["publications"],
        None if retired is None else (retired[0], retired[1]),
        tuple((segment, start) for segment, start in seen["records"]),
    )
    turns = tuple((low, high) for low, high in seen["turns"])
    fields: Row = (*row[:4], json.loads(row[4]), json.loads(row[5]), taken, turns, bool(row[7]), row[8])
    return RemovalRow(*fields)


def insert_removal(
    db: Connection,
    *,
    scope_pk: int,
    kind: RemovalKind,
    epoch: int,
    clock: int,
    at: int,
    session_pk: int | None,
    removed: dict[str, int],
    kept: dict[str, str],
    taken: Taken,
    turns: Sequence[tuple[int, int]],
) -> int:
    """Write down a removal whose rows are hidden by the same transaction; its key."""
    seen = {"publications": taken.publications, "retired": taken.retired, "records": taken.records, "turns": turns}
    return insert(
        db,
        "INSERT INTO removal (scope_pk, kind, epoch, clock, at, session_pk, removed, kept, seen, stage)"
        " VALUES (:scope, :kind, :epoch, :clock, :at, :session, :removed, :kept, :seen, 'rows')",
        {
            "scope": scope_pk,
            "kind": kind,
            "epoch": epoch,
            "clock": clock,
            "at": at,
            "session": session_pk,
            "removed": json.dumps(removed),
            "kept": json.dumps(kept),
            "seen": json.dumps(seen),
        },
    )


def load_removal(db: Connection, removal_pk: int) -> RemovalRow:
    row = one_row(db, _REMOVAL + "WHERE removal_pk = :removal", {"removal": removal_pk})
    assert row is not None, "a stored key names a removal"
    return _removal(row)


def removals_since(db: Connection, scope_pk: int, epoch: int) -> list[RemovalRow]:
    """The removals of a scope after an epoch, in order."""
    return [
        _removal(row)
        for row in all_rows(
            db,
            _REMOVAL + "WHERE scope_pk = :scope AND epoch > :epoch ORDER BY epoch",
            {"scope": scope_pk, "epoch": epoch},
        )
    ]


def removals_of_session(db: Connection, scope_pk: int, session_pk: int | None) -> list[RemovalRow]:
    """The removals that concerned a session (None: the scope itself), in order."""
    return [row for row in removals_since(db, scope_pk, -1) if row.session_pk == session_pk]


def records_removed(db: Connection, scope_pk: int) -> int:
    """How many records of a scope were removed, in whatever way."""
    return int(
        one_value(
            db,
            "SELECT coalesce(sum(json_extract(removed, '$.records')), 0) FROM removal WHERE scope_pk = :scope",
            {"scope": scope_pk},
        )
    )


def next_epoch(db: Connection, scope_pk: int) -> int:
    """Count one more removal: every pin and every call under way is held against it."""
    return int(
        one_value(db, "UPDATE scope SET epoch = epoch + 1 WHERE scope_pk = :scope RETURNING epoch", {"scope": scope_pk})
    )


# ---- tombstones ------------------------------------------------------------------------------------------------------


def _secret(db: Connection, scope_pk: int) -> bytes:
    return bytes(one_value(db, "SELECT secret FROM scope WHERE scope_pk = :scope", {"scope": scope_pk}))


def _session_hash(secret: bytes, host: str, key: str) -> bytes:
    name = json.dumps([host, key]).encode()
    return hmac.new(secret, b"session\0" + name, hashlib.sha256).digest()


def _event_hash(secret: bytes, segment_pk: int, event: bytes) -> bytes:
    return hmac.new(secret, b"event\0" + segment_pk.to_bytes(8, "big") + event, hashlib.sha256).digest()


def hashed_turn_id(db: Connection, scope_pk: int, turn_id: str) -> str:
    """What stands in the place of a removed turn's id once it is scrubbed: whoever has the id still finds the turn."""
    return hmac.new(_secret(db, scope_pk), b"turn\0" + json.dumps(turn_id).encode(), hashlib.sha256).hexdigest()


def remember_session(db: Connection, scope_pk: int, host: str, key: str, at: int) -> None:
    """Whoever delivers to this session again is told that it was deleted."""
    _insert_tombstone(db, scope_pk, _session_hash(_secret(db, scope_pk), host, key), at, None)


def is_forgotten(db: Connection, scope_pk: int, host: str, key: str) -> bool:
    """Whether a session of that host and key was deleted. One that was begun anew under it lives all the same."""
    hashed = _session_hash(_secret(db, scope_pk), host, key)
    return (
        one_row(
            db, "SELECT 1 FROM tombstone WHERE scope_pk = :scope AND hash = :hash", {"scope": scope_pk, "hash": hashed}
        )
        is not None
    )


def remember_events(db: Connection, scope_pk: int, low: int, high: int, at: int) -> None:
    """The event keys of records whose key lies in ``[low, high)`` of one segment: redelivered, they are known."""
    segment, secret = low >> KEY_BITS, _secret(db, scope_pk)
    for event, record in all_rows(
        db,
        "SELECT event_hash, record_key FROM event WHERE segment_pk = :segment"
        " AND record_key >= :low AND record_key < :high",
        {"segment": segment, "low": low, "high": high},
    ):
        _insert_tombstone(db, scope_pk, _event_hash(secret, segment, event), at, record)
    _remember_contents(db, scope_pk, secret, low, high, at)


def _remember_contents(db: Connection, scope_pk: int, secret: bytes, low: int, high: int, at: int) -> None:
    """Whole turns by what they said: of a host without keys and ids nothing else tells that it still lists them."""
    turns: dict[int, list[tuple[RecordKind, bytes]]] = {}
    for turn, kind, sha256 in all_rows(
        db,
        "SELECT turn_pk, kind, sha256 FROM record WHERE record_key >= :low AND record_key < :high AND state = 0"
        " ORDER BY record_key",
        {"low": low, "high": high},
    ):
        turns.setdefault(turn, []).append((KINDS[kind], sha256))
    session = _session_of(db, low >> KEY_BITS)
    for said in turns.values():
        for digest in turn_digests(said):
            _insert_tombstone(db, scope_pk, _contents_hash(secret, session, digest), at, None)


def _session_of(db: Connection, segment_pk: int) -> int:
    """The session that a segment was made for; 0: none is left."""
    found = one_value(db, "SELECT session_pk FROM generation WHERE segment_pk = :segment", {"segment": segment_pk})
    return 0 if found is None else int(found)


def _contents_hash(secret: bytes, session_pk: int, digest: bytes) -> bytes:
    return hmac.new(secret, b"contents\0" + session_pk.to_bytes(8, "big") + digest, hashlib.sha256).digest()


def forgotten_contents(
    db: Connection, scope_pk: int, session_pks: Iterable[int], digests: Iterable[bytes]
) -> frozenset[bytes]:
    """Those of the digests (:func:`optchat.core.reconciling.turn_digests`) that are of turns which were removed."""
    secret, wanted = _secret(db, scope_pk), tuple(digests)
    hashed = {_contents_hash(secret, session, digest): digest for session in session_pks for digest in wanted}
    if not hashed:
        return frozenset()
    return frozenset(
        hashed[bytes(row[0])]
        for row in all_rows(
            db,
            "SELECT hash FROM tombstone WHERE scope_pk = :scope AND hash IN (SELECT value FROM carray(:hashes))",
            {"scope": scope_pk, "hashes": blobs(list(hashed))},
        )
    )


def _insert_tombstone(db: Connection, scope_pk: int, hashed: bytes, at: int, record_key: int | None) -> None:
    run(
        db,
        "INSERT OR IGNORE INTO tombstone (scope_pk, hash, removed_at, record_key) VALUES (:scope, :hash, :at, :record)",
        {"scope": scope_pk, "hash": hashed, "at": at, "record": record_key},
    )


def forgotten_events(db: Connection, segment_pk: int, events: Sequence[bytes]) -> dict[bytes, int]:
    """Those of the event keys whose record in a segment was removed, with the record's key."""
    row = one_row(
        db,
        "SELECT scope.scope_pk, scope.secret FROM segment JOIN scope ON scope.scope_pk = segment.scope_pk"
        " WHERE segment_pk = :segment AND scope.epoch > 0",
        {"segment": segment_pk},
    )
    if row is None or not events:  # nothing was ever removed here: nearly always
        return {}
    hashed = {_event_hash(bytes(row[1]), segment_pk, event): event for event in events}
    return {
        hashed[bytes(found)]: record
        for found, record in all_rows(
            db,
            "SELECT hash, record_key FROM tombstone WHERE scope_pk = :scope"
            " AND hash IN (SELECT value FROM carray(:hashes)) AND record_key IS NOT NULL",
            {"scope": row[0], "hashes": blobs(list(hashed))},
        )
    }


# ---- hiding ----------------------------------------------------------------------------------------------------------


@frozen
class Hidden:
    """How many rows were hidden, and how many index entries with them."""

    rows: int
    documents: int = 0


def hide_records(db: Connection, low: int, high: int) -> Hidden:
    """Records whose key lies in ``[low, high)`` of one segment, and what is found of them."""
    bindings = {"low": low, "high": high, "segment": low >> KEY_BITS, "summary": SUMMARY_KIND}
    documents = run(
        db,
        "UPDATE document SET state = 1 WHERE subject >= :low AND subject < :high AND kind <> :summary"
        " AND segment_pk = :segment AND state = 0",
        bindings,
    )
    rows = run(
        db, "UPDATE record SET state = 1 WHERE record_key >= :low AND record_key < :high AND state = 0", bindings
    )
    return Hidden(rows, documents)


def hide_nodes(db: Connection, low: int, high: int, segment_pk: int | None) -> Hidden:
    """
    Nodes whose key lies in ``[low, high)`` of one tree, with all their revisions and what is found of them.

    Args:
        segment_pk: whose tree it is; None: pages of a payload, which are never found.
    """
    bindings = {"low": low, "high": high, "segment": segment_pk, "summary": SUMMARY_KIND}
    documents = 0
    if segment_pk is not None:
        documents = run(
            db,
            "UPDATE document SET state = 1 WHERE subject >= :low AND subject < :high AND kind = :summary"
            " AND segment_pk = :segment AND state = 0",
            bindings,
        )
    run(db, "UPDATE node_history SET state = 1 WHERE node_key >= :low AND node_key < :high AND state = 0", bindings)
    for recipe, count in all_rows(
        db,
        "SELECT recipe_pk, count(*) FROM node WHERE node_key >= :low AND node_key < :high AND state = 0"
        " GROUP BY recipe_pk",
        bindings,
    ):
        run(
            db,
            "UPDATE recipe SET nodes = nodes - :count WHERE recipe_pk = :recipe AND kind <> 'join'",
            {"count": count, "recipe": recipe},
        )
    rows = run(db, "UPDATE node SET state = 1 WHERE node_key >= :low AND node_key < :high AND state = 0", bindings)
    return Hidden(rows, documents)


def hide_turn(db: Connection, turn_pk: int, end_seq: int, at: int) -> bool:
    """A turn, ended where it still ran, and what was staged in it; whether it was there."""
    bindings = {"turn": turn_pk, "end": end_seq, "at": at}
    run(db, "DELETE FROM staged WHERE turn_pk = :turn", bindings)
    run(
        db,
        "UPDATE turn SET state = 'ended', outcome = 'interrupted', end_seq = :end, ended_at = :at, owner_pk = NULL"
        " WHERE turn_pk = :turn AND state <> 'ended'",
        bindings,
    )
    return (
        run(db, "UPDATE turn SET removed = 1, publication_key = NULL WHERE turn_pk = :turn AND removed = 0", bindings)
        > 0
    )


def hide_session(db: Connection, session_pk: int) -> None:
    """Its key is free for another session."""
    run(db, "UPDATE session SET state = 'deleted', current = 0 WHERE session_pk = :session", {"session": session_pk})


def detach_segment(db: Connection, segment_pk: int, tree_pk: int, length: int) -> None:
    """Only children still need a segment, up to a length; its own view shows nothing any more."""
    bindings = {"segment": segment_pk, "tree": tree_pk, "length": length}
    run(
        db,
        "UPDATE segment SET kept_length = :length WHERE segment_pk = :segment",
        bindings,
    )
    run(
        db,
        "UPDATE view SET revision = revision + 1, length = 0, levels = x'', shrinking = 0, bytes = 0"
        " WHERE tree_pk = :tree",
        bindings,
    )


def hide_all(db: Connection, scope_pk: int, at: int) -> dict[str, int]:
    """Everything of a scope, with what waits to be made of it; how many of each."""
    bindings = {"scope": scope_pk, "at": at, "low": scope_pk << KEY_BITS, "high": (scope_pk + 1) << KEY_BITS}
    of_scope = (
        "generation_pk IN (SELECT generation.generation_pk FROM session"
        " JOIN generation ON generation.session_pk = session.session_pk WHERE session.scope_pk = :scope)"
    )
    run(db, f"DELETE FROM staged WHERE turn_pk IN (SELECT turn_pk FROM turn WHERE {of_scope})", bindings)
    run(
        db,
        "UPDATE turn SET state = 'ended', outcome = 'interrupted', end_seq = start_seq, ended_at = :at, owner_pk = NULL"
        f" WHERE {of_scope} AND state <> 'ended'",
        bindings,
    )
    counts = {
        "turns": run(
            db, f"UPDATE turn SET removed = 1, publication_key = NULL WHERE {of_scope} AND removed = 0", bindings
        ),
        "publications": run(
            db,
            "UPDATE publication SET state = 1 WHERE publication_key >= :low AND publication_key < :high AND state = 0",
            bindings,
        ),
        "documents": run(
            db,
            "UPDATE document SET state = 1 WHERE document_key >= :low AND document_key < :high AND state = 0",
            bindings,
        ),
        "sessions": run(
            db,
            "UPDATE session SET state = 'deleted', current = 0 WHERE scope_pk = :scope AND state <> 'deleted'",
            bindings,
        ),
        "records": 0,
        "nodes": 0,
    }
    for (segment,) in all_rows(db, "SELECT segment_pk FROM segment WHERE scope_pk = :scope", bindings):
        counts["records"] += run(
            db,
            "UPDATE record SET state = 1 WHERE record_key >= :low AND record_key < :high AND state = 0",
            {"low": segment << KEY_BITS, "high": (segment + 1) << KEY_BITS},
        )
    run(db, "DELETE FROM job WHERE scope_pk = :scope", bindings)
    return counts


def turns_of_scope(db: Connection, scope_pk: int) -> list[int]:
    """Every turn of a scope."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT turn_pk FROM session JOIN generation ON generation.session_pk = session.session_pk"
            " JOIN turn ON turn.generation_pk = generation.generation_pk WHERE session.scope_pk = :scope"
            " ORDER BY turn_pk",
            {"scope": scope_pk},
        )
    ]


def sessions_of_scope(db: Connection, scope_pk: int) -> list[int]:
    """Every session of a scope."""
    return [
        row[0] for row in all_rows(db, "SELECT session_pk FROM session WHERE scope_pk = :scope", {"scope": scope_pk})
    ]


def hide_scope(db: Connection, scope_pk: int) -> None:
    """No handle opens a scope of that name any more, unless it begins another one."""
    run(
        db,
        "UPDATE scope SET state = 'removed', name = 'removed ' || scope_pk WHERE scope_pk = :scope",
        {"scope": scope_pk},
    )


def drop_jobs(db: Connection, kinds: Iterable[JobKind], low: int, high: int) -> int:
    """The jobs of some kinds whose subject lies in ``[low, high)``, whoever works them: their results are refused."""
    return sum(
        run(
            db,
            "DELETE FROM job WHERE kind = :kind AND subject >= :low AND subject < :high",
            {"kind": KIND_NUMBER[kind], "low": low, "high": high},
        )
        for kind in kinds
    )


# ---- what was shown --------------------------------------------------------------------------------------------------


def nodes_shown(db: Connection, publication_keys: Iterable[int]) -> list[int]:
    """Nodes, of whatever tree, some revision of which was made beside the text of these publications."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT DISTINCT node_key FROM node_foreign WHERE publication_key IN (SELECT value FROM carray(:keys))",
            {"keys": keys(publication_keys)},
        )
    ]


def turns_shown(db: Connection, publication_keys: Iterable[int]) -> dict[int, list[int]]:
    """By session, the turns that retrieved any of these publications."""
    found: dict[int, list[int]] = {}
    for session, turn in all_rows(
        db,
        "SELECT DISTINCT generation.session_pk, turn.turn_pk FROM foreign_context"
        " JOIN turn ON turn.turn_pk = foreign_context.turn_pk"
        " JOIN generation ON generation.generation_pk = turn.generation_pk"
        " WHERE foreign_context.publication_key IN (SELECT value FROM carray(:keys)) AND turn.removed = 0"
        " ORDER BY generation.session_pk, turn.turn_pk",
        {"keys": keys(publication_keys)},
    ):
        found.setdefault(session, []).append(turn)
    return found


def retrievals_of(db: Connection, turn_pk: int) -> list[tuple[int, tuple[str, ...]]]:
    """(key, refs that it showed) of a turn's retrievals."""
    return [
        (row[0], tuple(json.loads(row[1])))
        for row in all_rows(db, "SELECT retrieval_pk, refs FROM retrieval WHERE turn_pk = :turn", {"turn": turn_pk})
    ]
