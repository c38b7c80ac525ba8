"""Files of a compiled model, from the plans of a run: custom operators for the part's own stack, and raw words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from compiler.ethosu.driver_file import write_level_tflite, write_raw
from compiler.ethosu.graph_network import network_of_graph
from compiler.ethosu.level_streams import LevelStreams, compile_levels
from compiler.ethosu.network_macs import stream_share
from compiler.ethosu.plan_mapping import PlanNames, names_of_nodes
from compiler.ethosu.variant_counters import count_variants
from compiler.frontend.lower import lower
from compiler.frontend.tflite.network import TfliteNetwork, read_network
from compiler.frontend.tflite.to_onnx import TFLITE
from compiler.model import LoweredModel
from compiler.package.stack_files import PackagedFiles
from compiler.plan.plan import Plan
from simulator.ethosu.driver_rules import SRAM_REGION, driver_region_sizes
from simulator.npu.errors import UnsupportedError


def package_streams(opened: LoweredModel, plans: Mapping[str, Plan]) -> PackagedFiles:
    """Files of the streams of all levels.  Raises `InfeasibleError` where SRAM is too small for any."""
    network, names = _network(opened)
    streams = compile_levels(network, names, plans, opened.machine)
    first = streams.variants[0]  # of the level with the least of DRAM, which moves little
    remaining = tuple(reason.partition(": expected one of ")[0] for reason in first.on_processor.values())
    moved = sum((Counter(part.stream.planned._asdict()) for part in first.parts), Counter[str]())
    lines = (*_lines(streams), *(f"left to the processor: {operator}" for operator in remaining))
    files = {".tflite": write_level_tflite(streams), ".u65": write_raw(streams)}
    return PackagedFiles(files, lines, dict(moved), remaining, count_variants(streams, opened.machine))


def _network(opened: LoweredModel) -> tuple[TfliteNetwork, PlanNames]:
    """The network of a model with its names in plans: that of a `.tflite` file, or of the graph of another model."""
    if opened.source.model.suffix == TFLITE:
        results = {spec.name: spec.operator.y for target_graph in opened.target_graphs for spec in target_graph.operators}
        return read_network(opened.source.model.read_bytes()), names_of_nodes(results)
    if len(opened.part.pieces) > 1:
        raise UnsupportedError(f"{opened.name}: {len(opened.part.pieces)} subgraphs with nodes of the host between: expected one")
    return network_of_graph(lower(opened.part.pieces[0].npu, None, opened.part.data))


def _lines(streams: LevelStreams) -> list[str]:
    lines = []
    for number, compiled in enumerate(streams.variants):
        levels = [level for level, variant in streams.levels.items() if variant == number]
        lines.append(f"streams of {', '.join(levels)}: {', '.join(f'{streams.cycles[level]:,}' for level in levels)} cycles by their words")
        for part in compiled.parts:
            stream = part.stream
            lines.append(
                f"operators {part.first} to {part.last - 1}: {len(stream.words):,} words, {stream.planned.total:,} bytes of DRAM moved, "
                f"{stream.arena:,} in use, {stream.fast:,} bytes of SRAM"
            )
            counted = driver_region_sizes(stream.words).get(SRAM_REGION, 0)
            if counted > stream.fast:
                lines.append(f"the driver of Linux counts {counted:,} bytes of SRAM and refuses this stream where there are fewer")
    inside, total = stream_share(streams.variants[0])
    if total:
        lines.append(f"{100 * inside / total:.1f}% of {total:,} multiply-accumulates in streams")
    return lines
