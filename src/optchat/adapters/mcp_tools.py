"""
The memory tools as the tools of an MCP server. Imported where a server is asked for: it needs the extra ``mcp``.

Decides: the tools' schemas, how a call's arguments and pins are read off the protocol, and how an answer is put on it.
Refuses to know: how a tool is answered (:func:`optchat.memory.retrieving.retrieve`).

The SDK would derive a tool's schema from a Python function, and read arguments by it: an unknown one would be dropped,
and a wrong one answered in pydantic's words. Here both are the library's own, the same as for every other model, so a
tool takes its arguments as they came.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from optchat.adapters.mcp import INSTRUCTIONS, PINNED, PINNING, SESSION_META, SNAPSHOT_META, TURN_META
from optchat.core.errors import BadArgument, OptchatError
from optchat.core.tools import MEMORY_TOOLS, MemoryTool
from optchat.engine.answering import mistake
from optchat.memory.memory import Memory
from optchat.memory.retrieving import Retrieval, retrieve

_THREADS: Final = 16  # reads at once; more wait for a thread, and never for each other

_SNAPSHOT_SCHEMA: Final = {
    "type": ["string", "null"],
    "description": "The snapshot to answer by: the snapshot.id of an earlier answer, so that both show the same memory."
    " Null for the newest.",
}
# An answer that is too large by one field alone says only what was cut, so that nothing can be demanded of all.
_OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "snapshot": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "through": {"type": "integer"}, "at": {"type": "string"}},
            "required": ["id", "through", "at"],
        },
        "cursor": {"type": ["string", "null"]},
    },
}
_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)


def make_server(memory: Memory, snapshot: str | None) -> MCPServer[object]:
    """The server of :func:`optchat.adapters.mcp.server`; a fixed snapshot has been looked for already."""
    limiter = anyio.CapacityLimiter(_THREADS)
    tools: list[Tool] = []
    for tool in MEMORY_TOOLS:
        answer = partial(_answer, partial(_retrieve, memory, tool.name, snapshot), limiter)
        tools.append(
            _AsItCame(
                fn=answer,
                is_async=True,
                name=tool.name,
                title=None,
                description=tool.description,
                parameters=_input_schema(tool, pinned=snapshot is not None),
                fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=_OUTPUT_SCHEMA),
                context_kwarg=None,
                annotations=_READS,
            )
        )
    return MCPServer(
        "optchat",
        title="Shared memory",
        instructions=INSTRUCTIONS + (PINNING if snapshot is None else PINNED.format(id=snapshot)),
        tools=tools,
        log_level="WARNING",  # a model's mistakes are told to the model
    )


class _AsItCame(Tool):
    """A tool whose function is handed the arguments, and the request's ``_meta``, as they came."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> CallToolResult:
        """Answer a call; what the function returns is a result already, whatever is to be converted."""
        del convert_result
        meta: Mapping[str, object] = {}
        with suppress(ValueError):  # called by its own process, without a request
            meta = cast("Mapping[str, object]", context.request_context.meta or {})
        answer = cast("Callable[[Mapping[str, object], Mapping[str, object]], Awaitable[CallToolResult]]", self.fn)
        return await answer(arguments, meta)


_Retrieve = Callable[[Mapping[str, object], Mapping[str, object]], Retrieval]


async def _answer(
    retrieve: _Retrieve, limiter: anyio.CapacityLimiter, arguments: Mapping[str, object], meta: Mapping[str, object]
) -> CallToolResult:
    """Answer in a worker thread. An error of the library is a tool's error; any other is a crash, and the SDK's."""
    try:
        found = await anyio.to_thread.run_sync(retrieve, arguments, meta, limiter=limiter)
    except OptchatError as error:
        return CallToolResult(content=[TextContent(type="text", text=mistake(error))], is_error=True)
    return _result(found)


def _retrieve(
    memory: Memory, name: str, fixed: str | None, arguments: Mapping[str, object], meta: Mapping[str, object]
) -> Retrieval:
    own = {argument: value for argument, value in arguments.items() if argument != "snapshot"}
    asked = _named(arguments.get("snapshot"), "snapshot")
    turn, session = _named(meta.get(TURN_META), TURN_META), _named(meta.get(SESSION_META), SESSION_META)
    if fixed is None:
        return retrieve(memory, name, own, snapshot=asked, turn=turn, session=session)
    # Who started the server chose what it shows. A call that names another pin is refused, not answered by this one.
    if turn is not None or asked not in (None, fixed):
        raise BadArgument(f"this server answers by snapshot {fixed} alone; name no turn and no other snapshot")
    return retrieve(memory, name, own, snapshot=fixed)


def _named(value: object, name: str) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise BadArgument(f"{name} is an id, a JSON string, or null; not {json.dumps(value, default=str)[:40]}")
    return value


def _input_schema(tool: MemoryTool, *, pinned: bool) -> dict[str, Any]:
    """
    The tool's schema, and ``snapshot`` beside its own arguments where it may be chosen.

    Providers' strict modes want every property required; clients of this protocol may leave out what may be null.
    """
    schema = deepcopy(dict(tool.parameters))
    if not pinned:
        schema["properties"] |= {"snapshot": deepcopy(_SNAPSHOT_SCHEMA)}
    schema["required"] = [name for name, each in schema["properties"].items() if "null" not in each["type"]]
    return schema


def _result(found: Retrieval) -> CallToolResult:
    """The answer's JSON as text and as structure; its snapshot beside both, where a host finds it without reading."""
    text = found.output.text
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=None if found.output.is_error else json.loads(text),
        is_error=found.output.is_error,
        _meta={SNAPSHOT_META: found.snapshot.id},
    )
