"""
A scope in memory, filled row by row: for what looks at the search index alone.

It writes the rows that sealing and publishing would, and nothing else: no views, no jobs, no writer lock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files

import apsw
from attrs import define, field

from optchat.core.lineage import node_key
from optchat.core.policy import Policy
from optchat.core.records import KIND_NUMBER, SUMMARY_KIND, to_bytes
from optchat.core.refs import KEY_BITS, Span
from optchat.core.snapshots import Sight
from optchat.core.words import INDEXED_AT_ONCE_BYTES, pieces, words_of
from optchat.engine.handle import Caches, Scope, microseconds
from optchat.engine.sights import Reading, pinned_reading, session_reading, snapshot_of
from optchat.store import forest, publications, registry, scopes, search
from optchat.store.scopes import Moment, ScopeRow

START = microseconds(datetime(2026, 1, 1, tzinfo=UTC))


def connect(path: str = ":memory:") -> apsw.Connection:
    """A fresh database with the file format's tables."""
    db = apsw.Connection(path)
    db.pragma("cache_size", -65_536)
    db.execute(files("optchat.store").joinpath("sql/schema.sql").read_text(encoding="utf-8"))
    return db


@define
class Session:
    """One session's single generation; ``length`` records so far."""

    row: registry.SessionRow
    length: int = 0
    turns: int = 0


@define
class Corpus:
    """One scope of a database, and the writing of it."""

    db: apsw.Connection
    row: ScopeRow
    at: int = START
    publications: int = 0
    documents: int = 0
    clock: int = 0
    sessions: list[Session] = field(factory=list)
    removed: set[int] = field(factory=set)

    @staticmethod
    def create(db: apsw.Connection, name: str = "test") -> Corpus:
        row = scopes.create_scope(
            db,
            name=name,
            node_bytes=512,
            view_high_bytes=128_000,
            view_low_bytes=64_000,
            pretokenizer=1,
            leaf_format=1,
            at=START,
        )
        return Corpus(db, row)

    @property
    def scope(self) -> Scope:
        """A scope that only reads: it has no file to write."""
        return Scope(None, self.row, Policy(), None, Caches(), lambda: None)  # type: ignore[arg-type]  # never used

    def session(self) -> Session:
        number = len(self.sessions)
        row = registry.create_session(
            self.db,
            session_id=f"s{self.row.scope_pk:03}{number:04}",
            scope_pk=self.row.scope_pk,
            host="local",
            key=f"chat-{number}",
            isolated=False,
            title=None,
            project_pk=None,
            worktree=None,
            commit_id=None,
            at=self.at,
        )
        self.sessions.append(Session(row))
        return self.sessions[-1]

    def turn(
        self, session: Session, records: Sequence[tuple[str, str]], *, at: int | None = None
    ) -> tuple[int, int, int]:
        """Seal records into an ended turn; the answer is what ``publish`` takes."""
        turn_pk = self.begin(session)
        start = session.length
        for kind, text in records:
            self.record(session, turn_pk, kind, text, at=at)
        self.db.execute(
            "UPDATE turn SET state = 'ended', outcome = 'completed', end_seq = ?, ended_at = ? WHERE turn_pk = ?",
            (session.length, self.at, turn_pk),
        )
        return turn_pk, start, session.length

    def begin(self, session: Session) -> int:
        session.turns += 1
        self.db.execute(
            "INSERT INTO turn (turn_id, generation_pk, scope_pk, segment_pk, ordinal, state, has_request, start_seq,"
            " started_at) VALUES (?, ?, ?, ?, ?, 'open', 1, ?, ?)",
            (
                f"turn-{session.turns}",
                session.row.generation_pk,
                self.row.scope_pk,
                session.row.segment_pk,
                session.turns,
                session.length,
                self.at,
            ),
        )
        return self.db.last_insert_rowid()

    def record(self, session: Session, turn_pk: int, kind: str, text: str, *, at: int | None = None) -> int:
        """Seal one record and index it, a large one in pieces at once; its key. A call's text begins with its name."""
        key = session.row.segment_pk << KEY_BITS | session.length
        self.at += 1_000_000
        name, _, arguments = text.partition(" ") if kind == "tool_call" else ("", "", text)
        structure = {"tool_call": {"call_id": "c", "name": name}, "tool_result": {"call_id": "c"}}.get(kind)
        payload = to_bytes(arguments)
        self.db.execute(
            "INSERT INTO record (record_key, turn_pk, kind, message, part, at, utc_offset, sha256, payload_bytes,"
            " payload, structure, leaf_format) VALUES (?, ?, ?, ?, 0, ?, 0, x'', ?, ?, ?, 1)",
            (
                key,
                turn_pk,
                KIND_NUMBER[kind],
                session.length,
                at or self.at,
                len(payload),
                payload,
                json.dumps(structure) if structure else None,
            ),
        )
        session.length += 1
        self.index(session, turn_pk, kind, key, text, at=at)
        return key

    def index(self, session: Session, turn_pk: int, kind: str, key: int, text: str, *, at: int | None = None) -> None:
        whole = len(to_bytes(text)) <= INDEXED_AT_ONCE_BYTES
        seq = key & ((1 << KEY_BITS) - 1)
        for start, end in [(0, None)] if whole else pieces(text):
            said = text if end is None else to_bytes(text)[start:end].decode("utf-8", "surrogatepass")
            self._insert(
                kind=KIND_NUMBER[kind],
                segment_pk=session.row.segment_pk,
                start_seq=seq,
                end_seq=seq + 1,
                subject=key,
                at=at or self.at,
                words=words_of(said),
                start_byte=start,
                end_byte=end,
                turn_pk=turn_pk,
                visible=search.visible_through(self.db, key),
            )

    def _insert(self, **fields: object) -> None:
        document = search.NewDocument(
            document_key=(self.row.scope_pk << KEY_BITS) + self.documents, pretokenizer=1, **fields
        )  # type: ignore[arg-type]  # each caller's fields are a NewDocument's
        search.insert_documents(self.db, [document])
        self.documents += 1
        self.db.execute("UPDATE scope SET next_document = ? WHERE scope_pk = ?", (self.documents, self.row.scope_pk))

    def node(self, session: Session, span: Span, text: str, *, visible: int | None = None) -> None:
        """A summary of a session's records, indexed."""
        tree = registry.load_chain(self.db, session.row.segment_pk).own.tree
        self._node(node_key(tree, span), span, text, session.row.segment_pk, visible)

    def shared_node(self, span: Span, text: str) -> None:
        """A summary of publications, indexed."""
        self._node(node_key(self.row.shared_tree, span), span, text, None, span.end - 1)

    def _node(self, key: int, span: Span, text: str, segment_pk: int | None, visible: int | None) -> None:
        self.db.execute(
            "INSERT OR IGNORE INTO recipe (scope_pk, kind, model, prompt_version, format, parameters)"
            " VALUES (?, 'summary', 'm', 1, 1, '')",
            (self.row.scope_pk,),
        )
        recipe = self.db.execute("SELECT recipe_pk FROM recipe WHERE scope_pk = ?", (self.row.scope_pk,)).get
        self.db.execute(
            "INSERT INTO node (node_key, revision, kind, text, escaped_bytes, recipe_pk, inputs_sha256, born, first_at,"
            " last_at) VALUES (?, 0, ?, ?, ?, ?, x'', ?, ?, ?)",
            (key, forest.NODE_KINDS.index("summary"), text, len(text), recipe, self.clock, self.at, self.at),
        )
        self._insert(
            kind=SUMMARY_KIND,
            segment_pk=segment_pk,
            start_seq=span.start,
            end_seq=span.end,
            subject=key,
            at=self.at,
            words=words_of(text),
            visible=visible,
        )

    def publish(self, session: Session, turn: tuple[int, int, int]) -> int:
        """Publish an ended turn; its number."""
        turn_pk, start, end = turn
        number, self.publications, self.clock = self.publications, self.publications + 1, self.clock + 1
        key = self.row.scope_pk << KEY_BITS | number
        publications.insert_publication(
            self.db,
            publication_key=key,
            turn_pk=turn_pk,
            generation_pk=session.row.generation_pk,
            start_seq=start,
            end_seq=end,
            outcome="completed",
            completed_at=self.at,
            published_at=self.at,
            born=self.clock,
        )
        self.db.execute("UPDATE turn SET publication_key = ? WHERE turn_pk = ?", (key, turn_pk))
        first = publications.first_published_start(self.db, session.row.generation_pk)
        search.publish_documents(self.db, session.row.segment_pk, start, end, number, start if first is None else first)
        return number

    def remove(self, number: int) -> None:
        """As delete and revoke do: invisible to all others, at once."""
        self.removed.add(number)
        self.db.execute(
            "UPDATE publication SET state = 1 WHERE publication_key = ?", (self.row.scope_pk << KEY_BITS | number,)
        )

    def retire(self, number: int) -> None:
        """As rewind does: invisible to pins from now on."""
        self.clock += 1
        self.db.execute(
            "UPDATE publication SET retired_clock = ? WHERE publication_key = ?",
            (self.clock, self.row.scope_pk << KEY_BITS | number),
        )

    def moment(self) -> Moment:
        self.db.execute(
            "UPDATE scope SET next_document = ?, next_publication = ?, clock = ? WHERE scope_pk = ?",
            (self.documents, self.publications, self.clock, self.row.scope_pk),
        )
        return Moment(self.clock, self.publications, self.documents, 1, 0, self.at)

    def pin(self) -> Reading:
        """What a new session sees now."""
        return pinned_reading(self.scope, self.moment())

    def as_session(self, session: Session, moment: Moment | None = None) -> Reading:
        """What a session sees: itself whole, others as of a moment."""
        chain = registry.load_chain(self.db, session.row.segment_pk)
        return session_reading(self.scope, moment or self.moment(), session.row, chain, session.length)

    def as_owner(self) -> Reading:
        """What the memory's owner sees."""
        moment = self.moment()
        sight = Sight(self.row.scope_pk, moment.clock, moment.publications, 1 << KEY_BITS, owner=True)
        return Reading(self.scope, snapshot_of(moment), sight)
