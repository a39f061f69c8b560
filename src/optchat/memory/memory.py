"""
Memory: one scope of one file (§ 11).

Decides: what opening, creating and closing mean.
Refuses to know: what a turn says.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, overload

from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.compactor.worker import Worker
from optchat.core.errors import BadArgument, ConfigError, SessionDeleted, UnknownRef
from optchat.core.forgetting import DeletionReceipt
from optchat.core.messages import HostMessage
from optchat.core.ports import HostAdapter, Tokenizer
from optchat.core.status import ResyncReport, Status, VerifyReport
from optchat.core.transcripts import Note
from optchat.engine import calls, forgetting, history, lifecycle, scrubbing, turns, upkeep, verification, work
from optchat.engine.handle import Scope
from optchat.engine.importing import load_file
from optchat.engine.neutral import NeutralAdapter
from optchat.engine.pins import kept_moment
from optchat.engine.sights import Reading, owner_reading
from optchat.engine.tokenizers import count_things
from optchat.memory.house import NAME_CHARACTERS, House, check_name, find_scope
from optchat.memory.reader import PinnedReader, Reader
from optchat.memory.session import Session
from optchat.memory.waiting import Steps, Stopped, never, wait_out
from optchat.store import backups, queue, registry, removals, scopes
from optchat.store.rows import Connection

M = TypeVar("M")
StrPath: TypeAlias = str | PathLike[str]
_POLL_SECONDS = 0.01


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
        check_name("key", key)
        check_name("host", host)
        row = self._find_session(host, key, recreate=recreate)
        _check_isolation(row, key, isolated)
        described = any(value is not None for value in (project, worktree, commit, title))
        if row is None or (described and not self._described(row, project, worktree, commit, title)):
            if row is None and not create:
                raise UnknownRef(f"no session {key!r} of host {host!r} is here; leave create out to begin it")
            self._house.writable()
            row = self._write_session(host, key, isolated, project, worktree, commit, title, recreate=recreate)
        return row

    def _find_session(self, host: str, key: str, *, recreate: bool) -> registry.SessionRow | None:
        with self._scope.store.read() as db:
            return self._present_session(db, host, key, recreate=recreate)

    def _present_session(self, db: Connection, host: str, key: str, *, recreate: bool) -> registry.SessionRow | None:
        """The session of a key. Its host may go on delivering to one that was deleted, and is told so."""
        scopes.check_live(db, self._scope.pk)
        row = registry.find_session(db, self._scope.pk, host, key)
        if row is None and not recreate and removals.is_forgotten(db, self._scope.pk, host, key):
            raise SessionDeleted(f"session {key!r} was deleted; recreate=True begins a new one")
        return row

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
        *,
        recreate: bool,
    ) -> registry.SessionRow:
        with self._scope.store.write(wait_seconds=self._scope.policy.lock_wait_seconds) as db:
            project_pk: int | None = None
            if project is not None:
                project_pk = scopes.find_project(db, project)
                if project_pk is None:
                    project_pk = scopes.create_project(db, "project-" + turns.random_id(12), project)
            row = self._present_session(db, host, key, recreate=recreate)
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
            return registry.create_session(
                db,
                session_id=lifecycle.free_session_id(db),
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
        if not alias or len(alias) > NAME_CHARACTERS:
            raise BadArgument(f"an alias is 1 to {NAME_CHARACTERS} characters; use the host's name for the project")
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
        row = find_scope(self._house.store, scope, self._house.policy, self._house.clock, create=self._house.create)
        opened = self._house.scope(row)
        if not self._house.store.read_only:
            work.arm_at_open(opened)
        return Memory(self._house, opened)

    @contextmanager
    def _pinned(self, snapshot_id: str | None) -> Generator[Reader]:
        with self._scope.store.read() as db:
            moment, pin = scopes.current_moment(db, self._scope.pk), 0
            if snapshot_id is not None:
                moment, pin = kept_moment(self._scope, db, snapshot_id)
            pinned = PinnedReader(self._house, self._scope, moment, pin)
            pinned.keep_view(db)
        yield pinned

    def pin(self, snapshot_id: str | None = None) -> AbstractContextManager[Reader]:
        """
        A reader that sees what a model would be shown, fixed at a moment (§ 9).

        Args:
            snapshot_id: of an earlier snapshot; None: now.

        Raises:
            UnknownRef: no such snapshot is kept here.
            SnapshotInvalid: something that it could see was removed since.
        """
        return self._pinned(snapshot_id)

    def count_tokens(self, *things: object, tokenizer: Tokenizer | None = None) -> int:
        """The tokens of text, or of what json.dumps takes, under a tokenizer (None: the memory's own)."""
        return count_things(*things, tokenizer=tokenizer or self._house.tokenizer)

    # ---- upkeep ------------------------------------------------------------------------------------------------------

    def settle(self, timeout_seconds: float | None = None) -> Status:
        """
        Work this scope's jobs here, or wait for the live worker's, until none can run or the time is over (§ 9).

        A job that is to be tried again in a moment is waited for; a pause, of trouble or by a ceiling, is not. What was
        removed from the file is erased for good after that, as far as nothing hinders it: see ``scrub_pending``.

        Args:
            timeout_seconds: None: no limit.

        Returns:
            The status then: ``pending``, ``running`` and ``failures`` say what is left, and why.
        """
        return wait_out(self._house, self._settling(timeout_seconds, never))

    def _settling(self, timeout_seconds: float | None, stopped: Stopped) -> Steps[Status]:
        """:meth:`settle` in steps; a step that works jobs ends soon after whoever waits has gone."""
        self._house.writable()
        started = self._house.clock.monotonic()

        def over() -> bool:
            late = timeout_seconds is not None and self._house.clock.monotonic() - started >= timeout_seconds
            return late or stopped()

        worker = self._house.worker
        if worker is not None and worker.running:
            worker.wake()
            while not over() and worker.running and self._can_run(worker):
                yield _POLL_SECONDS
                if self._house.closing.is_set():
                    break
        elif worker is not None:
            worker.work_off(self._scope, over)
        scrubbing.scrub(self._scope, lambda: over() or self._house.closing.is_set(), whole=True)
        return self.status()

    def _can_run(self, worker: Worker) -> bool:
        with self._scope.store.read() as db:
            named = scopes.scope_summarizer(db, self._scope.pk)
            return (
                queue.has_work(db, self._scope.pk)
                and (named is None or named == worker.summarizer.name)
                and (worker.is_rule or not calls.stopped(self._scope, db, self._scope.now()))
            )

    def retry_failed(self) -> int:
        """
        Make the scope's failed jobs ready again, with all their attempts, and end a pause; how many jobs.

        Counted are those that failed for good, and those that were to be tried again later.

        A ceiling that is still reached pauses again with the next call.
        """
        self._house.writable()
        return work.try_again(self._scope)

    def repair(self, ref: str) -> int:
        """
        Summarise a node anew, and every node that was made of it, up to the shared view; how many new revisions (§ 4).

        Each is asked of this handle's summarizer, with the new texts below it. Then all are committed in one
        transaction, with one new revision of each view that shows them. A stand-in becomes a summary so. Sources are
        never touched, and snapshots that were pinned before keep what they saw.

        Args:
            ref: of a summarised line: a session's ``session:…:0:8+4``, or ``pub:3+1``.

        Raises:
            MalformedRef, UnknownRef: it is no ref, or names nothing here.
            BadArgument: what it names is kept word for word, or not summarised yet.
            ConfigError: the scope is another summarizer's.
            SummaryRejected: no summary was to be had; nothing was changed.
            JobError: the provider is in trouble, summaries are paused, or the inputs changed; nothing was changed.
        """
        return self._repair(ref, never)

    def _repair(self, ref: str, stopped: Stopped) -> int:
        """:meth:`repair`; where whoever waits has gone, it is broken off, and nothing was changed."""
        self._house.writable()
        assert self._house.worker is not None, "a writable memory has one"
        return self._house.worker.repair(self._scope, ref, stopped)

    def status(self) -> Status:
        """The scope's state, in figures; never content."""
        worker = self._house.worker
        name = None if worker is None else worker.summarizer.name
        return upkeep.status(self._scope, name, ExtractiveSummarizer().name)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """
        Derive again what is stored, and compare: hashes, covers, nodes, views, visibility, the search index, counters.

        Each fault has a code (:mod:`optchat.core.faults`), a ref where one names its place, and what to do about it. It
        reads in short steps: nobody waits for it, and what others change meanwhile is no fault.

        Args:
            repair: make anew what is derived and wrong: views, nodes (as stand-ins until they are summarised again),
                the search index, counters, jobs. Sources are never touched. Each step is one short transaction, and
                repairing again changes nothing.

        Returns:
            Every fault that was found; with ``repair``, those that are left, and how many were repaired.

        Raises:
            StoreReadOnly: a repair on a handle that was opened with mode="ro".
            StoreBusy, StoreFull: a step of the repair could not be written; what was repaired before stays.
        """
        if repair:
            self._house.writable()
        return verification.verify(self._scope, repair=repair)

    def backup(self, path: StrPath) -> None:
        """
        Copy the whole file, every scope of it, as of one moment, to a path that does not exist.

        It is copied in small steps under one read transaction: nobody waits, and writers that go on do not make it
        begin again; the log grows by what they write meanwhile. Atomic: the whole copy appears at the path, synced, or
        nothing does. It can be read and written by its owner alone. What was removed and not scrubbed yet is in it
        (``Status.scrub_pending``). Opening it is like opening the file after its processes died: their turns end.

        Raises:
            BadArgument: something is at the path already, or its folder is not there.
            StoreFull, StoreReadOnly: there is no room, or the folder may not be written; nothing is left behind.
        """
        backups.copy_to(self._house.store, path)

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

    def delete_scope(self) -> DeletionReceipt:
        """
        Delete this scope with every session in it (§ 12). Other scopes of the file are not concerned.

        By the time this returns every read and every write by a handle of it is refused. Its bytes leave the file after
        that, in the background or by ``settle()`` of any handle of the file.

        Returns:
            What was removed, and what cannot be undone.

        Atomic. Idempotent: again, the same receipt, which says whether its bytes are gone.
        """
        self._house.writable()
        return forgetting.delete_scope(self._scope)

    def close(self) -> None:
        """End this handle's open turns as interrupted, stop its worker, close the file. Idempotent."""
        self._house.close()

    def __enter__(self) -> Memory:  # noqa: PYI034 - the contract names the class
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /) -> None:
        self.close()


def _check_isolation(row: registry.SessionRow | None, key: str, isolated: bool) -> None:
    """A session stays what it was made as: shared by mistake, it would publish what was to be kept apart."""
    if row is not None and row.isolated != isolated:
        is_so, asked = ("isolated", "shared") if row.isolated else ("shared", "isolated")
        raise ConfigError(f"session {key!r} is {is_so} and was opened as {asked}; open it as it was made")
