"""
Anthropic's messages (extra ``anthropic``).

Decides: what a message says in neutral terms, which message carries memory and where its cache marks stand, what one
costs, and how sealed messages become messages again.
Refuses to know: rules of memory. It calls no API and needs ``anthropic`` only to be given its objects.

A user message brings results and words together: it decodes to a tool message and a user one. Thinking, signed or
redacted, stays in the native message, where it is sent as it came, and is never decoded. What a tool of the provider's
did is no pair of the protocol: it decodes to a report. Adjacent messages of one role are one to the API, so that memory
can stand in a user message of its own before the request.

The API refuses empty text, ids and names with other characters than letters, digits, ``_`` and ``-``, and arguments
that are no object. Rebuilt messages keep to that; the host's own are sent as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

from optchat.adapters.natives import (
    FILE_BYTES_PER_TOKEN,
    as_json,
    base64_bytes,
    base64_text,
    blob_of_base64,
    blob_of_url,
    count_opaque,
    count_value,
    is_image,
    label,
    listed,
    mapping,
    sendable,
    string,
    text_of_report,
)
from optchat.core.active import order_for_dispatch
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.pairing import check_pairs
from optchat.core.ports import HostInfo, MemoryBlock, Tokenizer, WireAdapter
from optchat.core.tools import Tools

if TYPE_CHECKING:
    from anthropic.types import Message as AnthropicMessage, MessageParam, ToolParam

MESSAGE_TOKENS: Final = 6  # the marks around a message and its role
BLOCK_TOKENS: Final = 4
CALL_TOKENS: Final = 16  # the marks around a call or a result
IMAGE_TOKENS: Final = 4_800  # the most of the models that see best; those before them stop at a third of it
PDF_TOKENS: Final = 5_000  # a page, as text and as an image
MOST_MARKS: Final = 4

_FILE_ID: Final = "anthropic-file:"
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_UNSAID: Final = frozenset({"thinking", "redacted_thinking", "container_upload", "compaction"})
_OPAQUE: Final = frozenset({"signature", "data", "encrypted_content", "encrypted_index", "encrypted_stdout"})
_EMPTY: Final = "[empty message]"
_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicMessages(WireAdapter["MessageParam"]):
    """
    The codec of ``client.messages``.

    Memory is one user message with a text block for each block. Cache marks stand on its own blocks only, on the last
    of those that stay the same: the request's other marks, of the 4 that the API allows, are the application's, for its
    tools, its system prompt and the end of the transcript.

    Messages are counted with their framing; images and files by what they cost, not by their base64. A file given by id
    or address has no known size and is charged as one page: raise ``Budget.reserve`` for large ones.

    Args:
        cache_marks: how many blocks are marked, 0 to 4.
        cache_ttl: how long the provider keeps them. With "1h", marks before memory, on tools and system, must be "1h"
            too: the API refuses a longer life after a shorter one.

    Raises:
        BadArgument: no such number of marks, or no such life.
    """

    def __init__(self, *, cache_marks: int = 2, cache_ttl: Literal["5m", "1h"] = "5m") -> None:
        if not isinstance(cache_marks, int) or not 0 <= cache_marks <= MOST_MARKS:
            raise BadArgument(f"a request has 0 to {MOST_MARKS} cache marks, not {cache_marks!r}; give how many to use")
        if cache_ttl not in ("5m", "1h"):
            raise BadArgument(f"a cache's life is '5m' or '1h', not {cache_ttl!r}")
        self._cache_marks = cache_marks
        self._mark: dict[str, str] = {"type": "ephemeral"} | ({} if cache_ttl == "5m" else {"ttl": cache_ttl})

    @property
    def info(self) -> HostInfo:
        return HostInfo(name="anthropic", distribution="anthropic", version_floor="1.0")

    def decode(self, message: MessageParam, /) -> Sequence[HostMessage]:
        """
        The neutral messages in a message: results apart from words, in order; () for a system one, and for one of
        thinking only.

        Raises:
            BadArgument: an unknown role or kind of block, or a field that is missing.
        """
        native = mapping(message, "a message")
        role = native.get("role")
        if role == "system":
            return ()
        if role == "user":
            return tuple(_from_user(_blocks_of(native)))
        if role == "assistant":
            return tuple(_from_assistant(_blocks_of(native)))
        raise BadArgument(f"unknown role {role!r}; a message is of user, assistant or system")

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[MessageParam]:
        """One user message with a text block for each block, the last of the stable ones marked for the cache."""
        if not blocks:
            return []
        stable = [number for number, block in enumerate(blocks) if block.cache]
        marked = stable[max(0, len(stable) - self._cache_marks) :]
        content: list[dict[str, Any]] = [
            {"type": "text", "text": block.text} | ({"cache_control": dict(self._mark)} if number in marked else {})
            for number, block in enumerate(blocks)
        ]
        return cast("list[MessageParam]", [{"role": "user", "content": content}])

    def count(self, message: MessageParam, tokenizer: Tokenizer, /) -> int:
        """The tokens of a message, thinking and fields that only the provider knows included."""
        native = mapping(message, "a message")
        total = MESSAGE_TOKENS
        for key, value in native.items():
            if key == "content":
                total += _count_content(value, tokenizer)
            elif key != "role":
                total += count_value(value, tokenizer)
        return total

    def stands_alone(self, message: MessageParam, /) -> bool:
        """Whether a message that says nothing goes without its neighbours: not thinking, as instructions do."""
        return mapping(message, "a message").get("role") == "system"

    def rebuild(self, messages: Sequence[HostMessage], /) -> Sequence[MessageParam]:
        """
        Messages from sealed ones, in an order that pairs; assistant messages that were sealed apart become one, and so
        do the results of a group of calls.

        Raises:
            ToolProtocolError: calls and results do not pair, a call without a result included.
        """
        ordered = order_for_dispatch(messages)
        check_pairs(ordered)
        natives: list[dict[str, Any]] = []
        roles: list[str] = []  # the neutral role that each native was begun for
        for message in ordered:
            content = list(_to_blocks(message))
            if not content:  # an empty answer: the API takes none, and nobody said anything
                continue
            if roles and roles[-1] == message.role and message.role != "user":
                natives[-1]["content"] += content
            else:
                natives.append({"role": "assistant" if message.role == "assistant" else "user", "content": content})
                roles.append(message.role)
        return cast("list[MessageParam]", natives)

    def reply(self, response: AnthropicMessage, /) -> list[MessageParam]:
        """
        The message of a response, to be sealed and sent back, thinking included.

        Its blocks come back as the provider set them; left out are empty texts, which the API would refuse, and what a
        parser added.

        Raises:
            BadArgument: no message of ``anthropic``.
        """
        try:
            from anthropic.types import Message
        except ImportError as error:
            raise ConfigError(
                "AnthropicMessages.reply reads objects of anthropic; install optchat[anthropic]"
            ) from error
        given: object = response
        if not isinstance(given, Message):
            raise BadArgument(f"a {type(given).__name__} is no message; pass what client.messages.create returned")
        content: list[dict[str, Any]] = []
        for block in given.content:
            native = block.model_dump(by_alias=True, exclude_unset=True, warnings=False)
            native.pop("parsed_output", None)
            if native.get("type") != "text" or str(native.get("text", "")).strip():
                content.append(native)
        return cast("list[MessageParam]", [{"role": "assistant", "content": content}])

    def tools(self, tools: Tools, /) -> list[ToolParam]:
        """
        The memory tools; the application may change its copy.

        They are not ``strict``: the API compiles strict tools together and bounds them, and the application's come
        first. What a model sends is checked when the tool is called.
        """
        return [
            {"name": tool.name, "description": tool.description, "input_schema": deepcopy(dict(tool.parameters))}
            for tool in tools
        ]


# ---- from messages ---------------------------------------------------------------------------------------------------


def _blocks_of(native: Mapping[str, object]) -> list[Mapping[str, object]]:
    content = native.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [mapping(block, "a content block") for block in listed(content)]


def _from_user(blocks: Sequence[Mapping[str, object]]) -> Iterable[HostMessage]:
    """Runs of results as tool messages, runs of anything else as user messages, in the order of the blocks."""
    results: list[ToolResultPart] = []
    said: list[TextPart | BlobPart] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            if said:
                yield HostMessage("user", tuple(said))
                said = []
            results.append(_result(block))
        else:
            if results:
                yield HostMessage("tool", tuple(results))
                results = []
            said += _content(block)
    if results:
        yield HostMessage("tool", tuple(results))
    if said or not blocks:
        yield HostMessage("user", tuple(said) or (TextPart(""),))


def _result(block: Mapping[str, object]) -> ToolResultPart:
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts: list[TextPart | BlobPart] = [TextPart(content or "")]
    else:
        parts = [part for each in listed(content) for part in _content(mapping(each, "a content block"))]
    return ToolResultPart(
        string(block, "tool_use_id"), tuple(parts) or (TextPart(""),), is_error=block.get("is_error") is True
    )


def _content(block: Mapping[str, object]) -> Iterable[TextPart | BlobPart]:
    """What a block of a user's, or of a result's, says; nothing for those that only the provider reads."""
    kind = block.get("type")
    match kind:
        case "text":
            yield TextPart(string(block, "text"))
        case "image":
            yield _source(mapping(block.get("source"), "an image's source"), "image/*")
        case "document":
            yield from _document(block)
        case "search_result":
            yield TextPart(f"{block.get('title', '')} {block.get('source', '')}".strip())
            for each in listed(block.get("content")):
                yield from _content(mapping(each, "a content block"))
        case "tool_reference" | "browser_state":
            yield TextPart(as_json({key: value for key, value in block.items() if key != "cache_control"}, "a block"))
        case _ if kind in _UNSAID:
            return
        case _:
            raise BadArgument(f"unknown block {kind!r}; pass what client.messages takes, or update optchat")


def _document(block: Mapping[str, object]) -> Iterable[TextPart | BlobPart]:
    source = mapping(block.get("source"), "a document's source")
    about = [value for value in (block.get("title"), block.get("context")) if isinstance(value, str) and value]
    if about:
        yield TextPart("\n".join(about))
    if source.get("type") == "text":
        yield TextPart(string(source, "data"))
    elif source.get("type") == "content":
        content = source.get("content")
        if isinstance(content, str):
            yield TextPart(content)
        else:
            for each in listed(content):
                yield from _content(mapping(each, "a content block"))
    else:
        yield _source(source, "application/pdf")


def _source(source: Mapping[str, object], media_type: str) -> BlobPart:
    match source.get("type"):
        case "base64":
            given = source.get("media_type")
            return blob_of_base64(given if isinstance(given, str) else media_type, string(source, "data"))
        case "url":
            return blob_of_url(string(source, "url"), media_type)
        case "file":
            return BlobPart(media_type, uri=_FILE_ID + string(source, "file_id"))
        case kind:
            raise BadArgument(f"unknown source {kind!r}; give one of type base64, url or file")


def _from_assistant(blocks: Sequence[Mapping[str, object]]) -> Iterable[HostMessage]:
    answers = {
        str(block.get("tool_use_id")): block
        for block in blocks
        if str(block.get("type")).endswith("_tool_result") and block.get("tool_use_id") is not None
    }
    parts: list[Part] = []
    for block in blocks:
        kind = str(block.get("type"))
        if kind == "tool_use":
            arguments = as_json(block.get("input", {}), "a call's input")
            parts.append(ToolCallPart(string(block, "id"), string(block, "name"), arguments))
        elif kind in ("server_tool_use", "mcp_tool_use"):
            parts.append(_done_by_provider(block, answers.pop(string(block, "id"), None)))
        elif kind.endswith("_tool_result"):
            if answers.pop(str(block.get("tool_use_id")), None) is not None:  # its call stands in an earlier message
                parts.append(ReportPart(kind.removesuffix("_tool_result"), _readable(block.get("content"))))
        else:
            parts += _content(block)
    if any(isinstance(part, ToolCallPart) for part in parts):  # empty text beside calls is none
        parts = [part for part in parts if part != TextPart("")]
    if not parts and all(block.get("type") == "text" for block in blocks):  # an empty answer is an answer
        parts.append(TextPart(""))
    if parts:
        yield HostMessage("assistant", tuple(parts))


def _done_by_provider(call: Mapping[str, object], answer: Mapping[str, object] | None) -> ReportPart:
    asked = as_json(call.get("input", {}), "a call's input")
    said = asked if answer is None else f"{asked}\n{_readable(answer.get('content'))}"
    return ReportPart(string(call, "name"), said, complete=answer is not None)


def _readable(value: object) -> str:
    """An answer of the provider's tools as JSON, without what only the provider can read."""
    return value if isinstance(value, str) else as_json(_without_opaque(value), "a tool's answer")


def _without_opaque(value: object) -> object:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        return {key: _without_opaque(each) for key, each in fields.items() if key not in _OPAQUE}
    if isinstance(value, list):
        return [_without_opaque(each) for each in cast("list[object]", value)]
    return value


# ---- cost ------------------------------------------------------------------------------------------------------------


def _count_content(content: object, tokenizer: Tokenizer) -> int:
    if content is None or isinstance(content, (str, Mapping)):  # a mapping: the error of a provider's tool
        return count_value(cast("object", content), tokenizer)
    return sum(BLOCK_TOKENS + _count_block(mapping(block, "a content block"), tokenizer) for block in listed(content))


def _count_block(block: Mapping[str, object], tokenizer: Tokenizer) -> int:
    kind = str(block.get("type"))
    if kind == "text":
        return tokenizer.count(string(block, "text"))  # citations point into documents, and are not read again
    if kind == "image":
        return IMAGE_TOKENS
    total = CALL_TOKENS if kind.endswith(("tool_use", "tool_result")) else 0
    for key, value in block.items():
        match key:
            case "type" | "cache_control" | "citations" | "caller":
                continue
            case "source" if kind == "document":
                total += _count_source(mapping(value, "a document's source"), tokenizer)
            case "content":
                total += _count_content(value, tokenizer)
            case _ if key in _OPAQUE:
                total += count_opaque(value, tokenizer)
            case _:
                total += count_value(value, tokenizer)
    return total


def _count_source(source: Mapping[str, object], tokenizer: Tokenizer) -> int:
    match source.get("type"):
        case "text":
            return count_value(source.get("data"), tokenizer)
        case "content":
            return _count_content(source.get("content"), tokenizer)
        case _:
            return max(PDF_TOKENS, base64_bytes(source.get("data")) // FILE_BYTES_PER_TOKEN)


# ---- to messages -----------------------------------------------------------------------------------------------------


def _to_blocks(message: HostMessage) -> Iterable[dict[str, Any]]:
    empty = True
    for part in message.parts:
        blocks: list[dict[str, Any]]
        match part:
            case TextPart(text):
                blocks = _text_blocks(text)
            case ReportPart():
                blocks = _text_blocks(text_of_report(part))
            case BlobPart() if message.role == "assistant":  # which can hold no blob
                blocks = _text_blocks(label(part))
            case BlobPart():
                blocks = [_native_blob(part)]
            case ToolCallPart(call_id, name, arguments):
                blocks = [{"type": "tool_use", "id": _id(call_id), "name": _name(name), "input": _object(arguments)}]
            case _:
                blocks = [_native_result(part)]
        empty = empty and not blocks
        yield from blocks
    if empty and message.role == "user":  # the request is the request, and has to be there
        yield {"type": "text", "text": _EMPTY}


def _text_blocks(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": sendable(text)}] if text.strip() else []


def _native_blob(blob: BlobPart) -> dict[str, Any]:
    kind = "image" if is_image(blob) else "document"
    if blob.uri is not None:
        if blob.uri.startswith(_FILE_ID):
            return {"type": kind, "source": {"type": "file", "file_id": blob.uri.removeprefix(_FILE_ID)}}
        if blob.uri.startswith("https://") and (kind == "image" or blob.media_type == "application/pdf"):
            return {"type": kind, "source": {"type": "url", "url": blob.uri}}
        return {"type": "text", "text": label(blob)}
    if blob.media_type in _IMAGES or blob.media_type == "application/pdf":
        source = {"type": "base64", "media_type": blob.media_type, "data": base64_text(blob)}
        return {"type": kind, "source": source}
    return {"type": "text", "text": label(blob)}


def _native_result(part: ToolResultPart) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for item in part.content:
        blocks += _text_blocks(item.text) if isinstance(item, TextPart) else [_native_blob(item)]
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(part.call_id)}
    if [block["type"] for block in blocks] == ["text"]:
        result["content"] = blocks[0]["text"]
    elif blocks:
        result["content"] = blocks
    elif part.is_error:  # an error has to say something
        result["content"] = "error"
    return result | ({"is_error": True} if part.is_error else {})


def _id(call_id: str) -> str:
    """A call's id as the API takes it; another provider's may hold more, and stays unique."""
    if call_id and not _NAME.search(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _name(name: str) -> str:
    return _NAME.sub("_", name)[:128] or "unnamed"


def _object(arguments: str) -> dict[str, object]:
    """Arguments as the object that the API wants; what the model wrote that is none stands in one, as text."""
    try:
        value: object = json.loads(arguments or "{}", parse_constant=_no_constant)
        plain: object = json.loads(sendable(json.dumps(value, ensure_ascii=False)))  # an escape can be a surrogate too
    except (ValueError, RecursionError):
        plain = None
    return cast("dict[str, object]", plain) if isinstance(plain, dict) else {"invalid_json": sendable(arguments)}


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
