"""check_host, and the request path that integrations share."""

import importlib.metadata
from collections.abc import Iterator

import pytest
from attrs import evolve

import optchat
from optchat.adapters import check_host
from optchat.adapters.anthropic import AnthropicMessages
from optchat.adapters.driving import Driver, admit, take_up
from optchat.adapters.openai import OpenAIChat, OpenAIResponses
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside
from tests.adapters.lab import Lab, LabAdapter, lab_native

BUDGET = optchat.Budget(32_000, 1_000)
INFO = optchat.HostInfo(name="toy", distribution="toy-agents")
LAB = LabAdapter()


def says(text: str) -> Lab:
    return lab_native(optchat.HostMessage.assistant(text))[0]


def asks(text: str) -> Lab:
    return lab_native(optchat.HostMessage.user(text))[0]


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory() as memory:
        yield memory


@pytest.mark.parametrize(
    ("installed", "floor", "below", "accepted"),
    [
        ("1.4", "1.4", "2", True),
        ("1.4.0", "1.4", None, True),
        ("1.10.1", "1.9", "2", True),
        ("1.3.9", "1.4", "2", False),
        ("2.0", "1.4", "2", False),
        ("2.0.0rc1", "1.4", "2", False),
        ("1.4rc1", "1.4", None, True),
        ("10.0", "9.5", None, True),
        ("2026.1.5", None, "2026.2", True),
        ("0.0.1", "1.62", None, False),
        ("unknown", "1.0", None, False),
        ("0.1", None, None, True),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, installed: str, floor: str | None, below: str | None, accepted: bool
) -> None:
    monkeypatch.setattr("optchat.adapters.checking.version", lambda _name: installed)
    info = evolve(INFO, version_floor=floor, version_below=below)
    if accepted:
        check_host(info)
        return
    with pytest.raises(optchat.HostUnsupported, match=r"toy-agents.*install toy-agents"):
        check_host(info)


def test_a_host_that_is_not_installed_is_named() -> None:
    with pytest.raises(optchat.HostUnsupported, match=r"not installed; install optchat-no-such-host>=1.4,<2"):
        check_host(evolve(INFO, distribution="optchat-no-such-host", version_floor="1.4", version_below="2"))
    check_host(evolve(INFO, distribution=None, version_floor="99"))


@pytest.mark.parametrize("adapter", [OpenAIChat(), OpenAIResponses(), AnthropicMessages()])
def test_the_wires_that_are_installed_are_ones_that_were_tested(adapter: OpenAIChat) -> None:
    pytest.importorskip(str(adapter.info.distribution))
    check_host(adapter.info)
    assert importlib.metadata.version(str(adapter.info.distribution))


def test_the_path_of_a_request(memory: optchat.Memory) -> None:
    with memory.session("other").turn("Redis?") as turn:
        turn.assistant("Zanzibar: no Redis.")
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Add a queue.")]
    with admit(session, log[0], LAB, BUDGET, turn_id="run-1") as driver:
        sent = driver.before_model(log)
        assert sent[-1] is log[0]
        assert "Zanzibar" in str(sent)
        log.append(says("Added."))
        assert driver.observe(log) == driver.observe(log)
    assert (driver.turn.id, driver.turn.outcome) == ("run-1", "completed")
    assert session.info().length == 2


def test_an_answer_without_a_context_is_no_memory_and_stops(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Add a queue.")]
    with (
        pytest.raises(optchat.HostUnsupported, match="never ran; check that it is registered"),
        admit(session, log[0], LAB, BUDGET) as driver,
    ):
        driver.observe(log)  # the request alone is nobody's answer
        driver.observe([*log, says("Added.")])
    assert session.info().length == 1, "what was said without memory is not sealed as if it had been"
    assert [turn.outcome for turn in session.turns()] == ["failed"]


def test_a_turn_taken_up_elsewhere_had_its_contexts(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Ship it.")]
    driver = admit(session, log[0], LAB, BUDGET)
    driver.before_model(log)
    log += lab_native(optchat.HostMessage.assistant(calls=[optchat.ToolCallPart("c1", "deploy", "{}")]))
    driver.observe(log)
    driver.suspend()
    there = take_up(open_beside(memory).session("mine", adapter=LAB, host="lab"), LAB, BUDGET)
    assert there.turn.snapshot == driver.turn.snapshot
    log += lab_native(optchat.HostMessage.result("c1", "approved"))
    there.observe(log)
    assert there.before_model(log)[-1] is log[-1]
    there.observe([*log, says("Shipped.")])
    there.end("completed")
    assert there.turn.outcome == "completed"


def test_a_turn_taken_up_before_any_answer_still_needs_one(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Ship it.")]
    admit(session, log[0], LAB, BUDGET).suspend()
    there: Driver[Lab] = take_up(session, LAB, BUDGET)
    with pytest.raises(optchat.HostUnsupported):
        there.observe([*log, says("Shipped.")])


def test_what_has_to_be_settled_first_is_settled_before_anything_is_pinned(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    seen: list[int] = []
    admit(session, asks("go"), LAB, BUDGET, prior=lambda given: seen.append(given.info().turns)).end("interrupted")
    assert seen == [0]

    def diverged(_session: object) -> None:
        raise optchat.ResyncNeeded("the host's history is another one; call resync()")

    with pytest.raises(optchat.ResyncNeeded):
        admit(session, asks("again"), LAB, BUDGET, prior=diverged)
    assert session.info().turns == 1
