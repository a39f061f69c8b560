"""
Taking away (§ 12): what one removal takes, from rows to nodes, inside the caller's transaction.

Decides: which rows a removal hides, what is put in the place of nodes that lose a source, and what is to be erased.
Refuses to know: which turns belong to a removal (:mod:`optchat.engine.forgetting`), and how bytes leave the file.

Order matters. Jobs go before what they would make, so that nothing lands that was dropped; event keys are remembered
before their records are hidden; publications leave before nodes are replaced; leaves that were still to be made come
last, as tombstones, when everything beside them is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from optchat.core.forgetting import joined_reasons, own_words
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.refs import KEY_BITS, Span, post_order, publication_ref, span_of_post_order
from optchat.core.snapshots import Taken
from optchat.core.tree import REMOVED, Node
from optchat.engine.echoes import echoes, words_said
from optchat.engine.landing import Landing
from optchat.engine.trees import session_tree
from optchat.engine.withdrawing import NO_INPUTS, TOMBSTONE, Gone, forget_retired, leaf_key, replace, unpublish
from optchat.store import forest, payloads, publications, queue, registry, removals, scrubs, turns
from optchat.store.publications import PublicationRow
from optchat.store.registry import SessionRow
from optchat.store.removals import RemovalKind
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

Range: TypeAlias = tuple[scrubs.Kind, int, int]


@frozen
class SegmentOf:
    """A segment of the session: its own records are ``[base, end)``, of which others need those below ``needed``."""

    segment: int
    tree: int
    generation: int
    base: int
    end: int
    needed: int


@define
class Taking:
    """One removal on its way: what it has taken so far."""

    landing: Landing
    session: SessionRow | None
    counts: dict[str, int] = field(factory=dict[str, int])
    kept: dict[str, list[str]] = field(factory=dict[str, list[str]])
    turns: list[int] = field(factory=list[int])
    erasures: set[Range] = field(factory=set[Range])
    gone: dict[int, Gone] = field(factory=dict[int, Gone])
    published: list[PublicationRow] = field(factory=list[PublicationRow])
    pending: dict[int, Node] = field(factory=dict[int, Node])  # tombstones of leaves that were still to be made
    said: dict[int, set[str]] = field(factory=dict[int, set[str]])  # by segment: the words of what is buried in it
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
            self._pass_on(turn)

    def _pass_on(self, turn: TurnRow) -> None:
        """
        Who waited for a turn's publication goes on without it, or waits for what that waited for.

        Publications of one generation are made in turn order: where an earlier turn is still to be published, the next
        one after this must not come before it.
        """
        session, _number = registry.session_of_generation(self.db, turn.generation_pk)
        present = session.generation_pk == turn.generation_pk
        before = turns.publishable_before(self.db, turn, session.shared_from if present else 0)
        if before is not None and before.publication_key is None:
            queue.wait_instead(self.db, turn.turn_pk, before.turn_pk)
        else:
            self.landing.unmade(turn.turn_pk)

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
            said = words_said(self.landing.scope, db, range(low, high))
            self.said.setdefault(segment, set()).update(said)
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

    def hide_tree(self, of: SegmentOf, keep: int) -> None:
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
        for key in echoes(self.landing.scope, self.db, self.said):
            self.gone.setdefault(key, Gone(None))
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
        self._erase_history([*done, *forget_retired(self.landing, self.published)])
        self.count("nodes", len(set(done)))
        self._rewritten(done)

    def _erase_history(self, keys: Iterable[int]) -> None:
        """One range a tree: only what is hidden of it is erased, and a thousand ranges would be a thousand steps."""
        by_tree: dict[int, list[int]] = {}
        for key in keys:
            by_tree.setdefault(owner_of(key), []).append(key)
        for found in by_tree.values():
            self.erase("history", min(found), max(found) + 1)

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
        for low, high in runs(keys):
            self.erase("publications", low, high)
        for low, high in runs(self.turns):
            self.erase("turns", low, high)
        self._shown(keys)
        # No turn was shown what a later one said.
        first = min([*self.turns, *(row.turn_pk for row in self.published)], default=0)
        self.erase("renderings", first, turns.next_turn_pk(db))
        self.erase("orphans", 0, payloads.next_blob_pk(db))
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
            turns=runs(self.turns),
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


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges that go on from one another as one."""
    found: list[Range] = []
    for kind, low, high in sorted(ranges):
        if found and found[-1][0] == kind and low <= found[-1][2]:
            found[-1] = kind, found[-1][1], max(high, found[-1][2])
        else:
            found.append((kind, low, high))
    return found


def runs(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Keys as ranges ``[low, high)``."""
    found: list[tuple[int, int]] = []
    for key in sorted(set(keys)):
        if found and found[-1][1] == key:
            found[-1] = found[-1][0], key + 1
        else:
            found.append((key, key + 1))
    return found
