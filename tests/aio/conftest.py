"""Every test of this folder that is a coroutine runs on asyncio and on trio."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import optchat
import optchat.aio
from tests.aio.gates import Gate


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path() -> Iterator[Path]:
    """In RAM, where there is a place: what a sync does is not this folder's business."""
    ram = Path("/dev/shm")
    with TemporaryDirectory(dir=ram if ram.is_dir() and os.access(ram, os.W_OK) else None) as folder:
        yield Path(folder) / "memory.db"


@pytest.fixture
def sync(path: Path) -> Iterator[optchat.Memory]:
    with optchat.open(path, scope="project-17", compact="manual") as memory:
        yield memory


@pytest.fixture
def memory(sync: optchat.Memory) -> optchat.aio.AsyncMemory:
    return optchat.aio.AsyncMemory(sync)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
