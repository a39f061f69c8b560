"""The search index: what is found, by whom, in which order."""

from datetime import UTC, datetime, timedelta
from importlib.resources import files

import apsw.ext
import pytest
from benchmarks._corpus import Corpus, Session, connect

from optchat.core.errors import BadArgument, BadCursor, UnknownRef
from optchat.core.refs import KEY_BITS, Span
from optchat.core.retrieval import SearchPage
from optchat.core.words import words_of
from optchat.engine.handle import microseconds
from optchat.engine.searching import search
from optchat.engine.sights import Reading
from optchat.store import search as index


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.create(connect())


def published(corpus: Corpus, *texts: str, kind: str = "assistant", session: Session | None = None) -> Session:
    """A turn of a session, its own if none is given, published."""
    session = session or corpus.session()
    corpus.publish(session, corpus.turn(session, [(kind, text) for text in texts]))
    return session


def found(corpus: Corpus, reading: Reading, query: str, **more: object) -> SearchPage:
    return search(reading, corpus.db, query, **more)  # type: ignore[arg-type]  # each test's own arguments


def excerpts(corpus: Corpus, query: str, reading: Reading | None = None, **more: object) -> list[str]:
    return [hit.excerpt for hit in found(corpus, reading or corpus.pin(), query, **more)]


# ---- hits ------------------------------------------------------------------------------------------------------------


def test_a_hit_names_its_record_session_and_publication(corpus: Corpus) -> None:
    session = published(corpus, "nothing here", "decided against Redis")
    page = found(corpus, corpus.pin(), "redis")
    (hit,) = page.hits
    assert hit.ref == f"session:{session.row.session_id}:0:1+1"
    assert (hit.kind, hit.excerpt, hit.publication_ref) == ("assistant", "decided against Redis", "pub:0+1")
    assert hit.session_id == session.row.session_id
    assert (page.cursor, page.unindexed, page.words) == (None, 0, {})


def test_best_takes_any_word_and_newest_wants_all(corpus: Corpus) -> None:
    published(corpus, "the queue", "redis", "redis queue", "neither")
    assert excerpts(corpus, "redis queue", order="newest") == ["redis queue"]
    assert excerpts(corpus, "redis queue")[0] == "redis queue"
    assert set(excerpts(corpus, "redis queue")) == {"redis queue", "redis", "the queue"}


def test_newest_comes_newest_first(corpus: Corpus) -> None:
    published(corpus, *(f"queue {number}" for number in range(5)))
    assert excerpts(corpus, "queue", order="newest") == [f"queue {number}" for number in (4, 3, 2, 1, 0)]


def test_words_say_what_stands_where_newest_finds_nothing(corpus: Corpus) -> None:
    published(corpus, "the queue", "redis", "redis")
    page = found(corpus, corpus.pin(), "redis queue kafka", order="newest")
    assert (page.items, page.words) == ((), {"redis": 2, "queue": 1, "kafka": 0})
    assert found(corpus, corpus.pin(), "kafka").words == {}


@pytest.mark.parametrize("order", ["best", "newest"])
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("frontier", "the view_frontier moved"),
        ("viewFrontier", "the view frontier moved"),
        ("viewfrontier", "class ViewFrontier"),
        ("view", "class ViewFrontier"),
        ("search.py", "in src/store/search.py:10"),
        ("gpt-4o", "asked gpt-4o-mini"),
        ("队列", "使用Redis队列化"),
        ("列", "使用Redis队列化"),
        ("用redis队", "使用Redis队列化"),
        ("使用", "使用Redis队列化"),
        ("retrying", "it retries"),
        ('"blue green"', "the blue/green switch"),
        ("GRÖSSE", "die Größe"),
    ],
)
def test_what_finds_what(corpus: Corpus, order: str, query: str, text: str) -> None:
    published(corpus, "something else", text)
    assert excerpts(corpus, query, order=order) == [text]


def test_a_token_with_punctuation_is_required_as_a_phrase_in_newest_and_ranks_first_in_best(corpus: Corpus) -> None:
    published(corpus, "gpt-4o is cheap", "4o before gpt is no name")
    assert excerpts(corpus, "gpt-4o", order="newest") == ["gpt-4o is cheap"]
    assert excerpts(corpus, "gpt-4o") == ["gpt-4o is cheap", "4o before gpt is no name"]


def test_quoted_words_apart_do_not_match_in_newest(corpus: Corpus) -> None:
    published(corpus, "blue and green", "blue green")
    assert excerpts(corpus, '"blue green"', order="newest") == ["blue green"]


def test_filters(corpus: Corpus) -> None:
    one, two = corpus.session(), corpus.session()
    day = datetime(2026, 3, 1, tzinfo=UTC)
    for session, number in ((one, 1), (two, 2)):
        turn = corpus.turn(
            session, [("user", f"queue asked {number}"), ("assistant", f"queue told {number}")],
            at=microseconds(day + timedelta(days=number)),
        )  # fmt: skip
        corpus.publish(session, turn)
    pin = corpus.pin()
    for order in ("best", "newest"):
        assert len(found(corpus, pin, "queue", order=order)) == 4
        assert {h.session_id for h in found(corpus, pin, "queue", order=order, session=two.row.session_id)} == {
            two.row.session_id
        }
        assert {h.kind for h in found(corpus, pin, "queue", order=order, kind="user")} == {"user"}
        late = found(corpus, pin, "queue", order=order, after=day + timedelta(days=2))
        assert {h.session_id for h in late} == {two.row.session_id}
        early = found(corpus, pin, "queue", order=order, before=day + timedelta(days=2))
        assert {h.session_id for h in early} == {one.row.session_id}
    with pytest.raises(BadArgument, match="offset"):
        found(corpus, pin, "queue", after=datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


def test_an_absent_an_unpublished_and_another_scopes_session_answer_alike(corpus: Corpus) -> None:
    hidden = corpus.session()
    corpus.turn(hidden, [("user", "queue")])
    other = published(Corpus.create(corpus.db, "other"), "queue")
    errors = set()
    for name in ("00000000", hidden.row.session_id, other.row.session_id):
        with pytest.raises(UnknownRef) as caught:
            found(corpus, corpus.pin(), "queue", session=name)
        errors.add(str(caught.value).replace(name, "…"))
    assert len(errors) == 1


# ---- who sees what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["best", "newest"])
def test_a_pin_sees_what_was_published_before_it_and_nothing_else(corpus: Corpus, order: str) -> None:
    published(corpus, "queue one")
    waiting = corpus.session()
    turn = corpus.turn(waiting, [("user", "queue waits")])
    pin = corpus.pin()
    published(corpus, "queue two")
    corpus.publish(waiting, turn)
    assert excerpts(corpus, "queue", pin, order=order) == ["queue one"]
    assert len(excerpts(corpus, "queue", order=order)) == 3


@pytest.mark.parametrize("order", ["best", "newest"])
def test_removed_publications_vanish_from_every_pin_and_retired_ones_from_later_pins(
    corpus: Corpus, order: str
) -> None:
    published(corpus, "queue kept")
    published(corpus, "queue retired")
    published(corpus, "queue removed")
    pin = corpus.pin()
    corpus.remove(2)
    corpus.retire(1)
    assert set(excerpts(corpus, "queue", pin, order=order)) == {"queue kept", "queue retired"}
    assert excerpts(corpus, "queue", order=order) == ["queue kept"]


@pytest.mark.parametrize("order", ["best", "newest"])
def test_a_session_sees_its_own_live_turn_and_no_other_scope(corpus: Corpus, order: str) -> None:
    own, other = corpus.session(), corpus.session()
    corpus.turn(own, [("user", "queue ended")])
    corpus.record(own, corpus.begin(own), "user", "queue live")
    corpus.turn(other, [("user", "queue of another")])
    published(Corpus.create(corpus.db, "elsewhere"), "queue elsewhere")
    reading = corpus.as_session(own)
    assert set(excerpts(corpus, "queue", reading, order=order)) == {"queue ended", "queue live"}
    assert all(hit.publication_ref is None for hit in found(corpus, reading, "queue", order=order))
    assert len(excerpts(corpus, "queue", corpus.as_owner(), order=order)) == 3


def test_a_fork_finds_inherited_records_under_its_own_refs(corpus: Corpus) -> None:
    parent, child = corpus.session(), corpus.session()
    corpus.turn(parent, [("user", "queue inherited"), ("assistant", "queue after the cut")])
    corpus.db.execute(
        "UPDATE segment SET base_segment = ?, base_length = 1 WHERE segment_pk = ?",
        (parent.row.segment_pk, child.row.segment_pk),
    )
    child.length = 1
    corpus.turn(child, [("user", "queue of the fork")])
    page = found(corpus, corpus.as_session(child), "queue", order="newest")
    name = child.row.session_id
    assert [(hit.excerpt, hit.ref) for hit in page] == [
        ("queue of the fork", f"session:{name}:0:1+1"),
        ("queue inherited", f"session:{name}:0:0+1"),
    ]


def test_superseded_records_are_found_by_nobody(corpus: Corpus) -> None:
    session = published(corpus, "queue said")
    corpus.turn(session, [("user", "queue never published")])
    corpus.retire(0)
    corpus.db.execute("UPDATE generation SET superseded_clock = 1")
    corpus.db.execute("UPDATE segment SET current_length = 0")
    assert excerpts(corpus, "queue", corpus.as_owner()) == []


def test_hidden_documents_are_found_by_nobody(corpus: Corpus) -> None:
    published(corpus, "queue hidden")
    corpus.db.execute("UPDATE document SET state = 1")
    assert excerpts(corpus, "queue", corpus.as_owner()) == excerpts(corpus, "queue") == []


# ---- summaries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["best", "newest"])
def test_a_summary_gives_way_to_a_source_under_it(corpus: Corpus, order: str) -> None:
    session = published(corpus, "the queue is durable", "yes")
    corpus.node(session, Span(0, 2), "chose a durable queue, with sagacity", visible=0)
    corpus.shared_node(Span(0, 1), "somebody chose a durable queue; sagacious choice")
    pin = corpus.pin()
    assert [hit.kind for hit in found(corpus, pin, "queue", order=order)] == ["assistant"]
    (hit,) = found(corpus, pin, "sagacity", order=order)
    assert (hit.kind, hit.ref) == ("summary", f"session:{session.row.session_id}:0:0+2")
    (shared,) = found(corpus, pin, "sagacious", order=order)
    assert (shared.ref, shared.publication_ref, shared.session_id) == ("pub:0+1", "pub:0+1", "")
    assert {hit.kind for hit in found(corpus, pin, "queue", order=order, kind="summary")} == {"summary"}


def test_a_node_is_visible_once_all_its_records_are_published(corpus: Corpus) -> None:
    session = corpus.session()
    first = corpus.turn(session, [("user", "one")])
    second = corpus.turn(session, [("user", "two")])
    corpus.node(session, Span(0, 2), "a summary of both with sagacity")
    corpus.publish(session, first)
    before = corpus.pin()
    corpus.publish(session, second)
    assert excerpts(corpus, "sagacity", before) == []
    assert len(excerpts(corpus, "sagacity")) == 1


def test_a_node_that_begins_before_the_first_published_record_stays_hidden(corpus: Corpus) -> None:
    session = corpus.session()
    corpus.turn(session, [("user", "never published")])
    second = corpus.turn(session, [("user", "two")])
    corpus.node(session, Span(0, 2), "a summary of both with sagacity")
    corpus.publish(session, second)
    assert excerpts(corpus, "sagacity") == []
    assert len(excerpts(corpus, "sagacity", corpus.as_owner())) == 1


def test_a_summary_that_lands_after_the_pin_is_not_in_it(corpus: Corpus) -> None:
    session = published(corpus, "one", "two")
    pin = corpus.pin()
    corpus.node(session, Span(0, 2), "sagacity", visible=0)
    assert excerpts(corpus, "sagacity", pin) == []
    assert excerpts(corpus, "sagacity") == ["sagacity"]


def test_a_replaced_revision_is_found_by_earlier_pins_only(corpus: Corpus) -> None:
    session = published(corpus, "one", "two")
    corpus.node(session, Span(0, 2), "sagacity", visible=0)
    pin = corpus.pin()
    key = corpus.db.execute("SELECT subject FROM document WHERE kind = 6").get
    corpus.clock += 1
    index.replace_node_documents(corpus.db, key, corpus.clock)
    assert excerpts(corpus, "sagacity", pin) == ["sagacity"]
    assert excerpts(corpus, "sagacity") == []


# ---- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["best", "newest"])
def test_pages_add_up_though_others_publish_between_them(corpus: Corpus, order: str) -> None:
    for number in range(7):
        published(corpus, f"queue {number}", f"queue again {number}")
    pin = corpus.pin()
    whole = [hit.ref for hit in found(corpus, pin, "queue", order=order, limit=50)]
    cursor, pages = None, []
    while True:
        page = found(corpus, pin, "queue", order=order, limit=4, cursor=cursor)
        pages.append([hit.ref for hit in page])
        published(corpus, "queue later")
        if (cursor := page.cursor) is None:
            break
    assert [len(page) for page in pages] == [4, 4, 4, 2]
    assert [ref for page in pages for ref in page] == whole


@pytest.mark.parametrize("order", ["best", "newest"])
def test_the_own_live_turn_does_not_shift_later_pages(corpus: Corpus, order: str) -> None:
    own = corpus.session()
    turn_pk = corpus.begin(own)
    for number in range(6):
        corpus.record(own, turn_pk, "user", f"queue {number}")
    first = found(corpus, corpus.as_session(own), "queue", order=order, limit=3)
    corpus.record(own, turn_pk, "user", "queue queue queue")
    second = found(corpus, corpus.as_session(own), "queue", order=order, limit=3, cursor=first.cursor)
    assert len({hit.ref for hit in (*first, *second)}) == 6
    assert second.cursor is None


def test_a_cursor_of_another_query_filter_or_snapshot_is_refused(corpus: Corpus) -> None:
    session = published(corpus, "queue one", "queue two", "redis")
    pin = corpus.pin()
    cursor = found(corpus, pin, "queue", limit=1).cursor
    assert cursor is not None
    for query, more in (
        ("redis", {}),
        ("queue", {"order": "newest"}),
        ("queue", {"kind": "assistant"}),
        ("queue", {"session": session.row.session_id}),
    ):
        with pytest.raises(BadCursor):
            found(corpus, pin, query, cursor=cursor, **more)
    published(corpus, "queue three")
    with pytest.raises(BadCursor, match="snapshot"):
        found(corpus, corpus.pin(), "queue", cursor=cursor)
    for broken in ("", "x", cursor[:-2], "é"):
        with pytest.raises(BadCursor):
            found(corpus, pin, "queue", cursor=broken)


# ---- large records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["best", "newest"])
def test_a_large_record_is_found_once_by_any_of_its_pieces(corpus: Corpus, order: str) -> None:
    text = "needle at first " + "hay stack " * 20_000 + "needle at last"
    published(corpus, text, kind="tool_result")
    (hit,) = found(corpus, corpus.pin(), "needle", order=order)
    assert "needle" in hit.excerpt
    (hit,) = found(corpus, corpus.pin(), '"at last"', order=order)
    assert hit.excerpt.endswith("needle at last")


def test_what_is_not_indexed_is_counted_also_when_it_was_indexed_after_the_pin(corpus: Corpus) -> None:
    session, own = corpus.session(), corpus.session()
    turn = corpus.turn(session, [("tool_result", "small")])
    key = session.row.segment_pk << KEY_BITS
    corpus.db.execute(
        "INSERT INTO job (scope_pk, kind, subject, tree_pk, position, state, priority, due_at, created_at)"
        " VALUES (?, 4, ?, 0, 0, 1, 0, 0, 0)",
        (corpus.row.scope_pk, key),
    )
    unpublished = corpus.pin()
    corpus.publish(session, turn)
    pin = corpus.pin()
    assert found(corpus, unpublished, "hay").unindexed == 0
    assert found(corpus, pin, "hay").unindexed == found(corpus, corpus.as_owner(), "hay").unindexed == 1
    assert found(corpus, corpus.as_session(session, None), "hay").unindexed == 1
    assert found(corpus, corpus.as_session(own), "hay").unindexed == 1
    corpus.index(session, turn[0], "tool_result", key, "hay " * 30_000)
    corpus.db.execute("DELETE FROM job")
    page = found(corpus, pin, "hay")
    assert (len(page), page.unindexed) == (0, 1)
    page = found(corpus, corpus.pin(), "hay")
    assert (len(page), page.unindexed) == (1, 0)


# ---- the index itself ------------------------------------------------------------------------------------------------


def test_a_deleted_entry_leaves_no_word_behind(corpus: Corpus) -> None:
    published(corpus, "secretword in the queue", "the queue stays")
    key = corpus.row.scope_pk << KEY_BITS
    index.delete_entry(corpus.db, key, words_of("secretword in the queue"))
    index.delete_entry(corpus.db, key, words_of("secretword in the queue"))  # again: nothing more
    assert excerpts(corpus, "queue") == ["the queue stays"]
    corpus.db.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    corpus.db.execute("INSERT INTO words (words) VALUES ('optimize')")  # in steps, where it is in service: store.scrubs
    data = corpus.db.serialize("main")
    blocks = corpus.db.execute("SELECT group_concat(hex(block), '') FROM words_data").get
    assert b"queu".hex().upper() in blocks  # as words gives it
    assert b"secret".hex().upper() not in blocks
    assert data.count(b"secretword") == 1  # in the record alone


def test_more_links_than_one_pass_takes(corpus: Corpus) -> None:
    own = corpus.session()
    corpus.turn(own, [("user", "queue at first")])
    base = own
    for _ in range(index._RANGES_A_PASS + 5):
        child = corpus.session()
        corpus.db.execute(
            "UPDATE segment SET base_segment = ?, base_length = ? WHERE segment_pk = ?",
            (base.row.segment_pk, base.length, child.row.segment_pk),
        )
        child.length = base.length
        corpus.turn(child, [("user", "queue on and on")])
        base = child
    reading = corpus.as_session(base)
    assert len(reading.sight.own) == index._RANGES_A_PASS + 6
    assert len(found(corpus, reading, "queue", order="newest", limit=50)) == 50
    assert excerpts(corpus, "first", reading) == ["queue at first"]


def test_every_statement_searches(corpus: Corpus) -> None:
    """No statement of a search, or of writing the index, reads a table from end to end."""
    session = published(corpus, "queue", "redis")
    corpus.node(session, Span(0, 2), "queue", visible=0)
    statements: dict[str, object] = {}

    def note(_: apsw.Cursor, sql: str, bindings: object) -> bool:
        statements[sql] = bindings
        return True

    readings = (corpus.pin(), corpus.as_session(session), corpus.as_owner())
    corpus.db.exec_trace = note
    for reading in readings:
        for order in ("best", "newest"):
            search(reading, corpus.db, "queue redis", order=order, session=session.row.session_id)  # type: ignore[arg-type]
            search(reading, corpus.db, "queue nowhere", order=order)  # type: ignore[arg-type]
    published(corpus, "more", session=session)
    index.replace_node_documents(corpus.db, 1, 1)
    index.delete_entry(corpus.db, corpus.row.scope_pk << KEY_BITS, words_of("queue"))
    corpus.db.exec_trace = None
    mine = [sql for sql in statements if "document" in sql or "words" in sql or "job" in sql]
    assert len(mine) > 10
    schema = files("optchat.store").joinpath("sql/schema.sql").read_text(encoding="utf-8")
    assert "document_summary" in schema
    for sql in mine:
        plan = [str(row[3]) for row in corpus.db.execute("EXPLAIN QUERY PLAN " + sql, statements[sql])]
        for step in plan:
            scans = step.startswith("SCAN") and "VIRTUAL TABLE" not in step and "CONSTANT" not in step
            assert not scans, (sql, plan)
            if "words VIRTUAL TABLE" in step:
                assert "M" in step.partition("INDEX")[2], (sql, step)  # a MATCH, never a walk over the index
