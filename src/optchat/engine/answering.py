"""
Memory tools (§ 8): what a model's call is answered with, and the provenance that is kept of it.

Decides: nothing that core does not: it runs a read under the turn's sight and renders it as JSON of bounded size.
Refuses to know: hosts.

Answers are deterministic: the same call under the same pin, with the same own boundary, gives the same bytes. So an
answer need not be stored: its arguments, boundary and hash are, and zoom renders it again. A model's mistake is an
answer too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from optchat.core.answers import answer_json, fitting
from optchat.core.errors import BadArgument, OptchatError, RefError, UnknownRef
from optchat.core.ports import Tokenizer
from optchat.core.records import to_bytes
from optchat.core.refs import KEY_BITS, PublicationRef, parse_ref
from optchat.core.render import encodable
from optchat.core.retrieval import Dates, Page, SearchPage, SessionInfo, ZoomResult, read_time
from optchat.core.tools import DateCall, SearchCall, SessionsCall, ToolOutput, WorkCall, ZoomCall, read_arguments
from optchat.core.views import FrontierState
from optchat.engine.handle import Scope
from optchat.engine.ingest import answer_sha256
from optchat.engine.listing import find_report, sessions
from optchat.engine.pins import check_turn
from optchat.engine.reading import Recall, date, zoom
from optchat.engine.searching import search
from optchat.engine.sights import Reading, session_reading
from optchat.store import registry, renderings, scopes, turns
from optchat.store.rows import Connection

Asked = ZoomCall | SearchCall | DateCall | SessionsCall | WorkCall
Answered = ZoomResult | SearchPage | Dates | Page[SessionInfo]

SESSIONS_LIMIT = 50


@frozen
class Answer:
    """A tool's answer, the refs that it showed, and the publications among them."""

    output: ToolOutput
    refs: tuple[str, ...]
    publications: tuple[int, ...]


def answer(
    reading: Reading, db: Connection, tokenizer: Tokenizer, name: str, arguments: str | Mapping[str, object]
) -> Answer:
    """Read a model's call, run it under a turn's sight, and render what comes of it."""
    try:
        asked = read_arguments(name, arguments)
        result = _run(reading, db, tokenizer, asked, None)
        most = fitting(result)
        if most is not None and most > 0:
            result = _run(reading, db, tokenizer, asked, most)
    except (BadArgument, RefError) as error:
        return Answer(ToolOutput(mistake(error), is_error=True), (), ())
    refs = _refs(result)
    return Answer(ToolOutput(answer_json(result)), refs, _publications(refs))


def _run(reading: Reading, db: Connection, tokenizer: Tokenizer, asked: Asked, most: int | None) -> Answered:
    """Carry out a call; ``most`` bounds its items, lines, or bytes of text."""
    recall = recaller(reading.scope, tokenizer)
    match asked:
        case ZoomCall(ref, depth, cursor, max_tokens):
            return zoom(
                reading,
                db,
                ref,
                depth=depth,
                cursor=cursor,
                max_tokens=max_tokens,
                tokenizer=tokenizer,
                recall=recall,
                most=most,
            )
        case WorkCall(name, cursor):
            return work(reading, db, name, cursor=cursor, tokenizer=tokenizer, recall=recall, most=most)
        case SearchCall(query, session, kind, before, after, order, limit, cursor):
            return search(
                reading,
                db,
                query,
                session=session,
                kind=kind,
                before=read_time("before", before),
                after=read_time("after", after),
                order=order,
                limit=limit if most is None else min(limit, most),
                cursor=cursor,
            )
        case DateCall(ref):
            return date(reading, db, ref)
        case SessionsCall(cursor):
            return sessions(reading, db, archived=False, limit=SESSIONS_LIMIT if most is None else most, cursor=cursor)


def work(
    reading: Reading,
    db: Connection,
    name: str,
    *,
    cursor: str | None,
    tokenizer: Tokenizer,
    recall: Recall,
    most: int | None = None,
) -> ZoomResult:
    """The newest report of that name that the reader may see, as zoom opens it."""
    ref = find_report(reading, db, name)
    if ref is None:
        raise UnknownRef(f"no report named {name[:80]!r} is here; memory_search finds reports by their words")
    return zoom(
        reading, db, ref, depth=1, cursor=cursor, max_tokens=None, tokenizer=tokenizer, recall=recall, most=most
    )


def recaller(scope: Scope, tokenizer: Tokenizer) -> Recall:
    """Renders a turn's memory answers again, by their hash: the same call under the same pin and boundary."""

    def recall(db: Connection, turn_pk: int, digest: bytes) -> str | None:
        row = turns.find_retrieval(db, turn_pk, digest)
        reading = None if row is None else turn_reading(scope, db, turn_pk, row.own_end, row.pin)
        if row is None or reading is None:
            return None
        text = answer(reading, db, tokenizer, row.tool, row.arguments.decode("utf-8", "surrogatepass")).output.text
        return text if answer_sha256(text) == digest else None

    return recall


def turn_reading(
    scope: Scope, db: Connection, turn_pk: int, own_end: int | None = None, pin: int | None = None
) -> Reading | None:
    """
    A turn's eyes: its pin, and its session's records below ``own_end`` (None: all that its live turn has sealed so
    far).

    Args:
        pin: which of its pins; None: the present one. They differ in their labels.

    Returns:
        None for a turn that pinned nothing: a note, or an imported one.
    """
    descriptor, turn = renderings.load_descriptor(db, turn_pk), turns.load_turn(db, turn_pk)
    if descriptor is None or turn is None:
        return None
    session = registry.session_as_of(db, turn.generation_pk)
    chain = scope.chain(db, turn.segment_pk)
    end = own_end
    if end is None:
        end = (
            turn.end_seq
            if turn.end_seq is not None
            else registry.segment_length(db, turn.segment_pk, chain.own.base_length)
        )
    moment = scopes.find_moment(db, scope.pk, descriptor.clock)
    pin = descriptor.pin if pin is None else pin
    epoch = renderings.pinned_epoch(db, turn_pk, pin) if pin else descriptor.epoch
    if moment is None or epoch is None:
        return None
    if pin:
        moment = evolve(moment, epoch=epoch)
    pinned = evolve(scope, policy=evolve(scope.policy, page_bytes=descriptor.settings["page_bytes"]))
    reading = session_reading(pinned, moment, session, chain, end, pin)
    view = FrontierState(descriptor.own_levels, descriptor.own_shrinking)
    own = None if reading.own is None else evolve(reading.own, view=view, history=descriptor.own_end)
    return evolve(reading, own=own)


def keep(scope: Scope, turn_pk: int, name: str, arguments: bytes, own_end: int, given: Answer) -> None:
    """Record what a turn was told: the call, the refs and the hash of the answer, never its text."""
    data = to_bytes(given.output.text)
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        turn, descriptor = turns.load_turn(db, turn_pk), renderings.load_descriptor(db, turn_pk)
        if turn is not None:
            check_turn(db, turn)  # nothing is kept of what was deleted while it was asked
        turns.insert_retrieval(
            db,
            turn_pk=turn_pk,
            tool=name,
            arguments=arguments,
            pin=0 if descriptor is None else descriptor.pin,
            own_end=own_end,
            is_error=given.output.is_error,
            refs=given.refs,
            size=len(data),
            sha256=answer_sha256(given.output.text),
            at=scope.now(),
            publications=[scope.pk << KEY_BITS | number for number in given.publications],
        )


def mistake(error: OptchatError) -> str:
    """How a model is told of an error: its code, and the message that says what to do."""
    return json.dumps({"error": error.code, "message": encodable(str(error))}, ensure_ascii=False)


def _refs(result: Answered) -> tuple[str, ...]:
    if isinstance(result, ZoomResult):
        turn = () if result.turn is None or result.turn.publication_ref is None else (result.turn.publication_ref,)
        return tuple(dict.fromkeys((result.ref, *turn, *(line.ref for line in result.lines))))
    if isinstance(result, SearchPage):
        hits = [(hit.ref, hit.publication_ref) for hit in result.items]
        return tuple(dict.fromkeys(ref for pair in hits for ref in pair if ref is not None))
    if isinstance(result, Dates):
        return (result.ref,)
    return ()


def _publications(refs: Sequence[str]) -> tuple[int, ...]:
    """The single publications that an answer showed: the turn's foreign context."""
    parsed = [parse_ref(ref) for ref in refs]
    return tuple(ref.span.start for ref in parsed if isinstance(ref, PublicationRef) and ref.span.count == 1)
