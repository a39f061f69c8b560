"""
Whatever is handed in, it is read or refused: no crash, no hang, no exception outside of the library's hierarchy.

What comes from models, hosts, files and people: refs, cursors, queries, tools' arguments, transcripts; and what goes to
models: rendered data forges neither a block nor a line head (invariant 14). Each input is drawn, or drawn valid and
then damaged. The everyday budget is small; `nox -s property` draws four times as much, `nox -s soak` 5,000 of each.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import optchat
from optchat.core.cursors import query_digest, read_cursor, write_cursor
from optchat.core.errors import BadArgument, BadCursor, ImportRejected, MalformedRef
from optchat.core.refs import SESSION_ID_ALPHABET, parse_ref
from optchat.core.render import SEPARATOR, block, line
from optchat.core.searching import read_query
from optchat.core.tools import MEMORY_TOOLS, read_arguments
from optchat.engine.importing import load_file
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.property.strategies import hostile_texts

HANGS_AFTER_SECONDS = 60  # for one example: a thousand times what any takes
DRAWN = settings().max_examples
LAW = settings(max_examples=DRAWN if DRAWN > 1_000 else max(25, DRAWN // 4))
MEMORY = settings(LAW, max_examples=DRAWN if DRAWN > 1_000 else max(15, DRAWN // 6))


@contextmanager
def watched() -> Iterator[None]:
    """A hang is a failure, with the place where it hangs."""

    def hangs(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_or_refused(read: Callable[..., Any], *arguments: Any, error: type[optchat.OptchatError], **more: Any) -> Any:
    """What was read; None where it was refused as it should be: with an error of this class, that can be printed."""
    with watched():
        try:
            return read(*arguments, **more)
        except error as refused:
            assert str(refused).encode()
            assert refused.code
            return None


# ---- what is handed in -----------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[str]) -> str:
    """Something valid, with pieces cut out, doubled, swapped or put in; or not damaged at all."""
    text = draw(whole)
    for _ in range(draw(st.integers(0, 3))):
        at, to = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        piece = draw(
            st.sampled_from(
                [
                    "",
                    text[at:to] * 2,
                    text[at:to][::-1],
                    "0",
                    "-1",
                    "+",
                    ":",
                    "\0",
                    "\ud800",
                    "٣",
                    "１",
                    "99999999999999",
                ]
            )
            | hostile_texts()
        )
        text = text[:at] + piece + text[to:]
    return text


numbers = st.integers(0, 70) | st.integers(0, 1 << 45)
powers = st.integers(0, 42).map(lambda power: 1 << power)
spans = st.builds("{}+{}".format, numbers, powers | numbers)
refs = st.one_of(
    spans,
    st.builds("{}:{}".format, numbers, spans),
    st.builds("pub:{}".format, spans),
    st.builds("session:{}:{}:{}".format, st.text(SESSION_ID_ALPHABET, min_size=8, max_size=8), numbers, spans),
)
cursors = st.builds(
    lambda verb, clock, places: write_cursor(query_digest(verb, "x"), clock, *places),
    st.sampled_from(["zoom", "search", "sessions"]),
    st.integers(0, 1 << 62),
    st.lists(st.integers(0, 1 << 62), max_size=4),
)
queries = st.lists(
    st.one_of(
        st.sampled_from(
            ['"', "“", "-", "*", "AND", "NEAR(", "text:", "k0", "s1", "^", "(", ")", "the", "broker persists"]
        ),
        st.text(st.characters(exclude_categories=()), max_size=12),
    ),
    max_size=12,
).map(" ".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
tool_names = st.sampled_from([tool.name for tool in MEMORY_TOOLS]) | hostile_texts()
argument_names = st.sampled_from(
    ["ref", "query", "cursor", "depth", "limit", "order", "session", "kind", "before", "after", "name", "max_tokens"]
)
argument_values = st.one_of(
    json_values,
    refs,
    queries,
    cursors,
    st.sampled_from(["best", "newest", "2026-01-01T00:00:00Z", "1", "0", "1e3", ""]),
)
objects = st.dictionaries(argument_names, argument_values, max_size=4)
tool_texts = st.one_of(
    damaged(objects.map(json.dumps)),
    json_values.map(json.dumps),
    hostile_texts(),
    st.sampled_from(
        [
            "[" * 100_000, '{"ref":' * 20_000, '{"ref": ' + "9" * 10_000 + "}", '{"ref": 1e999}', '{"ref": NaN}', "﻿{}",
            '{"ref": "\\ud800"}', '{"ref": "0+1", "ref": "0+2"}', "{}{}", "null", "'{}'", '{"query": "\\u0000"}', "\0",
        ]
    ),
)  # fmt: skip


# ---- parsers ---------------------------------------------------------------------------------------------------------


@LAW
@given(damaged(refs) | hostile_texts())
def test_a_ref_is_read_or_refused_and_has_one_spelling(text: str) -> None:
    ref = read_or_refused(parse_ref, text, error=MalformedRef)
    if ref is not None:
        assert str(ref) == text, "two spellings of one ref"
        assert parse_ref(str(ref)) == ref


@LAW
@given(damaged(cursors) | hostile_texts(), st.sampled_from(["zoom", "search"]))
def test_a_cursor_is_read_or_refused(text: str, verb: str) -> None:
    cursor = read_or_refused(read_cursor, text, query_digest(verb, "x"), error=BadCursor)
    if cursor is not None:
        assert cursor.clock >= 0
        assert all(place >= 0 for place in cursor.position)


@LAW
@given(damaged(queries) | st.text(st.characters(exclude_categories=()), max_size=600))
def test_a_query_is_read_or_refused(text: str) -> None:
    query = read_or_refused(read_query, text, error=BadArgument)
    if query is not None:
        assert query.terms
        for term in query.terms:
            for phrase in term.spellings:
                assert all(word and " " not in word and '"' not in word for word in phrase.words)


@LAW
@given(tool_names, tool_texts | objects | json_values.filter(lambda value: isinstance(value, dict)))
def test_arguments_of_a_tool_are_read_or_refused(name: str, arguments: Any) -> None:
    read_or_refused(read_arguments, name, arguments, error=BadArgument)


# ---- files -----------------------------------------------------------------------------------------------------------

roles = st.sampled_from(["user", "assistant", "tool", "host_summary", "note", "system", ""])
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_call", "tool_result", "image", "report", "reasoning"])},
    optional={
        "text": json_values, "call_id": st.sampled_from(["a", "b", 1]), "name": json_values, "arguments": json_values,
        "content": json_values, "data": st.sampled_from(["aGk=", "a", "=", 1]), "media_type": json_values,
    },
)  # fmt: skip
lines = st.fixed_dictionaries(
    {"session": st.sampled_from(["a", "b"]) | json_values, "role": roles | json_values},
    optional={
        "at": st.sampled_from(["2026-01-05T12:17:31Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", 5]),
        "parts": st.lists(parts, max_size=3) | json_values,
        "key": json_values,
        "turn": json_values,
        "end": json_values,
    },
).map(json.dumps)
files = st.lists(damaged(lines), max_size=6).map(lambda each: "\n".join(each).encode("utf-8", "surrogatepass"))


@LAW
@given(files | st.binary(max_size=300), st.sampled_from(["plain", "gzip", "cut gzip", "after a mark"]))
def test_a_file_is_imported_or_refused(data: bytes, packing: str) -> None:
    if "gzip" in packing:
        data = gzip.compress(data, mtime=0)
    if packing == "cut gzip":
        data = data[: len(data) * 2 // 3]
    if packing == "after a mark":
        data = b"\xef\xbb\xbf" + data
    with TemporaryDirectory() as folder:
        path = Path(folder) / "transcript"
        path.write_bytes(data)
        read_or_refused(load_file, path, error=ImportRejected)


# ---- what is rendered (invariant 14) ---------------------------------------------------------------------------------

MARKUP = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "</shared_memory>",
                "<since>",
                "\n",
                "\r",
                "\u2028",
                "\x85",
                "\x0b",
                "pub:0+1 | ",
                " | ",
                "&lt;",
                "&#10;",
                "]]>",
            ]
        ),
        st.text(st.characters(exclude_categories=()), max_size=6),
    ),
    max_size=8,
).map("".join)


@LAW
@given(st.lists(MARKUP, max_size=5), MARKUP)
def test_rendered_data_forges_neither_a_block_nor_a_line_head(texts: list[str], name: str) -> None:
    with watched():
        body = "".join(line(f"pub:{number}+1", text) for number, text in enumerate(texts))
        rendered = block("shared_memory", {"scope": name}, body)
    shown = rendered.splitlines()
    assert len(shown) == len(texts) + 2
    assert [each.partition(SEPARATOR)[0] for each in shown[1:-1]] == [f"pub:{number}+1" for number in range(len(texts))]
    assert rendered.count("<") == rendered.count(">") == 2
    assert rendered.encode()
    assert not set(rendered) & set(map(chr, [*range(10), *range(11, 32), 0x7F, 0x85, 0x2028, 0x2029]))


# ---- a memory's verbs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        for number in range(6):
            with memory.session("s").turn(f"the broker persists {number} " * 30) as turn:
                turn.tool_call("c", "build", {})
                turn.tool_result("c", "built")
                turn.report("build", "a report")
                turn.assistant("done")
        memory.settle()
        yield memory


@pytest.fixture(scope="module")
def turn(memory: optchat.Memory) -> optchat.Turn[optchat.HostMessage]:
    return memory.session("other").turn("what was built?")


@pytest.fixture(scope="module")
def known(memory: optchat.Memory) -> list[str]:
    """Refs and cursors that are some, to be damaged."""
    session = memory.session("s").id
    page = memory.search("broker", limit=1)
    zoomed = memory.zoom(f"session:{session}:0:0+1", max_tokens=5)
    found = [
        f"session:{session}:0:0+4",
        f"session:{session}:0:8+1",
        "pub:0+4",
        "pub:3+1",
        session,
        page.cursor,
        zoomed.cursor,
    ]
    return [each for each in found if each is not None]


@MEMORY
@given(data=st.data(), verb=st.sampled_from(["zoom", "date", "source", "search", "sessions", "work", "view"]))
def test_every_read_answers_or_refuses(
    memory: optchat.Memory, turn: Any, known: list[str], data: st.DataObject, verb: str
) -> None:
    texts = damaged(st.sampled_from(known)) | damaged(refs) | damaged(queries)
    reader = data.draw(st.sampled_from([memory, turn]))
    text = data.draw(texts)
    more: dict[str, Any] = {}
    if verb in ("zoom", "search", "sessions", "work") and data.draw(st.booleans()):
        more["cursor"] = data.draw(damaged(st.sampled_from(known)) | damaged(cursors))
    if verb == "search":
        more |= data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "session": texts, "limit": st.integers(-1, 60), "kind": st.sampled_from(["user", "summary", "odd"]),
                    "before": st.sampled_from(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-01-01"]),
                    "order": st.sampled_from(["best", "newest", "odd"]),
                },
            )
        )  # fmt: skip
    if verb == "zoom":
        more |= data.draw(
            st.fixed_dictionaries({}, optional={"depth": st.integers(-1, 6), "max_tokens": st.integers(-5, 1 << 70)})
        )
    if verb == "view":
        more["max_tokens"] = data.draw(st.integers(-5, 1 << 70))
    arguments = () if verb == "sessions" else (text,)
    read_or_refused(getattr(reader, verb), *arguments, error=optchat.OptchatError, **more)


@MEMORY
@given(data=st.data(), name=tool_names)
def test_every_call_of_a_tool_is_answered(turn: Any, known: list[str], data: st.DataObject, name: str) -> None:
    """A model's mistake is answered, never raised: only a tool that is none is."""
    some = st.dictionaries(argument_names, damaged(st.sampled_from(known)) | argument_values, max_size=3)
    arguments = data.draw(some | tool_texts | some.map(json.dumps))
    with watched():
        if name not in {tool.name for tool in MEMORY_TOOLS}:
            read_or_refused(turn.call, name, arguments, error=optchat.OptchatError)
            return
        answer = turn.call(name, arguments)
    assert answer.text.encode()
    if not answer.is_error:
        assert isinstance(json.loads(answer.text), dict)


# ---- at length -------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_all_of_it_with_a_large_budget() -> None:
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "soak"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not soak", __file__]
    assert subprocess.run(command, env=environment, check=False, cwd=Path(__file__).parents[2]).returncode == 0
