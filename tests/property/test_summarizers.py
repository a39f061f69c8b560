"""Laws of the summarizers that need no model: whatever the sources, the reply is a summary by the rules."""

import string
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings, strategies as st

from optchat.compactor.clauses import source_clauses
from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.core.clip import clip, is_boundary
from optchat.core.render import escape, escaped_size
from optchat.core.summarizing import Purpose, SourceLine, SummaryJob, own_labels, quote_labels, run_flow, summary_flow
from optchat.core.terms import Outcome
from optchat.testing.summarizers import DeterministicSummarizer

AT = datetime(2026, 1, 5, tzinfo=UTC)
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
    "Write the memory line of this one message.",
]
HOSTILE = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=40), st.text(alphabet=string.printable, max_size=60)),
    max_size=24,
).map("".join)
KINDS = st.sampled_from(["user", "assistant", "tool_call", "tool_result", "report", "note", "summary"])
SOURCES = st.lists(st.builds(SourceLine, KINDS, HOSTILE, st.just(AT), st.booleans()), min_size=1, max_size=4)


@pytest.mark.parametrize("summarizer", SUMMARIZERS, ids=lambda summarizer: summarizer.name)
@settings(max_examples=300, deadline=None)
@given(
    sources=SOURCES,
    purpose=st.sampled_from(["leaf", "merge", "chunk", "publication"]),
    limit_bytes=st.sampled_from([64, 65, 100, 512, 512, 512, 2048]),
    outcome=st.sampled_from([None, "completed", "failed", "interrupted"]),
    user_spoke=st.sampled_from([None, True, False]),
)
@example([SourceLine("summary", "", AT), SourceLine("summary", "", AT)], "merge", 64, None, None)
@example([SourceLine("summary", "user: <", AT), SourceLine("summary", "user: &", AT)], "merge", 64, None, False)
def test_every_reply_is_accepted(
    summarizer: ExtractiveSummarizer | DeterministicSummarizer,
    sources: list[SourceLine],
    purpose: Purpose,
    limit_bytes: int,
    outcome: Outcome | None,
    user_spoke: bool | None,
) -> None:
    if user_spoke is False and any(source.kind == "user" for source in sources):
        user_spoke = None  # structure never contradicts itself like that
    children = sum(escaped_size(source.text) for source in sources) if purpose == "merge" else None
    job = SummaryJob(
        purpose=purpose,
        sources=tuple(sources),
        limit_bytes=limit_bytes,
        outcome=outcome if purpose == "publication" else None,
        children_escaped_bytes=children,
        user_spoke=user_spoke,
    )
    accepted = run_flow(summary_flow(job, attempts=1), summarizer.summarize)
    assert accepted.text_bytes == len(accepted.text.encode()) <= limit_bytes
    assert children is None or accepted.escaped_bytes <= children + 1
    assert run_flow(summary_flow(job, attempts=1), summarizer.summarize).text == accepted.text


@settings(max_examples=200, deadline=None)
@given(source=st.builds(SourceLine, KINDS, HOSTILE, st.just(AT)))
def test_clauses_are_words_of_the_source_on_one_line(source: SourceLine) -> None:
    for clause in source_clauses(source, 0):
        assert "\n" not in clause.text
        clause.text.encode()
        assert not own_labels(clause.text)
        if source.kind != "summary":
            assert clause.kind == source.kind


@given(text=HOSTILE)
def test_quoting_labels_leaves_none_and_once_is_enough(text: str) -> None:
    quoted = quote_labels(text)
    assert not own_labels(quoted)
    assert quote_labels(quoted) == quoted


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
