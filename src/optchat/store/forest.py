"""
The forest: trees, nodes, recipes, views.

Decides: how nodes and views are stored, and that a node's revision is found by clock.
Refuses to know: which node should exist.

Under clock c a position resolves to its greatest revision with ``born`` ≤ c, else to its smallest: what landed since
the pin is new, what was repaired since is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.lineage import Chain, ordinal_of
from optchat.core.refs import KEY_BITS, KEY_MASK, Span, span_of_post_order
from optchat.core.tree import NODE_KIND_NUMBER, NODE_KINDS, Node, Recipe, RecipeKind
from optchat.store.payloads import load_leaves
from optchat.store.rows import Connection, Row, all_rows, insert, keys, one_row, one_value, run, with_flags

NEWEST = (1 << 62) - 1  # a clock above every other: the owner's reading


@frozen
class Size:
    """What a view needs of a node before it needs its text."""

    escaped_bytes: int
    failed: int
    interrupted: int


# ---- trees -----------------------------------------------------------------------------------------------------------


@frozen
class TreeRow:
    tree_pk: int
    scope_pk: int
    kind: str
    record_key: int | None
    page_bytes: int | None
    pages: int | None


def load_tree(db: Connection, tree_pk: int) -> TreeRow | None:
    row = one_row(
        db,
        "SELECT tree_pk, scope_pk, kind, record_key, page_bytes, pages FROM tree WHERE tree_pk = :tree",
        {"tree": tree_pk},
    )
    return None if row is None else TreeRow(*row)


def find_chunk_tree(db: Connection, record_key: int) -> TreeRow | None:
    row = one_row(
        db,
        "SELECT tree_pk, scope_pk, kind, record_key, page_bytes, pages FROM tree WHERE record_key = :record",
        {"record": record_key},
    )
    return None if row is None else TreeRow(*row)


def find_chunk_trees(db: Connection, record_keys: Iterable[int]) -> dict[int, TreeRow]:
    """Chunk trees by their records; most records have none."""
    return {
        row[3]: TreeRow(*row)
        for row in all_rows(
            db,
            "SELECT tree_pk, scope_pk, kind, record_key, page_bytes, pages FROM tree"
            " WHERE record_key IN (SELECT value FROM carray(:keys))",
            {"keys": keys(record_keys)},
        )
    }


def create_chunk_tree(db: Connection, scope_pk: int, record_key: int, page_bytes: int, pages: int) -> int:
    return insert(
        db,
        "INSERT INTO tree (scope_pk, kind, record_key, page_bytes, pages) VALUES (:scope, 'chunk', :record, :bytes,"
        " :pages)",
        {"scope": scope_pk, "record": record_key, "bytes": page_bytes, "pages": pages},
    )


def chunk_trees_between(db: Connection, low: int, high: int) -> list[int]:
    """The trees over the payloads of records whose key lies in ``[low, high)``."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT tree_pk FROM tree WHERE record_key >= :low AND record_key < :high ORDER BY record_key",
            {"low": low, "high": high},
        )
    ]


def chunk_trees(db: Connection, segment_pk: int) -> list[TreeRow]:
    """The chunk trees over the large payloads of a segment, as far as these are there."""
    return [
        TreeRow(*row)
        for row in all_rows(
            db,
            "SELECT tree_pk, scope_pk, kind, record_key, page_bytes, pages FROM tree"
            " WHERE record_key >= :low AND record_key < :high AND EXISTS (SELECT 1 FROM record"
            " WHERE record.record_key = tree.record_key AND record.state = 0) ORDER BY record_key",
            {"low": segment_pk << KEY_BITS, "high": (segment_pk + 1) << KEY_BITS},
        )
    ]


# ---- recipes ---------------------------------------------------------------------------------------------------------


def intern_recipe(db: Connection, scope_pk: int, recipe: Recipe) -> int:
    bindings = {
        "scope": scope_pk,
        "kind": recipe.kind,
        "model": recipe.model,
        "prompt": recipe.prompt_version,
        "format": recipe.format,
        "parameters": recipe.parameters,
    }
    found = one_value(
        db,
        "SELECT recipe_pk FROM recipe WHERE scope_pk = :scope AND kind = :kind AND model = :model"
        " AND prompt_version = :prompt AND format = :format AND parameters = :parameters",
        bindings,
    )
    if found is not None:
        return int(found)
    return insert(
        db,
        "INSERT INTO recipe (scope_pk, kind, model, prompt_version, format, parameters)"
        " VALUES (:scope, :kind, :model, :prompt, :format, :parameters)",
        bindings,
    )


def recipe_counts(db: Connection, scope_pk: int) -> dict[tuple[str, str], int]:
    """How many current nodes each (kind, model) made."""
    counts: dict[tuple[str, str], int] = {}
    for kind, model, nodes in all_rows(
        db, "SELECT kind, model, nodes FROM recipe WHERE scope_pk = :scope", {"scope": scope_pk}
    ):
        counts[kind, model] = counts.get((kind, model), 0) + nodes
    return counts


def recipe_pks(db: Connection, scope_pk: int, kind: RecipeKind, model: str | None = None) -> frozenset[int]:
    """The recipes of a kind, and of a summarizer if one is named, that current nodes were made by."""
    return frozenset(
        row[0]
        for row in all_rows(
            db,
            "SELECT recipe_pk FROM recipe WHERE scope_pk = :scope AND kind = :kind"
            " AND (:model IS NULL OR model = :model) AND nodes > 0",
            {"scope": scope_pk, "kind": kind, "model": model},
        )
    )


# ---- nodes -----------------------------------------------------------------------------------------------------------

_COLUMNS = "node_key, revision, kind, text, escaped_bytes, failed, interrupted, first_at, last_at, born"


def _node(row: Row, span: Span | None = None) -> Node:
    return Node(
        span or span_of_post_order(row[0] & KEY_MASK),
        row[1],
        NODE_KINDS[row[2]],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
    )


def insert_node(db: Connection, node_key: int, node: Node, recipe_pk: int, inputs: bytes, born: int) -> None:
    """Insert a position's first revision. A second writer of the same position is a broken fence, and fails here."""
    run(
        db,
        "INSERT INTO node (node_key, revision, kind, text, escaped_bytes, recipe_pk, inputs_sha256, born, failed,"
        " interrupted, first_at, last_at) VALUES (:key, 0, :kind, :text, :escaped, :recipe, :inputs, :born, :failed,"
        " :interrupted, :first, :last)",
        {
            "key": node_key,
            "kind": NODE_KIND_NUMBER[node.kind],
            "text": node.text,
            "escaped": node.escaped_bytes,
            "recipe": recipe_pk,
            "inputs": inputs,
            "born": born,
            "failed": node.failed,
            "interrupted": node.interrupted,
            "first": node.first_at,
            "last": node.last_at,
        },
    )


@frozen
class MadeRow:
    """A current node and how it was made."""

    node_key: int
    node: Node
    inputs: bytes
    recipe_pk: int
    recipe_kind: RecipeKind
    model: str


def load_made(db: Connection, node_keys: Iterable[int]) -> dict[int, MadeRow]:
    """Current nodes with their recipes, by key; positions without a row are left out."""
    return {
        row[0]: MadeRow(row[0], _node(row), row[10], row[11], row[12], row[13])
        for row in all_rows(
            db,
            f"SELECT {_COLUMNS}, inputs_sha256, recipe_pk,"
            " (SELECT recipe.kind FROM recipe WHERE recipe.recipe_pk = node.recipe_pk),"
            " (SELECT recipe.model FROM recipe WHERE recipe.recipe_pk = node.recipe_pk) FROM node"
            " WHERE node_key IN (SELECT value FROM carray(:keys)) AND state = 0",
            {"keys": keys(node_keys)},
        )
    }


def revise_node(db: Connection, node_key: int, node: Node, recipe_pk: int, inputs: bytes, born: int) -> MadeRow:
    """
    Put a new revision in a position's place; the one before moves to the history, where pinned clocks find it.

    Returns:
        The revision before, which is one less than the new one.

    Raises:
        IntegrityError: there is no node in that position.
    """
    before = _to_history(db, node_key, node, hidden=False)
    _put_revision(db, node_key, node, recipe_pk, inputs, born)
    return before


def supplant_node(db: Connection, node_key: int, node: Node, recipe_pk: int, inputs: bytes) -> MadeRow:
    """
    Put a new revision in a position's place under every clock: what was there is hidden, from pins too.

    It is born when the position first was, so that a pin from then still finds a node there.

    Returns:
        The revision before.

    Raises:
        IntegrityError: there is no node in that position.
    """
    born = one_value(
        db,
        "SELECT min(born) FROM (SELECT born FROM node WHERE node_key = :key UNION ALL"
        " SELECT born FROM node_history WHERE node_key = :key AND state = 0)",
        {"key": node_key},
    )
    before = _to_history(db, node_key, node, hidden=True)
    run(db, "UPDATE node_history SET state = 1 WHERE node_key = :key AND state = 0", {"key": node_key})
    _put_revision(db, node_key, node, recipe_pk, inputs, int(born))
    return before


def hide_history(db: Connection, node_key: int, clock: int) -> bool:
    """
    Hide a node's revisions that were superseded by the one of a clock; whether there were any.

    The oldest that is left stands in their place under the clocks that named them.
    """
    row = one_row(
        db,
        "SELECT min(born), max(revision) FROM node_history WHERE node_key = :key AND born < :clock AND state = 0",
        {"key": node_key, "clock": clock},
    )
    if row is None or row[0] is None:
        return False
    oldest = {"key": node_key, "revision": row[1], "born": row[0]}
    run(db, "UPDATE node_history SET state = 1 WHERE node_key = :key AND revision <= :revision", oldest)
    left = (
        "UPDATE {table} SET born = :born WHERE node_key = :key AND revision = :revision + 1 RETURNING revision".format
    )
    if one_row(db, left(table="node_history"), oldest) is None:
        run(db, left(table="node"), oldest)
    return True


def _to_history(db: Connection, node_key: int, node: Node, *, hidden: bool) -> MadeRow:
    before = load_made(db, [node_key]).get(node_key)
    if before is None:
        raise IntegrityError(f"node {node.span} is missing and cannot be revised; run verify() and restore a backup")
    run(
        db,
        "INSERT INTO node_history (node_key, revision, kind, text, escaped_bytes, recipe_pk, inputs_sha256, born,"
        " failed, interrupted, first_at, last_at, state) SELECT node_key, revision, kind, text, escaped_bytes,"
        " recipe_pk, inputs_sha256, born, failed, interrupted, first_at, last_at, :hidden FROM node"
        " WHERE node_key = :key",
        {"key": node_key, "hidden": int(hidden)},
    )
    return before


def _put_revision(db: Connection, node_key: int, node: Node, recipe_pk: int, inputs: bytes, born: int) -> None:
    run(
        db,
        "UPDATE node SET revision = revision + 1, kind = :kind, text = :text, escaped_bytes = :escaped,"
        " recipe_pk = :recipe, inputs_sha256 = :inputs, born = :born, failed = :failed, interrupted = :interrupted,"
        " first_at = :first, last_at = :last WHERE node_key = :key",
        {
            "key": node_key,
            "kind": NODE_KIND_NUMBER[node.kind],
            "text": node.text,
            "escaped": node.escaped_bytes,
            "recipe": recipe_pk,
            "inputs": inputs,
            "born": born,
            "failed": node.failed,
            "interrupted": node.interrupted,
            "first": node.first_at,
            "last": node.last_at,
        },
    )


def insert_foreign(db: Connection, node_key: int, revision: int, publication_keys: Iterable[int]) -> None:
    """Record the foreign publications that the context of a node's revision held."""
    for publication in publication_keys:
        run(
            db,
            "INSERT INTO node_foreign (node_key, revision, publication_key) VALUES (:key, :revision, :publication)",
            {"key": node_key, "revision": revision, "publication": publication},
        )


def count_nodes(db: Connection, recipe_pk: int, inserted: int) -> None:
    """Add to the number of current nodes that a recipe made."""
    run(
        db,
        "UPDATE recipe SET nodes = nodes + :inserted WHERE recipe_pk = :recipe",
        {"recipe": recipe_pk, "inserted": inserted},
    )


def load_nodes(
    db: Connection, node_keys: Iterable[int], clock: int = NEWEST, spans: Mapping[int, Span] | None = None
) -> dict[int, Node]:
    """
    Nodes as they are under a clock, by key. Positions without a row are left out.

    Args:
        spans: the positions of the keys, for a caller who has them: finding them from a key takes a search.
    """
    at = spans or dict[int, Span]()
    found: dict[int, Node] = {}
    newer: list[int] = []
    for row in all_rows(
        db,
        f"SELECT {_COLUMNS} FROM node WHERE node_key IN (SELECT value FROM carray(:keys)) AND state = 0",
        {"keys": keys(node_keys)},
    ):
        found[row[0]] = _node(row, at.get(row[0]))
        if row[1] > 0 and row[9] > clock:
            newer.append(row[0])
    for key in newer:
        older = _older(db, key, clock)
        if older is not None:
            found[key] = _node(older, at.get(key))
    return found


def _older(db: Connection, node_key: int, clock: int) -> Row | None:
    """The revision that a clock resolves to, of a node that was repaired since: it is in the history."""
    return one_row(
        db,
        f"SELECT {_COLUMNS} FROM node_history WHERE node_key = :key AND state = 0"
        " ORDER BY born <= :clock DESC, CASE WHEN born <= :clock THEN -revision ELSE revision END LIMIT 1",
        {"key": node_key, "clock": clock},
    )


def node_exists(db: Connection, node_key: int) -> bool:
    return one_row(db, "SELECT 1 FROM node WHERE node_key = :key", {"key": node_key}) is not None


def load_sizes(db: Connection, node_keys: Iterable[int], clock: int = NEWEST) -> dict[int, Size]:
    """The sizes of nodes as they are under a clock: one statement, and one more for each that was repaired since."""
    found: dict[int, Size] = {}
    newer: list[int] = []
    for row in all_rows(
        db,
        "SELECT node_key, escaped_bytes, failed, interrupted, revision, born FROM node"
        " WHERE node_key IN (SELECT value FROM carray(:keys)) AND state = 0",
        {"keys": keys(node_keys)},
    ):
        found[row[0]] = Size(row[1], row[2], row[3])
        if row[4] > 0 and row[5] > clock:
            newer.append(row[0])
    for key in newer:
        older = _older(db, key, clock)
        if older is not None:
            found[key] = Size(*older[4:7])
    return found


def born_by(db: Connection, node_keys: Iterable[int], clock: int) -> set[int]:
    """Those of the positions that had a node under a clock already, whatever was repaired since."""
    wanted = keys(node_keys)
    return {
        row[0]
        for row in all_rows(
            db,
            "SELECT node_key FROM node WHERE node_key IN (SELECT value FROM carray(:keys)) AND born <= :clock"
            " UNION SELECT node_key FROM node_history WHERE node_key IN (SELECT value FROM carray(:older))"
            " AND born <= :clock AND state = 0",
            {"keys": wanted, "older": wanted, "clock": clock},
        )
    }


# ---- nodes of a session, verbatim leaves included --------------------------------------------------------------------


def session_sizes(db: Connection, chain: Chain, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Size]:
    """The sizes of a session's nodes and leaves under a clock; what is not durable yet is left out."""
    wanted = list(spans)
    leaves = {chain.record_key(span.start): span for span in wanted if span.count == 1}
    sizes: dict[Span, Size] = {}
    for key, escaped in all_rows(
        db,
        "SELECT record_key, leaf_escaped FROM record WHERE record_key IN (SELECT value FROM carray(:keys))"
        " AND leaf_escaped IS NOT NULL AND state = 0",
        {"keys": keys(leaves)},
    ):
        sizes[leaves[key]] = Size(escaped, 0, 0)
    by_key = {chain.node_key(span): span for span in wanted if span not in sizes}
    for key, size in load_sizes(db, by_key, clock).items():
        sizes[by_key[key]] = size
    return sizes


def session_nodes(db: Connection, chain: Chain, spans: Iterable[Span], clock: int = NEWEST) -> dict[Span, Node]:
    """A session's nodes, verbatim leaves included; what is not durable yet is left out."""
    wanted = list(spans)
    found: dict[Span, Node] = {}
    leaves = {chain.record_key(span.start): span for span in wanted if span.count == 1}
    if leaves:
        for key, leaf in load_leaves(db, leaves).items():
            span = leaves[key]
            found[span] = Node(span, 0, "verbatim", leaf.text, leaf.escaped_bytes, 0, 0, leaf.at, leaf.at)
    by_key = {chain.node_key(span): span for span in wanted if span not in found}
    if by_key:
        for key, node in load_nodes(db, by_key, clock, by_key).items():
            found[by_key[key]] = node
    return found


# ---- views -----------------------------------------------------------------------------------------------------------


@frozen
class ViewRow:
    """A tree's current frontier."""

    tree_pk: int
    revision: int
    length: int
    levels: bytes
    shrinking: bool
    bytes: int | None = None  # of its lines, rendered; None: to be counted


def load_view(db: Connection, tree_pk: int) -> ViewRow:
    row = one_row(
        db,
        "SELECT tree_pk, revision, length, levels, shrinking, bytes FROM view WHERE tree_pk = :tree",
        {"tree": tree_pk},
    )
    assert row is not None, "a tree that has a view was created with one"
    return ViewRow(*with_flags(row, 4))


def save_view(db: Connection, view: ViewRow) -> None:
    run(
        db,
        "UPDATE view SET revision = :revision, length = :length, levels = :levels, shrinking = :shrinking,"
        " bytes = :bytes WHERE tree_pk = :tree",
        {
            "revision": view.revision,
            "length": view.length,
            "levels": view.levels,
            "shrinking": int(view.shrinking),
            "bytes": view.bytes,
            "tree": view.tree_pk,
        },
    )


def recipes_of_tree(db: Connection, tree_pk: int, *, after: int, limit: int) -> list[tuple[int, int]]:
    """(node key, recipe) of a tree's nodes in order of completion, from the one after a key; -1 is the beginning."""
    return [
        (row[0], row[1])
        for row in all_rows(
            db,
            "SELECT node_key, recipe_pk FROM node WHERE node_key > :after AND node_key < :high AND state = 0"
            " ORDER BY node_key LIMIT :limit",
            {
                "after": max(after, (tree_pk << KEY_BITS) - 1),
                "high": (tree_pk + 1) << KEY_BITS,
                "limit": limit,
            },
        )
    ]


def nodes_of_tree(db: Connection, tree_pk: int, *, after: int, limit: int) -> list[tuple[int, Node, bytes, int]]:
    """(position, node, inputs hash, recipe) of a tree's nodes in order of completion, for checks."""
    return [
        (ordinal_of(row[0]), _node(row), row[10], row[11])
        for row in all_rows(
            db,
            f"SELECT {_COLUMNS}, inputs_sha256, recipe_pk FROM node"
            " WHERE node_key > :low AND node_key < :high AND state = 0 ORDER BY node_key LIMIT :limit",
            {
                "low": tree_pk << KEY_BITS | after if after >= 0 else (tree_pk << KEY_BITS) - 1,
                "high": (tree_pk + 1) << KEY_BITS,
                "limit": limit,
            },
        )
    ]
