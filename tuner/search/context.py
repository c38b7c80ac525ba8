"""Services for one job of a strategy: requests, memory of measurements, predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import ceil

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import expected_cycles, scale_features
from compiler.plan.plan import Infeasible
from compiler.planner.persistent_choice import choose_by_prediction
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
from tuner.search.epoch import EVOLVING
from tuner.search.explore import unmeasured_genes
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.placement import Placer, runs_in_sequence
from tuner.search.sharding import Shard


class SearchContext:
    """Context of one job: a shard of an epoch.  models: model of every level; None: the formula predicts.

    explores: whether the job measures new segments, and programs made of them; the others grow children.

    Methods that measure are generators (`tuner.search.ask_tell`); `known` is updated with the measurements.
    """

    def __init__(
        self, rules: SearchLimits, knowledge: Knowledge, shard: int, epoch: int, seed: int, models: Sequence[Predictor | None]
    ) -> None:
        self.rules, self.known, self.shard, self._seed = rules, knowledge, shard, (seed, epoch, shard)
        self.rng = self.generator(0)
        self.turn = max(0, epoch - EVOLVING)  # epochs with children before this one
        self.number = self.turn * rules.shards + shard  # jobs with children before this one
        self.target_graph, self.table, self.config = rules.target_graph, knowledge.table, rules.config
        earlier, earlier_share = self._explorers(self.turn * rules.shards), self._explorers(self.number)
        self.explores = self._explorers(self.number + 1) > earlier_share
        explorers = self._explorers((self.turn + 1) * rules.shards) - earlier
        self.share = Shard(knowledge.structures, max(1, explorers), earlier_share - earlier)  # of those that explore
        self.placer = Placer(knowledge.table, rules.levels, rules.config.placement) if rules.placing else None
        # every segment on all cores, unless a placement is expected to be better
        self.wide = rules.wide
        self._widened: dict[tuple[Gene, int], Gene] = {}
        self.models = models
        # requested again in every job: crashes are logged at each request, so results must not depend on earlier requests
        self._raw: dict[Key, NDArray[np.float64] | None] = {}
        self.proposer = Proposal()  # for requests without a proposal of their own
        self._proposals: dict[Gene | Genome, Proposal] = {}

    @property
    def has_model(self) -> bool:
        """Whether a model predicts, not the formula."""
        return any(model is not None for model in self.models)

    def _explorers(self, jobs: int) -> int:
        """Number of those that explore among the first `jobs` jobs."""
        return ceil(round(jobs * self.rules.config.search.proposed, 6))

    def generator(self, number: int) -> np.random.Generator:
        """Generator of random numbers of this job, independent of those of other numbers."""
        return np.random.default_rng([*self._seed, number])

    def permitted(self, genome: Genome, level: int) -> Genome:
        """Genome without switched-off options, within the level's L1, and on all granted cores if all genomes of this job are."""
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

    # grants of levels

    def single_operators(self) -> Iterator[Genome]:
        """Genomes of single operators for every grant of some level, if they fit."""
        for group in self.table.groups:
            genome = single_operators_at(self.target_graph, self.rules.levels[group[0]])
            if not isinstance(genome, Infeasible):
                yield genome

    def limit_to_grants(self, genes: Sequence[Gene]) -> list[Gene]:
        """Genes together with their variants limited to the grants of levels."""
        levels = [self.rules.levels[group[0]] for group in self.table.groups]
        return (
            list(dict.fromkeys(within_level(self.target_graph, gene, level) for level in levels for gene in genes))
            if self.rules.less
            else [*genes]
        )

    def fits(self, gene: Gene) -> NDArray[np.bool_]:
        """Levels, bool [levels], that grant the needs of the gene's segment, on cores from 0 on."""
        if not self.rules.less:
            return np.ones(len(self.models), np.bool_)
        memory = memory_grants(self.target_graph.machine)[gene.grant]
        requirement = Grant(l1_of(self.target_graph, gene) or memory.l1_bytes, memory.shared_bytes, len(gene.cores))
        return np.array([requirement.fits(granted) for granted in self.rules.granted])

    # proposing

    def propose(self, candidate: Gene | Genome, proposal: Proposal) -> None:
        """Note the proposal of a segment, or of a program and its segments, unless an earlier one of this job exists."""
        parts: tuple[Gene | Genome, ...] = (candidate,) if isinstance(candidate, Gene) else (candidate, *candidate)
        for part in parts:
            self._proposals.setdefault(part, proposal)

    def proposal(self, candidate: Gene | Genome) -> Proposal:
        return self._proposals.get(candidate, self.proposer)

    def _inherit(self, old: Gene | Genome, new: Gene | Genome) -> None:
        """Give `new` the proposal of `old`."""
        if (proposal := self._proposals.get(old)) is not None:
            self.propose(new, proposal)

    # measuring

    def unmeasured(self, genes: Sequence[Gene]) -> list[Gene]:
        """Unmeasured genes, without switched-off options, each once."""
        permitted_genes = [self.rules.permitted(gene) for gene in genes]
        if self.rules.wide:
            widths = {granted.cores for granted in self.rules.granted}
            cores = self.target_graph.machine.cores
            permitted_genes = [
                gene if len(gene.cores) in widths else everywhere(self.target_graph, gene, cores) for gene in permitted_genes
            ]
        for gene, permitted_gene in zip(genes, permitted_genes, strict=True):
            self._inherit(gene, permitted_gene)
        return unmeasured_genes(self.table, permitted_genes)

    def measure_segments(self, genes: Sequence[Gene], predicted: NDArray[np.float64] | None = None) -> Asking[None]:
        """Measure segments.  predicted: float64 [genes, levels], `NEVER` where a gene is known not to fit a level."""
        expected = [None] * len(genes) if predicted is None else map(_logged_prediction, predicted)
        requests = [
            Request("segment", (gene,), predicted=cycles, proposal=self.proposal(gene))
            for gene, cycles in zip(genes, expected, strict=True)
        ]
        for gene, measurement in zip(genes, (yield requests), strict=True):
            if measurement.cycles is not None and measurement.features is not None:
                self._raw[self.known.key(gene)] = measurement.features

    def measure_programs(self, genomes: Sequence[Genome]) -> Asking[None]:
        expected = map(_logged_prediction, self.expected(genomes))
        yield [
            Request("program", genome, predicted=cycles, proposal=self.proposal(genome))
            for genome, cycles in zip(genomes, expected, strict=True)
        ]

    # predicting

    def features(self, genes: Sequence[Gene]) -> Asking[list[NDArray[np.float64] | None]]:
        """Raw features of genes, requested if unknown; None for a gene that does not fit."""
        keys = [self.known.key(gene) for gene in genes]
        missing = {key: gene for key, gene in zip(keys, genes, strict=True) if key not in self._raw}
        measurements = yield [Request("segment", (gene,), False, proposal=self.proposal(gene)) for gene in missing.values()]
        for key, measurement in zip(missing, measurements, strict=True):
            self._raw[key] = measurement.features if measurement.status == "ok" else None
        return [self._raw[key] for key in keys]

    def predict(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predictions, float64 [n, levels]: by the cost model if present, else by the roofline of the features."""
        models = [model for model in self.models if model is not None]
        if len(models) == len(self.models):
            return predict_at(models, scale_features(raw))
        return np.column_stack([expected_cycles(raw, level) for level in self.rules.at])

    def predicted(self, genes: Sequence[Gene], raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predictions for genes with these raw features; `NEVER` where a gene does not fit a level."""
        cycles = self.predict(raw)
        if self.rules.less:
            cycles[~np.stack([self.fits(gene) for gene in genes])] = NEVER
        return cycles

    def expected(self, genomes: Sequence[Genome]) -> list[NDArray[np.float64]]:
        """Predicted cycles of programs, per level: measured or predicted segments, less savings at borders, or side by side."""
        table, key = self.table, self.known.key
        keys = [[key(gene) for gene in genome] for genome in genomes]
        genes = dict(zip(chain.from_iterable(keys), chain.from_iterable(genomes), strict=True))
        # one prediction for all unmeasured segments of all programs
        unmeasured = [part for part in chain.from_iterable(keys) if table.cycles.get(part) is None]
        open_ = {part: raw for part in unmeasured if (raw := self._raw.get(part)) is not None}
        raws = np.stack(list(open_.values())) if open_ else None
        guessed = {} if raws is None else dict(zip(open_, self.predicted([genes[part] for part in open_], raws), strict=True))
        zeros, border = np.zeros(len(self.models)), self.known.border
        costs = []
        for genome, parts in zip(genomes, keys, strict=True):
            measured = [table.cycles.get(part) for part in parts]
            cycles = np.stack([guessed.get(part, zeros) if c is None else c for part, c in zip(parts, measured, strict=True)])
            if self.placer is None or runs_in_sequence(genome):
                costs.append(cycles.sum(0) - border * (len(genome) - 1))
            else:
                costs.append(self.placer.expected(genome, cycles, border))
            if self.rules.less:
                last = max(core for gene in genome for core in gene.cores)
                granted_cores = np.array([last < granted.cores for granted in self.rules.granted])
                fits = granted_cores & (costs[-1] < NEVER / 2)  # savings at borders are subtracted from NEVER as well
                costs[-1] = np.where(fits, costs[-1], NEVER)
        return costs

    def foreseen(self, genome: Genome, level: int) -> Asking[float]:
        """Expected cycles of a program at a level: by the simulator of the described machine, if available."""
        (measurement,) = yield [Request("program", genome, False, proposal=self.proposal(genome))]
        if measurement.values is not None:
            return float(with_never(measurement.values[:, CYCLES])[level])
        if measurement.status != "ok":
            return float(NEVER)
        return float(self.expected([genome])[0][level])

    def add_persistent(self, genome: Genome, level: int) -> Genome:
        """Genome with the persistent tensors that are expected to make it faster at a level.

        Channel splits are not tried together with them: initial plans by prediction have tried these, and they take too long for every
        drawn program.
        """
        if not self.config.use.held:
            return genome
        return choose_by_prediction(self.target_graph, genome, lambda raws: self.predict(np.stack(raws))[:, level].tolist(), passes=False)

    def fastest(self, genomes: Sequence[Genome], level: int) -> int:
        """Index of the genome with the fewest expected cycles at a level, the first of equals."""
        return int(np.argmin([cycles[level] for cycles in self.expected(genomes)]))

    def repaired(self, genomes: Sequence[Genome]) -> Asking[list[Genome | None]]:
        """Repair genomes until all genes fit: other segments are cut.  Afterwards every gene has features or cycles."""
        todo: list[Genome | None] = list(genomes)
        while True:
            todo = [None if g is None else repaired(self.target_graph, g, self._fits) for g in todo]
            open_ = unmeasured_genes(self.table, [gene for genome in todo if genome is not None for gene in genome])
            open_ = [gene for gene in open_ if self.known.key(gene) not in self._raw]
            for original, candidate in zip(genomes, todo, strict=True):
                if candidate is not None:
                    self._inherit(original, candidate)
            if not open_:
                return todo
            yield from self.features(open_)

    def _fits(self, gene: Gene) -> bool:
        """Whether a gene may fit: False if known not to; a measurement decides otherwise."""
        key = self.known.key(gene)
        return self.table.cycles.get(key, True) is not None and self._raw.get(key, True) is not None


def _logged_prediction(cycles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Prediction in the log's form: NaN at levels that do not fit."""
    return np.where(cycles < NEVER, cycles, np.nan)
