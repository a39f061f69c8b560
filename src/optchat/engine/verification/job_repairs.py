"""
Repair of the queue: jobs, what they wait for, and publications that none is for.

Decides: how each fault of the queue is put right, and how much one transaction does.
Refuses to know: how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from optchat.engine.landing import Landing
from optchat.engine.verification.checking import Check, steps
from optchat.engine.verification.upkeep_checks import needs_of
from optchat.store import due, queue, registry, restoring, turns
from optchat.store.rows import Connection

_STEP: Final = 50  # jobs a transaction


def _jobs_by_key(check: Check, db: Connection, job_pks: Sequence[int]) -> Mapping[int, due.JobState]:
    return {
        job.job_pk: job for pk in job_pks for job in due.jobs_after(db, check.scope.pk, pk - 1, 1) if job.job_pk == pk
    }


def done(check: Check, subjects: Sequence[int]) -> None:
    """Jobs for which there is nothing to do are gone; the next leaves of their trees are admitted."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for pk, job in _jobs_by_key(check, db, step).items():
                queue.remove_job(db, pk)
                if job.tree_pk:
                    queue.promote(db, job.tree_pk, scope.policy.leaf_window)
    scope.wake()


def waiters(check: Check, subjects: Sequence[int]) -> None:
    """Each job waits for what it needs, and counts that."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            landing = Landing(scope, db, scope.now())
            _set_waiting(check, landing, step)
            landing.finish()
        landing.after_commit()


def _set_waiting(check: Check, landing: Landing, job_pks: Sequence[int]) -> None:
    for pk, job in _jobs_by_key(check, landing.db, job_pks).items():
        restoring.set_needs(landing.db, pk, needs_of(check, landing.db, job))
        if restoring.recount_waiters(landing.db, pk):
            _wake(landing, job)


def _wake(landing: Landing, job: due.JobState) -> None:
    """A job that waits for nothing any more: joined, published, or ready."""
    if job.tree_pk:
        queue.promote(landing.db, job.tree_pk, landing.scope.policy.leaf_window)
    elif job.kind in {"leaf", "index"}:
        queue.make_ready(landing.db, job.job_pk)
    else:
        landing.changed_under(job.subject)
    landing.jobs_added()


def stuck(check: Check, subjects: Sequence[int]) -> None:
    """Leaves are admitted (trees, by key), and jobs that wait for nothing (by key, below 0) go on."""
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        for tree in (subject for subject in subjects if subject > 0):
            queue.promote(db, tree, scope.policy.leaf_window)
            landing.jobs_added()
        _set_waiting(check, landing, [-subject for subject in subjects if subject < 0])
        landing.finish()
    landing.after_commit()


def publications_lost(check: Check, subjects: Sequence[int]) -> None:
    """What the end of a turn had to do: it is published, or has a job that waits for what is missing."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            landing = Landing(scope, db, scope.now())
            for turn_pk in step:
                turn = turns.load_turn(db, turn_pk)
                if turn is not None and turn.end_seq is not None and not due.with_job(db, ("publication",), [turn_pk]):
                    landing.publication_due(turn, registry.session_of_generation(db, turn.generation_pk)[0])
            landing.finish()
        landing.after_commit()
