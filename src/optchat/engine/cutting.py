"""
Cutting: a session's next generation over what is kept of its history (§ 12).

Decides: nothing that core does not: which turns are superseded, and what a new segment begins with.
Refuses to know: why a history is cut: a rewind, an edit, a host's list that says otherwise.

A new segment rests on the kept records; nothing is copied, and what was said above them stays where it is, for refs
that name its generation and for pins from before. Base lengths are turn boundaries: where a turn is cut inside, its
kept part is sealed again in the new segment, as an inherited turn that is never published, or as the turn that goes on.
Else a turn would lie in two segments, and its publication would lack its request.

What the superseded turns published is retired from the clock of this very transaction on; publications that were still
to be made are not. Summaries that are on their way go on: forks may rest on their records, and old refs open them.

A view over a shorter history is planned anew from durable nodes: of the present one only coarse lines would be left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from optchat.core import records as rules
from optchat.core.errors import BadArgument, IntegrityError, SessionBusy
from optchat.core.lineage import Chain, base_at
from optchat.core.projection import plan_view_at
from optchat.core.publications import natural_outcome
from optchat.core.records import BlobRef, SealedPart
from optchat.core.refs import KEY_BITS, KEY_MASK, exact_cover
from optchat.engine import ingest
from optchat.engine.handle import Scope
from optchat.engine.landing import Landing
from optchat.engine.trees import line_sizes, session_tree
from optchat.engine.withdrawing import withdraw
from optchat.store import forest, ledger, payloads, publications, registry, turns
from optchat.store.ledger import RecordRow
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

_LEVELS: Final = 4  # of sizes that are read in one go


@frozen
class Cut:
    """
    A session after a cut: its present generation; the turn that holds the kept part of the one that was cut inside, if
    one was; how many publications were retired.
    """

    session: SessionRow
    turn: TurnRow | None
    retired: int


def cut(
    landing: Landing,
    session: SessionRow,
    length: int,
    *,
    kept: Sequence[ingest.Prepared] = (),
    continuing: bool = False,
) -> Cut:
    """
    Go back to a session's first ``length`` records, as its next generation, inside the caller's transaction.

    The open turn ends as interrupted if it may be ended, and is not published. Where ``length`` is what the session has
    already, nothing is changed. The caller finishes the landing.

    Args:
        length: how many records are kept. Inside of a turn, that turn's kept part is sealed again.
        kept: that part, as :func:`kept_part` gave it and :func:`optchat.engine.ingest.ready` made it ready. At the
            boundary of a turn there is none.
        continuing: the turn that was cut goes on: its kept part is the beginning of an open turn with the same id,
            which the caller seals on into, and ends. Else it is an ended turn, inherited.

    Raises:
        BadArgument: the session has no so many records.
        SessionBusy: the open turn is alive in another process.
    """
    db, scope = landing.db, landing.scope
    chain = scope.chain(db, session.segment_pk)
    total = registry.segment_length(db, session.segment_pk, chain.own.base_length)
    if not 0 <= length <= total:
        raise BadArgument(f"session {session.session_id} has {total} records, not {length}; keep so many at most")
    if length == total:
        return Cut(session, None, 0)
    running = turns.open_turn(db, session.generation_pk)
    if running is not None:
        refuse_elsewhere(scope, db, session, running)
    torn = turn_of(db, chain, length)
    boundary = torn.start_seq
    assert len(kept) == length - boundary, "what is kept of the turn that is cut was made ready before"
    if running is not None:
        _end_superseded(landing, running, total)
    numbers = _superseded(db, session, chain, boundary)
    after = registry.begin_generation(db, session, base_at(chain, boundary), landing.born)
    find_current_lengths(db, chain, boundary)
    lay_view(scope, db, after.segment_pk, boundary)
    retired = withdraw(landing, numbers, removed=False).publications
    landing.now_visible()  # whoever pins from now on is told of the new generation
    turn = _sealed_again(landing, after, torn, kept, continuing=continuing) if kept else None
    return Cut(after, turn, retired)


def refuse_elsewhere(scope: Scope, db: Connection, session: SessionRow, turn: TurnRow) -> None:
    """
    Raises:
        SessionBusy: a turn is alive in another process, whose it is to end.
    """
    if alive_elsewhere(scope, db, turn):
        raise SessionBusy(
            f"turn {turn.turn_id} of session {session.session_id} is still open in another process; end it there, or"
            " try again later",
            open_turn_id=turn.turn_id,
        )


def alive_elsewhere(scope: Scope, db: Connection, turn: TurnRow) -> bool:
    """Whether a turn runs in another process that is alive."""
    return (
        turn.state == "open"
        and turn.owner_pk is not None
        and turn.owner_pk != scope.store.owner_pk
        and scope.store.owner_alive(db, turn.owner_pk)
    )


def turn_of(db: Connection, chain: Chain, seq: int) -> TurnRow:
    """The turn that a record belongs to."""
    record = ledger.load_record(db, chain.record_key(seq))
    turn = None if record is None else turns.load_turn(db, record.turn_pk)
    if turn is None:
        raise IntegrityError(f"record {seq} or its turn is missing; run verify() and restore a backup")
    return turn


def _end_superseded(landing: Landing, turn: TurnRow, end: int) -> None:
    """The open turn is cut off by what supersedes it: it ends, and nothing of it is published."""
    turns.mark_ended(
        landing.db, turn.turn_pk, outcome="interrupted", detail="its session was rewound", end_seq=end, at=landing.at
    )
    turns.drop_all_staged(landing.db, turn.turn_pk)
    landing.records_ended(turn.segment_pk, end)


def _superseded(db: Connection, session: SessionRow, chain: Chain, boundary: int) -> list[int]:
    """
    The numbers of what the session published of records from a boundary on, in whatever generation; what was still to
    be published of them is not. What a fork rests on is its parent's, and stays.
    """
    numbers: list[int] = []
    for link in chain.links:
        generation = registry.generation_of_segment(db, link.segment)
        if generation is None or generation[1] != session.session_pk:
            break
        for turn in turns.superseded_turns(db, generation[0], boundary):
            if turn.publication_key is not None:
                numbers.append(turn.publication_key & KEY_MASK)
            else:
                publications.cancel(db, turn.turn_pk)
        if link.base_length <= boundary:
            break
    return numbers


def find_current_lengths(db: Connection, chain: Chain, kept: int = 0) -> None:
    """
    Note up to where the segments of a chain are still on some session's present history, when a session no longer has
    what lies above ``kept``: a fork may, or a later generation.
    """
    for link in chain.links:
        if not registry.is_current(db, link.segment):
            reached = [
                over.base_length
                for over in registry.segments_over(db, link.segment)
                if over.current_length is None or over.current_length > over.base_length
            ]
            registry.set_current_length(db, link.segment, max([link.base_length, *reached]))
        if link.base_length < kept:
            break


# ---- the view of a new segment ---------------------------------------------------------------------------------------


def lay_view(scope: Scope, db: Connection, segment_pk: int, length: int) -> None:
    """
    Plan the view that a segment begins with, over the first ``length`` records of its chain.

    It is made half way between both thresholds: at the upper one the next append would coarsen it at once. Leaves that
    are not durable join it when they land, as in any view.
    """
    tree = session_tree(scope, db, segment_pk)
    size = line_sizes(db, tree, levels=_LEVELS)
    durable = 0
    waiting = list(reversed(exact_cover(0, length)))
    while waiting:
        span = waiting.pop()
        if size(span) is not None:
            durable = span.end
        elif span.count == 1:
            break
        else:
            waiting.extend(reversed(span.children))
    policy = scope.view_policy
    state = plan_view_at(durable, size, (policy.high_bytes + policy.low_bytes) // 2, policy.rule)
    stored = forest.load_view(db, tree.chain.own.tree)
    forest.save_view(db, forest.ViewRow(stored.tree_pk, stored.revision + 1, durable, state.levels, state.shrinking))


# ---- the kept part of a turn that is cut -----------------------------------------------------------------------------


def kept_part(db: Connection, chain: Chain, length: int, total: int) -> tuple[SealedPart, ...]:
    """
    What a cut at ``length`` keeps of the turn that it cuts inside, ready to be sealed again; () at a turn's boundary.

    Attachments are named and not read: the scope has them.

    Args:
        total: how many records the chain's own session has.
    """
    if length >= total:
        return ()
    start = turn_of(db, chain, length).start_seq
    low, high = (chain.of_record(length).segment << KEY_BITS | seq for seq in (start, length))
    if low == high:
        return ()
    events = ledger.events_between(db, low, high)
    return tuple(_again(db, row, *events[row.record_key]) for row in ledger.records_between(db, low, high))


def _again(db: Connection, row: RecordRow, event: bytes, revision: int) -> SealedPart:
    payload = payloads.load_payload(db, row)
    structure: dict[str, Any] = row.structure or {}
    leaf = None
    if row.leaf_escaped is not None:
        leaf = rules.leaf_text(row.kind, payload, row.structure, row.leaf_format)
    manifests: list[Any] = [structure] if structure.get("type") == "blob" else structure.get("content", [])
    digests = [
        bytes.fromhex(str(each["sha256"])) for each in manifests if not isinstance(each, int) and "sha256" in each
    ]
    return SealedPart(
        kind=row.kind,
        message=row.message,
        part=row.part,
        at=row.time,
        payload=payload,
        structure=ledger.written_structure(db, row.record_key),
        sha256=row.sha256,
        blobs=tuple(BlobRef(digest, b"") for digest in digests),
        call_id=structure.get("call_id"),
        leaf=leaf,
        leaf_bytes=row.leaf_bytes,
        leaf_escaped=row.leaf_escaped,
        event_hash=event,
        revision=revision,
        apart=None if row.blob_pk is None else BlobRef(hashlib.sha256(payload).digest(), payload),
    )


def _sealed_again(
    landing: Landing, session: SessionRow, torn: TurnRow, kept: Sequence[ingest.Prepared], *, continuing: bool
) -> TurnRow:
    """The kept part of a turn in its session's new segment: what the turn goes on from, or an inherited turn."""
    db = landing.db
    turn = turns.insert_turn(
        db,
        turn_id=torn.turn_id,
        generation_pk=session.generation_pk,
        scope_pk=session.scope_pk,
        segment_pk=session.segment_pk,
        has_request=torn.has_request,
        start_seq=torn.start_seq,
        owner_pk=landing.scope.store.owner_pk,
        at=torn.started_at,
        utc_offset=torn.utc_offset,
        worktree=torn.worktree,
        commit_id=torn.commit_id,
        inherited=not continuing,
    )
    ingest.seal(landing, turn, session.session_id, session.generation, kept)
    if continuing:
        return turn
    last = ledger.last_of_turn(db, turn.turn_pk)
    assert last is not None, "just sealed"
    turns.mark_ended(
        db,
        turn.turn_pk,
        outcome=natural_outcome(last.kind, ledger.count_pending_calls(db, turn.turn_pk)),
        detail="what was kept of a turn that was cut",
        end_seq=last.seq + 1,
        at=last.at,
    )
    ended = turns.load_turn(db, turn.turn_pk)
    assert ended is not None, "just updated"
    landing.turn_ended(ended)
    return ended
