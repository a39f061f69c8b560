"""
Freshness (§ 3): whether memory holds what hosts hold.

Decides: since when a session is behind its host, and that one whose memory is off is behind.
Refuses to know: content.

A host says how many messages it holds. Behind is a session of which memory has fewer, from the report on that found it
so; what is sealed later counts when somebody looks, so that no seal has to keep it.
"""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from optchat.engine.comparing import standing
from optchat.engine.handle import Scope
from optchat.store import hosts, registry
from optchat.store.rows import Connection, moment_of


@frozen
class Behind:
    """What memory lacks of its hosts' messages: how many, of which sessions, since when."""

    messages: int = 0
    sessions: tuple[str, ...] = ()
    since: datetime | None = None


def host_holds(scope: Scope, session_pk: int, messages: int) -> int:
    """
    Keep how many messages a session's host holds; how many of them memory does not.

    Raises:
        SessionDeleted: the session is no more.
    """
    with scope.store.read() as db:
        report = _report(scope, db, session_pk, messages)
        if not report.news:
            return report.lacking
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        report = _report(scope, db, session_pk, messages)
        if report.news:
            hosts.set_host_report(db, session_pk, messages, report.since)
    return report.lacking


@frozen
class _Report:
    """What a host's number means: what memory lacks, since when it is behind, and whether that is news."""

    lacking: int
    since: int | None
    news: bool


def _report(scope: Scope, db: Connection, session_pk: int, messages: int) -> _Report:
    now = standing(scope, db, session_pk)
    session = now.session
    lacking = max(0, messages - _held(scope, db, session.segment_pk, now.length))
    if not lacking and session.state != "needs_resync":
        return _Report(0, None, session.behind_since is not None)
    since = session.behind_since or scope.now()
    return _Report(lacking, since, session.behind_since is None or session.host_messages != messages)


def behind(scope: Scope, db: Connection) -> Behind:
    """The sessions of a scope that are behind their hosts now."""
    found: list[tuple[str, int, int]] = []
    for row in hosts.sessions_behind(db, scope.pk):
        chain = scope.chain(db, row.segment_pk)
        length = registry.segment_length(db, row.segment_pk, chain.own.base_length)
        lacking = max(0, row.host_messages - _held(scope, db, row.segment_pk, length))
        if lacking or row.needs_resync:
            found.append((row.session_id, lacking, row.behind_since))
    if not found:
        return Behind()
    return Behind(
        sum(lacking for _, lacking, _ in found),
        tuple(session for session, _, _ in found),
        moment_of(min(since for _, _, since in found)),
    )


def _held(scope: Scope, db: Connection, segment_pk: int, length: int) -> int:
    return hosts.count_messages(db, scope.chain(db, segment_pk), length)
