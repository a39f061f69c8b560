"""
Sources: lifecycle, records and their bytes, publications, removals, pins.

Decides: which contradictions among sources, and between them and what names them, are faults.
Refuses to know: summaries, views, the index, and how a fault is repaired: most of these cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from optchat.core.errors import IntegrityError, OptchatError
from optchat.core.lineage import node_key
from optchat.core.records import leaf_text, record_sha256
from optchat.core.refs import KEY_BITS, KEY_MASK, Span, exact_cover, publication_ref
from optchat.core.render import escaped_size
from optchat.core.views import length_of, spans_of
from optchat.engine.anchoring import anchor_of
from optchat.engine.trees import session_tree, shared_tree
from optchat.engine.verification.checking import STEP, Check, Segment, record_ref, segment_ref
from optchat.store import checks, due, forest, ledger, payloads, renderings, scopes, structure
from optchat.store.checks import Pin
from optchat.store.publications import PublicationRow
from optchat.store.renderings import RenderingRow
from optchat.store.rows import Connection
from optchat.store.structure import SegmentRow, TurnSpan

_BLOBS_A_STEP = 16


def plain(error: OptchatError) -> str:
    """An error's message without its own advice."""
    return str(error).partition("; run verify")[0]


# ---- the file --------------------------------------------------------------------------------------------------------


def check_file(check: Check) -> None:
    """What SQLite itself says."""
    with check.reading() as db:
        faults, index = structure.sqlite_faults(db)
        for message in faults:
            check.fault("DATABASE", None, message)
        for message in index:
            check.fault("INDEX", None, message)
    with check.reading() as db:
        for message in structure.schema_faults(db):
            check.fault("SCHEMA", None, message)
        for message in structure.dangling(db):
            check.fault("DANGLING", None, message)
    check.count("database")


# ---- lifecycle -------------------------------------------------------------------------------------------------------


def check_lifecycle(check: Check) -> None:
    """Segments rest on turn boundaries; generations follow one another; turns lie end to end."""
    with check.reading() as db:
        rows = structure.segments(db, check.scope.pk)
        known = {row.segment_pk: row for row in rows}
        sound: set[int] = set()
        for row in rows:
            problem = _segment_problem(check, db, row, known, sound)
            if problem is not None:
                check.fault("SEGMENT", segment_ref(db, row.segment_pk, Span(row.base_length, 1)), problem)
                continue
            sound.add(row.segment_pk)
            check.segments.append(Segment(row.segment_pk, row.tree_pk, row.base_length))
        for session in structure.session_states(db, check.scope.pk):
            problem = _generation_problem(session)
            if problem is not None:
                check.fault("GENERATION", session.session_id, problem)
        check.count("segments", len(rows))
    for segment in check.segments:
        _turns(check, segment)


def _segment_problem(
    check: Check, db: Connection, row: SegmentRow, known: Mapping[int, SegmentRow], sound: set[int]
) -> str | None:
    if row.tree_kind != "session":
        return f"segment {row.segment_pk} has no tree of its own"
    if row.base_segment is None:
        return None if row.base_length == 0 else f"segment {row.segment_pk} begins at {row.base_length} on no base"
    if row.base_scope != check.scope.pk or row.base_segment not in known:
        return f"segment {row.segment_pk} rests on segment {row.base_segment}, which is not in this scope"
    if row.base_segment not in sound:  # made later than what rests on it, or unsound itself: perhaps a ring
        return f"segment {row.segment_pk} rests on segment {row.base_segment}, which is no sound base"
    boundary, base = row.base_length, known[row.base_segment]
    while base.base_length > boundary and base.base_segment is not None:
        base = known[base.base_segment]
    if not structure.ends_a_turn(db, base.segment_pk, boundary):
        return f"segment {row.segment_pk} rests on {boundary} records, where no turn ends"
    return None


def _generation_problem(session: structure.SessionState) -> str | None:
    numbers = [number for number, _superseded in session.generations]
    if numbers != list(range(session.generation + 1)):
        return f"session {session.session_id} is at generation {session.generation} and has {numbers}"
    current = [number for number, superseded in session.generations if not superseded]
    if current != [session.generation]:
        return f"session {session.session_id} has generations {current} that no later one supersedes"
    return None


def _turns(check: Check, segment: Segment) -> None:
    after, expected = (-1, -1), segment.base_length
    while True:
        rows: Sequence[TurnSpan] = ()
        with check.reading() as db:
            rows = structure.turn_spans(db, segment.segment, after=after, limit=STEP)
            for row in rows:
                if row.start_seq != expected or not row.own_segment:
                    ref = segment_ref(db, segment.segment, Span(row.start_seq, 1))
                    check.fault("TURN_RANGE", ref, f"turn {row.turn_id} begins at {row.start_seq}, not at {expected}")
                expected = row.start_seq if row.end_seq is None else row.end_seq
            check.count("turns", len(rows))
        if len(rows) < STEP:
            return
        after = rows[-1].start_seq, rows[-1].turn_pk


# ---- records ---------------------------------------------------------------------------------------------------------


def check_records(check: Check, segment: Segment) -> None:
    """Numbers without a gap, payloads that hash to what was recorded, verbatim leaves of the recorded size."""
    low, expected = segment.segment << KEY_BITS | segment.base_length, segment.base_length
    high = segment.segment << KEY_BITS | KEY_MASK
    while True:
        rows: list[ledger.RecordRow] = []
        with check.reading() as db:
            rows = ledger.records_between(db, low, high, limit=STEP)
            for row in rows:
                if row.seq != expected:
                    check.fault("RECORD_GAP", record_ref(db, row.record_key), f"record {expected} is missing")
                expected = row.seq + 1
                if row.state == 0:
                    _record(check, db, row)
            if rows:
                for key in checks.outside_their_turn(db, low, rows[-1].record_key):
                    check.fault("RECORD_TURN", record_ref(db, key), "the record lies outside of its turn")
            check.count("records", len(rows))
        if len(rows) < STEP:
            break
        low = rows[-1].record_key + 1
    with check.reading() as db:
        for key in checks.lost_events(db, segment.segment):
            check.fault("EVENT_LOST", None, f"an event key names record {key & KEY_MASK}, which is missing")
        for key in checks.half_hidden(db, segment.segment):
            check.fault("HIDDEN", record_ref(db, key), "the record and its turn disagree about its removal")
        for key in checks.scrubbed_with_content(db, segment.segment):
            check.fault("SCRUB_LEFT", record_ref(db, key), "the record counts as scrubbed and has bytes")
    check.count("events")


def _record(check: Check, db: Connection, row: ledger.RecordRow) -> None:
    ref = record_ref(db, row.record_key)
    try:
        payload = payloads.load_payload(db, row)
        blobs = payloads.load_attachments(db, row.record_key)
    except IntegrityError as error:
        check.fault("PAYLOAD_MISSING", ref, plain(error))
        return
    written = checks.raw_structure(db, row.record_key)
    if record_sha256(row.kind, written, payload) != row.sha256:
        check.fault("PAYLOAD_CHANGED", ref, "the payload does not hash to what was sealed")
    wanted = [manifest["sha256"] for manifest in _manifests(row) if "sha256" in manifest]
    if wanted != [checks.sha256_hex(data) for data in blobs]:
        check.fault("ATTACHMENT_CHANGED", ref, "an attachment does not hash to its manifest")
    if row.leaf_escaped is not None:
        leaf = leaf_text(row.kind, payload, row.structure, row.leaf_format)
        if (len(leaf.encode()), escaped_size(leaf)) != (row.leaf_bytes, row.leaf_escaped):
            check.fault("LEAF_CHANGED", ref, "the verbatim leaf has not the recorded size")


def _manifests(row: ledger.RecordRow) -> list[dict[str, Any]]:
    structure = row.structure or {}
    if structure.get("type") == "blob":
        return [structure]
    return [piece for piece in structure.get("content", []) if isinstance(piece, dict)]


def check_blobs(check: Check) -> None:
    """What is kept by its digest has it."""
    after = 0
    while True:
        rows: list[tuple[int, bytes, int]] = []
        with check.reading() as db:
            rows = checks.blobs_after(db, check.scope.pk, after, _BLOBS_A_STEP)
            for blob, sha256, size in rows:
                if checks.blob_digest(db, blob) != (sha256, size):
                    check.fault("BLOB_CHANGED", None, f"blob {blob} is not what it is kept as")
            check.count("blobs", len(rows))
        if len(rows) < _BLOBS_A_STEP:
            return
        after = rows[-1][0]


# ---- publications ----------------------------------------------------------------------------------------------------


def check_publications(check: Check) -> None:
    """Numbers without a gap, in turn order, each with its turn, its range and its leaf; turns name the live ones."""
    scope = check.scope
    after, expected = -1, 0
    last: dict[int, int] = {}
    sound = {segment.segment for segment in check.segments}
    while True:
        rows: list[PublicationRow] = []
        with check.reading() as db:
            rows = checks.publications_after(db, scope.pk, after, STEP)
            for row in rows:
                ref = publication_ref(row.number)
                if row.number != expected:
                    check.fault("PUBLICATION_GAP", ref, f"publication {expected} is missing")
                expected = row.number + 1
                if not checks.turn_agrees(db, row):
                    check.fault("PUBLICATION_TURN", ref, "the publication and its turn disagree")
                if row.retired_clock is None and not row.removed:
                    if row.start_seq < last.get(row.generation_pk, 0):
                        check.fault("PUBLICATION_ORDER", ref, "publications of one session are not in turn order")
                    last[row.generation_pk] = row.end_seq
                    segment = checks.segment_of_generation(db, row.generation_pk)
                    if segment in sound:
                        _cover(check, db, row, segment)
                if not forest.node_exists(db, node_key(scope.row.shared_tree, Span(row.number, 1))):
                    check.fault("PUBLICATION_LEAF", ref, "the publication has no leaf", row.number)
            check.count("publications", len(rows))
        if len(rows) < STEP:
            break
        after = rows[-1].number
    _pointers(check)
    with check.reading() as db:
        for number in checks.live_of_hidden(db, scope.pk):
            check.fault("HIDDEN_PUBLISHED", publication_ref(number), "what it publishes is removed or revoked")
        for removal in checks.unfinished_that_say_scrubbed(db, scope.pk):
            check.fault("SCRUB_LEFT", None, f"removal {removal} says that it is scrubbed, and has more to erase")


def _cover(check: Check, db: Connection, row: PublicationRow, segment: int) -> None:
    tree = session_tree(check.scope, db, segment)
    cover = exact_cover(row.start_seq, row.end_seq)
    found = tree.sizes(db, cover)
    for span in cover:
        if span not in found:
            what = f"node {span}, which the publication was made of, is missing"
            check.fault("COVER_MISSING", publication_ref(row.number), what, tree.key(span))


def _pointers(check: Check) -> None:
    after = 0
    while True:
        turn_pks: list[int] = []
        with check.reading() as db:
            turn_pks = checks.turns_after(db, check.scope.pk, after, STEP)
            for turn, found in checks.publications_of_turns(db, turn_pks).items():
                ref = segment_ref(db, found.segment_pk, Span(found.start_seq, 1))
                if len(found.live) > 1:
                    check.fault("PUBLICATION_TWICE", ref, f"the turn is published as {found.live}")
                elif found.named != (found.live[0] if found.live else None):
                    what = f"the turn names publication {found.named}, and {found.live or 'none'} is live"
                    check.fault("PUBLICATION_POINTER", ref, what, turn)
        if len(turn_pks) < STEP:
            break
        after = turn_pks[-1]
    with check.reading() as db:
        for lost in due.unpublished_without_job(db, check.scope.pk):
            ref = segment_ref(db, lost.segment_pk, Span(lost.start_seq, 1))
            if lost.too_late:
                check.fault("PUBLICATION_GAP", ref, "the turn is not published, and a later one of its session is")
            else:
                what = "an ended turn is not published, and no job will publish it"
                check.fault("PUBLICATION_LOST", ref, what, lost.turn_pk)


# ---- pins ------------------------------------------------------------------------------------------------------------


def check_pins(check: Check) -> None:
    """What open turns pinned can be rendered: both views cover what they should, by nodes that are there."""
    sound = {segment.segment for segment in check.segments}
    with check.reading() as db:
        next_publication = scopes.next_publication(db, check.scope.pk)
        for pin in checks.open_pins(db, check.scope.pk):
            if pin.segment_pk not in sound:
                continue
            problem: str | None = None
            try:
                if length_of(pin.shared_levels) > min(pin.publications, next_publication):
                    problem = "its shared view reaches past its mark"
                elif length_of(pin.own_levels) > pin.own_end:
                    problem = "its own view reaches past its boundary"
                else:
                    for tree, levels in (
                        (shared_tree(check.scope), pin.shared_levels),
                        (session_tree(check.scope, db, pin.segment_pk), pin.own_levels),
                    ):
                        spans = spans_of(levels)
                        if len(tree.sizes(db, spans)) < len(spans):
                            problem = "a line of a pinned view has no node"
                    problem = problem or _rendered_otherwise(pin, renderings.load_rendering(db, pin.turn_pk))
            except IntegrityError as error:
                problem = plain(error)
            if problem is not None:
                ref = segment_ref(db, pin.segment_pk, Span(pin.start_seq, 1))
                check.fault("PIN", ref, problem)
            check.count("pins")


def _rendered_otherwise(pin: Pin, row: RenderingRow | None) -> str | None:
    """In what a turn's rendering does not show what it pinned, all of it, in the blocks that it names."""
    if row is None:
        return None
    shown = length_of(row.shared_levels), length_of(row.own_levels)
    if shown != (pin.publications, pin.own_end):
        return "its rendering does not cover what it pinned"
    anchor = anchor_of(row)
    if anchor is None:
        return None
    ends = [(head.shared, head.own) for head in anchor.heads]
    rising = all(one <= other for pair in pairwise(ends) for one, other in zip(*pair, strict=True))
    return None if ends[-1] == shown and rising else "the blocks of its rendering leave lines out"
