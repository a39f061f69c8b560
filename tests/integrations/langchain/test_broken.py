"""Middlewares that are wrong in one thing each, as only this host lets them be; the clause that each breaks fails."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from optchat.adapters.langchain import MemoryMiddleware
from optchat.adapters.langchain.turns import DrivenTurn, Marks
from tests.integrations.langchain import host
from tests.integrations.langchain.test_contract import TestInvoke as Contract

pytestmark = pytest.mark.host
Broken = pytest.MonkeyPatch


def forgetful(patch: Broken) -> None:
    """Its end is left to a callback that nobody passed."""
    patch.setattr(DrivenTurn, "end", lambda *_: None)


def storing(patch: Broken) -> None:
    """It puts memory into the state, where the host keeps it."""

    def before_model(self: MemoryMiddleware, state: Any, runtime: Any) -> dict[str, Any]:
        del self, runtime
        last = state["messages"][-1]
        return {
            "messages": [host.HumanMessage("<shared_memory scope='x'>\nZanzibar</shared_memory>", id=f"m{last.id}")]
        }

    patch.setattr(MemoryMiddleware, "before_model", before_model)


def remembering_twice(patch: Broken) -> None:
    """It sends the thread's whole history beside memory."""
    patch.setattr(DrivenTurn, "own", lambda _, messages: list(messages))


def one_of_all(patch: Broken) -> None:
    """It takes what an agent within a tool says for what the one round it says."""
    original = Marks.of
    patch.setattr(Marks, "of", staticmethod(lambda state: evolve(original(state), within=False)))
    patch.setattr(DrivenTurn, "own", lambda _, messages: list(messages))


BROKEN = [
    (forgetful, "test_outcomes_are_what_happened"),
    (storing, "test_the_host_s_transcript_is_untouched"),
    (remembering_twice, "test_unanswered_calls_of_an_interrupted_turn_are_not_sent_again"),
    (one_of_all, "test_a_nested_run_leaves_only_its_report"),
]


@pytest.mark.parametrize(("broken", "clause"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_wrong_fails_its_clause(broken: Any, clause: str, monkeypatch: Broken) -> None:
    broken(monkeypatch)
    contract = Contract()
    contract.setup_method()
    with pytest.raises(AssertionError):
        getattr(contract, clause)()
