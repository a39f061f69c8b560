"""
Queries that only verification needs: records, publications, removals, counters, pins.

Decides: how contradictions between tables are found.
Refuses to know: which of them are faults.

The file and the lifecycle are in :mod:`optchat.store.structure`, the search index in :mod:`optchat.store.shadow`, the
queue and the trees in :mod:`optchat.store.due`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from attrs import frozen

from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.store.publications import PublicationRow, load_publications
from optchat.store.rows import Connection, all_rows, keys, one_row, one_value

_PIECES_A_STEP = 64  # of 64 KiB: what is hashed at once


# ---- records ---------------------------------------------------------------------------------------------------------


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raw_structure(db: Connection, record_key: int) -> str | None:
    """A record's structure as written: what its hash is over."""
    value = one_value(db, "SELECT structure FROM record WHERE record_key = :key", {"key": record_key})
    return None if value is None else str(value)


def outside_their_turn(db: Connection, low: int, high: int) -> list[int]:
    """Records with a key in ``[low, high]`` that their turn's range does not hold."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM record JOIN turn ON turn.turn_pk = record.turn_pk"
            " WHERE record_key BETWEEN :low AND :high AND (turn.segment_pk <> record_key >> 40"
            " OR record_key & :mask < start_seq OR record_key & :mask >= coalesce(end_seq, :mask))",
            {"low": low, "high": high, "mask": KEY_MASK},
        )
    ]


def lost_events(db: Connection, segment_pk: int, limit: int = 50) -> list[int]:
    """Event keys whose record is missing, by that record's key."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT event.record_key FROM event LEFT JOIN record ON record.record_key = event.record_key"
            " WHERE segment_pk = :segment AND record.record_key IS NULL LIMIT :limit",
            {"segment": segment_pk, "limit": limit},
        )
    ]


def blobs_after(db: Connection, scope_pk: int, after: int, limit: int) -> list[tuple[int, bytes, int]]:
    """(blob_pk, sha256, bytes) of complete blobs in order of their digests' rows, from the one after a key."""
    return [
        (row[0], row[1], row[2])
        for row in all_rows(
            db,
            "SELECT blob_pk, sha256, bytes FROM blob WHERE blob_pk > :after AND scope_pk = :scope AND complete = 1"
            " ORDER BY blob_pk LIMIT :limit",
            {"after": after, "scope": scope_pk, "limit": limit},
        )
    ]


def blob_digest(db: Connection, blob_pk: int) -> tuple[bytes, int]:
    """The SHA-256 and the size of a blob's pieces."""
    digest, size, after = hashlib.sha256(), 0, -1
    while True:
        rows = all_rows(
            db,
            "SELECT piece, data FROM blob_piece WHERE blob_pk = :blob AND piece > :after ORDER BY piece LIMIT :limit",
            {"blob": blob_pk, "after": after, "limit": _PIECES_A_STEP},
        )
        for piece, data in rows:
            digest.update(data)
            size, after = size + len(data), piece
        if len(rows) < _PIECES_A_STEP:
            return digest.digest(), size


# ---- publications ----------------------------------------------------------------------------------------------------


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
    """Whether a publication's turn has the same generation, range and outcome."""
    turn = one_row(
        db,
        "SELECT generation_pk, start_seq, end_seq, outcome FROM turn WHERE turn_pk = :turn",
        {"turn": row.turn_pk},
    )
    return turn == (row.generation_pk, row.start_seq, row.end_seq, row.outcome)


def segment_of_generation(db: Connection, generation_pk: int) -> int:
    return int(
        one_value(
            db, "SELECT segment_pk FROM generation WHERE generation_pk = :generation", {"generation": generation_pk}
        )
    )


@frozen
class TurnPublications:
    """What publications there are of a turn, by number; and which its row names."""

    turn_pk: int
    segment_pk: int
    start_seq: int
    removed: int
    named: int | None
    live: tuple[int, ...]
    others: tuple[int, ...]


def publications_of_turns(db: Connection, turn_pks: Iterable[int]) -> dict[int, TurnPublications]:
    """The publications of turns, retired and removed ones included."""
    live: dict[int, list[int]] = {}
    others: dict[int, list[int]] = {}
    wanted = keys(turn_pks)
    for turn, key, is_live in all_rows(
        db,
        "SELECT turn_pk, publication_key, retired_clock IS NULL AND state = 0 FROM publication"
        " WHERE turn_pk IN (SELECT value FROM carray(:turns)) ORDER BY publication_key",
        {"turns": wanted},
    ):
        (live if is_live else others).setdefault(turn, []).append(key & KEY_MASK)
    return {
        row[0]: TurnPublications(
            row[0],
            row[1],
            row[2],
            row[3],
            None if row[4] is None else row[4] & KEY_MASK,
            tuple(live.get(row[0], ())),
            tuple(others.get(row[0], ())),
        )
        for row in all_rows(
            db,
            "SELECT turn_pk, segment_pk, start_seq, removed, publication_key FROM turn"
            " WHERE turn_pk IN (SELECT value FROM carray(:turns))",
            {"turns": wanted},
        )
    }


def turns_after(db: Connection, scope_pk: int, after: int, limit: int) -> list[int]:
    """The turns of a scope by key, from the one after a key."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT turn_pk FROM turn WHERE turn_pk > :after AND scope_pk = :scope ORDER BY turn_pk LIMIT :limit",
            {"after": after, "scope": scope_pk, "limit": limit},
        )
    ]


def highest_publication(db: Connection, scope_pk: int) -> int:
    """The number after the last publication that there is."""
    value = one_value(
        db,
        "SELECT max(publication_key) FROM publication WHERE publication_key BETWEEN :low AND :high",
        {"low": scope_pk << KEY_BITS, "high": scope_pk << KEY_BITS | KEY_MASK},
    )
    return 0 if value is None else (value & KEY_MASK) + 1


# ---- removals --------------------------------------------------------------------------------------------------------


def half_hidden(db: Connection, segment_pk: int, limit: int = 50) -> list[int]:
    """Records that are hidden while their turn is not, or the other way round."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM record JOIN turn ON turn.turn_pk = record.turn_pk"
            " WHERE record_key BETWEEN :low AND :high AND (record.state = 0) <> (removed = 0) LIMIT :limit",
            {"low": segment_pk << KEY_BITS, "high": segment_pk << KEY_BITS | KEY_MASK, "limit": limit},
        )
    ]


def scrubbed_with_content(db: Connection, segment_pk: int, limit: int = 50) -> list[int]:
    """Records that count as scrubbed and still have bytes."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM record WHERE record_key BETWEEN :low AND :high AND record.state = 2"
            " AND (payload IS NOT NULL OR blob_pk IS NOT NULL"
            " OR EXISTS (SELECT 1 FROM record_blob WHERE record_blob.record_key = record.record_key)) LIMIT :limit",
            {"low": segment_pk << KEY_BITS, "high": segment_pk << KEY_BITS | KEY_MASK, "limit": limit},
        )
    ]


def unfinished_that_say_scrubbed(db: Connection, scope_pk: int) -> list[int]:
    """Removals that say they are scrubbed, with something left to erase."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT removal_pk FROM removal WHERE scope_pk = :scope AND stage = 'scrubbed'"
            " AND EXISTS (SELECT 1 FROM erasure WHERE erasure.removal_pk = removal.removal_pk)",
            {"scope": scope_pk},
        )
    ]


def live_of_hidden(db: Connection, scope_pk: int) -> list[int]:
    """Numbers of live publications of removed turns, and of sessions that are deleted or revoked."""
    return [
        row[0] & KEY_MASK
        for row in all_rows(
            db,
            "SELECT publication.publication_key FROM publication"
            " JOIN turn ON turn.turn_pk = publication.turn_pk"
            " JOIN generation ON generation.generation_pk = turn.generation_pk"
            " JOIN session ON session.session_pk = generation.session_pk"
            " WHERE publication.publication_key BETWEEN :low AND :high AND publication.state = 0"
            " AND retired_clock IS NULL AND (turn.removed > 0 OR session.state IN ('deleted', 'revoked')"
            " OR session.revoked = 1) LIMIT 50",
            {"low": scope_pk << KEY_BITS, "high": scope_pk << KEY_BITS | KEY_MASK},
        )
    ]


# ---- counters --------------------------------------------------------------------------------------------------------


@frozen
class Counters:
    """A scope's counters, and what they must not lie below."""

    next_publication: int
    next_document: int
    clock: int
    epoch: int
    publications: int
    documents: int
    newest_clock: int  # of nodes, publications and moments
    newest_epoch: int  # of removals


def counters(db: Connection, scope_pk: int, trees: Iterable[int]) -> Counters:
    """The counters of a scope beside what is stored. ``trees``: the scope's, whose nodes are born at its clock."""
    low, high = scope_pk << KEY_BITS, scope_pk << KEY_BITS | KEY_MASK
    row = one_row(
        db,
        "SELECT next_publication, next_document, clock, epoch,"
        " (SELECT max(document_key) FROM document WHERE document_key BETWEEN :low AND :high),"
        " (SELECT max(max(born, coalesce(retired_clock, 0))) FROM publication WHERE publication_key BETWEEN :low AND"
        " :high),"
        " (SELECT max(moment_key) FROM moment WHERE moment_key BETWEEN :low AND :high),"
        " (SELECT max(epoch) FROM removal WHERE scope_pk = :scope) FROM scope WHERE scope_pk = :scope",
        {"scope": scope_pk, "low": low, "high": high},
    )
    assert row is not None, "the scope of a handle exists"
    newest = max(row[5] or 0, (row[6] or 0) & KEY_MASK)
    for tree in trees:
        born = one_value(
            db,
            "SELECT max(born) FROM node WHERE node_key BETWEEN :low AND :high",
            {"low": tree << KEY_BITS, "high": tree << KEY_BITS | KEY_MASK},
        )
        newest = max(newest, (born or 1) - 1)  # the clock moves only where a pin may see something new
    return Counters(
        row[0],
        row[1],
        row[2],
        row[3],
        highest_publication(db, scope_pk),
        0 if row[4] is None else (row[4] & KEY_MASK) + 1,
        newest,
        row[7] or 0,
    )


def wrong_moments(db: Connection, scope_pk: int) -> list[int]:
    """Clocks whose marks lie beyond what there is, or above those of a later one."""
    return [
        row[0] & KEY_MASK
        for row in all_rows(
            db,
            "SELECT moment_key FROM (SELECT moment_key, moment.publications AS p, moment.documents AS d,"
            " lead(moment.publications, 1, next_publication) OVER later AS later_p,"
            " lead(moment.documents, 1, next_document) OVER later AS later_d"
            " FROM moment JOIN scope ON scope_pk = :scope WHERE moment_key BETWEEN :low AND :high"
            " WINDOW later AS (ORDER BY moment_key)) WHERE p > later_p OR d > later_d LIMIT 50",
            {"scope": scope_pk, "low": scope_pk << KEY_BITS, "high": scope_pk << KEY_BITS | KEY_MASK},
        )
    ]


def recipe_counts(db: Connection, scope_pk: int) -> dict[int, int]:
    """What each recipe of a scope says how many current nodes it made; joins are not counted."""
    return dict(
        all_rows(
            db,
            "SELECT recipe_pk, nodes FROM recipe WHERE scope_pk = :scope AND kind <> 'join'",
            {"scope": scope_pk},
        )
    )


def recipes_of_kind(db: Connection, scope_pk: int, kind: str) -> list[int]:
    """The recipes of a kind, whatever their counters say."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT recipe_pk FROM recipe WHERE scope_pk = :scope AND kind = :kind",
            {"scope": scope_pk, "kind": kind},
        )
    ]


def count_by_recipe(db: Connection, trees: Iterable[int]) -> dict[int, int]:
    """How many current nodes of these trees each recipe made."""
    found: dict[int, int] = {}
    for tree in trees:
        for recipe, count in all_rows(
            db,
            "SELECT recipe_pk, count(*) FROM node WHERE node_key BETWEEN :low AND :high AND state = 0"
            " GROUP BY recipe_pk",
            {"low": tree << KEY_BITS, "high": tree << KEY_BITS | KEY_MASK},
        ):
            found[recipe] = found.get(recipe, 0) + count
    return found


# ---- pins ------------------------------------------------------------------------------------------------------------


@frozen
class Pin:
    """What an open turn pinned."""

    turn_pk: int
    segment_pk: int
    start_seq: int
    publications: int
    documents: int
    clock: int
    own_end: int
    shared_levels: bytes
    own_levels: bytes


def open_pins(db: Connection, scope_pk: int) -> list[Pin]:
    """What the open and suspended turns of a scope pinned, newest pins last."""
    return [
        Pin(*row)
        for row in all_rows(
            db,
            "SELECT turn.turn_pk, segment_pk, start_seq, publications, documents, clock, own_end,"
            " turn_descriptor.shared_levels, turn_descriptor.own_levels FROM turn JOIN turn_descriptor USING (turn_pk)"
            " WHERE scope_pk = :scope AND state <> 'ended'",
            {"scope": scope_pk},
        )
    ]
