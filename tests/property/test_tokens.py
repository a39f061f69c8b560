"""Laws of the upper bound: lines counted apart add up, and what people and programs write is never undercounted."""

import toktok
from hypothesis import given, strategies as st

from optchat.core.tokens import UpperBoundTokenizer

BOUND = UpperBoundTokenizer()
WORDS = [
    "the",
    "queue",
    "broker",
    "persistence",
    "getElementById",
    "HTTPServer",
    "snake_case_name",
    "don't",
    "naïve",
    "キュー",
    "队列",
]
PIECES = st.sampled_from(
    [
        *WORDS,
        "pub:24+1",
        "/usr/lib/python3.11",
        "0x7ffe",
        "a3f9b2c4",
        "2026-10-09T12:00:00Z",
        "k3f9a2bq",
        "3.14159",
        "🙂",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\n\n",
        "{",
        "}",
        "()",
        "();",
        '": "',
        '",\n',
        "->",
        "=>",
        "===",
        "# ",
        "- [ ] ",
        "`",
        "\\n",
    ]
)
ANY_TEXT = st.text(st.characters(codec=None))  # lone surrogates included
LINES = st.one_of(ANY_TEXT, st.lists(PIECES).map("".join))


@given(LINES, LINES)
def test_lines_counted_apart_add_up(before: str, after: str) -> None:
    assert BOUND.count(before + "\n" + after) <= BOUND.count(before + "\n") + BOUND.count(after)


@given(st.lists(PIECES, max_size=60).map("".join))
def test_never_below_the_true_count(text: str) -> None:
    true = max(toktok.batch_count([text], name, threads=1)[0] for name in ("cl100k_base", "o200k_base"))
    assert BOUND.count(text) >= true


@given(ANY_TEXT)
def test_every_text_has_a_count_that_does_not_change(text: str) -> None:
    assert BOUND.count(text) == UpperBoundTokenizer().count(text)
    assert (BOUND.count(text) == 0) == (text == "")
