"""
What the wire codecs share: reading native messages, media, and what both cost.

Decides: that an SDK's object is read as the dict it would be sent as, how data URLs and base64 become blobs, and how
what cannot be sent in a place is labelled there.
Refuses to know: any provider's roles and kinds of content.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeGuard, cast
from urllib.parse import unquote_to_bytes

from optchat.core.errors import BadArgument
from optchat.core.messages import BlobPart, ReportPart, TextPart
from optchat.core.ports import Tokenizer
from optchat.core.records import readable_bytes
from optchat.core.render import encodable

FILE_BYTES_PER_TOKEN: Final = 4  # a file whose text is extracted costs about as much as the text
AUDIO_BYTES_PER_TOKEN: Final = 400  # ten tokens a second; the thinnest usual stream has 4,000 bytes a second
OPAQUE_CHARACTERS_PER_TOKEN: Final = 4  # encrypted reasoning is longer than what it holds: at most a token in four

# ---- reading ---------------------------------------------------------------------------------------------------------


def mapping(value: object, what: str) -> Mapping[str, object]:
    """
    A native thing as a mapping. An object of the provider's SDK, which applications put into their lists as well, is
    read as what it would be sent as.

    Raises:
        BadArgument: it is neither.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value)
    dump: Callable[..., object] | None = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise BadArgument(f"{what} is a dict, not {type(value).__name__}; pass a response through reply() first")
    return cast("Mapping[str, object]", dump(by_alias=True, exclude_unset=True, warnings=False))


def listed(value: object) -> list[object]:
    """A field that the format allows to be any iterable, or absent."""
    return list(cast("Iterable[object]", value)) if value else []


def string(native: Mapping[str, object], key: str) -> str:
    """A field that has to be text; BadArgument where it is not."""
    value = native.get(key)
    if not isinstance(value, str):
        raise BadArgument(f"a native message's {key} is text, not {type(value).__name__}; set it")
    return value


def blob_of_url(url: str, media_type: str = "image/*") -> BlobPart:
    """The blob in a data URL, or the one at an address, of a type that the address tells or else of the one given."""
    if url.startswith("data:"):
        head, comma, data = url[5:].partition(",")
        own_type = head.partition(";")[0] or "text/plain"
        if comma and head.endswith(";base64"):
            return blob_of_base64(own_type, data)
        if comma:
            return BlobPart(own_type, data=unquote_to_bytes(data))
    guessed, _ = mimetypes.guess_type(url.partition("?")[0])
    return BlobPart(guessed or media_type, uri=url)


def blob_of_base64(media_type: str, data: str) -> BlobPart:
    """The blob in base64 text. What is none is kept as it is: the provider may be more lenient, and nothing is lost."""
    try:
        return BlobPart(media_type, data=base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return BlobPart(media_type, uri=f"data:{media_type};base64,{data}")


def as_json(value: object, what: str) -> str:
    """
    A parsed value as JSON text, the same for the same value, as ``Turn.tool_call`` writes one.

    Raises:
        BadArgument: it is no JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(f"{what} is no JSON value ({error}); pass what the provider sent") from None


# ---- cost ------------------------------------------------------------------------------------------------------------


def count_value(value: object, tokenizer: Tokenizer) -> int:
    """The tokens of a field as it stands: text as text, anything else as its JSON."""
    if value is None:
        return 0
    return tokenizer.count(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def count_opaque(value: object, tokenizer: Tokenizer) -> int:
    """The tokens of what only the provider can read, encrypted reasoning or a signature; never by a text's rule."""
    return len(value) // OPAQUE_CHARACTERS_PER_TOKEN + 1 if isinstance(value, str) else count_value(value, tokenizer)


def base64_bytes(data: object) -> int:
    """The size of what base64 text holds; 0 where there is none."""
    return len(data) * 3 // 4 if isinstance(data, str) else 0


# ---- writing ---------------------------------------------------------------------------------------------------------


def sendable(text: str) -> str:
    """Lone surrogates are stored exactly, but no request can carry them."""
    return encodable(text)


def is_image(item: TextPart | BlobPart) -> TypeGuard[BlobPart]:
    """Whether a part is an image."""
    return isinstance(item, BlobPart) and item.media_type.startswith("image/")


def base64_text(blob: BlobPart) -> str:
    """A blob's bytes as base64."""
    return base64.b64encode(blob.data or b"").decode()


def file_name(blob: BlobPart) -> str:
    """A name for a blob that never had one, with the extension of its type."""
    return "file" + (mimetypes.guess_extension(blob.media_type) or "")


def label(blob: BlobPart) -> str:
    """What stands for a blob where it cannot be sent."""
    size = f"at {blob.uri[:200]}" if blob.uri is not None else readable_bytes(len(blob.data or b""))
    return f"[{blob.media_type} {size}]"


def text_of_report(report: ReportPart) -> str:
    """A report as a user message says it: no wire has a place of its own for one."""
    return sendable(f"[report of {report.name}{'' if report.complete else ', incomplete'}] {report.text}")
