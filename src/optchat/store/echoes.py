"""
Which texts hold a word: what is looked for when the records that said it are removed.

Decides: how a word is found in the index, among what was said and among summaries.
Refuses to know: which words are looked for, and who may see a text.
"""

from __future__ import annotations

from optchat.core.records import SUMMARY_KIND
from optchat.store.rows import Connection, all_rows


def is_said(db: Connection, segment_pk: int, word: str) -> bool:
    """Whether any record of a segment that is not hidden says a word."""
    return bool(_with_word(db, f"s{segment_pk}) NOT place : (k{SUMMARY_KIND}", word, limit=1))


def summaries_with(db: Connection, segment_pk: int | None, word: str) -> list[int]:
    """The nodes of a segment (None: of the shared tree) whose present text has a word."""
    place = "" if segment_pk is None else f"s{segment_pk} AND "
    return _with_word(db, f"{place}k{SUMMARY_KIND}", word, limit=-1, segment=segment_pk)


def _with_word(db: Connection, places: str, word: str, *, limit: int, segment: int | None = -1) -> list[int]:
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT d.subject FROM words CROSS JOIN document AS d ON d.document_key = words.rowid"
            " WHERE words MATCH :match AND d.state = 0 AND d.replaced_clock IS NULL"
            " AND (:any OR d.segment_pk IS :segment) LIMIT :limit",
            {
                "match": f'text : "{word}" AND place : ({places})',
                "any": int(segment == -1),
                "segment": segment,
                "limit": limit,
            },
        )
    ]
