"""The hierarchy: stable codes, whether trying again can help, and that every error travels between processes."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from optchat.core import errors
from optchat.core.terms import JobFailure, TokenUse

AT = datetime(2026, 1, 5, tzinfo=UTC)
PACKAGE = Path(errors.__file__).parents[1]

# Hosts and logs go by these: a code never changes its meaning, and no two share one.
CODES = {
    "OptchatError": ("OPTCHAT_ERROR", False),
    "BadArgument": ("BAD_ARGUMENT", False),
    "ConfigError": ("CONFIG", False),
    "HostUnsupported": ("HOST_UNSUPPORTED", False),
    "RefError": ("REF", False),
    "MalformedRef": ("MALFORMED_REF", False),
    "BadCursor": ("BAD_CURSOR", False),
    "UnknownRef": ("UNKNOWN_REF", False),
    "StaleRef": ("STALE_REF", False),
    "IngestError": ("INGEST", False),
    "RevisionConflict": ("REVISION_CONFLICT", False),
    "GenerationSuperseded": ("GENERATION_SUPERSEDED", False),
    "ResyncNeeded": ("RESYNC_NEEDED", False),
    "ImportRejected": ("IMPORT_REJECTED", False),
    "SessionDeleted": ("SESSION_DELETED", False),
    "TurnEnded": ("TURN_ENDED", False),
    "SessionBusy": ("SESSION_BUSY", True),
    "MemoryNotReady": ("MEMORY_NOT_READY", True),
    "SummariesPending": ("SUMMARIES_PENDING", True),
    "CoverTooLarge": ("COVER_TOO_LARGE", False),
    "SnapshotInvalid": ("SNAPSHOT_INVALID", False),
    "ToolProtocolError": ("TOOL_PROTOCOL", False),
    "ContextTooLarge": ("CONTEXT_TOO_LARGE", False),
    "JobError": ("JOB", False),
    "LeaseLost": ("LEASE_LOST", False),
    "InputsChanged": ("INPUTS_CHANGED", False),
    "SummaryRejected": ("SUMMARY_REJECTED", False),
    "IntegrityError": ("INTEGRITY", False),
    "StoreError": ("STORE", False),
    "StoreBusy": ("STORE_BUSY", True),
    "StoreReadOnly": ("STORE_READ_ONLY", False),
    "StoreFull": ("STORE_FULL", True),
    "NotOurFile": ("NOT_OUR_FILE", False),
    "SchemaTooNew": ("SCHEMA_TOO_NEW", False),
}

NOT_READY: dict[str, Any] = {
    "missing": ("0+4", "4+1"),
    "since": AT,
    "failures": (JobFailure("0+4", "merge", 5, "refused", AT),),
    "paused": "the account has no credit",
    "resumes_at": AT,
    "waited_seconds": 2.5,
}
FIELDS: dict[str, dict[str, Any]] = {
    "StaleRef": {"candidates": ("session:k3f9a2bq:0:4+1", "session:k3f9a2bq:1:4+1")},
    "ImportRejected": {"line": 7},
    "TurnEnded": {"outcome": "failed"},
    "SessionBusy": {"open_turn_id": "t1"},
    "MemoryNotReady": NOT_READY,
    "SummariesPending": NOT_READY,
    "CoverTooLarge": NOT_READY,
    "ContextTooLarge": {"tokens": TokenUse(100, 1, 2, 3, 95, {"shared": 4}, -5)},
    "SummaryRejected": {"refused": True},
}


def hierarchy(root: type[errors.OptchatError] = errors.OptchatError) -> Iterator[type[errors.OptchatError]]:
    yield root
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from hierarchy(each)


ERRORS = sorted(set(hierarchy()), key=lambda error: error.__name__)


def test_codes_are_stable_and_no_two_share_one() -> None:
    assert {error.__name__: (error.code, error.retryable) for error in ERRORS} == CODES
    assert len({code for code, _ in CODES.values()}) == len(CODES)


def test_the_tree_in_the_docstring_is_the_hierarchy() -> None:
    """It is what a user reads to decide what to catch."""
    above: list[str] = []
    drawn: dict[str, str] = {}
    for branch, name in re.findall(r"^    ((?:[│├└─ ]{4})*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(branch) // 4
        drawn[name] = above[depth - 1] if depth else "Exception"
        above[depth:] = [name]

    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in ERRORS}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_travels_whole(error: type[errors.OptchatError]) -> None:
    told = FIELDS.get(error.__name__, {})
    made = error("what happened; what to do", **told)

    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(made, protocol))
        assert type(again) is error
        assert str(again) == "what happened; what to do"
        assert {name: getattr(again, name) for name in told} == told
        assert vars(again) == vars(made)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_can_be_made_of_a_message_alone(error: type[errors.OptchatError]) -> None:
    assert str(error("what to do")) == "what to do"
    assert isinstance(error(), errors.OptchatError)


def test_fields_are_what_was_told_and_no_more() -> None:
    assert {name for name in CODES if vars(getattr(errors, name)("x"))} == set(FIELDS)


def test_sequences_are_kept_as_they_were() -> None:
    missing = ["0+4"]
    error = errors.SummariesPending("x", missing=missing)
    missing.append("4+1")

    assert error.missing == ("0+4",)


def test_a_bad_argument_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="naive"):
        raise errors.BadArgument("a naive time; give it an offset")


def test_figures_that_were_not_told_are_not_made_up() -> None:
    with pytest.raises(AttributeError, match="without its token use"):
        _ = errors.ContextTooLarge("x").tokens


# After a semicolon comes what to do; some say it by what would be right, or end in a text that does.
ADVICE = re.compile(r"; \S| must be a |, like '| Call it again |\{\}$")


def messages() -> Iterator[tuple[str, str]]:
    """Every literal message of the package's own errors: where it is raised, and its text with {} for what varies."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            said = node.args[0]
            if name in CODES and isinstance(said, ast.Constant) and isinstance(said.value, str):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", said.value
            elif name in CODES and isinstance(said, ast.JoinedStr):
                pieces = [str(piece.value) if isinstance(piece, ast.Constant) else "{}" for piece in said.values]
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", "".join(pieces)


def test_every_message_ends_in_what_to_do() -> None:
    found = list(messages())
    assert len(found) > 100
    assert [f"{where} {text}" for where, text in found if not ADVICE.search(text)] == []
