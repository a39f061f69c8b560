"""A client of `optchat mcp`: retrieval only, pinned by what each call names. No model takes part: here, you are it."""

import os
import sys
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client

import optchat


def decide(memory: optchat.Memory, key: str, answer: str) -> None:
    with memory.session(key).turn(f"Which broker, {key}?") as turn:
        turn.assistant(answer)


async def look(client: Client, **arguments: object) -> tuple[str, list[str]]:
    found: Any = (await client.call_tool("memory_search", {"query": "Redis", **arguments})).structured_content
    return found["snapshot"]["id"], [hit["excerpt"] for hit in found["items"]]


async def main() -> None:
    with TemporaryDirectory() as folder:
        path = f"{folder}/memory.db"
        command = ["-m", "optchat", "--db", path, "--scope", "example", "mcp"]
        server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
        with optchat.open(path, scope="example") as memory:
            decide(memory, "monday", "No Redis: the broker that we have persists.")
            async with Client(stdio_client(server)) as client:
                print(*(tool.name for tool in (await client.list_tools()).tools))
                pin, before = await look(client)
                decide(memory, "tuesday", "Redis after all, for the cache.")
                print(before)
                print("the newest:", (await look(client))[1])
                print("as before: ", (await look(client, snapshot=pin))[1])


anyio.run(main)
