"""
How much of what people later ask for does a summarizer without a model leave in the view?

Builds the session trees and the shared tree over the real sessions beside the project (../shared/data) with each
candidate, by the same rules as the library (verbatim leaves, joins, acceptance), then reads the shared view at a size
and asks, for each question that has an answer:

- answers: is one of its answer strings in the view?
- words: the share of the rare words and identifiers of the evidence's quotes that are in the view (rare: in at most
  one record in fifty; the question's own words do not count).

Also: milliseconds a call, and how many replies broke the rules (then a stand-in takes their place).

    python benchmarks/summarizers.py [--bytes 64000] [candidate …]

Candidates: lead, lede, lede-clauses, luhn, luhn-clauses, extractive. lede and luhn need lede and sumy installed; they
are compared here and are no dependencies. The clauses variants choose among this project's cleaned and labelled
clauses with the library's scores; the others get the records' plain text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path

from optchat.compactor.clauses import Clause, measure, source_clauses
from optchat.compactor.extractive import _composed, extract
from optchat.core.clip import clip
from optchat.core.render import escaped_size, line_size
from optchat.core.summarizing import SourceLine, SummaryJob, SummaryReply, SummaryRequest, first_request, judge
from optchat.core.terms import HitKind, Outcome

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
NODE_BYTES = 512
PAGE_BYTES = 16_384
Extract = Callable[[SummaryRequest], str]


# ---- candidates ------------------------------------------------------------------------------------------------------


def _labelled(source: SourceLine) -> str:
    return source.text if source.kind == "summary" else f"{source.kind}: {source.text}"


def lead(request: SummaryRequest) -> str:
    """The beginning of each source, cut: what any summarizer must beat."""
    share = request.limit_bytes // len(request.sources) - 1
    return "\n".join(clip(" ".join(_labelled(source).split()), share) for source in request.sources)


def lede(request: SummaryRequest) -> str:
    summarize = import_module("lede").summarize

    share = request.limit_bytes // len(request.sources) - 1
    kept = []
    for source in request.sources:
        head = "" if source.kind == "summary" else f"{source.kind}: "
        room = share - len(head)
        text = str(summarize(source.text, max_length=room).summary)
        kept.append(head + clip(" ".join(text.split()), room) if text else clip(_labelled(source), share))
    return "\n".join(kept)


def _greedy(request: SummaryRequest, clauses: Sequence[Clause], ranked: Sequence[Clause]) -> str:
    chosen: set[int] = set()
    room = request.limit_bytes
    for clause in ranked:
        measure(clause)
        cost = max(clause.bytes_, clause.escaped) + len(clause.mark) + len(clause.kind) + 4
        if cost <= room:
            chosen.add(id(clause))
            room -= cost
    return _composed([clause for clause in clauses if id(clause) in chosen]) or lead(request)


def _clauses(request: SummaryRequest) -> list[Clause]:
    found: list[Clause] = []
    for source in request.sources:
        found.extend(clause for clause in source_clauses(source, found[-1].run + 1 if found else 0) if clause.text)
    return found


def lede_clauses(request: SummaryRequest) -> str:
    """Lede ranks, this project reads and composes."""
    summarize = import_module("lede").summarize

    clauses = _clauses(request)
    text = "\n".join(clause.text for clause in clauses)
    picked = str(summarize(text, max_length=request.limit_bytes * 2).summary) if clauses else ""
    return _greedy(request, clauses, sorted(clauses, key=lambda clause: clause.text not in picked))


def _luhn(sentences: Sequence[str]) -> list[float]:
    dom, rating = import_module("sumy.models.dom"), import_module("sumy.summarizers.luhn")

    class Words:
        def to_words(self, text: str) -> tuple[str, ...]:
            return tuple(re.findall(r"[\w./-]+", text.lower()))

        def to_sentences(self, text: str) -> tuple[str, ...]:
            return tuple(text.split("\n"))

    words = Words()
    found = [dom.Sentence(sentence, words) for sentence in sentences]
    summarizer = rating.LuhnSummarizer()
    summarizer.stop_words = (
        "the",
        "a",
        "an",
        "of",
        "to",
        "in",
        "is",
        "and",
        "it",
        "that",
        "for",
        "on",
        "this",
        "with",
        "be",
    )
    document = dom.ObjectDocumentModel([dom.Paragraph(found)])
    model = summarizer._get_significant_words(document.words)
    return [summarizer.rate_sentence(sentence, model) for sentence in found]


def luhn(request: SummaryRequest) -> str:
    share = request.limit_bytes // len(request.sources) - 1
    kept = []
    for source in request.sources:
        head = "" if source.kind == "summary" else f"{source.kind}: "
        sentences = [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n", source.text[:60_000]) if part.strip()]
        rates = _luhn(sentences) if sentences else []
        room, chosen = share - len(head), set()
        for index in sorted(range(len(sentences)), key=lambda index: -rates[index]):
            if len(sentences[index].encode()) + 2 <= room:
                chosen.add(index)
                room -= len(sentences[index].encode()) + 2
        text = "; ".join(sentences[index] for index in sorted(chosen))
        kept.append(head + text if text else clip(_labelled(source), share))
    return "\n".join(kept)


def luhn_clauses(request: SummaryRequest) -> str:
    clauses = _clauses(request)
    rates = _luhn([clause.text for clause in clauses]) if clauses else []
    order = sorted(range(len(clauses)), key=lambda index: -rates[index])
    return _greedy(request, clauses, [clauses[index] for index in order])


CANDIDATES: dict[str, Extract] = {
    "lead": lead,
    "lede": lede,
    "lede-clauses": lede_clauses,
    "luhn": luhn,
    "luhn-clauses": luhn_clauses,
    "extractive": extract,
}


# ---- trees -----------------------------------------------------------------------------------------------------------


class Builder:
    """Trees over texts by the library's rules, with one candidate."""

    def __init__(self, candidate: Extract) -> None:
        self.candidate = candidate
        self.calls = 0
        self.seconds = 0.0
        self.slowest = 0.0
        self.rejected: Counter[str] = Counter()

    def ask(self, job: SummaryJob) -> str:
        request = first_request(job)
        started = time.perf_counter()
        answer = self.candidate(request)
        taken = time.perf_counter() - started
        self.seconds += taken
        self.slowest = max(self.slowest, taken)
        self.calls += 1
        verdict = judge(job, SummaryReply(answer))
        if isinstance(verdict, str):
            return verdict
        self.rejected[re.sub(r"\d+", "N", verdict.reason)] += 1
        kinds = ", ".join(sorted({source.kind for source in job.sources}))
        return f"[not summarised: {kinds}]"

    def leaf(self, kind: HitKind, text: str, at: datetime) -> SourceLine:
        whole = f"{kind}: {text}"
        if len(whole.encode("utf-8", "surrogatepass")) <= NODE_BYTES:
            return SourceLine(kind, whole, at)
        pages = [text[start : start + PAGE_BYTES] for start in range(0, len(text), PAGE_BYTES)]
        if len(text) > 60_000 and len(pages) > 1:
            nodes = [
                SourceLine(
                    "summary",
                    self.ask(
                        SummaryJob(
                            purpose="chunk",
                            sources=(SourceLine(kind, page, at),),
                            limit_bytes=NODE_BYTES,
                            user_spoke=kind == "user",
                        )
                    ),
                    at,
                )
                for page in pages
            ]
            while len(nodes) > 1:
                nodes = [
                    self.merge(*nodes[i : i + 2]) if len(nodes[i : i + 2]) == 2 else nodes[i]
                    for i in range(0, len(nodes), 2)
                ]
            return nodes[0]
        job = SummaryJob(
            purpose="leaf", sources=(SourceLine(kind, text, at),), limit_bytes=NODE_BYTES, user_spoke=kind == "user"
        )
        return SourceLine("summary", self.ask(job), at)

    def merge(self, left: SourceLine, right: SourceLine) -> SourceLine:
        text = f"{left.text}\n{right.text}"
        if len(text.encode()) <= NODE_BYTES:
            return SourceLine("summary", text, left.at)
        children = escaped_size(left.text) + escaped_size(right.text)
        job = SummaryJob(
            purpose="merge", sources=(left, right), limit_bytes=NODE_BYTES, children_escaped_bytes=children
        )
        return SourceLine("summary", self.ask(job), left.at)

    def publication(self, cover: Sequence[SourceLine], outcome: Outcome) -> SourceLine:
        text = "\n".join(node.text for node in cover)
        if len(text.encode()) <= NODE_BYTES:
            return SourceLine("summary", text, cover[0].at)
        job = SummaryJob(purpose="publication", sources=tuple(cover), limit_bytes=NODE_BYTES, outcome=outcome)
        return SourceLine("summary", self.ask(job), cover[0].at)


def levels(builder: Builder, leaves: Sequence[SourceLine]) -> list[list[SourceLine]]:
    built = [list(leaves)]
    while len(built[-1]) > 1:
        below = built[-1]
        built.append([builder.merge(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    return built


def cover(start: int, end: int) -> list[tuple[int, int]]:
    """Aligned powers of two as (level, index), covering exactly."""
    found = []
    while start < end:
        level = (start & -start).bit_length() - 1 if start else 60
        while start + (1 << level) > end:
            level -= 1
        found.append((level, start >> level))
        start += 1 << level
    return found


def view(tree: Sequence[Sequence[SourceLine]], size_bytes: int) -> list[tuple[int, int]]:
    """All leaves, then merges by the library's priority (T - e) / n until the size is kept."""
    lines = [(0, index) for index in range(len(tree[0]))]

    def size(line: tuple[int, int]) -> int:
        return line_size(len(f"pub:{line[1] << line[0]}+{1 << line[0]}"), escaped_size(tree[line[0]][line[1]].text))

    total = sum(map(size, lines))
    while total > size_bytes:
        best: tuple[float, int] | None = None
        for place in range(len(lines) - 1):
            (level, index), right = lines[place], lines[place + 1]
            if right != (level, index + 1) or index % 2 or level + 1 >= len(tree) or index // 2 >= len(tree[level + 1]):
                continue
            if size((level + 1, index // 2)) >= size(lines[place]) + size(right):
                continue
            priority = (len(tree[0]) - ((index + 2) << level)) / (1 << level)
            if best is None or priority > best[0]:
                best = (priority, place)
        if best is None:
            break
        place = best[1]
        level, index = lines[place]
        total += size((level + 1, index // 2)) - size(lines[place]) - size(lines[place + 1])
        lines[place : place + 2] = [(level + 1, index // 2)]
    return lines


# ---- the data --------------------------------------------------------------------------------------------------------


def spoken(part: dict[str, object]) -> tuple[str, str]:
    match part["type"]:
        case "text":
            return "text", str(part["text"])
        case "tool_call":
            return "tool_call", f"{part['name']} {part['arguments']}"
        case "tool_result":
            content = part["content"]
            pieces = content if isinstance(content, list) else [{"text": content}]
            text = "\n".join(str(piece.get("text", "")) for piece in pieces)
            return "tool_result", f"error: {text}" if part.get("is_error") else text
        case _:
            return "report", str(part.get("text", ""))


def load() -> tuple[dict[str, list[dict[str, object]]], list[dict[str, object]]]:
    sessions: dict[str, list[dict[str, object]]] = {}
    with gzip.open(DATA / "coding-sessions.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in lines:
            message = json.loads(row)
            if message["role"] != "host_summary":
                sessions.setdefault(message["session"], []).append(message)
    with (DATA / "questions.jsonl").open(encoding="utf-8") as rows:
        questions = [json.loads(row) for row in rows]
    return sessions, questions


def publications(builder: Builder, sessions: dict[str, list[dict[str, object]]]) -> list[tuple[SourceLine, str]]:
    """Every turn of every session as a publication's leaf, in the order in which the turns ended."""
    found: list[tuple[str, SourceLine, str]] = []
    for key, messages in sessions.items():
        leaves: list[SourceLine] = []
        kinds: list[str] = []
        starts: list[int] = []
        at = datetime.fromisoformat(str(messages[0]["at"]))
        ends: list[str] = []
        for message in messages:
            for part in message["parts"]:  # type: ignore[attr-defined]
                kind, text = spoken(part)
                if kind == "text":
                    kind = str(message["role"])
                    if kind == "user" and text.strip():
                        starts.append(len(leaves))
                        ends.append(str(message["at"]))
                at = datetime.fromisoformat(str(message["at"]))
                leaves.append(builder.leaf(kind, text, at))  # type: ignore[arg-type]
                kinds.append(kind)
                if ends:
                    ends[-1] = str(message["at"])
        tree = levels(builder, leaves)
        if not starts or starts[0]:
            starts.insert(0, 0)
            ends.insert(0, str(messages[0]["at"]))
        for number, start in enumerate(starts):
            end = starts[number + 1] if number + 1 < len(starts) else len(leaves)
            outcome: Outcome = "completed" if kinds[end - 1] == "assistant" else "interrupted"
            nodes = [tree[level][index] for level, index in cover(start, end)]
            found.append((ends[number], builder.publication(nodes, outcome), key))
    found.sort(key=lambda item: item[0])
    return [(leaf, key) for _, leaf, key in found]


WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*[A-Za-z0-9_]|[A-Za-z0-9_]")


def words_of(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=64_000, help="of the shared view")
    parser.add_argument("--show", action="store_true", help="print the questions whose answer is lost")
    parser.add_argument("--dump", type=Path, help="write each view into this folder")
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    if not (DATA / "questions.jsonl").exists():
        print(f"no data at {DATA}: nothing to measure")
        return 0
    sessions, questions = load()
    frequency: Counter[str] = Counter()
    records = 0
    for messages in sessions.values():
        for message in messages:
            for part in message["parts"]:  # type: ignore[attr-defined]
                frequency.update(words_of(spoken(part)[1]))
                records += 1
    print(f"{len(sessions)} sessions, {records} records, view of {arguments.bytes} bytes")
    print(
        f"{'candidate':14} {'answers':>8} {'words':>6} {'leaves':>7} {'calls':>6} {'ms/call':>8} {'max ms':>7} rejected"
    )
    for name in arguments.names or CANDIDATES:
        builder = Builder(CANDIDATES[name])
        leaves = publications(builder, sessions)
        tree = levels(builder, [leaf for leaf, _ in leaves])
        lines = view(tree, arguments.bytes)
        text = "\n".join(tree[level][index].text for level, index in lines)
        whole = "\n".join(leaf.text for leaf, _ in leaves)
        if arguments.dump:
            rows = (f"{index << level}+{1 << level} | {tree[level][index].text}" for level, index in lines)
            (arguments.dump / f"{name}.txt").write_text("\n".join(rows), encoding="utf-8")
        shown = words_of(text)
        answered, at_leaves, shares, lost = 0, 0, [], []
        asked = [question for question in questions if question["evidence"]]
        for question in asked:
            strings = [str(string).lower() for string in question["answer_strings"]]  # type: ignore[attr-defined]
            found = any(string in text.lower() for string in strings)
            answered += found
            at_leaves += any(string in whole.lower() for string in strings)
            if not found:
                lost.append(question["id"])
            own = words_of(str(question["question"]))
            rare = {
                word
                for piece in question["evidence"]  # type: ignore[attr-defined]
                for word in words_of(piece["quote"])
                if frequency[word] <= records * 0.02 and word not in own
            }
            if rare:
                shares.append(len(rare & shown) / len(rare))
        rejected = ", ".join(f"{count} {reason}" for reason, count in builder.rejected.most_common()) or "0"
        print(
            f"{name:14} {answered / len(asked):8.3f} {statistics.mean(shares):6.3f} "
            f"{at_leaves / len(asked):7.3f} {builder.calls:6} "
            f"{builder.seconds / builder.calls * 1e3:8.3f} {builder.slowest * 1e3:7.1f}  {rejected}"
        )
        if arguments.show:
            print("   lost:", " ".join(map(str, lost)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
