"""A disk in memory that keeps what was fsynced, and of the rest what the seed says.

Two states of everything: what the kernel has (programs see it, and it outlives the process), and what is on the disk.  A file's bytes
get there when the file is fsynced, a name in a folder when the folder is.  What was not fsynced may be there after a power cut, in part, or
not: names in any selection, sectors of a file in any selection, a length without the bytes.  A rename is one instant, also there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Self

from tests.simulated.kernel import EPOCH_US, US, Crash, Kernel, Process
from tuner.platform.files import Lock, LockedError

SECTOR_BYTES = 512
WRITE_US = 100


class _File:
    """data: what the kernel has.  safe: what is on the disk.  dirty: sectors that the next fsync writes.

    low_bytes: its least length since then: what was on the disk and never cut off stays.
    """

    def __init__(self) -> None:
        self.data = self.safe = b""
        self.dirty = set[int]()
        self.low_bytes = 0
        self.changed_us = 0
        self.holder: Process | _Nobody | None = None


class _Nobody:
    """Who looks on."""

    alive = True


_NOBODY = _Nobody()


class _Folder:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.safe: dict[str, _File | _Folder] = {}


_Node = _File | _Folder
_Change = list[tuple[_Folder, str, _Node | None]]  # names set or removed in one instant


class SimDisk:
    """rng: of what survives a power cut and of which operations fail."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.root = _Folder()
        self.pending: list[_Change] = []
        self.temporaries = 0
        self.operations = 0

    def power_cut(self) -> None:
        """What the kernel had is gone; what is on the disk is all there is."""
        rng = self.rng
        ordered = rng.random() < 0.5  # a file system with a journal keeps the changes of names up to some moment
        kept = self.pending[: rng.randint(0, len(self.pending))] if ordered else [c for c in self.pending if rng.random() < 0.5]
        for change in kept:
            _apply(change, lambda folder: folder.safe)
        self.pending = []
        self._settle(self.root)

    def _settle(self, folder: _Folder) -> None:
        folder.names = dict(folder.safe)
        for node in folder.names.values():
            if isinstance(node, _Folder):
                self._settle(node)
            else:
                node.data = node.safe = self._survived(node)
                node.dirty, node.low_bytes = set(), len(node.data)

    def _survived(self, file: _File) -> bytes:
        """Of a file, some of the bytes that it had."""
        old, new, rng = file.safe, file.data, self.rng
        if old == new:
            return old
        how = rng.randrange(5)
        if how == 0:
            return old
        if how == 1:
            return new
        if how == 2:
            return new[: rng.randint(min(file.low_bytes, len(new)), len(new))]
        if how == 3:  # its length is there, and not a byte of what is new
            return old[: len(new)] + bytes(max(0, len(new) - len(old)))
        blank = old.ljust(len(new), b"\0")
        sectors = range(0, len(new), SECTOR_BYTES)
        return b"".join((new if rng.random() < 0.5 else blank)[at : at + SECTOR_BYTES] for at in sectors)[: len(new)]

    def change(self, *entries: tuple[_Folder, str, _Node | None]) -> None:
        """Names, in one instant."""
        change = list(entries)
        _apply(change, lambda folder: folder.names)
        self.pending.append(change)

    def fsync(self, node: _Node) -> None:
        """Of a file its bytes, of a folder its names, with the other half of a rename."""
        if isinstance(node, _File):
            if node.dirty:
                there = bytearray(node.safe[: len(node.data)].ljust(len(node.data), b"\0"))
                for sector in node.dirty:
                    at = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
                    there[at] = node.data[at]
                node.safe, node.dirty, node.low_bytes = bytes(there), set(), len(node.data)
            return
        now, rest, decided = list[_Change](), list[_Change](), set[tuple[_Folder, str]]()
        for change in reversed(self.pending):
            if any(folder is node for folder, _, _ in change):
                now.append(change)
                decided |= {(folder, name) for folder, name, _ in change}
            elif older := [entry for entry in change if entry[:2] not in decided]:
                rest.append(older)
        for change in reversed(now):
            _apply(change, lambda folder: folder.safe)
        self.pending = rest[::-1]


def _apply(change: _Change, names: Callable[[_Folder], dict[str, _Node]]) -> None:
    for folder, name, node in change:
        if node is None:
            names(folder).pop(name, None)
        else:
            names(folder)[name] = node


class SimHold:
    """Of a file, until it is closed or the process is dead."""

    def __init__(self, file: _File) -> None:
        self._file = file

    def close(self) -> None:
        """No call to the world: the process may be dead."""
        self._file.holder = None


class SimPlace:
    """A file or folder on a simulated disk, seen by a process.  Without one (a reader who looks on) nothing fails and no time passes."""

    def __init__(self, disk: SimDisk, path: tuple[str, ...], kernel: Kernel | None = None, process: Process | None = None) -> None:
        self._disk, self.parts, self._kernel, self._process = disk, path, kernel, process

    def _at(self, path: tuple[str, ...]) -> Self:
        return type(self)(self._disk, path, self._kernel, self._process)

    def __str__(self) -> str:
        return "/" + "/".join(self.parts)

    def __repr__(self) -> str:
        return f"SimPlace({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimPlace) and self.parts == other.parts and self._disk is other._disk

    def __hash__(self) -> int:
        return hash(self.parts)

    def __lt__(self, other: SimPlace) -> bool:
        return self.parts < other.parts

    @property
    def name(self) -> str:
        """The last part."""
        return self.parts[-1] if self.parts else ""

    @property
    def suffix(self) -> str:
        """As of a Path."""
        return os.path.splitext(self.name)[1]

    @property
    def stem(self) -> str:
        """As of a Path."""
        return os.path.splitext(self.name)[0]

    @property
    def parent(self) -> Self:
        """The folder it is in."""
        return self._at(self.parts[:-1])

    def __truediv__(self, name: str) -> Self:
        return self._at((*self.parts, *name.split("/")))

    def resolve(self) -> Self:
        """No links here."""
        return self

    def relative_to(self, other: SimPlace) -> str:
        """Parts joined by `/`."""
        assert self.parts[: len(other.parts)] == other.parts
        return "/".join(self.parts[len(other.parts) :])

    # what is there

    def _node(self) -> _Node | None:
        node: _Node = self._disk.root
        for part in self.parts:
            if not isinstance(node, _Folder) or (found := node.names.get(part)) is None:
                return None
            node = found
        return node

    def _file(self) -> _File:
        node = self._node()
        if node is None:
            raise _error(errno.ENOENT, self)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, self)
        return node

    def _folder(self) -> _Folder:
        node = self._node()
        if node is None:
            raise _error(errno.ENOENT, self)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, self)
        return node

    def _look(self, what: str, took_us: int = 20) -> None:
        """A call to the world that the disk has no part in: whether a name is there is known."""
        if self._kernel is None:
            return
        if self._kernel.trace is None:
            self._kernel.call(what, took_us)
        else:
            self._kernel.call(f"{what} {self}", took_us)
            self._kernel.say(f"{what} {self}")

    def _call(self, what: str, took_us: int = 20, writes: bool = False) -> None:
        """A call to the world; raises what the disk says today."""
        if self._kernel is None or self._process is None:
            return
        self._look(what, took_us)
        faults = self._process.faults
        if writes and faults.full[0] <= self._process.calls < faults.full[1]:
            self._fail(errno.ENOSPC, what)
        if faults.disk and self._disk.rng.random() < faults.disk:
            self._fail(errno.EIO, what)

    def _fail(self, number: int, what: str) -> None:
        assert self._process is not None
        assert self._kernel is not None
        self._process.disk_errors += 1
        self._kernel.say(f"{errno.errorcode[number]} at {what} {self}")
        raise _error(number, self)

    def exists(self) -> bool:
        """Anything."""
        self._look("exists")
        return self._node() is not None

    def is_file(self) -> bool:
        """A file."""
        self._look("is_file")
        return isinstance(self._node(), _File)

    def is_dir(self) -> bool:
        """A folder."""
        self._look("is_dir")
        return isinstance(self._node(), _Folder)

    def iterdir(self) -> Iterator[Self]:
        """In an order that is nobody's."""
        self._call("iterdir")
        names = sorted(self._folder().names)
        self._disk.rng.shuffle(names)
        return iter([self / name for name in names])

    def glob(self, pattern: str) -> Iterator[Self]:
        """As `Place.glob`."""
        self._call("glob")
        return iter([self._at((*self.parts, *path)) for path in dict.fromkeys(_found(self._node(), (), pattern.split("/")))])

    def read_bytes(self) -> bytes:
        """All of it."""
        self._call("read", WRITE_US)
        return self._file().data

    def read_text(self, encoding: str = "utf-8") -> str:
        """All of it."""
        return self.read_bytes().decode(encoding)

    def mapped(self) -> memoryview:
        """All of it."""
        return memoryview(self.read_bytes())

    def version(self) -> tuple[int, int]:
        """Time of the last change, and bytes."""
        self._call("version")
        file = self._file()
        return (EPOCH_US + file.changed_us) * 1000, len(file.data)

    # changes

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """As of a Path."""
        self._call("mkdir", WRITE_US, writes=True)
        node = self._node()
        if node is not None:
            if exist_ok and isinstance(node, _Folder):
                return
            raise _error(errno.EEXIST, self)
        if parents and self.parts and self.parent._node() is None:
            self.parent.mkdir(parents=True, exist_ok=True)
        self._named((self.parent._folder(), self.name, _Folder()))

    def _named(self, *entries: tuple[_Folder, str, _Node | None]) -> None:
        self._disk.change(*entries)
        if self._process is not None:
            self._process.names += 1

    def beside(self) -> Self:
        """A name that is like the real ones, and the same for the same seed."""
        self._disk.temporaries += 1
        return self.parent / f".{self.name}.{self._disk.temporaries:08x}.tmp"

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Chunk by chunk: a process that dies meanwhile, or a disk that is full, leaves a beginning."""
        self._call("open", WRITE_US, writes=True)
        folder, node = self.parent._folder(), self._node()
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, self)
        if node is None:
            if at:
                raise _error(errno.ENOENT, self)
            node = _File()
            self._disk.change((folder, self.name, node))
        end = at or 0
        if not end:
            self._wrote(node, b"", 0)
        for chunk in chunks:
            whole = bytes(chunk)
            try:
                self._call("write", WRITE_US, writes=True)
            except (OSError, Crash):
                whole = whole[: self._disk.rng.randint(0, len(whole))]
                raise
            finally:
                begin, end = end, end + len(whole)
                self._wrote(node, node.data[:begin].ljust(begin, b"\0") + whole + node.data[end:], begin, end)
        self._call("truncate", WRITE_US)
        self._wrote(node, node.data[:end], end)

    def _wrote(self, file: _File, data: bytes, begin: int, end: int | None = None) -> None:
        """Bytes from begin to end, or the length alone.  Also bytes that are what was there: the next fsync writes them."""
        if end is not None:
            file.dirty.update(range(begin // SECTOR_BYTES, -(-end // SECTOR_BYTES)))
        if data != file.data or not file.changed_us:
            file.dirty.add(len(data) // SECTOR_BYTES)
            file.data, file.low_bytes = data, min(file.low_bytes, len(data))
            file.changed_us = self._kernel.now_us if self._kernel is not None else 1

    def fsync(self) -> None:
        """An error means that what was not on the disk may never get there: the kernel takes it for written until it is written again."""
        try:
            self._call("fsync", writes=True)
            if self._kernel is not None and self._process is not None:
                self._kernel.wait(None, round(self._process.faults.fsync_s * US))
        except OSError:
            if isinstance(node := self._node(), _File):
                node.dirty.clear()
            raise
        node = self._node()
        if node is None:
            raise _error(errno.ENOENT, self)
        self._disk.fsync(node)

    def replace(self, to: SimPlace) -> object:
        """In one instant."""
        self._call("replace", WRITE_US, writes=True)
        node, there = self._node(), to._node()
        if node is None:
            raise _error(errno.ENOENT, self)
        if isinstance(node, _Folder) and isinstance(there, _Folder) and there.names:
            raise _error(errno.ENOTEMPTY, to)
        if there is not None and isinstance(node, _Folder) != isinstance(there, _Folder):
            raise _error(errno.EISDIR if isinstance(there, _Folder) else errno.ENOTDIR, to)
        self._named((to.parent._folder(), to.name, node), (self.parent._folder(), self.name, None))
        return to

    def remove(self) -> None:
        """A folder's content name by name."""
        self._call("remove", WRITE_US)
        node = self._node()
        if node is None:
            return
        if isinstance(node, _Folder):
            for name in list(node.names):
                (self / name).remove()
        self._disk.change((self.parent._folder(), self.name, None))

    # locks

    def lock(self) -> Lock:
        """It is free again when its process is dead."""
        self._call("lock of a file", writes=True)
        node, folder = self._node(), self.parent._folder()
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, self)
        if node is None:
            node = _File()
            self._disk.change((folder, self.name, node))
        if node.holder is not None and node.holder.alive:
            raise LockedError("another process")
        node.holder = self._process or _NOBODY
        self._wrote(node, who := b"process 1 on simulated", 0, len(who))
        return SimHold(node)

    def is_locked(self) -> bool | None:
        """By a process that lives."""
        node = self._node()
        return isinstance(node, _File) and node.holder is not None and node.holder.alive


class SimUrl(SimPlace):
    """A file or folder behind a URL: a file appears when all of it was sent, and is as durable there as it gets."""

    def beside(self) -> Self:
        """As in an object store."""
        return self

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Whole or not at all."""
        assert not at
        self._call("send", WRITE_US, writes=True)
        folder, node = self.parent._folder(), self._node()
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, self)
        if node is None:
            node = _File()
            self._disk.change((folder, self.name, node))
        self._wrote(node, whole := b"".join(map(bytes, chunks)), 0, len(whole))

    def fsync(self) -> None:
        """Nothing to wait for."""


def _found(node: _Node | None, path: tuple[str, ...], pattern: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """As `matches`, from folder to folder: most patterns are names of a few files, and looked up every second of a mirror."""
    if not pattern:
        yield path
    elif isinstance(node, _Folder):
        first, *rest = pattern
        if first == "**":
            yield from _found(node, path, rest)
        for name, below in node.names.items():
            if first == "**" or name == first or fnmatchcase(name, first):
                yield from _found(below, (*path, name), pattern if first == "**" else rest)


def _error(number: int, place: SimPlace) -> OSError:
    return OSError(number, os.strerror(number), str(place))
