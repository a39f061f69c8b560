"""What the tests of the MCP server share."""

from collections.abc import Iterator

import pytest

import optchat
from optchat.testing import temporary_memory


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the one that the server's own `run` uses


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory() as memory:
        yield memory
