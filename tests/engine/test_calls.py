"""Calls as the use cases handle them: reserved under ceilings, written down, and paused where they cannot help."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

import optchat
from optchat.core.trouble import MOST_PAUSE_SECONDS, TroubleKind
from optchat.engine import work
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from optchat.testing.memories import close_beside, open_beside
from tests.engine.helpers import BUDGET, say, words
from tests.engine.working import (
    WanderingClock,
    answer,
    begin,
    begun,
    claim,
    commit,
    ended,
    job_row,
    rows,
    seconds_paused,
    trouble,
)

HOUR, DAY = 3600, 86_400
MICROSECOND = timedelta(microseconds=1)
CEILINGS = [
    (f"{measure}_per_{period}", limit, seconds)
    for measure, limit in (("calls", 3), ("tokens", 300), ("cost", 0.75))
    for period, seconds in (("hour", HOUR), ("day", DAY))
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def long_turns(memory: optchat.Memory, count: int, prefix: str = "s") -> None:
    """So many leaves to make, each of a session of its own."""
    for number in range(count):
        say(memory.session(f"{prefix}{number}"), words(number, 3_000))


@pytest.fixture
def memory(clock: ManualClock) -> Iterator[optchat.Memory]:
    with temporary_memory(clock=clock, summarizer=DeterministicSummarizer()) as memory:
        yield memory


# ---- ceilings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "limit", "window"), CEILINGS)
def test_a_ceiling_holds_over_all_handles_and_resumes_by_itself(
    name: str, limit: float, window: int, clock: ManualClock
) -> None:
    policy = optchat.Policy(**{name: limit})  # type: ignore[arg-type]
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 5)
        handles = (memory, open_beside(memory))
        first = clock.now()
        for number in range(3):  # each takes 1 call, 100 tokens and 0.25
            (task,) = claim(handles[number % 2])
            call = begun(handles[number % 2], task, 100, 0.25)
            assert commit(handles[number % 2], task, ended(call)) == 1
            clock.advance(60)
        for handle in handles:
            for task in claim(handle):
                assert begin(handle, task, 100, 0.25) == "ceiling"
                work.give_back(handle._scope, {task.job.job_pk: task.job.fence}, wait_seconds=1)
            status = handle.status()
            assert status.paused is not None
            assert name in status.paused
            assert f"{limit:g}" in status.paused
            assert status.resumes_at is not None
            assert timedelta(0) <= status.resumes_at - (first + timedelta(seconds=window)) <= MICROSECOND
        assert status.resumes_at is not None
        clock.advance((status.resumes_at - clock.now() - MICROSECOND).total_seconds())
        assert claim(handles[0]) == []
        clock.advance(MICROSECOND.total_seconds())
        assert memory.status().paused is None
        (task,) = claim(handles[1])
        assert isinstance(begin(handles[1], task, 100, 0.25), int)
        assert begin(handles[1], task, 100, 0.25) == "ceiling"
        assert rows(memory, "SELECT count(*) FROM call") == [(4,)]


def test_a_context_says_that_a_ceiling_is_reached_and_until_when(clock: ManualClock) -> None:
    policy = optchat.Policy(calls_per_hour=1)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 2)
        began = clock.now()
        status = memory.settle()
        assert status.total.calls == 1
        assert status.pending > 0
        ((leaf,),) = rows(memory, "SELECT subject >> 40 FROM job WHERE kind = 0")
        ((key,),) = rows(
            memory,
            "SELECT key FROM session JOIN generation USING (session_pk) JOIN segment USING (segment_pk)"
            " WHERE tree_pk = :tree",
            tree=leaf,
        )
        with memory.session(key).turn("and now?") as turn, pytest.raises(optchat.MemoryNotReady) as caught:
            turn.context(BUDGET)
        assert caught.value.paused == status.paused
        assert caught.value.paused is not None
        assert "calls_per_hour" in caught.value.paused
        assert caught.value.resumes_at == status.resumes_at
        assert caught.value.resumes_at is not None
        assert caught.value.resumes_at - began <= timedelta(seconds=HOUR) + MICROSECOND
        assert str(caught.value.resumes_at) in str(caught.value)


def test_what_is_worked_off_under_a_ceiling_stops_there_and_goes_on_when_it_resumes(clock: ManualClock) -> None:
    """Nothing spins: each stop is one claim, and the calls are as many as the ceiling allows."""
    policy = optchat.Policy(tokens_per_hour=12_000, workers=2)
    summarizer = DeterministicSummarizer()
    with temporary_memory(policy=policy, clock=clock, summarizer=summarizer) as memory:
        long_turns(memory, 6)
        for _ in range(60):
            before = len(summarizer.requests)
            status = memory.settle()
            reserved = rows(
                memory,
                "SELECT coalesce(sum(reserved_tokens), 0) FROM call WHERE at > :since",
                since=memory._scope.now() - HOUR * 1_000_000,
            )
            assert reserved[0][0] <= 12_000
            if status.ready:
                break
            assert len(summarizer.requests) > before
            assert status.resumes_at is not None
            clock.advance((status.resumes_at - clock.now()).total_seconds())
        assert status.ready
        assert status.total.calls == len(summarizer.requests)
        assert memory.verify().ok


def test_a_stop_at_a_ceiling_claims_nothing_until_it_is_over(clock: ManualClock) -> None:
    """A claim that knew only of the least call would lease and give back the same job without end."""
    policy = optchat.Policy(tokens_per_hour=150)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 3)
        for task in claim(memory):
            answer(memory, task)
        (task,) = claim(memory)
        assert begin(memory, task, 100) == "ceiling"
        work.give_back(memory._scope, {task.job.job_pk: task.job.fence}, wait_seconds=1)
        assert claim(memory, 8) == []
        assert memory.status().paused is not None
        clock.advance(HOUR)
        assert claim(memory, 8) == []
        clock.advance(MICROSECOND.total_seconds())
        assert len(claim(memory, 8)) > 0


@pytest.mark.parametrize(
    ("outcome", "figures", "counted"),
    [
        ("accepted", (30, 20), 50),
        ("accepted", (None, 20), 100),
        ("accepted", (30, None), 100),
        ("accepted", (None, None), 100),
        ("rejected", (30, 20), 50),
        ("refused", (None, None), 100),
        ("failed", (None, None), 100),
        ("trouble", (None, None), 100),
        ("cancelled", (None, None), 100),
        ("started", (None, None), 100),
    ],
)
def test_a_call_counts_with_its_figures_else_with_what_was_reserved(
    outcome: str, figures: tuple[int | None, int | None], counted: int, clock: ManualClock
) -> None:
    policy = optchat.Policy(tokens_per_hour=200)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 2)
        first, second = claim(memory, 2)
        call = begun(memory, first, 100)
        if outcome != "started":  # its process died over it: nobody says what became of it
            commit(memory, first, ended(call, outcome, *figures))  # type: ignore[arg-type]
        assert begin(memory, second, 200 - counted + 1) == "ceiling"
        begun(memory, second, 200 - counted)


def test_what_calls_took_in_truth_may_leave_room_at_once(clock: ManualClock) -> None:
    """What is reserved is the most: to wait for it to leave the window would be to wait for nothing."""
    policy = optchat.Policy(tokens_per_hour=200)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 3)
        first, second, third = claim(memory, 3)
        under_way = [begun(memory, task, 100) for task in (first, second)]
        assert begin(memory, third, 100) == "ceiling"
        work.give_back(memory._scope, {third.job.job_pk: third.job.fence}, wait_seconds=1)
        assert memory.status().paused is not None
        assert commit(memory, first, ended(under_way[0], "accepted", 8, 2)) == 1
        assert memory.status().paused is None
        (again,) = [task for task in claim(memory, 8) if task.job.job_pk == third.job.job_pk]
        begun(memory, again, 90)


def test_a_call_that_no_window_can_hold_says_so(clock: ManualClock) -> None:
    policy = optchat.Policy(tokens_per_hour=500)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 1)
        (task,) = claim(memory)
        assert begin(memory, task, 501) == "ceiling"
        status = memory.status()
        assert status.paused is not None
        assert "raise it" in status.paused
        assert status.resumes_at is None
        work.give_back(memory._scope, {task.job.job_pk: task.job.fence}, wait_seconds=1)
        clock.advance(DAY)
        assert claim(memory) == []
        raised = optchat.open(
            memory.path,
            scope="test",
            policy=optchat.Policy(tokens_per_hour=501),
            summarizer=DeterministicSummarizer(),
            compact="manual",
        )
        with raised:
            (task,) = claim(raised)
            begun(raised, task, 501)
            assert raised.status().paused is None


def test_another_process_without_that_ceiling_goes_on(clock: ManualClock) -> None:
    policy = optchat.Policy(calls_per_day=0)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 1)
        assert claim(memory) == []
        status = memory.status()
        assert status.paused is not None
        assert "calls_per_day" in status.paused
        free = optchat.open(memory.path, scope="test", summarizer=DeterministicSummarizer(), compact="manual")
        with free:
            (task,) = claim(free)
            answer(free, task)


def test_retry_failed_ends_a_ceilings_pause_until_the_next_call(clock: ManualClock) -> None:
    policy = optchat.Policy(calls_per_hour=1)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 2)
        assert memory.settle().paused is not None
        memory.retry_failed()
        assert memory.status().paused is None
        assert memory.settle().paused is not None, "it is still reached"
        assert memory.status().total.calls == 1


def test_a_ceiling_stops_no_index(clock: ManualClock) -> None:
    policy = optchat.Policy(calls_per_hour=0)
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        say(memory.session("s"), "heliotrope " + "x y " * 17_000)
        memory.settle()
        found = memory.search("heliotrope")
        assert (len(found), found.unindexed) == (1, 0)


def test_a_clock_that_was_set_back_lets_no_more_calls_begin() -> None:
    policy, clock = optchat.Policy(calls_per_hour=1), WanderingClock()
    with temporary_memory(policy=policy, clock=clock, summarizer=DeterministicSummarizer()) as memory:
        long_turns(memory, 2)
        first, second = claim(memory, 2)
        begun(memory, first)
        clock.jump(-1000)
        assert begin(memory, second) == "ceiling"
        clock.jump(1000 + HOUR + 1)
        begun(memory, second)


# ---- pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transport", "server", "rate", "authentication"])
def test_trouble_pauses_everybody_and_uses_up_no_attempt(
    kind: TroubleKind, memory: optchat.Memory, clock: ManualClock
) -> None:
    long_turns(memory, 3)
    beside = open_beside(memory)
    (task,) = claim(memory)
    assert trouble(memory, task, kind)
    assert job_row(memory, task)["attempts"] == 0
    assert job_row(memory, task)["state"] == 1
    for handle in (memory, beside):
        status = handle.status()
        assert status.paused is not None
        assert kind in status.paused
        assert status.resumes_at is not None
        assert claim(handle, 8) == []
    clock.advance(MOST_PAUSE_SECONDS)
    assert memory.status().paused is None


def test_the_delay_grows_with_each_trouble_in_a_row(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 1)
    delays = list[float]()
    for _ in range(12):
        (task,) = claim(memory, 8)
        assert trouble(memory, task)
        pause = seconds_paused(memory)
        assert pause is not None
        delays.append(pause)
        clock.advance(pause)
    assert delays[:4] == [1, 2, 4, 8]
    assert delays == sorted(delays)
    assert MOST_PAUSE_SECONDS / 2 <= delays[-1] <= MOST_PAUSE_SECONDS
    assert job_row(memory, task)["attempts"] == 0


def test_one_call_goes_first_when_a_pause_is_over(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 6)
    beside = open_beside(memory)
    (task,) = claim(memory)
    trouble(memory, task)
    clock.advance(seconds_paused(memory) or 0)
    (probe,) = claim(memory, 8)
    assert claim(memory, 8) == []
    assert claim(beside, 8) == [], "whichever process it is"
    answer(memory, probe)
    assert memory.status().paused is None
    assert len(claim(beside, 8)) == 5


def test_an_answer_ends_the_row_of_troubles(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 5)
    for _ in range(3):
        trouble(memory, claim(memory)[0])
        clock.advance(seconds_paused(memory) or 0)
    answer(memory, claim(memory)[0])
    (fresh,) = [task for task in claim(memory, 8) if task.job.troubled_at is None]
    assert trouble(memory, fresh)
    assert seconds_paused(memory) == 1


def test_an_answer_from_before_the_trouble_ends_no_pause(memory: optchat.Memory, clock: ManualClock) -> None:
    """A rate limit lets some calls of a burst through: were each of them its end, no pause would ever grow."""
    long_turns(memory, 5)
    tasks = claim(memory, 3)
    under_way = [begun(memory, task) for task in tasks]
    clock.advance(1)
    trouble(memory, tasks[0], "rate", retry_after=60, call=under_way[0])
    clock.advance(1)
    assert commit(memory, tasks[1], ended(under_way[1])) == 1
    assert claim(memory, 8) == []
    assert (seconds_paused(memory) or 0) >= 59
    clock.advance(60)
    assert commit(memory, tasks[2], ended(under_way[2])) == 1, "also when it comes after the pause"
    (probe,) = claim(memory, 8)
    trouble(memory, probe, "rate")
    assert (seconds_paused(memory) or 0) >= 2, "it is the second in a row"


def test_calls_that_met_with_trouble_together_count_once(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 8)
    tasks = claim(memory, 8)
    under_way = [begun(memory, task) for task in tasks]
    for task, call in zip(tasks, under_way, strict=True):
        assert trouble(memory, task, call=call)
        clock.advance(0.01)
    assert (seconds_paused(memory) or 0) <= 1
    clock.advance(1)
    trouble(memory, claim(memory, 8)[0])
    assert seconds_paused(memory) == 2


def test_a_pause_is_as_long_as_the_provider_asks(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 2)
    first, second = claim(memory, 2)
    calls = [begun(memory, task) for task in (first, second)]
    trouble(memory, first, "rate", retry_after=90, call=calls[0])
    assert seconds_paused(memory) == 90
    trouble(memory, second, "rate", retry_after=200, call=calls[1])
    assert seconds_paused(memory) == 200
    clock.advance(199.9)
    assert claim(memory) == []


def test_no_call_begins_in_a_pause(memory: optchat.Memory, clock: ManualClock) -> None:
    """Nor the next try of a conversation that was under way."""
    long_turns(memory, 2)
    first, second = claim(memory, 2)
    call = begun(memory, second)
    trouble(memory, first)
    assert begin(memory, second, finished=(ended(call, "rejected"),)) == "trouble"
    assert rows(memory, "SELECT outcome FROM call WHERE call_pk = :call", call=call) == [("rejected",)]
    clock.advance(seconds_paused(memory) or 0)
    begun(memory, second)


def test_a_jobs_own_trouble_is_an_attempt_while_others_are_answered(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 2)
    (bad,) = claim(memory)
    trouble(memory, bad)
    assert job_row(memory, bad)["attempts"] == 0
    clock.advance(seconds_paused(memory) or 0)
    (good,) = claim(memory)
    assert good.job.job_pk != bad.job.job_pk, "another goes first"
    clock.advance(1)
    answer(memory, good)
    (bad,) = [task for task in claim(memory, 8) if task.job.job_pk == bad.job.job_pk]
    clock.advance(1)
    assert not trouble(memory, bad)
    assert memory.status().paused is None
    work.fail(memory._scope, bad, "its own trouble", 1.0)
    assert job_row(memory, bad)["attempts"] == 1


def test_an_outage_costs_a_job_that_had_trouble_before_one_attempt_at_most(
    memory: optchat.Memory, clock: ManualClock
) -> None:
    """Answers from before the outage say nothing about it."""
    long_turns(memory, 2)
    (task,) = claim(memory)
    trouble(memory, task)
    clock.advance(seconds_paused(memory) or 0)
    clock.advance(1)
    answer(memory, claim(memory)[0])
    job = task.job.job_pk
    for _ in range(12):  # now nothing is answered any more
        found = [each for each in claim(memory, 8) if each.job.job_pk == job]
        if not found:
            clock.advance(1)
            continue
        clock.advance(1)
        if not trouble(memory, found[0]):
            work.fail(memory._scope, found[0], "trouble", 1.0)
        clock.advance((seconds_paused(memory) or 0) + 1)
    assert job_row(memory, task)["attempts"] <= 1


def test_a_job_that_always_meets_with_trouble_stops_no_other(memory: optchat.Memory, clock: ManualClock) -> None:
    """Also one of the kind that is worked first: else it would be the probe each time, and nothing else ever."""
    say(memory.session("quiet"), words(1, 3_000))
    for _ in range(2):
        for task in claim(memory, 8):
            answer(memory, task)
    with memory.session("quiet").turn(words(2, 400)) as turn:
        turn.assistant(words(3, 400))  # a merge and a publication to make, and no leaf
    say(memory.session("poison"), words(4, 3_000))
    poison = {task.job.job_pk for task in claim(memory, 1) if task.job.kind == "leaf"}
    assert len(poison) == 1
    work.give_back(memory._scope, dict.fromkeys(poison, 1), wait_seconds=1)
    for _ in range(40):
        tasks = claim(memory, 1)
        for task in tasks:
            clock.advance(0.01)
            if task.job.job_pk not in poison:
                answer(memory, task)
            elif not trouble(memory, task):
                for result in (
                    [work.stand_in(memory._scope, task)]
                    if work.fail(memory._scope, task, "its own trouble", 1.0)
                    else []
                ):
                    work.commit(memory._scope, [result])
        clock.advance((seconds_paused(memory) or 0) + 0.01)
    left = rows(memory, "SELECT kind FROM job WHERE subject IN (SELECT turn_pk FROM turn) AND kind = 3 AND state = 1")
    assert left == []
    assert memory.view(memory.session("quiet").id).through == 3
    assert memory.status().publications >= 2


def test_an_open_ends_a_pause_for_a_key_and_no_other(memory: optchat.Memory) -> None:
    long_turns(memory, 1)
    for kind, ends in (("authentication", True), ("rate", False)):
        (task,) = claim(memory)
        trouble(memory, task, kind, retry_after=300)  # type: ignore[arg-type]
        close_beside(memory, open_beside(memory))
        assert (memory.status().paused is None) == ends


def test_retry_failed_ends_a_pause(memory: optchat.Memory) -> None:
    long_turns(memory, 2)
    trouble(memory, claim(memory)[0], "rate", retry_after=300)
    assert claim(memory) == []
    memory.retry_failed()
    assert memory.status().paused is None
    assert memory.settle().ready


def test_a_context_says_that_the_provider_is_in_trouble(memory: optchat.Memory) -> None:
    long_turns(memory, 1)
    (task,) = claim(memory)
    trouble(memory, task, "rate", retry_after=120)
    with memory.session("s0").turn("and now?") as turn, pytest.raises(optchat.SummariesPending) as caught:
        turn.context(BUDGET)
    assert caught.value.paused is not None
    assert caught.value.paused.startswith("rate")
    assert caught.value.resumes_at == memory.status().resumes_at
    assert caught.value.retryable


# ---- the ledger ------------------------------------------------------------------------------------------------------


def test_a_call_is_written_down_before_it_begins_and_once_when_it_ends(memory: optchat.Memory) -> None:
    long_turns(memory, 1)
    (task,) = claim(memory)
    call = begun(memory, task, 123)
    what = "SELECT outcome, input_tokens, output_tokens, reserved_tokens FROM call"
    assert rows(memory, what) == [("started", None, None, 123)]
    assert commit(memory, task, ended(call, "accepted", 60, 7)) == 1
    commit(memory, task, ended(call, "failed"))  # a second report changes nothing
    assert rows(memory, what) == [("accepted", 60, 7, 123)]
    total = memory.status().total
    assert (total.calls, total.input_tokens, total.output_tokens, total.cost) == (1, 60, 7, None)


def test_a_call_of_a_lost_lease_does_not_begin_and_one_that_ended_is_kept(memory: optchat.Memory) -> None:
    long_turns(memory, 1)
    (task,) = claim(memory)
    call = begun(memory, task)
    work.give_back(memory._scope, {task.job.job_pk: task.job.fence}, wait_seconds=1)
    assert begin(memory, task) == "lease"
    assert commit(memory, task, ended(call, "accepted", 1, 2)) == 0, "late: its result is dropped"
    assert rows(memory, "SELECT outcome, input_tokens FROM call") == [("accepted", 1)], "what it cost is not"


def test_a_call_renews_its_jobs_lease(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 1)
    (task,) = claim(memory)
    clock.advance(100)
    begun(memory, task)
    clock.advance(100)
    assert work.end_dead_leases(memory._scope) == 0
    assert commit(memory, task) == 1


def test_figures_that_nobody_reports_are_unknown_and_not_nothing(memory: optchat.Memory) -> None:
    assert memory.status().total.input_tokens is None
    long_turns(memory, 2)
    first, second = claim(memory, 2)
    commit(memory, first, ended(begun(memory, first)))
    assert (memory.status().total.calls, memory.status().total.input_tokens) == (1, None)
    commit(memory, second, ended(begun(memory, second), "accepted", 10, 0, 0.5))
    total = memory.status().total
    assert (total.input_tokens, total.output_tokens, total.cost) == (10, 0, 0.5)


def test_the_last_hour_is_an_hour(memory: optchat.Memory, clock: ManualClock) -> None:
    long_turns(memory, 2)
    answer(memory, claim(memory)[0])
    clock.advance(HOUR)
    assert memory.status().last_hour.calls == 1
    clock.advance(1)
    answer(memory, claim(memory)[0])
    assert (memory.status().last_hour.calls, memory.status().total.calls) == (1, 2)
