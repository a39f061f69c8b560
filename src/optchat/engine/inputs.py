"""
What a job is made of (§ 4, § 10): its sources for a summarizer, and the hash that its result is checked by.

Decides: nothing that core does not: it reads what a job names.
Refuses to know: leases, and what becomes of a result.

The hash is found without reading a record's text: it is checked inside the transaction that takes the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve, frozen

from optchat.core.compactor_view import Rooms, foreign_bytes
from optchat.core.errors import IntegrityError
from optchat.core.lineage import ordinal_of, owner_of
from optchat.core.records import spoken_text, to_bytes
from optchat.core.refs import KEY_BITS, Span, exact_cover, span_of_post_order
from optchat.core.render import encodable
from optchat.core.summarizing import SourceLine, SummaryJob
from optchat.core.terms import HitKind
from optchat.core.tree import Node, inputs_sha256, page_of
from optchat.engine.causal import earlier_lines, retrieved_lines
from optchat.engine.handle import Scope
from optchat.engine.origins import children_sha256, finished_turn, origin_of
from optchat.engine.trees import SessionTree, Tree, page_tree, session_tree, shared_tree, tree_of_key
from optchat.store import forest, ledger, payloads, publications, registry, turns
from optchat.store.forest import TreeRow
from optchat.store.ledger import RecordRow
from optchat.store.queue import JobRow
from optchat.store.rows import Connection, moment_of
from optchat.store.turns import TurnRow


@frozen
class Task:
    """A claimed job with its inputs: what to ask, and what must still be so when the answer comes."""

    job: JobRow
    summary: SummaryJob
    inputs: bytes
    epoch: int
    what: str  # the kinds under it, for a stand-in's label
    source_bytes: int
    start: str  # the source's first words, for the same
    foreign: tuple[int, ...] = ()  # publication keys whose text the request shows: recorded with the node


def record_of_leaf(db: Connection, job: JobRow) -> RecordRow:
    """
    The record that a leaf job is to summarise; IntegrityError where it is missing. One that was removed since the job
    was claimed is, too: its job is gone, and nothing of it is sent to anybody.
    """
    segment = registry.segment_of_tree(db, owner_of(job.subject))
    record = None if segment is None else ledger.load_record(db, segment[0] << KEY_BITS | job.position)
    if record is None or record.state:
        raise IntegrityError(f"job {job.job_pk} names a record that is missing; run verify() and restore a backup")
    return record


@define
class Spoken:
    """Spoken texts as bytes; the last one is kept, since the pages of one text are claimed together."""

    db: Connection
    _last: tuple[int, bytes] | None = None

    def bytes(self, record: RecordRow) -> bytes:
        if self._last is None or self._last[0] != record.record_key:
            payload = payloads.load_payload(self.db, record)
            self._last = record.record_key, to_bytes(spoken_text(record.kind, payload, record.structure))
        return self._last[1]


def clean(data: bytes) -> str:
    """Text for a summarizer: lone surrogates cannot be sent, and stand as U+FFFD."""
    return encodable(data.decode("utf-8", "surrogatepass"))


def load(scope: Scope, db: Connection, spoken: Spoken, job: JobRow, epoch: int, rooms: Rooms) -> Task:
    """
    A claimed job with its sources.

    Raises:
        IntegrityError: something that it is made of is missing.
    """
    if job.kind == "remake":
        return evolve(load(scope, db, spoken, as_first_made(scope, db, job), epoch, rooms), job=job)
    match job.kind:
        case "leaf":
            return _load_leaf(scope, db, spoken, job, epoch, rooms)
        case "publication":
            return _load_publication(scope, db, job, epoch, rooms)
        case _:
            span = span_of_post_order(ordinal_of(job.subject))
            if job.kind == "chunk" and span.count == 1:
                return _load_page(scope, db, spoken, job, epoch, span, rooms)
            return _load_merge(scope, db, job, epoch, span, rooms)


def as_first_made(scope: Scope, db: Connection, job: JobRow) -> JobRow:
    """A remake as the job that made its node at first: what it takes is the same. Any other job as it is."""
    if job.kind != "remake":
        return job
    origin = origin_of(scope, db, job.subject)
    return evolve(job, kind=origin.kind, subject=origin.subject, position=origin.position)


def inputs_now(scope: Scope, db: Connection, job: JobRow) -> bytes:
    """The hash of a job's inputs as they are now; no text of a record is read for it."""
    job = as_first_made(scope, db, job)
    match job.kind:
        case "leaf":
            record = record_of_leaf(db, job)
            chunks = forest.find_chunk_tree(db, record.record_key)
            if chunks is None or chunks.pages is None:
                return record_inputs(record)
            tree: Tree = page_tree(scope, chunks.tree_pk)
            return children_sha256(tree, _nodes(db, tree, exact_cover(0, chunks.pages)))
        case "publication":
            turn = _turn(db, job)
            tree = session_tree(scope, db, turn.segment_pk)
            return children_sha256(tree, _nodes(db, tree, finished_turn(turn).cover))
        case _:
            span = span_of_post_order(ordinal_of(job.subject))
            if job.kind == "chunk" and span.count == 1:
                return page_inputs(chunk_tree(db, owner_of(job.subject))[1], span.start)
            tree = tree_of_key(scope, db, job.subject)
            return children_sha256(tree, _nodes(db, tree, span.children))


def _nodes(db: Connection, tree: Tree, spans: Sequence[Span]) -> list[Node]:
    """Nodes that a job rests on, in order."""
    found = tree.nodes(db, spans)
    for span in spans:
        if span not in found:
            raise IntegrityError(f"node {span} of a job's inputs is missing; run verify() and restore a backup")
    return [found[span] for span in spans]


def _turn(db: Connection, job: JobRow) -> TurnRow:
    turn = turns.load_turn(db, job.subject)
    if turn is None or turn.removed:
        raise IntegrityError(f"job {job.job_pk} names a turn that is missing; run verify() and restore a backup")
    return turn


def _source(db: Connection, tree: Tree, node: Node) -> SourceLine:
    """A child as a source: a verbatim leaf speaks with its record's kind, anything else is a summary."""
    kind: HitKind = "summary"
    if isinstance(tree, SessionTree) and node.kind == "verbatim" and node.span.count == 1:
        record = ledger.load_record(db, tree.chain.record_key(node.span.start))
        kind = "summary" if record is None else record.kind
    return SourceLine(kind, node.text, moment_of(node.last_at), node.kind == "stand_in")


def _task(job: JobRow, summary: SummaryJob, inputs: bytes, epoch: int, what: str) -> Task:
    size = sum(len(to_bytes(source.text)) for source in summary.sources)
    return Task(job, summary, inputs, epoch, what, size, summary.sources[0].text[:400])


def _tree_of(scope: Scope, db: Connection, record: RecordRow) -> SessionTree:
    return session_tree(scope, db, record.segment)


def _explained(
    scope: Scope,
    db: Connection,
    task: Task,
    rooms: Rooms,
    tree: SessionTree,
    end: int,
    turn_pk: int | None = None,
    *,
    whole_turn: bool = False,
) -> Task:
    """
    A task with what explains it: the session's lines below ``end``, and what the turn had retrieved by then.

    Args:
        turn_pk: None: what was retrieved is no part of it.
        whole_turn: ``end`` is where the turn began, and all that it retrieved counts.
    """
    room = rooms.beside([len(to_bytes(source.text)) for source in task.summary.sources])
    context = earlier_lines(scope, db, tree, end, room)
    if turn_pk is None:
        return evolve(task, summary=evolve(task.summary, context=context))
    found = retrieved_lines(scope, db, turn_pk, foreign_bytes(room), None if whole_turn else end)
    return evolve(task, summary=evolve(task.summary, context=context, foreign=found.lines), foreign=found.publications)


def _load_leaf(scope: Scope, db: Connection, spoken: Spoken, job: JobRow, epoch: int, rooms: Rooms) -> Task:
    record = record_of_leaf(db, job)
    chunks = forest.find_chunk_tree(db, record.record_key)
    limit = scope.row.node_bytes
    spoke = record.kind == "user"
    if chunks is not None and chunks.pages is not None:
        tree = page_tree(scope, chunks.tree_pk)
        nodes = _nodes(db, tree, exact_cover(0, chunks.pages))
        lines = tuple(SourceLine("summary", node.text, record.time, node.kind == "stand_in") for node in nodes)
        summary = SummaryJob(purpose="leaf", sources=lines, limit_bytes=limit, user_spoke=spoke)
        task = evolve(
            _task(job, summary, children_sha256(tree, nodes), epoch, record.kind), source_bytes=record.payload_bytes
        )
    else:
        line = SourceLine(record.kind, clean(spoken.bytes(record)), record.time)
        summary = SummaryJob(purpose="leaf", sources=(line,), limit_bytes=limit, user_spoke=spoke)
        task = _task(job, summary, record_inputs(record), epoch, record.kind)
    return _explained(scope, db, task, rooms, _tree_of(scope, db, record), record.seq, record.turn_pk)


def record_inputs(record: RecordRow) -> bytes:
    """The hash of a leaf's inputs where they are the record itself."""
    return inputs_sha256([(record.record_key, 0, record.sha256)])


def page_inputs(record: RecordRow, page: int) -> bytes:
    """The hash of a page's inputs: the record, and which page it is."""
    return inputs_sha256([(record.record_key, page, record.sha256)])


def chunk_tree(db: Connection, tree_pk: int) -> tuple[TreeRow, RecordRow]:
    """A chunk tree, and the record whose payload its leaves are pages of; IntegrityError where either is missing."""
    tree = forest.load_tree(db, tree_pk)
    record = None if tree is None or tree.record_key is None else ledger.load_record(db, tree.record_key)
    if tree is None or record is None or record.state:
        raise IntegrityError(f"chunk tree {tree_pk} names a record that is missing; run verify() and restore a backup")
    return tree, record


def _load_page(scope: Scope, db: Connection, spoken: Spoken, job: JobRow, epoch: int, span: Span, rooms: Rooms) -> Task:
    tree, record = chunk_tree(db, owner_of(job.subject))
    assert tree.page_bytes is not None, "a chunk tree records its page size"
    page = page_of(spoken.bytes(record), tree.page_bytes, span.start)
    line = SourceLine(record.kind, clean(page), record.time)
    summary = SummaryJob(
        purpose="chunk", sources=(line,), limit_bytes=scope.row.node_bytes, user_spoke=record.kind == "user"
    )
    task = _task(job, summary, page_inputs(record, span.start), epoch, record.kind)
    return _explained(scope, db, task, rooms, _tree_of(scope, db, record), record.seq, record.turn_pk)


def _load_merge(scope: Scope, db: Connection, job: JobRow, epoch: int, span: Span, rooms: Rooms) -> Task:
    tree = tree_of_key(scope, db, job.subject)
    left, right = _nodes(db, tree, span.children)
    what = f"{span.count} {'publications' if tree == shared_tree(scope) else 'records'}"
    session, end = (tree, span.end) if isinstance(tree, SessionTree) else (None, 0)
    if job.kind == "chunk":
        record = chunk_tree(db, owner_of(job.subject))[1]
        spoke, what = record.kind == "user", record.kind
        session, end = _tree_of(scope, db, record), record.seq
    elif session is not None:
        spoke = _user_spoke(db, session, span.start, span.end)
    else:
        spoke = publications.user_asked(db, scope.pk << KEY_BITS | span.start, scope.pk << KEY_BITS | span.end)
    summary = SummaryJob(
        purpose="chunk" if job.kind == "chunk" else "merge",
        sources=(_source(db, tree, left), _source(db, tree, right)),
        limit_bytes=scope.row.node_bytes,
        children_escaped_bytes=left.escaped_bytes + right.escaped_bytes,
        user_spoke=spoke,
        failed=left.failed + right.failed,
        interrupted=left.interrupted + right.interrupted,
    )
    task = _task(job, summary, children_sha256(tree, (left, right)), epoch, what)
    # Publications that are neighbours are of different conversations: nothing that was said before explains them.
    return task if session is None else _explained(scope, db, task, rooms, session, end)


def _user_spoke(db: Connection, tree: SessionTree, start: int, end: int) -> bool:
    """
    Whether the user wrote any of the records ``[start, end)``.

    Their texts do not tell: a short result stands byte for byte in the nodes above it, whatever its lines begin with.
    """
    return any(
        ledger.user_spoke(db, part.segment << KEY_BITS | part.start, part.segment << KEY_BITS | part.end)
        for part in tree.chain.ranges(end, start)
    )


def _load_publication(scope: Scope, db: Connection, job: JobRow, epoch: int, rooms: Rooms) -> Task:
    turn = _turn(db, job)
    finished = finished_turn(turn)
    tree = session_tree(scope, db, turn.segment_pk)
    nodes = _nodes(db, tree, finished.cover)
    summary = SummaryJob(
        purpose="publication",
        sources=tuple(_source(db, tree, node) for node in nodes),
        limit_bytes=scope.row.node_bytes,
        outcome=turn.outcome,
        user_spoke=_user_spoke(db, tree, finished.start, finished.end),
    )
    what = f"a turn of {finished.end - finished.start} records"
    task = _task(job, summary, children_sha256(tree, nodes), epoch, what)
    return _explained(scope, db, task, rooms, tree, finished.start, turn.turn_pk, whole_turn=True)
