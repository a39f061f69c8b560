"""Variants that are broken on purpose, in ways that only this host allows: each fails its clause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestContext

from optchat.adapters.pydantic_ai import capability
from optchat.core.errors import BadArgument, OptchatError
from tests.integrations.pydantic_ai import test_pauses
from tests.integrations.pydantic_ai.test_contract import TestPydanticAI as Contract

pytestmark = pytest.mark.host
Run: Any = capability._Run  # pyright: ignore[reportPrivateUsage] - what is broken here
CLAUSES = [name for name in dir(Contract) if name.startswith("test_")]


def failed() -> list[str]:
    """The clauses that do not hold now."""
    found: list[str] = []
    for name in CLAUSES:
        clause: Callable[[], None] = getattr(Contract(), name)
        try:
            clause()
        except (AssertionError, OptchatError):
            found.append(name)
        except pytest.skip.Exception:
            continue
    return found


def test_memory_in_the_run_s_own_list_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a history processor's list is, and as before_model_request's was before 2.64."""
    prepare = Run.prepare_model_request

    async def storing(self: Any, ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        sent = await prepare(self, ctx, request_context)
        ctx.messages[: len(ctx.messages) - 1] = sent.messages[:-1]
        return sent

    monkeypatch.setattr(Run, "prepare_model_request", storing)
    found = failed()  # what is stored comes back as history, too: other clauses fall with it
    assert "test_the_host_s_transcript_is_untouched" in found


def test_an_answer_of_memory_that_is_dressed_up_is_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Run._tool

    def dressed(self: Any, given: Any) -> Any:
        made = tool(self, given)
        answer = made.function

        async def said(**arguments: object) -> str:
            return f"I remember: {await answer(**arguments)}"

        made.function_schema.function = said
        return made

    monkeypatch.setattr(Run, "_tool", dressed)
    assert failed() == ["test_answers_from_memory_are_no_evidence"]


def test_a_run_within_that_is_a_turn_of_its_own_ends_the_turn_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(self: object, other: object) -> bool:
        del self, other
        return False

    monkeypatch.setattr(Run, "holds", apart)
    assert failed() == ["test_a_nested_run_leaves_only_its_report"]


def test_a_turn_that_is_cut_at_the_run_s_id_loses_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(messages: Sequence[ModelMessage], run_id: str | None) -> int:
        return next((number for number, each in enumerate(messages) if each.run_id == run_id), len(messages))

    monkeypatch.setattr(capability, "turn_start", cut)
    assert failed() == [], "the contract's pause is one of turns; a chain of runs is this host's own"
    with Contract().memory() as memory, pytest.raises(BadArgument, match="user's request"):
        test_pauses.test_a_pause_suspends_the_turn_and_its_resume_goes_on_with_it(memory)
