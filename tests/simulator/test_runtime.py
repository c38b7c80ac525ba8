"""Inferences back to back on `tiny`, worked out on paper.

Reads get a block (32 bytes) per cycle at full bandwidth after 4 cycles of latency.  Two variants of the same work:

* light: 10 blocks beside 5 cycles of VECTOR: max(5, 4 + 10 / s) cycles at share s, rho 5 s / 10
* heavy: 4 blocks beside 20 cycles of VECTOR: max(20, 4 + 4 / s) cycles, rho 20 s / 4

They cross at s = 10 / 16.
"""

from __future__ import annotations

import numpy as np
import pytest

from simulator.background_load import GENERATORS, PortLoad, generate_trace
from simulator.compiled import Compiled
from simulator.controller import EstimatorRule, Observation, Oracle, StaticRule, StaticState, SwitchingRule, ThresholdRule
from simulator.ddr import ContentionTrace
from simulator.npu.container import Container, Variant
from simulator.npu.errors import BadInputError
from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code
from simulator.response import Response, measure_response, prepared_variants, share_grid
from simulator.runtime import Runtime, ServedRun
from simulator.thresholds import choose_thresholds, repeat_pair
from simulator.timing import Prepared, prepare, simulate, simulate_trace
from tests.programs import copy, memory_map, program, random_program, record

TINY = load_machine("tiny")
FULL, HALF, QUARTER = SHARE_UNIT, SHARE_UNIT // 2, SHARE_UNIT // 4


def load(blocks: int) -> Code:
    return copy(TINY, Memory.DDR, Memory.L1, blocks)


def store(blocks: int) -> Code:
    return copy(TINY, Memory.UB, Memory.DDR, blocks, to=64)


def vector(cycles: int) -> Code:
    return record(Op.VRELU, Engine.VECTOR, 1, cycles, 1, 1, 1, 1, src=Memory.UB, dst=Memory.UB, d=0, s=(0,))


VARIANTS = {
    "light": (prepare(program(TINY, [load(10), vector(5)]), TINY),),
    "heavy": (prepare(program(TINY, [load(4), vector(20)]), TINY),),
}


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(VARIANTS, TINY, switch_cycles=3)


@pytest.fixture(scope="module")
def response() -> Response:
    return measure_response(VARIANTS, [FULL, HALF, QUARTER, *share_grid(TINY)])


def history(served: ServedRun) -> list[tuple[str, int, int]]:
    return [(served.variants[v], s, n) for v, s, n in zip(served.variant, served.start.tolist(), served.latency.tolist(), strict=True)]


# a program under a trace ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "cycles"),
    [
        ([(0, FULL)], 14),
        ([(0, QUARTER)], 44),
        ([(0, FULL), (2, HALF)], 24),  # within the latency: all 10 blocks at a half
        ([(0, FULL), (4, HALF)], 24),
        ([(0, FULL), (13, QUARTER)], 17),  # nine blocks are through, one takes four cycles
        ([(0, FULL), (14, 1)], 14),  # it is done by then
        ([(0, FULL), (6, QUARTER), (14, HALF), (18, FULL)], 22),  # 2 + 2 + 2 blocks by 18
        ([(0, QUARTER), (5, FULL)], 15),  # a quarter of a block, then 9.75 take 10 cycles
    ],
)
def test_a_load_under_a_trace(steps: list[tuple[int, int]], cycles: int) -> None:
    assert simulate_trace(program(TINY, [load(10)]), TINY, ContentionTrace.of(steps)).cycles == cycles


def test_store_feels_only_shares_below_its_cap() -> None:
    p = program(TINY, [store(10)])  # half a block per cycle at most
    assert simulate_trace(p, TINY, ContentionTrace.of([(0, FULL), (8, HALF)])).cycles == 24
    # two blocks by 8, then eight at a quarter
    assert simulate_trace(p, TINY, ContentionTrace.of([(0, FULL), (8, QUARTER)])).cycles == 40


def test_two_cores_share_what_the_trace_leaves() -> None:
    # half a block each: five by 14, then an eighth each: 40 cycles more
    p = program(TINY, [load(10)], [load(10)])
    timing = simulate_trace(p, TINY, ContentionTrace.of([(0, FULL), (14, QUARTER)]))
    assert (timing.cycles, timing.load_store_cycles) == (54, 100)


@pytest.mark.parametrize("share", [FULL, HALF, QUARTER, 12345, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_a_constant_trace_is_a_level(share: int, seed: int) -> None:
    p = prepare(random_program(TINY, seed, 200), TINY)
    level = simulate(p, TINY, Level.of_units(share))
    for trace in (ContentionTrace.constant(share), ContentionTrace.of([(0, share), (7, share), (50, share)])):
        timing = simulate_trace(p, TINY, trace)
        assert (timing.cycles, timing.load_store_cycles, timing.compute_cycles) == (
            level.cycles,
            level.load_store_cycles,
            level.compute_cycles,
        )


# inferences -----------------------------------------------------------------------------------------------------------


def test_static_inferences_that_meet_a_change(runtime: Runtime) -> None:
    trace = ContentionTrace.of([(0, FULL), (20, QUARTER)])
    # the second one has two blocks by cycle 20, the other eight take 32
    expected = [("light", 0, 14), ("light", 14, 38), ("light", 52, 44)]
    assert history(runtime.serve(StaticRule(0), trace, inferences=3)) == expected
    assert history(runtime.serve(StaticRule(1), trace, inferences=2)) == [("heavy", 0, 20), ("heavy", 20, 20)]


def test_change_at_the_end_is_the_next_ones(runtime: Runtime) -> None:
    trace = ContentionTrace.of([(0, FULL), (14, QUARTER)])
    assert history(runtime.serve(StaticRule(0), trace, inferences=2)) == [("light", 0, 14), ("light", 14, 44)]


def test_oracle_knows_the_change_and_pays_the_switch(runtime: Runtime) -> None:
    trace = ContentionTrace.of([(0, FULL), (20, QUARTER)])
    # at 14 light would take 38; heavy starts at 17, has its four blocks by 21 + 16 or so, and VECTOR until 37
    assert history(runtime.serve(Oracle(), trace, inferences=3)) == [("light", 0, 14), ("heavy", 14, 23), ("heavy", 37, 20)]


def test_the_oracle_stays_where_switching_costs_more() -> None:
    trace = ContentionTrace.of([(0, FULL), (20, HALF), (30, FULL)])
    # at 14: light has 2 blocks by 20, 5 more by 30, 3 more by 33: 19; heavy 20 and the switch
    assert history(Runtime(VARIANTS, TINY, 0).serve(Oracle(), trace, inferences=2)) == [("light", 0, 14), ("light", 14, 19)]
    quarter = ContentionTrace.of([(0, FULL), (14, QUARTER)])
    # 44 against 20 + 24: a tie stays
    assert history(Runtime(VARIANTS, TINY, 24).serve(Oracle(), quarter, inferences=2))[1] == ("light", 14, 44)
    assert history(Runtime(VARIANTS, TINY, 23).serve(Oracle(), quarter, inferences=2))[1] == ("heavy", 14, 43)


def test_the_threshold_rule_under_a_step(runtime: Runtime) -> None:
    rule = ThresholdRule((0, 1), (19661,), (3 * 65536,))  # 0.3 and 3
    trace = ContentionTrace.of([(0, FULL), (28, QUARTER), (200, FULL)])
    # rho of light is 0.5, then 0.125: one inference late it switches; heavy at a quarter has 20 / 16, at full bandwidth 20 / 4
    found = history(runtime.serve(rule, trace, inferences=12))
    assert found[:4] == [("light", 0, 14), ("light", 14, 14), ("light", 28, 44), ("heavy", 72, 23)]
    assert found[4:9] == [("heavy", start, 20) for start in (95, 115, 135, 155, 175)]
    # 195: latency until 199, a quarter of a block by 200; 20 / 4.75 sends it back
    assert found[9:] == [("heavy", 195, 20), ("light", 215, 17), ("light", 232, 14)]


def test_a_rule_sees_the_counters_and_nothing_else(runtime: Runtime) -> None:
    counters: list[Observation] = []

    class Spy(StaticRule):
        def step(self, state: StaticState, observation: Observation) -> StaticState:
            counters.append(observation)
            return state

    runtime.serve(Spy(0), ContentionTrace.of([(0, FULL), (20, QUARTER)]), inferences=2)
    # data from 4 to 14; from 18 to 52
    assert counters == [Observation(0, 0, 14, 5, 10, 320), Observation(0, 14, 52, 5, 34, 320)]


def test_results(runtime: Runtime) -> None:
    trace = ContentionTrace.of([(0, FULL), (20, QUARTER)])
    light, oracle = (runtime.serve(rule, trace, inferences=3) for rule in (StaticRule(0), Oracle()))
    assert (light.inferences, light.cycles, light.mean_cycles, light.switches) == (3, 96, 32.0, 0)
    assert [light.percentile(p) for p in (0, 33, 34, 50, 66, 67, 99, 100)] == [14, 14, 38, 38, 38, 44, 44, 44]
    assert (oracle.cycles, oracle.switches, oracle.variant_cycles) == (57, 1, {"light": 14, "heavy": 43})
    assert light.regret(oracle) == pytest.approx(96 / 57 - 1)
    assert oracle.regret(oracle) == 0


def test_until_a_cycle(runtime: Runtime) -> None:
    trace = ContentionTrace.constant(FULL)
    assert [runtime.serve(StaticRule(0), trace, until_cycle=end).inferences for end in (1, 14, 15, 28, 29)] == [1, 1, 2, 2, 3]


def test_switch_costs_one_issue_by_default() -> None:
    assert Runtime(VARIANTS, TINY).switch_cycles == 0 == TINY.issue_cycles
    edge = load_machine("edge")
    assert Runtime({"a": (prepare(program(edge, []), edge),)}, edge).switch_cycles == edge.issue_cycles == 1


def test_what_the_runtime_does_not_take(runtime: Runtime) -> None:
    trace = ContentionTrace.constant(FULL)
    with pytest.raises(BadInputError, match="no variants"):
        Runtime({}, TINY)
    with pytest.raises(BadInputError, match="switch of -1 cycles"):
        Runtime(VARIANTS, TINY, -1)
    for inferences, until in ((None, None), (1, 1), (0, None), (None, 0), (-1, None)):
        with pytest.raises(BadInputError, match="accepted: one of them, 1 or more"):
            runtime.serve(StaticRule(0), trace, inferences=inferences, until_cycle=until)
    empty = Runtime({"nothing": (prepare(program(TINY, []), TINY),)}, TINY)
    with pytest.raises(BadInputError, match="nothing takes no time"):
        empty.serve(StaticRule(0), trace, inferences=1)


def plainly(prepared: Prepared, trace: ContentionTrace, count: int) -> list[int]:
    """Latencies with every inference simulated under all of the trace that is to come."""
    latencies, now = [], 0
    for _ in range(count):
        latencies.append(simulate_trace(prepared, TINY, trace.after(now)).cycles)
        now += latencies[-1]
    return latencies


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("length", [7, 300, 20_000])
def test_looking_up_is_simulating(kind: str, length: int) -> None:
    """Holds from far below an inference (many changes in one) to far above."""
    prepared = prepare(random_program(TINY, 5, 150), TINY)
    trace = generate_trace(kind, 2, PortLoad((FULL, HALF, QUARTER // 4), length, 400))
    served = Runtime({"only": (prepared,)}, TINY).serve(StaticRule(0), trace, inferences=60)
    assert served.latency.tolist() == plainly(prepared, trace, 60)
    assert (served.start[1:] == np.cumsum(served.latency)[:-1]).all()


# with thresholds and predictions from the response ---------------------------------------------------------------------


def test_the_response_on_paper(response: Response) -> None:
    k = {share: response.grid.index(share) for share in (FULL, HALF, QUARTER)}
    assert [response.cycles[0, k[s]] for s in k] == [14, 24, 44]
    assert [response.cycles[1, k[s]] for s in k] == [20, 20, 20]
    assert [response.balance[0, k[s]] for s in k] == [0.5, 0.25, 0.125]
    assert [response.pace[1, k[s]] for s in k] == [4 / 128, 8 / 128, 16 / 128]
    assert list(response.grid) == sorted(response.grid, reverse=True)
    assert (response.grid[0], response.grid[-1]) == (FULL, QUARTER // 2)


def test_the_border_on_paper(response: Response) -> None:
    (border,) = choose_thresholds(response, hysteresis=0.05).borders
    # transfers end in whole cycles: from 10 / 16 to 10 / 15 both take 20
    assert 10 / 16 <= border.share < 10 / 15
    # rho there: 5 / 16 to 5 / 15, 20 / 7 (4 / s is 6 or more, and a part of a cycle) to 20 / 6
    assert 5 / 16 <= border.t_min <= 5 / 15
    assert 1.05 * 20 / 7 <= border.t_max <= 1.05 * 20 / 6


def test_chosen_thresholds_settle_and_one_pair_does_not(runtime: Runtime, response: Response) -> None:
    chosen = choose_thresholds(response).rule
    pair = repeat_pair(response, ((14,), (20,)), 0.4, 2.0)
    assert {o.share_units for o in pair.oscillations} >= {HALF}
    for share in (FULL, HALF, QUARTER, *(o.share_units for o in pair.oscillations)):
        assert runtime.serve(chosen, ContentionTrace.constant(share), inferences=20).switches <= 1
    for oscillation in pair.oscillations:
        assert runtime.serve(pair.rule, ContentionTrace.constant(oscillation.share_units), inferences=20).switches == 19


@pytest.mark.parametrize("kind", ["step", "periodic", "bursty"])
@pytest.mark.parametrize("seed", range(3))
def test_both_rules_follow_a_load_that_holds(response: Response, kind: str, seed: int) -> None:
    runtime = Runtime(VARIANTS, TINY, switch_cycles=3)
    trace = generate_trace(kind, seed, PortLoad((FULL, HALF, QUARTER), 44, 200))
    oracle = runtime.serve(Oracle(), trace, until_cycle=44 * 200)
    static = min((runtime.serve(StaticRule(v), trace, until_cycle=44 * 200) for v in range(2)), key=lambda s: s.mean_cycles)
    rules: list[SwitchingRule[object]] = [choose_thresholds(response).rule, EstimatorRule(response, 3)]
    for rule in rules:
        served = runtime.serve(rule, trace, until_cycle=44 * 200)
        assert served.regret(oracle) < 0.05
        assert served.regret(static) < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_the_estimator_does_not_lose_to_an_adversary(response: Response, seed: int) -> None:
    runtime = Runtime(VARIANTS, TINY, switch_cycles=3)
    trace = generate_trace("adversarial", seed, PortLoad((FULL, HALF, QUARTER), 44, 400))
    static = min((runtime.serve(StaticRule(v), trace, until_cycle=44 * 400) for v in range(2)), key=lambda s: s.mean_cycles)
    served = runtime.serve(EstimatorRule(response, 3), trace, until_cycle=44 * 400)
    assert served.regret(static) < 0.02


def test_levels_with_the_same_stream_are_one_variant() -> None:
    def variant(level: str, *rows: Code) -> Variant:
        return Variant(level, program(TINY, list(rows)).streams, "", {})

    light = [load(10), vector(5)]
    variants = (variant("none", *light), variant("slight", *light), variant("severe", load(4), vector(20)))
    assert list(prepared_variants(Compiled.of(Container("0" * 32, TINY, memory_map(), variants, b"")))) == ["none", "severe"]
