"""
Rendering (§ 6, § 7): from what a turn pinned to the blocks that a model is shown.

Decides: nothing that core does not: it loads both views as the descriptor has them, lets core divide the budget and
project, and writes down what was decided. Refuses to know: when to wait, and hosts beyond their codec.

The live views are never read. Each view starts from the descriptor's copy; own leaves that landed since are appended by
the same plan that advances views. The first context of a turn writes one rendering row (insert or ignore, then read
back), so that the bytes are the same in every process and after a restart; a further step is written only when a
request no longer fits. Where it can, the first context says again what the session's last request said, and adds what
is new since (:mod:`optchat.core.anchors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

from attrs import define, evolve, field, frozen

from optchat.core import context as assembly
from optchat.core.anchors import Anchor, Head, Wanted, full, parts, plan_addition
from optchat.core.budget import Budget, allot, available_memory
from optchat.core.context import Context, ContextReceipt, ShownLine
from optchat.core.errors import ContextTooLarge, CoverTooLarge, IntegrityError
from optchat.core.policy import Readiness
from optchat.core.ports import HostAdapter, MemoryBlock, Tokenizer
from optchat.core.refs import Span, publication_ref, session_ref
from optchat.core.render import outcome_label, publication_label
from optchat.core.snapshots import Snapshot
from optchat.core.terms import BlockKind, TokenUse
from optchat.core.tree import Node
from optchat.core.views import FrontierState, levels_of, spans_of
from optchat.engine.anchoring import Last, anchor_of, dump_anchor, lifetime_seconds, since_bytes
from optchat.engine.exchanges import Previous, choose_ways, load_previous
from optchat.engine.handle import Scope
from optchat.engine.lacking import summaries_pending
from optchat.engine.naming import PublicationName, publication_names
from optchat.engine.sides import Seen, Side
from optchat.engine.trees import SessionTree, grown_cover, shared_tree
from optchat.store.registry import SessionRow
from optchat.store.renderings import DescriptorRow, RenderingRow
from optchat.store.rows import Connection, moment_of

M = TypeVar("M")

_TRIES = 8  # each charges what the last one counted short; a host's framing that defeats eight defeats any number
_ANY_ROOM = 1 << 62
Pinned: TypeAlias = tuple[SessionRow, DescriptorRow, str]  # a turn's session as of it, and what its snapshot is called


@frozen
class Rendered(Generic[M]):
    """A turn's memory as it is sent, with its charges."""

    step: int
    blocks: tuple[MemoryBlock, ...]
    natives: tuple[M, ...]
    charges: dict[BlockKind, int]
    tokens: int
    refs: tuple[str, ...]
    shared_through: int
    session_through: int
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    why: str
    sizes: tuple[int, ...]  # the bytes of each block's text
    repeated: int  # the bytes of memory that the session's last request of an earlier turn had in the same place


@frozen
class _Text:
    """The blocks that a rendering row stands for, before they are charged."""

    blocks: tuple[MemoryBlock, ...]
    stable: int  # how many of them may be repeated: the first ones
    added: int  # how many of those were added to the anchor: the last ones
    refs: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def repeated(self) -> tuple[MemoryBlock, ...]:
        """What the session's last request said, if this adds to it."""
        return self.blocks[: self.stable - 1] if self.added else ()

    @property
    def stable_sha256(self) -> bytes:
        return assembly.memory_sha256(self.blocks[: self.stable])


def render(
    scope: Scope,
    db: Connection,
    session: SessionRow,
    descriptor: DescriptorRow,
    written: RenderingRow | None,
    *,
    last: Last | str,
    snapshot_label: str,
    first_step: int,
    budget: Budget,
    tokenizer: Tokenizer,
    adapter: HostAdapter[M],
    active_tokens: int,
    readiness: Readiness,
) -> tuple[Rendered[M], RenderingRow | None]:
    """
    The memory blocks for one call, and the rendering row to write if this decided something new.

    Args:
        last: the session's last rendering, of an earlier turn; or why there is none to add to.
        first_step: the number of the row to write where none is written under the present pin.

    Raises:
        SummariesPending: own leaves that the view needs are not there, and ``readiness`` is strict.
        CoverTooLarge: not even the coarsest cover fits what is left for memory.
        ContextTooLarge: the fixed parts alone pass the window.
    """
    maker = _Maker(scope, db, session, descriptor, scope.remembering(tokenizer), adapter, snapshot_label)
    available = available_memory(budget, active_tokens)
    cap = descriptor.settings.get("memory_max_tokens")
    available = available if cap is None else min(available, cap)
    if available == 0 and budget.instructions + active_tokens + budget.output + budget.reserve > budget.window:
        raise ContextTooLarge(
            f"instructions, active transcript, output and reserve pass the window of {budget.window} tokens by"
            f" themselves; "
            "use a larger window, or shorten what is sent beside memory",
            tokens=TokenUse(budget.window, budget.instructions, budget.output, budget.reserve, active_tokens, {}, 0),
        )
    before = None if written is None else anchor_of(written)
    views: tuple[bytes, bytes] | None = None  # where the views are coarse already, what they are of
    if written is not None and written.missing and readiness == "strict":
        # An earlier call of this turn was content with a partial view; this one is not.
        own, missing = maker.own_view(readiness)
        shared = spans_of(written.shared_levels)
        why = "what was missing is wanted now"
    elif written is not None:
        made = maker.priced(written, maker.text(written), "rendered once for this turn")
        if made.tokens <= available:
            return made, None
        own = spans_of(written.own_levels)
        missing = frozenset(maker.span_of_ref(ref) for ref in written.missing)
        shared = spans_of(written.shared_levels)
        views = None if before is None else (before.shared_view, before.own_view)
        why = "a request no longer fitted"
    else:
        own, missing = maker.own_view(readiness)
        shared = spans_of(descriptor.shared_levels)
        why = "the turn's first context, in full"
    step = first_step if written is None else written.step + 1
    shared_view, own_view = views or (levels_of(shared), levels_of(own))
    wanted = Wanted(
        maker.head,
        shared_view,
        own_view,
        tokenizer.name,
        available,
        idle_seconds=0.0 if isinstance(last, str) else (scope.now() - last.called_at) / 1_000_000,
        lifetime_seconds=lifetime_seconds(descriptor),
    )
    if written is None:
        added = _added(maker, step, last, wanted, missing, available)
        if not isinstance(added, str):
            return added
        why = f"{why}: {added}"
    room = available
    for _ in range(_TRIES):
        row, counted = maker.choose(step, own, missing, shared, room, available)
        text = maker.text(row)
        made = maker.priced(row, text, why)
        if made.tokens <= available:
            # What shows less than all of a prefix is nothing to add to.
            anchor = None if missing else full(wanted, row.shared_levels, row.own_levels)
            return made, maker.written(row, text, anchor)
        # A block can count more than its lines one by one, and its head names what it shows: that is charged from here
        # on. The way down ends at the coarsest cover: what a smaller window holds is never too much for this one.
        lower = max(min(room - 1, available - (made.tokens - counted)), maker.least_room(own, missing, shared))
        if lower == room:
            break
        room = lower
    raise CoverTooLarge(
        f"the host's framing keeps memory above its {available} tokens; {_more_room(descriptor)}",
        since=moment_of(scope.now()),
    )


def _added(
    maker: _Maker[M], step: int, last: Last | str, wanted: Wanted, missing: frozenset[Span], available: int
) -> tuple[Rendered[M], RenderingRow] | str:
    """What the session's last request said, and one block of what is new since; or why that cannot be."""
    if missing:
        return "a partial one"
    if isinstance(last, str):
        return last
    anchor = plan_addition(last.anchor, wanted)
    if isinstance(anchor, str):
        return anchor
    row = maker.addition(step, anchor, last.turn_pk)
    text = maker.text(row)
    if assembly.memory_sha256(text.repeated) != last.anchor.stable:
        return "what a line says has changed"  # repaired, withdrawn, removed; or another version renders it otherwise
    if len(text.blocks[text.stable - 1].text.encode()) > since_bytes(maker.descriptor):
        return "too much is new since the session's last call"
    made = maker.priced(row, text, "the turn's first context: what the last request said, and what is new since")
    if made.tokens > available:
        return "there is no room to add what is new"
    return made, maker.written(row, text, anchor)


def least_memory(
    scope: Scope, db: Connection, pinned: Pinned, tokenizer: Tokenizer, adapter: HostAdapter[M], readiness: Readiness
) -> int:
    """The tokens that memory takes at the least: what an active transcript has to leave it."""
    maker = _Maker(scope, db, *pinned[:2], scope.remembering(tokenizer), adapter, pinned[2])
    return maker.least_room(*maker.own_view(readiness), spans_of(pinned[1].shared_levels))


@define
class _Maker(Generic[M]):
    """The inputs of one rendering, and what is loaded for it."""

    scope: Scope
    db: Connection
    session: SessionRow
    descriptor: DescriptorRow
    tokenizer: Tokenizer
    adapter: HostAdapter[M]
    snapshot_label: str
    _previous: list[Previous] | None = None
    _sessions: dict[int, PublicationName] = field(factory=dict[int, PublicationName])
    _own: Seen = field(factory=Seen)
    _shared: Seen = field(factory=Seen)

    # ---- own view ----------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> SessionTree:
        return SessionTree(self.scope.chain(self.db, self.session.segment_pk))

    def span_of_ref(self, ref: str) -> Span:
        start, _, count = ref.partition("+")
        return Span(int(start), int(count))

    def own_view(self, readiness: Readiness) -> tuple[tuple[Span, ...], frozenset[Span]]:
        """The own view up to the turn's boundary, from the descriptor's copy and the leaves that landed since."""
        descriptor = self.descriptor
        state = FrontierState(descriptor.own_levels, descriptor.own_shrinking)
        strict = readiness == "strict"
        spans, missing = grown_cover(
            self.scope, self.db, self.tree, state, descriptor.own_end, descriptor.clock, whole=strict
        )
        if missing and strict:
            raise summaries_pending(self.scope, self.db, self.session, sorted(missing))
        return spans, missing

    # ---- sides -------------------------------------------------------------------------------------------------------

    def own_side(self, spans: tuple[Span, ...], missing: frozenset[Span]) -> Side:
        def show(span: Span, node: Node | None) -> ShownLine:
            canonical = session_ref(self.session.session_id, self.session.generation, span.start, span.count)
            if node is None:
                return ShownLine(chain.short(span), canonical, "missing", assembly.MISSING_TEXT)
            return ShownLine(chain.short(span), canonical, "", node.text)

        chain = self.tree.chain
        named = "" if chain.boundary is None else f" {chain.generation}"
        return Side(
            self.scope,
            self.db,
            self.tree,
            spans,
            self.descriptor.clock,
            self.tokenizer,
            show,
            self._own,
            named,
            missing,
        )

    def shared_side(self, spans: tuple[Span, ...]) -> Side:
        self._name_publications(spans)

        def show(span: Span, node: Node | None) -> ShownLine:
            ref = publication_ref(span.start, span.count)
            if node is None:
                raise IntegrityError(f"{ref} has no node; run verify() and restore a backup")
            label = outcome_label(node.failed, node.interrupted)
            if span.count == 1 and node.kind != "tombstone":
                name = self._sessions[span.start]
                label = publication_label(name.session_id, name.outcome)
            return ShownLine(ref, ref, label, node.text)

        tree = shared_tree(self.scope)
        return Side(self.scope, self.db, tree, spans, self.descriptor.clock, self.tokenizer, show, self._shared)

    def _name_publications(self, spans: Sequence[Span]) -> None:
        numbers = [span.start for span in spans if span.count == 1 and span.start not in self._sessions]
        self._sessions |= publication_names(self.scope, self.db, numbers)

    # ---- the previous exchange ---------------------------------------------------------------------------------------

    def previous(self) -> list[Previous]:
        """The last exchange's records, with the tokens of both ways to show each."""
        if self._previous is None:
            self._previous = load_previous(
                self.scope, self.db, self.tree, self.session, self.descriptor, self.tokenizer
            )
        return self._previous

    def _choose_previous(self, room: int) -> tuple[tuple[str, ...], int]:
        return choose_ways(self.previous(), self.descriptor.settings["previous_exchange_bytes"], room)

    # ---- choosing ----------------------------------------------------------------------------------------------------

    def choose(
        self,
        step: int,
        own_spans: tuple[Span, ...],
        missing: frozenset[Span],
        shared_spans: tuple[Span, ...],
        room: int,
        available: int,
    ) -> tuple[RenderingRow, int]:
        """Divide a room of tokens between both views and the previous exchange; with the tokens counted for them."""
        own, shared = self.own_side(own_spans, missing), self.shared_side(shared_spans)
        frame = self.frame_tokens()
        free = room - frame
        own_full, shared_full = own.total(own.spans), shared.total(shared.spans)
        previous_full = self._choose_previous(max(0, free))[1]
        share = self.descriptor.settings["shared_share"]
        given = allot(max(0, free), share, shared_full, own_full + previous_full)
        shared_target, own_target = given.shared, free - given.shared
        # The previous exchange is detail; it never pushes the view below its least, and takes at most half of the rest.
        ways, used = self._choose_previous(max(0, own_target - own_full, own_target // 2))
        chosen_own, own_tokens = own.fit(own_target - used)
        chosen_shared, shared_tokens = shared.fit(shared_target)
        if shared_tokens > shared_target or own_tokens > own_target - used:
            # What each side needs at least costs as much to find as all the rest, and seldom matters: only now.
            shared_least = shared.least() if shared_full > given.shared else 0
            own_least = own.least() if own_full + previous_full > given.own else 0
            # A side that cannot get down to its part takes what it needs from the other, down to the other's own least.
            shared_target = max(given.shared, shared_least)
            if own_least + shared_target > free:
                shared_target = max(shared_least, free - own_least)
            own_target = free - shared_target
            if shared_least > shared_target or own_least > max(0, own_target) or free < 0:
                raise CoverTooLarge(
                    f"the coarsest cover takes {frame + shared_least + own_least} tokens and {max(0, available)} are"
                    f" left for memory; {_more_room(self.descriptor)}",
                    missing=[str(span) for span in missing],
                    since=moment_of(self.scope.now()),
                )
            ways, used = self._choose_previous(
                max(0, min(own_target - own_least, max(own_target - own_full, own_target // 2)))
            )
            chosen_own, own_tokens = own.fit(own_target - used)
            chosen_shared, shared_tokens = shared.fit(shared_target)
        row = RenderingRow(
            turn_pk=self.descriptor.turn_pk,
            step=step,
            shared_levels=levels_of(chosen_shared),
            own_levels=levels_of(chosen_own),
            own_through=self.descriptor.own_end,
            missing=tuple(str(span) for span in sorted(missing)),
            previous=ways,
            memory_sha256=b"",
            at=self.scope.now(),
        )
        return row, frame + own_tokens + shared_tokens + used

    def least_room(self, own_spans: tuple[Span, ...], missing: frozenset[Span], shared_spans: tuple[Span, ...]) -> int:
        """What the coarsest covers take, their lines counted one by one."""
        return self.frame_tokens() + self.own_side(own_spans, missing).least() + self.shared_side(shared_spans).least()

    def frame_tokens(self) -> int:
        """What the blocks cost before their first line, as the host frames them."""
        blocks = self._blocks((self.head,), ((),), ((),))
        if self.previous():
            blocks.append(assembly.previous_exchange_block(self.session.session_id, (), (), ()))
        natives = self.adapter.encode(blocks)
        return sum(self.adapter.count(native, self.tokenizer) for native in natives)

    # ---- making ------------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """What the turn's own pin says of what it shows."""
        descriptor = self.descriptor
        return Head(self.snapshot_label, descriptor.publications, descriptor.own_end, descriptor.pending)

    def addition(self, step: int, anchor: Anchor, last_turn: int) -> RenderingRow:
        """The row of a rendering that adds to another: the previous exchange as if there were room for all of it."""
        return RenderingRow(
            turn_pk=self.descriptor.turn_pk,
            step=step,
            shared_levels=anchor.shared,
            own_levels=anchor.own,
            own_through=self.descriptor.own_end,
            missing=(),
            previous=self._choose_previous(_ANY_ROOM)[0],
            memory_sha256=b"",
            at=self.scope.now(),
            anchor_turn=last_turn,
            since=dump_anchor(anchor),
        )

    def written(self, row: RenderingRow, text: _Text, anchor: Anchor | None) -> RenderingRow:
        """The row to write: hashed, and what it leaves for the session's next turn."""
        since = None if anchor is None else dump_anchor(evolve(anchor, stable=text.stable_sha256))
        return evolve(row, memory_sha256=assembly.memory_sha256(text.blocks), pin=self.descriptor.pin, since=since)

    def text(self, row: RenderingRow) -> _Text:
        """The very bytes that a rendering row stands for."""
        missing = frozenset(self.span_of_ref(ref) for ref in row.missing)
        own, shared = self.own_side(spans_of(row.own_levels), missing), self.shared_side(spans_of(row.shared_levels))
        own.load(own.spans)
        shared.load(shared.spans)
        previous: list[ShownLine] = []
        requests: list[str] = []
        answers: list[str] = []
        left_out: list[str] = []
        for record, way in zip(self.previous(), row.previous, strict=True):
            if way != "full":
                left_out.append(record.full.canonical)
            shown = record.full if way == "full" else record.node if way == "node" else None
            if shown is not None:
                previous.append(shown)
                (requests if record.is_request else answers).append(shown.ref)
        anchor = anchor_of(row)
        heads = (self.head,) if anchor is None else anchor.heads
        shared_lines = _parted(shared, [head.shared for head in heads])
        own_lines = _parted(own, [head.own for head in heads])
        blocks = self._blocks(heads, shared_lines, own_lines, missing)
        stable = len(blocks)
        if previous:
            blocks.append(assembly.previous_exchange_block(self.session.session_id, requests, answers, previous))
        pairs = zip(shared_lines, own_lines, strict=True)
        lines = [shown for of_shared, of_own in pairs for shown in (*of_shared, *of_own)]
        refs = tuple(shown.canonical for shown in (*lines, *previous))
        return _Text(tuple(blocks), stable, len(heads) - 1, refs, tuple(left_out))

    def priced(self, row: RenderingRow, text: _Text, why: str) -> Rendered[M]:
        """A rendering as the host sends it, with what it costs."""
        blocks = text.blocks
        charges: dict[BlockKind, int] = {}
        for each in blocks:
            natives = self.adapter.encode((each,))
            tokens = sum(self.adapter.count(native, self.tokenizer) for native in natives)
            charges[each.kind] = charges.get(each.kind, 0) + tokens
        together = tuple(self.adapter.encode(blocks))
        whole = sum(self.adapter.count(native, self.tokenizer) for native in together)
        return Rendered(
            step=row.step,
            blocks=blocks,
            natives=together,
            charges=charges,
            tokens=max(whole, sum(charges.values())),
            refs=text.refs,
            shared_through=self.descriptor.publications,
            session_through=row.own_through,
            missing=tuple(
                session_ref(self.session.session_id, self.session.generation, span.start, span.count)
                for span in sorted(map(self.span_of_ref, row.missing))
            ),
            left_out=text.left_out,
            why=why,
            sizes=tuple(len(each.text.encode()) for each in blocks),
            repeated=sum(len(each.text.encode()) for each in text.repeated),
        )

    def _blocks(
        self,
        heads: Sequence[Head],
        shared: Sequence[Sequence[ShownLine]],
        own: Sequence[Sequence[ShownLine]],
        missing: Iterable[Span] = (),
    ) -> list[MemoryBlock]:
        """The blocks that may be repeated: guidance, both views, and what was added to them, a block a turn."""
        session, first = self.session, heads[0]
        blocks = [assembly.guidance_block()]
        if not session.isolated:
            blocks.append(
                assembly.shared_block(self.scope.row.name, first.snapshot, first.shared, first.pending, shared[0])
            )
        named = [self.tree.chain.short(span) for span in sorted(missing)]
        blocks.append(assembly.session_block(session.session_id, session.generation, first.own, named, own[0]))
        for head, of_shared, of_own in zip(heads[1:], shared[1:], own[1:], strict=True):
            published = None if session.isolated else (head.shared, head.pending)
            blocks.append(assembly.since_block(head.snapshot, published, head.own, (*of_shared, *of_own)))
        return blocks


def _parted(side: Side, ends: Sequence[int]) -> list[list[ShownLine]]:
    """A side's lines, block by block."""
    lines = [side.line(span) for span in side.spans]
    return [lines[part] for part in parts([span.end for span in side.spans], ends)]


def assemble(
    rendered: Rendered[M],
    snapshot: Snapshot,
    active: list[M],
    active_tokens: int,
    budget: Budget,
    tokenizer: Tokenizer,
    *,
    waited_seconds: float,
    active_source: Literal["passed", "held", "rebuilt"],
    repeated_bytes: int,
    checkpointed: int = 0,
) -> Context[M]:
    """Memory before the active transcript, and the receipt that charges each part once (§ 7)."""
    used = budget.instructions + budget.output + budget.reserve + active_tokens + rendered.tokens
    use = TokenUse(
        window=budget.window,
        instructions=budget.instructions,
        output=budget.output,
        reserve=budget.reserve,
        active=active_tokens,
        blocks=rendered.charges,
        left=budget.window - used,
    )
    if use.left < 0:
        raise ContextTooLarge(
            f"the request passes the window of {budget.window} tokens by {-use.left}; use a larger window", tokens=use
        )
    receipt = ContextReceipt(
        snapshot=snapshot,
        tokens=use,
        tokenizer=tokenizer.name,
        refs=rendered.refs,
        why=rendered.why,
        shared_through=rendered.shared_through,
        session_through=rendered.session_through,
        missing=rendered.missing,
        left_out=rendered.left_out,
        repeated_bytes=repeated_bytes,
        waited_seconds=waited_seconds,
        checkpointed=checkpointed,
        active_source=active_source,
    )
    memory = list(rendered.natives)
    return Context([*memory, *active], memory, rendered.blocks, receipt)


def _more_room(descriptor: DescriptorRow) -> str:
    """What gives memory more tokens: the policy's own bound, where there is one, may be what is short."""
    if descriptor.settings.get("memory_max_tokens") is not None:
        return "raise Policy.memory_max_tokens for the next turn, or use a larger window"
    return "use a larger window, or send less beside memory"
