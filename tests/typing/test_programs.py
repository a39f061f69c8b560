"""
What people write type-checks, under mypy and pyright, both strict; and what is wrong does not.

The programs of the reference lie beside the repository.
"""

from pathlib import Path

import pytest

from tests.typing.checkers import ROOT, Said, mypy, pyright

pytest.importorskip("mypy", reason="the checkers are not installed")
pytest.importorskip("pyright", reason="the checkers are not installed")
HERE = Path(__file__).parent
USAGE = ROOT.parent / "shared" / "reference" / "usage"


PROGRAMS = (
    "a_openai_sync.py",
    "b_anthropic_async.py",
    "c_agents.py",
    "d_toy_host.py",
    "e_property.py",
    "fg_service.py",
    "ij_plug.py",
    "kl_ui.py",
)
NEGATIVE = "neg_expected_errors.py"


def program(name: str) -> str:
    """As it stands; but pyright wants a submodule to be imported by the file that names it."""
    return (
        (USAGE / name)
        .read_text(encoding="utf-8")
        .replace("import optchat, openai\n", "import optchat, openai, openai.types.chat\n")
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, list[Said]]:
    """What each checker says of all the programs, each run once."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("right.py", "wrong.py"):
        (folder / name).write_text((HERE / name).read_text(encoding="utf-8"), encoding="utf-8")
    if USAGE.exists():
        for name in (*PROGRAMS, NEGATIVE):
            (folder / name).write_text(program(name), encoding="utf-8")
    files = sorted(folder.glob("*.py"))
    cache = folder / "cache" if pytestconfig.cache is None else Path(pytestconfig.cache.mkdir("mypy"))
    return {"mypy": mypy(files, cache), "pyright": pyright(folder)}


def errors(said: list[Said], name: str) -> list[str]:
    return [f"{one.line}: {one.text}" for one in said if one.file == name and one.level == "error"]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_is_right_passes(said: dict[str, list[Said]], checker: str) -> None:
    assert errors(said[checker], "right.py") == []


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_programs_that_users_want_to_write_pass(said: dict[str, list[Said]], checker: str, name: str) -> None:
    if not USAGE.exists():
        pytest.skip("the reference programs are not beside the repository")
    assert errors(said[checker], name) == []


def marked(text: str) -> set[int]:
    return {number for number, line in enumerate(text.splitlines(), start=1) if "# error" in line}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_is_wrong_does_not(said: dict[str, list[Said]], checker: str) -> None:
    wanted = marked((HERE / "wrong.py").read_text(encoding="utf-8"))
    assert {one.line for one in said[checker] if one.file == "wrong.py" and one.level == "error"} == wanted


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_expected_errors_are_errors(said: dict[str, list[Said]], checker: str) -> None:
    if not USAGE.exists():
        pytest.skip("the reference programs are not beside the repository")
    text = program(NEGATIVE)
    told = [one for one in said[checker] if one.file == NEGATIVE]
    assert {one.line for one in told if one.level == "error"} == marked(text)
    revealed = [one.text for one in told if "evealed type" in one.text or one.level == "information"]
    assert any("list[" in one and "ChatCompletion" in one for one in revealed)
    assert any("Turn[" in one and "HostMessage" in one for one in revealed)
