"""
Reconciliation (§ 3, § 12): a session is brought to what its host's list says.

Decides: nothing that core does not: which turn new messages go into is what the list says of turns.
Refuses to know: hosts, and how a history is cut (:mod:`optchat.engine.lifecycle`).

:func:`reconcile` only adds. A list that departs from what is sealed turns the session's memory off until
:func:`resync`, which goes back to where both agree and seals the rest, in one transaction. Both compare outside of the
transaction that writes; it looks whether the session is still as it was found, else all is done again. So of two that
race the second finds what the first did.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from attrs import evolve, frozen

from optchat.core.errors import ResyncNeeded
from optchat.core.grouping import TranscriptTurn
from optchat.core.reconciling import HostList
from optchat.core.status import ResyncReport
from optchat.core.terms import Outcome
from optchat.engine import ingest
from optchat.engine.comparing import Compared, compare_list, standing
from optchat.engine.cutting import cut, kept_part, refuse_elsewhere, turn_of
from optchat.engine.handle import Scope, microseconds
from optchat.engine.landing import Landing
from optchat.engine.turns import end_in, natural_end, random_id, requestless_turn
from optchat.store import hosts, registry, turns
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


@frozen
class Batch:
    """What is sealed into one turn. ``into``: the open turn that goes on; else it is a turn of its own, which ends."""

    turn_id: str
    into: TurnRow | None
    has_request: bool
    parts: tuple[ingest.Prepared, ...]
    outcome: Outcome | None  # None: as its records say
    ends: bool
    first_at: datetime | None
    last_at: datetime | None


@frozen
class Resumed:
    """The turn that was cut inside and goes on, and the ordinal of its next message."""

    turn: TurnRow
    ordinal: int


def reconcile(scope: Scope, session_pk: int, host: HostList) -> ResyncReport:
    """
    Seal what a list has beyond what is sealed.

    Raises:
        ResyncNeeded: it changes, lacks or reorders what is sealed; or it did before.
        SessionBusy: the turn that it goes on with runs in another process.
        SessionDeleted: the session is no more.
    """
    while True:
        compared = compare_list(scope, session_pk, host)
        session, divergence = compared.standing.session, compared.result.divergence
        if session.state == "needs_resync":
            raise ResyncNeeded(
                f"session {session.session_id} differs from its host's history since an earlier look; call resync()"
                " with the host's messages"
            )
        if divergence is not None:
            _refuse_while_running_ahead(scope, compared)
            if _turned_off(scope, compared):
                raise ResyncNeeded(
                    f"session {session.session_id} differs from its host's history: {divergence}; memory is off for it"
                    " until resync() with the host's messages"
                )
            continue
        report = _added(scope, compared)
        if report is not None:
            return report


def resync(scope: Scope, session_pk: int, host: HostList) -> ResyncReport:
    """
    Make a session's history that of its host's list.

    Raises:
        SessionBusy: a turn of the session runs in another process.
        SessionDeleted: the session is no more.
    """
    while True:
        compared = compare_list(scope, session_pk, host)
        report = _added(scope, compared) if compared.result.divergence is None else _cut(scope, compared)
        if report is not None:
            return report


def _turned_off(scope: Scope, compared: Compared) -> bool:
    """Turn the session's memory off, if it still is as it was found."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        session = compared.standing.session
        if standing(scope, db, session.session_pk) != compared.standing:
            return False
        hosts.set_resync(db, session.session_pk, needed=True)
        hosts.set_host_report(db, session.session_pk, _messages(db, compared), session.behind_since or scope.now())
    return True


def _messages(db: Connection, compared: Compared) -> int:
    """How many messages the host holds by its list."""
    beginning = compared.result.beginning
    before = hosts.count_messages(db, compared.chain, beginning) if beginning else 0
    return before + compared.host.messages


def _refuse_while_running_ahead(scope: Scope, compared: Compared) -> None:
    """A list that only lacks what another process's running turn said is no other history: it is early."""
    divergence, running = compared.result.divergence, compared.standing.open
    assert divergence is not None, "the caller looked"
    if divergence.message is None and running is not None and divergence.seq >= running.start_seq:
        _refuse_while_elsewhere(scope, compared)


def _refuse_while_elsewhere(scope: Scope, compared: Compared) -> None:
    """
    Raises:
        SessionBusy: the open turn is alive in another process, which says itself what comes next in it.
    """
    running = compared.standing.open
    if running is not None:
        with scope.store.read() as db:
            refuse_elsewhere(scope, db, compared.standing.session, running)


# ---- what is added ---------------------------------------------------------------------------------------------------


def _added(scope: Scope, compared: Compared) -> ResyncReport | None:
    """Seal what the list has beyond what is sealed, and turn memory on; None if the session is not as it was found."""
    session = compared.standing.session
    with scope.store.read() as db:
        batches = _batches(scope, db, compared, compared.standing.length)
    told = _told_end(compared, batches)
    changed = bool(batches) or told is not None
    if changed:
        _refuse_while_elsewhere(scope, compared)
    if not changed and session.behind_since is None and session.state == "active":
        return _report(compared, 0, 0, 0)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now(), backlog=True)
        current = _as_compared(landing, compared)
        if current is None:
            return None
        sealed, made = _seal(landing, current, batches, compared.standing.open, told)
        landing.finish()
    landing.after_commit()
    return _report(compared, 0, sealed, made)


def _as_compared(landing: Landing, compared: Compared) -> SessionRow | None:
    """The session, with memory on and its host heard; None if it is not as it was found when both were compared."""
    db, session_pk = landing.db, compared.standing.session.session_pk
    if standing(landing.scope, db, session_pk) != compared.standing:
        return None
    hosts.set_resync(db, session_pk, needed=False)
    hosts.set_host_report(db, session_pk, _messages(db, compared), None)
    return registry.session_by_pk(db, session_pk)


def _report(compared: Compared, retired: int, sealed: int, made: int) -> ResyncReport:
    skipped = dict(compared.host.skipped)
    if compared.result.skipped:
        skipped["removed"] = len(compared.result.skipped)
    return ResyncReport(compared.result.kept, retired, sealed, made, skipped)


def _told_end(compared: Compared, batches: Sequence[Batch]) -> Outcome | None:
    """How the open turn ended, where the list says so and has nothing more to seal."""
    running, last, turns_of_list = compared.standing.open, compared.result.last_matched, compared.host.turns
    if running is None or batches or last is None or last != len(compared.listed) - 1:
        return None
    ended = turns_of_list[-1]
    in_it = compared.result.matched[last] >= running.start_seq
    return ended.outcome if in_it and ended.told else None


def _batches(
    scope: Scope,
    db: Connection,
    compared: Compared,
    length: int,
    resumed: Resumed | None = None,
    taken: frozenset[str] = frozenset(),
) -> list[Batch]:
    """
    The rest of a list, turn by turn, ready to be sealed behind so many records.

    What goes on with a turn that has ended is a turn of its own, after it: an end is not taken back.

    Args:
        resumed: the turn that the list goes on with was cut inside.
        taken: ids of turns that will be there by then.
    """
    listed = compared.listed
    batches: list[Batch] = []
    ids = set(taken)
    groups = [(turn, tuple(parts)) for turn, parts in groupby(compared.result.rest, key=lambda part: listed[part].turn)]
    for place, (number, parts) in enumerate(groups):
        told = compared.host.turns[number]
        before = None if place else _goes_on_with(db, compared, told)
        into = resumed if place == 0 else None
        running = compared.standing.open if compared.result.divergence is None else None
        if before is not None and running is not None and before.turn_pk == running.turn_pk:
            into = Resumed(running, turns.last_message_ordinal(db, running.turn_pk) + 1)
        if into is None:
            named_by_place = not told.named and compared.result.beginning > 0  # a tail's is not counted from the first
            wanted = "turn-" + random_id(12) if named_by_place else told.turn_id
            turn_id = _free_id(db, compared, wanted if before is None else before.turn_id, ids, length, before)
            ids.add(turn_id)
        else:
            turn_id = into.turn.turn_id
        times = [at for part in parts if (at := compared.host.parts[part].message.at) is not None]
        batches.append(
            Batch(
                turn_id,
                None if into is None else into.turn,
                has_request=told.has_request and before is None,
                parts=_prepared(scope, compared, parts, turn_id, 0 if into is None else into.ordinal),
                outcome=told.outcome if told.told or into is None else None,
                ends=into is None or into is resumed or told.told or place < len(groups) - 1,
                first_at=times[0] if times else None,
                last_at=times[-1] if times else None,
            )
        )
    return batches


def _goes_on_with(db: Connection, compared: Compared, told: TranscriptTurn) -> TurnRow | None:
    """The turn that the rest of a list goes on with: that of the last record which both have, or the open one by id."""
    last, running = compared.result.last_matched, compared.standing.open
    if last is not None and compared.result.goes_on(compared.listed):
        return turn_of(db, compared.chain, compared.result.matched[last])
    return running if running is not None and told.turn_id == running.turn_id else None


def _free_id(
    db: Connection, compared: Compared, wanted: str, taken: set[str], length: int, before: TurnRow | None
) -> str:
    """An id that no turn of the history has: the one that is wanted, else, and behind a turn, ``<id>+1`` and so on."""

    def free(turn_id: str) -> bool:
        found = turns.find_on_chain(db, compared.chain, turn_id)
        return turn_id not in taken and (found is None or found.start_seq >= length)

    number = 1
    turn_id = wanted if before is None else f"{wanted}+1"
    while not free(turn_id):
        turn_id = f"{wanted}+{number}"
        number += 1
    return turn_id


def _prepared(
    scope: Scope, compared: Compared, parts: Sequence[int], turn_id: str, first: int
) -> tuple[ingest.Prepared, ...]:
    """Parts of a list as a turn's messages from an ordinal on."""
    listed = compared.host.parts
    ready: list[ingest.Prepared] = []
    for ordinal, (native, group) in enumerate(groupby(parts, key=lambda part: listed[part].native), start=first):
        wanted = {listed[part].number for part in group}
        made = ingest.prepare(
            scope,
            compared.host.natives[native],
            turn_id=turn_id,
            ordinal=ordinal,
            retrieved=compared.retrieved[native],
        )
        ready += ingest.ready(scope, [part for part in made if part.part in wanted])
    return tuple(ready)


def _seal(
    landing: Landing, session: SessionRow, batches: Sequence[Batch], running: TurnRow | None, told: Outcome | None
) -> tuple[int, int]:
    """Seal batches one after the other; how many records, and in how many turns."""
    db = landing.db
    sealed = made = 0
    if told is not None and running is not None:
        end_in(landing, running, told, None)
    for batch in batches:
        turn = batch.into
        if turn is None:
            if running is not None:
                end_in(landing, running, natural_end(db, running.turn_pk), None)
                running = None
            turn = requestless_turn(landing, session, batch.turn_id, batch.first_at, batch.has_request)
        new = ingest.seal(landing, turn, session.session_id, session.generation, batch.parts).new
        sealed, made = sealed + new, made + bool(new)
        if batch.ends:
            at = None if batch.last_at is None else microseconds(batch.last_at)
            end_in(landing, turn, batch.outcome or natural_end(db, turn.turn_pk), None, at)
            running = None
    return sealed, made


# ---- what is cut -----------------------------------------------------------------------------------------------------


def _cut(scope: Scope, compared: Compared) -> ResyncReport | None:
    """
    Go back to where both histories agree, and seal the rest; None if the session is not as it was found.

    Where the list goes on with the turn that is cut inside, its kept part is the beginning of the turn that goes on, so
    that a publication has its request. Else it is an inherited turn.
    """
    result = compared.result
    with scope.store.read() as db:
        kept = kept_part(db, compared.chain, result.cut, compared.standing.length)
        torn = turn_of(db, compared.chain, result.cut)
        continuing = bool(kept) and result.goes_on(compared.listed) and _reaches(compared, torn.start_seq)
        resumed = Resumed(torn, kept[-1].message + 1) if continuing else None
        taken = frozenset[str]() if continuing or not kept else frozenset({torn.turn_id})
        batches = _batches(scope, db, compared, result.cut - len(kept), resumed, taken)
    ready = ingest.ready(scope, kept)
    retired = sum(not record.removed and record.seq >= result.cut for record in compared.stored)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now(), backlog=True)
        current = _as_compared(landing, compared)
        if current is None:
            return None
        after = cut(landing, current, result.cut, kept=ready, continuing=continuing)
        if continuing:
            assert after.turn is not None, "there is a kept part"
            batches[0] = evolve(batches[0], into=after.turn)
        sealed, made = _seal(landing, after.session, batches, None, None)
        landing.finish()
    landing.after_commit()
    return _report(compared, retired, sealed, made)


def _reaches(compared: Compared, start: int) -> bool:
    """Whether the last record that both have lies in the turn that begins there."""
    last = compared.result.last_matched
    return last is not None and compared.result.matched[last] >= start
