"""What the search asks, and what comes back: the border between it and whoever measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.measure.evaluate import COLUMNS, Answer, Ask

_MOVED = [COLUMNS.index("ddr_read_bytes"), COLUMNS.index("ddr_write_bytes")]


@dataclass(frozen=True, eq=False)
class Question:
    """An ask, and what the log should know of it.  predicted: cycles per level, or None."""

    ask: Ask
    predicted: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """What came back; `task` is '' where nothing was measured.  answer None: the worker crashed or timed out on it."""

    question: Question
    answer: Answer | None
    task: str

    @property
    def cycles(self) -> NDArray[np.int64] | None:
        """Per level; None where nothing was measured."""
        return cycles_of(self.answer)

    @property
    def moved_bytes(self) -> int:
        """To and from DDR; 0 where nothing was measured."""
        values = None if self.answer is None else self.answer.values
        return 0 if values is None else int(values[0, _MOVED].sum())


class Measure(Protocol):
    """Puts questions to whoever measures; replies come in the order of the questions."""

    def __call__(self, questions: Sequence[Question]) -> list[Reply]: ...


def cycles_of(answer: Answer | None) -> NDArray[np.int64] | None:
    """Per level; None where nothing was measured."""
    return None if answer is None or answer.values is None else np.asarray(answer.values[:, 0], np.int64)
