"""What an island does in one epoch: it asks, remembers what it was told, and predicts the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import expected_cycles, scaled
from compiler.plan.plan import Infeasible
from compiler.planner.persistent_choice import held_by_prediction
from compiler.space.gene import Gene, Genome, Key
from compiler.space.initial import everywhere
from compiler.space.level_limits import l1_of, single_operators_at, within_level
from compiler.space.mutators import repaired
from compiler.target.level_limits import memory_grants
from simulator.npu.grant import Grant
from tuner.cost_model.interface import Predictor, predict_at
from tuner.measure.grants import NEVER
from tuner.measure.request import CYCLES, Proposal, Request, with_never
from tuner.search.ask_tell import Asking
from tuner.search.explore import unknown
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.placement import Placer, one_after_another
from tuner.search.population import Individual
from tuner.search.sharding import Shard


class SearchContext:
    """island, epoch: whose and when.  models: of every level, or None for each, where the formula predicts.

    What measures is a generator (`tuner.search.ask_tell`); `known` hears of what comes of it.
    """

    def __init__(self, rules: SearchLimits, known: Knowledge, island: int, epoch: int, models: Sequence[Predictor | None]) -> None:
        self.rules, self.known, self.island, self.epoch = rules, known, island, epoch
        self.target_graph, self.table, self.config = rules.target_graph, known.table, rules.config
        self.share = Shard(known.structures, rules.islands, island)
        self.placer = Placer(known.table, rules.levels, rules.config.placement) if rules.placing else None
        # every segment on all cores, where nothing better is expected
        self.wide = rules.wide
        self._widened: dict[tuple[Gene, int], Gene] = {}
        self.models = models
        # asked for again in every epoch: what crashes is logged wherever it is asked, so nothing may depend on who asked before
        self._raw: dict[Key, NDArray[np.float64] | None] = {}
        self.proposer = Proposal()  # of what `propose` was not told of
        self._proposals: dict[Gene | Genome, Proposal] = {}

    @property
    def by_model(self) -> bool:
        """Whether a model predicts, and not the formula."""
        return any(model is not None for model in self.models)

    def permitted(self, genome: Genome, level: int) -> Genome:
        """The genome without what a switch rules out, within what the level leaves of L1, and on all cores that it leaves where all of this
        epoch's are."""
        genome = self.rules.all_permitted(genome)
        if self.rules.less:
            genome = tuple(within_level(self.target_graph, gene, self.rules.levels[level]) for gene in genome)
        if not self.wide:
            return genome
        width = self.rules.granted[level].cores
        for gene in genome:
            if (gene, width) not in self._widened:
                self._widened[gene, width] = everywhere(self.target_graph, gene, width)
        return tuple(self._widened[gene, width] for gene in genome)

    # what levels grant

    def single_operators(self) -> Iterator[Genome]:
        """Of every grant that some level leaves, as far as they fit it."""
        for group in self.table.groups:
            genome = single_operators_at(self.target_graph, self.rules.levels[group[0]])
            if not isinstance(genome, Infeasible):
                yield genome

    def at_every_grant(self, genes: Sequence[Gene]) -> list[Gene]:
        """These, and those that are decoded within what levels leave where they do not fit that."""
        levels = [self.rules.levels[group[0]] for group in self.table.groups]
        return (
            list(dict.fromkeys(within_level(self.target_graph, gene, level) for level in levels for gene in genes))
            if self.rules.less
            else [*genes]
        )

    def fits(self, gene: Gene) -> NDArray[np.bool_]:
        """bool [levels]: which of them leave what the gene's segment needs, on cores from 0 on."""
        if not self.rules.less:
            return np.ones(len(self.models), np.bool_)
        named = memory_grants(self.target_graph.machine)[gene.grant]
        needs = Grant(l1_of(self.target_graph, gene) or named.l1_bytes, named.shared_bytes, len(gene.cores))
        return np.array([needs.fits(have) for have in self.rules.granted])

    # proposing

    def propose(self, genome: Genome, proposal: Proposal) -> None:
        """Note what a program and its segments are requested by, unless something proposed them before in this epoch."""
        self._proposals.setdefault(genome, proposal)
        for gene in genome:
            self._proposals.setdefault(gene, proposal)

    def proposal(self, of: Gene | Genome) -> Proposal:
        return self._proposals.get(of, self.proposer)

    def _inherit(self, old: Gene | Genome, new: Genome) -> None:
        """Note of what `old` became what is noted of that."""
        if (proposal := self._proposals.get(old)) is not None:
            self.propose(new, proposal)

    # measuring

    def wanted(self, genes: Sequence[Gene]) -> list[Gene]:
        """Those not measured yet, without what a switch rules out, each once."""
        allowed = [self.rules.permitted(gene) for gene in genes]
        if self.rules.wide:
            widths = {granted.cores for granted in self.rules.granted}
            cores = self.target_graph.machine.cores
            allowed = [gene if len(gene.cores) in widths else everywhere(self.target_graph, gene, cores) for gene in allowed]
        for gene, changed in zip(genes, allowed, strict=True):
            self._inherit(gene, (changed,))
        return unknown(self.table, allowed)

    def measure_segments(self, genes: Sequence[Gene], predicted: NDArray[np.float64] | None = None) -> Asking[None]:
        """predicted: float64 [genes, levels], `NEVER` where one is known not to fit a level."""
        expected = [None] * len(genes) if predicted is None else map(_foreseen, predicted)
        requests = [
            Request("segment", (gene,), predicted=cycles, proposal=self.proposal(gene))
            for gene, cycles in zip(genes, expected, strict=True)
        ]
        for gene, measurement in zip(genes, (yield requests), strict=True):
            if measurement.cycles is not None and measurement.features is not None:
                self._raw[self.known.key(gene)] = measurement.features

    def measure_programs(self, genomes: Sequence[Genome]) -> Asking[list[Individual]]:
        """Those that fit."""
        expected = map(_foreseen, self.expected(genomes))
        measurements = yield [
            Request("program", genome, predicted=cycles, proposal=self.proposal(genome))
            for genome, cycles in zip(genomes, expected, strict=True)
        ]
        found = [(genome, measurement.cycles, measurement.task) for genome, measurement in zip(genomes, measurements, strict=True)]
        return [Individual(genome, cycles, task) for genome, cycles, task in found if cycles is not None]

    # predicting

    def features(self, genes: Sequence[Gene]) -> Asking[list[NDArray[np.float64] | None]]:
        """Raw features of genes, asked for where they are not known; None where a gene does not fit."""
        keys = [self.known.key(gene) for gene in genes]
        missing = {key: gene for key, gene in zip(keys, genes, strict=True) if key not in self._raw}
        measurements = yield [Request("segment", (gene,), False, proposal=self.proposal(gene)) for gene in missing.values()]
        for key, measurement in zip(missing, measurements, strict=True):
            self._raw[key] = measurement.features if measurement.status == "ok" else None
        return [self._raw[key] for key in keys]

    def predict(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64 [n, levels]: by the cost model where there is one, else by the roofline of the features."""
        models = [model for model in self.models if model is not None]
        if len(models) == len(self.models):
            return predict_at(models, scaled(raw))
        return np.column_stack([expected_cycles(raw, level) for level in self.rules.at])

    def predicted(self, genes: Sequence[Gene], raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """`predict` of genes with these raw features; `NEVER` where one does not fit a level."""
        found = self.predict(raw)
        if self.rules.less:
            found[~np.stack([self.fits(gene) for gene in genes])] = NEVER
        return found

    def expected(self, genomes: Sequence[Genome]) -> list[NDArray[np.float64]]:
        """Predicted cycles of programs, per level: segments as measured or predicted, less what borders save, or side by side."""
        table, key = self.table, self.known.key
        keys = [[key(gene) for gene in genome] for genome in genomes]
        genes = dict(zip(chain.from_iterable(keys), chain.from_iterable(genomes), strict=True))
        unmeasured = [each for each in chain.from_iterable(keys) if table.cycles.get(each) is None]
        open_ = {each: raw for each in unmeasured if (raw := self._raw.get(each)) is not None}
        raws = np.stack(list(open_.values())) if open_ else None
        guessed = {} if raws is None else dict(zip(open_, self.predicted([genes[each] for each in open_], raws), strict=True))
        nothing, border = np.zeros(len(self.models)), self.known.border
        out = []
        for genome, mine in zip(genomes, keys, strict=True):
            known = [table.cycles.get(each) for each in mine]
            cycles = np.stack([guessed.get(each, nothing) if c is None else c for each, c in zip(mine, known, strict=True)])
            if self.placer is None or one_after_another(genome):
                out.append(cycles.sum(0) - border * (len(genome) - 1))
            else:
                out.append(self.placer.expected(genome, cycles, border))
            if self.rules.less:
                last = max(core for gene in genome for core in gene.cores)
                there = np.array([last < granted.cores for granted in self.rules.granted])
                out[-1] = np.where(there & (out[-1] < NEVER / 2), out[-1], NEVER)  # what borders save is taken off NEVER as well
        return out

    def foreseen(self, genome: Genome, level: int) -> Asking[float]:
        """What a program is expected to take at a level: by the simulator of the machine as it is described, where there is one."""
        (found,) = yield [Request("program", genome, False, proposal=self.proposal(genome))]
        if found.values is not None:
            return float(with_never(found.values[:, CYCLES])[level])
        if found.status != "ok":
            return float(NEVER)
        return float(self.expected([genome])[0][level])

    def held(self, genome: Genome, level: int) -> Genome:
        """The genome that holds what it is expected to be faster with at a level.

        Without passes beside what is held: plans from prediction, which a search begins with, have tried these, and they take too long
        for every program that is drawn.
        """
        if not self.config.use.held:
            return genome
        return held_by_prediction(self.target_graph, genome, lambda raws: self.predict(np.stack(raws))[:, level].tolist(), passes=False)

    def fastest(self, genomes: Sequence[Genome], level: int) -> int:
        """Place of the one that is expected to be fastest at a level, the first of equals."""
        return int(np.argmin([cycles[level] for cycles in self.expected(genomes)]))

    def repaired(self, genomes: Sequence[Genome]) -> Asking[list[Genome | None]]:
        """Genomes whose genes all fit: segments that do not are cut until they do.  Afterwards every gene has features or cycles."""
        todo: list[Genome | None] = list(genomes)
        while True:
            todo = [None if g is None else repaired(self.target_graph, g, self._fits) for g in todo]
            open_ = unknown(self.table, [gene for genome in todo if genome is not None for gene in genome])
            open_ = [gene for gene in open_ if self.known.key(gene) not in self._raw]
            for before, after in zip(genomes, todo, strict=True):
                if after is not None:
                    self._inherit(before, after)
            if not open_:
                return todo
            yield from self.features(open_)

    def _fits(self, gene: Gene) -> bool:
        """False for what is known not to fit; a measurement decides about the others."""
        key = self.known.key(gene)
        return self.table.cycles.get(key, True) is not None and self._raw.get(key, True) is not None


def _foreseen(cycles: NDArray[np.float64]) -> NDArray[np.float64]:
    """As the log has it: nothing at levels that do not fit."""
    return np.where(cycles < NEVER, cycles, np.nan)
