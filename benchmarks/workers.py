"""
What several worker processes do together, and what a slow summarizer costs those who only speak.

Workers: one database of 2,000 records, whose every turn needs summaries, and a summarizer that takes 20 ms. A copy of
it is worked by one process of one call at a time, another copy by four; both to the end, in one run. Afterwards it is
checked that every node was made once, by one call, that no result was dropped, and that the file verifies clean.

Appends: messages into two memories in turns, so that both have the same disk: one that makes no summaries, and one
whose summarizer takes 5 s a call, with eight calls under way all the time. Every fifth message ends its turn.

    python -m benchmarks.workers [--records 2000] [--appends 1000] [--folder DIRECTORY]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import optchat
from benchmarks._history import real_lines
from benchmarks._table import Figure, at_least, at_most, p50, percentile, show
from optchat.testing import DeterministicSummarizer

ROOT = Path(__file__).resolve().parents[1]
SCOPE = "bench"
ONE = optchat.Policy(workers=1)
CALL_SECONDS = 0.020
SESSIONS = 10
RECORDS_A_TURN = 4
SLOW_SECONDS = 5.0
TURN_EVERY = 5
NAME = DeterministicSummarizer().name


# ---- several processes -----------------------------------------------------------------------------------------------


def fill(path: Path, records: int) -> None:
    """Sessions of short and long records by turns; nothing is summarised yet."""
    lines = real_lines()
    with optchat.open(path, scope=SCOPE, compact="manual") as memory:
        sessions = [memory.session(f"session-{number}") for number in range(SESSIONS)]
        for number in range(records // RECORDS_A_TURN):
            with sessions[number % SESSIONS].turn(f"{number}: {lines[number % len(lines)]}") as turn:
                for part in range(1, RECORDS_A_TURN):
                    start = (number * 31 + part * 7) % (len(lines) - 12)
                    turn.assistant(f"{number}.{part}: " + "\n".join(lines[start : start + (12 if part % 2 else 1)]))


def work(path: Path) -> None:
    """One process: it says when it can begin, waits for the word, works to the end, and says how many calls it made."""
    summarizer = DeterministicSummarizer(delay_seconds=CALL_SECONDS)
    with optchat.open(path, scope=SCOPE, policy=ONE, summarizer=summarizer, compact="manual") as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        status = memory.settle()
        assert status.ready, status
        print(len(summarizer.requests), flush=True)


def together(path: Path, processes: int) -> tuple[float, list[int]]:
    """Seconds until all work is done, and the calls of each process."""
    command = [sys.executable, "-m", "benchmarks.workers", "--work", str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    workers = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    before = perf_counter()
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    calls = [int(worker.stdout.readline()) for worker in workers]
    seconds = perf_counter() - before
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0
    return seconds, calls


def check(path: Path, calls: int) -> int:
    """Every node once, and every call for a node: how many summaries there are."""
    with optchat.open(path, scope=SCOPE, mode="ro") as memory, memory._scope.store.read() as db:
        made = dict(db.execute("SELECT r.kind, count(*) FROM node n JOIN recipe r USING (recipe_pk) GROUP BY r.kind"))
        outcomes = Counter(row[0] for row in db.execute("SELECT outcome FROM call"))
        assert not list(db.execute("SELECT 1 FROM job")), "something is left to do"
    with optchat.open(path, scope=SCOPE, mode="ro") as memory:
        report = memory.verify()
        assert report.ok, report.faults
        status = memory.status()
    assert status.stand_ins == 0
    assert outcomes == {"accepted": calls}, "a call was lost, or its answer was not taken"
    assert made["summary"] == calls, "a node was made twice, or a result was dropped"
    return calls


def parallel(folder: Path, records: int) -> list[Figure]:
    base = folder / "base" / "memory.db"
    base.parent.mkdir()
    fill(base, records)
    found: dict[int, tuple[float, list[int]]] = {}
    summaries = 0
    for processes in (1, 4):
        copy = folder / f"by-{processes}"
        shutil.copytree(base.parent, copy)
        found[processes] = together(copy / "memory.db", processes)
        summaries = check(copy / "memory.db", sum(found[processes][1]))
    alone, four = found[1][0], found[4][0]
    shares = " ".join(str(calls) for calls in found[4][1])
    return [
        Figure(f"{records:,} records, {summaries:,} summaries of 20 ms: one process", f"{alone:.1f} s"),
        Figure("the same by four processes, and the calls of each", f"{four:.1f} s ({shares})"),
        at_least("four worker processes / one", alone / four, 3.0, "x"),
    ]


# ---- beside a slow summarizer ----------------------------------------------------------------------------------------


class Slow:
    """Answers after seconds; ``asked`` counts the calls that have begun."""

    name, window_tokens = NAME, 65_536

    def __init__(self) -> None:
        self.inner, self.asked, self.over = DeterministicSummarizer(), 0, threading.Event()

    def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
        self.asked += 1
        self.over.wait(SLOW_SECONDS)
        return self.inner.summarize(request)


def beside(folder: Path, appends: int) -> list[Figure]:
    lines = real_lines()
    slow = Slow()
    took: dict[str, list[float]] = {"none": [], "slow": []}
    ends: dict[str, list[float]] = {"none": [], "slow": []}
    with (
        optchat.open(folder / "none.db", scope=SCOPE, compact="manual") as none,
        optchat.open(folder / "slow.db", scope=SCOPE, compact="background", summarizer=slow) as busy,
    ):
        sessions = {"none": none.session("a"), "slow": busy.session("a")}
        turns = {name: session.turn("begin") for name, session in sessions.items()}
        for number in range(-TURN_EVERY * 8, appends):  # the first fill the queue: eight calls are under way then
            start = (number * 31) % (len(lines) - 12)
            text = f"{number}: " + "\n".join(lines[start : start + (8 if number % 2 else 1)])
            for name in ("none", "slow") if number % 2 else ("slow", "none"):
                before = perf_counter_ns()
                turns[name].assistant(text)
                between = perf_counter_ns()
                if number % TURN_EVERY == 0:
                    turns[name].end("completed")
                after = perf_counter_ns()
                if number >= 0:
                    took[name].append((between - before) / 1000)
                if number % TURN_EVERY == 0:
                    if number >= 0:
                        ends[name].append((after - between) / 1000)
                    turns[name] = sessions[name].turn(f"go on {number}")
            if number == -1:
                while slow.asked < busy._house.policy.workers:
                    sleep(0.01)
        status = busy.status()
        assert status.running == busy._house.policy.workers, "the calls were not under way"
        assert slow.asked > 0
        for turn in turns.values():
            turn.end("completed")
        slow.over.set()
    ratio = sum(took["slow"]) / sum(took["none"])
    return [
        Figure(
            f"{appends:,} appends beside no summarizer / one of {SLOW_SECONDS:g} s a call",
            f"{sum(took['none']) / 1e6:.2f} / {sum(took['slow']) / 1e6:.2f} s",
        ),
        at_most("the second / the first", ratio, 1.2, "x"),
        Figure("one such append, p50", f"{p50(took['none']):,.0f} / {p50(took['slow']):,.0f} µs"),
        Figure(
            "the end of a turn, p50 / p95 beside the slow one",
            f"{p50(ends['slow']):,.0f} / {percentile(ends['slow'], 0.95):,.0f} µs",
        ),
        at_most("the longest end of a turn / one call", max(ends["slow"]) / (SLOW_SECONDS * 1e6), 0.5, "x"),
    ]


def figures(folder: Path | None, records: int = 2_000, appends: int = 1_000) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return beside(Path(place), appends) + parallel(Path(place), records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000, help="in the database that is worked")
    parser.add_argument("--appends", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, help="where the files are made; on the disk that is to be measured")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return
    show(figures(options.folder, options.records, options.appends))


if __name__ == "__main__":
    main()
