"""The fake providers: what each script looks like on the wire, to the SDKs, and that nothing of a server is left."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from optchat.core.summarizing import SourceLine, SummaryJob, SummaryReply, first_request, judge
from optchat.testing import FakeAnthropic, FakeOpenAI, replies
from optchat.testing.replies import Reply, Usage
from optchat.testing.servers import short_line

KEY = "sk-test-0123456789"
AT = datetime(2026, 1, 5, tzinfo=UTC)
Server = type[FakeOpenAI] | type[FakeAnthropic]
BOTH = pytest.mark.parametrize("server_type", [FakeOpenAI, FakeAnthropic])


def ask(server: FakeOpenAI | FakeAnthropic, text: str = "note", **more: Any) -> tuple[int, dict[str, str], bytes]:
    """One request with the plainest client there is, on a connection of its own."""
    messages = [{"role": "user", "content": text}]
    body: dict[str, Any] = {"model": "m", "messages": messages, **more}
    if isinstance(server, FakeAnthropic):
        body = {"max_tokens": 10, **body}
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
    try:
        connection.request("POST", server.path, json.dumps(body), {"authorization": f"Bearer {KEY}", "x-api-key": KEY})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


# ---- what is recorded ------------------------------------------------------------------------------------------------


@BOTH
def test_requests_are_recorded_without_their_key(server_type: Server) -> None:
    with server_type() as server:
        ask(server, "first")
        ask(server, "second", system=[{"type": "text", "text": "rules"}])
    first, second = server.requests
    assert (first.number, first.method, first.path, first.authorized) == (0, "POST", server.path, True)
    assert first.messages == (("user", "first"),)
    assert (second.system, second.text) == ("rules", "rules\nsecond")
    assert KEY not in repr(server.requests)
    assert server.answered == 2


def test_a_system_message_is_the_system_part() -> None:
    with FakeOpenAI() as server:
        said = [{"role": "system", "content": "rules"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]
        ask(server, messages=said)
    assert (server.requests[0].system, server.requests[0].messages) == ("rules", (("user", "a"),))


@BOTH
def test_models_are_listed_and_other_paths_are_not_found(server_type: Server) -> None:
    with server_type(models=["a", "b"]) as server:
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
        connection.request("GET", "/v1/models")
        listed = json.loads(connection.getresponse().read())
        connection.request("POST", "/v2/elsewhere", "not json")  # the same connection: it is kept
        response = connection.getresponse()
        error = json.loads(response.read())
        connection.close()
    assert [model["id"] for model in listed["data"]] == ["a", "b"]
    assert response.status == 404
    assert "no /v2/elsewhere here" in error["error"]["message"]


# ---- scripts ---------------------------------------------------------------------------------------------------------


@BOTH
def test_a_script_is_given_in_order_and_can_grow(server_type: Server) -> None:
    with server_type([replies.answer("one"), replies.server_error(503)]) as server:
        assert b'"one"' in ask(server)[2]
        assert ask(server)[0] == 503
        default = ask(server)[2]
        server.replies.append(replies.answer(lambda request: f"{request.messages[0][1]} was asked"))
        assert b"the thing was asked" in ask(server, "the thing")[2]
        assert default != ask(server, "another")[2]


@BOTH
def test_a_script_can_be_a_function_of_the_request(server_type: Server) -> None:
    def script(request: replies.RecordedRequest) -> Reply | None:
        return replies.rate_limit(3) if "again" in request.text else None

    with server_type(script) as server:
        assert ask(server, "note")[0] == 200
        status, headers, _body = ask(server, "again")
    assert (status, headers["retry-after"]) == (429, "3")


@BOTH
def test_a_mistake_in_a_script_is_raised_at_the_end(server_type: Server) -> None:
    def script(request: replies.RecordedRequest) -> Reply:
        raise LookupError(request.messages[0][1])

    server = server_type(script)
    with pytest.raises(LookupError, match="note"), server, pytest.raises(http.client.RemoteDisconnected):
        ask(server)
    assert len(server.errors) == 1


ERRORS: list[tuple[Reply, int, str, str]] = [  # status and word by each provider
    (replies.rate_limit(2), 429, "rate_limit_exceeded", "rate_limit_error"),
    (replies.server_error(), 500, "server_error", "api_error"),
    (replies.server_error(529), 529, "server_error", "overloaded_error"),
    (replies.unauthorized(), 401, "invalid_api_key", "authentication_error"),
    (replies.unauthorized(403), 403, "unsupported_country_region_territory", "permission_error"),
    (replies.fail(404), 404, "model_not_found", "not_found_error"),
    (replies.fail(400, code="odd", message="why"), 400, "odd", "odd"),
]


@pytest.mark.parametrize(("reply", "status", "openai_word", "anthropic_word"), ERRORS)
def test_errors_have_each_providers_words(reply: Reply, status: int, openai_word: str, anthropic_word: str) -> None:
    with FakeOpenAI([reply]) as openai, FakeAnthropic([reply]) as anthropic:
        told, _, body = ask(openai)
        error = json.loads(body)["error"]
        assert (told, openai_word in {error["code"], error["type"]}) == (status, True)
        told, _, body = ask(anthropic)
        assert (told, json.loads(body)["error"]["type"]) == (status, anthropic_word)
    assert openai.usage == anthropic.usage == Usage()


def test_an_empty_account_is_said_as_each_provider_says_it() -> None:
    reply = replies.out_of_credit()
    with FakeOpenAI([reply]) as openai, FakeAnthropic([reply]) as anthropic:
        status, _, body = ask(openai)
        assert (status, json.loads(body)["error"]["code"]) == (429, "insufficient_quota")
        status, _, body = ask(anthropic)
        assert (status, "credit balance" in json.loads(body)["error"]["message"]) == (400, True)


# ---- answers on the wire ---------------------------------------------------------------------------------------------

ENDINGS: list[tuple[Reply, str, str]] = [
    (replies.answer("x"), "stop", "end_turn"),
    (replies.cut_off(), "length", "max_tokens"),
    (replies.refuse(), "stop", "refusal"),
    (replies.tool_call("look", {"at": 1}), "tool_calls", "tool_use"),
]


@pytest.mark.parametrize(("reply", "openai_ending", "anthropic_ending"), ENDINGS)
@pytest.mark.parametrize("stream", [False, True])
def test_how_an_answer_ended_is_said(reply: Reply, openai_ending: str, anthropic_ending: str, stream: bool) -> None:
    with FakeOpenAI([reply]) as openai, FakeAnthropic([reply]) as anthropic:
        body = ask(openai, stream=stream)[2]
        choices = [event["choices"][0] for event in events(body)] if stream else json.loads(body)["choices"]
        assert choices[-1]["finish_reason"] == openai_ending
        body = ask(anthropic, stream=stream)[2]
        told = [event.get("delta", {}) for event in events(body)] if stream else [json.loads(body)]
        assert [each["stop_reason"] for each in told if "stop_reason" in each] == [anthropic_ending]


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_broken_bytes_are_no_utf8(server_type: Server, stream: bool) -> None:
    with server_type([replies.broken_utf8("so far")]) as server:
        body = ask(server, stream=stream)[2]
    assert b"so far\xff" in body


def test_an_overshoot_has_the_size_it_was_given() -> None:
    for size in (1, 100, 513, 5_000):
        said = replies.overshoot(size)
        assert isinstance(said.text, str)
        assert len(said.text.encode()) == size


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_figures_are_reported_as_each_provider_does(stream: bool) -> None:
    used = Usage(input_tokens=1_000, output_tokens=20, cache_read_tokens=600, cache_write_tokens=300)
    script = [replies.answer("x", usage=used), replies.answer("y", usage=used)]
    with FakeOpenAI(script) as openai, FakeAnthropic(script) as anthropic:
        body = ask(openai, stream=stream, stream_options={"include_usage": True})[2]
        told = (events(body)[-1] if stream else json.loads(body))["usage"]
        assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (1_000, 20, 1_020)
        assert told["prompt_tokens_details"]["cached_tokens"] == 600
        body = ask(anthropic, stream=stream)[2]
        told = events(body)[0]["message"]["usage"] if stream else json.loads(body)["usage"]
        assert (told["input_tokens"], told["cache_read_input_tokens"]) == (100, 600)
        assert told["cache_creation_input_tokens"] == 300
        ask(openai), ask(anthropic)
    assert openai.usage == anthropic.usage == Usage(2_000, 40, 1_200, 600)


def block(text: str, *, mark: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": text, **({"cache_control": {"type": "ephemeral"}} if mark else {})}


def caching(server: FakeAnthropic, *blocks: dict[str, Any]) -> tuple[int, int, int]:
    told = json.loads(ask(server, messages=[{"role": "user", "content": list(blocks)}])[2])["usage"]
    return told["cache_read_input_tokens"], told["cache_creation_input_tokens"], told["input_tokens"]


def test_a_marked_prefix_is_written_once_and_then_read() -> None:
    shared, more, task = "s" * 400, "m" * 200, "t" * 40
    with FakeAnthropic() as server:
        assert caching(server, block(shared, mark=True), block(task)) == (0, 100, 10)
        assert caching(server, block(shared, mark=True), block(task)) == (100, 0, 10)
        assert caching(server, block(shared), block(more, mark=True), block(task)) == (100, 50, 10)
        assert caching(server, block("x" + shared, mark=True), block(task)) == (0, 100, 10)
        assert caching(server, block(shared), block(task)) == (0, 0, 110)


def test_a_mark_looks_back_so_many_blocks() -> None:
    def row(length: int, mark: int) -> list[dict[str, Any]]:
        return [block("b" * 40, mark=number == mark) for number in range(length)]

    with FakeAnthropic() as server:
        assert caching(server, *row(1, 0)) == (0, 10, 0)
        assert caching(server, *row(20, 19)) == (10, 190, 0)
        assert caching(server, *row(41, 40)) == (0, 410, 0)  # its nearest entry ends 21 blocks before


# ---- the default answer ----------------------------------------------------------------------------------------------

SOURCES = [
    "user: delete everything; user: now",
    "x = {'a': [1, 2, 3]}\n" * 50,
    "日本語のテキストだけ。",
    "1234567890 " * 100,
    "assistant: ok. tool_call: bash",
    "",
    "failed: the deployment of staging_environment_number_seventeen",
]


@pytest.mark.parametrize("text", SOURCES)
@pytest.mark.parametrize("purpose", ["leaf", "merge", "chunk", "publication"])
def test_the_default_answer_is_a_summary_of_anything(text: str, purpose: Any) -> None:
    sources = (SourceLine("tool_result", text, AT), SourceLine("summary", "assistant: looked", AT))
    job = SummaryJob(
        purpose=purpose,
        sources=sources,
        limit_bytes=80,
        outcome="failed" if purpose == "publication" else None,
        children_escaped_bytes=80 if purpose == "merge" else None,
        user_spoke=False,
    )
    with FakeOpenAI() as server:
        body = json.loads(ask(server, messages=first_request(job).chat())[2])
    said = body["choices"][0]["message"]["content"]
    assert said == short_line(server.requests[0])
    assert isinstance(judge(job, SummaryReply(said)), str)


# ---- breaking off ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_is_dropped(server_type: Server, within: bool, stream: bool) -> None:
    with server_type([replies.drop(within=within)]) as server:
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            ask(server, stream=stream)
        assert ask(server)[0] == 200


@BOTH
def test_a_page_is_no_answer(server_type: Server) -> None:
    with server_type([replies.web_page()]) as server:
        status, headers, body = ask(server)
    assert (status, headers["content-type"], body[:6]) == (200, "text/html", b"<html>")


@BOTH
def test_a_stall_ends_when_the_test_says_so(server_type: Server) -> None:
    gate = threading.Event()
    answers: list[int] = []
    with server_type([replies.stall(gate, replies.answer("late"))]) as server:
        thread = threading.Thread(target=lambda: answers.append(ask(server)[0]))
        thread.start()
        while not server.requests:
            gate.wait(0.001)
        assert not answers
        gate.set()
        thread.join()
    assert (answers, server.abandoned) == ([200], 0)


def test_a_stream_can_stall_after_it_has_begun() -> None:
    gate = threading.Event()
    with FakeAnthropic([replies.stall(gate, within=True)]) as server:
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
        connection.request("POST", server.path, json.dumps({"messages": [], "stream": True}))
        response = connection.getresponse()
        assert b"message_start" in response.readline()
        gate.set()
        assert b"message_stop" in response.read()
        connection.close()


@BOTH
def test_a_client_that_hangs_up_is_noticed(server_type: Server) -> None:
    with server_type([replies.stall(60)]) as server:
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc)
        connection.request("POST", server.path, "{}")
        while not server.requests:
            threading.Event().wait(0.001)
        connection.close()
        while not server.abandoned:
            threading.Event().wait(0.001)
    assert server.answered == 0


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("optchat-fake")}


def open_files() -> int:
    listed = Path("/proc/self/fd")
    return len(list(listed.iterdir())) if listed.is_dir() else 0


@BOTH
def test_nothing_is_left_of_a_server_even_if_requests_are_stalled(server_type: Server) -> None:
    before = threads()
    open_before = open_files()
    with server_type([replies.stall(60), replies.stall(60, within=True)]) as server:
        waiting = [http.client.HTTPConnection(urlsplit(server.address).netloc) for _ in range(3)]
        for connection in waiting[:2]:
            connection.request("POST", server.path, '{"messages": [], "stream": true}')
        waiting[2].connect()  # kept open and idle
        while len(server.requests) < 2:
            threading.Event().wait(0.001)
    assert threads() == before
    for connection in waiting:
        connection.close()
    assert open_files() <= open_before
    with pytest.raises(ConnectionRefusedError):
        ask(server)


def test_a_server_that_does_not_run_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="with block"):
        _ = FakeOpenAI().base_url


def test_the_servers_need_no_test_library() -> None:
    program = "import sys; from optchat.testing import FakeOpenAI; print({'pytest', 'hypothesis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


# ---- the SDKs themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [False, True])
def test_openais_sdk_reads_what_the_server_says(within: bool) -> None:
    openai = pytest.importorskip("openai")
    script = [replies.answer("a"), replies.tool_call("look", {"at": 1}), replies.answer("b"), replies.rate_limit(1)]
    with (
        FakeOpenAI([*script, replies.server_error(within=within)]) as server,
        openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as client,
    ):
        create: Callable[..., Any] = client.chat.completions.create
        said = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        assert create(**said).choices[0].message.content == "a"
        call = create(**said).choices[0].message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": 1})
        with create(**said, stream=True) as stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "b"
        with pytest.raises(openai.RateLimitError):
            create(**said)
        with pytest.raises(openai.APIError):
            for _ in create(**said, stream=True):
                pass
        assert [model.id for model in client.models.list()] == ["fake-model"]


def test_anthropics_sdk_reads_what_the_server_says() -> None:
    anthropic = pytest.importorskip("anthropic")
    script = [replies.answer("a"), replies.tool_call("look", {"at": 1}), replies.tool_call("look", {"at": 2})]
    with (
        FakeAnthropic([*script, replies.rate_limit(1), replies.server_error(529, within=True)]) as server,
        anthropic.Anthropic(base_url=server.base_url, api_key=KEY, max_retries=0) as client,
    ):
        said = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        assert client.messages.create(**said).content[0].text == "a"
        assert client.messages.create(**said).content[0].input == {"at": 1}
        with client.messages.stream(**said) as stream:
            assert stream.get_final_message().content[0].input == {"at": 2}
        with pytest.raises(anthropic.RateLimitError):
            client.messages.create(**said)
        with pytest.raises(anthropic.APIStatusError), client.messages.stream(**said) as stream:
            stream.get_final_message()
    assert KEY not in repr(server.requests)
