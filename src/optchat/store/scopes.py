"""
Scopes, their clocks, and projects.

Decides: how scopes, moments and project aliases are stored.
Refuses to know: what a scope may share.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.errors import ConfigError
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.store.rows import Connection, all_rows, insert, one_row, one_value, run


@frozen
class ScopeRow:
    """A scope's format, which never changes, and where its shared tree is."""

    scope_pk: int
    name: str
    node_bytes: int
    view_high_bytes: int
    view_low_bytes: int
    pretokenizer: int
    leaf_format: int
    shared_tree: int


@frozen
class Moment:
    """The scope's marks at one tick of its clock."""

    clock: int
    publications: int
    documents: int
    policy_revision: int
    epoch: int
    at: int


def find_scope(db: Connection, name: str) -> ScopeRow | None:
    row = one_row(
        db,
        "SELECT scope_pk, name, node_bytes, view_high_bytes, view_low_bytes, pretokenizer, leaf_format, shared_tree"
        " FROM scope WHERE name = :name AND state = 'live'",
        {"name": name},
    )
    return None if row is None else ScopeRow(*row)


def create_scope(
    db: Connection,
    *,
    name: str,
    node_bytes: int,
    view_high_bytes: int,
    view_low_bytes: int,
    pretokenizer: int,
    leaf_format: int,
    at: int,
) -> ScopeRow:
    """Insert a scope with its shared tree, an empty view and its first moment."""
    scope_pk = insert(
        db,
        "INSERT INTO scope (name, created_at, node_bytes, view_high_bytes, view_low_bytes, pretokenizer, leaf_format,"
        " shared_tree, secret) VALUES (:name, :at, :node_bytes, :high, :low, :pretokenizer, :leaf_format, 0,"
        " randomblob(32))",
        {
            "name": name,
            "at": at,
            "node_bytes": node_bytes,
            "high": view_high_bytes,
            "low": view_low_bytes,
            "pretokenizer": pretokenizer,
            "leaf_format": leaf_format,
        },
    )
    tree = insert(db, "INSERT INTO tree (scope_pk, kind) VALUES (:scope, 'shared')", {"scope": scope_pk})
    run(db, "UPDATE scope SET shared_tree = :tree WHERE scope_pk = :scope", {"tree": tree, "scope": scope_pk})
    run(
        db,
        "INSERT INTO view (tree_pk, revision, length, levels, shrinking) VALUES (:tree, 0, 0, x'', 0)",
        {"tree": tree},
    )
    run(
        db,
        "INSERT INTO moment (moment_key, publications, documents, policy_revision, epoch, at) VALUES (:key, 0, 0, 1,"
        " 0, :at)",
        {"key": scope_pk << KEY_BITS, "at": at},
    )
    return ScopeRow(scope_pk, name, node_bytes, view_high_bytes, view_low_bytes, pretokenizer, leaf_format, tree)


def scope_names(db: Connection) -> list[str]:
    return [row[0] for row in all_rows(db, "SELECT name FROM scope WHERE state = 'live' ORDER BY name")]


def check_live(db: Connection, scope_pk: int) -> None:
    """
    Raises:
        ConfigError: the scope was deleted.
    """
    if one_value(db, "SELECT state FROM scope WHERE scope_pk = :scope", {"scope": scope_pk}) != "live":
        raise ConfigError("this scope was deleted; open(...) begins a new one under its name")


def current_moment(db: Connection, scope_pk: int) -> Moment:
    """
    The newest tick: what a pin taken now sees. The epoch and policy revision are the scope's own, which may be
    newer.

    Raises:
        ConfigError: the scope was deleted.
    """
    check_live(db, scope_pk)
    row = one_row(
        db,
        "SELECT scope.clock, moment.publications, moment.documents, scope.policy_revision, scope.epoch, moment.at"
        " FROM scope JOIN moment ON moment_key = (scope_pk << 40) | clock WHERE scope_pk = :scope",
        {"scope": scope_pk},
    )
    assert row is not None, "a scope has a moment for its clock"  # written by the transaction that moves the clock
    return Moment(*row)


def find_moment(db: Connection, scope_pk: int, clock: int) -> Moment | None:
    """A past tick that is still kept."""
    if not 0 <= clock <= KEY_MASK:
        return None
    row = one_row(
        db,
        "SELECT moment_key & 1099511627775, publications, documents, policy_revision, epoch, at"
        " FROM moment WHERE moment_key = :key",
        {"key": scope_pk << KEY_BITS | clock},
    )
    return None if row is None else Moment(*row)


def scope_counters(db: Connection, scope_pk: int) -> tuple[int, int, int]:
    """(epoch, policy revision, clock): what every read under a pin checks first."""
    row = one_row(db, "SELECT epoch, policy_revision, clock FROM scope WHERE scope_pk = :scope", {"scope": scope_pk})
    return (0, 0, 0) if row is None else (row[0], row[1], row[2])


def tick(db: Connection, scope_pk: int, at: int) -> int:
    """
    Move the scope's clock, and write down the marks of the new moment.

    Called last in a transaction that published, or that landed what a later pin may see: the marks it writes hold for
    whoever pins from now on.
    """
    row = one_row(
        db,
        "UPDATE scope SET clock = clock + 1 WHERE scope_pk = :scope"
        " RETURNING clock, next_publication, next_document, policy_revision, epoch",
        {"scope": scope_pk},
    )
    assert row is not None, "the scope of a handle exists"
    clock, publications, documents, policy_revision, epoch = row
    run(
        db,
        "INSERT INTO moment (moment_key, publications, documents, policy_revision, epoch, at)"
        " VALUES (:key, :publications, :documents, :policy_revision, :epoch, :at)",
        {
            "key": scope_pk << KEY_BITS | clock,
            "publications": publications,
            "documents": documents,
            "policy_revision": policy_revision,
            "epoch": epoch,
            "at": at,
        },
    )
    return int(clock)


def next_clock(db: Connection, scope_pk: int) -> int:
    """The tick that this transaction will make: what it lands is born then."""
    return 1 + int(one_value(db, "SELECT clock FROM scope WHERE scope_pk = :scope", {"scope": scope_pk}))


def take_publication_number(db: Connection, scope_pk: int) -> int:
    row = one_row(
        db,
        "UPDATE scope SET next_publication = next_publication + 1 WHERE scope_pk = :scope RETURNING next_publication -"
        " 1",
        {"scope": scope_pk},
    )
    assert row is not None, "the scope of a handle exists"
    return int(row[0])


def next_publication(db: Connection, scope_pk: int) -> int:
    """How many publications the scope has numbered: the next one's number."""
    return int(one_value(db, "SELECT next_publication FROM scope WHERE scope_pk = :scope", {"scope": scope_pk}))


def take_document_numbers(db: Connection, scope_pk: int, count: int) -> int:
    """Reserve ``count`` numbers; the first of them. Numbers are never used again, whatever is deleted."""
    row = one_row(
        db,
        "UPDATE scope SET next_document = next_document + :count WHERE scope_pk = :scope RETURNING next_document -"
        " :count",
        {"scope": scope_pk, "count": count},
    )
    assert row is not None, "the scope of a handle exists"
    return int(row[0])


def scope_summarizer(db: Connection, scope_pk: int) -> str | None:
    value = one_value(db, "SELECT summarizer FROM scope WHERE scope_pk = :scope", {"scope": scope_pk})
    return None if value is None else str(value)


def name_summarizer(db: Connection, scope_pk: int, name: str) -> None:
    run(
        db,
        "UPDATE scope SET summarizer = :name WHERE scope_pk = :scope AND summarizer IS NULL",
        {"scope": scope_pk, "name": name},
    )


def rename_summarizer(db: Connection, scope_pk: int, name: str) -> None:
    """Another summarizer takes over, whichever was named before."""
    run(db, "UPDATE scope SET summarizer = :name WHERE scope_pk = :scope", {"scope": scope_pk, "name": name})


# ---- projects --------------------------------------------------------------------------------------------------------


def find_project(db: Connection, alias: str) -> int | None:
    """The project that an alias, or a project id, names."""
    value = one_value(
        db,
        "SELECT project_pk FROM project_alias WHERE alias = :alias"
        " UNION ALL SELECT project_pk FROM project WHERE project_id = :alias",
        {"alias": alias},
    )
    return None if value is None else int(value)


def create_project(db: Connection, project_id: str, alias: str) -> int:
    project = insert(db, "INSERT INTO project (project_id) VALUES (:id)", {"id": project_id})
    add_alias(db, project, alias)
    return project


def add_alias(db: Connection, project_pk: int, alias: str) -> None:
    run(
        db,
        "INSERT INTO project_alias (alias, project_pk) VALUES (:alias, :project)",
        {"alias": alias, "project": project_pk},
    )


def project_id(db: Connection, project_pk: int) -> str:
    return str(one_value(db, "SELECT project_id FROM project WHERE project_pk = :project", {"project": project_pk}))


# ---- owners ----------------------------------------------------------------------------------------------------------


def count_worker(db: Connection, owner_pk: int, change: int) -> None:
    """Count this process's workers, one a handle, so that others know whether waiting for summaries can help."""
    run(
        db,
        "UPDATE owner SET working = working + :change WHERE owner_pk = :owner",
        {"owner": owner_pk, "change": change},
    )


def working_owners(db: Connection) -> list[int]:
    return [row[0] for row in all_rows(db, "SELECT owner_pk FROM owner WHERE working > 0")]
