"""§ 16: every dispatched request preserves provider-required call/result pairs."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import optchat
from optchat.testing import temporary_memory
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WINDOW, WIRE, Message, Scripted, call, check_paired, converse, says
from tests.peer import Peer


def sent(turn: optchat.Turn[Any], **options: Any) -> list[Message]:
    """What would go to the provider now; refused by the checker as a provider would."""
    messages: list[Message] = turn.context(WINDOW, **options).messages
    check_paired(messages)
    return messages


def roles(messages: list[Message]) -> str:
    """u, a, t of the active transcript: what follows the memory blocks."""
    active = [m for m in messages if not str(m["content"]).startswith(("<", "Shared memory"))]
    return "".join(message["role"][0] for message in active)


def test_a_loop_with_parallel_calls(memory: optchat.Memory) -> None:
    model = Scripted(
        says("Two at once.", call("c1", "read", path="a"), call("c2", "memory_search", query="b")),
        says(None, call("c1", "read", path="again")),  # an id that comes again
        says("Done."),
    )
    # Within one turn an id names one call: it is how redelivery is told.
    with pytest.raises(optchat.RevisionConflict), memory.session("s", adapter=WIRE).turn("go") as turn:
        converse(turn, model)
    model = Scripted(
        says("Two at once.", call("c1", "read", path="a"), call("c2", "memory_search", query="b")),
        says(None, call("c3", "read", path="again")),
        says("Done."),
    )
    with memory.session("s", adapter=WIRE).turn("go") as turn:
        converse(turn, model)
    assert [roles(messages) for messages in model.messages] == ["u", "uatt", "uattat"]
    assert turn.outcome == "completed"


def test_results_in_any_order(memory: optchat.Memory) -> None:
    turn = memory.session("s", adapter=WIRE).turn("go")
    turn.add(says(None, call("c1", "f"), call("c2", "f"), call("c3", "f")))
    for call_id in ("c3", "c1", "c2"):
        turn.tool_result(call_id, call_id)
    messages = sent(turn)
    assert {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"} == {
        c: c for c in ("c1", "c2", "c3")
    }


def test_what_comes_between_goes_behind(memory: optchat.Memory) -> None:
    turn = memory.session("s", adapter=WIRE).turn("go")
    turn.add(says(None, call("c1", "f"), call("c2", "f")))
    turn.tool_result("c1", "one")
    turn.user("wait, also look at x")
    turn.report("scout", "found it")
    turn.tool_result("c2", "two")
    messages = sent(turn)
    assert roles(messages) == "uattuu"
    assert messages[-2]["content"] == "wait, also look at x"


def test_a_call_without_its_result_is_not_sent(memory: optchat.Memory) -> None:
    turn = memory.session("s", adapter=WIRE).turn("go")
    turn.add(says(None, call("c1", "f"), call("c2", "f")))
    turn.tool_result("c1", "one")
    with pytest.raises(optchat.ToolProtocolError, match="result"):
        turn.context(WINDOW)
    turn.tool_result("c2", "denied", is_error=True)
    assert roles(sent(turn)) == "uatt"


@pytest.mark.parametrize(
    "active",
    [
        [says(None, call("c1", "f"))],
        [
            says(None, call("c1", "f")),
            {"role": "user", "content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": ""},
        ],
        [{"role": "tool", "tool_call_id": "c1", "content": "x"}],
        [says(None, call("c1", "f")), {"role": "tool", "tool_call_id": "c2", "content": "x"}],
        [says(None, call("c1", "f"))] + [{"role": "tool", "tool_call_id": "c1", "content": "x"}] * 2,
        [says(None, call("c1", "f"), call("c1", "f")), {"role": "tool", "tool_call_id": "c1", "content": "x"}],
    ],
    ids=["no result", "something between", "no call", "another call's", "two results", "one id twice"],
)
def test_a_list_that_does_not_pair_is_refused(memory: optchat.Memory, active: list[Message]) -> None:
    request: Message = {"role": "user", "content": "go"}
    turn = memory.session("s", adapter=WIRE).turn(request)
    with pytest.raises(optchat.ToolProtocolError):
        turn.context(WINDOW, active=[request, *active])


def test_the_list_is_sent_by_identity(memory: optchat.Memory) -> None:
    history: list[Message] = [
        {"role": "user", "content": "go"},
        says("", call("c1", "f")) | {"reasoning_content": "hm"},
    ]
    history.append({"role": "tool", "tool_call_id": "c1", "content": "x"})
    turn = memory.session("s", adapter=WIRE).turn(history[0])
    context = turn.context(WINDOW, active=history)
    assert all(one is other for one, other in zip(context.messages[-3:], history, strict=True))
    assert context.receipt.active_source == "passed"
    turn.observe(history)
    held = turn.context(WINDOW)
    assert all(one is other for one, other in zip(held.messages[-3:], history, strict=True))
    assert held.receipt.active_source == "held"


def test_resumed_elsewhere_it_is_rebuilt(open_memory: Open, memory: optchat.Memory) -> None:
    turn = memory.session("s", adapter=WIRE).turn("go")
    turn.add(says("Looking.", call("c1", "f", x=1), call("c2", "deploy")))
    turn.tool_result("c1", "one")
    held = turn.messages
    turn.suspend()
    other = open_memory().session("s", adapter=WIRE).resume()
    assert [one.call_id for one in other.pending] == ["c2"]
    assert other.messages == held
    other.tool_result("c2", "denied by the user", is_error=True)
    context = other.context(WINDOW)
    check_paired(context.messages)
    assert context.receipt.active_source == "rebuilt"
    assert roles(context.messages) == "uatt"
    assert "error: denied" in str(context.messages[-1])


def test_resumed_in_another_process(memory: optchat.Memory, peer: Peer) -> None:
    turn = memory.session("s", adapter=WIRE).turn("go")
    turn.add(says(None, call("c1", "f"), call("c2", "f")))
    turn.suspend()
    peer("from tests.acceptance.scripted import *; from tests.acceptance.test_tool_protocol import sent, roles")
    peer("turn = memory.session('s', adapter=WIRE, create=False).resume()")
    peer("for made in turn.pending: turn.tool_result(made.call_id, 'yes')")
    assert peer("roles(sent(turn))") == "uatt"


# ---- whatever a turn's events are ------------------------------------------------------------------------------------

KINDS = ["calls", "result", "steer", "report", "say", "resume", "send"]
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=14)


def happen(turn: optchat.Turn[Any], kind: str, number: int, count: int) -> None:
    match kind:
        case "calls":
            turn.add(says("", *(call(f"c{count}-{n}", "f") for n in range(number))))
        case "result" if turn.pending:
            turn.tool_result(turn.pending[number % len(turn.pending)].call_id, "x")
        case "steer":
            turn.user(f"steer {count}")
        case "report":
            turn.report("scout", f"report {count}")
        case "say":
            turn.assistant(f"say {count}")
        case "resume":
            turn.suspend()


@settings(max_examples=40)
@given(events=EVENTS)
def test_any_schedule_is_sent_paired_or_not_at_all(events: list[tuple[str, int]]) -> None:
    with temporary_memory() as memory:
        session = memory.session("s", adapter=WIRE)
        turn = session.turn("go")
        for count, (kind, number) in enumerate(events):
            happen(turn, kind, number, count)
            if kind == "resume":
                turn = session.resume()
            if turn.pending:
                with pytest.raises(optchat.ToolProtocolError):
                    turn.context(WINDOW)
                continue
            messages = sent(turn)
            said = [part for message in turn.messages for part in message.parts]
            shown = str(messages)
            for part in said:
                assert not isinstance(part, (optchat.TextPart, optchat.ReportPart)) or part.text in shown
            results = sum(isinstance(part, optchat.ToolResultPart) for part in said)
            assert results == sum(message["role"] == "tool" for message in messages)
