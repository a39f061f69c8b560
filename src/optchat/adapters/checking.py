"""
Whether a host that is installed is one that was tested (§ 13).

Decides: that a version out of the tested range stops an integration when it is registered, and not silently later.
Refuses to know: any host, and which of its hooks there are.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from optchat.core.errors import HostUnsupported
from optchat.core.ports import HostInfo

_NUMBERS: Final = re.compile(r"\s*v?(?:\d+!)?(\d+(?:\.\d+)*)")


def check_host(info: HostInfo) -> None:
    """
    Accept a host whose installed version is in the tested range. An integration calls it when it is registered.

    Only the numbers of a version are compared: a release candidate counts as its release. A host without a
    distribution has nothing to compare.

    Raises:
        HostUnsupported: it is not installed, older than ``version_floor``, or not below ``version_below``; or its
            version has no number.
    """
    if info.distribution is None:
        return
    try:
        installed = version(info.distribution)
    except PackageNotFoundError as error:
        raise HostUnsupported(
            f"the host {info.name!r} needs {info.distribution}, which is not installed; install{_range(info)}"
        ) from error
    numbers = _numbers(info, installed)
    too_old = info.version_floor is not None and numbers < _numbers(info, info.version_floor)
    too_new = info.version_below is not None and numbers >= _numbers(info, info.version_below)
    if too_old or too_new:
        raise HostUnsupported(
            f"{info.distribution} {installed} was not tested with the host {info.name!r}; install{_range(info)}"
        )


def _numbers(info: HostInfo, text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text)
    if found is None:
        raise HostUnsupported(
            f"{info.distribution} has no version that can be compared ({text!r}); install{_range(info)}"
        )
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and numbers[-1] == 0:  # 2.0 is 2
        numbers.pop()
    return tuple(numbers)


def _range(info: HostInfo) -> str:
    bounds = [
        f"{sign}{bound}" for sign, bound in ((">=", info.version_floor), ("<", info.version_below)) if bound is not None
    ]
    return f" {info.distribution}{','.join(bounds)}"
