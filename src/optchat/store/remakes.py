"""
The queue's jobs of kind "remake": one new revision of a node that exists.

Decides: how they are found by the node that they are for.
Refuses to know: when a node is made anew, and what of.

There is at most one a node. Its ``position`` says why it is there: 1, the node is to be made anew in any case; 0, only
because its inputs are, so that it falls away where they stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from optchat.core.jobs import FAILED, KIND_NUMBER, WAITING
from optchat.store.rows import Connection, all_rows, keys, run

_REMAKE = KIND_NUMBER["remake"]


@frozen
class RemakeRow:
    """A remake job as it stands."""

    job_pk: int
    node_key: int
    state: int
    missing: int
    in_any_case: bool

    @property
    def waits(self) -> bool:
        """Whether inputs of the node are still to be made anew."""
        return self.state == WAITING and self.missing > 0

    @property
    def failed(self) -> bool:
        return self.state == FAILED


def remakes(db: Connection, node_keys: Iterable[int]) -> dict[int, RemakeRow]:
    """The remake jobs of nodes, by node key, in whatever state."""
    return {
        row[1]: RemakeRow(row[0], row[1], row[2], row[3], bool(row[4]))
        for row in all_rows(
            db,
            f"SELECT job_pk, subject, state, missing, position FROM job WHERE kind = {_REMAKE}"
            " AND subject IN (SELECT value FROM carray(:keys))",
            {"keys": keys(node_keys)},
        )
    }


def to_be_remade(db: Connection, node_keys: Iterable[int]) -> list[int]:
    """Those of the nodes that are worth waiting for: a new revision of them will come."""
    return [key for key, job in remakes(db, node_keys).items() if not job.failed]


def remake_in_any_case(db: Connection, job_pk: int) -> None:
    run(db, "UPDATE job SET position = 1 WHERE job_pk = :job", {"job": job_pk})


def drop_remake(db: Connection, node_key: int) -> bool:
    """Remove a node's remake job, whoever holds it: the node was made anew. Whether there was one."""
    return run(db, f"DELETE FROM job WHERE kind = {_REMAKE} AND subject = :node", {"node": node_key}) > 0
