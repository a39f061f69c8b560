"""Other processes that are gone when the test is."""

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.peer import Peer


@pytest.fixture
def new_peer() -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def new_peer() -> Peer:
        peers.append(Peer())
        return peers[-1]

    yield new_peer
    for peer in peers:
        peer.end()
