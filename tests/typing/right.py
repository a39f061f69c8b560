"""What must type-check as it stands, and to which types. Read by the checkers; never run."""

from collections.abc import Sequence
from typing import assert_type

import anyio
import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

import optchat
import optchat.aio
from optchat.adapters.openai import OpenAIChat


class Echo:
    """A host of its own: its native message is plain text."""

    @property
    def info(self) -> optchat.HostInfo:
        return optchat.HostInfo(name="echo")

    def decode(self, message: str, /) -> Sequence[optchat.HostMessage]:
        return [optchat.HostMessage.user(message)]

    def encode(self, blocks: Sequence[optchat.MemoryBlock], /) -> Sequence[str]:
        return [block.text for block in blocks]

    def count(self, message: str, tokenizer: optchat.Tokenizer, /) -> int:
        return tokenizer.count(message)


class Characters:
    name = "characters-1"

    def count(self, text: str, /) -> int:
        return len(text)


class Async:
    name, window_tokens = "async-1", 1000

    async def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
        return optchat.SummaryReply(request.sources[0].text)


@optchat.summarizer("sync-1", window_tokens=1000)
def sync(request: optchat.SummaryRequest) -> str:
    return request.sources[0].text


def sessions(memory: optchat.Memory) -> None:
    assert_type(memory.session("a"), optchat.Session[optchat.HostMessage])
    assert_type(memory.session("a", adapter=OpenAIChat()), optchat.Session[ChatCompletionMessageParam])
    assert_type(memory.session("a", adapter=Echo()), optchat.Session[str])
    assert_type(memory.session_by_id("a"), optchat.Session[optchat.HostMessage])


def turns(memory: optchat.Memory, client: openai.OpenAI, budget: optchat.Budget) -> None:
    chat = OpenAIChat()
    with memory.session("a", adapter=chat).turn("go") as turn:
        assert_type(turn, optchat.Turn[ChatCompletionMessageParam])
        context = turn.context(budget)
        assert_type(context.messages, list[ChatCompletionMessageParam])
        response = client.chat.completions.create(
            model="m", messages=context.messages, tools=chat.tools(turn.tools), stream=False
        )
        assert_type(response, ChatCompletion)
        assert_type(turn.add(*chat.reply(response)), tuple[str, ...])
        turn.observe(context.messages)
        for call in turn.pending:
            turn.tool_result(call.call_id, turn.call(call.name, call.arguments))
    assert_type(turn.outcome, optchat.Outcome | None)
    assert_type(memory.session("a", adapter=Echo()).turn("go").context(budget).messages, list[str])
    neutral = memory.session("a").turn(optchat.HostMessage.user("go"))
    neutral.add(optchat.HostMessage.assistant("x"))
    neutral.end("completed", "because")


def reads(reader: optchat.Reader) -> None:
    for hit in reader.search("x", order="newest", kind="tool_result", limit=5):
        assert_type(hit, optchat.Hit)
    assert_type(reader.sessions(), optchat.Page[optchat.SessionInfo])
    assert_type(reader.zoom("pub:0+1").lines, tuple[optchat.Line, ...])
    match reader.source("pub:0+1").part:
        case optchat.ToolCallPart(call_id, name, arguments):
            assert_type((call_id, name, arguments), tuple[str, str, str])
        case optchat.TextPart(text):
            assert_type(text, str)
        case _:
            pass


def handles(memory: optchat.Memory, turn: optchat.Turn[str]) -> list[optchat.Reader]:
    with memory.pin() as pinned:
        return [memory, turn, pinned]


def plugs() -> None:
    for summarizer in (None, Async(), sync):
        with optchat.open("m.db", scope="s", summarizer=summarizer, tokenizer=Characters(), compact="manual") as memory:
            memory.count_tokens("x", {"a": 1}, tokenizer=optchat.tokenizer_for("gpt-5"))


async def service(path: str, budget: optchat.Budget) -> None:
    opened = await optchat.aio.open(path, scope="s")
    assert_type(opened, optchat.aio.AsyncMemory)
    async with optchat.aio.open(path, scope="s", threads=4) as memory:
        assert_type(await memory.session("a"), optchat.aio.AsyncSession[optchat.HostMessage])
        chat = await memory.session("a", adapter=OpenAIChat())
        assert_type(chat, optchat.aio.AsyncSession[ChatCompletionMessageParam])
        async with chat.turn("go") as turn:
            assert_type(turn, optchat.aio.AsyncTurn[ChatCompletionMessageParam])
            assert_type((await turn.context(budget)).messages, list[ChatCompletionMessageParam])
            for call in turn.pending:
                refs = await turn.tool_result(call.call_id, await turn.call(call.name, call.arguments), is_error=True)
                assert_type(refs, tuple[str, ...])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(turn.assistant, "done")
        assert_type(await chat.resume(), optchat.aio.AsyncTurn[ChatCompletionMessageParam])
        assert_type(await memory.search("x", order="newest", limit=5), optchat.SearchPage)
        assert_type(await memory.scoped("other").status(), optchat.Status)
        assert_type(await chat.turns(limit=1), optchat.Page[optchat.TurnInfo])
        assert_type(memory.sync, optchat.Memory)
        async with memory.pin() as reader:
            assert_type(reader, optchat.aio.AsyncReader)
            assert_type(await reader.view(max_tokens=100), optchat.View)
    await optchat.aio.AsyncMemory(optchat.open(path, scope="s"), threads=2).aclose()
