"""What can be awaited, or entered: once, and with the outcomes of the synchronous block."""

import gc
import warnings

import anyio
import anyio.lowlevel
import pytest

import optchat
import optchat.aio

pytestmark = pytest.mark.anyio


class _Mine(Exception):
    pass


class _Grave(BaseException):
    pass


def fail(raised: BaseException | None) -> None:
    if raised is not None:
        raise raised


@pytest.mark.parametrize(
    ("raised", "said", "outcome"),
    [
        (None, "done", "completed"),
        (None, None, "interrupted"),
        (_Mine(), "done", "failed"),
        (ExceptionGroup("several", [_Mine()]), "done", "failed"),
        (_Grave(), "done", "interrupted"),
        (BaseExceptionGroup("several", [_Mine(), _Grave()]), "done", "interrupted"),
    ],
    ids=["answered", "unanswered", "exception", "group", "base", "base group"],
)
async def test_outcomes_are_those_of_the_synchronous_block(
    memory: optchat.aio.AsyncMemory, raised: BaseException | None, said: str | None, outcome: str
) -> None:
    session, there = await memory.session("a"), memory.sync.session("b")
    turns: list[optchat.Turn[optchat.HostMessage] | optchat.aio.AsyncTurn[optchat.HostMessage]] = []
    caught: list[BaseException] = []
    try:
        async with session.turn("hi") as turn:
            turns.append(turn)
            if said:
                await turn.assistant(said)
            fail(raised)
    except BaseException as error:  # noqa: BLE001 - it is looked at below
        caught.append(error)
    try:
        with there.turn("hi") as same:
            turns.append(same)
            if said:
                same.assistant(said)
            fail(raised)
    except BaseException as error:  # noqa: BLE001 - the same
        caught.append(error)
    assert [turn.outcome for turn in turns] == [outcome, outcome]
    assert caught == [raised, raised] if raised else caught == []


async def test_a_scope_that_is_cancelled_interrupts(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    with anyio.CancelScope() as scope:
        async with session.turn("hi") as turn:
            await turn.assistant("said")
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert turn.outcome == "interrupted"


async def test_an_explicit_end_stands(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    with pytest.raises(_Mine):
        async with session.turn("hi") as turn:
            await turn.end("completed", "as told")
            raise _Mine
    assert turn.outcome == "completed"


async def test_awaited_it_is_ended_by_hand(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    turn = await session.turn("hi")
    await turn.assistant("hello")
    assert (await session.info()).turns == 1
    assert turn.outcome is None
    await turn.end("completed")
    assert turn.outcome == "completed"


async def test_it_opens_once(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    opening = session.turn("hi")
    turn = await opening
    with pytest.raises(RuntimeError, match="already awaited"):
        await opening
    await turn.end("completed")


async def test_one_that_is_forgotten_is_told(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session.turn("never")
        gc.collect()
    assert ["was never awaited" in str(one.message) for one in told] == [True]
    assert (await session.turns()).items == ()
