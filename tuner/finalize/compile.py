"""Plans of a run, compiled: programs at every level, the variants that ship, one file, and its values against onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compiler.build import MeasuredModel, containers_of, measure, package, same_programs
from compiler.model import LoweredModel
from compiler.package import file_with_body
from compiler.package.stack_files import PackagedFiles
from compiler.plan.plan import Plan
from simulator.npu.errors import InfeasibleError, TilefarmError, UnsupportedError
from simulator.npu.files import atomic_write
from simulator.onnx_names import Style
from simulator.session import InferenceSession
from simulator.terminal import say
from tuner.config import NPU, TuneConfig
from tuner.farm.board_finals import cycles_read
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.finalize.champions import ChosenPlans, write_plans
from tuner.finalize.packagers import is_packaged, package_plans
from tuner.platform.crash import error_line
from tuner.platform.local_files import LocalPath
from tuner.run_session import SessionEnd
from tuner.runs.folder import RunFolder
from tuner.selection.variant_choice import Candidates, ShippedVariants, choose_variants, unjudged_reason
from tuner.tune_request import TuneRequest
from tuner.verify.check import random_feeds
from tuner.verify.fixed_point import apply_fixed_point
from tuner.verify.reference import StoredTensors, run_reference
from tuner.verify.values import Values, compare_values


class CompiledRun(NamedTuple):
    """Programs of a run; `shipped` ones are in the file.  read: digest of a plan -> level -> cycles on a board; None without one.

    packaged: files of a part's own stack, beside `best.onnx`; None without them.
    same_as: level -> level whose variant has the same programs.  values: level -> checked values; {} if they could not be compared, as
    `unconfirmed` says.
    """

    shipped: ShippedVariants
    baselines: Mapping[str, MeasuredModel]
    read: Mapping[str, Mapping[str, int]] | None
    same_as: Mapping[str, str | None]
    values: Mapping[str, Values]
    unconfirmed: tuple[str, ...]
    packaged: PackagedFiles | None = None


def compile_plans(
    model: LoweredModel, end: SessionEnd[LocalPath], choice: ChosenPlans, config: TuneConfig, request: TuneRequest
) -> CompiledRun:
    """Compiled variants, written to `best.onnx`, `plans/`, and files of a part's own stack.

    Raises `InfeasibleError` where the NPU has no program for a champion.
    """
    folder, searches, runs = end
    levels, is_simulated = runs[0].levels, config.target.name == NPU
    try:
        champions = measure(model, choice.champions)
    except InfeasibleError as error:
        if is_simulated:
            raise
        raise InfeasibleError(
            f"the NPU has no program for a champion of target {config.target.name}: {error}; plans: {folder.plans}"
        ) from None
    if is_simulated and not choice.verdicts:
        _check_cycles(searches, choice, champions)
    read = None
    if choice.verdicts:
        read = {choice.plans[name].digest: cycles_read(searches, choice.verdicts, p, levels) for name, p in choice.by_search.items()}
    candidates = Candidates(champions, _measured_robust(model, choice.plans.get("robust"), levels, is_simulated))
    why_not_judged = unjudged_reason(config.runner.name, config.target.name)
    selection = choose_variants(model, candidates, request.variants, read, why_not_judged, request.insure)
    write_plans(folder.plans, {level: variant.plan for level, variant in selection.variants.items()})
    baselines = measure(model, choice.baselines)
    package(model, containers_of(model, selection.variants), folder.best, request.style)
    plans = {level: variant.plan for level, variant in selection.variants.items()}
    package_files = _write_packaged(model, plans, folder, request.quiet) if is_packaged(model) else None
    stack_faults = (package_files,) if isinstance(package_files, str) else ()
    files = None if isinstance(package_files, str) else package_files
    same_as = same_programs(selection.variants)
    try:
        values = _compare_values(model, folder, same_as, request.style)
    except (TilefarmError, OSError) as error:  # a finished search is not lost because of a failed comparison
        return CompiledRun(
            selection, baselines, read, same_as, {}, (*stack_faults, f"not compared with onnxruntime: {error_line(error)}"), files
        )
    faults = stack_faults + tuple(f"level {level}: {fault}" for level in values if same_as[level] is None for fault in values[level].faults)
    return CompiledRun(selection, baselines, read, same_as, values, faults, files)


def _write_packaged(
    model: LoweredModel, plans: Mapping[str, Plan], folder: RunFolder[LocalPath], quiet: bool
) -> PackagedFiles | str | None:
    """Files of a part's own stack beside `best.onnx`; the reason where it has no room for the plans, None where it cannot run the model."""
    try:
        package_files = package_plans(model, plans)
    except InfeasibleError as error:  # a finished search is not lost because of it
        return f"no command stream: {error_line(error)}"
    except UnsupportedError as error:
        if not quiet:
            say(f"no command stream: {error_line(error)}")
        return None
    for suffix, content in package_files.files.items():
        atomic_write(folder.best.with_suffix(suffix), [content])
    return package_files


def _check_cycles(searches: Sequence[SearchedSubgraph], choice: ChosenPlans, champions: Mapping[str, MeasuredModel]) -> None:
    """Raise `RuntimeError` if a compiled champion differs from the measured cycles."""
    for i, level in enumerate(choice.champions):
        for search, end in zip(searches, choice.ends, strict=True):
            cycles, search_cycles = champions[level].pieces[search.pieces[0]].timings[level].cycles, int(end.best[i].cycles[i])
            if cycles != search_cycles:
                raise RuntimeError(f"level {level}: the champion took {search_cycles} cycles when measured, {cycles} when compiled")


def _measured_robust(model: LoweredModel, plan: Plan | None, levels: Sequence[str], is_simulated: bool) -> MeasuredModel | None:
    """Robust program; None without one, or if another target chose a plan that does not fit the NPU."""
    if plan is None:
        return None
    try:
        return measure(model, dict.fromkeys(levels, plan))[levels[0]]
    except InfeasibleError:
        if is_simulated:
            raise
        return None


def _compare_values(
    model: LoweredModel, folder: RunFolder[LocalPath], same_as: Mapping[str, str | None], style: Style
) -> dict[str, Values]:
    """Values of every distinct variant, executed from the file that was written, against onnxruntime on its body."""
    session = InferenceSession(folder.best)
    feeds = random_feeds(session, 0)
    values: dict[str, Values] = {}
    with file_with_body(model.written, folder.best, style, folder.path / ".tmp") as body:
        reference = apply_fixed_point(
            run_reference(body, feeds, StoredTensors.of(session.compiled)), session.compiled, folder.best, feeds, body
        )
        for level, twin in same_as.items():
            values[level] = compare_values(session, feeds, reference, level) if twin is None else values[twin]
    return values
