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
from optchat.core.jobs import JobKind
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.publications import leaf_of
from optchat.core.records import KIND_NUMBER, to_bytes
from optchat.core.refs import KEY_BITS, Span, completed_by, exact_cover, span_of_post_order
from optchat.core.render import escaped_size
from optchat.core.summarizing import SummaryReply
from optchat.core.tree import Node, Recipe, merged, page_starts, stand_in_text
from optchat.core.words import pieces, words_of
from optchat.engine.handle import Scope
from optchat.engine.inputs import Spoken, Task, chunk_tree, clean, inputs_now, load, record_of_leaf
from optchat.engine.landing import Landing, finished_turn
from optchat.engine.trees import tree_of_key
from optchat.store import forest, ledger, payloads, queue, scopes, search, turns
from optchat.store.queue import JobRow
from optchat.store.rows import Connection

_ABSURD_SECONDS: Final = 1800  # ahead: no lease is so long. Below it, another process may just have a longer policy
_INDEX_PIECES: Final = 4  # of 64 KiB, a transaction: no other writer waits for a 50 MB text
_INDEX_STEPS: Final = 16  # so many such transactions for each time that the text is read


@frozen
class Claimed:
    """What a claim gave: tasks to summarise, and index jobs, which need no summarizer. ``jobs``: all that it leased."""

    jobs: tuple[JobRow, ...]
    tasks: tuple[Task, ...]
    indexing: tuple[JobRow, ...]
    other_summarizer: str | None  # set where another summarizer is this scope's, so that this one claims nothing

    @property
    def empty(self) -> bool:
        return not self.jobs


def claim(scope: Scope, *, summarizer: str, is_default: bool, window_tokens: int, limit: int) -> Claimed:
    """
    Lease the next jobs, and load their inputs.

    The embedded default never names the scope's summarizer; the first other to claim a job does. From then on the
    default, or a third, claims no summary here. A leaf whose source is larger than the window becomes the pages of a
    chunk tree. A job whose inputs are damaged fails at once, and keeps no other from being worked.

    Texts are read after the leases are committed, so that no writer waits for 50 MB; what changes in between, the
    commit's check of the inputs finds.
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
    large: list[_Large] = []
    damaged: list[tuple[JobRow, str]] = []
    with scope.store.read() as db:
        spoken = Spoken(db)
        for job in jobs:
            if job.kind == "index":
                continue
            try:
                found = _too_large(db, spoken, job, page_bytes) if job.kind == "leaf" else None
                if found is None:
                    tasks.append(load(scope, db, spoken, job, epoch))
                else:
                    large.append(found)
            except IntegrityError as error:
                damaged.append((job, str(error)))
    for each in large:
        _expand(scope, each)
    for job, fault in damaged:
        fail_for_good(scope, job, fault)
    indexing = tuple(job for job in jobs if job.kind == "index")
    return Claimed(jobs=tuple(jobs), tasks=tuple(tasks), indexing=indexing, other_summarizer=None if mine else named)


def page_size(window_tokens: int) -> int:
    """
    Bytes of a chunk page for a window: half of it, since no token is less than a byte, and the prompt needs room
    too.
    """
    return max(1024, window_tokens // 2)


@frozen
class _Large:
    """A leaf job whose source is larger than the window, and the pages that it will be cut into."""

    job: JobRow
    record_key: int
    page_bytes: int
    pages: int


def _too_large(db: Connection, spoken: Spoken, job: JobRow, page_bytes: int) -> _Large | None:
    record = record_of_leaf(db, job)
    if record.payload_bytes <= page_bytes or forest.find_chunk_tree(db, record.record_key) is not None:
        return None
    pages = len(page_starts(spoken.bytes(record), page_bytes))
    return None if pages < 2 else _Large(job, record.record_key, page_bytes, pages)


def _expand(scope: Scope, large: _Large) -> None:
    """Turn a leaf job into a chunk tree over the full payload, deterministic and recorded (§ 4)."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        if not queue.held(db, large.job):
            return
        at = scope.now()
        tree = forest.create_chunk_tree(db, scope.pk, large.record_key, large.page_bytes, large.pages)
        for page in range(large.pages):
            queue.add_job(
                db,
                scope_pk=scope.pk,
                kind="chunk",
                subject=node_key(tree, Span(page, 1)),
                at=at,
                admission_tree=tree,
                position=page,
                admitted=page < scope.policy.leaf_window,
            )
            for span in completed_by(page):
                needs = [node_key(tree, child) for child in span.children]
                queue.add_job(db, scope_pk=scope.pk, kind="chunk", subject=node_key(tree, span), needs=needs, at=at)
        queue.expand(db, large.job, [node_key(tree, span) for span in exact_cover(0, large.pages)])
        # It waits now, and another leaf takes its place: pages that fail must not hold up the leaves behind them.
        queue.promote(db, large.job.tree_pk, scope.policy.leaf_window)
    scope.wake()


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
    if inputs_now(scope, db, job) != task.inputs or scopes.scope_counters(db, scope.pk)[0] != task.epoch:
        queue.end_lease(db, job.job_pk, job.fence)
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
    record = record_of_leaf(db, job) if job.kind == "leaf" else chunk_tree(db, owner_of(job.subject))[1]
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


def fail_for_good(scope: Scope, job: JobRow, error: str) -> None:
    """
    A job that no attempt can help, and that nothing can stand in for: what it is made of is damaged. It has failed, and
    status says so.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        if not queue.held(db, job):
            return
        queue.exhaust(db, job, error=error, attempts=job.attempts + 1, at=scope.now())
        if job.kind != "index" and job.tree_pk:
            queue.promote(db, job.tree_pk, scope.policy.leaf_window)
    scope.wake()


def give_up(scope: Scope, task: Task, error: str) -> bool:
    """A task that another attempt cannot help: as :func:`fail` at its last attempt."""
    last = evolve(task, job=evolve(task.job, attempts=scope.policy.job_attempts - 1))
    return fail(scope, last, error, 0.0)


def index_step(scope: Scope, job: JobRow) -> None:
    """
    Index the next pieces of a large text, some in each of several transactions; then the job is anybody's again.

    The text is read once for all of them: read for each, 50 MB would be read two hundred times. Words are made outside
    the transactions; each piece is numbered when indexed.
    """
    try:
        with scope.store.read() as db:
            text = payloads.load_spoken(db, [job.subject]).get(job.subject, "")
    except IntegrityError as error:
        fail_for_good(scope, job, str(error))
        return
    cuts = pieces(text)
    data = to_bytes(text)
    for step in range(_INDEX_STEPS):
        done = job.position + step * _INDEX_PIECES
        ready = [
            (start, end, words_of(clean(data[start:end]), scope.row.pretokenizer))
            for start, end in cuts[done : done + _INDEX_PIECES]
        ]
        done += len(ready)
        if not _keep_pieces(scope, job, ready, None if done >= len(cuts) else done, step + 1 < _INDEX_STEPS):
            return


def _keep_pieces(
    scope: Scope, job: JobRow, ready: Sequence[tuple[int, int, str]], following: int | None, keep_lease: bool
) -> bool:
    """Number pieces of a text: (start, end, words). Whether there is more, and it is still ours to do."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        if not queue.held(db, job):
            return False
        record = ledger.load_record(db, job.subject)
        if record is None or record.state:
            queue.remove_job(db, job.job_pk)
            return False
        landing = Landing(scope, db, scope.now())
        visible = search.visible_through(db, record.record_key)
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
        if following is None:
            queue.remove_job(db, job.job_pk)
        else:
            queue.advance_index(db, job, following, keep_lease=keep_lease)
        landing.finish()
    landing.after_commit()
    return following is not None and keep_lease


@frozen
class Call:
    """One call of a summarizer; ``reply`` is None where it raised. Never content."""

    job_kind: JobKind
    attempt: int
    summarizer: str
    reply: SummaryReply | None
    latency_us: int


def keep_calls(scope: Scope, calls: Sequence[Call]) -> None:
    """Write calls into the cost ledger, whatever became of their answers; what was not reported stays unknown."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        for call in calls:
            reply = call.reply
            outcome = "raised" if reply is None else "refused" if reply.refused else "replied"
            queue.insert_call(
                db,
                scope_pk=scope.pk,
                at=scope.now(),
                job_kind=call.job_kind,
                attempt=call.attempt,
                why=None if call.attempt == 1 else "rejected",
                model=call.summarizer if reply is None or reply.model is None else reply.model,
                input_tokens=None if reply is None else reply.input_tokens,
                output_tokens=None if reply is None else reply.output_tokens,
                cache_read_tokens=None if reply is None else reply.cache_read_tokens,
                cache_write_tokens=None if reply is None else reply.cache_write_tokens,
                cost=None if reply is None else reply.cost,
                wait_us=0,
                latency_us=call.latency_us,
                outcome=outcome,
            )


# ---- leases ----------------------------------------------------------------------------------------------------------


def end_dead_leases(scope: Scope) -> int:
    """
    Make jobs ready again whose holder is dead, or whose lease ran out; how many.

    A lease that ends absurdly far ahead (a clock was set back) counts as run out. Safe whoever is right: the fence
    decides.
    """
    now = scope.now()
    limit = now + int(max(2 * scope.policy.lease_seconds, _ABSURD_SECONDS) * 1_000_000)
    with scope.store.read() as db:
        late = [
            lease
            for lease in queue.leases(db)
            if lease.until < now or lease.until > limit or not scope.store.owner_alive(db, lease.owner_pk)
        ]
    if not late:
        return 0
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        ended = sum(queue.end_lease(db, lease.job_pk, lease.fence) for lease in late)
    scope.wake()
    return ended
