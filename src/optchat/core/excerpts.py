"""
Excerpts (§ 8): the stretch of a text that shows why it was found.

Decides: which words of a text are hits, which stretch shows most of them, and where it may be cut.
Refuses to know: how the text was found, and where it is shown: an excerpt is an exact stretch of its text, with ``…``
where it was cut; only lone surrogates become U+FFFD, since no reader could print them.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from optchat.core.render import encodable
from optchat.core.searching import Query
from optchat.core.words import RUN, normalized, run_words

EXCERPT_BYTES: Final = 240
_CUT: Final = "…"
_CUT_BYTES: Final = len(_CUT.encode())
_LEAD: Final = 60  # characters shown before the first hit, where there is room
_NEAR: Final = 40  # characters given up for a whole word
_MAX_HITS: Final = 4000  # of a text in which every word is a hit


def excerpt(text: str, query: Query) -> str:
    """
    A stretch of the text of at most 240 bytes of UTF-8 that shows as many different words of the query, as close
    together, as there is room for. It is cut between words, or between graphemes where a word is longer than that.
    """
    text = encodable(text)
    hits = _hits(text, query)
    first, last = _densest(hits) if hits else (0, 0)
    return _cut_out(text, first, last)


def _hits(text: str, query: Query) -> list[tuple[int, int, str]]:
    """Where words of the query stand: start, end, and the word."""
    plain = {phrase.words[0] for term in query.telling for phrase in term.words if not phrase.open_end}
    plain.update(word for term in query.telling for phrase in term.spellings for word in phrase.words)
    opening = {phrase.words[0] for term in query.telling for phrase in term.words if phrase.open_end}
    found: list[tuple[int, int, str]] = []
    for match in RUN.finditer(text):
        run = match[0] if match[0].isascii() else normalized(match[0])
        for word in run_words(run):
            if word in plain or (opening and word[:1] in opening):
                start, end = match.span()
                if end - start > len(word) + 3:  # a part of a longer run: show that part
                    place = match[0].lower().find(word if len(word) < 4 else word[:-1])
                    if place >= 0:
                        start, end = start + place, min(end, start + place + len(word) + 3)
                found.append((start, end, word))
        if len(found) >= _MAX_HITS:
            break
    return found


def _densest(hits: list[tuple[int, int, str]]) -> tuple[int, int]:
    """The stretch with the most different words that has room; of those the shortest, of those the first."""
    room = EXCERPT_BYTES - 2 * _CUT_BYTES
    best, chosen = (0, 0), hits[0][:2]
    inside: dict[str, int] = {}
    first = 0
    for place, (_, end, word) in enumerate(hits):
        inside[word] = inside.get(word, 0) + 1
        while first < place and (end - hits[first][0] > room or inside[hits[first][2]] > 1):
            left = hits[first][2]
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
            first += 1
        value = (len(inside), hits[first][0] - end)
        if value > best:
            best, chosen = value, (hits[first][0], end)
    return chosen


def _cut_out(text: str, first: int, last: int) -> str:
    """A stretch of at most 240 bytes that begins a little before its first hit and shows it in any case."""
    if len(text) <= EXCERPT_BYTES and len(text.encode()) <= EXCERPT_BYTES:
        return text
    start = _word_start(text, max(0, first - _LEAD), first)
    room = EXCERPT_BYTES - _CUT_BYTES - (_CUT_BYTES if start else 0)
    if len(text[start:last].encode()) > room:  # wide characters: what leads in gives way to what was found
        start = first
        room = EXCERPT_BYTES - _CUT_BYTES - (_CUT_BYTES if start else 0)
    shown = text[start : start + room].encode()[:room].decode("utf-8", "ignore")
    end = start + len(shown)
    if end < len(text):
        end = _word_end(text, max(start + 1, min(last, end)), end)
    elif start:
        spare = room + _CUT_BYTES - len(shown.encode())  # the text ends here: show more before
        before = text[max(0, start - spare) : start].encode()[-spare:].decode("utf-8", "ignore")
        start = _word_start(text, start - len(before), start)
    return f"{_CUT if start else ''}{text[start:end]}{_CUT if end < len(text) else ''}"


def _word_start(text: str, low: int, high: int) -> int:
    """The first place in [low, high] where a word begins; else where a grapheme does."""
    if low == 0:
        return 0
    for place in range(low, high):
        if text[place - 1].isspace() and not text[place].isspace():
            return place
    while low < high and _inside_grapheme(text, low):
        low += 1
    return low


def _word_end(text: str, low: int, high: int) -> int:
    """The last place in [low, high] where a word ends, if that is near; else where a grapheme does."""
    for place in range(high, max(low, high - _NEAR) - 1, -1):
        if text[place].isspace() and not text[place - 1].isspace():
            return place
    while high > low and _inside_grapheme(text, high):
        high -= 1
    return high


def _inside_grapheme(text: str, place: int) -> bool:
    """Whether a cut here would part what is read as one character: marks, joiners, modifiers, flags, CR LF."""
    before, after = text[place - 1], text[place]
    if before == "\u200d" or after == "\u200d" or (before == "\r" and after == "\n"):
        return True
    if unicodedata.category(after) in ("Mn", "Me", "Mc") or "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    flags = 0  # regional indicators pair from the left, so an odd number before the place leaves one without its half
    while flags < place and _is_flag(text[place - 1 - flags]):
        flags += 1
    return _is_flag(after) and flags % 2 == 1


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
