"""Strategy without a search: measures the run's initial programs, then ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tuner.cost_model.interface import Predictor
from tuner.measure.request import Proposal, Request
from tuner.search.ask_tell import Asking
from tuner.search.epoch import BEGINNING
from tuner.search.knowledge import Knowledge
from tuner.search.strategy import StrategyContext


class KnownPrograms:
    """Replay of programs: a `SearchStrategy`."""

    version: ClassVar[str] = "1"

    def __init__(self, context: StrategyContext) -> None:
        self._island = context.shard

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Keep the knowledge; only its programs are used."""
        del models
        self._known = known

    def ask(self, epoch: int) -> Asking[None]:
        """Request the programs once, in the first job."""
        if epoch == BEGINNING and self._island == 0:
            programs = {genome: proposer for genome, proposer in self._known.proposed.items() if not self._known.measured(genome)}
            if programs:
                yield [Request("program", genome, proposal=Proposal(proposer)) for genome, proposer in programs.items()]
