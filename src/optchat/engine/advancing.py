"""
Advancing: how views hear of what landed, was published, or was revised (§ 6).

Decides: nothing that core does not: which views a transaction concerns, and one plan for each.
Refuses to know: why something landed.

A view's revision moves with every landing that it may use, and with every change of a size that it knows, so that a
frontier that another process holds is found out of date. One new revision a tree and transaction, however much landed.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from optchat.core.refs import Span, completed_by
from optchat.core.views import Frontier, FrontierChange, FrontierState, plan_appends, plan_growth, plan_land
from optchat.engine.handle import HeldFrontier, Scope
from optchat.engine.trees import Tree, restore_frontier, session_tree, shared_tree
from optchat.store import forest, registry
from optchat.store.rows import Connection

_STEP = 64
_SHARED = 0  # among segments, whose keys begin at 1


@define
class Views:
    """One transaction's news for views. Feed it, :meth:`advance` once, and :meth:`after_commit` when it is durable."""

    scope: Scope
    db: Connection
    _landed: dict[int, list[Span]] = field(factory=dict[int, list[Span]])  # by segment; the shared tree's too
    _published: list[Span] = field(factory=list[Span])
    _resized: set[int] = field(factory=set[int])  # segments of which a known size is another now
    _grown: set[int] = field(factory=set[int])  # segments whose views may have another leaf to append
    _advanced: list[tuple[int, int, Frontier, FrontierChange]] = field(
        factory=list[tuple[int, int, Frontier, FrontierChange]]
    )

    def turn_ended(self, segment_pk: int) -> None:
        """The records of a segment's ended turns have become more."""
        self._landed.setdefault(segment_pk, [])
        self._grown.add(segment_pk)

    def published(self, leaf: Span) -> None:
        self._published.append(leaf)

    def in_sessions(self, segments: Iterable[int], span: Span, *, revised: bool) -> None:
        """A node landed, or was revised, that the views of these segments may use."""
        for segment in segments:
            self._heard(segment, span, revised)

    def in_shared(self, span: Span, *, revised: bool) -> None:
        """The same of the shared view; a leaf that lands is :meth:`published`."""
        if span.count > 1 or revised:
            self._heard(_SHARED, span, revised)

    def _heard(self, place: int, span: Span, revised: bool) -> None:
        self._landed.setdefault(place, []).append(span)
        if span.count == 1:
            self._grown.add(place)
        if revised:
            self._resized.add(place)

    def advance(self) -> None:
        for place in list(self._landed):
            if place != _SHARED:
                self._advance_session(place)
        if self._published or _SHARED in self._landed:
            self._advance_shared()

    def after_commit(self) -> None:
        """What may only be believed now: the frontiers in memory."""
        for tree, revision, frontier, change in self._advanced:
            frontier.apply(change)
            self.scope.caches.frontiers.put(tree, HeldFrontier(revision, frontier))

    def _advance_session(self, segment_pk: int) -> None:
        """Append the leaves of ended turns that are durable without a gap, and merge what may merge."""
        tree = session_tree(self.scope, self.db, segment_pk)
        own = tree.chain.own
        stored = registry.segment_of_tree(self.db, own.tree)
        assert stored is not None, "the segment's own tree"
        view = forest.load_view(self.db, own.tree)
        leaves = self._durable_from(tree, view.length, stored[1]) if segment_pk in self._grown else []
        self._advance(tree, own.tree, segment_pk, view, leaves)

    def _durable_from(self, tree: Tree, start: int, end: int) -> list[int]:
        """
        The bytes of the leaves up to the first that is not durable. Looked for step by step: where summaries are far
        behind, the gap is near, and each end of a turn would look at all that lies behind it.
        """
        leaves: list[int] = []
        while start < end:
            spans = [Span(seq, 1) for seq in range(start, min(start + _STEP, end))]
            sizes = tree.sizes(self.db, spans)
            for span in spans:
                if span not in sizes:
                    return leaves
                leaves.append(tree.line_bytes(span, sizes[span]))
            start += _STEP
        return leaves

    def _advance_shared(self) -> None:
        tree = shared_tree(self.scope)
        view = forest.load_view(self.db, tree.tree_pk)
        sizes = tree.sizes(self.db, self._published)
        leaves = [tree.line_bytes(span, sizes[span]) for span in self._published]
        self._advance(tree, tree.tree_pk, _SHARED, view, leaves)

    def _advance(self, tree: Tree, tree_pk: int, place: int, view: forest.ViewRow, leaves: list[int]) -> None:
        resized = place in self._resized
        held = self.scope.caches.frontiers.take(tree_pk)
        if held is not None and held.revision == view.revision and not resized:  # else it judged by sizes that are none
            frontier = held.frontier
        elif not resized and self._only_grows(place, view, leaves):
            return
        else:
            state = FrontierState(view.levels, view.shrinking)
            frontier = restore_frontier(self.scope, self.db, tree, state)
        # The inner nodes that landed in this transaction and that a view of that length may use.
        length = view.length + len(leaves)
        landed = {span for span in self._landed.get(place, ()) if span.count > 1 and span.end <= length}
        news = self._unheard(tree, frontier, landed, view.length, len(leaves))
        change = plan_appends(frontier, leaves, news) if leaves else plan_land(frontier, news)
        revision = view.revision
        # The revision moves with every landing that a view may use, not only when its lines change: a frontier held by
        # another process would otherwise not hear of a durable parent. That this one knew it already says nothing: it
        # may have been loaded a moment ago, in this very transaction.
        if change.changed or landed or resized:
            revision += 1
            self._save(tree_pk, revision, change)
        # Kept only after the commit, even unchanged: what was loaded here knows of nodes that a rollback would undo.
        self._advanced.append((tree_pk, revision, frontier, change))

    def _only_grows(self, place: int, view: forest.ViewRow, leaves: list[int]) -> bool:
        """
        Advance a view that does not shrink, and will not yet, by its size alone: no line merges outside of a batch.

        Whether it was so. After another process's commit no frontier at hand is true for the view, and to build one
        reads every line and all that lies over it, under the lock that the other process waits for.
        """
        if view.bytes is None:
            return False
        state = FrontierState(view.levels, view.shrinking)
        change = plan_growth(state, view.bytes, view.length, leaves, self.scope.view_policy)
        if change is None:
            return False
        if leaves or any(span.count > 1 and span.end <= change.length for span in self._landed.get(place, ())):
            self._save(view.tree_pk, view.revision + 1, change)
        return True

    def _save(self, tree_pk: int, revision: int, change: FrontierChange) -> None:
        state = change.state
        row = forest.ViewRow(tree_pk, revision, change.length, state.levels, state.shrinking, change.bytes)
        forest.save_view(self.db, row)

    def _unheard(
        self, tree: Tree, frontier: Frontier, landed: set[Span], length: int, appended: int
    ) -> dict[Span, int]:
        """The durable inner nodes that a frontier has not heard of: what landed, and what lies over appended leaves."""
        spans = landed.union(span for leaf in range(length, length + appended) for span in completed_by(leaf))
        unknown = [span for span in spans if frontier.size(span) is None]
        return (
            {span: tree.line_bytes(span, size) for span, size in tree.sizes(self.db, unknown).items()}
            if unknown
            else {}
        )
