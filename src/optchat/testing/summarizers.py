"""
A summarizer for tests: deterministic, instant, and made to fail on demand.

It keeps the same rules as every other (:func:`optchat.core.summarizing.judge`), for any sources, so that a test which
drives it exercises the same jobs and nodes as a model would. It imports neither pytest nor Hypothesis.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from optchat.compactor.clauses import tidy
from optchat.core.clip import clip
from optchat.core.ports import Summarizer
from optchat.core.render import escaped_size
from optchat.core.speakers import OUTCOME_MARKS, STAND_IN_MARK, quote_labels
from optchat.core.summarizing import SummaryReply, SummaryRequest

_LEAST_SHARE_BYTES = 24  # of a source's beginning, below which showing it says nothing


class DeterministicSummarizer(Summarizer):
    """
    Answers with a digest of the sources and the beginning of each: the same sources, the same text.

    Args:
        fail: asked before each answer; an exception that it returns is raised instead.
        delay_seconds: slept before each answer, real time.

    ``requests`` holds what it was asked, in the order of arrival, those that failed included.
    """

    def __init__(
        self,
        *,
        fail: Callable[[SummaryRequest], BaseException | None] | None = None,
        delay_seconds: float = 0.0,
    ) -> None:
        self.requests: list[SummaryRequest] = []
        self._fail = fail
        self._delay_seconds = delay_seconds

    @property
    def name(self) -> str:
        return "deterministic-1"

    @property
    def window_tokens(self) -> int:
        return 65_536

    def summarize(self, request: SummaryRequest, /) -> SummaryReply:
        """The digest; or what ``fail`` returned, raised."""
        self.requests.append(request)  # one append is atomic: workers share this object
        if self._delay_seconds:
            time.sleep(self._delay_seconds)
        error = self._fail(request) if self._fail is not None else None
        if error is not None:
            raise error
        return SummaryReply(_digest(request), model=self.name)


def _digest(request: SummaryRequest) -> str:
    limit = request.limit_bytes
    heaviest = request.limit_escaped_bytes
    if heaviest is None and request.purpose == "merge":
        heaviest = sum(escaped_size(source.text) for source in request.sources) + 1
    digest = hashlib.sha256()
    for source in request.sources:
        digest.update(f"{source.kind}\0{source.text}\0".encode("utf-8", "surrogatepass"))
    mark = OUTCOME_MARKS[request.outcome] if request.outcome is not None else ""
    head = f"{mark}{request.purpose} {digest.hexdigest()[:8]}"
    share = max((limit - len(head)) // len(request.sources) - 24, _LEAST_SHARE_BYTES)
    parts = [head]
    for source in request.sources:
        label = STAND_IN_MARK if source.stand_in else f"({source.kind})"
        # Quotes around the whole would not hold against quotes within, so labels in it are quoted one by one.
        parts.append(f"{label} {clip(quote_labels(tidy(source.text[: 8 * share])), share)}".rstrip())
    return clip(quote_labels(" ".join(parts)), limit, heaviest) or "-"
