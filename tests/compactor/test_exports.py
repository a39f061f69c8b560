"""What the package hands out, and what it does not import for that."""

import subprocess
import sys

import pytest

from optchat import compactor


def test_the_sdks_are_imported_when_they_are_asked_for() -> None:
    program = (
        "import sys, optchat; from optchat.compactor import AnthropicSummarizer, OpenAISummarizer, Price; "
        "print({'openai', 'anthropic', 'httpx2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_every_name_is_there_and_no_other() -> None:
    for name in compactor.__all__:
        assert getattr(compactor, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'GeminiSummarizer'"):
        _ = compactor.GeminiSummarizer
