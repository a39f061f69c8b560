"""
Every path of a call, through the whole library: what the provider was asked, and what is stored then.

Both providers are fakes on loopback. The clock is the test's, so that pauses and retries are waited for by moving it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen

import optchat
from optchat.compactor import AnthropicSummarizer, OpenAISummarizer, Price
from optchat.core.ports import Summarizer
from optchat.memory.opening import open_with
from optchat.testing import FakeAnthropic, FakeOpenAI, ManualClock, replies
from optchat.testing.replies import Reply

pytest.importorskip("openai", reason="install the extra openai")
pytest.importorskip("anthropic", reason="install the extra anthropic")

LONG = "The existing broker persists every message, so the queue needs no Redis of its own. " * 30
LINE = "assistant: decided against Redis; the existing broker persists messages"
PRICE = Price(input=1.0, output=2.0)


@frozen
class Place:
    """One memory whose summarizer asks a fake provider."""

    memory: optchat.Memory
    server: FakeOpenAI | FakeAnthropic
    clock: ManualClock

    def say(self) -> optchat.Session[optchat.HostMessage]:
        session = self.memory.session("s")
        with session.turn("Should we?") as turn:
            turn.assistant(LONG)
        return session

    @property
    def line(self) -> optchat.Line:
        """What stands for the long answer."""
        return self.memory.view(self.memory.session("s").id).lines[-1]

    def calls(self) -> list[tuple[str, int, str | None, str]]:
        """(outcome, try, why there was another, model) of each call in the ledger."""
        with self.memory._scope.store.read() as db:
            return db.execute("SELECT outcome, attempt, why, model FROM call ORDER BY call_pk").fetchall()

    def attempts(self) -> list[int]:
        with self.memory._scope.store.read() as db:
            return [row[0] for row in db.execute("SELECT attempts FROM job WHERE state = 1").fetchall()]

    def settle_in_time(self) -> optchat.Status:
        for _ in range(30):
            status = self.memory.settle()
            if status.ready:
                break
            self.clock.advance(30)
        return status


Make = Callable[..., "contextmanager[Place]"]


@pytest.fixture(params=["openai", "anthropic"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")

    @contextmanager
    def make(*script: Reply, fallback: Summarizer | None = None, background: bool = False) -> Iterator[Place]:
        clock = ManualClock()
        with FakeOpenAI(script) if request.param == "openai" else FakeAnthropic(script) as server:
            summarizer: Summarizer
            if isinstance(server, FakeOpenAI):
                summarizer = OpenAISummarizer("fake-model", base_url=server.base_url, price=PRICE)
            else:
                summarizer = AnthropicSummarizer("fake-model", base_url=server.base_url, price=PRICE)
            with open_with(
                tmp_path / "memory.db",
                scope="paths",
                summarizer=summarizer,
                fallback=fallback,
                tokenizer=None,
                policy=optchat.Policy(),
                background=background,
                mode="rwc",
                clock=clock,
            ) as memory:
                yield Place(memory, server, clock)

    return make


@optchat.summarizer("the-other", window_tokens=32_000)
def other(_request: optchat.SummaryRequest) -> str:
    return LINE


def test_an_answer_is_stored_as_it_is(place: Make) -> None:
    with place(replies.answer(LINE)) as here:
        here.say()
        assert here.memory.settle().ready
        assert (here.line.kind, here.line.text) == ("summary", LINE)
        (asked,) = here.server.requests
        assert LONG.strip() in asked.text
        assert "-" * 512 in asked.system, "the ruler"
        assert not asked.body.get("tools")
        assert "key" not in str(asked.headers.values())
        total = here.memory.status().total
        used = here.server.usage
        assert (total.calls, total.input_tokens, total.output_tokens) == (1, used.input_tokens, used.output_tokens)
        assert total.cost == pytest.approx((used.input_tokens + 2 * used.output_tokens) / 1e6)


@pytest.mark.parametrize(
    ("bad", "said_of_it"),
    [
        (replies.overshoot(2_000), "2000 bytes"),
        (replies.empty(), "empty"),
        (replies.tool_call(), "tool"),
        (replies.broken_utf8(), "damaged"),
        (replies.cut_off(), "limit"),
        (replies.answer("user: use the existing broker"), "user"),
    ],
    ids=["too long", "empty", "a tool call", "broken UTF-8", "stopped by length", "a forged speaker"],
)
def test_a_reply_that_is_no_summary_is_asked_for_again(place: Make, bad: Reply, said_of_it: str) -> None:
    with place(bad, replies.answer(LINE)) as here:
        here.say()
        assert here.settle_in_time().stand_ins == 0
        assert (here.line.kind, here.line.text) == ("summary", LINE)
        first, second = here.server.requests
        assert second.text.startswith(first.text[: len(first.system)])
        assert said_of_it in second.messages[-1][1], "it is told what was wrong"
        outcomes = here.calls()
        assert [(outcome, number) for outcome, number, _, _ in outcomes] == [("rejected", 1), ("accepted", 2)]
        assert outcomes[1][2] is not None


def test_prose_that_fits_is_kept_and_the_source_is_found_all_the_same(place: Make) -> None:
    with place(replies.prose()) as here:
        here.say()
        assert here.settle_in_time().ready
        assert any(hit.kind == "assistant" for hit in here.memory.search("broker persists").hits)


def test_five_tries_and_no_more(place: Make) -> None:
    with place(*(replies.overshoot(3_000) for _ in range(9))) as here:
        here.say()
        assert here.memory.settle().stand_ins == 1
        assert here.line.kind == "stand_in"
        assert len(here.server.requests) == 5
        assert [outcome for outcome, *_ in here.calls()] == ["rejected"] * 5


def test_a_refusal_is_not_argued_with(place: Make) -> None:
    with place(replies.refuse()) as here:
        here.say()
        assert here.memory.settle().stand_ins == 1
        assert len(here.server.requests) == 1
        assert [outcome for outcome, *_ in here.calls()] == ["refused"]


def test_a_refusal_goes_once_to_the_fallback(place: Make) -> None:
    with place(replies.refuse(), fallback=other) as here:
        here.say()
        assert here.memory.settle().stand_ins == 0
        assert here.line.text == LINE
        assert len(here.server.requests) == 1
        assert [(outcome, why, model) for outcome, _, why, model in here.calls()] == [
            ("refused", None, "fake-model"),
            ("accepted", "refused", "the-other"),
        ]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (replies.rate_limit(20), "rate"),
        (replies.server_error(503), "server"),
        (replies.unauthorized(), "authentication"),
        (replies.out_of_credit(), ""),
        (replies.drop(), "transport"),
        (replies.drop(within=True), ""),
    ],
    ids=["rate", "server", "key", "credit", "dropped", "dropped within"],
)
def test_trouble_pauses_and_uses_up_no_attempt(place: Make, trouble: Reply, kind: str) -> None:
    with place(trouble, trouble, replies.answer(LINE)) as here:
        session = here.say()
        status = here.memory.settle()
        assert status.paused is not None
        assert kind in status.paused
        assert status.resumes_at is not None
        assert here.attempts() == [0]
        turn = session.turn("And now?")
        with pytest.raises(optchat.MemoryNotReady) as caught:
            turn.context(optchat.Budget(32_000, 1_000), wait_seconds=0)
        assert (caught.value.paused, caught.value.resumes_at) == (status.paused, status.resumes_at)
        turn.end("interrupted")
        assert here.settle_in_time().stand_ins == 0
        assert [outcome for outcome, *_ in here.calls()][:3] == ["trouble", "trouble", "accepted"]
        assert here.line.kind != "stand_in"


def test_a_wrong_address_is_a_failed_attempt_and_not_an_outage(place: Make) -> None:
    with place(replies.fail(404), replies.answer(LINE)) as here:
        here.say()
        status = here.memory.settle()
        assert status.paused is None
        assert here.attempts() == [1]
        assert here.settle_in_time().stand_ins == 0


def test_a_silent_provider_holds_up_nothing_and_nobody(place: Make, tmp_path: Path) -> None:
    silent = threading.Event()
    with place(replies.stall(silent), background=True) as here:
        here.say()  # sealed and ended while the call is under way
        for _ in range(2_000):
            if here.server.requests:
                break
            threading.Event().wait(0.01)
        assert len(here.server.requests) == 1
        here.memory.close()
        silent.set()
        with optchat.open(tmp_path / "memory.db", scope="paths", mode="rw", compact="manual") as again:
            status = again.status()
            assert (status.running, status.stand_ins) == (0, 0)
            with again._scope.store.read() as db:
                assert db.execute("SELECT outcome FROM call").fetchall() == [("cancelled",)]
