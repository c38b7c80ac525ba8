"""A strategy that looks for nothing: it measures the programs that the run began with, and has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tuner.cost_model.interface import Predictor
from tuner.measure.request import Proposal, Request
from tuner.search.ask_tell import Asking
from tuner.search.epoch import BEGINNING
from tuner.search.knowledge import Knowledge
from tuner.search.population import Individual
from tuner.search.strategy import StrategyContext


class KnownPrograms:
    """A `SearchStrategy`."""

    version: ClassVar[str] = "1"

    def __init__(self, context: StrategyContext, state: bytes | None) -> None:
        del state
        self._island = context.island

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Programs alone count."""
        del models
        self._known = known

    def ask(self, epoch: int) -> Asking[None]:
        """The first island's, once."""
        if epoch == BEGINNING and self._island == 0:
            programs = {genome: by for genome, by in self._known.proposed.items() if not self._known.measured(genome)}
            if programs:
                yield [Request("program", genome, proposal=Proposal(by)) for genome, by in programs.items()]

    def elites(self) -> Sequence[Individual]:
        """None: nobody goes on from them."""
        return ()

    def state(self) -> bytes:
        """Nothing."""
        return b"-"
