"""
Checkpointing (§ 7): a model call of a long turn, fitted into its window.

Decides: nothing that core does not: it finds the records that an active transcript's messages are sealed as, has core
cut, and makes the block of lines that stands for what is left out.
Refuses to know: how long to wait, and hosts beyond their codec.

Nothing is written down and no summary is waited for: the block is a function of stored rows, budget and transcript. A
line tells what the turn's own tree tells of a record; where that is not there yet, the beginning of what was said and
its size. What a memory tool answered is provenance there too, and reasoning was never sealed.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

from attrs import define, evolve, field, frozen

from optchat.core.active import Sent
from optchat.core.budget import Budget
from optchat.core.checkpoint import (
    Outline,
    Piece,
    Step,
    Wording,
    choose_lines,
    coarsest,
    outline,
    plan_cut,
    positions,
    runs_of,
)
from optchat.core.clip import clip
from optchat.core.context import Checkpoint, ShownLine, checkpoint_block
from optchat.core.errors import ContextTooLarge, CoverTooLarge
from optchat.core.messages import HostMessage
from optchat.core.policy import Readiness
from optchat.core.ports import HostAdapter, MemoryBlock, Tokenizer
from optchat.core.records import KINDS, leaf_text
from optchat.core.refs import Span, session_ref
from optchat.core.snapshots import snapshot_label
from optchat.core.terms import TokenUse
from optchat.core.tree import Node, stand_in_text
from optchat.engine import dispatch, ingest
from optchat.engine.dispatch import Held
from optchat.engine.handle import Scope
from optchat.engine.reading import whole_characters
from optchat.engine.rendering import Rendered, least_memory
from optchat.engine.trees import SessionTree
from optchat.store import ledger, payloads, registry, renderings
from optchat.store.ledger import RecordRow
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection

M = TypeVar("M")

_SHORT_BYTES: Final = 40
_TRIES: Final = 4  # a block can count more than its lines one by one
_OVER: Final = "the active transcript passes its share of the window"


@frozen
class Active(Generic[M]):
    """The active transcript whole. ``sent``: in pieces, each with its records; None: as the host passed it."""

    natives: list[M]
    source: Literal["passed", "held", "rebuilt"]
    sent: tuple[Sent[M], ...] | None


@frozen
class Fitted(Generic[M]):
    """What is sent of an active transcript, and what stands for the rest. ``why_not``: why no more is left out."""

    natives: list[M]
    tokens: int
    checkpoint: Checkpoint | None
    why_not: str

    @property
    def charged(self) -> int:
        return self.tokens + (0 if self.checkpoint is None else self.checkpoint.tokens)


@frozen
class Request(Generic[M]):
    """One model call of a turn. ``share``: of the usable window, what active transcript and checkpoint may take."""

    scope: Scope
    turn_pk: int
    turn_id: str
    session: SessionRow
    adapter: HostAdapter[M]
    budget: Budget
    tokenizer: Tokenizer
    readiness: Readiness
    share: float
    count: Callable[[Sequence[M]], int]

    @property
    def usable(self) -> int:
        """What memory and the active transcript have together."""
        budget = self.budget
        return budget.window - budget.instructions - budget.output - budget.reserve

    @property
    def limit(self) -> int:
        return int(self.share * max(0, self.usable))


def fit(
    request: Request[M], active: Active[M], active_tokens: int, repeat: Callable[[int], Held[M] | None]
) -> tuple[Fitted[M], Held[M]]:
    """
    The transcript as it is sent, and memory beside it.

    Whole, where it keeps to its share and memory fits beside it; else with a checkpoint for its older steps.

    Args:
        repeat: the rendering in memory, if it will do for a transcript of so many tokens.

    Raises:
        ContextTooLarge: the transcript passes its share and leaves memory no room, and no more of it can be left out.
        SummariesPending, CoverTooLarge, SnapshotInvalid, TurnEnded: as ``Turn.context``.
    """

    def memory(tokens: int) -> Held[M]:
        return repeat(tokens) or dispatch.make_rendering(
            request.scope,
            request.turn_pk,
            request.session,
            request.adapter,
            request.budget,
            request.tokenizer,
            tokens,
            request.readiness,
        )

    whole = Fitted(active.natives, active_tokens, None, "")
    if active_tokens <= request.limit:
        try:
            return whole, memory(active_tokens)
        except CoverTooLarge:
            fitted = _cut(request, active, active_tokens)
            if fitted.checkpoint is None:
                raise
            return fitted, memory(fitted.charged)
    fitted = _cut(request, active, active_tokens)
    try:
        return fitted, memory(fitted.charged)
    except (ContextTooLarge, CoverTooLarge) as error:
        raise _too_large(request, fitted) from error


def _too_large(request: Request[M], fitted: Fitted[M]) -> ContextTooLarge:
    budget = request.budget
    if fitted.checkpoint is None:
        done = "none of it can stand in a checkpoint"
    else:
        done = f"what is left beside a checkpoint takes {fitted.tokens} tokens"
    return ContextTooLarge(
        f"{_OVER} of {budget.window} tokens, and {done}: {fitted.why_not}; use a larger window, or end the turn",
        tokens=TokenUse(
            budget.window,
            budget.instructions,
            budget.output,
            budget.reserve,
            fitted.tokens,
            {} if fitted.checkpoint is None else {"checkpoint": fitted.checkpoint.tokens},
            0,
        ),
    )


def with_checkpoint(rendered: Rendered[M], checkpoint: Checkpoint | None, adapter: HostAdapter[M]) -> Rendered[M]:
    """A rendering with the checkpoint behind its blocks, charged once."""
    if checkpoint is None:
        return rendered
    blocks = (*rendered.blocks, checkpoint.block)
    return evolve(
        rendered,
        blocks=blocks,
        natives=tuple(adapter.encode(blocks)),
        charges=rendered.charges | {"checkpoint": checkpoint.tokens},
        tokens=rendered.tokens + checkpoint.tokens,
        refs=(*rendered.refs, *checkpoint.refs),
        sizes=(*rendered.sizes, len(checkpoint.block.text.encode())),
    )


# ---- the cut ---------------------------------------------------------------------------------------------------------


def _cut(request: Request[M], active: Active[M], active_tokens: int) -> Fitted[M]:
    """The transcript with as much left out as its limit demands, and no more than is safe."""
    scope = request.scope
    with scope.store.read() as db:
        dispatch.dispatchable(scope, db, request.turn_pk)
        descriptor = renderings.load_descriptor(db, request.turn_pk)
        assert descriptor is not None, "its pin was looked at a moment ago"
        label = snapshot_label(descriptor.clock, descriptor.pin)
        turn = dispatch.open_row(db, request.turn_pk)
        session = registry.session_as_of(db, turn.generation_pk)
        most = request.usable - least_memory(
            scope, db, (session, descriptor, label), request.tokenizer, request.adapter, request.readiness
        )
        limit = min(request.limit, most)
        rows = {row.seq: row for row in ledger.records_of_turn(db, request.turn_pk) if row.state == 0}
        sent = active.sent
        if sent is None:
            sent = _aligned(request, db, active.natives, rows)
        shape = outline([_piece(request, each) for each in sent])
        tree = SessionTree(scope.chain(db, turn.segment_pk))
        lines = _Lines(request, db, rows, session, tree, scope.remembering(request.tokenizer), descriptor.clock)
        cut = plan_cut(shape, limit, most, lines.shortest_tokens)
        if cut is None:
            return Fitted(active.natives, active_tokens, None, shape.why_not)
        checkpoint = lines.checkpoint(shape.steps[: cut.steps], cut.room)
    gone = {number for step in shape.steps[: cut.steps] for number in step.pieces}
    kept = [native for number, each in enumerate(sent) if number not in gone for native in each.natives]
    return Fitted(kept, cut.kept, checkpoint, _why_not(shape, cut.steps))


def _why_not(shape: Outline, steps: int) -> str:
    return shape.why_not if steps == len(shape.steps) else "the lines that stand for it have no room"


def _piece(request: Request[M], sent: Sent[M]) -> Piece:
    alone: bool | None = None
    if not sent.messages:
        tell: Callable[[M], bool] | None = getattr(request.adapter, "stands_alone", None)
        alone = None if tell is None else all(tell(native) for native in sent.natives)
    return Piece(request.count(sent.natives), sent.messages, sent.records, alone)


def _aligned(
    request: Request[M], db: Connection, natives: Sequence[M], rows: dict[int, RecordRow]
) -> tuple[Sent[M], ...]:
    """
    A host's list, a piece a message, with the records of what each says: the next of the turn's with the same hash.

    What is not sealed as it stands there (not yet, or edited since) has none.
    """
    waiting: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for seq, row in rows.items():
        waiting[row.sha256].append(seq)
    retrieved = dispatch.retrieved(db, request.turn_pk)
    found: list[Sent[M]] = []
    for native in natives:
        messages = tuple(request.adapter.decode(native))
        parts = ingest.prepare(request.scope, messages, turn_id=request.turn_id, ordinal=0, retrieved=retrieved)
        if all(waiting.get(part.sha256) for part in parts):
            records: tuple[int, ...] | None = tuple(
                waiting[part.sha256].popleft() for part in parts if waiting[part.sha256]
            )
        else:
            records = None
        found.append(Sent((native,), messages, records))
    return tuple(found)


# ---- the block -------------------------------------------------------------------------------------------------------


@define
class _Lines(Generic[M]):
    """What can be said of a turn's records."""

    request: Request[M]
    db: Connection
    rows: dict[int, RecordRow]
    session: SessionRow
    tree: SessionTree
    tokenizer: Tokenizer
    clock: int

    def shortest_tokens(self, steps: Sequence[Step]) -> int:
        """The tokens of the fewest lines that name these steps' records."""
        return self._tokens(self._shortest(_runs(steps))[0])

    def checkpoint(self, steps: Sequence[Step], room: int) -> Checkpoint:
        """The block for these steps, as detailed as its room allows."""
        runs = _runs(steps)
        words = _Words(self, runs)
        wording = Wording(words.told_tokens, words.named_tokens)
        block, lines = self._shortest(runs)
        tokens = self._tokens(block)
        body = room - self._tokens(self._block(runs, ()))
        for _ in range(_TRIES):
            chosen, fits = choose_lines(runs, wording, body)
            if not fits:
                break
            better = [words.told(span) if tells else words.named(span) for span, tells in chosen.items()]
            made = self._block(runs, better)
            over = self._tokens(made) - room
            if over <= 0:
                block, lines, tokens = made, better, over + room
                break
            body -= over
        records = sum(end - start for start, end in runs)
        return Checkpoint(block, tokens, tuple(line.canonical for line in lines), records)

    def _shortest(self, runs: Sequence[tuple[int, int]]) -> tuple[MemoryBlock, list[ShownLine]]:
        lines = [self.name(span, None) for span in coarsest(runs)]
        return self._block(runs, lines), lines

    def _block(self, runs: Sequence[tuple[int, int]], lines: Sequence[ShownLine]) -> MemoryBlock:
        names: list[str] = []
        for start, end in runs:
            short = self.tree.chain.short(Span(end - 1, 1))  # with its generation where a bare ref is no more enough
            names.append(
                f"{short.rpartition(':')[0]}:{start}+{end - start}" if ":" in short else f"{start}+{end - start}"
            )
        return checkpoint_block(self.session.session_id, names, lines)

    def _tokens(self, block: MemoryBlock) -> int:
        return sum(
            self.request.adapter.count(native, self.tokenizer) for native in self.request.adapter.encode((block,))
        )

    def line_tokens(self, span: Span, line: ShownLine, node: Node | None) -> int:
        scope, chain = self.request.scope, self.tree.chain
        if node is None:
            return scope.count(self.tokenizer, line.rendered)
        named = "" if chain.boundary is None else f" {chain.generation}"
        key = (f"{self.tokenizer.name}{named}", self.tree.key(span), node.revision)
        count = scope.caches.tokens.get(key)
        if count is None:
            count = self.tokenizer.count(line.rendered)
            scope.caches.tokens.put(key, count)
        return count

    def _shown(self, span: Span, text: str) -> ShownLine:
        session = self.session
        canonical = session_ref(session.session_id, session.generation, span.start, span.count)
        return ShownLine(self.tree.chain.short(span), canonical, "", text)

    def tell(self, span: Span, node: Node | None) -> ShownLine | None:
        """A line of what is known; None where nothing is but the names of what was said."""
        if node is not None:
            return self._shown(span, node.text)
        return self._shown(span, self._beginning(self.rows[span.start])) if span.count == 1 else None

    def name(self, span: Span, node: Node | None) -> ShownLine:
        """A line that tells of records only what there are, and how large; of a short one what was said: no longer."""
        rows = [self.rows[seq] for seq in range(span.start, span.end)]
        if span.count == 1 and (rows[0].leaf_escaped or _SHORT_BYTES + 1) <= _SHORT_BYTES:
            return self._shown(span, payloads.load_leaf_text(self.db, rows[0]) if node is None else node.text)
        counted = Counter(row.kind for row in rows)
        kinds = [kind for kind in KINDS if kind in counted]
        what = kinds[0] if span.count == 1 else ", ".join(f"{counted[kind]} {kind}" for kind in kinds)
        size = sum(_bytes(row) for row in rows)
        return self._shown(span, stand_in_text(self.request.scope.row.node_bytes, what, size, ""))

    def _beginning(self, row: RecordRow) -> str:
        """What was said, cut to the size of a line, with the size of the whole."""
        most = self.request.scope.row.node_bytes
        page = whole_characters(payloads.load_payload_page(self.db, row, 0, most + 4), most)
        return clip(leaf_text(row.kind, page, row.structure, row.leaf_format), most, whole_bytes=_bytes(row))


@define
class _Words(Generic[M]):
    """The lines for runs of records: each is made and counted once, and only if it is asked for."""

    lines: _Lines[M]
    runs: Sequence[tuple[int, int]]
    _nodes: dict[Span, Node] = field(factory=dict[Span, Node])
    _told: dict[Span, tuple[ShownLine, int]] = field(factory=dict[Span, tuple[ShownLine, int]])
    _named: dict[Span, tuple[ShownLine, int]] = field(factory=dict[Span, tuple[ShownLine, int]])
    _has_inner: bool = False

    def __attrs_post_init__(self) -> None:
        self._load(Span(seq, 1) for start, end in self.runs for seq in range(start, end))

    def told(self, span: Span) -> ShownLine:
        return self._tell(span)[0]

    def told_tokens(self, span: Span) -> int:
        return self._tell(span)[1]

    def named(self, span: Span) -> ShownLine:
        return self._name(span)[0]

    def named_tokens(self, span: Span) -> int:
        return self._name(span)[1]

    def _tell(self, span: Span) -> tuple[ShownLine, int]:
        found = self._told.get(span)
        if found is None:
            if span.count > 1 and not self._has_inner:
                self._has_inner = True
                self._load(position for position in positions(self.runs) if position.count > 1)
            node = self._nodes.get(span)
            line = self.lines.tell(span, node)
            found = self._name(span) if line is None else (line, self.lines.line_tokens(span, line, node))
            self._told[span] = found
        return found

    def _name(self, span: Span) -> tuple[ShownLine, int]:
        found = self._named.get(span)
        if found is None:
            line = self.lines.name(span, self._nodes.get(span))
            found = self._named[span] = (line, self.lines.line_tokens(span, line, None))
        return found

    def _load(self, spans: Iterable[Span]) -> None:
        self._nodes |= self.lines.tree.nodes(self.lines.db, spans, self.lines.clock)


def _runs(steps: Sequence[Step]) -> tuple[tuple[int, int], ...]:
    return runs_of(record for step in steps for record in step.records)


def _bytes(row: RecordRow) -> int:
    """The size of what was said, images and files included, and of what a memory tool answered."""
    structure = row.structure or {}
    content: list[Any] = structure.get("content", [])
    manifests = [structure, *(piece for piece in content if not isinstance(piece, int))]
    return row.payload_bytes + sum(int(manifest.get("bytes", 0)) for manifest in manifests)


def records_by_message(db: Connection, turn_pk: int) -> dict[int, tuple[int, ...]]:
    """The records of a turn's messages, by the messages' ordinals."""
    found: dict[int, tuple[int, ...]] = {}
    for seq, ordinal in ledger.places_of_turn(db, turn_pk):
        found[ordinal] = (*found.get(ordinal, ()), seq)
    return found


def records_of(records: tuple[int, ...] | None, messages: Sequence[HostMessage]) -> tuple[int, ...] | None:
    """A message's records, if they are as many as it has parts."""
    said = sum(len(message.parts) for message in messages)
    return records if records is not None and len(records) == said else None
