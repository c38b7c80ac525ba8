"""Quantised networks beside the float ones that they were made of: what int8 brings, on the same machine with the same budget.

  float16  the network as it is;
  int8     the same by onnxruntime's quantiser (`,quantised=qdq`): integers where the model says so, float16 between.

Figures of a level are those of its own program: cycles, bytes of DDR and of the instruction stream, the gain over layer by layer in the
same type, and cycles over the bound that no schedule is below (docs/bounds.md).  What is to be expected is beside them: products per cycle
at the peak of the machine for each type, and the least bytes that the model can do with.
On a machine of integers alone the columns of float16 are empty.
A quantised network that the NPU has not whole is there with its heaviest piece, and its share of the multiply-accumulates is told.

    python scripts/study_types.py --out types
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.bound.bound import Bound
from compiler.ir.operators import QuantisedConv
from compiler.target.target_graph import TargetGraph
from scripts.studies import Arm, Pair, Row, Study, Table, champions, command, geometric, groups, medians
from scripts.traffic import stream_bytes
from simulator.npu.parts import DataType
from tuner.measure.roofline import Roofline

MEGA = 1e6
NETWORKS = (
    "squeezenet,made:mobilenet_v2,shufflenet,made:resnet50,inception_v1,alexnet,made:efficientnet_b0,made:vit_b16,zfnet512,inception_v2,"
    "vgg19,densenet121"
)
OF_FLOATS = ("float16_cycles", "float16_bytes", "float16_stream", "float16_gain", "float16_over_bound")
OF_BOTH = ("macs", "roof", "least", *OF_FLOATS, "faster", "of_bytes")  # None on a machine of integers alone
MEANS = ("faster", "of_bytes", "float16_gain", "int8_gain", "float16_over_bound", "int8_over_bound", "roof", "least")


def macs_of_network(target_graph: TargetGraph) -> int:
    """Without convolutions of integers that have one product for each value: those stand for multiply-adds of the network."""
    values = {op.y: math.prod(target_graph.graph.shapes[op.y][1:]) for op in target_graph.graph.operators if isinstance(op, QuantisedConv)}
    return sum(spec.macs for spec in target_graph.operators if spec.macs != values.get(spec.operator.y)) * target_graph.images


def limits(target_graph: TargetGraph) -> tuple[float, int]:
    """(MACs per cycle at the peak of one core for their types, the least bytes of DDR)."""
    macs, moved = Roofline(target_graph).work(tuple(range(len(target_graph.operators))))
    peak = sum(count / float(target_graph.machine.macs_per_cycle[dtype.name]) for dtype, count in macs.items())
    return sum(macs.values()) / peak, moved


def rows(pair: Pair) -> Iterator[Row]:
    target_graphs = {arm: found.target_graph for arm, found in pair.found.items()}
    ideal = {arm: limits(target_graph) for arm, target_graph in target_graphs.items()}
    macs, _ = Roofline(target_graphs["int8"]).work(tuple(range(len(target_graphs["int8"].operators))))
    common: Row = {"candidates": pair.candidates, "in_int8": macs.get(DataType.int8, 0) / sum(macs.values())}
    if both := "float16" in target_graphs:
        common |= {
            "macs": macs_of_network(target_graphs["int8"]) / target_graphs["float16"].macs,
            "roof": ideal["int8"][0] / ideal["float16"][0],
            "least": ideal["int8"][1] / ideal["float16"][1],
        }
    timed = {arm: champions(found.target_graph, found) for arm, found in pair.found.items()}
    bounds = {arm: Bound(target_graph) for arm, target_graph in target_graphs.items()}
    for level in pair.levels:
        row: Row = {"level": level, **common}
        for arm, found in pair.found.items():
            timing = timed[arm][level].timings[level]
            row |= {
                f"{arm}_cycles": timing.cycles, f"{arm}_bytes": timing.ddr_read_bytes + timing.ddr_write_bytes,
                f"{arm}_stream": stream_bytes(timed[arm][level].program), f"{arm}_gain": found.baseline_cycles[level] / timing.cycles,
                f"{arm}_over_bound": timing.cycles / bounds[arm].of(level).cycles,
            }  # fmt: skip
        if both:
            row |= {"faster": row["float16_cycles"] / row["int8_cycles"], "of_bytes": row["int8_bytes"] / row["float16_bytes"]}
        yield dict.fromkeys(OF_BOTH) | row


def cell(value: float | None, shown: str = ".2f", times: float = 1) -> str:
    """'' of what there is not."""
    return "" if value is None else format(value * times, shown)


def show(found: Sequence[Row]) -> Iterator[Table | str]:
    """Medians over seeds, and the geometric mean of the networks at every level."""
    for (machine,), mine in groups(medians(found, "network", "machine", "level"), "machine").items():
        of_both = [row for row in mine if row["faster"] is not None]
        yield f"{machine}: roof, MACs per cycle at the peak, int8 over float16; least, the bytes that a model cannot do without, the same"
        if not of_both:
            yield f"{machine} computes with integers alone: what is of float16 is empty"
        yield Table(
            (
                "<network", "<level", "cycles float16", "int8", "faster", "roof", "DDR MB float16", "int8", "of bytes", "least",
                "stream MB float16", "int8",
                "gain float16", "int8", "over bound float16", "int8", "MACs in int8", "on the NPU",
            ),
            [
                (
                    row["network"], row["level"], cell(row["float16_cycles"], "d"), row["int8_cycles"], cell(row["faster"]),
                    cell(row["roof"]), cell(row["float16_bytes"], times=1 / MEGA), cell(row["int8_bytes"], times=1 / MEGA),
                    cell(row["of_bytes"]), cell(row["least"]), cell(row["float16_stream"], times=1 / MEGA),
                    cell(row["int8_stream"], times=1 / MEGA), cell(row["float16_gain"]), cell(row["int8_gain"]),
                    cell(row["float16_over_bound"], ".3f"), cell(row["int8_over_bound"], ".3f"),
                    cell(row["in_int8"], ".1%"), cell(row["macs"], ".1%"),
                )
                for row in mine
            ],
        )  # fmt: skip
        for (level,), there in groups(of_both, "level").items():
            mean = {key: geometric(np.array([row[key] for row in there])) for key in MEANS}
            yield (
                f"{level}: {mean['faster']:.2f} times as fast in int8 (roof {mean['roof']:.2f}) with {mean['of_bytes']:.0%} of the bytes"
                f" (least {mean['least']:.0%}); gain {mean['float16_gain']:.2f} in float16, {mean['int8_gain']:.2f} in int8;"
                f" champion over bound {mean['float16_over_bound']:.3f} and {mean['int8_over_bound']:.3f}; geometric mean of {len(there)}"
            )


STUDY = Study("types", {"float16": Arm(), "int8": Arm(network=",quantised=qdq")}, rows, show, NETWORKS, seeds=1, of_floats="float16")

if __name__ == "__main__":
    command(STUDY, "Quantised networks and the float ones that they were made of.")
