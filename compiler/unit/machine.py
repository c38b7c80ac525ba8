"""What emission takes for granted of a machine, as data, and the refusal of a machine that lacks it."""

from __future__ import annotations

from functools import lru_cache

from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.parts import BYTES, DataType, Memory

# (source, destination) -> engines for which records are written; L0C straight to L1 is used where the machine lists it
PATHS = {
    ("DDR", "L1"): ("MTE2",),
    ("DDR", "UB"): ("MTE2",),
    ("L1", "L0A"): ("MTE1",),
    ("L1", "L0B"): ("MTE1",),
    ("L1", "UB"): ("MTE1",),
    ("L0C", "UB"): ("FIXPIPE", "VECTOR"),
    ("UB", "L1"): ("MTE3",),
    ("UB", "DDR"): ("MTE3",),
    ("L1", "DDR"): ("MTE3",),
}
# of a machine that has that memory
SHARED_PATHS = {
    ("DDR", "SHARED"): ("MTE2",),
    ("SHARED", "L1"): ("MTE2",),
    ("SHARED", "UB"): ("MTE2",),
    ("UB", "SHARED"): ("MTE3",),
    ("L1", "SHARED"): ("MTE3",),
}


def check_machine(machine: Machine, *dtypes: DataType) -> None:
    """Raise `UnsupportedError` where the compiler has no code for a machine: paths that it needs are missing, or a data type is."""
    lacks = list[str]()
    for (source, destination), engines in (PATHS if machine.shared is None else PATHS | SHARED_PATHS).items():
        path = machine.path(Memory[source], Memory[destination])
        if path is None or path.engine not in engines:
            what = "is missing" if path is None else f"belongs to {path.engine}"
            lacks.append(f"path {source} -> {destination} {what}, needed of {' or '.join(engines)}")
    if lacks:
        raise UnsupportedError(f"machine {machine.name}: the compiler has no code for it: {'; '.join(lacks)}")
    types = machine.matrix.data_types
    for dtype in dtypes:
        if (DataType.int8 if dtype in BYTES else dtype).name in types:
            continue
        raise UnsupportedError(f"machine {machine.name}: its matrix unit has no {dtype.name}; it has {', '.join(types) or 'no data type'}")


@lru_cache(maxsize=64)
def writes_l1(machine: Machine) -> bool:
    """Whether results of the matrix unit can go to L1 without UB."""
    return machine.path(Memory.L0C, Memory.L1) is not None
