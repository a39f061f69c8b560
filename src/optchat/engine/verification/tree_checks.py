"""
What was made of sources: nodes, what is due, views.

Decides: which nodes, and which views, do not follow from what is under them.
Refuses to know: how they are made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from optchat.core.errors import OptchatError
from optchat.core.jobs import JobKind
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.refs import KEY_BITS, Span, completed_by
from optchat.core.render import escaped_size
from optchat.core.tree import Node
from optchat.core.views import FrontierState, length_of
from optchat.engine.handle import Scope
from optchat.engine.inputs import chunk_tree, page_inputs, record_inputs
from optchat.engine.origins import Origin, TreePlace, children_sha256, made_without_a_call, origins_in
from optchat.engine.trees import SharedTree, Tree, session_tree, shared_tree
from optchat.engine.verification.checking import STEP, Check, Segment, ref_of, span_of
from optchat.store import checks, due, forest, ledger, publications, registry, remakes, scopes, structure
from optchat.store.forest import MadeRow
from optchat.store.ledger import RecordRow
from optchat.store.rows import Connection

_LEAVES_A_STEP = 250


# ---- nodes -----------------------------------------------------------------------------------------------------------


def check_nodes(check: Check, place: TreePlace) -> None:
    """Texts within their limits, and hashes, outcomes, times and joins that follow from what is below."""
    after = -1
    while True:
        rows: list[tuple[int, int]] = []
        with check.reading("PAYLOAD_MISSING") as db:
            rows = forest.recipes_of_tree(db, place.tree_pk, after=after, limit=STEP)
            node_keys = [key for key, _recipe in rows]
            origins = origins_in(check.scope, db, place, node_keys)
            remade = remakes.remakes(db, node_keys)
            for key, made in sorted(forest.load_made(db, node_keys).items()):
                ref = ref_of(db, place, made.node.span)
                _size(check, made, ref)
                if made.recipe_kind != "tombstone":  # which says nothing of what it was made of
                    _origin(check, db, made, origins[key], ref, coming=key in remade)
            check.count("nodes", len(rows))
        if len(rows) < STEP:
            return
        after = rows[-1][0]


def _size(check: Check, made: MadeRow, ref: str) -> None:
    node = made.node
    size = len(node.text.encode())
    if size > check.scope.row.node_bytes:
        check.fault("NODE_SIZE", ref, f"the text has {size} bytes", made.node_key)
    elif escaped_size(node.text) != node.escaped_bytes:
        check.fault("NODE_SIZE", ref, f"the text has not the recorded {node.escaped_bytes} bytes", made.node_key)


def _origin(check: Check, db: Connection, made: MadeRow, origin: Origin, ref: str, *, coming: bool) -> None:
    key, node = made.node_key, made.node
    if origin.turn is not None and publications.live_number(db, origin.turn.turn_pk) != node.span.start:
        return  # what was retired stays as it was
    if origin.tree is None:
        record = record_under(db, origin)
        if record is None:
            check.fault("CHILD_MISSING", ref, "the record that this node was made of is missing", key)
            return
        now = record_inputs(record) if origin.kind == "leaf" else page_inputs(record, origin.position)
        below: list[Node] = []
        counts = (0, 0, record.at, record.at)
    else:
        found = origin.tree.nodes(db, origin.inputs)
        if len(found) < len(origin.inputs):
            if not coming:
                missing = next(span for span in origin.inputs if span not in found)
                check.fault("CHILD_MISSING", ref, f"node {missing}, which this one was made of, is missing", key)
            return
        below = [found[span] for span in origin.inputs]
        now = children_sha256(origin.tree, below)
        counts = expected_counts(db, origin, below)
    if (node.failed, node.interrupted, node.first_at, node.last_at) != counts:
        check.fault("NODE_COUNTS", ref, "the node's outcomes or times are not those of what is under it", key)
    if node.span.count > 1 and node.escaped_bytes > sum(each.escaped_bytes for each in below) + 1:
        check.fault("NODE_HEAVY", ref, "the node is heavier than its children", key)
    if coming:
        return  # it is what it was made of that has moved on
    if now != made.inputs:
        check.fault("INPUTS_CHANGED", ref, "the inputs of this node do not hash to what was recorded", key)
    elif made.recipe_kind == "join" and below:
        again = made_without_a_call(origin, key, below, check.scope.row.node_bytes)
        if again is None or again.text != node.text:
            check.fault("NODE_TEXT", ref, "the node does not say what it joins", key)


def expected_counts(db: Connection, origin: Origin, below: Sequence[Node]) -> tuple[int, int, int, int]:
    """The outcomes and times (first, last) that a node has by what is under it."""
    if origin.turn is not None:
        turn = origin.turn
        failed, interrupted = int(turn.outcome == "failed"), int(turn.outcome == "interrupted")
        return failed, interrupted, turn.started_at, turn.ended_at or turn.started_at
    if origin.kind == "leaf":  # of pages: its times are its record's, as theirs are
        record = chunk_tree(db, owner_of(origin.input_keys[0]))[1]
        return 0, 0, record.at, record.at
    if not below:
        return 0, 0, 0, 0
    living = [node for node in below if node.kind != "tombstone"] or list(below)
    return (
        sum(node.failed for node in below),
        sum(node.interrupted for node in below),
        min(node.first_at for node in living),
        max(node.last_at for node in living),
    )


def record_under(db: Connection, origin: Origin) -> RecordRow | None:
    """The record that a leaf, or a page, was made of."""
    if origin.kind == "chunk":
        return chunk_tree(db, owner_of(origin.subject))[1]
    segment = registry.segment_of_tree(db, owner_of(origin.subject))
    return None if segment is None else ledger.load_record(db, segment[0] << KEY_BITS | origin.position)


# ---- what is due -----------------------------------------------------------------------------------------------------


def check_due(check: Check, place: TreePlace) -> None:
    """Every position that is due has a node, or a job that will make it."""
    if place.segment is not None:
        segment = next(each for each in check.segments if each.segment == place.segment)
        _due_in_segment(check, place, segment)
    elif place.chunks is not None:
        _due_in_order(check, place, place.chunks.pages or 0, "PAGE_LOST", ("chunk",))
    else:
        with check.reading() as db:
            count = scopes.next_publication(db, check.scope.pk)
            count = min(count, checks.highest_publication(db, check.scope.pk))
        _due_in_order(check, place, count, "MERGE_LOST", ("merge",), leaves=False)


def _due_in_segment(check: Check, place: TreePlace, segment: Segment) -> None:
    start = segment.base_length
    while True:
        end = start
        with check.reading() as db:
            length = registry.segment_length(db, segment.segment, segment.base_length)
            kept = registry.kept_length(db, segment.segment)
            length = length if kept is None else min(length, kept)
            end = min(start + _LEAVES_A_STEP, length)
            low = segment.segment << KEY_BITS
            leaves = [
                node_key(place.tree_pk, Span(ordinal_of(key), 1))
                for key in due.long_records(db, low | start, low | end)
            ]
            _lost(check, db, place, leaves, "LEAF_LOST", ("leaf",))
            inner = [node_key(place.tree_pk, span) for seq in range(start, end) for span in completed_by(seq)]
            _lost(check, db, place, inner, "MERGE_LOST", ("merge",))
        if end - start < _LEAVES_A_STEP:
            return
        start = end


def _due_in_order(
    check: Check, place: TreePlace, count: int, code: str, kinds: Sequence[JobKind], *, leaves: bool = True
) -> None:
    for start in range(0, count, _LEAVES_A_STEP):
        with check.reading() as db:
            ordinals = range(start, min(start + _LEAVES_A_STEP, count))
            spans = [Span(at, 1) for at in ordinals] if leaves else []
            spans += [span for at in ordinals for span in completed_by(at)]
            _lost(check, db, place, [node_key(place.tree_pk, span) for span in spans], code, kinds)


def _lost(
    check: Check, db: Connection, place: TreePlace, node_keys: Sequence[int], code: str, kinds: Sequence[JobKind]
) -> None:
    missing = set(node_keys) - due.present(db, node_keys)
    if missing:
        missing -= due.with_job(db, kinds, missing)
    for key in sorted(missing):
        span = span_of(key)
        check.fault(code, ref_of(db, place, span), f"node {span} is not there, and no job will make it", key)


# ---- views -----------------------------------------------------------------------------------------------------------


def check_view(check: Check, place: TreePlace) -> None:
    """A view covers its prefix exactly, by durable nodes, and its prefix is what it should be."""
    with check.reading("VIEW") as db:
        check.count("views")
        ref = None if place.segment is None else segment_name(db, place.segment)
        if not due.has_view(db, place.tree_pk):
            check.fault("VIEW_MISSING", ref, "the tree has no view", place.tree_pk)
            return
        problem = view_problem(check.scope, db, place)
        if problem is not None:
            check.fault("VIEW", ref, problem, place.tree_pk)


def segment_name(db: Connection, segment: int) -> str:
    """The session that a segment belongs to, as a ref without a range."""
    name = structure.segment_name(db, segment)
    return f"segment {segment}" if name is None else f"session:{name[0]}:{name[1]}"


def tree_at(scope: Scope, db: Connection, place: TreePlace) -> Tree:
    """The tree of a view."""
    return shared_tree(scope) if place.segment is None else session_tree(scope, db, place.segment)


def view_problem(scope: Scope, db: Connection, place: TreePlace) -> str | None:
    """What is wrong with a view, if anything."""
    tree = tree_at(scope, db, place)
    view = forest.load_view(db, place.tree_pk)
    try:
        state = FrontierState(view.levels, view.shrinking)
        spans = state.spans
        covered = length_of(view.levels)
    except OptchatError as error:
        return str(error).partition(";")[0]
    if covered != view.length:
        return f"the view's lines cover {covered}, and it says {view.length}"
    sizes = tree.sizes(db, spans)
    if len(sizes) != len(spans):
        return "a line of the view has no durable node"
    if isinstance(tree, SharedTree):
        if view.length != checks.highest_publication(db, scope.pk):
            return "the view does not cover the scope's publications"
    else:
        ended = ended_in(db, place)
        if view.length > ended:
            return "the view covers more than the ended turns"
        detached = place.segment is not None and registry.kept_length(db, place.segment) is not None
        if view.length < ended and not detached and tree.sizes(db, [Span(view.length, 1)]):
            return "the view does not cover what is there of the ended turns"
    total = sum(tree.line_bytes(span, size) for span, size in sizes.items())
    if view.bytes is not None and view.bytes != total:
        return f"the view's lines add up to {total} bytes, and it says {view.bytes}"
    if total > scope.row.view_high_bytes and not view.shrinking:
        return "the view is over its bound and not shrinking"
    return None


def ended_in(db: Connection, place: TreePlace) -> int:
    """How many records the ended turns of a segment's chain have, by the turns themselves."""
    assert place.segment is not None, "the shared tree has publications"
    found = registry.segment_of_tree(db, place.tree_pk)
    return 0 if found is None else found[1]
