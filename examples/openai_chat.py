"""A loop over OpenAI's chat completions: what one conversation decides, the other is told. No key: a scripted model."""

import os
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import openai

import optchat
from optchat.adapters.openai import OpenAIChat
from optchat.testing import FakeOpenAI, replies

MODEL = os.environ.get("OPTCHAT_EXAMPLE_MODEL")  # its key is OPENAI_API_KEY
SCRIPT = [
    replies.answer("No Redis: the broker that we have persists."),
    replies.tool_calls(("memory_search", {"query": "Redis"})),
    replies.answer(lambda request: "The broker." if "No Redis" in request.text else "I was told of no decision."),
]
WIRE, BUDGET = OpenAIChat(), optchat.Budget(window=128_000, output=4_000)


def ask(client: openai.OpenAI, memory: optchat.Memory, key: str, text: str) -> str:
    with memory.session(key, adapter=WIRE).turn(text) as turn:
        while True:
            sent, tools = turn.context(BUDGET).messages, WIRE.tools(turn.tools)
            response = client.chat.completions.create(model=MODEL or "scripted", messages=sent, tools=tools)
            turn.add(*WIRE.reply(response))
            if not turn.pending:
                return response.choices[0].message.content or ""
            for call in turn.pending:
                turn.tool_result(call.call_id, turn.call(call.name, call.arguments))


with ExitStack() as stack:
    folder = stack.enter_context(TemporaryDirectory())
    memory = stack.enter_context(optchat.open(f"{folder}/memory.db", scope="example"))
    server = None if MODEL else stack.enter_context(FakeOpenAI(SCRIPT))
    client = openai.OpenAI() if server is None else openai.OpenAI(base_url=server.base_url, api_key="none")
    print(ask(client, memory, "monday", "Decide, in a sentence: Redis for the queue, or the broker that we have?"))
    print(ask(client, memory, "tuesday", "Where does the queue live, as decided?"))
