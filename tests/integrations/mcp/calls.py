"""Calls of the memory tools through a client, and what they answer."""

import json
from typing import Any

from mcp import Client
from mcp.types import CallToolResult, TextContent

import optchat


def publish(memory: optchat.Memory, key: str, text: str) -> optchat.Session[optchat.HostMessage]:
    session = memory.session(key)
    with session.turn(f"What of {key}?") as turn:
        turn.assistant(text)
    return session


def text_of(result: object) -> str:
    assert isinstance(result, CallToolResult)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def call(client: Client, name: str, meta: dict[str, Any] | None = None, /, **arguments: object) -> Any:
    """An answer; its text and its structure are the same, and both name the snapshot that is beside them."""
    result = await client.call_tool(f"memory_{name}", arguments, meta=meta)
    text = text_of(result)
    assert not result.is_error, text
    found = json.loads(text)
    assert result.structured_content == found
    assert (result.meta or {})["optchat/snapshot"] == found["snapshot"]["id"]
    return found


async def error(client: Client, name: str, meta: dict[str, Any] | None = None, /, **arguments: object) -> Any:
    result = await client.call_tool(f"memory_{name}", arguments, meta=meta)
    assert result.is_error
    assert result.structured_content is None
    return json.loads(text_of(result))


def excerpts(found: Any) -> list[str]:
    return sorted(hit["excerpt"] for hit in found["items"])
