"""
The contract of an adapter and of the host's glue round it, as tests to subclass (§ 13).

Decides: what every host has to keep, one clause a test.
Refuses to know: any host; pytest, until a clause has to be skipped.

::

    class TestMyHost(AdapterContract[MyMessage]):
        def adapter(self): return MyAdapter()
        def native(self, message): return my_messages(message)
        def drive(self, memory, key, request, script): ...

``adapter`` and ``native`` alone give the clauses of the codec; ``drive`` gives those of the glue. What a host has not,
skips by name: no thinking, no images, no nested runs, no history of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, overload

from attrs import frozen

from optchat.core.errors import ResyncNeeded
from optchat.core.messages import HostMessage, Part, TextPart, ToolCallPart, ToolResultPart
from optchat.core.retrieval import SessionInfo
from optchat.memory.memory import Memory
from optchat.testing.contract_codec import GUIDANCE, CodecClauses, call, said_by, skip, text_of

M = TypeVar("M")
Step: TypeAlias = HostMessage | BaseException

INTERRUPTED_TOOL: Final = "optchat_interrupted"


@frozen
class HostRun(Generic[M]):
    """
    What a run of a host did.

    ``requests``: the messages of each model call, as the model got them. ``stored``: what the host kept of the run as
    its own transcript. ``error``: what ended it. ``settings``: what else each request held, instructions, tools other
    than memory's and the model; left out, the clause about them skips.
    """

    requests: list[list[M]]
    stored: list[M]
    error: BaseException | None = None
    settings: Sequence[object] = ()


class ModelFailed(Exception):
    """What a script's model raises where it has to fail."""


class _Script(Sequence[Step]):
    """Steps of a model; what has to happen while it thinks happens when the step is taken."""

    def __init__(self, *steps: Step, before: Mapping[int, Callable[[], None]] | None = None) -> None:
        self._steps = steps
        self._before = dict(before or {})

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, int):
            self._before.pop(index, _nothing)()
        return self._steps[index]

    def __iter__(self) -> Iterator[Step]:
        return (self[index] for index in range(len(self._steps)))

    def __len__(self) -> int:
        return len(self._steps)


def _nothing() -> None:
    return


class AdapterContract(CodecClauses[M]):
    """
    Subclass it as ``TestX``. ``adapter`` and ``native`` alone give the codec's clauses; ``drive`` gives the rest, else
    they skip by name.
    """

    def drive(
        self, memory: Memory, key: str, request: str, script: Sequence[HostMessage | BaseException]
    ) -> HostRun[M]:
        """
        One user turn of the session ``key`` through the host and its glue, with a model that follows the script.

        The model takes the next step of the script each time that it is asked, not before: it says what the message
        says, or raises. Every call is answered; memory's tools by ``turn.call``, a call of ``optchat_interrupted`` by
        being cancelled, if the host has tools that can be.
        """
        raise NotImplementedError

    def drive_nested(self, memory: Memory, key: str, request: str, inner: str, report: str) -> HostRun[M]:
        """One user turn in which an agent runs within: it says ``inner`` to itself, and ``report`` comes of it."""
        raise NotImplementedError

    def edit(self, memory: Memory, key: str, old: str, new: str) -> None:
        """Change a text in the transcript that the host keeps of the session, as its user may, and tell nobody."""
        raise NotImplementedError

    def settings(self) -> object:
        """What the host's own ``HostRun.settings`` are without memory."""
        return None

    # ---- the clauses of the glue -------------------------------------------------------------------------------------

    def test_what_others_decided_reaches_the_model(self) -> None:
        """Awareness without a tool: each request has what was published before, and the request once, after it."""
        with self.memory() as memory:
            self.publish(memory, "other", "Should we use Redis?", "Zanzibar: no Redis.")
            run = self._run(memory, "mine", "Add a queue.", call("c1"), _answer("Added."))
            for request in run.requests:
                texts = self._texts(request)
                asked = [number for number, text in enumerate(texts) if "Add a queue." in text]
                shown = [number for number, text in enumerate(texts) if "Zanzibar: no Redis." in text]
                assert shown, "the model was not given what another session decided: is context() sent as it is?"
                assert len(asked) == 1, f"the request stands {len(asked)} times in what the model got"
                assert shown[0] < asked[0], "memory stands before the request"

    def test_everything_is_sealed_exactly_once(self) -> None:
        """The request, each thing that the model said, and one result a call; delivered again, nothing changes."""
        with self.memory() as memory:
            run = self._run(memory, "mine", "Add a queue.", call("c1"), _answer("Added."))
            info = self._found(memory, "mine")
            found = self._parts_of(memory, info)
            kinds = [type(part).__name__ for part in found]
            assert kinds == ["TextPart", "ToolCallPart", "ToolResultPart", "TextPart"], f"sealed: {kinds}"
            assert (found[0], found[-1]) == (TextPart("Add a queue."), TextPart("Added."))
            session = memory.session("mine", adapter=self.adapter(), host=info.host)
            (turn,) = session.turns().items
            own = [native for native in run.stored if not _is_memory(said_by(self.adapter(), native))]
            request = next(native for native in own if self.adapter().decode(native))  # with its key, if it has one
            again = session.turn(request, turn_id=turn.id)
            again.observe(own)
            again.end("failed")
            assert session.info().length == len(found), "the same messages, delivered again, were sealed again"
            assert [each.outcome for each in session.turns()] == ["completed"], "the first outcome stays"

    def test_every_request_is_paired(self) -> None:
        """Each call of each request is answered exactly once, before anything else is said."""
        with self.memory() as memory:
            calls = (call("c1"), call("c2"))
            run = self._run(memory, "mine", "Build.", *calls, _answer("Built."))
            assert len(run.requests) == 3, f"the model was asked {len(run.requests)} times, not three"
            for request in run.requests:
                self._check_pairs(request)
            for number, request in enumerate(run.requests):
                made = [part for part in self._parts(request) if isinstance(part, ToolCallPart)]
                assert len(made) == number, "the calls of the turn so far are in each request"

    def test_the_host_s_transcript_is_untouched(self) -> None:
        """What the host keeps is what was said, without a word of memory."""
        with self.memory() as memory:
            self.publish(memory, "other", "Should we use Redis?", "Zanzibar: no Redis.")
            run = self._run(memory, "mine", "Add a queue.", call("c1"), _answer("Added."))
            texts = [said_by(self.adapter(), native) for native in run.stored]
            assert not any(_is_memory(text) for text in texts), "the host stored memory's own messages"
            assert not any("Zanzibar" in text for text in texts)
            kept = "\n".join(texts)
            assert kept.index("Add a queue.") < kept.index("Added."), "the host lost part of its transcript"

    def test_guidance_is_sent_once(self) -> None:
        """However long the loop, no request has memory's guidance twice."""
        with self.memory() as memory:
            calls = (call("c1"), call("c2"))
            run = self._run(memory, "mine", "Build.", *calls, _answer("Built."))
            for request in run.requests:
                times = "\n".join(self._texts(request)).count(GUIDANCE)
                assert times <= 1, f"the guidance stands {times} times in one request"

    def test_the_snapshot_is_pinned_through_the_loop(self) -> None:
        """What is published while a turn runs is not seen by it, and is by the next."""
        with self.memory() as memory:
            began: list[bool] = []

            def publish() -> None:
                began.append(any(info.key == "mine" for info in memory.sessions()))
                self.publish(memory, "other", "Meanwhile?", "Zanzibar was published meanwhile.")

            script = _Script(call("c1"), _answer("Built."), before={0: publish})
            run = self._driven(memory, "mine", "Build.", script)
            if not all(began):
                raise AssertionError("drive() took the script's steps before the model was asked; take one a request")
            assert not any("Zanzibar" in "\n".join(self._texts(request)) for request in run.requests), (
                "the turn saw what was published after it began: does it keep one turn, and its context()?"
            )
            after = self._run(memory, "mine", "And now?", _answer("Yes."))
            assert "Zanzibar" in "\n".join(self._texts(after.requests[0])), "the next turn has to see it"

    def test_outcomes_are_what_happened(self) -> None:
        """A final answer is completed, an error failed, a cancellation interrupted; the host's error comes through."""
        with self.memory() as memory:
            cases: list[tuple[str, Step, type[BaseException] | None]] = [
                ("completed", _answer("Done."), None),
                ("failed", ModelFailed("the model is out"), ModelFailed),
                ("interrupted", asyncio.CancelledError(), asyncio.CancelledError),
            ]
            for outcome, step, error in cases:
                run = self._driven(memory, outcome, "Go.", _Script(step))
                told = [turn.outcome for turn in memory.session_by_id(self._found(memory, outcome).id).turns()]
                assert told == [outcome], f"a turn that was {outcome} is told as {told}"
                assert error is None or run.error is not None, f"the host swallowed its own {error}"
                assert run.error is None or error is not None, f"the run failed: {run.error!r}"

    def test_unanswered_calls_of_an_interrupted_turn_are_not_sent_again(self) -> None:
        """A call whose tool was cancelled stays as what happened; the next turn's requests are valid without it."""
        with self.memory() as memory:
            first = self._driven(memory, "mine", "Build.", _Script(call("c1", INTERRUPTED_TOOL), _answer("?")))
            info = self._found(memory, "mine")
            if first.error is None:
                skip("no tool of this host can be cancelled")
            assert [turn.outcome for turn in memory.session_by_id(info.id).turns()] == ["interrupted"]
            assert isinstance(self._parts_of(memory, info)[-1], ToolCallPart), "the call was made, and stays sealed"
            second = self._run(memory, "mine", "Again.", _answer("Built."))
            for request in second.requests:
                self._check_pairs(request)
                assert not any(isinstance(part, ToolCallPart) for part in self._parts(request))

    def test_answers_from_memory_are_no_evidence(self) -> None:
        """What a memory tool answers is recorded as retrieved, and found by no search as if it had been said here."""
        with self.memory() as memory:
            self.publish(memory, "other", "Should we use Redis?", "Zanzibar: no Redis.")
            search = HostMessage.assistant(calls=[ToolCallPart("c1", "memory_search", '{"query": "Zanzibar"}')])
            run = self._run(memory, "mine", "Redis?", search, _answer("No."))
            results = [part for part in self._parts(run.stored) if isinstance(part, ToolResultPart)]
            if not any(
                "Zanzibar" in item.text for part in results for item in part.content if isinstance(item, TextPart)
            ):
                skip("this host's model is given no memory tools")
            hits = memory.search("Zanzibar", kind="tool_result", order="newest").hits
            assert hits == (), "a memory tool's answer was sealed as evidence: pass turn.call()'s output on as it is"

    def test_a_nested_run_leaves_only_its_report(self) -> None:
        """What an agent within the run says to itself is not this session's; what comes of it is."""
        if not self._overrides("drive_nested"):
            skip("no nested runs: override drive_nested()")
        with self.memory() as memory:
            run = self.drive_nested(memory, "mine", "Survey.", "Musing within.", "The survey is done.")
            assert run.error is None, f"the run failed: {run.error!r}"
            parts = self._parts_of(memory, self._found(memory, "mine"))
            shown = "\n".join(text_of(part) for part in parts)
            assert "Musing within." not in shown, "the nested run's own messages were sealed"
            assert "The survey is done." in shown, "the nested run's report was not sealed"

    def test_an_edited_history_is_noticed(self) -> None:
        """A transcript that is as it was is no difference; one that was changed stops the turn before it begins."""
        if not self._overrides("edit"):
            skip("no history that could be edited unseen: override edit() if the host keeps one")
        with self.memory() as memory:
            self._run(memory, "mine", "Add a queue.", call("c1"), _answer("Added."))
            self._run(memory, "mine", "And a log.", _answer("Logged."))
            before = self._found(memory, "mine")
            self.edit(memory, "mine", "Add a queue.", "Add a stack.")
            run = self._driven(memory, "mine", "Test it.", _Script(_answer("Tested.")))
            assert isinstance(run.error, ResyncNeeded), (
                f"the history was edited, and the run ended with {run.error!r}: reconcile before the turn begins"
            )
            assert run.requests == [], "the model was asked with a memory of what was never said"
            assert self._found(memory, "mine").length == before.length, "something was sealed after the edit"

    def test_the_host_s_own_settings_are_its_own(self) -> None:
        """Instructions, tools, permissions and the model are what they were without memory."""
        with self.memory() as memory:
            run = self._run(memory, "mine", "Build.", call("c1"), _answer("Built."))
            if not run.settings:
                skip("no settings: fill HostRun.settings, and override settings()")
            assert len(run.settings) == len(run.requests), "settings are one a request"
            for settings in run.settings:
                assert settings == self.settings(), "memory changed what is the host's own"

    # ---- how they look at it -----------------------------------------------------------------------------------------

    def _run(self, memory: Memory, key: str, request: str, *steps: HostMessage) -> HostRun[M]:
        run = self._driven(memory, key, request, _Script(*steps))
        assert run.error is None, f"the run failed: {run.error!r}"
        return run

    def _driven(self, memory: Memory, key: str, request: str, script: Sequence[Step]) -> HostRun[M]:
        if not self._overrides("drive"):
            skip("no drive(): only the codec is tested")
        return self.drive(memory, key, request, script)

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(AdapterContract, name)

    def _found(self, memory: Memory, key: str) -> SessionInfo:
        found = [info for info in memory.sessions() if info.key == key]
        assert len(found) == 1, f"the host made {len(found)} sessions {key!r}; drive() has to use the key it is given"
        return found[0]

    def _parts_of(self, memory: Memory, info: SessionInfo) -> list[Part]:
        return [memory.source(f"session:{info.id}:{info.generation}:{seq}+1").part for seq in range(info.length)]

    def _texts(self, natives: Sequence[M]) -> list[str]:
        return [said_by(self.adapter(), native) for native in natives]

    def _parts(self, natives: Sequence[M]) -> list[Part]:
        return [part for native in natives for said in self.adapter().decode(native) for part in said.parts]


def _answer(text: str) -> HostMessage:
    return HostMessage.assistant(text)


def _is_memory(text: str) -> bool:
    return GUIDANCE in text or "<shared_memory " in text or "<session_memory " in text
