"""
Origins: what an existing node was made of, and what was made of it (§ 4).

Decides: which job a node came from, which nodes are its inputs, and which nodes it is an input of, in whatever tree.
Refuses to know: why a node is made anew, and who makes it.

Inputs lie below what is made of them, whatever the tree: pages and their merges below their record's leaf, a session's
nodes below their parents (of this segment or of one that rests on it) and below the publication that names them in its
cover, publications below the shared tree's inner nodes. :func:`rank` puts any set of nodes into such an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from optchat.core import publications as rules
from optchat.core.errors import IntegrityError
from optchat.core.jobs import JobKind
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.refs import KEY_BITS, Span, exact_cover, span_of_post_order
from optchat.core.tree import Node, inputs_sha256, joined, text_sha256
from optchat.engine.handle import Scope
from optchat.engine.trees import Tree, page_tree, session_tree, shared_tree
from optchat.store import forest, publications, registry, turns
from optchat.store.forest import TreeRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


@frozen
class Origin:
    """
    The job that made a node at first, and the nodes that it was made of.

    ``tree`` is that of the inputs, None where they are no nodes: a record's own text, or a page of it.
    """

    kind: JobKind
    subject: int
    position: int = 0
    tree: Tree | None = None
    inputs: tuple[Span, ...] = ()
    turn: TurnRow | None = None  # of a publication

    @property
    def input_keys(self) -> tuple[int, ...]:
        return () if self.tree is None else tuple(self.tree.key(span) for span in self.inputs)


@frozen
class TreePlace:
    """A tree of a scope, and what its leaves are: a segment's records, pages of a payload, else publications."""

    tree_pk: int
    segment: int | None = None
    chunks: TreeRow | None = None


def trees_of_scope(scope: Scope, db: Connection) -> list[TreePlace]:
    """Every tree of a scope, each after those that its nodes may be made of."""
    found: list[TreePlace] = []
    # A segment is made after its base, so that the order of their keys is that of what rests on what.
    for segment, tree, _base, _ended in sorted(registry.scope_segments(db, scope.pk)):
        found += [TreePlace(chunks.tree_pk, chunks=chunks) for chunks in forest.chunk_trees(db, segment)]
        found.append(TreePlace(tree, segment))
    return [*found, TreePlace(scope.row.shared_tree)]


def origins_in(scope: Scope, db: Connection, place: TreePlace, node_keys: Iterable[int]) -> dict[int, Origin]:
    """What nodes of one tree were made of: as :func:`origin_of` each, with less to read."""
    spans = {key: span_of_post_order(ordinal_of(key)) for key in node_keys}
    if place.chunks is not None:
        return {key: page_origin(scope, key) for key in spans}
    if place.segment is None:
        return {key: origin_of(scope, db, key) for key in spans}
    tree = session_tree(scope, db, place.segment)
    records = {key: place.segment << KEY_BITS | span.start for key, span in spans.items() if span.count == 1}
    chunks = forest.find_chunk_trees(db, records.values())
    return {
        key: leaf_origin(scope, key, chunks.get(records[key]))
        if key in records
        else Origin("merge", key, tree=tree, inputs=span.children)
        for key, span in spans.items()
    }


def origin_of(scope: Scope, db: Connection, key: int) -> Origin:
    """
    What a node was made of.

    Raises:
        IntegrityError: its tree, or the publication that it is the leaf of, is missing.
    """
    tree_pk, span = owner_of(key), span_of_post_order(ordinal_of(key))
    if tree_pk == scope.row.shared_tree:
        if span.count > 1:
            return Origin("merge", key, tree=shared_tree(scope), inputs=span.children)
        return _publication(scope, db, span.start)
    segment = registry.segment_of_tree(db, tree_pk)
    if segment is not None:
        if span.count > 1:
            return Origin("merge", key, tree=session_tree(scope, db, segment[0]), inputs=span.children)
        return leaf_origin(scope, key, forest.find_chunk_tree(db, segment[0] << KEY_BITS | span.start))
    if forest.load_tree(db, tree_pk) is None:
        raise IntegrityError(f"tree {tree_pk} is missing; run verify() and restore a backup")
    return page_origin(scope, key)


def leaf_origin(scope: Scope, key: int, chunks: TreeRow | None) -> Origin:
    """What a session's leaf was made of: its record, or the pages of it."""
    seq = span_of_post_order(ordinal_of(key)).start
    if chunks is None or chunks.pages is None:
        return Origin("leaf", key, seq)
    return Origin("leaf", key, seq, page_tree(scope, chunks.tree_pk), exact_cover(0, chunks.pages))


def page_origin(scope: Scope, key: int) -> Origin:
    """What a node of a chunk tree was made of."""
    span = span_of_post_order(ordinal_of(key))
    if span.count == 1:
        return Origin("chunk", key, span.start)
    return Origin("chunk", key, tree=page_tree(scope, owner_of(key)), inputs=span.children)


def _publication(scope: Scope, db: Connection, number: int) -> Origin:
    row = publications.load_publication(db, scope.pk << KEY_BITS | number)
    turn = None if row is None else turns.load_turn(db, row.turn_pk)
    if turn is None:
        raise IntegrityError(f"publication {number} or its turn is missing; run verify() and restore a backup")
    tree = session_tree(scope, db, turn.segment_pk)
    return Origin("publication", turn.turn_pk, tree=tree, inputs=finished_turn(turn).cover, turn=turn)


def dependents(scope: Scope, db: Connection, key: int) -> list[int]:
    """
    The positions that a node is an input of, whether or not there is a node yet.

    Where the publication is still to come, whose position nobody knows yet, its turn stands in place of it (tree 0).
    """
    tree_pk, span = owner_of(key), span_of_post_order(ordinal_of(key))
    if tree_pk == scope.row.shared_tree:
        return [node_key(tree_pk, span.parent)]
    segment = registry.segment_of_tree(db, tree_pk)
    if segment is None:
        return _above_pages(db, tree_pk, span)
    found = {node_key(tree_pk, span.parent)}
    for child in resting_segments(db, segment[0], span.end):
        found.add(session_tree(scope, db, child).key(span.parent))
    turn = turns.turn_at(db, segment[0], span.start)
    if turn is not None and turn.end_seq is not None and span in exact_cover(turn.start_seq, turn.end_seq):
        number = publications.live_number(db, turn.turn_pk)
        found.add(turn.turn_pk if number is None else node_key(scope.row.shared_tree, Span(number, 1)))
    return sorted(found)


def _above_pages(db: Connection, tree_pk: int, span: Span) -> list[int]:
    chunks = forest.load_tree(db, tree_pk)
    if chunks is None or chunks.record_key is None or chunks.pages is None:
        raise IntegrityError(f"tree {tree_pk} is missing; run verify() and restore a backup")
    if span not in exact_cover(0, chunks.pages):
        return [node_key(tree_pk, span.parent)]
    own = registry.load_chain(db, owner_of(chunks.record_key)).own.tree
    return [node_key(own, Span(ordinal_of(chunks.record_key), 1))]


def rank(scope: Scope, db: Connection, key: int) -> tuple[int, int, int]:
    """Sorts inputs before what is made of them."""
    tree_pk, span = owner_of(key), span_of_post_order(ordinal_of(key))
    if not tree_pk:  # a turn that is still to be published
        return 2, 0, key
    if tree_pk == scope.row.shared_tree:
        return 2, span.level, key
    return int(registry.segment_of_tree(db, tree_pk) is not None), span.level, key


def resting_segments(db: Connection, segment_pk: int, end: int) -> list[int]:
    """
    The segments that rest on at least the first ``end`` records of a segment, at any depth: their views use its
    nodes.
    """
    found: list[int] = []
    waiting = [segment_pk]
    while waiting:
        for child in registry.segments_on(db, waiting.pop(), end):
            found.append(child)
            waiting.append(child)
    return found


def finished_turn(turn: TurnRow) -> rules.Turn:
    """A turn row as the rules of publication see it."""
    if turn.end_seq is None or turn.outcome is None or turn.ended_at is None:
        raise IntegrityError(f"turn {turn.turn_id} has not ended; run verify() to see what took it for an ended one")
    return rules.Turn(turn.start_seq, turn.end_seq, turn.outcome, turn.started_at, turn.ended_at)


def children_sha256(tree: Tree, nodes: Sequence[Node]) -> bytes:
    """The hash of a node's inputs where they are nodes."""
    return inputs_sha256([(tree.key(node.span), node.revision, text_sha256(node.text)) for node in nodes])


def made_without_a_call(origin: Origin, key: int, inputs: Sequence[Node], node_bytes: int) -> Node | None:
    """A node from its inputs where they fit together; None where a summarizer has to be asked, as of a leaf always."""
    if origin.kind == "publication" and origin.turn is not None:
        number = span_of_post_order(ordinal_of(key)).start
        return rules.publication_leaf(number, finished_turn(origin.turn), inputs, node_bytes)
    if origin.kind == "leaf" or len(inputs) < 2:
        return None
    left, right = inputs
    return joined(left, right, node_bytes)
