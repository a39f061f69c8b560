"""
The search index: one row of ``document`` and one entry of ``words`` a searchable text.

Decides: how a search becomes full-text syntax, and that no row leaves here which its reader may not see.
Refuses to know: what a query means, and which answer is best.

Every search runs in passes, newest document first. A pinned reader's foreign pass ends at its document mark and sees
what a publication under its marks makes visible; its own pass reads its chain's segments alone. Both are limited in
the same order, so that what is published later can neither enter nor push anything out (§ 11). The owner's single pass
sees the scope. A search that is limited to sessions or kinds asks for their ``place`` terms, and reads no other's
postings.

Words come from :mod:`optchat.core.words`, which leaves nothing in them that the full-text syntax could mean; they are
quoted all the same, since ``and``, ``or`` and ``not`` are words too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final
from weakref import WeakSet

import apsw
from attrs import frozen

from optchat.core.records import SUMMARY_KIND
from optchat.core.refs import KEY_BITS
from optchat.core.snapshots import OwnRange, Sight
from optchat.core.words import Phrase
from optchat.store.rows import Connection, Row, all_rows, one_value, run, run_many

EVER: Final = 1 << 62
_RANGES_A_PASS: Final = 50  # of a chain: each is a condition of the statement
_INDEX_JOB: Final = 4  # core.jobs: the kind "index"


# ---- writing ---------------------------------------------------------------------------------------------------------


@frozen
class NewDocument:
    """
    A text to be searchable.

    ``words``: what the pre-tokenizer of that version gave. ``segment_pk``: None for a node of the shared tree.
    ``visible``: the number of the publication that makes it visible to others, if there is one already. ``turn_pk``:
    the turn of a record; ranking goes without it, and worse. ``born_clock``: of a node's later revision, when it was
    made. ``revision``: of a node, which of its texts this is: what erases the entry makes its words from that.
    """

    document_key: int
    pretokenizer: int
    kind: int
    segment_pk: int | None
    start_seq: int
    end_seq: int
    subject: int
    at: int
    words: str
    start_byte: int = 0
    end_byte: int | None = None
    visible: int | None = None
    turn_pk: int | None = None
    born_clock: int = 0
    revision: int = 0


def place_words(segment_pk: int | None, kind: int) -> str:
    """What an entry's ``place`` holds: part of the exact text that deletes it."""
    return f"k{kind}" if segment_pk is None else f"s{segment_pk} k{kind}"


def insert_documents(db: Connection, rows: Iterable[NewDocument]) -> None:
    """Make texts searchable, each under its number."""
    made = list(rows)
    run_many(
        db,
        "INSERT INTO document (document_key, pretokenizer, kind, segment_pk, turn_pk, start_seq, end_seq, subject,"
        " start_byte, end_byte, word_count, at, visible, born_clock, revision)"
        " VALUES (:key, :pretokenizer, :kind, :segment, :turn, :start, :end, :subject, :start_byte, :end_byte, :words,"
        " :at, :visible, :born, :revision)",
        (
            {
                "key": row.document_key,
                "pretokenizer": row.pretokenizer,
                "kind": row.kind,
                "segment": row.segment_pk,
                "turn": row.turn_pk,
                "start": row.start_seq,
                "end": row.end_seq,
                "subject": row.subject,
                "start_byte": row.start_byte,
                "end_byte": row.end_byte,
                "words": row.words.count(" ") + 1 if row.words else 0,
                "at": row.at,
                "visible": row.visible,
                "born": row.born_clock,
                "revision": row.revision,
            }
            for row in made
        ),
    )
    run_many(
        db,
        "INSERT INTO words (rowid, text, place) VALUES (:key, :words, :place)",
        ({"key": row.document_key, "words": row.words, "place": place_words(row.segment_pk, row.kind)} for row in made),
    )


def publish_documents(
    db: Connection, segment_pk: int, start: int, end: int, publication: int, first_published_start: int
) -> None:
    """
    Make a published turn's documents visible to others: its records, and the nodes that its end completes.

    A node counts once its last record is published, and only if all its records are: it must not begin before the
    first published one (§ 11). Idempotent. A turn that is shared again after a removal gets its new number.

    Args:
        start, end: the turn's records.
        publication: its number in the scope.
        first_published_start: where the published records of the generation begin.
    """
    run(
        db,
        "UPDATE document SET visible = :publication WHERE subject >= :low AND subject < :high AND kind <> :summary"
        " AND segment_pk = :segment",
        {
            "publication": publication,
            "low": segment_pk << KEY_BITS | start,
            "high": segment_pk << KEY_BITS | end,
            "segment": segment_pk,
            "summary": SUMMARY_KIND,
        },
    )
    run(
        db,
        f"UPDATE document SET visible = :publication WHERE segment_pk = :segment AND kind = {SUMMARY_KIND}"
        " AND end_seq > :start AND end_seq <= :end AND start_seq >= :first",
        {"publication": publication, "segment": segment_pk, "start": start, "end": end, "first": first_published_start},
    )


def replace_node_documents(db: Connection, node_key: int, clock: int) -> None:
    """A node's older revision is found no more from this clock on; pins before it still find what they did."""
    run(
        db,
        f"UPDATE document SET replaced_clock = :clock WHERE subject = :subject AND kind = {SUMMARY_KIND}"
        " AND replaced_clock IS NULL",
        {"clock": clock, "subject": node_key},
    )


def hide_node_documents(db: Connection, node_key: int, born_before: int = EVER) -> None:
    """A node's texts, of whatever revision (or of those made before a clock), are found no more, under no clock."""
    run(
        db,
        f"UPDATE document SET state = 1 WHERE subject = :subject AND kind = {SUMMARY_KIND} AND state = 0"
        " AND born_clock < :before",
        {"subject": node_key, "before": born_before},
    )


def visible_through(db: Connection, record_key: int) -> int | None:
    """The number of the publication that makes a record visible to others, for pieces that are indexed after it."""
    value = one_value(
        db,
        "SELECT turn.publication_key & :mask FROM record JOIN turn ON turn.turn_pk = record.turn_pk"
        " WHERE record_key = :key AND turn.publication_key IS NOT NULL",
        {"mask": (1 << KEY_BITS) - 1, "key": record_key},
    )
    return None if value is None else int(value)


def delete_entry(db: Connection, document_key: int, words: str) -> None:
    """
    Take an entry out of the index, and leave its number behind as a tombstone.

    Args:
        words: exactly what it was indexed by. With other words the delete would succeed and leave the old ones findable
            (tried), so its caller makes them by the entry's own version from the exact text.
    """
    for kind, segment in all_rows(
        db, "SELECT kind, segment_pk FROM document WHERE document_key = :key AND state <> 2", {"key": document_key}
    ):
        run(
            db,
            "INSERT INTO words (words, rowid, text, place) VALUES ('delete', :key, :words, :place)",
            {"key": document_key, "words": words, "place": place_words(segment, kind)},
        )
        run(db, "UPDATE document SET state = 2 WHERE document_key = :key", {"key": document_key})


def next_document(db: Connection, scope_pk: int) -> int:
    """The number that the scope's next document will get."""
    return int(one_value(db, "SELECT next_document FROM scope WHERE scope_pk = :scope", {"scope": scope_pk}) or 0)


# ---- what is looked for ----------------------------------------------------------------------------------------------


@frozen
class Wanted:
    """
    What a search is limited to.

    ``within``: records of these ranges, and nodes wholly inside one; None: anywhere. ``after`` is inclusive, ``before``
    exclusive, in microseconds.
    """

    within: tuple[OwnRange, ...] | None = None
    kind: int | None = None
    sources_only: bool = False
    after: int = -EVER
    before: int = EVER


Match = Sequence[Sequence[Phrase]]
"""Every group must match, by any of its phrases."""


@frozen
class DocumentRow:
    """A document that was found; ``visible`` is a publication's number."""

    key: int
    kind: int
    segment_pk: int | None
    turn_pk: int | None
    start_seq: int
    end_seq: int
    subject: int
    start_byte: int
    end_byte: int | None
    words: int
    at: int
    visible: int | None

    @property
    def is_summary(self) -> bool:
        return self.kind == SUMMARY_KIND


@frozen
class CandidateRow:
    """
    A document and where the groups of a search stand in it.

    ``concludes``: it is its turn's last record, and the turn has ended.
    """

    document: DocumentRow
    concludes: bool
    counts: tuple[int, ...]
    _packed: array[int]
    _sizes: tuple[int, ...]

    def places(self) -> list[list[int]]:
        """Where each group stands, in words from the beginning. Unpacked when asked for: most candidates never are."""
        numbers = self._packed.tolist()
        groups: list[list[int]] = []
        at = 0
        for size in self._sizes:
            found: list[int] = []
            for _ in range(size):
                found += numbers[at + 1 : at + 1 + numbers[at]]
                at += 1 + numbers[at]
            groups.append(sorted(found) if size > 1 else found)
        return groups


_COLUMNS: Final = (
    "d.document_key, d.kind, d.segment_pk, d.turn_pk, d.start_seq, d.end_seq, d.subject, d.start_byte, d.end_byte,"
    " d.word_count, d.at, d.visible"
)
_CONCLUDES: Final = "(SELECT t.end_seq = d.end_seq FROM turn AS t WHERE t.turn_pk = d.turn_pk)"
# CROSS JOIN fixes the order: postings first, newest first, so that a limit ends the scan.
_FOUND: Final = " FROM words CROSS JOIN document AS d ON d.document_key = words.rowid"
_LIVE: Final = (
    " WHERE words MATCH :match AND words.rowid >= :low AND words.rowid < :below AND d.state = 0 AND d.kind < :kinds"
    " AND d.at >= :after AND d.at < :before AND (d.replaced_clock IS NULL OR d.replaced_clock > :clock)"
    " AND d.born_clock <= :clock"
)
_NEWEST: Final = " ORDER BY words.rowid DESC LIMIT :limit"
_COUNTS: Final = "(p.retired_clock IS NULL OR p.retired_clock > :clock)"
_FOREIGN_FROM: Final = " CROSS JOIN publication AS p ON p.publication_key = :low + d.visible"
_FOREIGN: Final = f" AND d.visible < :publications AND p.state = 0 AND {_COUNTS}"
_OWNER_FROM: Final = (
    " LEFT JOIN publication AS p ON p.publication_key = :low + d.visible"
    " LEFT JOIN segment AS s ON s.segment_pk = d.segment_pk"
)
# What was rewound, and is no fork's history, answers to its old refs alone; of the shared tree, what was retired.
_OWNER: Final = (
    f" AND (d.segment_pk IS NOT NULL OR p.publication_key IS NULL OR {_COUNTS})"
    " AND (s.current_length IS NULL OR d.end_seq <= s.current_length)"
)


def _syntax(phrase: Phrase) -> str:
    return f'"{" ".join(phrase.words)}"{" *" if phrase.open_end else ""}'


def _any(phrases: Iterable[str]) -> str:
    return f"({' OR '.join(phrases)})"


def _matching(match: Match) -> str:
    return " AND ".join(_any(map(_syntax, group)) for group in match)


def _places(ranges: Sequence[OwnRange] | None, kind: int | None) -> str:
    terms = ""
    if ranges is not None:
        segments = sorted({own.segment for own in ranges})
        terms += f" AND place : {_any(f's{segment}' for segment in segments)}"
    return terms if kind is None else f"{terms} AND place : k{kind}"


def _inside(name: str, ranges: Sequence[OwnRange]) -> tuple[str, dict[str, int]]:
    """A condition that a document lies wholly inside one of the ranges."""
    conditions: list[str] = []
    bindings: dict[str, int] = {}
    for number, own in enumerate(ranges):
        segment, start, end = (f"{name}_{part}{number}" for part in ("segment", "start", "end"))
        conditions.append(f"(d.segment_pk = :{segment} AND d.start_seq >= :{start} AND d.end_seq <= :{end})")
        bindings |= {segment: own.segment, start: own.start, end: own.end}
    return f" AND ({' OR '.join(conditions)})", bindings


@frozen
class _Pass:
    """One scan: what joins and conditions it adds, the segments it reads, and where it ends."""

    joins: str
    conditions: str
    bindings: dict[str, int]
    segments: tuple[OwnRange, ...] | None
    below: int


def _passes(sight: Sight, below: int) -> list[_Pass]:
    if sight.owner:
        return [_Pass(_OWNER_FROM, _OWNER, {}, None, below)]
    found: list[_Pass] = []
    if sight.publications and sight.documents:
        bindings = {"publications": sight.publications}
        found.append(_Pass(_FOREIGN_FROM, _FOREIGN, bindings, None, min(below, sight.documents)))
    for first in range(0, len(sight.own), _RANGES_A_PASS):
        ranges = sight.own[first : first + _RANGES_A_PASS]
        conditions, bindings = _inside("own", ranges)
        found.append(_Pass("", conditions, bindings, ranges, below))
    return found


def _scan(
    db: Connection,
    sight: Sight,
    columns: str,
    matching: str,
    wanted: Wanted,
    below: int,
    limit: int,
    *,
    positions: bool = False,
) -> Iterable[list[Row]]:
    """The rows of each pass, newest first; ``positions``: the columns say where phrases stand."""
    conditions = ""
    bindings: dict[str, Any] = {
        "low": sight.scope << KEY_BITS,
        "clock": sight.clock,
        "kinds": SUMMARY_KIND + (not wanted.sources_only),
        "after": wanted.after,
        "before": wanted.before,
        "limit": limit,
    }
    if wanted.within is not None:
        conditions, inside = _inside("within", wanted.within)
        bindings |= inside
    if wanted.within == ():
        return
    for scan in _passes(sight, below):
        places = _places(wanted.within, wanted.kind)
        if scan.segments is not None:
            places += _places(scan.segments, None)
        if wanted.sources_only and not positions:
            # By the index itself: what was summarised in bulk stands newest, thousands of rows before the first source.
            # Not where positions are asked for: under a NOT, FTS5 leaves out some of those below an OR (measured).
            places += f" NOT place : k{SUMMARY_KIND}"
        yield all_rows(
            db,
            f"SELECT {columns}{_FOUND}{scan.joins}{_LIVE}{conditions}{scan.conditions}{_NEWEST}",
            bindings
            | scan.bindings
            | {"match": f"text : ({matching}){places}", "below": (sight.scope << KEY_BITS) + scan.below},
        )


def _newest(passes: Iterable[list[Row]], limit: int) -> list[Row]:
    """The passes as one: newest first, each document once."""
    found = {row[0]: row for rows in passes for row in rows}
    return [found[key] for key in sorted(found, reverse=True)[:limit]]


# ---- reading ---------------------------------------------------------------------------------------------------------


def find_newest(
    db: Connection, sight: Sight, match: Match, wanted: Wanted, *, below: int, limit: int
) -> list[DocumentRow]:
    """The newest documents that match, numbered below ``below`` in the scope."""
    return [
        DocumentRow(*row) for row in _newest(_scan(db, sight, _COLUMNS, _matching(match), wanted, below, limit), limit)
    ]


def count_documents(db: Connection, sight: Sight, match: Match, wanted: Wanted, *, below: int, cap: int) -> int:
    """How many documents match, counted up to a cap."""
    return len(_newest(_scan(db, sight, "d.document_key", _matching(match), wanted, below, cap), cap))


def count_records(db: Connection, sight: Sight, match: Match, wanted: Wanted, *, below: int, cap: int) -> int:
    """How many records match, counted up to a cap; a record in several pieces is one."""
    passes = _scan(db, sight, "d.document_key, d.subject", _matching(match), wanted, below, cap)
    return len({subject for rows in passes for _, subject in rows})


def find_candidates(
    db: Connection,
    sight: Sight,
    drawn: Match,
    scored: Match,
    wanted: Wanted,
    *,
    below: int,
    limit: int,
) -> list[CandidateRow]:
    """
    The newest documents that match ``drawn``, each with where every group of ``scored`` stands in it.

    Documents without any of ``scored`` are not found.
    """
    _teach_places(db)
    first = sum(len(group) for group in drawn)
    sizes = tuple(len(group) for group in scored)
    matching = f"{_matching(drawn)} AND {_any(_syntax(phrase) for group in scored for phrase in group)}"
    passes = _scan(
        db, sight, f"{_COLUMNS}, {_CONCLUDES}, places(words)", matching, wanted, below, limit, positions=True
    )
    return [
        CandidateRow(DocumentRow(*row[:-2]), row[-2] == 1, *_counts(row[-1], first, sizes), sizes)
        for row in _newest(passes, limit)
    ]


# A function of full-text search is known to a connection for good: a second registration would stay beside the first.
_taught: Final[WeakSet[apsw.Connection]] = WeakSet()


def _teach_places(db: Connection) -> None:
    if db not in _taught:
        db.register_fts5_function("places", _places_in_row)
        _taught.add(db)


def _places_in_row(api: apsw.FTS5ExtensionApi, *_: Any) -> bytes:
    """For every phrase of the query in the current row: how often it stands in the text, and where."""
    found = array("I")
    for phrase in range(api.phrase_count):
        places = api.phrase_locations(phrase)[0]
        found.append(len(places))
        found.extend(places)
    return found.tobytes()


def _counts(packed: bytes, first: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], array[int]]:
    """How often each group stands there, and the numbers from the first group on. The phrases before it drew only."""
    numbers = array("I")
    numbers.frombytes(packed)
    at = 0
    for _ in range(first):
        at += 1 + numbers[at]
    rest = numbers[at:]
    at = 0
    counts: list[int] = []
    for size in sizes:
        count = 0
        for _ in range(size):
            count += rest[at]
            at += 1 + rest[at]
        counts.append(count)
    return tuple(counts), rest


def count_unindexed(db: Connection, sight: Sight) -> int:
    """
    Visible records whose text this reader's searches cannot find yet: their index job is not done, or, under a pin, was
    done after it.
    """
    low = sight.scope << KEY_BITS
    if sight.owner:
        return int(
            one_value(
                db,
                "SELECT count(*) FROM job JOIN record ON record_key = subject"
                f" WHERE job.kind = {_INDEX_JOB} AND job.scope_pk = :scope AND record.state = 0",
                {"scope": sight.scope},
            )
        )
    found: set[int] = set()
    marks = {"low": low, "publications": sight.publications, "clock": sight.clock}
    for row in all_rows(
        db,
        "SELECT job.subject FROM job JOIN record ON record.record_key = job.subject"
        " JOIN turn AS t ON t.turn_pk = record.turn_pk JOIN publication AS p ON p.turn_pk = t.turn_pk"
        f" WHERE job.kind = {_INDEX_JOB} AND job.scope_pk = :scope AND record.state = 0"
        f" AND p.publication_key < :low + :publications AND p.state = 0 AND {_COUNTS}"
        " UNION SELECT d.subject FROM document AS d JOIN publication AS p ON p.publication_key = :low + d.visible"
        " WHERE d.end_byte IS NOT NULL AND d.document_key >= :low + :documents AND d.document_key < :end"
        f" AND d.state = 0 AND d.visible < :publications AND p.state = 0 AND {_COUNTS}",
        marks | {"scope": sight.scope, "documents": sight.documents, "end": low + (1 << KEY_BITS)},
    ):
        found.add(row[0])
    own: set[int] = set()
    for link in sight.own:
        first, end = link.segment << KEY_BITS | link.start, link.segment << KEY_BITS | link.end
        own.update(
            row[0]
            for row in all_rows(
                db,
                "SELECT subject FROM job JOIN record ON record_key = subject"
                f" WHERE job.kind = {_INDEX_JOB} AND subject >= :first AND subject < :end AND record.state = 0",
                {"first": first, "end": end},
            )
        )
        found = {key for key in found if not first <= key < end}  # its own pieces are found whatever the mark
    return len(found | own)
