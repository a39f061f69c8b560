"""
Memories that last for a test.

Decides: where such a memory lives, and that nothing of it is left.
Refuses to know: what is tested.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakKeyDictionary

from optchat.core.policy import Policy
from optchat.core.ports import Summarizer
from optchat.memory.house import SystemClock
from optchat.memory.memory import Memory
from optchat.memory.opening import open_again, open_with
from optchat.testing.clocks import ManualClock

# The handles that a test has opened beside a memory. A test that fails keeps its generators alive in its traceback, so
# that their own cleaning up would come after the files are gone.
_beside: WeakKeyDictionary[Memory, list[Memory]] = WeakKeyDictionary()


def temporary_memory(
    *,
    scope: str = "test",
    policy: Policy | None = None,
    summarizer: Summarizer | None = None,
    clock: ManualClock | None = None,
) -> AbstractContextManager[Memory]:
    """
    A memory in a directory of its own, for a ``with`` block; afterwards it is closed and its files are gone.

    Summaries are made only by ``settle()`` (``compact="manual"``), so that a test decides what is pending.

    Args:
        summarizer: None is the embedded default.
        clock: None is the machine's; a manual one makes recorded times and retries the test's own.
    """
    return _temporary(scope, policy or Policy(), summarizer, clock)


@contextmanager
def _temporary(
    scope: str, policy: Policy, summarizer: Summarizer | None, clock: ManualClock | None
) -> Generator[Memory]:
    with (
        TemporaryDirectory(prefix="optchat-") as directory,
        open_with(
            Path(directory) / "memory.db",
            scope=scope,
            summarizer=summarizer,
            tokenizer=None,
            policy=policy,
            background=False,
            mode="rwc",
            clock=SystemClock() if clock is None else clock,
        ) as memory,
    ):
        try:
            yield memory
        finally:
            for other in _beside.pop(memory, []):
                other.close()


def open_beside(memory: Memory) -> Memory:
    """
    Another handle on a memory's file, with the same settings: what it shows comes from the file alone.

    :func:`close_beside` closes it; at the latest it is closed with the temporary memory that it stands beside.
    """
    other = open_again(memory)
    _beside.setdefault(memory, []).append(other)
    return other


def is_open_beside(memory: Memory, other: Memory) -> bool:
    """Whether a handle was opened beside a memory, and is not closed since."""
    return any(each is other for each in _beside.get(memory, ()))


def close_beside(memory: Memory, other: Memory) -> None:
    """Close a handle that was opened beside a memory."""
    _beside[memory] = [each for each in _beside[memory] if each is not other]
    other.close()
