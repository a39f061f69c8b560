"""
What upkeep reports.

Decides: the shape of a memory's state, of faults, and of what an import or a resync did.
Refuses to know: how any of it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from attrs import frozen

from optchat.core.ledger import Calls
from optchat.core.terms import JobFailure


@frozen
class Status:
    """
    A scope's state. ``pending``: jobs that wait or are ready; ``running``: those under a lease.

    ``behind``: messages that hosts said they hold and memory does not, in ``behind_sessions``, since ``behind_since``;
    a session whose memory is off until it is resynchronised is among them. ``ready`` is False while there are any.
    """

    ready: bool
    sessions: int
    records: int
    publications: int
    pending: int
    running: int
    stand_ins: int
    by_default_summarizer: int
    scrub_pending: bool
    failures: tuple[JobFailure, ...]
    oldest_pending_at: datetime | None
    newest_record_at: datetime | None
    paused: str | None
    resumes_at: datetime | None
    last_hour: Calls
    total: Calls
    summarizer: str
    file_bytes: int
    behind: int = 0
    behind_since: datetime | None = None
    behind_sessions: tuple[str, ...] = ()


@frozen
class Fault:
    """Something that contradicts something else; ``repairable``: derived data, which can be made anew."""

    code: str
    ref: str | None
    message: str
    repairable: bool


@frozen
class VerifyReport:
    """What was checked, how many of each, and the faults found."""

    ok: bool
    faults: tuple[Fault, ...]
    checked: Mapping[str, int]
    repaired: int


@frozen
class ResyncReport:
    """What an import or a resync did; ``skipped`` counts what is never a source, by reason."""

    kept: int
    retired: int
    sealed: int
    turns: int
    skipped: Mapping[str, int]
