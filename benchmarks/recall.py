"""
Does search find what a developer asks for in a later session?

Imports the real sessions beside the project (../shared/data), summarises and publishes them, asks each question as it
stands under a pin, best first, and says how much of its evidence the first 1, 5, 10 and 20 hits name, by kind of
question, over those that have an answer. A hit counts where it is a part of the evidence's message; with two pieces of
evidence each counts half; a summary of the evidence does not count.

    python -m benchmarks.recall [--misses]
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from time import perf_counter

import optchat
from benchmarks._history import DATA
from benchmarks._table import Figure, p50, show
from optchat.core.refs import parse_ref

FIRST = (1, 5, 10, 20)
PLAIN = (0.31, 0.49, 0.60, 0.62)  # FTS5 with porter stemming, OR of all words, and bm25
SESSIONS = DATA / "coding-sessions.jsonl.gz"


def messages() -> dict[str, list[int]]:
    """For each session, which message each record is a part of: a record a part, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    counts: Counter[str] = Counter()
    with gzip.open(SESSIONS, "rt", encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line)
            if message["role"] != "host_summary":
                key = message["session"]
                found[key] += [counts[key]] * len(message["parts"])
                counts[key] += 1
    return found


def evidence_found(hits: list[tuple[str, int]], evidence: set[tuple[str, int]]) -> list[float]:
    """The share of the evidence among the first hits, for each number of them."""
    return [len(evidence & set(hits[:first])) / len(evidence) for first in FIRST]


def figures(*, misses: bool = False) -> list[Figure]:
    if not SESSIONS.exists():
        return [Figure("evidence recall", "no data beside the project")]
    said = messages()
    found: dict[str, list[list[float]]] = defaultdict(list)
    times: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        optchat.open(Path(folder) / "recall.db", scope="recall", compact="manual") as memory,
    ):
        memory.import_file(SESSIONS)
        memory.settle()
        keys = {session.id: session.key for session in memory.sessions(limit=200)}
        with memory.pin() as reader:
            for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines():
                question = json.loads(line)
                evidence = {(item["session"], item["message"]) for item in question["evidence"]}
                if not evidence:
                    continue
                before = perf_counter()
                page = reader.search(question["question"], limit=20)
                times.append((perf_counter() - before) * 1e3)
                hits: list[tuple[str, int]] = []
                for hit in page:
                    span = parse_ref(hit.ref).span
                    key = keys.get(hit.session_id or "")
                    hits.append((key, said[key][span.start]) if key is not None and span.count == 1 else ("", -1))
                row = evidence_found(hits, evidence)
                found[question["kind"]].append(row)
                found["all"].append(row)
                if misses and row[-1] < 1:
                    print(f"{question['id']} {row[-1]:.1f} {question['question']}")
    rows: list[Figure] = []
    at = ", ".join(map(str, FIRST))
    for kind, shares in sorted(found.items(), key=lambda item: item[0] == "all"):
        means = [sum(column) / len(shares) for column in zip(*shares, strict=True)]
        value = " ".join(f"{mean:.2f}" for mean in means)
        if kind == "all":
            better = all(mean > plain for mean, plain in zip(means, PLAIN, strict=True))
            aim = "> " + " ".join(f"{plain:.2f}" for plain in PLAIN)
            rows.append(Figure(f"evidence recall@{at}: all {len(shares)} questions", value, aim, better))
        else:
            rows.append(Figure(f"evidence recall@{at}: {kind}, {len(shares)} questions", value))
    return [*rows, Figure("one such question, p50", f"{p50(times):.1f} ms")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--misses", action="store_true", help="name the questions whose evidence is not in the first 20"
    )
    show(figures(misses=parser.parse_args().misses))


if __name__ == "__main__":
    main()
