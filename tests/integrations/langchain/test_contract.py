"""The adapter's contract, kept by LangChain's agents and the middleware: run as they are, and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool

from optchat import HostMessage, Memory
from optchat.testing import AdapterContract, HostRun
from tests.integrations.langchain.host import (
    CODEC,
    SYSTEM,
    TOOLS,
    Drive,
    Savers,
    Script,
    agent,
    ainvoke,
    astream,
    calling,
    invoke,
    native,
    stored,
    stream,
    thread,
)

pytestmark = pytest.mark.host


class _Contract(AdapterContract[AnyMessage]):
    def setup_method(self) -> None:
        self.savers = Savers()

    def adapter(self) -> Any:
        return CODEC

    def native(self, message: HostMessage) -> Sequence[AnyMessage]:
        return native(message)

    def thinking(self, text: str) -> Sequence[AnyMessage]:
        thought = {"type": "reasoning", "reasoning": text, "extras": {"signature": "c2lnbmVk"}}
        return [AIMessage([thought, {"type": "text", "text": "Done."}], additional_kwargs={"reasoning_content": text})]

    def settings(self) -> object:
        return "fake", [SYSTEM], sorted(made.name for made in TOOLS)

    def running(self) -> Drive:
        raise NotImplementedError

    def drive(
        self, memory: Memory, key: str, request: str, script: Sequence[HostMessage | BaseException]
    ) -> HostRun[AnyMessage]:
        return self._go(memory, key, request, Script(iter(script)), TOOLS)

    def _go(
        self, memory: Memory, key: str, request: str, script: Script, tools: Sequence[BaseTool]
    ) -> HostRun[AnyMessage]:
        host = agent(script, memory, self.savers.of(memory), tools=tools)
        config = thread(key)
        before = len(stored(host, config))
        error: BaseException | None = None
        try:
            self.running()(host, {"messages": [HumanMessage(request)]}, config)
        except BaseException as raised:  # noqa: BLE001 - told to the contract; a cancellation too
            error = raised
        return HostRun(script.requests, stored(host, config)[before:], error, script.settings)

    def drive_nested(self, memory: Memory, key: str, request: str, inner: str, report: str) -> HostRun[AnyMessage]:
        within = Script.of(AIMessage(inner, tool_calls=[calling("c1", "build").tool_calls[0]]), report)
        surveyor = agent(within, memory)  # with memory of its own, under the same thread

        @tool
        def survey(config: RunnableConfig) -> str:
            """Send somebody."""
            return str(surveyor.invoke({"messages": [HumanMessage("Look round.")]}, config)["messages"][-1].content)

        @tool
        async def survey_awaited(config: RunnableConfig) -> str:
            """Send somebody."""
            found = await surveyor.ainvoke({"messages": [HumanMessage("Look round.")]}, config)
            return str(found["messages"][-1].content)

        awaited = self.running() in (ainvoke, astream)
        chosen = survey_awaited if awaited else survey
        outer = Script.of(calling("c1", chosen.name), "Surveyed.")
        run = self._go(memory, key, request, outer, [chosen])
        assert len(within.requests) == 2, "the agent within was asked"
        assert all("Look round." in text for text in within.texts), "with what it was told"
        assert all("<session_memory " in text for text in within.texts), "and with the memory of the turn that it is in"
        return run

    def edit(self, memory: Memory, key: str, old: str, new: str) -> None:
        host = agent(Script.of(), memory, self.savers.of(memory))
        config = thread(key)
        (found,) = [message for message in stored(host, config) if message.content == old]
        host.update_state(config, {"messages": [found.model_copy(update={"content": new})]})


class TestInvoke(_Contract):
    def running(self) -> Drive:
        return invoke


class TestAinvoke(_Contract):
    def running(self) -> Drive:
        return ainvoke


class TestStream(_Contract):
    def running(self) -> Drive:
        return stream


class TestAstream(_Contract):
    def running(self) -> Drive:
        return astream


def test_cancellation_is_the_loop_s_own() -> None:
    assert issubclass(asyncio.CancelledError, BaseException)
