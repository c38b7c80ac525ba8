"""Compiled ONNX file from a model and plans.  No search here: the same inputs give the same bytes every time.

spec = ModelSpec(Path("model.onnx"), load_machine("edge"), DataType.float16) opened = lower_model(spec)                                  #
model checked and cleaned, a target graph of every piece measured = measure(opened, {"none": plan, "severe": other}) package(opened,
containers_of(opened, measured), Path("out.onnx"), "function")

A model that the NPU supports as a whole is one piece.  Functions with a target graph or a compiler are for one piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.model import LoweredModel
from compiler.ops.conv import ConvSpec
from compiler.ops.lower_graph import Packed
from compiler.package.onnx_out import PackedSubgraph, write_packed
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, joined
from compiler.segment.blocks import rows_needed
from compiler.segment.reorder import permute_to
from compiler.space.initial import layer_by_layer
from compiler.target.level_limits import at_level
from compiler.target.target_graph import TargetGraph
from simulator.build_controller_table import controller_table
from simulator.npu.container import Container, OperatorEntry, SegmentEntry, Variant
from simulator.npu.container_file import MAX_NAME, encode_chunks
from simulator.npu.controller_table import ControllerTable
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.grant import Grant, combined_needs
from simulator.npu.machine import Machine
from simulator.npu.program import Program
from simulator.onnx_names import Style
from simulator.subgraph_sequence import sum_timings
from simulator.timing import Timing, prepare, program_bound, simulate_levels


def default_plan(target_graph: TargetGraph, level: str | None = None) -> Plan:
    """Plan with one segment per operator, within the grant of a level if one is given.

    Raises `InfeasibleError` where such a plan does not fit the machine or the level.
    """
    plan = layer_by_layer(target_graph if level is None else at_level(target_graph, level))
    if isinstance(plan, Infeasible):
        less = level is not None and target_graph.machine.granted(level) != target_graph.machine.full_grant
        raise InfeasibleError(f"{target_graph.machine.name}: {f'no plan fits level {level}: ' if less else ''}{plan}")
    return plan if plan.machine == target_graph.machine_digest else plan.model_copy(update={"machine": target_graph.machine_digest})


def default_plans(opened: LoweredModel, level: str | None = None) -> Plan:
    """Layer by layer, every piece.  Raises as `default_plan`."""
    return joined({name: default_plan(target_graph, level) for name, target_graph in zip(opened.names, opened.target_graphs, strict=True)})


def default_by_level(opened: LoweredModel) -> dict[str, Plan]:
    """Level -> `default_plans` within its grant; levels with equal grants share the plans."""
    machine, plans = opened.machine, dict[Grant, Plan]()
    for level in machine.contention:
        if (granted := machine.granted(level)) not in plans:
            plans[granted] = default_plans(opened, level)
    return {level: plans[machine.granted(level)] for level in machine.contention}


def check_plan(target_graph: TargetGraph, plan: Plan, where: str) -> TargetGraph:
    """Target graph in the plan's order.

    Raises `BadInputError` where the plan was made for another model, machine or data type, or names other operators.
    """
    of_machine = {
        target_graph.machine.digest,
        target_graph.machine.floats_digest,
    }  # pieces of floats and of integers share the plan of one of them
    made_for = (
        ("model", plan.model, target_graph.graph.digest),
        ("machine", plan.machine, plan.machine if plan.machine in of_machine else target_graph.machine_digest),
        ("dtype", plan.dtype, target_graph.dtype.name),
    )
    for kind, plan_value, own_value in made_for:
        if plan_value != own_value:
            shown = target_graph.machine.name if kind == "machine" else target_graph.graph.name if kind == "model" else ""
            raise BadInputError(f"{where}: made for {kind} {plan_value}, this is {' '.join(filter(None, (shown, own_value)))}")
    permuted = permute_to(target_graph, [name for segment in plan.segments for name in segment.operators])
    if isinstance(permuted, Infeasible):
        raise BadInputError(f"{where}: {permuted}")
    return permuted


def plans_of_pieces(opened: LoweredModel, plan: Plan, where: str) -> tuple[Plan, ...]:
    """Parts of a plan, piece by piece.  Raises `BadInputError` where it is for other pieces."""
    made_for = tuple(piece.name for piece in plan.pieces) or opened.names[:1]
    if made_for != opened.names:
        raise BadInputError(f"{where}: a plan of {', '.join(made_for)}; {opened.name} runs in {', '.join(opened.names)}")
    return tuple(plan.piece(k) for k in range(len(opened.names)))


def compile_plan(compiler: Compiler, plan: Plan, where: str = "plan") -> Program:
    """One plan as a program.  Raises `BadInputError` (plan of another model), `InfeasibleError` (it does not fit)."""
    check_plan(compiler.target_graph, plan, where)
    program = compiler.compile(plan)
    if isinstance(program, Infeasible):
        raise InfeasibleError(f"{where}: does not fit {compiler.target_graph.machine.name}: {program}")
    return program


@dataclass(frozen=True, eq=False)
class MeasuredPiece:
    """Program of a plan for one subgraph, and its timings at all levels whose grant is large enough."""

    plan: Plan
    program: Program
    timings: Mapping[str, Timing]


def measure_plans(
    compiler: TargetGraph | Compiler, plans: Mapping[str, Plan], names: Mapping[str, str] | None = None
) -> dict[str, MeasuredPiece]:
    """Level -> its plan, compiled and timed at every level of `plans`; equal plans are compiled once and share one `MeasuredPiece`.

    Levels are in the machine's order.  names: names of the plans in errors, by level.
    Raises `BadInputError` (unknown level, plan of another model), `InfeasibleError` (also of a level that grants less).
    """
    compiler = compiler if isinstance(compiler, Compiler) else Compiler(compiler)
    machine = compiler.target_graph.machine
    check_levels(machine, plans)
    levels = tuple(level for level in machine.contention if level in plans)
    by_digest: dict[str, MeasuredPiece] = {}
    for level in levels:
        plan = plans[level]
        where = (names or {}).get(level, f"plan of level {level}")
        if plan.digest not in by_digest:
            program = compile_plan(compiler, plan, where)
            fits = [fitting_level for fitting_level in levels if program.needs.fits(machine.granted(fitting_level))]
            by_digest[plan.digest] = MeasuredPiece(plan, program, simulate_levels(program, machine, fits))
        if level not in by_digest[plan.digest].timings:
            shortage = by_digest[plan.digest].program.needs.shortage(machine.granted(level))
            raise InfeasibleError(
                f"{where}: does not fit level {level} of {machine.name}: {shortage}; accepted: another plan for that level"
            )
    return {level: by_digest[plans[level].digest] for level in levels}


def check_levels(machine: Machine, levels: Mapping[str, object]) -> None:
    """Raise `BadInputError` for a level that the machine does not have, or without levels."""
    unknown = [level for level in levels if level not in machine.contention]
    if unknown or not levels:
        problem = f"level {unknown[0]!r}: unknown" if unknown else "no level given"
        raise BadInputError(f"{problem}; levels of {machine.name}: {', '.join(machine.contention)}")


def container_of(
    packed: Packed,
    measured: Mapping[str, MeasuredPiece],
    digests: Mapping[str, str] | None = None,
    controller: ControllerTable | None = None,
) -> Container:
    """Container with a measured plan per level.  digests: level -> digest of the plan of the whole model.  controller: table of the whole
    model."""
    target_graph, constants = packed
    variants = tuple(
        Variant(
            level,
            m.program.streams,
            m.plan.digest if digests is None else digests[level],
            {other_level: m.timings[other_level].cycles if other_level in m.timings else None for other_level in measured},
            tuple(SegmentEntry(len(segment.operators), segment.blocks_of_strips) for segment in m.plan.segments),
        )
        for level, m in measured.items()
    )
    return Container(
        target_graph.graph.digest, target_graph.machine, target_graph.memory, variants, constants, operators(target_graph), controller
    )


def controller_of(programs: Mapping[str, Sequence[Program]], machine: Machine) -> ControllerTable:
    """The controller's table of a model; programs: level -> of its pieces.  Levels with equal programs are one variant."""
    first: dict[tuple[str, ...], str] = {}
    made_for = {
        level: first.setdefault(tuple(program.digest for program in piece_programs), level) for level, piece_programs in programs.items()
    }
    variants = {level: tuple(prepare(program, machine) for program in programs[level]) for level in first.values()}
    needs = {level: combined_needs(tuple(program.needs for program in programs[level])) for level in first.values()}
    return controller_table(variants, made_for, machine, needs)


def operators(target_graph: TargetGraph) -> tuple[OperatorEntry, ...]:
    """Operators that the TAGs of records name, with the work of each where no row is computed twice, or without a reader."""
    images = target_graph.storages[0].n
    entries = []
    for spec, rows in zip(target_graph.operators, rows_needed(target_graph), strict=True):
        macs = spec.macs * rows.size // spec.out_h * images
        accumulators = rows.size * spec.out_w * spec.groups * spec.n1 * spec.fractal.columns * images if isinstance(spec, ConvSpec) else 0
        entries.append(OperatorEntry(spec.name[:MAX_NAME], macs, accumulators))
    return tuple(entries)


def build_variants(packed: Packed, plans: Mapping[str, Plan]) -> Container:
    """The plan of each level compiled, every variant measured at every level, all in one container.

    Equal plans share one stream.  Raises as `measure_plans`.
    """
    measured = measure_plans(packed.target_graph, plans)
    controller = controller_of({level: (m.program,) for level, m in measured.items()}, packed.target_graph.machine)
    return container_of(packed, measured, controller=controller)


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """Plan of a model, and the programs of its subgraphs, which run one after the other.

    timings: level -> timing of all programs together, for levels whose grant is large enough for each of them.
    """

    plan: Plan
    pieces: tuple[MeasuredPiece, ...]
    timings: Mapping[str, Timing]

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(piece.program for piece in self.pieces)

    @property
    def instructions(self) -> int:
        return sum(program.instructions for program in self.programs)

    @property
    def digest(self) -> str:
        """Digest of the programs: equal for equal instruction streams."""
        return " ".join(program.digest for program in self.programs)

    def bound(self, machine: Machine, level: str) -> int:
        """Lower bound of the programs' cycles at a level."""
        return sum(program_bound(program, machine, machine.contention[level]) for program in self.programs)


def measure(opened: LoweredModel, plans: Mapping[str, Plan], names: Mapping[str, str] | None = None) -> dict[str, MeasuredModel]:
    """`measure_plans` for all subgraphs of a model.  plans: level -> plan of the whole model."""
    check_levels(opened.machine, plans)
    split = {level: plans_of_pieces(opened, plan, (names or {}).get(level, f"plan of level {level}")) for level, plan in plans.items()}
    by_piece = [
        measure_plans(compiler, {level: piece_plans[k] for level, piece_plans in split.items()}, names)
        for k, compiler in enumerate(opened.compilers)
    ]
    levels = list(by_piece[0])
    return {
        level: MeasuredModel(
            plans[level],
            tuple(measured[level] for measured in by_piece),
            {
                other_level: sum_timings([measured[level].timings[other_level] for measured in by_piece])
                for other_level in levels
                if all(other_level in measured[level].timings for measured in by_piece)
            },
        )
        for level in levels
    }


def same_programs(measured: dict[str, MeasuredModel]) -> dict[str, str | None]:
    """Level -> the first level that has the same programs; None for that first level itself."""
    first = {m.digest: level for level, m in reversed(measured.items())}
    return {level: None if first[m.digest] == level else first[m.digest] for level, m in measured.items()}


def containers_of(opened: LoweredModel, measured: Mapping[str, MeasuredModel]) -> tuple[Container, ...]:
    """Containers to ship, one per piece; all name the digest of the whole plan, and have its controller table."""
    digests = {level: m.plan.digest for level, m in measured.items()}
    controller = controller_of({level: m.programs for level, m in measured.items()}, opened.machine)
    return tuple(
        container_of(packed, {level: m.pieces[k] for level, m in measured.items()}, digests, controller)
        for k, packed in enumerate(opened.packed)
    )


def package(opened: LoweredModel, containers: Sequence[Container], out: Path, style: Style = "function") -> int:
    """Write the compiled ONNX file atomically; returns the containers' size in bytes.  Raises `BadInputError`, `UnsupportedError`."""
    packed = [
        PackedSubgraph(piece, container, tuple(encode_chunks(container)))
        for piece, container in zip(opened.written.pieces, containers, strict=True)
    ]
    write_packed(packed, opened.written, out, style, opened.source.model.name)
    return sum(container.size_bytes for container in packed)
