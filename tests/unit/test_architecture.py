"""
The house of the library, held to by its imports (CONTRIBUTING.md draws it).

Imports run one way only: core <- store <- engine <- compactor <- memory, aio <- adapters, cli. Beside the rooms stands
what only one of them may touch: SQLite, an event loop, a terminal, a host's SDK.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "optchat"

WANTED_LINES = 550  # about 500 is the aim: over this a module is named in LONG, with its reason
MOST_LINES = 650
LONG: dict[str, str] = {}

CORE = {"core"}
STORE = CORE | {"store"}
ENGINE = STORE | {"engine"}
COMPACTOR = ENGINE | {"compactor"}
FACADE = COMPACTOR | {"memory", "aio", "optchat"}
# What each room may import, itself included. "optchat" is the package's own namespace, `import optchat`.
MAY_IMPORT: dict[str, set[str]] = {
    "core": CORE,
    "store": STORE,
    "engine": ENGINE,
    "compactor": COMPACTOR,
    "memory": COMPACTOR | {"memory"},
    "optchat": COMPACTOR | {"memory"},
    "aio": FACADE,
    "adapters": FACADE | {"adapters"},
    "cli": FACADE | {"adapters", "cli"},
    "__main__": {"cli"},
    "testing": FACADE | {"adapters", "testing"},
}

# Third-party packages, and the rooms that may import them; core is held to attrs and cattrs by that.
THIRD_PARTY: dict[str, set[str]] = {
    "attr": set(MAY_IMPORT),
    "attrs": set(MAY_IMPORT),
    "cattrs": set(MAY_IMPORT),
    "apsw": {"store"},
    "xxhash": {"store", "engine", "compactor", "memory"},
    "anyio": {"compactor", "aio", "adapters"},
    "tiktoken": {"engine", "compactor"},
    "toktok_rs": {"engine", "compactor"},
    "anthropic": {"compactor", "adapters"},
    "openai": {"compactor", "adapters", "cli"},  # cli: its types only; the demo runs without the extra
    "click": {"cli"},
    "rich": {"cli"},
    "platformdirs": {"cli"},
    "agents": {"adapters"},
    "langchain": {"adapters"},
    "langchain_core": {"adapters"},
    "langgraph": {"adapters"},
    "mcp": {"adapters"},
    "pydantic": {"adapters"},
    "pydantic_ai": {"adapters"},
    "hypothesis": {"testing"},
    "pytest": {"testing"},
}
# Of the standard library, what would make core impure. datetime's values are pure; its now() is looked for below.
IMPURE = {
    "asyncio", "concurrent", "fcntl", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time",
    "urllib", "uuid",
}  # fmt: skip


# The modules of store that may open files besides SQLite, none of them a database.
OPENS_FILES = {
    "store.writer_lock": "the lock file, and the process table",
    "store.filesystem": "the mount table",
    "store.migrate": "the SQL that the package ships",
    "store.who_reads": "the kernel's table of locks",
    "store.backups": "a folder, to sync the name of a copy",
}


@frozen
class Module:
    name: str  # dotted, without "optchat."
    path: Path
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str:
        return self.name.partition(".")[0] or "optchat"


def load(path: Path) -> Module:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    source = path.read_text(encoding="utf-8")
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, ast.parse(source), source.count("\n"))


MODULES = sorted((load(path) for path in PACKAGE.rglob("*.py")), key=lambda module: module.name)


def each(*rooms: str) -> pytest.MarkDecorator:
    chosen = [module for module in MODULES if not rooms or module.room in rooms]
    return pytest.mark.parametrize("module", chosen, ids=lambda module: module.name or "optchat")


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every absolute dotted name that a module imports, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: write the absolute import"
            # `from optchat import memory` imports a room, `from optchat import Budget` the namespace
            if node.module == "optchat":
                rooms = {alias.name for alias in node.names if alias.name in MAY_IMPORT}
                yield from ((f"optchat.{room}", node.lineno) for room in rooms)
                if len(rooms) < len(node.names):
                    yield "optchat", node.lineno
            else:
                yield node.module or "", node.lineno


def test_the_package_is_found() -> None:
    assert {"core.refs", "core.errors"} <= {module.name for module in MODULES}


@each()
def test_its_room_is_drawn(module: Module) -> None:
    assert module.room in MAY_IMPORT, f"{module.path}: a new room; give it its place in MAY_IMPORT"


@each()
def test_imports_run_one_way(module: Module) -> None:
    for name, line in imports(module):
        if name.partition(".")[0] == "optchat":
            room = name.split(".")[1] if "." in name else "optchat"
            assert room in MAY_IMPORT[module.room], f"{module.path}:{line}: {module.room} must not import {room}"


@each()
def test_third_party_packages_stay_in_their_rooms(module: Module) -> None:
    for name, line in imports(module):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == "optchat":
            continue
        assert top in THIRD_PARTY, f"{module.path}:{line}: {top} is a new dependency; say here who may use it"
        assert module.room in THIRD_PARTY[top], f"{module.path}:{line}: {top} has no place in {module.room}"


@each("core")
def test_core_is_pure(module: Module) -> None:
    for name, line in imports(module):
        assert name.partition(".")[0] not in IMPURE, f"{module.path}:{line}: core must not use {name}"
    for node in ast.walk(module.tree):
        where = f"{module.path}:{getattr(node, 'lineno', 0)}"
        assert not isinstance(node, (ast.AsyncFunctionDef, ast.Await)), f"{where}: core has no async"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"open", "print", "input"}, f"{where}: core does no I/O"
            assert called not in {"datetime.now", "datetime.utcnow", "datetime.today"}, f"{where}: core has no clock"


@each("store")
def test_files_of_a_database_are_opened_by_sqlite_only(module: Module) -> None:
    """Closing any other descriptor of the file drops the process's POSIX locks: acknowledged commits were lost so."""
    opening = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in opening:
            allowed = module.name in OPENS_FILES or ast.unparse(node.func) in {"LockFile.open", "Store.open"}
            assert allowed, f"{module.path}:{node.lineno}: only SQLite opens files in store"


@each()
def test_it_opens_with_a_docstring(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.path}: say first what this module decides and refuses to know"


@each()
def test_it_is_not_too_long(module: Module) -> None:
    wanted = MOST_LINES if module.name in LONG else WANTED_LINES
    assert module.lines <= wanted, f"{module.path}: {module.lines} lines; split it, or name it in LONG"


def test_long_modules_are_really_long() -> None:
    lines = {module.name: module.lines for module in MODULES}
    assert all(lines[name] > WANTED_LINES for name in LONG), "a module of LONG was shortened: take it off the list"
