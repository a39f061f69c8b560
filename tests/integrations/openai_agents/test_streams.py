"""Streams are turns too, also those that nobody reads to the end."""

import asyncio
from typing import Any

import pytest
from agents import MaxTurnsExceeded

import optchat
from tests.integrations.openai_agents.lab import Lab, Scripted, agent_of, answer, build, calls, cancel_me, said

pytestmark = [pytest.mark.host, pytest.mark.anyio]


async def read(lab: Lab, agent: Any, given: str, **runner: Any) -> Any:
    session = lab.session()
    try:
        async with lab.runner.stream(agent, given, session=session, **runner) as stream:
            async for _ in stream.stream_events():
                pass
        return stream
    finally:
        session.close()


async def test_a_stream_is_a_turn(lab: Lab) -> None:
    lab.publish("Zanzibar.")
    model = Scripted([[calls("memory_search", '{"query": "Zanzibar"}')], [answer("Done.")], [answer("Next.")]])
    agent = agent_of(model)
    stream = await read(lab, agent, "go")
    assert stream.final_output == "Done."
    assert "Zanzibar." in model.asked(0)
    assert said(model.calls[1].input[-1:]).startswith('result c1: {"items":[{"ref":')
    assert lab.outcomes() == ["completed"]
    await read(lab, agent, "next")
    assert "Done." not in said(model.calls[2].input[-1:])
    assert lab.outcomes() == ["completed", "completed"]


async def test_a_cancelled_stream_does_not_raise_and_is_interrupted(lab: Lab) -> None:
    agent = agent_of(Scripted([[calls("build")], [answer("Never.")], [answer("Next.")]]))
    session = lab.session()
    async with lab.runner.stream(agent, "go", session=session) as stream:
        async for event in stream.stream_events():
            if event.type == "run_item_stream_event":
                stream.cancel()
    assert stream.final_output is None
    assert lab.outcomes() == ["interrupted"]
    assert lab.sealed()[:2] == ["user: go", "call c1: build"]
    session.close()
    await read(lab, agent_of(Scripted([[answer("Next.")]])), "next")
    assert lab.outcomes()[-1] == "completed"


async def test_cancelled_after_its_step_it_is_interrupted_with_all_that_was_said(lab: Lab) -> None:
    agent = agent_of(Scripted([[calls("build")], [answer("Never.")]]))
    session = lab.session()
    async with lab.runner.stream(agent, "go", session=session) as stream:
        stream.cancel(mode="after_turn")
        async for _ in stream.stream_events():
            pass
    assert lab.outcomes() == ["interrupted"]
    assert lab.sealed() == ["user: go", "call c1: build", "result c1: built 0"]
    session.close()
    await read(lab, agent_of(Scripted([[answer("Next.")]])), "next")


@pytest.mark.parametrize("reading", [False, True])
async def test_a_stream_that_is_left_early_is_stopped(lab: Lab, reading: bool) -> None:
    asked = asyncio.Event()

    async def slow(_asked: object) -> object:
        asked.set()
        await asyncio.sleep(60)
        raise AssertionError("the run goes on")

    agent = agent_of(Scripted([slow]))
    session = lab.session()
    async with lab.runner.stream(agent, "go", session=session) as stream:
        if reading:
            async for _ in stream.stream_events():
                break
        await asked.wait()
    assert lab.outcomes() == ["interrupted"]
    assert stream.run_loop_task is None or stream.run_loop_task.done()
    session.close()


async def test_errors_come_out_of_the_events_and_fail_the_turn(lab: Lab) -> None:
    agent = agent_of(Scripted([[calls("build")], RuntimeError("out")]))
    with pytest.raises(RuntimeError, match="out"):
        await read(lab, agent, "go")
    with pytest.raises(MaxTurnsExceeded):
        await read(lab, agent_of(Scripted([[calls("build")]])), "go", max_turns=1)
    assert lab.outcomes() == ["failed", "failed"]
    assert lab.sealed()[:3] == ["user: go", "call c1: build", "result c1: built 0"]
    await read(lab, agent_of(Scripted([[answer("Next.")]])), "next")


async def test_an_error_that_the_block_handles_fails_the_turn_too(lab: Lab) -> None:
    session = lab.session()
    async with lab.runner.stream(agent_of(Scripted([RuntimeError("out")])), "go", session=session) as stream:
        with pytest.raises(RuntimeError):
            async for _ in stream.stream_events():
                pass
    assert lab.outcomes() == ["failed"]
    session.close()


async def test_an_error_of_the_block_fails_the_turn(lab: Lab) -> None:
    session = lab.session()
    with pytest.raises(ZeroDivisionError):
        async with lab.runner.stream(agent_of(Scripted([[answer("Done.")]])), "go", session=session):
            raise ZeroDivisionError
    assert lab.outcomes() == ["failed"]
    session.close()


async def test_what_hinders_a_turn_is_raised_where_the_block_begins(lab: Lab) -> None:
    agent = agent_of(Scripted([[answer("Done.")]]))
    await read(lab, agent, "go")
    session = lab.session()
    await session.pop_item()
    model = Scripted([[answer("Never.")]])
    with pytest.raises(optchat.ResyncNeeded):
        async with lab.runner.stream(agent_of(model), "next", session=session):
            raise AssertionError("the block was entered")
    assert model.calls == []
    session.close()


async def test_a_cancelled_task_interrupts_its_stream(lab: Lab) -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        await read(lab, agent_of(Scripted([[calls("optchat_interrupted")]]), build, cancel_me(task)), "go")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled())
    assert lab.outcomes() == ["interrupted"]
    assert lab.sealed() == ["user: go", "call c1: optchat_interrupted"]
