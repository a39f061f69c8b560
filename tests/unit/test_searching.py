"""How queries are read, candidates ranked and excerpts cut."""

import contextlib

import pytest

from optchat.core.errors import BadArgument
from optchat.core.excerpts import EXCERPT_BYTES, excerpt
from optchat.core.ranking import FREQUENCY_CAP, Candidate, Weights, rank, rarity
from optchat.core.records import KIND_NUMBER
from optchat.core.searching import (
    MAX_CHARACTERS,
    MAX_WORDS,
    check_kind,
    check_limit,
    check_order,
    read_query,
    words_counted,
)
from optchat.core.words import Phrase

# ---- queries ---------------------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    return [phrase.words[0] for phrase in read_query(text).words]


def test_stop_words_fall_away() -> None:
    assert words("What did we decide about the queue?") == ["decid", "queu"]


def test_a_query_of_stop_words_only_keeps_them() -> None:
    assert words("what was it") == ["what", "was", "it"]


def test_newest_keeps_every_word() -> None:
    assert [term.text for term in read_query("the queue").terms] == ["the", "queue"]


def test_quoted_text_is_one_phrase_whose_words_count_too() -> None:
    query = read_query('why "blue green switch"')
    assert [term.text for term in query.phrases] == ["blue green switch"]
    assert query.phrases[0].quoted
    assert words('why "blue green switch"') == ["blu", "green", "switch"]


def test_a_stop_word_in_a_phrase_stays_in_the_phrase_only() -> None:
    query = read_query('"state of the art"')
    assert query.terms[0].spellings == (Phrase(("stat", "of", "the", "art")),)
    assert [phrase.words[0] for phrase in query.words] == ["stat", "art"]


@pytest.mark.parametrize("typed", ["gpt-4o", "b/c", "push_sessions", "id.go", "ENT-98", "camelCase"])
def test_a_token_with_inner_structure_is_a_phrase_besides(typed: str) -> None:
    query = read_query(typed)
    assert len(query.terms) == 1
    assert query.terms[0].is_phrase
    assert len(query.words) == 2


def test_surrounding_punctuation_makes_no_phrase() -> None:
    assert not read_query("(queue),").terms[0].is_phrase


def test_the_same_word_twice_is_one() -> None:
    assert len(read_query("queue queue Queues").terms) == 1


@pytest.mark.parametrize(
    "hostile",
    ['"', '""', "NEAR(a b, 2)", "text:queue", "place:s1", "a AND NOT b", "a*", "^a", "{x y}:z", "a;--", "(((", "'x'"],
)
def test_no_syntax_is_read(hostile: str) -> None:
    with contextlib.suppress(BadArgument):
        query = read_query(hostile)
        assert all(word.isalnum() for term in query.terms for phrase in term.spellings for word in phrase.words)


@pytest.mark.parametrize("empty", ["", "   ", "\n\t", "?!", '""', "→ 🙂", "\x00", "\ud800"])
def test_a_query_without_a_word_is_refused_with_advice(empty: str) -> None:
    with pytest.raises(BadArgument, match="name a word"):
        read_query(empty)


def test_limits_are_exact() -> None:
    read_query("x" * MAX_CHARACTERS)
    with pytest.raises(BadArgument, match="513 characters"):
        read_query("x" * (MAX_CHARACTERS + 1))
    read_query(" ".join(f"w{n}" for n in range(MAX_WORDS)))
    with pytest.raises(BadArgument, match="33 words"):
        read_query(" ".join(f"w{n}" for n in range(MAX_WORDS + 1)))
    with pytest.raises(BadArgument, match="33 words"):
        read_query('"' + " ".join(f"w{n}" for n in range(MAX_WORDS + 1)) + '"')


@pytest.mark.parametrize("value", [None, 7, b"queue", ["queue"]])
def test_a_query_is_text(value: object) -> None:
    with pytest.raises(BadArgument, match="a query is text"):
        read_query(value)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("limit", [0, 51, -1, True, 2.0, "10"])
def test_a_bad_limit_is_refused(limit: object) -> None:
    with pytest.raises(BadArgument, match="from 1 to 50"):
        check_limit(limit)  # type: ignore[arg-type]  # on purpose


def test_a_bad_order_or_kind_is_refused() -> None:
    assert (check_limit(50), check_order("best"), check_kind("summary"), check_kind(None)) == (
        50,
        "best",
        "summary",
        None,
    )
    with pytest.raises(BadArgument, match="'best' or 'newest'"):
        check_order("oldest")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadArgument, match="use one of"):
        check_kind("thought")  # type: ignore[arg-type]  # on purpose


def test_counts_go_by_what_was_typed() -> None:
    assert words_counted(read_query("Queue redis").terms, [3, 0]) == {"Queue": 3, "redis": 0}


# ---- ranking ---------------------------------------------------------------------------------------------------------


def candidate(key: int, *places: list[int], kind: str = "assistant", length: int = 50, **more: object) -> Candidate:
    settings = {"group": None, "concludes": False} | more
    return Candidate(
        key,
        KIND_NUMBER[kind],
        length,
        counts=tuple(map(len, places)),
        places=lambda: places,
        **settings,  # type: ignore[arg-type]
    )


def order(candidates: list[Candidate], weights: Weights) -> list[int]:
    return rank(candidates, weights)


TWO_WORDS = Weights((10, 10), (), ())


def test_the_rarer_word_weighs_more() -> None:
    assert rarity(1) > rarity(10) > rarity(FREQUENCY_CAP) == rarity(FREQUENCY_CAP + 9) > rarity(0) == 0
    assert order([candidate(1, [3], []), candidate(2, [], [3])], Weights((100, 2), (), ())) == [2, 1]


def test_more_words_and_a_shorter_text_rank_first() -> None:
    assert order([candidate(1, [0], []), candidate(2, [0], [9])], TWO_WORDS) == [2, 1]
    assert order([candidate(1, [0], [9], length=900), candidate(2, [0], [9])], TWO_WORDS) == [2, 1]


def test_nearness_counts() -> None:
    assert order([candidate(1, [0], [1]), candidate(2, [0], [40])], TWO_WORDS) == [1, 2]


def test_who_speaks_counts_and_a_conclusion_most() -> None:
    same = [[0], [1]]
    found = order(
        [candidate(1, *same, kind="tool_result"), candidate(2, *same), candidate(3, *same, concludes=True)], TWO_WORDS
    )
    assert found == [3, 2, 1]


def test_what_the_turn_says_counts() -> None:
    request = candidate(1, [0], [], group=7, kind="user")
    assert order([request, candidate(2, [], [0], group=7), candidate(3, [], [0])], TWO_WORDS)[0] == 2


def test_quoted_phrases_come_first_whatever_else_matches() -> None:
    weights = Weights((10, 10), (5,), (True,))
    assert order([candidate(1, [0, 5, 9], [1, 6, 12], []), candidate(2, [0], [1], [0], length=400)], weights) == [2, 1]


def test_ties_go_to_the_newer_in_any_order_of_finding() -> None:
    tied = [candidate(key, [0], [1]) for key in range(5)]
    assert order(tied, TWO_WORDS) == order(tied[::-1], TWO_WORDS) == [4, 3, 2, 1, 0]


# ---- excerpts --------------------------------------------------------------------------------------------------------


def test_a_short_text_is_shown_whole() -> None:
    assert excerpt("the queue\nis durable", read_query("queue")) == "the queue\nis durable"


@pytest.mark.parametrize(
    ("before", "hit", "after", "query"),
    [
        ("lead " * 400, "the durable queue", " tail" * 400, "durable queue"),
        ("", "queue first", " tail" * 400, "queue"),
        ("lead " * 400, "last queue", "", "queue"),
        ("中文" * 400, "持久队列", "中文" * 400, "持久队列"),
        ("🙂 " * 400, "queue", " 🙂" * 400, "queue"),
        ("x" * 3000, " queue ", "y" * 3000, "queue"),
        ("lead " * 400, "callSpawnDetachedAnalytics", " tail" * 400, "detached"),
        ("lead " * 400, "Warteschlange für Größe", " tail" * 400, "GRÖSSE"),
    ],
)
def test_an_excerpt_shows_the_hit_in_240_bytes(before: str, hit: str, after: str, query: str) -> None:
    text = before + hit + after
    shown = excerpt(text, read_query(query))
    assert hit.strip() in shown
    assert len(shown.encode()) <= EXCERPT_BYTES
    assert shown.strip("…") in text
    assert shown.startswith("…") == (not text.startswith(shown.strip("…")))
    assert shown.endswith("…") == (not text.endswith(shown.strip("…")))


def test_the_stretch_with_most_words_is_shown() -> None:
    text = "queue " + "filler " * 200 + "the redis queue was rejected " + "filler " * 200 + "redis"
    assert "the redis queue was rejected" in excerpt(text, read_query("rejected redis queue"))


def test_words_are_not_cut() -> None:
    text = "alphabet " * 100 + "queue " + "alphabet " * 100
    assert set(excerpt(text, read_query("queue")).strip("…").split()) == {"alphabet", "queue"}


def test_graphemes_are_not_cut() -> None:
    family, flag, accent = "👨‍👩‍👧", "🇨🇭", "e\u0301"
    for unit in (family, flag, accent):
        shown = excerpt(unit * 400 + " queue " + unit * 400, read_query("queue"))
        assert len(shown.encode()) <= EXCERPT_BYTES
        assert unit in shown
        assert shown.strip("…").replace(unit, "").strip() == "queue"


def test_lone_surrogates_are_shown_as_replacements() -> None:
    assert excerpt("a\ud800 queue", read_query("queue")) == "a\ufffd queue"
