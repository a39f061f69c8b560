"""
The hooks of a run: memory's, and the application's own behind them.

Decides: the order: what was said is sealed before anybody else hears of it.
Refuses to know: what is done with it.
"""

from __future__ import annotations

from typing import Any, Protocol

from agents import Agent, ModelResponse, RunContextWrapper, RunHooks, Tool, TResponseInputItem
from agents.items import ItemHelpers
from agents.run_context import AgentHookContext
from agents.tool_context import ToolContext


class Listener(Protocol):
    """Who is told."""

    async def responded(self, agent: Agent[Any], response: ModelResponse, /) -> None: ...

    def tool_begins(self, context: ToolContext[Any], /) -> None: ...

    def tool_ended(self, call_id: str, result: TResponseInputItem, /) -> None: ...

    def answered(self) -> None: ...


class Hooks(RunHooks[Any]):
    """Tells the run, then the application's hooks. A nested run has its own and is not heard."""

    def __init__(self, listener: Listener, own: RunHooks[Any]) -> None:
        self._listener, self._own = listener, own

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        await self._own.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        await self._listener.responded(agent, response)
        await self._own.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        await self._own.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        self._listener.answered()
        await self._own.on_agent_end(context, agent, output)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        await self._own.on_handoff(context, from_agent, to_agent)

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        if isinstance(context, ToolContext):
            self._listener.tool_begins(context)
        await self._own.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        if isinstance(context, ToolContext) and context.tool_call is not None:
            item: TResponseInputItem = ItemHelpers.tool_call_output_item(context.tool_call, result)
            self._listener.tool_ended(context.tool_call_id, item)
        await self._own.on_tool_end(context, agent, tool, result)
