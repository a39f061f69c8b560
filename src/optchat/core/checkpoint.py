"""
The execution checkpoint (§ 7): which messages of a long running turn give way to lines about them.

Decides: what of an active transcript can be left out together without breaking what a provider demands, how much of it
is left out, and how the lines that stand for it are cut to their room.
Refuses to know: any host's format, where records are stored, and what a line says.

A *step* is what the assistant said and called, with the results: a group of calls, whole. Steps are left out whole and
from the oldest on. What the user said stays, always, and so does the newest step with calls and all that follows it;
so does a step that cannot be left out safely, with the reason.

Where the cut falls is a function of its arguments alone: the same transcript, counts and budget cut at the same place
in every process. It moves in large steps, so that a provider's cache keeps what follows it from call to call: of all
places that leave between a quarter of the room and all of it, the one that is the multiple of the highest power of two
(in tokens from the beginning) is taken. While a transcript grows by the room, that place moves three times at most; and
a larger window never cuts later than a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from attrs import frozen

from optchat.core.messages import BlobPart, HostMessage, TextPart
from optchat.core.pairing import calls_of, results_of
from optchat.core.projection import project
from optchat.core.refs import Span, exact_cover

ALLOWANCE: Final = 4  # of what active transcript and checkpoint may take, a quarter is for the checkpoint

UNSEALED: Final = "its messages are not sealed as they stand; observe() or add() them"
UNANSWERED: Final = "a call of it has no result yet"
SPOKEN: Final = "the user's words stand in the message that brings its results"
UNTOLD: Final = "the adapter does not tell whether a message that says nothing stands alone; give it stands_alone()"
SILENT: Final = "nothing of it is sealed"


@frozen
class Piece:
    """
    What is sent in one piece, as the cut sees it.

    ``records``: the sequence numbers that its parts are sealed under; None: it is not sealed as it stands. ``alone``:
    of a piece that says nothing, whether it may be sent whatever becomes of its neighbours, as instructions may;
    reasoning goes with what it led to. None: nobody tells.
    """

    tokens: int
    messages: tuple[HostMessage, ...]
    records: tuple[int, ...] | None
    alone: bool | None = None


@frozen
class Step:
    """Pieces that are left out together or not at all. ``bound``: why they cannot be; None: they can."""

    pieces: tuple[int, ...]
    tokens: int
    records: tuple[int, ...]
    calls: int
    bound: str | None


@frozen
class Outline:
    """A transcript with what of it can be left out, oldest first, and what it takes beside its steps."""

    steps: tuple[Step, ...]  # that can be left out
    fixed: int  # tokens of what stays whatever is cut: the user's words, instructions, steps that are bound
    newest: int  # tokens of the newest steps, which stay too
    why_not: str  # why no more can be left out

    @property
    def tokens(self) -> int:
        return self.fixed + self.newest + sum(step.tokens for step in self.steps)


@frozen
class Cut:
    """The first ``steps`` of an outline are left out; ``kept`` tokens stay, and ``room`` are for the checkpoint."""

    steps: int
    kept: int
    room: int


class _Open:
    """A step while its pieces come."""

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.tokens = self.calls = 0
        self.records: list[int] = []
        self.waiting: set[str] = set()
        self.answered = self.said = False
        self.bound: str | None = None

    def take(self, number: int, piece: Piece) -> None:
        self.pieces.append(number)
        self.tokens += piece.tokens
        if not piece.messages:
            if piece.alone is None:
                self.bind(UNTOLD)
            return
        self.said = True
        if piece.records is None:
            self.bind(UNSEALED)
        else:
            self.records += piece.records
        for message in piece.messages:
            made = [call.call_id for call in calls_of(message)]
            self.calls += len(made)
            self.waiting.update(made)
            answered = [result.call_id for result in results_of(message)]
            if not self.waiting.issuperset(answered):  # it answers a call of elsewhere, which stays
                self.bind(UNSEALED)
            self.waiting.difference_update(answered)
            self.answered = self.answered or bool(answered)

    def bind(self, reason: str) -> None:
        self.bound = self.bound or reason

    @property
    def whole(self) -> bool:
        return self.answered and not self.waiting

    def step(self) -> Step:
        if self.waiting:
            self.bind(UNANSWERED)
        if not self.said:
            self.bind(SILENT)
        return Step(tuple(self.pieces), self.tokens, tuple(self.records), self.calls, self.bound)


def steps_of(pieces: Sequence[Piece]) -> list[Step]:
    """
    A transcript's steps, in order. Pieces in none of them stay as they are: what the user said, and instructions.

    A message of the user's that also brings results belongs to their step, and binds it.
    """
    steps: list[Step] = []
    now = _Open()

    def close() -> None:
        nonlocal now
        if now.pieces:
            steps.append(now.step())
        now = _Open()

    for number, piece in enumerate(pieces):
        if not piece.messages:
            if piece.alone:
                continue
            if now.whole:  # reasoning leads what comes after it
                close()
            now.take(number, piece)
        elif _has_users_words(piece):
            if now.waiting or any(calls_of(message) or results_of(message) for message in piece.messages):
                now.take(number, piece)
                now.bind(SPOKEN)
            else:
                close()
        else:
            if now.whole and any(message.role == "assistant" for message in piece.messages):
                close()
            now.take(number, piece)
    close()
    return steps


def _has_users_words(piece: Piece) -> bool:
    return any(
        message.role == "user" and any(isinstance(part, (TextPart, BlobPart)) for part in message.parts)
        for message in piece.messages
    )


def outline(pieces: Sequence[Piece]) -> Outline:
    """What of a transcript can be left out, and what cannot."""
    steps = steps_of(pieces)
    newest = max((number for number, step in enumerate(steps) if step.calls), default=len(steps) - 1)
    older, rest = steps[: max(0, newest)], steps[max(0, newest) :]
    free = tuple(step for step in older if step.bound is None)
    bound = [step for step in older if step.bound is not None]
    why_not = bound[0].bound if bound and bound[0].bound else "what is left is the request and the newest calls"
    newest_tokens = sum(step.tokens for step in rest)
    total = sum(piece.tokens for piece in pieces)
    fixed = total - newest_tokens - sum(step.tokens for step in free)
    return Outline(free, fixed, newest_tokens, why_not)


def roundest(low: int, high: int) -> int:
    """Of the numbers from ``low`` to ``high``, 1 or more, the multiple of the highest power of two."""
    bit = ((low - 1) ^ high).bit_length() - 1
    return high >> bit << bit


def plan_cut(shape: Outline, limit: int, most: int, charge: Callable[[Sequence[Step]], int]) -> Cut | None:
    """
    How many of the oldest steps a checkpoint stands for.

    Args:
        limit: tokens that the active transcript may take together with the checkpoint.
        most: the same where that cannot be kept to: all that is left beside the least of memory.
        charge: the tokens of the shortest checkpoint for these steps.

    Returns:
        None: the transcript stays whole, since it is within the limit, or nothing is gained by leaving anything out.
    """
    total = shape.tokens
    if total <= limit or not shape.steps:
        return None
    ends = [0]
    for step in shape.steps:
        ends.append(ends[-1] + step.tokens)
    last = len(shape.steps)
    if charge(shape.steps) >= ends[last]:
        return None
    allowance = max(0, limit) // ALLOWANCE
    rest = ends[last] + shape.newest
    room = max(0, limit - allowance - shape.fixed)
    place = roundest(rest - room, rest - room // 4)
    first = next((number for number, end in enumerate(ends) if end >= place), last)
    for number in range(max(1, first), last + 1):
        kept = total - ends[number]
        shortest = charge(shape.steps[:number])
        if kept + shortest <= limit:
            return Cut(number, kept, max(shortest, min(allowance, limit - kept)))
    kept = total - ends[last]
    shortest = charge(shape.steps)
    return Cut(last, kept, max(shortest, min(allowance, most - kept)))


def runs_of(records: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Records as runs ``[start, end)`` without a gap, in order."""
    runs: list[list[int]] = []
    for record in sorted(records):
        if runs and runs[-1][1] == record:
            runs[-1][1] += 1
        else:
            runs.append([record, record + 1])
    return tuple((start, end) for start, end in runs)


def coarsest(runs: Iterable[tuple[int, int]]) -> tuple[Span, ...]:
    """The fewest lines that name these records and no other."""
    return tuple(span for start, end in runs for span in exact_cover(start, end))


def positions(runs: Iterable[tuple[int, int]]) -> tuple[Span, ...]:
    """Every position that a line for these records can have: those whose records are all among them."""
    found: list[Span] = []
    for root in coarsest(runs):
        level = [root]
        while level:
            found += level
            level = [child for span in level if span.count > 1 for child in span.children]
    return tuple(found)


@frozen
class Wording:
    """
    What a line costs at a position whose records are all left out: ``told`` with what is known of them, ``named`` with
    their kinds and sizes alone.
    """

    told: Callable[[Span], int]
    named: Callable[[Span], int]

    def shorter(self, span: Span) -> int:
        return min(self.told(span), self.named(span))


def choose_lines(runs: Sequence[tuple[int, int]], wording: Wording, room: int) -> tuple[dict[Span, bool], bool]:
    """
    Lines for records within a room of tokens: a line a record where they fit, else the older ones by coarser nodes.

    Returns:
        By position in order, whether the line tells what is known (else it only names the records); and whether they
        fit: the fewest lines of names are given where nothing does.
    """
    leaves = [Span(record, 1) for start, end in runs for record in range(start, end)]
    told = project(leaves, wording.told, room)
    if told.fits:
        return dict.fromkeys(told.spans, True), True
    found = project(leaves, wording.shorter, room)
    if found.fits:
        left, tells = room - found.cost, set[Span]()
        for span in reversed(found.spans):  # the newest first: what it found is most likely what the task is at
            more = wording.told(span) - wording.shorter(span)
            if more <= left:
                left -= more
                tells.add(span)
        return {span: span in tells for span in found.spans}, True
    roots = coarsest(runs)
    return dict.fromkeys(roots, False), sum(map(wording.named, roots)) <= room
