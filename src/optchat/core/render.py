"""
Rendering: escaping, the line and block formats, byte sizes (§ 7).

Decides: how data becomes text that a model is shown, so that it can forge neither a block, nor the head of a line, nor
a ref. Refuses to know: budgets, and where data came from.

What stands before `` | `` comes from structure; what follows is data. In data ``&``, ``<`` and ``>`` become entities,
and every line break and control character a space, one for one: so a line stays a line, and its size is known before it
is made.
"""

from __future__ import annotations

import re
from typing import Final

SEPARATOR: Final = " | "

# Everything that ends a line or moves a cursor somewhere: C0, DEL, C1, the Unicode separators, bidirectional controls
# (they reorder what a reader sees), the byte-order mark; and lone surrogates, which no provider accepts.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]|[\ud800-\udfff]"
)
_LONE: Final = re.compile("[\ud800-\udfff]")
_ENTITY: Final = re.compile("[&<>]")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def _safe(match: re.Match[str]) -> str:
    return "\ufffd" if "\ud800" <= match[0] <= "\udfff" else " "


def encodable(text: str) -> str:
    """Text as providers accept it: a lone surrogate is shown as one U+FFFD."""
    return _LONE.sub("\ufffd", text) if _LONE.search(text) else text


def one_line(text: str) -> str:
    """Text without anything that could end its line; lone surrogates become U+FFFD."""
    return _UNSAFE.sub(_safe, text)


def escape(text: str) -> str:
    """Data as it stands in a line: one line, and no markup."""
    line = one_line(text)
    return _ENTITY.sub(lambda match: _ENTITIES[match[0]], line) if _ENTITY.search(line) else line


def escape_attribute(text: str) -> str:
    """Data as it stands between the quotes of an attribute."""
    return escape(text).replace('"', "&quot;").replace("'", "&#39;")


def unescape(text: str) -> str:
    """The inverse of :func:`escape` for text of one line."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def escaped_size(text: str) -> int:
    """The bytes of :func:`escape`, UTF-8."""
    return len(escape(text).encode())


def line_head(ref: str, label: str = "") -> str:
    """What stands before the data of a line: the ref, and a label in brackets."""
    return f"{ref} [{label}]{SEPARATOR}" if label else f"{ref}{SEPARATOR}"


def line(ref: str, text: str, label: str = "") -> str:
    """One rendered line, with its end."""
    return f"{line_head(ref, label)}{escape(text)}\n"


def line_size(ref_bytes: int, escaped_bytes: int, label_bytes: int = 0) -> int:
    """The bytes of a rendered line from the bytes of its parts; a label costs its brackets and a space."""
    return ref_bytes + (label_bytes + 3 if label_bytes else 0) + len(SEPARATOR) + escaped_bytes + 1


def outcome_label(failed: int, interrupted: int) -> str:
    """The label of an inner shared line: what under it was not completed, counted from structure (§ 5)."""
    counted = ((failed, "failed"), (interrupted, "interrupted"))
    return ", ".join(f"{count} {word}" for count, word in counted if count)


def publication_label(session_id: str, outcome: str) -> str:
    """The label of a publication's own line: its session, and how it ended unless it was completed."""
    return session_id if outcome == "completed" else f"{session_id} {outcome}"


def block(name: str, attributes: dict[str, str | int], body: str) -> str:
    """A structural block around rendered lines."""
    head = "".join(f' {key}="{escape_attribute(str(value))}"' for key, value in attributes.items())
    return f"<{name}{head}>\n{body}</{name}>"
