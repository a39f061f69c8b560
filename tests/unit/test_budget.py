"""The arithmetic of § 7: each part of a window charged once."""

from itertools import product

import pytest

from optchat.core.budget import Allotment, Budget, allot, available_memory
from optchat.core.errors import BadArgument


def test_memory_gets_what_the_other_parts_leave() -> None:
    budget = Budget(window=100_000, output=8_000, instructions=3_000, reserve=500)

    assert available_memory(budget, active=20_000) == 100_000 - 3_000 - 20_000 - 8_000 - 500
    assert available_memory(budget, active=88_499) == 1
    assert available_memory(budget, active=88_500) == available_memory(budget, active=500_000) == 0


@pytest.mark.parametrize("part", ["output", "instructions", "reserve"])
def test_each_part_is_charged_once(part: str) -> None:
    parts = {"window": 10_000, "output": 1_000, "instructions": 1_000, "reserve": 1_000}

    more = available_memory(Budget(**parts), 1_000) - available_memory(Budget(**parts | {part: 1_007}), 1_000)

    assert more == 7


def test_a_reserve_is_kept_unless_it_is_given() -> None:
    assert Budget(1_000, 0).reserve == 512
    assert available_memory(Budget(1_000, 0), 0) == 488


@pytest.mark.parametrize("name", ["window", "output", "instructions", "reserve"])
@pytest.mark.parametrize("value", [-1, 1.5, "8000", None, True])
def test_a_budget_is_whole_tokens(name: str, value: object) -> None:
    with pytest.raises(BadArgument, match=f"Budget.{name} is a number of tokens"):
        Budget(**{"window": 100, "output": 0, name: value})  # type: ignore[arg-type] # the point


def test_a_window_of_nothing_is_no_window() -> None:
    with pytest.raises(BadArgument, match="give the model's input-plus-output window"):
        Budget(0, 0)


@pytest.mark.parametrize(
    ("shared_wants", "own_wants", "shared", "own"),
    [
        (500, 500, 30, 70),  # both want more than there is
        (30, 70, 30, 70),
        (10, 500, 10, 90),  # what shared memory does not want is the session's
        (500, 20, 80, 20),  # and the other way round
        (0, 500, 0, 100),
        (500, 0, 100, 0),
        (10, 20, 10, 20),
        (0, 0, 0, 0),
    ],
)
def test_what_one_side_does_not_want_is_the_others(shared_wants: int, own_wants: int, shared: int, own: int) -> None:
    assert allot(100, 0.3, shared_wants, own_wants) == Allotment(shared, own)


def test_laws_of_the_division() -> None:
    for available, share, shared_wants, own_wants in product(range(12), (0.0, 0.3, 0.5, 1.0), range(14), range(14)):
        given = allot(available, share, shared_wants, own_wants)
        case = (available, share, shared_wants, own_wants, given)
        fair = int(available * share)
        assert 0 <= given.shared <= shared_wants, case
        assert 0 <= given.own <= own_wants, case
        assert given.shared + given.own == min(available, shared_wants + own_wants), case
        assert given.shared >= min(shared_wants, fair), case
        assert given.own >= min(own_wants, available - fair), case
