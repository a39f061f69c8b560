"""
Receipts of calls (§ 7): kept for whoever asks later what a model was shown.

Decides: what of a receipt is stored, when, and what is looked up again.
Refuses to know: how a context is made.

To send a request records nothing, and a read that took the writer's lock would hold up everybody who writes. So a
receipt waits in memory and is written down with the next thing that its turn writes: what the model answered, or how
the turn ended. A process that dies in between has had no answer to keep either. Of two processes' calls the later one's
is kept.

Stored are numbers and what decided the rendering, beside the rendering: never a ref. Which lines were shown is read off
the rendering when it is asked for, so that there is nothing for a removal to look for; lines of which nothing is
left by then are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import asdict, evolve, frozen

from optchat.core.anchors import parts
from optchat.core.context import ContextReceipt
from optchat.core.ports import Tokenizer
from optchat.core.refs import Span, publication_ref, session_ref
from optchat.core.terms import TokenUse
from optchat.core.tree import REMOVED
from optchat.core.views import spans_of
from optchat.engine.anchoring import anchor_of
from optchat.engine.exchanges import load_previous
from optchat.engine.handle import Call, Scope
from optchat.engine.sights import snapshot_of
from optchat.engine.trees import SessionTree, Tree, shared_tree
from optchat.store import registry, renderings, scopes, turns
from optchat.store.renderings import DescriptorRow, RenderingRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

_STORED = ("tokenizer", "why", "repeated_bytes", "waited_seconds", "checkpointed", "active_source")


@frozen
class Kept:
    """A turn's last call of which a receipt is kept."""

    turn: TurnRow
    session_id: str
    at: int  # microseconds
    receipt: ContextReceipt


def remember(scope: Scope, turn_pk: int, step: int, receipt: ContextReceipt, checkpoint: Iterable[str]) -> None:
    """
    Hold a call's receipt until its turn writes something.

    Args:
        checkpoint: the refs of its lines about the turn's own records. No rendering has them: they are kept as numbers.
    """
    sent: dict[str, Any] = {name: getattr(receipt, name) for name in _STORED}
    lines = [ref.rpartition(":")[2].partition("+") for ref in checkpoint]
    if lines:
        sent["lines"] = [[int(start), int(count)] for start, _, count in lines]
    scope.caches.calls.put(turn_pk, Call(step, sent | {"at": scope.now(), "tokens": asdict(receipt.tokens)}))


def write_down(scope: Scope, db: Connection, turn_pk: int) -> None:
    """Write down what is held of a turn, inside the caller's transaction."""
    call = scope.caches.calls.get(turn_pk)
    if call is not None:
        renderings.keep_sent(db, turn_pk, call.step, call.sent)


def kept(scope: Scope, db: Connection, turn_id: str, session_id: str | None, tokenizer: Tokenizer) -> list[Kept]:
    """
    The last calls of the turns with an id, in order of time; of those of which one is kept.

    Args:
        session_id: only of this session; None: of any in the scope.
    """
    found: list[Kept] = []
    for turn in turns.find_in_scope(db, scope.pk, turn_id, session_id):
        row, descriptor = renderings.last_sent(db, turn.turn_pk), renderings.load_descriptor(db, turn.turn_pk)
        if row is not None and descriptor is not None:
            found.append(_read(scope, db, turn, descriptor, row, tokenizer))
    return found


def _read(
    scope: Scope, db: Connection, turn: TurnRow, descriptor: DescriptorRow, row: RenderingRow, tokenizer: Tokenizer
) -> Kept:
    assert row.since is not None, "looked for by what it holds"
    sent = row.since["sent"]
    session = registry.session_as_of(db, turn.generation_pk)
    moment = scopes.find_moment(db, scope.pk, descriptor.clock)
    assert moment is not None, "moments are kept as long as what was pinned at them"
    epoch = renderings.pinned_epoch(db, turn.turn_pk, row.pin)
    marks = evolve(moment, publications=descriptor.publications, epoch=moment.epoch if epoch is None else epoch)

    def own_ref(span: Span) -> str:
        return session_ref(session.session_id, session.generation, span.start, span.count)

    tree = SessionTree(scope.chain(db, session.segment_pk))
    previous = load_previous(scope, db, tree, session, descriptor, tokenizer)
    ways = list(zip(previous, row.previous, strict=False)) if len(previous) == len(row.previous) else []
    refs = _shown(scope, db, tree, descriptor, row, own_ref)
    refs += [record.full.canonical for record, way in ways if way != "none"]
    refs += [own_ref(Span(start, count)) for start, count in sent.get("lines", ())]
    receipt = ContextReceipt(
        snapshot=snapshot_of(marks, row.pin),
        tokens=TokenUse(**sent["tokens"]),
        refs=tuple(refs),
        shared_through=descriptor.publications,
        session_through=row.own_through,
        missing=tuple(own_ref(_span(ref)) for ref in row.missing),
        left_out=tuple(record.full.canonical for record, way in ways if way != "full"),
        **{name: sent[name] for name in _STORED},
    )
    return Kept(turn, session.session_id, sent["at"], receipt)


def _shown(
    scope: Scope,
    db: Connection,
    tree: SessionTree,
    descriptor: DescriptorRow,
    row: RenderingRow,
    own_ref: Callable[[Span], str],
) -> list[str]:
    """The lines of both views, in the order in which they were shown; without those of which nothing is left."""
    anchor = anchor_of(row)
    shared, own = spans_of(row.shared_levels), spans_of(row.own_levels)
    heads = None if anchor is None else anchor.heads
    blocks = (
        [(slice(None), slice(None))]
        if heads is None
        else list(
            zip(
                parts([span.end for span in shared], [head.shared for head in heads]),
                parts([span.end for span in own], [head.own for head in heads]),
                strict=True,
            )
        )
    )
    gone_shared = _removed(db, shared_tree(scope), shared, descriptor.clock)
    gone_own = _removed(db, tree, own, descriptor.clock)
    found: list[str] = []
    for of_shared, of_own in blocks:
        found += [publication_ref(span.start, span.count) for span in shared[of_shared] if span not in gone_shared]
        found += [own_ref(span) for span in own[of_own] if span not in gone_own]
    return found


def _removed(db: Connection, tree: Tree, spans: tuple[Span, ...], clock: int) -> set[Span]:
    return {
        span for span, node in tree.nodes(db, spans, clock).items() if node.kind == "tombstone" and node.text == REMOVED
    }


def _span(ref: str) -> Span:
    start, _, count = ref.partition("+")
    return Span(int(start), int(count))
