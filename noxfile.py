"""
Everything that CI does, by name: `nox -l` lists it, bare `nox` does it all.

Each session makes its own environment and installs the package into it as a user would, so that what is tested is the
wheel and not the source tree.
"""

import re
import tomllib
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.error_on_external_run = True
# What CI runs. The rest is slow or prints figures: docs writes files, bench, soak and floors are run by hand.
nox.options.sessions = ["tests", "property", "crash", "typing", "lint", "docs", "wheel", "hosts"]

ROOT = Path(__file__).parent
PYTHON_FILES = ["src", "tests", "docs", "benchmarks", "examples", "tools", "noxfile.py"]
EXTRAS = "anthropic,cli,offline,openai,testing"
# The hosts' frameworks, each an extra: the folder of its tests, and the extras that these need.
HOSTS = {
    "openai_agents": ("openai-agents",),
    "pydantic_ai": ("pydantic-ai",),
    "langchain": ("langchain",),
    "mcp": ("mcp", "cli"),
    "two_hosts": ("openai-agents", "pydantic-ai"),
}
ALL_EXTRAS = ",".join(sorted({EXTRAS, *(extra for extras in HOSTS.values() for extra in extras)}))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the everyday suite; arguments after `--` go to pytest."""
    session.install(f".[{EXTRAS}]", *development("pytest-xdist", "trio"))
    session.run("pytest", *session.posargs)


@nox.session
def property(session: nox.Session) -> None:
    """Run the laws and state machines with many more examples than the everyday suite draws."""
    session.install(f".[{EXTRAS}]", *development("pytest-xdist", "trio"))
    session.run("pytest", "-m", "property and not soak", *session.posargs, env={"HYPOTHESIS_PROFILE": "thorough"})


@nox.session
def crash(session: nox.Session) -> None:
    """Cut every write, fail every disk and kill processes under load; the everyday suite takes a sample of the cuts."""
    session.install(f".[{EXTRAS}]", *development("pytest-xdist", "trio"))
    session.run(
        "pytest", "-n0", "-m", "(crash or long) and not soak", *session.posargs, env={"OPTCHAT_CRASH_ROUNDS": "20"}
    )


@nox.session
def soak(session: nox.Session) -> None:
    """Run the tests that take minutes each."""
    session.install(f".[{EXTRAS}]", *development("pytest-xdist", "trio"))
    session.run("pytest", "-n0", "-m", "soak", *session.posargs, env={"HYPOTHESIS_PROFILE": "soak"})


@nox.session
@nox.parametrize("versions", ["newest", "oldest"])
@nox.parametrize("host", list(HOSTS))
def hosts(session: nox.Session, host: str, versions: str) -> None:
    """Run a host's tests with its framework and nothing else installed, the newest version and the oldest allowed."""
    extras = HOSTS[host]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    floors = [item.replace(">=", "==") for extra in extras for item in project["optional-dependencies"][extra]]
    session.install(
        f".[{','.join(extras)},testing]", *development("pytest-xdist"), *(floors if versions == "oldest" else [])
    )
    promised = ["tests/test_public_api.py"] if host == "openai_agents" else []  # the one that the contract writes down
    session.run("pytest", "-n0", "-m", "host", f"tests/integrations/{host}", *promised, *session.posargs)


@nox.session
def floors(session: nox.Session) -> None:
    """Run the everyday suite with the oldest versions that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(item for extra in EXTRAS.split(",") for item in optional[extra])]
    constraints = Path(session.create_tmp()) / "floors.txt"
    constraints.write_text("\n".join(item.replace(">=", "==") for item in wanted), encoding="utf-8")
    session.install(f".[{EXTRAS}]", *development("pytest-xdist", "trio"), "--constraint", str(constraints))
    session.run("pytest", *session.posargs)


@nox.session
def typing(session: nox.Session) -> None:
    """Check the types with mypy and pyright, both strict; then programs that use the package."""
    session.install(f".[{ALL_EXTRAS}]", *development("mypy", "pyright", "pytest-xdist"))
    failed = []
    for command in (["mypy"], ["pyright", "--warnings"], ["pytest", "-n0", "-m", "typing", "tests/typing"]):
        try:
            session.run(*command, env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})
        except CommandFailed:  # the other one's opinion is wanted too
            failed.append(command[0])
    if failed:
        session.error(f"not clean: {', '.join(failed)}")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format; `nox -s lint -- fix` repairs what can be repaired."""
    session.install(*development("ruff"))
    files = [name for name in PYTHON_FILES if (ROOT / name).exists()]
    if session.posargs == ["fix"]:
        session.run("ruff", "check", "--fix", *files)
        session.run("ruff", "format", *files)
        return
    session.run("ruff", "check", "--output-format", "concise", *files)
    session.run("ruff", "format", "--check", *files)


@nox.session
def docs(session: nox.Session) -> None:
    """Check that the generated pages are up to date; `nox -s docs -- write` writes them."""
    session.install(f".[{ALL_EXTRAS}]")
    session.run("python", "docs/generate.py", *([] if session.posargs == ["write"] else ["--check"]))


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel, install it alone in a clean environment, and run the demo from it."""
    session.install(*development("build"))
    dist = Path(session.create_tmp()) / "dist"
    for old in dist.glob("*"):
        old.unlink()
    session.run("python", "-m", "build", "--outdir", str(dist))
    built = str(next(dist.glob("*.whl")))
    clean = Path(session.create_tmp()) / "clean"
    session.run("python", "-m", "venv", "--clear", str(clean))
    run = {"external": True, "env": {"PYTHONPATH": ""}}
    session.run(str(clean / "bin" / "pip"), "install", "--quiet", built, **run)
    # The library alone, without an extra: it imports, and its command says what it needs.
    session.run(str(clean / "bin" / "python"), "-c", "import optchat; print(optchat.open)", **run)
    session.run(str(clean / "bin" / "optchat"), "demo", success_codes=[2], **run)
    session.run(str(clean / "bin" / "pip"), "install", "--quiet", f"{built}[cli]", **run)
    session.chdir(session.create_tmp())
    session.run("clean/bin/optchat", "demo", **run)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, and print the table of docs/benchmarks.md; `nox -s bench -- --write` writes it there."""
    session.install(f".[{EXTRAS}]")
    session.run("python", "-m", "benchmarks", *session.posargs)


def development(*names: str) -> list[str]:
    """The requirements of the `dev` extra with these names, so that their bounds stand in one place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [item for item in project["optional-dependencies"]["dev"] if re.split(r"[\[<>=]", item)[0] in names]
    if len(found) != len(names):
        raise ValueError(f"pyproject.toml's dev extra does not name each of {names}; add what is missing")
    return found
