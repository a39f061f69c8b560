"""
A disk that remembers what was done to it, and what a crash at any moment would have left of it.

``recording`` makes a VFS the process's default: whatever SQLite writes, syncs, truncates, creates and deletes of one
database, its log and its journal goes to the real files and into a list. From that list ``cuts`` builds, for each
operation, the files as they would be found if the machine had stopped before it. So a use case runs once, and not once
a crash point. Shared memory is not recorded: it does not survive any crash.

Three models:

- *death*: the process died. Everything before the point is in the files.
- *dropped*: the power was cut, and what was not synced is not there: data, sizes, names.
- *torn*: the power was cut, and of what was not synced some is there, in any order, the last of it in part only.

What is assumed of a disk is what SQLite assumes: a sync of a file makes its bytes and its size durable; the first sync
of a journal or log that was made also syncs the folder, so every name up to then is durable; names become durable in
the order of their changes; a torn write harms nothing beyond the bytes that it was to write.

``failing`` is the same disk with a fault: from an operation on, or at it alone, it says so by an error.
"""

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import apsw
from attrs import Factory, define, frozen

Role: TypeAlias = Literal["main", "wal", "journal"]
Model: TypeAlias = Literal["death", "dropped", "torn"]
Kind: TypeAlias = Literal["write", "sync", "truncate", "create", "delete", "read"]
Image: TypeAlias = Mapping[Role, bytes]

SUFFIXES: dict[Role, str] = {"main": "", "wal": "-wal", "journal": "-journal"}
MODELS: tuple[Model, ...] = ("death", "dropped", "torn")
_SECTOR_BYTES = 512


@frozen
class Operation:
    """One thing that was done to a file. ``offset`` is a truncation's new size; a deletion's 1 if it was synced."""

    kind: Kind
    role: Role
    offset: int = 0
    data: bytes = b""


# ---- what a disk holds -----------------------------------------------------------------------------------------------


@define
class _File:
    """The bytes that the system would read, those that are durable, and what lies between."""

    data: bytearray
    durable: bytearray
    unsynced: list[Operation] = Factory(list)
    folder_synced: bool = False

    def apply(self, operation: Operation) -> None:
        _apply(self.data, operation)
        self.unsynced.append(operation)

    def sync(self) -> None:
        for operation in self.unsynced:
            _apply(self.durable, operation)
        self.unsynced.clear()

    def torn(self, chance: random.Random) -> bytes:
        """The durable bytes and some of the rest: the first few or any, and the last of them not whole."""
        if chance.random() < 0.5:
            some = self.unsynced[: chance.randint(0, len(self.unsynced))]
        else:
            some = [operation for operation in self.unsynced if chance.random() < 0.5]
        found = bytearray(self.durable)
        for operation in some[:-1]:
            _apply(found, operation)
        if some:
            _apply(found, _part_of(some[-1], chance))
        return bytes(found)


def _apply(data: bytearray, operation: Operation) -> None:
    if operation.kind == "write":
        end = operation.offset + len(operation.data)
        if operation.offset > len(data):
            data.extend(bytes(operation.offset - len(data)))
        data[operation.offset : end] = operation.data
    elif operation.kind == "truncate":
        del data[operation.offset :]
        data.extend(bytes(operation.offset - len(data)))


def _part_of(operation: Operation, chance: random.Random) -> Operation:
    if operation.kind != "write":
        return operation
    cut = chance.randrange(len(operation.data) + 1)
    if chance.random() < 0.5:
        cut -= cut % _SECTOR_BYTES
    return Operation("write", operation.role, operation.offset, operation.data[:cut])


@define
class Disk:
    """The files of one database, as operations have left them."""

    files: dict[Role, _File]
    durable_names: dict[Role, _File]
    unsynced_names: list[tuple[Role, _File | None]] = Factory(list)

    @staticmethod
    def of(image: Image) -> "Disk":
        files = {role: _File(bytearray(data), bytearray(data), folder_synced=True) for role, data in image.items()}
        return Disk(files, dict(files))

    def apply(self, operation: Operation) -> None:
        role = operation.role
        if operation.kind == "create":
            self.files[role] = _File(bytearray(), bytearray())
            self.unsynced_names.append((role, self.files[role]))
        elif operation.kind == "delete":
            del self.files[role]
            self.unsynced_names.append((role, None))
            if operation.offset:
                self._sync_folder()
        elif operation.kind == "sync":
            file = self.files[role]
            file.sync()
            if role != "main" and not file.folder_synced:
                file.folder_synced = True
                self._sync_folder()
        else:
            self.files[role].apply(operation)

    def image(self, model: Model, seed: int = 0) -> Image:
        """The files as they are found after a crash now."""
        if model == "death":
            return {role: bytes(file.data) for role, file in self.files.items()}
        if model == "dropped":
            return {role: bytes(file.durable) for role, file in self.durable_names.items()}
        chance = random.Random(seed)
        names = dict(self.durable_names)
        for role, file in self.unsynced_names[: chance.randint(0, len(self.unsynced_names))]:
            _name(names, role, file)
        return {role: file.torn(chance) for role, file in names.items()}

    def is_unsynced(self) -> bool:
        """Whether a cut of the power would lose anything."""
        return bool(self.unsynced_names) or any(file.unsynced for file in self.files.values())

    def _sync_folder(self) -> None:
        for role, file in self.unsynced_names:
            _name(self.durable_names, role, file)
        self.unsynced_names.clear()


def _name(names: dict[Role, _File], role: Role, file: _File | None) -> None:
    if file is None:
        names.pop(role, None)
    else:
        names[role] = file


@frozen
class Cut:
    """The files at a point: as if the machine had stopped before the operation of this number."""

    point: int
    model: Model
    image: Image


def cuts(
    before: Image,
    operations: list[Operation],
    *,
    first: int = 0,
    wanted: Callable[[int], bool] = lambda _point: True,
    draws: int = 1,
) -> Iterator[Cut]:
    """
    Every crash at a point from ``first`` on, in each model; the last point is after everything.

    Where nothing is unsynced the models agree, and so do their images: the caller counts them, and looks at one.

    Args:
        before: the files as the first operation found them.
        draws: how many ways the power is cut while bytes are on their way.
    """
    disk = Disk.of(before)
    for point in range(len(operations) + 1):
        if point >= first and wanted(point):
            yield Cut(point, "death", disk.image("death"))
            yield Cut(point, "dropped", disk.image("dropped"))
            for draw in range(draws if disk.is_unsynced() else 1):
                yield Cut(point, "torn", disk.image("torn", seed=point * 1_000 + draw))
        if point < len(operations):
            disk.apply(operations[point])


def place(image: Image, path: Path) -> None:
    """Put an image where a database is looked for, in a folder that holds nothing else of it."""
    for role, data in image.items():
        path.with_name(path.name + SUFFIXES[role]).write_bytes(data)


def taken_from(path: Path) -> Image:
    """The image of closed files: with a handle open in this process, reading them would drop SQLite's locks."""
    files = {role: path.with_name(path.name + suffix) for role, suffix in SUFFIXES.items()}
    return {role: file.read_bytes() for role, file in files.items() if file.exists()}


# ---- the VFS ---------------------------------------------------------------------------------------------------------


@define
class Fault:
    """
    From which operation on a disk refuses, and how.

    Args:
        at: the operation's number, counted with those of ``kinds`` only.
        lasting: it refuses until ``mended``; else once.
    """

    at: int
    error: Callable[[Kind], Exception]
    kinds: frozenset[Kind]
    lasting: bool = False
    mended: bool = False
    met: int = 0
    counted: int = 0

    def refuses(self, kind: Kind) -> bool:
        if self.mended or kind not in self.kinds:
            return False
        number, self.counted = self.counted, self.counted + 1
        refuses = number >= self.at if self.lasting else number == self.at
        self.met += refuses
        return refuses


@define
class Recorder:
    """What was done so far. ``fault`` is None, or what the disk refuses from now on."""

    path: str
    operations: list[Operation] = Factory(list)
    fault: Fault | None = None
    guard: threading.RLock = Factory(threading.RLock)

    def role(self, name: Any) -> Role | None:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        return next((role for role, suffix in SUFFIXES.items() if text == self.path + suffix), None)

    def do(self, operation: Operation, action: Callable[[], Any]) -> Any:
        """Do it and note it; or refuse. Another thread's operation comes before or after, never between."""
        with self.guard:
            self.check(operation.kind)
            answer = action()
            self.operations.append(operation)
            return answer

    def check(self, kind: Kind) -> None:
        with self.guard:
            if self.fault is not None and self.fault.refuses(kind):
                raise self.fault.error(kind)


class _Quiet:
    """An error of the disk is SQLite's to report: where it cannot, as while closing, nobody prints it."""

    def excepthook(self, *_error: object) -> bool:
        return True


class _RecordedFile(_Quiet, apsw.VFSFile):
    def __init__(self, recorder: Recorder, role: Role, name: Any, flags: Any) -> None:
        self._recorder, self._role = recorder, role
        super().__init__("unix", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - APSW's name
        self._recorder.check("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        kept = bytes(data)
        self._recorder.do(
            Operation("write", self._role, offset, kept), lambda: super(_RecordedFile, self).xWrite(kept, offset)
        )

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._recorder.do(Operation("sync", self._role), lambda: super(_RecordedFile, self).xSync(flags))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._recorder.do(
            Operation("truncate", self._role, newsize), lambda: super(_RecordedFile, self).xTruncate(newsize)
        )


class _RecordingVfs(_Quiet, apsw.VFS):
    count: ClassVar[int] = 0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        _RecordingVfs.count += 1
        super().__init__(f"recording-{_RecordingVfs.count}", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802
        role = self._recorder.role(name)
        if role is None:
            return apsw.VFSFile("unix", name, flags)
        makes = not os.path.lexists(self._recorder.path + SUFFIXES[role])

        def opened() -> apsw.VFSFile:
            return _RecordedFile(self._recorder, role, name, flags)

        if not makes or not flags[0] & apsw.SQLITE_OPEN_CREATE:
            return opened()
        return self._recorder.do(Operation("create", role), opened)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        role = self._recorder.role(filename)
        if role is None:
            super().xDelete(filename, syncdir)
            return
        operation = Operation("delete", role, int(syncdir))
        self._recorder.do(operation, lambda: super(_RecordingVfs, self).xDelete(filename, syncdir))


@contextmanager
def recording(path: Path) -> Iterator[Recorder]:
    """
    Everything that SQLite does to this database in the block; other files are left alone.

    Connections are opened and closed within the block.
    """
    recorder = Recorder(os.path.realpath(path))
    vfs = _RecordingVfs(recorder)
    try:
        yield recorder
    finally:
        vfs.unregister()
