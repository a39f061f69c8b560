"""
``optchat demo``: two sessions, one memory, an example to read.

Decides: a story, and what must hold in it. Session A decides against Redis for a queue, because the existing broker
persists; session B, which never heard of A, starts to add a persistent queue. A's decision must stand in B's very first
request, with no memory call, and must lead down to the exact bytes that were said.
Refuses to know: how it is printed.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from attrs import frozen

import optchat
from optchat.adapters.openai import OpenAIChat

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

QUESTION: Final = "Should the job queue use Redis? Jobs must survive a restart."
ARGUMENTS: Final = '{"path": "deploy/broker.toml"}'
BROKER_FILE: Final = 'kind = "rabbitmq"\n\n[queues]\ndurable = true  # on disk before a message is acknowledged\n'
DECISION: Final = (
    "Decided against Redis for the queue: the existing broker already persists its messages (durable = true), "
    "and a second store would be one more thing to run."
)
REQUEST: Final = "add a persistent queue"
BUDGET: Final = optchat.Budget(window=32_000, output=2_000)


class DemoFailedError(Exception):
    """Something that must hold did not."""


@frozen
class Said:
    """A message of B's request."""

    role: str
    text: str


@frozen
class Step:
    """One step on the way from a line down to its source."""

    ref: str
    kind: str
    text: str


@frozen
class Demo:
    """What happened: the request that a model would get, and the way from its line to the source."""

    decision: str
    request: str
    messages: tuple[Said, ...]
    steps: tuple[Step, ...]
    source_bytes: int
    source_sha256: str


def run(memory: optchat.Memory) -> Demo:
    """
    Play the story in a new memory.

    Raises:
        DemoFailedError: the decision is not in B's request, or does not lead to the bytes that were said.
    """
    decide(memory)
    memory.settle()  # a worker does this in the background; here nobody has to wait

    with memory.session("add-queue", adapter=OpenAIChat(), title="B").turn(REQUEST) as turn:
        context = turn.context(BUDGET)
        messages = tuple(Said(str(message["role"]), _text(message)) for message in context.messages)
        must(messages[-1].text == REQUEST, "B's own request is not the last message")
        must(
            any(DECISION in block.text for block in context.blocks if block.kind == "shared"),
            "A's decision is not shared",
        )
        must(any(DECISION in message.text for message in messages), "A's decision is not in what B's model gets")
        steps = follow(turn)
        turn.assistant("I will add it to the existing broker, as decided before.")

    said = DECISION.encode()
    must(steps[-1].text.encode() == said, "the source differs from what was said")
    return Demo(DECISION, REQUEST, messages, steps, len(said), hashlib.sha256(said).hexdigest())


def decide(memory: optchat.Memory) -> None:
    """Session A: a question, a look into a file, a decision. The messages are as an OpenAI client gives them."""
    with memory.session("choose-queue", adapter=OpenAIChat(), title="A").turn(QUESTION) as turn:
        turn.add(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": ARGUMENTS}}
                ],
            }
        )
        turn.add({"role": "tool", "tool_call_id": "call_1", "content": BROKER_FILE})
        turn.add({"role": "assistant", "content": DECISION})


def follow(turn: optchat.Turn[ChatCompletionMessageParam]) -> tuple[Step, ...]:
    """From the shared line that holds the decision, by zoom alone, to the record that it came from."""
    line = next((line for line in turn.view().lines if DECISION in line.text), None)
    if line is None:
        raise DemoFailedError("no line of the shared view holds A's decision")
    steps = [Step(line.ref, f"shared line ({line.kind})", line.text)]
    published = False
    while True:
        opened = turn.zoom(line.ref)
        if opened.kind == "record":
            must(published, "the line led to a source without passing a publication")
            must(opened.complete, "the source has more than one page")
            source = turn.source(opened.ref)
            must(source.part == optchat.TextPart(DECISION), "the retained source is not what was said")
            return (*steps, Step(opened.ref, f"source ({source.kind})", opened.text or ""))
        published = published or opened.kind == "publication"
        down = next((child for child in opened.lines if DECISION in child.text), None)
        if down is None:
            raise DemoFailedError(f"nothing under {line.ref} holds A's decision")
        line = down
        steps.append(
            Step(line.ref, f"A's own line ({line.kind})" if published else f"shared line ({line.kind})", line.text)
        )


def must(holds: bool, otherwise: str) -> None:
    """Fail loudly."""
    if not holds:
        raise DemoFailedError(otherwise)


def _text(message: ChatCompletionMessageParam) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
