"""Mirror of a folder (`--mirror URL`): copied to a URL while it grows, beside the driver.

The copy can be read at any moment, as the folder itself: no file appears before the files it refers to.  So files are read in the order
summary, checkpoint, models, log, tasks (a later one may be newer and never older), and written in the opposite order.  Parts never change,
so only the next number is looked for.

The search does not wait for the mirror.  An error is reported once and tried again; an incomplete copy at the end is an error of the run.
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
MOST_S = 60.0  # longest wait between tries
TRIES = 3  # attempts at the end
_FAILS = (OSError, BadInputError)  # raised by listings and by reads of counts

RUN_DATASETS = ("tasks", "log")
RUN_FILES = (
    "parts.json", "machine.yaml", "source.json", "config.yaml", "pieces.json", "models/**/*.model", "models/**/*.json",
    "plans/**/*.json", "best_tilefarm.bin", "best.*", "checkpoint/**/findings.bin", "checkpoint/**/state.json",
    "checkpoint/**/finals.jsonl", "farm.json", "summary.json",
)  # fmt: skip
"""Files of a run; later ones refer to earlier ones."""


class MirrorError(TilefarmError):
    """Error of an incomplete copy of complete results."""

    exit_code = 1


class _File(NamedTuple):
    name: str
    version: tuple[int, int]  # mtime_ns, size
    data: bytes


def mirror_place(url: str) -> RemotePath:
    """Place of `--mirror`.  Raises `BadInputError` for text that is no URL, or one without a file system."""
    if not is_url(url):
        raise BadInputError(f"--mirror {url}: expected a URL such as s3://bucket/folder or file:///folder")
    return url_place(url)


class Mirror:
    """Copier of `folder`, which has an identity, to `target`, which may hold an earlier state.  datasets, files: names and globs, in order.

    Raises `BadInputError` if `target` cannot be written, or holds something else.  A context manager: on leaving it copies the
    remaining files and raises `MirrorError` on failure.
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
        self.folder, self.target, self._clock, self._say = folder, to, world.clock, say
        self._datasets, self._files = datasets, files
        self._next = dict.fromkeys(datasets, 0)
        self._copied: dict[str, tuple[int, int]] = {}
        self._failing, self._wait_s = False, POLL_S
        try:
            self._adopt()
            self._write(IDENTITY, (folder / IDENTITY).read_bytes())
        except OSError as error:
            raise BadInputError(f"--mirror {to}: cannot be written: {_line(error)}") from None
        self._steps = world.threads.repeat("mirror", self._step, POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except MirrorError as failed:
            if error is None:
                raise
            self._say(str(failed))

    def close(self) -> None:
        """Copy the remaining files.  Raises `MirrorError`."""
        self._steps.close()
        for last in range(TRIES):
            try:
                self._copy()
                return
            except _FAILS as error:
                reason = _line(error)
            if last < TRIES - 1:
                self._clock.sleep(POLL_S * 2**last)
        raise MirrorError(f"--mirror {self.target}: not all of {self.folder} is there: {reason}; --resume copies the rest")

    def _step(self) -> float:
        try:
            self._copy()
        except _FAILS as error:
            if not self._failing:
                self._say(f"--mirror {self.target}: cannot be written, will be tried again: {_line(error)}")
            self._failing, self._wait_s = True, min(MOST_S, self._wait_s * 2)
        else:
            if self._failing:
                self._say(f"--mirror {self.target}: is written again")
            self._failing, self._wait_s = False, POLL_S
        return self._wait_s

    def _adopt(self) -> None:
        """Continue an existing copy, if it is an earlier state of this folder."""
        if not (self.target / IDENTITY).is_file():
            return
        identity, copied = read_json(self.folder / IDENTITY), read_json(self.target / IDENTITY)
        if copied != identity:
            owner = copied.get("run") if isinstance(copied, dict) else "something else"
            raise BadInputError(f"--mirror {self.target}: holds {owner}; give another")
        for name in self._datasets:
            numbers = part_numbers(self.folder / name)
            sizes = _sizes(self.target / name)
            parts = {part for part in sizes if not part.startswith(".")}
            # part 0 has no rows; a session without results removes its own
            if unknown := sorted(parts - {part_name(number) for number in (0, *numbers)}):
                raise BadInputError(
                    f"--mirror {self.target}: holds {name}/{unknown[0]} of {copied['run']}, {self.folder} does not; give another"
                )
            for number in numbers:
                part = part_name(number)
                if sizes.get(part) != (self.folder / name / part).version()[1]:
                    break
                self._next[name] = number + 1

    def _copy(self) -> None:
        """Copy one round.  Raises `_FAILS`; earlier files stay counted."""
        files = list(self._changed_files())
        parts = [(name, self._published(name)) for name in reversed(self._datasets)]
        for name, stop in reversed(parts):
            for number in range(self._next[name], stop):
                part = f"{name}/{part_name(number)}"
                self._write(part, (self.folder / part).read_bytes())
                self._next[name] = number + 1
        for file in reversed(files):
            self._write(file.name, file.data)
            self._copied[file.name] = file.version

    def _changed_files(self) -> Iterator[_File]:
        """Files that differ from their copies, the last one first."""
        for pattern in reversed(self._files):
            for path in sorted(self.folder.glob(pattern), key=str, reverse=True):
                name, version = str(path).removeprefix(f"{self.folder}/"), path.version()
                if self._copied.get(name) != version:
                    yield _File(name, version, path.read_bytes())

    def _published(self, name: str) -> int:
        """Number of counted parts: an uncounted part may vanish in a crash."""
        return (read_counts(self.folder) or {}).get(name, Count()).parts

    def _write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        target = self.target / name
        target.parent.mkdir(parents=True, exist_ok=True)
        put_atomically(target, [data])


def _sizes(folder: AnyPath) -> dict[str, int]:
    """Sizes of the folder's files by name; {} without a folder."""
    return {path.name: path.version()[1] for path in folder.iterdir() if path.is_file()} if folder.is_dir() else {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
