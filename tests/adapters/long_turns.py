"""
Long turns over any wire, and what a request of one has to hold whatever of it is left out.

A turn is drawn as numbers: each is a step, and its bits say what happens in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from hypothesis import strategies as st

import optchat
from optchat.testing import temporary_memory
from tests.adapters.wires import Native, Wire

REQUEST: Final = "port the queue to the broker"
FOREIGN: Final = "zebracrossing"  # stands in what other sessions said alone: only memory's own answers repeat it
THOUGHT: Final = "unspeakable"
_KEYS = count()

# Of each step: how many calls (2 bits), words before them, thinking, a memory tool, steering behind, all results in one
# message where the wire has it, steering within that, a long result.
PLANS = st.lists(st.integers(0, 511), min_size=1, max_size=9)


class LongTurn:
    """A running turn and its natives, as a host holds them."""

    def __init__(self, memory: optchat.Memory, wire: Wire, plans: Sequence[int], key: str | None = None) -> None:
        self.wire = wire
        self.session: optchat.Session[Any] = memory.session(key or f"long-{next(_KEYS)}", adapter=wire.adapter)
        self.natives: list[Native] = wire.native(optchat.HostMessage.user(REQUEST))
        self.turn: optchat.Turn[Any] = self.session.turn(self.natives[0])
        self.always = list(self.natives)  # what stays whatever is cut
        self.steps: list[list[Native]] = []
        self.bound: set[int] = set()  # steps that cannot be left out
        for number, plan in enumerate(plans):
            self.step(number, plan)

    @staticmethod
    @contextmanager
    def memory() -> Iterator[optchat.Memory]:
        """One in which another session has said something that memory tools find."""
        with temporary_memory() as memory:
            with memory.session("other").turn("where do we cross?") as turn:
                turn.assistant(f"at the {FOREIGN}")
            memory.settle()
            yield memory

    def step(self, number: int, plan: int) -> None:
        """What the model says and calls, what comes back, and what the user says meanwhile."""
        bits = [bool(plan >> bit & 1) for bit in range(2, 9)]
        words, thinks, asks_memory, steers, together, within, is_long = bits
        made = [optchat.ToolCallPart(f"c{number}-{n}", "read", f'{{"path": "f{number}-{n}"}}') for n in range(plan % 4)]
        if asks_memory:
            made.append(optchat.ToolCallPart(f"m{number}", "memory_search", json.dumps({"query": FOREIGN})))
        text = f"I look at {number}." if words or not made else ""
        said = self.wire.native(optchat.HostMessage.assistant(text, made))
        if thinks and made:
            said = self.thinking(number, said)
        self.turn.add(*said)
        results = [self.result(number, call, is_long) for call in made]
        natives = [native for each in results for native in self.wire.native(optchat.HostMessage("tool", (each,)))]
        if together and self.wire.name == "messages" and natives:
            natives = self.wire.native(optchat.HostMessage("tool", tuple(results)))
        bound = bool(within and together and self.wire.name == "messages" and natives)
        if bound:
            natives[-1]["content"].append({"type": "text", "text": f"steering within {number}"})
        if natives:
            self.turn.add(*natives)
        step = [*said, *natives]
        self.natives += step
        if bound:
            self.always += step
            self.bound.add(number)
        self.steps.append(step)
        if steers:
            words_of_user = self.wire.native(optchat.HostMessage.user(f"steering {number}"))
            self.turn.add(*words_of_user)
            self.natives += words_of_user
            self.always += words_of_user

    def result(self, number: int, call: optchat.ToolCallPart, is_long: bool) -> optchat.ToolResultPart:
        if call.name == "memory_search":
            text = self.turn.call(call.name, call.arguments).text
        else:
            text = f"<b> line {call.call_id} & \n" * (40 if is_long else 2)
        return optchat.ToolResultPart(call.call_id, (optchat.TextPart(text),), is_error=number % 5 == 4)

    def thinking(self, number: int, said: list[Native]) -> list[Native]:
        """As the provider gives it back: to be sent along with the calls that it led to, or not at all."""
        if self.wire.name == "responses":
            item = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": THOUGHT * 3}
            return [item, *said]
        if self.wire.name == "messages":
            block = {"type": "thinking", "thinking": f"{THOUGHT} {number}", "signature": "c2lnbmF0dXJl"}
            return [said[0] | {"content": [block, *said[0]["content"]]}]
        return [said[0] | {"reasoning_content": f"{THOUGHT} {number}"}]

    @property
    def newest(self) -> list[Native]:
        """The newest calls with their results, and all that was said since."""
        calls = [number for number, step in enumerate(self.steps) if self._calls(step)]
        return [native for step in self.steps[(calls or [len(self.steps) - 1])[-1] :] for native in step]

    def _calls(self, step: Sequence[Native]) -> bool:
        return any(
            isinstance(part, optchat.ToolCallPart)
            for native in step
            for message in self.wire.adapter.decode(native)
            for part in message.parts
        )

    def left_out(self, context: optchat.Context[Any]) -> list[Native]:
        sent = {id(native) for native in context.messages}
        return [native for native in self.natives if id(native) not in sent]

    def said_in(self, natives: Sequence[Native]) -> Counter[tuple[str, str]]:
        """What was said in messages, by kind."""
        found: Counter[tuple[str, str]] = Counter()
        for native in natives:
            for message in self.wire.adapter.decode(native):
                for part in message.parts:
                    found[_said(part)] += 1
        return found


def _said(part: optchat.Part) -> tuple[str, str]:
    match part:
        case optchat.ToolCallPart(call_id, _, arguments):
            return call_id, arguments
        case optchat.ToolResultPart(call_id, content):
            return f"result of {call_id}", "".join(item.text for item in content if isinstance(item, optchat.TextPart))
        case optchat.TextPart(text):
            return "text", text
        case _:
            raise AssertionError(part)


def check_request(made: LongTurn, context: optchat.Context[Any], budget: optchat.Budget) -> int:
    """All that a request has to hold; returns how many of the turn's messages are sent."""
    wire, receipt = made.wire, context.receipt
    tokenizer = budget.tokenizer or optchat.tokenizer_for()
    wire.check(context.messages)
    active = context.messages[len(context.memory) :]
    places = {id(native): number for number, native in enumerate(made.natives)}
    assert [places[id(native)] for native in active] == sorted(places[id(native)] for native in active), "in order"
    sent = {id(native) for native in active}
    assert len(sent) == len(active)
    assert sent.issuperset(map(id, made.always)), "the request and what the user said"
    assert sent.issuperset(map(id, made.newest)), "the newest calls"
    for step in made.steps:
        assert len({id(native) in sent for native in step}) <= 1, "a step goes whole, with its reasoning"

    use = receipt.tokens
    parts = (use.instructions, use.output, use.reserve, use.active, *use.blocks.values(), use.left)
    assert sum(parts) == budget.window
    assert use.left >= 0
    assert use.active == sum(wire.adapter.count(native, tokenizer) for native in active)
    cost = sum(wire.adapter.count(native, tokenizer) for native in context.messages)
    assert cost <= use.active + sum(use.blocks.values())
    assert [block.kind for block in context.blocks].count("checkpoint") == ("checkpoint" in use.blocks)

    blocks = [block.text for block in context.blocks if block.kind == "checkpoint"]
    assert len(blocks) == (len(active) < len(made.natives)), "one block, where something is left out"
    assert receipt.checkpointed == made.said_in(made.left_out(context)).total()
    for text in blocks:
        assert FOREIGN not in text.replace(f'{{"query": "{FOREIGN}"}}', ""), "what memory answered is no evidence"
        assert THOUGHT not in text
        assert "steering" not in text
        lines = text.splitlines()
        assert lines[-1] == "</checkpoint>"
        assert all(line.partition(" | ")[0].replace("+", "").isdigit() for line in lines[1:-1])
        assert not any(mark in line for mark in "<>" for line in lines[1:-1])
        assert len(lines) - 2 == sum(1 for ref in receipt.refs if ref.startswith("session:"))  # it has no other turn
    return len(active)


def told_below(turn: optchat.Turn[Any], context: optchat.Context[Any]) -> Counter[tuple[str, str]]:
    """What zoom reaches from the refs of the checkpoint's lines, page by page, and source to the byte."""
    found: Counter[tuple[str, str]] = Counter()
    text = next((block.text for block in context.blocks if block.kind == "checkpoint"), "\n\n")
    pending = [line.partition(" | ")[0] for line in text.splitlines()[1:-1]]
    while pending:
        ref = pending.pop()
        page = turn.zoom(ref)
        if page.kind != "record":
            pending += [line.ref for line in page.lines]
            continue
        source = turn.source(ref).part
        pages = [page]
        while pages[-1].cursor is not None:
            pages.append(turn.zoom(ref, cursor=pages[-1].cursor))
        said = _said(source)
        assert "".join(each.text or "" for each in pages) == said[1]
        found[said] += 1
    return found
