"""
Memory: one scope of one file (§ 11).

Decides: what opening, creating and closing mean.
Refuses to know: what a turn says.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, overload

from attrs import frozen

from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.compactor.worker import Worker
from optchat.core.errors import BadArgument, ConfigError, SessionDeleted, UnknownRef
from optchat.core.messages import HostMessage
from optchat.core.policy import (
    DEFAULT_NODE_BYTES,
    DEFAULT_VIEW_HIGH_BYTES,
    DEFAULT_VIEW_LOW_BYTES,
    Policy,
)
from optchat.core.ports import Clock, HostAdapter, Summarizer, Tokenizer
from optchat.core.records import LEAF_FORMAT
from optchat.core.status import ResyncReport, Status, VerifyReport
from optchat.core.transcripts import Note
from optchat.core.words import VERSION as PRETOKENIZER
from optchat.engine import history, turns, upkeep, verifying as verification, work
from optchat.engine.handle import Scope, microseconds
from optchat.engine.importing import load_file
from optchat.engine.neutral import NeutralAdapter
from optchat.engine.sights import Reading, kept_moment, owner_reading
from optchat.engine.tokenizers import count_things, tokenizer_for
from optchat.memory.house import House, SystemClock
from optchat.memory.reader import PinnedReader, Reader
from optchat.memory.session import Session
from optchat.store import queue, registry, scopes
from optchat.store.connection import Store
from optchat.store.rows import Connection
from optchat.store.scopes import ScopeRow

M = TypeVar("M")
StrPath: TypeAlias = str | PathLike[str]
_POLL_SECONDS = 0.01
_NAME_CHARACTERS = 500


class Memory(Reader):
    """One scope of one file. Thread-safe; refused after os.fork()."""

    def __init__(self, house: House, scope: Scope) -> None:
        """Made by :func:`optchat.open`."""
        self._house, self._scope = house, scope
        self.path: Path = house.store.path
        self.scope: str = scope.row.name

    def __repr__(self) -> str:
        return f"<Memory {self.path} scope={self.scope!r}>"

    def _eyes(self, db: Connection) -> Reading:
        return owner_reading(self._scope, db)

    # ---- sessions ----------------------------------------------------------------------------------------------------

    @overload
    def session(
        self,
        key: str,
        *,
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> Session[HostMessage]: ...
    @overload
    def session(
        self,
        key: str,
        *,
        adapter: HostAdapter[M],
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> Session[M]: ...
    def session(
        self,
        key: str,
        *,
        adapter: HostAdapter[Any] | None = None,
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> Session[Any]:
        """
        The session of a host's key, made if it is not there; in whatever process, the same one (§ 12).

        Args:
            key: the host's own id of the conversation.
            adapter: the host's codec; None: messages are neutral ones.
            host: the host's name; the same key of another host is another session.
            project, worktree, commit: provenance, kept with what is said; they refuse and grant nothing.
            title: for people.
            isolated: it neither publishes nor reads what is shared. Fixed when the session is made.
            create: False: it must be there.
            recreate: begin a new one where the old one was deleted.

        Raises:
            UnknownRef: it is not there, and ``create`` is False.
            ConfigError: it is there, and not isolated as asked.
            SessionDeleted: it was deleted, and ``recreate`` is False.
        """
        row = self._session_row(
            key, host, project, worktree, commit, title, isolated=isolated, create=create, recreate=recreate
        )
        return Session(self._house, self._scope, row, NeutralAdapter() if adapter is None else adapter)

    def _session_row(
        self,
        key: str,
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        *,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> registry.SessionRow:
        for name, value in (("key", key), ("host", host)):
            if not isinstance(value, str) or not 0 < len(value) <= _NAME_CHARACTERS or not value.isprintable():
                raise BadArgument(
                    f"a session's {name} is 1 to {_NAME_CHARACTERS} printable characters; use the host's id"
                )
        row = self._find_session(host, key)
        _check_isolation(row, key, isolated)
        described = any(value is not None for value in (project, worktree, commit, title))
        if row is None or (described and not self._described(row, project, worktree, commit, title)):
            if row is None and not create:
                raise UnknownRef(f"no session {key!r} of host {host!r} is here; leave create out to begin it")
            self._house.writable()
            row = self._write_session(host, key, isolated, project, worktree, commit, title)
        if row.state == "deleted" and not recreate:
            raise SessionDeleted(f"session {key!r} was deleted; recreate=True begins a new one")
        return row

    def _find_session(self, host: str, key: str) -> registry.SessionRow | None:
        with self._scope.store.read() as db:
            return registry.find_session(db, self._scope.pk, host, key)

    def _described(
        self, row: registry.SessionRow, project: str | None, worktree: str | None, commit: str | None, title: str | None
    ) -> bool:
        """Whether the session knows all of that already: the common reopening writes nothing."""
        with self._scope.store.read() as db:
            found = None if project is None else scopes.find_project(db, project)
        same_project = project is None or (found is not None and found == row.project_pk)
        pairs = ((worktree, row.worktree), (commit, row.commit_id), (title, row.title))
        return same_project and all(given is None or given == known for given, known in pairs)

    def _write_session(
        self,
        host: str,
        key: str,
        isolated: bool,
        project: str | None,
        worktree: str | None,
        commit: str | None,
        title: str | None,
    ) -> registry.SessionRow:
        with self._scope.store.write(wait_seconds=self._scope.policy.lock_wait_seconds) as db:
            project_pk: int | None = None
            if project is not None:
                project_pk = scopes.find_project(db, project)
                if project_pk is None:
                    project_pk = scopes.create_project(db, "project-" + turns.random_id(12), project)
            row = registry.find_session(db, self._scope.pk, host, key)
            _check_isolation(row, key, isolated)
            if row is not None:  # made meanwhile, or to be described anew
                changes: dict[str, str | int | None] = {
                    "title": title,
                    "project_pk": project_pk,
                    "worktree": worktree,
                    "commit_id": commit,
                }
                registry.describe_session(db, row.session_pk, changes)
                return registry.session_by_pk(db, row.session_pk)
            session_id = turns.random_id(8)
            while registry.session_id_taken(db, session_id):
                session_id = turns.random_id(8)
            return registry.create_session(
                db,
                session_id=session_id,
                scope_pk=self._scope.pk,
                host=host,
                key=key,
                isolated=isolated,
                title=title,
                project_pk=project_pk,
                worktree=worktree,
                commit_id=commit,
                at=self._scope.now(),
            )

    def session_by_id(self, session_id: str) -> Session[HostMessage]:
        """
        The session of one of our ids, as lines and results name it.

        Raises:
            UnknownRef: none in this scope.
        """
        with self._scope.store.read() as db:
            row = registry.session_by_id(db, self._scope.pk, session_id)
        if row is None or row.state == "deleted":
            raise UnknownRef(f"no session {session_id[:20]!r} is here; sessions() lists those that are")
        return Session(self._house, self._scope, row, NeutralAdapter())

    def link_project(self, project: str, alias: str) -> None:
        """
        Give a project another name that a host has for it: a path, a remote, an id.

        Raises:
            UnknownRef: no session named that project yet.
            ConfigError: the alias names another project.

        Idempotent.
        """
        self._house.writable()
        if not alias or len(alias) > _NAME_CHARACTERS:
            raise BadArgument(f"an alias is 1 to {_NAME_CHARACTERS} characters; use the host's name for the project")
        with self._scope.store.write(wait_seconds=self._scope.policy.lock_wait_seconds) as db:
            found, taken = scopes.find_project(db, project), scopes.find_project(db, alias)
            if found is None:
                raise UnknownRef(f"no project {project!r} is known here; name it in session(project=...) first")
            if taken is not None and taken != found:
                raise ConfigError(f"{alias!r} already names another project; two projects cannot be made one")
            if taken is None:
                scopes.add_alias(db, found, alias)

    # ---- other handles -----------------------------------------------------------------------------------------------

    def scoped(self, scope: str) -> Memory:
        """
        Another scope of the same file, with the same connections and worker; close only the handle that was opened.

        Raises:
            ConfigError: it is not there, and the file was not opened with mode "rwc".
        """
        row = _find_scope(self._house.store, scope, self._house.policy, self._house.clock, create=self._house.create)
        return Memory(self._house, self._house.scope(row))

    @contextmanager
    def _pinned(self, snapshot_id: str | None) -> Generator[Reader]:
        with self._scope.store.read() as db:
            moment = (
                scopes.current_moment(db, self._scope.pk)
                if snapshot_id is None
                else kept_moment(self._scope, db, snapshot_id)
            )
            pinned = PinnedReader(self._house, self._scope, moment)
            pinned.keep_view(db)
        yield pinned

    def pin(self, snapshot_id: str | None = None) -> AbstractContextManager[Reader]:
        """
        A reader that sees what a model would be shown, fixed at a moment (§ 9).

        Args:
            snapshot_id: of an earlier snapshot; None: now.

        Raises:
            UnknownRef: no such snapshot is kept here.
            SnapshotInvalid: something was removed since.
        """
        return self._pinned(snapshot_id)

    def count_tokens(self, *things: object, tokenizer: Tokenizer | None = None) -> int:
        """The tokens of text, or of what json.dumps takes, under a tokenizer (None: the memory's own)."""
        return count_things(*things, tokenizer=tokenizer or self._house.tokenizer)

    # ---- upkeep ------------------------------------------------------------------------------------------------------

    def settle(self, timeout_seconds: float | None = None) -> Status:
        """
        Work this scope's jobs here, or wait for the live worker's, until none can run or the time is over.

        Args:
            timeout_seconds: None: no limit.

        Returns:
            The status then: ``pending``, ``running`` and ``failures`` say what is left, and why.
        """
        self._house.writable()
        started = self._house.clock.monotonic()

        def over() -> bool:
            return timeout_seconds is not None and self._house.clock.monotonic() - started >= timeout_seconds

        worker = self._house.worker
        if worker is not None and worker.running:
            worker.wake()
            while not over() and worker.running and self._can_run(worker):
                time.sleep(_POLL_SECONDS)
        elif worker is not None:
            worker.work_off(self._scope, over)
        return self.status()

    def _can_run(self, worker: Worker) -> bool:
        with self._scope.store.read() as db:
            named = scopes.scope_summarizer(db, self._scope.pk)
            return queue.has_work(db, self._scope.pk) and (named is None or named == worker.summarizer.name)

    def retry_failed(self) -> int:
        """Make the scope's failed jobs ready again, with all their attempts; how many."""
        self._house.writable()
        with self._scope.store.write(wait_seconds=self._scope.policy.lock_wait_seconds) as db:
            count = queue.rearm(db, self._scope.pk, self._scope.now())
        self._scope.wake()
        return count

    def status(self) -> Status:
        """The scope's state, in figures; never content."""
        worker = self._house.worker
        name = worker.summarizer.name if worker is not None else ExtractiveSummarizer().name
        return upkeep.status(self._scope, name, ExtractiveSummarizer().name)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """
        Check what is stored against itself: hashes, covers, views, publications, the search index, jobs.

        Args:
            repair: make views anew where they are wrong. Sources are never touched.

        Returns:
            Every fault that was found; with ``repair``, those that are left.
        """
        if repair:
            self._house.writable()
        return verification.verify(self._scope, repair=repair)

    def import_file(self, path: StrPath) -> ResyncReport:
        """
        Store a transcript, or plain text as a note, keeping its times (§ 3).

        The file is validated whole before anything is stored, and half of a session never is: each session is one
        transaction. Idempotent: importing again changes nothing; a file that has grown adds what is new.

        Raises:
            ImportRejected: a bad line, with its number.
            BadArgument: no such file.
        """
        self._house.writable()
        loaded = load_file(path)
        kept = sealed = made = 0
        if isinstance(loaded, Note):
            row = self._session_row(Path(path).name)
            done = history.import_note(self._scope, row, loaded.text, loaded.turn_id)
            return ResyncReport(done.kept, 0, done.sealed, done.turns, {})
        for each in loaded.sessions:
            done = history.import_turns(self._scope, self._session_row(each.key), each.turns)
            kept, sealed, made = kept + done.kept, sealed + done.sealed, made + done.turns
        return ResyncReport(kept, 0, sealed, made, dict(loaded.skipped))

    def close(self) -> None:
        """End this handle's open turns as interrupted, stop its worker, close the file. Idempotent."""
        self._house.close()

    def __enter__(self) -> Memory:  # noqa: PYI034 - the contract names the class
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /) -> None:
        self.close()


def open(
    path: StrPath,
    *,
    scope: str,
    summarizer: Summarizer | None = None,
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
) -> Memory:
    """:func:`open` with a clock, for tests and tools."""
    if not isinstance(scope, str) or not 0 < len(scope) <= _NAME_CHARACTERS or not scope.isprintable():
        raise BadArgument(f"a scope is a name of 1 to {_NAME_CHARACTERS} printable characters, like 'project-17'")
    store = Store.open(path, mode=mode, lock_wait_seconds=policy.lock_wait_seconds, clock=clock)
    try:
        worker = None if mode == "ro" else Worker(summarizer or ExtractiveSummarizer())
        house = House(store, policy, clock, tokenizer or tokenizer_for(), worker, create=mode == "rwc")
        row = _find_scope(store, scope, policy, clock, create=mode == "rwc")
        opened = house.scope(row)
        if worker is not None:
            turns.end_abandoned(opened)
            work.end_dead_leases(opened)
            if background:
                worker.start()
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
        tokenizer=house.tokenizer,
        policy=house.policy,
        background=False,
        mode="ro" if house.store.read_only else "rwc" if house.create else "rw",
        clock=house.clock,
    )


def _check_isolation(row: registry.SessionRow | None, key: str, isolated: bool) -> None:
    """A session stays what it was made as: shared by mistake, it would publish what was to be kept apart."""
    if row is not None and row.isolated != isolated:
        is_so, asked = ("isolated", "shared") if row.isolated else ("shared", "isolated")
        raise ConfigError(f"session {key!r} is {is_so} and was opened as {asked}; open it as it was made")


def _find_scope(store: Store, name: str, policy: Policy, clock: Clock, *, create: bool) -> ScopeRow:
    """The scope of a name, made if it may be; its format must be what the policy asks for."""
    with store.read() as db:
        row = scopes.find_scope(db, name)
    if row is None:
        if not create:
            raise ConfigError(f"no scope {name!r} in {store.path}; check the name, or open with mode='rwc' to make it")
        with store.write(wait_seconds=policy.lock_wait_seconds) as db:
            row = scopes.find_scope(db, name) or scopes.create_scope(
                db,
                name=name,
                node_bytes=policy.node_bytes or DEFAULT_NODE_BYTES,
                view_high_bytes=policy.view_high_bytes or DEFAULT_VIEW_HIGH_BYTES,
                view_low_bytes=policy.view_low_bytes or DEFAULT_VIEW_LOW_BYTES,
                pretokenizer=PRETOKENIZER,
                leaf_format=LEAF_FORMAT,
                at=microseconds(clock.now()),
            )
    for setting in ("node_bytes", "view_high_bytes", "view_low_bytes"):
        asked, kept = getattr(policy, setting), getattr(row, setting)
        if asked is not None and asked != kept:
            raise ConfigError(
                f"scope {name!r} has {setting}={kept}, not {asked}: it is the scope's format; leave it out of the"
                f" policy"
            )
    return row


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
