"""
The previous exchange (§ 7): the last ended turn's request and final answer, in detail.

Decides: which records it is, and which way each of them is shown within a room of tokens.
Refuses to know: how much room there is, and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from optchat.core.context import ShownLine
from optchat.core.ports import Tokenizer
from optchat.core.refs import Span, session_ref
from optchat.engine.handle import Scope
from optchat.engine.trees import SessionTree
from optchat.store import ledger, payloads
from optchat.store.ledger import RecordRow
from optchat.store.registry import SessionRow
from optchat.store.renderings import DescriptorRow
from optchat.store.rows import Connection


@frozen
class Previous:
    """A record of the previous exchange, both ways in which it can be shown."""

    seq: int
    is_request: bool
    full: ShownLine
    full_tokens: int
    full_bytes: int
    node: ShownLine | None
    node_tokens: int


def load_previous(
    scope: Scope,
    db: Connection,
    tree: SessionTree,
    session: SessionRow,
    descriptor: DescriptorRow,
    tokenizer: Tokenizer,
) -> list[Previous]:
    """The last exchange's records, with the tokens of both ways to show each; none where the policy wants none."""
    start, end = descriptor.previous_start, descriptor.previous_end
    if start is None or end is None or not descriptor.settings["previous_exchange"]:
        return []
    chain = tree.chain
    chosen = _exchange_records(db, chain.record_key(start), chain.record_key(end - 1) + 1)
    nodes = tree.nodes(db, [Span(record.seq, 1) for record, _ in chosen], descriptor.clock)
    found: list[Previous] = []
    limit = descriptor.settings["previous_exchange_bytes"]
    for record, is_request in chosen:
        span = Span(record.seq, 1)
        canonical = session_ref(session.session_id, session.generation, record.seq)
        node = nodes.get(span)
        short = None if node is None else ShownLine(chain.short(span), canonical, "", node.text)
        # A record over the limit can only be shown by its node: its text is not even read.
        text = "" if record.payload_bytes > limit else payloads.load_leaf_text(db, record)
        full = ShownLine(chain.short(span), canonical, "", text)
        fits = bool(text)
        found.append(
            Previous(
                record.seq,
                is_request,
                full,
                scope.count(tokenizer, full.rendered) if fits else 0,
                len(full.rendered.encode()) if fits else limit + 1,
                short,
                0 if short is None else scope.count(tokenizer, short.rendered),
            )
        )
    return found


def choose_ways(records: Sequence[Previous], limit_bytes: int, room: int) -> tuple[tuple[str, ...], int]:
    """
    Which way each record is shown within a room of tokens, and the tokens used.

    The request comes first, then the answer's parts: what "do that" speaks of matters more than the last of many parts.
    """
    ways: list[str] = []
    used = size = 0
    for record in records:  # a request's records come before its answer's
        if size + record.full_bytes <= limit_bytes and used + record.full_tokens <= room:
            ways.append("full")
            used += record.full_tokens
            size += record.full_bytes
        elif record.node is not None and used + record.node_tokens <= room:
            ways.append("node")
            used += record.node_tokens
        else:
            ways.append("none")
    return tuple(ways), used


def _exchange_records(db: Connection, low: int, high: int) -> list[tuple[RecordRow, bool]]:
    """A turn's request and its final answer: (record, whether it is the request), in order."""
    records = [record for record in ledger.records_between(db, low, high) if record.state == 0]
    if not records:
        return []
    first = records[0].message
    said = [record for record in records if record.kind == "assistant"]
    last = said[-1].message if said else None
    chosen: list[tuple[RecordRow, bool]] = []
    for record in records:
        if record.kind == "user" and record.message == first:
            chosen.append((record, True))
        elif record.kind == "assistant" and record.message == last:
            chosen.append((record, False))
    return chosen
