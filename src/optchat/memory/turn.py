"""
Turns (§ 5, § 7): one request and what follows it, under one snapshot.

Decides: which natives this process holds, and how long a context waits for summaries.
Refuses to know: how records are sealed and views are rendered.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Generic, TypeVar, get_args

from attrs import evolve

from optchat.core.budget import Budget
from optchat.core.context import Context
from optchat.core.errors import BadArgument, SnapshotInvalid, SummariesPending, TurnEnded
from optchat.core.messages import Content, HostMessage, ReportPart, ToolCallPart, ToolResultPart, content_parts
from optchat.core.policy import Readiness, pinned_setting
from optchat.core.ports import HostAdapter
from optchat.core.records import SealedPart, to_bytes
from optchat.core.snapshots import Snapshot
from optchat.core.terms import OUTCOMES, Outcome
from optchat.core.tools import TOOL_NAMES, ToolOutput, Tools
from optchat.engine import answering, checkpointing, dispatch, ingest, pins, receipts, turns
from optchat.engine.handle import Scope
from optchat.engine.neutral import NeutralAdapter
from optchat.engine.rendering import assemble
from optchat.engine.sights import Reading, snapshot_of
from optchat.memory.holding import Holding
from optchat.memory.house import House
from optchat.memory.messages import Taken, take
from optchat.memory.reader import Reader
from optchat.memory.waiting import Steps, may_land, wait_out
from optchat.store import renderings, scopes
from optchat.store.registry import SessionRow
from optchat.store.renderings import DispatchState
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

M = TypeVar("M")
_POLL_SECONDS = 0.005  # while summaries are waited for: short against a model call, long against a read


class Turn(Reader, Generic[M]):
    """
    One turn. Begun when made, as a file is open; the ``with`` block ends it.

    Threads may share it. Sealing returns canonical refs. Every read is under the turn's own pin: what other sessions
    publish while it runs is not seen (§ 9).
    """

    def __init__(self, house: House, scope: Scope, session: SessionRow, adapter: HostAdapter[M], row: TurnRow) -> None:
        """Made by ``session.turn`` and ``session.resume``."""
        self._house, self._scope, self._session, self._adapter = house, scope, session, adapter
        self._pk = row.turn_pk
        self._row = row
        self._lock = threading.RLock()
        self._natives = Holding(scope, row.turn_pk, adapter)
        self._next: int | None = None  # the next message's ordinal, as far as this handle knows
        self._rendered: dispatch.Held[M] | None = None
        self._outcome: Outcome | None = row.outcome
        self._suspended = row.state == "suspended"
        self._is_new = False  # made by this handle, and not found: whoever drops it may end it
        self.id: str = row.turn_id
        self.tools: Tools = Tools()
        with scope.store.read() as db:
            descriptor = renderings.load_descriptor(db, row.turn_pk)
            moment = None if descriptor is None else scopes.find_moment(db, scope.pk, descriptor.clock)
            if moment is None:
                moment = scopes.current_moment(db, scope.pk)
            elif descriptor is not None:
                moment = evolve(moment, epoch=descriptor.epoch)
        settings = {} if descriptor is None else descriptor.settings
        self._share = float(pinned_setting(settings, "checkpoint_share"))
        through = moment.publications if descriptor is None else descriptor.publications
        label = snapshot_of(moment, 0 if descriptor is None else descriptor.pin)
        self.snapshot: Snapshot = evolve(label, through=through)
        if row.state == "open" and row.owner_pk == scope.store.owner_pk:  # another process's outlives this handle
            house.began(self._pk, scope)

    def __repr__(self) -> str:
        return f"<Turn {self.id} of {self._session.session_id}, {self._outcome or 'open'}>"

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> Outcome | None:
        """How the turn ended; None while it is open, as this process last knew."""
        return self._outcome

    @property
    def pending(self) -> tuple[ToolCallPart, ...]:
        """The calls that no result answers yet, also those made before a resume."""
        with self._scope.store.read() as db:
            pins.check_present(db, dispatch.open_row(db, self._pk))
            return dispatch.pending(db, self._pk)

    @property
    def messages(self) -> tuple[HostMessage, ...]:
        """
        What is sealed so far, as it was said; a note, which is no role's words, as a report.

        A memory tool's answer is rendered again, or says that it no longer can be.
        """
        with self._scope.store.read() as db:
            pins.check_present(db, dispatch.open_row(db, self._pk))
            recall = answering.recaller(self._scope, self._tokenizer)
            return tuple(message for _, message in dispatch.sealed_messages(db, self._pk, recall))

    def _eyes(self, db: Connection) -> Reading:
        pins.check_present(db, dispatch.open_row(db, self._pk))
        eyes = answering.turn_reading(self._scope, db, self._pk)
        if eyes is None:
            raise TurnEnded(
                f"turn {self.id} pinned nothing to read by; begin a new turn", outcome=self._outcome or "interrupted"
            )
        pins.check_pin(self._scope, db, eyes.snapshot.epoch, eyes.sight)
        return eyes

    @contextmanager
    def _reading(self) -> Generator[tuple[Connection, Reading]]:
        """One read under the turn's pin; where that could see what was removed, under the one that is taken then."""
        with ExitStack() as stack:
            yield self._held_eyes(stack)

    def _held_eyes(self, stack: ExitStack) -> tuple[Connection, Reading]:
        while True:
            db = stack.enter_context(self._scope.store.read())
            try:
                return db, self._eyes(db)
            except SnapshotInvalid:
                stack.close()
                self.snapshot = pins.pin_again(self._scope, self._pk)

    def _shared_levels(self, eyes: Reading, db: Connection) -> bytes:
        descriptor = renderings.load_descriptor(db, self._pk)
        return super()._shared_levels(eyes, db) if descriptor is None else descriptor.shared_levels

    # ---- context -----------------------------------------------------------------------------------------------------

    def context(
        self,
        budget: Budget,
        *,
        active: Sequence[M] | None = None,
        readiness: Readiness | None = None,
        wait_seconds: float | None = None,
    ) -> Context[M]:
        """
        What to send to the model now (§ 7): memory, then the active transcript; nothing is recorded as said.

        Rendered once a turn: the same memory bytes again, in whatever process, until a request no longer fits, or
        something is removed that the turn could see: then it pins again, once, at the same marks (``snapshot="42.1"``).

        Where the active transcript passes ``Policy.checkpoint_share`` of the window, lines about its older calls and
        results, in a block of kind "checkpoint", are sent in their place; ``receipt.checkpointed`` counts the records.
        The request, what the user said since, and the newest calls stay as they are.

        Args:
            budget: the call's window. What is left of it after the other parts bounds memory.
            active: the turn's native messages so far, request first, sent by identity; None: those that this process
                was handed, or rebuilt from what is sealed.
            readiness: "partial" serves a view that says in its own block what it does not cover; None is the policy's.
            wait_seconds: the most to wait for summaries; None is the policy's.

        Raises:
            SummariesPending: the view lacks summaries, and waiting is over or cannot help.
            CoverTooLarge: the coarsest view does not fit; a larger window helps.
            ContextTooLarge: the other parts alone pass the window, or the active transcript passes its share of it and
                cannot give way to a checkpoint safely.
            ToolProtocolError: a call without its result, or a result without its call, would be sent.
            TurnEnded: the turn has its outcome.
            SessionDeleted: the session was deleted.
            SnapshotInvalid: something that the turn could see was removed, and ``Policy.on_invalid`` is "fail".
            BadArgument: no such readiness.
        """
        return wait_out(self._house, self._contexts(budget, active, readiness, wait_seconds))

    def _contexts(
        self, budget: Budget, active: Sequence[M] | None, readiness: Readiness | None, wait_seconds: float | None
    ) -> Steps[Context[M]]:
        """:meth:`context` in steps."""
        if readiness is not None and readiness not in get_args(Readiness):
            raise BadArgument(f"readiness is 'strict' or 'partial', not {readiness!r}; None is the policy's")
        tokenizer = budget.tokenizer or self._house.tokenizer
        state = self._dispatchable()
        count = self._natives.counter(tokenizer, held=active is None)
        with self._lock:
            whole = (
                self._natives.held(state.last_record, self._tokenizer)
                if active is None
                else self._natives.passed(active)
            )
            active_tokens = count(whole.natives)
        started = self._house.clock.monotonic()
        most = self._scope.policy.readiness_wait_seconds if wait_seconds is None else wait_seconds
        wanted = readiness or self._scope.policy.readiness
        request = checkpointing.Request(
            self._scope, self._pk, self.id, self._session, self._adapter, budget, tokenizer, wanted, self._share, count
        )

        known = [state] if active_tokens <= request.limit else []  # else a cut comes first, which may take long

        def repeat(tokens: int) -> dispatch.Held[M] | None:
            # Another handle may have pinned again meanwhile: what it could see no more is not repeated.
            now = known.pop() if known else self._dispatchable()
            return dispatch.repeated(now, self._rendered, budget, tokenizer, tokens, wanted)

        made: tuple[checkpointing.Fitted[M], dispatch.Held[M]] | None = None
        while made is None:
            try:
                made = checkpointing.fit(request, whole, active_tokens, repeat)
            except SnapshotInvalid:  # by what was removed a moment ago
                self._dispatchable()
            except SummariesPending as pending:
                waited = self._house.clock.monotonic() - started
                if waited >= most or not may_land(self._house, self._scope, pending, most - waited):
                    pending.waited_seconds = waited
                    raise
                yield _POLL_SECONDS
                if self._house.closing.is_set():
                    raise
        (fitted, held), checkpoint = made, made[0].checkpoint
        with self._lock:
            before, self._rendered = self._rendered, held
        context = assemble(
            checkpointing.with_checkpoint(held.rendered, checkpoint, self._adapter),
            self.snapshot,
            list(fitted.natives),
            fitted.tokens,
            budget,
            tokenizer,
            waited_seconds=self._house.clock.monotonic() - started,
            active_source=whole.source,
            repeated_bytes=dispatch.repeated_bytes(before, held),
            checkpointed=0 if checkpoint is None else checkpoint.records,
        )
        shown = () if checkpoint is None else checkpoint.refs
        receipts.remember(self._scope, self._pk, held.rendered.step, context.receipt, shown)
        return context

    def _dispatchable(self) -> DispatchState:
        """The state of a turn that runs, under a pin that holds: taken again where something it could see is gone."""
        while True:
            try:
                with self._scope.store.read() as db:
                    state = dispatch.dispatchable(self._scope, db, self._pk)
                    if state.pin and not self.snapshot.id.endswith(f".{state.pin}"):  # another process has pinned again
                        self.snapshot = self._eyes(db).snapshot
                    return state
            except SnapshotInvalid:
                self.snapshot = pins.pin_again(self._scope, self._pk)

    # ---- sealing -----------------------------------------------------------------------------------------------------

    def add(self, *messages: M | HostMessage) -> tuple[str, ...]:
        """
        Seal the turn's next messages, in one transaction; natives are held as given for :meth:`context`.

        Calls and results that are sealed already are answered with their refs; so are messages whose key is.

        Raises:
            TurnEnded: the turn has its outcome.
            RevisionConflict, ResyncNeeded: what is sealed under the same key differs.
        """
        return self._seal([take(self._adapter, message) for message in messages])

    def observe(self, messages: Sequence[M]) -> tuple[str, ...]:
        """
        Seal what is new of the whole turn so far, request first. Idempotent: again, any number of times.

        A message's place in the list is its identity, where it has no key and its calls have no id; a :meth:`report`
        that the list does not have is passed over.

        Raises:
            TurnEnded: there is something new, and the turn has its outcome.
            RevisionConflict, ResyncNeeded: what is sealed differs from what is delivered.
        """
        self._house.writable()
        with self._lock:
            retrieved = self._retrieved()
            said = [self._adapter.decode(message) for message in messages]
            ordinals = ingest.places(self._scope, self._pk, said)
            parts = [
                part
                for ordinal, each in zip(ordinals, said, strict=True)
                for part in ingest.prepare(self._scope, each, turn_id=self.id, ordinal=ordinal, retrieved=retrieved)
            ]
            sealed = ingest.seal_at(self._scope, self._pk, *self._name, parts)
            for ordinal, message in zip(ordinals, messages, strict=True):
                self._natives.hold(ordinal, (message,))
            self._natives.handed_again()
            return sealed.refs

    def stage(self, message: M | HostMessage) -> None:
        """
        Keep a message that is not final: durable, replaced under its key, never shown, dropped when it is sealed or the
        turn ends.

        Raises:
            BadArgument: a message that is staged needs a key, or a call id.
            TurnEnded: the turn has its outcome.
        """
        self._house.writable()
        neutral = take(self._adapter, message).neutral
        for said in neutral:
            if said.key is None and not any(isinstance(part, (ToolCallPart, ToolResultPart)) for part in said.parts):
                raise BadArgument("a staged message is replaced by its key; give it one, or wait until it is final")
        ingest.stage_message(self._scope, self._pk, self.id, neutral)

    def user(self, text: str, *, key: str | None = None) -> tuple[str, ...]:
        """Seal what the user said while the turn runs: steering."""
        return self._say(HostMessage.user(text, key=key))

    def assistant(self, text: str, *, calls: Sequence[ToolCallPart] = (), key: str | None = None) -> tuple[str, ...]:
        """Seal what the assistant said and called, a record for the text and one for each call."""
        if not isinstance(text, str):
            raise BadArgument(f"the assistant's text is a str, not {type(text).__name__}; natives go to add()")
        return self._say(HostMessage.assistant(text, calls, key=key))

    def tool_call(self, call_id: str, name: str, arguments: str | Mapping[str, object]) -> tuple[str, ...]:
        """Seal a call. ``arguments``: JSON text as produced, or a parsed object. Idempotent by call id."""
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        part = ToolCallPart(call_id, name, written)
        return self._say(HostMessage.assistant("", [part]))

    def tool_result(
        self, call_id: str, content: Content | ToolOutput, *, is_error: bool = False, truncated: bool = False
    ) -> tuple[str, ...]:
        """
        Seal what a tool answered. Idempotent by call id.

        A memory tool's own output is kept as provenance: what was retrieved, not the text.

        Args:
            truncated: the host had already cut it: said wherever it is shown.
        """
        if isinstance(content, ToolOutput):
            said, is_error = content_parts(content.text), is_error or content.is_error
        else:
            said = content_parts(content)
        part = ToolResultPart(call_id, said, is_error, truncated)
        return self._say(HostMessage("tool", (part,)))

    def report(self, name: str, text: str, *, complete: bool = True) -> tuple[str, ...]:
        """Seal a subagent's or background report; ``complete=False``: only a preview of it is known."""
        return self._say(HostMessage("tool", (ReportPart(name, text, complete),)))

    @property
    def _name(self) -> tuple[str, int]:
        return self._session.session_id, self._session.generation

    def _say(self, message: HostMessage) -> tuple[str, ...]:
        return self._seal([take(self._adapter, message)])

    def _seal(self, taken: Sequence[Taken[M]]) -> tuple[str, ...]:
        self._house.writable()
        with self._lock:
            answers = any(
                isinstance(part, ToolResultPart) for each in taken for said in each.neutral for part in said.parts
            )
            retrieved = self._retrieved() if answers else ingest.NOTHING_RETRIEVED

            def make(first: int) -> list[tuple[SealedPart, ...]]:
                return [
                    ingest.prepare(
                        self._scope, each.neutral, turn_id=self.id, ordinal=first + number, retrieved=retrieved
                    )
                    for number, each in enumerate(taken)
                ]

            taken, silent = self._natives.with_silent(taken)
            done = ingest.seal_next(self._scope, self._pk, *self._name, make, self._next)
            if done.sealed.new:
                self._next = done.ordinals[-1] + 1
                held = [not self._is_late(each) for each in taken]
                self._natives.hold_new(done.ordinals, taken, done.fresh, held)
            self._natives.wait_for_words(silent, sealed=bool(done.sealed.new))
            return done.sealed.refs

    def _retrieved(self) -> ingest.Retrieved:
        with self._scope.store.read() as db:
            return dispatch.retrieved(db, self._pk)

    def _is_late(self, taken: Taken[M]) -> bool:
        """Whether a neutral result answers a call of an earlier turn: it is sealed as that, and sent as a report."""
        if not isinstance(self._adapter, NeutralAdapter):
            return False  # a host's own message is sent as the host made it
        answered = [part.call_id for said in taken.neutral for part in said.parts if isinstance(part, ToolResultPart)]
        if not answered:
            return False
        with self._scope.store.read() as db:
            return not dispatch.call_ids(db, self._pk).issuperset(answered)

    def hold_request(self, request: Taken[M]) -> None:
        """The request as the host has it: for the session that made the turn."""
        self._is_new = True
        if request.natives:
            self._natives.hold(0, request.natives)

    # ---- memory tools ------------------------------------------------------------------------------------------------

    def call(self, name: str, arguments: str | Mapping[str, object]) -> ToolOutput:
        """
        Run a memory tool under the turn's snapshot (§ 8); seals nothing.

        A model's mistake (bad JSON, a bad ref) is an answer with ``is_error``; what was shown is recorded as the turn's
        foreign context.

        Raises:
            BadArgument: ``name`` is no memory tool.
            TurnEnded: the turn has its outcome.
            ResyncNeeded: the session's memory is off.
        """
        if name not in TOOL_NAMES:
            raise BadArgument(f"{name[:80]!r} is no memory tool; run it yourself, and check `name in turn.tools` first")
        self._house.writable()
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
        with self._reading() as (db, eyes):
            row = dispatch.open_row(db, self._pk)
            ingest.check_on(db, self._pk)
            given = answering.answer(eyes, db, self._tokenizer, name, written)
        if row.outcome is not None:
            raise TurnEnded(
                f"turn {self.id} has ended as {row.outcome}; begin a new turn to read on", outcome=row.outcome
            )
        own_end = 0 if eyes.own is None else eyes.own.end
        answering.keep(self._scope, self._pk, name, to_bytes(written), own_end, given)
        return given.output

    # ---- end ---------------------------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """
        Leave the turn open, with its snapshot, for :meth:`Session.resume` in any process. Idempotent.

        Raises:
            TurnEnded: the turn has its outcome.
        """
        self._house.writable()
        turns.suspend(self._scope, self._pk)
        self._suspended = True
        self._house.done(self._pk)

    def end(self, outcome: Outcome, detail: str | None = None) -> None:
        """
        End the turn as told; the first terminal report wins, later ones change nothing.

        What it said joins its session's view and, if it needs no model, is published at once (§ 5). It never waits.

        Raises:
            BadArgument: no such outcome.
        """
        if outcome not in OUTCOMES:
            raise BadArgument(f"an outcome is 'completed', 'failed' or 'interrupted', not {outcome!r}")
        self._end(outcome, detail)

    def _end(self, outcome: Outcome | None, detail: str | None) -> None:
        self._house.writable()
        self._outcome = turns.end(self._scope, self._pk, outcome, detail)
        self._house.done(self._pk)

    def __enter__(self) -> Turn[M]:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /) -> None:
        if self._suspended or self._outcome is not None:
            return
        if et is None:
            self._end(None, None)
            return
        outcome: Outcome = "failed" if issubclass(et, Exception) else "interrupted"
        try:
            self._end(outcome, et.__name__)
        except Exception as ending:  # noqa: BLE001 - whatever it is, the caller's own error must not be hidden by it
            # The caller's error is the one to see; that the end could not be written is told beside it. Upkeep, or the
            # next turn, ends it.
            if e is not None:
                e.add_note(f"optchat could not end the turn: {ending}")
