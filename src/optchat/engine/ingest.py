"""
Ingestion (§ 3): from finalized messages to sealed records, exactly once.

Decides: nothing that core does not: hashing, words and pages are made before the transaction, which only compares and
inserts. Refuses to know: hosts, and when a turn begins or ends.

Atomic: a message's records, events, leaves, documents and jobs appear together. Idempotent: by event key. Bytes too
large for one transaction are staged before it, in steps, and become reachable only by the seal that links them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import frozen

from optchat.core import records as rules
from optchat.core.errors import GenerationSuperseded, ResyncNeeded, RevisionConflict
from optchat.core.lineage import Chain
from optchat.core.messages import HostMessage, TextPart, ToolCallPart, ToolResultPart
from optchat.core.publications import turn_after
from optchat.core.records import PIECE_BYTES, BlobRef, SealedPart, readable_bytes, spoken_text
from optchat.core.refs import KEY_BITS, KEY_MASK, Span, session_ref
from optchat.core.terms import RecordKind
from optchat.core.tools import TOOL_NAMES
from optchat.core.tree import Node
from optchat.core.words import INDEXED_AT_ONCE_BYTES, words_of
from optchat.engine import receipts
from optchat.engine.handle import Scope, microseconds, utc_offset_seconds
from optchat.engine.landing import Landing
from optchat.engine.pins import check_turn
from optchat.engine.trees import session_tree
from optchat.store import hosts, ledger, payloads, queue, registry, scopes, search, turns
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

STAGE_BYTES = 4 * 1024 * 1024  # the most that one staging transaction writes
IN_SEAL_BYTES = 1024 * 1024  # what a seal may write by itself: below it, a stage would only add a commit


@frozen
class Prepared:
    """A sealed part with everything that takes time: its words for the index, or that they are left to a job."""

    sealed: SealedPart
    words: str | None
    index_later: bool


@frozen
class Sealed:
    """What sealing answered: canonical refs in order, how many records are new, and which of the parts these are."""

    refs: tuple[str, ...]
    new: int
    fresh: frozenset[int] = frozenset()


@frozen
class Retrieved:
    """What a turn's memory tools answered: calls by id, and the hashes of the answers that are on record."""

    calls: Mapping[str, str]
    answers: frozenset[bytes]


NOTHING_RETRIEVED = Retrieved({}, frozenset())


def answer_sha256(text: str) -> bytes:
    """The hash by which a memory tool's answer is recognised in a result."""
    return hashlib.sha256(rules.to_bytes(text)).digest()


def prepare(
    scope: Scope,
    messages: Sequence[HostMessage],
    *,
    turn_id: str,
    ordinal: int,
    kind: RecordKind | None = None,
    retrieved: Retrieved = NOTHING_RETRIEVED,
) -> tuple[SealedPart, ...]:
    """
    What one native message (as one or several neutral ones) seals into; outside any transaction.

    A memory tool's call and answer are provenance, not evidence: their text is neither stored nor indexed.
    """
    prepared: list[SealedPart] = []
    calls = dict(retrieved.calls)
    for message in messages:
        sealed = rules.seal_message(
            message,
            turn_id=turn_id,
            ordinal=ordinal,
            node_bytes=scope.row.node_bytes,
            first_part=len(prepared),
            kind=kind,
        )
        for part, made in zip(message.parts, sealed, strict=True):
            prepared.append(_as_provenance(scope, part, made, calls, retrieved.answers))
    return tuple(prepared)


def _as_provenance(
    scope: Scope, part: object, sealed: SealedPart, calls: dict[str, str], answers: frozenset[bytes]
) -> SealedPart:
    if isinstance(part, ToolCallPart) and part.name in TOOL_NAMES:
        calls[part.call_id] = part.name
        return rules.with_memory(part, sealed, scope.row.node_bytes, memory=part.name)
    if isinstance(part, ToolResultPart) and answers and all(isinstance(p, TextPart) for p in part.content):
        # By what it says, whatever the call is named: a client of the MCP server may put its own name before a tool's.
        text = "".join(p.text for p in part.content if isinstance(p, TextPart))
        digest = answer_sha256(text)
        if digest in answers:
            size = len(rules.to_bytes(text))
            note = f"{calls.get(part.call_id, 'memory')} answered {readable_bytes(size)}"
            return rules.with_memory(part, sealed, scope.row.node_bytes, memory=note, retrieved=digest.hex(), size=size)
    return sealed


def ready(scope: Scope, parts: Sequence[SealedPart], new: Sequence[SealedPart] | None = None) -> tuple[Prepared, ...]:
    """
    Parts ready for :func:`seal`: their words made and their large bytes staged, which is what takes longest.

    Args:
        new: those of them that are not sealed yet, as far as is known; None: all. The others are only compared.
    """
    fresh = {id(part) for part in (parts if new is None else new)}
    stage_bytes(scope, (part for part in parts if id(part) in fresh))
    return tuple(
        _prepared(scope, part) if id(part) in fresh else Prepared(part, None, index_later=False) for part in parts
    )


def unsealed(scope: Scope, db: Connection, turn: TurnRow, parts: Iterable[SealedPart]) -> list[SealedPart]:
    """The parts that are not sealed as they are: words are made for these alone. Sealing looks again."""
    chain = history_of(scope, db, turn)
    given = list(parts)
    found = ledger.find_events(db, chain, (part.event_hash for part in given))
    return [part for part in given if part.event_hash not in found or found[part.event_hash][2] != part.sha256]


def missing_events(db: Connection, chain: Chain, prepared: Sequence[Prepared]) -> bool:
    """Whether any of these parts is sealed under no event key yet."""
    hashes = [part.sealed.event_hash for part in prepared]
    found = ledger.find_events(db, chain, hashes)
    return any(event not in found for event in hashes)


def _prepared(scope: Scope, sealed: SealedPart) -> Prepared:
    structure = rules.read_structure(sealed.structure)
    if structure is not None and "memory" in structure:
        return Prepared(sealed, None, index_later=False)
    if len(sealed.payload) > INDEXED_AT_ONCE_BYTES:
        return Prepared(sealed, None, index_later=True)
    words = words_of(spoken_text(sealed.kind, sealed.payload, structure), scope.row.pretokenizer)
    return Prepared(sealed, words or None, index_later=False)


def stage_bytes(scope: Scope, parts: Iterable[SealedPart]) -> None:
    """
    Write large bytes ahead of their seal, at most 4 MiB a transaction, so that no other writer waits for 50 MB.

    Idempotent: bytes are kept once by (scope, digest); pieces that are there stay. A crash leaves pieces that nothing
    names.
    """
    step = STAGE_BYTES // PIECE_BYTES
    for part in parts:
        for blob in part.blobs if part.apart is None else (part.apart, *part.blobs):
            if len(blob.data) <= IN_SEAL_BYTES:
                continue
            for first in range(0, _pieces(blob), step):
                with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
                    if _keep(db, scope, blob, first, step).was_there:
                        break


def _pieces(blob: BlobRef) -> int:
    return -(-len(blob.data) // PIECE_BYTES)


@frozen
class _Kept:
    blob_pk: int
    was_there: bool  # whole, before this call


def _keep(db: Connection, scope: Scope, blob: BlobRef, first: int = 0, count: int | None = None) -> _Kept:
    """Keep a blob, or the pieces of it from ``first`` on; with the last of them it is complete."""
    found = payloads.find_blob(db, scope.pk, blob.sha256)
    if found is not None and found[1]:
        return _Kept(found[0], was_there=True)
    pk = found[0] if found else payloads.create_blob(db, scope.pk, blob.sha256, len(blob.data))
    rest = _pieces(blob) - first
    written = rest if count is None else min(count, rest)
    payloads.write_pieces(db, pk, blob.data, first, written)
    # What is staged belongs to nobody until it is sealed: a removal may have erased the pieces before these meanwhile.
    # Then the seal, which begins with the first, writes all of them.
    if written == rest and (first == 0 or payloads.count_pieces(db, pk) == _pieces(blob)):
        payloads.complete_blob(db, pk)
    return _Kept(pk, was_there=False)


def seal(landing: Landing, turn: TurnRow, session_id: str, generation: int, prepared: Sequence[Prepared]) -> Sealed:
    """
    Seal prepared parts into a turn, inside the caller's transaction.

    What is sealed already is answered with its refs. Redelivered calls and results of one turn are known by their call
    id, other parts by their message's key, else by their place.

    Raises:
        RevisionConflict: the same event key and revision with other content.
        ResyncNeeded: a higher revision of what is sealed: the host edited its history; or memory is off since that.
        TurnEnded: new content for a turn that has its outcome.
        GenerationSuperseded: new content for a turn that was rewound.
    """
    db, scope = landing.db, landing.scope
    tree = session_tree(scope, db, turn.segment_pk)
    chain = history_of(scope, db, turn)
    seq = registry.segment_length(db, turn.segment_pk, tree.chain.own.base_length)
    refs: list[str] = []
    new: list[tuple[int, Prepared, int]] = []
    events = ledger.find_events(db, chain, (part.sealed.event_hash for part in prepared))
    fresh: set[int] = set()
    for number, part in enumerate(prepared):
        sealed = part.sealed
        found = events.get(sealed.event_hash)
        if found is not None:
            _check_same(sealed, *found)
            refs.append(session_ref(session_id, generation, found[0] & KEY_MASK))
            continue
        if turn.state == "ended":
            _check_not_superseded(scope, db, turn)
        if not new:
            check_on(db, turn.turn_pk)
        turn_after(turn.state, "seal", turn.outcome)
        key = turn.segment_pk << KEY_BITS | seq
        at = landing.at if sealed.at is None else microseconds(sealed.at)
        offset = 0 if sealed.at is None else utc_offset_seconds(sealed.at)
        blob = None if sealed.apart is None else _keep(db, scope, sealed.apart).blob_pk
        paired = None
        if sealed.kind == "tool_result" and sealed.call_id is not None:
            paired = ledger.find_call(db, chain, sealed.call_id, seq)
        ledger.insert_record(
            db,
            record_key=key,
            turn_pk=turn.turn_pk,
            sealed=sealed,
            at=at,
            utc_offset=offset,
            blob_pk=blob,
            paired_key=paired,
            leaf_format=scope.row.leaf_format,
        )
        if sealed.blobs:
            payloads.link_blobs(db, key, [_keep(db, scope, image).blob_pk for image in sealed.blobs])
        ledger.insert_event(db, turn.segment_pk, sealed.event_hash, sealed.revision, key)
        events[sealed.event_hash] = key, sealed.revision, sealed.sha256
        verbatim = None
        if sealed.leaf is not None and sealed.leaf_escaped is not None:
            verbatim = Node(Span(seq, 1), 0, "verbatim", sealed.leaf, sealed.leaf_escaped, 0, 0, at, at)
        landing.leaf_sealed(tree, seq, verbatim)
        refs.append(session_ref(session_id, generation, seq))
        new.append((key, part, at))
        fresh.add(number)
        seq += 1
    _index(landing, turn, new)
    if new:
        receipts.write_down(scope, db, turn.turn_pk)
    return Sealed(tuple(refs), len(new), frozenset(fresh))


def check_on(db: Connection, turn_pk: int) -> None:
    """
    Raises:
        ResyncNeeded: the memory of the turn's session is off.
    """
    if hosts.is_off(db, turn_pk):
        raise ResyncNeeded("this session differs from its host's history; call resync() with the host's messages")


def history_of(scope: Scope, db: Connection, turn: TurnRow) -> Chain:
    """
    Where what is delivered into a turn is looked for: its session's present history, if the turn is part of that.

    What was said above a boundary that the session was rewound to since is not there: its keys may come again.
    """
    chain = scope.chain(db, turn.segment_pk)
    if turn.state != "ended":
        return chain
    present = scope.chain(db, registry.session_of_generation(db, turn.generation_pk)[0].segment_pk)
    return present if present.of_record(turn.start_seq).segment == turn.segment_pk else chain


def _check_not_superseded(scope: Scope, db: Connection, turn: TurnRow) -> None:
    """A turn that is not part of its session's present history was rewound: its handle is of another time."""
    session = registry.session_of_generation(db, turn.generation_pk)[0]
    if scope.chain(db, session.segment_pk).of_record(turn.start_seq).segment != turn.segment_pk:
        raise GenerationSuperseded(
            f"turn {turn.turn_id} was rewound with its session {session.session_id}; take that anew with"
            " memory.session(...), and begin a turn there"
        )


def _check_same(sealed: SealedPart, record_key: int, revision: int, sha256: bytes) -> None:
    if sealed.sha256 == sha256 or sealed.revision < revision:
        return
    if sealed.revision > revision:
        raise ResyncNeeded(
            f"revision {sealed.revision} edits record {record_key & KEY_MASK}, which is sealed and not overwritten; "
            "begin a turn with an edited request; for any other message, rewind() the session before its turn and say"
            " it again, or resync() with the host's messages"
        )
    raise RevisionConflict(
        f"record {record_key & KEY_MASK} is sealed under the same event key with other content; "
        "give the message a key and a revision of its own, or deliver it as it was"
    )


def _index(landing: Landing, turn: TurnRow, new: list[tuple[int, Prepared, int]]) -> None:
    """Number the searchable new records, and leave large ones to jobs that number their pieces when they index them."""
    searchable = [(key, part, at) for key, part, at in new if part.words is not None]
    if searchable:
        first = scopes.take_document_numbers(landing.db, landing.scope.pk, len(searchable))
        search.insert_documents(
            landing.db,
            [
                search.NewDocument(
                    document_key=landing.scope.pk << KEY_BITS | first + number,
                    pretokenizer=landing.scope.row.pretokenizer,
                    kind=rules.KIND_NUMBER[part.sealed.kind],
                    segment_pk=turn.segment_pk,
                    turn_pk=turn.turn_pk,
                    start_seq=key & KEY_MASK,
                    end_seq=(key & KEY_MASK) + 1,
                    subject=key,
                    start_byte=0,
                    end_byte=None,
                    at=at,
                    visible=None,
                    words=part.words or "",
                )
                for number, (key, part, at) in enumerate(searchable)
            ],
        )
    for key, part, _at in new:
        if part.index_later:
            queue.add_job(landing.db, scope_pk=landing.scope.pk, kind="index", subject=key, at=landing.at)
            landing.jobs_added()


@frozen
class SealedNext:
    """What :func:`seal_next` answered, the message ordinals that it gave, and which messages were not sealed before."""

    sealed: Sealed
    ordinals: tuple[int, ...]
    fresh: tuple[bool, ...]


def seal_next(
    scope: Scope,
    turn_pk: int,
    session_id: str,
    generation: int,
    make: Callable[[int], Sequence[Sequence[SealedPart]]],
    guess: int | None,
) -> SealedNext:
    """
    Seal messages as the next ones of a turn, in one transaction.

    Args:
        make: the messages' parts, from the ordinal of the first. It is called again if another writer took that place
            meanwhile, so that hashing and words stay outside the transaction.
        guess: what the caller believes to be the next ordinal, from its last seal; None: it does not know. Where the
            guess is right, which the transaction itself checks, nothing is read before it.
    """
    while True:
        if guess is None:
            with scope.store.read() as db:
                turn = _turn(db, turn_pk)
                first = turns.last_message_ordinal(db, turn_pk) + 1
                messages = make(first)
                parts = [part for message in messages for part in message]
                new = unsealed(scope, db, turn, parts)
        else:
            first, guess = guess, None
            messages = make(first)
            new = parts = [part for message in messages for part in message]
        prepared = ready(scope, parts, new)
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            if turns.last_message_ordinal(db, turn_pk) + 1 != first:
                continue
            landing = Landing(scope, db, scope.now())
            sealed = seal(landing, _turn(db, turn_pk), session_id, generation, prepared)
            turns.drop_staged(db, turn_pk, [part.event_hash for part in parts])
            landing.finish()
        landing.after_commit()
        fresh: list[bool] = []
        end = 0
        for message in messages:
            start, end = end, end + len(message)
            fresh.append(not sealed.fresh.isdisjoint(range(start, end)))
        return SealedNext(sealed, tuple(range(first, first + len(messages))), tuple(fresh))


def places(scope: Scope, turn_pk: int, messages: Sequence[Sequence[HostMessage]]) -> list[int]:
    """The ordinals in a turn of its host's list, given as what each native message says."""
    with scope.store.read() as db:
        return rules.list_ordinals(messages, turns.sealed_beside(db, turn_pk))


def seal_at(scope: Scope, turn_pk: int, session_id: str, generation: int, parts: Sequence[SealedPart]) -> Sealed:
    """Seal parts that say themselves where they belong, in one transaction; none, if all of them are there."""
    with scope.store.read() as db:
        turn = _turn(db, turn_pk)
        new = unsealed(scope, db, turn, parts)
        if not new:
            found = ledger.find_events(db, history_of(scope, db, turn), (part.event_hash for part in parts))
            known = [found[part.event_hash][0] for part in parts]
            return Sealed(tuple(session_ref(session_id, generation, key & KEY_MASK) for key in known), 0)
    prepared = ready(scope, parts, new)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        sealed = seal(landing, _turn(db, turn_pk), session_id, generation, prepared)
        turns.drop_staged(db, turn_pk, [part.event_hash for part in parts])
        landing.finish()
    landing.after_commit()
    return sealed


def _turn(db: Connection, turn_pk: int) -> TurnRow:
    turn = turns.load_turn(db, turn_pk)
    assert turn is not None, "a handle's turn exists"
    check_turn(db, turn)
    return turn


def stage_message(scope: Scope, turn_pk: int, turn_id: str, messages: Sequence[HostMessage]) -> None:
    """
    Keep a message that is not final, in place of what was staged under its key.

    Durable, so that a crash in mid-stream loses nothing that was shown to the user; never read by any view or search.
    """
    parts: list[SealedPart] = []
    keyed: list[SealedPart] = []
    for message in messages:
        made = rules.seal_message(
            message, turn_id=turn_id, ordinal=0, node_bytes=scope.row.node_bytes, first_part=len(parts)
        )
        parts += made
        # A part without a key of its own goes by its place, which it has only once it is sealed.
        keyed += [part for part in made if message.key is not None or part.call_id is not None]
    if not keyed:
        return
    written = json.dumps([[part.kind, part.structure, rules.to_text(part.payload)] for part in parts]).encode()
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        turn = _turn(db, turn_pk)
        turn_after(turn.state, "seal", turn.outcome)
        turns.put_staged(db, turn_pk, keyed[0].event_hash, written, scope.now())
