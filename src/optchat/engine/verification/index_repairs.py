"""
Repair of the search index: documents and their words, made again from the texts.

Decides: how each fault of the index is put right, and how much one transaction does.
Refuses to know: how it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from optchat.core.lineage import owner_of
from optchat.core.records import KIND_NUMBER, SUMMARY_KIND
from optchat.core.refs import KEY_MASK
from optchat.engine.documents import add_node, add_pieces
from optchat.engine.verification.checking import Check, steps
from optchat.engine.verification.index_checks import Sources, lacks, segment_of_node
from optchat.store import forest, ledger, scopes, shadow
from optchat.store.rows import Connection
from optchat.store.shadow import Document, Instance

_STEP: Final = 16  # documents a transaction: each may be 64 KiB of text


def rebuild(check: Check, _subjects: Sequence[int]) -> None:
    """The whole index anew, of every scope: it is one table. Searches find what is in it again, step by step."""
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        shadow.empty_index(db)
    after = -1
    while True:
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            rows = shadow.documents_of_file(db, after, _STEP)
            sources = Sources.of(scope, db, rows)
            for row in rows:
                if not shadow.has_entry(db, row.document_key):
                    _put(db, sources, row)
        if len(rows) < _STEP:
            return
        after = rows[-1].document_key


def _put(db: Connection, sources: Sources, row: Document) -> None:
    words = sources.words(db, row) if row.state == 0 else None
    if words is not None:
        shadow.put_entry(db, row, words)


def documents(check: Check, subjects: Sequence[int]) -> None:
    """Rows as what they describe has them."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            rows = shadow.load_documents(db, step)
            sources = Sources.of(scope, db, rows)
            for row in rows:
                wanted = sources.as_it_should_be(db, row)
                if row.state == 2:
                    continue
                if wanted is None:
                    shadow.hide_document(db, row.document_key)
                    continue
                shadow.set_document(db, wanted)
                if row.is_summary:
                    shadow.set_place(db, row.document_key, segment_of_node(scope, db, row.subject), SUMMARY_KIND)
                else:
                    record = sources.records[row.subject]
                    shadow.set_place(db, row.document_key, record.segment, KIND_NUMBER[record.kind])
                words = sources.words(db, row)
                if words is not None:
                    shadow.count_words(db, row.document_key, words)


def missing_entries(check: Check, subjects: Sequence[int]) -> None:
    """The words of documents that have none."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            rows = shadow.load_documents(db, step)
            sources = Sources.of(scope, db, rows)
            for row in rows:
                if not shadow.has_entry(db, row.document_key):
                    _put(db, sources, row)


def changed_entries(check: Check, subjects: Sequence[int]) -> None:
    """Taken out by the words that stand there, which alone takes all of them; and put in by the right ones."""
    standing = _standing(check, subjects)
    scope = check.scope
    whole = True
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            rows = shadow.load_documents(db, step)
            sources = Sources.of(scope, db, rows)
            for row in rows:
                if row.state == 0 and shadow.take_entry(db, row.document_key, standing[row.document_key]):
                    _put(db, sources, row)
                elif row.state == 0:
                    whole = False
    if not whole:
        rebuild(check, ())


def orphans(check: Check, subjects: Sequence[int]) -> None:
    """Words of documents that are not there, taken out by the words that stand there."""
    standing = _standing(check, subjects)
    scope = check.scope
    whole = True
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            living = {row.document_key for row in shadow.load_documents(db, step) if row.state != 2}
            for key in step:
                if key not in living:
                    whole = shadow.take_entry(db, key, standing[key]) and whole
    if not whole:
        rebuild(check, ())


def _standing(check: Check, subjects: Sequence[int]) -> dict[int, list[Instance]]:
    """The words that stand in the index for some documents: the index is read from end to end for them."""
    scope = check.scope
    found: dict[int, list[Instance]] = {key: [] for key in subjects}
    wanted = {key & KEY_MASK: key for key in subjects}
    position: shadow.Position | None = shadow.Position()
    while position is not None:
        with scope.store.read() as db:
            instances, position = shadow.read_entries(db, scope.pk, position)
        for each in instances:
            if each[1] in wanted:
                found[wanted[each[1]]].append(each)
    return found


def records(check: Check, subjects: Sequence[int]) -> None:
    """What is not in the index goes in under new numbers: pins from before do not find it, later ones do."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            rows = ledger.load_records(db, step)
            have = shadow.documents_of(db, step, summaries=False)
            wanted = shadow.may_have_text(db, step)
            for key, row in rows.items():
                missing = lacks(scope, db, row, have.get(key, ())) if key in wanted else []
                if not missing:
                    continue
                add_pieces(scope, db, row, missing)
            scopes.tick(db, scope.pk, scope.now())


def nodes(check: Check, subjects: Sequence[int]) -> None:
    """Summaries that have no document get one, under a new number."""
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            have = shadow.documents_of(db, step, summaries=True)
            sources = Sources.of(scope, db, ())
            for key, made in forest.load_made(db, step).items():
                if any(each.state == 0 and each.replaced_clock is None for each in have.get(key, ())):
                    continue
                segment = segment_of_node(scope, db, key)
                if segment is None and owner_of(key) != scope.row.shared_tree:
                    continue  # a page's summary is never shown
                node = made.node
                visible = sources.visible_of_node(db, key, None)
                born = 0 if node.revision == 0 else shadow.born_at(db, key)
                add_node(scope, db, key, node, segment_pk=segment, visible=visible, born_clock=born)
            scopes.tick(db, scope.pk, scope.now())
