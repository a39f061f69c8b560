"""
Scrubbing's own books: removals that are not done with, and what of each is still to be erased.

Decides: what is to be erased next, and when a word has left the full-text index for good.
Refuses to know: what a row loses when it is erased (:mod:`optchat.store.erasing`), and how long a step may take.

A removal passes through its stages in order: ``rows``, ``index`` (what the index still holds of deleted entries),
``pages`` (what the file holds in the gaps of its pages), ``log`` (what the write-ahead log holds), ``scrubbed``. Books
are kept for the whole file: a removed scope has no handle that would see to it, and one rewriting of the file serves
all.

Whoever erases takes the row of ``erasure`` in the same transaction, so that two processes that read the same row erase
once, and a crash leaves the step done or not begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias, get_args

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.store.rows import Connection, all_rows, one_value, run

Stage: TypeAlias = Literal["rows", "index", "pages", "log", "scrubbed"]
# Index entries are erased with what they were made of, or before it. Retrievals ask whether their turn is removed, so
# they come before turns.
Kind: TypeAlias = Literal[
    "documents",
    "trees",
    "history",
    "nodes",
    "records",
    "events",
    "orphans",
    "blobs",
    "retrievals",
    "renderings",
    "publications",
    "turns",
    "sessions",
    "scopes",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)  # in this order
_SEGMENT: Final = "index"  # the kind of rows that name a segment of the full-text index
_STRUCTURE: Final = 10  # the row of words_data that says which segments there are


# ---- removals --------------------------------------------------------------------------------------------------------


@frozen
class RemovalRow:
    """A removal that is not done with."""

    removal_pk: int
    scope_pk: int
    clock: int
    stage: Stage
    hindered: str | None


def unfinished(db: Connection) -> list[RemovalRow]:
    """The removals of the file that are not done with, the oldest first."""
    found = [
        RemovalRow(*row)
        for row in all_rows(
            db,
            "SELECT removal_pk, scope_pk, clock, stage, hindered FROM removal"
            " WHERE scope_pk > 0 AND stage <> 'scrubbed'",
        )
    ]
    return sorted(found, key=lambda removal: removal.removal_pk)


def is_pending(db: Connection, scope_pk: int) -> bool:
    """Whether bytes of what was removed from a scope may still be in the file."""
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM removal WHERE scope_pk = :scope AND stage <> 'scrubbed')",
            {"scope": scope_pk},
        )
    )


def is_scrubbed(db: Connection, removal_pk: int) -> bool:
    """Whether no byte of what a removal took is left in the file."""
    return bool(
        one_value(db, "SELECT stage = 'scrubbed' FROM removal WHERE removal_pk = :removal", {"removal": removal_pk})
    )


def enter_index(db: Connection, removal: RemovalRow) -> bool:
    """A removal has no row left to erase; whether it had one until now."""
    return (
        run(
            db,
            "UPDATE removal SET stage = 'index', hindered = NULL WHERE removal_pk = :removal AND stage = 'rows'",
            {"removal": removal.removal_pk},
        )
        > 0
    )


def advance(db: Connection, removals: Iterable[RemovalRow], stage: Stage) -> None:
    """Move removals on from the stage that they were read in; what another process has moved already stays."""
    for removal in removals:
        run(
            db,
            "UPDATE removal SET stage = :stage, hindered = NULL WHERE removal_pk = :removal AND stage = :before",
            {"stage": stage, "removal": removal.removal_pk, "before": removal.stage},
        )


def hinder(db: Connection, removals: Iterable[RemovalRow], reason: str) -> None:
    """Write down what removals wait for."""
    for removal in removals:
        run(
            db,
            "UPDATE removal SET hindered = :reason WHERE removal_pk = :removal AND stage = :stage",
            {"reason": reason, "removal": removal.removal_pk, "stage": removal.stage},
        )


# ---- what is to be erased --------------------------------------------------------------------------------------------


@frozen
class Erasure:
    """Keys ``[low, high)`` of a kind of rows, of which what is hidden is to be erased."""

    removal: RemovalRow
    kind: Kind
    low: int
    high: int


def next_erasure(db: Connection, removal: RemovalRow) -> Erasure | None:
    """What of a removal is to be erased next; None: no row is left."""
    for kind in KINDS:
        for low, high in all_rows(
            db,
            "SELECT low, high FROM erasure WHERE removal_pk = :removal AND kind = :kind ORDER BY low LIMIT 1",
            {"removal": removal.removal_pk, "kind": kind},
        ):
            return Erasure(removal, kind, low, high)
    return None


def still_to_do(db: Connection, erasure: Erasure) -> bool:
    """Whether nobody has got further with an erasure since it was read."""
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM erasure WHERE removal_pk = :removal AND kind = :kind AND low = :low"
            " AND high = :high)",
            _named(erasure),
        )
    )


def move_on(db: Connection, erasure: Erasure, low: int) -> None:
    """What lies below a key is erased; with all of it the row goes."""
    if low >= erasure.high:
        run(
            db,
            "DELETE FROM erasure WHERE removal_pk = :removal AND kind = :kind AND low = :low",
            _named(erasure),
        )
    elif low > erasure.low:
        run(
            db,
            "UPDATE erasure SET low = :to WHERE removal_pk = :removal AND kind = :kind AND low = :low",
            _named(erasure) | {"to": low},
        )


def add_erasure(db: Connection, removal_pk: int, kind: Kind, low: int, high: int) -> None:
    """Add a range that others of the removal may have added already."""
    run(
        db,
        "INSERT OR IGNORE INTO erasure (removal_pk, kind, low, high) VALUES (:removal, :kind, :low, :high)",
        {"removal": removal_pk, "kind": kind, "low": low, "high": high},
    )


def _add(db: Connection, removal_pk: int, kind: str, low: int, high: int) -> None:
    run(
        db,
        "INSERT INTO erasure (removal_pk, kind, low, high) VALUES (:removal, :kind, :low, :high)",
        {"removal": removal_pk, "kind": kind, "low": low, "high": high},
    )


def _named(erasure: Erasure) -> dict[str, int | str]:
    return {
        "removal": erasure.removal.removal_pk,
        "kind": erasure.kind,
        "low": erasure.low,
        "high": erasure.high,
    }


# ---- the full-text index ---------------------------------------------------------------------------------------------
#
# A deleted entry leaves its words in the segment that held them, and again in a newer one, as a note that they are
# deleted. A merge of both drops the entry, and keeps the note wherever an older segment might hold the word too: only
# what is merged into the oldest segment of all loses both. So the words are gone when all segments that were there when
# the last entry was deleted have been merged into one on the last level. FTS5's "optimize" is nearly that in one step,
# which takes 20 s over a million texts; "merge" with a negative number begins the same, and with a positive one goes on
# with it, some pages at a time.
#
# Neither does it where there is one segment only, or where all are on one level and empty ones lie above (tried: the
# notes stay for good). There an entry that means nothing is added, merged and deleted, until there are two levels: its
# text makes a segment of several pages, which its deletion, of one page, does not pull down to its own level.
#
# FTS5's secure-delete is no way out: it takes 30 times as long, all of it in the commit, which no loop can measure, and
# leaves beginnings of words in its index of pages.

_TO_BEGIN: Final = -1  # in the place of a segment's number: the merge of all has not begun
_FILLER: Final = {
    "key": 0,  # no document has this number
    "words": " ".join(f"filler{number}" for number in range(200) for _ in range(60)),
    "place": "k0",
}


@frozen
class Segment:
    """A segment of the full-text index. Numbers are used again, and no two segments of a number end at one page."""

    number: int
    last_page: int


@frozen
class _Level:
    merging: int  # so many of its first segments are being merged into one on the next level
    segments: tuple[Segment, ...]


def await_merge(db: Connection, removal_pk: int) -> None:
    """From now on a removal waits for a merge of all segments that begins from here on."""
    _add(db, removal_pk, _SEGMENT, _TO_BEGIN, 0)


def awaits_merge(db: Connection, removal: RemovalRow) -> bool:
    """Whether a removal waits for its merge still."""
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM erasure WHERE removal_pk = :removal AND kind = :kind)",
            {"removal": removal.removal_pk, "kind": _SEGMENT},
        )
    )


def merge_some(db: Connection, removals: Iterable[RemovalRow], pages: int) -> bool:
    """
    Write some pages of the merge that removals wait for; whether some of them wait still.

    A merge that has begun goes on, whatever is sealed meanwhile: begun anew each time, it would take that in, and never
    come to an end.
    """
    waiting = [removal.removal_pk for removal in removals]
    levels = _levels(db)
    under_way, to_begin = _awaited(db, waiting, levels)
    if under_way:
        _merge(db, pages)
    elif to_begin:
        _begin(db, to_begin, pages)
    under_way, to_begin = _awaited(db, waiting, _levels(db))
    return bool(under_way or to_begin)


def _awaited(db: Connection, removal_pks: list[int], levels: list[_Level]) -> tuple[set[Segment], list[int]]:
    """The segments that are waited for, those that are merged by now left out, and the removals without any yet."""
    present = set(_segments(levels))
    under_way: set[Segment] = set()
    to_begin: list[int] = []
    for removal in removal_pks:
        for number, last_page in all_rows(
            db,
            "SELECT low, high FROM erasure WHERE removal_pk = :removal AND kind = :kind",
            {"removal": removal, "kind": _SEGMENT},
        ):
            segment = Segment(number, last_page)
            if number == _TO_BEGIN:
                to_begin.append(removal)
            elif segment in present:
                under_way.add(segment)
            else:
                _waits_no_more(db, removal, number)
    return under_way, to_begin


def _begin(db: Connection, removal_pks: list[int], pages: int) -> None:
    """Begin to merge all segments into the oldest; or do a step towards an order in which that can begin."""
    _merge(db, 0)  # makes a segment of what this transaction has written so far, and no more: only then are all there
    is_filled = one_value(db, "SELECT rowid FROM words WHERE words MATCH 'filler0' AND rowid = :key", _FILLER) == 0
    levels = _levels(db)
    before = _segments(levels)
    used = [number for number, level in enumerate(levels) if level.segments]
    if len(before) == 1 and not is_filled:
        run(db, "INSERT INTO words (rowid, text, place) VALUES (:key, :words, :place)", _FILLER)
    elif len(used) == 1 and len(before) > 1 and used[0] < len(levels) - 2:
        _merge(db, -pages)
    elif is_filled:
        run(db, "INSERT INTO words (words, rowid, text, place) VALUES ('delete', :key, :words, :place)", _FILLER)
    else:
        if before:
            _merge(db, -pages)
        merged = _merged(_levels(db), set(before))
        for removal in removal_pks if merged is not None else ():
            _waits_no_more(db, removal, _TO_BEGIN)
            for segment in merged or ():
                _add(db, removal, _SEGMENT, segment.number, segment.last_page)


def _merged(levels: list[_Level], before: set[Segment]) -> tuple[Segment, ...] | None:
    """
    What of all segments is still being merged into the oldest: () if that is done already; None: no such merge is
    under way.
    """
    if not before or not _segments(levels):
        return ()
    last = levels[-1].segments
    left = before & set(_segments(levels))
    if len(last) == 1 and not left:
        return ()
    if len(last) != 1 or len(levels) < 2 or last[0] in before:
        return None
    inputs = levels[-2].segments[: levels[-2].merging]
    return inputs if inputs and set(inputs) == before else None


def _merge(db: Connection, pages: int) -> None:
    run(db, "INSERT INTO words (words, rank) VALUES ('merge', :pages)", {"pages": pages})


def _waits_no_more(db: Connection, removal_pk: int, number: int) -> None:
    run(
        db,
        "DELETE FROM erasure WHERE removal_pk = :removal AND kind = :kind AND low = :low",
        {"removal": removal_pk, "kind": _SEGMENT, "low": number},
    )


def _segments(levels: Iterable[_Level]) -> tuple[Segment, ...]:
    return tuple(segment for level in levels for segment in level.segments)


def _levels(db: Connection) -> list[_Level]:
    """
    Which segments the index has, as FTS5 writes it down: levels of segments, each with those that are being merged.

    Raises:
        IntegrityError: it is not there.
    """
    block = one_value(db, "SELECT block FROM words_data WHERE id = :id", {"id": _STRUCTURE})
    if block is None:
        raise IntegrityError("the search index has lost its structure; run verify(repair=True), which makes it anew")
    numbers = _varints(bytes(block)[4:])  # after a cookie
    levels: list[_Level] = []
    count, _segments_in_all, _written = next(numbers), next(numbers), next(numbers)
    for _ in range(count):
        merging, segments = next(numbers), next(numbers)
        found: list[Segment] = []
        for _ in range(segments):
            number, _first, last = next(numbers), next(numbers), next(numbers)
            found.append(Segment(number, last))
        levels.append(_Level(merging, tuple(found)))
    return levels


def _varints(data: bytes) -> Iterator[int]:
    """SQLite's integers of one to nine bytes, the high bits first."""
    value = size = 0
    for byte in data:
        size += 1
        if size == 9:
            yield value << 8 | byte
            value = size = 0
        elif byte & 0x80:
            value = value << 7 | byte & 0x7F
        else:
            yield value << 7 | byte
            value = size = 0


# ---- the file --------------------------------------------------------------------------------------------------------

_IN_MEMORY_BYTES: Final = 64 * 1024 * 1024


def file_bytes(db: Connection) -> int:
    """The size of the database without its log, as this transaction sees it."""
    return int(one_value(db, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"))


def rewrite_file(db: Connection) -> None:
    """
    Write every page of the file anew, from its rows: what stood in gaps and free pages is not taken along.

    No transaction may be open. Readers may be: they keep what they see in the log. The writer lock is held all the
    time, about 2 s for 300 MB (measured).
    """
    # By way of memory, as all that is temporary here; a large file by way of one without a name, of live rows only.
    large = file_bytes(db) > _IN_MEMORY_BYTES
    if large:
        db.pragma("temp_store", "FILE")
    try:
        db.execute("VACUUM")
    finally:
        if large:
            db.pragma("temp_store", "MEMORY")
