"""OpenAI's summarizer against a server that does everything: what is sent, what is read, what is said of errors."""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from optchat.compactor import OpenAISummarizer, Price
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.summarizing import PromptMessage, SourceLine, SummaryJob, SummaryReply, judge
from optchat.core.trouble import CallFailed, TroubleKind, trouble_of
from optchat.testing import FakeOpenAI, replies
from optchat.testing.replies import RecordedRequest, Reply, Usage
from tests.compactor.helpers import AT, FAILURES, KEY, SECRET, TASK, asked, failure, let_go_of, request, run, until

openai = pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


def summarizer(server: FakeOpenAI, **more: Any) -> OpenAISummarizer:
    return OpenAISummarizer("gpt-test", base_url=server.base_url, **more)


def answers(*script: Reply, **more: Any) -> tuple[SummaryReply, FakeOpenAI]:
    with FakeOpenAI(script) as server:
        (reply,) = asked(partial(summarizer, server, **more))
    return reply, server


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_a_request_is_one_completion_without_tools(server: FakeOpenAI) -> None:
    context = PromptMessage("user", "Earlier lines", cache=True)
    said = request(context, TASK, PromptMessage("assistant", "too long"), PromptMessage("user", "shorter"))
    (reply,) = asked(partial(summarizer, server), said)
    (sent,) = server.requests
    assert sent.body["model"] == "gpt-test"
    assert sent.body["messages"] == said.chat()
    assert sent.body["max_tokens"] == 1_024
    assert set(sent.body) == {"model", "messages", "max_tokens"}
    assert sent.authorized
    assert sent.headers["x-stainless-retry-count"] == "0"
    assert reply.text.startswith("line ")


def test_settings_of_ones_own_are_sent_and_win(server: FakeOpenAI) -> None:
    own = {"reasoning_effort": "minimal", "max_completion_tokens": 9_000, "model": "other"}
    asked(partial(summarizer, server, extra_body=own))
    (sent,) = server.requests
    assert set(sent.body) == {"model", "messages", "reasoning_effort", "max_completion_tokens"}
    assert (sent.body["max_completion_tokens"], sent.body["model"]) == (9_000, "other")


def knows_only(name: str, status: int) -> Any:
    """A server that takes one name of the limit and refuses the other, as OpenAI (400) and Mistral (422) do."""

    def script(request: RecordedRequest) -> Reply | None:
        wrong = [each for each in ("max_tokens", "max_completion_tokens") if each in request.body and each != name]
        return replies.fail(status, message=f"Unsupported: '{wrong[0]}'; use '{name}'") if wrong else None

    return script


@pytest.mark.parametrize("status", [400, 422])
def test_the_other_name_of_the_limit_is_tried_and_remembered(status: int) -> None:
    with FakeOpenAI(knows_only("max_completion_tokens", status)) as server:
        asked(partial(summarizer, server), request(), request())
    limits = [sorted({"max_tokens", "max_completion_tokens"} & set(sent.body)) for sent in server.requests]
    assert limits == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


def test_openai_itself_is_asked_with_the_new_name_first() -> None:
    """Over a transport of the test's own: the address is the real one, and nothing is sent to it."""
    http = pytest.importorskip("httpx2")
    bodies: list[dict[str, Any]] = []
    ending = {"index": 0, "message": {"role": "assistant", "content": "a line"}, "finish_reason": "stop"}

    def respond(sent: Any) -> Any:
        bodies.append(json.loads(sent.content))
        if "max_completion_tokens" in bodies[-1] and bodies[-1]["model"] == "old":
            return http.Response(400, json={"error": {"message": "unknown max_completion_tokens", "type": "x"}})
        return http.Response(200, json={"choices": [ending]})

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(http_client=http.AsyncClient(transport=http.MockTransport(respond))) as client:
            new, old = (OpenAISummarizer(model, client=client) for model in ("new", "old"))
            return [(await each.summarize(request())).text for each in (new, old, old)]

    assert run(main) == ["a line"] * 3
    limits = [next(name for name in body if name.startswith("max")) for body in bodies]
    assert limits == ["max_completion_tokens", "max_completion_tokens", "max_tokens", "max_tokens"]


def test_a_refused_setting_that_is_not_the_limit_is_not_tried_again() -> None:
    with FakeOpenAI([replies.fail(400, message="temperature is not supported")]) as server:
        assert failure(partial(summarizer, server)).trouble is None
    assert len(server.requests) == 1


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_the_answer_and_its_figures() -> None:
    used = Usage(input_tokens=1_000, output_tokens=20, cache_read_tokens=600)
    reply, server = answers(replies.answer("user: asked", usage=used), price=Price(2.0, 8.0, cache_read=0.5))
    assert reply == SummaryReply(
        "user: asked",
        model="gpt-test",
        input_tokens=1_000,
        output_tokens=20,
        cache_read_tokens=600,
        cost=pytest.approx((400 * 2 + 600 * 0.5 + 20 * 8) / 1e6),
    )
    assert server.usage == used


def test_without_a_price_the_cost_is_unknown() -> None:
    assert answers(replies.answer("x"))[0].cost is None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (replies.refuse(), {"refused": True}),
        (replies.cut_off("half"), {"cut_off": True, "text": "half"}),
        (replies.tool_call(), {"called_tool": True, "text": ""}),
        (replies.empty(), {"text": ""}),
        (replies.prose(), {"refused": False}),
        (replies.overshoot(3_000), {"cut_off": False}),
    ],
    ids=["refuse", "cut_off", "tool_call", "empty", "prose", "overshoot"],
)
def test_answers_that_are_no_summary(script: Reply, expected: dict[str, Any]) -> None:
    reply, _ = answers(script)
    assert {name: getattr(reply, name) for name in expected} == expected
    assert reply.input_tokens is not None


def test_bytes_that_are_no_utf8_are_a_damaged_reply() -> None:
    """Judged like any other, so it is asked again in the same conversation; its figures count."""
    reply, server = answers(replies.broken_utf8("half a line"))
    assert reply.text.startswith("half a line\ufffd")
    assert reply.output_tokens == server.usage.output_tokens
    job = SummaryJob(purpose="leaf", sources=(SourceLine("user", "x", AT),), limit_bytes=512)
    verdict = judge(job, reply)
    assert not isinstance(verdict, str)
    assert "damaged" in verdict.reason


def body_of(**message: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", **message}, "finish_reason": message.pop("finish_reason", "stop")}
    return {"choices": [choice]}


def raw(body: object) -> Reply:
    """A body as some compatible server writes it."""
    return replies.Page(json.dumps(body), "application/json")


def test_what_compatible_servers_leave_out_or_write_their_own_way() -> None:
    bare, _ = answers(raw(body_of(content="a line")))
    assert bare == SummaryReply("a line", model="gpt-test")
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a line"}]
    assert answers(raw(body_of(content=parts)))[0].text == "a line"
    assert answers(raw(body_of(content=None)))[0].text == ""
    odd = {
        **body_of(content="x"),
        "usage": {"prompt_tokens": "many", "completion_tokens": -1, "prompt_tokens_details": 3},
    }
    assert answers(raw(odd))[0] == SummaryReply("x", model="gpt-test")
    old_call = body_of(content=None, function_call={"name": "f", "arguments": "{}"})
    assert answers(raw(old_call))[0].called_tool
    filtered = {"choices": [{"message": {"content": "half"}, "finish_reason": "content_filter"}]}
    assert answers(raw(filtered))[0].refused


@pytest.mark.parametrize(
    "reply",
    [
        replies.fail(400, code="content_filter", message="The response was filtered"),
        replies.fail(400, code="invalid_prompt", message="your prompt was flagged"),
    ],
)
def test_a_prompt_that_is_flagged_is_a_refusal(reply: Reply) -> None:
    assert answers(reply)[0] == SummaryReply("", refused=True, model="gpt-test")


@pytest.mark.parametrize("body", [[], {}, {"choices": []}, {"choices": "x"}, "text", None, 3])
def test_an_answer_without_choices_is_a_failed_attempt(body: object) -> None:
    with FakeOpenAI([raw(body)]) as server:
        error = failure(partial(summarizer, server))
    assert error.trouble is None


def test_a_gateways_error_in_a_200_is_what_its_code_says() -> None:
    with FakeOpenAI([raw({"error": {"code": 502, "message": SECRET}}), raw({"error": {"code": 400}})]) as server:
        assert failure(partial(summarizer, server)).status_code == 502
        assert failure(partial(summarizer, server)).trouble is None


@pytest.mark.parametrize(
    "page", [replies.web_page(), replies.Page("{", "application/json"), replies.Page("", "text/plain")]
)
def test_an_answer_that_is_no_json_is_a_failed_attempt(page: Reply) -> None:
    with FakeOpenAI([page]) as server:
        error = failure(partial(summarizer, server))
    assert (error.trouble, "JSONDecodeError" in str(error)) == (None, True)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "kind", "word"), FAILURES, ids=lambda each: str(each)[:40])
def test_failures_are_told_apart(script: Reply, kind: TroubleKind | None, word: str) -> None:
    with FakeOpenAI([script]) as server:
        error = failure(partial(summarizer, server))
    assert (None if error.trouble is None else error.trouble.kind) == kind
    assert word in str(error) or script == replies.out_of_credit()
    assert len(server.requests) == 1  # it retries nothing itself
    assert server.usage == Usage()


def test_an_account_without_quota_says_so() -> None:
    with FakeOpenAI([replies.out_of_credit()]) as server:
        assert "insufficient_quota" in str(failure(partial(summarizer, server)))


def test_what_the_provider_asks_for_is_kept() -> None:
    with FakeOpenAI([replies.rate_limit(7)]) as server:
        error = failure(partial(summarizer, server))
    assert error.trouble is not None
    assert error.trouble.retry_after_seconds == 7.0


def test_a_connection_that_breaks_within_an_answer_is_trouble() -> None:
    with FakeOpenAI([replies.drop(within=True)]) as server:
        error = failure(partial(summarizer, server))
    assert error.trouble is not None
    assert error.trouble.kind == "transport"


def test_a_server_that_is_not_there_is_trouble() -> None:
    with FakeOpenAI() as server:
        gone = server.base_url
    error = failure(lambda: OpenAISummarizer("m", base_url=gone))
    assert error.trouble is not None
    assert (error.trouble.kind, "ConnectError" in str(error)) == ("transport", True)


def test_a_server_that_says_nothing_is_timed_out_and_let_go_of() -> None:
    with FakeOpenAI([replies.stall(60)]) as server:
        error = failure(partial(summarizer, server), request(timeout_seconds=0.3))
        let_go_of(server)
    assert error.trouble is not None
    assert error.trouble.kind == "transport"


# ---- loops and cancellation ------------------------------------------------------------------------------------------


def test_a_call_that_is_cancelled_lets_go_of_its_connection() -> None:
    async def main() -> None:
        one = summarizer(server)
        async with anyio.create_task_group() as group:
            group.start_soon(one.summarize, request())
            await until(lambda: server.requests)
            group.cancel_scope.cancel()
        await until(lambda: server.abandoned)  # while the summarizer is still open: the call itself let go
        assert (await one.summarize(request())).text
        await one.aclose()

    with FakeOpenAI([replies.stall(60)]) as server:
        run(main)


@pytest.mark.parametrize("backends", [["asyncio"] * 3, ["trio", "asyncio", "trio"]])
def test_one_summarizer_serves_one_loop_after_another(server: FakeOpenAI, backends: list[str]) -> None:
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


def test_a_client_of_ones_own_is_used_and_left_open(server: FakeOpenAI) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="own", max_retries=5) as client:
            one = OpenAISummarizer("m", client=client)
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
    told = f"Incorrect API key provided: {KEY}; the prompt was: {SECRET}"
    script = [replies.fail(status, message=told, code=KEY) for status in (400, 401, 403, 429, 500)]
    with FakeOpenAI([*script, replies.drop(), replies.web_page(KEY)]) as server:
        errors = [failure(partial(summarizer, server)) for _ in range(7)]
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
    assert repr(one) == "OpenAISummarizer('gpt-test')"


def test_a_key_with_a_line_break_around_it_is_taken_without(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    assert asked(partial(summarizer, server))[0].text


def test_without_a_key_there_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OpenAISummarizer("m")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAISummarizer("m")
    error = failure(lambda: one)  # it went while the program ran
    assert error.trouble is not None
    assert (error.trouble.kind, trouble_of(error, AT)) == ("authentication", error.trouble)


def test_a_server_of_ones_own_needs_no_key(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert asked(partial(summarizer, server))[0].text
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    assert asked(lambda: OpenAISummarizer("m"))[0].text
    assert len(server.requests) == 2


# ---- settings --------------------------------------------------------------------------------------------------------


def test_what_it_is_called_and_how_much_it_takes(server: FakeOpenAI) -> None:
    one = summarizer(server)
    assert (one.name, one.window_tokens, one.price) == ("openai:gpt-test", 128_000, None)
    assert summarizer(server, window_tokens=8_000, price=Price(1, 2)).price == Price(1, 2)


def test_settings_that_make_no_sense_are_refused(server: FakeOpenAI) -> None:
    with pytest.raises(BadArgument, match="model"):
        OpenAISummarizer("", base_url=server.base_url)
    with pytest.raises(BadArgument, match="window_tokens"):
        summarizer(server, window_tokens=0)
    with pytest.raises(BadArgument, match="one of the two"):
        summarizer(server, client=openai.AsyncOpenAI())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError, match=r"install optchat\[openai\]"):
        OpenAISummarizer("m")
