"""The reference's new host: its codec, its glue and its contract test, run as they stand."""

import sys
from types import ModuleType
from typing import Any

import pytest

import optchat
from optchat.testing import AdapterContract, temporary_memory
from tests.usage.programs import load

BUDGET = optchat.Budget(32_000, 1_000)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    sys.modules.pop("d_toy_host", None)
    # dataclasses look their module up while it is read
    monkeypatch.setitem(sys.modules, "d_toy_host", ModuleType("d_toy_host"))
    return load("d_toy_host.py")


def test_a_run_of_the_framework_is_sealed_and_remembered(program: ModuleType) -> None:
    toy = program.Toy
    with temporary_memory() as memory:
        with memory.session("a").turn("Should we use Redis?") as turn:
            turn.assistant("No Redis: the broker persists.")
        seen: list[list[Any]] = []
        script = iter([toy("bot", "", ("c1", "build", "{}")), toy("bot", "built")])

        def model(request: list[Any]) -> Any:
            seen.append(request)
            return next(script)

        agent = program.run_with_memory(memory, "t", "add a queue", model, BUDGET)
        assert "No Redis" in "".join(message.text for message in seen[0])
        assert seen[0][-1] is agent.log[0]
        assert seen[1][-3:] == agent.log[:3]
        session = memory.session("t", host="toy")
        (info,) = session.turns()
        assert (info.outcome, session.info().length) == ("completed", 4)
        kinds = [memory.source(f"session:{session.id}:0:{seq}+1").kind for seq in range(4)]
        assert kinds == ["user", "tool_call", "tool_result", "assistant"]


def test_a_run_that_fails_is_sealed_as_failed(program: ModuleType) -> None:
    def model(_request: list[Any]) -> Any:
        raise RuntimeError("the model is out")

    with temporary_memory() as memory:
        with pytest.raises(RuntimeError):
            program.run_with_memory(memory, "t", "add a queue", model, BUDGET)
        assert memory.zoom("pub:0+1").outcome == "failed"


def test_an_adapter_that_cannot_rebuild_needs_the_list(program: ModuleType) -> None:
    with temporary_memory() as memory:
        session = memory.session("t", adapter=program.TOY, host="toy")
        request = program.Toy("me", "go")
        turn = session.turn(request)
        turn.assistant("half")
        with pytest.raises(optchat.ConfigError, match="active="):
            turn.context(BUDGET)
        assert turn.context(BUDGET, active=[request]).messages[-1] is request
        with pytest.raises(optchat.ConfigError):
            session.preview(BUDGET, request="go")
        assert session.preview(BUDGET).memory


@pytest.mark.parametrize("clause", [name for name in dir(AdapterContract) if name.startswith("test_")])
def test_its_contract(program: ModuleType, clause: str) -> None:
    getattr(program.TestToy(), clause)()
