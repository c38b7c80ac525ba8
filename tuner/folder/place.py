"""Files behind a URL, read as files here are: `file://`, `s3://`, `gs://`, `abfs://`, `hdfs://`, whatever pyarrow.fs knows.

Readers take a `Folder`, a Path or a `Place`; a place has as much of Path as they use.  How to log in is the business of each file system
(environment variables, profiles); what a URL itself says of it (`s3://key:secret@bucket/...`) is never shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from simulator.npu.errors import BadInputError

if TYPE_CHECKING:  # the command line answers without pyarrow
    import pyarrow.fs as pafs


@dataclass(frozen=True, eq=False)
class Place:
    """A file or folder.  at: its path on the file system.  shown: its URL, without user and options."""

    filesystem: pafs.FileSystem
    at: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    def __truediv__(self, name: str) -> Place:
        return Place(self.filesystem, f"{self.at.rstrip('/')}/{name}", f"{self.shown.rstrip('/')}/{name}")

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(self.at).parts

    @property
    def name(self) -> str:
        return PurePosixPath(self.at).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.at).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.at).suffix

    @property
    def parent(self) -> Place:
        return Place(self.filesystem, str(PurePosixPath(self.at).parent), self.shown.rstrip("/").rpartition("/")[0])

    def relative_to(self, other: Place) -> PurePosixPath:
        return PurePosixPath(self.at).relative_to(other.at)

    def resolve(self) -> Place:
        return self

    def is_file(self) -> bool:
        return bool(self._info().is_file)

    def is_dir(self) -> bool:
        from pyarrow.fs import FileType

        return bool(self._info().type == FileType.Directory)

    def _info(self) -> pafs.FileInfo:
        import pyarrow as pa

        try:
            return self.filesystem.get_file_info(self.at)
        except (OSError, pa.ArrowException) as error:
            raise BadInputError(f"{self}: cannot be read: {' '.join(str(error).split())}") from None

    def read_bytes(self) -> bytes:
        """Raises OSError."""
        with self.filesystem.open_input_stream(self.at) as source:
            return bytes(source.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Raises OSError."""
        return self.read_bytes().decode(encoding)

    def iterdir(self) -> Iterator[Place]:
        return self._below(recursive=False)

    def rglob(self, name: str) -> Iterator[Place]:
        """Files of that name, not a pattern, in this folder or below."""
        return (found for found in self._below(recursive=True) if found.name == name)

    def sizes(self) -> dict[str, int]:
        """Bytes of the files in this folder by name; {} where there is no folder."""
        from pyarrow.fs import FileSelector

        found = self.filesystem.get_file_info(FileSelector(self.at, allow_not_found=True))
        return {info.base_name: info.size for info in found if info.is_file}

    def _below(self, recursive: bool) -> Iterator[Place]:
        import pyarrow as pa
        from pyarrow.fs import FileSelector

        try:
            found = self.filesystem.get_file_info(FileSelector(self.at, recursive=recursive))
        except (OSError, pa.ArrowException) as error:
            raise BadInputError(f"{self}: cannot be read: {' '.join(str(error).split())}") from None
        for info in found:
            below = PurePosixPath(info.path).relative_to(self.at)
            yield Place(self.filesystem, info.path, f"{self.shown.rstrip('/')}/{below}")


Folder = Path | Place


def is_url(text: str) -> bool:
    return "://" in text


def place(text: str) -> Folder:
    """What a user named: a path on this computer, or a URL.  Raises `BadInputError` for a URL that no file system takes."""
    if not is_url(text):
        return Path(text)
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    parts = urlsplit(text)
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    try:
        filesystem, at = FileSystem.from_uri(text)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        why = " ".join(str(error).replace(text, shown).split())
        raise BadInputError(f"{shown}: {why}; expected a path, or a URL such as file:///folder or s3://bucket/folder") from None
    return Place(filesystem, at, shown)


def url_below(url: str, name: str) -> str:
    """The URL of a file or folder in the folder at `url`, which may have options behind a question mark."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))
