"""`simulate --trace` and `trace --trace`: many inferences under a background load, with a controller that switches variants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simulator.breakdown import breakdown, program_reuse
from simulator.compiled import Compiled, read_compiled
from simulator.contention import GENERATORS, Load, generate, read_trace
from simulator.controller import EstimatorRule, Oracle, Rule, StaticRule
from simulator.ddr import ContentionTrace
from simulator.npu.errors import BadInputError
from simulator.npu.machine import SHARE_UNIT
from simulator.response import Response, measure_response, prepared_variants, share_grid
from simulator.runtime import Runtime, Served
from simulator.served_trace import served_trace
from simulator.terminal import print_line
from simulator.thresholds import Thresholds, choose_thresholds, one_pair
from tuner.commands.text import finite, print_json, print_table, ratio
from tuner.commands.tracefile import OPEN_IT, check_trace_out, write_trace_file


@dataclass(frozen=True)
class Contention:
    """Options of the command.

    controller: threshold, estimator, static or oracle.  t_min, t_max: both or neither.  level: for `static`; the best one in hindsight
    unless given.
    """

    trace: str
    controller: str
    inferences: int
    level: str | None = None
    t_min: float | None = None
    t_max: float | None = None
    slice_cycles: int | None = None
    switch_cycles: int | None = None


def simulate_contended(path: Path, options: Contention, as_json: bool) -> None:
    """Serve the inferences with the controller, with every variant alone and with the oracle, and compare."""
    runs = _Runs(path, options)
    machine, thresholds = runs.compiled.machine, runs.thresholds

    def row(served: Served) -> dict[str, Any]:
        return _row(served, runs.oracle, machine.clock_hz)

    report: dict[str, Any] = {
        "file": str(path),
        "machine": machine.name,
        "clock_hz": machine.clock_hz,
        "trace": options.trace,
        "controller": options.controller,
        "level": runs.level,
        "switch_cycles": runs.runtime.switch_cycles,
        "result": row(runs.chosen()),
        "static": {name: row(served) for name, served in runs.static.items()},
        "best_static": runs.best,
        "oracle": row(runs.oracle),
        "variants": {name: _variant(runs, v, name) for v, name in enumerate(runs.runtime.names)},
        "thresholds": _threshold_report(thresholds, runs.response) if thresholds else None,
    }
    if as_json:
        print_json(report)
    else:
        _print(report, runs.trace, thresholds)


def trace_contended(path: Path, options: Contention, out: Path) -> None:
    """Serve the inferences with the controller, and write which variant ran when."""
    check_trace_out(out)
    runs = _Runs(path, options)
    served = runs.chosen()
    about = {
        "file": path.name,
        "model": runs.compiled.model_digest,
        "trace": options.trace,
        "controller": options.controller,
        "level": runs.level,
        "switch_cycles": runs.runtime.switch_cycles,
    }
    events = write_trace_file(out, served_trace(served, runs.trace, runs.compiled.machine, about))
    who = options.controller if runs.level is None else f"static {runs.level}"
    print_line(
        f"{out}: {who}, {served.inferences:,} inferences, {served.cycles:,} cycles, {served.switches:,} switches, "
        f"{events:,} events, {out.stat().st_size:,} bytes"
    )
    print_line(OPEN_IT)


class _Runs:
    """The compiled file, the load and the controller that the options name, and what was served; nothing is run before it is asked for."""

    def __init__(self, path: Path, options: Contention) -> None:
        _check(options)
        self.options = options
        self.compiled = read_compiled(path)
        if options.level is not None:
            self.compiled.variants(options.level)
        variants = prepared_variants(self.compiled)
        self.response = measure_response(variants, share_grid(self.compiled.machine))
        self.trace = trace_of(options.trace, self.compiled, self.response, options.inferences)
        self.runtime = Runtime(variants, self.compiled.machine, options.switch_cycles)
        self.thresholds = _thresholds(options, self.compiled, self.response) if options.controller == "threshold" else None

    def serve(self, rule: Rule[Any] | Oracle) -> Served:
        return self.runtime.serve(rule, self.trace, inferences=self.options.inferences)

    @cached_property
    def static(self) -> dict[str, Served]:
        return {name: self.serve(StaticRule(v)) for v, name in enumerate(self.runtime.names)}

    @cached_property
    def oracle(self) -> Served:
        return self.serve(Oracle())

    @cached_property
    def best(self) -> str:
        """The static variant that is done first."""
        return min(self.static, key=lambda name: self.static[name].cycles)

    @property
    def level(self) -> str | None:
        """Which variant the static controller runs."""
        if self.options.controller != "static":
            return None
        return self.best if self.options.level is None else self.compiled.same_as(self.options.level) or self.options.level

    def chosen(self) -> Served:
        """By the controller of the options."""
        if self.level is not None:
            return self.static[self.level]
        if self.options.controller == "oracle":
            return self.oracle
        return self.serve(self.thresholds.rule if self.thresholds else EstimatorRule(self.response, self.runtime.switch_cycles))


def trace_of(text: str, compiled: Compiled, response: Response, inferences: int) -> ContentionTrace:
    """A file, or `kind:seed`: between the shares of the file's levels, for so many of its longest inferences at the heaviest of them."""
    kind, colon, seed = text.partition(":")
    if kind in GENERATORS and not (not colon and Path(text).is_file()):
        if not (seed.isascii() and seed.isdecimal() and len(seed) < 20):
            raise BadInputError(f"--trace {text}: expected {kind}:SEED with a seed of 0 or more")
        return generate(kind, int(seed), load_of(compiled, response, inferences))
    if not Path(text).is_file():
        raise BadInputError(
            f"--trace {text}: no such file; accepted: a CSV or .parquet file, or {', '.join(f'{k}:SEED' for k in GENERATORS)}"
        )
    return read_trace(Path(text))


def load_of(compiled: Compiled, response: Response, inferences: int) -> Load:
    """The load of a compiled file: its levels' shares; dwells count inferences of its longest variant at the heaviest level."""
    shares = tuple(compiled.share_units(level) for level in compiled.levels)
    return Load(shares, math.ceil(max(response.cycles_at(SHARE_UNIT / min(shares)))), inferences)


def _check(options: Contention) -> None:
    by_hand = (options.t_min, options.t_max)
    if options.controller != "threshold" and (*by_hand, options.slice_cycles) != (None, None, None):
        raise BadInputError(f"--t-min, --t-max and --slice are for --controller threshold, not {options.controller}")
    if (options.t_min is None) != (options.t_max is None):
        raise BadInputError("--t-min and --t-max: give both, or neither for thresholds chosen from the variants")
    if options.level is not None and options.controller != "static":
        raise BadInputError(f"--level with --trace is for --controller static, not {options.controller}")


def _thresholds(options: Contention, compiled: Compiled, response: Response) -> Thresholds:
    slice_cycles = options.slice_cycles or 0
    if options.t_min is None or options.t_max is None:
        return choose_thresholds(response, slice_cycles=slice_cycles)
    return one_pair(response, [compiled.share_units(name) for name in response.variants], options.t_min, options.t_max, slice_cycles)


def _row(served: Served, oracle: Served, clock_hz: int) -> dict[str, Any]:
    return {
        "inferences": served.inferences,
        "cycles": served.cycles,
        "mean_cycles": served.mean_cycles,
        "p50_cycles": served.percentile(50),
        "p99_cycles": served.percentile(99),
        "mean_us": served.mean_cycles / clock_hz * 1e6,
        "switches": served.switches,
        "variant_cycles": served.variant_cycles,
        "regret": served.regret(oracle),
    }


def _variant(runs: _Runs, v: int, name: str) -> dict[str, Any]:
    """What tells the variants apart: the use that each makes of its loads, and rho at every level's share."""
    compiled = runs.compiled
    reuse = program_reuse(breakdown(compiled.timeline(name), compiled.segments(name), compiled.operators))
    rho = {level: finite(runs.runtime.steady(v, compiled.share_units(level)).balance) for level in compiled.levels}
    return {"levels": [level for level in compiled.levels if (compiled.same_as(level) or level) == name], **asdict(reuse), "rho": rho}


def _threshold_report(thresholds: Thresholds, response: Response) -> dict[str, Any]:
    rule = thresholds.rule
    return {
        "ladder": [response.variants[v] for v in rule.ladder],
        "t_min": list(rule.t_min),
        "t_max": list(rule.t_max),
        "border_shares": [border.share for border in thresholds.borders] or None,
        "slice_cycles": rule.slice_cycles,
        "merged": [asdict(merged) for merged in thresholds.merged],
        "oscillations": [asdict(found) for found in thresholds.oscillations],
    }


def _print(report: Mapping[str, Any], trace: ContentionTrace, thresholds: Thresholds | None) -> None:
    shares = [share / SHARE_UNIT for share in trace.share_units]
    print_line(
        f"{report['file']}: {report['machine']}; trace {report['trace']}: {len(shares):,} steps, "
        f"shares {min(shares):.3g} to {max(shares):.3g}; cycles per switch: {report['switch_cycles']}"
    )
    name = report["controller"] if report["level"] is None else f"static {report['level']}"
    rows = {name: report["result"], **{f"static {level}": row for level, row in report["static"].items()}, "oracle": report["oracle"]}
    columns = ("<controller", "inferences", "mean us", "mean cycles", "p50", "p99", "switches", "over oracle", *report["static"])
    print_table(
        columns,
        [
            (
                f"{label} (best)" if label == f"static {report['best_static']}" else label,
                row["inferences"],
                f"{row['mean_us']:,.1f}",
                f"{row['mean_cycles']:,.0f}",
                row["p50_cycles"],
                row["p99_cycles"],
                row["switches"],
                f"{row['regret']:+.2%}",
                *(f"{spent / row['cycles']:.1%}" for spent in row["variant_cycles"].values()),
            )
            for label, row in rows.items()
        ],
    )
    levels = next(iter(report["variants"].values()))["rho"]
    print_line()
    print_line("blocks and operators computed per load, work done per work needed, and rho at the share of each level")
    print_table(
        ("<variant", "<for", "segments", "blocks", "blocks/load", "ops/load", "DDR B", "halo", *(f"rho {level}" for level in levels)),
        [
            (
                variant,
                ", ".join(row["levels"]),
                row["segments"],
                row["blocks"],
                ratio(row["blocks_per_load"], 2),
                ratio(row["operators_per_load"], 2),
                row["ddr_read_bytes"] + row["ddr_write_bytes"],
                ratio(row["halo"], 3),
                *("inf" if value is None else f"{value:.3f}" for value in row["rho"].values()),
            )
            for variant, row in report["variants"].items()
        ],
    )
    if thresholds is None:
        return
    found = report["thresholds"]
    print_line()
    print_line(
        f"thresholds of rho, held for {found['slice_cycles']:,} cycles and one inference at least; ladder {' > '.join(found['ladder'])}"
    )
    shares_at = found["border_shares"] or [None] * len(found["t_min"])
    print_table(
        ("<border", "share", "heavier below", "lighter from"),
        [
            (f"{a} | {b}", None if share is None else f"{share:.3f}", f"{low:.4g}", f"{high:.4g}")
            for a, b, share, low, high in zip(found["ladder"], found["ladder"][1:], shares_at, found["t_min"], found["t_max"], strict=False)
        ],
    )
    for merged in thresholds.merged:
        print_line(f"{merged.variant} is not used, {merged.into} is: {merged.why}")
    for oscillation in thresholds.oscillations:
        print_line(f"warning: {oscillation}")
