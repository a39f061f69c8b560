"""The ground floor: one vocabulary, however it is written down."""

import ast
from pathlib import Path
from typing import get_args

import pytest
from attrs.exceptions import FrozenInstanceError

from optchat.core import records, terms
from optchat.core.terms import OUTCOMES, ROLES, HitKind, JobFailure, Outcome, RecordKind, Role, TokenUse
