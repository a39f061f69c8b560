"""
Prefixes of requests that a provider caches, and who writes them (the readme on cost).

Decides: which prefixes a request shares with others, and which call goes first while one of them is cold.
Refuses to know: any provider's API, and what stands in a prefix.

A cache entry can be read once the response of the call that writes it has started. Eight calls that start together on a
cold prefix would each pay for writing it. So one of them writes, and the others wait until its response starts; if it
fails or is cancelled first, the next of them writes. A call waits only for what it can read: a prefix within the
provider's look-back of one of its own marks, and longer than any that is warm already.

Waiting saves money and is never needed for a right answer, so patience is bounded: whoever has waited long enough goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from attrs import define, field, frozen

LIFETIME_SECONDS: Final = 300.0  # of an entry, from its last use
LOOK_BACK_BLOCKS: Final = 20  # a mark finds entries that end at most so many blocks before it, its own included


@frozen
class Block:
    """One block of a request; ``marked``: the provider is asked to keep what ends here."""

    role: str
    text: str
    marked: bool = False


@frozen
class Prefixes:
    """The prefixes of one request by hash: those it can read, longest first, and those it writes."""

    readable: tuple[bytes, ...]
    written: tuple[bytes, ...]


def prefixes_of(blocks: Sequence[Block]) -> Prefixes:
    """The prefixes that a provider could find in its cache for a request, and those that it would keep."""
    keys: list[bytes] = []
    digest = hashlib.sha256()
    for block in blocks:
        text = block.text.encode("utf-8", "surrogatepass")
        digest.update(f"{block.role}:{len(text)}:".encode())
        digest.update(text)
        keys.append(digest.copy().digest())
    marks = [number for number, block in enumerate(blocks) if block.marked]
    found = {number for mark in marks for number in range(max(0, mark - LOOK_BACK_BLOCKS + 1), mark + 1)}
    return Prefixes(
        tuple(keys[number] for number in sorted(found, reverse=True)),
        tuple(keys[number] for number in marks),
    )


@define
class Turn:
    """A call that may be sent now."""

    waited_seconds: float
    _writers: CacheWriters
    _prefixes: Prefixes
    _claimed: dict[bytes, anyio.Event] = field(factory=dict[bytes, anyio.Event])
    _sent_at: float = 0.0

    def response_started(self) -> None:
        """What this call wrote or read can be read by others from now on."""
        self._writers.warm(self._prefixes.written, self._sent_at)
        self._writers.release(self._claimed)


class CacheWriters:
    """The calls of one event loop that share a provider's cache."""

    def __init__(self) -> None:
        self._warm_until: dict[bytes, float] = {}
        self._writing: dict[bytes, anyio.Event] = {}

    @asynccontextmanager
    async def turn(self, prefixes: Prefixes, patience_seconds: float) -> AsyncGenerator[Turn]:
        """
        Wait until a call may be sent; the block sends it, and says when its response starts.

        Args:
            patience_seconds: how long to wait at most, for one writer after another.
        """
        asked_at = anyio.current_time()
        with anyio.move_on_after(patience_seconds):
            while (writer := self._writer_to_wait_for(prefixes)) is not None:
                await writer.wait()
        # Nothing is awaited from the last look to the claim: of all that woke together one claims, and the rest see it.
        sent_at = anyio.current_time()
        claimed = {
            key: anyio.Event()
            for key in prefixes.written
            if key not in self._writing and self._warm_until.get(key, 0.0) <= sent_at
        }
        self._writing.update(claimed)
        turn = Turn(sent_at - asked_at, self, prefixes, claimed, sent_at)
        try:
            yield turn
        finally:
            self.release(claimed)

    def _writer_to_wait_for(self, prefixes: Prefixes) -> anyio.Event | None:
        now = anyio.current_time()
        for key in prefixes.readable:
            if self._warm_until.get(key, 0.0) > now:
                return None
            if key in self._writing:
                return self._writing[key]
        return None

    def warm(self, keys: Sequence[bytes], used_at: float) -> None:
        """These prefixes are cached; their time runs from when they were last asked for."""
        for key in [key for key, until in self._warm_until.items() if until <= used_at]:
            del self._warm_until[key]
        for key in keys:
            self._warm_until[key] = max(self._warm_until.get(key, 0.0), used_at + LIFETIME_SECONDS)
            if key in self._writing:  # by another call than its writer, whose patience had ended
                self._writing.pop(key).set()

    def release(self, claimed: dict[bytes, anyio.Event]) -> None:
        """Nobody waits for this call any longer."""
        for key, event in claimed.items():
            if self._writing.get(key) is event:
                del self._writing[key]
            event.set()
