"""
The search index against a shadow of it.

Decides: what document each text must have, who may find it, and whether its words are those of its text.
Refuses to know: how an entry is made anew.

The index is read once, in steps (:mod:`optchat.store.shadow` says why that is as good as one moment); then every
document's text is tokenized again beside it. Only documents that were there when the reading began are judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import define, evolve, field

from optchat.core.errors import IntegrityError, OptchatError
from optchat.core.lineage import owner_of
from optchat.core.records import KIND_NUMBER, spoken_text, to_bytes
from optchat.core.refs import KEY_BITS, KEY_MASK, Span, publication_ref
from optchat.core.words import INDEXED_AT_ONCE_BYTES, pieces, words_of
from optchat.engine.handle import Scope
from optchat.engine.inputs import clean
from optchat.engine.verification.checking import STEP, Check, Segment, record_ref, segment_ref, span_of
from optchat.store import checks, forest, ledger, payloads, publications, registry, shadow, turns
from optchat.store.forest import MadeRow
from optchat.store.ledger import RecordRow
from optchat.store.rows import Connection
from optchat.store.shadow import Document

_DOCUMENTS_A_STEP = 200


@define
class Index:
    """What stands in the index, by document number: its document's state before, and the sum of its words."""

    states: dict[int, int] = field(factory=dict[int, int])
    sums: dict[int, int] = field(factory=dict[int, int])
    readable: bool = True


def check_index(check: Check) -> None:
    """Every document against its source, its words against the index, and the index against the documents."""
    index = _read(check)
    if not index.readable:
        return
    _documents(check, index)
    _orphans(check, index)
    for segment in check.segments:
        _records(check, segment)
        _nodes(check, segment.tree, segment.segment)
    _nodes(check, check.scope.row.shared_tree, None)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read(check: Check) -> Index:
    index, scope = Index(), check.scope
    after = -1
    while True:
        rows: list[tuple[int, int]] = []
        with check.reading() as db:
            rows = shadow.document_states(db, scope.pk, after, 10 * STEP)
            index.states.update(rows)
        if len(rows) < 10 * STEP:
            break
        after = rows[-1][0]
    position: shadow.Position | None = shadow.Position()
    try:
        while position is not None:
            with scope.store.read() as db:
                instances, position = shadow.read_entries(db, scope.pk, position)
                shadow.add_up(index.sums, instances)
    except OptchatError as error:
        check.fault("INDEX", None, str(error).partition("; run")[0])
        index.readable = False
    return index


def _documents(check: Check, index: Index) -> None:
    """Each document's row against its source, and its entry against its text."""
    scope, after = check.scope, -1
    with check.reading() as db:
        beside = shadow.shadow_of(db)
    try:
        while True:
            rows: list[Document] = []
            with check.reading() as db:
                rows = shadow.documents_after(db, scope.pk, after, _DOCUMENTS_A_STEP)
                sources = Sources.of(scope, db, rows)
                texts: list[tuple[int, str, str]] = []
                for row in rows:
                    _document(check, db, sources, row)
                    if row.state == 0 and row.number in index.states:
                        words = sources.words(db, row)
                        if words is not None:
                            texts.append((row.number, words, row.place))
                expected = beside.sums(texts)
                for number, words, _place in texts:
                    _entry(check, sources.by_number[number], words, index.sums.get(number), expected.get(number, 0))
                check.count("documents", len(rows))
            if len(rows) < _DOCUMENTS_A_STEP:
                return
            after = rows[-1].number
    finally:
        beside.close()


def _entry(check: Check, row: Document, words: str, found: int | None, expected: int) -> None:
    ref = name_of(row)
    if found is None:
        check.fault("ENTRY_MISSING", ref, f"document {row.number} has no words in the index", row.document_key)
    elif found != expected:
        what = f"document {row.number} has other words in the index than its text"
        check.fault("ENTRY_CHANGED", ref, what, row.document_key)
    elif row.word_count != (words.count(" ") + 1 if words else 0):
        what = f"document {row.number} says that it has {row.word_count} words"
        check.fault("DOCUMENT_CHANGED", ref, what, row.document_key)


def name_of(row: Document) -> str | None:
    """What a document is called where its session need not be looked up."""
    if row.segment_pk is None:
        return publication_ref(row.start_seq, row.end_seq - row.start_seq)
    return f"document {row.number}"


def _orphans(check: Check, index: Index) -> None:
    """Words of documents that are not there, or count as deleted."""
    low = check.scope.pk << KEY_BITS
    gone = [number for number in index.sums if index.states.get(number) == 2]
    unknown = [number for number in index.sums if number not in index.states]
    for start in range(0, len(unknown), STEP):
        step = [low | number for number in unknown[start : start + STEP]]
        with check.reading() as db:  # made since the reading began, perhaps
            there = {row.document_key for row in shadow.load_documents(db, step)}
            gone += [key & KEY_MASK for key in step if key not in there]
    for number in sorted(gone):
        what = f"the index has words of document {number}, which is not there"
        check.fault("ENTRY_ORPHAN", None, what, low | number)


# ---- documents and what they describe --------------------------------------------------------------------------------


@define
class Sources:
    """What some documents describe, read together."""

    scope: Scope
    by_number: dict[int, Document]
    records: Mapping[int, RecordRow]
    nodes: Mapping[int, MadeRow]
    published: Mapping[int, checks.TurnPublications]
    _firsts: dict[int, int | None] = field(factory=dict[int, "int | None"])
    _spoken: tuple[int, bytes] | None = None

    @classmethod
    def of(cls, scope: Scope, db: Connection, rows: Iterable[Document]) -> Sources:
        by_number = {row.number: row for row in rows}
        records = ledger.load_records(db, [row.subject for row in by_number.values() if not row.is_summary])
        nodes = forest.load_made(db, [row.subject for row in by_number.values() if row.is_summary])
        published = checks.publications_of_turns(db, {record.turn_pk for record in records.values()})
        return cls(scope, by_number, records, nodes, published)

    def words(self, db: Connection, row: Document) -> str | None:
        """The words of a document's text, by its own version; None if the text is not there."""
        if row.is_summary:
            text = shadow.revision_text(db, row.subject, row.revision)
            return None if text is None else words_of(text, row.pretokenizer)
        record = self.records.get(row.subject)
        if record is None or record.state:
            return None
        try:
            data = self._bytes(db, record)
        except IntegrityError:
            return None  # a fault of its own
        if row.end_byte is None:
            return words_of(data.decode("utf-8", "surrogatepass"), row.pretokenizer)
        return words_of(clean(data[row.start_byte : row.end_byte]), row.pretokenizer)

    def _bytes(self, db: Connection, record: RecordRow) -> bytes:
        if self._spoken is None or self._spoken[0] != record.record_key:
            payload = payloads.load_payload(db, record)
            self._spoken = record.record_key, to_bytes(spoken_text(record.kind, payload, record.structure))
        return self._spoken[1]

    def as_it_should_be(self, db: Connection, row: Document) -> Document | None:
        """A document's row by what it describes; None where that is not there."""
        return self._of_node(db, row) if row.is_summary else self._of_record(row)

    def _of_record(self, row: Document) -> Document | None:
        record = self.records.get(row.subject)
        if record is None:
            return None
        turn = self.published.get(record.turn_pk)
        return evolve(
            row,
            turn_pk=record.turn_pk,
            start_seq=record.seq,
            end_seq=record.seq + 1,
            at=record.at,
            state=int(record.state > 0),
            visible=row.visible if turn is None else _visible_by(turn.live, turn.others, row.visible),
        )

    def _of_node(self, db: Connection, row: Document) -> Document | None:
        made = self.nodes.get(row.subject)
        if made is None:
            return None
        current = made.recipe_kind == "summary" and made.node.revision == row.revision
        if not current:  # the text of an earlier revision, for pins from before; or what a removal took
            replaced = row.replaced_clock if row.state or row.replaced_clock is not None else self.clock_of(db, made)
            return evolve(row, replaced_clock=replaced)
        span = made.node.span
        return evolve(
            row,
            start_seq=span.start,
            end_seq=span.end,
            at=made.node.last_at,
            replaced_clock=None,
            state=0,
            visible=self.visible_of_node(db, row.subject, row.visible),
        )

    @staticmethod
    def clock_of(db: Connection, made: MadeRow) -> int:
        """Since when a node's present revision stands in place of the one before."""
        return shadow.born_at(db, made.node_key)

    def visible_of_node(self, db: Connection, key: int, now: int | None) -> int | None:
        """
        The publication that makes a node's document foreign-visible: the one of its last record, if all are published.

        Args:
            now: what it says; the number of a publication that was retired or removed since is as good as none.
        """
        tree, span = owner_of(key), span_of(key)
        if tree == self.scope.row.shared_tree:
            low = self.scope.pk << KEY_BITS
            return publications.last_live(db, low | span.start, low | span.end)
        segment = registry.segment_of_tree(db, tree)
        turn = None if segment is None else turns.turn_at(db, segment[0], span.end - 1)
        if turn is None:
            return None
        found = checks.publications_of_turns(db, [turn.turn_pk])[turn.turn_pk]
        first = self._first(db, turn.generation_pk)
        live = found.live if first is not None and first <= span.start else ()
        return _visible_by(live, found.others, now)

    def _first(self, db: Connection, generation_pk: int) -> int | None:
        if generation_pk not in self._firsts:
            self._firsts[generation_pk] = publications.first_published_start(db, generation_pk)
        return self._firsts[generation_pk]


def _visible_by(live: Sequence[int], others: Sequence[int], now: int | None) -> int | None:
    if live:
        return live[-1]
    return now if now in others else None


def _document(check: Check, db: Connection, sources: Sources, row: Document) -> None:
    if row.state == 2:
        return
    ref = name_of(row)
    wanted = sources.as_it_should_be(db, row)
    if wanted is None:
        if row.state == 0:
            what = f"document {row.number} describes what is not there"
            check.fault("DOCUMENT_STATE", ref, what, row.document_key)
        return
    if (wanted.state, wanted.replaced_clock is None) != (row.state, row.replaced_clock is None):
        what = f"document {row.number} is {'found' if row.state == 0 else 'hidden'}, and its source is not so"
        check.fault("DOCUMENT_STATE", ref, what, row.document_key)
    if wanted.visible != row.visible and row.state == 0:
        what = f"document {row.number} is visible by publication {row.visible}, and should be by {wanted.visible}"
        check.fault("DOCUMENT_VISIBLE", ref, what, row.document_key)
    if evolve(wanted, visible=None, state=0, replaced_clock=None) != evolve(
        row, visible=None, state=0, replaced_clock=None
    ) or not _right_place(sources, db, row):
        check.fault("DOCUMENT_CHANGED", ref, f"document {row.number} does not describe its source", row.document_key)


def _right_place(sources: Sources, db: Connection, row: Document) -> bool:
    """Whether a document is filed under its source's segment and kind: what its entry says too."""
    if not row.is_summary:
        record = sources.records[row.subject]
        return (row.segment_pk, row.kind) == (record.segment, KIND_NUMBER[record.kind])
    return row.segment_pk == segment_of_node(sources.scope, db, row.subject)


def segment_of_node(scope: Scope, db: Connection, key: int) -> int | None:
    """The segment under which a node's document is filed; None: the shared tree."""
    tree = owner_of(key)
    found = None if tree == scope.row.shared_tree else registry.segment_of_tree(db, tree)
    return None if found is None else found[0]


# ---- what should have a document -------------------------------------------------------------------------------------


def cuts_of(record: RecordRow, text: str) -> list[tuple[int, int | None]]:
    """The pieces as which a record is indexed: (first byte, end), the end None for a text that is one document."""
    if record.payload_bytes <= INDEXED_AT_ONCE_BYTES:
        return [(0, None)]
    return [(start, end) for start, end in pieces(text)]


def _records(check: Check, segment: Segment) -> None:
    low, high = segment.segment << KEY_BITS | segment.base_length, segment.segment << KEY_BITS | KEY_MASK
    while True:
        rows: list[RecordRow] = []
        with check.reading() as db:
            rows = ledger.records_between(db, low, high, limit=STEP)
            wanted = shadow.may_have_text(db, [row.record_key for row in rows])
            have = shadow.documents_of(db, wanted, summaries=False)
            for row in rows:
                if row.record_key in wanted and lacks(check.scope, db, row, have.get(row.record_key, ())):
                    what = "a part of the record is not in the search index, and no job will index it"
                    check.fault("UNINDEXED", record_ref(db, row.record_key), what, row.record_key)
        if len(rows) < STEP:
            return
        low = rows[-1].record_key + 1


def lacks(scope: Scope, db: Connection, row: RecordRow, have: Sequence[Document]) -> list[tuple[int, int | None, str]]:
    """The pieces of a record that have words and no document: (first byte, end, words)."""
    if row.payload_bytes <= INDEXED_AT_ONCE_BYTES and have:
        return []
    try:
        text = payloads.load_spoken(db, [row.record_key]).get(row.record_key, "")
    except IntegrityError:
        return []  # a fault of its own
    there = {document.start_byte for document in have}
    data = to_bytes(text)
    found: list[tuple[int, int | None, str]] = []
    for start, end in cuts_of(row, text):
        if start not in there:
            words = words_of(text if end is None else clean(data[start:end]), scope.row.pretokenizer)
            if words or end is not None:
                found.append((start, end, words))
    return found


def _nodes(check: Check, tree: int, segment_pk: int | None) -> None:
    after = -1
    with check.reading() as db:
        recipes = summary_recipes(check.scope, db)
    while True:
        rows: list[tuple[int, int]] = []
        with check.reading() as db:
            rows = forest.recipes_of_tree(db, tree, after=after, limit=STEP)
            wanted = [key for key, recipe in rows if recipe in recipes]
            have = shadow.documents_of(db, wanted, summaries=True)
            for key in wanted:
                if not any(each.state == 0 and each.replaced_clock is None for each in have.get(key, ())):
                    span = span_of(key)
                    ref = _node_ref(db, segment_pk, span)
                    check.fault("NODE_UNINDEXED", ref, "the summary is not in the search index", key)
        if len(rows) < STEP:
            return
        after = rows[-1][0]


def _node_ref(db: Connection, segment_pk: int | None, span: Span) -> str:
    if segment_pk is None:
        return publication_ref(span.start, span.count)
    return segment_ref(db, segment_pk, span)


def summary_recipes(scope: Scope, db: Connection) -> frozenset[int]:
    """The recipes by which a summarizer's texts were made, whatever their counters say."""
    return frozenset(checks.recipes_of_kind(db, scope.pk, "summary"))
