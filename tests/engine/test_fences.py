"""Invariant 10, Fenced, step by step: what a worker that was overtaken says, in whatever way, changes nothing."""

from collections.abc import Callable, Iterator

import pytest

import optchat
from optchat.core.compactor_view import rooms
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.tree import Recipe
from optchat.core.trouble import Trouble
from optchat.engine import calls, remaking, work
from optchat.engine.inputs import Task
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from optchat.testing.memories import open_beside
from tests.engine.helpers import say, words
from tests.engine.working import NAME, begin, claim, commit, ended, job_row, rows


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory(clock=ManualClock(), summarizer=DeterministicSummarizer()) as memory:
        yield memory


def overtaken(memory: optchat.Memory) -> tuple[Task, Task]:
    """A worker whose lease another has now: its task, and the other's."""
    say(memory.session("s"), words(1, 3_000))
    (late,) = claim(memory)
    with memory._scope.store.write() as db:
        db.execute("UPDATE job SET lease_until = 0 WHERE state = 2")
    assert work.end_dead_leases(memory._scope) == 1
    (newer,) = claim(open_beside(memory))
    assert newer.job.job_pk == late.job.job_pk
    return late, newer


LATE: dict[str, Callable[[optchat.Memory, Task], object]] = {
    "commits": commit,
    "stands in": lambda memory, task: work.commit(memory._scope, [work.stand_in(memory._scope, task)]),
    "fails": lambda memory, task: work.fail(memory._scope, task, "RuntimeError", 5.0),
    "fails for good": lambda memory, task: work.fail(memory._scope, task, "RuntimeError", None),
    "is damaged": lambda memory, task: work.fail_for_good(memory._scope, task.job, "IntegrityError"),
    "meets trouble": lambda memory, task: calls.met_trouble(
        memory._scope, task.job, Trouble("transport", "ConnectionError"), [], 0.0
    ),
    "renews": lambda memory, task: work.renew(memory._scope, {task.job.job_pk: task.job.fence}),
    "gives back": lambda memory, task: work.give_back(memory._scope, {task.job.job_pk: task.job.fence}, wait_seconds=5),
    "begins a call": begin,
}


@pytest.mark.parametrize("says", LATE)
def test_what_a_late_worker_says_changes_nothing(says: str, memory: optchat.Memory) -> None:
    late, newer = overtaken(memory)
    before = job_row(memory, newer), rows(memory, "SELECT * FROM job"), rows(memory, "SELECT * FROM pause")
    LATE[says](memory, late)
    assert (job_row(memory, newer), rows(memory, "SELECT * FROM job"), rows(memory, "SELECT * FROM pause")) == before
    assert rows(memory, "SELECT count(*) FROM node") == [(0,)]
    assert commit(memory, newer) == 1, "the one that holds it goes on"
    assert memory.settle().ready
    assert memory.verify().ok


def test_a_late_result_is_not_taken_once_the_job_is_done(memory: optchat.Memory) -> None:
    late, newer = overtaken(memory)
    assert commit(memory, newer) == 1
    text = memory.view(memory.session("s").id).text
    assert commit(memory, late) == 0
    assert work.fail(memory._scope, late, "RuntimeError", None) is False
    assert memory.view(memory.session("s").id).text == text
    assert memory.settle().ready


def test_several_results_are_taken_or_not_each_by_itself(memory: optchat.Memory) -> None:
    late, newer = overtaken(memory)
    say(memory.session("t"), words(2, 3_000))
    (other,) = claim(memory)
    results = [
        work.Result(task, f"text {task.job.fence}", Recipe("summary", NAME, PROMPT_VERSION)) for task in (late, other)
    ]
    assert work.commit(memory._scope, results) == 1
    assert job_row(memory, newer)["state"] == 2
    assert job_row(memory, other) == {}


def test_a_result_of_what_was_made_anew_meanwhile_is_dropped_and_its_job_is_ready(memory: optchat.Memory) -> None:
    session = memory.session("s")
    for number in range(2):
        say(session, words(number, 3_000))
    for task in claim(memory, 8):
        assert commit(memory, task) == 1
    own = rows(memory, "SELECT tree_pk FROM segment")[0][0]
    merge, *others = sorted(claim(memory, 8), key=lambda task: task.job.subject >> 40 != own)
    assert merge.job.kind == "merge"
    work.give_back(memory._scope, {task.job.job_pk: task.job.fence for task in others}, wait_seconds=5)
    call = begin(memory, merge)
    assert isinstance(call, int)
    plan = remaking.begin_repair(memory._scope, f"session:{session.id}:0:0+1", rooms(65_536, 1_000))
    while (task := plan.next()) is not None:
        plan.take(task, "another text of some length " * 15, Recipe("summary", NAME, PROMPT_VERSION))
    assert remaking.commit_repair(memory._scope, plan) >= 1
    assert commit(memory, merge, ended(call, "accepted", 10, 2)) == 0
    assert job_row(memory, merge)["state"] == 1
    assert job_row(memory, merge)["attempts"] == 0, "that is no failure"
    assert rows(memory, "SELECT outcome, input_tokens FROM call") == [("accepted", 10)]
    assert memory.settle().ready
    assert memory.verify().ok
