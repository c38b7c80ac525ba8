"""Tasks and time of the simulation."""

from __future__ import annotations

import pytest

from tests.simulated.faults import Faults
from tests.simulated.kernel import Crash, Kernel, Process, SimulationError
from tests.simulated.world import simulated_world


def told(seed: int, switch: float = 0.3, crash_at: int = -1, interrupts_at: frozenset[int] = frozenset()) -> list[str]:
    """What a driver and two steps beside it did, in turn."""
    kernel, said = Kernel(seed), list[str]()
    process = Process(kernel, Faults(crash_at=crash_at, switch=switch, interrupts_at=interrupts_at))
    world = simulated_world(kernel, process)
    lock = world.threads.lock()

    def step(name: str) -> float | None:
        for at in range(3):
            with lock:
                said.append(f"{name}{at}")
                world.clock.monotonic_s()
                said.append(f"{name}{at}.")
        return 1.0

    def driver() -> None:
        beside = [world.threads.repeat(name, lambda name=name: step(name), 0.5) for name in "ab"]
        for at in range(5):
            with lock:
                said.append(f"d{at}")
                world.clock.monotonic_s()
                said.append(f"d{at}.")
            world.clock.sleep(0.4)
        for each in beside:
            each.close()
        said.append("closed")

    kernel.run(process, driver)
    return said


def test_a_seed_is_one_run_and_seeds_differ() -> None:
    assert told(1) == told(1)
    assert len({tuple(told(seed)) for seed in range(20)}) > 5


def test_locks_exclude_others_and_closed_steps_never_run() -> None:
    for seed in range(50):
        said = told(seed)
        assert all(second == first + "." for first, second in zip(said[:-1:2], said[1:-1:2], strict=True))
        assert said[-1] == "closed"


def test_a_crash_ends_all_tasks_at_whatever_call() -> None:
    ends = set()
    for call in range(1, 60):
        try:
            told(call, crash_at=call)
        except Crash:
            ends.add("crash")
        else:
            ends.add("done")
    assert ends == {"crash", "done"}


def test_an_interrupt_comes_to_the_driver() -> None:
    with pytest.raises(KeyboardInterrupt):
        told(3, interrupts_at=frozenset([9]))


def test_who_waits_for_ever_is_seen() -> None:
    kernel = Kernel(0)
    process = Process(kernel, Faults())
    lock = simulated_world(kernel, process).threads.lock()

    def driver() -> None:
        with lock, lock:
            pass

    with pytest.raises(SimulationError, match="for ever"):
        kernel.run(process, driver)


def test_what_a_step_raises_is_seen() -> None:
    kernel = Kernel(0)
    process = Process(kernel, Faults())
    world = simulated_world(kernel, process)

    def driver() -> None:
        world.threads.repeat("bad", lambda: [][0], 0.1)
        world.clock.sleep(1)

    with pytest.raises(SimulationError, match="list index"):
        kernel.run(process, driver)
