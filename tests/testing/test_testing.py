"""What embedders test with, tested."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings, strategies as st
from hypothesis.errors import NoSuchExample

import optchat
from optchat.testing import DeterministicSummarizer, ManualClock, Step, play, strategies, temporary_memory
from tests.property.worlds import FEW, text_of

LONG = "note " * 400  # fits no node: its leaf needs a summary
SAID = optchat.HostMessage.user("note")


# ---- the clock -------------------------------------------------------------------------------------------------------


def test_time_stands_still_until_it_is_told_to_go_on() -> None:
    clock = ManualClock()
    before, then = clock.monotonic(), clock.now()
    assert (clock.monotonic(), clock.now()) == (before, then)
    clock.advance(90.5)
    assert (clock.monotonic() - before, clock.now() - then) == (90.5, timedelta(seconds=90.5))
    assert then.utcoffset() == timedelta(0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_time_goes_forward_only(seconds: float) -> None:
    with pytest.raises(optchat.BadArgument, match="forward"):
        ManualClock().advance(seconds)


def test_recorded_times_are_the_clocks() -> None:
    clock = ManualClock()
    with temporary_memory(clock=clock) as memory:
        with memory.session("a").turn("note") as turn:
            clock.advance(60)
            turn.assistant("done")
        (info,) = memory.session("a").turns()
        assert info.ended_at == clock.now() == info.started_at + timedelta(seconds=60)


def test_another_attempt_waits_for_the_clock() -> None:
    clock, answers = ManualClock(), iter([ConnectionError("down"), None])
    summarizer = DeterministicSummarizer(fail=lambda _: next(answers))
    with temporary_memory(clock=clock, summarizer=summarizer) as memory:
        memory.session("a").note(LONG)
        assert memory.settle().pending > 0
        assert len(summarizer.requests) == 1
        clock.advance(3600)
        assert memory.settle().pending == 0


# ---- memories --------------------------------------------------------------------------------------------------------


def test_a_temporary_memory_makes_summaries_when_told_to_and_leaves_nothing() -> None:
    with temporary_memory(scope="mine") as memory:
        folder = memory.path.parent
        memory.session("a").note(LONG)
        assert (memory.scope, memory.status().publications) == ("mine", 0)
        memory.settle()
        assert memory.status().publications == 1
    assert not folder.exists()
    with pytest.raises(optchat.OptchatError):
        memory.status()


def test_a_failing_test_leaves_nothing_either() -> None:
    folder = Path()
    schedule = (Step("begin", "test", "a", SAID), Step("reopen", "test", "a"))

    def fails() -> None:
        nonlocal folder
        with temporary_memory() as memory:
            folder = memory.path.parent
            for step, _turn in play(memory, schedule):
                assert step.action != "reopen", "as a test would fail, with two handles open"

    with pytest.raises(AssertionError):
        fails()
    assert not folder.exists()


def test_only_strategies_need_hypothesis() -> None:
    script = """
import sys
sys.modules["hypothesis"] = sys.modules["pytest"] = None
import optchat.testing
with optchat.testing.temporary_memory() as memory:
    memory.session("a").note("note")
try:
    from optchat.testing import strategies
except ModuleNotFoundError as error:
    sys.exit("optchat[testing]" not in str(error))
sys.exit(2)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_a_reopened_file_goes_on_with_the_same_turn() -> None:
    schedule = (
        Step("begin", "test", "a", SAID),
        Step("begin", "test-1", "a", SAID),
        Step("suspend", "test-1", "a"),
        Step("reopen", "test", "a"),
        Step("add", "test", "a", optchat.HostMessage.assistant("note")),
        Step("reopen", "test", "a"),
        Step("end", "test", "a", outcome="failed"),
        Step("resume", "test-1", "a"),
    )
    with temporary_memory() as memory:
        played = list(play(memory, schedule))
        turns = [turn.id for step, turn in played if turn is not None and step.scope == "test"]
        assert len(set(turns)) == 1
        (info,) = memory.session("a").turns()
        assert (info.id, info.outcome, memory.status().records) == (turns[0], "failed", 2)
        (other,) = memory.scoped("test-1").session("a").turns()
        assert other.state == "suspended", "the handle that played the end is closed, and suspends what is in progress"


@pytest.mark.parametrize(
    "step",
    [
        Step("add", "test", "a", SAID),
        Step("end", "test", "a", outcome="failed"),
        Step("begin", "test", "a"),
        Step("rewind", "test", "a"),
    ],
    ids=lambda step: step.action,
)
def test_a_step_that_cannot_be_is_refused(step: Step) -> None:
    with temporary_memory() as memory, pytest.raises(optchat.BadArgument):
        list(play(memory, [step]))


def drawn(wanted: Callable[[tuple[Step, ...]], bool], **arguments: Any) -> None:
    """Such a schedule is drawn now and then; how small it could be does not matter."""
    generating = settings(max_examples=500, phases=[Phase.generate], derandomize=True, database=None)
    assert find(strategies.schedules(**arguments), wanted, settings=generating)


@pytest.mark.parametrize(
    "action", ["begin", "add", "suspend", "resume", "end", "settle", "reopen", "fork", "rewind", "delete"]
)
def test_every_action_is_drawn(action: str) -> None:
    drawn(lambda schedule: any(step.action == action for step in schedule))


def test_forks_go_on_and_are_rewound() -> None:
    def deep(schedule: tuple[Step, ...]) -> bool:
        return any(step.action == "rewind" and step.session.count("+") for step in schedule)

    drawn(deep, sessions=1)


def test_without_the_lifecycle_there_is_none() -> None:
    simple = strategies.schedules(sessions=1, lifecycle=False)
    with pytest.raises(NoSuchExample):
        find(
            simple, lambda schedule: any(step.action in ("fork", "rewind", "delete") for step in schedule), settings=FEW
        )


def test_forks_and_rewinds_are_played() -> None:
    answer = optchat.HostMessage.assistant("note")
    schedule = (
        Step("begin", "test", "a", SAID),
        Step("add", "test", "a", answer),
        Step("end", "test", "a", outcome="completed"),
        Step("begin", "test", "a", SAID),
        Step("fork", "test", "a"),
        Step("begin", "test", "a+1", SAID),
        Step("rewind", "test", "a"),
        Step("rewind", "test", "a"),
        Step("end", "test", "a+1", outcome="failed"),
        Step("fork", "test", "a"),
        Step("fork", "test", "a+1"),
    )
    with temporary_memory() as memory:
        list(play(memory, schedule))
        infos = {info.key: (info.length, info.turns, info.generation) for info in memory.sessions()}
        assert infos == {"a": (0, 0, 2), "a+1": (3, 2, 0), "a+2": (0, 0, 0), "a+1+1": (3, 2, 0)}


def test_what_is_deleted_is_begun_anew_and_its_fork_goes_on() -> None:
    schedule = (
        Step("begin", "test", "a", SAID),
        Step("end", "test", "a", outcome="completed"),
        Step("fork", "test", "a"),
        Step("begin", "test", "a", SAID),
        Step("delete", "test", "a"),
        Step("begin", "test", "a", SAID),
        Step("begin", "test", "a+1", SAID),
        Step("end", "test", "a+1", outcome="failed"),
    )
    with temporary_memory() as memory:
        list(play(memory, schedule))
        infos = {info.key: (info.length, info.turns) for info in memory.sessions()}
        assert infos == {"a+1": (2, 2), "a": (1, 1)}
        assert memory.verify().ok


@pytest.mark.long
def test_late_results_are_drawn() -> None:
    def late(schedule: tuple[Step, ...]) -> bool:
        calls: set[str] = set()
        for step in schedule:
            if step.action in ("begin", "end"):
                calls.clear()
            for part in step.message.parts if step.message is not None else ():
                if isinstance(part, optchat.ToolCallPart):
                    calls.add(part.call_id)
                elif isinstance(part, optchat.ToolResultPart) and part.call_id not in calls:
                    return True
        return False

    drawn(late, sessions=1, max_steps=20)


def test_turns_that_the_next_interrupts_are_drawn() -> None:
    drawn(lambda schedule: any(a.action == b.action == "begin" for a, b in pairwise(schedule)), sessions=1)


@FEW
@given(strategies.schedules(sessions=2, scopes=2, max_steps=12), st.booleans())
def test_schedules_are_valid_and_stay_within_what_was_asked(schedule: tuple[Step, ...], clocked: bool) -> None:
    assert len(schedule) <= 12
    assert {step.scope for step in schedule} <= {"test", "test-1"}
    assert {step.session.partition("+")[0] for step in schedule} <= {"session-0", "session-1"}
    assert len({(step.scope, step.session) for step in schedule if "+" in step.session}) <= 4
    for step in schedule:
        for part in step.message.parts if step.message is not None else ():
            assert "note" in text_of(part) or not text_of(part)
    with temporary_memory(clock=ManualClock() if clocked else None) as memory:
        assert [step for step, _turn in play(memory, schedule)] == list(schedule)


@pytest.mark.parametrize("arguments", [{"sessions": 0}, {"scopes": 0}, {"max_steps": -1}], ids=str)
def test_schedules_of_nobody_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(optchat.BadArgument):
        strategies.schedules(**arguments)


@FEW
@given(st.lists(strategies.host_messages(), min_size=1, max_size=4))
def test_messages_can_be_sealed_and_come_back(messages: list[optchat.HostMessage]) -> None:
    with temporary_memory() as memory, memory.session("a").turn("please") as turn:
        for message in messages:
            fresh = [
                part for part in message.parts if not isinstance(part, (optchat.ToolCallPart, optchat.ToolResultPart))
            ]
            if len(fresh) == len(message.parts):  # call ids come again, and with other content
                assert [turn.source(ref).part for ref in turn.add(message)] == list(message.parts)


@given(strategies.host_messages(hostile=False))
def test_plain_messages_are_plain(message: optchat.HostMessage) -> None:
    assert all(text_of(part).isascii() and "<" not in text_of(part) for part in message.parts)
