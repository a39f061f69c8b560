"""Models for tests, tested."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

import optchat
from optchat.adapters.openai import OpenAIChat
from optchat.testing import RequestRecorder, ScriptedModel, temporary_memory
from tests.adapters.wires import CHAT

BUDGET = optchat.Budget(window=32_000, output=1_000)
said = optchat.HostMessage


# ---- the recorder ------------------------------------------------------------------------------------------------


def test_it_keeps_the_objects_and_the_words_as_they_were() -> None:
    recorder = RequestRecorder[dict[str, str]](CHAT.adapter)
    message = {"role": "user", "content": "before"}
    sent = [message]
    recorder.record(sent)
    message["content"] = "after"
    sent.append({"role": "user", "content": "more"})
    recorder.record(sent)
    assert recorder.requests[0] == [message]
    assert recorder.requests[0][0] is message
    assert recorder.texts == ["before", "after\nmore"]
    assert recorder.decoded(0) == [said.user("after")]
    assert [each.parts for each in recorder.decoded()] == [said.user("after").parts, said.user("more").parts]


def test_what_cannot_be_read_is_not_kept() -> None:
    recorder = RequestRecorder[object](OpenAIChat())
    with pytest.raises(optchat.BadArgument):
        recorder.record([{"role": "nobody"}])
    assert (recorder.requests, recorder.texts) == ([], [])


def test_a_model_is_recorded_before_it_is_asked() -> None:
    recorder = RequestRecorder[optchat.HostMessage]()

    def fails(messages: list[optchat.HostMessage]) -> str:
        raise ConnectionError(str(len(messages)))

    async def answers(messages: list[optchat.HostMessage]) -> str:
        return f"{len(messages)} read"

    with pytest.raises(ConnectionError, match="1"):
        recorder.around(fails)([said.user("a")])
    assert asyncio.run(recorder.around(answers)([said.user("b")])) == "1 read"
    assert recorder.texts == ["a", "b"]


# ---- the script --------------------------------------------------------------------------------------------------


def test_a_loop_is_driven_by_a_script() -> None:
    call = optchat.ToolCallPart("c", "memory_search", '{"query": "Redis"}')
    model = ScriptedModel([said.assistant("Let me look.", [call]), said.assistant("No Redis.")])
    with temporary_memory() as memory:
        with memory.session("other").turn("Redis?") as turn:
            turn.assistant("Zanzibar: no Redis.")
        with memory.session("mine").turn("And here?") as turn:
            while True:
                turn.add(*model(turn.context(BUDGET).messages))
                if not turn.pending:
                    break
                for made in turn.pending:
                    turn.tool_result(made.call_id, turn.call(made.name, made.arguments))
        assert turn.outcome == "completed"
    first, second = model.texts
    assert "Zanzibar: no Redis." in first
    assert second.startswith(first), "what was sent is sent again"
    assert model.requests[1][-2].parts[-1] == call
    assert [message.role for message in model.decoded()][-2:] == ["assistant", "tool"]


def test_natives_of_a_host() -> None:
    model = ScriptedModel([said.assistant("Yes.")], native=CHAT.native, adapter=CHAT.adapter)
    assert model([{"role": "user", "content": "Is it?"}]) == [{"role": "assistant", "content": "Yes."}]
    assert model.texts == ["Is it?"]


def test_a_step_may_be_raised() -> None:
    model = ScriptedModel([ConnectionError("down"), asyncio.CancelledError(), said.assistant("Back.")])
    with pytest.raises(ConnectionError, match="down"):
        model([said.user("a")])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(model.ask([said.user("b")]))
    assert asyncio.run(model.ask([said.user("c")])) == [said.assistant("Back.")]
    assert model.texts == ["a", "b", "c"], "what failed was asked all the same"


def test_asked_more_often_than_the_script_knows() -> None:
    model = ScriptedModel([said.assistant("One.")])
    model([said.user("a")])
    for _ in range(2):
        with pytest.raises(AssertionError, match="step 2, and its script has 1"):
            model([said.user("b")])
    assert len(model.requests) == 3, "also what it had no answer to is kept"


def test_a_function_answers_by_what_it_is_sent() -> None:
    def judge(messages: Sequence[optchat.HostMessage]) -> optchat.HostMessage | BaseException:
        return said.assistant(f"{len(messages)}") if len(messages) < 3 else ConnectionError("too long")

    model = ScriptedModel(judge)
    assert model([said.user("a")]) == [said.assistant("1")]
    with pytest.raises(ConnectionError):
        model([said.user("a")] * 3)


def test_threads_share_a_script_that_is_taken_once() -> None:
    steps = (said.assistant(str(number)) for number in range(400))
    model, answers = ScriptedModel(steps), list[str]()

    def ask() -> None:
        for _ in range(50):
            ((part,),) = (message.parts for message in model([said.user("a")]))
            assert isinstance(part, optchat.TextPart)
            answers.append(part.text)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers, key=int) == [str(number) for number in range(400)]
    assert len(model.requests) == len(model.texts) == 400
