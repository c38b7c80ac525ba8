"""Study of several cores: placement compared with one core, and with every segment on all cores.

Three searches of equal numbers of measured programs, for every network, machine and seed:

  one     everything on core 0, without other cores on the DDR port (use.cores=false);
  all     every segment split over all cores, by rows or channels, and tuned so: cuts, blocks, tilings (parallelism inside operators);
  placed  any cores: placement and mutators propose (the default).

`placed` also measures one-core and all-core programs, on the same budget, so only the search itself can make it worse.  All three use the
estimate of segments instead of a cost model, so no run learns from another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from compiler.placement.bounds import Bounds, bounds
from compiler.placement.dag import Dag
from compiler.placement.segment_graph import segment_edges
from compiler.space.gene import Genome, working_cores
from compiler.target.target_graph import TargetGraph
from scripts.studies import Arm, Pair, Row, Study, Table, goal, groups, medians
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request

THESIS = 28.98  # per cent over parallelism inside operators, at most, in the work that the method is from
OVER_ONE, OVER_ALL = 1.6, 1.05  # the goals
READ, WRITTEN = (RESULTS.index(name) for name in ("ddr_read_bytes", "ddr_write_bytes"))
BUSY = [RESULTS.index(f"busy_{name}_cycles") for name in ("mte1", "mte2", "mte3", "cube", "vector", "fixpipe")]
LIMITS = ("work", "path", "bandwidth")


class Remembering(Evaluator):
    """Evaluator that answers repeated requests of later searches of a target graph."""

    def __init__(self, target_graph: TargetGraph, levels: tuple[str, ...]) -> None:
        super().__init__(target_graph, levels)
        self._measurements: dict[Request, Measurement] = {}

    def measure(self, request: Request) -> Measurement:
        measurement = self._measurements.get(request)
        if measurement is None:
            measurement = self._measurements[request] = super().measure(request)
        return measurement


@lru_cache(maxsize=1)
def remembering(target_graph: TargetGraph, levels: tuple[str, ...]) -> Evaluator:
    """Common evaluator of all searches of a target graph, which run one after the other."""
    return Remembering(target_graph, levels)


def bound_cycles(target_graph: TargetGraph, evaluator: Evaluator, genome: Genome) -> Bounds:
    """Lower bounds of a program with given segments: work of their busiest engines over the cores, longest path, and DDR port.

    A segment takes at least the time of its busiest engine, alone, on its cores: no overlap with other segments reduces it.
    """
    times = []
    for gene in genome:
        values = evaluator.measure(Request("segment", (gene,))).values
        assert values is not None
        width = len(working_cores(target_graph, gene))
        times.append({width: -(-int(values[0, BUSY].max()) // width)})
    dag = Dag.of([next(iter(t.values())) for t in times], segment_edges(target_graph, genome))
    values = evaluator.measure(Request("program", genome)).values
    assert values is not None
    moved, machine = int(values[0, [READ, WRITTEN]].sum()), target_graph.machine
    return bounds(dag, times, machine.cores, moved, int(machine.ddr.deliverable))


def rows(pair: Pair) -> Iterator[Row]:
    outcome, machine = pair.results["placed"], pair.target_graph.machine
    cycles = {arm: result.cycles["none"] for arm, result in pair.results.items()}
    limits = bound_cycles(outcome.target_graph, remembering(pair.target_graph, ("none",)), outcome.best[0].genome)
    yield {
        "cores": machine.cores, "ddr": machine.ddr.bytes_per_cycle, **{f"{arm}_cycles": value for arm, value in cycles.items()},
        # a seed's searches begin with the same segments, so its own ratio tells more than that of two medians
        "over_one": cycles["one"] / cycles["placed"], "over_all": cycles["all"] / cycles["placed"],
        **{f"{name}_share": getattr(limits, name) / cycles["placed"] for name in LIMITS}, "gap": limits.gap(cycles["placed"]),
        "candidates": pair.candidates,
    }  # fmt: skip


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    """The table, and the goals with the reached figures.  work, path, bandwidth: lower bounds over the placed program's time, from its
    busiest engines over the cores, its longest path and its bytes.
    """
    table = medians(rows, "network", "machine")
    lowest = {key: min(row["over_all"] for row in group) for key, group in groups(rows, "network", "machine").items()}
    yield Table.from_rows(
        [row | {"worst": lowest[row["network"], row["machine"]]} for row in table], "<network", "cores", "DDR B/cycle=ddr",
        *(f"{arm}={arm}_cycles" for arm in STUDY.arms), "over one=over_one:.2f", "over all=over_all:.3f", "worst seed=worst:.3f",
        *(f"{name}={name}_share:.0%" for name in LIMITS), "gap:+.1%",
    )  # fmt: skip
    yield "\ngoals"
    for row in table:
        if row["cores"] == 2:
            text = f"{row['network']}, 2 cores, {row['ddr']} B/cycle: {row['over_one']:.2f} over one core"
            yield f"  {text} (goal {OVER_ONE} where bandwidth permits, which it needs {row['bandwidth_share']:.0%} of the time): " + goal(
                row["over_one"] >= OVER_ONE
            )
    lowest_row, highest_row = (pick(table, key=lambda row: float(row["over_all"])) for pick in (min, max))
    case = f"{lowest_row['network']}, {lowest_row['cores']} cores"
    yield f"  least over all cores: {lowest_row['over_all']:.3f} ({case}; goal: never below 1)"
    winners = sorted({row["network"] for row in table if row["over_all"] >= OVER_ALL})
    yield f"  at least {OVER_ALL} over all cores on {len(winners)} networks ({', '.join(winners) or 'none'}; goal: two)"
    yield (
        f"  most over all cores: {highest_row['over_all'] - 1:+.2%} "
        f"({highest_row['network']}, {highest_row['cores']} cores, {highest_row['ddr']} B/cycle); "
        f"the thesis has up to {THESIS}%, on its machine and networks"
    )


ESTIMATE = "use.cost_model=false"
STUDY = Study(
    "placement",
    {name: Arm((ESTIMATE, *overrides), levels=("none",)) for name, overrides in {
        "one": ("use.cores=false",), "all": ("use.placement=false",), "placed": (),
    }.items()},
    rows, show, "made:inception_v3,made:nasnet_mobile,squeezenet,made:randwire",
    tuple(f"ascend310:cores={cores},ddr.bytes_per_cycle={port}" for cores, port in ((2, 134), (4, 268))), 40, evaluator=remembering,
)  # fmt: skip
