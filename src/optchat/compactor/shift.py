"""
A shift: one loop of a worker, in the background or for as long as somebody waits (§ 9, § 10).

Decides: when jobs are claimed, how many calls run at once, when leases are renewed, and what is looked after meanwhile.
Refuses to know: what a summarizer says (``asking``), and how results are stored (``engine.work``).

The loop never waits for the disk itself: each use case runs in a thread beside it, one at a time. So a call's answer is
read, and a shift is ended, while another process holds the writer lock. Whatever was claimed and is not done when the
shift ends is given back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from attrs import frozen

from optchat.compactor.asking import Asker, Failed, Prepared, Stopped, Told, never_made, opened, prepare, with_openings
from optchat.core.errors import StoreBusy, StoreError
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.summarizing import Accepted
from optchat.core.tree import Recipe
from optchat.core.trouble import Trouble, described, retry_seconds
from optchat.engine import calls, turns, work
from optchat.engine.calls import Finished, Start
from optchat.engine.handle import Scope
from optchat.engine.indexing import index_step
from optchat.engine.inputs import Task
from optchat.engine.scrubbing import scrub_slice
from optchat.engine.work import Claiming, Leased, Turnover
from optchat.store import queue, scopes
from optchat.store.queue import JobRow

if TYPE_CHECKING:
    from optchat.compactor.worker import Worker

T = TypeVar("T")

_LOG: Final = logging.getLogger("optchat")
_POLL_SECONDS: Final = 0.5  # for what other processes add, and for turns of dead ones
_WATCH_SECONDS: Final = (
    0.05  # while another process works jobs: it may die over them, and what it lands may free others
)
_AHEAD: Final = 1  # jobs that are claimed before there is a call free for them, where very many are ready
_UPKEEP_SECONDS: Final = 5.0  # at the latest, however much there is to do
_LETTING_GO_SECONDS: Final = (
    1.0  # for giving leases back at the end; what is not, another takes when this process is gone
)


class Shift:
    """
    Works the jobs of scopes in one loop.

    Args:
        worker: whose summarizers, and whose knowledge of what was said and leased.
        scopes: asked anew each time; scopes can be added.
        until: None: until it is told to end. Else somebody waits: it also ends when nothing can run, or this says so,
            and what goes wrong is raised.
    """

    def __init__(
        self, worker: Worker, scopes: Callable[[], list[Scope]], until: Callable[[], bool] | None = None
    ) -> None:
        self._worker, self._scopes, self._until = worker, scopes, until
        self._told: list[tuple[Scope, Told]] = []
        self._at_work: dict[int, tuple[Scope, Told]] = {}  # by job: claimed, and not settled yet
        self._ahead: list[tuple[Scope, Prepared]] = []  # claimed and read, to be begun when a call is done
        self._calling, self._most = 0, 0  # calls under way, and how many may be
        self._error: BaseException | None = None
        self._ending = False
        self._signal = anyio.Event()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._lock = threading.Lock()

    # ---- from other threads ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do."""
        with self._lock:
            loop = self._loop
            # Where every call that may be is under way, the end of one is all there is to wait for, and it is told. The
            # jobs are read after that, so that what was added meanwhile is seen.
            if loop is None or self._woken or (self._full and not self._ending):
                return
            self._woken = True
            # Not by a portal: it waits until the loop has heard, so an append waited for whatever the loop is at,
            # and for ever where that is its end, which wants the lock that is held here.
            with suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(self._stir)

    @property
    def leases(self) -> dict[int, int]:
        """Fences by job of what is at work; empty once it has ended in good order."""
        return fences(task for _, task in self._leased())

    def _leased(self) -> list[tuple[Scope, Task]]:
        """What was claimed and is not settled, whether its call is under way or to be begun."""
        working = [(of, told.task) for of, told in list(self._at_work.values())]
        return working + [(of, each.task) for of, each in self._ahead]

    @property
    def _full(self) -> bool:
        return 0 < self._most <= self._calling

    def end(self) -> None:
        """Stop claiming, break off what is being asked, give everything back."""
        self._ending = True
        with self._lock:
            self._woken = False
        self.wake()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until told to end, or until what is waited for has come."""
        try:
            asker = Asker(self._worker.summarizer, self._worker.fallback, self._in_store)
            with self._lock:
                self._loop = asyncio.get_running_loop()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._keep_leases)
                    await self._work(tasks, asker)
                    if not self._ending and not isinstance(self._error, StoreError):
                        for scope in self._scopes_told():  # what was told meanwhile is paid for
                            await self._guarded(scope, self._settle_told, scope)
                    tasks.cancel_scope.cancel()
            finally:
                with self._lock:
                    self._loop = None
                await asker.let_go()
        finally:
            self._give_back()
        if self._error is not None:
            raise self._error

    async def _work(self, tasks: TaskGroup, asker: Asker) -> None:
        looked_after = -_UPKEEP_SECONDS
        while not self._ending and self._error is None:
            if self._until is not None and self._until():
                return  # time is over, whatever is under way
            self._woken = False
            self._signal = anyio.Event()
            worked = False
            for scope in self._scopes():
                worked = await self._guarded(scope, self._go_round, tasks, asker, scope) or worked
            idle = not worked
            if idle and self._until is not None and not self._at_work and not self._told and await self._is_over():
                return
            if idle and not self._ending and self._error is None:
                with anyio.move_on_after(await self._patience()):
                    await self._signal.wait()
            # Also where there is no end of work: a dead process's turn is to be published, and its leases are needed.
            # Not each time that it is woken: every append wakes it.
            if anyio.current_time() - looked_after > (_POLL_SECONDS if idle else _UPKEEP_SECONDS):
                looked_after = anyio.current_time()
                for scope in self._scopes():
                    await self._guarded(scope, self._in_store, upkeep, scope)

    def _stir(self) -> None:
        self._signal.set()

    async def _in_store(self, function: Callable[..., T], /, *arguments: object) -> T:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._one_at_a_time)

    async def _guarded(self, scope: Scope, action: Callable[..., object], *arguments: object) -> bool:
        """In the background whatever goes wrong in a scope is told and ends nothing: it would end all scopes' work."""
        try:
            return bool(await action(*arguments))  # type: ignore[misc] # pyright: ignore[reportGeneralTypeIssues]
        except Exception as error:  # noqa: BLE001 - whatever it is: a loop that ended would say nothing
            self._failed(scope, error)
        return False

    def _failed(self, scope: Scope, error: BaseException) -> None:
        if self._until is not None:
            self._error = self._error or error
        elif isinstance(error, StoreBusy):
            _LOG.info("the worker waits: another process holds the writer lock")
        elif not self._ending:
            _LOG.error("the worker met an error in scope %r and goes on", scope.row.name, exc_info=error)

    # ---- claiming ----------------------------------------------------------------------------------------------------

    async def _go_round(self, tasks: TaskGroup, asker: Asker, scope: Scope) -> bool:
        """Settle what was told, and claim as many jobs as there is room for. Whether there was anything to do."""
        worker = self._worker
        if worker.is_rule:
            return await self._in_store(worker.round, scope)
        if worker.dropped or worker.ended:
            await self._in_store(worker.give_back, scope)
        self._most = scope.policy.workers
        free = self._most - self._calling
        settled, claimed = await self._settle_told(scope, free)
        if claimed is None:
            return settled
        self._begin(tasks, asker, scope, claimed)
        indexing = list(claimed.indexing)
        if claimed.ahead is not None:  # read while the calls that just began are under way
            ahead = await self._in_store(read_ahead, worker, scope, claimed.ahead)
            self._ahead += [(scope, each) for each in ahead.prepared]
            indexing += ahead.indexing
        # Until they are done: a step that breaks off is given back, and so are those after it.
        worker.dropped |= {job.job_pk: job.fence for job in indexing}
        for job in indexing:
            await self._in_store(index_step, scope, job)
            worker.dropped.pop(job.job_pk, None)
        return True

    def _begin(self, tasks: TaskGroup, asker: Asker, scope: Scope, claimed: Round) -> None:
        for told in claimed.tasks:
            self._at_work[told.task.job.job_pk] = (scope, told)
            self._calling += 1
            tasks.start_soon(self._ask, asker, scope, told)

    async def _ask(self, asker: Asker, scope: Scope, told: Told) -> None:
        try:
            await asker.ask(scope, told)
        except StoreError as error:  # a call could not be written down
            self._failed(scope, error)
        except Exception as error:  # noqa: BLE001 - ours: without an attempt used up, it would be paid for without end
            self._failed(scope, error)
            told.answer = Failed(described(error), final=False)
        self._calling -= 1
        self._told.append((scope, told))
        self._signal.set()

    # ---- settling ----------------------------------------------------------------------------------------------------

    async def _settle_told(self, scope: Scope, free: int = 0) -> tuple[bool, Round | None]:
        """
        Commit what a scope's tasks were told, a transaction for all that came together; and in the same hop to the
        store's thread claim as many more as are free, with their first calls reserved.

        Returns:
            Whether anything was settled, and what was claimed, if anything was.
        """
        together = [each for of, each in self._told if of.pk == scope.pk]
        if not together and free <= 0:
            return False, None
        self._told = [(of, each) for of, each in self._told if of.pk != scope.pk]
        ahead = [each for of, each in self._ahead if of.pk == scope.pk] if free > 0 else []
        if ahead:
            self._ahead = [(of, each) for of, each in self._ahead if of.pk != scope.pk]
        try:
            claimed = await self._in_store(one_round, self._worker, scope, together, free, ahead)
        finally:
            for each in together:
                if each.settled:
                    self._at_work.pop(each.task.job.job_pk, None)
                else:  # the store was not to be had: what was paid for is kept, and so is its lease
                    self._told.append((scope, each))
        return any(each.settled for each in together), claimed

    def _scopes_told(self) -> list[Scope]:
        return list({of.pk: of for of, _told in self._told}.values())

    async def _keep_leases(self) -> None:
        """Renew leases before they run out: a call may take longer than one lasts."""
        while True:
            seconds = min((scope.policy.lease_seconds for scope in self._scopes()), default=60.0) / 3
            await anyio.sleep(max(0.05, seconds))
            for scope in self._scopes():
                mine = fences(task for of, task in self._leased() if of.pk == scope.pk)
                if mine:
                    await self._guarded(scope, self._in_store, work.renew, scope, mine)

    # ---- waiting and ending ------------------------------------------------------------------------------------------

    async def _patience(self) -> float:
        """How long to wait for a signal before looking again."""
        seconds = _POLL_SECONDS
        for scope in self._scopes():
            if self._full:
                return _POLL_SECONDS
            try:
                seconds = min(seconds, await self._in_store(next_look, scope))
            except Exception as error:  # noqa: BLE001 - as in what is guarded
                self._failed(scope, error)
        return seconds

    async def _is_over(self) -> bool:
        """Whether somebody who waits need not wait longer: nothing can run, or time is over."""
        assert self._until is not None, "asked for nobody"
        if self._until():
            return True
        for scope in self._scopes():
            try:
                if await self._in_store(may_run, scope, self._worker.summarizer.name, self._worker.is_rule):
                    before = scope.clock.monotonic()
                    await anyio.sleep(await self._in_store(next_look, scope))
                    # A clock that a test moves: what is due later cannot run before it does.
                    return scope.clock.monotonic() == before
            except Exception as error:  # noqa: BLE001 - raised when the loop has ended, and not within a group
                self._failed(scope, error)
        return True

    def _give_back(self) -> None:
        """End this shift's leases; what cannot be given back now, the worker tries again."""
        leased, working = self._leased(), list(self._at_work.values())
        self._at_work.clear()
        self._ahead.clear()
        for scope in {of.pk: of for of, _task in leased}.values():
            mine = fences(task for of, task in leased if of.pk == scope.pk)
            ended = [call for of, told in working if of.pk == scope.pk for call in told.finished]
            try:
                work.give_back(scope, mine, ended, wait_seconds=_LETTING_GO_SECONDS)
            except Exception:  # noqa: BLE001 - the shift ends all the same
                self._worker.dropped |= mine
                self._worker.ended += ended


def fences(tasks: Iterable[Task]) -> dict[int, int]:
    """Fences by job."""
    return {task.job.job_pk: task.job.fence for task in tasks}


# ---- use cases of a shift, each in a thread beside the loop ----------------------------------------------------------


def upkeep(scope: Scope) -> bool:
    """End the leases and the turns of dead processes, and scrub for a moment. Whether there was anything to do."""
    leases = work.end_dead_leases(scope)
    ended = turns.end_abandoned(scope) + leases
    return scrub_slice(scope) or bool(ended)


def can_claim(scope: Scope, summarizer: str) -> bool:
    """
    Whether a claim would find anything; a dead process's leases are ended first. The common look takes no lock, so that
    appends do not wait for it: each of them is a reason to look.
    """
    with scope.store.read() as db:
        elsewhere = queue.leased_elsewhere(db, scope.pk, scope.store.owner_pk)
    if elsewhere:
        work.end_dead_leases(scope)
    with scope.store.read() as db:
        now = scope.now()
        named = scopes.scope_summarizer(db, scope.pk)
        only_index = named not in (None, summarizer) or calls.stopped(scope, db, now)
        return queue.has_ready(db, scope.pk, now, only_index=only_index)


@frozen
class Round:
    """
    What a round claimed: tasks whose first calls are reserved, index jobs, and jobs that are to be read while these
    calls are under way.
    """

    tasks: tuple[Told, ...]
    indexing: tuple[JobRow, ...]
    ahead: Leased | None = None


def one_round(
    worker: Worker, scope: Scope, told: Sequence[Told], free: int, ahead: Sequence[Prepared] = ()
) -> Round | None:
    """
    Settle what was told, begin what was claimed ahead, claim the next jobs and reserve their first calls: in one go,
    for each hop to another thread costs more than the look, and each transaction waits for a lock that others want.

    Args:
        free: how many more calls may be under way. ahead: no more than that, leased by this worker.

    Returns:
        What is to be done; None: nothing.
    """
    held = fences(each.task for each in ahead)
    room = free - len(ahead)
    begun: list[Told] = []
    try:
        turnover = None
        if told:
            claiming = worker.claiming(room, ahead=_AHEAD) if free > 0 else None
            turnover = settle_or_fail(scope, told, claiming, [each.start for each in ahead])
        if turnover is not None:
            begun = opened(scope, ahead, turnover.begun)
        elif ahead:  # nothing was committed that they could have been reserved with
            begun = opened(scope, ahead, calls.begin_all(scope, [each.start for each in ahead]))
        later: Leased | None = None
        claimed: work.Claimed | None = None
        if turnover is not None and turnover.leased is not None:
            held |= {job.job_pk: job.fence for job in turnover.leased.jobs}
            now, later = turnover.leased.parted(room)
            claimed = worker.claimed(scope, now)
        elif turnover is None and room > 0 and can_claim(scope, worker.summarizer.name):
            claimed = worker.claim(scope, room)
            held |= {job.job_pk: job.fence for job in claimed.jobs}
        if claimed is not None:
            begun += with_openings(scope, claimed.tasks, worker.summarizer)
    except BaseException:
        worker.dropped |= held
        worker.ended += never_made(begun)
        raise
    indexing = () if claimed is None else claimed.indexing
    return Round(tuple(begun), indexing, later) if begun or indexing or later is not None else None


@frozen
class Ahead:
    """What was claimed ahead, read: conversations that can begin, and index jobs."""

    prepared: list[Prepared]
    indexing: tuple[JobRow, ...]


def read_ahead(worker: Worker, scope: Scope, leased: Leased) -> Ahead:
    """Read what was claimed ahead; where it cannot be read, it is given back."""
    try:
        claimed = worker.claimed(scope, leased)
        return Ahead(prepare(scope, claimed.tasks, worker.summarizer), claimed.indexing)
    except BaseException:
        worker.dropped |= {job.job_pk: job.fence for job in leased.jobs}
        raise


def next_look(scope: Scope) -> float:
    """Seconds until there may be something new in a scope that nobody tells of."""
    with scope.store.read() as db:
        now = scope.now()
        due = queue.next_due(db, scope.pk, now)
        elsewhere = queue.leased_elsewhere(db, scope.pk, scope.store.owner_pk)
        resumes = calls.paused(db, scope.pk, now)
    seconds = _WATCH_SECONDS if elsewhere else _POLL_SECONDS
    for moment in (due, None if resumes is None else resumes.until):
        if moment is not None:
            seconds = min(seconds, max(0.001, (moment - now) / 1_000_000))
    return seconds


def may_run(scope: Scope, summarizer: str, is_rule: bool) -> bool:
    """Whether a job can run before somebody does something: now, after its backoff, or elsewhere."""
    with scope.store.read() as db:
        if queue.has_leased(db, scope.pk):  # not by whoever asks: it has nothing at work
            return True
        if not queue.has_work(db, scope.pk):
            return False
        named = scopes.scope_summarizer(db, scope.pk)
        if named is not None and named != summarizer:
            return False
        return is_rule or not calls.stopped(scope, db, scope.now())


def settle(
    scope: Scope, told: Iterable[Told], claiming: Claiming | None = None, starts: Sequence[Start] = ()
) -> Turnover | None:
    """
    Commit what was told: summaries, stand-ins, failed attempts, pauses; and the calls that it took.

    Args:
        claiming: leases more, and starts: reserves calls, where there is anything to commit; else None is returned.
    """
    results: list[work.Result] = []
    ended: list[Finished] = []
    done: list[Told] = []
    back: dict[int, int] = {}
    for each in told:
        answer, task = each.answer, each.task
        if isinstance(answer, Accepted):
            results.append(work.Result(task, answer.text, Recipe("summary", each.summarizer, PROMPT_VERSION)))
        elif isinstance(answer, Trouble):
            _LOG.warning("the queue pauses: %s trouble, %s", answer.kind, answer.message)
            if calls.met_trouble(scope, task.job, answer, each.finished, _chance()):
                each.finished.clear()
                each.settled = True
                continue
            results += failed(scope, task, Failed(answer.message, final=False))
        elif isinstance(answer, Failed):
            results += failed(scope, task, answer)
        else:
            if answer is None:
                answer = each.answer = Stopped("lease")
            back[task.job.job_pk] = task.job.fence
        ended += each.finished
        done.append(each)
    if back:
        work.give_back(scope, back, wait_seconds=scope.policy.lock_wait_seconds)
    turnover = work.commit_and_lease(scope, results, ended, claiming, starts) if results or ended else None
    for each in done:
        each.finished.clear()
        each.settled = True
    return turnover


def settle_or_fail(
    scope: Scope, told: Sequence[Told], claiming: Claiming | None = None, starts: Sequence[Start] = ()
) -> Turnover | None:
    """Settle; where it is not the store that hinders it, each alone, and what cannot be settled is a failed attempt."""
    try:
        return settle(scope, told, claiming, starts)
    except StoreError:
        raise
    except Exception:  # noqa: BLE001 - whatever it is: tried again without an attempt used up, it would be paid for without end
        for each in told:
            try:
                settle(scope, [each])
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - the same
                _LOG.error("a summary could not be taken", exc_info=error)
                each.answer = Failed(described(error), final=False)
                settle(scope, [each])
    return None


def _chance() -> float:
    return random.random()  # noqa: S311 - it spreads waits, it hides nothing


def failed(scope: Scope, task: Task, answer: Failed) -> list[work.Result]:
    """A failed attempt; the stand-in that is to be committed if it was the last."""
    _LOG.warning("a %s job failed: %s", task.job.kind, answer.error)
    wait = None if answer.final else retry_seconds(task.job.attempts, _chance())
    return [work.stand_in(scope, task)] if work.fail(scope, task, answer.error, wait) else []
