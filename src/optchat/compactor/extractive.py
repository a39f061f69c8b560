"""
The embedded default summarizer: extractive, deterministic, without a model, a key or a server.

Decides: which clauses of the sources stand for them. Refuses to know: prompts; it reads ``SummaryRequest.sources``
alone.

A text of its own is lines ``<kind>: clause; clause``, one for each author in turn, in the order of the sources, and
at the end ``also: name, name``: paths and identifiers of what was left out, because what is absent is never found.
What it says stands in the sources in the same words, as whole sentences; only labels, line ends, list bullets and
bold marks are its own affair. Where not one clause fits, the beginning of a source is cut at a character and ends in
``…`` and its size.

Every text it makes keeps the rules of :func:`optchat.core.summarizing.judge`, for any sources whatever: it is what
stands between a user without a key and a memory that is never ready.

What it prefers was chosen by measurement on real sessions: ``docs/decisions/0005-embedded-summarizer.md``.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from typing import Final

from optchat.compactor.clauses import (
    NAMES_KIND,
    Clause,
    measure,
    read,
    source_clauses,
    tidy,
)
from optchat.core.clip import clip
from optchat.core.records import readable_bytes
from optchat.core.render import escaped_size
from optchat.core.speakers import OUTCOME_MARKS, STAND_IN_MARK, quote_labels
from optchat.core.summarizing import SummaryReply, SummaryRequest

_KIND_VALUE: Final[dict[str, float]] = {
    "user": 3.0,
    "note": 2.0,
    "report": 2.0,
    "assistant": 2.5,
    "": 2.0,
    "tool_result": 0.4,
    "tool_call": 0.3,
}
_FILLER: Final = re.compile(
    r"(?:now |ok(?:ay)?,? |good[,.!]? |great[,.!]? |perfect[,.!]? |excellent[,.!]? |sure[,.!]? )*"
    r"(?:let me|let's|i'll|i will|i'm going to|i need to|i have|now i|now let|here(?:'s| is| are)|looking at|"
    r"you're (?:absolutely )?right|great|perfect|excellent|done|good|sure|thanks|thank you|all tests pass\w*|"
    r"would you like|want me to|\[request interrupted|shall i|ready)\b",
    re.IGNORECASE,
)
_NAMES_SHARE: Final = 0.12  # of the limit, kept for names when sentences do not all fit
_CARRIED: Final = 1.0
_LONG_PLACE: Final = 6


class ExtractiveSummarizer:
    """Chooses whole clauses by rule. Deterministic under its name, thread-safe, linear in its input."""

    @property
    def name(self) -> str:
        return "extractive-1"

    @property
    def window_tokens(self) -> int:
        return 65_536

    def summarize(self, request: SummaryRequest, /) -> SummaryReply:
        """The summary of a request's sources; never raises and never overshoots."""
        return SummaryReply(extract(request))


def extract(request: SummaryRequest) -> str:
    """The text of :class:`ExtractiveSummarizer`: within both limits of the request."""
    limit = request.limit_bytes
    heaviest = _heaviest(request)
    mark = OUTCOME_MARKS[request.outcome] if request.outcome is not None else ""
    clauses: list[Clause] = []
    for source in request.sources:
        clauses.extend(source_clauses(source, clauses[-1].run + 1 if clauses else 0))
    for clause in clauses:
        if mark and mark not in clause.mark:
            clause.mark = mark + clause.mark
    names = [clause for clause in clauses if clause.kind == NAMES_KIND]
    chosen, left_out = _choose(
        request, [clause for clause in clauses if clause.kind != NAMES_KIND], bool(names), limit, heaviest
    )
    text = _composed(chosen)
    while chosen and not _fits(text, limit, heaviest):
        chosen.remove(min(chosen, key=lambda clause: clause.value))
        text = _composed(chosen)
    if not chosen:
        return _cut(request, mark, limit, heaviest)
    return _with_names(text, left_out, names, mark, limit, heaviest)


def _heaviest(request: SummaryRequest) -> int | None:
    """The most bytes as rendered; a request made by hand may leave it to the sources of a merge to tell."""
    if request.limit_escaped_bytes is not None or request.purpose != "merge":
        return request.limit_escaped_bytes
    return sum(escaped_size(source.text) for source in request.sources) + 1


def _fits(text: str, limit: int, heaviest: int | None) -> bool:
    return len(text.encode()) <= limit and (heaviest is None or escaped_size(text) <= heaviest)


def _score(clause: Clause, last_place: int, outcome_mark: bool) -> None:
    """What a clause is worth by itself: its author, the passage, its place, and what kind of statement it is."""
    reading = read(clause.text)
    clause.names = reading.names
    value = _KIND_VALUE[clause.kind] * clause.weight
    if reading.words < 3:
        value *= 0.25 if not clause.names else 0.5  # a heading, a fragment of code
    elif reading.words * 2 < reading.tokens:
        value *= 0.5  # mostly code
    value *= 1.0 + 0.2 * min(reading.cues, 4)
    if reading.failed and clause.kind == "tool_result":
        value *= 4.0 if clause.text.startswith("error: ") else 2.5
    elif reading.failed:
        value *= 1.3
    elif outcome_mark and clause.kind == "assistant":
        value *= 0.6  # in a turn that failed, what went wrong matters more than what was claimed
    if clause.kind == "user":
        value *= 2.0 if clause.place == 0 else 1.0 if clause.place < _LONG_PLACE else 0.4  # the rest is mostly pasted
    elif clause.kind in ("assistant", "report") and clause.place in (0, last_place):
        value *= 1.2
    if _FILLER.match(clause.text):
        value *= 0.35
    if clause.mark.startswith("["):
        value += 6.0
    clause.value = value


def _choose(
    request: SummaryRequest, clauses: list[Clause], has_names: bool, limit: int, heaviest: int | None
) -> tuple[list[Clause], list[Clause]]:
    """The clauses that stand for all, in their order, and those that do not."""
    last_place: dict[int, int] = {}
    for clause in clauses:
        last_place[clause.run] = clause.place
    outcome_mark = request.outcome not in (None, "completed")
    heap: list[tuple[float, int, int]] = []
    total = 0
    for index, clause in enumerate(clauses):
        measure(clause)
        total += clause.bytes_ + 2
        _score(clause, last_place[clause.run], outcome_mark)
        heap.append((-_density(clause, clause.names), index, 0))
    room = limit
    if has_names or total > limit:
        room = limit - int(limit * _NAMES_SHARE)
    room_escaped = heaviest if heaviest is not None else limit * 8
    heapq.heapify(heap)
    covered: set[str] = set()
    words: set[str] = set()
    runs: set[int] = set()
    picked: list[int] = []
    version = 0
    while heap and room > 8:
        _, index, made = heapq.heappop(heap)
        clause = clauses[index]
        if made != version:
            # Names that another chosen clause has already are worth nothing twice: value it again, and queue it again.
            fresh = [name for name in clause.names if name not in covered]
            again = -_density(clause, fresh)
            if heap and again > heap[0][0]:
                heapq.heappush(heap, (again, index, version))
                continue
        head = 0 if clause.run in runs else len(clause.mark.encode()) + len(clause.kind) + 2
        if clause.bytes_ + head + 2 > room or clause.escaped + head + 2 > room_escaped or clause.text in words:
            continue
        picked.append(index)
        runs.add(clause.run)
        words.add(clause.text)
        covered.update(clause.names)
        room -= clause.bytes_ + head + 2
        room_escaped -= clause.escaped + head + 2
        version += 1
    taken = set(picked)
    return [clauses[index] for index in sorted(picked)], [
        clause for index, clause in enumerate(clauses) if index not in taken
    ]


def _density(clause: Clause, fresh: Sequence[str]) -> float:
    """Worth for its bytes: exact names that are new raise it; a short one goes before a long one of the same worth."""
    return clause.value * (1.0 + 0.3 * min(len(fresh), 5)) / math.pow(clause.bytes_ + 40, 0.6)


def _composed(chosen: Sequence[Clause]) -> str:
    lines: list[str] = []
    head: tuple[str, str] | None = None
    for clause in chosen:
        if head != (clause.mark, clause.kind):
            head = (clause.mark, clause.kind)
            if lines and lines[-1][-1] not in ".!?:;。！？":
                lines[-1] += ";"
            lines.append(clause.mark + (f"{clause.kind}: " if clause.kind else "") + clause.text)
        else:
            lines[-1] += (" " if lines[-1][-1:] in ".!?:;。！？" else "; ") + clause.text
    return "\n".join(line.rstrip() for line in lines)


def _name_worth(name: str) -> float:
    """Files, flags and long identifiers lead back to what was done; numbers and short words hardly do."""
    if len(name) < 4 or (name[0] == "-" and name[1] != "-"):
        return 0.1
    if not any(char.isalpha() for char in name):
        return 0.3
    return 1.0


def _short_name(name: str) -> str:
    """A long path by its last two parts: they name it, and the sentence that has it whole is found by them."""
    if len(name) > 32 and "/" in name and "://" not in name:
        parts = name.rstrip("/").rsplit("/", 2)
        return "/".join(parts[-2:])
    return name


def _with_names(
    text: str, left_out: Sequence[Clause], names: Sequence[Clause], mark: str, limit: int, heaviest: int | None
) -> str:
    """The text and, in the room that is left, the exact names of what it does not say, the most telling first."""
    worth: dict[str, float] = {}
    for clause in left_out:
        for name in clause.names:
            worth[name] = max(worth.get(name, 0.0), clause.value * _name_worth(name))
    for clause in names:
        for place, name in enumerate(clause.names):
            worth[name] = max(worth.get(name, 0.0), _CARRIED / (1 + 0.15 * place))
    head = f"{'' if text[-1] in '.!?:;。！？' else ';'}\n{mark}{NAMES_KIND}: "
    room = limit - len(text.encode()) - len(head.encode())
    room_escaped = heaviest - escaped_size(text) - escaped_size(head) if heaviest is not None else limit * 8
    kept: list[str] = []
    have = text
    for name in sorted(worth, key=lambda name: (-worth[name] / (len(name) + 12), name)):
        short = _short_name(name)
        if room <= 3:
            break
        cost, cost_escaped = len(short.encode("utf-8", "replace")) + 2, escaped_size(short) + 2
        if cost > room + 2 or cost_escaped > room_escaped + 2 or short in have or quote_labels(short) != short:
            continue
        kept.append(short)
        have += f" {short}"
        room -= cost
        room_escaped -= cost_escaped
    if not kept:
        return text
    whole = f"{text}{head}{', '.join(kept)}"
    return whole if _fits(whole, limit, heaviest) else text


def _cut(request: SummaryRequest, mark: str, limit: int, heaviest: int | None) -> str:
    """What is shown where no clause fits: the beginning of a source, cut; else that there is nothing to read in it."""
    bound = heaviest if heaviest is not None else limit * 8
    best = ""
    for source in request.sources:
        head = mark + (f"{STAND_IN_MARK} " if source.stand_in and STAND_IN_MARK[:-1] not in source.text[:24] else "")
        label = "" if source.kind == "summary" else f"{source.kind}: "
        size = len(source.text.encode("utf-8", "surrogatepass"))
        # Only the beginning can be shown, so only that much is tidied, however long the text is.
        said = source.text.removeprefix(label)
        start = tidy(said[: 8 * limit + 64])
        whole_bytes = None if len(said) <= 8 * limit + 64 else size
        for front in (head + label, head):
            room, room_escaped = limit - len(front.encode()), bound - escaped_size(front)
            shown = clip(quote_labels(start), room, room_escaped, whole_bytes=whole_bytes)
            if shown[:1] not in ("", "…") and any(char.isalnum() or char > "\x7f" for char in shown):
                return front + shown
            plain = f"{front}[{readable_bytes(size)} without readable text]"
            if not best and _fits(plain, limit, heaviest):
                best = plain
    if best:
        return best
    # Nothing as small as this is asked for outside of tests; even then the reply is a summary by the rules.
    return next((small for small in (f"{mark}…", "…", "-") if _fits(small, limit, heaviest)), "-")
