"""The tools' definitions, against what strict modes ask, and the reading of a model's arguments."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from optchat.core.errors import BadArgument
from optchat.core.tools import (
    DateCall,
    SearchCall,
    SessionsCall,
    ToolCall,
    Tools,
    WorkCall,
    ZoomCall,
    read_arguments,
)

NAMES = ["memory_zoom", "memory_search", "memory_date", "memory_sessions", "memory_work"]


def test_tools_are_five_and_known_by_name() -> None:
    tools = Tools()

    assert [tool.name for tool in tools] == NAMES
    assert tools.names == frozenset(NAMES)
    assert "memory_zoom" in tools
    assert "deploy" not in tools
    assert None not in tools


def test_arguments_are_those_of_the_contract() -> None:
    assert {tool.name: list(tool.parameters["properties"]) for tool in Tools()} == {
        "memory_zoom": ["ref", "depth", "cursor", "max_tokens"],
        "memory_search": ["query", "session", "kind", "before", "after", "order", "limit", "cursor"],
        "memory_date": ["ref"],
        "memory_sessions": ["cursor"],
        "memory_work": ["name", "cursor"],
    }


@pytest.mark.parametrize("tool", Tools(), ids=lambda tool: tool.name)
def test_schemas_hold_in_strict_modes(tool: Any) -> None:
    schema = json.loads(json.dumps(tool.parameters))  # JSON throughout

    assert schema.keys() == {"type", "properties", "required", "additionalProperties"}
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == list(schema["properties"])
    for declared in schema["properties"].values():
        assert declared.keys() <= {"type", "description", "enum"}, "providers differ on every other keyword"
        assert declared["description"]
        kinds = declared["type"] if isinstance(declared["type"], list) else [declared["type"]]
        assert kinds[0] in ("string", "integer")
        assert kinds[1:] in ([], ["null"])
        if "enum" in declared:
            assert (None in declared["enum"]) == ("null" in kinds)
    assert len(tool.description) < 1024
    assert len(json.dumps(schema)) < 4096


@pytest.mark.parametrize(
    ("name", "arguments", "meant"),
    [
        ("memory_zoom", '{"ref": "pub:0+1"}', ZoomCall("pub:0+1")),
        ("memory_zoom", '{"ref": "0+4", "depth": 2, "cursor": "c", "max_tokens": 900}', ZoomCall("0+4", 2, "c", 900)),
        ("memory_zoom", '{"ref": "0+4", "depth": null, "cursor": null, "max_tokens": null}', ZoomCall("0+4")),
        (
            "memory_zoom",
            '{"ref": "0+4", "depth": "2", "cursor": "", "max_tokens": 900.0}',
            ZoomCall("0+4", 2, None, 900),
        ),
        ("memory_zoom", {"ref": "0+4", "depth": 4}, ZoomCall("0+4", 4)),
        ("memory_search", '{"query": "why \\"no redis\\""}', SearchCall('why "no redis"')),
        (
            "memory_search",
            {
                "query": "q",
                "session": "k3f9a2bq",
                "kind": "tool_result",
                "before": "2026-10-09T00:00:00Z",
                "after": None,
                "order": "newest",
                "limit": 50,
                "cursor": "c",
            },
            SearchCall("q", "k3f9a2bq", "tool_result", "2026-10-09T00:00:00Z", None, "newest", 50, "c"),
        ),
        ("memory_date", '{"ref": "pub:3+1"}', DateCall("pub:3+1")),
        ("memory_sessions", "{}", SessionsCall()),
        ("memory_sessions", "", SessionsCall()),
        ("memory_sessions", '{"cursor": "c"}', SessionsCall("c")),
        ("memory_work", '{"name": "Zoë", "cursor": null}', WorkCall("Zoë")),
    ],
)
def test_arguments_are_read(name: str, arguments: str | Mapping[str, object], meant: ToolCall) -> None:
    assert read_arguments(name, arguments) == meant


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("memory_zom", "{}", "no tool 'memory_zom'; the memory tools are memory_zoom, memory_search"),
        ("memory_zoom", "{}", "needs ref. A reference as it was shown"),
        ("memory_zoom", "", "needs ref"),
        ("memory_zoom", '{"ref": null}', "needs ref"),
        ("memory_zoom", '{"ref": "  "}', "ref is empty"),
        ("memory_zoom", '{"ref": 3}', "ref must be a JSON string"),
        ("memory_zoom", '{"ref": "0+1", "dept": 2}', "no argument 'dept'; it takes ref, depth, cursor, max_tokens"),
        ("memory_zoom", '{"ref": "0+1", "depth": 5}', "depth must be a whole number from 1 to 4, or null"),
        ("memory_zoom", '{"ref": "0+1", "depth": 0}', "from 1 to 4"),
        ("memory_zoom", '{"ref": "0+1", "depth": 1.5}', "from 1 to 4"),
        ("memory_zoom", '{"ref": "0+1", "depth": true}', "from 1 to 4"),
        ("memory_zoom", '{"ref": "0+1", "depth": "two"}', "from 1 to 4"),
        ("memory_zoom", '{"ref": "0+1", "depth": "\u0662"}', "from 1 to 4"),
        ("memory_zoom", '{"ref": "0+1", "depth": [1]}', "from 1 to 4"),
        ("memory_zoom", '{"ref": "0+1", "max_tokens": -1}', "max_tokens must be a whole number from 1 up, or null"),
        ("memory_zoom", '{"ref": "0+1", "max_tokens": 1e999}', "max_tokens must be a whole number"),
        ("memory_zoom", '{"ref": "0+1", "ref": "1+1"}', "name 'ref' twice"),
        ("memory_zoom", '{"ref": "0+1"', "not valid JSON .at character"),
        ("memory_zoom", '{"ref": "0+1", "depth": NaN}', "NaN, which is not JSON"),
        ("memory_zoom", '{"ref": "0+1", "depth": ' + "9" * 5000 + "}", "not valid JSON"),
        ("memory_zoom", "[" * 60_000, "not valid JSON"),
        ("memory_zoom", '["0+1"]', 'not a JSON object; send one, like {"ref": "…"}'),
        ("memory_zoom", '"0+1"', "not a JSON object"),
        ("memory_zoom", "x" * 70_000, "70000 characters long"),
        ("memory_search", '{"query": "q", "kind": "tool"}', "kind is one of user, assistant, .*; not 'tool'"),
        ("memory_search", '{"query": "q", "order": "oldest"}', "order is one of best, newest, or null"),
        ("memory_search", '{"query": "q", "limit": 51}', "limit must be a whole number from 1 to 50"),
    ],
)
def test_a_mistake_is_said_so_that_a_model_can_mend_it(name: str, arguments: str, said: str) -> None:
    with pytest.raises(BadArgument, match=said) as caught:
        read_arguments(name, arguments)

    assert len(str(caught.value)) < 500
