"""
``optchat compact``: one process that makes a database's summaries.

Decides: which scopes are worked, in which order what was asked for is done, how long somebody waits, and what counts as
done: nothing left is exit 0, and what is left has a reason and is exit 1.
Refuses to know: how a summary is made, and who else makes some.

It makes no database and no scope: both must be there, so that a mistyped path is an error.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

import click
from attrs import define, field, frozen

import optchat
from optchat.cli import output
from optchat.cli.settings import Settings, on_worker, pass_settings
from optchat.cli.summarizers import MODEL_FORM
from optchat.cli.tallies import Board, Tally, figures, open_jobs, until
from optchat.memory import compaction, scopes_of

STAND_INS: Final = "stand-ins"  # what --repair takes instead of a ref; no ref is written so
POLL_SECONDS: Final = 0.5  # how often a terminal is drawn
LOOK_SECONDS: Final = 2.0  # how often a watching process looks for scopes, and at figures that nobody sees move
LINE_SECONDS: Final = 10.0  # between lines that say what changed, in a pipe
PATIENCE_SECONDS: Final = 30.0  # a pause that ends sooner is waited for
_KEY_TROUBLE: Final = "authentication:"  # a pause that no waiting ends

Show = Callable[[int, int, str], None]


@frozen
class Orders:
    """What is to be done before jobs are worked."""

    take_over: bool
    upgrade: bool
    repair: tuple[str, ...]


@frozen
class Worked:
    """What ``compact --json`` says of a scope. ``calls`` are those since the run began."""

    scope: str
    done: int
    upgraded: int
    repaired: int
    calls: optchat.Calls
    calls_per_record: float | None
    status: optchat.Status


@frozen
class Compacted:
    """What ``compact --json`` answers. ``ok``: nothing is left; else ``reasons`` says why."""

    ok: bool
    reasons: tuple[str, ...]
    seconds: float
    scopes: tuple[Worked, ...]


class _TerminatedError(BaseException):
    """A service manager asked this process to end: as good as Ctrl-C, and no fault."""


def _ceilings(function: Callable[..., Any]) -> Callable[..., Any]:
    for period, named in (("day", "a day"), ("hour", "an hour")):
        for measure, kind in (("cost", float), ("tokens", int), ("calls", int)):
            most = "The most that calls may cost in" if measure == "cost" else f"The most {measure} in"
            option = f"--{measure}-per-{period}"
            function = click.option(option, type=kind, metavar="N", help=f"{most} {named}; then pause.")(function)
    return function


@click.command()
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option("--all-scopes", is_flag=True, help="Work every scope of the file; --scope is not needed.")
@click.option("--take-over", is_flag=True, help="Make this summarizer the scope's, where another is.")
@click.option("--upgrade", is_flag=True, help="Make anew what the embedded default made.")
@click.option(
    "--repair",
    multiple=True,
    metavar="REF",
    help=f"Make the summary of REF anew, and those above it; '{STAND_INS}': wherever none could be made.",
)
@click.option("--workers", type=int, metavar="N", help="Calls at once; 8 if left out.")
@_ceilings
@on_worker
@pass_settings
def compact(
    settings: Settings,
    /,
    *,
    watch: bool,
    all_scopes: bool,
    take_over: bool,
    upgrade: bool,
    repair: tuple[str, ...],
    workers: int | None,
    **ceilings: float | None,
) -> int:
    """
    Make the summaries that are due.

    Ends when no job can run any more: exit 0 if nothing is left, else 1 with the reason. A pause that ends within half
    a minute is waited for. Any number of processes may work one file.
    """
    for given, option in ((take_over, "--take-over"), (upgrade, "--upgrade")):
        if given and settings.choice.model is None:
            raise click.UsageError(f"{option} is for a model; name one with --summarizer {MODEL_FORM}")
    if all_scopes and any(ref != STAND_INS for ref in repair):
        raise click.UsageError(f"a REF is of one scope; with --all-scopes, --repair takes '{STAND_INS}' only")
    for name, value in ceilings.items():
        if name.startswith("cost") and value is not None:
            settings.choice.needs_price(f"--{name.replace('_', '-')}")
    limits: dict[str, Any] = {name: value for name, value in ceilings.items() if value is not None}
    policy = optchat.Policy(**limits) if workers is None else optchat.Policy(workers=workers, **limits)
    run = _Run(settings, policy, Orders(take_over, upgrade, repair), all_scopes=all_scopes)
    return run.watch() if watch else run.until_done()


@define
class _Run:
    """One run of the verb."""

    settings: Settings
    policy: optchat.Policy
    orders: Orders
    all_scopes: bool
    board: Board = field(factory=Board)
    began: float = field(factory=time.monotonic)

    # ---- until nothing can run ---------------------------------------------------------------------------------------

    def until_done(self) -> int:
        """Work until no job can run."""
        names = self._names()
        if not names:
            return self._finish()
        with self.settings.open_to_work("rw", scope=names[0], policy=self.policy) as memory:
            for name in names:
                self._begin(memory if name == names[0] else memory.scoped(name))
            with output.board("compacting") as show, looking(self.board, show):
                for tally in self.board.tallies:
                    work_off(tally.memory)
                    self._repair(tally)
            self.board.look()
            return self._finish()

    # ---- until interrupted -------------------------------------------------------------------------------------------

    def watch(self) -> int:
        """Work in the background until somebody ends it."""
        try:
            with _told_to_terminate():
                self._watch()
        except KeyboardInterrupt:
            self._look_again()
            self._finish()
            raise
        except _TerminatedError:
            self._look_again()
            self._finish()
        return 0

    def _watch(self) -> None:
        names = self._names()
        while not names:  # a file may get its first scope from now on
            time.sleep(LOOK_SECONDS)
            names = self._names()
        with (
            self.settings.open_to_work("rw", scope=names[0], policy=self.policy, compact="background") as memory,
            output.board("watching") as show,
        ):
            for name in names:
                self._begin(memory if name == names[0] else memory.scoped(name))
            lines = Lines(self.board)
            if show is None:
                named = f"{len(names)} scopes" if len(names) > 3 else ", ".join(names)
                with_whom = self.settings.choice.name
                output.note(f"working {named} with {with_whom} until interrupted: {self.board.figures()}")
            for tally in self.board.tallies:
                self._repair(tally)
            looked = time.monotonic()
            while True:
                self.board.look()
                if show is None:
                    lines.say()
                else:
                    show(self.board.done, self.board.done + self.board.left, self.board.figures())
                time.sleep(LOOK_SECONDS if show is None else POLL_SECONDS)
                if self.all_scopes and time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    self._begin_new(memory)

    def _begin_new(self, memory: optchat.Memory) -> None:
        """Work the scopes that were made meanwhile; what was ordered was ordered for those that were there."""
        known = {tally.scope for tally in self.board.tallies}
        for name in self._names():
            if name not in known:
                self.board.tallies.append(Tally.of(memory.scoped(name)))
                output.note(f"working {name}, too")

    def _look_again(self) -> None:
        """The figures once the worker has ended, and nothing is under way any more."""
        for tally in self.board.tallies:
            with (
                suppress(optchat.OptchatError),
                optchat.open(tally.memory.path, scope=tally.scope, compact="manual", mode="ro") as memory,
            ):
                tally.saw(memory.status())

    # ---- what both do ------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        if not self.all_scopes:
            return [self.settings.scope_name()]
        return [scope.name for scope in scopes_of(self.settings.path())]

    def _begin(self, memory: optchat.Memory) -> None:
        """Do what was ordered for a scope before its jobs are worked, and count from there."""
        tally = Tally.of(memory)
        self.board.tallies.append(tally)
        if self.orders.take_over:
            compaction.take_over(memory)
        if self.orders.upgrade:
            tally.upgraded = compaction.upgrade(memory)
        tally.look()

    def _repair(self, tally: Tally) -> None:
        """Repair what was named, once what it is made of is there."""
        if not self.orders.repair:
            return
        memory = tally.memory
        work_off(memory)
        for ref in self.orders.repair:
            if ref == STAND_INS:
                _repair_stand_ins(tally)
            else:
                tally.repaired += memory.repair(ref)
        work_off(memory)

    def _finish(self) -> int:
        """Say what was done, and why what is left is left."""
        tallies = self.board.tallies
        reasons = tuple(f"{tally.scope}: {why}" for tally in tallies for why in self._why(tally))
        if self.settings.as_json:
            seconds = round(time.monotonic() - self.began, 3)
            output.show_json(Compacted(not reasons, reasons, seconds, tuple(map(_worked, tallies))))
        else:
            for tally in tallies:
                output.show_text(f"{tally.scope}: {figures([tally])}{_per_record(tally)}")
            if not tallies:
                output.note(f"{self.settings.path()} has no scope yet")
        for reason in reasons:
            output.note(reason)
        for tally in tallies:
            if tally.now.stand_ins:
                output.note(
                    f"{tally.scope}: {tally.now.stand_ins} summaries could not be made, stand-ins take their place;"
                    f" 'optchat compact --repair {STAND_INS}' tries again"
                )
        return 1 if reasons else 0

    def _why(self, tally: Tally) -> list[str]:
        """Why something is left; nothing where nothing is."""
        status, parts = tally.now, list[str]()
        if not open_jobs(status) and not status.failures:  # hosts may be ahead all the same: no summary helps that
            return tally.unrepaired
        if open_jobs(status):
            parts.append(f"{open_jobs(status)} wait")
        if status.paused is not None:
            parts.append(f"paused{until(status)}: {status.paused}")
            if status.summarizer != self.settings.choice.name and status.resumes_at is None:
                parts.append(f"give --summarizer {status.summarizer}, or --take-over with another")
        if status.failures:
            latest = status.failures[0]
            parts.append(f"the {latest.kind} of {latest.ref} failed: {latest.error}")
        return ["; ".join(parts), *tally.unrepaired]


def _repair_stand_ins(tally: Tally) -> None:
    """
    Repair each once; one that cannot be repaired keeps no other from it. A repair makes anew what stands above it, too:
    what is left is looked up after each.
    """
    tried: set[str] = set()
    while left := [ref for ref in compaction.stand_ins(tally.memory) if ref not in tried]:
        tried.add(left[0])
        try:
            tally.repaired += tally.memory.repair(left[0])
        except (optchat.SummaryRejected, optchat.BadArgument) as error:
            tally.unrepaired.append(f"{left[0]} is not repaired: {error}")


def _worked(tally: Tally) -> Worked:
    return Worked(
        tally.scope, tally.done, tally.upgraded, tally.repaired, tally.calls, _calls_per_record(tally), tally.now
    )


def _calls_per_record(tally: Tally) -> float | None:
    return round(tally.calls.calls / tally.now.records, 4) if tally.now.records else None


def _per_record(tally: Tally) -> str:
    share = _calls_per_record(tally)
    return f", {share:.3g} calls a record" if share else ""


class Lines:
    """A line whenever something changed, now and then: for whoever reads it later."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._said, self._said_at = self._state(), time.monotonic()

    def _state(self) -> object:
        seen = [(tally.done, tally.now) for tally in self.board.tallies]
        return [(done, open_jobs(now), now.failures, now.paused, now.total) for done, now in seen]

    def say(self) -> None:
        state = self._state()
        if state != self._said and time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said, self._said_at = state, time.monotonic()
            output.note(self.board.figures())


@contextmanager
def _told_to_terminate() -> Generator[None]:
    """A request to terminate ends what stands in the block, in the thread that signals reach."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- working off -----------------------------------------------------------------------------------------------------


def work_off(memory: optchat.Memory) -> None:
    """
    Work a scope's jobs in this thread until none can run, or only after a long pause.

    In this thread, for an interrupt reaches it: the leases are given back before it is raised.
    """
    while (seconds := _until_resumed(memory.settle())) is not None:
        time.sleep(seconds)


def _until_resumed(status: optchat.Status) -> float | None:
    """How long to wait for the end of a pause; None: not at all."""
    if status.resumes_at is None or not open_jobs(status) or (status.paused or "").startswith(_KEY_TROUBLE):
        return None
    seconds = (status.resumes_at - datetime.now(UTC)).total_seconds()
    return None if seconds > PATIENCE_SECONDS else max(0.05, seconds)


@contextmanager
def looking(board: Board, show: Show | None) -> Generator[None]:
    """Look at scopes every now and then while this thread works them, and show what is seen."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(POLL_SECONDS):
            with suppress(optchat.OptchatError):  # whoever works meets it too, and says so
                board.look()
                if show is not None:
                    show(board.done, board.done + board.left, board.figures())

    thread = threading.Thread(target=look, name="optchat-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
