"""OpenAIResponses against items and responses in the provider's own form, written down by hand."""

import base64
import json
from typing import Any

import pytest
from openai.types.responses import Response

import optchat
from optchat.adapters.openai import OpenAIResponses
from optchat.adapters.openai.costs import HIGH_DETAIL_TOKENS, LOW_DETAIL_TOKENS
from optchat.core.messages import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.ports import MemoryBlock
from optchat.core.tokens import UpperBoundTokenizer
from optchat.core.tools import Tools
from optchat.testing import temporary_memory
from tests.adapters.wires import check_responses

WIRE: Any = OpenAIResponses()  # fixtures are plain dicts, as they come off the wire
TOKENS = UpperBoundTokenizer()
PNG = b"\x89PNG\r\n\x1a\n" + bytes(3000)
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm… <think>\n é"}],
    "encrypted_content": "gAAAAA",
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": '{"path":"a.py" }'}
WORDS = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
}


def output(said: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": "c1", "output": said}


def shown(**image: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_image", **image}]}


def result(*parts: TextPart | BlobPart) -> tuple[HostMessage, ...]:
    return (HostMessage("tool", (ToolResultPart("c1", parts),)),)


@pytest.mark.parametrize(
    ("item", "neutral"),
    [
        ({"role": "system", "content": "be careful"}, ()),
        ({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]}, ()),
        ({"role": "user", "content": "hi"}, (HostMessage.user("hi"),)),
        (
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "see"},
                    {"type": "input_image", "image_url": PNG_URL, "detail": "low"},
                    {"type": "input_image", "file_id": "file-1", "detail": "auto"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                    {"type": "input_file", "file_url": "https://example.org/a.pdf"},
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                ],
            },
            (
                HostMessage.user(
                    [
                        TextPart("see"),
                        BlobPart("image/png", data=PNG),
                        BlobPart("image/*", uri="openai-file:file-1"),
                        BlobPart("application/pdf", data=b"%PDF"),
                        BlobPart("application/pdf", uri="https://example.org/a.pdf"),
                        BlobPart("audio/wav", data=b"RIFF"),
                    ]
                ),
            ),
        ),
        (WORDS, (HostMessage.assistant("Let me look."),)),
        (WORDS | {"content": []}, (HostMessage.assistant(""),)),
        (WORDS | {"content": [{"type": "refusal", "refusal": "I can't."}]}, (HostMessage.assistant("I can't."),)),
        (REASONING, ()),
        ({"type": "item_reference", "id": "msg_0"}, ()),
        ({"type": "compaction", "encrypted_content": "gAAAAA"}, ()),
        (CALL, (HostMessage.assistant(calls=[ToolCallPart("c1", "read", '{"path":"a.py" }')]),)),
        (
            {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"},
            (HostMessage.assistant(calls=[ToolCallPart("c1", "sql", "select 1")]),),
        ),
        (
            {"type": "local_shell_call", "id": "x", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
            (HostMessage.assistant(calls=[ToolCallPart("c1", "local_shell", '{"type": "exec", "command": ["ls"]}')]),),
        ),
        (output("ok"), result(TextPart("ok"))),
        (output(""), result(TextPart(""))),
        (
            output([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG_URL}]),
            result(TextPart("a"), BlobPart("image/png", data=PNG)),
        ),
        (output("ok", "custom_tool_call_output"), result(TextPart("ok"))),
        (
            output({"type": "computer_screenshot", "image_url": PNG_URL}, "computer_call_output"),
            result(BlobPart("image/png", data=PNG)),
        ),
        (
            output([{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}], "shell_call_output"),
            result(TextPart('{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}')),
        ),
        (
            {"type": "local_shell_call_output", "id": "c1", "output": "{}"},
            result(TextPart("{}")),
        ),
        (
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            (HostMessage("assistant", (ReportPart("web_search", '{"action": {"type": "search", "query": "q"}}'),)),),
        ),
        (
            {"type": "mcp_call", "id": "m", "name": "look", "server_label": "s", "arguments": "{}", "output": "found"},
            (
                HostMessage(
                    "assistant",
                    (ReportPart("look", '{"server_label": "s", "arguments": "{}", "output": "found"}'),),
                ),
            ),
        ),
        (
            {"type": "image_generation_call", "id": "i", "status": "completed", "result": "iVBORw=="},
            (HostMessage("assistant", (ReportPart("image_generation", "{}"), BlobPart("image/png", data=b"\x89PNG"))),),
        ),
    ],
)
def test_decode(item: dict[str, Any], neutral: tuple[HostMessage, ...]) -> None:
    assert tuple(WIRE.decode(item)) == neutral


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"role": "critic", "content": "x"}, "unknown role 'critic'"),
        ({"type": "telepathy"}, "unknown item 'telepathy'"),
        ({"role": "user", "content": [{"type": "input_video"}]}, "unknown content part 'input_video'"),
        ({"type": "function_call", "name": "x", "arguments": "{}"}, "id is text"),
        ("hi", r"reply\(\) first"),
    ],
)
def test_decode_refuses_what_it_cannot_keep(item: object, said: str) -> None:
    with pytest.raises(optchat.BadArgument, match=said):
        WIRE.decode(item)


def test_encode_is_one_user_message_a_block() -> None:
    blocks = [MemoryBlock("guidance", "how to use", True), MemoryBlock("shared", "<shared_memory>…", True)]
    assert [item["role"] for item in WIRE.encode(blocks)] == ["user", "user"]
    assert [item["content"] for item in WIRE.encode(blocks)] == ["how to use", "<shared_memory>…"]
    assert WIRE.encode(blocks)[:1] == WIRE.encode(blocks[:1])


@pytest.mark.parametrize(
    ("item", "low", "high"),
    [
        (shown(image_url="data:," + "A" * 4_000_000), HIGH_DETAIL_TOKENS, HIGH_DETAIL_TOKENS + 9),
        (shown(image_url=PNG_URL, detail="low"), LOW_DETAIL_TOKENS, LOW_DETAIL_TOKENS + 9),
        ({"role": "user", "content": [{"type": "input_file", "file_data": "A" * 400_000}]}, 75_000, 75_009),
        (output([{"type": "input_image", "image_url": PNG_URL}]), HIGH_DETAIL_TOKENS, HIGH_DETAIL_TOKENS + 30),
        (
            {"type": "image_generation_call", "id": "i", "result": "A" * 4_000_000},
            HIGH_DETAIL_TOKENS,
            HIGH_DETAIL_TOKENS + 30,
        ),
        (REASONING | {"encrypted_content": "A" * 4_000}, 1_000, 1_100),
        (CALL | {"arguments": "word " * 100}, 100, 300),
        (output("word " * 100), 100, 300),
        ({"role": "user", "content": "word " * 100}, 100, 300),
    ],
)  # fmt: skip
def test_count(item: dict[str, Any], low: int, high: int) -> None:
    assert low <= WIRE.count(item, TOKENS) <= high


def test_rebuild_gives_a_request_that_the_provider_takes() -> None:
    shot = BlobPart("image/png", data=PNG)
    turn = (
        HostMessage.user("why?\ud800"),
        HostMessage.assistant("Let me look.", [ToolCallPart("a", "read", "{}")]),
        HostMessage.assistant(calls=[ToolCallPart("b", "run", "not json")]),
        HostMessage.user([TextPart("hurry"), shot]),
        HostMessage.result("b", "no such file", is_error=True),
        HostMessage.result("a", [shot, BlobPart("audio/wav", data=b"RIFF")], is_error=True),
        HostMessage("user", (ReportPart("tests", "all green"),)),
        HostMessage("assistant", (BlobPart("image/png", data=PNG),)),
    )
    rebuilt = WIRE.rebuild(turn)
    check_responses(rebuilt)
    json.dumps(rebuilt, ensure_ascii=False).encode()
    assert [item["type"] for item in rebuilt] == [
        "message", "message", "function_call", "function_call", "function_call_output", "function_call_output",
        "message", "message", "message",
    ]  # fmt: skip
    assert rebuilt[4]["output"] == "error: no such file"
    assert [part["type"] for part in rebuilt[5]["output"]] == ["input_text", "input_image", "input_text"]
    assert rebuilt[7]["content"] == "[report of tests] all green"
    assert rebuilt[8]["content"] == "[image/png 3.0 kB]"


RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5",
    "status": "completed",
    "output": [
        REASONING | {"status": None},
        WORDS | {"phase": "commentary"},
        CALL | {"status": "completed", "created_by": "x"},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


def test_reply_gives_back_what_the_provider_sent_without_what_a_request_refuses() -> None:
    natives = WIRE.reply(Response.model_validate(RESPONSE))
    assert natives == [REASONING, WORDS | {"phase": "commentary"}, CALL | {"status": "completed"}]
    assert WIRE.reply(Response.model_validate(RESPONSE | {"output": [REASONING | {"status": "completed"}]})) == [
        REASONING
    ]


def test_a_list_with_the_sdk_s_own_items_is_read_as_what_they_are_sent_as() -> None:
    """`input += response.output`, as the provider's examples have it."""
    items = Response.model_validate(RESPONSE).output
    assert [WIRE.decode(item) for item in items] == [WIRE.decode(item) for item in RESPONSE["output"]]
    assert all(WIRE.count(item, TOKENS) > 0 for item in items)


@pytest.mark.parametrize("response", [RESPONSE, "text", None])
def test_reply_refuses_what_is_no_response(response: object) -> None:
    with pytest.raises(optchat.BadArgument, match="no response"):
        WIRE.reply(response)


def test_tools_are_strict_functions() -> None:
    assert all(tool["strict"] and tool["type"] == "function" for tool in WIRE.tools(Tools()))
    assert [tool["name"] for tool in WIRE.tools(Tools())] == [tool.name for tool in Tools()]


def test_words_between_a_call_and_its_result_are_this_wire_s_own() -> None:
    """A model of this wire comments after it has called; a chat that has such a list would be refused."""
    request = {"type": "message", "role": "user", "content": "go"}
    items: list[Any] = [request, CALL, REASONING, WORDS, output("ok")]
    with temporary_memory() as memory:
        sent = memory.session("s", adapter=WIRE).turn(request).context(optchat.Budget(32_000, 1_000), active=items)
        assert all(one is other for one, other in zip(sent.messages[-5:], items, strict=True))
        with pytest.raises(optchat.ToolProtocolError):
            memory.session("t", adapter=WIRE).turn(request).context(
                optchat.Budget(32_000, 1_000), active=[request, CALL, request, output("ok")]
            )


def test_reasoning_stays_before_what_it_led_to() -> None:
    """Held by the turn, with results that come one by one: each reasoning item still precedes its own item."""
    second = [REASONING | {"id": "rs_2"}, CALL | {"call_id": "c2", "id": "fc_2"}]
    with temporary_memory() as memory:
        turn = memory.session("s", adapter=WIRE).turn({"type": "message", "role": "user", "content": "go"})
        turn.add(REASONING, CALL, *second)
        turn.tool_result("c2", "two")
        turn.tool_result("c1", "one")
        sent = turn.context(optchat.Budget(32_000, 1_000)).messages
    check_responses(sent)
    for thought, led_to in ((REASONING, CALL), tuple(second)):
        at = next(number for number, item in enumerate(sent) if item is thought)
        assert sent[at + 1] is led_to
