"""`--mirror URL`: a folder is copied to a URL while it grows, by a thread of its own.

What lies there can be read at any moment, as the folder itself can: nothing appears there before what it refers to.  So files are read
here in the order summary, checkpoint, models, log, tasks (a later one may be newer and never older), and written there the other way
round.  Parts are never touched again, so the next number is all there is to look for.

The search does not wait for it.  An error is said once and tried again; what is not there in the end is an error of the run's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa

from simulator.npu.errors import BadInputError, TilefarmError
from tuner.digests import text_digest
from tuner.folder.place import Place, is_url, place
from tuner.folder.runfolder import IDENTITY, read_json
from tuner.log.dataset import part_numbers

POLL_S = 1.0
MOST_S = 60.0  # between tries while it cannot be written
TRIES = 3  # at the end
_RENAMES = ("local", "hdfs")  # file systems where a file appears before it is whole, and has folders to be made

RUN_DATASETS = ("tasks", "log")
RUN_FILES = (
    "parts.json", "source.json", "config.yaml", "pieces.json", "models/**/*.ubj", "models/**/*.json", "plans/*.json", "best_tilefarm.bin",
    "best.onnx", "checkpoint/**/findings.bin", "checkpoint/**/state.json", "checkpoint/**/finals.jsonl", "summary.json",
)  # fmt: skip
"""Of a run, later ones referring to earlier ones."""


class MirrorError(TilefarmError):
    """The results are there, their copy is not."""

    exit_code = 1


class _File(NamedTuple):
    name: str
    version: tuple[int, int]  # mtime_ns, size
    data: bytes


class Mirror:
    """folder: with an identity in it; the copy may hold an earlier state of it.  datasets, files: names and globs, in order.

    Raises `BadInputError` where nothing can be written at `url`, or something else is there.  A context manager: leaving it copies what
    is left and raises `MirrorError` where that fails.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        say: Callable[[str], None],
        datasets: tuple[str, ...] = RUN_DATASETS,
        files: tuple[str, ...] = RUN_FILES,
    ) -> None:
        if not is_url(url):
            raise BadInputError(f"--mirror {url}: expected a URL such as s3://bucket/folder or file:///folder")
        to = place(url)
        assert isinstance(to, Place)
        self.folder, self.to, self._say = folder, to, say
        self._datasets, self._files = datasets, files
        self._next = dict.fromkeys(datasets, 0)
        self._there: dict[str, tuple[int, int]] = {}
        self._failing = False
        try:
            self._adopt()
            self._put(IDENTITY, (folder / IDENTITY).read_bytes())
        except (OSError, pa.ArrowException) as error:
            raise BadInputError(f"--mirror {to}: cannot be written: {_line(error)}") from None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        except MirrorError as failed:
            if error is None:
                raise
            self._say(str(failed))

    def close(self) -> None:
        """Copy what is left.  Raises `MirrorError`."""
        self._stop.set()
        self._thread.join()
        for last in range(TRIES):
            try:
                self._copy()
                return
            except (OSError, pa.ArrowException) as error:
                why = _line(error)
            if last < TRIES - 1:
                time.sleep(POLL_S * 2**last)
        raise MirrorError(f"--mirror {self.to}: not all of {self.folder} is there: {why}; --resume copies the rest")

    def _run(self) -> None:
        wait_s = POLL_S
        while not self._stop.wait(wait_s):
            try:
                self._copy()
            except (OSError, pa.ArrowException) as error:
                if not self._failing:
                    self._say(f"--mirror {self.to}: cannot be written, will be tried again: {_line(error)}")
                self._failing, wait_s = True, min(MOST_S, wait_s * 2)
            else:
                if self._failing:
                    self._say(f"--mirror {self.to}: is written again")
                self._failing, wait_s = False, POLL_S

    def _adopt(self) -> None:
        """Go on with what is there, if it is an earlier state of this folder."""
        if not (self.to / IDENTITY).is_file():
            return
        mine, theirs = read_json(self.folder / IDENTITY), read_json(self.to / IDENTITY)
        if theirs != mine:
            whose = theirs.get("run") if isinstance(theirs, dict) else "something else"
            raise BadInputError(f"--mirror {self.to}: holds {whose}; give another")
        for name in self._datasets:
            here = part_numbers(self.folder / name)
            sizes = (self.to / name).sizes()
            parts = {part for part in sizes if not part.startswith(".")}
            if more := sorted(parts - {f"{number:08d}.parquet" for number in here}):
                raise BadInputError(f"--mirror {self.to}: holds {name}/{more[0]} of {theirs['run']}, {self.folder} does not; give another")
            for number in here:
                part = f"{number:08d}.parquet"
                if sizes.get(part) != (self.folder / name / part).stat().st_size:
                    break
                self._next[name] = number + 1

    def _copy(self) -> None:
        """One round.  Raises OSError, ArrowException; what was written before stays counted."""
        files = list(self._changed())
        parts = [(name, self._published(name)) for name in reversed(self._datasets)]
        for name, stop in reversed(parts):
            for number in range(self._next[name], stop):
                part = f"{name}/{number:08d}.parquet"
                self._put(part, (self.folder / part).read_bytes())
                self._next[name] = number + 1
        for file in reversed(files):
            self._put(file.name, file.data)
            self._there[file.name] = file.version

    def _changed(self) -> Iterator[_File]:
        """Files that are not there as they are here, the last one first."""
        for pattern in reversed(self._files):
            for path in sorted(self.folder.glob(pattern), reverse=True):
                name, about = path.relative_to(self.folder).as_posix(), path.stat()
                version = about.st_mtime_ns, about.st_size
                if self._there.get(name) != version:
                    yield _File(name, version, path.read_bytes())

    def _published(self, name: str) -> int:
        """One past the last part of an unbroken row of them."""
        number = self._next[name]
        while (self.folder / name / f"{number:08d}.parquet").exists():
            number += 1
        return number

    def _put(self, name: str, data: bytes) -> None:
        """A file that is there whole or not at all."""
        to = self.to / name
        if self.to.filesystem.type_name not in _RENAMES:  # an object appears when it is complete
            with to.filesystem.open_output_stream(to.at) as sink:
                sink.write(data)
            return
        to.filesystem.create_dir(to.parent.at, recursive=True)
        staged = to.parent / f".{to.name}.{text_digest(str(self.folder))[:8]}.tmp"
        with to.filesystem.open_output_stream(staged.at) as sink:
            sink.write(data)
        to.filesystem.move(staged.at, to.at)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
