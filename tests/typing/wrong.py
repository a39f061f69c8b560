"""What no checker may let pass: each line marked so is an error, and no other is. Never run."""

from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

import optchat
import optchat.aio
from optchat.adapters.openai import OpenAIChat


def wrong(memory: optchat.Memory, response: ChatCompletion, native: ChatCompletionMessageParam) -> None:
    optchat.open("x.db")  # error: a forgotten scope would share what should not be shared
    turn = memory.session("x", adapter=OpenAIChat()).turn("q")
    turn.add(response)  # error: a response is no message; reply() makes some of it
    turn.assistant(response)  # error
    turn.end("done")  # error: three outcomes there are
    memory.session("x").turn("q").add(native)  # error: without an adapter messages are neutral
    memory.session("x", host="h", adapter=3)  # error
    turn.context(200_000)  # error: a window alone is no budget
    memory.search("x", order="oldest")  # error
    turn.outcome = "completed"  # error: it is told by end()
    memory.view().text = "x"  # error: values are frozen
    optchat.HostMessage("system", ())  # error: there is no system role


async def wrong_awaited(memory: optchat.aio.AsyncMemory, turn: optchat.aio.AsyncTurn[str]) -> None:
    optchat.aio.open("x.db")  # error
    memory.search("x").hits  # error: it is awaited  # noqa: B018
    await memory.search("x", order="oldest")  # error
    await turn.assistant(3)  # error
    await turn.add(3)  # error: of another host
    await memory.session("x", host="h", adapter=3)  # error
    async with await memory.session("x"):  # error: a session is no block
        pass
    with memory.pin():  # error: async with
        pass
    turn.pending = ()  # error: it is told by what is sealed
