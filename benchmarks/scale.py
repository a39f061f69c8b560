"""
Whether what a conversation does stays as cheap when the memory is twenty times as large.

Two files are made of the same kind of history, 10,000 and 200,000 records in sessions of 2,000, everything summarised
and published. Then, in turns between the two, so that a bad second of the machine hits both alike: messages are sealed
one by one; turns begin, ask for their first context of about 120 KB (rendered, and its row committed), then for the
same after each sealed message, and once more with nothing said since. At last the larger one is searched, pinned
before its last tenth was published: rare, common and two words, in both orders.

    python -m benchmarks.scale [--records 200000] [--folder DIRECTORY] [--keep DIRECTORY]

Making the larger file takes a few minutes; ``--keep`` makes both once, and later runs take copies.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Literal

from attrs import define, field

import optchat
from benchmarks._history import grow, opened, real_lines, session_key
from benchmarks._table import Figure, at_most, p50, percentile, show
from optchat.core.searching import STOP_WORDS
from optchat.core.words import words_of

SMALL = 10_000
CONTEXT_BYTES = 120_000
APPENDS = 300
TURNS = 30
SEARCHES = 15
SEARCH_SECONDS = 30  # for a query and its repetitions
RARE = "zanzibarite"  # no line has it; one message in each tenth of the sessions is given it

ORDERS: tuple[Literal["newest", "best"], ...] = ("newest", "best")


def made(folder: Path, records: int, keep: Path | None) -> Path:
    """A database of so many records in ``folder``; with ``keep``, a copy of the one that is kept there."""
    path = folder / f"history-{records}.db"
    home = folder if keep is None else keep
    home.mkdir(parents=True, exist_ok=True)
    source = home / path.name
    if not source.exists():
        unfinished = source.with_suffix(".unfinished")
        for left in home.glob(f"{unfinished.name}*"):
            left.unlink()
        with opened(unfinished) as memory:
            following = grow(memory, 0, records * 9 // 10)
            with memory.session("rare").turn(f"one {RARE} there is") as turn:
                turn.assistant("so it is")
            with memory.pin() as pinned:
                (home / f"{path.name}.pin").write_text(pinned.snapshot.id, encoding="utf-8")
            grow(memory, following, records - records * 9 // 10)
        unfinished.rename(source)
    if source != path:
        shutil.copy(source, path)
        shutil.copy(home / f"{path.name}.pin", folder)
    return path


@define
class Times:
    """What one file took, in microseconds."""

    sealed: list[float] = field(factory=list)
    built: list[float] = field(factory=list)
    next_calls: list[float] = field(factory=list)
    unchanged: list[float] = field(factory=list)
    memory_bytes: int = 0
    lines: int = 0


def fitting(session: optchat.Session[optchat.HostMessage]) -> optchat.Budget:
    """A budget whose memory is about as large as wanted."""
    whole = session.preview(optchat.Budget(1_000_000, 1_000), request="?")
    size = sum(len(block.text.encode()) for block in whole.blocks)
    tokens = sum(whole.receipt.tokens.blocks.values())
    wanted = int(tokens * min(1.0, CONTEXT_BYTES / size))
    return optchat.Budget(wanted + 1_000 + 512 + 200, 1_000)


def one_round(memory: optchat.Memory, text: str, budget: optchat.Budget, times: Times, *, warm: bool) -> None:
    """One turn of the first session: its first context, its second, and some sealed messages."""
    with memory.session(session_key(0)).turn(text) as turn:
        before = perf_counter_ns()
        context = turn.context(budget)
        built = (perf_counter_ns() - before) / 1000
        sealed: list[float] = []
        next_calls: list[float] = []
        unchanged: list[float] = []
        for number in range(APPENDS // TURNS):
            began = perf_counter_ns()
            turn.assistant(f"{number}: {text}")
            between = perf_counter_ns()
            turn.context(budget)
            after = perf_counter_ns()
            turn.context(budget)
            unchanged.append((perf_counter_ns() - after) / 1000)
            next_calls.append((after - between) / 1000)
            sealed.append((between - began) / 1000)
    memory.settle()
    if warm:
        times.sealed += sealed
        times.built.append(built)
        times.next_calls += next_calls
        times.unchanged += unchanged
        times.memory_bytes = sum(len(block.text.encode()) for block in context.blocks)
        times.lines = len(context.receipt.refs)


def interleaved(paths: Sequence[Path]) -> list[Times]:
    """Rounds of turns, file after file."""
    lines = real_lines()
    found = [Times() for _ in paths]
    with opened(paths[0]) as small, opened(paths[1]) as large:
        memories = (small, large)
        budgets = [fitting(memory.session(session_key(0))) for memory in memories]
        for number in range(-3, TURNS):
            for memory, budget, times in zip(memories, budgets, found, strict=True):
                text = "\n".join(lines[(4 * number + i) % len(lines)] for i in range(4))
                one_round(memory, text, budget, times, warm=number >= 0)
    return found


@contextmanager
def pinned(path: Path) -> Iterator[optchat.Reader]:
    """A reader that sees what there was before the last tenth."""
    with opened(path) as memory, memory.pin(Path(f"{path}.pin").read_text(encoding="utf-8")) as reader:
        yield reader


def queries() -> dict[str, list[str]]:
    """Words by how many of the lines have them."""
    lines = real_lines()
    counts = Counter(word for line in lines for word in set(words_of(line).split()))
    ranked = [(word, count) for word, count in counts.most_common() if len(word) > 3 and word not in STOP_WORDS]
    common = [word for word, _ in ranked[:5]]
    middle = [word for word, count in ranked if count < len(lines) / 200][:5]
    return {
        "a rare word": [RARE],
        "a common word": common,
        "two words, both common": [f"{one} {other}" for one, other in pairwise(common)],
        "two words, one common": [f"{one} {other}" for one, other in zip(common, middle, strict=True)],
    }


class TooSlow(Exception):
    """A search took longer than anybody waits."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Give up after so many seconds: one search that scans everything must not hide the other figures."""

    def give_up(_signal: int, _frame: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def timed(reader: optchat.Reader, words: Sequence[str], order: Literal["newest", "best"]) -> list[float]:
    """Milliseconds of each search; none where one took longer than the limit."""
    times: list[float] = []
    try:
        for query in words:
            with limited(SEARCH_SECONDS):
                page = reader.search(query, order=order)
                for _ in range(SEARCHES):
                    before = perf_counter_ns()
                    page = reader.search(query, order=order)
                    times.append((perf_counter_ns() - before) / 1e6)
            if not page.hits:
                raise SystemExit(f"{query!r} found nothing: nothing was measured")
    except TooSlow:
        return []
    return times


def searches(path: Path, records: int) -> list[Figure]:
    rows: list[Figure] = []
    with pinned(path) as reader:
        for name, words in queries().items():
            for order in ORDERS:
                times = timed(reader, words, order)
                value = f"{p50(times):.2f} / {percentile(times, 0.95):.2f} ms" if times else f"> {SEARCH_SECONDS} s"
                rows.append(Figure(f"search of {records:,}, pinned: {name}, {order}, p50 / p95", value))
    return rows


def figures(folder: Path | None, records: int, keep: Path | None) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        paths = [made(Path(place), count, keep) for count in (SMALL, records)]
        small, large = interleaved(paths)
        rows = [
            Figure(
                f"one sealed message at {SMALL:,} / at {records:,} records, p50",
                f"{p50(small.sealed):,.0f} / {p50(large.sealed):,.0f} µs",
            ),
            at_most("the second / the first", p50(large.sealed) / p50(small.sealed), 1.5, "x"),
        ]
        for count, times in ((SMALL, small), (records, large)):
            size = f"{times.memory_bytes / 1000:.0f} KB in {times.lines} lines"
            rows.append(
                at_most(f"first context of a turn, {size}, at {count:,}, p50", p50(times.built) / 1000, 5, " ms")
            )
            what = f"the same again, nothing said since, at {count:,}, p50"
            rows.append(at_most(what, p50(times.unchanged) / 1000, 0.1, " ms"))
            what = f"the same memory after one more sealed message, at {count:,}, p50"
            rows.append(Figure(what, f"{p50(times.next_calls) / 1000:.2f} ms"))
        return rows + searches(paths[1], records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000, help="in the larger file")
    parser.add_argument("--folder", type=Path, help="where the files are made; on the disk that is to be measured")
    parser.add_argument("--keep", type=Path, help="a folder in which the histories are kept for later runs")
    options = parser.parse_args()
    show(figures(options.folder, options.records, options.keep))


if __name__ == "__main__":
    main()
