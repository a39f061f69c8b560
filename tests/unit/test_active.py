"""
The open turn as it is sent: an order that pairs, a host's own objects by identity, the rest rebuilt.

Where order_for_dispatch puts neutral messages is in test_pairing.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import field, frozen

from optchat.core.active import Entry, arrange, transcript
from optchat.core.errors import ToolProtocolError
from optchat.core.messages import HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.pairing import check_pairs
from optchat.core.ports import HostInfo, MemoryBlock, Tokenizer


@frozen(eq=False)  # equal only to itself, as a host's own objects are told apart
class Native:
    """A message of a host that puts adjacent messages of one role into one."""

    said: tuple[HostMessage, ...]
    rebuilt: bool = field(default=False, kw_only=True)


class Host:
    """Refuses what does not pair, as providers do."""

    info = HostInfo(name="test")

    def __init__(self) -> None:
        self.runs: list[tuple[HostMessage, ...]] = []

    def decode(self, message: Native, /) -> Sequence[HostMessage]:
        return message.said

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[Native]:
        raise AssertionError(f"a transcript has no blocks: {blocks}")

    def count(self, message: Native, tokenizer: Tokenizer, /) -> int:
        raise AssertionError(f"a transcript is not counted here: {message} by {tokenizer}")

    def rebuild(self, messages: Sequence[HostMessage], /) -> Sequence[Native]:
        check_pairs(messages)
        self.runs.append(tuple(messages))
        groups: list[list[HostMessage]] = []
        for message in messages:
            if groups and groups[-1][0].role == message.role:
                groups[-1].append(message)
            else:
                groups.append([message])
        return [Native(tuple(group), rebuilt=True) for group in groups]


def user(text: str = "steer") -> HostMessage:
    return HostMessage.user(text)


def call(*call_ids: str, text: str = "") -> HostMessage:
    return HostMessage.assistant(text, [ToolCallPart(call_id, "run", "{}") for call_id in call_ids])


def result(*call_ids: str) -> HostMessage:
    return HostMessage("tool", tuple(ToolResultPart(call_id, (TextPart("ok"),)) for call_id in call_ids))


def own(*messages: HostMessage) -> Entry[Native]:
    """As a host handed it over."""
    return Entry(messages, (Native(messages),))


def sealed(*messages: HostMessage) -> Entry[Native]:
    """As this process was not handed it."""
    return Entry(messages)


def said(natives: Sequence[Native]) -> list[HostMessage]:
    return [message for native in natives for message in native.said]


# ---- a host's own objects --------------------------------------------------------------------------------------------


def test_a_hosts_own_objects_are_sent_as_they_were_handed_over() -> None:
    entries = [own(user("go")), own(call("a")), own(result("a")), own(HostMessage.assistant("done"))]
    host = Host()

    natives = transcript(entries, host)

    assert [native is entry.natives[0] for native, entry in zip(natives, entries, strict=True)] == [True] * 4
    assert host.runs == []


def test_steering_between_a_call_and_its_result_is_sent_behind_it() -> None:
    request, calling, steer, answer = own(user("go")), own(call("a")), own(user()), own(result("a"))

    assert arrange([request, calling, steer, answer]) == [request, calling, answer, steer]


def test_steering_between_parallel_calls_waits_for_all_their_results() -> None:
    calling, first, second = own(call("a", "b")), own(user("first")), own(user("second"))
    a, b = own(result("a")), own(result("b"))

    assert arrange([calling, first, a, second, b]) == [calling, a, b, first, second]


def test_parallel_calls_in_messages_of_their_own_are_one_group() -> None:
    a, b, one, other = own(call("a")), own(call("b")), own(result("b")), own(result("a"))
    both = own(result("b", "a"))

    assert arrange([a, b, one, other]) == [a, b, one, other]
    assert arrange([a, b, both]) == [a, b, both]


def test_a_call_made_after_the_first_result_begins_a_group_of_its_own() -> None:
    calling, a, late, b, c = own(call("a", "b")), own(result("a")), own(call("c")), own(result("b")), own(result("c"))

    assert arrange([calling, a, late, b, c]) == [calling, a, b, late, c]


def test_a_call_made_after_steering_does_not_overtake_it() -> None:
    first, steer, second, a, b = own(call("a")), own(user()), own(call("b")), own(result("a")), own(result("b"))

    assert arrange([first, steer, second, a, b]) == [first, a, steer, second, b]


def test_a_hosts_own_words_do_not_join_a_group_of_calls() -> None:
    """No adapter merges a host's own objects: between them and their results only calls may stand."""
    calling, words, answer = own(call("a")), own(HostMessage.assistant("meanwhile")), own(result("a"))

    assert arrange([calling, words, answer]) == [calling, answer, words]


def test_words_that_will_be_rebuilt_may_join_a_group_of_calls() -> None:
    calling, words, answer = sealed(call("a")), sealed(HostMessage.assistant("meanwhile")), sealed(result("a"))

    assert arrange([calling, words, answer]) == [calling, words, answer]


def test_a_rebuilt_message_does_not_join_a_hosts_own() -> None:
    calling, other, answer, late = own(call("a")), sealed(call("b")), own(result("a")), own(result("b"))

    assert arrange([calling, other, answer, late]) == [calling, answer, other, late]


def test_results_that_answer_more_than_is_open_wait() -> None:
    """One native message with two results cannot be sent before both its calls were."""
    calling, steer, both, other = own(call("a")), own(user()), own(result("a", "b")), own(call("b"))

    assert arrange([calling, steer, both]) == [calling, steer, both]
    assert arrange([calling, other, steer, both]) == [calling, other, both, steer]


def test_a_call_without_a_result_stays_where_it_is_and_so_does_what_follows() -> None:
    entries = [own(user("go")), own(call("a")), own(user()), own(HostMessage.assistant("well"))]

    assert arrange(entries) == entries


def test_a_report_inside_a_rebuilt_message_stands_apart_and_inside_a_hosts_own_stays() -> None:
    report = ReportPart("survey", "half")
    reporting = HostMessage("assistant", (report, ToolCallPart("a", "run", "{}")))

    apart = arrange([sealed(reporting), sealed(result("a"))])
    assert [entry.messages for entry in apart] == [(call("a"),), (result("a"),), (HostMessage("user", (report,)),)]
    handed = own(reporting)
    assert arrange([handed, own(result("a"))])[0] is handed


# ---- what is rebuilt -------------------------------------------------------------------------------------------------


def test_what_was_not_handed_over_is_rebuilt_in_runs() -> None:
    """A host that puts several results into one message can do so only if it is given them together."""
    handed = own(HostMessage.assistant("done"))
    host = Host()

    natives = transcript(
        [sealed(user("go")), sealed(call("a", "b")), sealed(result("a")), sealed(result("b")), handed, sealed(user())],
        host,
    )

    assert host.runs == [(user("go"),), (call("a", "b"), result("a"), result("b")), (user(),)]
    assert [len(native.said) for native in natives] == [1, 1, 2, 1, 1]
    assert natives[3] is handed.natives[0]


def test_results_alone_are_rebuilt_under_their_calls_which_the_host_has() -> None:
    request, calling = own(user("go")), own(call("a", "b", text="looking"))
    host = Host()

    natives = transcript([request, calling, sealed(result("a")), sealed(result("b")), sealed(user())], host)

    assert natives[:2] == [*request.natives, *calling.natives]
    assert said(natives[2:]) == [result("a"), result("b"), user()]
    assert host.runs == [(call("a", "b"), result("a"), result("b")), (user(),)]


def test_only_the_calls_that_the_run_answers_are_put_before_it() -> None:
    host = Host()

    natives = transcript([own(call("a", "b")), own(result("a")), sealed(result("b"))], host)

    assert host.runs == [(call("b"), result("b"))]
    assert said(natives) == [call("a", "b"), result("a"), result("b")]


def test_an_id_that_comes_again_is_the_latest_call() -> None:
    again = HostMessage.assistant(calls=[ToolCallPart("a", "write", "{}")])
    host = Host()

    transcript([own(call("a")), own(result("a")), own(again), sealed(result("a"))], host)

    assert host.runs == [(again, result("a"))]


def test_a_call_of_the_run_itself_is_not_put_before_it() -> None:
    host = Host()

    transcript([own(call("a")), own(result("a")), sealed(call("a")), sealed(result("a"))], host)

    assert host.runs == [(call("a"), result("a"))]


def test_a_late_result_without_its_call_is_refused_by_who_rebuilds() -> None:
    """Its turn has ended with the call open: there is nothing to pair it with in this one."""
    with pytest.raises(ToolProtocolError, match="answers no call"):
        transcript([own(user("go")), sealed(result("gone"))], Host())


def test_a_call_without_a_result_is_refused_by_who_rebuilds() -> None:
    with pytest.raises(ToolProtocolError, match="no result"):
        transcript([sealed(user("go")), sealed(call("a"))], Host())


def test_nothing_is_sent_for_nothing() -> None:
    host = Host()

    assert transcript([], host) == []
    assert host.runs == []


def test_own_results_of_rebuilt_calls_are_rebuilt_with_them() -> None:
    """A resumed turn's calls are only sealed; the host answers them in its own messages, in the new process."""
    host = Host()
    natives = transcript([sealed(user("go")), sealed(call("a", "b")), own(result("a")), own(result("b"))], host)

    check_pairs([said for native in natives for said in native.said])
    assert [native.rebuilt for native in natives] == [True, True, True]
    assert natives[-1].said == (result("a"), result("b"))
