"""
The queue's use cases (§ 9, § 10): claim, load, commit, fail.

Decides: nothing that core does not: a result is taken only if job, input hashes, fence and epoch still hold.
Refuses to know: models. What happens between loading and committing is the compactor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import evolve, frozen

from optchat.core.compactor_view import Rooms, rooms
from optchat.core.errors import IntegrityError, StoreError
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.publications import leaf_of
from optchat.core.refs import Span, completed_by, exact_cover, span_of_post_order
from optchat.core.render import escaped_size
from optchat.core.tree import Node, Recipe, merged, page_starts, stand_in_text
from optchat.core.words import words_of
from optchat.engine import remaking
from optchat.engine.calls import Finished, Start, Stop, begin_in, keep, paused_for_key, resume, summaries_allowed
from optchat.engine.handle import Scope
from optchat.engine.inputs import Spoken, Task, as_first_made, chunk_tree, inputs_now, load, record_of_leaf
from optchat.engine.landing import Landing
from optchat.engine.origins import finished_turn
from optchat.engine.trees import tree_of_key
from optchat.store import forest, queue, scopes, turns
from optchat.store.queue import JobRow
from optchat.store.rows import Connection

_MANY_READY: Final = 32  # more than other processes take until the call under way is done
_ABSURD_SECONDS: Final = 1800  # ahead: no lease is so long. Below it, another process may just have a longer policy


@frozen
class Claiming:
    """
    Who wants jobs, and how many at most: a summarizer's name, whether it is the embedded default, and its window.

    ``ahead``: so many of them are not worked at once, and wanted only where very many are ready: another process could
    be without any.
    """

    summarizer: str
    is_default: bool
    window_tokens: int
    limit: int
    ahead: int = 0


@frozen
class Leased:
    """Jobs that were leased, whose inputs are not read yet; ``other_summarizer`` as in :class:`Claimed`."""

    claiming: Claiming
    jobs: tuple[JobRow, ...]
    epoch: int
    other_summarizer: str | None

    def parted(self, first: int) -> tuple[Leased, Leased | None]:
        """The first so many of the jobs, and the others, if there are any."""
        others = self.jobs[first:]
        return evolve(self, jobs=self.jobs[:first]), evolve(self, jobs=others) if others else None


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
    default, or a third, claims no summary here. Where calls are paused only the default, which makes none, claims
    summaries. A leaf whose source is larger than the window becomes the pages of a chunk tree. A job whose inputs are
    damaged fails at once, and keeps no other from being worked.

    Texts are read after the leases are committed, so that no writer waits for 50 MB; what changes in between, the
    commit's check of the inputs finds.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        leased = _lease(scope, db, Claiming(summarizer, is_default, window_tokens, limit))
    return load_leased(scope, leased)


def _lease(scope: Scope, db: Connection, claiming: Claiming) -> Leased:
    now, limit, is_default = scope.now(), claiming.limit, claiming.is_default
    if claiming.ahead and not queue.has_many_ready(db, scope.pk, _MANY_READY):
        limit -= claiming.ahead
    named = scopes.scope_summarizer(db, scope.pk)
    mine = named == claiming.summarizer or named is None
    allowed, most = limit if mine else 0, None
    if allowed and not is_default:
        most = summaries_allowed(scope, db, now)
        allowed = allowed if most is None else min(allowed, most)
    until = now + int(scope.policy.lease_seconds * 1_000_000)
    jobs = queue.claim(
        db,
        scope.pk,
        owner_pk=scope.store.owner_pk,
        now=now,
        lease_until=until,
        limit=limit,
        summaries=allowed,
        probing=most is not None,
    )
    if named is None and not is_default and any(job.kind != "index" for job in jobs):
        scopes.name_summarizer(db, scope.pk, claiming.summarizer)
    epoch = scopes.scope_counters(db, scope.pk)[0]
    return Leased(claiming, tuple(jobs), epoch, other_summarizer=None if mine else named)


def load_leased(scope: Scope, leased: Leased) -> Claimed:
    """Read the inputs of leased jobs; where they cannot be read, the leases are given back."""
    claiming, jobs = leased.claiming, leased.jobs
    try:
        # A rule reads nothing but its sources.
        context_bytes = 0 if claiming.is_default else scope.policy.compactor_view_bytes
        room = rooms(claiming.window_tokens, context_bytes, scope.row.node_bytes)
        tasks = _load_all(scope, jobs, leased.epoch, room) if jobs else []
    except BaseException:
        with suppress(StoreError):  # else they end with time: nobody else knows of them
            give_back(scope, {job.job_pk: job.fence for job in jobs}, wait_seconds=scope.policy.lock_wait_seconds)
        raise
    indexing = tuple(job for job in jobs if job.kind == "index")
    return Claimed(jobs, tuple(tasks), indexing, leased.other_summarizer)


def _load_all(scope: Scope, jobs: Sequence[JobRow], epoch: int, room: Rooms) -> list[Task]:
    """The tasks of leased jobs. What is larger than the window is cut into pages, and what is damaged has failed."""
    tasks: list[Task] = []
    large: list[_Large] = []
    damaged: list[tuple[JobRow, str]] = []
    with scope.store.read() as db:
        spoken = Spoken(db)
        for job in jobs:
            if job.kind == "index":
                continue
            try:
                first = as_first_made(scope, db, job)  # a leaf that is made anew may be too large for another window
                found = _too_large(db, spoken, first, room.page_bytes) if first.kind == "leaf" else None
                if found is None:
                    tasks.append(load(scope, db, spoken, job, epoch, room))
                else:
                    large.append(found)
            except IntegrityError as error:
                damaged.append((job, str(error)))
    for each in large:
        _expand(scope, each)
    for job, fault in damaged:
        fail_for_good(scope, job, fault)
    return tasks


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
                priority=large.job.priority,
            )
            for span in completed_by(page):
                needs = [node_key(tree, child) for child in span.children]
                queue.add_job(
                    db,
                    scope_pk=scope.pk,
                    kind="chunk",
                    subject=node_key(tree, span),
                    needs=needs,
                    at=at,
                    priority=large.job.priority,
                )
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
    most = max(1, min(scope.row.node_bytes, limit or scope.row.node_bytes) - len(task.summary.mark))
    text = task.summary.mark + stand_in_text(most, task.what, task.source_bytes, task.start)
    return Result(task, text, Recipe("stand_in"))


def commit(scope: Scope, results: Sequence[Result], finished: Sequence[Finished] = ()) -> int:
    """
    Take results, in one transaction: each only if its job, fence, inputs and epoch still hold; how many were taken.

    A result that does not hold is dropped: its job is ready again, or another worker's. That is no failure.

    Args:
        finished: what became of the calls that were made for them, written down whether or not a result is taken.
    """
    return commit_and_lease(scope, results, finished).taken


@frozen
class Turnover:
    """
    What a commit gave: how many results were taken; the leases, where any were wanted, whose inputs :func:`load_leased`
    reads; and what became of each reservation.
    """

    taken: int
    leased: Leased | None
    begun: list[int | Stop]


def commit_and_lease(
    scope: Scope,
    results: Sequence[Result],
    finished: Sequence[Finished] = (),
    claiming: Claiming | None = None,
    starts: Sequence[Start] = (),
) -> Turnover:
    """
    As :func:`commit`; and in the same transaction reserve the calls that come next, and lease the jobs after these: a
    worker that is done wants another, and the lock that each transaction waits for is what several processes have
    least of.
    """
    taken, leased = 0, None
    for result in results:
        words_of(result.text, scope.row.pretokenizer)  # its runs are known then: under the lock they are only looked up
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        keep(db, scope.pk, finished)
        landing = Landing(scope, db, scope.now())
        for result in results:
            taken += _commit_one(landing, result)
        landing.finish()
        begun = begin_in(scope, db, starts)
        if claiming is not None:
            leased = _lease(scope, db, claiming)
    landing.after_commit()
    return Turnover(taken, leased, begun)


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
    if job.kind == "remake":
        remaking.revise(landing, task, result.text, result.recipe)
        return True
    foreign = task.foreign if result.recipe.kind == "summary" else ()  # what a stand-in says comes from its sources
    if job.kind == "publication":
        turn = turns.load_turn(db, job.subject)
        assert turn is not None, "loaded a moment ago"
        size = escaped_size(result.text)
        landing.publish(
            turn,
            lambda number: _kind(leaf_of(number, finished_turn(turn), result.text, size), result.recipe),
            result.recipe,
            task.inputs,
            foreign,
        )
        return True
    landing.insert(job.subject, _node(scope, db, job, result), result.recipe, task.inputs, foreign)
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


def fail(
    scope: Scope, task: Task, error: str, retry_in_seconds: float | None, finished: Sequence[Finished] = ()
) -> bool:
    """
    A failed attempt: the job is ready again later, or it has used up its attempts.

    Args:
        retry_in_seconds: None: another attempt cannot help, and this was the last.

    Returns:
        Whether the attempts are used up and the policy wants a stand-in, which the caller then commits.
    """
    attempts = scope.policy.job_attempts if retry_in_seconds is None else task.job.attempts + 1
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        now = scope.now()
        keep(db, scope.pk, finished)
        if not queue.held(db, task.job):
            return False
        if retry_in_seconds is not None and attempts < scope.policy.job_attempts:
            due = now + int(retry_in_seconds * 1_000_000)
            queue.fail_attempt(db, task.job, error=error, due_at=due, attempts=attempts)
            return False
        if scope.policy.on_failed == "stand_in" and task.job.kind != "remake":  # which has a better text already
            return True
        landing = Landing(scope, db, now)
        _exhaust(landing, task.job, error, attempts)
        landing.finish()
    landing.after_commit()
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
        landing = Landing(scope, db, scope.now())
        _exhaust(landing, job, error, job.attempts + 1)
        landing.finish()
    landing.after_commit()
    scope.wake()


def _exhaust(landing: Landing, job: JobRow, error: str, attempts: int) -> None:
    """A job has failed for good, and others go on: the leaves behind it, or what waited for the node to be remade."""
    db = landing.db
    queue.exhaust(db, job, error=error, attempts=attempts, at=landing.at)
    if job.kind == "remake":
        remaking.leave(landing, job)
    elif job.kind != "index" and job.tree_pk:
        queue.promote(db, job.tree_pk, landing.scope.policy.leaf_window)


def give_back(scope: Scope, jobs: Mapping[int, int], finished: Sequence[Finished] = (), *, wait_seconds: float) -> None:
    """End the leases of jobs that will not be worked, by job and fence; no attempt is used up."""
    with scope.store.write(wait_seconds=wait_seconds) as db:
        keep(db, scope.pk, finished)
        for job, fence in jobs.items():
            queue.end_lease(db, job, fence)


def renew(scope: Scope, jobs: Mapping[int, int]) -> None:
    """Move the ends of leases, by job and fence: their calls take long. What another took meanwhile is left alone."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        until = scope.now() + int(scope.policy.lease_seconds * 1_000_000)
        for job, fence in jobs.items():
            queue.renew(db, job, fence, until)


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


# ---- trying again ----------------------------------------------------------------------------------------------------


def try_again(scope: Scope) -> int:
    """
    Somebody asks for it: jobs that failed, or wait to be tried again, are due with all their attempts, and nothing is
    paused; how many jobs.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        armed = queue.hasten_retries(db, scope.pk, scope.now()) + queue.rearm(db, scope.pk, scope.now())
        resume(db, scope.pk)
    scope.wake()
    return armed


def arm_at_open(scope: Scope) -> None:
    """
    A process begins, perhaps with what was missing: failed jobs are ready again, and a pause for a wrong key is over.

    A pause for a provider that is down or wants fewer calls goes on: a process that starts changes nothing about it.
    """
    with scope.store.read() as db:
        wanted = queue.has_failed(db, scope.pk) or paused_for_key(db, scope.pk)
    if wanted:
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            queue.rearm(db, scope.pk, scope.now())
            if paused_for_key(db, scope.pk):
                resume(db, scope.pk)
        scope.wake()
