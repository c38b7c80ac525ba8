"""Files behind a URL with the interface of local files: `file://`, `s3://`, `gs://`, `abfs://`, `hdfs://`, all of pyarrow.fs.

Credentials come from each file system's own sources (environment variables, profiles); credentials inside a URL
(`s3://key:secret@bucket/...`) are never shown.
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

_RENAMES = ("local", "hdfs")  # file systems with visible partial files, and with folders to create


@dataclass(frozen=True, eq=False)
class RemotePath:
    """Remote `tuner.platform.files.AnyPath`.  location: path on the file system.  shown: its URL, without user and options.  listed: its
    entry in a folder's listing, if it comes from one, so that a folder is queried once.

    Queries (`is_file`, `iterdir`, ...) raise `BadInputError` if the file system does not answer.  Durability and locks are not supported.
    """

    filesystem: pafs.FileSystem
    location: str
    shown: str
    listed: pafs.FileInfo | None = None

    def __str__(self) -> str:
        return self.shown

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.filesystem, f"{self.location.rstrip('/')}/{name}", f"{self.shown.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self.location).name

    @property
    def parent(self) -> RemotePath:
        """Parent folder."""
        return RemotePath(self.filesystem, str(PurePosixPath(self.location).parent), self.shown.rstrip("/").rpartition("/")[0])

    def resolve(self) -> RemotePath:
        """Return the path itself."""
        return self

    def exists(self) -> bool:
        """Whether a file or a folder exists."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether a file or an object exists."""
        return bool(self._info().is_file)

    def is_dir(self) -> bool:
        """Whether a folder or a common prefix of objects exists."""
        from pyarrow.fs import FileType

        return bool(self._info().type == FileType.Directory)

    def _info(self) -> pafs.FileInfo:
        if self.listed is not None:
            return self.listed
        with self._looking():
            return self.filesystem.get_file_info(self.location)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            with _os_errors():
                yield
        except OSError as error:
            raise BadInputError(f"{self}: cannot be read: {' '.join(str(error).split())}") from None

    def read_bytes(self) -> bytes:
        """Read all bytes."""
        with _os_errors(), self.filesystem.open_input_stream(self.location) as source:
            return bytes(source.read())

    def mapped(self) -> memoryview:
        """Read all bytes: remote files cannot be mapped."""
        return memoryview(self.read_bytes())

    def version(self) -> tuple[int, int]:
        """Return nanoseconds of the last change by the file system, and bytes."""
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(f"{self}: no file there")
        return info.mtime_ns, info.size

    def iterdir(self) -> Iterator[RemotePath]:
        """List this folder."""
        return self._entries(recursive=False)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Find paths by one query for an entire folder, if the pattern has `**`."""
        fixed = pattern.split("/")[:-1]
        folder, tail = self, pattern
        while fixed and not set("*?[") & set(fixed[0]):
            folder, tail = folder / fixed.pop(0), tail.partition("/")[2]
        if folder.is_dir():
            entries = folder._entries(recursive="/" in tail)
            yield from (entry for entry in entries if matches(str(PurePosixPath(entry.location).relative_to(folder.location)), tail))

    def _entries(self, recursive: bool) -> Iterator[RemotePath]:
        from pyarrow.fs import FileSelector

        with self._looking():
            infos = self.filesystem.get_file_info(FileSelector(self.location, recursive=recursive))
        for info in infos:
            relative_path = PurePosixPath(info.path).relative_to(self.location)
            yield RemotePath(self.filesystem, info.path, f"{self.shown.rstrip('/')}/{relative_path}", info)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a folder; nothing to do where folders are only prefixes of names."""
        if self.filesystem.type_name not in _RENAMES:
            return
        if not exist_ok and self.exists():
            raise FileExistsError(f"{self}: is there")
        with _os_errors():
            self.filesystem.create_dir(self.location, recursive=parents)

    def beside(self) -> RemotePath:
        """Return the same temporary file always: a single process writes there, and overwrites its leftover after a kill."""
        if self.filesystem.type_name not in _RENAMES:
            return self
        return self.parent / f".{self.name}.{sha256(self.shown.encode()).hexdigest()[:8]}.tmp"

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Write a complete file only."""
        if at:
            raise OSError(f"{self}: cannot be added to")
        with _os_errors(), self.filesystem.open_output_stream(self.location) as sink:
            for chunk in chunks:
                sink.write(chunk)

    def fsync(self) -> None:
        """Do nothing: a closed file is as durable as it gets."""

    def replace(self, to: RemotePath) -> None:
        """Rename the file."""
        with _os_errors():
            self.filesystem.move(self.location, to.location)

    def remove(self) -> None:
        """Remove a file, or a folder with its content."""
        with _os_errors():
            if self.is_dir():
                self.filesystem.delete_dir(self.location)
            elif self.is_file():
                self.filesystem.delete_file(self.location)

    def lock(self) -> NoReturn:
        """Raise OSError: locks are not supported."""
        raise OSError(f"{self}: nothing can be locked there")

    def is_locked(self) -> None:
        """Return None: unknown."""


@contextmanager
def _os_errors() -> Iterator[None]:
    """Translate Arrow's errors to OSError."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise OSError(str(error)) from None


def is_url(text: str) -> bool:
    return "://" in text


def place(location: str | Path | AnyPath) -> AnyPath:
    """Path of a user's text: a path on this computer, or a URL.  Raises `BadInputError` for a URL without a file system."""
    if isinstance(location, LocalPath) or not isinstance(location, str | Path):
        return location
    return LocalPath(location) if isinstance(location, Path) or not is_url(location) else url_place(location)


def store_place(folder: str) -> AnyPath:
    """Path of `--store`: a folder, or a URL; `file://` becomes a local folder, since local files are durable and appear atomically.
    Raises `BadInputError` for a URL without a file system."""
    location = place(folder) if is_url(folder) else LocalPath(folder)
    return LocalPath(location.location) if isinstance(location, RemotePath) and location.filesystem.type_name == "local" else location


def url_place(text: str) -> RemotePath:
    """Path behind a URL.  Raises `BadInputError` for a URL without a file system."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    parts = urlsplit(text)
    public_url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    try:
        filesystem, path = FileSystem.from_uri(text)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        reason = " ".join(str(error).replace(text, public_url).split())
        raise BadInputError(f"{public_url}: {reason}; expected a path, or a URL such as file:///folder or s3://bucket/folder") from None
    return RemotePath(filesystem, path, public_url)


def url_below(url: str, name: str) -> str:
    """URL of a file or folder in the folder at `url`, which may have options behind a question mark."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))
