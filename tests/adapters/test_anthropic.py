"""AnthropicMessages against messages and responses in the provider's own form, written down by hand."""

import base64
import json
import subprocess
import sys
from typing import Any, cast

import pytest
from anthropic.types import Message

import optchat
from optchat.adapters.anthropic import IMAGE_TOKENS, AnthropicMessages
from optchat.core.messages import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.ports import MemoryBlock
from optchat.core.tokens import UpperBoundTokenizer
from optchat.core.tools import Tools
from optchat.testing import temporary_memory
from tests.adapters.wires import check_anthropic

CLAUDE: Any = AnthropicMessages()  # fixtures are plain dicts, as they come off the wire
TOKENS = UpperBoundTokenizer()
PNG = b"\x89PNG\r\n\x1a\n" + bytes(3000)
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
}
THINKING = {"type": "thinking", "thinking": "hm… <think>\n é", "signature": "c2lnbmVk"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "é.py", "n": [1, None]}}
MADE = ToolCallPart("toolu_1", "read", '{"path": "é.py", "n": [1, null]}')


def message(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


@pytest.mark.parametrize(
    ("native", "neutral"),
    [
        ({"role": "system", "content": "be careful"}, ()),
        ({"role": "user", "content": "hi"}, (HostMessage.user("hi"),)),
        (message("user"), (HostMessage.user(""),)),
        (
            message("user", text("see"), IMAGE),
            (HostMessage.user([TextPart("see"), BlobPart("image/png", data=PNG)]),),
        ),
        (
            message("user", {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}),
            (HostMessage.user([BlobPart("image/png", uri="https://example.org/a.png")]),),
        ),
        (
            message("user", {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
            (HostMessage.user([BlobPart("image/*", uri="anthropic-file:file_1")]),),
        ),
        (
            message("user", document(type="base64", media_type="application/pdf", data="JVBERg==") | {"title": "A"}),
            (HostMessage.user([TextPart("A"), BlobPart("application/pdf", data=b"%PDF")]),),
        ),
        (
            message("user", document(type="text", media_type="text/plain", data="words")),
            (HostMessage.user("words"),),
        ),
        (
            message("user", document(type="content", content=[text("a"), text("b")])),
            (HostMessage.user([TextPart("a"), TextPart("b")]),),
        ),
        (
            message("user", {"type": "search_result", "title": "T", "source": "s.md", "content": [text("found")]}),
            (HostMessage.user([TextPart("T s.md"), TextPart("found")]),),
        ),
        (
            message(
                "user",
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("no"), IMAGE], "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_3"},
                text("and hurry"),
            ),
            (
                HostMessage(
                    "tool",
                    (
                        ToolResultPart("toolu_1", (TextPart("ok"),)),
                        ToolResultPart("toolu_2", (TextPart("no"), BlobPart("image/png", data=PNG)), is_error=True),
                        ToolResultPart("toolu_3", (TextPart(""),)),
                    ),
                ),
                HostMessage.user("and hurry"),
            ),
        ),
        (
            message("assistant", THINKING, text("Let me look."), CALL),
            (HostMessage.assistant("Let me look.", [MADE]),),
        ),
        (message("assistant", text(""), CALL), (HostMessage.assistant(calls=[MADE]),)),
        (message("assistant", THINKING), ()),
        (message("assistant", {"type": "redacted_thinking", "data": "AAAA"}), ()),
        (message("assistant"), (HostMessage.assistant(""),)),
        (
            message(
                "assistant",
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": [
                        {"type": "web_search_result", "title": "T", "url": "https://a", "encrypted_content": "SECRET"}
                    ],
                },
                text("So it is."),
            ),
            (
                HostMessage(
                    "assistant",
                    (
                        ReportPart(
                            "web_search",
                            '{"query": "q"}\n[{"type": "web_search_result", "title": "T", "url": "https://a"}]',
                        ),
                        TextPart("So it is."),
                    ),
                ),
            ),
        ),
        (
            message("assistant", {"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {}}),
            (HostMessage("assistant", (ReportPart("web_fetch", "{}", complete=False),)),),
        ),
        (
            message("assistant", {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": {"url": "u"}}),
            (HostMessage("assistant", (ReportPart("web_fetch", '{"url": "u"}'),)),),
        ),
    ],
)  # fmt: skip
def test_decode(native: dict[str, Any], neutral: tuple[HostMessage, ...]) -> None:
    assert tuple(CLAUDE.decode(native)) == neutral


@pytest.mark.parametrize(
    ("native", "said"),
    [
        ({"role": "critic", "content": "x"}, "unknown role 'critic'"),
        (message("user", {"type": "video"}), "unknown block 'video'"),
        (message("user", {"type": "image", "source": {"type": "tape"}}), "unknown source 'tape'"),
        (message("user", {"type": "tool_result", "content": "x"}), "tool_use_id is text"),
        (message("assistant", CALL | {"input": {"a": {1, 2}}}), "no JSON value"),
        ("hi", r"reply\(\) first"),
    ],
)
def test_decode_refuses_what_it_cannot_keep(native: object, said: str) -> None:
    with pytest.raises(optchat.BadArgument, match=said):
        CLAUDE.decode(native)


def test_a_list_with_the_sdk_s_own_blocks_is_read_as_what_they_are_sent_as() -> None:
    """`{"role": "assistant", "content": response.content}`, as the provider's examples have it."""
    native = {"role": "assistant", "content": Message.model_validate(RESPONSE).content}
    assert CLAUDE.decode(native) == CLAUDE.decode(message("assistant", *cast("list[Any]", RESPONSE["content"])))
    assert CLAUDE.count(native, TOKENS) > 0


# ---- marks -----------------------------------------------------------------------------------------------------------

BLOCKS = [
    MemoryBlock("guidance", "how to use", True),
    MemoryBlock("shared", "<shared_memory>…", True),
    MemoryBlock("session", "<session_memory>…", True),
    MemoryBlock("previous_exchange", "<previous_exchange>…", False),
]


@pytest.mark.parametrize(("marks", "marked"), [(0, []), (1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2])])
def test_marks_stand_on_the_last_stable_blocks(marks: int, marked: list[int]) -> None:
    (native,) = AnthropicMessages(cache_marks=marks).encode(BLOCKS)
    content: Any = native["content"]
    assert native["role"] == "user"
    assert [block["text"] for block in content] == [block.text for block in BLOCKS]
    assert [number for number, block in enumerate(content) if "cache_control" in block] == marked


def test_a_longer_life_is_said_in_each_mark() -> None:
    (native,) = AnthropicMessages(cache_ttl="1h").encode(BLOCKS)
    content: Any = native["content"]
    assert content[2]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    (usual,) = cast("Any", AnthropicMessages().encode(BLOCKS))
    assert usual["content"][2]["cache_control"] == {"type": "ephemeral"}
    assert list(AnthropicMessages().encode([])) == []


@pytest.mark.parametrize(
    "settings", [{"cache_marks": 5}, {"cache_marks": -1}, {"cache_marks": "2"}, {"cache_ttl": "1d"}]
)
def test_settings_that_the_api_has_not(settings: dict[str, Any]) -> None:
    with pytest.raises(optchat.BadArgument, match="cache"):
        AnthropicMessages(**settings)


def test_the_application_s_own_messages_get_no_mark() -> None:
    with temporary_memory() as memory:
        request = message("user", text("go"))
        turn = memory.session("s", adapter=CLAUDE).turn(request)
        sent = turn.context(optchat.Budget(32_000, 1_000), active=[request]).messages
        assert sent[-1] is request
        assert "cache_control" not in str(request)
        assert str(sent).count("cache_control") == 2


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "low", "high"),
    [
        (IMAGE, IMAGE_TOKENS, IMAGE_TOKENS + 20),
        ({"type": "image", "source": {"type": "base64", "data": "A" * 4_000_000}}, IMAGE_TOKENS, IMAGE_TOKENS + 20),
        (document(type="base64", data="A" * 400_000), 75_000, 75_050),
        (document(type="file", file_id="f"), 5_000, 5_050),
        (document(type="text", data="word " * 100), 100, 300),
        (
            {"type": "tool_result", "tool_use_id": "t", "content": [text("word " * 100), IMAGE]},
            IMAGE_TOKENS + 100,
            IMAGE_TOKENS + 300,
        ),
        (THINKING | {"thinking": "word " * 100}, 100, 300),
        ({"type": "redacted_thinking", "data": "A" * 4_000}, 1_000, 1_050),
        (CALL | {"input": {"text": "word " * 100}}, 100, 300),
        ({"type": "web_search_tool_result", "tool_use_id": "t", "content": {"error_code": "too_many"}}, 5, 100),
    ],
)  # fmt: skip
def test_count(block: dict[str, Any], low: int, high: int) -> None:
    assert low <= CLAUDE.count(message("assistant", block), TOKENS) <= high


# ---- rebuild ---------------------------------------------------------------------------------------------------------


def test_rebuild_gives_a_request_that_the_provider_takes() -> None:
    turn = (
        HostMessage.user("why?"),
        HostMessage.assistant("Let me look."),
        HostMessage.assistant(calls=[ToolCallPart("a", "read", "{}")]),
        HostMessage.assistant(calls=[ToolCallPart("b", "run", "not json")]),
        HostMessage.user("hurry"),
        HostMessage.result("b", "no such file", is_error=True),
        HostMessage.result("a", [TextPart("see"), BlobPart("image/png", data=PNG)]),
        HostMessage("user", (ReportPart("tests", "all green"),)),
        HostMessage.assistant("Because."),
    )
    rebuilt = CLAUDE.rebuild(turn)
    check_anthropic(rebuilt)
    assert rebuilt == [
        message("user", text("why?")),
        message(
            "assistant",
            text("Let me look."),
            {"type": "tool_use", "id": "a", "name": "read", "input": {}},
            {"type": "tool_use", "id": "b", "name": "run", "input": {"invalid_json": "not json"}},
        ),
        message(
            "user",
            {"type": "tool_result", "tool_use_id": "b", "content": "no such file", "is_error": True},
            {"type": "tool_result", "tool_use_id": "a", "content": [text("see"), IMAGE]},
        ),
        message("user", text("hurry")),
        message("user", text("[report of tests] all green")),
        message("assistant", text("Because.")),
    ]


def test_rebuild_keeps_to_what_the_api_takes() -> None:
    odd = "function:read é"
    rebuilt = CLAUDE.rebuild(
        [
            HostMessage.user(" \n"),
            HostMessage.assistant(""),
            HostMessage.assistant("a\ud800", [ToolCallPart(odd, "my tool", '{"x": "\\ud800", "y": NaN}')]),
            HostMessage.result(odd, "", is_error=True),
            HostMessage.assistant(calls=[ToolCallPart("c", "f", '{"x": "\\ud800"}')]),
            HostMessage.result("c", [BlobPart("image/svg+xml", data=b"<svg/>"), BlobPart("audio/wav", data=b"RIFF")]),
            HostMessage("assistant", (BlobPart("image/png", data=PNG),)),
        ]
    )
    check_anthropic(rebuilt)
    json.dumps(rebuilt, ensure_ascii=False, allow_nan=False).encode()
    (use,) = (block for block in rebuilt[1]["content"] if block["type"] == "tool_use")
    assert use["id"].isascii()
    assert ":" not in use["id"]
    assert use["name"] == "my_tool"
    assert rebuilt[2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": use["id"],
        "content": "error",
        "is_error": True,
    }
    assert rebuilt[0] == message("user", text("[empty message]"))


@pytest.mark.parametrize(
    "said",
    [
        HostMessage.user([TextPart("see"), BlobPart("image/png", data=PNG)]),
        HostMessage.user([BlobPart("application/pdf", data=b"%PDF"), BlobPart("image/*", uri="anthropic-file:f")]),
        HostMessage.user([BlobPart("image/png", uri="https://example.org/a.png")]),
        HostMessage.assistant("text"),
    ],
)
def test_decode_gives_back_what_rebuild_made(said: HostMessage) -> None:
    (native,) = CLAUDE.rebuild([said])
    assert CLAUDE.decode(native) == (said,)


# ---- replies and tools -----------------------------------------------------------------------------------------------

RESPONSE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [THINKING, text(""), text("Let me look."), CALL],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def test_reply_keeps_what_the_provider_sent_and_leaves_out_empty_text() -> None:
    (native,) = CLAUDE.reply(Message.model_validate(RESPONSE))
    assert native == message("assistant", THINKING, text("Let me look."), CALL)


def test_an_empty_reply_is_an_answer() -> None:
    (native,) = CLAUDE.reply(Message.model_validate(RESPONSE | {"content": [], "stop_reason": "end_turn"}))
    assert CLAUDE.decode(native) == (HostMessage.assistant(""),)


@pytest.mark.parametrize("response", [RESPONSE, "text", None])
def test_reply_refuses_what_is_no_response(response: object) -> None:
    with pytest.raises(optchat.BadArgument, match="no message"):
        CLAUDE.reply(response)


def test_tools_may_be_changed_by_the_application() -> None:
    native = CLAUDE.tools(Tools())
    assert [tool["name"] for tool in native] == [tool.name for tool in Tools()]
    native[0]["input_schema"]["properties"].clear()
    assert CLAUDE.tools(Tools())[0]["input_schema"]["properties"]


def test_the_codec_needs_no_anthropic_until_it_reads_a_response() -> None:
    script = (
        "import sys; sys.modules['anthropic'] = None\n"
        "from optchat.adapters.anthropic import AnthropicMessages\n"
        "from optchat.core.errors import ConfigError\n"
        "assert AnthropicMessages().decode({'role': 'user', 'content': 'hi'})\n"
        "try: AnthropicMessages().reply(object())\n"
        "except ConfigError as error: assert 'optchat[anthropic]' in str(error)\n"
        "else: raise SystemExit('no error')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
