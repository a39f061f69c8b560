"""
What only a repair writes: derived rows, put right where they stand.

Decides: nothing: each statement writes what its caller derived again.
Refuses to know: sources. No statement here touches a record, a payload, a blob, or what a turn or a publication says.
"""

from __future__ import annotations

from collections.abc import Iterable

from optchat.core.jobs import KIND_NUMBER, WAITING, JobKind
from optchat.core.records import SUMMARY_KIND
from optchat.core.refs import KEY_BITS
from optchat.core.tree import NODE_KIND_NUMBER, Node
from optchat.store.rows import Connection, one_row, one_value, run


def raise_counters(
    db: Connection, scope_pk: int, *, next_publication: int, next_document: int, clock: int, epoch: int
) -> None:
    """Counters never go back: each is at least what is given."""
    run(
        db,
        "UPDATE scope SET next_publication = max(next_publication, :publication), next_document ="
        " max(next_document, :document), clock = max(clock, :clock), epoch = max(epoch, :epoch)"
        " WHERE scope_pk = :scope",
        {
            "scope": scope_pk,
            "publication": next_publication,
            "document": next_document,
            "clock": clock,
            "epoch": epoch,
        },
    )


def put_moment(db: Connection, scope_pk: int, at: int) -> None:
    """The marks at the scope's clock, where they are missing."""
    run(
        db,
        "INSERT OR IGNORE INTO moment (moment_key, publications, documents, policy_revision, epoch, at)"
        " SELECT scope_pk << 40 | clock, next_publication, next_document, policy_revision, epoch, :at FROM scope"
        " WHERE scope_pk = :scope",
        {"scope": scope_pk, "at": at},
    )


def lower_moment(db: Connection, scope_pk: int, clock: int) -> None:
    """Marks that reach past what there is, or past those of a later moment: down to these."""
    run(
        db,
        "UPDATE moment SET"
        " publications = min(publications, (SELECT next_publication FROM scope WHERE scope_pk = :scope), coalesce("
        "(SELECT min(later.publications) FROM moment AS later WHERE later.moment_key > :key AND later.moment_key <"
        " :high), publications)),"
        " documents = min(documents, (SELECT next_document FROM scope WHERE scope_pk = :scope), coalesce("
        "(SELECT min(later.documents) FROM moment AS later WHERE later.moment_key > :key AND later.moment_key < :high),"
        " documents)) WHERE moment_key = :key",
        {"scope": scope_pk, "key": scope_pk << KEY_BITS | clock, "high": (scope_pk + 1) << KEY_BITS},
    )


def name_publication(db: Connection, turn_pk: int, publication_key: int | None) -> None:
    """Which live publication a turn's row names."""
    run(
        db,
        "UPDATE turn SET publication_key = :key WHERE turn_pk = :turn",
        {"turn": turn_pk, "key": publication_key},
    )


def put_view(db: Connection, tree_pk: int) -> None:
    """An empty view for a tree that has none."""
    run(
        db,
        "INSERT OR IGNORE INTO view (tree_pk, revision, length, levels, shrinking) VALUES (:tree, 0, 0, x'', 0)",
        {"tree": tree_pk},
    )


def touch_views(db: Connection, tree_pks: Iterable[int]) -> None:
    """A frontier that any process holds of these trees is out of date."""
    for tree in tree_pks:
        run(db, "UPDATE view SET revision = revision + 1 WHERE tree_pk = :tree", {"tree": tree})


def set_derived(db: Connection, node_key: int, node: Node) -> None:
    """A node's size, outcomes and times, as they follow from its text and from what is under it."""
    run(
        db,
        "UPDATE node SET escaped_bytes = :escaped, failed = :failed, interrupted = :interrupted, first_at = :first,"
        " last_at = :last WHERE node_key = :key",
        {
            "key": node_key,
            "escaped": node.escaped_bytes,
            "failed": node.failed,
            "interrupted": node.interrupted,
            "first": node.first_at,
            "last": node.last_at,
        },
    )


def newest_revision(db: Connection, node_key: int) -> int | None:
    """The last revision that a lost node is known to have had, by what it left; None: it left nothing."""
    value = one_value(
        db,
        "SELECT max(revision) FROM (SELECT revision FROM node_history WHERE node_key = :key UNION ALL"
        " SELECT revision FROM node_foreign WHERE node_key = :key UNION ALL"
        " SELECT revision FROM document WHERE subject = :key AND kind = :summary)",
        {"key": node_key, "summary": SUMMARY_KIND},
    )
    return None if value is None else int(value)


def put_node(db: Connection, node_key: int, node: Node, recipe_pk: int, inputs: bytes) -> None:
    """
    A node in a position that has lost its own, under a revision that none before it had.

    Pins that name a revision in the history still find that; all others find this one, since they found one there.
    """
    revision = newest_revision(db, node_key)
    born = one_value(db, "SELECT max(born) FROM node_history WHERE node_key = :key AND state = 0", {"key": node_key})
    run(
        db,
        "INSERT INTO node (node_key, revision, kind, text, escaped_bytes, recipe_pk, inputs_sha256, born, failed,"
        " interrupted, first_at, last_at) VALUES (:key, :revision, :kind, :text, :escaped, :recipe, :inputs, :born,"
        " :failed, :interrupted, :first, :last)",
        {
            "key": node_key,
            "revision": 0 if revision is None else revision + 1,
            "kind": NODE_KIND_NUMBER[node.kind],
            "text": node.text,
            "escaped": node.escaped_bytes,
            "recipe": recipe_pk,
            "inputs": inputs,
            "born": 0 if born is None else born + 1,
            "failed": node.failed,
            "interrupted": node.interrupted,
            "first": node.first_at,
            "last": node.last_at,
        },
    )


def drop_job(db: Connection, kind: JobKind, subject: int) -> None:
    """A job whose result is there by other means, whoever holds it."""
    run(
        db,
        "DELETE FROM job WHERE kind = :kind AND subject = :subject",
        {"kind": KIND_NUMBER[kind], "subject": subject},
    )


def set_needs(db: Connection, job_pk: int, needs: Iterable[int]) -> None:
    """What a job waits for: these, and nothing else."""
    run(db, "DELETE FROM waiter WHERE job_pk = :job", {"job": job_pk})
    for need in needs:
        run(db, "INSERT INTO waiter (needs, job_pk) VALUES (:needs, :job)", {"needs": need, "job": job_pk})


def recount_waiters(db: Connection, job_pk: int) -> bool:
    """How many things a job waits for, counted anew; whether it is none."""
    row = one_row(
        db,
        "UPDATE job SET missing = counted.waits, state = CASE WHEN job.state = 1 AND counted.waits > 0"
        f" THEN {WAITING} ELSE job.state END FROM (SELECT count(*) AS waits FROM waiter WHERE job_pk = :job) AS counted"
        " WHERE job.job_pk = :job RETURNING missing",
        {"job": job_pk},
    )
    return row is not None and row[0] == 0


def set_recipe_count(db: Connection, recipe_pk: int, nodes: int) -> None:
    run(db, "UPDATE recipe SET nodes = :nodes WHERE recipe_pk = :recipe", {"recipe": recipe_pk, "nodes": nodes})
