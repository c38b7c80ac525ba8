"""Files behind a URL, read as files here are: `file://`, `s3://`, `gs://`, `abfs://`, `hdfs://`, whatever pyarrow.fs knows.

How to log in is the business of each file system (environment variables, profiles); what a URL itself says of it
(`s3://key:secret@bucket/...`) is never shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit, urlunsplit

from simulator.npu.errors import BadInputError
from tuner.platform.files import AnyPath, matches
from tuner.platform.local_files import LocalPath

if TYPE_CHECKING:  # the command line answers without pyarrow
    import pyarrow.fs as pafs

_RENAMES = ("local", "hdfs")  # file systems where a file appears before it is whole, and has folders to be made


@dataclass(frozen=True, eq=False)
class RemotePath:
    """A `tuner.platform.files.AnyPath`.  at: its path on the file system.  shown: its URL, without user and options.  listed: what its
    folder said of it, if it was found there, so that a folder is asked once.

    Looking (`is_file`, `iterdir`, ...) raises `BadInputError` where the file system does not answer.  It cannot be asked to make a file
    durable, nor to lock one.
    """

    filesystem: pafs.FileSystem
    at: str
    shown: str
    listed: pafs.FileInfo | None = None

    def __str__(self) -> str:
        return self.shown

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.filesystem, f"{self.at.rstrip('/')}/{name}", f"{self.shown.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """Its last part."""
        return PurePosixPath(self.at).name

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in."""
        return RemotePath(self.filesystem, str(PurePosixPath(self.at).parent), self.shown.rstrip("/").rpartition("/")[0])

    def resolve(self) -> RemotePath:
        """Itself."""
        return self

    def exists(self) -> bool:
        """A file or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Or an object."""
        return bool(self._info().is_file)

    def is_dir(self) -> bool:
        """Or what objects have in common at the beginning of their names."""
        from pyarrow.fs import FileType

        return bool(self._info().type == FileType.Directory)

    def _info(self) -> pafs.FileInfo:
        if self.listed is not None:
            return self.listed
        with self._looking():
            return self.filesystem.get_file_info(self.at)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            with _os_errors():
                yield
        except OSError as error:
            raise BadInputError(f"{self}: cannot be read: {' '.join(str(error).split())}") from None

    def read_bytes(self) -> bytes:
        """All of it."""
        with _os_errors(), self.filesystem.open_input_stream(self.at) as source:
            return bytes(source.read())

    def mapped(self) -> memoryview:
        """Fetched: nothing there can be mapped."""
        return memoryview(self.read_bytes())

    def version(self) -> tuple[int, int]:
        """Nanoseconds of its last change as the file system has it, and bytes."""
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(f"{self}: no file there")
        return info.mtime_ns, info.size

    def iterdir(self) -> Iterator[RemotePath]:
        """What lies in this folder."""
        return self._below(recursive=False)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """One question for all of a folder, where the pattern has `**`."""
        fixed = pattern.split("/")[:-1]
        folder, rest = self, pattern
        while fixed and not set("*?[") & set(fixed[0]):
            folder, rest = folder / fixed.pop(0), rest.partition("/")[2]
        if folder.is_dir():
            found = folder._below(recursive="/" in rest)
            yield from (one for one in found if matches(str(PurePosixPath(one.at).relative_to(folder.at)), rest))

    def _below(self, recursive: bool) -> Iterator[RemotePath]:
        from pyarrow.fs import FileSelector

        with self._looking():
            found = self.filesystem.get_file_info(FileSelector(self.at, recursive=recursive))
        for info in found:
            below = PurePosixPath(info.path).relative_to(self.at)
            yield RemotePath(self.filesystem, info.path, f"{self.shown.rstrip('/')}/{below}", info)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing, where there are no folders but those that names begin with."""
        if self.filesystem.type_name not in _RENAMES:
            return
        if not exist_ok and self.exists():
            raise FileExistsError(f"{self}: is there")
        with _os_errors():
            self.filesystem.create_dir(self.at, recursive=parents)

    def beside(self) -> RemotePath:
        """Always the same one: one process writes there, and takes what it left when it was killed."""
        if self.filesystem.type_name not in _RENAMES:
            return self
        return self.parent / f".{self.name}.{sha256(self.shown.encode()).hexdigest()[:8]}.tmp"

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Whole files only."""
        if at:
            raise OSError(f"{self}: cannot be added to")
        with _os_errors(), self.filesystem.open_output_stream(self.at) as sink:
            for chunk in chunks:
                sink.write(chunk)

    def fsync(self) -> None:
        """Nothing: a file that was closed is as durable there as it gets."""

    def replace(self, to: RemotePath) -> None:
        """Rename."""
        with _os_errors():
            self.filesystem.move(self.at, to.at)

    def remove(self) -> None:
        """A file, or a folder with all in it."""
        with _os_errors():
            if self.is_dir():
                self.filesystem.delete_dir(self.at)
            elif self.is_file():
                self.filesystem.delete_file(self.at)

    def lock(self) -> NoReturn:
        """Not there."""
        raise OSError(f"{self}: nothing can be locked there")

    def is_locked(self) -> None:
        """Nobody can tell."""


@contextmanager
def _os_errors() -> Iterator[None]:
    """Arrow's errors as those of files."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise OSError(str(error)) from None


def is_url(text: str) -> bool:
    return "://" in text


def place(where: str | Path | AnyPath) -> AnyPath:
    """What a user named: a path on this computer, or a URL.  Raises `BadInputError` for a URL that no file system takes."""
    if isinstance(where, LocalPath) or not isinstance(where, str | Path):
        return where
    return LocalPath(where) if isinstance(where, Path) or not is_url(where) else url_place(where)


def store_place(where: str) -> AnyPath:
    """What `--store` names: a folder, or a URL, of which `file://` is a folder: what is written there is made durable, and appears in one
    instant.  Raises `BadInputError` for a URL that no file system takes."""
    found = place(where) if is_url(where) else LocalPath(where)
    return LocalPath(found.at) if isinstance(found, RemotePath) and found.filesystem.type_name == "local" else found


def url_place(text: str) -> RemotePath:
    """What is behind a URL.  Raises `BadInputError` where no file system takes it."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    parts = urlsplit(text)
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    try:
        filesystem, at = FileSystem.from_uri(text)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        why = " ".join(str(error).replace(text, shown).split())
        raise BadInputError(f"{shown}: {why}; expected a path, or a URL such as file:///folder or s3://bucket/folder") from None
    return RemotePath(filesystem, at, shown)


def url_below(url: str, name: str) -> str:
    """The URL of a file or folder in the folder at `url`, which may have options behind a question mark."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))
