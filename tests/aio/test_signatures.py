"""
The two façades have one set of names: each method of the synchronous one has its asynchronous counterpart, with the
same parameters, defaults and types. What differs is said here.
"""

import asyncio
import inspect
import re
import typing
from typing import Any

import pytest

import optchat
import optchat.aio
from optchat.aio import AsyncMemory, AsyncReader, AsyncSession, AsyncTurn

PAIRS: list[tuple[type, type]] = [
    (optchat.Reader, AsyncReader),
    (optchat.Turn, AsyncTurn),
    (optchat.Session, AsyncSession),
    (optchat.Memory, AsyncMemory),
]
OTHER_NAME = {"close": "aclose"}
OPENINGS = {"turn", "resume", "pin"}
AT_ONCE = {"scoped", "count_tokens"}  # neither reads nor writes
OWN = {"hold_request"}  # of one class for another, and nobody else's


def methods(cls: type) -> list[str]:
    """The public methods that a class defines itself."""
    return [name for name, value in vars(cls).items() if not name.startswith("_") and inspect.isfunction(value)]


CASES = [(sync, asynchronous, name) for sync, asynchronous in PAIRS for name in methods(sync) if name not in OWN]


def counterpart(cls: type, name: str) -> Any:
    found = inspect.getattr_static(cls, OTHER_NAME.get(name, name), None)
    assert found is not None, f"{cls.__name__} lacks {name}: one line, `{name} = awaited({cls.__name__[5:]}.{name})`"
    return found


def forms(function: Any) -> list[inspect.Signature]:
    return [inspect.signature(each) for each in typing.get_overloads(function) or [function]]


def awaited(annotation: str) -> str:
    """A type of the synchronous façade as the other one has it."""
    annotation = re.sub(r"AbstractContextManager\[(\w+)\]", r"Opening[\1]", annotation)
    return re.sub(r"\b(Memory|Reader|Session|Turn)\b", r"Async\1", annotation)


@pytest.mark.parametrize(("sync", "asynchronous", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_it_has_the_same_parameters(sync: type, asynchronous: type, name: str) -> None:
    theirs, ours = forms(vars(sync)[name]), forms(counterpart(asynchronous, name))
    assert [each.parameters for each in ours] == [each.parameters for each in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        returns = awaited(other.return_annotation)
        if name in OPENINGS and not returns.startswith("Opening["):
            returns = f"Opening[{returns}]"
        assert mine.return_annotation == returns


@pytest.mark.parametrize(("sync", "asynchronous", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_it_is_awaited(sync: type, asynchronous: type, name: str) -> None:
    assert inspect.isfunction(vars(sync)[name])
    found = counterpart(asynchronous, name)
    assert inspect.iscoroutinefunction(found) is (name not in OPENINGS | AT_ONCE)
    assert inspect.getdoc(found)


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda value: value.__name__)
def test_it_has_nothing_else(sync: type, asynchronous: type) -> None:
    known = {OTHER_NAME.get(name, name) for name in methods(sync)}
    assert set(methods(asynchronous)) - known == set()


def test_turns_have_the_same_attributes() -> None:
    for name, value in vars(optchat.Turn).items():
        if isinstance(value, property) and not name.startswith("_"):
            assert isinstance(inspect.getattr_static(AsyncTurn, name), property)


def test_open_has_threads_besides() -> None:
    theirs, ours = inspect.signature(optchat.open), inspect.signature(optchat.aio.open)
    assert list(ours.parameters.values())[:-1] == list(theirs.parameters.values())
    assert str(ours.parameters["threads"]) == "threads: 'int' = 16"
    assert ours.return_annotation == "Opening[AsyncMemory]"


def test_made_methods_name_themselves() -> None:
    assert AsyncTurn.user.__qualname__ == "AsyncTurn.user"
    assert AsyncTurn.user.__module__ == "optchat.aio.turn"
    assert AsyncReader.zoom.__doc__ == optchat.Reader.zoom.__doc__
    assert asyncio.iscoroutinefunction(AsyncMemory.status)
