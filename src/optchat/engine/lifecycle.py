"""
Lifecycle (§ 12): fork, rewind, archive, share, and a session begun anew.

Decides: nothing that core does not: at which boundary a history is kept, and when an operation has been done already.
Refuses to know: how a history is cut (:mod:`optchat.engine.cutting`), and what is forgotten
(:mod:`optchat.engine.forgetting`).

Each is one transaction, and can be repeated after a crash: what has been done changes nothing. None disturbs another
session's open turn: what it pinned is found by clocks.
"""

from __future__ import annotations

from optchat.core.errors import BadArgument, ConfigError, SessionDeleted, UnknownRef
from optchat.core.lineage import Base, Chain, base_at
from optchat.engine import ingest
from optchat.engine.cutting import Cut, cut, kept_part, lay_view, refuse_elsewhere
from optchat.engine.handle import Scope
from optchat.engine.landing import Landing
from optchat.engine.turns import check_usable, end_in, random_id
from optchat.store import publications, registry, removals, turns
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

_ALL = 1 << 40  # turns: more than any session has


# ---- fork ------------------------------------------------------------------------------------------------------------


def fork(scope: Scope, session: SessionRow, key: str, after: str | None) -> SessionRow:
    """
    A new session of the same host, with a session's history up to a boundary as its own past.

    Nothing is copied, and nothing inherited is published again. Of an isolated or revoked session it is one, too: what
    was kept from others would else come out in what is said next. Idempotent: the session that this very fork made is
    found again by its key.

    Args:
        after: the last turn that is kept; None: the last that has ended.

    Raises:
        UnknownRef: no such turn in the session's present history.
        BadArgument: the turn has not ended.
        ConfigError: another session has the key.
        SessionDeleted: the session was, or one that had the key.
        ResyncNeeded, GenerationSuperseded: the session is not to be gone on from.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        parent = registry.session_by_pk(db, session.session_pk)
        check_usable(parent, session.generation_pk)
        chain = scope.chain(db, parent.segment_pk)
        length = _ended_length(db, parent, chain) if after is None else _end_of(db, parent, chain, after)
        # Over nothing there still is a base: which session it was forked from is known by it.
        base = base_at(chain, length) if length else Base(chain.own.segment, 0)
        found = registry.find_session(db, scope.pk, parent.host, key)
        if found is not None:
            if found.session_pk != parent.session_pk and registry.base_of(db, found.session_pk, 0) == base:
                return found
            raise ConfigError(f"session {key!r} of host {parent.host!r} is there already; fork under a key of its own")
        if removals.is_forgotten(db, scope.pk, parent.host, key):
            raise SessionDeleted(f"session {key!r} was deleted; fork under another key")
        child = registry.create_session(
            db,
            session_id=free_session_id(db),
            scope_pk=scope.pk,
            host=parent.host,
            key=key,
            isolated=parent.isolated,
            title=parent.title,
            project_pk=parent.project_pk,
            worktree=parent.worktree,
            commit_id=parent.commit_id,
            at=scope.now(),
            revoked=parent.revoked,
            base=base,
        )
        lay_view(scope, db, child.segment_pk, length)
        return child


def free_session_id(db: Connection) -> str:
    """An id that no session has."""
    session_id = random_id(8)
    while registry.session_id_taken(db, session_id):
        session_id = random_id(8)
    return session_id


def _length(db: Connection, chain: Chain) -> int:
    return registry.segment_length(db, chain.own.segment, chain.own.base_length)


def _ended_length(db: Connection, session: SessionRow, chain: Chain) -> int:
    """The records of a session's ended turns."""
    running = turns.open_turn(db, session.generation_pk)
    return _length(db, chain) if running is None else running.start_seq


def _end_of(db: Connection, session: SessionRow, chain: Chain, turn_id: str) -> int:
    """Where a turn of a session's present history ends."""
    turn = turns.find_on_chain(db, chain, turn_id)
    if turn is None:
        raise _no_turn(session, turn_id)
    if turn.end_seq is None:
        raise BadArgument(f"turn {turn_id[:80]!r} has not ended; name the turn before it, or end() it first")
    return turn.end_seq


def _no_turn(session: SessionRow, turn_id: str) -> UnknownRef:
    return UnknownRef(f"session {session.session_id} has no turn {turn_id[:80]!r}; its turns() are those that it has")


# ---- rewind ----------------------------------------------------------------------------------------------------------


def rewind(scope: Scope, session: SessionRow, *, after: str | None, before: str | None) -> SessionRow:
    """
    Go back to the end of a turn, or to the beginning of one, as the session's next generation.

    Idempotent: where the session stands there already, nothing changes.

    Args:
        after: the last turn that is kept. before: the first that is not. One of them.

    Returns:
        The session, in its present generation.

    Raises:
        UnknownRef: no such turn in the session's present history.
        BadArgument: ``after`` a turn that has not ended.
        SessionBusy: the open turn is alive in another process.
        SessionDeleted, ResyncNeeded, GenerationSuperseded: the session is not to be gone on from.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        current = registry.session_by_pk(db, session.session_pk)
        check_usable(current, session.generation_pk)
        chain = scope.chain(db, current.segment_pk)
        if after is not None:
            length = _end_of(db, current, chain, after)
        else:
            assert before is not None, "one of both is given"
            turn = turns.find_on_chain(db, chain, before)
            if turn is None:
                if _was_rewound_before(scope, db, current, chain, before):
                    return current
                raise _no_turn(current, before)
            length = turn.start_seq
        landing = Landing(scope, db, scope.now())
        done = cut(landing, current, length)
        landing.finish()
    landing.after_commit()
    return done.session


def _was_rewound_before(scope: Scope, db: Connection, session: SessionRow, chain: Chain, turn_id: str) -> bool:
    """Whether the session stands where a turn of an earlier generation began: it was rewound before that already."""
    length = _length(db, chain)
    for number in reversed(range(session.generation)):
        generation = registry.generation_of(db, session.session_pk, number)
        turn = None if generation is None else turns.find_turn(db, generation[0], turn_id)
        if generation is not None and turn is not None and turn.start_seq == length:
            earlier = scope.chain(db, generation[1])
            return length == 0 or chain.has_record_of(earlier, length - 1)
    return False


def rewind_within(scope: Scope, session: SessionRow, keep_records: int) -> SessionRow:
    """
    Go back to a session's first records, wherever in a turn that is: its next generation.

    A turn that is cut inside is kept so far as an inherited turn, sealed again and never published. For a host's list
    that departs in mid-turn; what is to be sealed on into the turn in the same transaction takes
    :func:`optchat.engine.cutting.cut` itself.

    Raises:
        BadArgument: the session has no so many records.
        SessionBusy: the open turn is alive in another process.
    """
    while True:
        with scope.store.read() as db:
            before = registry.session_by_pk(db, session.session_pk)
            chain = scope.chain(db, before.segment_pk)
            total = _length(db, chain)
            parts = kept_part(db, chain, keep_records, total)
        kept = ingest.ready(scope, parts)
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            current = registry.session_by_pk(db, session.session_pk)
            if current.generation_pk != before.generation_pk or _length(db, chain) != total:
                continue  # it went on, or was rewound meanwhile: what is kept is looked for anew
            landing = Landing(scope, db, scope.now())
            done: Cut = cut(landing, current, keep_records, kept=kept)
            landing.finish()
        landing.after_commit()
        return done.session


# ---- archive ---------------------------------------------------------------------------------------------------------


def archive(scope: Scope, session: SessionRow, archived: bool) -> None:
    """
    Hide a session from discovery, or show it again. Nothing of it is forgotten, and no pin is disturbed. Idempotent.

    Raises:
        SessionDeleted: it is no more.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        current = _living(db, session)
        if bool(current.archived) == archived:
            return
        landing = Landing(scope, db, scope.now())
        registry.set_archived(db, current.session_pk, landing.born if archived else 0)
        landing.now_visible()
        landing.finish()
    landing.after_commit()


def _living(db: Connection, session: SessionRow) -> SessionRow:
    current = registry.session_by_pk(db, session.session_pk)
    if current.state == "deleted":
        raise SessionDeleted(f"session {current.session_id} was deleted; session(..., recreate=True) begins a new one")
    return current


# ---- share -----------------------------------------------------------------------------------------------------------


def share(scope: Scope, session: SessionRow, *, history: bool) -> None:
    """
    Share a session that was revoked: what it says from now on; with its history, also what it said before, published
    again at new numbers, in the order of its turns. The turn that is open when it is shared began before. Idempotent.

    Raises:
        ConfigError: an isolated session; or a history of which a later part is shared already, and an earlier is not:
            publications of one session are made in turn order.
        SessionDeleted: it is no more.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        current = _living(db, session)
        if current.isolated:
            raise ConfigError(f"session {current.session_id} is isolated and shares nothing; begin a shared one")
        if not current.revoked and not history:
            return
        landing = Landing(scope, db, scope.now())
        registry.set_sharing(
            db,
            current.session_pk,
            revoked=False,
            shared_from=0 if history else turns.next_ordinal(db, current.generation_pk),
        )
        if history:
            _publish_history(landing, registry.session_by_pk(db, current.session_pk))
        landing.finish()
    landing.after_commit()


def _publish_history(landing: Landing, session: SessionRow) -> None:
    db = landing.db
    chain = landing.scope.chain(db, session.segment_pk)
    own = {link.segment: registry.generation_of_segment(db, link.segment) for link in chain.links}
    generations = {found[0] for found in own.values() if found is not None and found[1] == session.session_pk}
    due: list[TurnRow] = []
    for turn in turns.list_on_chain(db, chain, after=-1, limit=_ALL):
        if turn.generation_pk not in generations or turn.state != "ended" or turn.inherited:
            continue
        if turn.end_seq == turn.start_seq:
            continue
        if turn.publication_key is None and not publications.has_job(db, turn.turn_pk):
            due.append(turn)
        elif any(earlier.generation_pk == turn.generation_pk for earlier in due):
            raise ConfigError(
                f"turn {turn.turn_id} is shared and earlier ones of its session are not; revoke() the session first,"
                " then share(history=True)"
            )
    for turn in due:
        landing.publication_due(turn, session)


# ---- begun anew ------------------------------------------------------------------------------------------------------


def begin_anew(scope: Scope, session: SessionRow) -> SessionRow:
    """
    Another session under the same (host, key): the old one is archived, and found by its id alone.

    Its open turn ends as interrupted. Idempotent: a session that has said nothing is new, and is returned as it is.

    Raises:
        SessionBusy: the open turn is alive in another process.
        SessionDeleted: it is no more.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        _living(db, session)
        current = registry.find_session(db, scope.pk, session.host, session.key) or session
        if not _length(db, scope.chain(db, current.segment_pk)):
            return current
        landing = Landing(scope, db, scope.now())
        running = turns.open_turn(db, current.generation_pk)
        if running is not None:
            refuse_elsewhere(scope, db, current, running)
            end_in(landing, running, "interrupted", "its session was begun anew")
        registry.make_way(db, current.session_pk)
        registry.set_archived(db, current.session_pk, current.archived or landing.born)
        made = registry.create_session(
            db,
            session_id=free_session_id(db),
            scope_pk=scope.pk,
            host=current.host,
            key=current.key,
            isolated=current.isolated,
            title=None,
            project_pk=current.project_pk,
            worktree=current.worktree,
            commit_id=current.commit_id,
            at=scope.now(),
        )
        landing.now_visible()
        landing.finish()
    landing.after_commit()
    return made
