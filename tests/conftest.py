"""What all tests share: Hypothesis profiles, and the markers that a folder implies."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.peer import Peer

# What CI runs is drawn the same way each time, so that a failure is the change's and not the day's; a soak draws anew.
# No deadlines: the machine is shared, and no test asserts timing.
EVERYDAY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("everyday", max_examples=25, stateful_step_count=40, derandomize=True, **EVERYDAY)
settings.register_profile("thorough", max_examples=400, stateful_step_count=80, derandomize=True, **EVERYDAY)
settings.register_profile("soak", max_examples=5000, stateful_step_count=200, **EVERYDAY)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

# A shell's background jobs ignore interrupts, and so would the tests that press Ctrl-C, and their children: for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files of tests live in RAM, where there is room: what a sync does is tests/crash's business, which records its disk.
RAM = Path("/dev/shm")
if RAM.is_dir() and os.access(RAM, os.W_OK) and shutil.disk_usage(RAM).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(RAM))  # where tmp_path is
    tempfile.tempdir = os.environ["PYTEST_DEBUG_TEMPROOT"]

FOLDER_MARKERS = {"property": "property", "stateful": "property", "crash": "crash", "typing": "typing"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        if folder in FOLDER_MARKERS:
            item.add_marker(FOLDER_MARKERS[folder])


@pytest.fixture
def new_peer() -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def new_peer() -> Peer:
        peers.append(Peer())
        return peers[-1]

    yield new_peer
    for peer in peers:
        peer.end()
