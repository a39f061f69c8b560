"""
Verification: what is stored, checked against itself.

Decides: which contradictions are faults, and that only views are made anew; sources are never touched.
Refuses to know: how a fault came to be.

It reads in steps of bounded size, each one read transaction, so that a large file is checked while others write. What
moves between two steps (an open turn's records, jobs) is judged within one.
"""

from __future__ import annotations

from attrs import define, field

from optchat.core.errors import IntegrityError, OptchatError
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.projection import plan_repair
from optchat.core.records import leaf_text, record_sha256
from optchat.core.refs import KEY_BITS, Span, exact_cover
from optchat.core.render import escaped_size
from optchat.core.status import Fault, VerifyReport
from optchat.core.tree import Node
from optchat.core.views import FrontierState, length_of
from optchat.core.words import words_of
from optchat.engine.handle import Scope
from optchat.engine.inputs import chunk_tree, page_inputs, record_inputs
from optchat.engine.naming import record_ref, segment_ref
from optchat.engine.origins import Origin, TreePlace, children_sha256, origins_in, trees_of_scope
from optchat.engine.trees import SessionTree, SharedTree, Tree, line_sizes, session_tree, shared_tree
from optchat.store import checks, forest, ledger, payloads, publications, registry, remakes, scopes
from optchat.store.publications import PublicationRow
from optchat.store.rows import Connection

_STEP = 500


@define
class _Check:
    scope: Scope
    repair: bool
    faults: list[Fault] = field(factory=list[Fault])
    checked: dict[str, int] = field(factory=dict[str, int])
    repaired: int = 0

    def count(self, what: str, number: int = 1) -> None:
        self.checked[what] = self.checked.get(what, 0) + number

    def fault(self, code: str, ref: str | None, message: str, *, repairable: bool = False) -> None:
        self.faults.append(Fault(code, ref, message, repairable))


def verify(scope: Scope, *, repair: bool) -> VerifyReport:
    """Check a scope; with ``repair``, make wrong views anew. Faults that were repaired are counted, not listed."""
    check = _Check(scope, repair)
    with scope.store.read() as db:
        segments = registry.scope_segments(db, scope.pk)
        places = trees_of_scope(scope, db)
        for message in checks.sqlite_faults(db):
            check.fault("DATABASE", None, message)
        check.count("database")
    for segment, _tree, base, _ended in segments:
        _records(check, segment, base)
        _view(check, segment)
    for place in places:
        _nodes(check, place)
    _publications(check)
    _view(check, None)
    _events(check)
    _index(check)
    _jobs(check)
    return VerifyReport(not check.faults, tuple(check.faults), dict(check.checked), check.repaired)


def _records(check: _Check, segment: int, base: int) -> None:
    """Numbers without a gap, payloads that hash to what was recorded, verbatim leaves of the recorded size."""
    low, expected = segment << KEY_BITS | base, base
    while True:
        with check.scope.store.read() as db:
            rows = ledger.records_between(db, low, (segment + 1) << KEY_BITS, limit=_STEP)
            for row in rows:
                if row.seq != expected:
                    check.fault("RECORD_GAP", record_ref(db, row.record_key), f"record {expected} is missing")
                expected = row.seq + 1
                if row.state == 0:
                    _record(check, db, row)
            check.count("records", len(rows))
        if len(rows) < _STEP:
            return
        low = rows[-1].record_key + 1


def _record(check: _Check, db: Connection, row: ledger.RecordRow) -> None:
    ref = record_ref(db, row.record_key)
    try:
        payload = payloads.load_payload(db, row)
        blobs = payloads.load_attachments(db, row.record_key)
    except IntegrityError as error:
        check.fault("PAYLOAD_MISSING", ref, str(error))
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


def _manifests(row: ledger.RecordRow) -> list[dict[str, str]]:
    structure = row.structure or {}
    if structure.get("type") == "blob":
        return [structure]
    return [piece for piece in structure.get("content", []) if isinstance(piece, dict)]


def _nodes(check: _Check, place: TreePlace) -> None:
    """Texts within their limits, and hashes that still fit their inputs."""
    after = -1
    while True:
        with check.scope.store.read() as db:
            rows = forest.nodes_of_tree(db, place.tree_pk, after=after, limit=_STEP)
            keys = {position: place.tree_pk << KEY_BITS | position for position, _node, _inputs, _recipe in rows}
            origins = origins_in(check.scope, db, place, keys.values())
            remade = remakes.remakes(db, keys.values())
            for position, node, inputs, _recipe in rows:
                ref = _node_ref(db, place, node.span)
                if (
                    len(node.text.encode()) > check.scope.row.node_bytes
                    or escaped_size(node.text) != node.escaped_bytes
                ):
                    check.fault("NODE_SIZE", ref, "the text is over its limit, or not of the recorded size")
                if keys[position] not in remade:  # else it is what it was made of that has moved on
                    _origin(check, db, node, inputs, origins[keys[position]], ref)
            check.count("nodes", len(rows))
        if len(rows) < _STEP:
            return
        after = rows[-1][0]


def _node_ref(db: Connection, place: TreePlace, span: Span) -> str:
    if place.segment is not None:
        return segment_ref(db, place.segment, span)
    if place.chunks is not None and place.chunks.record_key is not None:
        return record_ref(db, place.chunks.record_key)
    return f"pub:{span}"


def _origin(check: _Check, db: Connection, node: Node, inputs: bytes, origin: Origin, ref: str) -> None:
    if origin.turn is not None and publications.live_number(db, origin.turn.turn_pk) != node.span.start:
        return  # what was retired stays as it was
    if origin.tree is None:
        record = _record_of(db, origin)
        if record is None:
            check.fault("CHILD_MISSING", ref, "the record that this node was made of is missing")
            return
        now = record_inputs(record) if origin.kind == "leaf" else page_inputs(record, origin.position)
    else:
        found = origin.tree.nodes(db, origin.inputs)
        if len(found) < len(origin.inputs):
            what = "a child of this node" if origin.kind == "merge" else "what this node was made of"
            check.fault("CHILD_MISSING", ref, f"{what} is missing")
            return
        below = [found[span] for span in origin.inputs]
        now = children_sha256(origin.tree, below)
        if node.span.count > 1 and node.escaped_bytes > sum(each.escaped_bytes for each in below) + 1:
            check.fault("NODE_HEAVY", ref, "the node is heavier than its children: the view could not shrink past it")
    if now != inputs:
        check.fault("INPUTS_CHANGED", ref, "the inputs of this node do not hash to what was recorded")


def _record_of(db: Connection, origin: Origin) -> ledger.RecordRow | None:
    if origin.kind == "chunk":
        return chunk_tree(db, owner_of(origin.subject))[1]
    segment = registry.segment_of_tree(db, owner_of(origin.subject))
    return None if segment is None else ledger.load_record(db, segment[0] << KEY_BITS | origin.position)


def _view(check: _Check, segment: int | None) -> None:
    """A view covers its prefix exactly, by durable nodes, and its prefix is what it should be."""
    with check.scope.store.read() as db:
        problem = _view_problem(check, db, segment)
    check.count("views")
    if problem is None:
        return
    ref = None if segment is None else str(segment)
    if check.repair:
        _repair_view(check, segment)
        with check.scope.store.read() as db:
            problem = _view_problem(check, db, segment)
        if problem is None:
            check.repaired += 1
            return
    check.fault("VIEW", ref, problem, repairable=True)


def _tree_of(check: _Check, db: Connection, segment: int | None) -> tuple[Tree, int]:
    if segment is None:
        return shared_tree(check.scope), check.scope.row.shared_tree
    tree = session_tree(check.scope, db, segment)
    return tree, tree.chain.own.tree


def _view_problem(check: _Check, db: Connection, segment: int | None) -> str | None:
    tree, tree_pk = _tree_of(check, db, segment)
    view = forest.load_view(db, tree_pk)
    try:
        state = FrontierState(view.levels, view.shrinking)
        spans = state.spans
    except OptchatError as error:
        return str(error)
    if length_of(view.levels) != view.length:
        return "the view's lines do not cover its length"
    sizes = tree.sizes(db, spans)
    if len(sizes) != len(spans):
        return "a line of the view has no durable node"
    if isinstance(tree, SharedTree):
        if view.length != scopes.next_publication(db, check.scope.pk):
            return "the view does not cover the scope's publications"
    elif view.length > _ended(db, tree):
        return "the view covers more than the ended turns"
    total = sum(tree.line_bytes(span, size) for span, size in sizes.items())
    if view.bytes is not None and view.bytes != total:
        return "the view's lines do not add up to its size"
    if total > check.scope.row.view_high_bytes and not view.shrinking:
        return "the view is over its bound and not shrinking"
    return None


def _ended(db: Connection, tree: Tree) -> int:
    assert isinstance(tree, SessionTree), "the shared tree is handled before"
    found = registry.segment_of_tree(db, tree.chain.own.tree)
    return 0 if found is None else found[1]


def _repair_view(check: _Check, segment: int | None) -> None:
    """Plan the view anew from durable nodes, as a new revision."""
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        tree, tree_pk = _tree_of(check, db, segment)
        view = forest.load_view(db, tree_pk)
        length = scopes.next_publication(db, scope.pk) if segment is None else _durable_length(db, tree)
        state = plan_repair(FrontierState(view.levels, view.shrinking), length, line_sizes(db, tree), scope.view_policy)
        forest.save_view(db, forest.ViewRow(tree_pk, view.revision + 1, length, state.levels, state.shrinking))
    scope.caches.frontiers.take(tree_pk)


def _durable_length(db: Connection, tree: Tree) -> int:
    ended = _ended(db, tree)
    sizes = tree.sizes(db, [Span(seq, 1) for seq in range(ended)])
    return next((seq for seq in range(ended) if Span(seq, 1) not in sizes), ended)


def _publications(check: _Check) -> None:
    """Numbers without a gap, in turn order, each with its turn, its range and its leaf."""
    scope = check.scope
    after, expected = -1, 0
    last: dict[int, int] = {}
    while True:
        with scope.store.read() as db:
            rows = checks.publications_after(db, scope.pk, after, _STEP)
            for row in rows:
                ref = f"pub:{row.number}+1"
                if row.number != expected:
                    check.fault("PUBLICATION_GAP", ref, f"publication {expected} is missing")
                expected = row.number + 1
                if not checks.turn_agrees(db, row):
                    check.fault("PUBLICATION_TURN", ref, "the publication and its turn disagree")
                if row.start_seq < last.get(row.generation_pk, 0):
                    check.fault("PUBLICATION_ORDER", ref, "publications of one session are not in turn order")
                last[row.generation_pk] = row.end_seq
                if not forest.node_exists(db, node_key(scope.row.shared_tree, Span(row.number, 1))):
                    check.fault("PUBLICATION_LEAF", ref, "the publication has no leaf")
                _cover(check, db, row, ref)
            check.count("publications", len(rows))
        if len(rows) < _STEP:
            return
        after = rows[-1].number


def _cover(check: _Check, db: Connection, row: PublicationRow, ref: str) -> None:
    segment = checks.segment_of_generation(db, row.generation_pk)
    tree = session_tree(check.scope, db, segment)
    cover = exact_cover(row.start_seq, row.end_seq)
    if len(tree.sizes(db, cover)) != len(cover):
        check.fault("COVER_MISSING", ref, "a node of the publication's cover is missing")


def _events(check: _Check) -> None:
    """Every event key leads to a record: else a redelivery would be answered with nothing."""
    with check.scope.store.read() as db:
        for key in checks.lost_events(db, check.scope.pk):
            check.fault("EVENT_LOST", None, f"an event key names record {ordinal_of(key)}, which is missing")
    check.count("events")


def _index(check: _Check) -> None:
    """Every record that has a word is in the index, or has a job that will bring it there."""
    with check.scope.store.read() as db:
        for key in checks.unindexed_records(db, check.scope.pk):
            if words_of(payloads.load_spoken(db, [key])[key], check.scope.row.pretokenizer):
                check.fault(
                    "UNINDEXED", record_ref(db, key), "the record is not in the search index, and no job will index it"
                )
        for message in checks.index_faults(db):
            check.fault("INDEX", None, message)
        check.count("documents", checks.document_count(db, check.scope.pk))


def _jobs(check: _Check) -> None:
    """Nothing that a view or a publication waits for is without a job."""
    with check.scope.store.read() as db:
        for turn in checks.unpublished_without_job(db, check.scope.pk):
            check.fault(
                "PUBLICATION_LOST", f"turn {turn}", "an ended turn is not published, and no job will publish it"
            )
        for key in checks.leaves_without_job(db, check.scope.pk):
            check.fault("LEAF_LOST", record_ref(db, key), "a long record has no summary, and no job will make one")
        check.count("jobs", checks.job_count(db, check.scope.pk))
