"""
Workers: the only place that waits for a model.

Decides: in which threads summaries are made, and how a worker begins and ends.
Refuses to know: what a summary is (``core.summarizing``), and how a shift works jobs (``shift``).

In the background a worker has a thread with a loop of its own; told to work off, it has one for as long as somebody
waits. The embedded default is a rule and no call: somebody who waits for it does the work in his own thread, and many
of its results share a commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import anyio

from optchat.compactor.asking import Failed
from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.compactor.repairing import RepairRun, repair_by_rule
from optchat.compactor.shift import Shift, failed, may_run, next_look, upkeep
from optchat.core.compactor_view import rooms
from optchat.core.errors import ConfigError, StoreError, SummaryRejected
from optchat.core.ports import Summarizer
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.summarizing import run_flow, summary_flow
from optchat.core.tree import Recipe
from optchat.engine import remaking, work
from optchat.engine.calls import Finished
from optchat.engine.handle import Scope
from optchat.engine.indexing import index_step
from optchat.engine.inputs import Task
from optchat.store import queue, scopes

_LOG: Final = logging.getLogger("optchat")
_BATCH: Final = 64  # rules are cheap: many jobs share a commit
_JOIN_SECONDS: Final = 0.2  # between looks for an interrupt, while a thread works for somebody who waits
_CLOSE_SECONDS: Final = 2.0


class Worker:
    """
    Works the jobs of the scopes it was given, in this process.

    Not started, it works when told to (:meth:`work_off`); started, in a thread of its own until :meth:`close`.

    ``dropped``: fences by job of what could not be given back, and ``ended``: calls whose end could not be written
    down; both are tried again before the next claim.
    """

    def __init__(self, summarizer: Summarizer, fallback: Summarizer | None = None) -> None:
        self.summarizer, self.fallback = summarizer, fallback
        self.is_rule = isinstance(summarizer, ExtractiveSummarizer)
        self.dropped: dict[int, int] = {}
        self.ended: list[Finished] = []
        self._scopes: list[Scope] = []
        self._shifts: list[Shift | RepairRun] = []
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._said: set[int] = set()
        self._announced = False

    # ---- life --------------------------------------------------------------------------------------------------------

    def add(self, scope: Scope) -> None:
        with self._lock:
            if all(known.pk != scope.pk for known in self._scopes):
                self._scopes.append(scope)
        self.wake()

    def wake(self) -> None:
        """Jobs were added."""
        for shift in self._shifts:
            shift.wake()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Work in the background. Others may rely on it from now on: they wait for summaries that are missing."""
        scope = self._scopes[0]
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            scopes.count_worker(db, scope.store.owner_pk, 1)
        self._announced = True
        shift = Shift(self, self._all_scopes)
        self._thread = threading.Thread(target=self._work, args=(shift,), name="optchat-worker", daemon=True)
        self._thread.start()

    def close(self, wait_seconds: float = _CLOSE_SECONDS) -> None:
        """
        Stop, and give back this worker's leases. A call that still runs is left alone: its late result has no fence.

        Another handle's worker in this process goes on with its own. Where the writer lock is not to be had in time,
        the leases are left to end with this process.
        """
        with self._lock:
            self._closed = True
            shifts = list(self._shifts)
        for shift in shifts:
            shift.end()
        if self._thread is not None:
            self._thread.join(wait_seconds)
        for shift in shifts:
            if isinstance(shift, Shift):  # one whose loop is stuck in a summarizer gives nothing back itself
                self.dropped |= shift.leases
        for scope in self._scopes[:1]:
            try:
                self.give_back(scope, wait_seconds)
                if self._announced:
                    with scope.store.write(wait_seconds=wait_seconds) as db:
                        scopes.count_worker(db, scope.store.owner_pk, -1)
            except StoreError as error:
                _LOG.warning("the worker ends without giving back its leases: %s", error)

    def _all_scopes(self) -> list[Scope]:
        with self._lock:
            return list(self._scopes)

    def _work(self, shift: Shift | RepairRun) -> None:
        with self._lock:
            if self._closed:
                return
            self._shifts.append(shift)
        try:
            anyio.run(shift.run, backend="asyncio")
        finally:
            with self._lock:
                self._shifts.remove(shift)

    # ---- work --------------------------------------------------------------------------------------------------------

    def work_off(self, scope: Scope, until: Callable[[], bool]) -> None:
        """
        Work a scope's jobs until none can run, or ``until`` says so. A job that is due in a moment, or that another
        process works, is waited for; a pause is not.
        """
        upkeep(scope)
        if self.is_rule:
            self._work_off_here(scope, until)
        else:
            self.in_a_shift(Shift(self, lambda: [scope], until))

    def repair(self, scope: Scope, ref: str, stopped: Callable[[], bool]) -> int:
        """
        Summarise a node anew and all that was made of it, in one transaction; how many revisions were made.

        Args:
            stopped: whether whoever waits has gone; then calls are broken off, and nothing is changed.

        Raises:
            as :meth:`optchat.Memory.repair`.
        """
        with scope.store.read() as db:
            named = scopes.scope_summarizer(db, scope.pk)
        if named is not None and named != self.summarizer.name:
            raise ConfigError(f"scope {scope.row.name!r} is summarised by {named!r}; repair with that, or take it over")
        context_bytes = 0 if self.is_rule else scope.policy.compactor_view_bytes
        room = rooms(self.summarizer.window_tokens, context_bytes, scope.row.node_bytes)
        plan = remaking.begin_repair(scope, ref, room)
        if self.is_rule:
            return repair_by_rule(scope, plan, self._rule_text)
        run = RepairRun(scope, plan, self.summarizer, self.fallback)
        self.in_a_shift(run, stopped)
        return run.revisions

    def in_a_shift(self, shift: Shift | RepairRun, stopped: Callable[[], bool] | None = None) -> None:
        """
        Run a shift in a thread of its own and wait for its end: the caller's thread may have a loop that is not ours.

        An interrupt ends the shift, and is raised when its leases are given back.
        """
        box: list[BaseException] = []
        # Waited for, and not the thread: a join that is interrupted takes the thread for ended (bpo-45274).
        over = threading.Event()

        def run() -> None:
            try:
                self._work(shift)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                box.append(error)
            finally:
                over.set()

        threading.Thread(target=run, name="optchat-settle", daemon=True).start()
        try:
            while not over.wait(_JOIN_SECONDS):
                if stopped is not None and stopped():
                    shift.end()
        except BaseException:
            shift.end()
            over.wait(_CLOSE_SECONDS)
            raise
        if box:
            raise box[0]

    def _work_off_here(self, scope: Scope, until: Callable[[], bool]) -> None:
        while not until():
            if self.round(scope):
                continue
            if not may_run(scope, self.summarizer.name, self.is_rule):
                return
            before = scope.clock.monotonic()
            threading.Event().wait(next_look(scope))
            upkeep(scope)  # another process may have died over its jobs
            if scope.clock.monotonic() == before:
                return  # a clock that a test moves: what is due later cannot run before it does

    def claim(self, scope: Scope, limit: int) -> work.Claimed:
        """Claim jobs for this worker's summarizer; says once where the scope has another."""
        claimed = work.claim(
            scope,
            summarizer=self.summarizer.name,
            is_default=self.is_rule,
            window_tokens=self.summarizer.window_tokens,
            limit=limit,
        )
        return self._told_whose(scope, claimed)

    def claimed(self, scope: Scope, leased: work.Leased) -> work.Claimed:
        """What was leased with a commit, read; as :meth:`claim`."""
        return self._told_whose(scope, work.load_leased(scope, leased))

    def claiming(self, limit: int, ahead: int = 0) -> work.Claiming:
        """Who this worker claims for: so many jobs, and some more to be begun when a call under way is done."""
        summarizer = self.summarizer
        return work.Claiming(summarizer.name, self.is_rule, summarizer.window_tokens, limit + ahead, ahead)

    def _told_whose(self, scope: Scope, claimed: work.Claimed) -> work.Claimed:
        if claimed.other_summarizer is not None and scope.pk not in self._said:
            self._said.add(scope.pk)
            _LOG.warning(
                "scope %r is summarised by %r; %r claims nothing there",
                scope.row.name,
                claimed.other_summarizer,
                self.summarizer.name,
            )
        return claimed

    def round(self, scope: Scope) -> bool:
        """Claim a batch, work it by rule, commit it. Whether there was anything to do."""
        self.give_back(scope)
        with scope.store.read() as db:  # the common round finds nothing, and takes no lock to see it
            if not queue.has_ready(db, scope.pk, scope.now()):
                return False
        claimed = self.claim(scope, _BATCH)
        mine = {job.job_pk: job.fence for job in claimed.jobs}
        try:
            for job in claimed.indexing:
                index_step(scope, job)
            results = [result for task in claimed.tasks for result in self._by_rule(scope, task)]
            if results:
                work.commit(scope, results)
        except BaseException:
            self.dropped |= mine
            raise
        return not claimed.empty

    def _by_rule(self, scope: Scope, task: Task) -> list[work.Result]:
        try:
            return [work.Result(task, *self._rule_text(task))]
        except SummaryRejected as error:  # a rule would answer the same again; it is built never to come to this
            return failed(scope, task, Failed(str(error), final=True))

    def _rule_text(self, task: Task) -> tuple[str, Recipe]:
        accepted = run_flow(summary_flow(task.summary, attempts=1), ExtractiveSummarizer().summarize)
        return accepted.text, Recipe("summary", self.summarizer.name, PROMPT_VERSION)

    def give_back(self, scope: Scope, wait_seconds: float | None = None) -> None:
        """Give back what could not be before."""
        dropped, ended = dict(self.dropped), list(self.ended)
        if dropped or ended:
            seconds = scope.policy.lock_wait_seconds if wait_seconds is None else wait_seconds
            work.give_back(scope, dropped, ended, wait_seconds=seconds)
            del self.ended[: len(ended)]
            for job, fence in dropped.items():
                if self.dropped.get(job) == fence:
                    del self.dropped[job]
