"""
A host made for tests: it has all that a host can have, and one place for each thing that can be done wrong.

Its messages are dicts; its loop asks a model, runs tools side by side, can be cancelled, and can run an agent within.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optchat
from optchat.core.active import order_for_dispatch
from optchat.core.pairing import check_pairs
from optchat.testing import AdapterContract, HostRun
from optchat.testing.contract import INTERRUPTED_TOOL

Lab = dict[str, Any]
TRANSCRIPTS: dict[tuple[Path, str], list[Any]] = {}  # what the framework keeps of each session
BUDGET = optchat.Budget(64_000, 1_000)
OWN = {"model": "lab-1", "instructions": "Be careful.", "tools": ["build"], "may": ["read"]}


class LabAdapter:
    @property
    def info(self) -> optchat.HostInfo:
        return optchat.HostInfo(name="lab")

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        parts: list[Any] = []
        for part in message["parts"]:
            match part:
                case {"text": text}:
                    parts.append(optchat.TextPart(text))
                case {"image": data}:
                    parts.append(optchat.BlobPart("image/png", data=base64.b64decode(data)))
                case {"call": call_id, "name": name, "arguments": arguments}:
                    parts.append(optchat.ToolCallPart(call_id, name, arguments))
                case {"answers": call_id, "said": said}:
                    content = (optchat.TextPart(said),)
                    parts.append(optchat.ToolResultPart(call_id, content, bool(part.get("failed"))))
                case _:  # {"thought": …}
                    pass
        return [optchat.HostMessage(message["who"], parts)] if parts and message["who"] != "system" else []

    def encode(self, blocks: Sequence[optchat.MemoryBlock], /) -> Sequence[Lab]:
        return [{"who": "user", "parts": [{"text": block.text}]} for block in blocks]

    def count(self, message: Lab, tokenizer: optchat.Tokenizer, /) -> int:
        total = 4
        for part in message["parts"]:
            for key, value in part.items():
                total += 1_000 if key == "image" else 4 + tokenizer.count(str(value))
        return total

    def rebuild(self, messages: Sequence[optchat.HostMessage], /) -> Sequence[Lab]:
        ordered = order_for_dispatch(messages)
        check_pairs(ordered)
        return [native for message in ordered for native in lab_native(message)]


def lab_native(message: optchat.HostMessage) -> list[Lab]:
    parts: list[Lab] = []
    for part in message.parts:
        match part:
            case optchat.TextPart(text):
                parts.append({"text": text})
            case optchat.BlobPart(_, data):
                parts.append({"image": base64.b64encode(data or b"").decode()})
            case optchat.ToolCallPart(call_id, name, arguments):
                parts.append({"call": call_id, "name": name, "arguments": arguments})
            case optchat.ToolResultPart(call_id, content, failed):
                said = "".join(item.text for item in content if isinstance(item, optchat.TextPart))
                parts.append({"answers": call_id, "said": said} | ({"failed": True} if failed else {}))
            case optchat.ReportPart(name, text):
                parts.append({"text": f"[report of {name}] {text}"})
    return [{"who": message.role, "parts": parts}]


class LabHost:
    """The framework and the glue round it; a subclass does one thing wrong."""

    def __init__(
        self, memory: optchat.Memory, key: str, adapter: Any, native: Callable[..., Any], history: list[Any]
    ) -> None:
        self.memory, self.key, self.adapter, self.native, self.history = memory, key, adapter, native, history
        self.log: list[Any] = []
        self.requests: list[list[Any]] = []
        self.settings: list[object] = []

    def begin(self, request: str) -> optchat.Turn[Any]:
        session = self.memory.session(self.key, adapter=self.adapter, host=self.adapter.info.name)
        self.reconcile(session)
        return session.turn(self.native(optchat.HostMessage.user(request))[0])

    def reconcile(self, session: optchat.Session[Any]) -> None:
        session.reconcile(self.history)

    def messages(self, turn: optchat.Turn[Any]) -> list[Any]:
        return turn.context(BUDGET, active=self.log).messages

    def own(self) -> dict[str, Any]:
        return dict(OWN)

    def answer(self, turn: optchat.Turn[Any], call: optchat.ToolCallPart) -> str:
        if call.name in turn.tools:
            return turn.call(call.name, call.arguments).text
        if call.name == INTERRUPTED_TOOL:
            raise asyncio.CancelledError
        return "ok"

    def observe(self, turn: optchat.Turn[Any]) -> None:
        turn.observe(self.log)

    def run_nested(self, turn: optchat.Turn[Any], inner: str, report: str) -> None:
        private = [*self.native(optchat.HostMessage.user("within")), *self.native(optchat.HostMessage.assistant(inner))]
        assert private, "an agent of its own, with a list of its own"
        turn.report("agent", report)

    def end(self, turn: optchat.Turn[Any], error: BaseException | None) -> None:
        if error is not None:
            turn.end("failed" if isinstance(error, Exception) else "interrupted", type(error).__name__)
        else:
            turn.end("completed")

    def loop(self, turn: optchat.Turn[Any], steps: Any) -> None:
        while True:
            self.requests.append(self.messages(turn))
            self.settings.append(self.own())
            step = next(steps)
            if isinstance(step, BaseException):
                raise step
            self.log += self.native(step)
            self.observe(turn)
            calls = [part for part in step.parts if isinstance(part, optchat.ToolCallPart)]
            if not calls:
                return
            for call in calls:
                said = self.answer(turn, call)
                self.log += self.native(optchat.HostMessage.result(call.call_id, said))
            self.observe(turn)

    def run(self, request: str, steps: Any, nested: tuple[str, str] | None = None) -> HostRun[Any]:
        try:
            turn = self.begin(request)
        except optchat.ResyncNeeded as differs:
            return HostRun([], [], differs)
        self.log += self.native(optchat.HostMessage.user(request))
        error: BaseException | None = None
        try:
            self.loop(turn, steps)
            if nested is not None:
                self.run_nested(turn, *nested)
        except BaseException as raised:  # noqa: BLE001 - what a host passes on
            error = raised
        self.end(turn, error)
        self.history += self.kept()
        return HostRun(self.requests, self.stored(), error, self.settings)

    def kept(self) -> list[Any]:
        return self.log

    def stored(self) -> list[Any]:
        return self.log


class LabContract(AdapterContract[Any]):
    """The contract over the lab's codec and host. Not named Test: the good and the broken ones subclass it."""

    codec: Any = LabAdapter()
    host: type[LabHost] = LabHost

    def transcript(self, memory: optchat.Memory, key: str) -> list[Any]:
        return TRANSCRIPTS.setdefault((memory.path, key), [])

    def adapter(self) -> Any:
        return self.codec

    def native(self, message: optchat.HostMessage) -> Sequence[Any]:
        return lab_native(message)

    def drive(
        self,
        memory: optchat.Memory,
        key: str,
        request: str,
        script: Sequence[optchat.HostMessage | BaseException],
    ) -> HostRun[Any]:
        history = self.transcript(memory, key)
        return self.host(memory, key, self.adapter(), self.native, history).run(request, iter(script))

    def drive_nested(self, memory: optchat.Memory, key: str, request: str, inner: str, report: str) -> HostRun[Any]:
        host = self.host(memory, key, self.adapter(), self.native, self.transcript(memory, key))
        return host.run(request, iter([optchat.HostMessage.assistant("Surveyed.")]), nested=(inner, report))

    def edit(self, memory: optchat.Memory, key: str, old: str, new: str) -> None:
        history = self.transcript(memory, key)
        history[:] = json.loads(json.dumps(history).replace(old, new))

    def thinking(self, text: str) -> Sequence[Any]:
        return [{"who": "assistant", "parts": [{"thought": text}, {"text": "Done."}]}]

    def settings(self) -> object:
        return OWN
