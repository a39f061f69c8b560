"""Laws of rendering: what is rendered can be parsed again, whatever the data says."""

import re
import unicodedata

from hypothesis import given, strategies as st

from optchat.core.render import (
    SEPARATOR,
    block,
    encodable,
    escape,
    escape_attribute,
    escaped_size,
    line,
    line_size,
    one_line,
    unescape,
)
from tests.property.strategies import hostile_texts

heads = st.sampled_from(["0+1", "2:96+32", "pub:24+1", "session:k3f9a2bq:0:4+4"])
labels = st.sampled_from(["", "k3f9a2bq", "k3f9a2bq failed", "1 failed, 2 interrupted"])
HEAD = re.compile(r"(?P<ref>[a-z0-9:+]+)(?: \[(?P<label>[a-z0-9, ]+)\])?")
ATTRIBUTE = re.compile(r' ([a-z]+)="([^"<>]*)"')


def parsed(rendered: str) -> tuple[str, str, str]:
    """A line's ref, label and data, as a careful reader takes it apart."""
    head, data = rendered.split(SEPARATOR, 1)
    match = HEAD.fullmatch(head)
    assert match is not None, head
    return match["ref"], match["label"] or "", unescape(data)


@given(st.lists(st.tuples(heads, labels, hostile_texts()), max_size=6), hostile_texts())
def test_what_is_rendered_is_parsed_as_it_was(lines: list[tuple[str, str, str]], scope: str) -> None:
    body = "".join(line(ref, text, label) for ref, label, text in lines)

    text = block("shared_memory", {"scope": scope, "through": 3}, body)

    head, *shown, tail = text.split("\n")
    assert [parsed(each) for each in shown] == [(ref, label, one_line(text)) for ref, label, text in lines]
    assert head.startswith("<shared_memory ")
    assert head.endswith(">")
    attributes = dict(ATTRIBUTE.findall(head))
    assert "".join(f' {key}="{value}"' for key, value in attributes.items()) == head[len("<shared_memory") : -1]
    assert list(attributes) == ["scope", "through"]
    assert unescape(attributes["scope"].replace("&quot;", '"').replace("&#39;", "'")) == one_line(scope)
    assert tail == "</shared_memory>"
    assert text.count("<") == text.count(">") == 2, "no markup but the block's own"
    assert text.splitlines() == [head, *shown, tail], "no line ends but the block's own"


@given(heads, labels, hostile_texts())
def test_sizes_known_before_are_the_sizes(ref: str, label: str, text: str) -> None:
    rendered = line(ref, text, label)

    assert escaped_size(text) == len(escape(text).encode())
    assert line_size(len(ref), escaped_size(text), len(label)) == len(rendered.encode())


@given(hostile_texts(), hostile_texts())
def test_the_escaped_size_of_a_text_is_that_of_its_parts(before: str, after: str) -> None:
    assert escaped_size(before + after) == escaped_size(before) + escaped_size(after)
    assert escape(before + after) == escape(before) + escape(after)


@given(hostile_texts())
def test_a_line_is_one_line_of_as_many_characters_that_can_be_sent(text: str) -> None:
    shown = one_line(text)

    assert len(shown) == len(text)
    assert one_line(shown) == shown
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert unescape(escape(text)) == shown
    assert not set("<>\"'") & set(escape_attribute(text))


@given(hostile_texts())
def test_only_lone_surrogates_are_replaced_where_lines_may_stay(text: str) -> None:
    shown = encodable(text)

    assert shown.encode().decode() == shown
    assert len(shown) == len(text)
    for old, new in zip(text, shown, strict=True):
        assert new == ("\ufffd" if "\ud800" <= old <= "\udfff" else old)
