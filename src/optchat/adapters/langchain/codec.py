"""
LangChain's messages, whatever model they come from.

Decides: what a message says in neutral terms, which of them carry memory, and what one costs.
Refuses to know: agents, graphs and threads; rules of memory.

A graph's reducer keeps the ids of a thread's messages apart, so that an id is the message's key. Reasoning, and what
only a provider reads, stay in the native message, which is sent as it came. A summary that LangChain's own middleware
wrote is no source: it decodes to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage

from optchat.adapters.natives import (
    FILE_BYTES_PER_TOKEN,
    as_json,
    base64_bytes,
    blob_of_base64,
    blob_of_url,
    count_opaque,
    count_value,
)
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.ports import HostAdapter, HostInfo, MemoryBlock, Tokenizer

MESSAGE_TOKENS: Final = 6  # the marks around a message and its role
BLOCK_TOKENS: Final = 4
CALL_TOKENS: Final = 16  # the marks around a call or a result
IMAGE_TOKENS: Final = 4_800  # the most that any provider asks for one
FILE_TOKENS: Final = 5_000  # a page of a PDF, as text and as an image; what is only named has no known size

INFO: Final = HostInfo(
    name="langchain",
    distribution="langchain",
    version_floor="1.3.0",
    fork="observed",
    edit="unobservable",
    delete="unobservable",
    compaction="unobservable",
    pause="observed",
    drops_unfinished=True,  # a checkpoint that was not written yet, a result whose neighbour failed
)

_SUMMARY: Final = "summarization"  # how SummarizationMiddleware marks the message that it puts in place of others
_CALLS: Final = frozenset({"tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call"})
_MEDIA: Final = {"image": "image/*", "audio": "audio/*", "video": "video/*", "file": "application/octet-stream"}
_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
_FILES: Final = frozenset({"file", "input_file", "document", "audio", "input_audio", "video", "media"})
_OPAQUE: Final = frozenset({"signature", "thought_signature", "data", "encrypted_content", "encrypted_index"})
_NAME_OF_KIND: Final = frozenset({"type"})
_KNOWN_TWICE: Final = frozenset({"tool_calls", "function_call", "lc_source"})  # counted where they are structured


class LangChainMessages(HostAdapter[AnyMessage]):
    """
    The codec of ``langchain_core.messages``, as :class:`MemoryMiddleware` uses it and as a node of a graph may.

    Memory is a user message for each block. Messages are counted with their framing, images and files by what they
    cost; a file that is only named is charged as one page: raise ``Budget.reserve`` for large ones.
    """

    @property
    def info(self) -> HostInfo:
        return INFO

    def decode(self, message: AnyMessage, /) -> Sequence[HostMessage]:
        """What a message says; () for instructions, and for a summary that the host wrote of others."""
        given: BaseMessage = message
        parts: list[Part]
        if isinstance(given, HumanMessage):
            if is_summary(given):
                return ()
            return (HostMessage("user", tuple(_content(given)) or (TextPart(""),), key=given.id),)
        if isinstance(given, AIMessage):
            parts = _answer(given)
            return (HostMessage("assistant", tuple(parts), key=given.id),) if parts else ()
        if isinstance(given, ToolMessage):
            content = tuple(part for part in _content(given) if isinstance(part, (TextPart, BlobPart)))
            failed = given.status == "error"
            result = ToolResultPart(given.tool_call_id, content or (TextPart(""),), is_error=failed)
            return (HostMessage("tool", (result,), key=given.id),)
        return ()

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[AnyMessage]:
        """A user message for each block, of plain text: every model's template takes that."""
        return [HumanMessage(block.text) for block in blocks]

    def count(self, message: AnyMessage, tokenizer: Tokenizer, /) -> int:
        """The tokens of a message, reasoning and fields that only the provider knows included."""
        given: BaseMessage = message
        total = MESSAGE_TOKENS + _count_content(cast("object", given.content), tokenizer)
        fields = cast("Mapping[str, object]", given.additional_kwargs)
        total += _count_fields(fields, tokenizer, without=_KNOWN_TWICE)
        if given.name:
            total += tokenizer.count(given.name)
        if isinstance(given, AIMessage):
            for call in _calls(given):
                total += CALL_TOKENS + sum(map(tokenizer.count, (call.call_id, call.name, call.arguments)))
        if isinstance(given, ToolMessage):
            total += CALL_TOKENS + tokenizer.count(given.tool_call_id)
        return total


def is_summary(message: BaseMessage) -> bool:
    """Whether LangChain's own middleware wrote a message in place of others."""
    fields = cast("Mapping[str, object]", message.additional_kwargs)
    return fields.get("lc_source") == _SUMMARY


# ---- from messages ---------------------------------------------------------------------------------------------------


def _answer(message: AIMessage) -> list[Part]:
    calls = _calls(message)
    parts: list[Part] = [part for part in _content(message) if not calls or part != TextPart("")]
    parts += calls
    if not parts and _plain(message):  # an empty answer is an answer; one of thinking only is none
        parts.append(TextPart(""))
    return parts


def _plain(message: AIMessage) -> bool:
    content = cast("object", message.content)
    return isinstance(content, str) or all(_kind(block) == "text" for block in cast("list[object]", content))


def _calls(message: AIMessage) -> list[ToolCallPart]:
    """The calls as they can be answered; those whose arguments are no JSON stand with what the model wrote."""
    made = [
        ToolCallPart(call["id"] or "", call["name"], as_json(call["args"], "a call's arguments"))
        for call in message.tool_calls
    ]
    made += [
        ToolCallPart(broken["id"], broken["name"] or "", broken["args"] or "")
        for broken in message.invalid_tool_calls
        if broken["id"]  # LangChain answers these itself; one without an id can have no answer
    ]
    return made


def _content(message: BaseMessage) -> Iterable[Part]:
    content = cast("object", message.content)
    if isinstance(content, str):
        yield TextPart(content)
        return
    for block in cast("list[Mapping[str, Any]]", message.content_blocks):
        yield from _block(block)


def _block(block: Mapping[str, Any]) -> Iterable[Part]:
    """What a block in LangChain's standard form says; nothing for reasoning, calls, and what only a provider reads."""
    kind = str(block.get("type"))
    match kind:
        case "text":
            yield TextPart(str(block.get("text", "")))
        case "text-plain" if isinstance(block.get("text"), str):
            yield TextPart(block["text"])
        case "image" | "audio" | "video" | "file" | "text-plain":
            yield _blob(kind, block)
        case "server_tool_call":
            yield ReportPart(str(block.get("name") or kind), as_json(block.get("args", {}), "a call"), complete=False)
        case "server_tool_result":
            yield ReportPart(str(block.get("name") or kind), as_json(block.get("output"), "a tool's answer"))
        case _:
            return


def _blob(kind: str, block: Mapping[str, Any]) -> BlobPart:
    media_type = str(block.get("mime_type") or _MEDIA.get(kind, "text/plain"))
    if isinstance(block.get("base64"), str):
        return blob_of_base64(media_type, block["base64"])
    if isinstance(block.get("url"), str):
        return blob_of_url(block["url"], media_type)
    return BlobPart(media_type, uri=f"langchain-file:{block.get('file_id') or block.get('id') or 'unnamed'}")


# ---- cost ------------------------------------------------------------------------------------------------------------


def _kind(block: object) -> str:
    return str(cast("Mapping[str, object]", block).get("type")) if isinstance(block, Mapping) else "text"


def _count_content(content: object, tokenizer: Tokenizer) -> int:
    if isinstance(content, str):
        return tokenizer.count(content)
    return sum(BLOCK_TOKENS + _count_block(block, tokenizer) for block in cast("list[object]", content))


def _count_block(block: object, tokenizer: Tokenizer) -> int:
    if not isinstance(block, Mapping):
        return count_value(block, tokenizer)
    kind = _kind(cast("object", block))
    if kind in _CALLS:  # counted with the message's calls
        return 0
    if kind in _IMAGES:
        return IMAGE_TOKENS
    fields = cast("Mapping[str, object]", block)
    if kind in _FILES:
        return max(FILE_TOKENS, _held_bytes(fields) // FILE_BYTES_PER_TOKEN)
    return _count_fields(fields, tokenizer, without=_NAME_OF_KIND)


def _count_fields(fields: Mapping[str, object], tokenizer: Tokenizer, *, without: frozenset[str]) -> int:
    return sum(
        count_opaque(value, tokenizer) if key in _OPAQUE else count_value(value, tokenizer)
        for key, value in fields.items()
        if key not in without
    )


def _held_bytes(value: object) -> int:
    """The bytes of whatever base64 or text stands in a block of media, wherever its provider puts it."""
    if isinstance(value, Mapping):
        return sum(_held_bytes(each) for each in cast("Mapping[str, object]", value).values())
    return base64_bytes(value)
