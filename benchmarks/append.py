"""
What one durable append costs, against the cheapest thing that a disk can promise.

In turns, in one run: 4 KiB written over a file and ``fdatasync``; a short message sealed by ``turn.assistant``, one
transaction each. A disk has good and bad seconds, 0.2 ms and 4 ms a flush within one minute here, so only ratios of
such pairs mean something; the table tells the pairs of good seconds from all. Between them, 100 messages in one
``turn.add``.

The last row is the same append without a disk, where the machine has a folder in memory: the processor's part of it.

    python -m benchmarks.append [--rounds 400] [--folder DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import perf_counter_ns

import optchat
from benchmarks._history import opened, real_lines
from benchmarks._table import Figure, at_least, at_most, p50, percentile, show

PAGE = b"\x5a" * 4096
PAGES = 1024
GOOD_US = 1000.0  # a flush below it found the disk idle
BATCH = 100
MEMORY_FOLDER = Path("/dev/shm")


def raw_file(folder: Path) -> int:
    """A file whose pages are all there, so that writing over them changes no metadata."""
    descriptor = os.open(folder / "raw", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(descriptor, PAGE * PAGES, 0)
    os.fsync(descriptor)
    return descriptor


def pairs(folder: Path, rounds: int) -> tuple[list[tuple[float, float]], list[float]]:
    """(raw, sealed) microseconds of each round, and those of batches of 100, in between."""
    descriptor = raw_file(folder)
    lines = real_lines()
    found: list[tuple[float, float]] = []
    batches: list[float] = []
    every = max(1, rounds // 20)
    with opened(folder / "append.db") as memory, memory.session("append").turn("measure") as turn:
        for number in range(-20, rounds):  # the first few only warm the caches
            before = perf_counter_ns()
            os.pwrite(descriptor, PAGE, number % PAGES * len(PAGE))
            os.fdatasync(descriptor)
            between = perf_counter_ns()
            turn.assistant(f"{number}: {lines[number % len(lines)]}")
            after = perf_counter_ns()
            if number >= 0:
                found.append(((between - before) / 1000, (after - between) / 1000))
            if number >= 0 and number % every == 0:
                said = [f"{number}.{i}: {lines[(number * BATCH + i) % len(lines)]}" for i in range(BATCH)]
                messages = [optchat.HostMessage.assistant(text) for text in said]
                before = perf_counter_ns()
                turn.add(*messages)
                batches.append((perf_counter_ns() - before) / 1000)
        turn.end("completed")
    os.close(descriptor)
    return found, batches


def figures(folder: Path, rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        found, batches = pairs(Path(place), rounds)
    raw, ours = p50(pair[0] for pair in found), p50(pair[1] for pair in found)
    rows = [
        Figure("raw 4 KiB overwrite + fdatasync, p50", f"{raw:,.0f} µs"),
        Figure(
            "one sealed message, p50 / p95", f"{ours:,.0f} / {percentile((pair[1] for pair in found), 0.95):,.0f} µs"
        ),
        at_most("sealed message / raw write, p50 of all rounds", ours / raw, 2.0, "x"),
    ]
    good = [pair for pair in found if pair[0] < GOOD_US]
    if len(good) >= 20:
        ratio = p50(pair[1] for pair in good) / p50(pair[0] for pair in good)
        note = f" ({len(good)} of {len(found)})"
        rows.append(at_most("the same, rounds whose raw write took below 1 ms", ratio, 2.0, "x", note))
    batch = p50(batches)
    rows += [
        Figure(f"{BATCH} messages in one add, p50", f"{batch / 1000:,.2f} ms"),
        at_least("messages a second, batch / single", ours * BATCH / batch, 10, "x"),
    ]
    if MEMORY_FOLDER.is_dir():
        with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as place:
            found, batches = pairs(Path(place), rounds)
        single, batch = p50(pair[1] for pair in found), p50(batches)
        rows.append(Figure("without a disk: one message / one of a batch", f"{single:,.0f} / {batch / BATCH:,.0f} µs"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--folder", type=Path, help="where the files are made; on the disk that is to be measured")
    options = parser.parse_args()
    show(figures(options.folder, options.rounds))


if __name__ == "__main__":
    main()
