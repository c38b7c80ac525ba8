"""Many inferences back to back under a background load, with a controller that may switch variants between them.

Every inference begins with empty engines and undefined on-chip memory, as a program does, so it depends only on the variant and the load.
An inference with a constant share is looked up by (variant, share).  One during which the share changes is simulated with exactly
its part of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.controller import Observation, Oracle, SwitchingRule
from simulator.ddr import ContentionTrace
from simulator.grant_trace import GrantedRule, GrantTrace
from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine
from simulator.subgraph_sequence import sum_timings
from simulator.timing import Prepared, Timing, simulate_trace

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ServedRun:
    """Inferences of one run, in order.

    start, latency: int64 [n] cycles; the latency includes the cost of the switch before it, so start[i] + latency[i] = start[i + 1].
    variant: int64 [n], index into `variants`.  compute_cycles, load_store_cycles: int64 [n], as `timing.Timing` counts them.
    """

    variants: tuple[str, ...]
    start: Ints
    latency: Ints
    variant: Ints
    compute_cycles: Ints
    load_store_cycles: Ints

    @property
    def inferences(self) -> int:
        return len(self.latency)

    @property
    def cycles(self) -> int:
        """Cycles from the start of the first inference to the end of the last one."""
        return int(self.latency.sum())

    @property
    def mean_cycles(self) -> float:
        return self.cycles / self.inferences

    def percentile(self, percent: float) -> int:
        """Latency that `percent` of the inferences do not exceed (nearest rank)."""
        return int(np.percentile(self.latency, percent, method="inverted_cdf"))

    @property
    def switches(self) -> int:
        return int(np.count_nonzero(np.diff(self.variant)))

    @property
    def variant_cycles(self) -> dict[str, int]:
        """Cycles spent in each variant, by name."""
        spent = np.zeros(len(self.variants), np.int64)
        np.add.at(spent, self.variant, self.latency)
        return dict(zip(self.variants, spent.tolist(), strict=True))

    def regret(self, best: ServedRun) -> float:
        """Mean slowdown of an inference against another run, e.g. the oracle's, under the same trace, as a fraction."""
        return self.mean_cycles / best.mean_cycles - 1


class Runtime:
    """Variants of one compiled model on one machine.

    variants: name -> programs of an inference, run in sequence, prepared for `machine`.  switch_cycles: cost of a
    switch; default: `issue_cycles` of the machine, because a switch is one more instruction of the scalar unit, with another start
    address; nothing is loaded, addresses and weights are shared.  needs: need of every variant, for runs under grants.
    """

    def __init__(
        self,
        variants: Mapping[str, Sequence[Prepared]],
        machine: Machine,
        switch_cycles: int | None = None,
        needs: Sequence[Grant] | None = None,
    ) -> None:
        if not variants:
            raise BadInputError("runtime: no variants; accepted: at least one")
        self.switch_cycles = machine.issue_cycles if switch_cycles is None else switch_cycles
        if self.switch_cycles < 0:
            raise BadInputError(f"switch of {self.switch_cycles} cycles; accepted: 0 or more")
        self.names = tuple(variants)
        self.machine = machine
        self.needs = None if needs is None else tuple(needs)
        self._prepared = tuple(tuple(programs) for programs in variants.values())
        self._steady: dict[tuple[int, int, int], Timing] = {}

    def steady(self, variant: int, share_units: int) -> Timing:
        """Timing of an inference at a constant share."""
        return sum_timings([self._program_steady(variant, k, share_units) for k in range(len(self._prepared[variant]))])

    def inference(self, variant: int, trace: ContentionTrace, start: int) -> Timing:
        """Timing of an inference that starts at cycle `start` of a trace."""
        timings: list[Timing] = []
        for k in range(len(self._prepared[variant])):
            timings.append(self._program(variant, k, trace, start))
            start += timings[-1].cycles
        return sum_timings(timings)

    def _program_steady(self, variant: int, index: int, share_units: int) -> Timing:
        key = variant, index, share_units
        if key not in self._steady:
            self._steady[key] = simulate_trace(self._prepared[variant][index], self.machine, ContentionTrace.constant(share_units))
        return self._steady[key]

    def _program(self, variant: int, index: int, trace: ContentionTrace, start: int) -> Timing:
        """An inference of the index-th program of a variant."""
        timing = self._program_steady(variant, index, trace.share_at(start))
        shown_changes = 0
        # until it ends before the first change that it was not shown
        while (change_count := trace.changes(start, start + timing.cycles)) > shown_changes:
            shown_changes = change_count
            timing = simulate_trace(self._prepared[variant][index], self.machine, trace.after(start, shown_changes))
        return timing

    def serve(
        self,
        rule: SwitchingRule[Any] | GrantedRule | Oracle,
        trace: ContentionTrace,
        *,
        inferences: int | None = None,
        until_cycle: int | None = None,
        grants: GrantTrace | None = None,
    ) -> ServedRun:
        """Run inferences back to back: a number of them, or all that start before a cycle (then every controller sees the same load).

        grants: grants over time; None: the whole machine.  Raises `BadInputError` unless exactly one of `inferences` and
        `until_cycle` is given and at least 1, and if no variant, or not the chosen one, fits the grant.
        """
        if (inferences is None) == (until_cycle is None) or (inferences or until_cycle or 0) < 1:
            raise BadInputError(f"{inferences} inferences, until cycle {until_cycle}; accepted: one of them, 1 or more")
        state: Any = None if isinstance(rule, Oracle | GrantedRule) else rule.start()
        starts: list[int] = []
        latencies: list[int] = []
        variants: list[int] = []
        computes: list[int] = []
        load_stores: list[int] = []
        now = 0
        while len(starts) < inferences if inferences is not None else now < (until_cycle or 0):
            previous = variants[-1] if variants else None
            granted = self.machine.full_grant if grants is None else grants.at(now)
            # a grant is acknowledged before the inference; the rule then chooses among the variants that fit
            if isinstance(rule, GrantedRule):
                state = rule.with_grant(state, granted)
            variant = self._fastest_variant(trace, now, previous, self._fitting(granted)) if state is None else state.variant
            if self.needs is not None and (shortage := self.needs[variant].shortage(granted)):
                raise BadInputError(f"variant {self.names[variant]} does not fit what is granted at cycle {now}: {shortage}")
            begin = now + self._cost(previous, variant)
            timing = self.inference(variant, trace, begin)
            end = begin + timing.cycles
            # the counters are all that a rule sees
            if not isinstance(rule, Oracle):
                ddr_bytes = timing.ddr_read_bytes + timing.ddr_write_bytes
                state = rule.step(state, Observation(variant, begin, end, timing.compute_cycles, timing.load_store_cycles, ddr_bytes))
            starts.append(now)
            latencies.append(end - now)
            variants.append(variant)
            computes.append(timing.compute_cycles)
            load_stores.append(timing.load_store_cycles)
            if end == now:
                raise BadInputError(f"variant {self.names[variant]} takes no time; accepted: programs with instructions")
            now = end
        return ServedRun(self.names, *(np.array(column, np.int64) for column in (starts, latencies, variants, computes, load_stores)))

    def _cost(self, previous: int | None, variant: int) -> int:
        return 0 if previous in (None, variant) else self.switch_cycles

    def _fitting(self, granted: Grant) -> Sequence[int]:
        every = range(len(self.names))
        return every if self.needs is None else [v for v in every if self.needs[v].fits(granted)]

    def _fastest_variant(self, trace: ContentionTrace, now: int, previous: int | None, fitting: Sequence[int]) -> int:
        """The variant that finishes first; the present one in a tie, else the first of them."""

        def finish(variant: int) -> tuple[int, bool, int]:
            begin = now + self._cost(previous, variant)
            return begin + self.inference(variant, trace, begin).cycles, variant != previous, variant

        if not fitting:
            raise BadInputError(f"no variant fits what is granted at cycle {now}")
        return min(fitting, key=finish)
