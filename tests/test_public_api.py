"""
The public names against the contract, api.pyi in the folder `shared` beside this repository.

Every name of the contract is either here with the same parameters, defaults, kinds, types and attributes, or listed in
NOT_BUILT by the part that will build it. A name that is neither, or both, fails.
"""

import ast
import collections.abc
import datetime as dt
import importlib
import inspect
import os
import pathlib
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from attrs import frozen

import optchat

CONTRACT = Path(__file__).parents[2] / "shared" / "api.pyi"

# Absent until built, never a stub. A class stands for its methods, NAME(PARAMETER) for one parameter.
NOT_BUILT: dict[str, tuple[str, ...]] = {}
# The contract's notation: names it needs to say something, which the namespace need not hold.
NOTATION = {"ExcType", "JSON", "M", "StrPath", "T_co"}
# Public names besides the contract's.
ADDED: set[str] = set()

# Sections 7 to 9 of the contract name their modules in prose.
SECTION_HOMES = {7: "optchat.aio", 9: "optchat.testing"}
ADAPTER_HOMES = {
    "OpenAIChat": "optchat.adapters.openai",
    "OpenAIResponses": "optchat.adapters.openai",
    "AnthropicMessages": "optchat.adapters.anthropic",
    "AgentsInput": "optchat.adapters.openai_agents",
    "MemoryRunner": "optchat.adapters.openai_agents",
    "memory_tools": "optchat.adapters.openai_agents",
    "check_host": "optchat.adapters",
}
FRAMEWORKS = {"optchat.adapters.openai_agents"}  # cannot be imported without


@frozen
class Promise:
    """One name of the contract: a top-level one, or a class's attribute or method."""

    dotted: str
    home: str
    path: tuple[str, ...]
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...] = ()  # more than one: overloads
    variable: ast.AnnAssign | None = None
    klass: ast.ClassDef | None = None
    position: int | None = None  # of an attrs field
    frozen_fields: bool = False


def group(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node)
    return found


def read_contract() -> Iterator[Promise]:
    text = CONTRACT.read_text(encoding="utf-8")
    sections = {
        number: int(match[1])
        for number, line in enumerate(text.splitlines(), 1)
        if (match := re.match(r"# ---- (\d+) ", line))
    }
    for name, nodes in group(ast.parse(text).body).items():
        section = max((s for line, s in sections.items() if line < nodes[0].lineno), default=1)
        if name in NOTATION:
            continue
        home = ADAPTER_HOMES[name] if section == 8 else SECTION_HOMES.get(section, "optchat")
        yield from promises(home, ("open" if name == "aio_open" else name,), nodes)


def promises(home: str, path: tuple[str, ...], nodes: list[ast.stmt]) -> Iterator[Promise]:
    dotted = ".".join((home, *path))
    first = nodes[0]
    if isinstance(first, ast.ClassDef):
        yield Promise(dotted, home, path, klass=first)
        is_attrs = any("frozen" in ast.unparse(decorator) for decorator in first.decorator_list)
        position = 0
        for name, members in group(first.body).items():
            member = members[0]
            if is_attrs and isinstance(member, ast.AnnAssign):
                yield Promise(
                    f"{dotted}.{name}", home, (*path, name), variable=member, position=position, frozen_fields=True
                )
                # Fields by name alone may be left out until they are built; those that are there keep the order.
                position += not any(f"{dotted}.{name}" in names for names in NOT_BUILT.values())
            else:
                yield from promises(home, (*path, name), members)
    elif isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)):
        functions = tuple(n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
        yield Promise(dotted, home, path, functions=functions)
    else:
        yield Promise(dotted, home, path, variable=first if isinstance(first, ast.AnnAssign) else None)


PROMISES = list(read_contract()) if CONTRACT.exists() else []
LATER = {name for names in NOT_BUILT.values() for name in names}


def is_later(promise: Promise) -> bool:
    return any(promise.dotted == name or promise.dotted.startswith(f"{name}.") for name in LATER)


def locate(home: str, path: tuple[str, ...]) -> object:
    """The object under a dotted name, or a LookupError."""
    try:
        found: object = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is not None and not error.name.startswith("optchat"):
            pytest.skip(f"{error.name} is not installed; install the extra that brings it")
        raise LookupError(home) from error
    owner = found
    for name in path:
        owner, found = found, inspect.getattr_static(found, name, None)
        if found is None and isinstance(owner, types.ModuleType):  # a module of its own, not imported by its package
            try:
                found = importlib.import_module(f"{owner.__name__}.{name}")
            except ModuleNotFoundError as error:
                raise LookupError(f"{owner.__name__}.{name}") from error
        if found is None:
            if isinstance(owner, type) and name in instance_attributes(owner):
                return None
            if not (isinstance(owner, type) and name in attribute_types(owner)):
                raise LookupError(".".join((home, *path)))
    return found


def attribute_types(cls: type) -> dict[str, object]:
    hints: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        hints.update(inspect.get_annotations(base))
    return hints


def instance_attributes(cls: type) -> set[str]:
    """Names that the class's own methods assign on self."""
    found: set[str] = set()
    for base in cls.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return found


# ---- what is compared ------------------------------------------------------------------------------------------------
@frozen
class Parameter:
    name: str
    kind: str
    default: str


def promised_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Parameter]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    found = [
        Parameter(a.arg, "POSITIONAL_ONLY" if a in arguments.posonlyargs else "POSITIONAL_OR_KEYWORD", literal(default))
        for a, default in zip(positional, defaults, strict=True)
    ]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, "VAR_POSITIONAL", "-"))
    found.extend(
        Parameter(a.arg, "KEYWORD_ONLY", literal(default))
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    )
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, "VAR_KEYWORD", "-"))
    return found


def literal(node: ast.expr | None) -> str:
    return "-" if node is None else repr(ast.literal_eval(node))


def actual_parameters(function: typing.Any) -> list[Parameter]:
    return [
        Parameter(p.name, p.kind.name, "-" if p.default is p.empty else repr(p.default))
        for p in inspect.signature(function).parameters.values()
    ]


def without(parameters: list[Parameter], dotted: str) -> list[Parameter]:
    return [p for p in parameters if f"{dotted}({p.name})" not in LATER]


def nameless(parameters: list[Parameter]) -> list[Parameter]:
    """A magic method's parameters are what Python passes, whatever they are called."""
    return [attrs.evolve(p, name="", kind="") for p in parameters]


def namespace() -> dict[str, typing.Any]:
    names: dict[str, typing.Any] = {}
    for module in (typing, collections.abc, types):
        names.update({name: getattr(module, name) for name in getattr(module, "__all__", ())})
    names.update({name: getattr(optchat, name) for name in optchat.__all__})
    for module in (importlib.import_module("optchat.core.ports"), importlib.import_module("optchat.core.retrieval")):
        names.update({name: getattr(module, name) for name in ("M", "T_co") if hasattr(module, name)})
    names.update(datetime=dt.datetime, Path=pathlib.Path, PathLike=os.PathLike)
    names["StrPath"] = eval("str | PathLike[str]", names)
    names["JSON"] = eval("str | Mapping[str, object]", names)
    names["ExcType"] = eval("type[BaseException] | None", names)
    return names


def type_text(annotation: object, names: dict[str, typing.Any]) -> str | None:
    """How a type prints once its aliases are resolved; None where a name of it is not importable here."""
    value = annotation
    if isinstance(annotation, str):
        try:
            value = eval(annotation.strip("\"'"), names)
        except NameError:
            return None
    text = (
        "None"
        if value is None
        else value.__name__
        if isinstance(value, type) and not typing.get_args(value)
        else repr(value)
    )
    text = re.sub(r"^(?:typing\.)?ClassVar\[(.*)\]$", r"\1", text)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text).replace("~", "").replace("+", "").replace("'", "")
    return text.replace("NoneType", "None")


def differing_types(promised: dict[str, ast.expr | None], actual: dict[str, object], home: typing.Any) -> list[str]:
    names = namespace()
    theirs = {**names, **(vars(home) if home else {})}
    found = []
    for name, expression in promised.items():
        if expression is None or name not in actual:
            continue
        want, have = type_text(ast.unparse(expression), names), type_text(actual[name], theirs)
        if want is not None and have is not None and want != have:
            found.append(f"{name}: {have} where the contract says {want}")
    return found


# ---- the tests -------------------------------------------------------------------------------------------------------
def test_the_contract_is_here() -> None:
    if not PROMISES:
        pytest.skip(f"no contract at ../shared/{CONTRACT.name}: the names are not compared")
    assert {"optchat.open", "optchat.Memory.session", "optchat.aio.open", "optchat.testing.Step"} <= {
        promise.dotted for promise in PROMISES
    }


def test_the_namespace_is_flat_and_sorted() -> None:
    # as the linter orders it: constants, classes, the rest
    assert list(optchat.__all__) == sorted(
        optchat.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    assert len(set(optchat.__all__)) == len(optchat.__all__)
    assert all(hasattr(optchat, name) for name in optchat.__all__)


def test_the_namespace_holds_the_contract_and_nothing_else() -> None:
    if not PROMISES:
        pytest.skip("no contract to compare with")
    promised = {promise.path[0] for promise in PROMISES if promise.home == "optchat"}
    assert set(optchat.__all__) - promised - NOTATION - ADDED == set()


def test_what_is_not_built_is_part_of_the_contract() -> None:
    if not PROMISES:
        pytest.skip("no contract to compare with")
    known = {promise.dotted for promise in PROMISES}
    for promise in PROMISES:
        known |= {f"{promise.dotted}({p.name})" for f in promise.functions for p in promised_parameters(f)}
    assert known >= LATER


def test_what_is_not_built_is_absent() -> None:
    for promise in (promise for promise in PROMISES if promise.dotted in LATER):
        with pytest.raises(LookupError):
            locate(promise.home, promise.path)


def held(promise: Promise) -> typing.Any:
    """A promise as a test's parameter; one of a framework's needs that installed, as its own session has it."""
    marks = [pytest.mark.host] if promise.home in FRAMEWORKS else []
    return pytest.param(promise, id=promise.dotted, marks=marks)


@pytest.mark.parametrize("promise", [held(p) for p in PROMISES if not is_later(p)])
def test_it_is_as_promised(promise: Promise) -> None:
    try:
        found = locate(promise.home, promise.path)
    except LookupError:
        pytest.fail(f"{promise.dotted} is neither built nor listed in NOT_BUILT")
    owner: typing.Any = locate(promise.home, promise.path[:-1]) if len(promise.path) > 1 else None
    module = inspect.getmodule(owner) if owner is not None else None
    if promise.functions:
        check_functions(promise, found)
    elif promise.klass is not None:
        check_class(promise.klass, found)
    elif promise.frozen_fields:
        check_field(promise, owner)
    elif promise.variable is not None and owner is not None:
        hints = attribute_types(owner)
        wrong = differing_types({promise.path[-1]: promise.variable.annotation}, hints, module)
        assert not wrong, wrong


def check_functions(promise: Promise, found: object) -> None:
    if isinstance(found, property):
        assert [ast.unparse(d) for d in promise.functions[0].decorator_list] == ["property"], "it is a property"
        return
    function: typing.Any = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    if isinstance(function, type):  # strategies of the contract are a module, some functions of it may be classes
        function = function.__init__
    overloads = typing.get_overloads(function)
    candidates = overloads or [function]
    assert len(candidates) == len(promise.functions), "the contract has another number of overloads"
    for candidate, promised in zip(candidates, promise.functions, strict=True):
        want = without(promised_parameters(promised), promise.dotted)
        have = actual_parameters(candidate)
        magic = promise.path[-1].startswith("__") and promise.path[-1] != "__init__"
        if magic:
            want, have = nameless(want), nameless(have)
        assert have == want
        arguments = promised.args
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        types_wanted: dict[str, ast.expr | None] = {a.arg: a.annotation for a in everything}
        types_wanted["return"] = promised.returns
        types_had = inspect.get_annotations(candidate)
        if magic:
            types_wanted, types_had = {"return": promised.returns}, {"return": types_had.get("return")}
        wrong = differing_types(types_wanted, types_had, inspect.getmodule(candidate))
        assert not wrong, wrong


def check_class(promised: ast.ClassDef, found: object) -> None:
    assert isinstance(found, (type, types.ModuleType))
    if isinstance(found, type):
        bases = {base.__name__ for base in found.__mro__}
        wanted = {ast.unparse(base).partition("[")[0] for base in promised.bases} - {"Protocol", "Generic"}
        assert wanted <= bases, f"bases {sorted(bases)}"
        is_attrs = any("frozen" in ast.unparse(decorator) for decorator in promised.decorator_list)
        assert not is_attrs or (attrs.has(found) and is_frozen(found)), "a frozen attrs class"


def is_frozen(cls: typing.Any) -> bool:
    return any("_frozen_setattrs" in getattr(base.__setattr__, "__name__", "") for base in cls.__mro__)


def check_field(promise: Promise, owner: typing.Any) -> None:
    assert promise.variable is not None
    own = [a for a in attrs.fields(owner) if not a.inherited]
    names = [a.name for a in own]
    name = promise.path[-1]
    assert names.index(name) == promise.position, f"the order is {names}; new fields go last"
    attribute = own[names.index(name)]
    if promise.variable.value is not None:
        default = attribute.default
        assert not isinstance(default, attrs.Factory)
        assert repr(default) == literal(promise.variable.value)
    wrong = differing_types({name: promise.variable.annotation}, {name: attribute.type}, inspect.getmodule(owner))
    assert not wrong, wrong
