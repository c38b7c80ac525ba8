"""Studies of champions, level by level: the bound, each freedom, shared memory, int8 against float16, several frames per run.

`gain`: champion over bound (docs/bounds.md), where 1 is proved optimal; the speed-up over the best tuned single-operator baseline, the
three terms of the bound over the roofline, DDR bytes over the bytes that every program moves, and separately the bytes of the instruction
stream.

`fusion`: searches of equal budgets with more and more freedom: whole tensors stay on chip or none (residency); segments run in blocks of
rows (row fusion); rows shared by two blocks are kept (halo cache); a block's loads run ahead of it (prefetch); blocks overlap in a window,
the full freedom of the search.  Figures are speed-ups over the best tuned single-operator baseline of these searches at that level, medians
over the seeds; the ceiling is that program over the roofline.  The searches are independent: if one with more freedom found less in the
same budget, the table shows it.  The last lines are the table of the README, in Markdown.

`shared_memory`: the machine with `shared=null`, where tensors between segments go through DDR, and the machine with the memory, where
tensors and weights use it as far as they fit.  The baseline of each arm is layer by layer, on its own machine.

`types`: a network in float16, and quantised by onnxruntime (`,quantised=qdq`): integers where the model has them, float16 between.  The
expected gain is beside it: products per cycle at the peak of the machine for each type, and the fewest bytes of the model.  On an
integer-only machine the columns of float16 are empty.  If the NPU cannot run a quantised network as one subgraph, its heaviest subgraph is
used, with its share of the multiply-accumulates.

`frames`: for every number of frames per run the programs by prediction, or with --candidates those of a search: cycles per frame, latency
and DDR bytes per frame, beside the bound of the whole batch.  Weights are loaded once per batch at best, so bytes per frame fall if weights
dominate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import geometric_mean
from typing import Annotated

import typer

from compiler.autoplan import quick_plans
from compiler.bound.bound import TERMS, Bound
from compiler.build import measure_plans
from compiler.ir.operators import QuantisedConv
from compiler.target.target_graph import TargetGraph
from scripts import studies
from scripts.studies import CELL, MEAN, Arm, Pair, Row, Study, Table, figures, figures_of_arms, geometric, groups, means, medians
from scripts.traffic import moved_bytes
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.objective import Pace
from tuner.in_process import Search
from tuner.measure.roofline import Roofline

SWITCHES = {"row fusion": "block_fusion", "halo cache": "halo_cache", "prefetch": "prefetch", "window": "window"}  # in the order of stages
STAGES = ("residency", *SWITCHES)


def gains(pair: Pair) -> Iterator[Row]:
    (result,) = pair.results.values()
    bound, roofline = Bound(pair.target_graph), Roofline(pair.target_graph)
    for level, champion in figures(result).items():
        terms, roof, cycles = bound.of(level), roofline.cycles(0, len(pair.target_graph.operators), level), result.cycles[level]
        yield {
            "level": level, "cycles": cycles, "baseline_cycles": champion.baseline, "bound_cycles": terms.cycles,
            "roofline_cycles": roof, "term": terms.term, "over_bound": cycles / terms.cycles, "over_roofline": cycles / roof,
            "gain": champion.gain, **{f"{term}_over_roofline": value / roof for term, value in terms.by_term.items()},
            "ddr_over_bound": champion.bytes / terms.traffic_bytes, "candidates": pair.candidates, "stream_bytes": champion.stream,
        }  # fmt: skip


def show_gains(rows: Sequence[Row]) -> Iterator[Table | str]:
    table = medians(rows, *CELL)
    mean = means(table, ("over_bound", "over_roofline", "gain", "ddr_over_bound"))  # a term may be 0
    yield Table.from_rows(
        (*table, *mean), "<network", "<level", "champion=cycles", "bound=bound_cycles", "<by=term", "over bound=over_bound:.3f",
        "over roofline=over_roofline:.3f", "speed-up=gain:.3f", *(f"{term}={term}_over_roofline:.3f" for term in TERMS),
        "DDR=ddr_over_bound:.3f", "stream=stream_bytes",
    )  # fmt: skip
    yield "\nChampion over bound: " + ", ".join(f"{row['over_bound']:.3f} at {row['level']}" for row in mean)


def stage_arm(stage: str) -> Arm:
    """A stage has its own switch on and those before it; the later ones are off."""
    return Arm(tuple(f"use.{switch}=false" for name, switch in SWITCHES.items() if STAGES.index(name) > STAGES.index(stage)))


def stages(pair: Pair) -> Iterator[Row]:
    roofline = Roofline(pair.target_graph)
    for level, row in figures_of_arms(pair).items():
        base = min(result.baseline_cycles[level] for result in pair.results.values())
        cycles = {stage: result.cycles[level] for stage, result in pair.results.items()}
        roof = roofline.cycles(0, len(pair.target_graph.operators), level)
        yield {
            "level": level, "baseline_cycles": base, **{stage: base / value for stage, value in cycles.items()},
            "ceiling": base / roof, "best_over_roofline": min(cycles.values()) / roof, "candidates": pair.candidates, **row,
        }  # fmt: skip


def show_stages(rows: Sequence[Row]) -> Iterator[Table | str]:
    table, last = medians(rows, *CELL), STAGES[-1]
    mean = means(table, (*STAGES, "ceiling", "best_over_roofline"))
    yield Table.from_rows(
        (*table, *mean), "<network", "<level", "baseline=baseline_cycles", "residency:.3f",
        *(f"+ {stage}={stage}:.3f" for stage in SWITCHES), "ceiling:.3f", "over roofline=best_over_roofline:.3f",
        f"stream, residency={STAGES[0]}_stream", f"+ {last}={last}_stream",
    )  # fmt: skip
    levels = [row["level"] for row in mean]
    yield "\n| network | " + " | ".join(f"{level}: gain (ceiling)" for level in levels) + f" | whole tensors only, {levels[-1]} |"
    yield "|---" * (len(levels) + 2) + "|"
    for (name,), network_rows in groups((*table, *mean), "network").items():
        bold = "**" if name == MEAN else ""
        cells = [f"{bold}{row[last]:.2f}{bold} ({row['ceiling']:.2f})" for row in network_rows]
        yield f"| {bold}{name}{bold} | " + " | ".join(cells) + f" | {bold}{network_rows[-1][STAGES[0]]:.2f}{bold} |"


def memories(pair: Pair) -> Iterator[Row]:
    for level, row in figures_of_arms(pair).items():
        ratios = {
            "faster": row["without_cycles"] / row["with_cycles"], "of_bytes": row["with_bytes"] / row["without_bytes"],
            "gain": row["with_baseline"] / row["with_cycles"],
        }  # fmt: skip
        yield {"level": level, "candidates": pair.candidates, **row, **ratios}


def show_memories(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Medians over seeds, and the geometric mean of the networks at every level."""
    table = medians(rows, *CELL)
    yield Table.from_rows(
        table, "<network", "<machine", "<level", "cycles without=without_cycles", "with=with_cycles", "faster:.2f",
        "DDR MB without=without_bytes:.2fM", "with=with_bytes:.2fM", "stream MB without=without_stream:.2fM", "with=with_stream:.2fM",
        "baseline / tuned, with=gain:.2f",
    )  # fmt: skip
    for (level,), level_rows in groups(table, "level").items():
        speedup, bytes_ratio = (geometric([row[key] for row in level_rows]) for key in ("faster", "of_bytes"))
        yield f"{level}: {speedup:.2f} times as fast with {bytes_ratio:.0%} of the bytes, geometric mean of {len(level_rows)}"


def macs_of_network(target_graph: TargetGraph) -> int:
    """Without convolutions of integers that have one product for each value: those stand for multiply-adds of the network."""
    values = {op.y: math.prod(target_graph.graph.shapes[op.y][1:]) for op in target_graph.graph.operators if isinstance(op, QuantisedConv)}
    return sum(spec.macs for spec in target_graph.operators if spec.macs != values.get(spec.operator.y)) * target_graph.images


def limits(target_graph: TargetGraph) -> tuple[float, int]:
    """(MACs per cycle at the peak of one core for their types, the least bytes of DDR)."""
    macs, moved = Roofline(target_graph).work(tuple(range(len(target_graph.operators))))
    peak = sum(count / float(target_graph.machine.macs_per_cycle[dtype.name]) for dtype, count in macs.items())
    return sum(macs.values()) / peak, moved


def types(pair: Pair) -> Iterator[Row]:
    graphs = {arm: result.target_graph for arm, result in pair.results.items()}
    macs, _ = Roofline(graphs["int8"]).work(tuple(range(len(graphs["int8"].operators))))
    common: Row = {"candidates": pair.candidates, "in_int8": macs.get(DataType.int8, 0) / sum(macs.values())}
    if has_float := "float16" in graphs:
        (roof, least_cycles), (float_roof, float_least_cycles) = limits(graphs["int8"]), limits(graphs["float16"])
        common |= {
            "macs": macs_of_network(graphs["int8"]) / graphs["float16"].macs,
            "roof": roof / float_roof,
            "least": least_cycles / float_least_cycles,
        }
    bounds = {arm: Bound(target_graph) for arm, target_graph in graphs.items()}
    for level, row in figures_of_arms(pair).items():
        for arm, bound in bounds.items():
            cycles = row[f"{arm}_cycles"]
            row |= {f"{arm}_gain": row[f"{arm}_baseline"] / cycles, f"{arm}_over_bound": cycles / bound.of(level).cycles}
        if has_float:
            row |= {"faster": row["float16_cycles"] / row["int8_cycles"], "of_bytes": row["int8_bytes"] / row["float16_bytes"]}
        yield {"level": level, **common, **row}


def show_types(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Medians over seeds, and the geometric mean of the networks at every level."""
    for (machine,), machine_rows in groups(medians(rows, *CELL), "machine").items():
        comparable = [row for row in machine_rows if "faster" in row]
        yield f"{machine}: roof, MACs per cycle at the peak, int8 over float16; least, the bytes that a model cannot do without, the same"
        if not comparable:
            yield f"{machine} computes with integers alone: what is of float16 is empty"
        yield Table.from_rows(
            machine_rows, "<network", "<level", "cycles float16=float16_cycles", "int8=int8_cycles", "faster:.2f", "roof:.2f",
            "DDR MB float16=float16_bytes:.2fM", "int8=int8_bytes:.2fM", "of bytes=of_bytes:.2f", "least:.2f",
            "stream MB float16=float16_stream:.2fM", "int8=int8_stream:.2fM", "gain float16=float16_gain:.2f", "int8=int8_gain:.2f",
            "over bound float16=float16_over_bound:.3f", "int8=int8_over_bound:.3f", "MACs in int8=in_int8:.1%", "on the NPU=macs:.1%",
        )  # fmt: skip
        for (level,), level_rows in groups(comparable, "level").items():

            def mean(key: str, level_rows: Sequence[Row] = level_rows) -> float:
                return geometric([row[key] for row in level_rows])

            yield (
                f"{level}: {mean('faster'):.2f} times as fast in int8 (roof {mean('roof'):.2f}) with {mean('of_bytes'):.0%} of the bytes"
                f" (least {mean('least'):.0%}); gain {mean('float16_gain'):.2f} in float16, {mean('int8_gain'):.2f} in int8;"
                f" champion over bound {mean('float16_over_bound'):.3f} and {mean('int8_over_bound'):.3f}; "
                f"geometric mean of {len(level_rows)}"
            )


def rows_of_frames(name: str, machine: str | Machine, frames: int, candidates: int, settings: Sequence[str] = ()) -> list[Row]:
    """A row per level.  candidates: measured programs; 0 for those by prediction."""
    opened = studies.opened(name, machine, "float16", frames)
    target_graph = opened.target_graph
    if candidates:
        result = Search(target_graph, candidates=candidates, settings=tuple(settings)).run()
        measured = studies.champions(result.target_graph, result)
    else:
        measured = measure_plans(opened.compiler, quick_plans(opened))
    bound, rows = Bound(target_graph), list[Row]()
    for level, piece in measured.items():
        timing = piece.timings[level]
        rows.append({
            "network": studies.short(name), "frames": frames, "level": level, "cycles": timing.cycles,
            **Pace.of(timing.cycles, target_graph.images, target_graph.machine.clock_hz)._asdict(),
            "ddr_bytes_per_frame": moved_bytes(timing) // target_graph.images,
            "bound": bound.of(level).cycles, "over_bound": timing.cycles / bound.of(level).cycles,
        })  # fmt: skip
    return rows


def show_frames(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Levels side by side, as other tables of champions have them."""
    table = []
    for (name, frames), group in groups(rows, "network", "frames").items():
        columns = (
            ("cycles_per_frame", ",.0f", 1),
            ("latency_us", ",.0f", 1),
            ("ddr_bytes_per_frame", ".1f", 1e6),
            ("over_bound", ".2f", 1),
        )
        table.append((name, frames, *(" / ".join(f"{row[key] / unit:{form}}" for row in group) for key, form, unit in columns)))
    yield Table(("<network", "frames", "cycles per frame", "latency, us", "DDR MB per frame", "over the bound"), table)
    per_frame = {(row["network"], row["frames"], row["level"]): row["cycles_per_frame"] for row in rows}
    for (frames,), group in groups([row for row in rows if row["frames"] > 1], "frames").items():
        comparable = groups([row for row in group if (row["network"], 1, row["level"]) in per_frame], "level")
        means = [
            f"{geometric_mean(per_frame[row['network'], 1, level] / row['cycles_per_frame'] for row in level_rows):.3f} at {level}"
            for (level,), level_rows in comparable.items()
        ]
        if means:
            yield f"{frames} frames over one, geometric mean of cycles per frame: {', '.join(means)}."


def frames(counts: Sequence[int], candidates: int, settings: Sequence[str], pair: Pair) -> Iterator[Row]:
    for count in counts:
        yield from rows_of_frames(pair.name, pair.target_graph.machine, count, candidates, settings)


def with_frames(
    study: Study,
    frames_of_run: Annotated[str, typer.Option("--frames", help="Numbers of frames, with commas between them.")] = "1,2,4",
    candidates: Annotated[int, typer.Option(min=0, help="Measured programs of a search; 0: by prediction.")] = 0,
) -> Study:
    counts = tuple(map(int, frames_of_run.split(",")))
    return replace(study, rows=partial(frames, counts, candidates, study.overrides), inputs=(*counts, candidates))


GAIN = Study("gain", {"default": Arm()}, gains, show_gains)
FUSION = Study("fusion", {stage: stage_arm(stage) for stage in STAGES}, stages, show_stages)
SHARED_MEMORY = Study(
    "shared_memory", {"without": Arm(machine="shared=null"), "with": Arm()}, memories, show_memories,
    "squeezenet,shufflenet,resnet50,made:mobilenet_v2", ("ascend310-l2",), seeds=1,
)  # fmt: skip
TYPES = Study(
    "types", {"float16": Arm(), "int8": Arm(network=",quantised=qdq")}, types, show_types,
    "squeezenet,made:mobilenet_v2,shufflenet,made:resnet50,inception_v1,alexnet,made:efficientnet_b0,made:vit_b16,zfnet512,inception_v2,"
    "vgg19,densenet121", seeds=1, float_arm="float16",
)  # fmt: skip
FRAMES = Study("frames", {}, partial(frames, (), 0, ()), show_frames, "squeezenet,resnet50", seeds=1, options=with_frames)
