"""Anthropic's summarizer against a server that does everything, and its calls that share a cached prefix."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from optchat.compactor import AnthropicSummarizer, Price, anthropic_summarizer
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.summarizing import PromptMessage, SourceLine, SummaryJob, SummaryReply, SummaryRequest, judge
from optchat.core.trouble import CallFailed, TroubleKind
from optchat.testing import FakeAnthropic, replies
from optchat.testing.replies import Reply, Usage
from tests.compactor.helpers import (
    AT,
    FAILURES,
    KEY,
    SECRET,
    TASK,
    asked,
    failure,
    let_go_of,
    request,
    run,
    until,
)

anthropic = pytest.importorskip("anthropic")

MARK = {"type": "ephemeral"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in (
        "BASE_URL",
        "AUTH_TOKEN",
        "PROFILE",
        "IDENTITY_TOKEN",
        "IDENTITY_TOKEN_FILE",
        "CUSTOM_HEADERS",
        "CONFIG_DIR",
    ):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no profile of whoever runs the tests
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[FakeAnthropic]:
    with FakeAnthropic() as server:
        yield server


def summarizer(server: FakeAnthropic, **more: Any) -> AnthropicSummarizer:
    return AnthropicSummarizer("claude-test", base_url=server.base_url, **more)


def answers(*script: Reply, **more: Any) -> tuple[SummaryReply, FakeAnthropic]:
    with FakeAnthropic(script) as server:
        (reply,) = asked(partial(summarizer, server, **more))
    return reply, server


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_a_request_is_one_streamed_message_without_tools(server: FakeAnthropic) -> None:
    said = request(
        PromptMessage("user", "Earlier lines", cache=True),
        PromptMessage("user", "more of them"),
        TASK,
        PromptMessage("assistant", "too long"),
        PromptMessage("user", "shorter"),
    )
    (reply,) = asked(partial(summarizer, server), said)
    (sent,) = server.requests
    assert set(sent.body) == {"model", "max_tokens", "system", "messages", "stream"}
    assert (sent.body["model"], sent.body["max_tokens"], sent.body["stream"]) == ("claude-test", 1_024, True)
    assert sent.body["system"] == [{"type": "text", "text": said.system, "cache_control": MARK}]
    assert sent.body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Earlier lines", "cache_control": MARK},
                {"type": "text", "text": "more of them"},
                {"type": "text", "text": TASK.text},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "too long"}]},
        {"role": "user", "content": [{"type": "text", "text": "shorter"}]},
    ]
    assert sent.authorized
    assert reply.text.startswith("line ")


def test_of_too_many_marks_the_earliest_of_the_context_go(server: FakeAnthropic) -> None:
    context = [PromptMessage("user", f"block {number}", cache=number != 5) for number in range(8)]
    asked(partial(summarizer, server), request(*context, TASK))
    (sent,) = server.requests
    assert "cache_control" in sent.body["system"][0]
    blocks = sent.body["messages"][0]["content"]
    assert [block["text"] for block in blocks if "cache_control" in block] == ["block 4", "block 6", "block 7"]


def test_an_empty_block_is_not_sent(server: FakeAnthropic) -> None:
    asked(partial(summarizer, server), request(PromptMessage("user", "", cache=True), TASK))
    assert server.requests[0].body["messages"] == [{"role": "user", "content": [{"type": "text", "text": TASK.text}]}]


def test_settings_of_ones_own_are_sent_and_win(server: FakeAnthropic) -> None:
    own = {"thinking": {"type": "disabled"}, "max_tokens": 4_000}
    asked(partial(summarizer, server, extra_body=own))
    assert {name: server.requests[0].body[name] for name in own} == own


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_the_answer_and_its_figures() -> None:
    """Anthropic's input_tokens leaves out what was read and written; the reply's is the whole input."""
    used = Usage(input_tokens=1_000, output_tokens=20, cache_read_tokens=600, cache_write_tokens=300)
    price = Price(3.0, 15.0, cache_read=0.3, cache_write=3.75)
    reply, server = answers(replies.answer("user: asked", usage=used), price=price)
    assert reply == SummaryReply(
        "user: asked",
        model="claude-test",
        input_tokens=1_000,
        output_tokens=20,
        cache_read_tokens=600,
        cache_write_tokens=300,
        cost=pytest.approx((100 * 3 + 600 * 0.3 + 300 * 3.75 + 20 * 15) / 1e6),
        waited_seconds=reply.waited_seconds,
    )
    assert server.usage == used


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (replies.refuse(), {"refused": True}),
        (replies.cut_off("half"), {"cut_off": True, "text": "half"}),
        (replies.tool_call(), {"called_tool": True, "text": ""}),
        (replies.empty(), {"text": ""}),
        (replies.prose(), {"refused": False, "cost": None}),
        (replies.overshoot(3_000), {"cut_off": False}),
    ],
    ids=["refuse", "cut_off", "tool_call", "empty", "prose", "overshoot"],
)
def test_answers_that_are_no_summary(script: Reply, expected: dict[str, Any]) -> None:
    reply, server = answers(script)
    assert {name: getattr(reply, name) for name in expected} == expected
    assert (reply.input_tokens, reply.output_tokens) == (server.usage.input_tokens, server.usage.output_tokens)


def test_bytes_that_are_no_utf8_are_a_damaged_reply() -> None:
    """The SDK gives up on the stream there: what came before stands, and how much was written is unknown."""
    reply, _server = answers(replies.broken_utf8("half a line"), price=Price(1, 1))
    assert reply.text.endswith("\ufffd")
    assert (reply.output_tokens, reply.cost) == (None, None)
    assert reply.input_tokens  # told at the start; whether the server ends before its client hangs up is anybody's race
    job = SummaryJob(purpose="leaf", sources=(SourceLine("user", "x", AT),), limit_bytes=512)
    verdict = judge(job, reply)
    assert not isinstance(verdict, str)
    assert "damaged" in verdict.reason


@pytest.mark.parametrize("within", [False, True])
def test_a_filter_that_steps_in_is_a_refusal(within: bool) -> None:
    message = "Output blocked by content filtering policy"
    reply, _ = answers(replies.Fail(400, "invalid_request_error", message, within=within))
    assert (reply.refused, reply.text) == (True, "")


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "kind", "word"), FAILURES, ids=lambda each: str(each)[:40])
def test_failures_are_told_apart(script: Reply, kind: TroubleKind | None, word: str) -> None:
    with FakeAnthropic([script]) as server:
        error = failure(partial(summarizer, server))
    if script == replies.out_of_credit():
        kind, word = "authentication", "credit"
    assert (None if error.trouble is None else error.trouble.kind) == kind
    assert word in str(error)
    assert len(server.requests) == 1  # it retries nothing itself
    assert server.usage == Usage()


@pytest.mark.parametrize(
    ("status", "kind"), [(529, "server"), (500, "server"), (429, "rate"), (401, "authentication"), (400, None)]
)
def test_errors_within_a_stream_are_told_by_their_type(status: int, kind: TroubleKind | None) -> None:
    with FakeAnthropic([replies.Fail(status, message=SECRET, within=True)]) as server:
        error = failure(partial(summarizer, server))
    assert (None if error.trouble is None else error.trouble.kind) == kind
    assert SECRET not in str(error)


def test_what_the_provider_asks_for_is_kept() -> None:
    with FakeAnthropic([replies.server_error(529, retry_after=30)]) as server:
        error = failure(partial(summarizer, server))
    assert error.trouble is not None
    assert error.trouble.retry_after_seconds == 30.0


def test_a_stream_that_breaks_off_is_trouble() -> None:
    with FakeAnthropic([replies.drop(within=True)]) as server:
        error = failure(partial(summarizer, server))
    assert error.trouble is not None
    assert error.trouble.kind == "transport"


@pytest.mark.parametrize("content_type", ["text/event-stream", "text/html", "application/json"])
def test_an_answer_that_is_no_stream_is_a_failed_call(content_type: str) -> None:
    with FakeAnthropic([replies.Page("<html>", content_type)]) as server:
        error = failure(partial(summarizer, server))
    assert isinstance(error, CallFailed)


def test_a_server_that_is_not_there_is_trouble() -> None:
    with FakeAnthropic() as server:
        gone = server.base_url
    error = failure(lambda: AnthropicSummarizer("m", base_url=gone))
    assert error.trouble is not None
    assert error.trouble.kind == "transport"


@pytest.mark.parametrize("within", [False, True])
def test_a_server_that_says_nothing_is_timed_out_and_let_go_of(within: bool) -> None:
    with FakeAnthropic([replies.stall(60, within=within)]) as server:
        error = failure(partial(summarizer, server), request(timeout_seconds=0.3))
        let_go_of(server)
    assert error.trouble is not None
    assert error.trouble.kind == "transport"


# ---- calls that share a prefix ---------------------------------------------------------------------------------------

CONTEXT = PromptMessage("user", "an earlier line of the same session\n" * 100, cache=True)


class Together:
    """Calls of one summarizer in one loop."""

    def __init__(self, server: FakeAnthropic, group: TaskGroup) -> None:
        self.server = server
        self.group = group
        self.one = summarizer(server)
        self.replies: dict[int, SummaryReply] = {}
        self.errors: dict[int, CallFailed] = {}
        self.scopes: dict[int, anyio.CancelScope] = {}

    def call(self, number: int, *context: PromptMessage) -> None:
        said = request(*(context or (CONTEXT,)), PromptMessage("user", f"task {number}"), timeout_seconds=600.0)
        self.group.start_soon(self._call, number, said)

    async def _call(self, number: int, said: SummaryRequest) -> None:
        with anyio.CancelScope() as self.scopes[number]:
            try:
                self.replies[number] = await self.one.summarize(said)
            except CallFailed as error:
                self.errors[number] = error

    async def arrived(self, count: int) -> None:
        """So many requests are at the server, and no more come by themselves."""
        await until(lambda: len(self.server.requests) >= count)
        await anyio.sleep(0.05)  # for one that should not come
        assert len(self.server.requests) == count


def together(script: list[Reply], story: Any) -> FakeAnthropic:
    with FakeAnthropic(script) as server:

        async def main() -> None:
            async with anyio.create_task_group() as group:
                calls = Together(server, group)
                await story(calls)
            await calls.one.aclose()

        run(main)
    return server


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anthropic_summarizer, "_PATIENCE_SECONDS", 600.0)


@pytest.mark.usefixtures("patient")
def test_of_eight_cold_calls_one_writes_and_seven_read() -> None:
    begin, end = threading.Event(), threading.Event()

    async def story(calls: Together) -> None:
        for number in range(8):
            calls.call(number)
        await calls.arrived(1)
        begin.set()
        await until(lambda: len(calls.replies) == 7)  # the writer's response has started and has not ended
        end.set()
        await until(lambda: len(calls.replies) == 8)
        written = [number for number, reply in calls.replies.items() if reply.cache_write_tokens]
        assert written == [0]
        prefix = calls.replies[0].cache_write_tokens
        assert {calls.replies[number].cache_read_tokens for number in range(1, 8)} == {prefix}
        assert all(reply.waited_seconds >= 0 for reply in calls.replies.values())
        assert calls.replies[1].waited_seconds > calls.replies[0].waited_seconds

    server = together([replies.stall(begin, replies.stall(end, within=True))], story)
    assert server.usage.cache_write_tokens * 7 == server.usage.cache_read_tokens


@pytest.mark.parametrize("ending", [replies.server_error(), replies.drop(), replies.rate_limit(1)])
def test_a_writer_that_fails_makes_way_for_the_next(ending: Reply) -> None:
    first, second = threading.Event(), threading.Event()

    async def story(calls: Together) -> None:
        for number in range(5):
            calls.call(number)
        await calls.arrived(1)
        first.set()
        await calls.arrived(2)
        assert list(calls.errors) == [0]
        second.set()
        await until(lambda: len(calls.replies) == 4)
        assert sum(bool(reply.cache_write_tokens) for reply in calls.replies.values()) == 1

    together([replies.stall(first, ending), replies.stall(second)], story)


def test_a_writer_that_is_cancelled_makes_way_for_the_next() -> None:
    async def story(calls: Together) -> None:
        for number in range(3):
            calls.call(number)
        await calls.arrived(1)
        calls.scopes[0].cancel()
        await until(lambda: len(calls.replies) == 2)
        await until(lambda: calls.server.abandoned)

    together([replies.stall(60)], story)


def test_calls_that_share_only_the_system_text_wait_for_that_alone() -> None:
    gate = threading.Event()

    async def story(calls: Together) -> None:
        contexts = [PromptMessage("user", f"session {number}", cache=True) for number in range(4)]
        calls.call(0, contexts[0])
        await until(lambda: 0 in calls.replies)
        calls.server.replies.extend([replies.stall(gate)] * 3)
        for number in (1, 2, 3):
            calls.call(number, contexts[number])
        await calls.arrived(4)  # the system text is warm, and the contexts are not shared
        gate.set()

    together([], story)


def test_a_writer_that_stays_silent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anthropic_summarizer, "_PATIENCE_SECONDS", 0.05)
    gate = threading.Event()

    async def story(calls: Together) -> None:
        calls.call(0)
        await calls.arrived(1)
        reply = await calls.one.summarize(request(CONTEXT, TASK, timeout_seconds=600.0))
        assert reply.waited_seconds > 0
        assert not calls.replies
        gate.set()

    together([replies.stall(gate)], story)


# ---- loops and cancellation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [False, True])
def test_a_call_that_is_cancelled_lets_go_of_its_connection(within: bool) -> None:
    async def story(calls: Together) -> None:
        calls.call(0)
        await calls.arrived(1)
        calls.scopes[0].cancel()
        await until(lambda: calls.server.abandoned)  # while the summarizer is still open: the call itself let go
        assert (await calls.one.summarize(request())).text

    together([replies.stall(60, within=within)], story)


@pytest.mark.parametrize("backends", [["asyncio"] * 3, ["trio", "asyncio", "trio"]])
def test_one_summarizer_serves_one_loop_after_another(server: FakeAnthropic, backends: list[str]) -> None:
    for backend in backends:
        pytest.importorskip(backend)
    one = summarizer(server)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one.summarize, request())
        await one.aclose()
        await one.summarize(request())  # closed is not over: the loop gets new connections
        await one.aclose()
        await one.aclose()

    for backend in backends:
        run(main, backend)
    gc.collect()  # a connection that was left open would warn, and a warning is an error
    assert len(server.requests) == 15


def test_a_client_of_ones_own_is_used_and_left_open(server: FakeAnthropic) -> None:
    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=server.base_url, api_key="own", max_retries=5) as client:
            one = AnthropicSummarizer("m", client=client)
            await one.summarize(request())
            await one.aclose()
            await one.summarize(request())
            server.replies.append(replies.server_error())
            with pytest.raises(CallFailed):
                await one.summarize(request())
            assert client.max_retries == 5

    run(main)
    assert len(server.requests) == 3


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_the_key_is_in_no_repr_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = f"invalid x-api-key: {KEY}; the prompt was: {SECRET}"
    script: list[Reply] = [replies.fail(status, message=told, code=KEY) for status in (400, 401, 403, 429, 500)]
    script.append(replies.Fail(500, message=told, within=True))
    with FakeAnthropic([*script, replies.drop(), replies.web_page(KEY)]) as server:
        errors = [failure(partial(summarizer, server)) for _ in range(8)]
        one = summarizer(server)
    assert all(sent.authorized for sent in server.requests)
    shown = [
        repr(one),
        str(one),
        repr(vars(one)),
        *map(repr, errors),
        *map(str, errors),
        repr([vars(e) for e in errors]),
    ]
    for text in (*shown, caplog.text, repr(server.requests[0].headers)):
        assert KEY not in text
    for text in shown:
        assert SECRET not in text
    assert repr(one) == "AnthropicSummarizer('claude-test')"


def test_without_a_key_there_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    one = AnthropicSummarizer("m")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicSummarizer("m")
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        patch.setenv("ANTHROPIC_PROFILE", "of nobody")
        AnthropicSummarizer("m")
    error = failure(lambda: one)  # it went while the program ran
    assert error.trouble is not None
    assert error.trouble.kind == "authentication"


def test_a_server_of_ones_own_needs_no_key(server: FakeAnthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert asked(partial(summarizer, server))[0].text
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
    assert asked(lambda: AnthropicSummarizer("m"))[0].text
    assert len(server.requests) == 2


# ---- settings --------------------------------------------------------------------------------------------------------


def test_what_it_is_called_and_how_much_it_takes(server: FakeAnthropic) -> None:
    one = summarizer(server)
    assert (one.name, one.window_tokens, one.price) == ("anthropic:claude-test", 200_000, None)
    assert summarizer(server, window_tokens=8_000, price=Price(1, 2)).price == Price(1, 2)


def test_settings_that_make_no_sense_are_refused(server: FakeAnthropic) -> None:
    with pytest.raises(BadArgument, match="model"):
        AnthropicSummarizer("", base_url=server.base_url)
    with pytest.raises(BadArgument, match="window_tokens"):
        summarizer(server, window_tokens=0)
    with pytest.raises(BadArgument, match="one of the two"):
        summarizer(server, client=anthropic.AsyncAnthropic())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ConfigError, match=r"install optchat\[anthropic\]"):
        AnthropicSummarizer("m")
