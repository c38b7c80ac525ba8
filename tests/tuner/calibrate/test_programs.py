"""The table of what is fitted leaves no value out, and micro-programs are right programs whose times its keys change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine, preset_names
from simulator.sanitizer import sanitize_program
from tests.integers import with_integers
from tests.messages import naming
from tests.plans import multiplying
from tuner.calibrate.classes import MOST_KEYS, fitted_keys, parameter_classes
from tuner.calibrate.hidden import hidden_machine
from tuner.calibrate.keys import read_value, split_key, with_values
from tuner.calibrate.probes import predict_cycles
from tuner.calibrate.probes_flags import queue_program
from tuner.calibrate.queue import QUEUE

LOAD = 4096
# sizes and shapes, which a data sheet has; what no program's time depends on; a convention; and the DRAM that a rate of pins is of
GIVEN = {
    "name", "description", "cores", "clock_hz", "matrix.kind", "matrix.rows", "matrix.columns", "matrix.dataflow", "matrix.pipelined",
    "flags.ids_per_pair", "flags.count_limit", "ddr.rate", "ddr.dram", "contention.none.share", "contention.none.latency_cycles",
    "shared.bytes", "shared.bytes_per_cycle", "shared.latency_cycles",
    *(f"matrix.products.{dtype}.{side}" for dtype in ("float16", "float32", "int8") for side in ("m0", "k0", "n0")),
}  # fmt: skip
ROUNDED_UP = ("L1->L0A.granule_bytes", "L0C->UB.granule_bytes", "L0C->L1.granule_bytes")  # of moves that are no copies: of no effect


INTEGERS = with_integers(load_machine("tiny"))
SHAPED = multiplying(load_machine("tiny"), float16=(12, 10, 24, 3), float32=(1, 64, 32, 4))
LACKING, CACHED = [name for name in preset_names() if name.startswith("ethos")], "ascend910b"
MACHINES = {name: load_machine(name) for name in preset_names() if name not in (*LACKING, CACHED)} | {
    "tiny-other-products": SHAPED,
    "tiny-integers": INTEGERS,
}


def leaves(raw: Any, path: str = "") -> Iterator[str]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            yield from leaves(value, f"{path}{key}.")
    elif isinstance(raw, list):
        for each in raw:
            yield from leaves(each, f"{path}{each['source']}->{each['destination']}.")
    else:
        yield path.removesuffix(".")


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_value_is_fitted_or_given(name: str) -> None:
    machine = MACHINES[name]
    fitted = [key.path for key in (*fitted_keys(machine), QUEUE)]
    assert len(fitted) == len(set(fitted))
    rest = set(leaves(machine.model_dump(mode="json"))) - set(fitted) - GIVEN
    ends = ("engine", "source", "destination", "l1_bytes", "shared_bytes", *ROUNDED_UP)  # memory of a level is granted
    assert {path for path in rest if not path.startswith(("buffers_bytes.", "host.")) and not path.endswith(ends)} == set()
    for row in parameter_classes(machine):
        assert len(row.keys) + len(row.first) <= MOST_KEYS
        assert len(row.keys) + len(row.absorbing) <= MOST_KEYS


@pytest.mark.parametrize("name", ["tiny", "tiny-other-products", "tiny-integers", "ascend310p", "tpu-like"])
def test_probes_are_legal_and_grow_with_repeats(name: str) -> None:
    machine = MACHINES[name]
    for row in parameter_classes(machine):
        for probe in row.probes(machine, LOAD):
            for program in probe.programs:
                program.verify(machine)
            if name == "tiny":
                kinds = {finding.kind for finding in sanitize_program(probe.programs[-1], machine)}
                assert kinds <= {"unwritten_read"}, (probe.name, kinds)  # values are of no interest
            times = predict_cycles(probe, machine)
            assert not probe.grows or len(times) == 1 or times[0] > times[1], probe.name
    queue = queue_program(machine, 7, LOAD)
    assert queue is not None
    queue.verify(machine)
    assert {finding.kind for finding in sanitize_program(queue, machine)} <= {"unwritten_read"}


@pytest.mark.parametrize("name", ["tiny", "tiny-other-products", "ascend310p"])
def test_every_key_changes_a_probe_of_its_class(name: str) -> None:
    """On a machine where nothing hides it: latencies and start-ups above the issue, ports wider than paths, few in flight."""
    values = {"ddr.bytes_per_cycle": 4096, "ddr.latency_cycles": 400, "ddr.outstanding": 2, "issue_cycles": 0}
    machine = with_values(MACHINES[name], values)
    for row in parameter_classes(machine):
        own = with_values(machine, {"ddr.bytes_per_cycle": 8}) if row.name == "DDR port" or row.name.startswith("level") else machine
        probes = row.probes(own, LOAD)
        before = [predict_cycles(probe, own) for probe in probes]
        for key in row.keys:
            value = read_value(own, key.path)
            other = (
                next(choice for choice in key.choices if choice > value)
                if key.choices
                else key.rounded(max(value * 0.5, value - 64) if value > 2 else value + 3)
            )
            after = [predict_cycles(probe, with_values(own, {key.path: other})) for probe in probes]
            assert after != before, f"{row.name}: {key.path} {value} -> {other}"


@pytest.mark.parametrize("name", LACKING)
def test_a_machine_without_buffers_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=naming(f"machine {name}", "L0A, L0B, UB")):
        parameter_classes(load_machine(name))


def test_a_machine_with_an_l2_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=naming(f"machine {CACHED}", "an l2 and a path L0C -> DDR", "takes machines without")):
        parameter_classes(load_machine(CACHED))


def test_keys_and_their_values() -> None:
    machine = load_machine("tiny:contention.half.5=0.5")
    assert split_key("contention.half.5.share") == ("contention", "half.5", "share")
    changed = with_values(
        machine, {"contention.half.5.share": 0.25, "paths.L1->L0A.startup_cycles": 9, "matrix.cycles_per_fractal.float32": 5}
    )
    assert (read_value(changed, "contention.half.5.share"), read_value(changed, "paths.L1->L0A.startup_cycles")) == (0.25, 9)
    assert read_value(changed, "matrix.cycles_per_fractal.float32") == 5
    with pytest.raises(KeyError):
        read_value(machine, "vector.nothing_cycles")
    with pytest.raises(KeyError):
        read_value(machine, "paths.L0A->DDR.startup_cycles")


def test_hidden_machines_differ_by_their_seed_alone() -> None:
    machine = load_machine("edge")
    assert hidden_machine(machine, 1) == hidden_machine(machine, 1) != hidden_machine(machine, 2)
    assert hidden_machine(machine, 1).buffers_bytes == machine.buffers_bytes
