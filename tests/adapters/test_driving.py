"""check_host, and the request path that integrations share."""

import importlib.metadata
from collections.abc import Iterator

import anyio
import pytest
from attrs import evolve

import optchat
from optchat.adapters import check_host
from optchat.adapters.anthropic import AnthropicMessages
from optchat.adapters.driving import Driver, admit, admit_async, awaited, plain, take_up, take_up_async
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


def test_a_history_that_memory_lacks_is_sealed_before_the_turn(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    history = [asks("Which queue?"), says("The broker's.")]
    admit(session, asks("Build it."), LAB, BUDGET, history=history).end("interrupted")
    assert [turn.request for turn in session.turns()] == ["Which queue?", "Build it."]


def test_an_edited_history_stops_the_turn_before_anything_is_pinned(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    history = [asks("Which queue?"), says("The broker's.")]
    admit(session, asks("Build it."), LAB, BUDGET, history=history).end("interrupted")
    edited = [asks("Which stack?"), *history[1:], asks("Build it.")]
    with pytest.raises(optchat.ResyncNeeded):
        admit(session, asks("again"), LAB, BUDGET, history=edited)
    assert session.info().turns == 2
    with pytest.raises(optchat.ResyncNeeded):  # off until it is on again, whatever the list says by now
        admit(session, asks("again"), LAB, BUDGET, history=[*history, asks("Build it.")])
    session.resync(edited)
    admit(session, asks("again"), LAB, BUDGET, history=edited).end("interrupted")


def test_closing_seals_what_there_is_and_ends(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Ship it.")]
    driver = admit(session, log[0], LAB, BUDGET)
    driver.before_model(log)
    driver.close([*log, says("Shipped.")], "completed")
    assert [turn.outcome for turn in session.turns()] == ["completed"]
    assert session.info().length == 2


def test_what_could_not_be_sealed_is_not_completed(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Ship it.")]
    with pytest.raises(optchat.HostUnsupported):
        admit(session, log[0], LAB, BUDGET).close([*log, says("Shipped.")], "completed")
    assert [turn.outcome for turn in session.turns()] == ["failed"]


def test_pausing_seals_what_there_is(memory: optchat.Memory) -> None:
    session = memory.session("mine", adapter=LAB, host="lab")
    log = [asks("Ship it.")]
    driver = admit(session, log[0], LAB, BUDGET)
    driver.before_model(log)
    driver.pause([*log, *lab_native(optchat.HostMessage.assistant(calls=[optchat.ToolCallPart("c1", "ship", "{}")]))])
    again = take_up(session, LAB, BUDGET)
    assert [call.call_id for call in again.turn.pending] == ["c1"]
    assert again.turn.snapshot == driver.turn.snapshot


# ---- awaited ---------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_awaited_driver_does_the_same(memory: optchat.Memory) -> None:
    session = await awaited(memory).session("mine", adapter=LAB, host="lab")
    history = [asks("Which queue?"), says("The broker's.")]
    log = [asks("Build it.")]
    async with admit_async(session, log[0], LAB, BUDGET, history=history) as driver:
        with pytest.raises(optchat.HostUnsupported):
            await driver.observe([*log, says("Built.")])
        sent = await driver.before_model(log)
        assert sent[-1] is log[0]
        await driver.suspend()
    again = await take_up_async(session, LAB, BUDGET)
    assert again.turn.id == driver.turn.id
    await again.before_model(log)
    await again.close([*log, says("Built.")], "completed")
    assert [turn.outcome for turn in await session.turns()] == ["completed", "completed"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_last_words_of_a_cancelled_task_are_sealed(memory: optchat.Memory) -> None:
    session = await awaited(memory).session("mine", adapter=LAB, host="lab")
    log = [asks("Build it.")]
    with anyio.CancelScope() as scope:
        driver = await admit_async(session, log[0], LAB, BUDGET)
        await driver.before_model(log)
        scope.cancel()
        await driver.close([*log, says("Half of it.")], "interrupted", "cancelled")
        await anyio.sleep(1)  # where the cancellation comes through
        raise AssertionError("it was cancelled")
    assert [turn.outcome for turn in await session.turns()] == ["interrupted"]
    assert (await session.info()).length == 2


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_edited_history_stops_the_awaited_turn_too(memory: optchat.Memory) -> None:
    session = await awaited(memory).session("mine", adapter=LAB, host="lab")
    await (await admit_async(session, asks("Build it."), LAB, BUDGET)).end("interrupted")
    with pytest.raises(optchat.ResyncNeeded):
        await admit_async(session, asks("again"), LAB, BUDGET, history=[asks("Burn it.")])
    assert (await session.info()).turns == 1


def test_either_memory_serves_either_kind_of_hook(memory: optchat.Memory) -> None:
    wrapped = awaited(memory)
    assert plain(wrapped) is memory
    assert plain(memory) is memory
    assert awaited(wrapped) is wrapped
