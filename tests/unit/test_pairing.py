"""What check_pairs says, and where order_for_dispatch puts things. The laws are in tests/property/test_pairing.py."""

import pytest

from optchat.core.active import order_for_dispatch
from optchat.core.errors import ToolProtocolError
from optchat.core.messages import HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.pairing import check_pairs, pending_calls

USER = HostMessage.user("look")
SAID = HostMessage.assistant("done")


def called(*call_ids: str, text: str = "") -> HostMessage:
    return HostMessage.assistant(text, [ToolCallPart(call_id, "run", "{}") for call_id in call_ids])


def answered(*call_ids: str) -> HostMessage:
    return HostMessage("tool", tuple(ToolResultPart(call_id, (TextPart("ok"),)) for call_id in call_ids))


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (USER, SAID),
        (USER, called("a"), answered("a"), SAID),
        (called("a", "b"), answered("b"), answered("a")),
        (called("a", "b"), answered("a", "b"), USER),
        (called("a"), called("b"), answered("a"), answered("b")),
        (called("a"), HostMessage.assistant("thinking aloud"), answered("a")),
        (called("a"), answered("a"), called("a"), answered("a")),
    ],
)
def test_valid_pairs(messages: tuple[HostMessage, ...]) -> None:
    check_pairs(messages)
    assert order_for_dispatch(messages) == messages


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((called("a"),), "no result, first 'a'"),
        ((called("a", "b"), answered("a")), "no result, first 'b'"),
        ((answered("a"),), "answers no call"),
        ((called("a"), answered("b")), "'b' answers no call"),
        ((called("a"), answered("a"), answered("a")), "two results"),
        ((called("a", "b"), answered("a"), answered("a"), answered("b")), "two results"),
        ((called("a"), answered("a"), SAID, answered("a")), "answers no call"),
        ((called("a"), USER, answered("a")), "'user' stands between the call 'a'"),
        ((called("a", "b"), answered("a"), called("c"), answered("b"), answered("c")), "'assistant' stands between"),
        ((called("a", "a"), answered("a"), answered("a")), "used by two calls"),
        ((called("a"), called("a"), answered("a"), answered("a")), "used by two calls"),
    ],
)
def test_what_does_not_pair_is_refused_with_its_reason(messages: tuple[HostMessage, ...], said: str) -> None:
    with pytest.raises(ToolProtocolError, match=said):
        check_pairs(messages)


def test_steering_goes_behind_the_results_in_its_own_order() -> None:
    first, second = HostMessage.user("first"), HostMessage("user", (ReportPart("job", "second"),))

    ordered = order_for_dispatch((USER, called("a", "b"), first, answered("a"), second, answered("b"), SAID))

    assert ordered == (USER, called("a", "b"), answered("a"), answered("b"), first, second, SAID)


def test_a_call_made_while_another_waits_forms_a_group_of_its_own() -> None:
    ordered = order_for_dispatch((called("a", "b"), answered("a"), called("c"), answered("c"), answered("b")))

    assert ordered == (called("a", "b"), answered("a"), answered("b"), called("c"), answered("c"))


def test_a_report_inside_a_message_becomes_one_of_its_own() -> None:
    report = ReportPart("worker", "half done")
    calling = HostMessage("assistant", (report, ToolCallPart("a", "run", "{}")), key="k")

    ordered = order_for_dispatch((calling, answered("a")))

    assert ordered == (
        HostMessage("assistant", (ToolCallPart("a", "run", "{}"),), key="k"),
        answered("a"),
        HostMessage("user", (report,)),
    )


def test_a_call_without_a_result_stays_where_it_is() -> None:
    assert order_for_dispatch((called("a"), USER, SAID)) == (called("a"), USER, SAID)


def test_pending_calls_in_order_of_calling() -> None:
    messages = (called("a", "b"), called("c"), answered("b"), answered("unknown"))

    assert [call.call_id for call in pending_calls(messages)] == ["a", "c"]
    assert [call.call_id for call in pending_calls((*messages, answered("a"), called("a")))] == ["c", "a"]


def test_a_hosts_own_words_may_not_stand_between_a_call_and_its_result() -> None:
    messages = (called("a"), SAID, answered("a"))
    check_pairs(messages)  # an adapter makes one message of the first two
    with pytest.raises(ToolProtocolError, match="words"):
        check_pairs(messages, as_sent=True)
    check_pairs((called("a"), called("b"), answered("a"), answered("b")), as_sent=True)
