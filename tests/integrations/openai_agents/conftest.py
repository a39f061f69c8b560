"""One lab a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from optchat.testing import temporary_memory
from tests.integrations.openai_agents.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with temporary_memory() as memory:
        yield Lab(memory, tmp_path)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the only loop that openai-agents runs on
