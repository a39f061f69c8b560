"""
Forgetting, stage one (§ 11, § 12): a session, some of its turns, what it shares, or a scope is hidden at once.

Decides: what belongs to a removal, what a fork keeps of it, and what the receipt says.
Refuses to know: how bytes leave the file. It writes down what is to be erased; that is :mod:`optchat.engine.scrubbing`.

One transaction. By its commit every read answers as if it had never been there: records, turns, publications and nodes
have their states, what was summarised from them or beside their text is replaced by what is left, jobs of theirs are
gone, the epoch has moved, so that no call under way can bring anything back and every pin looks whether it could see
some of it. Numbers stay: of what was said there only tombstones tell.

A fork that is preserved keeps its prefix as its own history: the segments under it stay, up to the longest that is
still needed, and nobody else can see them. Only whole turns are ever removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from optchat.core.errors import BadArgument, UnknownRef
from optchat.core.forgetting import (
    CANNOT_UNDO,
    FORKS,
    LATER_SUMMARIES,
    DeletionReceipt,
    Forks,
    fork_keeps,
    joined_reasons,
    own_words,
)
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.refs import KEY_BITS, PublicationRef, Span, parse_ref, post_order, publication_ref, span_of_post_order
from optchat.core.snapshots import Taken
from optchat.core.tree import REMOVED, Node
from optchat.engine.handle import Scope
from optchat.engine.landing import Landing
from optchat.engine.trees import session_tree
from optchat.engine.turns import check_usable
from optchat.engine.withdrawing import NO_INPUTS, TOMBSTONE, Gone, forget_retired, leaf_key, replace, unpublish
from optchat.store import forest, payloads, publications, queue, registry, removals, scrubs, turns
from optchat.store.publications import PublicationRow
from optchat.store.registry import SessionRow
from optchat.store.removals import RemovalKind, RemovalRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

_Range: TypeAlias = tuple[scrubs.Kind, int, int]


@frozen
class _Segment:
    """A segment of the session: its own records are ``[base, end)``, of which others need those below ``needed``."""

    segment: int
    tree: int
    generation: int
    base: int
    end: int
    needed: int


@define
class _Taking:
    """One removal on its way: what it has taken so far."""

    landing: Landing
    session: SessionRow | None
    counts: dict[str, int] = field(factory=dict[str, int])
    kept: dict[str, list[str]] = field(factory=dict[str, list[str]])
    turns: list[int] = field(factory=list[int])
    erasures: set[_Range] = field(factory=set[_Range])
    gone: dict[int, Gone] = field(factory=dict[int, Gone])
    published: list[PublicationRow] = field(factory=list[PublicationRow])
    pending: dict[int, Node] = field(factory=dict[int, Node])  # tombstones of leaves that were still to be made
    records: dict[int, int] = field(factory=dict[int, int])  # by segment: the first place of which something is gone
    lowest: int | None = None  # the first number of which the shared tree says something else now

    @property
    def db(self) -> Connection:
        return self.landing.db

    def count(self, what: str, number: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def keep(self, name: str, reason: str) -> None:
        reasons = self.kept.setdefault(name, [])
        if reason not in reasons:
            reasons.append(reason)

    def erase(self, kind: scrubs.Kind, low: int, high: int) -> None:
        if low < high:
            self.erasures.add((kind, low, high))

    def from_record(self, segment: int, seq: int) -> None:
        self.records[segment] = min(seq, self.records.get(segment, seq))

    # ---- turns and records -------------------------------------------------------------------------------------------

    def hide_turns(self, rows: Sequence[TurnRow]) -> None:
        """Hide turns and their publications; their records are hidden by :meth:`hide_records`."""
        numbers: list[int] = []
        for turn in rows:
            removals.drop_jobs(self.db, ("publication",), turn.turn_pk, turn.turn_pk + 1)
            numbers += publications.numbers_of_turn(self.db, turn.turn_pk)
        self.published += unpublish(self.landing, numbers, removed=True)
        for turn in rows:
            end = self.end_of(turn)
            removals.hide_turn(self.db, turn.turn_pk, end, self.landing.at)
            self.turns.append(turn.turn_pk)
            if turn.state != "ended":
                self.landing.records_ended(turn.segment_pk, end)
        for turn in rows:
            self.landing.unmade(turn.turn_pk)  # whoever waited for its publication goes on without

    def end_of(self, turn: TurnRow) -> int:
        if turn.end_seq is not None:
            return turn.end_seq
        chain = self.landing.scope.chain(self.db, turn.segment_pk)
        return registry.segment_length(self.db, turn.segment_pk, chain.own.base_length)

    def hide_records(self, segment: int, start: int, end: int, *, buried: bool) -> None:
        """
        Hide records ``[start, end)`` of a segment, with their pages, their event keys and what waits to be made.

        Args:
            buried: their tree lives on: each record's leaf becomes a tombstone.
        """
        if start >= end:
            return
        db, low, high = self.db, segment << KEY_BITS | start, segment << KEY_BITS | end
        removals.remember_events(db, self.landing.scope.pk, low, high, self.landing.at)
        removals.drop_jobs(db, ("index",), low, high)
        for pages in forest.chunk_trees_between(db, low, high):
            first, last = pages << KEY_BITS, (pages + 1) << KEY_BITS
            removals.drop_jobs(db, ("chunk", "remake"), first, last)
            self.count("nodes", removals.hide_nodes(db, first, last, None).rows)
        if buried:
            self._bury(segment, start, end)
        hidden = removals.hide_records(db, low, high)
        self.count("records", hidden.rows)
        self.count("documents", hidden.documents)
        self.erase("records", low, high)
        self.from_record(segment, start)

    def _bury(self, segment: int, start: int, end: int) -> None:
        """Note the leaves of records as gone; one that was still to be made is a tombstone once the others are."""
        db, at = self.db, self.landing.at
        tree = session_tree(self.landing.scope, db, segment).chain.own.tree
        spans = [Span(seq, 1) for seq in range(start, end)]
        keys = {span: node_key(tree, span) for span in spans}
        rows = forest.load_made(db, keys.values())
        verbatim = payloads.load_leaves(db, [segment << KEY_BITS | span.start for span in spans])
        removals.drop_jobs(db, ("leaf",), keys[spans[0]], keys[spans[-1]] + 1)
        queue.promote(db, tree, self.landing.scope.policy.leaf_window)
        for span, key in keys.items():
            leaf = verbatim.get(segment << KEY_BITS | span.start)
            if key in rows:
                self.gone[key] = Gone(REMOVED)
            elif leaf is not None:
                was = Node(span, 0, "verbatim", leaf.text, leaf.escaped_bytes, 0, 0, leaf.at, leaf.at)
                self.gone[key] = Gone(REMOVED, was)
            else:
                self.pending[key] = Node(span, 0, "tombstone", REMOVED, len(REMOVED), 0, 0, at, at)

    def hide_tree(self, of: _Segment, keep: int) -> None:
        """Hide what of a segment's tree nobody needs: all of it, or the nodes that reach above its first records."""
        whole = keep <= of.base
        low = of.tree << KEY_BITS | (0 if whole else post_order(Span(keep, 1)))
        high = (of.tree + 1) << KEY_BITS
        removals.drop_jobs(self.db, ("leaf", "merge", "remake"), low, high)
        hidden = removals.hide_nodes(self.db, low, high, of.segment)
        self.count("nodes", hidden.rows)
        self.count("documents", hidden.documents)
        if whole:
            self.erase("trees", of.tree, of.tree + 1)
        else:
            self.erase("nodes", low, high)
        removals.detach_segment(self.db, of.segment, of.tree, max(keep, of.base))
        self.landing.scope.caches.frontiers.take(of.tree)

    # ---- what was made of it -----------------------------------------------------------------------------------------

    def replace_nodes(self) -> None:
        """Replace every node that was made of what is gone, or beside its text, in whatever tree."""
        self.landing.follow()
        live = [row for row in self.published if row.retired_clock is None]
        for row in live:
            self.gone[leaf_key(self.landing, row.number)] = Gone(REMOVED)
        told = {row.publication_key for row in self.published}
        asked: set[int] = set()
        done: list[int] = []
        while True:
            # Beside what was retrieved; and beside that in turn: its text may say again what it was shown.
            for key in removals.nodes_shown(self.db, told - asked):
                self.gone.setdefault(key, Gone(None))
            asked |= told
            if not self.gone:
                break
            done += replace(self.landing, self.gone, hidden=True)
            self.gone.clear()
            shared = self.landing.scope.row.shared_tree
            told |= {
                self.landing.scope.pk << KEY_BITS | span_of_post_order(ordinal_of(key)).start
                for key in done
                if owner_of(key) == shared and span_of_post_order(ordinal_of(key)).count == 1
            }
            if told <= asked:
                break
        for key, node in self.pending.items():
            self.landing.insert(key, node, TOMBSTONE, NO_INPUTS)
        self.landing.follow()
        for key in set(done):
            self.erase("history", key, key + 1)
        for key in forget_retired(self.landing, self.published):
            self.erase("history", key, key + 1)
        self.count("nodes", len(set(done)))
        self._rewritten(done)

    def _rewritten(self, keys: Iterable[int]) -> None:
        """Which pins could see any of these nodes."""
        for key in keys:
            last = span_of_post_order(ordinal_of(key)).end - 1
            if owner_of(key) == self.landing.scope.row.shared_tree:
                self.lowest = last if self.lowest is None else min(last, self.lowest)
                continue
            segment = registry.segment_of_tree(self.db, owner_of(key))
            if segment is not None:
                self.from_record(segment[0], last)

    def taken(self) -> Taken:
        retired = [row for row in self.published if row.retired_clock is not None]
        return Taken(
            publications=self.lowest,
            retired=(
                (min(row.number for row in retired), max(row.retired_clock or 0 for row in retired))
                if retired
                else None
            ),
            records=tuple(sorted(self.records.items())),
        )

    # ---- the end -----------------------------------------------------------------------------------------------------

    def write(self, kind: RemovalKind) -> int:
        """Write down the removal, its receipt and what is to be erased; the epoch moves."""
        scope, db = self.landing.scope, self.db
        keys = [row.publication_key for row in self.published]
        self.count("publications", len(keys))
        self.count("turns", len(self.turns))
        for low, high in _runs(keys):
            self.erase("publications", low, high)
        for low, high in _runs(self.turns):
            self.erase("turns", low, high)
        self._shown(keys)
        self.erase("renderings", 0, turns.next_turn_pk(db))
        epoch = removals.next_epoch(db, scope.pk)
        removal = removals.insert_removal(
            db,
            scope_pk=scope.pk,
            kind=kind,
            epoch=epoch,
            clock=self.landing.born,
            at=self.landing.at,
            session_pk=None if self.session is None else self.session.session_pk,
            removed={name: number for name, number in sorted(self.counts.items()) if number},
            kept=joined_reasons(self.kept),
            taken=self.taken(),
            turns=_runs(self.turns),
        )
        for name, low, high in _joined(self.erasures):
            scrubs.add_erasure(db, removal, name, low, high)
        self.landing.now_visible()
        return removal

    def _shown(self, keys: Sequence[int]) -> None:
        """Who retrieved it: counted by session, and what tells of the very bytes that they were shown goes."""
        refs = {publication_ref(ordinal_of(key)) for key in keys}
        for session_pk, found in removals.turns_shown(self.db, keys).items():
            row = registry.session_by_pk(self.db, session_pk)
            if row.state != "deleted":
                self.keep(f"session:{row.session_id}", own_words(len(found)))
            for turn in found:
                for retrieval, shown in removals.retrievals_of(self.db, turn):
                    if not refs.isdisjoint(shown):
                        self.erase("retrievals", retrieval, retrieval + 1)


def _joined(ranges: Iterable[_Range]) -> list[_Range]:
    """Ranges that go on from one another as one."""
    found: list[_Range] = []
    for kind, low, high in sorted(ranges):
        if found and found[-1][0] == kind and low <= found[-1][2]:
            found[-1] = kind, found[-1][1], max(high, found[-1][2])
        else:
            found.append((kind, low, high))
    return found


def _runs(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Keys as ranges ``[low, high)``."""
    found: list[tuple[int, int]] = []
    for key in sorted(set(keys)):
        if found and found[-1][1] == key:
            found[-1] = found[-1][0], key + 1
        else:
            found.append((key, key + 1))
    return found


# ---- use cases -------------------------------------------------------------------------------------------------------


def delete_session(
    scope: Scope, session: SessionRow, *, only: Sequence[str] | None = None, forks: Forks = "preserve"
) -> DeletionReceipt:
    """
    Hide a session, or some of its turns, from every read (§ 12).

    Atomic; a crash leaves it whole or gone. Idempotent: deleting again answers with the same receipt, and says how far
    its scrubbing has come.

    Args:
        only: turn ids or publication refs of the session, of whatever generation; None: all of it.
        forks: "preserve": forks keep what they rest on as their own history; "forget": it is hidden there, too.

    Raises:
        UnknownRef: one of ``only`` names no turn of the session; nothing was removed.
        BadArgument: no such way with forks; ``only`` is empty; or a fork rests on one of the turns and is to be
            preserved.
    """
    if forks not in FORKS:
        raise BadArgument(f"forks is 'preserve' or 'forget', not {forks!r}")
    if only is not None and (isinstance(only, str) or not only):
        raise BadArgument("only is a list of turn ids or publication refs; leave it out to delete the whole session")
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        row = registry.session_by_pk(db, session.session_pk)
        taking = _Taking(landing, row)
        if only is None:
            removal = _delete_whole(taking, row, forks)
        else:
            removal = _delete_some(taking, row, only, forks)
        landing.finish()
        written = removals.load_removal(db, removal)
    landing.after_commit()
    return receipt_of(written)


def receipt_of(removal: RemovalRow) -> DeletionReceipt:
    """What a removal says of itself."""
    return DeletionReceipt(removal.removed, removal.kept, CANNOT_UNDO, removal.scrubbed)


def _delete_whole(taking: _Taking, session: SessionRow, forks: Forks) -> int:
    db = taking.db
    segments = _segments(taking, session, forks)
    before = [
        row for row in removals.removals_of_session(db, session.scope_pk, session.session_pk) if row.kind == "session"
    ]
    going = [
        turn
        for of in segments
        for turn in turns.turns_of_generation(db, of.generation)
        if not turn.removed and turn.start_seq >= of.needed
    ]
    if session.state == "deleted" and before and not going:
        return before[0].removal_pk
    if session.state != "deleted":
        taking.count("sessions", 1)
        removals.remember_session(db, session.scope_pk, session.host, session.key, taking.landing.at)
        removals.hide_session(db, session.session_pk)
        taking.erase("sessions", session.session_pk, session.session_pk + 1)
    taking.published += unpublish(taking.landing, _numbers(db, session), removed=True)
    taking.hide_turns(going)
    for of in segments:
        living = _others(db, session, of.segment)
        length = max((length for _fork, length in living), default=0)
        if of.needed < length and length > of.base:  # forgotten in forks that live on
            taking.hide_records(of.segment, of.base, length, buried=True)
        taking.hide_records(of.segment, max(of.base, length), of.end, buried=False)
        taking.hide_tree(of, length)
        for fork, rests_on in living:
            taking.keep(f"session:{fork.session_id}", fork_keeps(rests_on) if of.needed else LATER_SUMMARIES)
    taking.replace_nodes()
    return taking.write("session")


def _segments(taking: _Taking, session: SessionRow, forks: Forks) -> list[_Segment]:
    """
    The segments of every generation of a session, and how far others need them; and those of deleted sessions that it
    rests on: perhaps nobody needs them any more.
    """
    db = taking.db
    found: dict[int, _Segment] = {}
    for generation in registry.generations(db, session.session_pk):
        chain = taking.landing.scope.chain(db, registry.segment_of_generation(db, generation))
        for link in chain.links:
            made_by = registry.generation_of_segment(db, link.segment)
            if made_by is None or link.segment in found:
                continue
            own = made_by[1] == session.session_pk
            if not own and registry.session_by_pk(db, made_by[1]).state != "deleted":
                continue
            needed = max((length for _fork, length in _others(db, session, link.segment)), default=0)
            end = max(registry.segment_length(db, link.segment, link.base_length), link.base_length)
            found[link.segment] = _Segment(
                link.segment, link.tree, made_by[0], link.base_length, end, 0 if own and forks == "forget" else needed
            )
    return list(found.values())


def _others(db: Connection, session: SessionRow, segment: int) -> list[tuple[SessionRow, int]]:
    """The living sessions, other than this one, that rest on a segment, at whatever depth, and on how much of it."""
    found: list[tuple[SessionRow, int]] = []
    for over in registry.segments_over(db, segment):
        generation = registry.generation_of_segment(db, over.segment_pk)
        if generation is None:
            continue
        fork = registry.session_by_pk(db, generation[1])
        if fork.session_pk != session.session_pk and fork.state != "deleted":
            found.append((fork, over.base_length))
        else:
            found += [(each, over.base_length) for each, _ in _others(db, session, over.segment_pk)]
    return found


def _numbers(db: Connection, session: SessionRow) -> list[int]:
    """Every publication that a session ever made."""
    return [
        number
        for generation in registry.generations(db, session.session_pk)
        for number in publications.numbers_of_generation(db, generation)
    ]


def _delete_some(taking: _Taking, session: SessionRow, only: Sequence[str], forks: Forks) -> int:
    db = taking.db
    chosen: dict[int, TurnRow] = {}
    every = [
        turn
        for generation in registry.generations(db, session.session_pk)
        for turn in turns.turns_of_generation(db, generation)
    ]
    before = [
        row for row in removals.removals_of_session(db, session.scope_pk, session.session_pk) if row.kind == "turns"
    ]
    for name in only:
        named = _named(taking, every, name)
        if not named or session.state == "deleted":
            raise UnknownRef(f"{name[:80]!r} names no turn of session {session.session_id}; turns() lists them")
        chosen |= {turn.turn_pk: turn for turn in named}
    living = [turn for turn in chosen.values() if not turn.removed]
    if not living:
        took = [row for row in before if any(low <= pk < high for low, high in row.turns for pk in chosen)]
        return took[0].removal_pk
    if forks == "preserve":
        for turn in living:
            for fork, length in _others(db, session, turn.segment_pk):
                if length > turn.start_seq:
                    raise BadArgument(
                        f"session {fork.session_id}, a fork, has turn {turn.turn_id} as its own history; use"
                        " forks='forget' to hide it there too, or delete that session first"
                    )
    later = any(turn.ordinal > min(each.ordinal for each in living) for turn in every if turn.turn_pk not in chosen)
    if later:
        taking.keep(f"session:{session.session_id}", LATER_SUMMARIES)
    taking.hide_turns(living)
    for turn in living:
        taking.hide_records(turn.segment_pk, turn.start_seq, taking.end_of(turn), buried=True)
    taking.replace_nodes()
    return taking.write("turns")


def _named(taking: _Taking, every: Sequence[TurnRow], name: str) -> list[TurnRow]:
    """
    The turns that a turn id or a publication's ref names, in every generation.

    What was kept of a turn when it was cut says the same again under its id, so that both go.
    """
    if not isinstance(name, str):
        raise BadArgument("only holds turn ids and publication refs, which are strings")
    ids = {turn.turn_id for turn in every if turn.turn_id == name}
    if not ids and name.startswith("pub:"):
        ref = parse_ref(name)
        if isinstance(ref, PublicationRef) and ref.span.count == 1:
            row = publications.load_publication(taking.db, taking.landing.scope.pk << KEY_BITS | ref.span.start)
            ids = {turn.turn_id for turn in every if row is not None and turn.turn_pk == row.turn_pk}
    return [turn for turn in every if turn.turn_id in ids]


def revoke(scope: Scope, session: SessionRow) -> None:
    """
    Share nothing of a session any more (§ 12): its publications are gone for everybody, and none is made.

    The session itself goes on, in private; its forks keep what they rest on. Atomic. Idempotent.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        row = registry.session_by_pk(db, session.session_pk)
        check_usable(row, row.generation_pk)
        taking = _Taking(landing, row)
        for generation in registry.generations(db, row.session_pk):
            for turn in turns.turns_of_generation(db, generation):
                removals.drop_jobs(db, ("publication",), turn.turn_pk, turn.turn_pk + 1)
        taking.published += unpublish(landing, _numbers(db, row), removed=True)
        registry.set_sharing(db, row.session_pk, revoked=True, shared_from=row.shared_from)
        if taking.published:
            taking.replace_nodes()
            taking.write("revoke")
        landing.finish()
    landing.after_commit()


def delete_scope(scope: Scope) -> DeletionReceipt:
    """
    Hide a whole scope (§ 12): every session, what they shared, and its name. Atomic. Idempotent.

    Nothing of it is ever read again, so that nothing is put in its place.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        written = removals.removals_of_session(db, scope.pk, None)
        if written:
            return receipt_of(written[0])
        landing = Landing(scope, db, scope.now())
        taking = _Taking(landing, None)
        hidden = removals.hide_all(db, scope.pk, landing.at)
        for what, number in hidden.items():
            taking.count(what, number)
        for segment, tree, _base, _ended in registry.scope_segments(db, scope.pk):
            taking.erase("records", segment << KEY_BITS, (segment + 1) << KEY_BITS)
            taking.erase("trees", tree, tree + 1)
        taking.erase("trees", scope.row.shared_tree, scope.row.shared_tree + 1)
        taking.erase("publications", scope.pk << KEY_BITS, (scope.pk + 1) << KEY_BITS)
        taking.erase("documents", scope.pk << KEY_BITS, (scope.pk + 1) << KEY_BITS)
        for low, high in _runs(removals.turns_of_scope(db, scope.pk)):
            taking.erase("turns", low, high)
        for low, high in _runs(removals.sessions_of_scope(db, scope.pk)):
            taking.erase("sessions", low, high)
        taking.erase("scopes", scope.pk, scope.pk + 1)
        removal = taking.write("scope")
        removals.hide_scope(db, scope.pk)
        landing.finish()
        done = removals.load_removal(db, removal)
    landing.after_commit()
    return receipt_of(done)
