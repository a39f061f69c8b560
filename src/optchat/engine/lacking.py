"""
What a view lacks, told to whoever waits for it (§ 6).

Decides: what the error says: which summaries are due, since when, what went wrong, and what to do.
Refuses to know: waiting, and how a view is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence

from optchat.core.errors import SummariesPending
from optchat.core.refs import Span, session_ref
from optchat.engine.calls import paused
from optchat.engine.handle import Scope
from optchat.engine.naming import load_failures
from optchat.store import queue
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection, moment_of


def summaries_pending(
    scope: Scope, db: Connection, session: SessionRow, missing: Sequence[Span], waited_seconds: float = 0.0
) -> SummariesPending:
    """The error that names what a view lacks, since when, what went wrong with it, and until when nothing is tried."""
    refs = [session_ref(session.session_id, session.generation, span.start, span.count) for span in missing]
    chain = scope.chain(db, session.segment_pk)
    jobs = queue.leaf_jobs(db, [chain.node_key(span) for span in missing])
    failed = load_failures(scope, db, refs)
    pause = paused(db, scope.pk, scope.now())
    shown = ", ".join(refs[:3]) + (f" and {len(refs) - 3} more" if len(refs) > 3 else "")
    since = moment_of(min((job.created_at for job in jobs), default=scope.now()))
    parts = [f"{len(refs)} summaries that this context needs are not there yet ({shown}), the first due since {since}"]
    if failed:
        parts.append(f"last error: {failed[0].error.partition(':')[0]}")  # its class: the rest may hold content
    advice = "wait for the worker, call settle(), or ask for readiness='partial'"
    if pause is not None:
        parts.append(f"paused: {pause.reason}")
        advice = "retry_failed() tries at once" + (
            f"; it goes on by itself at {pause.resumes_at}" if pause.until is not None else ""
        )
    elif failed:
        advice = "retry_failed() tries the failed summaries again"
    return SummariesPending(
        "; ".join((*parts, advice)),
        missing=refs,
        since=since,
        failures=failed,
        paused=None if pause is None else pause.reason,
        resumes_at=None if pause is None else pause.resumes_at,
        waited_seconds=waited_seconds,
    )
