"""
Forgetting, stage one (§ 11, § 12): a session, some of its turns, what it shares, or a scope is hidden at once.

Decides: what belongs to a removal, what a fork keeps of it, and what the receipt says.
Refuses to know: how bytes leave the file. It writes down what is to be erased; that is :mod:`optchat.engine.scrubbing`.

One transaction. By its commit every read answers as if it had never been there: records, turns, publications and nodes
have their states, what was summarised from them or beside their text is replaced by what is left, jobs of theirs are
gone, the epoch has moved, so that no call under way can bring anything back and every pin looks whether it could see
some of it. Numbers stay: of what was said there only tombstones tell.

A fork that is preserved keeps its prefix as its own history: the segments under it stay, up to the longest that is
still needed, and nobody else can see them. Only whole turns are ever removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from optchat.core.errors import BadArgument, UnknownRef
from optchat.core.forgetting import CANNOT_UNDO, FORKS, LATER_SUMMARIES, DeletionReceipt, Forks, fork_keeps
from optchat.core.refs import KEY_BITS, PublicationRef, parse_ref
from optchat.engine.cutting import find_current_lengths
from optchat.engine.handle import Scope
from optchat.engine.landing import Landing
from optchat.engine.taking import SegmentOf, Taking, runs
from optchat.engine.turns import check_usable
from optchat.engine.withdrawing import unpublish
from optchat.store import publications, registry, removals, turns
from optchat.store.registry import SessionRow
from optchat.store.removals import RemovalRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


def delete_session(
    scope: Scope, session: SessionRow, *, only: Sequence[str] | None = None, forks: Forks = "preserve"
) -> DeletionReceipt:
    """
    Hide a session, or some of its turns, from every read (§ 12).

    Atomic; a crash leaves it whole or gone. Idempotent: deleting again answers with the same receipt, and says how far
    its scrubbing has come.

    Args:
        only: turn ids or publication refs of the session, of whatever generation; None: all of it.
        forks: "preserve": forks keep what they rest on as their own history; "forget": it is hidden there, too.

    Raises:
        UnknownRef: one of ``only`` names no turn of the session; nothing was removed.
        BadArgument: no such way with forks; ``only`` is empty; or a fork rests on one of the turns and is to be
            preserved.
    """
    if forks not in FORKS:
        raise BadArgument(f"forks is 'preserve' or 'forget', not {forks!r}")
    if only is not None and (isinstance(only, str) or not only):
        raise BadArgument("only is a list of turn ids or publication refs; leave it out to delete the whole session")
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        row = registry.session_by_pk(db, session.session_pk)
        taking = Taking(landing, row)
        if only is None:
            removal = _delete_whole(taking, row, forks)
        else:
            removal = _delete_some(taking, row, only, forks)
        landing.finish()
        written = removals.load_removal(db, removal)
    landing.after_commit()
    return receipt_of(written)


def receipt_of(removal: RemovalRow) -> DeletionReceipt:
    """What a removal says of itself; and what hinders its scrubbing, if something does."""
    hindered = {} if removal.hindered is None else {"file": f"its bytes, for now: {removal.hindered}"}
    return DeletionReceipt(removal.removed, removal.kept | hindered, CANNOT_UNDO, removal.scrubbed)


def _delete_whole(taking: Taking, session: SessionRow, forks: Forks) -> int:
    db = taking.db
    segments = _segments(taking, session, forks)
    before = [
        row for row in removals.removals_of_session(db, session.scope_pk, session.session_pk) if row.kind == "session"
    ]
    going = [
        turn
        for of in segments
        for turn in turns.turns_of_generation(db, of.generation)
        if not turn.removed and turn.start_seq >= of.needed
    ]
    if session.state == "deleted" and before and not going:
        return before[0].removal_pk
    if session.state != "deleted":
        taking.count("sessions", 1)
        removals.remember_session(db, session.scope_pk, session.host, session.key, taking.landing.at)
        removals.hide_session(db, session.session_pk)
        find_current_lengths(db, taking.landing.scope.chain(db, session.segment_pk))
        taking.erase("sessions", session.session_pk, session.session_pk + 1)
    taking.published += unpublish(taking.landing, _numbers(db, session), removed=True)
    taking.hide_turns(going)
    for of in segments:
        living = _others(db, session, of.segment)
        length = max((length for _fork, length in living), default=0)
        if of.needed < length and length > of.base:  # forgotten in forks that live on
            taking.hide_records(of.segment, of.base, length, buried=True)
        taking.hide_records(of.segment, max(of.base, length), of.end, buried=False)
        taking.hide_tree(of, length)
        for fork, rests_on in living:
            taking.keep(f"session:{fork.session_id}", fork_keeps(rests_on) if of.needed else LATER_SUMMARIES)
    taking.replace_nodes()
    return taking.write("session")


def _segments(taking: Taking, session: SessionRow, forks: Forks) -> list[SegmentOf]:
    """
    The segments of every generation of a session, and how far others need them; and those of deleted sessions that it
    rests on: perhaps nobody needs them any more.
    """
    db = taking.db
    found: dict[int, SegmentOf] = {}
    for generation in registry.generations(db, session.session_pk):
        chain = taking.landing.scope.chain(db, registry.segment_of_generation(db, generation))
        for link in chain.links:
            made_by = registry.generation_of_segment(db, link.segment)
            if made_by is None or link.segment in found:
                continue
            own = made_by[1] == session.session_pk
            if not own and registry.session_by_pk(db, made_by[1]).state != "deleted":
                continue
            needed = max((length for _fork, length in _others(db, session, link.segment)), default=0)
            end = max(registry.segment_length(db, link.segment, link.base_length), link.base_length)
            found[link.segment] = SegmentOf(
                link.segment, link.tree, made_by[0], link.base_length, end, 0 if own and forks == "forget" else needed
            )
    return list(found.values())


def _others(db: Connection, session: SessionRow, segment: int) -> list[tuple[SessionRow, int]]:
    """The living sessions, other than this one, that rest on a segment, at whatever depth, and on how much of it."""
    found: list[tuple[SessionRow, int]] = []
    for over in registry.segments_over(db, segment):
        generation = registry.generation_of_segment(db, over.segment_pk)
        if generation is None:
            continue
        fork = registry.session_by_pk(db, generation[1])
        if fork.session_pk != session.session_pk and fork.state != "deleted":
            found.append((fork, over.base_length))
        else:
            found += [(each, over.base_length) for each, _ in _others(db, session, over.segment_pk)]
    return found


def _numbers(db: Connection, session: SessionRow) -> list[int]:
    """Every publication that a session ever made."""
    return [
        number
        for generation in registry.generations(db, session.session_pk)
        for number in publications.numbers_of_generation(db, generation)
    ]


def _delete_some(taking: Taking, session: SessionRow, only: Sequence[str], forks: Forks) -> int:
    db = taking.db
    chosen: dict[int, TurnRow] = {}
    every = [
        turn
        for generation in registry.generations(db, session.session_pk)
        for turn in turns.turns_of_generation(db, generation)
    ]
    before = [
        row for row in removals.removals_of_session(db, session.scope_pk, session.session_pk) if row.kind == "turns"
    ]
    for name in only:
        named = _named(taking, every, name)
        if not named or session.state == "deleted":
            raise UnknownRef(f"{name[:80]!r} names no turn of session {session.session_id}; turns() lists them")
        chosen |= {turn.turn_pk: turn for turn in named}
    living = [turn for turn in chosen.values() if not turn.removed]
    if not living:
        took = [row for row in before if any(low <= pk < high for low, high in row.turns for pk in chosen)]
        return took[0].removal_pk
    if forks == "preserve":
        for turn in living:
            for fork, length in _others(db, session, turn.segment_pk):
                if length > turn.start_seq:
                    raise BadArgument(
                        f"session {fork.session_id}, a fork, has turn {turn.turn_id} as its own history; use"
                        " forks='forget' to hide it there too, or delete that session first"
                    )
    later = any(turn.ordinal > min(each.ordinal for each in living) for turn in every if turn.turn_pk not in chosen)
    if later:
        taking.keep(f"session:{session.session_id}", LATER_SUMMARIES)
    taking.hide_turns(living)
    for turn in living:
        taking.hide_records(turn.segment_pk, turn.start_seq, taking.end_of(turn), buried=True)
    taking.replace_nodes()
    return taking.write("turns")


def _named(taking: Taking, every: Sequence[TurnRow], name: str) -> list[TurnRow]:
    """
    The turns that a turn id or a publication's ref names, in every generation.

    What was kept of a turn when it was cut says the same again under its id, so that both go.
    """
    if not isinstance(name, str):
        raise BadArgument("only= holds something that is no string; give the ids or refs that turns() has")
    names = (name, removals.hashed_turn_id(taking.db, taking.landing.scope.pk, name))  # scrubbed, it has the other
    ids = {turn.turn_id for turn in every if turn.turn_id in names}
    if not ids and name.startswith("pub:"):
        ref = parse_ref(name)
        if isinstance(ref, PublicationRef) and ref.span.count == 1:
            row = publications.load_publication(taking.db, taking.landing.scope.pk << KEY_BITS | ref.span.start)
            ids = {turn.turn_id for turn in every if row is not None and turn.turn_pk == row.turn_pk}
    return [turn for turn in every if turn.turn_id in ids]


def revoke(scope: Scope, session: SessionRow) -> None:
    """
    Share nothing of a session any more (§ 12): its publications are gone for everybody, and none is made.

    The session itself goes on, in private; its forks keep what they rest on. Atomic. Idempotent.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        row = registry.session_by_pk(db, session.session_pk)
        check_usable(row, row.generation_pk)
        taking = Taking(landing, row)
        for generation in registry.generations(db, row.session_pk):
            for turn in turns.turns_of_generation(db, generation):
                removals.drop_jobs(db, ("publication",), turn.turn_pk, turn.turn_pk + 1)
        taking.published += unpublish(landing, _numbers(db, row), removed=True)
        registry.set_sharing(db, row.session_pk, revoked=True, shared_from=row.shared_from)
        if taking.published:
            taking.replace_nodes()
            taking.write("revoke")
        landing.finish()
    landing.after_commit()


def delete_scope(scope: Scope) -> DeletionReceipt:
    """
    Hide a whole scope (§ 12): every session, what they shared, and its name. Atomic. Idempotent.

    Nothing of it is ever read again, so that nothing is put in its place.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        written = removals.removals_of_session(db, scope.pk, None)
        if written:
            return receipt_of(written[0])
        landing = Landing(scope, db, scope.now())
        taking = Taking(landing, None)
        hidden = removals.hide_all(db, scope.pk, landing.at)
        for what, number in hidden.items():
            taking.count(what, number)
        for segment, tree, _base, _ended in registry.scope_segments(db, scope.pk):
            taking.erase("records", segment << KEY_BITS, (segment + 1) << KEY_BITS)
            taking.erase("trees", tree, tree + 1)
        taking.erase("trees", scope.row.shared_tree, scope.row.shared_tree + 1)
        taking.erase("publications", scope.pk << KEY_BITS, (scope.pk + 1) << KEY_BITS)
        taking.erase("documents", scope.pk << KEY_BITS, (scope.pk + 1) << KEY_BITS)
        for low, high in runs(removals.turns_of_scope(db, scope.pk)):
            taking.erase("turns", low, high)
        for low, high in runs(removals.sessions_of_scope(db, scope.pk)):
            taking.erase("sessions", low, high)
        taking.erase("scopes", scope.pk, scope.pk + 1)
        removal = taking.write("scope")
        removals.hide_scope(db, scope.pk)
        landing.finish()
        done = removals.load_removal(db, removal)
    landing.after_commit()
    return receipt_of(done)
