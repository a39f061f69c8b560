"""What LangChain's messages say, and what they cost, whatever provider they come from."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

import optchat
from optchat import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.tokens import UpperBoundTokenizer
from tests.integrations.langchain.host import CODEC, call

pytestmark = pytest.mark.host
TOKENS = UpperBoundTokenizer()
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(300_000)).decode()


def parts(message: Any) -> list[Any]:
    return [part for decoded in CODEC.decode(message) for part in decoded.parts]


def test_an_id_is_a_key() -> None:
    assert CODEC.decode(HumanMessage("Hi.", id="h1")) == (HostMessage("user", (TextPart("Hi."),), key="h1"),)
    assert CODEC.decode(AIMessage("Hello.", id="run--1-0"))[0].key == "run--1-0"
    assert CODEC.decode(HumanMessage("Hi."))[0].key is None


def test_instructions_and_summaries_of_the_host_are_no_source() -> None:
    summary = HumanMessage("What was said …", additional_kwargs={"lc_source": "summarization"})
    for message in (SystemMessage("Be brief."), summary, ChatMessage("?", role="critic")):
        assert CODEC.decode(message) == ()


def test_calls_are_what_the_model_wrote_also_where_it_is_no_json() -> None:
    broken = {"name": "build", "args": '{"x": ', "id": "c2", "error": "no JSON", "type": "invalid_tool_call"}
    message = AIMessage("On it.", tool_calls=[call("c1", "build", '{"x": "ü"}')], invalid_tool_calls=[broken])
    assert parts(message) == [
        TextPart("On it."),
        ToolCallPart("c1", "build", '{"x": "ü"}'),
        ToolCallPart("c2", "build", '{"x": '),
    ]


def test_text_beside_calls_is_left_out_only_where_there_is_none() -> None:
    assert parts(AIMessage("", tool_calls=[call("c1", "build")])) == [ToolCallPart("c1", "build", "{}")]
    assert parts(AIMessage("")) == [TextPart("")], "an empty answer is an answer"
    assert parts(HumanMessage("")) == [TextPart("")]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "reasoning", "reasoning": "Zanzibar"},
        {"type": "thinking", "thinking": "Zanzibar", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "WmFuemliYXI="},
        {"type": "non_standard", "value": {"thoughts": "Zanzibar"}},
    ],
    ids=lambda block: block["type"],
)
@pytest.mark.parametrize("provider", ["anthropic", "openai", "google_genai", None])
def test_reasoning_is_not_decoded_whoever_thought_it(block: dict[str, Any], provider: str | None) -> None:
    told: dict[str, Any] = {} if provider is None else {"response_metadata": {"model_provider": provider}}
    fields = {"additional_kwargs": {"reasoning_content": "Zanzibar"}}
    message = AIMessage([block, {"type": "text", "text": "Done."}], **told, **fields)
    assert parts(message) == [TextPart("Done.")]
    assert parts(AIMessage([block], **told)) == []
    assert CODEC.count(message, TOKENS) > CODEC.count(AIMessage("Done."), TOKENS), "it is sent, and costs"


def test_a_tool_of_the_provider_s_is_a_report() -> None:
    search = {"type": "server_tool_call", "name": "web_search", "id": "s1", "args": {"query": "Redis"}}
    found = {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": ["a page"]}
    asked, answered, said = parts(AIMessage([search, found, {"type": "text", "text": "Found."}]))
    assert (asked.name, asked.complete) == ("web_search", False)
    assert answered == ReportPart("server_tool_result", '["a page"]')
    assert said == TextPart("Found.")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "mime_type": "image/png", "base64": PNG},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ],
    ids=["standard", "openai"],
)
def test_an_image_is_a_blob_and_costs_its_price(block: dict[str, Any]) -> None:
    message = HumanMessage([{"type": "text", "text": "see"}, block])
    said, image = parts(message)
    assert said == TextPart("see")
    assert isinstance(image, BlobPart)
    assert (image.media_type, image.data) == ("image/png", base64.b64decode(PNG))
    assert 1_000 < CODEC.count(message, TOKENS) < 20_000


def test_a_file_costs_by_its_size() -> None:
    big = {"type": "file", "mime_type": "application/pdf", "base64": PNG}
    named = {"type": "file", "file_id": "file-1"}
    assert CODEC.count(HumanMessage([big]), TOKENS) > 70_000
    assert CODEC.count(HumanMessage([named]), TOKENS) > 5_000
    (part,) = parts(HumanMessage([named]))
    assert part.uri == "langchain-file:file-1"


def test_a_result_may_be_an_error_and_hold_an_image() -> None:
    content: list[Any] = [{"type": "text", "text": "broke"}, {"type": "image", "mime_type": "image/png", "base64": PNG}]
    (result,) = parts(ToolMessage(content, tool_call_id="c1", status="error"))
    assert isinstance(result, ToolResultPart)
    assert (result.call_id, result.is_error, len(result.content)) == ("c1", True, 2)


def test_calls_are_counted_once_though_a_provider_says_them_twice() -> None:
    words = '{"text": "' + "the quick brown fox " * 20 + '"}'
    plain = AIMessage("", tool_calls=[call("c1", "build", words)])
    twice = AIMessage(
        [{"type": "tool_use", "id": "c1", "name": "build", "input": {"text": words}}],
        tool_calls=[call("c1", "build", words)],
        additional_kwargs={"tool_calls": [{"id": "c1", "function": {"name": "build", "arguments": words}}]},
    )
    assert 0 <= CODEC.count(twice, TOKENS) - CODEC.count(plain, TOKENS) < 20


def test_without_the_extra_the_import_names_it(tmp_path: Path) -> None:
    """LangChain, as it is where it is not installed."""
    code = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "try:\n    import optchat.adapters.langchain\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    path = os.pathsep.join([str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("ConfigError")
    assert "optchat[langchain]" in done.stdout
    assert optchat.ConfigError.__name__ in done.stdout
