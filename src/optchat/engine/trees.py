"""
The trees of a scope behind one face.

Decides: where the nodes of a session's, the shared, or a chunk tree are, and what a line of each costs in a view.
Refuses to know: when a node is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import Chain, node_key, owner_of
from optchat.core.refs import Span, exact_cover
from optchat.core.render import line_size, outcome_label
from optchat.core.tree import Node
from optchat.engine.handle import Scope
from optchat.store import forest, registry
from optchat.store.forest import NEWEST, Size
from optchat.store.rows import Connection

_SESSION_ID_BYTES = 8


class Tree(Protocol):
    """Positions and nodes of one tree."""

    def key(self, span: Span) -> int: ...

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]: ...

    def sizes(self, db: Connection, spans: Iterable[Span]) -> dict[Span, Size]: ...

    def line_bytes(self, span: Span, size: Size) -> int: ...


@frozen
class SessionTree:
    """A session's tree along its chain; leaves that fit are read from the records."""

    chain: Chain

    def key(self, span: Span) -> int:
        return self.chain.node_key(span)

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
        return forest.session_nodes(db, self.chain, spans, clock)

    def sizes(self, db: Connection, spans: Iterable[Span]) -> dict[Span, Size]:
        return forest.session_sizes(db, self.chain, spans)

    def line_bytes(self, span: Span, size: Size) -> int:
        return line_size(len(str(span)), size.escaped_bytes)


@frozen
class PlainTree:
    """A tree whose every node has a row: the pages of a large payload."""

    tree_pk: int

    def key(self, span: Span) -> int:
        return node_key(self.tree_pk, span)

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
        by_key = {self.key(span): span for span in spans}
        return {by_key[key]: node for key, node in forest.load_nodes(db, by_key, clock, by_key).items()}

    def sizes(self, db: Connection, spans: Iterable[Span]) -> dict[Span, Size]:
        by_key = {self.key(span): span for span in spans}
        return {by_key[key]: size for key, size in forest.load_sizes(db, by_key).items()}

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
    not move. Leaves are there: what a pinned reader may see was durable when it was published.
    """

    tree: Tree
    clock: int

    def key(self, span: Span) -> int:
        return self.tree.key(span)

    def nodes(self, db: Connection, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
        return self.tree.nodes(db, self._then(db, spans), min(clock, self.clock))

    def sizes(self, db: Connection, spans: Iterable[Span]) -> dict[Span, Size]:
        return self.tree.sizes(db, self._then(db, spans))

    def line_bytes(self, span: Span, size: Size) -> int:
        return self.tree.line_bytes(span, size)

    def _then(self, db: Connection, spans: Iterable[Span]) -> list[Span]:
        wanted = list(spans)
        born = forest.born_by(db, [self.key(span) for span in wanted if span.count > 1], self.clock)
        return [span for span in wanted if span.count == 1 or self.key(span) in born]


def shared_tree(scope: Scope) -> SharedTree:
    """The scope's tree of publications."""
    return SharedTree(scope.row.shared_tree)


def session_tree(scope: Scope, db: Connection, segment_pk: int) -> SessionTree:
    """The tree of a segment, along its chain."""
    return SessionTree(scope.chain(db, segment_pk))


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
    return PlainTree(tree_pk)


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


def line_sizes(db: Connection, tree: Tree) -> Callable[[Span], int | None]:
    """What a line of each position costs in a view, None where no node is durable; each is read once."""
    known: dict[Span, int | None] = {}

    def size(span: Span) -> int | None:
        if span not in known:
            found = tree.sizes(db, [span]).get(span)
            known[span] = None if found is None else tree.line_bytes(span, found)
        return known[span]

    return size
