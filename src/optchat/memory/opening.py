"""
Opening a memory (§ 11).

Decides: what is there once a file is open: its store, its worker, its scope; and what is taken up again.
Refuses to know: sessions, turns, and what a summarizer does.
"""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from typing import Literal, TypeAlias

from attrs import frozen

from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.compactor.worker import Worker
from optchat.core.errors import BadArgument, StoreError
from optchat.core.policy import Policy
from optchat.core.ports import Clock, Summarizer, Tokenizer
from optchat.engine import turns, upkeep, work
from optchat.engine.scrubbing import scrub_slice
from optchat.engine.tokenizers import tokenizer_for
from optchat.memory.house import NAME_CHARACTERS, House, SystemClock, find_scope
from optchat.memory.memory import Memory
from optchat.store import scopes
from optchat.store.connection import Store

StrPath: TypeAlias = str | PathLike[str]


def open(
    path: StrPath,
    *,
    scope: str,
    summarizer: Summarizer | None = None,
    fallback: Summarizer | None = None,
    tokenizer: Tokenizer | None = None,
    policy: Policy | None = None,
    compact: Literal["background", "manual"] = "background",
    mode: Literal["rwc", "rw", "ro"] = "rwc",
) -> Memory:
    """
    Open a memory: one scope of one SQLite file, made if it is not there.

    Args:
        path: the database file; its folder must exist.
        scope: the sharing boundary (§ 11). Required: a forgotten scope would share what should not be shared.
        summarizer: None is the embedded default, which needs no model, no key and no network.
        fallback: asked once, for at most 30 seconds, where the summarizer refuses; else a stand-in takes the place.
        tokenizer: counts where a budget names none; None is an upper bound that needs no network.
        policy: the tunables; those that are the scope's format must agree with it.
        compact: "background": a thread of this process makes summaries; "manual": only ``settle()``, or other
            processes, do.
        mode: "rwc" creates file and scope; "rw" and "ro" refuse where they are absent; "ro" writes nothing.

    Raises:
        BadArgument: a scope, ``compact`` or ``mode`` that cannot be.
        ConfigError: no such file or scope under "rw" or "ro"; a format setting other than the scope's; a network
            filesystem.
        NotOurFile: a directory, or somebody else's file; it is left untouched.
        SchemaTooNew: written by a newer optchat.
        StoreBusy: the writer lock was not had in time.
    """
    if compact not in ("background", "manual"):
        raise BadArgument(f"compact is 'background' or 'manual', not {compact!r}")
    if mode not in ("rwc", "rw", "ro"):
        raise BadArgument(f"mode is 'rwc', 'rw' or 'ro', not {mode!r}")
    return open_with(
        path,
        scope=scope,
        summarizer=summarizer,
        fallback=fallback,
        tokenizer=tokenizer,
        policy=policy or Policy(),
        background=compact == "background",
        mode=mode,
        clock=SystemClock(),
    )


def open_with(
    path: StrPath,
    *,
    scope: str,
    summarizer: Summarizer | None,
    tokenizer: Tokenizer | None,
    policy: Policy,
    background: bool,
    mode: Literal["rwc", "rw", "ro"],
    clock: Clock,
    fallback: Summarizer | None = None,
) -> Memory:
    """:func:`open` with a clock, for tests and tools."""
    if not isinstance(scope, str) or not 0 < len(scope) <= NAME_CHARACTERS or not scope.isprintable():
        raise BadArgument(f"a scope is a name of 1 to {NAME_CHARACTERS} printable characters, like 'project-17'")
    store = Store.open(path, mode=mode, lock_wait_seconds=policy.lock_wait_seconds, clock=clock)
    try:
        worker = None if mode == "ro" else Worker(summarizer or ExtractiveSummarizer(), fallback)
        house = House(store, policy, clock, tokenizer or tokenizer_for(), worker, create=mode == "rwc")
        row = find_scope(store, scope, policy, clock, create=mode == "rwc")
        opened = house.scope(row)
        if worker is not None:
            turns.end_abandoned(opened)
            work.end_dead_leases(opened)
            work.arm_at_open(opened)
            if background:
                worker.start()
            else:
                with suppress(StoreError):  # a removal goes on where a crash, or the end of a process, broke it off
                    scrub_slice(opened)
    except BaseException:
        store.close()
        raise
    return Memory(house, opened)


def open_again(memory: Memory) -> Memory:
    """Another handle on a memory's file and scope, for tests: the same settings, and jobs worked only when told to."""
    house = memory._house  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    return open_with(
        memory.path,
        scope=memory.scope,
        summarizer=None if house.worker is None else house.worker.summarizer,
        fallback=None if house.worker is None else house.worker.fallback,
        tokenizer=house.tokenizer,
        policy=house.policy,
        background=False,
        mode="ro" if house.store.read_only else "rwc" if house.create else "rw",
        clock=house.clock,
    )


@frozen
class ScopeInfo:
    """A scope of a file, in figures."""

    name: str
    sessions: int
    records: int
    publications: int


def scopes_of(path: StrPath) -> tuple[ScopeInfo, ...]:
    """The scopes of a file, by name; nothing is written. Errors as :func:`open` with mode "ro"."""
    clock = SystemClock()
    store = Store.open(path, mode="ro", lock_wait_seconds=Policy().lock_wait_seconds, clock=clock)
    try:
        with store.read() as db:
            return tuple(ScopeInfo(name, *upkeep.scope_figures(db, name)) for name in scopes.scope_names(db))
    finally:
        store.close()
