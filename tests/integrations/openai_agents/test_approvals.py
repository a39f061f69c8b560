"""A run that waits for an approval is one turn, in whatever process it goes on."""

from typing import Any

import pytest
from agents import GuardrailFunctionOutput, RunState, output_guardrail

import optchat
from optchat.testing.memories import open_beside
from tests.integrations.openai_agents.lab import Lab, Scripted, agent_of, answer, build, calls, deploy, said

pytestmark = [pytest.mark.host, pytest.mark.anyio]


async def test_an_approved_run_goes_on_as_the_same_turn_under_the_same_snapshot(lab: Lab) -> None:
    lab.publish("Known before.")
    made = [answer("I will."), calls("build", call_id="c1"), calls("deploy", '{"env": "prod"}', "c2")]
    model = Scripted([made, [answer("Deployed.")], [answer("Next.")]])
    agent = agent_of(model)
    waiting = await lab.run(agent, "ship it")
    assert len(waiting.interruptions) == 1
    assert lab.outcomes() == [None]
    lab.publish("Known only later.")
    state = waiting.to_state()
    state.approve(waiting.interruptions[0])
    result = await lab.run(agent, state)
    assert result.final_output == "Deployed."
    assert lab.outcomes() == ["completed"]
    assert "Known before." in model.asked(1)
    assert "Known only later." not in model.asked(1)
    assert lab.sealed() == [
        "user: ship it", "assistant: I will.", "call c1: build", "call c2: deploy",
        "result c1: built 0", "result c2: deployed prod", "assistant: Deployed.",
    ]  # fmt: skip
    await lab.run(agent, "next")
    assert "Known only later." in model.asked(2)


async def test_another_process_resumes_from_the_state_as_text(lab: Lab) -> None:
    lab.publish("Known before.")
    model = Scripted([[calls("deploy", '{"env": "prod"}')]])
    waiting = await lab.run(agent_of(model), "ship it")
    text = waiting.to_state().to_string()
    lab.publish("Known only later.")

    there = Lab(open_beside(lab.memory), lab.folder)
    model = Scripted([[answer("Deployed.")], [answer("Next.")]])
    agent = agent_of(model)
    state: RunState[Any] = await RunState.from_string(agent, text)
    state.approve(state.get_interruptions()[0])
    await there.run(agent, state)
    assert "Known before." in model.asked(0)
    assert "Known only later." not in model.asked(0)
    assert said(model.calls[0].input[-3:]).splitlines()[-1] == "result c1: deployed prod"
    assert there.outcomes() == ["completed"]
    assert there.sealed() == ["user: ship it", "call c1: deploy", "result c1: deployed prod", "assistant: Deployed."]
    await there.run(agent, "next")


async def test_a_rejected_call_is_answered_so(lab: Lab) -> None:
    agent = agent_of(Scripted([[calls("deploy")], [answer("Not deployed.")], [answer("Next.")]]))
    waiting = await lab.run(agent, "ship it")
    state = waiting.to_state()
    state.reject(waiting.interruptions[0])
    await lab.run(agent, state)
    assert lab.outcomes() == ["completed"]
    assert "not approved" in lab.sealed()[2]
    await lab.run(agent, "next")


async def test_it_may_wait_again(lab: Lab) -> None:
    made = [[calls("deploy", call_id="c1")], [calls("deploy", call_id="c2")], [answer("Twice.")]]
    agent = agent_of(Scripted(made))
    waiting = await lab.run(agent, "ship it")
    for _ in range(2):
        assert lab.outcomes() == [None]
        state = waiting.to_state()
        state.approve(waiting.interruptions[0])
        waiting = await lab.run(agent, state)
    assert lab.outcomes() == ["completed"]


async def test_steering_while_it_waits_is_sealed_where_it_came(lab: Lab) -> None:
    model = Scripted([[calls("deploy")], [answer("Deployed.")], [answer("Next.")]])
    agent = agent_of(model)
    waiting = await lab.run(agent, "ship it")
    state = waiting.to_state()
    if not hasattr(state, "add_input"):
        pytest.skip("this version has no steering")
    state.approve(waiting.interruptions[0])
    state.add_input("ship it")  # the same words
    await lab.run(agent, state)
    assert said(model.calls[1].input[-1:]) == "user: ship it"
    assert lab.sealed() == [
        "user: ship it", "call c1: deploy", "result c1: deployed ", "user: ship it", "assistant: Deployed.",
    ]  # fmt: skip
    await lab.run(agent, "next")


@pytest.mark.parametrize("guarded", [False, True])
async def test_another_run_gives_up_the_one_that_waits(lab: Lab, guarded: bool) -> None:
    @output_guardrail
    async def harmless(_context: Any, _agent: Any, _output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    # Where a tool's answer may be the output, and is guarded, the Session gets nothing of the response before that.
    more: dict[str, Any] = {"output_guardrails": [harmless], "tool_use_behavior": "stop_on_first_tool"}
    more = more if guarded else {}
    agent = agent_of(Scripted([[calls("deploy")], [answer("Never mind.")]]), **more)
    waiting = await lab.run(agent, "ship it")
    await lab.run(agent, "forget it")
    assert lab.outcomes() == ["interrupted", "completed"]
    state = waiting.to_state()
    state.approve(waiting.interruptions[0])
    with pytest.raises(optchat.UnknownRef, match="waits for this state"):
        await lab.run(agent, state)


async def test_a_stream_waits_and_goes_on_too(lab: Lab) -> None:
    agent = agent_of(Scripted([[calls("deploy")], [answer("Deployed.")]]))
    session = lab.session()
    async with lab.runner.stream(agent, "ship it", session=session) as waiting:
        async for _ in waiting.stream_events():
            pass
    assert lab.outcomes() == [None]
    state = waiting.to_state()
    state.approve(waiting.interruptions[0])
    async with lab.runner.stream(agent, state, session=session) as stream:
        async for _ in stream.stream_events():
            pass
    assert stream.final_output == "Deployed."
    assert lab.outcomes() == ["completed"]
    session.close()


async def test_a_nested_agents_approval_suspends_the_turn_and_stays_nested(lab: Lab) -> None:
    lab.publish("Zanzibar.")
    within = Scripted([[calls("deploy", call_id="n1")], [answer("The survey is done.")]])
    surveyor = agent_of(within, deploy, name="surveyor")
    tool = surveyor.as_tool("survey", "Surveys.")
    model = Scripted([[calls("survey", '{"input": "all"}')], [answer("Done.")], [answer("Next.")]])
    agent = agent_of(model, tool, build)
    waiting = await lab.run(agent, "survey")
    assert lab.outcomes() == [None]
    state = waiting.to_state()
    state.approve(waiting.interruptions[0])
    await lab.run(agent, state)
    assert all("Zanzibar." not in within.asked(number) for number in range(2))
    assert lab.sealed() == ["user: survey", "call c1: survey", "result c1: The survey is done.", "assistant: Done."]
    await lab.run(agent, "next")


async def test_an_older_state_leaves_the_run_that_waits_now_alone(lab: Lab) -> None:
    made = [[calls("deploy", '{"env": "one"}', "c1")], [calls("deploy", '{"env": "two"}', "c2")], [answer("Done.")]]
    model = Scripted(made)
    agent = agent_of(model)
    first = await lab.run(agent, "deploy one")
    older = first.to_state()
    second = await lab.run(agent, "deploy two")
    newer = second.to_state()
    older.approve(first.interruptions[0])
    with pytest.raises(optchat.UnknownRef, match="resume the newer state"):
        await lab.run(agent, older)
    assert lab.outcomes() == ["interrupted", None]
    newer.approve(second.interruptions[0])
    assert (await lab.run(agent, newer)).final_output == "Done."
    assert lab.outcomes() == ["interrupted", "completed"]
