"""
The registry: sessions, generations, segments.

Decides: how conversations and the storage under them are stored and found.
Refuses to know: what was said, and who may see it.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import Base, Chain, Link
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
    archived: int  # the clock from which on it is; 0: it is not
    revoked: bool
    shared_from: int
    host_messages: int | None
    behind_since: int | None


NO_BASE = Base(None, 0)


@frozen
class SegmentOver:
    """A segment that rests on another: from where on its records are its own, and where its present history ends."""

    segment_pk: int
    base_length: int
    current_length: int | None


_COLUMNS = (
    "SELECT session.session_pk, session_id, scope_pk, host, key, number, generation_pk, segment_pk, state, isolated,"
    " title, project_pk, worktree, commit_id, created_at, archived, revoked, shared_from, host_messages, behind_since"
)
_SESSION = (
    f"{_COLUMNS} FROM session JOIN generation ON generation.session_pk = session.session_pk AND number = generation "
)


def _session(row: Row) -> SessionRow:
    return SessionRow(*with_flags(row, 9, 16))


def find_session(db: Connection, scope_pk: int, host: str, key: str) -> SessionRow | None:
    row = one_row(
        db,
        _SESSION + "WHERE scope_pk = :scope AND host = :host AND key = :key AND current = 1",
        {"scope": scope_pk, "host": host, "key": key},
    )
    return None if row is None else _session(row)


def session_by_id(db: Connection, scope_pk: int, session_id: str) -> SessionRow | None:
    """A session of this scope; another scope's id finds nothing, nor does a deleted one's, as an unknown one does."""
    row = one_row(
        db,
        _SESSION + "WHERE session_id = :id AND scope_pk = :scope AND state <> 'deleted'",
        {"id": session_id, "scope": scope_pk},
    )
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


def session_as_of(db: Connection, generation_pk: int) -> SessionRow:
    """A session with one of its generations in the place of the current one: as a turn of it has it."""
    row = one_row(
        db,
        f"{_COLUMNS} FROM generation JOIN session ON session.session_pk = generation.session_pk"
        " WHERE generation_pk = :pk",
        {"pk": generation_pk},
    )
    assert row is not None, "a stored key names a generation"
    return _session(row)


def has_begun(db: Connection, session_pk: int, number: int, clock: int) -> bool:
    """Whether a session's generation was there already under a clock."""
    if not number:
        return True
    value = one_value(
        db,
        "SELECT superseded_clock FROM generation WHERE session_pk = :session AND number = :before",
        {"session": session_pk, "before": number - 1},
    )
    return value is not None and int(value) <= clock


def session_at(db: Connection, session_pk: int, clock: int) -> SessionRow:
    """A session with the generation that was the current one under a clock: a rewind begins the next one at a tick."""
    row = one_row(
        db,
        "SELECT generation_pk FROM generation WHERE session_pk = :session"
        " AND (superseded_clock IS NULL OR superseded_clock > :clock) ORDER BY number LIMIT 1",
        {"session": session_pk, "clock": clock},
    )
    assert row is not None, "the newest generation is not superseded"
    return session_as_of(db, row[0])


def generation_of(db: Connection, session_pk: int, number: int) -> tuple[int, int] | None:
    """(generation_pk, segment_pk) of a session's generation."""
    row = one_row(
        db,
        "SELECT generation_pk, segment_pk FROM generation WHERE session_pk = :session AND number = :number",
        {"session": session_pk, "number": number},
    )
    return None if row is None else (row[0], row[1])


def kept_length(db: Connection, segment_pk: int) -> int | None:
    """Up to where forks still need a segment whose session was deleted. None: it was not, and has its own view."""
    value = one_value(db, "SELECT kept_length FROM segment WHERE segment_pk = :segment", {"segment": segment_pk})
    return None if value is None else int(value)


def generations(db: Connection, session_pk: int) -> list[int]:
    """Every generation of a session, in order."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT generation_pk FROM generation WHERE session_pk = :session ORDER BY number",
            {"session": session_pk},
        )
    ]


def segment_of_generation(db: Connection, generation_pk: int) -> int:
    return int(
        one_value(
            db, "SELECT segment_pk FROM generation WHERE generation_pk = :generation", {"generation": generation_pk}
        )
    )


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
    revoked: bool = False,
    base: Base = NO_BASE,
) -> SessionRow:
    """Insert a session with its generation 0: on a segment of its own, over a base if it is a fork."""
    session_pk = insert(
        db,
        "INSERT INTO session (session_id, scope_pk, host, key, isolated, title, project_pk, worktree, commit_id,"
        " created_at, revoked) VALUES (:id, :scope, :host, :key, :isolated, :title, :project, :worktree, :commit_id,"
        " :at, :revoked)",
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
            "revoked": int(revoked),
        },
    )
    _insert_generation(db, session_pk, 0, _insert_segment(db, scope_pk, base))
    return session_by_pk(db, session_pk)


def begin_generation(db: Connection, session: SessionRow, base: Base, clock: int) -> SessionRow:
    """The session's next generation, on a new segment over a base; the current one is superseded from a clock on."""
    run(
        db,
        "UPDATE generation SET superseded_clock = :clock WHERE generation_pk = :generation",
        {"clock": clock, "generation": session.generation_pk},
    )
    _insert_generation(db, session.session_pk, session.generation + 1, _insert_segment(db, session.scope_pk, base))
    run(
        db,
        "UPDATE session SET generation = generation + 1, shared_from = 0 WHERE session_pk = :session",
        {"session": session.session_pk},
    )
    return session_by_pk(db, session.session_pk)


def _insert_segment(db: Connection, scope_pk: int, base: Base) -> int:
    """A segment with its tree and an empty view. What it rests on has ended, so that its view may cover it."""
    tree = insert(db, "INSERT INTO tree (scope_pk, kind) VALUES (:scope, 'session')", {"scope": scope_pk})
    run(
        db,
        "INSERT INTO view (tree_pk, revision, length, levels, shrinking) VALUES (:tree, 0, 0, x'', 0)",
        {"tree": tree},
    )
    return insert(
        db,
        "INSERT INTO segment (scope_pk, tree_pk, base_segment, base_length, ended_length)"
        " VALUES (:scope, :tree, :base, :length, :length)",
        {
            "scope": scope_pk,
            "tree": tree,
            "base": base.segment,
            "length": base.length,
        },
    )


def _insert_generation(db: Connection, session_pk: int, number: int, segment_pk: int) -> None:
    run(
        db,
        "INSERT INTO generation (session_pk, number, segment_pk) VALUES (:session, :number, :segment)",
        {"session": session_pk, "number": number, "segment": segment_pk},
    )


def base_of(db: Connection, session_pk: int, number: int) -> Base:
    """What the segment of a session's generation rests on."""
    row = one_row(
        db,
        "SELECT base_segment, base_length FROM generation JOIN segment ON segment.segment_pk = generation.segment_pk"
        " WHERE session_pk = :session AND number = :number",
        {"session": session_pk, "number": number},
    )
    return NO_BASE if row is None else Base(*row)


def segments_over(db: Connection, segment_pk: int) -> list[SegmentOver]:
    """The segments that rest on this one, at whatever length."""
    return [
        SegmentOver(*row)
        for row in all_rows(
            db,
            "SELECT segment_pk, base_length, current_length FROM segment WHERE base_segment = :segment",
            {"segment": segment_pk},
        )
    ]


def set_current_length(db: Connection, segment_pk: int, length: int | None) -> None:
    """From which of its records on a segment is on no session's present history; None: all of it is on one's."""
    run(
        db,
        "UPDATE segment SET current_length = :length WHERE segment_pk = :segment",
        {"length": length, "segment": segment_pk},
    )


def is_current(db: Connection, segment_pk: int) -> bool:
    """Whether a segment is that of a session's present generation."""
    return (
        one_row(
            db,
            "SELECT 1 FROM generation JOIN session ON session.session_pk = generation.session_pk"
            " WHERE segment_pk = :segment AND superseded_clock IS NULL AND state <> 'deleted'",
            {"segment": segment_pk},
        )
        is not None
    )


def holder_of(db: Connection, segment_pk: int, end: int) -> tuple[int, int, int] | None:
    """
    (generation_pk, session_pk, number) of a present generation that has the records below ``end`` of a segment: that of
    the segment itself, else of the same session, else of a fork. None: they were rewound.
    """
    own = generation_of_segment(db, segment_pk)
    if own is not None and is_current(db, segment_pk):
        return own
    held = [found for over in segments_on(db, segment_pk, end) if (found := holder_of(db, over, end)) is not None]
    return min(held, key=lambda found: (own is None or found[1] != own[1], found[1]), default=None)


def set_archived(db: Connection, session_pk: int, clock: int) -> None:
    """From a clock on it is hidden from discovery; 0: it is not."""
    run(
        db,
        "UPDATE session SET archived = :clock WHERE session_pk = :session",
        {"clock": clock, "session": session_pk},
    )


def set_sharing(db: Connection, session_pk: int, *, revoked: bool, shared_from: int) -> None:
    """Whether a session's turns are published, and from which ordinal of the present generation on."""
    run(
        db,
        "UPDATE session SET revoked = :revoked, shared_from = :ordinal WHERE session_pk = :session",
        {"revoked": int(revoked), "ordinal": shared_from, "session": session_pk},
    )


def make_way(db: Connection, session_pk: int) -> None:
    """Another session may be begun under the (host, key) of this one, which is found by its id from now on."""
    run(db, "UPDATE session SET current = 0 WHERE session_pk = :session", {"session": session_pk})


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


def list_sessions(
    db: Connection, scope_pk: int, *, after: int, limit: int, archived: bool, clock: int
) -> list[SessionRow]:
    """
    Sessions in the order in which they were made, from the one after a key.

    Args:
        archived: also those that are archived. clock: the reader's: what was archived after it, is not.
    """
    return [
        _session(row)
        for row in all_rows(
            db,
            _SESSION + "WHERE session.session_pk > :after AND scope_pk = :scope AND state <> 'deleted'"
            " AND (archived = 0 OR archived > :clock OR :archived) ORDER BY session.session_pk LIMIT :limit",
            {"after": after, "scope": scope_pk, "archived": int(archived), "clock": clock, "limit": limit},
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
        if at is not None and at >= row[0]:  # a base is made before what rests on it: this would go round for ever
            raise IntegrityError(f"segment {row[0]} rests on {at}; run verify() to see what rests on it")
    return Chain(tuple(links), *_generation_and_boundary(db, segment_pk))


def _generation_and_boundary(db: Connection, segment_pk: int) -> tuple[int, int | None]:
    """A segment's generation, and the lowest length that its session was rewound to up to then."""
    generation = generation_of_segment(db, segment_pk)
    if generation is None:
        return 0, None
    _pk, session_pk, number = generation
    lowest = one_value(
        db,
        "SELECT min(base_length) FROM generation JOIN segment ON segment.segment_pk = generation.segment_pk"
        " WHERE session_pk = :session AND number BETWEEN 1 AND :number",
        {"session": session_pk, "number": number},
    )
    return number, None if lowest is None else int(lowest)


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
