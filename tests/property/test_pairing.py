"""Laws of tool pairs: what does not pair is refused, and order_for_dispatch finds one that does if there is one."""

import pytest
from hypothesis import given, strategies as st

from optchat.core.active import order_for_dispatch
from optchat.core.errors import ToolProtocolError
from optchat.core.messages import HostMessage, ReportPart, ToolCallPart
from optchat.core.pairing import calls_of, check_pairs, pending_calls, results_of


def called(*call_ids: str) -> HostMessage:
    return HostMessage.assistant(calls=[ToolCallPart(call_id, "run", "{}") for call_id in call_ids])


def answered(call_id: str) -> HostMessage:
    return HostMessage.result(call_id, f"done {call_id}")


GROUP = (called("a"), called("b"), answered("a"), answered("b"))


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("end", range(5))
def test_a_cut_is_accepted_only_where_it_parts_no_pair(start: int, end: int) -> None:
    """Every cut of call, call, result, result, at both ends."""
    cut = GROUP[start:end]
    if cut in ((), GROUP):
        check_pairs(cut)
        return
    with pytest.raises(ToolProtocolError):
        check_pairs(cut)


VALID_ORDERS = [
    "",
    "Aa Bb", "Bb Aa", "AB ab", "AB ba", "BA ab", "BA ba",
    "Aa", "Bb",
]  # fmt: skip


@given(st.permutations(GROUP), st.integers(0, 4), st.integers(0, 4))
def test_of_all_orders_and_cuts_only_those_that_pair_are_accepted(
    messages: list[HostMessage], start: int, end: int
) -> None:
    """A capital is a call, the small letter its result."""
    cut = messages[start:end]
    letters = "".join(
        "".join(call.call_id.upper() for call in calls_of(m)) + "".join(r.call_id for r in results_of(m)) for m in cut
    )
    if letters in {order.replace(" ", "") for order in VALID_ORDERS}:
        check_pairs(cut)
        return
    with pytest.raises(ToolProtocolError):
        check_pairs(cut)


@st.composite
def turns(draw: st.DrawFn) -> list[HostMessage]:
    """Messages as they may be sealed: each result after its call, anything else anywhere, ids that come again."""
    messages = [HostMessage.user("request")]
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(1, 3))
        ids = [f"call-{n}" for n in range(size)]
        messages += [called(*ids)] if draw(st.booleans()) else [called(call_id) for call_id in ids]
        waiting = draw(st.permutations(ids))
        for call_id in waiting:
            for _ in range(draw(st.integers(0, 2))):
                messages.append(
                    draw(
                        st.sampled_from(
                            [
                                HostMessage.user("and another thing"),
                                HostMessage("user", (ReportPart("tests", "all green"),)),
                                HostMessage.assistant("still running"),
                                HostMessage("assistant", (ReportPart("worker", "half done"),)),
                            ]
                        )
                    )
                )
            messages.append(answered(call_id))
    return messages


@given(turns())
def test_whatever_was_sealed_between_a_call_and_its_results_goes_behind_them(messages: list[HostMessage]) -> None:
    ordered = order_for_dispatch(messages)

    check_pairs(ordered)
    parts = [part for message in messages for part in message.parts]
    assert sorted(map(repr, parts)) == sorted(repr(part) for message in ordered for part in message.parts)
    assert order_for_dispatch(ordered) == ordered, "a valid order is left as it is"
    assert pending_calls(messages) == pending_calls(ordered) == ()


@given(turns(), st.data())
def test_without_one_result_it_is_refused_and_the_call_is_named_as_pending(
    messages: list[HostMessage], data: st.DataObject
) -> None:
    places = [n for n, message in enumerate(messages) if results_of(message)]
    if not places:
        return
    gone = data.draw(st.sampled_from(places))
    lost = results_of(messages[gone])[0].call_id
    rest = messages[:gone] + messages[gone + 1 :]

    with pytest.raises(ToolProtocolError, match="call-"):
        check_pairs(order_for_dispatch(rest))
    assert [call.call_id for call in pending_calls(rest)] == [lost]


@given(turns(), st.data())
def test_a_second_result_is_refused(messages: list[HostMessage], data: st.DataObject) -> None:
    places = [n for n, message in enumerate(messages) if results_of(message)]
    if not places:
        return
    again = messages[data.draw(st.sampled_from(places))]

    with pytest.raises(ToolProtocolError):
        check_pairs([*messages, again])
