"""
Calls of summarizers (§ 10): reserved before they begin, written down when they end, paused when they cannot help.

Decides: nothing that core does not: it counts what the ledger has against the policy's ceilings, over all processes.
Refuses to know: models, and what a call was about.

A call's row is there before the call is: ceilings count it from then on, in whatever process the next one begins, and a
process that dies over it leaves a row that says so. Trouble with a provider is everybody's: it pauses the scope, and
when the pause is over one call goes first. A ceiling is the policy of a process: others are only told of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

from attrs import frozen

from optchat.core.ledger import CallOutcome, Ceiling, Need, Spent, ceilings_of, reached, room_again
from optchat.core.summarizing import SummaryReply
from optchat.core.trouble import Trouble, pause_seconds
from optchat.engine.handle import Scope
from optchat.store import calls as stored, queue, scopes
from optchat.store.calls import PauseRow
from optchat.store.queue import JobRow
from optchat.store.rows import Connection, moment_of

Stop: TypeAlias = Literal["lease", "trouble", "ceiling"]
ANSWERED: Final[frozenset[CallOutcome]] = frozenset(("accepted", "rejected", "refused"))
NO_JOB: Final = 0  # the key of work that is no job of the queue: somebody waits for it himself
_SECOND_US: Final = 1_000_000
_KEY_TROUBLE: Final = "authentication"


@frozen
class Start:
    """A call that a job is about to make: the try of its conversation, why there is another, and what it can take."""

    job: JobRow
    attempt: int
    why: str | None
    summarizer: str
    need: Need
    epoch: int | None = None  # the scope's when the call's text was read; None: nobody may have removed any of it


@frozen
class Finished:
    """What became of a call; ``reply`` is None where there was none. Times are microseconds."""

    call_pk: int
    outcome: CallOutcome
    reply: SummaryReply | None
    wait_us: int
    latency_us: int


def begin(scope: Scope, start: Start, finished: Sequence[Finished] = ()) -> int | Stop:
    """
    Reserve a call, and renew its job's lease, in one transaction with what became of earlier calls.

    Returns:
        The call's key; or why it may not begin: the lease is another's, the scope is paused, or a ceiling is reached.
    """
    return begin_all(scope, [start], finished)[0]


def begin_all(scope: Scope, starts: Sequence[Start], finished: Sequence[Finished] = ()) -> list[int | Stop]:
    """Reserve calls in order, each as :func:`begin`, in one transaction."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        keep(db, scope.pk, finished)
        return begin_in(scope, db, starts)


def begin_in(scope: Scope, db: Connection, starts: Sequence[Start]) -> list[int | Stop]:
    """As :func:`begin_all`, inside of the caller's transaction."""
    ceilings = ceilings_of(scope.policy)
    return [_begin(scope, db, start, ceilings) for start in starts]


def _begin(scope: Scope, db: Connection, start: Start, ceilings: Sequence[Ceiling]) -> int | Stop:
    now = scope.now()
    until = now + int(scope.policy.lease_seconds * _SECOND_US)
    leased = start.job.job_pk != NO_JOB
    if leased and not queue.renew(db, start.job.job_pk, start.job.fence, until):
        return "lease"
    if start.epoch is not None and start.epoch != scopes.scope_counters(db, scope.pk)[0]:
        return "lease"  # something was removed since: its result would not be taken, and its text may be what is gone
    if troubled(db, scope.pk, now):
        return "trouble"
    if ceilings and not _has_room(scope, db, ceilings, start.need, now):
        return "ceiling"
    return stored.start_call(
        db,
        scope_pk=scope.pk,
        at=now,
        job_kind=start.job.kind,
        attempt=start.attempt,
        why=start.why,
        model=start.summarizer,
        reserved_tokens=start.need.tokens,
        reserved_cost=start.need.cost,
    )


def write_down(scope: Scope, finished: Sequence[Finished]) -> None:
    """What became of calls that nothing else follows from."""
    if finished:
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            keep(db, scope.pk, finished)


def keep(db: Connection, scope_pk: int, finished: Sequence[Finished]) -> None:
    """Write down what became of calls, whatever became of their answers; what was not reported stays unknown."""
    for call in finished:
        reply = call.reply
        stored.finish_call(
            db,
            call.call_pk,
            outcome=call.outcome,
            model=None if reply is None else reply.model,
            input_tokens=None if reply is None else reply.input_tokens,
            output_tokens=None if reply is None else reply.output_tokens,
            cache_read_tokens=None if reply is None else reply.cache_read_tokens,
            cache_write_tokens=None if reply is None else reply.cache_write_tokens,
            cost=None if reply is None else reply.cost,
            wait_us=call.wait_us,
            latency_us=call.latency_us,
        )
        if call.outcome in ANSWERED:
            stored.end_trouble_before(db, scope_pk, call.call_pk)
    if finished:  # what it took in truth may leave room again: the next call looks
        stored.end_pause(db, scope_pk, "ceiling")


# ---- ceilings --------------------------------------------------------------------------------------------------------


def _has_room(scope: Scope, db: Connection, ceilings: Sequence[Ceiling], need: Need, now: int) -> bool:
    """Whether a call fits under every ceiling; where not, the scope says so until it does."""
    over = reached(ceilings, _spent(db, scope.pk, ceilings, now), need)
    if over is None:
        stored.end_pause(db, scope.pk, "ceiling")
        return True
    since = now - over.window_seconds * _SECOND_US
    again = room_again(over, stored.amounts_since(db, scope.pk, since, over.measure), need)
    reason = f"{_named(over)} and reached"
    if not over.can_ever_hold(need):
        reason = f"{_named(over)} and too low: one call may take {need.of(over.measure):,}; raise it"
    stored.save_pause(db, scope.pk, PauseRow("ceiling", reason, 0, now, again))
    return False


def _named(ceiling: Ceiling) -> str:
    return f"{ceiling.name} is {ceiling.limit:,}"


def _is_one_of(pause: PauseRow, ceilings: Sequence[Ceiling]) -> bool:
    """Whether a ceiling's pause is by one of these: another process may have other ones."""
    return any(pause.reason.startswith(f"{_named(ceiling)} and ") for ceiling in ceilings)


def _spent(db: Connection, scope_pk: int, ceilings: Sequence[Ceiling], now: int) -> Mapping[int, Spent]:
    windows = {ceiling.window_seconds for ceiling in ceilings}
    return {seconds: stored.spent_since(db, scope_pk, now - seconds * _SECOND_US) for seconds in windows}


# ---- pauses ----------------------------------------------------------------------------------------------------------


@frozen
class Paused:
    """Why no summarizer is called, and until when; None: not by itself."""

    reason: str
    until: int | None

    @property
    def resumes_at(self) -> datetime | None:
        return None if self.until is None else moment_of(self.until)


def paused(db: Connection, scope_pk: int, now: int) -> Paused | None:
    """What pauses a scope's summaries now, in this or another process; of several, what lasts longest."""
    lasting = [pause for pause in stored.load_pauses(db, scope_pk).values() if _lasts(pause, now)]
    if not lasting:
        return None
    longest = max(lasting, key=lambda pause: (pause.until is None, pause.until or 0))
    return Paused(longest.reason, longest.until)


def troubled(db: Connection, scope_pk: int, now: int) -> bool:
    """Whether the provider's trouble holds now."""
    pause = stored.load_pauses(db, scope_pk).get("trouble")
    return pause is not None and _lasts(pause, now)


def _lasts(pause: PauseRow, now: int) -> bool:
    return pause.until is None or pause.until > now


def stopped(scope: Scope, db: Connection, now: int) -> bool:
    """Whether this process makes no call now: for the provider's trouble, or for a ceiling of its own."""
    pauses = stored.load_pauses(db, scope.pk)
    trouble, over = pauses.get("trouble"), pauses.get("ceiling")
    if trouble is not None and _lasts(trouble, now):
        return True
    # The least call may have room where the next one has not: claimed again, it would be given back each time.
    return over is not None and _lasts(over, now) and _is_one_of(over, ceilings_of(scope.policy))


def summaries_allowed(scope: Scope, db: Connection, now: int) -> int | None:
    """
    How many jobs that need a summarizer may be claimed now; None: any number.

    After trouble one call goes first, whichever process makes it: eight at once would only meet the same again.
    """
    if stopped(scope, db, now):
        return 0
    ceilings = ceilings_of(scope.policy)
    if ceilings and not _has_room(scope, db, ceilings, Need(0), now):
        return 0
    trouble = stored.load_pauses(db, scope.pk).get("trouble")
    return None if trouble is None else max(0, 1 - queue.summaries_leased(db, scope.pk))


def met_trouble(scope: Scope, job: JobRow, trouble: Trouble, finished: Sequence[Finished], chance: float) -> bool:
    """
    A call met with provider trouble: the scope pauses, longer each time in a row, and the job keeps its attempts.

    Args:
        chance: in [0, 1): spreads the ends of pauses of several scopes and processes.

    Returns:
        False where the trouble is the job's own: it met with it before, and in between the provider answered others.
        Then nothing pauses, for one job must not stop all; the caller counts a failed attempt.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        now = scope.now()
        keep(db, scope.pk, finished)
        if not queue.held(db, job):
            return True
        if job.troubled_at is not None and stored.answered_since(db, scope.pk, job.troubled_at):
            queue.note_trouble(db, job, now)
            return False
        before = stored.load_pauses(db, scope.pk).get("trouble")
        # Calls that were under way together meet with the same trouble: it counts once.
        together = before is not None and before.until is not None and before.until > now
        failures = (0 if before is None else before.failures) + (not together)
        until = now + int(pause_seconds(failures, trouble.retry_after_seconds, chance) * _SECOND_US)
        if before is not None and before.until is not None and together:
            until = before.until if trouble.retry_after_seconds is None else max(until, before.until)
        reason = f"{trouble.kind}: {trouble.message}"
        stored.save_pause(db, scope.pk, PauseRow("trouble", reason, failures, now, until))
        queue.postpone(db, job, error=trouble.message, due_at=now, troubled_at=now)
    scope.wake()
    return True


def paused_for_key(db: Connection, scope_pk: int) -> bool:
    """Whether the provider did not accept the key, or had none."""
    trouble = stored.load_pauses(db, scope_pk).get("trouble")
    return trouble is not None and trouble.reason.startswith(_KEY_TROUBLE)


def resume(db: Connection, scope_pk: int) -> None:
    """End a scope's pauses: somebody asked to try again, or changed what was wrong."""
    stored.end_pause(db, scope_pk, "trouble")
    stored.end_pause(db, scope_pk, "ceiling")
