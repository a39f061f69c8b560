"""
Cutting text (§ 10).

Decides: where a text that is too long may be cut, and how the cut says so.
Refuses to know: why it is too long.

A cut never splits a code point, nor what a reader sees as one character: a letter and its marks, an emoji joined with
others, a flag, a Hangul syllable of parts, a line end of two characters. A cut text ends in ``…`` and the size of the
whole, so that it cannot pass for all that was said.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from optchat.core.records import readable_bytes
from optchat.core.render import escaped_size

ELLIPSIS: Final = "…"
_JOINER: Final = "\u200d"
_CLUSTER_CHARS: Final = 64  # no emoji sequence in use is longer; what is was built to be


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _extends(char: str) -> bool:
    """Whether a character belongs to the one before it: marks, joiners, skin tones, tags, Hangul vowels and finals."""
    if char < "\u0300":
        return False
    return (
        char == _JOINER
        or unicodedata.category(char)[0] == "M"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or "\u1160" <= char <= "\u11ff"
        or "\ud7b0" <= char <= "\ud7fb"
        or char in "\uff9e\uff9f"
    )


def _utf8_bytes(char: str) -> int:
    code = ord(char)  # a lone surrogate counts as the three bytes of the U+FFFD that is shown for it
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def is_boundary(text: str, index: int) -> bool:
    """Whether a text may be cut before ``index``: a close reading of the grapheme clusters of Unicode's Annex 29."""
    if not 0 < index < len(text):
        return True
    before, after = text[index - 1], text[index]
    if after < "\u0300" and before < "\u0300":
        return not (before == "\r" and after == "\n")
    if _extends(after) or before == _JOINER:
        return False
    if _is_flag(before) and _is_flag(after):
        # Flags are pairs: how many stand before decides, and the run is walked once, backwards.
        run = index
        while run and _is_flag(text[run - 1]):
            run -= 1
        return (index - run) % 2 == 0
    return True


def cut_index(text: str, limit_bytes: int, limit_escaped_bytes: int | None = None) -> int:
    """
    How many characters of a text may stay.

    Args:
        limit_bytes: UTF-8.
        limit_escaped_bytes: of what stays as rendered (:func:`optchat.core.render.escape`); None: without limit.

    Returns:
        The largest boundary within the limits. Where a cluster of absurd length (a letter under hundreds of marks)
        alone exceeds them, the last code point within: something is then better shown than nothing.
    """
    room, room_escaped = limit_bytes, limit_escaped_bytes
    index = 0
    while index < len(text):
        char = text[index]
        room -= _utf8_bytes(char)
        if room_escaped is not None:
            room_escaped -= escaped_size(char)
        if room < 0 or (room_escaped is not None and room_escaped < 0):
            break
        index += 1
    else:
        return len(text)
    whole = index
    while whole and not is_boundary(text, whole):
        whole -= 1
    if whole or any(is_boundary(text, end) for end in range(1, _CLUSTER_CHARS)):
        return whole
    return index


def clip(text: str, limit_bytes: int, limit_escaped_bytes: int | None = None, *, whole_bytes: int | None = None) -> str:
    """
    A text that fits, whole or cut; a cut one ends in ``…`` and the size of the whole.

    Args:
        limit_bytes: UTF-8, the ending included.
        limit_escaped_bytes: likewise, as rendered.
        whole_bytes: the size to tell, where ``text`` itself is already a part of something.

    Returns:
        "" if not even the ending fits.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    fits_escaped = limit_escaped_bytes is None or escaped_size(text) <= limit_escaped_bytes
    if size <= limit_bytes and fits_escaped and whole_bytes is None:
        return text
    ending = f"{ELLIPSIS} ({readable_bytes(size if whole_bytes is None else whole_bytes)})"
    room = limit_bytes - len(ending.encode())
    room_escaped = None if limit_escaped_bytes is None else limit_escaped_bytes - len(ending.encode())
    if room < 0 or (room_escaped is not None and room_escaped < 0):
        return ""
    return text[: cut_index(text, room, room_escaped)].rstrip() + ending
