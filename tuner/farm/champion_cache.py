"""A retrained model needs no search: the store has champions of the same computation, and those are measured.

They replace the search if they come from another model file with the same computation, and from a search at least as long as this one would
be.  If the same file is searched again, it is searched: the store makes that cheap, and the log is the same with the store or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compiler.model import LoweredModel
from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode_all
from compiler.space.encode import genome_of
from compiler.space.gene import Genome
from compiler.space.operator_order import ordered
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from tuner.config import BudgetSettings, TuneConfig
from tuner.farm.store_client import Scopes
from tuner.farm.subgraph_searches import searches
from tuner.platform.files import AnyPath
from tuner.runs.folder import IDENTITY, initial_lines
from tuner.store.champions import Champion, StoredChampions, read_champions
from tuner.store.packs import Conditions


class KnownChampions(NamedTuple):
    """Champions from the store.  messages: entry of `run.json`, names in the store.  genomes: by search; () where a search is needed."""

    messages: tuple[str, ...] = ()
    genomes: tuple[tuple[Genome, ...], ...] = ()
    line: str = ""

    def start_genomes(self, search: int) -> tuple[Genome, ...]:
        """Programs measured in the place of a search; () where one runs."""
        return self.genomes[search] if self.genomes else ()


def read_known(
    root: AnyPath, lowered: LoweredModel, config: TuneConfig, conditions: Conditions, out: AnyPath, resume: bool
) -> KnownChampions:
    """Champions for every search of a model, or none.  Raises `BadInputError` if a resumed run began with other champions."""
    began = initial_lines(out, "champions") if resume and (out / IDENTITY).is_file() else None
    if began == ():
        return KnownChampions()
    names, genomes, runs = list[str](), list[tuple[Genome, ...]](), dict[str, None]()
    for search in searches(lowered, ""):
        target_graph = ordered(lowered.target_graphs[search.pieces[0]], config.search.order)
        try:
            candidates = [*read_champions(root / conditions.folder, Scopes(target_graph).model_scope)]
        except BadInputError as error:
            raise BadInputError(f"--store {error}") from None
        if began is None:
            usable = [
                (name, champion)
                for name, champion in candidates
                if champion.model_digest != lowered.digest and _has_equal_budget(champion, config.budget)
            ]
        else:
            usable = [(name, champion) for name, champion in candidates if name in began]
        best_plans = _best([champion for _, champion in usable], conditions.levels)
        piece_genomes = [genome for plan in best_plans if (genome := _genome(target_graph, plan)) is not None]
        if not piece_genomes or len(piece_genomes) < len(best_plans):
            if began is None:
                return KnownChampions()
            raise BadInputError(
                f"--store {root}: {out} began with its champions {', '.join(began)}, which are not there; give another --out"
            )
        names += [name for name, _ in usable]
        genomes.append(tuple(dict.fromkeys(piece_genomes)))
        runs |= dict.fromkeys(f"run {champion.run} of {champion.model} ({champion.programs:,} programs)" for _, champion in usable)
    messages = f"store {root}: {', '.join(runs)} searched the same computation with other weights"
    return KnownChampions(tuple(names), tuple(genomes), f"{messages}: its champions are measured, a larger budget searches")


def _has_equal_budget(champion: StoredChampions, budget: BudgetSettings) -> bool:
    """Whether the stored search had at least this budget; False for a time budget, which cannot be compared."""
    budgets = {"candidates": champion.programs, "measurements": champion.readings, "seconds": float("inf")}
    return budgets[budget.kind] >= budget.amount


def _best(champions: Sequence[StoredChampions], levels: Sequence[str]) -> list[Plan]:
    """Fastest champion of every level, ties to the least digest, and the robust programs of their runs; each once."""
    plans = dict[str, Plan]()
    for level in levels:
        level_champions = [champion for champion in champions if level in champion.of]
        if level_champions:
            best = min(level_champions, key=lambda champion: _rank(champion.of[level], level))
            for plan in (best.of[level].plan, best.robust):
                if plan is not None:
                    plans[plan.digest] = plan
    return list(plans.values())


def _rank(champion: Champion, level: str) -> tuple[int, str]:
    return champion.cycles[level], champion.plan.digest


def _genome(target_graph: TargetGraph, plan: Plan) -> Genome | None:
    """Genome of a plan; None if the plan belongs to another target graph, or does not fit."""
    genome = genome_of(target_graph, plan)
    return None if genome is None or isinstance(decode_all(target_graph, genome), Infeasible) else genome
