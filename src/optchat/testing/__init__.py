"""
What people who embed the library test with (extra ``testing``).

Decides: nothing; it names what is public.
Refuses to know: Hypothesis, until :mod:`optchat.testing.strategies` is asked for: ``temporary_memory`` needs no extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optchat.testing import replies
from optchat.testing.clocks import ManualClock
from optchat.testing.contract import AdapterContract, HostRun
from optchat.testing.memories import temporary_memory
from optchat.testing.models import RequestRecorder, ScriptedModel
from optchat.testing.schedules import Step, play
from optchat.testing.servers import FakeAnthropic, FakeOpenAI
from optchat.testing.summarizers import DeterministicSummarizer

if TYPE_CHECKING:
    from optchat.testing import strategies

__all__ = [
    "AdapterContract",
    "DeterministicSummarizer",
    "FakeAnthropic",
    "FakeOpenAI",
    "HostRun",
    "ManualClock",
    "RequestRecorder",
    "ScriptedModel",
    "Step",
    "play",
    "replies",
    "strategies",
    "temporary_memory",
]


def __getattr__(name: str) -> Any:
    if name == "strategies":
        return import_module("optchat.testing.strategies")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
