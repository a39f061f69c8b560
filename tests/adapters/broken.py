"""
Hosts that are wrong in one thing each, as hosts really are: the clause that each breaks is named in it.
"""

import copy
from collections.abc import Sequence
from typing import Any

from attrs import evolve

import optchat
from optchat.core.active import order_for_dispatch
from tests.adapters.lab import BUDGET, Lab, LabAdapter, LabContract, LabHost, lab_native

# ---- codecs ----------------------------------------------------------------------------------------------------------


class Trimming(LabAdapter):
    """It tidies what was said."""

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        def tidy(part: Any) -> Any:
            return optchat.TextPart(part.text.strip()) if isinstance(part, optchat.TextPart) else part

        return [evolve(said, parts=tuple(map(tidy, said.parts))) for said in super().decode(message)]


class Consuming(LabAdapter):
    """It notes in a tool's message that it has been here."""

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        if message["who"] == "tool":
            message["seen"] = True
        return super().decode(message)


class Introducing(LabAdapter):
    """It puts words of its own before memory."""

    def encode(self, blocks: Sequence[optchat.MemoryBlock], /) -> Sequence[Lab]:
        head = [{"who": "user", "parts": [{"text": "Here is what you remember:"}]}]
        return [*head, *super().encode(blocks)] if blocks else []


class Unchecked(LabAdapter):
    """It rebuilds whatever it is given."""

    def rebuild(self, messages: Sequence[optchat.HostMessage], /) -> Sequence[Lab]:
        return [native for message in order_for_dispatch(messages) for native in lab_native(message)]


class Outspoken(LabAdapter):
    """It takes thinking for words."""

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        plain = [{"text": part["thought"]} if "thought" in part else part for part in message["parts"]]
        return super().decode({**message, "parts": plain})


class ByTheByte(LabAdapter):
    """It charges an image as the text that carries it."""

    def count(self, message: Lab, tokenizer: optchat.Tokenizer, /) -> int:
        return 4 + sum(4 + tokenizer.count(str(value)) for part in message["parts"] for value in part.values())


class Generous(LabAdapter):
    """It gives calls away."""

    def count(self, message: Lab, tokenizer: optchat.Tokenizer, /) -> int:
        paid = [part for part in message["parts"] if "call" not in part]
        return super().count({**message, "parts": paid}, tokenizer)


class Capped(LabAdapter):
    """No message costs more than a few hundred tokens."""

    def count(self, message: Lab, tokenizer: optchat.Tokenizer, /) -> int:
        return min(200, super().count(message, tokenizer)) if "image" not in str(message) else 1_000


class KeyedByText(LabAdapter):
    """The user's words, where they are short, are their own key."""

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        return [
            evolve(said, key=said.parts[0].text)
            if said.role == "user" and isinstance(said.parts[0], optchat.TextPart) and len(said.parts[0].text) < 8
            else said
            for said in super().decode(message)
        ]


class OneCall(LabAdapter):
    """It knows of one call a message."""

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        calls = [part for part in message["parts"] if "call" in part]
        plain = [part for part in message["parts"] if "call" not in part or part is calls[0]]
        return super().decode({**message, "parts": plain})


class KeyedByCall(LabAdapter):
    """A call's id is its message's key, as if ids never came again."""

    def decode(self, message: Lab, /) -> Sequence[optchat.HostMessage]:
        return [
            evolve(said, key=said.parts[0].call_id) if isinstance(said.parts[0], optchat.ToolCallPart) else said
            for said in super().decode(message)
        ]


class Forgetful(LabAdapter):
    """It rebuilds calls and results, and leaves out what was said."""

    def rebuild(self, messages: Sequence[optchat.HostMessage], /) -> Sequence[Lab]:
        return [
            native
            for native in super().rebuild(messages)
            if native["who"] != "assistant" or any("call" in part for part in native["parts"])
        ]


# ---- glue ------------------------------------------------------------------------------------------------------------


class Unaware(LabHost):
    """Its hook runs, and what it gives is thrown away on every call but the first."""

    def messages(self, turn: optchat.Turn[Any]) -> list[Any]:
        sent = super().messages(turn)
        return sent if not self.requests else list(self.log)


class Repeating(LabHost):
    """It seals the last message again after each step, and keeps it twice."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.again: list[Any] = []

    def observe(self, turn: optchat.Turn[Any]) -> None:
        super().observe(turn)
        if not any("call" in part or "answers" in part for part in self.log[-1]["parts"]):
            turn.add(self.log[-1])
            self.again.append(self.log[-1])

    def kept(self) -> list[Any]:
        return [*super().kept(), *self.again]


class Truncating(LabHost):
    """It drops the oldest result to save tokens."""

    def messages(self, turn: optchat.Turn[Any]) -> list[Any]:
        sent = super().messages(turn)
        results = [number for number, native in enumerate(sent) if native["who"] == "tool"]
        return [native for number, native in enumerate(sent) if len(results) < 2 or number != results[0]]


class Mixing(LabHost):
    """It keeps memory's messages in its own transcript."""

    def stored(self) -> list[Any]:
        return self.requests[0] + self.log[1:] if self.requests else self.log


class Insisting(LabHost):
    """It puts memory before a list that has it already."""

    def messages(self, turn: optchat.Turn[Any]) -> list[Any]:
        context = turn.context(BUDGET, active=self.log)
        return [*([context.memory[0]] if len(self.requests) > 1 else []), *context.messages]


class Moving(LabHost):
    """It looks at memory anew for each call."""

    def messages(self, turn: optchat.Turn[Any]) -> list[Any]:
        sent = super().messages(turn)
        news = self.memory.view().text  # the owner's, and so the newest
        fresh = self.native(optchat.HostMessage.user(f"<shared_memory >{news}"))
        return [*sent[: len(sent) - len(self.log)], *fresh, *self.log]


class Optimistic(LabHost):
    """Whatever happened, it is done."""

    def end(self, turn: optchat.Turn[Any], error: BaseException | None) -> None:
        turn.end("completed" if isinstance(error, Exception) else "interrupted" if error else "completed")


class Clinging(LabHost):
    """It takes up the calls that the last turn left open."""

    open: list[Any] = []  # noqa: RUF012 - the framework's own, over all runs

    def messages(self, turn: optchat.Turn[Any]) -> list[Any]:
        return [*super().messages(turn), *type(self).open]

    def end(self, turn: optchat.Turn[Any], error: BaseException | None) -> None:
        type(self).open = [copy.deepcopy(self.log[-1])] if turn.pending else []
        super().end(turn, error)


class Decorating(LabHost):
    """It hands a memory tool's answer to the model with a remark."""

    def answer(self, turn: optchat.Turn[Any], call: optchat.ToolCallPart) -> str:
        said = super().answer(turn, call)
        return f"Found in memory: {said}" if call.name in turn.tools else said


class Indiscreet(LabHost):
    """It keeps an inner agent's messages in the one list that it has."""

    def run_nested(self, turn: optchat.Turn[Any], inner: str, report: str) -> None:
        super().run_nested(turn, inner, report)
        turn.assistant(inner)


class Trusting(LabHost):
    """It takes its own transcript for what it was."""

    def reconcile(self, session: optchat.Session[Any]) -> None:
        pass


class Meddling(LabHost):
    """It adds a line to the host's instructions."""

    def own(self) -> dict[str, Any]:
        own = super().own()
        return own | {"instructions": own["instructions"] + " You have a memory."}


def _broken(clause: str, codec: Any = None, host: type[LabHost] = LabHost) -> LabContract:
    name = type(codec).__name__ if codec is not None else host.__name__
    made = type(name, (LabContract,), {"codec": codec or LabAdapter(), "host": host, "clause": f"test_{clause}"})
    contract: LabContract = made()
    return contract


BROKEN: Sequence[Any] = [
    _broken("what_is_said_is_decoded", Trimming()),
    _broken("reading_changes_no_message", Consuming()),
    _broken("memory_is_said_by_the_user_as_it_is", Introducing()),
    _broken("pairs_hold_at_every_cut", Unchecked()),
    _broken("thinking_passes_through_and_is_not_kept", Outspoken()),
    _broken("images_cost_what_they_cost", ByTheByte()),
    _broken("every_word_is_counted", Generous()),
    _broken("small_windows_hold_what_is_sent", Capped()),
    _broken("steering_is_sealed_where_it_came", KeyedByText()),
    _broken("parallel_calls_keep_apart_an_error_and_a_late_result", OneCall()),
    _broken("call_ids_may_come_again", KeyedByCall()),
    _broken("a_pause_keeps_the_turn_for_another_process", Forgetful()),
    _broken("what_others_decided_reaches_the_model", host=Unaware),
    _broken("everything_is_sealed_exactly_once", host=Repeating),
    _broken("every_request_is_paired", host=Truncating),
    _broken("the_host_s_transcript_is_untouched", host=Mixing),
    _broken("guidance_is_sent_once", host=Insisting),
    _broken("the_snapshot_is_pinned_through_the_loop", host=Moving),
    _broken("outcomes_are_what_happened", host=Optimistic),
    _broken("unanswered_calls_of_an_interrupted_turn_are_not_sent_again", host=Clinging),
    _broken("answers_from_memory_are_no_evidence", host=Decorating),
    _broken("a_nested_run_leaves_only_its_report", host=Indiscreet),
    _broken("an_edited_history_is_noticed", host=Trusting),
    _broken("the_host_s_own_settings_are_its_own", host=Meddling),
]
