"""
The conversation with a summarizer (§ 10), as a generator: request out, reply in, accepted summary or failure.

Decides: what a summarizer is asked, which replies are summaries, what is said about one that is not, and how a text
tells who speaks in it and that something in it was not completed. Refuses to know: the network, threads, and where
the sources came from.

A text that this library keeps is one or more lines ``[<mark> ]<kind>: words``: the kind is the true author, the mark
is ``failed:``, ``interrupted:`` or ``[not summarised…]``. Whoever makes a text, a rule or a model, the same rules
accept it:

- text ≤ the limit in UTF-8 bytes; escaped, at most its children's bytes together + 1, where it has children;
- not empty, not stopped by the output limit, no damaged characters, not the request's own words;
- ``user:`` as a label only where the user spoke (quoted text excepted);
- the text of a turn that failed or was interrupted says so. The mark is put there by this room and not by the
  summarizer:
  what honesty depends on (§ 5) is not left to a reply. Room for it is taken off the limit that is asked for.

The first reply that keeps the rules is accepted; nothing is ever cut to fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from optchat.core import prompts
from optchat.core.clip import clip, cut_index
from optchat.core.errors import BadArgument, SummaryRejected
from optchat.core.records import KINDS
from optchat.core.render import encodable, escaped_size
from optchat.core.terms import HitKind, Outcome

Purpose: TypeAlias = Literal["leaf", "merge", "chunk", "publication"]

STAND_IN_MARK: Final = "[not summarised]"
OUTCOME_MARKS: Final[dict[Outcome, str]] = {"completed": "", "failed": "failed: ", "interrupted": "interrupted: "}


@frozen
class SourceLine:
    """One input of a summary: a record, a page of one, or a child node."""

    kind: HitKind
    text: str
    at: datetime
    stand_in: bool = False


@frozen
class PromptMessage:
    """One message for a model; ``cache``: a stable prefix ends here."""

    role: Literal["user", "assistant"]
    text: str
    cache: bool = False


@frozen
class SummaryRequest:
    """Structured for rules, rendered for models; both say the same."""

    purpose: Purpose
    limit_bytes: int
    sources: tuple[SourceLine, ...]
    outcome: Outcome | None
    system: str
    messages: tuple[PromptMessage, ...]
    attempt: int
    max_output_tokens: int
    timeout_seconds: float
    limit_escaped_bytes: int | None = None  # of the text as rendered; None: without limit

    def chat(self) -> list[dict[str, str]]:
        """The system text and the messages as role and content."""
        return [
            {"role": "system", "content": self.system},
            *({"role": message.role, "content": message.text} for message in self.messages),
        ]


@frozen
class SummaryReply:
    """What a summarizer answered; ``cut_off``: by the output limit."""

    text: str
    refused: bool = False
    cut_off: bool = False
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None


@frozen(kw_only=True)
class SummaryJob:
    """
    What is to be summarised, and what is known about it from structure.

    ``sources`` are records (or pages of one) as they were spoken, or child nodes. A verbatim child is given with its
    record's kind, any other with the kind ``summary``; the ``kind: `` at the head of a leaf's text may stay or not.
    """

    purpose: Purpose
    sources: tuple[SourceLine, ...]
    limit_bytes: int
    outcome: Outcome | None = None  # publications only: how the turn ended
    children_escaped_bytes: int | None = None  # merges only: the bytes of both children's texts as rendered
    user_spoke: bool | None = None  # whether a user's record is in the span; None: as the sources tell
    context: str = ""  # earlier lines of the same conversation, rendered; shared by consecutive jobs

    def __attrs_post_init__(self) -> None:
        if not self.sources:
            raise BadArgument("a summary needs a source; a span without records has none")
        if self.limit_bytes - len(self.mark) < 1:
            raise BadArgument("limit_bytes leaves no room for a summary; 512 is the default")

    @property
    def mark(self) -> str:
        """What the text must begin with because of how the turn ended; "" where nothing is to be said."""
        return OUTCOME_MARKS[self.outcome] if self.outcome is not None else ""

    @property
    def limit_escaped_bytes(self) -> int | None:
        """The most bytes as rendered: without this bound a heavy parent would block its ancestors for ever (§ 6)."""
        return None if self.children_escaped_bytes is None else self.children_escaped_bytes + 1


@frozen
class Accepted:
    """A reply that is a summary: its text as it is to be stored, its sizes, and how many were asked for."""

    text: str
    text_bytes: int
    escaped_bytes: int
    attempts: int
    reply: SummaryReply


@frozen
class Rejection:
    """Why a reply is none, in words that hold no content, and what the summarizer is told."""

    reason: str
    feedback: str


# ---- who speaks ------------------------------------------------------------------------------------------------------

_KIND_WORDS: Final = "|".join(KINDS)
_MARKS: Final = r"(?:(?:failed|interrupted):\s+|\[not summarised[^\]\n]{0,80}\]\s*|\[-\]\s*)"
# A label stands where a part of the text begins: at the start of a line, or after what ends a sentence or a clause.
_LABEL: Final = re.compile(rf"(?:\A|[\n;|.!?])[ \t]*{_MARKS}*({_KIND_WORDS}):(?=\s|\Z)", re.IGNORECASE)
_QUOTED: Final = re.compile(r"\"[^\"\n]*\"|`[^`\n]*`|“[^”\n]*”|«[^»\n]*»|^>.*$", re.MULTILINE)
_LABEL_IN_DATA: Final = re.compile(rf"((?:\A|[\n;|.!?])[ \t]*{_MARKS}*)({_KIND_WORDS})(?=:(?:\s|\Z))", re.IGNORECASE)
_USER_IN_DATA: Final = re.compile(_LABEL_IN_DATA.pattern.replace(_KIND_WORDS, "user"), re.IGNORECASE)


def own_labels(text: str) -> frozenset[str]:
    """The kinds that a text names as authors of its own parts; a label in quotation marks is quoted, not claimed."""
    if ":" not in text:
        return frozenset()
    return frozenset(match[1].lower() for match in _LABEL.finditer(_QUOTED.sub('""', text)))


def quote_labels(text: str, kind: Literal["user"] | None = None) -> str:
    """Data in which a part begins like a label (of a kind; None: of any), with that word in quotation marks."""
    if ":" not in text:
        return text
    return (_USER_IN_DATA if kind else _LABEL_IN_DATA).sub(r'\1"\2"', text)


def user_spoke(sources: Sequence[SourceLine]) -> bool:
    """
    Whether the user may be named as an author: some source is the user's, or is a summary that names the user.

    By induction this is as good as looking at the records, for a summary that names the user was accepted by this rule.
    """
    return any(
        source.kind == "user" or (source.kind == "summary" and "user" in own_labels(source.text)) for source in sources
    )


def marked(text: str, outcome: Outcome | None) -> str:
    """
    The text of a turn with how it ended, unless it was completed: on each line that names an author, and on the first.

    A merge may later keep only one of the lines; then the mark is still there.
    """
    mark = OUTCOME_MARKS[outcome] if outcome is not None else ""
    if not mark:
        return text
    lines = text.split("\n")
    return "\n".join(
        mark + line if not line.startswith(mark) and (not number or own_labels(line)) else line
        for number, line in enumerate(lines)
    )


# ---- what is a summary -----------------------------------------------------------------------------------------------

_DAMAGE: Final = re.compile("[\ud800-\udfff\ufffd]")


def judge(job: SummaryJob, reply: SummaryReply) -> str | Rejection:
    """
    A reply's text as it is to be stored, or why it is no summary.

    A refusal is not judged here: it says nothing about the text.
    """
    said = reply.text.strip()
    if not said:
        return _rejected("it is empty")
    if reply.cut_off:
        return _rejected("it was stopped by the output limit before it ended")
    if _SURROGATE.search(said) or ("\ufffd" in said and not any(_DAMAGE.search(line.text) for line in job.sources)):
        return _rejected("it holds damaged characters")
    if prompts.echoes(said, job.sources):
        return _rejected("it repeats the request instead of summarising the text")
    allowed = user_spoke(job.sources) if job.user_spoke is None else job.user_spoke
    if not allowed and "user" in own_labels(said):
        return _rejected('it names the user as an author ("user:"), and the user wrote none of the text')
    text = marked(said, job.outcome)
    size = len(text.encode())
    if size > job.limit_bytes:
        room = job.limit_bytes - (size - len(said.encode()))
        before_cut = said[: cut_index(said, room)][-40:]
        return Rejection(
            f"it has {size} bytes, the limit is {job.limit_bytes}",
            prompts.too_long_text(len(said.encode()), room, before_cut),
        )
    limit = job.limit_escaped_bytes
    if limit is not None and escaped_size(text) > limit:
        return Rejection(
            f"it is heavier than its children: {escaped_size(text)} bytes as rendered, at most {limit} allowed",
            prompts.too_heavy_text(escaped_size(text), limit),
        )
    return text


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _rejected(reason: str) -> Rejection:
    return Rejection(reason, prompts.rejected_text(reason))


# ---- the conversation ------------------------------------------------------------------------------------------------

# A reply that is far too long is not sent back whole: five of them would cost more than the sources.
_SHOWN_REPLIES: Final = 4


def first_request(
    job: SummaryJob, *, timeout_seconds: float = 60.0, max_output_tokens: int | None = None
) -> SummaryRequest:
    """
    What a summarizer is asked at first.

    Args:
        max_output_tokens: None: twice the limit, so that a reply that is too long can be measured instead of being
        cut off.
    """
    limit_bytes = job.limit_bytes - len(job.mark)
    if job.limit_escaped_bytes is not None:
        limit_bytes = max(min(limit_bytes, job.limit_escaped_bytes), 1)
    sources = _as_known(job)
    opening = (PromptMessage("user", prompts.context_text(job.context), cache=True),) if job.context else ()
    task = prompts.task_text(job.purpose, sources, job.outcome, limit_bytes)
    return SummaryRequest(
        purpose=job.purpose,
        limit_bytes=limit_bytes,
        sources=sources,
        outcome=job.outcome,
        system=prompts.system(job.limit_bytes - len(job.mark)),
        messages=(*opening, PromptMessage("user", task)),
        attempt=1,
        max_output_tokens=max_output_tokens or 2 * job.limit_bytes,
        timeout_seconds=timeout_seconds,
        limit_escaped_bytes=None
        if job.limit_escaped_bytes is None
        else max(job.limit_escaped_bytes - len(job.mark), 1),
    )


def _as_known(job: SummaryJob) -> tuple[SourceLine, ...]:
    # A verbatim leaf may hold a line "user: …" that some file or page brought along, and a join of leaves shows it as
    # if it were a label. Where structure knows better, the word is quoted before anyone can take it for the user's.
    if job.user_spoke is not False:
        return job.sources
    return tuple(
        evolve(source, text=quote_labels(source.text, "user")) if source.kind == "summary" else source
        for source in job.sources
    )


def summary_flow(
    job: SummaryJob,
    *,
    attempts: int,
    timeout_seconds: float = 60.0,
    max_output_tokens: int | None = None,
) -> Generator[SummaryRequest, SummaryReply, Accepted]:
    """
    Ask for a summary until a reply is one: yields requests, is sent replies, returns what was accepted.

    A retry repeats the same request and adds each reply and what was wrong with it, so that its prefix stays cached.

    Args:
        attempts: the most requests, at least 1.

    Raises:
        SummaryRejected: no reply was a summary. Its message names the rules broken in order, never content;
        ``refused`` is
            set if the summarizer declined, which ends the flow at once: asking the same model again gives the same
            answer.
    """
    if attempts < 1:
        raise BadArgument("attempts must be at least 1; Policy.summary_attempts has the default")
    request = first_request(job, timeout_seconds=timeout_seconds, max_output_tokens=max_output_tokens)
    reasons: list[str] = []
    for attempt in range(1, attempts + 1):
        reply = yield request
        if reply.refused:
            raise SummaryRejected(
                f"the summarizer refused to summarise this {job.purpose}; let another try, or keep the stand-in",
                refused=True,
            )
        verdict = judge(job, reply)
        if isinstance(verdict, str):
            return Accepted(verdict, len(verdict.encode()), escaped_size(verdict), attempt, reply)
        reasons.append(verdict.reason)
        request = _again(request, reply, verdict)
    raise SummaryRejected(
        f"no summary of this {job.purpose} after {attempts} attempts ({'; '.join(reasons)}); "
        "use another summarizer, then retry the failed jobs"
    )


def _again(request: SummaryRequest, reply: SummaryReply, verdict: Rejection) -> SummaryRequest:
    # Providers refuse an empty message and lone surrogates, so neither is sent back.
    said = encodable(reply.text.strip()) or "(no text)"
    shown = clip(said, max(_SHOWN_REPLIES * request.limit_bytes, 64))
    return evolve(
        request,
        attempt=request.attempt + 1,
        messages=(
            *request.messages,
            PromptMessage("assistant", shown),
            PromptMessage("user", verdict.feedback),
        ),
    )


def as_reply(answer: str | SummaryReply) -> SummaryReply:
    """
    What a summarizer gave back, as a reply: plain text is one without figures.

    Raises:
        BadArgument: it is neither text nor a reply. To a job that is a failed attempt, as whatever a summarizer raises.
    """
    reply = SummaryReply(answer) if isinstance(answer, str) else answer
    if not isinstance(reply, SummaryReply):
        raise BadArgument(f"the summarizer answered with {type(reply).__name__}; return text or a SummaryReply")
    if not isinstance(reply.text, str):
        raise BadArgument(f"SummaryReply.text is text, not {type(reply.text).__name__}; return what the model said")
    return reply


def run_flow(
    flow: Generator[SummaryRequest, SummaryReply, Accepted], answer: Callable[[SummaryRequest], str | SummaryReply]
) -> Accepted:
    """Drive a flow with a function that answers at once; its exceptions end the flow and pass through."""
    try:
        request = next(flow)
        while True:
            request = flow.send(as_reply(answer(request)))
    except StopIteration as stop:
        accepted: Accepted = stop.value
        return accepted
    finally:
        flow.close()
