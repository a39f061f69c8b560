"""What callers hand in: a summarizer made of a function, blocks, and what a host says of itself."""

from typing import get_args

import pytest
from attrs import fields
from attrs.exceptions import FrozenInstanceError

from optchat.core.ports import HostInfo, MemoryBlock, Support, summarizer
from optchat.core.summarizing import SummaryJob, SourceLine, SummaryReply, SummaryRequest
