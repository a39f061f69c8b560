"""Which messages of a long turn give way together, where the cut falls, and which lines stand for what is left out."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from optchat.core.checkpoint import (
    SILENT,
    SPOKEN,
    UNANSWERED,
    UNSEALED,
    UNTOLD,
    Cut,
    Outline,
    Piece,
    Step,
    Wording,
    choose_lines,
    coarsest,
    outline,
    plan_cut,
    positions,
    roundest,
    runs_of,
    steps_of,
)
from optchat.core.messages import HostMessage, ReportPart, ToolCallPart, ToolResultPart, content_parts
from optchat.core.refs import Span

# ---- pieces, as a transcript is written down -------------------------------------------------------------------------


class Script:
    """Pieces one after another; records are numbered as they come."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.next = 0

    def __call__(self, *messages: HostMessage, tokens: int = 10, sealed: bool = True) -> None:
        parts = sum(len(message.parts) for message in messages)
        records = tuple(range(self.next, self.next + parts))
        self.next += parts
        self.pieces.append(Piece(tokens, messages, records if sealed else None))

    def silent(self, alone: bool | None, tokens: int = 10) -> None:
        self.pieces.append(Piece(tokens, (), None, alone))

    @property
    def steps(self) -> list[tuple[int, ...]]:
        return [step.pieces for step in steps_of(self.pieces)]

    @property
    def bound(self) -> list[str | None]:
        return [step.bound for step in steps_of(self.pieces)]


def user(text: str = "go") -> HostMessage:
    return HostMessage.user(text)


def says(*call_ids: str, text: str = "") -> HostMessage:
    return HostMessage.assistant(text, [ToolCallPart(call_id, "run", "{}") for call_id in call_ids])


def result(*call_ids: str) -> HostMessage:
    return HostMessage("tool", tuple(ToolResultPart(call_id, content_parts("ok")) for call_id in call_ids))


def test_a_step_is_what_was_said_and_called_and_all_results() -> None:
    script = Script()
    script(user())
    script(HostMessage.assistant("let me see"))
    script(says("a", "b"))
    script(result("b"))
    script(result("a"))
    script(says("c"))
    script(result("c"))
    script(HostMessage.assistant("done"))
    assert script.steps == [(1, 2, 3, 4), (5, 6), (7,)]
    assert script.bound == [None, None, None]
    assert [step.records for step in steps_of(script.pieces)] == [(1, 2, 3, 4, 5), (6, 7), (8,)]


def test_what_the_user_says_ends_a_step_and_is_in_none() -> None:
    script = Script()
    script(user())
    script(HostMessage.assistant("hm"))
    script(user("hurry"))
    script(says("a"))
    script(result("a"))
    assert script.steps == [(1,), (3, 4)]


def test_several_results_in_one_message_and_in_one_piece() -> None:
    script = Script()
    script(user())
    script(says("a", "b"), result("a"), result("b"))  # rebuilt together
    script(says("c", "d"))
    script(result("c", "d"))
    assert script.steps == [(1,), (2, 3)]


def test_a_group_that_is_partly_answered_stays() -> None:
    script = Script()
    script(user())
    script(says("a", "b"))
    script(result("a"))
    assert script.bound == [UNANSWERED]


def test_words_of_the_users_in_the_message_of_results_bind_it() -> None:
    script = Script()
    script(user())
    script(says("a"))
    script(result("a"), user("and hurry"))
    script(says("b"))
    script(result("b"))
    assert script.steps == [(1, 2), (3, 4)]
    assert script.bound == [SPOKEN, None]


def test_words_of_the_users_between_call_and_result_bind_them() -> None:
    script = Script()
    script(user())
    script(says("a"))
    script(user("wait"))
    script(result("a"))
    assert script.steps == [(1, 2, 3)]
    assert script.bound == [SPOKEN]


def test_a_report_is_nobodys_words_and_gives_way() -> None:
    script = Script()
    script(user())
    script(says("a"))
    script(result("a"))
    script(HostMessage("user", (ReportPart("scout", "found"),)))
    script(says("b"))
    script(result("b"))
    assert script.steps == [(1, 2, 3), (4, 5)]
    assert script.bound == [None, None]


def test_what_is_not_sealed_binds_its_step_alone() -> None:
    script = Script()
    script(user())
    script(says("a"))
    script(result("a"), sealed=False)
    script(says("b"))
    script(result("b"))
    assert script.bound == [UNSEALED, None]


def test_a_result_of_a_call_that_is_not_in_its_step_stays() -> None:
    script = Script()
    script(user())
    script(result("gone"))
    assert script.bound == [UNSEALED]


def test_reasoning_goes_with_the_call_that_it_led_to() -> None:
    script = Script()
    script(user())
    script.silent(alone=False)
    script(says("a"))
    script(result("a"))
    script.silent(alone=False)
    script(says("b"))
    script(result("b"))
    assert script.steps == [(1, 2, 3), (4, 5, 6)]


def test_instructions_stay_wherever_they_stand() -> None:
    script = Script()
    script.silent(alone=True)
    script(user())
    script(says("a"))
    script.silent(alone=True)
    script(result("a"))
    script.silent(alone=True)
    assert script.steps == [(2, 4)]
    assert script.bound == [None]


def test_a_silent_message_of_which_nobody_tells_binds_its_step() -> None:
    script = Script()
    script(user())
    script.silent(alone=None)
    script(says("a"))
    script(result("a"))
    script.silent(alone=False)
    assert script.bound == [UNTOLD, SILENT]


# ---- what can be left out --------------------------------------------------------------------------------------------


def many(steps: int, tokens: int = 50) -> Script:
    script = Script()
    script(user(), tokens=20)
    for number in range(steps):
        script(says(f"c{number}"), tokens=tokens)
        script(result(f"c{number}"), tokens=tokens)
    return script


def test_the_newest_calls_and_all_after_them_stay() -> None:
    script = many(3)
    script(user("hurry"), tokens=7)
    script(HostMessage.assistant("well"), tokens=11)
    shape = outline(script.pieces)
    assert [step.pieces for step in shape.steps] == [(1, 2), (3, 4)]
    assert (shape.fixed, shape.newest) == (27, 111)
    assert shape.tokens == sum(piece.tokens for piece in script.pieces)


def test_a_step_that_is_bound_is_a_part_of_what_stays() -> None:
    script = Script()
    script(user(), tokens=20)
    script(says("a"), tokens=30)
    script(result("a"), tokens=40, sealed=False)
    script(says("b"), tokens=1)
    script(result("b"), tokens=1)
    script(says("c"), tokens=1)
    script(result("c"), tokens=1)
    shape = outline(script.pieces)
    assert [step.pieces for step in shape.steps] == [(3, 4)]
    assert (shape.fixed, shape.newest, shape.why_not) == (90, 2, UNSEALED)


@pytest.mark.parametrize("script", [Script(), many(0), many(1)])
def test_of_a_turn_that_has_just_begun_nothing_can_be_left_out(script: Script) -> None:
    shape = outline(script.pieces)
    assert shape.steps == ()
    assert plan_cut(shape, 0, 0, lambda _: 0) is None


# ---- where the cut falls ---------------------------------------------------------------------------------------------


def line_of(tokens: int, steps: int = 40, newest: int = 100) -> Outline:
    return Outline(tuple(Step((n,), tokens, (n,), 1, None) for n in range(steps)), 20, newest, "")


def free(_: Sequence[Step]) -> int:
    return 30


def test_a_transcript_within_its_limit_stays_whole() -> None:
    shape = line_of(100)
    assert plan_cut(shape, shape.tokens, shape.tokens, free) is None
    assert plan_cut(shape, shape.tokens - 1, shape.tokens, free) is not None


def test_what_is_kept_and_the_checkpoint_keep_to_the_limit() -> None:
    shape = line_of(100)
    for limit in range(200, shape.tokens, 17):
        cut = plan_cut(shape, limit, 10_000, free)
        assert cut is not None
        assert cut.kept + cut.room <= limit
        assert cut.kept == shape.tokens - 100 * cut.steps
        assert cut.room >= 30


def test_below_that_all_but_the_newest_gives_way() -> None:
    shape = line_of(100)
    assert plan_cut(shape, 100, 10_000, free) == Cut(40, 120, 30)
    assert plan_cut(shape, 0, 0, free) == Cut(40, 120, 30)


def test_where_lines_cost_as_much_as_what_they_stand_for_nothing_gives_way() -> None:
    assert plan_cut(line_of(1, steps=20), 100, 100, free) is None


def test_a_cut_whose_lines_are_dear_moves_on() -> None:
    """Lines by their number: the limit is kept to by leaving out more."""
    shape = line_of(100)
    cut = plan_cut(shape, 2_000, 10_000, lambda steps: 1_500 if len(steps) < 35 else 50)
    assert cut is not None
    assert (cut.steps, cut.kept + cut.room <= 2_000) == (35, True)


def test_the_roundest_place() -> None:
    assert [roundest(5, high) for high in range(5, 10)] == [5, 6, 6, 8, 8]
    assert roundest(1, 1) == 1
    assert roundest(33, 63) == 48
    for low in range(1, 70):
        for high in range(low, 70):
            best = max(range(low, high + 1), key=lambda number: number & -number)
            assert roundest(low, high) == best


def test_a_growing_transcript_is_cut_anew_three_times_while_it_grows_by_its_room() -> None:
    limit, cuts = 10_000, set[int]()  # in order, since a cut only moves on
    for steps in range(1_000):
        cut = plan_cut(line_of(50, steps), limit, 100_000, free)
        cuts.add(0 if cut is None else cut.steps)
    room = limit - limit // 4 - 20
    assert len(cuts) <= 3 * 1_000 * 50 / room + 2
    assert min(later - earlier for earlier, later in pairwise(sorted(cuts))) * 50 >= room // 8


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_runs_name_the_records_and_no_other() -> None:
    runs = runs_of([7, 3, 4, 5, 9, 8])
    assert runs == ((3, 6), (7, 10))
    assert coarsest(runs) == (Span(3, 1), Span(4, 2), Span(7, 1), Span(8, 2))
    assert set(positions(runs)) == {Span(seq, 1) for seq in (3, 4, 5, 7, 8, 9)} | {Span(4, 2), Span(8, 2)}


WORDING = Wording(lambda span: 20 if span.count == 1 else 24, lambda _: 8)


def test_with_room_there_is_a_line_a_record() -> None:
    assert choose_lines([(0, 4)], WORDING, 80) == ({Span(n, 1): True for n in range(4)}, True)


def test_with_less_the_older_ones_are_told_coarser() -> None:
    assert choose_lines([(0, 4)], WORDING, 70) == ({Span(0, 2): True, Span(2, 1): True, Span(3, 1): True}, True)


def test_with_little_the_newest_are_told_and_the_rest_named() -> None:
    assert choose_lines([(1, 4), (5, 6)], Wording(lambda _: 100, lambda _: 8), 150) == (
        {Span(1, 1): False, Span(2, 1): False, Span(3, 1): False, Span(5, 1): True},
        True,
    )


def test_with_none_the_fewest_names_are_given_and_said_not_to_fit() -> None:
    assert choose_lines([(1, 4)], WORDING, 5) == ({Span(1, 1): False, Span(2, 2): False}, False)
