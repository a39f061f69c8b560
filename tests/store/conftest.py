"""Handles and other processes that are gone when the test is."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optchat.store.connection import Mode, Store
from tests.store.actor import Actor, Clock
from tests.store.handles import Open


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Open]:
    opened: list[Store] = []

    def open_store(mode: Mode = "rwc", *, at: Path = path, wait: float = 30.0) -> Store:
        opened.append(Store.open(at, mode=mode, lock_wait_seconds=wait, clock=Clock()))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> Store:
    return open_store()


@pytest.fixture
def new_actor(path: Path) -> Iterator[Callable[..., Actor]]:
    actors: list[Actor] = []

    def new_actor(at: Path = path) -> Actor:
        actors.append(Actor(at))
        return actors[-1]

    yield new_actor
    for actor in actors:
        actor.end()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)
