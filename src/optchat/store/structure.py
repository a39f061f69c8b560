"""
Queries that only verification needs: the file itself, and what sessions, generations, segments and turns rest on.

Decides: how contradictions between them are found.
Refuses to know: which of them are faults.
"""

from __future__ import annotations

from functools import lru_cache

import apsw
from attrs import frozen

from optchat.store.migrate import FORMAT
from optchat.store.rows import Connection, Row, all_rows, one_row, one_value, with_flags

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
