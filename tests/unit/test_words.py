"""What counts as a word of the index."""

from itertools import pairwise

import pytest

from optchat.core.errors import ConfigError
from optchat.core.words import INDEXED_AT_ONCE_BYTES, MAX_WORD, Phrase, fold, normalized, phrases_of, pieces, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (" \t\n", ""),
        ("the queue", "the queu"),
        ("push_sessions", "push session"),
        ("src/store/search.py:153", "src stor search py 153"),
        ("gpt-4o", "gpt 4o"),
        ("camelCase", "camel cas camelcas"),
        ("HTTPServer2Go", "http server2 go httpserver2go"),
        ("checkpoint IDs and URLs", "checkpoint id and url"),
        ("the user's don't", "the user don"),
        ("0xDEADbeef a1b2c3", "0x dea dbeef 0xdeadbeef a1b2c3"),
        ("naïve CAFÉ Straße", "naïve café strasse"),
        ("ﬁne ＡＢＣ", "fin abc"),
        ("soft\u00adhyphen zero\u200bwidth", "softhyphen zerowidth"),
        ("中文字", "中文 文字 字"),
        ("中", "中"),
        ("使用Redis队列", "使用 用 redis 队列 列"),
        ("ひらがなカタカナ", "ひら らが がな なカ カタ タカ カナ ナ"),
        ("한국어를", "한국 국어 어를 를"),
        ("हिन्दी में", "हिन्दी में"),
        ("tab\x00nul\x1besc", "tab nul esc"),
        ("a\ud800b → 🙂 c", "a b c"),
    ],
)
def test_words(text: str, words: str) -> None:
    assert words_of(text) == words


def test_the_same_words_whatever_else_the_text_holds() -> None:
    ascii_text = "The user's camelCase and push_sessions, it's IDs"
    assert words_of(ascii_text + " é").removesuffix(" é") == words_of(ascii_text)


@pytest.mark.parametrize(
    "forms",
    [
        ("retry", "retries", "retried", "retrying"),
        ("error", "errors"),
        ("write", "writes", "writing"),
        ("stop", "stops", "stopped", "stopping"),
        ("class", "classes"),
        ("fix", "fixes", "fixed", "fixing"),
    ],
)
def test_inflections_are_one_word(forms: tuple[str, ...]) -> None:
    assert len({words_of(form) for form in forms}) == 1


@pytest.mark.parametrize("word", ["bus", "this", "class", "redis", "4oes", "café"])
def test_what_is_no_inflection_is_kept(word: str) -> None:
    assert fold(word) == word


def test_long_runs_are_cut_and_still_found() -> None:
    long = "a" * (3 * MAX_WORD + 5)
    assert max(map(len, words_of(long).split())) <= MAX_WORD
    assert " ".join(phrases_of(long)[0].words) == words_of(long)


def test_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="upgrade"):
        words_of("text", version=2)


@pytest.mark.parametrize(
    ("typed", "phrases"),
    [
        ("", ()),
        ("--", ()),
        ("queue", (Phrase(("queu",)),)),
        ("a/b", (Phrase(("a", "b")),)),
        ("gpt-4o", (Phrase(("gpt", "4o")),)),
        ("agentType", (Phrase(("agent", "typ")), Phrase(("agenttyp",)))),
        ("中文字", (Phrase(("中文", "文字")),)),
        ("中", (Phrase(("中",), open_end=True),)),
        ("用Redis队", (Phrase(("用", "redis", "队"), open_end=True),)),
    ],
)
def test_query_phrases(typed: str, phrases: tuple[Phrase, ...]) -> None:
    assert phrases_of(normalized(typed)) == phrases


@pytest.mark.parametrize(
    "query", ["中", "文", "用", "列", "使用", "中文字", "文字使用", "Redis", "用Redis", "Redis队列", "字使用Redis队"]
)
def test_every_part_of_mixed_text_is_found(query: str) -> None:
    words = words_of("中文字使用Redis队列").split()
    (phrase,) = phrases_of(normalized(query))
    starts = range(len(words) - len(phrase.words) + 1)
    exact = len(phrase.words) - phrase.open_end
    assert any(
        tuple(words[at : at + exact]) == phrase.words[:exact]
        and (not phrase.open_end or words[at + exact].startswith(phrase.words[-1]))
        for at in starts
    )


def test_a_short_text_is_one_piece() -> None:
    assert pieces("") == [(0, 0)]
    assert pieces("x" * INDEXED_AT_ONCE_BYTES) == [(0, INDEXED_AT_ONCE_BYTES)]


@pytest.mark.parametrize("unit", ["some words here\n", "中文字", "nospacesatall", "🙂", "\ud800"])
def test_pieces_cover_a_long_text_and_part_no_character(unit: str) -> None:
    text = unit * (3 * INDEXED_AT_ONCE_BYTES // len(unit.encode("utf-8", "surrogatepass")) + 1)
    data = text.encode("utf-8", "surrogatepass")
    found = pieces(text)
    assert found[0][0] == 0
    assert found[-1][1] == len(data)
    assert all(end - start <= INDEXED_AT_ONCE_BYTES for start, end in found)
    assert all(later < end for (_, end), (later, _) in pairwise(found))  # they overlap
    for start, end in found:
        data[start:end].decode("utf-8", "surrogatepass")


def test_pieces_cut_between_words() -> None:
    text = "alpha bravo charlie\n" * 20_000
    allowed = set(words_of("alpha bravo charlie").split())
    for start, end in pieces(text):
        assert set(words_of(text.encode()[start:end].decode()).split()) <= allowed
