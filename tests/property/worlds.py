"""
Lives of a memory, and what a plain model knows of them.

A world is a schedule with settings so small that lines merge, views shrink and summaries are made within forty steps.
The model hears every step and says which records, turns and outcomes there must be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field, frozen
from hypothesis import settings, strategies as st

import optchat
from optchat.core.refs import PublicationRef, SessionRef, Span, parse_ref
from optchat.testing import DeterministicSummarizer, Step, play, strategies, temporary_memory

# Each world is a database and up to forty commits: a fifth of a profile's examples takes the time of other laws' all.
assert settings.default is not None
FEW = settings(max_examples=max(6, settings.default.max_examples // 5))

SMALL = optchat.Policy(node_bytes=64, view_high_bytes=400, view_low_bytes=150, page_bytes=16, job_attempts=1)
POLICIES = (
    SMALL,
    optchat.Policy(node_bytes=100, view_high_bytes=900, view_low_bytes=500, page_bytes=7, job_attempts=1),
    optchat.Policy(node_bytes=64, view_high_bytes=120, view_low_bytes=10, page_bytes=64, job_attempts=1, leaf_window=1),
)
BUDGET = optchat.Budget(window=200_000, output=1_000)


def _sometimes(request: optchat.SummaryRequest) -> BaseException | None:
    """Fails for the same sources always, so that some nodes are stand-ins and a run can be repeated."""
    size = sum(len(source.text) for source in request.sources)
    return ValueError("no summary today") if size % 3 == 0 else None


@frozen
class World:
    """Settings and a schedule."""

    schedule: tuple[Step, ...]
    policy: optchat.Policy
    summarizer: str

    def make_summarizer(self) -> optchat.Summarizer | None:
        if self.summarizer == "extractive":
            return None
        return DeterministicSummarizer(fail=_sometimes if self.summarizer == "failing" else None)


def worlds(*, sessions: int = 3, scopes: int = 1, max_steps: int = 40) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        strategies.schedules(sessions=sessions, scopes=scopes, max_steps=max_steps, lifecycle=False),
        st.sampled_from(POLICIES),
        st.sampled_from(("extractive", "deterministic", "failing")),
    )


# ---- the model -----------------------------------------------------------------------------------------------------


@define(eq=False)
class ModelTurn:
    """A turn as it must be: its parts in order, where its records start, and how it ended."""

    scope: str
    session: str
    turn_id: str
    start: int
    messages: list[optchat.HostMessage] = field(factory=list)
    outcome: optchat.Outcome | None = None

    @property
    def parts(self) -> list[optchat.Part]:
        return [part for message in self.messages for part in message.parts]

    @property
    def end(self) -> int:
        return self.start + len(self.parts)


@define
class Model:
    """Every turn of every session, in the order in which they began."""

    turns: dict[tuple[str, str], list[ModelTurn]] = field(factory=dict)

    def feed(self, step: Step, turn: optchat.Turn[optchat.HostMessage] | None) -> None:
        """Hear of a step that was done."""
        if turn is None:
            return
        name = (step.scope, step.session)
        mine = self.turns.setdefault(name, [])
        if step.action == "begin":
            if mine and mine[-1].outcome is None:
                mine[-1].outcome = "interrupted"
            mine.append(ModelTurn(*name, turn.id, mine[-1].end if mine else 0))
        if step.message is not None:
            mine[-1].messages.append(step.message)
        if step.action == "end":
            mine[-1].outcome = step.outcome

    def in_scope(self, scope: str) -> dict[str, list[ModelTurn]]:
        return {session: turns for (of, session), turns in self.turns.items() if of == scope}

    def records(self, scope: str, session: str) -> list[optchat.Part]:
        return [part for turn in self.turns.get((scope, session), []) for part in turn.parts]

    def turn(self, turn_id: str) -> ModelTurn:
        return next(turn for turns in self.turns.values() for turn in turns if turn.turn_id == turn_id)


@frozen
class Moment:
    """A world after a step: the memory, the model, and the turns that are open, by session."""

    memory: optchat.Memory
    model: Model
    turns: dict[tuple[str, str], optchat.Turn[optchat.HostMessage]]
    step: Step | None
    is_last: bool


@contextmanager
def lived(world: World, scope: str = "test") -> Iterator[Iterator[Moment]]:
    """The moments of a world; at the last one everything is settled."""
    with temporary_memory(scope=scope, policy=world.policy, summarizer=world.make_summarizer()) as memory:
        yield _moments(memory, world)


def _moments(memory: optchat.Memory, world: World) -> Iterator[Moment]:
    model = Model()
    turns: dict[tuple[str, str], optchat.Turn[optchat.HostMessage]] = {}
    for step, turn in play(memory, world.schedule):
        model.feed(step, turn)
        name = (step.scope, step.session)
        if step.action == "end":
            turns.pop(name, None)
        elif turn is not None:
            turns[name] = turn
        elif step.action == "reopen":
            turns.clear()  # what was held before belongs to a handle that is closed
        yield Moment(memory, model, turns, step, is_last=False)
    for scope in {memory.scope, *(scope for scope, _ in model.turns)}:
        scoped(memory, scope).settle()
    yield Moment(memory, model, {}, None, is_last=True)


def scoped(memory: optchat.Memory, scope: str) -> optchat.Memory:
    return memory if memory.scope == scope else memory.scoped(scope)


def session_ids(memory: optchat.Memory) -> dict[str, str]:
    """The ids of a scope's sessions by their keys."""
    return {info.key: info.id for info in memory.sessions(limit=200)}


# ---- reading -------------------------------------------------------------------------------------------------------


def span_of(ref: str) -> Span:
    """The span of a ref; bare ones are a session's own."""
    return parse_ref(ref).span


def is_shared(ref: str) -> bool:
    return isinstance(parse_ref(ref), PublicationRef)


def place_of(ref: str) -> tuple[str, int]:
    """The session id and the sequence number of a record's canonical ref."""
    parsed = parse_ref(ref)
    assert isinstance(parsed, SessionRef)
    assert parsed.session is not None
    assert parsed.span.count == 1
    return parsed.session, parsed.span.start


def assert_cover(refs: list[str] | tuple[str, ...], through: int) -> None:
    """Ordered, aligned (a ref is not even read otherwise), without gap or overlap, to the very end."""
    at = 0
    for ref in refs:
        span = span_of(ref)
        assert span.start == at, f"{ref} after {at} of {through}"
        at = span.end
    assert at == through


def text_of(part: optchat.Part) -> str:
    """The text that a record's pages rejoin to."""
    match part:
        case optchat.TextPart(text):
            return text
        case optchat.ToolCallPart(_, _, arguments):
            return arguments
        case optchat.ReportPart(_, text, _):
            return text
        case optchat.ToolResultPart(_, content):
            return "".join(piece.text for piece in content if isinstance(piece, optchat.TextPart))
        case _:
            return ""


def blobs_of(part: optchat.Part) -> tuple[optchat.BlobPart, ...]:
    if isinstance(part, optchat.BlobPart):
        return (part,)
    content = part.content if isinstance(part, optchat.ToolResultPart) else ()
    return tuple(piece for piece in content if isinstance(piece, optchat.BlobPart))


def read_pages(reader: optchat.Reader, ref: str) -> optchat.ZoomResult:
    """A record, all of its pages joined into the first one's ``text``."""
    page = reader.zoom(ref)
    first, texts = page, [page.text or ""]
    while page.cursor is not None:
        assert not page.complete
        page = reader.zoom(ref, cursor=page.cursor)
        texts.append(page.text or "")
    assert page.complete
    return optchat.ZoomResult(
        **{name: getattr(first, name) for name in ("ref", "kind", "lines", "page", "complete", "cursor", "first_at")},
        **{name: getattr(first, name) for name in ("last_at", "snapshot", "outcome", "paired_ref", "attachments")},
        **{name: getattr(first, name) for name in ("turn", "truncated", "superseded")},
        text="".join(texts),
    )


def descend(reader: optchat.Reader, ref: str, lines: dict[str, optchat.Line], depth: int = 1) -> Iterator[str]:
    """The refs of the records under a ref, in order, by nothing but zoom; ``lines`` gets every line on the way."""
    opened = reader.zoom(ref, depth=depth if span_of(ref).count > 1 else 1)
    if opened.kind == "record":
        yield opened.ref
        return
    assert opened.complete
    for line in opened.lines:
        lines[line.ref] = line
        yield from descend(reader, line.ref, lines, depth)


SHORT = re.compile(r"(?:\d+:)?\d+\+\d+")


def canonical(ref: str, session: str, generation: int = 0) -> str:
    """A ref as a block shows it, in full."""
    return f"session:{session}:{generation}:{ref}" if SHORT.fullmatch(ref) else ref
