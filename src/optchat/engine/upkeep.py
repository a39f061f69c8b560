"""
Upkeep: a scope's state, in figures.

Decides: what counts as ready.
Refuses to know: content.
"""

from __future__ import annotations

from optchat.core.jobs import Calls
from optchat.core.status import Status
from optchat.engine.handle import Scope
from optchat.engine.naming import load_failures
from optchat.store import forest, ledger, publications, queue, registry, scopes
from optchat.store.rows import Connection, moment_of

_HOUR_US = 3_600_000_000


def count_records(db: Connection, scope_pk: int) -> int:
    """The records of a scope, superseded ones included."""
    return sum(
        registry.segment_length(db, segment, base) - base
        for segment, _tree, base, _ended in registry.scope_segments(db, scope_pk)
    )


def scope_figures(db: Connection, name: str) -> tuple[int, int, int]:
    """(sessions, records, publications) of a scope."""
    row = scopes.find_scope(db, name)
    if row is None:
        return 0, 0, 0
    pk = row.scope_pk
    return registry.count_sessions(db, pk), count_records(db, pk), publications.count_publications(db, pk)


def status(scope: Scope, summarizer: str, default_summarizer: str) -> Status:
    """
    The scope's state in one read.

    It is ready when nothing is left to summarise, publish or index, and nothing has failed.
    """
    with scope.store.read() as db:
        state = queue.queue_state(db, scope.pk)
        counts = forest.recipe_counts(db, scope.pk)
        newest = ledger.newest_record_at(db, scope.pk)
        named = scopes.scope_summarizer(db, scope.pk)
        total: Calls = queue.sum_calls(db, scope.pk, 0)
        return Status(
            ready=not (state.pending or state.running or state.failed),
            sessions=registry.count_sessions(db, scope.pk),
            records=count_records(db, scope.pk),
            publications=publications.count_publications(db, scope.pk),
            pending=state.pending,
            running=state.running,
            stand_ins=sum(count for (kind, _model), count in counts.items() if kind == "stand_in"),
            by_default_summarizer=counts.get(("summary", default_summarizer), 0),
            scrub_pending=False,
            failures=load_failures(scope, db),
            oldest_pending_at=None if state.oldest is None else moment_of(state.oldest),
            newest_record_at=None if newest is None else moment_of(newest),
            paused=None
            if named is None or named == summarizer
            else f"scope {scope.row.name!r} is summarised by {named!r}",
            resumes_at=None,
            last_hour=queue.sum_calls(db, scope.pk, scope.now() - _HOUR_US),
            total=total,
            summarizer=named or summarizer,
            file_bytes=scope.store.file_bytes(),
        )
