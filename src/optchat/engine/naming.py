"""
Names for stored things.

Decides: which ref, session or outcome a stored key is known by.
Refuses to know: who asks; what may be shown was decided before.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from optchat.core.jobs import JobKind
from optchat.core.lineage import ordinal_of, owner_of
from optchat.core.refs import Span, publication_ref, session_ref, span_of_post_order
from optchat.core.terms import JobFailure, Outcome
from optchat.engine.handle import Scope
from optchat.store import forest, publications, queue, registry, turns
from optchat.store.rows import Connection, moment_of


@frozen
class PublicationName:
    """What a publication's line is labelled with."""

    session_id: str
    outcome: Outcome


def publication_names(scope: Scope, db: Connection, numbers: Iterable[int]) -> dict[int, PublicationName]:
    """The labels of publications, by number."""
    found: dict[int, PublicationName] = {}
    sessions: dict[int, str] = {}
    for number, row in publications.load_publications(db, scope.pk, list(numbers)).items():
        if row.generation_pk not in sessions:
            sessions[row.generation_pk] = registry.session_of_generation(db, row.generation_pk)[0].session_id
        found[number] = PublicationName(sessions[row.generation_pk], row.outcome)
    return found


def segment_ref(db: Connection, segment_pk: int, span: Span) -> str:
    """The canonical ref of a span of a segment."""
    generation = registry.generation_of_segment(db, segment_pk)
    if generation is None:
        return str(span)  # a segment whose session is gone: only its children still name it
    return session_ref(registry.session_by_pk(db, generation[1]).session_id, generation[2], span.start, span.count)


def node_ref(scope: Scope, db: Connection, key: int) -> str:
    """The canonical ref of a node; a page of a large payload goes by its record."""
    tree_pk, span = owner_of(key), span_of_post_order(ordinal_of(key))
    if tree_pk == scope.row.shared_tree:
        return publication_ref(span.start, span.count)
    segment = registry.segment_of_tree(db, tree_pk)
    if segment is not None:
        return segment_ref(db, segment[0], span)
    tree = forest.load_tree(db, tree_pk)
    return str(span) if tree is None or tree.record_key is None else record_ref(db, tree.record_key)


def record_ref(db: Connection, record_key: int) -> str:
    """The canonical ref of a record."""
    return segment_ref(db, owner_of(record_key), Span(ordinal_of(record_key), 1))


def job_ref(scope: Scope, db: Connection, kind: JobKind, subject: int) -> str:
    """The ref of what a job is about; a publication goes by its turn's first record."""
    if kind == "index":
        return record_ref(db, subject)
    if kind == "publication":
        turn = turns.load_turn(db, subject)
        return f"turn {subject}" if turn is None else segment_ref(db, turn.segment_pk, Span(turn.start_seq, 1))
    return node_ref(scope, db, subject)


def load_failures(scope: Scope, db: Connection, refs: Iterable[str] | None = None) -> tuple[JobFailure, ...]:
    """
    The scope's failed jobs, each with the ref of what it was to summarise, newest first.

    Args:
        refs: only what concerns these, and of it also what failed and is tried again. A page goes by its record's ref.
    """
    wanted = None if refs is None else frozenset(refs)
    rows = queue.failures(db, scope.pk) if wanted is None else queue.troubles(db, scope.pk)
    found = (
        JobFailure(job_ref(scope, db, row.kind, row.subject), row.kind, row.attempts, row.error, moment_of(row.at))
        for row in rows
    )
    return tuple(failure for failure in found if wanted is None or failure.ref in wanted)
