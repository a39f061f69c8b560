"""
Hosts: what a host's list is compared with, and what hosts said that they hold.

Decides: how a session's contents are read without their payloads, and how a report of a host is kept.
Refuses to know: what a difference means.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from optchat.core.lineage import Chain
from optchat.core.reconciling import Stored
from optchat.core.records import KIND_NUMBER, KINDS
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.core.terms import RecordKind
from optchat.store import registry
from optchat.store.rows import Connection, all_rows, one_value, run


def load_contents(db: Connection, chain: Chain, end: int, *, drops_unfinished: bool = False) -> list[Stored]:
    """
    The contents of records ``[0, end)`` of a chain, in order; those that were removed say so.

    Args:
        drops_unfinished: records of turns that ended without completing are droppable.
    """
    unfinished: set[int] = set()
    if drops_unfinished:
        unfinished = {
            row[0]
            for own in chain.ranges(end)
            for row in all_rows(
                db,
                "SELECT turn_pk FROM turn WHERE segment_pk = :segment AND state = 'ended' AND outcome <> 'completed'",
                {"segment": own.segment},
            )
        }
    return [
        Stored(row[0] & KEY_MASK, row[1], KINDS[row[2]], row[3], row[4] != 0, row[1] in unfinished)
        for own in chain.ranges(end)
        for row in all_rows(
            db,
            "SELECT record_key, turn_pk, kind, sha256, state FROM record"
            " WHERE record_key >= :low AND record_key < :high ORDER BY record_key",
            {"low": own.segment << KEY_BITS | own.start, "high": own.segment << KEY_BITS | own.end},
        )
    ]


def load_answers(db: Connection, generation_pks: Iterable[int]) -> frozenset[bytes]:
    """The hashes of all that memory tools ever answered in some generations."""
    return frozenset(
        row[0]
        for generation in generation_pks
        for row in all_rows(
            db,
            "SELECT retrieval.sha256 FROM turn JOIN retrieval ON retrieval.turn_pk = turn.turn_pk"
            " WHERE generation_pk = :generation",
            {"generation": generation},
        )
    )


def removed_turns(db: Connection, generation_pks: Iterable[int]) -> list[list[RecordKind]]:
    """The kinds of the records of each turn of some generations that was removed."""
    found: dict[int, list[RecordKind]] = {}
    for generation in generation_pks:
        for turn, kind in all_rows(
            db,
            "SELECT turn.turn_pk, record.kind FROM turn JOIN record ON record.record_key >= turn.segment_pk << :bits"
            " | turn.start_seq AND record.record_key < turn.segment_pk << :bits | turn.end_seq"
            " WHERE generation_pk = :generation AND removed > 0 ORDER BY turn.ordinal, record.record_key",
            {"generation": generation, "bits": KEY_BITS},
        ):
            found.setdefault(turn, []).append(KINDS[kind])
    return list(found.values())


def generations_of(db: Connection, session_pk: int, chain: Chain) -> dict[int, int]:
    """The generations of a session, and those that its chain rests on: by key, the session of each."""
    found = {
        int(row[0]): session_pk
        for row in all_rows(
            db, "SELECT generation_pk FROM generation WHERE session_pk = :session", {"session": session_pk}
        )
    }
    for link in chain.links:
        generation = registry.generation_of_segment(db, link.segment)
        if generation is not None:
            found[generation[0]] = generation[1]
    return found


def count_messages(db: Connection, chain: Chain, end: int, start: int = 0) -> int:
    """
    The messages of a host among records ``[start, end)``; those that were removed since count too.

    Notes are memory's own, and so are reports in turns that nobody asked for.
    """
    return sum(
        int(
            one_value(
                db,
                "SELECT count(*) FROM record JOIN turn ON turn.turn_pk = record.turn_pk WHERE record_key >= :low"
                " AND record_key < :high AND part = 0 AND kind <> :note AND (kind <> :report OR has_request = 1)",
                {
                    "low": own.segment << KEY_BITS | own.start,
                    "high": own.segment << KEY_BITS | own.end,
                    "note": KIND_NUMBER["note"],
                    "report": KIND_NUMBER["report"],
                },
            )
        )
        for own in chain.ranges(end, start)
    )


def set_resync(db: Connection, session_pk: int, *, needed: bool) -> None:
    """Turn a session's memory off until it is resynchronised, or on again."""
    run(
        db,
        "UPDATE session SET state = :to WHERE session_pk = :session AND state = :from",
        {
            "session": session_pk,
            "from": "active" if needed else "needs_resync",
            "to": "needs_resync" if needed else "active",
        },
    )


def is_off(db: Connection, turn_pk: int) -> bool:
    """Whether the memory of a turn's session is off until it is resynchronised."""
    return bool(
        one_value(
            db,
            "SELECT session.state = 'needs_resync' FROM turn"
            " JOIN generation ON generation.generation_pk = turn.generation_pk JOIN session"
            " ON session.session_pk = generation.session_pk WHERE turn_pk = :turn",
            {"turn": turn_pk},
        )
    )


def set_host_report(db: Connection, session_pk: int, messages: int, behind_since: int | None) -> None:
    """Keep how many messages a host said that it holds, and since when memory holds fewer; None: it does not."""
    run(
        db,
        "UPDATE session SET host_messages = :messages, behind_since = :since WHERE session_pk = :session",
        {"session": session_pk, "messages": messages, "since": behind_since},
    )


@frozen
class BehindRow:
    """A session of which memory held fewer messages than its host, when the host said so."""

    session_id: str
    segment_pk: int
    needs_resync: bool
    host_messages: int
    behind_since: int


def sessions_behind(db: Connection, scope_pk: int) -> list[BehindRow]:
    """The sessions of a scope that were behind when their hosts last reported."""
    return [
        BehindRow(row[0], row[1], row[2] == "needs_resync", row[3], row[4])
        for row in all_rows(
            db,
            "SELECT session_id, segment_pk, state, host_messages, behind_since FROM session JOIN generation"
            " ON generation.session_pk = session.session_pk AND number = generation"
            " WHERE scope_pk = :scope AND behind_since IS NOT NULL AND state <> 'deleted'",
            {"scope": scope_pk},
        )
    ]
