"""
What explains the text of a job (§ 4, § 10): earlier lines of its session, and what its turn retrieved of others.

Decides: nothing that core does not: it finds where what is durable ends, plans the view, and renders its lines.
Refuses to know: leases, sources, and what becomes of a result.

Both are provenance and not part of a job's checked inputs: a context moves while calls run, and a commit that checked
it would fail again and again. Nothing that was said or published later than what is summarised is ever shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from attrs import frozen

from optchat.core import compactor_view as view
from optchat.core.refs import KEY_BITS, PublicationRef, Span, parse_ref, publication_ref
from optchat.core.render import line, publication_label
from optchat.core.snapshots import Sight, publication_visible
from optchat.core.summarizing import ContextBlock
from optchat.engine.handle import Past, Scope
from optchat.engine.naming import publication_names
from optchat.engine.trees import SessionTree, line_sizes, shared_tree
from optchat.store import publications, registry, renderings, turns
from optchat.store.rows import Connection

_FIRST_LOOK: Final = 16  # leaves: mostly the end is near
_LEVELS: Final = 4  # below a node whose size is asked for: they are asked for next, and one by one they take long
_MOST_PUBLICATIONS: Final = 256  # whose lines are looked at: more never fit


# ---- the session's own past ------------------------------------------------------------------------------------------


def earlier_lines(
    scope: Scope, db: Connection, tree: SessionTree, end: int, room_bytes: int
) -> tuple[ContextBlock, ...]:
    """
    The session's durable lines below ``end``, in at most so many bytes, up to the first leaf that is not there yet.

    Two calls with ends between the same steps give the same blocks, as far as both go.
    """
    if not room_bytes or not end:
        return ()
    pasts = scope.caches.pasts
    past = None if scope.drafts else pasts.get(tree.chain.own.tree)
    found = None if past is None else _view(scope, db, tree, past, end, room_bytes)
    if found is None:  # for the first time, or a node that was there is gone: nothing that was known of it holds
        past = Past()
        found = _view(scope, db, tree, past, end, room_bytes)
        if not scope.drafts:
            pasts.put(tree.chain.own.tree, past)
    return found or ()


def _view(
    scope: Scope, db: Connection, tree: SessionTree, past: Past, end: int, room_bytes: int
) -> tuple[ContextBlock, ...] | None:
    """The view, or None where a node that it needs is gone."""
    end = min(end, _durable(db, tree, past, end))
    leaves = _leaf_lines(db, tree, past, end)
    if leaves is None:
        return None
    plan = view.plan_view(end, leaves, room_bytes, partial(_part, db, tree, past), scope.row.node_bytes)
    nodes = tree.nodes(db, plan.spans)
    if len(nodes) < len(plan.spans):
        return None
    lines = {span: line(str(span), node.text) for span, node in nodes.items()}
    blocks = plan.within(lambda span: len(lines[span].encode()), room_bytes).blocks()
    return tuple(ContextBlock("".join(lines[span] for span in block.spans), block.cache) for block in blocks)


def _part(db: Connection, tree: SessionTree, past: Past, start: int, end: int, most_bytes: int) -> view.Part:
    """A part as it was planned for the first time; one that lacks nodes is planned again, for they may have landed."""
    key = start, end, most_bytes
    found = past.parts.get(key)
    if found is None:
        found = view.plan_part(start, end, line_sizes(db, tree, levels=_LEVELS), most_bytes)
        if found.whole:
            past.parts.put(key, found)
    return found


def _durable(db: Connection, tree: SessionTree, past: Past, end: int) -> int:
    """Up to where, at most to ``end``, every leaf is durable."""
    wide: dict[int, Span] = {}  # whole blocks by their nodes, of a past not looked at yet: a node rests on its leaves
    if end - past.durable > view.BLOCK_LEAVES:
        starts = range(-(-past.durable // view.BLOCK_LEAVES) * view.BLOCK_LEAVES, end, view.BLOCK_LEAVES)
        wide = {span.start: span for span in tree.sizes(db, [Span(start, view.BLOCK_LEAVES) for start in starts])}
    look = _FIRST_LOOK
    while past.durable < end:
        known = past.durable
        if known in wide:
            past.durable = wide[known].end
            continue
        stop = min(end, known + look, view.block_start(known + 1) + view.BLOCK_LEAVES)
        wanted = [Span(leaf, 1) for leaf in range(known, stop)]
        sizes = tree.sizes(db, wanted)
        for span in wanted:
            if span not in sizes:
                return past.durable
            past.durable = span.end
        look *= 4
    return end


def _leaf_lines(db: Connection, tree: SessionTree, past: Past, end: int) -> tuple[int, ...] | None:
    """The bytes of leaf lines from the view's block on to ``end``; None where one is gone."""
    start = view.block_start(end)
    known = past.leaves.get(start) or ()
    if len(known) < end - start:
        wanted = [Span(leaf, 1) for leaf in range(start + len(known), end)]
        sizes = tree.sizes(db, wanted)
        if len(sizes) < len(wanted):
            return None
        known += tuple(tree.line_bytes(span, sizes[span]) for span in wanted)
        past.leaves.put(start, known)
    return known


# ---- what a turn retrieved of others ---------------------------------------------------------------------------------


@frozen
class Retrieved:
    """Rendered lines of publications, and their keys: what is shown is recorded with the node."""

    lines: tuple[str, ...] = ()
    publications: tuple[int, ...] = ()


def retrieved_lines(
    scope: Scope, db: Connection, turn_pk: int, room_bytes: int, before: int | None = None
) -> Retrieved:
    """
    The publications of other sessions that a turn's memory tools showed, as they read under its pin, in at most so many
    bytes.

    Where they are too many, those that were retrieved last come first. What was removed since is left out, and what is
    the session's own: that is its past.

    Args:
        before: only what was retrieved before this record of the turn was sealed; None: all.
    """
    recorded = set(turns.foreign_context(db, turn_pk)) if room_bytes else set[int]()
    descriptor = renderings.load_descriptor(db, turn_pk) if recorded else None
    turn = None if descriptor is None else turns.load_turn(db, turn_pk)
    if descriptor is None or turn is None:
        return Retrieved()
    own = registry.session_of_generation(db, turn.generation_pk)[0].session_id
    numbers = [number for number in _shown(db, turn_pk, before) if scope.pk << KEY_BITS | number in recorded][
        :_MOST_PUBLICATIONS
    ]
    sight = Sight(scope.pk, descriptor.clock, descriptor.publications, descriptor.documents)
    rows = publications.load_publications(db, scope.pk, numbers)
    seen = [number for number in numbers if number in rows and publication_visible(rows[number].state, sight)]
    nodes = shared_tree(scope).nodes(db, [Span(number, 1) for number in seen], descriptor.clock)
    names = publication_names(scope, db, seen)
    lines: dict[int, str] = {}
    left = room_bytes
    for number in seen:
        node = nodes.get(Span(number, 1))
        name = names[number]
        if node is None or name.session_id == own:
            continue
        text = line(publication_ref(number), node.text, publication_label(name.session_id, name.outcome))
        left -= len(text.encode())
        if left < 0:
            break
        lines[number] = text
    chosen = sorted(lines)
    return Retrieved(
        tuple(lines[number] for number in chosen), tuple(scope.pk << KEY_BITS | number for number in chosen)
    )


def _shown(db: Connection, turn_pk: int, before: int | None) -> Iterable[int]:
    """The numbers of the publications that a turn's retrievals showed, the last retrieved first, each once."""
    found: dict[int, None] = {}
    for retrieval in turns.retrieved_refs(db, turn_pk):
        if before is not None and retrieval.own_end > before:
            continue
        for text in retrieval.refs:
            ref = parse_ref(text)
            if isinstance(ref, PublicationRef) and ref.span.count == 1:
                found.setdefault(ref.span.start)
    return found
