"""(e) an embedder's own property test, as the reference writes it."""

from hypothesis import settings

from tests.property.worlds import FEW
from tests.usage.programs import load


def test_the_program_holds_as_it_is() -> None:
    program = load("e_property.py")
    settings(FEW)(program.test_pinned)()
