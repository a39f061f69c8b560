"""
The memory tools that a model is given (§ 8).

Decides: their names, descriptions and JSON Schemas, and how a model's arguments are read.
Refuses to know: how a tool is answered.

The schemas hold in the strict modes of providers: every property is required, what may be left out may be null, nothing
else is allowed, and no keyword is used that one of them rejects. Reading is more lenient than the schemas where a
model's meaning is plain (null, "" and an absent optional field are the same; ``"2"`` is 2), and otherwise says what
would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn, TypeAlias, cast, get_args

from attrs import frozen

from optchat.core.errors import BadArgument
from optchat.core.retrieval import Order
from optchat.core.terms import HitKind

MAX_DEPTH: Final = 4
MAX_LIMIT: Final = 50
MAX_ARGUMENTS_CHARACTERS: Final = 65_536  # a query is at most 512 characters: more is no honest call

_DIGITS: Final = re.compile(r"\s*[0-9]{1,18}\s*", re.ASCII)


@frozen
class MemoryTool:
    """One tool; ``parameters`` is JSON Schema, valid in providers' strict modes."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@frozen
class ToolOutput:
    """What a tool answers; a model's mistake (bad JSON, bad ref) is ``is_error=True``, not an exception."""

    text: str
    is_error: bool = False


@frozen
class ZoomCall:
    """``memory_zoom``, read."""

    ref: str
    depth: int = 1
    cursor: str | None = None
    max_tokens: int | None = None


@frozen
class SearchCall:
    """``memory_search``, read; times are still text."""

    query: str
    session: str | None = None
    kind: HitKind | None = None
    before: str | None = None
    after: str | None = None
    order: Order = "best"
    limit: int = 10
    cursor: str | None = None


@frozen
class DateCall:
    """``memory_date``, read."""

    ref: str


@frozen
class SessionsCall:
    """``memory_sessions``, read."""

    cursor: str | None = None


@frozen
class WorkCall:
    """``memory_work``, read."""

    name: str
    cursor: str | None = None


ToolCall: TypeAlias = ZoomCall | SearchCall | DateCall | SessionsCall | WorkCall


@frozen
class _Argument:
    """One parameter: its schema for models, and the same rule for reading."""

    name: str
    description: str
    type: type[str] | type[int] = str
    required: bool = False
    choices: tuple[str, ...] = ()
    maximum: int | None = None

    def schema(self) -> dict[str, Any]:
        kind = "integer" if self.type is int else "string"
        schema: dict[str, Any] = {"type": kind if self.required else [kind, "null"], "description": self.description}
        if self.choices:
            schema["enum"] = [*self.choices, *(() if self.required else (None,))]
        return schema


_CURSOR: Final = _Argument(
    "cursor", "Null at first. To go on where an answer stopped, its cursor, with all other arguments as they were."
)
_REF: Final = _Argument(
    "ref", "A reference as it was shown, for example pub:24+1, 0+64 or session:k3f9a2bq:0:12+1.", required=True
)


@frozen
class _Spec:
    name: str
    reads: type[ToolCall]
    description: str
    arguments: tuple[_Argument, ...]

    def tool(self) -> MemoryTool:
        parameters: dict[str, Any] = {
            "type": "object",
            "properties": {argument.name: argument.schema() for argument in self.arguments},
            "required": [argument.name for argument in self.arguments],
            "additionalProperties": False,
        }
        return MemoryTool(self.name, self.description, parameters)


_SPECS: Final = (
    _Spec(
        "memory_zoom",
        ZoomCall,
        "Open a memory reference and see what it stands for. A summary opens into the two lines that it was made of, a "
        "publication (pub:n+1) into the records of one finished turn, a record into its exact original text, in pages. "
        "Use it before you quote a detail from memory or rely on it: the lines shown are short summaries.",
        (
            _REF,
            _Argument("depth", "How many levels to open at once, 1 to 4. Null is 1.", int, maximum=MAX_DEPTH),
            _CURSOR,
            _Argument("max_tokens", "The most tokens of text to return. Null for the usual page.", int),
        ),
    ),
    _Spec(
        "memory_search",
        SearchCall,
        "Search what was said, called and answered in this and other conversations, word by word. Use it when no "
        "memory line leads to what you need, or for an exact name, path, number or error. Words in double quotes must "
        "stand together. Each hit has an excerpt and a reference to zoom.",
        (
            _Argument("query", "What to look for: a question or words, at most 512 characters.", required=True),
            _Argument("session", "Only this session: its id, as memory_sessions and references show it. Null for all."),
            _Argument(
                "kind",
                "Only this kind: who spoke, a tool's call or its result, a report, a note, or a summary. Null for all.",
                choices=get_args(HitKind),
            ),
            _Argument(
                "before",
                "Only what was said before this time, ISO 8601 with offset: 2026-10-09T12:00:00+00:00. Or null.",
            ),
            _Argument("after", "Only what was said at or after this time, ISO 8601 with offset. Or null."),
            _Argument(
                "order",
                "best: by relevance, any word may match. newest: every word must match, latest first. Null is best.",
                choices=get_args(Order),
            ),
            _Argument("limit", "How many hits, 1 to 50. Null is 10.", int, maximum=MAX_LIMIT),
            _CURSOR,
        ),
    ),
    _Spec(
        "memory_date",
        DateCall,
        "When something was said: the first and last time of what a reference covers, and when it was published. The "
        "order of memory lines is not a date.",
        (_REF,),
    ),
    _Spec(
        "memory_sessions",
        SessionsCall,
        "List the conversations that share this memory, the latest first, with their ids, titles and times.",
        (_CURSOR,),
    ),
    _Spec(
        "memory_work",
        WorkCall,
        "Read the report that a subagent or a background job delivered, by its name; the newest of it, in pages.",
        (
            _Argument(
                "name", "The subagent's or job's name, or a report's id, as the conversation shows it.", required=True
            ),
            _CURSOR,
        ),
    ),
)
_BY_NAME: Final = {spec.name: spec for spec in _SPECS}
MEMORY_TOOLS: Final = tuple(spec.tool() for spec in _SPECS)
TOOL_NAMES: Final = frozenset(_BY_NAME)


@frozen
class Tools:
    """
    The memory tools: iterate for their definitions, ask ``name in tools`` before running a call.

    memory_zoom(ref, depth?, cursor?, max_tokens?), memory_search(query, session?, kind?, before?, after?, order?,
    limit?, cursor?), memory_date(ref), memory_sessions(cursor?), memory_work(name, cursor?). Answers: the result
    class's fields as JSON, not ASCII-escaped, at most 32 KiB.
    """

    names: frozenset[str] = frozenset(_BY_NAME)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[MemoryTool]:
        return (tool for tool in MEMORY_TOOLS if tool.name in self.names)

    def __len__(self) -> int:
        return len(self.names)


def read_arguments(name: str, arguments: str | Mapping[str, object]) -> ToolCall:
    """
    What a model meant by a call.

    Args:
        name: the tool's.
        arguments: JSON text as the model produced it, or the parsed object.

    Raises:
        BadArgument: an unknown tool, no JSON object, a field twice, an unknown or missing field, a wrong type, or a
            number out of range. Its message is for the model: it says what to send instead.
    """
    spec = _BY_NAME.get(name)
    if spec is None:
        raise BadArgument(f"there is no tool {name[:80]!r}; the memory tools are {', '.join(_BY_NAME)}")
    given = _object(name, arguments) if isinstance(arguments, str) else arguments
    allowed = {argument.name: argument for argument in spec.arguments}
    unknown = [key for key in given if key not in allowed]
    if unknown:
        shown = ", ".join(repr(str(key)[:40]) for key in unknown[:4])
        raise BadArgument(f"{name} has no argument {shown}; it takes {', '.join(allowed)}. Call it again without it")
    values: dict[str, Any] = {}
    for argument in spec.arguments:
        value = given.get(argument.name)
        if value is None or (value == "" and not argument.required):
            if argument.required:
                raise BadArgument(f"{name} needs {argument.name}. {argument.description} Call it again with it")
            continue
        values[argument.name] = _value(name, argument, value)
    return spec.reads(**values)


def _object(name: str, text: str) -> Mapping[str, object]:
    if len(text) > MAX_ARGUMENTS_CHARACTERS:
        raise BadArgument(f"the arguments of {name} are {len(text)} characters long; send short ones")
    if not text.strip():  # what some models send for a call without arguments
        return {}
    try:
        value: object = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except BadArgument as error:
        raise BadArgument(f"the arguments of {name} {error}") from None
    except (ValueError, RecursionError) as error:  # ValueError also for a number of too many digits
        where = f" (at character {error.pos}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadArgument(f"the arguments of {name} are not valid JSON{where}; send one JSON object") from None
    if not isinstance(value, dict):
        raise BadArgument(f'the arguments of {name} are not a JSON object; send one, like {{"{_example(name)}": "…"}}')
    return cast("dict[str, object]", value)


def _example(name: str) -> str:
    return _BY_NAME[name].arguments[0].name


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:  # which of the two was meant cannot be known; json would take the last
            raise BadArgument(f"name {key[:40]!r} twice; give each argument once")
        found[key] = value
    return found


def _no_constant(constant: str) -> NoReturn:
    raise BadArgument(f"hold {constant}, which is not JSON; send a number or null")


def _value(name: str, argument: _Argument, value: object) -> str | int:
    if argument.type is int:
        return _number(name, argument, value)
    if not isinstance(value, str):
        raise BadArgument(f"{name}: {argument.name} must be a JSON string. {argument.description}")
    if argument.required and not value.strip():
        raise BadArgument(f"{name}: {argument.name} is empty. {argument.description}")
    if argument.choices and value not in argument.choices:
        raise BadArgument(
            f"{name}: {argument.name} is one of {', '.join(argument.choices)}, or null; not {value[:40]!r}"
        )
    return value


def _number(name: str, argument: _Argument, value: object) -> int:
    number: int | None = None
    if isinstance(value, str):
        if _DIGITS.fullmatch(value):
            number = int(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        number = int(value)
    top = "" if argument.maximum is None else f" to {argument.maximum}"
    if number is None or number < 1 or (argument.maximum is not None and number > argument.maximum):
        raise BadArgument(f"{name}: {argument.name} must be a whole number from 1{top or ' up'}, or null")
    return number
