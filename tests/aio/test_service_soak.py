"""
A service for a minute: 200 conversations at once in one process, four processes that make its summaries, one file.

Prints how long ``context()`` took. Nothing about time is asserted but that each call came back.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import apsw
import pytest

import optchat
import optchat.aio

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("OPTCHAT_SOAK_SECONDS", "60"))
MODEL_SECONDS = float(os.environ.get("OPTCHAT_SOAK_MODEL_SECONDS", "0"))  # how long an answer takes; 0: all that it can
SESSIONS, CUSTOMERS, WORKERS = 200, 20, 4
BUDGET = optchat.Budget(200_000, 8_000)
WAIT_SECONDS = 5.0  # for summaries; more than that is a request that failed
WORDS = ("queue", "broker", "redis", "deploy", "rollback", "index", "schema", "latency", "cache", "token", "lease")

pytestmark = [pytest.mark.soak, pytest.mark.anyio]


@pytest.fixture
def workers(path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    with optchat.open(path, scope="root", compact="manual"):
        pass
    command = [sys.executable, "-m", "optchat", "--db", str(path), "compact", "--watch", "--all-scopes"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(WORKERS)
    ]
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    while db.execute("SELECT count(*) FROM owner WHERE working > 0").get < WORKERS:  # until they have begun
        assert all(process.poll() is None for process in started), "a worker did not begin"
        time.sleep(0.05)
    db.close()
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


class Service:
    def __init__(self, root: optchat.aio.AsyncMemory) -> None:
        self.root = root
        self.ends_at = time.monotonic() + SECONDS
        self.took: list[float] = []
        self.turns: Counter[int] = Counter()  # by customer
        self.again = 0

    async def converse(self, number: int) -> None:
        """Requests of one conversation, one after the other; now and then one is delivered again."""
        chance = random.Random(number)
        count = 0
        while time.monotonic() < self.ends_at:
            count += 1
            said = " ".join(chance.choices(WORDS, k=chance.choice((4, 30, 200))))
            for _ in range(2 if chance.random() < 0.05 else 1):
                await self.handle(number, said, f"request-{number}-{count}", chance)

    async def handle(self, number: int, said: str, request_id: str, chance: random.Random) -> None:
        """As `handle` of the reference's service, but that summaries which come late are an error."""
        memory = self.root.scoped(f"customer:{number % CUSTOMERS}")
        session = await memory.session(f"chat-{number}")
        async with session.turn(said, turn_id=request_id, if_open="refuse") as turn:
            if turn.outcome is not None:
                self.again += 1
                return
            begun = time.perf_counter()
            context = await turn.context(BUDGET, wait_seconds=WAIT_SECONDS)
            self.took.append(time.perf_counter() - begun)
            assert context.receipt.tokens.left >= 0
            assert context.receipt.missing == ()
            await anyio.sleep(chance.uniform(0, 2 * MODEL_SECONDS))
            if chance.random() < 0.3:
                await turn.tool_call("c1", "look", {"for": said[:40]})
                await turn.tool_result("c1", said)
            await turn.assistant(f"About {said}")
        assert turn.outcome == "completed"
        self.turns[number % CUSTOMERS] += 1


async def test_two_hundred_conversations(
    path: Path, workers: list[subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str], anyio_backend: str
) -> None:
    policy = optchat.Policy(lock_wait_seconds=60)
    async with optchat.aio.open(path, scope="root", compact="manual", policy=policy, threads=32) as root:
        service = Service(root)
        async with anyio.create_task_group() as tasks:
            for number in range(SESSIONS):
                tasks.start_soon(service.converse, number)
        for number in range(CUSTOMERS):
            memory = root.scoped(f"customer:{number}")
            with anyio.fail_after(600):
                while (status := await memory.status()).pending or status.running:  # noqa: ASYNC110 - processes' doing
                    await anyio.sleep(0.1)
            assert status.failures == ()
            assert (status.sessions, status.publications) == (SESSIONS // CUSTOMERS, service.turns[number])
            assert sum(session.turns for session in await memory.sessions()) == service.turns[number]
            assert (await memory.verify()).ok
    for process in workers:
        assert process.poll() is None, "a worker ended by itself"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert b"Traceback" not in said, said.decode()
    assert service.again, "a request was delivered again"
    took = sorted(service.took)
    p50, p99 = (took[len(took) * percent // 100] * 1000 for percent in (50, 99))
    with capsys.disabled():
        print(  # noqa: T201 - it is the report
            f"\n{anyio_backend}: {service.turns.total()} turns of {SESSIONS} conversations in {SECONDS:g} s,"
            f" {MODEL_SECONDS:g} s an answer, {service.again} delivered again;"
            f" context() p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {took[-1] * 1000:.0f} ms"
        )
