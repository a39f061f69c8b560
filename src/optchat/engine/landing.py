"""
Landing: what follows, in the same transaction, when a leaf is sealed, a node is made, or a turn ends.

Decides: nothing that core does not: it walks from what landed to what that makes possible, until nothing more follows.
Refuses to know: models, and who called.

One cascade serves every use case. A sealed record makes its leaf and the merges that it completes due; children that
fit together join at once, others become jobs; a landed node wakes exactly the jobs that named it; a finished turn whose
cover is durable and fits is published at once, and wakes the next turn's publication; views advance last, one plan a
tree. The rows written here are the outbox: there is no moment in which a crash could lose work.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from attrs import define, field

from optchat.core import publications as rules
from optchat.core.errors import IntegrityError
from optchat.core.lineage import node_key, ordinal_of, owner_of
from optchat.core.records import SUMMARY_KIND
from optchat.core.refs import KEY_BITS, Span, completed_by, exact_cover, span_of_post_order
from optchat.core.tree import JOIN, Node, Recipe, inputs_sha256, joined, text_sha256
from optchat.core.views import Frontier, FrontierChange, FrontierState, plan_appends, plan_land
from optchat.core.words import words_of
from optchat.engine.handle import HeldFrontier, Scope
from optchat.engine.trees import SessionTree, Tree, session_tree, shared_tree, tree_of_key
from optchat.store import forest, publications, queue, registry, scopes, search, turns
from optchat.store.queue import JobRow
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
    _landed: deque[int] = field(factory=deque[int])
    _session_spans: dict[int, list[Span]] = field(
        factory=dict[int, list[Span]]
    )  # by segment: the landings that its view must hear of
    _published: list[Span] = field(factory=list[Span])
    _shared_spans: list[Span] = field(factory=list[Span])
    _recipes: dict[Recipe, int] = field(factory=dict[Recipe, int])
    _made: Counter[int] = field(factory=Counter[int])  # by recipe: how many nodes this transaction inserted
    _nodes: dict[int, Node | None] = field(factory=dict[int, Node | None])  # by key: made or read; None: not there
    _segments: dict[int, tuple[int, int] | None] = field(factory=dict[int, tuple[int, int] | None])  # by tree
    _advanced: list[tuple[int, int, Frontier, FrontierChange]] = field(
        factory=list[tuple[int, int, Frontier, FrontierChange]]
    )
    _visible: bool = False  # whether a later pin may see something new
    _made_jobs: bool = False
    _born: int | None = None

    # ---- what use cases feed it --------------------------------------------------------------------------------------

    def leaf_sealed(self, tree: SessionTree, seq: int, verbatim: Node | None) -> None:
        """
        A record was sealed: its leaf is durable if it is verbatim, else due; the merges that it completes are
        due.
        """
        own = tree.chain.own.tree
        key = node_key(own, Span(seq, 1))
        self._nodes[key] = verbatim
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
            )
            self._made_jobs = True
        self._merges_due(tree, seq)

    def insert(self, key: int, node: Node, recipe: Recipe, inputs: bytes) -> None:
        """Insert a node and let what it makes possible follow."""
        made_by = self._recipe(recipe)
        forest.insert_node(self.db, key, node, made_by, inputs, self._birth())
        if recipe.kind != "join":  # nobody asks how many there are, and a counter costs each seal a page
            self._made[made_by] += 1
        self._nodes[key] = node
        if recipe.kind == "summary":
            self._index_node(key, node)
            self._visible = True
        self._landed.append(key)

    def turn_ended(self, turn: TurnRow) -> None:
        """A turn has its outcome: its records join the session's view, and its publication is due."""
        assert turn.end_seq is not None, "an ended turn has an end"
        registry.set_ended_length(self.db, turn.segment_pk, turn.end_seq)
        self._segments.clear()
        self._session_spans.setdefault(turn.segment_pk, [])
        session, _number = registry.session_of_generation(self.db, turn.generation_pk)
        if session.isolated or session.state == "revoked" or turn.inherited or turn.end_seq == turn.start_seq:
            return
        tree = session_tree(self.scope, self.db, turn.segment_pk)
        cover = exact_cover(turn.start_seq, turn.end_seq)
        durable = self._known(tree, cover)
        needs = [tree.key(span) for span in cover if span not in durable]
        before = turns.publishable_before(self.db, turn)
        if before is not None and before.publication_key is None:
            needs.append(before.turn_pk)  # tree 0: publications of one generation are made in turn order
        if not needs and self._publish_if_it_fits(turn):
            return
        queue.add_job(
            self.db, scope_pk=self.scope.pk, kind="publication", subject=turn.turn_pk, needs=needs, at=self.at
        )
        self._made_jobs = True

    def now_visible(self) -> None:
        """The caller made something visible to later pins: the clock moves at the end."""
        self._visible = True

    def jobs_added(self) -> None:
        """The caller added a job itself: the worker is told after the commit."""
        self._made_jobs = True

    def publish(self, turn: TurnRow, leaf: Callable[[int], Node], recipe: Recipe, inputs: bytes) -> int:
        """
        Make a turn's publication visible: its number, row, shared leaf, view and search visibility, in this
        transaction.

        Args:
            leaf: the publication's leaf, from its number.

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
        self.insert(shared_tree(self.scope).key(node.span), node, recipe, inputs)
        self._published.append(node.span)
        self._visible = True
        self._merges_due(shared_tree(self.scope), number)
        self._landed.append(turn.turn_pk)
        return number

    def finish(self) -> None:
        """
        Follow what landed until nothing more follows, advance the views, and move the clock if a pin may see
        more.
        """
        while self._landed:
            landed = [*self._landed]
            self._landed.clear()
            # Nobody begins to wait for what has landed, so that one look finds all who wait for any of these.
            awaited = queue.awaited(self.db, landed)
            for key in landed:
                self._follow(key, key in awaited)
        for segment in list(self._session_spans):
            self._advance_session(segment)
        if self._published or self._shared_spans:
            self._advance_shared()
        for recipe, count in self._made.items():
            forest.count_nodes(self.db, recipe, count)
        if self._visible:
            scopes.tick(self.db, self.scope.pk, self.at)

    def after_commit(self) -> None:
        """What may only be believed now: the frontiers in memory, and that there is work."""
        for tree, revision, frontier, change in self._advanced:
            frontier.apply(change)
            self.scope.caches.frontiers.put(tree, HeldFrontier(revision, frontier))
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
        if awaited:
            for job in queue.wake(self.db, key):
                self._woken(job)

    def _note_for_view(self, key: int) -> None:
        tree_pk, span = owner_of(key), span_of_post_order(ordinal_of(key))
        if tree_pk == self.scope.row.shared_tree:
            if span.count > 1:
                self._shared_spans.append(span)
            return
        segment = self._segment(tree_pk)
        if segment is not None and span.end <= segment[1]:  # above it lies the open turn, which no view covers yet
            for concerned in (segment[0], *resting_segments(self.db, segment[0], span.end)):
                self._session_spans.setdefault(concerned, []).append(span)

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
        queue.make_ready(self.db, job.job_pk)

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

    def _index_node(self, key: int, node: Node) -> None:
        """A summarizer's text is searchable; a join repeats what its children say."""
        tree_pk = owner_of(key)
        segment: tuple[int, int] | None = None
        visible: int | None = None
        if tree_pk == self.scope.row.shared_tree:
            visible = node.span.end - 1
        else:
            segment = self._segment(tree_pk)
            if segment is None:
                return  # a page's summary is a step on the way to a leaf, and never shown
            visible = self._node_visible(segment[0], node.span)
        number = scopes.take_document_numbers(self.db, self.scope.pk, 1)
        search.insert_documents(
            self.db,
            [
                search.NewDocument(
                    document_key=self.scope.pk << KEY_BITS | number,
                    pretokenizer=self.scope.row.pretokenizer,
                    kind=SUMMARY_KIND,
                    segment_pk=None if segment is None else segment[0],
                    turn_pk=None,
                    start_seq=node.span.start,
                    end_seq=node.span.end,
                    subject=key,
                    start_byte=0,
                    end_byte=None,
                    at=node.last_at,
                    visible=visible,
                    words=words_of(node.text, self.scope.row.pretokenizer),
                )
            ],
        )

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

    # ---- views -------------------------------------------------------------------------------------------------------

    def _advance_session(self, segment_pk: int) -> None:
        """Append the leaves of ended turns that are durable without a gap, and merge what may merge."""
        tree = session_tree(self.scope, self.db, segment_pk)
        own = tree.chain.own
        stored = registry.segment_of_tree(self.db, own.tree)
        assert stored is not None, "the segment's own tree"
        view = forest.load_view(self.db, own.tree)
        wanted = [Span(seq, 1) for seq in range(view.length, stored[1])]
        sizes = tree.sizes(self.db, wanted) if wanted else {}
        leaves: list[int] = []
        for span in wanted:
            if span not in sizes:
                break
            leaves.append(tree.line_bytes(span, sizes[span]))
        self._advance(tree, own.tree, view, leaves)

    def _advance_shared(self) -> None:
        tree = shared_tree(self.scope)
        view = forest.load_view(self.db, tree.tree_pk)
        sizes = tree.sizes(self.db, self._published)
        leaves = [tree.line_bytes(span, sizes[span]) for span in self._published]
        self._advance(tree, tree.tree_pk, view, leaves)

    def _advance(self, tree: Tree, tree_pk: int, view: forest.ViewRow, leaves: list[int]) -> None:
        frontier = self._frontier(tree, tree_pk, view)
        landed = self._landed_within(tree, view.length + len(leaves))
        news = self._unheard(tree, frontier, landed, view.length, len(leaves))
        change = plan_appends(frontier, leaves, news) if leaves else plan_land(frontier, news)
        revision = view.revision
        # The revision moves with every landing that a view may use, not only when its lines change: a frontier held by
        # another process would otherwise not hear of a durable parent. That this one knew it already says nothing: it
        # may have been loaded a moment ago, in this very transaction.
        if change.changed or landed:
            revision += 1
            forest.save_view(
                self.db,
                forest.ViewRow(tree_pk, revision, change.length, change.state.levels, change.state.shrinking),
            )
        # Kept only after the commit, even unchanged: what was loaded here knows of nodes that a rollback would undo.
        self._advanced.append((tree_pk, revision, frontier, change))

    def _frontier(self, tree: Tree, tree_pk: int, view: forest.ViewRow) -> Frontier:
        """The working structure for a view's row: the one in memory if it is true for this revision, else loaded."""
        held = self.scope.caches.frontiers.take(tree_pk)
        if held is not None and held.revision == view.revision:
            return held.frontier
        return restore_frontier(self.scope, self.db, tree, FrontierState(view.levels, view.shrinking))

    def _landed_within(self, tree: Tree, length: int) -> set[Span]:
        """The inner nodes that landed in this transaction and that a view of that length may use."""
        landed = self._session_spans[tree.chain.own.segment] if isinstance(tree, SessionTree) else self._shared_spans
        return {span for span in landed if span.count > 1 and span.end <= length}

    def _unheard(
        self, tree: Tree, frontier: Frontier, landed: set[Span], length: int, appended: int
    ) -> dict[Span, int]:
        """The durable inner nodes that a frontier has not heard of: what landed, and what lies over appended leaves."""
        spans = landed.union(span for leaf in range(length, length + appended) for span in completed_by(leaf))
        unknown = [span for span in spans if frontier.size(span) is None]
        return (
            {span: tree.line_bytes(span, size) for span, size in tree.sizes(self.db, unknown).items()}
            if unknown
            else {}
        )


def restore_frontier(scope: Scope, db: Connection, tree: Tree, state: FrontierState) -> Frontier:
    """Build the working structure of a stored frontier: its lines' sizes and those of every durable ancestor."""
    spans = state.spans
    sizes = tree.sizes(db, {*spans, *ancestors_within(spans)})
    return Frontier.restore(
        state, {span: tree.line_bytes(span, size) for span, size in sizes.items()}, scope.view_policy
    )


def ancestors_within(spans: tuple[Span, ...]) -> set[Span]:
    """Every inner position above given lines that their cover contains: as many as there are lines, less one a root."""
    if not spans:
        return set()
    end, found = spans[-1].end, set[Span]()
    for span in spans:
        parent = span.parent
        while parent.end <= end and parent not in found:
            found.add(parent)
            parent = parent.parent
    return found


def resting_segments(db: Connection, segment_pk: int, end: int) -> list[int]:
    """
    The segments that rest on at least the first ``end`` records of a segment, at any depth: their views use its
    nodes.
    """
    found: list[int] = []
    waiting = [segment_pk]
    while waiting:
        for child in registry.segments_on(db, waiting.pop(), end):
            found.append(child)
            waiting.append(child)
    return found


def finished_turn(turn: TurnRow) -> rules.Turn:
    """A turn row as the rules of publication see it."""
    if turn.end_seq is None or turn.outcome is None or turn.ended_at is None:
        raise IntegrityError(f"turn {turn.turn_id} has not ended; run verify() to see what took it for an ended one")
    return rules.Turn(turn.start_seq, turn.end_seq, turn.outcome, turn.started_at, turn.ended_at)


def children_sha256(tree: Tree, nodes: tuple[Node, ...] | list[Node]) -> bytes:
    """The hash of a node's inputs where they are nodes."""
    return inputs_sha256([(tree.key(node.span), node.revision, text_sha256(node.text)) for node in nodes])
