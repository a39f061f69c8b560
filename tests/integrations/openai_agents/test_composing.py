"""What an application hands to Runner still works, memory's part in it; what cannot carry memory is refused."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from agents import Agent, RunConfig, RunHooks, SessionSettings, SQLiteSession, TResponseInputItem, handoff
from agents.extensions import handoff_filters
from agents.run_config import CallModelData, ModelInputData

import optchat
from optchat.adapters.openai_agents import MemoryRunner, memory_tools
from optchat.adapters.openai_agents.composing import without_history
from optchat.adapters.openai_agents.tools import NOT_RUNNING
from optchat.core.tools import Tools
from tests.integrations.openai_agents.lab import (
    BUDGET,
    QUIET,
    Item,
    Lab,
    Scripted,
    agent_of,
    answer,
    build,
    calls,
    said,
    thinks,
)

pytestmark = [pytest.mark.host, pytest.mark.anyio]


# ---- callbacks and hooks ---------------------------------------------------------------------------------------------


async def test_its_own_filter_runs_before_memory_comes_in(lab: Lab) -> None:
    lab.publish("Zanzibar.")
    seen: list[str] = []

    def redact(data: CallModelData[Any]) -> ModelInputData:
        seen.append(said(data.model_data.input))
        items: list[Any] = [
            {**item, "output": "cut"} if item.get("type") == "function_call_output" else item
            for item in data.model_data.input
        ]
        return ModelInputData(items, f"{data.model_data.instructions} Briefly.")

    model = Scripted([[calls("build")], [answer("Done.")], [answer("Next.")]])
    agent = agent_of(model)
    config = replace(QUIET, call_model_input_filter=redact)
    await lab.run(agent, "go", run_config=config)
    assert all("Zanzibar." not in text for text in seen)
    assert "Zanzibar." in model.asked(1)
    assert said(model.calls[1].input[-1:]) == "result c1: cut"
    assert model.calls[1].instructions == "Be careful. Briefly."
    assert lab.sealed()[2] == "result c1: built 0", "sealed is what was said, not what a request shows of it"
    await lab.run(agent, "next", run_config=config)


async def test_an_awaited_filter_and_a_wrong_one(lab: Lab) -> None:
    async def same(data: CallModelData[Any]) -> ModelInputData:
        return data.model_data

    await lab.run(
        agent_of(Scripted([[answer("Done.")]])), "go", run_config=replace(QUIET, call_model_input_filter=same)
    )

    def wrong(_data: CallModelData[Any]) -> Any:
        return None

    with pytest.raises(Exception, match="ModelInputData"):
        await lab.run(agent_of(Scripted([])), "go", run_config=replace(QUIET, call_model_input_filter=wrong))
    assert lab.outcomes() == ["completed", "failed"]
    uncallable: Any = "not a function"
    with pytest.raises(optchat.ConfigError, match="call_model_input_filter"):
        await lab.run(agent_of(Scripted([])), "go", run_config=replace(QUIET, call_model_input_filter=uncallable))


async def test_its_own_input_callback_makes_the_request(lab: Lab) -> None:
    lengths: list[int] = []

    def last_two_and_polite(history: list[Item], new: list[Item]) -> list[Item]:
        lengths.append(len(history))
        polite: Any = {"role": "user", "content": f"{new[0].get('content')}, please"}
        return [*history[-2:], polite]

    model = Scripted([[answer("One.")], [answer("Two.")], [answer("Three.")]])
    config = replace(QUIET, session_input_callback=last_two_and_polite)
    agent = agent_of(model)
    for text in ("go", "go", "on"):
        await lab.run(agent, text, run_config=config)
    assert lengths == [0, 2, 4]
    assert [item.get("content") for item in await lab.stored()][::2] == ["go, please", "go, please", "on, please"]
    assert lab.sealed()[::2] == ["user: go, please", "user: go, please", "user: on, please"]
    assert said(model.calls[2].input[-1:]) == "user: on, please"
    assert sum(item.get("content") == "go, please" for item in model.calls[2].input) == 0


async def test_a_run_config_may_be_a_dict(lab: Lab) -> None:
    model = Scripted([[answer("One.")]])
    given = {"model": model, "tracing_disabled": True}
    await lab.run(Agent(name="a"), "go", run_config=given)
    assert len(model.calls) == 1
    assert set(given) == {"model", "tracing_disabled"}


def test_of_two_that_say_the_same_the_later_is_the_new_one() -> None:
    def user(text: str) -> TResponseInputItem:
        return {"role": "user", "content": text}

    history, new = [user("a"), user("b")], [user("a"), user("c")]
    added = user("d")
    assert without_history([*history, *new], history, new) == new
    copied = copy.deepcopy([*history, *new])
    kept = without_history([*copied, added], history, new)
    assert [item is each for item, each in zip(kept, [copied[2], copied[3], added], strict=True)] == [True] * 3
    assert without_history(copied[:2], history, new) == [user("a")], "a new item that was put in the history's place"
    assert without_history([], history, new) == []


async def test_its_own_hooks_run(lab: Lab) -> None:
    heard: list[str] = []

    class Hooks(RunHooks[Any]):
        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:  # noqa: ARG002
            heard.append("llm start")

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:  # noqa: ARG002
            heard.append("llm end")
            if len(heard) < 4:
                assert lab.sealed()[-1] == "call c1: build", "what was said is sealed before anybody hears of it"

        async def on_agent_start(self, context: Any, agent: Any) -> None:  # noqa: ARG002
            heard.append("agent start")

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:  # noqa: ARG002
            heard.append("agent end")

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:  # noqa: ARG002
            heard.append("handoff")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:  # noqa: ARG002
            heard.append("tool start")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:  # noqa: ARG002
            heard.append(f"tool end {result}")

    second = Agent(name="second", model=Scripted([[answer("Done.")]]))
    agent = agent_of(Scripted([[calls("build")], [calls("transfer_to_second", call_id="c2")]]), handoffs=[second])
    await lab.run(agent, "go", hooks=Hooks())
    assert heard == [
        "agent start", "llm start", "llm end", "tool start", "tool end built 0", "llm start", "llm end", "handoff",
        "agent start", "llm start", "llm end", "agent end",
    ]  # fmt: skip
    wrong: Any = object()
    with pytest.raises(optchat.ConfigError, match="RunHooks"):
        await lab.run(agent, "go", hooks=wrong)


async def test_hooks_need_not_be_ours_to_fail(lab: Lab) -> None:
    class Failing(RunHooks[Any]):
        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:  # noqa: ARG002
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.run(agent_of(Scripted([[answer("Said.")]])), "go", hooks=Failing())
    assert lab.outcomes() == ["failed"]
    assert lab.sealed() == ["user: go", "assistant: Said."]
    await lab.run(agent_of(Scripted([[answer("Good.")]])), "go")


# ---- agents among each other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "filtered", "nested"])
async def test_a_handoff_goes_on_in_the_turn(lab: Lab, how: str) -> None:
    lab.publish("Zanzibar.")
    second_model = Scripted([[calls("build", call_id="c3")], [answer("Done by the second.")], [answer("Next.")]])
    second = agent_of(second_model, name="second")
    given = {"filtered": handoff(second, input_filter=handoff_filters.remove_all_tools)}.get(how, handoff(second))
    first_model = Scripted(
        [[calls("build", call_id="c1")], [answer("Over to you."), calls("transfer_to_second", call_id="c2")]]
    )
    first = agent_of(first_model, handoffs=[given])
    config = replace(QUIET, nest_handoff_history=how == "nested")
    await lab.run(first, "go", run_config=config)
    assert "Zanzibar." in second_model.asked(0)
    assert lab.outcomes() == ["completed"]
    assert lab.sealed() == [
        "user: go", "call c1: build", "result c1: built 0", "assistant: Over to you.",
        *([] if how == "filtered" else ["call c2: transfer_to_second", 'result c2: {"assistant": "second"}']),
        "call c3: build", "result c3: built 0", "assistant: Done by the second.",
    ]  # fmt: skip
    assert lab.sealed() == [line.replace(" {}", "") for line in said(await lab.stored()).splitlines()]
    await lab.run(second, "next")  # the Session and memory have one history
    assert lab.outcomes() == ["completed", "completed"]


@pytest.mark.parametrize("configured", [False, True])
async def test_an_agent_as_a_tool_gets_no_memory(lab: Lab, configured: bool) -> None:
    lab.publish("Zanzibar.")
    filtered: list[str] = []

    def note(data: CallModelData[Any]) -> ModelInputData:
        filtered.append(data.agent.name)
        return data.model_data

    within = Scripted([[answer("Musing."), calls("build", call_id="c1")], [answer("The survey is done.")]])
    surveyor = agent_of(within, build, name="surveyor")
    model = Scripted([[calls("survey", '{"input": "all"}', "c1")], [answer("Done.")]])
    agent = agent_of(model, surveyor.as_tool("survey", "Surveys."))
    config = replace(QUIET, call_model_input_filter=note) if configured else QUIET
    await lab.run(agent, "survey", run_config=config)
    assert said(within.calls[0].input) == "user: all"
    assert said(within.calls[1].input) == "user: all\nassistant: Musing.\ncall c1: build {}\nresult c1: built 0"
    assert "Zanzibar." in model.asked(1)
    assert lab.sealed() == ["user: survey", "call c1: survey", "result c1: The survey is done.", "assistant: Done."]
    assert filtered == (["builder", "surveyor", "surveyor", "builder"] if configured else [])


async def test_a_nested_agents_memory_tools_read_by_the_turns_snapshot(lab: Lab) -> None:
    lab.publish("Zanzibar before.")

    def meanwhile(_asked: object) -> object:
        lab.publish("Zanzibar after.", "third")
        return [calls("memory_search", '{"query": "Zanzibar"}')]

    within = Scripted([meanwhile, [answer("Read.")]])
    tool = agent_of(within, build, name="reader").as_tool("read", "Reads.")
    await lab.run(agent_of(Scripted([[calls("read", '{"input": "x"}')], [answer("Done.")]]), tool), "go")
    assert "Zanzibar before." in within.asked(1)
    assert "Zanzibar after." not in within.asked(1)


# ---- the Session -----------------------------------------------------------------------------------------------------


async def test_a_session_that_was_used_before_is_taken_in(lab: Lab) -> None:
    session = lab.session()
    await session.add_items([{"role": "user", "content": "Zanzibar?"}, {"role": "assistant", "content": "No Redis."}])
    model = Scripted([[answer("Right.")]])
    await MemoryRunner(lab.memory, BUDGET).run(agent_of(model), "go", session=session, run_config=QUIET)
    session.close()
    assert lab.sealed() == ["user: Zanzibar?", "assistant: No Redis.", "user: go", "assistant: Right."]
    assert "No Redis." in model.asked(0)


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_sessions_limit_is_no_edit(lab: Lab, limit: int) -> None:
    agent = agent_of(Scripted([[calls("build")], [answer("One.")], [answer("Two.")], [answer("Three.")]]))
    session = SQLiteSession("mine", lab.folder / "agents.db", session_settings=SessionSettings(limit=limit))
    for text in ("go", "on", "end"):
        await lab.runner.run(agent, text, session=session, run_config=QUIET)
    session.close()
    assert lab.outcomes() == ["completed"] * 3
    assert len(lab.sealed()) == 8


async def test_an_edited_history_stops_before_the_model_and_resync_goes_on(lab: Lab) -> None:
    agent = agent_of(Scripted([[answer("One.")], [answer("Two.")]]))
    await lab.run(agent, "go")
    await lab.run(agent, "on")
    session = lab.session()
    for _ in range(2):
        await session.pop_item()
    model = Scripted([[answer("Instead.")]])
    for _ in range(2):
        with pytest.raises(optchat.ResyncNeeded, match="resync"):
            await lab.run(agent_of(model), "instead")
    assert model.calls == []
    from optchat.adapters.openai_agents import AgentsItems

    own = lab.memory.session("mine", adapter=AgentsItems(), host="openai-agents")
    own.resync(await session.get_items())
    session.close()
    await lab.run(agent_of(model), "instead")
    assert lab.sealed() == ["user: go", "assistant: One.", "user: instead", "assistant: Instead."]


async def test_what_ran_without_memory_is_taken_in(lab: Lab) -> None:
    from agents import Runner

    agent = agent_of(
        Scripted([[answer("One.")], [thinks("Hm."), calls("build")], [answer("Two.")], [answer("Three.")]])
    )
    await lab.run(agent, "go")
    session = lab.session()
    await Runner.run(agent, "without", session=session, run_config=QUIET)
    session.close()
    await lab.run(agent, "with")
    assert lab.sealed()[2:6] == ["user: without", "call c1: build", "result c1: built 0", "assistant: Two."]
    assert lab.outcomes() == ["completed"] * 3


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"conversation_id": "c"}, {"previous_response_id": "r"}, {"auto_previous_response_id": True}]
)
async def test_history_at_the_provider_is_refused(lab: Lab, given: dict[str, Any]) -> None:
    with pytest.raises(optchat.HostUnsupported, match="keep the history"):
        await lab.run(agent_of(Scripted([])), "go", **given)
    assert list(lab.memory.sessions()) == []


async def test_a_session_that_compacts_itself_is_refused(lab: Lab) -> None:
    class Compacting(SQLiteSession):
        async def run_compaction(self, _args: object = None) -> None:
            """Rewrites what it holds."""

    with pytest.raises(optchat.HostUnsupported, match="the session under it"):
        await lab.runner.run(agent_of(Scripted([])), "go", session=Compacting("mine"), run_config=QUIET)


class Forgetful(RunConfig):
    """A config that drops callbacks, as one of another framework on top of this one may."""

    def __post_init__(self) -> None:
        self.call_model_input_filter = None


class Amnesic(RunConfig):
    def __post_init__(self) -> None:
        self.session_input_callback = None


@pytest.mark.parametrize("config", [Forgetful, Amnesic])
async def test_a_model_that_was_asked_without_memory_is_an_error(lab: Lab, config: type[RunConfig]) -> None:
    with pytest.raises(optchat.HostUnsupported, match="memory"):
        await lab.run(agent_of(Scripted([[answer("Unaware.")]])), "go", run_config=config(tracing_disabled=True))
    if config is Forgetful:
        assert lab.outcomes() == ["failed"]
        assert lab.sealed() == ["user: go"]


async def test_a_runner_that_calls_no_hook_is_an_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from agents import Runner

    run = Runner.run

    async def without_hooks(*arguments: Any, **named: Any) -> Any:
        return await run(*arguments, **named | {"hooks": None, "run_config": QUIET})

    monkeypatch.setattr(Runner, "run", without_hooks)
    with pytest.raises(optchat.HostUnsupported, match="without memory"):
        await lab.run(agent_of(Scripted([[answer("Unaware.")]])), "go")


# ---- memory's tools --------------------------------------------------------------------------------------------------


async def test_memorys_tools_are_as_memory_describes_them(lab: Lab) -> None:
    del lab
    for tool, own in zip(memory_tools(), Tools(), strict=True):
        from agents import FunctionTool

        assert isinstance(tool, FunctionTool)
        assert (tool.name, tool.description, tool.strict_json_schema) == (own.name, own.description, True)
        assert tool.params_json_schema == json.loads(json.dumps(dict(own.parameters)))


async def test_a_memory_tool_outside_of_a_run_says_so(lab: Lab) -> None:
    from agents import Runner

    model = Scripted([[calls("memory_sessions")], [answer("Well.")]])
    await Runner.run(agent_of(model), "go", run_config=QUIET)
    assert said(model.calls[1].input[-1:]) == f"result c1: {NOT_RUNNING}"
    assert list(lab.memory.sessions()) == []


@pytest.mark.parametrize("settings", [SessionSettings(limit=2), {"limit": 2}], ids=["object", "dict"])
@pytest.mark.parametrize("as_dict", [False, True], ids=["config", "dict of config"])
async def test_a_config_that_limits_the_history_is_no_edit(lab: Lab, settings: Any, as_dict: bool) -> None:
    agent = agent_of(Scripted([[answer(f"answer {number}")] for number in range(5)]))
    for number in range(3):
        await lab.run(agent, f"ask {number}")
    more: dict[str, Any] = {"tracing_disabled": True, "session_settings": settings}
    for number in (3, 4):
        await lab.run(agent, f"ask {number}", run_config=more if as_dict else RunConfig(**more))
    assert lab.outcomes() == ["completed"] * 5
