"""The ground floor: one vocabulary, however it is written down."""

import ast
from pathlib import Path
from typing import get_args

import pytest
from attrs.exceptions import FrozenInstanceError

from optchat.core import terms
from optchat.core.messages import HostMessage
from optchat.core.records import KINDS
from optchat.core.terms import OUTCOMES, ROLES, BlockKind, HitKind, Outcome, RecordKind, Role, TokenUse


def test_each_word_is_written_once_for_types_and_once_for_values() -> None:
    """The two cannot be made from one another; here they are held together."""
    assert get_args(Outcome) == OUTCOMES == ("completed", "failed", "interrupted")
    assert get_args(Role) == ROLES == ("user", "assistant", "tool")
    assert get_args(RecordKind) == KINDS
    assert get_args(HitKind) == (*KINDS, "summary")


def test_there_is_no_system_role_and_no_reasoning_kind() -> None:
    """What cannot be written down cannot be retained."""
    for word in ("system", "developer", "reasoning", "thinking", "thought"):
        assert word not in (*get_args(Role), *get_args(HitKind), *get_args(BlockKind))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_word_is_taken_by_a_message(role: Role, outcome: Outcome) -> None:
    assert HostMessage(role, (), outcome=outcome).outcome == outcome


def test_it_imports_no_other_room_so_that_errors_may_speak_in_its_words() -> None:
    tree = ast.parse(Path(terms.__file__).read_text(encoding="utf-8"))
    froms = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in froms if module.startswith("optchat")]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def test_token_use_is_a_value_with_blocks_of_its_own() -> None:
    first, second = TokenUse(100, 1, 2, 3, 4), TokenUse(100, 1, 2, 3, 4)

    assert first == second
    assert (first.blocks, first.left) == ({}, 0)
    assert first.blocks is not second.blocks
    with pytest.raises(FrozenInstanceError):
        first.left = 5  # type: ignore[misc] # the point
