"""
Ranking (§ 8): which of a bounded set of candidates answers a question best.

Decides: how much a match is worth. BM25 over the words; phrases, nearness, who speaks, and what the rest of the turn
says count besides.
Refuses to know: where candidates come from, and anything that the reader may not see.

Word frequencies come counted under the reader's snapshot, up to a cap, and everything else is a constant: neither the
number of documents nor their mean length enters, so what is hidden cannot move a rank. The constants are round numbers
from a plateau, found by trying many on one set of real questions (``benchmarks/recall.py``): they are tuned, not
proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from optchat.core.records import KIND_NUMBER, SUMMARY_KIND

FREQUENCY_CAP: Final = 500  # a word in more documents than this is as common as one in this many
_REFERENCE: Final = 4000  # the number of documents that a frequency is compared with: a constant, see above
_SATURATION: Final = 1.6  # BM25's k1
_LENGTH: Final = 0.75  # BM25's b
_USUAL_WORDS: Final = 100  # BM25's average length: a constant, see above
_TURN: Final = 0.5  # what a word is worth that only another document of the same turn has
_PHRASE: Final = 0.3  # what a phrase is worth beside its words
_NEARNESS: Final = 0.1  # what it adds if the words stand close together
_NEAR_WORDS: Final = 20
_NEAR_PLACES: Final = 40  # of one word, that nearness looks at
_NEAR_CANDIDATES: Final = 100  # nearness only orders those that are near the top without it
_CONCLUSION: Final = 1.25  # the answer that a turn ended with: what came out, where the rest is how

# An answer states, a request asks, a dump contains: the same words are worth most where somebody concludes.
_VOICE: Final[dict[int, float]] = {
    KIND_NUMBER["user"]: 1.0,
    KIND_NUMBER["assistant"]: 1.3,
    KIND_NUMBER["tool_call"]: 0.75,
    KIND_NUMBER["tool_result"]: 0.85,
    KIND_NUMBER["report"]: 1.3,
    KIND_NUMBER["note"]: 1.3,
    SUMMARY_KIND: 1.0,
}


@frozen
class Candidate:
    """
    A document that holds some word of the query.

    ``counts``: how often every scored word, and then every phrase, stands in it; ``places`` says where, in words from
    the beginning. ``group``: what documents of the same turn have in common; None if nothing. ``concludes``: it is the
    last of its turn.
    """

    key: int
    kind: int
    words: int
    group: int | None
    concludes: bool
    counts: Sequence[int]
    places: Callable[[], Sequence[Sequence[int]]]


@frozen
class Weights:
    """
    How rare the scored words, and then the phrases, are among what the reader may see.

    ``word_frequencies``, ``phrase_frequencies``: documents with each, counted up to the cap. ``leading``: which phrases
    put their documents before all others.
    """

    word_frequencies: tuple[int, ...]
    phrase_frequencies: tuple[int, ...]
    leading: tuple[bool, ...]


def rarity(frequency: int) -> float:
    """The weight of a word in so many documents; 0 of one that is nowhere."""
    return math.log(1 + _REFERENCE / min(frequency, FREQUENCY_CAP)) if frequency else 0.0


def _match(weight: float, count: int, words: int) -> float:
    norm = _SATURATION * (1 - _LENGTH + _LENGTH * words / _USUAL_WORDS)
    return weight * count * (_SATURATION + 1) / (count + norm)


def _nearness(places: Sequence[Sequence[int]], weights: Sequence[float]) -> float:
    """The greatest weight of distinct words within a stretch of the text."""
    standing = sorted((place, word) for word, found in enumerate(places) for place in found[:_NEAR_PLACES])
    inside = [0] * len(places)
    best = held = 0.0
    first = 0
    for place, word in standing:
        if not inside[word]:
            held += weights[word]
        inside[word] += 1
        while place - standing[first][0] >= _NEAR_WORDS:
            left = standing[first][1]
            inside[left] -= 1
            if not inside[left]:
                held -= weights[left]
            first += 1
        best = max(best, held)
    return best


def _voice(candidate: Candidate) -> float:
    concludes = candidate.concludes and candidate.kind == KIND_NUMBER["assistant"]
    return _VOICE.get(candidate.kind, 1.0) * (_CONCLUSION if concludes else 1.0)


def rank(candidates: Sequence[Candidate], weights: Weights) -> list[int]:
    """
    The candidates' keys, best first.

    Documents with more of the leading phrases come before all others. Among equals the newer document comes first: the
    order is total, and the same in whatever order the candidates were found.
    """
    count = len(weights.word_frequencies)
    rare = [rarity(frequency) for frequency in weights.word_frequencies]
    rare_phrases = [rarity(frequency) for frequency in weights.phrase_frequencies]
    matched: list[list[float]] = []
    turns: dict[int, list[float]] = {}
    for candidate in candidates:
        own = [
            _match(weight, found, candidate.words) if found else 0.0
            for weight, found in zip(rare, candidate.counts, strict=False)
        ]
        matched.append(own)
        if candidate.group is not None:
            said = turns.setdefault(candidate.group, [0.0] * count)
            for place, value in enumerate(own):
                if value > said[place]:
                    said[place] = min(value, rare[place])
    scored: list[tuple[int, float, Candidate]] = []
    for candidate, own in zip(candidates, matched, strict=True):
        score = sum(own)
        if candidate.group is not None:
            said = turns[candidate.group]
            score += _TURN * sum(there - here for there, here in zip(said, own, strict=True) if there > here)
        leading = 0
        for place, found in enumerate(candidate.counts[count:]):
            if found:
                score += _PHRASE * _match(rare_phrases[place], found, candidate.words)
                leading += weights.leading[place]
        scored.append((leading, score * _voice(candidate), candidate))
    scored.sort(key=_order)
    top = [
        (leading, score * (1 + _NEARNESS * _nearness(candidate.places()[:count], rare) / (sum(rare) or 1.0)), candidate)
        for leading, score, candidate in scored[:_NEAR_CANDIDATES]
    ]
    top.sort(key=_order)
    return [candidate.key for _, _, candidate in top + scored[_NEAR_CANDIDATES:]]


def _order(entry: tuple[int, float, Candidate]) -> tuple[int, float, int]:
    leading, score, candidate = entry
    return -leading, -score, -candidate.key
