"""
The whole error hierarchy.

Decides: what can go wrong, whose fault it is, and whether trying again can help.
Refuses to know: anything but the words and figures of ``terms``.

::

    OptchatError                      code, retryable
    ├── BadArgument (ValueError)      the caller's value: a naive time, a limit, a query too long
    ├── ConfigError                   settings that contradict the file, or each other
    │   └── HostUnsupported           a host's version, a missing hook, a hook that never ran
    ├── RefError
    │   ├── MalformedRef              not a ref at all
    │   ├── BadCursor                 of another query, or older than what is kept
    │   ├── UnknownRef                absent, or another scope's: the two are not told apart
    │   └── StaleRef                  a short ref at or above a rewind boundary (candidates)
    ├── IngestError
    │   ├── RevisionConflict          the same revision with other content
    │   ├── GenerationSuperseded      the handle's generation was rewound
    │   ├── ResyncNeeded              the host's history differs from what is sealed
    │   ├── ImportRejected            a bad line of a file (line)
    │   ├── SessionDeleted            the host goes on delivering to a deleted session
    │   ├── TurnEnded                 sealing into a turn that has its outcome (outcome)
    │   └── SessionBusy               the open turn is alive elsewhere (open_turn_id)
    ├── MemoryNotReady                missing, since, failures, paused, resumes_at, waited_seconds
    │   ├── SummariesPending          waiting can help
    │   └── CoverTooLarge             waiting cannot: a larger budget can
    ├── SnapshotInvalid               a removal touched what the snapshot could see
    ├── ToolProtocolError             a request whose tool calls and results do not pair
    ├── ContextTooLarge               the parts do not fit the window (tokens)
    ├── JobError
    │   ├── LeaseLost                 another worker holds the job now
    │   ├── InputsChanged             what was summarised is no longer what is stored
    │   └── SummaryRejected           a reply that breaks the rules for a summary
    ├── IntegrityError                stored data contradicts itself
    └── StoreError
        ├── StoreBusy                 the writer lock's deadline passed; the message names the holder
        ├── StoreReadOnly             read-only media, or mode="ro"
        ├── StoreFull                 the disk is full
        ├── NotOurFile                a directory, or somebody else's file
        └── SchemaTooNew              written by a newer optchat

Every message ends in what to do. Every error pickles. A driver's error is a cause, never what the caller sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

from optchat.core.terms import JobFailure, Outcome, TokenUse


class OptchatError(Exception):
    """The base of every error that this library raises on purpose."""

    code: ClassVar[str] = "OPTCHAT_ERROR"
    retryable: ClassVar[bool] = False


class BadArgument(OptchatError, ValueError):
    """A value that no state of the memory could make right."""

    code = "BAD_ARGUMENT"


class ConfigError(OptchatError):
    """Settings that contradict the file, the installation, or each other."""

    code = "CONFIG"


class HostUnsupported(ConfigError):
    """A host whose version or hooks cannot carry memory."""

    code = "HOST_UNSUPPORTED"


class RefError(OptchatError):
    """A ref or cursor that resolves to nothing this reader may see."""

    code = "REF"


class MalformedRef(RefError):
    """Text that is no ref: the grammar, a count that is no power of two, or a start that is not aligned to it."""

    code = "MALFORMED_REF"


class BadCursor(RefError):
    """A cursor of another query, or older than what is kept."""

    code = "BAD_CURSOR"


class UnknownRef(RefError):
    """A well-formed ref that names nothing here. Another scope's ref gives the very same error."""

    code = "UNKNOWN_REF"


class StaleRef(RefError):
    """A short ref at or above a rewind boundary: it must name its generation."""

    code = "STALE_REF"

    def __init__(self, message: str = "", *, candidates: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class IngestError(OptchatError):
    """Something that was delivered cannot be sealed."""

    code = "INGEST"


class RevisionConflict(IngestError):
    """An event key that is sealed already, with other content under the same revision."""

    code = "REVISION_CONFLICT"


class GenerationSuperseded(IngestError):
    """The turn's generation was rewound while the turn was open."""

    code = "GENERATION_SUPERSEDED"


class ResyncNeeded(IngestError):
    """The host edited, removed or reordered what is sealed."""

    code = "RESYNC_NEEDED"


class ImportRejected(IngestError):
    """A file that was refused whole; ``line`` is the first bad one, counted from 1 (0: the file itself)."""

    code = "IMPORT_REJECTED"

    def __init__(self, message: str = "", *, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class SessionDeleted(IngestError):
    """A session that was deleted; ``session(..., recreate=True)`` begins a new one."""

    code = "SESSION_DELETED"


class TurnEnded(IngestError):
    """New content for a turn that has its outcome."""

    code = "TURN_ENDED"

    def __init__(self, message: str = "", *, outcome: Outcome = "interrupted") -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome


class SessionBusy(IngestError):
    """The session's open turn belongs to a live process (or ``if_open="refuse"`` was asked for)."""

    code = "SESSION_BUSY"
    retryable = True

    def __init__(self, message: str = "", *, open_turn_id: str = "") -> None:
        super().__init__(message)
        self.open_turn_id = open_turn_id


class MemoryNotReady(OptchatError):
    """The view cannot cover the prefix that the request needs (§ 6)."""

    code = "MEMORY_NOT_READY"
    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        missing: Sequence[str] = (),
        since: datetime = datetime.fromtimestamp(0, UTC),
        failures: Sequence[JobFailure] = (),
        paused: str | None = None,
        resumes_at: datetime | None = None,
        waited_seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.since = since
        self.failures = tuple(failures)
        self.paused = paused
        self.resumes_at = resumes_at
        self.waited_seconds = waited_seconds


class SummariesPending(MemoryNotReady):
    """Summaries that the view needs are not there yet: waiting can help."""

    code = "SUMMARIES_PENDING"


class CoverTooLarge(MemoryNotReady):
    """Even the coarsest cover exceeds the budget: waiting cannot help, a larger window can."""

    code = "COVER_TOO_LARGE"
    retryable = False


class SnapshotInvalid(OptchatError):
    """A removal touched what the snapshot could see, and the policy says to fail."""

    code = "SNAPSHOT_INVALID"


class ToolProtocolError(OptchatError):
    """A request whose tool calls and results would not pair as providers require."""

    code = "TOOL_PROTOCOL"


class ContextTooLarge(OptchatError):
    """The fixed parts of a request exceed the window; ``tokens`` says which."""

    code = "CONTEXT_TOO_LARGE"

    def __init__(self, message: str = "", *, tokens: TokenUse | None = None) -> None:
        super().__init__(message)
        self._tokens = tokens

    @property
    def tokens(self) -> TokenUse:
        """What each part of the request costs, and the window that they pass."""
        if self._tokens is None:  # only an error built by hand, without its figures, has none
            raise AttributeError("this ContextTooLarge was made without its token use")
        return self._tokens


class JobError(OptchatError):
    """A job's result could not be taken."""

    code = "JOB"


class LeaseLost(JobError):
    """Another worker holds the job now: the result is dropped, which is no failure."""

    code = "LEASE_LOST"


class InputsChanged(JobError):
    """What was summarised is no longer what is stored: the job is done anew."""

    code = "INPUTS_CHANGED"


class SummaryRejected(JobError):
    """
    No reply was a summary; the message names the rules that were broken, never content.

    ``refused``: the summarizer declined. Asking it again would not help, another one may (§ 10).
    """

    code = "SUMMARY_REJECTED"

    def __init__(self, message: str = "", *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class IntegrityError(OptchatError):
    """Stored data contradicts itself; ``verify()`` names every such place."""

    code = "INTEGRITY"


class StoreError(OptchatError):
    """The database file, its folder or its disk."""

    code = "STORE"


class StoreBusy(StoreError):
    """The writer lock was not had before the deadline."""

    code = "STORE_BUSY"
    retryable = True


class StoreReadOnly(StoreError):
    """Read-only media, or a handle opened with ``mode="ro"``."""

    code = "STORE_READ_ONLY"


class StoreFull(StoreError):
    """The disk is full; what was acknowledged before is safe."""

    code = "STORE_FULL"
    retryable = True


class NotOurFile(StoreError):
    """A directory, or a file that optchat did not write. It is left untouched."""

    code = "NOT_OUR_FILE"


class SchemaTooNew(StoreError):
    """A database of a newer optchat. It is left untouched."""

    code = "SCHEMA_TOO_NEW"
