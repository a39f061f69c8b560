"""
One view while a projection of it is chosen.

Decides: that each node is loaded and each line counted once, however often a projection asks.
Refuses to know: budgets, and what a line says beyond its reference, its label and its node's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field

from optchat.core.context import ShownLine
from optchat.core.errors import IntegrityError
from optchat.core.ports import Tokenizer
from optchat.core.projection import cheapest, project
from optchat.core.refs import Span
from optchat.core.tree import Node
from optchat.engine.handle import Scope
from optchat.engine.trees import Tree, ancestors_within
from optchat.store.rows import Connection


@define
class Seen:
    """What the sides of one view have loaded and counted: choosing a projection and making its text are two sides."""

    nodes: dict[Span, Node] = field(factory=dict[Span, Node])
    costs: dict[Span, int] = field(factory=dict[Span, int])


@define
class Side:
    """One view while its projection is chosen: nodes load once, tokens are counted once a node."""

    scope: Scope
    db: Connection
    tree: Tree
    spans: tuple[Span, ...]
    clock: int
    tokenizer: Tokenizer
    show: Callable[[Span, Node | None], ShownLine]
    seen: Seen
    named: str = ""  # how lines are named, where that is not the same for every view of the tree
    missing: frozenset[Span] = frozenset()
    _complete: bool = False

    def load(self, spans: Iterable[Span]) -> None:
        wanted = [span for span in spans if span not in self.seen.nodes and span not in self.missing]
        if wanted:
            self.seen.nodes |= self.tree.nodes(self.db, wanted, self.clock)

    def line(self, span: Span) -> ShownLine:
        node = self.seen.nodes.get(span)
        if node is None and span not in self.missing:
            raise IntegrityError(f"line {span} of a view has no node; run verify(repair=True), which makes views anew")
        return self.show(span, node)

    def cost(self, span: Span) -> int | None:
        """The tokens of a line; None where there is no such node."""
        count = self.seen.costs.get(span)
        if count is not None:  # a projection asks for each line several times
            return count
        node = self.seen.nodes.get(span)
        if node is None:
            return self.tokenizer.count(self.show(span, None).rendered) if span in self.missing else None
        key = (f"{self.tokenizer.name}{self.named}", self.tree.key(span), node.revision)
        count = self.scope.caches.tokens.get(key)
        if count is None:
            count = self.tokenizer.count(self.show(span, node).rendered)
            self.scope.caches.tokens.put(key, count)
        self.seen.costs[span] = count
        return count

    def total(self, spans: Sequence[Span]) -> int:
        self.load(spans)
        costs = [self.cost(span) for span in spans]
        return sum(cost for cost in costs if cost is not None)

    def fit(self, target: int) -> tuple[tuple[Span, ...], int]:
        """The view as it is if it fits, else coarser: the smallest there is if not even that fits."""
        full = self.total(self.spans)
        if full <= target:
            return self.spans, full
        self._load_ancestors()
        projection = project(self.spans, self.cost, target)
        return projection.spans, projection.cost

    def least(self) -> int:
        """The tokens of the cheapest cover that there is."""
        self._load_ancestors()
        return cheapest(self.spans, self.cost).cost

    def _load_ancestors(self) -> None:
        if not self._complete:
            self.load((*self.spans, *ancestors_within(self.spans)))
            self._complete = True
