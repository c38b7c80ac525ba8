"""`python -m tests.simulated`: many seeds, or one with all that happened in it."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """1 where a seed failed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read when xgboost is imported; threads of its pool are not there after a fork, and waited for
    from tests.simulated.bugs import BUGS
    from tests.simulated.run import Case, report, report_bugs, simulated
    from tests.simulated.scenarios import SCENARIOS

    parser = argparse.ArgumentParser(prog="python -m tests.simulated", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone, with what happened in it")
    parser.add_argument("--processes", type=int, default=2)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", choices=names, nargs="+", default=[None], help="of each seed, which has one of its own otherwise")
    parser.add_argument("--bug", choices=sorted(BUGS), help="planted before")
    parser.add_argument("--bugs", action="store_true", help="each of them, until a seed finds it")
    options = parser.parse_args()
    if options.bugs:
        return int(bool(report_bugs(list(BUGS), range(options.first, options.first + options.seeds), options.processes)))
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        cases = [Case(seed, scenario, options.bug) for seed in seeds for scenario in options.scenario]
        return int(bool(report(cases, options.processes)))
    trace: list[str] = []
    verdict = simulated(Case(options.seed, options.scenario[0], options.bug), trace)
    print("\n".join(trace))
    print(f"{verdict.sessions} sessions, {verdict.time_s:.1f} s, {verdict.deaths} deaths: {verdict.fault or 'as it should be'}")
    return int(verdict.fault is not None)


if __name__ == "__main__":
    sys.exit(main())
