"""Memories and processes that are closed when the test is over."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import optchat
from tests.peer import Peer

Open = Callable[..., optchat.Memory]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def open_memory(path: Path) -> Iterator[Open]:
    opened: list[optchat.Memory] = []

    def open_memory(at: Path = path, *, scope: str = "project-17", **settings: Any) -> optchat.Memory:
        opened.append(optchat.open(at, scope=scope, **({"compact": "manual"} | settings)))
        return opened[-1]

    yield open_memory
    for memory in reversed(opened):
        memory.close()


@pytest.fixture
def memory(open_memory: Open) -> optchat.Memory:
    return open_memory()


@pytest.fixture
def peer(new_peer: Callable[[], Peer], path: Path) -> Peer:
    """A process with the same memory open."""
    peer = new_peer()
    peer("memory = optchat.open(path, scope='project-17', compact='manual')", path=str(path))
    return peer
