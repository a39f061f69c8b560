"""
Write the pages that are made from the code: api.md from the docstrings, file-format.md from schema.sql.

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
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads

import attrs

import optchat

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
    "optchat.testing",
)


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
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        lines += [f"## {module_name}", "", *docstring(module), ""]
        for name in exported(module):
            lines += describe(name, getattr(module, name))
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

PAGES = {"api.md": api_page, "file-format.md": file_format_page}


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
