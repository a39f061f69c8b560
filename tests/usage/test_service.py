"""The reference's service, as it stands: many sessions in one process, one scope a customer, on both loops."""

from pathlib import Path
from types import ModuleType

import anyio
import pytest

import optchat
from tests.usage.programs import load


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    return load("fg_service.py")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_hundred_requests_at_once(program: ModuleType, backend: str) -> None:
    anyio.run(program.main, backend=backend)
    with optchat.open("memory.db", scope="root", compact="manual") as root:
        assert root.sessions().items == ()
        for customer in range(20):
            memory = root.scoped(f"customer:{customer}")
            keys = {session.key for session in memory.sessions()}
            assert keys == {f"chat-{number}" for number in range(customer, 200, 20)}
            assert memory.status().records == 20, "a question and an answer of each of ten"
            assert all("assistant: answer" in line.text for line in memory.view().lines)
            assert memory.verify().ok


def test_a_request_that_is_retried(program: ModuleType) -> None:
    async def twice() -> list[str]:
        async with program.optchat.aio.open("memory.db", scope="root", compact="manual") as root:
            return [await program.handle(root, "7", "chat-7", "hello", "req-7") for _ in range(2)]

    assert anyio.run(twice) == ["answer", "(already ended)"]


def test_a_file_a_customer(program: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tenants").mkdir()
    with program.file_each("7") as memory:
        memory.session("a").note("only here")
    assert [path.name for path in (tmp_path / "tenants").glob("*.db")] == ["7.db"]
