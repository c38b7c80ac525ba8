"""Runs of a compiled file under a changing background load: many inferences, and a controller that switches variants.

compiled = read_compiled("out.onnx")
runs = ContendedRuns(compiled, Contention(("bursty", 0), inferences=1000))
runs.chosen().mean_cycles, runs.static["none"].mean_cycles, runs.oracle.mean_cycles
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simulator.background_load import PortLoad, generate_trace, read_trace
from simulator.build_controller_table import thresholds_of
from simulator.bundle.c_rule import CThresholdRule
from simulator.compiled import Compiled
from simulator.controller import EstimatorRule, Oracle, StaticRule, SwitchingRule
from simulator.ddr import ContentionTrace
from simulator.grant_trace import GrantedRule, level_grants, read_grants
from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.level import SHARE_UNIT
from simulator.response import Response, measure_response, prepared_variants, share_grid
from simulator.runtime import Runtime, ServedRun
from simulator.thresholds import ManualThresholds, Thresholds


@dataclass(frozen=True)
class Contention:
    """Background load, and the controller that picks the variant of each inference.

    trace: path of a file, or name and seed of a generator.  controller: threshold, c (the same rule in C), estimator, static or oracle.
    level: level of `static`; None: the best one in hindsight.  by_hand: thresholds of `threshold` and `c`; None: derived from the variants.
    grants: file of grants over time (`simulator.grant_trace`); None: the grants of the machine's levels.
    """

    trace: Path | tuple[str, int]
    controller: str = "estimator"
    inferences: int = 1000
    level: str | None = None
    by_hand: ManualThresholds | None = None
    switch_cycles: int | None = None
    grants: Path | None = None


class ContendedRuns:
    """Runs of a compiled file under a load with a controller; each controller runs once, on first use."""

    def __init__(self, compiled: Compiled, contention: Contention) -> None:
        self.compiled, self.contention = compiled, contention
        if contention.level is not None:
            compiled.variants(contention.level)
        variants = prepared_variants(compiled)
        self.response = measure_response(variants, share_grid(compiled.machine))
        self.trace = self._trace()
        machine = compiled.machine
        self.grants = level_grants(self.trace, machine) if contention.grants is None else read_grants(contention.grants, machine)
        needs = None if self.grants is None else [compiled.needs(level) for level in variants]
        self.runtime = Runtime(variants, machine, contention.switch_cycles, needs)
        self.thresholds = self._thresholds(self.response) if contention.controller in ("threshold", "c") else None
        self._rule = self._rule_of(self.response, self.thresholds) if needs is None else self._granted_rule(needs)

    def _trace(self) -> ContentionTrace:
        """A trace from the file; or a generated one between the shares of the file's levels, in units of its longest inference."""
        trace = self.contention.trace
        if isinstance(trace, Path):
            return read_trace(trace)
        return generate_trace(*trace, load_of(self.compiled, self.response, self.contention.inferences))

    def _granted_rule(self, needs: Sequence[Grant]) -> GrantedRule:
        """The rule under grants.  Raises `BadInputError` where some grant fits no variant."""

        def make(fitting: tuple[int, ...]) -> SwitchingRule[Any]:
            response = self.response.among(fitting)
            return self._rule_of(response, None if self.thresholds is None else self._thresholds(response))

        rule = GrantedRule(needs, make)
        assert self.grants is not None
        for granted in self.grants.grants:
            rule.fitting(granted)
        return rule

    def _rule_of(self, response: Response, thresholds: Thresholds | None) -> SwitchingRule[Any]:
        if thresholds is None:
            return EstimatorRule(response, self.runtime.switch_cycles)
        return CThresholdRule(thresholds.rule) if self.contention.controller == "c" else thresholds.rule

    def _thresholds(self, response: Response) -> Thresholds:
        return thresholds_of(self.compiled, response, self.contention.by_hand or ManualThresholds())

    def serve(self, rule: SwitchingRule[Any] | GrantedRule | Oracle) -> ServedRun:
        return self.runtime.serve(rule, self.trace, inferences=self.contention.inferences, grants=self.grants)

    @cached_property
    def static(self) -> dict[str, ServedRun]:
        """Runs of single variants that fit every grant."""
        needs, granted = self.runtime.needs, () if self.grants is None else self.grants.grants
        fits = [needs is None or all(needs[v].fits(grant) for grant in granted) for v in range(len(self.runtime.names))]
        return {name: self.serve(StaticRule(v)) for v, name in enumerate(self.runtime.names) if fits[v]}

    @cached_property
    def oracle(self) -> ServedRun:
        return self.serve(Oracle())

    @cached_property
    def best(self) -> str | None:
        """The static variant that finishes first; None where none fits every grant."""
        return min(self.static, key=lambda name: self.static[name].cycles, default=None)

    @property
    def level(self) -> str | None:
        """The variant of the static controller; None for other controllers."""
        if self.contention.controller != "static":
            return None
        return self.best if self.contention.level is None else self.compiled.same_as(self.contention.level) or self.contention.level

    def chosen(self) -> ServedRun:
        """The run of the chosen controller."""
        if self.contention.controller == "static":
            if self.level not in self.static:
                subject = "no variant fits" if self.level is None else f"variant {self.level} does not fit"
                source = self.contention.grants or "the trace by the machine's levels"
                raise BadInputError(f"--controller static: {subject} all that {source} grants")
            return self.static[self.level]
        if self.contention.controller == "oracle":
            return self.oracle
        return self.serve(self._rule)


def load_of(compiled: Compiled, response: Response, inferences: int) -> PortLoad:
    """The load of a compiled file: its levels' shares; dwells count inferences of its longest variant at the heaviest level."""
    shares = tuple(compiled.level(level).share_units for level in compiled.levels)
    return PortLoad(shares, math.ceil(max(response.cycles_at(SHARE_UNIT / min(shares)))), inferences)
