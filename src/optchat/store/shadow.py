"""
The search index, read as it stands, and a shadow of it to compare with.

Decides: how the words of each entry are read out of an index that keeps no text, and how what they should be is made.
Refuses to know: which text a document has, and what is done about a difference.

A contentless index answers which documents hold a word, never which words a document holds. So it is read once from
end to end, word by word, and each document's words are summed up to one number (order of reading does not matter, and
place in the text does). The same number is made of a shadow: a small index of the same kind, in memory, into which the
documents' texts go again. An entry never changes once it is there, until its document counts as deleted; so a reading
in steps, beside writers, is as good as one of a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import apsw
from attrs import define, field, frozen

from optchat.core.records import SUMMARY_KIND
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.store.rows import Connection, Row, all_rows, keys, one_row, one_value, run, run_many
from optchat.store.search import place_words

_STEP: Final = 50_000  # words a read transaction
_SUM: Final = (1 << 64) - 1
_INDEX: Final = "SELECT sql FROM sqlite_schema WHERE name = 'words'"


# ---- the index as it stands ------------------------------------------------------------------------------------------


Instance: TypeAlias = tuple[str, int, str, int]  # a word, the number of its document, its column, its place in that


@frozen
class Position:
    """How far the index was read: after all entries of ``word`` up to a document."""

    word: str = ""
    document_key: int = -1


def read_entries(
    db: Connection, scope_pk: int, after: Position, limit: int = _STEP
) -> tuple[list[Instance], Position | None]:
    """The next words of a scope's entries, and where to go on; None at the end."""
    one_row(db, "SELECT rowid FROM words WHERE words MATCH 'place : k0' LIMIT 1")  # as checks.sqlite_faults says
    run(db, "CREATE VIRTUAL TABLE IF NOT EXISTS temp.words_instances USING fts5vocab('main', 'words', 'instance')")
    rows = all_rows(
        db,
        "SELECT term, doc, col, offset FROM temp.words_instances WHERE term >= :word"
        " AND (term > :word OR doc > :after) AND doc >= :low AND doc <= :high LIMIT :limit",
        {
            "word": after.word,
            "after": after.document_key,
            "low": scope_pk << KEY_BITS,
            "high": scope_pk << KEY_BITS | KEY_MASK,
            "limit": limit,
        },
    )
    following: Position | None = None
    if len(rows) == limit:
        last = rows[-1][:2]
        whole = [row for row in rows if row[:2] != last]
        if whole:
            rows, following = whole, Position(*whole[-1][:2])
        else:  # one word more often in one text than a step is long: read all of it
            return read_entries(db, scope_pk, after, limit * 4)
    return [(row[0], row[1] & KEY_MASK, row[2], row[3]) for row in rows], following


def add_up(sums: dict[int, int], instances: Iterable[Instance | Row]) -> None:
    """Add words to the sums of their documents, by number."""
    for word, number, column, place in instances:
        sums[number] = (sums.get(number, 0) + hash((word, column, place))) & _SUM


# ---- the shadow ------------------------------------------------------------------------------------------------------


@define
class Shadow:
    """An index in memory of the same kind as a file's, for some texts at a time."""

    _db: apsw.Connection = field(init=False)
    _statement: str

    def __attrs_post_init__(self) -> None:
        self._db = apsw.Connection(":memory:")
        self._db.execute(self._statement)
        self._db.execute("CREATE VIRTUAL TABLE words_instances USING fts5vocab('words', 'instance')")

    def sums(self, texts: Sequence[tuple[int, str, str]]) -> dict[int, int]:
        """What the entries of these documents sum up to, by number: (number, words, place)."""
        run(self._db, "INSERT INTO words (words) VALUES ('delete-all')")
        run_many(
            self._db,
            "INSERT INTO words (rowid, text, place) VALUES (:number, :words, :place)",
            ({"number": number, "words": words, "place": place} for number, words, place in texts),
        )
        found: dict[int, int] = {}
        add_up(found, all_rows(self._db, "SELECT term, doc, col, offset FROM words_instances"))
        return found

    def close(self) -> None:
        self._db.close()


def shadow_of(db: Connection) -> Shadow:
    """A shadow of the file's index, by the same statement."""
    return Shadow(str(one_value(db, _INDEX)))


# ---- documents -------------------------------------------------------------------------------------------------------


@frozen
class Document:
    """A document's row, whole."""

    document_key: int
    pretokenizer: int
    kind: int
    segment_pk: int | None
    turn_pk: int | None
    start_seq: int
    end_seq: int
    subject: int
    start_byte: int
    end_byte: int | None
    word_count: int
    at: int
    visible: int | None
    replaced_clock: int | None
    state: int
    born_clock: int
    revision: int

    @property
    def number(self) -> int:
        return self.document_key & KEY_MASK

    @property
    def is_summary(self) -> bool:
        return self.kind == SUMMARY_KIND

    @property
    def place(self) -> str:
        """What its entry holds beside its words."""
        return place_words(self.segment_pk, self.kind)


_DOCUMENT = (
    "SELECT document_key, pretokenizer, kind, segment_pk, turn_pk, start_seq, end_seq, subject, start_byte, end_byte,"
    " word_count, at, visible, replaced_clock, state, born_clock, revision FROM document "
)


def documents_after(db: Connection, scope_pk: int, after: int, limit: int) -> list[Document]:
    """The documents of a scope in order, from the one after a number."""
    return [
        Document(*row)
        for row in all_rows(
            db,
            _DOCUMENT + "WHERE document_key > :after AND document_key <= :high ORDER BY document_key LIMIT :limit",
            {
                "after": (scope_pk << KEY_BITS) + after,
                "high": scope_pk << KEY_BITS | KEY_MASK,
                "limit": limit,
            },
        )
    ]


def documents_of_file(db: Connection, after: int, limit: int) -> list[Document]:
    """The same of every scope, by key: entries share one index."""
    return [
        Document(*row)
        for row in all_rows(
            db,
            _DOCUMENT + "WHERE document_key > :after AND state <> 2 ORDER BY document_key LIMIT :limit",
            {"after": after, "limit": limit},
        )
    ]


def documents_of(db: Connection, subjects: Iterable[int], *, summaries: bool) -> dict[int, list[Document]]:
    """The documents of records, or of nodes, by subject, in order; tombstones of entries are left out."""
    found: dict[int, list[Document]] = {}
    for row in all_rows(
        db,
        _DOCUMENT + "WHERE subject IN (SELECT value FROM carray(:subjects)) AND (kind = :summary) = :summaries"
        " AND state <> 2 ORDER BY document_key",
        {"subjects": keys(subjects), "summary": SUMMARY_KIND, "summaries": int(summaries)},
    ):
        found.setdefault(row[7], []).append(Document(*row))
    return found


def load_documents(db: Connection, document_keys: Iterable[int]) -> list[Document]:
    return [
        Document(*row)
        for row in all_rows(
            db,
            _DOCUMENT + "WHERE document_key IN (SELECT value FROM carray(:keys)) ORDER BY document_key",
            {"keys": keys(document_keys)},
        )
    ]


def document_states(db: Connection, scope_pk: int, after: int, limit: int) -> list[tuple[int, int]]:
    """(number, state) of the documents of a scope in order, from the one after a number."""
    return [
        (row[0] & KEY_MASK, row[1])
        for row in all_rows(
            db,
            "SELECT document_key, state FROM document WHERE document_key > :after AND document_key <= :high"
            " ORDER BY document_key LIMIT :limit",
            {"after": (scope_pk << KEY_BITS) + after, "high": scope_pk << KEY_BITS | KEY_MASK, "limit": limit},
        )
    ]


def revision_text(db: Connection, node_key: int, revision: int) -> str | None:
    """The text of a node's revision; None if it is not kept any more."""
    value = one_value(
        db,
        "SELECT text FROM node WHERE node_key = :key AND revision = :revision UNION ALL"
        " SELECT text FROM node_history WHERE node_key = :key AND revision = :revision LIMIT 1",
        {"key": node_key, "revision": revision},
    )
    return None if value is None else str(value)


def may_have_text(db: Connection, record_keys: Iterable[int]) -> set[int]:
    """Those of the records that are to be in the index if they have a word, and that no index job is for."""
    return {
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM record WHERE record_key IN (SELECT value FROM carray(:keys)) AND state = 0"
            " AND payload_bytes > 0 AND (structure IS NULL OR json_extract(structure, '$.memory') IS NULL)"
            " AND NOT EXISTS (SELECT 1 FROM job WHERE job.kind = 4 AND job.subject = record_key)",
            {"keys": keys(record_keys)},
        )
    }


# ---- repair ----------------------------------------------------------------------------------------------------------


def put_entry(db: Connection, document: Document, words: str) -> None:
    """Put the words of a document into the index, which has none of it."""
    run(
        db,
        "INSERT INTO words (rowid, text, place) VALUES (:key, :words, :place)",
        {"key": document.document_key, "words": words, "place": document.place},
    )
    count_words(db, document.document_key, words)


def take_entry(db: Connection, document_key: int, instances: Iterable[Instance]) -> bool:
    """
    Take an entry out of the index by the words that stand in it.

    Returns:
        False where they are no text, so that nothing was done: the whole index has to be made anew.
    """
    columns: dict[str, dict[int, str]] = {"text": {}, "place": {}}
    for word, _number, column, at in instances:
        columns[column][at] = word
    if any(sorted(places) != list(range(len(places))) for places in columns.values()):
        return False
    text, place = (" ".join(places[at] for at in range(len(places))) for places in columns.values())
    run(
        db,
        "INSERT INTO words (words, rowid, text, place) VALUES ('delete', :key, :text, :place)",
        {"key": document_key, "text": text, "place": place},
    )
    return True


def empty_index(db: Connection) -> None:
    """Make the index anew, of every scope, without an entry: what is damaged cannot be emptied."""
    statement = str(one_value(db, _INDEX))
    run(db, "DROP TABLE words")
    run(db, statement)


def has_entry(db: Connection, document_key: int) -> bool:
    """Whether the index holds an entry of a document: each has a word for its kind."""
    every = "place : (" + " OR ".join(f"k{kind}" for kind in range(SUMMARY_KIND + 1)) + ")"
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM words WHERE words MATCH :every AND rowid = :key)",
            {"every": every, "key": document_key},
        )
    )


def set_document(db: Connection, document: Document) -> None:
    """Write a document's row as it should be; its entry is another matter."""
    fields: Row = (
        document.turn_pk,
        document.start_seq,
        document.end_seq,
        document.at,
        document.visible,
        document.replaced_clock,
        document.state,
        document.document_key,
    )
    names = ("turn", "start", "end", "at", "visible", "replaced", "state", "key")
    run(
        db,
        "UPDATE document SET turn_pk = :turn, start_seq = :start, end_seq = :end, at = :at, visible = :visible,"
        " replaced_clock = :replaced, state = :state WHERE document_key = :key",
        dict(zip(names, fields, strict=True)),
    )


def set_place(db: Connection, document_key: int, segment_pk: int | None, kind: int) -> None:
    """Under which segment and kind a document is filed; its entry says so, too."""
    run(
        db,
        "UPDATE document SET segment_pk = :segment, kind = :kind WHERE document_key = :key",
        {"key": document_key, "segment": segment_pk, "kind": kind},
    )


def hide_document(db: Connection, document_key: int) -> None:
    """A document of what is not there is found no more."""
    run(db, "UPDATE document SET state = 1 WHERE document_key = :key AND state = 0", {"key": document_key})


def count_words(db: Connection, document_key: int, words: str) -> None:
    """A document's length in ranking."""
    run(
        db,
        "UPDATE document SET word_count = :count WHERE document_key = :key",
        {"key": document_key, "count": words.count(" ") + 1 if words else 0},
    )


def born_at(db: Connection, node_key: int) -> int:
    """The clock at which a node's present revision was born."""
    return int(one_value(db, "SELECT born FROM node WHERE node_key = :key", {"key": node_key}))
