"""
The three wires: their codecs, their fake servers, messages as a host would have them, and what each provider demands.

What is demanded is written down here apart from the code that keeps it, as a provider would refuse.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import openai
from attrs import frozen

import optchat
from optchat.adapters.anthropic import AnthropicMessages
from optchat.adapters.openai import OpenAIChat, OpenAIResponses
from optchat.testing import FakeAnthropic, FakeOpenAI

Native = dict[str, Any]
WINDOW = optchat.Budget(window=32_000, output=1_000)


@frozen
class Wire:
    """``ask``: one request by the provider's own client, and the natives of its reply."""

    name: str
    adapter: Any
    server: type[FakeOpenAI] | type[FakeAnthropic]
    ask: Callable[[Any, list[Native], list[Native]], list[Native]]
    native: Callable[[optchat.HostMessage], list[Native]]
    check: Callable[[list[Native]], None]

    def client(self, server: FakeOpenAI | FakeAnthropic) -> Any:
        if isinstance(server, FakeAnthropic):
            return anthropic.Anthropic(api_key="none", base_url=server.base_url, max_retries=0)
        return openai.OpenAI(api_key="none", base_url=server.base_url, max_retries=0)

    def sent(self, body: Any) -> list[Native]:
        """The messages of a recorded request."""
        return list(body["input"] if self.name == "responses" else body["messages"])


# ---- OpenAI's chat completions ---------------------------------------------------------------------------------------


def ask_chat(client: openai.OpenAI, messages: list[Any], tools: list[Any]) -> list[Any]:
    response = client.chat.completions.create(model="fake-model", messages=messages, tools=tools)
    return list(OpenAIChat().reply(response))


def chat_native(message: optchat.HostMessage) -> list[Native]:
    texts = [part.text for part in message.parts if isinstance(part, optchat.TextPart)]
    calls = [
        {"id": part.call_id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
        for part in message.parts
        if isinstance(part, optchat.ToolCallPart)
    ]
    if message.role == "tool":
        return [
            {"role": "tool", "tool_call_id": part.call_id, "content": said(part)}
            for part in message.parts
            if isinstance(part, optchat.ToolResultPart)
        ]
    images = [
        {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in message.parts
        if isinstance(part, optchat.BlobPart)
    ]
    content: Any = "\n".join(texts)
    if images:
        content = [*({"type": "text", "text": text} for text in texts), *images]
    native: Native = {"role": message.role, "content": content or (None if calls else "")}
    return [native | ({"tool_calls": calls} if calls else {})]


def check_chat(messages: list[Native]) -> None:
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        assert message["role"] in ("system", "user", "assistant"), f"a {message['role']} message answers nothing"
        wanted = [made["id"] for made in message.get("tool_calls", ())]
        assert len(set(wanted)) == len(wanted), "one id for two calls"
        answers = messages[at : at + len(wanted)]
        assert [answer["role"] for answer in answers] == ["tool"] * len(wanted), "a call without its result"
        assert sorted(answer["tool_call_id"] for answer in answers) == sorted(wanted)
        at += len(wanted)


# ---- OpenAI's responses ----------------------------------------------------------------------------------------------


def ask_responses(client: openai.OpenAI, messages: list[Any], tools: list[Any]) -> list[Any]:
    response = client.responses.create(model="fake-model", input=messages, tools=tools, store=False)
    return list(OpenAIResponses().reply(response))


def responses_native(message: optchat.HostMessage) -> list[Native]:
    items: list[Native] = []
    content: list[Native] = []
    for part in message.parts:
        match part:
            case optchat.TextPart(text):
                kind = "output_text" if message.role == "assistant" else "input_text"
                content.append({"type": kind, "text": text})
            case optchat.BlobPart():
                content.append({"type": "input_image", "image_url": data_url(part), "detail": "auto"})
            case optchat.ToolCallPart(call_id, name, arguments):
                items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
            case optchat.ToolResultPart(call_id):
                items.append({"type": "function_call_output", "call_id": call_id, "output": said(part)})
            case _:
                pass
    return [*([{"type": "message", "role": message.role, "content": content}] if content else []), *items]


def check_responses(items: list[Native]) -> None:
    waiting: set[str] = set()
    for item in items:
        if item["type"] == "function_call":
            assert item["call_id"] not in waiting, "one id for two calls"
            waiting.add(item["call_id"])
        elif item["type"] == "function_call_output":
            assert item["call_id"] in waiting, "no tool call found for function call output"
            waiting.remove(item["call_id"])
        elif item["type"] == "message" and item["role"] == "user":
            assert not waiting, "the user speaks while calls wait"
    assert not waiting, "no tool output found for function call"


# ---- Anthropic's messages --------------------------------------------------------------------------------------------


def ask_anthropic(client: anthropic.Anthropic, messages: list[Any], tools: list[Any]) -> list[Any]:
    response = client.messages.create(model="fake-model", max_tokens=100, messages=messages, tools=tools)
    return list(AnthropicMessages().reply(response))


def anthropic_native(message: optchat.HostMessage) -> list[Native]:
    blocks: list[Native] = []
    for part in message.parts:
        match part:
            case optchat.TextPart(text):
                blocks.append({"type": "text", "text": text})
            case optchat.BlobPart(media_type):
                source = {"type": "base64", "media_type": media_type, "data": data_url(part).partition(",")[2]}
                blocks.append({"type": "image", "source": source})
            case optchat.ToolCallPart(call_id, name, arguments):
                blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)})
            case optchat.ToolResultPart(call_id):
                result = {"type": "tool_result", "tool_use_id": call_id, "content": said(part)}
                blocks.append(result | ({"is_error": True} if part.is_error else {}))
            case _:
                pass
    return [{"role": "assistant" if message.role == "assistant" else "user", "content": blocks}]


def check_anthropic(messages: list[Native]) -> None:
    merged: list[tuple[str, list[Native]]] = []  # adjacent messages of one role are one
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        assert blocks, "a message must have content"
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], blocks))
    assert merged[0][0] == "user"
    marks = 0
    wanted: set[str] = set()
    for role, blocks in merged:
        answers = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(answers) == sorted(wanted), "tool_use ids were found without tool_result blocks right after"
        assert all(block["type"] == "tool_result" for block in blocks[: len(answers)]), "results come first"
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(calls) == len(set(calls)), "tool_use ids must be unique"
        assert not calls or role == "assistant"
        wanted = set(calls)
        for block in blocks:
            assert block["type"] != "text" or block["text"].strip(), "text must be non-empty"
            assert block["type"] != "tool_use" or isinstance(block["input"], dict)
            marks += "cache_control" in block
    assert not wanted, "a call without its result"
    assert marks <= 4, "four marks at most"


# ---- together --------------------------------------------------------------------------------------------------------


def said(part: optchat.ToolResultPart) -> str:
    return "\n".join(item.text for item in part.content if isinstance(item, optchat.TextPart))


def data_url(blob: optchat.BlobPart) -> str:
    return f"data:{blob.media_type};base64,{base64.b64encode(blob.data or b'').decode()}"


CHAT = Wire("chat", OpenAIChat(), FakeOpenAI, ask_chat, chat_native, check_chat)
RESPONSES = Wire("responses", OpenAIResponses(), FakeOpenAI, ask_responses, responses_native, check_responses)
MESSAGES = Wire("messages", AnthropicMessages(), FakeAnthropic, ask_anthropic, anthropic_native, check_anthropic)
WIRES: Sequence[Wire] = (CHAT, RESPONSES, MESSAGES)


def converse(wire: Wire, client: Any, turn: optchat.Turn[Any], *, budget: optchat.Budget = WINDOW) -> None:
    """A host's loop, as the guide shows it: until the model calls nothing more."""
    while True:
        context = turn.context(budget)
        turn.add(*wire.ask(client, context.messages, wire.adapter.tools(turn.tools)))
        if not turn.pending:
            return
        for made in turn.pending:
            if made.name in turn.tools:
                turn.tool_result(made.call_id, turn.call(made.name, made.arguments))
            else:
                turn.tool_result(made.call_id, f"{made.name}: done", is_error=made.name == "fails")
