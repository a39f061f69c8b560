"""A host's list read, and beside what is sealed."""

from __future__ import annotations

import pytest

from optchat.core.errors import BadArgument
from optchat.core.messages import HostMessage, ReportPart, ToolCallPart
from optchat.core.reconciling import (
    Comparison,
    Divergence,
    Known,
    Listed,
    Stored,
    compare,
    read_list,
    run_lengths,
    turn_digests,
)
from optchat.core.terms import RecordKind


def sha(content: str) -> bytes:
    return content.encode().ljust(32, b".")


def held(*contents: str, removed: str = "") -> list[Stored]:
    """Records of two a turn; "note:" and "report:" before a content are its kind."""
    records: list[Stored] = []
    for seq, content in enumerate(contents):
        kind, _, rest = content.rpartition(":")
        named: RecordKind = "note" if kind == "note" else "report" if kind == "report" else "user"
        records.append(Stored(seq, seq // 2, named, sha(rest), rest in removed.split()))
    return records


def told(*contents: str, **keys: int) -> list[Listed]:
    """Parts of two a turn; ``b=4`` says that b's key is that of record 4."""
    return [
        Listed(number, number // 2, "user", (sha(each),), Known(keys[each]) if each in keys else None)
        for number, each in enumerate(contents)
    ]


def divergence(found: Comparison) -> Divergence:
    assert found.divergence is not None
    return found.divergence


# ---- reading a list --------------------------------------------------------------------------------------------------


def test_a_list_is_read_part_by_part_and_turn_by_turn() -> None:
    call = ToolCallPart("c", "run", "{}")
    read = read_list([[HostMessage.user("q")], [HostMessage.assistant("look", [call])], [], [HostMessage.user("r")]])
    assert [(part.native, part.number, part.turn, part.kind) for part in read.parts] == [
        (0, 0, 0, "user"),
        (1, 0, 0, "assistant"),
        (1, 1, 0, "tool_call"),
        (3, 0, 1, "user"),
    ]
    assert read.skipped == {"no_source": 1}
    assert read.messages == 3


def test_what_comes_again_is_skipped_and_other_content_under_its_key_refused() -> None:
    one = HostMessage.user("q", key="k")
    assert read_list([[one], [one]]).skipped == {"redelivered": 1}
    with pytest.raises(BadArgument, match="other content"):
        read_list([[one], [HostMessage.user("other", key="k")]])


def test_messages_of_one_native_may_share_its_key() -> None:
    said = (HostMessage("tool", (ReportPart("r", "done"),), key="k"), HostMessage.user("and now?", key="k"))
    read = read_list([said])
    assert [(part.number, part.turn, part.message.key) for part in read.parts] == [(0, 0, "k"), (1, 1, "k")]


def test_a_message_without_parts_is_no_source() -> None:
    assert read_list([[HostMessage("assistant", ())]]).skipped == {"no_source": 1}


# ---- comparing -------------------------------------------------------------------------------------------------------


def test_a_list_that_goes_on_has_a_rest() -> None:
    found = compare(held("a", "b"), told("a", "b", "c", "d"))
    assert (found.divergence, found.cut, found.rest, found.kept) == (None, 2, (2, 3), 2)
    assert not found.goes_on(told("a", "b", "c", "d"))
    assert compare(held("a"), told("a", "b")).goes_on(told("a", "b"))


@pytest.mark.parametrize(
    ("list_", "what", "seq", "message"),
    [
        (("a", "x", "c"), "changed", 1, 1),
        (("a", "c"), "missing", 1, 1),
        (("a", "b"), "missing", 2, None),
        ((), "missing", 0, None),
        (("a", "c", "b"), "reordered", 1, 1),
        (("x", "a", "b", "c"), "changed", 0, 0),
        (("b", "c"), "missing", 0, 0),
    ],
)
def test_how_a_list_differs_is_told(list_: tuple[str, ...], what: str, seq: int, message: int | None) -> None:
    found = divergence(compare(held("a", "b", "c"), told(*list_)))
    assert (found.what, found.seq, found.message) == (what, seq, message)
    assert f"record {seq} is {what}" in str(found)


def test_with_keys_a_list_may_be_the_tail() -> None:
    found = compare(held("a", "b", "c"), told("b", "c", "d", b=1, c=2))
    assert (found.divergence, found.beginning, found.rest) == (None, 1, (2,))


def test_what_stands_before_the_first_known_key_is_counted_back() -> None:
    found = compare(held("a", "b", "note:n", "c"), told("b", "c", c=3))
    assert (found.divergence, found.beginning) == (None, 1)


def test_a_list_that_names_what_was_before_its_beginning_is_no_tail() -> None:
    found = divergence(compare(held("a", "b", "c"), told("b", "a", "c", a=0, b=1, c=2)))
    assert (found.what, found.seq) == ("reordered", 0)


def test_a_key_says_which_record_a_message_is_whatever_its_content() -> None:
    # The same word twice; the first was dropped: by content alone the list would still begin with it.
    found = compare(held("a", "yes", "yes"), told("a", "yes", a=0))
    assert divergence(found).message is None
    second = [told("a", a=0)[0], Listed(1, 0, "user", (sha("yes"),), Known(2))]
    assert divergence(compare(held("a", "yes", "yes"), second)).seq == 1


def test_an_older_revision_of_what_is_sealed_is_the_same() -> None:
    older = Listed(0, 0, "user", (sha("as it was"),), Known(0, newer=True))
    assert compare(held("as it is"), [older]).divergence is None


def test_notes_and_reports_may_be_absent_or_there() -> None:
    records = held("a", "note:n", "report:r", "b")
    assert compare(records, told("a", "b")).divergence is None
    assert compare(records, told("a", "r", "b")).divergence is None
    assert compare(held("a", "report:r"), told("a")).cut == 2
    with_key = compare(held("a", "report:r", "b"), told("a", "b", "r", a=0, b=2, r=1))
    assert divergence(with_key).what == "reordered"


def test_any_of_a_parts_hashes_is_the_record() -> None:
    answer = Listed(0, 0, "tool_result", (sha("answered 3 B"), sha("abc")))
    assert compare(held("abc"), [answer]).divergence is None


# ---- what was removed ------------------------------------------------------------------------------------------------


def test_a_removed_turn_may_be_absent_or_there() -> None:
    records = held("a", "b", "c", "d", "e", removed="c d")
    assert compare(records, told("a", "b", "e")).divergence is None
    found = compare(records, told("a", "b", "c", "d", "e", "f"), frozenset({(2, 2)}))
    assert (found.divergence, found.rest, found.kept) == (None, (5,), 3)
    assert found.skipped == frozenset({2, 3})


def test_a_removed_turn_is_not_sealed_again_behind_a_difference() -> None:
    found = compare(held("a", "b"), told("a", "x", "c", "d", "y"), frozenset({(2, 2)}))
    assert (divergence(found).seq, found.rest, found.skipped) == (1, (1, 4), frozenset({2, 3}))


def test_a_message_whose_key_was_removed_is_passed_over() -> None:
    gone = Listed(1, 0, "user", (sha("b"),), None, removed=True)
    found = compare(held("a", "c"), [told("a")[0], gone, *told("", "", "c")[2:]])
    assert (found.divergence, found.rest, found.skipped) == (None, (), frozenset({1}))


def test_the_length_of_the_turn_that_was_there_decides() -> None:
    # Two removed turns begin alike: "c" alone, and "c d"; where "c" stood only one part is passed over.
    records = held("a", "b", "c", removed="c")
    found = compare(records, told("a", "b", "c", "d"), frozenset({(2, 1), (2, 2)}))
    assert found.rest == (3,)


def test_lengths_and_digests_leave_out_what_a_host_may_not_have() -> None:
    kinds: list[RecordKind] = ["user", "note", "report", "assistant"]
    assert run_lengths(kinds) == (3, 2)
    assert run_lengths(["note"]) == ()
    assert len(turn_digests([(kind, sha(kind)) for kind in kinds])) == 2
    assert turn_digests([("user", sha("a"))]) == turn_digests([("note", sha("n")), ("user", sha("a"))])


def test_an_empty_session_has_all_of_a_list_new() -> None:
    found = compare([], told("a", "b"))
    assert (found.divergence, found.cut, found.rest) == (None, 0, (0, 1))
