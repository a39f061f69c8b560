"""The order of work: what the next turn of an active session waits for, then publications, merges, and the rest."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import optchat
from optchat.core.grouping import TranscriptTurn
from optchat.engine import remaking, work
from optchat.engine.history import import_turns
from optchat.engine.inputs import Task
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from optchat.testing.memories import close_beside, open_beside
from tests.engine.helpers import say, words
from tests.engine.working import (
    WanderingClock,
    answer,
    begin,
    begun,
    claim,
    commit,
    ended,
    job_row,
    lease,
    rows,
    summary,
    trouble,
)

AT = datetime(2025, 6, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> WanderingClock:
    return WanderingClock()


@pytest.fixture
def memory(clock: WanderingClock) -> Iterator[optchat.Memory]:
    with temporary_memory(clock=clock, summarizer=DeterministicSummarizer()) as memory:
        yield memory


def claim_all(memory: optchat.Memory) -> Iterator[tuple[str, str]]:
    """Claim one job after the other, and leave them leased: (kind, session key or "") of each."""
    while True:
        claimed = lease(memory, 1, window_tokens=400_000)
        if claimed.empty:
            return
        (job,) = claimed.jobs
        found = rows(
            memory,
            "SELECT key FROM session JOIN generation USING (session_pk) JOIN segment USING (segment_pk)"
            " WHERE tree_pk = :owner",
            owner=job.subject >> 40,
        )
        yield job.kind, found[0][0] if found and job.kind in ("leaf", "merge") else ""


def imported(memory: optchat.Memory, key: str, *texts: str) -> None:
    """A history from elsewhere: a turn for each text."""
    turns = [
        TranscriptTurn(f"old-{number}", (optchat.HostMessage.user(text, at=AT),), has_request=True, outcome="completed")
        for number, text in enumerate(texts)
    ]
    import_turns(memory._scope, memory.session(key)._row, turns)


# ---- the order -------------------------------------------------------------------------------------------------------


def test_leaves_then_publications_then_merges_then_the_rest(memory: optchat.Memory, clock: ManualClock) -> None:
    """Whatever came first: the last that was asked for is the first to be done."""
    imported(memory, "history", words(1, 3_000))
    clock.advance(1)
    say(memory.session("index"), "heliotrope " + "x y " * 20_000)
    (leaf,) = lease(memory, 1, window_tokens=400_000).tasks
    assert commit(memory, leaf) == 1, "and its text is still to be indexed"
    clock.advance(1)
    for number in (1, 2):  # each is published as it is, and both do not fit into one node
        say(memory.session("merges"), words(number, 500))
    say(memory.session("publishes"), "short")
    with memory.session("publishes").turn(words(3, 400)) as turn:
        turn.assistant(words(4, 400))
    clock.advance(1)
    say(memory.session("long"), words(4, 3_000))
    order = list(claim_all(memory))
    assert [each for each in order if each != ("merge", "")] == [  # those are of the shared tree
        ("leaf", "long"),
        ("publication", ""),
        ("merge", "merges"),
        ("leaf", "history"),
        ("index", ""),
    ]


def test_summaries_that_are_made_anew_come_last(memory: optchat.Memory, clock: ManualClock) -> None:
    with optchat.open(memory.path, scope="test", compact="manual") as embedded:
        say(embedded.session("old"), words(1, 3_000))
        assert embedded.settle().ready
    assert remaking.upgrade(memory._scope, "extractive-1") > 0
    clock.advance(1)
    imported(memory, "history", words(2, 3_000))
    kinds = [kind for kind, _ in claim_all(memory)]
    assert kinds[0] == "leaf"
    assert kinds[1:] == ["remake"] * len(kinds[1:])
    assert len(kinds) > 1


def test_what_is_due_first_goes_first_among_equals(memory: optchat.Memory, clock: ManualClock) -> None:
    for key in ("c", "a", "b"):
        say(memory.session(key), words(1, 3_000))
        clock.advance(1)
    assert [key for _, key in claim_all(memory)] == ["c", "a", "b"]


def test_a_session_with_much_to_do_does_not_hold_up_another(memory: optchat.Memory) -> None:
    """Of each session only so many leaves are ready at a time."""
    with memory.session("busy").turn("go") as turn:
        for number in range(30):
            turn.assistant(words(number, 3_000))
    say(memory.session("other"), words(99, 3_000))
    order = [key for kind, key in claim_all(memory) if kind == "leaf"]
    assert order == ["busy"] * 8 + ["other"]


def test_nothing_waits_for_ever(memory: optchat.Memory) -> None:
    """What comes last is done when there is nothing before it."""
    imported(memory, "history", *(words(number, 3_000) for number in range(12)))
    say(memory.session("large"), "heliotrope " + "x y " * 17_000)
    status = memory.settle()
    assert status.ready
    assert status.publications == 13


# ---- history ---------------------------------------------------------------------------------------------------------


def test_the_leaves_of_a_history_are_backlog_until_a_turn_of_it_begins(memory: optchat.Memory) -> None:
    for key in ("one", "two"):
        imported(memory, key, *(words(number, 3_000) for number in range(10)))
    assert set(rows(memory, "SELECT priority FROM job WHERE kind = 0")) == {(3,)}
    turn = memory.session("two").turn("and now?")
    assert [key for kind, key in claim_all(memory) if kind == "leaf"] == ["two"] * 8 + ["one"] * 8
    assert len(rows(memory, "SELECT 1 FROM job WHERE kind = 0 AND priority = 0")) == 10, "those that wait, too"
    turn.end("completed")


def test_what_is_said_in_an_imported_session_is_no_backlog(memory: optchat.Memory) -> None:
    imported(memory, "one", words(1, 3_000))
    with memory.session("one").turn("go on") as turn:
        turn.assistant(words(2, 3_000))
    assert set(rows(memory, "SELECT priority FROM job WHERE kind = 0")) == {(0,)}


def test_the_pages_of_a_large_text_are_as_urgent_as_its_leaf(memory: optchat.Memory) -> None:
    imported(memory, "one", "large " * 17_000)
    say(memory.session("two"), "large " * 17_000)
    claim(memory, 8)  # both leaves wait for their pages now
    chunks = rows(memory, "SELECT tree_pk FROM tree WHERE kind = 'chunk'")
    assert len(chunks) == 2

    def priorities() -> list[list[int]]:
        of_tree = "SELECT DISTINCT priority FROM job WHERE subject >> 40 = :tree"
        return [[level for (level,) in rows(memory, of_tree, tree=tree)] for (tree,) in chunks]

    assert sorted(priorities()) == [[0], [3]]
    turn = memory.session("one").turn("and now?")
    assert priorities() == [[0], [0]]
    assert [task.job.kind for task in claim(memory, 4)] == ["chunk"] * 4
    turn.end("completed")


def test_a_history_that_was_claimed_before_keeps_its_lease(memory: optchat.Memory) -> None:
    imported(memory, "one", words(1, 3_000))
    (task,) = claim(memory)
    turn = memory.session("one").turn("and now?")
    assert job_row(memory, task)["state"] == 2
    assert commit(memory, task) == 1
    turn.end("completed")


# ---- failed jobs are armed again -------------------------------------------------------------------------------------


STOP = optchat.Policy(on_failed="stop", job_attempts=3)


@pytest.fixture
def stopping(clock: WanderingClock) -> Iterator[optchat.Memory]:
    with temporary_memory(clock=clock, policy=STOP, summarizer=DeterministicSummarizer()) as memory:
        yield memory


def exhausted(memory: optchat.Memory) -> Task:
    """A leaf whose attempts are all used up."""
    say(memory.session("s"), words(1, 3_000))
    for _ in range(3):
        (task,) = claim(memory)
        work.fail(memory._scope, task, "RuntimeError", 0.0)
    assert claim(memory) == []
    assert [failure.attempts for failure in memory.status().failures] == [3]
    return task


def attempts_left(memory: optchat.Memory) -> int:
    """How often the job fails before it is given up."""
    for number in range(10):
        tasks = claim(memory)
        if not tasks:
            return number
        work.fail(memory._scope, tasks[0], "RuntimeError", 0.0)
    raise AssertionError("it is never given up")


def test_a_failure_stays_until_somebody_does_something(stopping: optchat.Memory, clock: ManualClock) -> None:
    exhausted(stopping)
    clock.advance(1_000_000)
    assert attempts_left(stopping) == 0


def test_an_open_gives_all_attempts(stopping: optchat.Memory) -> None:
    exhausted(stopping)
    close_beside(stopping, open_beside(stopping))
    assert attempts_left(stopping) == 3


def test_an_append_gives_one_attempt(stopping: optchat.Memory) -> None:
    exhausted(stopping)
    with stopping.session("elsewhere").turn("hello") as turn:
        assert attempts_left(stopping) == 1
        turn.assistant("and again")
        assert attempts_left(stopping) == 1
    assert attempts_left(stopping) == 0, "the end of a turn is no append"


def test_a_delivery_that_seals_nothing_gives_no_attempt(stopping: optchat.Memory) -> None:
    exhausted(stopping)
    with stopping.session("elsewhere").turn("hello", key="k") as turn:
        assert attempts_left(stopping) == 1
        turn.add(optchat.HostMessage.assistant("said", key="a"))
        assert attempts_left(stopping) == 1
        turn.add(optchat.HostMessage.assistant("said", key="a"))
        assert attempts_left(stopping) == 0


def test_retry_failed_gives_all_attempts(stopping: optchat.Memory) -> None:
    exhausted(stopping)
    assert stopping.retry_failed() == 1
    assert attempts_left(stopping) == 3


def test_a_take_over_gives_all_attempts_and_ends_a_pause(stopping: optchat.Memory) -> None:
    say(stopping.session("t"), words(2, 3_000))
    (task,) = claim(stopping)
    exhausted(stopping)
    trouble(stopping, task, "rate", retry_after=300)
    assert remaking.take_over(stopping._scope, "another-1") == 1
    assert stopping.status().failures == ()
    assert stopping.status().paused == "scope 'test' is summarised by 'another-1'"
    assert claim(stopping, 8) == [], "it is another's now"
    assert [task.job.attempts for task in claim(stopping, 8, "another-1")] == [0, 0]


def test_a_job_that_failed_stops_no_other(stopping: optchat.Memory) -> None:
    bad = exhausted(stopping)
    say(stopping.session("s"), words(2, 3_000))  # arms it once more
    for task in claim(stopping, 8):
        if task.job.job_pk == bad.job.job_pk:
            work.fail(stopping._scope, task, "RuntimeError", 0.0)
        else:
            answer(stopping, task)
    say_other = say(stopping.session("other"), "short")
    assert say_other.outcome == "completed"
    assert stopping.status().publications == 1
    assert [failure.kind for failure in stopping.status().failures] in (["leaf"], [])


def test_attempts_end_in_a_stand_in_and_what_waited_goes_on(memory: optchat.Memory) -> None:
    say(memory.session("s"), words(1, 3_000))
    for number in range(5):
        (task,) = claim(memory)
        assert work.fail(memory._scope, task, "RuntimeError", 0.0) == (number == 4)
    assert work.commit(memory._scope, [work.stand_in(memory._scope, task)]) == 1
    assert memory.status().stand_ins > 0
    assert memory.status().publications == 1
    assert claim(memory) == []


def test_another_attempt_waits_for_its_time(memory: optchat.Memory, clock: ManualClock) -> None:
    say(memory.session("s"), words(1, 3_000))
    (task,) = claim(memory)
    work.fail(memory._scope, task, "RuntimeError", 10.0)
    assert claim(memory) == []
    clock.advance(9.999)
    assert claim(memory) == []
    clock.advance(0.001)
    (again,) = claim(memory)
    assert (again.job.job_pk, again.job.attempts) == (task.job.job_pk, 1)
    assert again.job.fence > task.job.fence


# ---- clocks that are set ---------------------------------------------------------------------------------------------


def test_what_was_due_before_a_clock_was_set_back_is_due(memory: optchat.Memory, clock: WanderingClock) -> None:
    """Else nothing would be summarised until the time comes again that it was."""
    say(memory.session("s"), words(1, 3_000))
    clock.jump(-86_400)
    (task,) = claim(memory)
    answer(memory, task)
    assert memory.settle().ready


def test_a_lease_from_before_a_clock_was_set_back_can_be_taken(memory: optchat.Memory, clock: WanderingClock) -> None:
    say(memory.session("s"), words(1, 3_000))
    (lost,) = claim(memory)
    clock.jump(-86_400)
    assert work.end_dead_leases(memory._scope) == 1
    (task,) = claim(memory)
    assert commit(memory, lost) == 0
    assert commit(memory, task) == 1


def test_a_clock_that_is_set_ahead_ends_leases_and_loses_nothing(memory: optchat.Memory, clock: WanderingClock) -> None:
    say(memory.session("s"), words(1, 3_000))
    (slow,) = claim(memory)
    call = begin(memory, slow)
    assert isinstance(call, int)
    clock.jump(86_400)
    assert work.end_dead_leases(memory._scope) == 1
    (task,) = claim(memory)
    assert work.commit(memory._scope, [summary(slow)], [ended(call, "accepted", 5, 5)]) == 0
    assert commit(memory, task, ended(begun(memory, task))) == 1
    assert rows(memory, "SELECT outcome FROM call ORDER BY call_pk") == [("accepted",), ("accepted",)]
    assert memory.verify().ok
