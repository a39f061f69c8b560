"""
Comparing (§ 3): a session as it is stored, beside its host's list.

Decides: nothing that core does not: it reads what comparing needs, and hashes the list outside of any transaction.
Refuses to know: what is done about a difference.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.errors import SessionDeleted
from optchat.core.lineage import Chain, ordinal_of
from optchat.core.messages import ToolCallPart, ToolResultPart
from optchat.core.reconciling import Comparison, HostList, Known, Listed, Stored, candidate_runs, compare, run_lengths
from optchat.core.records import content_sha256, message_event
from optchat.core.tools import TOOL_NAMES
from optchat.engine import ingest
from optchat.engine.handle import Scope
from optchat.engine.ingest import NOTHING_RETRIEVED, Retrieved
from optchat.store import hosts, ledger, registry, removals, scopes, turns
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


@frozen
class Standing:
    """A session as a comparison found it: what was decided by it holds only while this is so."""

    session: SessionRow
    length: int
    open: TurnRow | None
    epoch: int


@frozen
class Compared:
    """A host's list beside what is sealed."""

    host: HostList
    standing: Standing
    chain: Chain
    stored: tuple[Stored, ...]
    listed: tuple[Listed, ...]
    retrieved: tuple[Retrieved, ...]  # by native: what tells a memory tool's answer
    result: Comparison


def standing(scope: Scope, db: Connection, session_pk: int) -> Standing:
    """
    A session as it is now.

    Raises:
        SessionDeleted: it is no more.
    """
    session = registry.session_by_pk(db, session_pk)
    if session.state == "deleted":
        raise SessionDeleted(f"session {session.session_id} was deleted; session(..., recreate=True) begins a new one")
    length = registry.segment_length(db, session.segment_pk, scope.chain(db, session.segment_pk).own.base_length)
    return Standing(session, length, turns.open_turn(db, session.generation_pk), scopes.scope_counters(db, scope.pk)[0])


def compare_list(scope: Scope, session_pk: int, host: HostList) -> Compared:
    """
    Compare a list with what is sealed.

    Raises:
        SessionDeleted: the session is no more.
    """
    events = {
        message_event(part.message.key, part.number): number
        for number, part in enumerate(host.parts)
        if part.message.key is not None
    }
    with scope.store.read() as db:
        now = standing(scope, db, session_pk)
        chain = scope.chain(db, now.session.segment_pk)
        stored = tuple(hosts.load_contents(db, chain, now.length, drops_unfinished=host.drops_unfinished))
        generations = hosts.generations_of(db, session_pk, chain)
        answers = hosts.load_answers(db, generations) if _calls_memory(host) else frozenset[bytes]()
        found = ledger.find_events(db, chain, events) if events else {}
        forgotten = [
            events[event]
            for link in chain.links
            for event in removals.forgotten_events(db, link.segment, [each for each in events if each not in found])
        ]
        removed_turns = hosts.removed_turns(db, generations) if now.epoch else []
    removed_records = {record.seq for record in stored if record.removed}
    known: dict[int, Known] = {}
    removed = set(forgotten)
    for event, (record_key, revision, _sha256) in found.items():
        number, seq = events[event], ordinal_of(record_key)
        if seq in removed_records:
            removed.add(number)
        else:
            known[number] = Known(seq, revision > host.parts[number].message.revision)
    hashes, retrieved = _hashes(scope, host, answers)
    listed = tuple(
        Listed(part.native, part.turn, part.kind, hashes[number], known.get(number), number in removed)
        for number, part in enumerate(host.parts)
    )
    lengths = {length for kinds in removed_turns for length in run_lengths(kinds)}
    result = compare(stored, listed, _removed_runs(scope, listed, lengths, frozenset(generations.values())))
    return Compared(host, now, chain, stored, listed, retrieved, result)


def _removed_runs(
    scope: Scope, listed: tuple[Listed, ...], lengths: set[int], sessions: frozenset[int]
) -> frozenset[tuple[int, int]]:
    """The runs of a list that say what a removed turn of these sessions said: (first part, how many)."""
    runs = candidate_runs(listed, lengths)
    if not runs:
        return frozenset()
    with scope.store.read() as db:
        forgotten = removals.forgotten_contents(db, scope.pk, sessions, frozenset(runs.values()))
    return frozenset(place for place, digest in runs.items() if digest in forgotten)


def _calls_memory(host: HostList) -> bool:
    return any(isinstance(part.part, ToolCallPart) and part.part.name in TOOL_NAMES for part in host.parts)


def _hashes(
    scope: Scope, host: HostList, answers: frozenset[bytes]
) -> tuple[list[tuple[bytes, ...]], tuple[Retrieved, ...]]:
    """
    What each part is sealed under, and for each native message what tells a memory tool's answer: the calls before it.

    Only what belongs to memory's own tools is sealed otherwise than as it stands, and so only that is prepared.
    """
    calls: dict[str, str] = {}
    own: dict[int, dict[int, bytes]] = {}  # by native, by number: where provenance is sealed instead
    retrieved: list[Retrieved] = []
    for native, messages in enumerate(host.natives):
        before = NOTHING_RETRIEVED
        made = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
        answered = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
        if any(part.name in TOOL_NAMES for part in made) or any(part.call_id in calls for part in answered):
            before = Retrieved(dict(calls), answers)
            sealed = ingest.prepare(scope, messages, turn_id="", ordinal=0, retrieved=before)
            own[native] = {number: part.sha256 for number, part in enumerate(sealed)}
        retrieved.append(before)
        for part in made:
            calls.pop(part.call_id, None)
            if part.name in TOOL_NAMES:
                calls[part.call_id] = part.name
    hashes: list[tuple[bytes, ...]] = []
    for each in host.parts:
        as_it_stands = content_sha256(each.kind, each.part)
        as_provenance = own.get(each.native, {}).get(each.number, as_it_stands)
        hashes.append(tuple(dict.fromkeys((as_provenance, as_it_stands))))
    return hashes, tuple(retrieved)
