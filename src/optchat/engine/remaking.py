"""
Making nodes anew (§ 4, § 6): another summarizer takes over, what the embedded default made is made again, a node is
repaired.

Decides: which nodes are made anew and in which order: inputs before what is made of them.
Refuses to know: models, and what a new revision makes stale (:mod:`optchat.engine.landing` sees to that).

An upgrade is a job for each node, worked whenever there is time; each is one new revision, and a node never waits for a
job that failed. A repair is one transaction: the node and all that was made of it, drafted outside of any transaction,
and committed only if all that the drafts rest on is still as it was. Either way pins from before see what they saw.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import define, evolve, field, frozen

from optchat.core.compactor_view import Rooms
from optchat.core.errors import BadArgument, InputsChanged
from optchat.core.lineage import owner_of
from optchat.core.render import escaped_size
from optchat.core.retrieval import LineKind
from optchat.core.tree import JOIN, Node, Recipe
from optchat.engine.calls import resume
from optchat.engine.handle import Scope
from optchat.engine.inputs import Spoken, Task, inputs_now, load
from optchat.engine.landing import Landing
from optchat.engine.naming import node_ref
from optchat.engine.origins import (
    Origin,
    TreePlace,
    dependents,
    made_without_a_call,
    origin_of,
    origins_in,
    rank,
    trees_of_scope,
)
from optchat.engine.sights import SessionTarget, owner_reading, resolve
from optchat.engine.trees import Tree, session_tree, shared_tree
from optchat.store import forest, queue, remakes, scopes
from optchat.store.forest import MadeRow
from optchat.store.queue import JobRow
from optchat.store.rows import Connection

_STEP: Final = 200  # nodes a transaction, so that no other writer waits long


# ---- jobs that make nodes anew ---------------------------------------------------------------------------------------


def revise(landing: Landing, task: Task, text: str, recipe: Recipe) -> None:
    """Take the result of a remake job: one new revision of its node, with its outcomes, times and number unchanged."""
    key = task.job.subject
    made = forest.load_made(landing.db, [key])[key]
    landing.revise(key, with_text(made.node, text, recipe), recipe, task.inputs, task.foreign)


def with_text(node: Node, text: str, recipe: Recipe) -> Node:
    """A node with another summary: what else it says comes from structure, which did not change."""
    kind: LineKind = "stand_in" if recipe.kind == "stand_in" else "summary"
    return evolve(node, kind=kind, text=text, escaped_bytes=escaped_size(text))


def leave(landing: Landing, job: JobRow) -> None:
    """
    A remake job has failed for good: the text that there is stays, and those that waited for another go on with it.

    The job itself stays, as failed: it says why the node does not fit its inputs, and may be armed again.
    """
    landing.unmade(job.subject)


def take_over(scope: Scope, name: str) -> int:
    """
    Make a summarizer the scope's, whichever was before; failed jobs are armed again: how many. What paused the one
    before is over.

    Results that the one before is at work on are still taken.
    """
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        scopes.rename_summarizer(db, scope.pk, name)
        armed = queue.rearm(db, scope.pk, scope.now())
        resume(db, scope.pk)
    scope.wake()
    return armed


def upgrade(scope: Scope, default_name: str) -> int:
    """
    Add a job for every node that the embedded default summarised, and for all that was made of these: how many.

    Idempotent. Each step is one transaction of bounded size; what a worker makes anew between two of them has made its
    own dependents stale already.
    """
    added = 0
    with scope.store.read() as db:
        wanted = forest.recipe_pks(db, scope.pk, "summary", default_name)
        trees = trees_of_scope(scope, db) if wanted else []
    for tree in trees:
        after: int | None = -1
        while after is not None:
            with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
                after, more = _upgrade_step(scope, db, tree, after, wanted)
            added += more
    if added:
        scope.wake()
    return added


def _upgrade_step(
    scope: Scope, db: Connection, tree: TreePlace, after: int, wanted: frozenset[int]
) -> tuple[int | None, int]:
    """The jobs for some nodes of a tree: the last node looked at, None where there is no more, and how many jobs."""
    rows = forest.recipes_of_tree(db, tree.tree_pk, after=after, limit=_STEP)
    origins = origins_in(scope, db, tree, [key for key, _recipe in rows])
    have = remakes.remakes(db, [key for key, _recipe in rows])
    coming = set(remakes.to_be_remade(db, {key for origin in origins.values() for key in origin.input_keys}))
    added = 0
    for key, recipe_pk in rows:
        needs = [need for need in origins[key].input_keys if need in coming]
        job = have.get(key)
        if job is not None:
            if recipe_pk in wanted and not job.in_any_case:
                remakes.remake_in_any_case(db, job.job_pk)
            continue
        if recipe_pk not in wanted and not needs:
            continue
        queue.add_job(
            db,
            scope_pk=scope.pk,
            kind="remake",
            subject=key,
            needs=needs,
            at=scope.now(),
            position=int(recipe_pk in wanted),
        )
        coming.add(key)
        added += 1
    return (rows[-1][0] if len(rows) == _STEP else None), added


def stand_ins(scope: Scope) -> list[str]:
    """The refs of all that a stand-in stands for: each can be repaired. A page goes by its record."""
    found: dict[str, None] = {}
    with scope.store.read() as db:
        wanted = forest.recipe_pks(db, scope.pk, "stand_in")
        trees = trees_of_scope(scope, db) if wanted else []
    for tree in trees:
        after: int | None = -1
        while after is not None:
            with scope.store.read() as db:
                rows = forest.recipes_of_tree(db, tree.tree_pk, after=after, limit=_STEP)
                for key, recipe_pk in rows:
                    if recipe_pk in wanted:
                        found[node_ref(scope, db, key)] = None
            after = rows[-1][0] if len(rows) == _STEP else None
    return list(found)


# ---- repair ----------------------------------------------------------------------------------------------------------


@frozen
class _Step:
    """A node's new revision, and what must still be so when it is committed."""

    job: JobRow
    revision: int
    node: Node
    recipe: Recipe
    inputs: bytes
    foreign: tuple[int, ...] = ()

    @property
    def key(self) -> int:
        return self.job.subject


@define
class Repair:
    """
    A node and all that was made of it, on the way to new revisions. Nothing is stored before :func:`commit_repair`.

    Ask for the text of each task that :meth:`next` gives, and hand it to :meth:`take`; what needs no text is joined on
    the way. Each task is made with the new texts below it.
    """

    scope: Scope
    rooms: Rooms
    epoch: int
    _path: tuple[tuple[int, int], ...]  # (node key, revision), inputs before what is made of them
    _steps: list[_Step] = field(factory=list[_Step])
    _drafts: dict[int, Node] = field(factory=dict[int, Node])
    _task: Task | None = None

    @property
    def length(self) -> int:
        """How many nodes get a new revision."""
        return len(self._path)

    @property
    def steps(self) -> tuple[_Step, ...]:
        return tuple(self._steps)

    def next(self) -> Task | None:
        """
        The next text to ask for; None when every node has its own.

        Raises:
            InputsChanged: a node on the way is another than when the repair began.
            BadArgument: a source is larger than the summarizer's window.
        """
        while self._task is None and len(self._steps) < len(self._path):
            key, revision = self._path[len(self._steps)]
            drafted = evolve(self.scope, drafts=self._drafts)
            with self.scope.store.read() as db:
                made = _unchanged(db, key, revision)
                job = JobRow(0, self.scope.pk, "remake", key, 0, 0, 0, 0, self.scope.now())
                origin = origin_of(drafted, db, key)
                joined = None if origin.tree is None else _joined(drafted, db, key, origin)
                if joined is not None:
                    self._draft(job, made.node, joined, JOIN, inputs_now(drafted, db, job))
                    continue
                task = load(drafted, db, Spoken(db), job, self.epoch, self.rooms)
                if origin.tree is None and task.source_bytes > self.rooms.page_bytes:
                    raise BadArgument(
                        f"the source of {node_ref(self.scope, db, key)} is larger than the summarizer's window; "
                        "repair it with one that has a larger window"
                    )
                self._task = task
        return self._task

    def take(self, task: Task, text: str, recipe: Recipe) -> None:
        """The text for the task that :meth:`next` gave last."""
        if task is not self._task:
            raise BadArgument("that is not the task that next() gave last; take texts in the order of their tasks")
        self._task = None
        key, revision = self._path[len(self._steps)]
        with self.scope.store.read() as db:
            made = _unchanged(db, key, revision)
        self._draft(task.job, made.node, with_text(made.node, text, recipe), recipe, task.inputs, task.foreign)

    def _draft(
        self, job: JobRow, before: Node, node: Node, recipe: Recipe, inputs: bytes, foreign: tuple[int, ...] = ()
    ) -> None:
        self._drafts[job.subject] = evolve(node, revision=before.revision + 1)
        self._steps.append(_Step(job, before.revision, node, recipe, inputs, foreign))


def _joined(scope: Scope, db: Connection, key: int, origin: Origin) -> Node | None:
    assert origin.tree is not None, "asked of what has inputs"
    found = origin.tree.nodes(db, origin.inputs)
    inputs = [found[span] for span in origin.inputs if span in found]
    if len(inputs) < len(origin.inputs):
        raise BadArgument(f"what {node_ref(scope, db, key)} is made of is still being summarised; settle() it first")
    return made_without_a_call(origin, key, inputs, scope.row.node_bytes)


def _unchanged(db: Connection, key: int, revision: int) -> MadeRow:
    made = forest.load_made(db, [key]).get(key)
    if made is None or made.node.revision != revision:
        raise InputsChanged("a node was made anew while it was being repaired; repair it again if it still needs it")
    return made


def begin_repair(scope: Scope, ref: str, rooms: Rooms) -> Repair:
    """
    What a repair of a node is to make anew: the node, and every existing node that was made of it, in any tree.

    A node that is a join has no text of its own: what it joins is repaired. A record whose summary rests on pages has
    those pages repaired, too, that are stand-ins.

    Raises:
        MalformedRef, UnknownRef: it is no ref, or names nothing here.
        BadArgument: what it names is kept word for word, or not summarised yet.
    """
    with scope.store.read() as db:
        target = resolve(owner_reading(scope, db), db, ref)
        tree: Tree = shared_tree(scope)
        if isinstance(target, SessionTarget):
            tree = session_tree(scope, db, target.chain.own.segment)
        if target.span not in tree.nodes(db, [target.span]):
            raise BadArgument(f"{target.ref} is not summarised yet; settle() first, or wait for the worker")
        roots = _roots(scope, db, tree.key(target.span))
        if not roots:
            raise BadArgument(
                f"{target.ref} is kept word for word, it has no summary; repair a line that a summarizer wrote"
            )
        path = _upwards(scope, db, roots)
        epoch = scopes.scope_counters(db, scope.pk)[0]
    return Repair(scope, rooms, epoch, path)


def _roots(scope: Scope, db: Connection, key: int) -> set[int]:
    """The nodes in or under a position that have texts of their own to repair: itself, unless it is a join."""
    made = forest.load_made(db, [key]).get(key)
    if made is None or made.node.kind == "tombstone":
        return set()  # a verbatim leaf, or what is left of one
    origin = origin_of(scope, db, key)
    if made.recipe_kind == "join":
        return {root for each in origin.input_keys for root in _roots(scope, db, each)}
    roots = {key}
    if origin.kind == "leaf" and origin.tree is not None:
        failed = forest.recipe_pks(db, scope.pk, "stand_in")
        pages = forest.recipes_of_tree(db, owner_of(origin.input_keys[0]), after=-1, limit=-1)
        roots.update(page for page, recipe in pages if recipe in failed)
    return roots


def _upwards(scope: Scope, db: Connection, roots: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Nodes and all existing ones that were made of them, with their revisions, inputs first."""
    found: dict[int, int] = {}
    waiting = set(roots)
    while waiting:
        made = forest.load_made(db, waiting)
        found.update((key, row.node.revision) for key, row in made.items())
        above = {position for key in made for position in dependents(scope, db, key)}
        waiting = above - found.keys()
    return tuple((key, found[key]) for key in sorted(found, key=lambda key: rank(scope, db, key)))


def commit_repair(scope: Scope, plan: Repair) -> int:
    """
    Commit a finished repair: every new revision, then one new revision of each view, in one transaction.

    Returns:
        How many nodes were made anew.

    Raises:
        InputsChanged: something that the new texts rest on is not as it was; nothing was changed.
    """
    if len(plan.steps) < plan.length:
        raise BadArgument("the repair is not finished; ask next() until it gives None")
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        landing = Landing(scope, db, scope.now())
        if scopes.scope_counters(db, scope.pk)[0] != plan.epoch:
            raise InputsChanged("something was removed while the repair ran; repair again if it still needs it")
        for step in plan.steps:
            _unchanged(db, step.key, step.revision)
            if inputs_now(scope, db, step.job) != step.inputs:
                raise InputsChanged("the inputs of a node changed while it was being repaired; repair it again")
            landing.revise(step.key, step.node, step.recipe, step.inputs, step.foreign)
        landing.finish()
    landing.after_commit()
    return landing.revisions
