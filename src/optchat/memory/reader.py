"""
Every read, under one snapshot (§ 8).

Decides: that one read is one read transaction.
Refuses to know: whose eyes it reads with; a subclass says so.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from optchat.core.errors import BadArgument
from optchat.core.ports import Tokenizer
from optchat.core.refs import Span
from optchat.core.retrieval import (
    Dates,
    Order,
    Page,
    SearchPage,
    SessionInfo,
    SourceRecord,
    View,
    When,
    ZoomResult,
    read_time,
)
from optchat.core.snapshots import Snapshot
from optchat.core.terms import HitKind
from optchat.engine import answering, listing, reading, searching, viewing
from optchat.engine.handle import Scope
from optchat.engine.pins import check_pin
from optchat.engine.sights import Reading, SessionTarget, pinned_reading, published_of, unknown
from optchat.memory.house import House
from optchat.store import registry
from optchat.store.rows import Connection
from optchat.store.scopes import Moment


class Reader:
    """
    Every read, under one snapshot.

    Turn and pin(): fixed, and foreign sessions show what was published. Memory: the owner's, the newest at each call;
    every session of the scope counts as own to its last sealed record.
    """

    _house: House
    _scope: Scope

    def _eyes(self, db: Connection) -> Reading:
        raise NotImplementedError

    @contextmanager
    def _reading(self) -> Generator[tuple[Connection, Reading]]:
        with self._scope.store.read() as db:
            yield db, self._eyes(db)

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._house.tokenizer

    def zoom(self, ref: str, *, depth: int = 1, cursor: str | None = None, max_tokens: int | None = None) -> ZoomResult:
        """
        Open a ref (§ 8): a node into its children, a publication into its turn and the cover it was made of, a record
        into one page of its exact source.

        Args:
            ref: canonical, or on a turn the short form of its own session.
            depth: levels of a node to open at once, 1 to 4.
            cursor: of the page before. Pages of a record rejoin to exactly its bytes.
            max_tokens: about how much text to return at most; a line or a character is returned in any case.

        Raises:
            MalformedRef: it is no ref.
            UnknownRef: it names nothing that this reader may see.
            BadCursor: the cursor is another query's.
            BadArgument: depth or max_tokens out of range.
        """
        with self._reading() as (db, eyes):
            return reading.zoom(
                eyes,
                db,
                ref,
                depth=depth,
                cursor=cursor,
                max_tokens=max_tokens,
                tokenizer=self._tokenizer,
                recall=answering.recaller(self._scope, self._tokenizer),
            )

    def search(
        self,
        query: str,
        *,
        session: str | None = None,
        kind: HitKind | None = None,
        before: When | None = None,
        after: When | None = None,
        order: Order = "best",
        limit: int = 10,
        cursor: str | None = None,
    ) -> SearchPage:
        """
        Find source text and summaries that hold the words of a query (§ 8).

        Args:
            query: words and "phrases", at most 512 characters and 32 words. It is never a syntax.
            session: hits of this session id only.
            kind: hits of this kind only.
            before, after: of when it was said; ``after`` inclusive, ``before`` exclusive.
            order: "best": any word may match, ranked. "newest": every word, newest first.
            limit: hits on a page, 1 to 50.
            cursor: of the page before.

        Raises:
            BadArgument: a query, limit or time that cannot be.
            BadCursor: the cursor is another query's, or another snapshot's.
            UnknownRef: no such session for this reader.
        """
        with self._reading() as (db, eyes):
            return searching.search(
                eyes,
                db,
                query,
                session=session,
                kind=kind,
                before=read_time("before", before),
                after=read_time("after", after),
                order=order,
                limit=limit,
                cursor=cursor,
            )

    def date(self, ref: str) -> Dates:
        """When what a ref names was said, and published, as recorded; errors as :meth:`zoom`."""
        with self._reading() as (db, eyes):
            return reading.date(eyes, db, ref)

    def sessions(self, *, archived: bool = False, limit: int = 50, cursor: str | None = None) -> Page[SessionInfo]:
        """The sessions that this reader may see, in the order in which they were begun; ``limit`` up to 200."""
        with self._reading() as (db, eyes):
            return listing.sessions(eyes, db, archived=archived, limit=limit, cursor=cursor)

    def work(self, name: str, *, cursor: str | None = None) -> ZoomResult:
        """The newest report of that name, as :meth:`zoom` opens it; UnknownRef where there is none."""
        with self._reading() as (db, eyes):
            return answering.work(
                eyes,
                db,
                name,
                cursor=cursor,
                tokenizer=self._tokenizer,
                recall=answering.recaller(self._scope, self._tokenizer),
            )

    def source(self, ref: str) -> SourceRecord:
        """
        The whole retained source of one record, unpaged, for programs.

        Raises:
            MalformedRef, UnknownRef: as :meth:`zoom`; also for a ref that is not one record.
        """
        with self._reading() as (db, eyes):
            return reading.source(eyes, db, ref, answering.recaller(self._scope, self._tokenizer))

    def view(self, session: str | None = None, *, max_tokens: int | None = None) -> View:
        """
        A view (§ 6): the shared one, or a session's.

        Args:
            session: a session id; None is the shared view.
            max_tokens: a coarser one of at most about so many tokens; the coarsest there is if none is so small.

        Raises:
            UnknownRef: no such session for this reader.
        """
        if max_tokens is not None and max_tokens < 1:
            raise BadArgument("max_tokens must be at least 1; leave it out for the whole view")
        with self._reading() as (db, eyes):
            if session is None:
                return viewing.shared_view(eyes, db, self._shared_levels(eyes, db), self._tokenizer, max_tokens)
            target, start, end = self._visible_session(eyes, db, session)
            return viewing.session_view(eyes, db, target, start, end, self._tokenizer, max_tokens)

    def _shared_levels(self, _eyes: Reading, db: Connection) -> bytes:
        """The shared view as this reader has it: the owner's is the live one."""
        return viewing.live_shared_levels(self._scope, db)

    def _visible_session(self, eyes: Reading, db: Connection, session_id: str) -> tuple[SessionTarget, int, int]:
        """A session and the records [start, end) of it that this reader may see."""
        row = registry.session_by_id(db, self._scope.pk, session_id)
        if row is None:
            raise unknown(session_id)
        if eyes.own is not None and eyes.own.session.session_pk == row.session_pk:
            row = eyes.own.session
        elif not eyes.sight.owner:
            row = registry.session_at(db, row.session_pk, eyes.clock)
        chain = self._scope.chain(db, row.segment_pk)
        target = SessionTarget(row, row.generation, row.generation_pk, chain, Span(0, 1))
        if eyes.own is not None and eyes.own.session.session_pk == row.session_pk:
            return target, 0, eyes.own.end
        if eyes.sight.owner:
            return target, 0, registry.segment_length(db, row.segment_pk, chain.own.base_length)
        published = published_of(eyes, db, row, chain).records
        if published is None:
            raise unknown(session_id)
        return target, published.first, published.end


class PinnedReader(Reader):
    """What a model would be shown, fixed at a moment."""

    def __init__(self, house: House, scope: Scope, moment: Moment, pin: int = 0) -> None:
        self._house, self._scope, self._moment, self._pin = house, scope, moment, pin
        self._levels: bytes | None = None
        self.snapshot: Snapshot = pinned_reading(scope, moment, pin).snapshot

    def _eyes(self, db: Connection) -> Reading:
        eyes = pinned_reading(self._scope, self._moment, self._pin)
        check_pin(self._scope, db, self._moment.epoch, eyes.sight)
        return eyes

    def keep_view(self, db: Connection) -> None:
        """Keep the shared view as it is in this transaction: the live one moves with what is not seen here."""
        self._levels = viewing.shared_levels_at(pinned_reading(self._scope, self._moment), db)

    def _shared_levels(self, eyes: Reading, db: Connection) -> bytes:
        return viewing.shared_levels_at(eyes, db) if self._levels is None else self._levels
