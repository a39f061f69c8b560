"""
Frontier append against a naive scan, in one run (§ 15).

All keep the same view of the same tree, 128 KB at most, whose nodes land with the leaf that completes them; the run
fails if they ever differ. The naive scan is § 15's first implementation in this library's own terms: spans in, levels
out, every pair of lines looked at for every merge. "Tuned" is the same scan over packed integers, with a running total:
the most that could be had without queues. Ratios of one run mean something; microseconds are this machine's.

Run: ``python -m benchmarks.frontier [--json] [--leaves 3000 30000]``
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from time import perf_counter_ns

from attrs import asdict, frozen

from benchmarks._table import Figure, at_least, at_most
from optchat.core.projection import project
from optchat.core.refs import Span, completed_by
from optchat.core.render import line_size
from optchat.core.views import EMPTY_FRONTIER, Frontier, ViewPolicy, plan_append

POLICY = ViewPolicy(128_000, 64_000)
NODE_BYTES = 512


@frozen
class Row:
    """One view's life; microseconds an append, projections in milliseconds."""

    leaf_bytes: int
    leaves: int
    lines: int
    merges_per_append: float
    frontier_mean_us: float
    frontier_p50_us: float
    frontier_worst_us: float
    naive_mean_us: float
    naive_worst_us: float
    tuned_naive_mean_us: float
    naive_over_frontier: float
    tuned_naive_over_frontier: float
    project_ms: dict[str, float]


class NaiveView:
    """The plain scan: spans in a list, sizes in a mapping."""

    def __init__(self) -> None:
        self.lines: list[Span] = []
        self.durable: dict[Span, int] = {}
        self.shrinking = False

    def append(self, leaf_bytes: int, landed: Mapping[Span, int]) -> bytes:
        """The levels to store."""
        durable = self.durable
        durable |= landed
        leaf = Span(self.lines[-1].end if self.lines else 0, 1)
        self.lines.append(leaf)
        durable[leaf] = leaf_bytes
        total = sum(durable[line] for line in self.lines)
        self.shrinking |= total > POLICY.high_bytes
        while self.shrinking and total > POLICY.low_bytes:
            best: tuple[float, int, int] | None = None
            for i, (left, right) in enumerate(pairwise(self.lines)):
                if left.count == right.count and left.index % 2 == 0:
                    parent_bytes = durable.get(left.parent)
                    if parent_bytes is not None and parent_bytes < durable[left] + durable[right]:
                        due = -POLICY.rule.priority(leaf.end, right.end, left.count), left.start, i
                        best = due if best is None else min(best, due)
            if best is None:
                break
            at = best[2]
            left, right = self.lines[at : at + 2]
            self.lines[at : at + 2] = [left.parent]
            total += durable[left.parent] - durable.pop(left) - durable.pop(right)
        else:
            self.shrinking = False
        return bytes(line.level for line in self.lines)


class TunedNaiveView:
    """The same scan over plain integers, the total kept as it goes."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.levels = bytearray()
        self.sizes: list[int] = []
        self.durable: dict[tuple[int, int], int] = {}
        self.total = self.length = 0
        self.shrinking = False

    def append(self, leaf_bytes: int, landed: Mapping[Span, int]) -> bytes:
        """The levels to store."""
        for node, size in landed.items():
            self.durable[node.start, node.level] = size
        starts, levels, sizes, durable = self.starts, self.levels, self.sizes, self.durable
        starts.append(self.length)
        levels.append(0)
        sizes.append(leaf_bytes)
        self.length += 1
        self.total += leaf_bytes
        self.shrinking |= self.total > POLICY.high_bytes
        while self.shrinking and self.total > POLICY.low_bytes:
            best, best_due, best_bytes = -1, -1.0, 0
            for i in range(len(starts) - 1):
                level, start = levels[i], starts[i]
                if level != levels[i + 1] or start >> level & 1:
                    continue
                parent_bytes = durable.get((start, level + 1))
                if parent_bytes is None or parent_bytes >= sizes[i] + sizes[i + 1]:
                    continue
                due = (self.length - start - (2 << level)) / (1 << level)
                if due > best_due:
                    best, best_due, best_bytes = i, due, parent_bytes
            if best < 0:
                return bytes(levels)
            self.total += best_bytes - sizes[best] - sizes[best + 1]
            levels[best] += 1
            sizes[best] = best_bytes
            del starts[best + 1], levels[best + 1], sizes[best + 1]
        self.shrinking = False
        return bytes(levels)


def tree(leaves: int, leaf_bytes: int) -> Iterator[tuple[int, dict[Span, int]]]:
    """Leaf after leaf: its line's bytes, and those of the nodes that it completes. Texts obey the acceptance rule."""
    random_ = random.Random(leaves)
    texts: dict[Span, int] = {}
    for i in range(leaves):
        leaf = Span(i, 1)
        texts[leaf] = random_.randint(leaf_bytes // 8, leaf_bytes)
        leaf_line = line_size(len(str(leaf)), texts[leaf])
        landed: dict[Span, int] = {}
        for node in completed_by(i):
            left, right = node.children
            joint = texts.pop(left) + texts.pop(right) + 1
            texts[node] = min(joint, random_.randint(NODE_BYTES * 3 // 4, NODE_BYTES))
            landed[node] = line_size(len(str(node)), texts[node])
        yield leaf_line, landed


def measure(leaves: int, leaf_bytes: int) -> Row:
    """Drive all views through one tree, leaf by leaf, so that a slow second hits all alike."""
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, POLICY)
    naive, tuned = NaiveView(), TunedNaiveView()
    times: tuple[list[int], list[int], list[int]] = ([], [], [])
    merges = 0
    for leaf, landed in tree(leaves, leaf_bytes):
        began = perf_counter_ns()
        change = plan_append(frontier, leaf, landed)
        frontier.apply(change)
        after_ours = perf_counter_ns()
        expected = naive.append(leaf, landed)
        after_naive = perf_counter_ns()
        also = tuned.append(leaf, landed)
        ended = perf_counter_ns()
        for total, took in zip(times, (after_ours - began, after_naive - after_ours, ended - after_naive), strict=True):
            total.append(took)
        merges += len(change.merges)
        if not change.state.levels == expected == also:
            sys.exit(f"the views differ after {change.length} leaves")
    ours_us, naive_us, tuned_us = (statistics.fmean(took) / 1000 for took in times)
    return Row(
        leaf_bytes=leaf_bytes,
        leaves=leaves,
        lines=len(frontier.state.levels),
        merges_per_append=round(merges / leaves, 2),
        frontier_mean_us=round(ours_us, 1),
        frontier_p50_us=round(statistics.median(times[0]) / 1000, 1),
        frontier_worst_us=round(max(times[0]) / 1000, 1),
        naive_mean_us=round(naive_us, 1),
        naive_worst_us=round(max(times[1]) / 1000, 1),
        tuned_naive_mean_us=round(tuned_us, 1),
        naive_over_frontier=round(naive_us / ours_us, 1),
        tuned_naive_over_frontier=round(tuned_us / ours_us, 1),
        project_ms={f"{target // 1000} KB": measure_projection(frontier, target) for target in (64_000, 16_000, 4_000)},
    )


def measure_projection(frontier: Frontier, target: int) -> float:
    """The median time of projecting the view as it stands, in milliseconds."""
    spans = frontier.state.spans
    times: list[int] = []
    for _ in range(15):
        began = perf_counter_ns()
        project(spans, frontier.size, target)
        times.append(perf_counter_ns() - began)
    return round(statistics.median(times) / 1e6, 2)


def figures(leaves: Sequence[int] = (3_000, 30_000)) -> list[Figure]:
    """What the issue asks of the frontier: cheaper than a scan, and no dearer in a long life."""
    found: list[Figure] = []
    for leaf_bytes in (512, 120):
        rows = [measure(count, leaf_bytes) for count in leaves]
        for row in rows:
            what = f"frontier append, leaves of at most {leaf_bytes} B, {row.leaves:,} of them: naive scan / ours"
            found.append(at_least(what, row.naive_over_frontier, 10, "x", f" ({row.frontier_mean_us:.0f} µs)"))
        what = f"the same, mean of {rows[-1].leaves:,} / mean of {rows[0].leaves:,}"
        found.append(at_most(what, rows[-1].frontier_mean_us / rows[0].frontier_mean_us, 1.5, "x"))
    return found


def main() -> None:
    """Print a table, or with --json the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    parser.add_argument("--leaves", type=int, nargs="+", default=[3_000, 30_000])
    options = parser.parse_args()
    rows = [measure(leaves, leaf_bytes) for leaf_bytes in (512, 120) for leaves in options.leaves]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(f"{'':35}frontier, µs an append   naive, µs an append       tuned naive")
    print(
        "leaf ≤    leaves  lines  merges     mean    p50   worst      mean   worst  ratio      mean  ratio  project, ms"
    )
    for row in rows:
        print(
            f"{row.leaf_bytes:6d} {row.leaves:9,d} {row.lines:6d} {row.merges_per_append:7.2f}"
            f" {row.frontier_mean_us:8.1f} {row.frontier_p50_us:6.1f} {row.frontier_worst_us:7.0f}"
            f" {row.naive_mean_us:9.1f} {row.naive_worst_us:7.0f} {row.naive_over_frontier:5.1f}x"
            f" {row.tuned_naive_mean_us:9.1f} {row.tuned_naive_over_frontier:5.1f}x  "
            + ", ".join(f"{target}: {took}" for target, took in row.project_ms.items())
        )


if __name__ == "__main__":
    main()
