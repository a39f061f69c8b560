"""What callers hand in: a summarizer made of a function, blocks, and what a host says of itself."""

import asyncio
from collections.abc import Awaitable

import pytest
from attrs import asdict, fields
from attrs.exceptions import FrozenInstanceError

from optchat.core.ports import HostInfo, MemoryBlock, Summarizer, summarizer
from optchat.core.summarizing import SummaryReply, SummaryRequest

REQUEST = SummaryRequest("leaf", 512, (), None, "", (), 1, 256, 30.0)


def test_a_function_becomes_a_summarizer() -> None:
    asked: list[SummaryRequest] = []

    @summarizer("mine-1", window_tokens=8_000)
    def mine(request: SummaryRequest) -> str:
        asked.append(request)
        return "user: hello"

    made: Summarizer = mine
    assert (made.name, made.window_tokens) == ("mine-1", 8_000)
    assert made.summarize(REQUEST) == "user: hello"
    assert asked == [REQUEST]


def test_an_async_function_too_and_its_awaitable_is_handed_on() -> None:
    @summarizer("mine-2", window_tokens=8_000)
    async def mine(request: SummaryRequest) -> SummaryReply:
        return SummaryReply(f"attempt {request.attempt}")

    reply = mine.summarize(REQUEST)

    assert isinstance(reply, Awaitable)

    async def wait() -> object:
        return await reply

    assert asyncio.run(wait()) == SummaryReply("attempt 1")


def test_what_a_function_raises_passes_through() -> None:
    @summarizer("mine-3", window_tokens=8_000)
    def mine(request: SummaryRequest) -> str:
        raise TimeoutError(request.purpose)

    with pytest.raises(TimeoutError, match="leaf"):
        mine.summarize(REQUEST)


def test_its_name_is_stored_with_its_nodes_and_does_not_change() -> None:
    made = summarizer("mine-4", window_tokens=1)(lambda _: "")

    with pytest.raises(FrozenInstanceError):
        made.name = "other"  # type: ignore[misc] # the point


def test_a_host_claims_nothing_that_it_does_not_say() -> None:
    info = HostInfo(name="mine")

    lifecycle = ("fork", "edit", "delete", "compaction", "pause")
    assert asdict(info) == {
        "name": "mine",
        "distribution": None,
        "version_floor": None,
        "version_below": None,
        **dict.fromkeys(lifecycle, "absent"),
        "words_between": False,
        "drops_unfinished": False,
    }
    assert all(attribute.kw_only for attribute in fields(HostInfo))


def test_a_block_is_a_value() -> None:
    assert MemoryBlock("shared", "x", True) == MemoryBlock("shared", "x", True) != MemoryBlock("shared", "x", False)
