"""
Withdrawing (§ 11, § 12): publications leave what the scope shares, and no text that was made of them stays.

Decides: which nodes lose a source, and what stands in for them until a summarizer writes them again.
Refuses to know: why something is withdrawn, and what becomes of the sessions that said it.

A position never goes away: its number may stand in a ref. The leaf becomes a tombstone; every existing node above it is
put together again at once from what is left under it, without a model, and never heavier than it was. So the view
neither grows nor gets a gap: making 1,000 nodes anew with a model would take everybody's context away for minutes. What
could not simply be joined is a stand-in with a job of the lowest priority, and each job waits for those below it.

*Retired* is not *removed*: pins from before a retirement keep text, size and hits. What is removed is gone from under
every pin, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import node_key, owner_of
from optchat.core.refs import KEY_BITS, Span
from optchat.core.render import outcome_label
from optchat.core.speakers import ERROR_MARK, OUTCOME_MARKS, tells_error
from optchat.core.tree import (
    JOIN,
    REMOVED,
    SUPERSEDED,
    Node,
    Recipe,
    inputs_sha256,
    joined,
    merged,
    page_of,
    rebuilt,
    tombstone,
)
from optchat.engine.inputs import Spoken, chunk_tree, clean, page_inputs, record_inputs
from optchat.engine.landing import Landing
from optchat.engine.origins import Origin, children_sha256, dependents, made_without_a_call, origin_of, rank
from optchat.engine.trees import shared_tree
from optchat.store import forest, ledger, publications, queue, registry, search, turns
from optchat.store.forest import MadeRow
from optchat.store.publications import PublicationRow

TOMBSTONE: Final = Recipe("tombstone")
STAND_IN: Final = Recipe("stand_in")
NO_INPUTS: Final = inputs_sha256([])  # of a tombstone: it says nothing of what it was made of, not even its hash


@frozen
class Withdrawn:
    """How many publications are withdrawn by this call, and how many nodes have another text for it."""

    publications: int
    nodes: int


def withdraw(landing: Landing, numbers: Iterable[int], *, removed: bool) -> Withdrawn:
    """
    Withdraw publications, inside of the caller's transaction.

    From its commit on no pin that is taken counts them; where they are ``removed``, no pin at all does. Their turns are
    unpublished. Idempotent: what is withdrawn in that way already is left alone, and so are numbers that name nothing.
    The caller finishes the landing, and counts the epoch where something was removed.

    Args:
        numbers: of publications of the scope.
        removed: False: retired, by a rewind or an edit. True: deleted or revoked.
    """
    landing.follow()  # what this transaction itself made is there now, and waits for nobody
    rows = unpublish(landing, numbers, removed=removed)
    label = REMOVED if removed else SUPERSEDED
    keys = [leaf_key(landing, row.number) for row in rows if row.retired_clock is None]
    nodes = len(replace(landing, dict.fromkeys(keys, Gone(label)), hidden=removed))
    if removed:
        nodes += len(forget_retired(landing, rows))
    return Withdrawn(len(rows), nodes)


def unpublish(landing: Landing, numbers: Iterable[int], *, removed: bool) -> list[PublicationRow]:
    """Nobody counts these publications any more; those that somebody did, as they were. Their nodes stand still."""
    scope, db = landing.scope, landing.db
    rows = publications.load_publications(db, scope.pk, sorted(set(numbers)))
    found = [row for row in rows.values() if not row.removed and (removed or row.retired_clock is None)]
    for row in found:
        if removed:
            publications.remove_publication(db, row.publication_key)
        else:
            publications.retire_publication(db, row.publication_key, landing.born)
        turns.mark_unpublished(db, row.publication_key)
        landing.now_visible()
    return found


def leaf_key(landing: Landing, number: int) -> int:
    """The leaf of a publication in the shared tree."""
    return node_key(landing.scope.row.shared_tree, Span(number, 1))


def forget_retired(landing: Landing, rows: Iterable[PublicationRow]) -> list[int]:
    """
    Of publications that were retired before they were removed: hide what only older pins name. Nothing current was
    made of them, so that no pin is disturbed that could not see them. The keys of the nodes that had such revisions.
    """
    hidden: list[int] = []
    for row in rows:
        key = leaf_key(landing, row.number) if row.retired_clock is not None else None
        while key is not None and row.retired_clock is not None:
            if forest.hide_history(landing.db, key, row.retired_clock):
                hidden.append(key)
            search.hide_node_documents(landing.db, key, row.retired_clock)
            above = dependents(landing.scope, landing.db, key)
            key = next(iter(forest.load_made(landing.db, above)), None)
    return hidden


# ---- nodes that lose a source ----------------------------------------------------------------------------------------


@frozen
class Gone:
    """
    What becomes of a node whose source is gone: the label of its tombstone. None: its sources are still there, and only
    what it says must go. ``verbatim``: the leaf that it was, where it had no row.
    """

    label: str | None
    verbatim: Node | None = None


def replace(landing: Landing, gone: Mapping[int, Gone], *, hidden: bool) -> list[int]:
    """
    Put something else in the place of nodes, and of all that was made of them, in whatever tree; the keys of all these.

    Args:
        gone: by node key.
        hidden: it is gone from under every pin. Else pins from before keep what they had.
    """
    leaves = {
        key: MadeRow(key, each.verbatim, NO_INPUTS, 0, "join", "")
        for key, each in gone.items()
        if each.verbatim is not None
    }
    made, unmade = _upwards(landing, gone, leaves)
    order = sorted(made, key=lambda key: rank(landing.scope, landing.db, key))
    again: dict[int, Origin] = {}
    spoken = Spoken(landing.db)
    for key in order:
        before, fresh = made[key], key in leaves
        label = gone[key].label if key in gone else None
        if label is not None:
            left = _Left(tombstone(before.node, label, landing.at), TOMBSTONE, NO_INPUTS)
        else:
            origin = origin_of(landing.scope, landing.db, key)
            left = (
                _from_source(landing, before, origin, spoken)
                if origin.tree is None
                else _from_inputs(landing, before, origin)
            )
            if left.recipe.kind == "stand_in":
                again[key] = origin
        landing.withdraw(key, left.node, left.recipe, left.inputs, hidden=hidden, fresh=fresh)
    for key, origin in again.items():
        _to_be_written(landing, key, [need for need in origin.input_keys if need in again])
    for key in unmade:
        landing.changed_under(key)  # of other inputs now, and perhaps without a call
    return order


def _upwards(
    landing: Landing, roots: Iterable[int], leaves: Mapping[int, MadeRow]
) -> tuple[dict[int, MadeRow], set[int]]:
    """Nodes and all that exist of what was made of them, at any remove; and the positions above that have none yet."""
    found: dict[int, MadeRow] = {}
    unmade: set[int] = set()
    given = waiting = set(roots)
    while waiting:
        made = forest.load_made(landing.db, waiting)
        made |= {key: leaves[key] for key in waiting if key in leaves}
        unmade |= waiting - made.keys() - given
        found |= made
        waiting = {above for key in made for above in dependents(landing.scope, landing.db, key)} - found.keys()
    return found, unmade - found.keys()


@frozen
class _Left:
    """What is left in a node's place."""

    node: Node
    recipe: Recipe
    inputs: bytes


def _from_inputs(landing: Landing, before: MadeRow, origin: Origin) -> _Left:
    assert origin.tree is not None, "a node that was made of nodes"
    node_bytes = landing.scope.row.node_bytes
    inputs = [node for node in (landing.node(origin.tree, span) for span in origin.inputs) if node is not None]
    hashed = children_sha256(origin.tree, inputs)
    if inputs and all(node.kind == "tombstone" for node in inputs):
        if len(inputs) == 2 and origin.kind in ("merge", "chunk"):
            both = joined(inputs[0], inputs[1], node_bytes)
            if both is not None and both.escaped_bytes <= before.node.escaped_bytes:
                return _Left(evolve(both, span=before.node.span), JOIN, hashed)
        return _Left(tombstone(before.node, inputs[0].text, landing.at), TOMBSTONE, hashed)
    again = (
        made_without_a_call(origin, before.node_key, inputs, node_bytes) if len(inputs) == len(origin.inputs) else None
    )
    if again is not None and again.escaped_bytes <= before.node.escaped_bytes:
        return _Left(again, JOIN, hashed)
    parent: Node | None = None
    mark, what = "", f"{before.node.span.count} records"
    if origin.kind in ("merge", "chunk") and len(inputs) == 2:
        left, right = inputs
        parent = merged(left, right, "", left.escaped_bytes + 1 + right.escaped_bytes, "stand_in")
        if parent.not_completed:
            mark = f"[{outcome_label(parent.failed, parent.interrupted)}] "
    if origin.tree == shared_tree(landing.scope):
        what = f"{before.node.span.count} publications"
    elif origin.turn is not None:
        mark = OUTCOME_MARKS[origin.turn.outcome or "completed"]
        what = f"a turn of {(origin.turn.end_seq or 0) - origin.turn.start_seq} records"
    texts = [node.text for node in inputs if node.kind != "tombstone"]
    return _Left(rebuilt(before.node, parent, texts, what, mark, node_bytes), STAND_IN, hashed)


def _from_source(landing: Landing, before: MadeRow, origin: Origin, spoken: Spoken) -> _Left:
    """A leaf whose record is still there, and only whose summary must go."""
    db, seq = landing.db, before.node.span.start
    if origin.kind == "chunk":
        tree, record = chunk_tree(db, owner_of(before.node_key))
        assert tree.page_bytes is not None, "a chunk tree records its page size"
        text, hashed = clean(page_of(spoken.bytes(record), tree.page_bytes, seq)), page_inputs(record, seq)
    else:
        segment = registry.segment_of_tree(db, owner_of(before.node_key))
        found = None if segment is None else ledger.load_record(db, segment[0] << KEY_BITS | seq)
        if found is None:
            raise IntegrityError(f"record {seq} of a summary is missing; run verify() and restore a backup")
        record, text, hashed = found, clean(spoken.bytes(found)), record_inputs(found)
    mark = ERROR_MARK if record.kind == "tool_result" and tells_error(text) else ""
    left = rebuilt(before.node, None, [text], record.kind, mark, landing.scope.row.node_bytes)
    return _Left(left, STAND_IN, hashed)


def _to_be_written(landing: Landing, key: int, needs: Sequence[int]) -> None:
    queue.add_job(
        landing.db,
        scope_pk=landing.scope.pk,
        kind="remake",
        subject=key,
        needs=needs,
        at=landing.at,
        position=1,  # in any case: that its inputs are as they were does not make a summary of a stand-in
    )
    landing.jobs_added()
