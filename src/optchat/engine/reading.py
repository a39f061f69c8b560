"""
Reading (§ 8): zoom, date, source, view.

Decides: nothing that core does not: it resolves a ref under a reader's sight and returns what lies there.
Refuses to know: who the reader is beyond its sight.

Each function is called inside one read transaction, with a reading whose marks were loaded in it. No row is fetched
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from optchat.core.cursors import query_digest, read_cursor, write_cursor
from optchat.core.errors import BadArgument, BadCursor, IntegrityError, UnknownRef
from optchat.core.lineage import Chain, owner_of
from optchat.core.messages import BlobPart, ToolResultPart
from optchat.core.ports import Tokenizer
from optchat.core.records import decode_part, to_text
from optchat.core.refs import KEY_MASK, Span, exact_cover, publication_ref, session_ref
from optchat.core.render import line as rendered_line
from optchat.core.retrieval import Dates, Line, SourceRecord, TurnInfo, ZoomResult
from optchat.core.tools import MAX_DEPTH
from optchat.core.tree import Node
from optchat.engine.handle import Scope
from optchat.engine.naming import PublicationName, publication_names
from optchat.engine.sights import Reading, SessionTarget, SharedTarget, is_superseded, may_see, resolve, unknown
from optchat.engine.trees import SessionTree, shared_tree
from optchat.store import ledger, payloads, publications, registry, scopes, turns
from optchat.store.ledger import RecordRow
from optchat.store.publications import PublicationRow
from optchat.store.rows import Connection, moment_of
from optchat.store.turns import TurnRow

Recall = Callable[[Connection, int, bytes], str | None]
"""Renders a memory tool's answer again: from the turn's key and the hash of its text; None where it cannot be had any
more."""

REQUEST_CHARACTERS = 200


def zoom(
    reading: Reading,
    db: Connection,
    ref: str,
    *,
    depth: int,
    cursor: str | None,
    max_tokens: int | None,
    tokenizer: Tokenizer,
    recall: Recall,
    most: int | None = None,
) -> ZoomResult:
    """
    Open a ref: a node into its children ``depth`` levels down, a publication into its cover, a record into a page of
    its bytes.

    Args:
        most: at most that many lines, or bytes of text: for answers that must not pass a size.
    """
    if not 1 <= depth <= MAX_DEPTH:
        raise BadArgument(
            f"depth is a number of levels from 1 to {MAX_DEPTH}; open the lines that you get, to go deeper"
        )
    if max_tokens is not None and max_tokens < 1:
        raise BadArgument("max_tokens must be at least 1; leave it out for a whole page")
    target = resolve(reading, db, ref)
    digest = query_digest("zoom", target.ref, depth)
    offset = _offset(reading, cursor, digest)
    if isinstance(target, SessionTarget) and target.span.count == 1:
        return _record_page(reading, db, target, offset, digest, max_tokens, tokenizer, recall, most)
    if isinstance(target, SessionTarget):
        spans = spans_below(target.span, depth)
        lines = session_lines(reading, db, target, spans)
        superseded = is_superseded(reading, db, target)
        return _lines_page(
            reading, target.ref, "node", lines, offset, digest, max_tokens, tokenizer, most, superseded=superseded
        )
    if target.publication is None:
        lines = shared_lines(reading, db, spans_below(target.span, depth))
        return _lines_page(reading, target.ref, "node", lines, offset, digest, max_tokens, tokenizer, most)
    return _publication_page(reading, db, target, target.publication, offset, digest, max_tokens, tokenizer, most)


def _offset(reading: Reading, cursor: str | None, digest: str) -> int:
    if cursor is None:
        return 0
    read = read_cursor(cursor, digest)
    if len(read.position) != 1:
        raise BadCursor("that cursor belongs to another query; repeat the query that gave it, or ask without one")
    if not reading.sight.owner and read.clock != reading.clock:
        raise BadCursor("that cursor belongs to another snapshot; ask again without one")
    return read.position[0]


def spans_below(span: Span, depth: int) -> tuple[Span, ...]:
    """The spans ``depth`` levels under one, or its leaves where there are not so many levels."""
    level = max(0, span.level - depth)
    return tuple(Span.at(level, index) for index in range(span.start >> level, span.end >> level))


# ---- lines -----------------------------------------------------------------------------------------------------------


def session_lines(reading: Reading, db: Connection, target: SessionTarget, spans: Sequence[Span]) -> list[Line]:
    """Lines of a session's tree; a position whose summary is not there yet is a labelled line, never left out."""
    nodes = SessionTree(target.chain).nodes(db, spans, reading.clock)
    lines: list[Line] = []
    for span in spans:
        ref = session_ref(target.session.session_id, target.generation, span.start, span.count)
        node = nodes.get(span)
        if node is None or (span.count == 1 and node.kind != "tombstone"):
            first, last = _record_times(db, target.chain, span)
        else:
            first, last = _node_times(node)
        if node is None:
            lines.append(Line(ref, "stand_in", "[not summarised yet]", None, None, first, last, 0))
            continue
        lines.append(
            Line(
                ref, node.kind, node.text, target.session.session_id if span.count == 1 else None, None, first, last, 0
            )
        )
    return lines


def _record_times(db: Connection, chain: Chain, span: Span) -> tuple[datetime, datetime]:
    """When the first and the last record of a span were said; of what was removed nothing is told."""
    found = ledger.ends_of(db, chain, span.start, span.end)
    if found is None:
        raise IntegrityError(f"records of {span} are missing; run verify() and restore a backup")
    return found


def _node_times(node: Node) -> tuple[datetime, datetime]:
    return moment_of(node.first_at), moment_of(node.last_at)


def shared_lines(reading: Reading, db: Connection, spans: Sequence[Span]) -> list[Line]:
    """Lines of the shared tree, labelled from structure."""
    nodes = shared_tree(reading.scope).nodes(db, spans, reading.clock)
    names = publication_names(reading.scope, db, [span.start for span in spans if span.count == 1])
    return [_shared_line(reading.scope, db, span, nodes.get(span), names) for span in spans]


def _shared_line(
    scope: Scope, db: Connection, span: Span, node: Node | None, names: dict[int, PublicationName]
) -> Line:
    ref = publication_ref(span.start, span.count)
    name = names.get(span.start) if span.count == 1 else None
    if node is not None and node.kind == "tombstone":
        name = None  # its number is all that is left of it
    if node is None:
        first, last = _publication_times(scope, db, span)
        return Line(ref, "stand_in", "[not summarised yet]", None, None, first, last, 0)
    first, last = _node_times(node)
    return Line(
        ref,
        node.kind,
        node.text,
        None if name is None else name.session_id,
        None if name is None else name.outcome,
        first,
        last,
        node.not_completed,
    )


def _publication_times(scope: Scope, db: Connection, span: Span) -> tuple[datetime, datetime]:
    found = publications.load_publications(db, scope.pk, [span.start, span.end - 1])
    if len(found) < min(2, span.count):
        raise IntegrityError(f"publications of {span} are missing; run verify() and restore a backup")
    times = sorted(row.completed_at for row in found.values())
    return moment_of(times[0]), moment_of(times[-1])


def _lines_page(
    reading: Reading,
    ref: str,
    kind: str,
    lines: list[Line],
    offset: int,
    digest: str,
    max_tokens: int | None,
    tokenizer: Tokenizer,
    most: int | None,
    *,
    turn: TurnInfo | None = None,
    superseded: bool = False,
) -> ZoomResult:
    rest = lines[offset:]
    if not rest and offset:
        raise BadCursor("that cursor lies behind the last line; ask again without one")
    shown = rest if most is None else rest[:most]
    if max_tokens is not None:
        left, count = max_tokens, 0
        for line in shown:
            left -= tokenizer.count(rendered_line(line.ref, line.text))
            if left < 0 and count:  # one line at least, or paging would never end
                break
            count += 1
        shown = shown[:count]
    end = offset + len(shown)
    complete = end == len(lines)
    return ZoomResult(
        ref=ref,
        kind="publication" if kind == "publication" else "node",
        lines=tuple(shown),
        text=None,
        page=0 if offset == 0 else 1,
        complete=complete,
        cursor=None if complete else write_cursor(digest, reading.clock, end),
        first_at=min(line.first_at for line in lines),
        last_at=max(line.last_at for line in lines),
        snapshot=reading.snapshot,
        outcome=None if turn is None else turn.outcome,
        paired_ref=None,
        attachments=(),
        turn=turn,
        truncated=False,
        superseded=superseded,
    )


# ---- publications ----------------------------------------------------------------------------------------------------


def _publication_page(
    reading: Reading,
    db: Connection,
    target: SharedTarget,
    publication: PublicationRow,
    offset: int,
    digest: str,
    max_tokens: int | None,
    tokenizer: Tokenizer,
    most: int | None,
) -> ZoomResult:
    """A publication: its turn, and the lines of the session cover that it was made of."""
    turn = turns.load_turn(db, publication.turn_pk)
    if turn is None:
        raise IntegrityError(f"{target.ref} has no turn; run verify() and restore a backup")
    session, number = registry.session_of_generation(db, turn.generation_pk)
    chain = reading.scope.chain(db, turn.segment_pk)
    cover = SessionTarget(session, number, turn.generation_pk, chain, Span(publication.start_seq, 1))
    lines = session_lines(reading, db, cover, publication_cover(publication))
    info = turn_info(reading, db, turn)
    return _lines_page(
        reading, target.ref, "publication", lines, offset, digest, max_tokens, tokenizer, most, turn=info
    )


def publication_cover(publication: PublicationRow) -> tuple[Span, ...]:
    """The session nodes that cover a publication's records exactly (§ 5)."""
    return exact_cover(publication.start_seq, publication.end_seq)


def turn_info(reading: Reading, db: Connection, turn: TurnRow, known_as: tuple[str, int] | None = None) -> TurnInfo:
    """
    A turn as this reader may see it: its publication only if it counts under the reader's marks.

    Args:
        known_as: the session id and generation that name it; None: those that it was begun in. A fork's own history is
            known by the fork.
    """
    if known_as is None:
        session, number = registry.session_of_generation(db, turn.generation_pk)
        known_as = session.session_id, number
    chain = reading.scope.chain(db, turn.segment_pk)
    published = publications.number_of_turn(db, turn.turn_pk, reading.sight)
    return TurnInfo(
        id=turn.turn_id,
        ref=session_ref(*known_as, turn.start_seq),
        publication_ref=None if published is None else publication_ref(published),
        request=request_text(db, chain, turn),
        outcome=turn.outcome,
        started_at=moment_of(turn.started_at, turn.utc_offset),
        state=turn.state,
        ended_at=None if turn.ended_at is None else moment_of(turn.ended_at, turn.utc_offset),
        worktree=turn.worktree,
        commit=turn.commit_id,
    )


def request_text(db: Connection, chain: Chain, turn: TurnRow) -> str:
    """The beginning of what the user asked, '' where nobody did."""
    if not turn.has_request:
        return ""
    record = ledger.load_record(db, chain.record_key(turn.start_seq))
    if record is None or record.kind != "user" or record.turn_pk != turn.turn_pk:  # the last: a turn without records
        return ""
    page = payloads.load_payload_page(db, record, 0, 4 * REQUEST_CHARACTERS + 4)
    return page.decode("utf-8", "replace")[:REQUEST_CHARACTERS].rstrip("\ufffd")


# ---- records ---------------------------------------------------------------------------------------------------------


def _visible_record(db: Connection, target: SessionTarget) -> RecordRow:
    record = ledger.load_record(db, target.chain.record_key(target.span.start))
    if record is None or record.state != 0:
        raise unknown(target.ref)
    return record


def _record_page(
    reading: Reading,
    db: Connection,
    target: SessionTarget,
    offset: int,
    digest: str,
    max_tokens: int | None,
    tokenizer: Tokenizer,
    recall: Recall,
    most: int | None,
) -> ZoomResult:
    record = _visible_record(db, target)
    size, page_bytes = record.payload_bytes, reading.scope.policy.page_bytes
    recalled: bytes | None = None
    if record.structure is not None and "retrieved" in record.structure:
        again = recall(db, record.turn_pk, bytes.fromhex(record.structure["retrieved"]))
        recalled = (again or f"[{record.structure['memory']}; it can no longer be rendered]").encode(
            "utf-8", "surrogatepass"
        )
        size = len(recalled)
    if offset > size:
        raise BadCursor("that cursor lies behind the last byte; ask again without one")
    wanted = min(page_bytes, max(4, most)) if most is not None else page_bytes
    data = (
        payloads.load_payload_page(db, record, offset, wanted + 4)
        if recalled is None
        else recalled[offset : offset + wanted + 4]
    )
    page = whole_characters(data, wanted)
    if max_tokens is not None:
        page = _within_tokens(page, max_tokens, tokenizer)
    end = offset + len(page)
    complete = end >= size
    turn = turns.load_turn(db, record.turn_pk)
    return ZoomResult(
        ref=target.ref,
        kind="record",
        lines=(),
        text=to_text(page),
        page=offset // page_bytes,
        complete=complete,
        cursor=None if complete else write_cursor(digest, reading.clock, end),
        first_at=record.time,
        last_at=record.time,
        snapshot=reading.snapshot,
        outcome=None if turn is None else turn.outcome,
        paired_ref=_paired_ref(reading, db, target, record),
        attachments=_attachments(db, record),
        turn=None if turn is None else turn_info(reading, db, turn, (target.session.session_id, target.generation)),
        truncated=_is_cut(record),
        superseded=is_superseded(reading, db, target),
    )


def whole_characters(data: bytes, most: int) -> bytes:
    """The longest prefix of at most ``most`` bytes that ends between characters; one character at least."""
    if len(data) <= most:
        return data
    end = most
    while end > 0 and data[end] & 0xC0 == 0x80:
        end -= 1
    if end == 0:
        end = most + 1
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
    return data[:end]


def _within_tokens(page: bytes, max_tokens: int, tokenizer: Tokenizer) -> bytes:
    """The longest prefix of a page within a number of tokens; one character at least."""
    if tokenizer.count(page.decode("utf-8", "replace")) <= max_tokens:
        return page
    low, high = 1, len(page)
    while low < high:
        middle = (low + high + 1) // 2
        if tokenizer.count(whole_characters(page, middle).decode("utf-8", "replace")) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return whole_characters(page, low)


def _is_cut(record: RecordRow) -> bool:
    """Whether the host had less than the whole: it cut a result, or knew only a preview of a report."""
    structure = record.structure or {}
    return bool(structure.get("truncated")) or structure.get("complete") is False


def _paired_ref(reading: Reading, db: Connection, target: SessionTarget, record: RecordRow) -> str | None:
    """A call's result or a result's call, if this reader may see it."""
    key = record.paired_key if record.kind == "tool_result" else None
    if record.kind == "tool_call":
        key = ledger.result_of(db, target.chain, record.record_key)
    if key is None:
        return None
    other = SessionTarget(
        target.session, target.generation, target.generation_pk, target.chain, Span(key & KEY_MASK, 1)
    )
    same_chain = target.chain.of_record(other.span.start).segment == owner_of(key)
    return other.ref if same_chain and may_see(reading, db, other) else None


def _attachments(db: Connection, record: RecordRow) -> tuple[BlobPart, ...]:
    structure = record.structure or {}
    if structure.get("type") != "blob" and "content" not in structure:
        return ()
    part = payloads.load_part(db, record)
    content = part.content if isinstance(part, ToolResultPart) else (part,)
    return tuple(item for item in content if isinstance(item, BlobPart))


def source(reading: Reading, db: Connection, ref: str, recall: Recall) -> SourceRecord:
    """The whole retained source of one record."""
    target = resolve(reading, db, ref)
    if not isinstance(target, SessionTarget) or target.span.count != 1:
        raise UnknownRef(
            f"{target.ref} is not one record; zoom into it, and ask for the source of a session ref of count 1"
        )
    record = _visible_record(db, target)
    part = payloads.load_part(db, record)
    if record.structure is not None and "retrieved" in record.structure and isinstance(part, ToolResultPart):
        again = recall(db, record.turn_pk, bytes.fromhex(record.structure["retrieved"]))
        note = f"[{record.structure['memory']}; it can no longer be rendered]"
        part = decode_part(
            "tool_result",
            (again or note).encode("utf-8", "surrogatepass"),
            {key: value for key, value in record.structure.items() if key in ("call_id", "is_error", "truncated")},
            (),
        )
    turn = turns.load_turn(db, record.turn_pk)
    if turn is None:
        raise IntegrityError(f"{target.ref} has no turn; run verify() and restore a backup")
    project = target.session.project_pk
    return SourceRecord(
        ref=target.ref,
        kind=record.kind,
        part=part,
        at=record.time,
        session_id=target.session.session_id,
        turn_id=turn.turn_id,
        sha256=record.sha256.hex(),
        project=None if project is None else scopes.project_id(db, project),
        worktree=turn.worktree,
        commit=turn.commit_id,
    )


def date(reading: Reading, db: Connection, ref: str) -> Dates:
    """When what a ref names was said, and published."""
    target = resolve(reading, db, ref)
    if isinstance(target, SessionTarget):
        times = ledger.ends_of(db, target.chain, target.span.start, target.span.end)
        if times is None:  # all of it was removed: when, is all that its line tells
            line = session_lines(reading, db, target, [target.span])[0]
            times = line.first_at, line.last_at
        first, last = times
        return Dates(target.ref, first, last, None, reading.snapshot)
    if target.publication is None:
        line = shared_lines(reading, db, [target.span])[0]
        return Dates(target.ref, line.first_at, line.last_at, None, reading.snapshot)
    turn = turns.load_turn(db, target.publication.turn_pk)
    if turn is None:
        raise IntegrityError(f"{target.ref} has no turn; run verify() and restore a backup")
    return Dates(
        target.ref,
        moment_of(turn.started_at, turn.utc_offset),
        moment_of(target.publication.completed_at, turn.utc_offset),
        moment_of(target.publication.published_at),
        reading.snapshot,
    )
