"""
Workers as the tests of the queue play them: each step of a job by itself, and no thread, loop or model.

A worker is whoever holds tasks; which process or handle it is in is the test's to say.
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optchat
from optchat.core.ledger import CallOutcome, Need
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.summarizing import SummaryReply, run_flow, summary_flow
from optchat.core.tree import Recipe
from optchat.core.trouble import Trouble, TroubleKind
from optchat.engine import calls, work
from optchat.engine.calls import Finished, Start, Stop
from optchat.engine.inputs import Task
from optchat.memory.opening import open_with
from optchat.testing import DeterministicSummarizer, ManualClock

NAME = "deterministic-1"
SECONDS = 30.0  # nothing takes so long: what hangs fails


class Gate:
    """
    A summarizer whose calls wait until they are let go: as slow as a test wants it, and no clock is asked.

    ``asked`` is released with each call that begins; ``open`` lets all of them go.

    Args:
        meanwhile: what happens when a call has begun.
    """

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.open = threading.Event()
        self.asked = threading.Semaphore(0)
        self.requests: list[optchat.SummaryRequest] = []
        self.inner = DeterministicSummarizer()
        self.name, self.window_tokens = self.inner.name, self.inner.window_tokens

    def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
        self.requests.append(request)
        self.meanwhile()
        self.asked.release()
        assert self.open.wait(SECONDS), "nobody let it go"
        return self.inner.summarize(request)

    def is_asked(self) -> None:
        """Wait for a call to begin."""
        assert self.asked.acquire(timeout=SECONDS), "nobody asked"


class WanderingClock(ManualClock):
    """Its time of day is set now and then, ahead or back; what it measures goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._set = timedelta()

    def jump(self, seconds: float) -> None:
        """Somebody sets it."""
        self._set += timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._set


def open_wandering(
    path: Path,
    *,
    scope: str = "test",
    summarizer: optchat.Summarizer | None = None,
    policy: optchat.Policy | None = None,
) -> optchat.Memory:
    """A file under a clock that tests set, and nothing at work on it in the background."""
    return open_with(
        path,
        scope=scope,
        summarizer=summarizer or DeterministicSummarizer(),
        tokenizer=None,
        policy=policy or optchat.Policy(),
        background=False,
        mode="rwc",
        clock=WanderingClock(),
    )


def lease(memory: optchat.Memory, limit: int = 1, name: str = NAME, window_tokens: int = 65_536) -> work.Claimed:
    """Lease jobs for a summarizer that makes calls."""
    return work.claim(memory._scope, summarizer=name, is_default=False, window_tokens=window_tokens, limit=limit)


def claim(memory: optchat.Memory, limit: int = 1, name: str = NAME) -> list[Task]:
    """The summaries of a lease."""
    return list(lease(memory, limit, name).tasks)


def begin(
    memory: optchat.Memory,
    task: Task,
    tokens: int = 100,
    cost: float | None = None,
    finished: tuple[Finished, ...] = (),
) -> int | Stop:
    """Reserve a call: its key, or why it may not begin."""
    return calls.begin(memory._scope, Start(task.job, 1, None, NAME, Need(tokens, cost)), finished)


def begun(memory: optchat.Memory, task: Task, tokens: int = 100, cost: float | None = None) -> int:
    """Reserve a call that may begin."""
    call = begin(memory, task, tokens, cost)
    assert isinstance(call, int), call
    return call


def ended(
    call: int,
    outcome: CallOutcome = "accepted",
    tokens_in: int | None = None,
    tokens_out: int | None = None,
    cost: float | None = None,
) -> Finished:
    """What became of a call, with the figures that were reported."""
    reply = SummaryReply("", input_tokens=tokens_in, output_tokens=tokens_out, cost=cost)
    return Finished(call, outcome, reply if outcome in calls.ANSWERED else None, 0, 0)


def summary(task: Task) -> work.Result:
    """A result that keeps the rules."""
    accepted = run_flow(summary_flow(task.summary, attempts=1), DeterministicSummarizer().summarize)
    return work.Result(task, accepted.text, Recipe("summary", NAME, PROMPT_VERSION))


def commit(memory: optchat.Memory, task: Task, *finished: Finished) -> int:
    """A summary comes in; whether it was taken."""
    return work.commit(memory._scope, [summary(task)], finished)


def answer(memory: optchat.Memory, task: Task) -> None:
    """A call begins, and its answer is taken."""
    assert commit(memory, task, ended(begun(memory, task))) == 1


def trouble(
    memory: optchat.Memory,
    task: Task,
    kind: TroubleKind = "transport",
    retry_after: float | None = None,
    chance: float = 0.0,
    call: int | None = None,
) -> bool:
    """A call begins, unless one has, and meets with trouble; whether it pauses the scope."""
    call = begun(memory, task) if call is None else call
    what = Trouble(kind, f"{kind.title()}Error", retry_after)
    return calls.met_trouble(memory._scope, task.job, what, [ended(call, "trouble")], chance)


def rows(memory: optchat.Memory, sql: str, **bindings: Any) -> list[tuple[Any, ...]]:
    """What the file says."""
    with memory._scope.store.read() as db:
        return list(db.execute(sql, bindings))


def job_row(memory: optchat.Memory, task: Task) -> dict[str, Any]:
    """A job as it is stored; empty when it is done."""
    names = ("state", "attempts", "due_at", "last_error", "fence", "priority", "troubled_at")
    found = rows(memory, f"SELECT {', '.join(names)} FROM job WHERE job_pk = :job", job=task.job.job_pk)
    return dict(zip(names, found[0], strict=True)) if found else {}


def seconds_paused(memory: optchat.Memory) -> float | None:
    """How long the scope is paused from now on; None: it is not, or not for a time."""
    until = memory.status().resumes_at
    return None if until is None else (until - memory._house.clock.now()).total_seconds()
