"""
Memory's tools as function tools of openai-agents.

Decides: which turn a call is answered under: that of the run in whose task it is made, nested runs included.
Refuses to know: what the tools are, and how they are answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, Protocol

from agents import FunctionTool, Tool
from agents.tool_context import ToolContext

from optchat.adapters.checking import check_host
from optchat.adapters.openai_agents.codec import HOST
from optchat.core.tools import MemoryTool, ToolOutput, Tools


class Answers(Protocol):
    """A run, as its tools see it."""

    async def call(self, name: str, arguments: str, /) -> ToolOutput | None:
        """What memory answers; None while the run has no turn."""
        ...


# Tasks copy it when they are made, so that two runs side by side each have their own, and nested runs that of theirs.
RUNNING: ContextVar[Answers | None] = ContextVar("optchat_openai_agents_run", default=None)

NOT_RUNNING = (
    "error: memory answers only within a run of optchat's MemoryRunner, and this is none: there is no turn whose"
    " snapshot could be read. Go on without memory, and tell the user."
)


def memory_tools() -> list[Tool]:
    """
    The memory tools for an agent's ``tools``: each answers under the snapshot of the run that calls it.

    They may be shared by agents and by runs. Called outside of a run of ``MemoryRunner`` they answer with an error that
    says so.

    Raises:
        HostUnsupported: the version of openai-agents was not tested.
    """
    check_host(HOST)
    return [_function_tool(tool) for tool in Tools()]


def _function_tool(tool: MemoryTool) -> FunctionTool:
    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=deepcopy(dict(tool.parameters)),
        on_invoke_tool=_answering(tool.name),
        strict_json_schema=True,
    )


def _answering(name: str) -> Callable[[ToolContext[Any], str], Awaitable[str]]:
    async def answer(_context: ToolContext[Any], arguments: str) -> str:
        run = RUNNING.get()
        output = None if run is None else await run.call(name, arguments)
        return NOT_RUNNING if output is None else output.text  # as it is: by its hash it is known for memory's own

    return answer
