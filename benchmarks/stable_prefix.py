"""
How much of what summarizers are asked a provider reads from its cache (the readme on cost, § 10).

A session of at least 3,000 records grows record by record, every fifth too long to be its own leaf. It runs through the
real engine: turns are sealed, eight calls at most run at once, each job is claimed, asked for and committed as a worker
would, in simulated time, so that nothing waits. Lengths of records, pauses and turns are drawn from what 40 real coding
sessions show; calls take 2 to 5 seconds, and replies use 60 to 100 % of what they may.

Each request is put to a model of a provider's cache, whose input is blocks: the system text, then each message. A
request asks to keep the prefixes that end at its marks. An entry can be read once the response of the call that wrote
it has started, and for 300 seconds from its last use, by a request with a mark at most 20 blocks further on. As our own
Anthropic summarizer does, a call waits for an entry that another call is writing if it is longer than any it can read.

The share is bytes read over all bytes of input. No cache can help what each job alone has, its own text: the table says
how large the share would be if all else were read. Three times the same session: at work, with no break between turns
longer than two minutes; with the breaks that people make, where after one of more than 300 seconds everything is
written anew; and as history that is imported at once, where eight calls at a time work off what is there.

    python -m benchmarks.stable_prefix [--records 3000] [--seed 1] [--folder DIRECTORY]
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from attrs import define, evolve, field, frozen

import optchat
from benchmarks._history import real_lines
from benchmarks._table import Figure, at_least, show
from optchat.core.lineage import owner_of
from optchat.core.summarizing import Accepted, SummaryRequest, summary_flow
from optchat.core.tree import Recipe
from optchat.engine import indexing, work
from optchat.engine.inputs import Task
from optchat.store import queue
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory

AIM = 95.0  # per cent
RECORDS = 3_000
WORKING_BREAK_SECONDS = 120.0
WINDOW_TOKENS = 200_000
LIFETIME_SECONDS = 300.0
LOOK_BACK_BLOCKS = 20
MOST_MARKS = 4
MEMORY_FOLDER = Path("/dev/shm")


# ---- a provider's cache ----------------------------------------------------------------------------------------------


@frozen
class Prefix:
    """The blocks of a request up to one of them."""

    key: bytes
    size: int


def prefixes_of(request: SummaryRequest) -> tuple[list[Prefix], list[int]]:
    """A request's prefixes, block by block, and which of them end at a mark."""
    blocks = [("system", request.system, True), *((each.role, each.text, each.cache) for each in request.messages)]
    digest, size = hashlib.sha256(), 0
    found: list[Prefix] = []
    for role, text, _ in blocks:
        data = text.encode()
        size += len(data)
        digest.update(f"{role} {len(data)} ".encode())
        digest.update(data)
        found.append(Prefix(digest.digest(), size))
    marks = [number for number, (_, _, marked) in enumerate(blocks) if marked]
    if len(marks) > MOST_MARKS:
        raise SystemExit(f"a request has {len(marks)} marks; a provider refuses more than {MOST_MARKS}")
    return found, marks


@define
class Entry:
    readable_at: float
    used_at: float


@define
class Provider:
    """What is cached, by prefix."""

    entries: dict[bytes, Entry] = field(factory=dict)

    def found(self, at: float, prefixes: Sequence[Prefix], marks: Sequence[int]) -> tuple[int, float | None]:
        """The bytes that can be read now; and when more can be, if a call is writing it."""
        near = {number for mark in marks for number in range(max(0, mark - LOOK_BACK_BLOCKS + 1), mark + 1)}
        later: float | None = None
        for number in sorted(near, reverse=True):
            entry = self.entries.get(prefixes[number].key)
            if entry is None or at > entry.used_at + LIFETIME_SECONDS:
                continue
            if entry.readable_at <= at:
                return prefixes[number].size, later
            later = later or entry.readable_at
        return 0, later

    def send(self, at: float, starts_at: float, prefixes: Sequence[Prefix], marks: Sequence[int]) -> int:
        """Send a request whose response starts at a time; the bytes read from the cache."""
        read, _ = self.found(at, prefixes, marks)
        for mark in marks:
            entry = self.entries.get(prefixes[mark].key)
            if entry is None or at > entry.used_at + LIFETIME_SECONDS:
                self.entries[prefixes[mark].key] = Entry(starts_at, at)
            else:
                entry.used_at = at
        return read


# ---- a session -------------------------------------------------------------------------------------------------------


@frozen
class Said:
    """A record: when, what, and whether it begins or ends its turn."""

    at: float
    text: str
    first: bool
    last: bool


@define
class Speech:
    """
    What is said, by the figures of real coding sessions (195 turns, 3,000 parts).

    Of parts that fit a leaf half have fewer than 108 bytes; of others half have fewer than 1,100 and a tenth more than
    4,000. Within a turn half of the pauses are below 3.3 seconds; between turns half are below 40 seconds and a tenth
    longer than 12 minutes.
    """

    chance: random.Random
    longest_break: float
    lines: list[str] = field(factory=real_lines)

    def text(self, size: int) -> str:
        said: list[str] = []
        length = 0
        while length < size:
            said.append(self.chance.choice(self.lines))
            length += len(said[-1]) + 1
        return "\n".join(said)[:size]

    def size(self, number: int) -> int:
        if number % 5 == 4:
            return min(max(int(self.chance.lognormvariate(7.0, 1.0)), 520), 50_000)
        return min(max(int(self.chance.lognormvariate(4.68, 0.8)), 12), 480)

    def session(self, records: int) -> Iterator[Said]:
        at, number = 0.0, 0
        while number < records:
            # A request, pairs of a call and its result, an answer.
            length = 2 + 2 * min(int(self.chance.lognormvariate(0.9, 1.1)), 30)
            for place in range(length):
                yield Said(at, self.text(self.size(number)), place == 0, place == length - 1)
                number += 1
                if self.longest_break:
                    at += self.chance.lognormvariate(1.2, 0.9)
            at += min(self.chance.lognormvariate(3.68, 2.2), self.longest_break)


# ---- the life of it --------------------------------------------------------------------------------------------------


@define
class Tally:
    calls: int = 0
    sent: int = 0
    read: int = 0
    own: int = 0  # what no other request has: the last message
    waited: float = 0.0

    @property
    def share(self) -> float:
        return self.read / max(1, self.sent)


@frozen
class Call:
    """A task on its way to the provider."""

    task: Task
    request: SummaryRequest
    prefixes: list[Prefix]
    marks: list[int]
    asked_at: float


class Life:
    """One session's life in simulated time: what happens next is on a heap."""

    def __init__(self, memory: optchat.Memory, clock: ManualClock, speech: Speech, *, wait: bool) -> None:
        self.memory, self.clock, self.speech, self.wait = memory, clock, speech, wait
        self.session = memory.session("session")
        self.free = optchat.Policy().workers
        self.provider = Provider()
        self.summarizer = DeterministicSummarizer()
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.records = 0
        self.turn: optchat.Turn[optchat.HostMessage] | None = None
        self._events: list[tuple[float, int, object]] = []
        self._order = count()
        self._call_id = ""

    def later(self, at: float, what: object) -> None:
        heappush(self._events, (at, next(self._order), what))

    def live(self, records: int) -> None:
        """Let it all happen, until the last summary has landed."""
        for said in self.speech.session(records):
            self.later(said.at, said)
        while self._events:
            at, _, what = heappop(self._events)
            self.clock.advance(max(0.0, at - self.clock.monotonic()))
            match what:
                case Said():
                    self.seal(what)
                case Call():
                    self.send(what)
                case work.Result():
                    work.commit(self.memory._scope, [what])
                    self.free += 1
            self.claim()

    def seal(self, said: Said) -> None:
        if said.first:
            self.turn = self.session.turn(said.text)
        elif said.last:
            self.turn.assistant(said.text)
            self.turn.end("completed")
        elif self.turn.pending:
            self.turn.tool_result(self._call_id, said.text)
        else:
            self._call_id = f"call-{self.records}"
            self.turn.tool_call(self._call_id, "run", {"command": said.text})
        self.records += 1

    def claim(self) -> None:
        """As a worker does whenever it is woken and has a call to spare."""
        scope = self.memory._scope
        while self.free:
            with scope.store.read() as db:
                if not queue.has_ready(db, scope.pk, scope.now()):
                    return
            claimed = work.claim(
                scope,
                summarizer=self.summarizer.name,
                is_default=False,
                window_tokens=WINDOW_TOKENS,
                limit=self.free,
            )
            if claimed.empty:
                return
            for job in claimed.indexing:
                indexing.index_step(scope, job)
            self.free -= len(claimed.tasks)
            for task in claimed.tasks:
                request = next(summary_flow(task.summary, attempts=1))
                self.send(Call(task, request, *prefixes_of(request), self.clock.monotonic()))

    def send(self, call: Call) -> None:
        """Send a request, or wait for the call that is writing what it could read."""
        now = self.clock.monotonic()
        _, later = self.provider.found(now, call.prefixes, call.marks)
        if self.wait and later is not None:
            self.later(later, call)
            return
        chance = self.speech.chance
        starts = now + chance.uniform(0.5, 1.5)
        read = self.provider.send(now, starts, call.prefixes, call.marks)
        for tally in (self.tallies["all"], self.tallies[self.kind(call.task)]):
            tally.calls += 1
            tally.sent += call.prefixes[-1].size
            tally.own += len(call.request.messages[-1].text.encode())
            tally.read += read
            tally.waited += now - call.asked_at
        self.later(now + chance.uniform(2.0, 5.0), self.answered(call))

    def kind(self, task: Task) -> str:
        shared = task.job.kind == "merge" and owner_of(task.job.subject) == self.memory._scope.row.shared_tree
        return "merge of publications" if shared else task.job.kind

    def answered(self, call: Call) -> work.Result:
        """What comes back: the tests' summarizer fills its limit, and models leave some of it."""
        share = self.speech.chance.uniform(0.6, 1.0)
        asked = evolve(call.request, limit_bytes=max(64, int(share * call.request.limit_bytes)))
        flow = summary_flow(call.task.summary, attempts=1)
        next(flow)
        try:
            flow.send(self.summarizer.summarize(asked))
        except StopIteration as stop:
            accepted: Accepted = stop.value
            return work.Result(call.task, accepted.text, Recipe("summary", self.summarizer.name, 1))
        raise SystemExit("a summary was rejected; every call was to be the first and the last of its job")


@contextmanager
def files_in(folder: Path | None) -> Iterator[None]:
    """Memories are made in a folder; in memory if nothing is said, where the machine has such a folder."""
    before = tempfile.tempdir
    if folder or MEMORY_FOLDER.is_dir():
        tempfile.tempdir = str(folder or MEMORY_FOLDER)
    try:
        yield
    finally:
        tempfile.tempdir = before


def lived(records: int, seed: int, longest_break: float, *, wait: bool = True) -> Life:
    """
    One session's whole life.

    Args:
        longest_break: between turns, in seconds; at 0 all is said at once.
        wait: whether a call waits for another one that is writing its prefix.
    """
    clock = ManualClock()
    with temporary_memory(summarizer=DeterministicSummarizer(), clock=clock) as memory:
        life = Life(memory, clock, Speech(random.Random(seed), longest_break), wait=wait)
        life.live(records)
    return life


def figures(folder: Path | None = None, records: int = RECORDS, seed: int = 1) -> list[Figure]:
    with files_in(folder):
        life = lived(records, seed, WORKING_BREAK_SECONDS)
        broken = lived(records, seed, float("inf")).tallies["all"]
        at_once = lived(records, seed, 0.0).tallies["all"]
    tallies = dict(life.tallies)
    whole = tallies.pop("all")
    what = f"compaction input read from a provider's cache, session at work, {life.records:,} records"
    rows = [
        at_least(what, 100 * whole.share, AIM, " %"),
        Figure("the same, if only each job's own text were sent anew", f"{100 - 100 * whole.own / whole.sent:.2f} %"),
        Figure("the same, with breaks as people make them", f"{100 * broken.share:.2f} %"),
        Figure("the same, history imported at once", f"{100 * at_once.share:.2f} %"),
    ]
    rows += [
        Figure(f"at work: {kind}, calls / share", f"{tally.calls:,} / {100 * tally.share:.1f} %")
        for kind, tally in sorted(tallies.items())
    ]
    sent, own = whole.sent / whole.calls / 1000, whole.own / whole.calls / 1000
    return [
        *rows,
        Figure("at work: calls of a summarizer per record", f"{whole.calls / life.records:.2f}"),
        Figure("at work: a request's mean size / its own text", f"{sent:.1f} / {own:.2f} KB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files are made; in memory if nothing is said")
    options = parser.parse_args()
    show(figures(options.folder, options.records, options.seed))


if __name__ == "__main__":
    main()
