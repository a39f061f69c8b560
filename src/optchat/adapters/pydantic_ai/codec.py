"""
Pydantic AI's messages.

Decides: what a message says in neutral terms, which message carries memory, and what one costs.
Refuses to know: runs, and which messages are of the turn.

A request holds several voices: results of tools, the user's words, the application's instructions, and what the
framework says to the model about a response it could not use. Instructions decode to nothing. What the framework says
is a report, for nobody said it as a user. Thinking stays in the native message and is never decoded, and so does a
provider's own summary of a conversation (``CompactionPart``): it is no source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    FileUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryPromptPart,  # pyright: ignore[reportDeprecated] - histories still hold it
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart as NativeText,
    ThinkingPart,
    ToolCallPart as NativeCall,
    ToolReturnPart as NativeReturn,
    UploadedFile,
    UserPromptPart,
)

from optchat.adapters.natives import (
    AUDIO_BYTES_PER_TOKEN,
    FILE_BYTES_PER_TOKEN,
    as_json,
    blob_of_url,
    count_opaque,
    count_value,
)
from optchat.adapters.pydantic_ai.info import INFO
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.ports import HostAdapter, HostInfo, MemoryBlock, Tokenizer

MESSAGE_TOKENS: Final = 8  # the marks around a message and its role, on any wire
PART_TOKENS: Final = 4
CALL_TOKENS: Final = 16
IMAGE_TOKENS: Final = 4_800  # the most that any provider's models charge for one image
FILE_TOKENS: Final = 5_000  # a page, as text and as an image: a file behind an address has no known size

_RETRY: Final = "pydantic-ai"  # the name under which the framework speaks


class PydanticAIMessages(HostAdapter[ModelMessage]):
    """The codec of ``pydantic_ai.messages``."""

    @property
    def info(self) -> HostInfo:
        return INFO

    def decode(self, message: ModelMessage, /) -> Sequence[HostMessage]:
        """The neutral messages in a request or a response, in order; () for instructions, thinking and summaries."""
        if isinstance(message, ModelResponse):
            return tuple(_from_response(message))
        return tuple(_from_request(message))

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[ModelMessage]:
        """One request with a user's part for each block: the framework makes one of adjacent requests anyway."""
        if not blocks:
            return []
        return [ModelRequest(parts=[UserPromptPart(block.text) for block in blocks])]

    def count(self, message: ModelMessage, tokenizer: Tokenizer, /) -> int:
        """The tokens of a message, thinking included; ``instructions`` are the run's, and not the message's."""
        parts: Sequence[object] = message.parts
        return MESSAGE_TOKENS + sum(PART_TOKENS + _count_part(part, tokenizer) for part in parts)


CODEC: Final = PydanticAIMessages()

# ---- from requests ---------------------------------------------------------------------------------------------------


def _from_request(message: ModelRequest) -> Iterable[HostMessage]:
    """Runs of parts of one voice, in the order of the parts."""
    parts: list[Part] = []
    voice = "user"
    for part in message.parts:
        said = _request_part(part)
        if said is None:
            continue
        spoken, added = said
        if parts and spoken != voice:
            yield _message(voice, parts)
            parts = []
        voice = spoken
        parts += added
    if parts:
        yield _message(voice, parts)


def _message(voice: str, parts: Iterable[Part]) -> HostMessage:
    return HostMessage("tool" if voice == "tool" else "user", tuple(parts))


def _request_part(part: object) -> tuple[str, list[Part]] | None:
    """Whose voice a part is, and what it says; None for what is no source."""
    match part:
        case UserPromptPart():
            content: Sequence[object] = [part.content] if isinstance(part.content, str) else part.content
            said = [item for each in content for item in _item(each)]
            return "user", list(said or [TextPart("")])
        case SpeechPart():
            return "user", _speech(part)
        case NativeReturn():
            return "tool", [_result(cast("NativeReturn[object]", part))]
        case RetryPromptPart() if part.tool_name is not None:  # pyright: ignore[reportDeprecated]
            return "tool", [ToolResultPart(part.tool_call_id, (TextPart(part.model_response()),), is_error=True)]
        case RetryPromptPart() | RetryFeedbackPart():  # pyright: ignore[reportDeprecated]
            return "framework", [ReportPart(_RETRY, part.model_response())]
        case _:
            return None


def _item(item: object) -> list[TextPart | BlobPart]:
    """An item of a user's content, or of a tool's answer."""
    match item:
        case str():
            return [TextPart(item)]
        case TextContent():
            return [TextPart(item.content)]
        case BinaryContent():
            return [BlobPart(item.media_type, data=bytes(item.data))]
        case FileUrl():
            blob = blob_of_url(item.url, _media_type(item, "application/octet-stream"))
            return [blob]
        case UploadedFile():
            return [
                BlobPart(_media_type(item, "application/octet-stream"), uri=f"{item.provider_name}-file:{item.file_id}")
            ]
        case CachePoint():
            return []
        case _:
            return [TextPart(as_json(item, "an item of a message"))]


def _media_type(item: FileUrl | UploadedFile, unknown: str) -> str:
    """The media type of a file elsewhere; the framework raises where neither it nor the address tells."""
    try:
        return item.media_type
    except ValueError:
        return unknown


def _result(part: NativeReturn[object]) -> ToolResultPart:
    """
    An answer as the model is given it. What was retried, failed or denied did not happen as called; neither did a call
    that was cut off, for which the framework puts an answer of its own.
    """
    is_error = part.outcome != "success"
    if part.files:
        items = [item for each in part.content_items(mode="str", wrap_if_error=False) for item in _item(each)]
    else:
        items = [TextPart(part.model_response_str(wrap_if_error=False))]
    return ToolResultPart(part.tool_call_id, tuple(items), is_error=is_error)


def _speech(part: SpeechPart) -> list[Part]:
    if part.transcript is None and part.audio is not None:
        return [BlobPart(part.audio.media_type, data=bytes(part.audio.data))]
    return [TextPart(part.transcript or "")]


# ---- from responses --------------------------------------------------------------------------------------------------


def _from_response(message: ModelResponse) -> Iterable[HostMessage]:
    parts: list[Part] = []
    native: Sequence[object] = message.parts
    answers = {part.tool_call_id: part for part in native if isinstance(part, NativeToolReturnPart)}
    for part in native:
        match part:
            case NativeText():
                parts.append(TextPart(part.content))
            case NativeCall():
                parts.append(ToolCallPart(part.tool_call_id, part.tool_name, _arguments(part)))
            case NativeToolCallPart():
                parts.append(_done_by_provider(part, answers.pop(part.tool_call_id, None)))
            case NativeToolReturnPart():
                if answers.pop(part.tool_call_id, None) is not None:  # its call stands in an earlier response
                    parts.append(ReportPart(part.tool_name, part.model_response_str()))
            case FilePart():
                parts.append(BlobPart(part.content.media_type, data=bytes(part.content.data)))
            case SpeechPart():
                parts += _speech(part)
            case _:
                continue
    if any(isinstance(part, ToolCallPart) for part in parts):  # empty text beside calls is none
        parts = [part for part in parts if part != TextPart("")]
    if parts:
        yield HostMessage("assistant", tuple(parts))


def _arguments(part: NativeCall) -> str:
    return part.args if isinstance(part.args, str) else as_json(part.args or {}, "a call's arguments")


def _done_by_provider(call: NativeToolCallPart, answer: NativeToolReturnPart | None) -> ReportPart:
    asked = call.args_as_json_str()
    said = asked if answer is None else f"{asked}\n{answer.model_response_str()}"
    return ReportPart(call.tool_name, said, complete=answer is not None)


# ---- cost ------------------------------------------------------------------------------------------------------------


def _count_part(part: object, tokenizer: Tokenizer) -> int:
    match part:
        case UserPromptPart():
            items: Sequence[object] = [part.content] if isinstance(part.content, str) else part.content
            return _count_items(items, tokenizer)
        case NativeReturn() | NativeToolReturnPart():
            return CALL_TOKENS + _count_items(part.content_items(mode="str"), tokenizer)
        case NativeCall() | NativeToolCallPart():
            asked = count_value(part.args, tokenizer)
            return CALL_TOKENS + tokenizer.count(part.tool_name) + asked + count_value(part.tool_call_id, tokenizer)
        case RetryPromptPart() | RetryFeedbackPart():  # pyright: ignore[reportDeprecated]
            return CALL_TOKENS + tokenizer.count(part.model_response())
        case ThinkingPart():
            return tokenizer.count(part.content) + count_opaque(part.signature, tokenizer)
        case CompactionPart():
            return count_value(part.content, tokenizer) + count_opaque(
                as_json(part.provider_details, "details"), tokenizer
            )
        case SystemPromptPart() | NativeText():
            return tokenizer.count(part.content)
        case FilePart():
            return _count_items([part.content], tokenizer)
        case SpeechPart():
            return tokenizer.count(part.transcript or "") + (_count_items([part.audio], tokenizer) if part.audio else 0)
        case _:  # what the framework tells the model of its tools and instructions: its text, whatever it is called
            return count_value({name: value for name, value in vars(part).items() if name != "metadata"}, tokenizer)


def _count_items(items: Sequence[object], tokenizer: Tokenizer) -> int:
    return sum(_count_item(item, tokenizer) for item in items)


def _count_item(item: object, tokenizer: Tokenizer) -> int:
    match item:
        case str():
            return tokenizer.count(item)
        case TextContent():
            return tokenizer.count(item.content)
        case BinaryContent():
            if item.is_image:
                return IMAGE_TOKENS
            if item.is_audio:
                return len(item.data) // AUDIO_BYTES_PER_TOKEN + 1
            return max(FILE_TOKENS, len(item.data) // FILE_BYTES_PER_TOKEN)
        case FileUrl() | UploadedFile():
            return FILE_TOKENS
        case CachePoint():
            return 0
        case _:
            return count_value(item, tokenizer)
