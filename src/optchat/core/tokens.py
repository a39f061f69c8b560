"""
Token counts without a network (§ 7).

Decides: how many tokens a text takes at most under the encodings tested, cl100k_base and o200k_base.
Refuses to know: models, and exact counts. Those are :mod:`optchat.engine.tokenizers`'s.

How it bounds. Both encodings first cut text into pieces (words, runs of digits, of punctuation, of white space) and
then merge bytes within a piece. The cut here is the same or finer, and a piece costs:

- 1, if the lexicon knows it as one token of both vocabularies;
- for other letters, three tokens to four letters: where two letters have a merge, they never both stay alone, so that
  three letters make two tokens at most; and more where letters stand together that have none, as in ``qzqz``;
- for punctuation a token a character; for digits one to three; for a run of one kind of white space as the longest
  merges give;
- outside ASCII, each character alone: what the worse vocabulary needs for it, 1 to 4.

Two more tokens a text stand for pieces that merge worse as a whole than their parts do (``timestampran``). A text built
of nothing but these passes the bound: that word a hundred times counts 203, and is 501. Only a token a byte bounds
every text, and would leave a quarter of each window. The tests compare with the true counts, kind by kind and line by
line; for text that somebody may have made up to be counted wrong there are the exact tokenizers.

Invariants: 0 for "" only; deterministic; ``count(a + b) <= count(a) + count(b)`` wherever a ends a line, so lines may
be counted apart and added.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, lru_cache
from typing import Final

from optchat.core import lexicon

_CHUNK: Final = 1 << 18  # characters: the pieces of a 50 MB result must not all be in memory at once
_SHORTEST_STEM: Final = 4  # shorter ones occur in random letters, and would make the bound false there
_LONGEST_WORD: Final = 24  # no word: a longer run is not worth the time of cutting stems from it
_JOINTS: Final = 2  # see above: no kind tested has a text that falls further below

# Contractions; a word, with the space before it, cut where its case changes; punctuation with the line feed that ends
# it; digits by three; white space but for the last, which belongs to what follows; anything else alone.
_PIECE: Final = re.compile(
    r"'(?:[sdmt]|ll|ve|re)(?![a-z])"
    r"| ?(?:[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[!-/:-@\[-`{-~]+\n?)"
    r"|[0-9]{1,3}|\n+| +(?!\S)|\t+(?!\S)|(?:\r\n)+|.",
    re.DOTALL,
)

# Of letters of one case, the pairs that are no token of one vocabulary or the other: by the first, what follows it.
_APART: Final = (
    "bq fjz gjkq hj jgvwxyz kqxz lq mz nq oq qfgjkovyz rj tjq uq vqz wqvz xghjkquvw yfjqv zgjqrv"
    " BQZ CJQZ DQZ EJY FJQVZ GJKQZ HJ IY JFGHLNQUWXYZ KJQUXZ LHJQWXZ MZ NQ OJQYZ PQZ QDFGHIJKOVWXYZ RJQZ TJQ UHJOQWZ"
    " VHJQUWXYZ WJQUVYZ XGHJKNOQUVWZ YBDFHIJKQRUVX ZBCDGIJKLMPQSTUV"
)
_BREAK: Final = re.compile("|".join(f"(?<={pairs[0]})(?=[{pairs[1:]}])" for pairs in _APART.split()))

# Lines, each with the line feeds that follow it: no piece crosses such an end, so that their bounds add up exactly.
_LINE: Final = re.compile(r"[^\n]*\n(?:\r?\n)*|[^\n]+")
_LONG_LINE: Final = 2048  # characters: a longer line is no line of a view, and not worth remembering


def _numbers(ranges: str) -> frozenset[int]:
    found: set[int] = set()
    for item in ranges.split():
        first, _, last = item.partition("-")
        found.update(range(int(first, 16), int(last or first, 16) + 1))
    return frozenset(found)


@cache
def _single() -> dict[str, int]:
    """Every piece that is known to be one token; made at the first count, as importing should cost nothing."""
    known = dict.fromkeys(lexicon.RUNS, 1)
    known.update(dict.fromkeys(map(chr, _numbers(lexicon.ONE)), 1))
    for mask, words in lexicon.WORDS.items():
        for word in words.split():
            for bit, form in enumerate((word, word.capitalize(), word.upper())):
                if mask >> 2 * bit & 1:
                    known[form] = 1
                if mask >> 2 * bit & 2:
                    known[f" {form}"] = 1
    return known


@cache
def _blocks() -> tuple[frozenset[int], frozenset[int]]:
    return _numbers(lexicon.TWO), _numbers(lexicon.THREE)


def _most_tokens(letters: int) -> int:
    """Of letters that merge in pairs, whichever they are: alone, two, alone, two, alone."""
    return (2 * letters + 1) // 3


def _excess(word: str) -> int:
    """What letters that do not merge with their neighbours can add to a word's tokens."""
    if _BREAK.search(word) is None:
        return 0
    return sum(_most_tokens(len(run)) for run in _BREAK.split(word)) - _most_tokens(len(word))


def _letters(piece: str, known: dict[str, int]) -> int:
    """The bound of a word that is not known: known stems, then three tokens to four letters."""
    total = 0
    cut = len(piece) - 1 if len(piece) <= _LONGEST_WORD else 0
    while cut >= _SHORTEST_STEM:
        if piece[:cut] in known:
            total += 2 if total else 1  # words that run on are cut elsewhere by the real merges than where they meet
            piece = piece[cut:]
            if piece in known:
                return total + (1 if len(piece) < 4 else 3)
            cut = len(piece)
        cut -= 1
    return total + (3 * len(piece.lstrip(" ")) + 3) // 4 + _excess(piece)


def _punctuation(piece: str, known: dict[str, int]) -> int:
    if piece[-1] == "\n":
        return known.get(piece[:-1]) or _punctuation(piece[:-1], known) + 1
    if len(piece) > 4 and piece.count(piece[-1]) == len(piece):
        return (len(piece) + 4) // 2  # pairs of one character are tokens, whatever the character
    return len(piece)


def _bound(piece: str, known: dict[str, int]) -> int:
    if piece[-1].isalpha() and piece[-1] < "\x7f":
        return 1 if piece[0] == "'" else _letters(piece, known)
    first, size = piece[0], len(piece)
    if first > "\x7f":
        block = ord(first) >> 6
        two, three = _blocks()
        if block < 0x20 or block in two:
            return 2
        return 3 if block < 0x400 or block in three else 4
    if first == " " and size > 1 and piece[1] == " ":
        return 1 if size < 80 else (size + 127) // 128 + 1
    if size == 1 or first.isdigit():
        return 1
    if first in "\t\n":
        return 1 + size // 11
    if first == "\r":
        return 1 + size // 5
    return _punctuation(piece, known)


def _total(text: str) -> int:
    """The bound of all pieces of a text."""
    known = _single()
    pieces = Counter(_PIECE.findall(text))
    return sum((known.get(piece) or _bound(piece, known)) * times for piece, times in pieces.items())


# A context is hundreds of lines, of which a later one repeats nearly all: 16 ms for 120 KB, counted anew each time.
_line_total: Final = lru_cache(maxsize=8192)(_total)


class UpperBoundTokenizer:
    """
    Counts at most too much: for every kind of text tested, no fewer tokens than cl100k_base and o200k_base make of it.

    English and code come out at 1.3 to 1.5 times the true count, other scripts at up to 2.5. Thread-safe.
    """

    @property
    def name(self) -> str:
        return "upper-bound-1"

    def count(self, text: str, /) -> int:
        """The bound in tokens, for text of any size; the special tokens of an encoding count as the text they are."""
        if not text:
            return 0
        if _LONG_LINE < len(text) <= _CHUNK:
            return _JOINTS + sum(
                _line_total(line) if len(line) <= _LONG_LINE else _total(line) for line in _LINE.findall(text)
            )
        total = _JOINTS
        start = 0
        while start < len(text):
            end = start + _CHUNK
            if end < len(text):
                end = text.rfind("\n", start, end) + 1 or end
            total += _total(text[start:end])
            start = end
        return total
