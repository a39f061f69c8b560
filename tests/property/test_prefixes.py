"""Shared prefixes: however calls come, fail and are cancelled, one writes what is cold, and nobody is forgotten."""

from __future__ import annotations

import anyio
from anyio.abc import TaskGroup
from hypothesis import given, settings, strategies as st

from optchat.compactor.prefixes import Block, CacheWriters, Prefixes, prefixes_of
from tests.compactor.helpers import settled

CONTEXTS = st.lists(st.sampled_from("ab"), max_size=3).map(tuple)
ACTIONS = st.sampled_from(["send", "start", "fail", "cancel"])


def wanted(context: tuple[str, ...]) -> Prefixes:
    marked = [Block("system", "rules", marked=True), *(Block("user", text, marked=True) for text in context)]
    return prefixes_of([*marked, Block("user", "task")])


class World:
    """Calls of one loop: each is asked for, sent when it may be, and then starts, fails or is cancelled."""

    def __init__(self, group: TaskGroup) -> None:
        self.group = group
        self.writers = CacheWriters()
        self.keys: dict[int, set[bytes]] = {}
        self.waiting: list[int] = []
        self.sent: list[int] = []  # and their response has not started
        self.warm: set[bytes] = set()
        self.fate: dict[int, anyio.Event] = {}
        self.failing: set[int] = set()
        self.scopes: dict[int, anyio.CancelScope] = {}

    def send(self, context: tuple[str, ...]) -> None:
        number = len(self.fate)
        self.fate[number], self.scopes[number] = anyio.Event(), anyio.CancelScope()
        self.keys[number] = set(wanted(context).written)
        self.waiting.append(number)
        self.group.start_soon(self._call, number, wanted(context))

    async def _call(self, number: int, prefixes: Prefixes) -> None:
        with self.scopes[number]:
            async with self.writers.turn(prefixes, 3_600.0) as turn:
                self.waiting.remove(number)
                self.sent.append(number)
                await self.fate[number].wait()
                self.sent.remove(number)
                if number not in self.failing:
                    self.warm |= self.keys[number]
                    turn.response_started()

    def start(self) -> None:
        if self.sent:
            self.fate[self.sent[0]].set()

    def fail(self) -> None:
        if self.sent:
            self.failing.add(self.sent[-1])
            self.fate[self.sent[-1]].set()

    def cancel(self) -> None:
        for calls in (self.waiting, self.sent):
            if calls:
                self.scopes[calls[0]].cancel()
                del calls[0]

    def check(self) -> None:
        cold = [key for number in self.sent for key in self.keys[number] - self.warm]
        assert len(cold) == len(set(cold))  # nothing is written twice at once
        assert not self.waiting or self.sent  # somebody is on the way for everyone who waits
        assert all(self.keys[number] - self.warm for number in self.waiting)  # nobody waits for what is there


@given(st.lists(st.tuples(ACTIONS, CONTEXTS), max_size=25))
@settings(max_examples=60)
def test_one_writes_what_is_cold_and_nobody_is_forgotten(steps: list[tuple[str, tuple[str, ...]]]) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            world = World(group)
            for action, context in steps:
                if action == "send":
                    world.send(context)
                else:
                    getattr(world, action)()
                await settled()
                world.check()
            while world.sent:
                world.start()
                await settled()
                world.check()
            assert not world.waiting
            assert not world.writers._writing

    anyio.run(main)
