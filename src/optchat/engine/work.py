"""
The queue's use cases (§ 9, § 10): claim, load, commit, fail.

Decides: nothing that core does not: a result is taken only if job, input hashes, fence and epoch still hold.
Refuses to know: models. What happens between loading and committing is the compactor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.publications import leaf_of
from optchat.core.records import KIND_NUMBER, spoken_text, to_bytes
from optchat.core.refs import KEY_BITS, Span, completed_by, exact_cover, span_of_post_order
from optchat.core.render import escaped_size
from optchat.core.summarizing import SourceLine, SummaryJob
from optchat.core.terms import HitKind
from optchat.core.tree import (
    Node,
    Recipe,
    inputs_sha256,
    merged,
    page_of,
    page_starts,
    stand_in_text,
)
from optchat.core.words import pieces, words_of
from optchat.engine.handle import Scope
from optchat.engine.landing import Landing, children_sha256, finished_turn
from optchat.engine.trees import PlainTree, SessionTree, Tree, session_tree, shared_tree, tree_of_key
from optchat.store import forest, ledger, payloads, queue, registry, scopes, search, turns
from optchat.store.forest import TreeRow
from optchat.store.ledger import RecordRow
from optchat.store.queue import JobRow
from optchat.store.rows import Connection, moment_of

_INDEX_PIECES: Final = 4  # of 64 KiB, a transaction: no other writer waits for a 50 MB text


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


@frozen
class Claimed:
    """What a claim gave: tasks to summarise, and index jobs, which need no summarizer."""

    tasks: tuple[Task, ...]
    indexing: tuple[JobRow, ...]
    other_summarizer: str | None  # set where another summarizer is this scope's, so that this one claims nothing

    @property
    def empty(self) -> bool:
        return not self.tasks and not self.indexing


def claim(scope: Scope, *, summarizer: str, is_default: bool, window_tokens: int, limit: int) -> Claimed:
    """
    Lease the next jobs, and load their inputs.

    The embedded default never names the scope's summarizer; the first other to claim a job does. From then on the
    default, or a third, claims no summary here. A leaf whose source is larger than the window becomes the pages of a
    chunk tree.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        now = scope.now()
        named = scopes.scope_summarizer(db, scope.pk)
        mine = named == summarizer or named is None
        until = now + int(scope.policy.lease_seconds * 1_000_000)
        jobs = queue.claim(
            db, scope.pk, owner_pk=scope.store.owner_pk, now=now, lease_until=until, limit=limit, summaries=mine
        )
        if named is None and not is_default and any(job.kind != "index" for job in jobs):
            scopes.name_summarizer(db, scope.pk, summarizer)
        epoch = scopes.scope_counters(db, scope.pk)[0]
        page_bytes = page_size(window_tokens)
        tasks: list[Task] = []
        landing = Landing(scope, db, now)
        for job in jobs:
            if job.kind == "index":
                continue
            if job.kind == "leaf" and _expanded(landing, job, page_bytes):
                continue
            tasks.append(_load(scope, db, job, epoch))
        landing.finish()
    landing.after_commit()
    indexing = tuple(job for job in jobs if job.kind == "index")
    return Claimed(tuple(tasks), indexing, None if mine else named)


def page_size(window_tokens: int) -> int:
    """
    Bytes of a chunk page for a window: half of it, since no token is less than a byte, and the prompt needs room
    too.
    """
    return max(1024, window_tokens // 2)


def _expanded(landing: Landing, job: JobRow, page_bytes: int) -> bool:
    """
    Turn a leaf job whose source is too large into a chunk tree over the full payload, deterministic and recorded (§
    4).
    """
    db, scope = landing.db, landing.scope
    record = _record_of_leaf(db, job)
    if record.payload_bytes <= page_bytes or forest.find_chunk_tree(db, record.record_key) is not None:
        return False
    data = _spoken_bytes(db, record)
    pages = len(page_starts(data, page_bytes))
    if pages < 2:
        return False
    tree = forest.create_chunk_tree(db, scope.pk, record.record_key, page_bytes, pages)
    for page in range(pages):
        queue.add_job(
            db,
            scope_pk=scope.pk,
            kind="chunk",
            subject=node_key(tree, Span(page, 1)),
            at=landing.at,
            admission_tree=tree,
            position=page,
            admitted=page < scope.policy.leaf_window,
        )
        for span in completed_by(page):
            needs = [node_key(tree, child) for child in span.children]
            queue.add_job(db, scope_pk=scope.pk, kind="chunk", subject=node_key(tree, span), needs=needs, at=landing.at)
    queue.expand(db, job, [node_key(tree, span) for span in exact_cover(0, pages)])
    landing.jobs_added()
    return True


def _record_of_leaf(db: Connection, job: JobRow) -> RecordRow:
    segment = registry.segment_of_tree(db, owner_of(job.subject))
    record = None if segment is None else ledger.load_record(db, segment[0] << KEY_BITS | job.position)
    if record is None:
        raise IntegrityError(f"job {job.job_pk} names a record that is missing; run verify() and restore a backup")
    return record


def _spoken_bytes(db: Connection, record: RecordRow) -> bytes:
    return to_bytes(spoken_text(record.kind, payloads.load_payload(db, record), record.structure))


def _clean(data: bytes) -> str:
    """Text for a summarizer: lone surrogates cannot be sent, and stand as U+FFFD."""
    return data.decode("utf-8", "surrogatepass").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


# ---- inputs ----------------------------------------------------------------------------------------------------------


def _load(scope: Scope, db: Connection, job: JobRow, epoch: int) -> Task:
    match job.kind:
        case "leaf":
            return _load_leaf(scope, db, job, epoch)
        case "publication":
            return _load_publication(scope, db, job, epoch)
        case _:
            span = span_of_post_order(ordinal_of(job.subject))
            if job.kind == "chunk" and span.count == 1:
                return _load_page(scope, db, job, epoch, span)
            return _load_merge(scope, db, job, epoch, span)


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


def _load_leaf(scope: Scope, db: Connection, job: JobRow, epoch: int) -> Task:
    record = _record_of_leaf(db, job)
    chunks = forest.find_chunk_tree(db, record.record_key)
    limit = scope.row.node_bytes
    spoke = record.kind == "user"
    if chunks is not None and chunks.pages is not None:
        tree = PlainTree(chunks.tree_pk)
        cover = exact_cover(0, chunks.pages)
        found = tree.nodes(db, cover)
        nodes = [found[span] for span in cover]
        lines = tuple(SourceLine("summary", node.text, record.time, node.kind == "stand_in") for node in nodes)
        summary = SummaryJob(purpose="leaf", sources=lines, limit_bytes=limit, user_spoke=spoke)
        return evolve(
            _task(job, summary, children_sha256(tree, nodes), epoch, record.kind), source_bytes=record.payload_bytes
        )
    line = SourceLine(record.kind, _clean(_spoken_bytes(db, record)), record.time)
    summary = SummaryJob(purpose="leaf", sources=(line,), limit_bytes=limit, user_spoke=spoke)
    return _task(job, summary, record_inputs(record), epoch, record.kind)


def record_inputs(record: RecordRow) -> bytes:
    """The hash of a leaf's inputs where they are the record itself."""
    return inputs_sha256([(record.record_key, 0, record.sha256)])


def _chunks(db: Connection, tree_pk: int) -> tuple[TreeRow, RecordRow]:
    tree = forest.load_tree(db, tree_pk)
    record = None if tree is None or tree.record_key is None else ledger.load_record(db, tree.record_key)
    if tree is None or record is None:
        raise IntegrityError(f"chunk tree {tree_pk} names a record that is missing; run verify() and restore a backup")
    return tree, record


def _load_page(scope: Scope, db: Connection, job: JobRow, epoch: int, span: Span) -> Task:
    tree, record = _chunks(db, owner_of(job.subject))
    assert tree.page_bytes is not None, "a chunk tree records its page size"
    page = page_of(_spoken_bytes(db, record), tree.page_bytes, span.start)
    line = SourceLine(record.kind, _clean(page), record.time)
    summary = SummaryJob(
        purpose="chunk", sources=(line,), limit_bytes=scope.row.node_bytes, user_spoke=record.kind == "user"
    )
    return _task(job, summary, inputs_sha256([(record.record_key, span.start, record.sha256)]), epoch, record.kind)


def _load_merge(scope: Scope, db: Connection, job: JobRow, epoch: int, span: Span) -> Task:
    tree = tree_of_key(scope, db, job.subject)
    found = tree.nodes(db, span.children)
    left, right = (found[child] for child in span.children)
    what = f"{span.count} {'publications' if tree == shared_tree(scope) else 'records'}"
    spoke: bool | None = None
    if job.kind == "chunk":
        record = _chunks(db, owner_of(job.subject))[1]
        spoke, what = record.kind == "user", record.kind
    summary = SummaryJob(
        purpose="chunk" if job.kind == "chunk" else "merge",
        sources=(_source(db, tree, left), _source(db, tree, right)),
        limit_bytes=scope.row.node_bytes,
        children_escaped_bytes=left.escaped_bytes + right.escaped_bytes,
        user_spoke=spoke,
    )
    return _task(job, summary, children_sha256(tree, (left, right)), epoch, what)


def _load_publication(scope: Scope, db: Connection, job: JobRow, epoch: int) -> Task:
    turn = turns.load_turn(db, job.subject)
    if turn is None:
        raise IntegrityError(f"job {job.job_pk} names a turn that is missing; run verify() and restore a backup")
    finished = finished_turn(turn)
    tree = session_tree(scope, db, turn.segment_pk)
    found = tree.nodes(db, finished.cover)
    nodes = [found[span] for span in finished.cover]
    summary = SummaryJob(
        purpose="publication",
        sources=tuple(_source(db, tree, node) for node in nodes),
        limit_bytes=scope.row.node_bytes,
        outcome=turn.outcome,
    )
    what = f"a turn of {finished.end - finished.start} records"
    return _task(job, summary, children_sha256(tree, nodes), epoch, what)


# ---- results ---------------------------------------------------------------------------------------------------------


@frozen
class Result:
    """What became of a task: a text and its recipe."""

    task: Task
    text: str
    recipe: Recipe


def stand_in(scope: Scope, task: Task) -> Result:
    """A labelled stand-in for a summary that could not be made: navigation, repairable, never counted as a summary."""
    limit = task.summary.limit_escaped_bytes
    room = scope.row.node_bytes - len(task.summary.mark)
    most = room if limit is None else max(1, min(room, limit))
    text = task.summary.mark + stand_in_text(most, task.what, task.source_bytes, task.start)
    return Result(task, text, Recipe("stand_in"))


def commit(scope: Scope, results: Sequence[Result]) -> int:
    """
    Take results, in one transaction: each only if its job, fence, inputs and epoch still hold; how many were taken.

    A result that does not hold is dropped: its job is ready again, or another worker's. That is no failure.
    """
    taken = 0
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        for result in results:
            taken += _commit_one(landing, result)
        landing.finish()
    landing.after_commit()
    return taken


def _commit_one(landing: Landing, result: Result) -> bool:
    db, scope, task = landing.db, landing.scope, result.task
    job = task.job
    if not queue.held(db, job):
        return False
    now = _load(scope, db, job, task.epoch)
    if now.inputs != task.inputs or scopes.scope_counters(db, scope.pk)[0] != task.epoch:
        queue.end_lease(db, job.job_pk)
        return False
    queue.remove_job(db, job.job_pk)
    if job.tree_pk:
        queue.promote(db, job.tree_pk, scope.policy.leaf_window)
        landing.jobs_added()
    if job.kind == "publication":
        turn = turns.load_turn(db, job.subject)
        assert turn is not None, "loaded a moment ago"
        size = escaped_size(result.text)
        landing.publish(
            turn,
            lambda number: _kind(leaf_of(number, finished_turn(turn), result.text, size), result.recipe),
            result.recipe,
            task.inputs,
        )
        return True
    landing.insert(job.subject, _node(scope, db, job, result), result.recipe, task.inputs)
    return True


def _kind(node: Node, recipe: Recipe) -> Node:
    return evolve(node, kind="stand_in") if recipe.kind == "stand_in" else node


def _node(scope: Scope, db: Connection, job: JobRow, result: Result) -> Node:
    span = span_of_post_order(ordinal_of(job.subject))
    size = escaped_size(result.text)
    if span.count > 1:
        found = tree_of_key(scope, db, job.subject).nodes(db, span.children)
        left, right = (found[child] for child in span.children)
        return _kind(evolve(merged(left, right, result.text, size, "summary"), span=span), result.recipe)
    record = _record_of_leaf(db, job) if job.kind == "leaf" else _chunks(db, owner_of(job.subject))[1]
    return _kind(Node(span, 0, "summary", result.text, size, 0, 0, record.at, record.at), result.recipe)


def fail(scope: Scope, task: Task, error: str, retry_in_seconds: float) -> bool:
    """
    A failed attempt: the job is ready again later, or it has used up its attempts.

    Returns:
        Whether the attempts are used up and the policy wants a stand-in, which the caller then commits.
    """
    attempts = task.job.attempts + 1
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        now = scope.now()
        if attempts < scope.policy.job_attempts:
            due = now + int(retry_in_seconds * 1_000_000)
            queue.fail_attempt(db, task.job, error=error, due_at=due, attempts=attempts)
            return False
        if scope.policy.on_failed == "stand_in":
            return queue.held(db, task.job)
        queue.exhaust(db, task.job, error=error, attempts=attempts, at=now)
        if task.job.tree_pk:
            queue.promote(db, task.job.tree_pk, scope.policy.leaf_window)
    scope.wake()
    return False


def give_up(scope: Scope, task: Task, error: str) -> bool:
    """A task that another attempt cannot help: as :func:`fail` at its last attempt."""
    last = evolve(task, job=evolve(task.job, attempts=scope.policy.job_attempts - 1))
    return fail(scope, last, error, 0.0)


def index_step(scope: Scope, job: JobRow) -> None:
    """
    Index the next pieces of a large text. Their words are made outside the transaction; each piece is numbered when
    indexed.
    """
    with scope.store.read() as db:
        record = ledger.load_record(db, job.subject)
        text = "" if record is None or record.state else payloads.load_spoken(db, [job.subject]).get(job.subject, "")
    cuts = pieces(text)
    data = to_bytes(text)
    done = job.position
    ready = [
        (start, end, words_of(_clean(data[start:end]), scope.row.pretokenizer))
        for start, end in cuts[done : done + _INDEX_PIECES]
    ]
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        if not queue.held(db, job):
            return
        record = ledger.load_record(db, job.subject)
        if record is None or record.state:
            queue.remove_job(db, job.job_pk)
            return
        landing = Landing(scope, db, scope.now())
        turn = turns.load_turn(db, record.turn_pk)
        visible = None if turn is None or turn.publication_key is None else ordinal_of(turn.publication_key)
        first = scopes.take_document_numbers(db, scope.pk, len(ready))
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
        landing.now_visible()
        if done + len(ready) >= len(cuts):
            queue.remove_job(db, job.job_pk)
        else:
            queue.advance_index(db, job, done + len(ready))
        landing.finish()
    landing.after_commit()


# ---- leases ----------------------------------------------------------------------------------------------------------


def end_dead_leases(scope: Scope) -> int:
    """
    Make jobs ready again whose holder is dead, or whose lease ran out; how many.

    A lease that ends absurdly far ahead (a clock was set back) counts as run out. Safe whoever is right: the fence
    decides.
    """
    now = scope.now()
    limit = now + int(2 * scope.policy.lease_seconds * 1_000_000)
    with scope.store.read() as db:
        ended = [
            job
            for job, owner, until in queue.leases(db)
            if until < now or until > limit or not scope.store.owner_alive(db, owner)
        ]
    if ended:
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for job in ended:
                queue.end_lease(db, job)
        scope.wake()
    return len(ended)
