"""§ 16: durable views and references load without regeneration, and with the contents that they had."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import optchat
from optchat.testing import DeterministicSummarizer
from tests.acceptance.conftest import Open
from tests.peer import ROOT, Peer

BUDGET = optchat.Budget(32_000, 1_000)


def never(_request: optchat.SummaryRequest) -> BaseException:
    return AssertionError("something was summarised again")


def fill(memory: optchat.Memory) -> None:
    for number in range(10):
        with memory.session("ab"[number % 2]).turn(f"question {number} " + "why? " * 200) as turn:
            turn.tool_call("c1", "read", {"path": f"file-{number}"})
            turn.tool_result("c1", f"contents {number} " * 400)
            turn.assistant(f"answer {number}. " * 100)
    status = memory.settle()
    assert status.ready
    assert status.summarizer == "deterministic-1"


def everything(memory: optchat.Memory) -> list[Any]:
    """What a reader can see from the top, down to every record, in values that compare."""
    views = [memory.view(), *(memory.view(info.id) for info in memory.sessions())]
    seen: list[Any] = [str(view) for view in views]
    waiting = [line.ref for view in views for line in view.lines]
    while waiting:
        zoomed = memory.zoom(waiting.pop())
        seen.append(str(zoomed))
        waiting += [line.ref for line in zoomed.lines]
    for info in memory.sessions():
        session = memory.session_by_id(info.id)
        seen += [str(session.info()), [block.text for block in session.preview(BUDGET, request="go on").blocks]]
    seen.append([str(hit) for hit in memory.search("answer question", limit=50)])
    return seen


@pytest.fixture
def filled(open_memory: Open) -> optchat.Memory:
    memory = open_memory(summarizer=DeterministicSummarizer())
    fill(memory)
    return memory


def test_reopened_it_is_the_same(open_memory: Open, filled: optchat.Memory) -> None:
    before, records = everything(filled), filled.status().records
    filled.close()
    silent = DeterministicSummarizer(fail=never)
    again = open_memory(summarizer=silent)
    assert everything(again) == before
    status = again.settle()
    assert silent.requests == []
    assert (status.ready, status.records, status.stand_ins) == (True, records, 0)
    assert everything(again) == before
    assert again.verify().ok


def test_another_process_sees_the_same(filled: optchat.Memory, peer: Peer) -> None:
    peer("from tests.acceptance.test_restart import everything; import json")
    told = json.loads(peer("json.dumps(everything(memory))"))
    assert told == json.loads(json.dumps(everything(filled)))


def test_without_being_allowed_to_write(open_memory: Open, filled: optchat.Memory) -> None:
    before = everything(filled)
    filled.close()
    assert everything(open_memory(mode="ro")) == before


def test_an_open_turns_context_is_byte_equal_elsewhere(open_memory: Open, filled: optchat.Memory, peer: Peer) -> None:
    """A context is a function of stored rows, budget and active transcript: of no process, and no time."""
    turn = filled.session("a").turn("go on", turn_id="t")
    mine = [block.text for block in turn.context(BUDGET).blocks]
    with filled.session("b").turn("meanwhile") as other:
        other.assistant("something else was published")
    assert peer("memory.session('a').turn('go on', turn_id='t').outcome") is None
    peer("turn = memory.session('a').turn('go on', turn_id='t')")
    assert peer("[block.text for block in turn.context(optchat.Budget(32_000, 1_000)).blocks]") == mine
    turn.suspend()
    filled.close()
    again = open_memory().session("a").resume()
    assert [block.text for block in again.context(BUDGET).blocks] == mine
    assert again.snapshot == turn.snapshot
    assert again.id == "t"


def test_a_context_that_was_first_asked_for_after_the_restart(open_memory: Open, filled: optchat.Memory) -> None:
    """Not even rendered before: what the turn pinned is enough."""
    expected = [block.text for block in filled.session("a").preview(BUDGET, request="go on").blocks]
    turn = filled.session("a").turn("go on")
    with filled.session("b").turn("meanwhile") as other:
        other.assistant("something else was published")
    turn.suspend()
    filled.close()
    again = open_memory().session("a").resume()
    assert [block.text for block in again.context(BUDGET).blocks] == expected


def test_killed_with_work_left_it_goes_on(open_memory: Open, path: Path) -> None:
    """A process dies between sealing and summarising: the jobs that it wrote are worked by whoever comes next."""
    code = (
        "import os, signal, sys, optchat\n"
        "memory = optchat.open(sys.argv[1], scope='project-17', compact='manual')\n"
        "for number in range(4):\n"
        "    with memory.session('a').turn(f'question {number}') as turn:\n"
        "        turn.assistant(f'answer {number}. ' * 100)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=False)
    assert done.returncode == -9
    memory = open_memory()
    status = memory.status()
    assert (status.records, status.publications) == (8, 0)
    assert status.pending > 0
    status = memory.settle()
    assert (status.ready, status.publications) == (True, 4)
    assert memory.verify().ok


def test_a_pin_and_its_cursors_outlive_the_process(open_memory: Open, filled: optchat.Memory) -> None:
    with filled.pin() as pinned:
        first = pinned.search("answer", limit=5)
        name = pinned.view().snapshot.id
        rest = pinned.search("answer", limit=5, cursor=first.cursor)
    filled.close()
    with open_memory().pin(name) as pinned:
        assert pinned.search("answer", limit=5) == first
        assert pinned.search("answer", limit=5, cursor=first.cursor) == rest
