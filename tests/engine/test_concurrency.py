"""
Several processes and threads on one file: nothing is lost, nothing happens twice, and nobody sees a state between.

The order of events is the system's, or the test's; no test waits and hopes.
"""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import optchat
from optchat.store import forest
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.peer import ROOT, Peer

BUDGET = optchat.Budget(window=100_000, output=1_000)
PROCESSES, TURNS = 4, 6


def all_turns(session: optchat.Session[optchat.HostMessage]) -> list[optchat.TurnInfo]:
    found, cursor = [], None
    while True:
        page = session.turns(limit=100, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


def numbers(turns: list[optchat.TurnInfo]) -> list[int]:
    """Their publications, by number; a turn that has none fails the test."""
    refs = [turn.publication_ref for turn in turns]
    return [int(ref.removeprefix("pub:").removesuffix("+1")) for ref in refs if ref is not None] if all(refs) else [-1]


def start(path: Path, key: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    script = str(Path(__file__).with_name("session_process.py"))
    command = [sys.executable, "-W", "error", script, str(path), key, str(TURNS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


def go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"a process is gone, with exit code {process.wait()}"
    return line


@pytest.mark.long
def test_processes_that_write_and_summarise_at_once_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    path, keys = tmp_path / "memory.db", [f"s{number}" for number in range(PROCESSES)]
    processes = [start(path, key) for key in keys]
    try:
        assert [json.loads(line_of(process)) for process in processes] == ["ready"] * PROCESSES
        for process in processes:
            go_on(process)
        did = [json.loads(line_of(process)) for process in processes]
        for process in processes:
            go_on(process)
        asked = sum(json.loads(line_of(process))["asked"] for process in processes)
        assert [process.wait() for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    with optchat.open(path, scope="shared", summarizer=DeterministicSummarizer(), compact="manual") as memory:
        report, status = memory.verify(), memory.status()
        assert report.ok, report.faults
        assert status.ready, status
        of_session = {key: all_turns(memory.session(key, create=False)) for key in (*keys, "common")}
        for key, done in zip(keys, did, strict=True):
            assert [turn.id for turn in of_session[key]] == done["turns"]
            assert {turn.outcome for turn in of_session[key]} == {"completed"}
        noted = [ref for done in did for ref in done["notes"]]
        assert sorted(noted) == sorted(turn.ref for turn in of_session["common"])
        published = {key: numbers(turns) for key, turns in of_session.items()}
        for key, order in published.items():
            assert order == sorted(order), f"{key}: publications out of turn order"
        assert sorted(number for order in published.values() for number in order) == list(range(2 * PROCESSES * TURNS))
        with memory._scope.store.read() as db:
            made = forest.recipe_counts(db, memory._scope.pk)
        assert asked == sum(count for (kind, _), count in made.items() if kind == "summary"), "a job was worked twice"


def test_threads_share_a_memory_and_a_turn() -> None:
    with temporary_memory() as memory:
        session = memory.session("shared")
        turn = session.turn("begin")
        together, errors = threading.Barrier(6), list[BaseException]()

        def talk(name: int) -> None:
            try:
                together.wait()
                for number in range(8):
                    turn.user(f"steering {name}.{number}")
                    turn.tool_call(f"c{name}.{number}", "run", "{}")
                    turn.tool_result(f"c{name}.{number}", f"result {name}.{number}")
                    turn.context(BUDGET, active=[])
                    turn.zoom("0+1")
                    turn.call("memory_search", {"query": "steering"})
                    with memory.session(f"own {name}").turn(f"mine {number}") as own:
                        own.assistant("done")
            except BaseException as error:  # noqa: BLE001 - a thread's error is the test's
                errors.append(error)

        threads = [threading.Thread(target=talk, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        said = Counter(
            part.text for message in turn.messages for part in message.parts if isinstance(part, optchat.TextPart)
        )
        assert said == Counter(["begin", *(f"steering {a}.{b}" for a in range(6) for b in range(8))])
        assert not turn.pending
        turn.assistant("all done")
        turn.end("completed")
        memory.settle()
        order = sorted(
            number
            for key in ("shared", *(f"own {name}" for name in range(6)))
            for number in numbers(all_turns(memory.session(key)))
        )
        assert order == list(range(6 * 8 + 1))
        assert memory.verify().ok


def test_readers_that_poll_while_another_process_writes_are_never_refused(
    tmp_path: Path, new_peer: Callable[[], Peer]
) -> None:
    path = tmp_path / "memory.db"
    peer = new_peer()
    peer("memory = optchat.open(path, scope='s'); session = memory.session('writer')", path=str(path))
    done, errors, polled = threading.Event(), list[BaseException](), Counter[str]()

    def poll(mode: str) -> None:
        try:
            with optchat.open(path, scope="s", mode=mode, compact="manual") as memory:
                before = 0
                while not done.is_set():
                    records = memory.status().records
                    assert records >= before
                    before = records
                    memory.search("request answer")
                    memory.view()
                    with memory.pin() as pinned:
                        assert pinned.view().through == pinned.snapshot.through
                    memory.sessions()
                    polled[mode] += 1
        except BaseException as error:  # noqa: BLE001 - a thread's error is the test's
            errors.append(error)

    readers = [threading.Thread(target=poll, args=(mode,)) for mode in ("ro", "rw")]
    for reader in readers:
        reader.start()
    peer(
        "for n in range(100):\n"
        "    with session.turn(f'request {n} ' + 'long ' * (n % 7 * 60)) as turn:\n"
        "        turn.assistant(f'answer {n}')"
    )
    done.set()
    for reader in readers:
        reader.join()
    assert not errors, errors
    assert set(polled) == {"ro", "rw"}


KILLED = {
    "after it began": "turn = session.turn('cut off')",
    "in the midst": "turn = session.turn('cut off'); turn.assistant('half of it')",
    "with a call open": "turn = session.turn('cut off'); turn.tool_call('c', 'run', '{}')",
    "with summaries to come": "turn = session.turn('cut off ' * 500); turn.assistant('long ' * 500)",
    "with jobs in its hands": (
        "turn = session.turn('cut off ' * 500)\n"
        "from optchat.engine import work\n"
        "work.claim(memory._scope, summarizer='extractive-1', is_default=True, window_tokens=65536, limit=9)"
    ),
}


@pytest.mark.parametrize("code", KILLED.values(), ids=KILLED)
def test_after_a_kill_the_next_opening_ends_publishes_and_goes_on(
    code: str,
    tmp_path: Path,
    new_peer: Callable[[], Peer],
) -> None:
    path = tmp_path / "memory.db"
    peer = new_peer()
    peer("memory = optchat.open(path, scope='s', compact='manual'); session = memory.session('killed')", path=str(path))
    peer("waiting = session.turn('earlier ' * 500); waiting.end('completed')")
    peer(code)
    peer("kept = memory.session('kept').turn('suspended'); kept.suspend()")
    peer.kill()
    with optchat.open(path, scope="s", compact="manual") as memory:
        turns = all_turns(memory.session("killed"))
        assert [turn.outcome for turn in turns] == ["completed", "interrupted"]
        memory.settle()
        assert [turn.publication_ref for turn in all_turns(memory.session("killed"))] == ["pub:0+1", "pub:1+1"]
        assert memory.session("kept").resume().messages[0].parts == (optchat.TextPart("suspended"),)
        assert memory.status().ready
        assert memory.verify().ok


def test_a_turn_has_one_context_in_every_process(tmp_path: Path, new_peer: Callable[[], Peer]) -> None:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="s", compact="manual") as memory:
        session = memory.session("one")
        for number in range(6):
            session.turn(f"request {number} " + "at length " * (number * 40)).end("completed")
        turn = session.turn("which of these?", turn_id="t")
        here = turn.context(BUDGET, readiness="partial")
        blocks = "[block.text for block in turn.context(budget, readiness='partial').blocks]"
        memory.session("two").turn("published meanwhile").end("completed")
        memory.settle()  # what was missing has landed, and views have moved
        peer = new_peer()
        peer("memory = optchat.open(path, scope='s', compact='manual')", path=str(path))
        peer("budget = optchat.Budget(window=100_000, output=1_000)")
        peer("turn = memory.session('one').turn('which of these?', turn_id='t')")
        assert peer(blocks) == [block.text for block in here.blocks]
        peer("memory.close()")
        assert turn.outcome is None
        assert [info.state for info in all_turns(session)][-1] == "open", "another process's handle ended the turn"
        turn.assistant("all of them")
        turn.suspend()
        peer("memory = optchat.open(path, scope='s', compact='manual'); turn = memory.session('one').resume()")
        assert peer(blocks) == [block.text for block in here.blocks]
        peer("active = turn.context(budget, readiness='partial').messages[-2:]")
        assert peer("[part.text for message in active for part in message.parts]") == ["which of these?", "all of them"]


def test_settling_waits_for_jobs_that_another_process_works(tmp_path: Path, new_peer: Callable[[], Peer]) -> None:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="s", compact="manual") as memory:
        memory.session("one").turn("at length " * 300).end("completed")
        peer = new_peer()
        peer("from optchat.engine import work")
        peer("memory = optchat.open(path, scope='s', compact='manual')", path=str(path))
        peer("settings = dict(summarizer='extractive-1', is_default=True, window_tokens=65_536, limit=9)")
        peer("claimed = work.claim(memory._scope, **settings)")
        found: list[optchat.Status] = []
        settling = threading.Thread(target=lambda: found.append(memory.settle()))
        settling.start()
        assert peer("work.commit(memory._scope, [work.stand_in(memory._scope, task) for task in claimed.tasks])") == 1
        settling.join()
        assert found[0].ready
