"""What the tests of both providers' summarizers share."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest

from optchat.core.summarizing import PromptMessage, SummaryReply, SummaryRequest
from optchat.core.trouble import CallFailed, TroubleKind
from optchat.testing import FakeAnthropic, FakeOpenAI, replies
from optchat.testing.replies import Reply

T = TypeVar("T")

AT = datetime(2026, 1, 5, tzinfo=UTC)
KEY = "sk-secret-0123456789abcdef"
SECRET = "what the user said in confidence"
TASK = PromptMessage("user", f"Write the memory line of this: {SECRET}")


def request(
    *messages: PromptMessage, system: str = "You keep the memory.", timeout_seconds: float = 20.0, attempt: int = 1
) -> SummaryRequest:
    return SummaryRequest(
        purpose="leaf",
        limit_bytes=512,
        sources=(),
        outcome=None,
        system=system,
        messages=messages or (TASK,),
        attempt=attempt,
        max_output_tokens=1_024,
        timeout_seconds=timeout_seconds,
    )


def run(function: Callable[[], Awaitable[T]], backend: str = "asyncio") -> T:
    """In a loop of its own, as a worker runs it; a test that hangs fails."""

    async def main() -> T:
        with anyio.fail_after(60):
            return await function()

    return anyio.run(main, backend=backend)


def asked(make: Callable[[], Any], *requests: SummaryRequest) -> list[SummaryReply]:
    """One after another, in one loop; the summarizer's connections are closed."""

    async def main() -> list[SummaryReply]:
        summarizer = make()
        try:
            return [await summarizer.summarize(each) for each in requests or (request(),)]
        finally:
            await summarizer.aclose()

    return run(main)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread brings about."""
    while not condition():  # noqa: ASYNC110 - a server's thread knows no event of this loop
        await anyio.sleep(0.001)


def let_go_of(server: FakeOpenAI | FakeAnthropic) -> None:
    """Wait until the server has seen the end of every request that reached it."""
    while len(server.requests) > server.answered + server.abandoned:
        threading.Event().wait(0.001)


async def settled() -> None:
    """Let every task of this loop come as far as it can by itself."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


def failure(make: Callable[[], Any], each: SummaryRequest | None = None) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        asked(make, each or request())
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return caught.value


# What a script does, what kind of trouble that is (None: a failed attempt), and a word of what is said.
FAILURES: Sequence[tuple[Reply, TroubleKind | None, str]] = [
    (replies.rate_limit(7), "rate", "status 429"),
    (replies.rate_limit(), "rate", "status 429"),
    (replies.out_of_credit(), "rate", "credit"),
    (replies.server_error(500), "server", "status 500"),
    (replies.server_error(503), "server", "status 503"),
    (replies.server_error(529), "server", "status 529"),
    (replies.unauthorized(), "authentication", "status 401"),
    (replies.unauthorized(403), "authentication", "status 403"),
    (replies.fail(402), "authentication", "status 402"),
    (replies.fail(400, message=SECRET), None, "status 400"),
    (replies.fail(404), None, "base_url"),
    (replies.fail(413), None, "window_tokens"),
    (replies.fail(422, message=KEY), None, "status 422"),
    (replies.drop(), "transport", "APIConnectionError (RemoteProtocolError)"),
]
