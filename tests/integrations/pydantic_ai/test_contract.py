"""The adapter's contract, kept by Pydantic AI and its capability."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ThinkingPart

from optchat import HostMessage, Memory, ToolCallPart
from optchat.testing import AdapterContract, HostRun
from optchat.testing.contract import INTERRUPTED_TOOL
from tests.integrations.pydantic_ai.host import CODEC, Captured, Script, agent, apart, native

pytestmark = pytest.mark.host
SETTINGS = ("Be brief.", "A system prompt.", ["build", INTERRUPTED_TOOL], 0.5)


def an_agent(script: Script, memory: Memory, key: str) -> Agent[Any, Any]:
    host = agent(
        script,
        memory,
        key,
        instructions="Be brief.",
        system_prompt="A system prompt.",
        model_settings={"temperature": 0.5},
    )

    @host.tool_plain
    def build(x: int) -> str:
        return f"built {x}"

    @host.tool_plain(name=INTERRUPTED_TOOL)
    async def interrupted(x: int) -> str:
        del x
        raise asyncio.CancelledError

    del build, interrupted
    return host


def settings_of(request: Captured) -> object:
    """What a request held beside conversation: the host's own."""
    system = [
        part.content for message in request.messages for part in message.parts if part.part_kind == "system-prompt"
    ]
    tools = [name for name in request.tools if not name.startswith("memory_")]
    settings = request.info.model_settings or {}
    return request.info.instructions, *system, tools, settings.get("temperature")


async def _do(host: Agent[Any, Any], request: str, history: Sequence[ModelMessage] = ()) -> list[ModelMessage]:
    return (await host.run(request, message_history=history)).all_messages()


class TestPydanticAI(AdapterContract[ModelMessage]):
    def adapter(self) -> Any:
        return CODEC

    def native(self, message: HostMessage) -> Sequence[ModelMessage]:
        return native(message)

    def thinking(self, text: str) -> Sequence[ModelMessage]:
        thought = ThinkingPart(text, id="rs_1", signature="c2lnbmVk", provider_name="openai")
        return [ModelResponse(parts=[thought, TextPart("Done.")])]

    def settings(self) -> object:
        return SETTINGS

    def drive(
        self, memory: Memory, key: str, request: str, script: Sequence[HostMessage | BaseException]
    ) -> HostRun[ModelMessage]:
        model = Script(iter(script))
        host = an_agent(model, memory, key)
        error: BaseException | None = None
        history = self._histories.get(key, [])
        with capture_run_messages() as stored:
            try:
                self._histories[key] = asyncio.run(_do(host, request, history))  # an application keeps what it gets
            except BaseException as raised:  # noqa: BLE001 - a cancellation too
                error = raised
        requests = [apart(seen.messages) for seen in model.seen]
        return HostRun(requests, stored[len(history) :], error, [settings_of(seen) for seen in model.seen])

    @functools.cached_property
    def _histories(self) -> dict[str, list[ModelMessage]]:
        return {}

    def edit(self, memory: Memory, key: str, old: str, new: str) -> None:
        del memory
        written = ModelMessagesTypeAdapter.dump_json(self._histories[key]).decode()
        assert old in written
        self._histories[key] = ModelMessagesTypeAdapter.validate_json(written.replace(old, new))

    def drive_nested(self, memory: Memory, key: str, request: str, inner: str, report: str) -> HostRun[ModelMessage]:
        within = Script.of(HostMessage.assistant(inner, []), HostMessage.assistant(report))
        surveyor = agent(within, memory, key)
        outer = Script.of(
            HostMessage.assistant(calls=[ToolCallPart("c1", "survey", "{}")]),
            HostMessage.assistant("Surveyed."),
        )
        host = agent(outer, memory, key)

        @host.tool_plain
        async def survey() -> str:
            first = await surveyor.run("Look round.")
            second = await surveyor.run("And now?", message_history=first.all_messages())
            return str(second.output)

        del survey
        error: BaseException | None = None
        with capture_run_messages() as stored:
            try:
                asyncio.run(_do(host, request))
            except BaseException as raised:  # noqa: BLE001 - told to the contract
                error = raised
        return HostRun([apart(seen.messages) for seen in outer.seen], list(stored), error)
