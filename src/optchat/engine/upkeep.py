"""
Upkeep: a scope's state, in figures.

Decides: what counts as ready.
Refuses to know: content.
"""

from __future__ import annotations

from optchat.core.ledger import HOUR_SECONDS, Calls
from optchat.core.status import Status
from optchat.engine.calls import paused
from optchat.engine.freshness import behind
from optchat.engine.handle import Scope
from optchat.engine.naming import load_failures
from optchat.store import calls, forest, ledger, publications, queue, registry, removals, scopes, scrubs
from optchat.store.rows import Connection, moment_of

_HOUR_US = HOUR_SECONDS * 1_000_000


def count_records(db: Connection, scope_pk: int) -> int:
    """The records of a scope, superseded ones included, and those that were removed left out."""
    sealed = sum(
        registry.segment_length(db, segment, base) - base
        for segment, _tree, base, _ended in registry.scope_segments(db, scope_pk)
    )
    return sealed - removals.records_removed(db, scope_pk)


def scope_figures(db: Connection, name: str) -> tuple[int, int, int]:
    """(sessions, records, publications) of a scope."""
    row = scopes.find_scope(db, name)
    if row is None:
        return 0, 0, 0
    pk = row.scope_pk
    return registry.count_sessions(db, pk), count_records(db, pk), publications.count_publications(db, pk)


def status(scope: Scope, summarizer: str | None, default_summarizer: str) -> Status:
    """
    The scope's state in one read.

    It is ready when nothing is left to summarise, publish or index, nothing has failed, and hosts hold nothing that
    memory lacks.

    Args:
        summarizer: whose handle asks; None: one that only reads, and so is not held up by another's name.
    """
    with scope.store.read() as db:
        state = queue.queue_state(db, scope.pk)
        counts = forest.recipe_counts(db, scope.pk)
        newest = ledger.newest_record_at(db, scope.pk)
        named = scopes.scope_summarizer(db, scope.pk)
        pause = paused(db, scope.pk, scope.now())
        reason = None if pause is None else pause.reason
        if pause is None and named is not None and summarizer is not None and named != summarizer:
            reason = f"scope {scope.row.name!r} is summarised by {named!r}"
        total: Calls = calls.sum_calls(db, scope.pk, 0)
        late = behind(scope, db)
        return Status(
            ready=not (state.pending or state.running or state.failed or late.sessions),
            sessions=registry.count_sessions(db, scope.pk),
            records=count_records(db, scope.pk),
            publications=publications.count_publications(db, scope.pk),
            pending=state.pending,
            running=state.running,
            stand_ins=sum(count for (kind, _model), count in counts.items() if kind == "stand_in"),
            by_default_summarizer=counts.get(("summary", default_summarizer), 0),
            scrub_pending=scrubs.is_pending(db, scope.pk),
            failures=load_failures(scope, db),
            oldest_pending_at=None if state.oldest is None else moment_of(state.oldest),
            newest_record_at=None if newest is None else moment_of(newest),
            paused=reason,
            resumes_at=None if pause is None else pause.resumes_at,
            last_hour=calls.sum_calls(db, scope.pk, scope.now() - _HOUR_US),
            total=total,
            summarizer=named or summarizer or default_summarizer,
            file_bytes=scope.store.file_bytes(),
            behind=late.messages,
            behind_since=late.since,
            behind_sessions=late.sessions,
        )
