"""The adapter's contract, over a scripted model: openai-agents with memory as an application uses it."""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest
from agents import Agent, SQLiteSession, TResponseInputItem
from agents.items import TResponseOutputItem

import optchat
from optchat.adapters.openai_agents import AgentsItems, MemoryRunner, memory_tools
from optchat.core.tools import TOOL_NAMES
from optchat.testing import AdapterContract, HostRun
from tests.integrations.openai_agents.lab import BUDGET, QUIET, Asked, Scripted, Step, answer, build, calls, cancel_me

pytestmark = pytest.mark.host


def output(message: optchat.HostMessage) -> list[TResponseOutputItem]:
    """A scripted message as a response holds it."""
    items: list[TResponseOutputItem] = []
    for part in message.parts:
        match part:
            case optchat.TextPart(text):
                items.append(answer(text))
            case optchat.ToolCallPart(call_id, name, arguments):
                items.append(calls(name, arguments, call_id))
            case _:
                pass
    return items


def sent_back(item: TResponseOutputItem) -> TResponseInputItem:
    """An item of a response as it is sent back."""
    dumped: Any = item.model_dump(exclude_unset=True)
    return dumped  # type: ignore[no-any-return]  # an item's own dump


class TestOpenAIAgents(AdapterContract[TResponseInputItem]):
    def adapter(self) -> AgentsItems:
        return AgentsItems()

    def native(self, message: optchat.HostMessage) -> Sequence[TResponseInputItem]:
        adapter = self.adapter()
        if message.role == "tool":
            made = optchat.HostMessage.assistant(
                calls=[
                    optchat.ToolCallPart(part.call_id, "x", "{}")
                    for part in message.parts
                    if isinstance(part, optchat.ToolResultPart)
                ]
            )
            return adapter.rebuild([made, message])[len(made.parts) :]
        if message.role == "user":
            return adapter.rebuild([message])
        return [sent_back(item) for item in output(message)]

    def thinking(self, text: str) -> Sequence[TResponseInputItem]:
        content = [{"type": "reasoning_text", "text": text}]
        thought: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
        return [thought, {"role": "assistant", "content": "Done."}]

    def drive(
        self,
        memory: optchat.Memory,
        key: str,
        request: str,
        script: Sequence[optchat.HostMessage | BaseException],
    ) -> HostRun[TResponseInputItem]:
        steps = iter(script)

        def step(_asked: Asked) -> Step:
            taken = next(steps)  # one step a request, not before
            return taken if isinstance(taken, BaseException) else output(taken)

        return asyncio.run(self._drive(memory, key, request, Scripted([step] * len(script))))

    def drive_nested(
        self, memory: optchat.Memory, key: str, request: str, inner: str, report: str
    ) -> HostRun[TResponseInputItem]:
        within = Scripted([[answer(inner), calls("build")], [answer(report)]])
        nested = Agent(name="surveyor", model=within, tools=[build])
        tool = nested.as_tool("survey", "Surveys.")
        model = Scripted([[calls("survey", '{"input": "all of it"}')], [answer("It is done.")]])
        return asyncio.run(self._drive(memory, key, request, model, tool))

    def edit(self, memory: optchat.Memory, key: str, old: str, new: str) -> None:
        async def edited() -> None:
            session = self._native_session(memory, key)
            items = await session.get_items()
            await session.clear_session()
            changed: list[Any] = [{**item, "content": new} if item.get("content") == old else item for item in items]
            await session.add_items(changed)
            session.close()

        asyncio.run(edited())

    def settings(self) -> object:
        return "Be careful.", ("build", "optchat_interrupted"), ()

    async def _drive(
        self, memory: optchat.Memory, key: str, request: str, model: Scripted, *tools: Any
    ) -> HostRun[TResponseInputItem]:
        task = asyncio.current_task()
        assert task is not None
        own = tools or (build, cancel_me(task))
        agent = Agent(name="builder", instructions="Be careful.", model=model, tools=[*memory_tools(), *own])
        session = self._native_session(memory, key)
        runner = MemoryRunner(memory, BUDGET)
        known = len(await session.get_items())
        error: BaseException | None = None
        try:
            await runner.run(agent, request, session=session, run_config=QUIET)
        except BaseException as raised:  # noqa: BLE001 - whatever ends a run is what the contract looks at
            error = raised
        stored = (await session.get_items())[known:]
        session.close()
        requests = [copy.copy(asked.input) for asked in model.calls]
        settings = [
            (asked.instructions, tuple(name for name in asked.tools if name not in TOOL_NAMES), asked.handoffs)
            for asked in model.calls
        ]
        return HostRun(requests, stored, error, settings)

    def _native_session(self, memory: optchat.Memory, key: str) -> SQLiteSession:
        return SQLiteSession(key, memory.path.with_name("agents.db"))
