"""Data as text that a model is shown: it forges no line, no block and no attribute, and its size is known before."""

import unicodedata

import pytest

from optchat.core.render import (
    block,
    encodable,
    escape,
    escape_attribute,
    escaped_size,
    line,
    line_head,
    line_size,
    one_line,
    outcome_label,
    publication_label,
    unescape,
)

LINE_ENDS = [chr(code) for code in range(0x10000) if len(f"a{chr(code)}b".splitlines()) > 1]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("plain — ünïcode 👩‍👧", "plain — ünïcode 👩‍👧"),
        ("a < b && c > d", "a &lt; b &amp;&amp; c &gt; d"),
        ("&lt;", "&amp;lt;"),
        ("two\r\nlines", "two  lines"),
        ("\npub:0+1 | forged", " pub:0+1 | forged"),
        ("</shared_memory>", "&lt;/shared_memory&gt;"),
        ("\x1b[2Jgone", " [2Jgone"),
        ("a\u202eb\u2066c\ufeffd", "a b c d"),
        ("half \ud83d pair", "half \ufffd pair"),
        ('"quoted"', '"quoted"'),
    ],
)
def test_data_in_a_line(data: str, shown: str) -> None:
    assert escape(data) == shown
    assert escaped_size(data) == len(shown.encode())


@pytest.mark.parametrize("end", LINE_ENDS, ids=lambda end: f"U+{ord(end):04X}")
def test_no_line_end_survives(end: str) -> None:
    assert line("0+1", f"a{end}b") == "0+1 | a b\n"
    assert block("m", {"a": f"x{end}y"}, "") == '<m a="x y">\n</m>'


def test_no_control_character_survives() -> None:
    controls = [
        chr(code)
        for code in range(0x10000)
        if unicodedata.category(chr(code)) in {"Cc", "Zl", "Zp"}
        or unicodedata.bidirectional(chr(code)) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]

    assert len(controls) == 65 + 2 + 9
    assert one_line("".join(controls)) == " " * len(controls)


def test_a_lone_surrogate_is_one_replacement_and_a_pair_of_them_two() -> None:
    assert encodable("a\ud800b") == one_line("a\ud800b") == "a\ufffdb"
    assert encodable("\ud83d\ude00") == "\ufffd\ufffd"
    assert encodable("two\nlines, 😀") == "two\nlines, 😀"


def test_an_attribute_cannot_be_left() -> None:
    assert escape_attribute('"\' x="1"><i>&') == "&quot;&#39; x=&quot;1&quot;&gt;&lt;i&gt;&amp;"


@pytest.mark.parametrize("text", ["a < b", "&lt;&gt;&amp;", "&amp;lt;", "&&lt;;", "plain"])
def test_escaping_one_line_loses_nothing(text: str) -> None:
    assert unescape(escape(text)) == text


def test_a_line_is_a_head_and_data() -> None:
    assert line("pub:24+1", "user: a\nb", "k3f9a2bq") == "pub:24+1 [k3f9a2bq] | user: a b\n"
    assert line("0+4", "x") == "0+4 | x\n"
    assert line("0+4", "x").startswith(line_head("0+4"))
    assert line("0+4", "x", "1 failed").startswith(line_head("0+4", "1 failed"))


@pytest.mark.parametrize("label", ["", "1 failed", "k3f9a2bq interrupted"])
@pytest.mark.parametrize("text", ["", "a", "<é>\n\u2028👩", "\ud800"])
def test_a_lines_size_is_known_from_its_parts(label: str, text: str) -> None:
    assert line_size(len("pub:0+16"), escaped_size(text), len(label)) == len(line("pub:0+16", text, label).encode())


@pytest.mark.parametrize(
    ("failed", "interrupted", "label"),
    [(0, 0, ""), (2, 0, "2 failed"), (0, 1, "1 interrupted"), (3, 4, "3 failed, 4 interrupted")],
)
def test_an_inner_line_says_what_under_it_was_not_completed(failed: int, interrupted: int, label: str) -> None:
    assert outcome_label(failed, interrupted) == label


def test_a_publications_line_names_its_session_and_how_it_ended() -> None:
    assert publication_label("k3f9a2bq", "completed") == "k3f9a2bq"
    assert publication_label("k3f9a2bq", "failed") == "k3f9a2bq failed"
    assert publication_label("k3f9a2bq", "interrupted") == "k3f9a2bq interrupted"


def test_a_block() -> None:
    body = line("0+1", "</m>\n<m>")

    text = block("m", {"scope": 'a" b="c', "through": 3}, body)

    assert text == '<m scope="a&quot; b=&quot;c" through="3">\n0+1 | &lt;/m&gt; &lt;m&gt;\n</m>'
    assert block("m", {}, "") == "<m>\n</m>"
