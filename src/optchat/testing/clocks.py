"""
A clock that a test moves.

Decides: that time stands still until it is told to go on.
Refuses to know: who reads it.

Waits for the writer lock are real time whatever the clock says: where time stands still no deadline would ever pass.
"""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta

from optchat.core.errors import BadArgument

_START = datetime(2026, 1, 5, 9, tzinfo=UTC)  # a fixed day, so that what is recorded is the same in every run


class ManualClock:
    """
    Time as a test has it: it begins on a fixed day and moves only by :meth:`advance`.

    A job that is to be tried again later waits for it: ``advance``, then ``settle`` once more. Thread-safe.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """
        Let time pass.

        Raises:
            BadArgument: a negative or infinite time; both clocks that this one stands for never go back.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise BadArgument(f"time goes forward; advance() by a finite number of seconds, not {seconds}")
        with self._lock:
            self._seconds += seconds

    def now(self) -> datetime:
        """The time of day, in UTC."""
        return _START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        with self._lock:
            return self._seconds
