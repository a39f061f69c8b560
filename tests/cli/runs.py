"""What a command of the command line gave."""

import json
from typing import Any

from attrs import frozen


@frozen
class Run:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """A piped table."""
        head, *lines = [line.split("\t") for line in self.text.splitlines()]
        return [dict(zip(head, line, strict=True)) for line in lines]
