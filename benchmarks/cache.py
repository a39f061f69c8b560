"""
How much of what is sent to a model a provider reads from its cache, with anchors and without (§ 7; decision 0024).

Three sessions take turns in one scope, 3,000 records in all, said as `benchmarks.stable_prefix` says them: lengths,
pauses and turns are drawn from what real coding sessions show, the three at the same time. Each turn is an agent's: a
model call at its request and after each tool's result, each with the context that the library gives it then. Summaries
are made at the end of each turn; time is simulated.

A request is the bytes of its messages, memory and transcript; instructions and tools, which the application sends
before them, would only raise the share. What could be read of one is what it has in common, from its first byte on,
with the same session's request before it, if that is at most 300 seconds old. The share is the sum of it over the sum
of all bytes. *Between batches* leaves out the requests of which no rendering could keep the bytes: each session's
first, and the first after a view was merged.

Besides the library's two ways, anchors and full renderings, the table has one that was not built: a single block that
is rewritten each turn, put together from what the full renderings show.

    python -m benchmarks.cache [--records 3000] [--seed 1] [--folder DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from heapq import merge
from pathlib import Path

from attrs import define, evolve, field, frozen

import optchat
from benchmarks._table import Figure, at_least, show
from benchmarks.stable_prefix import LIFETIME_SECONDS, WORKING_BREAK_SECONDS, Said, Speech, files_in
from optchat.adapters.openai import OpenAIChat
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory

SESSIONS = 3
RECORDS = 3_000
OVERALL_AIM = 95.0  # per cent
BETWEEN_AIM = 97.0
BUDGET = optchat.Budget(window=200_000, output=8_000)
POLICY = optchat.Policy()


@frozen
class Block:
    kind: str
    text: str


@frozen
class Request:
    """One call: its memory, what follows it, and whether it is its turn's first and follows a batch."""

    session: int
    at: float
    memory: tuple[Block, ...]
    transcript: bytes
    first: bool
    batch: bool

    @property
    def data(self) -> bytes:
        return b"".join(block.text.encode() for block in self.memory) + self.transcript


@define
class Share:
    sent: int = 0
    read: int = 0
    requests: int = 0

    def add(self, sent: int, read: int) -> None:
        self.sent += sent
        self.read += read
        self.requests += 1

    @property
    def percent(self) -> float:
        return 100 * self.read / max(1, self.sent)


@define
class Cache:
    """What could be read, request by request."""

    last: dict[int, tuple[float, bytes]] = field(factory=dict)
    overall: Share = field(factory=Share)
    between: Share = field(factory=Share)
    firsts: Share = field(factory=Share)
    firsts_between: Share = field(factory=Share)

    def send(self, request: Request) -> None:
        data = request.data
        at, before = self.last.get(request.session, (float("-inf"), b""))
        read = common(before, data) if request.at - at <= LIFETIME_SECONDS else 0
        self.last[request.session] = request.at, data
        shares = [self.overall]
        if request.first:
            shares.append(self.firsts)
        if not request.batch:
            shares.append(self.between)
            if request.first:
                shares.append(self.firsts_between)
        for share in shares:
            share.add(len(data), read)


def common(one: bytes, other: bytes) -> int:
    """The length of what two byte strings begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def spoken(records: int, seed: int, longest_break: float) -> Iterator[tuple[float, int, Said]]:
    """What the sessions say, all of it in the order of time."""

    def one(number: int) -> Iterator[tuple[float, int, Said]]:
        speech = Speech(random.Random(seed * 1_000 + number), longest_break)
        for said in speech.session(records // SESSIONS):
            yield said.at, number, said

    return merge(*(one(number) for number in range(SESSIONS)), key=lambda each: each[:2])


def lived(records: int, seed: int, longest_break: float, policy: optchat.Policy) -> list[Request]:
    """Every request of such a life."""
    clock = ManualClock()
    found: list[Request] = []
    with temporary_memory(policy=policy, summarizer=DeterministicSummarizer(), clock=clock) as memory:
        sessions = [memory.session(f"session-{number}", adapter=OpenAIChat()) for number in range(SESSIONS)]
        turns: dict[int, optchat.Turn] = {}
        calls: dict[int, str] = {}
        for at, number, said in spoken(records, seed, longest_break):
            clock.advance(max(0.0, at - clock.monotonic()))
            if said.first:
                turns[number] = sessions[number].turn(said.text)
            turn = turns[number]
            if said.last:
                turn.assistant(said.text)
                turn.end("completed")
                memory.settle()
                continue
            if not said.first:
                if not turn.pending:
                    calls[number] = f"call-{len(found)}"
                    turn.tool_call(calls[number], "run", {"command": said.text})
                    continue
                turn.tool_result(calls[number], said.text)
            context = turn.context(BUDGET)
            whole = len(turn.view().lines) == sum(ref.startswith("pub:") for ref in context.receipt.refs)
            if not whole:
                raise SystemExit("the window is too small for whole views; the figures would be another thing's")
            found.append(request_of(number, at, context, first=said.first))
    return found


def request_of(session: int, at: float, context: optchat.Context, *, first: bool) -> Request:
    texts = [str(message["content"]) for message in context.memory]
    blocks = tuple(Block(block.kind, block.text) for block in context.blocks)
    if "".join(texts) != "".join(block.text for block in blocks):
        raise SystemExit("the adapter frames blocks otherwise than one message each")
    transcript = json.dumps(context.messages[len(context.memory) :]).encode()
    batch = first and ("view has changed" in context.receipt.why or "before" in context.receipt.why)
    return Request(session, at, blocks, transcript, first, batch)


# ---- the way that was not built --------------------------------------------------------------------------------------


@frozen
class Views:
    """The lines of a full rendering."""

    shared: tuple[str, ...]
    own: tuple[str, ...]

    def since(self, anchor: Views) -> str | None:
        """What was added at the ends; None where anything else has changed."""
        for now, then in ((self.shared, anchor.shared), (self.own, anchor.own)):
            if now[: len(then)] != then:
                return None
        new = [*self.shared[len(anchor.shared) :], *self.own[len(anchor.own) :]]
        return "\n".join(new)


def one_block(requests: list[Request], since_bytes: int) -> list[Request]:
    """The same life as full renderings show it, as if one block were rewritten each turn."""
    found: list[Request] = []
    anchors: dict[int, tuple[Views, tuple[Block, ...]]] = {}
    memories: dict[int, tuple[tuple[Block, ...], bool]] = {}
    for number, request in enumerate(requests):
        if request.first:
            views = views_of(request)
            anchor = anchors.get(request.session)
            new = None if anchor is None else views.since(anchor[0])
            batch = new is None
            if anchor is None or new is None or len(new.encode()) > since_bytes:
                anchors[request.session] = views, request.memory[:3]
                memories[request.session] = request.memory, batch
            else:
                since = Block("since", f'<since snapshot="{number}">\n{new}\n</since>')
                memories[request.session] = (*anchor[1], since, *request.memory[3:]), batch
        memory, batch = memories[request.session]
        found.append(evolve(request, memory=memory, batch=batch and request.first))
    return found


def views_of(request: Request) -> Views:
    shared, own = (tuple(block.text.splitlines()[1:-1]) for block in request.memory[1:3])
    return Views(shared, own)


# ---- the table -------------------------------------------------------------------------------------------------------


def measured(requests: list[Request]) -> Cache:
    cache = Cache()
    for request in requests:
        cache.send(request)
    return cache


def figures(folder: Path | None = None, records: int = RECORDS, seed: int = 1) -> list[Figure]:
    never = evolve(POLICY, since_bytes=0)
    with files_in(folder):
        anchored = lived(records, seed, WORKING_BREAK_SECONDS, POLICY)
        in_full = lived(records, seed, WORKING_BREAK_SECONDS, never)
        broken = measured(lived(records, seed, float("inf"), POLICY))
    with_anchors, without, single = measured(anchored), measured(in_full), measured(one_block(in_full, 16_384))
    added = [sum(block.kind == "since" for block in request.memory) for request in anchored]
    memory = sum(len(block.text.encode()) for request in anchored for block in request.memory)
    what = f"turn input read from a provider's cache, three sessions, {records:,} records"
    return [
        at_least(f"{what}, over all", with_anchors.overall.percent, OVERALL_AIM, " %"),
        at_least("the same, between batches", with_anchors.between.percent, BETWEEN_AIM, " %"),
        Figure(
            "the same, a turn's first request alone, over all / between batches",
            f"{with_anchors.firsts.percent:.2f} / {with_anchors.firsts_between.percent:.2f} %",
        ),
        Figure("the same, with breaks as people make them, over all", f"{broken.overall.percent:.2f} %"),
        Figure(
            "with both views in full each turn, over all / a turn's first request alone",
            f"{without.overall.percent:.2f} / {without.firsts.percent:.2f} %",
        ),
        Figure(
            "with one block of 16 KiB that is rewritten, over all / between batches / first requests",
            f"{single.overall.percent:.2f} / {single.between.percent:.2f} / {single.firsts.percent:.2f} %",
        ),
        Figure(
            "requests / turns / renderings in full / most blocks added",
            f"{len(anchored):,} / {with_anchors.firsts.requests:,}"
            f" / {sum(request.first and not count for request, count in zip(anchored, added, strict=True)):,}"
            f" / {max(added)}",
        ),
        Figure(
            "mean request / memory in it",
            f"{with_anchors.overall.sent / len(anchored) / 1000:.1f} / {memory / len(anchored) / 1000:.1f} KB",
        ),
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
