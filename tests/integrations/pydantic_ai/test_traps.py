"""What goes wrong silently with this framework, and does not here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import SkipModelRequest
from pydantic_ai.messages import (
    CachePoint,
    CompactionPart,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryPromptPart,  # pyright: ignore[reportDeprecated]
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext

import optchat
from optchat import HostMessage, Memory, MemoryBlock
from optchat.adapters.pydantic_ai import SharedMemory
from optchat.adapters.pydantic_ai.chain import is_open, is_waiting, run_ids, split_head, turn_start
from optchat.core.tokens import UpperBoundTokenizer
from optchat.testing import temporary_memory
from tests.integrations.pydantic_ai.host import BUDGET, CODEC, Script, agent, call, do, kinds, publish, turns

pytestmark = pytest.mark.host
answer = HostMessage.assistant
TOKENIZER = UpperBoundTokenizer()


@pytest.fixture
def memory() -> Iterator[Memory]:
    with temporary_memory() as memory:
        yield memory


# ---- hooks that are silently never called ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.33.0", "2.60.0", "2.63.9", "3.0.0"])
def test_a_version_that_was_not_tested_is_refused_at_construction(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    installed = importlib.metadata.version

    def told(name: str) -> str:
        return version if name == "pydantic-ai-slim" else installed(name)

    monkeypatch.setattr("optchat.adapters.checking.version", told)
    with pytest.raises(optchat.HostUnsupported, match=r"pydantic-ai-slim>=2\.64"):
        SharedMemory(memory, BUDGET)


def test_a_hook_that_is_not_there_is_refused_at_construction(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(AbstractCapability, "prepare_model_request")
    with pytest.raises(optchat.HostUnsupported, match="prepare_model_request"):
        SharedMemory(memory, BUDGET)


def test_a_hook_that_never_runs_is_an_error_and_not_silence(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberately broken variant: a framework whose hook is there and is never called."""
    publish(memory, "other", "Redis?", "No Redis.")
    script = Script.of(answer("one"))
    from optchat.adapters.pydantic_ai import capability

    monkeypatch.delattr(capability._Run, "prepare_model_request")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(optchat.HostUnsupported, match="never ran"):
        do(agent(script, memory, "chat-42"), "first")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed"]
    assert kinds(memory, "chat-42") == ["user"], "what was said without memory is not sealed"


class Cache(AbstractCapability[Any]):
    """Answers without the model."""

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        del ctx, request_context
        raise SkipModelRequest(ModelResponse(parts=[TextPart("from the cache")]))


def test_an_answer_by_which_no_model_was_asked_is_one_without_memory(memory: Memory) -> None:
    host = Agent(Script.of().model, capabilities=[SharedMemory(memory, BUDGET, session="chat-42"), Cache()])
    with pytest.raises(optchat.HostUnsupported, match="never ran"):
        do(host, "first")


class Watching(AbstractCapability[Any]):
    """Another capability, which looks at what is stored while the run goes on."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        self.stored.append(repr(ctx.messages).encode())
        assert request_context.messages == ctx.messages
        return request_context


@pytest.mark.parametrize("first", [True, False])
def test_other_capabilities_see_the_application_s_own_messages(memory: Memory, *, first: bool) -> None:
    publish(memory, "other", "Redis?", "Zanzibar: no Redis.")
    watching, shared = Watching(), SharedMemory(memory, BUDGET, session="chat-42")
    script = Script.of(call("c1", "memory_date", ref="pub:0+1"), answer("one"))
    do(Agent(script.model, capabilities=[watching, shared] if first else [shared, watching]), "first")
    assert len(watching.stored) == 2
    assert all(b"Zanzibar" not in stored and b"<shared_memory" not in stored for stored in watching.stored)
    assert all("Zanzibar" in request.text for request in script.seen)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"openai_conversation_id": "conv_1"}, True),
        ({"openai_previous_response_id": "resp_1"}, True),
        ({"openai_previous_response_id": "auto"}, False),
        ({"temperature": 0.1}, False),
    ],
)
def test_a_history_that_the_provider_holds_is_refused(memory: Memory, settings: Any, *, refused: bool) -> None:
    script = Script.of(answer("one"))
    host = agent(script, memory, "chat-42", model_settings=settings)
    if refused:
        with pytest.raises(optchat.HostUnsupported, match=r"provider holds the history"):
            do(host, "first")
        assert script.seen == []
    else:
        do(host, "first")
        assert script.seen[0].info.model_settings == settings


# ---- the budget ------------------------------------------------------------------------------------------------------


def test_instructions_tools_and_system_prompts_are_measured(memory: Memory) -> None:
    """What is sent beside the messages is charged: with too long instructions the window says so."""
    small = optchat.Budget(window=6_000, output=500)
    long = "word " * 8_000
    for more in ({"instructions": long}, {"system_prompt": long}):
        script = Script.of(answer("one"))
        with pytest.raises((optchat.ContextTooLarge, optchat.CoverTooLarge)):
            do(agent(script, memory, "chat-42", small, **more), "first")
        assert script.seen == []
    do(agent(Script.of(answer("one")), memory, "chat-42", small, instructions="Be brief."), "first")
    given = optchat.Budget(window=6_000, output=500, instructions=2_000)
    do(agent(Script.of(answer("one")), memory, "chat-42", given, instructions=long), "second")


def test_an_image_costs_what_it_costs(memory: Memory) -> None:
    script = Script.of(answer("a cat"), answer("still a cat"))
    host = agent(script, memory, "chat-42", optchat.Budget(window=20_000, output=500))
    image = BinaryContent(b"\x89PNG" + bytes(900_000), media_type="image/png")
    do(host, ["What is it?", image])
    prompts = [part.content for part in script.seen[0].messages[0].parts if isinstance(part, UserPromptPart)]
    assert ["What is it?", image] in prompts
    assert kinds(memory, "chat-42") == ["user", "user", "assistant"]
    do(host, ["And this?", ImageUrl("https://example.org/cat.png")])


# ---- the codec -------------------------------------------------------------------------------------------------------


def decoded(message: ModelMessage) -> list[tuple[str, object]]:
    return [(said.role, part) for said in CODEC.decode(message) for part in said.parts]


def test_both_ways_in_which_a_retry_was_written_are_read() -> None:
    with pytest.warns(Warning, match="RetryPromptPart"):
        old = RetryPromptPart("try again", tool_name="build", tool_call_id="c1")  # pyright: ignore[reportDeprecated]
    new = ToolReturnPart("build", "try again", "c1", outcome="retried")
    for part in (old, new):
        ((role, result),) = decoded(ModelRequest(parts=[part]))
        assert role == "tool"
        assert isinstance(result, optchat.ToolResultPart)
        assert (result.call_id, result.is_error) == ("c1", True)
    with pytest.warns(Warning, match="RetryPromptPart"):
        untied = RetryPromptPart("say yes")  # pyright: ignore[reportDeprecated]
    ((role, said),) = decoded(ModelRequest(parts=[untied]))
    assert role == "user"
    assert isinstance(said, optchat.ReportPart), "it is no user's word"


def test_what_is_no_source_decodes_to_nothing() -> None:
    request = ModelRequest(parts=[SystemPromptPart("Be kind."), CompactionPart("a summary")], instructions="Be brief.")
    response = ModelResponse(parts=[ThinkingPart("hm"), CompactionPart("a summary")])
    assert list(CODEC.decode(request)) == []
    assert list(CODEC.decode(response)) == []


def test_each_outcome_of_a_call_but_success_is_an_error() -> None:
    for outcome in ("success", "failed", "denied", "interrupted", "retried"):
        part = ToolReturnPart("build", {"a": 1}, "c1", outcome=outcome)
        ((_, result),) = decoded(ModelRequest(parts=[part]))
        assert isinstance(result, optchat.ToolResultPart)
        assert result.content == (optchat.TextPart('{"a":1}'),)
        assert result.is_error == (outcome != "success")


def test_media_become_blobs_and_marks_become_nothing() -> None:
    content: Sequence[Any] = [
        "see",
        TextContent("tagged", metadata={"a": 1}),
        BinaryContent(b"png", media_type="image/png"),
        ImageUrl("https://example.org/cat.png"),
        DocumentUrl("https://example.org/x"),
        CachePoint(),
    ]
    parts = [part for _, part in decoded(ModelRequest(parts=[UserPromptPart(content)]))]
    assert parts[:3] == [
        optchat.TextPart("see"),
        optchat.TextPart("tagged"),
        optchat.BlobPart("image/png", data=b"png"),
    ]
    assert [part.uri for part in parts[3:] if isinstance(part, optchat.BlobPart)] == [
        "https://example.org/cat.png",
        "https://example.org/x",
    ]
    assert len(parts) == 5
    tool = ToolReturnPart("look", ["a picture", BinaryContent(b"png", media_type="image/png")], "c1")
    ((_, result),) = decoded(ModelRequest(parts=[tool]))
    assert isinstance(result, optchat.ToolResultPart)
    assert result.content == (optchat.TextPart("a picture"), optchat.BlobPart("image/png", data=b"png"))


def test_what_a_provider_did_is_a_report() -> None:
    asked = NativeToolCallPart("web_search", {"query": "cats"}, "w1", provider_name="openai")
    found = NativeToolReturnPart("web_search", "many cats", "w1", provider_name="openai")
    parts = [part for _, part in decoded(ModelResponse(parts=[asked, found, TextPart("Many.")]))]
    assert parts == [optchat.ReportPart("web_search", '{"query":"cats"}\nmany cats'), optchat.TextPart("Many.")]
    ((_, alone),) = decoded(ModelResponse(parts=[asked]))
    assert alone == optchat.ReportPart("web_search", '{"query":"cats"}', complete=False)


def test_every_kind_of_part_is_counted() -> None:
    long = "word " * 50
    requests: list[Any] = [
        SystemPromptPart(long),
        UserPromptPart(long),
        UserPromptPart([long, TextContent(long)]),
        ToolReturnPart("build", long, "c1"),
        ToolReturnPart("build", [long, BinaryContent(b"x", media_type="application/pdf")], "c1"),
    ]
    responses: list[Any] = [
        TextPart(long),
        ThinkingPart(long),
        CompactionPart(long),
        ToolCallPart("build", {"x": long}),
    ]
    for part in requests:
        assert CODEC.count(ModelRequest(parts=[part]), TOKENIZER) > TOKENIZER.count(long)
    for part in responses:
        assert CODEC.count(ModelResponse(parts=[part]), TOKENIZER) > TOKENIZER.count(long)
    block = MemoryBlock("shared", long, cache=True)
    (memory,) = CODEC.encode([block, block])
    assert CODEC.count(memory, TOKENIZER) > 2 * TOKENIZER.count(long)


# ---- which messages are the turn's -----------------------------------------------------------------------------------


def request(text: str, run_id: str | None) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)], run_id=run_id)


def result(call_id: str, run_id: str | None, outcome: Any = "success") -> ModelRequest:
    return ModelRequest(parts=[ToolReturnPart("build", "built", call_id, outcome=outcome)], run_id=run_id)


def calling(call_id: str, run_id: str | None, state: Any = "complete") -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart("build", "{}", call_id)], run_id=run_id, state=state)


def saying(text: str, run_id: str | None) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], run_id=run_id)


TWICE: list[ModelMessage] = [request("c", "r1"), calling("c1", "r1"), result("c1", "r2")]
EARLIER: list[ModelMessage] = [request("a", "r0"), saying("b", "r0")]


@pytest.mark.parametrize(
    ("turn", "run_id", "ids"),
    [
        ([request("c", "r1")], "r1", ("r1",)),
        ([request("c", "r1"), calling("c1", "r1"), result("c1", "r1")], "r1", ("r1",)),
        ([request("c", "r1"), calling("c1", "r1"), result("c1", "r2")], "r2", ("r1", "r2")),
        ([*TWICE, calling("c2", "r2"), result("c2", "r3")], "r3", ("r1", "r2", "r3")),
        ([request("c", "r1"), calling("c1", "r1"), result("c1", "r1"), saying("d", "r2")], "r2", ("r1", "r2")),
        ([request("c", "r1"), calling("c1", "r1"), result("c1", "r1")], "r2", ("r1",)),
        ([request("c", None), calling("c1", "r1"), result("c1", "r2")], "r2", ("r1", "r2")),
        ([request("c", None), calling("c1", None), result("c1", "r2")], "r2", ("r2",)),
    ],
    ids=["first", "loop", "resumed", "resumed twice", "gone on with", "to be gone on with", "merged", "made by hand"],
)  # fmt: skip
def test_a_turn_is_a_chain_of_runs(turn: list[ModelMessage], run_id: str, ids: tuple[str, ...]) -> None:
    messages = [*EARLIER, *turn]
    assert turn_start(messages, run_id) == len(EARLIER)
    assert run_ids(messages[turn_start(messages, run_id) :]) == ids


def test_an_answer_to_a_call_that_was_cut_off_begins_no_chain() -> None:
    """The framework makes one message of it and the next request."""
    cut_off = ToolReturnPart("build", "cut off", "c1", outcome="interrupted")
    messages: list[ModelMessage] = [request("a", "r0"), calling("c1", "r0", "interrupted")]
    messages.append(ModelRequest(parts=[cut_off, UserPromptPart("again")], run_id="r1"))
    assert turn_start(messages, "r1") == 2


def test_a_history_that_waits_and_one_that_is_open() -> None:
    waits = [request("a", "r0"), calling("c1", "r0")]
    assert is_waiting(waits)
    assert is_open(waits)
    assert not is_waiting([*waits, result("c1", "r0")])
    assert is_open([*waits, result("c1", "r0")])
    assert not is_waiting([request("a", "r0"), calling("c1", "r0", "interrupted")])
    assert not is_open(EARLIER)
    assert not is_open([])


def test_what_opened_tools_and_changed_instructions_stays() -> None:
    """Of the earlier messages only the application's and the framework's own parts are sent: and all of them."""
    opening = ToolCallPart("load_capability", {"id": "maps"}, "l1", tool_kind="capability-load")
    opened = ToolReturnPart("load_capability", "Use maps.", "l1", tool_kind="capability-load")
    earlier: list[ModelMessage] = [
        ModelRequest(parts=[SystemPromptPart("Be kind."), UserPromptPart("a")]),
        ModelResponse(parts=[TextPart("hm"), opening]),
        ModelRequest(parts=[opened, SystemPromptPart("only now", scope="request")]),
        saying("b", "r0"),
    ]
    now = ModelRequest(parts=[SystemPromptPart("Be quick."), UserPromptPart("c")], run_id="r1")
    head, turn = split_head([*earlier, now], len(earlier))
    kept = [part.part_kind for message in head for part in message.parts]
    assert kept == ["system-prompt", "tool-call", "tool-return", "system-prompt"]
    assert turn == [replace(now, parts=now.parts[1:])]
    assert len(now.parts) == 2, "the application's own message is not changed"
    plain = request("d", "r2")
    assert split_head([plain], 0)[1][0] is plain


# ---- what the framework repairs --------------------------------------------------------------------------------------


def test_a_resume_behind_a_failed_request_has_that_turn_s_request_only(memory: Memory) -> None:
    """The framework makes one message of a failed run's request and the next one's."""
    from pydantic_ai import DeferredToolRequests, DeferredToolResults, capture_run_messages

    script = Script.of(RuntimeError("boom"), call("c1", "deploy"), answer("shipped"), answer("next"))
    host = agent(script, memory, "chat-42", output_type=[str, DeferredToolRequests])

    @host.tool_plain(requires_approval=True)
    def deploy() -> str:
        return "deployed"

    del deploy
    with capture_run_messages() as captured, pytest.raises(RuntimeError):
        do(host, "failing")
    first = do(host, "Ship it.", message_history=list(captured))
    second = do(
        host, message_history=first.all_messages(), deferred_tool_results=DeferredToolResults(approvals={"c1": True})
    )
    do(host, "Next.", message_history=second.all_messages())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed", "completed", "completed"]
    assert kinds(memory, "chat-42") == ["user", "user", "tool_call", "tool_result", "assistant", "user", "assistant"]
    assert script.seen[2].text.count("Ship it.") == 1


def test_a_failed_run_s_error_is_the_one_that_is_raised(memory: Memory) -> None:
    """Also where the turn cannot be ended any more."""

    async def close() -> None:
        memory.close()
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom") as raised:
        do(agent(Script.of(close), memory, "chat-42"), "first")
    assert any("could not end the turn" in note for note in getattr(raised.value, "__notes__", []))


def test_arguments_that_are_no_json_are_kept_as_the_model_wrote_them(memory: Memory) -> None:
    script = Script.of([ToolCallPart("build", '{"x": ', "c1")], answer("sorry"))
    host = agent(script, memory, "chat-42")

    @host.tool_plain
    def build(x: int) -> str:
        return str(x)

    del build
    outcome = do(host, "first")
    do(agent(Script.of(answer("two")), memory, "chat-42"), "second", message_history=outcome.all_messages())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"] * 2


def test_a_retry_feedback_in_a_history_is_no_difference(memory: Memory) -> None:
    from pydantic_ai import ModelRetry

    script = Script.of(answer("no"), answer("yes"), answer("two"))
    host = agent(script, memory, "chat-42")

    @host.output_validator
    def check(output: str) -> str:
        if output == "no":
            raise ModelRetry("say yes")
        return output

    del check
    outcome = do(host, "first")
    assert any(isinstance(part, RetryFeedbackPart) for m in outcome.all_messages() for part in m.parts)
    do(host, "second", message_history=outcome.all_messages())
    assert kinds(memory, "chat-42") == ["user", "assistant", "report", "assistant", "user", "assistant"]
