"""
A model that follows a script, behind a real openai client.

Every request is kept as it left the client, and is refused, as a provider would, if its calls and results do not pair.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai

import optchat
from optchat.adapters.openai import OpenAIChat

Message = dict[str, Any]
WIRE: Any = OpenAIChat()  # requests are read as the plain dicts that they are on the wire
WINDOW = optchat.Budget(window=32_000, output=1_000)


def call(call_id: str, name: str, **arguments: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def says(text: str | None = None, *calls: Message) -> Message:
    """A reply: text, calls, or both."""
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


def check_paired(messages: list[Message]) -> None:
    """What providers demand, written down apart from the code that keeps it."""
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


class Scripted:
    """
    Answers request after request with the next reply of the script.

    A reply may be a function of the messages sent: it runs while the model "thinks", so that a test can let others act.
    """

    def __init__(self, *replies: Message | Callable[[list[Message]], Message]) -> None:
        self.requests: list[dict[str, Any]] = []
        self._replies = replies
        transport = httpx2.MockTransport(self._answer)
        self.client = openai.OpenAI(
            api_key="none",
            base_url="http://model.invalid/v1",
            http_client=httpx2.Client(transport=transport),
            max_retries=0,
        )

    @property
    def messages(self) -> list[list[Message]]:
        """The messages of each request."""
        return [request["messages"] for request in self.requests]

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)
        check_paired(asked["messages"])
        self.requests.append(asked)
        reply = self._replies[len(self.requests) - 1]
        message = reply(asked["messages"]) if callable(reply) else reply
        if asked.get("stream"):
            events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(message)) + "data: [DONE]\n\n"
            return httpx2.Response(200, text=events, headers={"content-type": "text/event-stream"})
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "finish_reason": reason, "logprobs": None, "message": {"refusal": None} | message}
        return httpx2.Response(
            200, json={"id": "x", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}
        )


def _chunks(message: Message) -> Iterator[dict[str, Any]]:
    """A reply as it is streamed: text in two pieces, each call's arguments in two."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}

    yield chunk({"role": "assistant"})
    text = message.get("content") or ""
    for piece in filter(None, (text[: len(text) // 2], text[len(text) // 2 :])):
        yield chunk({"content": piece})
    calls = message.get("tool_calls", ())
    for index, made in enumerate(calls):
        function = made["function"]
        arguments = function["arguments"]
        head = {"index": index, "id": made["id"], "type": "function"}
        yield chunk({"tool_calls": [head | {"function": {"name": function["name"], "arguments": ""}}]})
        for piece in (arguments[:3], arguments[3:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if calls else "stop")


def converse(
    turn: optchat.Turn[Any],
    model: Scripted,
    *,
    budget: optchat.Budget = WINDOW,
    tool: Callable[[str, str], str] = lambda name, _arguments: f"{name}: done",
) -> None:
    """A host's loop, as DESIGN shows it: until the model calls nothing more."""
    while True:
        context = turn.context(budget)
        response = model.client.chat.completions.create(
            model="scripted", messages=context.messages, tools=WIRE.tools(turn.tools)
        )
        turn.add(*WIRE.reply(response))
        if not turn.pending:
            return
        for made in turn.pending:
            if made.name in turn.tools:
                turn.tool_result(made.call_id, turn.call(made.name, made.arguments))
            else:
                turn.tool_result(made.call_id, tool(made.name, made.arguments))


def block(messages: list[Message], tag: str) -> str:
    """The one message that is this block of memory; a user's, as memory is never anything else."""
    found = [m for m in messages if str(m["content"]).startswith(f"<{tag} ")]
    assert [m["role"] for m in found] == ["user"], f"{len(found)} blocks <{tag}>"
    return str(found[0]["content"])
