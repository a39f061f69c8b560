"""`optchat mcp`, as a client starts it: a process on standard input and output, that reads and never writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client

import optchat
from tests.integrations.mcp.calls import call, error, excerpts, publish

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

pytestmark = pytest.mark.host


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="project-17", compact="manual") as memory:
        publish(memory, "a", "Zanzibar, first.")
    return path


def command(path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "optchat", "--db", str(path), "--scope", "project-17", "mcp", *more]


def client(path: Path, *more: str) -> Client:
    program, *arguments = command(path, *more)
    return Client(stdio_client(StdioServerParameters(command=program, args=arguments, env=ENVIRONMENT)))


def ran(path: Path, *more: str, **given: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(path, *more), env=ENVIRONMENT, check=False, capture_output=True, timeout=60, **given)


@pytest.mark.anyio
async def test_a_client_reads_beside_those_who_write(path: Path) -> None:
    """One process writes, another serves: each call without a pin has the newest, each with one what it names."""
    with optchat.open(path, scope="project-17", compact="manual") as memory:
        async with client(path) as reader:
            one = await call(reader, "search", query="Zanzibar")
            assert excerpts(one) == ["Zanzibar, first."]
            publish(memory, "b", "Zanzibar, second.")
            two = await call(reader, "search", query="Zanzibar")
            assert excerpts(two) == ["Zanzibar, first.", "Zanzibar, second."]
            assert await call(reader, "search", query="Zanzibar", snapshot=one["snapshot"]["id"]) == one
            with memory.session("mine").turn("Zanzibar, mine?") as turn:
                own = await call(reader, "search", {"optchat/turn": turn.id}, query="mine")
                assert excerpts(own) == ["Zanzibar, mine?"]
            assert (await error(reader, "zoom", ref="pub:99+1"))["error"] == "UNKNOWN_REF"
            async with anyio.create_task_group() as calls:
                for _ in range(20):
                    calls.start_soon(call, reader, "sessions")
        assert memory.verify().ok


@pytest.mark.anyio
async def test_a_fixed_snapshot(path: Path) -> None:
    with optchat.open(path, scope="project-17", compact="manual") as memory:
        with memory.pin() as pinned:
            publish(memory, "b", "Zanzibar, second.")
        async with client(path, "--snapshot", pinned.snapshot.id) as reader:
            assert excerpts(await call(reader, "search", query="Zanzibar")) == ["Zanzibar, first."]
            assert (await error(reader, "search", query="Zanzibar", snapshot="9"))["error"] == "BAD_ARGUMENT"


def test_nothing_but_the_protocol_is_on_standard_output(path: Path) -> None:
    said = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    asked = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    done = ran(path, input=json.dumps(said | {"params": asked}).encode() + b"\nno JSON\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "optchat"
    assert "retrieval only" in answers[0]["result"]["instructions"]
    assert done.returncode == 0, "a client that leaves ends it"


def test_it_works_no_job(path: Path) -> None:
    with optchat.open(path, scope="project-17", compact="manual") as memory:
        memory.session("b").note("note " * 400)
        before = memory.status()
        assert before.pending > 0
        done = ran(path, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert memory.status() == before, "nothing is there that was not"


def test_a_snapshot_that_is_not_there_is_said_at_once(path: Path) -> None:
    done = ran(path, "--snapshot", "77", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"optchat: no snapshot '77' is kept here")
    assert done.stderr.count(b"\n") == 1, "one line, no traceback"
