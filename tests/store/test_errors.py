"""What a driver's error means."""

from pathlib import Path

import apsw
import pytest

from optchat.core.errors import (
    IntegrityError,
    NotOurFile,
    OptchatError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from optchat.store.errors import translated
from tests.store.handles import Open, make, names, only_the_file


@pytest.mark.parametrize(
    ("driver", "ours"),
    [
        (apsw.BusyError, StoreBusy),
        (apsw.ProtocolError, StoreBusy),
        (apsw.ReadOnlyError, StoreReadOnly),
        (apsw.PermissionsError, StoreReadOnly),
        (apsw.FullError, StoreFull),
        (apsw.CorruptError, IntegrityError),
        (apsw.NotADBError, NotOurFile),
        (apsw.CantOpenError, StoreError),
        (apsw.IOError, StoreError),
        (apsw.ConstraintError, StoreError),
        (apsw.BindingsError, StoreError),
    ],
)
def test_every_drivers_error_becomes_ours(driver: type[apsw.Error], ours: type[OptchatError]) -> None:
    cause = driver("what SQLite says")
    with pytest.raises(ours, match="what SQLite says") as raised, translated(Path("memory.db")):
        raise cause
    assert type(raised.value) is ours
    assert raised.value.__cause__ is cause
    assert "memory.db" in str(raised.value)


@pytest.mark.parametrize("error", [StoreBusy("ours"), ValueError("theirs"), KeyboardInterrupt()])
def test_other_errors_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, translated():
        raise error
    assert raised.value is error
    assert raised.value.__cause__ is None


def test_a_damaged_file_is_an_integrity_error(path: Path, tmp_path: Path, open_store: Open) -> None:
    make(tmp_path, *(f"{number:050}" for number in range(2000)))
    only_the_file(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    for mode in ("ro", "rw"):
        with pytest.raises(IntegrityError, match="verify"):
            names(open_store(mode))
