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
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import optchat
import optchat.aio

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("OPTCHAT_SOAK_SECONDS", "60"))
SESSIONS, CUSTOMERS, WORKERS = 200, 20, 4
BUDGET = optchat.Budget(200_000, 8_000)
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
        self.turns = self.partial = 0

    async def converse(self, number: int) -> None:
        """As `handle` of the reference's service, one request after the other."""
        chance = random.Random(number)
        memory = self.root.scoped(f"customer:{number % CUSTOMERS}")
        session = await memory.session(f"chat-{number}")
        while time.monotonic() < self.ends_at:
            said = " ".join(chance.choices(WORDS, k=chance.choice((4, 30, 200))))
            async with session.turn(said, if_open="refuse") as turn:
                begun = time.perf_counter()
                try:
                    context = await turn.context(BUDGET, wait_seconds=5)
                except optchat.MemoryNotReady:
                    context = await turn.context(BUDGET, readiness="partial")
                    self.partial += 1
                self.took.append(time.perf_counter() - begun)
                assert context.receipt.tokens.left >= 0
                if chance.random() < 0.3:
                    await turn.tool_call("c1", "look", {"for": said[:40]})
                    await turn.tool_result("c1", said)
                await turn.assistant(f"About {said}")
            assert turn.outcome == "completed"
            self.turns += 1


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
            assert (await memory.verify()).ok
    for process in workers:
        assert process.poll() is None, "a worker ended by itself"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert b"Traceback" not in said, said.decode()
    took = sorted(service.took)
    with capsys.disabled():
        print(  # noqa: T201 - it is the report
            f"\n{anyio_backend}: {service.turns} turns of {SESSIONS} conversations in {SECONDS:g} s,"
            f" {service.partial} partial; context() p50 {took[len(took) // 2] * 1000:.0f} ms,"
            f" p99 {took[len(took) * 99 // 100] * 1000:.0f} ms, most {took[-1] * 1000:.0f} ms"
        )
