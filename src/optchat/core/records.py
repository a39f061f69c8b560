"""
Source records (§ 3): what one message seals into.

Decides: a record's payload bytes, its structure, its hashes, its event keys, and the text of its leaf.
Refuses to know: where a record is stored, and which sequence number it gets.

A record is one part of one message. Its payload is bytes: what was said, and nothing else, so that pages of it rejoin
to exactly that. What the bytes mean (a tool's name, the pieces of a mixed result, an image's digest) is its structure,
JSON beside them. The hash covers both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import frozen

from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.render import encodable, escaped_size
from optchat.core.terms import RecordKind

KINDS: Final[tuple[RecordKind, ...]] = ("user", "assistant", "tool_call", "tool_result", "report", "note")
KIND_NUMBER: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}
SUMMARY_KIND: Final = 6  # in the search index, beside the kinds above
LEAF_FORMAT: Final = 1  # the newest; older ones stay readable in leaf_text
INLINE_BYTES: Final = 4096  # a larger payload goes to a blob, in pieces of PIECE_BYTES
PIECE_BYTES: Final = 65_536


def to_bytes(text: str) -> bytes:
    """UTF-8 that keeps lone surrogates, so that what was said comes back exactly."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The inverse of :func:`to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


@frozen
class BlobRef:
    """Bytes that a record needs, kept once by digest."""

    sha256: bytes
    data: bytes


@frozen
class SealedPart:
    """One part, ready to be stored: everything that needs no database, and nothing that changes later."""

    kind: RecordKind
    message: int
    part: int
    at: datetime | None
    payload: bytes
    structure: str | None
    sha256: bytes
    blobs: tuple[BlobRef, ...]
    call_id: str | None
    leaf: str | None  # the verbatim leaf, if it fits
    leaf_bytes: int | None
    leaf_escaped: int | None
    event_hash: bytes
    revision: int
    apart: BlobRef | None  # the payload, where it is too large for its row: hashed here, outside any transaction


def call_hash(call_id: str) -> bytes:
    """What pairs a call and its results."""
    return hashlib.sha256(b"call\0" + to_bytes(call_id)).digest()[:16]


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def event_hash(*parts: object) -> bytes:
    """SHA-256 of an event key's parts, each with its length, so that no two keys run together."""
    written = (to_bytes(str(part)) for part in parts)
    return hashlib.sha256(b"".join(b"%d:%b" % (len(data), data) for data in written)).digest()


def _event_key(message: HostMessage, part: Part, turn_id: str, ordinal: int, number: int) -> bytes:
    if message.key is not None:
        return message_event(message.key, number)
    if isinstance(part, ToolCallPart):
        return event_hash("call", turn_id, part.call_id)
    if isinstance(part, ToolResultPart):
        return event_hash("result", turn_id, part.call_id)
    return event_hash("ordinal", turn_id, ordinal, number)


def _blob(part: BlobPart) -> tuple[dict[str, Any], tuple[BlobRef, ...]]:
    if part.data is None:
        return {"type": "blob", "media_type": part.media_type, "uri": part.uri}, ()
    digest = hashlib.sha256(part.data).digest()
    manifest = {"type": "blob", "media_type": part.media_type, "sha256": digest.hex(), "bytes": len(part.data)}
    return manifest, (BlobRef(digest, part.data),)


def _encode(part: Part) -> tuple[bytes, dict[str, Any] | None, tuple[BlobRef, ...]]:
    match part:
        case TextPart(text):
            return to_bytes(text), None, ()
        case BlobPart():
            manifest, blobs = _blob(part)
            return b"", manifest, blobs
        case ToolCallPart(call_id, name, arguments):
            return to_bytes(arguments), {"call_id": call_id, "name": name}, ()
        case ReportPart(name, text, complete):
            return to_bytes(text), {"name": name} | ({} if complete else {"complete": False}), ()
        case ToolResultPart(call_id, content, is_error, truncated):
            structure: dict[str, Any] = {"call_id": call_id}
            if is_error:
                structure["is_error"] = True
            if truncated:
                structure["truncated"] = True
            pieces: list[Any] = []
            texts: list[bytes] = []
            found: list[BlobRef] = []
            for item in content:
                if isinstance(item, TextPart):
                    texts.append(to_bytes(item.text))
                    pieces.append(len(texts[-1]))
                else:
                    manifest, blobs = _blob(item)
                    pieces.append(manifest)
                    found.extend(blobs)
            if len(content) != 1 or not texts:  # one text is the rule, and needs no list
                structure["content"] = pieces
            return b"".join(texts), structure, tuple(found)


def decode_part(kind: RecordKind, payload: bytes, structure: dict[str, Any] | None, blobs: Sequence[bytes]) -> Part:
    """
    The part that a record was sealed from.

    Args:
        blobs: the bytes of its manifests, in order; those given by uri have none.
    """
    waiting = iter(blobs)

    def blob(manifest: dict[str, Any]) -> BlobPart:
        if "uri" in manifest:
            return BlobPart(manifest["media_type"], uri=manifest["uri"])
        return BlobPart(manifest["media_type"], data=next(waiting))

    structure = structure or {}
    if structure.get("type") == "blob":
        return blob(structure)
    match kind:
        case "tool_call":
            return ToolCallPart(structure["call_id"], structure["name"], to_text(payload))
        case "report":
            return ReportPart(structure["name"], to_text(payload), structure.get("complete", True))
        case "tool_result":
            content: list[TextPart | BlobPart] = []
            offset = 0
            for piece in structure.get("content", [len(payload)]):
                if isinstance(piece, int):
                    content.append(TextPart(to_text(payload[offset : offset + piece])))
                    offset += piece
                else:
                    content.append(blob(piece))
            return ToolResultPart(
                structure["call_id"],
                tuple(content),
                structure.get("is_error", False),
                structure.get("truncated", False),
            )
        case _:
            return TextPart(to_text(payload))


def manifest_label(manifest: dict[str, Any]) -> str:
    """What stands for an image or a file in text: its type, and its size and digest or where it is."""
    if "uri" in manifest:
        return f"[{manifest['media_type']} at {manifest['uri'][:200]}]"
    return f"[{manifest['media_type']}, {readable_bytes(manifest['bytes'])}, sha256 {manifest['sha256'][:12]}]"


def readable_bytes(count: int) -> str:
    """A size for people: ``14.2 MB``."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value:.1f} GB"


def spoken_text(kind: RecordKind, payload: bytes, structure: dict[str, Any] | None) -> str:
    """
    A record's payload as a reader would be told it: the text, with names and labels that its structure adds.

    It is what leaves, summaries and the search index are made of; the exact bytes are the payload alone.
    """
    structure = structure or {}
    text = payload.decode("utf-8", "surrogatepass")
    if structure.get("type") == "blob":
        return manifest_label(structure)
    if kind == "tool_call":
        return f"{structure['name']} {text}"
    if kind == "report":
        mark = "" if structure.get("complete", True) else " (incomplete)"
        return f"[{structure['name']}]{mark} {text}"
    if kind == "tool_result":
        if "content" in structure:
            shown: list[str] = []
            offset = 0
            for piece in structure["content"]:
                if isinstance(piece, int):
                    shown.append(payload[offset : offset + piece].decode("utf-8", "surrogatepass"))
                    offset += piece
                else:
                    shown.append(manifest_label(piece))
            text = "\n".join(shown)
        return f"error: {text}" if structure.get("is_error") else text
    return text


def leaf_text(
    kind: RecordKind, payload: bytes, structure: dict[str, Any] | None, leaf_format: int = LEAF_FORMAT
) -> str:
    """
    The text of a record's verbatim leaf, under a recorded format: ``<kind>: `` and what was said.

    A memory tool's call and answer are provenance, not evidence: the call's arguments and the answer's text are not
    shown.
    """
    if leaf_format != 1:
        raise ValueError(f"leaf format {leaf_format} is not one that this version can read")
    if structure and "memory" in structure:
        said = str(structure["memory"])
    else:
        said = spoken_text(kind, payload, structure)
    return f"{kind}: {encodable(said)}"


def record_kind(message: HostMessage, part: Part) -> RecordKind:
    """The kind that a part of a message is sealed as."""
    match part:
        case ToolCallPart():
            return "tool_call"
        case ToolResultPart():
            return "tool_result"
        case ReportPart():
            return "report"
        case _:
            return "user" if message.role == "user" else "assistant"


def seal_message(
    message: HostMessage,
    *,
    turn_id: str,
    ordinal: int,
    node_bytes: int,
    first_part: int = 0,
    kind: RecordKind | None = None,
) -> tuple[SealedPart, ...]:
    """
    What one message seals into, a record a part (§ 3): a message with text and two calls gives three.

    Args:
        turn_id: scopes event keys of messages that have no key of their own.
        ordinal: the message's index in its turn; the request is 0.
        first_part: where part numbers start, for a native message that decodes to several.
        kind: for notes, which no role stands for.
    """
    return tuple(
        seal_part(
            part,
            kind=kind or record_kind(message, part),
            message=ordinal,
            number=first_part + number,
            at=message.at,
            event=_event_key(message, part, turn_id, ordinal, first_part + number),
            revision=message.revision,
            node_bytes=node_bytes,
        )
        for number, part in enumerate(message.parts)
    )


def seal_part(
    part: Part,
    *,
    kind: RecordKind,
    message: int,
    number: int,
    at: datetime | None,
    event: bytes,
    revision: int,
    node_bytes: int,
) -> SealedPart:
    """One part as a record."""
    payload, structure, blobs = _encode(part)
    return _sealed(kind, payload, structure, blobs, message, number, at, event, revision, node_bytes, part)


def content_sha256(kind: RecordKind, part: Part) -> bytes:
    """The hash that a part is sealed under, without what else sealing makes of it."""
    payload, structure, _blobs = _encode(part)
    return record_sha256(kind, None if structure is None else _dumps(structure), payload)


def list_ordinals(messages: Iterable[Sequence[HostMessage]], beside: Mapping[int, frozenset[bytes]]) -> list[int]:
    """
    The ordinals of a turn's messages, of its host's list, request first.

    A message's place in the list is its ordinal, as long as all of the turn is in the list. Reports and notes are also
    sealed beside it, by a program or an integration, and take a place that the list knows nothing of: what follows
    moves on by one.

    Args:
        messages: what each native message says.
        beside: the reports and notes that are sealed in the turn: by ordinal, the hashes of what they say.
    """
    ordinals: list[int] = []
    ordinal = 0
    for said in messages:
        reports = {
            content_sha256("report", part) for each in said for part in each.parts if isinstance(part, ReportPart)
        }
        while ordinal in beside and not reports & beside[ordinal]:
            ordinal += 1
        ordinals.append(ordinal)
        ordinal += 1
    return ordinals


def message_event(key: str, number: int) -> bytes:
    """The event key of a part of a message that its host names: the part's number counts within the native message."""
    return event_hash("message", key, number)


def with_memory(
    part: ToolCallPart | ToolResultPart,
    sealed: SealedPart,
    node_bytes: int,
    *,
    memory: str,
    retrieved: str | None = None,
    size: int = 0,
) -> SealedPart:
    """
    A memory tool's call or answer, as provenance: what it retrieved, never the text that it was given.

    Args:
        memory: what the leaf says in place of the text.
        retrieved: of an answer: the hash of its text, by which it is rendered again; ``size`` its bytes.
    """
    structure = dict(read_structure(sealed.structure) or {}) | {"memory": memory}
    payload = sealed.payload
    if retrieved is not None:
        structure |= {"retrieved": retrieved, "bytes": size}
        structure.pop("content", None)
        payload = b""
    return _sealed(
        sealed.kind,
        payload,
        structure,
        (),
        sealed.message,
        sealed.part,
        sealed.at,
        sealed.event_hash,
        sealed.revision,
        node_bytes,
        part,
    )


def read_structure(written: str | None) -> dict[str, Any] | None:
    """A record's structure, as it was written."""
    return None if written is None else json.loads(written)


def _sealed(
    kind: RecordKind,
    payload: bytes,
    structure: dict[str, Any] | None,
    blobs: tuple[BlobRef, ...],
    message: int,
    number: int,
    at: datetime | None,
    event: bytes,
    revision: int,
    node_bytes: int,
    part: Part,
) -> SealedPart:
    written = None if structure is None else _dumps(structure)
    structure = read_structure(written)  # as it will be read: JSON joins two surrogates of a name that make a character
    leaf = (
        leaf_text(kind, payload, structure) if len(payload) <= node_bytes or (structure or {}).get("memory") else None
    )
    size = None if leaf is None else len(leaf.encode())
    if size is not None and size > node_bytes:
        leaf = size = None
    return SealedPart(
        kind=kind,
        message=message,
        part=number,
        at=at,
        payload=payload,
        structure=written,
        sha256=record_sha256(kind, written, payload),
        blobs=blobs,
        call_id=part.call_id if isinstance(part, (ToolCallPart, ToolResultPart)) else None,
        leaf=leaf,
        leaf_bytes=size,
        leaf_escaped=None if leaf is None else escaped_size(leaf),
        event_hash=event,
        revision=revision,
        apart=BlobRef(hashlib.sha256(payload).digest(), payload) if len(payload) > INLINE_BYTES else None,
    )


def record_sha256(kind: RecordKind, structure: str | None, payload: bytes) -> bytes:
    """The hash that a record is known by: its kind, its structure and its payload (§ 3)."""
    digest = hashlib.sha256()
    head = (structure or "").encode()
    digest.update(f"{kind}\n{len(head)}\n".encode())
    digest.update(head)
    digest.update(payload)
    return digest.digest()
