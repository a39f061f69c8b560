"""
Laws of counting, against the real encodings: the upper bound is one for what people, programs and models write, and
exact counts are exact, whatever the text.
"""

import base64
import json
import socket
import sys
from pathlib import Path

import pytest
import tiktoken
import toktok
from hypothesis import example, given, settings, strategies as st

from optchat.core.tokens import UpperBoundTokenizer
from optchat.engine import tokenizers
from optchat.engine.tokenizers import tokenizer_for

BOUND = UpperBoundTokenizer()
ENCODINGS = ("cl100k_base", "o200k_base")


def between(first: int, last: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(min_codepoint=first, max_codepoint=last), max_size=60)


PEOPLE = ["👨", "👩", "👧", "🧑", "🏳", "❤", "👍"]
JOINED = st.lists(st.sampled_from([*PEOPLE, "\u200d", "\ufe0f", "🏽", "🏿"]), max_size=30).map("".join)
FLAGS = st.text(st.characters(min_codepoint=0x1F1E6, max_codepoint=0x1F1FF), max_size=30)
WHITE = st.text(st.sampled_from(" \t\n\r\v\f\u00a0\u2003\u3000"), max_size=120)
RUNS = st.tuples(st.sampled_from(" \t\n-=_#*."), st.integers(1, 500)).map(lambda run: run[0] * run[1])
BASE64 = st.binary(max_size=200).map(lambda data: base64.b64encode(data).decode())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
).map(lambda value: json.dumps(value, ensure_ascii=False))
CODE = st.lists(
    st.sampled_from(
        [
            "def ",
            "return ",
            "self.",
            "if err != nil {\n",
            "\t",
            "    ",
            "()",
            ") -> ",
            "[i]",
            " = ",
            "x_y",
            "getItem",
            "\n",
        ]
    ),
    max_size=40,
).map("".join)
# Letters of which many pairs have no merge: the dearest words that there are.
DEAR = st.text(st.sampled_from("qxzjvkw"), max_size=120) | st.text(st.sampled_from("QXZJVKW"), max_size=120)
LONG = st.tuples(
    st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=1, max_size=12), st.integers(1, 300)
).map(lambda word: word[0] * word[1])
KINDS = {
    "han": between(0x4E00, 0x9FFF),
    "kana": between(0x3041, 0x30FF),
    "hangul": between(0xAC00, 0xD7A3),
    "cyrillic": between(0x400, 0x4FF),
    "emoji": between(0x1F300, 0x1FAFF),
    "joined emoji": JOINED,
    "flags": FLAGS,
    "white space": WHITE,
    "runs": RUNS,
    "base64": BASE64,
    "json": JSON,
    "code": CODE,
    "dear letters": DEAR,
    "long words": LONG,
    "surrogates": st.text(st.characters(categories=["Cs", "Lu", "Nd"]), max_size=40),
    "anything": st.text(st.characters(codec=None), max_size=80),
}


def true_counts(text: str) -> dict[str, int]:
    shown = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return {name: toktok.batch_count([shown], name, threads=1)[0] for name in ENCODINGS}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=max(25, settings().max_examples // 2))
@given(data=st.data())
def test_the_upper_bound_is_one(kind: str, data: st.DataObject) -> None:
    text = data.draw(KINDS[kind])
    assert BOUND.count(text) >= max(true_counts(text).values())


@given(st.lists(st.one_of(*KINDS.values()), max_size=6).map("".join))
@example("qzqz" * 200)
@example("x" * 10_000)
def test_the_upper_bound_is_one_for_mixtures(text: str) -> None:
    assert BOUND.count(text) >= max(true_counts(text).values())


@given(st.one_of(*KINDS.values()))
def test_exact_counts_are_exact(text: str) -> None:
    """Lone surrogates count as the U+FFFD that is sent for each; nothing in text is a special token."""
    shown = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    for model, encoding in (("gpt-4", "cl100k_base"), ("gpt-5", "o200k_base")):
        tokenizer = tokenizer_for(model)
        assert tokenizer.name == encoding
        assert tokenizer.count(text) == toktok.batch_count([shown], encoding, threads=1)[0]


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With no file present and no network: every model has a tokenizer, and nobody has tried to connect."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    tokenizers._exact.cache_clear()
    try:
        models = [*tiktoken.model.MODEL_TO_ENCODING, *tiktoken.model.MODEL_PREFIX_TO_ENCODING, "claude-opus-4", None]
        for model in models:
            assert tokenizer_for(model).count("hello world") >= 2
        monkeypatch.setitem(sys.modules, "toktok", None)
        tokenizers._exact.cache_clear()
        assert {tokenizer_for(model).name for model in models} == {"upper-bound-1"}
    finally:
        tokenizers._exact.cache_clear()
