"""
What a memory tool answers a model (§ 8): results as JSON.

Decides: how a result class becomes JSON text, and what becomes of one that is too large.
Refuses to know: how a result was found.

Source text stands in an answer as a JSON string, never raw beside structure. Bytes never do: an attachment is its type,
its size and its address. Escapes can make JSON six times as large as its text, so a result of the usual page may still
not fit :data:`ANSWER_BYTES`. Then the engine asks :func:`fitting` how much would, and reads that much anew, so that the
answer's cursor goes on exactly after it. Only what cannot be read in smaller parts is cut here, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any, Final, TypeAlias, cast

from attrs import AttrsInstance, fields

from optchat.core.messages import BlobPart
from optchat.core.render import encodable
from optchat.core.retrieval import Dates, Hit, Line, Page, SearchPage, SessionInfo, TurnInfo, ZoomResult
from optchat.core.snapshots import Snapshot

ANSWER_BYTES: Final = 32_768
MAX_ATTACHMENTS: Final = 8  # of an answer that is too large; each is about 100 bytes
URI_CHARACTERS: Final = 200  # a data: address may be megabytes
CURSOR_BYTES: Final = 200  # more than the longest: a digest and five numbers of 19 digits, as base64

Answer: TypeAlias = ZoomResult | SearchPage | Dates | Page[SessionInfo]

_VALUES: Final = (Hit, Line, SessionInfo, Snapshot, TurnInfo, ZoomResult, SearchPage, Dates, Page)


def answer_json(result: Answer, *, limit_bytes: int = ANSWER_BYTES) -> str:
    """
    A result as JSON: its class's fields, in order, not ASCII-escaped; times with their offset; lone surrogates as
    U+FFFD.

    Args:
        limit_bytes: of UTF-8.

    Returns:
        Valid JSON of at most that size. One that would be larger keeps what :func:`fitting` says, has no cursor (it
        would lead past what was cut), and a field ``cut`` that says what is missing and how to get it.
    """
    plain = _plain_fields(result)
    whole = _dumps(plain)
    return whole if len(whole.encode()) <= limit_bytes else _cut(result, plain, limit_bytes)


def fitting(result: Answer, *, limit_bytes: int = ANSWER_BYTES) -> int | None:
    """
    How much of a result fits an answer, or None if it fits whole.

    Returns:
        A number of items (hits, sessions), of lines, or, for a page of a record's text, of bytes of that text. 0: not
        even one.
    """
    plain = _plain_fields(result)
    spare = limit_bytes - _size(plain)
    if spare >= 0:
        return None
    if plain.get("cursor", "") is None:  # the last page, whole: read in part, it will have one
        spare -= CURSOR_BYTES
    name = _long_field(result)
    if name == "text":
        text: str = plain[name]
        return len(_bounded(text, _size(text) + spare).encode())
    items: list[object] = plain.get(name, [])
    return len(_leading(items, sum(_size(item) + 1 for item in items) + spare))


def _long_field(result: Answer) -> str:
    if isinstance(result, ZoomResult):
        return "text" if result.text is not None else "lines"
    return "items"


def _cut(result: Answer, plain: dict[str, Any], limit_bytes: int) -> str:
    name = _long_field(result)
    whole: str | list[object] = plain.get(name, [])
    cut: dict[str, object] = {
        "shown": len(whole),  # replaced below; now it holds the place of its digits
        "of": len(whole),
        "unit": "characters" if isinstance(whole, str) else name,
        "go_on": f"call again with a smaller {'max_tokens' if isinstance(result, ZoomResult) else 'limit'}",
    }
    kept: dict[str, Any] = plain | {"cut": cut, name: whole[:0]}
    if "cursor" in kept:
        kept["cursor"] = None
    if isinstance(result, ZoomResult):
        kept["complete"] = False
        kept["attachments"] = kept["attachments"][:MAX_ATTACHMENTS]
    spare = limit_bytes - _size(kept)
    kept[name] = _bounded(whole, spare + 2) if isinstance(whole, str) else _leading(whole, spare)
    cut["shown"] = len(kept[name])
    if _size(kept) > limit_bytes:  # a field that cannot be shortened is too large by itself
        return _dumps({"cut": cut | {"shown": 0, "go_on": "zoom a smaller range"}})
    return _dumps(kept)


def _leading(items: list[object], size_bytes: int) -> list[object]:
    """The leading items whose JSON, a comma each, is at most so many bytes."""
    ends = accumulate(_size(item) + 1 for item in items)
    return [item for item, end in zip(items, ends, strict=True) if end <= size_bytes]


def _bounded(text: str, size_bytes: int) -> str:
    """The longest beginning of a text whose JSON, quotes included, is at most so many bytes."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(text[:middle]) <= size_bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _size(value: object) -> int:
    """Bytes of its JSON."""
    return len(_dumps(value).encode())


def _text(text: str) -> str:
    return encodable(text)


def _plain_fields(value: AttrsInstance) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(type(value))}


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BlobPart):
        return _attachment(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, _VALUES):
        return _plain_fields(cast("AttrsInstance", value))
    raise TypeError(f"{type(value).__name__} is no part of an answer")


def _attachment(blob: BlobPart) -> dict[str, Any]:
    uri = None if blob.uri is None else _text(blob.uri)
    if uri is not None and len(uri) > URI_CHARACTERS:
        uri = uri[:URI_CHARACTERS] + "…"
    return {"media_type": _text(blob.media_type), "bytes": None if blob.data is None else len(blob.data), "uri": uri}
