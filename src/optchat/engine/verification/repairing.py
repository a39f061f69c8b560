"""
Repair: what is derived, made again from what it is derived from.

Decides: how each repairable fault is put right, and how much one transaction does.
Refuses to know: sources: no statement here writes a record, its bytes, or what a turn or a publication says.

Every step derives anew, inside of its own write transaction, what it writes: a fault that is none any more is left
alone. Idempotent: what is right already stays as it is. What was made of something that was put right is looked at by
the next round of checks, so that each repair does one thing.

A node that is lost comes back by joining what is under it, or as a labelled stand-in with a job to write it anew: a
view that shows it has its line again at once, and no model is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import evolve

from optchat.core.errors import IntegrityError
from optchat.core.lineage import node_key, owner_of
from optchat.core.projection import plan_repair
from optchat.core.publications import leaf_of
from optchat.core.refs import KEY_BITS, Span
from optchat.core.render import escaped_size, outcome_label
from optchat.core.speakers import ERROR_MARK, OUTCOME_MARKS, tells_error
from optchat.core.tree import (
    JOIN,
    REMOVED,
    SUPERSEDED,
    Node,
    Recipe,
    inputs_sha256,
    merged,
    page_of,
    rebuilt,
    tombstone,
)
from optchat.core.views import FrontierState
from optchat.engine.handle import Scope
from optchat.engine.inputs import Spoken, chunk_tree, clean, page_inputs, record_inputs
from optchat.engine.landing import Landing
from optchat.engine.origins import (
    Origin,
    TreePlace,
    children_sha256,
    dependents,
    finished_turn,
    made_without_a_call,
    origin_of,
    rank,
    resting_segments,
)
from optchat.engine.trees import line_sizes, session_tree, shared_tree
from optchat.engine.verification import index_repairs, job_repairs
from optchat.engine.verification.checking import Check, span_of, steps
from optchat.engine.verification.tree_checks import ended_in, expected_counts, record_under, tree_at, view_problem
from optchat.store import checks, due, forest, publications, queue, registry, remakes, restoring, structure
from optchat.store.rows import Connection

Repair: TypeAlias = Callable[[Check, Sequence[int]], None]
_Made: TypeAlias = tuple[Node, Recipe, bytes]  # a node, how it was made, and the hash of its inputs

_STEP: Final = 50  # subjects a transaction
_LOST: Final = frozenset({"PAGE_LOST", "LEAF_LOST", "MERGE_LOST", "COVER_MISSING"})  # whose subjects are lost nodes
_STAND_IN: Final = Recipe("stand_in")
_TOMBSTONE: Final = Recipe("tombstone")


# ---- counters, pointers ----------------------------------------------------------------------------------------------


def _counters(check: Check, _subjects: Sequence[int]) -> None:
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        found = checks.counters(db, scope.pk, [place.tree_pk for place in check.places])
        restoring.raise_counters(
            db,
            scope.pk,
            next_publication=found.publications,
            next_document=found.documents,
            clock=found.newest_clock,
            epoch=found.newest_epoch,
        )
        restoring.put_moment(db, scope.pk, scope.now())


def _moments(check: Check, subjects: Sequence[int]) -> None:
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        for clock in sorted(set(subjects), reverse=True):
            restoring.lower_moment(db, scope.pk, clock)
        restoring.put_moment(db, scope.pk, scope.now())


def _ended_lengths(check: Check, subjects: Sequence[int]) -> None:
    scope = check.scope
    base = {segment.segment: segment.base_length for segment in check.segments}
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for segment in step:
                found = structure.ended_length(db, segment)
                registry.set_ended_length(db, segment, base[segment] if found is None else found)


def _pointers(check: Check, subjects: Sequence[int]) -> None:
    scope = check.scope
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for turn, found in checks.publications_of_turns(db, step).items():
                if len(found.live) < 2:
                    live = scope.pk << KEY_BITS | found.live[0] if found.live else None
                    restoring.name_publication(db, turn, live)


def _recipe_counts(check: Check, subjects: Sequence[int]) -> None:
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        found = checks.count_by_recipe(db, [place.tree_pk for place in check.places])
        for recipe in subjects:
            restoring.set_recipe_count(db, recipe, found.get(recipe, 0))


# ---- nodes that are lost ---------------------------------------------------------------------------------------------


def _publication_leaves(check: Check, subjects: Sequence[int]) -> None:
    _lost(check, [node_key(check.scope.row.shared_tree, Span(number, 1)) for number in subjects])


def _lost_children(check: Check, subjects: Sequence[int]) -> None:
    scope, missing = check.scope, set[int]()
    with scope.store.read() as db:
        for key in subjects:
            origin = origin_of(scope, db, key)
            if origin.tree is not None:
                there = origin.tree.sizes(db, origin.inputs)
                missing |= {origin.tree.key(span) for span in origin.inputs if span not in there}
    _lost(check, sorted(missing))


def _lost(check: Check, subjects: Sequence[int]) -> None:
    """Inputs first, whatever code they go by, and whatever step they fall into: what is made of them finds them."""
    scope = check.scope
    others = (found.subject for found in check.found if found.fault.code in _LOST)
    with scope.store.read() as db:
        ordered = sorted({*subjects, *others}, key=lambda key: rank(scope, db, key))
    for start in range(0, len(ordered), _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for key in ordered[start : start + _STEP]:
                _restore(scope, db, key)
    scope.wake()


def _restore(scope: Scope, db: Connection, key: int) -> None:
    """Bring a lost node back; by a job alone where it waits for what is under it, and nothing was made of it yet."""
    if due.present(db, [key]):
        return
    origin = origin_of(scope, db, key)
    whole = origin.tree is None or len(origin.tree.sizes(db, origin.inputs)) == len(origin.inputs)
    above = [each for each in dependents(scope, db, key) if owner_of(each)]
    used = origin.kind == "publication" or restoring.newest_revision(db, key) is not None or due.present(db, above)
    made = _again(scope, db, key, origin) if whole or used else None
    if made is None:
        _make_due(scope, db, key, origin)
        return
    node, recipe, inputs = made
    for kind in ("leaf", "merge", "chunk"):
        restoring.drop_job(db, kind, key)
    restoring.put_node(db, key, node, forest.intern_recipe(db, scope.pk, recipe), inputs)
    _touch(scope, db, key)
    if recipe.kind == "stand_in":
        _to_be_written(scope, db, key)


def _make_due(scope: Scope, db: Connection, key: int, origin: Origin) -> None:
    if due.with_job(db, (origin.kind,), [key]):
        return
    needs: list[int] = []
    if origin.tree is not None:
        there = origin.tree.sizes(db, origin.inputs)
        needs = [origin.tree.key(span) for span in origin.inputs if span not in there]
    admits = origin.kind == "leaf" or (origin.kind == "chunk" and origin.tree is None)
    tree = owner_of(key) if admits else 0
    queue.add_job(
        db,
        scope_pk=scope.pk,
        kind=origin.kind,
        subject=key,
        needs=needs,
        at=scope.now(),
        admission_tree=tree,
        position=origin.position,
        admitted=not tree or queue.admitted_in_tree(db, tree) < scope.policy.leaf_window,
    )


def _to_be_written(scope: Scope, db: Connection, key: int) -> None:
    if not remakes.remakes(db, [key]):
        _add_remake(scope, db, key, ())


def _add_remake(scope: Scope, db: Connection, key: int, needs: Iterable[int]) -> None:
    queue.add_job(db, scope_pk=scope.pk, kind="remake", subject=key, needs=needs, at=scope.now(), position=1)


def _touch(scope: Scope, db: Connection, key: int) -> None:
    """Frontiers that any process holds of the views that may show a node are out of date."""
    tree, span = owner_of(key), span_of(key)
    segment = registry.segment_of_tree(db, tree)
    touched = [tree]
    if segment is not None:
        touched += [session_tree(scope, db, each).chain.own.tree for each in resting_segments(db, segment[0], span.end)]
    restoring.touch_views(db, touched)


def _again(scope: Scope, db: Connection, key: int, origin: Origin) -> _Made | None:
    """A node from what is there of what it was made of, without a model; None where that is a source and is not."""
    span, node_bytes = span_of(key), scope.row.node_bytes
    whole = Node(span, 0, "stand_in", "", node_bytes, 0, 0, 0, 0)  # the most that may stand there
    if origin.turn is not None and publications.live_number(db, origin.turn.turn_pk) != span.start:
        row = publications.load_publication(db, scope.pk << KEY_BITS | span.start)
        label = REMOVED if row is None or row.removed else SUPERSEDED
        return tombstone(whole, label, scope.now()), _TOMBSTONE, inputs_sha256([])
    if origin.tree is None:
        return _of_source(scope, db, key, origin, whole)
    found = origin.tree.nodes(db, origin.inputs)
    below = [found[each] for each in origin.inputs if each in found]
    hashed = children_sha256(origin.tree, below)
    joined = made_without_a_call(origin, key, below, node_bytes) if len(below) == len(origin.inputs) else None
    if joined is not None:
        return joined, JOIN, hashed
    texts = [node.text for node in below if node.kind != "tombstone"]
    if origin.turn is not None:
        turn = finished_turn(origin.turn)
        what, mark = f"a turn of {turn.end - turn.start} records", OUTCOME_MARKS[turn.outcome]
        text = rebuilt(whole, None, texts, what, mark, node_bytes).text
        return evolve(leaf_of(span.start, turn, text, escaped_size(text)), kind="stand_in"), _STAND_IN, hashed
    parent = whole
    if len(below) == 2 and span.count > 1:
        weight = below[0].escaped_bytes + 1 + below[1].escaped_bytes
        parent = merged(below[0], below[1], "", weight, "stand_in")
    else:
        failed, interrupted, first, last = expected_counts(db, origin, below)
        parent = evolve(whole, failed=failed, interrupted=interrupted, first_at=first, last_at=last)
    mark = f"[{outcome_label(parent.failed, parent.interrupted)}] " if parent.not_completed else ""
    what = f"{span.count} {'publications' if origin.tree == shared_tree(scope) else 'records'}"
    return rebuilt(whole, parent, texts, what, mark, node_bytes), _STAND_IN, hashed


def _of_source(scope: Scope, db: Connection, key: int, origin: Origin, whole: Node) -> _Made | None:
    record = record_under(db, origin)
    if record is None or record.state:
        return None
    try:
        spoken = Spoken(db).bytes(record)
    except IntegrityError:
        return None  # a fault of its own
    if origin.kind == "chunk":
        tree = chunk_tree(db, owner_of(key))[0]
        assert tree.page_bytes is not None, "a chunk tree records its page size"
        text, hashed = clean(page_of(spoken, tree.page_bytes, origin.position)), page_inputs(record, origin.position)
    else:
        text, hashed = clean(spoken), record_inputs(record)
    mark = ERROR_MARK if record.kind == "tool_result" and tells_error(text) else ""
    like = evolve(whole, first_at=record.at, last_at=record.at)
    return rebuilt(like, None, [text], record.kind, mark, scope.row.node_bytes), _STAND_IN, hashed


# ---- nodes that are wrong --------------------------------------------------------------------------------------------


def _stand_in_again(landing: Landing, key: int) -> None:
    """What has to go although all that it was made of is there: joined again, or a stand-in until it is written."""
    scope, db = landing.scope, landing.db
    before = forest.load_made(db, [key]).get(key)
    made = None if before is None else _again(scope, db, key, origin_of(scope, db, key))
    if made is None:
        return
    node, recipe, inputs = made
    landing.revise(key, node, recipe, inputs)
    if recipe.kind == "stand_in":
        _to_be_written(scope, db, key)
        landing.jobs_added()


def _stale(check: Check, subjects: Sequence[int]) -> None:
    """
    A node and what it was made of are not as they were together. Which of them was changed cannot be told: where it was
    made of summaries these are written anew, and it after them.
    """
    scope = check.scope
    joins: list[int] = []
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for key in step:
                origin = origin_of(scope, db, key)
                below = [each.node_key for each in forest.load_made(db, origin.input_keys).values() if _written(each)]
                for each in below:
                    _to_be_written(scope, db, each)
                if not below:
                    joins.append(key)
                elif not remakes.remakes(db, [key]):
                    _add_remake(scope, db, key, below)
    _with_landing(check, joins, Landing.changed_under)
    scope.wake()


def _written(made: forest.MadeRow) -> bool:
    """Whether a node's text is a summarizer's: nothing that is stored tells whether it still says what was written."""
    return made.recipe_kind == "summary"


def _with_landing(check: Check, subjects: Sequence[int], repair: Callable[[Landing, int], None]) -> None:
    """Each subject in the order of what rests on what, by the cascade that every landing takes."""
    scope = check.scope
    with scope.store.read() as db:
        ordered = sorted(set(subjects), key=lambda key: rank(scope, db, key))
    for start in range(0, len(ordered), _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            landing = Landing(scope, db, scope.now())
            for key in ordered[start : start + _STEP]:
                repair(landing, key)
            landing.finish()
        landing.after_commit()


def _sizes(check: Check, subjects: Sequence[int]) -> None:
    scope = check.scope
    too_long: list[int] = []
    for step in steps(subjects, _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            for key, made in forest.load_made(db, step).items():
                restoring.set_derived(db, key, evolve(made.node, escaped_bytes=escaped_size(made.node.text)))
                _touch(scope, db, key)
                if len(made.node.text.encode()) > scope.row.node_bytes:
                    too_long.append(key)
    _with_landing(check, too_long, _stand_in_again)


def _counts(check: Check, subjects: Sequence[int]) -> None:
    """Outcomes and times, and those of all that was made of the node."""
    scope = check.scope
    for start in range(0, len(subjects), _STEP):
        with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
            waiting = set(subjects[start : start + _STEP])
            while waiting:
                _rank, key = min((rank(scope, db, each), each) for each in waiting)
                waiting.discard(key)
                if _recount(scope, db, key):
                    above = dependents(scope, db, key)
                    waiting |= due.present(db, [each for each in above if owner_of(each)])


def _recount(scope: Scope, db: Connection, key: int) -> bool:
    made = forest.load_made(db, [key]).get(key)
    if made is None:
        return False
    origin = origin_of(scope, db, key)
    if origin.tree is None:
        record = record_under(db, origin)
        counts = None if record is None else (0, 0, record.at, record.at)
    else:
        found = origin.tree.nodes(db, origin.inputs)
        whole = len(found) == len(origin.inputs)
        counts = expected_counts(db, origin, [found[span] for span in origin.inputs]) if whole else None
    node = made.node
    if counts is None or counts == (node.failed, node.interrupted, node.first_at, node.last_at):
        return False
    failed, interrupted, first, last = counts
    restoring.set_derived(db, key, evolve(node, failed=failed, interrupted=interrupted, first_at=first, last_at=last))
    _touch(scope, db, key)
    return True


# ---- views -----------------------------------------------------------------------------------------------------------


def _missing_views(check: Check, subjects: Sequence[int]) -> None:
    scope = check.scope
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        for tree in subjects:
            restoring.put_view(db, tree)
    _views(check, subjects)


def _views(check: Check, subjects: Sequence[int]) -> None:
    """Plan views anew from durable nodes, each as a new revision."""
    scope = check.scope
    for tree_pk in subjects:
        place = next((each for each in check.places if each.tree_pk == tree_pk), None)
        if place is not None:
            with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
                if view_problem(scope, db, place) is not None:
                    _plan_view(scope, db, place)


def _plan_view(scope: Scope, db: Connection, place: TreePlace) -> None:
    tree = tree_at(scope, db, place)
    view = forest.load_view(db, place.tree_pk)
    end = checks.highest_publication(db, scope.pk) if place.segment is None else ended_in(db, place)
    spans = [Span(seq, 1) for seq in range(end)]
    sizes = tree.sizes(db, spans)
    length = next((span.start for span in spans if span not in sizes), end)
    size = line_sizes(db, tree)
    state = plan_repair(FrontierState(view.levels, view.shrinking), length, size, scope.view_policy)
    total = sum(size(span) or 0 for span in state.spans)
    shrinking = state.shrinking or total > scope.row.view_high_bytes
    forest.save_view(db, forest.ViewRow(place.tree_pk, view.revision + 1, length, state.levels, shrinking))


# ---- the table -------------------------------------------------------------------------------------------------------

REPAIRS: Final[Mapping[str, Repair]] = {
    "COUNTER": _counters,
    "MOMENT": _moments,
    "ENDED_LENGTH": _ended_lengths,
    "PUBLICATION_POINTER": _pointers,
    "VIEW_MISSING": _missing_views,
    "NODE_SIZE": _sizes,
    "PUBLICATION_LEAF": _publication_leaves,
    "PAGE_LOST": _lost,
    "LEAF_LOST": _lost,
    "MERGE_LOST": _lost,
    "COVER_MISSING": _lost,
    "CHILD_MISSING": _lost_children,
    "VIEW": _views,
    "NODE_TEXT": lambda check, keys: _with_landing(check, keys, _stand_in_again),
    "NODE_COUNTS": _counts,
    "NODE_HEAVY": lambda check, keys: _with_landing(check, keys, _stand_in_again),
    "INPUTS_CHANGED": _stale,
    "JOB_DONE": job_repairs.done,
    "PUBLICATION_LOST": job_repairs.publications_lost,
    "WAITER": job_repairs.waiters,
    "JOB_STUCK": job_repairs.stuck,
    "INDEX": index_repairs.rebuild,
    "DOCUMENT_CHANGED": index_repairs.documents,
    "DOCUMENT_STATE": index_repairs.documents,
    "DOCUMENT_VISIBLE": index_repairs.documents,
    "ENTRY_MISSING": index_repairs.missing_entries,
    "ENTRY_CHANGED": index_repairs.changed_entries,
    "ENTRY_ORPHAN": index_repairs.orphans,
    "UNINDEXED": index_repairs.records,
    "NODE_UNINDEXED": index_repairs.nodes,
    "RECIPE_COUNT": _recipe_counts,
}
