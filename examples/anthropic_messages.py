"""A loop over Anthropic's messages: what one conversation decides, the other is told. No key: a scripted model."""

import os
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import anthropic

import optchat
from optchat.adapters.anthropic import AnthropicMessages
from optchat.testing import FakeAnthropic, replies

MODEL = os.environ.get("OPTCHAT_EXAMPLE_MODEL")  # its key is ANTHROPIC_API_KEY
SCRIPT = [
    replies.answer("No Redis: the broker that we have persists."),
    replies.tool_calls(("memory_search", {"query": "Redis"})),
    replies.answer(lambda request: "The broker." if "No Redis" in request.text else "I was told of no decision."),
]
WIRE, BUDGET = AnthropicMessages(), optchat.Budget(window=128_000, output=4_000)


def ask(client: anthropic.Anthropic, memory: optchat.Memory, key: str, text: str) -> str:
    with memory.session(key, adapter=WIRE).turn(text) as turn:
        while True:
            sent, tools = turn.context(BUDGET).messages, WIRE.tools(turn.tools)
            response = client.messages.create(model=MODEL or "scripted", max_tokens=4_000, messages=sent, tools=tools)
            turn.add(*WIRE.reply(response))
            if not turn.pending:
                return "".join(block.text for block in response.content if block.type == "text")
            for call in turn.pending:
                turn.tool_result(call.call_id, turn.call(call.name, call.arguments))


with ExitStack() as stack:
    folder = stack.enter_context(TemporaryDirectory())
    memory = stack.enter_context(optchat.open(f"{folder}/memory.db", scope="example"))
    server = None if MODEL else stack.enter_context(FakeAnthropic(SCRIPT))
    client = anthropic.Anthropic() if server is None else anthropic.Anthropic(base_url=server.base_url, api_key="none")
    print(ask(client, memory, "monday", "Decide, in a sentence: Redis for the queue, or the broker that we have?"))
    print(ask(client, memory, "tuesday", "Where does the queue live, as decided?"))
