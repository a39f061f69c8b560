"""
Views as readers ask for them (§ 6): the shared one, or a session's.

Decides: which stored or planned cover a reader is shown, and that it does not move under a pin.
Refuses to know: turns' renderings, which have a row of their own.
"""

from __future__ import annotations

from optchat.core.ports import Tokenizer
from optchat.core.projection import plan_view_at, project
from optchat.core.refs import Span, session_ref
from optchat.core.render import line as rendered_line, outcome_label, publication_label
from optchat.core.retrieval import Line, View
from optchat.core.views import FrontierState, length_of, spans_of
from optchat.engine.handle import Scope
from optchat.engine.reading import session_lines, shared_lines
from optchat.engine.sights import Reading, SessionTarget
from optchat.engine.trees import (
    PinnedTree,
    SessionTree,
    Tree,
    ancestors_within,
    durable_cover,
    grown_cover,
    line_sizes,
    shared_tree,
)
from optchat.store import forest
from optchat.store.rows import Connection


def shared_view(reading: Reading, db: Connection, levels: bytes, tokenizer: Tokenizer, max_tokens: int | None) -> View:
    """The shared view of those levels, which a reader's pin or the live view gives."""
    tree = shared_tree(reading.scope)
    spans, missing = _projected(reading, db, tree, spans_of(levels), tokenizer, max_tokens)
    lines = shared_lines(reading, db, spans)
    inner = tree.nodes(db, [span for span in spans if span.count > 1], reading.clock)

    def label(line: Line, span: Span) -> str:
        if line.session_id is not None and line.outcome is not None:
            return publication_label(line.session_id, line.outcome)
        return outcome_label(inner[span].failed, inner[span].interrupted) if span in inner else ""

    text = "".join(
        rendered_line(line.ref, line.text, label(line, span)) for line, span in zip(lines, spans, strict=True)
    )
    return View(text, tuple(lines), tokenizer.count(text), reading.sight.publications, missing, reading.snapshot)


def live_shared_levels(scope: Scope, db: Connection) -> bytes:
    """The shared view as it is stored now."""
    return forest.load_view(db, scope.row.shared_tree).levels


def shared_levels_at(reading: Reading, db: Connection) -> bytes:
    """A shared view at a reader's mark: the stored one where it ends there, else planned anew from durable nodes."""
    levels = live_shared_levels(reading.scope, db)
    if length_of(levels) == reading.sight.publications:
        return levels
    return _planned(reading, db, _then(reading, shared_tree(reading.scope)), reading.sight.publications).levels


def session_view(
    reading: Reading,
    db: Connection,
    target: SessionTarget,
    start: int,
    end: int,
    tokenizer: Tokenizer,
    max_tokens: int | None,
) -> View:
    """A session's view of its records ``[start, end)``; positions that have no node yet are named in ``missing``."""
    spans = _session_cover(reading, db, target, start, end)
    spans, missing = _projected(reading, db, SessionTree(target.chain), spans, tokenizer, max_tokens)
    lines = session_lines(reading, db, target, spans)
    text = "".join(rendered_line(target.chain.short(span), line.text) for line, span in zip(lines, spans, strict=True))
    named = tuple(
        session_ref(target.session.session_id, target.generation, int(span.partition("+")[0])) for span in missing
    )
    return View(text, tuple(lines), tokenizer.count(text), end, named, reading.snapshot)


def _session_cover(reading: Reading, db: Connection, target: SessionTarget, start: int, end: int) -> tuple[Span, ...]:
    """
    The stored frontier to the owner, the copy that it began with to its own turn; else one planned at the boundary.

    A stored frontier moves with repairs, and a foreign session's with turns that a pinned reader may not see, and so
    would their views.
    """
    tree: Tree = SessionTree(target.chain)
    own = reading.own
    if own is not None and own.chain == target.chain:
        spans, _missing = grown_cover(reading.scope, db, tree, own.view, min(own.history, end), reading.clock)
        return (*spans, *durable_cover(db, tree, spans[-1].end if spans else 0, end))
    tree = _then(reading, tree)
    if start:  # what lies before was never published: no frontier begins there
        return durable_cover(db, tree, start, end)
    state = FrontierState(forest.load_view(db, target.chain.own.tree).levels)
    if not reading.sight.owner or state.length > end:
        leaves = [Span(seq, 1) for seq in range(end)]
        sizes = tree.sizes(db, leaves)
        state = _planned(reading, db, tree, next((leaf.start for leaf in leaves if leaf not in sizes), end))
    return (*state.spans, *durable_cover(db, tree, state.length, end))


def _then(reading: Reading, tree: Tree) -> Tree:
    """What a cover may be planned from: for the owner all that is there, under a pin what was there."""
    return tree if reading.sight.owner else PinnedTree(tree, reading.clock)


def _planned(reading: Reading, db: Connection, tree: Tree, length: int) -> FrontierState:
    """A view at a past mark, made anew from durable nodes, since only turns keep a copy of theirs."""
    return plan_view_at(length, line_sizes(db, tree), reading.scope.row.view_high_bytes)


def _projected(
    reading: Reading, db: Connection, tree: Tree, spans: tuple[Span, ...], tokenizer: Tokenizer, max_tokens: int | None
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    nodes = tree.nodes(db, spans, reading.clock)
    missing = tuple(str(span) for span in spans if span not in nodes)
    if max_tokens is None or not spans:
        return spans, missing
    above = [span for span in ancestors_within(spans) if span not in nodes]
    nodes |= _then(reading, tree).nodes(db, above, reading.clock)

    def cost(span: Span) -> int | None:
        node = nodes.get(span)
        if node is None:
            return tokenizer.count("[not summarised yet]") + 16 if str(span) in missing else None
        return tokenizer.count(rendered_line(str(span), node.text)) + 8

    return project(spans, cost, max_tokens).spans, missing
