"""(e) an embedder's own property test, as the reference writes it."""

import pytest
from hypothesis import settings

from tests.property.worlds import FEW
from tests.usage.programs import load


@pytest.mark.usefixtures("fast_files")
def test_the_program_holds_as_it_is() -> None:
    program = load("e_property.py")
    settings(FEW)(program.test_pinned)()
