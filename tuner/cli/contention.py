"""Options `simulate --trace` and `trace --trace`: many inferences under a background load, with a controller that switches variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.background_load import GENERATORS
from simulator.breakdown import breakdown, program_reuse
from simulator.bundle.read import read_model
from simulator.contended_runs import ContendedRuns, Contention
from simulator.ddr import ContentionTrace
from simulator.grant_trace import GrantTrace
from simulator.npu.controller_table import RHO_UNIT
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.response import Response
from simulator.runtime import ServedRun
from simulator.served_trace import trace_served
from simulator.terminal import print_line
from simulator.thresholds import Thresholds
from simulator.trace_events import Trace
from tuner.cli.options import LoadOptions
from tuner.cli.text import finite_or_none, print_json, print_table, ratio


def simulate_contended(path: Path, load: LoadOptions, level: str | None, as_json: bool) -> None:
    """Serve the inferences with the controller, with every single variant and with the oracle, and compare."""
    runs, header = _runs(path, load, level)
    machine, thresholds = runs.compiled.machine, runs.thresholds

    def row(served: ServedRun) -> dict[str, Any]:
        return _row(served, runs.oracle, machine.clock_hz)

    chosen_runs = runs.chosen()
    report: dict[str, Any] = {
        "file": str(path),
        "machine": machine.name,
        "clock_hz": machine.clock_hz,
        **header,
        "result": row(chosen_runs),
        "static": {name: row(served) for name, served in runs.static.items()},
        "best_static": runs.best,
        "oracle": row(runs.oracle),
        "variants": {name: _variant(runs, v, name) for v, name in enumerate(runs.runtime.names)},
        "thresholds": _threshold_report(thresholds, runs.response) if thresholds else None,
        "granted": None if runs.grants is None else _granted(runs, runs.grants, chosen_runs),
    }
    if as_json:
        print_json(report)
    else:
        _print(report, runs.trace, thresholds)


def trace_inferences(path: Path, load: LoadOptions, level: str | None) -> tuple[Trace, str]:
    """Serve the inferences with the controller: the trace, and a line that describes it."""
    runs, header = _runs(path, load, level)
    served = runs.chosen()
    trace = trace_served(served, runs.trace, runs.compiled.machine, {"file": path.name, "model": runs.compiled.model_digest, **header})
    policy = header["controller"] if runs.level is None else f"static {runs.level}"
    return trace, f"{policy}, {served.inferences:,} inferences, {served.cycles:,} cycles, {served.switches:,} switches"


def _runs(path: Path, load: LoadOptions, level: str | None) -> tuple[ContendedRuns, dict[str, Any]]:
    """Contended runs, not started yet, and the fields that a report identifies them by."""
    controller = load.controller or "estimator"
    by_hand = load.by_hand()
    if controller not in ("threshold", "c") and by_hand is not None:
        raise BadInputError(f"--t-min, --t-max and --slice are for --controller threshold, not {controller}")
    if level is not None and controller != "static":
        raise BadInputError(f"--level with --trace is for --controller static, not {controller}")
    trace, inferences = _trace(load.trace or ""), 1000 if load.inferences is None else load.inferences
    contention = Contention(trace, controller, inferences, level, by_hand, load.switch_cycles, load.grants)
    runs = ContendedRuns(read_model(path), contention)
    header = {"trace": load.trace, "controller": controller, "level": runs.level, "switch_cycles": runs.runtime.switch_cycles}
    return runs, header | ({} if load.grants is None else {"grants": str(load.grants)})


def _trace(text: str) -> Path | tuple[str, int]:
    """A trace file, or `kind:seed` of a generator."""
    kind, colon, seed = text.partition(":")
    if kind in GENERATORS and not (not colon and Path(text).is_file()):
        if not (seed.isascii() and seed.isdecimal() and len(seed) < 20):
            raise BadInputError(f"--trace {text}: expected {kind}:SEED with a seed of 0 or more")
        return kind, int(seed)
    if not Path(text).is_file():
        raise BadInputError(
            f"--trace {text}: no such file; accepted: a CSV or .parquet file, or {', '.join(f'{k}:SEED' for k in GENERATORS)}"
        )
    return Path(text)


def _row(served: ServedRun, oracle: ServedRun, clock_hz: int) -> dict[str, Any]:
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


def _granted(runs: ContendedRuns, grants: GrantTrace, served: ServedRun) -> dict[str, Any]:
    """Granted resources by cycle with the variants that fit, needs of each variant, and the longest wait of an announcement."""
    names, requirements = runs.runtime.names, runs.runtime.needs or ()
    steps = [
        {"cycle": cycle, **granted._asdict(), "fits": [name for name, need in zip(names, requirements, strict=True) if need.fits(granted)]}
        for cycle, granted in zip(grants.cycles, grants.grants, strict=True)
    ]
    wait = grants.longest_wait(served.start.tolist(), served.cycles)
    return {
        "needs": {name: need._asdict() for name, need in zip(names, requirements, strict=True)},
        "steps": steps,
        "longest_wait_cycles": wait,
    }


def _variant(runs: ContendedRuns, variant: int, name: str) -> dict[str, Any]:
    """Differences of the variants: reuse of loads, and rho at the share of every level."""
    compiled = runs.compiled
    reuse = program_reuse(breakdown(compiled.timeline(name), compiled.segments(name), compiled.operators))
    rho = {level: finite_or_none(runs.runtime.steady(variant, compiled.level(level).share_units).balance) for level in compiled.levels}
    return {"levels": [level for level in compiled.levels if (compiled.same_as(level) or level) == name], **asdict(reuse), "rho": rho}


def _threshold_report(thresholds: Thresholds, response: Response) -> dict[str, Any]:
    rule = thresholds.rule
    return {
        "ladder": [response.variants[v] for v in rule.ladder],
        "t_min": [t / RHO_UNIT for t in rule.t_min],
        "t_max": [t / RHO_UNIT for t in rule.t_max],
        "border_shares": [border.share for border in thresholds.borders] or None,
        "slice_cycles": rule.slice_cycles,
        "merged": [asdict(merge) for merge in thresholds.merged],
        "oscillations": [asdict(oscillation) for oscillation in thresholds.oscillations],
    }


def _gain(name: str, result: Mapping[str, Any], static: Mapping[str, Mapping[str, Any]], best: str) -> str:
    reduction = 1 - result["mean_cycles"] / static[best]["mean_cycles"]
    return f"{name} takes {abs(reduction):.1%} {'less' if reduction >= 0 else 'more'} time than the best variant alone, {best}"


_GRANTED = {"l1_bytes": "L1 B", "shared_bytes": "shared B", "cores": "cores"}


def _print_granted(granted: Mapping[str, Any]) -> None:
    """Print columns only for resources that change, or that some variant lacks."""
    steps, requirements = granted["steps"], granted["needs"]
    keys = [
        key
        for key in _GRANTED
        if len({step[key] for step in steps}) > 1 or any(need[key] > steps[0][key] for need in requirements.values())
    ]
    print_line()
    print_line(f"grants, acknowledged after at most {granted['longest_wait_cycles']:,} cycles, and the variants that fit them")
    rows = [(step["cycle"], *(step[key] for key in keys), ", ".join(step["fits"])) for step in steps]
    print_table(("from cycle", *(_GRANTED[key] for key in keys), "<fits"), rows)
    print_table(
        ("<variant", *(f"needs {_GRANTED[key]}" for key in keys)),
        [(name, *(need[key] for key in keys)) for name, need in requirements.items()],
    )


def _print(report: Mapping[str, Any], trace: ContentionTrace, thresholds: Thresholds | None) -> None:
    shares = [share / SHARE_UNIT for share in trace.share_units]
    print_line(
        f"{report['file']}: {report['machine']}; trace {report['trace']}: {len(shares):,} steps, "
        f"shares {min(shares):.3g} to {max(shares):.3g}; cycles per switch: {report['switch_cycles']}"
    )
    _print_controllers(report)
    if report["granted"] is not None:
        _print_granted(report["granted"])
    _print_variants(report["variants"])
    if thresholds is not None:
        _print_thresholds(report["thresholds"], thresholds, report["granted"] is not None)


def _print_controllers(report: Mapping[str, Any]) -> None:
    """Print times of the controller, of the static variants and of the oracle; and the controller's gain over the best static one."""
    name = report["controller"] if report["level"] is None else f"static {report['level']}"
    rows = {name: report["result"], **{f"static {level}": row for level, row in report["static"].items()}, "oracle": report["oracle"]}
    columns = (
        "<controller",
        "inferences",
        "mean us",
        "mean cycles",
        "p50",
        "p99",
        "switches",
        "over oracle",
        *report["result"]["variant_cycles"],
    )
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
                # share of the time in each variant
                *(f"{variant_cycles / row['cycles']:.1%}" for variant_cycles in row["variant_cycles"].values()),
            )
            for label, row in rows.items()
        ],
    )
    if report["best_static"] not in (None, report["level"]):
        print_line(_gain(name, report["result"], report["static"], report["best_static"]))


def _print_variants(variants: Mapping[str, Any]) -> None:
    """Print loads, traffic and rho of each variant."""
    levels = next(iter(variants.values()))["rho"]
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
            for variant, row in variants.items()
        ],
    )


def _print_thresholds(rule: Mapping[str, Any], thresholds: Thresholds, has_grants: bool) -> None:
    """Print the thresholds of the controller.  has_grants: levels grant different memory or cores."""
    print_line()
    duration = f"held for {rule['slice_cycles']:,} cycles and one inference at least"
    condition = "where all variants fit, " if has_grants else ""
    print_line(f"{condition}thresholds of rho, {duration}; ladder {' > '.join(rule['ladder'])}")
    border_shares = rule["border_shares"] or [None] * len(rule["t_min"])
    if border_shares:
        print_table(
            ("<border", "share", "heavier below", "lighter from"),
            [
                (f"{a} | {b}", None if share is None else f"{share:.3f}", f"{low:.4g}", f"{high:.4g}")
                for a, b, share, low, high in zip(
                    rule["ladder"], rule["ladder"][1:], border_shares, rule["t_min"], rule["t_max"], strict=False
                )
            ],
        )
    for merge in thresholds.merged:
        print_line(f"{merge.variant} is not used, {merge.into} is: {merge.why}")
    for oscillation in thresholds.oscillations:
        print_line(f"warning: {oscillation}")
