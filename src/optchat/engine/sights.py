"""
Who reads: a turn, a pin, or the owner.

Decides: what each of them may see, as a sight; which record or publication a ref names under it.
Refuses to know: what is read.

Absent, hidden and another scope's things answer alike: one error, one text.
"""

from __future__ import annotations

from attrs import evolve, frozen

from optchat.core.errors import StaleRef, UnknownRef
from optchat.core.lineage import Chain, Link
from optchat.core.refs import KEY_BITS, PublicationRef, SessionRef, Span, parse_ref, publication_ref, session_ref
from optchat.core.snapshots import Published, Sight, Snapshot, foreign_node_visible, publication_visible, snapshot_label
from optchat.core.views import EMPTY_FRONTIER, FrontierState
from optchat.engine.handle import Scope
from optchat.store import ledger, publications, registry, scopes
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
    return Snapshot(snapshot_label(moment.clock, pin), moment.publications, moment.epoch, moment_of(moment.at))


def owner_reading(scope: Scope, db: Connection) -> Reading:
    """The memory's own reading: every session to its last sealed record, the newest of everything."""
    moment = scopes.current_moment(db, scope.pk)
    sight = Sight(scope.pk, moment.clock, moment.publications, 1 << KEY_BITS, owner=True)
    return Reading(scope, snapshot_of(moment), sight)


def pinned_reading(scope: Scope, moment: Moment, pin: int = 0) -> Reading:
    """What a model would be shown of other sessions, at a moment; no session is its own."""
    sight = Sight(scope.pk, moment.clock, moment.publications, moment.documents)
    return Reading(scope, snapshot_of(moment, pin), sight)


def session_reading(scope: Scope, moment: Moment, session: SessionRow, chain: Chain, end: int, pin: int = 0) -> Reading:
    """A turn's reading: its session's records below ``end``, other sessions as the moment has them."""
    shared = evolve(moment, publications=0, documents=0) if session.isolated else moment
    sight = Sight(scope.pk, moment.clock, shared.publications, shared.documents, own=chain.ranges(end))
    return Reading(scope, snapshot_of(shared, pin), sight, Own(session, chain, end))


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
        StaleRef: a short ref to a position that has held other things in an earlier generation.
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
        if ref.generation is None:
            _check_not_stale(reading, db, own, ref.span)
        session: SessionRow | None = own.session
    else:
        session = registry.session_by_id(db, reading.scope.pk, ref.session)
    if session is None:
        raise unknown(text)
    number = session.generation if ref.generation is None else ref.generation
    target = _target(reading, db, session, number, ref.span)
    if target is None or not may_see(reading, db, target):
        raise unknown(text)
    return target


def _target(reading: Reading, db: Connection, session: SessionRow, number: int, span: Span) -> SessionTarget | None:
    generation = registry.generation_of(db, session.session_pk, number)
    if generation is None:
        return None
    return SessionTarget(session, number, generation[0], reading.scope.chain(db, generation[1]), span)


def _check_not_stale(reading: Reading, db: Connection, own: Own, span: Span) -> None:
    """From the lowest boundary on that a session was rewound to, a position alone does not say what it names."""
    if own.chain.boundary is None or span.end <= own.chain.boundary:
        return
    numbers = range(own.chain.generation + 1)
    targets = [_target(reading, db, own.session, number, span) for number in numbers]
    named = [target.ref for target in targets if target is not None and may_see(reading, db, target)]
    raise StaleRef(
        f"{span} lies above a point that this session was rewound to, and has named other things before; name the"
        f" generation: {own.chain.short(span)} is what stands there now",
        candidates=named,
    )


def may_see(reading: Reading, db: Connection, target: SessionTarget) -> bool:
    """
    The visibility predicate for a span of a session.

    A reader's own session is its history below its boundary, and what was superseded on the way to it.
    """
    span, own, last = target.span, reading.own, target.span.end - 1
    if span.count == 1 and not ledger.is_live(db, target.chain.record_key(last)):
        return False
    if own is not None and own.session.session_pk == target.session.session_pk:
        if target.generation > own.chain.generation:
            return False  # it began when the reader's turn was over
        if own.chain.has_record_of(target.chain, last):
            return span.end <= own.end
        return span.end <= _length(db, target.chain)
    if reading.sight.owner:
        return span.end <= _length(db, target.chain)
    if not registry.has_begun(db, target.session.session_pk, target.generation, reading.clock):
        return False
    if span.count == 1:
        generation = _generation_of_link(db, target.session, target.chain.of_record(last))
        return (
            generation is not None
            and publications.publication_of_record(db, generation, span.start, reading.sight) is not None
        )
    published = published_of(reading, db, target.session, target.chain)
    return foreign_node_visible(span.start, span.end, published.records, published.base_length)


def _length(db: Connection, chain: Chain) -> int:
    return registry.segment_length(db, chain.own.segment, chain.own.base_length)


def _generation_of_link(db: Connection, session: SessionRow, link: Link) -> int | None:
    """The generation of a session that has a link's segment; None where it is what the session was forked from."""
    found = registry.generation_of_segment(db, link.segment)
    return found[0] if found is not None and found[1] == session.session_pk else None


@frozen
class PublishedOf:
    """
    What a reader's marks let it see of a session: records without a hole, and how many turns. What lies below
    ``base_length`` is another session's.
    """

    records: Published | None
    turns: int
    base_length: int


def published_of(reading: Reading, db: Connection, session: SessionRow, chain: Chain) -> PublishedOf:
    """
    What counts of a session's history along a chain. What a rewind kept was published in an earlier generation; what a
    fork rests on is its parent's.
    """
    records: Published | None = None
    count, base_length, whole = 0, chain.own.base_length, True
    for link in chain.links:
        generation = _generation_of_link(db, session, link)
        if generation is None:
            break
        base_length = link.base_length
        count += publications.count_of_generation(db, generation, reading.sight)
        there = publications.published_range(db, generation, reading.sight)
        if there is None or not whole:
            continue
        if records is None or there.end == records.first:
            records = Published(there.first, there.end if records is None else records.end)
        else:
            whole = False  # something between is not published, or not yet
    return PublishedOf(records, count, base_length)


def is_superseded(reading: Reading, db: Connection, target: SessionTarget) -> bool:
    """Whether what a ref names was rewound, as this reader's clock has it: another thing stands there, or none."""
    present = registry.session_at(db, target.session.session_pk, reading.clock)
    if present.generation <= target.generation:
        return False
    return not target.chain.has_record_of(reading.scope.chain(db, present.segment_pk), target.span.end - 1)
