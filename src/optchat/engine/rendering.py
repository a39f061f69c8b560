"""
Rendering (§ 6, § 7): from what a turn pinned to the blocks that a model is shown.

Decides: nothing that core does not: it loads both views as the descriptor has them, lets core divide the budget and
project, and writes down what was decided. Refuses to know: when to wait, and hosts beyond their codec.

The live views are never read. Each view starts from the descriptor's copy; own leaves that landed since are appended by
the same plan that advances views. The first context of a turn writes one rendering row (insert or ignore, then read
back), so that the bytes are the same in every process and after a restart; a further step is written only when a
request no longer fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Literal, TypeVar

from attrs import define, evolve, field, frozen

from optchat.core import context as assembly
from optchat.core.budget import Budget, allot, available_memory
from optchat.core.context import Context, ContextReceipt, ShownLine
from optchat.core.errors import ContextTooLarge, CoverTooLarge, IntegrityError, SummariesPending
from optchat.core.policy import Readiness
from optchat.core.ports import HostAdapter, MemoryBlock, Tokenizer
from optchat.core.refs import Span, publication_ref, session_ref
from optchat.core.render import outcome_label, publication_label
from optchat.core.snapshots import Snapshot
from optchat.core.terms import BlockKind, TokenUse
from optchat.core.tree import Node
from optchat.core.views import FrontierState, levels_of, spans_of
from optchat.engine.calls import paused
from optchat.engine.handle import Scope
from optchat.engine.naming import PublicationName, load_failures, publication_names
from optchat.engine.sides import Seen, Side
from optchat.engine.trees import SessionTree, grown_cover, shared_tree
from optchat.store import ledger, payloads, queue
from optchat.store.ledger import RecordRow
from optchat.store.registry import SessionRow
from optchat.store.renderings import DescriptorRow, RenderingRow
from optchat.store.rows import Connection, moment_of

M = TypeVar("M")

_TRIES = 8  # each charges what the last one counted short; a host's framing that defeats eight defeats any number


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


@frozen
class Previous:
    """A record of the previous exchange, both ways in which it can be shown."""

    seq: int
    is_request: bool
    full: ShownLine
    full_tokens: int
    full_bytes: int
    node: ShownLine | None
    node_tokens: int


def render(
    scope: Scope,
    db: Connection,
    session: SessionRow,
    descriptor: DescriptorRow,
    written: RenderingRow | None,
    *,
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
    if written is not None and written.missing and readiness == "strict":
        # An earlier call of this turn was content with a partial view; this one is not.
        own, missing = maker.own_view(readiness)
        shared = spans_of(written.shared_levels)
        why = "what was missing is wanted now"
    elif written is not None:
        made = maker.rendered(written, "rendered once for this turn")
        if made.tokens <= available:
            return made, None
        own = spans_of(written.own_levels)
        missing = frozenset(maker.span_of_ref(ref) for ref in written.missing)
        shared = spans_of(written.shared_levels)
        why = "a request no longer fitted"
    else:
        own, missing = maker.own_view(readiness)
        shared = spans_of(descriptor.shared_levels)
        why = "the turn's first context"
    step = first_step if written is None else written.step + 1
    room = available
    for _ in range(_TRIES):
        row, counted = maker.choose(step, own, missing, shared, room, available)
        made = maker.rendered(row, why)
        if made.tokens <= available:
            return made, evolve(row, memory_sha256=assembly.memory_sha256(made.blocks), pin=descriptor.pin)
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
            self._previous = self._load_previous()
        return self._previous

    def _load_previous(self) -> list[Previous]:
        start, end = self.descriptor.previous_start, self.descriptor.previous_end
        if start is None or end is None or not self.descriptor.settings["previous_exchange"]:
            return []
        chain = self.tree.chain
        chosen = exchange_records(self.db, chain.record_key(start), chain.record_key(end - 1) + 1)
        nodes = self.tree.nodes(self.db, [Span(record.seq, 1) for record, _ in chosen], self.descriptor.clock)
        found: list[Previous] = []
        limit = self.descriptor.settings["previous_exchange_bytes"]
        for record, is_request in chosen:
            span = Span(record.seq, 1)
            canonical = session_ref(self.session.session_id, self.session.generation, record.seq)
            node = nodes.get(span)
            short = None if node is None else ShownLine(chain.short(span), canonical, "", node.text)
            # A record over the limit can only be shown by its node: its text is not even read.
            text = "" if record.payload_bytes > limit else payloads.load_leaf_text(self.db, record)
            full = ShownLine(chain.short(span), canonical, "", text)
            fits = bool(text)
            found.append(
                Previous(
                    record.seq,
                    is_request,
                    full,
                    self.scope.count(self.tokenizer, full.rendered) if fits else 0,
                    len(full.rendered.encode()) if fits else limit + 1,
                    short,
                    0 if short is None else self.scope.count(self.tokenizer, short.rendered),
                )
            )
        return found

    def _choose_previous(self, room: int) -> tuple[tuple[str, ...], int]:
        """
        Which way each record of the previous exchange is shown within a room of tokens, and the tokens used.

        The request comes first, then the answer's parts: what "do that" speaks of matters more than the last of many
        parts.
        """
        limit = self.descriptor.settings["previous_exchange_bytes"]
        ways: list[str] = []
        used = size = 0
        for record in self.previous():  # a request's records come before its answer's
            if size + record.full_bytes <= limit and used + record.full_tokens <= room:
                ways.append("full")
                used += record.full_tokens
                size += record.full_bytes
            elif record.node is not None and used + record.node_tokens <= room:
                ways.append("node")
                used += record.node_tokens
            else:
                ways.append("none")
        return tuple(ways), used

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
        blocks = self._blocks((), (), (), (), (), bool(self.previous()))
        natives = self.adapter.encode(blocks)
        return sum(self.adapter.count(native, self.tokenizer) for native in natives)

    # ---- making ------------------------------------------------------------------------------------------------------

    def rendered(self, row: RenderingRow, why: str) -> Rendered[M]:
        """The very bytes that a rendering row stands for."""
        missing = frozenset(self.span_of_ref(ref) for ref in row.missing)
        own, shared = self.own_side(spans_of(row.own_levels), missing), self.shared_side(spans_of(row.shared_levels))
        own.load(own.spans)
        shared.load(shared.spans)
        own_lines = [own.line(span) for span in own.spans]
        shared_lines = [shared.line(span) for span in shared.spans]
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
        blocks = self._blocks(shared_lines, own_lines, previous, requests, answers, bool(previous), missing)
        charges: dict[BlockKind, int] = {}
        for each in blocks:
            natives = self.adapter.encode((each,))
            charges[each.kind] = sum(self.adapter.count(native, self.tokenizer) for native in natives)
        together = tuple(self.adapter.encode(blocks))
        whole = sum(self.adapter.count(native, self.tokenizer) for native in together)
        return Rendered(
            step=row.step,
            blocks=blocks,
            natives=together,
            charges=charges,
            tokens=max(whole, sum(charges.values())),
            refs=tuple(shown.canonical for shown in (*shared_lines, *own_lines, *previous)),
            shared_through=self.descriptor.publications,
            session_through=row.own_through,
            missing=tuple(
                session_ref(self.session.session_id, self.session.generation, span.start, span.count)
                for span in sorted(missing)
            ),
            left_out=tuple(left_out),
            why=why,
            sizes=tuple(len(each.text.encode()) for each in blocks),
        )

    def _blocks(
        self,
        shared: Sequence[ShownLine],
        own: Sequence[ShownLine],
        previous: Sequence[ShownLine],
        requests: Sequence[str],
        answers: Sequence[str],
        with_previous: bool,
        missing: Iterable[Span] = (),
    ) -> tuple[MemoryBlock, ...]:
        descriptor, session = self.descriptor, self.session
        blocks = [assembly.guidance_block()]
        if not session.isolated:
            blocks.append(
                assembly.shared_block(
                    self.scope.row.name, self.snapshot_label, descriptor.publications, descriptor.pending, shared
                )
            )
        named = [self.tree.chain.short(span) for span in sorted(missing)]
        blocks.append(assembly.session_block(session.session_id, session.generation, descriptor.own_end, named, own))
        if with_previous:
            blocks.append(assembly.previous_exchange_block(session.session_id, requests, answers, previous))
        return tuple(blocks)


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
        checkpointed=0,
        active_source=active_source,
    )
    memory = list(rendered.natives)
    return Context([*memory, *active], memory, rendered.blocks, receipt)


def exchange_records(db: Connection, low: int, high: int) -> list[tuple[RecordRow, bool]]:
    """A turn's request and its final answer: (record, whether it is the request), in order."""
    records = [record for record in ledger.records_between(db, low, high) if record.state == 0]
    if not records:
        return []
    first = records[0].message
    said = [record for record in records if record.kind == "assistant"]
    last = said[-1].message if said else None
    chosen: list[tuple[RecordRow, bool]] = []
    for record in records:
        if record.kind == "user" and record.message == first:
            chosen.append((record, True))
        elif record.kind == "assistant" and record.message == last:
            chosen.append((record, False))
    return chosen


def summaries_pending(
    scope: Scope, db: Connection, session: SessionRow, missing: Sequence[Span], waited_seconds: float = 0.0
) -> SummariesPending:
    """The error that names what a view lacks, since when, what went wrong with it, and until when nothing is tried."""
    refs = [session_ref(session.session_id, session.generation, span.start, span.count) for span in missing]
    chain = scope.chain(db, session.segment_pk)
    jobs = queue.leaf_jobs(db, [chain.node_key(span) for span in missing])
    failed = load_failures(scope, db, refs)
    pause = paused(db, scope.pk, scope.now())
    shown = ", ".join(refs[:3]) + (f" and {len(refs) - 3} more" if len(refs) > 3 else "")
    since = moment_of(min((job.created_at for job in jobs), default=scope.now()))
    parts = [f"{len(refs)} summaries that this context needs are not there yet ({shown}), the first due since {since}"]
    if failed:
        parts.append(f"last error: {failed[0].error.partition(':')[0]}")  # its class: the rest may hold content
    advice = "wait for the worker, call settle(), or ask for readiness='partial'"
    if pause is not None:
        parts.append(f"paused: {pause.reason}")
        advice = "retry_failed() tries at once" + (
            f"; it goes on by itself at {pause.resumes_at}" if pause.until is not None else ""
        )
    elif failed:
        advice = "retry_failed() tries the failed summaries again"
    return SummariesPending(
        "; ".join((*parts, advice)),
        missing=refs,
        since=since,
        failures=failed,
        paused=None if pause is None else pause.reason,
        resumes_at=None if pause is None else pause.resumes_at,
        waited_seconds=waited_seconds,
    )


def _more_room(descriptor: DescriptorRow) -> str:
    """What gives memory more tokens: the policy's own bound, where there is one, may be what is short."""
    if descriptor.settings.get("memory_max_tokens") is not None:
        return "raise Policy.memory_max_tokens for the next turn, or use a larger window"
    return "use a larger window, or send less beside memory"
