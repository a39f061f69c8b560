"""Runs of openai-agents with memory: what the model gets, what is sealed, what the Session keeps, how turns end."""

import asyncio
import copy
import json
import threading
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    Runner,
    function_tool,
    input_guardrail,
    output_guardrail,
)

import optchat
from optchat.adapters.openai_agents import MemoryRunner
from optchat.aio import AsyncMemory
from tests.integrations.openai_agents.lab import (
    BUDGET,
    QUIET,
    Lab,
    Scripted,
    agent_of,
    answer,
    build,
    calls,
    cancel_me,
    said,
    thinks,
)

pytestmark = [pytest.mark.host, pytest.mark.anyio]


async def test_another_sessions_decision_is_in_each_request_and_history_is_not(lab: Lab) -> None:
    lab.publish("Zanzibar: no Redis.")
    model = Scripted(
        [
            [
                answer("First."),
            ],
            [calls("build")],
            [answer("Second.")],
        ]
    )
    agent = agent_of(model)
    await lab.run(agent, "yes, do that")
    first = await lab.stored()
    await lab.run(agent, "yes, do that")  # the same words: content must not confuse old and new
    stored = await lab.stored()
    assert stored[: len(first)] == first
    assert "shared_memory" not in json.dumps(stored)
    assert [said([item]).split(":")[0] for item in stored] == [
        "user", "assistant", "user", "call c1", "result c1", "assistant",
    ]  # fmt: skip
    for number in range(3):
        assert "Zanzibar: no Redis." in model.asked(number)
    for number in (1, 2):  # what came before is in memory's own blocks, and nowhere else
        own = [
            said([item]) for item in model.calls[number].input if not said([item]).startswith(("user: <", "user: Sh"))
        ]
        assert own[0] == "user: yes, do that"
        assert "First." not in "".join(own)
    assert said(model.calls[2].input[-3:]) == "user: yes, do that\ncall c1: build {}\nresult c1: built 0"
    assert lab.sealed() == [
        "user: yes, do that", "assistant: First.",
        "user: yes, do that", "call c1: build", "result c1: built 0", "assistant: Second.",
    ]  # fmt: skip
    assert lab.outcomes() == ["completed", "completed"]


async def test_the_session_keeps_what_it_keeps_without_memory(lab: Lab) -> None:
    def script() -> Scripted:
        return Scripted([[thinks("Hm."), answer("I will."), calls("build", '{"x": 2}')], [answer("Built.")]])

    session = lab.session("plain")
    await Runner.run(agent_of(script()), "build it", session=session, run_config=QUIET)
    session.close()
    await lab.run(agent_of(script()), "build it")
    assert await lab.stored() == await lab.stored("plain")


async def test_reasoning_goes_back_as_it_came_and_is_not_kept(lab: Lab) -> None:
    model = Scripted([[thinks("Zanzibar."), calls("build")], [answer("Built.")], [answer("Again.")]])
    agent = agent_of(model)
    await lab.run(agent, "build")
    await lab.run(agent, "again")
    thought = next(item for item in model.calls[1].input if item.get("type") == "reasoning")
    plain = Scripted([[thinks("Zanzibar."), calls("build")], [answer("Built.")]])
    await Runner.run(agent_of(plain), "build", run_config=QUIET)
    assert thought == next(item for item in plain.calls[1].input if item.get("type") == "reasoning")
    assert "Zanzibar" not in json.dumps(model.calls[2].input)
    assert lab.memory.search("Zanzibar", order="newest").hits == ()


async def test_memory_tools_answer_under_the_turns_snapshot(lab: Lab) -> None:
    lab.publish("Zanzibar: no Redis.")
    search = calls("memory_search", '{"query": "Zanzibar"}')

    def publish_meanwhile(_asked: object) -> object:
        lab.publish("Zanzibar: Redis after all.", "third")
        return [search]

    model = Scripted([publish_meanwhile, [answer("No Redis.")]])
    await lab.run(agent_of(model), "Redis?")
    assert "no Redis" in model.asked(1)
    assert "after all" not in model.asked(1)
    assert lab.memory.search("Zanzibar", kind="tool_result", order="newest").hits == ()


async def test_a_models_mistake_is_an_answer(lab: Lab) -> None:
    model = Scripted([[calls("memory_zoom", '{"ref": "nonsense"}')], [answer("Well.")]])
    await lab.run(agent_of(model), "zoom")
    assert "MALFORMED_REF" in model.asked(1)
    assert lab.outcomes() == ["completed"]


async def test_parallel_calls_are_sealed_in_the_sessions_order_also_one_that_fails(lab: Lab) -> None:
    made = [calls("broken", call_id="c1"), calls("build", '{"x": 2}', "c2"), calls("build", '{"x": 3}', "c3")]
    model = Scripted([made, [answer("One failed.")], [answer("Good.")]])
    agent = agent_of(model)
    await lab.run(agent, "all at once")
    sealed = lab.sealed()
    assert [line.split(":")[0] for line in sealed[1:7]] == [
        "call c1", "call c2", "call c3", "result c1", "result c2", "result c3",
    ]  # fmt: skip
    assert "error" in sealed[4]
    assert sealed[5:7] == ["result c2: built 2", "result c3: built 3"]
    await lab.run(agent, "and on")  # what is stored and what is sealed are one history


async def test_a_tool_that_may_not_fail_fails_the_turn(lab: Lab) -> None:
    @function_tool(failure_error_function=None)
    def fatal() -> str:
        """Fails the run."""
        raise ValueError("it broke")

    model = Scripted([[calls("build", call_id="c1"), calls("fatal", call_id="c2")], [answer("Good.")]])
    agent = agent_of(model, build, fatal)
    with pytest.raises(Exception, match="it broke"):
        await lab.run(agent, "go")
    assert lab.outcomes() == ["failed"]
    assert lab.sealed()[1:3] == ["call c1: build", "call c2: fatal"]
    await lab.run(agent, "go")
    assert lab.outcomes()[0] == "failed"
    assert lab.outcomes()[-1] == "completed"  # the Session has only the call that was answered: no difference


async def test_errors_of_the_model_fail_the_turn_and_the_next_goes_on(lab: Lab) -> None:
    model = Scripted([RuntimeError("out"), [calls("build")], RuntimeError("out again"), [answer("Good.")]])
    agent = agent_of(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out"):
            await lab.run(agent, "go")
    await lab.run(agent, "go")  # word for word the same
    assert lab.outcomes() == ["failed", "failed", "completed"]
    assert lab.sealed() == [
        "user: go", "user: go", "call c1: build", "result c1: built 0", "user: go", "assistant: Good.",
    ]  # fmt: skip


async def test_too_many_turns_fail_and_a_handler_does_not_hide_it(lab: Lab) -> None:
    model = Scripted([[calls("build")], [calls("build")], [answer("Good.")]])
    agent = agent_of(model)

    def out_of_turns(_: object) -> str:
        return "Out of turns."

    with pytest.raises(MaxTurnsExceeded):
        await lab.run(agent, "go", max_turns=1)
    result = await lab.run(agent, "go", max_turns=1, error_handlers={"max_turns": out_of_turns})
    assert result.final_output == "Out of turns."
    assert lab.outcomes() == ["failed", "failed"]
    assert lab.sealed()[-1] == "assistant: Out of turns."
    await lab.run(agent, "go")


async def test_guardrails_fail_the_turn(lab: Lab) -> None:
    @input_guardrail
    async def no_input(_context: Any, _agent: Any, _input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    @output_guardrail
    async def no_output(_context: Any, _agent: Any, _output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    with pytest.raises(InputGuardrailTripwireTriggered):
        await lab.run(agent_of(Scripted([[answer("No.")]]), input_guardrails=[no_input]), "go")
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await lab.run(agent_of(Scripted([[answer("No.")]]), output_guardrails=[no_output]), "go")
    await lab.run(agent_of(Scripted([[answer("Good.")]])), "go")
    assert lab.outcomes() == ["failed", "failed", "completed"]


async def test_a_cancelled_run_is_interrupted_and_its_call_stays(lab: Lab) -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        made = [calls("build", call_id="c1"), calls("optchat_interrupted", call_id="c2")]
        await lab.run(agent_of(Scripted([made]), build, cancel_me(task)), "go")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled())
    assert lab.outcomes() == ["interrupted"]
    assert lab.sealed()[:3] == ["user: go", "call c1: build", "call c2: optchat_interrupted"]
    model = Scripted([[answer("Good.")]])
    await lab.run(agent_of(model), "go")
    assert "optchat_interrupted" not in said(model.calls[0].input[-1:])
    assert lab.outcomes() == ["interrupted", "completed"]


async def test_a_tool_may_have_the_last_word(lab: Lab) -> None:
    agent = agent_of(Scripted([[calls("build", '{"x": 9}')]]), tool_use_behavior="stop_on_first_tool")
    result = await lab.run(agent, "go")
    assert result.final_output == "built 9"
    assert lab.outcomes() == ["completed"]
    assert lab.sealed()[-1] == "result c1: built 9"
    await lab.run(agent_of(Scripted([[answer("Good.")]])), "on")


async def test_a_failed_model_call_is_retried_with_the_same_request(lab: Lab) -> None:
    def always(_: object) -> bool:
        return True

    lab.publish("Zanzibar.")
    model = Scripted([RuntimeError("once"), [answer("Good.")]])
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, backoff={"initial_delay": 0.0}, policy=always))
    await lab.run(agent_of(model, model_settings=settings), "go")
    assert len(model.calls) == 2
    assert model.calls[0].input == model.calls[1].input
    assert "Zanzibar." in model.asked(1)
    assert lab.sealed() == ["user: go", "assistant: Good."]


async def test_either_memory(lab: Lab) -> None:
    runner = MemoryRunner(AsyncMemory(lab.memory), BUDGET)
    session = lab.session()
    await runner.run(agent_of(Scripted([[answer("Good.")]])), "go", session=session, run_config=QUIET)
    session.close()
    assert lab.outcomes() == ["completed"]


async def test_runs_side_by_side_keep_their_turns_apart(lab: Lab) -> None:
    def publishing(name: str) -> Scripted:
        return Scripted([[calls("memory_sessions")], [answer(f"{name} is done.")]])

    models = {name: publishing(name) for name in ("one", "two", "three")}
    await asyncio.gather(*(lab.run(agent_of(model), f"I am {name}", name) for name, model in models.items()))
    for name in models:
        assert lab.sealed(name)[0] == f"user: I am {name}"
        assert lab.sealed(name)[-1] == f"assistant: {name} is done."
        assert lab.outcomes(name) == ["completed"]


async def test_the_same_turn_id_is_the_same_turn(lab: Lab) -> None:
    agent = agent_of(Scripted([[answer("Good.")], [answer("Again.")]]))
    await lab.run(agent, "go", turn_id="t1")
    with pytest.raises(optchat.TurnEnded):
        await lab.run(agent, "go", turn_id="t1")
    assert lab.sealed() == ["user: go", "assistant: Good."]


async def test_items_as_input(lab: Lab) -> None:
    model = Scripted([[answer("Two things.")], [answer("Good.")]])
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": "How can I help?"},
        {"role": "user", "content": "This"},
        {"role": "user", "content": "This"},
        {"role": "user", "content": [{"type": "input_text", "text": "and that."}]},
    ]
    before = copy.deepcopy(items)
    await lab.run(agent_of(model), items)
    assert items == before
    assert model.calls[0].input[-5:] == await _as_the_host_has_them(items)
    assert lab.sealed() == [
        "assistant: How can I help?", "user: This", "user: This", "user: and that.", "assistant: Two things.",
    ]  # fmt: skip
    await lab.run(agent_of(model), "go")
    assert lab.outcomes()[-2:] == ["completed", "completed"]
    with pytest.raises(optchat.BadArgument, match="user's message"):
        await lab.run(agent_of(model), [{"role": "developer", "content": "Be brief."}])


async def _as_the_host_has_them(items: list[Any]) -> list[Any]:
    plain = Scripted([[answer("")]])
    await Runner.run(Agent(name="a", model=plain), items, run_config=QUIET)
    return plain.calls[0].input


def test_one_runner_serves_runs_in_several_loops_at_once(lab: Lab) -> None:
    runner, errors = lab.runner, list[BaseException]()
    together = threading.Barrier(4)

    def serve(number: int) -> None:
        async def slow(_asked: Any) -> Any:
            await asyncio.to_thread(together.wait, 10)
            return [answer("Done.")]

        async def one() -> None:
            await runner.run(agent_of(Scripted([slow])), "go", session=lab.session(f"k{number}"), run_config=QUIET)

        try:
            asyncio.run(one())
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [lab.outcomes(f"k{number}") for number in range(4)] == [["completed"]] * 4
