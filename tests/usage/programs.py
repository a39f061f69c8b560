"""The programs of the reference, run where they lie."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

USAGE = Path(__file__).parents[3] / "shared" / "reference" / "usage"


def load(name: str) -> ModuleType:
    """A program as a module; skips where the reference is not beside the repository."""
    path = USAGE / name
    if not path.exists():
        pytest.skip("the reference programs are not beside the repository")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
