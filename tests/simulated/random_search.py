"""A strategy whose jobs cost next to nothing, for farms that have thousands of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from compiler.space.mutators import random_genome
from tuner.cost_model.interface import Predictor
from tuner.measure.request import Request
from tuner.search.ask_tell import Asking
from tuner.search.knowledge import Knowledge
from tuner.search.strategy import StrategyContext


class RandomSearch:
    """One program drawn at random by every job."""

    version: ClassVar[str] = "1"

    def __init__(self, context: StrategyContext) -> None:
        self._context = context

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Programs that are known are not measured again: what a job asks for depends on what it was told."""
        del models
        self._known = known

    def ask(self, epoch: int) -> Asking[None]:
        """One program."""
        context = self._context
        rng = np.random.default_rng([context.seed, context.shard, epoch])
        while self._known.measured(genome := context.rules.all_permitted(random_genome(context.target_graph, rng))):
            pass
        yield [Request("program", genome)]
