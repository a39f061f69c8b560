"""
Queries that only verification needs: the file, sessions, records, publications, removals, counters.

Decides: how contradictions between tables are found.
Refuses to know: which of them are faults.

The search index is in :mod:`optchat.store.shadow`, the queue and the trees in :mod:`optchat.store.due`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import apsw
from attrs import frozen

from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.store.migrate import FORMAT
from optchat.store.publications import PublicationRow, load_publications
from optchat.store.rows import Connection, Row, all_rows, keys, one_row, one_value, with_flags

_PIECES_A_STEP = 64  # of 64 KiB: what is hashed at once


# ---- the file --------------------------------------------------------------------------------------------------------


def sqlite_faults(db: Connection) -> tuple[list[str], list[str]]:
    """What SQLite's own checks say of the file, and of the search index in it."""
    found: list[str] = []
    try:
        # FTS5 checks with the structure that this connection read last, which another process may have moved on from:
        # without a search in this very transaction, 41 of 300 checks beside a writer reported a corruption that was
        # none (tried).
        one_row(db, "SELECT rowid FROM words WHERE words MATCH 'place : k0' LIMIT 1")
    except apsw.CorruptError as error:
        found.append(str(error))
    try:
        found += [str(row[0]) for row in all_rows(db, "PRAGMA integrity_check(20)") if row[0] != "ok"]
    except apsw.CorruptError as error:
        found.append(str(error))
    index = [message for message in found if "fts5" in message.lower() or "words" in message]
    return [message for message in found if message not in index], index


def schema_faults(db: Connection) -> list[str]:
    """Where the file's tables, columns and indexes are not those of its version."""
    found = _schema(db)
    return sorted(
        f"{kind} {name} is {'not as it should be' if (kind, name) in found else 'missing'}"
        for (kind, name), what in _expected_schema().items()
        if found.get((kind, name)) != what
    )


def _schema(db: Connection) -> dict[tuple[str, str], object]:
    """Tables with their columns, and indexes with their conditions. A table's SQL is not compared: ALTER edits it."""
    found: dict[tuple[str, str], object] = {}
    for kind, name, sql in all_rows(db, "SELECT type, name, sql FROM sqlite_schema"):
        if kind == "table":
            columns = all_rows(db, "SELECT name, type, pk FROM pragma_table_xinfo(:name) ORDER BY name", {"name": name})
            found[kind, name] = columns
        else:
            found[kind, name] = None if sql is None else " ".join(sql.split())
    return found


@lru_cache(maxsize=1)
def _expected_schema() -> dict[tuple[str, str], object]:
    db = apsw.Connection(":memory:")
    try:
        db.execute(FORMAT.schema_sql)
        return _schema(db)
    finally:
        db.close()


def dangling(db: Connection) -> list[str]:
    """Foreign keys that point nowhere, the first twenty."""
    return [
        f"a row of {row[0]} names a missing row of {row[2]}"
        for row in all_rows(db, "SELECT * FROM pragma_foreign_key_check LIMIT 20")
    ]


# ---- lifecycle -------------------------------------------------------------------------------------------------------


@frozen
class SegmentRow:
    """A segment as stored."""

    segment_pk: int
    tree_pk: int
    base_segment: int | None
    base_length: int
    kept_length: int | None
    ended_length: int
    base_scope: int | None  # the scope of the base, where there is one
    tree_kind: str | None  # None: the tree is missing
    has_view: bool


def segment_name(db: Connection, segment_pk: int) -> tuple[str, int] | None:
    """(session id, generation) of a segment, whatever else is wrong with its session."""
    row = one_row(
        db,
        "SELECT session_id, number FROM generation JOIN session ON session.session_pk = generation.session_pk"
        " WHERE segment_pk = :segment",
        {"segment": segment_pk},
    )
    return None if row is None else (row[0], row[1])


def shared_from(db: Connection, generation_pk: int) -> int:
    """From which of its turns on a generation is published; of one that was superseded, all that were ended before."""
    value = one_value(
        db,
        "SELECT CASE WHEN number = generation THEN shared_from ELSE 0 END FROM generation"
        " JOIN session ON session.session_pk = generation.session_pk WHERE generation_pk = :generation",
        {"generation": generation_pk},
    )
    return int(value or 0)


def segments(db: Connection, scope_pk: int) -> list[SegmentRow]:
    """Every segment of a scope, bases first."""
    return [
        SegmentRow(*with_flags(row, 8))
        for row in all_rows(
            db,
            "SELECT s.segment_pk, s.tree_pk, s.base_segment, s.base_length, s.kept_length, s.ended_length,"
            " (SELECT b.scope_pk FROM segment AS b WHERE b.segment_pk = s.base_segment),"
            " (SELECT t.kind FROM tree AS t WHERE t.tree_pk = s.tree_pk AND t.scope_pk = s.scope_pk),"
            " EXISTS (SELECT 1 FROM view AS v WHERE v.tree_pk = s.tree_pk)"
            " FROM segment AS s WHERE s.scope_pk = :scope ORDER BY s.segment_pk",
            {"scope": scope_pk},
        )
    ]


def ends_a_turn(db: Connection, segment_pk: int, length: int) -> bool:
    """Whether a turn of the segment ends just there, or its own part begins there."""
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM turn WHERE segment_pk = :segment AND end_seq = :length)"
            " OR EXISTS (SELECT 1 FROM segment WHERE segment_pk = :segment AND base_length = :length)",
            {"segment": segment_pk, "length": length},
        )
    )


@frozen
class SessionState:
    """A session with its generations as (number, is superseded), in order."""

    session_pk: int
    session_id: str
    generation: int
    state: str
    revoked: bool
    generations: tuple[tuple[int, bool], ...]


def session_states(db: Connection, scope_pk: int) -> list[SessionState]:
    """Every session of a scope."""
    found: dict[int, Row] = {}
    numbers: dict[int, list[tuple[int, bool]]] = {}
    for row in all_rows(
        db,
        "SELECT session.session_pk, session_id, generation, state, revoked, number, superseded_clock IS NOT NULL"
        " FROM session LEFT JOIN generation ON generation.session_pk = session.session_pk"
        " WHERE scope_pk = :scope ORDER BY session.session_pk, number",
        {"scope": scope_pk},
    ):
        found[row[0]] = row
        numbers.setdefault(row[0], [])
        if row[5] is not None:
            numbers[row[0]].append((row[5], bool(row[6])))
    return [SessionState(row[0], row[1], row[2], row[3], bool(row[4]), tuple(numbers[pk])) for pk, row in found.items()]


@frozen
class TurnSpan:
    """Where a turn lies."""

    turn_pk: int
    turn_id: str
    generation_pk: int
    start_seq: int
    end_seq: int | None
    removed: int
    own_segment: bool  # whether its generation is that of its segment


def turn_spans(db: Connection, segment_pk: int, *, after: tuple[int, int], limit: int) -> list[TurnSpan]:
    """The turns of a segment in order, from the one after a (start, turn)."""
    return [
        TurnSpan(*with_flags(row, 6))
        for row in all_rows(
            db,
            "SELECT turn_pk, turn_id, generation_pk, start_seq, end_seq, removed, (SELECT g.segment_pk FROM generation"
            " AS g WHERE g.generation_pk = turn.generation_pk) IS segment_pk FROM turn WHERE segment_pk = :segment"
            " AND (start_seq, turn_pk) > (:start, :turn) ORDER BY start_seq, turn_pk LIMIT :limit",
            {"segment": segment_pk, "start": after[0], "turn": after[1], "limit": limit},
        )
    ]


def ended_length(db: Connection, segment_pk: int) -> int | None:
    """Where the ended turns of a segment end; None: it has none."""
    value = one_value(
        db,
        "SELECT max(end_seq) FROM turn WHERE segment_pk = :segment AND state = 'ended'",
        {"segment": segment_pk},
    )
    return None if value is None else int(value)


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
