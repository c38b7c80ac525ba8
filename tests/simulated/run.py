"""Seeds: a scenario in a world of faults each, from the first session of its driver to the end of the run."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tests.simulated.bugs import planted
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.faults import Faults, sessions
from tests.simulated.kernel import US, Crash, Kernel, Process, SimulationError
from tests.simulated.oracle import Parts, acknowledged, allowed, check_end, check_mirror, check_standing, check_store, read_once
from tests.simulated.replay import build_replaying
from tests.simulated.scenarios import SCENARIOS, Computed, compute, computed
from tests.simulated.session import OUT, Disks, searched
from tuner.farm.crash_journal import FILE as ATTEMPTS
from tuner.farm.crash_journal import failing_items

EVENTS_MAX = 100_000
SECONDS_MAX = 10_000
TURNS = [scenario.name for turn in range(6) for scenario in SCENARIOS if turn < scenario.turns]
HANGS_S = 120.0  # of real time without any verdict: a thread waits for what no world gives it
TIMES = 16  # that a session may have
VERIFIED = 0.2  # of the ends of sessions
COLLECT = (100_000, 20, 100)  # Python's own: 700, 10, 10


class Case(NamedTuple):
    """A seed.  scenario: None for the one that the seed has."""

    seed: int
    scenario: str | None = None
    bug: str | None = None

    @property
    def name(self) -> str:
        """Of its scenario."""
        return self.scenario or TURNS[self.seed % len(TURNS)]

    @property
    def command(self) -> str:
        """Does it again, and says what happened."""
        return f"python -m tests.simulated --seed {self.seed} --scenario {self.name}" + (f" --bug {self.bug}" if self.bug else "")


class Verdict(NamedTuple):
    """fault: what was wrong, None where all was right."""

    case: Case
    fault: str | None
    sessions: int
    time_s: float
    deaths: int


def simulated(case: Case, trace: list[str] | None = None) -> Verdict:
    """One seed."""
    run = _Run(computed(case.name), case.seed, trace)
    fault = None
    try:
        with planted(case.bug), read_once(run.parts), acknowledged() as run.published:
            run.until_it_ends()
    except SimulationError as error:
        fault = str(error)
        if trace is not None:
            import traceback

            trace.append("".join(traceback.format_exception(error)))
    return Verdict(case, fault, run.sessions, run.kernel.now_us / US, run.kernel.deaths)


class _Run:
    def __init__(self, found: Computed, seed: int, trace: list[str] | None) -> None:
        self.computed, self.kernel = found, Kernel(seed, trace)
        self.kernel.events_max, self.kernel.until_us = EVENTS_MAX, SECONDS_MAX * US
        self.disks = Disks(SimDisk(self.kernel.stream("disk")), SimDisk(self.kernel.stream("away")))
        above = SimPlace(self.disks.here, OUT).parent
        above.mkdir()
        above.parent.fsync()
        self.rng = self.kernel.stream("faults")
        self.times = self.kernel.stream("times")
        self.parts = Parts()
        self.sessions = 0
        self.struck: set[bytes] = set()

    def until_it_ends(self) -> None:
        for faults in sessions(self.rng, self.computed.calls, self.computed.names):
            if self._session(faults) and self.rng.random() < 0.5:
                break
        else:
            if not self._session(Faults(switch=0.1), calm=True):
                raise SimulationError("a session without faults, and with all the time it needs, does not end the run")

    def _session(self, faults: Faults, calm: bool = False) -> bool:
        """Returns whether the run has come to its end."""
        kernel, found = self.kernel, self.computed
        kernel.forget()
        kernel.now_us += self.rng.randrange(100 * US)
        process = Process(kernel, faults)
        self.sessions += 1
        self.published.waiting.clear()
        kernel.say(f"session {self.sessions}: {faults}")
        search = found.search
        if found.scenario.timed and not calm:
            search = search.within(found.time_s * self.times.randint(1, TIMES) / TIMES)
            kernel.say(f"it has {search.config.budget.seconds:.1f} s")
        build = partial(build_replaying, found.scenario.replay(found.recording, kernel, process))
        try:
            ended = kernel.run(
                process,
                lambda: searched(search, found.recording, build, self.disks, kernel, process, self.struck),
            )
        except SimulationError:
            raise
        except (Crash, KeyboardInterrupt, Exception) as error:
            kernel.say(f"ended with {error!r}")
            if calm:
                raise SimulationError(f"a session without faults ended with {error!r}") from error
            allowed(error, process)
            if process.power_lost:
                self.disks.here.power_cut()
            self._once_at_an_item()
            self._check(process, ended=False)
            return False
        self._check(process, ended=True)
        check_end(found, self.disks.here, ended)
        return ended.stopped == found.ended.stopped

    def _once_at_an_item(self) -> None:
        """The world ends no second session in the midst of an item that does no harm, which would be blamed: this one ended just before."""
        notes = SimPlace(self.disks.here, (*OUT, "checkpoint", ATTEMPTS))
        lines = notes.read_bytes().splitlines(keepends=True) if notes.is_file() else []
        if any(request not in self.computed.recording.fatal for request, _ in failing_items(lines)):
            notes.put([], sum(map(len, lines[:-1])))

    def _check(self, process: Process, ended: bool) -> None:
        verified = self.rng.random() < VERIFIED
        check_standing(self.computed, self.disks.here, self.published, self.parts, verified)
        if self.computed.search.request.mirror is not None:
            check_mirror(self.computed, self.disks, self.parts, verified, ended)
        if self.computed.search.request.store is not None:
            check_store(self.disks, ended and not process.disk_errors)  # what a store cannot take holds up nobody


def _prepare(names: Sequence[str], processes: int) -> None:
    """Compute scenarios, which stay: to look at all that they are made of again and again took the collector a quarter of a seed's time."""
    gc.set_threshold(*COLLECT)
    if processes == 1:
        for name in names:
            computed(name)
    else:
        compute(names, processes)
    gc.collect()
    gc.freeze()


def run_all(cases: Sequence[Case], processes: int) -> Iterator[Verdict]:
    """Verdicts, as they come."""
    _prepare(list(dict.fromkeys(case.name for case in cases)), processes)
    if processes == 1:
        yield from map(simulated, cases)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        verdicts = pool.imap_unordered(simulated, cases)
        for _ in cases:
            yield verdicts.next(HANGS_S)


def found(bug: str, seeds: Sequence[int]) -> Verdict | None:
    """The first of these seeds that finds a planted bug."""
    verdicts = (simulated(Case(seed, bug=bug)) for seed in seeds)
    return next((verdict for verdict in verdicts if verdict.fault is not None), None)


def report_bugs(bugs: Sequence[str], seeds: Sequence[int], processes: int) -> list[str]:
    """Those that are not found; says of the others by which seed."""
    _prepare(sorted(set(TURNS)), processes)
    missed = []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for bug, verdict in zip(bugs, pool.imap(partial(found, seeds=seeds), bugs), strict=True):
            if verdict is None:
                missed.append(bug)
                print(f"{bug}: not found within {len(seeds)} seeds", flush=True)
            else:
                print(f"{bug}: {verdict.fault}\n  {verdict.case.command}", flush=True)
    return missed


def report(cases: Sequence[Case], processes: int) -> list[Verdict]:
    """Those that failed; says how it goes."""
    begun, failed, done = time.perf_counter(), list[Verdict](), 0
    for verdict in run_all(cases, processes):
        done += 1
        if verdict.fault is not None:
            failed.append(verdict)
            print(f"seed {verdict.case.seed} ({verdict.case.name}): {verdict.fault}\n  {verdict.case.command}", flush=True)
    print(f"{done} seeds, {len(failed)} failed, {time.perf_counter() - begun:.1f} s")
    return failed
