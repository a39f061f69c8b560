"""
Who reads: a turn, a pin, or the owner.

Decides: what each of them may see, as a sight; which record or publication a ref names under it.
Refuses to know: what is read.

Absent, hidden and another scope's things answer alike: one error, one text.
"""

from __future__ import annotations

from attrs import evolve, frozen

from optchat.core.errors import SnapshotInvalid, UnknownRef
from optchat.core.lineage import Chain
from optchat.core.refs import KEY_BITS, PublicationRef, SessionRef, Span, parse_ref, publication_ref, session_ref
from optchat.core.snapshots import Sight, Snapshot, foreign_node_visible, publication_visible
from optchat.core.views import EMPTY_FRONTIER, FrontierState
from optchat.engine.handle import Scope
from optchat.store import publications, registry, scopes
from optchat.store.publications import PublicationRow
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection, moment_of
from optchat.store.scopes import Moment


@frozen
class Own:
    """
    The reader's own session: its records below ``end`` are its own history and live turn.

    ``view`` is a turn's copy of its session's view, and ``history`` where the live turn begins.
    """

    session: SessionRow
    chain: Chain
    end: int
    view: FrontierState = EMPTY_FRONTIER
    history: int = 0


@frozen
class Reading:
    """One reader's eyes in one read transaction."""

    scope: Scope
    snapshot: Snapshot
    sight: Sight
    own: Own | None = None

    @property
    def clock(self) -> int:
        return self.sight.clock


def snapshot_of(moment: Moment, pin: int = 0) -> Snapshot:
    """A moment as people see it; a pin taken again after a removal is labelled ``42.1``."""
    label = f"{moment.clock}.{pin}" if pin else str(moment.clock)
    return Snapshot(label, moment.publications, moment.epoch, moment_of(moment.at))


def owner_reading(scope: Scope, db: Connection) -> Reading:
    """The memory's own reading: every session to its last sealed record, the newest of everything."""
    moment = scopes.current_moment(db, scope.pk)
    sight = Sight(scope.pk, moment.clock, moment.publications, 1 << KEY_BITS, owner=True)
    return Reading(scope, snapshot_of(moment), sight)


def pinned_reading(scope: Scope, moment: Moment) -> Reading:
    """What a model would be shown of other sessions, at a moment; no session is its own."""
    return Reading(scope, snapshot_of(moment), Sight(scope.pk, moment.clock, moment.publications, moment.documents))


def session_reading(scope: Scope, moment: Moment, session: SessionRow, chain: Chain, end: int, pin: int = 0) -> Reading:
    """A turn's reading: its session's records below ``end``, other sessions as the moment has them."""
    shared = evolve(moment, publications=0, documents=0) if session.isolated else moment
    sight = Sight(scope.pk, moment.clock, shared.publications, shared.documents, own=chain.ranges(end))
    return Reading(scope, snapshot_of(shared, pin), sight, Own(session, chain, end))


def kept_moment(scope: Scope, db: Connection, snapshot_id: str) -> Moment:
    """
    The moment that a snapshot id names.

    Raises:
        UnknownRef: no such snapshot, or one of another scope.
        SnapshotInvalid: something was removed since, or its clock is no longer kept.
    """
    number = snapshot_id.partition(".")[0]
    moment = scopes.find_moment(db, scope.pk, int(number)) if number.isdecimal() and len(number) < 13 else None
    if moment is None:
        raise UnknownRef(f"no snapshot {snapshot_id[:20]!r} is kept here; pin() takes a new one")
    if scopes.scope_counters(db, scope.pk)[0] != moment.epoch:
        raise SnapshotInvalid("something was removed since that snapshot; pin() takes a new one")
    return moment


# ---- refs ------------------------------------------------------------------------------------------------------------


@frozen
class SessionTarget:
    """A span of a session's generation that the reader may see."""

    session: SessionRow
    generation: int
    generation_pk: int
    chain: Chain
    span: Span

    @property
    def ref(self) -> str:
        return session_ref(self.session.session_id, self.generation, self.span.start, self.span.count)


@frozen
class SharedTarget:
    """A span of publications that the reader may see; ``publication`` where it is one."""

    span: Span
    publication: PublicationRow | None

    @property
    def ref(self) -> str:
        return publication_ref(self.span.start, self.span.count)


Target = SessionTarget | SharedTarget


def unknown(ref: str) -> UnknownRef:
    """The one error for what is absent, hidden, or elsewhere."""
    return UnknownRef(f"nothing here answers to {ref[:80]}; use a ref that this memory has shown, or search for it")


def resolve(reading: Reading, db: Connection, text: str) -> Target:
    """
    What a ref names, if this reader may see it.

    Raises:
        MalformedRef: it is no ref.
        UnknownRef: nothing that this reader may see.
    """
    ref = parse_ref(text)
    if isinstance(ref, PublicationRef):
        return _resolve_publication(reading, db, ref, text)
    return _resolve_session(reading, db, ref, text)


def _resolve_publication(reading: Reading, db: Connection, ref: PublicationRef, text: str) -> SharedTarget:
    if ref.span.end > reading.sight.publications:
        raise unknown(text)
    if ref.span.count > 1:
        return SharedTarget(ref.span, None)
    found = publications.load_publication(db, reading.scope.pk << KEY_BITS | ref.span.start)
    if found is None or not publication_visible(found.state, reading.sight):
        raise unknown(text)
    return SharedTarget(ref.span, found)


def _resolve_session(reading: Reading, db: Connection, ref: SessionRef, text: str) -> SessionTarget:
    own = reading.own
    if ref.session is None:
        if own is None:
            raise unknown(text)  # a short ref is a turn's own; nobody else has a session to mean
        session: SessionRow | None = own.session
    else:
        session = registry.session_by_id(db, reading.scope.pk, ref.session)
    if session is None:
        raise unknown(text)
    number = session.generation if ref.generation is None else ref.generation
    generation = registry.generation_of(db, session.session_pk, number)
    if generation is None:
        raise unknown(text)
    chain = reading.scope.chain(db, generation[1])
    target = SessionTarget(session, number, generation[0], chain, ref.span)
    if not may_see(reading, db, target):
        raise unknown(text)
    return target


def may_see(reading: Reading, db: Connection, target: SessionTarget) -> bool:
    """The visibility predicate for a span of a session."""
    span, own = target.span, reading.own
    if own is not None and own.session.session_pk == target.session.session_pk and own.chain == target.chain:
        return span.end <= own.end
    if reading.sight.owner:
        return span.end <= registry.segment_length(db, target.chain.own.segment, target.chain.own.base_length)
    if span.count == 1:
        return publications.publication_of_record(db, target.generation_pk, span.start, reading.sight) is not None
    published = publications.published_range(db, target.generation_pk, reading.sight)
    return foreign_node_visible(span.start, span.end, published, target.chain.own.base_length)
