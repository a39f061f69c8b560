"""
One job's conversation with a summarizer (§ 10), with its calls reserved and accounted for.

Decides: what an exception means (trouble, a failed attempt, a stop), when a call has taken too long, and that a refusal
goes once to the fallback. Refuses to know: what a summary is (``core.summarizing``), and what becomes of the answer.

An async summarizer is awaited in the worker's loop. Any other is called in a thread of its own, several at once: such a
call cannot be broken off, so it is left alone and its answer dropped. Those threads are daemons, for a call that never
returns must not keep a program from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias, TypeVar

import anyio
from attrs import define, field, frozen

from optchat.compactor.pricing import Price
from optchat.core.errors import OptchatError, SummaryRejected
from optchat.core.ledger import CallOutcome, Need
from optchat.core.ports import Reply, Summarizer
from optchat.core.summarizing import (
    Accepted,
    Rejection,
    SummaryReply,
    SummaryRequest,
    as_reply,
    judge,
    request_bytes,
    summary_flow,
)
from optchat.core.trouble import Trouble, described, is_refusal, status_of, trouble_of
from optchat.engine import calls
from optchat.engine.calls import Finished, Start, Stop
from optchat.engine.handle import Scope
from optchat.engine.inputs import Task

T = TypeVar("T")
Flow: TypeAlias = Generator[SummaryRequest, SummaryReply, Accepted]

CALL_SECONDS: Final = 60.0  # a request's own timeout
FALLBACK_SECONDS: Final = 30.0  # a refusal's second opinion, waiting included
_LETTING_GO_SECONDS: Final = 1.0
_MOST_CHARACTERS: Final = 200
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
_GRACE_SECONDS: Final = 5.0  # past a request's own timeout, which a summarizer should keep by itself


class InStore(Protocol):
    """Runs a blocking use case beside the loop."""

    async def __call__(self, function: Callable[..., T], /, *arguments: object) -> T: ...


@frozen
class Failed:
    """A failed attempt; ``final``: the same summarizer would fail again."""

    error: str
    final: bool


@frozen
class Stopped:
    """The job was not worked to its end, for no fault of its own; its lease is given back."""

    why: Stop


Answer = Accepted | Failed | Stopped | Trouble


@define
class Told:
    """
    What became of a task: its answer, who gave it, and the calls whose end is not written down yet; ``settled``: all of
    it is in the store.
    """

    task: Task
    summarizer: str
    answer: Answer | None = None
    finished: list[Finished] = field(factory=list[Finished])
    settled: bool = False
    opening: Opening | None = None  # the first request, where it was reserved with the claim


@frozen
class Opening:
    """A conversation up to its first request, and that call's reservation, or why it may not begin."""

    flow: Flow
    request: SummaryRequest
    call: int | Stop
    waited_seconds: float
    began: float


class _StopError(Exception):
    def __init__(self, why: Stop) -> None:
        super().__init__(why)
        self.why: Stop = why


def with_openings(scope: Scope, tasks: Sequence[Task], summarizer: Summarizer) -> list[Told]:
    """
    Reserve the first calls of tasks in one transaction, beside the loop.

    Raises:
        OptchatError: the store could not be written; nothing is reserved.
    """
    if not tasks:
        return []
    prepared = prepare(scope, tasks, summarizer)
    return opened(scope, prepared, calls.begin_all(scope, [each.start for each in prepared]))


@frozen
class Prepared:
    """A conversation before its first call is reserved."""

    task: Task
    flow: Flow
    request: SummaryRequest
    start: Start
    waited_from: float


def prepare(scope: Scope, tasks: Iterable[Task], summarizer: Summarizer) -> list[Prepared]:
    """What tasks would ask for first, and what that may take. Nothing is stored."""
    found: list[Prepared] = []
    for task in tasks:
        flow = summary_flow(task.summary, attempts=scope.policy.summary_attempts, timeout_seconds=CALL_SECONDS)
        request = next(flow)
        start = _start(task, request, summarizer, None)
        found.append(Prepared(task, flow, request, start, scope.clock.monotonic()))
    return found


def opened(scope: Scope, prepared: Sequence[Prepared], reserved: Sequence[int | Stop]) -> list[Told]:
    """Prepared conversations with what became of their reservations."""
    now = scope.clock.monotonic()
    return [
        Told(
            each.task,
            each.start.summarizer,
            opening=Opening(each.flow, each.request, call, now - each.waited_from, now),
        )
        for each, call in zip(prepared, reserved, strict=True)
    ]


def never_made(begun: Iterable[Told]) -> list[Finished]:
    """What is to be written down of calls that were reserved, and will not be made after all."""
    openings = (told.opening for told in begun)
    return [
        Finished(opening.call, "cancelled", None, int(opening.waited_seconds * 1_000_000), 0)
        for opening in openings
        if opening is not None and isinstance(opening.call, int)
    ]


def _start(task: Task, request: SummaryRequest, summarizer: Summarizer, why: str | None) -> Start:
    most = Need(request_bytes(request) + request.max_output_tokens, _most_cost(summarizer, request))
    return Start(task.job, request.attempt, why, summarizer.name, most, task.epoch)


class Asker:
    """Asks the scope's summarizer, and the fallback where that one declines. For one loop."""

    def __init__(self, summarizer: Summarizer, fallback: Summarizer | None, in_store: InStore) -> None:
        self._summarizer, self._fallback = summarizer, fallback
        self._in_store = in_store
        self._idle: list[_Lane] = []

    async def ask(self, scope: Scope, told: Told) -> None:
        """
        Fill in what became of a task.

        Raises:
            OptchatError: the store could not be written; the task has no answer then.
        """
        try:
            told.answer = await self._answer(scope, told)
        except _StopError as stop:
            told.answer = Stopped(stop.why)

    async def let_go(self) -> None:
        """The loop ends: clients of it let go of their connections, and idle threads end."""
        while self._idle:
            self._idle.pop().end()
        for summarizer in (self._summarizer, self._fallback):
            close = getattr(summarizer, "aclose", None)
            if close is not None:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_LETTING_GO_SECONDS):
                    await close()

    async def _answer(self, scope: Scope, told: Told) -> Answer:
        attempts = scope.policy.summary_attempts
        try:
            return await self._conversation(scope, told, self._summarizer, attempts, None)
        except SummaryRejected as error:
            if not error.refused or self._fallback is None:
                return Failed(str(error), final=True)  # the same summarizer would answer the same again
        except _CallError as error:
            return error.trouble or Failed(error.described, final=False)
        told.summarizer = self._fallback.name
        try:
            with anyio.fail_after(FALLBACK_SECONDS):
                return await self._conversation(scope, told, self._fallback, 1, "refused")
        except (SummaryRejected, _CallError, TimeoutError) as error:
            reason = error.described if isinstance(error, _CallError) else str(error) or "it took too long"
            return Failed(f"refused, and the fallback gave no summary either: {reason}", final=True)

    async def _conversation(
        self, scope: Scope, told: Told, summarizer: Summarizer, attempts: int, why: str | None
    ) -> Accepted:
        opening, told.opening = told.opening, None  # the fallback's conversation is another
        if opening is None:
            seconds = CALL_SECONDS if summarizer is self._summarizer else FALLBACK_SECONDS
            flow = summary_flow(told.task.summary, attempts=attempts, timeout_seconds=seconds)
            request = next(flow)
        else:
            flow, request = opening.flow, opening.request
        try:
            call = None if opening is None else _reserved(scope, told, opening)
            while True:
                call = call or await self._begun(scope, told, summarizer, request, why)
                reply = await self._reply(scope, call, summarizer, request)
                outcome: CallOutcome = "rejected"
                try:
                    request = flow.send(reply)
                except StopIteration as stop:
                    outcome = "accepted"
                    accepted: Accepted = stop.value
                    return accepted
                except SummaryRejected as error:
                    outcome = "refused" if error.refused else "rejected"
                    raise
                finally:
                    call.ended(outcome, reply)
                call = None
                verdict = judge(told.task.summary, reply)
                why = verdict.reason if isinstance(verdict, Rejection) else None
        finally:
            flow.close()

    async def _begun(
        self, scope: Scope, told: Told, summarizer: Summarizer, request: SummaryRequest, why: str | None
    ) -> _Call:
        waited_from = scope.clock.monotonic()
        start = _start(told.task, request, summarizer, why)
        before = tuple(told.finished)
        begun = await self._in_store(calls.begin, scope, start, before)
        del told.finished[: len(before)]
        if not isinstance(begun, int):
            raise _StopError(begun)
        now = scope.clock.monotonic()
        return _Call(begun, told, scope, now, now - waited_from)

    async def _reply(self, scope: Scope, call: _Call, summarizer: Summarizer, request: SummaryRequest) -> SummaryReply:
        try:
            with anyio.fail_after(request.timeout_seconds + _GRACE_SECONDS):
                return as_reply(await self._said(summarizer, request))
        except anyio.get_cancelled_exc_class():
            call.ended("cancelled", None)
            raise
        except Exception as error:
            if is_refusal(error):  # some providers say it by an error
                return SummaryReply("", refused=True)
            trouble = trouble_of(error, scope.clock.now())
            call.ended("failed" if trouble is None else "trouble", None)
            raise _CallError(_in_words(error), trouble) from error

    async def _said(self, summarizer: Summarizer, request: SummaryRequest) -> str | SummaryReply:
        said: Reply
        if _is_async(summarizer):
            said = summarizer.summarize(request)
        else:
            said = await self._in_thread(summarizer.summarize, request)
        return await said if isinstance(said, Awaitable) else said

    async def _in_thread(self, function: Callable[[SummaryRequest], Reply], request: SummaryRequest) -> Reply:
        done, loop = anyio.Event(), asyncio.get_running_loop()
        box: list[Reply | BaseException] = []

        def run() -> None:
            try:
                box.append(function(request))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
                box.append(error)
            with suppress(RuntimeError):  # the loop is over: nobody waits for this answer
                loop.call_soon_threadsafe(done.set)

        lane = self._idle.pop() if self._idle else _Lane()
        lane.put(run)
        try:
            await done.wait()
        except BaseException:
            lane.end()  # with the call that is left alone
            raise
        self._idle.append(lane)
        answer = box[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, BaseException):  # a SystemExit of the caller's code ends its thread, not this one
            raise RuntimeError(f"the summarizer raised {type(answer).__name__}") from answer  # noqa: TRY004 - no wrong type: a wrong end
        return answer


class _Lane:
    """A daemon thread that makes one call after the other: to start one costs more than all else of a short call."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], None] | None]()
        threading.Thread(target=self._run, name="optchat-summarizer", daemon=True).start()

    def put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def end(self) -> None:
        """After the call that is under way, if one is."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class _CallError(Exception):
    """A call that gave no reply: what it looked like, and whether it is the provider's trouble."""

    def __init__(self, described: str, trouble: Trouble | None) -> None:
        super().__init__(described)
        self.described, self.trouble = described, trouble


@frozen
class _Call:
    """A call that has begun."""

    call_pk: int
    told: Told
    scope: Scope
    began: float
    waited: float

    def ended(self, outcome: CallOutcome, reply: SummaryReply | None) -> None:
        """Note what became of it, to be written with what follows from it."""
        inside = 0.0 if reply is None else reply.waited_seconds
        latency = self.scope.clock.monotonic() - self.began - inside
        self.told.finished.append(
            Finished(
                self.call_pk,
                outcome,
                reply,
                int((self.waited + inside) * 1_000_000),
                max(0, int(latency * 1_000_000)),
            )
        )


def _reserved(scope: Scope, told: Told, opening: Opening) -> _Call:
    if not isinstance(opening.call, int):
        raise _StopError(opening.call)
    return _Call(opening.call, told, scope, opening.began, opening.waited_seconds)


def _is_async(summarizer: Summarizer) -> bool:
    """Whether ``summarize`` gives a coroutine at once; anything else could block, and goes to a thread."""
    function = getattr(summarizer, "function", summarizer.summarize)
    return inspect.iscoroutinefunction(function)


def _in_words(error: Exception) -> str:
    """
    What is kept of an error: of the caller's own code what it says, for whoever is to mend it; of a provider, whose
    texts may hold content or a key, class and status.
    """
    said = str(error).partition("\n")[0][:_MOST_CHARACTERS]
    if isinstance(error, OptchatError) or not said or status_of(error) is not None or trouble_of(error, _LONG_AGO):
        return described(error)
    return f"{type(error).__name__}: {said}"


def _most_cost(summarizer: Summarizer, request: SummaryRequest) -> float | None:
    price = getattr(summarizer, "price", None)
    if not isinstance(price, Price):
        return None
    return price.most(request_bytes(request), request.max_output_tokens)
