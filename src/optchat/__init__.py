"""optchat: shared hierarchical memory for independent agent conversations."""

from optchat.core.budget import Budget, TokenUse
from optchat.core.context import MEMORY_GUIDANCE, Context, ContextReceipt
from optchat.core.errors import (
    BadArgument,
    BadCursor,
    ConfigError,
    ContextTooLarge,
    CoverTooLarge,
    GenerationSuperseded,
    HostUnsupported,
    ImportRejected,
    IngestError,
    InputsChanged,
    IntegrityError,
    JobError,
    LeaseLost,
    MalformedRef,
    MemoryNotReady,
    NotOurFile,
    OptchatError,
    RefError,
    ResyncNeeded,
    RevisionConflict,
    SchemaTooNew,
    SessionBusy,
    SessionDeleted,
    SnapshotInvalid,
    StaleRef,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    SummariesPending,
    SummaryRejected,
    ToolProtocolError,
    TurnEnded,
    UnknownRef,
)
from optchat.core.jobs import Calls, JobFailure
from optchat.core.messages import (
    BlobPart,
    Content,
    HitKind,
    HostMessage,
    Outcome,
    Part,
    RecordKind,
    ReportPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from optchat.core.policy import Policy, Readiness
from optchat.core.ports import (
    BlockKind,
    HostAdapter,
    HostInfo,
    MemoryBlock,
    Reply,
    Summarizer,
    Support,
    Tokenizer,
    WireAdapter,
    summarizer,
)
from optchat.core.retrieval import (
    Dates,
    Hit,
    Line,
    Order,
    Page,
    SearchPage,
    SessionInfo,
    SourceRecord,
    TurnInfo,
    View,
    When,
    ZoomResult,
)
from optchat.core.snapshots import Snapshot
from optchat.core.status import Fault, ResyncReport, Status, VerifyReport
from optchat.core.summarizing import PromptMessage, SourceLine, SummaryReply, SummaryRequest
from optchat.core.tools import MemoryTool, ToolOutput, Tools
from optchat.engine.tokenizers import tokenizer_for
from optchat.memory import Memory, Reader, Session, Turn, open  # noqa: A004 - `optchat.open` is the contract's name

__all__ = sorted(name for name in globals() if not name.startswith("_"))
