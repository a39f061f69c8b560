"""
Search (§ 8).

Decides: which candidates are drawn for a question, and how hits make pages.
Refuses to know: who the reader is beyond its sight, and the index's syntax.

``order="newest"`` wants every word and reads on from the last document shown. ``order="best"`` takes any word:
frequencies are counted first, up to a cap, under the reader's own sight; the rarest words draw a bounded set of
candidates; these are ranked. Pages after the first leave out what was sealed since, so a reader's own live turn cannot
shift them either.

A hit in a generated summary gives way where a source under it is a hit for the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, frozen

from optchat.core.cursors import query_digest, read_cursor, write_cursor
from optchat.core.errors import BadArgument, BadCursor
from optchat.core.excerpts import excerpt
from optchat.core.ranking import FREQUENCY_CAP, Candidate, Weights, rank
from optchat.core.records import KIND_NUMBER, KINDS, SUMMARY_KIND, to_bytes, to_text
from optchat.core.refs import KEY_BITS, Span, publication_ref, session_ref
from optchat.core.retrieval import Hit, Order, SearchPage
from optchat.core.searching import Query, check_kind, check_limit, check_order, read_query, words_counted
from optchat.core.snapshots import OwnRange, publication_visible
from optchat.core.terms import HitKind
from optchat.core.words import Phrase
from optchat.engine.handle import microseconds
from optchat.engine.sights import Reading, unknown
from optchat.store import forest, payloads, publications, registry, search as index, turns
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection, moment_of
from optchat.store.search import EVER, CandidateRow, DocumentRow, Wanted

MAX_CANDIDATES: Final = 600
MAX_SUMMARIES: Final = 100  # beside them: summaries say again what sources say, and would crowd them out
_CHECKED_SUMMARIES: Final = 20  # of an answer, newest first: each is a search of its own sources
_CHECKED_TURNS: Final = 16  # under one summary of the shared tree; it is at most so many range look-ups
_COMMON_SCORED: Final = 8  # of the words in more documents than are counted: scoring them all would cost without bound
_COUNT_CAP: Final = 500
_ANYWHERE: Final = 1 << KEY_BITS


@frozen
class _Search:
    """One search as it was asked."""

    reading: Reading
    db: Connection
    query: Query
    wanted: Wanted
    limit: int
    ceiling: int
    place: int | None  # where a later page goes on; None: the first page
    subject: int
    checked: int  # the summaries that the pages before looked under
    session: tuple[str, int] | None = None  # to the owner: the session asked for, and its generation


def search(
    reading: Reading,
    db: Connection,
    text: str,
    *,
    session: str | None = None,
    kind: HitKind | None = None,
    before: datetime | None = None,
    after: datetime | None = None,
    order: Order = "best",
    limit: int = 10,
    cursor: str | None = None,
) -> SearchPage:
    """
    Find source text and summaries that hold the words of a query.

    Args:
        session: hits of this session only.
        kind: hits of this kind only.
        before, after: of when it was said; ``after`` is inclusive, ``before`` exclusive.
        order: "best" ranks, and any word may match; "newest" wants every word.
        cursor: of the page before. The query and its filters are the same; the limit need not be.

    Raises:
        BadArgument: a query, limit, order, kind or time that cannot be.
        BadCursor: of another query, or of another snapshot.
        UnknownRef: no such session, or none that this reader may see.
    """
    query = read_query(text)
    digest = query_digest("search", query, session, kind, before, after, check_order(order))
    reading, mark, place, subject, checked = _position(reading, db, cursor, digest)
    asked = _Search(
        reading,
        db,
        query,
        Wanted(
            within=None if session is None else _session_ranges(reading, db, session),
            kind=_kind_number(check_kind(kind)),
            after=_bound("after", after, -EVER),
            before=_bound("before", before, EVER),
        ),
        check_limit(limit),
        mark if reading.sight.owner else index.next_document(db, reading.scope.pk),
        place,
        subject,
        checked,
        _asked_for(reading, db, session),
    )
    found, following_place, checked = _newest(asked) if order == "newest" else _best(asked)
    following = None
    if following_place is not None:
        following = write_cursor(digest, reading.clock, mark, following_place, found[-1].subject, checked)
    words: dict[str, int] = {}
    if order == "newest" and not found and asked.place is None:
        words = _count_words(asked)
    unindexed = index.count_unindexed(db, reading.sight)
    return SearchPage(_hits(asked, found), following, reading.snapshot, words=words, unindexed=unindexed)


def _bound(name: str, at: datetime | None, otherwise: int) -> int:
    if at is None:
        return otherwise
    if at.utcoffset() is None:
        raise BadArgument(f"{name} is a naive time; give it an offset, as datetime.now(UTC) has")
    return microseconds(at)


def _kind_number(kind: HitKind | None) -> int | None:
    if kind is None:
        return None
    return SUMMARY_KIND if kind == "summary" else KIND_NUMBER[kind]


def _position(
    reading: Reading, db: Connection, cursor: str | None, digest: str
) -> tuple[Reading, int, int | None, int, int]:
    """
    The reading of the first page, its mark, and where a later page begins: place, last subject, summaries looked under.

    The mark is what the first page saw: to the owner a document number, to a turn its own boundary. A turn's cursor
    never holds a document number: it would tell how much others have said since the pin, and the same call's answer
    would not have the same bytes again.
    """
    own = reading.own
    if cursor is None:
        mark = index.next_document(db, reading.scope.pk) if reading.sight.owner else 0 if own is None else own.end
        return reading, mark, None, 0, 0
    read = read_cursor(cursor, digest)
    if len(read.position) != 4:
        raise BadCursor("that cursor belongs to another query; repeat the query that gave it, or ask without one")
    if not reading.sight.owner and read.clock != reading.clock:
        raise BadCursor("that cursor belongs to another snapshot; ask again without one")
    mark, place, subject, checked = read.position
    if own is not None and mark < own.end:
        sight = evolve(reading.sight, own=own.chain.ranges(mark))
        reading = evolve(reading, sight=sight, own=evolve(own, end=mark))
    return reading, mark, place, subject, checked


def _session_ranges(reading: Reading, db: Connection, session_id: str) -> tuple[OwnRange, ...]:
    """
    Where a session's records lie: its history, to its own reader and the owner. To others all that it published in any
    generation, and nothing of what it was forked from: what of it counts is visibility's to say.

    A session of which the reader may see nothing answers as an absent one.
    """
    session = registry.session_by_id(db, reading.scope.pk, session_id)
    if session is None or not _may_see(reading, db, session):
        raise unknown(session_id)
    own = reading.own
    if own is not None and own.session.session_pk == session.session_pk:
        return own.chain.ranges(_ANYWHERE)
    if reading.sight.owner:
        return reading.scope.chain(db, session.segment_pk).ranges(_ANYWHERE)
    segments = [registry.generation_of(db, session.session_pk, number) for number in range(session.generation + 1)]
    links = [reading.scope.chain(db, found[1]).own for found in segments if found is not None]
    return tuple(OwnRange(link.segment, link.base_length, _ANYWHERE) for link in links)


def _asked_for(reading: Reading, db: Connection, session_id: str | None) -> tuple[str, int] | None:
    if session_id is None or not reading.sight.owner:
        return None
    session = registry.session_by_id(db, reading.scope.pk, session_id)
    return None if session is None else (session.session_id, session.generation)


def _may_see(reading: Reading, db: Connection, session: SessionRow) -> bool:
    if reading.sight.owner or (reading.own is not None and reading.own.session.session_pk == session.session_pk):
        return True
    for number in range(session.generation + 1):
        generation = registry.generation_of(db, session.session_pk, number)
        if generation is not None and publications.published_range(db, generation[0], reading.sight) is not None:
            return True
    return False


# ---- newest first ----------------------------------------------------------------------------------------------------


def _newest(asked: _Search) -> tuple[list[DocumentRow], int | None, int]:
    """A page, the document to go on below if there is more, and the summaries looked under so far."""
    match = [term.spellings for term in asked.query.terms]
    shown: list[DocumentRow] = []
    subjects = {asked.subject} if asked.place is not None else set[int]()
    below = asked.ceiling if asked.place is None else asked.place
    wanted: Wanted = asked.wanted
    # Counted over all pages, and one by one: how an answer is cut into pages must not change what is in it.
    checked = shown_checked = asked.checked
    while True:
        if checked >= _CHECKED_SUMMARIES and wanted.kind is None:
            # Nearly all of them give way. A history that was summarised after it was imported has thousands here.
            wanted = evolve(wanted, sources_only=True)
        rows = index.find_newest(asked.db, asked.reading.sight, match, wanted, below=below, limit=asked.limit + 1)
        for row in rows:
            below = row.key - (asked.reading.scope.pk << KEY_BITS)
            if row.subject in subjects:
                continue
            if row.is_summary and wanted.kind is None:
                if row.segment_pk is None and row.end_seq - row.start_seq > _CHECKED_TURNS:
                    continue  # so much was said under it that its parts are the hits
                if checked >= _CHECKED_SUMMARIES:
                    continue
                checked += 1
                if _source_matches(asked, row, match):
                    continue
            if len(shown) == asked.limit:
                return shown, shown[-1].key - (asked.reading.scope.pk << KEY_BITS), shown_checked
            subjects.add(row.subject)
            shown.append(row)
            shown_checked = checked
        if len(rows) <= asked.limit:
            return shown, None, checked


def _source_matches(asked: _Search, node: DocumentRow, match: Sequence[Sequence[Phrase]]) -> bool:
    """Whether a source under a summary is a hit itself, before or after it."""
    if node.segment_pk is not None:
        ranges = asked.reading.scope.chain(asked.db, node.segment_pk).ranges(node.end_seq, node.start_seq)
    else:
        ranges = _said_under(asked, node)
    wanted = Wanted(ranges, sources_only=True, after=asked.wanted.after, before=asked.wanted.before)
    return bool(index.find_newest(asked.db, asked.reading.sight, match, wanted, below=asked.ceiling, limit=1))


def _said_under(asked: _Search, node: DocumentRow) -> tuple[OwnRange, ...]:
    """The records that a node of the shared tree speaks of. By publication they would be sought among all others."""
    numbers = list(range(node.start_seq, node.end_seq))
    published = publications.load_publications(asked.db, asked.reading.scope.pk, numbers)
    ranges: list[OwnRange] = []
    for row in published.values():
        turn = turns.load_turn(asked.db, row.turn_pk)
        if turn is not None:
            ranges.append(OwnRange(turn.segment_pk, row.start_seq, row.end_seq))
    return tuple(ranges)


def _count_words(asked: _Search) -> dict[str, int]:
    """The visible records with each word, counted up to a cap."""
    wanted = asked.wanted
    sources = evolve(wanted, sources_only=True)
    return words_counted(
        asked.query.terms,
        [
            index.count_records(
                asked.db, asked.reading.sight, [term.spellings], sources, below=asked.ceiling, cap=_COUNT_CAP
            )
            for term in asked.query.terms
        ],
    )


# ---- best first ------------------------------------------------------------------------------------------------------


def _best(asked: _Search) -> tuple[list[DocumentRow], int | None, int]:
    """A page, how many hits were shown if there are more, and 0: summaries are weighed all at once, none is counted."""
    ranked = _ranked(asked)
    start = asked.place or 0
    end = start + asked.limit
    return ranked[start:end], end if len(ranked) > end else None, 0


def _ranked(asked: _Search) -> list[DocumentRow]:
    """All that is shown over all pages, best first: each record once, and no summary under which a source is a hit."""
    words, phrases = asked.query.words, asked.query.phrases
    groups: list[tuple[Phrase, ...]] = [(word,) for word in words] + [term.spellings for term in phrases]
    sight = asked.reading.sight
    only_summaries = asked.wanted.kind == SUMMARY_KIND
    # Frequencies are those among what was said: a word is no more common for being summarised at every level.
    sources = asked.wanted if only_summaries else evolve(asked.wanted, sources_only=True)
    counts = _frequencies(asked, groups, sources)
    if not any(counts):  # words that only a summarizer used
        sources = asked.wanted
        counts = _frequencies(asked, groups, sources)
    common = [place for place, count in enumerate(counts) if count >= FREQUENCY_CAP]
    scored = [
        place for place, count in enumerate(counts) if 0 < count < FREQUENCY_CAP or place in common[:_COMMON_SCORED]
    ]
    if not scored:
        return []
    rows: dict[int, CandidateRow] = {}
    scoring = [groups[place] for place in scored]
    for drawn in _drawn(groups, counts, [len(words) + i for i, term in enumerate(phrases) if asked.query.leads(term)]):
        room = MAX_CANDIDATES - len(rows)
        if room <= 0:
            break
        for candidate in index.find_candidates(
            asked.db, sight, drawn, scoring, sources, below=asked.ceiling, limit=room
        ):
            rows[candidate.document.key] = candidate
    if asked.wanted.kind is None:
        for candidate in _summaries(asked, groups, counts, scoring):
            rows[candidate.document.key] = candidate
    split = sum(place < len(words) for place in scored)
    ranked = rank(
        [
            Candidate(key, row.kind, row.words, row.turn_pk, found.concludes, found.counts, found.places)
            for key, found in rows.items()
            for row in (found.document,)
        ],
        Weights(
            tuple(counts[place] for place in scored[:split]),
            tuple(counts[place] for place in scored[split:]),
            tuple(asked.query.leads(phrases[place - len(words)]) for place in scored[split:]),
        ),
    )
    shown: list[DocumentRow] = []
    subjects: set[int] = set()
    for key in ranked:
        row = rows[key].document
        if row.subject in subjects or (row.is_summary and _gives_way(asked, rows[key], rows)):
            continue
        subjects.add(row.subject)
        shown.append(row)
    return shown


def _frequencies(asked: _Search, groups: Sequence[tuple[Phrase, ...]], wanted: Wanted) -> list[int]:
    """How many visible documents hold each word or phrase, up to a cap."""
    return [
        index.count_documents(asked.db, asked.reading.sight, [group], wanted, below=asked.ceiling, cap=FREQUENCY_CAP)
        for group in groups
    ]


def _summaries(
    asked: _Search,
    groups: Sequence[tuple[Phrase, ...]],
    counts: Sequence[int],
    scoring: Sequence[tuple[Phrase, ...]],
) -> list[CandidateRow]:
    """The newest summaries that hold the rarest words: what a source under them does not say, they may."""
    drawn = _drawn(groups, counts, ())[-1]
    wanted = evolve(asked.wanted, kind=SUMMARY_KIND)
    return list(
        index.find_candidates(
            asked.db, asked.reading.sight, drawn, scoring, wanted, below=asked.ceiling, limit=MAX_SUMMARIES
        )
    )


def _drawn(
    groups: Sequence[tuple[Phrase, ...]], counts: Sequence[int], leading: Sequence[int]
) -> list[list[tuple[Phrase, ...]]]:
    """
    What draws candidates: the rarest words and phrases that together fit, in one go.

    Where even the rarest is common, documents that hold the two rarest come first: the newest few that hold one of them
    would say nothing.
    """
    rarest = sorted((count, place) for place, count in enumerate(counts) if count)
    chosen: list[int] = [place for place in leading if counts[place]]
    total = sum(counts[place] for place in chosen)
    for count, place in rarest:
        if place in chosen:
            continue
        if chosen and total + count > MAX_CANDIDATES:
            break
        chosen.append(place)
        total += count
    union = [tuple(phrase for place in chosen for phrase in groups[place])]
    if len(rarest) > 1 and rarest[0][0] >= FREQUENCY_CAP:
        return [[groups[rarest[0][1]], groups[rarest[1][1]]], union]
    return [union]


def _gives_way(asked: _Search, summary: CandidateRow, rows: dict[int, CandidateRow]) -> bool:
    """Whether a source under a summary is a hit itself, or a smaller summary under it says as much."""
    if asked.wanted.kind is not None:
        return False
    node = summary.document
    wanted = [place for place, count in enumerate(summary.counts) if count]
    ranges: tuple[OwnRange, ...] = ()
    if node.segment_pk is not None:
        ranges = asked.reading.scope.chain(asked.db, node.segment_pk).ranges(node.end_seq, node.start_seq)
    for candidate in rows.values():
        row = candidate.document
        if row.key == node.key or (row.is_summary and not all(candidate.counts[place] for place in wanted)):
            continue
        smaller = row.end_seq - row.start_seq < node.end_seq - node.start_seq
        if node.segment_pk is None:
            if row.segment_pk is None:
                inside = node.start_seq <= row.start_seq and row.end_seq <= node.end_seq and smaller
            else:
                inside = row.visible is not None and node.start_seq <= row.visible < node.end_seq
        else:
            inside = any(
                row.segment_pk == own.segment and own.start <= row.start_seq and row.end_seq <= own.end
                for own in ranges
            ) and (smaller or not row.is_summary)
        if inside:
            return True
    return False


# ---- hits ------------------------------------------------------------------------------------------------------------


def _hits(asked: _Search, rows: Sequence[DocumentRow]) -> tuple[Hit, ...]:
    texts = _texts(asked, rows)
    live = publications.load_publications(
        asked.db, asked.reading.scope.pk, [row.visible for row in rows if row.visible is not None]
    )
    names: dict[tuple[int, int], tuple[str, int]] = {}
    hits: list[Hit] = []
    for row in rows:
        said = texts.get(row.key)
        if said is None:
            continue
        published = None
        if row.visible is not None and not row.is_summary:
            through = live.get(row.visible)
            if through is not None and publication_visible(through.state, asked.reading.sight):
                published = publication_ref(row.visible)
        span = Span(row.start_seq, row.end_seq - row.start_seq)
        if row.segment_pk is None:
            ref, session_id = publication_ref(span.start, span.count), ""
            published = ref
        else:
            session_id, generation = _named(asked, row, names)
            ref = session_ref(session_id, generation, span.start, span.count)
        kind: HitKind = "summary" if row.is_summary else KINDS[row.kind]
        hits.append(Hit(ref, kind, excerpt(said, asked.query), moment_of(row.at), session_id, published))
    return tuple(hits)


def _named(asked: _Search, row: DocumentRow, names: dict[tuple[int, int], tuple[str, int]]) -> tuple[str, int]:
    """
    The session and generation that a hit goes by: the reader's own where it is on its chain; to the owner one whose
    present history it is, the session asked for first.
    """
    segment = row.segment_pk
    assert segment is not None
    own = asked.reading.own
    if own is not None and asked.reading.sight.owns(segment, row.start_seq, row.end_seq):
        return own.session.session_id, own.chain.generation
    if asked.session is not None:
        return asked.session
    key = segment, row.end_seq if asked.reading.sight.owner else 0
    if key not in names:
        generation = registry.generation_of_segment(asked.db, segment)
        if asked.reading.sight.owner:
            generation = registry.holder_of(asked.db, segment, row.end_seq) or generation
        if generation is None:  # its session is gone; only forks still name it
            names[key] = ("", 0)
        else:
            names[key] = (registry.session_by_pk(asked.db, generation[1]).session_id, generation[2])
    return names[key]


def _texts(asked: _Search, rows: Sequence[DocumentRow]) -> dict[int, str]:
    """What each document's words came from, by its key."""
    records = payloads.load_spoken(asked.db, [row.subject for row in rows if not row.is_summary])
    nodes = forest.load_nodes(asked.db, [row.subject for row in rows if row.is_summary], asked.reading.clock)
    found: dict[int, str] = {}
    for row in rows:
        if row.is_summary:
            if row.subject in nodes:
                found[row.key] = nodes[row.subject].text
        elif row.subject in records:
            text = records[row.subject]
            if row.end_byte is not None:
                text = to_text(to_bytes(text)[row.start_byte : row.end_byte])
            found[row.key] = text
    return found
