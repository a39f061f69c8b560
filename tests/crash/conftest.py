"""How much of everything is run, and the figures that the tests of this folder print when they have run."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# `nox -s crash` sets it. In the everyday suite it is 3, and what is cut, failed and killed is a sample.
ROUNDS = int(os.environ.get("OPTCHAT_CRASH_ROUNDS", "3"))
EVERY = ROUNDS > 3

Say = Callable[[str], None]
_FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_FIGURES]:
        terminalreporter.section("crash figures")
        for line in config.stash[_FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Print a line of figures once all tests have run."""
    return request.config.stash[_FIGURES].append


@pytest.fixture
def in_ram() -> Iterator[None]:
    """Images lie in RAM, where there is a place: what a sync does is the recorder's to say."""
    ram, before = Path("/dev/shm"), tempfile.tempdir
    if ram.is_dir() and os.access(ram, os.W_OK):
        tempfile.tempdir = str(ram)
    yield
    tempfile.tempdir = before
