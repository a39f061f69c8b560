"""
Documents that come after their text was stored: pieces of large records, and nodes.

Decides: what a row of the index says of each. Both are numbered here, so that pins from before do not find them.
Refuses to know: why they come now: by a job, by a landing, or by a repair.
"""

from __future__ import annotations

from collections.abc import Sequence

from optchat.core.records import KIND_NUMBER, SUMMARY_KIND
from optchat.core.refs import KEY_BITS
from optchat.core.tree import Node
from optchat.core.words import words_of
from optchat.engine.handle import Scope
from optchat.store import scopes, search
from optchat.store.ledger import RecordRow
from optchat.store.rows import Connection


def add_pieces(scope: Scope, db: Connection, record: RecordRow, ready: Sequence[tuple[int, int | None, str]]) -> None:
    """
    Make pieces of a record's text searchable, in the caller's transaction.

    Args:
        ready: (start, end, words) of each; an end of None is the whole text.
    """
    first = scopes.take_document_numbers(db, scope.pk, len(ready))
    visible = search.visible_through(db, record.record_key)
    search.insert_documents(
        db,
        [
            search.NewDocument(
                document_key=scope.pk << KEY_BITS | first + number,
                pretokenizer=scope.row.pretokenizer,
                kind=KIND_NUMBER[record.kind],
                segment_pk=record.segment,
                turn_pk=record.turn_pk,
                start_seq=record.seq,
                end_seq=record.seq + 1,
                subject=record.record_key,
                start_byte=start,
                end_byte=end,
                at=record.at,
                visible=visible,
                words=words,
            )
            for number, (start, end, words) in enumerate(ready)
        ],
    )


def add_node(
    scope: Scope, db: Connection, key: int, node: Node, *, segment_pk: int | None, visible: int | None, born_clock: int
) -> None:
    """
    Make a summarizer's text searchable, in the caller's transaction.

    Args:
        segment_pk: None: a node of the shared tree. visible: the number of the publication that makes it visible to
            others. born_clock: of a later revision: searches under an earlier clock do not find it.
    """
    number = scopes.take_document_numbers(db, scope.pk, 1)
    search.insert_documents(
        db,
        [
            search.NewDocument(
                document_key=scope.pk << KEY_BITS | number,
                pretokenizer=scope.row.pretokenizer,
                kind=SUMMARY_KIND,
                segment_pk=segment_pk,
                start_seq=node.span.start,
                end_seq=node.span.end,
                subject=key,
                at=node.last_at,
                visible=visible,
                words=words_of(node.text, scope.row.pretokenizer),
                born_clock=born_clock,
                revision=node.revision,
            )
        ],
    )
