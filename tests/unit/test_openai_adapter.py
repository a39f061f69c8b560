"""OpenAIChat against requests and responses in the provider's own form, written down by hand; and the neutral codec."""

import base64
import importlib.metadata
import json
import subprocess
import sys
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ParsedChatCompletionMessage

from optchat.adapters.openai import OpenAIChat
from optchat.adapters.openai.costs import HIGH_DETAIL_TOKENS, LOW_DETAIL_TOKENS
from optchat.core.errors import BadArgument, ToolProtocolError
from optchat.core.messages import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.ports import MemoryBlock
from optchat.core.tokens import UpperBoundTokenizer
from optchat.core.tools import Tools
from optchat.engine.neutral import IMAGE_TOKENS, NeutralAdapter

CHAT: Any = OpenAIChat()  # fixtures are plain dicts, as they come off the wire
PNG = b"\x89PNG\r\n\x1a\n" + bytes(3000)
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
TOKENS = UpperBoundTokenizer()

CALLING = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}},
        {"id": "call_2", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
    ],
}
RESPONSE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_790_000_000,
    "model": "gpt-5",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "reasoning_content": "hm… <think>\n é",
                "reasoning_details": [{"type": "encrypted", "data": "AAAA", "index": None}],
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path":"a.py" }'},
                        "extra_content": {"google": {"thought_signature": "x"}},
                    }
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@pytest.mark.parametrize(
    ("native", "neutral"),
    [
        ({"role": "system", "content": "be careful"}, ()),
        ({"role": "developer", "content": [{"type": "text", "text": "be careful"}]}, ()),
        ({"role": "user", "content": "hi"}, (HostMessage.user("hi"),)),
        ({"role": "user", "content": ""}, (HostMessage.user(""),)),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}},
                ],
            },
            (HostMessage.user([TextPart("see"), BlobPart("image/png", data=PNG)]),),
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "https://example.org/a.png?w=3"}},
                    {"type": "image_url", "image_url": {"url": "https://example.org/a"}},
                ],
            },
            (
                HostMessage.user(
                    [
                        BlobPart("image/png", uri="https://example.org/a.png?w=3"),
                        BlobPart("image/*", uri="https://example.org/a"),
                    ]
                ),
            ),
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/svg+xml,%3Csvg/%3E"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,no base64!"}},
                ],
            },
            (
                HostMessage.user(
                    [
                        BlobPart("image/svg+xml", data=b"<svg/>"),
                        BlobPart("image/png", uri="data:image/png;base64,no base64!"),
                    ]
                ),
            ),
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                    {
                        "type": "file",
                        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                    },
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBERg=="}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                ],
            },
            (
                HostMessage.user(
                    [
                        BlobPart("audio/wav", data=b"RIFF"),
                        BlobPart("application/pdf", data=b"%PDF"),
                        BlobPart("application/pdf", data=b"%PDF"),
                        BlobPart("application/octet-stream", uri="openai-file:file-1"),
                    ]
                ),
            ),
        ),
        (
            CALLING,
            (
                HostMessage.assistant(
                    "Let me look.",
                    [ToolCallPart("call_1", "read", '{"path": "a.py"}'), ToolCallPart("call_2", "sql", "select 1")],
                ),
            ),
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": CALLING["tool_calls"][:1]},
            (HostMessage.assistant(calls=[ToolCallPart("call_1", "read", '{"path": "a.py"}')]),),
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": CALLING["tool_calls"][:1]},
            (HostMessage.assistant(calls=[ToolCallPart("call_1", "read", '{"path": "a.py"}')]),),
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "I can't."}],
            },
            (HostMessage("assistant", (TextPart("No."), TextPart("I can't."))),),
        ),
        ({"role": "assistant", "content": None, "refusal": "I can't."}, (HostMessage.assistant("I can't."),)),
        ({"role": "assistant", "content": None}, (HostMessage.assistant(""),)),
        (
            {"role": "assistant", "content": "yes", "reasoning_content": "secret thought"},
            (HostMessage.assistant("yes"),),
        ),
        (
            {"role": "assistant", "audio": {"id": "audio_1"}},
            (HostMessage("assistant", (BlobPart("audio/*", uri="openai-audio:audio_1"),)),),
        ),
        ({"role": "tool", "tool_call_id": "call_1", "content": "ok"}, (HostMessage.result("call_1", "ok"),)),
        (
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            (HostMessage.result("call_1", [TextPart("a"), TextPart("b")]),),
        ),
        ({"role": "tool", "tool_call_id": "call_1", "content": []}, (HostMessage.result("call_1", ""),)),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}},
            (HostMessage.assistant(calls=[ToolCallPart("function:read", "read", "{}")]),),
        ),
        ({"role": "function", "name": "read", "content": "ok"}, (HostMessage.result("function:read", "ok"),)),
    ],
)
def test_decode(native: dict[str, Any], neutral: tuple[HostMessage, ...]) -> None:
    assert tuple(CHAT.decode(native)) == neutral


@pytest.mark.parametrize(
    ("native", "said"),
    [
        ({"role": "critic", "content": "x"}, "unknown role 'critic'"),
        ({"role": "user", "content": [{"type": "video", "video": {}}]}, "unknown content part 'video'"),
        ({"role": "tool", "content": "x"}, "tool_call_id is text"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}, "function is a dict"),
        ("hi", r"reply\(\) first"),
    ],
)
def test_decode_refuses_what_it_cannot_keep(native: object, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        CHAT.decode(native)


def test_encode_is_one_user_message_a_block_and_prefix_stable() -> None:
    blocks = [MemoryBlock("guidance", "how to use", True), MemoryBlock("shared", "<shared_memory>…", True)]

    assert CHAT.encode(blocks) == [
        {"role": "user", "content": "how to use"},
        {"role": "user", "content": "<shared_memory>…"},
    ]
    assert CHAT.encode(blocks)[:1] == CHAT.encode(blocks[:1])


# -- cost ----------------------------------------------------------------------------------------------------------


def test_count_charges_framing_text_and_every_field() -> None:
    empty = CHAT.count({"role": "user", "content": ""}, TOKENS)
    assert empty >= 4
    assert CHAT.count({"role": "user", "content": "hello world"}, TOKENS) == empty + TOKENS.count("hello world")
    assert CHAT.count({"role": "tool", "tool_call_id": "call_1", "content": "x"}, TOKENS) > CHAT.count(
        {"role": "user", "content": "x"}, TOKENS
    )
    calls = CHAT.count({"role": "assistant", "content": None, "tool_calls": CALLING["tool_calls"]}, TOKENS)
    assert calls > TOKENS.count('{"path": "a.py"}') + TOKENS.count("select 1")
    thought = {"role": "assistant", "content": "x", "reasoning_content": "word " * 100}
    assert CHAT.count(thought, TOKENS) >= 100


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000_000}}, HIGH_DETAIL_TOKENS),
        ({"type": "image_url", "image_url": {"url": PNG_URL, "detail": "high"}}, HIGH_DETAIL_TOKENS),
        ({"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}}, LOW_DETAIL_TOKENS),
        ({"type": "input_audio", "input_audio": {"data": "A" * 40_000, "format": "mp3"}}, 76),
        ({"type": "file", "file": {"file_id": "file-1"}}, HIGH_DETAIL_TOKENS),
        ({"type": "file", "file": {"file_data": "A" * 400_000}}, 75_000),
    ],
)
def test_count_charges_media_by_their_cost(part: dict[str, Any], tokens: int) -> None:
    assert CHAT.count({"role": "user", "content": [part]}, TOKENS) == 4 + tokens


# -- rebuild -------------------------------------------------------------------------------------------------------

TURN = (
    HostMessage.user("why?"),
    HostMessage.assistant("Let me look."),
    HostMessage.assistant(calls=[ToolCallPart("a", "read", "{}")]),
    HostMessage.assistant(calls=[ToolCallPart("b", "run", "not json")]),
    HostMessage.user("hurry"),
    HostMessage.result("b", "no such file", is_error=True),
    HostMessage.result("a", "text"),
    HostMessage("user", (ReportPart("tests", "all green"),)),
    HostMessage("user", (ReportPart("build", "half", complete=False),)),
    HostMessage.assistant("Because."),
)


def test_rebuild_gives_a_request_that_the_provider_takes() -> None:
    assert CHAT.rebuild(TURN) == [
        {"role": "user", "content": "why?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "run", "arguments": "not json"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "error: no such file"},
        {"role": "tool", "tool_call_id": "a", "content": "text"},
        {"role": "user", "content": "hurry"},
        {"role": "user", "content": "[report of tests] all green"},
        {"role": "user", "content": "[report of build, incomplete] half"},
        {"role": "assistant", "content": "Because."},
    ]


def test_rebuild_sends_no_lone_surrogates() -> None:
    rebuilt = CHAT.rebuild(
        [
            HostMessage.user("a\ud800"),
            HostMessage.assistant("b\ud800", [ToolCallPart("a", "f", '"\ud800"')]),
            HostMessage.result("a", "c\ud800"),
            HostMessage("user", (ReportPart("n", "d\ud800"),)),
        ]
    )

    json.dumps(rebuilt, ensure_ascii=False).encode()


def test_rebuild_without_text_has_null_content() -> None:
    rebuilt = CHAT.rebuild(
        [HostMessage.assistant(calls=[ToolCallPart("a", "read", "{}")]), HostMessage.result("a", "")]
    )

    assert rebuilt[0]["content"] is None
    assert rebuilt[1]["content"] == ""
    assert CHAT.rebuild([HostMessage.assistant("")]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("end", range(1, len(TURN)))
def test_rebuild_of_a_turn_cut_anywhere_is_valid_or_refused(end: int) -> None:
    called = {part.call_id for m in TURN[:end] for part in m.parts if isinstance(part, ToolCallPart)}
    answered = {part.call_id for m in TURN[:end] for part in m.parts if isinstance(part, ToolResultPart)}
    if called != answered:
        with pytest.raises(ToolProtocolError):
            CHAT.rebuild(TURN[:end])
        return
    open_calls: set[str] = set()
    for native in CHAT.rebuild(TURN[:end]):
        if native["role"] == "tool":
            open_calls.remove(native["tool_call_id"])
        else:
            assert not open_calls
            open_calls = {call["id"] for call in native.get("tool_calls", ())}
    assert not open_calls


def test_images_of_results_follow_the_last_result() -> None:
    shot = BlobPart("image/png", data=PNG)
    rebuilt = CHAT.rebuild(
        [
            HostMessage.assistant(calls=[ToolCallPart("a", "shoot", "{}"), ToolCallPart("b", "shoot", "{}")]),
            HostMessage.result("a", [TextPart("here"), shot]),
            HostMessage.result("b", [BlobPart("application/zip", data=bytes(2000))]),
            HostMessage.user("and?"),
        ]
    )

    assert rebuilt[1]["content"] == "here\n[image/png 3.0 kB]"
    assert rebuilt[2]["content"] == "[application/zip 2.0 kB]"
    assert rebuilt[3]["role"] == "user"
    assert rebuilt[3]["content"][1:] == [{"type": "image_url", "image_url": {"url": PNG_URL}}]
    assert rebuilt[4] == {"role": "user", "content": "and?"}


@pytest.mark.parametrize(
    "message",
    [
        HostMessage.user("text"),
        HostMessage.user(""),
        HostMessage.user(
            [TextPart("see"), BlobPart("image/png", data=PNG), BlobPart("image/png", uri="https://example.org/a.png")]
        ),
        HostMessage.user([BlobPart("audio/wav", data=b"RIFF"), BlobPart("application/pdf", data=b"%PDF")]),
        HostMessage.user([BlobPart("application/octet-stream", uri="openai-file:file-1")]),
        HostMessage.assistant("text"),
        HostMessage.assistant(""),
        HostMessage("assistant", (BlobPart("audio/*", uri="openai-audio:audio_1"),)),
    ],
)
def test_decode_gives_back_what_rebuild_made(message: HostMessage) -> None:
    (native,) = CHAT.rebuild([message])
    (back,) = CHAT.decode(native)

    assert [part for part in back.parts if part != TextPart("")] == [
        part for part in message.parts if part != TextPart("")
    ]
    json.dumps(native)


# -- replies and tools ---------------------------------------------------------------------------------------------


def test_reply_keeps_what_the_provider_sent_and_leaves_out_what_is_empty() -> None:
    (native,) = CHAT.reply(ChatCompletion.model_validate(RESPONSE))
    sent = cast("dict[str, Any]", RESPONSE["choices"])[0]["message"]

    assert native == {
        key: sent[key] for key in ("role", "content", "reasoning_content", "reasoning_details", "tool_calls")
    }
    assert CHAT.decode(native) == (HostMessage.assistant(calls=[ToolCallPart("call_1", "read", '{"path":"a.py" }')]),)


def test_reply_takes_a_message_and_a_refusal() -> None:
    message = ChatCompletionMessage(role="assistant", content=None, refusal="I can't.")

    assert CHAT.reply(message) == [{"role": "assistant", "content": None, "refusal": "I can't."}]


def test_reply_of_a_parsed_message_leaves_the_parser_s_fields_out() -> None:
    message = ParsedChatCompletionMessage[dict[str, int]].model_validate(
        {
            "role": "assistant",
            "content": '{"n":1}',
            "parsed": {"n": 1},
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}", "parsed_arguments": {"n": 1}},
                }
            ],
        }
    )

    (native,) = CHAT.reply(message)

    assert native == {
        "role": "assistant",
        "content": '{"n":1}',
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_reply_keeps_spoken_audio_by_id_with_its_transcript() -> None:
    audio = {"id": "audio_1", "data": "UklGRg==", "expires_at": 1, "transcript": "Hello."}
    message = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "audio": audio})

    assert CHAT.reply(message) == [{"role": "assistant", "content": "Hello.", "audio": {"id": "audio_1"}}]


@pytest.mark.parametrize("response", [{"role": "assistant"}, "text", None])
def test_reply_refuses_what_is_no_response(response: object) -> None:
    with pytest.raises(BadArgument, match="no chat completion"):
        CHAT.reply(response)


@pytest.mark.parametrize("choices", [0, 2])
def test_reply_refuses_a_response_of_several_choices(choices: int) -> None:
    response = ChatCompletion.model_validate(RESPONSE | {"choices": RESPONSE["choices"] * choices})  # type: ignore[operator]

    with pytest.raises(BadArgument, match=f"{choices} choices; pass the message"):
        CHAT.reply(response)


def test_tools_are_strict_functions_that_the_application_may_change() -> None:
    native = CHAT.tools(Tools())

    assert [tool["function"]["name"] for tool in native] == [tool.name for tool in Tools()]
    assert all(tool["type"] == "function" and tool["function"]["strict"] for tool in native)
    native[0]["function"]["parameters"]["properties"].clear()
    assert CHAT.tools(Tools())[0]["function"]["parameters"]["properties"]


def test_the_installed_openai_is_one_that_was_tested() -> None:
    assert CHAT.info.version_floor is not None

    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split(".")[:2])

    assert numbers(importlib.metadata.version("openai")) >= numbers(CHAT.info.version_floor)
    assert (CHAT.info.name, CHAT.info.distribution) == ("openai", "openai")


def test_the_codec_needs_no_openai_until_it_reads_a_response() -> None:
    script = (
        "import sys; sys.modules['openai'] = None\n"
        "from optchat.adapters.openai import OpenAIChat\n"
        "from optchat.core.errors import ConfigError\n"
        "assert OpenAIChat().decode({'role': 'user', 'content': 'hi'})\n"
        "try: OpenAIChat().reply(object())\n"
        "except ConfigError as error: assert 'optchat[openai]' in str(error)\n"
        "else: raise SystemExit('no error')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- the neutral codec ---------------------------------------------------------------------------------------------


def test_neutral_messages_are_their_own_native_form() -> None:
    adapter = NeutralAdapter()
    blocks = [MemoryBlock("shared", "<shared_memory>…", True)]

    assert [tuple(adapter.decode(message)) for message in TURN] == [(message,) for message in TURN]
    assert tuple(adapter.rebuild(TURN)) == TURN
    assert tuple(adapter.encode(blocks)) == (HostMessage.user("<shared_memory>…"),)
    assert adapter.info.name == "local"


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (HostMessage.user("hello world"), TOKENS.count("hello world")),
        (HostMessage.user([BlobPart("image/png", data=bytes(4_000_000))]), IMAGE_TOKENS),
        (HostMessage.user([BlobPart("image/png", uri="https://example.org/a.png")]), IMAGE_TOKENS),
        (HostMessage.user([BlobPart("application/pdf", data=bytes(400_000))]), 100_000),
        (HostMessage.assistant(calls=[ToolCallPart("a", "f", "{}")]), 8 + sum(map(TOKENS.count, ("a", "f", "{}")))),
        (
            HostMessage.result("a", [TextPart("x"), BlobPart("image/png", data=b"x")]),
            8 + 2 * TOKENS.count("a") + IMAGE_TOKENS,
        ),
        (HostMessage("user", (ReportPart("n", "text"),)), TOKENS.count("n") + TOKENS.count("text")),
    ],
)
def test_neutral_cost(message: HostMessage, tokens: int) -> None:
    assert NeutralAdapter().count(message, TOKENS) == 4 + tokens
