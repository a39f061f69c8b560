"""
Turns (§ 5, § 7, § 9): admission, suspension, end.

Decides: nothing that core does not: which turn a request belongs to, what it pins, how it ends.
Refuses to know: context, and models.

Admission is one transaction: the earlier open turn ends, the boundary and the snapshot are taken, the descriptor is
written, the request is sealed; only then is the ended turn published, so that it lies after the pin. Two admissions
race for the writer lock; the second finds the first one's turn.

A request under the key of an earlier one and a higher revision is an edit: its turn, and all that followed, is
superseded by the next generation, in the same transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from attrs import evolve, frozen

from optchat.core.errors import (
    GenerationSuperseded,
    ResyncNeeded,
    RevisionConflict,
    SessionBusy,
    SessionDeleted,
    UnknownRef,
)
from optchat.core.jobs import AWAITED
from optchat.core.messages import HostMessage
from optchat.core.publications import natural_outcome, turn_after
from optchat.core.refs import SESSION_ID_ALPHABET
from optchat.core.terms import Outcome, RecordKind
from optchat.engine import ingest, receipts
from optchat.engine.cutting import alive_elsewhere, cut
from optchat.engine.handle import Scope, microseconds, utc_offset_seconds
from optchat.engine.landing import Landing
from optchat.store import forest, ledger, queue, registry, renderings, scopes, turns
from optchat.store.registry import SessionRow
from optchat.store.renderings import DescriptorRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

# Every setting that changes the bytes of a context: kept with the turn, so that another process renders the same.
BYTE_SETTINGS = (
    "shared_share",
    "previous_exchange",
    "previous_exchange_bytes",
    "page_bytes",
    "memory_max_tokens",
    "since_bytes",
    "cache_lifetime_seconds",
    "checkpoint_share",
)


def random_id(length: int) -> str:
    """An opaque id in the alphabet of refs."""
    return "".join(secrets.choice(SESSION_ID_ALPHABET) for _ in range(length))


def check_not_deleted(session: SessionRow) -> None:
    """
    Raises:
        SessionDeleted: there is no such session any more.
    """
    if session.state == "deleted":
        raise SessionDeleted(f"session {session.session_id} was deleted; session(..., recreate=True) begins a new one")


def check_usable(session: SessionRow, generation_pk: int) -> None:
    """
    Raises:
        SessionDeleted, ResyncNeeded: the session takes nothing.
        GenerationSuperseded: the handle is of an earlier generation.
    """
    check_not_deleted(session)
    if session.state == "needs_resync":
        raise ResyncNeeded(f"session {session.session_id} differs from its host's history; call resync() with it first")
    if session.generation_pk != generation_pk:
        raise GenerationSuperseded(
            f"session {session.session_id} was rewound; take it anew with memory.session(...) and go on from there"
        )


@frozen
class Admitted:
    """A turn, and whether this call made it."""

    turn: TurnRow
    created: bool
    refs: tuple[str, ...]
    session: SessionRow  # in the generation that the turn is of


def admit(
    scope: Scope,
    session: SessionRow,
    request: Sequence[HostMessage],
    *,
    turn_id: str | None,
    worktree: str | None,
    commit: str | None,
    if_open: Literal["interrupt", "refuse"],
) -> Admitted:
    """
    Begin a turn: seal its request, pin its snapshot (§ 9).

    Atomic: all of it, with the end of an earlier open turn, or nothing. Idempotent: the same ``turn_id`` again is the
    same turn, ended or not; without one, so is a request that a turn began with under the same event key. A higher
    revision of such a request supersedes that turn and those after it, and begins one in their place.

    Raises:
        SessionBusy: the open turn is alive in another process; or any turn is open and ``if_open`` is "refuse".
        RevisionConflict: the turn id names a turn that began with another request, or the request's key another text.
        SessionDeleted, ResyncNeeded, GenerationSuperseded: the session takes no turns.
    """
    public_id = turn_id if turn_id is not None else "turn-" + random_id(12)
    parts = ingest.prepare(scope, request, turn_id=public_id, ordinal=0)
    prepared = ingest.ready(scope, parts)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        now = scope.now()
        landing = Landing(scope, db, now)
        current = registry.session_by_pk(db, session.session_pk)
        check_usable(current, session.generation_pk)
        edited = _edited(scope, db, current, prepared)
        if edited is not None:
            _check_may_end(landing, current, if_open)
            current = cut(landing, current, edited.start_seq).session
        found = (
            turns.find_on_chain(db, scope.chain(db, current.segment_pk), public_id)
            if turn_id is not None
            else _begun_with(scope, db, current, prepared)
        )
        if found is None and turn_id is not None:
            found = _removed(scope, db, current, prepared)
        if found is not None:
            return _again(scope, landing, current, found, prepared)
        _clear_the_way(landing, current, if_open)
        moment = scopes.current_moment(db, scope.pk)
        chain = scope.chain(db, current.segment_pk)
        own_end = registry.segment_length(db, current.segment_pk, chain.own.base_length)
        at = request[0].at if request else None
        turn = turns.insert_turn(
            db,
            turn_id=public_id,
            generation_pk=current.generation_pk,
            scope_pk=scope.pk,
            segment_pk=current.segment_pk,
            has_request=bool(request),
            start_seq=own_end,
            owner_pk=scope.store.owner_pk,
            at=now if at is None else microseconds(at),
            utc_offset=0 if at is None else utc_offset_seconds(at),
            worktree=worktree if worktree is not None else current.worktree,
            commit_id=commit if commit is not None else current.commit_id,
        )
        renderings.insert_descriptor(db, descriptor_of(scope, db, current, turn.turn_pk, moment, own_end))
        for link in chain.links:  # imported history may still wait; now a turn waits for it
            queue.hurry(db, link.tree, AWAITED)
        sealed = ingest.seal(landing, turn, current.session_id, current.generation, prepared)
        landing.finish()
    landing.after_commit()
    return Admitted(turn, True, sealed.refs, current)


def _begun_with(
    scope: Scope, db: Connection, session: SessionRow, request: Sequence[ingest.Prepared]
) -> TurnRow | None:
    """
    The turn that began with this very request, known by its event key.

    Taken for a new one, a request that a host delivers twice would cut off the turn that it had begun.
    """
    chain = scope.chain(db, session.segment_pk)
    events = ledger.find_events(db, chain, (part.sealed.event_hash for part in request))
    if not request or len(events) < len(request):
        return None
    records = ledger.load_records(db, (record_key for record_key, _, _ in events.values()))
    first = records[min(records)]
    turn = turns.load_turn(db, first.turn_pk)
    begins = turn is not None and turn.start_seq == first.seq
    return turn if begins and all(record.turn_pk == first.turn_pk for record in records.values()) else None


def _removed(scope: Scope, db: Connection, session: SessionRow, request: Sequence[ingest.Prepared]) -> TurnRow | None:
    """The removed turn that began with this request: its id may be forgotten by now, and its event keys never are."""
    found = _begun_with(scope, db, session, request)
    return found if found is not None and found.removed else None


def _edited(scope: Scope, db: Connection, session: SessionRow, request: Sequence[ingest.Prepared]) -> TurnRow | None:
    """
    The turn that this request is an edit of: it began with a lower revision of the same key, and other content.

    What was said in the midst of a turn is no request: its edit is the host's list to tell.
    """
    events = ledger.find_events(db, scope.chain(db, session.segment_pk), (part.sealed.event_hash for part in request))
    for part in request:
        record_key, revision, sha256 = events.get(part.sealed.event_hash, (None, 0, b""))
        if record_key is None or part.sealed.revision <= revision or part.sealed.sha256 == sha256:
            continue
        record = ledger.load_record(db, record_key)
        turn = None if record is None else turns.load_turn(db, record.turn_pk)
        if record is not None and turn is not None and record.message == 0 and turn.has_request:
            return turn
    return None


def _again(
    scope: Scope, landing: Landing, session: SessionRow, turn: TurnRow, prepared: Sequence[ingest.Prepared]
) -> Admitted:
    """
    The turn that the id already names. Its request must be the same; a turn whose owner died is this process's
    now.
    """
    db = landing.db
    chain = scope.chain(db, turn.segment_pk)
    if ingest.missing_events(db, chain, prepared):  # sealed now, it would be a second request in the midst of the turn
        raise RevisionConflict(
            f"turn {turn.turn_id} began with another request; give this one a turn_id of its own, or deliver that again"
        )
    refs = ingest.seal(landing, turn, session.session_id, session.generation, prepared).refs
    if turn.state == "open" and (turn.owner_pk is None or not scope.store.owner_alive(db, turn.owner_pk)):
        turns.set_turn_state(db, turn.turn_pk, "open", scope.store.owner_pk)
        turn = evolve(turn, owner_pk=scope.store.owner_pk)
    return Admitted(turn, False, refs, session)


def _clear_the_way(landing: Landing, session: SessionRow, if_open: Literal["interrupt", "refuse"]) -> None:
    """End the generation's earlier open turn, if it may be ended."""
    before = _check_may_end(landing, session, if_open)
    if before is not None:
        end_in(landing, before, "interrupted", "cut off by the next turn")


def _check_may_end(landing: Landing, session: SessionRow, if_open: Literal["interrupt", "refuse"]) -> TurnRow | None:
    """The generation's open turn, which the next one cuts off; SessionBusy if it must not."""
    before = turns.open_turn(landing.db, session.generation_pk)
    if before is None:
        return None
    elsewhere = alive_elsewhere(landing.scope, landing.db, before)
    if elsewhere or if_open == "refuse":
        where = "in another process" if elsewhere else "here"
        raise SessionBusy(
            f"turn {before.turn_id} of session {session.session_id} is still open {where}; end it, or try again later",
            open_turn_id=before.turn_id,
        )
    return before


def descriptor_of(
    scope: Scope, db: Connection, session: SessionRow, turn_pk: int, moment: scopes.Moment, own_end: int
) -> DescriptorRow:
    """What a turn that begins now pins: marks, boundary, previous exchange, and copies of both views."""
    chain = scope.chain(db, session.segment_pk)
    own = forest.load_view(db, chain.own.tree)
    shared = forest.load_view(db, scope.row.shared_tree)
    previous = turns.last_exchange(db, chain) if scope.policy.previous_exchange else None
    settings: dict[str, Any] = {name: getattr(scope.policy, name) for name in BYTE_SETTINGS}
    return DescriptorRow(
        turn_pk=turn_pk,
        pin=0,
        clock=moment.clock,
        publications=0 if session.isolated else moment.publications,
        documents=0 if session.isolated else moment.documents,
        policy_revision=moment.policy_revision,
        epoch=moment.epoch,
        own_end=own_end,
        pending=0 if session.isolated else _pending(scope, db, moment),
        previous_start=None if previous is None else previous.start_seq,
        previous_end=None if previous is None else previous.end_seq,
        shared_levels=b"" if session.isolated else shared.levels,
        shared_shrinking=shared.shrinking and not session.isolated,
        own_levels=own.levels,
        own_shrinking=own.shrinking,
        leaf_format=scope.row.leaf_format,
        settings=settings,
    )


def _pending(scope: Scope, db: Connection, moment: scopes.Moment) -> int:
    """The ended turns that a pin does not show: not published yet, or by this very transaction, after the pin."""
    after_the_pin = scopes.next_publication(db, scope.pk) - moment.publications
    return queue.pending_publications(db, scope.pk) + after_the_pin


def end_in(landing: Landing, turn: TurnRow, outcome: Outcome, detail: str | None, at: int | None = None) -> None:
    """Give a turn its outcome inside the caller's transaction: it joins the view and its publication is due."""
    turn_after(turn.state, "end", turn.outcome)
    chain = landing.scope.chain(landing.db, turn.segment_pk)
    end = registry.segment_length(landing.db, turn.segment_pk, chain.own.base_length)
    turns.mark_ended(
        landing.db,
        turn.turn_pk,
        outcome=outcome,
        detail=detail,
        end_seq=end,
        at=landing.at if at is None else at,
    )
    turns.drop_all_staged(landing.db, turn.turn_pk)
    receipts.write_down(landing.scope, landing.db, turn.turn_pk)
    ended = turns.load_turn(landing.db, turn.turn_pk)
    assert ended is not None, "just updated"
    landing.turn_ended(ended)


def end(scope: Scope, turn_pk: int, outcome: Outcome | None, detail: str | None) -> Outcome:
    """
    End a turn; the first terminal report wins, later ones change nothing.

    Args:
        outcome: None lets its records decide: completed only on an assistant's answer with no call pending.

    Returns:
        The outcome that the turn has now.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        turn = turns.load_turn(db, turn_pk)
        assert turn is not None, "a handle's turn exists"
        if turn.outcome is not None:
            return turn.outcome
        landing = Landing(scope, db, scope.now())
        decided = outcome or natural_end(db, turn_pk)
        end_in(landing, turn, decided, detail)
        landing.finish()
    landing.after_commit()
    return decided


def end_own(scope: Scope, turn_pk: int, outcome: Outcome, detail: str) -> None:
    """End a turn if it still runs in this process: one that was suspended, or resumed elsewhere, is not ours to end."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        turn = turns.load_turn(db, turn_pk)
        if turn is None or turn.state != "open" or turn.owner_pk != scope.store.owner_pk:
            return
        landing = Landing(scope, db, scope.now())
        end_in(landing, turn, outcome, detail)
        landing.finish()
    landing.after_commit()


def natural_end(db: Connection, turn_pk: int) -> Outcome:
    """How a turn that simply stopped ended."""
    last = ledger.last_of_turn(db, turn_pk)
    return natural_outcome(None if last is None else last.kind, ledger.count_pending_calls(db, turn_pk))


def suspend(scope: Scope, turn_pk: int) -> None:
    """Leave a turn open for any process to resume. Idempotent; TurnEnded if it has its outcome."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        turn = turns.load_turn(db, turn_pk)
        assert turn is not None, "a handle's turn exists"
        turns.set_turn_state(db, turn_pk, turn_after(turn.state, "suspend", turn.outcome), None)
        receipts.write_down(scope, db, turn_pk)


def resume(scope: Scope, session: SessionRow, turn_id: str | None) -> TurnRow:
    """
    Take up the suspended turn, or one whose owner died, with its snapshot.

    Raises:
        UnknownRef: none is suspended, or the one of that id is not.
        SessionBusy: it is running in a live process.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        current = registry.session_by_pk(db, session.session_pk)
        check_usable(current, session.generation_pk)
        turn = turns.open_turn(db, current.generation_pk)
        if turn is None or (turn_id is not None and turn.turn_id != turn_id):
            raise UnknownRef(
                f"session {current.session_id} has no suspended turn{' of that id' if turn_id else ''}; begin one with"
                f" turn()"
            )
        if turn.state == "open" and turn.owner_pk is not None:
            mine = turn.owner_pk == scope.store.owner_pk
            if mine or scope.store.owner_alive(db, turn.owner_pk):
                where = "in this process" if mine else "in another process"
                raise SessionBusy(
                    f"turn {turn.turn_id} is running {where}, not suspended; suspend() it there first",
                    open_turn_id=turn.turn_id,
                )
        turns.set_turn_state(db, turn.turn_pk, turn_after(turn.state, "resume", turn.outcome), scope.store.owner_pk)
        taken = turns.load_turn(db, turn.turn_pk)
        assert taken is not None, "just updated"
        return taken


def end_abandoned(scope: Scope) -> int:
    """Upkeep: end the turns whose owner died, so that they are published and unpinned. How many."""
    with scope.store.read() as db:
        suspects = [
            turn
            for turn in turns.open_turns_of_scope(db, scope.pk)
            if turn.owner_pk is None or not scope.store.owner_alive(db, turn.owner_pk)
        ]
    ended = 0
    for suspect in suspects:
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            turn = turns.load_turn(db, suspect.turn_pk)
            if turn is None or turn.state != "open" or turn.owner_pk != suspect.owner_pk:
                continue  # somebody resumed or ended it between the two transactions: theirs wins
            landing = Landing(scope, db, scope.now())
            end_in(landing, turn, "interrupted", "its process died")
            landing.finish()
        landing.after_commit()
        ended += 1
    return ended


def say(scope: Scope, session: SessionRow, message: HostMessage, kind: RecordKind | None, outcome: Outcome) -> str:
    """
    A note or a background report: into the open turn, else as a turn of its own without a request.

    Returns:
        The canonical ref of its record.
    """
    own_id = "turn-" + random_id(12)
    while True:
        with scope.store.read() as db:
            current = registry.session_by_pk(db, session.session_pk)
            check_usable(current, session.generation_pk)
            host = turns.open_turn(db, current.generation_pk)
            ordinal = 0 if host is None else turns.last_message_ordinal(db, host.turn_pk) + 1
        turn_id = own_id if host is None else host.turn_id
        parts = ingest.prepare(scope, [message], turn_id=turn_id, ordinal=ordinal, kind=kind)
        prepared = ingest.ready(scope, parts)
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            current = registry.session_by_pk(db, session.session_pk)
            check_usable(current, session.generation_pk)
            now_open = turns.open_turn(db, current.generation_pk)
            same = (None if host is None else host.turn_pk) == (None if now_open is None else now_open.turn_pk)
            if not same or (now_open is not None and turns.last_message_ordinal(db, now_open.turn_pk) + 1 != ordinal):
                continue  # a turn began, ended or grew meanwhile: it decides where this belongs
            landing = Landing(scope, db, scope.now())
            turn = now_open or requestless_turn(landing, current, own_id, message.at)
            refs = ingest.seal(landing, turn, current.session_id, current.generation, prepared).refs
            if now_open is None:
                end_in(landing, turn, outcome, None)
            landing.finish()
        landing.after_commit()
        return refs[0]


def requestless_turn(
    landing: Landing, session: SessionRow, turn_id: str, at: datetime | None, has_request: bool = False
) -> TurnRow:
    """
    Insert a turn that no model call belongs to: a note, a late report, an imported turn.

    Raises:
        SessionBusy: a turn of the session is open, and its records would come in the midst of it.
    """
    db, scope = landing.db, landing.scope
    running = turns.open_turn(db, session.generation_pk)
    if running is not None:
        raise SessionBusy(
            f"turn {running.turn_id} of session {session.session_id} is open; end it, then try again",
            open_turn_id=running.turn_id,
        )
    chain = scope.chain(db, session.segment_pk)
    return turns.insert_turn(
        db,
        turn_id=turn_id,
        generation_pk=session.generation_pk,
        scope_pk=scope.pk,
        segment_pk=session.segment_pk,
        has_request=has_request,
        start_seq=registry.segment_length(db, session.segment_pk, chain.own.base_length),
        owner_pk=scope.store.owner_pk,
        at=landing.at if at is None else microseconds(at),
        utc_offset=0 if at is None else utc_offset_seconds(at),
        worktree=session.worktree,
        commit_id=session.commit_id,
    )
