"""
Write the pages that are made from the code: api.md from the docstrings, file-format.md from schema.sql, hosts.md from
what each adapter says of its host.

`python docs/generate.py` writes them, `--check` only says which are out of date. Pages are plain Markdown, so that they
read as well in a terminal as on a site, and a diff of a page shows what changed for users.
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
import textwrap
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads

import attrs

import optchat
from optchat.core.ports import HostInfo

DOCS = Path(__file__).parent

# In the order in which a reader needs them; a public name stands under the module that defines it.
SECTIONS: dict[str, tuple[str, ...]] = {
    "The façade": (
        "optchat.memory.memory",
        "optchat.memory.opening",
        "optchat.memory.session",
        "optchat.memory.turn",
        "optchat.memory.reader",
        "optchat.memory",
    ),
    "Messages": ("optchat.core.messages",),
    "Settings": ("optchat.core.policy", "optchat.core.budget"),
    "What you plug in": ("optchat.core.ports", "optchat.core.summarizing", "optchat.engine.tokenizers"),
    "Answers": ("optchat.core.retrieval", "optchat.core.snapshots", "optchat.core.context", "optchat.core.tools"),
    "State and upkeep": ("optchat.core.status", "optchat.core.ledger"),
    "Errors": ("optchat.core.errors",),
}
# Modules that are imported by name, beside the flat namespace.
MODULES = (
    "optchat.aio",
    "optchat.compactor",
    "optchat.adapters",
    "optchat.adapters.openai",
    "optchat.adapters.anthropic",
    "optchat.adapters.driving",
    "optchat.adapters.mcp",
    "optchat.testing",
)
# Modules that cannot be imported without a framework, and what it is imported as.
HOST_MODULES = {
    "optchat.adapters.openai_agents": "agents",
    "optchat.adapters.pydantic_ai": "pydantic_ai",
    "optchat.adapters.langchain": "langchain",
}


def api_page() -> str:
    """The reference of every public name."""
    placed: dict[str, list[str]] = {title: [] for title in SECTIONS}
    rest: list[str] = []
    for name in optchat.__all__:
        home = getattr(getattr(optchat, name), "__module__", "")
        title = next((title for title, modules in SECTIONS.items() if home in modules), None)
        (rest if title is None else placed[title]).append(name)
    lines = [
        "# API reference",
        "",
        "Made from the docstrings by `nox -s docs -- write`. The last sections are modules of their own; all else is",
        "in `optchat`. § n is a section of the specification.",
        "",
    ]
    for title, names in placed.items():
        if names:
            lines += [f"## {title}", ""]
            for name in sorted(names, key=lambda name: position(getattr(optchat, name), SECTIONS[title])):
                lines += describe(name, getattr(optchat, name))
    values = [name for name in rest if not name.startswith("_")]
    if values:
        lines += ["## Constants, functions and aliases", ""]
        for name in values:
            lines += describe(name, getattr(optchat, name))
    lines += [line for module_name in MODULES for line in module_section(module_name)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def module_section(module_name: str) -> list[str]:
    """A module's own part: what it says of itself, and its public names."""
    module = importlib.import_module(module_name)
    names: list[str] = []
    for name in exported(module):
        value = getattr(module, name)
        known = isinstance(value, (type, str, ModuleType)) or inspect.isfunction(value)
        alias = None if known else alias_source(module, name)
        if alias is None:
            names += describe(name, value)
        else:  # as it is written: what it stands for would be spelled out to the framework's last class
            names += [f"### {name}", "", "```python", f"{name} = {alias}", "```", ""]
    return [f"## {module_name}", "", *docstring(module), "", *names]


def alias_source(module: ModuleType, name: str) -> str | None:
    """What a package's own module assigns to a type alias of this name, as it is written."""
    for folder in getattr(module, "__path__", ()):
        for path in sorted(Path(folder).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.AnnAssign) and node.value is not None and ast.unparse(node.target) == name:
                    return ast.unparse(node.value)
    return None


def host_api_page() -> str:
    """The reference of what joins frameworks, which have to be installed for it."""
    lines = [
        "# API reference: hosts' frameworks",
        "",
        "Made from the docstrings by `nox -s docs -- write`. Each module needs an extra; [what each host",
        "shows](hosts.md) says where memory has to be told.",
        "",
    ]
    lines += [line for module_name in HOST_MODULES for line in module_section(module_name)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def exported(module: ModuleType) -> list[str]:
    """The public names of a module: those it lists, else those that it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def position(value: Any, modules: tuple[str, ...]) -> tuple[int, int]:
    """Where a name is defined: the section's order of modules, then the order that the module's author chose."""
    module = getattr(value, "__module__", "")
    try:
        return modules.index(module), inspect.getsourcelines(value)[1]
    except (OSError, TypeError, ValueError):
        return len(modules), 0


def describe(name: str, value: Any) -> list[str]:
    """One name's heading, signature, docstring and members."""
    if isinstance(value, type):
        head = [f"### {name}", "", *class_signature(name, value), *docstring(value), ""]
        return [*head, *attributes(value), *members(value)]
    if inspect.isfunction(value):
        return [f"### {name}()", "", "```python", *signatures(name, value), "```", "", *docstring(value), ""]
    if isinstance(value, ModuleType):
        inner = [line for public in exported(value) for line in describe(f"{name}.{public}", getattr(value, public))]
        return [f"### {name}", "", *docstring(value), "", *inner]
    if isinstance(value, str):
        return [f"### {name}", "", "```text", value.strip(), "```", ""]
    return [f"### {name}", "", "```python", f"{name} = {plain(repr(value))}", "```", ""]


def class_signature(name: str, cls: type) -> list[str]:
    """A class as one would write it down: its bases, and the fields of a value."""
    bases = [base.__name__ for base in cls.__bases__ if base.__name__ not in {"object", "Generic", "Protocol"}]
    if not attrs.has(cls):
        return [f"Kind of: {', '.join(f'`{base}`' for base in bases)}.", ""] if bases else []
    fields = [field for field in attrs.fields(cls) if not field.name.startswith("_")]
    lines = [f"class {name}{'(' + ', '.join(bases) + ')' if bases else ''}:"]
    for field in fields:
        default = "" if field.default is attrs.NOTHING else f" = {default_text(field.default)}"
        lines.append(f"    {field.name}: {type_text(field.type)}{default}")
    return ["```python", *lines, "```", ""]


def default_text(default: object) -> str:
    """A default as source."""
    if isinstance(default, attrs.Factory):
        return f"{getattr(default.factory, '__name__', '...')}()"
    if isinstance(default, frozenset):  # in an order that does not change from run to run
        return f"frozenset({{{', '.join(sorted(map(repr, default)))}}})"
    return repr(default)


def attributes(cls: type) -> list[str]:
    """What an instance carries besides its methods: the public attributes that its __init__ annotates."""
    if attrs.has(cls) or "__init__" not in vars(cls):
        return []
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    found = [
        f"{node.target.attr}: {ast.unparse(node.annotation)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        if not node.target.attr.startswith("_")
    ]
    return ["```python", *found, "```", ""] if found else []


def members(cls: type) -> list[str]:
    """The public methods that a class defines itself."""
    lines: list[str] = []
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if name.startswith("_") or (attrs.has(cls) and name in {field.name for field in attrs.fields(cls)}):
            continue
        if isinstance(function, property):
            lines += [f"#### {cls.__name__}.{name}", "", *docstring(function), ""]
        elif inspect.isfunction(function):
            lines += [f"#### {cls.__name__}.{name}()", "", "```python", *signatures(name, function), "```", ""]
            made_of = getattr(function, "__wrapped__", None)  # a method of the synchronous façade, which has the words
            lines += [*(docstring(function) if made_of is None else [f"As `{made_of.__qualname__}`, awaited."]), ""]
    return lines


def signatures(name: str, function: Any) -> list[str]:
    """The signature, or those of its overloads, wrapped where it is long."""
    found: list[str] = []
    for candidate in get_overloads(function) or [function]:
        signature = inspect.signature(candidate)
        whole = f"{name}{signature.replace(parameters=without_self(signature))}"
        if len(whole) > 110:
            parts = [f"    {part}," for part in parameters_text(signature)]
            returns = type_text(signature.return_annotation)
            whole = "\n".join([f"{name}(", *parts, f") -> {returns}"])
        found.append(plain(whole))
    return found


def without_self(signature: inspect.Signature) -> list[inspect.Parameter]:
    """Parameters as a caller sees them."""
    return [parameter for parameter in signature.parameters.values() if parameter.name != "self"]


def parameters_text(signature: inspect.Signature) -> list[str]:
    """Each parameter as source, the bare star included."""
    texts: list[str] = []
    starred = False
    for parameter in without_self(signature):
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            texts.append("*")
            starred = True
        texts.append(str(parameter))
    return texts


def type_text(annotation: object) -> str:
    """An annotation as its author wrote it."""
    return plain(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def plain(text: str) -> str:
    """Annotations are text already (postponed evaluation): without their quotes and module names."""
    text = re.sub(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'", lambda match: match[1] or match[2], text)
    return re.sub(r"\b(?:typing|optchat(?:\.\w+)*|collections\.abc|datetime)\.(?=[A-Z\w])", "", text)


def docstring(value: object) -> list[str]:
    """A docstring as Markdown: sections of arguments become lists, roles become code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", own_docstring(value))
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    lines: list[str] = []
    section = quoting = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Atomicity|Idempotence):", line):
            while lines and not lines[-1]:
                lines.pop()
            lines += ["", f"**{line[:-1]}**", ""]
            section = True
        elif line == "::":
            lines.append("```text")
            quoting = True
        elif quoting and line and not line.startswith("    "):
            while not lines[-1]:
                lines.pop()
            lines += ["```", "", line]
            quoting = False
        elif quoting:
            if line or lines[-1] != "```text":
                lines.append(line[4:])
        elif section and (match := re.match(r"    (\S.*)", line)):
            head = re.match(r"(\*{0,2}\w+(?:, \w+)*): (.*)", match[1])
            names = "" if head is None else ", ".join(f"`{name}`" for name in head[1].split(", "))
            lines.append(f"- {names}: {head[2]}" if head else match[1])
        elif section and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line
            lines.append(line)
    if quoting:
        lines.append("```")
    return lines


def own_docstring(value: object) -> str:
    """The docstring that was written for it: not the one that attrs or a base class supplies."""
    written = getattr(value, "__doc__", None)
    return inspect.cleandoc(written) if isinstance(written, str) else ""


def file_format_page() -> str:
    """The schema, quoted whole: its comments are the description of the file."""
    schema = resources.files("optchat.store").joinpath("sql", "schema.sql").read_text(encoding="utf-8")
    return FILE_FORMAT.format(schema=schema.rstrip())


FILE_FORMAT = """\
# The file format

A memory is one SQLite database in WAL mode. This page quotes `src/optchat/store/sql/schema.sql`, whose comments
describe it, and is made from it by `nox -s docs -- write`.

- `application_id` marks the file as optchat's; any other file is refused untouched.
- `user_version` is the version of the format. A newer one than the library knows is refused untouched; an older one is
  migrated when it is opened for writing, each step and its number in one transaction.
- The file, its `-wal`, its `-shm` and its lock file belong together. Copy them only by SQLite's own means while a
  process has the memory open.
- What is derived (nodes, views, the search index) can be made anew from what is sealed (sessions, turns, records,
  blobs).

```sql
{schema}
```
"""


# ---- hosts.md --------------------------------------------------------------------------------------------------------

# Every host that has a HostInfo, in the order of the page: its title, and what is imported. Two adapters of one host
# are told apart by the class that the HostInfo stands in.
HOSTS: dict[str, tuple[str, str]] = {
    "OpenAIChat": ("OpenAI's chat completions", "optchat.adapters.openai.OpenAIChat"),
    "OpenAIResponses": ("OpenAI's responses", "optchat.adapters.openai.OpenAIResponses"),
    "AnthropicMessages": ("Anthropic's messages", "optchat.adapters.anthropic.AnthropicMessages"),
    "openai-agents": ("OpenAI Agents SDK", "optchat.adapters.openai_agents.MemoryRunner"),
    "pydantic-ai": ("Pydantic AI", "optchat.adapters.pydantic_ai.SharedMemory"),
    "langchain": ("LangChain", "optchat.adapters.langchain.MemoryMiddleware"),
    "langgraph": ("LangGraph", "optchat.adapters.langchain.MemoryMiddleware"),
    "mcp": ("Any MCP client", "optchat.adapters.mcp.server"),
}
# Beside another host's, from which its limits are: only its versions are said.
VERSIONS_ONLY = {"langgraph": "langchain"}
RETRIEVAL_ONLY = {"mcp"}
OPERATIONS = {
    "fork": "A conversation branches",
    "edit": "Something said is changed",
    "delete": "Something said is removed",
    "compaction": "The host summarises its own history",
    "pause": "A run waits for somebody",
}
SEEN = {"observed": "seen", "unobservable": "not seen", "absent": "none"}
WHAT_MEMORY_DOES = {
    "fork": {
        "observed": (
            "The branch goes on from what it shares with its parent; that is neither copied nor published again."
        ),
        "unobservable": (
            "A branch under a key of its own is a session of its own, of what the host delivers to it; one "
            "under the same key is found out as a changed history is."
        ),
        "absent": "The host has no branches of its own. An application that has calls `session.fork`.",
    },
    "edit": {
        "observed": (
            "The next turn begins from the changed history, or is refused (`ResyncNeeded`) before the model "
            "is asked, until `session.resync` takes it over."
        ),
        "unobservable": (
            "Nothing tells of it. The next turn compares the host's history with what is sealed; where they "
            "differ it is refused (`ResyncNeeded`), and memory is off for the session until `session.resync`."
        ),
        "absent": (
            "The host keeps no history that could change. An application that does calls `session.rewind`, or "
            "gives the whole of it to `session.reconcile`."
        ),
    },
    "delete": {
        "observed": "The same is forgotten here, as by `session.delete`.",
        "unobservable": (
            "Memory keeps what it has until `session.delete` or `session.revoke`. What is missing from a "
            "history that goes on is found out as a change is."
        ),
        "absent": "The host keeps nothing that could be removed. Memory keeps what it has until `session.delete`.",
    },
    "compaction": {
        "observed": (
            "The host's summary is never sealed as if somebody had said it; the messages under it stay as they are."
        ),
        "unobservable": (
            "A summary that the host marks as one is never sealed; a history that was shortened is found out "
            "as a changed one is. Memory needs none: leave it off."
        ),
        "absent": "The host has none, or a run with one is refused. Memory is bounded by itself.",
    },
    "pause": {
        "observed": "The turn is suspended, and goes on with the same snapshot, in whatever process.",
        "unobservable": "The turn stays open as long as its process lives, and is interrupted by the next one.",
        "absent": (
            "The host has none of its own. An application that waits calls `turn.suspend`, and later `session.resume`."
        ),
    },
}
HOSTS_HEAD = """\
# What each host shows, and what it cannot

Made by `nox -s docs -- write` from what each adapter says of its host (`HostInfo`). An adapter sees of a host what the
host's hooks show it. What it cannot see is written here, with what memory does then: it never guesses, and never goes
on silently with a history that is not the host's.

A version out of the range is refused when the integration is registered (`HostUnsupported`). The oldest and the newest
of those in it are tested (`nox -s hosts`).
"""
HOSTS_KEY = (
    "*seen*: the adapter is told. *not seen*: it happens, and nothing tells of it. *none*: the host has no such thing."
)
DROPS_UNFINISHED = """\
The host's own list may lack some of a turn that failed or was interrupted. Memory keeps what it saw of it, and takes
that for no change."""
RETRIEVAL_TEXT = """\
Retrieval only. The protocol carries calls of tools and their answers, no request to a model and no transcript: what a
client's conversation says is not remembered, what others decided reaches its model only when it asks, and nothing of
its life (branches, edits, deletions, summaries, pauses) is seen or has to be. The protocol has no state: a call is
pinned by what it brings with it (a snapshot, or a running turn's id), and two calls that bring nothing may be answered
by two snapshots. [The guide](guide.md#from-any-mcp-client) says how."""


def host_infos() -> dict[str, HostInfo]:
    """
    Every HostInfo of the adapters, by the class that it stands in, else by its name.

    They are read from the source, and not imported: an adapter of a framework imports the framework, and this page is
    the same where it is not installed. So their arguments have to be literals.
    """
    found: dict[str, HostInfo] = {}
    for path in sorted((DOCS.parent / "src" / "optchat" / "adapters").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = {
            id(node): outer.name for outer in tree.body if isinstance(outer, ast.ClassDef) for node in ast.walk(outer)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "HostInfo":
                info = HostInfo(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords})
                key = classes.get(id(node), info.name)
                if key not in HOSTS:
                    raise ValueError(f"{path}: the host {key!r} has no title in docs/generate.py; add it to HOSTS")
                found[key] = info
    return {key: found[key] for key in HOSTS if key in found}


def hosts_page() -> str:
    """The limits of every host."""
    infos = host_infos()
    whole = {key: info for key, info in infos.items() if key not in VERSIONS_ONLY}
    lines = [HOSTS_HEAD, f"| host | versions | {' | '.join(OPERATIONS)} |", f"|---|---|{'---|' * len(OPERATIONS)}"]
    for key, info in whole.items():
        cells = ["–" if key in RETRIEVAL_ONLY else SEEN[getattr(info, name)] for name in OPERATIONS]
        lines.append(f"| [{HOSTS[key][0]}](#{anchor(HOSTS[key][0])}) | {versions(infos, key)} | {' | '.join(cells)} |")
    lines += ["", HOSTS_KEY, ""]
    for key, info in whole.items():
        title, imported = HOSTS[key]
        lines += [f"## {title}", "", f"`{imported}`; {versions(infos, key)}.", ""]
        if key in RETRIEVAL_ONLY:
            lines += [RETRIEVAL_TEXT, ""]
            continue
        lines += ["| | | what memory does |", "|---|---|---|"]
        for name, happens in OPERATIONS.items():
            support = getattr(info, name)
            lines.append(f"| {happens} | {SEEN[support]} | {WHAT_MEMORY_DOES[name][support]} |")
        lines.append("")
        if info.drops_unfinished:
            lines += [DROPS_UNFINISHED, ""]
    return "\n".join(lines).rstrip() + "\n"


def versions(infos: dict[str, HostInfo], key: str) -> str:
    """The tested range of a host, and of what is checked beside it."""
    names = [key, *(beside for beside, host in VERSIONS_ONLY.items() if host == key and beside in infos)]
    ranges: list[str] = []
    for info in (infos[name] for name in names):
        bounds = [("≥", info.version_floor), ("<", info.version_below)]
        told = " ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None)
        ranges.append(f"`{info.distribution}` {told}" if info.distribution else "any version")
    return ", ".join(ranges)


def anchor(title: str) -> str:
    """A heading's address, as sites that show Markdown make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


PAGES = {"api.md": api_page, "file-format.md": file_format_page, "hosts.md": hosts_page}
if all(find_spec(name) is not None for name in HOST_MODULES.values()):  # else it is left as it is
    PAGES["api-hosts.md"] = host_api_page


def main() -> int:
    """Write the pages, or with --check compare them. Returns 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(DOCS.parent)}")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run `nox -s docs -- write`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
