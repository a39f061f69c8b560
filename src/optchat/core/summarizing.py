"""
The conversation with a summarizer (§ 10), as a generator: request out, reply in, accepted summary or failure.

Decides: what a summarizer is asked, which replies are summaries, and what is said about one that is not.
Refuses to know: the network, threads, and where the sources came from.

Whoever makes a text, a rule or a model, the same rules accept it:

- text ≤ the limit in UTF-8 bytes; escaped, at most its children's bytes together + 1, where it has children;
- not empty, not stopped by the output limit, no tool call, no damaged characters, not the request's own words, nor a
  line of another conversation that was only shown to explain the sources;
- ``user:`` as a label only where the user spoke (quoted text excepted);
- what was not completed says so: the text of such a turn, of a merge over one, and of a result that its tool reported
  as an error. The mark is put there by this room and not by the summarizer: what honesty depends on (§ 5) is not left
  to a reply. Room for it is taken off the limit that is asked for.

The first reply that keeps the rules is accepted; nothing is ever cut to fit. A refusal, in structure or as the whole of
a reply, is no broken rule: it ends the conversation, and another summarizer may be asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from optchat.core import prompts, replies
from optchat.core.clip import clip, cut_index
from optchat.core.errors import BadArgument, SummaryRejected
from optchat.core.render import encodable, escaped_size, outcome_label
from optchat.core.speakers import (
    ERROR_MARK,
    OUTCOME_MARKS,
    marked,
    names_user,
    own_labels,
    quote_labels,
    tells_error,
    tells_outcome,
    with_error,
)
from optchat.core.terms import HitKind, Outcome

Purpose: TypeAlias = Literal["leaf", "merge", "chunk", "publication"]

_LINE_END: Final = "\n"


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
        """
        The system text and the messages as role and content, roles alternating.

        Neighbours of one role are one message, each part beginning a line: servers exist that take nothing else.
        """
        said = [{"role": "system", "content": self.system}]
        for message in self.messages:
            if message.role == said[-1]["role"]:
                before = said[-1]["content"]
                said[-1]["content"] = f"{before}{'' if before.endswith(_LINE_END) else _LINE_END}{message.text}"
            else:
                said.append({"role": message.role, "content": message.text})
        return said


def request_bytes(request: SummaryRequest) -> int:
    """The UTF-8 bytes of a request's words: the most tokens that they can have, since no token is less than a byte."""
    return len(request.system.encode()) + sum(len(message.text.encode()) for message in request.messages)


@frozen
class SummaryReply:
    """
    What a summarizer answered.

    ``cut_off``: by the output limit. ``called_tool``: it answered with a tool call, though none was offered.
    ``waited_seconds``: how long it waited before it sent the request, for a cache that another call was writing, say.
    """

    text: str
    refused: bool = False
    cut_off: bool = False
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None
    waited_seconds: float = 0.0
    called_tool: bool = False


@frozen
class ContextBlock:
    """Rendered lines, each with its end; ``cache``: a stable prefix ends after them."""

    text: str
    cache: bool = False


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
    context: tuple[ContextBlock, ...] = ()  # earlier lines of the same conversation; shared by consecutive jobs
    foreign: tuple[str, ...] = ()  # rendered lines of other conversations that the turn had looked up
    failed: int = 0  # merges of publications only: how many of the turns under it failed
    interrupted: int = 0  # likewise

    def __attrs_post_init__(self) -> None:
        if not self.sources:
            raise BadArgument("a summary needs a source; a span without records has none")
        if min(self.limit_bytes, self.limit_escaped_bytes or self.limit_bytes) - len(self.mark) < 1:
            raise BadArgument("limit_bytes leaves no room for a summary; 512 is the default")

    @property
    def mark(self) -> str:
        """What the text must say because of what is known from structure; "" where nothing is to be said."""
        if self.outcome is not None:
            return OUTCOME_MARKS[self.outcome]
        if self.failed or self.interrupted:
            return f"[{outcome_label(self.failed, self.interrupted)}] "
        first = self.sources[0]
        result = first.kind == "tool_result" or (first.kind == "summary" and not self.user_spoke)
        return ERROR_MARK if self.purpose in ("leaf", "chunk") and result and tells_error(first.text) else ""

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
    """
    Why a reply is none, in words that hold no content, and what the summarizer is told.

    ``marked``: its text with the mark put there by this room, if the mark is all that it lacks.
    """

    reason: str
    feedback: str
    marked: str | None = None


# ---- what is a summary -----------------------------------------------------------------------------------------------

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DAMAGE: Final = re.compile("[\ud800-\udfff\ufffd]")
_ENORMOUS: Final = 16  # times the limit: its size is all that is looked at


def judge(job: SummaryJob, reply: SummaryReply) -> str | Rejection:
    """
    A reply's text as it is to be stored, or why it is no summary.

    A refusal is not judged here: it says nothing about the text.
    """
    said = reply.text.strip()
    enormous = len(said) > _ENORMOUS * job.limit_bytes
    if not enormous and (fault := _fault(job, reply, said)):
        return fault
    text, put = _with_mark(job, said)
    size = len(text.encode("utf-8", "replace"))
    if size > job.limit_bytes:
        room = job.limit_bytes - (size - len(said.encode("utf-8", "replace")))
        before_cut = said[: cut_index(said, room)][-40:]
        return Rejection(
            f"it has {size} bytes, the limit is {job.limit_bytes}",
            prompts.too_long_text(len(said.encode("utf-8", "replace")), room, before_cut),
        )
    limit = job.limit_escaped_bytes
    if limit is not None and escaped_size(text) > limit:
        return Rejection(
            f"it is heavier than its children: {escaped_size(text)} bytes as rendered, at most {limit} allowed",
            prompts.too_heavy_text(escaped_size(text), limit),
        )
    if put:
        reason = "it does not say that something in the text was not completed"
        return Rejection(reason, prompts.rejected_text(reason, prompts.UNMARKED), text)
    return text


def user_spoke(sources: Sequence[SourceLine]) -> bool:
    """
    Whether the user may be named as an author: some source is the user's, or is a summary that names the user.

    By induction this is as good as looking at the records, for a summary that names the user was accepted by this rule.
    """
    return any(
        source.kind == "user" or (source.kind == "summary" and "user" in own_labels(source.text)) for source in sources
    )


def _with_mark(job: SummaryJob, said: str) -> tuple[str, bool]:
    """A reply with what structure knows, and whether it was this room that had to say it of a merge's parts."""
    if job.outcome is not None:
        return marked(said, job.outcome), False
    if job.mark == ERROR_MARK:
        return with_error(said), False
    if not (job.failed and not tells_outcome(said, "failed")) and not (
        job.interrupted and not tells_outcome(said, "interrupted")
    ):
        return said, False
    return job.mark + said, True


def _fault(job: SummaryJob, reply: SummaryReply, said: str) -> Rejection | None:
    """What makes a reply none whatever its size, if anything does."""
    texts = [source.text for source in job.sources]
    if reply.called_tool or replies.calls_tool(said, texts):
        return _rejected("it is a tool call, and no tools are offered")
    if reply.cut_off:
        return _rejected("it was stopped by the output limit before it ended", prompts.CUT_OFF)
    if not said:
        return _rejected("it is empty")
    if _SURROGATE.search(said) or ("\ufffd" in said and not any(map(_DAMAGE.search, texts))):
        return _rejected("it holds damaged characters")
    if prompts.echoes(said, job.sources):
        return _rejected("it repeats the request instead of summarising the text")
    if prompts.copies(said, job.foreign, job.sources):
        return _rejected("it repeats a line of another conversation", prompts.COPIED)
    allowed = user_spoke(job.sources) if job.user_spoke is None else job.user_spoke
    if not allowed and names_user(said):
        reason = 'it names the user as an author ("user:"), and the user wrote none of the text'
        return _rejected(reason, prompts.FORGED)
    return None


def _rejected(reason: str, advice: str = "") -> Rejection:
    return Rejection(reason, prompts.rejected_text(reason, advice))


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
    limit_bytes = min(job.limit_bytes, job.limit_escaped_bytes or job.limit_bytes) - len(job.mark)
    sources = _as_known(job)
    task = prompts.task_text(job.purpose, sources, job.outcome, limit_bytes, outcome_label(job.failed, job.interrupted))
    return SummaryRequest(
        purpose=job.purpose,
        limit_bytes=limit_bytes,
        sources=sources,
        outcome=job.outcome,
        system=prompts.system(job.limit_bytes),
        messages=(*_shown(job), PromptMessage("user", task)),
        attempt=1,
        max_output_tokens=max_output_tokens or 2 * job.limit_bytes,
        timeout_seconds=timeout_seconds,
        limit_escaped_bytes=None if job.limit_escaped_bytes is None else job.limit_escaped_bytes - len(job.mark),
    )


def _shown(job: SummaryJob) -> tuple[PromptMessage, ...]:
    """What explains the sources, first what changes least: the conversation before them, then what it looked up."""
    texts = prompts.context_texts(block.text for block in job.context)
    before = [PromptMessage("user", text, block.cache) for text, block in zip(texts, job.context, strict=True)]
    elsewhere = [PromptMessage("user", prompts.foreign_text(job.foreign))] if job.foreign else []
    return (*before, *elsewhere)


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
        max_output_tokens: None: twice the limit at first, and twice as many again after each reply that it cut off.

    Raises:
        SummaryRejected: no reply was a summary. Its message names the rules broken in order, never content;
            ``refused`` is set if the summarizer declined, which ends the flow at once: asking the same model again
            gives the same answer.
    """
    if attempts < 1:
        raise BadArgument("attempts must be at least 1; Policy.summary_attempts has the default")
    request = first_request(job, timeout_seconds=timeout_seconds, max_output_tokens=max_output_tokens)
    reasons: list[str] = []
    spare: Accepted | None = None  # lacks nothing but a mark, which this room has put there
    for attempt in range(1, attempts + 1):
        reply = yield request
        if declined(job, reply):
            raise SummaryRejected(
                f"the summarizer refused to summarise this {job.purpose}; let another try, or keep the stand-in",
                refused=True,
            )
        verdict = judge(job, reply)
        if isinstance(verdict, str):
            return _accepted(verdict, attempt, reply)
        if verdict.marked is not None:
            if spare is not None:  # it was told, and tells it no better: asking on would only cost
                return _accepted(verdict.marked, attempt, reply)
            spare = _accepted(verdict.marked, attempt, reply)
        reasons.append(verdict.reason)
        request = _again(request, reply, verdict)
        if reply.cut_off and max_output_tokens is None:
            # What a model thinks counts as output: a limit that no short line could reach was used up before the line.
            request = evolve(request, max_output_tokens=2 * request.max_output_tokens)
    if spare is not None:
        return evolve(spare, attempts=attempts)
    raise SummaryRejected(
        f"no summary of this {job.purpose} after {attempts} attempts ({'; '.join(reasons)}); "
        "use another summarizer, then retry the failed jobs"
    )


def declined(job: SummaryJob, reply: SummaryReply) -> bool:
    """Whether a reply refuses the task: its provider says so, or it is nothing else ("I can't help with that")."""
    return reply.refused or replies.declines(reply.text, (source.text for source in job.sources))


def _accepted(text: str, attempts: int, reply: SummaryReply) -> Accepted:
    return Accepted(text, len(text.encode()), escaped_size(text), attempts, reply)


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
