"""
Counters, and the queue.

Decides: which counters are below what is in use, and which jobs nothing will ever wake or finish.
Refuses to know: what jobs work.
"""

from __future__ import annotations

from typing import Final

from optchat.core.jobs import FAILED, WAITING
from optchat.core.lineage import owner_of
from optchat.core.refs import KEY_BITS, Span, exact_cover
from optchat.engine.handle import Scope
from optchat.engine.origins import origin_of
from optchat.engine.trees import session_tree
from optchat.engine.verification.checking import STEP, Check, record_ref, ref_of, segment_ref, span_of
from optchat.engine.verification.tree_checks import segment_name
from optchat.store import checks, due, forest, ledger, publications, registry, remakes, scopes, structure, turns
from optchat.store.due import JobState
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow

_NODES: Final = ("leaf", "merge", "chunk", "remake")  # whose subject is a node

# ---- counters --------------------------------------------------------------------------------------------------------


def check_counters(check: Check) -> None:
    """Next numbers and the clock are above what is in use; marks are of what there is; counts agree."""
    scope = check.scope
    with check.reading() as db:
        counters = checks.counters(db, scope.pk, [place.tree_pk for place in check.places])
        for what, now, least in (
            ("next publication", counters.next_publication, counters.publications),
            ("next document", counters.next_document, counters.documents),
            ("clock", counters.clock, counters.newest_clock),
            ("epoch", counters.epoch, counters.newest_epoch),
        ):
            if now < least:
                check.fault("COUNTER", None, f"the scope's {what} is {now}, and {least} is in use")
        if counters.next_publication > counters.publications:
            what = f"publications {counters.publications} to {counters.next_publication - 1} are missing"
            check.fault("PUBLICATION_GAP", None, what)
        if scopes.find_moment(db, scope.pk, counters.clock) is None:
            check.fault("MOMENT", None, f"the scope has no marks at its clock {counters.clock}", counters.clock)
        else:
            for clock in checks.wrong_moments(db, scope.pk):
                check.fault("MOMENT", None, f"the marks at clock {clock} reach past what there is", clock)
    for segment in check.segments:
        with check.reading() as db:
            stored = registry.segment_of_tree(db, segment.tree)
            found = structure.ended_length(db, segment.segment)
            expected = segment.base_length if found is None else found
            if stored is not None and stored[1] != expected:
                what = f"the segment's ended turns have {expected} records, and it says {stored[1]}"
                check.fault("ENDED_LENGTH", segment_name(db, segment.segment), what, segment.segment)
    check.count("counters")
    _recipes(check)


def _recipes(check: Check) -> None:
    trees = [place.tree_pk for place in check.places]
    with check.reading() as db:
        said, found = checks.recipe_counts(db, check.scope.pk), checks.count_by_recipe(db, trees)
        for recipe, count in said.items():
            if found.get(recipe, 0) != count:
                what = f"recipe {recipe} made {found.get(recipe, 0)} nodes, and counts {count}"
                check.fault("RECIPE_COUNT", None, what, recipe)


# ---- the queue -------------------------------------------------------------------------------------------------------


def check_jobs(check: Check) -> None:
    """Each job is for something that is still to come, waits for what is not there, and will be ready one day."""
    after = 0
    while True:
        rows: list[JobState] = []
        with check.reading() as db:
            rows = due.jobs_after(db, check.scope.pk, after, STEP)
            for row in rows:
                _job(check, db, row)
            check.count("jobs", len(rows))
        if len(rows) < STEP:
            break
        after = rows[-1].job_pk
    with check.reading() as db:
        for tree in due.stalled_trees(db, check.scope.pk):
            check.fault("JOB_STUCK", None, f"leaves of tree {tree} wait to be admitted, and none is", tree)


def _job(check: Check, db: Connection, row: JobState) -> None:
    done = done_already(check, db, row)
    if done is not None:
        check.fault("JOB_DONE", None, f"job {row.job_pk} ({row.kind}) is for {done}", row.job_pk)
        return
    if row.missing != row.waits or row.there:
        what = f"job {row.job_pk} waits for {row.waits}, counts {row.missing}, and {row.there} of these are there"
        check.fault("WAITER", job_name(check, db, row), what, row.job_pk)
    elif row.kind != "remake" and row.state != FAILED and set(due.needs_of(db, row.job_pk)) != needs_of(check, db, row):
        what = f"job {row.job_pk} ({row.kind}) does not wait for what it needs"
        check.fault("WAITER", job_name(check, db, row), what, row.job_pk)
    elif row.state == WAITING and not row.missing and not row.tree_pk:
        check.fault("JOB_STUCK", job_name(check, db, row), f"job {row.job_pk} waits for nothing", -row.job_pk)


def needs_of(check: Check, db: Connection, row: JobState) -> set[int]:
    """What a job has to wait for: node keys, and on tree 0 a turn. Of a remake, that of its inputs."""
    scope = check.scope
    if row.kind == "publication":
        turn = turns.load_turn(db, row.subject)
        return set() if turn is None else publication_needs(scope, db, turn)
    if row.kind not in _NODES:
        return set()
    origin = origin_of(scope, db, row.subject)
    if row.kind == "remake":
        return set(remakes.to_be_remade(db, origin.input_keys))
    if origin.tree is None:
        return set()
    there = origin.tree.sizes(db, origin.inputs)
    return {origin.tree.key(span) for span in origin.inputs if span not in there}


def publication_needs(scope: Scope, db: Connection, turn: TurnRow) -> set[int]:
    """What of an ended turn's cover is missing, and the turn before it if that is to be published first."""
    assert turn.end_seq is not None, "an ended turn has an end"
    tree = session_tree(scope, db, turn.segment_pk)
    cover = exact_cover(turn.start_seq, turn.end_seq)
    there = tree.sizes(db, cover)
    needs = {tree.key(span) for span in cover if span not in there}
    before = turns.publishable_before(db, turn, structure.shared_from(db, turn.generation_pk))
    if before is not None and before.publication_key is None:
        needs.add(before.turn_pk)
    return needs


def job_name(check: Check, db: Connection, row: JobState) -> str:
    """The ref of what a job is about."""
    if row.kind == "index":
        return record_ref(db, row.subject)
    if row.kind in _NODES:
        tree = owner_of(row.subject)
        place = next((each for each in check.places if each.tree_pk == tree), None)
        return str(row.subject) if place is None else ref_of(db, place, span_of(row.subject))
    turn = turns.load_turn(db, row.subject) if row.kind == "publication" else None
    return f"{row.kind} {row.subject}" if turn is None else segment_ref(db, turn.segment_pk, Span(turn.start_seq, 1))


def done_already(check: Check, db: Connection, row: JobState) -> str | None:
    """Why there is nothing for a job to do, if so."""
    if row.kind == "publication":
        turn = turns.load_turn(db, row.subject)
        if turn is None:
            return "a turn that is missing"
        return None if publications.live_number(db, row.subject) is None else "a turn that is published"
    if row.kind == "index":
        record = ledger.load_record(db, row.subject)
        return "a record that is missing" if record is None else None
    if row.kind not in _NODES:
        return None
    tree = owner_of(row.subject)
    if all(place.tree_pk != tree for place in check.places) and forest.load_tree(db, tree) is None:
        return "a tree that is missing"
    there = forest.node_exists(db, row.subject)
    if row.kind == "remake":
        return None if there else "a node that is not there"
    if row.kind == "leaf":
        segment = registry.segment_of_tree(db, tree)
        if segment is not None and ledger.load_record(db, segment[0] << KEY_BITS | row.position) is None:
            return "a record that is missing"
    return "a node that is there" if there else None
