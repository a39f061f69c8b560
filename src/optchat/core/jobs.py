"""
Jobs, leases and fences (§ 9, § 10).

Decides: which states a job has and which step leads from one to the next.
Refuses to know: threads, and where time comes from.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from optchat.core.errors import LeaseLost

JobKind: TypeAlias = Literal["leaf", "merge", "chunk", "publication", "index", "remake"]
JobState: TypeAlias = Literal["waiting", "ready", "leased", "failed", "done"]
KINDS: Final[tuple[JobKind, ...]] = ("leaf", "merge", "chunk", "publication", "index", "remake")
KIND_NUMBER: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}
STATES: Final[tuple[JobState, ...]] = ("waiting", "ready", "leased", "failed")  # a job that is done has no row
WAITING, READY, LEASED, FAILED = range(4)
INDEX: Final = KIND_NUMBER["index"]  # the one kind that needs no summarizer
# What the next turn of an active session waits for comes first (leaves, and pages on the way to them), then
# publications, then merges, then backlog: leaves of imported history, the index, and summaries that are made anew.
PRIORITY: Final[dict[JobKind, int]] = {"leaf": 0, "chunk": 0, "publication": 1, "merge": 2, "index": 3, "remake": 4}
AWAITED, BACKLOG = PRIORITY["leaf"], 3
JobEvent: TypeAlias = Literal["inputs_landed", "claim", "expire", "complete", "retry", "exhaust", "rearm", "expand"]

# A lease that expired is no failure, and a job that waits is never claimed. "expand" is a leaf whose source turned out
# larger than the summarizer's window: it waits for the pages of its chunk tree.
TRANSITIONS: Final[dict[tuple[JobState, JobEvent], JobState]] = {
    ("waiting", "inputs_landed"): "ready",
    ("ready", "claim"): "leased",
    ("leased", "claim"): "leased",  # retaken from a dead or expired holder, with a higher fence
    ("leased", "expire"): "ready",
    ("leased", "complete"): "done",
    ("leased", "retry"): "ready",
    ("leased", "exhaust"): "failed",
    ("leased", "expand"): "waiting",
    ("failed", "rearm"): "ready",
}


def advance(state: JobState, event: JobEvent) -> JobState:
    """The state after an event; LeaseLost where the table has no such step."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LeaseLost(f"a {state} job cannot {event}; drop the result and claim again") from None
