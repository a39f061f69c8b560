"""
Dispatch (§ 7): what a running turn needs before each model call.

Decides: whether the rendering that a process holds still stands, and which of a turn's calls are open.
Refuses to know: waiting, and natives beyond the adapter's codec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NoReturn, TypeVar

from attrs import evolve, frozen

from optchat.core.budget import Budget, available_memory
from optchat.core.errors import IntegrityError, SnapshotInvalid, TurnEnded
from optchat.core.messages import HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.policy import Readiness
from optchat.core.ports import HostAdapter, Tokenizer
from optchat.core.snapshots import snapshot_label
from optchat.core.terms import Role
from optchat.core.tools import TOOL_NAMES
from optchat.engine.anchoring import last_request
from optchat.engine.answering import turn_reading
from optchat.engine.handle import Scope
from optchat.engine.ingest import NOTHING_RETRIEVED, Retrieved, check_on
from optchat.engine.pins import check_pin, check_turn
from optchat.engine.reading import Recall
from optchat.engine.rendering import Rendered, render
from optchat.store import ledger, payloads, registry, renderings, scopes, turns as stored
from optchat.store.ledger import RecordRow
from optchat.store.registry import SessionRow
from optchat.store.renderings import DispatchState
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

M = TypeVar("M")


@frozen
class Held(Generic[M]):
    """A rendering in memory, and what it was made for: the tokenizer counts its charges."""

    rendered: Rendered[M]
    tokenizer: str


def open_row(db: Connection, turn_pk: int) -> TurnRow:
    """The turn's row; IntegrityError where a handle's turn is gone."""
    row = stored.load_turn(db, turn_pk)
    if row is None:
        raise IntegrityError("the turn is no longer stored; begin a new one")
    return row


def dispatchable(scope: Scope, db: Connection, turn_pk: int) -> DispatchState:
    """
    Whether the turn still runs and its pin still holds: the first thing that each model call reads.

    Raises:
        TurnEnded: it does not, or never pinned anything.
        SessionDeleted: its session was deleted.
        SnapshotInvalid: something that it could see was removed since it pinned.
        ResyncNeeded: its session's memory is off.
    """
    state = renderings.dispatch_state(db, turn_pk)
    if state is None:
        raise IntegrityError("the turn is no longer stored; begin a new one")
    if state.removed:
        check_turn(db, open_row(db, turn_pk))
    if state.outcome is not None:
        raise TurnEnded(f"the turn has ended as {state.outcome}; begin a new one", outcome=state.outcome)
    if state.pinned_epoch is None:
        raise TurnEnded("the turn pinned nothing: it is a note's or an import's; begin a new one", outcome="completed")
    check_on(db, turn_pk)
    if state.epoch != state.pinned_epoch:
        eyes = turn_reading(scope, db, turn_pk)
        if eyes is None:
            raise_invalid()
        check_pin(scope, db, state.pinned_epoch, eyes.sight)
    return state


def repeated(
    state: DispatchState,
    held: Held[M] | None,
    budget: Budget,
    tokenizer: Tokenizer,
    active_tokens: int,
    readiness: Readiness,
) -> Held[M] | None:
    """The rendering in memory, if it still is the turn's newest, fits this call, and covers what is wanted."""
    if held is None or held.tokenizer != tokenizer.name or held.rendered.step != state.step:
        return None
    return held if fits(held, available_memory(budget, active_tokens), readiness) else None


def make_rendering(
    scope: Scope,
    turn_pk: int,
    session: SessionRow,
    adapter: HostAdapter[M],
    budget: Budget,
    tokenizer: Tokenizer,
    active_tokens: int,
    readiness: Readiness,
) -> Held[M]:
    """
    The turn's memory for one call: as it was written down, or rendered now and written down.

    Raises:
        TurnEnded, SnapshotInvalid, SummariesPending, CoverTooLarge, ContextTooLarge: as ``Turn.context``.
    """
    with scope.store.read() as db:
        dispatchable(scope, db, turn_pk)
        descriptor = renderings.load_descriptor(db, turn_pk)
        assert descriptor is not None, "its epoch was read a moment ago"
        moment = scopes.find_moment(db, scope.pk, descriptor.clock)
        if moment is None:
            raise_invalid()
        label = snapshot_label(descriptor.clock, descriptor.pin)
        generation, written = open_row(db, turn_pk).generation_pk, renderings.load_rendering(db, turn_pk)
        last = last_request(db, generation, descriptor) if written is None else "it is written down"
        rendered, row = render(
            scope,
            db,
            registry.session_as_of(db, generation),
            descriptor,
            written,
            last=last,
            snapshot_label=label,
            first_step=renderings.next_step(db, turn_pk),
            budget=budget,
            tokenizer=tokenizer,
            adapter=adapter,
            active_tokens=active_tokens,
            readiness=readiness,
        )
    if row is None:
        return Held(rendered, tokenizer.name)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        dispatchable(scope, db, turn_pk)  # a removal may have come first: what it took must not be given out after it
        renderings.insert_rendering(db, row)
        kept = renderings.load_rendering(db, turn_pk)
    if kept is None or kept.memory_sha256 != row.memory_sha256:
        # Another process rendered this step first, with more or fewer leaves landed: its bytes are the turn's. Or it
        # has pinned again, and nothing is rendered under that pin yet.
        return make_rendering(scope, turn_pk, session, adapter, budget, tokenizer, active_tokens, readiness)
    return Held(rendered, tokenizer.name)


def fits(held: Held[M], available: int, readiness: Readiness) -> bool:
    """Whether a held rendering fits what is left for memory, and covers what is wanted."""
    return held.rendered.tokens <= available and not (held.rendered.missing and readiness == "strict")


def repeated_bytes(before: Held[M] | None, now: Held[M]) -> int:
    """The bytes of memory that stand where the last request had them: what a provider's cache can read."""
    if before is None:
        return now.rendered.repeated
    total = 0
    for old, new, size in zip(before.rendered.blocks, now.rendered.blocks, now.rendered.sizes, strict=False):
        if old.text != new.text:
            break
        total += size
    return total


def raise_invalid() -> NoReturn:
    """The marks of the turn's snapshot are kept no longer."""
    raise SnapshotInvalid("the snapshot of this turn is kept no longer; end it and begin a new one")


# ---- what a turn has sealed ------------------------------------------------------------------------------------------


def _role(record: RecordRow) -> Role:
    if record.kind in ("user", "note"):
        return "user"
    return "assistant" if record.kind in ("assistant", "tool_call") else "tool"


def sealed_messages(
    db: Connection, turn_pk: int, recall: Recall, without: frozenset[int] = frozenset()
) -> list[tuple[int, HostMessage]]:
    """
    A turn's sealed messages as they were said, with their ordinals; memory answers are rendered again.

    Args:
        without: ordinals that the caller has already.
    """
    found: list[tuple[int, HostMessage]] = []
    for ordinal, records in _by_message(ledger.records_of_turn(db, turn_pk)):
        if ordinal not in without:
            parts = tuple(_part(db, record, turn_pk, recall) for record in records)
            found.append((ordinal, HostMessage(_role(records[0]), parts, at=records[0].time)))
    return found


def sendable_messages(
    db: Connection, turn_pk: int, recall: Recall, without: frozenset[int]
) -> list[tuple[int, HostMessage]]:
    """
    :func:`sealed_messages` as they can be sent: a result that answers a call of an earlier turn, or of none, as a
    report, since a provider would refuse it as a result.
    """
    called = call_ids(db, turn_pk)
    return [
        (ordinal, evolve(message, parts=tuple(_sendable(part, called) for part in message.parts)))
        for ordinal, message in sealed_messages(db, turn_pk, recall, without)
    ]


def _sendable(part: Part, called: frozenset[str]) -> Part:
    if not isinstance(part, ToolResultPart) or part.call_id in called:
        return part
    said = "".join(item.text for item in part.content if isinstance(item, TextPart))
    return ReportPart(f"late result of {part.call_id}", said, complete=not part.truncated)


def _by_message(records: Sequence[RecordRow]) -> Iterator[tuple[int, list[RecordRow]]]:
    """Records in groups of one message and role: a native that decoded to several messages gives several groups."""
    group: list[RecordRow] = []
    for record in records:
        if group and (record.message != group[0].message or _role(record) != _role(group[0])):
            yield group[0].message, group
            group = []
        group.append(record)
    if group:
        yield group[0].message, group


def call_ids(db: Connection, turn_pk: int) -> frozenset[str]:
    """The ids of the calls that a turn made."""
    return frozenset(ledger.call_ids(db, turn_pk))


def _part(db: Connection, record: RecordRow, turn_pk: int, recall: Recall) -> Part:
    part = payloads.load_part(db, record)
    if record.kind == "note" and isinstance(part, TextPart):
        return ReportPart("note", part.text)  # a note is nobody's words: it must not come back as the user's
    if isinstance(part, ToolResultPart) and record.structure is not None and "retrieved" in record.structure:
        again = recall(db, turn_pk, bytes.fromhex(record.structure["retrieved"]))
        text = again or f"[{record.structure['memory']}; it can no longer be rendered]"
        return evolve(part, content=(TextPart(text),))
    return part


def pending(db: Connection, turn_pk: int) -> tuple[ToolCallPart, ...]:
    """The turn's calls that no result answers, in order."""
    parts = [payloads.load_part(db, record) for record in ledger.pending_calls(db, turn_pk)]
    return tuple(part for part in parts if isinstance(part, ToolCallPart))


def retrieved(db: Connection, turn_pk: int) -> Retrieved:
    """The turn's calls of memory tools, and the answers that it was given: what sealing recognises as provenance."""
    answers = frozenset(stored.answer_hashes(db, turn_pk))
    if not answers:  # the common turn: no answer to recognise, and no record to look at
        return NOTHING_RETRIEVED
    calls: dict[str, str] = {}
    for record in ledger.memory_calls(db, turn_pk):
        structure = record.structure or {}
        if structure.get("name") in TOOL_NAMES:
            calls[str(structure["call_id"])] = str(structure["name"])
    return Retrieved(calls, answers)
