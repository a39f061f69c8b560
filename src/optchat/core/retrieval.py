"""
Retrieval (§ 8): the shapes of answers.

Decides: what zoom, search, date, sessions, work, view and source answer, and how an answer is paged.
Refuses to know: how rows are found. What a query means is :mod:`optchat.core.searching`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar

from attrs import field, frozen

from optchat.core.errors import BadArgument
from optchat.core.messages import BlobPart, Part
from optchat.core.snapshots import Snapshot
from optchat.core.terms import HitKind, Outcome, RecordKind

T_co = TypeVar("T_co", covariant=True)
Order: TypeAlias = Literal["best", "newest"]
When: TypeAlias = datetime | str
LineKind: TypeAlias = Literal["verbatim", "summary", "stand_in", "tombstone"]


def read_time(name: str, when: When | None) -> datetime | None:
    """
    A time as a caller gave it.

    Raises:
        BadArgument: text that is no ISO 8601, or a time without an offset: which instant it means cannot be known.
    """
    if when is None:
        return None
    try:
        at = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        raise BadArgument(f"{name} is no ISO 8601 time; write it like 2026-10-01T00:00:00+02:00") from None
    if not isinstance(at, datetime):
        raise BadArgument(f"{name} is a datetime or ISO 8601 text, not {type(at).__name__}; give it one of these")
    if at.utcoffset() is None:
        raise BadArgument(f"{name} is a naive time; give it an offset, like 2026-10-01T00:00:00+02:00")
    return at


@frozen
class Line:
    """
    One line of a view. ``text`` is unescaped, without ref and label.

    ``session_id`` and ``outcome`` are None on inner nodes. ``not_completed`` counts the turns under it that failed or
    were interrupted, from structure.
    """

    ref: str
    kind: LineKind
    text: str
    session_id: str | None
    outcome: Outcome | None
    first_at: datetime
    last_at: datetime
    not_completed: int


@frozen
class Page(Generic[T_co]):
    """Iterates its own items; ``cursor`` is None on the last page and carries its snapshot."""

    items: tuple[T_co, ...]
    cursor: str | None
    snapshot: Snapshot

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@frozen
class TurnInfo:
    """A turn. ``ref`` is its first record; ``request`` the beginning of what the user asked, '' where nobody did."""

    id: str
    ref: str
    publication_ref: str | None
    request: str
    outcome: Outcome | None
    started_at: datetime
    state: Literal["open", "suspended", "ended"]
    ended_at: datetime | None
    worktree: str | None
    commit: str | None


@frozen
class ZoomResult:
    """
    What a ref opens into.

    ``lines``: the children of a node or the cover of a publication; () for a record. ``text``: one page of a record,
    else None. ``paired_ref``: a call's result, or a result's call. ``turn``: of a record or publication. ``truncated``:
    cut by the host. ``superseded``: of an older generation.
    """

    ref: str
    kind: Literal["node", "publication", "record"]
    lines: tuple[Line, ...]
    text: str | None
    page: int
    complete: bool
    cursor: str | None
    first_at: datetime
    last_at: datetime
    snapshot: Snapshot
    outcome: Outcome | None
    paired_ref: str | None
    attachments: tuple[BlobPart, ...]
    turn: TurnInfo | None
    truncated: bool
    superseded: bool


@frozen
class Hit:
    """One place that a search found; ``excerpt`` shows the hit in at most 240 bytes."""

    ref: str
    kind: HitKind
    excerpt: str
    at: datetime
    session_id: str
    publication_ref: str | None


@frozen
class SearchPage(Page[Hit]):
    """
    Hits. ``words``: the visible records with each word, when every word was wanted and none matched; else empty.
    ``unindexed``: visible records whose text is not yet searchable.
    """

    words: Mapping[str, int] = field(factory=dict[str, int])
    unindexed: int = 0

    @property
    def hits(self) -> tuple[Hit, ...]:
        """The page's items."""
        return self.items


@frozen
class Dates:
    """When something was said, as recorded; ``published_at`` is None for what is not a publication."""

    ref: str
    first_at: datetime
    last_at: datetime
    published_at: datetime | None
    snapshot: Snapshot


@frozen
class SourceRecord:
    """The whole retained source, unpaged, for programs."""

    ref: str
    kind: RecordKind
    part: Part
    at: datetime
    session_id: str
    turn_id: str
    sha256: str
    project: str | None
    worktree: str | None
    commit: str | None


@frozen
class View:
    """A rendered view and its lines; ``missing``: refs that it does not cover."""

    text: str
    lines: tuple[Line, ...]
    tokens: int
    through: int
    missing: tuple[str, ...]
    snapshot: Snapshot


@frozen
class SessionInfo:
    """A session; ``length`` and ``turns`` count what this reader may see."""

    id: str
    key: str
    host: str
    generation: int
    length: int
    turns: int
    title: str | None
    project: str | None
    worktree: str | None
    commit: str | None
    isolated: bool
    created_at: datetime
    last_at: datetime
    state: Literal["active", "archived", "revoked", "needs_resync"]
