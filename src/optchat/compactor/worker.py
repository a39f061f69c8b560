"""
Workers: the only place that waits for a model.

Decides: when jobs are claimed, how many calls run at once, and what becomes of an answer or an exception.
Refuses to know: what a summary is (``core.summarizing``), and how results are stored (``engine.work``).

A round claims a batch in one transaction, asks outside of any, and commits what it was told in one transaction. The
embedded default is a rule, not a call: it runs in the worker's own thread. Other summarizers are asked in threads of a
pool.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import anyio
from attrs import define, field, frozen

from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.core.errors import StoreBusy, SummaryRejected
from optchat.core.ports import Summarizer
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.summarizing import Accepted, SummaryReply, SummaryRequest, as_reply, run_flow, summary_flow
from optchat.core.tree import Recipe
from optchat.engine import turns, work
from optchat.engine.handle import Scope
from optchat.engine.inputs import Task
from optchat.store import queue, scopes

_LOG: Final = logging.getLogger("optchat")
_BATCH: Final = 64  # rules are cheap: many jobs share a commit
_POLL_SECONDS: Final = 0.5  # for what other processes add, and for leases and turns of dead ones
_PAUSE_SECONDS: Final = 0.05  # of a thread that works off: before it looks again
_UPKEEP_SECONDS: Final = 5.0  # at the latest, however much there is to do
_RETRY_SECONDS: Final = 0.1  # doubled with each attempt of a job


@frozen
class _Failed:
    error: str
    final: bool


@define
class _Told:
    """What became of a task, and the calls that it took."""

    answer: Accepted | _Failed
    calls: list[work.Call] = field(factory=list[work.Call])


def ask(summarizer: Summarizer, request: SummaryRequest) -> str | SummaryReply:
    """One call, sync or async: an async summarizer is awaited in a loop of this thread, never the caller's."""
    reply = summarizer.summarize(request)
    if inspect.isawaitable(reply):
        return anyio.run(_awaited, reply)
    assert not isinstance(reply, Awaitable), "isawaitable says so"
    return reply


async def _awaited(reply: Awaitable[str | SummaryReply]) -> str | SummaryReply:
    return await reply


class Worker:
    """
    Works the jobs of the scopes it was given, in this process.

    Not started, it works when told to (:meth:`work_off`); started, in a thread of its own until :meth:`close`.
    """

    def __init__(self, summarizer: Summarizer) -> None:
        self.summarizer = summarizer
        self.is_default = isinstance(summarizer, ExtractiveSummarizer)
        self._scopes: list[Scope] = []
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._said: set[int] = set()
        self._announced = False
        self._leased: dict[int, int] = {}  # fences by job: what rounds are at work on
        self._dropped: dict[int, int] = {}  # the same of rounds that broke off: given back before the next

    # ---- life --------------------------------------------------------------------------------------------------------

    def add(self, scope: Scope) -> None:
        with self._lock:
            if all(known.pk != scope.pk for known in self._scopes):
                self._scopes.append(scope)
        self._wake.set()

    def wake(self) -> None:
        """Jobs were added."""
        self._wake.set()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="optchat-worker", daemon=True)
        self._thread.start()

    def close(self, wait_seconds: float = 2.0) -> None:
        """
        Stop, and give back this worker's leases. A call that still runs is left alone: its late result has no fence.

        Another handle's worker in this process goes on with its own.
        """
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(wait_seconds)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for scope in self._scopes[:1]:
            with self._lock:
                self._dropped |= self._leased
                self._leased.clear()
            self._give_back(scope)
            if self._announced:
                with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
                    scopes.count_worker(db, scope.store.owner_pk, -1)

    def _run(self) -> None:
        looked_after = time.monotonic()
        while not self._closing.is_set():
            self._wake.clear()
            worked = False
            for scope in list(self._scopes):
                worked = self._guarded(scope, self._round_in_thread) or worked
            idle = not worked and not self._closing.is_set() and not self._wake.wait(_POLL_SECONDS)
            # Also where there is no end of work: a dead process's turn is to be published, and its leases are needed.
            if idle or time.monotonic() - looked_after > _UPKEEP_SECONDS:
                looked_after = time.monotonic()
                for scope in list(self._scopes):
                    self._guarded(scope, self.upkeep)

    def _guarded(self, scope: Scope, action: Callable[[Scope], bool]) -> bool:
        """Whatever goes wrong in a scope is told and does not end the thread: it would end all scopes' summaries."""
        try:
            return not self._closing.is_set() and action(scope)
        except StoreBusy:
            _LOG.info("the worker waits: another process holds the writer lock")
        except Exception:  # noqa: BLE001 - whatever it is: a thread that ended would say nothing
            if not self._closing.is_set():
                _LOG.exception("the worker met an error in scope %r and goes on", scope.row.name)
        return False

    def _round_in_thread(self, scope: Scope) -> bool:
        if not self._announced:
            with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
                scopes.count_worker(db, scope.store.owner_pk, 1)
            self._announced = True
        return self.round(scope)

    def _give_back(self, scope: Scope) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, {}
        if dropped:
            with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
                for job, fence in dropped.items():
                    queue.end_lease(db, job, fence)

    # ---- work --------------------------------------------------------------------------------------------------------

    def upkeep(self, scope: Scope) -> bool:
        """End the leases and the turns of dead processes. Whether there were any."""
        leases = work.end_dead_leases(scope)
        return bool(turns.end_abandoned(scope) + leases)

    def work_off(self, scope: Scope, until: Callable[[], bool]) -> None:
        """
        Work a scope's jobs in this thread until none can run, or ``until`` says so. A job that is due in a moment, or
        that another process works, is waited for.
        """
        self.upkeep(scope)
        while not until():
            if self.round(scope):
                continue
            with scope.store.read() as db:
                state = queue.queue_state(db, scope.pk)
                named = scopes.scope_summarizer(db, scope.pk)
                elsewhere = queue.leased_elsewhere(db, scope.pk, scope.store.owner_pk)
            if not elsewhere and (state.next_due is None or (named is not None and named != self.summarizer.name)):
                return
            before = scope.clock.monotonic()
            if elsewhere:
                self.upkeep(scope)  # its process may die over it
                time.sleep(_PAUSE_SECONDS)
            elif state.next_due is not None:
                time.sleep(min(_PAUSE_SECONDS, max(0.001, (state.next_due - scope.now()) / 1_000_000)))
            if scope.clock.monotonic() == before:
                return  # a clock that a test moves: what is due later cannot run before it does

    def round(self, scope: Scope) -> bool:
        """Claim a batch, work it, commit it. Whether there was anything to do."""
        self._give_back(scope)
        limit = _BATCH if self.is_default else scope.policy.workers
        with scope.store.read() as db:  # the common round finds nothing, and takes no lock to see it
            if not queue.has_ready(db, scope.pk, scope.now()):
                return False
        claimed = work.claim(
            scope,
            summarizer=self.summarizer.name,
            is_default=self.is_default,
            window_tokens=self.summarizer.window_tokens,
            limit=limit,
        )
        if claimed.other_summarizer is not None and scope.pk not in self._said:
            self._said.add(scope.pk)
            _LOG.warning(
                "scope %r is summarised by %r; %r claims nothing there",
                scope.row.name,
                claimed.other_summarizer,
                self.summarizer.name,
            )
        mine = {job.job_pk: job.fence for job in claimed.jobs}
        with self._lock:
            self._leased |= mine
        done = False
        try:
            for job in claimed.indexing:
                work.index_step(scope, job)
            self._settle(scope, claimed.tasks, self._asked(scope, claimed.tasks))
            done = True
        finally:
            with self._lock:
                for job_pk in mine:
                    self._leased.pop(job_pk, None)
                if not done:
                    self._dropped |= mine
        return not claimed.empty

    def _asked(self, scope: Scope, tasks: Sequence[Task]) -> list[_Told]:
        if self.is_default or len(tasks) < 2:
            return [self._summarise(scope, task) for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(scope.policy.workers, thread_name_prefix="optchat-summarizer")
        return list(self._pool.map(partial(self._summarise, scope), tasks))

    def _summarise(self, scope: Scope, task: Task) -> _Told:
        flow = summary_flow(task.summary, attempts=scope.policy.summary_attempts)
        calls: list[work.Call] = []
        try:
            return _Told(run_flow(flow, partial(self._call, scope, task, calls)), calls)
        except SummaryRejected as error:
            return _Told(_Failed(str(error), final=True), calls)  # the same summarizer would answer the same again
        except Exception as error:  # noqa: BLE001 - a summarizer is the caller's code: whatever it raises is a failed attempt
            return _Told(_Failed(f"{type(error).__name__}: {error}", final=False), calls)

    def _call(self, scope: Scope, task: Task, calls: list[work.Call], request: SummaryRequest) -> str | SummaryReply:
        if self.is_default:
            return ask(self.summarizer, request)  # a rule costs nothing, so there is nothing to account for
        started = scope.clock.monotonic()
        reply: SummaryReply | None = None
        try:
            reply = as_reply(ask(self.summarizer, request))
            return reply
        finally:
            latency = int((scope.clock.monotonic() - started) * 1_000_000)
            calls.append(work.Call(task.job.kind, request.attempt, self.summarizer.name, reply, latency))

    def _settle(self, scope: Scope, tasks: Sequence[Task], told: Sequence[_Told]) -> None:
        calls = [call for each in told for call in each.calls]
        if calls:
            work.keep_calls(scope, calls)
        results: list[work.Result] = []
        for task, each in zip(tasks, told, strict=True):
            answer = each.answer
            if isinstance(answer, Accepted):
                recipe = Recipe("summary", self.summarizer.name, PROMPT_VERSION)
                results.append(work.Result(task, answer.text, recipe))
                continue
            _LOG.warning("a %s job failed: %s", task.job.kind, answer.error)
            if answer.final:
                exhausted = work.give_up(scope, task, answer.error)
            else:
                exhausted = work.fail(scope, task, answer.error, _RETRY_SECONDS * 2**task.job.attempts)
            if exhausted:
                results.append(work.stand_in(scope, task))
        if results:
            work.commit(scope, results)
