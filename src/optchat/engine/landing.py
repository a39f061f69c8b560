"""
Landing: what follows, in the same transaction, when a leaf is sealed, a node is made, or a turn ends.

Decides: nothing that core does not: it walks from what landed to what that makes possible, until nothing more follows.
Refuses to know: models, and who called.

One cascade serves every use case. A sealed record makes its leaf and the merges that it completes due; children that
fit together join at once, others become jobs; a landed node wakes exactly the jobs that named it; a finished turn whose
cover is durable and fits is published at once, and wakes the next turn's publication; views advance last, one plan a
tree. A node that is revised makes what it was an input of stale: joined again at once, or a job to make it anew, inputs
before what is made of them. The rows written here are the outbox: there is no moment in which a crash could lose work.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from attrs import define, evolve, field

from optchat.core import publications as rules
from optchat.core.jobs import AWAITED, BACKLOG
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.refs import KEY_BITS, Span, completed_by, exact_cover, span_of_post_order
from optchat.core.tree import JOIN, Node, Recipe, joined
from optchat.engine.advancing import Views
from optchat.engine.documents import add_node
from optchat.engine.handle import Scope
from optchat.engine.origins import (
    children_sha256,
    dependents,
    finished_turn,
    made_without_a_call,
    origin_of,
    rank,
    resting_segments,
)
from optchat.engine.trees import SessionTree, Tree, session_tree, shared_tree, tree_of_key
from optchat.store import forest, publications, queue, registry, remakes, scopes, search, turns
from optchat.store.queue import JobRow
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection
from optchat.store.turns import TurnRow


@define
class Landing:
    """
    One transaction's cascade. Feed it, then call :meth:`finish` once, and :meth:`after_commit` when it is
    durable.
    """

    scope: Scope
    db: Connection
    at: int
    backlog: bool = False  # what is sealed is history: nobody's next turn waits for its summaries
    _landed: deque[int] = field(factory=deque[int])
    _recipes: dict[Recipe, int] = field(factory=dict[Recipe, int])
    _made: Counter[int] = field(factory=Counter[int])  # by recipe: how many nodes this transaction inserted
    _nodes: dict[int, Node | None] = field(factory=dict[int, Node | None])  # by key: made or read; None: not there
    _segments: dict[int, tuple[int, int] | None] = field(factory=dict[int, tuple[int, int] | None])  # by tree
    _visible: bool = False  # whether a later pin may see something new
    _sealed: bool = False
    _changed: set[int] = field(factory=set[int])  # node keys: revised in this transaction
    _stale: list[tuple[tuple[int, int, int], int]] = field(
        factory=list[tuple[tuple[int, int, int], int]]
    )  # a heap of node keys by rank: an input of them was revised
    _made_jobs: bool = False
    _born: int | None = None
    _views: Views = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._views = Views(self.scope, self.db)

    # ---- what use cases feed it --------------------------------------------------------------------------------------

    def leaf_sealed(self, tree: SessionTree, seq: int, verbatim: Node | None) -> None:
        """
        A record was sealed: its leaf is durable if it is verbatim, else due; the merges that it completes are
        due.
        """
        own = tree.chain.own.tree
        key = node_key(own, Span(seq, 1))
        self._nodes[key] = verbatim
        self._sealed = True
        if verbatim is None:
            admitted = queue.admitted_in_tree(self.db, own) < self.scope.policy.leaf_window
            queue.add_job(
                self.db,
                scope_pk=self.scope.pk,
                kind="leaf",
                subject=key,
                at=self.at,
                admission_tree=own,
                position=seq,
                admitted=admitted,
                priority=BACKLOG if self.backlog else AWAITED,
            )
            self._made_jobs = True
        self._merges_due(tree, seq)

    def insert(self, key: int, node: Node, recipe: Recipe, inputs: bytes, foreign: Sequence[int] = ()) -> None:
        """
        Insert a node and let what it makes possible follow.

        Args:
            foreign: the keys of foreign publications that its summarizer was shown.
        """
        made_by = self._recipe(recipe)
        forest.insert_node(self.db, key, node, made_by, inputs, self._birth())
        forest.insert_foreign(self.db, key, node.revision, foreign)
        if recipe.kind != "join":  # nobody asks how many there are, and a counter costs each seal a page
            self._made[made_by] += 1
        self._nodes[key] = node
        if recipe.kind == "summary":
            self._index_node(key, node)
            self._visible = True
        self._landed.append(key)

    def revise(self, key: int, node: Node, recipe: Recipe, inputs: bytes, foreign: Sequence[int] = ()) -> None:
        """
        Put a new revision in a node's place, and let what it makes stale follow.

        Pins from before keep the text, the size and the hits that they had. A job to make it anew is done with.

        Args:
            node: its revision is of no matter: it is one more than the present one's.
            foreign: the keys of foreign publications that its summarizer was shown.
        """
        before = forest.revise_node(self.db, key, node, self._recipe(recipe), inputs, self._birth())
        search.replace_node_documents(self.db, key, self._birth())
        revised = self._revised(before, node, recipe, foreign)
        if recipe.kind == "summary":
            self._index_node(key, revised, self._birth())
        self._landed.append(key)

    def withdraw(self, key: int, node: Node, recipe: Recipe, inputs: bytes, *, hidden: bool, fresh: bool) -> None:
        """
        Put what a withdrawal leaves in a node's place, as a new revision. The caller sees to all that was made of it,
        so that nothing becomes stale here, and nobody is woken.

        Args:
            hidden: what was there is removed: pins from before find the new text, too. Else they keep what they had.
            fresh: it stands for a verbatim leaf, which had no row.
        """
        if fresh:
            forest.insert_node(self.db, key, node, self._recipe(recipe), inputs, self._birth())
            self._made[self._recipe(recipe)] += recipe.kind != "join"
            self._nodes[key] = node
            self._changed.add(key)
        elif hidden:
            before = forest.supplant_node(self.db, key, node, self._recipe(recipe), inputs)
            search.hide_node_documents(self.db, key)
            self._revised(before, node, recipe, ())
        else:
            before = forest.revise_node(self.db, key, node, self._recipe(recipe), inputs, self._birth())
            search.replace_node_documents(self.db, key, self._birth())
            self._revised(before, node, recipe, ())
        self._visible = True
        self._note_for_view(key)

    def _revised(self, before: forest.MadeRow, node: Node, recipe: Recipe, foreign: Sequence[int]) -> Node:
        """A node has another revision: what is counted of it, and known of it here."""
        key, made_by = before.node_key, self._recipe(recipe)
        revised = evolve(node, revision=before.node.revision + 1)
        forest.insert_foreign(self.db, key, revised.revision, foreign)
        if before.recipe_kind != "join":
            self._made[before.recipe_pk] -= 1
        if recipe.kind != "join":
            self._made[made_by] += 1
        remakes.drop_remake(self.db, key)
        self._nodes[key] = revised
        self._changed.add(key)
        self._visible = True
        return revised

    def changed_under(self, key: int) -> None:
        """An input of a position changed: what is to be made there, or was, is looked at again."""
        self._make_stale(key)

    def unmade(self, key: int) -> None:
        """A node stays as it is that was to be made anew: those that wait for it go on without."""
        for job in queue.wake(self.db, key):
            self._woken(job)

    @property
    def revisions(self) -> int:
        """How many nodes have a new revision by this transaction."""
        return len(self._changed)

    def turn_ended(self, turn: TurnRow) -> None:
        """A turn has its outcome: its records join the session's view, and its publication is due."""
        assert turn.end_seq is not None, "an ended turn has an end"
        self.records_ended(turn.segment_pk, turn.end_seq)
        session, _number = registry.session_of_generation(self.db, turn.generation_pk)
        present = session.generation_pk == turn.generation_pk
        if present and not session.revoked and turn.ordinal >= session.shared_from:  # else it shares nothing of it
            self.publication_due(turn, session)

    def records_ended(self, segment_pk: int, end: int) -> None:
        """The records below ``end`` of a segment are of ended turns: its view may cover them."""
        registry.set_ended_length(self.db, segment_pk, end)
        self._segments.clear()
        self._views.turn_ended(segment_pk)

    def publication_due(self, turn: TurnRow, session: SessionRow) -> None:
        """
        An ended turn of a session that shares it is published, now if it fits, else by a job. Of isolated sessions,
        inherited turns and those without records nothing is.
        """
        assert turn.end_seq is not None, "an ended turn has an end"
        if session.isolated or turn.inherited or turn.end_seq == turn.start_seq:
            return
        tree = session_tree(self.scope, self.db, turn.segment_pk)
        cover = exact_cover(turn.start_seq, turn.end_seq)
        durable = self._known(tree, cover)
        needs = [tree.key(span) for span in cover if span not in durable]
        present = session.generation_pk == turn.generation_pk
        before = turns.publishable_before(self.db, turn, session.shared_from if present else 0)
        if before is not None and before.publication_key is None:
            needs.append(before.turn_pk)  # tree 0: publications of one generation are made in turn order
        if not needs and self._publish_if_it_fits(turn):
            return
        queue.add_job(
            self.db, scope_pk=self.scope.pk, kind="publication", subject=turn.turn_pk, needs=needs, at=self.at
        )
        self._made_jobs = True

    @property
    def born(self) -> int:
        """The clock from which on what this transaction lands is there."""
        return self._birth()

    def node(self, tree: Tree, span: Span) -> Node | None:
        """A node as this transaction has it by now."""
        return self._known(tree, [span]).get(span)

    def now_visible(self) -> None:
        """The caller made something visible to later pins: the clock moves at the end."""
        self._visible = True

    def jobs_added(self) -> None:
        """The caller added a job itself: the worker is told after the commit."""
        self._made_jobs = True

    def publish(
        self, turn: TurnRow, leaf: Callable[[int], Node], recipe: Recipe, inputs: bytes, foreign: Sequence[int] = ()
    ) -> int:
        """
        Make a turn's publication visible: its number, row, shared leaf, view and search visibility, in this
        transaction.

        Args:
            leaf: the publication's leaf, from its number.
            foreign: the keys of foreign publications that its summarizer was shown.

        Returns:
            The publication's number.
        """
        finished = finished_turn(turn)
        number = scopes.take_publication_number(self.db, self.scope.pk)
        key = self.scope.pk << KEY_BITS | number
        publications.insert_publication(
            self.db,
            publication_key=key,
            turn_pk=turn.turn_pk,
            generation_pk=turn.generation_pk,
            start_seq=finished.start,
            end_seq=finished.end,
            outcome=finished.outcome,
            completed_at=finished.ended_at,
            published_at=self.at,
            born=self._birth(),
        )
        turns.mark_published(self.db, turn.turn_pk, key)
        first = publications.first_published_start(self.db, turn.generation_pk)
        search.publish_documents(
            self.db, turn.segment_pk, finished.start, finished.end, number, finished.start if first is None else first
        )
        node = leaf(number)
        self.insert(shared_tree(self.scope).key(node.span), node, recipe, inputs, foreign)
        self._views.published(node.span)
        self._visible = True
        self._merges_due(shared_tree(self.scope), number)
        self._landed.append(turn.turn_pk)
        return number

    def finish(self) -> None:
        """
        Follow what landed until nothing more follows, advance the views, and move the clock if a pin may see
        more.
        """
        self.follow()
        self._views.advance()
        if self._sealed and queue.rearm(self.db, self.scope.pk, self.at, afresh=False):
            self._made_jobs = True  # one more attempt each: a job that can never succeed must not cost five an append
        for recipe, count in self._made.items():
            forest.count_nodes(self.db, recipe, count)
        if self._visible:
            scopes.tick(self.db, self.scope.pk, self.at)

    def follow(self) -> None:
        """Follow what landed so far until nothing more follows."""
        while self._landed or self._stale:
            if not self._landed:
                self._look_again(heappop(self._stale)[1])
                continue
            landed = [*self._landed]
            self._landed.clear()
            # Nobody begins to wait for what has landed, so that one look finds all who wait for any of these.
            awaited = queue.awaited(self.db, landed)
            for key in landed:
                self._follow(key, key in awaited)

    def after_commit(self) -> None:
        """What may only be believed now: the frontiers in memory, and that there is work."""
        self._views.after_commit()
        for recipe, recipe_pk in self._recipes.items():
            self.scope.caches.recipes.put((self.scope.pk, recipe), recipe_pk)
        if self._made_jobs:
            self.scope.wake()

    # ---- the cascade -------------------------------------------------------------------------------------------------

    def _birth(self) -> int:
        if self._born is None:
            self._born = scopes.next_clock(self.db, self.scope.pk)
        return self._born

    def _recipe(self, recipe: Recipe) -> int:
        found = self._recipes.get(recipe) or self.scope.caches.recipes.get((self.scope.pk, recipe))
        if found is None:
            found = self._recipes[recipe] = forest.intern_recipe(self.db, self.scope.pk, recipe)
        return found

    def _known(self, tree: Tree, spans: Iterable[Span]) -> dict[Span, Node]:
        """
        Nodes of a tree. What this transaction made, read or missed is not read again: a batch asks for little
        else.
        """
        keys = {tree.key(span): span for span in spans}
        unread = [span for key, span in keys.items() if key not in self._nodes]
        if unread:
            read = tree.nodes(self.db, unread)
            for span in unread:
                self._nodes[tree.key(span)] = read.get(span)
        found = ((span, self._nodes[key]) for key, span in keys.items())
        return {span: node for span, node in found if node is not None}

    def _merges_due(self, tree: Tree, leaf: int) -> None:
        """The inner nodes that a new leaf completes: joined, or as jobs that name what they still need."""
        for span in completed_by(leaf):
            known = self._known(tree, span.children)
            if len(known) == len(span.children):
                left, right = (known[child] for child in span.children)
                node = joined(left, right, self.scope.row.node_bytes)
                if node is not None:
                    self._join(tree, span, left, right, node)
                    continue
            needs = [tree.key(child) for child in span.children if child not in known]
            queue.add_job(
                self.db, scope_pk=self.scope.pk, kind="merge", subject=tree.key(span), needs=needs, at=self.at
            )
            self._nodes[tree.key(span)] = None
            self._made_jobs = True

    def _join(self, tree: Tree, span: Span, left: Node, right: Node, node: Node) -> None:
        self.insert(tree.key(span), node, JOIN, children_sha256(tree, (left, right)))

    def _follow(self, key: int, awaited: bool) -> None:
        """One landed node (or published turn): note it for its view, and wake whoever named it."""
        if owner_of(key):
            self._note_for_view(key)
        if key in self._changed:
            for above in dependents(self.scope, self.db, key):
                self._make_stale(above)
        if awaited:
            for job in queue.wake(self.db, key):
                self._woken(job)

    def _note_for_view(self, key: int) -> None:
        tree_pk, span = owner_of(key), span_of_post_order(ordinal_of(key))
        revised = key in self._changed
        if tree_pk == self.scope.row.shared_tree:
            self._views.in_shared(span, revised=revised)
            return
        segment = self._segment(tree_pk)
        if segment is not None and span.end <= segment[1]:  # above it lies the open turn, which no view covers yet
            resting = resting_segments(self.db, segment[0], span.end)
            self._views.in_sessions([segment[0], *resting], span, revised=revised)

    def _segment(self, tree_pk: int) -> tuple[int, int] | None:
        """(segment_pk, ended_length) of a session's tree."""
        if tree_pk not in self._segments:
            self._segments[tree_pk] = registry.segment_of_tree(self.db, tree_pk)
        return self._segments[tree_pk]

    def _woken(self, job: JobRow) -> None:
        self._made_jobs = True
        if job.kind in ("merge", "chunk"):
            tree = tree_of_key(self.scope, self.db, job.subject)
            span = span_of_post_order(ordinal_of(job.subject))
            if span.count > 1:
                children = self._known(tree, span.children)
                left, right = (children[child] for child in span.children)
                node = joined(left, right, self.scope.row.node_bytes)
                if node is not None:
                    queue.remove_job(self.db, job.job_pk)
                    self._join(tree, span, left, right, node)
                    return
        elif job.kind == "publication":
            turn = turns.load_turn(self.db, job.subject)
            if turn is not None and self._publish_if_it_fits(turn):
                queue.remove_job(self.db, job.job_pk)
                return
        elif job.kind == "remake":
            self._make_stale(job.subject)
            return
        queue.make_ready(self.db, job.job_pk)

    def _make_stale(self, key: int) -> None:
        heappush(self._stale, (rank(self.scope, self.db, key), key))

    def _look_again(self, key: int) -> None:
        """
        A position whose inputs changed, or for whose inputs nobody waits any more: join it anew, or see to its job.

        Where there is no node yet its inputs may fit together now; else whatever makes it takes them as they are then.
        """
        node = forest.load_made(self.db, [key]).get(key)
        if node is None:
            for kind in ("merge", "chunk") if owner_of(key) else ("publication",):
                first = queue.job_with_all(self.db, kind, key)
                if first is not None:
                    self._woken(first)
            return
        job = remakes.remakes(self.db, [key]).get(key)
        if job is not None and job.waits:
            return
        origin = origin_of(self.scope, self.db, key)
        assert origin.tree is not None, "stale by an input"
        known = self._known(origin.tree, origin.inputs)
        inputs = [known[span] for span in origin.inputs if span in known]
        if len(inputs) < len(origin.inputs):
            return  # pages of its record are still to be summarised, and its job waits for them
        now = children_sha256(origin.tree, inputs)
        if now == node.inputs and (job is None or not job.in_any_case):
            if job is not None:
                queue.remove_job(self.db, job.job_pk)
                self.unmade(key)
            return
        coming = remakes.to_be_remade(self.db, origin.input_keys)
        if not coming:
            again = made_without_a_call(origin, key, inputs, self.scope.row.node_bytes)
            if again is not None:
                self.revise(key, again, JOIN, now)
                return
        self._made_jobs = True
        if job is not None and not job.failed and not coming:
            queue.make_ready(self.db, job.job_pk)
            return
        if job is not None:  # it failed with inputs that are no more, or was at work on them; and now it has to wait
            queue.remove_job(self.db, job.job_pk)
        queue.add_job(
            self.db,
            scope_pk=self.scope.pk,
            kind="remake",
            subject=key,
            needs=coming,
            at=self.at,
            position=int(job is not None and job.in_any_case),
        )

    def _publish_if_it_fits(self, turn: TurnRow) -> bool:
        finished = finished_turn(turn)
        tree = session_tree(self.scope, self.db, turn.segment_pk)
        cover = self._known(tree, finished.cover)
        nodes = [cover[span] for span in finished.cover]
        if rules.publication_leaf(0, finished, nodes, self.scope.row.node_bytes) is None:
            return False

        def leaf(number: int) -> Node:
            made = rules.publication_leaf(number, finished, nodes, self.scope.row.node_bytes)
            assert made is not None, "the number does not change what fits"
            return made

        self.publish(turn, leaf, JOIN, children_sha256(tree, nodes))
        return True

    def _index_node(self, key: int, node: Node, born: int = 0) -> None:
        """
        A summarizer's text is searchable; a join repeats what its children say.

        Args:
            born: of a later revision: searches under an earlier clock do not find it.
        """
        tree_pk = owner_of(key)
        segment: tuple[int, int] | None = None
        visible: int | None = None
        if tree_pk == self.scope.row.shared_tree:
            low = self.scope.pk << KEY_BITS
            visible = publications.last_live(self.db, low | node.span.start, low | node.span.end)
        else:
            segment = self._segment(tree_pk)
            if segment is None:
                return  # a page's summary is a step on the way to a leaf, and never shown
            visible = self._node_visible(segment[0], node.span)
        segment_pk = None if segment is None else segment[0]
        add_node(self.scope, self.db, key, node, segment_pk=segment_pk, visible=visible, born_clock=born)

    def _node_visible(self, segment_pk: int, span: Span) -> int | None:
        """The publication that makes a session's node foreign-visible, if its records are all published already."""
        generation = registry.generation_of_segment(self.db, segment_pk)
        if generation is None:
            return None
        first = publications.first_published_start(self.db, generation[0])
        if first is None or span.start < first:
            return None
        turn = turns.turn_at(self.db, segment_pk, span.end - 1)
        return None if turn is None or turn.publication_key is None else ordinal_of(turn.publication_key)
