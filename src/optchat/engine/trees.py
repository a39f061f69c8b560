"""
The trees of a scope behind one face.

Decides: where the nodes of a session's, the shared, or a chunk tree are, what a line of each costs in a view, and how a
stored view is taken up again. Refuses to know: when a node is made.

A scope may carry drafts: revisions that are thought of and not committed. Its trees show them in place of the nodes
that they would follow, so that whatever is made of them is made as it would be after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import field, frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import Chain, node_key, owner_of
from optchat.core.refs import Span, completed_by, exact_cover
from optchat.core.render import line_size, outcome_label
from optchat.core.tree import Node
from optchat.core.views import Frontier, FrontierState, plan_appends
from optchat.engine.handle import NO_DRAFTS, Drafts, Scope
from optchat.store import forest, registry
from optchat.store.forest import NEWEST, Size
from optchat.store.rows import Connection

_SESSION_ID_BYTES = 8


class Tree(Protocol):
    """Positions and nodes of one tree."""

    def key(self, span: Span) -> int: ...

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]: ...

    def sizes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Size]: ...

    def line_bytes(self, span: Span, size: Size) -> int: ...


def _drafted_nodes(tree: Tree, drafts: Drafts, found: dict[Span, Node], clock: int) -> dict[Span, Node]:
    if not drafts or clock != NEWEST:  # under a clock stands what stood there then
        return found
    return {span: drafts.get(tree.key(span), node) for span, node in found.items()}


def _drafted_sizes(tree: Tree, drafts: Drafts, found: dict[Span, Size], clock: int) -> dict[Span, Size]:
    if not drafts or clock != NEWEST:
        return found
    drafted = ((span, drafts.get(tree.key(span))) for span in found)
    return found | {
        span: Size(draft.escaped_bytes, draft.failed, draft.interrupted) for span, draft in drafted if draft is not None
    }


@frozen
class SessionTree:
    """A session's tree along its chain; leaves that fit are read from the records."""

    chain: Chain
    drafts: Drafts = field(default=NO_DRAFTS, eq=False)

    def key(self, span: Span) -> int:
        return self.chain.node_key(span)

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
        return _drafted_nodes(self, self.drafts, forest.session_nodes(db, self.chain, spans, clock), clock)

    def sizes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Size]:
        return _drafted_sizes(self, self.drafts, forest.session_sizes(db, self.chain, spans, clock), clock)

    def line_bytes(self, span: Span, size: Size) -> int:
        return line_size(len(self.chain.short(span)), size.escaped_bytes)


@frozen
class PlainTree:
    """A tree whose every node has a row: the pages of a large payload."""

    tree_pk: int
    drafts: Drafts = field(default=NO_DRAFTS, eq=False)

    def key(self, span: Span) -> int:
        return node_key(self.tree_pk, span)

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
        by_key = {self.key(span): span for span in spans}
        found = {by_key[key]: node for key, node in forest.load_nodes(db, by_key, clock, by_key).items()}
        return _drafted_nodes(self, self.drafts, found, clock)

    def sizes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Size]:
        by_key = {self.key(span): span for span in spans}
        found = {by_key[key]: size for key, size in forest.load_sizes(db, by_key, clock).items()}
        return _drafted_sizes(self, self.drafts, found, clock)

    def line_bytes(self, span: Span, size: Size) -> int:
        return line_size(len(str(span)), size.escaped_bytes)


@frozen
class SharedTree(PlainTree):
    """The scope's tree of publications."""

    def line_bytes(self, span: Span, size: Size) -> int:
        """A leaf is labelled with its session and its outcome, an inner line with what was not completed."""
        if span.count > 1:
            label = len(outcome_label(size.failed, size.interrupted))
        else:
            label = _SESSION_ID_BYTES + (
                len(" failed") if size.failed else len(" interrupted") if size.interrupted else 0
            )
        return line_size(len("pub:") + len(str(span)), size.escaped_bytes, label)


@frozen
class PinnedTree:
    """
    A tree as it was under a clock: an inner node that landed later is not there, so that a cover planned from it does
    not move, and what was repaired later is as it was. Leaves are there: what a pinned reader may see was durable when
    it was published.
    """

    tree: Tree
    clock: int

    def key(self, span: Span) -> int:
        return self.tree.key(span)

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
        return self.tree.nodes(db, self._then(db, spans), min(clock, self.clock))

    def sizes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Size]:
        return self.tree.sizes(db, self._then(db, spans), min(clock, self.clock))

    def line_bytes(self, span: Span, size: Size) -> int:
        return self.tree.line_bytes(span, size)

    def _then(self, db: Connection, spans: Iterable[Span]) -> list[Span]:
        wanted = list(spans)
        born = forest.born_by(db, [self.key(span) for span in wanted if span.count > 1], self.clock)
        return [span for span in wanted if span.count == 1 or self.key(span) in born]


def shared_tree(scope: Scope) -> SharedTree:
    """The scope's tree of publications."""
    return SharedTree(scope.row.shared_tree, scope.drafts)


def session_tree(scope: Scope, db: Connection, segment_pk: int) -> SessionTree:
    """The tree of a segment, along its chain."""
    return SessionTree(scope.chain(db, segment_pk), scope.drafts)


def page_tree(scope: Scope, tree_pk: int) -> PlainTree:
    """The tree over the pages of a large payload."""
    return PlainTree(tree_pk, scope.drafts)


def tree_of_key(scope: Scope, db: Connection, key: int) -> Tree:
    """The tree that a node key belongs to."""
    tree_pk = owner_of(key)
    if tree_pk == scope.row.shared_tree:
        return shared_tree(scope)
    segment = registry.segment_of_tree(db, tree_pk)
    if segment is not None:
        return session_tree(scope, db, segment[0])
    if forest.load_tree(db, tree_pk) is None:
        raise IntegrityError(f"tree {tree_pk} is missing; run verify() and restore a backup")
    return page_tree(scope, tree_pk)


def durable_cover(db: Connection, tree: Tree, start: int, end: int) -> tuple[Span, ...]:
    """
    ``[start, end)`` by the largest nodes that are durable; a leaf that is not stands alone, for its reader to
    name.
    """
    found: list[Span] = []
    waiting = list(reversed(exact_cover(start, end)))
    while waiting:
        span = waiting.pop()
        if span.count == 1 or tree.sizes(db, [span]):
            found.append(span)
        else:
            waiting.extend(reversed(span.children))
    return tuple(found)


def line_sizes(db: Connection, tree: Tree, *, levels: int = 0) -> Callable[[Span], int | None]:
    """
    What a line of each position costs in a view, None where no node is durable; each is read once.

    Args:
        levels: so many below it are read with it: a cover that is made finer asks for them next, one by one.
    """
    known: dict[Span, int | None] = {}

    def size(span: Span) -> int | None:
        if span not in known:
            wanted = level = [span]
            for _ in range(min(levels, span.level)):
                level = [child for above in level for child in above.children]
                wanted = [*wanted, *level]
            found = tree.sizes(db, wanted)
            known.update({each: tree.line_bytes(each, found[each]) if each in found else None for each in wanted})
        return known[span]

    return size


# ---- views over trees ------------------------------------------------------------------------------------------------


def restore_frontier(scope: Scope, db: Connection, tree: Tree, state: FrontierState, clock: int = NEWEST) -> Frontier:
    """Build the working structure of a stored frontier: its lines' sizes and those of every durable ancestor."""
    spans = state.spans
    sizes = tree.sizes(db, {*spans, *ancestors_within(spans)}, clock)
    return Frontier.restore(
        state, {span: tree.line_bytes(span, size) for span, size in sizes.items()}, scope.view_policy
    )


def ancestors_within(spans: tuple[Span, ...]) -> set[Span]:
    """Every inner position above given lines that their cover contains: as many as there are lines, less one a root."""
    if not spans:
        return set()
    end, found = spans[-1].end, set[Span]()
    for span in spans:
        parent = span.parent
        while parent.end <= end and parent not in found:
            found.add(parent)
            parent = parent.parent
    return found


def grown_cover(
    scope: Scope, db: Connection, tree: Tree, state: FrontierState, end: int, clock: int, *, whole: bool = False
) -> tuple[tuple[Span, ...], frozenset[Span]]:
    """
    A copy of a view, grown to ``end`` by the leaves that landed since it was taken; and the leaves that did not.

    Sizes are those of a clock: what was repaired since must not merge other lines than it would have then.

    Args:
        whole: a cover with gaps is of no use: where leaves are missing nothing is planned, and no cover given.
    """
    length = state.length
    if length >= end:
        return state.spans, frozenset()
    wanted = [Span(seq, 1) for seq in range(length, end)]
    sizes = tree.sizes(db, wanted, clock)
    durable = next((place for place, span in enumerate(wanted) if span not in sizes), len(wanted))
    missing = frozenset(span for span in wanted if span not in sizes)
    if missing and whole:
        return (), missing
    spans = state.spans
    if durable:
        frontier = restore_frontier(scope, db, tree, state, clock)
        parents = {span for leaf in range(length, length + durable) for span in completed_by(leaf)}
        landed = {span: tree.line_bytes(span, size) for span, size in tree.sizes(db, parents, clock).items()}
        leaves = [tree.line_bytes(span, sizes[span]) for span in wanted[:durable]]
        spans = plan_appends(frontier, leaves, landed).state.spans
    # Past the first gap there is no frontier: the durable cover of the rest, and a line for each leaf that it lacks.
    rest = durable_cover(db, tree, length + durable, end) if missing else ()
    return (*spans, *rest), missing
