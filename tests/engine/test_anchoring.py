"""A session's next turn says again what its last request said, and adds what is new; and when it does not."""

import itertools
from pathlib import Path

import pytest

import optchat
from optchat.adapters.anthropic import AnthropicMessages
from optchat.engine.neutral import NeutralAdapter
from optchat.store import renderings
from optchat.store.rows import run
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from tests.engine.helpers import BUDGET, SMALL_VIEWS, Session, Turn, say, words

Context = optchat.Context[optchat.HostMessage]


def kinds(context: Context) -> list[str]:
    return [block.kind for block in context.blocks]


def stable(context: Context) -> tuple[str, ...]:
    return tuple(block.text for block in context.blocks if block.cache)


def added(context: Context) -> list[str]:
    return [block.text for block in context.blocks if block.kind == "since"]


def size(texts: tuple[str, ...]) -> int:
    return sum(len(text.encode()) for text in texts)


def ask(session: Session, text: str, budget: optchat.Budget = BUDGET) -> Context:
    """A completed turn with one call."""
    turn = session.turn(text)
    context = turn.context(budget)
    turn.assistant(f"done with {text}")
    turn.end("completed")
    return context


def in_full(context: Context) -> bool:
    return "since" not in kinds(context) and context.receipt.repeated_bytes == 0


def test_the_next_turn_repeats_the_bytes_and_adds_what_is_new() -> None:
    with temporary_memory() as memory:
        one, two = memory.session("one"), memory.session("two")
        say(two, "they chose sqlite")
        first = ask(one, "begin")
        say(two, "and wrote it down")
        second = ask(one, "go on")
        third = ask(one, "and on")
    assert in_full(first)
    assert kinds(second) == ["guidance", "shared", "session", "since", "previous_exchange"]
    assert stable(second)[:3] == stable(first)
    assert second.receipt.repeated_bytes == size(stable(first))
    assert stable(third)[:4] == stable(second)
    assert third.receipt.repeated_bytes == size(stable(second))
    new = added(second)[0].splitlines()
    assert (
        new[0] == f'<since snapshot="{second.receipt.snapshot.id}" shared_through="3" session_through="2" pending="0">'
    )
    assert new[1:] == [
        f"pub:1+1 [{one.id}] | user: begin assistant: done with begin",
        f"pub:2+1 [{two.id}] | user: and wrote it down",
        "0+1 | user: begin",
        "1+1 | assistant: done with begin",
        "</since>",
    ]
    assert second.receipt.refs[:5] == (
        "pub:0+1",
        "pub:1+1",
        "pub:2+1",
        f"session:{one.id}:0:0+1",
        f"session:{one.id}:0:1+1",
    )
    assert (second.receipt.shared_through, second.receipt.session_through) == (3, 2)
    assert second.receipt.tokens.blocks["since"] > 0
    assert "what is new" in second.receipt.why
    assert "begin" not in added(third)[-1]
    assert "go on" in added(third)[-1]


def test_all_that_was_added_is_charged() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        contexts = [ask(session, f"turn {number}") for number in range(4)]
        use = contexts[-1].receipt.tokens
        counter = NeutralAdapter()
        charged = [
            counter.count(native, optchat.tokenizer_for(None))
            for block in contexts[-1].blocks
            if block.kind == "since"
            for native in counter.encode((block,))
        ]
        assert len(charged) == 3
        assert use.blocks["since"] == sum(charged)
        assert use.left >= 0


def test_another_process_renders_the_same(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="s", compact="manual") as memory:
        ask(memory.session("one"), "begin")
        turn = memory.session("one").turn("go on", turn_id="t")
        context = turn.context(BUDGET)
        turn.suspend()
    with optchat.open(path, scope="s", compact="manual", policy=optchat.Policy(since_bytes=0)) as memory:
        again = memory.session("one").resume("t").context(BUDGET)
    assert added(context)
    assert [block.text for block in again.blocks] == [block.text for block in context.blocks]
    assert again.receipt.repeated_bytes == context.receipt.repeated_bytes


def test_a_preview_is_what_the_next_turn_gets() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        ask(session, "begin")
        preview = session.preview(BUDGET)
        turn = session.turn("go on")
        assert [block.text for block in preview.blocks] == [block.text for block in turn.context(BUDGET).blocks]
        assert added(preview)


def test_an_idle_session_is_rendered_in_full() -> None:
    clock = ManualClock()
    with temporary_memory(clock=clock) as memory:
        session = memory.session("one")
        turn = session.turn("begin")
        turn.context(BUDGET)
        clock.advance(200)
        turn.assistant("a long call's answer")  # the last call was made after the rendering
        turn.end("completed")
        clock.advance(200)
        assert added(ask(session, "go on"))
        clock.advance(300)
        late = ask(session, "later")
        assert in_full(late)
        assert "older than the provider's cache" in late.receipt.why


def test_too_much_news_is_rendered_in_full() -> None:
    with temporary_memory(policy=optchat.Policy(since_bytes=1_000)) as memory:
        one, two = memory.session("one"), memory.session("two")
        ask(one, "begin")
        say(two, words(1))
        assert added(ask(one, "go on"))
        for number in range(3):
            say(two, words(number))
        much = ask(one, "and on")
        assert in_full(much)
        assert "too much is new" in much.receipt.why
        assert added(ask(one, "on"))


@pytest.mark.parametrize("whose", ["one", "two"])
def test_a_batch_of_either_view_is_rendered_in_full(whose: str) -> None:
    with temporary_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer()) as memory:
        session = memory.session("one")
        contexts = []
        for number in range(12):
            memory.settle()
            contexts.append(ask(session, words(number)))
            if whose == "two":
                say(memory.session("two"), words(number))
        fulls = [number for number, context in enumerate(contexts) if in_full(context)]
        assert 1 < len(fulls) < len(contexts)
        assert all("view has changed" in contexts[number].receipt.why for number in fulls[1:])
        for before, after in itertools.pairwise(contexts):
            if not in_full(after):
                assert stable(after)[: len(stable(before))] == stable(before)


def test_a_partial_rendering_is_nothing_to_add_to() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        ask(session, words(1, 3_000))
        turn = session.turn("go on")
        partial = turn.context(BUDGET, readiness="partial")
        assert partial.receipt.missing
        assert in_full(partial)
        turn.end("completed")
        memory.settle()
        after = ask(session, "and on")
        assert in_full(after)
        assert "partial" in after.receipt.why
        assert added(ask(session, "and on"))


def test_an_isolated_session_adds_its_own_lines() -> None:
    with temporary_memory() as memory:
        session = memory.session("alone", isolated=True)
        ask(session, "begin")
        context = ask(session, "go on")
        assert kinds(context) == ["guidance", "session", "since", "previous_exchange"]
        assert added(context)[0].startswith(
            f'<since snapshot="{context.receipt.snapshot.id}" session_through="2">\n0+1 |'
        )


def test_another_generation_is_rendered_in_full() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        ask(session, "begin")
        ask(session, "go on")
        last = session.turns().items[-1]
        session.rewind(before=last.id)
        again = memory.session("one")
        assert in_full(ask(again, "go elsewhere"))
        context = ask(again, "and on")
        assert "1:2+1 | user: go elsewhere" in added(context)[0]


def test_what_another_session_took_back_is_not_repeated() -> None:
    with temporary_memory() as memory:
        one, two = memory.session("one"), memory.session("two")
        ask(two, "they chose walrus")
        assert "walrus" in stable(ask(one, "begin"))[1]
        two.rewind(before=two.turns().items[0].id)
        context = ask(one, "go on")
        assert in_full(context)
        assert "walrus" not in "".join(stable(context))


@pytest.mark.parametrize("open_meanwhile", [False, True])
def test_what_was_removed_is_not_repeated(open_meanwhile: bool) -> None:
    with temporary_memory() as memory:
        one, two = memory.session("one"), memory.session("two")
        ask(two, "they chose walrus")
        assert "walrus" in stable(ask(one, "begin"))[1]
        turn: Turn | None = one.turn("go on") if open_meanwhile else None
        if turn is not None:
            assert added(turn.context(BUDGET))
        two.delete()
        turn = turn or one.turn("go on")
        context = turn.context(BUDGET)
        assert not added(context)
        assert context.receipt.snapshot.id.endswith(".1") is open_meanwhile
        assert "walrus" not in "".join(block.text for block in context.blocks)
        turn.end("completed")
        assert added(ask(one, "and on"))


def test_what_showed_it_leaves_no_hash_once_it_is_scrubbed() -> None:
    with temporary_memory() as memory:
        one, two, three = memory.session("one"), memory.session("two"), memory.session("three")
        ask(two, "they chose walrus")
        ask(one, "begin")
        two.delete()
        ask(three, "begin")
        memory.settle()
        with memory._scope.store.read() as db:
            hashes = db.execute("SELECT length(memory_sha256), since ->> '$.stable' FROM rendering ORDER BY turn_pk")
            found = [(length, len(stable)) for length, stable in hashes]
        assert found == [(0, 0), (32, 64)], "the deleted session's own row is gone"
        assert in_full(ask(one, "go on"))


def test_a_repaired_line_is_not_repeated() -> None:
    said = itertools.count()
    counting = optchat.summarizer("s", window_tokens=100_000)(lambda _: f"words of attempt {next(said)}")
    with temporary_memory(summarizer=counting) as memory:
        one = memory.session("one")
        say(one, words(1, 3_000))
        memory.settle()
        before = memory.view(one.id).lines[0]
        assert before.text in stable(ask(one, "begin"))[2]
        assert memory.repair(before.ref)
        assert memory.view(one.id).lines[0].text != before.text
        context = ask(one, "go on")
        assert in_full(context)
        assert "what a line says has changed" in context.receipt.why
        assert memory.view(one.id).lines[0].text in stable(context)[2]


def test_another_tokenizer_is_rendered_in_full() -> None:
    class Characters:
        name = "characters"

        def count(self, text: str, /) -> int:
            return len(text)

    with temporary_memory() as memory:
        session = memory.session("one")
        ask(session, "begin")
        assert in_full(ask(session, "go on", optchat.Budget(window=100_000, output=1_000, tokenizer=Characters())))


def test_a_request_that_no_longer_fits_is_rendered_in_full() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        session = memory.session("one")
        for number in range(20):
            ask(session, words(number))
        memory.settle()
        turn = session.turn("go on")
        roomy = turn.context(BUDGET)
        assert added(roomy)
        tight = turn.context(optchat.Budget(window=roomy.receipt.tokens.blocks["since"], output=100))
        assert not added(tight)
        turn.end("completed")
        after = ask(session, "and on")
        assert in_full(after)
        assert "more detail" in after.receipt.why


def test_there_is_no_room_to_add() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        session = memory.session("one")
        contexts: list[Context] = []
        for number in range(24):
            memory.settle()
            contexts.append(ask(session, words(number), optchat.Budget(window=4_000, output=100)))
        assert any("no room to add" in context.receipt.why for context in contexts)
        assert all(context.receipt.tokens.left >= 0 for context in contexts)


def test_a_rendering_of_an_earlier_version_is_not_repeated() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        ask(session, "begin")
        with memory._scope.store.write() as db:
            run(db, "UPDATE rendering SET since = NULL", {})
        assert in_full(ask(session, "go on"))


def test_a_changed_byte_is_not_repeated() -> None:
    """Whatever it was that changed what a line says, the hash tells."""
    with temporary_memory() as memory:
        session = memory.session("one")
        ask(session, "begin")
        with memory._scope.store.write() as db:
            run(db, "UPDATE rendering SET since = json_set(since, '$.heads[0][3]', 9)", {})
        context = ask(session, "go on")
        assert in_full(context)
        assert "what a line says has changed" in context.receipt.why


def test_turns_without_a_call_are_passed_over() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        first = ask(session, "begin")
        session.note("a note")
        say(session, "a turn that called nobody")
        context = ask(session, "go on")
        assert stable(context)[:3] == stable(first)
        assert "a note" in added(context)[0]


def test_the_row_names_whose_blocks_are_repeated() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        first = session.turn("begin")
        first.context(BUDGET)
        first.end("completed")
        second = session.turn("go on")
        second.context(BUDGET)
        with memory._scope.store.read() as db:
            row = renderings.load_rendering(db, second._pk)
            before = renderings.load_rendering(db, first._pk)
        assert row is not None
        assert before is not None
        assert before.anchor_turn is None
        assert row.anchor_turn == first._pk
        assert row.since is not None
        assert len(row.since["heads"]) == 2


def test_a_mark_stands_on_the_last_block_that_stays() -> None:
    with temporary_memory() as memory:
        session = memory.session("one", adapter=AnthropicMessages())

        def marked(text: str) -> list[str]:
            turn = session.turn(text)
            content = turn.context(BUDGET).memory[0]["content"]
            turn.end("completed")
            return [block["text"].split()[0].rstrip(">") for block in content if "cache_control" in block]

        assert marked("begin") == ["<shared_memory", "<session_memory"]
        assert marked("go on") == ["<session_memory", "<since"]
        assert marked("and on") == ["<since", "<since"]
