"""
OpenAI's responses (extra ``openai``): the items of ``client.responses``.

Decides: what an item says in neutral terms, which items carry memory, what one costs, and how sealed messages become
items again.
Refuses to know: rules of memory. It calls no API and needs ``openai`` only to be given its objects.

An item is one message: each of several parallel calls is an item of its own. Reasoning, compactions and references are
the provider's own and decode to nothing; they stay in the native list, where they are sent as they came. What a tool of
the provider's did (a web search, a code run, an MCP call) is no pair of the protocol: it decodes to a report. A result
has no error flag: rebuilt, its text begins with ``error:``.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, cast

from optchat.adapters.natives import (
    AUDIO_BYTES_PER_TOKEN,
    as_json,
    base64_bytes,
    base64_text,
    blob_of_base64,
    blob_of_url,
    count_opaque,
    count_value,
    file_name,
    is_image,
    label,
    listed,
    mapping,
    sendable,
    string,
    text_of_report,
)
from optchat.adapters.openai.costs import CALL_TOKENS, HIGH_DETAIL_TOKENS, MESSAGE_TOKENS, file_tokens, image_tokens
from optchat.core.active import order_for_dispatch
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.pairing import check_pairs
from optchat.core.ports import HostInfo, MemoryBlock, Tokenizer, WireAdapter
from optchat.core.tools import Tools

if TYPE_CHECKING:
    from openai.types.responses import FunctionToolParam, Response, ResponseInputItemParam

_FILE_ID: Final = "openai-file:"

# Calls that the application answers, and where their arguments stand; text as produced, an object as its JSON.
_CALLS: Final = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
_RESULTS: Final = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "computer_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
    }
)
# Tools that ran at the provider, call and answer in one item.
_PROVIDERS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
# Reasoning, the provider's own summaries and bookkeeping: nothing that anybody said.
_UNSAID: Final = frozenset(
    {
        "additional_tools",
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "item_reference",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "program",
        "program_output",
        "reasoning",
        "tool_search_call",
        "tool_search_output",
    }
)
_OPAQUE: Final = frozenset({"encrypted_content", "fingerprint", "id"})
# Of a response, and refused in a request; a null there is one as well.
_NOT_SENT_BACK: Final = frozenset({"created_by", "parsed_arguments"})
_LEFT_OUT_IF_NONE: Final = frozenset({"status", "encrypted_content", "content", "namespace", "phase", "caller"})


class OpenAIResponses(WireAdapter["ResponseInputItemParam"]):
    """
    The codec of ``client.responses``, for requests that carry their whole ``input``.

    History that the provider keeps (``conversation``, ``previous_response_id``) is out of memory's reach: leave both
    out. With ``store=False``, ask for ``include=["reasoning.encrypted_content"]``, so that reasoning can be sent back.

    Images, audio and files are counted by what they cost, not by their base64; a file given by id or address has no
    known size and is charged as one image: raise ``Budget.reserve`` for large ones.
    """

    @property
    def info(self) -> HostInfo:
        return HostInfo(name="openai", distribution="openai", version_floor="3.57", words_between=True)

    def decode(self, message: ResponseInputItemParam, /) -> Sequence[HostMessage]:
        """
        The neutral message in an item; () for instructions, reasoning and what else nobody said.

        Raises:
            BadArgument: an unknown type, role or kind of content, or a field that is missing.
        """
        item = mapping(message, "an item")
        kind = item.get("type") or "message"  # messages may leave it out
        if kind == "message":
            return _said(item)
        if kind in _CALLS:
            return (HostMessage("assistant", (_call(str(kind), item),)),)
        if kind in _RESULTS:
            return (HostMessage("tool", (ToolResultPart(_call_id(item), tuple(_output(item.get("output")))),)),)
        if kind in _PROVIDERS:
            return (HostMessage("assistant", tuple(_done_by_provider(str(kind), item))),)
        if kind in _UNSAID:
            return ()
        raise BadArgument(f"unknown item {kind!r}; pass what client.responses takes, or update optchat")

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[ResponseInputItemParam]:
        """One user message a block: a block that changes leaves the provider's cached prefix before it whole."""
        return [{"type": "message", "role": "user", "content": block.text} for block in blocks]

    def count(self, message: ResponseInputItemParam, tokenizer: Tokenizer, /) -> int:
        """The tokens of an item, reasoning and fields that only the provider knows included."""
        item = mapping(message, "an item")
        kind = item.get("type")
        total = MESSAGE_TOKENS + (CALL_TOKENS if kind in _CALLS or kind in _RESULTS else 0)
        for key, value in item.items():
            match key:
                case "type" | "role" | "status":
                    continue
                case "content" | "output":
                    total += _count_content(value, tokenizer)
                case "result" if kind == "image_generation_call":
                    total += HIGH_DETAIL_TOKENS
                case _ if key in _OPAQUE:
                    total += count_opaque(value, tokenizer)
                case _:
                    total += count_value(value, tokenizer)
        return total

    def stands_alone(self, message: ResponseInputItemParam, /) -> bool:
        """Whether a message that says nothing goes without its neighbours: not reasoning, as instructions do."""
        return mapping(message, "an item").get("role") in ("system", "developer")

    def rebuild(self, messages: Sequence[HostMessage], /) -> Sequence[ResponseInputItemParam]:
        """
        Items from sealed messages, in an order that pairs.

        Raises:
            ToolProtocolError: calls and results do not pair, a call without a result included.
        """
        ordered = order_for_dispatch(messages)
        check_pairs(ordered)
        items: list[dict[str, Any]] = []
        for message in ordered:
            match message.role:
                case "user":
                    items.append(_user_item(message))
                case "assistant":
                    items += _assistant_items(message)
                case "tool":
                    items += [_result_item(part) for part in message.parts if isinstance(part, ToolResultPart)]
        return cast("list[ResponseInputItemParam]", items)

    def reply(self, response: Response, /) -> list[ResponseInputItemParam]:
        """
        The items of a response, to be sealed and sent back, reasoning included.

        What the provider set comes back as it was; left out are empty fields, and those that a request has no place
        for.

        Raises:
            BadArgument: no response of ``openai``.
        """
        try:
            from openai.types.responses import Response as Known
        except ImportError as error:
            raise ConfigError("OpenAIResponses.reply reads objects of openai; install optchat[openai]") from error
        given: object = response
        if not isinstance(given, Known):
            raise BadArgument(f"a {type(given).__name__} is no response; pass what client.responses.create returned")
        return [
            cast(
                "ResponseInputItemParam",
                _sent_back(item.model_dump(by_alias=True, exclude_unset=True, warnings=False)),
            )
            for item in given.output
        ]

    def tools(self, tools: Tools, /) -> list[FunctionToolParam]:
        """The memory tools as strict function tools; the application may change its copy."""
        return [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": deepcopy(dict(tool.parameters)),
                "strict": True,
            }
            for tool in tools
        ]


# ---- from items ------------------------------------------------------------------------------------------------------


def _said(item: Mapping[str, object]) -> tuple[HostMessage, ...]:
    role = item.get("role")
    if role in ("system", "developer"):
        return ()
    parts = tuple(_content(item.get("content")))
    if role == "user":
        return (HostMessage("user", parts),)
    if role == "assistant":
        return (HostMessage("assistant", parts or (TextPart(""),)),)  # an empty answer is an answer
    raise BadArgument(f"unknown role {role!r}; a message is of system, developer, user or assistant")


def _content(content: object) -> Iterable[TextPart | BlobPart]:
    if content is None:
        return
    if isinstance(content, str):
        yield TextPart(content)
        return
    for each in listed(content):
        part = mapping(each, "a content part")
        kind = part.get("type")
        match kind:
            case "input_text" | "output_text" | "text":
                yield TextPart(string(part, "text"))
            case "refusal":
                yield TextPart(string(part, "refusal"))
            case "input_image" | "computer_screenshot":
                yield _image(part)
            case "input_audio":
                audio = mapping(part.get("input_audio"), "input_audio")
                yield blob_of_base64(f"audio/{string(audio, 'format')}", string(audio, "data"))
            case "input_file":
                yield _file(part)
            case _:
                raise BadArgument(
                    f"unknown content part {kind!r}; send input_text, input_image, input_file or input_audio"
                )


def _image(part: Mapping[str, object]) -> BlobPart:
    if isinstance(part.get("file_id"), str):
        return BlobPart("image/*", uri=_FILE_ID + string(part, "file_id"))
    return blob_of_url(string(part, "image_url"))


def _file(part: Mapping[str, object]) -> BlobPart:
    name = part.get("filename")
    media_type = (mimetypes.guess_type(name)[0] if isinstance(name, str) else None) or "application/octet-stream"
    if isinstance(part.get("file_id"), str):
        return BlobPart(media_type, uri=_FILE_ID + string(part, "file_id"))
    if isinstance(part.get("file_url"), str):
        return blob_of_url(string(part, "file_url"), media_type)
    data = string(part, "file_data")
    return blob_of_url(data, media_type) if data.startswith("data:") else blob_of_base64(media_type, data)


def _call_id(item: Mapping[str, object]) -> str:
    return string(item, "call_id") if item.get("call_id") is not None else string(item, "id")


def _call(kind: str, item: Mapping[str, object]) -> ToolCallPart:
    name = item.get("name")
    arguments = item.get(_CALLS[kind])
    return ToolCallPart(
        _call_id(item),
        name if isinstance(name, str) else kind.removesuffix("_call"),
        arguments if isinstance(arguments, str) else as_json(arguments, "a call's arguments"),
    )


def _output(output: object) -> Iterable[TextPart | BlobPart]:
    """What a tool answered: text, content parts, a screenshot, or what a shell wrote."""
    parts: list[TextPart | BlobPart] = []
    if isinstance(output, Mapping):
        parts = list(_content([cast("object", output)]))
    elif output and not isinstance(output, str) and all("stdout" in mapping(each, "output") for each in listed(output)):
        parts = [TextPart(as_json(mapping(each, "output"), "a shell's output")) for each in listed(output)]
    else:
        parts = list(_content(output))
    return parts or [TextPart("")]


def _done_by_provider(kind: str, item: Mapping[str, object]) -> Iterable[Part]:
    name = item.get("name")
    shown = {
        key: value
        for key, value in item.items()
        if key not in ("type", "id", "status", "name", "result") and value is not None
    }
    complete = item.get("status") in (None, "completed")
    yield ReportPart(
        name if isinstance(name, str) else kind.removesuffix("_call"), as_json(shown, "an item"), complete=complete
    )
    if isinstance(item.get("result"), str):
        form = item.get("output_format")
        yield blob_of_base64(f"image/{form if isinstance(form, str) else 'png'}", string(item, "result"))


# ---- cost ------------------------------------------------------------------------------------------------------------


def _count_content(content: object, tokenizer: Tokenizer) -> int:
    if content is None or isinstance(content, str):
        return count_value(content, tokenizer)
    if isinstance(content, Mapping):
        content = [cast("object", content)]
    total = 0
    for each in listed(content):
        part = mapping(each, "a content part")
        match part.get("type"):
            case "input_text" | "output_text" | "text" | "reasoning_text":
                total += tokenizer.count(string(part, "text"))
            case "refusal":
                total += tokenizer.count(string(part, "refusal"))
            case "input_image":
                total += image_tokens(part.get("detail"))
            case "computer_screenshot":
                total += image_tokens("original")
            case "input_audio":
                data = mapping(part.get("input_audio"), "input_audio").get("data")
                total += base64_bytes(data) // AUDIO_BYTES_PER_TOKEN + 1
            case "input_file":
                total += file_tokens(part.get("file_data"))
            case _:
                total += count_value(part, tokenizer)
    return total


# ---- to items --------------------------------------------------------------------------------------------------------


def _native_content(part: TextPart | BlobPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": sendable(part.text)}
    if part.uri is not None and part.uri.startswith(_FILE_ID):
        file_id = part.uri.removeprefix(_FILE_ID)
        if is_image(part):
            return {"type": "input_image", "file_id": file_id, "detail": "auto"}
        return {"type": "input_file", "file_id": file_id}
    if is_image(part):
        url = part.uri if part.uri is not None else f"data:{part.media_type};base64,{base64_text(part)}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.uri is not None:
        return {"type": "input_text", "text": label(part)}
    data = base64_text(part)
    kind, _, subtype = part.media_type.partition("/")
    if kind == "audio" and subtype in ("wav", "mp3"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": subtype}}
    return {"type": "input_file", "filename": file_name(part), "file_data": f"data:{part.media_type};base64,{data}"}


def _user_item(message: HostMessage) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ReportPart):
            content.append({"type": "input_text", "text": text_of_report(part)})
        elif isinstance(part, (TextPart, BlobPart)):
            content.append(_native_content(part))
    only = content[0]["text"] if [part["type"] for part in content] == ["input_text"] else None
    return {"type": "message", "role": "user", "content": content if only is None else only}


def _assistant_items(message: HostMessage) -> list[dict[str, Any]]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart(text):
                texts.append(sendable(text))
            case BlobPart():  # the model's own image or audio: an assistant's message holds text only
                texts.append(label(part))
            case ToolCallPart(call_id, name, arguments):
                calls.append(
                    {"type": "function_call", "call_id": call_id, "name": name, "arguments": sendable(arguments)}
                )
            case _:
                continue
    said = [{"type": "message", "role": "assistant", "content": "\n".join(texts)}] if texts or not calls else []
    return [*said, *calls]


def _result_item(part: ToolResultPart) -> dict[str, Any]:
    item: dict[str, Any] = {"type": "function_call_output", "call_id": part.call_id}
    if any(isinstance(each, BlobPart) for each in part.content):
        said = [TextPart("error:"), *part.content] if part.is_error else part.content
        return item | {"output": [_result_content(each) for each in said]}
    text = sendable("\n".join(each.text for each in part.content if isinstance(each, TextPart)))
    return item | {"output": f"error: {text}" if part.is_error else text}


def _result_content(part: TextPart | BlobPart) -> dict[str, Any]:
    native = _native_content(part)
    if native["type"] == "input_audio" and isinstance(part, BlobPart):  # a tool's output has no place for it
        return {"type": "input_text", "text": label(part)}
    return native


def _sent_back(item: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in item.items()
        if key not in _NOT_SENT_BACK and not (value is None and key in _LEFT_OUT_IF_NONE)
    }
    if kept.get("type") == "reasoning":
        kept.pop("status", None)  # refused there, whatever it says
    content: object = kept.get("content")
    if isinstance(content, list):
        kept["content"] = [
            {key: value for key, value in part.items() if key != "parsed"}
            for part in cast("list[dict[str, Any]]", content)
        ]
    return kept
