"""The search: generations of segments, then of programs.

A generation measures segments that the cost model expects to help, lets the table of segments and the islands propose whole programs, picks
by prediction and measures those.  Everything is asked for in an order that follows from the seed and from earlier answers alone, so the
number of workers changes nothing, and neither does the budget: it only says where to stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.derive.gene import Gene, Genome, Key, Structures, gene_json, single_operators, widths
from compiler.derive.moves import MOVES, change_ahead, random_genome, repaired
from compiler.derive.plan import Infeasible
from compiler.tile.features import expected_cycles, scaled
from compiler.tile.spec import Unit
from simulator.npu.errors import InfeasibleError
from tuner.config import TuneConfig
from tuner.cost_model import CostModel
from tuner.evaluate import COLUMNS, Answer, Ask
from tuner.search.champions import genome_from, individual_from, individual_json
from tuner.search.explore import allowed, first_genes, propose, unknown
from tuner.search.placing import Placer, cut_of, one_after_another
from tuner.search.population import Individual, Island, exchange
from tuner.search.table import SegmentTable, key_from, key_json

_MOVED = [COLUMNS.index("ddr_read_bytes"), COLUMNS.index("ddr_write_bytes")]


@dataclass(frozen=True, eq=False)
class Question:
    """An ask, and what the log should know of it.  predicted: cycles per level, or None."""

    ask: Ask
    island: int
    generation: int
    predicted: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """What came back; `task` is '' where nothing was measured.  answer None: the worker crashed or timed out on it."""

    question: Question
    answer: Answer | None
    task: str


class Measure(Protocol):
    """Puts questions to the farm; replies come in the order of the questions."""

    def __call__(self, questions: Sequence[Question]) -> list[Reply]: ...


class Search:
    """State of one run.  `step` does one generation; it yields whenever programs were measured, so that a caller can look and stop."""

    def __init__(self, unit: Unit, levels: tuple[str, ...], config: TuneConfig, seed: int, weights: Mapping[str, float]) -> None:
        self.unit, self.levels, self.config = unit, levels, config
        self.table = SegmentTable(Structures(unit), len(levels))
        self.shares = np.array([unit.machine.share_units(level) / 65536 for level in levels])
        self.rng = np.random.default_rng([seed, 0])
        count = config.search.islands if config.use.islands else 1
        self.islands = [Island(np.random.default_rng([seed, 1 + i])) for i in range(count)]
        self.level_weights = np.array([weights.get(level, 1.0) for level in levels])
        self.generation = 0
        self.measured_segments = 0
        self.seen: set[Genome] = set()
        self.models: list[CostModel | None] = [None] * len(levels)
        self.border = np.zeros(len(levels))
        self._raw: dict[Key, NDArray[np.float64] | None] = {}
        use, several = config.use, unit.machine.cores > 1 and config.use.cores
        moves = (
            ("change_window", use.window),
            ("toggle_halo", use.halo_cache),
            ("change_prefetch", use.prefetch),
            ("change_ahead", use.prefetch),
            ("change_cores", several),
            ("change_split", several),
        )
        off = {name for name, on in moves if not on}
        if config.search.moves is not None:
            off |= set(MOVES) - set(config.search.moves)
        self.moves = allowed(off)
        self.placer = Placer(self.table, levels, config.placement) if several and use.placement and use.covers else None
        self.several = len(widths(unit)) if several else 1  # numbers of cores that a segment may run on
        self._staged: list[Genome] = []  # what stages led to in this generation

    # one generation

    def step(self, measure: Measure) -> Iterator[list[Reply]]:
        """Segments, then the programs of every island; yields the replies of each batch of programs."""
        if self.generation == 0:
            yield self._first(measure)
        self._explore(measure)
        for number, island in enumerate(self.islands):
            yield self._programs(measure, number, island)
        if len(self.islands) > 1 and (self.generation + 1) % self.config.search.exchange_every == 0:
            exchange(self.islands, self.config.search)
        self.generation += 1

    def _first(self, measure: Measure) -> list[Reply]:
        """Layer by layer, before anything else: a run that is stopped at once has a result."""
        genome = single_operators(self.unit)
        if isinstance(genome, Infeasible):
            raise InfeasibleError(f"{self.unit.machine.name}: {genome}")
        genome = tuple(map(self._permitted, genome))
        replies = measure([Question(Ask("program", genome), 0, 0)])
        answer = replies[0].answer
        if answer is not None and answer.status == "infeasible":
            raise InfeasibleError(f"{self.unit.machine.name}: layer by layer: {answer.error}")
        self._admit(self.islands[0], replies)
        # the genome's own genes too: an operator may fit only in more blocks than every operator is tried in
        first = self._wanted(first_genes(self.unit, self.table, self.config.use.halo_cache))
        self._measure_segments(measure, unknown(self.table, [*map(self._permitted, genome), *first]))
        return replies

    def _wanted(self, genes: list[Gene]) -> list[Gene]:
        """Without what a switch rules out, each once."""
        return unknown(self.table, [self._permitted(gene) for gene in genes])

    def _explore(self, measure: Measure) -> None:
        segments, many = self.config.segments, self.config.segments.measured * self.several  # that many times as many segments there are
        bests = [found for level in range(len(self.levels)) if (found := self._best_now(level)) is not None]
        if not bests:
            return
        near, looked_at = [genome for genome, _ in bests], segments.candidates * self.several
        if self.placer is not None:
            wide = [self.table.cover(level, self.border[level], width=self.unit.machine.cores) for level in range(len(self.levels))]
            near += [cover[0] for cover in wide if cover is not None]
        pool = self._wanted(propose(self.unit, self.table, near, looked_at, self.rng, self.moves))
        raws = self._features(measure, pool)
        pool = [gene for gene, raw in zip(pool, raws, strict=True) if raw is not None]
        known = [raw for raw in raws if raw is not None]
        if not pool:
            return
        predicted = self._predict(np.stack(known))
        costs = [cost for _, cost in bests]
        starts, stops = np.array([g.start for g in pool]), np.array([g.stop for g in pool])
        now = np.stack([cost[stops] - cost[starts] for cost in costs], 1)
        merit = (predicted / np.maximum(now, 1.0)).min(1)
        lucky = round(many * segments.epsilon)
        order = np.argsort(merit, kind="stable")
        chosen = list(order[: many - lucky])
        rest = order[many - lucky :]
        chosen += list(self.rng.permutation(rest)[:lucky])
        self._measure_segments(measure, [pool[i] for i in chosen], predicted[chosen])

    def _best_now(self, level: int) -> tuple[Genome, NDArray[np.float64]] | None:
        """The genome near which segments are looked for, and what its first j operators cost, float64 [operators + 1]."""
        if self.config.use.covers:
            found, plain = self.table.cover(level, self.border[level]), self.table.cover(level)
            return None if found is None or plain is None else (found[0], plain[1])
        members = [member for island in self.islands for member in island.members]
        if not members:
            return None
        best = min(members, key=lambda m: (int(m.cycles[level]), m.task))
        alone = [cycles[level] if (cycles := self.table.of(gene)) is not None else np.nan for gene in best.genome]
        share = best.cycles[level] / len(self.unit.kernels)  # of an operator, where its segment was never measured alone
        each = [
            np.full(gene.stop - gene.start, share if np.isnan(cost) else cost / (gene.stop - gene.start))
            for gene, cost in zip(best.genome, alone, strict=True)
        ]
        return best.genome, np.concatenate(([0.0], np.cumsum(np.concatenate(each))))

    def _measure_segments(self, measure: Measure, genes: list[Gene], predicted: NDArray[np.float64] | None = None) -> None:
        questions = [
            Question(Ask("segment", (gene,)), -1, self.generation, None if predicted is None else predicted[i])
            for i, gene in enumerate(genes)
        ]
        for reply in measure(questions):
            gene = reply.question.ask.genome[0]
            self.table.add(gene, cycles_of(reply.answer), _moved(reply))
            if reply.answer is not None and reply.answer.features is not None:
                self._raw[self.table.structures.key(gene)] = reply.answer.features
            self.measured_segments += 1

    # programs

    def _programs(self, measure: Measure, number: int, island: Island) -> list[Reply]:
        count = self.config.search.generation
        wanted: list[Genome] = []
        if number == 0:
            self._find_stages(measure)
        for placed in self._proposed_by_placement(island)[: count // (4 if number % 2 else 2)]:
            self._take(placed, wanted)
        for genome in self._proposed_by_table(number, island):
            self._take(genome, wanted)
        wanted = wanted[: max(1, count * 3 // 4)]
        if self.generation == 0 or not island.members:
            for _ in range(count // 4):
                self._take(tuple(map(self._permitted, random_genome(self.unit, island.rng))), wanted)
        for genome in self._retimed(island):
            self._take(genome, wanted)
        wanted += self._children(measure, island, count - len(wanted), set(wanted))
        fitting = []
        for whole in self._repaired(measure, wanted[:count]):
            if whole is not None and whole not in self.seen:
                self.seen.add(whole)
                fitting.append(whole)
        expected = self._expected(fitting)
        questions = [
            Question(Ask("program", genome), number, self.generation, cycles) for genome, cycles in zip(fitting, expected, strict=True)
        ]
        replies = measure(questions)
        self._admit(island, replies)
        return replies

    def _proposed_by_placement(self, island: Island) -> list[Genome]:
        """What stages led to, then the placer's proposals, of every level in turn."""
        if self.placer is None:
            return []
        by_level = []
        for level in self._level_order():
            good = [m.genome for m in sorted(island.members, key=lambda m: (int(m.cycles[level]), m.task))[:3]]
            by_level.append(self.placer.proposals(level, float(self.border[level]), good, island.rng, self.seen))
        return self._staged + [genome for turn in zip_longest(*by_level) for genome in turn if genome is not None]

    def _find_stages(self, measure: Measure) -> None:
        """Stages of the cheapest cover by short segments on one core, for one level after the other."""
        self._staged = []
        turn, other = divmod(self.generation, self.config.placement.every)
        if self.placer is None or other:
            return
        level = self._level_order()[turn % len(self.levels)]
        border = float(self.border[level])
        cover = self.table.cover(level, border, longest=self.config.placement.longest, width=1)
        pieces = None if cover is None else self.placer.pieces(cut_of(cover[0]), level, border)
        if pieces is None:
            return

        def ask(stages: Sequence[Genome]) -> list[NDArray[np.int64] | None]:
            questions = [Question(Ask("stage", genes), -1, self.generation) for genes in stages]
            return [cycles_of(reply.answer) for reply in measure(questions)]

        staged = self.placer.staged(pieces, ask, level, border)
        if staged is not None:
            self._staged = list(dict.fromkeys([staged.genome, *staged.listed]))

    def _take(self, genome: Genome | None, wanted: list[Genome]) -> None:
        if genome is not None and genome not in self.seen and genome not in wanted:
            wanted.append(genome)

    def _proposed_by_table(self, number: int, island: Island) -> Iterator[Genome | None]:
        """Covers: the cheapest of every level at several prices of a border, and noisy ones; and the tuned layer-by-layer genome.

        Where segments are placed, every other island hears of covers on all cores: a chain of operators has nothing better, and a cover of
        any widths does not know what changing between them costs.
        """
        width = self.unit.machine.cores if self.placer is not None and number % 2 else None
        if number == 0:
            yield self.table.singles()
        if not self.config.use.covers:
            return
        for border in (1.0, 0.5, 0.0, 1.5):
            for level in self._level_order():
                found = self.table.cover(level, border * self.border[level], width=width)
                yield found[0] if found else None
        for _ in range(2):
            for level in self._level_order():
                found = self.table.cover(level, self.border[level], 0.02, island.rng, width=width)
                yield found[0] if found else None

    def _retimed(self, island: Island) -> Iterator[Genome | None]:
        """The best program of a level, of each in turn, with other loads ahead of its borders: only whole programs show what that saves."""
        if "change_ahead" not in self.moves or not island.members:
            return
        level = self._level_order()[self.generation % len(self.levels)]
        best = min(island.members, key=lambda m: (int(m.cycles[level]), m.task)).genome
        for steps in (1, 3):
            changed = best
            for _ in range(steps):
                changed = change_ahead(self.unit, changed, island.rng) or changed
            yield changed

    def _level_order(self) -> list[int]:
        return [int(i) for i in np.argsort(-self.level_weights, kind="stable")]

    def _children(self, measure: Measure, island: Island, count: int, taken: set[Genome]) -> list[Genome]:
        """For every place, proposals for a level drawn by its weight, of which the one that is expected to be fastest there is taken."""
        if count <= 0 or not island.members:
            return []
        share = self.level_weights / self.level_weights.sum()
        groups: list[tuple[int, list[Genome]]] = []
        for _ in range(count):
            level = int(island.rng.choice(len(self.levels), p=share))
            group: list[Genome] = []
            for _ in range(self.config.model.proposals if self.config.use.cost_model else 1):
                child = island.child(self.unit, level, self.config.search, list(self.moves.values()), self.config.use.crossover)
                if child is None:
                    continue
                child = tuple(map(self._permitted, child))
                if child not in self.seen and child not in taken:
                    group.append(child)
            groups.append((level, group))
        flat = iter(self._repaired(measure, [genome for _, group in groups for genome in group]))
        picks: list[tuple[int, Genome]] = []
        lucky = []
        for level, group in groups:
            whole = [next(flat) for _ in group]
            fitting = [g for g in whole if g is not None and g not in self.seen and g not in taken]
            if not fitting:
                continue
            lucky.append(island.rng.random() < self.config.search.epsilon)
            pick = fitting[int(island.rng.integers(len(fitting)))] if lucky[-1] else fitting[self._fastest(fitting, level)]
            taken.add(pick)
            picks.append((level, pick))
        return self._climbed(measure, island, picks, lucky, taken)

    def _climbed(
        self, measure: Measure, island: Island, picks: list[tuple[int, Genome]], lucky: list[bool], taken: set[Genome]
    ) -> list[Genome]:
        """Children changed move by move, as long as a change is expected to make them faster; the lucky ones stay as they were drawn."""
        moves = list(self.moves.values())
        now = [genome for _, genome in picks]
        for _ in range(self.config.search.climb if self.config.use.cost_model else 0):
            tries: list[tuple[int, Genome]] = []
            for i, genome in enumerate(now):
                for _ in range(0 if lucky[i] else self.config.model.proposals):
                    changed = moves[int(island.rng.integers(len(moves)))](self.unit, genome, island.rng)
                    if changed is not None:
                        tries.append((i, tuple(map(self._permitted, changed))))
            whole = self._repaired(measure, [genome for _, genome in tries])
            for i, (level, _) in enumerate(picks):
                found = (g for (at, _), g in zip(tries, whole, strict=True) if at == i and g is not None)
                options = [now[i], *(g for g in found if g not in self.seen and g not in taken)]
                best = options[self._fastest(options, level)]
                taken.remove(now[i])
                taken.add(best)
                now[i] = best
        return now

    def _fastest(self, genomes: list[Genome], level: int) -> int:
        """Place of the one that is expected to be fastest at a level, the first of equals."""
        return int(np.argmin([cycles[level] for cycles in self._expected(genomes)]))

    def _permitted(self, gene: Gene) -> Gene:
        """The gene without what a switch rules out."""
        if not self.config.use.block_fusion and gene.stop - gene.start > 1:
            gene = gene._replace(blocks=1, cores=gene.cores[: self.unit.storages[0].n])
        if not self.config.use.prefetch:
            gene = gene._replace(prefetch=1, spread=False, ahead_kib=0)
        return gene if self.config.use.cores else gene._replace(cores=(0,), split="rows")

    def _repaired(self, measure: Measure, genomes: list[Genome]) -> list[Genome | None]:
        """Genomes whose genes all fit: segments that do not are cut until they do.  Afterwards every gene has features or cycles."""
        todo: list[Genome | None] = list(genomes)
        while True:
            todo = [None if g is None else repaired(self.unit, g, self._fits) for g in todo]
            open_ = unknown(self.table, [gene for genome in todo if genome is not None for gene in genome])
            open_ = [gene for gene in open_ if self.table.structures.key(gene) not in self._raw]
            if not open_:
                return todo
            self._features(measure, open_)

    def _fits(self, gene: Gene) -> bool:
        """False for what is known not to fit; an answer decides about the others."""
        key = self.table.structures.key(gene)
        return self.table.cycles.get(key, True) is not None and self._raw.get(key, True) is not None

    def _admit(self, island: Island, replies: Sequence[Reply]) -> None:
        new = []
        for reply in replies:
            cycles = cycles_of(reply.answer)
            if cycles is None:
                continue
            new.append(Individual(reply.question.ask.genome, cycles, reply.task))
        island.admit(new, self.config.search)
        self._learn_border(new)

    def _learn_border(self, new: list[Individual]) -> None:
        """How many cycles a border saves: segments measured alone against the program, the median over what was measured."""
        rows = []
        for individual in new:
            if not one_after_another(individual.genome):
                continue
            alone = self.table.alone(individual.genome)
            if alone is not None and len(individual.genome) > 1:
                rows.append((alone - individual.cycles) / (len(individual.genome) - 1))
        if rows:
            self.border = np.maximum(0.0, 0.5 * self.border + 0.5 * np.median(rows, axis=0))

    # prediction

    def _features(self, measure: Measure, genes: list[Gene]) -> list[NDArray[np.float64] | None]:
        """Raw features of genes, asked of the workers where they are not known; None where a gene does not fit."""
        structures = self.table.structures
        missing = list({key: gene for gene in genes if (key := structures.key(gene)) not in self._raw}.values())
        for reply in measure([Question(Ask("segment", (gene,), False), -1, self.generation) for gene in missing]):
            answer = reply.answer
            fits = answer is not None and answer.status == "ok"
            self._raw[structures.key(reply.question.ask.genome[0])] = answer.features if fits and answer is not None else None
        return [self._raw.get(structures.key(gene)) for gene in genes]

    def _predict(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64 [n, levels]: by the cost model where there is one, else by the roofline of the features."""
        x = scaled(raw)
        out = np.empty((len(raw), len(self.levels)))
        for level, share in enumerate(self.shares):
            model = self.models[level]
            if model is not None and self.config.use.cost_model:
                out[:, level] = model.predict(x)
            else:
                out[:, level] = expected_cycles(raw, share)
        return out

    def _expected(self, genomes: Sequence[Genome]) -> list[NDArray[np.float64]]:
        """Predicted cycles of programs, per level: segments as measured or predicted, less what borders save, or side by side."""
        keys = [[self.table.structures.key(gene) for gene in genome] for genome in genomes]
        unmeasured = [key for key in chain.from_iterable(keys) if self.table.cycles.get(key) is None]
        open_ = {key: raw for key in unmeasured if (raw := self._raw.get(key)) is not None}
        guessed = dict(zip(open_, self._predict(np.stack(list(open_.values()))), strict=True)) if open_ else {}
        nothing = np.zeros(len(self.levels))
        out = []
        for genome, mine in zip(genomes, keys, strict=True):
            known = [self.table.cycles.get(key) for key in mine]
            cycles = np.stack([guessed.get(key, nothing) if c is None else c for key, c in zip(mine, known, strict=True)])
            if self.placer is None or one_after_another(genome):
                out.append(cycles.sum(0) - self.border * (len(genome) - 1))
            else:
                out.append(self.placer.expected(genome, cycles, self.border))
        return out

    # checkpoint

    def state(self) -> dict[str, Any]:
        """Everything as JSON; `restore` makes an equal search of it."""
        return {
            "generation": self.generation,
            "measured_segments": self.measured_segments,
            "rng": _rng_state(self.rng),
            "islands": [{"rng": _rng_state(i.rng), "members": [individual_json(m) for m in i.members]} for i in self.islands],
            "table": self.table.state(),
            "infeasible": [key_json(key) for key, raw in self._raw.items() if raw is None],
            "seen": [[gene_json(gene) for gene in genome] for genome in sorted(self.seen)],
            "border": self.border.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.generation, self.measured_segments = int(state["generation"]), int(state["measured_segments"])
        self.rng.bit_generator.state = state["rng"]
        for island, saved in zip(self.islands, state["islands"], strict=True):
            island.rng.bit_generator.state = saved["rng"]
            island.members = [individual_from(m) for m in saved["members"]]
        self.table.restore(state["table"])
        self._raw.update(dict.fromkeys(map(key_from, state["infeasible"])))
        self.seen = {genome_from(genome) for genome in state["seen"]}
        self.border = np.array(state["border"], np.float64)


def cycles_of(answer: Answer | None) -> NDArray[np.int64] | None:
    """Per level; None where nothing was measured."""
    return None if answer is None or answer.values is None else np.asarray(answer.values[:, 0], np.int64)


def _moved(reply: Reply) -> int:
    values = None if reply.answer is None else reply.answer.values
    return 0 if values is None else int(values[0, _MOVED].sum())


def _rng_state(rng: np.random.Generator) -> dict[str, Any]:
    return dict(rng.bit_generator.state)
