"""`--mirror URL`: a folder is copied to a URL while it grows, beside the driver.

What lies there can be read at any moment, as the folder itself can: nothing appears there before what it refers to.  So files are read
here in the order summary, checkpoint, models, log, tasks (a later one may be newer and never older), and written there the other way
round.  Parts are never touched again, so the next number is all there is to look for.

The search does not wait for it.  An error is said once and tried again; what is not there in the end is an error of the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import put_atomically
from tuner.log.dataset import part_numbers
from tuner.log.part import part_name
from tuner.log.part_counts import Count, read_counts
from tuner.platform.files import AnyPath
from tuner.platform.interfaces import Platform
from tuner.platform.remote_files import RemotePath, is_url, url_place
from tuner.runs.folder import IDENTITY, read_json

POLL_S = 1.0
MOST_S = 60.0  # between tries while it cannot be written
TRIES = 3  # at the end
_FAILS = (OSError, BadInputError)  # whoever looks, or reads what is counted, says it so

RUN_DATASETS = ("tasks", "log")
RUN_FILES = (
    "parts.json", "machine.yaml", "source.json", "config.yaml", "pieces.json", "models/**/*.model", "models/**/*.json",
    "plans/**/*.json", "best_tilefarm.bin", "best.onnx", "checkpoint/**/findings.bin", "checkpoint/**/state.json",
    "checkpoint/**/finals.jsonl", "summary.json",
)  # fmt: skip
"""Of a run, later ones referring to earlier ones."""


class MirrorError(TilefarmError):
    """The results are there, their copy is not."""

    exit_code = 1


class _File(NamedTuple):
    name: str
    version: tuple[int, int]  # mtime_ns, size
    data: bytes


def mirror_place(url: str) -> RemotePath:
    """What `--mirror` names.  Raises `BadInputError` for what is no URL, or one that no file system takes."""
    if not is_url(url):
        raise BadInputError(f"--mirror {url}: expected a URL such as s3://bucket/folder or file:///folder")
    return url_place(url)


class Mirror:
    """folder: with an identity in it; the copy, `to`, may hold an earlier state of it.  datasets, files: names and globs, in order.

    Raises `BadInputError` where nothing can be written at `to`, or something else is there.  A context manager: leaving it copies what
    is left and raises `MirrorError` where that fails.
    """

    def __init__(
        self,
        folder: AnyPath,
        to: AnyPath,
        world: Platform,
        say: Callable[[str], None],
        datasets: tuple[str, ...] = RUN_DATASETS,
        files: tuple[str, ...] = RUN_FILES,
    ) -> None:
        self.folder, self.to, self._clock, self._say = folder, to, world.clock, say
        self._datasets, self._files = datasets, files
        self._next = dict.fromkeys(datasets, 0)
        self._there: dict[str, tuple[int, int]] = {}
        self._failing, self._wait_s = False, POLL_S
        try:
            self._adopt()
            self._put(IDENTITY, (folder / IDENTITY).read_bytes())
        except OSError as error:
            raise BadInputError(f"--mirror {to}: cannot be written: {_line(error)}") from None
        self._steps = world.threads.repeat("mirror", self._step, POLL_S)

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
        self._steps.close()
        for last in range(TRIES):
            try:
                self._copy()
                return
            except _FAILS as error:
                why = _line(error)
            if last < TRIES - 1:
                self._clock.sleep(POLL_S * 2**last)
        raise MirrorError(f"--mirror {self.to}: not all of {self.folder} is there: {why}; --resume copies the rest")

    def _step(self) -> float:
        try:
            self._copy()
        except _FAILS as error:
            if not self._failing:
                self._say(f"--mirror {self.to}: cannot be written, will be tried again: {_line(error)}")
            self._failing, self._wait_s = True, min(MOST_S, self._wait_s * 2)
        else:
            if self._failing:
                self._say(f"--mirror {self.to}: is written again")
            self._failing, self._wait_s = False, POLL_S
        return self._wait_s

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
            sizes = _sizes(self.to / name)
            parts = {part for part in sizes if not part.startswith(".")}
            # part 0 has no rows; a session that ended before it had any took its own away again
            if more := sorted(parts - {part_name(number) for number in (0, *here)}):
                raise BadInputError(f"--mirror {self.to}: holds {name}/{more[0]} of {theirs['run']}, {self.folder} does not; give another")
            for number in here:
                part = part_name(number)
                if sizes.get(part) != (self.folder / name / part).version()[1]:
                    break
                self._next[name] = number + 1

    def _copy(self) -> None:
        """One round.  Raises `_FAILS`; what was written before stays counted."""
        files = list(self._changed())
        parts = [(name, self._published(name)) for name in reversed(self._datasets)]
        for name, stop in reversed(parts):
            for number in range(self._next[name], stop):
                part = f"{name}/{part_name(number)}"
                self._put(part, (self.folder / part).read_bytes())
                self._next[name] = number + 1
        for file in reversed(files):
            self._put(file.name, file.data)
            self._there[file.name] = file.version

    def _changed(self) -> Iterator[_File]:
        """Files that are not there as they are here, the last one first."""
        for pattern in reversed(self._files):
            for path in sorted(self.folder.glob(pattern), key=str, reverse=True):
                name, version = str(path).removeprefix(f"{self.folder}/"), path.version()
                if self._there.get(name) != version:
                    yield _File(name, version, path.read_bytes())

    def _published(self, name: str) -> int:
        """One past the last part that is counted: another one may be there, and be gone when the computer goes down."""
        return (read_counts(self.folder) or {}).get(name, Count()).parts

    def _put(self, name: str, data: bytes) -> None:
        """A file that is there whole or not at all."""
        to = self.to / name
        to.parent.mkdir(parents=True, exist_ok=True)
        put_atomically(to, [data])


def _sizes(folder: AnyPath) -> dict[str, int]:
    """Bytes of the files in it by name; {} where there is no folder."""
    return {path.name: path.version()[1] for path in folder.iterdir() if path.is_file()} if folder.is_dir() else {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
