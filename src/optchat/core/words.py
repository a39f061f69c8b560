"""
The pre-tokenizer: which words a text has in the search index (§ 8).

Decides: where a word begins and ends, its parts, and the form under which it is indexed.
Refuses to know: the index, queries, ranking.

The index holds what :func:`words_of` returns, words parted by single spaces, and nothing else of the text. FTS deletes
an entry only by its exact text, so a version's answer never changes: another rule is another version, and an old one
stays here for as long as a file may hold its words. Of the interpreter's Unicode tables nothing is used but
normalization and case folding, which Unicode keeps stable for assigned characters.

Version 1:

- A *run* is a stretch of word characters. ASCII letters and digits are, all other ASCII is not, so ``push_sessions``,
  ``a/b`` and ``gpt-4o`` are several runs. Beyond ASCII everything is but the separators listed below.
- ``camelCase`` gives its parts and then the whole: ``camel cas camelcas``. So a phrase of prose finds an identifier,
  and an identifier typed in lower case does too.
- Scripts written without spaces give pairs of characters, and the last character alone: 中文字 gives ``中文 文字 字``.
  So two characters and more are a phrase of pairs, and a single one is the beginning of some word. Latin glued to them
  is a word apart.
- Inflection folds away (``retry``, ``retries`` and ``retried`` are one word), lightly: plurals, ``-ed``, ``-ing``,
  final ``e`` and ``y``. Stronger stemming was measured and found nothing more.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from optchat.core.errors import ConfigError
from optchat.core.records import PIECE_BYTES, to_bytes

VERSION: Final = 1
INDEXED_AT_ONCE_BYTES: Final = PIECE_BYTES  # a longer text is indexed by a job, in pieces of this size
MAX_WORD: Final = 64  # a longer run is cut: hashes and encoded bytes would else be words that nobody types
_MEMO_RUNS: Final = 60_000
_OVERLAP_BYTES: Final = 256  # of two pieces, so that a phrase across their border is found in one of them

# What parts words beyond ASCII: Latin-1 signs, general punctuation, currency, arrows to dingbats, CJK punctuation,
# surrogates, private use, vertical and small forms, halfwidth signs, specials, emoji, tags.
_SEPARATORS: Final = (
    "\x80-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb\xbf\xd7\xf7\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff\u2e00-\u2e7f\u3000-\u3004"
    "\u3008-\u3020\u3030\u303d\u303f\u30fb\ud800-\uf8ff\ufe10-\ufe1f\ufe30-\ufe6f\uff00-\uff0f\uff1a-\uff20"
    "\uff3b-\uff40\uff5b-\uff65\uffe0-\uffff\U0001f000-\U0001faff\U000e0000-\U000e01ef\U000f0000-\U0010ffff"
)
# Han with its extensions, kana, bopomofo, Hangul; Thai, Lao, Myanmar and Khmer are written without spaces as well.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u302f\u3031-\u303c\u3040-\u30fa\u30fc-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
# An English clitic belongs to its word and is dropped: "user's" is "user".
RUN: Final = re.compile(rf"(?:[0-9A-Za-z]|[^\x00-\x7f{_SEPARATORS}])+(?:['’](?:s|t|re|ll|ve|d|m)(?![0-9A-Za-z'’]))?")
_ASCII_RUN: Final = re.compile(r"[0-9A-Za-z]+(?:'(?:s|t|re|ll|ve|d|m)(?![0-9A-Za-z']))?")
_PART: Final = re.compile(
    rf"[A-Z]{{2,{MAX_WORD - 1}}}s(?![0-9A-Za-z])|[A-Z]{{1,{MAX_WORD}}}(?=[A-Z][a-z])"
    rf"|[A-Z]?[a-z0-9]{{1,{MAX_WORD - 1}}}|[A-Z0-9]{{1,{MAX_WORD}}}"
)
_SCRIPTS: Final = re.compile(rf"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")  # inside words, and never typed in a query
_UNSPACED_CHARACTER: Final = re.compile(f"[{_UNSPACED}]")
_VOWEL: Final = re.compile("[aeiouy]")


def normalized(text: str) -> str:
    """Text as its words are read from it: NFKC, without invisible joiners. ASCII is returned as it is."""
    if text.isascii():
        return text
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


def fold(word: str) -> str:
    """A word without its inflection; anything but four and more lower-case ASCII letters is returned as it is."""
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return word
    if word.endswith(("sses", "xes", "ches", "shes", "zes")) or (word.endswith("ies") and len(word) > 4):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        stem = len(word) - len(suffix)
        if stem >= 3 and word.endswith(suffix) and _VOWEL.search(word, 0, stem):
            word = word[:stem]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    if len(word) > 3:
        if word[-1] == "e":
            return word[:-1]
        if word[-1] == "y":
            return word[:-1] + "i"
    return word


def _script_words(stretch: str) -> Iterator[str]:
    """The words of a stretch of one kind of script."""
    if _UNSPACED_CHARACTER.match(stretch):
        for first in range(len(stretch) - 1):
            yield stretch[first : first + 2]
        yield stretch[-1]
    elif stretch.isascii():
        parts = _PART.findall(stretch)
        for part in parts:
            yield fold(part.lower() if len(part) < 3 or not part[-2].isupper() else part.removesuffix("s").lower())
        if len(parts) > 1 and len(stretch) <= MAX_WORD:
            yield fold(stretch.lower())
    else:
        folded = stretch.casefold()
        for first in range(0, len(folded), MAX_WORD):
            yield folded[first : first + MAX_WORD]


def _without_clitic(run: str) -> str:
    for mark in ("'", "’"):
        head, found, _ = run.partition(mark)
        if found:
            return head
    return run


def _run_words(run: str) -> str:
    run = _without_clitic(run)
    if run.isascii():
        return " ".join(_script_words(run))
    return " ".join(word for stretch in _SCRIPTS.findall(run) for word in _script_words(stretch))


class _Memo(dict[str, str]):
    """Runs repeat: most of a text's cost is looking its runs up here. Emptied when full, so that it stays bounded."""

    def __missing__(self, run: str) -> str:
        words = _run_words(run)
        if len(run) <= MAX_WORD:
            if len(self) >= _MEMO_RUNS:
                self.clear()
            self[run] = words
        return words


_memo: Final = _Memo()


def run_words(run: str) -> tuple[str, ...]:
    """The words of one run of normalized text, in the index's order."""
    return tuple(_memo[run].split(" "))


def words_of(text: str, version: int = VERSION) -> str:
    """
    The words under which a text is indexed, parted by single spaces; '' if it has none.

    Deterministic: the same text and version give the same words in every process, since an entry is deleted by them.

    Raises:
        ConfigError: a version that this optchat does not have.
    """
    if version != VERSION:
        raise ConfigError(f"this optchat has no pre-tokenizer of version {version}; upgrade it to read this file")
    pattern = _ASCII_RUN if text.isascii() else RUN
    return " ".join(map(_memo.__getitem__, pattern.findall(normalized(text))))


@frozen
class Phrase:
    """Consecutive words of the index. ``open_end``: the last one is only the beginning of a word."""

    words: tuple[str, ...]
    open_end: bool = False


def phrases_of(text: str) -> tuple[Phrase, ...]:
    """
    The ways in which normalized query text may stand in the index, each as one phrase; () if it has no word.

    As typed, and, where it holds camelCase, as it would be in lower case. The end of the text is no end of a word in a
    script without spaces, and an identifier at the end need not be written together: what the index adds there is left
    out.
    """
    runs = [_without_clitic(run) for run in RUN.findall(text)]
    if not runs:
        return ()
    typed = [word for run in runs for word in run_words(run)]
    lowered = [word for run in runs for word in run_words(run.lower())]
    last = _SCRIPTS.findall(runs[-1])[-1]
    open_end = False
    if _UNSPACED_CHARACTER.match(last):
        for words in (typed, lowered):
            if len(last) > 1:
                words.pop()
        open_end = len(last) == 1
    elif last.isascii() and len(_PART.findall(last)) > 1 and len(last) <= MAX_WORD:
        typed.pop()
    found = [Phrase(tuple(typed), open_end)]
    if lowered != typed:
        found.append(Phrase(tuple(lowered), open_end))
    return tuple(found)


def pieces(text: str) -> list[tuple[int, int]]:
    """
    Where a long text is cut into documents of its own: byte ranges of its UTF-8, at most 64 KiB each, in order.

    They cut between words, never within a character, and overlap by some words. A text that fits is one piece.
    """
    data = to_bytes(text)
    found: list[tuple[int, int]] = []
    start = 0
    while len(data) - start > INDEXED_AT_ONCE_BYTES:
        end = _word_border(data, start + INDEXED_AT_ONCE_BYTES)
        found.append((start, end))
        start = _word_border(data, end - _OVERLAP_BYTES)
    found.append((start, len(data)))
    return found


def _word_border(data: bytes, limit: int) -> int:
    """The last place at or before a limit, and near it, where a word ends; else where a character does."""
    window = data[limit - _OVERLAP_BYTES : limit]
    for space in (b"\n", b" "):
        place = window.rfind(space)
        if place >= 0:
            return limit - _OVERLAP_BYTES + place + 1
    while data[limit] & 0xC0 == 0x80:
        limit -= 1
    return limit
