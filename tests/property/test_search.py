"""
Laws of search.

- *Pinned*: what a pinned reader finds is exactly what a filter over all documents by the visibility predicate finds; it
  does not change when others publish later, nor does its order.
- *Scoped*: nothing of another scope is ever found.
- *Inert*: no query is syntax; whatever is typed gives a page or a BadArgument.
"""

from contextlib import suppress
from unittest.mock import patch

from benchmarks._corpus import Corpus, Session, connect
from hypothesis import assume, given, strategies as st

from optchat.core.errors import BadArgument
from optchat.core.excerpts import EXCERPT_BYTES, excerpt
from optchat.core.searching import MAX_CHARACTERS, read_query
from optchat.core.words import INDEXED_AT_ONCE_BYTES, phrases_of, pieces, words_of
from optchat.engine import searching
from optchat.engine.searching import search
from optchat.engine.sights import Reading

WORDS = ("queue", "redis", "broker", "view_frontier")
KINDS = ("user", "assistant", "tool_result")

says = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
records = st.lists(st.tuples(st.sampled_from(KINDS), says), min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 2), records),
        st.tuples(st.just("publish"), st.integers(0, 2)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("retire"), st.integers(0, 9)),
    ),
    max_size=12,
)


class World:
    """A scope, and beside it a plain list of everything that was sealed in it."""

    def __init__(self) -> None:
        self.corpus = Corpus.create(connect())
        self.sessions = [self.corpus.session() for _ in range(3)]
        self.waiting: dict[int, list[tuple[int, int, int]]] = {0: [], 1: [], 2: []}
        self.sealed: list[tuple[int, int, str]] = []  # session, seq, text
        self.published: dict[int, tuple[int, int, int]] = {}  # number: session, start, end
        self.removed: set[int] = set()
        self.retired: dict[int, int] = {}

    def play(self, script: list[tuple[object, ...]]) -> None:
        for step in script:
            match step:
                case ("turn", int(number), list(said)):
                    session = self.sessions[number]
                    self.sealed += [(number, session.length + i, text) for i, (_, text) in enumerate(said)]
                    self.waiting[number].append(self.corpus.turn(session, said))
                case ("publish", int(number)) if self.waiting[number]:
                    turn = self.waiting[number].pop(0)  # in turn order, as publications of one generation are made
                    self.published[self.corpus.publish(self.sessions[number], turn)] = (number, turn[1], turn[2])
                case ("remove", int(number)) if number in self.published:
                    self.removed.add(number)
                    self.corpus.remove(number)
                case ("retire", int(number)) if number in self.published and number not in self.retired:
                    self.corpus.retire(number)
                    self.retired[number] = self.corpus.clock
                case _:
                    pass

    def visible(self, reading: Reading, own: int | None) -> set[tuple[str, int]]:
        """By the rule, record by record."""
        found: set[tuple[str, int]] = set()
        for number, seq, _ in self.sealed:
            shown = any(
                publication < reading.sight.publications
                and publication not in self.removed
                and self.retired.get(publication, 1 << 60) > reading.sight.clock
                and session == number
                and start <= seq < end
                for publication, (session, start, end) in self.published.items()
            )
            if shown or number == own:
                found.add((self.sessions[number].row.session_id, seq))
        return found

    def text(self, session_id: str, seq: int) -> str:
        return next(
            text for number, at, text in self.sealed if at == seq and self.sessions[number].row.session_id == session_id
        )


def everything(reading: Reading, corpus: Corpus, query: str, order: str) -> list[str]:
    """All pages of an answer, as refs."""
    refs: list[str] = []
    cursor: str | None = None
    while True:
        page = search(reading, corpus.db, query, order=order, limit=3, cursor=cursor)  # type: ignore[arg-type]  # one of two
        refs += [hit.ref for hit in page]
        assert all(len(hit.excerpt.encode()) <= EXCERPT_BYTES for hit in page)
        if (cursor := page.cursor) is None:
            return refs


def places(refs: list[str]) -> list[tuple[str, int]]:
    return [(ref.split(":")[1], int(ref.split(":")[3].partition("+")[0])) for ref in refs]


@given(steps, steps, st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True), st.sampled_from([None, 0]))
def test_a_pinned_search_is_a_filter_of_everything_and_never_changes(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]], words: list[str], own: int | None
) -> None:
    world = World()
    world.play(before)
    corpus = world.corpus
    reading = corpus.pin() if own is None else corpus.as_session(world.sessions[own])
    allowed = world.visible(reading, own)
    first: dict[str, list[str]] = {}
    for order in ("best", "newest"):
        first[order] = everything(reading, corpus, " ".join(words), order)
        wanted = any if order == "best" else all
        expected = {place for place in allowed if wanted(word in world.text(*place).split() for word in words)}
        assert len(first[order]) == len(set(first[order]))
        assert set(places(first[order])) == expected
    # what others do later, removal aside, changes neither hits nor order
    later = [step for step in after if step[0] != "remove" and not (step[0] == "turn" and step[1] == own)]
    world.play(later)
    for order, refs in first.items():
        assert everything(reading, corpus, " ".join(words), order) == refs
    # and what is removed is gone at once
    world.play([step for step in after if step[0] == "remove"])
    allowed = world.visible(reading, own)
    for order in ("best", "newest"):
        assert set(places(everything(reading, corpus, " ".join(words), order))) <= allowed


@given(steps, steps, st.sampled_from(["queue", "queue redis", "queue redis view_frontier"]))
def test_what_is_counted_and_drawn_up_to_a_cap_is_drawn_under_the_pin(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]], query: str
) -> None:
    world = World()
    world.play(before)
    pin = world.corpus.pin()
    with patch.multiple(searching, FREQUENCY_CAP=2, MAX_CANDIDATES=3, _COMMON_SCORED=1, _COUNT_CAP=2):
        first = everything(pin, world.corpus, query, "best")
        assert len(first) <= 3
        assert set(places(first)) <= world.visible(pin, None)
        world.play([step for step in after if step[0] != "remove"])
        assert everything(pin, world.corpus, query, "best") == first


@given(steps, steps)
def test_a_pinned_ranking_does_not_depend_on_what_is_hidden(
    script: list[tuple[object, ...]], hidden: list[tuple[object, ...]]
) -> None:
    """Two scopes that differ in unpublished turns of others only: the same answer, in the same order."""
    bare, full = World(), World()
    secret = Session(full.corpus.session().row)
    for step in hidden:
        if step[0] == "turn":
            full.corpus.turn(secret, step[2])  # type: ignore[arg-type]  # a turn's records
    bare.play(script)
    full.play(script)
    for order in ("best", "newest"):
        answers = [
            [
                (full.sessions[[s.row.session_id for s in world.sessions].index(name)].row.key, seq)
                for name, seq in places(everything(world.corpus.pin(), world.corpus, "queue redis", order))
            ]
            for world in (bare, full)
        ]
        assert answers[0] == answers[1]


@given(steps)
def test_nothing_of_another_scope_is_found(script: list[tuple[object, ...]]) -> None:
    world = World()
    other = Corpus.create(world.corpus.db, "other")
    mine = other.session()
    other.publish(mine, other.turn(mine, [("user", "queue redis")]))
    world.play(script)
    for reading in (other.pin(), other.as_session(mine), other.as_owner()):
        for order in ("best", "newest"):
            assert places(everything(reading, other, "queue", order)) == [(mine.row.session_id, 0)]


hostile = st.one_of(
    st.text(max_size=MAX_CHARACTERS + 20),
    st.text(st.characters(categories=["Cs", "Lo", "Mn", "Po", "Sm", "So", "Cc"]), max_size=60),
    st.lists(
        st.sampled_from(
            [
                "NEAR(",
                "AND",
                "OR",
                "NOT",
                '"',
                "*",
                "^",
                ":",
                "text",
                "place:",
                "{",
                "}",
                "(",
                ")",
                "+",
                "-",
                "s1",
                "k0",
                "'",
                ";",
            ]
        ),
        max_size=40,
    ).map(" ".join),
)


@given(hostile)
def test_no_query_does_anything_but_answer_or_be_refused(query: str) -> None:
    corpus = CORPUS
    for reading in (corpus.pin(), corpus.as_owner()):
        for order in ("best", "newest"):
            with suppress(BadArgument):
                page = search(reading, corpus.db, query, order=order)  # type: ignore[arg-type]  # one of the two
                assert all(hit.session_id == corpus.sessions[0].row.session_id for hit in page)


CORPUS = Corpus.create(connect())
CORPUS.publish(
    CORPUS.session(), CORPUS.turn(CORPUS.sessions[0], [("user", "queue and or not near text place s1 k0 中文")])
)


@given(st.text(max_size=200))
def test_words_are_what_the_tokenizer_of_the_index_leaves_alone(text: str) -> None:
    words = words_of(text)
    for word in words.split(" ") if words else []:
        assert word
        assert all(character > "\x7f" or character.isalnum() for character in word)
        assert word == "".join(c.lower() if c < "\x80" else c for c in word)
    assert words == words_of(text)
    words.encode()  # no lone surrogate, which the driver would refuse


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), min_size=1, max_size=8), st.data())
def test_a_text_is_found_by_each_of_its_own_words(parts: list[str], data: st.DataObject) -> None:
    corpus = Corpus.create(connect())
    text = " ".join(parts)
    typed = data.draw(st.sampled_from(text.split() or [""]))
    assume(phrases_of(typed) and '"' not in typed and len(typed) <= MAX_CHARACTERS)
    try:
        query = read_query(typed)
    except BadArgument:
        assume(False)
        return
    assume(len(query.terms) == 1)
    session = corpus.session()
    corpus.publish(session, corpus.turn(session, [("user", text)]))
    for order in ("newest", "best"):
        assert len(everything(corpus.pin(), corpus, typed, order)) == 1


@given(st.text(max_size=600), st.text(min_size=1, max_size=30))
def test_an_excerpt_is_a_short_stretch_of_its_text(text: str, typed: str) -> None:
    try:
        query = read_query(typed)
    except BadArgument:
        assume(False)
        return
    shown = excerpt(text + " " + typed + " " + text, query)
    assert len(shown.encode()) <= EXCERPT_BYTES
    whole = (text + " " + typed + " " + text).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert shown.removeprefix("…").removesuffix("…") in whole or shown in whole


@given(st.text(min_size=1, max_size=20), st.integers(1, 3))
def test_pieces_rejoin_to_the_text(unit: str, times: int) -> None:
    data = (unit * (times * INDEXED_AT_ONCE_BYTES // len(unit.encode("utf-8", "surrogatepass")) + 1)).encode(
        "utf-8", "surrogatepass"
    )
    joined, at = b"", 0
    for start, end in pieces(data.decode("utf-8", "surrogatepass")):
        assert start <= at <= end
        data[start:end].decode("utf-8", "surrogatepass")
        joined, at = joined + data[at:end], end
    assert joined == data
