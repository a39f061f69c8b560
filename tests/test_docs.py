"""
The documentation against the code: its programs run, its links resolve, its generated pages are in step.

The model of the guide's loop is a script: openai.OpenAI is replaced by a client that looks things up once, and answers.
"""

import ast
import importlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The line number and the text of each block of a language."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start()) + 1, match[2]) for match in FENCE.finditer(text) if match[1] == language
    ]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- programs --------------------------------------------------------------------------------------------------------
class ScriptedClient:
    """Calls memory_search once, then answers; keeps the requests that it got."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **request: Any) -> Any:
        self.requests.append(request)
        message: dict[str, Any] = {"role": "assistant", "content": "The existing broker: it persists already."}
        if len(self.requests) == 1:
            function = {"name": "memory_search", "arguments": '{"query": "which broker"}'}
            message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        chat = importlib.import_module("openai.types.chat")
        return chat.ChatCompletion.model_validate(
            {"id": "x", "created": 0, "model": "scripted", "object": "chat.completion", "choices": [choice]}
        )


def run_blocks(page: Path) -> dict[str, Any]:
    """Run a page's programs one after the other in one namespace; the error names the page's own line."""
    names: dict[str, Any] = {"__name__": "__docs__"}
    for line, source in blocks(page, "python"):
        exec(compile("\n" * line + source, str(page), "exec"), names)
    return names


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(ROOT / "README.md")
    shown = capsys.readouterr().out
    assert "<shared_memory" in shown
    assert "Decided against Redis" in shown


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openai = pytest.importorskip("openai", reason="the guide needs the extra openai")
    client = ScriptedClient()
    monkeypatch.setattr(openai, "OpenAI", lambda: client)
    monkeypatch.chdir(tmp_path)
    names = run_blocks(ROOT / "docs" / "guide.md")
    first, second = client.requests
    assert "Decided against Redis" in str(first["messages"])
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "tool"]
    assert names["turn"].outcome == "completed"


def test_the_page_about_testing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="the page needs the extra openai")
    monkeypatch.chdir(tmp_path)
    names = run_blocks(ROOT / "docs" / "testing.md")
    assert len(names["model"].requests) == 3


def test_the_page_about_testing_names_all_there_is() -> None:
    told = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    testing = importlib.import_module("optchat.testing")
    replies = importlib.import_module("optchat.testing.replies")
    names = [*testing.__all__, *(name for name in replies.__all__ if name.islower())]
    assert [name for name in names if not re.search(rf"\b{name}\b", told)] == []


# ---- links -----------------------------------------------------------------------------------------------------------
def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{link} leads nowhere"
        assert path.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert not anchor or anchor in anchors(path), f"{link}: no such heading"


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    numbers = [name.partition("-")[0] for name in pages]
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in pages)
    assert len(set(numbers)) == len(numbers), "two decisions have one number"
    assert sorted(link for link in links(folder / "README.md")) == pages


# ---- in step ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["api.md", "file-format.md"])
def test_generated_pages_are_in_step(name: str) -> None:
    pytest.importorskip("openai", reason="the reference shows the OpenAI adapter: install the extra openai")
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert load_generator().PAGES[name]() == written, "run `nox -s docs -- write`"


def test_the_reference_of_frameworks_is_in_step() -> None:
    generator = load_generator()
    if "api-hosts.md" not in generator.PAGES:
        pytest.skip("the reference shows what joins frameworks: install their extras")
    written = (ROOT / "docs" / "api-hosts.md").read_text(encoding="utf-8")
    assert generator.PAGES["api-hosts.md"]() == written, "run `nox -s docs -- write`"


def test_the_page_of_hosts_is_in_step() -> None:
    """It is read from the adapters' source: no framework has to be there."""
    written = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    assert load_generator().PAGES["hosts.md"]() == written, "run `nox -s docs -- write`"


def test_the_page_of_hosts_says_what_an_adapter_says() -> None:
    """What is read from the source is what the adapter has, where one can be asked."""
    infos = load_generator().host_infos()
    assert infos["mcp"] == importlib.import_module("optchat.adapters.mcp").INFO
    assert infos["AnthropicMessages"] == importlib.import_module("optchat.adapters.anthropic").AnthropicMessages().info
    openai = importlib.import_module("optchat.adapters.openai")
    assert infos["OpenAIChat"] == openai.OpenAIChat().info
    assert infos["OpenAIResponses"] == openai.OpenAIResponses().info


def test_a_host_s_oldest_version_is_the_extra_s() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    floors = {
        name: floor for items in extras.values() for item in items for name, _, floor in [item.partition(">=")] if floor
    }
    for info in load_generator().host_infos().values():
        assert info.distribution is not None
        assert number(floors[info.distribution]) == number(str(info.version_floor)), info.distribution


def number(version: str) -> list[int]:
    parts = [int(part) for part in version.split(".")]
    while parts[-1] == 0:
        parts.pop()
    return parts


def test_the_changelog_has_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(project['version'])}\b", changelog, re.MULTILINE)


def test_ci_runs_what_the_readme_says() -> None:
    install, tests = [text.strip() for _, text in blocks(ROOT / "README.md", "console")[:2]]
    assert "pip install -q '.[cli]'" in install
    assert install.endswith("optchat demo")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for step in tests.split(" && ")[1:]:  # the environment's folder differs, and which python3 made it
        assert step.removeprefix(".venv/bin/") in script


def test_the_schema_is_quoted_whole() -> None:
    schema = (ROOT / "src" / "optchat" / "store" / "sql" / "schema.sql").read_text(encoding="utf-8").rstrip()
    assert [text.rstrip() for _, text in blocks(ROOT / "docs" / "file-format.md", "sql")] == [schema]


# ---- promises --------------------------------------------------------------------------------------------------------
def promises() -> list[tuple[str, list[str]]]:
    """The promises of the page, each with the tests that are named beside it."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for table in text.split("| Promise | Shown by |")[1:]:
        rows = [row for row in table.partition("\n\n")[0].splitlines() if row.startswith("| ")]
        found += [(row.split(" | ")[0], re.findall(r"`(tests/[^`]+)`", row)) for row in rows]
    return found


def names_of(module: Path) -> set[str]:
    """What a test module defines at its top."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    return defined | {target.id for target in assigned if isinstance(target, ast.Name)}


def test_every_promise_has_a_test_that_exists() -> None:
    assert len(promises()) > 30
    for promise, tests in promises():
        assert tests, f"{promise}: name the test that shows it"
        for test in tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), f"{promise}: there is no {path}"
            assert name in names_of(ROOT / path), f"{promise}: {path} has no {name}"


def test_every_code_of_a_fault_is_explained() -> None:
    faults = importlib.import_module("optchat.core.faults").FAULTS
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (.+) \| (yes|no) \|$", (ROOT / "docs" / "reliability.md").read_text("utf-8"), re.MULTILINE
    )
    assert rows == [(code, kind.meaning, "yes" if kind.repairable else "no") for code, kind in faults.items()]
