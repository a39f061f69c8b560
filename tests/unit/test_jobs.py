"""The table of jobs: every pair of state and event is a step, or the lease is lost."""

from typing import get_args

import pytest

from optchat.core.errors import LeaseLost
from optchat.core.jobs import (
    FAILED,
    KIND_NUMBER,
    KINDS,
    LEASED,
    PRIORITY,
    READY,
    STATES,
    WAITING,
    JobEvent,
    JobKind,
    JobState,
    advance,
)

# Rows are states, columns events; "-" has no such step.
TABLE = """
          inputs_landed claim   expire complete retry exhaust expand  rearm
waiting   ready         -       -      -        -     -       -       -
ready     -             leased  -      -        -     -       -       -
leased    -             leased  ready  done     ready failed  waiting -
failed    -             -       -      -        -     -       -       ready
done      -             -       -      -        -     -       -       -
"""


def cells() -> list[tuple[str, str, str]]:
    head, *rows = [row.split() for row in TABLE.strip().splitlines()]
    return [(row[0], event, after) for row in rows for event, after in zip(head, row[1:], strict=True)]


def test_the_table_here_has_every_pair() -> None:
    pairs = {(state, event) for state, event, _ in cells()}
    assert pairs == {(state, event) for state in get_args(JobState) for event in get_args(JobEvent)}


@pytest.mark.parametrize(("state", "event", "after"), cells())
def test_every_pair_is_a_step_or_the_lease_is_lost(state: JobState, event: JobEvent, after: str) -> None:
    if after == "-":
        with pytest.raises(LeaseLost, match=f"a {state} job cannot {event}; drop the result and claim again"):
            advance(state, event)
    else:
        assert advance(state, event) == after


def test_numbers_that_files_were_written_with() -> None:
    assert KIND_NUMBER == {"leaf": 0, "merge": 1, "chunk": 2, "publication": 3, "index": 4, "remake": 5}
    assert get_args(JobKind) == KINDS
    assert STATES == ("waiting", "ready", "leased", "failed")
    assert (WAITING, READY, LEASED, FAILED) == (0, 1, 2, 3)


def test_what_the_next_turn_waits_for_comes_first() -> None:
    assert sorted(PRIORITY) == sorted(KINDS)
    assert PRIORITY["leaf"] == PRIORITY["chunk"] < PRIORITY["publication"] < PRIORITY["merge"] < PRIORITY["index"]
