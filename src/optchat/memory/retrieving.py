"""
Memory tools for whoever holds no turn (§ 8, § 9).

Decides: under which pin a call that comes from outside this process is answered, and whether it becomes a turn's
provenance.
Refuses to know: the protocol that it came by.

Such a caller has nothing that lasts from one call to the next, so what pins it must come with each call: a snapshot's
id, or the id of a turn that is running. Without one a call is answered by the newest snapshot, and the next may be
answered by another. Finding the pin and reading under it is one read transaction: no removal comes between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from attrs import frozen

from optchat.core.errors import BadArgument, SnapshotInvalid, TurnEnded, UnknownRef
from optchat.core.records import to_bytes
from optchat.core.snapshots import Snapshot
from optchat.core.tools import TOOL_NAMES, ToolOutput
from optchat.engine import answering, ingest, pins
from optchat.engine.handle import Scope
from optchat.engine.sights import pinned_reading
from optchat.memory.house import House
from optchat.memory.memory import Memory
from optchat.store import scopes, turns
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


@frozen
class Retrieval:
    """What a memory tool answered, and the snapshot that it was answered by."""

    output: ToolOutput
    snapshot: Snapshot


def retrieve(
    memory: Memory,
    name: str,
    arguments: Mapping[str, object],
    *,
    snapshot: str | None = None,
    turn: str | None = None,
    session: str | None = None,
) -> Retrieval:
    """
    Run a memory tool as a model is answered, never as the memory's owner: other sessions show what they published.

    Args:
        name: the tool's.
        arguments: the tool's own, parsed.
        snapshot: the id of the snapshot to answer by; None: the turn's, or where there is none the newest.
        turn: the id of a turn that has not ended: its pin answers, and its session's records are its own.
        session: the id of that turn's session, where several have a turn of that id.

    Returns:
        A model's mistake (a bad ref, an argument of a wrong type) as an output with ``is_error``.

    Raises:
        BadArgument: no such tool; a snapshot that is not the turn's; a turn id that several sessions have.
        UnknownRef: no such snapshot, turn or session here.
        SnapshotInvalid: something that the snapshot could see was removed; a turn's is taken again if the memory may be
            written.
        TurnEnded: the turn has its outcome, or pinned nothing.
        ResyncNeeded, SessionDeleted: as for the turn's own calls.

    Atomic: pin and answer are of one moment. Where the memory may be written, what a turn is answered is recorded as
    its foreign context, as by ``Turn.call``; a memory that was opened with mode="ro" records nothing.
    """
    if name not in TOOL_NAMES:
        raise BadArgument(f"{name[:80]!r} is no memory tool; the memory tools are {', '.join(sorted(TOOL_NAMES))}")
    house, scope = _inside(memory)
    if turn is not None:
        return _for_turn(house, scope, name, arguments, turn, session, snapshot)
    if session is not None:
        raise BadArgument("a session alone pins nothing; name its turn as well, or a snapshot")
    with scope.store.read() as db:
        scopes.check_live(db, scope.pk)
        moment, pin = (
            (scopes.current_moment(db, scope.pk), 0) if snapshot is None else pins.kept_moment(scope, db, snapshot)
        )
        eyes = pinned_reading(scope, moment, pin)
        return Retrieval(answering.answer(eyes, db, house.tokenizer, name, arguments).output, eyes.snapshot)


def _inside(memory: Memory) -> tuple[House, Scope]:
    return memory._house, memory._scope  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade


def _for_turn(
    house: House,
    scope: Scope,
    name: str,
    arguments: Mapping[str, object],
    turn_id: str,
    session: str | None,
    snapshot: str | None,
) -> Retrieval:
    found = _read_as(house, scope, name, arguments, turn_id, session, snapshot)
    while found is None:
        found = _read_as(house, scope, name, arguments, turn_id, session, snapshot)
    turn_pk, own_end, pinned, given = found
    if not house.store.read_only:
        written = to_bytes(json.dumps(dict(arguments), ensure_ascii=False, default=str))
        answering.keep(scope, turn_pk, name, written, own_end, given)
    return Retrieval(given.output, pinned)


def _read_as(
    house: House,
    scope: Scope,
    name: str,
    arguments: Mapping[str, object],
    turn_id: str,
    session: str | None,
    snapshot: str | None,
) -> tuple[int, int, Snapshot, answering.Answer] | None:
    """The turn, where its own records end, its pin, and the answer. None: it was pinned again; ask anew."""
    with scope.store.read() as db:
        scopes.check_live(db, scope.pk)
        row = _running(db, scope, turn_id, session)
        pins.check_present(db, row)
        ingest.check_on(db, row.turn_pk)
        eyes = answering.turn_reading(scope, db, row.turn_pk)
        if eyes is None:
            raise TurnEnded(f"turn {turn_id[:80]} pinned nothing to read by; begin a new one", outcome="completed")
        if pins.holds(scope, db, eyes.snapshot.epoch, eyes.sight):
            _check_same(snapshot, eyes.snapshot, turn_id)
            given = answering.answer(eyes, db, house.tokenizer, name, arguments)
            return row.turn_pk, 0 if eyes.own is None else eyes.own.end, eyes.snapshot, given
    if house.store.read_only:
        raise SnapshotInvalid(
            "something that this turn could see was removed, and a memory opened with mode='ro' cannot pin it again;"
            " let the turn's own process ask for its context, which does"
        )
    pins.pin_again(scope, row.turn_pk)
    return None


def _running(db: Connection, scope: Scope, turn_id: str, session: str | None) -> TurnRow:
    """The turn of an id that is open or suspended. Of several sessions' turns one must be named."""
    found = turns.find_in_scope(db, scope.pk, turn_id, session)
    running = [row for row in found if row.outcome is None]
    if len(running) > 1:
        raise BadArgument(f"several sessions have a turn {turn_id[:80]!r}; name the session's id as well")
    if not running and found:
        outcome = found[-1].outcome or "interrupted"
        raise TurnEnded(f"turn {turn_id[:80]} has ended as {outcome}; begin a new turn to read on", outcome=outcome)
    if not running:
        raise UnknownRef(f"no turn {turn_id[:80]!r} is running here; name one that is, or a snapshot")
    return running[0]


def _check_same(asked: str | None, pinned: Snapshot, turn_id: str) -> None:
    # The turn's pin is the host's word. A model that names another snapshot would see past it, or behind it.
    if asked is not None and asked != pinned.id:
        raise BadArgument(
            f"turn {turn_id[:80]} is pinned at snapshot {pinned.id}; leave snapshot out, or give that one"
        )
