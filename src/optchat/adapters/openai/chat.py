"""
OpenAI's chat completions (extra ``openai``).

Decides: what a chat message says in neutral terms, which chat messages carry memory, what one costs, and how sealed
messages become chat messages again.
Refuses to know: rules of memory. It calls no API and needs ``openai`` only to be given its objects.

Three things of the format have no neutral counterpart. A system or developer message is the application's, and decodes
to nothing. A result has no error flag: rebuilt, its text begins with ``error:``. A result holds text only: rebuilt, its
images follow in a user message after the group's last result. What a provider adds (``reasoning_content`` and fields
this version does not know) stays in the native message and is never decoded.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, cast

from optchat.adapters.natives import (
    AUDIO_BYTES_PER_TOKEN,
    base64_bytes,
    base64_text,
    blob_of_base64,
    blob_of_url,
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
from optchat.adapters.openai.costs import CALL_TOKENS, MESSAGE_TOKENS, file_tokens, image_tokens
from optchat.core.active import order_for_dispatch
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.pairing import check_pairs
from optchat.core.ports import HostInfo, MemoryBlock, Tokenizer, WireAdapter
from optchat.core.tools import Tools

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletion,
        ChatCompletionMessage,
        ChatCompletionMessageParam,
        ChatCompletionToolUnionParam,
    )

_FILE_ID: Final = "openai-file:"
_AUDIO_ID: Final = "openai-audio:"
_LEGACY_CALL: Final = "function:"  # calls of the old kind have no id; their results name the function
# Of a response, and either empty or the parser's own; the request's schema has no place for them.
_NOT_SENT_BACK: Final = ("annotations", "audio", "parsed")
_LEFT_OUT_IF_NONE: Final = ("refusal", "function_call", "tool_calls", "name")


class OpenAIChat(WireAdapter["ChatCompletionMessageParam"]):
    """
    The codec of ``client.chat.completions``.

    Messages are counted with their framing; images, audio and files by what they cost, not by their base64. A file
    given by id has no known size and is charged as one image: raise ``Budget.reserve`` for large ones.
    """

    @property
    def info(self) -> HostInfo:
        return HostInfo(name="openai", distribution="openai", version_floor="3.57")

    def decode(self, message: ChatCompletionMessageParam, /) -> Sequence[HostMessage]:
        """
        The neutral message in a chat message; () for system and developer ones.

        Raises:
            BadArgument: an unknown role or kind of content, or a field that is missing.
        """
        native = mapping(message, "a chat message")
        role = native.get("role")
        match role:
            case "system" | "developer":
                return ()
            case "user":
                return (HostMessage("user", tuple(_content(native.get("content")))),)
            case "assistant":
                return (HostMessage("assistant", tuple(_assistant_parts(native))),)
            case "tool":
                return (_result(string(native, "tool_call_id"), native.get("content")),)
            case "function":
                return (_result(_LEGACY_CALL + string(native, "name"), native.get("content")),)
            case _:
                raise BadArgument(
                    f"unknown role {role!r}; a chat message is of system, developer, user, assistant or tool"
                )

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[ChatCompletionMessageParam]:
        """One user message a block: a block that changes leaves the provider's cached prefix before it whole."""
        return [{"role": "user", "content": block.text} for block in blocks]

    def count(self, message: ChatCompletionMessageParam, tokenizer: Tokenizer, /) -> int:
        """The tokens of a chat message, fields that only the provider knows included."""
        native = mapping(message, "a chat message")
        total = MESSAGE_TOKENS
        for key, value in native.items():
            match key:
                case "role":
                    continue
                case "content":
                    total += _count_content(value, tokenizer)
                case "tool_calls":
                    for call in listed(value):
                        total += CALL_TOKENS + _count_call(call, tokenizer)
                case _:
                    total += count_value(value, tokenizer)
        return total

    def stands_alone(self, message: ChatCompletionMessageParam, /) -> bool:
        """Whether a message that says nothing goes without its neighbours: all here, reasoning is in answers."""
        return mapping(message, "a chat message").get("role") in ("system", "developer")

    def rebuild(self, messages: Sequence[HostMessage], /) -> Sequence[ChatCompletionMessageParam]:
        """
        Chat messages from sealed ones, in an order that pairs; assistant messages that were sealed apart become one.

        Raises:
            ToolProtocolError: calls and results do not pair, a call without a result included.
        """
        ordered = order_for_dispatch(messages)
        check_pairs(ordered)
        native: list[dict[str, Any]] = []
        shown: list[BlobPart] = []  # of the current group's results
        for message in ordered:
            if message.role != "tool" and shown:
                native.append({"role": "user", "content": [_TOOL_IMAGES, *map(_native_blob, shown)]})
                shown = []
            match message.role:
                case "tool":
                    for part in message.parts:
                        if isinstance(part, ToolResultPart):
                            native.append(_native_result(part))
                            shown.extend(item for item in part.content if is_image(item))
                case "assistant":
                    if native and native[-1]["role"] == "assistant":
                        _join(native[-1], _native_assistant(message))
                    else:
                        native.append(_native_assistant(message))
                case "user":
                    native.append(_native_user(message))
        if shown:
            native.append({"role": "user", "content": [_TOOL_IMAGES, *map(_native_blob, shown)]})
        return cast("list[ChatCompletionMessageParam]", native)

    def reply(self, response: ChatCompletion | ChatCompletionMessage, /) -> list[ChatCompletionMessageParam]:
        """
        The messages of a response, to be sealed and sent back.

        What the provider set comes back as it was, unknown fields included; left out are empty fields and those that a
        request has no place for. Spoken audio is kept by its id, with its transcript as text.

        Raises:
            BadArgument: no response of ``openai``, or one with several choices.
        """
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionMessage
        except ImportError as error:
            raise ConfigError("OpenAIChat.reply reads objects of openai; install optchat[openai]") from error
        message: object = response
        if isinstance(response, ChatCompletion):
            if len(response.choices) != 1:
                raise BadArgument(
                    f"the response has {len(response.choices)} choices; pass the message of the one you keep"
                )
            message = response.choices[0].message
        if not isinstance(message, ChatCompletionMessage):
            raise BadArgument(f"a {type(message).__name__} is no chat completion; pass the response, or its message")
        fields = message.model_dump(by_alias=True, exclude_unset=True, warnings=False)
        native = {key: value for key, value in fields.items() if key not in _NOT_SENT_BACK}
        native["role"] = "assistant"
        for key in _LEFT_OUT_IF_NONE:
            if key in native and not native[key]:
                del native[key]
        for call in native.get("tool_calls", ()):
            if isinstance(call.get("function"), dict):
                call["function"].pop("parsed_arguments", None)
        if message.audio is not None:
            native["audio"] = {"id": message.audio.id}
            native["content"] = native.get("content") or message.audio.transcript
        return [cast("ChatCompletionMessageParam", native)]

    def tools(self, tools: Tools, /) -> list[ChatCompletionToolUnionParam]:
        """The memory tools as strict function tools; the application may change its copy."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": deepcopy(dict(tool.parameters)),
                    "strict": True,
                },
            }
            for tool in tools
        ]


_TOOL_IMAGES: Final = {"type": "text", "text": "[images of the tool results above, in order]"}


# -- from chat messages --------------------------------------------------------------------------------------------


def _content(content: object) -> Iterable[TextPart | BlobPart]:
    if content is None:
        return
    if isinstance(content, str):
        yield TextPart(content)
        return
    for item in listed(content):
        part = mapping(item, "a content part")
        kind = part.get("type")
        match kind:
            case "text" | "refusal":
                yield TextPart(string(part, str(kind)))
            case "image_url":
                yield blob_of_url(string(mapping(part.get("image_url"), "image_url"), "url"))
            case "input_audio":
                audio = mapping(part.get("input_audio"), "input_audio")
                yield blob_of_base64(f"audio/{string(audio, 'format')}", string(audio, "data"))
            case "file":
                yield _blob_of_file(mapping(part.get("file"), "file"))
            case _:
                raise BadArgument(f"unknown content part {kind!r}; send text, image_url, input_audio or file")


def _blob_of_file(file: Mapping[str, object]) -> BlobPart:
    name = file.get("filename")
    guessed = mimetypes.guess_type(name)[0] if isinstance(name, str) else None
    media_type = guessed or "application/octet-stream"
    if isinstance(file.get("file_id"), str):
        return BlobPart(media_type, uri=_FILE_ID + string(file, "file_id"))
    data = string(file, "file_data")
    return blob_of_url(data) if data.startswith("data:") else blob_of_base64(media_type, data)


def _assistant_parts(native: Mapping[str, object]) -> Iterable[Part]:
    said: list[Part] = list(_content(native.get("content")))
    if isinstance(native.get("refusal"), str):
        said.append(TextPart(string(native, "refusal")))
    audio = native.get("audio")
    if audio is not None:
        said.append(BlobPart("audio/*", uri=_AUDIO_ID + string(mapping(audio, "audio"), "id")))
    calls: list[Part] = [_call(mapping(call, "a tool call")) for call in listed(native.get("tool_calls"))]
    if native.get("function_call") is not None:
        legacy = mapping(native["function_call"], "function_call")
        name = string(legacy, "name")
        calls.append(ToolCallPart(_LEGACY_CALL + name, name, string(legacy, "arguments")))
    if not said and not calls:  # an empty answer is an answer
        said.append(TextPart(""))
    if calls:  # and empty text beside calls is none
        said = [part for part in said if part != TextPart("")]
    return (*said, *calls)


def _call(call: Mapping[str, object]) -> ToolCallPart:
    if call.get("type") == "custom":
        custom = mapping(call.get("custom"), "custom")
        return ToolCallPart(string(call, "id"), string(custom, "name"), string(custom, "input"))
    function = mapping(call.get("function"), "function")
    return ToolCallPart(string(call, "id"), string(function, "name"), string(function, "arguments"))


def _result(call_id: str, content: object) -> HostMessage:
    parts = tuple(_content(content)) or (TextPart(""),)
    return HostMessage("tool", (ToolResultPart(call_id, parts),))


# -- cost ----------------------------------------------------------------------------------------------------------


def _count_call(call: object, tokenizer: Tokenizer) -> int:
    native = mapping(call, "a tool call")
    total = count_value(native.get("id"), tokenizer)
    for key, value in native.items():
        if key in ("function", "custom"):
            total += sum(count_value(text, tokenizer) for text in mapping(value, key).values())
        elif key not in ("id", "type"):
            total += count_value(value, tokenizer)
    return total


def _count_content(content: object, tokenizer: Tokenizer) -> int:
    if content is None or isinstance(content, str):
        return count_value(content, tokenizer)
    total = 0
    for item in listed(content):
        part = mapping(item, "a content part")
        match part.get("type"):
            case "text" | "refusal":
                total += tokenizer.count(string(part, str(part["type"])))
            case "image_url":
                total += image_tokens(mapping(part.get("image_url"), "image_url").get("detail"))
            case "input_audio":
                data = mapping(part.get("input_audio"), "input_audio").get("data")
                total += base64_bytes(data) // AUDIO_BYTES_PER_TOKEN + 1
            case "file":
                total += file_tokens(mapping(part.get("file"), "file").get("file_data"))
            case _:
                total += count_value(part, tokenizer)
    return total


# -- to chat messages ----------------------------------------------------------------------------------------------


def _native_user(message: HostMessage) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart(text):
                parts.append({"type": "text", "text": sendable(text)})
            case ReportPart():
                parts.append({"type": "text", "text": text_of_report(part)})
            case BlobPart():
                parts.append(_native_blob(part))
            case _:  # no other part can stand in a user message
                continue
    only = parts[0]["text"] if [part["type"] for part in parts] == ["text"] else None
    return {"role": "user", "content": parts if only is None else only}


def _native_blob(blob: BlobPart) -> dict[str, Any]:
    if blob.uri is not None:
        if blob.uri.startswith(_FILE_ID):
            return {"type": "file", "file": {"file_id": blob.uri.removeprefix(_FILE_ID)}}
        if is_image(blob):
            return {"type": "image_url", "image_url": {"url": blob.uri}}
        return {"type": "text", "text": label(blob)}
    data = base64_text(blob)
    kind, _, subtype = blob.media_type.partition("/")
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{blob.media_type};base64,{data}"}}
    if kind == "audio" and subtype in ("wav", "mp3"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": subtype}}
    return {"type": "file", "file": {"filename": file_name(blob), "file_data": f"data:{blob.media_type};base64,{data}"}}


def _native_assistant(message: HostMessage) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    native: dict[str, Any] = {"role": "assistant", "content": None}
    for part in message.parts:
        match part:
            case TextPart(text):
                texts.append(sendable(text))
            case ToolCallPart(call_id, name, arguments):
                function = {"name": name, "arguments": sendable(arguments)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case BlobPart():
                if part.uri is not None and part.uri.startswith(_AUDIO_ID):
                    native["audio"] = {"id": part.uri.removeprefix(_AUDIO_ID)}
                else:
                    texts.append(label(part))
            case _:
                continue
    if texts or not calls:
        native["content"] = "\n".join(texts)
    if calls:
        native["tool_calls"] = calls
    return native


def _join(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    texts = [text for text in (earlier["content"], later["content"]) if text]
    earlier["content"] = (
        "\n".join(texts) if texts else (None if "tool_calls" in earlier or "tool_calls" in later else "")
    )
    if "tool_calls" in later:
        earlier["tool_calls"] = [*earlier.get("tool_calls", ()), *later["tool_calls"]]
    if "audio" in later:
        earlier["audio"] = later["audio"]


def _native_result(part: ToolResultPart) -> dict[str, Any]:
    texts = [item.text if isinstance(item, TextPart) else label(item) for item in part.content]
    text = sendable("\n".join(texts))
    return {"role": "tool", "tool_call_id": part.call_id, "content": f"error: {text}" if part.is_error else text}
