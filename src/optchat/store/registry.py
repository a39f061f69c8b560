"""
The registry: sessions, generations, segments.

Decides: how conversations and the storage under them are stored and found.
Refuses to know: what was said, and who may see it.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import Chain, Link
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.store.rows import Connection, Row, all_rows, insert, one_row, one_value, run, with_flags


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
    "SELECT session.session_pk, session_id, scope_pk, host, key, generation, generation_pk, segment_pk, state,"
    " isolated, title, project_pk, worktree, commit_id, created_at"
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
    row = one_row(db, _SESSION + "WHERE session_id = :id AND scope_pk = :scope", {"id": session_id, "scope": scope_pk})
    return None if row is None else _session(row)


def session_by_pk(db: Connection, session_pk: int) -> SessionRow:
    row = one_row(db, _SESSION + "WHERE session.session_pk = :pk", {"pk": session_pk})
    assert row is not None, "a stored key names a session"
    return _session(row)


def session_of_generation(db: Connection, generation_pk: int) -> tuple[SessionRow, int]:
    """The session that a generation belongs to, and that generation's number."""
    row = one_row(db, "SELECT session_pk, number FROM generation WHERE generation_pk = :pk", {"pk": generation_pk})
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
        "INSERT INTO session (session_id, scope_pk, host, key, isolated, title, project_pk, worktree, commit_id,"
        " created_at) VALUES (:id, :scope, :host, :key, :isolated, :title, :project, :worktree, :commit_id, :at)",
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
                f"UPDATE session SET {column} = :value WHERE session_pk = :pk",
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
    row = one_row(db, "SELECT segment_pk, ended_length FROM segment WHERE tree_pk = :tree", {"tree": tree_pk})
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
