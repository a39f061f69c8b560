"""Laws of the summarizers that need no model: whatever the sources, the reply is a summary by the rules."""

import re
import string
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st

from optchat.compactor.clauses import source_clauses
from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.core.clip import clip, is_boundary
from optchat.core.errors import SummaryRejected
from optchat.core.render import escape, escaped_size, line
from optchat.core.speakers import names_user, own_labels, quote_labels
from optchat.core.summarizing import (
    ContextBlock,
    Purpose,
    SourceLine,
    SummaryJob,
    SummaryReply,
    first_request,
    judge,
    request_bytes,
    run_flow,
    summary_flow,
)
from optchat.core.terms import Outcome
from optchat.testing.summarizers import DeterministicSummarizer

AT = datetime(2026, 1, 5, tzinfo=UTC)
DRAWN = settings.default.max_examples
SUMMARIZERS: list[ExtractiveSummarizer | DeterministicSummarizer] = [ExtractiveSummarizer(), DeterministicSummarizer()]

PIECES = [
    "<<<<&&&",
    "user: ",
    "USER: x",
    "failed: ",
    "interrupted: user: done",
    "[not summarised: user, 3 B] ",
    "[-] ",
    "also: a, b",
    "tool_result: ",
    "; user: delete",
    "\n",
    "\r\n",
    "\0",
    "\x1b[31m",
    "\ud800",
    "\ufffd",
    "\ufeff",
    "\u2028",
    "\u202e",
    "👨\u200d👩\u200d👧",
    "🇩🇪",
    "e\u0301",
    "漢字。",
    "かな！",
    "한국어",
    "```",
    "    12→\tcode()",
    "- [ ] item",
    "## Not done",
    "Not done:",
    "<system-reminder>",
    "</system-reminder>",
    '{"a": [1, {"b": "c\\nd"}], "e": "f"}',
    "Edit {",
    "[" * 30,
    "]" * 30,
    "-" * 80,
    "." * 40,
    "path/to/file_name.go:12",
    "--flag",
    "ENT-98",
    "0x1f",
    "x" * 700,
    "a b c. D e f! G? ",
    '"',
    "`",
    "> ",
    "“",
    "«",
    "Done. ",
    "*" * 9,
    "An attempt: it was begun or run, and the text does not show how it came out.",
    "error: ",
    "**user:** ",
    "- User said: ",
    ", human: x",
    "[2 failed] ",
    "<tool_call>",
    '{"name": "zoom", "arguments": {}}',
    "I'm sorry, but I can't help with that.",
]
HOSTILE = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=40), st.text(alphabet=string.printable, max_size=60)),
    max_size=24,
).map("".join)
KINDS = st.sampled_from(["user", "assistant", "tool_call", "tool_result", "report", "note", "summary"])
SOURCES = st.lists(st.builds(SourceLine, KINDS, HOSTILE, st.just(AT), st.booleans()), min_size=1, max_size=4)


@pytest.mark.parametrize("summarizer", SUMMARIZERS, ids=lambda summarizer: summarizer.name)
@settings(max_examples=DRAWN * 3, deadline=None)
@given(
    sources=SOURCES,
    purpose=st.sampled_from(["leaf", "merge", "chunk", "publication"]),
    limit_bytes=st.sampled_from([64, 65, 100, 512, 512, 512, 2048]),
    outcome=st.sampled_from([None, "completed", "failed", "interrupted"]),
    user_spoke=st.sampled_from([None, True, False]),
    not_completed=st.sampled_from([(0, 0), (1, 0), (0, 2), (12, 3)]),
)
@example([SourceLine("summary", "", AT), SourceLine("summary", "", AT)], "merge", 64, None, None, (0, 0))
@example([SourceLine("summary", "user: <", AT), SourceLine("summary", "user: &", AT)], "merge", 64, None, False, (0, 0))
def test_every_reply_is_accepted(
    summarizer: ExtractiveSummarizer | DeterministicSummarizer,
    sources: list[SourceLine],
    purpose: Purpose,
    limit_bytes: int,
    outcome: Outcome | None,
    user_spoke: bool | None,
    not_completed: tuple[int, int],
) -> None:
    if user_spoke is False and any(source.kind == "user" for source in sources):
        user_spoke = None  # structure never contradicts itself like that
    children = sum(escaped_size(source.text) for source in sources) if purpose == "merge" else None
    marked = purpose == "merge" and children is not None and children > limit_bytes  # else they are joined, not merged
    job = SummaryJob(
        purpose=purpose,
        sources=tuple(sources),
        limit_bytes=limit_bytes,
        outcome=outcome if purpose == "publication" else None,
        children_escaped_bytes=children,
        user_spoke=user_spoke,
        failed=not_completed[0] if marked else 0,
        interrupted=not_completed[1] if marked else 0,
    )
    accepted = run_flow(summary_flow(job, attempts=1), summarizer.summarize)
    assert accepted.text_bytes == len(accepted.text.encode()) <= limit_bytes
    assert children is None or accepted.escaped_bytes <= children + 1
    assert run_flow(summary_flow(job, attempts=1), summarizer.summarize).text == accepted.text


@settings(max_examples=DRAWN * 2, deadline=None)
@given(source=st.builds(SourceLine, KINDS, HOSTILE, st.just(AT)))
def test_clauses_are_words_of_the_source_on_one_line(source: SourceLine) -> None:
    for clause in source_clauses(source, 0):
        assert "\n" not in clause.text
        clause.text.encode()
        assert not own_labels(clause.text)
        assert not names_user(clause.text)
        if source.kind != "summary":
            assert clause.kind == source.kind


@given(text=HOSTILE)
def test_quoting_labels_leaves_none_and_once_is_enough(text: str) -> None:
    quoted = quote_labels(text)
    assert not own_labels(quoted)
    assert not names_user(quoted)
    assert quote_labels(quoted) == quoted
    assert not names_user(quote_labels(text, "user"))
    assert own_labels(text) != {"user"} or names_user(text), "what is believed is also looked for"


SAID = ["user: ", "assistant: ", "failed: ", "done", "x" * 40, "<", "; ", "\n", '"']
REPLIES = st.one_of(HOSTILE, st.lists(st.sampled_from(SAID), max_size=12).map("".join))


@settings(max_examples=DRAWN * 2, deadline=None)
@given(
    sources=SOURCES,
    said=REPLIES,
    purpose=st.sampled_from(["leaf", "merge", "chunk", "publication"]),
    limit_bytes=st.sampled_from([64, 512]),
    outcome=st.sampled_from(["completed", "failed", "interrupted"]),
    user_spoke=st.sampled_from([None, True, False]),
    failed=st.integers(0, 2),
    cut_off=st.booleans(),
)
@example([SourceLine("tool_result", "error: x", AT)], "done; all verified", "leaf", 64, "failed", None, 0, False)
@example([SourceLine("summary", "a" * 80, AT)], "assistant: done", "merge", 64, "failed", None, 1, False)
@example([SourceLine("summary", "user: a" * 20, AT)], "x\nuser: done", "publication", 64, "failed", None, 0, False)
@example([SourceLine("note", "a" * 80, AT)], "x; user: done", "leaf", 64, "failed", False, 0, False)
def test_whatever_is_accepted_keeps_the_rules(
    sources: list[SourceLine],
    said: str,
    purpose: Purpose,
    limit_bytes: int,
    outcome: Outcome,
    user_spoke: bool | None,
    failed: int,
    cut_off: bool,
) -> None:
    children = max(sum(escaped_size(source.text) for source in sources), 32) if purpose == "merge" else None
    job = SummaryJob(
        purpose=purpose,
        sources=tuple(sources),
        limit_bytes=limit_bytes,
        outcome=outcome if purpose == "publication" else None,
        children_escaped_bytes=children,
        user_spoke=user_spoke,
        failed=failed if purpose == "merge" else 0,
    )
    reply = SummaryReply(said, cut_off=cut_off)
    verdict = judge(job, reply)
    try:
        text = run_flow(summary_flow(job, attempts=1), lambda _: reply).text
    except SummaryRejected:
        assert not isinstance(verdict, str)
        return
    # Written down apart from the code that keeps it.
    assert not cut_off
    assert said.strip()
    assert all(word in text for word in said.split()), "nothing is cut, nor put in other words"
    assert len(text.encode()) <= limit_bytes
    assert children is None or escaped_size(text) <= children + 1
    assert "\ufffd" not in text or any("\ufffd" in source.text or "\ud800" in source.text for source in sources)
    if user_spoke is False:
        assert not re.search(
            r"(?im)(^|[;.] )(\W*)user:( |$)", re.sub(r"\"[^\"\n]*\"|`[^`\n]*`|«.*?»|“.*?”|(?m:^>.*)", "", text)
        )
    if purpose == "publication" and outcome != "completed":
        for number, row in enumerate(text.split("\n")):
            assert row.startswith(f"{outcome}: ") or (number and not own_labels(row))
    if purpose == "merge" and failed:
        assert re.search(r"\bfailed:|\[\d+ failed", text)
    if purpose == "leaf" and sources[0].kind == "tool_result" and sources[0].text.startswith("error:"):
        assert re.match(r"(?i)(tool_result: *)?error:", text)


ROWS = st.lists(HOSTILE, max_size=14).map(
    lambda texts: [line(f"{number}+1", text, "") for number, text in enumerate(texts)]
)


@settings(max_examples=DRAWN, deadline=None)
@given(rows=ROWS, width=st.integers(1, 5), sources=SOURCES, foreign=st.lists(HOSTILE, max_size=3))
def test_requests_over_a_growing_context_share_their_beginning(
    rows: list[str], width: int, sources: list[SourceLine], foreign: list[str]
) -> None:
    def asked(end: int) -> str:
        blocks = tuple(ContextBlock("".join(rows[at : min(at + width, end)]), True) for at in range(0, end, width))
        job = SummaryJob(
            purpose="leaf",
            sources=(*sources, SourceLine("note", f"{end}", AT)),
            limit_bytes=512,
            context=blocks,
            foreign=tuple(line("pub:1+1", text, "k3f9a2bq") for text in foreign[: end % 3]),
        )
        request = first_request(job)
        chat = request.chat()
        assert [message["role"] for message in chat] == ["system", "user"]
        words = sum(len(message["content"].encode()) for message in chat)
        # The bytes of the words, but for the line ends that may join neighbouring messages.
        assert words - len(request.messages) < request_bytes(request) <= words
        assert request_bytes(request) >= sum(len(row.encode()) for row in rows[:end])
        # Around the sources stands little; in them a lone surrogate is shown as three bytes, as "replace" would not.
        inside = sum(len(re.sub("[\ud800-\udfff]", "\ufffd", source.text).encode()) for source in request.sources)
        assert len(request.messages[-1].text.encode()) - inside < 150 + 80 * len(sources)
        return "".join(message["content"] for message in chat)

    said = [asked(end) for end in range(len(rows) + 1)]
    for end, (shorter, longer) in enumerate(pairwise(said)):
        if end:
            stable = shorter[: shorter.index(rows[end - 1]) + len(rows[end - 1])]
            assert longer.startswith(stable)
            assert "".join(rows[: end + 1]) in longer


@given(text=HOSTILE, limit_bytes=st.integers(0, 120), escaped=st.one_of(st.none(), st.integers(0, 120)))
def test_a_clipped_text_fits_and_is_cut_between_characters(text: str, limit_bytes: int, escaped: int | None) -> None:
    cut = clip(text, limit_bytes, escaped)
    assert len(cut.encode("utf-8", "surrogatepass")) <= limit_bytes
    assert escaped is None or len(escape(cut).encode()) <= escaped
    if cut not in ("", text):
        kept = cut[: cut.rindex("… (")]
        assert text.startswith(kept)
        rest = text[len(kept) :]
        assert rest[:1].isspace() or is_boundary(text, len(kept))


def test_large_and_monotonous_inputs_are_summarised_too() -> None:
    # Each of these is quadratic for a pattern that backtracks; they finish only where the work is linear.
    many = 200_000
    for text in (
        "x" * 20 * many,
        "a " * many,
        "<system-reminder>" * (many // 10),
        "; " * many,
        "user: " * many,
        '"' * many,
        "“" * many,
        "." * many,
        "\n" * many,
        "a.b/" * many,
        "- " * many,
        "[" * many,
        "{" * many,
        "\x1b[" * many,
        "é\u0301" * many,
        "漢字" * many,
        "   12→x\n" * many,
    ):
        for kind in ("tool_result", "tool_call", "user"):
            job = SummaryJob(purpose="leaf", sources=(SourceLine(kind, text, AT),), limit_bytes=512)
            assert run_flow(summary_flow(job, attempts=1), ExtractiveSummarizer().summarize).text_bytes <= 512


def test_the_deterministic_summarizer_records_requests_and_fails_on_demand() -> None:
    errors = iter([ConnectionError("down"), None])
    summarizer = DeterministicSummarizer(fail=lambda _: next(errors))
    job = SummaryJob(purpose="leaf", sources=(SourceLine("user", "a note " * 200, AT),), limit_bytes=512)
    with pytest.raises(ConnectionError):
        run_flow(summary_flow(job, attempts=1), summarizer.summarize)
    assert "a note" in run_flow(summary_flow(job, attempts=1), summarizer.summarize).text
    assert [request.purpose for request in summarizer.requests] == ["leaf", "leaf"]
    assert summarizer.name == "deterministic-1"
