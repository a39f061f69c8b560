"""
§ 16, tool protocol and budget pressure, over every wire.

Whatever a turn's events are and however small the window, what is sent is what the provider takes, or an error says why
nothing is.
"""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import optchat
from optchat.core.errors import ContextTooLarge, CoverTooLarge
from optchat.testing import temporary_memory
from tests.adapters.wires import WINDOW, WIRES, Wire

each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)

KINDS = ["calls", "native result", "result", "steer", "native steer", "report", "say", "resume"]


def calling(count: int, number: int) -> optchat.HostMessage:
    made = [optchat.ToolCallPart(f"c{count}-{n}", "f", '{"x": 1}') for n in range(number)]
    return optchat.HostMessage.assistant("Let me look." if count % 2 else "", made)


def happen(wire: Wire, turn: optchat.Turn[Any], kind: str, number: int, count: int) -> None:
    match kind:
        case "calls":
            turn.add(*wire.native(calling(count, number)))
        case "native result" if turn.pending:
            call_id = turn.pending[number % len(turn.pending)].call_id
            turn.add(*wire.native(optchat.HostMessage.result(call_id, f"native {count}")))
        case "result" if turn.pending:
            turn.tool_result(turn.pending[number % len(turn.pending)].call_id, f"said {count}", is_error=number == 2)
        case "steer":
            turn.user(f"steer {count}")
        case "native steer":
            turn.add(*wire.native(optchat.HostMessage.user(f"steer {count}")))
        case "report":
            turn.report("scout", f"report {count}")
        case "say":
            turn.assistant(f"say {count}")
        case "resume":
            turn.suspend()


@each_wire
@settings(max_examples=25)
@given(events=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=12))
def test_any_schedule_is_sent_paired_or_not_at_all(wire: Wire, events: list[tuple[str, int]]) -> None:
    with temporary_memory() as memory:
        session = memory.session("s", adapter=wire.adapter)
        turn = session.turn("go")
        for count, (kind, number) in enumerate(events):
            happen(wire, turn, kind, number, count)
            if kind == "resume":
                turn = session.resume()
        if turn.pending:
            with pytest.raises(optchat.ToolProtocolError):
                turn.context(WINDOW)
            return
        messages = turn.context(WINDOW).messages
        wire.check(messages)
        shown = str(messages)
        for message in turn.messages:
            for part in message.parts:
                if isinstance(part, (optchat.TextPart, optchat.ReportPart)):
                    assert part.text in shown
                elif isinstance(part, optchat.ToolResultPart):
                    assert all(item.text in shown for item in part.content if isinstance(item, optchat.TextPart))
        check_pressed(wire, turn)


def check_pressed(wire: Wire, turn: optchat.Turn[Any]) -> None:
    """In windows with less and less room for the transcript: valid, with all that the user said, or an error."""
    whole = turn.context(WINDOW).receipt.tokens
    steering = [
        part.text
        for message in turn.messages
        for part in message.parts
        if message.role == "user" and isinstance(part, optchat.TextPart)
    ]
    for part in (9, 7, 5, 3, 1):
        budget = optchat.Budget(60 + sum(whole.blocks.values()) + whole.active * part // 10, 50, 0, 10)
        try:
            context = turn.context(budget)
        except (ContextTooLarge, CoverTooLarge) as error:
            assert "larger window" in str(error)
            continue
        wire.check(context.messages)
        assert sum(wire.adapter.count(native, optchat.tokenizer_for()) for native in context.messages) <= budget.window
        active = str(context.messages[len(context.memory) :])
        assert all(text in active for text in steering)
        block = next((each.text for each in context.blocks if each.kind == "checkpoint"), "")
        assert (context.receipt.checkpointed > 0) == (block != "")
        assert not any(f"user: {text}" in block for text in steering)


@each_wire
def test_rebuilt_at_every_cut_a_turn_is_valid_or_refused(wire: Wire) -> None:
    turn = [
        optchat.HostMessage.user("go"),
        calling(1, 2),
        optchat.HostMessage.result("c1-1", "one", is_error=True),
        optchat.HostMessage.result("c1-0", "nought"),
        optchat.HostMessage("user", (optchat.ReportPart("scout", "found"),)),
        optchat.HostMessage.assistant(""),
        calling(2, 3),
        optchat.HostMessage.user("hurry"),
        *(optchat.HostMessage.result(f"c2-{n}", "") for n in range(3)),
        optchat.HostMessage.assistant("Done."),
    ]
    refused = []
    for end in range(1, len(turn) + 1):
        try:
            wire.check(wire.adapter.rebuild(turn[:end]))
        except optchat.ToolProtocolError:
            refused.append(end)
    assert refused == [2, 3, 7, 8, 9, 10]


@each_wire
def test_every_window_gives_a_valid_request_or_an_error(wire: Wire) -> None:
    tokenizer = optchat.tokenizer_for()
    with temporary_memory() as memory:
        for number in range(12):
            with memory.session(f"other-{number % 3}").turn(f"question {number}: 队列 <tag> & quote") as turn:
                turn.assistant(f"answer {number}: " + "the queue keeps messages " * 12)
        memory.settle()
        active = [
            *wire.native(optchat.HostMessage.user("go on")),
            *wire.native(calling(2, 2)),
            *wire.native(optchat.HostMessage.result("c2-0", "x " * 50)),
            *wire.native(optchat.HostMessage.result("c2-1", "y")),
        ]
        with memory.session("s", adapter=wire.adapter).turn("go on") as turn:
            use = turn.context(optchat.Budget(1_000_000, 100), active=active).receipt.tokens
            most = use.window - use.left
            told: list[str] = []
            for window in range(most + 2, 0, -max(1, most // 40)):  # down, for what was cut stays cut within a turn
                try:
                    context = turn.context(optchat.Budget(window, 100, 50), active=active)
                except (ContextTooLarge, CoverTooLarge) as error:
                    assert "larger window" in str(error)
                    told.append(type(error).__name__)
                    continue
                told.append("sent")
                wire.check(context.messages)
                use = context.receipt.tokens
                cost = sum(wire.adapter.count(native, tokenizer) for native in context.messages)
                assert cost <= use.active + sum(use.blocks.values()) <= window - 100 - 50
                assert use.left >= 0
                assert all(one is other for one, other in zip(context.messages[-len(active) :], active, strict=True))
    assert [kind for n, kind in enumerate(told) if not n or told[n - 1] != kind] == [
        "sent",
        "CoverTooLarge",
        "ContextTooLarge",
    ], "what a window holds, a larger one holds too"
