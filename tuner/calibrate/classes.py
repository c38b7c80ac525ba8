"""Table of fitted values: classes in order, so that each class depends only on earlier ones.

A row is data: its keys in the machine's file (at most four at a time), the probes whose times depend on them, and assumed values of later
classes.  All classes are fitted alike (`tuner.calibrate.fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import CubeUnit, SystolicUnit
from simulator.npu.parts import Memory
from tuner.calibrate.keys import Key, Number, path_key
from tuner.calibrate.probes import Probe
from tuner.calibrate.probes_ddr import level_probes, port_probes, run_probes, transfer_probes
from tuner.calibrate.probes_engines import issue_probes, launch_probes, matrix_probes, vector_probes
from tuner.calibrate.probes_flags import flag_probes
from tuner.calibrate.probes_paths import path_probes, uses_copy

Probes = Callable[[Machine, int], tuple[Probe, ...]]
GRANULES = (32, 64, 128, 256, 512)  # bytes: the values tried
MOST_KEYS = 4
_WIDE = 1 << 20  # B/cycle: a port without effect


def _no_probes(machine: Machine, load: int) -> tuple[Probe, ...]:
    return ()


@dataclass(frozen=True)
class ParameterClass:
    """Class of parameters.  keys: keys of the class.  first: keys of later classes that are also free during the first fit.

    assumed: values for the time before they are fitted.  absorbing: keys of other classes that are free again in the last fit, because they
    can compensate for keys of this class; the probes of such keys separate them.
    """

    name: str
    keys: tuple[Key, ...]
    probes: Probes
    first: tuple[Key, ...] = ()
    assumed: Mapping[str, Number] = field(default_factory=dict)
    absorbing: tuple[Key, ...] = ()
    beside_probes: Probes = _no_probes


def cycles_key(key: str, hidden: str, lowest: int = 0, highest: int = 1 << 20) -> Key:
    """Key of a time in cycles.  hidden: see `Key`."""
    return Key(key, "cycles", lowest, highest, hidden=hidden)


def rate_key(key: str, hidden: str, step: Number = 1) -> Key:
    """Key of a rate in bytes per cycle; times are proportional to its inverse.  hidden: see `Key`."""
    return Key(key, "B/cycle", step, 1 << 20, step, inverse=True, hidden=hidden)


# reasons why no probe may show a value, for the user
_ISSUE = "instructions are handed out no faster"
_PORT = "the port is no faster"
_GRANULE = "blocks of 32 bytes are moved whole, and rows of DRAM are opened no faster"


def parameter_classes(machine: Machine) -> tuple[ParameterClass, ...]:
    """Rows for a machine.  Raises `UnsupportedError` without UB or L0, since probes use all buffers, and with an L2 or a path from L0C to
    DDR, of which there are no probes."""
    if missing := [memory.name for memory in (Memory.L0A, Memory.L0B, Memory.UB) if not machine.has(memory)]:
        raise UnsupportedError(f"machine {machine.name}: has no {', '.join(missing)}; calibrate takes machines with L0A, L0B and UB")
    parts = ("an l2", machine.l2), ("a path L0C -> DDR", machine.path(Memory.L0C, Memory.DDR))
    if hidden := [words for words, part in parts if part is not None]:
        raise UnsupportedError(f"machine {machine.name}: has {' and '.join(hidden)}; calibrate takes machines without")
    unit = machine.matrix
    products = [cycles_key(_product_keys(unit, name), _ISSUE, 1) for name in unit.data_types]
    rows = [
        ParameterClass(
            "issue", (cycles_key("issue_cycles", "flags of the scalar unit are not handed out one after another"),), issue_probes
        ),
        ParameterClass(
            "vector",
            (cycles_key("vector.startup_cycles", _ISSUE), cycles_key("vector.simple_cycles", _ISSUE, 1)),
            partial(vector_probes, "simple"),
        ),
        *(
            ParameterClass(f"vector, {kind}", (cycles_key(f"vector.{kind}_cycles", _ISSUE, 1),), partial(vector_probes, kind))
            for kind in ("divide", "transcendental", "reduce", "lookup", "ordered")
            if getattr(machine.vector, f"{kind}_cycles") is not None
        ),
        ParameterClass("matrix", (cycles_key("matrix.startup_cycles", _ISSUE), *products), matrix_probes),
    ]
    # paths of DDR follow last: their probes also depend on paths on chip
    for path in machine.paths:
        link = (path.source, path.destination)
        if not path.of_ddr:
            reason = "the shared memory is no faster" if "SHARED" in link else _ISSUE
            keys = [rate_key(path_key(*link, "bytes_per_cycle"), reason), cycles_key(path_key(*link, "startup_cycles"), _ISSUE)]
            keys += [_granule(*link)] if uses_copy(*link) else []
            rows.append(ParameterClass(f"{link[0]} -> {link[1]}", tuple(keys), partial(path_probes, *link)))
    key = cycles_key("flags.between_cores_cycles", _ISSUE if machine.cores > 1 else "there is one core")
    rows.append(ParameterClass("flags between cores", (key,), flag_probes))
    return (*rows, *_ddr(machine), ParameterClass("launch", (cycles_key("launch_cycles", "nothing else is in the way"),), launch_probes))


def _product_keys(unit: CubeUnit | SystolicUnit, dtype: str) -> str:
    """Key of the matrix unit's time for one product."""
    if isinstance(unit, SystolicUnit):
        return f"matrix.passes.{dtype}"
    return f"matrix.products.{dtype}.cycles" if dtype in unit.products else f"matrix.cycles_per_fractal.{dtype}"


def _granule(source: str, target: str) -> Key:
    return Key(path_key(source, target, "granule_bytes"), "B", GRANULES[0], GRANULES[-1], choices=GRANULES, hidden=_GRANULE)


def _ddr(machine: Machine) -> list[ParameterClass]:
    """Classes of DDR: paths with an unlimited port, then the port, then the share of each level."""
    paths = [(path.source, path.destination) for path in machine.paths if path.of_ddr]
    if not paths:
        return []
    wide = {"ddr.bytes_per_cycle": _WIDE}
    port = rate_key("ddr.bytes_per_cycle", "the paths of all cores together draw less", 0.1)
    latency = (
        cycles_key("ddr.latency_cycles", "start-ups and data take longer"),
        Key("ddr.outstanding", "entries", 1, 4096, hidden="fewer cover the latency already: start-ups and data take longer"),
    )
    rows: list[ParameterClass] = []
    for link in paths:
        keys = rate_key(path_key(*link, "bytes_per_cycle"), _PORT, 0.1), cycles_key(path_key(*link, "startup_cycles"), "latency hides it")
        name, probes = f"{link[0]} -> {link[1]}", partial(transfer_probes, *link)
        rows.append(ParameterClass(name, keys, probes, () if rows else latency, wide, (port,), port_probes))
        rows.append(ParameterClass(f"{name}, runs", (_granule(*link),), partial(run_probes, *link), assumed=wide))
    rows.append(ParameterClass("DDR latency", latency, partial(transfer_probes, *paths[0]), assumed=wide))
    rows.append(ParameterClass("DDR port", (port,), port_probes))
    for level in list(machine.contention)[1:]:  # the port's rate is measured at the first
        share = Key(f"contention.{level}.share", "share", 0.001, 1, 0.001, inverse=True, hidden="the paths of all cores together draw less")
        slow_key = cycles_key(f"contention.{level}.latency_cycles", "start-ups and data take longer")
        rows.append(
            ParameterClass(f"level {level}", (share, slow_key), partial(level_probes, level), absorbing=(port,), beside_probes=port_probes)
        )
    return rows


def fitted_keys(machine: Machine) -> tuple[Key, ...]:
    """Fitted keys of a machine, except the depth of its queues (`tuner.calibrate.queue`)."""
    return tuple(key for row in parameter_classes(machine) for key in row.keys)
