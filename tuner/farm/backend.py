"""Where work is done, seen from the driver: items go in, outcomes come out in the order of submission.

The order is the contract that makes a run the same for any number of workers: whatever finishes first, the search is
told item 0, then item 1, ...  `SerialBackend` is here; `tuner.farm.actors.RayBackend` does the same with actors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

TARGET_BATCH_S = 0.035  # long against a call's 0.6 ms, short against a generation
MAX_BATCH = 4096
PIECES = 16
DIED = "the worker process died"
DEATHS_ALONE = 2  # that make a lone item a crash


class Worker(Protocol[T, R_co]):
    """Holds what is expensive to build (graph, machine, caches); `run` is pure: one result per item, in order."""

    def run(self, batch: list[T], /) -> Sequence[R_co]: ...


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What became of one item.  `value` is the worker's result when `status` is ok, else None and `error` says why.

    `attempt`: how often a worker died on this item before.  `wall_s`: its share of the batch's wall time.
    """

    status: Literal["ok", "crash", "timeout"]
    value: R | None
    error: str | None
    worker: str
    wall_s: float
    attempt: int = 0


class Backend(Protocol[T_contra, R]):
    """Submit items, collect outcomes in the same order.  A context manager: leaving it frees the workers."""

    @property
    def workers(self) -> int: ...

    @property
    def outstanding(self) -> int:
        """Items submitted and not collected."""
        ...

    def submit(self, items: Iterable[T_contra]) -> None: ...

    def collect(self, count: int) -> list[Outcome[R]]:
        """The next `count` outcomes, in the order of submission; waits for them."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def map_ordered(backend: Backend[T, R], items: Iterable[T], ahead: int = 1024) -> Iterator[Outcome[R]]:
    """Outcomes of `items` in their order; `items` is read at most `ahead` beyond what was yielded."""
    source = iter(items)
    for item in source:
        backend.submit([item])
        if backend.outstanding >= ahead:
            yield from backend.collect(1)
    while backend.outstanding:
        yield from backend.collect(1)


class BatchSizer:
    """How many items make a batch of `TARGET_BATCH_S`, from measured time.  Sizes change speed, never results."""

    def __init__(self, limit: int = MAX_BATCH) -> None:
        self.limit = limit
        self.item_s: float | None = None

    def note(self, items: int, wall_s: float) -> None:
        """A batch took this long; newer batches count for more."""
        now = wall_s / items
        self.item_s = now if self.item_s is None else 0.7 * self.item_s + 0.3 * now

    def size(self, waiting: int, slots: int) -> int:
        """Items for the next batch: the target time, and not more than a fair share of what waits."""
        fair = -(-waiting // max(1, slots))
        if self.item_s is None:
            return 1
        return max(1, min(self.limit, fair, int(TARGET_BATCH_S / max(self.item_s, 1e-9))))


def pieces(batch: list[int]) -> list[list[int]]:
    """Split a batch that killed its worker.  In 16, not in 2: a new worker costs seconds, a call under a millisecond."""
    step = max(1, -(-len(batch) // PIECES))
    return [batch[at : at + step] for at in range(0, len(batch), step)]


class SerialBackend(Generic[T, R]):
    """Everything in this process, without Ray.

    An exception in the worker becomes a `crash` of the item that raises it; a process that dies or hangs is not
    survived: that needs `RayBackend`.
    """

    workers = 1

    def __init__(self, make_worker: Callable[[], Worker[T, R]]) -> None:
        self._worker = make_worker()
        self._waiting: deque[T] = deque()
        self._done: deque[Outcome[R]] = deque()
        self._sizer = BatchSizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def outstanding(self) -> int:
        return len(self._waiting) + len(self._done)

    def submit(self, items: Iterable[T]) -> None:
        self._waiting.extend(items)

    def collect(self, count: int) -> list[Outcome[R]]:
        if count > self.outstanding:
            raise ValueError(f"collect({count}) with {self.outstanding} items outstanding")
        while len(self._done) < count:
            size = min(self._sizer.size(len(self._waiting), 1), count - len(self._done))
            self._run([self._waiting.popleft() for _ in range(size)])
        return [self._done.popleft() for _ in range(count)]

    def close(self) -> None:
        self._waiting.clear()
        self._done.clear()

    def _run(self, batch: list[T]) -> None:
        start = time.perf_counter()
        try:
            values = self._worker.run(batch)
        except Exception as error:  # noqa: BLE001  one bad candidate must not end the run; its outcome says what it was
            if len(batch) > 1:
                for part in pieces(list(range(len(batch)))):
                    self._run([batch[i] for i in part])
                return
            wall_s = time.perf_counter() - start
            self._done.append(Outcome("crash", None, one_line(error), "driver", wall_s))
            return
        wall_s = time.perf_counter() - start
        self._sizer.note(len(batch), wall_s)
        share = wall_s / len(batch)
        self._done.extend(Outcome("ok", value, None, "driver", share) for _, value in zip(batch, values, strict=True))


def one_line(error: BaseException) -> str:
    """An exception as the log shows it."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
