"""The contract and the tests of this host find what its glue can do wrong: one thing at a time is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import optchat
from optchat.adapters.driving import admit_async
from optchat.adapters.openai_agents import saying, turns
from optchat.adapters.openai_agents.codec import HOST
from optchat.core.tools import ToolOutput
from tests.integrations.openai_agents import test_approvals, test_composing, test_runs
from tests.integrations.openai_agents.lab import Item, Lab
from tests.integrations.openai_agents.test_contract import TestOpenAIAgents as Contract

pytestmark = pytest.mark.host
CLAUSES = Contract()
Patch = Callable[[pytest.MonkeyPatch], None]


def does_not_compare(patch: pytest.MonkeyPatch) -> None:
    def admitted(*arguments: Any, **named: Any) -> Any:
        return admit_async(*arguments, **named | {"history": None})

    patch.setattr(turns, "admit_async", admitted)


def embellishes(patch: pytest.MonkeyPatch) -> None:
    call = turns.Run.call

    async def called(self: Any, name: str, arguments: str) -> ToolOutput | None:
        output = await call(self, name, arguments)
        return None if output is None else ToolOutput(f"Memory says: {output.text}", output.is_error)

    patch.setattr(turns.Run, "call", called)


def completes_all(patch: pytest.MonkeyPatch) -> None:
    left = turns.Run.__aexit__

    async def leave(self: Any, et: Any, e: Any, tb: Any) -> None:
        if self._driver is not None:
            await self._driver.end("completed")
        await left(self, et, e, tb)

    patch.setattr(turns.Run, "__aexit__", leave)


def waits_for_the_end(patch: pytest.MonkeyPatch) -> None:
    async def later(self: Any, items: Any) -> None:
        del self, items

    patch.setattr(saying.Said, "seal", later)


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (does_not_compare, CLAUSES.test_an_edited_history_is_noticed),
        (embellishes, CLAUSES.test_answers_from_memory_are_no_evidence),
        (completes_all, CLAUSES.test_outcomes_are_what_happened),
        (waits_for_the_end, CLAUSES.test_everything_is_sealed_exactly_once),
    ],
)
def test_the_contract_finds_it(monkeypatch: pytest.MonkeyPatch, broken: Patch, clause: Callable[[], None]) -> None:
    clause()
    broken(monkeypatch)
    with pytest.raises((AssertionError, optchat.OptchatError)):
        clause()


# ---- what only this host can do wrong --------------------------------------------------------------------------------


def keeps_history(patch: pytest.MonkeyPatch) -> None:
    admit = turns.Run._on_input  # pyright: ignore[reportPrivateUsage]

    async def on_input(self: Any, history: list[Item], new: list[Item]) -> list[Item]:
        before = list(history)
        return [*before, *await admit(self, history, new)]

    patch.setattr(turns.Run, "_on_input", on_input)


def seals_as_tools_end(patch: pytest.MonkeyPatch) -> None:
    async def answers(self: Any, request: list[Item]) -> bool:
        await self.seal(reversed([item for item in request if self._answered(item)]))
        return True

    patch.setattr(saying.Said, "seal_answers", answers)


def nests_its_callbacks(patch: pytest.MonkeyPatch) -> None:
    def begins(self: Any, context: Any) -> None:
        del self, context

    async def answers(self: Any, request: list[Item]) -> bool:
        await self.seal([item for item in request if self._answered(item)])
        return True

    patch.setattr(turns.Run, "tool_begins", begins)
    patch.setattr(saying.Said, "seal_answers", answers)


def seals_handoffs_at_once(patch: pytest.MonkeyPatch) -> None:
    def none(_agent: object) -> set[str]:
        return set()

    patch.setattr(turns, "_handoffs", none)


def leaves_the_history_to_the_sdk(patch: pytest.MonkeyPatch) -> None:
    admit = turns.Run._on_input  # pyright: ignore[reportPrivateUsage]

    async def on_input(self: Any, history: list[Item], new: list[Item]) -> list[Item]:
        return await admit(self, list(history), new)

    patch.setattr(turns.Run, "_on_input", on_input)


def keeps_what_waits(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_self: object, _session: object) -> None:
        return None

    patch.setattr(turns.Run, "_give_up_suspended", nothing)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (seals_as_tools_end, test_runs.test_parallel_calls_are_sealed_in_the_sessions_order_also_one_that_fails),
        (nests_its_callbacks, partial(test_composing.test_an_agent_as_a_tool_gets_no_memory, configured=False)),
        (seals_handoffs_at_once, partial(test_composing.test_a_handoff_goes_on_in_the_turn, how="filtered")),
        (leaves_the_history_to_the_sdk, test_composing.test_its_own_input_callback_makes_the_request),
        (keeps_what_waits, partial(test_approvals.test_another_run_gives_up_the_one_that_waits, guarded=True)),
        (keeps_history, test_runs.test_another_sessions_decision_is_in_each_request_and_history_is_not),
    ],
)
async def test_its_own_tests_find_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, broken: Patch, test: Callable[[Lab], Any]
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, optchat.OptchatError)):
        await test(lab)


def test_it_claims_no_more_than_it_shows() -> None:
    assert (HOST.edit, HOST.delete, HOST.fork) == ("unobservable",) * 3
    assert HOST.pause == "observed"
