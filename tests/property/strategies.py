"""Strategies that several law files share. Each draws only what the library could hold, however unlikely."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from hypothesis import strategies as st

from optchat.core.refs import Span, completed_by
from optchat.core.views import PAPER_RULE, UNIICHAT_RULE, ViewPolicy
from optchat.testing.strategies import HOSTILE_PIECES


def hostile_texts() -> st.SearchStrategy[str]:
    """Text that looks like structure, ends lines, or breaks careless encoders; and any other."""
    anything = st.text(st.characters(exclude_categories=()), max_size=8)
    return st.lists(st.one_of(st.sampled_from(HOSTILE_PIECES), anything), max_size=5).map("".join)


def spans(max_level: int = 12, max_index: int = 4096) -> st.SearchStrategy[Span]:
    """Aligned spans."""
    return st.builds(Span.at, st.integers(0, max_level), st.integers(0, max_index))


@st.composite
def covers(draw: st.DrawFn, max_lines: int = 24, max_level: int = 6) -> tuple[Span, ...]:
    """Gapless covers from 0, of whatever shape: also such as no frontier would ever have."""
    lines: list[Span] = []
    start = 0
    for _ in range(draw(st.integers(0, max_lines))):
        highest = min(max_level, (start & -start).bit_length() - 1) if start else max_level
        lines.append(Span(start, 1 << draw(st.integers(0, highest))))
        start = lines[-1].end
    return tuple(lines)


def levels(max_lines: int = 24, max_level: int = 6) -> st.SearchStrategy[bytes]:
    """Stored levels sequences."""
    return covers(max_lines, max_level).map(lambda lines: bytes(line.level for line in lines))


def inner_nodes(length: int) -> list[Span]:
    """Every node above the leaves that is whole below a length, in order of completion."""
    return [node for leaf in range(length) for node in completed_by(leaf)]


@st.composite
def node_sizes(draw: st.DrawFn, length: int, *, accepted: bool | None = None, most: int = 24) -> dict[Span, int]:
    """
    A size for every node below a length.

    ``accepted`` sizes shrink at every merge, as the acceptance rule has it; others are arbitrary, so that some parents
    are no smaller than their children. None draws which.
    """
    if accepted is None:
        accepted = draw(st.booleans())
    leaves = draw(st.lists(st.integers(1, most), min_size=length, max_size=length))
    sizes = {Span(start, 1): size for start, size in enumerate(leaves)}
    nodes = inner_nodes(length)
    drawn = draw(st.lists(st.integers(1, most), min_size=len(nodes), max_size=len(nodes)))
    for node, size in zip(nodes, drawn, strict=True):
        left, right = node.children
        sizes[node] = min(size, sizes[left] + sizes[right] - 1) if accepted else size
    return sizes


@frozen
class Step:
    """One commit: a leaf, nodes that land, both. ``reload`` restores the frontier from its row first."""

    leaf_bytes: int | None
    landed: Mapping[Span, int]
    reload: bool


@frozen
class Schedule:
    """A policy and the steps of a tree's life."""

    policy: ViewPolicy
    steps: tuple[Step, ...]


@st.composite
def view_policies(draw: st.DrawFn, most: int = 160) -> ViewPolicy:
    """Thresholds and either rule."""
    low = draw(st.integers(0, most))
    return ViewPolicy(low + draw(st.integers(0, most)), low, draw(st.sampled_from([PAPER_RULE, UNIICHAT_RULE])))


@st.composite
def schedules(draw: st.DrawFn, max_leaves: int = 40, *, repairs: bool = True) -> Schedule:
    """
    Leaves in order; inner nodes whenever: late, never, in any order, even before their children or their own leaves.

    With ``repairs`` a node now and then lands again with another size.
    """
    length = draw(st.integers(0, max_leaves))
    sizes = draw(node_sizes(length))
    slots = length + 8
    landed: list[dict[Span, int]] = [{} for _ in range(slots)]
    nodes = inner_nodes(length)
    delays = draw(st.lists(st.sampled_from([-2, 0, 0, 0, 1, 2, 5, 11, None]), min_size=len(nodes), max_size=len(nodes)))
    for node, delay in zip(nodes, delays, strict=True):
        if delay is not None:
            landed[max(0, min(slots - 1, node.end - 1 + delay))][node] = sizes[node]
    if repairs and length:
        for slot, node in draw(
            st.lists(st.tuples(st.integers(0, slots - 1), st.sampled_from(sorted(sizes))), max_size=3)
        ):
            known_by_then = (node.count == 1 and node.start < slot) or any(node in earlier for earlier in landed[:slot])
            if known_by_then:
                landed[slot][node] = draw(st.integers(1, 24))
    reloads = draw(st.sets(st.integers(0, slots - 1), max_size=6))
    steps = tuple(
        Step(sizes[Span(slot, 1)] if slot < length else None, landed[slot], slot in reloads) for slot in range(slots)
    )
    return Schedule(draw(view_policies()), steps)
