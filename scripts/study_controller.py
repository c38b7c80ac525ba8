"""Study of run-time controllers: {threshold, estimator, best static, oracle} x {step, periodic, bursty, adversarial}.

For every network (a run folder, a compiled ONNX file, or by default small runs tuned here): first the largest possible gain, the best
static variant's time over the oracle's; then the gain of each rule.  The best static variant is chosen in hindsight for each trace, the
strongest reference.  All see the same trace for the same cycles, and are compared by cycles per inference.  Settings of the rules are
chosen on traces with other seeds than the reported ones.  The goals are printed with the figure that was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

import tuner
from scripts.studies import (
    Candidates,
    Json,
    Networks,
    Row,
    Table,
    finish,
    goal,
    groups,
    model_named,
    network_list,
    short,
    spent_s,
    write_rows,
)
from simulator.background_load import GENERATORS, generate_trace
from simulator.compiled import read_compiled
from simulator.contended_runs import load_of
from simulator.controller import EstimatorRule, Oracle, StaticRule, SwitchingRule
from simulator.grant_trace import GrantedRule, GrantTrace, level_grants
from simulator.response import Response, measure_response, prepared_variants, share_grid
from simulator.runtime import Runtime, ServedRun
from simulator.thresholds import choose_thresholds

OTHER_SEEDS = 1000  # the settings are chosen on traces from here on
NEAR_ORACLE, OVER_STATIC = 0.05, 0.02  # the goals


@dataclass(frozen=True)
class ThresholdSetting:
    """slice_inferences: time slice in inferences of the longest variant at the heaviest level."""

    hysteresis: float = 0.05
    slice_inferences: float = 0.0


@dataclass(frozen=True)
class EstimatorSetting:
    weight: float = 1.0
    margin: float = 0.005
    dwell: int = 1
    loss_budget: float = 0.005


Setting = ThresholdSetting | EstimatorSetting
THRESHOLDS = [ThresholdSetting(*values) for values in product((0.02, 0.05, 0.2), (0.0, 1.0, 3.0))]
ESTIMATORS = [EstimatorSetting(*values) for values in product((1.0, 0.5), (0.005, 0.02), (1, 4), (0.0025, 0.005))]
RULES: dict[str, list[Setting]] = {"threshold": [*THRESHOLDS], "estimator": [*ESTIMATORS]}


@dataclass(frozen=True)
class Trial:
    """One trace, with the times of the oracle and of the static variants that fit all of its grants."""

    kind: str
    seed: int
    serve: Callable[[GrantedRule], ServedRun]
    static: dict[str, ServedRun]
    oracle: ServedRun

    @property
    def best(self) -> str:
        return min(self.static, key=lambda name: self.static[name].mean_cycles)


class Network:
    """Compiled file, run under traces."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.compiled = name, read_compiled(path)
        machine, variants = self.compiled.machine, prepared_variants(self.compiled)
        self.response: Response = measure_response(variants, share_grid(machine))
        self.requirements = [self.compiled.needs(level) for level in variants]
        self.runtime = Runtime(variants, machine, needs=self.requirements)

    def rule(self, setting: Setting) -> GrantedRule:
        return GrantedRule(self.requirements, lambda fitting: self._rule(setting, self.response.among(fitting)))

    def _rule(self, setting: Setting, response: Response) -> SwitchingRule[Any]:
        if isinstance(setting, ThresholdSetting):
            slice_cycles = round(setting.slice_inferences * load_of(self.compiled, self.response, 1).inference_cycles)
            return choose_thresholds(response, setting.hysteresis, slice_cycles).rule
        s = setting
        return EstimatorRule(response, self.runtime.switch_cycles, s.weight, s.margin, s.dwell, s.loss_budget)

    def trial(self, kind: str, seed: int, inferences: int) -> Trial:
        load = load_of(self.compiled, self.response, inferences)
        trace, end_cycles = generate_trace(kind, seed, load), load.inferences * load.inference_cycles
        machine = self.runtime.machine
        grants = level_grants(trace, machine) or GrantTrace((0,), (machine.full_grant,))

        def serve(rule: SwitchingRule[Any] | GrantedRule | Oracle) -> ServedRun:
            return self.runtime.serve(rule, trace, until_cycle=end_cycles, grants=grants)

        fitting = [v for v, requirement in enumerate(self.requirements) if all(requirement.fits(granted) for granted in grants.grants)]
        static = {self.runtime.names[v]: serve(StaticRule(v)) for v in fitting}
        return Trial(kind, seed, serve, static, serve(Oracle()))


def choose(settings: Iterable[Setting], networks: list[tuple[Network, list[Trial]]]) -> Setting:
    """Setting nearest to the oracle on average, among those within a limit of the best static variant."""

    def badness(setting: Setting) -> tuple[float, float]:
        over_oracle, over_static = [], []
        for network, trials in networks:
            rule = network.rule(setting)
            for trial in trials:
                served = trial.serve(rule)
                over_oracle.append(served.regret(trial.oracle))
                over_static.append(served.regret(trial.static[trial.best]))
        # half of the goal: other traces may be worse than these
        return max(0.0, max(over_static) - OVER_STATIC / 2), mean(over_oracle)

    return min(settings, key=badness)


def study(network: Network, trials: list[Trial], settings: dict[str, Setting]) -> Iterator[Row]:
    """A row per trial."""
    for trial in trials:
        best = trial.static[trial.best]
        row: Row = {
            "network": network.name, "trace": trial.kind, "seed": trial.seed, "inferences": trial.oracle.inferences,
            "oracle_cycles": trial.oracle.mean_cycles, "best_static": trial.best, "to_win": best.regret(trial.oracle),
        }  # fmt: skip
        for name, setting in settings.items():
            served = trial.serve(network.rule(setting))
            row |= {f"{name}_over_oracle": served.regret(trial.oracle), f"{name}_over_static": served.regret(best)}
            row[f"{name}_switches"] = served.switches
        yield row


def compiled(paths: list[Path], out: Path, networks: str, machine: str, candidates: int) -> list[tuple[str, Path]]:
    """(name, compiled file) of the given paths, or of small runs, which are tuned if absent."""
    if paths:
        return [(path.name, path / "best.onnx") if path.is_dir() else (path.stem, path) for path in paths]
    result = []
    for name in network_list(networks):
        run = out / short(name)
        if not (run / "best.onnx").is_file():
            tuner.tune(model_named(name), machine, run, candidates=candidates, backend="serial")
        result.append((short(name), run / "best.onnx"))
    return result


def tables(rows: list[Row]) -> Iterator[Table | str]:
    """Tables of docs/contention.md, and the goals with the reached figures."""
    kinds, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("trace", "network"))
    rows_by_cell = groups(rows, "network", "trace")

    def column(network_name: str, kind: str, key: str) -> list[float]:
        return [row[key] for row in rows_by_cell[network_name, kind]]

    yield "what can be won: the best static variant's cycles over the oracle's (mean over seeds)"
    yield Table(("<network", *kinds), [(name, *(f"{mean(column(name, kind, 'to_win')):.2%}" for kind in kinds)) for name in names])
    yield "\nover the oracle (mean), over the best static variant (worst seed), switches (mean)"

    def cell(rule: str, name: str, kind: str) -> str:
        oracle, static, switches = (column(name, kind, f"{rule}_{key}") for key in ("over_oracle", "over_static", "switches"))
        return f"{mean(oracle):.2%} ({max(static):+.2%}), {mean(switches):.0f}"

    cells = [(rule, name, *(cell(rule, name, kind) for kind in kinds)) for rule, name in product(RULES, names)]
    yield Table(("<rule", "<network", *kinds), cells)
    yield "\ngoals"
    for rule in RULES:
        if held_ratios := [row[f"{rule}_over_oracle"] for row in rows if row["trace"] != "adversarial"]:
            near_text = f"at most {max(held_ratios):.2%} over the oracle where a share is held (goal {NEAR_ORACLE:.0%})"
            yield f"  {rule}: {near_text}: {goal(max(held_ratios) <= NEAR_ORACLE)}"
        largest = max(row[f"{rule}_over_static"] for row in rows)
        far = f"at most {largest:+.2%} over the best static variant anywhere (goal {OVER_STATIC:+.0%})"
        yield f"  {rule}: {far}: {goal(largest <= OVER_STATIC)}"


def main(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN|FILE.onnx]...", help="Run folders or compiled ONNX files; without them, small runs tuned here."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for controller.csv and the runs; finished runs in it are used again.")],
    networks: Networks = "squeezenet,shufflenet,densenet121",
    machine: Annotated[str, typer.Option(help="Machine of these runs.")] = "edge",
    candidates: Candidates = 256,
    seeds: Annotated[int, typer.Option(help="Traces of each kind that are reported, seeds 0..")] = 5,
    other_seeds: Annotated[int, typer.Option(help=f"Traces of each kind to choose settings on, seeds {OTHER_SEEDS}..")] = 2,
    inferences: Annotated[int, typer.Option(help="Length of a trace, in longest inferences at the heaviest level.")] = 400,
    traces: Annotated[str, typer.Option(help="Kinds of traces.")] = ",".join(GENERATORS),
    as_json: Json = False,
) -> None:
    """Run-time controllers against the best static variant and an oracle, on traces of load."""
    out = out.resolve()
    served = [Network(name, path) for name, path in compiled(files or [], out, networks, machine, candidates)]
    kinds, report = traces.split(","), list[Table | str]()
    for network in served:
        thresholds = choose_thresholds(network.response)
        report.append(
            f"{network.name}: variants {', '.join(network.runtime.names)}; levels of the file {', '.join(network.compiled.levels)}"
        )
        report += [f"  threshold rule: {merge.variant} is not used, {merge.into} is: {merge.why}" for merge in thresholds.merged]
        report += [f"  threshold rule {oscillation}" for oscillation in thresholds.oscillations]

    def trials(first: int, count: int) -> list[tuple[Network, list[Trial]]]:
        return [(n, [n.trial(k, s, inferences) for k in kinds for s in range(first, first + count)]) for n in served]

    tuning_trials = trials(OTHER_SEEDS, other_seeds)
    best_settings = {rule: choose(settings, tuning_trials) for rule, settings in RULES.items()}
    report += [f"chosen on seeds {OTHER_SEEDS}..{OTHER_SEEDS + other_seeds - 1}: {setting}" for setting in best_settings.values()]
    rows = [row for network, network_trials in trials(0, seeds) for row in study(network, network_trials, best_settings)]
    write_rows(out / "controller.csv", rows)
    finish("controller", out, rows, [*report, "", *tables(rows)], spent_s(), as_json)
