"""
The ledger of summarizer calls, and what pauses them.

Decides: how calls and pauses are stored, and that what was not reported stays unknown.
Refuses to know: ceilings, and what counts as trouble.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.jobs import KIND_NUMBER, JobKind
from optchat.core.ledger import CallOutcome, Calls, Measure, Spent
from optchat.store.rows import Connection, all_rows, insert, one_row, run


def start_call(
    db: Connection,
    *,
    scope_pk: int,
    at: int,
    job_kind: JobKind,
    attempt: int,
    why: str | None,
    model: str,
    reserved_tokens: int,
    reserved_cost: float | None,
) -> int:
    """Write down a call that is about to begin; its key."""
    return insert(
        db,
        "INSERT INTO call (scope_pk, at, job_kind, attempt, why, model, wait_us, latency_us, outcome, reserved_tokens,"
        " reserved_cost) VALUES (:scope, :at, :kind, :attempt, :why, :model, 0, 0, 'started', :tokens, :cost)",
        {
            "scope": scope_pk,
            "at": at,
            "kind": KIND_NUMBER[job_kind],
            "attempt": attempt,
            "why": why,
            "model": model,
            "tokens": reserved_tokens,
            "cost": reserved_cost,
        },
    )


def finish_call(
    db: Connection,
    call_pk: int,
    *,
    outcome: CallOutcome,
    model: str | None,
    input_tokens: int | None,
    output_tokens: int | None,
    cache_read_tokens: int | None,
    cache_write_tokens: int | None,
    cost: float | None,
    wait_us: int,
    latency_us: int,
) -> None:
    """What became of a call; figures that were not reported are None. ``model``: None leaves the summarizer's name."""
    run(
        db,
        "UPDATE call SET outcome = :outcome, model = coalesce(:model, model), input_tokens = :input,"
        " output_tokens = :output, cache_read_tokens = :cache_read, cache_write_tokens = :cache_write, cost = :cost,"
        " wait_us = :wait, latency_us = :latency WHERE call_pk = :call AND outcome = 'started'",
        {
            "call": call_pk,
            "outcome": outcome,
            "model": model,
            "input": input_tokens,
            "output": output_tokens,
            "cache_read": cache_read_tokens,
            "cache_write": cache_write_tokens,
            "cost": cost,
            "wait": wait_us,
            "latency": latency_us,
        },
    )


def sum_calls(db: Connection, scope_pk: int, since: int) -> Calls:
    """The calls since a time; a column of which nothing was reported is None, never 0."""
    row = one_row(
        db,
        "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cost) FROM call"
        " WHERE scope_pk = :scope AND at >= :since",
        {"scope": scope_pk, "since": since},
    )
    return Calls(0, None, None, None, None) if row is None else Calls(*row)


# A call counts with what it reported, else with what was reserved for it; tokens are input and output together.
_TOKENS = (
    "CASE WHEN input_tokens IS NULL OR output_tokens IS NULL THEN reserved_tokens ELSE input_tokens + output_tokens END"
)
_COST = "coalesce(cost, reserved_cost, 0.0)"


def spent_since(db: Connection, scope_pk: int, since: int) -> Spent:
    """What calls since a time took at the most: what ceilings count."""
    row = one_row(
        db,
        f"SELECT count(*), coalesce(sum({_TOKENS}), 0), coalesce(sum({_COST}), 0.0) FROM call"
        " WHERE scope_pk = :scope AND at > :since",
        {"scope": scope_pk, "since": since},
    )
    return Spent(0, 0, 0.0) if row is None else Spent(*row)


_AMOUNT: dict[Measure, str] = {"calls": "1", "tokens": _TOKENS, "cost": _COST}


def amounts_since(db: Connection, scope_pk: int, since: int, measure: Measure) -> list[tuple[int, float]]:
    """(time, amount) of each call since a time, oldest first."""
    return [
        (row[0], row[1])
        for row in all_rows(
            db,
            f"SELECT at, {_AMOUNT[measure]} FROM call WHERE scope_pk = :scope AND at > :since ORDER BY at",
            {"scope": scope_pk, "since": since},
        )
    ]


def answered_since(db: Connection, scope_pk: int, since: int) -> bool:
    """Whether some call that began after a time was answered: then the provider was there."""
    return (
        one_row(
            db,
            "SELECT 1 FROM call WHERE scope_pk = :scope AND at > :since"
            " AND outcome IN ('accepted', 'rejected', 'refused') LIMIT 1",
            {"scope": scope_pk, "since": since},
        )
        is not None
    )


# ---- pauses ----------------------------------------------------------------------------------------------------------


@frozen
class PauseRow:
    """Why and until when no summarizer is called; times are microseconds, ``until`` None: not by itself."""

    cause: str
    reason: str
    failures: int
    since: int
    until: int | None


def load_pauses(db: Connection, scope_pk: int) -> dict[str, PauseRow]:
    """A scope's pauses by cause; those that are over stand here until a call is answered."""
    return {
        row[0]: PauseRow(*row)
        for row in all_rows(
            db, "SELECT cause, reason, failures, since, until FROM pause WHERE scope_pk = :scope", {"scope": scope_pk}
        )
    }


def save_pause(db: Connection, scope_pk: int, pause: PauseRow) -> None:
    run(
        db,
        "INSERT INTO pause (scope_pk, cause, reason, failures, since, until)"
        " VALUES (:scope, :cause, :reason, :failures, :since, :until) ON CONFLICT (scope_pk, cause)"
        " DO UPDATE SET reason = excluded.reason, failures = excluded.failures, until = excluded.until",
        {
            "scope": scope_pk,
            "cause": pause.cause,
            "reason": pause.reason,
            "failures": pause.failures,
            "since": pause.since,
            "until": pause.until,
        },
    )


def end_trouble_before(db: Connection, scope_pk: int, call_pk: int) -> None:
    """End the trouble that was over when a call began: its answer tells nothing of trouble that came after it began."""
    run(
        db,
        "DELETE FROM pause WHERE scope_pk = :scope AND cause = 'trouble'"
        " AND until <= (SELECT at FROM call WHERE call_pk = :call)",
        {"scope": scope_pk, "call": call_pk},
    )


def end_pause(db: Connection, scope_pk: int, cause: str) -> bool:
    """Whether there was one."""
    return (
        run(db, "DELETE FROM pause WHERE scope_pk = :scope AND cause = :cause", {"scope": scope_pk, "cause": cause}) > 0
    )
