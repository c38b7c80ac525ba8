"""Files of a compiled model, from the plans of a run: custom operators for the part's own stack, and raw words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from compiler.ethosu.driver_file import write_raw, write_tflite
from compiler.ethosu.graph_network import network_of_graph
from compiler.ethosu.network_macs import stream_share
from compiler.ethosu.network_parts import CompiledNetwork, compile_network
from compiler.ethosu.plan_mapping import PlanNames, map_plan, names_of_nodes
from compiler.frontend.lower import lower
from compiler.frontend.tflite.network import TfliteNetwork, read_network
from compiler.frontend.tflite.to_onnx import TFLITE
from compiler.model import LoweredModel
from compiler.package.stack_files import PackagedFiles
from compiler.plan.plan import Plan
from simulator.ethosu.driver_rules import SRAM_REGION, driver_region_sizes
from simulator.npu.errors import UnsupportedError


def package_streams(opened: LoweredModel, plans: Mapping[str, Plan]) -> PackagedFiles:
    """Files of the plan of the level with the least of DRAM, which moves little.  Raises `InfeasibleError` where SRAM is too small."""
    levels = opened.machine.contention
    compiled = compile_plan(opened, plans[min(levels, key=lambda level: levels[level].share)])
    remaining = tuple(reason.partition(": expected one of ")[0] for reason in compiled.on_processor.values())
    moved = sum((Counter(part.stream.planned._asdict()) for part in compiled.parts), Counter[str]())
    lines = (*_lines(compiled), *(f"left to the processor: {operator}" for operator in remaining))
    return PackagedFiles({".tflite": write_tflite(compiled), ".u65": write_raw(compiled)}, lines, dict(moved), remaining)


def compile_plan(opened: LoweredModel, plan: Plan) -> CompiledNetwork:
    """Streams of a model."""
    network, names = _network(opened)
    return compile_network(*map_plan(network, plan, names), opened.machine.buffers_bytes.L1)


def _network(opened: LoweredModel) -> tuple[TfliteNetwork, PlanNames]:
    """The network of a model with its names in plans: that of a `.tflite` file, or of the graph of another model."""
    if opened.source.model.suffix == TFLITE:
        results = {spec.name: spec.operator.y for target_graph in opened.target_graphs for spec in target_graph.operators}
        return read_network(opened.source.model.read_bytes()), names_of_nodes(results)
    if len(opened.part.pieces) > 1:
        raise UnsupportedError(f"{opened.name}: {len(opened.part.pieces)} subgraphs with nodes of the host between: expected one")
    return network_of_graph(lower(opened.part.pieces[0].npu, None, opened.part.data))


def _lines(compiled: CompiledNetwork) -> list[str]:
    lines = []
    for part in compiled.parts:
        stream = part.stream
        lines.append(
            f"operators {part.first} to {part.last - 1}: {len(stream.words):,} words, {stream.planned.total:,} bytes of DRAM moved, "
            f"{stream.arena:,} in use, {stream.fast:,} bytes of SRAM"
        )
        counted = driver_region_sizes(stream.words).get(SRAM_REGION, 0)
        if counted > stream.fast:
            lines.append(f"the driver of Linux counts {counted:,} bytes of SRAM and refuses this stream where there are fewer")
    inside, total = stream_share(compiled)
    if total:
        lines.append(f"{100 * inside / total:.1f}% of {total:,} multiply-accumulates in streams")
    return lines
