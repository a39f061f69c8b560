"""
Many processes on one file: opening it for the first time, and writing to it without a pause.

A writer that is stopped in the middle of a transaction stands in test_writer_lock.py.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import optchat
from tests.crash.use_cases import SCOPE as FORMER_SCOPE, former
from tests.nursery import Nursery
from tests.store.crowd import SCOPE

pytestmark = pytest.mark.crash

EVERY = int(os.environ.get("OPTCHAT_CRASH_ROUNDS", "3")) > 3
OPENINGS = 20 if EVERY else 2
SECONDS = 10.0 if EVERY else 0.5
FAIR = 0.4  # the slowest writer's share of the fastest one's


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.end()


@pytest.mark.parametrize("opening", range(OPENINGS))
def test_twelve_processes_open_a_fresh_file_and_say_a_turn(opening: int, nursery: Nursery, tmp_path: Path) -> None:
    path, go = tmp_path / "memory.db", tmp_path / "go"
    if opening % 2:  # as a program that reserves names leaves it
        path.touch()
    keys = [f"process-{number}" for number in range(12)]
    children = [nursery.spawn("tests.store.crowd:open_together", path=str(path), key=key, go=str(go)) for key in keys]
    go.touch()
    assert [nursery.reap(child).code for child in children] == [0] * len(keys)
    with optchat.open(path, scope=SCOPE, mode="ro") as memory:
        assert {session.key for session in memory.sessions()} == set(keys)
        assert memory.status().publications == len(keys)
        report = memory.verify()
        assert report.ok, report.faults


@pytest.mark.parametrize("version", [1, 2] if EVERY else [1])
def test_twelve_processes_bring_a_former_format_up_to_date_together(
    version: int, nursery: Nursery, tmp_path: Path
) -> None:
    path, go = tmp_path / "memory.db", tmp_path / "go"
    former(version)(path)
    keys = [f"process-{number}" for number in range(12)]
    children = [nursery.spawn("tests.store.crowd:open_together", path=str(path), key=key, go=str(go)) for key in keys]
    go.touch()
    assert [nursery.reap(child).code for child in children] == [0] * len(keys)
    for scope, published in ((SCOPE, len(keys)), (FORMER_SCOPE, 8)):
        with optchat.open(path, scope=scope, mode="ro") as memory:
            assert memory.status().publications >= published
            report = memory.verify()
            assert report.ok, report.faults


@pytest.mark.parametrize("count", [4, 12] if EVERY else [4])
def test_whoever_writes_is_never_refused_and_never_starved(
    count: int, nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, go = tmp_path / "memory.db", tmp_path / "go"
    outs = [tmp_path / f"writer-{number}" for number in range(count)]
    children = [
        nursery.spawn(
            "tests.store.crowd:write_on", path=str(path), key=out.name, go=str(go), seconds=SECONDS, out=str(out)
        )
        for out in outs
    ]
    while not all(out.with_suffix(".ready").exists() for out in outs):
        time.sleep(0.01)
    go.touch()
    assert [nursery.reap(child).code for child in children] == [0] * count, "an error reached a caller"
    sealed = [json.loads(out.read_text(encoding="utf-8")) for out in outs]
    counts = [number for number, _ in sealed]
    fairness, worst = min(counts) / max(counts), max(seconds for _, seconds in sealed)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{count} writers for {SECONDS:g} s: {sum(counts)} records, "
            f"slowest/fastest {fairness:.2f}, worst wait {worst * 1000:.0f} ms\n"
        )
    with optchat.open(path, scope=SCOPE, mode="ro") as memory:
        assert memory.status().records == sum(counts) + count, "what was acknowledged is there, once"
        assert memory.verify().ok
    assert min(counts) > 0
    if EVERY:
        assert fairness >= FAIR
