"""
The queue: jobs, leases and waiters.

Decides: how jobs are stored and claimed. A claim reads only the index of ready jobs.
Refuses to know: what a job's work is.

The contract of a claim: a claimed job carries a fence that no other claim of it has had. A result is taken only under
that fence (``finish`` and ``give_back`` change nothing otherwise). Leases make progress likely; the fence alone makes
it safe.

The indexes of ready, leased and failed jobs are named in what reads them: left to itself SQLite takes that of all jobs
of a scope, and each look would grow with the backlog.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from optchat.core.jobs import FAILED, INDEX, KIND_NUMBER, KINDS, LEASED, PRIORITY, READY, WAITING, JobKind
from optchat.core.refs import KEY_BITS
from optchat.store.rows import Connection, Row, all_rows, insert, keys, one_row, one_value, run


@frozen
class JobRow:
    """A job under a lease: ``fence`` is what its result is taken by."""

    job_pk: int
    scope_pk: int
    kind: JobKind
    subject: int
    tree_pk: int
    position: int
    fence: int
    attempts: int
    created_at: int
    priority: int = 0
    troubled_at: int | None = None


_JOB = "job_pk, scope_pk, kind, subject, tree_pk, position, fence, attempts, created_at, priority, troubled_at"
_JOB_COLUMNS = _JOB.count(",") + 1


def _job(row: Row) -> JobRow:
    return JobRow(row[0], row[1], KINDS[row[2]], *row[3:])


def add_job(
    db: Connection,
    *,
    scope_pk: int,
    kind: JobKind,
    subject: int,
    needs: Iterable[int] = (),
    at: int,
    admission_tree: int = 0,
    position: int = 0,
    admitted: bool = True,
    priority: int | None = None,
) -> int:
    """
    Insert a job, ready if it needs nothing more.

    Args:
        needs: node keys (of any tree) and turns that must land or be published first; a landing wakes exactly those who
        wait. admission_tree: for leaves: only a few of a tree are ready at a time; ``admitted`` says whether this one
        is. priority: None is the kind's own.
    """
    waits = list(dict.fromkeys(needs))
    job = insert(
        db,
        "INSERT INTO job (scope_pk, kind, subject, tree_pk, position, state, missing, priority, due_at, created_at)"
        " VALUES (:scope, :kind, :subject, :tree, :position, :state, :missing, :priority, :at, :at)",
        {
            "scope": scope_pk,
            "kind": KIND_NUMBER[kind],
            "subject": subject,
            "tree": admission_tree,
            "position": position,
            "state": READY if admitted and not waits else WAITING,
            "missing": len(waits),
            "priority": PRIORITY[kind] if priority is None else priority,
            "at": at,
        },
    )
    for need in waits:
        run(db, "INSERT INTO waiter (needs, job_pk) VALUES (:needs, :job)", {"needs": need, "job": job})
    return job


def admitted_in_tree(db: Connection, tree_pk: int) -> int:
    """How many leaf jobs of a tree are ready or leased."""
    # "> 0" says nothing new, but without it the index of admission, which is partial, is not used.
    return int(
        one_value(
            db,
            "SELECT count(*) FROM job WHERE tree_pk = :tree AND tree_pk > 0 AND state IN (1, 2)",
            {"tree": tree_pk},
        )
    )


def promote(db: Connection, tree_pk: int, window: int) -> None:
    """Make the next waiting leaves of a tree ready, up to its window."""
    room = window - admitted_in_tree(db, tree_pk)
    if room > 0:
        run(
            db,
            "UPDATE job SET state = 1 WHERE job_pk IN (SELECT job_pk FROM job WHERE tree_pk = :tree AND tree_pk > 0"
            " AND state = 0 AND missing = 0 ORDER BY position LIMIT :room)",
            {"tree": tree_pk, "room": room},
        )


def awaited(db: Connection, landed: Iterable[int]) -> frozenset[int]:
    """Those of what landed that some job waits for: nearly always none."""
    return frozenset(
        row[0]
        for row in all_rows(
            db, "SELECT needs FROM waiter WHERE needs IN (SELECT value FROM carray(:landed))", {"landed": keys(landed)}
        )
    )


def wake(db: Connection, needs: int) -> list[JobRow]:
    """Something landed: the waiting jobs for which it was the last thing missing. They are still ``waiting``."""
    jobs = [row[0] for row in all_rows(db, "SELECT job_pk FROM waiter WHERE needs = :needs", {"needs": needs})]
    if not jobs:
        return []
    run(db, "DELETE FROM waiter WHERE needs = :needs", {"needs": needs})
    woken: list[JobRow] = []
    for job in jobs:
        row = one_row(
            db,
            f"UPDATE job SET missing = missing - 1 WHERE job_pk = :job RETURNING {_JOB}, missing",
            {"job": job},
        )
        if row is not None and row[_JOB_COLUMNS] == 0:
            woken.append(_job(row[:_JOB_COLUMNS]))
    return woken


def wait_instead(db: Connection, needs: int, instead: int) -> None:
    """What was to land never will: whoever waits for it waits for something else, which they did not wait for yet."""
    run(db, "UPDATE waiter SET needs = :instead WHERE needs = :needs", {"needs": needs, "instead": instead})


def job_with_all(db: Connection, kind: JobKind, subject: int) -> JobRow | None:
    """The job of a kind for a subject, in whatever state, if it misses nothing that it needs."""
    row = one_row(
        db,
        f"SELECT {_JOB} FROM job WHERE kind = :kind AND subject = :subject AND missing = 0",
        {"kind": KIND_NUMBER[kind], "subject": subject},
    )
    return None if row is None else _job(row)


def make_ready(db: Connection, job_pk: int) -> None:
    run(db, "UPDATE job SET state = 1 WHERE job_pk = :job AND state = 0", {"job": job_pk})


def remove_job(db: Connection, job_pk: int) -> None:
    """A job that is done, or that joined without a call. Its waiters go with it."""
    run(db, "DELETE FROM job WHERE job_pk = :job", {"job": job_pk})


# No job is put off for so long: one that is due later was written down before a clock was set back.
_FAR_US = 600 * 1_000_000
_DUE = "NOT (due_at > :now AND due_at <= :far)"
_ONLY_INDEX = f" AND priority = {PRIORITY['index']} AND kind = {INDEX}"


def _due_by(now: int) -> dict[str, int]:
    return {"now": now, "far": now + _FAR_US}


def claim(
    db: Connection,
    scope_pk: int,
    *,
    owner_pk: int,
    now: int,
    lease_until: int,
    limit: int,
    summaries: int,
    probing: bool = False,
) -> list[JobRow]:
    """
    Lease the next ready jobs of a scope.

    Args:
        limit: the most jobs. summaries: the most of them that need a summarizer; a worker whose summarizer may not work
        here still takes index jobs. probing: whether the provider is there again is to be found out, by a job that met
        with no trouble if there is one: first in order each time, one whose trouble is its own would stop all others.
    """
    chosen: list[int] = []
    if summaries > 0:
        first = "coalesce(troubled_at, 0), " if probing else ""
        rows = all_rows(
            db,
            f"SELECT job_pk, kind FROM job INDEXED BY job_ready WHERE scope_pk = :scope AND state = 1 AND {_DUE}"
            f" ORDER BY {first}priority, due_at, job_pk LIMIT :limit",
            _due_by(now) | {"scope": scope_pk, "limit": limit},
        )
        for job, kind in rows:
            if kind != INDEX:
                summaries -= 1
            if kind == INDEX or summaries >= 0:
                chosen.append(job)
    else:
        rows = all_rows(
            db,
            f"SELECT job_pk FROM job INDEXED BY job_ready WHERE scope_pk = :scope AND state = 1 AND {_DUE}{_ONLY_INDEX}"
            " ORDER BY priority, due_at, job_pk LIMIT :limit",
            _due_by(now) | {"scope": scope_pk, "limit": limit},
        )
        chosen = [row[0] for row in rows]
    claimed: list[JobRow] = []
    for job in chosen:
        row = one_row(
            db,
            f"UPDATE job SET state = 2, owner_pk = :owner, lease_until = :until, fence = fence + 1 WHERE job_pk = :job"
            f" RETURNING {_JOB}",
            {"job": job, "owner": owner_pk, "until": lease_until},
        )
        assert row is not None, "selected in this transaction"
        claimed.append(_job(row))
    return claimed


def renew(db: Connection, job_pk: int, fence: int, lease_until: int) -> bool:
    """Move the end of a lease; False where it is another's by now."""
    renewed = run(
        db,
        "UPDATE job SET lease_until = :until WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job_pk, "fence": fence, "until": lease_until},
    )
    return renewed > 0


def held(db: Connection, job: JobRow) -> bool:
    """Whether a lease is still the job's newest: what makes a late worker harmless."""
    return (
        one_row(
            db,
            "SELECT 1 FROM job WHERE job_pk = :job AND fence = :fence AND state = 2",
            {"job": job.job_pk, "fence": job.fence},
        )
        is not None
    )


@frozen
class Lease:
    """A lease as it stands: whose, until when (microseconds), and under which fence."""

    job_pk: int
    fence: int
    owner_pk: int
    until: int


def leases(db: Connection) -> list[Lease]:
    """Every lease, for upkeep to end those of dead owners."""
    return [Lease(*row) for row in all_rows(db, "SELECT job_pk, fence, owner_pk, lease_until FROM job WHERE state = 2")]


def end_lease(db: Connection, job_pk: int, fence: int) -> bool:
    """
    End a lease, whoever holds it; whether it was still that lease.

    The fence stays, so that a late result is refused. A lease that was taken meanwhile has another and is left alone.
    """
    ended = run(
        db,
        "UPDATE job SET state = 1, owner_pk = NULL WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job_pk, "fence": fence},
    )
    return ended > 0


def fail_attempt(db: Connection, job: JobRow, *, error: str, due_at: int, attempts: int) -> None:
    """A failed attempt: ready again at ``due_at``."""
    run(
        db,
        "UPDATE job SET state = 1, owner_pk = NULL, attempts = :attempts, last_error = :error, due_at = :due"
        " WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job.job_pk, "fence": job.fence, "attempts": attempts, "error": error[:500], "due": due_at},
    )


def postpone(db: Connection, job: JobRow, *, error: str, due_at: int, troubled_at: int) -> None:
    """Provider trouble: ready again at ``due_at``, with no attempt used up."""
    run(
        db,
        "UPDATE job SET state = 1, owner_pk = NULL, last_error = :error, due_at = :due, troubled_at = :troubled"
        " WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job.job_pk, "fence": job.fence, "error": error[:500], "due": due_at, "troubled": troubled_at},
    )


def note_trouble(db: Connection, job: JobRow, at: int) -> None:
    """A job's own trouble: answers from before it tell nothing of the next."""
    run(
        db,
        "UPDATE job SET troubled_at = :at WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job.job_pk, "fence": job.fence, "at": at},
    )


def exhaust(db: Connection, job: JobRow, *, error: str, attempts: int, at: int) -> None:
    """The last attempt failed, and the policy says to stop."""
    run(
        db,
        "UPDATE job SET state = 3, owner_pk = NULL, attempts = :attempts, last_error = :error, failed_at = :at"
        " WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job.job_pk, "fence": job.fence, "attempts": attempts, "error": error[:500], "at": at},
    )


def rearm(db: Connection, scope_pk: int, at: int, *, afresh: bool = True) -> int:
    """
    Make failed jobs ready again; how many.

    Args:
        afresh: with all their attempts; else with one more.
    """
    return run(
        db,
        "UPDATE job SET state = 1, attempts = CASE WHEN :afresh THEN 0 ELSE attempts END, due_at = :at,"
        " failed_at = NULL WHERE scope_pk = :scope AND state = 3",
        {"scope": scope_pk, "at": at, "afresh": int(afresh)},
    )


def hasten_retries(db: Connection, scope_pk: int, at: int) -> int:
    """Jobs that wait to be tried again after a failed attempt: due now, with all their attempts; how many."""
    return run(
        db,
        "UPDATE job SET attempts = 0, due_at = :at WHERE scope_pk = :scope AND state = 1 AND attempts > 0",
        {"scope": scope_pk, "at": at},
    )


def hurry(db: Connection, tree_pk: int, priority: int) -> None:
    """The next turn of a session waits for its leaves, and for the pages that some of these wait for."""
    behind = {"tree": tree_pk, "priority": priority}
    pages = all_rows(
        db,
        "SELECT DISTINCT needs >> 40 FROM waiter WHERE job_pk IN (SELECT job_pk FROM job WHERE tree_pk = :tree"
        " AND tree_pk > 0 AND state = 0 AND missing > 0 AND priority > :priority)",
        behind,
    )
    for (chunks,) in pages:
        run(
            db,
            "UPDATE job SET priority = :priority WHERE kind = :chunk AND subject >= :low AND subject < :high"
            " AND priority > :priority",
            {
                "priority": priority,
                "chunk": KIND_NUMBER["chunk"],
                "low": chunks << KEY_BITS,
                "high": (chunks + 1) << KEY_BITS,
            },
        )
    run(
        db,
        "UPDATE job SET priority = :priority WHERE tree_pk = :tree AND tree_pk > 0 AND priority > :priority",
        behind,
    )


def expand(db: Connection, job: JobRow, needs: Iterable[int]) -> None:
    """A leaf whose source is larger than the summarizer's window: it waits for its chunk tree's cover."""
    waits = list(needs)
    run(
        db,
        "UPDATE job SET state = 0, owner_pk = NULL, missing = :missing WHERE job_pk = :job AND fence = :fence AND"
        " state = 2",
        {"job": job.job_pk, "fence": job.fence, "missing": len(waits)},
    )
    for need in waits:
        run(db, "INSERT INTO waiter (needs, job_pk) VALUES (:needs, :job)", {"needs": need, "job": job.job_pk})


def advance_index(db: Connection, job: JobRow, position: int, *, keep_lease: bool) -> None:
    """An index job has done some pieces: its holder goes on, or whoever claims it next."""
    run(
        db,
        "UPDATE job SET state = CASE WHEN :keep THEN 2 ELSE 1 END, owner_pk = CASE WHEN :keep THEN owner_pk END,"
        " position = :position WHERE job_pk = :job AND fence = :fence AND state = 2",
        {"job": job.job_pk, "fence": job.fence, "position": position, "keep": keep_lease},
    )


def pending_publications(db: Connection, scope_pk: int) -> int:
    """
    The ended turns that are still to be published: each has a job from the moment on that it ended.

    Turns of isolated sessions have none, nor have turns without records: their rows are never looked at.
    """
    return int(
        one_value(
            db,
            "SELECT count(*) FROM job WHERE kind = :kind AND +scope_pk = :scope",
            {"kind": KIND_NUMBER["publication"], "scope": scope_pk},
        )
    )


@frozen
class QueueState:
    """A scope's queue, in figures; the time is microseconds."""

    pending: int
    running: int
    failed: int
    oldest: int | None


def queue_state(db: Connection, scope_pk: int) -> QueueState:
    counts: dict[int, int] = dict(
        all_rows(db, "SELECT state, count(*) FROM job WHERE scope_pk = :scope GROUP BY state", {"scope": scope_pk})
    )
    oldest = one_value(db, "SELECT min(created_at) FROM job WHERE scope_pk = :scope", {"scope": scope_pk})
    return QueueState(
        counts.get(WAITING, 0) + counts.get(READY, 0), counts.get(LEASED, 0), counts.get(FAILED, 0), oldest
    )


def next_due(db: Connection, scope_pk: int, now: int) -> int | None:
    """When the next job is to be tried that is not due yet; of each priority one look."""
    due: int | None = one_value(
        db,
        "SELECT min((SELECT min(due_at) FROM job WHERE scope_pk = :scope AND priority = level.value AND state = 1"
        " AND due_at > :now)) FROM carray(:levels) AS level",
        {"scope": scope_pk, "now": now, "levels": keys(sorted(set(PRIORITY.values())))},
    )
    return due


def has_many_ready(db: Connection, scope_pk: int, number: int) -> bool:
    """Whether so many jobs or more are ready; looks at no more."""
    ready = "SELECT 1 FROM job INDEXED BY job_ready WHERE scope_pk = :scope AND state = 1 LIMIT 1 OFFSET :before"
    return one_row(db, ready, {"scope": scope_pk, "before": number - 1}) is not None


def has_ready(db: Connection, scope_pk: int, now: int, *, only_index: bool = False) -> bool:
    """Whether a claim would find anything: any job, or one of the index."""
    kind = _ONLY_INDEX if only_index else ""
    return (
        one_row(
            db,
            f"SELECT 1 FROM job INDEXED BY job_ready WHERE scope_pk = :scope AND state = 1 AND {_DUE}{kind} LIMIT 1",
            _due_by(now) | {"scope": scope_pk},
        )
        is not None
    )


def has_leased(db: Connection, scope_pk: int) -> bool:
    """Whether anybody works a job of the scope."""
    leased = "SELECT 1 FROM job INDEXED BY job_leased WHERE scope_pk = :scope AND state = 2 LIMIT 1"
    return one_row(db, leased, {"scope": scope_pk}) is not None


def leased_elsewhere(db: Connection, scope_pk: int, owner_pk: int) -> bool:
    """Whether another process works a job of the scope."""
    return (
        one_row(
            db,
            "SELECT 1 FROM job INDEXED BY job_leased WHERE scope_pk = :scope AND state = 2 AND owner_pk <> :owner"
            " LIMIT 1",
            {"scope": scope_pk, "owner": owner_pk},
        )
        is not None
    )


def summaries_leased(db: Connection, scope_pk: int) -> int:
    """How many jobs that need a summarizer are under a lease, in whatever process."""
    return int(
        one_value(
            db,
            f"SELECT count(*) FROM job INDEXED BY job_leased WHERE scope_pk = :scope AND state = 2 AND kind <> {INDEX}",
            {"scope": scope_pk},
        )
    )


def has_failed(db: Connection, scope_pk: int) -> bool:
    """Whether a job used up its attempts."""
    return (
        one_row(db, "SELECT 1 FROM job WHERE scope_pk = :scope AND state = 3 LIMIT 1", {"scope": scope_pk}) is not None
    )


def has_work(db: Connection, scope_pk: int) -> bool:
    """Whether any job is ready or leased."""
    ready = "SELECT 1 FROM job INDEXED BY job_ready WHERE scope_pk = :scope AND state = 1 LIMIT 1"
    return one_row(db, ready, {"scope": scope_pk}) is not None or has_leased(db, scope_pk)


@frozen
class FailureRow:
    kind: JobKind
    subject: int
    attempts: int
    error: str
    at: int


def failures(db: Connection, scope_pk: int, limit: int = 20) -> list[FailureRow]:
    """The jobs that used up their attempts, newest first."""
    return [
        FailureRow(KINDS[row[0]], row[1], row[2], row[3] or "", row[4] or 0)
        for row in all_rows(
            db,
            "SELECT kind, subject, attempts, last_error, failed_at FROM job INDEXED BY job_failed"
            " WHERE scope_pk = :scope AND state = 3"
            " ORDER BY failed_at DESC LIMIT :limit",
            {"scope": scope_pk, "limit": limit},
        )
    ]


def troubles(db: Connection, scope_pk: int, limit: int = 200) -> list[FailureRow]:
    """The jobs whose last attempt failed, whether or not they are tried again; those that are not, first."""
    tried = all_rows(
        db,
        "SELECT kind, subject, attempts, last_error, due_at FROM job INDEXED BY job_ready WHERE scope_pk = :scope"
        " AND state = 1 AND last_error IS NOT NULL LIMIT :limit",
        {"scope": scope_pk, "limit": limit},
    )
    return failures(db, scope_pk, limit) + [FailureRow(KINDS[row[0]], *row[1:]) for row in tried]


def leaf_jobs(db: Connection, subjects: Iterable[int]) -> list[JobRow]:
    """The jobs that are to make these leaves."""
    return [
        _job(row)
        for row in all_rows(
            db,
            f"SELECT {_JOB} FROM job WHERE kind = :leaf AND subject IN (SELECT value FROM carray(:subjects))",
            {"leaf": KIND_NUMBER["leaf"], "subjects": keys(subjects)},
        )
    ]
