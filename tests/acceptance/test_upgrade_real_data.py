"""
Real sessions, imported with the embedded default and then made anew by a model: nothing is left, nothing is wrong, and
the ledger says what the provider says.

The provider is a fake one on loopback; it counts for itself what it was asked and what it answered.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import optchat
from optchat.cli.app import run
from optchat.testing import FakeOpenAI, replies
from optchat.testing.servers import short_line

pytest.importorskip("openai", reason="install the extra openai")

FILE = Path(__file__).parents[3] / "shared" / "data" / "coding-sessions.jsonl.gz"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the real sessions are not beside the repository")

Ask = Callable[..., Any]


@pytest.fixture
def ask(capsysbinary: pytest.CaptureFixture[bytes], path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The command line, as JSON."""
    for name in ("OPTCHAT_SUMMARIZER", "OPTCHAT_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def ask(*arguments: str | Path) -> Any:
        capsysbinary.readouterr()
        code = run(["--db", str(path), "--scope", "real", "--json", *map(str, arguments)])
        captured = capsysbinary.readouterr()
        assert code == 0, captured.err.decode()
        return json.loads(captured.out)

    return ask


def first_sessions(count: int, target: Path) -> Path:
    """A transcript of the first sessions, whole."""
    kept: list[str] = []
    keys: dict[str, None] = {}
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            keys.setdefault(json.loads(line)["session"])
            if list(keys).index(json.loads(line)["session"]) < count:
                kept.append(line)
    target.write_text("".join(kept), encoding="utf-8")
    return target


@pytest.fixture
def provider() -> Iterator[FakeOpenAI]:
    """Answers about as long as a model's: so that pairs of them do not fit a line, and are summarised again."""

    def reply(request: Any) -> replies.Reply:
        return replies.answer(" and ".join([short_line(request)] * 6)[:400])

    with FakeOpenAI(reply) as server:
        yield server


@pytest.mark.parametrize("sessions", [2, pytest.param(None, marks=pytest.mark.soak)], ids=["some", "all"])
def test_what_the_default_made_is_made_anew_by_a_model(
    ask: Ask,
    provider: FakeOpenAI,
    path: Path,
    tmp_path: Path,
    sessions: int | None,
) -> None:
    file = FILE if sessions is None else first_sessions(sessions, tmp_path / "some.jsonl")
    before = ask("import", file)["status"]
    assert (before["ready"], before["stand_ins"]) == (True, 0)
    assert before["by_default_summarizer"] > 0
    assert before["total"]["calls"] == 0

    done = ask(
        "compact", "--upgrade", "--summarizer", "openai:fake-model", "--base-url", provider.base_url, "--price", "1,4"
    )
    (scope,) = done["scopes"]
    status = scope["status"]
    assert (status["ready"], status["pending"], status["running"], status["failures"]) == (True, 0, 0, [])
    assert (status["stand_ins"], status["by_default_summarizer"]) == (0, 0)
    assert status["summarizer"] == "openai:fake-model"
    assert (status["records"], status["publications"]) == (before["records"], before["publications"])
    assert scope["upgraded"] >= before["by_default_summarizer"]

    verified = ask("verify")
    assert (verified["ok"], verified["faults"]) == (True, [])

    total, usage = status["total"], provider.usage
    assert total == scope["calls"]
    assert total["calls"] == provider.answered == len(provider.requests)
    assert (total["input_tokens"], total["output_tokens"]) == (usage.input_tokens, usage.output_tokens)
    assert total["cost"] == pytest.approx((usage.input_tokens + 4 * usage.output_tokens) / 1_000_000)

    assert scope["calls_per_record"] == pytest.approx(total["calls"] / status["records"], abs=1e-4)

    again = ask("compact", "--upgrade", "--summarizer", "openai:fake-model", "--base-url", provider.base_url)
    assert (again["ok"], again["scopes"][0]["upgraded"], again["scopes"][0]["calls"]["calls"]) == (True, 0, 0)

    with optchat.open(path, scope="real", compact="manual", mode="ro") as memory:
        shared = memory.view()
        assert shared.missing == ()
        assert any("about" in line.text for line in shared.lines)
