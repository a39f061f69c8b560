"""
What is due: nodes that should be there or have a job, jobs, and what they wait for.

Decides: how what is missing is found, and how jobs that nothing will wake are.
Refuses to know: what makes a node due, and how a fault is repaired.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from optchat.core.jobs import KIND_NUMBER, KINDS, JobKind
from optchat.store.rows import Connection, all_rows, keys, one_value, with_flags

# ---- nodes -----------------------------------------------------------------------------------------------------------


def long_records(db: Connection, low: int, high: int) -> list[int]:
    """Records with a key in ``[low, high)`` that are too long for a verbatim leaf, and not hidden."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM record WHERE record_key >= :low AND record_key < :high AND leaf_escaped IS NULL"
            " AND state = 0",
            {"low": low, "high": high},
        )
    ]


def present(db: Connection, node_keys: Iterable[int]) -> set[int]:
    """Those of the positions that have a node, hidden ones included."""
    return {
        row[0]
        for row in all_rows(
            db,
            "SELECT node_key FROM node WHERE node_key IN (SELECT value FROM carray(:keys))",
            {"keys": keys(node_keys)},
        )
    }


def with_job(db: Connection, kinds: Iterable[JobKind], subjects: Iterable[int]) -> set[int]:
    """Those of the subjects that a job of one of these kinds is for, in whatever state."""
    wanted = keys(subjects)
    return {
        row[0]
        for kind in kinds
        for row in all_rows(
            db,
            "SELECT subject FROM job WHERE kind = :kind AND subject IN (SELECT value FROM carray(:subjects))",
            {"kind": KIND_NUMBER[kind], "subjects": wanted},
        )
    }


def has_view(db: Connection, tree_pk: int) -> bool:
    return bool(one_value(db, "SELECT EXISTS (SELECT 1 FROM view WHERE tree_pk = :tree)", {"tree": tree_pk}))


# ---- publications ----------------------------------------------------------------------------------------------------


@frozen
class Unpublished:
    """An ended turn that is to be published; ``too_late``: a later one of its generation is published already."""

    turn_pk: int
    segment_pk: int
    start_seq: int
    too_late: bool


def unpublished_without_job(db: Connection, scope_pk: int, limit: int = 50) -> list[Unpublished]:
    """
    Ended turns that should be published, are not, and have no job.

    Turns whose publication was retired or removed are not published again by themselves; nor are those that a share
    left out.
    """
    return [
        Unpublished(*with_flags(row, 3))
        for row in all_rows(
            db,
            "SELECT turn_pk, turn.segment_pk, start_seq, EXISTS (SELECT 1 FROM publication AS p JOIN turn AS later"
            " ON later.turn_pk = p.turn_pk WHERE p.generation_pk = turn.generation_pk AND later.ordinal > turn.ordinal)"
            " FROM turn"
            " JOIN generation ON generation.generation_pk = turn.generation_pk"
            " JOIN session ON session.session_pk = generation.session_pk"
            " WHERE turn.scope_pk = :scope AND turn.state = 'ended' AND publication_key IS NULL AND inherited = 0"
            " AND end_seq > start_seq AND isolated = 0 AND session.state NOT IN ('revoked', 'deleted')"
            " AND session.revoked = 0 AND turn.removed = 0 AND superseded_clock IS NULL AND ordinal >= shared_from"
            " AND NOT EXISTS (SELECT 1 FROM publication WHERE publication.turn_pk = turn.turn_pk)"
            " AND NOT EXISTS (SELECT 1 FROM job WHERE job.kind = 3 AND job.subject = turn.turn_pk)"
            " ORDER BY turn.generation_pk, ordinal LIMIT :limit",
            {"scope": scope_pk, "limit": limit},
        )
    ]


# ---- jobs ------------------------------------------------------------------------------------------------------------


@frozen
class JobState:
    """A job as it stands, with what it waits for counted: ``waits`` rows, of which ``there`` have landed already."""

    job_pk: int
    kind: JobKind
    subject: int
    tree_pk: int
    position: int
    state: int
    missing: int
    waits: int
    there: int


# Of a waiter: whether what it waits for is there. A remake waits for the remake of a node that is there; any other job,
# for a node that is not; both, on tree 0, for a turn's publication.
_LANDED = (
    "CASE WHEN w.needs >> 40 THEN EXISTS (SELECT 1 FROM node WHERE node.node_key = w.needs AND node.state = 0)"
    " AND (job.kind <> 5 OR NOT EXISTS (SELECT 1 FROM job AS other WHERE other.kind = 5 AND other.subject = w.needs))"
    " ELSE EXISTS (SELECT 1 FROM publication AS p WHERE p.turn_pk = w.needs AND p.state = 0"
    " AND p.retired_clock IS NULL) END"
)


def jobs_after(db: Connection, scope_pk: int, after: int, limit: int) -> list[JobState]:
    """The jobs of a scope by key, from the one after a key."""
    return [
        JobState(row[0], KINDS[row[1]], *row[2:])
        for row in all_rows(
            db,
            "SELECT job_pk, kind, subject, tree_pk, position, state, missing,"
            " (SELECT count(*) FROM waiter WHERE waiter.job_pk = job.job_pk),"
            f" (SELECT count(*) FROM waiter AS w WHERE w.job_pk = job.job_pk AND {_LANDED})"
            " FROM job WHERE job_pk > :after AND scope_pk = :scope ORDER BY job_pk LIMIT :limit",
            {"after": after, "scope": scope_pk, "limit": limit},
        )
    ]


def stalled_trees(db: Connection, scope_pk: int) -> list[int]:
    """Trees of which leaves wait to be admitted while none is, so that none ever will be."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT DISTINCT tree_pk FROM job AS waiting WHERE scope_pk = :scope AND tree_pk > 0 AND state = 0"
            " AND missing = 0 AND NOT EXISTS (SELECT 1 FROM job WHERE job.tree_pk = waiting.tree_pk"
            " AND job.tree_pk > 0 AND job.state IN (1, 2))",
            {"scope": scope_pk},
        )
    ]


def job_count(db: Connection, scope_pk: int) -> int:
    return int(one_value(db, "SELECT count(*) FROM job WHERE scope_pk = :scope", {"scope": scope_pk}))


def needs_of(db: Connection, job_pk: int) -> list[int]:
    """What a job waits for."""
    return [row[0] for row in all_rows(db, "SELECT needs FROM waiter WHERE job_pk = :job", {"job": job_pk})]


def landed(db: Connection, job_pk: int) -> list[int]:
    """Those of the things that a job waits for that are there."""
    return [
        row[0]
        for row in all_rows(
            db,
            f"SELECT w.needs FROM waiter AS w JOIN job ON job.job_pk = w.job_pk WHERE w.job_pk = :job AND {_LANDED}",
            {"job": job_pk},
        )
    ]
